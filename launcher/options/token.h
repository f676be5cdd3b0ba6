/* token.h: the job token, the secret by which the launchers of a job know each other. */
#ifndef LAUNCHER_OPTIONS_TOKEN_H
#define LAUNCHER_OPTIONS_TOKEN_H

#include "agent/base/job_spec.h"
#include "launcher/options/options.h"

/* Sets spec->rdzv.auth from --insecure, --token_file, --token_fd, DLAUNCH_TOKEN (which is removed
 * from the environment, with DLAUNCH_TOKEN_FD) or the user's own token, which is created if there
 * is none and the job has several nodes, except on a dry run. -EINVAL with a text: a named token
 * cannot be used. */
int token_build(struct job_spec *spec, struct options *o, struct err *e);

/* The secrets of a job that is started on several hosts from here, as text. job: the token that the
 * options name, else a new one; "" with --insecure. daemon: what the daemons of the hosts have
 * (launcher/hosts/serve.h): the token that the options name, else the user's own; "": there is
 * none, for the reason in why. */
#define TOKEN_TEXT_MAX 4096
struct head_tokens {
    char job[TOKEN_TEXT_MAX], daemon[TOKEN_TEXT_MAX];
    struct err why;
};
int token_of_head(struct options *o, struct head_tokens *out, struct err *e);

/* --serve: the token that the options name, else the user's own, which is created if there is none.
 * source: where it comes from, for messages. */
int token_of_daemon(struct options *o, char out[TOKEN_TEXT_MAX], const char **source,
                    struct err *e);

/* --new_token: creates a token in --token_file or in the user's configuration folder, replaces an
 * existing one, and prints the path. */
int token_new(struct options *o, struct err *e);

#endif
