/* The cross of operations (tests/lib/cross.h) between 1 to 9 ranks over TCP, through every
 * algorithm between hosts: ranks are threads. `make cross` runs all of it. */
#include "tests/lib/test.h"

#include <string.h>

#include "tests/lib/cross.h"
#include "tests/lib/thread_ranks.h"

static void cross(dlcoll_comm *comm, void *way)
{
    cross_run(comm, way);
}

static void bits(dlcoll_comm *comm, void *way)
{
    cross_bits(comm, way);
}

START_TEST(every_algorithm)
{
    struct cross_way way;
    cross_values_make(_i);
    for (int k = 0; cross_has_size(_i) && cross_way(&way, CROSS_TCP, k); k++) {
        cross_way_set(&way);
        thread_ranks_run(_i, cross, &way);
    }
}
END_TEST

START_TEST(everything_has_met)
{
    cross_seen_check(CROSS_TCP, 1);
}
END_TEST

/* The library chooses the algorithm, over several connections. */
START_TEST(several_connections_between_two_ranks)
{
    struct cross_way way;
    setenv("DLCOLL_SOCKETS", "3", 1);
    cross_values_make(_i);
    for (int k = 0; cross_has_size(_i) && cross_way(&way, CROSS_TCP, k); k++) {
        if (way.algo >= 0 && !cross_is_full())
            continue;
        cross_way_set(&way);
        thread_ranks_run(_i, cross, &way);
    }
}
END_TEST

/* Only full mode tries every way in every world. */
static bool is_turn(int k, int n)
{
    return cross_is_full() || n < 5 || (k + n) % 2 == 0;
}

/* The second world is a run of its own. */
START_TEST(the_same_bits_everywhere)
{
    struct cross_way way;
    cross_bits_make();
    for (int k = 0; cross_has_size(_i) && cross_way(&way, CROSS_TCP, k); k++) {
        cross_way_set(&way);
        for (int run = 0; run < 2 && is_turn(k, _i); run++)
            thread_ranks_run(_i, bits, &way);
    }
}
END_TEST

/* A world of one has nothing to combine, but logical reductions still give 0 or 1, as among several
 * ranks. */
static void truths_alone(dlcoll_comm *comm, void *arg)
{
    static const int ops[] = {DLCOLL_SUM, DLCOLL_PROD, DLCOLL_MAX,  DLCOLL_MIN, DLCOLL_BAND,
                              DLCOLL_BOR, DLCOLL_BXOR, DLCOLL_LAND, DLCOLL_LOR, DLCOLL_LXOR};
    (void)arg;
    for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
        dlcoll_op op = (dlcoll_op)ops[k];
        bool logical = op == DLCOLL_LAND || op == DLCOLL_LOR || op == DLCOLL_LXOR;
        const uint8_t in[3] = {2, 0, 255};
        const int32_t number = 4;
        uint8_t out[4][3];
        int32_t same = 0;
        size_t three = 3;
        dlcoll_span span = {in, out[3], 3};
        THREAD_OK(dlcoll_all_reduce(in, out[0], 3, DLCOLL_BOOL, op, comm, NULL, NULL));
        THREAD_OK(dlcoll_reduce(in, out[1], 3, DLCOLL_BOOL, op, 0, comm, NULL, NULL));
        THREAD_OK(dlcoll_reduce_scatter_v(in, out[2], &three, DLCOLL_BOOL, op, comm, NULL, NULL));
        THREAD_OK(dlcoll_all_reduce_coalesced(&span, 1, DLCOLL_BOOL, op, comm, NULL, NULL));
        const uint8_t want[4][3] = {{1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {1, 0, 1}};
        THREAD_EXPECT(memcmp(out, want, sizeof(want)) == 0, "op %d", ops[k]);
        THREAD_OK(dlcoll_all_reduce(&number, &same, 1, DLCOLL_I32, op, comm, NULL, NULL));
        THREAD_EXPECT(same == (logical ? 1 : number), "op %d: %d", ops[k], same);
    }
}

START_TEST(truth_values_in_a_world_of_one)
{
    thread_ranks_run(1, truths_alone, NULL);
}
END_TEST

static Suite *suite(void)
{
    double seconds = cross_is_full() ? 1000 : 120;
    Suite *s = suite_create("dlcoll_ops");
    TCase *tc = test_case(s, "cross", seconds);
    cross_seen_init();
    tcase_add_loop_test(tc, every_algorithm, 1, 10);
    tcase_add_test(tc, everything_has_met);
    tc = test_case(s, "connections", seconds);
    tcase_add_loop_test(tc, several_connections_between_two_ranks, 2, 5);
    tc = test_case(s, "bits", seconds);
    tcase_add_loop_test(tc, the_same_bits_everywhere, 2, 10);
    tc = test_case(s, "alone", 60);
    tcase_add_test(tc, truth_values_in_a_world_of_one);
    return s;
}

int main(void)
{
    return cross_main(suite(), "TCP");
}
