#include "rendezvous/rules/member_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/debug_assert.h"
#include "core/fsm.h"
#include "core/mem.h"
#include "rendezvous/rules/delay.h"
#include "rendezvous/rules/failure_queue.h"
#include "rendezvous/rules/text.h"

#define NEVER        UINT64_MAX
#define LOG_EVERY_NS 5000000000u
#define LOG_FIRST_NS 2000000000u /* until the first line about waiting */
/* A node that leaves repeats its status every LEAVE_AGAIN_NS, and ends when the coordinator has not
 * answered for LEAVE_NS. */
#define LEAVE_NS       5000000000u
#define LEAVE_AGAIN_NS 500000000u

/* The round on this node; member_state.h has the drawing. */
enum round_state { IDLE, PREPARING, PREPARED, RUNNING, STOPPING, DONE };
static const struct fsm_state round_states[] = {
    [IDLE] = {"idle", FSM_BIT(PREPARING)},
    [PREPARING] = {"preparing", FSM_BIT(IDLE) | FSM_BIT(PREPARING) | FSM_BIT(PREPARED)},
    [PREPARED] = {"prepared", FSM_BIT(IDLE) | FSM_BIT(PREPARING) | FSM_BIT(RUNNING)},
    /* idle: the agent has not been called for the start yet */
    [RUNNING] = {"running", FSM_BIT(STOPPING) | FSM_BIT(DONE) | FSM_BIT(IDLE)},
    [STOPPING] = {"stopping", FSM_BIT(IDLE)},
    [DONE] = {"done", FSM_BIT(STOPPING) | FSM_BIT(IDLE)},
};

/* Bits of member_state.due: calls of the agent and messages that are due. */
#define DUE_DISCONNECT    1u
#define DUE_HELLO         2u
#define DUE_STATUS        4u
#define DUE_PREPARE       8u
#define DUE_RUN           16u
#define DUE_STOP          32u
#define DUE_FINISH        64u
#define DUE_LOG           128u
#define DUE_FENCE         256u
#define DUE_LEASE         512u
#define DUE_LIST_RAN      1024u
#define DUE_LIST_PREPARED 2048u

struct member_state {
    struct member_rules rules;
    unsigned due;

    /* The round. */
    struct fsm round;       /* enum round_state */
    bool has_run;           /* the agent was called to run this round */
    bool stop_called;       /* the agent was called to stop this round */
    struct generation gen;  /* the newest round in which this node took part */
    struct generation high; /* the highest that this coordinator has sent */
    uint64_t seen_epoch;    /* the highest of all coordinators that this node has followed */
    int group_rank, nnodes, restart_count;
    bool spare;
    uint8_t *ports; /* encoded as in a status */
    int nports, free_port;
    struct rank_table table;
    struct rdzv_stop why;
    uint32_t respawned;
    struct rdzv_respawn *respawns; /* not yet given to the agent */
    int nrespawns;

    /* The connection. */
    bool connected, answered; /* answered: a view has come on this connection */
    bool joined;              /* the coordinator of high.epoch has let this node in */
    /* The coordinator has closed the newest connection on which a view has arrived in order. */
    bool closed_in_order;
    uint64_t view_sent_ns, view_seen_ns;
    uint64_t heard_ns; /* when the newest view or heartbeat of the coordinator arrived */
    bool lagging;      /* the coordinator's loop is behind; the warning was logged */
    uint64_t connected_ns, began_ns, log_at;
    uint64_t sent_ns; /* when the newest status was sent that gets an answer */
    uint64_t heartbeat_ns, dead_ns;
    uint64_t lease_ns;           /* workers may live until then; 0: none was given */
    uint64_t unleased_ns;        /* since when a prepared round has waited for a lease; 0: not */
    bool fenced;                 /* the lease ran out */
    bool left_round;             /* because the coordinator was lost or gives no lease */
    struct delay delay;          /* of this process */
    uint64_t late_ns;            /* the sum of its delays at heard_ns */
    char trouble[RDZV_TEXT_MAX]; /* why it is not connected */
    bool turned_away;            /* by a coordinator, with that text */
    char line[2 * RDZV_TEXT_MAX];
    enum log_level line_level;

    /* The coordinator is lost. */
    bool electing;
    bool coordinator_dead; /* proven (invariant P in rdzv_election.c), not concluded from its
                              silence */
    uint64_t elect_ns;
    bool elect;                      /* the job allows an election */
    struct rdzv_peers list_ran;      /* the members of the newest round that ran */
    struct rdzv_peers list_prepared; /* the newest list from the coordinator */
    int last_rank, node_restarts;
    char loss_text[RDZV_TEXT_MAX];

    struct failure_queue failures;
    uint32_t failures_total; /* of the round, in the queue or not */

    /* The end. */
    bool leaving;
    uint64_t leave_ns; /* when the first LEAVING status without workers was sent */
    enum stop_reason leave_reason;
    int leave_code;
    char leave_text[RDZV_TEXT_MAX];
    bool ended, finished; /* the result is known; the agent has been given it */
    bool have_report;
    bool alone; /* the coordinator has not made the result */
    struct rdzv_result result;
    struct rdzv_status status;
};

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void move_round(struct member_state *m, enum round_state to)
{
    if (m->round.state != (int)to || to == PREPARING)
        fsm_move(&m->round, to);
}

static void log_line(struct member_state *m, enum log_level level, const char *text);
/* Whether workers of the round may be alive, by the agent's last report. */
static inline bool member_state_has_workers(const struct member_state *m)
{
    return m->round.state == RUNNING || m->round.state == STOPPING;
}
/* The job has ended on all nodes: no other round can start, and the workers need no lease. */
static inline void member_state_drop_lease(struct member_state *m)
{
    if (m->lease_ns)
        m->due |= DUE_LEASE;
    m->lease_ns = 0;
}
static void member_state_stop_round(struct member_state *m, const struct rdzv_stop *why);
static void member_state_end_alone(struct member_state *m, enum stop_reason reason, int code,
                                   const char *text);

static void member_contact_heard(struct member_state *m, uint64_t now);
static void member_contact_lost(struct member_state *m, const char *how, bool dead, uint64_t now);

/* ---------------------------------------------------------------------- the round, on this node */

struct member_state *member_state_new(const struct member_rules *rules, uint64_t now)
{
    struct member_state *m = xcalloc(1, sizeof(*m));
    m->rules = *rules;
    m->round = (struct fsm){"round", round_states, IDLE};
    m->rules.hello.prev_rank = -1;
    m->group_rank = m->last_rank = -1;
    m->began_ns = now;
    m->log_at = now + LOG_FIRST_NS;
    m->heartbeat_ns = rules->heartbeat_ns;
    m->dead_ns = rules->dead_ns;
    m->delay.due_at = now + m->heartbeat_ns;
    rank_table_init(&m->table);
    return m;
}

void member_state_free(struct member_state *m)
{
    if (!m)
        return;
    failure_queue_fini(&m->failures);
    free(m->ports);
    free(m->respawns);
    free((void *)m->result.failures);
    rank_table_fini(&m->table);
    rdzv_peers_fini(&m->list_ran);
    rdzv_peers_fini(&m->list_prepared);
    free(m);
}

void member_state_set_local_addr(struct member_state *m, const char *ip)
{
    text_set(m->rules.hello.local_addr, sizeof(m->rules.hello.local_addr), "%s", ip);
}

static void log_line(struct member_state *m, enum log_level level, const char *text)
{
    m->line_level = level;
    text_set(m->line, sizeof(m->line), "%s", text);
    m->due |= DUE_LOG;
}

static void trouble(struct member_state *m, const char *why)
{
    m->turned_away = false;
    text_set(m->trouble, sizeof(m->trouble), "%s", why);
}

/* -------------------------------------------------------------------------------------- the end */

static void maybe_finish(struct member_state *m)
{
    if (m->ended && !member_state_has_workers(m) && !m->finished)
        m->due |= DUE_FINISH;
}

/* The agent was not called for the start of this round, or has stopped its workers. */
static void go_idle(struct member_state *m)
{
    move_round(m, IDLE);
    m->due &= ~(DUE_PREPARE | DUE_RUN);
    m->due |= DUE_STATUS;
    m->nrespawns = 0;
    maybe_finish(m);
}

static void report_stop(struct member_state *m, const struct rdzv_stop *why)
{
    if (m->stop_called || m->leaving || !m->has_run) /* a leaving agent stops by itself */
        return;
    m->stop_called = true;
    if (why)
        m->why = *why;
    else
        m->why = (struct rdzv_stop){.reason = STOP_MEMBERSHIP, .restarting = true};
    if (!m->why.text[0])
        text_set(m->why.text, sizeof(m->why.text), "the coordinator has ended this round");
    m->due |= DUE_STOP;
}

/* Ends the round on this node. */
static void member_state_stop_round(struct member_state *m, const struct rdzv_stop *why)
{
    switch ((enum round_state)m->round.state) {
    case IDLE:
        return;
    case PREPARING:
    case PREPARED:
        go_idle(m);
        return;
    case RUNNING:
    case DONE:
        if (m->due & DUE_RUN) {
            m->has_run = false;
            go_idle(m);
            return;
        }
        move_round(m, STOPPING);
        m->nrespawns = 0;
        m->due |= DUE_STATUS;
        break;
    case STOPPING:
        break;
    }
    report_stop(m, why);
}

/* The result is known. Workers that are alive are stopped before the agent gets it. */
static void end(struct member_state *m)
{
    if (m->ended)
        return;
    m->ended = true;
    m->due &= ~(DUE_HELLO | DUE_LIST_RAN | DUE_LIST_PREPARED | DUE_STATUS);
    if (m->connected)
        m->due |= DUE_DISCONNECT;
    struct rdzv_stop why = {.reason = m->result.reason};
    text_set(why.text, sizeof(why.text), "%s", m->result.text);
    if (m->round.state == DONE) /* nothing to stop */
        move_round(m, IDLE);
    member_state_stop_round(m, &why);
    m->due &= ~DUE_STATUS;
    maybe_finish(m);
}

/* Ends this node with a result that the coordinator did not make. The other nodes may go on: the
 * workers here end with the lease at the latest. */
static void member_state_end_alone(struct member_state *m, enum stop_reason reason, int code,
                                   const char *text)
{
    if (m->ended)
        return;
    free((void *)m->result.failures);
    m->result =
        (struct rdzv_result){.exit_code = code, .reason = reason, .restarts = m->restart_count};
    m->alone = true;
    text_set(m->result.text, sizeof(m->result.text), "%s", text);
    if (code != 0)
        failure_queue_result(&m->failures, &m->result);
    end(m);
}

/* A node that leaves ends when its workers have ended, unless it is connected to a coordinator that
 * has let it in, or to a candidate. */
static void maybe_leave(struct member_state *m)
{
    bool waits = m->connected && (m->joined || m->electing);
    if (m->leaving && !member_state_has_workers(m) && !waits)
        member_state_end_alone(m, m->leave_reason, m->leave_code, m->leave_text);
}

void member_state_fail(struct member_state *m, const char *text)
{
    member_state_end_alone(m, STOP_RENDEZVOUS, 2, text);
}

/* ---------------------------------------------------------------------------------------- views */

static void take_respawns(struct member_state *m, const struct rdzv_view *v)
{
    for (int i = 0; i < v->nrespawns; i++) {
        if (v->respawns[i].id <= m->respawned || v->respawns[i].local_rank >= m->rules.hello.nproc)
            continue;
        m->respawns = xrealloc(m->respawns, (size_t)(m->nrespawns + 1) * sizeof(*m->respawns));
        m->respawns[m->nrespawns++] = v->respawns[i];
        m->respawned = v->respawns[i].id;
        m->due |= DUE_STATUS;
    }
}

static void prepare_round(struct member_state *m, const struct rdzv_view *v)
{
    if (member_state_has_workers(m) ||
        m->round.state == DONE) { /* a coordinator prepares after all have stopped */
        member_state_stop_round(m, v->why);
        return;
    }
    if (generation_equal(m->gen, v->gen)) /* under way */
        return;
    m->gen = v->gen;
    move_round(m, PREPARING);
    m->has_run = m->stop_called = m->fenced = m->left_round = false;
    m->unleased_ns = 0;
    m->respawned = 0;
    m->failures_total = 0;
    m->due |= DUE_PREPARE | DUE_STATUS;
}

/* The coordinator gives no lease, because too few of the other members are in reach. The next
 * status reports that this node has left the round, and the coordinator ends it. */
static void leave_round(struct member_state *m)
{
    m->left_round = true;
    member_state_stop_round(m, NULL);
}

static void run_round(struct member_state *m, const struct rdzv_view *v, uint64_t now)
{
    if (m->round.state == RUNNING)
        take_respawns(m, v);
    if (m->round.state != PREPARED || !generation_equal(m->table.gen, m->gen))
        return;
    /* A view without a lease, or the answer to an old status, may be of the past: this process may
     * have been suspended while the round went on without it. The answer to a new status is of the
     * present. */
    bool no_lease = m->rules.lease && m->lease_ns <= now;
    if (no_lease) { /* the next answer may bring one */
        if (m->unleased_ns == 0)
            m->unleased_ns = now;
        else if (now - m->unleased_ns > m->dead_ns)
            leave_round(m);
        return;
    }
    if (v->echo_ns < now && now - v->echo_ns > m->dead_ns / 4 * 3) {
        m->due |= DUE_STATUS;
        return;
    }
    if (m->table.nnodes != v->nnodes ||
        m->table.nodes[v->group_rank].nproc != m->rules.hello.nproc) {
        member_state_end_alone(m, STOP_INTERNAL, 1,
                               "the coordinator's rank table does not fit this node");
        return;
    }
    move_round(m, RUNNING);
    m->has_run = true;
    m->last_rank = v->group_rank;
    if (generation_equal(m->list_prepared.gen, v->gen)) {
        rdzv_peers_copy(&m->list_ran, &m->list_prepared);
        m->list_ran.ran = true;
    }
    m->due |= DUE_RUN | DUE_STATUS;
}

static void renew_lease(struct member_state *m, uint64_t from_ns)
{
    uint64_t until = from_ns + rdzv_lease_ns(m->dead_ns);
    if (!m->rules.lease || from_ns == 0 || until <= m->lease_ns)
        return;
    m->lease_ns = until;
    m->due |= DUE_LEASE;
}

void member_state_beat(struct member_state *m, uint64_t heard_ns, uint64_t lease_from_ns,
                       uint32_t lag_ms, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    if (m->ended || !m->connected || !m->answered || m->electing)
        return;
    if (heard_ns > m->heard_ns)
        member_contact_heard(m, heard_ns < now ? heard_ns : now);
    if (m->lease_ns)
        renew_lease(m, lease_from_ns);
    if (lag_ms >= RDZV_LAG_MS && !m->lagging) {
        text_set(text, sizeof(text),
                 "the coordinator at %s is slow: its launcher is %.1f s behind, but its heartbeats "
                 "arrive",
                 m->rules.coordinator, lag_ms / 1e3);
        log_line(m, LOG_LEVEL_WARN, text);
    }
    if (lag_ms >= RDZV_LAG_MS || lag_ms < RDZV_LAG_MS / 3)
        m->lagging = lag_ms >= RDZV_LAG_MS;
}

static void note_view(struct member_state *m, const struct rdzv_view *v, uint64_t now)
{
    if (v->spare && !m->spare && !m->leaving)
        log_line(m, LOG_LEVEL_NOTICE,
                 "the job runs without this node, which waits for a place in it");
    m->high = v->gen;
    m->seen_epoch = v->gen.epoch > m->seen_epoch ? v->gen.epoch : m->seen_epoch;
    m->joined = m->answered = true;
    m->electing = false;
    m->elect = v->elect && m->rules.lease;
    m->node_restarts = v->node_restarts;
    m->closed_in_order = false;
    member_contact_heard(m, now);
    m->view_seen_ns = now;
    m->view_sent_ns = v->sent_ns;
    m->heartbeat_ns = (uint64_t)v->heartbeat_ms * 1000000;
    m->dead_ns = (uint64_t)v->dead_ms * 1000000;
    m->group_rank = v->group_rank;
    m->nnodes = v->nnodes;
    m->restart_count = v->restart_count;
    m->spare = v->spare;
    if (v->lease)
        renew_lease(m, v->echo_ns);
    failure_queue_acknowledge(&m->failures, v->acked);
}

void member_state_view(struct member_state *m, const struct rdzv_view *v, uint64_t now)
{
    if (m->ended || !m->connected)
        return;
    if (m->electing && v->gen.epoch <= m->high.epoch && v->phase != RDZV_FINISH)
        return; /* neither elected since then, nor giving up */
    if (m->high.epoch && v->gen.epoch != m->high.epoch && !m->electing) {
        if (m->gen.counter > 0) {
            member_contact_lost(m, "another one answers in its place", false, now);
            if (m->electing)
                m->due |= DUE_DISCONNECT;
            return;
        }
    } else if (!m->electing && (v->gen.counter < m->high.counter || v->sent_ns < m->view_sent_ns)) {
        return; /* an older round, or an older view of this round */
    }
    bool member = v->group_rank >= 0, current = generation_equal(v->gen, m->gen);
    if (!member && v->elect && !generation_equal(v->gen, m->high))
        m->due |= DUE_STATUS; /* the round waits until this node has its list */
    note_view(m, v, now);
    if (m->leaving && v->phase != RDZV_FINISH && v->phase != RDZV_RELEASE)
        return;
    if (v->why && v->why_counter == m->gen.counter && m->round.state == IDLE)
        report_stop(m, v->why); /* this node stopped before the reason arrived */
    switch (v->phase) {
    case RDZV_PREPARE:
        if (member)
            prepare_round(m, v);
        else
            member_state_stop_round(m, v->why);
        break;
    case RDZV_RUN:
        if (member && current)
            run_round(m, v, now);
        else
            member_state_stop_round(m, v->why);
        break;
    case RDZV_COLLECT:
    case RDZV_STOP:
        member_state_stop_round(m, v->why);
        break;
    case RDZV_FINISH:
        member_state_drop_lease(m);
        if (m->have_report)
            end(m);
        else
            member_state_end_alone(m, STOP_INTERNAL, 1, "the coordinator sent no report");
        break;
    case RDZV_RELEASE:
        if (m->leaving)
            member_state_end_alone(m, m->leave_reason, m->leave_code, m->leave_text);
        break;
    case RDZV_PHASES:
        break;
    }
}

void member_state_table(struct member_state *m, struct rank_table *t)
{
    /* The agent borrows the last round's table until it is called to prepare the next one. */
    if (m->ended || m->round.state != PREPARED || !generation_equal(t->gen, m->gen)) {
        rank_table_fini(t);
        return;
    }
    rank_table_fini(&m->table);
    m->table = *t;
    rank_table_init(t);
}

void member_state_peers(struct member_state *m, struct rdzv_peers *p)
{
    bool grown = generation_equal(m->list_prepared.gen, p->gen) && p->n > m->list_prepared.n;
    if (m->joined && m->group_rank < 0)
        m->due |= DUE_STATUS; /* confirms the list */
    if (p->ran && generation_before(m->list_ran.gen, p->gen))
        rdzv_peers_move(&m->list_ran, p); /* a round that ran without this node */
    if (!p->ran && (generation_before(m->list_prepared.gen, p->gen) || grown)) {
        rdzv_peers_move(&m->list_prepared, p);
        m->list_prepared.ran = false;
    }
    if (grown && generation_equal(m->list_ran.gen, m->list_prepared.gen)) {
        rdzv_peers_copy(&m->list_ran, &m->list_prepared);
        m->list_ran.ran = true;
    }
    rdzv_peers_fini(p);
}

void member_state_report(struct member_state *m, struct rdzv_result *r)
{
    if (m->ended) {
        free((void *)r->failures);
    } else {
        free((void *)m->result.failures);
        m->result = *r;
        m->have_report = true;
    }
    r->failures = NULL;
}

/* ------------------------------------------------------------------------------------ the agent */

void member_state_prepared(struct member_state *m, const uint16_t *ports, int n, int free_port)
{
    /* An answer about an older round: the agent will be called again. */
    if (m->round.state != PREPARING || (m->due & DUE_PREPARE))
        return;
    m->nports = n == m->rules.hello.nproc ? n : 0;
    m->ports = xrealloc(m->ports, 2 * (size_t)m->nports);
    for (int i = 0; i < m->nports; i++) {
        m->ports[2 * i] = (uint8_t)ports[i];
        m->ports[2 * i + 1] = (uint8_t)(ports[i] >> 8);
    }
    m->free_port = free_port;
    move_round(m, PREPARED);
    m->due |= DUE_STATUS;
}

void member_state_failed(struct member_state *m, const struct failure *f)
{
    if (!member_state_has_workers(m) || (m->due & DUE_RUN))
        return;
    failure_queue_add(&m->failures, f);
    if (m->rules.hello.restart_policy == RESTART_GROUP)
        move_round(m, STOPPING); /* the agent does so by itself; on_stop reports what follows */
    m->due |= DUE_STATUS;
}

void member_state_done(struct member_state *m)
{
    if (m->round.state != RUNNING || (m->due & DUE_RUN))
        return;
    move_round(m, DONE);
    m->due |= DUE_STATUS;
    maybe_leave(m);
}

void member_state_stopped(struct member_state *m, const struct failure *all, size_t n)
{
    if ((!member_state_has_workers(m) && m->round.state != DONE) || (m->due & DUE_RUN))
        return;
    size_t keep = n < RDZV_STATUS_FAILURES ? n : RDZV_STATUS_FAILURES;
    size_t *order = xcalloc(n, sizeof(*order));
    failure_order(all, n, order);
    for (size_t i = 0; i < keep; i++)
        failure_queue_add(&m->failures, &all[order[i]]);
    free(order);
    m->failures_total = (uint32_t)n;
    go_idle(m);
    maybe_leave(m);
}

/* The time until which a node that leaves waits for an answer. */
static uint64_t leave_until(const struct member_state *m)
{
    uint64_t at = later(m->leave_ns, m->view_seen_ns) + LEAVE_NS;
    return m->leave_ns ? delay_graced(&m->delay, at) : NEVER;
}

void member_state_leave(struct member_state *m, enum stop_reason reason, int exit_code,
                        const char *text)
{
    if (m->ended || m->leaving)
        return;
    m->leaving = true;
    m->leave_reason = reason;
    m->leave_code = exit_code;
    text_set(m->leave_text, sizeof(m->leave_text), "%s", text[0] ? text : "this node leaves");
    m->due |= DUE_STATUS;
    m->due &= ~DUE_STOP; /* the agent stops by itself */
    if (!member_state_has_workers(m) || (m->due & DUE_RUN))
        go_idle(m);
    maybe_leave(m);
}

void member_state_get_info(const struct member_state *m, struct rdzv_info *out)
{
    static const char *const names[] = {
        [IDLE] = "waiting",    [PREPARING] = "preparing", [PREPARED] = "preparing",
        [RUNNING] = "running", [STOPPING] = "stopping",   [DONE] = "running",
    };
    bool in_round =
        m->round.state == RUNNING || m->round.state == STOPPING || m->round.state == DONE;
    out->phase = m->ended     ? "finished"
                 : !m->joined ? "joining"
                 : m->leaving ? "stopping"
                              : names[m->round.state];
    out->gen = m->gen;
    out->id = m->rules.hello.id;
    out->group_rank = m->group_rank;
    out->nnodes = m->nnodes;
    out->world_size = in_round ? m->table.world_size : 0;
    out->restart_count = m->restart_count;
    out->decided = m->ended && !m->alone ? m->high : (struct generation){0};
}

/* ----------------------------------------- the coordinator: connection, silence, loss, election */

/* The list whose members elect another coordinator; NULL: there is none. */
static const struct rdzv_peers *electors(const struct member_state *m)
{
    return m->list_ran.n ? &m->list_ran : m->list_prepared.n ? &m->list_prepared : NULL;
}

/* The list of a round that was prepared after the newest that ran; NULL: there is none. */
static const struct rdzv_peers *newer(const struct member_state *m)
{
    return generation_before(m->list_ran.gen, m->list_prepared.gen) ? &m->list_prepared : NULL;
}

/* The workers stop, and the members look for each other. dead: the coordinator's end is proven (P).
 */
static void begin_election(struct member_state *m, const char *how, bool dead, uint64_t now)
{
    struct rdzv_stop why = {.reason = STOP_COORDINATOR_LOST, .restarting = true};
    text_set(why.text, sizeof(why.text), "the coordinator at %s was lost: %s", m->rules.coordinator,
             how);
    strcpy(m->loss_text, why.text);
    m->electing = true;
    m->joined = m->spare = false;
    m->coordinator_dead = dead;
    m->elect_ns = now;
    m->closed_in_order = false;
    m->left_round = true;
    member_state_stop_round(m, &why);
}

static void member_contact_heard(struct member_state *m, uint64_t now)
{
    m->heard_ns = now;
    m->late_ns = m->delay.late_ns;
}

/* The time at which the coordinator will have been silent for ns. Delays of this process do not
 * count. */
static uint64_t silent_at(const struct member_state *m, uint64_t ns)
{
    return delay_silent_at(&m->delay, m->heard_ns, m->late_ns, ns);
}

/* A node that has been in no round does not end with the coordinator: it looks for a coordinator as
 * it did when it was started. The lists of members stay: a witness votes by them. */
static void look_again(struct member_state *m, uint64_t now)
{
    m->joined = m->answered = m->electing = m->spare = m->closed_in_order = false;
    m->high = (struct generation){0};
    m->began_ns = now;
    m->log_at = now + LOG_FIRST_NS;
}

static void member_contact_lost(struct member_state *m, const char *how, bool dead, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    if (m->leaving) {
        member_state_end_alone(m, m->leave_reason, m->leave_code, m->leave_text);
    } else if (m->elect && electors(m) && rdzv_peers_may_elect(electors(m))) {
        begin_election(m, how, dead, now);
    } else if (m->gen.counter == 0) {
        look_again(m, now);
    } else {
        text_set(text, sizeof(text), "the coordinator at %s was lost: %s", m->rules.coordinator,
                 how);
        if (m->elect && electors(m) && electors(m)->n == 2)
            text_add(text, sizeof(text),
                     " (one node of two is no majority; with a witness it would "
                     "go on: --witness)");
        if (dead)
            member_state_drop_lease(m);
        member_state_end_alone(m, STOP_COORDINATOR_LOST, 1, text);
    }
}

/* ------------------------------------------------------------------------------- the connection */

bool member_state_wants_link(const struct member_state *m)
{
    return !m->ended && !m->connected;
}

bool member_state_joined(const struct member_state *m)
{
    return m->joined;
}

bool member_state_answered(const struct member_state *m)
{
    return m->answered;
}

void member_state_connected(struct member_state *m, uint64_t now)
{
    if (m->ended)
        return;
    m->connected = true;
    m->answered = false;
    m->connected_ns = now;
    m->view_sent_ns = m->view_seen_ns = 0;
    failure_queue_resend(&m->failures);
    m->due &= ~DUE_DISCONNECT;
    m->due |= DUE_HELLO | DUE_STATUS;
    /* The coordinator may be a candidate. (A witness that has lost its coordinator votes too.) */
    if (!m->joined)
        m->due |= (m->list_ran.n ? DUE_LIST_RAN : 0) | (newer(m) ? DUE_LIST_PREPARED : 0);
}

void member_state_disconnected(struct member_state *m, enum rdzv_end how, const char *why,
                               uint64_t now)
{
    (void)now;
    m->connected = false;
    if (m->answered)
        m->closed_in_order = how == RDZV_END_CLOSED;
    m->due &= ~(DUE_DISCONNECT | DUE_HELLO | DUE_LIST_RAN | DUE_LIST_PREPARED | DUE_STATUS);
    if (m->ended)
        return;
    trouble(m, why);
    maybe_leave(m);
    if (how == RDZV_END_KEY && !m->joined) {
        char text[RDZV_TEXT_MAX];
        text_set(text, sizeof(text),
                 "the coordinator at %s has another job token than this node (%s): copy the file, "
                 "or name it with --token_file",
                 m->rules.coordinator, m->rules.token);
        member_state_end_alone(m, STOP_RENDEZVOUS, 2, text);
    }
}

void member_state_unreachable(struct member_state *m, bool refused, const char *why, uint64_t now)
{
    if (m->ended)
        return;
    m->answered = false;
    trouble(m, why);
    if (m->joined && refused && m->closed_in_order)
        member_contact_lost(m, "its launcher has ended (connection closed, then refused)", true,
                            now);
    else if (m->joined && now >= silent_at(m, m->dead_ns))
        member_contact_lost(m, why, false, now);
}

void member_state_refused(struct member_state *m, const struct rdzv_refusal *r, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    if (m->ended)
        return;
    m->due &= ~DUE_STATUS;
    m->due |= DUE_DISCONNECT;
    m->answered = false; /* how the connection ends now proves nothing */
    if (m->leaving && !member_state_has_workers(m)) {
        member_state_end_alone(m, m->leave_reason, m->leave_code, m->leave_text);
        return;
    }
    bool again = strcmp(m->trouble, r->text) == 0;
    if (r->retry && !again)
        trouble(m, r->text);
    m->turned_away = r->retry;
    if (r->retry && m->joined && m->gen.counter == 0)
        look_again(m, now);
    if (r->retry && (m->electing || (again && m->gen.counter == 0)))
        return; /* electing: the other node follows a coordinator, or has not lost it yet */
    bool older = m->rules.hello.mpi != MPI_NONE && strcmp(r->text, RDZV_BAD_HELLO) == 0;
    text_set(text, sizeof(text), "the coordinator at %s turned this node away: %s%s",
             m->rules.coordinator, r->text,
             older ? " (the dlaunch there is older, and does not know MPI programs)" : "");
    if (!r->retry || m->gen.counter > 0) {
        /* Refused before any round: an option is wrong. */
        member_state_end_alone(m, STOP_RENDEZVOUS, m->gen.counter > 0 ? 1 : 2, text);
        return;
    }
    m->log_at = now + LOG_EVERY_NS;
    text_add(text, sizeof(text), " (trying again)");
    log_line(m, LOG_LEVEL_NOTICE, text);
}

void member_state_noticed(struct member_state *m, uint64_t now)
{
    if (m->electing && m->connected && !m->leaving) {
        m->answered = true;
        member_contact_heard(m, now);
    }
}

bool member_state_electing(const struct member_state *m)
{
    return m->electing;
}

const struct rdzv_peers *member_state_electors(const struct member_state *m, int *self)
{
    const struct rdzv_peers *p = electors(m);
    *self = p ? rdzv_peers_find(p, &m->rules.hello.id) : -1;
    return p;
}

bool member_state_may_stand(const struct member_state *m)
{
    return m->list_ran.n > 0;
}

void member_state_electorate(const struct member_state *m, struct rdzv_electorate *out)
{
    *out = (struct rdzv_electorate){.ran = &m->list_ran,
                                    .prepared = newer(m),
                                    .seen_epoch = m->seen_epoch,
                                    .restarts = m->restart_count,
                                    .node_restarts = m->node_restarts,
                                    .dead_epoch = m->coordinator_dead ? m->high.epoch : 0,
                                    .loss_text = m->loss_text};
}

void member_state_set_peer_port(struct member_state *m, int port)
{
    m->rules.hello.peer_port = (uint16_t)port;
}

/* ----------------------------------------------------------------------------------------- time */

static void log_waiting(struct member_state *m, uint64_t now)
{
    char text[2 * RDZV_TEXT_MAX];
    m->log_at = now + LOG_EVERY_NS;
    if (m->answered)
        return; /* the coordinator's notices name the missing nodes */
    const char *why = m->connected ? "it accepted the connection and has not answered" : m->trouble;
    text_set(text, sizeof(text), "waiting for the coordinator at %s%s%s%s, %.0f s",
             m->rules.coordinator, why[0] ? " (" : "", why, why[0] ? ")" : "",
             (double)(now - m->began_ns) / 1e9);
    log_line(m, LOG_LEVEL_NOTICE, text);
}

static void join_timeout(struct member_state *m, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    text_set(text, sizeof(text),
             m->turned_away ? "the coordinator at %s has turned this node away for %.0f s"
                            : "no coordinator at %s within %.0f s",
             m->rules.coordinator, (double)(now - m->began_ns) / 1e9);
    if (m->trouble[0])
        text_add(text, sizeof(text), ": %s", m->trouble);
    member_state_end_alone(m, STOP_RENDEZVOUS, 1, text);
}

/* The lease has run out: other nodes may start a round soon, so the workers are killed now. */
static void fence(struct member_state *m, uint64_t now)
{
    struct rdzv_stop why = {.reason = STOP_COORDINATOR_LOST, .restarting = true};
    text_set(why.text, sizeof(why.text),
             "nothing heard of the coordinator at %s for %.1f s: the workers are killed, since the "
             "other nodes may go on without them",
             m->rules.coordinator, (double)(now - m->heard_ns) / 1e9);
    m->fenced = true;
    member_state_stop_round(m, &why);
    m->due |= DUE_FENCE;
}

/* A candidate gives up after twice the dead time; its voters wait a little longer. */
static uint64_t elect_until(const struct member_state *m)
{
    return m->elect_ns + 4 * m->dead_ns;
}

/* The time between two statuses. A node that leaves repeats its status often, since it waits only
 * LEAVE_NS for an answer. */
static uint64_t status_interval(const struct member_state *m)
{
    return m->leaving && m->heartbeat_ns > LEAVE_AGAIN_NS ? LEAVE_AGAIN_NS : m->heartbeat_ns;
}

/* The silence after which a new connection is made. A candidate sends a notice, and then nothing
 * until it is elected. */
static uint64_t silent_ns(const struct member_state *m)
{
    return m->electing ? 3 * m->dead_ns : m->dead_ns / 4 * 3;
}

static uint64_t answer_at(const struct member_state *m)
{
    bool soon = m->electing && m->dead_ns < m->rules.read_ns;
    return delay_graced(&m->delay, m->connected_ns + (soon ? m->dead_ns : m->rules.read_ns));
}

static bool on_lease(const struct member_state *m)
{
    return m->lease_ns && !m->fenced && member_state_has_workers(m);
}

static bool lease_is_over(const struct member_state *m, uint64_t now)
{
    return on_lease(m) && now >= m->lease_ns && !(m->due & DUE_RUN);
}

void member_state_tick(struct member_state *m, uint64_t now)
{
    char text[RDZV_TEXT_MAX];
    if (m->ended && lease_is_over(m, now))
        fence(m, now);
    if (m->ended)
        return;
    /* Reports a delay, once in each silence. The lease is not extended: the other nodes do not know
     * of the delay. */
    if (delay_tick(&m->delay, m->heartbeat_ns, now) && m->heard_ns >= m->delay.graced_ns)
        delay_grace(&m->delay, m->heartbeat_ns, now, now);
    if (m->electing && !(m->connected && m->answered) &&
        now >= delay_graced(&m->delay, elect_until(m))) {
        if (m->gen.counter == 0) {
            look_again(m, now);
            return;
        }
        text_set(text, sizeof(text), "%s; no other node could be made coordinator%s%s",
                 m->loss_text, m->trouble[0] ? ": " : "", m->trouble);
        member_state_end_alone(m, STOP_COORDINATOR_LOST, 1, text);
        return;
    }
    if (!m->joined && !m->electing && now - m->began_ns >= m->rules.join_ns) {
        join_timeout(m, now);
        return;
    }
    if (!m->joined && !m->electing && now >= m->log_at)
        log_waiting(m, now);
    if (m->connected && !m->answered && now >= answer_at(m)) {
        trouble(m, "it accepted the connection and did not answer");
        m->due |= DUE_DISCONNECT;
    }
    if (lease_is_over(m, now))
        fence(m, now);
    if (m->joined && now >= silent_at(m, m->dead_ns)) {
        text_set(text, sizeof(text), "nothing heard of it for %.1f s%s%s",
                 (double)(now - m->heard_ns) / 1e9, m->connected || !m->trouble[0] ? "" : "; ",
                 m->connected ? "" : m->trouble);
        member_contact_lost(m, text, false, now);
        if (m->connected)
            m->due |= DUE_DISCONNECT;
    } else if (m->connected && m->answered && now >= silent_at(m, silent_ns(m))) {
        trouble(m, "it has sent nothing for too long");
        m->due |= DUE_DISCONNECT;
    }
    if (m->connected && now - m->sent_ns >= status_interval(m))
        m->due |= DUE_STATUS;
    if (m->leaving && !member_state_has_workers(m) && now >= leave_until(m))
        member_state_end_alone(m, m->leave_reason, m->leave_code, m->leave_text);
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t member_state_deadline(const struct member_state *m)
{
    uint64_t at = NEVER;
    if (m->ended)
        return on_lease(m) ? m->lease_ns : NEVER;
    if (m->electing && !(m->connected && m->answered))
        at = delay_graced(&m->delay, elect_until(m));
    else if (!m->electing && !m->joined)
        at = sooner(m->began_ns + m->rules.join_ns, m->log_at);
    if (m->connected)
        at = sooner(at, m->sent_ns + status_interval(m));
    if (m->leaving && !member_state_has_workers(m))
        at = sooner(at, leave_until(m));
    if (m->connected && !m->answered)
        at = sooner(at, answer_at(m));
    if (m->connected && m->answered)
        at = sooner(at, silent_at(m, silent_ns(m)));
    if (on_lease(m))
        at = sooner(at, m->lease_ns);
    if (m->joined)
        at = sooner(at, silent_at(m, m->dead_ns));
    if (m->joined || m->connected || m->electing)
        at = sooner(at, m->delay.due_at);
    return at;
}

/* --------------------------------------------------------------------------------------- checks */

static bool due(const struct member_state *m, unsigned bits)
{
    return m->due & bits;
}

/* Asserts that the calls that are due to the agent fit the round. */
static void check_round(const struct member_state *m)
{
    enum round_state r = (enum round_state)m->round.state;
    assert(!due(m, DUE_PREPARE) || r == PREPARING);
    assert(!due(m, DUE_RUN) || r == RUNNING);
    /* The next round may begin before the agent was told that the last one has ended. */
    assert(!due(m, DUE_STOP) || (!m->leaving && (m->stop_called || r == PREPARING)));
    assert(r == IDLE || m->has_run == (r != PREPARING && r != PREPARED));
    assert(!m->stop_called || m->has_run);
    assert(r == IDLE || m->gen.counter > 0);
    bool has_table = generation_equal(m->table.gen, m->gen) && m->table.nnodes > 0;
    assert((r != RUNNING && r != STOPPING && r != DONE) || has_table);
    assert(m->nrespawns == 0 || r == RUNNING || r == DONE);
    for (int i = 0; i < m->nrespawns; i++)
        assert(m->respawns[i].id <= m->respawned &&
               m->respawns[i].local_rank < m->rules.hello.nproc);
    assert(m->nports == 0 || m->nports == m->rules.hello.nproc);
    assert(m->group_rank >= -1 && m->last_rank >= -1);
}

static void check_contact(const struct member_state *m)
{
    assert(!(m->joined && m->electing));
    assert(!m->electing || (m->elect && electors(m)));
    assert(!m->spare || m->joined);
    assert(m->connected || !due(m, DUE_DISCONNECT | DUE_HELLO | DUE_LIST_RAN | DUE_LIST_PREPARED));
    assert(!due(m, DUE_LIST_RAN) || m->list_ran.n);
    assert(m->ended || m->gen.counter == 0 || !generation_before(m->high, m->gen));
    assert(m->seen_epoch >= m->high.epoch);
    assert(m->rules.lease || m->lease_ns == 0);
    assert(!m->lease_ns || m->seen_epoch); /* some coordinator has given the lease */
    assert(m->heartbeat_ns && m->dead_ns);
}

static void check_end(const struct member_state *m)
{
    enum round_state r = (enum round_state)m->round.state;
    assert(!m->leaving || m->leave_text[0]);
    assert(m->leave_ns == 0 || m->leaving);
    assert(!due(m, DUE_FINISH) || (m->ended && !m->finished && r == IDLE));
    assert(!m->finished || (m->ended && r == IDLE));
    if (!m->ended) {
        assert(!m->finished);
        return;
    }
    assert(r == IDLE || r == STOPPING);
    assert(r != IDLE || m->finished || due(m, DUE_FINISH)); /* the agent learns of the end */
    assert(!due(m, DUE_HELLO | DUE_LIST_RAN | DUE_LIST_PREPARED | DUE_PREPARE | DUE_RUN));
    assert(!m->connected || due(m, DUE_DISCONNECT));
    assert(m->result.exit_code == 0 || m->result.text[0]);
}

void member_state_check(const struct member_state *m)
{
    check_round(m);
    check_contact(m);
    failure_queue_check(&m->failures);
    check_end(m);
    /* Asserts that a member that is not over has a time at which it acts, or makes a connection. */
    assert(m->ended || !m->connected || member_state_deadline(m) != NEVER);
}

/* -------------------------------------------------------------------------------------- actions */

static enum member_phase phase_of(const struct member_state *m)
{
    static const enum member_phase phases[] = {
        [IDLE] = MEMBER_IDLE,       [PREPARING] = MEMBER_IDLE,    [PREPARED] = MEMBER_PREPARED,
        [RUNNING] = MEMBER_RUNNING, [STOPPING] = MEMBER_STOPPING, [DONE] = MEMBER_DONE,
    };
    return m->leaving ? MEMBER_LEAVING : phases[m->round.state];
}

static void fill_status(struct member_state *m, uint64_t now)
{
    struct rdzv_status *st = &m->status;
    /* A status with a new phase may get no answer (needs_answer() in rdzv_state.c), and does not
     * count as a heartbeat: the lease might run out between two answers. */
    if (st->phase == phase_of(m))
        m->sent_ns = now;
    *st = (struct rdzv_status){
        .phase = phase_of(m),
        .workers = member_state_has_workers(m),
        .fenced = m->fenced || m->left_round,
        .gen = m->gen,
        /* Unique and rising, so that the coordinator can drop older statuses. */
        .send_ns = now > st->send_ns ? now : st->send_ns + 1,
        .view_sent_ns = m->view_sent_ns,
        .view_seen_ns = m->view_seen_ns,
        .respawned = m->respawned,
        .leave_reason = m->leave_reason,
        .leave_code = m->leave_code,
        .failures_total = m->failures_total,
    };
    if (m->leaving)
        text_set(st->leave_text, sizeof(st->leave_text), "%s", m->leave_text);
    if (m->leaving && !st->workers && m->leave_ns == 0)
        m->leave_ns = now;
    if (m->round.state == PREPARED) {
        st->nports = m->nports;
        st->ports = m->ports;
        st->free_port = m->free_port;
    }
    if (failure_queue_take(&m->failures, st))
        m->due |= DUE_STATUS; /* the rest follows at once */
}

static bool take_due(struct member_state *m, unsigned bit)
{
    bool due = m->due & bit;
    m->due &= ~bit;
    return due;
}

/* The next call of the agent that is due. */
static bool next_callback(struct member_state *m, struct member_action *a)
{
    if (take_due(m, DUE_STOP)) {
        *a = (struct member_action){.act = MEMBER_ACT_STOP, .why = &m->why};
    } else if (take_due(m, DUE_FENCE)) {
        *a = (struct member_action){.act = MEMBER_ACT_FENCE};
    } else if (take_due(m, DUE_LEASE)) {
        uint64_t beyond = rdzv_guardian_lease_ns(m->dead_ns) - rdzv_lease_ns(m->dead_ns);
        *a = (struct member_action){.act = MEMBER_ACT_LEASE,
                                    .until_ns = m->lease_ns ? m->lease_ns + beyond : 0};
    } else if (take_due(m, DUE_PREPARE)) {
        *a = (struct member_action){.act = MEMBER_ACT_PREPARE,
                                    .gen = m->gen,
                                    .group_rank = m->group_rank,
                                    .nnodes = m->nnodes};
    } else if (take_due(m, DUE_RUN)) {
        *a = (struct member_action){
            .act = MEMBER_ACT_RUN, .table = &m->table, .group_rank = m->group_rank};
    } else if (m->nrespawns > 0) {
        *a = (struct member_action){.act = MEMBER_ACT_RESPAWN, .respawn = m->respawns[0]};
        memmove(m->respawns, m->respawns + 1, (size_t)--m->nrespawns * sizeof(*m->respawns));
    } else {
        return false;
    }
    return true;
}

bool member_state_next(struct member_state *m, struct member_action *a, uint64_t now)
{
    debug_check(member_state_check(m));
    if (take_due(m, DUE_DISCONNECT)) {
        m->connected = false;
        m->due &= ~(DUE_HELLO | DUE_LIST_RAN | DUE_LIST_PREPARED | DUE_STATUS);
        maybe_leave(m);
        bool last = m->ended && !member_state_has_workers(m);
        *a = (struct member_action){.act = MEMBER_ACT_DISCONNECT, .reset = !last};
    } else if (take_due(m, DUE_HELLO)) {
        m->rules.hello.prev_rank = m->last_rank;
        m->rules.hello.seen_epoch = m->seen_epoch;
        *a = (struct member_action){.act = MEMBER_ACT_HELLO, .hello = &m->rules.hello};
    } else if (take_due(m, DUE_LIST_RAN)) {
        *a = (struct member_action){.act = MEMBER_ACT_PEERS, .peers = &m->list_ran};
    } else if (take_due(m, DUE_LIST_PREPARED)) {
        *a = (struct member_action){.act = MEMBER_ACT_PEERS, .peers = &m->list_prepared};
    } else if (next_callback(m, a)) {
        return true;
    } else if (m->connected && take_due(m, DUE_STATUS)) {
        fill_status(m, now);
        *a = (struct member_action){.act = MEMBER_ACT_STATUS, .status = &m->status};
    } else if (take_due(m, DUE_LOG)) {
        *a = (struct member_action){.act = MEMBER_ACT_LOG, .level = m->line_level, .text = m->line};
    } else if (take_due(m, DUE_FINISH)) {
        m->finished = true;
        *a = (struct member_action){.act = MEMBER_ACT_FINISH, .result = &m->result};
    } else {
        return false;
    }
    return true;
}
