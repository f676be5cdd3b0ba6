/* oom.h: whether the kernel killed for memory: the oom_kill counter of our memory cgroup (v2
 * memory.events, v1 memory.oom_control), or of the host where we are in none (/proc/vmstat), read
 * at the start and after each SIGKILL. */
#ifndef AGENT_PROCESS_OOM_H
#define AGENT_PROCESS_OOM_H

#include <stdbool.h>
#include <stdint.h>

struct oom_watch {
    int fd;         /* of the file that has the counter; -1: none can be read here */
    uint64_t kills; /* as last read */
};

void oom_open(struct oom_watch *w);
bool oom_happened(struct oom_watch *w); /* the counter rose since the last call (or open) */
void oom_close(struct oom_watch *w);

#endif
