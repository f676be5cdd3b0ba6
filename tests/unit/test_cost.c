/* The faster of two ways is chosen by measured costs. */
#include "collectives/shm/cost.h"

#include <string.h>

#include "tests/lib/test.h"

enum { RANKS = 3, BYTES = 1000 * 1000 };

static struct cost g_costs[RANKS];
static struct cost_turn g_turns[RANKS];
static int g_size;

static void start(void)
{
    memset(g_costs, 0, sizeof(g_costs));
    memset(g_turns, 0, sizeof(g_turns));
}

/* One block, which takes rank i so many us. All ranks choose alike. */
static enum cost_way block(const uint64_t us[2], uint64_t more_of_rank)
{
    enum cost_way ways[RANKS];
    for (uint64_t i = 0; i < RANKS; i++)
        ways[i] = cost_choose(g_costs, RANKS, sizeof(g_costs[0]), g_size, &g_turns[i]);
    for (uint64_t i = 0; i < RANKS; i++) {
        ck_assert_int_eq(ways[i], ways[0]);
        cost_take(&g_costs[i], g_size, &g_turns[i], ways[i],
                  (us[ways[i]] + i * more_of_rank) * 1000, BYTES);
    }
    return ways[0];
}

/* How many of n are pulled. */
static int blocks(int n, uint64_t staged_us, uint64_t pulled_us)
{
    const uint64_t us[2] = {[COST_STAGED] = staged_us, [COST_PULLED] = pulled_us};
    int pulled = 0;
    for (int k = 0; k < n; k++)
        pulled += block(us, 1000) == COST_PULLED;
    return pulled;
}

START_TEST(lengths_have_classes)
{
    ck_assert_int_eq(cost_size(0), 0);
    ck_assert_int_eq(cost_size((32 << 10) - 1), 0);
    ck_assert_int_eq(cost_size(32 << 10), 1);
    ck_assert_int_eq(cost_size((128 << 10) - 1), 1);
    ck_assert_int_eq(cost_size(128 << 10), COST_LONG);
    ck_assert_int_eq(cost_size(1 << 20), 3);
    ck_assert_int_eq(cost_size((8 << 20) - 1), 3);
    ck_assert_int_eq(cost_size(SIZE_MAX), COST_SIZES - 1);
}
END_TEST

/* When both ways have had their turn, most go the faster way. */
START_TEST(the_faster_way_is_taken)
{
    ck_assert_int_eq(blocks(18, 200, 100), 9);
    ck_assert_int_ge(blocks(1000, 200, 100), 960);
    start();
    ck_assert_int_eq(blocks(18, 100, 200), 9);
    ck_assert_int_le(blocks(1000, 100, 200), 40);
}
END_TEST

/* For long operations one timed operation of each way is enough, after one that warms up. */
START_TEST(long_operations_are_timed_once)
{
    g_size = COST_LONG;
    ck_assert_int_eq(blocks(2, 200, 100), 0);
    ck_assert_int_eq(blocks(2, 200, 100), 2);
    ck_assert_int_eq(blocks(12, 200, 100), 12);
    start();
    g_size = COST_LONG;
    ck_assert_int_eq(blocks(4, 100, 200), 2);
    ck_assert_int_eq(blocks(12, 100, 200), 0);
}
END_TEST

START_TEST(both_ways_are_tried_again)
{
    for (g_size = 0; g_size < COST_SIZES; g_size++) {
        blocks(1, 100, 200);
        for (int k = 0; k < 10; k++) {
            int pulled = blocks(600, 100, 200);
            ck_assert_int_ge(pulled, 2);
            ck_assert_int_le(pulled, 30);
        }
        start();
    }
}
END_TEST

/* A change is soon detected: the chosen way has become slow, or the other one fast. */
START_TEST(changed_costs_are_detected)
{
    for (g_size = 0; g_size < COST_SIZES; g_size++) {
        blocks(1000, 100, 200);
        blocks(1200, 400, 200);
        ck_assert_int_ge(blocks(1000, 400, 200), 960);
        blocks(600, 150, 200);
        ck_assert_int_le(blocks(1000, 150, 200), 40);
        start();
    }
}
END_TEST

/* A turn that takes long now and then changes nothing for long. */
START_TEST(outliers_count_little)
{
    const uint64_t us[2] = {100, 130}, slow[2] = {180, 180};
    blocks(200, 100, 130);
    int pulled = 0;
    for (int k = 0; k < 10000; k++)
        pulled += block(k % 97 == 0 ? slow : us, 0) == COST_PULLED;
    ck_assert_int_le(pulled, 1000);
}
END_TEST

/* The sum over all ranks that have timed both ways decides: what one rank saves another may lose.
 */
START_TEST(all_ranks_count_that_have_timed_both)
{
    blocks(18, 100, 100);
    atomic_store(&g_costs[0].ps[COST_STAGED], 100);
    atomic_store(&g_costs[0].ps[COST_PULLED], 200);
    atomic_store(&g_costs[1].ps[COST_STAGED], 900);
    atomic_store(&g_costs[1].ps[COST_PULLED], 700);
    atomic_store(&g_costs[2].ps[COST_STAGED], 0);
    atomic_store(&g_costs[2].ps[COST_PULLED], 500);
    ck_assert_int_eq(cost_choose(g_costs, RANKS, sizeof(g_costs[0]), g_size, &g_turns[0]),
                     COST_PULLED);
    atomic_store(&g_costs[1].ps[COST_PULLED], 850);
    ck_assert_int_eq(cost_choose(g_costs, RANKS, sizeof(g_costs[0]), g_size, &g_turns[0]),
                     COST_STAGED);
}
END_TEST

/* An operation that had to go the other way does not count as a time of the chosen way. */
START_TEST(times_count_for_the_way_that_ran)
{
    for (int k = 0; k < 18; k++) {
        cost_choose(g_costs, RANKS, sizeof(g_costs[0]), g_size, &g_turns[0]);
        cost_take(&g_costs[0], g_size, &g_turns[0], COST_STAGED, 1000, BYTES);
    }
    ck_assert_uint_gt(atomic_load(&g_costs[0].ps[COST_STAGED]), 0);
    ck_assert_uint_eq(atomic_load(&g_costs[0].ps[COST_PULLED]), 0);
}
END_TEST

/* Times that do not fit are as long as can be. */
START_TEST(a_time_may_be_very_long)
{
    g_size = COST_LONG;
    for (int k = 0; k < 2; k++) {
        cost_choose(g_costs, RANKS, sizeof(g_costs[0]), g_size, &g_turns[0]);
        cost_take(&g_costs[0], g_size, &g_turns[0], COST_STAGED, UINT64_MAX / 4000, 1);
    }
    ck_assert_uint_eq(atomic_load(&g_costs[0].ps[COST_STAGED]), UINT32_MAX);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cost");
    TCase *tc = test_case(s, "cost", 5);
    tcase_add_checked_fixture(tc, start, NULL);
    tcase_add_test(tc, lengths_have_classes);
    tcase_add_test(tc, the_faster_way_is_taken);
    tcase_add_test(tc, long_operations_are_timed_once);
    tcase_add_test(tc, both_ways_are_tried_again);
    tcase_add_test(tc, changed_costs_are_detected);
    tcase_add_test(tc, outliers_count_little);
    tcase_add_test(tc, all_ranks_count_that_have_timed_both);
    tcase_add_test(tc, times_count_for_the_way_that_ran);
    tcase_add_test(tc, a_time_may_be_very_long);
    return s;
}

TEST_MAIN(suite)
