/* direct.h: reductions whose buffers lie in the shared memory on every rank (dlcoll_mem_alloc()).
 * Rank i reduces slice i of all send buffers and writes the result into all receive buffers that
 * need it. Nothing is staged: each rank reads and writes 2 S bytes, which is the minimum, and the
 * ranks synchronize twice.
 *
 * Each function: 0, done; 1, the buffers of a rank do not allow it, and the operation is to be
 * carried out in another way; or negative as coll_call.h says. */
#ifndef COLLECTIVES_SHM_DIRECT_H
#define COLLECTIVES_SHM_DIRECT_H

#include "collectives/shm/sync.h"

int direct_all_reduce(struct shm_op *op);
int direct_reduce(struct shm_op *op);
int direct_reduce_scatter(struct shm_op *op);

#endif
