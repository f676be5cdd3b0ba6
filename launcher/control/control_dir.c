#include "launcher/control/control_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define UNIX_LISTENS 0x10000 /* __SO_ACCEPTCON in the flags of /proc/net/unix */

bool control_dir_path(int index, char out[CONTROL_PATH_MAX - 32])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *tmp = getenv("TMPDIR");
    unsigned uid = geteuid();
    int n = 0;
    *out = '\0';
    switch (index) {
    case 0:
        if (runtime && *runtime == '/')
            n = snprintf(out, CONTROL_PATH_MAX - 32, "%s/dlaunch", runtime);
        break;
    case 1:
        n = snprintf(out, CONTROL_PATH_MAX - 32, "/run/user/%u/dlaunch", uid);
        break;
    case 2:
        if (tmp && *tmp == '/')
            n = snprintf(out, CONTROL_PATH_MAX - 32, "%s/dlaunch-%u", tmp, uid);
        break;
    case 3:
        n = snprintf(out, CONTROL_PATH_MAX - 32, "/tmp/dlaunch-%u", uid);
        break;
    default:
        return false;
    }
    if (n >= CONTROL_PATH_MAX - 32)
        *out = '\0'; /* too long to be used: as if it were not there */
    return true;
}

int control_dir_open(const char *path, bool create, struct err *e)
{
    struct stat st;
    if (!*path)
        return err_set(e, -ENOENT, "no such folder");
    if (create && mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_sys(e, errno, "mkdir %s", path);
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "%s", path);
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "%s", path);
    if (st.st_uid != geteuid() || (st.st_mode & 077))
        return err_set(e, -EPERM, "%s: not a folder of this user's alone (mode %o, owner %u)", path,
                       st.st_mode & 07777u, st.st_uid);
    return take_fd(&fd);
}

long control_dir_pid(const char *name)
{
    char *end;
    long pid = strtol(name, &end, 10);
    if (*end == '-')
        end += strcspn(end, ".");
    return strcmp(end, ".sock") == 0 && pid > 0 ? pid : 0;
}

bool control_dir_is_deaf(int dirfd, const char *name)
{
    struct sockaddr_un a;
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = control_dir_address(&a, dirfd, name);
    return fd >= 0 && connect(fd, (struct sockaddr *)&a, len) < 0 && errno == ECONNREFUSED;
}

bool control_dir_is_ended(const char *name)
{
    size_t n = strlen(name), end = sizeof(CONTROL_ENDED) - 1;
    return n > end && strcmp(name + n - end, CONTROL_ENDED) == 0;
}

struct ended {
    time_t at;
    char name[64];
};

static int newest_first(const void *a, const void *b)
{
    const struct ended *x = a, *y = b;
    return x->at > y->at ? -1 : x->at < y->at;
}

/* Adds a file about a job that has ended, or removes it if it is old. */
static void note_ended(int dirfd, const char *name, struct ended **list, size_t *n)
{
    struct stat st;
    if (strlen(name) >= sizeof((*list)->name) || fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    if (st.st_mtime + CONTROL_ENDED_HOURS * 3600 < time(NULL)) {
        unlinkat(dirfd, name, 0);
        return;
    }
    if (*n % CONTROL_ENDED_MAX == 0)
        *list = xrealloc(*list, (*n + CONTROL_ENDED_MAX) * sizeof(**list));
    (*list)[*n].at = st.st_mtime;
    strcpy((*list)[(*n)++].name, name);
}

void control_dir_sweep(int dirfd)
{
    struct ended *ended = NULL;
    size_t nended = 0;
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        close_fd(&fd);
    for (struct dirent *e; d && (e = readdir(d));) {
        long pid = control_dir_pid(e->d_name);
        if (control_dir_is_ended(e->d_name))
            note_ended(dirfd, e->d_name, &ended, &nended);
        if (pid && kill((pid_t)pid, 0) < 0 && errno == ESRCH &&
            control_dir_is_deaf(dirfd, e->d_name))
            unlinkat(dirfd, e->d_name, 0);
    }
    if (d)
        closedir(d);
    if (nended > CONTROL_ENDED_MAX) {
        qsort(ended, nended, sizeof(*ended), newest_first);
        for (size_t i = CONTROL_ENDED_MAX; i < nended; i++)
            unlinkat(dirfd, ended[i].name, 0);
    }
    free(ended);
}

socklen_t control_dir_address(struct sockaddr_un *a, int dirfd, const char *name)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (dirfd != CONTROL_NO_DIR) {
        snprintf(a->sun_path, sizeof(a->sun_path), "/proc/self/fd/%d/%.64s", dirfd, name);
        return sizeof(*a);
    }
    int n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "dlaunch-%u/%.64s",
                     (unsigned)geteuid(), name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void control_dir_abstract(void (*visit)(void *arg, const char *name), void *arg)
{
    char prefix[32], line[256];
    unsigned flags;
    int n = snprintf(prefix, sizeof(prefix), " @dlaunch-%u/", (unsigned)geteuid());
    FILE *f = fopen("/proc/net/unix", "re");
    while (f && fgets(line, sizeof(line), f)) {
        char *name = strstr(line, prefix);
        if (!name || sscanf(line, "%*s %*x %*x %x", &flags) != 1 || !(flags & UNIX_LISTENS))
            continue;
        name[strcspn(name, "\n")] = '\0';
        visit(arg, name + n);
    }
    if (f)
        fclose(f);
}
