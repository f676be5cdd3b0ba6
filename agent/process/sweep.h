/* sweep.h: ending every descendant of this process without ever blocking.
 *
 * The caller is a child subreaper, so when a descendant dies its children become ours. One step
 * lists our children (/proc/self/task/<tid>/children, or a scan of /proc where the kernel lacks
 * that), sends SIGKILL to each of them, and reaps what is dead; after 20 ms also to the descendants
 * of those that have not died of it, for a process that hangs in the kernel never hands its
 * children on. The listing can miss a child while its siblings exit, so a step proves
 * nothing: steps are repeated until waitid() says that there is no child left. For the main thread,
 * whose children are listed. */
#ifndef AGENT_PROCESS_SWEEP_H
#define AGENT_PROCESS_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct sweep {
    uint64_t started_ns;
    unsigned killed; /* processes that were ended by SIGKILL and reaped */
};

void sweep_init(struct sweep *s);

/* One step. `keep` (n pids, may be NULL) and their descendants are left alone and unreaped, so pass
 * every worker whose exit is still to be heard of. Returns the number of children that are still
 * there besides those, or 0 when there is none. */
int sweep_step(struct sweep *s, const pid_t *keep, size_t n);

/* Steps with short naps (woken by SIGCHLD) until nothing but `keep` is left or `seconds` have
 * passed. For a process without a loop: the guardian. Returns what sweep_step() last did. */
int sweep_run(struct sweep *s, const pid_t *keep, size_t n, double seconds);

/* The children of this process right now; at most max. Returns how many there are. */
int sweep_children(pid_t *out, int max);

/* One line on a process that does not die: "pid 881 (python) in state D (uninterruptible sleep) in
 * nfs_wait_bit_killable". Returns out. */
const char *sweep_describe(pid_t pid, char *out, size_t cap);

/* The state letter and the parent of a process; false when the process does not exist. */
bool sweep_read_stat(pid_t pid, char *state, pid_t *parent);

/* Tests: pretends that the kernel has no children files (CONFIG_PROC_CHILDREN). */
extern bool sweep_without_children_files;

#endif
