#include "rendezvous/wire/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/tls.h"
#include "core/uvx.h"
#include "rendezvous/wire/pending.h"

#define BACKLOG           4096
#define ACCEPTS_PER_TURN  256
#define PAUSE_MS          100
#define GARBAGE_LINE_NS   30000000000u   /* between two lines about one source, at first, */
#define GARBAGE_LINE_MAX  3600000000000u /* and while connections are refused again and again */
#define GARBAGE_LINES     16             /* in that time, about all sources together */
#define STORE_OPCODE_LAST 18

/* A connection that has not sent its first byte. */
struct silent {
    uv_poll_t poll;
    struct endpoint *endpoint;
    struct pending pending;
    struct netaddr peer;
    int fd;
};

struct endpoint {
    uv_loop_t *loop;
    uv_poll_t listener;
    uv_timer_t pause; /* of accepting */
    struct endpoint_events events;
    struct netaddr addr;
    char ip[ADDR_STRLEN]; /* of addr; "" for all interfaces */
    int fd, reserve;
    struct pending_queue pending;
    struct map garbage; /* the sources that were reported since garbage_ns -> anything */
    uint64_t garbage_ns, garbage_line_ns;
    unsigned unsaid; /* connections that were refused since then without a line */
    uint64_t pause_said_ms;
    unsigned open; /* handles not yet closed */
    bool closing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* ------------------------------------------------------------------------------------ listening */

static int listen_socket(const struct endpoint_bind *b, struct netaddr *addr, struct err *e)
{
    char where[HOST_MAX + 8];
    netaddr_format(addr, where, sizeof(where));
    _cleanup_fd_ int fd =
        socket(addr->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return err_sys(e, errno, "socket for %s", where);
    int one = 1, only = !b->any;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (addr->sa.sa_family == AF_INET6 &&
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)) < 0)
        return err_sys(e, errno, "IPV6_V6ONLY for %s", where);
    if (bind(fd, &addr->sa, addr->len) < 0 || listen(fd, BACKLOG) < 0)
        return err_sys(e, errno, "cannot listen on %s", where);
    return take_fd(&fd);
}

int endpoint_listen(const struct endpoint_bind *b, struct err *e)
{
    struct netaddr addr = b->addr;
    int port = netaddr_port(&addr), fd;
    if (!b->any)
        return listen_socket(b, &addr, e);
    netaddr_parse_ip(&addr, "::", port);
    fd = listen_socket(b, &addr, e);
    if (fd >= 0 || fd == -EADDRINUSE || fd == -EACCES)
        return fd;
    netaddr_parse_ip(&addr, "0.0.0.0", port); /* a host without IPv6 */
    return listen_socket(b, &addr, e);
}

/* --------------------------------------------------------------------------------------- silent */

/* A handle is closed; the last one frees the endpoint. */
static void one_closed(struct endpoint *p)
{
    if (--p->open > 0)
        return;
    void (*on_closed)(void *arg) = p->on_closed;
    void *arg = p->on_closed_arg;
    pending_fini(&p->pending);
    map_fini(&p->garbage, NULL);
    free(p);
    on_closed(arg);
}

static void free_silent(uv_handle_t *handle)
{
    struct silent *s = handle->data;
    struct endpoint *p = s->endpoint;
    free(s);
    one_closed(p);
}

/* Removes the connection from the queue. The caller owns the descriptor that is returned. */
static int drop_silent(struct silent *s)
{
    int fd = s->fd;
    pending_remove(&s->endpoint->pending, &s->pending);
    uv_poll_stop(&s->poll);
    uv_close((uv_handle_t *)&s->poll, free_silent);
    return fd;
}

/* Takes fd. */
static void give_silent(struct endpoint *p, int fd, const struct netaddr *peer)
{
    if (p->events.on_silent)
        p->events.on_silent(p->events.arg, fd, peer);
    else
        close(fd);
}

static void hang_up(struct silent *s, const char *why)
{
    char who[ADDR_STRLEN];
    struct endpoint *p = s->endpoint;
    struct netaddr peer = s->peer;
    log_verbose("a connection from %s: %s", netaddr_ip(&peer, who), why);
    give_silent(p, drop_silent(s), &peer);
}

static void endpoint_drop_pending(struct pending *p, const char *why)
{
    hang_up(container_of(p, struct silent, pending), why);
}

/* -------------------------------------------------------------------------------------- routing */

/* A host with one IPv6 address has the whole network of 64 bits. */
static size_t source_of(const struct netaddr *peer, uint8_t out[16])
{
    const struct in6_addr *in6 = &peer->in6.sin6_addr;
    if (peer->sa.sa_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(in6)) {
        memcpy(out, in6, 8);
        return 8;
    }
    if (peer->sa.sa_family == AF_INET6)
        memcpy(out, in6->s6_addr + 12, 4);
    else
        memcpy(out, &peer->in.sin_addr, 4);
    return 4;
}

/* Begins another period of reports when the last one is over: a longer period if the last one saw
 * refusals. */
static void begin_reports(struct endpoint *p, uint64_t now)
{
    uint64_t age = now - p->garbage_ns, line_ns = p->garbage_line_ns;
    if (p->garbage_ns && age < line_ns)
        return;
    bool again = p->garbage_ns && age < 2 * line_ns;
    p->garbage_line_ns = !again                           ? GARBAGE_LINE_NS
                         : line_ns < GARBAGE_LINE_MAX / 2 ? 2 * line_ns
                                                          : GARBAGE_LINE_MAX;
    p->garbage_ns = now;
    map_fini(&p->garbage, NULL);
}

void endpoint_complain(struct endpoint *p, const struct netaddr *peer, const char *what)
{
    char ip[ADDR_STRLEN], more[64] = "";
    uint8_t source[16];
    begin_reports(p, uv_hrtime());
    size_t len = source_of(peer, source);
    void **value = p->garbage.n < GARBAGE_LINES ? map_put(&p->garbage, source, len) : NULL;
    if (!value || *value) {
        p->unsaid++;
        return;
    }
    *value = p;
    if (p->unsaid)
        snprintf(more, sizeof(more), "; %u more since the last such line", p->unsaid);
    p->unsaid = 0;
    log_notice("refused %s, from %s to port %d%s", what, netaddr_ip(peer, ip),
               netaddr_port(&p->addr), more);
}

/* Reads the first byte and leaves it in the socket: 1, 0 at the end, -EAGAIN: not yet received. */
static int peek(int fd, uint8_t *first)
{
    ssize_t n;
    do
        n = recv(fd, first, 1, MSG_PEEK);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? -EAGAIN : 0;
    return (int)n;
}

/* Takes fd. */
static void route(struct endpoint *p, int fd, const struct netaddr *peer, uint8_t first)
{
    char what[64];
    if (first == 'D' || first == TLS_FIRST_BYTE) {
        p->events.on_agent(p->events.arg, fd, peer, first == TLS_FIRST_BYTE);
    } else if (first <= STORE_OPCODE_LAST && p->events.on_store) {
        p->events.on_store(p->events.arg, fd, peer);
    } else {
        close(fd);
        snprintf(what, sizeof(what), "a connection that begins with 0x%02x, none of ours", first);
        endpoint_complain(p, peer, what);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct silent *s = poll->data;
    struct endpoint *p = s->endpoint;
    struct netaddr peer = s->peer;
    uint8_t first;
    int n = peek(s->fd, &first);
    if (n == -EAGAIN)
        return;
    int fd = drop_silent(s); /* free for another handle */
    if (n > 0)
        route(p, fd, &peer, first);
    else
        close(fd);
}

static void watch_silent(struct endpoint *p, int fd, const struct netaddr *peer)
{
    struct silent *s = xcalloc(1, sizeof(*s));
    if (uv_poll_init(p->loop, &s->poll, fd) < 0) {
        close(fd);
        free(s);
        return;
    }
    p->open++;
    s->poll.data = s;
    s->endpoint = p;
    s->peer = *peer;
    s->fd = fd;
    pending_add(&p->pending, &s->pending, netaddr_is_loopback(peer) ? NULL : peer);
    if (uv_poll_start(&s->poll, UV_READABLE, on_readable) < 0)
        hang_up(s, "it cannot be watched");
    else
        pending_limit(&p->pending);
}

static void accepted(struct endpoint *p, int fd, const struct netaddr *peer)
{
    uint8_t first;
    int n = peek(fd, &first);
    if (n > 0)
        route(p, fd, peer, first);
    else if (n == -EAGAIN && pending_from(&p->pending, peer) < PENDING_PER_ADDRESS)
        watch_silent(p, fd, peer);
    else if (n == -EAGAIN)
        give_silent(p, fd, peer);
    else
        close(fd);
}

/* ------------------------------------------------------------------------------------ accepting */

static void on_pause_over(uv_timer_t *timer);

/* Handles the lack of descriptors. The reserved one is used to accept and close the connection,
 * which would otherwise wait for ever. Then accepting pauses until others have closed some. */
static void out_of_descriptors(struct endpoint *p, int error)
{
    uint64_t now = uv_now(p->loop);
    close_fd(&p->reserve);
    int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
    close_fd(&fd);
    p->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    uv_poll_stop(&p->listener);
    uv_timer_start(&p->pause, on_pause_over, PAUSE_MS, 0);
    if (p->pause_said_ms == 0 || now - p->pause_said_ms >= GARBAGE_LINE_NS / 1000000) {
        p->pause_said_ms = now;
        log_warn("port %d: cannot accept connections: %s", netaddr_port(&p->addr), strerror(error));
    }
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct endpoint *p = poll->data;
    for (int i = 0; i < ACCEPTS_PER_TURN && !p->closing; i++) {
        struct netaddr peer = {.len = sizeof(peer.ss)};
        int fd = accept4(p->fd, &peer.sa, &peer.len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            accepted(p, fd, &peer);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            out_of_descriptors(p, errno);
            return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            break;
        } /* otherwise the peer has disconnected already */
    }
}

static void on_pause_over(uv_timer_t *timer)
{
    struct endpoint *p = timer->data;
    uv_poll_start(&p->listener, UV_READABLE, on_listener);
}

/* ------------------------------------------------------------------------------- open and close */

static bool unspecified(const struct netaddr *a)
{
    return a->sa.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr)
                                       : a->in.sin_addr.s_addr == htonl(INADDR_ANY);
}

int endpoint_open(struct endpoint **out, uv_loop_t *loop, int listen_fd, int nodes,
                  const struct endpoint_events *events, struct err *e)
{
    struct endpoint *p = xcalloc(1, sizeof(*p));
    p->loop = loop;
    p->fd = listen_fd;
    p->events = *events;
    p->addr.len = sizeof(p->addr.ss);
    int rc = uv_poll_init(loop, &p->listener, listen_fd);
    if (rc < 0 || getsockname(listen_fd, &p->addr.sa, &p->addr.len) < 0) {
        close(listen_fd);
        free(p);
        return uvx_err(e, rc < 0 ? rc : -errno, "listening socket");
    }
    if (!unspecified(&p->addr))
        netaddr_ip(&p->addr, p->ip);
    uv_timer_init(loop, &p->pause);
    pending_init(&p->pending, loop, PENDING_MAX(nodes), endpoint_drop_pending);
    p->listener.data = p->pause.data = p->pending.timer.data = p;
    p->open = 3;
    p->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    map_init(&p->garbage);
    uv_poll_start(&p->listener, UV_READABLE, on_listener);
    *out = p;
    return 0;
}

int endpoint_port(const struct endpoint *p)
{
    return netaddr_port(&p->addr);
}

const char *endpoint_addr(const struct endpoint *p)
{
    return p->ip;
}

void endpoint_abandon(struct endpoint *p)
{
    shutdown(p->fd, SHUT_RDWR);
}

static void endpoint_on_handle_closed(uv_handle_t *handle)
{
    one_closed(handle->data);
}

void endpoint_close(struct endpoint *p, void (*on_closed)(void *arg), void *arg)
{
    p->closing = true;
    p->on_closed = on_closed;
    p->on_closed_arg = arg;
    for (struct pending *s; (s = pending_first(&p->pending));)
        close(drop_silent(container_of(s, struct silent, pending)));
    uv_poll_stop(&p->listener);
    close_fd(&p->fd);
    close_fd(&p->reserve);
    uv_close((uv_handle_t *)&p->listener, endpoint_on_handle_closed);
    uv_close((uv_handle_t *)&p->pause, endpoint_on_handle_closed);
    uv_close((uv_handle_t *)&p->pending.timer, endpoint_on_handle_closed);
}
