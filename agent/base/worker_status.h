/* worker_status.h: what a status display shows of one worker. */
#ifndef AGENT_BASE_WORKER_STATUS_H
#define AGENT_BASE_WORKER_STATUS_H

struct agent_worker_status {
    int rank, local_rank, pid;
    const char *state; /* "running", "exited", "failed", "stopped" */
    int exit_code, signal;
    const char *program; /* its name, in a job of several programs; else NULL */
    double seconds;      /* since it was started */
    /* With --slow_ranks: scores from 0 to 1, 0: not known (agent/stacks/slow.h), and the seconds
     * that it has spent in operations; negative: not known. */
    double relative, own, waited_s;
};

#endif
