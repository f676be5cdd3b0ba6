#include "rendezvous/rules/reach.h"

#include <assert.h>
#include <stdlib.h>

#include "core/debug_assert.h"
#include "core/fsm.h"
#include "core/mem.h"
#include "rendezvous/rules/text.h"

#define NEVER UINT64_MAX
#define MS    1000000u

#define RETRY_MIN_MS   4.0 /* launchers that are started at once are milliseconds apart */
#define RETRY_MAX_MS   1000.0
#define RETRY_HERE_MS  2 /* on this host, where a refused connection costs microseconds, */
#define RETRY_LATER_MS 10
#define HERE_SOON      500 /* so many times, then RETRY_LATER_MS */
#define CALLS_LOST     3   /* to an elector, before the next one is called */
/* The coordinator's launcher has made the token before it listens: so long until a shared home
 * folder shows it here. */
#define TOKEN_WAIT_NS 15000000000u

enum reach_state { REST, PAUSE, LOOK, HOST, PUBLISH, CALL, OVER };
static const struct fsm_state states[] = {
    [REST] = {"rest", FSM_BIT(PAUSE) | FSM_BIT(OVER)},
    [PAUSE] = {"pause",
               FSM_BIT(LOOK) | FSM_BIT(HOST) | FSM_BIT(CALL) | FSM_BIT(REST) | FSM_BIT(OVER)},
    [LOOK] = {"look", FSM_BIT(HOST) | FSM_BIT(CALL) | FSM_BIT(REST) | FSM_BIT(OVER)},
    [HOST] = {"host", FSM_BIT(PUBLISH) | FSM_BIT(CALL) | FSM_BIT(REST) | FSM_BIT(OVER)},
    [PUBLISH] = {"publish", FSM_BIT(REST) | FSM_BIT(OVER)},
    [CALL] = {"call", FSM_BIT(REST) | FSM_BIT(OVER)},
    [OVER] = {"over", 0},
};

/* One attempt to get a connection for the member. */
struct attempt {
    bool ask;      /* somebody has accepted the last one, and was no coordinator: ask there */
    bool own_host; /* the coordinator's addresses are this host's */
    bool elector;  /* the node calls a member that may stand for election */
    bool refused;  /* no process listened at the address */
    bool met;      /* the connection was accepted */
};

/* The attempts since a coordinator has answered. */
struct series {
    int attempts;
    double pause_ms;
};

/* The walk along the members of the last round while they elect another coordinator: which member
 * this node calls. */
struct walk {
    int at;            /* index in the list of electors, which is gone through again and again */
    int lost;          /* calls in a row that nothing has answered */
    uint64_t since_ns; /* when the first call to this member began; 0: none has */
};

struct redirect {
    bool due;      /* REACH_ACT_MOVE has not been taken */
    bool followed; /* taken at at_ns: the node calls there until the dead time is over */
    struct netaddr to;
    uint64_t at_ns;
};

struct reach {
    struct reach_rules rules;
    struct fsm fsm; /* enum reach_state */
    bool bound, listens, hosts;
    bool due; /* the action of the state */
    struct reach_action action;
    char why[RDZV_TEXT_MAX];
    uint64_t at; /* in PAUSE: when the attempt begins */
    struct attempt attempt;
    struct series series;
    struct walk walk;
    struct redirect redirect;
    struct netaddr where; /* of the coordinator, by the last connection or redirect */
    bool has_where;
    uint64_t tokenless_ns; /* when somebody first answered while there was no token; 0 */
};

struct reach *reach_new(const struct reach_rules *rules)
{
    struct reach *r = xcalloc(1, sizeof(*r));
    r->rules = *rules;
    r->fsm = (struct fsm){NULL, states, REST};
    r->at = NEVER;
    return r;
}

void reach_free(struct reach *r)
{
    free(r);
}

void reach_bound(struct reach *r)
{
    r->bound = true;
}

void reach_listens(struct reach *r, bool listens)
{
    r->listens = listens;
}

/* ----------------------------------------------------------------------------------- the action */

/* Moves on. The action that the new state asks for replaces one that was not taken. */
static void go(struct reach *r, enum reach_state to, struct reach_action a)
{
    fsm_move(&r->fsm, to);
    r->action = a;
    r->due = true;
}

static void tell(struct reach *r, bool refused, const char *why)
{
    text_set(r->why, sizeof(r->why), "%s", why);
    go(r, REST,
       (struct reach_action){.act = REACH_ACT_UNREACHABLE, .refused = refused, .why = r->why});
}

static void fail(struct reach *r, const char *why)
{
    text_set(r->why, sizeof(r->why), "%s", why);
    bool calling = r->fsm.state == CALL;
    go(r, OVER, (struct reach_action){.act = REACH_ACT_FAIL, .calling = calling, .why = r->why});
}

static void own(struct reach *r)
{
    go(r, REST, (struct reach_action){.act = REACH_ACT_OWN});
}

static void call(struct reach *r, const struct netaddr *to, bool elector)
{
    struct reach_action a = {.act = REACH_ACT_CALL, .elector = elector, .has_to = to != NULL};
    if (to)
        a.to = *to;
    r->attempt.elector = elector;
    go(r, CALL, a);
}

/* ---------------------------------------------------------------------------------- an election */

/* Goes on to the next member of the list: at once, unless all of them have been tried. */
static void next_elector(struct reach *r, const struct reach_member *m, uint64_t now)
{
    r->walk = (struct walk){.at = r->walk.at + 1, .since_ns = now};
    if (m->electors && r->walk.at < m->electors->n)
        r->series = (struct series){0};
}

/* Calls the first member of the last round that is alive. If that is this node, it stands for
 * election. */
static void call_elector(struct reach *r, const struct reach_member *m, uint64_t now)
{
    const struct rdzv_peers *p = m->electors;
    struct netaddr a;
    if (r->walk.since_ns == 0)
        r->walk.since_ns = now;
    else if (now - r->walk.since_ns > r->rules.dead_ns * 3 / 2)
        /* The candidate neither stands nor has a coordinator for us, or does not answer. A
         * candidate whose connection was reset has no proof of the death and stands after the dead
         * time only: with a shorter wait both would stand, each without a majority. */
        next_elector(r, m, now);
    for (int i = 0; p && i <= p->n; i++, r->walk.at++) {
        const struct rdzv_peer_entry *e = &p->e[r->walk.at % p->n];
        if (r->walk.at % p->n == m->self && r->listens && m->may_stand) {
            r->hosts = true;
            go(r, REST, (struct reach_action){.act = REACH_ACT_STAND});
            return;
        }
        if (r->walk.at % p->n != m->self && !e->host && e->port &&
            netaddr_parse_ip(&a, e->addr, e->port)) {
            call(r, &a, true);
            return;
        }
    }
    tell(r, false, "none of the nodes of the last round can be called");
}

/* ----------------------------------------------------------------------------------- an attempt */

static bool follows_redirect(const struct reach *r, uint64_t now)
{
    return r->redirect.followed && now - r->redirect.at_ns < r->rules.dead_ns;
}

/* Derives an attempt from the attempt before, and from its result. */
static struct attempt attempt_after(const struct reach *r, const struct reach_member *m)
{
    const struct attempt *last = &r->attempt;
    struct attempt next = {.own_host = last->own_host, .refused = last->refused};
    if (m->answered)
        return (struct attempt){0};
    if (last->refused)
        return next;
    next.ask = last->ask;
    if (last->met && !r->rules.publishes && !m->electing)
        next.ask = !m->begun; /* who has begun a round stays with its coordinator */
    return next;
}

/* Begins an attempt. own_host and refused are still those of the attempt before. */
static void begin(struct reach *r, const struct reach_member *m, uint64_t now)
{
    struct attempt *a = &r->attempt;
    bool known = a->refused && a->own_host && !r->rules.publishes && !a->ask && !r->rules.several;
    a->refused = false;
    r->at = NEVER;
    r->series.attempts++;
    if (m->electing && !r->hosts) {
        call_elector(r, m, now);
        return;
    }
    r->walk = (struct walk){0};
    if (r->hosts) {
        own(r);
    } else if (r->bound) { /* the port is ours already */
        r->bound = false;
        go(r, HOST, (struct reach_action){.act = REACH_ACT_HOST});
    } else if (r->has_where && ((m->joined && !a->ask) || follows_redirect(r, now))) {
        call(r, &r->where, false);
    } else {
        bool ask = a->ask || r->rules.several;
        go(r, LOOK, (struct reach_action){.act = REACH_ACT_LOOK, .ask = ask, .known = known});
    }
}

static uint64_t pause_ns(struct reach *r, const struct reach_member *m, uint64_t chance)
{
    const struct attempt *a = &r->attempt;
    struct series *s = &r->series;
    if (a->refused && a->own_host && !r->rules.several && !m->electing)
        return (s->attempts < HERE_SOON ? RETRY_HERE_MS : RETRY_LATER_MS) * (uint64_t)MS;
    s->pause_ms = s->pause_ms < RETRY_MIN_MS ? RETRY_MIN_MS : s->pause_ms * 1.5;
    if (s->pause_ms > RETRY_MAX_MS)
        s->pause_ms = RETRY_MAX_MS;
    return (uint64_t)(s->pause_ms * (0.5 + (double)(chance % 1024) / 2048)) * MS;
}

void reach_wanted(struct reach *r, const struct reach_member *m, uint64_t chance, uint64_t now)
{
    if (r->fsm.state != REST)
        return;
    r->due = false; /* of a connection that is no longer of use */
    r->attempt = attempt_after(r, m);
    if (m->answered)
        r->series = (struct series){0};
    fsm_move(&r->fsm, PAUSE);
    r->at = r->series.attempts == 0 ? now : now + pause_ns(r, m, chance);
    if (r->at == now)
        begin(r, m, now);
}

void reach_tick(struct reach *r, const struct reach_member *m, uint64_t now)
{
    if (r->fsm.state == PAUSE && now >= r->at)
        begin(r, m, now);
}

void reach_looked(struct reach *r, enum reach_found found, bool own_host, const char *why)
{
    if (r->fsm.state != LOOK)
        return;
    switch (found) {
    case REACH_FOUND_HOST:
        go(r, HOST, (struct reach_action){.act = REACH_ACT_HOST});
        break;
    case REACH_FOUND_JOIN:
        r->attempt.own_host = own_host;
        call(r, NULL, false);
        break;
    case REACH_FOUND_RETRY:
        tell(r, false, why);
        break;
    case REACH_FOUND_FAIL:
        fail(r, why);
        break;
    }
}

void reach_hosted(struct reach *r, enum reach_hosted how, bool own_host, const char *why)
{
    if (r->fsm.state != HOST)
        return;
    r->hosts = how == REACH_HOSTS || how == REACH_HOSTS_AGAIN;
    if (how == REACH_HOSTS && r->rules.publishes) {
        go(r, PUBLISH, (struct reach_action){.act = REACH_ACT_PUBLISH});
    } else if (r->hosts) {
        own(r);
    } else if (how == REACH_TAKEN) {
        r->attempt.own_host = own_host;
        call(r, NULL, false);
    } else if (how == REACH_HOSTS_LATER) {
        tell(r, false, why);
    } else {
        fail(r, why);
    }
    r->listens |= r->hosts;
}

void reach_published(struct reach *r, const struct reach_member *m, const char *why, uint64_t now)
{
    if (r->fsm.state != PUBLISH)
        return;
    if (why) {
        fail(r, why);
    } else if (r->hosts) {
        own(r);
    } else { /* redirected meanwhile */
        fsm_move(&r->fsm, REST);
        fsm_move(&r->fsm, PAUSE);
        begin(r, m, now);
    }
}

void reach_called(struct reach *r, const struct reach_member *m, enum reach_called how,
                  const struct netaddr *at, const char *why, uint64_t now)
{
    if (r->fsm.state != CALL)
        return;
    struct attempt *a = &r->attempt;
    a->refused = how == REACH_REFUSED;
    a->met = how == REACH_CONNECTED || how == REACH_NO_TOKEN;
    if (a->elector) {
        r->walk.lost = a->met ? 0 : r->walk.lost + 1;
        if (a->refused || r->walk.lost == CALLS_LOST)
            next_elector(r, m, now); /* the member is not there; a single packet may be lost */
    }
    if (how == REACH_NO_TOKEN && r->tokenless_ns == 0)
        r->tokenless_ns = now;
    if (how == REACH_CONNECTED) {
        fsm_move(&r->fsm, REST);
        r->where = *at;
        r->has_where = true;
    } else if (how == REACH_NO_CALL ||
               (how == REACH_NO_TOKEN && now - r->tokenless_ns >= TOKEN_WAIT_NS)) {
        fail(r, why);
    } else {
        tell(r, a->refused, why);
    }
}

void reach_redirected(struct reach *r, const struct netaddr *there)
{
    bool candidate = r->due && r->action.act == REACH_ACT_STAND; /* not yet one */
    if (r->hosts && r->fsm.state != OVER && !candidate)
        r->redirect = (struct redirect){.due = true, .to = *there};
}

void reach_close(struct reach *r)
{
    if (r->fsm.state != OVER)
        fsm_move(&r->fsm, OVER);
    r->due = r->redirect.due = false;
    r->at = NEVER;
}

/* --------------------------------------------------------------------------------------- checks */

/* The state in which an action is due. */
static enum reach_state state_of(enum reach_act act)
{
    switch (act) {
    case REACH_ACT_LOOK:
        return LOOK;
    case REACH_ACT_HOST:
        return HOST;
    case REACH_ACT_PUBLISH:
        return PUBLISH;
    case REACH_ACT_CALL:
        return CALL;
    case REACH_ACT_FAIL:
        return OVER;
    default:
        return REST;
    }
}

void reach_check(const struct reach *r)
{
    enum reach_state s = (enum reach_state)r->fsm.state;
    const struct reach_action *a = &r->action;
    assert(!r->due || state_of(a->act) == s);
    assert((s == PAUSE) == (r->at != NEVER));
    assert(reach_deadline(r) == r->at);
    /* Asserts that a node that has the coordinator calls nobody, and that actions for the
     * coordinator are due only where there is one. */
    assert(!r->hosts || (s != LOOK && s != HOST && s != CALL));
    assert(!r->due || (a->act != REACH_ACT_OWN && a->act != REACH_ACT_STAND) || r->hosts);
    assert(!r->redirect.due || (r->hosts && !r->redirect.followed));
    assert(!r->hosts || r->listens);
    assert(r->series.attempts >= 0 && r->series.pause_ms <= RETRY_MAX_MS);
    assert(r->walk.at >= 0 && r->walk.lost >= 0 && r->walk.lost < CALLS_LOST);
    assert(r->walk.since_ns || (r->walk.at == 0 && r->walk.lost == 0));
    assert(!(r->attempt.met && r->attempt.refused));
    assert(!r->due || a->act != REACH_ACT_CALL || a->elector == r->attempt.elector);
    assert(!r->due || a->act != REACH_ACT_LOOK || !a->known || !a->ask);
}

uint64_t reach_deadline(const struct reach *r)
{
    return r->fsm.state == PAUSE ? r->at : NEVER;
}

/* -------------------------------------------------------------------------------------- actions */

/* This node gives its coordinator up, and its member goes to the other coordinator. */
static void move(struct reach *r, uint64_t now)
{
    r->redirect.due = false;
    r->redirect.followed = true;
    r->redirect.at_ns = now;
    r->where = r->redirect.to;
    r->has_where = true;
    r->hosts = false;
    if (r->due && r->action.act == REACH_ACT_OWN) { /* the member has the connection no more */
        fsm_move(&r->fsm, PAUSE);
        call(r, &r->where, false);
    }
}

bool reach_next(struct reach *r, struct reach_action *a, uint64_t now)
{
    debug_check(reach_check(r));
    if (r->redirect.due) {
        move(r, now);
        *a = (struct reach_action){.act = REACH_ACT_MOVE, .has_to = true, .to = r->redirect.to};
        return true;
    }
    if (!r->due)
        return false;
    r->due = false;
    *a = r->action;
    return true;
}

bool reach_where(const struct reach *r, struct netaddr *out)
{
    if (r->has_where)
        *out = r->where;
    return r->has_where;
}

bool reach_hosts(const struct reach *r)
{
    return r->hosts;
}
