/* Drives rdzv_state as coordinator.c does. Beside it, the workers' store as far as the rules decide
 * over it: emptied, and all its connections closed, when they say that a new round begins; open
 * from the round's table on to the workers of the nodes in it and of those that have said hello. */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

void sim_coordinator_new(struct sim_node *n, struct rdzv_state *s)
{
    n->s = s;
    n->s_epoch = 0;
    n->s_finished = false;
    n->store++;
    memset(W.guest + sim_index(n) * W.n, 0, (size_t)W.n);
    sim_coordinator_drain(n);
}

static void note_guests(struct sim_node *n, const struct rank_table *t)
{
    bool *guest = W.guest + sim_index(n) * W.n;
    int high, low;
    memset(guest, 0, (size_t)W.n);
    for (int i = 0; i < t->nnodes; i++) {
        if (sscanf(t->nodes[i].addr, "10.0.%d.%d", &high, &low) == 2)
            guest[high << 8 | low] = true;
    }
    for (int i = 0; i < W.nlinks; i++) {
        const struct sim_link *l = &W.links[i];
        if (l->to == sim_index(n) && l->coordinator_end && l->said_hello)
            guest[l->node] = true;
    }
    n->guests = n->store;
}

static void retick(struct sim_node *n)
{
    uint64_t at = rdzv_state_deadline(n->s);
    if (at == UINT64_MAX)
        return;
    at = sim_when(n, at);
    at = at > now ? at : now + 1;
    if (n->s_tick_at <= at && n->s_tick_at > now)
        return;
    n->s_tick_at = at;
    sim_push((struct sim_event){
        .at = at, .kind = EV_TICK_COORDINATOR, .who = sim_index(n), .incarnation = n->incarnation});
}

/* A message to many nodes is encoded once. */
static void put_again(struct buf *b, const struct buf *encoded)
{
    buf_put(b, encoded->data, encoded->len);
}

static bool is_for_arbiter(const struct rdzv_action *a)
{
    bool to_one = a->act != RDZV_ACT_LOG && a->act != RDZV_ACT_EVENT &&
                  a->act != RDZV_ACT_NEW_ROUND && a->act != RDZV_ACT_FINISHED;
    return to_one && W.links[a->conn].arbiter;
}

void sim_coordinator_drain(struct sim_node *n)
{
    struct rdzv_action a;
    struct buf table = BUF_INIT, peers = BUF_INIT;
    if (W.n <= 64 || W.events % 64 == 0) /* it looks at every node */
        rdzv_state_check(n->s);
    while (rdzv_state_next(n->s, &a, sim_clock(n))) {
        struct buf b = BUF_INIT;
        if (is_for_arbiter(&a)) {
            sim_etcd_act(n, &a);
            continue;
        }
        switch (a.act) {
        case RDZV_ACT_LOG:
            if (W.loud)
                printf("%12.6f coordinator %d: %s\n", (double)now / 1e9, sim_index(n), a.text);
            continue;
        case RDZV_ACT_EVENT:
            continue;
        case RDZV_ACT_NEW_ROUND:
            sim_trace("new round", sim_index(n), 0);
            n->store++;
            continue;
        case RDZV_ACT_TABLE:
            if (n->guests != n->store)
                note_guests(n, a.table);
            if (table.len == 0)
                rdzv_put_table(&table, a.table);
            put_again(&b, &table);
            break;
        case RDZV_ACT_PEERS:
            if (a.ran) {
                struct buf ran = BUF_INIT;
                rdzv_put_peers(&ran, a.ran);
                sim_send_to_member((int)a.conn, ran);
            }
            if (peers.len == 0)
                rdzv_put_peers(&peers, a.peers);
            put_again(&b, &peers);
            break;
        case RDZV_ACT_REPORT:
            rdzv_put_report(&b, a.result);
            break;
        case RDZV_ACT_VIEW:
            rdzv_put_view(&b, &a.view);
            break;
        case RDZV_ACT_NOTICE:
            rdzv_put_notice(&b, a.text);
            break;
        case RDZV_ACT_CLOSE:
            if (a.text && !a.retry)
                sim_check_turned_away(n, W.links[a.conn].node, a.text);
            if (a.text) {
                rdzv_put_refusal(&b, a.retry, a.text);
                sim_send_to_member((int)a.conn, b);
            }
            sim_coordinator_closes((int)a.conn, a.text ? RDZV_END_CLOSED : RDZV_END_BROKEN);
            sim_beat_tell_coordinator(n, &W.links[a.conn]);
            continue;
        case RDZV_ACT_FINISHED:
            n->s_finished = W.look = true;
            sim_trace("finished", sim_index(n), 0);
            continue;
        }
        sim_send_to_member((int)a.conn, b);
    }
    buf_fini(&table);
    buf_fini(&peers);
    n->grant = rdzv_state_lease_until(n->s, sim_clock(n));
    sim_check_coordinator(n);
    if (W.etcd.on)
        sim_etcd_advance(n);
    retick(n);
}

void sim_coordinator_tick(struct sim_node *n)
{
    n->s_tick_at = 0;
    for (int i = 0; i < W.nlinks; i++) {
        if (W.links[i].to == sim_index(n) && W.links[i].coordinator_end)
            sim_beat_tell_coordinator(n, &W.links[i]);
    }
    rdzv_state_tick(n->s, sim_clock(n));
    sim_coordinator_drain(n);
}

static void take_message(struct sim_node *n, const struct sim_link *l, struct sim_event *e)
{
    struct rd r = rd_init(e->bytes.data + RDZV_FRAME_HEADER, e->bytes.len - RDZV_FRAME_HEADER);
    struct rdzv_hello h = {0};
    struct rdzv_status st = {0};
    struct rdzv_peers list = {0};
    struct rdzv_peer p = {.own = l->node == l->to, .same_host = l->node == l->to};
    switch ((enum rdzv_msg)e->bytes.data[4]) {
    case RDZV_MSG_HELLO:
        CHECK("I10", rdzv_get_hello(&r, &h), "bad hello");
        W.links[e->who].id = h.id;
        W.links[e->who].said_hello = true;
        snprintf(p.via, sizeof(p.via), "10.0.%d.%d", l->to >> 8, l->to & 255);
        if (!p.own)
            snprintf(p.addr, sizeof(p.addr), "10.0.%d.%d", l->node >> 8, l->node & 255);
        sim_trace("hello", l->node, (uint64_t)e->who);
        rdzv_state_hello(n->s, (uint32_t)e->who, &h, &p, sim_clock(n));
        break;
    case RDZV_MSG_PEERS:
        CHECK("I10", rdzv_get_peers(&r, &list), "bad list");
        rdzv_state_peers(n->s, (uint32_t)e->who, &list);
        rdzv_peers_fini(&list);
        break;
    default:
        CHECK("I10", rdzv_get_status(&r, &st), "bad status");
        sim_trace(e->again ? "status again" : "status", l->node, st.phase);
        rdzv_state_status(n->s, (uint32_t)e->who, &st, sim_clock(n));
        break;
    }
}

void sim_coordinator_event(struct sim_event *e)
{
    struct sim_link *l = &W.links[e->who];
    struct sim_node *n = &W.nodes[l->to];
    if (!l->coordinator_end || l->dead || !n->s || n->incarnation != l->to_incarnation)
        return;
    if (e->kind == EV_TO_COORDINATOR) {
        take_message(n, l, e);
    } else {
        sim_trace("link ends", l->node, e->number);
        l->coordinator_end = false;
        sim_beat_tell_coordinator(n, l);
        rdzv_state_closed(n->s, (uint32_t)e->who, (enum rdzv_end)e->number, sim_clock(n));
    }
    sim_coordinator_drain(n);
}

/* ------------------------------------------------------------------------------------ the store */

/* A worker connects. What it writes is late, and may come when its process has long been killed. */
void sim_store_connect(struct sim_node *n)
{
    struct sim_node *to = n->follows >= 0 ? &W.nodes[n->follows] : NULL;
    if (!sim_workers_alive(n) || n->reset || !to || !to->s || !sim_passes(sim_index(n), n->follows))
        return;
    if (n != to && !W.guest[n->follows * W.n + sim_index(n)])
        return;
    if (W.nclients == W.cap_clients) {
        W.cap_clients = W.cap_clients ? 2 * W.cap_clients : 64;
        W.clients = xrealloc(W.clients, (size_t)W.cap_clients * sizeof(*W.clients));
    }
    W.clients[W.nclients] = (struct sim_client){n->running, to->incarnation, to->store};
    for (int i = 0; i < 2; i++)
        sim_push((struct sim_event){.at = now + sim_delay() + below(i * (one_in(4) ? 20 : 2) * SEC),
                                    .kind = EV_STORE_WRITE,
                                    .who = n->follows,
                                    .incarnation = to->incarnation,
                                    .number = (uint64_t)W.nclients});
    W.nclients++;
}

void sim_store_write(const struct sim_event *e)
{
    const struct sim_node *n = &W.nodes[e->who];
    const struct sim_client *c = &W.clients[e->number];
    struct rdzv_state_info info;
    if (!n->s || n->incarnation != e->incarnation)
        return;
    if (c->store != n->store) { /* its connection was closed */
        sim_total.refused_writes++;
        return;
    }
    rdzv_state_get_info(n->s, &info);
    bool none = info.gen.counter == 0; /* no round yet: it is emptied before the first one */
    CHECK("I4", none || generation_equal(info.gen, c->gen),
          "a worker of round %u writes in round %u", c->gen.counter, info.gen.counter);
    sim_total.writes++;
}
