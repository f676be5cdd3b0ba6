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

/* --requeue: to be called last, because Slurm then kills what is left of the job. */
void time_limit_requeue(void);

#endif
