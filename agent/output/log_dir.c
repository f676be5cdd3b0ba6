#include "agent/output/log_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/named_file.h"
#include "core/timed_call.h"

#define FLAT_NAME  "torchelastic_dlaunch"
#define RUN_ID_MAX 128
#define DEPTH_MAX  64 /* of a tree that is removed; each level holds a descriptor */

/* Replaces each character of the run id that is unsafe in a file name. */
static void harmless(char out[RUN_ID_MAX + 1], const char *run_id)
{
    size_t n = 0;
    for (; n < RUN_ID_MAX && run_id[n]; n++) {
        char c = run_id[n];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || (c == '.' && n > 0);
        out[n] = ok ? c : '_';
    }
    out[n] = '\0';
}

/* One directory on the way to base: made when it is absent, refused when another user may exchange
 * it (core/named_file.h), because files in it are opened by their paths. */
static int log_dir_enter(const char *path, struct err *e)
{
    struct named_file f;
    uid_t own;
    int rc = named_file_find(&f, path, true, e);
    if (rc == -EPERM && named_file_owner(path, &own) == 0 && own != geteuid())
        rc = named_file_find_as(&f, path, true, own, e);
    if (rc < 0)
        return err_wrap(e, "log directory"), rc;
    if (f.foreign)
        rc = err_set(e, -EPERM,
                     "log directory %s: not used, because it leads through a folder that another "
                     "user made in a folder that others can write to",
                     path);
    else if (!f.exists && mkdirat(f.folder, f.name, 0777) < 0 && errno != EEXIST)
        rc = err_sys(e, errno, "log directory %s", path);
    else if (f.exists && !S_ISDIR(f.st.st_mode))
        rc = err_set(e, -ENOTDIR, "log directory %s is a file", path);
    named_file_fini(&f);
    return rc;
}

/* Workers may change their folder. A path that would become too long for us stays as it is. */
static const char *absolute(char *out, size_t cap, const char *path)
{
    char cwd[512];
    bool fits = *path && *path != '/' && getcwd(cwd, sizeof(cwd)) &&
                snprintf(out, cap, "%s/%s", cwd, path) < (int)cap;
    return fits ? out : path;
}

static int make_base(const char *base, struct err *e)
{
    char path[512];
    size_t len = strlen(base);
    if (len == 0 || len >= sizeof(path))
        return err_set(e, len ? -ENAMETOOLONG : -EINVAL, "log directory: %s",
                       len ? "the path is too long" : "the path is empty");
    memcpy(path, base, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if ((path[i] != '/' && path[i] != '\0') || path[i - 1] == '/')
            continue;
        char c = path[i];
        path[i] = '\0';
        int rc = log_dir_enter(path, e);
        path[i] = c;
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* <parent>/<name>_<random>, new. */
static int make_fresh(char *out, size_t cap, const char *parent, const char *name, mode_t mode,
                      struct err *e)
{
    char suffix[FS_SUFFIX_LEN + 1];
    const char *slash = parent[strlen(parent) - 1] == '/' ? "" : "/";
    for (int tries = 0; tries < 100; tries++) {
        fs_random_suffix(suffix);
        if (snprintf(out, cap, "%s%s%s_%s", parent, slash, name, suffix) >= (int)cap)
            return err_set(e, -ENAMETOOLONG, "log directory under %s: the path is too long",
                           parent);
        if (mkdir(out, mode) == 0)
            return 0;
        if (errno != EEXIST)
            return err_sys(e, errno, "log directory %s", out);
    }
    return err_sys(e, EEXIST, "log directory under %s", parent);
}

/* The directory of the user in `parent`, made if it is absent; false if it is not the user's alone.
 */
static bool enter_shared(char *out, size_t cap, const char *parent)
{
    struct stat st;
    return snprintf(out, cap, "%s/dlaunch-%u", parent, (unsigned)geteuid()) < (int)cap &&
           (mkdir(out, 0700) == 0 || errno == EEXIST) && lstat(out, &st) == 0 &&
           S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077) &&
           access(out, W_OK) == 0;
}

/* Makes it in the first usable one of the places that Python's tempfile tries; name NULL: the
 * user's directory there. */
static int make_temporary(char *out, size_t cap, const char *name, struct err *e)
{
    char cwd[512], path[sizeof(cwd) + 512];
    if (!getcwd(cwd, sizeof(cwd)))
        cwd[0] = '\0'; /* the directory is removed, or its path is too long */
    const char *places[] = {
        getenv("TMPDIR"), getenv("TEMP"), getenv("TMP"), "/tmp", "/var/tmp", "/usr/tmp", cwd};
    struct err why = ERR_INIT;
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        bool relative = places[i] && *places[i] != '/'; /* workers need an absolute path */
        if (!places[i] || !*places[i] || (relative && !*cwd))
            continue;
        snprintf(path, sizeof(path), "%s%s%s", relative ? cwd : "", relative ? "/" : "", places[i]);
        if (name ? make_fresh(out, cap, path, name, 0700, &why) == 0 : enter_shared(out, cap, path))
            return 0;
    }
    return err_set(
        e, why.code,
        "no place for temporary files (tried TMPDIR, TEMP, TMP, /tmp, /var/tmp, /usr/tmp "
        "and the working directory): %s",
        why.msg);
}

static int open_dir(int at, const char *name)
{
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int log_dir_open(struct log_dir *d, const char *base, const char *run_id, struct err *e)
{
    char id[RUN_ID_MAX + 1], fresh[512];
    *d = (struct log_dir){.base_is_ours = !base};
    if (base && strcmp(base, "/dev/null") == 0)
        return 0;
    if (!base) {
        int rc = make_temporary(fresh, sizeof(fresh), "torchelastic", e);
        if (rc < 0)
            return rc;
        base = fresh;
    } else {
        base = absolute(fresh, sizeof(fresh), base);
        int rc = make_base(base, e);
        if (rc < 0)
            return rc;
    }
    harmless(id, run_id);
    int rc = make_fresh(d->run, sizeof(d->run), base, id, d->base_is_ours ? 0700 : 0777, e);
    if (rc < 0) {
        if (d->base_is_ours)
            rmdir(base);
        d->run[0] = '\0';
    }
    return rc;
}

static bool open_shared(struct log_dir *d)
{
    char suffix[FS_SUFFIX_LEN + 1];
    struct err why;
    if (make_temporary(d->run, sizeof(d->run), NULL, &why) < 0)
        return false;
    fs_random_suffix(suffix);
    snprintf(d->prefix, sizeof(d->prefix), "%s.", suffix);
    d->shared = true;
    return true;
}

int log_dir_open_flat(struct log_dir *d, bool shared, struct err *e)
{
    *d = (struct log_dir){.flat = true, .last_flat = -1, .lock_fd = -1};
    if (shared && open_shared(d))
        return 0;
    for (;;) {
        int rc = make_temporary(d->run, sizeof(d->run), FLAT_NAME, e);
        if (rc < 0) {
            d->run[0] = '\0';
            return rc;
        }
        d->lock_fd = open_dir(AT_FDCWD, d->run);
        bool swept = d->lock_fd < 0 ? errno == ENOENT : !fs_lock_temporary(d->lock_fd);
        if (!swept)
            return 0;
        close_fd(&d->lock_fd);
    }
}

void log_dir_sweep(const struct log_dir *d)
{
    if (d->flat && !d->shared && d->run[0])
        fs_sweep_temporary(d->run, FLAT_NAME "_", S_IFDIR, false);
}

/* Calls visit(fd of the directory, entry) for every entry of the directory, until it returns
 * non-zero; returns that, or -errno. Takes fd. */
static int each_entry(int fd, int depth, int (*visit)(int fd, const struct dirent *de, int depth))
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    int rc = 0;
    for (struct dirent *de; rc == 0 && (de = readdir(dir));) {
        if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
            rc = visit(dirfd(dir), de, depth);
    }
    closedir(dir);
    return rc;
}

static void remove_error_files(const struct log_dir *d, int first, int nproc)
{
    char path[sizeof(d->attempt) + 32];
    for (int i = first; i < first + nproc; i++)
        unlink(log_dir_file(d, i, "error.json", path, sizeof(path)));
}

int log_dir_attempt(struct log_dir *d, int n, int first, int nproc, struct err *e)
{
    d->attempt[0] = '\0';
    if (!d->run[0])
        return 0;
    snprintf(d->attempt, sizeof(d->attempt), "%s/%sattempt_%d", d->run, d->prefix, n);
    if (d->flat) {
        if (n <= d->last_flat)
            remove_error_files(d, first, nproc);
        d->last_flat = n;
        return 0;
    }
    for (int again = 1; mkdir(d->attempt, 0777) < 0; again++) {
        if (errno != EEXIST)
            return err_sys(e, errno, "log directory %s", d->attempt);
        snprintf(d->attempt, sizeof(d->attempt), "%s/attempt_%d.%d", d->run, n, again);
    }
    _cleanup_fd_ int fd = open_dir(AT_FDCWD, d->attempt);
    if (fd < 0)
        return err_sys(e, errno, "log directory %s", d->attempt);
    for (int i = first; i < first + nproc; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        if (mkdirat(fd, name, 0777) < 0)
            return err_sys(e, errno, "log directory %s/%s", d->attempt, name);
    }
    return 0;
}

const char *log_dir_file(const struct log_dir *d, int local_rank, const char *name, char *out,
                         size_t cap)
{
    char between = d->flat ? '.' : '/';
    if (!d->attempt[0] || snprintf(out, cap, "%s%c%d%c%s", d->attempt, between, local_rank, between,
                                   name) >= (int)cap)
        out[0] = '\0';
    return out;
}

void log_dir_left(const struct log_dir *d, int local_rank, const char *worker_dir)
{
    char path[sizeof(d->attempt) + 32];
    if (!d->attempt[0] || d->flat)
        return;
    if (*worker_dir)
        snprintf(path, sizeof(path), "%s", worker_dir);
    else
        snprintf(path, sizeof(path), "%s/%d", d->attempt, local_rank);
    if (rmdir(path) == 0) {
        *strrchr(path, '/') = '\0';
        rmdir(path);
    }
}

/* 1: the directory holds something other than directories. */
static int holds_file(int at, const struct dirent *de, int depth)
{
    if (de->d_type != DT_DIR && de->d_type != DT_UNKNOWN)
        return 1;
    int fd = depth < DEPTH_MAX ? open_dir(at, de->d_name) : -1;
    return fd < 0 ? 1 : each_entry(fd, depth + 1, holds_file) != 0;
}

/* Removes directories only: a file that was made meanwhile stays, and so do the directories above
 * it. */
static int remove_dir(int at, const struct dirent *de, int depth)
{
    if (unlinkat(at, de->d_name, AT_REMOVEDIR) == 0)
        return 0;
    int fd = errno == ENOTEMPTY || errno == EEXIST ? open_dir(at, de->d_name) : -1;
    if (fd < 0)
        return -errno;
    int rc = each_entry(fd, depth + 1, remove_dir);
    if (rc == 0 && unlinkat(at, de->d_name, AT_REMOVEDIR) < 0)
        rc = -errno;
    return rc;
}

void log_dir_close(struct log_dir *d)
{
    if (!d->run[0])
        return;
    if (d->shared)
        return;
    if (d->flat) {
        close_fd(&d->lock_fd);
        if (rmdir(d->run) == 0)
            d->run[0] = d->attempt[0] = '\0';
        return;
    }
    int fd = open_dir(AT_FDCWD, d->run);
    if (fd < 0 || each_entry(fd, 0, holds_file) != 0)
        return;
    fd = open_dir(AT_FDCWD, d->run);
    if (fd < 0 || each_entry(fd, 0, remove_dir) != 0 || rmdir(d->run) < 0)
        return;
    if (d->base_is_ours) {
        *strrchr(d->run, '/') = '\0';
        rmdir(d->run);
    }
    d->run[0] = d->attempt[0] = '\0';
}

/* - with a limit */

struct errand {
    struct log_dir d; /* a copy, which the caller takes back when the call has returned */
    int n, first, nproc, rc;
    log_dir_path *dirs;
    struct err e;
};

static struct errand *errand_new(const struct log_dir *d)
{
    struct errand *a = xcalloc(1, sizeof(*a));
    a->d = *d;
    return a;
}

static void drop_errand(void *arg)
{
    struct errand *a = arg;
    free(a->dirs);
    free(a);
}

static void go_on(void *arg)
{
    struct errand *a = arg;
    for (int i = 0; i < a->nproc; i++)
        log_dir_left(&a->d, a->first + i, a->dirs[i]);
    a->rc = log_dir_attempt(&a->d, a->n, a->first, a->nproc, &a->e);
}

int log_dir_next_timed(struct log_dir *d, struct timed_calls *server, int n, int first, int nproc,
                       const log_dir_path *dirs, struct err *e)
{
    if (!d->run[0] || (d->flat && n > d->last_flat)) /* which looks at no file */
        return log_dir_attempt(d, n, first, nproc, e);
    struct errand *a = errand_new(d);
    a->n = n;
    a->first = first;
    a->nproc = nproc;
    a->dirs = xcalloc((size_t)nproc + 1, sizeof(*a->dirs));
    memcpy(a->dirs, dirs, (size_t)nproc * sizeof(*dirs));
    if (!timed_call(server, go_on, a, drop_errand, LOG_DIR_MS))
        return err_set(e, -ETIMEDOUT, "log directory %s: its file server does not answer", d->run);
    int rc = a->rc;
    *d = a->d;
    if (rc < 0 && e)
        *e = a->e;
    drop_errand(a);
    return rc;
}

static void sweep(void *arg)
{
    log_dir_sweep(&((struct errand *)arg)->d);
}

void log_dir_sweep_timed(const struct log_dir *d)
{
    struct errand *a = errand_new(d);
    if (timed_call(NULL, sweep, a, drop_errand, 0))
        drop_errand(a);
}

static void end(void *arg)
{
    log_dir_close(&((struct errand *)arg)->d);
}

void log_dir_close_timed(struct log_dir *d, struct timed_calls *server)
{
    struct errand *a = errand_new(d);
    if (!timed_call(server, end, a, drop_errand, LOG_DIR_MS))
        return;
    *d = a->d;
    drop_errand(a);
}
