#include "rendezvous/rules/rdzv_state.c"

#include "tests/sim/all/all.h"

static void forget_output(struct rdzv_output *o)
{
    assert(o->queue_head == o->queue_len && o->line_head == o->nlines);
    free(o->queue);
    free(o->lines);
    free(o->taken);
    o->queue = NULL;
    o->lines = NULL;
    o->taken = NULL;
    o->queue_head = o->queue_len = o->queue_cap = 0;
    o->line_head = o->nlines = o->cap_lines = 0;
}

/* The nodes' joining counts by its order, the sum of the delays by what was added to it since the
 * node was heard of whose last message is the oldest, an exact clock offset does not grow old. */
static void forget_of_nodes(struct rdzv_state *s)
{
    uint64_t late = s->delay.late_ns, joined[8];
    assert(s->nodes.n <= (int)ARRAY_LEN(joined));
    for (int i = 0; i < s->nodes.n; i++) {
        const struct rdzv_node *n = s->nodes.e[i];
        late = n->late_ns < late ? n->late_ns : late;
        joined[i] = 1;
        for (int k = 0; k < s->nodes.n; k++)
            joined[i] += s->nodes.e[k]->joined_ns < n->joined_ns;
    }
    s->delay.late_ns -= late;
    if (s->delay.graced_ns) /* by a clock that stops in delays */
        s->delay.graced_ns += late;
    if (now - s->delay.late_ns >= s->delay.graced_ns + s->rules.dead_ns)
        s->delay.graced_ns = 0;
    if (s->delay.grace_at < now)
        s->delay.grace_at = 0;
    for (int i = 0; i < s->nodes.n; i++) {
        struct rdzv_node *n = s->nodes.e[i];
        n->joined_ns = joined[i];
        n->late_ns -= late;
        n->clock.at_ns = n->clock.known ? now : 0;
        if (n->view_ns < now)
            n->view_ns = 0;
    }
}

static void forget_times(struct rdzv_state *s)
{
    enum rdzv_phase p = (enum rdzv_phase)s->phase.state;
    struct rdzv_election *e = &s->election;
    if (p != RDZV_COLLECT)
        s->collect_ns = s->join_at = s->notice_at = 0;
    s->run_ns = p == RDZV_RUN || p == RDZV_STOP ? all_cap(s->run_ns, s->rules.dead_ns) : 0;
    s->stop_ns = p == RDZV_STOP ? all_cap(s->stop_ns, s->rules.dead_ns) : 0;
    s->result_ns = p == RDZV_FINISH;
    if (e->lease_look_at <= now)
        e->lease_look_at = e->lease_until = 0;
    if (!e->standing)
        e->stood_ns = 0;
    if (p != RDZV_PREPARE)
        e->prepare_ns = 1;
    for (int i = 0; i < s->crash_loop.nnodes; i++)
        s->crash_loop.nodes[i].last_ns = now;
    if (s->reported_finished) {
        s->check_at = s->close_at = 1;
        s->delay = (struct delay){0};
    }
}

void all_forget_coordinator(struct rdzv_state *s)
{
    forget_output(&s->out);
    forget_of_nodes(s);
    forget_times(s);
    s->given_up = (struct rdzv_stop){0};
    memset(s->notice, 0, sizeof(s->notice));
    if (s->why_counter + 1 < s->gen.counter || s->phase.state == RDZV_FINISH)
        s->why = (struct rdzv_stop){0};
    s->why.first.seen_ns = 0; /* for messages to people */
    ALL_WIPE(s->why.text);
    ALL_WIPE(s->loss_text);
    ALL_WIPE(s->end_text);
    ALL_WIPE(s->result.text);
    free(s->respawns);
    s->respawns = NULL;
    if (s->nmembers == 0) {
        free(s->members);
        s->members = NULL;
    }
}
