/* report.h: the one screen that says what went wrong first, and what a person can do about it. */
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H

#include <stdio.h>

#include "agent/job_spec.h"

struct report_input {
    const struct job_spec *job;
    const struct rdzv_result *result;
    const char *host; /* of this node */
    int group_rank, nnodes, world_size;
    double elapsed;       /* seconds since the job began */
    const char *log_dir;  /* the run directory, or NULL */
    const char *leftover; /* processes that could not be ended, one line, or NULL */
};

/* Writes the text to `out` (80 columns; colour when `color`). What workers and peers wrote is shown
 * with its control characters escaped. */
void report_print(FILE *out, const struct report_input *in, int color);

/* The same as JSON to the file job->report_path, replaced atomically; also after success. */
int report_write_json(const struct report_input *in, struct err *e);

/* "SIGSEGV", "SIGRTMIN+3", "signal 99". Static or in out. */
const char *signal_name(int signo, char out[24]);

#endif
