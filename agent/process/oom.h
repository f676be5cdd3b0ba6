/* oom.h: whether the kernel killed a process because memory ran out: the oom_kill counter of the
 * own memory cgroup (v2 memory.events, v1 memory.oom_control), or else of the host (/proc/vmstat),
 * read when a round begins and after each SIGKILL. The agent asks when a worker was killed, the
 * guardian when the agent was, and the agent when the guardian was. */
#ifndef AGENT_PROCESS_OOM_H
#define AGENT_PROCESS_OOM_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/base/feature.h"

struct oom_watch {
    int fd;                     /* the file with the counter; -1: none can be read */
    bool of_host;               /* the counter counts the kills of the whole host */
    uint64_t kills;             /* as last read */
    _Atomic uint64_t *reported; /* the counter as the last reader of all watches saw it; shared */
};

/* reported: shared by guardian and agent, so that a kill which one of them has reported is not
 * reported again by the other; starts as 0. NULL: no other process looks. */
void oom_open(struct oom_watch *w, _Atomic uint64_t *reported);
bool oom_happened(struct oom_watch *w); /* whether the counter rose since the last call */
void oom_close(struct oom_watch *w);

/* The addition to a line about a process that died of SIGKILL: that memory ran out, or "". Returns
 * "" where only the host's counter is available, which any other process may have raised. */
const char *oom_words(struct oom_watch *w);

/* Marks the failures of workers that were killed for want of memory. */
extern const struct feature oom_feature;
/* The feature's watch; NULL: the feature is off. */
struct oom_watch *oom_watch_of(void *state);

#endif
