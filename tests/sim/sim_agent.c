/* Drives agent_rules as agent.c does. What the agent's features answer comes at once, later or
 * never. */
#include "tests/sim/sim.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define LEAVES_WITHIN (7 * SEC)  /* what the rules allow, and a tick that comes late */
#define LOOKS_WITHIN  (5 * SEC)  /* for features, before the workers are stopped */
#define BORED_NS      (10 * SEC) /* until a user stops what hangs */

static void push(struct sim_node *n, enum sim_kind kind, uint64_t in_ns, uint64_t number)
{
    sim_push((struct sim_event){.at = now + in_ns,
                                .kind = kind,
                                .who = sim_index(n),
                                .incarnation = n->incarnation,
                                .number = number});
}

static bool wildly(uint64_t n)
{
    return W.wild && now < W.faults_until && one_in(n);
}

/* Something on the node may hang: when the faults have stopped, a user stops what has not ended. */
static void bore_user(struct sim_node *n)
{
    push(n, EV_BORED, (now < W.faults_until ? W.faults_until - now : 0) + below(BORED_NS), 0);
}

static bool is_busy(const struct sim_node *n)
{
    enum node_state s = agent_rules_state(n->agent);
    return s == NODE_STARTING || s == NODE_RUNNING || s == NODE_STOPPING;
}

void sim_agent_new(struct sim_node *n)
{
    static const uint64_t graces[] = {SEC / 2, 2 * SEC, 30 * SEC};
    struct agent_rules_config config = {.nproc = n->nproc,
                                        .alone = W.rules.restart_policy == RESTART_WORKER,
                                        .shutdown_ns = graces[below(ARRAY_LEN(graces))],
                                        .timeout_s = 1,
                                        .warned = one_in(2),
                                        .warn_signal = SIGUSR1,
                                        .warn_grace_ns = SEC,
                                        .warn_name = "SIGUSR1",
                                        .host = n->host};
    snprintf(n->host, sizeof(n->host), "node%d", sim_index(n));
    if (W.timeout_ns)
        config.timeout_at_ns = sim_clock(n) + W.timeout_ns;
    n->grace_ns = config.shutdown_ns > SEC ? config.shutdown_ns : SEC; /* the longer of both */
    n->agent = agent_rules_new(&config);
    agent_rules_joined(n->agent);
    sim_agent_drain(n);
}

/* ------------------------------------------------------------------------------------- what it
 * does
 */

static void begin(struct sim_node *n)
{
    if (wildly(150)) {
        W.asked[STOP_INTERNAL] = W.codes[125] = W.internal = true;
        agent_rules_cannot(n->agent, "a part of the round cannot be made", sim_clock(n));
    } else if (W.small) {
        push(n, EV_BEGUN, 1, n->runs);
    } else if (wildly(10)) { /* a warm interpreter is awaited */
        if (!one_in(8))      /* else never */
            push(n, EV_BEGUN, below(4 * SEC), n->runs);
        bore_user(n);
    } else {
        agent_rules_begun(n->agent, sim_clock(n));
    }
}

static void start(struct sim_node *n, int i)
{
    CHECK("I17", !n->workers[i].succeeded, "worker %d of node %d has succeeded, and starts again",
          i, sim_index(n));
    CHECK("I18", !n->left && !n->ending && !n->finished,
          "worker %d of node %d starts after the end", i, sim_index(n));
    if (sim_worker_start(n, i)) {
        agent_rules_started(n->agent, i, sim_clock(n));
        if (W.wild)
            bore_user(n);
        return;
    }
    bool drains = one_in(2);
    n->workers[i].unread = drains;
    sim_worker_cannot(n, i);
    agent_rules_not_started(n->agent, i, drains, NULL, sim_clock(n));
    if (drains)
        sim_worker_reaped(n, i);
}

static void leave(struct sim_node *n, enum stop_reason reason, int exit_code, const char *text)
{
    bool late = n->ending && !n->looking && reason != STOP_INTERNAL && exit_code != 128 + SIGKILL;
    sim_trace("leave", sim_index(n), reason);
    CHECK("I12", text[0], "a leave without a text");
    CHECK("I20", !late, "node %d leaves with %d, and the end was decided before", sim_index(n),
          exit_code);
    if (!n->left) {
        n->left_ns = now;
        push(n, EV_LEFT, SEC, 0);
    }
    n->left = true;
    member_state_leave(n->m, reason, exit_code, text);
}

static void abandon(struct sim_node *n)
{
    sim_trace("abandon", sim_index(n), 0);
    sim_total.abandoned++;
    W.asked[STOP_INTERNAL] = W.codes[125] = W.internal = true;
    for (int i = 0; i < n->nproc; i++) {
        struct sim_worker *w = &n->workers[i];
        CHECK("I21", !w->alive || w->dying, "a worker is abandoned that can be killed");
        if (!w->alive)
            continue;
        w->alive = false;
        w->abandoned = w->unread = true;
        w->failure = (struct failure){.kind = FAILURE_STOPPED, .local_rank = i, .signal = SIGKILL};
        sim_worker_reaped(n, i);
    }
    n->orphans = n->hard = 0; /* the driver sweeps once more; what is left is of no account */
    leave(n, STOP_INTERNAL, 125, "the node has processes that cannot be killed");
}

static void check_over(const struct sim_node *n)
{
    CHECK("I21", !n->orphans, "%d processes are left of the round at node %d", n->orphans,
          sim_index(n));
    for (int i = 0; i < n->nproc; i++)
        CHECK("I21", !n->workers[i].alive && !n->workers[i].unread,
              "worker %d of node %d is left of the round", i, sim_index(n));
}

static void report_done(struct sim_node *n)
{
    check_over(n);
    for (int i = 0; i < n->nproc; i++)
        CHECK("I20", n->workers[i].succeeded, "worker %d of node %d has not succeeded", i,
              sim_index(n));
    n->done = true;
    sim_trace("done", sim_index(n), 0);
    member_state_done(n->m);
}

static void report_stopped(struct sim_node *n, bool none_ran)
{
    struct failure all[WORKERS];
    size_t count = 0;
    check_over(n);
    for (int i = 0; i < n->nproc && !none_ran; i++) {
        struct sim_worker *w = &n->workers[i];
        if (w->start && !w->succeeded)
            all[count++] = w->failure;
    }
    sim_trace("stopped", sim_index(n), count);
    n->done = n->in_round = false;
    n->idle_ns = now;
    member_state_stopped(n->m, all, count);
}

static void answer_end(struct sim_node *n)
{
    if (!wildly(10))
        agent_rules_ended(n->agent, true, sim_clock(n));
    else if (!one_in(4)) /* else never */
        push(n, EV_ENDED, below(3 * SEC), n->runs);
}

static void write_out(struct sim_node *n)
{
    n->writing = true;
    push(n, EV_WRITTEN, one_in(20) ? below(5 * SEC) : below(MSEC), !one_in(10));
}

static bool stuck_is_freeing(const struct sim_node *n)
{
    for (int i = 0; i < n->nproc; i++) {
        if (n->workers[i].alive && n->workers[i].freeing && !n->workers[i].unkillable)
            return true;
    }
    return false;
}

static void carry_out(struct sim_node *n, const struct agent_action *a)
{
    switch (a->act) {
    case AGENT_LOG:
        if (W.loud)
            printf("%12.6f node %d: %s\n", (double)now / 1e9, sim_index(n), a->text);
        break;
    case AGENT_STATE:
        sim_trace(agent_rules_state_name(n->agent), sim_index(n), a->from);
        if (agent_rules_state(n->agent) == NODE_RUNNING)
            sim_head_began(n);
        break;
    case AGENT_PREPARED:
        n->prepared = n->asked;
        member_state_prepared(n->m, NULL, 0, 0);
        break;
    case AGENT_BEGIN:
        begin(n);
        break;
    case AGENT_START:
        start(n, a->local_rank);
        break;
    case AGENT_FAILED:
        n->failed = true;
        member_state_failed(n->m, &n->workers[a->local_rank].failure);
        break;
    case AGENT_STARTED:
    case AGENT_END_OPERATIONS:
        break;
    case AGENT_SIGNAL_GROUPS:
    case AGENT_SIGNAL_PROGRAMS:
        for (int i = 0; i < n->nproc; i++)
            sim_worker_signal(n, i, a->signo);
        break;
    case AGENT_KILL:
        for (int i = 0; i < n->nproc; i++)
            sim_worker_kill(n, i);
        break;
    case AGENT_SWEEP:
        agent_rules_swept(n->agent, sim_worker_sweep(n), sim_clock(n));
        break;
    case AGENT_STUCK:
        agent_rules_stuck(n->agent, stuck_is_freeing(n), sim_clock(n));
        break;
    case AGENT_ABANDON:
        abandon(n);
        break;
    case AGENT_ENDED:
        answer_end(n);
        break;
    case AGENT_DONE:
        report_done(n);
        break;
    case AGENT_STOPPED:
        report_stopped(n, a->none_ran);
        break;
    case AGENT_LEAVE:
        leave(n, a->reason, a->exit_code, a->text);
        break;
    case AGENT_LOOK:
        n->looking = true;
        if (!wildly(4)) /* else never */
            push(n, EV_LOOKED, below(SEC), 0);
        break;
    case AGENT_LEASE:
        sim_guardian_lease(n, a->until_ns);
        break;
    case AGENT_FINISH:
        write_out(n);
        break;
    case AGENT_HURRY:
        if (n->writing)
            push(n, EV_WRITTEN, below(MSEC), false);
        break;
    case AGENT_CLOSE:
        CHECK("I21", !n->writing, "the agent of node %d ends without its output", sim_index(n));
        n->closed = W.look = true;
        sim_head_exited(n, false, false);
        sim_requeue(n);
        sim_trace("closes", sim_index(n), 0);
        break;
    case AGENT_DIE:
        sim_kill(sim_index(n), 1);
        break;
    }
}

static void retick(struct sim_node *n)
{
    uint64_t at = agent_rules_deadline(n->agent);
    if (at == AGENT_NEVER)
        return;
    at = sim_when(n, at);
    at = at > now ? at : now + 1;
    if (n->agent_tick_at <= at && n->agent_tick_at > now)
        return;
    n->agent_tick_at = at;
    push(n, EV_TICK_AGENT, at - now, 0);
}

void sim_agent_drain(struct sim_node *n)
{
    struct agent_action a;
    while (n->agent && agent_rules_next(n->agent, &a))
        carry_out(n, &a);
    if (!n->agent)
        return;
    agent_rules_check(n->agent);
    retick(n);
}

/* -------------------------------------------------------------------- what the rendezvous tells it
 */

void sim_agent_prepare(struct sim_node *n, const struct member_action *a)
{
    CHECK("I3", !n->finished && !sim_workers_alive(n) && !n->done,
          "prepare while workers are there");
    CHECK("I6", generation_before(n->asked, a->gen), "generation went from %u to %u",
          n->asked.counter, a->gen.counter);
    n->asked = a->gen;
    n->prepares++;
    sim_trace("prepare", sim_index(n), a->gen.counter);
    n->ending = false; /* the job goes on */
    if (agent_rules_prepare(n->agent, sim_clock(n))) {
        if (one_in(3)) /* at once, from inside the callback */
            agent_rules_ready(n->agent);
        else
            push(n, EV_PREPARED, one_in(10) ? below(2 * SEC) : below(20 * MSEC), n->prepares);
    }
    sim_agent_drain(n);
}

/* The time that workers run: some end soon, some run through all faults. */
static uint64_t working_ns(void)
{
    if (now < W.faults_until && one_in(3))
        return W.faults_until - now + below(2 * SEC);
    return below(one_in(4) ? 20 * SEC : 2 * SEC);
}

void sim_agent_run(struct sim_node *n, const struct member_action *a)
{
    CHECK("I3", generation_equal(a->table->gen, n->prepared),
          "run of a round that is not prepared");
    CHECK("I3", !sim_workers_alive(n) && !n->finished, "run out of place");
    sim_check_round(n, a->table, a->group_rank);
    n->in_round = true;
    n->done = n->failed = false;
    n->running = a->table->gen;
    n->group_rank = a->group_rank;
    n->base_rank = a->table->nodes[a->group_rank].base_rank;
    n->respawned = 0;
    n->runs++;
    n->until_ns = now + working_ns();
    memset(n->workers, 0, sizeof(n->workers));
    sim_trace("run", sim_index(n), a->table->gen.counter);
    push(n, EV_STORE_CONNECT, sim_delay(), n->runs);
    push(n, EV_WATCH, 0, n->runs);
    agent_rules_run(n->agent);
    sim_agent_drain(n);
}

void sim_agent_respawn(struct sim_node *n, const struct rdzv_respawn *r)
{
    CHECK("I3", n->in_round && r->id > n->respawned, "respawn out of place");
    CHECK("I8", W.rules.restart_policy == RESTART_WORKER, "respawn of a group");
    n->respawned = r->id;
    sim_total.respawns++;
    agent_rules_respawn(n->agent, r->local_rank, r->restart_count, sim_clock(n));
    sim_agent_drain(n);
}

void sim_agent_stop(struct sim_node *n, const struct rdzv_stop *why)
{
    CHECK("I11", n->stops_told < n->runs, "stop without a run, or twice");
    CHECK("I3", !n->finished, "stop after the end");
    CHECK("I12", why->text[0], "stop without a text");
    n->stops_told = n->runs;
    n->ending |= !why->restarting;
    sim_trace("stop", sim_index(n), why->reason);
    if (W.loud)
        printf("%12.6f node %d stops: %s\n", (double)now / 1e9, sim_index(n), why->text);
    agent_rules_stop(n->agent, why, sim_clock(n));
    sim_agent_drain(n);
}

/* Kills the node's workers; they end a moment later. */
void sim_agent_fence(struct sim_node *n)
{
    sim_trace("fence", sim_index(n), 0);
    sim_total.fenced++;
    CHECK("I3", agent_rules_state(n->agent) == NODE_STOPPING, "a fence before the stop");
    agent_rules_fence(n->agent, sim_clock(n));
    sim_agent_drain(n);
}

void sim_agent_finish(struct sim_node *n, const struct rdzv_result *r)
{
    int me = sim_index(n);
    CHECK("I3", !n->finished, "finished twice");
    CHECK("I3", !sim_workers_alive(n), "finished with workers alive");
    sim_check_result(n, r);
    n->finished = W.look = true;
    W.finished++;
    n->result = *r;
    sim_trace("finish", me, (uint64_t)r->exit_code);
    if (W.loud)
        printf("%12.6f node %d ends with %d: %s\n", (double)now / 1e9, me, r->exit_code, r->text);
    agent_rules_finish(n->agent, r->exit_code, sim_clock(n));
    sim_agent_drain(n);
}

/* ------------------------------------------------------------------------- what its user tells it
 */

static void told_of(enum stop_reason reason, int code)
{
    W.asked[reason] = W.codes[code] = true;
    W.internal |= reason == STOP_INTERNAL;
}

static void tell(struct sim_node *n, enum sim_request what)
{
    struct agent_rules *a = n->agent;
    uint64_t clock = sim_clock(n);
    switch (what) {
    case ASK_SIGTERM:
        told_of(STOP_SIGNAL, 128 + SIGTERM);
        agent_rules_request(a, STOP_SIGNAL, SIGTERM, "SIGTERM", false, clock);
        break;
    case ASK_SIGQUIT:
        told_of(STOP_SIGNAL, 128 + SIGQUIT);
        agent_rules_request(a, STOP_SIGNAL, SIGQUIT, "SIGQUIT", false, clock);
        break;
    case ASK_CTL:
        told_of(STOP_REQUEST, 128 + SIGTERM);
        agent_rules_request(a, STOP_REQUEST, SIGTERM, "dlaunchctl stop", false, clock);
        break;
    case ASK_TIME:
        told_of(STOP_TIME_LIMIT, 75);
        agent_rules_request(a, STOP_SIGNAL, SIGTERM, "SIGTERM", true, clock);
        break;
    case ASK_WARNING:
        told_of(STOP_TIME_LIMIT, 75);
        agent_rules_warn(a, "the time of the node's job ends", clock);
        break;
    case ASK_KILL:
        told_of(STOP_REQUEST, 128 + SIGKILL);
        agent_rules_kill(a, "the node was told to kill", clock);
        break;
    case ASK_INTERNAL:
        told_of(STOP_INTERNAL, 125);
        agent_rules_leave(a, STOP_INTERNAL, 125, SIGTERM, "the node has a fault", clock);
        break;
    case ASK_GUARDIAN:
        agent_rules_guardian_gone(a, clock);
        break;
    case ASKS:
        break;
    }
}

void sim_agent_request(struct sim_node *n, enum sim_request what)
{
    bool stops = what <= ASK_TIME, again = stops && n->requests && now - n->asked_ns >= SEC;
    sim_trace("request", sim_index(n), what);
    sim_total.requests++;
    if (stops && !n->requests++)
        n->asked_ns = now;
    uint64_t within = again || what == ASK_KILL ? 0 : LOOKS_WITHIN + n->grace_ns;
    tell(n, what);
    sim_agent_drain(n);
    if (n->agent && what != ASK_INTERNAL)
        push(n, EV_GONE, within / 50 * 51 + SEC, within);
}

void sim_agent_gone(struct sim_node *n, uint64_t within)
{
    uint64_t since = now - n->thawed_ns;
    bool late = n->frozen || since < within / 50 * 51 + SEC;
    CHECK("I19", late || !sim_workers_alive(n),
          "node %d has workers, %.1f s after a request to stop", sim_index(n),
          (double)(now - n->asked_ns) / 1e9);
    if (late)
        push(n, EV_GONE, within + SEC, within);
}

void sim_agent_bored(struct sim_node *n)
{
    if (n->closed)
        return;
    for (uint64_t i = 0; i < 2; i++)
        push(n, EV_REQUEST, 1 + i * (one_in(2) ? 2 * SEC : 60 * SEC), ASK_SIGTERM);
}

/* ------------------------------------------------------------------------- what it does in time */

/* So long may its workers live after the last word of the coordinator, unless the job is over: the
 * lease, what the guardian waits beyond it, and as much as a slow clock adds to that. */
void sim_agent_watch(struct sim_node *n, uint64_t run)
{
    uint64_t lease = rdzv_lease_ns(W.rules.dead_ns), auth = (W.rules.dead_ns - lease) / 3;
    uint64_t until = n->heard_ns + (lease + auth) / 50 * 51 + 100 * MSEC;
    struct rdzv_info info;
    member_state_get_info(n->m, &info);
    if (!n->in_round || n->runs != run || strcmp(info.phase, "finished") == 0)
        return;
    CHECK("I9", now < until || !sim_workers_alive(n),
          "node %d has workers, %.1f s after a last word", sim_index(n),
          (double)(now - n->heard_ns) / 1e9);
    push(n, EV_WATCH, until > now ? until - now : SEC, run);
}

void sim_agent_leaves(struct sim_node *n)
{
    uint64_t since = n->left_ns;
    if (n->finished)
        return;
    since = n->idle_ns > since ? n->idle_ns : since;
    since = n->heard_ns > since ? n->heard_ns : since;
    since = n->thawed_ns > since ? n->thawed_ns : since;
    bool busy = is_busy(n) || n->frozen;
    CHECK("I15", busy || now < since + LEAVES_WITHIN,
          "node %d has not left, %.1f s after the last answer", sim_index(n),
          (double)(now - since) / 1e9);
    push(n, EV_LEFT, busy ? SEC : since + LEAVES_WITHIN - now, 0);
}

/* --------------------------------------------------------------------------------- what comes to
 * it
 */

static void worker_tells(struct sim_node *n, const struct sim_event *e)
{
    int i = (int)e->second;
    struct sim_worker *w = &n->workers[i];
    if (e->number != w->start)
        return;
    if (e->kind == EV_FAILING) {
        agent_rules_failing(n->agent, i, sim_clock(n));
    } else if (e->kind == EV_REAPED) {
        bool ok = sim_worker_reaped(n, i);
        agent_rules_exited(n->agent, i, ok, sim_clock(n));
    } else if (w->unread) { /* EV_DRAINED */
        w->unread = false;
        agent_rules_drained(n->agent, i, sim_clock(n));
    }
}

/* Something of its own is due. */
void sim_agent_event(struct sim_event *e)
{
    struct sim_node *n = &W.nodes[e->who];
    if (e->kind <= EV_CALL_LOST)
        sim_reach_event(e);
    else if (e->kind == EV_REDIRECT)
        sim_reach_redirect(n);
    else if (e->kind == EV_TICK_MEMBER) {
        sim_beat_tell_member(n);
        member_state_tick(n->m, sim_clock(n));
    } else if (e->kind == EV_TICK_AGENT) {
        n->agent_tick_at = 0;
        agent_rules_tick(n->agent, sim_clock(n));
    } else if (e->kind == EV_PREPARED && e->number == n->prepares) {
        agent_rules_ready(n->agent);
    } else if (e->kind == EV_BEGUN && e->number == n->runs) {
        agent_rules_begun(n->agent, sim_clock(n));
    } else if (e->kind == EV_LOOKED) {
        agent_rules_looked(n->agent, sim_clock(n));
    } else if (e->kind == EV_ENDED && e->number == n->runs) {
        agent_rules_ended(n->agent, true, sim_clock(n));
    } else if (e->kind == EV_WRITTEN && n->writing) {
        n->writing = false;
        agent_rules_written(n->agent, e->number);
    } else if (e->kind == EV_REQUEST) {
        sim_agent_request(n, (enum sim_request)e->number);
    } else if (e->kind == EV_FAILING || e->kind == EV_REAPED || e->kind == EV_DRAINED) {
        worker_tells(n, e);
    }
    sim_agent_drain(n);
    sim_member_drain(n);
}
