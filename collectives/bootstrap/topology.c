#include "collectives/bootstrap/topology.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Numbers the nodes by their lowest rank. */
static void find_nodes(struct topology *t, const struct world *w, const int *world_ranks)
{
    for (int i = 0; i < t->size; i++) {
        int node = -1;
        assert(world_ranks[i] >= 0 && world_ranks[i] < w->size);
        /* Ranks of a node mostly come one after the other. */
        for (int j = i - 1; j >= 0 && node < 0; j--) {
            bool first = t->by_node[t->node_of[j]] == j;
            if ((j == i - 1 || first) && world_same_node(w, world_ranks[i], world_ranks[j]))
                node = t->node_of[j];
        }
        if (node < 0) {
            node = t->nnodes++;
            t->by_node[node] = i; /* for now: the node's first rank */
        }
        t->node_of[i] = node;
        t->local_of[i] = t->node_size[node]++;
    }
}

static void list_by_node(struct topology *t)
{
    for (int node = 1; node < t->nnodes; node++)
        t->node_first[node] = t->node_first[node - 1] + t->node_size[node - 1];
    t->contiguous = true;
    for (int i = 0; i < t->size; i++) {
        int at = t->node_first[t->node_of[i]] + t->local_of[i];
        t->by_node[at] = i;
        t->contiguous = t->contiguous && at == i;
    }
}

int topology_init(struct topology *t, const struct world *w, const int *world_ranks, int size,
                  int rank, struct err *e)
{
    assert(rank >= 0 && rank < size);
    memset(t, 0, sizeof(*t));
    int *all = calloc(5 * (size_t)size, sizeof(*all));
    if (!all)
        return err_set(e, -ENOMEM, "no memory for %d ranks", size);
    t->size = size;
    t->node_of = all;
    t->local_of = all + size;
    t->node_size = all + 2 * (size_t)size;
    t->node_first = all + 3 * (size_t)size;
    t->by_node = all + 4 * (size_t)size;
    find_nodes(t, w, world_ranks);
    list_by_node(t);
    t->node = t->node_of[rank];
    t->local = t->local_of[rank];
    t->nlocal = t->node_size[t->node];
    t->local_ranks = t->by_node + t->node_first[t->node];
    t->least_local = t->most_local = t->nlocal;
    for (int node = 0; node < t->nnodes; node++) {
        int n = t->node_size[node];
        t->least_local = n < t->least_local ? n : t->least_local;
        t->most_local = n > t->most_local ? n : t->most_local;
    }
    assert(t->local_ranks[t->local] == rank && t->least_local > 0);
    return 0;
}

void topology_fini(struct topology *t)
{
    free(t->node_of); /* one piece */
    memset(t, 0, sizeof(*t));
}
