/* One rank calls an operation in the place of which all others call another one: for every pair of
 * operations, through shared memory, over TCP, and on two nodes. Each rank must learn of the
 * mismatch at the latest in the next operation that involves all ranks, even where both operations
 * of the pair end without any rank having met the other operation. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "tests/lib/coll_ops.h"
#include "tests/lib/ranks.h"

enum { AT_ONCE = 8, ELEMENTS = 3, OPS = COLL_BARRIER + 4, WAYS = 3, ROOTS = 2 };

/* Not the messages: their order is that of two ranks. */
static enum coll_op op_at(int i)
{
    static const enum coll_op more[] = {COLL_COALESCED, COLL_EXCHANGE, COLL_SPLIT};
    return i <= COLL_BARRIER ? (enum coll_op)i : more[i - COLL_BARRIER - 1];
}

static const struct way {
    const char *name;
    const char *shm; /* DLCOLL_SHM */
    int ranks, nodes;
} g_ways[WAYS] = {
    {"shared memory", "1", 3, 1},
    {"TCP", "0", 3, 1},
    {"two nodes", "1", 4, 2},
};

static const enum coll_op g_next[] = {COLL_ALL_REDUCE, COLL_BARRIER, COLL_ALL_GATHER,
                                      COLL_ALL_TO_ALL};

/* Runs one world in which the odd rank makes a different call. */
struct trial {
    struct ranks ranks;
    const struct way *way;
    enum coll_op most, odd, next;
    int odd_rank, most_root, odd_root;
};

static struct trial *g_trial;

static void call_pair(struct ranks *j, int rank)
{
    const struct trial *t = g_trial;
    dlcoll_comm *c = comm_start();
    struct coll_buffers b = coll_buffers_new(ELEMENTS, j->n);
    bool odd = rank == t->odd_rank;
    EXPECT(b.x, "no memory");
    int r = coll_op_call(odd ? t->odd : t->most, c, &b, odd ? t->odd_root : t->most_root);
    if (r == 0)
        r = coll_op_call(t->next, c, &b, 0);
    ranks_keep_result(j, rank, c, r);
    ranks_say_ready(j);
    ranks_await_ready(j); /* so that no rank is told by the end of another one */
    dlcoll_destroy(c);
    coll_buffers_free(&b);
}

static void start(struct trial *t)
{
    g_trial = t;
    setenv("DLCOLL_SHM", t->way->shm, 1);
    ranks_init(&t->ranks, t->way->ranks, t->way->nodes);
    ranks_start(&t->ranks, call_pair);
}

static void end(struct trial *t)
{
    ranks_wait(&t->ranks, 30, 0);
    for (int r = 0; r < t->way->ranks; r++) {
        const dlcoll_error *e = &t->ranks.shared->rank[r].error;
        ck_assert_msg(t->ranks.shared->rank[r].code == DLCOLL_EMISMATCH &&
                          strstr(e->text, " called "),
                      "%s: rank %d of %d called %s (root %d), the others %s (root %d), then all "
                      "%s: rank %d got %d: %s",
                      t->way->name, t->odd_rank, t->way->ranks, coll_op_names[t->odd], t->odd_root,
                      coll_op_names[t->most], t->most_root, coll_op_names[t->next], r,
                      t->ranks.shared->rank[r].code, e->text);
    }
    ranks_fini(&t->ranks);
}

/* Which rank is odd, and the roots, change from pair to pair; roots == ROOTS: they differ. */
static void run_pairs(const struct way *way, int most, int roots)
{
    static struct trial trials[AT_ONCE];
    int n = 0, turn = most + roots;
    for (int odd = 0; odd < OPS; odd++, turn++) {
        if (odd == most)
            continue;
        struct trial *t = &trials[n++];
        *t = (struct trial){.way = way,
                            .most = op_at(most),
                            .odd = op_at(odd),
                            .next = g_next[turn / way->ranks % 4],
                            .odd_rank = turn % way->ranks,
                            .most_root = turn / 4 % way->ranks};
        t->odd_root = (t->most_root + roots) % way->ranks;
        start(t);
        if (n < AT_ONCE && odd + 1 < OPS)
            continue;
        while (n > 0)
            end(&trials[--n]);
    }
    while (n > 0)
        end(&trials[--n]);
}

START_TEST(every_pair_is_reported_in_the_next_operation)
{
    setenv("DLCOLL_TIMEOUT", test_text("%ds", (int)test_seconds(10)), 1);
    run_pairs(&g_ways[_i / OPS / ROOTS], _i / ROOTS % OPS, _i % ROOTS);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_pairs");
    TCase *tc = test_case(s, "pairs", 60);
    tcase_add_loop_test(tc, every_pair_is_reported_in_the_next_operation, 0, WAYS * OPS * ROOTS);
    return s;
}

TEST_MAIN(suite)
