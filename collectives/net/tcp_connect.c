#include "collectives/net/tcp_connect.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/netaddr.h"

enum {
    RETRY_MS = 5,      /* before a connection that ended early is tried again */
    PATIENCE_MS = 200, /* with a stranger who says nothing while others wait for his place */
};

static struct hello make_hello(const struct tcp *tcp, enum hello_kind kind, int to)
{
    return (struct hello){.magic = HELLO_MAGIC,
                          .version = HELLO_VERSION,
                          .kind = (uint16_t)kind,
                          .epoch = tcp->world->epoch,
                          .counter = tcp->world->counter,
                          .instance = tcp->world->instance,
                          .from = (uint32_t)tcp->world->rank,
                          .to = (uint32_t)to};
}

/* Whether the hello is from a rank of our world, to us. */
static bool is_ours(const struct tcp *tcp, const struct hello *h)
{
    const struct world *w = tcp->world;
    return h->magic == HELLO_MAGIC && h->version == HELLO_VERSION && h->epoch == w->epoch &&
           h->counter == w->counter && h->instance == w->instance && h->to == (uint32_t)w->rank &&
           h->from < (uint32_t)w->size && h->from != h->to;
}

static void tune(int fd, const struct netaddr *peer)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        /* A host that has vanished says nothing. Only silence counts, not a peer that computes. */
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 10},
        {IPPROTO_TCP, TCP_KEEPINTVL, 5},
        {IPPROTO_TCP, TCP_KEEPCNT, 4},
    };
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
    /* Some hosts' default paces every connection, which costs most of the speed within a host. */
    if (netaddr_is_loopback(peer))
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/* ---------------------------------------------------------------------------------- connecting */

void tcp_drop(struct tcp *tcp, int peer)
{
    close_fd(&tcp->conns[peer].fd);
    tcp->conns[peer].state = TCP_GONE;
}

static int try_later(struct tcp_conn *c)
{
    close_fd(&c->fd);
    c->state = TCP_NONE;
    c->retry_ns = mono_ns() + RETRY_MS * 1000000u;
    return 0;
}

static int connect_failed(struct tcp *tcp, int peer, const struct netaddr *to, int errnum,
                          struct err *e)
{
    char where[ADDR_STRLEN + 8];
    if (errnum == ECONNRESET)
        return try_later(&tcp->conns[peer]);
    tcp_drop(tcp, peer);
    if (errnum == ECONNREFUSED)
        return err_set(e, -EPIPE, "it does not listen any more");
    return err_sys(e, errnum, "cannot connect to rank %d at %s", peer,
                   netaddr_format(to, where, sizeof(where)));
}

static int start_connect(struct tcp *tcp, int peer, struct err *e)
{
    struct tcp_conn *c = &tcp->conns[peer];
    struct netaddr to;
    if (mono_ns() < c->retry_ns)
        return 0;
    int r = world_addr(tcp->world, peer, &to, e);
    if (r < 0)
        return r;
    c->fd = socket(to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return err_sys(e, errno, "socket");
    tune(c->fd, &to);
    c->state = TCP_CONNECTING;
    if (connect(c->fd, &to.sa, to.len) < 0 && errno != EINPROGRESS && errno != EINTR)
        return connect_failed(tcp, peer, &to, errno, e);
    return 0;
}

static int finish_connect(struct tcp *tcp, int peer, struct err *e)
{
    struct tcp_conn *c = &tcp->conns[peer];
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    int errnum = 0;
    socklen_t len = sizeof(errnum);
    if (poll(&p, 1, 0) <= 0)
        return 0;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &errnum, &len) < 0)
        errnum = errno;
    if (errnum) {
        struct netaddr to;
        int r = world_addr(tcp->world, peer, &to, e);
        return r < 0 ? r : connect_failed(tcp, peer, &to, errnum, e);
    }
    /* A new connection takes 32 bytes whole, or it is broken. */
    struct hello h = make_hello(tcp, HELLO_DATA, peer);
    if (send(c->fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(h))
        return try_later(c);
    c->state = TCP_GREETED;
    c->have = 0;
    return 0;
}

static int hear_answer(struct tcp *tcp, int peer, struct err *e)
{
    struct tcp_conn *c = &tcp->conns[peer];
    ssize_t n =
        recv(c->fd, (char *)&c->answer + c->have, sizeof(c->answer) - c->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return try_later(c);
    c->have += (uint32_t)n;
    if (c->have < sizeof(c->answer))
        return 0;
    if (!is_ours(tcp, &c->answer) || c->answer.from != (uint32_t)peer) {
        struct netaddr to;
        char where[ADDR_STRLEN + 8] = "its address";
        if (world_addr(tcp->world, peer, &to, NULL) == 0)
            netaddr_format(&to, where, sizeof(where));
        tcp_drop(tcp, peer);
        return err_set(e, -EPROTO, "what answers at %s is not rank %d of this job", where, peer);
    }
    c->state = TCP_OPEN;
    return 1;
}

int tcp_connected(struct tcp *tcp, int peer, struct err *e)
{
    struct tcp_conn *c = &tcp->conns[peer];
    int r = 0;
    switch (c->state) {
    case TCP_OPEN:
        return 1;
    case TCP_GONE:
        return err_set(e, -EPIPE, "it has closed the connection");
    case TCP_NONE:
        r = tcp->world->rank < peer ? start_connect(tcp, peer, e) : tcp_serve_strangers(tcp, e);
        break;
    case TCP_CONNECTING:
        r = finish_connect(tcp, peer, e);
        break;
    case TCP_GREETED:
        r = hear_answer(tcp, peer, e);
        break;
    }
    return r < 0 ? r : c->state == TCP_OPEN;
}

void tcp_close_all(struct tcp *tcp)
{
    for (int i = 0; i < tcp->world->size; i++)
        tcp_drop(tcp, i);
    for (int i = 0; i < TCP_STRANGERS; i++)
        close_fd(&tcp->strangers[i].fd);
}

/* ----------------------------------------------------------------------------------- strangers */

/* A place for the next one: a free one, or that of the one who has kept silent longest. */
static struct tcp_stranger *find_place(struct tcp *tcp, uint64_t now)
{
    struct tcp_stranger *oldest = &tcp->strangers[0];
    for (int i = 0; i < TCP_STRANGERS; i++) {
        struct tcp_stranger *s = &tcp->strangers[i];
        if (s->fd < 0)
            return s;
        if (s->since_ns < oldest->since_ns)
            oldest = s;
    }
    if (now - oldest->since_ns < PATIENCE_MS * 1000000u)
        return NULL;
    close_fd(&oldest->fd);
    return oldest;
}

/* 1: one has come; 0: none. */
static int accept_one(struct tcp *tcp, struct err *e)
{
    uint64_t now = mono_ns();
    struct tcp_stranger *s = find_place(tcp, now);
    if (!s)
        return 0;
    s->fd = accept4(tcp->world->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s->fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            return err_sys(e, errno, "accept");
        return errno == ECONNABORTED || errno == EINTR; /* that one is lost: look again */
    }
    s->since_ns = now;
    s->have = 0;
    return 1;
}

static void adopt(struct tcp *tcp, struct tcp_stranger *s)
{
    int peer = (int)s->said.hello.from;
    struct tcp_conn *c = &tcp->conns[peer];
    if (peer > tcp->world->rank || c->state != TCP_NONE)
        return;
    struct sockaddr_storage ss;
    struct netaddr from = {0};
    socklen_t len = sizeof(ss);
    if (getpeername(s->fd, (struct sockaddr *)&ss, &len) == 0)
        netaddr_from_sockaddr(&from, (struct sockaddr *)&ss);
    struct hello h = make_hello(tcp, HELLO_DATA, peer);
    if (send(s->fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(h))
        return;
    tune(s->fd, &from);
    c->fd = take_fd(&s->fd);
    c->state = TCP_OPEN;
}

static void take_notice(struct tcp *tcp, const struct tcp_stranger *s)
{
    struct transport *t = &tcp->base;
    if (t->notified)
        return;
    t->notice = s->said.notice;
    t->notice.host[sizeof(t->notice.host) - 1] = t->notice.text[sizeof(t->notice.text) - 1] = '\0';
    t->notice_from = (int)s->said.hello.from;
    t->notified = true;
}

/* Reads what a stranger has to say; he has left his place when it is said, or when it was wrong. */
static void hear(struct tcp *tcp, struct tcp_stranger *s)
{
    for (;;) {
        bool notice = s->have >= sizeof(s->said.hello);
        size_t want = notice ? sizeof(s->said) : sizeof(s->said.hello);
        ssize_t n = recv(s->fd, (char *)&s->said + s->have, want - s->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0)
            break;
        s->have += (size_t)n;
        if (s->have < want)
            continue;
        if (notice) {
            take_notice(tcp, s);
            break;
        }
        if (!is_ours(tcp, &s->said.hello))
            break;
        if (s->said.hello.kind == HELLO_NOTICE)
            continue;
        if (s->said.hello.kind == HELLO_DATA)
            adopt(tcp, s);
        break;
    }
    close_fd(&s->fd);
}

int tcp_serve_strangers(struct tcp *tcp, struct err *e)
{
    int r;
    do {
        r = accept_one(tcp, e);
        for (int i = 0; i < TCP_STRANGERS; i++) {
            if (tcp->strangers[i].fd >= 0)
                hear(tcp, &tcp->strangers[i]);
        }
    } while (r > 0);
    return r;
}

/* ------------------------------------------------------------------------------------- polling */

static void at_most(int *timeout_ms, int ms)
{
    if (*timeout_ms > ms)
        *timeout_ms = ms;
}

size_t tcp_poll_strangers(struct tcp *tcp, struct pollfd *fds, int *timeout_ms)
{
    size_t n = 0;
    for (int i = 0; i < TCP_STRANGERS; i++) {
        if (tcp->strangers[i].fd >= 0)
            fds[n++] = (struct pollfd){.fd = tcp->strangers[i].fd, .events = POLLIN};
    }
    if (n < TCP_STRANGERS)
        fds[n++] = (struct pollfd){.fd = tcp->world->listen_fd, .events = POLLIN};
    else
        at_most(timeout_ms, PATIENCE_MS);
    return n;
}

size_t tcp_poll_conn(struct tcp *tcp, int peer, short events, struct pollfd *fd, int *timeout_ms)
{
    struct tcp_conn *c = &tcp->conns[peer];
    switch (c->state) {
    case TCP_CONNECTING:
        events = POLLOUT;
        break;
    case TCP_GREETED:
        events = POLLIN;
        break;
    case TCP_OPEN:
        break;
    case TCP_NONE:
        if (tcp->world->rank < peer)
            at_most(timeout_ms, RETRY_MS);
        return 0; /* the listener wakes us */
    case TCP_GONE:
        *timeout_ms = 0;
        return 0;
    }
    *fd = (struct pollfd){.fd = c->fd, .events = events};
    return 1;
}

/* ------------------------------------------------------------------------------------- notices */

enum { BATCH = 32 };

struct courier {
    int fd, to;
};

static void set_out(struct tcp *tcp, struct courier *k, int to)
{
    struct netaddr a;
    k->fd = -1;
    k->to = to;
    if (world_addr(tcp->world, to, &a, NULL) < 0)
        return;
    k->fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (k->fd >= 0 && connect(k->fd, &a.sa, a.len) < 0 && errno != EINPROGRESS)
        close_fd(&k->fd);
}

static void deliver(struct tcp *tcp, struct courier *k, const struct notice *why)
{
    struct hello h = make_hello(tcp, HELLO_NOTICE, k->to);
    struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)why, sizeof(*why)}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
    /* A new connection takes it whole; the peer hears it from others if this one is broken. */
    (void)!sendmsg(k->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    close_fd(&k->fd);
}

/* Until all have been delivered, or time is up. */
static void send_batch(struct tcp *tcp, struct courier *k, int n, const struct notice *why,
                       uint64_t end_ns)
{
    for (;;) {
        struct pollfd fds[BATCH];
        uint64_t now = mono_ns();
        int open = 0;
        for (int i = 0; i < n; i++) {
            fds[i] = (struct pollfd){.fd = k[i].fd, .events = POLLOUT};
            open += k[i].fd >= 0;
        }
        if (!open || now >= end_ns)
            break;
        if (poll(fds, (nfds_t)n, (int)((end_ns - now) / 1000000) + 1) < 0 && errno != EINTR)
            break;
        for (int i = 0; i < n; i++) {
            if (k[i].fd >= 0 && fds[i].revents)
                deliver(tcp, &k[i], why);
        }
    }
    for (int i = 0; i < n; i++)
        close_fd(&k[i].fd);
}

void tcp_send_notices(struct tcp *tcp, const struct notice *why)
{
    uint64_t end_ns = mono_ns() + TCP_NOTICE_MS * 1000000u;
    int told = 0;
    for (int connected = 1; connected >= 0; connected--) {
        for (int next = 0; next < tcp->world->size && told < TCP_NOTICE_RANKS;) {
            struct courier batch[BATCH];
            int n = 0;
            for (; next < tcp->world->size && n < BATCH; next++) {
                bool open = tcp->conns[next].state == TCP_OPEN;
                bool dead = next == why->rank && why->code == DLCOLL_EPEER;
                if (next != tcp->world->rank && !dead && open == connected)
                    set_out(tcp, &batch[n++], next);
            }
            send_batch(tcp, batch, n, why, end_ns);
            told += n;
        }
    }
}
