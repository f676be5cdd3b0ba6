/* The loop makes the lines, a thread writes them: the file's server may not answer, the reader of a
 * FIFO may take nothing. */
#include "agent/report/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/report/event_json.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/named_file.h"
#include "core/thread.h"
#include "core/timed_call.h"

#define LAST_LINES_MS 1000        /* for a reader that takes nothing, at the end */
#define SILENT_MS     3000        /* for a file server that writes nothing, at the end */
#define KEEP_BYTES    (16u << 20) /* for a reader that takes nothing */
#define PIECE_BYTES   65536
#define PIPE_BYTES    4096 /* as few as a slow reader takes within SILENT_MS */

/* The owner and the thread share the struct; the one that is done last frees it. */
struct event_file {
    char *path;
    int fd;
    bool regular;         /* a regular file, or the like: poll() says nothing of it */
    uint64_t at;          /* the owner's: the next event */
    bool given_up;        /* the owner's */
    atomic_bool closed;   /* by the owner */
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t changed;
    struct buf rest; /* that the thread has not taken yet */
    size_t queued;   /* bytes that are not written yet */
    int error;       /* errno: why nothing more is written; 0 */
    int users;
    bool ended; /* the thread has */
};

/* Called with the lock held; releases the lock. */
static void release(struct event_file *f)
{
    bool last = --f->users == 0;
    pthread_mutex_unlock(&f->lock);
    if (!last)
        return;
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    close_fd(&f->fd);
    buf_fini(&f->rest);
    free(f->path);
    free(f);
}

/* Whole lines, so that launchers may share a file. */
static size_t piece_of(const char *lines, size_t len, size_t most)
{
    const char *end = len > most ? memrchr(lines, '\n', most) : NULL;
    end = end || len <= most ? end : memchr(lines, '\n', len);
    return end ? (size_t)(end - lines) + 1 : len;
}

/* Called with the lock held; releases the lock while it writes. */
static void write_some(struct event_file *f)
{
    struct buf lines = f->rest;
    f->rest = (struct buf)BUF_INIT;
    for (size_t at = 0, n; at < lines.len && !f->error; at += n) {
        const char *p = (char *)lines.data + at;
        n = piece_of(p, lines.len - at, f->regular ? PIECE_BYTES : PIPE_BYTES);
        pthread_mutex_unlock(&f->lock);
        int rc = f->regular ? fd_write_all(f->fd, p, n)
                            : fd_write_timed(f->fd, p, n, LAST_LINES_MS, &f->closed);
        pthread_mutex_lock(&f->lock);
        f->error = -rc;
        f->queued -= n;
        pthread_cond_broadcast(&f->changed);
    }
    buf_fini(&lines);
}

static void *write_lines(void *arg)
{
    struct event_file *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->error && (f->rest.len || !f->closed)) {
        if (f->rest.len)
            write_some(f);
        else
            pthread_cond_wait(&f->changed, &f->lock);
    }
    f->ended = true;
    pthread_cond_broadcast(&f->changed);
    release(f);
    return NULL;
}

int event_file_open(struct event_file **out, const char *path, struct err *e)
{
    int fd = named_file_open(path, O_WRONLY | O_CREAT | O_APPEND, 0666, e);
    pthread_condattr_t monotonic;
    struct stat st;
    if (fd < 0)
        return fd;
    fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK);
    struct event_file *f = xcalloc(1, sizeof(*f));
    f->path = xstrdup(path);
    f->fd = fd;
    f->regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    f->users = 2;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = thread_start(NULL, 0, write_lines, f);
    if (rc != 0) {
        f->users = 1;
        pthread_mutex_lock(&f->lock);
        release(f);
        return err_sys(e, rc, "a thread for %s", path);
    }
    *out = f;
    return 0;
}

bool event_file_is_behind(const struct event_file *f, const struct event_list *l)
{
    return f && !f->given_up && f->at < l->first + l->n;
}

size_t event_file_write(struct event_file *f, const struct event_list *l, size_t most)
{
    struct buf lines = BUF_INIT;
    const struct event *e;
    size_t n = 0;
    if (!f || f->given_up)
        return 0;
    while (n < most && (e = event_list_next(l, &f->at))) {
        n++;
        char *line = event_json(e);
        if (line)
            buf_put(&lines, line, strlen(line));
        free(line);
    }
    pthread_mutex_lock(&f->lock);
    if (!f->error && f->queued > KEEP_BYTES)
        f->error = EAGAIN;
    if (!f->error) {
        buf_put(&f->rest, lines.data, lines.len);
        f->queued += lines.len;
    }
    int error = f->error;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    buf_fini(&lines);
    if (error) {
        log_warn("--events: %s: %s; no further events are written", f->path, strerror(error));
        f->given_up = true;
    }
    return n;
}

/* Called with the lock. Waits as long as the thread gets on. */
static void await_end(struct event_file *f, int most_ms)
{
    size_t queued = f->queued;
    uint64_t now = mono_ns(), since = now;
    uint64_t end = most_ms ? now + (uint64_t)most_ms * 1000000 : UINT64_MAX;
    for (uint64_t until = 0; !f->ended; now = mono_ns()) {
        if (!until || f->queued != queued)
            until = now + SILENT_MS * UINT64_C(1000000);
        until = until < end ? until : end;
        queued = f->queued;
        if (now >= until || timed_call_is_hurried(since))
            return;
        uint64_t look = now + TIMED_CALL_LOOK_MS * UINT64_C(1000000),
                 at = look < until ? look : until;
        const struct timespec ts = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
        pthread_cond_timedwait(&f->changed, &f->lock, &ts);
    }
}

void event_file_close(struct event_file *f, int most_ms)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->closed = true;
    pthread_cond_broadcast(&f->changed);
    await_end(f, most_ms);
    if (!f->ended)
        log_warn("--events: %s: its file server does not answer; the last events are missing",
                 f->path);
    release(f);
}
