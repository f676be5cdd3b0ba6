/* slow.h: --slow_ranks: ranks that the others wait for while all of them run.
 *
 * The coordinator's node asks all nodes every LOOK_MS how long their workers have waited in
 * operations (core/segment.h), finds the slow ranks (slow_watch.h), and tells every node when other
 * ranks are slow. Each node also finds out what its own workers do outside of operations. */
#ifndef AGENT_STACKS_SLOW_H
#define AGENT_STACKS_SLOW_H

#include <uv.h>

#include "agent/base/status.h"
#include "agent/stacks/slow_watch.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_types.h"

struct slow;

struct slow_callbacks {
    void *arg;
    /* False: the worker does not run. *pid: the worker's process; *inside: the worker is in an
     * operation. */
    bool (*get_count)(void *arg, int local_rank, struct slow_count *out, int *pid, bool *inside);
    /* The round's; NULL: none runs. */
    const struct rank_table *(*table)(void *arg, int *group_rank);
    struct gpu_state (*gpu)(void *arg, int local_rank);
    bool (*leads)(void *arg); /* the coordinator is in this process */
    bool (*request)(void *arg, const struct rdzv_request *r);
    void (*answer)(void *arg, const struct rdzv_answer *a);
    /* Called on the coordinator's node: these ranks are slow now; "": none. */
    void (*on_slow)(void *arg, const char *ranks, const char *text);
};

/* percent: the part of its time that a rank may be behind the others. */
struct slow *slow_new(uv_loop_t *loop, int nproc, int percent, const struct slow_callbacks *cb);

/* The workers of another round are watched, or none. */
void slow_reset(struct slow *s, bool watch);
void slow_on_request(struct slow *s, const struct rdzv_request *r);
void slow_on_answer(struct slow *s, const struct rdzv_answer *a);

/* The scores of a worker of this node, from 0 to 1; 0: not known. */
struct slow_scores {
    double relative, own;
    double waited_s;
};
/* False: nothing is known of the worker. NULL is allowed. */
bool slow_get_scores(const struct slow *s, int local_rank, struct slow_scores *out);

void slow_close(struct slow *s, void (*on_closed)(void *arg), void *arg);

#endif
