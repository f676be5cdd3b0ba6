/* failure_log.h: the failures of one round from all nodes: one record per rank, bounded. When there
 * are too many, the least informative is dropped, never one that could be the first cause. */
#ifndef RENDEZVOUS_RULES_FAILURE_LOG_H
#define RENDEZVOUS_RULES_FAILURE_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/rules/failure.h"

struct failure_log {
    struct failure *f;
    size_t n, cap;
};

/* A second record of a rank (the full one after the first quick one) replaces the first, except
 * that a stop does not replace a failure. */
void failure_log_add(struct failure_log *l, const struct failure *f);
void failure_log_forget(struct failure_log *l, int rank); /* the rank was started again */
void failure_log_clear(struct failure_log *l);            /* frees all records */

/* The first cause, or NULL when all records are stops. */
const struct failure *failure_log_first(const struct failure_log *l);
bool failure_log_knows(const struct failure_log *l, int rank); /* other than as stopped */

/* Puts the records in the order of failure_order() and keeps at most max. */
void failure_log_sort(struct failure_log *l, size_t max);

#endif
