/* rank_table.h: the nodes of a round in the order of their group rank, and the worker ranks that
 * follow from it. Pure data and arithmetic; the coordinator sends the same encoding to every
 * node, and every node computes the same ranks from it.
 *
 * Ranks (torchelastic's rule): global ranks run through the nodes in group-rank order, `nproc` per
 * node, so unequal nodes are fine. Role ranks run the same way among the nodes of one role. */
#ifndef RENDEZVOUS_RULES_RANK_TABLE_H
#define RENDEZVOUS_RULES_RANK_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bytes.h"
#include "core/err.h"
#include "core/netaddr.h"

#define ROLE_MAX       64   /* a role's name with its NUL */
#define NPROC_MAX      4096 /* workers on one node */
#define NNODES_MAX     1000000
#define WORLD_SIZE_MAX 16777216

/* A round of the job. Ordered by (epoch, counter): the epoch is drawn anew by every coordinator,
 * the counter rises with every round. {0, 0} is "none". */
struct generation {
    uint64_t epoch;
    uint32_t counter;
};

static inline bool generation_equal(struct generation a, struct generation b)
{
    return a.epoch == b.epoch && a.counter == b.counter;
}

struct rank_table_node {
    char host[HOST_MAX];    /* the node's name, for messages */
    char addr[ADDR_STRLEN]; /* the IP address by which the other nodes reach it */
    char role[ROLE_MAX];
    int pid;         /* of its launcher */
    int nproc;       /* workers of the node */
    uint16_t *ports; /* nproc: worker i's data socket listens on addr:ports[i]; 0: none */

    /* Computed by rank_table_compute(). */
    int base_rank;       /* global rank of its local rank 0 */
    int role_base_rank;  /* role rank of its local rank 0 */
    int role_world_size; /* workers of its role in the job */
};

struct rank_table {
    struct generation gen;
    int restart_count; /* restarts charged to --max_restarts so far: one number for the job */
    char master_addr[HOST_MAX]; /* MASTER_ADDR as every node that has no better one uses it */
    int master_port;            /* MASTER_PORT */
    bool agent_store;           /* the coordinator serves the store there; else nothing listens */
    int nnodes;
    int world_size; /* computed */
    struct rank_table_node *nodes;
};

void rank_table_init(struct rank_table *t);
int rank_table_alloc(struct rank_table *t, int nnodes); /* zeroed nodes; 0 or -ENOMEM */
int rank_table_alloc_ports(
    struct rank_table_node *node); /* zeroed, for node->nproc; 0 or -ENOMEM */
void rank_table_fini(struct rank_table *t);

/* Fills in the computed fields. O(nnodes). -EINVAL: a nproc below 1 or above NPROC_MAX, or a world
 * of more than WORLD_SIZE_MAX. */
int rank_table_compute(struct rank_table *t, struct err *e);

/* The group rank of the node that has this worker's rank; -1: none has. */
int rank_table_find(const struct rank_table *t, int rank);

void rank_table_encode(struct buf *b, const struct rank_table *t);
/* Decodes and computes. The table is initialised by the callee; on failure it is empty. */
int rank_table_decode(struct rd *r, struct rank_table *t, struct err *e);

#endif
