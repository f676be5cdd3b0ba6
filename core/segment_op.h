/* segment_op.h: how a record of a worker's flight recorder (segment.h) is written.
 *
 * A record belongs to the thread that has taken it: to take a record is to write SEGMENT_OP_WRITING
 * over its number, and to give it back is to write the number. A reader copies the record and then
 * checks that the number has not changed. A write that began and ended while the reader copied
 * leaves the number unchanged: so end_ns is written last and read first. Nobody waits: a thread
 * that cannot take a record leaves its operation, or its end, unrecorded, and a reader leaves a
 * record out that is being written. */
#ifndef CORE_SEGMENT_OP_H
#define CORE_SEGMENT_OP_H

#include <stdbool.h>

#include "core/memory_fence.h"
#include "core/segment.h"

#define SEGMENT_OP_WRITING UINT64_MAX

/* False: the record has another number than `before`. */
static inline bool segment_op_take(struct segment_op *op, uint64_t before)
{
    if (!atomic_compare_exchange_strong_explicit(&op->number, &before, SEGMENT_OP_WRITING,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    memory_fence(memory_order_release); /* SEGMENT_OP_WRITING before a changed field */
    return true;
}

static inline void segment_op_give_back(struct segment_op *op, uint64_t number)
{
    atomic_store_explicit(&op->number, number, memory_order_release);
}

#endif
