/* feature.h: what the agent can do besides running workers. A feature stands in its own room with
 * its own state, sees the node (node.h), and is told of the agent's life by these callbacks. The
 * table in agent/features.c has a row for each feature; no other file knows them.
 *
 * All callbacks are optional and come on the loop, in the order of the table. After open they come
 * only if it has set *state, which is their first argument. State of a round lies in a struct of
 * its own, made new in prepare or begin. */
#ifndef AGENT_BASE_FEATURE_H
#define AGENT_BASE_FEATURE_H

#include "agent/base/node.h"
#include "core/bytes.h"
#include "core/err.h"
#include "rendezvous/rules/rdzv_msg.h"

struct report_input;
struct spawn_request;

/* Strings "NAME=value"; owned. {0} is empty. */
struct variables {
    char **v; /* NULL-terminated; NULL: none */
    size_t n;
};
void variables_add(struct variables *v, char *owned);
void variables_fini(struct variables *v);

/* Processes; owned. {0} is empty. */
struct pids {
    pid_t *v;
    size_t n;
};
void pids_add(struct pids *p, pid_t pid);
void pids_fini(struct pids *p);

/* The variables and descriptors that features add to the start of one worker. */
struct worker_extras {
    struct variables env; /* the same names for all workers of a round */
    int fds[4], nfds;     /* handed down under their numbers, then closed */
    bool session;         /* the worker gets a session of its own */
};
void worker_extras_fini(struct worker_extras *x);

struct feature {
    const char *name;

    /* Called before the rendezvous. Sets *state if the job wants the feature. An error ends the
     * launch; *state, if set, is freed then. */
    int (*open)(void **state, struct node *n, struct err *e);

    /* A round is being prepared; no worker is alive. May come again without begin. */
    void (*prepare)(void *state);
    /* Whether the node is ready for the round. Asked until every feature says so; none behind one
     * that does not is asked. Who says false calls go_on() later, not from inside. */
    bool (*ready)(void *state);
    /* The round begins: node->table and the segment are those of this round, and no worker has been
     * started. An error makes this node leave. */
    int (*begin)(void *state, struct err *e);
    /* The round is made: whether its workers may be started. As ready(); a stop ends the wait. */
    bool (*may_start)(void *state);
    /* Adds to the environment of all workers of the round, below what the user sets in [env]. */
    void (*variables)(void *state, struct variables *out);
    /* node->state is another one than `from`. */
    void (*state_changed)(void *state, enum node_state from);

    /* A worker is about to be started. An error makes the start fail. */
    int (*worker_starts)(void *state, const struct worker *w, struct worker_extras *x,
                         struct err *e);
    /* Starts the worker's process itself, without waiting; *pid and *pidfd are then as after
     * spawn_begin(). False: the feature does not, and *req is as it was. */
    bool (*worker_takes)(void *state, const struct worker *w, const struct spawn_request *req,
                         pid_t *pid, int *pidfd);
    void (*worker_started)(void *state, const struct worker *w);
    /* The worker's process has begun to end, or is reaped; nothing has been concluded from that.
     * May come twice. */
    void (*worker_exits)(void *state, const struct worker *w);
    /* A worker has ended: w->failure says how, and may be added to. by_dlaunch: dlaunch has killed
     * the worker. */
    void (*worker_failed)(void *state, struct worker *w, bool by_dlaunch);
    /* Returns why the worker's exit with status 0 is a failure; NULL: the exit is no failure. */
    const char *(*worker_fault)(void *state, const struct worker *w);
    /* The worker's process is reaped, or could not be started; the output may still be read. */
    void (*worker_ended)(void *state, const struct worker *w);
    /* All that the worker has written is read. */
    void (*worker_drained)(void *state, const struct worker *w);

    /* The log of events has grown (node->log). */
    void (*log_grown)(void *state);
    /* A request of dlaunchctl or of a feature, on any node. True: the request belongs to this
     * feature. Not called in NODE_DONE. */
    bool (*request)(void *state, const struct rdzv_request *r);
    /* The answer of a node to a request of this one. True: the answer belongs to this feature. */
    bool (*answer)(void *state, const struct rdzv_answer *a);
    /* Makes one answer of several to a request, if the request belongs to this feature, as merge_fn
     * does. Called without the state, and on any node. */
    bool (*merge)(const struct rdzv_answers *answers, struct buf *out);
    /* The values of all nodes, in their order (rdzv_gather()). */
    void (*gathered)(void *state, struct rd values, int nnodes);

    /* --timeout or SIGQUIT is about to end the job: whether the feature has seen what it wants to
     * see of the workers. As ready(); a further request to stop ends the wait. */
    bool (*looked)(void *state, enum stop_reason reason);
    /* Why the round ends, before operations that are under way are ended. May come again, with a
     * better reason. */
    void (*stops)(void *state, const struct rdzv_stop *why);
    /* No process of a stopped round is alive. Returns whether the end of the round may be reported;
     * as with ready(), false delays the end until the feature calls node_calls.go_on(). */
    bool (*ended)(void *state);
    /* Called then: completes the record of a worker that did not end well. */
    void (*complete)(void *state, struct worker *w);

    /* Adds the processes that must not be taken for leftovers of workers. False: there are some
     * whose pids the feature does not know yet. */
    bool (*helpers)(void *state, struct pids *out);
    /* Every process that this node has started is about to be killed: the feature ends its own. */
    void (*killed)(void *state);
    /* A process that is no worker's has been reaped. */
    void (*reaped)(void *state, pid_t pid);
    /* Adds to the status that displays show. */
    void (*status)(void *state, struct agent_status *out);
    /* The job is over for this node: NODE_DONE. */
    void (*finish)(void *state, const struct rdzv_result *result);
    /* Adds to the report, after finish. The added texts live until free. */
    void (*report)(void *state, struct report_input *in);

    /* Closes handles of its own and ends threads, then calls back, perhaps at once. node->scope is
     * closed after that. */
    void (*close)(void *state, void (*on_closed)(void *arg), void *arg);
    /* Frees the state; no handle is open any more. */
    void (*free)(void *state);
};

#endif
