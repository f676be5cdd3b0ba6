/* async.h: operations with a work handle.
 *
 * Collective operations stand in a queue, in the order of their calls. A thread that waits for one
 * runs the queue up to it; else a task of the progress thread does (progress.h). Point-to-point
 * operations are progressed by a thread that waits for one, and by a second task, because a
 * collective operation may wait for a rank that needs them first.
 *
 * Handles are kept in a pool of the communicator. */
#ifndef COLLECTIVES_API_ASYNC_H
#define COLLECTIVES_API_ASYNC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/api/coll_call.h"
#include "collectives/dlcoll.h"
#include "collectives/api/work.h"

/* Appends a collective operation, whose call is filled in; the thread runs it. 0 or -ENOMEM. */
int async_submit(struct dlcoll_comm *comm, struct dlcoll_work *w);

/* Whether operations stand in the queue, so that a blocking one must queue, too. */
bool async_is_busy(const struct dlcoll_comm *comm);

/* Lets the task run the queue, if there is anything in it: a thread that was in an operation of its
 * own has kept the task from it. */
void async_ring_queue(struct dlcoll_comm *comm);

/* Makes the p2p task if there is none, before a point-to-point operation begins that it is to
 * progress, because a started operation could not be taken back. 0 or -ENOMEM. */
int async_start_p2p(struct dlcoll_comm *comm);
/* Rings for the p2p task, if there is one: messages are under way. */
void async_ring_p2p(struct dlcoll_comm *comm);

/* Blocks until the work is done. Returns its result. */
int async_wait(struct dlcoll_work *w);

/* Ends the operations under way, the threads and the pool. In a fork()'s child, which has no
 * threads and whose operations belong to the parent, only frees memory. */
void async_free(struct dlcoll_comm *comm, bool forked);

/* Runs one call under `running`. Returns the public code of its end. (coll.c) */
int coll_execute(struct dlcoll_comm *comm, struct coll_call *call);

#endif
