/* gpu_watch.h: the health of the GPUs that this node's workers use. The agent asks before workers
 * start, before they restart, and when a worker has failed.
 *
 * NVML may take seconds, or forever if a driver hangs, so a separate thread calls it, and an answer
 * that is late is not waited for. For a job that does not use GPUs nothing is done here. Used on
 * the loop only. */
#ifndef AGENT_DEVICE_GPU_WATCH_H
#define AGENT_DEVICE_GPU_WATCH_H

#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/device/gpu.h"
#include "agent/device/gpu_files.h"
#include "agent/base/job_spec.h"
#include "agent/base/status.h"
#include "core/err.h"
#include "core/uvx.h"

struct gpu_watch;

enum gpu_question {
    GPU_ASK_READY,    /* do the GPUs exist, and are they free; later: is the memory free again */
    GPU_ASK_BEGIN,    /* nothing, but errors that the GPUs have by now do not count any more */
    GPU_ASK_FAILURES, /* which errors have the GPUs had */
};

struct gpu_paths {
    const char *gpus, *dev; /* GPU_PROC, GPU_DEV */
    const char *kmsg;       /* the kernel's log */
};

/* For the workers of `job`, with the GPUs that CUDA_VISIBLE_DEVICES names. If the job says that it
 * uses GPUs, they are looked up now; NULL: there is none. Else neither that nor loading NVML is
 * done before the first question. */
struct gpu_watch *gpu_watch_new(uv_loop_t *loop, struct uvx_scope *scope,
                                const struct job_spec *job, const struct gpu_paths *paths);
/* Called before the scope is closed; no answer is delivered after it. NULL is allowed. */
void gpu_watch_stop(struct gpu_watch *w);
/* Called after the scope was closed. NULL is allowed. */
void gpu_watch_free(struct gpu_watch *w);

/* Calls done() once, later, with NULL or with the reason why workers must not be started; NULL: the
 * answer does not matter. A second question replaces the first one while that is open. */
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

/* A worker, and from when until when it ran (CLOCK_MONOTONIC; until 0: it still does). */
struct gpu_user {
    int local_rank;
    pid_t pid;
    struct gpu_files files; /* that were seen open; zeroed: none were */
    uint64_t since_ns, until_ns;
};

/* Returns the use at the last look; false: not known. */
bool gpu_watch_usage(struct gpu_watch *w, const struct gpu_user *u, struct gpu_usage *out);

/* As at the last look. */
struct gpu_state gpu_watch_state(struct gpu_watch *w, const struct gpu_user *u);

/* Reads what the kernel's log says up to now: workers that are started after this call have no part
 * in it. */
void gpu_watch_read_log(struct gpu_watch *w);

/* Describes the errors that the GPU of a worker, or the worker on another GPU, had while it ran:
 * "GPU 3 (0000:5e:00.0): Xid 79, GPU has fallen off the bus, at 12:00:01.250 (0.8 s before the
 * worker ended)", several lines, or "". Returns out. */
const char *gpu_watch_note(struct gpu_watch *w, const struct gpu_user *u, char *out, size_t cap);

/* Whether one of these errors is why the worker failed: the GPU, or a link of it, is broken. Of a
 * worker that did not end by itself: whether it would have failed without being stopped. */
bool gpu_watch_fault(struct gpu_watch *w, const struct gpu_user *u, bool by_itself);

#endif
