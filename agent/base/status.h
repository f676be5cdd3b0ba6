/* status.h: what status displays show of a node and its workers. */
#ifndef AGENT_BASE_STATUS_H
#define AGENT_BASE_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/rules/rdzv_types.h"

/* What makes a GPU slow, at the last look; zeroed: not known. */
struct gpu_state {
    bool known;
    uint8_t reasons;                     /* GPU_SLOW_...: why its clocks are lower */
    uint8_t celsius;                     /* its temperature; 0: not known */
    uint8_t pcie_generation, pcie_width; /* as it runs now; 0: not known */
    uint32_t nvlink_errors;              /* replays, recoveries and CRC errors since it was reset */
};
#define GPU_SLOW_THERMAL     1 /* it is, or its memory is, too hot */
#define GPU_SLOW_POWER_BRAKE 2 /* the host's power supply has asked for that */
#define GPU_SLOW_HARDWARE    4 /* one of both, or its board's power: the hardware does not say */

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
