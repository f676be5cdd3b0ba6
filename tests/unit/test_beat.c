/* The thread of the heartbeats, against another one and against a peer that is the test's own. */
#include "rendezvous/wire/beat.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/tls.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "tests/lib/loop.h"
#include "tests/lib/nsec.h"
#include "tests/lib/test.h"

#define LEN 24

static uv_loop_t loop;
static struct beats *beats;
static bool closed;
static int turns;
static _Atomic uint64_t extended;

/* ----------------------------------------------------------------- what is allocated by threads */

#if !SANITIZED
#define COUNTS 1
static _Atomic size_t allocations, largest; /* by threads that are not the first */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static void count(size_t n)
{
    if (gettid() == getpid())
        return;
    allocations++;
    if (n > largest)
        largest = n;
}

void *malloc(size_t n)
{
    count(n);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count(n * size);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count(n);
    return __libc_realloc(p, n);
}
#else
#define COUNTS 0
static size_t allocations, largest;
#endif

/* -------------------------------------------------------------------------------------- fixture */

static void on_turn(void *arg)
{
    (void)arg;
    turns++;
}

static void on_lease(void *arg, uint64_t until_ns)
{
    (void)arg;
    atomic_store(&extended, until_ns);
}

static struct beats *open_beats(uint64_t heartbeat_ns)
{
    struct beats *b;
    struct err e = ERR_INIT;
    const struct beats_config config = {.loop = &loop,
                                        .links = 3,
                                        .heartbeat_ns = heartbeat_ns,
                                        .dead_ns = 3 * SEC,
                                        .on_turn = on_turn,
                                        .on_lease = on_lease};
    ck_assert_msg(beats_open(&b, &config, &e) == 0, "%s", e.msg);
    return b;
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

static void close_beats(struct beats *b)
{
    closed = false;
    beats_close(b, on_closed, &closed);
    loop_run_until(&loop, &closed, 10, "closed");
}

static void setup(void)
{
    loop_setup(&loop);
    turns = 0;
    extended = 0;
    beats = open_beats(100 * MSEC);
}

static void teardown(void)
{
    close_beats(beats);
    loop_teardown(&loop);
}

static void make_pair(int fd[2])
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
}

/* Two connected ends after the TLS handshake. */
static void make_tls(struct tls *t[2])
{
    struct buf wire[2] = {BUF_INIT, BUF_INIT}, plain = BUF_INIT;
    struct tls_key key = {.bytes = {1, 2, 3}};
    ck_assert_int_eq(tls_new(&t[0], TLS_CLIENT, &key, &wire[0], NULL), 0);
    ck_assert_int_eq(tls_new(&t[1], TLS_SERVER, &key, &wire[1], NULL), 0);
    for (int i = 0; wire[0].len || wire[1].len; i = !i) {
        struct buf w = wire[i];
        wire[i] = (struct buf)BUF_INIT;
        if (w.len)
            ck_assert_int_eq(tls_feed(t[!i], w.data, w.len, &plain, &wire[!i], NULL), 0);
        buf_fini(&w);
    }
    ck_assert(tls_established(t[0]) && tls_established(t[1]));
    buf_fini(&plain);
}

/* Turns the loop until the link has what is looked for. */
#define UNTIL(link, news, condition)                                        \
    do {                                                                    \
        uint64_t give_up_ = mono_ns() + (uint64_t)(test_seconds(10) * 1e9); \
        for (;;) {                                                          \
            beats_look(beats, link, &(news));                               \
            if (condition)                                                  \
                break;                                                      \
            ck_assert_msg(mono_ns() < give_up_, "not " #condition);         \
            uv_run(&loop, UV_RUN_ONCE);                                     \
        }                                                                   \
    } while (0)

/* ----------------------------------------------------------------------------- two of its links */

START_TEST(heartbeats_and_leases)
{
    int fd[2];
    struct tls *t[2] = {NULL, NULL};
    struct beat_news node, coordinator;
    make_pair(fd);
    if (_i)
        make_tls(t);
    uint64_t start = mono_ns();
    int c = beats_add(beats, BEAT_COORDINATOR, fd[1], t[1], 3 * SEC);
    int n = beats_add(beats, BEAT_NODE, fd[0], t[0], 3 * SEC);
    ck_assert(n >= 0 && c >= 0 && n != c);
    UNTIL(c, coordinator, coordinator.touch_ns > start); /* there and back, twice */
    UNTIL(n, node, node.heard_ns > start + 200 * MSEC);
    ck_assert_uint_eq(node.lease_ns, 0);
    ck_assert_uint_eq(extended, 0);
    beats_grant(beats, UINT64_MAX);
    uint64_t granted = mono_ns();
    UNTIL(n, node, node.lease_ns > granted);
    ck_assert_uint_lt(node.lease_ns, mono_ns());
    uint64_t until = extended;
    ck_assert_uint_ge(until, node.lease_ns + rdzv_guardian_lease_ns(3 * SEC));
    ck_assert_uint_gt(until, granted + rdzv_lease_ns(3 * SEC));
    /* In the long run nothing is allocated, but for what OpenSSL takes for each record from the
     * thread's own cache. */
    allocations = largest = 0;
    UNTIL(n, node, node.heard_ns > granted + 1 * SEC);
    ck_assert(!COUNTS || (_i ? largest <= 64 : allocations == 0));
    beats_grant(beats, 1);
    loop_turns(&loop, 1);
    UNTIL(n, node, node.heard_ns > granted + 1300 * MSEC);
    ck_assert_uint_lt(node.lease_ns, granted + 1300 * MSEC);
    beats_drop(beats, c, &coordinator);
    ck_assert_uint_gt(coordinator.heard_ns, start);
    UNTIL(n, node, node.broken);
    beats_drop(beats, n, &node);
}
END_TEST

/* Heartbeats go on, and say how far the loop is behind. */
START_TEST(a_loop_that_does_not_turn)
{
    int fd[2];
    struct beat_news news;
    make_pair(fd);
    int c = beats_add(beats, BEAT_COORDINATOR, fd[1], NULL, 3 * SEC);
    int n = beats_add(beats, BEAT_NODE, fd[0], NULL, 3 * SEC);
    UNTIL(c, news, news.touch_ns > 0);
    ck_assert_uint_lt(news.lag_ms, (uint64_t)(test_seconds(1) * 1000));
    beats_grant(beats, UINT64_MAX);
    uint64_t stuck = mono_ns(), now;
    do { /* no turn here */
        test_poll_pause();
        beats_look(beats, c, &news);
        now = mono_ns();
        ck_assert_uint_lt(now - stuck, (uint64_t)(test_seconds(10) * 1e9));
    } while (news.lag_ms < 900 || news.heard_ns < stuck + 900 * MSEC);
    ck_assert_uint_gt(extended, stuck + 500 * MSEC);
    ck_assert_uint_le(news.lag_ms, (now - stuck) / MSEC + 1000);
    UNTIL(n, news, news.lag_ms < 500);
    beats_rest(beats);
    test_elapse(0.5);
    beats_look(beats, c, &news);
    ck_assert_uint_lt(news.lag_ms, 400); /* it is not expected to */
}
END_TEST

/* The coordinator's own node. */
START_TEST(the_lease_of_ones_own_node)
{
    test_elapse(0.25);
    ck_assert_uint_eq(beats_own_lease(beats), 0);
    beats_own(beats, true);
    test_elapse(0.25);
    ck_assert_uint_eq(beats_own_lease(beats), 0); /* not granted */
    uint64_t start = mono_ns();
    beats_grant(beats, UINT64_MAX);
    while (beats_own_lease(beats) == 0 || extended == 0) {
        test_poll_pause();
        ck_assert_uint_lt(mono_ns() - start, (uint64_t)(test_seconds(10) * 1e9));
    }
    ck_assert_uint_ge(beats_own_lease(beats), start);
}
END_TEST

/* --------------------------------------------------------------------- a peer of the test's own */

static void put(uint8_t p[LEN], uint64_t a, uint64_t b)
{
    memset(p, 0, LEN);
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(a >> 8 * i);
        p[8 + i] = (uint8_t)(b >> 8 * i);
    }
}

static void receive(int fd, uint8_t p[LEN])
{
    uint64_t start = mono_ns();
    for (size_t got = 0; got < LEN;) {
        ssize_t n = read(fd, p + got, LEN - got);
        got += n > 0 ? (size_t)n : 0;
        ck_assert_int_ne(n, 0);
        ck_assert_uint_lt(mono_ns() - start, (uint64_t)(test_seconds(10) * 1e9));
        test_poll_pause();
    }
}

/* Says `seen`, in pieces; returns whether the answer has a lease. */
static bool ask(int fd, uint64_t when, uint64_t seen)
{
    uint8_t p[LEN], answer[LEN];
    put(p, when, seen);
    ck_assert_int_eq(write(fd, p, 5), 5);
    ck_assert_int_eq(write(fd, p + 5, LEN - 5), LEN - 5);
    receive(fd, answer);
    ck_assert_int_eq(memcmp(answer, p, 8), 0); /* its `when` */
    return answer[20] & 1;
}

/* After a silence of the dead time there is no lease: the coordinator may be declaring this node
 * dead at the same moment. */
START_TEST(no_lease_after_a_silence_of_the_dead_time)
{
    int fd[2];
    struct beat_news news;
    make_pair(fd);
    beats_rest(beats); /* the loop does not turn here, which is no illness */
    beats_grant(beats, UINT64_MAX);
    int c = beats_add(beats, BEAT_COORDINATOR, fd[1], NULL, (uint64_t)(test_seconds(1) * 1e9));
    ck_assert(ask(fd[0], 4711, 0));
    ck_assert(ask(fd[0], 4712, UINT64_MAX)); /* what cannot be is not believed */
    beats_look(beats, c, &news);
    ck_assert_uint_eq(news.touch_ns, 0);
    test_elapse(test_seconds(1) + 0.05);
    ck_assert(!ask(fd[0], 4713, 0));
    ck_assert(ask(fd[0], 4714, 0)); /* the loop would have dropped it by now */
    beats_drop(beats, c, &news);
    close(fd[0]);
}
END_TEST

START_TEST(peers_that_break_off_or_talk_nonsense)
{
    int fd[2];
    uint8_t p[LEN];
    struct beat_news news;
    make_pair(fd);
    int n = beats_add(beats, BEAT_NODE, fd[0], NULL, 3 * SEC);
    receive(fd[1], p);
    put(p, mono_ns() + 100 * SEC, 1); /* an answer to what was not said yet */
    ck_assert_int_eq(write(fd[1], p, LEN), LEN);
    UNTIL(n, news, news.broken);
    ck_assert_uint_eq(news.lease_ns, 0);
    beats_drop(beats, n, &news);
    close(fd[1]);
    struct tls *t[2];
    make_tls(t);
    make_pair(fd);
    n = beats_add(beats, BEAT_NODE, fd[0], t[0], 3 * SEC);
    ck_assert_int_eq(write(fd[1], "not a record, by far", 20), 20);
    UNTIL(n, news, news.broken);
    beats_drop(beats, n, &news);
    close(fd[1]);
    tls_free(t[1]);
    make_pair(fd);
    n = beats_add(beats, BEAT_COORDINATOR, fd[0], NULL, 3 * SEC);
    close(fd[1]);
    UNTIL(n, news, news.broken);
    beats_drop(beats, n, &news);
}
END_TEST

/* Places are given back, and there are no more than said. */
START_TEST(places)
{
    struct beat_news news;
    for (int round = 0; round < 50; round++) {
        int fd[4][2], link[4];
        for (int i = 0; i < 4; i++) {
            make_pair(fd[i]);
            link[i] = beats_add(beats, BEAT_NODE, fd[i][0], NULL, 3 * SEC);
            ck_assert(i == 3 ? link[i] < 0 : link[i] >= 0);
        }
        for (int i = 0; i < 3; i++)
            beats_drop(beats, link[i], &news);
        for (int i = 0; i < 4; i++)
            close(fd[i][1]);
        int before = turns; /* then they are free */
        uint64_t give_up = mono_ns() + (uint64_t)(test_seconds(10) * 1e9);
        while (turns < before + 3) {
            uv_run(&loop, UV_RUN_ONCE);
            ck_assert_uint_lt(mono_ns(), give_up);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("beat");
    TCase *tc = test_case(s, "beat", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, heartbeats_and_leases, 0, 2);
    tcase_add_test(tc, a_loop_that_does_not_turn);
    tcase_add_test(tc, the_lease_of_ones_own_node);
    tcase_add_test(tc, no_lease_after_a_silence_of_the_dead_time);
    tcase_add_test(tc, peers_that_break_off_or_talk_nonsense);
    tcase_add_test(tc, places);
    return s;
}

TEST_MAIN(suite)
