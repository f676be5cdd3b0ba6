/* The happy path: sampler_take -> dlaunch-inspect is spawned with the question as its input, its
 * output read -> at its end finish().
 *
 *   it is missing, or cannot be spawned   each worker gets a note; on_done comes from the loop
 *   it crashes, or says what is no answer workers without a sample get a note
 *   it is not done at the deadline        killed; the same
 */
#include "agent/stacks/sampler.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/base/own_file.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/uvx.h"

extern char **environ;

struct waiter {
    struct waiter *next;
    void (*on_done)(void *arg, const struct samples *all);
    void *arg;
};

/* One run of dlaunch-inspect. */
struct run {
    struct sampler *sampler;
    struct uvx_scope scope;
    uv_pipe_t pipe;
    uv_timer_t timer;
    int pid, pidfd;
    struct inspect_worker *workers;
    size_t n;
    char bytes[16384]; /* of the program's output */
    struct inspect_reader reader;
    struct samples all;
    struct err trouble; /* why there are no further samples; code 0: the end of the program */
    bool over;
};

struct sampler {
    uv_loop_t *loop;
    struct spawner *spawner;
    const char *program; /* NULL: own_file_find() knows it */
    bool warned;
    struct run *run; /* NULL: none */
    struct waiter *waiters;
    bool closing;
    int nclosing; /* runs whose handles are being closed */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

struct sampler *sampler_new(uv_loop_t *loop, struct spawner *spawner, const char *program)
{
    struct sampler *s = xcalloc(1, sizeof(*s));
    s->loop = loop;
    s->spawner = spawner;
    s->program = program;
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
    inspect_reader_fini(&r->reader);
    samples_fini(&r->all);
    free(r->workers);
    free(r);
    free_if_closed(s);
}

/* ---------------------------------------------------------------------------------- its answer */

static bool has_sample(const struct samples *all, int rank)
{
    for (size_t i = 0; i < all->n; i++) {
        if (all->s[i].rank == rank)
            return true;
    }
    return false;
}

/* Whether a sample of the worker is wanted: it is one of them, and there is none yet. */
static bool is_asked(void *arg, int rank, int pid)
{
    const struct run *r = arg;
    for (size_t i = 0; i < r->n; i++) {
        if (r->workers[i].rank == rank)
            return r->workers[i].pid == pid && !has_sample(&r->all, rank);
    }
    return false;
}

/* Describes why dlaunch-inspect has ended before all samples were taken. */
static void explain_end(struct run *r)
{
    int exit_code;
    if (r->pid && !r->reader.greeted &&
        spawn_failure(r->sampler->spawner, r->pid, &exit_code, &r->trouble))
        return;
    err_set(&r->trouble, -ECHILD, INSPECT_NAME " has crashed");
}

/* Notes for the workers that dlaunch-inspect has not come to. */
static void add_missing(struct run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        if (has_sample(&r->all, r->workers[i].rank))
            continue;
        if (!r->trouble.code)
            explain_end(r);
        struct sample *s = samples_add(&r->all);
        s->rank = r->workers[i].rank;
        s->pid = r->workers[i].pid;
        snprintf(s->note, sizeof(s->note), "no stack: %.240s", r->trouble.msg);
    }
    samples_sort(&r->all);
}

static void kill_program(const struct run *r)
{
    if (r->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, r->pidfd, SIGKILL, NULL, 0);
}

/* The run is no longer the sampler's when the waiters are called: they may start the next one. */
static void finish(struct run *r)
{
    struct sampler *s = r->sampler;
    if (r->over)
        return;
    r->over = true;
    kill_program(r);
    close_fd(&r->pidfd);
    add_missing(r);
    s->run = NULL;
    s->nclosing++;
    uvx_scope_close(&r->scope, on_run_closed, r);
    struct waiter *w = s->waiters, *next;
    for (s->waiters = NULL; w; w = next) {
        next = w->next;
        w->on_done(w->arg, &r->all);
        free(w);
    }
}

static void on_deadline(uv_timer_t *t)
{
    struct run *r = container_of(t, struct run, timer);
    if (!r->trouble.code)
        err_set(&r->trouble, -ETIMEDOUT, INSPECT_NAME " was not done in time");
    finish(r);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct run *r = container_of(h, struct run, pipe);
    (void)suggested;
    *buf = uv_buf_init(r->bytes, sizeof(r->bytes));
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *buf)
{
    struct run *r = container_of(h, struct run, pipe);
    (void)buf;
    if (n < 0 || (n > 0 && inspect_read(&r->reader, r->bytes, (size_t)n, &r->trouble) < 0))
        finish(r);
}

/* ----------------------------------------------------------------------------------- its start */

/* The question as a file, which nobody waits for. -1: there is none. */
static int write_question(const struct run *r)
{
    struct buf b = BUF_INIT;
    _cleanup_fd_ int fd = memfd_create("question", MFD_CLOEXEC);
    inspect_put_version(&b);
    for (size_t i = 0; i < r->n; i++)
        inspect_put_worker(&b, &r->workers[i]);
    int rc = fd < 0 ? -1 : fd_write_all(fd, b.data, b.len);
    buf_fini(&b);
    return rc == 0 && lseek(fd, 0, SEEK_SET) == 0 ? take_fd(&fd) : -1;
}

static int start_program(struct run *r, const char *path, struct err *e)
{
    struct sampler *s = r->sampler;
    char *argv[] = {(char *)INSPECT_NAME, NULL};
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(e, errno, "a pipe for " INSPECT_NAME);
    _cleanup_fd_ int out = fds[1], in = fds[0], question = write_question(r);
    _cleanup_fd_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (question < 0 || null < 0)
        return err_sys(e, errno, "a question for " INSPECT_NAME);
    const struct spawn_request req = {.path = path,
                                      .argv = argv,
                                      .envp = environ,
                                      .stdio = {question, out, null},
                                      .cgroup_fd = -1};
    int rc = spawn(s->spawner, &req, &r->pid, &r->pidfd, e);
    if (rc < 0)
        return err_wrap(e, INSPECT_NAME);
    uv_pipe_init(s->loop, &r->pipe, 0);
    uvx_own(&r->scope, &r->pipe);
    if ((rc = uv_pipe_open(&r->pipe, in)) < 0)
        return err_set(e, rc, INSPECT_NAME ": %s", uv_strerror(rc));
    take_fd(&in);
    return uv_read_start((uv_stream_t *)&r->pipe, on_alloc, on_read);
}

/* A job goes on without dlaunch-inspect, and its owner gets one line about that. */
static int find_and_start(struct run *r, struct err *e)
{
    struct sampler *s = r->sampler;
    char path[PATH_MAX];
    const char *program = s->program ? s->program : own_file_find(INSPECT_NAME, path, sizeof(path));
    if (program)
        return start_program(r, program, e);
    err_set(e, -ENOENT, INSPECT_NAME " is missing: it belongs to dlaunch, into %.150s", path);
    if (!s->warned)
        log_warn("no stacks can be shown: %s", e->msg);
    s->warned = true;
    return e->code;
}

static void begin(struct sampler *s, const struct inspect_worker *w, size_t n)
{
    struct run *r = s->run = xcalloc(1, sizeof(*r));
    r->sampler = s;
    r->pidfd = -1;
    r->n = n;
    r->workers = xcalloc(n, sizeof(*w));
    if (n)
        memcpy(r->workers, w, n * sizeof(*w));
    r->reader = (struct inspect_reader)INSPECT_READER(&r->all, is_asked, r);
    uvx_scope_init(&r->scope, s->loop);
    uv_timer_init(s->loop, &r->timer);
    uvx_own(&r->scope, &r->timer);
    bool runs = n > 0 && find_and_start(r, &r->trouble) == 0;
    uv_timer_start(&r->timer, on_deadline, runs ? SAMPLER_MS : 0, 0);
}

void sampler_take(struct sampler *s, const struct inspect_worker *w, size_t n,
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
