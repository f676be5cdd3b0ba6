/* tcp_notice.c: notices (this rank gives up) and questions (in which operation this rank waits for
 * another; what another has called) to other ranks, each over a connection of its own. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "collectives/wire/tcp.h"
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

/* True: the message has been sent. */
static bool send_message(const struct tcp_opts *o, const struct delivery *d,
                         const struct message *m)
{
    struct hello h = acceptor_hello(o->acceptor, m->kind, o->comm, d->to);
    struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)m->body, m->len}};
    struct msghdr out = {.msg_iov = iov, .msg_iovlen = 2};
    /* The buffer of a new connection takes it whole. If the connection is broken, other ranks
     * report the failure to this peer. */
    return sendmsg(d->fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
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

bool tcp_ask_call(const struct tcp_opts *o, int rank, uint64_t seq, struct tcp_question *q,
                  struct ask *call)
{
    const struct ask ask = {.seq = seq};
    const struct message m = {HELLO_ASK, &ask, sizeof(ask)};
    struct delivery d = {.fd = q->fd, .to = o->world_ranks[rank]};
    if (d.fd < 0) {
        open_connection(o->acceptor->world, &d, d.to);
        *q = (struct tcp_question){.fd = d.fd};
    }
    if (d.fd >= 0 && !q->sent) /* the call fails while there is no connection */
        q->sent = send_message(o, &d, &m);
    ssize_t n = q->sent ? recv(d.fd, call, sizeof(*call), MSG_DONTWAIT) : -1;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    close_fd(&q->fd); /* answered or refused: the next call asks anew */
    return n == (ssize_t)sizeof(*call) && call->seq;
}
