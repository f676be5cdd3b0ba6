/* checks.h: finds the faults of nodes in the facts about them. Pure; one table has all checks
 * (checks.c).
 *
 * A node whose `missing` is set has no other facts than its number, name and address. */
#ifndef AGENT_DOCTOR_CHECKS_H
#define AGENT_DOCTOR_CHECKS_H

#include "agent/doctor/fact.h"
#include "agent/doctor/problems.h"

/* The checks that need the facts of one node only. */
void checks_of_node(const struct node_facts *node, struct problems *out);

/* The checks that compare nodes, and the measured paths between them. */
void checks_of_job(const struct node_facts *nodes, size_t n, const struct pair_list *pairs,
                   struct problems *out);

#endif
