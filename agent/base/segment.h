/* segment.h: the agent's side of core/segment.h: makes the memfd of a round and raises its abort
 * word. */
#ifndef AGENT_BASE_SEGMENT_H
#define AGENT_BASE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "core/netaddr.h"
#include "core/segment.h"
#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rank_table.h"

struct segment {
    int fd; /* the memfd, inherited by the workers; -1: none */
    struct segment_header *header;
    uint32_t warned; /* as in the header; from one round's segment to the next one's */
    size_t bytes;    /* mapped by the agent: all except the heap */
    /* Copies of fields of the header: a worker may have changed the shared ones. */
    size_t off_local;
    int nlocal, world_size;
    struct netaddr addr; /* address on which the workers of this node listen; len 0: they do not */
    uint16_t *ports;     /* by local rank; NULL: none */
};

#define SEGMENT_INIT \
    {                \
        .fd = -1     \
    }

/* Makes and fills the segment for the workers of node `group_rank`. The heap is sparse: pages cost
 * memory when they are touched. */
int segment_open(struct segment *s, const struct rank_table *table, int group_rank, int usable_cpus,
                 struct err *e);

/* Ends every pending operation of every local rank, naming the cause; `first` may be NULL when no
 * worker's death is the reason. Only the first call counts. */
void segment_raise(struct segment *s, const struct failure *first, const char *text);

/* Records that worker `local_rank` exited with status 0, for ranks of this node that wait for it.
 * */
void segment_exited(struct segment *s, int local_rank);

/* The rank that worker `local_rank` recorded as the cause of its own failure, or -1. */
int segment_cause_of(const struct segment *s, int local_rank);

/* Whether the failure that worker `local_rank` recorded is that the ranks called different
 * operations. */
bool segment_is_mismatch(const struct segment *s, int local_rank);

/* The time at which worker `local_rank` began its first operation (CLOCK_MONOTONIC); 0: the worker
 * has begun none. */
uint64_t segment_first_op_ns(const struct segment *s, int local_rank);

/* Whether worker `local_rank` is inside an operation. */
bool segment_in_operation(const struct segment *s, int local_rank);

/* An operation of worker `local_rank`. */
struct segment_last_op {
    uint64_t number; /* number among all operations of the worker, from 1 */
    uint64_t group, seq, bytes;
    uint64_t start_ns, end_ns;
    uint64_t age_ms; /* since the beginning of an open operation, else since its end */
    bool open;
};
/* Returns how many operations the worker has begun. */
uint64_t segment_ops(const struct segment *s, int local_rank);
/* Copies the operation that the worker began last. False: the worker has begun none, or is writing
 * the record at this moment. */
bool segment_last_op(const struct segment *s, int local_rank, uint64_t now_ns,
                     struct segment_last_op *out);
/* Copies the operation of that number. False: its record is not kept, or is being written. */
bool segment_numbered_op(const struct segment *s, int local_rank, uint64_t number, uint64_t now_ns,
                         struct segment_last_op *out);

/* Makes the workers count the time that they spend in operations, from their start on. */
void segment_watch(struct segment *s);
/* Nanoseconds that worker `local_rank` has spent in operations up to now_ns. *inside: the worker is
 * in one now.
 */
uint64_t segment_waited(const struct segment *s, int local_rank, uint64_t now_ns, bool *inside);

/* The word of worker `local_rank` in which the kernel sets FUTEX_OWNER_DIED when the worker begins
 * to exit; NULL: the worker has not published one yet. */
const _Atomic uint32_t *segment_exit_word(const struct segment *s, int local_rank);

void segment_close(struct segment *s);

#endif
