/* tcp_notice.c: notices (this rank gives up) and questions (in which operation this rank waits for
 * another; what another has called) to other ranks, each over a connection of its own. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "collectives/net/tcp.h"
#include "core/clock.h"
#include "core/fd.h"

enum { BATCH = 32 };

struct delivery {
    int fd, to; /* a rank of the world */
};

static void open_connection(const struct world *w, struct delivery *d, int to)
{
    struct netaddr a;
    d->fd = -1;
    d->to = to;
    if (world_addr(w, to, &a, NULL) < 0)
        return;
    d->fd = fd_above_std(socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (d->fd >= 0 && connect(d->fd, &a.sa, a.len) < 0 && errno != EINPROGRESS)
        close_fd(&d->fd);
}

struct message {
    enum hello_kind kind;
    const void *body;
    size_t len;
};

static void send_message(const struct tcp_opts *o, const struct delivery *d,
                         const struct message *m)
{
    struct hello h = acceptor_hello(o->acceptor, m->kind, o->comm, d->to);
    struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)m->body, m->len}};
    struct msghdr out = {.msg_iov = iov, .msg_iovlen = 2};
    /* The buffer of a new connection takes it whole. If the connection is broken, other ranks
     * report the failure to this peer. */
    (void)!sendmsg(d->fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void deliver(const struct tcp_opts *o, struct delivery *d, const struct message *m)
{
    send_message(o, d, m);
    close_fd(&d->fd);
}

/* Returns when all have been delivered, or at end_ns. */
static void send_batch(const struct tcp_opts *o, struct delivery *d, int n, const struct message *m,
                       uint64_t end_ns)
{
    for (;;) {
        struct pollfd fds[BATCH];
        uint64_t now = mono_ns();
        int open = 0;
        for (int i = 0; i < n; i++) {
            fds[i] = (struct pollfd){.fd = d[i].fd, .events = POLLOUT};
            open += d[i].fd >= 0;
        }
        if (!open || now >= end_ns)
            break;
        if (poll(fds, (nfds_t)n, (int)((end_ns - now) / 1000000) + 1) < 0 && errno != EINTR)
            break;
        for (int i = 0; i < n; i++) {
            if (d[i].fd >= 0 && fds[i].revents)
                deliver(o, &d[i], m);
        }
    }
    for (int i = 0; i < n; i++)
        close_fd(&d[i].fd);
}

void tcp_send_notices(const struct tcp_opts *o, const struct notice *why, const char *told)
{
    const struct message m = {HELLO_NOTICE, why, sizeof(*why)};
    uint64_t end_ns = mono_ns() + TCP_NOTICE_MS * 1000000u;
    int sent = 0;
    for (int next = 0; next < o->size && sent < TCP_NOTICE_RANKS;) {
        struct delivery batch[BATCH];
        int n = 0;
        for (; next < o->size && n < BATCH; next++) {
            if (next != o->rank && !told[next])
                open_connection(o->acceptor->world, &batch[n++], o->world_ranks[next]);
        }
        send_batch(o, batch, n, &m, end_ns);
        sent += n;
    }
}

void tcp_send_asks(const struct tcp_opts *o, const struct ask *ask, const int *ranks, int n)
{
    const struct message m = {HELLO_ASK, ask, sizeof(*ask)};
    struct delivery batch[BATCH];
    for (int i = 0; i < n; i++)
        open_connection(o->acceptor->world, &batch[i], o->world_ranks[ranks[i]]);
    send_batch(o, batch, n, &m, mono_ns() + TCP_NOTICE_MS * 1000000u);
}

/* The peer has sent its answer, or has closed. Answers come whole: they are shorter than a packet.
 */
static void take_call(struct delivery *d, struct ask *call)
{
    if (recv(d->fd, call, sizeof(*call), MSG_DONTWAIT) != (ssize_t)sizeof(*call))
        call->seq = 0;
    close_fd(&d->fd);
}

void tcp_ask_calls(const struct tcp_opts *o, uint64_t seq, const int *ranks, int n,
                   struct ask *calls, uint64_t end_ns)
{
    const struct ask ask = {.seq = seq};
    const struct message m = {HELLO_ASK, &ask, sizeof(ask)};
    struct delivery to[BATCH];
    bool sent[BATCH] = {false};
    int open = 0;
    for (int i = 0; i < n; i++) {
        calls[i].seq = 0;
        open_connection(o->acceptor->world, &to[i], o->world_ranks[ranks[i]]);
    }
    do {
        struct pollfd fds[BATCH];
        for (int i = 0; i < n; i++)
            fds[i] = (struct pollfd){.fd = to[i].fd, .events = sent[i] ? POLLIN : POLLOUT};
        (void)!poll(fds, (nfds_t)n, n > 0);
        open = 0;
        for (int i = 0; i < n; i++) {
            if (to[i].fd >= 0 && fds[i].revents && sent[i])
                take_call(&to[i], &calls[i]);
            else if (to[i].fd >= 0 && fds[i].revents)
                send_message(o, &to[i], &m), sent[i] = true;
            open += to[i].fd >= 0;
        }
        acceptor_serve(o->acceptor, NULL);
    } while (open && mono_ns() < end_ns);
    for (int i = 0; i < n; i++)
        close_fd(&to[i].fd);
}
