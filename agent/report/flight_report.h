/* flight_report.h: what the workers' flight recorders say about collective operations
 * (core/segment.h).
 */
#ifndef AGENT_REPORT_FLIGHT_REPORT_H
#define AGENT_REPORT_FLIGHT_REPORT_H

#include <stdint.h>

#include "agent/segment.h"

/* For each worker of the node a line on what it is in, and below it, indented, a few on what it was
 * in before, the newest first; malloc'ed. The more workers, the fewer lines of each. NULL when
 * there is nothing that explains a failure: no operation has timed out or met another one, and none
 * has been under way for long. */
char *flight_report_text(const struct segment *s, int base_rank, uint64_t now_ns);

/* What worker `local_rank` asked for in the operation that it began last, such as
 * "all_reduce of 3 f32 (sum)"; "" if it has begun none. Ranks that called the same have the same
 * text. */
void flight_report_operation(const struct segment *s, int local_rank, char *out, size_t cap);

#endif
