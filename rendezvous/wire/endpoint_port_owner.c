/* endpoint_port_owner.c: finds the process that listens on a port: /proc/net/tcp gives the inode of
 * the socket, /proc/<pid>/fd the process that holds it. */
#include <ctype.h>
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

bool endpoint_port_owner(int port, char *out, size_t cap)
{
    unsigned long inodes[INODES_MAX];
    int n = listening_inodes("/proc/net/tcp", port, inodes, 0);
    n = listening_inodes("/proc/net/tcp6", port, inodes, n);
    DIR *proc = n > 0 ? opendir("/proc") : NULL;
    bool found = false;
    if (!proc)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(proc));) {
        char path[64], name[64];
        if (!isdigit((unsigned char)entry->d_name[0]) || strlen(entry->d_name) > 20)
            continue;
        snprintf(path, sizeof(path), "%.20s/fd", entry->d_name);
        int fd = openat(dirfd(proc), path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || !holds(fd, inodes, n))
            continue;
        snprintf(path, sizeof(path), "%.20s/comm", entry->d_name);
        ssize_t len = fd_read_file(dirfd(proc), path, name, sizeof(name));
        if (len > 0 && name[len - 1] == '\n')
            name[len - 1] = '\0';
        text_set(out, cap, len > 0 ? "pid %s (%s)" : "pid %s%s", entry->d_name,
                 len > 0 ? name : "");
        found = true;
    }
    closedir(proc);
    return found;
}
