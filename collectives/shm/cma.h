/* cma.h: taking data straight out of another rank's buffer: through the memory that all share when
 * the buffer lies there, else by process_vm_readv(), where the system lets one process read
 * another. */
#ifndef COLLECTIVES_SHM_CMA_H
#define COLLECTIVES_SHM_CMA_H

#include "collectives/shm/sync.h"

/* Finds out, once, whether this rank can take things out of the others' buffers, and tells them. */
void cma_probe(struct shm *s);

/* Whether the others can take my blocks s->out of `send` in this way; memory of a device, or
 * secret, cannot be read by another process. For this rank alone to decide. */
bool cma_can(struct shm *s, const uint8_t *send, bool shared);

/* Before shm_arrive(): where my blocks s->out are. Those of a `shared` one are in the arrival,
 * others in this round's slot. */
void cma_offer(struct shm_op *op, const uint8_t *send, bool shared);

/* Takes n bytes from `from` on of rank i's block for me, who has come; the block has `len` bytes
 * and belongs at `to`. */
int cma_take(struct shm_op *op, int i, uint8_t *to, size_t len, size_t from, size_t n, bool shared);

/* The same, to `to` itself. */
int cma_piece(struct shm_op *op, int i, uint8_t *to, size_t len, size_t from, size_t n,
              bool shared);

/* I have taken what I wanted; if I have offered something, waits until the others have, too. */
int cma_finish(struct shm_op *op, bool offered, bool shared);

/* Whether this rank may read the memory of rank i, which has been in touch with it. */
bool cma_may_read(struct shm *s, int i);
/* Copies from the memory of rank i's process. 0; -EPIPE: it is gone; or another -errno with a text.
 */
int cma_copy(const struct shm *s, int i, uint8_t *to, uint64_t from, size_t len, struct err *e);

#endif
