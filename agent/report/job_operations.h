/* job_operations.h: the last operations of the workers of all nodes, for dlaunchctl timeline. */
#ifndef AGENT_REPORT_JOB_OPERATIONS_H
#define AGENT_REPORT_JOB_OPERATIONS_H

#include <jansson.h>

#include "agent/base/feature.h"

extern const struct feature operations_feature;

/* Returns the operations of this node, and those of the other nodes as far as they have answered,
 * and asks these nodes again. The form is that of operations_json(), with "answered", a number of
 * nodes; owned. */
json_t *operations_of_job(void *state);

#endif
