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

#include "agent/base/feature.h"

extern const struct feature file_timer_feature;

#endif
