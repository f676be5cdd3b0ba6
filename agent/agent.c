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

#include "agent/device/gpu_watch.h"
#include "agent/base/job_env.h"
#include "agent/doctor/checks.h"
#include "agent/doctor/facts.h"
#include "agent/hostname_check.h"
#include "agent/mpi/mpi.h"
#include "agent/base/mpir.h"
#include "agent/process/data_socket.h"
#include "agent/process/exit_notify.h"
#include "agent/process/file_timer.h"
#include "agent/process/sweep.h"
#include "agent/report/event_file.h"
#include "agent/base/fs.h"
#include "agent/report/event_json.h"
#include "agent/report/flight_report.h"
#include "agent/report/json_text.h"
#include "agent/report/operations.h"
#include "agent/report/timeline.h"
#include "agent/report/report.h"
#include "agent/report/report_words.h"
#include "agent/report/pod_message.h"
#include "agent/report/top_asks.h"
#include "agent/report/trainer_status.h"
#include "agent/stacks/gather.h"
#include "agent/stacks/hang.h"
#include "agent/stacks/kernel_side.h"
#include "agent/stacks/slow.h"
#include "agent/stacks/sockets.h"
#include "agent/stacks/stack_tree.h"
#include "agent/base/usage.h"
#include "agent/worker.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/fsm.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "core/uvx.h"
#include "rendezvous/rules/ledger.h"
#include "rendezvous/rules/text.h"

#define MAX_SIGNALS NSIG /* a signal is listed once at most */

/* A process that is alive so long after SIGKILL counts as one that cannot be killed. */
#define UNKILLABLE_MS 10000
#define ENDING_MS     600000 /* the same for an exiting process: freeing memory takes 100 ms per GB */
#define IMPATIENT_MS  100    /* for a line of dlaunch after the wait for a reader was ended */
#define EVENT_MS      25     /* between two looks for first output and first operations */
#define TIMELINE_MS   5      /* the same, with --timeline: a recorder keeps few operations */
#define UNREAD_S      5      /* patience with a reader that takes nothing, in a stopped job */

enum { INIT, RENDEZVOUS, STARTING, RUNNING, EXIT_BARRIER, STOPPING, DONE };

struct agent {
    struct fsm fsm;
    uv_loop_t *loop;
    const struct job_spec *job;
    struct guardian_link *link;
    struct agent_callbacks cb;
    uint64_t started_ns;

    struct uvx_scope scope, signal_scope;
    uv_signal_t signals[MAX_SIGNALS];
    int nsignals;
    uint64_t first_stop_ns; /* when the first request to stop arrived; 0: none has */
    uv_poll_t lifeline;
    uv_timer_t job_timer;   /* --timeout */
    uv_timer_t end_timer;   /* --end_warning */
    uv_timer_t grace_timer; /* STOPPING: sends SIGKILL */
    uv_timer_t sweep_timer; /* looks for descendants */
    uv_timer_t block_timer; /* looks for workers in state D; active if block_ns is set */
    uint64_t block_ns;      /* limit for a worker in state D; 0: none */
    uv_timer_t event_timer; /* looks for first output and operations, if anybody waits */
    uint64_t looked_ns;     /* when it last did in this round; 0: it has not */
    double waited_s;        /* of this round: node-seconds in which workers were in operations */

    struct event_log log;
    struct operations operations;  /* --timeline */
    struct event_file *event_file; /* NULL: none */
    uint64_t mpir_at;              /* the next event for the debuggers' table */
    struct attempts attempts;

    struct rdzv *rdzv;     /* NULL: closed */
    struct rdzv_info info; /* a copy, made when the state becomes DONE */
    struct hostname_check *hostname_check;
    struct facts_run *facts;        /* --preflight, of this round; NULL: none */
    bool facts_ready;               /* this node is fit for this round */
    struct trainer_status *trainer; /* NULL: not in a TrainJob */
    struct gatherer *gatherer;      /* NULL: no stack was asked for */
    struct sampler_worker *sampled; /* its workers; job->nproc */
    struct leave_request {          /* waits for the stacks of the report */
        bool waits;
        enum stop_reason reason;
        int exit_code, signo;
        char text[HOST_MAX + 64];
        int answers;       /* gatherer_answers() when all nodes that ask have been answered */
        uint64_t since_ms; /* when this node had the stacks, and began to wait for that */
    } last_look;
    struct top_asks *tops;
    json_t *told_operations; /* node -> its newest answer, with "at"; NULL: nobody has asked */
    uint64_t operations_asked_ns;
    struct hang *hang;       /* NULL: hangs are not watched for */
    struct sockets *sockets; /* the same */
    bool judges;             /* hangs: in place of a coordinator without workers */
    enum hang_state hang_state;
    char hang_text[512];
    struct slow *slow;   /* NULL: slow ranks are not watched for */
    char slow_text[512]; /* which ranks are; "": none */
    char *last_slow;     /* which ones were last; NULL: none ever */
    char *stacks;        /* of the job, before it was stopped; NULL: none */
    struct stdio_pump *pump;
    struct spawner *spawner;
    struct warm_pool *warm_pool; /* NULL: no warm interpreters */
    struct reaper *reaper;
    struct exit_notify *exit_notify;
    struct mpi *mpi;               /* NULL: not an MPI program */
    struct file_timer *file_timer; /* NULL: not enabled */
    struct placement *placement;
    struct cgroup cgroup;
    struct oom_watch oom;
    struct log_dir log_dir;
    int null_fd;

    /* The round. */
    struct worker *workers; /* job->nproc */
    struct segment segment;
    char *flight_report; /* collective operations when the round failed; NULL: none */
    struct worker_context ctx;
    struct worker_env_shared **env; /* of each program */
    bool preparing;                 /* on_prepare has not been answered */
    int nalive;                     /* processes of workers */
    int nunread;                    /* workers whose output is still being read */
    int nok;                        /* workers that exited with 0 */
    int world_size;

    uint64_t lease_ns; /* the guardian's lease; 0: none */

    struct gpu_watch *gpus; /* NULL: no worker is known to use a GPU */
    bool gpus_ready;        /* the GPUs are fit for this round */
    enum { GPUS_NOT_ASKED, GPUS_ASKED, GPUS_ANSWERED } gpu_faults; /* of the round that stops */

    bool swept; /* no descendant besides the workers is left */

    /* The stop. */
    bool hurry;          /* the agent waits neither for readers nor for other nodes */
    bool hurried;        /* it did not wait for the readers */
    bool leaving;        /* this node has left the job */
    char stop_text[512]; /* why the job stops for good; "": it does not */
    bool failed;         /* the round stops because of a failure */
    bool stop_reported;  /* rdzv_stopped() has been called for this round */
    double grace_s;      /* until SIGKILL */
    uint64_t killed_ns;  /* when SIGKILL was sent; 0: it was not, or every process has died of it */
    struct sweep sweep;
    char leftover[512]; /* the processes that could not be killed; "": none */
    char *lost_output;  /* the first text about output that could not be written; NULL: none */

    int usable_cpus;
    int exit_status;
    int nclosing;
    struct agent_worker_status *status; /* for agent_get_status */
};

static const struct fsm_state agent_states[] = {
    [INIT] = {"INIT", FSM_BIT(RENDEZVOUS)},
    [RENDEZVOUS] = {"RENDEZVOUS", FSM_BIT(STARTING) | FSM_BIT(STOPPING) | FSM_BIT(DONE)},
    [STARTING] = {"STARTING", FSM_BIT(RUNNING) | FSM_BIT(STOPPING)},
    [RUNNING] = {"RUNNING", FSM_BIT(EXIT_BARRIER) | FSM_BIT(STOPPING)},
    [EXIT_BARRIER] = {"EXIT_BARRIER", FSM_BIT(STOPPING) | FSM_BIT(DONE)},
    [STOPPING] = {"STOPPING", FSM_BIT(RENDEZVOUS) | FSM_BIT(DONE)},
    [DONE] = {"DONE", 0},
};

/* --------------------------------------------------------------------------------------- events */

/* Records an event of this node, now unless it has a time. */
static void event(struct agent *a, struct event e)
{
    uint64_t now = mono_ns();
    if (!e.at_ns || e.at_ns > now)
        e.at_ns = now;
    e.wall_ns = wall_ns() - (now - e.at_ns);
    e.host = a->job->host;
    e.node = a->ctx.table ? a->ctx.group_rank : -1;
    event_log_add(&a->log, &e);
}

static void worker_event(struct agent *a, const struct worker *w, enum event_name name,
                         uint64_t at_ns)
{
    const struct failure *f = name == EVENT_WORKER_FINISH && !w->ok ? &w->failure : NULL;
    char dir[FAILURE_PATH_MAX] = "";
    if (name == EVENT_WORKER_START && !a->log_dir.flat)
        log_dir_file(&a->log_dir, w->local_rank, "", dir, sizeof(dir));
    if (*dir)
        dir[strlen(dir) - 1] = '\0'; /* the slash in front of a file */
    event(a, (struct event){.name = name,
                            .at_ns = at_ns,
                            .attempt = w->attempt,
                            .pid = w->pid,
                            .rank = w->rank,
                            .local_rank = w->local_rank,
                            .exit_code = f ? f->exit_code : 0,
                            .signal = f ? f->signal : 0,
                            .cause = f ? cause_of_failure(f) : CAUSE_NONE,
                            .caused_by = f ? f->caused_by : -1,
                            .text = programs_name(a->job->programs, w->rank),
                            .extra = dir});
}

/* First output and first operations are found by looking: the workers and the pump's thread only
 * note when they were. */
static void look_for_firsts(struct agent *a, struct worker *w)
{
    uint64_t at;
    if (w->state == WORKER_IDLE)
        return;
    if (!w->told_output && (at = stdio_worker_first_ns(a->pump, w->local_rank))) {
        w->told_output = true;
        worker_event(a, w, EVENT_WORKER_OUTPUT, at);
    }
    if (!w->told_collective && (at = segment_first_op_ns(&a->segment, w->local_rank))) {
        w->told_collective = true;
        worker_event(a, w, EVENT_WORKER_COLLECTIVE, at);
    }
}

/* Counts the share of this node's workers that are in operations for the time since the last look.
 */
static void sample_waiting(struct agent *a)
{
    uint64_t now = mono_ns();
    int in = 0, alive = 0;
    for (int i = 0; i < a->job->nproc; i++) {
        alive += worker_is_alive(&a->workers[i]);
        in += worker_is_alive(&a->workers[i]) && segment_in_operation(&a->segment, i);
    }
    if (a->looked_ns && alive)
        a->waited_s += (double)(now - a->looked_ns) / 1e9 * in / alive;
    a->looked_ns = now;
}

/* Seconds since the checkpoint changed; negative: there is none, or it is of an earlier round. */
static double checkpoint_age(const struct agent *a)
{
    struct stat st;
    const struct attempt *now = a->attempts.n ? &a->attempts.e[a->attempts.n - 1] : NULL;
    uint64_t wall = wall_ns();
    if (!a->job->checkpoint_mark || !now)
        return -1;
    uint64_t mark = now->start_wall_ns;
    if (stat(a->job->checkpoint_mark, &st) == 0) {
        uint64_t at = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
        mark = at > mark && at <= wall ? at : mark;
    }
    return wall > mark ? (double)(wall - mark) / 1e9 : 0;
}

/* The workers stop running: what the ledger cannot see in other events. */
static void ledger_event(struct agent *a)
{
    char text[96];
    sample_waiting(a);
    ledger_note(text, sizeof(text), a->waited_s, checkpoint_age(a));
    event(a, (struct event){.name = EVENT_NODE_LEDGER,
                            .pid = (int)getpid(),
                            .rank = -1,
                            .caused_by = -1,
                            .text = text});
    a->looked_ns = 0;
    a->waited_s = 0;
}

/* Collects operations; all: also those under way, because the round ends. */
static void look_at_operations(struct agent *a, struct operations *o, bool all)
{
    const struct rank_table *t = a->ctx.table;
    if (t && a->segment.fd >= 0)
        operations_look(o, &a->segment, a->ctx.group_rank, t->nodes[a->ctx.group_rank].base_rank,
                        all);
}

/* From this process's clock to the coordinator's, by an own event that has come back from there. */
static int64_t clock_offset(const struct agent *a)
{
    for (size_t i = a->log.job.n; i-- > 0;) {
        const struct event *e = &a->log.job.e[i];
        if (memcmp(&e->origin, &a->log.id, sizeof(e->origin)) != 0)
            continue;
        for (size_t k = a->log.own.n; k-- > 0;) {
            if (a->log.own.e[k].seq == e->seq)
                return (int64_t)(e->at_ns - a->log.own.e[k].at_ns);
        }
    }
    return 0; /* it is the same clock */
}

/* Writes the file of --timeline. */
static void write_timeline(struct agent *a)
{
    json_t *events = json_array();
    struct err e = ERR_INIT;
    const struct event *event;
    uint64_t at = 0;
    while ((event = event_list_next(&a->log.job, &at))) {
        char *line = event_json(event);
        json_array_append_new(events, line ? json_loads(line, 0, NULL) : NULL);
        free(line);
    }
    json_t *operations = operations_json(&a->operations, clock_offset(a));
    json_t *trace = timeline_json(events, operations);
    char *text = json_dumps(trace, JSON_COMPACT | JSON_REAL_PRECISION(16));
    if (!text || fs_replace_file(a->job->timeline_path, text, strlen(text), &e) < 0)
        log_error("--timeline: %s", text ? e.msg : "out of memory");
    free(text);
    json_decref(trace);
    json_decref(operations);
    json_decref(events);
}

static void on_event_timer(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, event_timer);
    if (a->fsm.state == RUNNING)
        sample_waiting(a);
    if (a->fsm.state == RUNNING && a->job->timeline_path)
        look_at_operations(a, &a->operations, false);
    for (int i = 0; i < a->job->nproc && a->pump; i++)
        look_for_firsts(a, &a->workers[i]);
}

static void on_log_change(void *arg)
{
    struct agent *a = arg;
    bool awaited = a->log.wanted || a->log.send;
    if (awaited && a->fsm.state == RUNNING && !uv_is_active((uv_handle_t *)&a->event_timer))
        uv_timer_start(&a->event_timer, on_event_timer, 0,
                       a->job->timeline_path ? TIMELINE_MS : EVENT_MS);
    event_file_write(a->event_file, &a->log.job);
    if (mpir_is_wanted() && mpir_take_events(&a->log.job, &a->mpir_at))
        guardian_show(a->link);
    if (a->rdzv)
        rdzv_events_changed(a->rdzv);
    if (a->cb.on_event)
        a->cb.on_event(a->cb.arg);
}

static void state_event(struct agent *a)
{
    event(a, (struct event){.name = EVENT_NODE_STATE,
                            .pid = (int)getpid(),
                            .rank = -1,
                            .caused_by = -1,
                            .text = fsm_name(&a->fsm)});
}

const struct event_log *agent_log(const struct agent *a)
{
    return &a->log;
}

const struct event_list *agent_events(struct agent *a)
{
    if (a->pump && a->fsm.state != DONE)
        on_event_timer(&a->event_timer);
    event_log_want(&a->log);
    return &a->log.job;
}

/* The guardian has a lease while a process of the round may be alive. */
static void set_lease(struct agent *a)
{
    bool any = a->fsm.state == STARTING || a->fsm.state == RUNNING || a->fsm.state == STOPPING;
    guardian_set_lease(a->link, any ? a->lease_ns : 0);
}

/* The only way from one state to another; asserts what the new state promises. */
static void move_to(struct agent *a, int state)
{
    if (a->fsm.state == RUNNING && uv_is_active((uv_handle_t *)&a->event_timer))
        ledger_event(a);
    if (a->fsm.state == RUNNING && a->job->timeline_path) {
        look_at_operations(a, &a->operations, true);
        operations_next_round(&a->operations);
    }
    fsm_move(&a->fsm, state);
    bool round_over = state == EXIT_BARRIER || state == RENDEZVOUS;
    assert(!round_over || (a->nalive == 0 && a->nunread == 0 && a->swept));
    assert(state != EXIT_BARRIER || a->nok == a->job->nproc);
    assert(state != RUNNING || !a->failed);
    assert(state != DONE || a->nalive == 0);
    a->preparing = false; /* only a node in RENDEZVOUS answers on_prepare */
    set_lease(a);
    if (state != DONE) /* the job's `finish` is the last event */
        state_event(a);
    if (state != RUNNING)
        uv_timer_stop(&a->event_timer);
    if (a->hang) {
        a->hang_state = HANG_NONE;
        a->judges = false;
        hang_reset(a->hang, state == RUNNING);
    }
    if (a->slow) {
        a->slow_text[0] = '\0';
        slow_reset(a->slow, state == RUNNING);
    }
    if (a->cb.on_state)
        a->cb.on_state(a->cb.arg);
}

/* Keeps the collective operations that this node's workers are in, for the report, before they end.
 */
static void keep_flight_report(struct agent *a);
/* Keeps these operations for the report and ends them; `first` as in segment_raise(). */
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

/* The same, once the stacks of the workers have been taken for the report. */
static void agent_leave_with_stacks(struct agent *a, enum stop_reason reason, int exit_code,
                                    int signo, const char *text);
static void leave_at_last(struct agent *a);
/* This node leaves the job; the workers get the signal `signo`. */
static void agent_leave(struct agent *a, enum stop_reason reason, int exit_code, int signo,
                        const char *text);
/* Moves to the next state if all workers have ended and all output is read. */
static void agent_go_on_if_over(struct agent *a);

static void keep_flight_report(struct agent *a)
{
    const struct rank_table *t = a->ctx.table;
    if (!a->flight_report && t)
        a->flight_report =
            flight_report_text(&a->segment, t->nodes[a->ctx.group_rank].base_rank, mono_ns());
}

static void agent_raise_abort(struct agent *a, const struct failure *first, const char *text)
{
    const struct rank_table *t = a->ctx.table;
    struct failure lost;
    keep_flight_report(a);
    if (first && first->kind == FAILURE_NODE && t && first->node >= 0 && first->node < t->nnodes &&
        t->nodes[first->node].nproc > 0) {
        lost =
            *first; /* the lowest rank stands for all ranks of the lost node; its pid is unknown */
        lost.rank = t->nodes[first->node].base_rank;
        lost.pid = 0;
        lost.exit_code = -1;
        first = &lost;
    }
    segment_raise(&a->segment, first, text);
}

/* Why the newest round ends. A record of this node's own worker is kept, which is the better one.
 */
static void note_cause(struct agent *a, enum cause cause, const char *text,
                       const struct failure *first)
{
    const struct attempt *e = a->attempts.n ? &a->attempts.e[a->attempts.n - 1] : NULL;
    bool better = e && e->first && first && e->first->rank == first->rank && e->end_wall_ns;
    attempts_cause(&a->attempts, cause, text, better ? NULL : first);
}

static void agent_worker_failed(struct agent *a, struct worker *w)
{
    char text[512];
    bool alone = a->job->rdzv.restart_policy == RESTART_WORKER;
    assert(w->state != WORKER_IDLE && !w->ok);
    if (!alone) { /* first, because other workers wait for this one */
        failure_describe(&w->failure, text, sizeof(text));
        agent_raise_abort(a, &w->failure, text);
    }
    rdzv_failed(a->rdzv, &w->failure);
    if (alone)
        return;
    note_cause(a, cause_of_failure(&w->failure), text, &w->failure);
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
    for (int i = 0; i < a->job->nproc && a->fsm.state == RUNNING; i++) {
        struct worker *w = &a->workers[i];
        int status = w->state == WORKER_RUNNING && exit_notify_has_begun(&a->segment, i)
                         ? exit_notify_status(w->pid)
                         : -1;
        if (status <= 0)
            continue;
        mpi_look(a->mpi, i);
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
    for (int i = 0; i < a->job->nproc; i++) {
        struct worker *w = &a->workers[i];
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
    for (int i = 0; i < a->job->nproc; i++) {
        if (worker_is_alive(&a->workers[i]) && exit_notify_runs(a->workers[i].pid))
            return false;
    }
    return true;
}

/* Descendants that are not the workers': warm interpreters, what looks at stacks and at the node.
 * malloc'ed. */
static pid_t *pids_to_keep(struct agent *a, size_t *n)
{
    const pid_t *warm;
    const pid_t helpers[] = {gatherer_pid(a->gatherer), facts_pid(a->facts)};
    *n = warm_pool_pids(a->warm_pool, &warm);
    pid_t *kept = xcalloc(*n + ARRAY_LEN(helpers), sizeof(*kept));
    if (*n)
        memcpy(kept, warm, *n * sizeof(*kept));
    for (size_t i = 0; i < ARRAY_LEN(helpers); i++) {
        if (helpers[i])
            kept[(*n)++] = helpers[i];
    }
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
    for (int i = 0; i < a->job->nproc; i++)
        worker_signal_group(&a->workers[i], SIGKILL);
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
    for (int i = 0; i < a->job->nproc; i++)
        worker_signal_group(&a->workers[i], signo);
}

/* To the program itself; its helper processes would die of it. */
static void signal_programs(struct agent *a, int signo)
{
    for (int i = 0; i < a->job->nproc; i++) {
        if (worker_is_alive(&a->workers[i]))
            kill(a->workers[i].pid, signo);
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
    if (a->fsm.state == STOPPING || a->fsm.state == DONE)
        return;
    move_to(a, STOPPING);
    agent_signal_workers(a, signo);
    begin_stopping(a, a->job->shutdown_timeout);
}

/* Before the end of the job's time: workers save what they have, together, so that their operations
 * go on, and their helper processes as well. */
static void agent_warn_workers(struct agent *a)
{
    if (a->fsm.state == STOPPING || a->fsm.state == DONE)
        return;
    move_to(a, STOPPING);
    signal_programs(a, a->job->end.signal);
    begin_stopping(a, a->job->end.grace_s);
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
    if (a->pump && a->fsm.state == DONE)
        stdio_pump_hurry(a->pump);
    else if (a->rdzv && a->fsm.state == DONE)
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
    return a->job->end.at_s > 0 && (double)wall_ns() / 1e9 >= a->job->end.at_s - CLOCKS_S;
}

static void stop_by(struct agent *a, enum stop_reason reason, int signo, const char *what)
{
    char text[HOST_MAX + 64];
    enum stop_request request = classify_request(a);
    if (request == SAME_REQUEST)
        log_verbose("received %s as well: the same request", what);
    if (a->fsm.state == DONE) {
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
    if (a->leaving) {
        go_on_stopping(a, what);
        return;
    }
    bool over = is_time_over(a);
    snprintf(text, sizeof(text), "%s received %s%s", a->job->host, what,
             over ? " at the end of the job's time" : "");
    if (a->nalive)
        log_notice("received %s: stopping %d worker%s, SIGKILL after %g s (repeat to kill now)",
                   what, a->nalive, a->nalive == 1 ? "" : "s", a->job->shutdown_timeout);
    if (over)
        agent_leave(a, STOP_TIME_LIMIT, EXIT_TIME_LIMIT, signo, text);
    else if (signo == SIGQUIT)
        agent_leave_with_stacks(a, reason, 128 + signo, signo, text);
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
    if (a->job->rdzv.max_nodes + a->job->rdzv.spares > 1) {
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
    if (job_is_stopped_by(a->job, signo)) {
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
    uv_signal_init(a->loop, s);
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
    agent_signals(a->job, signals);
    uvx_scope_init(&a->signal_scope, a->loop);
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
    if (a->fsm.state == DONE)
        return;
    a->leaving = true;
    snprintf(a->stop_text, sizeof(a->stop_text), "%s", text);
    if (a->fsm.state == RUNNING)
        keep_flight_report(a);
    rdzv_leave(a->rdzv, reason, exit_code, text);
    agent_stop_workers(a, signo);
}

/* --end_warning: the job stops before the scheduler ends it. Of all launchers that know the time
 * the first one to see it ends the job on all nodes. */
static void on_end_timer(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, end_timer);
    double left_s = a->job->end.at_s - (double)wall_ns() / 1e9;
    char text[128], name[24];
    if (a->fsm.state == DONE || a->leaving)
        return;
    if (left_s > a->job->end.warn_s) { /* this clock was set meanwhile */
        uv_timer_start(t, on_end_timer, (uint64_t)((left_s - a->job->end.warn_s) * 1000) + 1, 0);
        return;
    }
    snprintf(text, sizeof(text), "the job's time ends in %.0f s (--end_warning)", left_s);
    if (a->nalive)
        log_notice("%s: %s to %d worker%s, SIGKILL after %g s", text,
                   signal_name(a->job->end.signal, name), a->nalive, a->nalive == 1 ? "" : "s",
                   a->job->end.grace_s);
    a->leaving = true;
    snprintf(a->stop_text, sizeof(a->stop_text), "%s", text);
    rdzv_leave(a->rdzv, STOP_TIME_LIMIT, EXIT_TIME_LIMIT, text);
    agent_warn_workers(a);
}

static void answer_prepare(void *arg);

/* This node cannot do its part: no descriptor, no memory, no disk. */
static void give_up(struct agent *a, const struct err *e)
{
    char text[ERR_MSG_MAX + HOST_MAX];
    snprintf(text, sizeof(text), "%s: %s", a->job->host, e->msg);
    log_error("%s", e->msg);
    agent_leave(a, STOP_INTERNAL, 125, SIGTERM, text);
}

/* --preflight: what is wrong with this node. One on which workers could not run leaves the job. */
static void on_preflight(void *arg, json_t *facts, const char *why)
{
    struct agent *a = arg;
    struct problems all = {0};
    struct err e = ERR_INIT;
    if (!facts)
        log_warn("--preflight: the node could not be checked: %s", why);
    else
        checks_of_node(facts, &all);
    for (size_t i = 0; i < all.n; i++) {
        const struct problem *p = &all.p[i];
        char *text = xasprintf("%s: %s; %s", p->check, p->text, p->remedy);
        event(a, (struct event){.name = EVENT_NODE_PROBLEM,
                                .pid = (int)getpid(),
                                .rank = -1,
                                .caused_by = -1,
                                .text = text});
        if (p->stops && !e.code)
            err_set(&e, -EINVAL, "--preflight: %s", text);
        else
            log_warn("--preflight: %s", text);
        free(text);
    }
    problems_fini(&all);
    a->facts_ready = true;
    if (e.code && a->preparing)
        give_up(a, &e);
    else
        answer_prepare(a);
}

static void on_facts_closed(void *arg)
{
    (void)arg; /* of an earlier round */
}

static void preflight(struct agent *a)
{
    a->facts_ready = !a->job->doctor.preflight || !a->job->nproc;
    if (a->facts_ready)
        return;
    facts_close(a->facts, on_facts_closed, a);
    json_t *question = facts_question(a->job, true);
    a->facts = facts_start(a->loop, a->spawner, question, on_preflight, a);
    json_decref(question);
}

/* Answers on_prepare once this host's own name is looked up, and the node and its GPUs, if any, are
 * fit. */
static void answer_prepare(void *arg)
{
    struct agent *a = arg;
    if (!a->preparing || !hostname_check_settled(a->hostname_check) || !a->facts_ready ||
        (a->gpus && !a->gpus_ready))
        return;
    a->preparing = false;
    uint16_t *ports = xcalloc((size_t)a->job->nproc, sizeof(*ports));
    for (int i = 0; i < a->job->nproc; i++)
        ports[i] = a->workers[i].port;
    rdzv_prepared(a->rdzv, ports, a->job->nproc);
    free(ports);
}

static void on_gpus_ready(void *arg, const struct err *e)
{
    struct agent *a = arg;
    if (e && a->preparing) {
        a->preparing = false;
        give_up(a, e);
        return;
    }
    a->gpus_ready = true;
    preflight(a); /* now that the last round's memory is free */
    answer_prepare(a);
}

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    struct agent *a = arg;
    struct err e = ERR_INIT;
    log_verbose("round %u: this is node %d of %d", gen.counter, group_rank, nnodes);
    a->stop_reported = a->gpus_ready = false;
    a->gpu_faults = GPUS_NOT_ASKED;
    for (int i = 0; i < a->job->nproc; i++) {
        struct worker *w = &a->workers[i];
        close_fd(&w->listen_fd);
        w->listen_fd = data_socket_listen(i, nnodes == 1, &w->port, &e);
        if (w->listen_fd < 0) {
            give_up(a, &e);
            return;
        }
    }
    a->preparing = a->fsm.state == RENDEZVOUS;
    a->facts_ready = false;
    if (!a->gpus)
        preflight(a);
    if (a->gpus)
        gpu_watch_ask(a->gpus, GPU_ASK_READY, on_gpus_ready, a);
    answer_prepare(a);
}

static void start_worker(struct agent *a, struct worker *w)
{
    struct err e = ERR_INIT;
    if (worker_start(w, &a->ctx, w, &e) < 0) {
        spawn_settle(a->spawner);
        worker_event(a, w, EVENT_WORKER_FINISH, 0);
        a->nunread += w->state == WORKER_EXITED;
        agent_worker_failed(a, w);
        return;
    }
    a->nalive++;
    a->nunread++;
    a->killed_ns = 0;
    a->swept = false;
    atomic_store_explicit(&a->link->page->nworkers, (uint32_t)a->nalive, memory_order_relaxed);
    worker_event(a, w, EVENT_WORKER_START, w->started_ns);
    log_verbose("rank %d (local rank %d) is pid %d%s", w->rank, w->local_rank, w->pid,
                w->warm ? ", warm" : "");
}

static void forget_env(struct agent *a)
{
    int n = a->job->programs ? a->job->programs->n : 1;
    for (int i = 0; a->env && i < n; i++) {
        worker_env_shared_free(a->env[i]);
        a->env[i] = NULL;
    }
}

static int prepare_round(struct agent *a, struct err *e)
{
    if (programs_check(a->job->programs, a->ctx.table->world_size, e) < 0)
        return e->code;
    exit_notify_unwatch(a->exit_notify);
    segment_close(&a->segment);
    free(a->flight_report);
    a->flight_report = NULL;
    forget_env(a);
    if (a->cgroup.killed) {
        cgroup_renew(&a->cgroup);
        guardian_set_path(a->link->page->cgroup, a->cgroup.path);
    }
    if (segment_open(&a->segment, a->ctx.table, a->ctx.group_rank, a->usable_cpus, e) < 0)
        return e->code;
    if (a->slow)
        segment_watch(&a->segment);
    return log_dir_attempt(&a->log_dir, a->ctx.restart_count, a->job->nproc, e);
}

/* Starts the workers of the round, at once or when a warm interpreter is ready. */
static void start_workers(struct agent *a)
{
    const struct rank_table *table = a->ctx.table;
    for (int i = 0; i < a->job->nproc && a->fsm.state == STARTING; i++)
        start_worker(a, &a->workers[i]);
    spawn_settle(a->spawner);
    if (a->oom.fd < 0) /* after the start, so that the workers do not wait for it */
        oom_open(&a->oom);
    else
        oom_happened(&a->oom); /* resets the count: earlier kills were not of these workers */
    if (a->fsm.state == STARTING)
        move_to(a, RUNNING);
    if (a->ctx.group_rank == 0)
        trainer_status_report(a->trainer, "running", table->nnodes, table->world_size,
                              table->restart_count);
    if (a->fsm.state == RUNNING)
        warm_pool_fill(a->warm_pool);
    if (a->ctx.restart_count == 0) { /* now that the workers run */
        log_dir_sweep(&a->log_dir);
        file_timer_sweep(a->file_timer);
    }
}

static void on_warm_settled(void *arg)
{
    struct agent *a = arg;
    if (a->fsm.state == STARTING) /* else the round has been stopped */
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
    if (a->fsm.state != RENDEZVOUS)
        return; /* the node was asked to stop meanwhile */
    move_to(a, STARTING);
    a->ctx.table = table;
    a->ctx.group_rank = group_rank;
    a->ctx.restart_count = table->restart_count;
    a->ctx.store_port = rdzv_relay_port(a->rdzv);
    a->world_size = table->world_size;
    a->ctx.ifname = hostname_check_interface(a->hostname_check, table, group_rank);
    a->nok = 0;
    a->failed = false;
    for (int i = 0; i < a->job->nproc; i++)
        a->workers[i].state = WORKER_IDLE;
    if (prepare_round(a, &e) < 0 || mpi_begin(a->mpi, table, group_rank, a->usable_cpus, &e) < 0) {
        give_up(a, &e);
        return;
    }
    if (a->job->rdzv.restart_policy == RESTART_GROUP)
        exit_notify_watch(a->exit_notify, &a->segment);
    attempts_begin(&a->attempts, table, group_rank,
                   a->log_dir.run[0] && !a->log_dir.flat ? a->log_dir.attempt : "", wall_ns());
    stdio_set_filtered_dir(a->pump, a->log_dir.run[0] ? a->log_dir.attempt : NULL);
    if (a->job->job_console)
        stdio_begin_job(a->pump, ranks_shown(a->job, a->world_size));
    if (warm_pool_await(a->warm_pool))
        log_verbose("the first workers wait for a warm interpreter");
    else
        start_workers(a);
}

static void respawn(struct agent *a, struct worker *w)
{
    struct err e = ERR_INIT;
    a->ctx.restart_count = w->respawn;
    w->respawn = 0;
    forget_env(a);
    log_verbose("starting rank %d again", w->rank);
    if (log_dir_attempt(&a->log_dir, a->ctx.restart_count, a->job->nproc, &e) < 0)
        give_up(a, &e);
    else
        start_worker(a, w);
    spawn_settle(a->spawner);
    warm_pool_fill(a->warm_pool);
}

static void on_respawn(void *arg, int local_rank, int restart_count)
{
    struct agent *a = arg;
    if (a->fsm.state != RUNNING || local_rank < 0 || local_rank >= a->job->nproc)
        return;
    struct worker *w = &a->workers[local_rank];
    w->respawn = restart_count;
    if (w->state == WORKER_CLOSED && !w->ok)
        respawn(a, w); /* else on_drained() starts it again */
}

/* -------------------------------------------------------------------------------- MPI programs */

/* The number of a request for values, as TOP_ID and SLOW_ID are; requests for stacks count from 1.
 */
#define MODEX_ID (UINT64_C(1) << 62)

static void on_mpi_fence(void *arg, const void *value, size_t len)
{
    struct agent *a = arg;
    if (a->fsm.state == RUNNING)
        rdzv_gather(a->rdzv, value, len);
}

static void on_gathered(void *arg, struct rd values, int nnodes)
{
    struct agent *a = arg;
    if (a->fsm.state == RUNNING)
        mpi_gathered(a->mpi, values, nnodes);
}

static bool on_mpi_modex(void *arg, int rank, uint64_t id)
{
    struct agent *a = arg;
    struct rdzv_request r = {.kind = REQUEST_MODEX, .id = MODEX_ID | id, .text = "data are wanted"};
    snprintf(r.ranks, sizeof(r.ranks), "%d", rank);
    return rdzv_request(a->rdzv, &r);
}

static void on_mpi_modex_found(void *arg, const struct node_id *to, uint64_t id, const void *data,
                               size_t len)
{
    struct agent *a = arg;
    const struct rdzv_answer answer = {
        .to = *to, .id = id, .data = data, .len = len <= RDZV_ANSWER_MAX ? len : 0};
    rdzv_answer(a->rdzv, &answer);
}

/* The process itself ends by the signal that stops the others. */
static void on_mpi_abort(void *arg, int local_rank, int exit_code, const char *how)
{
    struct agent *a = arg;
    struct worker *w = &a->workers[local_rank];
    if (a->fsm.state != RUNNING || w->state != WORKER_RUNNING)
        return;
    worker_aborted(w, &a->ctx, exit_code, how);
    agent_worker_failed(a, w);
}

/* --------------------------------------------------------------------------- a worker has ended */

static void on_worker_exit(void *arg, void *tag, const struct reaper_exit *x)
{
    struct agent *a = arg;
    struct worker *w = tag;
    mpi_look(a->mpi, w->local_rank);
    bool stopping =
        a->fsm.state == STOPPING; /* true as well if on_worker_exiting() has reported its failure */
    if (!worker_is_alive(w))
        return; /* abandon() has counted it as ended */
    worker_exited(w, &a->ctx, x,
                  !stopping      ? ASKED_NOTHING
                  : a->killed_ns ? ASKED_BY_SIGKILL
                  : a->failed    ? ASKED_FOR_FAILURE
                                 : ASKED_TO_STOP);
    a->nalive--;
    look_for_firsts(a, w);
    const char *fault = w->ok && !stopping ? mpi_exit_fault(a->mpi, w->local_rank) : NULL;
    if (fault)
        worker_aborted(w, &a->ctx, 0, fault);
    worker_event(a, w, EVENT_WORKER_FINISH, x->seen_ns);
    if (w->ok) {
        a->nok++;
        segment_exited(&a->segment, w->local_rank);
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

static void on_gpu_faults(void *arg, const struct err *e);

/* Puts the report about a failed worker's GPU in front of the worker's message. */
static void add_gpu_note(struct agent *a, struct worker *w)
{
    char note[512], *rest = xstrdup(w->failure.message);
    if (*gpu_watch_note(a->gpus, w->local_rank, w->pid, note, sizeof(note)))
        text_set(w->failure.message, sizeof(w->failure.message), "%s%s%s", note, *rest ? "\n" : "",
                 rest);
    free(rest);
}

/* The failure that the round stopped for is on this node: by now its record is complete. */
static void keep_first_failure(struct agent *a, const struct worker *w)
{
    const struct attempt *e = a->attempts.n ? &a->attempts.e[a->attempts.n - 1] : NULL;
    if (e && e->first && e->first->rank == w->rank && w->failure.kind != FAILURE_STOPPED)
        *e->first = w->failure;
}

static void report_stopped(struct agent *a)
{
    uv_timer_stop(&a->grace_timer);
    exit_notify_unwatch(a->exit_notify);
    segment_close(&a->segment);
    move_to(a, RENDEZVOUS);
    a->stop_reported = true;
    attempts_end(&a->attempts, wall_ns());
    struct failure *all = xcalloc((size_t)a->job->nproc, sizeof(*all));
    size_t n = 0;
    for (int i = 0; i < a->job->nproc; i++) {
        struct worker *w = &a->workers[i];
        if (w->state != WORKER_CLOSED || (w->ok && !a->failed)) /* else an early exit */
            continue;
        if (a->gpus && w->failure.kind != FAILURE_STOPPED)
            add_gpu_note(a, w);
        all[n++] = w->failure;
        keep_first_failure(a, w);
    }
    rdzv_stopped(a->rdzv, all, n);
    free(all);
}

/* The round is over on this node when no process of it is alive and all output is read. */
static void agent_go_on_if_over(struct agent *a)
{
    if (a->nalive || a->nunread || !a->swept)
        return;
    if (a->fsm.state == RUNNING && a->nok == a->job->nproc) {
        move_to(a, EXIT_BARRIER);
        rdzv_done(a->rdzv);
    } else if (a->fsm.state == STOPPING && a->gpus && a->gpu_faults == GPUS_NOT_ASKED) {
        a->gpu_faults = GPUS_ASKED;
        gpu_watch_ask(a->gpus, GPU_ASK_FAILURES, on_gpu_faults, a);
    } else if (a->fsm.state == STOPPING && a->gpu_faults != GPUS_ASKED) {
        report_stopped(a);
    }
}

static void on_gpu_faults(void *arg, const struct err *e)
{
    struct agent *a = arg;
    (void)e;
    assert(a->gpu_faults == GPUS_ASKED);
    a->gpu_faults = GPUS_ANSWERED;
    agent_go_on_if_over(a);
}

static void on_drained(void *arg, int local_rank)
{
    struct agent *a = arg;
    struct worker *w = &a->workers[local_rank];
    if (w->state != WORKER_EXITED)
        return;
    worker_closed(w, &a->ctx);
    look_for_firsts(a, w); /* output that was read after the exit */
    a->nunread--;
    if (w->respawn && a->fsm.state == RUNNING)
        respawn(a, w);
    else
        agent_go_on_if_over(a);
}

static void on_stop(void *arg, const struct rdzv_stop *why)
{
    struct agent *a = arg;
    const struct failure *first = why->has_first ? &why->first : NULL;
    if (why->restarting && why->reason == STOP_FAILURE)
        log_notice("%s; restart %d of %d", why->text, a->ctx.restart_count + 1,
                   a->job->rdzv.max_restarts);
    else
        log_notice(why->restarting ? "%s; restarting" : "%s", why->text);
    if (a->fsm.state != RENDEZVOUS || a->stop_reported)
        note_cause(a, cause_of_stop(why->reason, first), why->text, first);
    if (a->stop_reported)
        return;
    if (a->fsm.state == RENDEZVOUS) {
        a->preparing = false;
        a->stop_reported = true;
        rdzv_stopped(a->rdzv, NULL, 0);
        return;
    }
    a->failed |= why->has_first;
    if (!why->restarting)
        snprintf(a->stop_text, sizeof(a->stop_text), "%s", why->text);
    if (why->restarting && a->ctx.group_rank == 0)
        trainer_status_report(a->trainer, "restarting", a->ctx.table->nnodes, a->world_size,
                              a->ctx.restart_count);
    if (why->reason == STOP_TIME_LIMIT && a->job->end.warn_s > 0) {
        agent_warn_workers(a);
        return;
    }
    agent_raise_abort(a, why->has_first ? &why->first : NULL, why->text);
    agent_stop_workers(a, SIGTERM);
}

/* ---------------------------------------------------------------------------- requests of users */

/* -------------------------------------------------------------------------------------- stacks */

static bool is_in_round(const struct agent *a)
{
    return a->ctx.table && a->fsm.state != RENDEZVOUS && a->fsm.state != DONE;
}

static void get_gather_node(void *arg, struct gather_node *out)
{
    struct agent *a = arg;
    size_t n = 0;
    for (int i = 0; i < a->job->nproc; i++) {
        if (is_in_round(a) && worker_is_alive(&a->workers[i]))
            a->sampled[n++] = (struct sampler_worker){a->workers[i].rank, a->workers[i].pid,
                                                      segment_ops(&a->segment, i) > 0};
    }
    *out = (struct gather_node){.table = is_in_round(a) ? a->ctx.table : NULL,
                                .group_rank = a->ctx.group_rank,
                                .host = a->job->host,
                                .workers = a->sampled,
                                .n = n};
}

/* Adds what the flight recorder knows, and what is usual. */
static void complete_sample(void *arg, struct sample *s)
{
    struct agent *a = arg;
    for (int i = 0; i < a->job->nproc; i++) {
        struct segment_op op;
        if (a->workers[i].rank != s->rank)
            continue;
        s->patient = a->hang && hang_is_patient(a->hang, i);
        if (!flight_report_current(&a->segment, i, &op))
            continue;
        uint64_t now = mono_ns(), since = op.end_ns ? op.end_ns : op.start_ns;
        s->op = (struct sample_op){.number = op.number,
                                   .group = op.group,
                                   .seq = op.seq,
                                   .age_ms = now > since ? (now - since) / 1000000 : 0,
                                   .open = !op.end_ns && op.device != SEGMENT_OP_ENQUEUED};
        flight_report_operation(&a->segment, i, s->op.text, sizeof(s->op.text));
    }
}

static bool gather_request(void *arg, const struct rdzv_request *r)
{
    struct agent *a = arg;
    return a->rdzv && rdzv_request(a->rdzv, r);
}

static void gather_answer(void *arg, const struct rdzv_answer *answer)
{
    struct agent *a = arg;
    if (a->rdzv)
        rdzv_answer(a->rdzv, answer);
}

static struct gatherer *agent_gatherer(struct agent *a)
{
    const struct gather_callbacks cb = {.arg = a,
                                        .get_node = get_gather_node,
                                        .complete = complete_sample,
                                        .request = gather_request,
                                        .answer = gather_answer};
    if (!a->gatherer) {
        a->sampled = xcalloc((size_t)a->job->nproc, sizeof(*a->sampled));
        a->gatherer = gatherer_new(a->loop, a->spawner, &cb);
    }
    return a->gatherer;
}

/* --------------------------------------------------------------------------------- dlaunchctl top
 */

#define TOP_OPS     UINT64_C(1)         /* a request with TOP_ID is for the last operations */
#define TOP_EVERY   UINT64_C(500000000) /* between two of these requests */
#define TOP_FRESH_S 5                   /* an older answer is of a node that has gone */

static int own_number(const struct agent *a)
{
    return a->ctx.table ? a->ctx.group_rank : 0;
}

static void fill_top_rank(struct agent *a, const struct agent_worker_status *s, struct top_rank *k)
{
    struct segment_last_op op;
    struct gpu_usage gpu;
    double bytes;
    uint64_t now = mono_ns(), at = stdio_worker_last_ns(a->pump, s->local_rank);
    k->rank = s->rank;
    k->node = own_number(a);
    k->local_rank = s->local_rank;
    k->pid = s->pid;
    k->elapsed_s = s->seconds;
    k->cpu_s = k->output_age_s = -1;
    snprintf(k->state, sizeof(k->state), "%s", s->state);
    if (s->program) { /* of a long path its end */
        size_t len = strlen(s->program), max = sizeof(k->program) - 1;
        snprintf(k->program, sizeof(k->program), "%s", s->program + (len > max ? len - max : 0));
    }
    if (strcmp(s->state, "running") != 0)
        return;
    if (usage_read(s->pid, &k->cpu_s, &bytes))
        k->memory = (uint64_t)bytes;
    if (at)
        k->output_age_s = now > at ? (double)(now - at) / 1e9 : 0;
    if (a->gpus && gpu_watch_usage(a->gpus, s->local_rank, &gpu)) {
        k->has_gpu = true;
        k->gpu_memory = gpu.used;
        k->gpu_memory_total = gpu.total;
        k->gpu_percent = gpu.percent;
    }
    k->relative = s->relative;
    k->own = s->own;
    if (segment_last_op(&a->segment, s->local_rank, now, &op)) {
        k->has_op = true;
        flight_report_operation(&a->segment, s->local_rank, k->op_name, sizeof(k->op_name));
        k->op_number = op.seq;
        k->op_open = op.open;
        k->op_age_s = (double)op.age_ms / 1e3;
    }
}

static void own_top_rows(void *arg, struct top_rows *rows)
{
    struct agent *a = arg;
    struct top_node *n = top_rows_add_node(rows);
    struct agent_status s;
    agent_get_status(a, &s);
    if (a->gpus) /* what is there now is of the last time */
        gpu_watch_look(a->gpus);
    n->node = own_number(a);
    snprintf(n->host, sizeof(n->host), "%s", a->job->host);
    snprintf(n->state, sizeof(n->state), "%s", s.state);
    for (int i = 0; i < s.nworkers && a->pump; i++) {
        struct top_rank *k = top_rows_add_rank(rows);
        fill_top_rank(a, &s.workers[i], k);
        n->nworkers++;
        if (strcmp(k->state, "running") != 0)
            continue;
        n->nrunning++;
        n->cpu_s += k->cpu_s > 0 ? k->cpu_s : 0;
        n->memory += k->memory;
        n->elapsed_s = k->elapsed_s > n->elapsed_s ? k->elapsed_s : n->elapsed_s;
    }
    rows->nrunning += (uint32_t)n->nrunning;
}

struct top_request {
    struct agent *a;
    uint64_t asked_ns;
    void (*on_done)(void *arg, struct json_t *top);
    void *arg;
};

static void on_top(void *arg, const struct top_rows *rows, bool complete)
{
    struct top_request *q = arg;
    struct agent *a = q->a;
    struct agent_status s;
    json_t *j = NULL;
    if (rows) {
        agent_get_status(a, &s);
        j = json_pack("{s:f,s:s,s:f,s:i,s:i,s:b}", "now_s", (double)q->asked_ns / 1e9, "state",
                      s.state, "elapsed_s", s.elapsed, "restarts", s.rdzv.restart_count, "nnodes",
                      s.rdzv.nnodes > 1 ? s.rdzv.nnodes : 1, "complete", (int)complete);
        top_rows_json(rows, j);
    }
    q->on_done(q->arg, j);
    free(q);
}

void agent_top(struct agent *a, size_t most, void (*on_done)(void *arg, struct json_t *top),
               void *arg)
{
    struct top_request *q = xcalloc(1, sizeof(*q));
    struct agent_status s;
    agent_get_status(a, &s);
    *q = (struct top_request){.a = a, .asked_ns = mono_ns(), .on_done = on_done, .arg = arg};
    top_ask(a->tops, a->fsm.state == DONE ? 1 : s.rdzv.nnodes, most, on_top, q);
}

static bool is_own_node(const struct agent *a, const json_t *node)
{
    return json_integer_value(json_object_get(node, "node")) == own_number(a);
}

/* Takes the object. */
static void keep_operations(struct agent *a, json_t *node)
{
    char key[24];
    snprintf(key, sizeof(key), "%d", (int)json_integer_value(json_object_get(node, "node")));
    if (!a->told_operations)
        a->told_operations = json_object();
    json_object_set_new(node, "at", json_real((double)mono_ns() / 1e9));
    json_object_set_new(a->told_operations, key, node);
}

/* The last operations of this node's workers. */
static json_t *own_operations(struct agent *a, int64_t offset_ns)
{
    struct operations now = {0};
    look_at_operations(a, &now, true);
    json_t *j = operations_json(&now, offset_ns);
    operations_fini(&now);
    return j;
}

/* An answer has the times of its operations since its own sending, so that clocks do not matter. */
static void answer_operations(struct agent *a, const struct rdzv_request *r)
{
    json_t *j = own_operations(a, -(int64_t)mono_ns());
    json_object_set_new(j, "node", json_integer(own_number(a)));
    char *text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    if (text && strlen(text) <= RDZV_ANSWER_MAX) {
        const struct rdzv_answer answer = {
            .to = r->from, .id = r->id, .data = (uint8_t *)text, .len = strlen(text)};
        rdzv_answer(a->rdzv, &answer);
    }
    free(text);
}

/* Adds the operations of an answer, on the coordinator's clock. */
static void add_operations(json_t *list, const json_t *node, int64_t offset_ns)
{
    static const char *const times[] = {"start_s", "end_s"};
    double zero = json_number_value(json_object_get(node, "at")) + (double)offset_ns / 1e9;
    json_t *op;
    size_t i;
    json_array_foreach(json_object_get(node, "operations"), i, op)
    {
        json_t *copy = json_copy(op);
        for (size_t k = 0; k < ARRAY_LEN(times); k++) {
            const json_t *t = json_object_get(op, times[k]);
            if (t)
                json_object_set_new(copy, times[k], json_real(zero + json_number_value(t)));
        }
        json_array_append_new(list, copy);
    }
}

json_t *agent_operations(struct agent *a)
{
    const struct rdzv_request r = {
        .kind = REQUEST_TOP, .id = TOP_ID | TOP_OPS, .text = "operations are wanted"};
    int64_t offset_ns = clock_offset(a);
    json_t *all = own_operations(a, offset_ns), *node;
    uint64_t now = mono_ns();
    const char *key;
    int answered = 1;
    if (a->fsm.state != DONE && now - a->operations_asked_ns >= TOP_EVERY &&
        rdzv_request(a->rdzv, &r))
        a->operations_asked_ns = now;
    json_object_foreach(a->told_operations, key, node)
    {
        double age = (double)now / 1e9 - json_number_value(json_object_get(node, "at"));
        if (age > TOP_FRESH_S || is_own_node(a, node))
            continue;
        add_operations(json_object_get(all, "operations"), node, offset_ns);
        answered++;
    }
    json_object_set_new(all, "answered", json_integer(answered));
    return all;
}

static void on_operations_answer(struct agent *a, const struct rdzv_answer *answer)
{
    json_t *node = json_loadb((const char *)answer->data, answer->len, 0, NULL);
    if (json_is_array(json_object_get(node, "operations")) &&
        json_is_integer(json_object_get(node, "node")))
        keep_operations(a, json_incref(node));
    json_decref(node);
}

static void on_answer(void *arg, const struct rdzv_answer *answer)
{
    struct agent *a = arg;
    if (answer->id & TOP_ID) {
        if (answer->id & TOP_ROWS)
            top_on_answer(a->tops, answer);
        else
            on_operations_answer(a, answer);
        return;
    }
    if (answer->id & MODEX_ID) {
        mpi_modex_found(a->mpi, answer->id & ~MODEX_ID, answer->data, answer->len);
        return;
    }
    if (answer->id & SLOW_ID) {
        if (a->slow)
            slow_on_answer(a->slow, answer);
        return;
    }
    if (a->gatherer)
        gatherer_on_answer(a->gatherer, answer);
}

/* Answers of several nodes, on their way to the node that has asked. */
static bool merge_answers(void *arg, uint64_t id, const struct rdzv_answers *answers,
                          struct buf *out)
{
    (void)arg;
    if (id & TOP_ID)
        return id & TOP_ROWS && top_merge(id, answers, out);
    return !(id & (MODEX_ID | SLOW_ID)) && gather_merge(id, answers, out);
}

struct stacks_request {
    void (*on_done)(void *arg, struct json_t *stacks);
    void *arg;
    char ranks[224];
};

static void on_stacks(void *arg, const struct samples *all)
{
    struct stacks_request *q = arg;
    struct samples some = {0};
    struct stack_tree tree = {0};
    json_t *j = NULL;
    if (all) {
        some.s = xcalloc(all->n, sizeof(*some.s)); /* borrows what is in the samples */
        for (size_t i = 0; i < all->n; i++) {
            if (!*q->ranks || parse_has(q->ranks, all->s[i].rank))
                some.s[some.n++] = all->s[i];
        }
        stack_tree_add(&tree, &some);
        char *text = stack_tree_text(&tree, &some);
        j = stack_tree_json(&tree, &some);
        json_object_set_new(j, "text", json_of_text(text));
        free(text);
        stack_tree_fini(&tree);
        free(some.s);
    }
    q->on_done(q->arg, j);
    free(q);
}

void agent_stacks(struct agent *a, const char *ranks,
                  void (*on_done)(void *arg, struct json_t *stacks), void *arg)
{
    struct stacks_request *q = xcalloc(1, sizeof(*q));
    q->on_done = on_done;
    q->arg = arg;
    snprintf(q->ranks, sizeof(q->ranks), "%s", ranks);
    gather(agent_gatherer(a), true, on_stacks, q);
}

static void leave_at_last(struct agent *a)
{
    const struct leave_request q = a->last_look;
    if (!q.waits)
        return;
    a->last_look.waits = false;
    agent_leave(a, q.reason, q.exit_code, q.signo, q.text);
}

static void keep_stacks(struct agent *a, const struct samples *all)
{
    struct stack_tree tree = {0};
    free(a->stacks);
    stack_tree_add(&tree, all);
    a->stacks = stack_tree_text(&tree, all);
    stack_tree_fini(&tree);
}

#define LAST_ANSWERS_MS      300 /* after --timeout, for the other nodes to ask for stacks */
#define LAST_ANSWERS_LOOK_MS 10  /* between two looks for that */

static void on_last_answers(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, job_timer);
    if (a->last_look.waits && gatherer_answers(a->gatherer) < a->last_look.answers &&
        uv_now(a->loop) - a->last_look.since_ms < LAST_ANSWERS_MS)
        return;
    uv_timer_stop(t);
    leave_at_last(a);
}

/* The other nodes run into --timeout at the same time, and ask for this node's stacks, too: its end
 * stops the workers that they want to see. */
static void on_last_look(void *arg, const struct samples *all)
{
    struct agent *a = arg;
    if (all && all->n)
        keep_stacks(a, all);
    if (!all)
        return;
    if (a->last_look.reason != STOP_TIMEOUT) {
        leave_at_last(a);
        return;
    }
    a->last_look.since_ms = uv_now(a->loop);
    uv_timer_start(&a->job_timer, on_last_answers, 0, LAST_ANSWERS_LOOK_MS);
}

/* In a large job whose nodes all run into --timeout at once only the coordinator's node asks the
 * others. */
static void agent_leave_with_stacks(struct agent *a, enum stop_reason reason, int exit_code,
                                    int signo, const char *text)
{
    enum { SMALL_JOB = 32 };
    struct rdzv_info info;
    if (a->fsm.state != RUNNING || !a->nalive || a->last_look.waits) {
        agent_leave(a, reason, exit_code, signo, text);
        return;
    }
    a->last_look = (struct leave_request){
        .waits = true, .reason = reason, .exit_code = exit_code, .signo = signo};
    snprintf(a->last_look.text, sizeof(a->last_look.text), "%s", text);
    rdzv_get_info(a->rdzv, &info);
    bool small = info.nnodes <= SMALL_JOB;
    int askers = info.nnodes < 2 ? 0 : small ? info.nnodes : 1; /* this node is one of them */
    a->last_look.answers = gatherer_answers(agent_gatherer(a)) + askers;
    gather(agent_gatherer(a), info.coordinator || small, on_last_look, a);
}

/* --------------------------------------------------------------------------------------- hangs */

static uint64_t kind_of_op(const struct segment_last_op *op)
{
    return op->group * 31 + op->bytes;
}

static bool get_op(void *arg, int local_rank, uint64_t number, struct hang_signs *out)
{
    struct agent *a = arg;
    struct segment_last_op op;
    if (!segment_numbered_op(&a->segment, local_rank, number, 0, &op))
        return false;
    out->kind = kind_of_op(&op);
    out->at_ns = op.start_ns;
    return true;
}

static bool get_signs(void *arg, int local_rank, struct hang_signs *out)
{
    struct agent *a = arg;
    const struct worker *w = &a->workers[local_rank];
    struct segment_last_op op;
    if (w->state != WORKER_RUNNING)
        return false;
    *out = (struct hang_signs){.output = stdio_worker_last_ns(a->pump, local_rank)};
    if (segment_last_op(&a->segment, local_rank, 0, &op)) {
        out->ops = op.number;
        out->kind = kind_of_op(&op);
        out->at_ns = op.start_ns > out->output ? op.start_ns : out->output;
    } else if ((out->ops = segment_ops(&a->segment, local_rank)) == 0) {
        struct sockets_traffic t =
            sockets_traffic(a->sockets, local_rank, w->pid, a->ctx.table->master_port, mono_ns());
        out->cpu_ms = kernel_side_cpu_ms(w->pid);
        out->traffic = t.bytes;
        out->at_ns = t.at_ns > out->output ? t.at_ns : out->output;
        out->sent = t.sent;
        out->sent_ns = t.sent_ns;
    }
    return true;
}

static bool leads(void *arg)
{
    struct rdzv_info info;
    rdzv_get_info(((struct agent *)arg)->rdzv, &info);
    return info.coordinator;
}

static bool judges(void *arg)
{
    return ((struct agent *)arg)->judges || leads(arg);
}

/* A coordinator without workers is in no round: it asks the first node to judge in its place. */
static void on_suspicion(struct agent *a, const struct rdzv_request *r)
{
    enum { IN_PLACE = 1 };
    struct rdzv_request again = *r;
    again.signal = IN_PLACE;
    if (!a->job->nproc && r->signal != IN_PLACE && leads(a))
        rdzv_request(a->rdzv, &again);
    if (!a->hang || a->fsm.state != RUNNING)
        return;
    a->judges |= r->signal == IN_PLACE && a->ctx.group_rank == 0;
    hang_on_suspicion(a->hang, r);
}

static struct gatherer *hang_gatherer(void *arg)
{
    return agent_gatherer(arg);
}

/* Takes over the verdict about a hang that the coordinator's node has sent to every node. Another
 * one is more exact: a node has answered after all. */
static void take_hang(struct agent *a, const struct rdzv_request *r)
{
    bool hung = r->signal == HANG_HUNG;
    enum hang_state state = hung ? HANG_HUNG : HANG_SUSPECT;
    if (a->hang_state > state || (a->hang_state == state && strcmp(a->hang_text, r->text) == 0))
        return;
    a->hang_state = state;
    snprintf(a->hang_text, sizeof(a->hang_text), "%s", r->text);
    hang_declared(a->hang);
    if (hung)
        log_warn("the job hangs: %s (dlaunchctl stacks shows all ranks)", r->text);
    else
        log_verbose("the job may hang: %s", r->text);
    for (int i = 0; i < a->job->nproc && hung && r->id && *r->ranks; i++) {
        struct worker *w = &a->workers[i];
        if (!worker_is_alive(w) || !parse_has(r->ranks, w->rank))
            continue;
        snprintf(w->killed_for, sizeof(w->killed_for), "%.300s", r->text);
        worker_signal_group(w, SIGKILL);
    }
}

static void hang_event(struct agent *a, enum event_name name, const struct rdzv_request *r)
{
    event(a, (struct event){.name = name,
                            .attempt = a->ctx.restart_count,
                            .rank = -1,
                            .caused_by = -1,
                            .text = r->text,
                            .extra = r->ranks});
}

static void on_verdict(void *arg, const struct verdict *v, const struct samples *all)
{
    struct agent *a = arg;
    struct rdzv_request r = {.kind = REQUEST_HANG, .signal = (int)v->state};
    struct buf ranks = BUF_INIT;
    if (a->fsm.state != RUNNING || a->leaving)
        return;
    words_add(&ranks, "%s", "");
    for (int i = 0; i < v->n; i++)
        words_add(&ranks, "%s%d", i ? "," : "", v->ranks[i]);
    snprintf(r.ranks, sizeof(r.ranks), "%s", (char *)ranks.data);
    buf_fini(&ranks);
    snprintf(r.text, sizeof(r.text), "%s", v->text);
    if (a->hang_state == HANG_NONE)
        hang_event(a, EVENT_SUSPECT, &r);
    if (v->state == HANG_HUNG) {
        hang_event(a, EVENT_HANG, &r);
        r.id = a->job->on_hang == ON_HANG_RESTART && v->n > 0;
        keep_stacks(a, all);
    }
    if (!rdzv_request(a->rdzv, &r))
        take_hang(a, &r);
    if (v->state != HANG_HUNG)
        return;
    if (a->job->on_hang == ON_HANG_END) {
        char text[512];
        take_hang(a, &r);
        snprintf(text, sizeof(text), "the job hangs: %.490s", v->text);
        agent_leave(a, STOP_TIMEOUT, 124, SIGTERM, text);
    } else if (a->job->on_hang == ON_HANG_RESTART && v->n == 0) {
        struct rdzv_request again = {.kind = REQUEST_RESTART};
        snprintf(again.text, sizeof(again.text), "the job hangs: %.490s", v->text);
        rdzv_request(a->rdzv, &again);
    }
}

static void on_no_coordinator(void *arg)
{
    struct agent *a = arg;
    struct rdzv_request r = {.kind = REQUEST_HANG, .signal = HANG_HUNG};
    struct rdzv_info info;
    rdzv_get_info(a->rdzv, &info);
    if (a->fsm.state != RUNNING || a->leaving || a->hang_state == HANG_HUNG)
        return;
    snprintf(r.text, sizeof(r.text), "the node of the coordinator (%s) does not answer",
             info.endpoint);
    take_hang(a, &r);
}

static void on_life(void *arg)
{
    struct agent *a = arg;
    if (a->hang_state == HANG_HUNG)
        log_notice("the workers of this node go on after all");
    a->hang_state = HANG_NONE;
}

static void watch_hangs(struct agent *a)
{
    const struct hang_callbacks cb = {.arg = a,
                                      .get_signs = get_signs,
                                      .get_op = get_op,
                                      .leads = judges,
                                      .request = gather_request,
                                      .gatherer = hang_gatherer,
                                      .on_verdict = on_verdict,
                                      .on_no_coordinator = on_no_coordinator,
                                      .on_life = on_life};
    if (a->job->hang_after <= 0)
        return;
    a->sockets = sockets_new(a->job->nproc);
    a->hang = hang_new(a->loop, a->job->nproc, a->job->hang_after, &cb);
}

/* ----------------------------------------------------------------------------------- slow ranks */

static bool get_count(void *arg, int local_rank, struct slow_count *out, int *pid, bool *inside)
{
    struct agent *a = arg;
    if (a->workers[local_rank].state != WORKER_RUNNING)
        return false;
    *pid = a->workers[local_rank].pid;
    out->at_ns = mono_ns();
    out->waited_ns = segment_waited(&a->segment, local_rank, out->at_ns, inside);
    out->ops = segment_ops(&a->segment, local_rank);
    return true;
}

static const struct rank_table *running_table(void *arg, int *group_rank)
{
    struct agent *a = arg;
    *group_rank = a->ctx.group_rank;
    return a->fsm.state == RUNNING ? a->ctx.table : NULL;
}

/* Takes over the slow ranks that the coordinator's node has sent to every node. */
static void take_slow(struct agent *a, const struct rdzv_request *r)
{
    struct rdzv_info info;
    if (*r->ranks && strcmp(a->slow_text, r->text) != 0) {
        rdzv_get_info(a->rdzv, &info);
        if (info.coordinator || a->ctx.table->nnodes == 1)
            log_warn("%s", r->text);
        free(a->last_slow);
        a->last_slow = xstrdup(r->text);
    }
    snprintf(a->slow_text, sizeof(a->slow_text), "%s", *r->ranks ? r->text : "");
}

static void on_slow(void *arg, const char *ranks, const char *text)
{
    struct agent *a = arg;
    struct rdzv_request r = {.kind = REQUEST_SLOW};
    if (a->fsm.state != RUNNING || a->leaving)
        return;
    snprintf(r.ranks, sizeof(r.ranks), "%s", ranks);
    snprintf(r.text, sizeof(r.text), "%s", *text ? text : "no rank is slow any more");
    hang_event(a, EVENT_SLOW, &r);
    if (!rdzv_request(a->rdzv, &r))
        take_slow(a, &r);
}

static void watch_slow_ranks(struct agent *a)
{
    const struct slow_callbacks cb = {.arg = a,
                                      .get_count = get_count,
                                      .table = running_table,
                                      .leads = leads,
                                      .request = gather_request,
                                      .answer = gather_answer,
                                      .on_slow = on_slow};
    if (a->job->slow_percent > 0)
        a->slow = slow_new(a->loop, a->job->nproc, a->job->slow_percent, &cb);
}

/* A request that dlaunchctl has made here or on another node. */
static void on_request(void *arg, const struct rdzv_request *r)
{
    struct agent *a = arg;
    if (a->fsm.state == DONE)
        return;
    if (r->kind == REQUEST_MODEX) {
        if (a->fsm.state == RUNNING)
            mpi_modex(a->mpi, atoi(r->ranks), r->id, &r->from);
        return;
    }
    if (r->kind == REQUEST_TOP) {
        if (a->job->nproc && r->id & TOP_ROWS)
            top_on_request(a->tops, r);
        else if (a->job->nproc)
            answer_operations(a, r);
        return;
    }
    if (r->kind == REQUEST_SUSPECT) {
        on_suspicion(a, r);
        return;
    }
    if (r->kind == REQUEST_HANG) {
        if (a->hang && a->fsm.state == RUNNING)
            take_hang(a, r);
        return;
    }
    if (r->kind == REQUEST_PACE || r->kind == REQUEST_SLOW) {
        if (a->slow && a->fsm.state == RUNNING && r->kind == REQUEST_PACE)
            slow_on_request(a->slow, r);
        else if (a->slow && a->fsm.state == RUNNING)
            take_slow(a, r);
        return;
    }
    if (r->kind == REQUEST_STACKS) {
        if (is_in_round(a))
            gatherer_on_request(agent_gatherer(a), r);
        return;
    }
    if (r->kind == REQUEST_KILL) {
        log_notice("%s", r->text);
        agent_leave(a, STOP_REQUEST, 128 + SIGKILL, SIGKILL, r->text);
        agent_kill_workers(a);
        return;
    }
    log_verbose("%s", r->text);
    for (int i = 0; i < a->job->nproc; i++) {
        if (worker_is_alive(&a->workers[i]) &&
            (!*r->ranks || parse_has(r->ranks, a->workers[i].rank)))
            kill(a->workers[i].pid, r->signal);
    }
}

bool agent_request(struct agent *a, enum request_kind kind, int signo, const char *ranks)
{
    static const char *const verbs[] = {"restart", "kill", "signal"};
    struct rdzv_request r = {.kind = kind, .signal = signo};
    char name[24];
    if (a->fsm.state == DONE)
        return false;
    snprintf(r.ranks, sizeof(r.ranks), "%s", ranks);
    snprintf(r.text, sizeof(r.text), "%s received dlaunchctl %s%s%s", a->job->host, verbs[kind],
             signo ? " " : "", signo ? signal_name(signo, name) : "");
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
    if (a->fsm.state != DONE)
        agent_kill_workers(a);
}

static void on_job_timeout(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, job_timer);
    char text[128];
    snprintf(text, sizeof(text), "the job did not end within %g s (--timeout)", a->job->timeout);
    if (a->nalive && !a->leaving)
        log_notice("%s: stopping %d worker%s, SIGKILL after %g s", text, a->nalive,
                   a->nalive == 1 ? "" : "s", a->job->shutdown_timeout);
    agent_leave_with_stacks(a, STOP_TIMEOUT, 124, SIGTERM, text);
}

/* The guardian is dead. No process would kill the workers if this one died, so the agent kills them
 * now. */
static void on_guardian_gone(uv_poll_t *h, int status, int events)
{
    (void)status, (void)events;
    struct agent *a = container_of(h, struct agent, lifeline);
    struct sweep sweep;
    if (a->fsm.state == DONE) { /* no worker is left */
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
    for (int i = 0; i < a->job->nproc; i++)
        close_fd(&a->workers[i].listen_fd);
    exit_notify_free(a->exit_notify);
    file_timer_free(a->file_timer);
    segment_close(&a->segment);
    free(a->flight_report);
    top_asks_free(a->tops);
    json_decref(a->told_operations);
    free(a->last_slow);
    free(a->stacks);
    free(a->sampled);
    sockets_free(a->sockets);
    attempts_fini(&a->attempts);
    ledger_forget(&a->log.job);
    event_log_fini(&a->log);
    event_file_close(a->event_file);
    forget_env(a);
    free(a->env);
    placement_free(a->placement);
    gpu_watch_free(a->gpus);
    mpi_free(a->mpi);
    warm_pool_free(a->warm_pool);
    spawner_free(a->spawner);
    oom_close(&a->oom);
    close_fd(&a->null_fd);
    close_fd(&a->link->lifeline);
    free(a->workers);
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
    struct ledger ledger;
    if (a->job->ledger)
        ledger_of_events(&ledger, &a->log.job, 0);
    struct report_input in = {
        .job = a->job,
        .result = result,
        .host = a->job->host,
        .group_rank = a->info.group_rank,
        .nnodes = a->info.nnodes,
        .world_size = a->world_size, /* the last round's */
        .started_wall_ns = wall_ns() - (mono_ns() - a->started_ns),
        .ended_wall_ns = wall_ns(),
        .elapsed = (double)(mono_ns() - a->started_ns) / 1e9,
        .attempts = a->attempts,
        .log_dir = a->log_dir.run[0] && !a->log_dir.flat ? a->log_dir.run : NULL,
        .leftover = a->leftover[0] ? a->leftover : NULL,
        .lost_output = a->lost_output,
        .operations = a->flight_report,
        .ledger = a->job->ledger ? &ledger : NULL,
        .slow = a->last_slow,
        .stacks = a->stacks,
    };
    if (a->exit_status == 2 && result->reason == STOP_RENDEZVOUS)
        log_error("%s",
                  result->text); /* no worker was started: reported like any other bad input */
    else if (a->exit_status != 0 || in.ledger)
        text = report_text(&in);
    if (a->job->report_path && report_write_json(&in, &e) < 0)
        log_error("--report: %s", e.msg);
    if (a->exit_status != 0 && a->job->pod_message && pod_message_write(&in, &e) < 0)
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
    hostname_check_close(a->hostname_check);
    trainer_status_close(a->trainer);
    exit_notify_unwatch(
        a->exit_notify); /* its thread wakes the loop through a handle of the scope */
    a->nclosing = 7;
    facts_close(a->facts, agent_on_closed, a);
    a->facts = NULL;
    gatherer_close(a->gatherer, agent_on_closed, a);
    a->gatherer = NULL;
    hang_close(a->hang, agent_on_closed, a);
    a->hang = NULL;
    top_asks_stop(a->tops);
    slow_close(a->slow, agent_on_closed, a);
    a->slow = NULL;
    gpu_watch_stop(a->gpus);
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
    if (a->job->timeout > 0) {
        double left = a->job->timeout - (double)(mono_ns() - a->started_ns) / 1e9;
        uv_timer_start(&a->job_timer, on_unread,
                       (uint64_t)((left > UNREAD_S ? left : UNREAD_S) * 1000), 0);
    }
    stdio_pump_close(a->pump, &end);
    if (a->hurry)
        stdio_pump_hurry(a->pump);
}

/* The last event comes from the coordinator, or from here if there is none any more. */
static void finish_events(struct agent *a, const struct rdzv_result *result)
{
    const struct failure *first = result->n ? &result->failures[0] : NULL;
    event_log_settle(&a->log);
    if (!a->log.finished && (a->log.wanted || a->log.leads))
        event(a, (struct event){.name = EVENT_FINISH,
                                .attempt = a->ctx.restart_count,
                                .max_restarts = a->job->rdzv.max_restarts,
                                .rank = -1,
                                .caused_by = -1,
                                .exit_code = result->exit_code,
                                .cause = result->exit_code ? cause_of_stop(result->reason, first)
                                                           : CAUSE_NONE,
                                .text = result->text});
    event_log_settle(&a->log);
    event_file_close(a->event_file);
    a->event_file = NULL;
}

static void on_finish(void *arg, const struct rdzv_result *result)
{
    struct agent *a = arg;
    a->exit_status = a->leftover[0] ? 125 : result->exit_code;
    rdzv_get_info(a->rdzv, &a->info);
    move_to(a, DONE);
    warm_pool_kill(a->warm_pool);
    const struct failure *first = result->n ? &result->failures[0] : NULL;
    if (attempts_current(&a->attempts))
        attempts_end(&a->attempts, wall_ns());
    if (a->exit_status != 0) /* the result is about the last round */
        note_cause(a, cause_of_stop(result->reason, first), result->text, first);
    finish_events(a, result);
    if (a->job->timeline_path)
        write_timeline(a);
    operations_fini(&a->operations);
    if (first && first->local_rank >= 0 && first->local_rank < a->job->nproc &&
        a->workers[first->local_rank].rank == first->rank)
        worker_hand_up_error_file(&a->workers[first->local_rank]);
    if (a->cb.on_end)
        a->cb.on_end(a->cb.arg, a->exit_status, a->exit_status ? result->text : "");
    log_dir_close(&a->log_dir); /* before the report, which must not name a folder that is removed
                                   because it is empty */
    write_out(a, result->reason, agent_report(a, result));
}

/* ------------------------------------------------------------------------------------ the start */

static int open_handles(struct agent *a, struct err *e)
{
    int rc = uv_poll_init(a->loop, &a->lifeline, a->link->lifeline);
    if (rc < 0)
        return uvx_err(e, rc, "the link to the guardian");
    uvx_scope_init(&a->scope, a->loop);
    uv_timer_init(a->loop, &a->job_timer);
    uv_timer_init(a->loop, &a->end_timer);
    uv_timer_init(a->loop, &a->grace_timer);
    uv_timer_init(a->loop, &a->sweep_timer);
    uv_timer_init(a->loop, &a->block_timer);
    uv_timer_init(a->loop, &a->event_timer);
    uvx_own(&a->scope, &a->job_timer);
    uvx_own(&a->scope, &a->end_timer);
    uvx_own(&a->scope, &a->grace_timer);
    uvx_own(&a->scope, &a->sweep_timer);
    uvx_own(&a->scope, &a->block_timer);
    uvx_own(&a->scope, &a->event_timer);
    uvx_own(&a->scope, &a->lifeline);
    const struct top_callbacks top = {
        .arg = a, .own = own_top_rows, .request = gather_request, .answer = gather_answer};
    a->tops = top_asks_new(a->loop, &a->scope, &top);
    uv_poll_start(&a->lifeline, UV_READABLE | UV_DISCONNECT, on_guardian_gone);
    agent_signals_open(a);
    if (a->job->timeout > 0)
        uv_timer_start(&a->job_timer, on_job_timeout, (uint64_t)(a->job->timeout * 1000), 0);
    if (a->job->end.at_s > 0 && a->job->end.warn_s > 0) /* which sets the time */
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
    const struct job_spec *job = a->job;
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
    const struct job_spec *job = a->job;
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
    if ((r = spawner_new(&a->spawner, e)) < 0)
        return r;
    if ((r = raise_descriptor_limit(job, e)) < 0)
        return r;
    a->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (a->null_fd < 0)
        return err_sys(e, errno, "open /dev/null");
    if ((r = placement_new(&a->placement, job->bind, job->nproc, job_env_gpus(job), e)) < 0 ||
        (r = open_log_dir(a, e)) < 0 || (r = reaper_open(&a->reaper, a->loop, &reaper, e)) < 0 ||
        (r = stdio_pump_open(&a->pump, a->loop, &pump, e)) < 0)
        return r;
    log_set_writer(stdio_write_line, a->pump);
    if (job->isolation == ISOLATE_AUTO)
        cgroup_open(&a->cgroup);
    guardian_set_path(a->link->page->cgroup, a->cgroup.path);
    a->usable_cpus = usable_cpus();
    return 0;
}

/* A process, a worker or a descendant of one, has not released its timer in time. */
static void on_timer_expired(void *arg, const pid_t *parents, int n, int signo, const char *text)
{
    struct agent *a = arg;
    char name[24];
    log_error("%s: sending %s", text, signal_name(signo, name));
    for (int i = 0; i < a->job->nproc; i++) {
        struct worker *w = &a->workers[i];
        if (worker_is_alive(w) && w->pid == parents[n - 1])
            snprintf(w->killed_for, sizeof(w->killed_for), "%s; dlaunch sent %s", text,
                     signal_name(signo, name));
    }
}

/* SIGKILL ends the wait if it is killable. If it is not, the stop begins as after a death, and
 * abandon() ends it. */
static void fail_blocked_worker(struct agent *a, struct worker *w)
{
    char what[160];
    snprintf(w->killed_for, sizeof(w->killed_for),
             "%s for %g s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT); dlaunch sent SIGKILL",
             sweep_describe(w->pid, what, sizeof(what)), (double)a->block_ns / 1e9);
    log_error("%s", w->killed_for);
    worker_signal_group(w, SIGKILL);
    if (a->job->rdzv.restart_policy == RESTART_WORKER)
        return;
    worker_exiting(w, &a->ctx, SIGKILL);
    agent_worker_failed(a, w);
}

static void on_block_timer(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, block_timer);
    uint64_t now = mono_ns();
    for (int i = 0; i < a->job->nproc && a->fsm.state == RUNNING; i++) {
        struct worker *w = &a->workers[i];
        char state;
        pid_t parent;
        if (w->state != WORKER_RUNNING || w->killed_for[0])
            continue;
        if (!sweep_read_stat(w->pid, &state, &parent) || state != 'D')
            w->blocked_ns = 0;
        else if (!w->blocked_ns)
            w->blocked_ns = now;
        else if (now - w->blocked_ns >= a->block_ns)
            fail_blocked_worker(a, w);
    }
}

/* As in torchrun, a value that is not a positive number turns the watch off. */
static void watch_blocked_workers(struct agent *a)
{
    const char *text = getenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    double seconds = text ? strtod(text, NULL) : 0;
    if (!(seconds > 0 && seconds < 1e9))
        return;
    a->block_ns = (uint64_t)(seconds * 1e9);
    uint64_t ms = (uint64_t)(seconds * 250); /* four looks in that time */
    ms = ms < 20 ? 20 : ms > 1000 ? 1000 : ms;
    uv_timer_start(&a->block_timer, on_block_timer, ms, ms);
}

static int request_of(void *arg, int local_rank, struct spawn_request *req, struct err *e)
{
    struct agent *a = arg;
    return worker_request(&a->workers[local_rank], &a->ctx, req, e);
}

static int open_warm_pool(struct agent *a, struct err *e)
{
    const struct warm_pool_opts opts = {.job = a->job,
                                        .spawner = a->spawner,
                                        .loop = a->loop,
                                        .scope = &a->scope,
                                        .request = request_of,
                                        .on_settled = on_warm_settled,
                                        .arg = a};
    if (!a->job->warm.modules || a->job->nproc == 0)
        return 0;
    a->ctx.warm_pool = a->warm_pool = warm_pool_new(&opts, e);
    return a->warm_pool ? 0 : -EMFILE;
}

static int open_file_timer(struct agent *a, struct err *e)
{
    const char *enabled = getenv("TORCHELASTIC_ENABLE_FILE_TIMER");
    if (a->job->nproc == 0 || !enabled || strcmp(enabled, "1") != 0)
        return 0;
    int r = file_timer_open(&a->file_timer, a->loop, &a->scope, getenv("TORCHELASTIC_TIMER_FILE"),
                            on_timer_expired, a, e);
    a->ctx.timer_file = file_timer_path(a->file_timer);
    guardian_set_path(a->link->page->unlink_path[2], a->ctx.timer_file);
    return r;
}

/* The log begins with what is true of all of it. */
static int open_events(struct agent *a, struct err *e)
{
    struct node_id id;
    if (getrandom(id.b, sizeof(id.b), 0) != sizeof(id.b))
        return err_sys(e, errno, "getrandom");
    event_log_init(&a->log, &id);
    a->log.on_change = on_log_change;
    a->log.arg = a;
    event(a, (struct event){.name = EVENT_SUBMIT,
                            .at_ns = a->started_ns,
                            .max_restarts = a->job->rdzv.max_restarts,
                            .pid = (int)getpid(),
                            .rank = -1,
                            .caused_by = -1,
                            .text = a->job->name,
                            .extra = a->job->rdzv.run_id});
    a->log.wanted =
        a->job->events_path || a->job->ledger || a->job->timeline_path || mpir_is_wanted();
    if (a->job->ledger)
        ledger_keep(&a->log.job);
    if (!a->job->events_path)
        return 0;
    return event_file_open(&a->event_file, a->job->events_path, e) < 0 ? err_wrap(e, "--events")
                                                                       : 0;
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
        .fsm = {"agent", agent_states, INIT},
        .loop = loop,
        .job = job,
        .link = link,
        .cb = *cb,
        .started_ns = mono_ns(),
        .cgroup = {.fd = -1},
        .oom = {.fd = -1},
        .segment = SEGMENT_INIT,
        .null_fd = -1,
        .workers = xcalloc((size_t)job->nproc, sizeof(struct worker)),
        .status = xcalloc((size_t)job->nproc, sizeof(struct agent_worker_status)),
    };
    for (int i = 0; i < job->nproc; i++)
        a->workers[i] = (struct worker){.local_rank = i, .rank = -1, .listen_fd = -1};
    a->env = xcalloc((size_t)(job->programs ? job->programs->n : 1), sizeof(*a->env));
    int r = open_parts(a, e);
    if (r < 0) {
        log_dir_close(&a->log_dir);
        if (!a->reaper) /* no handle is on the loop yet */
            free_agent(a);
        return r;
    }
    a->ctx = (struct worker_context){
        .job = job,
        .spawner = a->spawner,
        .reaper = a->reaper,
        .pump = a->pump,
        .placement = a->placement,
        .cgroup = &a->cgroup,
        .segment = &a->segment,
        .log_dir = &a->log_dir,
        .env = a->env,
        .oom = &a->oom,
        .stdin_fd = a->null_fd,
    };
    r = open_handles(a, e);
    if (r == 0)
        a->exit_notify = exit_notify_new(loop, &a->scope, on_worker_exiting, a);
    if (r == 0)
        r = open_file_timer(a, e);
    if (r == 0)
        r = open_warm_pool(a, e);
    const struct mpi_events mpi = {a, on_mpi_fence, on_mpi_abort, on_mpi_modex, on_mpi_modex_found};
    if (r == 0)
        r = mpi_open(&a->mpi, loop, &a->scope, job, &mpi, e);
    a->ctx.mpi = a->mpi;
    if (r == 0)
        watch_blocked_workers(a);
    if (r == 0)
        watch_hangs(a);
    if (r == 0)
        watch_slow_ranks(a);
    if (r == 0 && job->gpus)
        a->gpus = gpu_watch_new(loop, &a->scope, job, GPU_PROC, "/dev/kmsg");
    if (a->gpus) /* looks for these itself */
        a->segment.warned = SEGMENT_WARNED_COMPUTE_MODE | SEGMENT_WARNED_MEMLOCK;
    struct rdzv_callbacks of_rdzv = callbacks;
    of_rdzv.arg = a;
    of_rdzv.events = &a->log;
    if (!job->job_console)
        of_rdzv.on_output = NULL;
    if (r == 0)
        r = open_events(a, e);
    if (r < 0 || (r = rdzv_open(&a->rdzv, loop, &job->rdzv, &of_rdzv, e)) < 0) {
        log_dir_close(&a->log_dir);
        return r;
    }
    a->hostname_check = hostname_check_open(loop, job, answer_prepare, a);
    a->trainer = trainer_status_open(job->progress_file);
    fsm_move(&a->fsm, RENDEZVOUS); /* without on_state: the caller has no agent yet */
    state_event(a);
    *out = a;
    return 0;
}

/* --------------------------------------------------------------------------------------- status */

void agent_get_status(struct agent *a, struct agent_status *out)
{
    static const char *const health[] = {
        [INIT] = "INIT",       [RENDEZVOUS] = "INIT",  [STARTING] = "INIT",
        [RUNNING] = "HEALTHY", [STOPPING] = "STOPPED", [EXIT_BARRIER] = "SUCCEEDED",
        [DONE] = "SUCCEEDED",
    };
    *out = (struct agent_status){
        .state = fsm_name(&a->fsm),
        .health = health[a->fsm.state],
        .elapsed = (double)(mono_ns() - a->started_ns) / 1e9,
        .lost_output = a->lost_output,
        .ends_at_s = a->job->end.at_s,
        .stop_text = a->stop_text[0] ? a->stop_text : NULL,
        .nworkers = a->job->nproc,
        .workers = a->status,
    };
    if (a->hang_state != HANG_NONE) {
        out->hang = a->hang_state == HANG_HUNG ? "HUNG" : "SUSPECT";
        out->hang_text = a->hang_text;
    }
    out->slow = a->slow_text[0] ? a->slow_text : NULL;
    if (a->fsm.state == DONE && a->exit_status != 0)
        out->health = "FAILED";
    if (a->fsm.state == DONE) /* parts of the rendezvous may be closed */
        out->rdzv = a->info;
    else
        rdzv_get_info(a->rdzv, &out->rdzv);
    for (int i = 0; i < a->job->nproc; i++) {
        struct slow_scores scores = {.waited_s = -1};
        worker_status(&a->workers[i], a->job, &a->status[i]);
        slow_get_scores(a->slow, i, &scores);
        a->status[i].relative = scores.relative;
        a->status[i].own = scores.own;
        a->status[i].waited_s = scores.waited_s;
    }
}
