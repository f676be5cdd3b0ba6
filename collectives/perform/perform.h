/* perform.h: numbers a collective operation on host memory, and carries it out at once or puts it
 * into the queue. Every rank calls the operations of a communicator in the same order. */
#ifndef COLLECTIVES_PERFORM_PERFORM_H
#define COLLECTIVES_PERFORM_PERFORM_H

#include <stdint.h>

#include "collectives/dlcoll.h"

struct coll_call;

/* An operation whose call is filled in, inside the communicator. With `work`: a handle of it. The
 * public code. */
int perform_call(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work);

/* Queues a call that has its number, or is none that all ranks make (seq 0). The public code. */
int perform_later(dlcoll_comm *c, const struct coll_call *call, dlcoll_work **out);

/* Begins the persistent operation of a handle, which is done, once more. The public code. */
int perform_again(dlcoll_comm *c, dlcoll_work *w, uint64_t deadline_ns);

#endif
