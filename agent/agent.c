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

#include "agent/base/job_env.h"
#include "agent/base/signals.h"
#include "agent/features.h"
#include "agent/job_signals.h"
#include "agent/process/data_socket.h"
#include "agent/process/exit_notify.h"
#include "agent/process/file_limit.h"
#include "agent/process/oom.h"
#include "agent/process/sweep.h"
#include "agent/report/pod_message.h"
#include "agent/report/report.h"
#include "agent/rules/agent_rules.h"
#include "agent/worker.h"
#include "core/clock.h"
#include "core/debug_assert.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/patient.h"
#include "core/parse.h"
#include "core/uvx.h"
#include "rendezvous/rules/text.h"

#define IMPATIENT_MS 100 /* for a line of dlaunch after the wait for a reader was ended */
#define UNREAD_S     5   /* for a reader that takes nothing, in a job that was stopped */
#define CLOCKS_S     1.0 /* that this node's clock may be behind the scheduler's */

struct agent {
    struct node node; /* what features see */
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

    struct rdzv *rdzv;           /* NULL: closed */
    struct rdzv_info info;       /* a copy, made when the state becomes NODE_DONE */
    struct stdio_pump *pump;     /* NULL: closed */
    struct warm_pool *warm_pool; /* NULL: no warm interpreters */
    struct reaper *reaper;
    struct exit_notify *exit_notify;
    struct placement *placement;
    struct cgroup cgroup;
    struct log_dir log_dir;
    struct patient *files; /* of its server */
    int null_fd;
    struct worker_context ctx;
    struct worker_env_shared **env; /* of each program */
    struct variables variables;     /* of features, for all workers */
    int world_size;                 /* of the last round */
    uint64_t began_ns;              /* day_ns() */
    struct sweep sweep;

    const struct rdzv_stop *stop;     /* while on_stop() runs: why the round stops */
    const struct rdzv_result *result; /* how the job has ended; NULL: it has not */
    char leftover[512];               /* the processes that could not be killed; "": none */
    char *lost_output; /* the first text about output that could not be written; NULL: none */
    bool hurried;      /* other nodes are not waited for */
    int nclosing;
    struct agent_worker_status *status; /* for agent_get_status */
};

static void advance(struct agent *a);

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

static void forget_env(struct agent *a)
{
    int n = a->node.job->programs ? a->node.job->programs->n : 1;
    bool in_use = !spawn_settle(a->node.spawner); /* by a child whose execve() hangs */
    for (int i = 0; a->env && i < n; i++) {
        if (!in_use)
            worker_env_shared_free(a->env[i]);
        a->env[i] = NULL;
    }
}

static int make_round(struct agent *a, struct err *e)
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
    a->node.log_dir = a->log_dir.run[0] && !a->log_dir.flat ? a->log_dir.attempt : "";
    if (features_begin(a->features, e) < 0)
        return e->code;
    variables_fini(&a->variables);
    features_variables(a->features, &a->variables);
    return 0;
}

/* How many workers of all nodes --ranks lets through. */
static int ranks_shown(const struct job_spec *job, int world_size)
{
    int n = 0;
    for (int i = 0; i < world_size; i++)
        n += !job->ranks || parse_has(job->ranks, i);
    return n;
}

/* For the workers that start as this attempt, in place of those that have ended. */
static int make_folders(struct agent *a, int attempt, int first, int n, struct err *e)
{
    log_dir_path *left = xcalloc((size_t)n + 1, sizeof(*left));
    for (int i = 0; i < n; i++)
        memcpy(left[i], a->node.workers[first + i].dir, sizeof(*left));
    int r = log_dir_next_patiently(&a->log_dir, a->files, attempt, first, n, left, e);
    free(left);
    return r;
}

static void begin(struct agent *a)
{
    struct err e = ERR_INIT;
    int r = make_folders(a, a->node.restart_count, 0, a->node.job->nproc, &e);
    for (int i = 0; i < a->node.job->nproc; i++)
        worker_renew(&a->node.workers[i]);
    if (r < 0 || make_round(a, &e) < 0) {
        agent_rules_cannot(a->rules, e.msg, lease_clock_ns());
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
        agent_rules_begun(a->rules, lease_clock_ns());
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

/* attempt: of a worker that is started again; 0: the round's. */
static void start(struct agent *a, struct worker *w, int attempt)
{
    struct err e = ERR_INIT;
    int r = 0;
    if (attempt) {
        a->node.restart_count = attempt;
        forget_env(a);
        log_verbose("starting rank %d again", w->rank);
        r = make_folders(a, attempt, w->local_rank, 1, &e);
    }
    if (r < 0)
        worker_cannot_start(w, &a->ctx, &e);
    else
        r = worker_start(w, &a->ctx, w, &e);
    if (r < 0) {
        features_worker_ended(a->features, w);
        agent_rules_not_started(a->rules, w->local_rank, w->state == WORKER_EXITED,
                                own_trouble(a, w), lease_clock_ns());
        return;
    }
    agent_rules_started(a->rules, w->local_rank, lease_clock_ns());
    show_alive(a);
    features_worker_started(a->features, w);
    log_verbose("rank %d (local rank %d) is pid %d%s", w->rank, w->local_rank, w->pid,
                w->warm ? ", warm" : "");
    if (attempt) {
        spawn_settle(a->node.spawner);
        warm_pool_fill(a->warm_pool);
    }
}

static void all_started(struct agent *a)
{
    spawn_settle(a->node.spawner);
    warm_pool_fill(a->warm_pool);
    if (a->node.restart_count == 0) /* now that the workers run */
        log_dir_sweep_patiently(&a->log_dir);
}

/* ---------------------------------------------------------------------------- actions: the stop */

/* Ends the operations that this node's workers are in; `first` as in segment_raise(). */
static void raise_abort(struct agent *a, const struct failure *first, const char *text)
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

/* w: the worker whose failure stops the round; NULL: it stops for another reason. */
static void end_operations(struct agent *a, const struct worker *w)
{
    struct rdzv_stop why = {.reason = STOP_FAILURE, .has_first = true};
    if (w) {
        why.first = w->failure;
        failure_describe(&w->failure, why.text, sizeof(why.text));
        features_stops(a->features, &why);
        raise_abort(a, &w->failure, why.text);
    } else {
        raise_abort(a, a->stop->has_first ? &a->stop->first : NULL, a->stop->text);
    }
}

static void signal_groups(struct agent *a, int signo)
{
    for (int i = 0; i < a->node.job->nproc; i++)
        worker_signal_group(&a->node.workers[i], signo);
}

/* To the programs themselves; their helper processes would die of it. */
static void signal_programs(struct agent *a, int signo)
{
    for (int i = 0; i < a->node.job->nproc; i++) {
        if (worker_is_alive(&a->node.workers[i]))
            kill(a->node.workers[i].pid, signo);
    }
}

static void kill_all(struct agent *a)
{
    sweep_init(&a->sweep);
    signal_groups(a, SIGKILL);
    if (a->cgroup.fd >= 0) /* which the warm interpreters are in, too */
        warm_pool_kill(a->warm_pool);
    cgroup_kill(&a->cgroup);
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

/* Kills what the workers have left behind. */
static void sweep(struct agent *a, bool first)
{
    size_t n;
    if (warm_pool_is_forking(a->warm_pool)) { /* not to be taken for what workers left behind */
        agent_rules_swept(a->rules, -1, lease_clock_ns());
        return;
    }
    if (first)
        sweep_init(&a->sweep);
    pid_t *kept = pids_to_keep(a, &n);
    int left = sweep_step(&a->sweep, kept, n);
    free(kept);
    if (left == 0 && a->sweep.killed)
        log_notice("ended %u process%s that the workers had left behind", a->sweep.killed,
                   a->sweep.killed == 1 ? "" : "es");
    agent_rules_swept(a->rules, left, lease_clock_ns());
}

static void look_at_stuck(struct agent *a)
{
    bool freeing = false;
    for (int i = 0; i < a->node.job->nproc; i++)
        freeing |= worker_is_alive(&a->node.workers[i]) && exit_notify_runs(a->node.workers[i].pid);
    agent_rules_stuck(a->rules, freeing, lease_clock_ns());
}

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
}

static void report_stopped(struct agent *a, bool none_ran)
{
    struct failure *all = xcalloc((size_t)a->node.job->nproc, sizeof(*all));
    size_t n = 0;
    if (!none_ran) {
        exit_notify_unwatch(a->exit_notify);
        segment_close(&a->node.segment);
    }
    for (int i = 0; i < a->node.job->nproc && !none_ran; i++) {
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
    struct sweep sweep;
    guardian_set_lease(a->link, 0); /* the fuse must not end this */
    signal_groups(a, SIGKILL);
    cgroup_kill(&a->cgroup);
    sweep_init(&sweep);
    sweep_run(&sweep, NULL, 0, (double)AGENT_UNKILLABLE_NS / 1e9);
    cgroup_close(&a->cgroup);
    log_dir_close(&a->log_dir);
    guardian_unlink(a->link->page);
    rdzv_abandon(a->rdzv);
    log_set_writer(NULL, NULL);
    log_set_patience(LOG_LAST_WORDS_MS);
    struct oom_watch *oom = oom_watch_of(features_find(a->features, &oom_feature));
    log_error("the guardian process was killed%s; ended every worker", oom ? oom_words(oom) : "");
    _exit(128 + SIGKILL);
}

/* ----------------------------------------------------------------------------- actions: the end */

static void free_agent(struct agent *a)
{
    for (int i = 0; i < a->node.job->nproc; i++)
        close_fd(&a->node.workers[i].listen_fd);
    exit_notify_free(a->exit_notify);
    segment_close(&a->node.segment);
    features_free(a->features);
    agent_rules_free(a->rules);
    event_log_fini(&a->node.log);
    variables_fini(&a->variables);
    forget_env(a);
    free(a->env);
    patient_free(a->files);
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
    int exit_status = agent_rules_exit_status(a->rules);
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
        .log_dir = a->log_dir.run[0] && !a->log_dir.flat ? a->log_dir.run : NULL,
        .leftover = a->leftover[0] ? a->leftover : NULL,
        .lost_output = a->lost_output,
    };
    features_report(a->features, &in);
    if (exit_status == 2 && result->reason == STOP_RENDEZVOUS)
        log_error("%s",
                  result->text); /* no worker was started: reported like any other bad input */
    else if (exit_status != 0 || in.ledger)
        text = report_text(&in);
    if (a->node.job->report_path && report_write_json(&in, &e) < 0)
        log_error("--report: %s", e.msg);
    if (exit_status != 0 && a->node.job->pod_message && pod_message_write(&in, &e) < 0)
        log_error("--pod_message: %s", e.msg);
    return text;
}

static void on_output_written(void *arg, bool all)
{
    struct agent *a = arg;
    a->pump = NULL;
    log_set_writer(NULL, NULL);
    if (!all)
        log_set_patience(IMPATIENT_MS);
    agent_rules_written(a->rules, all);
    advance(a);
}

/* Reports, and waits for the readers of the last output: UNREAD_S at most if the job was asked to
 * stop and a reader takes nothing. */
static void finish(struct agent *a)
{
    const struct rdzv_result *result = a->result;
    const struct failure *first = result->n ? &result->failures[0] : NULL;
    int exit_status = agent_rules_exit_status(a->rules);
    bool requested = report_was_stopped(result->reason) || result->reason == STOP_TIMEOUT;
    warm_pool_kill(a->warm_pool);
    features_finish(a->features, result);
    if (first && first->local_rank >= 0 && first->local_rank < a->node.job->nproc &&
        a->node.workers[first->local_rank].rank == first->rank)
        worker_hand_up_error_file(&a->node.workers[first->local_rank], &a->ctx);
    if (a->cb.on_end)
        a->cb.on_end(a->cb.arg, exit_status, exit_status ? result->text : "");
    /* Before the report, which must not name a folder that is removed because it is empty. */
    log_dir_close_patiently(&a->log_dir, a->files);
    struct stdio_pump_end end = {.patience = requested ? UNREAD_S : -1,
                                 .last_words = make_report(a),
                                 .on_closed = on_output_written,
                                 .arg = a};
    stdio_pump_close(a->pump, &end);
}

/* Signals are handled until here, because one may end the wait for other nodes. */
static void on_rdzv_closed(void *arg)
{
    struct agent *a = arg;
    a->rdzv = NULL;
    job_signals_close(&a->signals, agent_on_closed, a);
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

#define SWEEP_MS 2

/* The warm interpreters have been killed; they end before the agent does. */
static void on_warm_end(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, tick);
    bool overdue = mono_ns() - a->sweep.started_ns > AGENT_UNKILLABLE_NS;
    if (sweep_step(&a->sweep, NULL, 0) > 0 && !overdue)
        uv_timer_start(t, on_warm_end, SWEEP_MS, 0);
    else
        close_parts(a);
}

static void close_agent(struct agent *a)
{
    if (!a->warm_pool) {
        close_parts(a);
        return;
    }
    sweep_init(&a->sweep);
    on_warm_end(&a->tick);
}

static void hurry(struct agent *a)
{
    if (a->pump)
        stdio_pump_hurry(a->pump);
    else if (a->nclosing && a->rdzv)
        rdzv_hurry(a->rdzv);
    else
        a->hurried = true;
}

/* ------------------------------------------------------------------------------------- the rules
 */

static void change_state(struct agent *a, enum node_state from)
{
    a->node.state = agent_rules_state(a->rules);
    a->node.state_name = agent_rules_state_name(a->rules);
    features_state_changed(a->features, from);
    if (a->cb.on_state)
        a->cb.on_state(a->cb.arg);
}

static void say(const struct agent_action *action)
{
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
    uint16_t *ports = xcalloc((size_t)a->node.job->nproc, sizeof(*ports));
    for (int i = 0; i < a->node.job->nproc; i++)
        ports[i] = a->node.workers[i].port;
    rdzv_prepared(a->rdzv, ports, a->node.job->nproc);
    free(ports);
}

/* Tells the rules if what they wait for has come. */
static void ask_features(struct agent *a)
{
    switch (agent_rules_awaits(a->rules)) {
    case AGENT_AWAITS_READY:
        if (features_ready(a->features))
            agent_rules_ready(a->rules);
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

static void carry_out(struct agent *a, const struct agent_action *action)
{
    struct worker *w = action->local_rank >= 0 ? &a->node.workers[action->local_rank] : NULL;
    switch (action->act) {
    case AGENT_LOG:
        say(action);
        break;
    case AGENT_STATE:
        change_state(a, action->from);
        break;
    case AGENT_PREPARED:
        prepared(a);
        break;
    case AGENT_BEGIN:
        begin(a);
        break;
    case AGENT_START:
        start(a, w, action->attempt);
        break;
    case AGENT_STARTED:
        all_started(a);
        break;
    case AGENT_FAILED:
        rdzv_failed(a->rdzv, &w->failure);
        break;
    case AGENT_ABORT:
        end_operations(a, w);
        break;
    case AGENT_SIGNAL_GROUPS:
        signal_groups(a, action->signo);
        break;
    case AGENT_SIGNAL_PROGRAMS:
        signal_programs(a, action->signo);
        break;
    case AGENT_KILL:
        kill_all(a);
        break;
    case AGENT_SWEEP:
        sweep(a, action->first);
        break;
    case AGENT_STUCK:
        look_at_stuck(a);
        break;
    case AGENT_ABANDON:
        abandon(a);
        break;
    case AGENT_LOOK:
    case AGENT_ENDED:
        ask_features(a);
        break;
    case AGENT_DONE:
        rdzv_done(a->rdzv);
        break;
    case AGENT_STOPPED:
        report_stopped(a, action->none_ran);
        break;
    case AGENT_LEAVE:
        leave(a, action);
        break;
    case AGENT_LEASE:
        guardian_set_lease(a->link, action->until_ns);
        break;
    case AGENT_FINISH:
        finish(a);
        break;
    case AGENT_HURRY:
        hurry(a);
        break;
    case AGENT_CLOSE:
        close_agent(a);
        break;
    case AGENT_DIE:
        die(a);
    }
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
    for (int i = 0; i < a->node.job->nproc && e.code == 0; i++) {
        struct worker *w = &a->node.workers[i];
        close_fd(&w->listen_fd);
        w->listen_fd = data_socket_listen(i, nnodes == 1, &w->port, &e);
    }
    if (e.code) {
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
    a->ctx.store_port = rdzv_relay_port(a->rdzv);
    a->world_size = table->world_size;
    advance(a);
}

static void on_warm_settled(void *arg)
{
    struct agent *a = arg;
    agent_rules_begun(a->rules, lease_clock_ns());
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
        agent_rules_failing(a->rules, i, lease_clock_ns());
        advance(a);
    }
}

/* How dlaunch has asked the workers to end. */
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
        return; /* abandon() has counted it as ended */
    enum worker_asked how = asked(a);
    worker_exited(w, &a->ctx, x, how);
    const char *fault =
        w->ok && how == ASKED_NOTHING ? features_worker_fault(a->features, w) : NULL;
    if (fault)
        worker_aborted(w, &a->ctx, 0, fault);
    features_worker_ended(a->features, w);
    if (w->ok)
        segment_exited(&a->node.segment, w->local_rank);
    const char *trouble = own_trouble(a, w);
    if (trouble && !agent_rules_leaving(a->rules)) /* its program has not run */
        agent_rules_cannot(a->rules, trouble, lease_clock_ns());
    agent_rules_exited(a->rules, w->local_rank, w->ok, lease_clock_ns());
    show_alive(a);
    advance(a);
    stdio_worker_exited(a->pump, w->local_rank);
}

static void on_orphan(void *arg, const struct reaper_exit *x)
{
    struct agent *a = arg;
    warm_pool_reaped(a->warm_pool, x->pid);
}

static void on_drained(void *arg, int local_rank)
{
    struct agent *a = arg;
    struct worker *w = &a->node.workers[local_rank];
    if (w->state != WORKER_EXITED)
        return;
    worker_closed(w, &a->ctx);
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
    signal_groups(a, SIGSTOP);
    guardian_suspend(a->link);
    signal_groups(a, SIGCONT);
}

static void on_signal(void *arg, int signo)
{
    struct agent *a = arg;
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
        signal_groups(a, SIGCONT);
        break;
    case SIGUSR1:
    case SIGUSR2:
        signal_programs(a, signo);
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
    if (left_s > a->node.job->end.warn_s) { /* this clock was set meanwhile */
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
        agent_rules_kill(a->rules, r->kill.text, lease_clock_ns());
        advance(a);
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
    worker_exiting(w, &a->ctx, SIGKILL);
    agent_rules_failing(a->rules, local_rank, lease_clock_ns());
    advance(a);
}

static void node_abort(struct node *n, int local_rank, int exit_code, const char *how)
{
    struct agent *a = agent_of(n);
    struct worker *w = &n->workers[local_rank];
    if (n->state != NODE_RUNNING || w->state != WORKER_RUNNING)
        return;
    worker_aborted(w, &a->ctx, exit_code, how);
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
    if ((r = file_limit_raise(job, e)) < 0)
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
                 .oom_told = &link->page->oom_told,
                 .state_name = "INIT",
                 .log_dir = "",
                 .segment = SEGMENT_INIT,
                 .workers = xcalloc((size_t)job->nproc, sizeof(struct worker))},
        .began_ns = day_ns(),
        .link = link,
        .cb = *cb,
        .cgroup = {.fd = -1},
        .files = patient_new(),
        .null_fd = -1,
        .status = xcalloc((size_t)job->nproc, sizeof(struct agent_worker_status)),
    };
    for (int i = 0; i < job->nproc; i++)
        a->node.workers[i] = (struct worker){.local_rank = i, .rank = -1, .listen_fd = -1};
    a->env = xcalloc((size_t)(job->programs ? job->programs->n : 1), sizeof(*a->env));
    a->rules = make_rules(a);
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
        .files = a->files,
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
