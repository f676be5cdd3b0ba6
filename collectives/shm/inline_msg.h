/* inline_msg.h: operations whose data fits into the arrivals, or beside them: one store publishes
 * that a rank has entered the operation, its call, and its data. */
#ifndef COLLECTIVES_SHM_INLINE_MSG_H
#define COLLECTIVES_SHM_INLINE_MSG_H

#include "collectives/shm/sync.h"

enum { INLINE_MSG_MOST = SHM_BESIDE_BYTES };

/* Bytes that each rank contributes to this call; equal on every rank. More than INLINE_MSG_MOST:
 * the operation cannot be carried out inline. */
size_t inline_msg_bytes(const struct shm *s, const struct coll_call *c);

/* 0, or negative as coll_call.h says. */
int inline_msg_run(struct shm_op *op, size_t bytes);

#endif
