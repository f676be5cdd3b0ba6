/* Events in, actions out. The phases are in rdzv_phase.c, joining in rdzv_join.c. */
#include "rendezvous/rules/rdzv_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/rdzv_state_impl.h"
#include "rendezvous/rules/text.h"

#define LINES_MAX 256 /* log lines that wait for the driver; it takes them after every event */

struct rdzv_state *rdzv_state_new(const struct rdzv_rules *rules, uint64_t epoch, uint64_t now)
{
    struct rdzv_state *s = xcalloc(1, sizeof(*s));
    s->rules = *rules;
    s->gen.epoch = epoch;
    map_init(&s->by_id);
    s->last_call_at = s->respawn_at = s->close_at = s->check_at = NEVER;
    s->quarantine_at = s->elect_at = s->settle_at = NEVER;
    s->pulse_at = now + rules->heartbeat_ns;
    rdzv_phase_start(s, now);
    return s;
}

struct rdzv_state *rdzv_state_stand(const struct rdzv_rules *rules, const struct rdzv_electorate *e,
                                    uint64_t now)
{
    struct rdzv_state *s = rdzv_state_new(rules, e->seen_epoch, now);
    rdzv_elect_start(s, e, now);
    return s;
}

static void free_node(struct rdzv_node *n)
{
    free(n->ports);
    free(n->orders);
    free(n);
}

void rdzv_state_free(struct rdzv_state *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->nnodes; i++)
        free_node(s->nodes[i]);
    for (size_t i = 0; i < s->nconns; i++)
        free(s->conns[i].refusal);
    while (s->line_head < s->nlines)
        free(s->lines[s->line_head++].text);
    map_fini(&s->by_id, NULL);
    failure_log_clear(&s->log);
    rank_table_fini(&s->table);
    rdzv_peers_fini(&s->peers);
    for (int k = 0; k < 2; k++)
        rdzv_quorum_fini(&s->quorum[k]);
    free(s->nodes);
    free(s->by_rank);
    free(s->members);
    free(s->conns);
    free(s->queue);
    free(s->lines);
    free(s->said);
    free(s->respawns);
    free(s);
}

/* ------------------------------------------------------------------------------------ output */

void rdzv_state_log(struct rdzv_state *s, enum log_level level, const char *fmt, ...)
{
    char text[2 * RDZV_TEXT_MAX];
    va_list ap;
    if (s->nlines - s->line_head >= LINES_MAX || level > log_get_level())
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (s->line_head == s->nlines)
        s->line_head = s->nlines = 0;
    if (s->nlines == s->cap_lines) {
        s->cap_lines = s->cap_lines ? 2 * s->cap_lines : 8;
        s->lines = xrealloc(s->lines, s->cap_lines * sizeof(*s->lines));
    }
    s->lines[s->nlines++] = (struct rdzv_line){level, xstrdup(text)};
}

static struct rdzv_conn *conn_at(struct rdzv_state *s, uint32_t conn)
{
    if (conn >= s->nconns) {
        size_t n = s->nconns ? s->nconns : 8;
        while (n <= conn)
            n *= 2;
        s->conns = xrealloc(s->conns, n * sizeof(*s->conns));
        memset(s->conns + s->nconns, 0, (n - s->nconns) * sizeof(*s->conns));
        s->nconns = n;
    }
    return &s->conns[conn];
}

static void queue_conn(struct rdzv_state *s, uint32_t conn, unsigned pending)
{
    struct rdzv_conn *c = conn_at(s, conn);
    if (s->standing && s->phase != RDZV_FINISH)
        pending &= ~PENDING_VIEW; /* there is nothing to say yet */
    c->pending |= pending;
    if (c->queued)
        return;
    c->queued = true;
    if (s->queue_head == s->queue_len)
        s->queue_head = s->queue_len = 0;
    if (s->queue_len == s->queue_cap) {
        s->queue_cap = s->queue_cap ? 2 * s->queue_cap : 16;
        s->queue = xrealloc(s->queue, s->queue_cap * sizeof(*s->queue));
    }
    s->queue[s->queue_len++] = conn;
}

void rdzv_state_send(struct rdzv_state *s, struct rdzv_node *n, unsigned pending)
{
    if (n->conn != RDZV_NO_CONN)
        queue_conn(s, n->conn, pending);
}

void rdzv_state_send_all(struct rdzv_state *s, unsigned pending)
{
    for (int i = 0; i < s->nnodes; i++)
        rdzv_state_send(s, s->nodes[i], pending);
}

void rdzv_state_close(struct rdzv_state *s, uint32_t conn, const char *refusal, bool retry)
{
    struct rdzv_conn *c = conn_at(s, conn);
    if (c->node) {
        c->node->conn = RDZV_NO_CONN;
        rdzv_state_update_ready(s, c->node);
        c->node = NULL;
    }
    c->pending = 0;
    free(c->refusal);
    c->refusal = refusal ? xstrdup(refusal) : NULL;
    c->retry = retry;
    queue_conn(s, conn, PENDING_CLOSE);
}

/* ------------------------------------------------------------------------------------- nodes */

void rdzv_state_update_ready(struct rdzv_state *s, struct rdzv_node *n)
{
    bool ready = n->conn != RDZV_NO_CONN && n->phase == MEMBER_IDLE && !n->workers && !n->leaving &&
                 !rdzv_node_is_witness(n);
    s->nready += ready - n->ready;
    n->ready = ready;
}

void rdzv_state_heard(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    n->heard_ns = now;
    n->late_ns = s->late_ns;
    if (s->check_at == NEVER)
        s->check_at = now + s->rules.dead_ns;
}

void rdzv_state_remove(struct rdzv_state *s, struct rdzv_node *n)
{
    if (n->conn != RDZV_NO_CONN) {
        s->conns[n->conn].node = NULL;
        s->conns[n->conn].pending = 0;
    }
    if (n->group_rank >= 0)
        s->members[n->group_rank] = NULL;
    if (n->hello.node_rank >= 0 && n->hello.node_rank < s->cap_by_rank &&
        s->by_rank[n->hello.node_rank] == n)
        s->by_rank[n->hello.node_rank] = NULL;
    s->nready -= n->ready;
    s->nbusy -= n->workers;
    if (rdzv_node_is_witness(n))
        s->nwitnesses--;
    else
        s->nleaving -= n->leaving;
    map_remove(&s->by_id, n->hello.id.b, sizeof(n->hello.id.b));
    struct rdzv_node *last = s->nodes[--s->nnodes];
    s->nodes[n->slot] = last;
    last->slot = n->slot;
    free_node(n);
}

/* ------------------------------------------------------------------------------------ events */

/* Whether the node has followed a coordinator that was elected later: no round of this one may
 * follow. */
static bool is_replaced(const struct rdzv_state *s, const struct rdzv_hello *h)
{
    if (rdzv_elect_is_new(s))
        return h->seen_epoch > s->seen_epoch && h->seen_epoch != s->gen.epoch;
    return !s->standing && s->gen.counter > 0 &&
           rdzv_epoch_term(h->seen_epoch) > rdzv_epoch_term(s->gen.epoch);
}

void rdzv_state_hello(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h,
                      const struct rdzv_peer *peer, uint64_t now)
{
    struct rdzv_conn *c = conn_at(s, conn);
    struct rdzv_node *n = map_get(&s->by_id, h->id.b, sizeof(h->id.b));
    if (c->node || (c->pending & PENDING_CLOSE))
        return; /* a second hello: the driver does not let it through */
    if (is_replaced(s, h)) {
        rdzv_state_close(s, conn, RDZV_REPLACED, true);
        return;
    }
    if (!n) {
        rdzv_join_hello(s, conn, h, peer, now);
        if (s->standing)
            rdzv_elect_hello(s, conn, h);
        else if (s->conns[conn].node && s->peers.n)
            queue_conn(s, conn, PENDING_PEERS); /* whom it may have to follow */
        rdzv_phase_advance(s, now);
        return;
    }
    if (s->standing)
        rdzv_elect_seen(s, h->seen_epoch);
    /* It comes back. What the old connection may still bring is older than what it says now. */
    if (n->conn != RDZV_NO_CONN)
        rdzv_state_close(s, n->conn, NULL, false);
    rdzv_state_log(s, LOG_LEVEL_VERBOSE, "node %s is connected again", n->hello.host);
    n->conn = conn;
    conn_at(s, conn)->node = n;
    rdzv_state_heard(s, n, now);
    rdzv_state_update_ready(s, n);
    unsigned pending = PENDING_VIEW;
    if ((s->phase == RDZV_PREPARE || s->phase == RDZV_RUN) && s->peers.n)
        pending |= PENDING_PEERS;
    if (s->phase == RDZV_FINISH)
        pending |= PENDING_REPORT;
    if (s->phase == RDZV_RUN && n->group_rank >= 0 && n->phase == MEMBER_PREPARED)
        pending |= PENDING_TABLE;
    rdzv_state_send(s, n, pending);
    rdzv_phase_advance(s, now);
}

/* Failures that are not here yet. */
static void take_failures(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                          uint64_t now)
{
    if (st->nfailures == 0)
        return;
    struct rd r = rd_init(st->failures, st->failures_len);
    struct failure f;
    bool current = n->group_rank >= 0 && generation_equal(st->gen, s->gen);
    for (int i = 0; i < st->nfailures && failure_decode(&r, &f); i++) {
        uint32_t seq = st->first_seq + (uint32_t)i;
        if (seq <= n->acked)
            continue;
        n->acked = seq;
        if (!current) /* of a round that is over */
            continue;
        uint64_t seen = clock_offset_to_ours(&n->clock, f.seen_ns, st->send_ns, now);
        f.seen_ns = seen < s->run_ns ? s->run_ns : seen;
        rdzv_phase_failure(s, n, &f, now);
    }
}

static void drop_orders(struct rdzv_node *n, uint32_t respawned)
{
    int kept = 0;
    for (int i = 0; i < n->norders; i++) {
        if (n->orders[i].respawn.id > respawned)
            n->orders[kept++] = n->orders[i];
    }
    n->norders = kept;
}

static void take_phase(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                       uint64_t now)
{
    bool current = n->group_rank >= 0 && generation_equal(st->gen, s->gen);
    if (current && st->failures_total > n->failures_total) {
        s->failures_total += st->failures_total - n->failures_total;
        n->failures_total = st->failures_total;
    }
    if (st->phase == MEMBER_LEAVING) {
        rdzv_phase_leave(s, n, st, now); /* may have removed it */
        return;
    }
    if (current && st->phase == MEMBER_PREPARED)
        rdzv_phase_prepared(s, n, st, now);
    else if (current && st->phase == MEMBER_DONE)
        rdzv_phase_done(s, n, now);
    else if (current && st->phase == MEMBER_IDLE && !st->workers)
        rdzv_phase_stopped(s, n, st, now);
    else if (n->group_rank < 0 && n->ready)
        rdzv_phase_newcomer(s, n, now);
    else if (rdzv_node_is_witness(n))
        rdzv_elect_witness(s, n, now);
}

/* A member says that it does what it was told: there is nothing to say to that. Besides the work,
 * an answer that a launcher has not read when it is killed turns the orderly end of its connection,
 * which tells at once, into a reset, after which it might come back. */
static bool needs_answer(const struct rdzv_state *s, const struct rdzv_node *n,
                         const struct rdzv_status *st)
{
    bool as_told =
        n->group_rank >= 0 && generation_equal(st->gen, s->gen) &&
        (st->phase == MEMBER_RUNNING || st->phase == MEMBER_DONE || st->phase == MEMBER_STOPPING);
    return !as_told || st->phase == n->phase || st->nfailures > 0;
}

void rdzv_state_status(struct rdzv_state *s, uint32_t conn, const struct rdzv_status *st,
                       uint64_t now)
{
    struct rdzv_node *n = conn_at(s, conn)->node;
    if (!n)
        return; /* a connection that has been replaced or refused */
    if (st->send_ns <= n->status_ns)
        return;
    rdzv_state_heard(s, n, now);
    n->status_ns = st->send_ns;
    n->echo_ns = st->view_sent_ns <= now ? st->view_sent_ns : 0;
    clock_offset_sample(&n->clock, st->view_sent_ns, st->view_seen_ns, st->send_ns, now);
    if (needs_answer(s, n, st))
        rdzv_state_send(s, n, PENDING_VIEW);
    drop_orders(n, st->respawned);
    n->phase = st->phase;
    n->took_part = st->gen.counter > 0;
    s->nbusy += st->workers - n->workers;
    n->workers = st->workers;
    rdzv_state_update_ready(s, n);
    take_failures(s, n, st, now);
    take_phase(s, n, st, now);
    rdzv_phase_advance(s, now);
}

void rdzv_state_beat(struct rdzv_state *s, const struct node_id *id, const struct rdzv_beat *b,
                     uint64_t now)
{
    struct rdzv_node *n = map_get(&s->by_id, id->b, sizeof(id->b));
    char name[RDZV_TEXT_MAX];
    if (!n)
        return;
    uint64_t heard = b->heard_ns < now ? b->heard_ns : now; /* it may be newer than the clock */
    if (heard > n->heard_ns) {
        n->heard_ns = heard;
        n->late_ns = s->late_ns;
    }
    if (b->touch_ns <= now && b->touch_ns > n->touch_ns)
        n->touch_ns = b->touch_ns;
    if (b->lag_ms >= RDZV_LAG_MS && !n->lagging)
        rdzv_state_log(s, LOG_LEVEL_WARN,
                       "node %s is slow: its launcher is %.1f s behind, its heartbeats come",
                       rdzv_join_name(n, name, sizeof(name)), b->lag_ms / 1e3);
    if (b->lag_ms >= RDZV_LAG_MS || b->lag_ms < RDZV_LAG_MS / 3)
        n->lagging = b->lag_ms >= RDZV_LAG_MS;
}

uint64_t rdzv_state_lease_until(struct rdzv_state *s, uint64_t now)
{
    return s->standing ? 0 : rdzv_elect_lease_until(s, now);
}

/* Its connection ended before it did. Nobody elects another coordinator before the dead time since
 * the last word of this one is over (clocks may differ); after that it may have. */
static bool has_elected_nobody(const struct rdzv_state *s, const struct rdzv_node *n, uint64_t now)
{
    return now < rdzv_node_touch(n) + s->rules.dead_ns / 5 * 4;
}

void rdzv_state_closed(struct rdzv_state *s, uint32_t conn, enum rdzv_end how, uint64_t now)
{
    struct rdzv_conn *c = conn_at(s, conn);
    struct rdzv_node *n = c->node;
    bool told = n && s->phase == RDZV_FINISH && !(c->pending & PENDING_REPORT);
    c->node = NULL;
    c->pending = 0;
    free(c->refusal);
    c->refusal = NULL;
    if (!n)
        return;
    n->conn = RDZV_NO_CONN;
    rdzv_state_update_ready(s, n);
    /* One that was released ends, and elects nobody; but one that had lost this coordinator before
     * it left does not hear that, and may give its vote to another before it ends. */
    if (how == RDZV_END_CLOSED || (n->released && has_elected_nobody(s, n, now)))
        rdzv_elect_dead(s, n);
    if (told || (n->leaving && (n->released || how == RDZV_END_CLOSED)))
        rdzv_phase_lost(s, n, NULL, now, now);
    else if (how == RDZV_END_CLOSED)
        rdzv_phase_lost(s, n, "its launcher has ended (connection closed)", now, now);
    else
        rdzv_state_log(s, LOG_LEVEL_VERBOSE, "the connection of node %s ended without a goodbye",
                       n->hello.host);
    rdzv_phase_advance(s, now);
}

void rdzv_state_turned_away(struct rdzv_state *s, const char *addr, const char *text, uint64_t now)
{
    rdzv_join_attempt(s, "", addr, text, now);
}

/* ------------------------------------------------------------------------------------- time */

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* This process was late, as it is on a busy machine, slept, or was stopped: the silence of that
 * time may be its own. When it was much, there is at least one heartbeat's time to hear the others,
 * whose words may lie here unread. */
static void doubt_oneself(struct rdzv_state *s, uint64_t late, uint64_t now)
{
    s->late_ns += late;
    if (late <= s->rules.heartbeat_ns / 2)
        return;
    if (s->graced_ns == 0 || now - s->late_ns >= s->graced_ns + s->rules.dead_ns) {
        s->graced_ns = now - s->late_ns; /* not each time: one that is always late finds out, too */
        s->grace_at = now + s->rules.heartbeat_ns;
    }
}

/* When it counts as lost unless something is heard of it before. */
static uint64_t lost_at(const struct rdzv_state *s, const struct rdzv_node *n)
{
    uint64_t silent = n->heard_ns + s->rules.dead_ns + (s->late_ns - n->late_ns);
    return silent > s->grace_at ? silent : s->grace_at;
}

/* That its connection broke proves nothing: its workers may be alive, or be started by what it was
 * told last. */
void rdzv_state_hold_for(struct rdzv_state *s, const struct rdzv_node *n)
{
    uint64_t until = n->heard_ns + s->rules.dead_ns;
    bool told = s->phase == RDZV_RUN || s->phase == RDZV_STOP;
    bool may = n->workers || (told && n->group_rank >= 0 && !n->stopped && !n->done);
    if (may && until > s->hold_at)
        s->hold_at = until;
}

static void drop_silent(struct rdzv_state *s, uint64_t now)
{
    s->check_at = NEVER;
    for (int i = 0; i < s->nnodes; i++) {
        struct rdzv_node *n = s->nodes[i];
        if (n->peer.own) { /* it is this process */
            rdzv_state_heard(s, n, now);
        }
        if (now < lost_at(s, n)) {
            s->check_at = sooner(s->check_at, lost_at(s, n));
            continue;
        }
        char how[RDZV_TEXT_MAX];
        text_set(how, sizeof(how), "nothing heard of it for %.1f s",
                 (double)(now - n->heard_ns) / 1e9);
        if (n->conn != RDZV_NO_CONN)
            rdzv_state_close(s, n->conn, NULL, false);
        rdzv_phase_lost(s, n, how, n->heard_ns, now);
        i--; /* another one has taken its slot */
    }
}

/* Respawn orders whose backoff is over. */
static void send_orders(struct rdzv_state *s, uint64_t now)
{
    s->respawn_at = NEVER;
    for (int i = 0; i < s->nnodes; i++) {
        struct rdzv_node *n = s->nodes[i];
        for (int k = 0; k < n->norders; k++) {
            if (n->orders[k].due_ns <= now)
                rdzv_state_send(s, n, PENDING_VIEW);
            else if (n->orders[k].due_ns < s->respawn_at)
                s->respawn_at = n->orders[k].due_ns;
        }
    }
}

/* Not for votes, nor for the end of a backoff. */
static bool waits_for_nodes(const struct rdzv_state *s)
{
    return s->phase == RDZV_COLLECT && !s->standing && s->not_before == NEVER;
}

void rdzv_state_tick(struct rdzv_state *s, uint64_t now)
{
    if (now > s->pulse_at)
        doubt_oneself(s, now - s->pulse_at, now);
    if (now >= s->pulse_at)
        s->pulse_at = now + s->rules.heartbeat_ns;
    if (now >= s->check_at)
        drop_silent(s, now);
    if (now >= s->respawn_at)
        send_orders(s, now);
    if (waits_for_nodes(s) && now >= s->notice_at)
        rdzv_join_notice(s, now);
    rdzv_phase_advance(s, now);
}

uint64_t rdzv_state_deadline(const struct rdzv_state *s)
{
    uint64_t at = sooner(sooner(s->check_at, s->respawn_at), s->pulse_at);
    if (s->phase == RDZV_FINISH)
        return s->finished ? NEVER : sooner(at, s->close_at);
    if (s->phase != RDZV_COLLECT)
        return at;
    if (waits_for_nodes(s))
        at = sooner(at, s->notice_at);
    if (s->elect_at != NEVER) /* whether it may start at all comes first */
        return sooner(at, s->elect_at > s->grace_at ? s->elect_at : s->grace_at);
    if (s->settle_at != NEVER)
        at = sooner(at, s->settle_at);
    if (s->hold_at)
        return sooner(at, s->hold_at);
    if (s->not_before != NEVER) /* the backoff comes before all else */
        return sooner(at, s->not_before);
    if (s->nbusy) /* that one says so, or is looked for */
        return at;
    return sooner(at, s->nready >= s->rules.min_nodes ? s->last_call_at : s->join_at);
}

/* ----------------------------------------------------------------------------------- actions */

static void fill_respawns(struct rdzv_state *s, const struct rdzv_node *n, struct rdzv_view *v,
                          uint64_t now)
{
    if (n->norders == 0 || s->phase != RDZV_RUN)
        return;
    s->respawns = xrealloc(s->respawns, (size_t)n->norders * sizeof(*s->respawns));
    for (int i = 0; i < n->norders && n->orders[i].due_ns <= now; i++)
        s->respawns[v->nrespawns++] = n->orders[i].respawn;
    v->respawns = s->respawns;
}

static void fill_view(struct rdzv_state *s, struct rdzv_node *n, struct rdzv_view *v, uint64_t now)
{
    bool member = n->group_rank >= 0;
    n->view_ns = now > n->view_ns ? now : n->view_ns + 1; /* so that an older one is known */
    *v = (struct rdzv_view){
        .phase = member || s->phase == RDZV_FINISH ? s->phase : RDZV_COLLECT,
        .gen = s->gen,
        .group_rank = n->group_rank,
        .nnodes = s->nmembers,
        .restart_count = s->restarts,
        .node_restarts = s->node_restarts,
        .sent_ns = n->view_ns,
        .echo_ns = n->status_ns,
        .acked = n->acked,
        .heartbeat_ms = (uint32_t)(s->rules.heartbeat_ns / 1000000),
        .dead_ms = (uint32_t)(s->rules.dead_ns / 1000000),
        .elect = s->rules.elect,
        .lease = now < rdzv_elect_lease_until(s, now),
        .spare = !member && !rdzv_node_is_witness(n) && s->phase != RDZV_COLLECT &&
                 s->phase != RDZV_FINISH,
    };
    /* Also after the stop: a node that was faster than the news may still want to know why. */
    if (s->why_counter && s->why_counter + 1 >= s->gen.counter && v->phase < RDZV_FINISH &&
        v->phase != RDZV_RUN) {
        v->why = &s->why;
        v->why_counter = s->why_counter;
    }
    if (n->released) {
        v->phase = RDZV_RELEASE;
    } else if (!member && n->phase != MEMBER_IDLE) { /* the round has gone on without it */
        s->given_up.reason = STOP_NODE_LOST;
        s->given_up.restarting = true;
        text_set(s->given_up.text, sizeof(s->given_up.text),
                 "the other nodes had given up this node (%s) as lost", n->hello.host);
        v->why = &s->given_up;
    }
    fill_respawns(s, n, v, now);
}

/* Takes one thing off a connection's list. */
static bool next_of_conn(struct rdzv_state *s, uint32_t conn, struct rdzv_action *a, uint64_t now)
{
    static const struct {
        unsigned bit;
        enum rdzv_act act;
    } order[] = {{PENDING_PEERS, RDZV_ACT_PEERS},   {PENDING_TABLE, RDZV_ACT_TABLE},
                 {PENDING_REPORT, RDZV_ACT_REPORT}, {PENDING_VIEW, RDZV_ACT_VIEW},
                 {PENDING_NOTICE, RDZV_ACT_NOTICE}, {PENDING_CLOSE, RDZV_ACT_CLOSE}};
    struct rdzv_conn *c = &s->conns[conn];
    size_t i = 0;
    while (i < ARRAY_LEN(order) && !(c->pending & order[i].bit))
        i++;
    if (i == ARRAY_LEN(order))
        return false;
    c->pending &= ~order[i].bit;
    *a = (struct rdzv_action){.act = order[i].act, .conn = conn};
    switch (a->act) {
    case RDZV_ACT_TABLE:
        a->table = &s->table;
        break;
    case RDZV_ACT_PEERS:
        a->peers = &s->peers;
        a->ran = rdzv_elect_ran(s);
        break;
    case RDZV_ACT_REPORT:
        a->result = &s->result;
        break;
    case RDZV_ACT_VIEW:
        fill_view(s, c->node, &a->view, now);
        break;
    case RDZV_ACT_NOTICE:
        a->text = s->notice;
        break;
    default: /* close */
        free(s->said);
        a->text = s->said = c->refusal;
        a->retry = c->retry;
        c->refusal = NULL;
        break;
    }
    return true;
}

bool rdzv_state_next(struct rdzv_state *s, struct rdzv_action *a, uint64_t now)
{
    if (s->line_head < s->nlines) {
        struct rdzv_line *l = &s->lines[s->line_head++];
        free(s->said);
        s->said = l->text;
        *a = (struct rdzv_action){.act = RDZV_ACT_LOG, .level = l->level, .text = s->said};
        return true;
    }
    if (s->new_round) {
        s->new_round = false;
        *a = (struct rdzv_action){.act = RDZV_ACT_NEW_ROUND};
        return true;
    }
    while (s->queue_head < s->queue_len) {
        uint32_t conn = s->queue[s->queue_head];
        if (next_of_conn(s, conn, a, now))
            return true;
        s->conns[conn].queued = false;
        s->queue_head++;
    }
    if (s->finished && !s->finished_said) {
        s->finished_said = true;
        *a = (struct rdzv_action){.act = RDZV_ACT_FINISHED};
        return true;
    }
    return false;
}

void rdzv_state_get_info(const struct rdzv_state *s, struct rdzv_state_info *out)
{
    *out = (struct rdzv_state_info){.phase = s->phase,
                                    .gen = s->gen,
                                    .nodes = rdzv_state_count(s),
                                    .nnodes = s->nmembers,
                                    .restarts = s->restarts,
                                    .node_restarts = s->node_restarts,
                                    .standing = s->standing,
                                    .finished = s->phase == RDZV_FINISH,
                                    .result = s->phase == RDZV_FINISH ? &s->result : NULL};
}
