/* spawn.h: starting one worker.
 *
 * The child, between clone and exec, calls only what is async-signal-safe, in this order: new
 * process group (in our session), PDEATHSIG=KILL then a check that the parent is still there,
 * soft RLIMIT_NOFILE as it was when dlaunch started, CPU set, signal dispositions to default
 * (1..64; those ignored when dlaunch was started stay ignored), stdio, descriptors above 2 closed
 * on exec except those kept, working directory, empty signal mask, execve.
 *
 * It is made with CLONE_VM, as vfork() makes one, on a stack of its own; a step that fails it
 * writes where we read it. Several can be under way at once: spawn_begin() returns when the child
 * exists, spawn_settle() when every child runs its program or has failed, and spawn() is one after
 * the other. All signals are blocked from before the clone until the dispositions are set. So a
 * signal sent at any time after spawn() or spawn_settle(), to the process or to its group, reaches
 * the worker with its default action and is never lost; between the two, one to the process does.
 * spawn_failure() tells what failed after the exit with 125, 126 or 127 has been seen.
 *
 * A child that execve() or chdir() holds, on a file system that does not answer, is waited for
 * only for a moment, once: it is slow from then on, a process like any other, which SIGKILL ends
 * if it ends it at all. (On processors other than x86-64 and aarch64, and under qemu-user, the
 * kernel waits for it as for a child of vfork().)
 */
#ifndef AGENT_PROCESS_SPAWN_H
#define AGENT_PROCESS_SPAWN_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"

struct spawner; /* the children's stacks, failures not yet fetched. For one thread: the main thread,
                   for PDEATHSIG is sent when the thread that spawned ends */

#define SPAWN_KEEP_MAX 8

/* When memory runs out, the kernel is to take a worker, not the process that would tell of it. So a
 * child's oom_score_adj is so much higher than ours, from when its program runs on: as if it had a
 * fifth of the limit's memory more than it has. Never above the kernel's 1000, never lower than it
 * was, which takes a privilege. */
#define SPAWN_OOM_MORE 200

struct spawn_request {
    const char *path; /* for execve: absolute, or relative to cwd */
    char *const *argv;
    char *const *envp;
    const char *cwd; /* NULL: stay */
    int stdio[3];    /* become 0, 1, 2; any descriptors, equal ones and 0..2 themselves included */
    const int *keep; /* further descriptors handed down under their own numbers (all > 2) */
    size_t nkeep;    /* at most SPAWN_KEEP_MAX */
    const cpu_set_t *cpus; /* NULL: inherit */
    size_t cpus_size;
    bool session;   /* a session of its own, see child_main() */
    bool outlives;  /* not killed when the parent dies */
    int cgroup_fd;  /* directory of a cgroup v2 to start in, if that can be had; -1 none */
    bool vital;     /* as necessary as this process; else its score is SPAWN_OOM_MORE higher */
    void *owned[2]; /* taken, and freed with free() when the program runs or cannot */
};

/* Remembers what workers are to get as dlaunch got it: the soft RLIMIT_NOFILE, and which signals
 * were ignored. The first call counts; guardian_run() makes it, else spawner_new(). */
void spawn_remember(void);

/* Whether `sig` was ignored when dlaunch was started and stays so (nohup: SIGHUP; a shell's
 * background job: SIGINT, SIGQUIT). Never SIGPIPE or SIGCHLD, which go to their default. */
bool spawn_was_ignored(int sig);

/* After this call the process must not change which signals it ignores. */
int spawner_new(struct spawner **out, struct err *e);
void spawner_free(struct spawner *s);

/* Starts the child, with a copy of all that *req points to (but `cpus`). *pidfd is owned by the
 * caller, or -1 where the kernel has none. An error means that no process exists (EAGAIN names the
 * limit that was hit). */
int spawn(struct spawner *s, const struct spawn_request *req, pid_t *pid, int *pidfd,
          struct err *e);

/* spawn() in two steps. Until spawn_settle() returns true the caller keeps all that *req points to
 * unchanged, but for the descriptors, which may be closed, and the array `keep`. */
int spawn_begin(struct spawner *s, const struct spawn_request *req, pid_t *pid, int *pidfd,
                struct err *e);
/* False: some child is slow, and has not begun its program. */
bool spawn_settle(struct spawner *s);

/* To be called after `pid` exited with 125, 126 or 127: whether the child failed before exec. Fills
 * in *exit_code and the one-line text ("exec ./train: No such file or directory", or which
 * interpreter, architecture, noexec file system, limit; see exec_why()). Once for each failure. */
bool spawn_failure(struct spawner *s, pid_t pid, int *exit_code, struct err *e);

/* Describes why there was no new process or thread: `what`, and the limit that was hit. Returns
 * -errnum. */
int spawn_explain(const char *what, int errnum, struct err *e);

/* For tests: true makes spawners do without clone3() and close_range(), as on old kernels and in
 * some containers. Read when a spawner is made. */
extern bool spawn_as_on_old_kernel;

#endif
