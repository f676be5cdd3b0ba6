/* search.h: the search for the coordinator (struct rdzv_discovery), and the steps of it that may
 * block: each runs on a thread of libuv's pool, one after the other. */
#ifndef RENDEZVOUS_DISCOVERY_SEARCH_H
#define RENDEZVOUS_DISCOVERY_SEARCH_H

#include <uv.h>

#include "rendezvous/discovery/rdzv_backend.h"

struct search;

struct search *search_new(uv_loop_t *loop, const struct rdzv_config *config);

/* The discovery; NULL while a thread of the pool has it. */
struct rdzv_discovery *search_idle(struct search *s);

/* A step, on behalf of `arg`. prepare and done are called on the loop; prepare, which may be NULL,
 * right before the step, maybe inside search_run(). */
struct search_step {
    void *arg;
    void (*prepare)(void *arg, struct rdzv_discovery *f);
    void (*run)(struct rdzv_discovery *f); /* on the pool */
    void (*done)(void *arg, struct rdzv_discovery *f);
};
/* Runs the step when those before it are done. At most one at a time for each `arg`. */
void search_run(struct search *s, const struct search_step *step);
/* Forgets the steps of `arg`: nothing is called back. */
void search_forget(struct search *s, const void *arg);

/* Ends the search; a step that is under way, or blocked, ends by itself. over: the job is over. */
void search_stop(struct search *s, bool over);
/* To be called after search_stop(): withdraws the published address, if this node has published one
 * and no step is under way. Calls back in the end; false: there is nothing to withdraw. */
bool search_withdraw(struct search *s, void (*done)(void *arg), void *arg);
/* To be called after search_stop(). The discovery of a step that is under way is freed when the
 * step ends. */
void search_free(struct search *s);

#endif
