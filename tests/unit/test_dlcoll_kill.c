/* kill -9 of a rank in the middle of every operation, under two launchers, and under none: every
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
#include "tests/lib/ranks.h"

enum { RANKS = 6, COUNT = 40000 };

static const char *const g_ops[] = {
    "all_reduce",       "broadcast",  "reduce",       "all_gather", "gather",    "scatter",
    "reduce_scatter",   "all_to_all", "all_gather_v", "gather_v",   "scatter_v", "all_to_all_v",
    "barrier",          "send",       "batch",        "recv_any",   "coalesced", "exchange",
    "reduce_scatter_v", "async",
};
enum { OPS = sizeof(g_ops) / sizeof(g_ops[0]) };

static int g_op;
static uint16_t g_port;

static int neighbours(dlcoll_comm *c, int32_t *x, int32_t *y, size_t n, bool batch)
{
    int rank = dlcoll_rank(c), size = dlcoll_size(c);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    dlcoll_p2p list[2] = {{.send = x, .count = n, .dtype = DLCOLL_I32, .peer = right},
                          {.recv = y, .count = n, .dtype = DLCOLL_I32, .peer = left}};
    if (batch)
        return dlcoll_batch(list, 2, c, NULL, NULL);
    int r = rank % 2 ? 0 : dlcoll_send(x, n, DLCOLL_I32, right, c, NULL, NULL);
    if (r == 0)
        r = dlcoll_recv(y, n, DLCOLL_I32, left, c, NULL, NULL);
    if (r == 0 && rank % 2)
        r = dlcoll_send(x, n, DLCOLL_I32, right, c, NULL, NULL);
    return r;
}

/* Everybody sends to rank 0 and waits for its word. */
static int to_anybody(dlcoll_comm *c, int32_t *x)
{
    int r = 0;
    for (int i = 1; i < dlcoll_size(c) && dlcoll_rank(c) == 0 && r == 0; i++)
        r = dlcoll_recv_any(x, 100, DLCOLL_I32, NULL, c, NULL, NULL);
    for (int i = 1; i < dlcoll_size(c) && dlcoll_rank(c) == 0 && r == 0; i++)
        r = dlcoll_send(x, 1, DLCOLL_I32, i, c, NULL, NULL);
    if (dlcoll_rank(c) != 0)
        r = dlcoll_send(x, 100, DLCOLL_I32, 0, c, NULL, NULL);
    if (dlcoll_rank(c) != 0 && r == 0)
        r = dlcoll_recv(x, 1, DLCOLL_I32, 0, c, NULL, NULL);
    return r;
}

static int by_handle(dlcoll_comm *c, int32_t *x, size_t n)
{
    dlcoll_work *w[3] = {NULL};
    int r = 0;
    for (int i = 0; i < 3 && r == 0; i++)
        r = dlcoll_all_reduce(x, x, n, DLCOLL_I32, DLCOLL_MAX, c, NULL, &w[i]);
    if (r == 0)
        r = dlcoll_wait_all(w, 3, -1);
    for (int i = 0; i < 3; i++)
        dlcoll_work_free(w[i]);
    return r;
}

static int perform(dlcoll_comm *c, int32_t *x, int32_t *y, int turn)
{
    size_t n = COUNT, size = (size_t)dlcoll_size(c), counts[RANKS];
    int root = turn % RANKS;
    dlcoll_span spans[3] = {{x, x, n}, {y, y, 3}, {y + 3, y + 3, 5}};
    dlcoll_bytes *all = NULL;
    int r;
    for (size_t i = 0; i < size; i++)
        counts[i] = n / (i + 1);
    size_t own = counts[dlcoll_rank(c)], even[RANKS] = {n, n, n, n, n, n};
    switch (g_op) {
    case 0:
        return dlcoll_all_reduce(x, x, n, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case 1:
        return dlcoll_broadcast(x, x, n, DLCOLL_I32, root, c, NULL, NULL);
    case 2:
        return dlcoll_reduce(x, x, n, DLCOLL_I32, DLCOLL_MAX, root, c, NULL, NULL);
    case 3:
        return dlcoll_all_gather(x, y, n, DLCOLL_I32, c, NULL, NULL);
    case 4:
        return dlcoll_gather(x, y, n, DLCOLL_I32, root, c, NULL, NULL);
    case 5:
        return dlcoll_scatter(y, x, n, DLCOLL_I32, root, c, NULL, NULL);
    case 6:
        return dlcoll_reduce_scatter(y, x, n, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case 7:
        return dlcoll_all_to_all(y, y, n, DLCOLL_I32, c, NULL, NULL);
    case 8:
        return dlcoll_all_gather_v(x, y, counts, NULL, DLCOLL_I32, c, NULL, NULL);
    case 9:
        return dlcoll_gather_v(x, own, y, counts, NULL, DLCOLL_I32, root, c, NULL, NULL);
    case 10:
        return dlcoll_scatter_v(y, counts, NULL, x, own, DLCOLL_I32, root, c, NULL, NULL);
    case 11:
        return dlcoll_all_to_all_v(y, even, NULL, y + size * n, even, NULL, DLCOLL_I32, c, NULL,
                                   NULL);
    case 12:
        return dlcoll_barrier(c, NULL, NULL);
    case 13:
        return neighbours(c, x, y, n, false);
    case 14:
        return neighbours(c, x, y, n, true);
    case 15:
        return to_anybody(c, x);
    case 16:
        return dlcoll_all_reduce_coalesced(spans, 3, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case 17:
        r = dlcoll_exchange_bytes(x, own, &all, c, NULL);
        dlcoll_bytes_free(all);
        return r;
    case 18:
        return dlcoll_reduce_scatter_v(y, x, counts, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    default:
        return by_handle(c, x, n);
    }
}

static void for_ever(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    int32_t *x = calloc(COUNT, 4), *y = calloc(2 * RANKS * COUNT, 4);
    int r = 0;
    for (int k = 0; r == 0; k++) {
        if (k == 1)
            ranks_say_ready(j);
        r = perform(c, x, y, k);
    }
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
    free(x);
    free(y);
}

static void for_ever_alone(struct ranks *j, int rank)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_env_int("MASTER_PORT", g_port);
    for_ever(j, rank);
}

static void kill_one(int op, bool by_agent)
{
    struct ranks j;
    int victim = (op * 5 + 1) % RANKS;
    double most = 0;
    g_op = op;
    ranks_init(&j, RANKS, by_agent ? 2 : 0);
    ranks_start(&j, by_agent ? for_ever : for_ever_alone);
    wait_until(ranks_are_ready, &j, 30, "all ranks are in their second operation");
    nanosleep(&(struct timespec){.tv_nsec = (op + 1) * 700000}, NULL); /* some point in it */
    uint64_t killed_ns = mono_ns();
    kill(j.pid[victim], SIGKILL);
    ranks_reap(&j, victim);
    if (by_agent)
        ranks_play_agent(&j, victim);
    ranks_wait(&j, 20, 1u << victim);
    for (int r = 0; r < RANKS; r++) {
        dlcoll_error *e = &j.shared->rank[r].error;
        double ms = (double)(j.shared->rank[r].returned_ns - killed_ns) / 1e6;
        if (r == victim)
            continue;
        most = ms > most ? ms : most;
        ck_assert_msg(j.shared->rank[r].code == DLCOLL_EPEER, "%s: rank %d: %d %s", g_ops[op], r,
                      j.shared->rank[r].code, e->text);
        ck_assert_msg(e->rank == victim && e->pid == j.pid[victim], "%s: rank %d: %s", g_ops[op], r,
                      e->text);
        ck_assert_msg(!by_agent || strstr(e->text, "SIGKILL"), "%s: %s", g_ops[op], e->text);
    }
    printf("%s, %s: the last survivor knew after %.1f ms\n", g_ops[op],
           by_agent ? "two launchers" : "no launcher", most);
    ck_assert_double_lt(most, test_seconds(5) * 1000);
    ranks_fini(&j);
}

START_TEST(under_two_launchers)
{
    kill_one(_i, true);
}
END_TEST

START_TEST(without_a_launcher)
{
    int fd = reserve_port(&g_port);
    kill_one(_i, false);
    close(fd);
}
END_TEST

START_TEST(over_tcp_alone)
{
    setenv("DLCOLL_SHM", "0", 1);
    kill_one(_i, true);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_kill");
    TCase *tc = test_case(s, "kill", 40);
    tcase_add_loop_test(tc, under_two_launchers, 0, OPS);
    tcase_add_loop_test(tc, without_a_launcher, 0, OPS);
    tcase_add_loop_test(tc, over_tcp_alone, 0, OPS);
    return s;
}

TEST_MAIN(suite)
