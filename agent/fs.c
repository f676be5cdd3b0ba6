#include "agent/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"

void fs_random_suffix(char out[FS_SUFFIX_LEN + 1])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    unsigned char r[FS_SUFFIX_LEN];
    if (getrandom(r, sizeof(r), GRND_NONBLOCK) != (ssize_t)sizeof(r)) {
        /* Early in boot: a name that is taken is tried anew by the caller, so any will do. */
        uint64_t v = mono_ns() * 2654435761u ^ (uint64_t)getpid();
        memcpy(r, &v, sizeof(r));
    }
    for (int i = 0; i < FS_SUFFIX_LEN; i++)
        out[i] = letters[r[i] % (sizeof(letters) - 1)];
    out[FS_SUFFIX_LEN] = '\0';
}

static int write_in_place(const char *path, const void *data, size_t len, struct err *e)
{
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "open %s", path);
    fd_set_nonblock(fd, false); /* only the open must not wait */
    int rc = fd_write_all(fd, data, len);
    return rc < 0 ? err_sys(e, -rc, "write %s", path) : 0;
}

/* As the kernel does it (protected_regular) where a file may be made: in /tmp. */
static bool is_strangers_bait(const char *path, const struct stat *file)
{
    char folder[PATH_MAX];
    struct stat st;
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path) + 1, path);
    return stat(folder, &st) < 0 || ((st.st_mode & S_ISVTX) && (st.st_mode & S_IWOTH) &&
                                     file->st_uid != geteuid() && file->st_uid != st.st_uid);
}

/* A regular file, absolute and without links, whose folder takes no other. There is room for the
 * new content before the first byte of the old one goes. */
static int write_over(const char *path, const void *data, size_t len, struct err *e)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "open %s", path);
    if (!S_ISREG(st.st_mode) || is_strangers_bait(path, &st))
        return err_sys(e, EPERM, "write %s, which another user put there", path);
    if (len && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)len) < 0 &&
        (errno == ENOSPC || errno == EDQUOT))
        return err_sys(e, errno, "write %s", path);
    int rc = fd_write_all(fd, data, len);
    if (rc == 0 && ftruncate(fd, (off_t)len) < 0)
        rc = -errno;
    return rc < 0 ? err_sys(e, -rc, "write %s", path) : 0;
}

static int write_beside(const char *path, const char *temp, int fd, mode_t mode, const void *data,
                        size_t len, struct err *e)
{
    int rc = fd_write_all(fd, data, len);
    if (rc < 0)
        return err_sys(e, -rc, "write %s", temp);
    if (mode && fchmod(fd, mode) < 0)
        return err_sys(e, errno, "chmod %s", temp);
    if (rename(temp, path) < 0)
        return err_sys(e, errno, "rename %s to %s", temp, path);
    return 0;
}

/* `mode`: of the file that it replaces; 0: there is none. */
static int replace(const char *path, mode_t mode, const void *data, size_t len, struct err *e)
{
    char temp[PATH_MAX + FS_SUFFIX_LEN + 2], suffix[FS_SUFFIX_LEN + 1];
    for (int tries = 0; tries < 100; tries++) {
        fs_random_suffix(suffix);
        if (snprintf(temp, sizeof(temp), "%s.%s", path, suffix) >= (int)sizeof(temp))
            return err_sys(e, ENAMETOOLONG, "%s", path);
        _cleanup_fd_ int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return err_sys(e, errno, "create %s", temp);
        int rc = write_beside(path, temp, fd, mode, data, len, e);
        if (rc < 0)
            unlink(temp);
        return rc;
    }
    return err_sys(e, EEXIST, "create a file beside %s", path);
}

int fs_replace_file(const char *path, const void *data, size_t len, struct err *e)
{
    struct stat st;
    char real[PATH_MAX];
    if (stat(path, &st) < 0)
        return replace(path, 0, data, len, e);
    if (!S_ISREG(st.st_mode))
        return write_in_place(path, data, len, e);
    if (!realpath(path, real))
        return err_sys(e, errno, "%s", path);
    int rc = replace(real, st.st_mode & 07777, data, len, e);
    /* Its folder is not to be written, or it is a mount point, as /dev/termination-log is. */
    if (rc == -EACCES || rc == -EPERM || rc == -EROFS || rc == -EBUSY || rc == -EXDEV)
        rc = write_over(real, data, len, e);
    return rc;
}
