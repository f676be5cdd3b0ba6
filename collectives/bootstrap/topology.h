/* topology.h: which ranks of a communicator share a node. A node is a host, or a part of one that
 * cannot share memory with the rest: its ranks have one boot id, one network namespace and one
 * launcher. */
#ifndef COLLECTIVES_BOOTSTRAP_TOPOLOGY_H
#define COLLECTIVES_BOOTSTRAP_TOPOLOGY_H

#include <stdbool.h>

#include "collectives/bootstrap/world.h"
#include "core/err.h"

struct topology {
    int size;        /* ranks */
    int nnodes;      /* numbered by their lowest rank */
    int *node_of;    /* by rank; owned, as are the following */
    int *local_of;   /* by rank: its place among the ranks of its node */
    int *node_size;  /* by node */
    int *node_first; /* by node: where its ranks begin in by_node */
    int *by_node;    /* all ranks, node after node, ascending within each */

    int node, local;        /* this rank's */
    int nlocal;             /* node_size[node] */
    const int *local_ranks; /* of this node, ascending: by_node + node_first[node] */

    int least_local, most_local; /* ranks of the smallest and the largest node */
    bool contiguous;             /* every node's ranks are consecutive, in the order of nodes */
};

/* world_ranks[i]: the world's rank of rank i. 0 or -ENOMEM. */
int topology_init(struct topology *t, const struct world *w, const int *world_ranks, int size,
                  int rank, struct err *e);
void topology_fini(struct topology *t);

#endif
