#include "agent/rules/agent_rules.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/debug_assert.h"
#include "core/fsm.h"
#include "core/mem.h"

#define EXIT_TROUBLE 125
#define EXIT_TIMEOUT 124

/* Longest waits for answers of features, which have limits of their own. */
#define LOOK_NS  UINT64_C(5000000000)
#define ENDED_NS UINT64_C(30000000000)

static const struct fsm_state states[NODE_STATES] = {
    [NODE_INIT] = {"INIT", FSM_BIT(NODE_RENDEZVOUS)},
    [NODE_RENDEZVOUS] = {"RENDEZVOUS",
                         FSM_BIT(NODE_STARTING) | FSM_BIT(NODE_STOPPING) | FSM_BIT(NODE_DONE)},
    [NODE_STARTING] = {"STARTING", FSM_BIT(NODE_RUNNING) | FSM_BIT(NODE_STOPPING)},
    [NODE_RUNNING] = {"RUNNING", FSM_BIT(NODE_EXIT_BARRIER) | FSM_BIT(NODE_STOPPING)},
    [NODE_EXIT_BARRIER] = {"EXIT_BARRIER", FSM_BIT(NODE_STOPPING) | FSM_BIT(NODE_DONE)},
    [NODE_STOPPING] = {"STOPPING", FSM_BIT(NODE_RENDEZVOUS) | FSM_BIT(NODE_DONE)},
    [NODE_DONE] = {"DONE", 0},
};

/* A worker in one round. */
struct worker_rules {
    enum worker_state state;
    bool ok;       /* exited with 0 */
    bool starting; /* START has been given, and not been answered */
    int respawn;   /* the attempt with which the worker is to be started again; 0 */
};

/* One round, made new by each prepare. */
struct round {
    bool preparing;     /* prepare has not been answered */
    bool begun;         /* the round's workers may be started */
    int started;        /* workers whose START has been answered, from the first on */
    int nalive;         /* processes of workers */
    int nunread;        /* workers whose output is still being read */
    int nok;            /* workers that exited with 0 */
    bool failed;        /* the round stops because of a failure */
    bool swept;         /* no descendant besides the workers is left */
    bool asked;         /* ENDED has been given, and not been answered with yes */
    bool reported;      /* STOPPED has been given */
    double grace_s;     /* between stop signal and SIGKILL, */
    uint64_t grace_ns;  /* and when that follows */
    uint64_t killed_ns; /* when SIGKILL was sent; 0: not sent, or all processes have died of it */
    uint64_t sweep_ns;  /* when to look for descendants */
    uint64_t ended_ns;  /* when not to wait for ENDED any more */
    struct worker_rules *workers;
};

/* A request to leave that waits: until features have looked at the workers; or whether the job,
 * which ends at another node's word, does end. */
struct wish {
    bool waits;
    enum stop_reason reason;
    int exit_code, signo;
    uint64_t until_ns;
    char text[512];
};

struct agent_rules {
    struct agent_rules_config config;
    struct fsm fsm;
    struct round round;

    /* The state that outlives a round. */
    bool leaving;   /* this node has left the job */
    bool ending;    /* the job's end is decided, by this node or another one */
    char why[512];  /* why the job ends; "": it goes on */
    bool abandoned; /* some process could not be killed */
    bool hurry;     /* the agent waits neither for readers nor for other nodes */
    bool timed_out;
    uint64_t requested_ns; /* when the first request to stop came; 0: none has */
    uint64_t lease_ns;
    struct wish look, wish;

    /* NODE_DONE. */
    int exit_status;
    bool writing, closing;
    uint64_t write_ns; /* when readers are not waited for any more */

    struct agent_action *queue; /* actions not taken yet, from `first` on */
    size_t first, n, cap;
};

/* --------------------------------------------------------------------------------------- actions
 */

static struct agent_action *act(struct agent_rules *r, enum agent_act what)
{
    if (r->first == r->n)
        r->first = r->n = 0;
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        r->queue = xrealloc(r->queue, r->cap * sizeof(*r->queue));
    }
    struct agent_action *a = &r->queue[r->n++];
    memset(a, 0, sizeof(*a));
    a->act = what;
    a->local_rank = -1;
    return a;
}

static void say(struct agent_rules *r, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void say(struct agent_rules *r, enum log_level level, const char *fmt, ...)
{
    struct agent_action *a = act(r, AGENT_LOG);
    va_list ap;
    va_start(ap, fmt);
    a->level = level;
    vsnprintf(a->text, sizeof(a->text), fmt, ap);
    va_end(ap);
}

static void act_on(struct agent_rules *r, enum agent_act what, int local_rank)
{
    act(r, what)->local_rank = local_rank;
}

static void act_signal(struct agent_rules *r, enum agent_act what, int signo)
{
    act(r, what)->signo = signo;
}

/* ----------------------------------------------------------------------------------------- states
 */

static enum node_state state_of(const struct agent_rules *r)
{
    return (enum node_state)r->fsm.state;
}

static bool is_alive(const struct worker_rules *w)
{
    return w->state == WORKER_RUNNING || w->state == WORKER_EXITING;
}

static struct worker_rules *worker(struct agent_rules *r, int local_rank)
{
    assert(local_rank >= 0 && local_rank < r->config.nproc);
    return &r->round.workers[local_rank];
}

/* The guardian has a lease while a process of the round may be alive. */
static void give_lease(struct agent_rules *r)
{
    enum node_state s = state_of(r);
    bool any = s == NODE_STARTING || s == NODE_RUNNING || s == NODE_STOPPING;
    act(r, AGENT_LEASE)->until_ns = any ? r->lease_ns : 0;
}

static void move_to(struct agent_rules *r, enum node_state state)
{
    enum node_state from = state_of(r);
    fsm_move(&r->fsm, (int)state);
    r->round.preparing = false;
    give_lease(r);
    act(r, AGENT_STATE)->from = from;
}

static void new_round(struct agent_rules *r)
{
    struct worker_rules *workers = r->round.workers;
    memset(workers, 0, (size_t)r->config.nproc * sizeof(*workers));
    r->round = (struct round){.grace_ns = AGENT_NEVER,
                              .sweep_ns = AGENT_NEVER,
                              .ended_ns = AGENT_NEVER,
                              .workers = workers};
}

static void sweep_at(struct agent_rules *r, uint64_t at)
{
    if (at < r->round.sweep_ns)
        r->round.sweep_ns = at;
}

/* --------------------------------------------------------------------------------------- stopping
 */

static void kill_workers(struct agent_rules *r, uint64_t now)
{
    if (r->round.killed_ns)
        return;
    r->round.killed_ns = now;
    act(r, AGENT_KILL);
    sweep_at(r, now + AGENT_SWEEP_NS);
}

static void leave(struct agent_rules *r, enum stop_reason reason, int exit_code, const char *text)
{
    struct agent_action *a = act(r, AGENT_LEAVE);
    a->reason = reason;
    a->exit_code = exit_code;
    snprintf(a->text, sizeof(a->text), "%s", text);
    snprintf(r->why, sizeof(r->why), "%s", text);
    r->leaving = r->ending = true;
    r->look.waits = false;
}

/* STOPPING, once a round. `what`: to whom the signal goes. Who waited for a look at the workers
 * waits no longer. */
static void stop_workers(struct agent_rules *r, enum agent_act what, int signo, uint64_t grace_ns,
                         uint64_t now)
{
    if (state_of(r) == NODE_STOPPING || state_of(r) == NODE_DONE)
        return;
    const struct wish l = r->look;
    if (l.waits)
        leave(r, l.reason, l.exit_code, l.text);
    move_to(r, NODE_STOPPING);
    if (r->round.nalive) {
        act_signal(r, what, signo);
        act_signal(r, AGENT_SIGNAL_GROUPS,
                   SIGCONT); /* a stopped process does not act on the signal */
    }
    r->round.grace_s = (double)grace_ns / 1e9;
    r->round.grace_ns = now + grace_ns;
    sweep_at(r, now);
}

void agent_rules_leave(struct agent_rules *r, enum stop_reason reason, int exit_code, int signo,
                       const char *text, uint64_t now)
{
    if (state_of(r) == NODE_DONE)
        return;
    leave(r, reason, exit_code, text);
    stop_workers(r, AGENT_SIGNAL_GROUPS, signo, r->config.shutdown_ns, now);
}

/* Leaves the job once features have looked at the workers. */
static void leave_after_look(struct agent_rules *r, enum stop_reason reason, int exit_code,
                             int signo, const char *text, uint64_t now)
{
    if (state_of(r) != NODE_RUNNING || !r->round.nalive || r->look.waits) {
        agent_rules_leave(r, reason, exit_code, signo, text, now);
        return;
    }
    r->look = (struct wish){.waits = true,
                            .reason = reason,
                            .exit_code = exit_code,
                            .signo = signo,
                            .until_ns = now + LOOK_NS};
    snprintf(r->look.text, sizeof(r->look.text), "%s", text);
    act(r, AGENT_LOOK)->reason = reason;
}

static void leave_at_last(struct agent_rules *r, uint64_t now)
{
    const struct wish l = r->look;
    if (l.waits)
        agent_rules_leave(r, l.reason, l.exit_code, l.signo, l.text, now);
}

/* The failure of the worker is known: ends the operations of this node that wait for the worker,
 * reports it, and stops the node's other workers. */
static void worker_failed(struct agent_rules *r, int local_rank, uint64_t now)
{
    if (!r->config.alone) { /* first, because other workers wait for this one */
        r->round.failed = true;
        act_on(r, AGENT_END_OPERATIONS, local_rank);
    }
    act_on(r, AGENT_FAILED, local_rank);
    if (!r->config.alone)
        stop_workers(r, AGENT_SIGNAL_GROUPS, SIGTERM, r->config.shutdown_ns, now);
}

static void report_stopped(struct agent_rules *r, bool none_ran)
{
    r->round.grace_ns = r->round.ended_ns = AGENT_NEVER;
    r->round.asked = false;
    if (state_of(r) == NODE_STOPPING)
        move_to(r, NODE_RENDEZVOUS);
    r->round.preparing = false;
    r->round.reported = true;
    act(r, AGENT_STOPPED)->none_ran = none_ran;
}

static bool is_over(const struct agent_rules *r)
{
    return !r->round.nalive && !r->round.nunread && r->round.swept;
}

static void go_on_if_over(struct agent_rules *r, uint64_t now)
{
    if (!is_over(r))
        return;
    if (state_of(r) == NODE_RUNNING && r->round.nok == r->config.nproc) {
        move_to(r, NODE_EXIT_BARRIER);
        act(r, AGENT_DONE);
    } else if (state_of(r) == NODE_STOPPING && r->hurry) {
        report_stopped(r, false);
    } else if (state_of(r) == NODE_STOPPING && !r->round.asked) {
        r->round.asked = true;
        r->round.ended_ns = now + ENDED_NS;
        act(r, AGENT_ENDED);
    }
}

/* Goes on without the processes that cannot be killed: they count as ended, and this node leaves.
 */
static void abandon(struct agent_rules *r, uint64_t now)
{
    r->abandoned = true;
    act(r, AGENT_ABANDON);
    for (int i = 0; i < r->config.nproc; i++) {
        if (is_alive(&r->round.workers[i]))
            r->round.workers[i].state = WORKER_EXITED;
    }
    r->round.nalive = 0;
    r->round.killed_ns = 0;
    r->leaving = r->ending = true;
    if (r->round.nok < r->config.nproc)
        stop_workers(r, AGENT_SIGNAL_GROUPS, SIGTERM, r->config.shutdown_ns, now);
    r->round.swept = true;
    r->round.sweep_ns = AGENT_NEVER;
    go_on_if_over(r, now);
}

static void sweep(struct agent_rules *r, uint64_t now)
{
    struct round *round = &r->round;
    round->sweep_ns = AGENT_NEVER;
    if (!round->nalive) { /* the sweep kills what the workers have left behind */
        bool first = !round->killed_ns;
        if (first)
            round->killed_ns = now;
        act(r, AGENT_SWEEP)->first = first;
    } else if (round->killed_ns && now - round->killed_ns > AGENT_ENDING_NS) {
        abandon(r, now);
    } else if (round->killed_ns && now - round->killed_ns > AGENT_UNKILLABLE_NS) {
        act(r, AGENT_STUCK);
    } else if (round->killed_ns) {
        round->sweep_ns = round->killed_ns + AGENT_UNKILLABLE_NS + 1;
    } /* else daemons of live workers are left alone */
}

void agent_rules_swept(struct agent_rules *r, int left, uint64_t now)
{
    struct round *round = &r->round;
    if (round->nalive)
        return;
    bool overdue = round->killed_ns && now - round->killed_ns > AGENT_UNKILLABLE_NS;
    if (left > 0 && (overdue || r->abandoned)) {
        abandon(r, now);
        return;
    }
    if (left != 0) {
        sweep_at(r, now + AGENT_SWEEP_NS);
        return;
    }
    round->killed_ns = 0;
    round->swept = true;
    go_on_if_over(r, now);
}

void agent_rules_stuck(struct agent_rules *r, bool freeing, uint64_t now)
{
    if (!r->round.nalive)
        sweep_at(r, now);
    else if (freeing)
        sweep_at(r, now + AGENT_STUCK_NS);
    else
        abandon(r, now);
}

void agent_rules_ended(struct agent_rules *r, bool may, uint64_t now)
{
    (void)now;
    if (may && state_of(r) == NODE_STOPPING && r->round.asked && is_over(r))
        report_stopped(r, false);
}

/* ------------------------------------------------------------------------------------- the round
 */

void agent_rules_joined(struct agent_rules *r)
{
    move_to(r, NODE_RENDEZVOUS);
}

bool agent_rules_prepare(struct agent_rules *r, uint64_t now)
{
    if (state_of(r) != NODE_RENDEZVOUS)
        return false;
    new_round(r);
    const struct wish w = r->wish;
    if (w.waits && !r->leaving) {
        agent_rules_leave(r, w.reason, w.exit_code, w.signo, w.text, now);
    } else if (!r->leaving) { /* the job goes on, even if its end was reported */
        r->round.preparing = true;
        r->ending = r->timed_out = false;
        r->why[0] = '\0';
    }
    return r->round.preparing;
}

void agent_rules_ready(struct agent_rules *r)
{
    if (!r->round.preparing)
        return;
    r->round.preparing = false;
    act(r, AGENT_PREPARED);
}

bool agent_rules_run(struct agent_rules *r)
{
    if (state_of(r) != NODE_RENDEZVOUS || r->leaving || r->round.reported)
        return false;
    move_to(r, NODE_STARTING);
    act(r, AGENT_BEGIN);
    return true;
}

/* This process may have been stopped until the lease was over, and not know it yet: other nodes may
 * run another round by now. Either the lease goes on, or a stop or a fence follows. */
static bool lease_is_over(const struct agent_rules *r, uint64_t now)
{
    return r->lease_ns && now >= r->lease_ns;
}

/* The next worker of a round that starts; the round runs when there is none left. */
static void start_next(struct agent_rules *r, uint64_t now)
{
    if (state_of(r) != NODE_STARTING || !r->round.begun || lease_is_over(r, now))
        return;
    if (r->round.started < r->config.nproc) {
        struct worker_rules *w = worker(r, r->round.started);
        if (!w->starting)
            act_on(r, AGENT_START, r->round.started);
        w->starting = true;
        return;
    }
    move_to(r, NODE_RUNNING);
    act(r, AGENT_STARTED);
}

void agent_rules_begun(struct agent_rules *r, uint64_t now)
{
    if (state_of(r) != NODE_STARTING || r->round.begun)
        return;
    r->round.begun = true;
    start_next(r, now);
}

void agent_rules_cannot(struct agent_rules *r, const char *text, uint64_t now)
{
    char full[512];
    snprintf(full, sizeof(full), "%s: %.400s", r->config.host, text);
    say(r, LOG_LEVEL_ERROR, "%s", text);
    agent_rules_leave(r, STOP_INTERNAL, EXIT_TROUBLE, SIGTERM, full, now);
}

static void start_answered(struct agent_rules *r, struct worker_rules *w)
{
    assert(w->starting);
    w->starting = false;
    if (state_of(r) == NODE_STARTING)
        r->round.started++;
}

void agent_rules_started(struct agent_rules *r, int local_rank, uint64_t now)
{
    struct worker_rules *w = worker(r, local_rank);
    start_answered(r, w);
    *w = (struct worker_rules){.state = WORKER_RUNNING};
    r->round.nalive++;
    r->round.nunread++;
    r->round.killed_ns = 0;
    r->round.swept = false;
    start_next(r, now);
}

bool agent_rules_costs_node(const struct failure *f, int nnodes, int min_nodes)
{
    return f->kind == FAILURE_EXEC && f->exit_code == EXIT_TROUBLE && nnodes > min_nodes;
}

void agent_rules_not_started(struct agent_rules *r, int local_rank, bool drains,
                             const char *trouble, uint64_t now)
{
    struct worker_rules *w = worker(r, local_rank);
    start_answered(r, w);
    *w = (struct worker_rules){.state = drains ? WORKER_EXITED : WORKER_CLOSED};
    r->round.nunread += drains;
    if (trouble)
        agent_rules_cannot(r, trouble, now);
    else
        worker_failed(r, local_rank, now);
    start_next(r, now);
}

void agent_rules_failing(struct agent_rules *r, int local_rank, uint64_t now)
{
    struct worker_rules *w = worker(r, local_rank);
    if (state_of(r) != NODE_RUNNING || w->state != WORKER_RUNNING)
        return;
    w->state = WORKER_EXITING;
    worker_failed(r, local_rank, now);
}

bool agent_rules_exited(struct agent_rules *r, int local_rank, bool ok, uint64_t now)
{
    struct worker_rules *w = worker(r, local_rank);
    bool reported = w->state == WORKER_EXITING;
    if (!is_alive(w))
        return false;
    w->state = WORKER_EXITED;
    w->ok = ok && !reported;
    r->round.nok += w->ok;
    r->round.nalive--;
    r->round.swept = false;
    if (!w->ok && !reported && state_of(r) != NODE_STOPPING)
        worker_failed(r, local_rank, now);
    if (!r->round.nalive)
        sweep_at(r, now);
    return true;
}

/* Starts the worker that was ordered to be, once its output is read. */
static void start_again(struct agent_rules *r, int local_rank, uint64_t now)
{
    struct worker_rules *w = worker(r, local_rank);
    if (!w->respawn || w->state != WORKER_CLOSED || state_of(r) != NODE_RUNNING ||
        lease_is_over(r, now))
        return;
    struct agent_action *a = act(r, AGENT_START);
    a->local_rank = local_rank;
    a->attempt = w->respawn;
    w->respawn = 0;
    w->starting = true;
}

bool agent_rules_drained(struct agent_rules *r, int local_rank, uint64_t now)
{
    struct worker_rules *w = worker(r, local_rank);
    if (w->state != WORKER_EXITED)
        return false;
    w->state = WORKER_CLOSED;
    r->round.nunread--;
    start_again(r, local_rank, now);
    go_on_if_over(r, now);
    return true;
}

void agent_rules_respawn(struct agent_rules *r, int local_rank, int attempt, uint64_t now)
{
    if (state_of(r) != NODE_RUNNING || local_rank < 0 || local_rank >= r->config.nproc)
        return;
    struct worker_rules *w = &r->round.workers[local_rank];
    bool has_failed = !w->ok && w->state >= WORKER_EXITING && !w->starting;
    if (!has_failed) /* the order is an old one */
        return;
    w->respawn = attempt;
    start_again(r, local_rank, now);
}

void agent_rules_stop(struct agent_rules *r, const struct rdzv_stop *why, uint64_t now)
{
    if (!why->restarting && !r->leaving) {
        r->ending = true;
        snprintf(r->why, sizeof(r->why), "%s", why->text);
    }
    if (r->round.reported)
        return;
    if (state_of(r) == NODE_RENDEZVOUS) {
        report_stopped(r, true);
        return;
    }
    r->round.failed |= why->has_first;
    if (why->reason == STOP_TIME_LIMIT && r->config.warned) {
        stop_workers(r, AGENT_SIGNAL_PROGRAMS, r->config.warn_signal, r->config.warn_grace_ns, now);
        return;
    }
    act(r, AGENT_END_OPERATIONS);
    stop_workers(r, AGENT_SIGNAL_GROUPS, SIGTERM, r->config.shutdown_ns, now);
}

/* --------------------------------------------------------------------------------------- the end
 */

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

/* The job ends anyway, unless a coordinator that was not told of its end prepares another round. */
static void wish(struct agent_rules *r, enum stop_reason reason, int exit_code, int signo,
                 const char *text)
{
    r->wish =
        (struct wish){.waits = true, .reason = reason, .exit_code = exit_code, .signo = signo};
    snprintf(r->wish.text, sizeof(r->wish.text), "%s", text);
}

/* Ends the waits for readers of the output, for features and for other nodes. */
static void hurry(struct agent_rules *r, uint64_t now)
{
    r->hurry = true;
    if (state_of(r) == NODE_DONE)
        act(r, AGENT_HURRY);
    else if (r->round.asked)
        report_stopped(r, false);
    else
        go_on_if_over(r, now);
}

/* An init system that ends all processes of a job reaches the agent twice, itself and by way of the
 * guardian; a session's end comes as SIGTERM and as SIGHUP. A request that follows soon is the same
 * one. */
void agent_rules_request(struct agent_rules *r, enum stop_reason reason, int signo,
                         const char *what, bool over, uint64_t now)
{
    char text[512];
    int n = r->round.nalive;
    bool first = !r->requested_ns, same = !first && now - r->requested_ns < AGENT_SAME_REQUEST_NS;
    if (first)
        r->requested_ns = now;
    if (same)
        say(r, LOG_LEVEL_VERBOSE, "received %s as well: the same request", what);
    if (state_of(r) == NODE_DONE) {
        if (!same || r->hurry)
            hurry(r, now);
        return;
    }
    if (same)
        return;
    if (!first) {
        leave_at_last(r, now);
        say(r, LOG_LEVEL_NOTICE, "killing the workers");
        kill_workers(r, now);
        hurry(r, now);
        return;
    }
    snprintf(text, sizeof(text), "%s received %s%s", r->config.host, what,
             over ? " at the end of the job's time" : "");
    if (r->ending) { /* after a failure, or at another node's end */
        wish(r, over ? STOP_TIME_LIMIT : reason, over ? EXIT_TIME_LIMIT : 128 + signo, signo, text);
        if (n)
            say(r, LOG_LEVEL_NOTICE,
                "received %s: already stopping %d worker%s (repeat to kill now)", what, n,
                plural(n));
        return;
    }
    if (n)
        say(r, LOG_LEVEL_NOTICE,
            "received %s: stopping %d worker%s, SIGKILL after %g s (repeat to kill now)", what, n,
            plural(n), (double)r->config.shutdown_ns / 1e9);
    if (over)
        agent_rules_leave(r, STOP_TIME_LIMIT, EXIT_TIME_LIMIT, signo, text, now);
    else if (signo == SIGQUIT)
        leave_after_look(r, reason, 128 + signo, signo, text, now);
    else
        agent_rules_leave(r, reason, 128 + signo, signo, text, now);
}

void agent_rules_kill(struct agent_rules *r, const char *text, uint64_t now)
{
    if (state_of(r) == NODE_DONE)
        return;
    say(r, LOG_LEVEL_NOTICE, "%s", text);
    agent_rules_leave(r, STOP_REQUEST, 128 + SIGKILL, SIGKILL, text, now);
    kill_workers(r, now);
}

/* The workers save what they have, together, so that their operations go on, and their helper
 * processes as well. */
void agent_rules_warn(struct agent_rules *r, const char *text, uint64_t now)
{
    int n = r->round.nalive;
    if (state_of(r) == NODE_DONE)
        return;
    if (r->ending) {
        wish(r, STOP_TIME_LIMIT, EXIT_TIME_LIMIT, r->config.warn_signal, text);
        return;
    }
    if (n)
        say(r, LOG_LEVEL_NOTICE, "%s: %s to %d worker%s, SIGKILL after %g s", text,
            r->config.warn_name, n, plural(n), (double)r->config.warn_grace_ns / 1e9);
    leave(r, STOP_TIME_LIMIT, EXIT_TIME_LIMIT, text);
    stop_workers(r, AGENT_SIGNAL_PROGRAMS, r->config.warn_signal, r->config.warn_grace_ns, now);
}

void agent_rules_looked(struct agent_rules *r, uint64_t now)
{
    leave_at_last(r, now);
}

void agent_rules_lease(struct agent_rules *r, uint64_t until_ns, uint64_t now)
{
    r->lease_ns = until_ns;
    give_lease(r);
    start_next(r, now);
    for (int i = 0; i < r->config.nproc; i++)
        start_again(r, i, now);
}

void agent_rules_fence(struct agent_rules *r, uint64_t now)
{
    if (state_of(r) != NODE_DONE)
        kill_workers(r, now);
}

void agent_rules_guardian_gone(struct agent_rules *r, uint64_t now)
{
    if (state_of(r) == NODE_DONE) /* no worker is left */
        hurry(r, now);
    else
        act(r, AGENT_DIE);
}

void agent_rules_finish(struct agent_rules *r, int exit_code, uint64_t now)
{
    r->exit_status = r->abandoned ? EXIT_TROUBLE : exit_code;
    r->round.grace_ns = r->round.sweep_ns = r->round.ended_ns = AGENT_NEVER;
    r->round.asked = r->look.waits = false;
    move_to(r, NODE_DONE);
    r->writing = true;
    r->write_ns = AGENT_NEVER;
    if (r->config.timeout_at_ns) {
        r->write_ns = now + AGENT_UNREAD_NS;
        if (r->write_ns < r->config.timeout_at_ns)
            r->write_ns = r->config.timeout_at_ns;
    }
    act(r, AGENT_FINISH);
    if (r->hurry)
        act(r, AGENT_HURRY);
}

void agent_rules_written(struct agent_rules *r, bool all)
{
    assert(r->writing);
    bool hurried = r->hurry && !all;
    r->writing = false;
    r->closing = true;
    r->write_ns = AGENT_NEVER;
    r->hurry |= !all;
    act(r, AGENT_CLOSE);
    if (hurried)
        act(r, AGENT_HURRY);
}

/* ------------------------------------------------------------------------------------------ time
 */

static void time_out(struct agent_rules *r, uint64_t now)
{
    char text[128];
    int n = r->round.nalive;
    r->timed_out = true;
    if (state_of(r) == NODE_DONE || r->ending)
        return;
    snprintf(text, sizeof(text), "the job did not end within %g s (--timeout)",
             r->config.timeout_s);
    if (n)
        say(r, LOG_LEVEL_NOTICE, "%s: stopping %d worker%s, SIGKILL after %g s", text, n, plural(n),
            (double)r->config.shutdown_ns / 1e9);
    leave_after_look(r, STOP_TIMEOUT, EXIT_TIMEOUT, SIGTERM, text, now);
}

static void end_grace(struct agent_rules *r, uint64_t now)
{
    int n = r->round.nalive;
    r->round.grace_ns = AGENT_NEVER;
    if (n == 0) /* only output is awaited */
        return;
    say(r, LOG_LEVEL_NOTICE, "%d worker%s did not stop within %g s: killing", n, plural(n),
        r->round.grace_s);
    kill_workers(r, now);
}

static uint64_t timeout_of(const struct agent_rules *r)
{
    return r->config.timeout_at_ns && !r->timed_out ? r->config.timeout_at_ns : AGENT_NEVER;
}

void agent_rules_tick(struct agent_rules *r, uint64_t now)
{
    if (now >= timeout_of(r))
        time_out(r, now);
    if (r->look.waits && now >= r->look.until_ns)
        leave_at_last(r, now);
    if (now >= r->round.grace_ns)
        end_grace(r, now);
    if (now >= r->round.sweep_ns)
        sweep(r, now);
    if (now >= r->round.ended_ns && r->round.asked)
        report_stopped(r, false);
    if (r->writing && now >= r->write_ns) {
        r->write_ns = AGENT_NEVER;
        hurry(r, now);
    }
}

uint64_t agent_rules_deadline(const struct agent_rules *r)
{
    const uint64_t all[] = {timeout_of(r),     r->look.waits ? r->look.until_ns : AGENT_NEVER,
                            r->round.grace_ns, r->round.sweep_ns,
                            r->round.ended_ns, r->writing ? r->write_ns : AGENT_NEVER};
    uint64_t first = AGENT_NEVER;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        first = all[i] < first ? all[i] : first;
    return first;
}

/* --------------------------------------------------------------------------------- new, and state
 */

struct agent_rules *agent_rules_new(const struct agent_rules_config *config)
{
    struct agent_rules *r = xcalloc(1, sizeof(*r));
    r->config = *config;
    r->fsm = (struct fsm){"agent", states, NODE_INIT};
    r->write_ns = AGENT_NEVER;
    r->round.workers = xcalloc((size_t)config->nproc, sizeof(*r->round.workers));
    new_round(r);
    return r;
}

void agent_rules_free(struct agent_rules *r)
{
    if (!r)
        return;
    free(r->round.workers);
    free(r->queue);
    free(r);
}

bool agent_rules_next(struct agent_rules *r, struct agent_action *out)
{
    if (r->first == r->n) {
        debug_assert((agent_rules_check(r), true));
        return false;
    }
    *out = r->queue[r->first++];
    return true;
}

enum node_state agent_rules_state(const struct agent_rules *r)
{
    return state_of(r);
}

const char *agent_rules_state_name(const struct agent_rules *r)
{
    return fsm_name(&r->fsm);
}

enum worker_state agent_rules_worker(const struct agent_rules *r, int local_rank)
{
    return r->round.workers[local_rank].state;
}

int agent_rules_alive(const struct agent_rules *r)
{
    return r->round.nalive;
}

bool agent_rules_leaving(const struct agent_rules *r)
{
    return r->leaving;
}

const char *agent_rules_why(const struct agent_rules *r)
{
    return r->why[0] ? r->why : NULL;
}

enum agent_awaits agent_rules_awaits(const struct agent_rules *r)
{
    return r->round.preparing                                               ? AGENT_AWAITS_READY
           : state_of(r) == NODE_STARTING && !r->round.begun && !r->leaving ? AGENT_AWAITS_START
           : r->look.waits                                                  ? AGENT_AWAITS_LOOK
           : r->round.asked                                                 ? AGENT_AWAITS_ENDED
                                                                            : AGENT_AWAITS_NOTHING;
}

enum stop_reason agent_rules_look_reason(const struct agent_rules *r)
{
    return r->look.reason;
}

bool agent_rules_in_round(const struct agent_rules *r)
{
    return state_of(r) != NODE_RENDEZVOUS || r->round.reported;
}

bool agent_rules_failed(const struct agent_rules *r)
{
    return r->round.failed;
}

bool agent_rules_killed(const struct agent_rules *r)
{
    return r->round.killed_ns != 0;
}

int agent_rules_exit_status(const struct agent_rules *r)
{
    return r->exit_status;
}

bool agent_rules_tells_result(const struct agent_rules *r)
{
    return !r->abandoned;
}

static void check_workers(const struct agent_rules *r)
{
    const struct round *round = &r->round;
    int alive = 0, unread = 0, ok = 0, starting = 0;
    for (int i = 0; i < r->config.nproc; i++) {
        const struct worker_rules *w = &round->workers[i];
        alive += is_alive(w);
        unread += w->state != WORKER_IDLE && w->state != WORKER_CLOSED;
        ok += w->ok;
        starting += w->starting;
        assert(!w->ok || w->state >= WORKER_EXITED);
        assert(!w->respawn || (!w->ok && w->state >= WORKER_EXITING));
        assert(!w->starting || w->state == WORKER_IDLE || w->state == WORKER_CLOSED);
        assert(w->state == WORKER_IDLE || i < round->started);
    }
    assert(alive == round->nalive && unread == round->nunread && ok == round->nok);
    assert(starting <= 1 || r->config.alone);
    assert(!starting || state_of(r) == NODE_STARTING || state_of(r) == NODE_RUNNING);
}

void agent_rules_check(const struct agent_rules *r)
{
    const struct round *round = &r->round;
    enum node_state s = state_of(r);
    bool processes = s == NODE_STARTING || s == NODE_RUNNING || s == NODE_STOPPING;
    check_workers(r);
    assert(processes || (!round->nalive && !round->nunread));
    assert(s != NODE_RUNNING || (round->started == r->config.nproc && !round->failed));
    assert(s != NODE_EXIT_BARRIER || (round->nok == r->config.nproc && round->swept));
    assert(!round->preparing || (s == NODE_RENDEZVOUS && !r->leaving && !round->reported));
    assert(!round->begun || !round->preparing);
    assert(!round->reported || s == NODE_RENDEZVOUS || s == NODE_STOPPING || s == NODE_DONE);
    assert(!round->asked || (s == NODE_STOPPING && is_over(r) && round->ended_ns != AGENT_NEVER));
    assert(!r->leaving || (s != NODE_STARTING && s != NODE_RUNNING && s != NODE_EXIT_BARRIER) ||
           r->abandoned);
    assert(!r->look.waits || s == NODE_RUNNING || s == NODE_EXIT_BARRIER);
    assert(!r->leaving || r->ending);
    /* Asserts that there is a time at which the agent goes on, whatever hangs. */
    assert(!round->killed_ns || s == NODE_DONE || s == NODE_RENDEZVOUS ||
           round->sweep_ns != AGENT_NEVER || (!round->nalive && round->swept));
    assert(s != NODE_STOPPING || !round->nalive || round->grace_ns != AGENT_NEVER ||
           round->killed_ns);
    assert(s != NODE_STOPPING || round->nalive || round->swept || round->sweep_ns != AGENT_NEVER);
    assert(r->writing + r->closing == (s == NODE_DONE));
}
