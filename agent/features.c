#include "agent/features.h"

#include <stdlib.h>

#include "agent/base/debuggers.h"
#include "agent/device/gpus.h"
#include "agent/doctor/preflight.h"
#include "agent/hostname_check.h"
#include "agent/mpi/mpi.h"
#include "agent/process/blocked.h"
#include "agent/process/file_timer.h"
#include "agent/process/oom.h"
#include "agent/process/warm_pool.h"
#include "agent/report/events.h"
#include "agent/report/job_attempts.h"
#include "agent/report/job_operations.h"
#include "agent/report/ledger_notes.h"
#include "agent/report/timeline_file.h"
#include "agent/report/top.h"
#include "agent/report/trainer_status.h"
#include "agent/stacks/evidence.h"
#include "agent/stacks/hangs.h"
#include "agent/stacks/slow_ranks.h"
#include "agent/stacks/stacks.h"
#include "core/mem.h"

/* A feature that stands behind another one in the table is called after it: a node is looked at
 * when the GPUs have their memory back, the ledger's note comes before the state that ends a round,
 * the timeline has the last event, and hangs are looked for by the stacks. */
static const struct feature *const rows[] = {
    &mpi_feature,        &gpus_feature,      &preflight_feature,  &hostname_feature,
    &file_timer_feature, &blocked_feature,   &oom_feature,        &ledger_feature,
    &events_feature,     &debuggers_feature, &timeline_feature,   &attempts_feature,
    &trainer_feature,    &top_feature,       &operations_feature, &slow_ranks_feature,
    &stacks_feature,     &hangs_feature,     &warm_feature,       &evidence_feature,
};
#define ROWS ARRAY_LEN(rows)

struct features {
    void *state[ROWS]; /* NULL: not wanted */
    size_t open;       /* while they are closed */
    void (*on_closed)(void *arg);
    void *arg;
};

/* Makes the call for each feature that is wanted and has the callback, with the state `s`. */
#define EACH(f, callback, ...)                    \
    for (size_t i = 0; (f) && i < ROWS; i++)      \
        if ((f)->state[i] && rows[i]->callback) { \
            void *s = (f)->state[i];              \
            rows[i]->callback(s, ##__VA_ARGS__);  \
        }

/* Runs the statement behind the macro for each feature whose answer is not `value`. */
#define UNTIL(f, value, callback, ...)            \
    for (size_t i = 0; (f) && i < ROWS; i++)      \
        if ((f)->state[i] && rows[i]->callback && \
            rows[i]->callback((f)->state[i], ##__VA_ARGS__) != (value))

int features_open(struct features **out, struct node *n, struct err *e)
{
    struct features *f = *out = xcalloc(1, sizeof(*f));
    for (size_t i = 0; i < ROWS; i++) {
        int r = rows[i]->open(&f->state[i], n, e);
        if (r < 0)
            return r;
    }
    return 0;
}

void features_prepare(struct features *f)
{
    EACH(f, prepare)
}

bool features_ready(struct features *f)
{
    UNTIL(f, true, ready) return false;
    return true;
}

int features_begin(struct features *f, struct err *e)
{
    UNTIL(f, 0, begin, e) return e->code;
    return 0;
}

bool features_may_start(struct features *f)
{
    UNTIL(f, true, may_start) return false;
    return true;
}

void features_variables(struct features *f, struct variables *out)
{
    EACH(f, variables, out)
}

void features_state_changed(struct features *f, enum node_state from)
{
    EACH(f, state_changed, from)
}

int features_worker_starts(struct features *f, const struct worker *w, struct worker_extras *x,
                           struct err *e)
{
    UNTIL(f, 0, worker_starts, w, x, e) return e->code;
    return 0;
}

bool features_worker_takes(struct features *f, const struct worker *w,
                           const struct spawn_request *req, pid_t *pid, int *pidfd)
{
    UNTIL(f, false, worker_takes, w, req, pid, pidfd) return true;
    return false;
}

void features_worker_started(struct features *f, const struct worker *w)
{
    EACH(f, worker_started, w)
}

void features_worker_exits(struct features *f, const struct worker *w)
{
    EACH(f, worker_exits, w)
}

void features_worker_failed(struct features *f, struct worker *w, bool by_dlaunch)
{
    EACH(f, worker_failed, w, by_dlaunch)
}

const char *features_worker_fault(struct features *f, const struct worker *w)
{
    const char *fault = NULL;
    for (size_t i = 0; i < ROWS && !fault; i++) {
        if (f->state[i] && rows[i]->worker_fault)
            fault = rows[i]->worker_fault(f->state[i], w);
    }
    return fault;
}

void features_worker_ended(struct features *f, const struct worker *w)
{
    EACH(f, worker_ended, w)
}

void features_worker_drained(struct features *f, const struct worker *w)
{
    EACH(f, worker_drained, w)
}

void features_log_grown(struct features *f)
{
    EACH(f, log_grown)
}

bool features_request(struct features *f, const struct rdzv_request *r)
{
    UNTIL(f, false, request, r) return true;
    return false;
}

void features_answer(struct features *f, const struct rdzv_answer *a)
{
    UNTIL(f, false, answer, a) return;
}

bool features_merge(const struct rdzv_answers *answers, struct buf *out)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i]->merge && rows[i]->merge(answers, out))
            return true;
    }
    return false;
}

void features_gathered(struct features *f, struct rd values, int nnodes)
{
    EACH(f, gathered, values, nnodes)
}

bool features_looked(struct features *f, enum stop_reason reason)
{
    UNTIL(f, true, looked, reason) return false;
    return true;
}

void features_stops(struct features *f, const struct rdzv_stop *why)
{
    EACH(f, stops, why)
}

bool features_ended(struct features *f)
{
    UNTIL(f, true, ended) return false;
    return true;
}

void features_complete(struct features *f, struct worker *w)
{
    EACH(f, complete, w)
}

bool features_helpers(struct features *f, struct pids *out)
{
    UNTIL(f, true, helpers, out) return false;
    return true;
}

void features_killed(struct features *f)
{
    EACH(f, killed)
}

void features_reaped(struct features *f, pid_t pid)
{
    EACH(f, reaped, pid)
}

void features_status(struct features *f, struct agent_status *out)
{
    EACH(f, status, out)
}

void features_finish(struct features *f, const struct rdzv_result *result)
{
    EACH(f, finish, result)
}

void features_report(struct features *f, struct report_input *in)
{
    EACH(f, report, in)
}

void *features_find(const struct features *f, const struct feature *one)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i] == one)
            return f->state[i];
    }
    return NULL;
}

static void on_feature_closed(void *arg)
{
    struct features *f = arg;
    if (--f->open == 0)
        f->on_closed(f->arg);
}

void features_close(struct features *f, void (*on_closed)(void *arg), void *arg)
{
    f->on_closed = on_closed;
    f->arg = arg;
    f->open = 1;
    for (size_t i = 0; i < ROWS; i++) {
        if (!f->state[i] || !rows[i]->close)
            continue;
        f->open++;
        rows[i]->close(f->state[i], on_feature_closed, f);
    }
    on_feature_closed(f);
}

void features_free(struct features *f)
{
    for (size_t i = 0; f && i < ROWS; i++) {
        if (f->state[i] && rows[i]->free)
            rows[i]->free(f->state[i]);
    }
    free(f);
}
