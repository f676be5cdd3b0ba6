/* placement.h: which CPUs a worker may use. hwloc is loaded only if binding is requested. */
#ifndef AGENT_DEVICE_PLACEMENT_H
#define AGENT_DEVICE_PLACEMENT_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/base/job_spec.h"

struct placement;

#define PLACEMENT_GPUS_MAX 1024

/* Plans the binding of `nproc` workers onto the CPUs that this process may use. -ENOENT with a text
 * when hwloc is not installed. *out is NULL for BIND_NONE.
 *
 * BIND_CORE: whole cores (all hardware threads of each) dealt out evenly in topology order, one
 * after another when there are more workers than cores. BIND_NUMA and BIND_SOCKET: the CPUs of one
 * NUMA node or socket each, workers dealt out in blocks.
 *
 * BIND_GPU_...: torchrun's rules. Worker i has CUDA's device i of those that `visible` lists (the
 * workers' CUDA_VISIBLE_DEVICES; NULL: all), and runs
 *   NODE       on all CPUs of the NUMA node that the GPU is next to
 *   SOCKET     on all CPUs of that node's socket, of its sockets in turn if it spans several
 *   EXCLUSIVE  on cores of that node which are its own: they are divided among the GPUs there, the
 *              remainder going to the first; -EINVAL when there are too few
 *   COMPLEX    on the cores of that node that share one last-level cache, a different one for each
 *              GPU while there are enough, those with most CPUs first
 * More workers than GPUs: they begin again with the first. Without GPUs, and for those of which the
 * host does not say where they are, NUMA nodes are dealt out in blocks. */
int placement_new(struct placement **out, enum bind_mode mode, int nproc, const char *visible,
                  struct err *e);
/* Plans the binding, also for BIND_NONE, and finds GPUs and network cards. */
int placement_plan(struct placement **out, enum bind_mode mode, int nproc, const char *visible,
                   struct err *e);
void placement_free(struct placement *p); /* NULL is allowed */

/* The CPU set of a worker, for sched_setaffinity(); *size in bytes. NULL when p is NULL. */
const cpu_set_t *placement_of(const struct placement *p, int local_rank, size_t *size);
/* "cores 0-3 (CPUs 0-7)": for --dry_run and --verbose. Returns out. */
const char *placement_describe(const struct placement *p, int local_rank, char *out, size_t cap);

/* For --print_binding, where GPUs have been looked for; each returns out. The worker's GPU: "3
 * (0000:5e:00.0)", "-" none. The network cards nearest to it: "mlx5_2", "mlx5_0,mlx5_1", "-". */
const char *placement_gpu(const struct placement *p, int local_rank, char *out, size_t cap);
const char *placement_nic(const struct placement *p, int local_rank, char *out, size_t cap);
/* Writes "NCCL_IB_HCA==mlx5_0,mlx5_1", the setting that makes NCCL use only these cards, or "" if
 * none is near. dlaunch shows this and does not set it, because NCCL chooses cards itself and may
 * know better. */
const char *placement_nccl(const struct placement *p, char *out, size_t cap);

/* The CPUs usable by this process: its affinity mask, bounded by its cgroup's CPU quota (v2
 * cpu.max, v1 cfs_quota_us) rounded up. At least 1. Needs no hwloc. */
int usable_cpus(void);

/* Returns the CPU time, in CPUs (1.5: one and a half), that the cgroup at `dir` and its parents
 * permit, up to the mount point, which is the first mount_len bytes of `dir`; 0: no limit. v2, or
 * the v1 files. */
double cpu_quota(const char *dir, size_t mount_len, bool v2);

#endif
