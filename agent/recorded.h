/* recorded.h: what the workers' flight recorders say about collective operations (core/segment.h).
 */
#ifndef AGENT_RECORDED_H
#define AGENT_RECORDED_H

#include <stdint.h>

#include "agent/segment.h"

/* A line for each worker of the node, malloc'ed: what it is in, or was in last. NULL when there is
 * nothing that explains a failure: no operation has timed out or met another one, and none has been
 * under way for long. */
char *recorded_text(const struct segment *s, int base_rank, uint64_t now_ns);

#endif
