/* agent.c: the driver of the agent's rules (agent/rules/agent_rules.h, which draws the states).
 * What happens on the loop is passed to the rules; advance() carries out what they answer. Features
 * (agent/features.c) are told of it.
 *
 * In this order: actions, in the order of a round; what happens in a round; what users and features
 * ask for; the end; the start. */
#include "agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/base/signals.h"
#include "agent/features.h"
#include "agent/job_signals.h"
#include "agent/process/exit_notify.h"
#include "agent/process/oom.h"
#include "agent/process/sweep.h"
#include "agent/report/events.h"
#include "agent/report/pod_message.h"
#include "agent/report/report.h"
#include "agent/rules/agent_rules.h"
#include "agent/worker_group.h"
#include "core/clock.h"
#include "core/debug_assert.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "core/timed_call.h"
#include "core/uvx.h"
#include "rendezvous/rules/text.h"

#define IMPATIENT_MS 100 /* for a line of dlaunch after the wait for a reader was ended */
#define UNREAD_S     5   /* for a reader that takes nothing, in a job that was stopped */
#define CLOCKS_S     1.0 /* how far this node's clock may be behind the scheduler's */

struct agent {
    struct node node; /* the node as features see it */
    struct features *features;
    struct agent_rules *rules;
    bool advancing; /* actions are carried out */
    struct guardian_link *link;
    struct agent_callbacks cb;

    struct uvx_scope scope;
    struct job_signals signals;
    uv_poll_t lifeline;
    uv_timer_t tick;      /* when the rules want to know that time has passed */
    uv_timer_t end_timer; /* --end_warning */

    struct rdzv *rdzv;     /* NULL: closed */
    struct rdzv_info info; /* a copy, made when the state becomes NODE_DONE */
    struct worker_group group;
    int world_size;    /* of the last round */
    uint64_t began_ns; /* day_ns() */

    const struct rdzv_stop *stop;     /* while on_stop() runs: why the round stops */
    const struct rdzv_result *result; /* how the job has ended; NULL: it has not */
    char *lost_output; /* the first text about output that could not be written; NULL: none */
    bool hurried;      /* other nodes are not waited for */
    uint32_t handled;  /* page->sent when a signal was handled last */
    int nclosing;
    struct agent_worker_status *status; /* for agent_get_status */
};

static void advance(struct agent *a);
static void ask_features(struct agent *a);

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

/* --------------------------------------------------------------------------- actions: the round */

/* Returns how many workers of all nodes --ranks lets through. */
static int ranks_shown(const struct job_spec *job, int world_size)
{
    int n = 0;
    for (int i = 0; i < world_size; i++)
        n += !job->ranks || parse_has(job->ranks, i);
    return n;
}

static void begin(struct agent *a)
{
    struct err e = ERR_INIT;
    if (worker_group_make_round(&a->group, &e) < 0) {
        agent_rules_cannot(a->rules, e.msg, lease_clock_ns());
        return;
    }
    if (a->node.job->job_console)
        stdio_begin_job(a->group.pump, ranks_shown(a->node.job, a->world_size));
    ask_features(a);
}

static void show_alive(struct agent *a)
{
    atomic_store_explicit(&a->link->page->nworkers, (uint32_t)agent_rules_alive(a->rules),
                          memory_order_relaxed);
}

/* Why this node leaves, because the worker could not be started; NULL: it does not. */
static const char *own_trouble(const struct agent *a, const struct worker *w)
{
    const struct rdzv_config *c = &a->node.job->rdzv;
    bool costs = !w->ok && agent_rules_costs_node(&w->failure, a->node.table->nnodes, c->min_nodes);
    return costs ? w->failure.message : NULL;
}

static void start(struct agent *a, const struct agent_action *action)
{
    struct worker *w = &a->node.workers[action->local_rank];
    if (worker_group_start(&a->group, w, action->attempt) < 0) {
        features_worker_ended(a->features, w);
        agent_rules_not_started(a->rules, w->local_rank, w->state == WORKER_EXITED,
                                own_trouble(a, w), lease_clock_ns());
        return;
    }
    agent_rules_started(a->rules, w->local_rank, lease_clock_ns());
    show_alive(a);
    features_worker_started(a->features, w);
}

/* ---------------------------------------------------------------------------- actions: the stop */

/* The failure of a worker stops the round, or another reason. */
static void end_operations(struct agent *a, const struct agent_action *action)
{
    struct rdzv_stop why = {.reason = STOP_FAILURE, .has_first = true};
    if (action->local_rank >= 0) {
        const struct worker *w = &a->node.workers[action->local_rank];
        why.first = w->failure;
        failure_describe(&w->failure, why.text, sizeof(why.text));
        features_stops(a->features, &why);
        worker_group_end_operations(&a->group, &w->failure, why.text);
    } else {
        worker_group_end_operations(&a->group, a->stop->has_first ? &a->stop->first : NULL,
                                    a->stop->text);
    }
}

static void sweep(struct agent *a, const struct agent_action *action)
{
    agent_rules_swept(a->rules, worker_group_sweep(&a->group, action->first), lease_clock_ns());
}

static void abandon(struct agent *a)
{
    worker_group_abandon(&a->group);
    atomic_store(&a->link->page->abandoned, 1);
    rdzv_leave(a->rdzv, STOP_INTERNAL, 125, a->group.leftover);
}

static void report_stopped(struct agent *a, const struct agent_action *action)
{
    struct failure *all = xcalloc((size_t)a->node.job->nproc, sizeof(*all));
    size_t n = 0;
    if (!action->none_ran)
        worker_group_end_round(&a->group);
    for (int i = 0; i < a->node.job->nproc && !action->none_ran; i++) {
        struct worker *w = &a->node.workers[i];
        if (w->state != WORKER_CLOSED || (w->ok && !agent_rules_failed(a->rules)))
            continue; /* with a failure, an early exit */
        features_complete(a->features, w);
        all[n++] = w->failure;
    }
    rdzv_stopped(a->rdzv, all, n);
    free(all);
}

static void leave(struct agent *a, const struct agent_action *action)
{
    struct rdzv_stop why = {.reason = action->reason};
    text_set(why.text, sizeof(why.text), "%s", action->text);
    if (a->node.state == NODE_RUNNING)
        features_stops(a->features, &why);
    rdzv_leave(a->rdzv, action->reason, action->exit_code, action->text);
}

/* The guardian is dead. No process would kill the workers if this one died, so the agent kills them
 * now. */
static void die(struct agent *a) __attribute__((noreturn));
static void die(struct agent *a)
{
    guardian_set_lease(a->link,
                       0); /* the fuse must not end this process before it has killed the workers */
    worker_group_die(&a->group, (double)AGENT_UNKILLABLE_NS / 1e9);
    guardian_unlink(a->link->page);
    rdzv_abandon(a->rdzv);
    log_set_writer(NULL, NULL);
    log_set_timeout(LOG_LAST_WORDS_MS);
    struct oom_watch *oom = oom_watch_of(features_find(a->features, &oom_feature));
    log_error("the guardian process was killed%s; ended every worker", oom ? oom_words(oom) : "");
    events_last_words(features_find(a->features, &events_feature));
    _exit(128 + SIGKILL);
}

/* ----------------------------------------------------------------------------- actions: the end */

static void free_agent(struct agent *a)
{
    timed_call_ask(NULL, NULL);
    worker_group_free(&a->group);
    features_free(a->features);
    agent_rules_free(a->rules);
    event_log_fini(&a->node.log);
    close_fd(&a->link->lifeline);
    free(a->status);
    free(a->lost_output);
    free(a);
}

static void agent_on_closed(void *arg)
{
    struct agent *a = arg;
    if (--a->nclosing > 0)
        return;
    cgroup_close(&a->group.cgroup);
    atomic_store(&a->link->page->clean, 1);
    int exit_status = agent_rules_exit_status(a->rules);
    struct agent_callbacks cb = a->cb;
    free_agent(a);
    cb.on_done(cb.arg, exit_status);
}

/* Writes what --report asks for. Returns what is printed when all output has been; malloc'ed. */
static char *make_report(struct agent *a)
{
    const struct rdzv_result *result = a->result;
    int exit_status = agent_rules_exit_status(a->rules);
    uint64_t ended_ns = day_ns();
    char *text = NULL;
    struct err e = ERR_INIT;
    struct report_input in = {
        .job = a->node.job,
        .result = result,
        .host = a->node.job->host,
        .group_rank = a->info.group_rank,
        .nnodes = a->info.nnodes,
        .world_size = a->world_size, /* the last round's */
        .started_wall_ns = a->began_ns,
        .ended_wall_ns = ended_ns,
        .elapsed = (double)(ended_ns - a->began_ns) / 1e9,
        .log_dir = a->group.log_dir.run[0] && !a->group.log_dir.flat ? a->group.log_dir.run : NULL,
        .leftover = a->group.leftover[0] ? a->group.leftover : NULL,
        .lost_output = a->lost_output,
    };
    features_report(a->features, &in);
    if (exit_status == 2 && result->reason == STOP_RENDEZVOUS)
        log_error("%s",
                  result->text); /* no worker was started: reported like any other bad input */
    else if (exit_status != 0 || in.ledger)
        text = report_make_text(&in);
    if (a->node.job->report_path && report_write_json(&in, &e) < 0)
        log_error("--report: %s", e.msg);
    if (exit_status != 0 && a->node.job->pod_message && pod_message_write(&in, &e) < 0)
        log_error("--pod_message: %s", e.msg);
    return text;
}

static void on_output_written(void *arg, bool all)
{
    struct agent *a = arg;
    a->group.pump = NULL;
    log_set_writer(NULL, NULL);
    if (!all)
        log_set_timeout(IMPATIENT_MS);
    agent_rules_written(a->rules, all);
    advance(a);
}

/* Whether a request to stop waits for the loop. */
static bool is_asked_to_stop(void *arg)
{
    const struct agent *a = arg;
    return atomic_load(&a->link->page->sent) != a->handled;
}

/* Reports, and waits for the readers of the last output: UNREAD_S at most if the job was asked to
 * stop and a reader takes nothing. */
static void finish(struct agent *a)
{
    const struct rdzv_result *result = a->result;
    const struct failure *first = result->n ? &result->failures[0] : NULL;
    int exit_status = agent_rules_exit_status(a->rules);
    bool requested = report_was_stopped(result->reason) || result->reason == STOP_TIMEOUT;
    timed_call_ask(is_asked_to_stop, a); /* who is in a hurry waits for no file server any more */
    features_finish(a->features, result);
    if (first && first->local_rank >= 0 && first->local_rank < a->node.job->nproc &&
        a->node.workers[first->local_rank].rank == first->rank)
        worker_hand_up_error_file(&a->node.workers[first->local_rank], &a->group.ctx);
    if (a->cb.on_end)
        a->cb.on_end(a->cb.arg, exit_status, exit_status ? result->text : "");
    /* The folder is removed before the report is made, which must not name a folder that is removed
     * because it is empty. */
    log_dir_close_timed(&a->group.log_dir, a->group.files);
    struct stdio_pump_end end = {.unread_s = requested ? UNREAD_S : -1,
                                 .last_words = make_report(a),
                                 .on_closed = on_output_written,
                                 .arg = a};
    stdio_pump_close(a->group.pump, &end);
}

/* Signals are handled until here, because one may end the wait for other nodes. */
static void on_rdzv_closed(void *arg)
{
    struct agent *a = arg;
    a->rdzv = NULL;
    job_signals_close(&a->signals, agent_on_closed, a);
}

/* What features run has ended, and needs the reaper no more. */
static void on_features_closed(void *arg)
{
    struct agent *a = arg;
    reaper_close(a->group.reaper, agent_on_closed, a);
}

static void close_agent(struct agent *a)
{
    exit_notify_unwatch(a->group.exit_notify); /* whose thread wakes the loop */
    a->nclosing = 3;
    features_close(a->features, on_features_closed, a);
    rdzv_close(a->rdzv, on_rdzv_closed, a);
    if (a->hurried)
        rdzv_hurry(a->rdzv);
    uvx_scope_close(&a->scope, agent_on_closed, a);
}

static void hurry(struct agent *a)
{
    if (a->group.pump)
        stdio_pump_hurry(a->group.pump);
    else if (a->nclosing && a->rdzv)
        rdzv_hurry(a->rdzv);
    else
        a->hurried = true;
}

/* ------------------------------------------------------------------------------------- the rules
 */

static void change_state(struct agent *a, const struct agent_action *action)
{
    a->node.state = agent_rules_state(a->rules);
    a->node.state_name = agent_rules_state_name(a->rules);
    features_state_changed(a->features, action->from);
    if (a->cb.on_state)
        a->cb.on_state(a->cb.arg);
}

static void say(struct agent *a, const struct agent_action *action)
{
    (void)a;
    static void (*const log[])(const char *fmt, ...) = {
        [LOG_LEVEL_ERROR] = log_error,
        [LOG_LEVEL_WARN] = log_warn,
        [LOG_LEVEL_NOTICE] = log_notice,
        [LOG_LEVEL_VERBOSE] = log_verbose,
    };
    log[action->level]("%s", action->text);
}

static void prepared(struct agent *a)
{
    uint16_t *ports = worker_group_ports(&a->group);
    rdzv_prepared(a->rdzv, ports, a->node.job->nproc);
    free(ports);
}

/* Passes to the rules the answers of features that the rules wait for. */
static void ask_features(struct agent *a)
{
    switch (agent_rules_awaits(a->rules)) {
    case AGENT_AWAITS_READY:
        if (features_ready(a->features))
            agent_rules_ready(a->rules);
        break;
    case AGENT_AWAITS_START:
        if (features_may_start(a->features))
            agent_rules_begun(a->rules, lease_clock_ns());
        break;
    case AGENT_AWAITS_LOOK:
        if (features_looked(a->features, agent_rules_look_reason(a->rules)))
            agent_rules_looked(a->rules, lease_clock_ns());
        break;
    case AGENT_AWAITS_ENDED:
        agent_rules_ended(a->rules, features_ended(a->features), lease_clock_ns());
        break;
    case AGENT_AWAITS_NOTHING:
        break;
    }
}

static void started(struct agent *a)
{
    worker_group_started(&a->group);
}

static void report_failed(struct agent *a, const struct agent_action *action)
{
    rdzv_failed(a->rdzv, &a->node.workers[action->local_rank].failure);
}

static void signal_groups(struct agent *a, const struct agent_action *action)
{
    worker_group_signal(&a->group, action->signo);
}

static void signal_programs(struct agent *a, const struct agent_action *action)
{
    worker_group_signal_programs(&a->group, action->signo);
}

static void kill_group(struct agent *a)
{
    worker_group_kill(&a->group);
}

static void look_at_stuck(struct agent *a)
{
    agent_rules_stuck(a->rules, worker_group_is_freeing(&a->group), lease_clock_ns());
}

static void report_done(struct agent *a)
{
    rdzv_done(a->rdzv);
}

static void pass_lease(struct agent *a, const struct agent_action *action)
{
    guardian_set_lease(a->link, action->until_ns);
}

static void carry_out(struct agent *a, const struct agent_action *action)
{
    static const struct {
        void (*run)(struct agent *a); /* NULL: the action has more to say */
        void (*run_with)(struct agent *a, const struct agent_action *action);
    } acts[] = {
        [AGENT_LOG] = {NULL, say},
        [AGENT_STATE] = {NULL, change_state},
        [AGENT_PREPARED] = {prepared},
        [AGENT_BEGIN] = {begin},
        [AGENT_START] = {NULL, start},
        [AGENT_STARTED] = {started},
        [AGENT_FAILED] = {NULL, report_failed},
        [AGENT_END_OPERATIONS] = {NULL, end_operations},
        [AGENT_SIGNAL_GROUPS] = {NULL, signal_groups},
        [AGENT_SIGNAL_PROGRAMS] = {NULL, signal_programs},
        [AGENT_KILL] = {kill_group},
        [AGENT_SWEEP] = {NULL, sweep},
        [AGENT_STUCK] = {look_at_stuck},
        [AGENT_ABANDON] = {abandon},
        [AGENT_ENDED] = {ask_features},
        [AGENT_DONE] = {report_done},
        [AGENT_STOPPED] = {NULL, report_stopped},
        [AGENT_LEAVE] = {NULL, leave},
        [AGENT_LOOK] = {ask_features},
        [AGENT_LEASE] = {NULL, pass_lease},
        [AGENT_FINISH] = {finish},
        [AGENT_HURRY] = {hurry},
        [AGENT_CLOSE] = {close_agent},
        [AGENT_DIE] = {die},
    };
    _Static_assert(ARRAY_LEN(acts) == AGENT_DIE + 1, "a row for each action");
    if (acts[action->act].run)
        acts[action->act].run(a);
    else
        acts[action->act].run_with(a, action);
}

static void on_tick(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, tick);
    agent_rules_tick(a->rules, lease_clock_ns());
    advance(a);
}

/* Whether the workers are in the states in which the rules have them. */
static inline bool agrees_with_rules(const struct agent *a)
{
    for (int i = 0; i < a->node.job->nproc; i++) {
        bool renewed = a->node.workers[i].state == agent_rules_worker(a->rules, i);
        if (!renewed && a->node.state != NODE_RENDEZVOUS && a->node.state != NODE_DONE)
            return false;
    }
    return true;
}

/* Carries out what the rules have decided; what happens meanwhile is decided here as well. */
static void advance(struct agent *a)
{
    struct agent_action action;
    if (a->advancing)
        return;
    a->advancing = true;
    while (agent_rules_next(a->rules, &action)) {
        a->node.leaving = agent_rules_leaving(a->rules);
        carry_out(a, &action);
    }
    a->advancing = false;
    debug_assert(agrees_with_rules(a));
    uint64_t at = agent_rules_deadline(a->rules), now = lease_clock_ns();
    if (at != AGENT_NEVER)
        uv_timer_start(&a->tick, on_tick, at > now ? (at - now + 999999) / 1000000 : 0, 0);
    else if (a->node.state != NODE_DONE)
        uv_timer_stop(&a->tick);
}

/* ------------------------------------------------------------------------ what happens in a round
 */

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    struct agent *a = arg;
    struct err e = ERR_INIT;
    log_verbose("round %u: this is node %d of %d", gen.counter, group_rank, nnodes);
    if (!agent_rules_prepare(a->rules, lease_clock_ns()))
        return;
    if (worker_group_listen(&a->group, nnodes == 1, &e) < 0) {
        agent_rules_cannot(a->rules, e.msg, lease_clock_ns());
    } else {
        features_prepare(a->features);
        ask_features(a);
    }
    advance(a);
}

static void on_run(void *arg, const struct rank_table *table, int group_rank)
{
    struct agent *a = arg;
    if (!agent_rules_run(a->rules))
        return;
    a->node.table = table;
    a->node.group_rank = group_rank;
    a->node.restart_count = table->restart_count;
    a->group.ctx.store_port = rdzv_relay_port(a->rdzv);
    a->world_size = table->world_size;
    advance(a);
}

static void on_respawn(void *arg, int local_rank, int restart_count)
{
    struct agent *a = arg;
    agent_rules_respawn(a->rules, local_rank, restart_count, lease_clock_ns());
    advance(a);
}

/* A worker has begun to exit; on_worker_exit follows when the kernel has freed its memory. If the
 * loop is late, workers may be dead already: the reaper then reports them first, in the order of
 * their deaths. */
static void on_worker_exiting(void *arg)
{
    struct agent *a = arg;
    reaper_look(a->group.reaper);
    for (int i = 0; i < a->node.job->nproc && a->node.state == NODE_RUNNING; i++) {
        struct worker *w = &a->node.workers[i];
        int status = w->state == WORKER_RUNNING && exit_notify_has_begun(&a->node.segment, i)
                         ? exit_notify_status(w->pid)
                         : -1;
        if (status <= 0)
            continue;
        features_worker_exits(a->features, w);
        if (w->state != WORKER_RUNNING) /* reported: MPI_Abort */
            continue;
        worker_exiting(w, &a->group.ctx, status);
        agent_rules_failing(a->rules, i, lease_clock_ns());
        advance(a);
    }
}

/* Returns how dlaunch has asked the workers to end. */
static enum worker_asked asked(const struct agent *a)
{
    return agent_rules_state(a->rules) != NODE_STOPPING ? ASKED_NOTHING
           : agent_rules_killed(a->rules)               ? ASKED_BY_SIGKILL
           : agent_rules_failed(a->rules)               ? ASKED_FOR_FAILURE
                                                        : ASKED_TO_STOP;
}

static void on_worker_exit(void *arg, void *tag, const struct reaper_exit *x)
{
    struct agent *a = arg;
    struct worker *w = tag;
    features_worker_exits(a->features, w);
    if (!worker_is_alive(w))
        return; /* abandon() has counted the worker as ended */
    enum worker_asked how = asked(a);
    worker_exited(w, &a->group.ctx, x, how);
    const char *fault =
        w->ok && how == ASKED_NOTHING ? features_worker_fault(a->features, w) : NULL;
    if (fault)
        worker_aborted(w, &a->group.ctx, 0, fault);
    features_worker_ended(a->features, w);
    if (w->ok)
        segment_exited(&a->node.segment, w->local_rank);
    const char *trouble = own_trouble(a, w);
    if (trouble && !agent_rules_leaving(a->rules)) /* the worker's program has not run */
        agent_rules_cannot(a->rules, trouble, lease_clock_ns());
    agent_rules_exited(a->rules, w->local_rank, w->ok, lease_clock_ns());
    show_alive(a);
    advance(a);
    stdio_worker_exited(a->group.pump, w->local_rank);
}

static void on_orphan(void *arg, const struct reaper_exit *x)
{
    struct agent *a = arg;
    features_reaped(a->features, x->pid);
}

static void on_drained(void *arg, int local_rank)
{
    struct agent *a = arg;
    struct worker *w = &a->node.workers[local_rank];
    if (w->state != WORKER_EXITED)
        return;
    worker_closed(w, &a->group.ctx);
    features_worker_drained(a->features, w);
    agent_rules_drained(a->rules, local_rank, lease_clock_ns());
    advance(a);
}

static void on_stop(void *arg, const struct rdzv_stop *why)
{
    struct agent *a = arg;
    if (why->restarting && why->reason == STOP_FAILURE)
        log_notice("%s; restart %d of %d", why->text, a->node.restart_count + 1,
                   a->node.job->rdzv.max_restarts);
    else
        log_notice(why->restarting ? "%s; restarting" : "%s", why->text);
    if (agent_rules_in_round(a->rules))
        features_stops(a->features, why);
    a->stop = why;
    agent_rules_stop(a->rules, why, lease_clock_ns());
    advance(a);
    a->stop = NULL;
}

static void on_lease(void *arg, uint64_t until_ns)
{
    struct agent *a = arg;
    agent_rules_lease(a->rules, until_ns, lease_clock_ns());
    advance(a);
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
    agent_rules_fence(a->rules, lease_clock_ns());
    advance(a);
}

static void on_finish(void *arg, const struct rdzv_result *result)
{
    struct agent *a = arg;
    a->result = result;
    rdzv_get_info(a->rdzv, &a->info);
    agent_rules_finish(a->rules, result->exit_code, lease_clock_ns());
    advance(a);
}

static void on_guardian_gone(uv_poll_t *h, int status, int events)
{
    (void)status, (void)events;
    struct agent *a = container_of(h, struct agent, lifeline);
    uv_poll_stop(h);
    agent_rules_guardian_gone(a->rules, lease_clock_ns());
    advance(a);
}

/* --------------------------------------------------------------------------- what users ask for */

/* Whether the scheduler, which then sends SIGTERM, ends the job now. */
static bool is_time_over(const struct agent *a)
{
    return a->node.job->end.at_s > 0 && (double)wall_ns() / 1e9 >= a->node.job->end.at_s - CLOCKS_S;
}

static void stop_by(struct agent *a, enum stop_reason reason, int signo, const char *what)
{
    agent_rules_request(a->rules, reason, signo, what, is_time_over(a), lease_clock_ns());
    advance(a);
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
    worker_group_signal(&a->group, SIGSTOP);
    guardian_suspend(a->link);
    worker_group_signal(&a->group, SIGCONT);
}

static void on_signal(void *arg, int signo)
{
    struct agent *a = arg;
    char name[24];
    atomic_fetch_add(&a->link->page->heard, 1);
    a->handled = atomic_load(&a->link->page->sent);
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
        worker_group_signal(&a->group, SIGCONT);
        break;
    case SIGUSR1:
    case SIGUSR2:
        worker_group_signal_programs(&a->group, signo);
        break;
    }
}

/* --end_warning: the job stops before the scheduler ends it. Of all launchers that know the time
 * the first one to see it ends the job on all nodes. */
static void on_end_timer(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, end_timer);
    double left_s = a->node.job->end.at_s - (double)wall_ns() / 1e9;
    char text[128];
    if (left_s > a->node.job->end.warn_s) { /* the clock of this node was set meanwhile */
        uv_timer_start(t, on_end_timer, (uint64_t)((left_s - a->node.job->end.warn_s) * 1000) + 1,
                       0);
        return;
    }
    snprintf(text, sizeof(text), "the job's time ends in %.0f s (--end_warning)", left_s);
    agent_rules_warn(a->rules, text, lease_clock_ns());
    advance(a);
}

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

/* A request that dlaunchctl has made here or on another node. */
static void on_request(void *arg, const struct rdzv_request *r)
{
    struct agent *a = arg;
    if (a->node.state == NODE_DONE)
        return;
    if (features_request(a->features, r))
        return;
    if (r->kind == REQUEST_KILL) {
        agent_rules_kill(a->rules, r->kill.text, lease_clock_ns());
        advance(a);
    } else if (r->kind == REQUEST_SIGNAL) {
        log_verbose("%s", r->signal.text);
        worker_group_signal_ranks(&a->group, r->signal.ranks, r->signal.signo);
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
    if (a->result) /* parts of the rendezvous may be closed */
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
    return a->group.pump ? stdio_worker_first_ns(a->group.pump, local_rank) : 0;
}

static uint64_t node_last_output(struct node *n, int local_rank)
{
    struct agent *a = agent_of(n);
    return a->group.pump ? stdio_worker_last_ns(a->group.pump, local_rank) : 0;
}

static void node_go_on(struct node *n)
{
    struct agent *a = agent_of(n);
    ask_features(a);
    advance(a);
}

static void node_give_up(struct node *n, const struct err *e)
{
    struct agent *a = agent_of(n);
    if (agent_rules_awaits(a->rules) != AGENT_AWAITS_READY) /* for another round, or for none */
        return;
    agent_rules_cannot(a->rules, e->msg, lease_clock_ns());
    advance(a);
}

static void node_leave(struct node *n, enum stop_reason reason, int exit_code, int signo,
                       const char *text)
{
    struct agent *a = agent_of(n);
    agent_rules_leave(a->rules, reason, exit_code, signo, text, lease_clock_ns());
    advance(a);
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
    worker_exiting(w, &a->group.ctx, SIGKILL);
    agent_rules_failing(a->rules, local_rank, lease_clock_ns());
    advance(a);
}

static void node_abort(struct node *n, int local_rank, int exit_code, const char *how)
{
    struct agent *a = agent_of(n);
    struct worker *w = &n->workers[local_rank];
    if (n->state != NODE_RUNNING || w->state != WORKER_RUNNING)
        return;
    worker_aborted(w, &a->group.ctx, exit_code, how);
    agent_rules_failing(a->rules, local_rank, lease_clock_ns());
    advance(a);
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

static int node_spawn_request(struct node *n, int local_rank, struct spawn_request *req,
                              struct err *e)
{
    return worker_request(&n->workers[local_rank], &agent_of(n)->group.ctx, req, e);
}

static const struct node_calls node_calls = {
    .request = node_request,
    .answer = node_answer,
    .gather = node_gather,
    .get_info = node_get_info,
    .get_status = node_get_status,
    .first_output = node_first_output,
    .last_output = node_last_output,
    .spawn_request = node_spawn_request,
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

/* ------------------------------------------------------------------------------------ the start */

static int open_handles(struct agent *a, struct err *e)
{
    int rc = uv_poll_init(a->node.loop, &a->lifeline, a->link->lifeline);
    if (rc < 0)
        return uvx_err(e, rc, "the link to the guardian");
    uvx_scope_init(&a->scope, a->node.loop);
    uv_timer_init(a->node.loop, &a->tick);
    uv_timer_init(a->node.loop, &a->end_timer);
    uvx_own(&a->scope, &a->tick);
    uvx_own(&a->scope, &a->end_timer);
    uvx_own(&a->scope, &a->lifeline);
    uv_poll_start(&a->lifeline, UV_READABLE | UV_DISCONNECT, on_guardian_gone);
    job_signals_open(&a->signals, a->node.loop, a->node.job, on_signal, a);
    if (a->node.job->end.at_s > 0 && a->node.job->end.warn_s > 0) /* which sets the time */
        uv_timer_start(&a->end_timer, on_end_timer, 0, 0);
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
    stdio_job_was_taken(a->group.pump, n);
}

/* The console of the job is the one of this node. */
static bool on_job_output(void *arg, const void *records, size_t n)
{
    struct agent *a = arg;
    return stdio_show_job(a->group.pump, records, n);
}

static void on_output_room(void *arg)
{
    struct agent *a = arg;
    rdzv_output_room(a->rdzv);
}

/* Returns how many workers the job can have. */
static int most_ranks(const struct job_spec *job)
{
    return job->rdzv.max_nodes < WORLD_SIZE_MAX / NPROC_MAX ? job->rdzv.max_nodes * NPROC_MAX
                                                            : WORLD_SIZE_MAX;
}

static int open_group(struct agent *a, struct err *e)
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
    const struct worker_group_callbacks cb = {
        .on_exiting = on_worker_exiting,
        .on_exit = on_worker_exit,
        .on_orphan = on_orphan,
        .pump = &pump,
        .arg = a,
    };
    int r = worker_group_open(&a->group, &a->node, a->link, &cb, e);
    if (r == 0)
        r = open_handles(a, e);
    if (r == 0)
        worker_group_watch(&a->group, &cb);
    return r;
}

static int open_features(struct agent *a, struct err *e)
{
    struct node_id id;
    if (getrandom(id.b, sizeof(id.b), 0) != sizeof(id.b))
        return err_sys(e, errno, "getrandom");
    event_log_init(&a->node.log, &id);
    a->node.log.on_change = on_log_change;
    a->node.log.arg = a;
    int r = features_open(&a->features, &a->node, e);
    a->group.features = a->group.ctx.features = a->features;
    return r;
}

static struct agent_rules *make_rules(const struct agent *a)
{
    const struct job_spec *job = a->node.job;
    static char name[24];
    const struct agent_rules_config config = {
        .nproc = job->nproc,
        .alone = job->rdzv.restart_policy == RESTART_WORKER,
        .shutdown_ns = (uint64_t)(job->shutdown_timeout * 1e9),
        .timeout_at_ns = job->timeout > 0 ? lease_clock_ns() + (uint64_t)(job->timeout * 1e9) : 0,
        .timeout_s = job->timeout,
        .warned = job->end.warn_s > 0,
        .warn_signal = job->end.signal,
        .warn_grace_ns = (uint64_t)(job->end.grace_s * 1e9),
        .warn_name = signal_name(job->end.signal, name),
        .host = job->host,
    };
    return agent_rules_new(&config);
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
        .node = {.calls = &node_calls,
                 .job = job,
                 .loop = loop,
                 .scope = &a->scope,
                 .started_ns = mono_ns(),
                 .oom_reported = &link->page->oom_reported,
                 .state_name = "INIT",
                 .log_dir = ""},
        .began_ns = day_ns(),
        .link = link,
        .cb = *cb,
        .status = xcalloc((size_t)job->nproc, sizeof(struct agent_worker_status)),
    };
    a->rules = make_rules(a);
    int r = open_group(a, e);
    if (r < 0 && !a->group.reaper) { /* no handle is on the loop yet */
        log_dir_close(&a->group.log_dir);
        free_agent(a);
        return r;
    }
    if (r == 0)
        r = open_features(a, e);
    struct rdzv_callbacks of_rdzv = callbacks;
    of_rdzv.arg = a;
    of_rdzv.events = &a->node.log;
    if (!job->job_console)
        of_rdzv.on_output = NULL;
    if (r < 0 || (r = rdzv_open(&a->rdzv, loop, &job->rdzv, &of_rdzv, e)) < 0) {
        log_dir_close(&a->group.log_dir);
        return r;
    }
    a->cb.on_state = NULL; /* the caller has no agent yet */
    agent_rules_joined(a->rules);
    advance(a);
    a->cb.on_state = cb->on_state;
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
        .state = a->node.state_name,
        .health = health[a->node.state],
        .elapsed = (double)(day_ns() - a->began_ns) / 1e9,
        .lost_output = a->lost_output,
        .ends_at_s = a->node.job->end.at_s,
        .stop_text = agent_rules_why(a->rules),
        .nworkers = a->node.job->nproc,
        .workers = a->status,
    };
    if (a->node.state == NODE_DONE && agent_rules_exit_status(a->rules) != 0)
        out->health = "FAILED";
    node_get_info(&a->node, &out->rdzv);
    if (!agent_rules_tells_result(a->rules))
        out->rdzv.decided = (struct generation){0};
    for (int i = 0; i < a->node.job->nproc; i++)
        worker_status(&a->node.workers[i], a->node.job, &a->status[i]);
    features_status(a->features, out);
}
