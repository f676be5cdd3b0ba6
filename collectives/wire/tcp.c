#include "collectives/wire/tcp.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives/base/task.h"
#include "collectives/bootstrap/settings.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/netaddr.h"

enum {
    RETRY_MS = 5,   /* before a connection that ended early is tried again */
    AWAITED_MS = 1, /* another thread may accept the awaited connection */
    AWAITED_IN_TASK_MS = 500,
    PROBE_MS = 1000, /* before a peer that has not connected is probed, and probed again */
    LOOK_MS = 1000,  /* before the kernel is asked again whether the peer's host is silent */
    SILENT_TRIES = 3,
    KEEP_IDLE_S = 10, /* together TCP_SILENT_MS */
    KEEP_INTERVAL_S = 5,
    KEEP_COUNT = 4,
};
_Static_assert(1000 * (KEEP_IDLE_S + KEEP_INTERVAL_S * KEEP_COUNT) == TCP_SILENT_MS,
               "with and without data under way silence is noticed after the same time");

enum state { TCP_NONE, TCP_CONNECTING, TCP_GREETED, TCP_OPEN, TCP_CLOSED, TCP_STATES };

struct conn {
    int fd; /* -1 unless CONNECTING, GREETED or OPEN */
    enum state state;
    bool probe;          /* CONNECTING, GREETED: only to see whether the peer's process lives */
    bool refused;        /* the last probe */
    int errnum;          /* OPEN: an error that was noticed beside send and recv, or 0 */
    int unanswered;      /* probes of late that not even the peer's host has answered... */
    uint64_t silent_ns;  /* when the first of these began */
    uint64_t since_ns;   /* CONNECTING: when it began */
    uint64_t look_ns;    /* GREETED, OPEN: not before is the kernel asked for silence */
    uint64_t retry_ns;   /* NONE: not before */
    uint64_t probe_ns;   /* NONE, while the peer must connect: not before */
    struct hello answer; /* GREETED: the first `have` bytes of the answer */
    uint64_t settings;   /* OPEN: the peer's */
    uint32_t have;
};

struct tcp {
    struct transport base;
    struct tcp_opts o;
    struct conn *conns; /* by stream */
    struct pollfd *fds; /* for the acceptor, and one want each way per stream */
    bool closed;
};

static struct tcp *tcp_of(struct transport *t)
{
    return (struct tcp *)t; /* the first member of the hello */
}

static int peer_of(const struct tcp *tcp, int stream)
{
    return stream % tcp->base.size;
}

static int socket_of(const struct tcp *tcp, int stream)
{
    return stream / tcp->base.size;
}

/* The only place where a connection changes its state. */
static void move_to(struct conn *c, enum state to)
{
#define TO(state) (1u << TCP_##state)
    static const unsigned next[TCP_STATES] = {
        [TCP_NONE] = TO(NONE) | TO(CONNECTING) | TO(OPEN) | TO(CLOSED),
        [TCP_CONNECTING] = TO(NONE) | TO(GREETED) | TO(OPEN) | TO(CLOSED),
        [TCP_GREETED] = TO(NONE) | TO(OPEN) | TO(CLOSED),
        [TCP_OPEN] = TO(NONE) | TO(CLOSED),
        [TCP_CLOSED] = TO(CLOSED),
    };
#undef TO
    assert(next[c->state] >> to & 1);
    assert((c->fd >= 0) == (to == TCP_CONNECTING || to == TCP_GREETED || to == TCP_OPEN));
    c->state = to;
    c->errnum = 0;
    if (to != TCP_CONNECTING && to != TCP_GREETED)
        c->probe = false;
}

/* Whether this rank may connect; it does when it has something to send, or TCP_LOWER. */
static bool may_connect(const struct tcp *tcp, int stream)
{
    return tcp->o.rule == TCP_SENDER || tcp->o.rank < peer_of(tcp, stream);
}

static bool may_accept(const struct tcp *tcp, int stream)
{
    return tcp->o.rule == TCP_SENDER || tcp->o.rank > peer_of(tcp, stream);
}

static int address(const struct tcp *tcp, int peer, struct netaddr *to, struct err *e)
{
    return world_addr(tcp->o.acceptor->world, tcp->o.world_ranks[peer], to, e);
}

/* ----------------------------------------------------------------------------------- connecting */

/* A host's default that paces its connections (bbr) costs most of the speed between processes that
 * run close together. Its replacements are tried in turn: not every host permits cubic. */
static void choose_congestion(int fd, const char *wanted)
{
    static const char *const unpaced[] = {"cubic", "reno"};
    char now[32] = "";
    socklen_t len = sizeof(now) - 1;
    if (wanted[0]) {
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted, (socklen_t)strlen(wanted));
        return;
    }
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &len) < 0 || strncmp(now, "bbr", 3) != 0)
        return;
    for (size_t i = 0; i < 2; i++) {
        if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, unpaced[i],
                       (socklen_t)strlen(unpaced[i])) == 0)
            return;
    }
}

int tcp_try_congestion(const char *name)
{
    _cleanup_fd_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0; /* connections will report why */
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) < 0 ? -errno
                                                                                          : 0;
}

static void tune(const struct tcp *tcp, int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        /* Sets options that detect a host that has vanished. The kernel of a peer that computes
         * answers. While data is under way, there is no keepalive: is_silent(). */
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL_S},
        {IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT},
    };
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
    choose_congestion(fd, tcp->o.congestion);
}

static void tcp_drop(struct tcp *tcp, int stream)
{
    close_fd(&tcp->conns[stream].fd);
    move_to(&tcp->conns[stream], TCP_CLOSED);
}

static int try_later(struct conn *c)
{
    close_fd(&c->fd);
    if (c->probe)
        c->probe_ns = mono_ns() + PROBE_MS * 1000000ull;
    else
        c->retry_ns = mono_ns() + RETRY_MS * 1000000u;
    move_to(c, TCP_NONE);
    return 0;
}

/* Whether a failed connect() shows that nothing will come of the connection. For a probe, whose
 * peer must connect, it takes two failures in a row: after one refusal, a connection that the peer
 * made before it ended, with data, may still be on its way. Where a launcher is, it tells of hosts
 * that are lost; where none is, a host is taken for lost that answers nothing for TCP_SILENT_MS. */
static bool proves_end(const struct tcp *tcp, struct conn *c, int errnum)
{
    bool again = c->refused, launched = tcp->o.acceptor->world->segment.base;
    bool silent = errnum == ETIMEDOUT || errnum == EHOSTUNREACH || errnum == ENETUNREACH;
    c->refused = errnum == ECONNREFUSED;
    if (silent && c->unanswered++ == 0)
        c->silent_ns = c->since_ns;
    if (!silent)
        c->unanswered = 0;
    silent = c->unanswered > 1 && mono_ns() - c->silent_ns >= TCP_SILENT_MS * 1000000ull;
    return !c->probe || (c->refused && again) || (silent && !launched);
}

static int connect_failed(struct tcp *tcp, int stream, int errnum, struct err *e)
{
    struct netaddr to;
    char where[ADDR_STRLEN + 8];
    if (errnum == ECONNRESET || !proves_end(tcp, &tcp->conns[stream], errnum))
        return try_later(&tcp->conns[stream]);
    tcp_drop(tcp, stream);
    if (errnum == ECONNREFUSED)
        return err_set(e, -EPIPE, "its process no longer listens");
    int r = address(tcp, peer_of(tcp, stream), &to, e);
    if (r == 0)
        r = err_sys(e, errnum, "cannot connect to rank %d at %s", peer_of(tcp, stream),
                    netaddr_format(&to, where, sizeof(where)));
    return r == -ETIMEDOUT ? -EHOSTUNREACH : r; /* the operation has not timed out */
}

/* Accepted connections and the program need descriptors, too. */
static bool is_scarce(int fd)
{
    struct rlimit most;
    return getrlimit(RLIMIT_NOFILE, &most) == 0 && (rlim_t)fd >= most.rlim_cur / 2;
}

static int start_connect(struct tcp *tcp, int stream, struct err *e)
{
    struct conn *c = &tcp->conns[stream];
    struct netaddr to;
    int r = address(tcp, peer_of(tcp, stream), &to, e);
    if (r < 0)
        return r;
    c->fd = fd_above_std(socket(to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (c->fd < 0)
        return c->probe ? try_later(c) : err_sys(e, errno, "socket");
    if (c->probe && is_scarce(c->fd))
        return try_later(c);
    tune(tcp, c->fd);
    c->since_ns = mono_ns();
    move_to(c, TCP_CONNECTING);
    if (connect(c->fd, &to.sa, to.len) < 0 && errno != EINPROGRESS && errno != EINTR)
        return connect_failed(tcp, stream, errno, e);
    return 0;
}

static struct hello make_hello(const struct tcp *tcp, int stream, int number)
{
    struct hello h = acceptor_hello(tcp->o.acceptor, HELLO_DATA, tcp->o.comm,
                                    tcp->o.world_ranks[peer_of(tcp, stream)]);
    h.channel = (uint16_t)tcp->o.channel;
    h.socket = (uint16_t)number;
    return h;
}

static int finish_connect(struct tcp *tcp, int stream, struct err *e)
{
    struct conn *c = &tcp->conns[stream];
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    int errnum = 0;
    socklen_t len = sizeof(errnum);
    if (poll(&p, 1, 0) <= 0) /* the kernel itself would wait for one or two minutes */
        return mono_ns() - c->since_ns < TCP_SILENT_MS * 1000000ull
                   ? 0
                   : connect_failed(tcp, stream, ETIMEDOUT, e);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &errnum, &len) < 0)
        errnum = errno;
    if (errnum)
        return connect_failed(tcp, stream, errnum, e);
    /* A new connection takes its first few bytes whole, or it is broken. */
    struct hello h = make_hello(tcp, stream, socket_of(tcp, stream));
    h.kind = c->probe ? HELLO_PROBE : HELLO_DATA;
    if (send(c->fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(h))
        return try_later(c);
    move_to(c, TCP_GREETED);
    c->refused = false;
    c->unanswered = 0;
    c->have = 0;
    return 0;
}

/* Whether the answer, of whatever version, is from the rank that was called, in this job. */
static bool answer_fits(const struct tcp *tcp, int stream, const struct hello *a)
{
    struct hello want = make_hello(tcp, stream, socket_of(tcp, stream));
    return a->magic == want.magic && a->epoch == want.epoch && a->counter == want.counter &&
           a->instance == want.instance && a->comm == want.comm && a->to == want.from &&
           a->from == want.to;
}

static int refuse_answer(struct tcp *tcp, int stream, struct err *e)
{
    const struct hello answer = tcp->conns[stream].answer;
    struct netaddr to;
    char where[ADDR_STRLEN + 8] = "its address", text[256];
    bool fits = answer_fits(tcp, stream, &answer);
    if (address(tcp, peer_of(tcp, stream), &to, NULL) == 0)
        netaddr_format(&to, where, sizeof(where));
    tcp_drop(tcp, stream);
    if (!fits)
        return err_set(e, -EPROTO, "the process that answers at %s is not rank %d of this job",
                       where, peer_of(tcp, stream));
    return err_set(e, -EPROTONOSUPPORT, "%s",
                   acceptor_versions(tcp->o.acceptor, &answer, text, sizeof(text)));
}

static int read_answer(struct tcp *tcp, int stream, struct err *e)
{
    struct conn *c = &tcp->conns[stream];
    size_t want = c->have < HELLO_COMMON ? HELLO_COMMON : sizeof(c->answer);
    ssize_t n = recv(c->fd, (char *)&c->answer + c->have, want - c->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return try_later(c);
    c->have += (uint32_t)n;
    if (c->have < want)
        return 0;
    if (c->answer.version != HELLO_VERSION || !answer_fits(tcp, stream, &c->answer))
        return refuse_answer(tcp, stream, e);
    if (want == HELLO_COMMON)
        return read_answer(tcp, stream, e);
    if (c->answer.kind == HELLO_GONE) {
        tcp_drop(tcp, stream);
        return err_set(e, -EPIPE, "it has left the communicator");
    }
    c->settings = c->answer.settings;
    move_to(c, TCP_OPEN);
    /* A connection of the peer that crossed this one has arrived by now; it is closed there. */
    return may_accept(tcp, stream) ? tcp_admit(&tcp->base, e) : 0;
}

/* ------------------------------------------------------------------------------------ accepting */

static int tcp_find_rank(const struct tcp *tcp, int world_rank)
{
    int guess = world_rank < tcp->base.size ? world_rank : tcp->base.size - 1;
    if (tcp->o.world_ranks[guess] == world_rank)
        return guess;
    for (int i = 0; i < tcp->base.size; i++) {
        if (tcp->o.world_ranks[i] == world_rank)
            return i;
    }
    return -1;
}

/* Whether a connection of the peer replaces this rank's own attempt. It does until this rank has
 * sent its hello; of two hellos that cross, both ends keep the connection of the lower rank. */
static bool may_adopt(const struct tcp *tcp, int stream)
{
    enum state state = tcp->conns[stream].state;
    return may_accept(tcp, stream) &&
           (state == TCP_NONE || state == TCP_CONNECTING ||
            (state == TCP_GREETED &&
             (tcp->conns[stream].probe || peer_of(tcp, stream) < tcp->o.rank)));
}

/* Whether the peer has closed its connection. While the world is being made a rank may fail and
 * start over with the same number; this is then a connection of its first attempt. */
static bool has_given_up(int fd)
{
    char none;
    ssize_t n = recv(fd, &none, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

static void tcp_adopt(struct tcp *tcp, struct accepted_conn *a)
{
    _cleanup_fd_ int fd = take_fd(&a->fd);
    int peer = tcp_find_rank(tcp, (int)a->hello.from);
    int stream = a->hello.socket * tcp->base.size + peer;
    if (peer < 0 || a->hello.socket >= tcp->base.streams || !may_adopt(tcp, stream))
        return;
    struct hello h = make_hello(tcp, stream, a->hello.socket);
    if (tcp->o.comm == 0 && has_given_up(fd))
        return;
    if (send(fd, &h, sizeof(h), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(h))
        return;
    tune(tcp, fd);
    close_fd(&tcp->conns[stream].fd);
    tcp->conns[stream].fd = take_fd(&fd);
    tcp->conns[stream].settings = a->hello.settings;
    move_to(&tcp->conns[stream], TCP_OPEN);
}

int tcp_admit(struct transport *t, struct err *e)
{
    struct tcp *tcp = tcp_of(t);
    struct accepted_conn a;
    int r = acceptor_serve(tcp->o.acceptor, e);
    while (!tcp->closed && acceptor_take(tcp->o.acceptor, tcp->o.comm, tcp->o.channel, &a))
        tcp_adopt(tcp, &a);
    return r;
}

/* Leaves NONE: connects, or probes a peer that must connect and has not. */
static int tcp_begin(struct tcp *tcp, int stream, bool connects, struct err *e)
{
    struct conn *c = &tcp->conns[stream];
    uint64_t now = mono_ns();
    if (!connects && !c->probe_ns)
        c->probe_ns = now + PROBE_MS * 1000000ull;
    if (now < c->retry_ns || (!connects && now < c->probe_ns))
        return 0;
    c->probe = !connects;
    return start_connect(tcp, stream, e);
}

/* An error of an established connection. Whatever it is, the peer cannot be reached. */
static ssize_t io_error(struct tcp *tcp, int stream, int errnum, struct err *e)
{
    if (errnum == EAGAIN || errnum == EWOULDBLOCK || errnum == EINTR)
        return 0;
    if (errnum == ENOMEM || errnum == ENOBUFS)
        return err_sys(e, ENOMEM, "socket");
    tcp_drop(tcp, stream);
    return err_set(e, -EPIPE, "%s", strerror(errnum));
}

/* The peer has set otherwise what must be the same on all ranks. */
static int refuse_settings(const struct tcp *tcp, int stream, struct err *e)
{
    const struct world *w = tcp->o.acceptor->world;
    char name[WORLD_NAME_MAX], which[256];
    return err_set(e, -EPROTONOSUPPORT, "%s has different settings from rank %d: %s",
                   world_name(w, tcp->o.world_ranks[peer_of(tcp, stream)], name), w->rank,
                   settings_differ(tcp->conns[stream].settings, w->settings, which, sizeof(which)));
}

/* 1: open. 0: not yet; the connection has been advanced as far as possible without blocking.
 * -EPIPE: the peer has closed it; another -errno with a text: cannot be made. */
static int connected(struct tcp *tcp, int stream, bool sends, struct err *e)
{
    struct conn *c = &tcp->conns[stream];
    bool connects = may_connect(tcp, stream) && (sends || tcp->o.rule == TCP_LOWER);
    int r = 0;
    if (c->state != TCP_OPEN && c->state != TCP_CLOSED && may_accept(tcp, stream))
        r = tcp_admit(&tcp->base, e);
    if (r < 0)
        return r;
    if (c->probe && connects)
        try_later(c);
    switch (c->state) {
    case TCP_OPEN:
        if (c->errnum)
            return (int)io_error(tcp, stream, c->errnum, e);
        return c->settings == tcp->o.acceptor->world->settings ? 1
                                                               : refuse_settings(tcp, stream, e);
    case TCP_CLOSED:
        return err_set(e, -EPIPE, "it has closed the connection");
    case TCP_NONE:
        r = tcp_begin(tcp, stream, connects, e);
        break;
    case TCP_CONNECTING:
        r = finish_connect(tcp, stream, e);
        break;
    case TCP_GREETED:
        r = c->errnum ? connect_failed(tcp, stream, c->errnum, e) : read_answer(tcp, stream, e);
        break;
    case TCP_STATES:
        break;
    }
    return r < 0 ? r : c->state == TCP_OPEN;
}

/* Whether the peer's host has been silent although it owes an acknowledgement, and the kernel has
 * asked for that again and again: so a pause of this host is none of that one. A peer that takes
 * nothing closes its window, and its kernel acknowledges each probe of that. */
static bool is_silent(int fd)
{
    struct tcp_info i = {0};
    socklen_t len = sizeof(i);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &len) == 0 &&
           i.tcpi_last_ack_recv >= TCP_SILENT_MS &&
           i.tcpi_retransmits + i.tcpi_probes >= SILENT_TRIES;
}

void tcp_look(struct transport *t, int stream)
{
    struct conn *c = &tcp_of(t)->conns[stream];
    uint64_t now = mono_ns();
    if ((c->state != TCP_OPEN && c->state != TCP_GREETED) || now < c->look_ns)
        return;
    c->look_ns = now + LOOK_MS * 1000000ull;
    if (is_silent(c->fd))
        c->errnum = ETIMEDOUT;
}

bool tcp_host_answers(struct transport *t, int stream)
{
    enum state state = tcp_of(t)->conns[stream].state;
    return state == TCP_GREETED || state == TCP_OPEN;
}

uint64_t tcp_unanswered_ns(struct transport *t, int stream)
{
    const struct conn *c = &tcp_of(t)->conns[stream];
    if (!c->unanswered && c->state != TCP_CONNECTING)
        return 0;
    return mono_ns() - (c->unanswered ? c->silent_ns : c->since_ns);
}

int tcp_open_fd(struct transport *t, int stream)
{
    struct conn *c = &tcp_of(t)->conns[stream];
    return c->state == TCP_OPEN ? c->fd : -1;
}

/* --------------------------------------------------------------------------------------- moving */

static ssize_t tcp_send(struct transport *t, int stream, const struct iovec *iov, int n,
                        struct err *e)
{
    struct tcp *tcp = tcp_of(t);
    int r = connected(tcp, stream, true, e);
    if (r <= 0)
        return r;
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
    ssize_t sent = sendmsg(tcp->conns[stream].fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent >= 0 ? sent : io_error(tcp, stream, errno, e);
}

static ssize_t tcp_recv(struct transport *t, int stream, const struct iovec *iov, int n,
                        struct err *e)
{
    struct tcp *tcp = tcp_of(t);
    int r = connected(tcp, stream, false, e);
    if (r <= 0)
        return r;
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
    ssize_t got = recvmsg(tcp->conns[stream].fd, &m, MSG_DONTWAIT);
    if (got > 0)
        return got;
    if (got < 0)
        return io_error(tcp, stream, errno, e);
    tcp_drop(tcp, stream);
    return err_set(e, -EPIPE, "it has closed the connection");
}

static int tcp_peek(struct transport *t, int stream, void *p, size_t len)
{
    struct conn *c = &tcp_of(t)->conns[stream];
    if (c->state != TCP_OPEN)
        return 0;
    ssize_t n = recv(c->fd, p, len, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        c->errnum = errno;
    return n == (ssize_t)len;
}

/* -------------------------------------------------------------------------------------- polling */

static void at_most(int *timeout_ms, int ms)
{
    if (ms == AWAITED_MS && task_inside()) /* the task is rung for */
        ms = AWAITED_IN_TASK_MS;
    if (*timeout_ms > ms)
        *timeout_ms = ms;
}

static size_t poll_conn(struct tcp *tcp, int stream, short events, struct pollfd *fd,
                        int *timeout_ms)
{
    struct conn *c = &tcp->conns[stream];
    if (c->probe)
        at_most(timeout_ms, AWAITED_MS);
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
        at_most(timeout_ms, may_accept(tcp, stream) ? AWAITED_MS : RETRY_MS);
        return 0;
    case TCP_CLOSED:
    case TCP_STATES:
        *timeout_ms = 0;
        return 0;
    }
    *fd = (struct pollfd){.fd = c->fd, .events = events};
    return 1;
}

static int tcp_wait(struct transport *t, const struct transport_want *wants, size_t n,
                    int timeout_ms, struct err *e)
{
    struct tcp *tcp = tcp_of(t);
    size_t used = acceptor_poll(tcp->o.acceptor, tcp->fds, &timeout_ms);
    for (size_t i = 0; i < n; i++) {
        tcp_look(t, wants[i].stream);
        short events = (short)((wants[i].send ? POLLOUT : 0) | (wants[i].recv ? POLLIN : 0));
        used += poll_conn(tcp, wants[i].stream, events, &tcp->fds[used], &timeout_ms);
    }
    if (acceptor_sleep(tcp->o.acceptor, tcp->o.stop_word, tcp->fds, used, timeout_ms) < 0 &&
        errno != EINTR)
        return err_sys(e, errno, "poll");
    return tcp_admit(t, e);
}

/* -------------------------------------------------------------------------------------- closing */

static void tcp_close(struct transport *t)
{
    struct tcp *tcp = tcp_of(t);
    for (int i = 0; i < t->size * t->streams; i++)
        tcp_drop(tcp, i);
    tcp->closed = true;
}

static void tcp_free(struct transport *t)
{
    struct tcp *tcp = tcp_of(t);
    tcp_close(t);
    free(tcp->conns);
    free(tcp->fds);
    free(tcp);
}

void tcp_disconnect(struct transport *t)
{
    struct tcp *tcp = tcp_of(t);
    for (int i = 0; i < t->size * t->streams; i++) {
        if (tcp->conns[i].state != TCP_OPEN)
            continue;
        close_fd(&tcp->conns[i].fd);
        move_to(&tcp->conns[i], TCP_NONE);
    }
}

static const struct transport_ops g_ops = {
    .name = "tcp",
    .send = tcp_send,
    .recv = tcp_recv,
    .peek = tcp_peek,
    .wait = tcp_wait,
    .close = tcp_close,
    .free = tcp_free,
};

int tcp_new(struct transport **out, const struct tcp_opts *opts, struct err *e)
{
    int sockets = opts->rule == TCP_SENDER ? 1 : opts->sockets;
    size_t streams = (size_t)opts->size * (size_t)sockets;
    struct tcp *tcp = calloc(1, sizeof(*tcp));
    struct conn *conns = calloc(streams, sizeof(*conns));
    struct pollfd *fds = calloc(2 * streams + ACCEPTOR_PENDING + 1, sizeof(*fds));
    if (!tcp || !conns || !fds) {
        free(tcp);
        free(conns);
        free(fds);
        return err_set(e, -ENOMEM, "no memory for %zu connections", streams);
    }
    for (size_t i = 0; i < streams; i++)
        conns[i].fd = -1;
    tcp->base = (struct transport){.ops = &g_ops, .size = opts->size, .streams = sockets};
    tcp->o = *opts;
    tcp->conns = conns;
    tcp->fds = fds;
    *out = &tcp->base;
    return 0;
}
