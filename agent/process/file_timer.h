/* file_timer.h: torchelastic's watchdog ("file timer") for the workers of this node.
 *
 * Enabled by TORCHELASTIC_ENABLE_FILE_TIMER=1, as under torchrun. Workers find the path of a FIFO
 * in TORCHELASTIC_TIMER_FILE and write one JSON object per line, at most PIPE_BUF bytes long:
 *
 *   {"version": 1, "pid": 123, "scope_id": "forward", "expiration_time": 1700000000.5, "signal": 9}
 *
 * Such a line starts the timer of this pid and scope, or moves its end (seconds since 1970). A
 * negative expiration_time releases the timer. When a timer ends, its process gets the signal; a
 * signal of 0 or less is only reported. A line for a process that is not a descendant of this one
 * is refused. Wire format: torch/distributed/elastic/timer/file_based_local_timer.py of
 * PyTorch 2.15. */
#ifndef AGENT_PROCESS_FILE_TIMER_H
#define AGENT_PROCESS_FILE_TIMER_H

#include <sys/types.h>

#include "core/err.h"
#include "core/uvx.h"

struct file_timer;

/* Called before the signal is sent. `parents` (n pids) begins with the process itself and ends with
 * the child of this process that it descends from. `text`: "timer 'forward' of pid 123 expired". */
typedef void file_timer_expired(void *arg, const pid_t *parents, int n, int signo,
                                const char *text);

/* Makes the FIFO, at `path` or, if `path` is NULL, at a new name in the folder for temporary files.
 * A FIFO without a reader and an empty file are replaced. The handles belong to the scope. */
int file_timer_open(struct file_timer **out, uv_loop_t *loop, struct uvx_scope *scope,
                    const char *path, file_timer_expired *on_expired, void *arg, struct err *e);

const char *file_timer_path(const struct file_timer *t); /* borrowed; NULL for NULL */

/* Removes FIFOs that dead agents left beside this one. NULL is allowed. */
void file_timer_sweep(const struct file_timer *t);

/* Removes the FIFO. After the scope is closed. NULL is allowed. */
void file_timer_free(struct file_timer *t);

#endif
