/* exit_notify.h: reports that a worker which uses libdlcoll has begun to exit. The worker can be
 * reaped only later, when the kernel has freed its memory and closed its files and GPUs.
 *
 * A thread waits on a word of each worker (core/segment.h, `exit_mutex`). Kernels before 5.16
 * cannot do that, and other workers have no such word: their exits are seen when they are reaped.
 */
#ifndef AGENT_PROCESS_EXIT_NOTIFY_H
#define AGENT_PROCESS_EXIT_NOTIFY_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/base/segment.h"
#include "core/uvx.h"

struct exit_notify;

/* on_exiting(arg) is called on the loop when a worker of the segment begins to exit. */
struct exit_notify *exit_notify_new(uv_loop_t *loop, struct uvx_scope *scope,
                                    void (*on_exiting)(void *arg), void *arg);

/* Watches until exit_notify_unwatch(); the segment must stay open until then. */
void exit_notify_watch(struct exit_notify *d, const struct segment *s);
void exit_notify_unwatch(struct exit_notify *d); /* no effect on a notifier that does not watch */

/* The notifier must not be watching. The scope closes the handle; on_exiting is not called after
 * that. */
void exit_notify_free(struct exit_notify *d);

/* Whether worker `local_rank`, or its thread that uses libdlcoll, has begun to exit or has ended.
 * */
bool exit_notify_has_begun(const struct segment *s, int local_rank);

/* The status, as of wait(2), with which child `pid` exits; -1: it does not exit, or /proc does not
 * show it. */
int exit_notify_status(pid_t pid);

/* Whether child `pid` is exiting and runs: it frees its memory and is not stuck. */
bool exit_notify_runs(pid_t pid);

#endif
