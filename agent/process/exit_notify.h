/* exit_notify.h: hears that a worker which uses libdlcoll has begun to end, before it can be
 * reaped: that is possible only when the kernel has given back all its memory, closed its files and
 * its GPUs.
 *
 * A thread sleeps on a word of each worker (core/segment.h, `life`). Where the kernel cannot do
 * that (before 5.16), or for other workers, nothing is heard: reaping them says the same later. */
#ifndef AGENT_PROCESS_EXIT_NOTIFY_H
#define AGENT_PROCESS_EXIT_NOTIFY_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/segment.h"
#include "core/uvx.h"

struct exit_notify;

/* on_dying(arg): a worker of the segment begins to end, on the loop's thread. */
struct exit_notify *exit_notify_new(uv_loop_t *loop, struct uvx_scope *scope,
                                    void (*on_dying)(void *arg), void *arg);

/* From here on, until exit_notify_unwatch(). The segment stays open as long. */
void exit_notify_watch(struct exit_notify *d, const struct segment *s);
void exit_notify_unwatch(struct exit_notify *d); /* also when nothing is watched */

/* Not watching. Frees it; the scope closes its handle, after which on_dying is not called. */
void exit_notify_free(struct exit_notify *d);

/* Whether worker `local_rank` begins to end, has ended, or the thread has that uses libdlcoll. */
bool exit_notify_is(const struct segment *s, int local_rank);

/* The status, as of wait(2), with which child `pid` ends; -1: it does not, or nobody may know. */
int exit_notify_status(pid_t pid);

/* Whether child `pid` is in its end and not stuck there: it gives back its memory. */
bool exit_notify_runs(pid_t pid);

#endif
