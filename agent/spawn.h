/* spawn.h: starting one worker.
 *
 * The child, between clone and exec, calls only what is async-signal-safe, in this order: new
 * session (and process group), PDEATHSIG=KILL then a check that the parent is still there, soft
 * RLIMIT_NOFILE as it was when dlaunch started, CPU set, signal dispositions to default (1..64;
 * those ignored when dlaunch was started stay ignored), stdio, descriptors above 2 closed on exec
 * except those kept, working directory, empty signal mask, execve. All signals are blocked from
 * before the clone until the dispositions are set, so a signal sent at any time after spawn()
 * reaches the worker with its default action and is never lost. A failed step is written as {pid,
 * stage, errno} to a close-on-exec pipe before the child exits with 125, 126 or 127;
 * spawn_failure() fetches it after the exit has been seen.
 */
#ifndef AGENT_SPAWN_H
#define AGENT_SPAWN_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"

struct spawner; /* the pipe, and what was remembered of this process at its start */

struct spawn_request {
    const char *path; /* for execve: absolute, or relative to cwd */
    char *const *argv;
    char *const *envp;
    const char *cwd; /* NULL: stay */
    int stdio[3];    /* become 0, 1, 2; any descriptors, equal ones and 0..2 themselves included */
    const int *keep; /* further descriptors handed down under their own numbers (all > 2) */
    size_t nkeep;
    const cpu_set_t *cpus; /* NULL: inherit */
    size_t cpus_size;
    int cgroup_fd; /* directory of a cgroup v2 to start in; -1 none */
};

int spawner_new(struct spawner **out, struct err *e);
void spawner_free(struct spawner *s);

/* Starts it. *pidfd is owned by the caller, or -1 where the kernel has none. An error means that no
 * process exists (EAGAIN names the limit that was hit). */
int spawn(struct spawner *s, const struct spawn_request *req, pid_t *pid, int *pidfd,
          struct err *e);

/* After `pid` exited with 125, 126 or 127: whether that was ours, before exec. Fills in *exit_code
 * and the one-line text ("exec ./train: No such file or directory", or which interpreter,
 * architecture, noexec file system, limit; see exec_why()). */
bool spawn_failure(struct spawner *s, pid_t pid, int *exit_code, struct err *e);

/* Why execve(path, argv, envp) failed with `errnum`, in words: a missing interpreter is not a
 * missing file, a foreign architecture is named, a directory, a missing x bit, a noexec mount, an
 * argument list that is too long (with the largest variables by name). Returns the exit code: 127
 * or 126. */
int exec_why(const char *path, char *const *envp, int errnum, struct err *e);

/* The same checks before anything is started: 0 when `path` can be executed as far as one can tell,
 * else -errno with the text, and *exit_code 126 or 127. */
int exec_check(const char *path, int *exit_code, struct err *e);

/* Searches PATH (of this process) for `name` as execvp() would; a name with a slash is taken as it
 * is. Returns a malloc'ed path, or NULL with the error (-ENOENT or -EACCES). */
char *exec_find(const char *name, struct err *e);

#endif
