/* gather.h: samples of the workers of all nodes. The asking node sends two requests by way of the
 * coordinator. A node answers the first one at once: it is here. It answers the second one when it
 * has sampled its workers. Nodes that are here are waited for up to GATHER_MS; one that is not,
 * four times as long as it took the slowest of the others to say so, and longer on a busy host.
 * What does not come in time is named. */
#ifndef AGENT_STACKS_GATHER_H
#define AGENT_STACKS_GATHER_H

#include <uv.h>

#include "agent/stacks/sampler.h"
#include "rendezvous/rules/rank_table.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/rdzv_types.h"

#define GATHER_MS      2500 /* for the answers of nodes that are here */
#define GATHER_LATE_MS 30   /* a timer that is later says that this host is busy */

struct gatherer;

struct gather_node {
    const struct rank_table *table; /* of the round; NULL: none runs */
    int group_rank;
    const char *host;
    const struct inspect_worker *workers; /* that are alive here, by rank */
    size_t n;
};

struct gather_callbacks {
    void *arg;
    /* Borrowed until the loop runs again. */
    void (*get_node)(void *arg, struct gather_node *out);
    /* Adds what this node knows of its own workers. */
    void (*complete)(void *arg, struct sample *s);
    bool (*request)(void *arg, const struct rdzv_request *r); /* false: no coordinator */
    void (*answer)(void *arg, const struct rdzv_answer *a);
    const char *inspect; /* as in sampler.h */
};

struct gatherer *gatherer_new(uv_loop_t *loop, struct spawner *spawner,
                              const struct gather_callbacks *cb);

/* Calls back once, from the loop: with the samples of all ranks of the round, in their order. Those
 * of ranks whose nodes did not answer are silent and have a note only. all_nodes: else those of
 * this node. */
void gather(struct gatherer *g, bool all_nodes,
            void (*on_done)(void *arg, const struct samples *all), void *arg);

/* Answers a request of another node, or of this one, for this node's samples. */
void gatherer_on_request(struct gatherer *g, const struct rdzv_request *r);
void gatherer_on_answer(struct gatherer *g, const struct rdzv_answer *a);
/* Makes one answer of several to this request, in which each stack is there once. False: one is
 * malformed, or they are together too long. */
bool gather_merge(const struct rdzv_answers *answers, struct buf *out);
/* Returns how many requests have been answered. */
int gatherer_answers(const struct gatherer *g);

/* The process of dlaunch-inspect; 0: none runs. NULL is allowed. */
pid_t gatherer_pid(const struct gatherer *g);

/* on_done of all that is under way is called with NULL now. NULL is closed already. */
void gatherer_close(struct gatherer *g, void (*on_closed)(void *arg), void *arg);

#endif
