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
    bool warm;                  /* it began as a warm interpreter */
    int attempt;                /* the restart count with which it was started */
    char dir[FAILURE_PATH_MAX]; /* its log files' own folder in this attempt; "": none */
    char error_file[FAILURE_PATH_MAX], stderr_log[FAILURE_PATH_MAX]; /* likewise */
    char killed_for[320]; /* why dlaunch sent it a signal before any failure; "": it did not */
    uint64_t started_ns, ended_ns;
    int listen_fd; /* its data socket, until it is handed down; -1 */
    uint16_t port;
    struct failure failure; /* if it did not end with status 0 */
};

/* Whether its process exists. */
static inline bool worker_is_alive(const struct worker *w)
{
    return w->state == WORKER_RUNNING || w->state == WORKER_EXITING;
}

struct feature;
struct node;
struct spawner;

/* What a feature may ask of the agent. */
struct node_calls {
    /* To every node of the job, as rdzv_request(). False: no coordinator is in reach. */
    bool (*request)(struct node *n, const struct rdzv_request *r);
    void (*answer)(struct node *n, const struct rdzv_answer *a);
    /* As rdzv_gather(). */
    void (*gather)(struct node *n, const void *value, size_t len);
    void (*get_info)(struct node *n, struct rdzv_info *out);
    void (*get_status)(struct node *n, struct agent_status *out);
    /* When the worker's first, or last, output was read (CLOCK_MONOTONIC); 0: it has written none,
     * or no output is read any more. */
    uint64_t (*first_output)(struct node *n, int local_rank);
    uint64_t (*last_output)(struct node *n, int local_rank);

    /* What ready(), looked() or ended() of a feature waits for has come. */
    void (*go_on)(struct node *n);
    /* This node cannot do its part in the round: it leaves the job. */
    void (*give_up)(struct node *n, const struct err *e);
    /* Ends the job; the workers get the signal. */
    void (*leave)(struct node *n, enum stop_reason reason, int exit_code, int signo,
                  const char *text);
    /* The worker gets the signal, as does what is in its group; if it ends, `why` is its failure's
     * message. signo 0: the caller sends one itself. */
    void (*kill)(struct node *n, int local_rank, int signo, const char *why);
    /* The same with SIGKILL, of which the worker may not die: it counts as failed at once. */
    void (*fail)(struct node *n, int local_rank, const char *why);
    /* The worker has said itself that it fails, and how; it ends by the stop that follows. */
    void (*abort)(struct node *n, int local_rank, int exit_code, const char *how);
    /* The state of another feature, whose header says what to do with it; NULL: it is not wanted.
     */
    void *(*find)(const struct node *n, const struct feature *f);
    /* mpir_take_events() has said that there is something to show. */
    void (*show_processes)(struct node *n);
    /* The guardian removes the file if the agent cannot; NULL: it is gone. */
    void (*unlink_later)(struct node *n, const char *path);
};

struct node {
    const struct node_calls *calls;
    const struct job_spec *job;
    uv_loop_t *loop;
    struct uvx_scope *scope; /* for handles that stay until features are closed */
    struct spawner *spawner;
    uint64_t started_ns;
    _Atomic uint64_t *oom_told; /* shared with the guardian, for both watches (oom.h) */
    struct event_log log;

    enum node_state state;
    const char *state_name;
    bool leaving; /* this node has left the job */

    /* Of the last round whose workers were started. */
    const struct rank_table *table; /* NULL: there was none yet */
    int group_rank;
    int restart_count;   /* the table's, or a later one under RESTART_WORKER */
    int cpus;            /* that this node may use */
    const char *log_dir; /* of its attempt; "": none */
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
