/* coll_ops.h: every operation of libdlcoll, for tests of what may happen to ranks in any of them.
 * Knows dlcoll.h alone: used by ranks that are children of a test and by programs of their own.
 *
 * Each may be called again and again: what one call receives the next one sends, and roots go
 * around. */
#ifndef TESTS_LIB_COLL_OPS_H
#define TESTS_LIB_COLL_OPS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/dlcoll.h"

enum { COLL_MOST_RANKS = 16 };

enum coll_op {
    COLL_ALL_REDUCE,
    COLL_BROADCAST,
    COLL_REDUCE,
    COLL_ALL_GATHER,
    COLL_GATHER,
    COLL_SCATTER,
    COLL_REDUCE_SCATTER,
    COLL_ALL_TO_ALL,
    COLL_ALL_GATHER_V,
    COLL_GATHER_V,
    COLL_SCATTER_V,
    COLL_REDUCE_SCATTER_V,
    COLL_ALL_TO_ALL_V,
    COLL_SCAN,
    COLL_EXSCAN,
    COLL_ALL_TO_ALL_W,
    COLL_NEIGHBOR,
    COLL_LAYOUT,
    COLL_PERSISTENT,
    COLL_BARRIER,
    COLL_SEND,
    COLL_BATCH,
    COLL_RECV_ANY,
    COLL_SYNCHRONOUS,
    COLL_COALESCED,
    COLL_ASYNC,
    COLL_SELDOM, /* from here on they are not made for loops, and allocate */
    COLL_MONITORED_BARRIER = COLL_SELDOM,
    COLL_PROBE, /* the probe keeps the message that it finds */
    COLL_EXCHANGE,
    COLL_SPLIT,
    COLL_NEW_GROUP,
    COLL_SPLIT_ASYNC,
    COLL_EXCHANGE_ASYNC,
    COLL_DUP,
    COLL_REPEATED, /* from here on they can be called once */
    COLL_FINALIZE = COLL_REPEATED,
    COLL_OPS
};

extern const char *const coll_op_names[COLL_OPS];
int coll_op_of(const char *name); /* -1: there is none */

struct coll_buffers {
    size_t count; /* elements of a part */
    int32_t *x;   /* a part */
    int32_t *y;   /* two of each rank */
};

/* Zeroed; `count` may be lowered later. x is NULL when there is no memory. */
struct coll_buffers coll_buffers_new(size_t count, int ranks);
void coll_buffers_free(struct coll_buffers *b);

/* The `turn`th call. 0, or the error, which is of `comm`. */
int coll_op_call(enum coll_op op, dlcoll_comm *comm, const struct coll_buffers *b, int turn);

/* Calls tell(arg), in a thread of its own, as soon as this rank is inside of the operation. Returns
 * the thread, which the caller joins or detaches. */
pthread_t coll_when_inside(dlcoll_comm *comm, enum coll_op op, void (*tell)(void *), void *arg);

#endif
