/* Stands for the threads of the heartbeats (rendezvous/wire/beat.h) on both sides of a connection,
 * and for the second connection between them. They run on while their process's loop is stuck, and
 * what they learn reaches the rules when that turns again. */
#include "tests/sim/sim.h"

#define STUCK_NS (10 * SEC)

static bool thread_stands(const struct sim_node *n)
{
    return n->frozen && !n->stuck;
}

static bool unhealthy(const struct sim_node *n)
{
    return n->stuck && now - n->stuck_ns >= STUCK_NS;
}

static void push(enum sim_kind kind, int link, uint64_t in_ns, const struct sim_event *like)
{
    struct sim_event e = like ? *like : (struct sim_event){0};
    e.kind = kind;
    e.who = link;
    e.at = now + in_ns;
    sim_push(e);
}

/* The coordinator has answered on the first connection. */
void sim_beat_begin(int link)
{
    struct sim_link *l = &W.links[link];
    struct sim_node *n = &W.nodes[l->node], *t = &W.nodes[l->to];
    if (!W.beats || l->beats || !l->coordinator_end || !t->s || t->incarnation != l->to_incarnation)
        return;
    l->beats = true;
    l->beat_heard = sim_clock(t);
    l->beat_answered = sim_clock(n);
    push(EV_BEAT, link, sim_delay(), NULL);
}

static void extend(struct sim_node *n, struct sim_link *l, uint64_t from)
{
    if (from <= l->beat_lease)
        return;
    l->beat_lease = from;
    n->heard_ns = now;
    uint64_t until = sim_when(n, from + rdzv_guardian_lease_ns(W.rules.dead_ns));
    if (n->lease && until > n->lease)
        sim_guardian_lease(n, from + rdzv_guardian_lease_ns(W.rules.dead_ns));
}

static void node_beats(struct sim_event *e, struct sim_link *l)
{
    struct sim_node *n = &W.nodes[l->node];
    if (!n->m || n->incarnation != l->incarnation || !l->member_end)
        return;
    push(EV_BEAT, e->who, W.rules.heartbeat_ns / 2, NULL);
    if (thread_stands(n) || unhealthy(n))
        return;
    if (l->node != l->to) {
        struct sim_event up = {.number = sim_clock(n), .second = l->beat_seen};
        push(EV_BEAT_UP, e->who, sim_delay(), &up);
    } else if (n->s && l->coordinator_end && sim_clock(n) < n->grant) {
        l->beat_answered = sim_clock(n);
        extend(n, l, sim_clock(n));
    }
}

static void coordinator_answers(struct sim_event *e, struct sim_link *l)
{
    struct sim_node *t = &W.nodes[l->to];
    uint64_t clock = sim_clock(t), before = l->beat_heard;
    if (!t->s || t->incarnation != l->to_incarnation || !l->coordinator_end || unhealthy(t))
        return;
    if (e->second <= clock && e->second > l->beat_touch)
        l->beat_touch = e->second;
    l->beat_heard = clock;
    struct sim_event down = {.number = e->number, .second = clock};
    down.lease = clock < before + W.rules.dead_ns && clock < t->grant;
    sim_total.beats++;
    push(EV_BEAT_DOWN, e->who, sim_delay(), &down);
}

static void node_hears(struct sim_event *e, struct sim_link *l)
{
    struct sim_node *n = &W.nodes[l->node];
    if (!n->m || n->incarnation != l->incarnation || !l->member_end)
        return;
    l->beat_seen = e->second;
    l->beat_answered = sim_clock(n);
    if (e->lease && !unhealthy(n))
        extend(n, l, e->number);
}

void sim_beat_event(struct sim_event *e)
{
    struct sim_link *l = &W.links[e->who];
    bool up = e->kind == EV_BEAT_UP;
    int from = up ? l->node : l->to, to = up ? l->to : l->node;
    if (e->kind == EV_BEAT) {
        node_beats(e, l);
    } else if (l->dead || !(up ? l->coordinator_end : l->member_end)) {
        return;
    } else if (sim_rejects(from, to) || sim_address_taken(to, from)) {
        return; /* lost, with the connection */
    } else if (!sim_passes(from, to)) {
        sim_wait_for_heal(e);
    } else if (thread_stands(&W.nodes[to])) {
        sim_wait_for_thaw(&W.nodes[to], e);
    } else if (up) {
        coordinator_answers(e, l);
    } else {
        node_hears(e, l);
    }
}

/* Delivers the heartbeat thread's news, as the event loop does in each turn. */
void sim_beat_tell_coordinator(struct sim_node *t, const struct sim_link *l)
{
    const struct rdzv_beat b = {l->beat_heard, l->beat_touch, W.nodes[l->node].stuck ? 5000 : 0};
    if (t->s && l->beats && l->node != l->to && l->to_incarnation == t->incarnation)
        rdzv_state_beat(t->s, &l->id, &b, sim_clock(t));
}

void sim_beat_tell_member(struct sim_node *n)
{
    if (n->link < 0 || !W.links[n->link].beats)
        return;
    const struct sim_link *l = &W.links[n->link];
    member_state_beat(n->m, l->beat_answered, l->beat_lease, W.nodes[l->to].stuck ? 5000 : 0,
                      sim_clock(n));
}
