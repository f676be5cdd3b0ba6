/* slow_gpu.h: what is the matter with the GPU of a slow rank, beside those of the others. Pure. */
#ifndef AGENT_STACKS_SLOW_GPU_H
#define AGENT_STACKS_SLOW_GPU_H

#include "agent/base/status.h"
#include "core/bytes.h"

/* Adds "; its GPU: thermal slowdown, 91 C (others 58 to 64 C), PCIe generation 1 x4 (others 5 x16),
 * 120 NVLink errors (others 0 to 2)" for rank `rank` of the n: what is worse than with all others.
 * Nothing, if nothing is or if it is not known. */
void slow_gpu_words(struct buf *b, const struct gpu_state *all, int n, int rank);

#endif
