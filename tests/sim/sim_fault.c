/* Faults: launchers die and are started again, freeze, leave; connections and hosts are cut off. */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------- life and death */

void sim_start(int i)
{
    struct sim_node *n = &W.nodes[i];
    struct member_rules rules = {.coordinator = "node0:29500",
                                 .join_ns = W.rules.join_ns,
                                 .read_ns = 10 * SEC,
                                 .heartbeat_ns = W.rules.heartbeat_ns,
                                 .dead_ns = W.rules.dead_ns,
                                 .lease = true};
    struct sim_node was = *n;
    *n = (struct sim_node){.incarnation = was.incarnation + 1,
                           .link = -1,
                           .follows = -1,
                           .held = was.held,
                           .cap_held = was.cap_held,
                           .node_rank = was.node_rank,
                           .nproc = was.nproc,
                           .lingers_ns = was.lingers_ns,
                           .obstruction = was.obstruction,
                           .obstructions = was.obstructions,
                           .endpoint = (int)below((uint64_t)W.endpoints),
                           .clock_offset = W.small ? 0 : below(1000 * SEC),
                           .clock_rate = one_in(2) ? (int)below(21) - 10 : 0};
    strcpy(n->run_id, was.run_id);
    struct rdzv_hello *h = &rules.hello;
    *h = (struct rdzv_hello){.backend = W.rules.backend,
                             .min_nodes = W.rules.min_nodes,
                             .max_nodes = W.rules.max_nodes,
                             .max_restarts = W.rules.max_restarts,
                             .restart_policy = W.rules.restart_policy,
                             .agent_store = true,
                             .pid = 1000 * i + n->incarnation,
                             .node_rank = n->node_rank,
                             .nproc = n->nproc,
                             .peer_port = W.rules.elect ? (uint16_t)(1000 + i) : 0};
    memcpy(h->id.b, &h->pid, sizeof(h->pid));
    strcpy(h->run_id, n->run_id);
    strcpy(h->version, "0.1");
    strcpy(h->role, "default");
    snprintf(h->host, sizeof(h->host), "node%d", i);
    n->round = -1;
    n->m = member_state_new(&rules, sim_clock(n));
    sim_agent_new(n);
    sim_trace("start", i, (uint64_t)n->incarnation);
    sim_etcd_start(n);
    sim_reach_new(n);
    sim_member_drain(n);
}

void sim_kill(int i, int how)
{
    struct sim_node *n = &W.nodes[i];
    if (!n->m)
        return;
    enum rdzv_end end = how == 0 || how == 3 ? RDZV_END_CLOSED : RDZV_END_RESET;
    n->lingers_ns = how == 3 ? now + below(2 * SEC) : 0;
    sim_trace("kill", i, (uint64_t)how);
    if (!n->closed)
        sim_head_exited(n, true, how == 2);
    W.look = true;
    for (int k = 0; k < W.nlinks; k++) {
        struct sim_link *l = &W.links[k];
        bool serves = l->to == i && l->to_incarnation == n->incarnation && l->coordinator_end;
        l->dead |= how == 2 && (serves || k == n->link);
        if (serves && n->lingers_ns > l->down_at)
            l->down_at = n->lingers_ns;
        if (k == n->link && n->lingers_ns > l->up_at)
            l->up_at = n->lingers_ns;
        if (serves)
            sim_coordinator_closes(k, end);
    }
    sim_member_closes(n, end);
    member_state_free(n->m);
    rdzv_state_free(n->s);
    agent_rules_free(n->agent);
    reach_free(n->reach);
    sim_etcd_gone(n);
    n->reach = NULL;
    n->agent = NULL;
    n->m = NULL;
    n->s = NULL;
    n->silent = how == 2;
    sim_workers_vanish(n); /* its guardian sees to that */
    n->frozen = n->stuck = false;
    for (int k = 0; k < n->nheld; k++)
        buf_fini(&n->held[k].bytes);
    n->nheld = 0;
}
void sim_cut_link(int i, bool silent)
{
    struct sim_node *n = &W.nodes[i];
    if (!n->m || n->link < 0 || W.links[n->link].to == i)
        return;
    int link = n->link;
    sim_trace(silent ? "cut silently" : "cut", i, 0);
    n->reset |= !silent;
    if (silent) {
        W.links[link].dead = true;
        return;
    }
    /* Both ends see a reset, each in its own time; what is under way may still arrive first. */
    enum rdzv_end how = one_in(2) ? RDZV_END_RESET : RDZV_END_BROKEN;
    int ends = one_in(3) ? 1 + (int)below(2) : 3; /* forged for one end alone, or for both */
    sim_total.forged += ends != 3;
    if (ends & 1)
        sim_push((struct sim_event){
            .at = now + sim_delay(), .kind = EV_END_COORDINATOR, .who = link, .number = how});
    if (ends & 2)
        sim_push((struct sim_event){
            .at = now + sim_delay(), .kind = EV_END_MEMBER, .who = link, .number = how});
}

/* Another host takes over the node's address for a while, or a firewall rejects its traffic. */
static void obstruct(int i)
{
    struct sim_node *n = &W.nodes[i];
    n->obstruction = one_in(3) ? FIREWALL_REJECTS
                               : ADDRESS_REFUSES + below(ADDRESS_SILENT - ADDRESS_REFUSES + 1);
    n->obstructions++;
    sim_trace("obstructed", i, n->obstruction);
    sim_total.obstructed++;
    sim_push((struct sim_event){.at = now + below(one_in(3) ? 40 * SEC : 6 * SEC),
                                .kind = EV_OPEN,
                                .who = i,
                                .number = n->obstructions});
}

void sim_open(int i, uint64_t number)
{
    if (W.nodes[i].obstructions == number)
        W.nodes[i].obstruction = NO_OBSTRUCTION;
}

/* Somebody stops the job at the node. */
static void stop_job(int i)
{
    struct sim_node *n = &W.nodes[i];
    if (!n->m || n->closed || (i == 0 && !one_in(4)))
        return;
    uint64_t times = one_in(3) ? 2 + below(2) : 1;
    for (uint64_t k = 0, at = now + 1; k < times; k++, at += below(one_in(2) ? SEC : 10 * SEC))
        sim_push((struct sim_event){.at = at,
                                    .kind = EV_REQUEST,
                                    .who = i,
                                    .incarnation = n->incarnation,
                                    .number = below(ASKS)});
}

/* One node in both directions or one, half of the nodes, or several one after the other, which heal
 * in another order. */
static void cut_some(int i)
{
    static const uint64_t longest[] = {2 * SEC, 10 * SEC, 40 * SEC};
    uint64_t span = below(longest[below(ARRAY_LEN(longest))]);
    bool half = one_in(3);
    int count = half ? W.n / 2 : one_in(3) ? 1 + (int)below((uint64_t)W.n) : 1;
    int how = half ? 3 : (int)below(3); /* 0 both ways, 1 out, 2 in, 3 the two halves */
    for (int k = 0; k < count; k++) {
        int who = (i + k) % W.n;
        uint64_t at = now + (half ? 0 : below(span / 2));
        sim_push((struct sim_event){.at = at, .kind = EV_CUT, .who = who, .number = (uint64_t)how});
        sim_push((struct sim_event){
            .at = now + (half ? span : span / 2 + below(span)), .kind = EV_HEAL, .who = who});
    }
    if (half) { /* those that were named hang together */
        W.half_from = i;
        W.half_n = count;
    }
}

static bool in_half(int i)
{
    return (i - W.half_from + W.n) % W.n < W.half_n;
}

void sim_cut(int i, int how)
{
    sim_trace("cut off", i, (uint64_t)how);
    for (int k = 0; k < W.n; k++) {
        if (k == i || (how == 3 && in_half(k)))
            continue;
        W.cut[i * W.n + k] |= how != 2;
        W.cut[k * W.n + i] |= how != 1;
    }
}

void sim_heal(int i)
{
    for (int k = 0; k < W.n; k++)
        W.cut[i * W.n + k] = W.cut[k * W.n + i] = false;
    sim_healed();
}

static void freeze(int i)
{
    struct sim_node *n = &W.nodes[i];
    if (!n->m || n->frozen || (n->s && !one_in(3)))
        return;
    sim_trace("freeze", i, 0);
    n->frozen = true;
    n->stuck = one_in(2);
    n->stuck_ns = now;
    sim_push((struct sim_event){.at = now + below(one_in(3) ? 30 * SEC : 4 * SEC),
                                .kind = EV_THAW,
                                .who = i,
                                .incarnation = n->incarnation});
}

/* The thawed node gets all events that it missed at once. */
void sim_thaw(int i)
{
    struct sim_node *n = &W.nodes[i];
    n->frozen = n->stuck = false;
    n->thawed_ns = now;
    for (int k = 0; k < n->nheld; k++) {
        n->held[k].at = now + 1;
        sim_push(n->held[k]);
    }
    n->nheld = 0;
    n->tick_at = n->s_tick_at = 0;
}

/* The node that hosts, or else i. */
static int coordinator(int i)
{
    int k = 0;
    while (k < W.n && !W.nodes[k].s)
        k++;
    return k < W.n ? k : i;
}

/* Kills the launcher; in most cases it is started again. */
static void kill_some(int i)
{
    const struct sim_node *n = &W.nodes[i];
    if (!n->m || (n->s && !W.failover && !one_in(10)))
        return;
    sim_kill(i, (int)below(4));
    if (!one_in(4) && !W.head.rules) /* a head starts no launcher again */
        sim_push((struct sim_event){
            .at = now + below(one_in(4) ? 500 * MSEC : 20 * SEC), .kind = EV_START, .who = i});
}

void sim_fault(void)
{
    int i = (int)below((uint64_t)W.n);
    sim_total.faults++;
    if (W.head.rules && !W.head.killed && one_in(6))
        sim_head_fault();
    if (W.etcd.on && one_in(2))
        sim_etcd_fault();
    switch (below(11)) {
    case 0:
    case 1:
        sim_cut_link(i, false);
        break;
    case 2:
        sim_cut_link(i, true);
        break;
    case 3:
        cut_some(i);
        break;
    case 4:
    case 5:
        freeze(i);
        break;
    case 6:
    case 7:
        kill_some(W.failover && one_in(3) ? coordinator(i) : i);
        break;
    case 8:
    case 9:
        obstruct(W.failover && one_in(2) ? coordinator(i) : i);
        break;
    default:
        if (one_in(3))
            stop_job(i);
        break;
    }
    uint64_t at = now + below(W.n > 256 ? SEC : 4 * SEC);
    if (at < W.faults_until)
        sim_push((struct sim_event){.at = at, .kind = EV_FAULT});
}
