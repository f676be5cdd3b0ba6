/* tuning.h: by how much data operations among the ranks of one node are carried out in which way.
 */
#ifndef COLLECTIVES_SHM_TUNING_H
#define COLLECTIVES_SHM_TUNING_H

#include <stddef.h>

/* In bytes. The same on every rank, for the choice must be. */
struct shm_tuning {
    size_t
        line; /* what a rank brings is with its arrival: up to so much, INLINE_MSG_MOST at most */
    size_t flat; /* all_reduce and reduce: each rank reduces everything, as long as all ranks'
                    data together are no more than this; else a slice */
    size_t
        root_pair; /* a reduce of two ranks: the root reduces everything, up to so much of both */
    size_t direct; /* reductions of shared buffers: from so much on; */
    size_t direct_stream; /* into one of them past the caches: slices of so much and more */
    size_t pull;          /* a block is taken out of its owner's buffer: from so much on, */
    size_t pull_shared;   /* or from so much on if it is in shared memory, */
    size_t compare;       /* and from so much on only if that is faster (cost.h); */
    size_t pull_crowded;  /* where ranks have to share CPUs and it is for one, from so much on, */
    size_t pull_crowded_shared; /* or so much if it is in shared memory */
    /* Of a block, put into a slot in a round, as far as there is room for all ranks' blocks: */
    size_t piece_few;    /* of two ranks, reductions of three or four, and broadcasts where ranks
                            have to share CPUs: few rounds */
    size_t piece_many;   /* reductions of more: rounds that overlap, in the caches of their CPUs */
    size_t round_reduce; /* where ranks have to share CPUs, a round of a reduction, of all ranks
                            together, so that it stays in the caches of few CPUs */
    size_t piece_move;   /* what is only copied: the next round is put while this one is taken; */
    size_t round_move;   /* and where each rank has a block of its own: a round of all of them */
};

extern struct shm_tuning shm_tuning;

#endif
