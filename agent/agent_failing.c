/* agent_failing.c: what the failure of a worker brings about: the operations that wait for it end,
 * the coordinator hears of it, and the others of this node are stopped. */
#include <signal.h>
#include <stdlib.h>

#include "agent/agent_impl.h"
#include "agent/report/recorded.h"
#include "core/clock.h"

void agent_keep_recorded(struct agent *a)
{
    const struct rank_table *t = a->ctx.table;
    if (!a->recorded && t)
        a->recorded = recorded_text(&a->segment, t->nodes[a->ctx.group_rank].base_rank, mono_ns());
}

void agent_raise_abort(struct agent *a, const struct failure *first, const char *text)
{
    const struct rank_table *t = a->ctx.table;
    struct failure lost;
    agent_keep_recorded(a);
    if (first && first->kind == FAILURE_NODE && t && first->node >= 0 && first->node < t->nnodes &&
        t->nodes[first->node].nproc > 0) {
        lost = *first; /* with all its ranks: the lowest stands for them; its pid nobody knows */
        lost.rank = t->nodes[first->node].base_rank;
        lost.pid = 0;
        lost.exit_code = -1;
        first = &lost;
    }
    segment_raise(&a->segment, first, text);
}

/* First of all that its end brings about: others wait for it. */
void agent_tell_neighbours(struct agent *a, const struct worker *w)
{
    char text[512];
    if (a->job->rdzv.restart_policy == RESTART_WORKER)
        return;
    failure_describe(&w->failure, text, sizeof(text));
    agent_raise_abort(a, &w->failure, text);
}

void agent_worker_failed(struct agent *a, struct worker *w)
{
    rdzv_failed(a->rdzv, &w->failure);
    if (a->job->rdzv.restart_policy == RESTART_WORKER)
        return;
    a->failed = true;
    agent_stop_workers(a, SIGTERM);
}

/* Sooner than on_worker_exit, which comes when nothing is left of the process. If that is so by
 * now, because the loop was late, the reaper knows who was the first. */
void agent_on_dying(void *arg)
{
    struct agent *a = arg;
    reaper_look(a->reaper);
    for (int i = 0; i < a->job->nproc && a->fsm.state == RUNNING; i++) {
        struct worker *w = &a->workers[i];
        int status =
            w->state == WORKER_RUNNING && dying_is(&a->segment, i) ? dying_status(w->pid) : -1;
        if (status <= 0)
            continue;
        worker_dying(w, &a->ctx, status);
        agent_tell_neighbours(a, w);
        agent_worker_failed(a, w);
    }
}
