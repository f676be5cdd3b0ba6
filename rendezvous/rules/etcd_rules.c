#include "rendezvous/rules/etcd_rules.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/debug_assert.h"
#include "core/fsm.h"
#include "core/mem.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/rules/text.h"

/* How long `round` may be there without a coordinator before a launcher begins a new job: a
 * candidate asks for the key several times in a second. */
#define LOST_NS 3000000000u

#define ABOUT_TO "a launcher is about to become the coordinator"

enum etcd_state { REST, READ, ROUND, GRANT, PUT, RENEW, REVOKE, PAUSE };
static const struct fsm_state states[] = {
    [REST] = {"rest", FSM_BIT(REST) | FSM_BIT(READ) | FSM_BIT(PUT) | FSM_BIT(REVOKE)},
    [READ] = {"read", FSM_BIT(REST) | FSM_BIT(ROUND) | FSM_BIT(GRANT) | FSM_BIT(PUT) |
                          FSM_BIT(REVOKE) | FSM_BIT(PAUSE)},
    [ROUND] = {"round", FSM_BIT(REST) | FSM_BIT(GRANT)},
    [GRANT] = {"grant", FSM_BIT(REST) | FSM_BIT(PUT) | FSM_BIT(PAUSE)},
    [PUT] = {"put",
             FSM_BIT(REST) | FSM_BIT(READ) | FSM_BIT(RENEW) | FSM_BIT(REVOKE) | FSM_BIT(PAUSE)},
    [RENEW] = {"renew", FSM_BIT(REST) | FSM_BIT(REVOKE)},
    [REVOKE] = {"revoke",
                FSM_BIT(REST) | FSM_BIT(READ) | FSM_BIT(ROUND) | FSM_BIT(GRANT) | FSM_BIT(PAUSE)},
    [PAUSE] = {"pause", FSM_BIT(REST) | FSM_BIT(READ)},
};

enum etcd_op { LOOK, PUBLISH, KEEP, WITHDRAW };

/* One operation. */
struct op {
    enum etcd_op kind;
    char *value;                /* what this launcher writes into the key; NULL: nothing */
    struct etcd_coordinator by; /* KEEP */
    uint64_t began_ns;
    enum etcd_state next; /* after REVOKE */
    struct etcd_action put;
    char *found; /* what else is in the key; NULL: nothing */
    enum etcd_value found_kind;
    bool again;         /* the key was lost in this operation */
    bool renews;        /* the PUT renews what this launcher holds */
    bool granted;       /* the lease is new */
    uint64_t counts_ns; /* the vote counts from then on, if the PUT takes the key */
    struct etcd_action done;
    char why[ERR_MSG_MAX];
};

/* What this launcher has in the key. */
struct hold {
    char *line; /* NULL: nothing */
    bool sure;  /* etcd has said so; else its answer was lost */
    struct generation recorded;
};

struct etcd_rules {
    struct etcd_rules_config config;
    struct fsm fsm; /* enum etcd_state */
    bool due;       /* the action of the state */
    struct op op;
    struct hold hold;
    int64_t lease, old_lease; /* 0: none; that is to be revoked */
    uint64_t held_ns;         /* when the newest question began that etcd has answered by OURS; 0 */
    uint64_t counts_ns;       /* the vote counts from then on */
    uint64_t lost_ns;         /* since when `round` was seen without a coordinator; 0 */
    uint64_t unknown_ns;      /* since when etcd has not known this candidate's list; 0 */
    int64_t revision;         /* of the newest answer; */
    uint64_t back_ns;         /* when it was seen to go back; 0 */
};

struct etcd_rules *etcd_rules_new(const struct etcd_rules_config *config)
{
    struct etcd_rules *r = xcalloc(1, sizeof(*r));
    r->config = *config;
    r->fsm = (struct fsm){NULL, states, REST};
    return r;
}

static void end_op(struct etcd_rules *r)
{
    free(r->op.value);
    free(r->op.found);
    r->op = (struct op){0};
}

void etcd_rules_free(struct etcd_rules *r)
{
    if (!r)
        return;
    end_op(r);
    free(r->hold.line);
    free(r);
}

/* ----------------------------------------------------------------------------------- the action */

static bool same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

/* Asks next what the state says, after a lease that is of no use any more is given back. */
static void go(struct etcd_rules *r, enum etcd_state to)
{
    if (r->old_lease) {
        r->op.next = to;
        to = REVOKE;
    }
    fsm_move(&r->fsm, to);
    r->due = true;
}

static void finish(struct etcd_rules *r, enum etcd_outcome outcome, int rc, const char *why)
{
    struct op *o = &r->op;
    text_set(o->why, sizeof(o->why), "%s", why ? why : "");
    o->done = (struct etcd_action){
        .act = ETCD_ACT_DONE, .outcome = outcome, .rc = rc, .why = o->why, .value = o->found};
    go(r, REST);
}

static void begin(struct etcd_rules *r, enum etcd_op kind, const char *value, uint64_t now)
{
    assert(r->fsm.state == REST && !r->due);
    end_op(r);
    r->op.kind = kind;
    r->op.value = value ? xstrdup(value) : NULL;
    r->op.began_ns = now;
}

/* ------------------------------------------------------------------------------ what it holds */

static void set_line(struct etcd_rules *r, const char *line, bool sure, struct generation recorded)
{
    char *old = r->hold.line;
    r->hold = (struct hold){line ? xstrdup(line) : NULL, sure, recorded};
    free(old);
}

/* The key is another launcher's, or free: the lease is worth nothing. */
static void lose(struct etcd_rules *r)
{
    set_line(r, NULL, false, (struct generation){0});
    r->old_lease = r->lease ? r->lease : r->old_lease;
    r->lease = 0;
}

/* Whether nobody else can have had etcd's vote since this launcher had it. */
static bool is_unbroken(const struct etcd_rules *r)
{
    return r->held_ns && r->op.began_ns - r->held_ns < r->config.dead_ns;
}

/* From when on the vote of a coordinator counts that puts its line there now. */
static uint64_t counts_from(const struct etcd_rules *r)
{
    return is_unbroken(r) ? r->counts_ns : r->op.began_ns + r->config.dead_ns;
}

/* etcd votes for this launcher's coordinator. */
static void keep_vote(struct etcd_rules *r)
{
    r->held_ns = r->op.began_ns;
    r->unknown_ns = r->lost_ns = 0;
    if (r->op.kind != KEEP || r->op.began_ns >= r->counts_ns)
        finish(r, ETCD_OURS, 0, NULL);
    else
        finish(r, ETCD_WAIT, 0, "etcd may have forgotten for whom it has voted");
}

/* --------------------------------------------------------------------------------------- taking */

static void put(struct etcd_rules *r, const char *is, enum etcd_change record)
{
    struct op *o = &r->op;
    o->put = (struct etcd_action){.act = ETCD_ACT_PUT,
                                  .is = is,
                                  .value = o->value,
                                  .key = o->value ? ETCD_SET : ETCD_DELETE,
                                  .record = record,
                                  .round = o->by.list,
                                  .taken = !o->by.begun}; /* the list is another's */
    go(r, r->lease || !o->value ? PUT : GRANT);
}

/* Puts this launcher's value there if `is` is still in the key. */
static void take(struct etcd_rules *r, const char *is, uint64_t counts_ns)
{
    enum etcd_op kind = r->op.kind;
    r->op.counts_ns = counts_ns;
    put(r, is,
        kind == PUBLISH                         ? ETCD_DELETE
        : kind == KEEP && r->op.by.list.counter ? ETCD_SET
                                                : ETCD_LEAVE);
}

static void renew(struct etcd_rules *r)
{
    bool newer = generation_before(r->hold.recorded, r->op.by.list);
    r->counts_ns = counts_from(r);
    put(r, r->hold.line, newer ? ETCD_SET : ETCD_LEAVE);
    r->op.put.key = ETCD_LEAVE;
    r->op.renews = true;
}

/* Whether this coordinator may take the key from that of the round: it was elected after it; or the
 * other one is known to have ended, no candidate has followed it, and this one knows who has a
 * vote; or the other one has
 * begun no round, which etcd has let it do because it had forgotten this one. */
static bool may_oust(const struct etcd_coordinator *c, struct generation round, bool taken)
{
    bool ended = round.epoch && round.epoch == c->dead_epoch && !taken;
    return (c->leads && round.epoch < c->list.epoch) ||
           (ended && !generation_before(c->list, round)) || (c->begun && !round.counter);
}

/* Whether etcd may have given its vote to a coordinator that it does not know any more. */
static bool may_have_forgotten(struct etcd_rules *r, struct generation round)
{
    const struct op *o = &r->op;
    if (!generation_before(round, o->by.list))
        r->unknown_ns = 0;
    else if (!r->unknown_ns)
        r->unknown_ns = o->began_ns;
    return (r->unknown_ns && o->began_ns - r->unknown_ns < r->config.dead_ns) ||
           (r->back_ns && o->began_ns - r->back_ns < r->config.dead_ns);
}

static void keep_from(struct etcd_rules *r, struct generation round, bool taken)
{
    const struct etcd_coordinator *c = &r->op.by;
    uint64_t now = r->op.began_ns;
    bool doubt = may_have_forgotten(r, round);
    if (r->op.found && may_oust(c, round, taken))
        take(r, r->op.found, round.counter ? now : counts_from(r));
    else if (r->op.found)
        finish(r, r->op.found_kind == ETCD_LINE ? ETCD_THEIRS : ETCD_WAIT, 0, ABOUT_TO);
    else if (generation_before(c->list, round))
        finish(r, ETCD_WAIT, 0, "this candidate does not know who has a vote");
    else if (c->stands && doubt)
        finish(r, ETCD_WAIT, 0, "etcd does not know the nodes of the last round");
    else
        take(r, NULL, c->stands ? now : counts_from(r));
}

static void look_at(struct etcd_rules *r, struct generation round, uint64_t now)
{
    if (round.counter && !r->lost_ns)
        r->lost_ns = now;
    if (!r->config.may_host)
        finish(r, ETCD_WAIT, 0, "no launcher has become the coordinator");
    else if (round.counter && now - r->lost_ns < LOST_NS)
        finish(r, ETCD_WAIT, 0,
               "the coordinator is lost, and its nodes may be about to elect another one");
    else
        take(r, NULL, now);
}

/* --------------------------------------------------------------------------------------- answers
 */

/* The value is another launcher's. */
static void join(struct etcd_rules *r)
{
    char why[ERR_MSG_MAX];
    text_set(why, sizeof(why), "etcd: something else is in the key %s", r->config.key);
    r->lost_ns = 0;
    if (r->op.found_kind == ETCD_FOREIGN)
        finish(r, ETCD_FAILED, -EINVAL, why);
    else if (r->op.found_kind == ETCD_LINE)
        finish(r, ETCD_THEIRS, 0, NULL);
    else if (r->op.kind == PUBLISH)
        go(r, PAUSE);
    else
        finish(r, ETCD_WAIT, 0, ABOUT_TO);
}

static void on_own(struct etcd_rules *r)
{
    const struct hold *h = &r->hold;
    bool there = same(h->line, r->op.found);
    if (there && h->sure && r->op.kind == LOOK)
        finish(r, ETCD_OURS, 0, NULL);
    else if (there && r->op.kind == KEEP && h->sure)
        renew(r);
    else /* once more: it may hang on a lease that nobody renews */
        take(r, r->op.found, there ? r->counts_ns : counts_from(r));
}

static void on_read(struct etcd_rules *r, const struct etcd_answer *a)
{
    struct op *o = &r->op;
    bool own = a->value && (same(a->value, r->hold.line) || same(a->value, o->value));
    char *old = o->found;
    o->found = a->value ? xstrdup(a->value) : NULL;
    o->found_kind = a->kind;
    free(old);
    if (own) {
        on_own(r);
        return;
    }
    lose(r);
    if (a->value && o->kind != KEEP)
        join(r);
    else if (o->kind == PUBLISH)
        take(r, NULL, o->began_ns);
    else
        go(r, ROUND);
}

/* The key is this launcher's now. */
static void on_taken(struct etcd_rules *r)
{
    struct op *o = &r->op;
    bool records = o->put.record == ETCD_SET;
    set_line(r, o->value, true, records ? o->by.list : (struct generation){0});
    r->counts_ns = o->counts_ns;
    keep_vote(r);
}

static void on_put(struct etcd_rules *r, const struct etcd_answer *a)
{
    struct op *o = &r->op;
    if (o->kind == WITHDRAW) {
        lose(r);
        finish(r, ETCD_OURS, 0, NULL);
    } else if (a->yes && o->kind == KEEP && !o->granted) {
        go(r, RENEW);
    } else if (a->yes) {
        on_taken(r);
    } else if (!o->again || o->kind == PUBLISH) { /* another has it, or an answer was lost */
        o->again = true;
        if (o->renews) /* no answer was lost that matters */
            lose(r);
        o->renews = false;
        go(r, READ);
    } else {
        lose(r);
        finish(r, ETCD_WAIT, 0, ABOUT_TO);
    }
}

static void on_renewed(struct etcd_rules *r, bool lives)
{
    if (lives && !r->op.renews) {
        on_taken(r);
        return;
    }
    if (lives) {
        if (r->op.put.record == ETCD_SET)
            r->hold.recorded = r->op.by.list;
        keep_vote(r);
        return;
    }
    lose(r);
    finish(r, ETCD_WAIT, 0, "the lease has ended");
}

/* A PUT whose answer is lost may have been carried out: the next look at the key tells. */
static void doubt_put(struct etcd_rules *r)
{
    const struct op *o = &r->op;
    if (o->put.key != ETCD_SET)
        return;
    if (!r->hold.line)
        set_line(r, o->value, false, (struct generation){0});
    r->hold.sure = false;
    r->counts_ns = o->counts_ns;
}

static void on_error(struct etcd_rules *r, const struct etcd_answer *a)
{
    struct op *o = &r->op;
    bool final = a->rc == -EACCES || a->rc == -EOPNOTSUPP || a->rc == -EINVAL;
    bool no_lease = r->fsm.state == PUT && a->rc == -ENOENT;
    if (o->kind == WITHDRAW || no_lease)
        lose(r); /* the keys go, or have gone, with the lease */
    else if (r->fsm.state == PUT)
        doubt_put(r);
    if (o->kind == PUBLISH && !final)
        go(r, PAUSE);
    else
        finish(r, no_lease ? ETCD_WAIT : ETCD_FAILED, a->rc, a->why);
}

static void see_revision(struct etcd_rules *r, int64_t revision, uint64_t now)
{
    if (revision == 0)
        return;
    if (revision < r->revision) { /* etcd has forgotten */
        r->hold.recorded = (struct generation){0};
        r->back_ns = now;
    }
    r->revision = revision;
}

void etcd_rules_answered(struct etcd_rules *r, const struct etcd_answer *a, uint64_t now)
{
    enum etcd_state s = (enum etcd_state)r->fsm.state;
    assert(s != REST && !r->due);
    if (a->rc == 0)
        see_revision(r, a->revision, now);
    if (s == REVOKE) { /* if that has failed, the lease ends by itself */
        r->old_lease = 0;
        go(r, r->op.next);
    } else if (s == PAUSE && a->rc < 0) {
        finish(r, ETCD_WAIT, 0, a->why);
    } else if (a->rc < 0) {
        on_error(r, a);
    } else if (s == READ) {
        on_read(r, a);
    } else if (s == ROUND) {
        if (r->op.kind == KEEP)
            keep_from(r, a->round, a->taken);
        else
            look_at(r, a->round, now);
    } else if (s == GRANT) {
        r->lease = a->lease;
        r->op.granted = true;
        go(r, PUT);
    } else if (s == PUT) {
        on_put(r, a);
    } else if (s == RENEW) {
        on_renewed(r, a->yes);
    } else { /* PAUSE */
        r->op.began_ns = now;
        go(r, READ);
    }
}

/* ----------------------------------------------------------------------------------- operations */

void etcd_rules_look(struct etcd_rules *r, const char *claim, uint64_t now)
{
    begin(r, LOOK, claim, now);
    go(r, READ);
}

void etcd_rules_publish(struct etcd_rules *r, const char *line, uint64_t now)
{
    begin(r, PUBLISH, line, now);
    if (r->hold.sure)
        take(r, r->hold.line, now);
    else
        go(r, READ);
}

void etcd_rules_keep(struct etcd_rules *r, const struct etcd_coordinator *c, const char *line,
                     uint64_t now)
{
    begin(r, KEEP, line, now);
    r->op.by = *c;
    if (r->hold.sure && same(r->hold.line, line))
        renew(r);
    else if (r->hold.sure)
        take(r, r->hold.line, counts_from(r));
    else
        go(r, READ);
}

void etcd_rules_withdraw(struct etcd_rules *r, bool over, uint64_t now)
{
    begin(r, WITHDRAW, NULL, now);
    if (r->hold.line && over) {
        put(r, r->hold.line, ETCD_DELETE);
    } else {
        lose(r);
        finish(r, ETCD_OURS, 0, NULL);
    }
}

/* --------------------------------------------------------------------------------------- checks */

void etcd_rules_check(const struct etcd_rules *r)
{
    enum etcd_state s = (enum etcd_state)r->fsm.state;
    const struct etcd_action *p = &r->op.put;
    /* What is in the key hangs on a lease, and is recorded with it. */
    assert(!r->hold.line || r->lease);
    assert(r->hold.line || (!r->hold.sure && !r->hold.recorded.counter));
    assert(!r->lease || !r->old_lease || r->lease != r->old_lease);
    assert(s != RENEW || (r->op.kind == KEEP && (r->hold.sure || !r->op.renews)));
    assert(s != REVOKE || r->old_lease);
    assert(s != PAUSE || r->op.kind == PUBLISH);
    /* A look never changes what is recorded, a coordinator never deletes it, and what a launcher
     * writes into the key is its own. */
    assert(s != PUT || p->key != ETCD_SET || (r->lease && p->value == r->op.value));
    assert(s != PUT || p->key != ETCD_DELETE || r->op.kind == WITHDRAW);
    assert(s != PUT || r->op.kind != LOOK || p->record == ETCD_LEAVE);
    assert(s != PUT || r->op.kind != KEEP || p->record != ETCD_DELETE);
    assert(s != PUT || p->record != ETCD_SET || p->round.counter);
    assert(s != PUT || !r->op.renews || p->key == ETCD_LEAVE);
    assert(!r->held_ns || r->held_ns <= r->op.began_ns);
}

/* -------------------------------------------------------------------------------------- actions */

bool etcd_rules_next(struct etcd_rules *r, struct etcd_action *a)
{
    static const enum etcd_act acts[] = {
        [READ] = ETCD_ACT_READ,   [ROUND] = ETCD_ACT_ROUND,   [GRANT] = ETCD_ACT_GRANT,
        [RENEW] = ETCD_ACT_RENEW, [REVOKE] = ETCD_ACT_REVOKE, [PAUSE] = ETCD_ACT_PAUSE};
    enum etcd_state s = (enum etcd_state)r->fsm.state;
    debug_check(etcd_rules_check(r));
    if (!r->due)
        return false;
    r->due = false;
    if (s == REST) {
        *a = r->op.done;
    } else if (s == PUT) {
        *a = r->op.put;
        a->lease = r->lease;
    } else {
        *a = (struct etcd_action){.act = acts[s], .lease = s == REVOKE ? r->old_lease : r->lease};
    }
    return true;
}

bool etcd_rules_holds(const struct etcd_rules *r)
{
    return r->hold.line != NULL;
}
