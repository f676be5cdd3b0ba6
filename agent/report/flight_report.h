/* flight_report.h: reports what the workers' flight recorders (core/segment.h) contain about
 * collective operations. */
#ifndef AGENT_REPORT_FLIGHT_REPORT_H
#define AGENT_REPORT_FLIGHT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/base/segment.h"

/* Returns a line for each worker of the node with its current operation, and below it, indented,
 * its last operations, the newest first; malloc'ed. The more workers, the fewer lines of each. NULL
 * if no operation explains a failure: none has timed out, mismatched another one or lasted long. */
char *flight_report_text(const struct segment *s, int base_rank, uint64_t now_ns);

/* The operation that worker `local_rank` began last; of those that are enqueued on a device the
 * first that has not ended. False: it has begun none, or is writing it down at this moment. */
bool flight_report_current(const struct segment *s, int local_rank, struct segment_op *out);

/* Describes that operation, such as "all_reduce of 3 f32 (sum)"; "" if there is none. Ranks that
 * called the same have the same text. */
void flight_report_operation(const struct segment *s, int local_rank, char *out, size_t cap);

/* Returns whether the worker has called operations of NCCL's of which nothing more is known. */
bool flight_has_hidden(const struct segment *s, int local_rank);
/* Returns how many operations worker `local_rank` has begun. */
uint64_t flight_operations_count(const struct segment *s, int local_rank);
/* Copies the last operations of worker `local_rank`, the newest first. Returns how many. */
int flight_operations(const struct segment *s, int local_rank, struct segment_op out[SEGMENT_OPS]);

#endif
