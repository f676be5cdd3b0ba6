#include "agent/base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/named_file.h"
#include "core/timed_call.h"

/* The time for which a FIFO or terminal may take nothing before the write is given up. */
#define READER_TIMEOUT_MS 5000

void fs_random_suffix(char out[FS_SUFFIX_LEN + 1])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    unsigned char r[FS_SUFFIX_LEN];
    if (getrandom(r, sizeof(r), GRND_NONBLOCK) != (ssize_t)sizeof(r)) {
        /* Early in boot. Callers try another name when this one is taken, so any will do. */
        uint64_t v = mono_ns() * 2654435761u ^ (uint64_t)getpid();
        memcpy(r, &v, sizeof(r));
    }
    for (int i = 0; i < FS_SUFFIX_LEN; i++)
        out[i] = letters[r[i] % (sizeof(letters) - 1)];
    out[FS_SUFFIX_LEN] = '\0';
}

bool fs_lock_temporary(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fstat(fd, &st) < 0 || st.st_nlink > 0;
    return errno != EWOULDBLOCK; /* without locks in the file system, no sweep gets a lock either */
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    remove(path);
    return 0;
}

void fs_remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

void fs_sweep_temporary(const char *path, const char *prefix, mode_t type, bool whole)
{
    char folder[PATH_MAX], entry[PATH_MAX + NAME_MAX];
    size_t len = strlen(prefix);
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return;
    slash[1] = '\0';
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    struct dirent *de;
    for (int i = 0; i < FS_SWEEP_MAX && (de = readdir(dir)); i++) {
        const char *name = de->d_name;
        struct stat st;
        if (strncmp(name, prefix, len) != 0 || strlen(name) != len + FS_SUFFIX_LEN ||
            fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            (st.st_mode & S_IFMT) != type || st.st_uid != geteuid())
            continue;
        _cleanup_fd_ int fd =
            openat(dirfd(dir), name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
            continue;
        snprintf(entry, sizeof(entry), "%s%s", folder, name);
        if (whole)
            fs_remove_tree(entry);
        else
            unlinkat(dirfd(dir), name, type == S_IFDIR ? AT_REMOVEDIR : 0);
    }
    closedir(dir);
}

/* Writes to a file that is not a regular one: a terminal, a FIFO, standard output by its name. */
static int write_in_place(const struct named_file *f, const char *path, const void *data,
                          size_t len, struct err *e)
{
    _cleanup_fd_ int fd = named_file_open_found(f, path, O_WRONLY | O_APPEND, 0, e);
    if (fd < 0)
        return fd;
    int rc = fd_write_timed(fd, data, len, READER_TIMEOUT_MS, NULL);
    return rc < 0 ? err_sys(e, -rc, "write %s", path) : 0;
}

/* A regular file whose folder takes no other file. The new content has its room on the disk before
 * the first byte of the old one is overwritten. */
static int write_over(const struct named_file *f, const char *path, const void *data, size_t len,
                      struct err *e)
{
    _cleanup_fd_ int fd = named_file_open_found(f, path, O_WRONLY, 0, e);
    if (fd < 0)
        return fd;
    if (len && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)len) < 0 &&
        (errno == ENOSPC || errno == EDQUOT))
        return err_sys(e, errno, "write %s", path);
    int rc = fd_write_all(fd, data, len);
    if (rc == 0 && ftruncate(fd, (off_t)len) < 0)
        rc = -errno;
    return rc < 0 ? err_sys(e, -rc, "write %s", path) : 0;
}

/* A new file takes the name, or replaces the old one, whose mode it gets. */
static int replace(const struct named_file *f, const char *path, const void *data, size_t len,
                   struct err *e)
{
    char temp[NAME_MAX + 1], suffix[FS_SUFFIX_LEN + 1];
    for (int tries = 0; tries < 100; tries++) {
        fs_random_suffix(suffix);
        if (snprintf(temp, sizeof(temp), "%s.%s", f->name, suffix) >= (int)sizeof(temp))
            return err_sys(e, ENAMETOOLONG, "%s", path);
        _cleanup_fd_ int fd =
            openat(f->folder, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return err_sys(e, errno, "create a file beside %s", path);
        int rc = fd_write_all(fd, data, len);
        if (rc == 0 && f->exists && fchmod(fd, f->st.st_mode & 07777) < 0)
            rc = -errno;
        if (rc == 0 && renameat(f->folder, temp, f->folder, f->name) < 0)
            rc = -errno;
        if (rc < 0)
            unlinkat(f->folder, temp, 0);
        return rc < 0 ? err_sys(e, -rc, "write %s", path) : 0;
    }
    return err_sys(e, EEXIST, "create a file beside %s", path);
}

int fs_replace_file(const char *path, const void *data, size_t len, struct err *e)
{
    struct named_file f;
    int rc = named_file_find(&f, path, true, e);
    if (rc < 0)
        return rc;
    if (f.in_proc || (f.exists && !S_ISREG(f.st.st_mode))) {
        rc = write_in_place(&f, path, data, len, e);
    } else {
        rc = replace(&f, path, data, len, e);
        /* The folder is not writable, or the file is a mount point, as /dev/termination-log is. */
        if (f.exists &&
            (rc == -EACCES || rc == -EPERM || rc == -EROFS || rc == -EBUSY || rc == -EXDEV))
            rc = write_over(&f, path, data, len, e);
    }
    named_file_fini(&f);
    return rc;
}

struct replacement {
    char *path;
    void *data;
    size_t len;
    int rc;
    struct err e;
};

static void make_replacement(void *arg)
{
    struct replacement *r = arg;
    r->rc = fs_replace_file(r->path, r->data, r->len, &r->e);
}

static void drop_replacement(void *arg)
{
    struct replacement *r = arg;
    free(r->path);
    free(r->data);
    free(r);
}

int fs_replace_file_timed(const char *path, const void *data, size_t len, struct err *e)
{
    struct replacement *r = xcalloc(1, sizeof(*r));
    *r = (struct replacement){.path = xstrdup(path), .data = xmalloc(len + 1), .len = len};
    memcpy(r->data, data, len);
    if (!timed_call(NULL, make_replacement, r, drop_replacement, FS_TIMEOUT_MS))
        return err_set(e, -ETIMEDOUT, "write %s: its file server does not answer", path);
    int rc = r->rc;
    if (rc < 0 && e)
        *e = r->e;
    drop_replacement(r);
    return rc;
}
