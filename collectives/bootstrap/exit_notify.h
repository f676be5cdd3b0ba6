/* exit_notify.h: how the agent hears that this process has begun to end, long before it can reap
 * it: the kernel looks through the robust mutexes of a thread first of all when that thread ends.
 */
#ifndef COLLECTIVES_BOOTSTRAP_EXIT_NOTIFY_H
#define COLLECTIVES_BOOTSTRAP_EXIT_NOTIFY_H

#include "core/segment.h"

/* Locks the robust mutex in `line`, which is `at` bytes into the segment behind fd, for the calling
 * thread's life, and tells the agent by `exit_word_count`. Once in a process; further calls do
 * nothing. What does not work here goes without: the agent reaps the process in the end. Only the
 * last of the node's workers wakes the agent: where there are more of them than CPUs, each such
 * wake-up costs one of them its turn in the middle of dlcoll_init(), milliseconds. */
void exit_notify_begin(int fd, uint64_t at, struct segment_local *line,
                       _Atomic uint32_t *exit_word_count, uint32_t workers);

#endif
