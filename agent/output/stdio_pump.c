/* The pump: the thread between the workers' pipes and the files and consoles.
 *
 * Happy path: serve_events() finds a pipe readable, on_stream() reads a chunk, stream_feed() passes
 * it on; after stdio_worker_exited() take_orders() hands the worker to drain_worker(), which reads
 * to the end of file, and finish_worker() reports it to the agent.
 *   - a worker closes its pipe before it ends: the pump closes the pipe
 *   - another process holds the pipe after the worker's death: drain_overdue() closes it
 *   - a console is full, or its reader is dead: stdio_console.h. hold() stops reading the pipes
 *     whose output has no room, so that the workers block as if they wrote to the console
 *     themselves, and release_held() reads them again; close_pipe() gives the workers EPIPE
 *   - a log file cannot be written: stdio_logfile.h; reported once, and summed up at the end
 *   - the pump is closed while workers are open: it reads what is in their pipes */
#include "agent/output/stdio_pump.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/text.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

#define EVENTS_MAX     64
#define FINAL_READS    16 /* most chunks read from a pipe into which another process still writes */
#define HELD_MS        50 /* interval for adding held pipes to the epoll set again after a failure */
#define UNREAD_LOOK_MS 50  /* interval for checking a reader if its time is limited */
#define LAST_MS        100 /* limit for writing the last words to a slow reader */
#define FILE_REPORT_S \
    60 /* interval between two lines about failed log files: a full disk fails many */

void stream_filter_unref(struct stream_filter *f)
{
    if (!f || atomic_fetch_sub(&f->refs, 1) > 1)
        return;
    for (int i = 0; i < 2; i++) {
        logfile_close(&f->file[i]);
        free(f->path[i]);
    }
    free(f);
}

static struct worker *worker_of(struct stdio_stream *s)
{
    return container_of(s - s->is_err, struct worker, stream[0]);
}

static void stop_waiting(struct stdio_pump *p, struct stdio_stream *s)
{
    if (!s->waiting)
        return;
    *(s->prev ? &s->prev->next : &p->waiting) = s->next;
    if (s->next)
        s->next->prev = s->prev;
    s->prev = s->next = NULL;
    s->waiting = false;
}

/* Puts the stream in the list of those with something to be shown later, or takes it out. */
static void update_waiting(struct stdio_pump *p, struct stdio_stream *s)
{
    uint64_t due = stream_due_ns(s);
    if (due == 0) {
        stop_waiting(p, s);
        return;
    }
    if (!s->waiting) {
        s->waiting = true;
        s->next = p->waiting;
        if (p->waiting)
            p->waiting->prev = s;
        p->waiting = s;
    }
    if (p->partial_ns == 0 || due < p->partial_ns)
        p->partial_ns = due;
}

void stdio_pump_look_at_stream(void *pump, struct stdio_stream *s)
{
    update_waiting(pump, s);
}

static void show_partials(struct stdio_pump *p)
{
    p->partial_ns = 0;
    for (struct stdio_stream *s = p->waiting, *next; s; s = next) {
        next = s->next;
        if (stream_due_ns(s) <= p->now_ns)
            stream_show_partial(s, &p->buffers, p->now_ns);
        update_waiting(p, s);
    }
}

#define TEXT_MAX (sizeof(((struct stdio_pump *)NULL)->lacking_path) + 200)

/* Prints a line of dlaunch behind the output that standard error has been given: log.c would write
 * past that output at the end, and wait for the reader without limit. */
static void put_own_line(struct stdio_pump *p, const char *text)
{
    char line[TEXT_MAX + 16] = "dlaunch: ";
    size_t n = strlen(line);
    n += log_escape(line + n, sizeof(line) - n - 1, text, strlen(text), 0);
    line[n++] = '\n';
    console_put(p->route[1], p, NULL, line, n, p->now_ns);
}

__attribute__((format(printf, 2, 3))) static void say(struct stdio_pump *p, const char *fmt, ...)
{
    char text[TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    put_own_line(p, text);
}

/* Logs that output cannot be written, and reports the fault to the agent: standard error may be the
 * file that cannot be written. */
__attribute__((format(printf, 2, 3))) static void say_trouble(struct stdio_pump *p, const char *fmt,
                                                              ...)
{
    char text[1 + TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + 1, TEXT_MAX, fmt, ap);
    va_end(ap);
    if (log_get_level() >= LOG_LEVEL_WARN)
        put_own_line(p, text + 1);
    text[0] = p->route[1]->error == 0 && console_takes(p->route[1]);
    size_t len = 1 + strlen(text + 1) + 1;
    pthread_mutex_lock(&p->lock);
    xbuf_reserve(&p->trouble, len);
    buf_put(&p->trouble, text, len);
    pthread_mutex_unlock(&p->lock);
    uv_async_send(&p->async);
}

static void say_file_fails(struct stdio_pump *p, const struct stdio_stream *s)
{
    if (p->file_reported_ns &&
        p->now_ns < p->file_reported_ns + FILE_REPORT_S * UINT64_C(1000000000))
        return;
    p->file_reported_ns = p->now_ns;
    bool own = s->file.error != 0;
    char why[ERR_TEXT_MAX];
    say_trouble(p, "%s: %s: output is dropped until the file can be written again",
                own ? s->label->file : s->filter->path[s->is_err],
                err_text(own ? s->file.error : s->filter->file[s->is_err].error, why));
}

static struct held_streams *held_of(struct stdio_pump *p, const struct stdio_stream *s)
{
    return s->console->kind == CONSOLE_JOB ? &p->held_for_job : &p->held[s->console - p->console];
}

/* Whether the stream has to wait for its console: also behind streams that wait already, because it
 * would take the room before there is enough for all of them. */
static bool has_to_wait(struct stdio_pump *p, const struct stdio_stream *s)
{
    return s->console && (console_full(s->console) || !TAILQ_EMPTY(held_of(p, s)));
}

static void hold(struct stdio_pump *p, struct stdio_stream *s)
{
    epoll_ctl(p->epfd, EPOLL_CTL_DEL, s->fd, NULL);
    s->held = true;
    TAILQ_INSERT_TAIL(held_of(p, s), s, held_link);
}

static void unhold(struct stdio_pump *p, struct stdio_stream *s)
{
    if (s->held)
        TAILQ_REMOVE(held_of(p, s), s, held_link);
    s->held = false;
}

/* Releases streams in the order in which they were held, so that each worker gets its turn. */
static void release(struct stdio_pump *p, struct held_streams *held)
{
    struct stdio_stream *s;
    while ((s = TAILQ_FIRST(held)) && console_has_room(s->console)) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = s};
        if (epoll_ctl(p->epfd, EPOLL_CTL_ADD, s->fd, &ev) < 0)
            break; /* out of memory: the next turn tries again */
        unhold(p, s);
    }
}

static void release_held(struct stdio_pump *p)
{
    release(p, &p->held[0]);
    release(p, &p->held[1]);
    release(p, &p->held_for_job);
}

/* Removes the pipe from the set explicitly: a worker that is just being forked may hold a copy. */
static void close_pipe(struct stdio_pump *p, struct stdio_stream *s)
{
    unhold(p, s);
    if (s->fd >= 0)
        epoll_ctl(p->epfd, EPOLL_CTL_DEL, s->fd, NULL);
    close_fd(&s->fd);
}

/* Reads one chunk. False: the pipe is empty, or at its end and closed. */
static bool read_chunk(struct stdio_pump *p, struct stdio_stream *s)
{
    uint8_t *chunk = p->buffers.room + STREAM_BEFORE;
    ssize_t n = read(s->fd, chunk, STREAM_CHUNK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    if (n <= 0) {
        close_pipe(p, s);
        return false;
    }
    if (!atomic_load_explicit(&worker_of(s)->first_ns, memory_order_relaxed))
        atomic_store_explicit(&worker_of(s)->first_ns, p->now_ns, memory_order_relaxed);
    atomic_store_explicit(&worker_of(s)->last_ns, p->now_ns, memory_order_relaxed);
    if (s->is_err) {
        pthread_mutex_lock(&p->lock);
        stdio_tail_put(&worker_of(s)->tail, chunk, (size_t)n);
        pthread_mutex_unlock(&p->lock);
    }
    if (!stream_feed(s, &p->buffers, (size_t)n, p->now_ns))
        say_file_fails(p, s);
    update_waiting(p, s);
    return true;
}

/* The job's console waits for no other worker of this node when the last one has ended: what the
 * node holds goes out before the agent says that its workers have ended. */
static void end_of_worker(struct stdio_pump *p, struct worker *w, int rank)
{
    console_forget(stdio_job_console(p->job), w);
    stdio_job_forget(p->job, rank);
    pthread_mutex_lock(&p->lock);
    bool last = p->live == w && !w->next_live;
    pthread_mutex_unlock(&p->lock);
    if (last)
        stdio_job_show_source(p->job, p->now_ns);
}

/* Everything is read: writes the last lines, closes the files and reports to the agent. */
static void finish_worker(struct stdio_pump *p, struct worker *w)
{
    int rank = w->stream[0].label->rank;
    for (int i = 0; i < 2; i++) {
        struct stdio_stream *s = &w->stream[i];
        stop_waiting(p, s);
        close_pipe(p, s);
        if (s->file.missing && p->files_lacking == 0)
            snprintf(p->lacking_path, sizeof(p->lacking_path), "%s", s->label->file);
        uint64_t lacking = stream_end(s, &p->buffers, p->now_ns);
        p->files_lacking += lacking > 0;
        p->bytes_lacking += lacking;
    }
    console_forget(&p->console[0], w);
    console_forget(&p->console[1], w);
    if (p->job)
        end_of_worker(p, w, rank);
    stream_filter_unref(w->filter);
    w->filter = NULL;
    pthread_mutex_lock(&p->lock);
    *(w->prev_live ? &w->prev_live->next_live : &p->live) = w->next_live;
    if (w->next_live)
        w->next_live->prev_live = w->prev_live;
    w->next = NULL;
    *p->news_end = w;
    p->news_end = &w->next;
    pthread_mutex_unlock(&p->lock);
    uv_async_send(&p->async);
}

/* True: no more output can arrive. */
static bool read_to_end(struct stdio_pump *p, struct worker *w)
{
    for (int i = 0; i < 2; i++) {
        for (int reads = 0; w->stream[i].fd >= 0 && reads < FINAL_READS; reads++) {
            if (!read_chunk(p, &w->stream[i]))
                break;
        }
    }
    return w->stream[0].fd < 0 && w->stream[1].fd < 0;
}

static void on_stream(struct stdio_pump *p, struct stdio_stream *s)
{
    struct worker *w = worker_of(s);
    if (has_to_wait(p, s))
        hold(p, s);
    else if (s->console && console_unread(s->console) && !*s->label->file)
        close_pipe(p, s); /* the worker gets EPIPE, as if it had written to the console itself */
    else
        read_chunk(p, s);
    if (w->exited && w->stream[0].fd < 0 && w->stream[1].fd < 0)
        finish_worker(p, w);
}

static void drain_worker(struct stdio_pump *p, struct worker *w)
{
    w->exited = true;
    if (read_to_end(p, w)) {
        finish_worker(p, w);
        return;
    }
    w->deadline_ns = p->now_ns + STDIO_DRAIN_MS * UINT64_C(1000000);
    if (p->drain_ns == 0)
        p->drain_ns = w->deadline_ns;
}

/* Closes the pipes that other processes still hold, after STDIO_DRAIN_MS; `all`: every open pipe.
 * */
static void drain_overdue(struct stdio_pump *p, bool all)
{
    p->drain_ns = 0;
    pthread_mutex_lock(&p->lock);
    struct worker *w = p->live;
    pthread_mutex_unlock(&p->lock);
    for (struct worker *next; w; w = next) {
        next = w->next_live;
        if (all || (w->exited && w->deadline_ns <= p->now_ns)) {
            read_to_end(p, w);
            finish_worker(p, w);
        } else if (w->exited && (p->drain_ns == 0 || w->deadline_ns < p->drain_ns)) {
            p->drain_ns = w->deadline_ns;
        }
    }
}

/* dlaunch's own lines, on their way to standard error. What the workers have printed comes before
 * what is said of it. */
static void put_own_lines(struct stdio_pump *p, struct buf *lines, uint64_t lost)
{
    char size[TEXT_BYTES_MAX];
    for (int i = 0; i < 2 && lines->len; i++) {
        if (p->fold[i] && (p->opts.log_fd || p->route[1] == &p->console[i]))
            fold_show_all(p->fold[i], p->now_ns);
    }
    if (p->opts.log_fd)
        fd_write_all(p->opts.log_fd, lines->data, lines->len);
    else
        console_put(p->route[1], p, NULL, lines->data, lines->len, p->now_ns);
    if (lost)
        say(p, "%s of its own lines dropped here", text_bytes(size, lost));
    buf_fini(lines);
}

/* The lines that have waited. */
static void put_late_lines(struct stdio_pump *p)
{
    if (p->job && p->own.len)
        stdio_job_show(p->job, p->now_ns); /* units that are due as well */
    put_own_lines(p, &p->own, p->own_lost);
    p->own_lost = 0;
}

/* Where several nodes have one console, own lines wait as long as what has been printed before. All
 * of that has come to the console when a round begins there. */
static void take_own_lines(struct stdio_pump *p, struct buf *lines, uint64_t lost, bool begins)
{
    if (begins)
        put_late_lines(p);
    if (!lines->len || begins || p->finishing || !p->job || !stdio_job_fold(p->job)) {
        put_own_lines(p, lines, lost);
        return;
    }
    p->own = *lines;
    p->own_lost = lost;
    p->own_due_ns = p->now_ns + STDIO_JOB_LATE_NS;
}

/* Shows output of workers of all nodes. */
static void take_job_output(struct stdio_pump *p)
{
    if (!stdio_job_take(p->job, p->now_ns))
        return;
    pthread_mutex_lock(&p->lock);
    p->room = true;
    pthread_mutex_unlock(&p->lock);
    uv_async_send(&p->async);
}

/* Carries out the orders of the other threads. Returns whether the pump is to be closed. */
static bool take_orders(struct stdio_pump *p)
{
    uint64_t count;
    if (read(p->wakefd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        say(p, "output of the workers: %s", strerror(errno));
    pthread_mutex_lock(&p->lock);
    struct worker *orders = p->orders;
    struct buf lines = BUF_INIT;
    uint64_t lost = 0;
    bool closing = p->closing, begins = p->begins;
    bool behind = p->own.len && !begins;
    p->orders = NULL;
    p->begins = false;
    p->own_lines_wait = p->inbox.len > 0 && (behind || console_full(p->route[1]));
    if (!p->own_lines_wait) {
        lines = p->inbox;
        lost = p->inbox_lost;
        p->inbox = (struct buf)BUF_INIT;
        p->inbox_lost = 0;
    }
    p->woken = false;
    pthread_mutex_unlock(&p->lock);
    if (p->job)
        take_job_output(p);
    for (struct worker *next; orders; orders = next) {
        next = orders->next;
        drain_worker(p, orders);
    }
    take_own_lines(p, &lines, lost, begins);
    return closing;
}

/* "standard output", or the path of the file that it is. */
static const char *console_path(const struct console *c, char out[1024])
{
    char link[40];
    struct stat st;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", c->fd);
    ssize_t n = fstat(c->fd, &st) == 0 && S_ISREG(st.st_mode) ? readlink(link, out, 1023) : -1;
    if (n <= 0)
        return c->name;
    out[n] = '\0';
    return out;
}

static void say_console_fails(struct stdio_pump *p)
{
    char path[1024], why[ERR_TEXT_MAX];
    for (int i = 0; i < 2; i++) {
        struct console *c = &p->console[i];
        if (c->error == 0 || p->reported[i])
            continue;
        p->reported[i] = true;
        const char *name = console_path(c, path);
        err_text(c->error, why);
        if (console_unread(c))
            say_trouble(p,
                        "%s: %s: its reader has closed it; workers get an error when they write to "
                        "it, log files continue",
                        name, why);
        else if (c->kind == CONSOLE_DEAD)
            say_trouble(p, "%s: %s: the job goes on without this output", name, why);
        else
            say_trouble(
                p,
                "%s: %s: the job goes on; the last %u MiB of output are kept until they can "
                "be written",
                name, why, STDIO_CONSOLE_BACKLOG >> 20);
    }
}

/* Milliseconds until something is due; -1: nothing is. */
static int pump_next_timeout(const struct stdio_pump *p)
{
    uint64_t due[] = {p->partial_ns,
                      p->drain_ns,
                      p->fold[0] ? fold_due_ns(p->fold[0]) : 0,
                      p->fold[1] ? fold_due_ns(p->fold[1]) : 0,
                      p->job ? stdio_job_due_ns(p->job) : 0,
                      p->own.len ? p->own_due_ns : 0,
                      p->console[0].blocked ? p->console[0].retry_ns : 0,
                      p->console[1].blocked ? p->console[1].retry_ns : 0};
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < ARRAY_LEN(due); i++) {
        if (due[i] && due[i] < first)
            first = due[i];
    }
    int most = p->finishing && p->end.unread_s >= 0 ? UNREAD_LOOK_MS : -1;
    for (int i = 0; i < 2; i++) {
        if (!TAILQ_EMPTY(&p->held[i]) && console_has_room(&p->console[i]))
            most = HELD_MS; /* workers whose pipes could not be added to the epoll set */
    }
    if (!TAILQ_EMPTY(&p->held_for_job) && console_has_room(stdio_job_console(p->job)))
        most = HELD_MS;
    if (first == UINT64_MAX)
        return most;
    uint64_t now = mono_ns();
    int ms = first <= now ? 0 : (int)((first - now + 999999) / 1000000);
    return most >= 0 && most < ms ? most : ms;
}

/* Waits for events and handles them. Returns whether orders or lines have to be taken. */
static bool serve_events(struct stdio_pump *p)
{
    struct epoll_event ev[EVENTS_MAX];
    bool woken = false;
    int n = epoll_wait(p->epfd, ev, EVENTS_MAX, pump_next_timeout(p));
    p->now_ns = mono_ns();
    for (int i = 0; i < n; i++) {
        uintptr_t tag = (uintptr_t)ev[i].data.ptr;
        if (tag == 0)
            woken = true;
        else if (tag & TAG_CONSOLE)
            console_flush((struct console *)(tag & ~(uintptr_t)TAG_CONSOLE), p->now_ns);
        else
            on_stream(p, ev[i].data.ptr);
    }
    for (int i = 0; i < 2; i++) {
        struct console *c = &p->console[i];
        if (c->blocked && c->retry_ns && c->retry_ns <= p->now_ns)
            console_flush(c, p->now_ns);
    }
    release_held(p);
    if (p->own.len && p->own_due_ns <= p->now_ns)
        put_late_lines(p);
    return woken || (p->own_lines_wait && !p->own.len && !console_full(p->route[1])) ||
           (p->job && stdio_job_waits(p->job));
}

static void sum_up_files(struct stdio_pump *p)
{
    char size[TEXT_BYTES_MAX];
    unsigned n = p->files_lacking;
    if (n)
        say_trouble(p, "%s of output missing at the end of %u log file%s: %s%s",
                    text_bytes(size, p->bytes_lacking), n, n == 1 ? "" : "s", p->lacking_path,
                    n == 1 ? "" : " and others");
}

/* Tries once more to write to a console whose disk is full, then gives its output up. */
static void give_up_full(struct stdio_pump *p)
{
    char size[TEXT_BYTES_MAX], path[1024], why[ERR_TEXT_MAX];
    for (int i = 0; i < 2; i++) {
        struct console *c = &p->console[i];
        if (c->kind == CONSOLE_DEAD || c->error == 0)
            continue;
        console_flush(c, p->now_ns);
        if (c->error == 0)
            continue;
        uint64_t lost = console_lose(c);
        say_trouble(p, "%s: %s: %s of output could not be written", console_path(c, path),
                    err_text(c->error, why), text_bytes(size, lost));
    }
}

/* Waits until the consoles have taken everything or the limit for a reader is over; then writes the
 * last words.
 * */
static void pump_finish(struct stdio_pump *p)
{
    bool pending = true;
    uint64_t least = UINT64_MAX, taken_ns = 0;
    drain_overdue(p, true);
    p->partial_ns = p->drain_ns = 0; /* all streams have ended */
    for (int i = 0; i < 2; i++) {
        if (p->fold[i])
            fold_show_all(p->fold[i], p->now_ns);
    }
    if (p->job)
        stdio_job_end(p->job, p->now_ns);
    put_late_lines(p);
    sum_up_files(p);
    console_end(p->route[0], p->now_ns);
    console_end(p->route[1], p->now_ns);
    p->finishing = true;
    while (pending && !atomic_load(&p->hurry)) {
        take_orders(p);
        say_console_fails(p);
        give_up_full(p);
        pthread_mutex_lock(&p->lock);
        pending = p->inbox.len > 0;
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < 2; i++)
            pending |= console_has_backlog(&p->console[i]);
        uint64_t kept = console_kept(&p->console[0]) + console_kept(&p->console[1]);
        if (kept < least) {
            least = kept;
            taken_ns = p->now_ns = mono_ns();
        }
        if (p->end.unread_s >= 0 && (double)(p->now_ns - taken_ns) > p->end.unread_s * 1e9)
            break;
        if (pending)
            serve_events(p);
    }
    p->gave_up = pending;
    console_fini(&p->console[0]);
    console_fini(&p->console[1]);
    if (p->gave_up)
        atomic_store(&p->hurry, true);
    if (p->end.last_words)
        fd_write_timed(p->opts.console_err, p->end.last_words, strlen(p->end.last_words), LAST_MS,
                       &p->hurry);
}

void *stdio_pump_main(void *arg)
{
    struct stdio_pump *p = arg;
    prctl(PR_SET_NAME, "dlaunch-stdio");
    for (;;) {
        /* Streams before orders: when a worker is freed, no event for it is left in this turn. */
        bool woken = serve_events(p);
        bool closing = woken && take_orders(p);
        if (p->partial_ns && p->partial_ns <= p->now_ns)
            show_partials(p);
        if (p->drain_ns && p->drain_ns <= p->now_ns)
            drain_overdue(p, false);
        for (int i = 0; i < 2; i++) {
            if (p->fold[i])
                fold_show(p->fold[i], p->now_ns);
        }
        if (p->job)
            stdio_job_show(p->job, p->now_ns);
        say_console_fails(p);
        if (closing)
            break;
    }
    pump_finish(p);
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    pthread_mutex_unlock(&p->lock);
    uv_async_send(&p->async);
    return NULL;
}
