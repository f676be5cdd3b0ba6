/* node.h: what a feature (feature.h) may see of the agent's node: plain data, kept current by the
 * agent, and what a feature may ask of the agent. All of it is the loop's. */
#ifndef AGENT_BASE_NODE_H
#define AGENT_BASE_NODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/base/job_spec.h"
#include "agent/base/segment.h"
#include "agent/base/status.h"
#include "agent/rules/agent_state.h"
#include "core/uvx.h"
#include "rendezvous/rules/event_log.h"

/* One worker of this node in one round: made new for each round. */
struct worker {
    int local_rank, rank;
    enum worker_state state;
    pid_t pid;
    bool ok;                    /* exited with 0 */
    bool warm;                  /* the worker began as a warm interpreter */
    int attempt;                /* the restart count with which it was started */
    char dir[FAILURE_PATH_MAX]; /* the folder of the worker's own log files in this attempt; "":
                                   none */
    char error_file[FAILURE_PATH_MAX], stderr_log[FAILURE_PATH_MAX]; /* likewise */
    char killed_for[320]; /* dlaunch's reason for a signal before any failure; ""
                           */
    uint64_t started_ns, ended_ns;
    int listen_fd; /* the worker's data socket, until it is handed down; -1 */
    uint16_t port;
    struct gpu_state gpu;   /* of the worker's GPU */
    struct failure failure; /* set if the worker did not end with status 0 */
};

/* Whether the worker's process exists. */
static inline bool worker_is_alive(const struct worker *w)
{
    return w->state == WORKER_RUNNING || w->state == WORKER_EXITING;
}

struct feature;
struct node;
struct spawn_request;
struct spawner;

/* The functions by which a feature asks something of the agent. */
struct node_calls {
    /* Sends a request to every node of the job, as rdzv_request() does. False: no coordinator is in
     * reach. */
    bool (*request)(struct node *n, const struct rdzv_request *r);
    void (*answer)(struct node *n, const struct rdzv_answer *a);
    /* Does what rdzv_gather() does. */
    void (*gather)(struct node *n, const void *value, size_t len);
    void (*get_info)(struct node *n, struct rdzv_info *out);
    void (*get_status)(struct node *n, struct agent_status *out);
    /* The time at which the worker's first, or last, output was read (CLOCK_MONOTONIC); 0: the
     * worker has written none, or no output is read any more. */
    uint64_t (*first_output)(struct node *n, int local_rank);
    uint64_t (*last_output)(struct node *n, int local_rank);

    /* Fills in what spawn() needs to start the worker in this round, except its streams. */
    int (*spawn_request)(struct node *n, int local_rank, struct spawn_request *req, struct err *e);

    /* Reports that a feature whose ready(), may_start(), looked() or ended() returned false can
     * answer now. */
    void (*go_on)(struct node *n);
    /* Makes this node leave the job, because it cannot do its part in the round. */
    void (*give_up)(struct node *n, const struct err *e);
    /* Ends the job; the workers get the signal. */
    void (*leave)(struct node *n, enum stop_reason reason, int exit_code, int signo,
                  const char *text);
    /* Sends the signal to the worker and its process group; if the worker ends, `why` is the
     * message of its failure. signo 0: the caller sends a signal itself. */
    void (*kill)(struct node *n, int local_rank, int signo, const char *why);
    /* Sends SIGKILL in the same way. The worker counts as failed at once, because a process may not
     * die of SIGKILL. */
    void (*fail)(struct node *n, int local_rank, const char *why);
    /* Reports a failure that the worker itself has announced; the worker ends by the stop that
     * follows. */
    void (*abort)(struct node *n, int local_rank, int exit_code, const char *how);
    /* The state of another feature, whose header has the functions for it; NULL: the job does not
     * want the feature.
     */
    void *(*find)(const struct node *n, const struct feature *f);
    /* mpir_take_events() has said that there is something to show. */
    void (*show_processes)(struct node *n);
    /* Makes the guardian remove the file if the agent cannot; NULL: the file is gone. */
    void (*unlink_later)(struct node *n, const char *path);
};

struct node {
    const struct node_calls *calls;
    const struct job_spec *job;
    uv_loop_t *loop;
    struct uvx_scope *scope; /* for handles that stay until features are closed */
    struct spawner *spawner;
    uint64_t started_ns;
    _Atomic uint64_t *oom_reported; /* shared with the guardian, for both watches (oom.h) */
    struct event_log log;

    enum node_state state;
    const char *state_name;
    bool leaving; /* this node has left the job */

    /* Of the last round whose workers were started. */
    const struct rank_table *table; /* NULL: there was none yet */
    int group_rank;
    int restart_count;   /* the table's, or a later one under RESTART_WORKER */
    int cpus;            /* that this node may use */
    const char *log_dir; /* of the node's present attempt; "": none */
    struct segment segment;
    struct worker *workers; /* job->nproc */
};

/* Records an event of this node, now unless it has a time. */
void node_event(struct node *n, struct event e);

/* Whether the coordinator is in this process. */
bool node_leads(struct node *n);

/* Whether workers of a round are alive, or are about to be. */
static inline bool node_is_in_round(const struct node *n)
{
    return n->table && n->state != NODE_RENDEZVOUS && n->state != NODE_DONE;
}

#endif
