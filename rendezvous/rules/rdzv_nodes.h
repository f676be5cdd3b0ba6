/* rdzv_nodes.h: the launchers that have said hello to the coordinator, found by id and by the
 * node_rank that they asked for, and how many of them are in which state. Pure. */
#ifndef RENDEZVOUS_RULES_RDZV_NODES_H
#define RENDEZVOUS_RULES_RDZV_NODES_H

#include "core/map.h"
#include "rendezvous/rules/rdzv_node.h"

struct rdzv_nodes {
    struct rdzv_node **e; /* owned, like the nodes; a node's slot is its index */
    int n, cap;
    struct map by_id;
    struct rdzv_node **by_rank; /* by the node_rank that the nodes asked for */
    int cap_by_rank;
    int nready;     /* could start now */
    int nbusy;      /* have workers, or have not reported yet that they have none */
    int nleaving;   /* without witnesses */
    int nwitnesses; /* not among nleaving */
};

void rdzv_nodes_init(struct rdzv_nodes *s);
void rdzv_nodes_fini(struct rdzv_nodes *s);

/* A new node, which has said hello on the connection. NULL: out of memory. */
struct rdzv_node *rdzv_nodes_add(struct rdzv_nodes *s, const struct rdzv_hello *h,
                                 const struct rdzv_peer *peer, uint32_t conn);
void rdzv_nodes_remove(struct rdzv_nodes *s, struct rdzv_node *n); /* frees it */

struct rdzv_node *rdzv_nodes_find(const struct rdzv_nodes *s, const struct node_id *id);
/* The node that has asked for this node_rank; NULL: there is none, or node_rank is -1. */
struct rdzv_node *rdzv_nodes_holder(const struct rdzv_nodes *s, int node_rank);

/* Asserts that counts and indexes are those of the nodes. */
void rdzv_nodes_check(const struct rdzv_nodes *s);

/* Updates the counts; to be called after every change of a node's connection, phase, workers or
 * leaving. */
void rdzv_nodes_update_ready(struct rdzv_nodes *s, struct rdzv_node *n);
void rdzv_nodes_set_workers(struct rdzv_nodes *s, struct rdzv_node *n, bool workers);
void rdzv_nodes_set_leaving(struct rdzv_nodes *s, struct rdzv_node *n);

/* Launchers with workers. */
static inline int rdzv_nodes_count(const struct rdzv_nodes *s)
{
    return s->n - s->nwitnesses;
}

/* Launchers with workers that are not about to leave. */
static inline int rdzv_nodes_live(const struct rdzv_nodes *s)
{
    return rdzv_nodes_count(s) - s->nleaving;
}

/* "gpu-b (10.0.0.2)" */
const char *rdzv_node_name(const struct rdzv_node *n, char *out, size_t cap);

#endif
