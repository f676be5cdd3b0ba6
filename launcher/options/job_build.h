/* job_build.h: from what the user asked for to the job as the agent runs it. */
#ifndef LAUNCHER_OPTIONS_JOB_BUILD_H
#define LAUNCHER_OPTIONS_JOB_BUILD_H

#include "agent/base/job_spec.h"
#include "launcher/options/options.h"

#define C10D_PORT 29400 /* where nodes meet by c10d when no port is given */

/* Checks everything that can be checked before anything is started. Reads no environment but that
 * of the options and prints nothing: a decision that the user should know of is noted in the
 * options (options_log_notes()). The spec borrows from the options; its token is token_build()'s.
 * On failure one line that names the value and its source, and *exit_status: 2 (torchrun's 1 under
 * that name), 126 or 127. */
int job_build(struct job_spec *spec, struct options *o, int *exit_status, struct err *e);

/* Whether the option's file, which is written when the job has ended, can be written. 0 or -EINVAL
 * with a text. */
int job_check_file(struct options *o, enum opt_id id, struct err *e);

#endif
