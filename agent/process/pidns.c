#include "agent/process/pidns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "core/fd.h"

static int not_permitted(struct err *e, int errnum, const char *what)
{
    return err_sys(e, errnum,
                   "--isolate pidns is not possible here (it needs root or unprivileged user "
                   "namespaces): %s",
                   what);
}

static int write_file(const char *path, const char *text)
{
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

/* Maps the own id to itself, the one mapping that every user may write. */
static int map_ids(uid_t uid, gid_t gid, struct err *e)
{
    char uid_map[64], gid_map[64];
    snprintf(uid_map, sizeof(uid_map), "%u %u 1", (unsigned)uid, (unsigned)uid);
    snprintf(gid_map, sizeof(gid_map), "%u %u 1", (unsigned)gid, (unsigned)gid);
    int rc = write_file("/proc/self/setgroups", "deny");
    if (rc == 0 || rc == -ENOENT) /* kernels before 3.19 */
        rc = write_file("/proc/self/gid_map", gid_map);
    if (rc == 0)
        rc = write_file("/proc/self/uid_map", uid_map);
    return rc < 0 ? not_permitted(e, -rc, "map our ids into a user namespace") : 0;
}

int pidns_prepare(struct err *e)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWPID) == 0)
        return 0;
    if (errno != EPERM)
        return not_permitted(e, errno, "unshare(CLONE_NEWPID)");
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) < 0)
        return not_permitted(e, errno, "unshare(CLONE_NEWUSER | CLONE_NEWPID)");
    return map_ids(uid, gid, e);
}

int pidns_enter(struct err *e)
{
    /* Mounts of the host (automounted homes) stay visible here; mounts made here are not visible
     * there. */
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return not_permitted(e, errno, "a mount namespace");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return not_permitted(e, errno, "mount /proc");
    return 0;
}
