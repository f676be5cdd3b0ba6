/* stacks.h: stacks of the workers of all nodes: for dlaunchctl stacks, for the report of a job that
 * --timeout or SIGQUIT ends, and for who looks for hangs. */
#ifndef AGENT_STACKS_STACKS_H
#define AGENT_STACKS_STACKS_H

#include <jansson.h>

#include "agent/base/feature.h"
#include "agent/stacks/gather.h"

extern const struct feature stacks_feature;

/* Takes the stacks of the workers of all nodes, or of the ranks named, "0,8-15"; "": all. on_done
 * is called once, from the loop, and takes what stack_tree_json() makes, with the "text" for
 * people; NULL: the job has ended. */
void stacks_of_job(void *state, const char *ranks, void (*on_done)(void *arg, json_t *stacks),
                   void *arg);

/* For other features of this room; `n` is their node. */
struct gatherer *stacks_gatherer(const struct node *n);
/* Keeps the stacks for the report. */
void stacks_keep(const struct node *n, const struct samples *all);
/* Whether a worker has been silent for less than half of the time that it may be, as samples say.
 */
void stacks_set_activity(const struct node *n, bool (*was_active)(void *arg, int local_rank),
                         void *arg);

#endif
