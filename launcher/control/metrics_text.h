/* metrics_text.h: the series of a launcher as Prometheus' text format or as OpenMetrics. */
#ifndef LAUNCHER_CONTROL_METRICS_TEXT_H
#define LAUNCHER_CONTROL_METRICS_TEXT_H

#include <stdbool.h>
#include <stdio.h>

#include "agent/agent.h"
#include "rendezvous/rules/event_log.h"
#include "rendezvous/rules/ledger.h"

#define METRICS_BUCKETS 10

struct metrics_histogram {
    uint64_t bucket[METRICS_BUCKETS + 1], n; /* bucket[i]: at most bound i and more than i - 1 */
    double sum;
};

enum metrics_part { PART_STOP, PART_RENDEZVOUS, PART_START, PARTS };

/* The sums over the job's events up to number `at`. */
struct metrics_sums {
    uint64_t at, rounds, restarts[CAUSES], failures[CAUSES];
    int joined, in_round;
    uint64_t rendezvous_ns, start_ns, stop_ns, restart_ns; /* when they were; 0: not pending */
    struct metrics_histogram rendezvous, recovery[PARTS];
};

void metrics_sums_add(struct metrics_sums *s, const struct event_log *log);

/* sums: of the job; NULL if this is not its coordinator. ledger: NULL if it is not asked for. */
void metrics_text(FILE *out, const struct job_spec *job, const struct agent_status *status,
                  const struct metrics_sums *sums, const struct ledger *ledger, bool openmetrics);

#endif
