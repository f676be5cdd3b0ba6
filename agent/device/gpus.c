#include "agent/device/gpus.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/device/gpu_watch.h"
#include "core/mem.h"
#include "rendezvous/rules/text.h"

enum answer { NOT_ASKED, ASKED, ANSWERED };

/* The questions that were asked about the GPUs in one round. */
struct round {
    enum answer ready;  /* whether the GPUs are fit for the round */
    enum answer faults; /* which errors the GPUs have had */
};

struct gpus {
    struct node *n;
    struct gpu_watch *watch;
    struct round round;
};

static int gpus_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    struct gpu_watch *watch =
        n->job->gpus ? gpu_watch_new(n->loop, n->scope, n->job, GPU_PROC, "/dev/kmsg") : NULL;
    if (!watch)
        return 0;
    struct gpus *g = xcalloc(1, sizeof(*g));
    *g = (struct gpus){.n = n, .watch = watch};
    n->segment.warned = SEGMENT_WARNED_COMPUTE_MODE | SEGMENT_WARNED_MEMLOCK; /* looked for here */
    *state = g;
    return 0;
}

static void gpus_prepare(void *state)
{
    struct gpus *g = state;
    g->round = (struct round){0};
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
    if (g->round.ready == NOT_ASKED) {
        g->round.ready = ASKED;
        gpu_watch_ask(g->watch, GPU_ASK_READY, on_ready, g);
    }
    return g->round.ready == ANSWERED;
}

/* The errors known by now are not those of this worker, nor of its round. */
static int gpus_worker_starts(void *state, const struct worker *w, struct worker_extras *x,
                              struct err *e)
{
    struct gpus *g = state;
    (void)w, (void)x, (void)e;
    gpu_watch_read_log(g->watch);
    return 0;
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
    if (g->round.faults == NOT_ASKED) {
        g->round.faults = ASKED;
        gpu_watch_ask(g->watch, GPU_ASK_FAILURES, on_faults, g);
    }
    return g->round.faults == ANSWERED;
}

/* Puts what is known of a failed worker's GPU in front of the worker's message. */
static void gpus_complete(void *state, struct worker *w)
{
    struct gpus *g = state;
    char note[512], *rest = xstrdup(w->failure.message);
    if (w->failure.kind != FAILURE_STOPPED &&
        *gpu_watch_note(g->watch, w->local_rank, w->pid, w->started_ns, note, sizeof(note)))
        text_set(w->failure.message, sizeof(w->failure.message), "%s%s%s", note, *rest ? "\n" : "",
                 rest);
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
        if (!gpu_watch_usage(g->watch, i, &usage))
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
    free(g);
}

const struct feature gpus_feature = {
    .name = "GPUs",
    .open = gpus_open,
    .prepare = gpus_prepare,
    .ready = gpus_ready,
    .worker_starts = gpus_worker_starts,
    .ended = gpus_ended,
    .complete = gpus_complete,
    .status = gpus_status,
    .close = gpus_close,
    .free = gpus_free,
};
