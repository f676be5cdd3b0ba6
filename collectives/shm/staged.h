/* staged.h: data through the slots, in rounds: every operation with staged data is one of these.
 *
 * In round k each rank puts piece k of each block that it has for others into its slot, says so,
 * and takes piece k - 1 of what the others have for it: copies it, or reduces it with its own. So
 * copying in overlaps with waiting for the others. Where results must spread (`results`), a rank
 * puts what it has reduced back into its slot, and the others copy it from there a round later.
 *
 *     operation        block of rank i for rank j   taken by       results to
 *     broadcast        the same for all             copying
 *     all_gather       the same for all             copying
 *     gather, scatter, all_to_all                   copying
 *     all_reduce       the same for all (small)     reducing
 *                      slice j                      reducing       all
 *     reduce_scatter   part j                       reducing
 *     reduce           the same for all (small)     reducing
 *                      slice j                      reducing       the root
 *
 * With p ranks and S bytes each, an all_reduce in slices reads and writes 5 S - 2 S/p bytes a rank,
 * most of it in caches. */
#ifndef COLLECTIVES_SHM_STAGED_H
#define COLLECTIVES_SHM_STAGED_H

#include "collectives/reduce/reduce.h"
#include "collectives/shm/sync.h"

enum { STAGED_NOBODY = -1, STAGED_ALL = -2 }; /* for results: or a rank */

struct staged {
    struct shm_op *op;
    const uint8_t *send;
    uint8_t *recv;
    /* op->s->out[j]: my block for rank j, in `send`; with `shared` only out[0], which is for all.
     * op->s->in[i]: rank i's block for me, in `recv`. With `reduce` they all have the length of
     * in[me], where the result goes, and with results in[i] is where rank i's result goes. */
    const uint8_t *own_from; /* what goes from me to me */
    uint8_t *own_to;
    size_t own_len;
    /* Not beside to_one: one load of both, after a store of one, would wait until all stores before
     * it are in the cache, the arrival's among them. */
    bool shared;
    const struct reduce_info *reduce; /* NULL: copy */
    bool to_one;                      /* at most one of my blocks has a length */
    int results;
    size_t piece;  /* of a block, a round; a multiple of 64 */
    size_t filled; /* of a slot, at most; staged_run() sets it */
    size_t most;   /* the longest block that any rank has for another */
    bool in_place; /* what is taken goes where blocks of mine come from */
    bool uneven;   /* `most` is only this rank's longest: the ranks tell each other */
    bool pull;     /* my data is not staged: the others read it where it is (cma.h) */
    bool late;     /* the arrival has been written already, and says nothing of `pull` */
};

/* 0, or negative as coll_call.h says. */
int staged_run(struct staged *f);

#endif
