#include "core/named_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/fd.h"

#define LINKS_MAX 40 /* as in the kernel, path_resolution(7) */

static bool is_own(const struct stat *st, uid_t own)
{
    return st->st_uid == own || st->st_uid == 0;
}

static bool is_trusted(const struct stat *st, const struct stat *folder, uid_t own)
{
    return is_own(st, own) || !(folder->st_mode & S_IWOTH) || st->st_uid == folder->st_uid;
}

int named_file_owner(const char *path, uid_t *own)
{
    char beside[PATH_MAX];
    uint64_t random;
    struct stat st;
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return -errno;
    if (snprintf(beside, sizeof(beside), "%s.%016" PRIx64, path, random) >= (int)sizeof(beside))
        return -ENAMETOOLONG;
    _cleanup_fd_ int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = fstat(fd, &st) < 0 ? -errno : 0;
    unlink(beside);
    if (rc == 0)
        *own = st.st_uid;
    return rc;
}

static const char *named_file_kind(mode_t mode)
{
    return S_ISLNK(mode)    ? "symbolic link"
           : S_ISFIFO(mode) ? "FIFO"
           : S_ISSOCK(mode) ? "socket"
           : S_ISREG(mode)  ? "file"
           : S_ISDIR(mode)  ? "folder"
                            : "device";
}

/* 0, or -EPERM when another user may have put the file there. */
static int check(const struct named_file *f, const struct stat *st, const char *path, struct err *e)
{
    struct stat folder;
    if (fstat(f->folder, &folder) < 0)
        return err_sys(e, errno, "%.200s", path);
    if (!(f->foreign ? is_own(st, f->own) : is_trusted(st, &folder, f->own)))
        return err_set(e, -EPERM,
                       "%.200s: not used, because '%.60s' is a %s of another user (uid %u) in a "
                       "folder that others can write to",
                       path, f->name, named_file_kind(st->st_mode), st->st_uid);
    if (S_ISREG(st->st_mode) && st->st_nlink > 1 && (folder.st_mode & S_IWOTH))
        return err_set(
            e, -EPERM,
            "%.200s: not used, because it is a hard link to a file that has other names, "
            "in a folder that everybody can write to",
            path);
    return 0;
}

static bool is_in_proc(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC;
}

/* Goes on in `folder`, which is taken over. */
static void named_file_enter(struct named_file *f, int folder)
{
    close_fd(&f->folder);
    f->folder = folder;
}

/* Puts the link's target before what is left of the path. */
static int follow_link(struct named_file *f, int link, char rest[PATH_MAX], struct err *e)
{
    char target[PATH_MAX], after[PATH_MAX];
    ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
    if (n <= 0)
        return err_sys(e, n < 0 ? errno : ENOENT, "symbolic link %s", f->name);
    target[n] = '\0';
    strcpy(after, rest);
    if (snprintf(rest, PATH_MAX, "%s%s%s", target, *after ? "/" : "", after) >= PATH_MAX)
        return err_sys(e, ENAMETOOLONG, "symbolic link %s", f->name);
    if (*target == '/') {
        int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (root < 0)
            return err_sys(e, errno, "/");
        named_file_enter(f, root);
        f->foreign = false;
    }
    return 0;
}

/* Takes the first name off `rest`. */
static int next_name(struct named_file *f, char rest[PATH_MAX])
{
    char *p = rest + strspn(rest, "/");
    size_t n = strcspn(p, "/");
    if (n > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(f->name, p, n);
    f->name[n] = '\0';
    memmove(rest, p + n, strlen(p + n) + 1);
    return n ? 0 : -EISDIR;
}

/* Enters the folder `fd`, taking the descriptor over. */
static int step_down(struct named_file *f, int fd, const struct stat *st, const char *path,
                     struct err *e)
{
    struct stat folder;
    if (fstat(f->folder, &folder) < 0) {
        close(fd);
        return err_sys(e, errno, "%.200s", path);
    }
    f->foreign = f->foreign || !is_trusted(st, &folder, f->own);
    named_file_enter(f, fd);
    return 0;
}

/* Follows one name of the path. 1: the name is the last one. */
static int step(struct named_file *f, char rest[PATH_MAX], bool follow, int *nlinks,
                const char *path, struct err *e)
{
    struct stat st;
    int rc = next_name(f, rest);
    if (rc < 0)
        return err_sys(e, -rc, "%.200s", path);
    bool last = !*rest;
    f->exists = f->in_proc = false;
    _cleanup_fd_ int fd = openat(f->folder, f->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && last)
        return 1;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "%.200s", path);
    if (S_ISLNK(st.st_mode) && is_in_proc(f->folder)) {
        f->in_proc = true;
        if (last && fstatat(f->folder, f->name, &st, 0) < 0)
            return err_sys(e, errno, "%.200s", path);
        close_fd(&fd);
        if (!last && (fd = openat(f->folder, f->name, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
            return err_sys(e, errno, "%.200s", path);
    } else if (S_ISLNK(st.st_mode)) {
        rc = check(f, &st, path, e);
        if (rc < 0)
            return rc;
        if ((last && !follow) || ++*nlinks > LINKS_MAX)
            return err_sys(e, ELOOP, "%.200s", path);
        return follow_link(f, fd, rest, e);
    }
    if (!last && !f->in_proc && !S_ISDIR(st.st_mode))
        return err_sys(e, ENOTDIR, "%.200s", path);
    if (!last)
        return step_down(f, take_fd(&fd), &st, path, e);
    f->exists = true;
    f->st = st;
    rc = f->in_proc ? 0 : check(f, &st, path, e);
    return rc < 0 ? rc : 1;
}

int named_file_find_as(struct named_file *f, const char *path, bool follow, uid_t own,
                       struct err *e)
{
    char rest[PATH_MAX];
    int nlinks = 0, rc = 0;
    *f = (struct named_file){.folder = -1, .own = own};
    if (snprintf(rest, sizeof(rest), "%s", path) >= (int)sizeof(rest))
        return err_sys(e, ENAMETOOLONG, "%.60s...", path);
    if (!*path)
        return err_sys(e, ENOENT, "''");
    f->folder = open(*path == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (f->folder < 0)
        return err_sys(e, errno, "%.200s", path);
    while (rc == 0)
        rc = step(f, rest, follow, &nlinks, path, e);
    if (rc < 0)
        named_file_fini(f);
    return rc < 0 ? rc : 0;
}

int named_file_find(struct named_file *f, const char *path, bool follow, struct err *e)
{
    return named_file_find_as(f, path, follow, geteuid(), e);
}

void named_file_fini(struct named_file *f)
{
    close_fd(&f->folder);
}

int named_file_open_found(const struct named_file *f, const char *path, int flags, mode_t mode,
                          struct err *e)
{
    struct stat st;
    bool make = (flags & O_CREAT) && !f->exists;
    assert(!(flags & O_TRUNC)); /* O_TRUNC would cut the file before the file is checked */
    flags |= O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    if (f->in_proc)
        flags &= ~(O_CREAT | O_NOFOLLOW);
    else
        flags |= O_NOFOLLOW | (make ? O_EXCL : 0);
    _cleanup_fd_ int fd = openat(f->folder, f->name, flags, mode);
    if (fd < 0 && errno == ENXIO)
        return err_set(e, -ENXIO, "%.200s: %s", path,
                       S_ISFIFO(f->st.st_mode) ? "a FIFO that no process reads"
                                               : "cannot be opened for writing, like a socket");
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "%.200s", path);
    int rc = f->in_proc || make ? 0 : check(f, &st, path, e);
    if (rc < 0)
        return rc;
    fd_set_nonblock(fd, false); /* only opening must not wait */
    return take_fd(&fd);
}

int named_file_open_as(const char *path, int flags, mode_t mode, uid_t own, struct err *e)
{
    struct named_file f;
    int rc;
    do {
        rc = named_file_find_as(&f, path, !(flags & O_NOFOLLOW), own, e);
        if (rc == 0)
            rc = named_file_open_found(&f, path, flags, mode, e);
        named_file_fini(&f);
    } while (rc == -EEXIST);
    return rc;
}

int named_file_open(const char *path, int flags, mode_t mode, struct err *e)
{
    return named_file_open_as(path, flags, mode, geteuid(), e);
}
