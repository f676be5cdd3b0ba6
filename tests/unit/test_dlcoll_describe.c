/* dlcoll_describe() lists what carries out each operation and why nothing else does: on one node,
 * on several, and without shared memory. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

#include "tests/lib/ranks.h"

enum { LINES = 8 };

static const struct place {
    int ranks, nodes;
    const char *env, *value; /* NULL: none */
    const char *says[LINES], *lacks[LINES];
} g_places[] = {
    {4,
     1,
     NULL,
     NULL,
     {"memory: shared by the ranks of a node\n", "\nall operations: shm\n",
      "\nmessages: through shared memory\n", "\nprovider shm: used\n",
      "\nprovider hier: all ranks are on one node\n",
      "\nprovider net: shared memory takes everything\n", "\nchoices: barrier shm net/",
      "\nthreshold shm.flat: 131072 bytes: "},
     {"between nodes", "rule given"}},
    {4,
     1,
     "DLCOLL_SHM",
     "0",
     {"memory: none is shared: DLCOLL_SHM is off\n",
      "\nall_reduce: net/doubling to 64k, net/direct to 512k, then net/ring\n",
      "\nmessages: over TCP\n", "\nprovider shm: no memory is shared\n",
      "\nprovider hier: all ranks are on one node\n", "\nprovider net: used\n",
      "\nchoices: barrier net/"},
     {"hier/", ": shm", "between nodes"}},
    {4,
     2,
     NULL,
     NULL,
     {"\nall_reduce, reduce, broadcast: hier/leaders below 64k, then hier/lanes\n",
      "\nall_gather, reduce_scatter, all_to_all, barrier, all_to_all_v: hier\n",
      "\nbetween nodes, all_reduce: net/pair to 128k, net/direct to 512k, then net/ring\n",
      "\nmessages: through shared memory on a node, TCP between nodes\n",
      "\nprovider shm: only inside hier: the ranks are on several nodes\n",
      "\nprovider hier: used\n", "\nprovider net: used\n", "\nchoices: barrier hier net/"},
     {": shm", "not for"}},
    {3,
     2,
     NULL,
     NULL,
     {"\nprovider hier: not for all_gather, reduce_scatter: nodes have different numbers of "
      "ranks\n",
      "\nall_to_all, barrier, all_to_all_v: hier\n"},
     {": shm"}},
    {2,
     2,
     NULL,
     NULL,
     {"memory: none is shared: no node has two ranks\n",
      "\nprovider shm: the ranks are on several nodes\n",
      "\nprovider hier: no node has two ranks\n", "\nprovider net: used\n"},
     {"hier/", ": shm"}},
    {4,
     2,
     "DLCOLL_SHM",
     "0",
     {"\nprovider hier: no memory is shared\n", "\nprovider net: used\n"},
     {"hier/", ": shm"}},
    {4,
     1,
     "DLCOLL_ALGO",
     "all_reduce:1000-4k:net/ring;barrier:net",
     {"\nall_reduce: shm to 999, net/ring to 4k, then shm\n", "\nbarrier: net/dissemination\n",
      "\nprovider net: used\n", "\nrule given: all_reduce bytes=1000-4096 net/ring\n"},
     {"all operations"}},
    {4, 1, "DLCOLL_ALGO", "*:net", {"\nprovider shm: the given rules have others\n"}, {": shm"}},
    {1,
     0,
     NULL,
     NULL,
     {"memory: none is shared: there is one rank\n", "\nmessages: to itself only\n",
      "\nprovider shm: there is one rank\n", "\nprovider hier: all ranks are on one node\n"},
     {": shm"}},
};
static const struct place *g_place;

static void look(struct ranks *j, int rank)
{
    char text[16384];
    (void)j, (void)rank;
    dlcoll_comm *c = comm_start();
    size_t len = dlcoll_describe(c, text, sizeof(text));
    EXPECT(len < sizeof(text), "%zu", len);
    for (int i = 0; i < LINES; i++) {
        const char *says = g_place->says[i], *lacks = g_place->lacks[i];
        EXPECT(!says || strstr(text, says), "'%s' is not in\n%s", says, text);
        EXPECT(!lacks || !strstr(text, lacks), "'%s' is in\n%s", lacks, text);
    }
    comm_end(c);
}

START_TEST(chosen_providers_and_reasons)
{
    g_place = &g_places[_i];
    if (g_place->env)
        setenv(g_place->env, g_place->value, 1);
    ranks_run(g_place->ranks, g_place->nodes, look);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_describe");
    TCase *tc = test_case(s, "dlcoll_describe", 30);
    tcase_add_loop_test(tc, chosen_providers_and_reasons, 0,
                        sizeof(g_places) / sizeof(g_places[0]));
    return s;
}

TEST_MAIN(suite)
