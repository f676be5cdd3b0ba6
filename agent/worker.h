/* worker.h: one worker of this node through a round: start it, classify its end, record it. */
#ifndef AGENT_WORKER_H
#define AGENT_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/base/node.h"
#include "agent/device/placement.h"
#include "agent/features.h"
#include "agent/output/log_dir.h"
#include "agent/output/stdio.h"
#include "agent/process/cgroup.h"
#include "agent/process/reaper.h"
#include "agent/process/spawn.h"
#include "agent/worker_env.h"

/* The way in which dlaunch had asked the workers to end when one of them ended. */
enum worker_asked {
    ASKED_NOTHING,
    ASKED_TO_STOP,     /* no failure before */
    ASKED_FOR_FAILURE, /* to stop, because of a failure */
    ASKED_BY_SIGKILL,
};

/* The inputs of starting a worker that all workers of a round share. Everything is borrowed. */
struct worker_context {
    const struct node *node;
    struct features *features;         /* NULL: none */
    const struct variables *variables; /* of features, for all workers */
    struct reaper *reaper;
    struct stdio_pump *pump;
    const struct placement *placement;
    const struct cgroup *cgroup;
    const struct log_dir *log_dir;
    struct timed_calls *files;      /* the server of the log directory may not answer */
    struct worker_env_shared **env; /* the common part of the environments, for each program */
    int store_port; /* port of the store on this node's loopback; 0: the table's address */
    int stdin_fd;   /* /dev/null, for workers without input */
};

/* Resets the worker for another round; only the data socket, which belongs to the new round, is
 * kept. */
void worker_renew(struct worker *w);

/* Starts the worker; the reaper returns `tag` with its exit. On an error no process exists, and
 * w->failure has the reason (FAILURE_EXEC, 125 to 127); the worker is WORKER_EXITED if its pipes
 * have to be drained, else WORKER_CLOSED. */
int worker_start(struct worker *w, const struct worker_context *ctx, void *tag, struct err *e);

/* The worker cannot be started, and nothing of it is there: fills in w->failure; WORKER_CLOSED. */
void worker_cannot_start(struct worker *w, const struct worker_context *ctx, const struct err *e);

/* All that the worker is started with but its streams. */
int worker_request(const struct worker *w, const struct worker_context *ctx,
                   struct spawn_request *req, struct err *e);

/* The worker has called MPI_Abort or the like: fills in w->failure, as if it had exited. */
void worker_aborted(struct worker *w, const struct worker_context *ctx, int exit_code,
                    const char *how);

/* The worker's process has begun to end, with this status, which is not 0: fills in w->failure. */
void worker_exiting(struct worker *w, const struct worker_context *ctx, int status);

/* The worker's process has ended. Fills in w->ok, or w->failure without tail and error file. */
void worker_exited(struct worker *w, const struct worker_context *ctx, const struct reaper_exit *x,
                   enum worker_asked asked);

/* Everything it wrote has been read: adds the error file's message, the tail and the log path. */
void worker_closed(struct worker *w, const struct worker_context *ctx);

/* Copies the worker's error file to this process's own TORCHELASTIC_ERROR_FILE, for a launcher
 * around this one. */
void worker_hand_up_error_file(const struct worker *w, const struct worker_context *ctx);

/* Sends a signal to its process group, and to the process itself when the group is not there yet.
 */
void worker_signal_group(const struct worker *w, int signo);

void worker_status(const struct worker *w, const struct job_spec *job,
                   struct agent_worker_status *out);

#endif
