#include "agent/report/job_attempts.h"

#include <stdlib.h>

#include "agent/report/attempts.h"
#include "agent/report/flight_report.h"
#include "agent/report/report_input.h"
#include "core/clock.h"
#include "core/mem.h"

struct kept {
    struct node *n;
    struct attempts attempts;
    char *operations; /* of the last round when it was stopped; NULL: none */
};

static int kept_open(void **state, struct node *n, struct err *e)
{
    struct kept *k = xcalloc(1, sizeof(*k));
    (void)e;
    k->n = n;
    *state = k;
    return 0;
}

static int kept_begin(void *state, struct err *e)
{
    struct kept *k = state;
    (void)e;
    free(k->operations);
    k->operations = NULL;
    attempts_begin(&k->attempts, k->n->table, k->n->group_rank, k->n->log_dir, day_ns());
    return 0;
}

static const struct attempt *newest(const struct kept *k)
{
    return k->attempts.n ? &k->attempts.e[k->attempts.n - 1] : NULL;
}

/* Keeps a record of this node's own worker, which is the better one. */
static void note_cause(struct kept *k, enum stop_reason reason, const char *text,
                       const struct failure *first)
{
    const struct attempt *e = newest(k);
    bool better = e && e->first && first && e->first->rank == first->rank && e->end_wall_ns;
    attempts_cause(&k->attempts, cause_of_stop(reason, first), text, better ? NULL : first);
}

static void kept_stops(void *state, const struct rdzv_stop *why)
{
    struct kept *k = state;
    const struct node *n = k->n;
    note_cause(k, why->reason, why->text, why->has_first ? &why->first : NULL);
    bool warned = why->reason == STOP_TIME_LIMIT && n->job->end.warn_s > 0; /* the workers go on */
    if (!k->operations && n->segment.fd >= 0 && !warned)
        k->operations =
            flight_report_text(&n->segment, n->table->nodes[n->group_rank].base_rank, mono_ns());
}

static void kept_state_changed(void *state, enum node_state from)
{
    struct kept *k = state;
    if (from == NODE_STOPPING || k->n->state == NODE_DONE)
        attempts_end(&k->attempts, day_ns());
}

/* The failure that the round stopped for may be that of this worker: now its record is complete. */
static void kept_complete(void *state, struct worker *w)
{
    const struct attempt *e = newest(state);
    if (e && e->first && e->first->rank == w->rank && w->failure.kind != FAILURE_STOPPED)
        *e->first = w->failure;
}

/* The result is about the last round. */
static void kept_finish(void *state, const struct rdzv_result *result)
{
    if (result->exit_code != 0)
        note_cause(state, result->reason, result->text, result->n ? &result->failures[0] : NULL);
}

static void kept_report(void *state, struct report_input *in)
{
    struct kept *k = state;
    in->attempts = k->attempts;
    in->operations = k->operations;
}

static void kept_free(void *state)
{
    struct kept *k = state;
    attempts_fini(&k->attempts);
    free(k->operations);
    free(k);
}

const struct feature attempts_feature = {
    .name = "attempts",
    .open = kept_open,
    .begin = kept_begin,
    .state_changed = kept_state_changed,
    .stops = kept_stops,
    .complete = kept_complete,
    .finish = kept_finish,
    .report = kept_report,
    .free = kept_free,
};
