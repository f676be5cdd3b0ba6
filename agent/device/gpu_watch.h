/* gpu_watch.h: the health of the GPUs that this node's workers use. The agent asks before workers
 * start, before they restart, and when a worker has failed.
 *
 * NVML may take seconds, or forever if a driver hangs, so a separate thread calls it, and an answer
 * that is late is not waited for. A job that does not use GPUs does nothing here. Used on the loop
 * only. */
#ifndef AGENT_DEVICE_GPU_WATCH_H
#define AGENT_DEVICE_GPU_WATCH_H

#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/device/gpu.h"
#include "agent/base/job_spec.h"
#include "core/err.h"
#include "core/uvx.h"

struct gpu_watch;

enum gpu_question {
    GPU_ASK_READY,    /* do the GPUs exist, and are they free; later: is the memory free again */
    GPU_ASK_FAILURES, /* which errors have the GPUs had */
};

/* For the workers of `job`; worker i has the device visible[i % n] of `all`. NULL: there is no GPU.
 * kmsg: the kernel's log. */
struct gpu_watch *gpu_watch_new(uv_loop_t *loop, struct uvx_scope *scope,
                                const struct job_spec *job, const char *proc_dir, const char *kmsg);
/* Called before the scope is closed; no answer is delivered after it. NULL is allowed. */
void gpu_watch_stop(struct gpu_watch *w);
/* Called after the scope was closed. NULL is allowed. */
void gpu_watch_free(struct gpu_watch *w);

/* Calls done() once, later, with NULL or with the reason why workers must not be started. A second
 * question replaces the first one while that is open, and gets the answer. */
void gpu_watch_ask(struct gpu_watch *w, enum gpu_question q,
                   void (*done)(void *arg, const struct err *e), void *arg);

/* The use of a worker's GPU: bytes of the GPU's memory, and the share of time in which the GPU
 * computes, in percent; -1: not known, as of MIG instances. */
struct gpu_usage {
    unsigned long long used, total;
    int percent;
};

/* Has the thread look how the GPUs are used; gpu_watch_usage() has the result once it is there.
 * Does nothing before the first answer to GPU_ASK_READY. */
void gpu_watch_look(struct gpu_watch *w);
/* Returns the use at the last look; false: not known. */
bool gpu_watch_usage(struct gpu_watch *w, int local_rank, struct gpu_usage *out);

/* Reads what the kernel's log says up to now: workers that are started after this call have no part
 * in it. */
void gpu_watch_read_log(struct gpu_watch *w);

/* Describes the errors of the GPU of a worker that failed, which was started at since_ns
 * (CLOCK_MONOTONIC): "GPU 3 (0000:5e:00.0): Xid 79, GPU has fallen off the bus", several lines, or
 * "". Returns out. */
const char *gpu_watch_note(struct gpu_watch *w, int local_rank, pid_t pid, uint64_t since_ns,
                           char *out, size_t cap);

#endif
