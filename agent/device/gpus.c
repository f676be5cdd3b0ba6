/* gpus.c: a job that says so uses GPUs from the start (job_spec.gpus): they are checked before
 * workers start. Any other job uses them as soon as one of its workers has a GPU's device file
 * open, which is looked for now and then while workers run, on hosts with NVIDIA's driver only;
 * NVML is not loaded before that. */
#include "agent/device/gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/device/gpu_watch.h"
#include "core/mem.h"
#include "rendezvous/rules/text.h"

#define LOOK_FIRST_MS 250 /* after the workers' start; doubled from look to look */
#define LOOK_LAST_MS  60000
#define LOOK_SLOW_MS  2000 /* the same with --slow_ranks */

static const struct gpu_paths paths = {GPU_PROC, GPU_DEV, "/dev/kmsg"};

enum answer { NOT_ASKED, ASKED, ANSWERED };

/* The questions that were asked about the GPUs in one round. */
struct round {
    enum answer ready;  /* whether the GPUs are fit for the round */
    enum answer faults; /* which errors the GPUs have had */
    unsigned next_ms;   /* until the next look at the workers' files */
};

struct gpus {
    struct node *n;
    struct gpu_watch *watch;
    struct gpu_files *files; /* of each worker of the round */
    uv_timer_t look;
    bool used; /* by a worker of this job */
    struct round round;
};

static int gpus_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    bool declared = n->job->gpus;
    if (n->job->nproc == 0 || (!declared && access(GPU_DEV "/nvidiactl", F_OK) != 0))
        return 0;
    struct gpu_watch *watch = gpu_watch_new(n->loop, n->scope, n->job, &paths);
    if (!watch)
        return 0;
    struct gpus *g = xcalloc(1, sizeof(*g));
    *g = (struct gpus){.n = n, .watch = watch, .used = declared};
    g->files = xcalloc((size_t)n->job->nproc, sizeof(*g->files));
    uv_timer_init(n->loop, &g->look);
    uv_unref((uv_handle_t *)&g->look);
    uvx_own(n->scope, &g->look);
    if (declared) /* looked for here */
        n->segment.warned = SEGMENT_WARNED_COMPUTE_MODE | SEGMENT_WARNED_MEMLOCK;
    *state = g;
    return 0;
}

static void gpus_prepare(void *state)
{
    struct gpus *g = state;
    g->round = (struct round){.next_ms = LOOK_FIRST_MS};
    memset(g->files, 0, (size_t)g->n->job->nproc * sizeof(*g->files));
}

static void on_ready(void *arg, const struct err *e)
{
    struct gpus *g = arg;
    g->round.ready = ANSWERED;
    if (e)
        g->n->calls->give_up(g->n, e);
    else
        g->n->calls->go_on(g->n);
}

static bool gpus_ready(void *state)
{
    struct gpus *g = state;
    if (!g->used)
        return true;
    if (g->round.ready == NOT_ASKED) {
        g->round.ready = ASKED;
        gpu_watch_ask(g->watch, g->n->job->gpus ? GPU_ASK_READY : GPU_ASK_BEGIN, on_ready, g);
    }
    return g->round.ready == ANSWERED;
}

/* The workers' records are made new for each round, and so is what is known of each. */
static struct gpu_user user_of(const struct gpus *g, const struct worker *w)
{
    return (struct gpu_user){.local_rank = w->local_rank,
                             .pid = w->pid,
                             .files = g->files[w->local_rank],
                             .since_ns = w->started_ns,
                             .until_ns = w->ended_ns};
}

/* Looks which workers have opened a GPU by now. */
static void look_at_files(struct gpus *g)
{
    bool used = g->used;
    for (int i = 0; i < g->n->job->nproc; i++) {
        const struct worker *w = &g->n->workers[i];
        if (worker_is_alive(w) && !g->files[i].pid)
            used |= gpu_files_of(w->pid, GPU_DEV, &g->files[i]);
    }
    if (used && !g->used)
        gpu_watch_ask(g->watch, GPU_ASK_BEGIN, NULL, NULL);
    g->used = used;
    gpu_watch_look(g->watch); /* who computes on which */
}

static void on_look(uv_timer_t *t)
{
    struct gpus *g = container_of(t, struct gpus, look);
    unsigned next = 2 * g->round.next_ms;
    unsigned most = g->n->job->slow_percent > 0 ? LOOK_SLOW_MS : LOOK_LAST_MS;
    for (int i = 0; g->used && i < g->n->job->nproc; i++) {
        struct gpu_user u = user_of(g, &g->n->workers[i]);
        g->n->workers[i].gpu = gpu_watch_state(g->watch, &u); /* of the last look */
    }
    look_at_files(g);
    g->round.next_ms = next < most ? next : most;
    uv_timer_start(t, on_look, g->round.next_ms, 0);
}

/* The errors known by now are not those of this worker, nor of its round. */
static int gpus_worker_starts(void *state, const struct worker *w, struct worker_extras *x,
                              struct err *e)
{
    struct gpus *g = state;
    (void)x, (void)e;
    g->files[w->local_rank] = (struct gpu_files){0};
    g->round.next_ms = LOOK_FIRST_MS;
    if (g->n->state == NODE_RUNNING) /* in the place of one that has failed */
        uv_timer_start(&g->look, on_look, LOOK_FIRST_MS, 0);
    gpu_watch_read_log(g->watch);
    return 0;
}

static void gpus_state_changed(void *state, enum node_state from)
{
    struct gpus *g = state;
    (void)from;
    if (g->n->state == NODE_RUNNING)
        uv_timer_start(&g->look, on_look, g->round.next_ms, 0);
    else
        uv_timer_stop(&g->look);
}

/* The first failure of a round that was too short for a look: other workers are still there. What
 * the kernel has said is known at once, for whoever starts the worker again. */
static void gpus_worker_failed(void *state, struct worker *w, bool by_dlaunch)
{
    struct gpus *g = state;
    struct gpu_user u = user_of(g, w);
    if (!g->used && g->round.next_ms == LOOK_FIRST_MS)
        look_at_files(g);
    w->failure.gpu =
        !by_dlaunch && w->failure.kind != FAILURE_EXEC && gpu_watch_fault(g->watch, &u, true);
}

static void on_faults(void *arg, const struct err *e)
{
    struct gpus *g = arg;
    (void)e;
    g->round.faults = ANSWERED;
    g->n->calls->go_on(g->n);
}

static bool gpus_ended(void *state)
{
    struct gpus *g = state;
    if (!g->used)
        return true;
    if (g->round.faults == NOT_ASKED) {
        g->round.faults = ASKED;
        gpu_watch_ask(g->watch, GPU_ASK_FAILURES, on_faults, g);
    }
    return g->round.faults == ANSWERED;
}

/* Makes a failure of its own of what was a stop; the message is one line. */
static void blame(struct failure *f, char *note)
{
    f->kind = FAILURE_EXIT;
    f->exit_code = 1;
    f->signal = 0;
    f->says_how = true;
    for (char *end; (end = strchr(note, '\n'));)
        *end = ';';
    text_set(f->message, sizeof(f->message), "had a GPU that failed: %s", note);
}

/* Puts what is known of a failed worker's GPU in front of the worker's message. One that was
 * stopped because others had failed, and whose GPU had failed before, is why they did. */
static void gpus_complete(void *state, struct worker *w)
{
    struct gpus *g = state;
    struct failure *f = &w->failure;
    struct gpu_user u = user_of(g, w);
    bool stopped = f->kind == FAILURE_STOPPED;
    char note[1024], *rest;
    if (f->kind == FAILURE_EXEC)
        return;
    f->gpu = gpu_watch_fault(g->watch, &u, !stopped);
    if ((stopped && !f->gpu) || !*gpu_watch_note(g->watch, &u, note, sizeof(note)))
        return;
    if (stopped) {
        blame(f, note);
        return;
    }
    rest = xstrdup(f->message);
    text_set(f->message, sizeof(f->message), "%s%s%s", note, *rest ? "\n" : "", rest);
    free(rest);
}

/* Shows the use of the GPUs at the last look, and asks for the next look. */
static void gpus_status(void *state, struct agent_status *out)
{
    struct gpus *g = state;
    struct gpu_usage usage;
    if (g->n->state == NODE_DONE)
        return;
    gpu_watch_look(g->watch);
    for (int i = 0; i < out->nworkers; i++) {
        struct gpu_user u = {.local_rank = i, .files = g->files[i]};
        if (g->n->workers)
            u = user_of(g, &g->n->workers[i]);
        if ((!g->n->job->gpus && !u.files.pid) || !gpu_watch_usage(g->watch, &u, &usage))
            continue;
        out->workers[i].gpu_memory = usage.used;
        out->workers[i].gpu_memory_total = usage.total;
        out->workers[i].gpu_percent = usage.percent;
    }
}

static void gpus_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct gpus *g = state;
    gpu_watch_stop(g->watch);
    on_closed(arg);
}

static void gpus_free(void *state)
{
    struct gpus *g = state;
    gpu_watch_free(g->watch);
    free(g->files);
    free(g);
}

const struct feature gpus_feature = {
    .name = "GPUs",
    .open = gpus_open,
    .prepare = gpus_prepare,
    .ready = gpus_ready,
    .state_changed = gpus_state_changed,
    .worker_starts = gpus_worker_starts,
    .worker_failed = gpus_worker_failed,
    .ended = gpus_ended,
    .complete = gpus_complete,
    .status = gpus_status,
    .close = gpus_close,
    .free = gpus_free,
};
