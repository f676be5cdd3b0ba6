/* oom.h: whether the kernel killed a process because memory ran out: the oom_kill counter of the
 * own memory cgroup (v2 memory.events, v1 memory.oom_control), or else of the host (/proc/vmstat),
 * read when a round begins and after each SIGKILL. */
#ifndef AGENT_PROCESS_OOM_H
#define AGENT_PROCESS_OOM_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/base/feature.h"

struct oom_watch {
    int fd;         /* the file with the counter; -1: none can be read */
    uint64_t kills; /* as last read */
};

void oom_open(struct oom_watch *w);
bool oom_happened(struct oom_watch *w); /* whether the counter rose since the last call */
void oom_close(struct oom_watch *w);

/* Marks the failures of workers that were killed for want of memory. */
extern const struct feature oom_feature;

#endif
