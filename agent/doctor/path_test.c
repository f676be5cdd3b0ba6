#include "agent/doctor/path_test.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"

enum {
    PINGS = 40,
    BULK_FIRST = 256 << 10,
    BULK_MOST = 32 << 20,
    PIECE = 256 << 10, /* of one read or write */
};
#define PING_NS 20000000u /* at most for all pings but the first one */
#define BULK_NS 8000000u  /* a transfer that takes so long is long enough */
#define LONGER  8 /* number of measurements if the caller measures longer; the best one counts */
#define MAGIC   UINT32_C(0x44524c44)

/* The caller's orders: a letter and a number of bytes. */
enum { ORDER_PING = 'p', ORDER_TAKE = 't', ORDER_SEND = 's', ORDER_END = 'e' };
struct order {
    uint32_t what, len;
};
struct hello {
    uint32_t magic, zero;
    uint64_t nonce;
};

/* 0 or -errno. */
static int wait_for(int fd, short events, uint64_t deadline)
{
    for (;;) {
        uint64_t now = mono_ns();
        struct pollfd p = {.fd = fd, .events = events};
        if (now >= deadline)
            return -ETIMEDOUT;
        int n = poll(&p, 1, (int)((deadline - now + 999999) / 1000000));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
    }
}

/* Moves n bytes; with a NULL buffer, sends zeros, or drops what comes. */
static int move(int fd, void *data, size_t n, bool out, uint64_t deadline)
{
    static char zeros[PIECE], ignored[PIECE];
    for (size_t at = 0; at < n;) {
        size_t len = n - at;
        if (!data && len > PIECE)
            len = PIECE;
        char *p = data ? (char *)data + at : out ? zeros : ignored;
        ssize_t k = out ? send(fd, p, len, MSG_NOSIGNAL) : recv(fd, p, len, 0);
        if (k > 0) {
            at += (size_t)k;
            continue;
        }
        if (k == 0)
            return -ECONNRESET;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        int r = wait_for(fd, out ? POLLOUT : POLLIN, deadline);
        if (r < 0)
            return r;
    }
    return 0;
}

static void set_nodelay(int fd)
{
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

/* ------------------------------------------------------------------------------------- the caller
 */

/* Returns a connected socket or -errno. */
static int dial(const struct netaddr *to, uint64_t deadline)
{
    _cleanup_fd_ int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    if (fd < 0)
        return -errno;
    if (connect(fd, &to->sa, to->len) < 0 && errno != EINPROGRESS)
        return -errno;
    int r = wait_for(fd, POLLOUT, deadline);
    if (r < 0)
        return r;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof(error)});
    if (error)
        return -error;
    set_nodelay(fd);
    return take_fd(&fd);
}

static int order(int fd, uint32_t what, uint32_t len, uint64_t deadline)
{
    struct order o = {what, len};
    return move(fd, &o, sizeof(o), true, deadline);
}

static int ping(int fd, uint64_t deadline, double *rtt_us)
{
    uint64_t best = UINT64_MAX, begin = mono_ns();
    for (int i = 0; i < PINGS && (i < 2 || mono_ns() - begin < PING_NS); i++) {
        uint64_t start = mono_ns();
        char back;
        int r = order(fd, ORDER_PING, 0, deadline);
        if (r < 0 || (r = move(fd, &back, 1, false, deadline)) < 0)
            return r;
        uint64_t took = mono_ns() - start;
        best = took < best ? took : best;
    }
    *rtt_us = (double)best / 1e3;
    return 0;
}

/* Larger and larger transfers, until one takes long enough to be measured; then as many more of its
 * length as are wanted. */
static int bulk(int fd, bool out, int more, uint64_t deadline, double *bps)
{
    for (uint32_t len = BULK_FIRST;;) {
        uint64_t start = mono_ns();
        char back;
        int r = order(fd, out ? ORDER_TAKE : ORDER_SEND, len, deadline);
        if (r == 0)
            r = move(fd, NULL, len, out, deadline);
        if (r == 0 && out)
            r = move(fd, &back, 1, false, deadline);
        if (r < 0)
            return r;
        uint64_t took = mono_ns() - start;
        double rate = (double)len * 1e9 / (double)(took ? took : 1);
        *bps = rate > *bps ? rate : *bps;
        bool enough = took >= BULK_NS || len >= BULK_MOST;
        if (enough && --more <= 0)
            return 0;
        len *= enough ? 1 : 2;
    }
}

static int fail_at(struct path_test *m, enum path_test_stage stage, int r)
{
    m->stage = stage;
    m->error = -r;
    return r;
}

/* measures: else only that the connection works is of interest. */
static int call(struct path_test *m, bool measures, uint64_t deadline)
{
    struct hello hello = {.magic = MAGIC, .nonce = m->nonce};
    uint64_t soon = mono_ns() + PATH_TEST_CALL_MS * UINT64_C(1000000);
    double rtt_us = 0;
    char back;
    int r = dial(&m->peer, soon < deadline ? soon : deadline);
    if (r < 0)
        return fail_at(m, PATH_TEST_CONNECT, r);
    _cleanup_fd_ int fd = r;
    if ((r = move(fd, &hello, sizeof(hello), true, deadline)) < 0 ||
        (r = move(fd, &back, 1, false, deadline)) < 0)
        return fail_at(m, PATH_TEST_HELLO, r);
    if (measures && (r = ping(fd, deadline, &rtt_us)) < 0)
        return fail_at(m, PATH_TEST_PING, r);
    m->rtt_us = rtt_us;
    int times = m->longer ? LONGER : 1;
    if (measures && ((r = bulk(fd, true, times, deadline, &m->out_bps)) < 0 ||
                     (r = bulk(fd, false, times, deadline, &m->in_bps)) < 0))
        return fail_at(m, PATH_TEST_BULK, r);
    order(fd, ORDER_END, 0, deadline);
    m->stage = PATH_TEST_OVER;
    m->error = 0;
    return 0;
}

/* ------------------------------------------------------------------------------------- the server
 */

/* Carries out orders until the caller ends. */
static int answer(int fd, uint64_t deadline)
{
    char back = 0;
    int r;
    for (;;) {
        struct order o;
        if ((r = move(fd, &o, sizeof(o), false, deadline)) < 0)
            return r;
        if (o.len > BULK_MOST)
            return -EPROTO;
        if (o.what == ORDER_PING)
            r = move(fd, &back, 1, true, deadline);
        else if (o.what == ORDER_TAKE && (r = move(fd, NULL, o.len, false, deadline)) == 0)
            r = move(fd, &back, 1, true, deadline);
        else if (o.what == ORDER_SEND)
            r = move(fd, NULL, o.len, true, deadline);
        else if (o.what == ORDER_END)
            return 0;
        else
            r = r < 0 ? r : -EPROTO;
        if (r < 0)
            return r;
    }
}

/* Waits for the caller of this test. Connections of earlier tests may come first. */
static int serve(const struct path_test *m, uint64_t deadline)
{
    for (;;) {
        struct hello hello;
        char back = 0;
        int r = wait_for(m->listen_fd, POLLIN, deadline);
        if (r < 0)
            return r;
        _cleanup_fd_ int fd = accept4(m->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        uint64_t soon = mono_ns() + PATH_TEST_CALL_MS * UINT64_C(1000000);
        if (fd < 0 ||
            move(fd, &hello, sizeof(hello), false, soon < deadline ? soon : deadline) < 0 ||
            hello.magic != MAGIC || hello.nonce != m->nonce)
            continue;
        set_nodelay(fd);
        if ((r = move(fd, &back, 1, true, deadline)) < 0)
            return r;
        return answer(fd, deadline);
    }
}

/* The server dials back whether the caller has reached the server or not. */
void path_test_run(struct path_test *m)
{
    uint64_t ms = 1000000, now = mono_ns(), deadline = now + PATH_TEST_MS * ms;
    uint64_t late = now + (PATH_TEST_MS - PATH_TEST_CALL_MS) * ms;
    if (m->caller) {
        call(m, true, deadline);
        serve(m, deadline);
    } else {
        if (wait_for(m->listen_fd, POLLIN, late) == 0)
            serve(m, deadline);
        call(m, false, mono_ns() + PATH_TEST_CALL_MS * ms);
    }
}

/* ---------------------------------------------------------------------------------- the tournament
 */

int path_test_rounds(int n)
{
    return n < 2 ? 0 : n % 2 ? n : n - 1;
}

/* A tournament's schedule by the circle method: one place stays, the m others move on by one each
 * round. Where n is odd, the place that stays is empty. */
int path_test_partner(int n, int round, int me)
{
    int m = n % 2 ? n : n - 1;
    if (n < 2)
        return -1;
    int other = me == m ? -1 : (2 * m + 2 * round - me) % m;
    if (me == m)
        return round % m;
    if (other == me)
        return n % 2 ? -1 : m;
    return other;
}
