/* Drives head_rules as head.c does: dlaunch -H, whose hosts start the launchers. Each host has a
 * connection of its own to the head: hosts that cannot reach each other may reach the head, and the
 * other way. A host becomes a node when it gets its plan; its rank is the node's index. */
#include "tests/sim/sim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define LOST_WITHIN  (45 * SEC)   /* until a connection to a host that is gone has ended */
#define GRACE_NS     (300 * MSEC) /* between SIGTERM and SIGKILL when the head is gone */
#define ABSENT_AFTER (20 * SEC)   /* the patience with a host that does not answer */

/* What a host tells the head, and the other way. */
enum { READY, ABSENT, BEGAN, TOLD, CLOSED };
enum { PLAN, DROPPED, KILL_LAUNCHER, SIGNALS /* and the signal */ };

static struct sim_host *host_of(const struct sim_node *n)
{
    for (int i = 0; i < W.head.nhosts; i++) {
        if (W.head.hosts[i].node == sim_index(n))
            return &W.head.hosts[i];
    }
    return NULL;
}

static int index_of(const struct sim_host *h)
{
    return (int)(h - W.head.hosts);
}

static uint64_t arrival(const struct sim_host *h, uint64_t *last, uint64_t in_ns)
{
    uint64_t at = now + in_ns;
    at = at > h->cut_until ? at : h->cut_until;
    return *last = at > *last ? at : *last + 1;
}

static void tell_head(struct sim_host *h, uint64_t what, uint64_t in_ns)
{
    if (!h->broken)
        sim_push((struct sim_event){.at = arrival(h, &h->up_at, in_ns),
                                    .kind = EV_HEAD_HEARS,
                                    .who = index_of(h),
                                    .number = what});
}

static void tell_host(struct sim_host *h, uint64_t what, uint64_t in_ns)
{
    sim_push((struct sim_event){.at = arrival(h, &h->down_at, in_ns),
                                .kind = EV_HOST_HEARS,
                                .who = index_of(h),
                                .number = what});
}

/* The connection ends, for each side in its own time. */
static void end_connection(struct sim_host *h, uint64_t head_in_ns, uint64_t host_in_ns)
{
    tell_head(h, CLOSED, head_in_ns);
    tell_host(h, DROPPED, host_in_ns);
    h->broken = true;
}

void sim_head_new(void)
{
    struct rdzv_rules *r = &W.rules;
    r->spares = r->spares < W.n - r->min_nodes ? r->spares : W.n - r->min_nodes;
    int nhosts = r->min_nodes == r->max_nodes ? r->max_nodes + r->spares : W.n;
    W.head = (struct sim_head){.hosts = xcalloc((size_t)nhosts, sizeof(*W.head.hosts)),
                               .nhosts = nhosts};
    W.head.rules = head_rules_new((size_t)nhosts, r->min_nodes, r->max_nodes, r->spares);
    for (int i = 0; i < nhosts; i++) {
        struct sim_host *h = &W.head.hosts[i];
        h->node = -1;
        if (one_in(20))
            tell_head(h, one_in(2) ? ABSENT : CLOSED, below(ABSENT_AFTER));
        else
            tell_head(h, READY, below(one_in(10) ? 5 * SEC : 50 * MSEC));
    }
}

void sim_head_free(void)
{
    head_rules_free(W.head.rules);
    free(W.head.hosts);
    W.head = (struct sim_head){0};
}

/* ------------------------------------------------------------------------------- what it decides
 */

static void plan_all(void)
{
    W.head.planned = true;
    W.rules.max_nodes = head_rules_nodes(W.head.rules);
    for (int i = 0; i < W.head.nhosts; i++) {
        struct sim_host *h = &W.head.hosts[i];
        h->node = head_rules_rank(W.head.rules, (size_t)i);
        if (h->node >= 0)
            tell_host(h, PLAN, sim_delay());
    }
}

static void carry_out(const struct head_action *a)
{
    struct sim_host *h = a->host == HEAD_NO_HOST ? NULL : &W.head.hosts[a->host];
    switch (a->act) {
    case HEAD_ACT_LOG:
        if (W.loud)
            printf("%12.6f head: %d: %s\n", (double)now / 1e9, h ? index_of(h) : -1, a->text);
        break;
    case HEAD_ACT_PLAN:
        plan_all();
        break;
    case HEAD_ACT_DROP:
    case HEAD_ACT_KILL:
        if (!h->broken)
            end_connection(h, below(MSEC), sim_delay());
        break;
    case HEAD_ACT_SIGNAL:
        tell_host(h, SIGNALS + (uint64_t)a->signo, sim_delay());
        break;
    case HEAD_ACT_HURRY:
        break;
    }
}

static bool is_over(void)
{
    for (int i = 0; i < W.head.nhosts; i++) {
        if (head_rules_is_left(W.head.rules, (size_t)i))
            return false;
    }
    return true;
}

static void drain(void)
{
    struct head_action a;
    while (head_rules_next(W.head.rules, &a))
        carry_out(&a);
    head_rules_check(W.head.rules);
    if (!W.head.over && is_over()) {
        W.head.over = W.look = true;
        sim_trace("head ends", 0, (uint64_t)head_rules_status(W.head.rules));
        sim_check_head();
        return;
    }
    uint64_t at = head_rules_deadline(W.head.rules, true);
    if (at != UINT64_MAX && !(W.head.tick_at <= at && W.head.tick_at > now)) {
        W.head.tick_at = at > now ? at : now + 1;
        sim_push((struct sim_event){.at = W.head.tick_at, .kind = EV_HEAD_TICK});
    }
}

/* ------------------------------------------------------------------------------ what hosts tell it
 */

static void host_ended(struct sim_host *h)
{
    struct sim_head *head = &W.head;
    bool taken = head->planned && head_rules_is_left(head->rules, (size_t)index_of(h));
    if (taken && !head_rules_ends(head->rules)) {
        h->told = true;
        head->codes[h->exit.status & 255] |= !h->reported && !head->began;
    }
    head_rules_ended(head->rules, (size_t)index_of(h), &h->exit, h->reported);
}

static void hears(struct sim_host *h, uint64_t what)
{
    size_t i = (size_t)index_of(h);
    if (h->closed)
        return;
    if (what == READY) {
        head_rules_ready(W.head.rules, i);
    } else if (what == ABSENT) {
        W.head.codes[1] = true;
        h->broken = h->closed = true;
        head_rules_absent(W.head.rules, i, "no answer", 1);
    } else if (what == BEGAN) {
        W.head.began |= W.head.planned && head_rules_is_left(W.head.rules, i);
        head_rules_began(W.head.rules, i);
    } else if (what == TOLD) {
        host_ended(h);
    } else {
        W.head.codes[1] |= !W.head.began;
        h->broken = h->closed = true;
        head_rules_closed(W.head.rules, i, "it is gone");
    }
}

static void push_request(const struct sim_host *h, enum sim_request what)
{
    const struct sim_node *n = &W.nodes[h->node];
    sim_push((struct sim_event){.at = now + 1,
                                .kind = EV_REQUEST,
                                .who = h->node,
                                .incarnation = n->incarnation,
                                .number = what});
}

static void host_hears(struct sim_host *h, uint64_t what)
{
    struct sim_node *n = h->node >= 0 ? &W.nodes[h->node] : NULL;
    if (!n || (what == PLAN && (h->gone || n->incarnation)))
        return;
    if (what == PLAN) {
        n->node_rank = h->node < W.rules.max_nodes ? h->node : -1; /* spares have none */
        sim_start(h->node);
        return;
    }
    if (what == DROPPED)
        h->gone = true;
    if (!n->m || n->closed)
        return;
    if (what == DROPPED) { /* its launcher is told to end, and killed a moment later */
        push_request(h, ASK_SIGTERM);
        tell_host(h, KILL_LAUNCHER, GRACE_NS);
    } else if (what == KILL_LAUNCHER) {
        push_request(h, ASK_GUARDIAN);
    } else if (what != SIGNALS + SIGUSR1) {
        push_request(h, what == SIGNALS + SIGQUIT ? ASK_SIGQUIT : ASK_SIGTERM);
    }
}

void sim_head_event(const struct sim_event *e)
{
    if (!W.head.rules || W.head.killed)
        return;
    if (e->kind == EV_HOST_HEARS) {
        host_hears(&W.head.hosts[e->who], e->number);
        return;
    }
    if (e->kind == EV_HEAD_HEARS) {
        hears(&W.head.hosts[e->who], e->number);
    } else if (e->kind == EV_HEAD_SIGNAL && !W.head.over) {
        W.head.codes[128 + e->number] |= !W.head.planned;
        sim_trace("head gets a signal", 0, e->number);
        head_rules_signal(W.head.rules, (int)e->number, now);
    } else if (e->kind == EV_HEAD_TICK) {
        W.head.tick_at = 0;
        head_rules_tick(W.head.rules, true, now);
    }
    drain();
}

/* The node's workers run. */
void sim_head_began(const struct sim_node *n)
{
    struct sim_host *h = W.head.rules ? host_of(n) : NULL;
    if (!h || h->began)
        return;
    h->began = true;
    tell_head(h, BEGAN, sim_delay());
}

/* The node's launcher has ended: with a result, or killed; silent: with its host. */
void sim_head_exited(const struct sim_node *n, bool killed, bool silent)
{
    struct sim_host *h = W.head.rules ? host_of(n) : NULL;
    struct rdzv_info info;
    if (!h || h->exited)
        return;
    h->exited = true;
    if (silent) {
        tell_head(h, CLOSED, below(LOST_WITHIN));
        h->broken = true;
        return;
    }
    h->exit = (struct frame_exit){.status = 128 + SIGKILL};
    if (!killed) {
        member_state_get_info(n->m, &info);
        h->exit =
            (struct frame_exit){.status = agent_rules_exit_status(n->agent),
                                .decided = info.decided.epoch && agent_rules_tells_result(n->agent),
                                .epoch = info.decided.epoch,
                                .counter = info.decided.counter};
        h->reported = h->exit.status != 0;
    }
    tell_head(h, TOLD, sim_delay());
    tell_head(h, CLOSED, 0);
    h->broken = true;
}

/* ----------------------------------------------------------------------------- what happens to it
 */

/* The connection to a host breaks, or nothing passes on it for a while; the head gets signals, or
 * is killed. */
void sim_head_fault(void)
{
    struct sim_host *h = &W.head.hosts[below((uint64_t)W.head.nhosts)];
    uint64_t what = below(24);
    if (what == 0) {
        W.head.killed = true;
        sim_trace("head is killed", 0, 0);
        for (int i = 0; i < W.head.nhosts; i++)
            sim_head_orphan(i);
    } else if (what < 6) {
        if (!h->broken)
            end_connection(h, sim_delay() + below(one_in(2) ? LOST_WITHIN : MSEC),
                           sim_delay() + below(one_in(2) ? LOST_WITHIN : MSEC));
    } else if (what < 18) {
        h->cut_until = now + below(40 * SEC);
    } else {
        static const int signals[] = {SIGTERM, SIGTERM, SIGQUIT, SIGUSR1};
        for (uint64_t k = 0, at = now; k < 1 + below(3); k++, at += below(12 * SEC))
            sim_push((struct sim_event){.at = at,
                                        .kind = EV_HEAD_SIGNAL,
                                        .number = (uint64_t)signals[below(ARRAY_LEN(signals))]});
    }
}

/* Its head is gone for good. */
void sim_head_orphan(int host)
{
    const struct sim_host *h = &W.head.hosts[host];
    if (h->node < 0 || !W.nodes[h->node].m || W.nodes[h->node].closed)
        return;
    push_request(h, ASK_SIGTERM);
    sim_push((struct sim_event){.at = now + GRACE_NS,
                                .kind = EV_REQUEST,
                                .who = h->node,
                                .incarnation = W.nodes[h->node].incarnation,
                                .number = ASK_GUARDIAN});
}
