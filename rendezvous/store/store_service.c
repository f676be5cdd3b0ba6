#include "rendezvous/store/store_service.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "core/mem.h"

#define SEND_TURN_MAX (1u << 20) /* bytes sent to one connection in its turn */
#define SEND_PIECES   64

/* --- Adopting ----------------------------------------------------------------------------------*/

static void set_option(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value,
               sizeof(value)); /* fails on a socket other than TCP, without harm */
}

void store_service_adopt(struct store_service *s, struct store_conn *c, int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1); /* to detect a client whose host is lost */
    c->fd = fd;
    c->eof = false;
    c->progress_ns = 0;
    store_session_init(&c->session, &s->shared, s->legacy_113);
    list_append(&s->conns, &c->link);
    list_init(&c->stalled);
    s->conns_n++;
    c->events = STORE_POLL_IN;
    if (!s->driver->watch(s, c))
        store_service_ready(s, c, STORE_POLL_HANGUP);
}

static void service_drop(struct store_service *s, struct store_conn *c, enum store_reason why)
{
    if (why)
        s->rejected[why]++;
    store_session_fini(&c->session);
    list_remove(&c->link);
    list_remove(&c->stalled);
    s->conns_n--;
    s->driver->gone(s, c, why);
}

/* --- Sending -----------------------------------------------------------------------------------*/

/* Sends what the socket takes. False: the connection is broken. */
static bool send_some(struct store_conn *c)
{
    struct store_out *o = &c->session.peer.out;
    size_t turn = 0;
    while (o->len && turn < SEND_TURN_MAX) {
        struct iovec iov[SEND_PIECES];
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = store_out_iov(o, iov, SEND_PIECES)};
        size_t offered = 0;
        for (size_t i = 0; i < m.msg_iovlen; i++)
            offered += iov[i].iov_len;
        ssize_t n = m.msg_iovlen == 1
                        ? send(c->fd, iov[0].iov_base, offered, MSG_DONTWAIT | MSG_NOSIGNAL)
                        : sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
        }
        store_session_sent(&c->session, (size_t)n);
        turn += (size_t)n;
        if ((size_t)n < offered)
            break;
    }
    if (turn && !list_alone(&c->stalled))
        c->progress_ns = mono_ns();
    return true;
}

/* Starts or ends the time limit of a connection whose client does not let it finish. */
static void note_stall(struct store_service *s, struct store_conn *c)
{
    size_t unsent = c->session.peer.out.len;
    bool stalled = unsent > STORE_UNREAD_MAX || (c->eof && unsent);
    if (!stalled) {
        list_remove(&c->stalled);
    } else if (list_alone(&c->stalled)) {
        list_append(&s->stalled, &c->stalled);
        c->progress_ns = mono_ns();
    }
}

/* Sends, then sets the events to wait for. May drop the connection. */
static void service_flush(struct store_service *s, struct store_conn *c)
{
    const struct store_out *o = &c->session.peer.out;
    if (o->oom || c->session.peer.violation) {
        service_drop(s, c, o->oom ? STORE_ERR_MEMORY : c->session.peer.violation);
        return;
    }
    if (o->len && !send_some(c)) {
        service_drop(s, c, STORE_OK);
        return;
    }
    if (c->eof && !o->len) {
        service_drop(s, c, STORE_OK);
        return;
    }
    note_stall(s, c);
    unsigned events = 0;
    if (!c->eof && o->len <= STORE_UNREAD_MAX)
        events |= STORE_POLL_IN;
    if (o->len)
        events |= STORE_POLL_OUT;
    if (events != c->events) {
        c->events = events;
        if (!s->driver->watch(s, c))
            service_drop(s, c, STORE_OK);
    }
}

static void flush_woken(struct store_service *s)
{
    struct store_session *woken;
    while ((woken = store_session_next_ready(&s->shared)))
        service_flush(s, container_of(woken, struct store_conn, session));
}

/* --- Receiving ---------------------------------------------------------------------------------*/

enum received { RECEIVED, NOTHING, END, GONE };

/* Receives once and applies the requests. GONE: the connection was dropped. */
static enum received receive(struct store_service *s, struct store_conn *c)
{
    ssize_t n = recv(c->fd, s->chunk, sizeof(s->chunk), MSG_DONTWAIT);
    if (n == 0)
        return END;
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return NOTHING;
        service_drop(s, c, STORE_OK);
        return GONE;
    }
    enum store_reason why = store_session_feed(&c->session, s->chunk, (size_t)n);
    if (!why)
        return RECEIVED;
    send_some(c);
    service_drop(s, c, why);
    return GONE;
}

void store_service_ready(struct store_service *s, struct store_conn *c, unsigned ready)
{
    enum received got = NOTHING;
    if (ready & STORE_POLL_HANGUP) {
        /* The answers are not read, but the earlier requests still apply. */
        while ((got = receive(s, c)) == RECEIVED)
            ;
        if (got != GONE)
            service_drop(s, c, STORE_OK);
    } else {
        if (ready & STORE_POLL_IN)
            got = receive(s, c);
        if (got == END) {
            c->eof = true;
            store_table_forget_wait(&s->shared.table, &c->session.peer);
        }
        if (got != GONE)
            service_flush(s, c);
    }
    flush_woken(s);
}

/* --- Stalled ones ------------------------------------------------------------------------------*/

bool store_service_has_stalled(const struct store_service *s)
{
    return !list_alone(&s->stalled);
}

void store_service_tick(struct store_service *s, uint64_t now_ns)
{
    for (struct list_node *i = s->stalled.next, *next; i != &s->stalled; i = next) {
        struct store_conn *c = container_of(i, struct store_conn, stalled);
        next = i->next;
        if (now_ns > c->progress_ns && now_ns - c->progress_ns >= s->stall_ns)
            service_drop(s, c, STORE_ERR_STALLED);
    }
}

/* --- Lifetime ----------------------------------------------------------------------------------*/

void store_service_init(struct store_service *s, const struct store_driver *driver, bool legacy_113,
                        unsigned stall_ms)
{
    s->driver = driver;
    s->legacy_113 = legacy_113;
    s->stall_ns = (stall_ms ? stall_ms : STORE_STALL_MS) * (uint64_t)1000000;
    s->conns_n = 0;
    s->shared.buffered = 0;
    s->shared.requests = 0;
    memset(s->rejected, 0, sizeof(s->rejected));
    store_table_init(&s->shared.table);
    list_init(&s->conns);
    list_init(&s->stalled);
}

static void drop_all(struct store_service *s)
{
    while (!list_alone(&s->conns))
        service_drop(s, container_of(s->conns.next, struct store_conn, link), STORE_OK);
}

void store_service_reset(struct store_service *s)
{
    drop_all(s);
    store_table_fini(&s->shared.table);
    s->shared.requests = 0;
    memset(s->rejected, 0, sizeof(s->rejected));
}

void store_service_fini(struct store_service *s)
{
    drop_all(s);
    store_table_fini(&s->shared.table);
}
