/* job_signals.h: the signals that a job reacts to: those that stop it, and those that the launcher
 * passes on to the workers. */
#ifndef AGENT_JOB_SIGNALS_H
#define AGENT_JOB_SIGNALS_H

#include <signal.h>
#include <uv.h>

#include "agent/base/job_spec.h"
#include "core/uvx.h"

struct job_signals {
    struct uvx_scope scope;
    uv_signal_t handles[NSIG]; /* a signal is listed once at most */
    int n;
    void (*on_signal)(void *arg, int signo);
    void *arg;
};

/* Lists them, 0-terminated. The guardian forwards these to the agent. */
void job_signals_list(const struct job_spec *job, int out[NSIG]);

/* Handles the signals on the loop, but for those that were ignored when dlaunch was started, and
 * unblocks them: the guardian may have forwarded some already. */
void job_signals_open(struct job_signals *s, uv_loop_t *loop, const struct job_spec *job,
                      void (*on_signal)(void *arg, int signo), void *arg);

/* After this call no signal ends this process. */
void job_signals_close(struct job_signals *s, void (*on_closed)(void *arg), void *arg);

#endif
