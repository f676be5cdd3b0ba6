/* inline_msg.h: operations whose data fits into the arrivals, or beside them: one store says who
 * has come, to what, and with which bytes. */
#ifndef COLLECTIVES_SHM_INLINE_MSG_H
#define COLLECTIVES_SHM_INLINE_MSG_H

#include "collectives/shm/sync.h"

enum { INLINE_MSG_MOST = SHM_BESIDE_BYTES };

/* What each rank brings to this call, in bytes: the same on every rank. More than INLINE_MSG_MOST:
 * it is no such operation. */
size_t inline_msg_bytes(const struct shm *s, const struct coll_call *c);

/* 0, or negative as coll_call.h says. */
int inline_msg_run(struct shm_op *op, size_t bytes);

#endif
