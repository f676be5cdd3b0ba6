/* async.h: operations with a work handle.
 *
 * Collective ones stand in a queue, in the order of their calls; whoever waits for one carries out
 * the queue up to it, else a thread does, which is started with the first of them. Point-to-point
 * ones are progressed by whoever waits for one, and by a thread of their own: a collective one may
 * wait for a rank that needs these first.
 *
 * Handles are kept in a pool of the communicator's. */
#ifndef COLLECTIVES_API_ASYNC_H
#define COLLECTIVES_API_ASYNC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/api/coll_call.h"
#include "collectives/dlcoll.h"
#include "collectives/api/work.h"

/* Appends a collective one, whose call is filled in; the thread takes it up. 0 or -ENOMEM. */
int async_submit(struct dlcoll_comm *comm, struct dlcoll_work *w);

/* Whether operations stand in the queue, so that a blocking one must queue, too. */
bool async_is_busy(const struct dlcoll_comm *comm);

/* Sees that the other thread is there, before a point-to-point operation with a handle begins: what
 * is under way could not be taken back. 0 or -ENOMEM. */
int async_start_p2p_thread(struct dlcoll_comm *comm);
/* Wakes the p2p thread: messages are under way. */
void async_ring_p2p_thread(struct dlcoll_comm *comm);

/* Blocks until it is done: its result. */
int async_wait(struct dlcoll_work *w);

/* Ends what is under way, the threads and the pool. In a fork()'s child there are no threads, and
 * what is under way is the parent's: only memory is freed. */
void async_free(struct dlcoll_comm *comm, bool forked);

/* Runs one call under `running` and says how it ended: the public code. (coll.c) */
int coll_execute(struct dlcoll_comm *comm, struct coll_call *call);

#endif
