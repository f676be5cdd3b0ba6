#include "rendezvous/store/store_service.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"

#define SEND_TURN_MAX (1u << 20) /* bytes sent to one connection in its turn */
#define SEND_PIECES   64
#define EVENTS        256 /* of a turn */

/* --- Connections
 * ----------------------------------------------------------------------------------*/

static void service_drop(struct store_service *s, struct store_conn *c, enum store_reason why)
{
    if (why)
        s->rejected[why]++;
    if (why && s->opts.on_violation)
        s->opts.on_violation(s->opts.arg, c, why);
    store_session_fini(&c->session);
    list_remove(&c->link);
    list_remove(&c->stalled);
    s->conns_n--;
    /* Closing alone does not remove it from the epoll set while a fork()'s child has the connection
     * open. */
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    close_fd(&c->fd);
    list_append(&s->dropped, &c->link);
}

static void free_dropped(struct store_service *s)
{
    while (!list_alone(&s->dropped)) {
        struct store_conn *c = container_of(s->dropped.next, struct store_conn, link);
        list_remove(&c->link);
        free(c);
    }
}

static void set_option(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value,
               sizeof(value)); /* fails on a socket other than TCP, without harm */
}

static bool service_wait_for(struct store_service *s, struct store_conn *c, unsigned events)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    c->events = events;
    return epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &ev) == 0 ||
           (errno == ENOENT && epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->fd, &ev) == 0);
}

void store_service_adopt(struct store_service *s, int fd)
{
    struct store_conn *c = malloc(sizeof(*c));
    if (!c) {
        close(fd);
        return;
    }
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1); /* to detect a client whose host is lost */
    c->fd = fd;
    c->eof = false;
    c->progress_ns = 0;
    store_session_init(&c->session, &s->shared, s->opts.legacy_113);
    list_append(&s->conns, &c->link);
    list_init(&c->stalled);
    s->conns_n++;
    if (!service_wait_for(s, c, EPOLLIN))
        service_drop(s, c, STORE_OK);
}

/* --- Sending -----------------------------------------------------------------------------------*/

/* Sends as many bytes as the socket takes. False: the connection is broken. */
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
        events |= EPOLLIN;
    if (o->len)
        events |= EPOLLOUT;
    if (events != c->events && !service_wait_for(s, c, events))
        service_drop(s, c, STORE_OK);
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

static void on_conn_event(struct store_service *s, struct store_conn *c, unsigned events)
{
    enum received got = NOTHING;
    if (c->fd < 0) /* an earlier event of this turn has dropped the connection */
        return;
    if (events & (EPOLLERR | EPOLLHUP)) {
        /* The answers are not read, but the earlier requests still apply. */
        while ((got = receive(s, c)) == RECEIVED)
            ;
        if (got != GONE)
            service_drop(s, c, STORE_OK);
    } else {
        if (events & EPOLLIN)
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

/* --- Turns -------------------------------------------------------------------------------------*/

static void drop_stalled(struct store_service *s, uint64_t now_ns)
{
    uint64_t stall_ns = (uint64_t)s->opts.stall_ms * 1000000;
    for (struct list_node *i = s->stalled.next, *next; i != &s->stalled; i = next) {
        struct store_conn *c = container_of(i, struct store_conn, stalled);
        next = i->next;
        if (now_ns > c->progress_ns && now_ns - c->progress_ns >= stall_ns)
            service_drop(s, c, STORE_ERR_STALLED);
    }
}

int store_service_period_ms(const struct store_service *s)
{
    return list_alone(&s->stalled) ? -1 : (int)(s->opts.stall_ms / 4 + 1);
}

int store_service_watch(struct store_service *s, unsigned number, int fd, bool on)
{
    assert(number < STORE_WATCHED_MAX); /* less than any address of a connection */
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = number};
    return epoll_ctl(s->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &ev) < 0 ? -errno : 0;
}

unsigned store_service_turn(struct store_service *s, int timeout_ms)
{
    struct epoll_event ev[EVENTS];
    unsigned watched = 0;
    int n = epoll_wait(s->epoll, ev, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.u64 < STORE_WATCHED_MAX)
            watched |= 1u << ev[i].data.u64;
        else
            on_conn_event(s, ev[i].data.ptr, ev[i].events);
    }
    if (!list_alone(&s->stalled))
        drop_stalled(s, mono_ns());
    free_dropped(s);
    return watched;
}

/* --- Lifetime ----------------------------------------------------------------------------------*/

void store_service_init(struct store_service *s, const struct store_service_opts *opts)
{
    s->opts = *opts;
    s->opts.stall_ms = opts->stall_ms ? opts->stall_ms : STORE_STALL_MS;
    s->conns_n = 0;
    s->shared.buffered = 0;
    s->shared.requests = 0;
    memset(s->rejected, 0, sizeof(s->rejected));
    store_table_init(&s->shared.table);
    list_init(&s->conns);
    list_init(&s->stalled);
    list_init(&s->dropped);
    s->epoll = -1;
}

int store_service_open(struct store_service *s)
{
    s->epoll = fd_above_std(epoll_create1(EPOLL_CLOEXEC));
    return s->epoll < 0 ? -errno : 0;
}

static void drop_all(struct store_service *s)
{
    while (!list_alone(&s->conns))
        service_drop(s, container_of(s->conns.next, struct store_conn, link), STORE_OK);
    free_dropped(s);
    store_table_fini(&s->shared.table);
}

void store_service_reset(struct store_service *s)
{
    drop_all(s);
    s->shared.requests = 0;
    memset(s->rejected, 0, sizeof(s->rejected));
}

void store_service_fini(struct store_service *s)
{
    drop_all(s);
    close_fd(&s->epoll);
}
