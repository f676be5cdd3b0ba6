/* stdio.h: what the workers print, on its way to files and to the console.
 *
 * One thread of its own (the "pump") reads every worker's stdout and stderr from pipes and writes
 * lines: whole lines, so that two workers are never mixed within one. What cannot be written is
 * kept up to a bound. Then, where the console is a pipe or a socket, nothing more is read for it: a
 * worker waits for the reader as if it wrote there itself, and once that reader is gone it gets
 * EPIPE. Where it is a terminal, and when a disk is full, no worker is stalled and the job goes on:
 * the oldest output is dropped, and each gap is declared where it is, with its size. The agent's
 * loop never waits for any of it.
 *
 * Functions are for the agent's thread unless they say otherwise. */
#ifndef AGENT_OUTPUT_STDIO_H
#define AGENT_OUTPUT_STDIO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "agent/base/stdio_opts.h"
#include "core/err.h"

struct stdio_pump;

int stdio_pump_open(struct stdio_pump **out, uv_loop_t *loop, const struct stdio_pump_opts *opts,
                    struct err *e);

/* The destinations of one stream of one worker. */
struct stdio_route {
    const char *file;   /* created or truncated; NULL: no file */
    bool console;       /* lines also go to the console */
    int rank;           /* of the worker, for folded lines */
    const char *prefix; /* in front of each console line; NULL or "": none */
    bool filtered;      /* --duplicate_*_filters apply (teed streams) */
};

/* Opens the pipes and files of one worker. child_out and child_err receive the ends that the worker
 * gets; the caller closes them after the spawn. Strings are copied. A stdout that nobody wants
 * (no file, no filter, and no console or one that is /dev/null) is no pipe: the worker gets
 * /dev/null itself. -EBUSY when this local rank's worker before it is not drained. */
int stdio_worker_open(struct stdio_pump *p, int local_rank, const struct stdio_route *out,
                      const struct stdio_route *err, int *child_out, int *child_err, struct err *e);

/* The worker is dead (or was never started): what is in its pipes is read to the end, for at most
 * STDIO_DRAIN_MS when another process still holds them, then they are closed and on_drained is
 * called. */
void stdio_worker_exited(struct stdio_pump *p, int local_rank);

/* Copies the last lines that the worker wrote to stderr, terminated: at most STDIO_TAIL_LINES,
 * whole ones that fit, of a last line that does not fit the end. As a terminal would have left
 * them: of a line written over with carriage returns what was there at last, colours taken off,
 * other control characters shown. After on_drained, until the next worker of that local rank is
 * opened. Returns the length. */
size_t stdio_worker_tail(struct stdio_pump *p, int local_rank, char *out, size_t cap);

/* The time at which the worker's first output was read (CLOCK_MONOTONIC); 0: none yet. Valid until
 * the next worker of that local rank is opened. */
uint64_t stdio_worker_first_ns(struct stdio_pump *p, int local_rank);

/* The time at which the worker's newest output was read; 0: none yet. */
uint64_t stdio_worker_last_ns(struct stdio_pump *p, int local_rank);

/* The attempt's directory for filtered_stdout.log and filtered_stderr.log, for the workers opened
 * from now on; NULL: none. */
void stdio_set_filtered_dir(struct stdio_pump *p, const char *dir);

/* One finished line of dlaunch's own, for log_set_writer(); any thread. */
void stdio_write_line(void *pump, const char *line, size_t len);

/* With opts.job: takes output of this or another node for the consoles of this node, which are the
 * job's. False: the consoles have enough until on_room() is called; the output of this call is kept
 * all the same. */
bool stdio_show_job(struct stdio_pump *p, const void *records, size_t n);
/* A round begins in which the output of so many workers is shown, over all nodes. */
void stdio_begin_job(struct stdio_pump *p, int nshown);
/* n more bytes of on_output()'s are shown, or will be. */
void stdio_job_was_taken(struct stdio_pump *p, size_t n);

/* Begins the end. The thread writes out what is still kept for the console, then the last words, as
 * long as a reader takes it: a slow one (a pager, a stopped terminal) gets the time that it needs.
 * Then the pump is freed and end->on_closed called. on_drained is not called any more;
 * stdio_write_line() may still be called until on_closed is. NULL is closed already. */
void stdio_pump_close(struct stdio_pump *p, const struct stdio_pump_end *end);

/* The closing pump stops waiting for readers. */
void stdio_pump_hurry(struct stdio_pump *p);

#endif
