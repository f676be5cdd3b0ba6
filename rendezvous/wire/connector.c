#include "rendezvous/wire/connector.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/uvx.h"

#define STAGGER_MS 250 /* RFC 8305's delay between attempts */

struct attempt {
    uv_poll_t poll;
    struct connector *connector;
    struct netaddr addr;
    int fd; /* -1: not under way */
};

struct connector {
    uv_loop_t *loop;
    struct uvx_scope scope;
    uv_timer_t timer;
    struct attempt attempts[CONNECTOR_ADDRS_MAX];
    int n, started, running;
    uint64_t give_up; /* ms of the loop's clock */
    bool refused, over;
    int error; /* of the attempt that failed last; ECONNREFUSED is kept */
    connector_done_fn *done;
    void *arg;
};

static void free_connector(void *arg)
{
    free(arg);
}

/* Ends all attempts but the one whose descriptor is handed out. */
static void connector_end(struct connector *c)
{
    c->over = true;
    for (int i = 0; i < c->started; i++) {
        struct attempt *a = &c->attempts[i];
        if (a->fd < 0)
            continue;
        uv_poll_stop(&a->poll);
        close(a->fd);
        a->fd = -1;
    }
    uvx_scope_close(&c->scope, free_connector, c);
}

static void succeed(struct attempt *a)
{
    struct connector *c = a->connector;
    int fd = a->fd;
    struct netaddr addr = a->addr;
    uv_poll_stop(&a->poll);
    a->fd = -1;
    connector_end(c);
    c->done(c->arg, fd, &addr, false, "");
}

static void give_up(struct connector *c)
{
    const char *why = c->refused ? strerror(ECONNREFUSED)
                      : c->error ? strerror(c->error)
                                 : strerror(ETIMEDOUT);
    bool refused = c->refused && !c->running; /* not while another may yet be there */
    connector_end(c);
    c->done(c->arg, -1, NULL, refused, why);
}

static void failed(struct connector *c, int error)
{
    c->error = error;
    c->refused |= error == ECONNREFUSED;
}

/* A connection to ourselves: with nobody listening, the kernel may pick the very port that is
 * called as the caller's, and the two ends of nothing meet. */
static bool to_itself(int fd)
{
    struct netaddr a = {.len = sizeof(a.ss)}, b = {.len = sizeof(b.ss)};
    return getsockname(fd, &a.sa, &a.len) == 0 && getpeername(fd, &b.sa, &b.len) == 0 &&
           netaddr_same_ip(&a, &b) && netaddr_port(&a) == netaddr_port(&b);
}

static void start_next(struct connector *c);

static void on_writable(uv_poll_t *poll, int status, int events)
{
    (void)events;
    struct attempt *a = container_of(poll, struct attempt, poll);
    struct connector *c = a->connector;
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    else if (!error && status < 0) /* libuv has only EBADF for whatever went wrong */
        error = -status;
    if (!error && to_itself(a->fd))
        error = ECONNREFUSED;
    if (!error) {
        succeed(a);
        return;
    }
    uvx_close(poll); /* before another descriptor gets its number */
    close(a->fd);
    a->fd = -1;
    c->running--;
    failed(c, error);
    start_next(c);
}

/* Starts an attempt. False: it failed at once. */
static bool connector_start(struct connector *c, struct attempt *a)
{
    a->connector = c;
    a->fd = socket(a->addr.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->fd < 0) {
        failed(c, errno);
        return false;
    }
    int rc = connect(a->fd, &a->addr.sa, a->addr.len);
    if (rc < 0 && errno != EINPROGRESS) {
        failed(c, errno);
        close(a->fd);
        a->fd = -1;
        return false;
    }
    rc = uv_poll_init(c->loop, &a->poll, a->fd);
    if (rc < 0) {
        failed(c, -rc);
        close(a->fd);
        a->fd = -1;
        return false;
    }
    uvx_own(&c->scope, &a->poll);
    uv_poll_start(&a->poll, UV_WRITABLE, on_writable);
    c->running++;
    return true;
}

static void connector_on_timer(uv_timer_t *timer)
{
    struct connector *c = container_of(timer, struct connector, timer);
    if (c->started < c->n && uv_now(c->loop) < c->give_up)
        start_next(c);
    else
        give_up(c);
}

/* Starts attempts until one is under way; the timer comes back for the next one, or for the end. */
static void start_next(struct connector *c)
{
    bool started = false;
    while (!started && c->started < c->n)
        started = connector_start(c, &c->attempts[c->started++]);
    uint64_t now = uv_now(c->loop), wait = c->give_up > now ? c->give_up - now : 0;
    if (!started && !c->running)
        wait = 0;
    else if (c->started < c->n && wait > STAGGER_MS)
        wait = STAGGER_MS;
    uv_timer_start(&c->timer, connector_on_timer, wait, 0);
}

struct connector *connector_new(uv_loop_t *loop, const struct netaddr *addrs, int n,
                                uint64_t timeout_ms, connector_done_fn *done, void *arg)
{
    struct connector *c = xcalloc(1, sizeof(*c));
    c->loop = loop;
    c->n = n < CONNECTOR_ADDRS_MAX ? n : CONNECTOR_ADDRS_MAX;
    c->done = done;
    c->arg = arg;
    c->give_up = uv_now(loop) + timeout_ms;
    uvx_scope_init(&c->scope, loop);
    uv_timer_init(loop, &c->timer);
    uvx_own(&c->scope, &c->timer);
    for (int i = 0; i < c->n; i++) {
        c->attempts[i].addr = addrs[i];
        c->attempts[i].fd = -1;
    }
    start_next(c);
    return c;
}

void connector_cancel(struct connector *c)
{
    if (c && !c->over)
        connector_end(c);
}
