/* placement.h: which CPUs a worker may use. hwloc is loaded when binding is asked for, not before.
 */
#ifndef AGENT_PLACEMENT_H
#define AGENT_PLACEMENT_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/job_spec.h"

struct placement;

/* Plans the binding of `nproc` workers onto the CPUs that this process may use. BIND_CORE: whole
 * cores (all hardware threads of each) dealt out evenly in topology order, one after another when
 * there are more workers than cores. BIND_NUMA: the CPUs of one NUMA node each, workers dealt out
 * in blocks. -ENOENT with a text when hwloc is not installed. *out is NULL for BIND_NONE. */
int placement_new(struct placement **out, enum bind_mode mode, int nproc, struct err *e);
void placement_free(struct placement *p); /* NULL is allowed */

/* The CPU set of a worker, for sched_setaffinity(); *size in bytes. NULL when p is NULL. */
const cpu_set_t *placement_of(const struct placement *p, int local_rank, size_t *size);
/* "cores 0-3 (CPUs 0-7)": for --dry_run and --verbose. Returns out. */
const char *placement_describe(const struct placement *p, int local_rank, char *out, size_t cap);

/* The CPUs usable by this process: its affinity mask, bounded by its cgroup's CPU quota (v2
 * cpu.max, v1 cfs_quota_us) rounded up. At least 1. Needs no hwloc. */
int usable_cpus(void);

/* The CPUs' worth of time (1.5: one and a half) that the cgroup at `dir` and those above it, up to
 * the mount point that is its first mount_len bytes, allow; 0: no limit. v2, or the v1 files. */
double cpu_quota(const char *dir, size_t mount_len, bool v2);

#endif
