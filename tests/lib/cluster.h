/* cluster.h: launchers under test, one or several, each standing for a node. */
#ifndef TESTS_LIB_CLUSTER_H
#define TESTS_LIB_CLUSTER_H

#include "tests/lib/proc.h"

#define CLUSTER_MAX 16

struct cluster {
    int n;
    int port; /* of the endpoint on 127.0.0.1 */
    struct proc node[CLUSTER_MAX];
};

/* A TCP port that was free a moment ago, and that nobody gets by chance. */
int free_port(void);

/* Starts `build/dlaunch <options> <command>`; the line is split at blanks, "" and '' keep blanks.
 * %W stands for build/tests/worker, %T for the test's directory. env as proc_start() takes it. */
void dlaunch_start(struct proc *p, char *const env[], const char *line, ...)
    __attribute__((format(printf, 3, 4)));
int dlaunch_run(struct proc *p, double seconds, const char *line, ...)
    __attribute__((format(printf, 3, 4)));

/* Starts a launcher whose stdout is connected to `fd`. */
void dlaunch_start_into(struct proc *p, int fd, const char *line);

/* The argv of `build/dlaunch <options> <line>`, NULL-terminated, valid until the process ends. */
char **dlaunch_argv(const char *options, const char *line);

/* Starts n launchers: `dlaunch --nnodes n --node_rank i --master_port P <line>`. */
void cluster_start(struct cluster *c, int n, const char *line, ...)
    __attribute__((format(printf, 3, 4)));
/* Starts the i-th launcher alone, with its own line (options and command) behind the common
 * options. */
void cluster_start_node(struct cluster *c, int i, const char *line, ...)
    __attribute__((format(printf, 3, 4)));
/* Waits for all; fails unless each exits with `status`. */
void cluster_wait(struct cluster *c, int status, double seconds);
void cluster_fini(struct cluster *c);

/* The lines of a file written by the worker's `append`: how many there are now; 0 when there is
 * none. */
int count_lines(const char *path);
/* Waits until the file has n lines; fails the test otherwise. */
void wait_lines(const char *path, int n, double seconds);

#endif
