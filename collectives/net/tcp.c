/* tcp.c: bytes over the connections that tcp_connect.c makes. */
#include "collectives/net/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "collectives/net/tcp_connect.h"
#include "core/fd.h"

static struct tcp *tcp_of(struct transport *t)
{
    return (struct tcp *)t; /* its first member */
}

/* An error of an established connection: what it was matters little, the peer is out of reach. */
static ssize_t io_error(struct tcp *tcp, int peer, int errnum, struct err *e)
{
    if (errnum == EAGAIN || errnum == EWOULDBLOCK || errnum == EINTR)
        return 0;
    if (errnum == ENOMEM || errnum == ENOBUFS)
        return err_sys(e, ENOMEM, "socket");
    tcp_drop(tcp, peer);
    return err_set(e, -EPIPE, "%s", strerror(errnum));
}

static ssize_t tcp_send(struct transport *t, int peer, const struct iovec *iov, int n,
                        struct err *e)
{
    struct tcp *tcp = tcp_of(t);
    int r = tcp_connected(tcp, peer, e);
    if (r <= 0)
        return r;
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
    ssize_t sent = sendmsg(tcp->conns[peer].fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent >= 0 ? sent : io_error(tcp, peer, errno, e);
}

static ssize_t tcp_recv(struct transport *t, int peer, const struct iovec *iov, int n,
                        struct err *e)
{
    struct tcp *tcp = tcp_of(t);
    int r = tcp_connected(tcp, peer, e);
    if (r <= 0)
        return r;
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
    ssize_t got = recvmsg(tcp->conns[peer].fd, &m, MSG_DONTWAIT);
    if (got > 0)
        return got;
    if (got < 0)
        return io_error(tcp, peer, errno, e);
    tcp_drop(tcp, peer);
    return err_set(e, -EPIPE, "it has closed the connection");
}

static int tcp_peek(struct transport *t, int peer, void *p, size_t len)
{
    struct tcp_conn *c = &tcp_of(t)->conns[peer];
    return c->state == TCP_OPEN && recv(c->fd, p, len, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)len;
}

static int tcp_wait(struct transport *t, const struct transport_want *wants, size_t n,
                    int timeout_ms, struct err *e)
{
    struct tcp *tcp = tcp_of(t);
    size_t used = tcp_poll_strangers(tcp, tcp->fds, &timeout_ms);
    for (size_t i = 0; i < n; i++) {
        short events = (short)((wants[i].send ? POLLOUT : 0) | (wants[i].recv ? POLLIN : 0));
        used += tcp_poll_conn(tcp, wants[i].peer, events, &tcp->fds[used], &timeout_ms);
    }
    if (poll(tcp->fds, used, timeout_ms) < 0 && errno != EINTR)
        return err_sys(e, errno, "poll");
    return tcp_serve_strangers(tcp, e);
}

static void tcp_free(struct transport *t)
{
    struct tcp *tcp = tcp_of(t);
    tcp_close_all(tcp);
    free(tcp->conns);
    free(tcp->fds);
    free(tcp);
}

static void tcp_give_up(struct transport *t, const struct notice *why)
{
    struct tcp *tcp = tcp_of(t);
    if (why && (!t->notified || tcp->world->size > TCP_NOTICE_RANKS))
        tcp_send_notices(tcp, why);
    tcp_close_all(tcp);
}

static const struct transport_ops g_ops = {
    .name = "tcp",
    .send = tcp_send,
    .recv = tcp_recv,
    .peek = tcp_peek,
    .wait = tcp_wait,
    .give_up = tcp_give_up,
    .free = tcp_free,
};

int tcp_new(struct transport **out, const struct world *w, struct err *e)
{
    size_t size = (size_t)w->size;
    struct tcp *tcp = calloc(1, sizeof(*tcp));
    struct tcp_conn *conns = calloc(size, sizeof(*conns));
    struct pollfd *fds = calloc(2 * size + TCP_STRANGERS + 1, sizeof(*fds));
    if (!tcp || !conns || !fds) {
        free(tcp);
        free(conns);
        free(fds);
        return err_set(e, -ENOMEM, "no memory for %d connections", w->size);
    }
    for (int i = 0; i < w->size; i++)
        conns[i].fd = -1;
    for (int i = 0; i < TCP_STRANGERS; i++)
        tcp->strangers[i].fd = -1;
    tcp->base.ops = &g_ops;
    tcp->world = w;
    tcp->conns = conns;
    tcp->fds = fds;
    *out = &tcp->base;
    return 0;
}
