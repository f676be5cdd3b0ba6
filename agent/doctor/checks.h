/* checks.h: finds the faults of nodes in the facts about them. Pure; one table has all checks
 * (checks.c).
 *
 * A node is the object that facts_collect() makes, with "node" (its group rank), "addr" (where the
 * others reach it), and, if they are known, "clock_s" (ahead of node 0's) and "clock_error_s".
 * {"node", "host", "missing": "why"} is a node without facts. */
#ifndef AGENT_DOCTOR_CHECKS_H
#define AGENT_DOCTOR_CHECKS_H

#include <jansson.h>

#include "agent/doctor/problems.h"

/* The checks that need the facts of one node only. */
void checks_of_node(const json_t *node, struct problems *out);

/* The checks that compare nodes, and the measured paths between them: an array of {"a", "b",
 * "rtt_us", "bps" (the worse direction), "local" (both are on one host)} or {"a", "b", "error":
 * {"at", "to", "stage", "errno"}}. */
void checks_of_job(const json_t *nodes, const json_t *pairs, struct problems *out);

#endif
