/* rdzv_callbacks.h: what the rendezvous asks of the agent; rdzv.h draws the order of the calls. */
#ifndef RENDEZVOUS_RDZV_CALLBACKS_H
#define RENDEZVOUS_RDZV_CALLBACKS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/bytes.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_types.h"
#include "rendezvous/rules/tree.h"

struct event_log;

struct rdzv_callbacks {
    void *arg;
    /* The log with the events of this process, which also receives those of the job. The owner
     * calls rdzv_events_changed() after it has changed the log, since events may have to be sent.
     * NULL: no events are kept. */
    struct event_log *events;
    /* The nodes are complete; this one is `group_rank` of `nnodes`. Prepare the round (sockets,
     * segment) and answer with rdzv_prepared(). May come again without on_run in between, with
     * another generation, when a node was lost meanwhile: prepare anew. */
    void (*on_prepare)(void *arg, struct generation gen, int group_rank, int nnodes);
    /* Every node is prepared: start the workers. The table is borrowed until the next on_prepare or
     * rdzv_close. table->nodes[group_rank] is this node. */
    void (*on_run)(void *arg, const struct rank_table *table, int group_rank);
    /* RESTART_WORKER: start the failed worker again. */
    void (*on_respawn)(void *arg, int local_rank, int restart_count);
    /* The round is over: stop every worker, and answer with rdzv_stopped() when none is alive. Once
     * for a round whose on_run has come. Since it says whether a restart follows, it is also
     * called if this node has called rdzv_stopped() before; then it needs no answer. */
    void (*on_stop)(void *arg, const struct rdzv_stop *why);
    /* The workers may live until until_ns of lease_clock_ns(); 0: no limit. The agent passes it on
     * to the guardian, which ends them if this process does not. Every answer of the coordinator
     * extends it. May be NULL. */
    void (*on_lease)(void *arg, uint64_t until_ns);
    /* On a thread of its own, which must not wait for anything: the lease that on_lease has set
     * goes on until `until_ns`, if one is set. May be NULL when on_lease is. */
    void (*extend_lease)(void *arg, uint64_t until_ns);
    /* The lease has run out: the other nodes may start without this one soon. The workers are to
     * be killed now; on_stop has come. May be NULL when on_lease is. */
    void (*on_fence)(void *arg);
    /* dlaunchctl on some node asks this of every node (not REQUEST_RESTART, which the coordinator
     * carries out). May be NULL. */
    void (*on_request)(void *arg, const struct rdzv_request *request);
    /* A node has answered a request of this one. May be NULL. */
    void (*on_answer)(void *arg, const struct rdzv_answer *answer);
    /* The values of rdzv_gather(), one for each node in the order of group ranks: u32 length and
     * bytes; checked, borrowed for the call. nnodes 0: together they are too large. May be NULL if
     * rdzv_gather() is not called. */
    void (*on_gathered)(void *arg, struct rd values, int nnodes);
    /* Output of workers, which rdzv_output() of some node has taken, for the console of this node:
     * this node has the coordinator, or no coordinator takes its own output. False: send no more
     * before rdzv_output_room(); output that cannot wait comes all the same. NULL: this node shows
     * no output. */
    bool (*on_output)(void *arg, const void *output, size_t n);
    /* n bytes that were given to rdzv_output() are shown, or will be. May be NULL if nothing is. */
    void (*on_output_taken)(void *arg, size_t n);
    /* Merges answers of several nodes on their way to the node that has asked. May be NULL. */
    merge_fn *merge;
    /* The job is over for this node. The result is borrowed until rdzv_close. */
    void (*on_finish)(void *arg, const struct rdzv_result *result);
};

#endif
