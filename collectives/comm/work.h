/* work.h: a work handle, as those see it who carry out its operation. Handles are kept in a pool of
 * the communicator. */
#ifndef COLLECTIVES_COMM_WORK_H
#define COLLECTIVES_COMM_WORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/comm/coll_call.h"
#include "collectives/dlcoll.h"

struct p2p_op;

struct dlcoll_work {
    struct dlcoll_work *next; /* in the queue, or in the pool */
    struct dlcoll_comm *comm;
    _Atomic uint32_t done;     /* a futex */
    _Atomic uint32_t sleepers; /* on it */
    int result;                /* valid once the operation is done */
    _Atomic bool detached;     /* the program has no handle (any more) */
    struct coll_call call;     /* of a collective one */
    struct p2p_op *ops;        /* of a point-to-point one: a list; else NULL */
    struct p2p_op *own_ops;    /* storage for them, kept with the handle */
    size_t cap_ops;
    size_t *counts; /* copies of the caller's arrays; kept with the handle */
    size_t cap_counts;
    dlcoll_span *spans; /* likewise */
    size_t cap_spans;
    void *layouts; /* likewise */
    size_t cap_layouts;
    void (*notify)(void *arg); /* called when the operation is done; NULL: no callback */
    void *notify_arg;
    bool persistent; /* dlcoll_start() begins it */
    bool device;     /* on a stream: complete when the event is */
    void *event;     /* kept with the handle */
    void *start;     /* likewise, before the operation, where the device's times are recorded */
    bool started;    /* the recorder has the operation's time */
    bool marker;     /* the library's own, of an operation without a handle */
    uint64_t issued; /* the number of the communicator's device operation that it is behind */
    uint64_t record; /* of the flight recorder */
};

static inline bool work_is_done(const struct dlcoll_work *w)
{
    return atomic_load_explicit(&w->done, memory_order_acquire);
}

/* A handle from the pool. NULL: no memory. */
struct dlcoll_work *work_new(struct dlcoll_comm *comm);

/* Returns a handle whose operation has not started. NULL is allowed. */
void work_put_back(struct dlcoll_work *w);

/* The result is known: wakes those who wait. A detached handle goes back into the pool. */
void work_complete(struct dlcoll_work *w, int result);

/* For a thread that waits for any of several: from begin to end the word changes, and wakes it,
 * whenever a handle of this process is completed. */
const _Atomic uint32_t *work_choose_begin(void);
void work_choose_end(void);

/* Returns the public code that a fork()'s child gets for a handle of its parent. */
int work_refuse(void);

/* Frees the pool; events by free_event, unless that is NULL. */
void work_pool_free(struct dlcoll_comm *comm, void (*free_event)(void *event));

#endif
