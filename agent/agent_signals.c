/* agent_signals.c: stop signals and those that are passed on, from the agent's start to its end. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

#include "agent/agent_impl.h"
#include "agent/report/report.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#define SAME_WORD_NS 500000000u
#define TIME_MAX     0x7fffffff /* seconds of setitimer() on any kernel */

atomic_bool agent_hurry;

/* ------------------------------------------------------------------------------ what they do */

/* An init system that ends all processes of a job reaches the agent twice, itself and by way of the
 * guardian; a session's end comes as SIGTERM and as SIGHUP. What follows soon is the same word. */
enum word { FIRST_WORD, SAME_WORD, FURTHER_WORD };

static enum word take_word(void) /* in a signal handler as well */
{
    static _Atomic uint64_t first_ns; /* 0: none has come */
    uint64_t first = 0, now = mono_ns();
    if (atomic_compare_exchange_strong(&first_ns, &first, now))
        return FIRST_WORD;
    return now - first < SAME_WORD_NS ? SAME_WORD : FURTHER_WORD;
}

static void leave_again(struct agent *a)
{
    log_notice("killing the workers");
    agent_kill_workers(a);
    atomic_store(&agent_hurry, true);
}

/* The job is being stopped already, for another reason than a word from outside. */
static void go_on_stopping(struct agent *a, const char *what)
{
    if (a->nalive)
        log_notice("received %s: %d worker%s being stopped already (once more: at once)", what,
                   a->nalive, a->nalive == 1 ? " is" : "s are");
}

static void stop_by(struct agent *a, enum stop_reason reason, int signo, const char *what)
{
    char text[HOST_MAX + 64];
    enum word word = take_word();
    if (word == SAME_WORD)
        log_verbose("received %s as well: taken for the same word", what);
    if (a->fsm.state == DONE) {
        if (a->rdzv && (word != SAME_WORD || atomic_load(&agent_hurry)))
            rdzv_hurry(a->rdzv);
        return;
    }
    if (word == FURTHER_WORD)
        leave_again(a);
    if (word != FIRST_WORD)
        return;
    if (a->leaving) {
        go_on_stopping(a, what);
        return;
    }
    snprintf(text, sizeof(text), "%s received %s", a->job->host, what);
    if (a->nalive)
        log_notice("received %s: stopping %d worker%s, SIGKILL after %g s (once more: at once)",
                   what, a->nalive, a->nalive == 1 ? "" : "s", a->job->shutdown_timeout);
    agent_leave(a, reason, 128 + signo, signo, text);
}

static void on_stop_signal(struct agent *a, int signo)
{
    char name[24];
    stop_by(a, STOP_SIGNAL, signo, signal_name(signo, name));
}

void agent_stop(struct agent *a, const char *what)
{
    stop_by(a, STOP_REQUEST, SIGTERM, what);
}

/* A terminal's Ctrl-Z. With other nodes waiting, a launcher that sleeps would count as lost. */
static void on_suspend(struct agent *a)
{
    if (a->job->rdzv.max_nodes + a->job->rdzv.spares > 1) {
        log_warn("not suspended: the other nodes would take this one for lost");
        return;
    }
    agent_signal_workers(a, SIGSTOP);
    raise(SIGSTOP);
}

static void on_signal(uv_signal_t *h, int signo)
{
    struct agent *a = container_of(h->data, struct agent, signal_scope);
    if (job_is_stopped_by(a->job, signo)) {
        on_stop_signal(a, signo);
        return;
    }
    switch (signo) {
    case SIGTSTP:
        on_suspend(a);
        break;
    case SIGCONT:
        agent_signal_workers(a, SIGCONT);
        break;
    case SIGUSR1:
    case SIGUSR2:
        /* For the program itself; its helper processes would die of it. */
        for (int i = 0; i < a->job->nproc; i++) {
            if (a->workers[i].state == WORKER_RUNNING)
                kill(a->workers[i].pid, signo);
        }
        break;
    }
}

/* ------------------------------------------------------------------------------ their handlers */

static void handle_signal(struct agent *a, int signo)
{
    if (spawn_was_ignored(signo) || a->nsignals == MAX_SIGNALS)
        return;
    uv_signal_t *s = &a->signals[a->nsignals++];
    uv_signal_init(a->loop, s);
    uvx_own(&a->signal_scope, s);
    uv_signal_start(s, on_signal, signo);
}

/* The guardian may have forwarded some already. What is written to where nobody reads, and files
 * that grow too large, are errors here and no signals, whatever the list says. */
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

void agent_signals_open(struct agent *a)
{
    static const int others[] = {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, 0};
    uvx_scope_init(&a->signal_scope, a->loop);
    for (const int *s = a->job->stop_signals; *s; s++)
        handle_signal(a, *s);
    for (const int *s = others; *s; s++) {
        if (!job_is_stopped_by(a->job, *s))
            handle_signal(a, *s);
    }
    unblock(a->job->stop_signals);
    unblock(others);
}

static void (*loops_handler)(int signo); /* libuv's, the same one for all signals */

static void on_signal_at_the_end(int signo)
{
    if (take_word() != SAME_WORD)
        atomic_store(&agent_hurry, true);
    loops_handler(signo);
}

static void on_alarm(int signo)
{
    (void)signo;
    atomic_store(&agent_hurry, true);
}

/* A reader that takes nothing does not outlast --timeout, whose timer stands still as well. */
static void hurry_in_time(const struct agent *a)
{
    const struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    double left = a->job->timeout - (double)(mono_ns() - a->started_ns) / 1e9;
    if (left < UNREAD_S)
        left = UNREAD_S;
    struct itimerval t = {.it_value.tv_sec = left < TIME_MAX ? (time_t)left : TIME_MAX};
    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &t, NULL);
}

static int lifeline_at_the_end;

static void look_for_guardian(void)
{
    struct pollfd p = {lifeline_at_the_end, POLLIN, 0};
    if (poll(&p, 1, 0) > 0)
        atomic_store(&agent_hurry, true);
}

/* The kernel sends us SIGCONT when the guardian dies. */
static void on_continued(int signo)
{
    int kept = errno;
    (void)signo;
    look_for_guardian();
    errno = kept;
}

/* Nor does it hold us when the guardian has been killed. */
static void hurry_without_guardian(const struct agent *a)
{
    const struct sigaction sa = {.sa_handler = on_continued, .sa_flags = SA_RESTART};
    lifeline_at_the_end = a->link->lifeline;
    sigaction(SIGCONT, &sa, NULL);
    look_for_guardian(); /* it may be dead already */
}

void agent_signals_hurry(struct agent *a)
{
    struct sigaction sa = {.sa_handler = on_signal_at_the_end}, old;
    sigfillset(&sa.sa_mask); /* as libuv's handler needs it */
    for (const int *s = a->job->stop_signals; *s; s++) {
        if (spawn_was_ignored(*s) || sigaction(*s, NULL, &old) < 0 || old.sa_handler == SIG_DFL)
            continue;
        loops_handler = old.sa_handler;
        sigaction(*s, &sa, NULL);
    }
    hurry_without_guardian(a);
    if (a->job->timeout > 0)
        hurry_in_time(a);
}

void agent_signals_close(struct agent *a, void (*on_closed)(void *arg))
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < a->nsignals; i++) {
        int signo = a->signals[i].signum;
        uvx_close(&a->signals[i]); /* gives it back its default action: no end of the job's */
        signal(signo, SIG_IGN);    /* libuv's pool has threads that block none */
    }
    uvx_scope_close(&a->signal_scope, on_closed, a);
}
