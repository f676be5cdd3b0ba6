/* hier.h: operations of ranks on several nodes: in shared memory inside each node, over the network
 * between them, so that a byte leaves a node once for every node that needs it.
 *
 *     lane l     the ranks that are number l on their node, one of each node
 *     lanes      as many as the smallest node has ranks; more ranks than lanes on the others only
 *                take part inside their nodes
 *
 *     all_reduce       node: reduce_scatter to the lanes; lane: all_reduce; node: all_gather
 *     reduce           node: reduce_scatter; lane: reduce; root's node: gather
 *     broadcast        root's node: scatter; lane: broadcast; node: all_gather
 *     all_gather       lane: all_gather; node: all_gather, once for each node's blocks
 *     reduce_scatter   node: reduce_scatter, once for each node's blocks; lane: reduce_scatter
 *     all_to_all       node: all_to_all; net: all_to_all with the rest
 *     barrier          node: barrier; lane 0: barrier; node: barrier
 *
 * What is small goes through lane 0 alone. gather, scatter and those with _v but all_to_all_v are
 * not here: they go over the network between ranks of one host, too. */
#ifndef COLLECTIVES_API_HIER_H
#define COLLECTIVES_API_HIER_H

#include "collectives/api/thresholds.h"

struct dlcoll_comm;
struct coll_call;
struct hier;

/* In bytes; the same on every rank. */
struct hier_tuning {
#define ROW(name, bytes, decides, measured) size_t name;
    THRESHOLDS_HIER(ROW)
#undef ROW
};
extern struct hier_tuning hier_tuning;

/* For people: why it carries out nothing of the communicator's; NULL: it does some. */
const char *hier_why_not(const struct dlcoll_comm *comm);
/* "leaders" or "lanes", where the operation goes the one way or the other; else NULL. */
const char *hier_algo(const struct coll_call *c);

void hier_free(struct dlcoll_comm *comm); /* what the provider has kept in comm->hier */

#endif
