/* Persistent operations: prepared once, started again and again with other data, among others, in
 * memory, over TCP and on two nodes. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "tests/lib/ranks.h"

enum { RANKS = 5, TURNS = 40, N = 300 };

static int next(const dlcoll_comm *c, int by)
{
    return (dlcoll_rank(c) + by + RANKS) % RANKS;
}

static int32_t number(int rank, int turn, int i)
{
    return rank * 1000 + turn * 7 + i;
}

static void again(struct ranks *j, int rank)
{
    static int32_t x[N], sums[N], parts[RANKS * N], got[RANKS * N], column[2 * N], right[N];
    dlcoll_comm *c = comm_start();
    dlcoll_opts o = DLCOLL_OPTS_INIT, with = DLCOLL_OPTS_INIT;
    dlcoll_work *w[5];
    size_t counts[RANKS], displs[RANKS];
    int from = next(c, -1), to = next(c, 1);
    dlcoll_graph ring = DLCOLL_GRAPH_INIT;
    dlcoll_layout apart = DLCOLL_LAYOUT_INIT;
    const dlcoll_span spans[2] = {{x, right, 3}, {x + 3, right + 3, N - 3}};
    (void)j;
    o.flags = with.flags = DLCOLL_PERSISTENT;
    for (size_t i = 0; i < RANKS; i++) {
        counts[i] = N - 10 * i - 10 * (size_t)rank;
        displs[i] = i * N;
    }
    ring.sources = &from;
    ring.dests = &to;
    ring.nsources = ring.ndests = 1;
    apart.blocks = N;
    apart.length = 1;
    apart.stride = 2;
    with.recv_layout = &apart;
    EXPECT(dlcoll_all_reduce(x, sums, N, DLCOLL_I32, DLCOLL_SUM, c, &o, &w[0]) == 0);
    EXPECT(dlcoll_all_to_all_v(parts, counts, displs, got, counts, displs, DLCOLL_I32, c, &o,
                               &w[1]) == 0);
    EXPECT(dlcoll_neighbor_all_gather(x, column, N, DLCOLL_I32, &ring, c, &with, &w[2]) == 0);
    EXPECT(dlcoll_all_reduce_coalesced(spans, 2, DLCOLL_I32, DLCOLL_MAX, c, &o, &w[3]) == 0);
    EXPECT(dlcoll_barrier(c, &o, &w[4]) == 0);
    memset(counts, 0xee, sizeof(counts)); /* they have been read */
    memset(displs, 0xee, sizeof(displs));
    memset(&apart, 0xee, sizeof(apart));
    for (int i = 0; i < 5; i++)
        EXPECT(dlcoll_wait(w[i]) == 0 && dlcoll_test(w[i]) == 0, "not begun");
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < N; i++)
            x[i] = number(rank, turn, i);
        for (int i = 0; i < RANKS * N; i++)
            parts[i] = number(rank, turn, i);
        for (int i = 0; i < 5; i++) { /* in another order each time, the same on all ranks */
            EXPECT(dlcoll_start(w[(i + turn) % 5]) == 0, "%s", why(c));
            if (turn % 3 == 0)
                EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
        }
        if (turn % 2)
            EXPECT(dlcoll_wait_all(w, 5, -1) == 0, "%s", why(c));
        for (int i = 4; i >= 0; i--)
            EXPECT(dlcoll_wait(w[i]) == 0, "%s", why(c));
        for (int i = 0; i < N; i++) {
            int32_t sum = RANKS * number(0, turn, i) + 1000 * RANKS * (RANKS - 1) / 2;
            EXPECT(sums[i] == sum && column[2 * i] == number(from, turn, i) &&
                       right[i] == number(RANKS - 1, turn, i),
                   "turn %d, element %d", turn, i);
        }
        for (int r = 0; r < RANKS; r++) {
            for (int i = 0; i < N - 10 * r - 10 * rank; i++)
                EXPECT(got[r * N + i] == number(r, turn, rank * N + i), "turn %d of %d", turn, r);
        }
    }
    for (int i = 0; i < 5; i++)
        dlcoll_work_free(w[i]);
    comm_end(c);
}

START_TEST(operations_are_started_again_and_again)
{
    setenv("DLCOLL_SHM", _i == 1 ? "0" : "1", 1);
    ranks_run_for(RANKS, _i == 2 ? 2 : 1, again, 60);
}
END_TEST

static void expect_error(dlcoll_comm *c, int code, int want, const char *text)
{
    EXPECT(code == want, "%d: %s", code, why(c));
    EXPECT(strcmp(why(c), text) == 0, "%s", why(c));
}

static void refusals(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    int32_t x = rank, y;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_work *w, *once;
    (void)j;
    o.flags = DLCOLL_PERSISTENT;
    expect_error(c, dlcoll_all_reduce(&x, &y, 1, DLCOLL_I32, DLCOLL_SUM, c, &o, NULL),
                 DLCOLL_EINVAL, "all_reduce: a persistent operation needs a work handle");
    expect_error(c, dlcoll_send(&x, 1, DLCOLL_I32, 0, c, &o, &w), DLCOLL_EINVAL,
                 "send: this call cannot be persistent");
    o.flags = 4;
    expect_error(c, dlcoll_barrier(c, &o, &w), DLCOLL_EINVAL, "barrier: opts has an unknown flag");
    o.flags = DLCOLL_PERSISTENT;
    EXPECT(dlcoll_start(NULL) == DLCOLL_EINVAL);
    EXPECT(dlcoll_barrier(c, NULL, &once) == 0 && dlcoll_wait(once) == 0);
    expect_error(c, dlcoll_start(once), DLCOLL_EINVAL,
                 "dlcoll_start: the handle is not a persistent operation's");
    dlcoll_work_free(once);
    EXPECT(dlcoll_all_reduce(&x, &y, 1, DLCOLL_I32, DLCOLL_SUM, c, &o, &w) == 0);
    if (rank == 0) { /* rank 1 comes only when this one has tried */
        EXPECT(dlcoll_start(w) == 0);
        expect_error(c, dlcoll_start(w), DLCOLL_ESTATE, "all_reduce: the operation is under way");
        EXPECT(dlcoll_send(&x, 1, DLCOLL_I32, 1, c, NULL, NULL) == 0, "%s", why(c));
    } else {
        EXPECT(dlcoll_recv(&y, 1, DLCOLL_I32, 0, c, NULL, NULL) == 0, "%s", why(c));
        EXPECT(dlcoll_start(w) == 0);
    }
    EXPECT(dlcoll_wait(w) == 0 && y == 1, "%s", why(c));
    y = 0;
    EXPECT(dlcoll_start(w) == 0);
    dlcoll_work_free(w); /* while it is under way: the operation ends all the same */
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0 && y == 1, "%s", why(c));
    comm_end(c);
}

START_TEST(what_cannot_be_is_refused)
{
    ranks_run(2, 1, refusals);
}
END_TEST

/* Each start has the whole timeout, however long after the call it is. */
static void too_late(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_work *w;
    o.flags = DLCOLL_PERSISTENT;
    o.timeout_ms = 300;
    EXPECT(dlcoll_barrier(c, &o, &w) == 0);
    test_elapse(0.5); /* longer than the timeout */
    ranks_say_ready(j);
    ranks_await_ready(j);
    if (rank == 0) {
        uint64_t began = mono_ns();
        EXPECT(dlcoll_start(w) == 0);
        int code = dlcoll_wait(w);
        EXPECT(code == DLCOLL_ETIMEDOUT, "%d: %s", code, why(c));
        EXPECT(mono_ns() - began >= 300u * 1000 * 1000, "too early");
        ranks_keep_result(j, rank, c, code);
    } else {
        ranks_await_go(j);
    }
    dlcoll_destroy(c);
}

static bool rank_0_has_returned(void *ranks)
{
    const struct ranks *j = ranks;
    return atomic_load(&j->shared->rank[0].returned_ns);
}

START_TEST(each_start_has_the_timeout)
{
    struct ranks j;
    ranks_init(&j, 2, 1);
    ranks_start(&j, too_late);
    wait_until(rank_0_has_returned, &j, 30, "rank 0's wait has timed out");
    atomic_store(&j.shared->go, 1);
    ranks_wait(&j, 30, 0);
    ranks_fini(&j);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_persistent");
    TCase *tc = test_case(s, "persistent", 90);
    tcase_add_loop_test(tc, operations_are_started_again_and_again, 0, 3);
    tcase_add_test(tc, what_cannot_be_is_refused);
    tcase_add_test(tc, each_start_has_the_timeout);
    return s;
}

TEST_MAIN(suite)
