/* Drives reach as reach_driver.c does, and as keeper.c does the redirects. Beside it, what
 * launchers find when they look for a coordinator: the first node's address, at which that hosts
 * when it is started, also again; or several endpoints, at each of which a launcher says where it
 * is. */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

#define PORT      1000 /* and the number of the node */
#define REDIRECTS SEC  /* an elected coordinator looks so often who listens at the first node */
#define NO_PAUSE  MSEC /* what begins sooner follows at once */
#define NO_ANSWER SEC  /* until a call that nothing answers is given up */

static struct netaddr address_of(int node)
{
    char ip[ADDR_STRLEN];
    struct netaddr a;
    snprintf(ip, sizeof(ip), "10.0.%d.%d", node >> 8, node & 255);
    CHECK("I10", netaddr_parse_ip(&a, ip, PORT + node), "%s is no address", ip);
    return a;
}

static void push(struct sim_node *n, enum sim_kind kind, uint64_t in_ns, uint64_t number)
{
    sim_push((struct sim_event){.at = now + in_ns,
                                .kind = kind,
                                .who = sim_index(n),
                                .incarnation = n->incarnation,
                                .number = number});
}

static struct reach_member facts(const struct sim_node *n)
{
    struct rdzv_info info = {0};
    struct reach_member facts = {.answered = member_state_answered(n->m),
                                 .joined = member_state_joined(n->m),
                                 .electing = member_state_electing(n->m),
                                 .may_stand = member_state_may_stand(n->m)};
    member_state_get_info(n->m, &info);
    facts.begun = info.gen.counter > 0;
    facts.electors = member_state_electors(n->m, &facts.self);
    return facts;
}

void sim_reach_new(struct sim_node *n)
{
    const struct reach_rules rules = {
        .dead_ns = W.rules.dead_ns, .publishes = W.etcd.on, .several = W.endpoints > 1};
    n->reach = reach_new(&rules);
    reach_listens(n->reach, W.rules.elect);
    if (sim_index(n) == 0 && !W.etcd.on && (n->incarnation == 1 || !W.rules.elect))
        reach_bound(n->reach);
}

/* The member wants a connection, and none is on its way. */
void sim_reach_wanted(struct sim_node *n)
{
    const struct reach_member m = facts(n);
    uint64_t clock = sim_clock(n);
    n->connecting = true;
    reach_wanted(n->reach, &m, sim_chance(), clock);
    uint64_t at = reach_deadline(n->reach);
    uint64_t in_ns = at == UINT64_MAX || at <= clock ? 1 : sim_when(n, at) - now;
    n->eager = in_ns < NO_PAUSE ? n->eager + 1 : 0;
    CHECK("I11", n->eager <= W.n + 1, "node %d calls without a pause", sim_index(n));
    push(n, EV_REACH, in_ns, 0);
}

/* ------------------------------------------------------------------------------------- what it
 * finds
 */

/* The next of the endpoints that it was given: the coordinator there, be it elected or not, or the
 * one to which the launcher there redirects. */
static int next_endpoint(struct sim_node *n, bool ask)
{
    int i = W.endpoints ? n->endpoint++ % W.endpoints : 0;
    const struct sim_node *t = &W.nodes[i];
    bool redirects = t->m && !t->s && t->follows >= 0 && member_state_joined(t->m);
    return ask && redirects && !sim_rejects(sim_index(n), i) ? t->follows : i;
}

/* The coordinator that is elected and in reach, or else the first node. */
static int told_by_oracle(int me)
{
    for (int i = W.n - 1; i > 0; i--) {
        struct rdzv_state_info info;
        if (!W.nodes[i].s || !sim_passes(me, i) || !sim_passes(i, me))
            continue;
        rdzv_state_get_info(W.nodes[i].s, &info);
        if (!info.standing)
            return i;
    }
    return 0;
}

static void looked(struct sim_node *n, bool ask)
{
    bool oracle = !W.rehosts && !W.endpoints;
    if (W.rehosts && sim_index(n) == 0) {
        sim_trace("hosts again", 0, 0);
        reach_looked(n->reach, REACH_FOUND_HOST, false, NULL);
        return;
    }
    n->found = oracle ? told_by_oracle(sim_index(n)) : next_endpoint(n, ask);
    reach_looked(n->reach, REACH_FOUND_JOIN, false, NULL);
}

/* ---------------------------------------------------------------------------------------- it calls
 */

static void called(struct sim_node *n, enum reach_called how, int to)
{
    const struct reach_member m = facts(n);
    const struct netaddr at = address_of(to);
    const char *why = how == REACH_REFUSED ? "connection refused" : "timed out";
    if (how != REACH_CONNECTED)
        sim_trace("unreachable", sim_index(n), how);
    reach_called(n->reach, &m, how, how == REACH_CONNECTED ? &at : NULL, why, sim_clock(n));
}

/* The member has a connection now. */
static void attach(struct sim_node *n, const struct sim_link *l)
{
    sim_total.resumes += member_state_joined(n->m);
    sim_new_link(n, l);
    n->connecting = false;
    member_state_connected(n->m, sim_clock(n));
}

/* Another host answers in the place of `to`. */
static void meet_stranger(struct sim_node *n, int to)
{
    enum sim_obstruction o = W.nodes[to].obstruction;
    if (o != ADDRESS_CLOSES && o != ADDRESS_SILENT) {
        called(n, REACH_REFUSED, to);
        return;
    }
    called(n, REACH_CONNECTED, to);
    attach(n, &(struct sim_link){.to = to, .dead = o == ADDRESS_SILENT});
    if (o == ADDRESS_CLOSES)
        sim_push((struct sim_event){.at = now + sim_delay(),
                                    .kind = EV_END_MEMBER,
                                    .who = n->link,
                                    .there = true,
                                    .number = RDZV_END_CLOSED});
}

static void connect_to(struct sim_node *n, int to)
{
    struct sim_node *t = &W.nodes[to];
    attach(n, &(struct sim_link){
                  .to = to, .to_incarnation = t->incarnation, .coordinator_end = t->s != NULL});
    if (t->s)
        return;
    struct buf b = BUF_INIT; /* its seat */
    rdzv_put_refusal(&b, true, "it is not the coordinator");
    sim_send_to_member(n->link, b);
}

static void call(struct sim_node *n, int to)
{
    const struct sim_node *t = &W.nodes[to];
    int me = sim_index(n);
    if (!member_state_wants_link(n->m)) { /* it has ended meanwhile */
        called(n, REACH_UNANSWERED, to);
    } else if (sim_rejects(me, to)) {
        meet_stranger(n, to);
    } else if (!sim_passes(me, to) || !sim_passes(to, me) || sim_address_taken(to, me) ||
               (!t->m && t->silent)) {
        push(n, EV_CALL_LOST, NO_ANSWER, (uint64_t)to);
    } else if (!t->m) {
        called(n, REACH_REFUSED, to);
    } else {
        called(n, REACH_CONNECTED, to);
        connect_to(n, to);
    }
}

/* ------------------------------------------------------------------------------------ what it does
 */

/* The node becomes a candidate in an election. */
static void stand(struct sim_node *n)
{
    struct rdzv_electorate e;
    member_state_electorate(n->m, &e);
    e.random = W.small ? (uint64_t)sim_index(n) + 1 : sim_chance();
    sim_trace("stands", sim_index(n), 0);
    n->job = sim_job_of(e.ran && e.ran->n ? e.ran->gen : e.prepared->gen);
    sim_coordinator_new(n, rdzv_state_stand(&W.rules, &e, sim_clock(n)));
    connect_to(n, sim_index(n));
    member_state_noticed(n->m, sim_clock(n));
    if (W.etcd.on)
        sim_etcd_hosts(n, true);
    else
        push(n, EV_REDIRECT, REDIRECTS, 0);
}

static void host(struct sim_node *n)
{
    if (now < n->lingers_ns) {
        sim_trace("hosts later", sim_index(n), 0);
        reach_hosted(n->reach, REACH_HOSTS_LATER, true, "in use by a launcher that was killed");
        return;
    }
    n->job = ++W.njobs;
    sim_coordinator_new(n, rdzv_state_new(&W.rules, rdzv_epoch(1, 1 + sim_chance()), sim_clock(n)));
    if (W.etcd.on)
        sim_etcd_hosts(n, false);
    reach_hosted(n->reach, REACH_HOSTS, false, NULL);
}

/* It gives its coordinator up, which has begun no round, and goes to the other one. */
static void move(struct sim_node *n)
{
    sim_trace("moves", sim_index(n), 0);
    sim_total.moves++;
    for (int i = 0; i < W.nlinks; i++) {
        const struct sim_link *l = &W.links[i];
        if (l->to == sim_index(n) && l->to_incarnation == n->incarnation && l->coordinator_end)
            sim_coordinator_closes(i, RDZV_END_BROKEN);
    }
    rdzv_state_free(n->s);
    n->s = NULL;
    n->moved_ns = now;
}

/* It was redirected, and has heard of no coordinator since. */
static bool follows_redirect(const struct sim_node *n)
{
    return n->moved_ns && now - n->moved_ns < W.rules.dead_ns / 50 * 49;
}

static void carry_out(struct sim_node *n, const struct reach_action *a)
{
    int to = a->has_to ? netaddr_port(&a->to) - PORT : n->found;
    uint64_t late = one_in(2) ? below(500 * MSEC) : 0;
    switch (a->act) {
    case REACH_ACT_MOVE:
        move(n);
        n->moved_to = to;
        break;
    case REACH_ACT_LOOK:
        CHECK("I23", !follows_redirect(n), "node %d was redirected, and looks again", sim_index(n));
        if (W.etcd.on)
            sim_etcd_look(n);
        else
            push(n, EV_LOOK_FOUND, W.rehosts && sim_index(n) == 0 ? 1000 : sim_delay(), a->ask);
        break;
    case REACH_ACT_HOST:
        host(n);
        break;
    case REACH_ACT_OWN:
        connect_to(n, sim_index(n));
        member_state_noticed(n->m, sim_clock(n));
        break;
    case REACH_ACT_STAND:
        stand(n);
        break;
    case REACH_ACT_CALL:
        CHECK("I23", a->elector || !follows_redirect(n) || to == n->moved_to,
              "node %d was redirected to node %d, and calls node %d", sim_index(n), n->moved_to,
              to);
        push(n, EV_CALL, sim_delay() + late, (uint64_t)to);
        break;
    case REACH_ACT_UNREACHABLE:
        n->connecting = false;
        member_state_unreachable(n->m, a->refused, a->why, sim_clock(n));
        break;
    case REACH_ACT_PUBLISH:
        sim_etcd_publish(n);
        break;
    case REACH_ACT_FAIL:
        CHECK("I12", false, "node %d gives up: %s", sim_index(n), a->why ? a->why : "");
    }
}

static void drain(struct sim_node *n)
{
    struct reach_action a;
    while (n->m && reach_next(n->reach, &a, sim_clock(n)))
        carry_out(n, &a);
    reach_check(n->reach);
}

static void settle(struct sim_node *n)
{
    drain(n);
    uint64_t at = reach_deadline(n->reach);
    if (at != UINT64_MAX)
        push(n, EV_REACH, at > sim_clock(n) ? sim_when(n, at) - now : 1, 0);
}

void sim_reach_event(const struct sim_event *e)
{
    struct sim_node *n = &W.nodes[e->who];
    const struct reach_member m = facts(n);
    if (e->kind == EV_REACH)
        reach_tick(n->reach, &m, sim_clock(n));
    else if (e->kind == EV_LOOK_FOUND)
        looked(n, e->number);
    else if (e->kind == EV_CALL)
        call(n, (int)e->number);
    else
        called(n, REACH_UNANSWERED, (int)e->number); /* EV_CALL_LOST */
    settle(n);
}

void sim_reach_looked(struct sim_node *n, enum reach_found found, const char *why)
{
    reach_looked(n->reach, found, false, why);
    settle(n);
}

void sim_reach_published(struct sim_node *n, int to)
{
    const struct reach_member m = facts(n);
    if (to >= 0)
        sim_reach_redirected(n, to);
    reach_published(n->reach, &m, NULL, sim_clock(n));
    settle(n);
}

void sim_reach_redirected(struct sim_node *n, int to)
{
    const struct netaddr there = address_of(to);
    reach_redirected(n->reach, &there);
    settle(n);
}

/* --------------------------------------------------------------------------------------- redirects
 */

/* An elected coordinator tells one that has begun no round, at the first node, where the job is. */
void sim_reach_redirect(struct sim_node *n)
{
    struct sim_node *first = &W.nodes[0];
    struct rdzv_state_info info, other;
    int me = sim_index(n);
    if (!n->s)
        return;
    push(n, EV_REDIRECT, REDIRECTS, 0);
    rdzv_state_get_info(n->s, &info);
    bool leads = !info.standing && !info.finished;
    if (!leads || me == 0 || !first->s || first->frozen || !sim_passes(me, 0) ||
        !sim_passes(0, me) || sim_rejects(me, 0) || sim_rejects(0, me))
        return;
    rdzv_state_get_info(first->s, &other);
    if (other.gen.counter > 0 || other.standing)
        return;
    const struct netaddr there = address_of(me);
    reach_redirected(first->reach, &there);
    drain(first);
    CHECK("I23", !first->s, "the first node keeps its coordinator, and node %d has the job's", me);
    sim_member_drain(first);
}
