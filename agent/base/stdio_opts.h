/* stdio_opts.h: limits and options of the workers' output (stdio.h). */
#ifndef AGENT_BASE_STDIO_OPTS_H
#define AGENT_BASE_STDIO_OPTS_H

#include <stdbool.h>

#include "core/bytes.h"

#define STDIO_CONSOLE_BACKLOG                                                         \
    (4u << 20)                 /* bytes kept for a console that does not take them; a \
                                * little more when its workers end */
#define STDIO_LINE_MAX   65536 /* a longer line is written in pieces */
#define STDIO_TAIL_LINES 20    /* of stderr kept for the report */
#define STDIO_DRAIN_MS \
    250 /* how long a pipe is read that a process other than the worker holds open */

enum fold_mode {
    FOLD_AUTO, /* on terminals */
    FOLD_ON,
    FOLD_OFF,
};

struct stdio_pump_opts {
    int console_out, console_err; /* borrowed; normally 1 and 2 */
    int log_fd;                   /* dlaunch's own lines go there; 0: to console_err */
    /* The number of workers to come; 0: unknown. The table of descriptors then gets its size before
     * the thread starts: growing one that threads share makes the kernel wait for a grace period,
     * milliseconds at each doubling. */
    int nworkers;
    enum fold_mode fold; /* of lines that workers print alike; not below two workers */
    bool job;            /* one console shows the output of all nodes (stdio_job.h) */
    int nranks;          /* with `job`: the workers of all nodes, at most */
    /* Lines with one of these substrings are copied to the filtered files; NULL-terminated or NULL.
     * Borrowed until the pump is closed. */
    char *const *dup_stdout, *const *dup_stderr;
    /* Called on the agent's loop, after stdio_worker_exited(), when everything that this worker
     * wrote is read. */
    void (*on_drained)(void *arg, int local_rank);
    /* Called on the agent's loop with a text about output that cannot be written; `shown`: standard
     * error has taken it as well. NULL is allowed. */
    void (*on_trouble)(void *arg, const char *text, bool shown);
    /* Called on the agent's loop if `job`: output for the job's console, in its order; takes the
     * content. stdio_job_was_taken() follows. */
    void (*on_output)(void *arg, struct buf *records);
    /* Called on the agent's loop: stdio_show_job() has room again. */
    void (*on_room)(void *arg);
    void *arg;
};

struct stdio_pump_end {
    double unread_s;  /* seconds to wait for a reader that takes nothing; negative: no limit */
    char *last_words; /* written to standard error after all output; malloc'ed, taken; NULL: none */
    /* Called on the agent's loop. all: no output was given up. NULL is allowed. */
    void (*on_closed)(void *arg, bool all);
    void *arg;
};

#endif
