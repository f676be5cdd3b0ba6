/* staged.h: moves data through the slots, in rounds: all operations with staged data use this.
 *
 * In round k each rank puts piece k of each of its blocks into its slot, publishes that, and takes
 * piece k - 1 of the others' blocks for it: copies it, or reduces it with its own. So copying
 * overlaps with waiting for the others. Where results must spread (`results`), a rank puts its
 * reduced piece back into its slot, and the others copy it from there one round later.
 *
 *     operation        block of rank i for rank j   taken by       results to
 *     broadcast        equal for all                copying
 *     all_gather       equal for all                copying
 *     gather, scatter, all_to_all                   copying
 *     all_reduce       equal for all (small)        reducing
 *                      slice j                      reducing       all
 *     reduce_scatter   part j                       reducing
 *     reduce           equal for all (small)        reducing
 *                      slice j                      reducing       the root
 *
 * With p ranks and S bytes each, an all_reduce in slices reads and writes 5 S - 2 S/p bytes per
 * rank, most of it in caches. */
#ifndef COLLECTIVES_SHM_STAGED_H
#define COLLECTIVES_SHM_STAGED_H

#include "collectives/reduce/reduce.h"
#include "collectives/shm/sync.h"

enum { STAGED_NOBODY = -1, STAGED_ALL = -2 }; /* values of `results`, which may also be a rank */

struct staged {
    struct shm_op *op;
    const uint8_t *send;
    uint8_t *recv;
    /* op->s->out[j]: this rank's block for rank j, in `send`; with `shared` only out[0], for all.
     * op->s->in[i]: rank i's block for this rank, in `recv`. With `reduce`, all have the length of
     * in[me], where the result goes; with results, in[i] is where rank i's result goes. */
    const uint8_t *own_from; /* the block that this rank keeps */
    uint8_t *own_to;
    size_t own_len;
    /* Not next to to_one: one load of both, after a store of one of them, would wait until all
     * earlier stores are in the cache, among them those of the arrival. */
    bool shared;
    const struct reduce_info *reduce; /* NULL: copy */
    bool to_one;                      /* at most one of this rank's blocks has a length */
    int results;
    size_t piece;  /* bytes of a block per round; a multiple of 64 */
    size_t filled; /* bytes of a slot in use, at most; set by staged_run() */
    size_t most;   /* the longest block that any rank has for another */
    bool in_place; /* received data overwrites blocks of this rank */
    bool uneven;   /* `most` is only this rank's longest block: the ranks exchange theirs */
    bool pull;     /* this rank's data is not staged: the others read it in place (cma.h) */
    bool late;     /* the arrival has been published already, without `pull` */
};

int staged_run(struct staged *f);

#endif
