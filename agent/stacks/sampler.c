/* The happy path: sampler_take -> the helper is spawned, its output read -> at its end finish().
 *
 *   the helper cannot be spawned     each worker gets a note; on_done comes from the loop
 *   it crashes                       workers without a sample get a note
 *   it is not done at the deadline   killed; the same
 */
#include "agent/stacks/sampler.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/stacks/helper.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/uvx.h"

extern char **environ;

enum { READ_BYTES = 65536, OUTPUT_MAX = 64 << 20 };

struct waiter {
    struct waiter *next;
    void (*on_done)(void *arg, const struct samples *all);
    void *arg;
};

/* One run of the helper. */
struct run {
    struct sampler *sampler;
    struct uvx_scope scope;
    uv_pipe_t pipe;
    uv_timer_t timer;
    int pid, pidfd;
    struct buf output;
    struct sampler_worker *workers;
    size_t n;
    const char *trouble; /* NULL: none */
    bool over;
};

struct sampler {
    uv_loop_t *loop;
    struct spawner *spawner;
    struct run *run; /* NULL: none */
    struct waiter *waiters;
    bool closing;
    int nclosing; /* runs whose handles are being closed */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

struct sampler *sampler_new(uv_loop_t *loop, struct spawner *spawner)
{
    struct sampler *s = xcalloc(1, sizeof(*s));
    s->loop = loop;
    s->spawner = spawner;
    return s;
}

static void free_if_closed(struct sampler *s)
{
    if (!s->closing || s->nclosing)
        return;
    void (*on_closed)(void *arg) = s->on_closed;
    void *arg = s->on_closed_arg;
    free(s);
    on_closed(arg);
}

static void on_run_closed(void *arg)
{
    struct run *r = arg;
    struct sampler *s = r->sampler;
    s->nclosing--;
    buf_fini(&r->output);
    free(r->workers);
    free(r);
    free_if_closed(s);
}

/* What the helper has written, whole samples only; then those that it has not come to. */
static void read_output(const struct run *r, struct samples *all)
{
    struct rd in = rd_init(r->output.data, r->output.len);
    while (in.end - in.p >= 4) {
        uint32_t len = rd_u32(&in);
        const uint8_t *p = rd_take(&in, len);
        struct rd one = rd_init(p, p ? len : 0);
        if (!p || !samples_decode(&one, all))
            break;
    }
    for (size_t i = 0; i < r->n; i++) {
        bool found = false;
        for (size_t k = 0; k < all->n && !found; k++)
            found = all->s[k].rank == r->workers[i].rank;
        if (found)
            continue;
        struct sample *s = samples_add(all);
        s->rank = r->workers[i].rank;
        s->pid = r->workers[i].pid;
        snprintf(s->note, sizeof(s->note), "no stack: %s",
                 r->trouble ? r->trouble : "the helper process has crashed");
    }
    samples_sort(all);
}

static void kill_helper(const struct run *r)
{
    if (r->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, r->pidfd, SIGKILL, NULL, 0);
}

/* The run is no longer the sampler's when the waiters are called: they may start the next one. */
static void finish(struct run *r)
{
    struct sampler *s = r->sampler;
    struct samples all = {0};
    if (r->over)
        return;
    r->over = true;
    kill_helper(r);
    close_fd(&r->pidfd);
    read_output(r, &all);
    s->run = NULL;
    s->nclosing++;
    uvx_scope_close(&r->scope, on_run_closed, r);
    struct waiter *w = s->waiters, *next;
    for (s->waiters = NULL; w; w = next) {
        next = w->next;
        w->on_done(w->arg, &all);
        free(w);
    }
    samples_fini(&all);
}

static void on_deadline(uv_timer_t *t)
{
    struct run *r = container_of(t, struct run, timer);
    if (!r->trouble)
        r->trouble = "it was not done in time";
    finish(r);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct run *r = container_of(h, struct run, pipe);
    (void)suggested;
    xbuf_reserve(&r->output, READ_BYTES);
    *buf = uv_buf_init((char *)r->output.data + r->output.len, READ_BYTES);
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *buf)
{
    struct run *r = container_of(h, struct run, pipe);
    (void)buf;
    if (n > 0)
        r->output.len += (size_t)n;
    if (n < 0 || r->output.len > OUTPUT_MAX)
        finish(r);
}

/* False: there is no helper. */
static bool spawn_helper(struct run *r)
{
    struct sampler *s = r->sampler;
    struct err e = ERR_INIT;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return false;
    _cleanup_fd_ int out = fds[1], in = fds[0], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    char **argv = xcalloc(r->n + 2, sizeof(*argv));
    argv[0] = xstrdup(HELPER_NAME);
    for (size_t i = 0; i < r->n; i++)
        argv[i + 1] =
            xasprintf("%d:%d:%d", r->workers[i].rank, r->workers[i].pid, r->workers[i].recorded);
    const struct spawn_request req = {.path = "/proc/self/exe",
                                      .argv = argv,
                                      .envp = environ,
                                      .stdio = {null, out, null},
                                      .cgroup_fd = -1};
    int rc = null < 0 ? -1 : spawn(s->spawner, &req, &r->pid, &r->pidfd, &e);
    for (size_t i = 0; i <= r->n; i++)
        free(argv[i]);
    free(argv);
    if (rc < 0)
        return false;
    uv_pipe_init(s->loop, &r->pipe, 0);
    uvx_own(&r->scope, &r->pipe);
    if (uv_pipe_open(&r->pipe, in) < 0)
        return false;
    take_fd(&in);
    return uv_read_start((uv_stream_t *)&r->pipe, on_alloc, on_read) == 0;
}

static void begin(struct sampler *s, const struct sampler_worker *w, size_t n)
{
    struct run *r = s->run = xcalloc(1, sizeof(*r));
    *r = (struct run){.sampler = s, .pidfd = -1, .n = n};
    r->workers = xcalloc(n, sizeof(*w));
    if (n)
        memcpy(r->workers, w, n * sizeof(*w));
    uvx_scope_init(&r->scope, s->loop);
    uv_timer_init(s->loop, &r->timer);
    uvx_own(&r->scope, &r->timer);
    bool runs = n > 0 && spawn_helper(r);
    if (!runs)
        r->trouble = "the helper process could not be started";
    uv_timer_start(&r->timer, on_deadline, runs ? SAMPLER_MS : 0, 0);
}

void sampler_take(struct sampler *s, const struct sampler_worker *w, size_t n,
                  void (*on_done)(void *arg, const struct samples *all), void *arg)
{
    struct waiter *new = xcalloc(1, sizeof(*new));
    *new = (struct waiter){s->waiters, on_done, arg};
    s->waiters = new;
    if (!s->run)
        begin(s, w, n);
}

pid_t sampler_pid(const struct sampler *s)
{
    return s && s->run ? s->run->pid : 0;
}

void sampler_close(struct sampler *s, void (*on_closed)(void *arg), void *arg)
{
    if (!s) {
        on_closed(arg);
        return;
    }
    for (struct waiter *w = s->waiters, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    s->waiters = NULL;
    s->on_closed = on_closed;
    s->on_closed_arg = arg;
    if (s->run)
        finish(s->run);
    s->closing = true;
    free_if_closed(s);
}
