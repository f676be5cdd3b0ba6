/* The helper's process on the loop: facts_start -> its output is read -> at its end finish(). One
 * that is not done at the deadline is killed. */
#include "agent/doctor/facts.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/fd.h"
#include "core/mem.h"
#include "core/uvx.h"

extern char **environ;

enum { READ_BYTES = 65536, OUTPUT_MAX = 1 << 20 };

struct facts_run {
    struct uvx_scope scope;
    uv_pipe_t pipe;
    uv_timer_t timer;
    pid_t pid;
    int pidfd;
    struct buf output;
    const char *why;
    bool over;
    void (*on_done)(void *arg, json_t *facts, const char *why);
    void *arg;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void end_helper(struct facts_run *r)
{
    if (r->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, r->pidfd, SIGKILL, NULL, 0);
    close_fd(&r->pidfd);
    r->over = true;
}

static void finish(struct facts_run *r)
{
    if (r->over)
        return;
    end_helper(r);
    uv_timer_stop(&r->timer);
    json_t *facts = json_loadb((const char *)r->output.data, r->output.len, 0, NULL);
    r->on_done(r->arg, facts, r->why ? r->why : "the helper process has crashed");
    json_decref(facts);
}

static void on_deadline(uv_timer_t *t)
{
    struct facts_run *r = container_of(t, struct facts_run, timer);
    if (!r->why)
        r->why = "a name server, a driver or a file system does not answer";
    finish(r);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct facts_run *r = container_of(h, struct facts_run, pipe);
    (void)suggested;
    xbuf_reserve(&r->output, READ_BYTES);
    *buf = uv_buf_init((char *)r->output.data + r->output.len, READ_BYTES);
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *buf)
{
    struct facts_run *r = container_of(h, struct facts_run, pipe);
    (void)buf;
    if (n > 0)
        r->output.len += (size_t)n;
    if (n < 0 || r->output.len > OUTPUT_MAX) {
        uv_read_stop(h);
        finish(r);
    }
}

static bool spawn_helper(struct facts_run *r, uv_loop_t *loop, struct spawner *spawner,
                         const json_t *question)
{
    struct err e = ERR_INIT;
    int fds[2];
    char *text = json_dumps(question, JSON_COMPACT);
    char *const argv[] = {(char *)FACTS_NAME, text, NULL};
    if (!text || pipe2(fds, O_CLOEXEC) < 0) {
        free(text);
        return false;
    }
    _cleanup_fd_ int out = fds[1], in = fds[0], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const struct spawn_request req = {.path = "/proc/self/exe",
                                      .argv = argv,
                                      .envp = environ,
                                      .stdio = {null, out, null},
                                      .cgroup_fd = -1};
    int rc = null < 0 ? -1 : spawn(spawner, &req, &r->pid, &r->pidfd, &e);
    free(text);
    if (rc < 0)
        return false;
    uv_pipe_init(loop, &r->pipe, 0);
    uvx_own(&r->scope, &r->pipe);
    if (uv_pipe_open(&r->pipe, in) < 0)
        return false;
    take_fd(&in);
    return uv_read_start((uv_stream_t *)&r->pipe, on_alloc, on_read) == 0;
}

struct facts_run *facts_start(uv_loop_t *loop, struct spawner *spawner, const json_t *question,
                              void (*on_done)(void *arg, json_t *facts, const char *why), void *arg)
{
    struct facts_run *r = xcalloc(1, sizeof(*r));
    json_int_t more = json_integer_value(json_object_get(question, "node_check_ms"));
    *r = (struct facts_run){.pidfd = -1, .on_done = on_done, .arg = arg};
    uvx_scope_init(&r->scope, loop);
    uv_timer_init(loop, &r->timer);
    uvx_own(&r->scope, &r->timer);
    if (!spawn_helper(r, loop, spawner, question))
        r->why = "the helper process could not be started";
    uv_timer_start(&r->timer, on_deadline, r->why ? 0 : (uint64_t)(FACTS_MS + more), 0);
    return r;
}

pid_t facts_pid(const struct facts_run *r)
{
    return r && !r->over ? r->pid : 0;
}

static void on_scope_closed(void *arg)
{
    struct facts_run *r = arg;
    void (*on_closed)(void *arg) = r->on_closed;
    void *on_closed_arg = r->on_closed_arg;
    buf_fini(&r->output);
    free(r);
    on_closed(on_closed_arg);
}

void facts_close(struct facts_run *r, void (*on_closed)(void *arg), void *arg)
{
    if (!r) {
        on_closed(arg);
        return;
    }
    if (!r->over)
        end_helper(r);
    r->on_closed = on_closed;
    r->on_closed_arg = arg;
    uvx_scope_close(&r->scope, on_scope_closed, r);
}
