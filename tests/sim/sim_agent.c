/* Stands for the agent, its workers, and the guardian that ends them when the agent cannot. */
#include "tests/sim/sim.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define LEAVES_WITHIN (7 * SEC) /* what the rules allow, and a tick that comes late */

static void push(struct sim_node *n, enum sim_kind kind, uint64_t in_ns, uint64_t number)
{
    sim_push((struct sim_event){.at = now + in_ns,
                                .kind = kind,
                                .who = sim_index(n),
                                .incarnation = n->incarnation,
                                .number = number});
}

/* ------------------------------------------------------------------------------ what it is told */

void sim_agent_prepare(struct sim_node *n, const struct member_action *a)
{
    CHECK("I3", !n->finished && !n->workers && !n->done, "prepare while workers are there");
    CHECK("I6", generation_before(n->asked, a->gen), "generation went from %u to %u",
          n->asked.counter, a->gen.counter);
    n->asked = a->gen;
    n->prepare_open = true;
    n->prepares++;
    sim_trace("prepare", sim_index(n), a->gen.counter);
    if (one_in(3)) { /* at once, from inside the callback */
        n->prepare_open = false;
        n->prepared = a->gen;
        member_state_prepared(n->m, NULL, 0, 0);
        return;
    }
    push(n, EV_PREPARED, (one_in(10) ? below(2 * SEC) : below(20 * MSEC)), n->prepares);
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
    CHECK("I3", !n->workers && !n->prepare_open && !n->finished, "run out of place");
    sim_check_round(n, a->table, a->group_rank);
    n->workers = true;
    n->done = n->stopping = false;
    n->running = a->table->gen;
    n->respawned = 0;
    n->runs++;
    sim_trace("run", sim_index(n), a->table->gen.counter);
    push(n, EV_WORKERS, working_ns(), n->runs);
    push(n, EV_STORE_CONNECT, sim_delay(), n->runs);
    push(n, EV_WATCH, 0, n->runs);
}

void sim_agent_stop_workers(struct sim_node *n)
{
    n->stopping = true;
    push(n, EV_STOPPED, (one_in(10) ? below(5 * SEC) : below(30 * MSEC)), n->runs);
}

void sim_agent_stop(struct sim_node *n, const struct rdzv_stop *why)
{
    CHECK("I11", n->stops_told < n->runs, "stop without a run, or twice");
    CHECK("I3", !n->finished, "stop after the end");
    CHECK("I12", why->text[0], "stop without a text");
    n->stops_told = n->runs;
    sim_trace("stop", sim_index(n), why->reason);
    if (W.loud)
        printf("%12.6f node %d stops: %s\n", (double)now / 1e9, sim_index(n), why->text);
    if (!n->stopping && (n->workers || n->done))
        sim_agent_stop_workers(n);
}

void sim_agent_finish(struct sim_node *n, const struct rdzv_result *r)
{
    int me = sim_index(n);
    CHECK("I3", !n->finished, "finished twice");
    CHECK("I3", !n->workers, "finished with workers alive");
    sim_check_result(n, r);
    n->finished = W.look = true;
    W.finished++;
    n->result = *r;
    sim_trace("finish", me, (uint64_t)r->exit_code);
    if (W.loud)
        printf("%12.6f node %d ends with %d: %s\n", (double)now / 1e9, me, r->exit_code, r->text);
}

/* Kills the node's workers; they end a moment later. */
void sim_agent_fence(struct sim_node *n)
{
    sim_trace("fence", sim_index(n), 0);
    sim_total.fenced++;
    CHECK("I3", n->stopping, "a fence before the stop");
    push(n, EV_STOPPED, below(10 * MSEC), n->runs);
}

/* --------------------------------------------------------------------------------- its guardian */

static void watch_lease(struct sim_node *n)
{
    if (n->guard_at > now && n->guard_at <= n->lease)
        return; /* it looks before that */
    n->guard_at = n->lease > now ? n->lease : now;
    push(n, EV_GUARD, n->guard_at - now, 0);
}

void sim_agent_lease(struct sim_node *n, uint64_t until_ns)
{
    uint64_t until = until_ns ? sim_when(n, until_ns) : 0;
    n->lease = until && until < n->lease ? n->lease : until; /* its thread knows better */
    if (n->lease)
        watch_lease(n);
}

void sim_agent_guard(struct sim_node *n)
{
    if (now < n->lease)
        watch_lease(n);
    if (!n->workers || !n->lease || now < n->lease)
        return;
    sim_trace("guardian", sim_index(n), 0);
    sim_total.guarded++;
    CHECK("I9", n->frozen || now - n->thawed_ns < 20 * MSEC, "a guardian was needed");
    sim_kill(sim_index(n), 1);
}

/* So long may its workers live after the last word of the coordinator, unless the job is over: the
 * lease, what the guardian waits beyond it, and as much as a slow clock adds to that. */
void sim_agent_watch(struct sim_node *n, uint64_t run)
{
    uint64_t lease = rdzv_lease_ns(W.rules.dead_ns), auth = (W.rules.dead_ns - lease) / 3;
    uint64_t until = n->heard_ns + (lease + auth) / 50 * 51 + 100 * MSEC;
    struct rdzv_info info;
    member_state_get_info(n->m, &info);
    if (!n->workers || n->runs != run || strcmp(info.phase, "finished") == 0)
        return;
    CHECK("I9", now < until, "node %d has workers, %.1f s after a last word", sim_index(n),
          (double)(now - n->heard_ns) / 1e9);
    push(n, EV_WATCH, until - now, run);
}

void sim_agent_leaves(struct sim_node *n)
{
    uint64_t since = n->left_ns;
    if (n->finished)
        return;
    since = n->idle_ns > since ? n->idle_ns : since;
    since = n->heard_ns > since ? n->heard_ns : since;
    since = n->thawed_ns > since ? n->thawed_ns : since;
    bool waits = n->workers || n->frozen || now < since + LEAVES_WITHIN;
    CHECK("I15", waits, "node %d has not left, %.1f s after the last answer", sim_index(n),
          (double)(now - since) / 1e9);
    push(n, EV_LEFT, n->workers || n->frozen ? SEC : since + LEAVES_WITHIN - now, 0);
}

/* ---------------------------------------------------------------------------------- its workers */

static struct failure failure_of(struct sim_node *n, int local_rank, enum failure_kind kind)
{
    struct failure f;
    failure_init(&f);
    f.kind = kind;
    f.local_rank = local_rank;
    f.exit_code = kind == FAILURE_EXIT ? 1 : kind == FAILURE_EXEC ? 127 : 0;
    f.signal = kind == FAILURE_SIGNAL ? SIGSEGV : kind == FAILURE_STOPPED ? SIGTERM : 0;
    f.seen_ns = sim_clock(n);
    return f;
}

static void workers_end(struct sim_node *n)
{
    if (!n->workers || n->stopping)
        return;
    if (now >= W.faults_from && now < W.faults_until && one_in(4)) {
        struct failure f = failure_of(n, (int)below((uint64_t)n->nproc),
                                      one_in(30)  ? FAILURE_EXEC
                                      : one_in(2) ? FAILURE_EXIT
                                                  : FAILURE_SIGNAL);
        W.failures++;
        sim_trace("worker fails", sim_index(n), f.kind);
        member_state_failed(n->m, &f);
        if (W.rules.restart_policy == RESTART_GROUP)
            sim_agent_stop_workers(n);
        else
            push(n, EV_WORKERS, below(2 * SEC), n->runs);
        return;
    }
    sim_check_workers_ended(n);
    n->done = true;
    member_state_done(n->m);
}

static void workers_stopped(struct sim_node *n)
{
    struct failure all[4];
    size_t count = 0;
    for (int i = 0; i < n->nproc && n->workers; i++)
        all[count++] = failure_of(n, i, FAILURE_STOPPED);
    sim_check_workers_ended(n);
    n->done = n->stopping = false;
    member_state_stopped(n->m, all, count);
}

/* Something of its own is due. */
void sim_agent_event(struct sim_event *e)
{
    struct sim_node *n = &W.nodes[e->who];
    if (e->kind == EV_CONNECT)
        sim_connect(n);
    else if (e->kind == EV_CALL_LOST)
        sim_call_lost(n, e->number);
    else if (e->kind == EV_TICK_MEMBER) {
        sim_beat_tell_member(n);
        member_state_tick(n->m, sim_clock(n));
    } else if (e->kind == EV_PREPARED && n->prepare_open && e->number == n->prepares) {
        n->prepare_open = false;
        n->prepared = n->asked;
        member_state_prepared(n->m, NULL, 0, 0);
    } else if (e->kind == EV_WORKERS && e->number == n->runs)
        workers_end(n);
    else if (e->kind == EV_STOPPED && e->number == n->runs && n->stopping)
        workers_stopped(n);
    sim_member_drain(n);
}
