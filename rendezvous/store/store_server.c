#include "rendezvous/store/store_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "rendezvous/store/store_service.h"

/* Happy path: store_server_adopt -> on_poll ... on_poll -> gone -> on_conn_closed. The timer runs
 * only while a reader is stalled. End: store_server_close -> every handle closed -> on_closed, and
 * the server is freed. */
struct store_server {
    struct store_service service;
    uv_loop_t *loop;
    uv_timer_t tick;
    size_t handles;           /* not yet closed */
    bool said[STORE_REASONS]; /* in this round */
    void (*on_closed)(void *arg);
    void *arg;
};

struct server_conn {
    struct store_conn conn;
    uv_poll_t poll;
};

static void on_tick(uv_timer_t *t)
{
    struct store_server *s = container_of(t, struct store_server, tick);
    store_service_tick(&s->service, mono_ns());
    if (!store_service_has_stalled(&s->service))
        uv_timer_stop(t);
}

/* libuv treats a connection reset as an error and stops polling. */
static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct store_server *s = poll->data;
    struct server_conn *sc = container_of(poll, struct server_conn, poll);
    unsigned ready = status < 0 ? STORE_POLL_HANGUP : 0;
    if (events & UV_READABLE)
        ready |= STORE_POLL_IN;
    if (events & UV_WRITABLE)
        ready |= STORE_POLL_OUT;
    store_service_ready(&s->service, &sc->conn, ready);
    if (store_service_has_stalled(&s->service) && !uv_is_active((uv_handle_t *)&s->tick)) {
        uint64_t period_ms = s->service.stall_ns / 4000000 + 1;
        uv_timer_start(&s->tick, on_tick, period_ms, period_ms);
    }
}

static bool server_watch(struct store_service *s, struct store_conn *c)
{
    (void)s;
    struct server_conn *sc = container_of(c, struct server_conn, conn);
    if (!c->events)
        return uv_poll_stop(&sc->poll) == 0;
    int events = (c->events & STORE_POLL_IN ? UV_READABLE : 0) |
                 (c->events & STORE_POLL_OUT ? UV_WRITABLE : 0);
    return uv_poll_start(&sc->poll, events, on_poll) == 0;
}

static void server_on_handle_closed(struct store_server *s)
{
    if (--s->handles)
        return;
    s->on_closed(s->arg);
    free(s);
}

static void on_conn_closed(uv_handle_t *h)
{
    struct store_server *s = h->data;
    free(container_of((uv_poll_t *)h, struct server_conn, poll));
    server_on_handle_closed(s);
}

/* Logs a violation: the client sees only the end of its connection, because the protocol has no
 * error reply. One line per reason and round, whichever the client; with --verbose all of them. */
static void server_report(struct store_server *s, const struct store_conn *c, enum store_reason why)
{
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

static void gone(struct store_service *s, struct store_conn *c, enum store_reason why)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);
    if (why)
        server_report(container_of(s, struct store_server, service), c, why);
    uv_close((uv_handle_t *)&sc->poll,
             on_conn_closed); /* removes the descriptor from the loop at once */
    close(c->fd);
}

static const struct store_driver driver = {.watch = server_watch, .gone = gone};

struct store_server *store_server_new(uv_loop_t *loop, const struct store_server_opts *opts)
{
    struct store_server *s = xmalloc(sizeof(*s)); /* not cleared, because most of it is a buffer */
    s->loop = loop;
    store_service_init(&s->service, &driver, opts->legacy_113, opts->stall_ms);
    uv_timer_init(loop, &s->tick);
    s->tick.data = NULL; /* in no scope (uvx.h) */
    s->handles = 1;
    memset(s->said, 0, sizeof(s->said));
    return s;
}

void store_server_adopt(struct store_server *s, int fd)
{
    struct server_conn *sc = xmalloc(sizeof(*sc));
    int rc = uv_poll_init(s->loop, &sc->poll, fd);
    if (rc < 0) {
        log_verbose("store: cannot serve a connection: %s", uv_strerror(rc));
        close(fd);
        free(sc);
        return;
    }
    sc->poll.data = s;
    s->handles++;
    store_service_adopt(&s->service, &sc->conn, fd);
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

static void on_tick_closed(uv_handle_t *h)
{
    server_on_handle_closed(container_of((uv_timer_t *)h, struct store_server, tick));
}

void store_server_close(struct store_server *s, void (*on_closed)(void *arg), void *arg)
{
    s->on_closed = on_closed;
    s->arg = arg;
    store_service_fini(&s->service);
    uv_close((uv_handle_t *)&s->tick, on_tick_closed);
}
