/* Operations of ranks on several nodes, by way of shared memory and the network: against what each
 * rank computes alone. Nodes have equal or unequal numbers of ranks, also a single one. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/hier/hier.h"
#include "collectives/comm/provider.h"
#include "collectives/shm/tuning.h"
#include "tests/lib/ranks.h"
#include "tests/lib/test.h"

enum { MOST = 20000 };

static int32_t g_a[16 * MOST], g_b[16 * MOST], g_c[16 * MOST];

static int32_t value(int rank, size_t i)
{
    return (int32_t)((unsigned)(rank + 3) * 40503u + (unsigned)i * (unsigned)(7 + rank));
}

static void fill(int rank, size_t n)
{
    for (size_t i = 0; i < n; i++)
        g_a[i] = value(rank, i);
    memset(g_b, 0x77, sizeof(g_b));
}

static int32_t sum(int n, size_t i)
{
    uint32_t s = 0;
    for (int r = 0; r < n; r++)
        s += (uint32_t)value(r, i);
    return (int32_t)s;
}

static void check_all_reduce(struct ranks *j, dlcoll_comm *c, int rank, size_t count, bool in_place)
{
    fill(rank, count);
    int32_t *to = in_place ? g_a : g_b;
    int r = dlcoll_all_reduce(g_a, to, count, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; i < count; i++)
        EXPECT(to[i] == sum(j->n, i), "%zu of %zu", i, count);
}

static void check_average(struct ranks *j, dlcoll_comm *c, int rank, size_t count)
{
    float *x = (float *)g_a;
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(rank + (int)(i % 5));
    int r = dlcoll_all_reduce(x, x, count, DLCOLL_F32, DLCOLL_AVG, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; i < count; i++)
        EXPECT(x[i] == (float)(j->n * (j->n - 1) / 2 + j->n * (int)(i % 5)) / (float)j->n);
}

static void check_reduce(struct ranks *j, dlcoll_comm *c, int rank, size_t count, int root)
{
    fill(rank, count);
    int r = dlcoll_reduce(g_a, rank == root ? g_b : NULL, count, DLCOLL_I32, DLCOLL_SUM, root, c,
                          NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; rank == root && i < count; i++)
        EXPECT(g_b[i] == sum(j->n, i), "%zu of %zu", i, count);
    for (size_t i = 0; i < count; i++)
        EXPECT(g_a[i] == value(rank, i));
}

static void check_broadcast(dlcoll_comm *c, int rank, size_t count, int root)
{
    fill(rank, count);
    int r =
        dlcoll_broadcast(rank == root ? g_a : NULL, g_b, count, DLCOLL_I32, root, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; i < count; i++)
        EXPECT(g_b[i] == value(root, i), "%zu of %zu", i, count);
}

static void check_all_gather(struct ranks *j, dlcoll_comm *c, int rank, size_t count, bool in_place)
{
    fill(rank, count);
    int32_t *send = in_place ? memcpy(g_b + (size_t)rank * count, g_a, count * 4) : g_a;
    int r = dlcoll_all_gather(send, g_b, count, DLCOLL_I32, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; i < count * (size_t)j->n; i++)
        EXPECT(g_b[i] == value((int)(i / count), i % count), "%zu of %zu", i, count);
}

static void check_reduce_scatter(struct ranks *j, dlcoll_comm *c, int rank, size_t count,
                                 bool in_place)
{
    fill(rank, count * (size_t)j->n);
    int32_t *to = in_place ? g_a + (size_t)rank * count : g_b;
    int r = dlcoll_reduce_scatter(g_a, to, count, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; i < count; i++)
        EXPECT(to[i] == sum(j->n, i + (size_t)rank * count), "%zu of %zu", i, count);
}

static void check_all_to_all(struct ranks *j, dlcoll_comm *c, int rank, size_t count, bool in_place)
{
    fill(rank, count * (size_t)j->n);
    int32_t *to = in_place ? g_a : g_b;
    int r = dlcoll_all_to_all(g_a, to, count, DLCOLL_I32, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; i < count * (size_t)j->n; i++)
        EXPECT(to[i] == value((int)(i / count), i % count + (size_t)rank * count));
}

/* Rank i has (i * 3 + j) % count elements for rank j. */
static void check_all_to_all_v(struct ranks *j, dlcoll_comm *c, int rank, size_t count)
{
    size_t to[RANKS_MOST], to_at[RANKS_MOST], from[RANKS_MOST], from_at[RANKS_MOST];
    for (int i = 0; i < j->n; i++) {
        to[i] = (size_t)(rank * 3 + i) % count;
        from[i] = (size_t)(i * 3 + rank) % count;
        to_at[i] = from_at[i] = (size_t)(j->n - 1 - i) * count;
    }
    fill(rank, count * (size_t)j->n);
    int r = dlcoll_all_to_all_v(g_a, to, to_at, g_b, from, from_at, DLCOLL_I32, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (int i = 0; i < j->n; i++) {
        for (size_t k = 0; k < count; k++) {
            int32_t want = value(i, (size_t)(j->n - 1 - rank) * count + k);
            EXPECT(g_b[from_at[i] + k] == (k < from[i] ? want : 0x77777777));
        }
    }
}

static void check_gathers(struct ranks *j, dlcoll_comm *c, int rank, size_t count, int root)
{
    fill(rank, count);
    int r = dlcoll_gather(g_a, rank == root ? g_b : NULL, count, DLCOLL_I32, root, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; rank == root && i < count * (size_t)j->n; i++)
        EXPECT(g_b[i] == value((int)(i / count), i % count));
    r = dlcoll_scatter(g_b, g_c, count, DLCOLL_I32, root, c, NULL, NULL);
    EXPECT(r == 0, "%s", why(c));
    for (size_t i = 0; i < count; i++)
        EXPECT(g_c[i] == value(rank, i));
}

static void every_operation(struct ranks *j, int rank)
{
    static const size_t counts[] = {1, 3, 17, 1000, 1025, 17000, MOST};
    dlcoll_comm *c = comm_start();
    hier_tuning.lanes = 2000;
    shm_tuning.piece_many = 2048;
    shm_tuning.piece_few = 4096;
    shm_tuning.piece_move = 8192;
    shm_tuning.chunk_move = 16384;
    shm_tuning.flat = 8192;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        size_t n = counts[k];
        for (int in_place = 0; in_place < 2; in_place++) {
            check_all_reduce(j, c, rank, n, in_place);
            check_all_gather(j, c, rank, n, in_place);
            check_reduce_scatter(j, c, rank, n, in_place);
            check_all_to_all(j, c, rank, n, in_place);
        }
        check_average(j, c, rank, n);
        check_all_to_all_v(j, c, rank, n);
        for (int root = 0; root < j->n; root++) {
            check_reduce(j, c, rank, n, root);
            check_broadcast(c, rank, n, root);
            check_gathers(j, c, rank, n, root);
        }
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    }
    EXPECT(c->hier, "the hierarchy has not been used");
    comm_end(c);
}

START_TEST(every_operation_on_several_nodes)
{
    static const struct {
        int ranks, nodes;
    } worlds[] = {{3, 2}, {4, 2}, {5, 2}, {6, 3}, {7, 3}, {8, 2}};
    ranks_run(worlds[_i].ranks, worlds[_i].nodes, every_operation);
}
END_TEST

/* --------------------------------------------------------------------------------------- deaths */

static enum call_kind g_kind; /* in which somebody dies */

static int once(dlcoll_comm *c, int rank)
{
    switch (g_kind) {
    case CALL_ALL_REDUCE:
        return dlcoll_all_reduce(g_a, g_b, MOST, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    case CALL_REDUCE:
        return dlcoll_reduce(g_a, g_b, MOST, DLCOLL_I32, DLCOLL_SUM, 0, c, NULL, NULL);
    case CALL_REDUCE_SCATTER:
        return dlcoll_reduce_scatter(g_a, g_b, MOST, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL);
    case CALL_BROADCAST:
        return dlcoll_broadcast(g_a, g_b, MOST, DLCOLL_I32, 0, c, NULL, NULL);
    case CALL_ALL_GATHER:
        return dlcoll_all_gather(g_a, g_b, MOST, DLCOLL_I32, c, NULL, NULL);
    case CALL_GATHER:
        return dlcoll_gather(g_a, g_b, MOST, DLCOLL_I32, 0, c, NULL, NULL);
    case CALL_SCATTER:
        return dlcoll_scatter(g_a, g_b, MOST, DLCOLL_I32, 0, c, NULL, NULL);
    case CALL_ALL_TO_ALL:
        return dlcoll_all_to_all(g_a, g_b, MOST, DLCOLL_I32, c, NULL, NULL);
    case CALL_SEND: { /* round the ring */
        dlcoll_p2p list[] = {{.send = g_a, .peer = (rank + 1) % 4},
                             {.recv = g_b, .peer = (rank + 3) % 4}};
        list[0].count = list[1].count = MOST;
        list[0].dtype = list[1].dtype = DLCOLL_I32;
        return dlcoll_batch(list, 2, c, NULL, NULL);
    }
    default:
        return dlcoll_barrier(c, NULL, NULL);
    }
}

static void be_killed(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    int r = once(c, rank);
    EXPECT(r == 0, "%s", why(c));
    ranks_say_ready(j);
    while (r == 0)
        r = once(c, rank);
    ranks_keep_result(j, rank, c, r);
    dlcoll_destroy(c);
}

static const enum call_kind g_kinds[] = {
    CALL_ALL_REDUCE, CALL_REDUCE,  CALL_REDUCE_SCATTER, CALL_BROADCAST, CALL_ALL_GATHER,
    CALL_GATHER,     CALL_SCATTER, CALL_ALL_TO_ALL,     CALL_SEND,      CALL_BARRIER};
enum { KINDS = sizeof(g_kinds) / sizeof(g_kinds[0]) };

/* Rank 1 or the root, on one node and on two; every survivor names it. */
START_TEST(a_killed_rank_ends_every_operation)
{
    struct ranks j;
    int victim = _i % 2;
    g_kind = g_kinds[_i / 2 % KINDS];
    ranks_init(&j, 4, 1 + _i / 2 / KINDS);
    ranks_start(&j, be_killed);
    wait_until(ranks_are_ready, &j, 20, "all ranks are at it");
    kill(j.pid[victim], SIGKILL);
    ranks_reap(&j, victim);
    ranks_play_agent(&j, victim);
    ranks_wait(&j, 20, 1u << victim);
    for (int r = 0; r < 4; r++) {
        if (r != victim)
            ck_assert_msg(
                j.shared->rank[r].code == DLCOLL_EPEER && j.shared->rank[r].error.rank == victim,
                "rank %d: %d %s", r, j.shared->rank[r].code, j.shared->rank[r].error.text);
    }
    ranks_fini(&j);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hier");
    TCase *tc = test_case(s, "operations", 60);
    tcase_add_loop_test(tc, every_operation_on_several_nodes, 0, 6);
    tc = test_case(s, "failures", 60);
    tcase_add_loop_test(tc, a_killed_rank_ends_every_operation, 0, 2 * 2 * KINDS);
    return s;
}

TEST_MAIN(suite)
