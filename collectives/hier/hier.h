/* hier.h: operations of ranks on several nodes: shared memory within each node, the network between
 * them, so that a byte leaves a node once for every node that needs it.
 *
 *     lane l     the ranks with local rank l, one of each node (Traeff's multi-lane collectives)
 *     lanes      as many as the smallest node has ranks; further ranks of other nodes take part
 *                only within their nodes
 *
 *     all_reduce       node: reduce_scatter to the lanes; lane: all_reduce; node: all_gather
 *     reduce           node: reduce_scatter; lane: reduce; root's node: gather
 *     broadcast        root's node: scatter; lane: broadcast; node: all_gather
 *     all_gather       lane: all_gather; node: all_gather, once for each node's blocks
 *     reduce_scatter   node: reduce_scatter, once for each node's blocks; lane: reduce_scatter
 *     scan, exscan     node: the same; the nodes' last ranks: exscan; node: broadcast
 *     all_to_all       node: all_to_all; net: all_to_all with the rest
 *     barrier          node: barrier; lane 0: barrier; node: barrier
 *
 * Small data uses lane 0 only. gather, scatter and all _v operations except all_to_all_v are not
 * here: they use the network, also between ranks of one host. */
#ifndef COLLECTIVES_HIER_HIER_H
#define COLLECTIVES_HIER_HIER_H

#include <stddef.h>

struct dlcoll_comm;
struct coll_call;
struct coll_provider;
struct hier;

extern const struct coll_provider hier_provider; /* nodes with several ranks */

/* Sizes in bytes, equal on every rank. */
struct hier_tuning {
#define HIER(name, bytes, decides, measured) size_t name;
#include "collectives/comm/selection.def"
};
extern struct hier_tuning hier_tuning;

/* Returns why this provider carries out no operation of the communicator; NULL: it carries out
 * operations. */
const char *hier_why_not(const struct dlcoll_comm *comm);
/* "leaders" or "lanes" for an operation with that choice; else NULL. */
const char *hier_algo(const struct coll_call *c);

void hier_free(struct dlcoll_comm *comm); /* frees comm->hier */

#endif
