/* cma.h: reading data directly from another rank's buffer (cross-memory attach): through the shared
 * memory if the buffer lies there, else by process_vm_readv(), where the system permits it. */
#ifndef COLLECTIVES_SHM_CMA_H
#define COLLECTIVES_SHM_CMA_H

#include "collectives/shm/sync.h"

/* Tests, once, whether this rank can read the memory of all others, and publishes the result. */
void cma_probe(struct shm *s);

/* Whether the others can read this rank's blocks s->out of `send` in this way: memory of a device
 * and secret memory cannot be read by another process. Each rank decides for itself. */
bool cma_can(struct shm *s, const uint8_t *send);

/* Call before shm_arrive(): publishes the addresses of this rank's blocks s->out. `one_block`: all
 * are the same one, which is described in the arrival; else they are in the slot of the first
 * chunk. */
void cma_offer(struct shm_op *op, const uint8_t *send, bool one_block);

/* Reads n bytes, starting at `from`, of the block that rank i, which has entered the operation, has
 * for this rank. The block has `len` bytes. */
int cma_read(struct shm_op *op, int i, uint8_t *to, size_t len, size_t from, size_t n,
             bool one_block);

/* Publishes that this rank has read all it needs; if it has offered blocks, waits until the others
 * have read them. */
int cma_finish(struct shm_op *op, bool offered);

/* Whether this rank may read the memory of rank i, which must have sent something to this rank. */
bool cma_may_read(struct shm *s, int i);
/* Copies from the memory of rank i's process. 0; -EPIPE: the process has exited; or another -errno
 * with a text. */
int cma_copy(const struct shm *s, int i, uint8_t *to, uint64_t from, size_t len, struct err *e);

#endif
