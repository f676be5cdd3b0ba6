/* agent_stopping.c: how the workers of a round, and whatever they left behind, are ended. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/agent_impl.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#define SWEEP_MS 2 /* between two looks for descendants */

/* ---------------------------------------------------- descendants that the workers left behind */

static void name_unkillable(struct agent *a)
{
    pid_t children[8];
    size_t len = 0;
    int n = sweep_children(children, (int)ARRAY_LEN(children));
    if (n == 0 && access("/proc/self", F_OK) < 0) {
        snprintf(a->leftover, sizeof(a->leftover), "those that /proc does not show");
        log_error("what the workers left behind could not be killed: %s", a->leftover);
        return;
    }
    for (int i = 0; i < n && i < (int)ARRAY_LEN(children); i++) {
        char one[160];
        len += (size_t)snprintf(a->leftover + len, sizeof(a->leftover) - len, "%s%s", i ? "; " : "",
                                sweep_describe(children[i], one, sizeof(one)));
        if (len >= sizeof(a->leftover))
            break;
    }
    log_error("%d process%s could not be killed: %s", n, n == 1 ? "" : "es", a->leftover);
}

/* Goes on without what cannot be killed. It counts as ended, and this node as unfit. */
static void abandon(struct agent *a)
{
    name_unkillable(a);
    atomic_store(&a->link->page->abandoned, 1);
    rdzv_leave(a->rdzv, STOP_INTERNAL, 125, a->leftover);
    for (int i = 0; i < a->job->nproc; i++) {
        struct worker *w = &a->workers[i];
        if (w->state != WORKER_RUNNING)
            continue;
        struct reaper_exit x = {.pid = w->pid, .status = SIGKILL, .seen_ns = mono_ns()};
        worker_exited(w, &a->ctx, &x, ASKED_BY_SIGKILL);
        stdio_worker_exited(a->pump, w->local_rank);
    }
    a->nalive = 0;
    a->swept = true;
    agent_go_on_if_over(a);
}

static bool is_overdue(const struct agent *a)
{
    uint64_t ms = a->killed ? (mono_ns() - a->killed_ns) / 1000000 : 0;
    if (ms <= UNKILLABLE_MS || ms > ENDING_MS)
        return ms > UNKILLABLE_MS;
    for (int i = 0; i < a->job->nproc; i++) {
        if (a->workers[i].state == WORKER_RUNNING && dying_runs(a->workers[i].pid))
            return false;
    }
    return true;
}

static void on_sweep(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, sweep_timer);
    bool overdue = is_overdue(a);
    if (a->nalive) { /* what live workers have daemonised is left alone */
        if (overdue)
            abandon(a);
        else if (a->killed)
            agent_look_for_descendants(a, SWEEP_MS);
        return;
    }
    if (!a->killed) { /* from here on only what the workers left is alive, if anything */
        a->killed = true;
        a->killed_ns = mono_ns();
        sweep_init(&a->sweep);
    }
    if (sweep_step(&a->sweep, NULL, 0) > 0) {
        if (overdue)
            abandon(a);
        else
            agent_look_for_descendants(a, SWEEP_MS);
        return;
    }
    if (a->sweep.killed)
        log_notice("ended %u process%s that the workers had left behind", a->sweep.killed,
                   a->sweep.killed == 1 ? "" : "es");
    a->killed = false; /* there is nothing left that could not be */
    a->swept = true;
    agent_go_on_if_over(a);
}

void agent_look_for_descendants(struct agent *a, unsigned delay_ms)
{
    if (!uv_is_active((uv_handle_t *)&a->sweep_timer))
        uv_timer_start(&a->sweep_timer, on_sweep, delay_ms, 0);
}

/* ---------------------------------------------------------------------------------------- stopping
 */

void agent_kill_workers(struct agent *a)
{
    if (a->killed)
        return;
    a->killed = true;
    a->killed_ns = mono_ns();
    sweep_init(&a->sweep);
    for (int i = 0; i < a->job->nproc; i++)
        worker_signal_group(&a->workers[i], SIGKILL);
    cgroup_kill(&a->cgroup);
    agent_look_for_descendants(a, SWEEP_MS);
}

static void on_grace(uv_timer_t *t)
{
    struct agent *a = container_of(t, struct agent, grace_timer);
    if (a->nalive == 0) /* only what they wrote is waited for */
        return;
    log_notice("%d worker%s did not stop within %g s: killing", a->nalive,
               a->nalive == 1 ? "" : "s", a->job->shutdown_timeout);
    agent_kill_workers(a);
}

void agent_signal_workers(struct agent *a, int signo)
{
    for (int i = 0; i < a->job->nproc; i++)
        worker_signal_group(&a->workers[i], signo);
}

void agent_stop_workers(struct agent *a, int signo)
{
    if (a->fsm.state == STOPPING || a->fsm.state == DONE)
        return;
    fsm_move(&a->fsm, STOPPING);
    agent_signal_workers(a, signo);
    agent_signal_workers(
        a, SIGCONT); /* a stopped process does not act on a signal before it continues */
    uv_timer_start(&a->grace_timer, on_grace, (uint64_t)(a->job->shutdown_timeout * 1000), 0);
    agent_look_for_descendants(a, 0);
}
