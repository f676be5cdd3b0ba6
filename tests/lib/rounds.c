#include "tests/lib/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/lib/ranks.h"
#include "tests/lib/test.h"

uint64_t g_rounds_seed;

static struct rounds g_rounds;

static void rank_main(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    (void)j;
    for (int k = 0; k < g_rounds.count; k++)
        g_rounds.round(c, rank, k);
    comm_end(c);
}

static void run(int n, int nodes, bool tcp)
{
    const char *seed = getenv(g_rounds.variable);
    g_rounds_seed = seed ? strtoull(seed, NULL, 10)
                         : (uint64_t)time(NULL) * 1000 + (uint64_t)(n * 16 + nodes * 2 + tcp);
    printf("%d ranks on %d nodes%s: %s=%llu\n", n, nodes, tcp ? ", TCP" : "", g_rounds.variable,
           (unsigned long long)g_rounds_seed);
    setenv("DLCOLL_SHM", tcp ? "0" : "1", 1);
    ranks_run_for(n, nodes, rank_main, 90);
}

START_TEST(in_memory)
{
    run(_i, 1, false);
}
END_TEST

START_TEST(over_tcp)
{
    run(_i, 1, true);
}
END_TEST

START_TEST(between_nodes)
{
    run(_i, _i > 5 ? 3 : 2, false);
}
END_TEST

TCase *rounds_case(Suite *s, const struct rounds *r)
{
    TCase *tc = test_case(s, r->name, 120);
    g_rounds = *r;
    tcase_add_loop_test(tc, in_memory, 1, 10);
    tcase_add_loop_test(tc, over_tcp, 1, 10);
    tcase_add_loop_test(tc, between_nodes, 3, 10);
    return tc;
}
