/* kill -9 of a rank in the middle of every operation, under two launchers that the test plays
 * (test_dlcoll_job has real ones), and under none: every
 * survivor returns the error that names it. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "tests/lib/coll_ops.h"
#include "tests/lib/ranks.h"

enum { RANKS = 8, COUNT = 40000 };

static enum coll_op g_op;
static int g_victim;
static uint16_t g_port;

static void say_ready(void *j)
{
    ranks_say_ready(j);
}

static void for_ever(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    struct coll_buffers b = coll_buffers_new(COUNT, RANKS);
    int r = 0;
    EXPECT(b.x);
    for (int k = 0; g_op < COLL_REPEATED && r == 0; k++) {
        if (k == 1)
            ranks_say_ready(j);
        r = coll_op_call(g_op, c, &b, k);
    }
    if (g_op >= COLL_REPEATED) { /* the others wait in it for the one to be killed */
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
        if (rank == g_victim) {
            ranks_say_ready(j);
            ranks_await_go(j); /* it never comes */
        }
        pthread_t watch = coll_when_inside(c, g_op, say_ready, j);
        r = coll_op_call(g_op, c, &b, 0);
        pthread_join(watch, NULL);
    }
    ranks_keep_result(j, rank, c, r);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == DLCOLL_ESTATE, "%s", why(c));
    dlcoll_destroy(c);
    coll_buffers_free(&b);
}

static void for_ever_alone(struct ranks *j, int rank)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_port);
    for_ever(j, rank);
}

/* launchers: 0: none. */
static void kill_one(enum coll_op op, int launchers, int victim)
{
    struct ranks j;
    const char *name = coll_op_names[op];
    double most = 0;
    g_op = op;
    g_victim = victim;
    ranks_init(&j, RANKS, launchers);
    ranks_start(&j, launchers ? for_ever : for_ever_alone);
    wait_until(ranks_are_ready, &j, 30, "all ranks are in the operation");
    test_elapse((op + 1) * 0.0007); /* another point of each operation */
    uint64_t killed_ns = mono_ns();
    kill(j.pid[victim], SIGKILL);
    ranks_reap(&j, victim);
    if (launchers)
        ranks_play_agent(&j, victim);
    ranks_wait(&j, 20, 1u << victim);
    for (int r = 0; r < RANKS; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        double ms = (double)(j.shared->rank[r].returned_ns - killed_ns) / 1e6;
        if (r == victim)
            continue;
        most = ms > most ? ms : most;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EPEER, "%s: rank %d: %d %s", name, r,
                      j.shared->rank[r].code, e->text);
        ck_assert_msg(e->rank == victim && e->pid == j.pid[victim], "%s: rank %d: %s", name, r,
                      e->text);
        ck_assert_msg(!launchers || strstr(e->text, "SIGKILL"), "%s: %s", name, e->text);
    }
    printf("%s, %d launchers: the last survivor knew after %.1f ms\n", name, launchers, most);
    ck_assert_double_lt(most, test_seconds(5) * 1000);
    ranks_fini(&j);
}

START_TEST(under_two_launchers)
{
    kill_one((enum coll_op)_i, 2, (_i * 5 + 1) % RANKS);
}
END_TEST

/* Rank 0, which leads its node. */
START_TEST(rank_0_under_one_launcher)
{
    kill_one((enum coll_op)_i, 1, 0);
}
END_TEST

START_TEST(without_a_launcher)
{
    int fd = reserve_port(&g_port);
    kill_one((enum coll_op)_i, 0, (_i * 5 + 1) % RANKS);
    close(fd);
}
END_TEST

START_TEST(over_tcp_alone)
{
    setenv("DLCOLL_SHM", "0", 1);
    kill_one((enum coll_op)_i, 2, (_i * 5 + 1) % RANKS);
}
END_TEST

/* Each surviving rank gets the sum of all survivors. */
static void go_on_alone(struct ranks *j, int rank)
{
    dlcoll_comm *c, *rest = NULL;
    dlcoll_group_opts opts = DLCOLL_GROUP_OPTS_INIT;
    static int32_t x[COUNT], y[COUNT];
    int r = 0;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_port);
    c = comm_start();
    for (int k = 0; r == 0; k++) {
        if (k == 1)
            ranks_say_ready(j);
        r = dlcoll_all_reduce(x, y, COUNT, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    }
    ranks_keep_result(j, rank, c, r);
    opts.timeout_ms = (int64_t)(test_seconds(10) * 1000);
    EXPECT(dlcoll_comm_shrink(c, &rest, &opts) == 0, "%s", why(NULL));
    EXPECT(dlcoll_size(rest) == RANKS - 1, "%d", dlcoll_size(rest));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < COUNT; i++)
            x[i] = rank * (i % 100 + k);
        r = dlcoll_all_reduce(x, y, COUNT, DLCOLL_I32, DLCOLL_SUM, rest, NULL, NULL);
        EXPECT(r == 0, "%s", why(rest));
        for (int i = 0; i < COUNT; i++)
            EXPECT(y[i] == (RANKS * (RANKS - 1) / 2 - g_victim) * (i % 100 + k), "element %d is %d",
                   i, y[i]);
    }
    comm_end(rest);
    dlcoll_destroy(c);
}

/* Without a launcher, through memory and over TCP; rank 0, too, which has the store. */
START_TEST(survivors_shrink_and_go_on)
{
    struct ranks j;
    int fd = reserve_port(&g_port);
    setenv("DLCOLL_SHM", _i % 2 ? "0" : "1", 1);
    g_victim = _i / 2 * 3;
    ranks_init(&j, RANKS, 0);
    ranks_start(&j, go_on_alone);
    wait_until(ranks_are_ready, &j, 30, "all ranks are in the operation");
    test_elapse((_i + 1) * 0.0007); /* another point of the operation each time */
    kill(j.pid[g_victim], SIGKILL);
    ranks_reap(&j, g_victim);
    ranks_wait(&j, 30, 1u << g_victim);
    for (int r = 0; r < RANKS; r++) {
        if (r != g_victim)
            ck_assert_msg(j.shared->rank[r].code == DLCOLL_EPEER &&
                              j.shared->rank[r].error.rank == g_victim,
                          "rank %d: %s", r, j.shared->rank[r].error.text);
    }
    ranks_fini(&j);
    close(fd);
}
END_TEST

/* Ranks 0 and 2 make a group with rank 1, which waits for rank 3: when that dies, and rank 1 goes
 * to shrink what is left, nobody in the group has died. */
enum { WAITER = 1, MAKERS = 4 };

static bool g_by_handle;

static int make(dlcoll_comm *c, dlcoll_comm **group)
{
    const int members[] = {0, WAITER, 2};
    dlcoll_work *work;
    if (!g_by_handle)
        return dlcoll_comm_new_group(c, members, 3, group, NULL);
    int r = dlcoll_comm_new_group_async(c, members, 3, group, NULL, &work);
    EXPECT(r == 0, "%s", why(c));
    r = dlcoll_wait(work);
    dlcoll_work_free(work);
    return r;
}

static void make_groups(struct ranks *j, int rank)
{
    dlcoll_comm *c, *group = NULL, *rest = NULL;
    int x;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_port);
    c = comm_start();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    ranks_say_ready(j);
    if (rank == g_victim)
        ranks_await_go(j); /* it never comes */
    int r =
        rank == WAITER ? dlcoll_recv(&x, 1, DLCOLL_I32, g_victim, c, NULL, NULL) : make(c, &group);
    EXPECT(!group);
    ranks_keep_result(j, rank, c, r);
    EXPECT(dlcoll_comm_shrink(c, &rest, NULL) == 0, "%s", why(NULL));
    EXPECT(dlcoll_size(rest) == MAKERS - 1);
    comm_end(rest);
    dlcoll_destroy(c);
}

START_TEST(a_failure_ends_the_making_of_groups)
{
    struct ranks j;
    int fd = reserve_port(&g_port);
    setenv("DLCOLL_TIMEOUT", "60s", 1);
    g_by_handle = _i;
    g_victim = MAKERS - 1;
    ranks_init(&j, MAKERS, 0);
    ranks_start(&j, make_groups);
    wait_until(ranks_are_ready, &j, 30, "all ranks have met");
    kill(j.pid[g_victim], SIGKILL);
    ranks_reap(&j, g_victim);
    ranks_wait(&j, 30, 1u << g_victim);
    for (int r = 0; r < g_victim; r++)
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EPEER &&
                          j.shared->rank[r].error.rank == g_victim,
                      "rank %d: %s", r, j.shared->rank[r].error.text);
    ranks_fini(&j);
    close(fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_kill");
    TCase *tc = test_case(s, "kill", 40);
    tcase_add_loop_test(tc, under_two_launchers, 0, COLL_OPS);
    tcase_add_loop_test(tc, rank_0_under_one_launcher, 0, COLL_OPS);
    tcase_add_loop_test(tc, without_a_launcher, 0, COLL_OPS);
    tcase_add_loop_test(tc, over_tcp_alone, 0, COLL_OPS);
    tcase_add_loop_test(tc, survivors_shrink_and_go_on, 0, 6);
    tcase_add_loop_test(tc, a_failure_ends_the_making_of_groups, 0, 2);
    return s;
}

TEST_MAIN(suite)
