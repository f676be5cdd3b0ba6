/* The phases of the coordinator: COLLECT -> PREPARE -> RUN -> STOP -> COLLECT ... -> FINISH. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "rendezvous/rules/rdzv_round.h"
#include "rendezvous/rules/rdzv_state_impl.h"
#include "rendezvous/rules/text.h"

#define NOTICE_FIRST_NS 3000000000u
#define BACKOFF_MAX_NS  604800000000000u /* a week */

/* ----------------------------------------------------------------------------------- finish */

/* The report leads with the node when it was the node that ended the job. */
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

void rdzv_phase_finish(struct rdzv_state *s, int exit_code, enum stop_reason reason,
                       const char *text, uint64_t now)
{
    const struct failure *first = failure_log_first(&s->log);
    bool report = exit_code != 0 && first;
    failure_log_sort(&s->log, RDZV_REPORT_MAX);
    if (reason == STOP_NODE_LOST)
        lead_with_node(&s->log);
    s->result.exit_code = exit_code;
    s->result.reason = reason;
    s->result.restarts = s->restarts;
    s->result.failures = report ? s->log.f : NULL;
    s->result.n = report ? s->log.n : 0;
    if (report && s->failures_total > s->log.n)
        s->result.omitted = s->failures_total - s->log.n;
    text_set(s->result.text, sizeof(s->result.text), "%s", text);
    s->result_ns = now;
    s->phase = RDZV_FINISH;
    s->close_at = now + s->rules.close_ns;
    rdzv_state_send_all(s, PENDING_REPORT | PENDING_VIEW);
}

static void finish_advance(struct rdzv_state *s, uint64_t now)
{
    if (s->finished || (s->nnodes > 0 && now < s->close_at))
        return;
    s->finished = true;
    if (s->nnodes > 0) {
        char name[RDZV_TEXT_MAX];
        rdzv_state_log(s, LOG_LEVEL_WARN, "%d node%s, among them %s, did not take the job's result",
                       s->nnodes, s->nnodes > 1 ? "s" : "",
                       rdzv_join_name(s->nodes[0], name, sizeof(name)));
    }
}

/* ---------------------------------------------------------------------------------- collect */

static void enter_collect(struct rdzv_state *s, uint64_t now)
{
    s->phase = RDZV_COLLECT;
    s->collect_ns = now;
    s->join_at = now + s->rules.join_ns;
    s->notice_at = now + NOTICE_FIRST_NS;
}

void rdzv_phase_start(struct rdzv_state *s, uint64_t now)
{
    s->not_before = NEVER;
    enter_collect(s, now);
}

/* The round is over, or was never started: nobody has a place any more. */
static void back_to_collect(struct rdzv_state *s, uint64_t now)
{
    for (int i = 0; i < s->nmembers; i++) {
        if (s->members[i])
            s->members[i]->group_rank = -1;
    }
    s->nmembers = 0;
    enter_collect(s, now);
    rdzv_state_send_all(s, PENDING_VIEW);
}

/* Whether it is left out for what went wrong on it. The coordinator's own node never is. */
static bool is_left_out(const struct rdzv_state *s, const struct rdzv_node *n, uint64_t now)
{
    bool alone = true;
    if (s->crash_loop.nnodes == 0 || n->peer.own)
        return false;
    for (int i = 0; i < s->nnodes; i++) {
        const struct rdzv_node *o = s->nodes[i];
        alone &= o == n || strcmp(o->hello.host, n->hello.host) != 0 ||
                 strcmp(o->peer.addr, n->peer.addr) != 0;
    }
    return rdzv_crash_loop_until(&s->crash_loop, n, alone, now) > 0;
}

/* Takes those that are left out off the list, if enough remain. Returns how many remain. */
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

static void start_round(struct rdzv_state *s, uint64_t now)
{
    struct rdzv_node **m = xcalloc((size_t)s->nnodes, sizeof(struct rdzv_node *));
    int n = 0;
    for (int i = 0; i < s->nnodes; i++) {
        if (s->nodes[i]->ready)
            m[n++] = s->nodes[i];
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
        m[i]->prepared = m[i]->stopped = m[i]->done = false;
        m[i]->failures_total = 0;
        m[i]->norders = 0;
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
    s->phase = RDZV_PREPARE;
    rdzv_elect_prepare(s, now);
    rdzv_state_send_all(s, PENDING_VIEW);
}

/* Whether the job waits for another node when too few are left. */
static bool waits_for_nodes(const struct rdzv_state *s)
{
    return s->rules.max_node_restarts > 0 ||
           (s->rules.max_node_restarts < 0 && s->rules.max_restarts > 0);
}

/* Fewer than MIN are left of a job that has run. Whether it waits for another node. */
static bool wait_for_replacement(struct rdzv_state *s, uint64_t now)
{
    if (!waits_for_nodes(s))
        rdzv_phase_finish(s, s->gone_code, s->gone_reason, s->gone_text, now);
    return s->phase == RDZV_COLLECT;
}

static void join_timeout(struct rdzv_state *s, uint64_t now)
{
    char text[RDZV_TEXT_MAX] = "", late[RDZV_TEXT_MAX];
    rdzv_join_timeout_text(s, now, late, sizeof(late));
    bool lost = s->began && s->gone_text[0];
    text_set(text, sizeof(text), "%s%s%s", lost ? s->gone_text : "", lost ? "; " : "", late);
    rdzv_phase_finish(s, 1, lost ? STOP_NODE_LOST : STOP_RENDEZVOUS, text, now);
}

static void collect_advance(struct rdzv_state *s, uint64_t now)
{
    int live = rdzv_state_live(s), min = s->rules.min_nodes;
    if ((s->standing || s->quorum[0].list.n) && !rdzv_elect_may_start(s, now))
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
    if (s->nbusy) /* one that is new here, or back, and may have workers: it says so, or is lost */
        return;
    if (s->nready >= s->rules.max_nodes ||
        (!rdzv_state_first_round(s) && s->nready >= min && s->nready == live)) {
        start_round(s, now);
    } else if (s->nready >= min) {
        if (s->last_call_at == NEVER)
            s->last_call_at = now + s->rules.last_call_ns;
        if (now >= s->last_call_at)
            start_round(s, now);
    } else {
        s->last_call_at = NEVER;
        if (now >= s->join_at)
            join_timeout(s, now);
    }
}

/* ---------------------------------------------------------------------------- prepare and run */

static void start_run(struct rdzv_state *s, uint64_t now)
{
    const struct rdzv_place place = {s->rules.bound_addr, s->rules.port, s->rules.local_addr,
                                     s->rules.master_addr, s->rules.agent_store};
    char note[RDZV_TEXT_MAX];
    struct err e = ERR_INIT;
    rank_table_fini(&s->table);
    if (rdzv_round_table(&s->table, s->members, s->nmembers, &place, note, sizeof(note), &e) < 0) {
        rdzv_phase_finish(s, 1, STOP_INTERNAL, e.msg, now);
        return;
    }
    if (note[0])
        rdzv_state_log(s, s->began ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTICE, "%s", note);
    s->table.gen = s->gen;
    s->table.restart_count = s->restarts;
    s->phase = RDZV_RUN;
    s->run_ns = now;
    rdzv_elect_run(s);
    s->began = true;
    s->gone_text[0] = '\0';
    for (int i = 0; i < s->nnodes; i++) {
        struct rdzv_node *n = s->nodes[i];
        n->prev_rank = n->group_rank;
        if (n->group_rank >= 0)
            rdzv_state_send(s, n, PENDING_TABLE | PENDING_VIEW);
    }
}

void rdzv_phase_prepared(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                         uint64_t now)
{
    if (s->phase != RDZV_PREPARE || n->prepared)
        return;
    if (st->nports != 0 && st->nports != n->hello.nproc) {
        rdzv_state_close(s, n->conn, "it has another number of data ports than of workers", false);
        rdzv_phase_lost(s, n, "malformed status", now, now);
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

void rdzv_phase_done(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    (void)now;
    if (s->phase != RDZV_RUN || n->done)
        return;
    n->done = true;
    s->ndone++;
}

/* ------------------------------------------------------------------------------------- stop */

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
    s->phase = RDZV_STOP;
    s->stop_ns = now;
    s->node_gone = false;
    s->why_counter = s->gen.counter;
    s->why.reason = reason;
    s->why.restarting = restarting;
    s->why.has_first = first != NULL;
    if (first)
        s->why.first = *first;
    text_set(s->why.text, sizeof(s->why.text), "%s", text);
    s->nrunning = 0;
    for (int i = 0; i < s->nmembers; i++) {
        if (s->members[i]) {
            s->nrunning++;
            rdzv_state_send(s, s->members[i], PENDING_VIEW);
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

/* The failure that asks not to be started again, or NULL. */
static const struct failure *final_failure(const struct rdzv_state *s)
{
    for (size_t i = 0; i < s->log.n; i++) {
        const struct failure *f = &s->log.f[i];
        if (f->kind == FAILURE_EXEC ||
            (f->kind == FAILURE_EXIT && exit_codes_has(&s->rules.no_restart, f->exit_code)))
            return f;
    }
    return NULL;
}

static bool may_restart(const struct rdzv_state *s)
{
    return s->restarts < s->rules.max_restarts && !final_failure(s);
}

/* Whether another round may follow one that ended with a node. */
static bool may_go_on_without(const struct rdzv_state *s)
{
    int max = s->rules.max_node_restarts;
    return (max < 0 || s->node_restarts < max) &&
           (rdzv_state_live(s) >= s->rules.min_nodes || waits_for_nodes(s));
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
    s->failures_total++;
}

static void remember_gone(struct rdzv_state *s, enum stop_reason reason, int code, const char *text)
{
    s->gone_reason = reason;
    s->gone_code = code;
    text_set(s->gone_text, sizeof(s->gone_text), "%s", text);
}

/* The node was cut off long enough to end its workers, but not long enough to count as lost. */
static void stop_without(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    const char *how = rdzv_elect_quorum(s)
                          ? "it had no contact for so long that it ended its workers"
                          : "it may have no workers, for most of the others are out of reach";
    char name[RDZV_TEXT_MAX], text[RDZV_TEXT_MAX];
    struct failure lost;
    text_set(text, sizeof(text), "node %s: %s", rdzv_join_name(n, name, sizeof(name)), how);
    record_lost(s, n, how, now, &lost);
    remember_gone(s, STOP_NODE_LOST, 1, text);
    begin_stop(s, STOP_NODE_LOST, may_go_on_without(s), text, &lost, now);
    s->node_gone = true;
}

void rdzv_phase_stopped(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                        uint64_t now)
{
    if (s->phase == RDZV_PREPARE && st->fenced) { /* what it had prepared is gone */
        back_to_collect(s, now);
    } else if (s->phase == RDZV_RUN && st->fenced) {
        stop_without(s, n, now);
    } else if (s->phase == RDZV_RUN) {
        char text[RDZV_TEXT_MAX];
        text_set(text, sizeof(text), "node %s has stopped its workers without a reason",
                 n->hello.host);
        begin_stop(s, STOP_INTERNAL, false, text, NULL, now);
        end_job(s, STOP_INTERNAL, 1, text);
    }
    if (s->phase == RDZV_STOP)
        mark_stopped(s, n);
}

static void crash_loop(struct rdzv_state *s, const struct rdzv_node *n, uint64_t now)
{
    char name[RDZV_TEXT_MAX];
    if (!n || !rdzv_crash_loop_node(&s->crash_loop, n, now) || n->peer.own)
        return;
    rdzv_state_log(s, LOG_LEVEL_NOTICE,
                   "node %s: %d failures in a row; it is left out for %.0f s when enough others "
                   "are there",
                   rdzv_join_name(n, name, sizeof(name)), RDZV_CRASH_LOOP_MAX,
                   RDZV_LEFT_OUT_NS / 1e9);
}

/* Before the restart that has just been charged. */
static uint64_t backoff(const struct rdzv_state *s)
{
    uint64_t n = (uint64_t)s->restarts;
    return s->rules.backoff_ns > BACKOFF_MAX_NS / n ? BACKOFF_MAX_NS : s->rules.backoff_ns * n;
}

/* A worker failed: the job ends, or the restart is charged and perhaps put off. */
static void after_failure(struct rdzv_state *s, const struct failure *first, uint64_t now)
{
    char text[FAILURE_TEXT_MAX];
    const struct failure *final = final_failure(s);
    int alike = rdzv_crash_loop_failure(&s->crash_loop, first, s->stop_ns - s->run_ns,
                                        s->rules.progress_ns);
    bool left = s->restarts < s->rules.max_restarts;
    if (left && final && final->kind == FAILURE_EXIT)
        text_set(s->result.final, sizeof(s->result.final),
                 "exit code %d is not started again (--no_restart_codes)", final->exit_code);
    else if (left && alike >= RDZV_ALIKE_MAX)
        text_set(s->result.final, sizeof(s->result.final),
                 "%d starts in a row have ended so within %g s (--progress_time)", alike,
                 (double)s->rules.progress_ns / 1e9);
    if (!may_restart(s) || alike >= RDZV_ALIKE_MAX) {
        failure_describe(first, text, sizeof(text));
        rdzv_phase_finish(s, failure_exit_status(first), STOP_FAILURE, text, now);
        return;
    }
    if (first->node >= 0 && first->node < s->nmembers)
        crash_loop(s, s->members[first->node], now);
    s->restarts++;
    uint64_t pause = rdzv_crash_loop_pause(alike), asked = s->rules.backoff_ns ? backoff(s) : 0;
    if (pause > asked)
        rdzv_state_log(s, LOG_LEVEL_NOTICE,
                       "%d starts in a row have ended alike: the next one in %g s", alike,
                       (double)pause / 1e9);
    if (pause || asked)
        s->not_before = now + (pause > asked ? pause : asked);
}

/* A node was lost or left: the same. */
static void after_node(struct rdzv_state *s, uint64_t now)
{
    int max = s->rules.max_node_restarts;
    s->node_restarts++;
    if (max < 0 || s->node_restarts <= max)
        return;
    s->node_restarts = max;
    text_set(s->result.final, sizeof(s->result.final),
             "restarts after a lost node: %d of %d used (--max_node_restarts)", max, max);
    rdzv_phase_finish(s, s->gone_code, s->gone_reason, s->gone_text, now);
}

/* All workers are stopped: what follows? */
static void stop_advance(struct rdzv_state *s, uint64_t now)
{
    if (s->nrunning > 0)
        return;
    const struct failure *first = failure_log_first(&s->log);
    bool failed = first && first->kind != FAILURE_NODE &&
                  (s->why.reason == STOP_FAILURE || s->why.reason == STOP_NODE_LOST);
    if (s->end) {
        rdzv_phase_finish(s, s->end_code, s->end_reason, s->end_text, now);
        return;
    }
    if (failed)
        after_failure(s, first, now);
    else if (s->node_gone)
        after_node(s, now);
    if (s->phase == RDZV_STOP)
        back_to_collect(s, now);
}

/* RESTART_WORKER: the others go on. */
static void order_respawn(struct rdzv_state *s, struct rdzv_node *n, const struct failure *f,
                          uint64_t now)
{
    char text[FAILURE_TEXT_MAX];
    struct rdzv_order order = {.respawn = {.id = ++n->last_order,
                                           .local_rank = f->local_rank,
                                           .restart_count = ++s->restarts}};
    order.due_ns = now + backoff(s);
    n->orders = xrealloc(n->orders, (size_t)(n->norders + 1) * sizeof(*n->orders));
    n->orders[n->norders++] = order;
    if (order.due_ns > now && order.due_ns < s->respawn_at)
        s->respawn_at = order.due_ns;
    failure_log_forget(&s->log, f->rank);
    rdzv_state_log(s, LOG_LEVEL_NOTICE, "%s; it is started again (restart %d of %d)",
                   failure_describe(f, text, sizeof(text)), s->restarts, s->rules.max_restarts);
    rdzv_state_send(s, n, PENDING_VIEW);
}

void rdzv_phase_failure(struct rdzv_state *s, struct rdzv_node *n, const struct failure *reported,
                        uint64_t now)
{
    if (s->phase != RDZV_RUN && s->phase != RDZV_STOP)
        return;
    struct failure f = *reported;
    int base = s->table.nodes[n->group_rank].base_rank;
    if (f.kind == FAILURE_NODE || f.local_rank < 0 || f.local_rank >= n->hello.nproc) {
        rdzv_state_log(s, LOG_LEVEL_WARN, "node %s sent a failure that is none of its own",
                       n->hello.host);
        return;
    }
    f.rank = base + f.local_rank;
    f.node = n->group_rank;
    f.attempt = f.attempt < s->restarts ? f.attempt : s->restarts;
    strcpy(f.host, n->hello.host);
    bool own = f.kind != FAILURE_STOPPED;
    /* A node that was started with the other policy is stopping its workers already. */
    bool alone =
        s->rules.restart_policy == RESTART_WORKER && n->hello.restart_policy == RESTART_WORKER;
    if (own && alone && s->phase == RDZV_RUN && f.kind != FAILURE_EXEC &&
        !(f.kind == FAILURE_EXIT && exit_codes_has(&s->rules.no_restart, f.exit_code)) &&
        s->restarts < s->rules.max_restarts) {
        order_respawn(s, n, &f, now);
        return;
    }
    failure_log_add(&s->log, &f);
    if (!own || s->phase != RDZV_RUN)
        return;
    char text[RDZV_TEXT_MAX];
    failure_describe(&f, text, sizeof(text));
    bool on = may_restart(s) && rdzv_crash_loop_would(&s->crash_loop, &f, now - s->run_ns,
                                                      s->rules.progress_ns) < RDZV_ALIKE_MAX;
    begin_stop(s, STOP_FAILURE, on, text, &f, now);
}

/* ------------------------------------------------------------------------------- membership */

void rdzv_phase_newcomer(struct rdzv_state *s, struct rdzv_node *n, uint64_t now)
{
    char text[RDZV_TEXT_MAX], name[RDZV_TEXT_MAX];
    if (!rdzv_state_dynamic(s) || s->nmembers >= s->rules.max_nodes || is_left_out(s, n, now))
        return;
    if (s->phase == RDZV_PREPARE) { /* no worker runs yet: begin anew, with it */
        back_to_collect(s, now);
    } else if (s->phase == RDZV_RUN && s->ndone == 0 && s->rules.elastic) {
        text_set(text, sizeof(text), "node %s has joined", rdzv_join_name(n, name, sizeof(name)));
        rdzv_state_log(s, LOG_LEVEL_VERBOSE, "%s: the workers are started again with it", text);
        begin_stop(s, STOP_MEMBERSHIP, true, text, NULL, now);
    }
}

static void release(struct rdzv_state *s, struct rdzv_node *n)
{
    n->released = true;
    rdzv_state_send(s, n, PENDING_VIEW);
}

/* The reason that ends a running round reaches every node by on_stop; it is not logged again. */
static enum log_level unless_told(const struct rdzv_state *s)
{
    return s->phase == RDZV_RUN ? LOG_LEVEL_VERBOSE : LOG_LEVEL_NOTICE;
}

static const char *kind(const struct rdzv_node *n)
{
    return rdzv_node_is_witness(n) ? "witness" : "node";
}

/* Nothing ends without a reason. */
static const char *leave_text(const struct rdzv_status *st)
{
    return st->leave_text[0] ? st->leave_text : "a node left without saying why";
}

/* A node of a round that runs, or is being stopped, leaves. */
static void leave_round(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                        bool ends, uint64_t now)
{
    bool needed = n->group_rank >= 0 && !n->done;
    ends |= needed && rdzv_state_live(s) < s->rules.min_nodes && !waits_for_nodes(s);
    if (s->phase == RDZV_RUN && (ends || needed)) {
        bool on = !ends && may_go_on_without(s);
        begin_stop(s, ends ? st->leave_reason : STOP_MEMBERSHIP, on, leave_text(st), NULL, now);
        s->node_gone = needed;
    }
    if (ends)
        end_job(s, st->leave_reason, st->leave_code, leave_text(st));
}

void rdzv_phase_leave(struct rdzv_state *s, struct rdzv_node *n, const struct rdzv_status *st,
                      uint64_t now)
{
    /* The coordinator leaves with its own launcher. */
    bool witness = rdzv_node_is_witness(n);
    bool ends =
        n->peer.own ||
        (!witness && (st->leave_reason == STOP_TIMEOUT || st->leave_reason == STOP_REQUEST));
    if (!n->leaving) {
        char name[RDZV_TEXT_MAX];
        n->leaving = true;
        s->nleaving += !witness;
        rdzv_state_update_ready(s, n);
        if (!witness || ends)
            remember_gone(s, st->leave_reason, st->leave_code, leave_text(st));
        if (!n->peer.own)
            rdzv_state_log(s, unless_told(s), "%s %s leaves: %s", kind(n),
                           rdzv_join_name(n, name, sizeof(name)), leave_text(st));
        if (s->phase == RDZV_RUN || s->phase == RDZV_STOP)
            leave_round(s, n, st, ends, now);
        else if (ends && s->phase != RDZV_FINISH)
            rdzv_phase_finish(s, st->leave_code, st->leave_reason, leave_text(st), now);
        else if (s->phase == RDZV_PREPARE && n->group_rank >= 0)
            back_to_collect(s, now);
    }
    if (st->workers)
        return;
    if (s->phase == RDZV_STOP && n->group_rank >= 0)
        mark_stopped(s, n);
    if (!s->end && s->phase != RDZV_FINISH && !n->released)
        release(s, n);
}

void rdzv_phase_lost(struct rdzv_state *s, struct rdzv_node *n, const char *how, uint64_t since,
                     uint64_t now)
{
    char name[RDZV_TEXT_MAX], text[RDZV_TEXT_MAX] = "";
    bool member = n->group_rank >= 0, needed = member && !n->done && !n->leaving;
    enum rdzv_phase phase = s->phase;
    struct failure lost;
    if (how && !n->leaving && phase != RDZV_FINISH) {
        rdzv_join_name(n, name, sizeof(name));
        text_set(text, sizeof(text), "%s %s was lost: %s", kind(n), name, how);
        rdzv_state_log(s, needed ? unless_told(s) : LOG_LEVEL_NOTICE, "%s", text);
        if (needed && !(phase == RDZV_STOP && n->stopped))
            record_lost(s, n, how, since, &lost);
        if (needed)
            crash_loop(s, n, now);
        if (!rdzv_node_is_witness(n))
            remember_gone(s, STOP_NODE_LOST, 1, text);
    }
    if (phase == RDZV_STOP && member)
        mark_stopped(s, n);
    rdzv_state_remove(s, n);
    if (phase == RDZV_PREPARE && member)
        back_to_collect(s, now);
    else if (phase == RDZV_RUN && needed)
        begin_stop(s, STOP_NODE_LOST, may_go_on_without(s), text, &lost, now);
    if (s->phase == RDZV_STOP && needed && phase != RDZV_COLLECT)
        s->node_gone = true;
}

/* ---------------------------------------------------------------------------------- advance */

void rdzv_phase_advance(struct rdzv_state *s, uint64_t now)
{
    enum rdzv_phase before;
    do {
        before = s->phase;
        switch (s->phase) {
        case RDZV_COLLECT:
            collect_advance(s, now);
            break;
        case RDZV_PREPARE:
            if (s->nprepared < s->nmembers)
                break;
            if (rdzv_elect_may_run(s, now))
                start_run(s, now);
            else if (!rdzv_elect_quorum(s))
                back_to_collect(s, now);
            break;
        case RDZV_RUN:
            if (s->ndone == s->nmembers)
                rdzv_phase_finish(s, 0, STOP_FAILURE, "", now);
            break;
        case RDZV_STOP:
            stop_advance(s, now);
            break;
        default:
            finish_advance(s, now);
            break;
        }
    } while (s->phase != before);
}
