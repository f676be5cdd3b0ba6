/* agent_impl.h: what agent.c, agent_failing.c, agent_stopping.c and agent_signals.c share. */
#ifndef AGENT_AGENT_IMPL_H
#define AGENT_AGENT_IMPL_H

#include "agent/agent.h"
#include "agent/process/dying.h"
#include "agent/device/gpu_watch.h"
#include "agent/own_name.h"
#include "agent/process/sweep.h"
#include "agent/worker.h"
#include "core/fsm.h"
#include "core/uvx.h"

#define MAX_SIGNALS NSIG /* each once */

/* After SIGKILL; then a process counts as one that cannot be killed. */
#define UNKILLABLE_MS 10000
#define ENDING_MS     600000 /* the same for one that gives back its memory: 100 ms for each GB */
#define IMPATIENT_MS  100    /* so long the last words wait for their reader after a signal */
#define UNREAD_S      5      /* so long the last output of a job that was stopped waits for one */

enum { INIT, RENDEZVOUS, STARTING, RUNNING, EXIT_BARRIER, STOPPING, DONE };

struct agent {
    struct fsm fsm;
    uv_loop_t *loop;
    const struct job_spec *job;
    struct guardian_link *link;
    void (*on_done)(void *arg, int exit_status);
    void *arg;
    uint64_t started_ns;

    struct uvx_scope scope, signal_scope;
    uv_signal_t signals[MAX_SIGNALS];
    int nsignals;
    uv_poll_t lifeline;
    uv_timer_t job_timer;   /* --timeout */
    uv_timer_t grace_timer; /* STOPPING: SIGKILL when it fires */
    uv_timer_t sweep_timer; /* looks for descendants */

    struct rdzv *rdzv;     /* NULL: closed */
    struct rdzv_info info; /* as it was at the end */
    struct own_name *own_name;
    struct stdio_pump *pump;
    struct spawner *spawner;
    struct reaper *reaper;
    struct dying *dying;
    struct placement *placement;
    struct cgroup cgroup;
    struct oom_watch oom;
    struct log_dir log_dir;
    int null_fd;

    /* The round. */
    struct worker *workers; /* job->nproc */
    struct segment segment;
    char *recorded; /* collective operations when the round failed, for the report; NULL: none */
    struct worker_context ctx;
    struct worker_env_shared *env;
    bool preparing; /* on_prepare has not been answered */
    int nalive;     /* processes of workers */
    int nunread;    /* workers whose output is still being read */
    int nok;        /* workers that exited with 0 */
    int world_size;

    uint64_t lease_ns; /* of the guardian; 0: none */

    struct gpu_watch *gpus;     /* NULL: no worker uses one, as far as is known */
    bool gpus_ready;            /* they are fit for this round */
    bool gpus_asked, gpus_told; /* what has happened to them in it */

    bool swept; /* no descendant besides the workers is left */

    /* The stop. */
    bool leaving;       /* this node has left the job */
    bool failed;        /* something has, which is why the round stops */
    bool stopped_told;  /* rdzv_stopped() has been called for this round */
    bool killed;        /* SIGKILL has been sent, and not all have died of it */
    uint64_t killed_ns; /* when */
    struct sweep sweep;
    char leftover[512]; /* what could not be killed; "" nothing */

    int usable_cpus;
    int exit_status;
    int nclosing;
    struct agent_worker_status *status; /* for agent_get_status */
};

/* What this node's workers are in is kept for the report, as long as it can be seen. */
void agent_keep_recorded(struct agent *a);
/* The same, and ends these operations; `first` as in segment_raise(). */
void agent_raise_abort(struct agent *a, const struct failure *first, const char *text);
/* w->failure is known: first of all the operations of this node that wait for it end, */
void agent_tell_neighbours(struct agent *a, const struct worker *w);
/* then the coordinator hears of it, and the node's other workers are stopped. */
void agent_worker_failed(struct agent *a, struct worker *w);
void agent_on_dying(void *arg); /* of struct dying */

/* STOPPING, once a round: `signo` to all workers, SIGKILL after the grace. */
void agent_stop_workers(struct agent *a, int signo);
void agent_signal_workers(struct agent *a, int signo);
void agent_kill_workers(struct agent *a); /* once a round */
/* From `delay_ms` on, once no worker is alive: ends what they left, and the agent goes on. */
void agent_look_for_descendants(struct agent *a, unsigned delay_ms);

/* Whoever reads our output, or does not, is not waited for. Outside of struct agent for the sake of
 * a signal handler. */
extern atomic_bool agent_hurry;
void agent_signals_open(struct agent *a);
/* While the loop stands still: a stop signal sets agent_hurry at once, unless it is the one that
 * ended the job, come twice; the guardian's death does, and the end of --timeout, UNREAD_S from now
 * at the soonest. */
void agent_signals_hurry(struct agent *a);
/* Nothing ends by them from here on. */
void agent_signals_close(struct agent *a, void (*on_closed)(void *arg));

/* In agent.c. This node leaves the job; a signal's number is what the workers get. */
void agent_leave(struct agent *a, enum stop_reason reason, int exit_code, int signo,
                 const char *text);
/* When all have ended and all output is read: the next state. */
void agent_go_on_if_over(struct agent *a);

#endif
