#include "launcher/control/control_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fd.h"

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
    control_dir_address(&a, dirfd, name);
    return fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 && errno == ECONNREFUSED;
}

void control_dir_sweep(int dirfd)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        close_fd(&fd);
    for (struct dirent *e; d && (e = readdir(d));) {
        long pid = control_dir_pid(e->d_name);
        if (pid && kill((pid_t)pid, 0) < 0 && errno == ESRCH &&
            control_dir_is_deaf(dirfd, e->d_name))
            unlinkat(dirfd, e->d_name, 0);
    }
    if (d)
        closedir(d);
}

void control_dir_address(struct sockaddr_un *a, int dirfd, const char *name)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(a->sun_path, sizeof(a->sun_path), "/proc/self/fd/%d/%.64s", dirfd, name);
}
