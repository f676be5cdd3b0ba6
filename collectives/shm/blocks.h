/* blocks.h: the blocks of buffers of which an operation consists. */
#ifndef COLLECTIVES_SHM_BLOCKS_H
#define COLLECTIVES_SHM_BLOCKS_H

#include "collectives/api/coll_call.h"
#include "collectives/shm/shm.h"

/* The parts of a buffer, one for each rank. */
void blocks_parts(const struct coll_call *c, const struct coll_parts *p, struct shm_block *out);

/* A buffer of `len` bytes divided among n ranks, into whole cache lines as far as possible. */
void blocks_slices(size_t len, int n, struct shm_block *out);

/* The longest block, except for that of rank `but`; -1: of all. */
size_t blocks_longest(const struct shm_block *b, int n, int but);

#endif
