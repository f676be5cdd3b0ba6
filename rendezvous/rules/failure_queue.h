/* failure_queue.h: the failures of a member that the coordinator has not acknowledged yet. Each has
 * a number; a new connection gets all of them again, and an acknowledgement drops those up to its
 * number. Pure. */
#ifndef RENDEZVOUS_RULES_FAILURE_QUEUE_H
#define RENDEZVOUS_RULES_FAILURE_QUEUE_H

#include "core/bytes.h"
#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rdzv_msg.h"

#define FAILURE_QUEUE_MAX 4096 /* one per worker; further failures are dropped */

/* All zero: empty. */
struct failure_queue {
    struct queued_failure *e; /* in the order of their numbers */
    size_t n, cap;
    uint32_t last_seq; /* number of the newest failure; numbers count from 1 */
    uint32_t sent_seq; /* number of the newest failure that was sent on this connection */
    struct buf taken;  /* the failures that were taken last */
};

void failure_queue_fini(struct failure_queue *q);

void failure_queue_add(struct failure_queue *q, const struct failure *f);
/* Drops the failures up to this number, which have arrived. */
void failure_queue_acknowledge(struct failure_queue *q, uint32_t acked);
/* A new connection: none of the failures has been sent on it. */
void failure_queue_resend(struct failure_queue *q);
/* Puts the failures that have not been sent on this connection into the status, as many as fit; the
 * status borrows them until the next call. True: some are left. */
bool failure_queue_take(struct failure_queue *q, struct rdzv_status *st);
/* Makes the failures those of a result, the first cause in front, unless dlaunch has only stopped
 * the workers. The result owns the array. */
void failure_queue_result(const struct failure_queue *q, struct rdzv_result *r);

/* Asserts that numbers rise, and that none is above the newest. For tests. */
void failure_queue_check(const struct failure_queue *q);

#endif
