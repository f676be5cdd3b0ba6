/* usage.h: what a process uses, from /proc. */
#ifndef AGENT_BASE_USAGE_H
#define AGENT_BASE_USAGE_H

#include <stdbool.h>

/* CPU seconds and resident bytes of the process alone; false: the process is gone. */
bool usage_read(int pid, double *cpu_s, double *rss_bytes);

#endif
