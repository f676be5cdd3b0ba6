/* blocks.h: the blocks of buffers of which an operation consists. */
#ifndef COLLECTIVES_SHM_BLOCKS_H
#define COLLECTIVES_SHM_BLOCKS_H

#include "collectives/comm/coll_call.h"
#include "collectives/shm/shm.h"

/* The bytes by which reductions divide buffers: whole elements, and whole cache lines where
 * elements fill these. */
static inline size_t blocks_unit(size_t elem)
{
    return 64 % elem ? elem : 64;
}

/* The bytes that are reduced before they are copied on: they stay in the first-level cache. */
enum { BLOCKS_HOT_BYTES = 8 * 1024 };

static inline size_t blocks_hot(size_t elem)
{
    return elem < BLOCKS_HOT_BYTES ? BLOCKS_HOT_BYTES / elem * elem : elem;
}

/* The parts of a buffer, one for each rank. */
void blocks_parts(const struct coll_call *c, const struct coll_parts *p, struct shm_block *out);

/* A buffer of `len` bytes divided among n ranks, into whole units as far as possible. */
void blocks_slices(size_t len, size_t elem, int n, struct shm_block *out);

/* The longest block, except for that of rank `but`; -1: of all. */
size_t blocks_longest(const struct shm_block *b, int n, int but);

#endif
