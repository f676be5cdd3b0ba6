/* Stands for the workers of a node: processes that begin their program or hang before that, end in
 * time, too late or not at all, and leave things behind. Their life goes on while the agent is
 * frozen, which learns of it afterwards. */
#include "tests/sim/sim.h"

#include <signal.h>

static void push(struct sim_node *n, enum sim_kind kind, uint64_t in_ns, int i)
{
    sim_push((struct sim_event){.at = now + in_ns,
                                .kind = kind,
                                .who = sim_index(n),
                                .incarnation = n->incarnation,
                                .number = n->workers[i].start,
                                .second = (uint64_t)i});
}

/* Rare things that only some scenarios have, and none when the faults have stopped. */
static bool wildly(uint64_t n)
{
    return W.wild && now < W.faults_until && one_in(n);
}

int sim_workers_alive(const struct sim_node *n)
{
    int alive = 0;
    for (int i = 0; i < n->nproc; i++)
        alive += n->workers[i].alive && !n->workers[i].dying;
    return alive;
}

/* -------------------------------------------------------------------------------- it starts, ends
 */

bool sim_worker_start(struct sim_node *n, int i)
{
    struct sim_worker *w = &n->workers[i];
    *w = (struct sim_worker){.start = ++n->starts, .blames = -1};
    sim_check_again(n, i);
    sim_trace("worker starts", sim_index(n), (uint64_t)i);
    sim_total.starts++;
    if (wildly(60)) {
        w->no_program = true;
        return false;
    }
    sim_check_start(n, i);
    w->alive = w->in_exec = true;
    w->no_program = wildly(60);
    w->fails = now >= W.faults_from && now < W.faults_until && one_in(4 * (uint64_t)n->nproc);
    w->stubborn = wildly(10);
    w->unkillable = wildly(150);
    w->hangs = w->unkillable || wildly(40);
    w->freeing = wildly(10);
    w->keeps_pipes = wildly(20);
    w->orphans = wildly(20) ? 1 + (int)below(2) : 0;
    sim_total.stubborn += w->stubborn;
    sim_total.unkillable += w->unkillable;
    if (wildly(30)) { /* what it executes is on a server that does not answer */
        sim_total.in_exec++;
        if (one_in(2)) /* else never */
            push(n, EV_EXEC, below(20 * SEC), i);
    } else {
        push(n, EV_EXEC, below(5 * MSEC), i);
    }
    return true;
}

/* It executes nothing any more. */
static void begin_to_end(struct sim_node *n, int i, bool ok)
{
    struct sim_worker *w = &n->workers[i];
    w->dying = true;
    w->ok = ok;
    sim_check_ended(n);
    if (ok) {
        w->succeeded = true;
        sim_round_of(n)->ok++;
    }
    n->orphans += w->orphans;
    sim_total.left_behind += (uint64_t)w->orphans;
    if (w->orphans && wildly(8))
        n->hard++;
    if (w->failure.kind != FAILURE_STOPPED && !ok)
        push(n, EV_FAILING, below(MSEC), i);
    push(n, EV_FREED, w->freeing ? below(3 * SEC) : below(5 * MSEC), i);
}

/* Workers that were in touch with the one that has died, and fail of it: they end with 1. */
static void kill_survivors(const struct sim_node *of, int rank)
{
    for (int k = 0; k < W.n; k++) {
        struct sim_node *n = &W.nodes[k];
        for (int i = 0; n->m && n->round == of->round && n->in_round && i < n->nproc; i++) {
            struct sim_worker *w = &n->workers[i];
            if (!w->alive || w->in_exec || w->dying || w->hangs || w->blames >= 0 || one_in(2))
                continue;
            w->fails = true;
            w->blames = rank;
            push(n, EV_EXIT, below(one_in(4) ? 400 * MSEC : 40 * MSEC), i);
        }
    }
}

static void fail(struct sim_node *n, int i, enum failure_kind kind)
{
    struct failure *f = &n->workers[i].failure;
    failure_init(f);
    f->kind = kind;
    f->node = n->group_rank;
    f->rank = n->base_rank + i;
    f->local_rank = i;
    f->exit_code = kind == FAILURE_EXIT ? 1 : kind == FAILURE_EXEC ? 127 : 0;
    f->signal = kind == FAILURE_SIGNAL ? SIGSEGV : kind == FAILURE_STOPPED ? SIGTERM : 0;
    f->caused_by = n->workers[i].blames;
    f->seen_ns = sim_clock(n);
    if (kind == FAILURE_STOPPED)
        return;
    sim_trace("worker fails", sim_index(n), kind);
    sim_check_failed(n, i);
    if (W.survivors && f->caused_by < 0 && now < W.faults_until)
        kill_survivors(n, f->rank);
}

void sim_worker_cannot(struct sim_node *n, int i)
{
    fail(n, i, FAILURE_EXEC);
}

void sim_worker_signal(struct sim_node *n, int i, int signo)
{
    struct sim_worker *w = &n->workers[i];
    if (signo == SIGKILL)
        sim_worker_kill(n, i);
    else if (w->alive && !w->in_exec && !w->stubborn && !w->unkillable && signo != SIGCONT)
        push(n, EV_DIES, one_in(10) ? below(5 * SEC) : below(30 * MSEC), i);
}

void sim_worker_kill(struct sim_node *n, int i)
{
    struct sim_worker *w = &n->workers[i];
    if (!w->alive || w->dying)
        return;
    if (!w->unkillable) {
        push(n, EV_DIES, below(10 * MSEC), i);
        return;
    }
    w->dying = true; /* when its system call returns, which does not happen */
    sim_check_ended(n);
}

static void begin_program(struct sim_node *n, int i)
{
    struct sim_worker *w = &n->workers[i];
    if (w->no_program) {
        fail(n, i, FAILURE_EXEC);
        begin_to_end(n, i, false);
        return;
    }
    w->in_exec = false;
    if (!w->hangs)
        push(n, EV_EXIT, n->until_ns > now ? n->until_ns - now + below(50 * MSEC) : below(2 * SEC),
             i);
}

void sim_worker_event(struct sim_node *n, const struct sim_event *e)
{
    int i = (int)e->second;
    struct sim_worker *w = &n->workers[i];
    if (e->number != w->start || !w->alive)
        return;
    if (e->kind == EV_FREED) {
        w->alive = false;
        w->unread = true;
        push(n, EV_REAPED, below(MSEC), i);
    } else if (w->dying) {
        return;
    } else if (e->kind == EV_EXEC) {
        begin_program(n, i);
    } else if (e->kind == EV_DIES) {
        fail(n, i, FAILURE_STOPPED);
        begin_to_end(n, i, false);
    } else { /* EV_EXIT */
        if (w->fails)
            fail(n, i, w->blames >= 0 || one_in(2) ? FAILURE_EXIT : FAILURE_SIGNAL);
        begin_to_end(n, i, !w->fails);
    }
}

/* ------------------------------------------------------------------------------ what it leaves
 */

bool sim_worker_reaped(struct sim_node *n, int i)
{
    struct sim_worker *w = &n->workers[i];
    push(n, EV_DRAINED, w->keeps_pipes ? below(5 * SEC) : below(20 * MSEC), i);
    return w->ok;
}

/* A step of the agent's search for what workers have left behind. */
int sim_worker_sweep(struct sim_node *n)
{
    if (one_in(20))
        return -1; /* a warm interpreter forks just now */
    while (n->orphans > n->hard && !one_in(4))
        n->orphans--;
    for (int i = 0; i < n->nproc; i++) {
        if (n->workers[i].unread && n->workers[i].keeps_pipes && n->orphans == n->hard)
            push(n, EV_DRAINED, MSEC, i);
    }
    return n->orphans;
}

void sim_workers_vanish(struct sim_node *n)
{
    for (int i = 0; i < n->nproc; i++) {
        if (n->workers[i].alive && !n->workers[i].dying)
            sim_check_ended(n);
        n->workers[i] = (struct sim_worker){0};
    }
    n->orphans = n->hard = 0;
}
