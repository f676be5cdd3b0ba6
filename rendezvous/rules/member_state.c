/* The round, as this launcher has it. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/member_state_impl.h"
#include "rendezvous/rules/text.h"

struct member_state *member_state_new(const struct member_rules *rules, uint64_t now)
{
    struct member_state *m = xcalloc(1, sizeof(*m));
    m->rules = *rules;
    m->rules.hello.prev_rank = -1;
    m->group_rank = m->ran_rank = -1;
    m->began_ns = now;
    m->say_at = now + FIRST_NS;
    m->heartbeat_ns = rules->heartbeat_ns;
    m->dead_ns = rules->dead_ns;
    m->pulse_at = now + m->heartbeat_ns;
    rank_table_init(&m->table);
    return m;
}

void member_state_free(struct member_state *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->nqueue; i++)
        free(m->queue[i].bytes);
    free(m->queue);
    free(m->ports);
    free(m->respawns);
    free((void *)m->result.failures);
    rank_table_fini(&m->table);
    rdzv_peers_fini(&m->ran);
    rdzv_peers_fini(&m->told);
    buf_fini(&m->failure_bytes);
    free(m);
}

void member_state_set_local_addr(struct member_state *m, const char *ip)
{
    text_set(m->rules.hello.local_addr, sizeof(m->rules.hello.local_addr), "%s", ip);
}

void member_state_say(struct member_state *m, enum log_level level, const char *text)
{
    m->line_level = level;
    text_set(m->line, sizeof(m->line), "%s", text);
    m->due |= DUE_LOG;
}

/* ----------------------------------------------------------------------------------- the end */

static void maybe_finish(struct member_state *m)
{
    if (m->ended && !member_state_has_workers(m) && !m->finished)
        m->due |= DUE_FINISH;
}

/* The agent never heard of this round's start, or has nothing to stop. */
static void go_idle(struct member_state *m)
{
    m->round = IDLE;
    m->due &= ~(DUE_PREPARE | DUE_RUN);
    m->due |= DUE_STATUS;
    m->nrespawns = 0;
    maybe_finish(m);
}

static void tell_stop(struct member_state *m, const struct rdzv_stop *why)
{
    if (m->stop_called || m->leaving || !m->has_run) /* a leaver is stopping already */
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

/* The round is over for this node. */
void member_state_stop_round(struct member_state *m, const struct rdzv_stop *why)
{
    switch (m->round) {
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
        m->round = STOPPING;
        m->nrespawns = 0;
        m->due |= DUE_STATUS;
        break;
    case STOPPING:
        break;
    }
    tell_stop(m, why);
}

/* The result is known. A worker that is still alive is stopped first. */
static void end(struct member_state *m)
{
    if (m->ended)
        return;
    m->ended = true;
    m->due &= ~(DUE_HELLO | DUE_RAN | DUE_TOLD | DUE_STATUS);
    if (m->connected)
        m->due |= DUE_DISCONNECT;
    struct rdzv_stop why = {.reason = m->result.reason};
    text_set(why.text, sizeof(why.text), "%s", m->result.text);
    if (m->round == DONE) /* nothing to stop */
        m->round = IDLE;
    member_state_stop_round(m, &why);
    m->due &= ~DUE_STATUS;
    maybe_finish(m);
}

/* What this node knows of its own failures, for a result that the coordinator did not make. */
static void result_from_queue(struct member_state *m)
{
    if (m->nqueue == 0)
        return;
    size_t n = 0, *order = xcalloc(m->nqueue, sizeof(*order));
    struct failure *all = xcalloc(m->nqueue, sizeof(*all)), *kept;
    for (size_t i = 0; i < m->nqueue; i++) {
        struct rd r = rd_init(m->queue[i].bytes, m->queue[i].len);
        n += failure_decode(&r, &all[n]);
    }
    size_t keep = n < RDZV_REPORT_MAX ? n : RDZV_REPORT_MAX;
    kept = xcalloc(keep, sizeof(*kept));
    failure_order(all, n, order);
    for (size_t i = 0; i < keep; i++)
        kept[i] = all[order[i]];
    if (kept[0].kind != FAILURE_STOPPED) {
        m->result.failures = kept;
        m->result.n = keep;
        m->result.omitted = n - keep;
    } else {
        free(kept);
    }
    free(all);
    free(order);
}

/* Ends it with a result of its own. The other nodes may go on without this one: its workers end
 * with its lease at the latest. */
void member_state_end_alone(struct member_state *m, enum stop_reason reason, int code,
                            const char *text)
{
    if (m->ended)
        return;
    free((void *)m->result.failures);
    m->result =
        (struct rdzv_result){.exit_code = code, .reason = reason, .restarts = m->restart_count};
    text_set(m->result.text, sizeof(m->result.text), "%s", text);
    if (code != 0)
        result_from_queue(m);
    end(m);
}

void member_state_fail(struct member_state *m, const char *text)
{
    member_state_end_alone(m, STOP_RENDEZVOUS, 2, text);
}

/* -------------------------------------------------------------------------------------- views */

static void drop_acknowledged(struct member_state *m, uint32_t acked)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->nqueue; i++) {
        if (m->queue[i].seq <= acked)
            free(m->queue[i].bytes);
        else
            m->queue[kept++] = m->queue[i];
    }
    m->nqueue = kept;
}

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
        m->round == DONE) { /* cannot be: it waits for all to have stopped */
        member_state_stop_round(m, v->why);
        return;
    }
    if (generation_equal(m->gen, v->gen)) /* under way */
        return;
    m->gen = v->gen;
    m->round = PREPARING;
    m->has_run = m->stop_called = m->fenced = m->out = false;
    m->unleased_ns = 0;
    m->respawned = 0;
    m->failures_total = 0;
    m->due |= DUE_PREPARE | DUE_STATUS;
}

/* The coordinator cannot let it begin: those of the others who would elect another one are gone or
 * out of reach. It is told so, and ends the round. */
static void leave_round(struct member_state *m)
{
    m->out = true;
    member_state_stop_round(m, NULL);
}

static void run_round(struct member_state *m, const struct rdzv_view *v, uint64_t now)
{
    if (m->round == RUNNING)
        take_respawns(m, v);
    if (m->round != PREPARED || !generation_equal(m->table.gen, m->gen))
        return;
    /* An answer to a status of long ago: this process was stopped, and the round may have gone on
     * without it meanwhile. What holds now is the answer to a new one. */
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
    m->round = RUNNING;
    m->has_run = true;
    m->ran_rank = v->group_rank;
    if (generation_equal(m->told.gen, v->gen)) {
        rdzv_peers_copy(&m->ran, &m->told);
        m->ran.ran = true;
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
        text_set(
            text, sizeof(text),
            "the coordinator at %s is slow: its launcher is %.1f s behind, its heartbeats come",
            m->rules.coordinator, lag_ms / 1e3);
        member_state_say(m, LOG_LEVEL_WARN, text);
    }
    if (lag_ms >= RDZV_LAG_MS || lag_ms < RDZV_LAG_MS / 3)
        m->lagging = lag_ms >= RDZV_LAG_MS;
}

static void note_view(struct member_state *m, const struct rdzv_view *v, uint64_t now)
{
    if (v->spare && !m->spare && !m->leaving)
        member_state_say(m, LOG_LEVEL_NOTICE,
                         "the job runs without this node, which waits for a place in it");
    m->high = v->gen;
    m->seen_epoch = v->gen.epoch > m->seen_epoch ? v->gen.epoch : m->seen_epoch;
    m->joined = m->answered = true;
    m->electing = false;
    m->elect = v->elect && m->rules.lease;
    m->node_restarts = v->node_restarts;
    m->ended_how = RDZV_END_BROKEN;
    m->refused_ns = 0;
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
    drop_acknowledged(m, v->acked);
}

void member_state_view(struct member_state *m, const struct rdzv_view *v, uint64_t now)
{
    if (m->ended || !m->connected)
        return;
    if (m->electing && v->gen.epoch <= m->high.epoch && v->phase != RDZV_FINISH)
        return; /* not one that was elected since, nor one that gives up */
    if (m->high.epoch && v->gen.epoch != m->high.epoch && !m->electing) {
        if (m->gen.counter > 0) {
            member_contact_lost(m, "another one answers in its place", false, now);
            if (m->electing)
                m->due |= DUE_DISCONNECT;
            return;
        }
    } else if (!m->electing && (v->gen.counter < m->high.counter || v->sent_ns < m->view_sent_ns)) {
        return; /* never back: to an older round, or to what was said of this one before */
    }
    bool member = v->group_rank >= 0, current = generation_equal(v->gen, m->gen);
    if (!member && v->elect && !generation_equal(v->gen, m->high))
        m->due |= DUE_STATUS; /* it has the list that came before this: the round waits for that */
    note_view(m, v, now);
    if (m->leaving && v->phase != RDZV_FINISH && v->phase != RDZV_RELEASE)
        return;
    if (v->why && v->why_counter == m->gen.counter && m->round == IDLE)
        tell_stop(m, v->why); /* it was faster than the news */
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
    /* The last round's table is borrowed by the agent until it has been asked to prepare. */
    if (m->ended || m->round != PREPARED || !generation_equal(t->gen, m->gen)) {
        rank_table_fini(t);
        return;
    }
    rank_table_fini(&m->table);
    m->table = *t;
    rank_table_init(t);
}

void member_state_peers(struct member_state *m, struct rdzv_peers *p)
{
    bool grown = generation_equal(m->told.gen, p->gen) && p->n > m->told.n;
    if (m->joined && m->group_rank < 0)
        m->due |= DUE_STATUS; /* it has come */
    if (p->ran && generation_before(m->ran.gen, p->gen))
        rdzv_peers_move(&m->ran, p); /* it ran, though not here */
    if (!p->ran && (generation_before(m->told.gen, p->gen) || grown)) {
        rdzv_peers_move(&m->told, p);
        m->told.ran = false;
    }
    if (grown && generation_equal(m->ran.gen, m->told.gen)) {
        rdzv_peers_copy(&m->ran, &m->told);
        m->ran.ran = true;
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

/* ---------------------------------------------------------------------------------- the agent */

void member_state_prepared(struct member_state *m, const uint16_t *ports, int n, int free_port)
{
    /* An answer to an older question: it will be asked again. */
    if (m->round != PREPARING || (m->due & DUE_PREPARE))
        return;
    m->nports = n == m->rules.hello.nproc ? n : 0;
    m->ports = xrealloc(m->ports, 2 * (size_t)m->nports);
    for (int i = 0; i < m->nports; i++) {
        m->ports[2 * i] = (uint8_t)ports[i];
        m->ports[2 * i + 1] = (uint8_t)(ports[i] >> 8);
    }
    m->free_port = free_port;
    m->round = PREPARED;
    m->due |= DUE_STATUS;
}

static void queue_failure(struct member_state *m, const struct failure *f)
{
    struct buf b = BUF_INIT;
    if (m->nqueue >= QUEUE_MAX)
        return; /* counted in failures_total */
    failure_encode(&b, f);
    xbuf_reserve(&b, 0);
    if (m->nqueue == m->cap_queue) {
        m->cap_queue = m->cap_queue ? 2 * m->cap_queue : 8;
        m->queue = xrealloc(m->queue, m->cap_queue * sizeof(*m->queue));
    }
    m->queue[m->nqueue++] = (struct queued_failure){++m->last_seq, b.data, b.len};
}

void member_state_failed(struct member_state *m, const struct failure *f)
{
    if (!member_state_has_workers(m) || (m->due & DUE_RUN))
        return;
    queue_failure(m, f);
    if (m->rules.hello.restart_policy == RESTART_GROUP)
        m->round = STOPPING; /* on its own; on_stop still says what follows */
    m->due |= DUE_STATUS;
}

void member_state_done(struct member_state *m)
{
    if (m->round != RUNNING || (m->due & DUE_RUN))
        return;
    m->round = DONE;
    m->due |= DUE_STATUS;
}

void member_state_stopped(struct member_state *m, const struct failure *all, size_t n)
{
    if ((!member_state_has_workers(m) && m->round != DONE) || (m->due & DUE_RUN))
        return;
    size_t keep = n < RDZV_STATUS_FAILURES ? n : RDZV_STATUS_FAILURES;
    size_t *order = xcalloc(n, sizeof(*order));
    failure_order(all, n, order);
    for (size_t i = 0; i < keep; i++)
        queue_failure(m, &all[order[i]]);
    free(order);
    m->failures_total = (uint32_t)n;
    go_idle(m);
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
    m->due &= ~DUE_STOP; /* it is stopping already */
    if (!member_state_has_workers(m) || (m->due & DUE_RUN))
        go_idle(m);
    if (!member_state_has_workers(m) && !m->connected)
        member_state_end_alone(m, reason, exit_code, text);
}

void member_state_get_info(const struct member_state *m, struct rdzv_info *out)
{
    static const char *const names[] = {
        [IDLE] = "waiting",    [PREPARING] = "preparing", [PREPARED] = "preparing",
        [RUNNING] = "running", [STOPPING] = "stopping",   [DONE] = "running",
    };
    bool in_round = m->round == RUNNING || m->round == STOPPING || m->round == DONE;
    out->phase = m->ended     ? "finished"
                 : !m->joined ? "joining"
                 : m->leaving ? "stopping"
                              : names[m->round];
    out->gen = m->gen;
    out->group_rank = m->group_rank;
    out->nnodes = m->nnodes;
    out->world_size = in_round ? m->table.world_size : 0;
    out->restart_count = m->restart_count;
}
