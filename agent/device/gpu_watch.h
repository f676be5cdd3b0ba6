/* gpu_watch.h: the health of the GPUs that this node's workers use: asked before they start, before
 * they start again, and when one has failed.
 *
 * NVML may take seconds, and for ever when a driver is stuck, so it is called in a thread of its
 * own; what does not answer in time is left behind. Nothing here is done for a job that does not
 * say that it uses GPUs. Used on the loop only. */
#ifndef AGENT_DEVICE_GPU_WATCH_H
#define AGENT_DEVICE_GPU_WATCH_H

#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/device/gpu.h"
#include "agent/job_spec.h"
#include "core/err.h"
#include "core/uvx.h"

struct gpu_watch;

enum gpu_question {
    GPU_ASK_READY, /* the first time: are they there and free; later: is their memory free again */
    GPU_ASK_FAILURES, /* what has happened to them */
};

/* For the workers of `job`; worker i has the device visible[i % n] of `all`. NULL: there is no GPU.
 * kmsg: the kernel's log. */
struct gpu_watch *gpu_watch_new(uv_loop_t *loop, struct uvx_scope *scope,
                                const struct job_spec *job, const char *proc_dir, const char *kmsg);
/* Before the scope is closed: no answer comes any more. NULL is allowed. */
void gpu_watch_stop(struct gpu_watch *w);
/* After the scope has been closed. NULL is allowed. */
void gpu_watch_free(struct gpu_watch *w);

/* `done` is called once, later, with NULL or with why workers must not be started. While a
 * question is open a second one takes its place: it gets the answer. */
void gpu_watch_ask(struct gpu_watch *w, enum gpu_question q,
                   void (*done)(void *arg, const struct err *e), void *arg);

/* What is known about the GPU of a worker that failed: "GPU 3 (0000:5e:00.0): Xid 79, GPU has
 * fallen off the bus", several lines, or "". Returns out. */
const char *gpu_watch_note(struct gpu_watch *w, int local_rank, pid_t pid, char *out, size_t cap);

#endif
