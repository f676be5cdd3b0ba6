/* endpoint_port_owner.c: finds the process that listens on a port: /proc/net/tcp gives the inode of
 * the socket, /proc/<pid>/fd the process that holds it. */
#include <ctype.h>
#include <signal.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/rules/text.h"

#define INODES_MAX 16
#define TCP_LISTEN 0x0a /* as /proc/net/tcp has it */

static int listening_inodes(const char *path, int port, unsigned long *inodes, int n)
{
    char line[512];
    FILE *f = fopen(path, "re");
    if (!f)
        return n;
    while (n < INODES_MAX && fgets(line, sizeof(line), f)) {
        unsigned local_port, state;
        unsigned long inode;
        if (sscanf(line,
                   " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x %*u %*d %lu",
                   &local_port, &state, &inode) == 3 &&
            (int)local_port == port && state == TCP_LISTEN && inode != 0)
            inodes[n++] = inode;
    }
    fclose(f);
    return n;
}

static bool holds(int fd_dir, const unsigned long *inodes, int n)
{
    DIR *d = fdopendir(fd_dir); /* takes it */
    bool found = false;
    if (!d) {
        close(fd_dir);
        return false;
    }
    for (struct dirent *entry; !found && (entry = readdir(d));) {
        char target[64];
        ssize_t len = readlinkat(dirfd(d), entry->d_name, target, sizeof(target) - 1);
        unsigned long inode;
        if (len <= 0)
            continue;
        target[len] = '\0';
        if (sscanf(target, "socket:[%lu]", &inode) != 1)
            continue;
        for (int i = 0; i < n; i++)
            found |= inodes[i] == inode;
    }
    closedir(d);
    return found;
}

/* The process that listens there; 0: it is not to be found. */
static pid_t owner_of(int port)
{
    unsigned long inodes[INODES_MAX];
    int n = listening_inodes("/proc/net/tcp", port, inodes, 0);
    n = listening_inodes("/proc/net/tcp6", port, inodes, n);
    DIR *proc = n > 0 ? opendir("/proc") : NULL;
    pid_t owner = 0;
    for (struct dirent *entry; proc && !owner && (entry = readdir(proc));) {
        char path[64];
        if (!isdigit((unsigned char)entry->d_name[0]) || strlen(entry->d_name) > 20)
            continue;
        snprintf(path, sizeof(path), "%.20s/fd", entry->d_name);
        int fd = openat(dirfd(proc), path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && holds(fd, inodes, n))
            owner = (pid_t)atol(entry->d_name);
    }
    if (proc)
        closedir(proc);
    return owner;
}

bool endpoint_port_owner(int port, char *out, size_t cap)
{
    pid_t owner = owner_of(port);
    char path[64], name[64];
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)owner);
    ssize_t len = owner ? fd_read_file(AT_FDCWD, path, name, sizeof(name)) : 0;
    if (len > 0 && name[len - 1] == '\n')
        name[len - 1] = '\0';
    if (owner)
        text_set(out, cap, len > 0 ? "pid %d (%s)" : "pid %d%s", (int)owner, len > 0 ? name : "");
    return owner != 0;
}

/* ------------------------------------------------------------------------------ one that is gone
 */

struct process {
    char name[16], state;
    pid_t parent;
    unsigned long pending; /* signals */
    char program[512];
};

/* False: there is none, or it is another user's. */
static bool look_at(pid_t pid, struct process *p)
{
    char path[64], status[16384];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    if (fd_read_file(AT_FDCWD, path, status, sizeof(status)) <= 0)
        return false;
    const char *state = strstr(status, "\nState:"), *parent = strstr(status, "\nPPid:"),
               *own = strstr(status, "\nSigPnd:"), *shared = strstr(status, "\nShdPnd:");
    if (sscanf(status, "Name: %15[^\n]", p->name) != 1 || !state || !parent || !own || !shared)
        return false;
    p->state = state[8];
    p->parent = (pid_t)atol(parent + 6);
    p->pending = strtoul(own + 8, NULL, 16) | strtoul(shared + 8, NULL, 16);
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    ssize_t len = readlink(path, p->program, sizeof(p->program) - 1);
    p->program[len > 0 ? len : 0] = '\0';
    return true;
}

/* The guardian of an agent is its parent, of the same program. A nested launcher's agent may become
 * the child of the agent around it. */
bool endpoint_port_is_let_go(int port)
{
    struct process agent, guardian;
    pid_t owner = owner_of(port);
    if (!owner || !look_at(owner, &agent) || strcmp(agent.name, ENDPOINT_AGENT) != 0 ||
        !agent.program[0])
        return false;
    bool seen = look_at(agent.parent, &guardian);
    bool killed = seen && (guardian.state == 'Z' || guardian.pending & 1ul << (SIGKILL - 1));
    bool other = seen && (strcmp(guardian.program, agent.program) != 0 ||
                          strcmp(guardian.name, ENDPOINT_AGENT) == 0);
    return !seen || killed || other;
}
