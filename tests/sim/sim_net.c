/* Connections, as TCP gives them: in order, until they end. What is under way is late, waits for a
 * cut to heal or is swallowed; and, so that the rules need not believe in all that, may come again.
 */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

bool sim_passes(int from, int to)
{
    return from == to || !W.cut[from * W.n + to];
}

/* Another host answers to the address: what is sent to it reaches that one. */
bool sim_address_taken(int from, int to)
{
    enum sim_obstruction o = W.nodes[to].obstruction;
    return from != to && o >= ADDRESS_REFUSES && o <= ADDRESS_SILENT;
}

bool sim_rejects(int from, int to)
{
    bool firewall = W.nodes[from].obstruction == FIREWALL_REJECTS ||
                    W.nodes[to].obstruction == FIREWALL_REJECTS;
    return from != to && (firewall || sim_address_taken(from, to));
}

/* One end of a connection gets a reset, of which the other end knows nothing. */
static void reset_end(int link, bool member)
{
    sim_push((struct sim_event){.at = now + sim_delay(),
                                .kind = member ? EV_END_MEMBER : EV_END_COORDINATOR,
                                .who = link,
                                .there = true,
                                .number = RDZV_END_RESET});
}

static uint64_t arrival(struct sim_link *l, uint64_t *last)
{
    uint64_t at = now + (l->node == l->to ? 1000 : sim_delay());
    return *last = at > *last ? at : *last + 1;
}

/* A copy of it comes later, behind what is newer. (A second hello is stopped by the driver, and
 * behind a refusal nothing is read any more.) */
static void maybe_again(enum sim_kind kind, int link, uint64_t at, const struct buf *b)
{
    enum rdzv_msg type = (enum rdzv_msg)b->data[4];
    struct sim_event e = {.kind = kind, .who = link, .again = true};
    if (type == RDZV_MSG_HELLO || type == RDZV_MSG_REFUSE || !one_in(12))
        return;
    e.at = at + below(one_in(3) ? 3 * SEC : 300 * MSEC);
    buf_put(&e.bytes, b->data, b->len);
    sim_total.replayed++;
    sim_push(e);
}

void sim_send_to_coordinator(struct sim_node *n, struct buf b)
{
    struct sim_link *l = &W.links[n->link];
    uint64_t at = arrival(l, &l->up_at);
    sim_check_message(n, &b);
    if (W.replays)
        maybe_again(EV_TO_COORDINATOR, n->link, at, &b);
    sim_push((struct sim_event){.at = at, .kind = EV_TO_COORDINATOR, .who = n->link, .bytes = b});
}

void sim_send_to_member(int link, struct buf b)
{
    struct sim_link *l = &W.links[link];
    uint64_t at = arrival(l, &l->down_at);
    CHECK("I10", b.len <= RDZV_FRAME_MAX, "a message of %zu bytes", b.len);
    if (W.replays)
        maybe_again(EV_TO_MEMBER, link, at, &b);
    sim_push((struct sim_event){.at = at, .kind = EV_TO_MEMBER, .who = link, .bytes = b});
}

/* One end closes; the other learns of it unless nothing passes any more. */
void sim_member_closes(struct sim_node *n, enum rdzv_end how)
{
    if (n->link < 0)
        return;
    struct sim_link *l = &W.links[n->link];
    l->member_end = false;
    if (l->coordinator_end && !l->dead)
        sim_push((struct sim_event){.at = arrival(l, &l->up_at),
                                    .kind = EV_END_COORDINATOR,
                                    .who = n->link,
                                    .number = how});
    n->link = -1;
}

void sim_coordinator_closes(int link, enum rdzv_end how)
{
    struct sim_link *l = &W.links[link];
    l->coordinator_end = false;
    if (l->member_end && !l->dead)
        sim_push((struct sim_event){
            .at = arrival(l, &l->down_at), .kind = EV_END_MEMBER, .who = link, .number = how});
}

/* A connection that the node's member has from now on. */
int sim_new_link(struct sim_node *n, const struct sim_link *like)
{
    int k = W.nlinks;
    if (W.small) /* the numbers are part of the state */
        for (k = 0; k < W.nlinks && !sim_link_is_free(k); k++)
            ;
    if (k == W.cap_links) {
        W.cap_links = W.cap_links ? 2 * W.cap_links : 256;
        W.links = xrealloc(W.links, (size_t)W.cap_links * sizeof(*W.links));
    }
    struct sim_link *l = &W.links[k];
    *l = *like;
    l->node = sim_index(n);
    l->incarnation = n->incarnation;
    l->member_end = true;
    W.nlinks += k == W.nlinks;
    return n->link = k;
}

bool sim_link_is_free(int link)
{
    const struct sim_link *l = &W.links[link];
    if (l->member_end || l->coordinator_end)
        return false;
    for (size_t i = 0; i < sim_events(); i++) {
        const struct sim_event *e = sim_event(i);
        if (e->kind <= EV_END_MEMBER && e->who == link)
            return false;
    }
    return true;
}

/* ----------------------------------------------------------------------------------- what waits */

void sim_wait_for_heal(const struct sim_event *e)
{
    if (W.nwaiting == W.cap_waiting) {
        W.cap_waiting = W.cap_waiting ? 2 * W.cap_waiting : 64;
        W.waiting = xrealloc(W.waiting, (size_t)W.cap_waiting * sizeof(*W.waiting));
    }
    W.waiting[W.nwaiting++] = *e;
}

void sim_wait_for_thaw(struct sim_node *n, const struct sim_event *e)
{
    if (n->nheld == n->cap_held) {
        n->cap_held = n->cap_held ? 2 * n->cap_held : 64;
        n->held = xrealloc(n->held, (size_t)n->cap_held * sizeof(*n->held));
    }
    n->held[n->nheld++] = *e;
}

static bool passes(const struct sim_link *l, bool up)
{
    return l->dead || sim_passes(up ? l->node : l->to, up ? l->to : l->node);
}

/* Holds back what a cut blocks, and later messages behind earlier ones. */
static bool hold_on_link(struct sim_event *e, bool up)
{
    struct sim_link *l = &W.links[e->who];
    int from = up ? l->node : l->to, to = up ? l->to : l->node;
    bool message = e->kind == EV_TO_COORDINATOR || e->kind == EV_TO_MEMBER;
    if (!(up ? l->coordinator_end : l->member_end)) { /* nothing reads it: its host says so */
        if (message && !e->again && !l->dead && (up ? l->member_end : l->coordinator_end))
            reset_end(e->who, up);
        return false;
    }
    l->rejected[up] |= sim_rejects(from, to);
    if (!l->dead && l->rejected[up]) {
        if (message)
            reset_end(e->who, up);
        buf_fini(&e->bytes);
        return true;
    }
    if (!l->dead && sim_address_taken(to, from)) /* its acknowledgement reaches the other host */
        reset_end(e->who, !up);
    if (!passes(l, up)) {
        if (!l->stalled_ns[up]) {
            l->stalled_ns[up] = now;
            sim_push((struct sim_event){.at = now + W.rules.dead_ns / 10 * 6,
                                        .kind = EV_BREAK,
                                        .who = e->who,
                                        .number = up});
        }
        sim_wait_for_heal(e);
        return true;
    }
    if (now >= l->held_until[up])
        return false;
    e->at = l->held_until[up];
    sim_push(*e);
    return true;
}

/* Delivers what the cut held back when the sender's retransmission timer fires. */
void sim_healed(void)
{
    int n = W.nwaiting;
    W.nwaiting = 0;
    for (int i = 0; i < n; i++) {
        struct sim_event e = W.waiting[i];
        struct sim_link *l = &W.links[e.who];
        bool up =
            e.kind == EV_TO_COORDINATOR || e.kind == EV_END_COORDINATOR || e.kind == EV_BEAT_UP;
        if (!passes(l, up)) {
            sim_wait_for_heal(&e);
            continue;
        }
        l->stalled_ns[up] = 0;
        if (l->held_until[up] <= now)
            l->held_until[up] = now + 1 + below(100 * MSEC);
        e.at = l->held_until[up];
        sim_push(e);
    }
}

/* Events of a frozen process wait for it, messages for a cut to heal. */
bool sim_hold(struct sim_event *e)
{
    int who = e->who;
    bool up = e->kind == EV_TO_COORDINATOR || e->kind == EV_END_COORDINATOR;
    bool down = e->kind == EV_TO_MEMBER || e->kind == EV_END_MEMBER;
    if (e->kind >= EV_BEAT)
        return false;
    if (up || down) {
        who = up ? W.links[who].to : W.links[who].node;
        if (!e->there && hold_on_link(e, up))
            return true;
    }
    if (!W.nodes[who].frozen)
        return false;
    e->there = true;
    sim_wait_for_thaw(&W.nodes[who], e);
    return true;
}

/* The kernel gives up, unless the cut has healed. */
void sim_break(int link, bool up)
{
    struct sim_link *l = &W.links[link];
    if (!l->stalled_ns[up] || l->dead || now - l->stalled_ns[up] < W.rules.dead_ns / 10 * 6)
        return;
    sim_trace("breaks", l->node, 0);
    sim_push((struct sim_event){.at = now, .kind = EV_END_COORDINATOR, .who = link, .there = true});
    sim_push((struct sim_event){.at = now, .kind = EV_END_MEMBER, .who = link, .there = true});
}
