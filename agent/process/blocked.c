#include "agent/process/blocked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/process/sweep.h"
#include "core/clock.h"
#include "core/mem.h"

/* The time at which a worker was first seen in its present state D, and its process. */
struct sleep {
    pid_t pid;
    uint64_t since_ns; /* 0: not in D */
};

struct blocked {
    struct node *n;
    uint64_t limit_ns;
    uv_timer_t timer;
    struct sleep *workers; /* of this round; job->nproc */
};

/* SIGKILL ends a killable wait. After another wait the stop begins as after a death, and ends as a
 * stop whose workers do not die. */
static void fail(struct blocked *b, int local_rank, pid_t pid)
{
    char what[160], why[320];
    snprintf(why, sizeof(why),
             "%s for %g s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT); dlaunch sent SIGKILL",
             sweep_describe(pid, what, sizeof(what)), (double)b->limit_ns / 1e9);
    b->n->calls->fail(b->n, local_rank, why);
}

static void on_timer(uv_timer_t *t)
{
    struct blocked *b = container_of(t, struct blocked, timer);
    uint64_t now = mono_ns();
    for (int i = 0; i < b->n->job->nproc && b->n->state == NODE_RUNNING; i++) {
        const struct worker *w = &b->n->workers[i];
        struct sleep *s = &b->workers[i];
        char state;
        pid_t parent;
        if (w->state != WORKER_RUNNING || w->killed_for[0])
            continue;
        if (!sweep_read_stat(w->pid, &state, &parent) || state != 'D')
            s->since_ns = 0;
        else if (!s->since_ns || s->pid != w->pid)
            *s = (struct sleep){w->pid, now};
        else if (now - s->since_ns >= b->limit_ns)
            fail(b, i, w->pid);
    }
}

/* A value that is not a positive number turns the watch off, as in torchrun. */
static int blocked_open(void **state, struct node *n, struct err *e)
{
    const char *text = getenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    double seconds = text ? strtod(text, NULL) : 0;
    (void)e;
    if (!(seconds > 0 && seconds < 1e9))
        return 0;
    struct blocked *b = xcalloc(1, sizeof(*b));
    *b = (struct blocked){.n = n,
                          .limit_ns = (uint64_t)(seconds * 1e9),
                          .workers = xcalloc((size_t)n->job->nproc, sizeof(*b->workers))};
    uv_timer_init(n->loop, &b->timer);
    uvx_own(n->scope, &b->timer);
    *state = b;
    return 0;
}

static int blocked_begin(void *state, struct err *e)
{
    struct blocked *b = state;
    (void)e;
    memset(b->workers, 0, (size_t)b->n->job->nproc * sizeof(*b->workers));
    return 0;
}

static void blocked_state_changed(void *state, enum node_state from)
{
    struct blocked *b = state;
    uint64_t ms = b->limit_ns / 4000000; /* four looks in that time */
    (void)from;
    ms = ms < 20 ? 20 : ms > 1000 ? 1000 : ms;
    if (b->n->state == NODE_RUNNING)
        uv_timer_start(&b->timer, on_timer, ms, ms);
    else
        uv_timer_stop(&b->timer);
}

static void blocked_free(void *state)
{
    struct blocked *b = state;
    free(b->workers);
    free(b);
}

const struct feature blocked_feature = {
    .name = "blocked workers",
    .open = blocked_open,
    .begin = blocked_begin,
    .state_changed = blocked_state_changed,
    .free = blocked_free,
};
