/* The cross of operations (tests/lib/cross.h) between 3 to 9 ranks on 2 and 3 nodes, which go
 * through memory and the network: by leaders and in lanes, with every algorithm between the nodes.
 * Ranks are processes. `make cross` runs all of it. */
#include "tests/lib/test.h"

#include "tests/lib/cross.h"
#include "tests/lib/ranks.h"

static struct cross_way g_way;

static void cross_rank(struct ranks *j, int rank)
{
    (void)j, (void)rank;
    dlcoll_comm *comm = comm_start();
    cross_run(comm, &g_way);
    comm_end(comm);
}

static void bits_rank(struct ranks *j, int rank)
{
    (void)j, (void)rank;
    dlcoll_comm *comm = comm_start();
    cross_bits(comm, &g_way);
    comm_end(comm);
}

/* Nodes have equal or unequal numbers of ranks, also a single one. */
static const struct {
    int ranks, nodes;
} g_worlds[] = {{3, 2}, {4, 2}, {4, 3}, {5, 2}, {5, 3}, {6, 2}, {6, 3},
                {7, 2}, {7, 3}, {8, 2}, {8, 3}, {9, 2}, {9, 3}};
enum { WORLDS = sizeof(g_worlds) / sizeof(g_worlds[0]) };

START_TEST(every_algorithm_between_nodes)
{
    cross_values_make(g_worlds[_i].ranks);
    for (int k = 0; cross_has_size(g_worlds[_i].ranks) && cross_way(&g_way, CROSS_HIER, k); k++) {
        cross_way_set(&g_way);
        ranks_run_for(g_worlds[_i].ranks, g_worlds[_i].nodes, cross_rank,
                      cross_is_full() ? 900 : 60);
    }
}
END_TEST

START_TEST(everything_has_met)
{
    cross_seen_check(CROSS_HIER, 3);
}
END_TEST

START_TEST(the_same_bits_everywhere)
{
    cross_bits_make();
    for (int k = 0; cross_has_size(g_worlds[_i].ranks) && cross_way(&g_way, CROSS_HIER, k); k++) {
        cross_way_set(&g_way);
        for (int run = 0; run < 2 && (cross_is_full() || (k + _i) % 8 == 0); run++)
            ranks_run_for(g_worlds[_i].ranks, g_worlds[_i].nodes, bits_rank, 60);
    }
}
END_TEST

static Suite *suite(void)
{
    double seconds = cross_is_full() ? 1000 : 120;
    Suite *s = suite_create("dlcoll_ops_hier");
    TCase *tc = test_case(s, "cross", seconds);
    cross_seen_init();
    tcase_add_loop_test(tc, every_algorithm_between_nodes, 0, WORLDS);
    tcase_add_test(tc, everything_has_met);
    tc = test_case(s, "bits", seconds);
    tcase_add_loop_test(tc, the_same_bits_everywhere, 0, WORLDS);
    return s;
}

int main(void)
{
    return cross_main(suite(), "hierarchy");
}
