/* Slurm, as far as a job asks it to be started again: drives requeue_rules as main.c does at the
 * end of a launcher. The first node of the job is node 0. A head asks itself, and its launchers do
 * not. */
#include "tests/sim/sim.h"

#include <stdio.h>

#define TIME_IS_OVER 75

/* Slurm takes the job once; whoever asks again is refused. */
static void ask(struct sim_node *n)
{
    sim_trace("asks for a requeue", sim_index(n), W.slurm.requeued);
    if (W.slurm.silent) { /* it says "no answer within 20 s" */
        W.slurm.said = true;
        return;
    }
    const char *answer = W.slurm.requeued ? "slurm_requeue error: Job is pending execution" : "";
    sim_total.requeued += !W.slurm.requeued;
    sim_total.requeued_twice += W.slurm.requeued;
    CHECK("I25", !W.slurm.requeued || requeue_is_done(answer),
          "node %d takes it for an error that the job is in the queue", sim_index(n));
    W.slurm.requeued = true;
}

void sim_requeue(struct sim_node *n)
{
    struct rdzv_info info;
    if (W.head.rules)
        return;
    member_state_get_info(n->m, &info);
    const struct requeue_end end = {.wanted = true,
                                    .time_is_over =
                                        agent_rules_exit_status(n->agent) == TIME_IS_OVER,
                                    .decided = info.decided.epoch != 0,
                                    .coordinator = n->s != NULL,
                                    .first_node = sim_index(n) == 0};
    n->requeue = requeue_part(&end);
    CHECK("I25", n->requeue != REQUEUE_ASK || W.asked[STOP_TIME_LIMIT],
          "node %d asks for a requeue, and no time was over", sim_index(n));
    W.slurm.said |= n->requeue == REQUEUE_FIRST_NODE && requeue_reason(n->requeue);
    if (n->requeue == REQUEUE_ASK)
        ask(n);
}

/* The coordinator of a job that it has ended for want of time, and that was not killed. */
static bool has_decided(const struct sim_node *n)
{
    struct rdzv_state_info info;
    if (!n->s || !n->closed || W.head.rules)
        return false;
    rdzv_state_get_info(n->s, &info);
    return info.finished && info.result->exit_code == TIME_IS_OVER;
}

void sim_requeue_check(void)
{
    for (int i = 0; i < W.n; i++) {
        const struct sim_node *n = &W.nodes[i];
        bool own = n->m && n->closed && agent_rules_exit_status(n->agent) == TIME_IS_OVER;
        if (!has_decided(n) || !own)
            continue;
        CHECK("I25", W.slurm.requeued || W.slurm.said,
              "the job has ended for want of time, and nobody asks for a requeue (node %d)", i);
    }
}
