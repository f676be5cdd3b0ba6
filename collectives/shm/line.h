/* line.h: operations whose data fits into the arrivals: one store says who has come, to what, and
 * with which bytes. */
#ifndef COLLECTIVES_SHM_LINE_H
#define COLLECTIVES_SHM_LINE_H

#include "collectives/shm/sync.h"

/* Whether this call is such a one: the same on every rank. */
bool line_fits(const struct shm *s, const struct coll_call *c);

/* 0, or negative as coll_call.h says. */
int line_run(struct shm_op *op);

#endif
