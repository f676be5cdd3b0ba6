/* worker_group.h: the workers of this node and what they are started with, watched by and swept
 * with. It acts and decides nothing: agent/rules/agent_rules.h does. All of it is the loop's. */
#ifndef AGENT_WORKER_GROUP_H
#define AGENT_WORKER_GROUP_H

#include "agent/features.h"
#include "agent/guardian.h"
#include "agent/process/exit_notify.h"
#include "agent/process/sweep.h"
#include "agent/worker.h"

struct worker_group {
    struct node *node;          /* borrowed: the job, the round, the workers */
    struct guardian_link *link; /* borrowed */
    struct features *features;  /* borrowed; set when they are open */
    struct stdio_pump *pump;    /* NULL: closed */
    struct reaper *reaper;      /* NULL: nothing is on the loop yet */
    struct exit_notify *exit_notify;
    struct placement *placement;
    struct cgroup cgroup;
    struct log_dir log_dir;
    struct timed_calls *files; /* limits calls of the log folder's file server */
    int null_fd;
    struct worker_context ctx;
    struct worker_env_shared **env; /* of each program */
    struct variables variables;     /* of features, for all workers */
    struct sweep sweep;
    char leftover[512]; /* the processes that could not be killed; "": none */
};

/* Called with the events of workers; arg is the argument of all. */
struct worker_group_callbacks {
    void (*on_exiting)(void *arg); /* as exit_notify_new() */
    void (*on_exit)(void *arg, void *worker, const struct reaper_exit *x);
    void (*on_orphan)(void *arg, const struct reaper_exit *x);
    const struct stdio_pump_opts *pump; /* called with faults of output */
    void *arg;
};

/* Opens all but what needs a scope on the loop. On an error log_dir_close() ends g->log_dir, and
 * worker_group_free() frees the rest if there is no reaper. */
int worker_group_open(struct worker_group *g, struct node *node, struct guardian_link *link,
                      const struct worker_group_callbacks *cb, struct err *e);
/* Opens the parts that need node->scope. */
void worker_group_watch(struct worker_group *g, const struct worker_group_callbacks *cb);
void worker_group_free(struct worker_group *g); /* all handles are closed */

/* Makes the round's workers, segment and folders. node->table is the round's. */
int worker_group_make_round(struct worker_group *g, struct err *e);
/* Each worker gets a socket that listens for its data; on_loopback: for this node only. */
int worker_group_listen(struct worker_group *g, bool on_loopback, struct err *e);
uint16_t *worker_group_ports(const struct worker_group *g); /* of these; malloc'ed */
/* attempt: of a worker that is started again; 0: the round's. On an error w->failure has the
 * reason, and the worker is WORKER_EXITED if its pipes have to be drained. */
int worker_group_start(struct worker_group *g, struct worker *w, int attempt);
/* All workers of the round are started. */
void worker_group_started(struct worker_group *g);

/* Ends the operations that the workers are in; `first` as in segment_raise(), or a node. */
void worker_group_end_operations(struct worker_group *g, const struct failure *first,
                                 const char *text);
void worker_group_signal(struct worker_group *g, int signo); /* to process groups */
/* Signals the programs alone, because their helper processes would die of the signal. */
void worker_group_signal_programs(struct worker_group *g, int signo);
/* ranks: a list of ranks as text, "" for all. */
void worker_group_signal_ranks(struct worker_group *g, const char *ranks, int signo);
void worker_group_kill(struct worker_group *g);
/* Kills what the workers have left behind; first: the sweep begins. Returns how many processes are
 * left; negative: nothing can be done now. */
int worker_group_sweep(struct worker_group *g, bool first);
/* Whether a worker that is alive is about to end: it frees its memory. */
bool worker_group_is_freeing(const struct worker_group *g);
/* Names what cannot be killed, in g->leftover, and counts it as ended. */
void worker_group_abandon(struct worker_group *g);
/* Kills all and what they left behind, waiting limit_s at most, and removes what they were given.
 */
void worker_group_die(struct worker_group *g, double limit_s);
/* The round is over: no process of it is alive. */
void worker_group_end_round(struct worker_group *g);

#endif
