/* metrics.h: --metrics and --metrics_file: the state of a launcher for Prometheus.
 *
 * Series of single ranks come from the launcher that runs them, series of the job from the launcher
 * that is the coordinator. Counters follow from the event log, which is read when somebody asks:
 * between two requests nothing is counted. */
#ifndef LAUNCHER_CONTROL_METRICS_H
#define LAUNCHER_CONTROL_METRICS_H

#include <uv.h>

#include "agent/agent.h"
#include "core/err.h"

struct metrics_opts {
    const struct job_spec *job; /* borrowed */
    void (*get_status)(void *arg, struct agent_status *out);
    const struct event_log *(*get_log)(void *arg);
    void (*unlink_later)(void *arg, const char *path); /* as in node_calls */
    void *arg;
};

struct metrics;

/* Opens what the job asks for: listens, and writes the file. *out is NULL if it asks for nothing.
 */
int metrics_open(struct metrics **out, uv_loop_t *loop, const struct metrics_opts *opts,
                 struct err *e);

/* Sets the agent that requests ask. NULL is allowed. */
void metrics_start(struct metrics *m);

/* Closes the connections and removes the file; the loop frees the rest. NULL is allowed. */
void metrics_close(struct metrics *m);

#endif
