/* rdzv_round.h: who is in a round, with which rank, and how the nodes reach each other. Pure. */
#ifndef RENDEZVOUS_RULES_RDZV_ROUND_H
#define RENDEZVOUS_RULES_RDZV_ROUND_H

#include "rendezvous/rules/rdzv_node.h"

/* Compares host names as people count: node2 before node10. */
int rdzv_round_compare_hosts(const char *a, const char *b);

/* Moves the nodes with the best claim to a place to the front: the coordinator's own, those of the
 * last round, those that ask for a rank, those that came first. O(n log n). */
void rdzv_round_choose(struct rdzv_node **nodes, int n);

/* Puts n nodes in the order of their group ranks. A node_rank that was asked for is kept, and so is
 * the rank of the last round, as far as ranks are dense: with gaps, the order among them is kept.
 * New ones fill the gaps: the coordinator's own first, then by host name, address, pid. O(n log n).
 */
void rdzv_round_rank(struct rdzv_node **nodes, int n);

/* Where the coordinator is, and what was asked for. */
struct rdzv_place {
    const char *bound_addr; /* the address it listens on; "": all of them */
    int port;
    const char *local_addr;  /* of its own launcher, to advertise, or "" */
    const char *master_addr; /* as the user gave it, or NULL */
    bool agent_store;
};

/* Fills the table of nodes in rank order; the caller sets gen and restart_count. note (of cap
 * bytes) receives a line for the user, or "". -EINVAL, -ENOMEM, -EMSGSIZE (no message could hold
 * it). */
int rdzv_round_table(struct rank_table *t, struct rdzv_node *const *nodes, int n,
                     const struct rdzv_place *place, char *note, size_t cap, struct err *e);

/* The same nodes as a list of who listens where. */
void rdzv_round_peers(struct rdzv_peers *p, struct rdzv_node *const *nodes, int n,
                      const struct rdzv_place *place);

#endif
