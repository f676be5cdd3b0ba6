/* recorder.h: the flight recorder: the last operations of this process, for the report of a hang.
 * In its line of the launcher's segment, where the agent and the node's other ranks can read them,
 * else in its own memory. Any thread records, and no thread waits. */
#ifndef COLLECTIVES_BASE_RECORDER_H
#define COLLECTIVES_BASE_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/base/op_signature.h"
#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "core/segment.h"

struct recorder {
    struct segment_local *line; /* in the segment, or own */
    bool watched;               /* line->watched */
    struct segment_local own;
};

void recorder_init(struct recorder *r, struct segment_local *line); /* NULL: none */

/* An operation begins; returns its number, for recorder_end(). coarse_ns: the time now, on
 * CLOCK_MONOTONIC_COARSE, if the caller has it; else 0. */
uint64_t recorder_begin(struct recorder *r, uint64_t group, const char *group_name, uint64_t seq,
                        const struct op_signature *sig, uint64_t bytes, uint64_t coarse_ns);
/* Records the beginning of an operation on device memory; `timed`: the device's times follow. */
uint64_t recorder_begin_device(struct recorder *r, uint64_t group, const char *group_name,
                               uint64_t seq, const struct op_signature *sig, uint64_t bytes,
                               bool timed);
/* The device has begun it at start_ns, and ended it, without an error, at end_ns, if that is not 0.
 */
void recorder_put_device(struct recorder *r, uint64_t number, uint64_t start_ns, uint64_t end_ns);
void recorder_end(struct recorder *r, uint64_t number, int result);
/* The operation has succeeded at once: its end is its start. */
void recorder_end_at_once(struct recorder *r, uint64_t number);

/* The program waits for an operation to end, from here to recorder_waited(). */
static inline void recorder_waits(struct recorder *r)
{
    if (r->watched)
        atomic_fetch_sub_explicit(&r->line->waited_ns, (int64_t)mono_ns(), memory_order_relaxed);
}

static inline void recorder_waited(struct recorder *r)
{
    if (r->watched)
        atomic_fetch_add_explicit(&r->line->waited_ns, (int64_t)mono_ns(), memory_order_relaxed);
}

/* The collective operation of that number of a communicator that a line has under way, or has done,
 * without its settings; or, where that one came to nothing, as those of no elements do, the next
 * one: *seq is its number then. Those on device memory are none of these: they come in an order of
 * their own. False: it is not there, or no longer. */
bool recorder_find(const struct segment_local *line, uint64_t group, uint64_t *seq,
                   struct op_signature *sig);

/* Copies those of a line, the newest first. Returns how many. */
int recorder_read(const struct segment_local *line, dlcoll_record *out, int max);

#endif
