/* status.h: what status displays show of a node and its workers. */
#ifndef AGENT_BASE_STATUS_H
#define AGENT_BASE_STATUS_H

#include <stdint.h>

#include "rendezvous/rules/rdzv_types.h"

struct agent_worker_status {
    int rank, local_rank, pid;
    const char *state; /* "running", "exited", "failed", "stopped" */
    int exit_code, signal;
    const char *program; /* the program's name, in a job of several programs; else NULL */
    double seconds;      /* since the start of the worker */
    /* With --slow_ranks: scores from 0 to 1, 0: not known (agent/stacks/slow.h), and the seconds
     * that the worker has spent in operations; negative: not known. */
    double relative, own, waited_s;
    /* The use of the worker's GPU, at the last look: bytes (gpu_memory_total 0: not known), and
     * percent (-1: not known). */
    uint64_t gpu_memory, gpu_memory_total;
    int gpu_percent;
};

struct agent_status {
    const char *state;  /* of the agent, as agent/rules/agent_rules.h draws them */
    const char *health; /* torchelastic's word */
    struct rdzv_info rdzv;
    double elapsed;
    const char *lost_output; /* which output could not be written; NULL: none */
    const char *hang;        /* "SUSPECT", "HUNG"; NULL: the job does not hang, or is not watched */
    const char *hang_text;
    const char *slow;      /* which ranks are slow, one line; NULL: none, or they are not watched */
    double ends_at_s;      /* Unix time when the scheduler ends the job; 0: not known */
    const char *stop_text; /* why the job stops for good; NULL: the job goes on */
    int nworkers;
    struct agent_worker_status *workers; /* valid until the loop runs again */
};

#endif
