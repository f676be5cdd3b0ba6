#include "rendezvous/store/store_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "rendezvous/store/store_service.h"

/* Happy path: store_server_adopt -> on_poll ... on_poll. The timer runs only while a reader is
 * stalled. End: store_server_close -> both handles closed -> on_closed, and the server is freed. */
struct store_server {
    struct store_service service;
    uv_loop_t *loop;
    uv_poll_t poll; /* of the service's epoll set, while there is one */
    uv_timer_t tick;
    int handles;              /* not yet closed */
    bool said[STORE_REASONS]; /* in this round */
    void (*on_closed)(void *arg);
    void *arg;
};

static void on_tick(uv_timer_t *t);

static void server_turn(struct store_server *s)
{
    store_service_turn(&s->service, 0);
    int period = store_service_period_ms(&s->service);
    if (period < 0)
        uv_timer_stop(&s->tick);
    else if (!uv_is_active((uv_handle_t *)&s->tick))
        uv_timer_start(&s->tick, on_tick, (uint64_t)period, (uint64_t)period);
}

static void on_tick(uv_timer_t *t)
{
    server_turn(container_of(t, struct store_server, tick));
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    server_turn(container_of(poll, struct store_server, poll));
}

/* Logs a violation: the client sees only the end of its connection, because the protocol has no
 * error reply. One line per reason and round, whichever the client; with --verbose all of them. */
static void on_violation(void *arg, const struct store_conn *c, enum store_reason why)
{
    struct store_server *s = arg;
    struct netaddr a = {.len = sizeof(a.ss)};
    char text[ADDR_STRLEN + 16] = "a client that is gone", size[48] = "";
    unsigned long long asked = c->session.decoder.scan.asked;
    if (s->said[why] && log_get_level() < LOG_LEVEL_VERBOSE)
        return;
    s->said[why] = true;
    if (getpeername(c->fd, &a.sa, &a.len) == 0) {
        if (a.sa.sa_family == AF_UNIX) /* of a relay */
            strcpy(text, "a worker on another node");
        else
            netaddr_format(&a, text, sizeof(text));
    }
    if (asked)
        snprintf(size, sizeof(size), " (%llu %s)", asked,
                 why == STORE_ERR_KEY_COUNT ? "keys" : "bytes");
    else if (why == STORE_ERR_FULL_BYTES)
        snprintf(size, sizeof(size), " (no room for a call of %zu bytes)",
                 c->session.decoder.scan.at);
    log_notice("the workers' store hung up on %s: %s%s", text, store_reason_text(why), size);
}

struct store_server *store_server_new(uv_loop_t *loop, const struct store_server_opts *opts)
{
    struct store_server *s = xmalloc(sizeof(*s)); /* not cleared: a large buffer */
    const struct store_service_opts service = {.legacy_113 = opts->legacy_113,
                                               .stall_ms = opts->stall_ms,
                                               .on_violation = on_violation,
                                               .arg = s};
    store_service_init(&s->service, &service);
    s->loop = loop;
    uv_timer_init(loop, &s->tick);
    s->poll.data = s->tick.data = NULL; /* in no scope (uvx.h) */
    s->handles = 1;
    memset(s->said, 0, sizeof(s->said));
    return s;
}

/* The service is made before the first connection, since many jobs have none. */
static int server_open(struct store_server *s)
{
    int rc = store_service_open(&s->service);
    if (rc < 0)
        return rc;
    rc = uv_poll_init(s->loop, &s->poll, s->service.epoll);
    if (rc < 0) {
        close_fd(&s->service.epoll);
        return rc;
    }
    s->handles++;
    uv_poll_start(&s->poll, UV_READABLE, on_poll);
    return 0;
}

void store_server_adopt(struct store_server *s, int fd)
{
    int rc = s->service.epoll < 0 ? server_open(s) : 0;
    if (rc < 0) {
        log_verbose("store: cannot serve a connection: %s", uv_strerror(rc));
        close_fd(&fd);
        return;
    }
    store_service_adopt(&s->service, fd);
}

void store_server_reset(struct store_server *s)
{
    store_service_reset(&s->service);
    memset(s->said, 0, sizeof(s->said));
}

void store_server_get_stats(const struct store_server *s, struct store_server_stats *out)
{
    const struct store_shared *shared = &s->service.shared;
    *out = (struct store_server_stats){.connections = s->service.conns_n,
                                       .keys = shared->table.keys,
                                       .bytes = shared->table.bytes,
                                       .requests = shared->requests};
    memcpy(out->rejected_for, s->service.rejected, sizeof(out->rejected_for));
    for (int i = 0; i < STORE_REASONS; i++)
        out->rejected += out->rejected_for[i];
}

static void on_handle_closed(struct store_server *s)
{
    if (--s->handles)
        return;
    s->on_closed(s->arg);
    free(s);
}

static void on_poll_closed(uv_handle_t *h)
{
    on_handle_closed(container_of((uv_poll_t *)h, struct store_server, poll));
}

static void on_tick_closed(uv_handle_t *h)
{
    on_handle_closed(container_of((uv_timer_t *)h, struct store_server, tick));
}

void store_server_close(struct store_server *s, void (*on_closed)(void *arg), void *arg)
{
    s->on_closed = on_closed;
    s->arg = arg;
    if (s->service.epoll >= 0)
        uv_close((uv_handle_t *)&s->poll, on_poll_closed); /* takes the set from the loop at once */
    uv_close((uv_handle_t *)&s->tick, on_tick_closed);
    store_service_fini(&s->service);
}
