/* The agent's side of the pump: opening, handing workers over, taking them back. What happens in
 * between is in stdio_pump.c. */
#include "agent/output/stdio.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/process/spawn.h"
#include "agent/output/stdio_pump.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "rendezvous/rules/rank_table.h"

#define STACK_BYTES    (256u << 10)
#define FDS_PER_WORKER 6 /* two pipes, two files, and what others need: a pidfd, a socket */
#define FDS_OTHER      64
#define INBOX_MAX      (256u << 10) /* dlaunch's own lines that the thread has not taken yet */

static void pump_wake(struct stdio_pump *p)
{
    uint64_t one = 1;
    if (write(p->wakefd, &one, sizeof(one)) < 0)
        return; /* the counter is full: the thread is awake */
}

/* Called under the lock. Whether the caller has to wake the thread. */
static bool needs_wake(struct stdio_pump *p)
{
    bool first = !p->woken;
    p->woken = true;
    return first;
}

static void pump_free(struct stdio_pump *p)
{
    close_fd(&p->epfd);
    close_fd(&p->wakefd);
    pthread_mutex_destroy(&p->lock);
    buf_fini(&p->inbox);
    buf_fini(&p->own);
    buf_fini(&p->trouble);
    for (int i = 0; i < p->nworkers; i++) {
        if (p->workers[i])
            stdio_tail_fini(&p->workers[i]->tail);
        free(p->workers[i]);
    }
    stream_filter_unref(p->filter);
    free(p->end.last_words);
    free(p->buffers.room);
    free(p->buffers.prefixed);
    free(p->buffers.visible);
    for (int i = 0; i < 2; i++) {
        fold_free(p->fold[i]);
        buf_fini(&p->folded[i].page);
    }
    stdio_job_free(p->job);
    free(p->workers);
    free(p);
}

static void on_async_closed(uv_handle_t *uv)
{
    struct stdio_pump *p = container_of((uv_async_t *)uv, struct stdio_pump, async);
    struct stdio_pump_end end = p->end;
    bool all = !p->gave_up;
    /* Lines that were written after the thread took its last ones. */
    int fd = p->opts.log_fd ? p->opts.log_fd : p->opts.console_err;
    if (p->inbox.len)
        fd_write_timed(fd, p->inbox.data, p->inbox.len, 0, NULL);
    pump_free(p);
    if (end.on_closed)
        end.on_closed(end.arg, all);
}

/* Takes the first worker from the list of drained ones; NULL: none. *ended: the thread has ended.
 * */
static struct worker *take_news(struct stdio_pump *p, bool *ended)
{
    pthread_mutex_lock(&p->lock);
    struct worker *w = p->news;
    if (w) {
        p->news = w->next;
        if (!p->news)
            p->news_end = &p->news;
    }
    *ended = p->ended;
    pthread_mutex_unlock(&p->lock);
    return w;
}

static void pass_trouble_on(struct stdio_pump *p)
{
    pthread_mutex_lock(&p->lock);
    struct buf b = p->trouble;
    p->trouble = (struct buf)BUF_INIT;
    pthread_mutex_unlock(&p->lock);
    for (const char *at = (char *)b.data, *end = at + b.len; at < end; at += strlen(at) + 1) {
        bool shown = *at++;
        if (p->opts.on_trouble)
            p->opts.on_trouble(p->opts.arg, at, shown);
    }
    buf_fini(&b);
}

/* The thread shows the last pages itself. */
static void pass_output_on(struct stdio_pump *p)
{
    struct buf page;
    while (p->job && !p->closing && (page = stdio_job_next_page(p->job)).len)
        p->opts.on_output(p->opts.arg, &page);
}

static void tell_room(struct stdio_pump *p)
{
    pthread_mutex_lock(&p->lock);
    bool room = p->room;
    p->room = false;
    pthread_mutex_unlock(&p->lock);
    if (room && !p->closing)
        p->opts.on_room(p->opts.arg);
}

static void on_page(void *pump)
{
    struct stdio_pump *p = pump;
    uv_async_send(&p->async);
}

static void on_async(uv_async_t *uv)
{
    struct stdio_pump *p = container_of(uv, struct stdio_pump, async);
    bool ended;
    pass_trouble_on(p);
    pass_output_on(p);
    tell_room(p);
    for (struct worker *w; (w = take_news(p, &ended));) {
        w->drained = true;
        pass_output_on(p); /* all of what the worker has printed comes first */
        if (p->opts.on_drained && !p->closing)
            p->opts.on_drained(p->opts.arg, w->local_rank);
    }
    if (!ended)
        return;
    pthread_join(p->thread, NULL); /* does not wait: the thread has ended */
    uv_close((uv_handle_t *)uv, on_async_closed);
}

/* Grows the table of descriptors for `n` of them; a failure is harmless. */
static void reserve_fds(struct stdio_pump *p, int n)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == 0)
        return;
    int highest = limit.rlim_cur < (rlim_t)n ? (int)limit.rlim_cur - 1 : n;
    int fd = fcntl(p->wakefd, F_DUPFD_CLOEXEC, highest);
    close_fd(&fd);
}

static void make_job(struct stdio_pump *p)
{
    const struct stdio_job_opts job = {.route = {p->route[0], p->route[1]},
                                       .buffers = &p->buffers,
                                       .nworkers = p->opts.nworkers,
                                       .nranks = p->opts.nranks,
                                       .fold = p->opts.fold != FOLD_OFF,
                                       .arg = p,
                                       .on_page = on_page,
                                       .on_stream = stdio_pump_look_at_stream};
    p->job = stdio_job_new(&job);
}

int stdio_pump_open(struct stdio_pump **out, uv_loop_t *loop, const struct stdio_pump_opts *opts,
                    struct err *e)
{
    struct stdio_pump *p = xcalloc(1, sizeof(*p));
    p->opts = *opts;
    p->news_end = &p->news;
    pthread_mutex_init(&p->lock, NULL);
    p->epfd = epoll_create1(EPOLL_CLOEXEC);
    p->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN}; /* without a pointer: the eventfd */
    if (p->epfd < 0 || p->wakefd < 0 || epoll_ctl(p->epfd, EPOLL_CTL_ADD, p->wakefd, &ev) < 0) {
        int rc = err_sys(e, errno, "output of the workers");
        pump_free(p);
        return rc;
    }
    for (int i = 0; i < 2; i++) {
        p->route[i] = &p->console[i];
        console_init(&p->console[i], i ? opts->console_err : opts->console_out,
                     i ? "standard error" : "standard output", p->epfd,
                     (void *)((uintptr_t)&p->console[i] | TAG_CONSOLE));
    }
    if (console_same(opts->console_out, opts->console_err))
        p->route[1] = p->route[0];
    TAILQ_INIT(&p->held[0]);
    TAILQ_INIT(&p->held[1]);
    TAILQ_INIT(&p->held_for_job);
    for (int i = 0; i < 2; i++)
        p->shows[i] = console_takes(p->route[i]);
    p->buffers.room = xmalloc(STREAM_BEFORE + STREAM_CHUNK);
    if (p->console[0].tty || p->console[1].tty)
        p->buffers.visible = xmalloc(STREAM_CHUNK);
    if (opts->job)
        make_job(p);
    for (int i = 0; i < 2 && !p->job && opts->nworkers > 1 && opts->fold != FOLD_OFF; i++) {
        bool used = p->route[0] == &p->console[i] || p->route[1] == &p->console[i];
        const struct fold_out show = {fold_console_show, &p->folded[i], FOLD_WINDOW_NS, false};
        p->folded[i].console[0] = p->folded[i].console[1] = &p->console[i];
        if (used && (opts->fold == FOLD_ON || p->console[i].tty))
            p->fold[i] = fold_new(&show, opts->nworkers);
    }
    int rc = uv_async_init(loop, &p->async, on_async);
    if (rc < 0) {
        pump_free(p);
        return err_set(e, rc, "output of the workers: %s", uv_strerror(rc));
    }
    if (opts->nworkers > 0)
        reserve_fds(p, FDS_OTHER + FDS_PER_WORKER * opts->nworkers);
    rc = thread_start(&p->thread, STACK_BYTES, stdio_pump_main, p);
    if (rc > 0) {
        uv_close((uv_handle_t *)&p->async, on_async_closed);
        return spawn_explain("start the thread for the workers' output", rc, e);
    }
    *out = p;
    return 0;
}

void stdio_set_filtered_dir(struct stdio_pump *p, const char *dir)
{
    stream_filter_unref(p->filter);
    p->filter = NULL;
    if (!dir || (!p->opts.dup_stdout && !p->opts.dup_stderr))
        return;
    struct stream_filter *f = xcalloc(1, sizeof(*f));
    atomic_init(&f->refs, 1);
    for (int i = 0; i < 2; i++) {
        struct err e = ERR_INIT;
        f->file[i].fd = -1;
        f->match[i] = i ? p->opts.dup_stderr : p->opts.dup_stdout;
        f->path[i] = xasprintf("%s/%s", dir, i ? "filtered_stderr.log" : "filtered_stdout.log");
        if (f->match[i] && logfile_open(&f->file[i], f->path[i], &e) < 0) {
            log_warn("%s: lines that match the filters are not copied", e.msg);
            f->match[i] = NULL;
        }
    }
    p->filter = f;
}

static struct console *stream_console(struct stdio_pump *p, bool is_err,
                                      const struct stdio_route *route)
{
    if (!route->console)
        return NULL;
    if (p->job)
        return stdio_job_console(p->job);
    return p->shows[is_err] ? p->route[is_err] : NULL;
}

/* Makes one stream ready; *child is what the worker gets. */
static int stream_open(struct stdio_pump *p, struct worker *w, bool is_err,
                       const struct stdio_route *route, int *child, struct err *e)
{
    struct stdio_stream *s = &w->stream[is_err];
    s->is_err = is_err;
    s->writer = w;
    s->console = stream_console(p, is_err, route);
    s->filter = route->filtered && w->filter && w->filter->match[is_err] ? w->filter : NULL;
    if (route->file) {
        int rc = logfile_open(&s->file, route->file, e);
        if (rc < 0)
            return rc;
    }
    if (s->console)
        s->fold = p->job ? stdio_job_fold(p->job) : p->fold[s->console - p->console];
    char rank[24] = "";
    if ((s->fold || p->job) && route->rank > 0)
        snprintf(rank, sizeof(rank), "[%d]: ", route->rank);
    s->label = stdio_label_new(route->rank, w->local_rank, route->prefix ? route->prefix : rank,
                               route->file);
    s->label->is_err = is_err;
    s->source = (struct fold_source){.writer = w, .label = s->label};
    if (!is_err && !s->console && !s->filter && s->file.fd < 0) {
        *child = open("/dev/null", O_WRONLY | O_CLOEXEC);
        return *child < 0 ? err_sys(e, errno, "open /dev/null") : 0;
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_sys(e, errno, "pipe for the output of local rank %d", w->local_rank);
    s->fd = ends[0];
    *child = ends[1];
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = s};
    if (fcntl(s->fd, F_SETFL, O_NONBLOCK) < 0 || epoll_ctl(p->epfd, EPOLL_CTL_ADD, s->fd, &ev) < 0)
        return err_sys(e, errno, "pipe for the output of local rank %d", w->local_rank);
    return 0;
}

/* The place of the local rank's worker, free to be taken. */
static int worker_place(struct stdio_pump *p, int local_rank, struct worker ***place, struct err *e)
{
    if (local_rank < 0 || local_rank >= NPROC_MAX)
        return err_set(e, -EINVAL, "local rank %d", local_rank);
    if (local_rank >= p->nworkers) {
        int n = local_rank + 1 > 2 * p->nworkers ? local_rank + 1 : 2 * p->nworkers;
        p->workers = xrealloc(p->workers, (size_t)n * sizeof(*p->workers));
        memset(p->workers + p->nworkers, 0, (size_t)(n - p->nworkers) * sizeof(*p->workers));
        p->nworkers = n;
    }
    struct worker *old = p->workers[local_rank];
    if (old && !old->drained)
        return err_set(e, -EBUSY, "the output of local rank %d is still being read", local_rank);
    if (old)
        stdio_tail_fini(&old->tail);
    free(old);
    *place = &p->workers[local_rank];
    **place = NULL;
    return 0;
}

static void enlist(struct stdio_pump *p, struct worker *w)
{
    pthread_mutex_lock(&p->lock);
    w->next_live = p->live;
    if (p->live)
        p->live->prev_live = w;
    p->live = w;
    pthread_mutex_unlock(&p->lock);
}

int stdio_worker_open(struct stdio_pump *p, int local_rank, const struct stdio_route *out,
                      const struct stdio_route *err, int *child_out, int *child_err, struct err *e)
{
    struct worker **place = NULL;
    int rc = worker_place(p, local_rank, &place, e);
    if (rc < 0)
        return rc;
    struct worker *w = xcalloc(1, sizeof(*w));
    w->local_rank = local_rank;
    w->stream[0].fd = w->stream[1].fd = w->stream[0].file.fd = w->stream[1].file.fd = -1;
    w->filter = p->filter;
    if (w->filter)
        atomic_fetch_add(&w->filter->refs, 1);
    *child_out = *child_err = -1;
    rc = stream_open(p, w, false, out, child_out, e);
    if (rc == 0)
        rc = stream_open(p, w, true, err, child_err, e);
    if (rc < 0) {
        /* No event can be pending: nothing was written and the other ends are open. */
        for (int i = 0; i < 2; i++) {
            if (w->stream[i].fd >= 0)
                epoll_ctl(p->epfd, EPOLL_CTL_DEL, w->stream[i].fd, NULL);
            close_fd(&w->stream[i].fd);
            logfile_close(&w->stream[i].file);
            stdio_label_unref(w->stream[i].label);
        }
        close_fd(child_out);
        close_fd(child_err);
        stream_filter_unref(w->filter);
        free(w);
        return rc;
    }
    for (int i = 0; i < 2; i++) {
        struct fold *f = p->fold[i];
        if (f)
            fold_expect(f, local_rank, w->stream[0].fold == f || w->stream[1].fold == f);
    }
    if (p->job && stdio_job_fold(p->job))
        fold_expect(stdio_job_fold(p->job), local_rank, w->stream[0].fold || w->stream[1].fold);
    enlist(p, w);
    *place = w;
    return 0;
}

static struct worker *worker_at(const struct stdio_pump *p, int local_rank)
{
    return local_rank >= 0 && local_rank < p->nworkers ? p->workers[local_rank] : NULL;
}

void stdio_worker_exited(struct stdio_pump *p, int local_rank)
{
    struct worker *w = worker_at(p, local_rank);
    if (!w || w->reported)
        return;
    w->reported = true;
    pthread_mutex_lock(&p->lock);
    w->next = p->orders;
    p->orders = w;
    bool first = needs_wake(p);
    pthread_mutex_unlock(&p->lock);
    if (first)
        pump_wake(p);
}

size_t stdio_worker_tail(struct stdio_pump *p, int local_rank, char *out, size_t cap)
{
    struct worker *w = worker_at(p, local_rank);
    if (cap)
        out[0] = '\0';
    if (!w)
        return 0;
    pthread_mutex_lock(&p->lock);
    size_t n = stdio_tail_text(&w->tail, out, cap);
    pthread_mutex_unlock(&p->lock);
    return n;
}

uint64_t stdio_worker_first_ns(struct stdio_pump *p, int local_rank)
{
    struct worker *w = worker_at(p, local_rank);
    return w ? atomic_load_explicit(&w->first_ns, memory_order_relaxed) : 0;
}

uint64_t stdio_worker_last_ns(struct stdio_pump *p, int local_rank)
{
    struct worker *w = worker_at(p, local_rank);
    return w ? atomic_load_explicit(&w->last_ns, memory_order_relaxed) : 0;
}

bool stdio_show_job(struct stdio_pump *p, const void *records, size_t n)
{
    if (!p || !p->job || p->closing)
        return true;
    bool room = stdio_job_add(p->job, records, n);
    p->is_sink = true;
    pump_wake(p);
    return room;
}

void stdio_begin_job(struct stdio_pump *p, int nshown)
{
    if (!p->job || p->closing)
        return;
    stdio_job_begin(p->job, nshown);
    pthread_mutex_lock(&p->lock);
    p->begins = p->is_sink;
    pthread_mutex_unlock(&p->lock);
    pump_wake(p);
}

void stdio_job_was_taken(struct stdio_pump *p, size_t n)
{
    if (p && p->job && stdio_job_taken(p->job, n))
        pump_wake(p);
}

void stdio_write_line(void *pump, const char *line, size_t len)
{
    struct stdio_pump *p = pump;
    pthread_mutex_lock(&p->lock);
    if (p->inbox.len + len <= INBOX_MAX && buf_reserve(&p->inbox, len))
        buf_put(&p->inbox, line, len);
    else
        p->inbox_lost += len;
    bool first = needs_wake(p);
    pthread_mutex_unlock(&p->lock);
    if (first)
        pump_wake(p);
}

void stdio_pump_close(struct stdio_pump *p, const struct stdio_pump_end *end)
{
    if (!p)
        return;
    assert(!p->closing);
    p->end = *end;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    pump_wake(p);
}

void stdio_pump_hurry(struct stdio_pump *p)
{
    atomic_store(&p->hurry, true);
    pump_wake(p);
}
