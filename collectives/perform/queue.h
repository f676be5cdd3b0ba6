/* queue.h: collective operations that have a work handle, in the order of their calls. A thread
 * that waits for one runs the queue up to it; else a task of the progress thread does (progress.h).
 */
#ifndef COLLECTIVES_PERFORM_QUEUE_H
#define COLLECTIVES_PERFORM_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct dlcoll_comm;
struct dlcoll_work;

/* Appends an operation, whose call is filled in. 0 or -ENOMEM. */
int queue_submit(struct dlcoll_comm *comm, struct dlcoll_work *w);

/* Whether operations stand in the queue, so that a blocking one must queue, too. */
bool queue_is_busy(const struct dlcoll_comm *comm);

/* Lets the task run the queue, if there is anything in it: a thread that was in an operation of its
 * own has kept the task from it. */
void queue_ring(struct dlcoll_comm *comm);

/* Waits until the operation is done or the time is over (0: none). The thread runs the queue itself
 * only if it has no deadline, because an operation may take any time. */
void queue_wait(struct dlcoll_work *w, uint64_t until_ns);

/* Ends the task; operations not yet started get DLCOLL_EABORTED. In a fork()'s child, which has no
 * threads and whose operations belong to the parent, only frees memory. */
void queue_free(struct dlcoll_comm *comm, bool forked);

#endif
