/* Where the ranks of a communicator are, and its groups by node, host, memory and NUMA node. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/ranks.h"

static int size_of_domain(dlcoll_comm *c, dlcoll_domain domain)
{
    dlcoll_comm *group;
    int sum = 1;
    EXPECT(dlcoll_comm_split_by(c, domain, -dlcoll_rank(c), &group, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_all_reduce(&sum, &sum, 1, DLCOLL_I32, DLCOLL_SUM, group, NULL, NULL) == 0);
    int size = dlcoll_size(group);
    EXPECT(sum == size, "%d of %d", sum, size);
    for (int i = 1; i < size; i++) /* by falling keys */
        EXPECT(dlcoll_world_rank(group, i) < dlcoll_world_rank(group, i - 1));
    dlcoll_destroy(group);
    return size;
}

/* How many domains there are; of_rank[i] is the number of rank i's, by lowest ranks. */
static void expect_domains(dlcoll_comm *c, dlcoll_domain domain, int n, const int *of_rank)
{
    int of[8] = {7, 7, 7, 7, 7, 7, 7, 7}, found = dlcoll_domains(c, domain, of);
    EXPECT(found == n, "domains %d: %d, not %d: %s", (int)domain, found, n, why(c));
    for (int i = 0; i < dlcoll_size(c); i++)
        EXPECT(of[i] == of_rank[i], "domain %d of rank %d: %d", (int)domain, i, of[i]);
    EXPECT(of[dlcoll_size(c)] == 7);
}

/* Two launchers on one host: ranks 0 and 1, ranks 2, 3 and 4. */
static void two_nodes(struct ranks *j, int rank)
{
    ranks_become(j, rank);
    dlcoll_comm *c = comm_start(), *odd, *none = NULL;
    int ranks[8] = {-1, -1, -1, -1}, local = dlcoll_local_size(c), node = dlcoll_node_of(c, rank);
    EXPECT(dlcoll_node_count(c) == 2 && dlcoll_node_of(c, 0) == 0 && dlcoll_node_of(c, 4) == 1);
    EXPECT(dlcoll_node_ranks(c, node, ranks, 8) == local);
    for (int i = 0; i < local; i++)
        EXPECT(dlcoll_node_of(c, ranks[i]) == node && (i == 0 || ranks[i] == ranks[i - 1] + 1));
    ranks[1] = -1;
    EXPECT(dlcoll_node_ranks(c, 0, ranks, 1) == 5 - dlcoll_node_ranks(c, 1, NULL, 0));
    EXPECT(ranks[0] == 0 && ranks[1] == -1);
    EXPECT(dlcoll_node_of(c, 5) == DLCOLL_EINVAL && dlcoll_node_of(c, -1) == DLCOLL_EINVAL);
    EXPECT(dlcoll_node_ranks(c, 2, ranks, 8) == DLCOLL_EINVAL);
    EXPECT(dlcoll_node_ranks(c, 0, NULL, 8) == DLCOLL_EINVAL);
    EXPECT(dlcoll_node_count(NULL) == DLCOLL_EINVAL);

    EXPECT(size_of_domain(c, DLCOLL_DOMAIN_NODE) == local);
    EXPECT(size_of_domain(c, DLCOLL_DOMAIN_HOST) == 5);
    EXPECT(size_of_domain(c, DLCOLL_DOMAIN_MEMORY) == (getenv("DLCOLL_SHM") ? 1 : local));
    int numa = size_of_domain(c, DLCOLL_DOMAIN_NUMA);
    EXPECT(numa >= 1 && numa <= 5);

    static const int two[] = {0, 0, 1, 1, 1}, one[5] = {0}, alone[] = {0, 1, 2, 3, 4},
                     turned[] = {0, 0, 0, 1, 1};
    expect_domains(c, DLCOLL_DOMAIN_NODE, 2, two);
    expect_domains(c, DLCOLL_DOMAIN_HOST, 1, one);
    expect_domains(c, DLCOLL_DOMAIN_MEMORY, getenv("DLCOLL_SHM") ? 5 : 2,
                   getenv("DLCOLL_SHM") ? alone : two);
    dlcoll_comm *back;
    EXPECT(dlcoll_comm_split(c, 0, -rank, &back, NULL) == 0);
    expect_domains(back, DLCOLL_DOMAIN_NODE, 2, turned);
    dlcoll_destroy(back);
    EXPECT(dlcoll_domains(c, DLCOLL_DOMAIN_HOST, NULL) == DLCOLL_EINVAL);
    EXPECT(dlcoll_domains(c, (dlcoll_domain)-1, ranks) == DLCOLL_EINVAL);
    EXPECT(strstr(why(c), "domains: there is no domain -1"), "%s", why(c));
    EXPECT(dlcoll_domains(NULL, DLCOLL_DOMAIN_HOST, ranks) == DLCOLL_EINVAL);

    EXPECT(dlcoll_comm_split_by(c, (dlcoll_domain)4, 0, &none, NULL) == DLCOLL_EINVAL);
    EXPECT(strstr(why(c), "comm_split_by: there is no domain 4"), "%s", why(c));
    EXPECT(dlcoll_comm_split_by(c, DLCOLL_DOMAIN_HOST, 0, NULL, NULL) == DLCOLL_EINVAL);
    /* A group's nodes are its own. */
    EXPECT(dlcoll_comm_split(c, rank % 2, 0, &odd, NULL) == 0);
    EXPECT(dlcoll_node_count(odd) == 2 && dlcoll_node_of(odd, dlcoll_size(odd) - 1) == 1);
    dlcoll_destroy(odd);
    comm_end(c);
}

START_TEST(nodes_and_domains)
{
    if (_i)
        setenv("DLCOLL_SHM", "0", 1);
    ranks_run(5, 2, two_nodes);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_where");
    TCase *tc = test_case(s, "where", 60);
    tcase_add_loop_test(tc, nodes_and_domains, 0, 2);
    return s;
}

TEST_MAIN(suite)
