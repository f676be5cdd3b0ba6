/* etcd: drives etcd_rules as rdzv_etcd.c does, on the schedule of keeper.c (keep.h), and stands for
 * the servers. These are slow, do not answer, or are cut off from some hosts, so that questions and
 * answers are lost, or carried out late; their leases begin anew; and they forget: they begin again
 * without data, or with older data, whose revision is lower. */
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_NS (2 * SEC) /* until a question is given up */

enum op { NO_OP, LOOK, PUBLISH, KEEP };
#define OP(o) (1u << (o))

/* A question under way, and its answer. */
struct question {
    struct etcd_action a;
    char is[32], value[32], found[32];
    struct etcd_answer answer;
};

static struct question *questions;
static size_t nquestions, cap_questions;

static void push(struct sim_node *n, enum sim_kind kind, uint64_t in_ns, uint64_t number)
{
    sim_push((struct sim_event){.at = now + in_ns,
                                .kind = kind,
                                .who = sim_index(n),
                                .incarnation = n->incarnation,
                                .number = number});
}

static void write_line(const struct sim_node *n, const char *what, char out[32])
{
    snprintf(out, 32, "%s %d %d", what, sim_index(n), n->incarnation);
}

static int node_of(const char *line)
{
    int node = 0;
    CHECK("I10", sscanf(line, "line %d", &node) == 1, "'%s' is no line", line);
    return node;
}

/* ---------------------------------------------------------------------------------- the servers */

/* Leases that have ended take the key with them. */
static void end_leases(struct sim_etcd *d)
{
    for (int i = 0; i < ETCD_LEASES; i++) {
        struct sim_lease *l = &d->leases[i];
        if (!l->id || l->end > now)
            continue;
        if (d->lease == l->id) {
            d->key[0] = '\0';
            d->lease = 0;
            d->revision++;
        }
        l->id = 0;
    }
}

static struct sim_lease *lease_of(struct sim_etcd *d, int64_t id)
{
    for (int i = 0; i < ETCD_LEASES; i++) {
        if (id && d->leases[i].id == id)
            return &d->leases[i];
    }
    return NULL;
}

static int64_t grant(struct sim_etcd *d)
{
    struct sim_lease *l = &d->leases[0];
    for (int i = 1; i < ETCD_LEASES && l->id; i++) /* the oldest one is in the way, if any is */
        l = !d->leases[i].id || d->leases[i].end < l->end ? &d->leases[i] : l;
    *l = (struct sim_lease){++W.etcd.granted, now + W.rules.dead_ns};
    return l->id;
}

static bool put(struct sim_etcd *d, const struct question *q, struct etcd_answer *out)
{
    const struct etcd_action *a = &q->a;
    if (strcmp(d->key, a->is ? q->is : "") != 0)
        return false;
    if (a->key == ETCD_SET && !lease_of(d, a->lease)) {
        *out = (struct etcd_answer){.rc = -ENOENT, .why = "no such lease"};
        return false;
    }
    if (a->key != ETCD_LEAVE) {
        strcpy(d->key, a->key == ETCD_SET ? q->value : "");
        d->lease = a->key == ETCD_SET ? a->lease : 0;
    }
    if (a->record != ETCD_LEAVE) {
        d->round = a->record == ETCD_SET ? a->round : (struct generation){0};
        d->taken = a->record == ETCD_SET && a->taken;
    }
    d->revision += a->key != ETCD_LEAVE || a->record != ETCD_LEAVE;
    if (one_in(3)) { /* a backup, from before what follows */
        free(d->older);
        d->older = xcalloc(1, sizeof(*d));
        *d->older = *d;
        d->older->older = NULL;
    }
    return true;
}

static void carry_out(struct sim_etcd *d, struct question *q)
{
    struct etcd_answer *out = &q->answer;
    struct sim_lease *l = lease_of(d, q->a.lease);
    end_leases(d);
    *out = (struct etcd_answer){0};
    switch (q->a.act) {
    case ETCD_ACT_READ:
        strcpy(q->found, d->key);
        out->value = d->key[0] ? q->found : NULL;
        out->kind = !d->key[0] ? ETCD_NOTHING : d->key[0] == 'c' ? ETCD_CLAIM : ETCD_LINE;
        break;
    case ETCD_ACT_ROUND:
        out->round = d->round;
        out->taken = d->taken;
        break;
    case ETCD_ACT_GRANT:
        out->lease = grant(d);
        break;
    case ETCD_ACT_PUT:
        out->yes = put(d, q, out);
        break;
    case ETCD_ACT_RENEW:
        l = lease_of(d, q->a.lease);
        out->yes = l != NULL;
        if (l)
            l->end = now + W.rules.dead_ns;
        break;
    case ETCD_ACT_REVOKE:
        if (l)
            l->end = now;
        end_leases(d);
        break;
    case ETCD_ACT_PAUSE:
    case ETCD_ACT_DONE:
        break;
    }
    out->revision = d->revision;
    if (W.loud)
        printf("%12.6f etcd: act %d, key '%s', round %llx %u%s\n", (double)now / 1e9, q->a.act,
               d->key, (unsigned long long)d->round.epoch, d->round.counter,
               d->taken ? ", taken" : "");
}

static bool reaches(const struct sim_node *n)
{
    return now >= W.etcd.away_until && now >= n->etcd.cut_until;
}

void sim_etcd_asked(const struct sim_event *e)
{
    struct sim_node *n = &W.nodes[e->who];
    struct question *q = &questions[e->number];
    if (!reaches(n))
        return; /* lost */
    carry_out(&W.etcd, q);
    if (!one_in(50)) /* else its answer is lost */
        push(n, EV_ETCD_ANSWER, sim_delay(), e->number);
}

/* They begin again without data, or with older data, or with leases that begin anew; or they do not
 * answer, or one host cannot reach them. */
void sim_etcd_fault(void)
{
    struct sim_etcd *d = &W.etcd;
    uint64_t for_ns = below(one_in(3) ? 30 * SEC : 4 * SEC), what = below(8);
    sim_trace("etcd fails", 0, what);
    if (what < 2 && now < d->forgot_ns + 3 * W.rules.dead_ns)
        what = 3; /* it has just forgotten */
    if (what < 2) {
        struct sim_etcd *from = what == 1 ? d->older : NULL;
        d->forgot_ns = now;
        sim_total.forgotten++;
        d->key[0] = '\0';
        d->lease = 0;
        d->round = (struct generation){0};
        d->taken = false;
        d->revision = 1;
        memset(d->leases, 0, sizeof(d->leases));
        if (from) {
            strcpy(d->key, from->key);
            d->lease = from->lease;
            d->round = from->round;
            d->taken = from->taken;
            d->revision = from->revision;
            memcpy(d->leases, from->leases, sizeof(d->leases));
        }
    }
    if (what <= 2) {
        for (int i = 0; i < ETCD_LEASES; i++)
            d->leases[i].end = now + W.rules.dead_ns;
    } else if (what < 5) {
        d->away_until = now + for_ns;
    } else {
        W.nodes[below((uint64_t)W.n)].etcd.cut_until = now + for_ns;
    }
}

/* ---------------------------------------------------------------------------------- the launcher
 */

static struct etcd_coordinator coordinator_of(const struct sim_node *n)
{
    struct rdzv_state_info info;
    struct etcd_coordinator c = {.list = rdzv_state_newest_list(n->s),
                                 .dead_epoch = rdzv_state_dead_epoch(n->s)};
    rdzv_state_get_info(n->s, &info);
    c.stands = info.standing;
    c.leads = n->etcd.elected && !info.standing && !info.finished;
    c.begun = info.gen.counter > 0 && !info.finished;
    return c;
}

static void start_next(struct sim_node *n);

static void ask(struct sim_node *n, const struct etcd_action *a)
{
    if (nquestions == cap_questions) {
        cap_questions = cap_questions ? 2 * cap_questions : 64;
        questions = xrealloc(questions, cap_questions * sizeof(*questions));
    }
    struct question *q = &questions[nquestions];
    *q = (struct question){.a = *a};
    snprintf(q->is, sizeof(q->is), "%s", a->is ? a->is : "");
    snprintf(q->value, sizeof(q->value), "%s", a->value ? a->value : "");
    n->etcd.asked = nquestions + 1;
    if (a->act == ETCD_ACT_PAUSE) {
        push(n, EV_ETCD_ANSWER, ETCD_PAUSE_NS, nquestions);
    } else {
        push(n, EV_ETCD_ASKED, sim_delay(), nquestions);
        push(n, EV_ETCD_LOST, ANSWER_NS, nquestions);
    }
    nquestions++;
}

/* etcd hears of a vote of the coordinator: nobody else of its job has had one for the dead time,
 * unless the other one is known to have ended. */
static void check_vote(struct sim_node *n, const struct etcd_coordinator *c)
{
    struct sim_vote *v = &W.etcd.voted[n->job % ETCD_JOBS];
    uint64_t apart = W.rules.dead_ns / 50 * 48;
    if (v->job == n->job && v->node != sim_index(n) && c->stands && c->dead_epoch != v->epoch)
        CHECK("I24", n->etcd.kept_ns >= v->at + apart,
              "etcd votes for node %d, %.1f s after it has voted for node %d", sim_index(n),
              (double)((int64_t)n->etcd.kept_ns - (int64_t)v->at) / 1e9, v->node);
    *v = (struct sim_vote){n->job, sim_index(n), n->s_epoch, n->etcd.kept_ns};
    sim_total.votes++;
}

/* The arbiter of coordinator.c: a witness without a connection. */
static void hear_arbiter(struct sim_node *n)
{
    uint64_t clock = sim_clock(n), kept = n->etcd.kept_clock;
    if (n->etcd.arbiter < 0) {
        struct rdzv_hello h = {.id = {"dlaunch arbiter"}, .node_rank = -1, .prev_rank = -1};
        struct rdzv_peer p = {0};
        int link = n->link;
        n->etcd.arbiter = sim_new_link(n, &(struct sim_link){.to = sim_index(n),
                                                             .to_incarnation = n->incarnation,
                                                             .coordinator_end = true,
                                                             .arbiter = true});
        n->link = link;
        W.links[n->etcd.arbiter].member_end = false;
        strcpy(h.run_id, W.rules.run_id);
        strcpy(h.version, W.rules.version);
        strcpy(h.host, "etcd");
        rdzv_state_hello(n->s, (uint32_t)n->etcd.arbiter, &h, &p, clock);
    }
    const struct rdzv_status st = {
        .phase = MEMBER_IDLE, .send_ns = clock, .view_sent_ns = kept, .view_seen_ns = kept};
    rdzv_state_status(n->s, (uint32_t)n->etcd.arbiter, &st, clock);
}

void sim_etcd_act(struct sim_node *n, const struct rdzv_action *a)
{
    bool over = a->act == RDZV_ACT_VIEW && a->view.phase >= RDZV_FINISH;
    if (!over && a->act != RDZV_ACT_CLOSE)
        return;
    W.links[n->etcd.arbiter].coordinator_end = false;
    n->etcd.arbiter = -1;
    if (over)
        rdzv_state_closed(n->s, a->conn, RDZV_END_CLOSED, sim_clock(n));
}

static void kept(struct sim_node *n, const struct etcd_action *a)
{
    struct rdzv_state_info info;
    if (!n->s || n->etcd.kept_for != n->etcd.hosted)
        return;
    rdzv_state_get_info(n->s, &info);
    const struct etcd_coordinator *c = &n->etcd.by;
    bool stands = info.standing, ours = a->outcome == ETCD_OURS;
    enum keep_verdict v =
        keep_verdict(ours, a->outcome == ETCD_THEIRS, n->etcd.elected, info.gen.counter > 0);
    if (v == KEEP_VOTE && !info.finished) {
        check_vote(n, c);
        hear_arbiter(n);
        sim_coordinator_drain(n);
    } else if (v == KEEP_MOVE) {
        sim_reach_redirected(n, node_of(a->value));
    }
    if (!n->s)
        return;
    uint64_t in = keep_again_ns(W.rules.heartbeat_ns, W.rules.dead_ns, ours, stands);
    n->etcd.keep_at = now + in;
    push(n, EV_KEEP, in, 0);
}

static void done(struct sim_node *n, const struct etcd_action *a)
{
    unsigned op = n->etcd.op;
    n->etcd.op = NO_OP;
    char own[32];
    write_line(n, "line", own);
    CHECK("I24",
          a->outcome != ETCD_THEIRS || strcmp(a->value, own) != 0 ||
              op == LOOK, /* a backup has kept it of the coordinator that this launcher gave up */
          "node %d takes its own line for another's", sim_index(n));
    if (op == LOOK && a->outcome == ETCD_THEIRS)
        n->found = node_of(a->value);
    if (op == LOOK)
        sim_reach_looked(n,
                         a->outcome == ETCD_OURS     ? REACH_FOUND_HOST
                         : a->outcome == ETCD_THEIRS ? REACH_FOUND_JOIN
                                                     : REACH_FOUND_RETRY,
                         a->why);
    else if (op == PUBLISH)
        sim_reach_published(n, a->outcome == ETCD_THEIRS ? node_of(a->value) : -1);
    else
        kept(n, a);
}

static void drain(struct sim_node *n)
{
    struct etcd_action a;
    while (n->m && n->etcd.rules && etcd_rules_next(n->etcd.rules, &a)) {
        if (a.act == ETCD_ACT_DONE)
            done(n, &a);
        else
            ask(n, &a);
    }
    if (!n->m)
        return;
    etcd_rules_check(n->etcd.rules);
    start_next(n);
}

static void start_next(struct sim_node *n)
{
    char line[32];
    unsigned op = n->etcd.wanted & OP(LOOK)      ? LOOK
                  : n->etcd.wanted & OP(PUBLISH) ? PUBLISH
                  : n->etcd.wanted & OP(KEEP)    ? KEEP
                                                 : NO_OP;
    if (n->etcd.op || !op)
        return;
    n->etcd.wanted &= ~OP(op);
    if (op == KEEP && !n->s)
        return;
    n->etcd.op = op;
    write_line(n, op == LOOK ? "claim" : "line", line);
    if (op == LOOK) {
        etcd_rules_look(n->etcd.rules, line, sim_clock(n));
    } else if (op == PUBLISH) {
        etcd_rules_publish(n->etcd.rules, line, sim_clock(n));
    } else {
        n->etcd.by = coordinator_of(n);
        n->etcd.kept_for = n->etcd.hosted;
        n->etcd.kept_ns = now;
        n->etcd.kept_clock = sim_clock(n);
        etcd_rules_keep(n->etcd.rules, &n->etcd.by, line, n->etcd.kept_clock);
    }
    drain(n);
}

static void want(struct sim_node *n, enum op op)
{
    n->etcd.wanted |= OP(op);
    start_next(n);
}

void sim_etcd_look(struct sim_node *n)
{
    want(n, LOOK);
}

void sim_etcd_publish(struct sim_node *n)
{
    want(n, PUBLISH);
}

/* It has a coordinator now. */
void sim_etcd_hosts(struct sim_node *n, bool elected)
{
    n->etcd.elected = elected;
    n->etcd.hosted++;
    n->etcd.arbiter = -1;
    n->etcd.keep_at = now;
    push(n, EV_KEEP, 1, 0);
}

static bool is_keeping(const struct sim_node *n)
{
    return n->etcd.op == KEEP && n->etcd.kept_for == n->etcd.hosted;
}

/* A vote counts in a list that is recorded: at once when there is a new one. */
void sim_etcd_advance(struct sim_node *n)
{
    bool newer = !generation_equal(rdzv_state_newest_list(n->s), n->etcd.by.list);
    if (is_keeping(n) || n->etcd.keep_at <= now || !newer)
        return;
    n->etcd.keep_at = now;
    push(n, EV_KEEP, 1, 0);
}

void sim_etcd_event(const struct sim_event *e)
{
    struct sim_node *n = &W.nodes[e->who];
    if (!n->etcd.rules)
        return;
    if (e->kind == EV_KEEP) {
        if (n->s && !n->closed && now >= n->etcd.keep_at && !is_keeping(n))
            want(n, KEEP);
    } else if (n->etcd.asked == e->number + 1) {
        struct question *q = &questions[e->number];
        n->etcd.asked = 0;
        if (e->kind == EV_ETCD_LOST)
            q->answer = (struct etcd_answer){.rc = -ETIMEDOUT, .why = "no answer"};
        q->answer.value = q->answer.value ? q->found : NULL; /* the array may have moved */
        etcd_rules_answered(n->etcd.rules, &q->answer, sim_clock(n));
        drain(n);
    }
    sim_agent_drain(n);
    sim_member_drain(n);
}

/* --------------------------------------------------------------------------------- begin and end
 */

void sim_etcd_start(struct sim_node *n)
{
    if (!W.etcd.on)
        return;
    n->etcd.rules = etcd_rules_new(&(struct etcd_rules_config){
        .key = "/job", .dead_ns = W.rules.dead_ns, .may_host = sim_index(n) == 0 || !one_in(8)});
    n->etcd.arbiter = -1;
}

void sim_etcd_gone(struct sim_node *n)
{
    etcd_rules_free(n->etcd.rules);
    n->etcd.rules = NULL;
}

void sim_etcd_new(bool on)
{
    free(W.etcd.older);
    W.etcd = (struct sim_etcd){.on = on, .revision = 1};
    nquestions = 0;
}

void sim_etcd_free(void)
{
    sim_etcd_new(false);
    free(questions);
    questions = NULL;
    cap_questions = 0;
}
