/* worker.h: one worker of this node through a round: start it, classify its end, record it. */
#ifndef AGENT_WORKER_H
#define AGENT_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/process/cgroup.h"
#include "agent/base/job_spec.h"
#include "agent/mpi/mpi.h"
#include "agent/output/log_dir.h"
#include "agent/process/oom.h"
#include "agent/device/placement.h"
#include "agent/process/reaper.h"
#include "agent/base/segment.h"
#include "agent/process/spawn.h"
#include "agent/process/warm_pool.h"
#include "agent/output/stdio.h"
#include "agent/worker_env.h"
#include "agent/base/worker_status.h"

enum worker_state {
    WORKER_IDLE,    /* not started in this round */
    WORKER_RUNNING, /* its process is alive */
    WORKER_EXITING, /* its process is not reaped yet, but `failure` is complete but for the tail */
    WORKER_EXITED,  /* its process is reaped; its pipes may still be read */
    WORKER_CLOSED,  /* everything that it wrote has been read, too */
};

/* How dlaunch had asked the workers to end when one of them ended. */
enum worker_asked {
    ASKED_NOTHING,
    ASKED_TO_STOP,     /* no failure before */
    ASKED_FOR_FAILURE, /* to stop, because of a failure */
    ASKED_BY_SIGKILL,
};

struct worker {
    int local_rank, rank;
    enum worker_state state;
    pid_t pid;
    bool ok;     /* exited with 0 */
    bool warm;   /* it began as a warm interpreter */
    int attempt; /* the restart count with which it was started */
    char error_file[FAILURE_PATH_MAX], stderr_log[FAILURE_PATH_MAX]; /* of this attempt; "": none */
    char killed_for[320]; /* why dlaunch sent it a signal before any failure; "": it did not */
    uint64_t blocked_ns;  /* when it was first seen in its present state D; 0: it is not in D */
    int respawn;          /* the restart count of its pending restart; 0: none is pending */
    uint64_t started_ns, ended_ns;
    bool told_output, told_collective; /* events of this attempt that were recorded */
    int listen_fd;                     /* its data socket, until it is handed down; -1 */
    uint16_t port;
    struct failure failure; /* if it did not end with status 0 */
};

/* The inputs of starting a worker that all workers of a round share. Everything is borrowed. */
struct worker_context {
    const struct job_spec *job;
    const struct rank_table *table;
    int group_rank;
    const char *timer_file; /* the file timer's FIFO; NULL: none */
    const char *ifname;     /* the interface that workers must use; NULL: any */
    int restart_count;      /* the table's, or a later one under RESTART_WORKER */
    struct spawner *spawner;
    struct warm_pool *warm_pool; /* NULL: none */
    struct mpi *mpi;             /* NULL: not an MPI program */
    struct reaper *reaper;
    struct stdio_pump *pump;
    const struct placement *placement;
    const struct cgroup *cgroup;
    const struct segment *segment;
    const struct log_dir *log_dir;
    struct worker_env_shared **env; /* the common part of the environments, for each program */
    int store_port; /* port of the store on this node's loopback; 0: the table's address */
    struct oom_watch *oom;
    int stdin_fd; /* /dev/null, for workers without input */
};

/* Starts the worker; the reaper returns `tag` with its exit. On an error no process exists, and
 * w->failure has the reason (FAILURE_EXEC, 125 to 127); the worker is WORKER_EXITED if its pipes
 * have to be drained, else WORKER_CLOSED. */
int worker_start(struct worker *w, const struct worker_context *ctx, void *tag, struct err *e);

/* All that the worker is started with but its streams, for an interpreter that stands by.
 */
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
void worker_hand_up_error_file(const struct worker *w);

/* Sends a signal to its process group, and to the process itself when the group is not there yet.
 */
void worker_signal_group(const struct worker *w, int signo);

/* Whether its process exists: WORKER_RUNNING or WORKER_EXITING. */
bool worker_is_alive(const struct worker *w);

void worker_status(const struct worker *w, const struct job_spec *job,
                   struct agent_worker_status *out);

#endif
