/* token.h: the job token, the secret by which the launchers of a job know each other. */
#ifndef LAUNCHER_TOKEN_H
#define LAUNCHER_TOKEN_H

#include "agent/job_spec.h"
#include "launcher/options.h"

/* Sets spec->rdzv.auth from --insecure, --token_file, --token_fd, DLAUNCH_TOKEN (which is removed
 * from the environment, with DLAUNCH_TOKEN_FD) or the user's own token, which is created if there
 * is none and the job has several nodes, except on a dry run. -EINVAL with a text: a named token
 * cannot be used. */
int token_build(struct job_spec *spec, struct options *o, struct err *e);

/* The token of a job that is started on several hosts from here, as text: the one that the options
 * name, else a new one; "" with --insecure. */
#define TOKEN_TEXT_MAX 4096
int token_of_head(struct options *o, char out[TOKEN_TEXT_MAX], struct err *e);

/* --new_token: creates a token in --token_file or in the user's configuration folder, replaces an
 * existing one, and prints the path. */
int token_new(struct options *o, struct err *e);

#endif
