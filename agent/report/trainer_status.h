/* trainer_status.h: the progress of a job in a Kubeflow TrainJob (status.trainerStatus).
 *
 * The Trainer gives its pods KUBEFLOW_TRAINER_SERVER_URL, _CA_CERT and _TOKEN. The node of rank 0
 * posts there when a round begins and when it ends in a restart, and what rank 0's worker writes
 * into --progress_file: a percentage on the first line, then a metric on each line, "loss 0.25". A
 * post replaces what a program has posted by itself, so nothing is posted in between otherwise, nor
 * at the end. At most one post in 5 s; a thread of its own makes them, for the server may not
 * answer. The functions are the loop's. */
#ifndef AGENT_REPORT_TRAINER_STATUS_H
#define AGENT_REPORT_TRAINER_STATUS_H

#include "agent/base/feature.h"

extern const struct feature trainer_feature;

struct trainer_status;

/* NULL without the variables, or after a warning. progress_file: NULL if there is none. */
struct trainer_status *trainer_status_open(const char *progress_file);

/* A change of state ("running", "restarting"). */
void trainer_status_report(struct trainer_status *t, const char *state, int nodes, int workers,
                           int restarts);

/* Posts what is left in the progress file, for 3 s at most, then frees it and calls back. */
void trainer_status_close(struct trainer_status *t, uv_loop_t *loop, void (*on_closed)(void *arg),
                          void *arg);

#endif
