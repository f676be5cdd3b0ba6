/* ctl_events.h: what dlaunchctl makes of a job's events: the list itself, the state of all nodes
 * and ranks, and where their logs are. */
#ifndef LAUNCHER_CONTROL_CTL_EVENTS_H
#define LAUNCHER_CONTROL_CTL_EVENTS_H

#include "launcher/control/ctl_jobs.h"

/* The state of a job as its events say: {"nnodes": N, "complete": whether all nodes are in it,
 * "nodes": [{"node", "host", "state"}, ...], "workers": [{"rank", "local_rank", "node", "host",
 * "pid", "attempt", "state", "log_dir", ...}, ...]}. Waits for other nodes' events for a second at
 * most. NULL after a message. */
json_t *ctl_job_state(struct job *j);

/* Each returns an exit status. */
int ctl_events(struct job *j, bool follow, bool json);
/* Waits until the event has happened, at most `timeout` seconds (negative: for ever): 0, 124 for
 * the timeout, 1 if the job ends before. */
int ctl_wait(struct job *j, const char *event, double timeout, bool json);
/* Prints the job as a trace (agent/report/timeline.h). */
int ctl_timeline(struct job *j);
/* The log files of the ranks ("0,8-15"; NULL: all) on this host. */
int ctl_logs(struct job *j, const char *ranks, bool follow, bool json);

#endif
