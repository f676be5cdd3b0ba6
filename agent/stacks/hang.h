/* hang.h: --hang_after: a job that hangs is noticed, and the ranks that it waits for are named.
 *
 * Every node watches the signs of life of its workers (hang_watch.h). When one of them is silent
 * for most of its limit, the coordinator's node takes a sample of all ranks, a second one when the
 * limit is reached, and finds the verdict in both (verdict.h). */
#ifndef AGENT_STACKS_HANG_H
#define AGENT_STACKS_HANG_H

#include <uv.h>

#include "agent/stacks/gather.h"
#include "agent/stacks/hang_watch.h"
#include "agent/stacks/verdict.h"

struct hang;

struct hang_callbacks {
    void *arg;
    bool (*get_signs)(void *arg, int local_rank,
                      struct hang_signs *out); /* false: the worker does not run */
    /* Fills in when the worker's operation of that number began, and of which kind it is. False:
     * that is not known any more. */
    bool (*get_op)(void *arg, int local_rank, uint64_t number, struct hang_signs *out);
    bool (*leads)(void *arg); /* the coordinator is in this process */
    bool (*request)(void *arg, const struct rdzv_request *r);
    struct gatherer *(*gatherer)(void *arg);
    /* On the coordinator's node: never HANG_NONE, and each state once until workers live again,
     * but for a verdict about a node that did not answer: it is replaced when that node does. */
    void (*on_verdict)(void *arg, const struct verdict *v, const struct samples *all);
    /* On another node: the coordinator's does not react to a suspicion. */
    void (*on_no_coordinator)(void *arg);
    void (*on_life)(void *arg); /* a worker that was silent when the job hung lives again */
};

/* Watches from now on. */
struct hang *hang_new(uv_loop_t *loop, int nproc, double after, const struct hang_callbacks *cb);

/* The workers of another round are watched, or none. */
void hang_reset(struct hang *h, bool watch);
/* Some node, perhaps this one, suspects a hang: the coordinator sends the suspicion to all
 * nodes. */
void hang_on_suspicion(struct hang *h, const struct rdzv_request *r);
/* Whether a worker has been silent for less than half of the time that it may be. */
bool hang_was_active(const struct hang *h, int local_rank);
/* The job hangs, as the coordinator's node says: every node has to be told when it goes on. */
void hang_declared(struct hang *h);

void hang_close(struct hang *h, void (*on_closed)(void *arg), void *arg);

#endif
