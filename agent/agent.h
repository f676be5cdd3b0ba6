/* agent.h: one node of the job, from rendezvous to report.
 *
 *            +-------------------------- restart ---------------------------+
 *            v                                                              |
 *   INIT -> RENDEZVOUS -> STARTING -> RUNNING -> EXIT_BARRIER -> DONE       |
 *                |            |          |            |                     |
 *                +------------+----------+------------+----> STOPPING ------+
 *                                                               |
 *                                                               +--> DONE
 *
 *   RENDEZVOUS    joined, no worker alive, waiting for the nodes to be complete
 *   STARTING      complete: sockets and segment are made, then the workers
 *   RUNNING       all started; exits are counted
 *   EXIT_BARRIER  every worker here exited with 0; waiting, without limit, for the other nodes
 *   STOPPING      stop signal sent; SIGKILL after the grace; until no descendant is left
 *   DONE          the job is over for this node
 *
 * What users read keeps torchelastic's words: HEALTHY, UNHEALTHY, STOPPED, SUCCEEDED, FAILED. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include <signal.h>
#include <stdbool.h>
#include <uv.h>

#include "agent/guardian.h"
#include "agent/base/job_spec.h"
#include "agent/base/worker_status.h"
#include "core/err.h"

struct agent;
struct event_list;

/* The exit status of a job whose time was over: EX_TEMPFAIL of sysexits.h, "start it again". */
#define EXIT_TIME_LIMIT 75

struct agent_callbacks {
    void (*on_state)(void *arg); /* the state is another one; NULL is allowed */
    /* Output cannot be written, and standard error does not take the text about it. NULL is
     * allowed. */
    void (*on_unseen)(void *arg, const char *text);
    void (*on_event)(void *arg); /* the event log has grown (agent_events()); NULL is allowed */
    /* Once, when the job has ended, with the exit status and one line on why ("": all went well);
     * the agent still answers. NULL is allowed. */
    void (*on_end)(void *arg, int exit_status, const char *text);
    /* Once, when the agent is DONE and closed, with the exit status of the launcher; the report has
     * been printed, and the agent is freed. */
    void (*on_done)(void *arg, int exit_status);
    void *arg;
};

/* Starts everything that the job needs on this node. */
int agent_open(struct agent **out, uv_loop_t *loop, const struct job_spec *job,
               struct guardian_link *link, const struct agent_callbacks *cb, struct err *e);

/* The signals that the agent handles, 0-terminated: those that stop the job, and those that it
 * passes on to the workers. The guardian forwards these to the agent. */
void agent_signals(const struct job_spec *job, int out[NSIG]);

/* Stops the job as SIGTERM would; again: kills at once. what: what was received, as the report says
 * it. For the control socket. */
void agent_stop(struct agent *a, const char *what);

/* Asks something of the workers of all nodes (rdzv_types.h). False: no coordinator is in reach, and
 * only this node has been asked, or, for a restart, none. */
bool agent_request(struct agent *a, enum request_kind kind, int signo, const char *ranks);

struct agent_status {
    const char *state;  /* of the agent, as in the chart above */
    const char *health; /* torchelastic's word */
    struct rdzv_info rdzv;
    double elapsed;
    const char *lost_output; /* which output could not be written; NULL: none */
    const char *hang;        /* "SUSPECT", "HUNG"; NULL: it does not hang, or is not watched */
    const char *hang_text;
    const char *slow;      /* which ranks are slow, one line; NULL: none, or they are not watched */
    double ends_at_s;      /* Unix time when the scheduler ends the job; 0: not known */
    const char *stop_text; /* why the job stops for good; NULL: it does not */
    int nworkers;
    const struct agent_worker_status *workers; /* valid until the loop runs again */
};
void agent_get_status(struct agent *a, struct agent_status *out);

struct json_t;
/* Takes the stacks of the workers of all nodes, or of the ranks named, "0,8-15"; "": all. on_done
 * is called once, from the loop, and takes what stack_tree_json() makes, with the "text" for
 * people; NULL: the job has ended. */
void agent_stacks(struct agent *a, const char *ranks,
                  void (*on_done)(void *arg, struct json_t *stacks), void *arg);

struct event_log;
/* The operations of the workers: here all that --timeline has collected, else the last ones, and
 * the last ones of the other nodes as far as they have answered; asks them again. As
 * operations_json(), with "answered", a number of nodes; owned. */
struct json_t *agent_operations(struct agent *a);

/* Asks all nodes what they and their workers do and use, for at most `most` rows of nodes and of
 * ranks (top_rows_cut(); 0: all). on_done is called once, from the loop, and takes {"now_s" (when
 * they were asked), "state", "elapsed_s", "restarts", "nnodes", "complete" (all have answered)} and
 * what top_rows_json() adds; NULL: the job has ended. */
void agent_top(struct agent *a, size_t most, void (*on_done)(void *arg, struct json_t *top),
               void *arg);

/* The log as it is; nobody is asked for anything. */
const struct event_log *agent_log(const struct agent *a);

/* The events of the job, as far as they are known here; asks the other nodes for theirs. Valid for
 * the agent's life; they arrive by on_event. */
const struct event_list *agent_events(struct agent *a);

#endif
