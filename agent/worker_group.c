#include "agent/worker_group.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/base/job_env.h"
#include "agent/process/data_socket.h"
#include "agent/process/file_limit.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"
#include "core/timed_call.h"

/* ------------------------------------------------------------------------------------- the round
 */

static void forget_env(struct worker_group *g)
{
    int n = g->node->job->programs ? g->node->job->programs->n : 1;
    bool in_use = !spawn_settle(g->node->spawner); /* by a child whose execve() hangs */
    for (int i = 0; g->env && i < n; i++) {
        if (!in_use)
            worker_env_shared_free(g->env[i]);
        g->env[i] = NULL;
    }
}

/* Makes log folders for the workers that start as this attempt, in place of workers that have
 * ended. */
static int make_folders(struct worker_group *g, int attempt, int first, int n, struct err *e)
{
    log_dir_path *left = xcalloc((size_t)n + 1, sizeof(*left));
    for (int i = 0; i < n; i++)
        memcpy(left[i], g->node->workers[first + i].dir, sizeof(*left));
    int r = log_dir_next_timed(&g->log_dir, g->files, attempt, first, n, left, e);
    free(left);
    return r;
}

int worker_group_make_round(struct worker_group *g, struct err *e)
{
    int r = make_folders(g, g->node->restart_count, 0, g->node->job->nproc, e);
    for (int i = 0; i < g->node->job->nproc; i++)
        worker_renew(&g->node->workers[i]);
    if (r < 0)
        return r;
    if (programs_check(g->node->job->programs, g->node->table->world_size, e) < 0)
        return e->code;
    exit_notify_unwatch(g->exit_notify);
    segment_close(&g->node->segment);
    forget_env(g);
    if (g->cgroup.killed) {
        cgroup_renew(&g->cgroup);
        guardian_set_path(g->link->page->cgroup, g->cgroup.path);
    }
    if (segment_open(&g->node->segment, g->node->table, g->node->group_rank, g->node->cpus, e) < 0)
        return e->code;
    g->node->log_dir = g->log_dir.run[0] && !g->log_dir.flat ? g->log_dir.attempt : "";
    if (features_begin(g->features, e) < 0)
        return e->code;
    variables_fini(&g->variables);
    features_variables(g->features, &g->variables);
    if (g->node->job->rdzv.restart_policy == RESTART_GROUP)
        exit_notify_watch(g->exit_notify, &g->node->segment);
    stdio_set_filtered_dir(g->pump, g->log_dir.run[0] ? g->log_dir.attempt : NULL);
    return 0;
}

int worker_group_listen(struct worker_group *g, bool on_loopback, struct err *e)
{
    for (int i = 0; i < g->node->job->nproc; i++) {
        struct worker *w = &g->node->workers[i];
        close_fd(&w->listen_fd);
        w->listen_fd = data_socket_listen(i, on_loopback, &w->port, e);
        if (e->code)
            return e->code;
    }
    return 0;
}

uint16_t *worker_group_ports(const struct worker_group *g)
{
    uint16_t *ports = xcalloc((size_t)g->node->job->nproc, sizeof(*ports));
    for (int i = 0; i < g->node->job->nproc; i++)
        ports[i] = g->node->workers[i].port;
    return ports;
}

int worker_group_start(struct worker_group *g, struct worker *w, int attempt)
{
    struct err e = ERR_INIT;
    int r = 0;
    if (attempt) {
        g->node->restart_count = attempt;
        forget_env(g);
        log_verbose("starting rank %d again", w->rank);
        r = make_folders(g, attempt, w->local_rank, 1, &e);
    }
    if (r < 0) {
        w->pid = 0; /* nothing of the last start belongs to this one */
        w->attempt = attempt;
        w->ended_ns = 0;
        w->error_file[0] = w->stderr_log[0] = w->dir[0] = w->killed_for[0] = '\0';
        worker_cannot_start(w, &g->ctx, &e);
    } else {
        r = worker_start(w, &g->ctx, w, &e);
    }
    if (r < 0)
        return r;
    log_verbose("rank %d (local rank %d) is pid %d%s", w->rank, w->local_rank, w->pid,
                w->warm ? ", warm" : "");
    if (attempt)
        spawn_settle(g->node->spawner);
    return 0;
}

void worker_group_started(struct worker_group *g)
{
    spawn_settle(g->node->spawner);
    if (g->node->restart_count == 0) /* now that the workers run */
        log_dir_sweep_timed(&g->log_dir);
}

void worker_group_end_round(struct worker_group *g)
{
    exit_notify_unwatch(g->exit_notify);
    segment_close(&g->node->segment);
}

/* -------------------------------------------------------------------------------------- the stop
 */

void worker_group_end_operations(struct worker_group *g, const struct failure *first,
                                 const char *text)
{
    const struct rank_table *t = g->node->table;
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
    segment_raise(&g->node->segment, first, text);
}

void worker_group_signal(struct worker_group *g, int signo)
{
    for (int i = 0; i < g->node->job->nproc; i++)
        worker_signal_group(&g->node->workers[i], signo);
}

void worker_group_signal_programs(struct worker_group *g, int signo)
{
    for (int i = 0; i < g->node->job->nproc; i++) {
        if (worker_is_alive(&g->node->workers[i]))
            kill(g->node->workers[i].pid, signo);
    }
}

void worker_group_signal_ranks(struct worker_group *g, const char *ranks, int signo)
{
    for (int i = 0; i < g->node->job->nproc; i++) {
        const struct worker *w = &g->node->workers[i];
        if (worker_is_alive(w) && (!*ranks || parse_has(ranks, w->rank)))
            kill(w->pid, signo);
    }
}

void worker_group_kill(struct worker_group *g)
{
    sweep_init(&g->sweep);
    worker_group_signal(g, SIGKILL);
    if (g->cgroup.fd >= 0) /* which holds what features run, too */
        features_killed(g->features);
    cgroup_kill(&g->cgroup);
}

int worker_group_sweep(struct worker_group *g, bool first)
{
    struct pids kept = {0};
    int left = -1;
    if (features_helpers(g->features, &kept)) {
        if (first)
            sweep_init(&g->sweep);
        left = sweep_step(&g->sweep, kept.v, kept.n);
    }
    pids_fini(&kept);
    if (left == 0 && g->sweep.killed)
        log_notice("ended %u process%s that the workers had left behind", g->sweep.killed,
                   g->sweep.killed == 1 ? "" : "es");
    return left;
}

bool worker_group_is_freeing(const struct worker_group *g)
{
    bool freeing = false;
    for (int i = 0; i < g->node->job->nproc; i++) {
        const struct worker *w = &g->node->workers[i];
        freeing |= worker_is_alive(w) && exit_notify_runs(w->pid);
    }
    return freeing;
}

static void name_unkillable(struct worker_group *g)
{
    pid_t children[8];
    size_t len = 0;
    features_killed(g->features); /* processes of features would be listed, too */
    sweep_step(&g->sweep, NULL, 0);
    int n = sweep_children(children, (int)ARRAY_LEN(children));
    if (n == 0 && access("/proc/self", F_OK) < 0) {
        snprintf(g->leftover, sizeof(g->leftover), "those that /proc does not show");
        log_error("what the workers left behind could not be killed: %s", g->leftover);
        return;
    }
    for (int i = 0; i < n && i < (int)ARRAY_LEN(children); i++) {
        char one[160];
        len += (size_t)snprintf(g->leftover + len, sizeof(g->leftover) - len, "%s%s", i ? "; " : "",
                                sweep_describe(children[i], one, sizeof(one)));
        if (len >= sizeof(g->leftover))
            break;
    }
    log_error("%d process%s could not be killed: %s", n, n == 1 ? "" : "es", g->leftover);
}

void worker_group_abandon(struct worker_group *g)
{
    name_unkillable(g);
    for (int i = 0; i < g->node->job->nproc; i++) {
        struct worker *w = &g->node->workers[i];
        if (!worker_is_alive(w))
            continue;
        struct reaper_exit x = {.pid = w->pid, .status = SIGKILL, .seen_ns = mono_ns()};
        worker_exited(w, &g->ctx, &x, ASKED_BY_SIGKILL);
        stdio_worker_exited(g->pump, w->local_rank);
    }
}

void worker_group_die(struct worker_group *g, double limit_s)
{
    struct sweep sweep;
    worker_group_signal(g, SIGKILL);
    cgroup_kill(&g->cgroup);
    sweep_init(&sweep);
    sweep_run(&sweep, NULL, 0, limit_s);
    cgroup_close(&g->cgroup);
    log_dir_close_timed(&g->log_dir, g->files); /* other nodes wait for our word */
}

/* -------------------------------------------------------------------------------- open and close
 */

static int open_log_dir(struct worker_group *g, struct err *e)
{
    const struct job_spec *job = g->node->job;
    bool keeps_output = false;
    for (int i = 0; i < job->nproc; i++)
        keeps_output |= job->redirects[i] || job->tee[i];
    if (job->log_dir || keeps_output) {
        int rc = log_dir_open(&g->log_dir, job->log_dir, job->rdzv.run_id, e);
        if (rc == 0 && !job->log_dir)
            log_notice("the workers' output goes to %s (--log_dir names another folder)",
                       g->log_dir.run);
        return rc;
    }
    if (log_dir_open_flat(&g->log_dir, job->killed_at_once, e) < 0) {
        log_warn("%s: the workers get no error files", e->msg);
        *e = (struct err)ERR_INIT;
    }
    guardian_set_path(g->link->page->unlink_path[1], g->log_dir.shared ? NULL : g->log_dir.run);
    return 0;
}

int worker_group_open(struct worker_group *g, struct node *node, struct guardian_link *link,
                      const struct worker_group_callbacks *cb, struct err *e)
{
    const struct job_spec *job = node->job;
    const struct reaper_callbacks reaper = {
        .arg = cb->arg, .on_worker = cb->on_exit, .on_orphan = cb->on_orphan};
    int r;
    *g = (struct worker_group){.node = node,
                               .link = link,
                               .cgroup = {.fd = -1},
                               .files = timed_calls_new(),
                               .null_fd = -1};
    node->segment = (struct segment)SEGMENT_INIT;
    node->workers = xcalloc((size_t)job->nproc, sizeof(*node->workers));
    for (int i = 0; i < job->nproc; i++)
        node->workers[i] = (struct worker){.local_rank = i, .rank = -1, .listen_fd = -1};
    g->env = xcalloc((size_t)(job->programs ? job->programs->n : 1), sizeof(*g->env));
    if ((r = spawner_new(&node->spawner, e)) < 0)
        return r;
    if ((r = file_limit_raise(job, e)) < 0)
        return r;
    g->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (g->null_fd < 0)
        return err_sys(e, errno, "open /dev/null");
    if ((r = placement_new(&g->placement, job->bind, job->nproc, job_env_gpus(job), e)) < 0 ||
        (r = open_log_dir(g, e)) < 0 || (r = reaper_open(&g->reaper, node->loop, &reaper, e)) < 0 ||
        (r = stdio_pump_open(&g->pump, node->loop, cb->pump, e)) < 0)
        return r;
    log_set_writer(stdio_write_line, g->pump);
    if (job->isolation == ISOLATE_AUTO)
        cgroup_open(&g->cgroup);
    guardian_set_path(link->page->cgroup, g->cgroup.path);
    node->cpus = usable_cpus();
    g->ctx = (struct worker_context){
        .node = node,
        .variables = &g->variables,
        .reaper = g->reaper,
        .pump = g->pump,
        .placement = g->placement,
        .cgroup = &g->cgroup,
        .log_dir = &g->log_dir,
        .files = g->files,
        .env = g->env,
        .stdin_fd = g->null_fd,
    };
    return 0;
}

void worker_group_watch(struct worker_group *g, const struct worker_group_callbacks *cb)
{
    g->exit_notify = exit_notify_new(g->node->loop, g->node->scope, cb->on_exiting, cb->arg);
}

void worker_group_free(struct worker_group *g)
{
    for (int i = 0; i < g->node->job->nproc; i++)
        close_fd(&g->node->workers[i].listen_fd);
    exit_notify_free(g->exit_notify);
    segment_close(&g->node->segment);
    variables_fini(&g->variables);
    forget_env(g);
    free(g->env);
    timed_calls_free(g->files);
    placement_free(g->placement);
    spawner_free(g->node->spawner);
    close_fd(&g->null_fd);
    free(g->node->workers);
}
