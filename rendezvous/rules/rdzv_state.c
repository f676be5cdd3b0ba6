#include "rendezvous/rules/rdzv_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/debug_assert.h"
#include "core/fsm.h"
#include "core/mem.h"
#include "rendezvous/rules/delay.h"
#include "rendezvous/rules/failure_log.h"
#include "rendezvous/rules/rdzv_admission.h"
#include "rendezvous/rules/rdzv_crash_loop.h"
#include "rendezvous/rules/rdzv_election.h"
#include "rendezvous/rules/rdzv_output.h"
#include "rendezvous/rules/rdzv_round.h"
#include "rendezvous/rules/text.h"

#define NEVER           UINT64_MAX
#define NOTICE_FIRST_NS 3000000000u
#define NOTICE_NS       5000000000u
#define NOTICE_LATER_NS 30000000000u
#define BACKOFF_MAX_NS  604800000000000u /* a week */

#define REPLACED "this coordinator was out of reach for so long that another was elected"

/* rdzv_state.h has the drawing. */
static const struct fsm_state phases[RDZV_RELEASE] = {
    [RDZV_COLLECT] = {"collect", FSM_BIT(RDZV_PREPARE) | FSM_BIT(RDZV_FINISH)},
    [RDZV_PREPARE] = {"prepare", FSM_BIT(RDZV_COLLECT) | FSM_BIT(RDZV_RUN) | FSM_BIT(RDZV_FINISH)},
    [RDZV_RUN] = {"run", FSM_BIT(RDZV_STOP) | FSM_BIT(RDZV_FINISH)},
    [RDZV_STOP] = {"stop", FSM_BIT(RDZV_COLLECT) | FSM_BIT(RDZV_FINISH)},
    [RDZV_FINISH] = {"finish", 0},
};

struct rdzv_state {
    struct rdzv_rules rules;
    struct fsm phase; /* enum rdzv_phase */
    struct generation gen;
    int restarts;      /* charged to max_restarts */
    int node_restarts; /* charged to max_node_restarts */
    struct rdzv_crash_loop crash_loop;
    bool began; /* some round has run */
    struct rdzv_nodes nodes;
    struct rdzv_attempts turned_away;
    struct rdzv_election election;

    /* The round: members[group rank], NULL when the member was lost. */
    struct rdzv_node **members;
    int nmembers;
    int nprepared, nstarted, ndone;
    int nrunning; /* in STOP: members that have not yet stopped */
    struct rank_table table;
    uint64_t run_ns, stop_ns; /* when the phases RUN and STOP began */
    struct failure_log log;   /* of the round */
    size_t failures_total;    /* workers and nodes that have a record */

    /* The stop, and what follows from it. */
    struct rdzv_stop why, given_up;
    uint32_t why_counter; /* of the round that was stopped; 0: none was */
    bool lost_a_node;     /* the stop was for a node that was lost or left */
    bool end;             /* the job ends after the stop, with: */
    enum stop_reason end_reason;
    int end_code;
    char end_text[RDZV_TEXT_MAX];
    /* The newest node that was lost or left, when too few remain. */
    enum stop_reason loss_reason;
    int loss_code;
    char loss_text[RDZV_TEXT_MAX];

    /* Deadlines; NEVER when not set. */
    uint64_t collect_ns; /* when COLLECT began */
    uint64_t join_at, last_call_at, not_before, notice_at, respawn_at, check_at, close_at;
    uint64_t settle_at; /* until then nodes may still find an elected coordinator; or NEVER */
    uint64_t
        hold_at; /* the time until which a lost node may have workers; 0: there is no such node */
    struct delay delay; /* of this process; graced_ns by a clock that stops in delays */

    /* Output. */
    struct rdzv_output out;
    bool new_round, finished, reported_finished;
    char notice[RDZV_NOTICE_MAX];
    struct rdzv_respawn *respawns; /* of the view that was taken last */

    struct rdzv_result result;
    uint64_t result_ns;
};

/* --------------------------------------------------------------------------------------- output */

static void queue(struct rdzv_state *s, struct rdzv_node *n, unsigned due)
{
    if (s->election.standing && s->phase.state != RDZV_FINISH)
        due &= ~RDZV_DUE_VIEW; /* a candidate has no views */
    if (n->conn != RDZV_NO_CONN)
        rdzv_output_queue(&s->out, n->conn, due);
}

static void queue_all(struct rdzv_state *s, unsigned due)
{
    for (int i = 0; i < s->nodes.n; i++)
        queue(s, s->nodes.e[i], due);
}

/* --------------------------------------------------------------------------------------- events */

static void event(struct rdzv_state *s, uint64_t at, struct event e)
{
    if (!s->rules.events || s->election.standing)
        return;
    e.at_ns = at;
    e.round = s->gen.counter;
    e.max_restarts = s->rules.max_restarts;
    if (e.name != EVENT_FAILURE && e.name != EVENT_RESTART)
        e.attempt = s->restarts;
    rdzv_output_event(&s->out, &e);
}

/* An event of the whole job. */
static void job_event(struct rdzv_state *s, uint64_t now, enum event_name name, enum cause cause,
                      const char *text)
{
    event(s, now,
          (struct event){.name = name,
                         .node = -1,
                         .rank = -1,
                         .caused_by = -1,
                         .nnodes = s->nmembers,
                         .world_size = s->table.world_size,
                         .cause = cause,
                         .text = text});
}

static void node_event(struct rdzv_state *s, uint64_t now, enum event_name name,
                       const struct rdzv_node *n, const char *text)
{
    event(s, now,
          (struct event){.name = name,
                         .node = n->group_rank,
                         .rank = -1,
                         .caused_by = -1,
                         .pid = n->hello.pid,
                         .world_size = n->hello.nproc,
                         .host = n->hello.host,
                         .text = text});
}

static void failure_event(struct rdzv_state *s, const struct failure *f)
{
    char text[FAILURE_TEXT_MAX];
    if (!s->rules.events)
        return;
    event(s, f->seen_ns,
          (struct event){.name = EVENT_FAILURE,
                         .attempt = f->attempt,
                         .node = f->node,
                         .pid = f->pid,
                         .rank = f->rank,
                         .local_rank = f->local_rank,
                         .exit_code = f->exit_code,
                         .signal = f->signal,
                         .caused_by = f->caused_by,
                         .cause = cause_of_failure(f),
                         .host = f->host,
                         .text = failure_describe(f, text, sizeof(text))});
}

static void close_conn(struct rdzv_state *s, uint32_t conn, const char *refusal, bool retry)
{
    struct rdzv_node *n = rdzv_output_conn(&s->out, conn)->node;
    if (n) {
        n->conn = RDZV_NO_CONN;
        rdzv_nodes_update_ready(&s->nodes, n);
    }
    rdzv_output_close(&s->out, conn, refusal, retry);
}

/* ---------------------------------------------------------------------------------------- nodes */

static void heard(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    n->heard_ns = now;
    n->late_ns = s->delay.late_ns;
    if (s->check_at == NEVER)
        s->check_at = now + s->rules.dead_ns;
}

/* The node is lost without a proof of its end: its workers may be alive, or may start by the last
 * view that was sent to it. No round begins before their lease has run out (I5 in
 * rdzv_election.c). */
static void hold_for(struct rdzv_state *s, const struct rdzv_node *n)
{
    uint64_t until = n->heard_ns + s->rules.dead_ns;
    bool in_round = s->phase.state == RDZV_RUN || s->phase.state == RDZV_STOP;
    bool may = n->workers || (in_round && n->group_rank >= 0 && !n->stopped && !n->done);
    if (may && until > s->hold_at)
        s->hold_at = until;
}

static void remove_node(struct rdzv_state *s, struct rdzv_node *n)
{
    if (n->conn != RDZV_NO_CONN) {
        struct rdzv_conn *c = rdzv_output_conn(&s->out, n->conn);
        c->node = NULL;
        c->due = 0;
    }
    if (n->group_rank >= 0) {
        assert(n->group_rank < s->nmembers && s->members[n->group_rank] == n);
        s->members[n->group_rank] = NULL;
    }
    rdzv_nodes_remove(&s->nodes, n);
}

/* Launchers that have been in no round, and have no vote, look for another coordinator when this
 * one gives up: the other nodes of the job may go on. */
static void send_away_newcomers(struct rdzv_state *s)
{
    for (int i = s->nodes.n - 1; i >= 0; i--) {
        struct rdzv_node *n = s->nodes.e[i];
        if (n->peer.own || n->took_part || rdzv_election_is_voting_witness(&s->election, n))
            continue;
        if (n->conn != RDZV_NO_CONN)
            close_conn(s, n->conn, "this coordinator has lost most of its nodes", true);
        remove_node(s, n);
    }
}

/* --------------------------------------------------------------------------------------- finish */

/* The report begins with the node when the loss of the node has ended the job. */
static void lead_with_node(struct failure_log *l)
{
    size_t i = 0;
    while (i < l->n && l->f[i].kind != FAILURE_NODE)
        i++;
    if (i == 0 || i == l->n)
        return;
    struct failure node = l->f[i];
    memmove(&l->f[1], &l->f[0], i * sizeof(node));
    l->f[0] = node;
}

static void finish(struct rdzv_state *s, int exit_code, enum stop_reason reason, const char *text,
                   uint64_t now)
{
    const struct failure *first = failure_log_first(&s->log);
    bool report = exit_code != 0 && first;
    failure_log_sort(&s->log, RDZV_REPORT_MAX);
    if (reason == STOP_NODE_LOST)
        lead_with_node(&s->log);
    first = report ? &s->log.f[0] : NULL;
    s->result.exit_code = exit_code;
    s->result.reason = reason;
    s->result.restarts = s->restarts;
    s->result.failures = report ? s->log.f : NULL;
    s->result.n = report ? s->log.n : 0;
    if (report && s->failures_total > s->log.n)
        s->result.omitted = s->failures_total - s->log.n;
    text_set(s->result.text, sizeof(s->result.text), "%s", text);
    s->result_ns = now;
    fsm_move(&s->phase, RDZV_FINISH);
    event(s, now,
          (struct event){.name = EVENT_FINISH,
                         .node = -1,
                         .rank = -1,
                         .caused_by = -1,
                         .exit_code = exit_code,
                         .cause = exit_code ? cause_of_stop(reason, first) : CAUSE_NONE,
                         .text = text});
    s->close_at = now + s->rules.close_ns;
    queue_all(s, RDZV_DUE_REPORT | RDZV_DUE_VIEW);
}

static void finish_advance(struct rdzv_state *s, uint64_t now)
{
    if (s->finished || (s->nodes.n > 0 && now < s->close_at))
        return;
    s->finished = true;
    if (s->nodes.n > 0) {
        char name[RDZV_TEXT_MAX];
        rdzv_output_log(&s->out, LOG_LEVEL_WARN,
                        "%d node%s, among them %s, did not receive the job's result", s->nodes.n,
                        s->nodes.n > 1 ? "s" : "",
                        rdzv_node_name(s->nodes.e[0], name, sizeof(name)));
    }
}

/* -------------------------------------------------------------------------------------- collect */

static void enter_collect(struct rdzv_state *s, uint64_t now)
{
    s->collect_ns = now;
    s->join_at = now + s->rules.join_ns;
    s->notice_at = now + NOTICE_FIRST_NS;
    job_event(s, now, EVENT_RENDEZVOUS, CAUSE_NONE, NULL);
}

/* The round is over, or was not started: no node is a member any more. */
static void back_to_collect(struct rdzv_state *s, uint64_t now)
{
    for (int i = 0; i < s->nmembers; i++) {
        if (s->members[i])
            s->members[i]->group_rank = -1;
    }
    s->nmembers = 0;
    fsm_move(&s->phase, RDZV_COLLECT);
    enter_collect(s, now);
    queue_all(s, RDZV_DUE_VIEW);
}

/* Whether the node is left out of rounds because it failed again and again. The coordinator's own
 * node is never left out. */
static bool is_left_out(const struct rdzv_state *s, const struct rdzv_node *n, uint64_t now)
{
    bool alone = true;
    if (s->crash_loop.nnodes == 0 || n->peer.own)
        return false;
    for (int i = 0; i < s->nodes.n; i++) {
        const struct rdzv_node *o = s->nodes.e[i];
        alone &= o == n || strcmp(o->hello.host, n->hello.host) != 0 ||
                 strcmp(o->peer.addr, n->peer.addr) != 0;
    }
    return rdzv_crash_loop_until(&s->crash_loop, n, alone, now) > 0;
}

/* Removes the nodes that are left out from the list, if enough remain. Returns how many remain. */
static int leave_out(struct rdzv_state *s, struct rdzv_node **m, int n, uint64_t now)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        kept += !is_left_out(s, m[i], now);
    if (kept == n || kept < s->rules.min_nodes)
        return n;
    kept = 0;
    for (int i = 0; i < n; i++) {
        if (!is_left_out(s, m[i], now))
            m[kept++] = m[i];
    }
    return kept;
}

static struct rdzv_place place_of(const struct rdzv_state *s)
{
    const struct rdzv_rules *r = &s->rules;
    return (struct rdzv_place){r->bound_addr, r->port, r->local_addr, r->master_addr,
                               r->agent_store};
}

static void prepare_round(struct rdzv_state *s, uint64_t now)
{
    struct rdzv_node **m = xcalloc((size_t)s->nodes.n, sizeof(struct rdzv_node *));
    int n = 0;
    for (int i = 0; i < s->nodes.n; i++) {
        if (s->nodes.e[i]->ready)
            m[n++] = s->nodes.e[i];
    }
    if (s->crash_loop.nnodes)
        n = leave_out(s, m, n, now);
    if (n > s->rules.max_nodes) {
        rdzv_round_choose(m, n);
        n = s->rules.max_nodes;
    }
    rdzv_round_rank(m, n);
    for (int i = 0; i < n; i++) {
        m[i]->group_rank = i;
        m[i]->prepared = m[i]->started = m[i]->stopped = m[i]->done = false;
        m[i]->failures_total = 0;
        m[i]->norders = 0;
        free(m[i]->respawned);
        m[i]->respawned = NULL;
    }
    free(s->members);
    s->members = m;
    s->nmembers = n;
    s->nprepared = s->ndone = 0;
    s->last_call_at = NEVER;
    failure_log_clear(&s->log);
    s->failures_total = 0;
    s->gen.counter++;
    s->new_round = true;
    fsm_move(&s->phase, RDZV_PREPARE);
    if (s->rules.elect) {
        const struct rdzv_place place = place_of(s);
        rdzv_election_prepare(&s->election, m, n, &place, s->gen, now);
        queue_all(s, RDZV_DUE_PEERS);
    }
    queue_all(s, RDZV_DUE_VIEW);
}

/* Whether the job waits for another node when too few are left. */
static bool waits_for_replacement(const struct rdzv_state *s)
{
    return s->rules.max_node_restarts > 0 ||
           (s->rules.max_node_restarts < 0 && s->rules.max_restarts > 0);
}

/* Fewer than MIN nodes are left of a job that has run. Whether the job waits for another one. */
static bool wait_for_replacement(struct rdzv_state *s, uint64_t now)
{
    if (!waits_for_replacement(s))
        finish(s, s->loss_code, s->loss_reason, s->loss_text, now);
    return s->phase.state == RDZV_COLLECT;
}

static void join_timeout(struct rdzv_state *s, uint64_t now)
{
    char text[RDZV_TEXT_MAX] = "", late[RDZV_TEXT_MAX];
    rdzv_admission_timeout(&s->rules, &s->nodes, &s->turned_away, now - s->collect_ns, late,
                           sizeof(late));
    bool lost = s->began && s->loss_text[0];
    text_set(text, sizeof(text), "%s%s%s", lost ? s->loss_text : "", lost ? "; " : "", late);
    finish(s, 1, lost ? STOP_NODE_LOST : STOP_RENDEZVOUS, text, now);
}

static void take_over(struct rdzv_state *s, const struct rdzv_tally *votes, uint64_t now)
{
    int max = s->rules.max_node_restarts;
    s->gen = (struct generation){s->election.epoch, 0};
    s->settle_at = now + s->rules.dead_ns;
    rdzv_output_log(&s->out, LOG_LEVEL_NOTICE,
                    "this node is the coordinator now, by %d of the %d nodes of the last round",
                    votes->present, votes->total);
    job_event(s, now, EVENT_ELECTED, CAUSE_NONE, s->loss_text);
    s->node_restarts++; /* the coordinator's node is lost */
    if (max >= 0 && s->node_restarts > max) {
        s->node_restarts = max;
        text_set(s->result.final, sizeof(s->result.final),
                 "restarts after a lost node: %d of %d used (--max_node_restarts)", max, max);
        finish(s, 1, STOP_COORDINATOR_LOST, s->loss_text, now);
    }
    queue_all(s, RDZV_DUE_VIEW);
}

static void minority(struct rdzv_state *s, const struct rdzv_tally *t, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    send_away_newcomers(s);
    text_set(
        text, sizeof(text),
        "%s%sonly %d of the %d nodes of the last round are in reach, which is no majority: the "
        "others may go on without them",
        s->loss_text, s->loss_text[0] ? "; " : "", t->present, t->total);
    finish(s, 1, STOP_COORDINATOR_LOST, text, now);
}

/* Whether the election lets a round start. */
static bool may_start(struct rdzv_state *s, uint64_t now)
{
    struct rdzv_tally tally;
    enum rdzv_verdict v = rdzv_election_may_start(&s->election, s->delay.grace_at, now, &tally);
    if (v == ELECTION_ELECTED) {
        take_over(s, &tally, now);
        if (s->phase.state == RDZV_COLLECT)
            v = rdzv_election_may_start(&s->election, s->delay.grace_at, now, &tally);
    }
    if (v == ELECTION_MINORITY)
        minority(s, &tally, now);
    return v == ELECTION_MAY_START;
}

/* The last call is for the job's first round. A later one, be it the first of an elected
 * coordinator, does not wait for more nodes than are left: another one is taken in when it joins.
 */
static bool is_first_round(const struct rdzv_state *s)
{
    return s->gen.counter == 0 && s->election.quorum[RDZV_LIST_RAN].list.n == 0;
}

static void collect_advance(struct rdzv_state *s, uint64_t now)
{
    int live = rdzv_nodes_live(&s->nodes), min = s->rules.min_nodes;
    if ((s->election.standing || s->election.quorum[RDZV_LIST_RAN].list.n) && !may_start(s, now))
        return;
    if (live >= min || now >= s->settle_at)
        s->settle_at = NEVER;
    if (s->began && live < min && (s->settle_at != NEVER || !wait_for_replacement(s, now)))
        return;
    if (s->hold_at) {
        if (now < s->hold_at)
            return;
        s->hold_at = 0;
    }
    if (s->not_before != NEVER) {
        if (now < s->not_before)
            return;
        s->not_before = NEVER;
    }
    if (s->nodes.nbusy) /* until their next status, or until they count as lost */
        return;
    if (s->nodes.nready >= s->rules.max_nodes ||
        (!is_first_round(s) && s->nodes.nready >= min && s->nodes.nready == live)) {
        prepare_round(s, now);
    } else if (s->nodes.nready >= min) {
        if (s->last_call_at == NEVER)
            s->last_call_at = now + s->rules.last_call_ns;
        if (now >= s->last_call_at)
            prepare_round(s, now);
    } else {
        s->last_call_at = NEVER;
        if (now >= s->join_at)
            join_timeout(s, now);
    }
}

/* ------------------------------------------------------------------------------ prepare and run */

static void node_lost(struct rdzv_state *s, struct rdzv_node *n, const char *how, uint64_t since,
                      uint64_t now);
static void advance(struct rdzv_state *s, uint64_t now);

static void run_round(struct rdzv_state *s, uint64_t now)
{
    const struct rdzv_place place = place_of(s);
    char note[RDZV_TEXT_MAX];
    struct err e = ERR_INIT;
    rank_table_fini(&s->table);
    if (rdzv_round_table(&s->table, s->members, s->nmembers, &place, note, sizeof(note), &e) < 0) {
        finish(s, 1, STOP_INTERNAL, e.msg, now);
        return;
    }
    if (note[0])
        rdzv_output_log(&s->out, s->began ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTICE, "%s", note);
    s->table.gen = s->gen;
    s->table.restart_count = s->restarts;
    fsm_move(&s->phase, RDZV_RUN);
    s->run_ns = now;
    if (s->rules.elect)
        rdzv_election_run(&s->election);
    s->began = true;
    s->nstarted = 0;
    job_event(s, now, EVENT_START, CAUSE_NONE, NULL);
    s->loss_text[0] = '\0';
    for (int i = 0; i < s->nodes.n; i++) {
        struct rdzv_node *n = s->nodes.e[i];
        n->prev_rank = n->group_rank;
        if (n->group_rank >= 0)
            queue(s, n, RDZV_DUE_TABLE | RDZV_DUE_VIEW);
    }
}

static void node_prepared(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                          uint64_t now)
{
    if (s->phase.state != RDZV_PREPARE || n->prepared)
        return;
    if (st->nports != 0 && st->nports != n->hello.nproc) {
        close_conn(s, n->conn, "it has another number of data ports than of workers", false);
        node_lost(s, n, "malformed status", now, now);
        return;
    }
    free(n->ports);
    n->ports = NULL;
    if (st->nports) {
        n->ports = xcalloc((size_t)st->nports, sizeof(*n->ports));
        for (int i = 0; i < st->nports; i++)
            n->ports[i] = (uint16_t)(st->ports[2 * i] | st->ports[2 * i + 1] << 8);
    }
    n->free_port = st->free_port;
    n->prepared = true;
    s->nprepared++;
}

/* The member's workers have been started. */
static void node_started(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    if (s->phase.state != RDZV_RUN || n->started)
        return;
    n->started = true;
    if (++s->nstarted == s->nmembers)
        job_event(s, now, EVENT_READY, CAUSE_NONE, NULL);
}

static void node_done(struct rdzv_state *s, struct rdzv_node *n)
{
    if (s->phase.state != RDZV_RUN || n->done)
        return;
    n->done = true;
    s->ndone++;
}

/* ----------------------------------------------------------------------------------------- stop */

static void end_job(struct rdzv_state *s, enum stop_reason reason, int code, const char *text)
{
    if (s->end)
        return;
    s->end = true;
    s->end_reason = reason;
    s->end_code = code;
    text_set(s->end_text, sizeof(s->end_text), "%s", text);
}

static void begin_stop(struct rdzv_state *s, enum stop_reason reason, bool restarting,
                       const char *text, const struct failure *first, uint64_t now)
{
    fsm_move(&s->phase, RDZV_STOP);
    s->stop_ns = now;
    s->lost_a_node = false;
    s->why_counter = s->gen.counter;
    s->why.reason = reason;
    s->why.restarting = restarting;
    s->why.has_first = first != NULL;
    if (first)
        s->why.first = *first;
    text_set(s->why.text, sizeof(s->why.text), "%s", text);
    job_event(s, now, EVENT_STOP, cause_of_stop(reason, first), text);
    s->nrunning = 0;
    for (int i = 0; i < s->nmembers; i++) {
        if (s->members[i]) {
            s->nrunning++;
            queue(s, s->members[i], RDZV_DUE_VIEW);
        }
    }
}

static void mark_stopped(struct rdzv_state *s, struct rdzv_node *n)
{
    if (n->stopped)
        return;
    n->stopped = true;
    s->nrunning--;
}

/* The failure after which the job must not restart, or NULL. */
static const struct failure *final_failure(const struct rdzv_state *s)
{
    for (size_t i = 0; i < s->log.n; i++) {
        const struct failure *f = &s->log.f[i];
        if (cause_action_of(&s->rules.actions, CAUSE_EXEC) == ACTION_END && f->kind == FAILURE_EXEC)
            return f;
        if (f->kind == FAILURE_EXIT && exit_codes_has(&s->rules.no_restart, f->exit_code))
            return f;
    }
    const struct failure *first = failure_log_first(&s->log);
    return first && cause_action_of(&s->rules.actions, cause_of_failure(first)) == ACTION_END
               ? first
               : NULL;
}

static bool may_restart(const struct rdzv_state *s)
{
    return s->restarts < s->rules.max_restarts && !final_failure(s);
}

/* Whether another round may follow the loss of a node. */
static bool may_go_on_without(const struct rdzv_state *s)
{
    int max = s->rules.max_node_restarts;
    return cause_action_of(&s->rules.actions, CAUSE_NODE_LOST) != ACTION_END &&
           (max < 0 || s->node_restarts < max) &&
           (rdzv_nodes_live(&s->nodes) >= s->rules.min_nodes || waits_for_replacement(s));
}

static void record_lost(struct rdzv_state *s, const struct rdzv_node *n, const char *how,
                        uint64_t since, struct failure *f)
{
    failure_init(f);
    f->kind = FAILURE_NODE;
    f->node = n->group_rank;
    f->pid = n->hello.pid;
    f->attempt = s->restarts;
    f->seen_ns = since;
    strcpy(f->host, n->hello.host);
    strcpy(f->role, n->hello.role);
    text_set(f->message, sizeof(f->message), "%s", how);
    failure_log_add(&s->log, f);
    failure_event(s, f);
    s->failures_total++;
}

static void remember_loss(struct rdzv_state *s, enum stop_reason reason, int code, const char *text)
{
    s->loss_reason = reason;
    s->loss_code = code;
    text_set(s->loss_text, sizeof(s->loss_text), "%s", text);
}

/* The node was cut off for longer than its lease, and for less than the dead time. */
static void stop_without(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    const char *how =
        rdzv_election_has_quorum(&s->election)
            ? "it had no contact for so long that it ended its workers"
            : "it was given no lease, because most of the other nodes are out of reach";
    char name[RDZV_TEXT_MAX], text[RDZV_TEXT_MAX];
    struct failure lost;
    text_set(text, sizeof(text), "node %s: %s", rdzv_node_name(n, name, sizeof(name)), how);
    record_lost(s, n, how, now, &lost);
    remember_loss(s, STOP_NODE_LOST, 1, text);
    begin_stop(s, STOP_NODE_LOST, may_go_on_without(s), text, &lost, now);
    s->lost_a_node = true;
}

static void node_stopped(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                         uint64_t now)
{
    if (s->phase.state == RDZV_PREPARE &&
        st->fenced) { /* the node has dropped the round that it had prepared */
        back_to_collect(s, now);
    } else if (s->phase.state == RDZV_RUN && st->fenced) {
        stop_without(s, n, now);
    } else if (s->phase.state == RDZV_RUN) {
        char text[RDZV_TEXT_MAX];
        text_set(text, sizeof(text), "node %s has stopped its workers without a reason",
                 n->hello.host);
        begin_stop(s, STOP_INTERNAL, false, text, NULL, now);
        end_job(s, STOP_INTERNAL, 1, text);
    }
    if (s->phase.state == RDZV_STOP)
        mark_stopped(s, n);
}

static void crash_loop(struct rdzv_state *s, const struct rdzv_node *n, enum cause_action action,
                       uint64_t now)
{
    char name[RDZV_TEXT_MAX];
    if (n && action == ACTION_EVICT && !n->peer.own) {
        rdzv_crash_loop_evict(&s->crash_loop, n, now);
        node_event(s, now, EVENT_EVICT, n, "by the action of its failure's class (--on_cause)");
        rdzv_output_log(&s->out, LOG_LEVEL_NOTICE,
                        "node %s is left out for %.0f s if enough other nodes are present "
                        "(--on_cause)",
                        rdzv_node_name(n, name, sizeof(name)), RDZV_LEFT_OUT_NS / 1e9);
        return;
    }
    if (!n || !rdzv_crash_loop_node(&s->crash_loop, n, now) || n->peer.own)
        return;
    node_event(s, now, EVENT_EVICT, n, "it failed again and again");
    rdzv_output_log(
        &s->out, LOG_LEVEL_NOTICE,
        "node %s: %d failures in a row; it is left out for %.0f s if enough other nodes "
        "are present",
        rdzv_node_name(n, name, sizeof(name)), RDZV_CRASH_LOOP_MAX, RDZV_LEFT_OUT_NS / 1e9);
}

/* The pause before the restart that has just been charged. */
static uint64_t backoff(const struct rdzv_state *s)
{
    uint64_t n = (uint64_t)s->restarts;
    return s->rules.backoff_ns > BACKOFF_MAX_NS / n ? BACKOFF_MAX_NS : s->rules.backoff_ns * n;
}

/* The starts among which the failure's start is counted: its worker's, if that was started again
 * alone, else the job's. *lived_ns: how long it lived. */
static struct rdzv_starts *starts_of(struct rdzv_state *s, const struct failure *f, uint64_t now,
                                     uint64_t *lived_ns)
{
    const struct rdzv_node *n = f->node >= 0 && f->node < s->nmembers ? s->members[f->node] : NULL;
    struct rdzv_worker *w = n && n->respawned ? &n->respawned[f->local_rank] : NULL;
    bool alone = w && w->start_ns;
    uint64_t start = alone ? w->start_ns : s->run_ns;
    *lived_ns = now > start ? now - start : 0;
    return alone ? &w->starts : &s->crash_loop.job;
}

static bool is_crash_loop(struct rdzv_state *s, const struct failure *f, uint64_t now)
{
    uint64_t lived;
    const struct rdzv_starts *starts = starts_of(s, f, now, &lived);
    return rdzv_starts_would(starts, f, lived, s->rules.progress_ns) >= RDZV_ALIKE_MAX;
}

/* Whether the failure is no sign of a bad node: in this round, or lately, another one has failed
 * alike. What failed because another worker had, as the program's answer to that, does not count.
 */
static bool is_common(struct rdzv_state *s, const struct failure *first, uint64_t now)
{
    const struct rdzv_node *n = s->members[first->node];
    const struct failure_likeness how = failure_likeness(first);
    bool elsewhere = false;
    for (size_t i = 0; i < s->log.n && !elsewhere; i++) {
        const struct failure *f = &s->log.f[i];
        struct failure_likeness other = failure_likeness(f);
        elsewhere = f->node != first->node && (f->caused_by < 0 || f->caused_by == f->rank) &&
                    failure_likeness_equal(&how, &other);
    }
    return n && rdzv_crash_loop_is_common(&s->crash_loop, n, first, elsewhere, now);
}

/* A worker has failed: the job ends, or a restart is charged, and may be delayed. */
static void after_failure(struct rdzv_state *s, const struct failure *first, uint64_t now)
{
    char text[FAILURE_TEXT_MAX];
    const struct failure *final = final_failure(s);
    uint64_t lived;
    struct rdzv_starts *starts = starts_of(s, first, s->stop_ns, &lived);
    int alike = rdzv_starts_failure(starts, first, lived, s->rules.progress_ns);
    bool left = s->restarts < s->rules.max_restarts;
    if (left && final && exit_codes_has(&s->rules.no_restart, final->exit_code) &&
        final->kind == FAILURE_EXIT)
        text_set(s->result.final, sizeof(s->result.final),
                 "exit code %d is not started again (--no_restart_codes)", final->exit_code);
    else if (left && final && final->kind != FAILURE_EXEC)
        text_set(s->result.final, sizeof(s->result.final),
                 "a failure of the class %s ends the job (--on_cause)",
                 cause_name(cause_of_failure(final)));
    else if (left && alike >= RDZV_ALIKE_MAX)
        text_set(s->result.final, sizeof(s->result.final),
                 "%d starts in a row have ended so within %g s (--progress_time)", alike,
                 (double)s->rules.progress_ns / 1e9);
    if (!may_restart(s) || alike >= RDZV_ALIKE_MAX) {
        failure_describe(first, text, sizeof(text));
        finish(s, failure_exit_status(first), STOP_FAILURE, text, now);
        return;
    }
    enum cause_action action = cause_action_of(&s->rules.actions, cause_of_failure(first));
    if (first->node >= 0 && first->node < s->nmembers &&
        (!is_common(s, first, now) || action == ACTION_EVICT)) /* which its class is for */
        crash_loop(s, s->members[first->node], action, now);
    s->restarts++;
    uint64_t pause = rdzv_crash_loop_pause(alike), asked = s->rules.backoff_ns ? backoff(s) : 0;
    if (pause > asked)
        rdzv_output_log(&s->out, LOG_LEVEL_NOTICE,
                        "%d starts in a row have ended alike: the next one in %g s", alike,
                        (double)pause / 1e9);
    if (pause || asked)
        s->not_before = now + (pause > asked ? pause : asked);
}

/* A node was lost or has left: the job ends, or a restart is charged. */
static void after_node(struct rdzv_state *s, uint64_t now)
{
    int max = s->rules.max_node_restarts;
    s->node_restarts++;
    if (s->loss_reason == STOP_NODE_LOST &&
        cause_action_of(&s->rules.actions, CAUSE_NODE_LOST) == ACTION_END) {
        text_set(s->result.final, sizeof(s->result.final),
                 "a failure of the class %s ends the job (--on_cause)",
                 cause_name(CAUSE_NODE_LOST));
        finish(s, s->loss_code, s->loss_reason, s->loss_text, now);
        return;
    }
    if (max < 0 || s->node_restarts <= max)
        return;
    s->node_restarts = max;
    text_set(s->result.final, sizeof(s->result.final),
             "restarts after a lost node: %d of %d used (--max_node_restarts)", max, max);
    finish(s, s->loss_code, s->loss_reason, s->loss_text, now);
}

/* Decides what follows when all workers have stopped. */
static void stop_advance(struct rdzv_state *s, uint64_t now)
{
    if (s->nrunning > 0)
        return;
    const struct failure *first = failure_log_first(&s->log);
    bool failed = first && first->kind != FAILURE_NODE &&
                  (s->why.reason == STOP_FAILURE || s->why.reason == STOP_NODE_LOST);
    if (s->end) {
        finish(s, s->end_code, s->end_reason, s->end_text, now);
        return;
    }
    if (failed && failure_is_early_exit(first)) /* known only now */
        failure_event(s, first);
    if (failed)
        after_failure(s, first, now);
    else if (s->lost_a_node)
        after_node(s, now);
    if (s->phase.state != RDZV_STOP)
        return;
    event(s, now,
          (struct event){.name = EVENT_RESTART,
                         .attempt = s->restarts,
                         .node = -1,
                         .rank = -1,
                         .caused_by = -1,
                         .cause = cause_of_stop(s->why.reason, failed ? first : NULL),
                         .text = s->why.text});
    back_to_collect(s, now);
}

/* RESTART_WORKER: the other workers go on. */
static void order_respawn(struct rdzv_state *s, struct rdzv_node *n, const struct failure *f,
                          uint64_t seen_ns, uint64_t now)
{
    char text[FAILURE_TEXT_MAX];
    uint64_t lived;
    struct rdzv_starts starts = *starts_of(s, f, now, &lived);
    uint64_t pause =
        rdzv_crash_loop_pause(rdzv_starts_failure(&starts, f, lived, s->rules.progress_ns));
    struct rdzv_order order = {.respawn = {.id = ++n->last_order,
                                           .local_rank = f->local_rank,
                                           .restart_count = ++s->restarts}};
    order.due_ns = now + (pause > backoff(s) ? pause : backoff(s));
    if (!n->respawned)
        n->respawned = xcalloc((size_t)n->hello.nproc, sizeof(*n->respawned));
    n->respawned[f->local_rank] =
        (struct rdzv_worker){.start_ns = order.due_ns, .answered_ns = seen_ns, .starts = starts};
    n->orders = xrealloc(n->orders, (size_t)(n->norders + 1) * sizeof(*n->orders));
    n->orders[n->norders++] = order;
    if (order.due_ns > now && order.due_ns < s->respawn_at)
        s->respawn_at = order.due_ns;
    failure_log_forget(&s->log, f->rank);
    event(s, now,
          (struct event){.name = EVENT_RESTART,
                         .attempt = s->restarts,
                         .node = f->node,
                         .rank = f->rank,
                         .local_rank = f->local_rank,
                         .caused_by = -1,
                         .cause = cause_of_failure(f),
                         .text = failure_describe(f, text, sizeof(text))});
    rdzv_output_log(&s->out, LOG_LEVEL_NOTICE, "%s; it is started again (restart %d of %d)",
                    failure_describe(f, text, sizeof(text)), s->restarts, s->rules.max_restarts);
    queue(s, n, RDZV_DUE_VIEW);
}

/* seen_ns: when the node saw the failure, on its own clock. When the round ends, the node reports
 * once more a failure that a respawn answers, if the worker has not been started again. */
static void node_failed(struct rdzv_state *s, struct rdzv_node *n, const struct failure *reported,
                        uint64_t seen_ns, uint64_t now)
{
    if (s->phase.state != RDZV_RUN && s->phase.state != RDZV_STOP)
        return;
    struct failure f = *reported;
    int base = s->table.nodes[n->group_rank].base_rank;
    if (f.kind == FAILURE_NODE || f.local_rank < 0 || f.local_rank >= n->hello.nproc) {
        rdzv_output_log(&s->out, LOG_LEVEL_WARN,
                        "node %s reported a failure of a worker that it does not have",
                        n->hello.host);
        return;
    }
    f.rank = base + f.local_rank;
    f.node = n->group_rank;
    f.attempt = f.attempt < s->restarts ? f.attempt : s->restarts;
    strcpy(f.host, n->hello.host);
    bool own = f.kind != FAILURE_STOPPED && !failure_is_early_exit(&f);
    const struct rdzv_worker *w = n->respawned ? &n->respawned[f.local_rank] : NULL;
    if (own && w && w->answered_ns && seen_ns <= w->answered_ns)
        return;
    if (own && !failure_log_knows(&s->log, f.rank))
        failure_event(s, &f);
    /* A node with the other policy is already stopping its workers. */
    bool alone =
        s->rules.restart_policy == RESTART_WORKER && n->hello.restart_policy == RESTART_WORKER;
    if (own && alone && s->phase.state == RDZV_RUN && f.kind != FAILURE_EXEC &&
        !(f.kind == FAILURE_EXIT && exit_codes_has(&s->rules.no_restart, f.exit_code)) &&
        cause_action_of(&s->rules.actions, cause_of_failure(&f)) == ACTION_RESTART &&
        s->restarts < s->rules.max_restarts && !is_crash_loop(s, &f, now)) {
        order_respawn(s, n, &f, seen_ns, now);
        return;
    }
    failure_log_add(&s->log, &f);
    if (!own || s->phase.state != RDZV_RUN)
        return;
    char text[RDZV_TEXT_MAX];
    failure_describe(&f, text, sizeof(text));
    begin_stop(s, STOP_FAILURE, may_restart(s) && !is_crash_loop(s, &f, now), text, &f, now);
}

/* ----------------------------------------------------------------------------------- membership */

bool rdzv_state_restart(struct rdzv_state *s, const char *text, uint64_t now)
{
    if (s->phase.state != RDZV_RUN)
        return false;
    begin_stop(s, STOP_REQUEST, true, text, NULL, now);
    advance(s, now);
    return true;
}

static void newcomer(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    char text[RDZV_TEXT_MAX], name[RDZV_TEXT_MAX];
    if (!rdzv_rules_dynamic(&s->rules) || s->nmembers >= s->rules.max_nodes ||
        is_left_out(s, n, now))
        return;
    if (s->phase.state == RDZV_PREPARE) { /* no worker runs yet: prepare again, with this node */
        back_to_collect(s, now);
    } else if (s->phase.state == RDZV_RUN && s->ndone == 0 && s->rules.elastic) {
        text_set(text, sizeof(text), "node %s has joined", rdzv_node_name(n, name, sizeof(name)));
        rdzv_output_log(&s->out, LOG_LEVEL_VERBOSE, "%s: the workers are started again with it",
                        text);
        begin_stop(s, STOP_MEMBERSHIP, true, text, NULL, now);
    }
}

static void release(struct rdzv_state *s, struct rdzv_node *n)
{
    n->released = true;
    queue(s, n, RDZV_DUE_VIEW);
}

/* The reason that ends a running round reaches every node by on_stop; it is not logged again. */
static enum log_level loss_log_level(const struct rdzv_state *s)
{
    return s->phase.state == RDZV_RUN ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTICE;
}

static const char *kind(const struct rdzv_node *n)
{
    return rdzv_node_is_witness(n) ? "witness" : "node";
}

/* Every end has a reason. */
static const char *leave_text(const struct rdzv_status *st)
{
    return st->leave_text[0] ? st->leave_text : "a node left without a reason";
}

/* A node leaves while a round runs or stops. */
static void member_leaves_round(struct rdzv_state *s, struct rdzv_node *n,
                                const struct rdzv_status *st, bool ends, uint64_t now)
{
    bool needed = n->group_rank >= 0 && !n->done;
    ends |= needed && rdzv_nodes_live(&s->nodes) < s->rules.min_nodes && !waits_for_replacement(s);
    if (s->phase.state == RDZV_RUN && (ends || needed)) {
        bool on = !ends && may_go_on_without(s);
        begin_stop(s, ends ? st->leave_reason : STOP_MEMBERSHIP, on, leave_text(st), NULL, now);
        s->lost_a_node = needed;
    }
    if (ends)
        end_job(s, st->leave_reason, st->leave_code, leave_text(st));
}

static void node_leaves(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                        uint64_t now)
{
    /* The coordinator leaves with its own launcher. */
    bool witness = rdzv_node_is_witness(n);
    bool of_job = st->leave_reason == STOP_TIMEOUT || st->leave_reason == STOP_REQUEST ||
                  st->leave_reason == STOP_TIME_LIMIT;
    bool ends = n->peer.own || (!witness && of_job);
    if (!n->leaving) {
        char name[RDZV_TEXT_MAX];
        node_event(s, now, EVENT_NODE_LEAVE, n, leave_text(st));
        rdzv_nodes_set_leaving(&s->nodes, n);
        rdzv_nodes_update_ready(&s->nodes, n);
        if (!witness || ends)
            remember_loss(s, st->leave_reason, st->leave_code, leave_text(st));
        if (!n->peer.own)
            rdzv_output_log(&s->out, loss_log_level(s), "%s %s leaves: %s", kind(n),
                            rdzv_node_name(n, name, sizeof(name)), leave_text(st));
        if (s->phase.state == RDZV_RUN || s->phase.state == RDZV_STOP)
            member_leaves_round(s, n, st, ends, now);
        else if (ends && s->phase.state != RDZV_FINISH)
            finish(s, st->leave_code, st->leave_reason, leave_text(st), now);
        else if (s->phase.state == RDZV_PREPARE && n->group_rank >= 0)
            back_to_collect(s, now);
    }
    if (st->workers)
        return;
    if (s->phase.state == RDZV_STOP && n->group_rank >= 0)
        mark_stopped(s, n);
    if (!s->end && s->phase.state != RDZV_FINISH && !n->released)
        release(s, n);
}

static void node_lost(struct rdzv_state *s, struct rdzv_node *n, const char *how, uint64_t since,
                      uint64_t now)
{
    char name[RDZV_TEXT_MAX], text[RDZV_TEXT_MAX] = "";
    bool member = n->group_rank >= 0, needed = member && !n->done && !n->leaving;
    enum rdzv_phase phase = (enum rdzv_phase)s->phase.state;
    struct failure lost;
    if (how && !n->leaving && phase != RDZV_FINISH) {
        node_event(s, now, EVENT_NODE_LOST, n, how);
        rdzv_node_name(n, name, sizeof(name));
        text_set(text, sizeof(text), "%s %s was lost: %s", kind(n), name, how);
        rdzv_output_log(&s->out, needed ? loss_log_level(s) : LOG_LEVEL_NOTICE, "%s", text);
        if (needed && !(phase == RDZV_STOP && n->stopped))
            record_lost(s, n, how, since, &lost);
        if (needed)
            crash_loop(s, n, cause_action_of(&s->rules.actions, CAUSE_NODE_LOST), now);
        if (!rdzv_node_is_witness(n))
            remember_loss(s, STOP_NODE_LOST, 1, text);
    }
    if (phase == RDZV_STOP && member)
        mark_stopped(s, n);
    remove_node(s, n);
    if (phase == RDZV_PREPARE && member)
        back_to_collect(s, now);
    else if (phase == RDZV_RUN && needed)
        begin_stop(s, STOP_NODE_LOST, may_go_on_without(s), text, &lost, now);
    if (s->phase.state == RDZV_STOP && needed && phase != RDZV_COLLECT)
        s->lost_a_node = true;
}

/* -------------------------------------------------------------------------------------- advance */

static void advance(struct rdzv_state *s, uint64_t now)
{
    enum rdzv_phase before;
    do {
        before = (enum rdzv_phase)s->phase.state;
        switch ((enum rdzv_phase)s->phase.state) {
        case RDZV_COLLECT:
            collect_advance(s, now);
            break;
        case RDZV_PREPARE:
            if (s->nprepared < s->nmembers)
                break;
            if (rdzv_election_may_run(&s->election, now))
                run_round(s, now);
            else if (!rdzv_election_has_quorum(&s->election))
                back_to_collect(s, now);
            break;
        case RDZV_RUN:
            if (s->ndone == s->nmembers)
                finish(s, 0, STOP_FAILURE, "", now);
            break;
        case RDZV_STOP:
            stop_advance(s, now);
            break;
        default:
            finish_advance(s, now);
            break;
        }
    } while (s->phase.state != (int)before);
}

/* -------------------------------------------------------------------------------------- joining */

/* A new launcher has said hello. */
static void join(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h,
                 const struct rdzv_peer *peer, uint64_t now)
{
    char text[RDZV_TEXT_MAX], name[RDZV_TEXT_MAX];
    bool retry = true;
    bool over = s->phase.state == RDZV_FINISH; /* the next job may be about to start here */
    bool began = s->began || s->gen.counter > 0;
    if (over)
        text_set(text, sizeof(text),
                 "the job here is over: it ended %.1f s ago with exit status %d",
                 (double)(now - s->result_ns) / 1e9, s->result.exit_code);
    if (over ||
        rdzv_admission_objection(&s->rules, &s->nodes, h, began, now, text, sizeof(text), &retry)) {
        rdzv_attempts_add(&s->turned_away, &s->out, h->host, peer->addr, text, now);
        close_conn(s, conn, text, retry);
        return;
    }
    struct rdzv_node *holder = rdzv_nodes_holder(&s->nodes, h->node_rank);
    if (holder) { /* the node's connection is broken */
        hold_for(s, holder);
        node_lost(s, holder, "another launcher has taken its node_rank", holder->heard_ns, now);
    }
    struct rdzv_node *n = rdzv_nodes_add(&s->nodes, h, peer, conn);
    if (!n) {
        close_conn(s, conn, "out of memory", true);
        return;
    }
    rdzv_output_conn(&s->out, conn)->node = n;
    n->joined_ns = now;
    n->prev_rank = s->began ? h->prev_rank : -1; /* the node's rank under the former coordinator */
    heard(s, n, now);
    node_event(s, now, EVENT_NODE_JOIN, n, NULL);
    rdzv_node_name(n, name, sizeof(name));
    if (rdzv_node_is_witness(n)) {
        rdzv_output_log(&s->out, LOG_LEVEL_VERBOSE, "%s, pid %d, has joined, without workers", name,
                        h->pid);
        return;
    }
    rdzv_admission_warn(&s->rules, h, &s->out);
    rdzv_output_log(&s->out, LOG_LEVEL_VERBOSE, "node %s, pid %d, has joined: %d of %d", name,
                    h->pid, rdzv_nodes_count(&s->nodes), s->rules.max_nodes);
}

/* Sends a line to all launchers that wait. */
static void notice(struct rdzv_state *s, uint64_t now)
{
    uint64_t waited = now - s->collect_ns;
    bool called = s->last_call_at != NEVER && s->last_call_at > now;
    s->notice_at = now + (waited < 12 * NOTICE_NS ? NOTICE_NS : NOTICE_LATER_NS);
    rdzv_admission_notice(&s->rules, &s->nodes, waited, is_first_round(s),
                          called ? s->last_call_at - now : 0, s->notice, sizeof(s->notice));
    queue_all(s, RDZV_DUE_NOTICE);
}

/* A voter has connected: a notice reports that this node stands for election. */
static void greet_voter(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h)
{
    struct rdzv_node *n = rdzv_output_conn(&s->out, conn)->node;
    rdzv_election_seen(&s->election, h->seen_epoch);
    if (!n || n->peer.own)
        return;
    text_set(s->notice, sizeof(s->notice),
             "the coordinator is lost; another node stands in for it when more than half of the "
             "last round's %d are there",
             s->election.quorum[RDZV_LIST_RAN].list.n);
    queue(s, n, RDZV_DUE_NOTICE);
}

/* A status of a witness. While a round is prepared or runs, the witness may get a vote. */
static void witness_joined(struct rdzv_state *s, const struct rdzv_node *w, uint64_t now)
{
    bool runs = s->phase.state == RDZV_RUN;
    char name[RDZV_TEXT_MAX];
    if (!s->rules.elect || (!runs && s->phase.state != RDZV_PREPARE))
        return;
    if (rdzv_election_add_witness(&s->election, runs, now))
        queue_all(s, RDZV_DUE_PEERS);
    else if (rdzv_election_witness_has_vote(&s->election, w))
        rdzv_output_log(&s->out, LOG_LEVEL_VERBOSE, "witness %s has a vote",
                        rdzv_node_name(w, name, sizeof(name)));
}

/* --------------------------------------------------------------------------------------- events */

struct rdzv_state *rdzv_state_new(const struct rdzv_rules *rules, uint64_t epoch, uint64_t now)
{
    struct rdzv_state *s = xcalloc(1, sizeof(*s));
    s->rules = *rules;
    s->phase = (struct fsm){"job", phases, RDZV_COLLECT};
    s->gen.epoch = epoch;
    rdzv_nodes_init(&s->nodes);
    rdzv_election_init(&s->election, &s->rules, &s->nodes, epoch);
    s->last_call_at = s->respawn_at = s->close_at = s->check_at = NEVER;
    s->settle_at = s->not_before = NEVER;
    s->delay.due_at = now + rules->heartbeat_ns;
    enter_collect(s, now);
    return s;
}

struct rdzv_state *rdzv_state_stand(const struct rdzv_rules *rules, const struct rdzv_electorate *e,
                                    uint64_t now)
{
    struct rdzv_state *s = rdzv_state_new(rules, e->seen_epoch, now);
    s->began = true;
    s->restarts = e->restarts;
    s->node_restarts = e->node_restarts;
    s->loss_reason = STOP_COORDINATOR_LOST;
    s->loss_code = 1;
    text_set(s->loss_text, sizeof(s->loss_text), "%s", e->loss_text);
    rdzv_election_stand(&s->election, e, now);
    return s;
}

void rdzv_state_free(struct rdzv_state *s)
{
    if (!s)
        return;
    rdzv_nodes_fini(&s->nodes);
    rdzv_output_fini(&s->out);
    rdzv_election_fini(&s->election);
    failure_log_clear(&s->log);
    rank_table_fini(&s->table);
    free(s->members);
    free(s->respawns);
    free(s);
}

/* A voter has sent one of its lists. */
void rdzv_state_peers(struct rdzv_state *s, uint32_t conn, const struct rdzv_peers *list)
{
    if (!rdzv_output_conn(&s->out, conn)->node)
        return;
    if (rdzv_election_is_of_another(&s->election, list))
        close_conn(s, conn, REPLACED, true);
    else
        rdzv_election_add_list(&s->election, list);
}

void rdzv_state_hello(struct rdzv_state *s, uint32_t conn, const struct rdzv_hello *h,
                      const struct rdzv_peer *peer, uint64_t now)
{
    struct rdzv_conn *c = rdzv_output_conn(&s->out, conn);
    struct rdzv_node *n = rdzv_nodes_find(&s->nodes, &h->id);
    if (c->node || (c->due & RDZV_DUE_CLOSE))
        return; /* a second hello, which the driver refuses, or a connection that closes */
    if (rdzv_election_is_replaced(&s->election, h->seen_epoch, s->gen.counter)) {
        close_conn(s, conn, REPLACED, true);
        return;
    }
    if (!n) {
        join(s, conn, h, peer, now);
        if (s->election.standing)
            greet_voter(s, conn, h);
        else if (rdzv_output_conn(&s->out, conn)->node && s->election.peers.n)
            rdzv_output_queue(&s->out, conn,
                              RDZV_DUE_PEERS); /* the candidates, if this coordinator is lost */
        advance(s, now);
        return;
    }
    if (s->election.standing)
        rdzv_election_seen(&s->election, h->seen_epoch);
    /* The node has connected again. Messages of the old connection are older, and are dropped. */
    if (n->conn != RDZV_NO_CONN)
        close_conn(s, n->conn, NULL, false);
    rdzv_output_log(&s->out, LOG_LEVEL_VERBOSE, "node %s is connected again", n->hello.host);
    n->conn = conn;
    rdzv_output_conn(&s->out, conn)->node = n;
    heard(s, n, now);
    rdzv_nodes_update_ready(&s->nodes, n);
    unsigned due = RDZV_DUE_VIEW;
    if ((s->phase.state == RDZV_PREPARE || s->phase.state == RDZV_RUN) && s->election.peers.n)
        due |= RDZV_DUE_PEERS;
    if (s->phase.state == RDZV_FINISH)
        due |= RDZV_DUE_REPORT;
    if (s->phase.state == RDZV_RUN && n->group_rank >= 0 && n->phase == MEMBER_PREPARED)
        due |= RDZV_DUE_TABLE;
    queue(s, n, due);
    advance(s, now);
}

void rdzv_state_missed(struct rdzv_state *s, uint32_t conn, bool peers, bool table)
{
    struct rdzv_node *n = rdzv_output_conn(&s->out, conn)->node;
    bool runs = s->phase.state == RDZV_RUN;
    if (!n || n->group_rank < 0 || (!runs && s->phase.state != RDZV_PREPARE))
        return;
    queue(s, n,
          RDZV_DUE_VIEW | (peers && s->election.peers.n ? RDZV_DUE_PEERS : 0) |
              (table && runs ? RDZV_DUE_TABLE : 0));
}

/* Takes the failures that are new. */
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
        if (!current) /* a failure of a round that is over */
            continue;
        uint64_t seen = clock_offset_to_ours(&n->clock, f.seen_ns, st->send_ns, now);
        uint64_t raw = f.seen_ns;
        f.seen_ns = seen < s->run_ns ? s->run_ns : seen;
        node_failed(s, n, &f, raw, now);
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
        node_leaves(s, n, st, now); /* may free n */
        return;
    }
    if (current && (st->phase == MEMBER_RUNNING || st->phase == MEMBER_DONE))
        node_started(s, n, now);
    if (current && st->phase == MEMBER_PREPARED)
        node_prepared(s, n, st, now);
    else if (current && st->phase == MEMBER_DONE)
        node_done(s, n);
    else if (current && st->phase == MEMBER_IDLE && !st->workers)
        node_stopped(s, n, st, now);
    else if (n->group_rank < 0 && n->ready)
        newcomer(s, n, now);
    else if (rdzv_node_is_witness(n))
        witness_joined(s, n, now);
}

/* A status that only confirms an order needs no answer. An answer would also do harm: when a
 * launcher is killed before it has read everything, its host resets the connection instead of
 * closing it in order, and a reset is not a proof of its end (P in rdzv_election.c). */
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
    struct rdzv_node *n = rdzv_output_conn(&s->out, conn)->node;
    if (!n)
        return; /* the connection was replaced or refused */
    if (st->send_ns <= n->status_ns)
        return;
    heard(s, n, now);
    n->status_ns = st->send_ns;
    n->echo_ns = st->view_sent_ns <= now ? st->view_sent_ns : 0;
    clock_offset_sample(&n->clock, st->view_sent_ns, st->view_seen_ns, st->send_ns, now);
    if (needs_answer(s, n, st))
        queue(s, n, RDZV_DUE_VIEW);
    drop_orders(n, st->respawned);
    n->phase = st->phase;
    n->took_part = st->gen.counter > 0;
    rdzv_nodes_set_workers(&s->nodes, n, st->workers);
    rdzv_nodes_update_ready(&s->nodes, n);
    take_failures(s, n, st, now);
    take_phase(s, n, st, now);
    advance(s, now);
}

void rdzv_state_beat(struct rdzv_state *s, const struct node_id *id, const struct rdzv_beat *b,
                     uint64_t now)
{
    struct rdzv_node *n = rdzv_nodes_find(&s->nodes, id);
    char name[RDZV_TEXT_MAX];
    if (!n)
        return;
    uint64_t heard = b->heard_ns < now ? b->heard_ns
                                       : now; /* the heartbeat thread's clock may be ahead of now */
    if (heard > n->heard_ns) {
        n->heard_ns = heard;
        n->late_ns = s->delay.late_ns;
    }
    if (b->touch_ns <= now && b->touch_ns > n->touch_ns)
        n->touch_ns = b->touch_ns;
    if (b->lag_ms >= RDZV_LAG_MS && !n->lagging)
        rdzv_output_log(&s->out, LOG_LEVEL_WARN,
                        "node %s is slow: its launcher is %.1f s behind, but its heartbeats arrive",
                        rdzv_node_name(n, name, sizeof(name)), b->lag_ms / 1e3);
    if (b->lag_ms >= RDZV_LAG_MS || b->lag_ms < RDZV_LAG_MS / 3)
        n->lagging = b->lag_ms >= RDZV_LAG_MS;
}

uint64_t rdzv_state_lease_until(struct rdzv_state *s, uint64_t now)
{
    return s->election.standing ? 0 : rdzv_election_lease_until(&s->election, now);
}

/* A member elects another coordinator at the earliest when the dead time since the last message of
 * this one is over. (Four fifths, since clocks run at different rates.) */
static bool has_elected_nobody(const struct rdzv_state *s, const struct rdzv_node *n, uint64_t now)
{
    return now < rdzv_node_touch(n) + s->rules.dead_ns / 5 * 4;
}

void rdzv_state_closed(struct rdzv_state *s, uint32_t conn, enum rdzv_end how, uint64_t now)
{
    struct rdzv_conn *c = rdzv_output_conn(&s->out, conn);
    struct rdzv_node *n = c->node;
    bool told = n && s->phase.state == RDZV_FINISH && !(c->due & RDZV_DUE_REPORT);
    c->node = NULL;
    c->due = 0;
    free(c->refusal);
    c->refusal = NULL;
    if (!n)
        return;
    n->conn = RDZV_NO_CONN;
    rdzv_nodes_update_ready(&s->nodes, n);
    /* A launcher that was released ends, and does not vote. But one that had lost this coordinator
     * before it left has not received the release, and may vote for another one before it ends. */
    if (how == RDZV_END_CLOSED || (n->released && has_elected_nobody(s, n, now)))
        rdzv_election_dead(&s->election, &n->hello.id);
    if (told || (n->leaving && (n->released || how == RDZV_END_CLOSED)))
        node_lost(s, n, NULL, now, now);
    else if (how == RDZV_END_CLOSED)
        node_lost(s, n, "its launcher has ended (connection closed)", now, now);
    else
        rdzv_output_log(&s->out, LOG_LEVEL_VERBOSE,
                        "the connection of node %s ended without a goodbye", n->hello.host);
    advance(s, now);
}

bool rdzv_state_to_ours(struct rdzv_state *s, uint32_t conn, uint64_t theirs, uint64_t sent,
                        uint64_t now, uint64_t *ours)
{
    const struct rdzv_node *n = rdzv_output_conn(&s->out, conn)->node;
    if (!n)
        return false;
    *ours = clock_offset_to_ours(&n->clock, theirs, sent, now);
    return true;
}

uint32_t rdzv_state_conn_of(const struct rdzv_state *s, int rank)
{
    int i = s->phase.state == RDZV_RUN ? rank_table_find(&s->table, rank) : -1;
    return i >= 0 && s->members[i] ? s->members[i]->conn : RDZV_NO_CONN;
}

void rdzv_state_turned_away(struct rdzv_state *s, const char *addr, const char *text, uint64_t now)
{
    rdzv_attempts_add(&s->turned_away, &s->out, "", addr, text, now);
}

/* ----------------------------------------------------------------------------------------- time */

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Time to read what has arrived during a long delay, at most once in a dead time. */
static void give_grace(struct rdzv_state *s, uint64_t now)
{
    uint64_t ran = now - s->delay.late_ns;
    if (s->delay.graced_ns == 0 || ran >= s->delay.graced_ns + s->rules.dead_ns)
        delay_grace(&s->delay, s->rules.heartbeat_ns, ran, now);
}

/* The time at which the node counts as lost, unless a message of the node arrives before. */
static uint64_t lost_at(const struct rdzv_state *s, const struct rdzv_node *n)
{
    return delay_silent_at(&s->delay, n->heard_ns, n->late_ns, s->rules.dead_ns);
}

static void drop_silent(struct rdzv_state *s, uint64_t now)
{
    s->check_at = NEVER;
    for (int i = 0; i < s->nodes.n; i++) {
        struct rdzv_node *n = s->nodes.e[i];
        if (n->peer.own) { /* this process itself */
            heard(s, n, now);
        }
        if (now < lost_at(s, n)) {
            s->check_at = sooner(s->check_at, lost_at(s, n));
            continue;
        }
        char how[RDZV_TEXT_MAX];
        text_set(how, sizeof(how), "nothing heard of it for %.1f s",
                 (double)(now - n->heard_ns) / 1e9);
        if (n->conn != RDZV_NO_CONN)
            close_conn(s, n->conn, NULL, false);
        node_lost(s, n, how, n->heard_ns, now);
        i--; /* the last node has moved into this slot */
    }
}

/* Sends the respawn orders whose backoff is over. */
static void send_orders(struct rdzv_state *s, uint64_t now)
{
    s->respawn_at = NEVER;
    for (int i = 0; i < s->nodes.n; i++) {
        struct rdzv_node *n = s->nodes.e[i];
        for (int k = 0; k < n->norders; k++) {
            if (n->orders[k].due_ns <= now)
                queue(s, n, RDZV_DUE_VIEW);
            else if (n->orders[k].due_ns < s->respawn_at)
                s->respawn_at = n->orders[k].due_ns;
        }
    }
}

/* Whether nodes are what the job waits for: not votes, and not the end of a backoff. */
static bool waits_for_nodes(const struct rdzv_state *s)
{
    return s->phase.state == RDZV_COLLECT && !s->election.standing && s->not_before == NEVER;
}

void rdzv_state_tick(struct rdzv_state *s, uint64_t now)
{
    if (delay_tick(&s->delay, s->rules.heartbeat_ns, now))
        give_grace(s, now);
    if (now >= s->check_at)
        drop_silent(s, now);
    if (now >= s->respawn_at)
        send_orders(s, now);
    if (waits_for_nodes(s) && now >= s->notice_at)
        notice(s, now);
    advance(s, now);
}

uint64_t rdzv_state_deadline(const struct rdzv_state *s)
{
    uint64_t at = sooner(sooner(s->check_at, s->respawn_at), s->delay.due_at);
    if (s->phase.state == RDZV_FINISH)
        return s->finished ? NEVER : sooner(at, s->close_at);
    if (s->phase.state != RDZV_COLLECT)
        return at;
    if (waits_for_nodes(s))
        at = sooner(at, s->notice_at);
    if (s->election.look_at != NEVER) /* the election comes first */
        return sooner(at, delay_graced(&s->delay, s->election.look_at));
    if (s->settle_at != NEVER)
        at = sooner(at, s->settle_at);
    if (s->hold_at)
        return sooner(at, s->hold_at);
    if (s->not_before != NEVER) /* the backoff comes before all else */
        return sooner(at, s->not_before);
    if (s->nodes.nbusy) /* the members' next status, or check_at */
        return at;
    return sooner(at, s->nodes.nready >= s->rules.min_nodes ? s->last_call_at : s->join_at);
}

/* --------------------------------------------------------------------------------------- checks */

/* Counts what the members of the round that are not lost have done. */
struct census {
    int present, prepared, started, done, running;
};

static void check_members(const struct rdzv_state *s, struct census *c)
{
    int members = 0;
    *c = (struct census){0};
    for (int i = 0; i < s->nmembers; i++) {
        const struct rdzv_node *n = s->members[i];
        if (!n)
            continue;
        assert(n->group_rank == i && !rdzv_node_is_witness(n));
        assert(!n->done || n->started);
        c->present++;
        c->prepared += n->prepared;
        c->started += n->started;
        c->done += n->done;
        c->running += !n->stopped;
    }
    for (int i = 0; i < s->nodes.n; i++) {
        const struct rdzv_node *n = s->nodes.e[i];
        members += n->group_rank >= 0;
        assert(n->conn == RDZV_NO_CONN ||
               (n->conn < s->out.nconns && s->out.conns[n->conn].node == n));
        assert(n->heard_ns && n->late_ns <= s->delay.late_ns);
        assert(!n->released || n->leaving);
        for (int k = 0; k < n->norders; k++)
            assert(n->orders[k].respawn.id <= n->last_order &&
                   (k == 0 || n->orders[k - 1].respawn.id < n->orders[k].respawn.id));
    }
    assert(members == c->present);
}

/* Asserts that the parts of a round exist in the phases to which they belong. */
static void check_phase(const struct rdzv_state *s, const struct census *c)
{
    int lost = s->nmembers - c->present;
    bool in_round = s->nmembers > 0;
    assert(!in_round || (s->nmembers >= s->rules.min_nodes && s->nmembers <= s->rules.max_nodes));
    assert(!s->election.standing || !in_round);
    switch ((enum rdzv_phase)s->phase.state) {
    case RDZV_COLLECT:
        assert(!in_round && !s->end);
        break;
    case RDZV_PREPARE:
        assert(in_round && lost == 0 && s->nprepared == c->prepared && !s->end);
        assert(s->last_call_at == NEVER && s->not_before == NEVER);
        break;
    case RDZV_RUN: /* who is lost without a stop was done */
        assert(in_round && s->ndone == c->done + lost && s->nstarted == c->started + lost);
        assert(s->ndone < s->nmembers && !s->end);
        assert(generation_equal(s->table.gen, s->gen) && s->table.nnodes == s->nmembers);
        assert(s->began && s->last_call_at == NEVER && s->not_before == NEVER);
        break;
    case RDZV_STOP:
        assert(in_round && s->nrunning == c->running && s->nrunning > 0);
        assert(generation_equal(s->table.gen, s->gen) && s->why_counter == s->gen.counter);
        assert(s->why.text[0] && s->stop_ns >= s->run_ns);
        break;
    default:
        assert(s->close_at != NEVER && s->result_ns);
        assert(s->result.exit_code == 0 || s->result.text[0]);
        assert(!s->reported_finished || s->finished);
        break;
    }
}

/* Asserts that there is a time at which the coordinator goes on by itself, so that no node waits
 * for ever. */
static void check_times(const struct rdzv_state *s)
{
    bool over = s->phase.state == RDZV_FINISH;
    assert(over || (!s->finished && !s->reported_finished));
    assert(rdzv_state_deadline(s) != NEVER || s->finished);
    bool others = false;
    for (int i = 0; i < s->nodes.n && !others; i++)
        others = !s->nodes.e[i]->peer.own;
    assert(!others || s->check_at != NEVER);
    assert(s->restarts >= 0 && s->node_restarts >= 0);
    assert(over || s->election.standing || s->rules.max_node_restarts < 0 ||
           s->node_restarts <= s->rules.max_node_restarts);
    for (size_t i = 0; i + 1 < s->log.n; i++)
        assert(s->log.f[i].rank < 0 || s->log.f[i].rank != s->log.f[i + 1].rank);
}

void rdzv_state_check(const struct rdzv_state *s)
{
    struct census c;
    rdzv_nodes_check(&s->nodes);
    rdzv_output_check(&s->out);
    check_members(s, &c);
    check_phase(s, &c);
    check_times(s);
}

/* -------------------------------------------------------------------------------------- actions */

static void fill_respawns(struct rdzv_state *s, const struct rdzv_node *n, struct rdzv_view *v,
                          uint64_t now)
{
    if (n->norders == 0 || s->phase.state != RDZV_RUN)
        return;
    s->respawns = xrealloc(s->respawns, (size_t)n->norders * sizeof(*s->respawns));
    for (int i = 0; i < n->norders && n->orders[i].due_ns <= now; i++)
        s->respawns[v->nrespawns++] = n->orders[i].respawn;
    v->respawns = s->respawns;
}

static void fill_view(struct rdzv_state *s, struct rdzv_node *n, struct rdzv_view *v, uint64_t now)
{
    bool member = n->group_rank >= 0;
    n->view_ns =
        now > n->view_ns ? now : n->view_ns + 1; /* unique and rising: members drop older views */
    *v = (struct rdzv_view){
        .phase = member || s->phase.state == RDZV_FINISH ? (enum rdzv_phase)s->phase.state
                                                         : RDZV_COLLECT,
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
        .lease = now < rdzv_election_lease_until(&s->election, now),
        .spare = !member && !rdzv_node_is_witness(n) && s->phase.state != RDZV_COLLECT &&
                 s->phase.state != RDZV_FINISH,
    };
    /* Sent also after the stop, for a node that had stopped before the reason arrived. */
    if (s->why_counter && s->why_counter + 1 >= s->gen.counter && v->phase < RDZV_FINISH &&
        v->phase != RDZV_RUN) {
        v->why = &s->why;
        v->why_counter = s->why_counter;
    }
    if (n->released) {
        v->phase = RDZV_RELEASE;
    } else if (!member && n->phase != MEMBER_IDLE) { /* the round went on without this node */
        s->given_up.reason = STOP_NODE_LOST;
        s->given_up.restarting = true;
        text_set(s->given_up.text, sizeof(s->given_up.text),
                 "the other nodes had given up this node (%s) as lost", n->hello.host);
        v->why = &s->given_up;
    }
    fill_respawns(s, n, v, now);
}

static void fill_action(struct rdzv_state *s, uint32_t conn, unsigned due, const char *refusal,
                        struct rdzv_action *a, uint64_t now)
{
    struct rdzv_conn *c = rdzv_output_conn(&s->out, conn);
    *a = (struct rdzv_action){.conn = conn};
    switch (due) {
    case RDZV_DUE_PEERS:
        a->act = RDZV_ACT_PEERS;
        a->peers = &s->election.peers;
        a->ran = rdzv_election_ran(&s->election);
        break;
    case RDZV_DUE_TABLE:
        a->act = RDZV_ACT_TABLE;
        a->table = &s->table;
        break;
    case RDZV_DUE_REPORT:
        a->act = RDZV_ACT_REPORT;
        a->result = &s->result;
        break;
    case RDZV_DUE_VIEW:
        a->act = RDZV_ACT_VIEW;
        fill_view(s, c->node, &a->view, now);
        break;
    case RDZV_DUE_NOTICE:
        a->act = RDZV_ACT_NOTICE;
        a->text = s->notice;
        break;
    default:
        a->act = RDZV_ACT_CLOSE;
        a->text = refusal;
        a->retry = c->retry;
        break;
    }
}

bool rdzv_state_next(struct rdzv_state *s, struct rdzv_action *a, uint64_t now)
{
    enum log_level level;
    const char *text = NULL;
    uint32_t conn;
    unsigned due;
    debug_check(rdzv_state_check(s));
    if (rdzv_output_next_line(&s->out, &level, &text)) {
        *a = (struct rdzv_action){.act = RDZV_ACT_LOG, .level = level, .text = text};
    } else if ((a->event = rdzv_output_next_event(&s->out))) {
        *a = (struct rdzv_action){.act = RDZV_ACT_EVENT, .event = a->event};
    } else if (s->new_round) {
        s->new_round = false;
        *a = (struct rdzv_action){.act = RDZV_ACT_NEW_ROUND};
    } else if ((due = rdzv_output_next(&s->out, &conn, &text))) {
        fill_action(s, conn, due, text, a, now);
    } else if (s->finished && !s->reported_finished) {
        s->reported_finished = true;
        *a = (struct rdzv_action){.act = RDZV_ACT_FINISHED};
    } else {
        return false;
    }
    return true;
}

uint64_t rdzv_state_dead_epoch(const struct rdzv_state *s)
{
    return s->election.dead_epoch;
}

struct generation rdzv_state_newest_list(const struct rdzv_state *s)
{
    struct generation newest = s->election.peers.n ? s->election.peers.gen : (struct generation){0};
    for (int k = 0; k < RDZV_LISTS; k++) {
        const struct rdzv_peers *list = &s->election.quorum[k].list;
        if (list->n && generation_before(newest, list->gen))
            newest = list->gen;
    }
    return newest;
}

void rdzv_state_get_info(const struct rdzv_state *s, struct rdzv_state_info *out)
{
    *out = (struct rdzv_state_info){.phase = (enum rdzv_phase)s->phase.state,
                                    .gen = s->gen,
                                    .nodes = rdzv_nodes_count(&s->nodes),
                                    .nnodes = s->nmembers,
                                    .restarts = s->restarts,
                                    .node_restarts = s->node_restarts,
                                    .standing = s->election.standing,
                                    .finished = s->phase.state == RDZV_FINISH,
                                    .result = s->phase.state == RDZV_FINISH ? &s->result : NULL};
}

void rdzv_state_get_members(const struct rdzv_state *s, struct rdzv_peers *out)
{
    const struct rdzv_place place = place_of(s);
    *out = (struct rdzv_peers){0};
    rdzv_round_peers(out, s->members, s->nmembers, &place);
    out->gen = s->gen;
}
