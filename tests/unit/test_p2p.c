/* Messages between ranks that share no memory: how many connections they take, and that neither way
 * waits for the other. Ranks are threads; where the order of every step matters, two transports. */
#include "tests/lib/test.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include "collectives/dlcoll.h"
#include "collectives/wire/tcp.h"
#include "collectives/p2p/p2p_state.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "tests/lib/thread_ranks.h"

enum { STATE_ESTABLISHED = 1 }; /* of a TCP socket */

/* ---------------------------------------------------------------------------------- connections */

/* Ends of TCP connections in this process, the peer's of which is not closed. */
static int count_ends(void)
{
    struct rlimit most = {0};
    int n = 0;
    getrlimit(RLIMIT_NOFILE, &most);
    for (int fd = 0; fd < (int)most.rlim_cur && fd < 4096; fd++) {
        struct tcp_info info = {0};
        socklen_t len = sizeof(info);
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
            n += info.tcpi_state == STATE_ESTABLISHED;
    }
    return n;
}

static void expect_ends(int want)
{
    double end = (double)mono_ns() * 1e-9 + test_seconds(20);
    int n;
    while ((n = count_ends()) != want && (double)mono_ns() * 1e-9 < end)
        test_poll_pause();
    THREAD_EXPECT(n == want, "%d ends of connections, not %d", n, want);
}

/* A communicator that has no connections yet, and how many ends there are then. */
static dlcoll_comm *new_comm(dlcoll_comm *comm, pthread_barrier_t *all, int *ends)
{
    dlcoll_comm *fresh = NULL;
    THREAD_OK(dlcoll_comm_split(comm, 0, dlcoll_rank(comm), &fresh, NULL));
    pthread_barrier_wait(all);
    *ends = count_ends();
    pthread_barrier_wait(all);
    return fresh;
}

static void there_and_back(dlcoll_comm *parent, void *all)
{
    int ends, rank = dlcoll_rank(parent), first = 0;
    for (int turn = 0; turn < 4; turn++, first = !first) {
        dlcoll_comm *comm = new_comm(parent, all, &ends);
        for (int i = 0; i < 20; i++) {
            int32_t x = i;
            if (rank == first)
                THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 1 - rank, comm, NULL, NULL));
            x = -1;
            THREAD_OK(dlcoll_recv(&x, 1, DLCOLL_I32, 1 - rank, comm, NULL, NULL));
            THREAD_EXPECT(x == i, "%d in turn %d", x, i);
            if (rank != first)
                THREAD_OK(dlcoll_send(&x, 1, DLCOLL_I32, 1 - rank, comm, NULL, NULL));
        }
        pthread_barrier_wait(all);
        expect_ends(ends + 2);
        pthread_barrier_wait(all);
        dlcoll_destroy(comm);
    }
}

START_TEST(messages_there_and_back_take_one_connection)
{
    pthread_barrier_t all;
    pthread_barrier_init(&all, NULL, 2);
    thread_ranks_run(2, there_and_back, &all);
    pthread_barrier_destroy(&all);
}
END_TEST

/* All ranks begin at once, so that connections cross. */
static void at_once(dlcoll_comm *parent, void *all)
{
    enum { MOST = 8, LEN = 20000 };
    int n = dlcoll_size(parent), rank = dlcoll_rank(parent), ends;
    int32_t *in = xmalloc(MOST * LEN * 4), *out = xmalloc(LEN * 4);
    for (int turn = 0; turn < 12; turn++) {
        dlcoll_comm *comm = new_comm(parent, all, &ends);
        dlcoll_p2p list[2 * MOST];
        size_t m = 0, len = turn % 2 ? LEN : 5;
        for (size_t i = 0; i < len; i++)
            out[i] = rank * 1000 + turn + (int)i;
        for (int r = 0; r < n; r++) {
            if (r == rank)
                continue;
            list[m++] = (dlcoll_p2p){.send = out, .count = len, .dtype = DLCOLL_I32, .peer = r};
            list[m++] =
                (dlcoll_p2p){.recv = in + r * LEN, .count = len, .dtype = DLCOLL_I32, .peer = r};
        }
        THREAD_OK(dlcoll_batch(list, m, comm, NULL, NULL));
        for (int r = 0; r < n; r++) {
            for (size_t i = 0; i < len && r != rank; i++)
                THREAD_EXPECT(in[r * LEN + (int)i] == r * 1000 + turn + (int)i, "from %d", r);
        }
        pthread_barrier_wait(all);
        expect_ends(ends + n * (n - 1));
        pthread_barrier_wait(all);
        dlcoll_destroy(comm);
    }
    free(in);
    free(out);
}

START_TEST(connections_that_cross_become_one)
{
    pthread_barrier_t all;
    pthread_barrier_init(&all, NULL, (unsigned)_i);
    thread_ranks_run(_i, at_once, &all);
    pthread_barrier_destroy(&all);
}
END_TEST

/* One rank of two, whose steps the test takes one by one. */
struct hand {
    struct world world;
    struct acceptor acceptor;
    struct transport *t;
    bool sent, received;
};

static void make_hands(struct hand hands[2], struct member members[2])
{
    static const int world_ranks[2] = {0, 1};
    struct err e = ERR_INIT;
    for (int r = 0; r < 2; r++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof(a);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
        ck_assert_int_eq(listen(fd, 8), 0);
        ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
        members[r] = (struct member){.addr = "127.0.0.1", .port = ntohs(a.sin_port)};
        hands[r] = (struct hand){.world = {.rank = r,
                                           .size = 2,
                                           .epoch = 5,
                                           .instance = 1,
                                           .listen_fd = fd,
                                           .members = members}};
        acceptor_init(&hands[r].acceptor, &hands[r].world);
        struct tcp_opts o = {.acceptor = &hands[r].acceptor,
                             .comm = 7,
                             .channel = CHANNEL_P2P,
                             .rule = TCP_SENDER,
                             .rank = r,
                             .size = 2,
                             .world_ranks = world_ranks,
                             .congestion = ""};
        ck_assert_msg(tcp_new(&hands[r].t, &o, &e) == 0, "%s", e.msg);
    }
}

/* Sends a word, or looks for the other's. */
static void step(struct hand *h, bool sends)
{
    struct err e = ERR_INIT;
    uint64_t word = 100 + (uint64_t)h->world.rank, heard = 0;
    struct iovec iov = {sends ? &word : &heard, sizeof(word)};
    if (sends ? h->sent : h->received)
        return;
    ssize_t n = sends ? h->t->ops->send(h->t, 1 - h->world.rank, &iov, 1, &e)
                      : h->t->ops->recv(h->t, 1 - h->world.rank, &iov, 1, &e);
    ck_assert_msg(n == 0 || n == sizeof(word), "rank %d: %zd %s", h->world.rank, n, e.msg);
    if (sends)
        h->sent = n > 0;
    else
        h->received = n > 0;
    ck_assert(sends || n == 0 || heard == 101 - (uint64_t)h->world.rank);
}

static void end_hands(struct hand hands[2])
{
    for (int r = 0; r < 2; r++) {
        hands[r].t->ops->free(hands[r].t);
        acceptor_fini(&hands[r].acceptor);
        close_fd(&hands[r].world.listen_fd);
    }
}

/* In whatever order two ranks take the steps of connecting to each other, they end with the same
 * connection, and nothing is lost. */
START_TEST(crossing_connects_end_as_one_connection)
{
    int before = count_ends();
    for (uint32_t order = 0; order < 256; order++) {
        struct hand hands[2];
        struct member members[2];
        double end = (double)mono_ns() * 1e-9 + test_seconds(20);
        make_hands(hands, members);
        /* Eight steps in that order of ranks, in which both send; then by turns. */
        for (uint32_t i = 0; i < 8; i++)
            step(&hands[order >> i & 1], true);
        for (uint32_t i = 0;
             !(hands[0].sent && hands[0].received && hands[1].sent && hands[1].received); i++) {
            step(&hands[i & 1], i & 2);
            ck_assert_msg((double)mono_ns() * 1e-9 < end, "order %x does not end", order);
        }
        ck_assert_int_eq(count_ends(), before + 2);
        end_hands(hands);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------- two ways */

enum { SMALL = 32 * 1024, SMALLS = 500, LARGE = 3 * 1000 * 1000 };

static uint8_t byte_of(int from, int k, size_t i)
{
    return (uint8_t)((size_t)(from * 7 + k * 3) + i + (i >> 8));
}

static uint8_t *made(int from, int k, size_t len)
{
    uint8_t *p = xmalloc(len);
    for (size_t i = 0; i < len; i++)
        p[i] = byte_of(from, k, i);
    return p;
}

static void check(const uint8_t *p, int from, int k, size_t len)
{
    for (size_t i = 0; i < len; i++)
        THREAD_EXPECT(p[i] == byte_of(from, k, i), "message %d, byte %zu of %zu", k, i, len);
}

/* Small messages, more than sockets hold, that nobody receives before the large ones have come:
 * whoever has sent those waits for answers behind them. */
static void answers_behind_messages(dlcoll_comm *comm, void *arg)
{
    bool one_way = arg != NULL;
    int rank = dlcoll_rank(comm), peer = 1 - rank;
    bool sends_small = !one_way || rank == 0, sends_large = !one_way || rank == 1;
    uint8_t *small = made(rank, 0, SMALL), *large = made(rank, 1, LARGE), *in = xmalloc(LARGE);
    dlcoll_work *works[SMALLS + 1];
    size_t n = 0;
    dlcoll_opts late = DLCOLL_OPTS_INIT, early = DLCOLL_OPTS_INIT;
    late.tag = 1;
    for (int i = 0; i < SMALLS && sends_small; i++)
        THREAD_OK(dlcoll_send(small, SMALL, DLCOLL_U8, peer, comm, &late, &works[n++]));
    if (sends_large)
        THREAD_OK(dlcoll_send(large, LARGE, DLCOLL_U8, peer, comm, &early, &works[n++]));
    if (sends_large && !sends_small)
        THREAD_OK(dlcoll_wait(works[0]));
    if (sends_small || !one_way) {
        THREAD_OK(dlcoll_recv(in, LARGE, DLCOLL_U8, peer, comm, &early, NULL));
        check(in, peer, 1, LARGE);
    }
    for (int i = 0; i < SMALLS && (!one_way || rank == 1); i++) {
        memset(in, 0, SMALL);
        THREAD_OK(dlcoll_recv(in, SMALL, DLCOLL_U8, peer, comm, &late, NULL));
        check(in, peer, 0, SMALL);
    }
    THREAD_OK(dlcoll_wait_all(works, n, -1));
    for (size_t i = 0; i < n; i++)
        dlcoll_work_free(works[i]);
    free(small);
    free(large);
    free(in);
}

START_TEST(answers_arrive_behind_unexpected_messages)
{
    static int one_way;
    thread_ranks_run(2, answers_behind_messages, _i ? &one_way : NULL);
}
END_TEST

/* Messages of modest length are not asked for, as many as fit into the window: they are sent before
 * the other rank, which looks for another one, receives any of them. The next one waits. */
static void the_window(dlcoll_comm *comm, void *arg)
{
    enum { LEN = P2P_AHEAD_MOST, N = P2P_WINDOW_BYTES / LEN };
    int rank = dlcoll_rank(comm), peer = 1 - rank;
    uint8_t *message = made(0, 1, LEN), *in = xmalloc(LEN), word = 0;
    dlcoll_opts later = DLCOLL_OPTS_INIT;
    later.tag = 1;
    (void)arg;
    for (int turn = 0; turn < 3; turn++) {
        dlcoll_work *one_more = NULL;
        for (int i = 0; i < N && rank == 0; i++)
            THREAD_OK(dlcoll_send(message, LEN, DLCOLL_U8, peer, comm, &later, NULL));
        if (rank == 0) {
            THREAD_OK(dlcoll_send(message, LEN, DLCOLL_U8, peer, comm, &later, &one_more));
            THREAD_EXPECT(dlcoll_test(one_more) == DLCOLL_INPROGRESS, "nobody has asked for it");
            THREAD_OK(dlcoll_send(&word, 1, DLCOLL_U8, peer, comm, NULL, NULL));
            THREAD_OK(dlcoll_wait(one_more));
            dlcoll_work_free(one_more);
        } else {
            THREAD_OK(dlcoll_recv(&word, 1, DLCOLL_U8, peer, comm, NULL, NULL));
        }
        for (int i = 0; i <= N && rank == 1; i++) {
            memset(in, 0, LEN);
            THREAD_OK(dlcoll_recv(in, LEN, DLCOLL_U8, peer, comm, &later, NULL));
            check(in, 0, 1, LEN);
        }
    }
    free(message);
    free(in);
}

START_TEST(messages_of_modest_length_are_not_asked_for)
{
    thread_ranks_run(2, the_window, NULL);
}
END_TEST

/* Small messages are sent before the other rank, which looks for another one, receives any of them:
 * up to a bound. Sends beyond it wait, and complete when it receives. */
struct flood {
    size_t len;
    int most; /* that complete at once, at most: what the receiver keeps and what is on its way */
};

static void flood_and_wait(dlcoll_comm *comm, void *arg)
{
    const struct flood *f = arg;
    int rank = dlcoll_rank(comm), peer = 1 - rank, done = 0;
    int n = 3 * P2P_WINDOW_BYTES / (int)f->len;
    uint8_t *in = xmalloc(f->len), word = 0;
    uint32_t *number = xcalloc(1, f->len + sizeof(*number));
    dlcoll_opts later = DLCOLL_OPTS_INIT;
    later.tag = 1;
    for (int turn = 0; turn < 2; turn++) {
        dlcoll_work **sends = xcalloc((size_t)n, sizeof(*sends));
        uint8_t *all = xcalloc((size_t)n, f->len);
        for (int i = 0; i < n && rank == 0; i++) {
            memcpy(all + (size_t)i * f->len, &i, sizeof(i));
            THREAD_OK(dlcoll_send(all + (size_t)i * f->len, f->len, DLCOLL_U8, peer, comm, &later,
                                  &sends[i]));
        }
        if (rank == 0) /* its receiver has seen all that has been sent before */
            THREAD_OK(dlcoll_send(&word, 1, DLCOLL_U8, peer, comm, NULL, NULL));
        else
            THREAD_OK(dlcoll_recv(&word, 1, DLCOLL_U8, peer, comm, NULL, NULL));
        for (int i = 0; i < n && rank == 0; i++)
            done += dlcoll_test(sends[i]) == 0;
        THREAD_EXPECT(rank == 1 || (done > 0 && done <= f->most), "%d of %d, at most %d", done, n,
                      f->most);
        if (rank == 0)
            THREAD_OK(dlcoll_send(&word, 1, DLCOLL_U8, peer, comm, NULL, NULL));
        else
            THREAD_OK(dlcoll_recv(&word, 1, DLCOLL_U8, peer, comm, NULL, NULL));
        for (int i = 0; i < n && rank == 1; i++) {
            THREAD_OK(dlcoll_recv(in, f->len, DLCOLL_U8, peer, comm, &later, NULL));
            memcpy(number, in, sizeof(*number));
            THREAD_EXPECT(*number == (uint32_t)i, "message %u, not %d", *number, i);
        }
        for (int i = 0; i < n && rank == 0; i++) {
            THREAD_OK(dlcoll_wait(sends[i]));
            dlcoll_work_free(sends[i]);
        }
        done = 0;
        free(sends);
        free(all);
    }
    free(number);
    free(in);
}

START_TEST(unexpected_messages_have_a_bound)
{
    size_t len = _i % 2 ? P2P_EAGER_BYTES : 1000;
    /* in shared memory also what the rings hold, less than 1 MiB */
    struct flood f = {len, (P2P_WINDOW_BYTES + (1 << 20)) / (int)len};
    if (_i >= 2)
        setenv("DLCOLL_SHM", "1", 1);
    thread_ranks_run(2, flood_and_wait, &f);
}
END_TEST

/* Large and small messages both ways at once, received in another order. */
static void both_ways(dlcoll_comm *comm, void *arg)
{
    enum { N = 12 };
    static const size_t lens[N] = {LARGE, 1,  262145,     LARGE / 2,      SMALL,         0, 262144,
                                   33000, 12, FRAME_LONG, FRAME_LONG - 1, FRAME_LONG + 1};
    int rank = dlcoll_rank(comm), peer = 1 - rank;
    (void)arg;
    for (int turn = 0; turn < 3; turn++) {
        dlcoll_p2p list[2 * N];
        for (int k = 0; k < N; k++) {
            int other = N - 1 - k;
            list[2 * k] = (dlcoll_p2p){.send = made(rank, k, lens[k] + 1),
                                       .count = lens[k],
                                       .dtype = DLCOLL_U8,
                                       .peer = peer,
                                       .tag = k};
            list[2 * k + 1] = (dlcoll_p2p){.recv = xmalloc(lens[other] + 1),
                                           .count = lens[other],
                                           .dtype = DLCOLL_U8,
                                           .peer = peer,
                                           .tag = other};
        }
        THREAD_OK(dlcoll_batch(list, 2 * N, comm, NULL, NULL));
        for (int k = 0; k < N; k++) {
            check(list[2 * k + 1].recv, peer, N - 1 - k, lens[N - 1 - k]);
            free(list[2 * k + 1].recv);
            free((void *)list[2 * k].send);
        }
    }
}

START_TEST(both_ways_at_once)
{
    thread_ranks_run(2, both_ways, NULL);
}
END_TEST

/* The most recent destroyed communicators are remembered; a peer of any other unknown one waits. */
START_TEST(a_peer_of_a_destroyed_communicator_gets_an_error)
{
    struct hand hands[2];
    struct member members[2];
    struct accepted_conn late = {.fd = -1};
    struct err e = ERR_INIT;
    uint64_t word = 0;
    ssize_t n = 0;
    double end = (double)mono_ns() * 1e-9 + test_seconds(20);
    make_hands(hands, members);
    for (uint64_t i = 0; i < ACCEPTOR_CLOSED + (uint64_t)_i; i++)
        acceptor_forget(&hands[1].acceptor, &(struct acceptor_subscriber){.comm = 7 + i});
    while (n == 0 && !acceptor_take(&hands[1].acceptor, 7, CHANNEL_P2P, &late)) {
        n = hands[0].t->ops->send(hands[0].t, 1, &(struct iovec){&word, 1}, 1, &e);
        ck_assert_int_eq(acceptor_serve(&hands[1].acceptor, &e), 0);
        ck_assert(n <= 0 && (double)mono_ns() * 1e-9 < end);
    }
    ck_assert_msg(n == (_i ? 0 : -EPIPE), "%zd %s", n, e.msg);
    close_fd(&late.fd);
    end_hands(hands);
}
END_TEST

static void without_memory(void)
{
    setenv("DLCOLL_SHM", "0", 1);
}

static Suite *suite(void)
{
    Suite *s = suite_create("p2p");
    TCase *tc = test_case(s, "tcp", 60);
    tcase_add_checked_fixture(tc, without_memory, NULL);
    tcase_add_test(tc, messages_there_and_back_take_one_connection);
    tcase_add_test(tc, crossing_connects_end_as_one_connection);
    tcase_add_loop_test(tc, a_peer_of_a_destroyed_communicator_gets_an_error, 0, 2);
    tcase_add_loop_test(tc, connections_that_cross_become_one, 2, 6);
    tcase_add_loop_test(tc, answers_arrive_behind_unexpected_messages, 0, 2);
    tcase_add_test(tc, messages_of_modest_length_are_not_asked_for);
    tcase_add_test(tc, both_ways_at_once);
    tc = test_case(s, "bound", 60);
    tcase_add_checked_fixture(tc, without_memory, NULL);
    tcase_add_loop_test(tc, unexpected_messages_have_a_bound, 0, 4);
    return s;
}

TEST_MAIN(suite)
