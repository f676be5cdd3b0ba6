/* proc.h: real processes under test. */
#ifndef TESTS_LIB_PROC_H
#define TESTS_LIB_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct proc {
    pid_t pid;
    char name[64];
    char *out, *err; /* the output so far, terminated */
    size_t out_len, err_len;
    int out_fd, err_fd, in_fd;
    bool exited;
    int status; /* as wait(2) gives it, when exited */
};

#define PROC_STDIN (1u << 0) /* stdin is a pipe: p->in_fd; else /dev/null */

/* Starts argv (argv[0] searched in PATH; NULL-terminated) in a session of its own; env:
 * "NAME=value" entries put on top of ours ("NAME" alone removes it), NULL-terminated, or NULL.
 * Fails the test when it cannot be started. It is killed, with its session's processes, when the
 * test's process ends. */
void proc_start(struct proc *p, char *const argv[], char *const env[], unsigned flags);

/* Reads what there is. Returns true when the process has exited and both streams are at their end.
 */
bool proc_poll(struct proc *p);

/* Waits until `text` stands in its stdout (or stderr); fails the test with all it printed when that
 * does not come within `seconds` or when it ends without it. */
void proc_expect_out(struct proc *p, const char *text, double seconds);
void proc_expect_err(struct proc *p, const char *text, double seconds);

/* Waits for its end. Returns its exit status as a shell says it (128+signal). Kills it and fails
 * the test, with all it printed, after `seconds`. */
int proc_wait(struct proc *p, double seconds);

void proc_kill(struct proc *p, int signo);
void proc_fini(struct proc *p); /* kills what is left of it and frees */

/* Runs to the end: start, wait, and the outputs in *p. */
int proc_run(struct proc *p, char *const argv[], char *const env[], double seconds);

#define ARGV(...) ((char *[]){__VA_ARGS__, NULL})

/* Counts the processes, except zombies, that have "NAME=value" in their environment: strays of a
 * job. */
int count_processes_with_env(const char *name_value);

#endif
