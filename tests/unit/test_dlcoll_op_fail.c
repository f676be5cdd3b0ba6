/* Reductions of the program's own that fail: every rank gets the failure and its reason, in every
 * reducing operation, in memory, over TCP and on two nodes. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "tests/lib/ranks.h"

enum { RANKS = 4, COUNT = 1000 };

static const struct {
    int nodes;
    const char *shm;
} g_ways[] = {{1, "1"}, {1, "0"}, {2, "1"}};
enum { WAYS = 3 };

struct when {
    bool fails;
    int calls;
};

static void add(void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    struct when *w = ctx;
    int32_t *x = acc;
    const int32_t *y = in;
    (void)dtype;
    w->calls++;
    if (w->fails)
        EXPECT(dlcoll_op_fail("no more than 9") == 0);
    for (size_t i = 0; i < count; i++)
        x[i] += y[i];
}

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, SCAN, EXSCAN, COALESCED, STRIDED, HANDLE, KINDS };

static int perform(enum kind kind, dlcoll_op op, dlcoll_comm *c)
{
    static int32_t x[COUNT * RANKS], y[COUNT * RANKS];
    const dlcoll_span spans[2] = {{x, y, COUNT}, {x + COUNT, y + COUNT, COUNT}};
    const dlcoll_layout layout = {
        .size = sizeof(layout), .version = 1, .blocks = COUNT / 2, .length = 1, .stride = 2};
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_work *work;
    switch (kind) {
    case ALL_REDUCE:
        return dlcoll_all_reduce(x, y, COUNT, DLCOLL_I32, op, c, NULL, NULL);
    case REDUCE:
        return dlcoll_reduce(x, y, COUNT, DLCOLL_I32, op, 1, c, NULL, NULL);
    case REDUCE_SCATTER:
        return dlcoll_reduce_scatter(x, y, COUNT, DLCOLL_I32, op, c, NULL, NULL);
    case SCAN:
        return dlcoll_scan(x, y, COUNT, DLCOLL_I32, op, c, NULL, NULL);
    case EXSCAN:
        return dlcoll_exscan(x, y, COUNT, DLCOLL_I32, op, c, NULL, NULL);
    case COALESCED:
        return dlcoll_all_reduce_coalesced(spans, 2, DLCOLL_I32, op, c, NULL, NULL);
    case STRIDED:
        o.send_layout = o.recv_layout = &layout;
        return dlcoll_all_reduce(x, y, COUNT / 2, DLCOLL_I32, op, c, &o, NULL);
    case HANDLE:
    case KINDS:
        break;
    }
    int r = dlcoll_all_reduce(x, y, COUNT, DLCOLL_I32, op, c, NULL, &work);
    if (r == 0)
        r = dlcoll_wait(work);
    dlcoll_work_free(work);
    return r;
}

/* Any number of ranks whose function fails, or none: what all get. */
static void fail_one(dlcoll_comm *world, enum kind kind, int failing)
{
    int rank = dlcoll_rank(world), n = dlcoll_size(world), lowest = n;
    struct when when = {.fails = failing < 0 || rank == failing};
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_comm *c;
    dlcoll_op op;
    int32_t failed[RANKS];
    EXPECT(dlcoll_op_create_user(&op, add, &when, DLCOLL_OP_MAY_FAIL) == 0);
    EXPECT(dlcoll_comm_dup(world, &c, NULL, NULL) == 0, "%s", why(world));
    int r = perform(kind, op, c);
    int32_t mine = when.fails && when.calls;
    EXPECT(!mine || when.calls == 1, "called %d times", when.calls);
    EXPECT(dlcoll_all_gather(&mine, failed, 1, DLCOLL_I32, world, NULL, NULL) == 0);
    for (int i = n - 1; i >= 0; i--)
        lowest = failed[i] ? i : lowest;
    dlcoll_last_error(c, &e);
    if (lowest < n)
        EXPECT(r == DLCOLL_EABORTED && e.rank == lowest && strstr(e.text, "failed: no more than 9"),
               "kind %d: %d of rank %d, not %d: %s", kind, r, e.rank, lowest, e.text);
    else
        EXPECT(r == 0 && failing >= 0 && dlcoll_barrier(c, NULL, NULL) == 0, "kind %d: %s", kind,
               e.text);
    dlcoll_destroy(c);
    dlcoll_op_free(op);
}

static void failing(struct ranks *j, int rank)
{
    dlcoll_comm *world = comm_start();
    (void)j, (void)rank;
    EXPECT(dlcoll_op_fail("outside") == DLCOLL_ESTATE);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        for (int f = -1; f < RANKS; f++)
            fail_one(world, kind, f);
    }
    comm_end(world);
}

START_TEST(every_rank_gets_the_reason)
{
    setenv("DLCOLL_SHM", g_ways[_i].shm, 1);
    ranks_run(RANKS, g_ways[_i].nodes, failing);
}
END_TEST

/* A handle that is dropped: its buffer is the program's again. */
static void dropping(struct ranks *j, int rank)
{
    static int32_t x[1 << 18];
    dlcoll_comm *c = comm_start();
    dlcoll_work *work;
    for (size_t i = 0; i < 1 << 18; i++)
        x[i] = 1;
    EXPECT(dlcoll_all_reduce(x, x, 1 << 18, DLCOLL_I32, DLCOLL_SUM, c, NULL, &work) == 0);
    dlcoll_work_drop(work);
    for (size_t i = 0; i < 1 << 18; i++)
        EXPECT(x[i] == RANKS, "element %zu is %d", i, x[i]);
    EXPECT(dlcoll_recv(x, 10, DLCOLL_I32, (rank + 1) % RANKS, c, NULL, &work) == 0);
    dlcoll_work_drop(work); /* nobody sends: it does not wait */
    dlcoll_work_drop(NULL);
    comm_end(c);
    (void)j;
}

START_TEST(a_dropped_handle_leaves_its_buffer)
{
    setenv("DLCOLL_SHM", g_ways[_i].shm, 1);
    ranks_run(RANKS, g_ways[_i].nodes, dropping);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_op_fail");
    TCase *tc = test_case(s, "op_fail", 60);
    tcase_add_loop_test(tc, every_rank_gets_the_reason, 0, WAYS);
    tcase_add_loop_test(tc, a_dropped_handle_leaves_its_buffer, 0, WAYS);
    return s;
}

TEST_MAIN(suite)
