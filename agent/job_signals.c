#include "agent/job_signals.h"

#include "agent/process/spawn.h"
#include "core/mem.h"

void job_signals_list(const struct job_spec *job, int out[NSIG])
{
    static const int passed_on[] = {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
    int n = 0;
    for (const int *s = job->stop_signals; *s; s++)
        out[n++] = *s;
    for (size_t i = 0; i < ARRAY_LEN(passed_on); i++) {
        if (!job_is_stopped_by(job, passed_on[i]))
            out[n++] = passed_on[i];
    }
    out[n] = 0;
}

static void on_handle(uv_signal_t *h, int signo)
{
    struct job_signals *s = container_of(h->data, struct job_signals, scope);
    s->on_signal(s->arg, signo);
}

static void handle(struct job_signals *s, uv_loop_t *loop, int signo)
{
    if (spawn_was_ignored(signo) || s->n == (int)ARRAY_LEN(s->handles))
        return;
    uv_signal_t *h = &s->handles[s->n++];
    uv_signal_init(loop, h);
    uvx_own(&s->scope, h);
    uv_signal_start(h, on_handle, signo);
}

/* SIGPIPE and SIGXFSZ stay blocked, whatever the list says: here they are errors of write(), not
 * signals. */
static void unblock(const int *signals)
{
    sigset_t set;
    sigemptyset(&set);
    for (; *signals; signals++)
        sigaddset(&set, *signals);
    sigdelset(&set, SIGPIPE);
    sigdelset(&set, SIGXFSZ);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

void job_signals_open(struct job_signals *s, uv_loop_t *loop, const struct job_spec *job,
                      void (*on_signal)(void *arg, int signo), void *arg)
{
    int signals[NSIG];
    job_signals_list(job, signals);
    s->n = 0;
    s->on_signal = on_signal;
    s->arg = arg;
    uvx_scope_init(&s->scope, loop);
    for (const int *signo = signals; *signo; signo++)
        handle(s, loop, *signo);
    unblock(signals);
}

void job_signals_close(struct job_signals *s, void (*on_closed)(void *arg), void *arg)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < s->n; i++) {
        int signo = s->handles[i].signum;
        uvx_close(&s->handles[i]); /* restores the default action, which must not end the agent */
        signal(signo, SIG_IGN);    /* the threads of libuv's pool block no signal */
    }
    uvx_scope_close(&s->scope, on_closed, arg);
}
