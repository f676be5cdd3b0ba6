/* The cross of operations (tests/lib/cross.h) between 1 to 9 ranks of one node that share memory,
 * through every way that there is; ranks are threads, so that a thread sanitizer sees who reads
 * what while who writes it, or processes. `make cross` runs all of it. */
#include "tests/lib/test.h"

#include "tests/lib/cross.h"
#include "tests/lib/ranks.h"
#include "tests/lib/thread_ranks.h"

static struct cross_way g_way;

static void cross(dlcoll_comm *comm, void *way)
{
    cross_run(comm, way);
}

static void bits(dlcoll_comm *comm, void *way)
{
    cross_bits(comm, way);
}

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

START_TEST(every_way)
{
    cross_values_make(_i);
    for (int k = 0; cross_has_size(_i) && cross_way(&g_way, CROSS_SHM, k); k++) {
        cross_way_set(&g_way);
        /* One of both; in full mode both. */
        if (cross_is_full() || (k + _i) % 2)
            thread_ranks_run(_i, cross, &g_way);
        if (cross_is_full() || (k + _i) % 2 == 0)
            ranks_run_for(_i, 1, cross_rank, cross_is_full() ? 900 : 60);
    }
}
END_TEST

START_TEST(everything_has_met)
{
    cross_seen_check(CROSS_SHM, 1);
}
END_TEST

/* Threads and processes, with buffers of their own and shared ones, are as many runs. */
START_TEST(the_same_bits_everywhere)
{
    cross_bits_make();
    for (int k = 0; cross_has_size(_i) && cross_way(&g_way, CROSS_SHM, k); k++) {
        cross_way_set(&g_way);
        thread_ranks_run(_i, bits, &g_way);
        ranks_run_for(_i, 1, bits_rank, 60);
    }
}
END_TEST

static Suite *suite(void)
{
    double seconds = cross_is_full() ? 1000 : 120;
    Suite *s = suite_create("dlcoll_ops_shm");
    TCase *tc = test_case(s, "cross", seconds);
    cross_seen_init();
    tcase_add_loop_test(tc, every_way, 1, 10);
    tcase_add_test(tc, everything_has_met);
    tc = test_case(s, "bits", seconds);
    tcase_add_loop_test(tc, the_same_bits_everywhere, 2, 10);
    return s;
}

int main(void)
{
    return cross_main(suite(), "memory");
}
