/* tcp_notice.c: tells other ranks that this one gives up, or in which operation it waits for them.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "collectives/net/tcp.h"
#include "core/clock.h"
#include "core/fd.h"

enum { BATCH = 32 };

struct p2p_thread {
    int fd, to; /* a rank of the world */
};

static void set_out(const struct world *w, struct p2p_thread *k, int to)
{
    struct netaddr a;
    k->fd = -1;
    k->to = to;
    if (world_addr(w, to, &a, NULL) < 0)
        return;
    k->fd = fd_above_std(socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (k->fd >= 0 && connect(k->fd, &a.sa, a.len) < 0 && errno != EINPROGRESS)
        close_fd(&k->fd);
}

struct letter {
    enum hello_kind kind;
    const void *text;
    size_t len;
};

static void deliver(const struct tcp_opts *o, struct p2p_thread *k, const struct letter *l)
{
    struct hello h = acceptor_hello(o->acceptor, l->kind, o->comm, k->to);
    struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)l->text, l->len}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
    /* A new connection takes it whole; the peer hears it from others if this one is broken. */
    (void)!sendmsg(k->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    close_fd(&k->fd);
}

/* Until all have been delivered, or time is up. */
static void send_batch(const struct tcp_opts *o, struct p2p_thread *k, int n,
                       const struct letter *l, uint64_t end_ns)
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
                deliver(o, &k[i], l);
        }
    }
    for (int i = 0; i < n; i++)
        close_fd(&k[i].fd);
}

void tcp_send_notices(const struct tcp_opts *o, const struct notice *why, const char *told)
{
    const struct letter l = {HELLO_NOTICE, why, sizeof(*why)};
    uint64_t end_ns = mono_ns() + TCP_NOTICE_MS * 1000000u;
    int sent = 0;
    for (int next = 0; next < o->size && sent < TCP_NOTICE_RANKS;) {
        struct p2p_thread batch[BATCH];
        int n = 0;
        for (; next < o->size && n < BATCH; next++) {
            if (next != o->rank && !told[next])
                set_out(o->acceptor->world, &batch[n++], o->world_ranks[next]);
        }
        send_batch(o, batch, n, &l, end_ns);
        sent += n;
    }
}

void tcp_send_asks(const struct tcp_opts *o, const struct ask *ask, const int *ranks, int n)
{
    const struct letter l = {HELLO_ASK, ask, sizeof(*ask)};
    struct p2p_thread batch[BATCH];
    for (int i = 0; i < n; i++)
        set_out(o->acceptor->world, &batch[i], o->world_ranks[ranks[i]]);
    send_batch(o, batch, n, &l, mono_ns() + TCP_NOTICE_MS * 1000000u);
}
