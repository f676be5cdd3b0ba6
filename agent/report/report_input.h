/* report_input.h: the content of a report. Everything is borrowed. */
#ifndef AGENT_REPORT_REPORT_INPUT_H
#define AGENT_REPORT_REPORT_INPUT_H

#include "agent/base/job_spec.h"
#include "agent/report/attempts.h"
#include "rendezvous/rules/ledger.h"

struct report_input {
    const struct job_spec *job;
    const struct rdzv_result *result;
    const char *host; /* of this node */
    int group_rank, nnodes, world_size;
    uint64_t started_wall_ns, ended_wall_ns;
    double elapsed; /* seconds since the job began */
    struct attempts attempts;
    const char *log_dir;         /* the run directory, or NULL */
    const char *leftover;        /* processes that could not be ended, one line, or NULL */
    const char *lost_output;     /* text about output that could not be written, or NULL */
    const struct ledger *ledger; /* NULL: not asked for */
    const char
        *operations;    /* the last operations of this node's workers (flight_report.h), or NULL */
    bool recorded;      /* the workers' operations are known from dumps of PyTorch */
    const char *slow;   /* the ranks that were last found to be slow, one line, or NULL */
    const char *stacks; /* stacks of the workers before they were stopped (stack_tree.h), or NULL */
};

/* Whether the job was stopped from outside, and has not failed. */
static inline bool report_was_stopped(enum stop_reason reason)
{
    return reason == STOP_SIGNAL || reason == STOP_REQUEST || reason == STOP_TIME_LIMIT;
}

#endif
