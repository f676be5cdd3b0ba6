/* agent_rules.h: what the agent of a node decides. No I/O, no clock, no libuv.
 *
 *            +-------------------------- STOPPED ---------------------------+
 *            v                                                              |
 *   INIT -> RENDEZVOUS -> STARTING -> RUNNING -> EXIT_BARRIER -> DONE       |
 *                |            |          |            |                     |
 *                +------------+----------+------------+----> STOPPING ------+
 *                                                               |
 *                                                               +--> DONE
 *
 * A job that was stopped mostly ends in RENDEZVOUS, from where it goes to DONE.
 *
 * Events are passed in with the time; after each of them the driver (agent/agent.c) takes actions
 * out with agent_rules_next() until there is none, and carries them out in their order. Times are
 * nanoseconds of a monotonic clock. Not for several threads.
 *
 * Happy path: prepare, ready -> PREPARED; run -> BEGIN; begun -> START for each worker; started;
 * exited, drained for each; SWEEP; swept -> DONE; finish -> FINISH; written -> CLOSE.
 *
 *   a worker fails, or begins to    ABORT and FAILED at once; STOPPING, waiting for no answer
 *   a worker cannot be started      the same; those behind it are not started
 *   the same, by the node's fault,
 *   and enough others can go on     LEAVE with status 125 (agent_rules_costs_node())
 *   a worker fails, and each is
 *   restarted by itself (alone)     FAILED; respawn -> START
 *   another node fails or leaves    stop -> ABORT, STOPPING
 *   a request to stop, --timeout    LEAVE, STOPPING
 *   --end_warning                   the same, with a signal and a grace of their own
 *   a further request               SIGKILL at once, and no wait for readers and other nodes
 *   the round cannot be made        LEAVE with status 125
 *   the lease is over               SIGKILL
 *   a process outlives SIGKILL
 *   for AGENT_UNKILLABLE_NS         ABANDON, LEAVE with status 125
 *   the guardian is gone            DIE: everything is killed here and now
 *
 * STOPPING ends when no worker and no descendant of one is alive, all output has been read and
 * ENDED has been answered: then STOPPED, and the next round or the end.
 *
 * Invariants (agent_rules_check()): the counters agree with the workers; a worker starts in
 * STARTING, or in RUNNING if it has failed and is restarted by itself; one that has exited with 0
 * does not start again in its round; no round begins once this node has left the job or its end is
 * decided; a round is left only when no process of it is alive; while a process may be alive after
 * SIGKILL there is a time at which the agent goes on without it.
 *
 * What outlives a round: whether this node leaves, whether the job ends and why, when the first
 * request to stop came, whether the agent hurries, the lease, what was abandoned. All else is made
 * new by each prepare. */
#ifndef AGENT_RULES_AGENT_RULES_H
#define AGENT_RULES_AGENT_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/rules/agent_state.h"
#include "core/log.h"
#include "rendezvous/rules/rdzv_types.h"

#define AGENT_SAME_REQUEST_NS 500000000u /* two requests to stop in this time are one */
#define AGENT_SWEEP_NS        2000000u   /* between two searches for descendants */
#define AGENT_STUCK_NS        100000000u /* between two looks at processes that do not die */
/* A process that is alive so long after SIGKILL counts as one that cannot be killed. */
#define AGENT_UNKILLABLE_NS UINT64_C(10000000000)
/* The limit for an exiting process: freeing memory takes 100 ms per GB. */
#define AGENT_ENDING_NS UINT64_C(600000000000)
#define AGENT_UNREAD_NS                                                       \
    UINT64_C(5000000000) /* for a reader that takes nothing, in a stopped job \
                          */
#define AGENT_NEVER UINT64_MAX

struct agent_rules_config {
    int nproc;              /* workers of this node; 0: none, and no round begins here */
    bool alone;             /* RESTART_WORKER: a worker that fails is restarted by itself */
    uint64_t shutdown_ns;   /* grace between stop signal and SIGKILL */
    uint64_t timeout_at_ns; /* --timeout; 0: none */
    double timeout_s;       /* the limit as the user gave it, for messages */
    bool warned;            /* --end_warning */
    int warn_signal;        /* by which workers learn of the end of the job's time */
    uint64_t warn_grace_ns; /* from then until SIGKILL */
    const char *warn_name;  /* that signal's name */
    const char *host;       /* this node's name */
};

struct agent_rules;

struct agent_rules *agent_rules_new(const struct agent_rules_config *config);
void agent_rules_free(struct agent_rules *r); /* NULL is allowed */

/* ------------------------------------------------------------------------------------- the round
 */

/* The rendezvous is joined. */
void agent_rules_joined(struct agent_rules *r);
/* The nodes are complete: a round begins to be prepared. May come again without run. False: this
 * node leaves, and prepares nothing. */
bool agent_rules_prepare(struct agent_rules *r, uint64_t now);
/* This node is ready for the round: answers prepare, once in a round. */
void agent_rules_ready(struct agent_rules *r);
/* Every node is prepared. False: this node does not run the round, since it leaves. */
bool agent_rules_run(struct agent_rules *r);
/* BEGIN is carried out: the round's segment and folders are there, and a warm interpreter if one
 * was worth waiting for. */
void agent_rules_begun(struct agent_rules *r, uint64_t now);
/* A part of the round could not be made, `text` says why: this node leaves. */
void agent_rules_cannot(struct agent_rules *r, const char *text, uint64_t now);

/* START is carried out: the worker's process exists. Its program need not run yet. */
void agent_rules_started(struct agent_rules *r, int local_rank, uint64_t now);
/* START has failed: there is no process. drains: there are pipes whose end will be reported.
 * trouble: why this node leaves; NULL: the worker has failed. */
void agent_rules_not_started(struct agent_rules *r, int local_rank, bool drains,
                             const char *trouble, uint64_t now);
/* Whether a worker that could not be started costs the job this node, and not its life: the trouble
 * is the node's own (a limit, memory, a folder, a descriptor, anything but the program itself), and
 * the other nodes of the round are enough to go on. A part of the round that cannot be made is
 * always the node's own trouble: agent_rules_cannot(). */
bool agent_rules_costs_node(const struct failure *f, int nnodes, int min_nodes);
/* The worker's process has begun to end, with a status that is a failure, or says that it fails. */
void agent_rules_failing(struct agent_rules *r, int local_rank, uint64_t now);
/* The worker's process is reaped. False: it had been given up as one that cannot be killed. */
bool agent_rules_exited(struct agent_rules *r, int local_rank, bool ok, uint64_t now);
/* All that it has written is read. False: nobody waits for that. */
bool agent_rules_drained(struct agent_rules *r, int local_rank, uint64_t now);
/* The coordinator orders that the worker be started again. */
void agent_rules_respawn(struct agent_rules *r, int local_rank, int attempt, uint64_t now);

/* SWEEP is carried out. left: descendants that still exist; negative: no step was possible now. */
void agent_rules_swept(struct agent_rules *r, int left, uint64_t now);
/* STUCK is answered. freeing: a worker that is alive is about to end. */
void agent_rules_stuck(struct agent_rules *r, bool freeing, uint64_t now);
/* ENDED is answered, or can be now: whether the round's end may be reported. */
void agent_rules_ended(struct agent_rules *r, bool may, uint64_t now);

/* The round is over on all nodes. */
void agent_rules_stop(struct agent_rules *r, const struct rdzv_stop *why, uint64_t now);

/* --------------------------------------------------------------------------------------- the end
 */

/* A signal that stops the job, or dlaunchctl stop; what: its name, for messages. over: the job's
 * time is over, and the scheduler sends the signal. */
void agent_rules_request(struct agent_rules *r, enum stop_reason reason, int signo,
                         const char *what, bool over, uint64_t now);
/* dlaunchctl kill. */
void agent_rules_kill(struct agent_rules *r, const char *text, uint64_t now);
/* --end_warning: the job's time ends; `text` says when. */
void agent_rules_warn(struct agent_rules *r, const char *text, uint64_t now);
/* Something on this node ends the job: it leaves, and the workers get the signal. */
void agent_rules_leave(struct agent_rules *r, enum stop_reason reason, int exit_code, int signo,
                       const char *text, uint64_t now);
/* LOOK is answered: what there is to see of the workers has been seen. */
void agent_rules_looked(struct agent_rules *r, uint64_t now);
/* The workers may live until then; 0: without limit. None starts behind that time. */
void agent_rules_lease(struct agent_rules *r, uint64_t until_ns, uint64_t now);
/* The lease is over. */
void agent_rules_fence(struct agent_rules *r, uint64_t now);
void agent_rules_guardian_gone(struct agent_rules *r, uint64_t now);
/* The job is over for this node. */
void agent_rules_finish(struct agent_rules *r, int exit_code, uint64_t now);
/* The output of FINISH is written; all: its readers have taken all of it. */
void agent_rules_written(struct agent_rules *r, bool all);

void agent_rules_tick(struct agent_rules *r, uint64_t now);
/* The time at which a tick is due; AGENT_NEVER: never. */
uint64_t agent_rules_deadline(const struct agent_rules *r);

/* -------------------------------------------------------------------------------------- actions */

enum agent_act {
    AGENT_LOG,      /* level, text */
    AGENT_STATE,    /* the state is another one than `from` */
    AGENT_PREPARED, /* tell the rendezvous that this node is prepared */
    AGENT_BEGIN,    /* make the round's segment and folders; answer: begun or cannot */
    AGENT_START,    /* start the worker; attempt 0: that of the round; answer: (not_)started */
    AGENT_STARTED,  /* all workers of the round are started */
    AGENT_FAILED,   /* report the worker's failure to the rendezvous */
    AGENT_END_OPERATIONS,  /* end the operations of this node: the worker has failed, or, if
                     local_rank is -1, as the newest stop says */
    AGENT_SIGNAL_GROUPS,   /* signo to the process groups of the workers that are alive */
    AGENT_SIGNAL_PROGRAMS, /* signo to these workers themselves */
    AGENT_KILL,            /* SIGKILL to all groups, and to the cgroup */
    AGENT_SWEEP,           /* a step of the sweep; first: of a new one; answer: swept */
    AGENT_STUCK,           /* look at the workers that do not die; answer: stuck */
    AGENT_ABANDON,         /* name what cannot be killed, leave the job with status 125; the workers
                              that are alive count as ended */
    AGENT_ENDED,           /* ask whether the round's end may be reported; answer: ended */
    AGENT_DONE,            /* tell the rendezvous that every worker has exited with 0 */
    AGENT_STOPPED, /* report the workers of the round to the rendezvous; none_ran: there were
                      none */
    AGENT_LEAVE,   /* tell the rendezvous that this node leaves: reason, exit_code, text */
    AGENT_LOOK,    /* let features look at the workers first: reason; answer: looked */
    AGENT_LEASE,   /* until_ns, for the guardian */
    AGENT_FINISH,  /* report, write out what is left; answer: written */
    AGENT_HURRY,   /* wait no longer: for readers before CLOSE, for other nodes behind it */
    AGENT_CLOSE,   /* end the agent */
    AGENT_DIE,     /* kill everything now, and end without the loop */
};

/* text is valid until the next call. */
struct agent_action {
    enum agent_act act;
    enum log_level level;
    enum node_state from;
    int local_rank, attempt, signo, exit_code;
    enum stop_reason reason;
    bool first, none_ran;
    uint64_t until_ns;
    char text[512];
};

/* The next thing to do; false when there is none. */
bool agent_rules_next(struct agent_rules *r, struct agent_action *out);

/* ---------------------------------------------------------------------------------------- state */

enum node_state agent_rules_state(const struct agent_rules *r);
const char *agent_rules_state_name(const struct agent_rules *r);
enum worker_state agent_rules_worker(const struct agent_rules *r, int local_rank);
int agent_rules_alive(const struct agent_rules *r); /* processes of workers */
bool agent_rules_leaving(const struct agent_rules *r);
/* Why the job stops for good; NULL: it does not. Valid for the rules' life. */
const char *agent_rules_why(const struct agent_rules *r);
/* The answers that features would give to ready, looked or ended now. */
enum agent_awaits {
    AGENT_AWAITS_NOTHING,
    AGENT_AWAITS_READY,
    AGENT_AWAITS_START, /* the round is made */
    AGENT_AWAITS_LOOK,
    AGENT_AWAITS_ENDED
};
enum agent_awaits agent_rules_awaits(const struct agent_rules *r);
/* Why a look at the workers is awaited. */
enum stop_reason agent_rules_look_reason(const struct agent_rules *r);
/* Whether a round was run that has not been reported as stopped, or has just been. */
bool agent_rules_in_round(const struct agent_rules *r);
/* Whether the round stops because of a failure. */
bool agent_rules_failed(const struct agent_rules *r);
bool agent_rules_killed(const struct agent_rules *r); /* SIGKILL was sent to all */
/* Of the launcher, once FINISH has come. */
int agent_rules_exit_status(const struct agent_rules *r);
/* Whether the exit status is the job's. A node that had to leave processes behind ends with a
 * status of its own. */
bool agent_rules_tells_result(const struct agent_rules *r);

/* Aborts unless the invariants hold. Called after each event in builds for tests, and by the
 * simulator. */
void agent_rules_check(const struct agent_rules *r);

#endif
