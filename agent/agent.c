/* agent.c: the agent's states and what moves it between them. Functions that several sections call
 * come first; then signals, the round, the ends of workers, the end, the start.
 *
 * Happy path: agent_open joins the rendezvous; on_prepare makes the round's data sockets; on_run
 * makes the segment and starts the workers; each exit arrives at on_worker_exit; when all have
 * exited with 0, the agent reports it by rdzv_done (EXIT_BARRIER), and on_finish ends the agent.
 *
 * Failures:
 *   a worker fails                 agent_worker_failed: rdzv_failed at once, and STOPPING without
 *                                  waiting for the answer
 *   a worker begins to fail        likewise, by on_worker_exiting; on_worker_exit comes later
 *   another node fails, leaves     on_stop -> STOPPING
 *   a stop signal, --timeout, ctl  rdzv_leave -> STOPPING
 *   the scheduler's time ends      likewise, with a signal and a grace of their own
 *   a second signal or ctl         0.5 s or more after the first one: kills at once
 *   a worker cannot be started     as a worker that failed with 125..127
 *   the guardian dies              everything is killed here and now
 * STOPPING ends when no worker and no descendant of one is alive and all output has been read; then
 * rdzv_stopped, and the next round or on_finish. What does not die within UNKILLABLE_MS after
 * SIGKILL is named and left behind; there is no further round on this node then. */
#include "agent/agent.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/base/fs.h"
#include "agent/base/signals.h"
#include "agent/base/job_env.h"
#include "agent/features.h"
#include "agent/process/data_socket.h"
#include "agent/process/exit_notify.h"
#include "agent/process/sweep.h"
#include "agent/report/pod_message.h"
#include "agent/report/report.h"
#include "agent/worker.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/fsm.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "core/uvx.h"
#include "rendezvous/rules/text.h"

#define MAX_SIGNALS NSIG /* a signal is listed once at most */

/* A process that is alive so long after SIGKILL counts as one that cannot be killed. */
#define UNKILLABLE_MS 10000
#define ENDING_MS     600000 /* the same for an exiting process: freeing memory takes 100 ms per GB */
#define IMPATIENT_MS  100    /* for a line of dlaunch after the wait for a reader was ended */
#define UNREAD_S      5      /* for a reader that takes nothing, in a job that was stopped */

/* A request to stop that waits until features have looked at the workers. */
struct leave_request {
    bool waits;
    enum stop_reason reason;
    int exit_code, signo;
    char text[HOST_MAX + 64];
};

struct agent {
    struct node node; /* what features see */
    struct features *features;
    struct fsm fsm;
    struct guardian_link *link;
    struct agent_callbacks cb;

    struct uvx_scope scope, signal_scope;
    uv_signal_t signals[MAX_SIGNALS];
    int nsignals;
    uint64_t first_stop_ns; /* when the first request to stop arrived; 0: none has */
    uv_poll_t lifeline;
    uv_timer_t job_timer;   /* --timeout */
    uv_timer_t end_timer;   /* --end_warning */
    uv_timer_t grace_timer; /* STOPPING: sends SIGKILL */
    uv_timer_t sweep_timer; /* looks for descendants */

    struct rdzv *rdzv;     /* NULL: closed */
    struct rdzv_info info; /* a copy, made when the state becomes DONE */
    struct leave_request leave;
    struct stdio_pump *pump;     /* NULL: closed */
    struct warm_pool *warm_pool; /* NULL: no warm interpreters */
    struct reaper *reaper;
    struct exit_notify *exit_notify;
    struct placement *placement;
    struct cgroup cgroup;
    struct log_dir log_dir;
    int null_fd;

    /* The round. */
    struct worker_context ctx;
    struct worker_env_shared **env; /* of each program */
    struct variables variables;     /* of features, for all workers */
    bool preparing;                 /* on_prepare has not been answered */
    int nalive;                     /* processes of workers */
    int nunread;                    /* workers whose output is still being read */
    int nok;                        /* workers that exited with 0 */
    int world_size;

    uint64_t lease_ns; /* the guardian's lease; 0: none */

    bool swept; /* no descendant besides the workers is left */

    /* The stop. */
    bool hurry;          /* the agent waits neither for readers nor for other nodes */
    bool hurried;        /* it did not wait for the readers */
    char stop_text[512]; /* why the job stops for good; "": it does not */
    bool failed;         /* the round stops because of a failure */
    bool stop_reported;  /* rdzv_stopped() has been called for this round */
    double grace_s;      /* until SIGKILL */
    uint64_t killed_ns;  /* when SIGKILL was sent; 0: it was not, or every process has died of it */
    struct sweep sweep;
    char leftover[512]; /* the processes that could not be killed; "": none */
    char *lost_output;  /* the first text about output that could not be written; NULL: none */

    int exit_status;
    int nclosing;
    struct agent_worker_status *status; /* for agent_get_status */
};

static const struct fsm_state agent_states[] = {
    [NODE_INIT] = {"INIT", FSM_BIT(NODE_RENDEZVOUS)},
    [NODE_RENDEZVOUS] = {"RENDEZVOUS",
                         FSM_BIT(NODE_STARTING) | FSM_BIT(NODE_STOPPING) | FSM_BIT(NODE_DONE)},
    [NODE_STARTING] = {"STARTING", FSM_BIT(NODE_RUNNING) | FSM_BIT(NODE_STOPPING)},
    [NODE_RUNNING] = {"RUNNING", FSM_BIT(NODE_EXIT_BARRIER) | FSM_BIT(NODE_STOPPING)},
    [NODE_EXIT_BARRIER] = {"EXIT_BARRIER", FSM_BIT(NODE_STOPPING) | FSM_BIT(NODE_DONE)},
    [NODE_STOPPING] = {"STOPPING", FSM_BIT(NODE_RENDEZVOUS) | FSM_BIT(NODE_DONE)},
    [NODE_DONE] = {"DONE", 0},
};

static struct agent *agent_of(const struct node *n)
{
    return container_of(n, struct agent, node);
}

static void on_log_change(void *arg)
{
    struct agent *a = arg;
    features_log_grown(a->features);
    if (a->rdzv)
        rdzv_events_changed(a->rdzv);
    if (a->cb.on_event)
        a->cb.on_event(a->cb.arg);
}

const struct event_log *agent_log(const struct agent *a)
{
    return &a->node.log;
}

void *agent_feature(const struct agent *a, const struct feature *f)
{
    return features_find(a->features, f);
}

/* The guardian has a lease while a process of the round may be alive. */
static void set_lease(struct agent *a)
{
    bool any = a->node.state == NODE_STARTING || a->node.state == NODE_RUNNING ||
               a->node.state == NODE_STOPPING;
    guardian_set_lease(a->link, any ? a->lease_ns : 0);
}

/* The only way from one state to another; asserts what the new state promises. */
static void move_to(struct agent *a, enum node_state state)
{
    enum node_state from = a->node.state;
    fsm_move(&a->fsm, (int)state);
    bool round_over = state == NODE_EXIT_BARRIER || state == NODE_RENDEZVOUS;
    assert(!round_over || (a->nalive == 0 && a->nunread == 0 && a->swept));
    assert(state != NODE_EXIT_BARRIER || a->nok == a->node.job->nproc);
    assert(state != NODE_RUNNING || !a->failed);
    assert(state != NODE_DONE || a->nalive == 0);
    a->node.state = state;
    a->node.state_name = fsm_name(&a->fsm);
    a->preparing = false; /* only a node in RENDEZVOUS answers on_prepare */
    set_lease(a);
    features_state_changed(a->features, from);
    if (a->cb.on_state)
        a->cb.on_state(a->cb.arg);
}

/* Ends the operations that this node's workers are in; `first` as in segment_raise(). */
static void agent_raise_abort(struct agent *a, const struct failure *first, const char *text);
/* w->failure is known: ends the operations of this node that wait for the worker, reports to the
 * coordinator, and stops the node's other workers. */
static void agent_worker_failed(struct agent *a, struct worker *w);
static void on_worker_exiting(void *arg); /* the callback of exit_notify */

/* STOPPING, once a round: `signo` to all workers, SIGKILL after the grace. */
static void agent_stop_workers(struct agent *a, int signo);
/* The same, with what --end_warning says. */
static void agent_warn_workers(struct agent *a);
static void agent_signal_workers(struct agent *a, int signo);
static void agent_kill_workers(struct agent *a); /* at most once a round */
/* After `delay_ms`, and once no worker is alive, kills the descendants of workers; then the agent
 * goes on. */
static void agent_look_for_descendants(struct agent *a, unsigned delay_ms);

static void agent_signals_open(struct agent *a);
/* From here on no signal ends this process. */
static void agent_signals_close(struct agent *a, void (*on_closed)(void *arg));

/* The same as agent_leave(), once features have looked at the workers. */
static void agent_leave_after_look(struct agent *a, enum stop_reason reason, int exit_code,
                                   int signo, const char *text);
static void leave_at_last(struct agent *a);
/* This node leaves the job; the workers get the signal `signo`. */
static void agent_leave(struct agent *a, enum stop_reason reason, int exit_code, int signo,
                        const char *text);
/* Moves to the next state if all workers have ended and all output is read. */
static void agent_go_on_if_over(struct agent *a);

static void agent_raise_abort(struct agent *a, const struct failure *first, const char *text)
{
    const struct rank_table *t = a->node.table;
    struct failure lost;
    if (first && first->kind == FAILURE_NODE && t && first->node >= 0 && first->node < t->nnodes &&
        t->nodes[first->node].nproc > 0) {
        lost =
            *first; /* the lowest rank stands for all ranks of the lost node; its pid is unknown */
        lost.rank = t->nodes[first->node].base_rank;
        lost.pid = 0;
        lost.exit_code = -1;
        first = &lost;
    }
    segment_raise(&a->node.segment, first, text);
}

static void agent_worker_failed(struct agent *a, struct worker *w)
{
    struct rdzv_stop why = {.reason = STOP_FAILURE, .has_first = true, .first = w->failure};
    bool alone = a->node.job->rdzv.restart_policy == RESTART_WORKER;
    assert(w->state != WORKER_IDLE && !w->ok);
    if (!alone) { /* first, because other workers wait for this one */
        failure_describe(&w->failure, why.text, sizeof(why.text));
        features_stops(a->features, &why);
        agent_raise_abort(a, &w->failure, why.text);
    }
    rdzv_failed(a->rdzv, &w->failure);
    if (alone)
        return;
    a->failed = true;
    agent_stop_workers(a, SIGTERM);
}

/* A worker has begun to exit; on_worker_exit follows when the kernel has freed its memory. If the
 * loop is late, workers may be dead already: the reaper then reports them first, in the order of
 * their deaths. */
static void on_worker_exiting(void *arg)
{
    struct agent *a = arg;
    reaper_look(a->reaper);
    for (int i = 0; i < a->node.job->nproc && a->node.state == NODE_RUNNING; i++) {
        struct worker *w = &a->node.workers[i];
        int status = w->state == WORKER_RUNNING && exit_notify_has_begun(&a->node.segment, i)
                         ? exit_notify_status(w->pid)
                         : -1;
        if (status <= 0)
            continue;
        features_worker_exits(a->features, w);
        if (w->state != WORKER_RUNNING) /* it has called MPI_Abort: reported by now */
            continue;
        worker_exiting(w, &a->ctx, status);
        agent_worker_failed(a, w);
    }
}

#define SWEEP_MS 2 /* between two searches for descendants */

/* ----------------------------------------------------- descendants that the workers left behind */

static void name_unkillable(struct agent *a)
{
    pid_t children[8];
    size_t len = 0;
    warm_pool_kill(a->warm_pool); /* they would be listed, too */
    sweep_step(&a->sweep, NULL, 0);
    int n = sweep_children(children, (int)ARRAY_LEN(children));
    if (n == 0 && access("/proc/self", F_OK) < 0) {
        snprintf(a->leftover, sizeof(a->leftover), "those that /proc does not show");
        log_error("what the workers left behind could not be killed: %s", a->leftover);
        return;
    }
    for (int i = 0; i < n && i < (int)ARRAY_LEN(children); i++) {
        char one[160];
        len += (size_t)snprintf(a->leftover + len, sizeof(a->leftover) - len, "%s%s", i ? "; " : "",
                                sweep_describe(children[i], one, sizeof(one)));
        if (len >= sizeof(a->leftover))
            break;
    }
    log_error("%d process%s could not be killed: %s", n, n == 1 ? "" : "es", a->leftover);
}

/* Goes on without the processes that cannot be killed: they count as ended, and this node leaves.
 */
static void abandon(struct agent *a)
{
    name_unkillable(a);
    atomic_store(&a->link->page->abandoned, 1);
    rdzv_leave(a->rdzv, STOP_INTERNAL, 125, a->leftover);
    for (int i = 0; i < a->node.job->nproc; i++) {
        struct worker *w = &a->node.workers[i];
        if (!worker_is_alive(w))
            continue;
        struct reaper_exit x = {.pid = w->pid, .status = SIGKILL, .seen_ns = mono_ns()};
        worker_exited(w, &a->ctx, &x, ASKED_BY_SIGKILL);
        stdio_worker_exited(a->pump, w->local_rank);
    }
    a->nalive = 0;
    a->swept = true;
    agent_go_on_if_over(a);
}

static bool is_overdue(const struct agent *a)
{
    uint64_t ms = a->killed_ns ? (mono_ns() - a->killed_ns) / 1000000 : 0;
    if (ms <= UNKILLABLE_MS || ms > ENDING_MS)
        return ms > UNKILLABLE_MS;
    for (int i = 0; i < a->node.job->nproc; i++) {
        if (worker_is_alive(&a->node.workers[i]) && exit_notify_runs(a->node.workers[i].pid))
            return false;
    }
    return true;
}

/* Descendants that are not the workers': warm interpreters, what features run. malloc'ed. */
static pid_t *pids_to_keep(struct agent *a, size_t *n)
{
    const pid_t *warm;
    *n = warm_pool_pids(a->warm_pool, &warm);
    pid_t *kept = xcalloc(*n + FEATURES_MAX, sizeof(*kept));
    if (*n)
        memcpy(kept, warm, *n * sizeof(*kept));
    *n += features_helpers(a->features, kept + *n, FEATURES_MAX);
    return kept;
}

static void on_sweep(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, sweep_timer);
    bool overdue = is_overdue(a);
    if (a->nalive) { /* daemons of live workers are left alone */
        if (overdue)
            abandon(a);
        else if (a->killed_ns)
            agent_look_for_descendants(a, SWEEP_MS);
        return;
    }
    if (warm_pool_is_forking(a->warm_pool)) { /* not to be taken for what the workers left behind */
        agent_look_for_descendants(a, SWEEP_MS);
        return;
    }
    if (!a->killed_ns) { /* every worker is dead: the sweep kills what they left behind */
        a->killed_ns = mono_ns();
        sweep_init(&a->sweep);
    }
    size_t n;
    pid_t *kept = pids_to_keep(a, &n);
    int left = sweep_step(&a->sweep, kept, n);
    free(kept);
    if (left > 0) {
        if (overdue)
            abandon(a);
        else
            agent_look_for_descendants(a, SWEEP_MS);
        return;
    }
    if (a->sweep.killed)
        log_notice("ended %u process%s that the workers had left behind", a->sweep.killed,
                   a->sweep.killed == 1 ? "" : "es");
    a->killed_ns = 0;
    a->swept = true;
    agent_go_on_if_over(a);
}

static void agent_look_for_descendants(struct agent *a, unsigned delay_ms)
{
    if (!uv_is_active((uv_handle_t *)&a->sweep_timer))
        uv_timer_start(&a->sweep_timer, on_sweep, delay_ms, 0);
}

/* ------------------------------------------------------------------------------------- stopping */

static void agent_kill_workers(struct agent *a)
{
    if (a->killed_ns)
        return;
    a->killed_ns = mono_ns();
    sweep_init(&a->sweep);
    for (int i = 0; i < a->node.job->nproc; i++)
        worker_signal_group(&a->node.workers[i], SIGKILL);
    if (a->cgroup.fd >= 0) /* which the warm interpreters are in, too */
        warm_pool_kill(a->warm_pool);
    cgroup_kill(&a->cgroup);
    agent_look_for_descendants(a, SWEEP_MS);
}

static void on_grace(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, grace_timer);
    if (a->nalive == 0) /* every worker is dead; only output is awaited */
        return;
    log_notice("%d worker%s did not stop within %g s: killing", a->nalive,
               a->nalive == 1 ? "" : "s", a->grace_s);
    agent_kill_workers(a);
}

static void agent_signal_workers(struct agent *a, int signo)
{
    for (int i = 0; i < a->node.job->nproc; i++)
        worker_signal_group(&a->node.workers[i], signo);
}

/* To the program itself; its helper processes would die of it. */
static void signal_programs(struct agent *a, int signo)
{
    for (int i = 0; i < a->node.job->nproc; i++) {
        if (worker_is_alive(&a->node.workers[i]))
            kill(a->node.workers[i].pid, signo);
    }
}

static void begin_stopping(struct agent *a, double grace_s)
{
    agent_signal_workers(
        a, SIGCONT); /* a stopped process does not act on a signal before it continues */
    a->grace_s = grace_s;
    uv_timer_start(&a->grace_timer, on_grace, (uint64_t)(grace_s * 1000), 0);
    agent_look_for_descendants(a, 0);
}

static void agent_stop_workers(struct agent *a, int signo)
{
    if (a->node.state == NODE_STOPPING || a->node.state == NODE_DONE)
        return;
    move_to(a, NODE_STOPPING);
    agent_signal_workers(a, signo);
    begin_stopping(a, a->node.job->shutdown_timeout);
}

/* Before the end of the job's time: workers save what they have, together, so that their operations
 * go on, and their helper processes as well. */
static void agent_warn_workers(struct agent *a)
{
    if (a->node.state == NODE_STOPPING || a->node.state == NODE_DONE)
        return;
    move_to(a, NODE_STOPPING);
    signal_programs(a, a->node.job->end.signal);
    begin_stopping(a, a->node.job->end.grace_s);
}

#define SAME_REQUEST_NS 500000000u /* two signals in this time are one request to stop */
#define CLOCKS_S        1.0        /* that this node's clock may be behind the scheduler's */

/* ----------------------------------------------------------------------------- requests to stop */

/* An init system that ends all processes of a job reaches the agent twice, itself and by way of the
 * guardian; a session's end comes as SIGTERM and as SIGHUP. A signal that follows soon is the same
 * request. */
enum stop_request { FIRST_REQUEST, SAME_REQUEST, FURTHER_REQUEST };

static enum stop_request classify_request(struct agent *a)
{
    uint64_t now = mono_ns();
    if (a->first_stop_ns && now - a->first_stop_ns < SAME_REQUEST_NS)
        return SAME_REQUEST;
    if (a->first_stop_ns)
        return FURTHER_REQUEST;
    a->first_stop_ns = now;
    return FIRST_REQUEST;
}

/* Ends the waits for readers of the output and for other nodes. */
static void hurry(struct agent *a)
{
    a->hurry = true;
    if (a->pump && a->node.state == NODE_DONE)
        stdio_pump_hurry(a->pump);
    else if (a->rdzv && a->node.state == NODE_DONE)
        rdzv_hurry(a->rdzv);
}

static void leave_again(struct agent *a)
{
    log_notice("killing the workers");
    agent_kill_workers(a);
    hurry(a);
}

/* The first request to stop a job that stops already, after a failure or at another node's end. */
static void go_on_stopping(struct agent *a, const char *what)
{
    if (a->nalive)
        log_notice("received %s: already stopping %d worker%s (repeat to kill now)", what,
                   a->nalive, a->nalive == 1 ? "" : "s");
}

/* Whether the scheduler, which then sends SIGTERM, ends the job now. */
static bool is_time_over(const struct agent *a)
{
    return a->node.job->end.at_s > 0 && (double)wall_ns() / 1e9 >= a->node.job->end.at_s - CLOCKS_S;
}

static void stop_by(struct agent *a, enum stop_reason reason, int signo, const char *what)
{
    char text[HOST_MAX + 64];
    enum stop_request request = classify_request(a);
    if (request == SAME_REQUEST)
        log_verbose("received %s as well: the same request", what);
    if (a->node.state == NODE_DONE) {
        if (request != SAME_REQUEST || a->hurry)
            hurry(a);
        return;
    }
    if (request == FURTHER_REQUEST) {
        leave_at_last(a);
        leave_again(a);
    }
    if (request != FIRST_REQUEST)
        return;
    if (a->node.leaving) {
        go_on_stopping(a, what);
        return;
    }
    bool over = is_time_over(a);
    snprintf(text, sizeof(text), "%s received %s%s", a->node.job->host, what,
             over ? " at the end of the job's time" : "");
    if (a->nalive)
        log_notice("received %s: stopping %d worker%s, SIGKILL after %g s (repeat to kill now)",
                   what, a->nalive, a->nalive == 1 ? "" : "s", a->node.job->shutdown_timeout);
    if (over)
        agent_leave(a, STOP_TIME_LIMIT, EXIT_TIME_LIMIT, signo, text);
    else if (signo == SIGQUIT)
        agent_leave_after_look(a, reason, 128 + signo, signo, text);
    else
        agent_leave(a, reason, 128 + signo, signo, text);
}

void agent_stop(struct agent *a, const char *what)
{
    stop_by(a, STOP_REQUEST, SIGTERM, what);
}

/* A terminal's Ctrl-Z. With other nodes waiting, a launcher that sleeps would count as lost. */
static void on_suspend(struct agent *a)
{
    if (a->node.job->rdzv.max_nodes + a->node.job->rdzv.spares > 1) {
        log_warn("not suspended: the other nodes would take this one for lost");
        guardian_refuse_suspend(a->link);
        return;
    }
    agent_signal_workers(a, SIGSTOP);
    guardian_suspend(a->link);
    agent_signal_workers(a, SIGCONT);
}

static void on_signal(uv_signal_t *h, int signo)
{
    struct agent *a = container_of(h->data, struct agent, signal_scope);
    char name[24];
    atomic_fetch_add(&a->link->page->heard, 1);
    if (job_is_stopped_by(a->node.job, signo)) {
        if (signo == SIGTSTP)
            guardian_refuse_suspend(a->link);
        stop_by(a, STOP_SIGNAL, signo, signal_name(signo, name));
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
        signal_programs(a, signo);
        break;
    }
}

/* ------------------------------------------------------------------------------ signal handlers */

void agent_signals(const struct job_spec *job, int out[NSIG])
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

static void handle_signal(struct agent *a, int signo)
{
    if (spawn_was_ignored(signo) || a->nsignals == MAX_SIGNALS)
        return;
    uv_signal_t *s = &a->signals[a->nsignals++];
    uv_signal_init(a->node.loop, s);
    uvx_own(&a->signal_scope, s);
    uv_signal_start(s, on_signal, signo);
}

/* The guardian may have forwarded some already. SIGPIPE and SIGXFSZ stay blocked, whatever the list
 * says: here they are errors of write(), not signals. */
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

static void agent_signals_open(struct agent *a)
{
    int signals[MAX_SIGNALS];
    agent_signals(a->node.job, signals);
    uvx_scope_init(&a->signal_scope, a->node.loop);
    for (const int *s = signals; *s; s++)
        handle_signal(a, *s);
    unblock(signals);
}

static void agent_signals_close(struct agent *a, void (*on_closed)(void *arg))
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < a->nsignals; i++) {
        int signo = a->signals[i].signum;
        uvx_close(&a->signals[i]); /* restores the default action, which must not end the agent */
        signal(signo, SIG_IGN);    /* the threads of libuv's pool block no signal */
    }
    uvx_scope_close(&a->signal_scope, on_closed, a);
}

#define OWN_DESCRIPTORS 26 /* at least: of the agent itself, on one node */

/* -------------------------------------------------------------- a round is prepared and started */

static void agent_leave(struct agent *a, enum stop_reason reason, int exit_code, int signo,
                        const char *text)
{
    struct rdzv_stop why = {.reason = reason};
    if (a->node.state == NODE_DONE)
        return;
    a->node.leaving = true;
    snprintf(why.text, sizeof(why.text), "%s", text);
    snprintf(a->stop_text, sizeof(a->stop_text), "%s", text);
    if (a->node.state == NODE_RUNNING)
        features_stops(a->features, &why);
    rdzv_leave(a->rdzv, reason, exit_code, text);
    agent_stop_workers(a, signo);
}

/* --end_warning: the job stops before the scheduler ends it. Of all launchers that know the time
 * the first one to see it ends the job on all nodes. */
static void on_end_timer(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, end_timer);
    double left_s = a->node.job->end.at_s - (double)wall_ns() / 1e9;
    char text[128], name[24];
    if (a->node.state == NODE_DONE || a->node.leaving)
        return;
    if (left_s > a->node.job->end.warn_s) { /* this clock was set meanwhile */
        uv_timer_start(t, on_end_timer, (uint64_t)((left_s - a->node.job->end.warn_s) * 1000) + 1,
                       0);
        return;
    }
    snprintf(text, sizeof(text), "the job's time ends in %.0f s (--end_warning)", left_s);
    if (a->nalive)
        log_notice("%s: %s to %d worker%s, SIGKILL after %g s", text,
                   signal_name(a->node.job->end.signal, name), a->nalive, a->nalive == 1 ? "" : "s",
                   a->node.job->end.grace_s);
    a->node.leaving = true;
    snprintf(a->stop_text, sizeof(a->stop_text), "%s", text);
    rdzv_leave(a->rdzv, STOP_TIME_LIMIT, EXIT_TIME_LIMIT, text);
    agent_warn_workers(a);
}

/* This node cannot do its part: no descriptor, no memory, no disk. */
static void give_up(struct agent *a, const struct err *e)
{
    char text[ERR_MSG_MAX + HOST_MAX];
    snprintf(text, sizeof(text), "%s: %s", a->node.job->host, e->msg);
    log_error("%s", e->msg);
    agent_leave(a, STOP_INTERNAL, 125, SIGTERM, text);
}

/* Answers on_prepare once every feature says that this node is ready for the round. */
static void answer_prepare(struct agent *a)
{
    if (!a->preparing || !features_ready(a->features))
        return;
    a->preparing = false;
    uint16_t *ports = xcalloc((size_t)a->node.job->nproc, sizeof(*ports));
    for (int i = 0; i < a->node.job->nproc; i++)
        ports[i] = a->node.workers[i].port;
    rdzv_prepared(a->rdzv, ports, a->node.job->nproc);
    free(ports);
}

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    struct agent *a = arg;
    struct err e = ERR_INIT;
    log_verbose("round %u: this is node %d of %d", gen.counter, group_rank, nnodes);
    a->stop_reported = false;
    for (int i = 0; i < a->node.job->nproc; i++) {
        struct worker *w = &a->node.workers[i];
        close_fd(&w->listen_fd);
        w->listen_fd = data_socket_listen(i, nnodes == 1, &w->port, &e);
        if (w->listen_fd < 0) {
            give_up(a, &e);
            return;
        }
    }
    a->preparing = a->node.state == NODE_RENDEZVOUS;
    features_prepare(a->features);
    answer_prepare(a);
}

static void start_worker(struct agent *a, struct worker *w)
{
    struct err e = ERR_INIT;
    if (worker_start(w, &a->ctx, w, &e) < 0) {
        spawn_settle(a->node.spawner);
        features_worker_ended(a->features, w);
        a->nunread += w->state == WORKER_EXITED;
        agent_worker_failed(a, w);
        return;
    }
    a->nalive++;
    a->nunread++;
    a->killed_ns = 0;
    a->swept = false;
    atomic_store_explicit(&a->link->page->nworkers, (uint32_t)a->nalive, memory_order_relaxed);
    features_worker_started(a->features, w);
    log_verbose("rank %d (local rank %d) is pid %d%s", w->rank, w->local_rank, w->pid,
                w->warm ? ", warm" : "");
}

static void forget_env(struct agent *a)
{
    int n = a->node.job->programs ? a->node.job->programs->n : 1;
    for (int i = 0; a->env && i < n; i++) {
        worker_env_shared_free(a->env[i]);
        a->env[i] = NULL;
    }
}

static int prepare_round(struct agent *a, struct err *e)
{
    if (programs_check(a->node.job->programs, a->node.table->world_size, e) < 0)
        return e->code;
    exit_notify_unwatch(a->exit_notify);
    segment_close(&a->node.segment);
    forget_env(a);
    if (a->cgroup.killed) {
        cgroup_renew(&a->cgroup);
        guardian_set_path(a->link->page->cgroup, a->cgroup.path);
    }
    if (segment_open(&a->node.segment, a->node.table, a->node.group_rank, a->node.cpus, e) < 0)
        return e->code;
    if (log_dir_attempt(&a->log_dir, a->node.restart_count, a->node.job->nproc, e) < 0)
        return e->code;
    a->node.log_dir = a->log_dir.run[0] && !a->log_dir.flat ? a->log_dir.attempt : "";
    if (features_begin(a->features, e) < 0)
        return e->code;
    variables_fini(&a->variables);
    features_variables(a->features, &a->variables);
    return 0;
}

/* Starts the workers of the round, at once or when a warm interpreter is ready. */
static void start_workers(struct agent *a)
{
    for (int i = 0; i < a->node.job->nproc && a->node.state == NODE_STARTING; i++)
        start_worker(a, &a->node.workers[i]);
    spawn_settle(a->node.spawner);
    if (a->node.state == NODE_STARTING)
        move_to(a, NODE_RUNNING);
    if (a->node.state == NODE_RUNNING)
        warm_pool_fill(a->warm_pool);
    if (a->node.restart_count == 0) /* now that the workers run */
        log_dir_sweep(&a->log_dir);
}

static void on_warm_settled(void *arg)
{
    struct agent *a = arg;
    if (a->node.state == NODE_STARTING) /* else the round has been stopped */
        start_workers(a);
}

/* How many workers of all nodes --ranks lets through. */
static int ranks_shown(const struct job_spec *job, int world_size)
{
    int n = 0;
    for (int i = 0; i < world_size; i++)
        n += !job->ranks || parse_has(job->ranks, i);
    return n;
}

static void on_run(void *arg, const struct rank_table *table, int group_rank)
{
    struct agent *a = arg;
    struct err e = ERR_INIT;
    if (a->node.state != NODE_RENDEZVOUS)
        return; /* the node was asked to stop meanwhile */
    move_to(a, NODE_STARTING);
    a->node.table = table;
    a->node.group_rank = group_rank;
    a->node.restart_count = table->restart_count;
    a->ctx.store_port = rdzv_relay_port(a->rdzv);
    a->world_size = table->world_size;
    a->nok = 0;
    a->failed = false;
    for (int i = 0; i < a->node.job->nproc; i++)
        worker_renew(&a->node.workers[i]);
    if (prepare_round(a, &e) < 0) {
        give_up(a, &e);
        return;
    }
    if (a->node.job->rdzv.restart_policy == RESTART_GROUP)
        exit_notify_watch(a->exit_notify, &a->node.segment);
    stdio_set_filtered_dir(a->pump, a->log_dir.run[0] ? a->log_dir.attempt : NULL);
    if (a->node.job->job_console)
        stdio_begin_job(a->pump, ranks_shown(a->node.job, a->world_size));
    if (warm_pool_await(a->warm_pool))
        log_verbose("the first workers wait for a warm interpreter");
    else
        start_workers(a);
}

static void respawn(struct agent *a, struct worker *w)
{
    struct err e = ERR_INIT;
    a->node.restart_count = w->respawn;
    w->respawn = 0;
    forget_env(a);
    log_verbose("starting rank %d again", w->rank);
    if (log_dir_attempt(&a->log_dir, a->node.restart_count, a->node.job->nproc, &e) < 0)
        give_up(a, &e);
    else
        start_worker(a, w);
    spawn_settle(a->node.spawner);
    warm_pool_fill(a->warm_pool);
}

static void on_respawn(void *arg, int local_rank, int restart_count)
{
    struct agent *a = arg;
    if (a->node.state != NODE_RUNNING || local_rank < 0 || local_rank >= a->node.job->nproc)
        return;
    struct worker *w = &a->node.workers[local_rank];
    w->respawn = restart_count;
    if (w->state == WORKER_CLOSED && !w->ok)
        respawn(a, w); /* else on_drained() starts it again */
}

/* --------------------------------------------------------------------------- a worker has ended */

static void on_worker_exit(void *arg, void *tag, const struct reaper_exit *x)
{
    struct agent *a = arg;
    struct worker *w = tag;
    features_worker_exits(a->features, w);
    bool stopping =
        a->node.state ==
        NODE_STOPPING; /* true as well if on_worker_exiting() has reported its failure */
    if (!worker_is_alive(w))
        return; /* abandon() has counted it as ended */
    worker_exited(w, &a->ctx, x,
                  !stopping      ? ASKED_NOTHING
                  : a->killed_ns ? ASKED_BY_SIGKILL
                  : a->failed    ? ASKED_FOR_FAILURE
                                 : ASKED_TO_STOP);
    a->nalive--;
    const char *fault = w->ok && !stopping ? features_worker_fault(a->features, w) : NULL;
    if (fault)
        worker_aborted(w, &a->ctx, 0, fault);
    features_worker_ended(a->features, w);
    if (w->ok) {
        a->nok++;
        segment_exited(&a->node.segment, w->local_rank);
    } else if (!stopping) {
        agent_worker_failed(a, w);
    }
    a->swept = false;
    atomic_store_explicit(&a->link->page->nworkers, (uint32_t)a->nalive, memory_order_relaxed);
    stdio_worker_exited(a->pump, w->local_rank);
    agent_look_for_descendants(a, 0);
}

static void on_orphan(void *arg, const struct reaper_exit *x)
{
    struct agent *a = arg;
    warm_pool_reaped(a->warm_pool, x->pid);
}

static void report_stopped(struct agent *a)
{
    uv_timer_stop(&a->grace_timer);
    exit_notify_unwatch(a->exit_notify);
    segment_close(&a->node.segment);
    move_to(a, NODE_RENDEZVOUS);
    a->stop_reported = true;
    struct failure *all = xcalloc((size_t)a->node.job->nproc, sizeof(*all));
    size_t n = 0;
    for (int i = 0; i < a->node.job->nproc; i++) {
        struct worker *w = &a->node.workers[i];
        if (w->state != WORKER_CLOSED || (w->ok && !a->failed)) /* else an early exit */
            continue;
        features_complete(a->features, w);
        all[n++] = w->failure;
    }
    rdzv_stopped(a->rdzv, all, n);
    free(all);
}

/* The round is over on this node when no process of it is alive and all output is read. */
static void agent_go_on_if_over(struct agent *a)
{
    if (a->nalive || a->nunread || !a->swept)
        return;
    if (a->node.state == NODE_RUNNING && a->nok == a->node.job->nproc) {
        move_to(a, NODE_EXIT_BARRIER);
        rdzv_done(a->rdzv);
    } else if (a->node.state == NODE_STOPPING && features_ended(a->features)) {
        report_stopped(a);
    }
}

static void on_drained(void *arg, int local_rank)
{
    struct agent *a = arg;
    struct worker *w = &a->node.workers[local_rank];
    if (w->state != WORKER_EXITED)
        return;
    worker_closed(w, &a->ctx);
    features_worker_drained(a->features, w);
    a->nunread--;
    if (w->respawn && a->node.state == NODE_RUNNING)
        respawn(a, w);
    else
        agent_go_on_if_over(a);
}

static void on_stop(void *arg, const struct rdzv_stop *why)
{
    struct agent *a = arg;
    if (why->restarting && why->reason == STOP_FAILURE)
        log_notice("%s; restart %d of %d", why->text, a->node.restart_count + 1,
                   a->node.job->rdzv.max_restarts);
    else
        log_notice(why->restarting ? "%s; restarting" : "%s", why->text);
    if (a->node.state != NODE_RENDEZVOUS || a->stop_reported)
        features_stops(a->features, why);
    if (a->stop_reported)
        return;
    if (a->node.state == NODE_RENDEZVOUS) {
        a->preparing = false;
        a->stop_reported = true;
        rdzv_stopped(a->rdzv, NULL, 0);
        return;
    }
    a->failed |= why->has_first;
    if (!why->restarting)
        snprintf(a->stop_text, sizeof(a->stop_text), "%s", why->text);
    if (why->reason == STOP_TIME_LIMIT && a->node.job->end.warn_s > 0) {
        agent_warn_workers(a);
        return;
    }
    agent_raise_abort(a, why->has_first ? &why->first : NULL, why->text);
    agent_stop_workers(a, SIGTERM);
}

/* ---------------------------------------------------------------------------- requests of users */

static void on_answer(void *arg, const struct rdzv_answer *answer)
{
    struct agent *a = arg;
    features_answer(a->features, answer);
}

static void on_gathered(void *arg, struct rd values, int nnodes)
{
    struct agent *a = arg;
    features_gathered(a->features, values, nnodes);
}

static bool merge_answers(void *arg, const struct rdzv_answers *answers, struct buf *out)
{
    (void)arg;
    return features_merge(answers, out);
}

static void leave_at_last(struct agent *a)
{
    const struct leave_request q = a->leave;
    if (!q.waits)
        return;
    a->leave.waits = false;
    agent_leave(a, q.reason, q.exit_code, q.signo, q.text);
}

static void leave_if_looked(struct agent *a)
{
    if (a->leave.waits && features_looked(a->features, a->leave.reason))
        leave_at_last(a);
}

static void agent_leave_after_look(struct agent *a, enum stop_reason reason, int exit_code,
                                   int signo, const char *text)
{
    if (a->node.state != NODE_RUNNING || !a->nalive || a->leave.waits) {
        agent_leave(a, reason, exit_code, signo, text);
        return;
    }
    a->leave = (struct leave_request){
        .waits = true, .reason = reason, .exit_code = exit_code, .signo = signo};
    snprintf(a->leave.text, sizeof(a->leave.text), "%s", text);
    leave_if_looked(a);
}

static void signal_ranks(struct agent *a, const struct rdzv_request *r)
{
    log_verbose("%s", r->signal.text);
    for (int i = 0; i < a->node.job->nproc; i++) {
        const struct worker *w = &a->node.workers[i];
        if (worker_is_alive(w) && (!*r->signal.ranks || parse_has(r->signal.ranks, w->rank)))
            kill(w->pid, r->signal.signo);
    }
}

/* A request that dlaunchctl has made here or on another node. */
static void on_request(void *arg, const struct rdzv_request *r)
{
    struct agent *a = arg;
    if (a->node.state == NODE_DONE)
        return;
    if (features_request(a->features, r))
        return;
    if (r->kind == REQUEST_KILL) {
        log_notice("%s", r->kill.text);
        agent_leave(a, STOP_REQUEST, 128 + SIGKILL, SIGKILL, r->kill.text);
        agent_kill_workers(a);
    } else if (r->kind == REQUEST_SIGNAL) {
        signal_ranks(a, r);
    }
}

bool agent_request(struct agent *a, enum request_kind kind, int signo, const char *ranks)
{
    struct rdzv_request r = {.kind = kind};
    char name[24], text[REQUEST_TEXT_MAX];
    if (a->node.state == NODE_DONE)
        return false;
    snprintf(text, sizeof(text), "%s received dlaunchctl %s%s%s", a->node.job->host,
             request_name(kind), signo ? " " : "", signo ? signal_name(signo, name) : "");
    if (kind == REQUEST_SIGNAL) {
        r.signal.signo = signo;
        snprintf(r.signal.ranks, sizeof(r.signal.ranks), "%s", ranks);
        snprintf(r.signal.text, sizeof(r.signal.text), "%s", text);
    } else {
        char *to = kind == REQUEST_KILL ? r.kill.text : r.restart.text;
        memcpy(to, text, sizeof(text));
    }
    bool all = rdzv_request(a->rdzv, &r);
    if (!all && kind != REQUEST_RESTART)
        on_request(a, &r);
    return all;
}

static void on_lease(void *arg, uint64_t until_ns)
{
    struct agent *a = arg;
    a->lease_ns = until_ns;
    set_lease(a);
}

/* The heartbeat thread calls this function; the loop calls all others. */
static void extend_lease(void *arg, uint64_t until_ns)
{
    const struct agent *a = arg;
    guardian_extend_lease(a->link, until_ns);
}

static void on_fence(void *arg)
{
    struct agent *a = arg;
    if (a->node.state != NODE_DONE)
        agent_kill_workers(a);
}

static void on_job_timeout(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, job_timer);
    char text[128];
    snprintf(text, sizeof(text), "the job did not end within %g s (--timeout)",
             a->node.job->timeout);
    if (a->nalive && !a->node.leaving)
        log_notice("%s: stopping %d worker%s, SIGKILL after %g s", text, a->nalive,
                   a->nalive == 1 ? "" : "s", a->node.job->shutdown_timeout);
    agent_leave_after_look(a, STOP_TIMEOUT, 124, SIGTERM, text);
}

/* The guardian is dead. No process would kill the workers if this one died, so the agent kills them
 * now. */
static void on_guardian_gone(uv_poll_t *h, int status, int events)
{
    (void)status, (void)events;
    struct agent *a = container_of(h, struct agent, lifeline);
    struct sweep sweep;
    if (a->node.state == NODE_DONE) { /* no worker is left */
        uv_poll_stop(h);
        hurry(a);
        return;
    }
    agent_signal_workers(a, SIGKILL);
    cgroup_kill(&a->cgroup);
    sweep_init(&sweep);
    sweep_run(&sweep, NULL, 0, UNKILLABLE_MS / 1000.0);
    cgroup_close(&a->cgroup);
    log_dir_close(&a->log_dir);
    guardian_unlink(a->link->page);
    rdzv_abandon(a->rdzv);
    log_set_writer(NULL, NULL);
    log_set_patience(LOG_LAST_WORDS_MS);
    log_error("the guardian process was killed; ended every worker");
    _exit(128 + SIGKILL);
}

/* -------------------------------------------------------------------------------------- the end */

static void free_agent(struct agent *a)
{
    for (int i = 0; i < a->node.job->nproc; i++)
        close_fd(&a->node.workers[i].listen_fd);
    exit_notify_free(a->exit_notify);
    segment_close(&a->node.segment);
    features_free(a->features);
    event_log_fini(&a->node.log);
    variables_fini(&a->variables);
    forget_env(a);
    free(a->env);
    placement_free(a->placement);
    warm_pool_free(a->warm_pool);
    spawner_free(a->node.spawner);
    close_fd(&a->null_fd);
    close_fd(&a->link->lifeline);
    free(a->node.workers);
    free(a->status);
    free(a->lost_output);
    free(a);
}

static void agent_on_closed(void *arg)
{
    struct agent *a = arg;
    if (--a->nclosing > 0)
        return;
    cgroup_close(&a->cgroup);
    atomic_store(&a->link->page->clean, 1);
    int exit_status = a->exit_status;
    struct agent_callbacks cb = a->cb;
    free_agent(a);
    cb.on_done(cb.arg, exit_status);
}

/* Returns the report for people; malloc'ed. NULL: it has been written to job->report_fd. */
static char *report_text(const struct report_input *in)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return NULL;
    int fd = in->job->report_fd;
    int columns = fd ? in->job->report_columns : fd_columns(STDERR_FILENO);
    report_print(out, in, columns > 0, columns);
    fclose(out);
    if (!fd)
        return text;
    fd_write_all(fd, text, len);
    free(text);
    return NULL;
}

/* Writes what --report asks for. Returns what is printed when all output has been; malloc'ed. */
static char *agent_report(struct agent *a, const struct rdzv_result *result)
{
    char *text = NULL;
    struct err e = ERR_INIT;
    struct report_input in = {
        .job = a->node.job,
        .result = result,
        .host = a->node.job->host,
        .group_rank = a->info.group_rank,
        .nnodes = a->info.nnodes,
        .world_size = a->world_size, /* the last round's */
        .started_wall_ns = wall_ns() - (mono_ns() - a->node.started_ns),
        .ended_wall_ns = wall_ns(),
        .elapsed = (double)(mono_ns() - a->node.started_ns) / 1e9,
        .log_dir = a->log_dir.run[0] && !a->log_dir.flat ? a->log_dir.run : NULL,
        .leftover = a->leftover[0] ? a->leftover : NULL,
        .lost_output = a->lost_output,
    };
    features_report(a->features, &in);
    if (a->exit_status == 2 && result->reason == STOP_RENDEZVOUS)
        log_error("%s",
                  result->text); /* no worker was started: reported like any other bad input */
    else if (a->exit_status != 0 || in.ledger)
        text = report_text(&in);
    if (a->node.job->report_path && report_write_json(&in, &e) < 0)
        log_error("--report: %s", e.msg);
    if (a->exit_status != 0 && a->node.job->pod_message && pod_message_write(&in, &e) < 0)
        log_error("--pod_message: %s", e.msg);
    return text;
}

/* Signals are handled until here, because one may end the wait for other nodes. */
static void on_rdzv_closed(void *arg)
{
    struct agent *a = arg;
    a->rdzv = NULL;
    agent_signals_close(a, agent_on_closed);
}

static void close_parts(struct agent *a)
{
    exit_notify_unwatch(
        a->exit_notify); /* its thread wakes the loop through a handle of the scope */
    a->nclosing = 4;
    features_close(a->features, agent_on_closed, a);
    rdzv_close(a->rdzv, on_rdzv_closed, a);
    if (a->hurried)
        rdzv_hurry(a->rdzv);
    reaper_close(a->reaper, agent_on_closed, a);
    uvx_scope_close(&a->scope, agent_on_closed, a);
}

/* The warm interpreters have been killed; they end before the agent does. */
static void on_warm_end(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, sweep_timer);
    if (sweep_step(&a->sweep, NULL, 0) > 0 && !is_overdue(a))
        uv_timer_start(t, on_warm_end, SWEEP_MS, 0);
    else
        close_parts(a);
}

static void on_output_written(void *arg, bool all)
{
    struct agent *a = arg;
    a->pump = NULL;
    log_set_writer(NULL, NULL);
    a->hurried = a->hurry && !all;
    if (!all) {
        a->hurry = true;
        log_set_patience(IMPATIENT_MS);
    }
    if (!a->warm_pool) {
        close_parts(a);
        return;
    }
    a->killed_ns = mono_ns();
    sweep_init(&a->sweep);
    on_warm_end(&a->sweep_timer);
}

static void on_unread(uv_timer_t *t)
{
    hurry(container_of(t, struct agent, job_timer));
}

/* Waits for the readers of the last output: until --timeout at most, and UNREAD_S at most if the
 * job was asked to stop and a reader takes nothing. */
static void write_out(struct agent *a, enum stop_reason reason, char *last_words)
{
    bool requested = report_was_told(reason) || reason == STOP_TIMEOUT;
    struct stdio_pump_end end = {.patience = requested ? UNREAD_S : -1,
                                 .last_words = last_words,
                                 .on_closed = on_output_written,
                                 .arg = a};
    if (a->node.job->timeout > 0) {
        double left = a->node.job->timeout - (double)(mono_ns() - a->node.started_ns) / 1e9;
        uv_timer_start(&a->job_timer, on_unread,
                       (uint64_t)((left > UNREAD_S ? left : UNREAD_S) * 1000), 0);
    }
    stdio_pump_close(a->pump, &end);
    if (a->hurry)
        stdio_pump_hurry(a->pump);
}

static void on_finish(void *arg, const struct rdzv_result *result)
{
    struct agent *a = arg;
    a->exit_status = a->leftover[0] ? 125 : result->exit_code;
    rdzv_get_info(a->rdzv, &a->info);
    move_to(a, NODE_DONE);
    warm_pool_kill(a->warm_pool);
    features_finish(a->features, result);
    const struct failure *first = result->n ? &result->failures[0] : NULL;
    if (first && first->local_rank >= 0 && first->local_rank < a->node.job->nproc &&
        a->node.workers[first->local_rank].rank == first->rank)
        worker_hand_up_error_file(&a->node.workers[first->local_rank]);
    if (a->cb.on_end)
        a->cb.on_end(a->cb.arg, a->exit_status, a->exit_status ? result->text : "");
    log_dir_close(&a->log_dir); /* before the report, which must not name a folder that is removed
                                   because it is empty */
    write_out(a, result->reason, agent_report(a, result));
}

/* ------------------------------------------------------------------------------------ the start */

static int open_handles(struct agent *a, struct err *e)
{
    int rc = uv_poll_init(a->node.loop, &a->lifeline, a->link->lifeline);
    if (rc < 0)
        return uvx_err(e, rc, "the link to the guardian");
    uvx_scope_init(&a->scope, a->node.loop);
    uv_timer_init(a->node.loop, &a->job_timer);
    uv_timer_init(a->node.loop, &a->end_timer);
    uv_timer_init(a->node.loop, &a->grace_timer);
    uv_timer_init(a->node.loop, &a->sweep_timer);
    uvx_own(&a->scope, &a->job_timer);
    uvx_own(&a->scope, &a->end_timer);
    uvx_own(&a->scope, &a->grace_timer);
    uvx_own(&a->scope, &a->sweep_timer);
    uvx_own(&a->scope, &a->lifeline);
    uv_poll_start(&a->lifeline, UV_READABLE | UV_DISCONNECT, on_guardian_gone);
    agent_signals_open(a);
    if (a->node.job->timeout > 0)
        uv_timer_start(&a->job_timer, on_job_timeout, (uint64_t)(a->node.job->timeout * 1000), 0);
    if (a->node.job->end.at_s > 0 && a->node.job->end.warn_s > 0) /* which sets the time */
        uv_timer_start(&a->end_timer, on_end_timer, 0, 0);
    return 0;
}

static int descriptors_of_worker(const struct job_spec *job, int i)
{
    uint8_t files = job->redirects[i] | job->tee[i];
    int data_socket = job->rdzv.restart_policy == RESTART_WORKER; /* else closed after the start */
    data_socket += job->rdzv.mpi != MPI_NONE;
    return 1 + 2 + !!(files & STD_OUT) + !!(files & STD_ERR) + data_socket; /* pidfd, two pipes */
}

/* Raises the soft limit to the hard limit, because each worker needs pipes and files. The workers
 * get the soft limit that dlaunch was started with. */
static int raise_descriptor_limit(const struct job_spec *job, struct err *e)
{
    struct rlimit r;
    rlim_t need = OWN_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return 0;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    for (int i = 0; i < job->nproc; i++)
        need += (rlim_t)descriptors_of_worker(job, i);
    if (r.rlim_cur >= need)
        return 0;
    return err_set(e, -EMFILE,
                   "%d worker%s need%s %llu open files, and the hard limit is %llu (ulimit -Hn)",
                   job->nproc, job->nproc == 1 ? "" : "s", job->nproc == 1 ? "s" : "",
                   (unsigned long long)need, (unsigned long long)r.rlim_cur);
}

static int open_log_dir(struct agent *a, struct err *e)
{
    const struct job_spec *job = a->node.job;
    bool keeps_output = false;
    for (int i = 0; i < job->nproc; i++)
        keeps_output |= job->redirects[i] || job->tee[i];
    if (job->log_dir || keeps_output) {
        int rc = log_dir_open(&a->log_dir, job->log_dir, job->rdzv.run_id, e);
        if (rc == 0 && !job->log_dir)
            log_notice("the workers' output goes to %s (--log_dir names another folder)",
                       a->log_dir.run);
        return rc;
    }
    if (log_dir_open_flat(&a->log_dir, job->killed_at_once, e) < 0) {
        log_warn("%s: the workers get no error files", e->msg);
        *e = (struct err)ERR_INIT;
    }
    guardian_set_path(a->link->page->unlink_path[1], a->log_dir.shared ? NULL : a->log_dir.run);
    return 0;
}

static void on_output_trouble(void *arg, const char *text, bool shown)
{
    struct agent *a = arg;
    if (!a->lost_output)
        a->lost_output = xstrdup(text);
    if (!shown && a->cb.on_unseen)
        a->cb.on_unseen(a->cb.arg, text);
}

/* The output of this node's workers goes to the console of the job. */
static void on_output(void *arg, struct buf *records)
{
    struct agent *a = arg;
    rdzv_output(a->rdzv, records);
}

static void on_output_taken(void *arg, size_t n)
{
    struct agent *a = arg;
    stdio_job_was_taken(a->pump, n);
}

/* The console of the job is the one of this node. */
static bool on_job_output(void *arg, const void *records, size_t n)
{
    struct agent *a = arg;
    return stdio_show_job(a->pump, records, n);
}

static void on_output_room(void *arg)
{
    struct agent *a = arg;
    rdzv_output_room(a->rdzv);
}

/* How many workers the job can have. */
static int most_ranks(const struct job_spec *job)
{
    return job->rdzv.max_nodes < WORLD_SIZE_MAX / NPROC_MAX ? job->rdzv.max_nodes * NPROC_MAX
                                                            : WORLD_SIZE_MAX;
}

static int open_parts(struct agent *a, struct err *e)
{
    const struct job_spec *job = a->node.job;
    const struct stdio_pump_opts pump = {
        .console_out = STDOUT_FILENO,
        .console_err = STDERR_FILENO,
        .log_fd = log_get_fd() > 0 ? log_get_fd() : 0,
        .nworkers = job->nproc,
        .fold = job->fold,
        .job = job->job_console,
        .nranks = most_ranks(job),
        .dup_stdout = job->dup_stdout,
        .dup_stderr = job->dup_stderr,
        .on_drained = on_drained,
        .on_trouble = on_output_trouble,
        .on_output = on_output,
        .on_room = on_output_room,
        .arg = a,
    };
    const struct reaper_callbacks reaper = {
        .arg = a, .on_worker = on_worker_exit, .on_orphan = on_orphan};
    int r;
    if ((r = spawner_new(&a->node.spawner, e)) < 0)
        return r;
    if ((r = raise_descriptor_limit(job, e)) < 0)
        return r;
    a->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (a->null_fd < 0)
        return err_sys(e, errno, "open /dev/null");
    if ((r = placement_new(&a->placement, job->bind, job->nproc, job_env_gpus(job), e)) < 0 ||
        (r = open_log_dir(a, e)) < 0 ||
        (r = reaper_open(&a->reaper, a->node.loop, &reaper, e)) < 0 ||
        (r = stdio_pump_open(&a->pump, a->node.loop, &pump, e)) < 0)
        return r;
    log_set_writer(stdio_write_line, a->pump);
    if (job->isolation == ISOLATE_AUTO)
        cgroup_open(&a->cgroup);
    guardian_set_path(a->link->page->cgroup, a->cgroup.path);
    a->node.cpus = usable_cpus();
    return 0;
}

static int request_of(void *arg, int local_rank, struct spawn_request *req, struct err *e)
{
    struct agent *a = arg;
    return worker_request(&a->node.workers[local_rank], &a->ctx, req, e);
}

static int open_warm_pool(struct agent *a, struct err *e)
{
    const struct warm_pool_opts opts = {.job = a->node.job,
                                        .spawner = a->node.spawner,
                                        .loop = a->node.loop,
                                        .scope = &a->scope,
                                        .request = request_of,
                                        .on_settled = on_warm_settled,
                                        .arg = a};
    if (!a->node.job->warm.modules || a->node.job->nproc == 0)
        return 0;
    a->ctx.warm_pool = a->warm_pool = warm_pool_new(&opts, e);
    return a->warm_pool ? 0 : -EMFILE;
}

/* ------------------------------------------------------------------- what features ask for */

static bool node_request(struct node *n, const struct rdzv_request *r)
{
    struct agent *a = agent_of(n);
    return a->rdzv && rdzv_request(a->rdzv, r);
}

static void node_answer(struct node *n, const struct rdzv_answer *answer)
{
    struct agent *a = agent_of(n);
    if (a->rdzv)
        rdzv_answer(a->rdzv, answer);
}

static void node_gather(struct node *n, const void *value, size_t len)
{
    rdzv_gather(agent_of(n)->rdzv, value, len);
}

static void node_get_info(struct node *n, struct rdzv_info *out)
{
    struct agent *a = agent_of(n);
    if (n->state == NODE_DONE) /* parts of the rendezvous may be closed */
        *out = a->info;
    else
        rdzv_get_info(a->rdzv, out);
}

static void node_get_status(struct node *n, struct agent_status *out)
{
    agent_get_status(agent_of(n), out);
}

static uint64_t node_first_output(struct node *n, int local_rank)
{
    struct agent *a = agent_of(n);
    return a->pump ? stdio_worker_first_ns(a->pump, local_rank) : 0;
}

static uint64_t node_last_output(struct node *n, int local_rank)
{
    struct agent *a = agent_of(n);
    return a->pump ? stdio_worker_last_ns(a->pump, local_rank) : 0;
}

static void node_go_on(struct node *n)
{
    struct agent *a = agent_of(n);
    leave_if_looked(a);
    if (n->state == NODE_RENDEZVOUS)
        answer_prepare(a);
    else if (n->state == NODE_STOPPING)
        agent_go_on_if_over(a);
}

static void node_give_up(struct node *n, const struct err *e)
{
    struct agent *a = agent_of(n);
    if (!a->preparing) /* for another round, or for none */
        return;
    a->preparing = false;
    give_up(a, e);
}

static void node_leave(struct node *n, enum stop_reason reason, int exit_code, int signo,
                       const char *text)
{
    agent_leave(agent_of(n), reason, exit_code, signo, text);
}

static void node_kill(struct node *n, int local_rank, int signo, const char *why)
{
    struct worker *w = &n->workers[local_rank];
    snprintf(w->killed_for, sizeof(w->killed_for), "%.300s", why);
    if (signo)
        worker_signal_group(w, signo);
}

static void node_fail(struct node *n, int local_rank, const char *why)
{
    struct agent *a = agent_of(n);
    struct worker *w = &n->workers[local_rank];
    log_error("%s", why);
    node_kill(n, local_rank, SIGKILL, why);
    if (n->job->rdzv.restart_policy == RESTART_WORKER)
        return;
    worker_exiting(w, &a->ctx, SIGKILL);
    agent_worker_failed(a, w);
}

static void node_abort(struct node *n, int local_rank, int exit_code, const char *how)
{
    struct agent *a = agent_of(n);
    struct worker *w = &n->workers[local_rank];
    if (n->state != NODE_RUNNING || w->state != WORKER_RUNNING)
        return;
    worker_aborted(w, &a->ctx, exit_code, how);
    agent_worker_failed(a, w);
}

static void *node_find(const struct node *n, const struct feature *f)
{
    return features_find(agent_of(n)->features, f);
}

static void node_show_processes(struct node *n)
{
    guardian_show(agent_of(n)->link);
}

static void node_unlink_later(struct node *n, const char *path)
{
    guardian_set_path(agent_of(n)->link->page->unlink_path[2], path);
}

static const struct node_calls node_calls = {
    .request = node_request,
    .answer = node_answer,
    .gather = node_gather,
    .get_info = node_get_info,
    .get_status = node_get_status,
    .first_output = node_first_output,
    .last_output = node_last_output,
    .go_on = node_go_on,
    .give_up = node_give_up,
    .leave = node_leave,
    .kill = node_kill,
    .fail = node_fail,
    .abort = node_abort,
    .find = node_find,
    .show_processes = node_show_processes,
    .unlink_later = node_unlink_later,
};

static int open_features(struct agent *a, struct err *e)
{
    struct node_id id;
    if (getrandom(id.b, sizeof(id.b), 0) != sizeof(id.b))
        return err_sys(e, errno, "getrandom");
    event_log_init(&a->node.log, &id);
    a->node.log.on_change = on_log_change;
    a->node.log.arg = a;
    int r = features_open(&a->features, &a->node, e);
    a->ctx.features = a->features;
    return r;
}

int agent_open(struct agent **out, uv_loop_t *loop, const struct job_spec *job,
               struct guardian_link *link, const struct agent_callbacks *cb, struct err *e)
{
    static const struct rdzv_callbacks callbacks = {
        .on_prepare = on_prepare,
        .on_run = on_run,
        .on_respawn = on_respawn,
        .on_stop = on_stop,
        .on_lease = on_lease,
        .extend_lease = extend_lease,
        .on_fence = on_fence,
        .on_request = on_request,
        .on_answer = on_answer,
        .on_output = on_job_output,
        .on_output_taken = on_output_taken,
        .merge = merge_answers,
        .on_gathered = on_gathered,
        .on_finish = on_finish,
    };
    struct agent *a = xcalloc(1, sizeof(*a));
    *a = (struct agent){
        .fsm = {"agent", agent_states, NODE_INIT},
        .node = {.calls = &node_calls,
                 .job = job,
                 .loop = loop,
                 .scope = &a->scope,
                 .started_ns = mono_ns(),
                 .state_name = agent_states[NODE_INIT].name,
                 .log_dir = "",
                 .segment = SEGMENT_INIT,
                 .workers = xcalloc((size_t)job->nproc, sizeof(struct worker))},
        .link = link,
        .cb = *cb,
        .cgroup = {.fd = -1},
        .null_fd = -1,
        .status = xcalloc((size_t)job->nproc, sizeof(struct agent_worker_status)),
    };
    for (int i = 0; i < job->nproc; i++)
        a->node.workers[i] = (struct worker){.local_rank = i, .rank = -1, .listen_fd = -1};
    a->env = xcalloc((size_t)(job->programs ? job->programs->n : 1), sizeof(*a->env));
    int r = open_parts(a, e);
    if (r < 0) {
        log_dir_close(&a->log_dir);
        if (!a->reaper) /* no handle is on the loop yet */
            free_agent(a);
        return r;
    }
    a->ctx = (struct worker_context){
        .node = &a->node,
        .variables = &a->variables,
        .reaper = a->reaper,
        .pump = a->pump,
        .placement = a->placement,
        .cgroup = &a->cgroup,
        .log_dir = &a->log_dir,
        .env = a->env,
        .stdin_fd = a->null_fd,
    };
    r = open_handles(a, e);
    if (r == 0)
        a->exit_notify = exit_notify_new(loop, &a->scope, on_worker_exiting, a);
    if (r == 0)
        r = open_warm_pool(a, e);
    if (r == 0)
        r = open_features(a, e);
    struct rdzv_callbacks of_rdzv = callbacks;
    of_rdzv.arg = a;
    of_rdzv.events = &a->node.log;
    if (!job->job_console)
        of_rdzv.on_output = NULL;
    if (r < 0 || (r = rdzv_open(&a->rdzv, loop, &job->rdzv, &of_rdzv, e)) < 0) {
        log_dir_close(&a->log_dir);
        return r;
    }
    fsm_move(&a->fsm, NODE_RENDEZVOUS); /* without on_state: the caller has no agent yet */
    a->node.state = NODE_RENDEZVOUS;
    a->node.state_name = fsm_name(&a->fsm);
    features_state_changed(a->features, NODE_INIT);
    *out = a;
    return 0;
}

/* --------------------------------------------------------------------------------------- status */

void agent_get_status(struct agent *a, struct agent_status *out)
{
    static const char *const health[] = {
        [NODE_INIT] = "INIT",       [NODE_RENDEZVOUS] = "INIT",  [NODE_STARTING] = "INIT",
        [NODE_RUNNING] = "HEALTHY", [NODE_STOPPING] = "STOPPED", [NODE_EXIT_BARRIER] = "SUCCEEDED",
        [NODE_DONE] = "SUCCEEDED",
    };
    *out = (struct agent_status){
        .state = fsm_name(&a->fsm),
        .health = health[a->node.state],
        .elapsed = (double)(mono_ns() - a->node.started_ns) / 1e9,
        .lost_output = a->lost_output,
        .ends_at_s = a->node.job->end.at_s,
        .stop_text = a->stop_text[0] ? a->stop_text : NULL,
        .nworkers = a->node.job->nproc,
        .workers = a->status,
    };
    if (a->node.state == NODE_DONE && a->exit_status != 0)
        out->health = "FAILED";
    node_get_info(&a->node, &out->rdzv);
    for (int i = 0; i < a->node.job->nproc; i++) {
        worker_status(&a->node.workers[i], a->node.job, &a->status[i]);
    }
    features_status(a->features, out);
}
