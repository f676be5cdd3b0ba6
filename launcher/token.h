/* token.h: the job token, the secret by which the launchers of a job know each other. */
#ifndef LAUNCHER_TOKEN_H
#define LAUNCHER_TOKEN_H

#include "agent/job_spec.h"
#include "launcher/options.h"

/* Sets spec->rdzv.guard from --insecure, --token_file, --token_fd, DLAUNCH_TOKEN (which is taken
 * out of the environment, with DLAUNCH_TOKEN_FD) or the user's own token, which is made when there
 * is none and the job has several nodes; not on a dry run. -EINVAL with a text: a token was named
 * and cannot be used. */
int token_build(struct job_spec *spec, struct options *o, struct err *e);

/* --new_token: makes a token, in place of the one that was there, in --token_file or in the user's
 * configuration folder, and says where on standard output. */
int token_new(struct options *o, struct err *e);

#endif
