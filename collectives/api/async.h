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
#include "collectives/p2p/p2p.h"

struct dlcoll_work {
    struct dlcoll_work *next; /* in the queue, or in the pool */
    struct dlcoll_comm *comm;
    _Atomic uint32_t done;     /* a futex */
    _Atomic uint32_t sleepers; /* on it */
    int result;                /* once it is done */
    _Atomic bool detached;     /* the program has no handle (any more) */
    struct coll_call call;     /* of a collective one */
    struct p2p_op *ops;        /* of a point-to-point one: a list; else NULL */
    struct p2p_op *own_ops;    /* storage for them, kept with the handle */
    size_t cap_ops;
    size_t *counts; /* copies of the caller's arrays; kept with the handle */
    size_t cap_counts;
    dlcoll_span *spans; /* likewise */
    size_t cap_spans;
    bool device;     /* on a stream: complete when the event is */
    void *event;     /* kept with the handle */
    uint64_t record; /* of the flight recorder */
};

/* A handle from the pool. NULL: no memory. */
struct dlcoll_work *async_new_work(struct dlcoll_comm *comm);

/* One that has come to nothing. NULL is allowed. */
void async_put_back(struct dlcoll_work *w);

/* Appends a collective one, whose call is filled in; the thread takes it up. 0 or -ENOMEM. */
int async_submit(struct dlcoll_comm *comm, struct dlcoll_work *w);

/* Whether operations stand in the queue, so that a blocking one must queue, too. */
bool async_is_busy(const struct dlcoll_comm *comm);

/* Whether a thread is there. For the program's, inside. */
bool async_has_thread(const struct dlcoll_comm *comm);

/* Sees that the other thread is there, before a point-to-point operation with a handle begins: what
 * is under way could not be taken back. 0 or -ENOMEM. */
int async_start_courier(struct dlcoll_comm *comm);
/* It has something to look after. */
void async_ring_courier(struct dlcoll_comm *comm);

/* The result is known: wakes those who wait. A detached handle goes back into the pool. */
void async_complete(struct dlcoll_work *w, int result);

/* Blocks until it is done: its result. */
int async_wait(struct dlcoll_work *w);

/* Ends what is under way, the threads and the pool. In a fork()'s child there are no threads, and
 * what is under way is the parent's: only memory is freed. */
void async_free(struct dlcoll_comm *comm, bool forked);

/* Runs one call under `running` and says how it ended: the public code. (coll.c) */
int coll_execute(struct dlcoll_comm *comm, struct coll_call *call);

#endif
