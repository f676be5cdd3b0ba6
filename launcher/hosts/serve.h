/* serve.h: dlaunch --serve, or dlaunchd: a host's daemon, which takes the place of sshd for the
 * jobs of one user.
 *
 *     accept -> TLS under the token -> a process for the job (remote.h) -> log its end
 *
 * It knows nothing of the job: that process has the connection to the head, and lives on when the
 * daemon is killed.
 *
 *   does not finish the handshake in 3 s     disconnected
 *   more than 64 handshakes at once          the oldest is disconnected
 *   another token, or no TLS                 disconnected; one line for 10 s
 *   no descriptors left                      accepting pauses
 *   SIGTERM, SIGINT, SIGQUIT, SIGHUP         the jobs get SIGTERM; the end when they have ended */
#ifndef LAUNCHER_HOSTS_SERVE_H
#define LAUNCHER_HOSTS_SERVE_H

#include "launcher/options/options.h"

struct remote_job;

struct serve_opts {
    int listen_fd;
    const char *token;
    void (*on_ready)(void *arg); /* the daemon accepts connections */
    void *arg;
    int (*launch)(const struct remote_job *job, int argc, char **argv); /* as for remote_main() */
};

/* Checks the options, and listens. Returns the descriptor; -EINVAL; or another negative errno. */
int serve_listen(struct options *o, struct err *e);

/* Returns the exit status. */
int serve_run(const struct serve_opts *opts);

#endif
