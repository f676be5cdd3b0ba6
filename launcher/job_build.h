/* job_build.h: from what the user asked for to the job as the agent runs it. */
#ifndef LAUNCHER_JOB_BUILD_H
#define LAUNCHER_JOB_BUILD_H

#include "agent/job_spec.h"
#include "launcher/options.h"

#define C10D_PORT 29400 /* where nodes meet by c10d when no port is given */

/* Checks everything that can be known before anything is started, and says in a line each what it
 * decided by itself. The spec borrows from the options. On failure one line that names the value
 * and where it came from, and *exit_status: 2 (torchrun's 1 under that name), 126 or 127. */
int job_build(struct job_spec *spec, struct options *o, int *exit_status, struct err *e);

#endif
