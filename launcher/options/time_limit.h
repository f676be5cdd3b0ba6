/* time_limit.h: when Slurm ends its job, and how the job comes back into the queue. */
#ifndef LAUNCHER_OPTIONS_TIME_LIMIT_H
#define LAUNCHER_OPTIONS_TIME_LIMIT_H

#include "launcher/options/options.h"

/* Sets --end_time from SLURM_JOB_END_TIME, else from what scontrol says if --end_warning or
 * --requeue needs it; of the launchers of a step the first one asks, because one that knows is
 * enough. -EINVAL: --end_warning cannot be kept, or Slurm would not requeue the job. */
int time_limit_read(struct options *o, char *const *envp, struct err *e);

/* --end_warning, which is given: "60", "USR1@2min". */
int time_limit_warning(struct options *o, int *signo, double *seconds, struct err *e);

/* --requeue, of a job whose time is over: whether this launcher is the one that asks for it.
 * decided: a coordinator has told the result, and asks; coordinator: that is in this process. Else
 * the launcher of the first node does, where slurm_nodeid (NULL: not set) is 0. */
bool time_limit_requeues(bool decided, bool coordinator, const char *slurm_nodeid);

/* --requeue: to be called last, because Slurm then kills what is left of the job. */
void time_limit_requeue(void);

#endif
