/* staged.h: operations through the slots: a rank copies its data into its slot, and the ranks that
 * need the data copy or reduce it from there.
 *
 * An operation is described by two lists of blocks: out[j] is what this rank has for rank j, in[i]
 * is where this rank receives what rank i has for it. Long blocks go in pieces. Chunk k of a rank,
 * which one slot holds, is piece k of each of its blocks; while the others take chunk k - 1, the
 * rank fills the slot of chunk k. There are three algorithms:
 *
 *     copy      broadcast, all_gather, gather, scatter, all_to_all: each rank copies its blocks
 *     flat      reduce_scatter, short all_reduce, short reduce: each rank that gets a result
 *               reduces the blocks of all ranks for it
 *     slices    all_reduce, reduce: rank i reduces slice i of all ranks and puts the result back
 *               into its slot, from where those that get the result copy it. With p ranks and S
 *               bytes each, a rank of all_reduce reads and writes 5 S - 2 S/p bytes, most of it in
 *               caches.
 *
 * A rank may leave its blocks where they are, for the others to read them there (cma.h), where that
 * is measured to be faster (cost.h).
 *
 * Each function: 0, or negative as coll_call.h says. */
#ifndef COLLECTIVES_SHM_STAGED_H
#define COLLECTIVES_SHM_STAGED_H

#include "collectives/shm/sync.h"

int staged_all_reduce(struct shm_op *op);
int staged_reduce(struct shm_op *op);
int staged_reduce_scatter(struct shm_op *op);

int staged_scan(struct shm_op *op);
int staged_broadcast(struct shm_op *op);
int staged_all_gather(struct shm_op *op);
int staged_gather(struct shm_op *op);
int staged_scatter(struct shm_op *op);
int staged_all_to_all(struct shm_op *op);

#endif
