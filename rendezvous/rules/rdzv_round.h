/* rdzv_round.h: the members of a round, their ranks, and how they reach each other. Pure. */
#ifndef RENDEZVOUS_RULES_RDZV_ROUND_H
#define RENDEZVOUS_RULES_RDZV_ROUND_H

#include "rendezvous/rules/rdzv_node.h"

/* Compares host names with their numbers by value: node2 is before node10. */
int rdzv_round_compare_hosts(const char *a, const char *b);

/* Sorts the nodes by their claim to take part: the coordinator's own, members of the last round,
 * nodes that ask for a rank, then by the time of joining. O(n log n). */
void rdzv_round_choose(struct rdzv_node **nodes, int n);

/* Sorts n nodes by the group ranks that they get. A node_rank that was asked for is kept, and so is
 * the rank of the last round, as far as ranks are dense: with gaps, the order is kept. New nodes
 * fill the gaps: the coordinator's own first, then by host name, address, pid. O(n log n). */
void rdzv_round_rank(struct rdzv_node **nodes, int n);

/* The address of the coordinator, and the addresses that were asked for. */
struct rdzv_place {
    const char *bound_addr; /* the address on which the coordinator listens; "": all */
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

/* Fills a list with the nodes of the round as members, and their addresses. */
void rdzv_round_peers(struct rdzv_peers *p, struct rdzv_node *const *nodes, int n,
                      const struct rdzv_place *place);

#endif
