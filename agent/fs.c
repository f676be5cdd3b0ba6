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

int fs_replace_file(const char *path, const void *data, size_t len, struct err *e)
{
    struct stat st;
    char real[PATH_MAX], temp[PATH_MAX + FS_SUFFIX_LEN + 2], suffix[FS_SUFFIX_LEN + 1];
    mode_t mode = 0;
    if (stat(path, &st) == 0) {
        if (!S_ISREG(st.st_mode))
            return write_in_place(path, data, len, e);
        mode = st.st_mode & 07777;
        if (!realpath(path, real))
            return err_sys(e, errno, "%s", path);
        path = real;
    }
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
