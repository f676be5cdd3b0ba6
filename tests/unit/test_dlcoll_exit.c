/* A rank that ends with status 0 and takes no leave, under a launcher, or takes it, without one:
 * whoever waits for it is told at once, and nobody else. */
#include "tests/lib/test.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "tests/lib/ranks.h"

enum { LEAVER = 1, LARGE = 1 << 20 };

static const char *const g_ops[] = {"all_reduce", "all_gather", "barrier",
                                    "recv",       "large send", "recv_any"};
enum { OPS = sizeof(g_ops) / sizeof(g_ops[0]) };

static int g_op;

static int perform(dlcoll_comm *c, uint8_t *x)
{
    switch (g_op) {
    case 0:
        return dlcoll_all_reduce(x, x, 100, DLCOLL_U8, DLCOLL_SUM, c, NULL, NULL);
    case 1:
        return dlcoll_all_gather(x, x + LARGE, LARGE, DLCOLL_U8, c, NULL, NULL);
    case 2:
        return dlcoll_barrier(c, NULL, NULL);
    case 3:
        return dlcoll_recv(x, 100, DLCOLL_U8, LEAVER, c, NULL, NULL);
    case 4:
        return dlcoll_send(x, LARGE, DLCOLL_U8, LEAVER, c, NULL, NULL);
    default:
        return dlcoll_recv_any(x, 100, DLCOLL_U8, NULL, c, NULL, NULL);
    }
}

static void exit_early(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == LEAVER)
        _exit(0);
    uint8_t *x = calloc(5, LARGE);
    ranks_keep_result(j, rank, c, perform(c, x));
    dlcoll_destroy(c);
    free(x);
}

/* Over both, of 2 ranks and, for what all take part in, of 4. */
static void end_one(int op, int n, bool over_tcp)
{
    struct ranks j;
    g_op = op;
    if (over_tcp)
        setenv("DLCOLL_SHM", "0", 1);
    ranks_init(&j, n, 1);
    ranks_start(&j, exit_early);
    ranks_reap(&j, LEAVER);
    uint64_t told_ns = mono_ns();
    ranks_tell_exit(&j, LEAVER);
    ranks_wait(&j, 20, 0);
    for (int r = 0; r < n; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        double ms = (double)(int64_t)(j.shared->rank[r].returned_ns - told_ns) / 1e6;
        if (r == LEAVER)
            continue;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EPEER && e->rank == LEAVER &&
                          e->pid == j.pid[LEAVER],
                      "%s: rank %d: %d %s", g_ops[op], r, j.shared->rank[r].code, e->text);
        ck_assert_msg(ms < test_seconds(2) * 1000, "%s: rank %d after %.1f ms", g_ops[op], r, ms);
    }
    ranks_fini(&j);
}

START_TEST(a_waiting_rank_gets_an_error)
{
    end_one(_i, 2, false);
}
END_TEST

START_TEST(a_waiting_rank_gets_an_error_over_tcp)
{
    end_one(_i, 2, true);
}
END_TEST

START_TEST(all_waiting_ranks_get_an_error)
{
    end_one(_i % 3, 4, _i >= 3);
}
END_TEST

/* On nodes of their own, before anybody has connected: no agent of this node can say so, and who
 * is left is the one to be connected to. But their doors are shut. */
static void exit_first(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    if (rank <= LEAVER)
        _exit(0);
    uint8_t *x = calloc(5, LARGE);
    ranks_keep_result(j, rank, c, perform(c, x));
    dlcoll_destroy(c);
    free(x);
}

START_TEST(a_rank_waiting_for_another_node_gets_an_error)
{
    struct ranks j;
    g_op = _i;
    ranks_init(&j, 3, 3);
    ranks_start(&j, exit_first);
    ranks_wait(&j, 30, 0);
    dlcoll_error *e = &j.shared->rank[2].error;
    ck_assert_msg(j.shared->rank[2].code == DLCOLL_EPEER && e->rank >= 0 && e->rank <= LEAVER,
                  "%s: %d %s", g_ops[_i], j.shared->rank[2].code, e->text);
    ranks_fini(&j);
}
END_TEST

/* A monitored barrier reports the missing rank, and the communicator goes on. */
static void ask_for_the_other(struct ranks *j, int rank)
{
    (void)j;
    dlcoll_comm *c = comm_start();
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    int missing[2] = {-1, -1};
    size_t n = 2;
    if (rank == LEAVER)
        _exit(0);
    o.timeout_ms = 4000; /* longer than it takes to see that it has gone */
    EXPECT(dlcoll_monitored_barrier(c, missing, &n, &o) == DLCOLL_ETIMEDOUT, "%s", why(c));
    EXPECT(n == 1 && missing[0] == LEAVER, "%zu: %d", n, missing[0]);
    n = 2;
    o.timeout_ms = 1;
    EXPECT(dlcoll_monitored_barrier(c, missing, &n, &o) == DLCOLL_ETIMEDOUT, "%s", why(c));
    dlcoll_destroy(c);
}

START_TEST(a_monitored_barrier_names_it_and_goes_on)
{
    ranks_run(2, _i, ask_for_the_other);
}
END_TEST

/* ------------------------------------------------------------------------------------- harmless */

/* A late rank finds the other one's connection waiting, and both go on. */
static void come_late(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t *x = calloc(5, LARGE);
    struct pollfd knock = {.fd = j->listener[0], .events = POLLIN};
    if (rank == 0)
        EXPECT(poll(&knock, 1, 20000) == 1, "nobody knocks");
    if (rank == 0 && g_op >= 3) /* what the other one's recv is for */
        EXPECT(dlcoll_send(x, 100, DLCOLL_U8, 1, c, NULL, NULL) == 0, "%s", why(c));
    else if (rank == 1 && g_op >= 3)
        EXPECT(dlcoll_recv(x, 100, DLCOLL_U8, 0, c, NULL, NULL) == 0, "%s", why(c));
    else
        EXPECT(perform(c, x) == 0, "%s", why(c));
    dlcoll_destroy(c);
    free(x);
}

START_TEST(a_late_rank_is_waited_for)
{
    g_op = _i;
    ranks_run(2, 2, come_late);
}
END_TEST

static void work_on(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start(), *pair;
    dlcoll_work *any = NULL;
    int32_t x = rank, y = -1, from = -1;
    int list[] = {0, 2}, other = 2 - rank;
    EXPECT(dlcoll_comm_new_group(c, list, 2, &pair, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == LEAVER && !j->nnodes)
        dlcoll_destroy(c); /* else it is taken for dead */
    if (rank == LEAVER)
        _exit(0);
    if (rank == 0) /* under way when it ends, and for long after */
        EXPECT(dlcoll_recv_any(&y, 1, DLCOLL_I32, &from, c, NULL, &any) == 0, "%s", why(c));
    ranks_say_ready(j);
    ranks_await_go(j);
    uint64_t end = mono_ns() + 50 * 1000000ull; /* longer than between two looks */
    for (int32_t more = 1; more;) {
        int32_t now = mono_ns() < end;
        EXPECT(dlcoll_all_reduce(&now, &more, 1, DLCOLL_I32, DLCOLL_MAX, pair, NULL, NULL) == 0,
               "%s", why(pair));
        EXPECT(!any || !more || dlcoll_test(any) == DLCOLL_INPROGRESS, "%s", why(c));
    }
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    o.tag = 1;
    if (rank == 2)
        EXPECT(dlcoll_send(&x, 1, DLCOLL_I32, 0, c, NULL, NULL) == 0, "%s", why(c));
    else
        EXPECT(dlcoll_wait(any) == 0 && from == 2 && y == 2, "%s", why(c));
    dlcoll_work_free(any);
    int r = rank == 2 ? dlcoll_recv(&y, 1, DLCOLL_I32, other, c, &o, NULL)
                      : dlcoll_send(&y, 1, DLCOLL_I32, other, c, &o, NULL);
    EXPECT(r == 0, "%s", why(c));
    dlcoll_destroy(pair);
    dlcoll_destroy(c);
}

START_TEST(a_rank_that_does_not_need_it_goes_on)
{
    struct ranks j;
    bool launched = _i < 2;
    uint16_t port;
    int fd = reserve_port(&port);
    if (_i % 2)
        setenv("DLCOLL_SHM", "0", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", port);
    ranks_init(&j, 3, launched);
    ranks_start(&j, work_on);
    ranks_reap(&j, LEAVER);
    if (launched)
        ranks_tell_exit(&j, LEAVER);
    atomic_store(&j.shared->go, 1);
    ranks_wait(&j, 20, 0);
    ranks_fini(&j);
    close(fd);
}
END_TEST

static void send_and_exit(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t x[1000] = {(uint8_t)rank};
    int from = -1;
    if (rank == LEAVER) {
        EXPECT(dlcoll_send(x, sizeof(x), DLCOLL_U8, 0, c, NULL, NULL) == 0, "%s", why(c));
        EXPECT(dlcoll_send(x, sizeof(x), DLCOLL_U8, 0, c, NULL, NULL) == 0, "%s", why(c));
        _exit(0);
    }
    ranks_await_go(j); /* it is over by then */
    EXPECT(dlcoll_recv(x, sizeof(x), DLCOLL_U8, LEAVER, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(x[0] == LEAVER);
    EXPECT(dlcoll_recv_any(x, sizeof(x), DLCOLL_U8, &from, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(x[0] == LEAVER && from == LEAVER);
    int r = dlcoll_recv_any(x, sizeof(x), DLCOLL_U8, &from, c, NULL, NULL);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

enum { SECOND = 3 };

/* The rest of them goes on when the first has left, and loses the next. */
static void go_on_without(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start(), *rest = NULL;
    int code = dlcoll_barrier(c, NULL, NULL);
    EXPECT(code == 0, "%s", why(c));
    if (rank == LEAVER)
        _exit(0);
    ranks_await_go(j);
    code = dlcoll_barrier(c, NULL, NULL);
    EXPECT(code == DLCOLL_EPEER, "%d %s", code, why(c));
    EXPECT(dlcoll_comm_shrink(c, &rest, NULL) == 0, "%s", why(NULL));
    struct segment_local *line = ranks_line(j, rank);
    EXPECT(line->state == SEGMENT_LOCAL_READY && line->cause_rank == -1, "%d", line->cause_rank);
    EXPECT(dlcoll_barrier(rest, NULL, NULL) == 0, "%s", why(rest));
    ranks_say_ready(j);
    if (rank != SECOND)
        ranks_keep_result(j, rank, rest, dlcoll_barrier(rest, NULL, NULL));
    else if (j->shared->go == 1)
        _exit(0);
    else
        pause();
    dlcoll_destroy(rest);
    dlcoll_destroy(c);
}

static bool the_rest_is_ready(void *arg)
{
    struct ranks *j = arg;
    return atomic_load(&j->shared->ready) == j->n - 1;
}

START_TEST(an_earlier_exit_is_not_named_again)
{
    struct ranks j;
    bool killed = _i % 2;
    ranks_init(&j, 4, 1 + _i / 2);
    ranks_start(&j, go_on_without);
    ranks_reap(&j, LEAVER);
    ranks_tell_exit(&j, LEAVER);
    atomic_store(&j.shared->go, killed ? 2 : 1);
    wait_until(the_rest_is_ready, &j, 20, "the rest has gone on");
    if (killed)
        kill(j.pid[SECOND], SIGKILL);
    ranks_reap(&j, SECOND);
    if (killed)
        ranks_play_agent(&j, SECOND);
    else
        ranks_tell_exit(&j, SECOND);
    ranks_wait(&j, 20, 1u << SECOND);
    for (int r = 0; r < SECOND; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        if (r == LEAVER)
            continue;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EPEER && e->rank == SECOND &&
                          e->signal == (killed ? SIGKILL : 0),
                      "rank %d: %d %s", r, j.shared->rank[r].code, e->text);
    }
    ranks_fini(&j);
}
END_TEST

static void destroy_and_stay(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t x[4] = {0};
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 0)
        ranks_keep_result(j, rank, c,
                          dlcoll_recv_any(x, sizeof(x), DLCOLL_U8, NULL, c, NULL, NULL));
    dlcoll_destroy(c);
    ranks_say_ready(j);
    ranks_await_ready(j);
}

static void ends_with_peer(struct ranks *j)
{
    ranks_wait(j, 20, 0);
    ck_assert_msg(j->shared->rank[0].code == DLCOLL_EPEER, "%d %s", j->shared->rank[0].code,
                  j->shared->rank[0].error.text);
    ranks_fini(j);
}

START_TEST(earlier_messages_are_received)
{
    struct ranks j;
    if (_i)
        setenv("DLCOLL_SHM", "0", 1);
    ranks_init(&j, 2, 1);
    ranks_start(&j, send_and_exit);
    if (_i) { /* over TCP it needs an answer before its send is over */
        atomic_store(&j.shared->go, 1);
        ranks_reap(&j, LEAVER);
        ranks_tell_exit(&j, LEAVER);
    } else {
        ranks_reap(&j, LEAVER);
        ranks_tell_exit(&j, LEAVER);
        atomic_store(&j.shared->go, 1);
    }
    ends_with_peer(&j);
}
END_TEST

START_TEST(a_receive_from_anybody_ends_when_all_have_left)
{
    struct ranks j;
    ranks_init(&j, 4, 1);
    ranks_start(&j, destroy_and_stay);
    ends_with_peer(&j);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_exit");
    TCase *tc = test_case(s, "exit", 60);
    tcase_add_loop_test(tc, a_waiting_rank_gets_an_error, 0, OPS);
    tcase_add_loop_test(tc, a_waiting_rank_gets_an_error_over_tcp, 0, OPS);
    tcase_add_loop_test(tc, all_waiting_ranks_get_an_error, 0, 6);
    tcase_add_loop_test(tc, a_rank_waiting_for_another_node_gets_an_error, 0, OPS - 1);
    tcase_add_loop_test(tc, a_monitored_barrier_names_it_and_goes_on, 1, 3);
    tcase_add_loop_test(tc, a_late_rank_is_waited_for, 0, 4);
    tcase_add_loop_test(tc, a_rank_that_does_not_need_it_goes_on, 0, 4);
    tcase_add_loop_test(tc, an_earlier_exit_is_not_named_again, 0, 4);
    tcase_add_loop_test(tc, earlier_messages_are_received, 0, 2);
    tcase_add_test(tc, a_receive_from_anybody_ends_when_all_have_left);
    return s;
}

TEST_MAIN(suite)
