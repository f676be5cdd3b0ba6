/* A scenario, from its seed to its end. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

struct sim_world W;
struct sim_total sim_total;

void sim_step(struct sim_event *event)
{
    struct sim_event e = *event;
    W.events++;
    if (sim_hold(&e))
        return;
    struct sim_node *n = &W.nodes[e.kind == EV_BREAK || e.kind <= EV_END_MEMBER ||
                                          (e.kind >= EV_BEAT && e.kind <= EV_BEAT_DOWN)
                                      ? 0
                                      : e.who];
    bool same = n->m && n->incarnation == e.incarnation;
    switch (e.kind) {
    case EV_TO_COORDINATOR:
    case EV_END_COORDINATOR:
        sim_coordinator_event(&e);
        break;
    case EV_TO_MEMBER:
    case EV_END_MEMBER:
        sim_member_event(&e);
        sim_member_drain(&W.nodes[W.links[e.who].node]);
        break;
    case EV_TICK_COORDINATOR:
        if (same && n->s)
            sim_coordinator_tick(n);
        break;
    case EV_REACH:
    case EV_LOOK_FOUND:
    case EV_CALL:
    case EV_CALL_LOST:
    case EV_REDIRECT:
    case EV_TICK_MEMBER:
    case EV_TICK_AGENT:
    case EV_PREPARED:
    case EV_BEGUN:
    case EV_LOOKED:
    case EV_ENDED:
    case EV_WRITTEN:
    case EV_FAILING:
    case EV_REAPED:
    case EV_DRAINED:
    case EV_REQUEST:
        if (same)
            sim_agent_event(&e);
        break;
    case EV_BEAT:
    case EV_BEAT_UP:
    case EV_BEAT_DOWN:
        sim_beat_event(&e);
        break;
    case EV_STORE_CONNECT:
        if (same && n->runs == e.number)
            sim_store_connect(n);
        break;
    case EV_STORE_WRITE:
        sim_store_write(&e);
        break;
    case EV_FAULT:
        sim_fault();
        break;
    case EV_HEAL:
        sim_heal(e.who);
        break;
    case EV_CUT:
        sim_cut(e.who, (int)e.number);
        break;
    case EV_OPEN:
        sim_open(e.who, e.number);
        break;
    case EV_BREAK:
        sim_break(e.who, e.number);
        break;
    case EV_THAW:
        if (same)
            sim_thaw(e.who);
        break;
    case EV_START:
        if (!n->m)
            sim_start(e.who);
        break;
    case EV_GUARD:
        if (same)
            sim_guardian_look(n);
        break;
    case EV_WATCH:
        if (same)
            sim_agent_watch(n, e.number);
        break;
    case EV_LEFT:
        if (same)
            sim_agent_leaves(n);
        break;
    case EV_EXEC:
    case EV_EXIT:
    case EV_DIES:
    case EV_FREED:
        if (same)
            sim_worker_event(n, &e);
        break;
    case EV_GONE:
        if (same)
            sim_agent_gone(n, e.number);
        break;
    case EV_BORED:
        if (same)
            sim_agent_bored(n);
        break;
    case EV_KEEP:
    case EV_ETCD_ANSWER:
    case EV_ETCD_LOST:
        if (same)
            sim_etcd_event(&e);
        break;
    case EV_ETCD_ASKED: /* it may arrive when its sender is gone */
        sim_etcd_asked(&e);
        break;
    case EV_HEAD_HEARS:
    case EV_HOST_HEARS:
    case EV_HEAD_SIGNAL:
    case EV_HEAD_TICK:
        sim_head_event(&e);
        break;
    }
    buf_fini(&e.bytes);
}

static struct rdzv_rules make_rules(int max, bool many)
{
    static const int budgets[] = {0, 0, 1, 3, 100, 100};
    bool elastic = one_in(2) || W.failover || many;
    uint64_t beat = one_in(2) ? SEC : 5 * SEC;
    return (struct rdzv_rules){.backend = elastic ? RDZV_C10D : RDZV_STATIC,
                               .run_id = "job",
                               .version = "0.1",
                               .min_nodes =
                                   elastic ? 1 + (int)below((uint64_t)(many ? max / 2 : max)) : max,
                               .max_nodes = max,
                               .max_restarts = budgets[below(ARRAY_LEN(budgets))],
                               .restart_policy = one_in(5) ? RESTART_WORKER : RESTART_GROUP,
                               .backoff_ns = one_in(4) ? SEC : 0,
                               .spares = one_in(3) ? (int)below(4) : 0,
                               .elastic = one_in(2),
                               .elect = W.failover || one_in(2),
                               .max_node_restarts = one_in(3) ? (int)below(20) : -1,
                               .progress_ns = one_in(3) ? 3 * SEC : 0,
                               .join_ns = 60 * SEC,
                               .last_call_ns = 3 * SEC,
                               .close_ns = 30 * SEC,
                               .heartbeat_ns = beat,
                               .dead_ns = 3 * beat,
                               .agent_store = true,
                               .bound_addr = "",
                               .port = 29500,
                               .local_addr = ""};
}

/* Room for n nodes. What they held before stays theirs. */
static void make_room(int n)
{
    if (n > W.cap) {
        W.nodes = xrealloc(W.nodes, (size_t)n * sizeof(*W.nodes));
        memset(W.nodes + W.cap, 0, (size_t)(n - W.cap) * sizeof(*W.nodes));
        W.cut = xrealloc(W.cut, (size_t)n * (size_t)n);
        W.guest = xrealloc(W.guest, (size_t)n * (size_t)n);
        W.cap = n;
    }
    memset(W.cut, 0, (size_t)n * (size_t)n);
    memset(W.guest, 0, (size_t)n * (size_t)n);
    for (int i = 0; i < n; i++)
        W.nodes[i] = (struct sim_node){
            .held = W.nodes[i].held, .cap_held = W.nodes[i].cap_held, .link = -1, .follows = -1};
    W.n = n;
}

static void make_world(uint64_t seed, int nodes)
{
    int size = one_in(200) ? 60 : one_in(8) ? 16 : 6;
    W.failover = one_in(2);
    int max = nodes ? nodes : 1 + (int)below((uint64_t)size) + (W.failover ? 2 : 0);
    now = 1000 * SEC;
    W.seed = seed;
    W.hash = 14695981039346656037ull;
    W.events = 0;
    W.nlinks = W.nwaiting = W.nrounds = W.nclients = W.nepochs = W.njobs = W.failures = W.finished =
        W.half_from = W.half_n = 0;
    W.internal = W.look = false;
    W.slurm = (struct sim_slurm){.silent = seed % 11 == 0};
    memset(W.asked, 0, sizeof(W.asked));
    memset(W.codes, 0, sizeof(W.codes));
    W.rules = make_rules(max, nodes > 0);
    W.replays = !nodes && one_in(3);
    W.beats = one_in(2);
    W.wild = one_in(2);
    W.survivors = one_in(2);
    W.timeout_ns = W.wild && one_in(8) ? SEC + below(60 * SEC) : 0;
    W.asked[STOP_TIMEOUT] = W.codes[124] = W.timeout_ns;
    W.endpoints = 0;
    /* With very many nodes one would always be late: the first round ends before the faults begin.
     */
    W.faults_from = now + (nodes ? 10 * SEC : 0);
    W.faults_until = W.faults_from + (nodes ? 10 * SEC : one_in(2) ? 60 * SEC : below(15 * SEC));
    W.end = W.faults_until + 200 * SEC;
    bool ranks = !nodes && one_in(2), crowd = one_in(1000);
    bool headed = !nodes && !crowd && one_in(3);
    sim_etcd_new(!nodes && !crowd && !headed && one_in(2));
    make_room(max + (int)below(4) + (crowd ? 100 + max / 4 : 0)); /* spares, or too many */
    if (W.etcd.on)
        W.rules.backend = RDZV_ETCD;
    if (W.rules.elect && !nodes && !W.etcd.on && one_in(2))
        W.endpoints = 1 + (int)below(W.n < 5 ? (uint64_t)W.n : 5);
    W.rehosts = W.rules.elect && !W.endpoints && !W.etcd.on && !nodes && one_in(2);
    for (int i = 0; i < W.n; i++) {
        struct sim_node *n = &W.nodes[i];
        n->node_rank = ranks && i < max && !one_in(5) ? i
                       : one_in(20) && !nodes         ? (int)below(20)
                                                      : -1;
        n->nproc = 1 + (int)below(3);
        /* Some jobs have a witness, or a coordinator that is none of the nodes. */
        strcpy(n->run_id, "job");
        if (headed)
            continue; /* it starts when it has its plan */
        if (!W.etcd.on &&
            ((i == W.n - 1 && i > 0 && seed % 3 == 1) || (i == 0 && W.n > 1 && seed % 7 == 1))) {
            n->nproc = 0;
            n->node_rank = -1;
        }
        if (!nodes && i > 0 && !W.etcd.on && one_in(30))
            strcpy(n->run_id, "other");
        uint64_t at = i == 0 ? 0 : one_in(4) && !nodes ? below(40 * SEC) : below(50 * MSEC);
        sim_push((struct sim_event){.at = now + at, .kind = EV_START, .who = i});
    }
    if (headed)
        sim_head_new();
    sim_total.headed += headed;
    sim_push((struct sim_event){.at = W.faults_from + below(5 * SEC), .kind = EV_FAULT});
}

void sim_small_world(int nodes)
{
    now = SIM_SMALL_START;
    W.small = true;
    W.rules = make_rules(nodes, true);
    W.rules.min_nodes = 2;
    W.rules.max_restarts = 1;
    W.rules.spares = 0;
    W.rules.elastic = false;
    W.rules.elect = nodes > 2;
    W.rules.max_node_restarts = -1;
    W.rules.backoff_ns = W.rules.progress_ns = 0;
    W.rules.restart_policy = RESTART_GROUP;
    W.rules.join_ns = 10 * SEC;
    W.rules.close_ns = 4 * SEC;
    W.rules.heartbeat_ns = SEC;
    W.rules.dead_ns = 4 * SEC;
    make_room(nodes);
    for (int i = 0; i < nodes; i++) {
        W.nodes[i].node_rank = -1;
        W.nodes[i].nproc = 1;
        strcpy(W.nodes[i].run_id, "job");
        sim_push((struct sim_event){.at = now, .kind = EV_START, .who = i});
    }
}

/* The search itself asks who has a time that is due, and what must hold when time passes. */
bool sim_is_left_out(const struct sim_event *e)
{
    switch (e->kind) {
    case EV_TICK_COORDINATOR:
    case EV_TICK_MEMBER:
    case EV_TICK_AGENT:
    case EV_GUARD:
    case EV_WATCH:
    case EV_LEFT:
    case EV_GONE:
    case EV_BORED:
    case EV_STORE_CONNECT:
    case EV_REDIRECT:
        return true;
    case EV_REACH:
        return e->at > now + 1;
    default:
        return false;
    }
}

/* Somebody was told the result, and nobody waits for one any more. */
bool sim_is_over(void)
{
    bool heads = W.head.rules && !W.head.over && !W.head.killed;
    if (!W.look || W.finished == 0 || heads)
        return false;
    W.look = false;
    for (int i = 0; i < W.n; i++) {
        const struct sim_node *n = &W.nodes[i];
        if ((n->m && !n->closed) || (n->s && !n->s_finished))
            return false;
    }
    return true;
}

uint64_t sim_scenario(uint64_t seed, int nodes)
{
    sim_chance_from(seed);
    make_world(seed, nodes);
    while (sim_any_event() && now < W.end && !sim_is_over()) {
        struct sim_event e = sim_pop();
        now = e.at;
        sim_step(&e);
    }
    sim_check_end();
    sim_total.events += W.events;
    if (now > W.faults_until && now - W.faults_until > sim_total.longest_ns)
        sim_total.longest_ns = now - W.faults_until;
    uint64_t hash = W.hash;
    sim_head_free();
    for (int i = 0; i < W.n; i++)
        sim_kill(i, 2);
    sim_etcd_new(false);
    sim_forget_events();
    for (int i = 0; i < W.nwaiting; i++)
        buf_fini(&W.waiting[i].bytes);
    for (int i = 0; i < W.nrounds; i++)
        free(W.rounds[i].rank_of);
    return hash;
}

void sim_free(void)
{
    for (int i = 0; i < W.cap; i++)
        free(W.nodes[i].held);
    free(W.nodes);
    free(W.links);
    free(W.cut);
    free(W.guest);
    free(W.waiting);
    free(W.clients);
    free(W.epochs);
    sim_etcd_free();
    W = (struct sim_world){0};
}
