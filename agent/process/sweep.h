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
    unsigned killed; /* processes that died of SIGKILL and were reaped */
};

void sweep_init(struct sweep *s);

/* One step. The processes in `keep` (n pids, may be NULL) and their descendants are neither killed
 * nor reaped. Returns the number of other children that still exist. */
int sweep_step(struct sweep *s, const pid_t *keep, size_t n);

/* Repeats the step, waiting for SIGCHLD in between, until no child besides `keep` is left or
 * `seconds` have passed. For a process without a loop: the guardian. Returns the last result of
 * sweep_step(). */
int sweep_run(struct sweep *s, const pid_t *keep, size_t n, double seconds);

/* Lists at most `max` children of this process. Returns their number, which may be larger. */
int sweep_children(pid_t *out, int max);
/* The same of another process. */
int sweep_children_of(pid_t parent, pid_t *out, int max);

/* One line on a process that does not die: "pid 881 (python) in state D (uninterruptible sleep) in
 * nfs_wait_bit_killable". Returns out. */
const char *sweep_describe(pid_t pid, char *out, size_t cap);

/* The state letter and the parent of a process; false when the process does not exist. */
bool sweep_read_stat(pid_t pid, char *state, pid_t *parent);

/* Tests: pretends that the kernel has no children files (CONFIG_PROC_CHILDREN). */
extern bool sweep_without_children_files;

#endif
