/* handles.h: waiting for an operation with a work handle. */
#ifndef COLLECTIVES_OPS_HANDLES_H
#define COLLECTIVES_OPS_HANDLES_H

struct dlcoll_work;

/* Blocks until the work is done. Returns its result. */
int handle_wait(struct dlcoll_work *w);

#endif
