/* allgather.h: the coordinator's part of an all-gather over the nodes of a round: one value from
 * each node, and all of them, in the order of group ranks, to each node. MPI programs exchange the
 * addresses of their ranks so.
 *
 * A node gathers number k + 1 when it has the result of number k, so a node can lag behind the
 * others by one: the newest result is kept, for a node whose connection broke before it had it. */
#ifndef RENDEZVOUS_RULES_ALLGATHER_H
#define RENDEZVOUS_RULES_ALLGATHER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bytes.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_msg.h"

struct allgather {
    struct generation gen;
    uint32_t number; /* of the values in `value` */
    int nnodes, missing;
    struct buf *value; /* nnodes; empty storage: the node's has not come */
    bool *has;
};

enum allgather_step {
    ALLGATHER_STALE,    /* of another round, or malformed: to be ignored */
    ALLGATHER_WAITS,    /* other nodes are missing */
    ALLGATHER_COMPLETE, /* allgather_encode() makes the answer for all */
    ALLGATHER_AGAIN,    /* the sender lacks the newest result */
};

/* An object that is all zero has gathered nothing. */
void allgather_fini(struct allgather *g);

/* Takes a node's value of round `gen`, which has nnodes nodes. */
enum allgather_step allgather_take(struct allgather *g, struct generation gen, int nnodes,
                                   const struct rdzv_gather *m);

/* Appends the frame GATHERED of the complete values; the next number begins. */
void allgather_encode(struct allgather *g, struct buf *b);

#endif
