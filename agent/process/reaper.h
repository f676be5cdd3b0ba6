/* reaper.h: the one place in the agent that waits for children.
 *
 * Workers are watched by pidfd, all in one epoll set that the loop polls, so their deaths are
 * delivered in the order in which they happened. Whatever else becomes our child (this process is a
 * subreaper) is reaped on SIGCHLD and reported as an orphan. Without pidfds (kernels before 5.3)
 * SIGCHLD does both.
 *
 * A dead worker is killed with its process group before it is reaped: from then on its number, and
 * with it the group's, may belong to somebody else. */
#ifndef AGENT_PROCESS_REAPER_H
#define AGENT_PROCESS_REAPER_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <uv.h>

#include "core/err.h"

struct reaper;

struct reaper_exit {
    pid_t pid;
    int status; /* as wait(2) gives it: WIFEXITED, WIFSIGNALED, WCOREDUMP ... */
    struct rusage usage;
    uint64_t seen_ns; /* mono_ns() when the exit was seen */
};

struct reaper_callbacks {
    void *arg;
    void (*on_worker)(void *arg, void *tag, const struct reaper_exit *x);
    void (*on_orphan)(void *arg, const struct reaper_exit *x); /* may be NULL */
};

int reaper_open(struct reaper **out, uv_loop_t *loop, const struct reaper_callbacks *cb,
                struct err *e);

/* Watches a child that was just spawned; takes pidfd (-1: none). on_worker gets `tag` at its exit.
 * */
int reaper_watch(struct reaper *r, pid_t pid, int pidfd, void *tag, struct err *e);

/* Reaps the workers that are dead now and calls on_worker for each, in the order of their deaths.
 * */
void reaper_look(struct reaper *r);

void reaper_close(struct reaper *r, void (*on_closed)(void *arg), void *arg);

#endif
