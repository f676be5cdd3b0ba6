/* Groups, exchanges and the end by work handle, among other operations, in memory, over TCP and on
 * two nodes. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "tests/lib/ranks.h"

enum { RANKS = 5, TURNS = 6 };

static void finish(dlcoll_comm *c, dlcoll_work *w)
{
    EXPECT(dlcoll_wait(w) == 0, "%s", why(c));
    dlcoll_work_free(w);
}

/* The group works, and this rank is number `me` of `size`. */
static void use(dlcoll_comm *g, int me, int size)
{
    int32_t x = 1, sum = 0;
    EXPECT(g && dlcoll_rank(g) == me && dlcoll_size(g) == size);
    EXPECT(dlcoll_all_reduce(&x, &sum, 1, DLCOLL_I32, DLCOLL_SUM, g, NULL, NULL) == 0, "%s",
           why(g));
    EXPECT(sum == size, "%d", sum);
    comm_end(g);
}

static void all_at_once(dlcoll_comm *c, int me, int turn)
{
    dlcoll_comm *half, *listed, *twin, *none, *blocking;
    dlcoll_work *w[7];
    dlcoll_bytes *all;
    int list[2] = {3, 1}, color = me % 2 ? 7 : 2;
    int32_t x[100], y[100];
    char text[40];
    int len = snprintf(text, sizeof(text), "%*d", me * 3 + turn, me);
    for (int i = 0; i < 100; i++)
        x[i] = me + i;
    EXPECT(dlcoll_comm_split_async(c, color, -me, &half, NULL, &w[0]) == 0, "%s", why(c));
    EXPECT(dlcoll_all_reduce(x, y, 100, DLCOLL_I32, DLCOLL_MAX, c, NULL, &w[1]) == 0);
    EXPECT(dlcoll_exchange_bytes_async(text, (size_t)len, &all, c, NULL, &w[2]) == 0);
    EXPECT(dlcoll_comm_new_group_async(c, list, 2, &listed, NULL, &w[3]) == 0, "%s", why(c));
    EXPECT(dlcoll_comm_dup(c, &twin, NULL, &w[4]) == 0, "%s", why(c));
    EXPECT(dlcoll_comm_split_async(c, DLCOLL_NO_COLOR, 0, &none, NULL, &w[5]) == 0);
    EXPECT(dlcoll_barrier(c, NULL, &w[6]) == 0);
    memset(list, 0xee, sizeof(list)); /* it has been read */
    if (turn % 2)                     /* a blocking one takes its turn behind them */
        EXPECT(dlcoll_comm_split(c, 0, 0, &blocking, NULL) == 0, "%s", why(c));
    for (int i = 6; i >= 0; i--)
        finish(c, w[i]);
    EXPECT(!none && y[99] == RANKS - 1 + 99);
    for (int r = 0; r < RANKS; r++) {
        char want[40];
        int n = snprintf(want, sizeof(want), "%*d", r * 3 + turn, r);
        EXPECT(all[r].len == (size_t)n && memcmp(all[r].data, want, (size_t)n) == 0, "rank %d", r);
    }
    dlcoll_bytes_free(all);
    use(half, me % 2 ? (3 - me) / 2 : (4 - me) / 2, me % 2 ? 2 : 3);
    EXPECT((me == 3 || me == 1) == (listed != NULL));
    if (listed)
        use(listed, me == 3 ? 0 : 1, 2);
    use(twin, me, RANKS);
    if (turn % 2)
        use(blocking, me, RANKS);
    EXPECT(dlcoll_comm_dup(c, &twin, NULL, NULL) == 0, "%s", why(c));
    use(twin, me, RANKS);
}

static void handles(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    dlcoll_work *w[2];
    (void)j;
    for (int turn = 0; turn < TURNS; turn++)
        all_at_once(c, rank, turn);
    EXPECT(dlcoll_barrier(c, NULL, &w[0]) == 0);
    EXPECT(dlcoll_finalize_async(c, NULL, &w[1]) == 0, "%s", why(c));
    EXPECT(dlcoll_barrier(c, NULL, NULL) == DLCOLL_ESTATE);
    EXPECT(strcmp(why(c), "the communicator has been finalized") == 0, "%s", why(c));
    finish(c, w[1]);
    finish(c, w[0]);
    dlcoll_destroy(c);
}

START_TEST(everything_by_handle)
{
    setenv("DLCOLL_SHM", _i == 1 ? "0" : "1", 1);
    ranks_run_for(RANKS, _i == 2 ? 2 : 1, handles, 60);
}
END_TEST

static void refusals(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    dlcoll_work *w;
    dlcoll_bytes *all;
    (void)j, (void)rank;
    EXPECT(dlcoll_finalize_async(c, NULL, NULL) == DLCOLL_EINVAL);
    EXPECT(strcmp(why(c), "finalize: work is NULL") == 0, "%s", why(c));
    EXPECT(dlcoll_comm_split_async(c, 0, 0, NULL, NULL, &w) == DLCOLL_EINVAL && !w);
    EXPECT(dlcoll_comm_dup(c, NULL, NULL, &w) == DLCOLL_EINVAL);
    EXPECT(strcmp(why(c), "comm_dup: group is NULL") == 0, "%s", why(c));
    EXPECT(dlcoll_exchange_bytes_async(NULL, 1, &all, c, NULL, &w) == DLCOLL_EINVAL && !all);
    EXPECT(dlcoll_comm_dup(NULL, NULL, NULL, NULL) == DLCOLL_EINVAL);
    comm_end(c);
}

START_TEST(bad_arguments_are_refused)
{
    ranks_run(1, 1, refusals);
}
END_TEST

/* One rank splits where the others exchange. */
static void differ(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start(), *group;
    dlcoll_bytes *all;
    dlcoll_work *w;
    int code = rank == 1 ? dlcoll_comm_split_async(c, 0, 0, &group, NULL, &w)
                         : dlcoll_exchange_bytes_async("x", 1, &all, c, NULL, &w);
    EXPECT(code == 0);
    EXPECT(dlcoll_wait(w) == DLCOLL_EMISMATCH, "%s", why(c));
    EXPECT(strstr(why(c), "comm_split") && strstr(why(c), "exchange_bytes"), "%s", why(c));
    dlcoll_work_free(w);
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(different_calls_are_reported)
{
    setenv("DLCOLL_SHM", _i ? "1" : "0", 1);
    ranks_run(3, 1, differ);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_handles");
    TCase *tc = test_case(s, "handles", 90);
    tcase_add_loop_test(tc, everything_by_handle, 0, 3);
    tcase_add_test(tc, bad_arguments_are_refused);
    tcase_add_loop_test(tc, different_calls_are_reported, 0, 2);
    return s;
}

TEST_MAIN(suite)
