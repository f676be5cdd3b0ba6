#include "launcher/control/metrics_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "core/bytes.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/timed_call.h"

#define PREFIX   "dlaunch_"
#define SUFFIX   ".prom"
#define TMP      ".tmp"
#define WRITE_MS 100
#define CLOSE_MS 1000

/* The owner and the errands share the file. */
struct metrics_file {
    struct timed_calls *server;
    char folder[PATH_MAX / 2], name[NAME_MAX], path[PATH_MAX];
    atomic_int users;
    atomic_int error;     /* errno: why no further page is written */
    bool said;            /* the failure has been reported */
    pthread_mutex_t lock; /* held while a thread works with the files; protects what follows */
    bool swept, closed;
    int fd; /* of the file, for its lock; -1: there is none */
};

struct errand {
    struct metrics_file *file;
    char *text;
    size_t len;
};

static void release(struct metrics_file *f)
{
    if (atomic_fetch_sub(&f->users, 1) > 1)
        return;
    close_fd(&f->fd);
    pthread_mutex_destroy(&f->lock);
    timed_calls_free(f->server);
    free(f);
}

static void drop_errand(void *arg)
{
    struct errand *a = arg;
    release(a->file);
    free(a->text);
    free(a);
}

static struct errand *errand_new(struct metrics_file *f)
{
    struct errand *a = xcalloc(1, sizeof(*a));
    atomic_fetch_add(&f->users, 1);
    a->file = f;
    return a;
}

/* -------------------------------------------------------------------------------------- threads */

static bool is_metrics_file(const char *name)
{
    size_t n = strlen(name);
    if (n > strlen(TMP) && strcmp(name + n - strlen(TMP), TMP) == 0)
        n -= strlen(TMP);
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 && n > strlen(SUFFIX) &&
           strncmp(name + n - strlen(SUFFIX), SUFFIX, strlen(SUFFIX)) == 0;
}

/* Whether the name is still that of the open file: a launcher that lives replaces its file, and the
 * lock of the old one ends. */
static bool is_named(int dir, const char *name, int fd)
{
    struct stat own, now;
    return fstat(fd, &own) == 0 && fstatat(dir, name, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           own.st_dev == now.st_dev && own.st_ino == now.st_ino;
}

/* Removes files of this user whose launchers are gone. */
static void sweep(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *de;
    for (int i = 0; dir && i < FS_SWEEP_MAX && (de = readdir(dir)); i++) {
        struct stat st;
        if (!is_metrics_file(de->d_name) ||
            fstatat(dirfd(dir), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
            st.st_uid != geteuid())
            continue;
        _cleanup_fd_ int fd =
            openat(dirfd(dir), de->d_name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && is_named(dirfd(dir), de->d_name, fd))
            unlinkat(dirfd(dir), de->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

/* A new file, with its lock, takes the name. 0, or -errno. */
static int replace(struct metrics_file *f, const char *text, size_t len)
{
    char tmp[sizeof(f->path) + sizeof(TMP)];
    snprintf(tmp, sizeof(tmp), "%s" TMP, f->path);
    unlink(tmp);
    _cleanup_fd_ int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return -errno;
    int rc = fs_lock_temporary(fd) ? fd_write_all(fd, text, len) : -EAGAIN;
    if (rc == 0 && rename(tmp, f->path) < 0)
        rc = -errno;
    if (rc < 0) {
        unlink(tmp);
        return rc == -EAGAIN ? 0 : rc; /* another launcher has taken it for old: the next page */
    }
    close_fd(&f->fd);
    f->fd = take_fd(&fd);
    return 0;
}

static void write_page(void *arg)
{
    struct errand *a = arg;
    struct metrics_file *f = a->file;
    pthread_mutex_lock(&f->lock);
    if (!f->swept)
        sweep(f->folder);
    f->swept = true;
    int rc = f->closed ? 0 : replace(f, a->text, a->len);
    if (rc < 0)
        atomic_store(&f->error, -rc);
    pthread_mutex_unlock(&f->lock);
}

static void remove_file(void *arg)
{
    struct metrics_file *f = ((struct errand *)arg)->file;
    pthread_mutex_lock(&f->lock);
    f->closed = true;
    if (f->fd >= 0)
        unlink(f->path);
    pthread_mutex_unlock(&f->lock);
}

/* ------------------------------------------------------------------------------------- the loop */

struct metrics_file *metrics_file_new(const char *folder, const char *run_id)
{
    char suffix[FS_SUFFIX_LEN + 1];
    struct metrics_file *f = xcalloc(1, sizeof(*f));
    int n = snprintf(f->name, sizeof(f->name), PREFIX);
    for (const char *c = run_id; *c && n < NAME_MAX - 64; c++)
        f->name[n++] = strchr("/ \"\\", *c) || (unsigned char)*c < 0x20 ? '_' : *c;
    fs_random_suffix(suffix);
    snprintf(f->name + n, sizeof(f->name) - (size_t)n, "_%s", suffix);
    snprintf(f->folder, sizeof(f->folder), "%s", folder);
    snprintf(f->path, sizeof(f->path), "%s/%s" SUFFIX, f->folder, f->name);
    pthread_mutex_init(&f->lock, NULL);
    f->server = timed_calls_new();
    f->users = 1;
    f->fd = -1;
    return f;
}

const char *metrics_file_path(const struct metrics_file *f)
{
    return f->path;
}

char *metrics_file_label(const char *text, const char *name, const char *value)
{
    struct buf b = BUF_INIT;
    char *label = xasprintf("%s=\"%s\"}", name, value);
    for (const char *p = text, *next; *p; p = next) {
        size_t len = strcspn(p, "\n");
        const char *blank = memchr(p, ' ', len), *end = memrchr(p, '}', len);
        next = p + len + (p[len] == '\n');
        if (*p == '#' || !blank) {
            buf_put(&b, p, (size_t)(next - p));
            continue;
        }
        const char *at = end ? end : blank;
        buf_put(&b, p, (size_t)(at - p));
        buf_put(&b, end ? "," : "{", 1);
        buf_put(&b, label, strlen(label));
        buf_put(&b, at + (end != NULL), (size_t)(next - at) - (end != NULL));
    }
    buf_u8(&b, '\0');
    free(label);
    return (char *)b.data;
}

static void complain(struct metrics_file *f)
{
    if (atomic_load(&f->error) && !f->said)
        log_warn("--metrics_file: %s: %s; no further files are written", f->path,
                 strerror(atomic_load(&f->error)));
    f->said |= atomic_load(&f->error) != 0;
}

void metrics_file_write(struct metrics_file *f, char *text, size_t len)
{
    char *labelled =
        text && len ? metrics_file_label(text, "launcher", f->name + strlen(PREFIX)) : NULL;
    free(text);
    complain(f);
    if (!labelled || f->said) {
        free(labelled);
        return;
    }
    struct errand *a = errand_new(f);
    a->text = labelled;
    a->len = strlen(labelled);
    if (timed_call(f->server, write_page, a, drop_errand, WRITE_MS))
        drop_errand(a);
    complain(f);
}

void metrics_file_close(struct metrics_file *f)
{
    if (!f)
        return;
    struct errand *a = errand_new(f);
    if (timed_call(NULL, remove_file, a, drop_errand, CLOSE_MS))
        drop_errand(a);
    release(f);
}
