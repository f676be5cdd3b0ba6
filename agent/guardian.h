/* guardian.h: the process that the user started.
 *
 * It forks the agent and then does four things and nothing else: forward signals, wait, return the
 * agent's exit status, and, when the agent is gone without having cleaned up or its lease has run
 * out, end every descendant.
 * It is single-threaded, reads no network and holds no policy; it is a child subreaper, so whatever
 * the agent leaves behind becomes its child. The agent is a subreaper too and does the same when
 * the lifeline tells it that the guardian died. A killed guardian or a killed agent leaves nothing
 * alive; both killed in the same instant can leave what the workers have started (no process is
 * left to end it; PDEATHSIG still ends the workers themselves), unless --isolate pidns was asked
 * for. The agent's process is called "dl-agent", so that `killall dlaunch` and `pkill
 * dlaunch` reach the guardian alone.
 */
#ifndef AGENT_GUARDIAN_H
#define AGENT_GUARDIAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "agent/base/job_spec.h"

/* Shared by guardian and agent (MAP_SHARED, anonymous). The agent writes, the guardian reads. The
 * strings and the lease are set with the functions below. */
struct guardian_page {
    _Atomic uint64_t
        lease_ns;           /* workers may live until then (lease_clock_ns()); 0: without limit */
    _Atomic uint32_t clean; /* 1: the agent has ended every worker itself */
    _Atomic uint32_t abandoned;    /* 1: some processes did not die, and the agent has named them */
    _Atomic uint32_t nworkers;     /* workers started and not yet reaped, for messages */
    _Atomic uint32_t suspended;    /* 1: the agent stops, or is stopped, by guardian_suspend() */
    _Atomic uint32_t heard;        /* stop signals that the agent has handled */
    _Atomic uint32_t sent;         /* stop signals that the guardian, which writes it, passed on */
    _Atomic uint32_t refused;      /* 1: the agent does not stop for the last SIGTSTP */
    _Atomic uint64_t oom_reported; /* of both watches for kills by the kernel (oom.h) */
    char cgroup[256];              /* to be killed and removed; "" none */
    char unlink_path[4][256];      /* files and empty directories to remove when the agent cannot */
};

struct guardian_link {
    int lifeline;   /* at end of file when the guardian is dead; owned by the agent, which then ends
                       everything with sweep_run() and exits */
    pid_t guardian; /* the guardian's pid as getppid() shows it (0 under ISOLATE_PIDNS) */
    struct guardian_page *page;
    timer_t fuse; /* a timer of the agent, which kills it soon after the lease's end; see below */
    bool fused;   /* there is one */
};

/* A stop signal so long after the first one is a further one, which kills. */
#define GUARDIAN_FURTHER_S 0.5
/* The time for an agent to handle a further request to stop: an agent whose loop does not hang
 * needs less. */
#define GUARDIAN_REACT_S 3

struct guardian_opts {
    enum isolation isolation;
    const int *forward_signals; /* 0-terminated: sent on to the agent as they come. SIGTSTP and
                                   SIGCONT always are, signals ignored at the start never; of
                                   SIGTERM, SIGINT, SIGHUP, SIGQUIT those not listed kill the
                                   guardian, others have no effect */
    const int *stop_signals;    /* 0-terminated, some of those: the agent is to handle a further one
                                   within GUARDIAN_REACT_S, or everything is ended. NULL: none */
    double stop_grace;          /* seconds before descendants that do not die are reported */
};

/* Forks; runs agent_main(arg, link) in the child, whose return value is its exit status; supervises
 * it in the parent. Returns the status that the dlaunch command exits with: the agent's, or
 * 128+signal when a signal killed it (after everything it had started is dead), or 125: the agent
 * exited with 0 and without `clean`, its lease ran out, a descendant does not die, or the isolation
 * asked for is not permitted. What is not the agent's to say has then been printed. Call early: the
 * child inherits every open descriptor and the parent keeps none that matters.
 * The agent runs in a session of its own, with default signal dispositions, except that a signal
 * that was ignored when dlaunch was started (nohup) stays ignored in both. The signals that are
 * forwarded are blocked in it, until it is ready for them.
 * SIGTSTP: the agent answers by guardian_suspend(), its workers being stopped, and the guardian
 * then stops too and gives the terminal back to the shell; or by guardian_refuse_suspend(). A
 * SIGCONT that comes at any time after the SIGTSTP continues all of them. (What an agent killed in
 * that state leaves behind ends when the guardian is continued.) Under ISOLATE_PIDNS, where the
 * agent cannot stop itself, SIGTSTP is dropped.
 * Other children that come to it, such as a container's orphans to its first process, are reaped
 * while the agent runs; what of them is alive at a good end is left to the kernel by process 1. */
int guardian_run(const struct guardian_opts *opts,
                 int (*agent_main)(void *arg, struct guardian_link *), void *arg);

/* Leases. When the lease has run out, the guardian ends everything. That must not fail because
 * somebody has stopped guardian and agent, while the workers run on: the other nodes begin the next
 * round then. So the kernel helps. A timer of the guardian sends SIGCONT to it at the lease's end.
 * A timer of the agent, which every renewal moves on, sends SIGKILL to it a moment later, and with
 * the agent its workers die (PDEATHSIG). That is for what SIGCONT does not continue, a debugger or
 * a frozen cgroup: there, what the workers have started themselves ends when the guardian runs
 * again; under ISOLATE_PIDNS the same is true of the workers, since the first process of a PID
 * namespace does not die of its own timer. */

/* For the agent: the workers may live until `until_ns` of lease_clock_ns() (0: without limit), or
 * longer if an earlier call said so. Wakes the guardian when it has to look again. */
void guardian_set_lease(struct guardian_link *link, uint64_t until_ns);

/* Called by the agent: the guardian is to show new processes to a debugger (mpir.h). */
void guardian_show(struct guardian_link *link);

/* Called by the agent after a SIGTSTP: stops this process until a SIGCONT comes to the guardian or
 * to it. */
void guardian_suspend(struct guardian_link *link);
/* Called by the agent after a SIGTSTP that it does not follow: this process goes on. */
void guardian_refuse_suspend(struct guardian_link *link);

/* Extends an existing lease to that time, on any thread, without waiting. */
void guardian_extend_lease(struct guardian_link *link, uint64_t until_ns);

/* For the agent: writes a path into page->cgroup or page->unlink_path[i]; the guardian never sees
 * half of it. NULL or "" removes the path. False if it is too long (nothing is set then). */
bool guardian_set_path(char field[256], const char *path);

/* Removes what unlink_path names. */
void guardian_unlink(const struct guardian_page *page);

#endif
