#include "agent/worker.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/report/error_file.h"
#include "agent/report/flight_report.h"
#include "agent/output/stdio_std.h"
#include "agent/worker_env.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/parse.h"

void worker_renew(struct worker *w)
{
    *w = (struct worker){
        .local_rank = w->local_rank, .rank = -1, .listen_fd = w->listen_fd, .port = w->port};
}

/* Opens the files and pipes of stdout and stderr; fds gets the ends for the worker. */
static int open_stdio(const struct worker *w, const struct worker_context *ctx, int fds[2],
                      struct err *e)
{
    const struct job_spec *job = ctx->node->job;
    uint8_t tee = job->tee[w->local_rank], file = job->redirects[w->local_rank] | tee;
    bool show = job->show[w->local_rank] && (!job->ranks || parse_has(job->ranks, w->rank));
    char paths[2][FAILURE_PATH_MAX];
    static const char *const names[2] = {"stdout.log", "stderr.log"};
    struct stdio_route route[2];
    char *prefix =
        tee ? stdio_prefix_new(job->prefix_template, job->role, w->local_rank, w->rank, job->host)
            : NULL;
    for (int i = 0; i < 2; i++) {
        uint8_t bit = i == 0 ? STD_OUT : STD_ERR;
        log_dir_file(ctx->log_dir, w->local_rank, names[i], paths[i], sizeof(paths[i]));
        route[i] = (struct stdio_route){
            .file = (file & bit) && paths[i][0] ? paths[i] : NULL,
            .console = show && ((tee & bit) || !(file & bit)),
            .rank = w->rank,
            .prefix = (tee & bit) ? prefix : NULL,
            .filtered = (tee & bit) != 0,
        };
    }
    int r = stdio_worker_open(ctx->pump, w->local_rank, &route[0], &route[1], &fds[0], &fds[1], e);
    free(prefix);
    return r;
}

static int stdin_for(const struct worker *w, const struct worker_context *ctx)
{
    enum stdin_mode mode = ctx->node->job->stdin_mode;
    bool inherits = mode == STDIN_ALL || (mode == STDIN_RANK0 && w->rank == 0);
    return inherits ? STDIN_FILENO : ctx->stdin_fd;
}

static void failure_base(struct worker *w, const struct worker_context *ctx)
{
    struct failure *f = &w->failure;
    failure_init(f);
    f->rank = w->rank;
    f->local_rank = w->local_rank;
    f->node = ctx->node->group_rank;
    f->pid = w->pid;
    f->attempt = w->attempt;
    f->wall_ns = day_ns();
    f->seen_ns = mono_ns();
    snprintf(f->host, sizeof(f->host), "%s", ctx->node->job->host);
    snprintf(f->role, sizeof(f->role), "%s", ctx->node->job->role);
}

static int request_of(const struct worker *w, const struct worker_context *ctx, char *const *own,
                      struct spawn_request *req, struct err *e)
{
    char **env = NULL;
    const struct programs *programs = ctx->node->job->programs;
    const struct program *program = programs_of(programs, w->rank);
    struct rank_table table = *ctx->node->table; /* a respawned worker has a later restart count */
    table.restart_count = ctx->node->restart_count;
    if (ctx->store_port)
        table.master_port = ctx->store_port;
    struct worker_env_input in = {
        .job = ctx->node->job,
        .table = &table,
        .group_rank = ctx->node->group_rank,
        .local_rank = w->local_rank,
        .program = program,
        .error_file = w->error_file,
        .master_addr = ctx->store_port ? "127.0.0.1" : NULL,
        .segment_fd = ctx->node->segment.fd,
        .listen_fd = w->listen_fd,
        .variables = ctx->variables ? ctx->variables->v : NULL,
        .own = own,
        .shared = ctx->env + programs_find(programs, w->rank, NULL),
    };
    int r = worker_env_new(&env, &in, e);
    if (r < 0)
        return r;
    char **argv = program ? programs_argv_new(programs, w->rank, w->local_rank)
                          : worker_argv_new(ctx->node->job, w->local_rank);
    *req = (struct spawn_request){
        .path = program ? program->path : ctx->node->job->path,
        .argv = argv,
        .envp = env,
        .cwd = program ? program->cwd : ctx->node->job->cwd,
        .cgroup_fd = ctx->cgroup->fd,
        .owned = {env, argv},
    };
    req->cpus = placement_of(ctx->placement, w->local_rank, &req->cpus_size);
    return 0;
}

int worker_request(const struct worker *w, const struct worker_context *ctx,
                   struct spawn_request *req, struct err *e)
{
    return request_of(w, ctx, NULL, req, e);
}

static int worker_spawn(struct worker *w, const struct worker_context *ctx, void *tag, int out[2],
                        struct err *e)
{
    struct spawn_request req;
    struct worker_extras extras = {0};
    int keep[ARRAY_LEN(extras.fds) + 2], pidfd = -1, nkeep = 0;
    int r = features_worker_starts(ctx->features, w, &extras, e);
    if (r == 0)
        r = request_of(w, ctx, extras.env.v, &req, e);
    if (r < 0) {
        worker_extras_fini(&extras);
        return r;
    }
    req.session = extras.session;
    for (int i = 0; i < extras.nfds; i++)
        keep[nkeep++] = extras.fds[i];
    if (ctx->node->segment.fd >= 0)
        keep[nkeep++] = ctx->node->segment.fd;
    if (w->listen_fd >= 0)
        keep[nkeep++] = w->listen_fd;
    req.keep = keep;
    req.nkeep = (size_t)nkeep;
    memcpy(req.stdio, (int[3]){stdin_for(w, ctx), out[0], out[1]}, sizeof(req.stdio));
    w->started_ns = mono_ns();
    w->warm = features_worker_takes(ctx->features, w, &req, &w->pid, &pidfd);
    if (!w->warm)
        r = spawn_begin(ctx->node->spawner, &req, &w->pid, &pidfd, e);
    if (r == 0) {
        r = reaper_watch(ctx->reaper, w->pid, pidfd, tag, e);
        if (r < 0)
            kill(w->pid, SIGKILL); /* reaped as an orphan */
    }
    worker_extras_fini(&extras);
    return r;
}

static void name_files(struct worker *w, const struct worker_context *ctx)
{
    const struct job_spec *job = ctx->node->job;
    log_dir_file(ctx->log_dir, w->local_rank, "error.json", w->error_file, sizeof(w->error_file));
    w->stderr_log[0] = w->dir[0] = '\0';
    if (!ctx->log_dir->flat)
        log_dir_file(ctx->log_dir, w->local_rank, "", w->dir, sizeof(w->dir));
    if (w->dir[0])
        w->dir[strlen(w->dir) - 1] = '\0'; /* the slash in front of a file */
    if ((job->redirects[w->local_rank] | job->tee[w->local_rank]) & STD_ERR)
        log_dir_file(ctx->log_dir, w->local_rank, "stderr.log", w->stderr_log,
                     sizeof(w->stderr_log));
}

void worker_cannot_start(struct worker *w, const struct worker_context *ctx, const struct err *e)
{
    failure_base(w, ctx);
    w->failure.kind = FAILURE_EXEC;
    w->failure.exit_code = 125;
    snprintf(w->failure.message, sizeof(w->failure.message), "%s", e->msg);
    w->ok = false;
    w->state = WORKER_CLOSED;
}

int worker_start(struct worker *w, const struct worker_context *ctx, void *tag, struct err *e)
{
    int out[2] = {-1, -1};
    w->state = WORKER_IDLE;
    w->pid = 0;
    w->ok = false;
    w->killed_for[0] = '\0';
    w->ended_ns = 0;
    w->rank = ctx->node->table->nodes[ctx->node->group_rank].base_rank + w->local_rank;
    w->attempt = ctx->node->restart_count;
    name_files(w, ctx);
    int r = open_stdio(w, ctx, out, e);
    bool pumped = r == 0;
    if (r == 0)
        r = worker_spawn(w, ctx, tag, out, e);
    close_fd(&out[0]);
    close_fd(&out[1]);
    if (ctx->node->job->rdzv.restart_policy == RESTART_GROUP)
        close_fd(&w->listen_fd);
    if (r < 0) {
        worker_cannot_start(w, ctx, e);
        if (pumped) {
            w->state = WORKER_EXITED;
            stdio_worker_exited(ctx->pump, w->local_rank);
        }
        return r;
    }
    w->state = WORKER_RUNNING;
    return 0;
}

/* Whether dlaunch caused this end. A crash is always the worker's own failure. A SIGKILL that
 * dlaunch did not send is, too, but not in a job that was asked to stop: it must not be reported as
 * the reason of the stop. */
static bool by_request(int status, enum worker_asked asked)
{
    if (asked == ASKED_NOTHING)
        return false;
    if (!WIFSIGNALED(status))
        return true;
    switch (WTERMSIG(status)) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
        return false;
    case SIGKILL:
        return asked != ASKED_FOR_FAILURE;
    default:
        return true;
    }
}

static void classify(struct worker *w, const struct worker_context *ctx, int status,
                     uint64_t seen_ns, enum worker_asked asked)
{
    struct err why = ERR_INIT;
    failure_base(w, ctx);
    struct failure *f = &w->failure;
    f->seen_ns = seen_ns;
    if (WIFEXITED(status)) {
        f->kind = FAILURE_EXIT;
        f->exit_code = WEXITSTATUS(status);
        w->ok = f->exit_code == 0;
        if (f->exit_code >= 125 && f->exit_code <= 127 &&
            spawn_failure(ctx->node->spawner, w->pid, &f->exit_code, &why)) {
            f->kind = FAILURE_EXEC;
            snprintf(f->message, sizeof(f->message), "%s", why.msg);
        }
    } else {
        f->kind = FAILURE_SIGNAL;
        f->signal = WTERMSIG(status);
        f->core_dumped = WCOREDUMP(status);
    }
    if (!w->ok)
        features_worker_failed(ctx->features, w, asked == ASKED_BY_SIGKILL);
    if (w->killed_for[0])
        snprintf(f->message, sizeof(f->message), "%s", w->killed_for);
    f->mismatch = segment_is_mismatch(&ctx->node->segment, w->local_rank);
    if (!f->mismatch) /* of a mismatch all sides are told, and none is a consequence */
        f->caused_by = segment_cause_of(&ctx->node->segment, w->local_rank);
    flight_report_operation(&ctx->node->segment, w->local_rank, f->operation, sizeof(f->operation));
    if (f->kind != FAILURE_EXEC && by_request(status, asked))
        f->kind = FAILURE_STOPPED;
}

void worker_exiting(struct worker *w, const struct worker_context *ctx, int status)
{
    assert(w->state == WORKER_RUNNING && status != 0);
    w->state = WORKER_EXITING;
    classify(w, ctx, status, mono_ns(), ASKED_NOTHING);
}

void worker_aborted(struct worker *w, const struct worker_context *ctx, int exit_code,
                    const char *how)
{
    struct failure *f = &w->failure;
    assert(w->state != WORKER_IDLE);
    failure_base(w, ctx);
    f->kind = FAILURE_EXIT;
    f->exit_code = exit_code;
    f->says_how = true;
    snprintf(f->message, sizeof(f->message), "%s", how);
    if (w->state == WORKER_RUNNING)
        w->state = WORKER_EXITING;
    w->ok = false;
}

void worker_exited(struct worker *w, const struct worker_context *ctx, const struct reaper_exit *x,
                   enum worker_asked asked)
{
    bool classified = w->state == WORKER_EXITING;
    assert(worker_is_alive(w));
    w->state = WORKER_EXITED;
    w->ended_ns = x->seen_ns;
    if (!classified)
        classify(w, ctx, x->status, x->seen_ns, asked);
}

void worker_closed(struct worker *w, const struct worker_context *ctx)
{
    struct failure *f = &w->failure;
    assert(w->state == WORKER_EXITED);
    w->state = WORKER_CLOSED;
    if (w->ok || f->kind == FAILURE_EXEC)
        return;
    struct error_file ef;
    if (!f->says_how && w->error_file[0] &&
        error_file_read_timed(ctx->files, w->error_file, &ef) != -ENOENT)
        snprintf(f->message, sizeof(f->message), "%s", ef.message);
    strcpy(f->log_path, w->stderr_log);
    if (f->kind != FAILURE_STOPPED)
        stdio_worker_tail(ctx->pump, w->local_rank, f->stderr_tail, sizeof(f->stderr_tail));
}

void worker_hand_up_error_file(const struct worker *w, const struct worker_context *ctx)
{
    const char *to = getenv("TORCHELASTIC_ERROR_FILE");
    const struct failure *f = &w->failure;
    if (!to || !*to || !w->error_file[0])
        return;
    int rc = error_file_copy_timed(ctx->files, w->error_file, to,
                                   f->kind == FAILURE_SIGNAL ? -f->signal : f->exit_code);
    if (rc < 0 && rc != -ENOENT)
        log_warn("TORCHELASTIC_ERROR_FILE: %s: %s", to, strerror(-rc));
}

void worker_signal_group(const struct worker *w, int signo)
{
    if (!worker_is_alive(w))
        return;
    if (kill(-w->pid, signo) < 0 && errno == ESRCH)
        kill(w->pid, signo);
}

void worker_status(const struct worker *w, const struct job_spec *job,
                   struct agent_worker_status *out)
{
    uint64_t end = worker_is_alive(w) ? mono_ns() : w->ended_ns;
    *out = (struct agent_worker_status){
        .rank = w->rank,
        .local_rank = w->local_rank,
        .pid = w->pid,
        .program = programs_name(job->programs, w->rank),
        .state = worker_is_alive(w)                   ? "running"
                 : w->state == WORKER_IDLE            ? "waiting"
                 : w->ok                              ? "exited"
                 : w->failure.kind == FAILURE_STOPPED ? "stopped"
                                                      : "failed",
        .exit_code = w->ok ? 0 : w->failure.exit_code,
        .signal = w->ok ? 0 : w->failure.signal,
        .waited_s = -1,
        .gpu_percent = -1,
        .seconds = w->started_ns && end > w->started_ns ? (double)(end - w->started_ns) / 1e9 : 0,
    };
}
