/* guardian.h: the process that the user started.
 *
 * It forks the agent and then does four things and nothing else: forward signals, wait, return the
 * agent's exit status, and, when the agent is gone without having cleaned up, end every descendant.
 * It is single-threaded, reads no network and holds no policy; it is a child subreaper, so whatever
 * the agent leaves behind becomes its child. The agent is a subreaper too and does the same when
 * the lifeline tells it that the guardian died. A killed guardian or a killed agent leaves nothing
 * alive; both killed in the same instant can leave grandchildren that left their session (no
 * process is left to end them; PDEATHSIG still ends the workers themselves), unless --isolate pidns
 * was asked for.
 */
#ifndef AGENT_GUARDIAN_H
#define AGENT_GUARDIAN_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/job_spec.h"

/* Shared by guardian and agent (MAP_SHARED, anonymous). The agent writes, the guardian reads. */
struct guard_page {
    _Atomic uint64_t lease_ns; /* workers may live until then (CLOCK_MONOTONIC); 0: no lease */
    _Atomic uint32_t clean;    /* 1: the agent has ended every worker itself */
    _Atomic uint32_t nworkers; /* workers started and not yet reaped, for the message */
    char cgroup[256];          /* to be killed and removed; "" none */
    char unlink_path[2][256];  /* files to remove when the agent cannot: control socket, ... */
};

struct guardian_link {
    int lifeline;   /* readable (end of file) when the guardian is gone; owned by the agent */
    pid_t guardian; /* its pid, to compare getppid() with */
    struct guard_page *page;
};

struct guardian_opts {
    enum isolation isolation;
    const int *forward_signals; /* 0-terminated: sent on to the agent as they come */
    double stop_grace;          /* seconds before descendants that do not die are reported */
};

/* Forks; runs agent_main(arg, link) in the child, whose return value is its exit status; supervises
 * it in the parent. Returns the status that the dlaunch command exits with: the agent's, or
 * 128+signal when a signal killed it (after everything it had started is dead). Call early: the
 * child inherits every open descriptor and the parent keeps none that matters.
 * The agent runs in a session of its own, with default signal dispositions and an empty mask,
 * except that a signal that was ignored when dlaunch was started (nohup) stays ignored in both. */
int guardian_run(const struct guardian_opts *opts,
                 int (*agent_main)(void *arg, struct guardian_link *), void *arg);

#endif
