/* hosts.h: launchers on the hosts of tests/lib/netns.h, one on each. */
#ifndef TESTS_MULTIHOST_HOSTS_H
#define TESTS_MULTIHOST_HOSTS_H

#include <stdarg.h>

#include "tests/integration/job.h"
#include "tests/lib/netns.h"

#define HOSTS 3

/* A silent node is dead after 3 s. */
#define DEAD_S   3.0
#define QUICK    "--rdzv_conf keep_alive_interval=0.5,keep_alive_max_attempt=6,join_timeout=30"
#define ELASTIC  QUICK ",last_call_timeout=5"
#define MARGIN_S 2.5 /* for a busy machine, on top of it */

struct hosts {
    struct proc node[HOSTS];
};

/* Starts a launcher on a host. */
void launch(struct hosts *h, int host, const char *line, ...) __attribute__((format(printf, 3, 4)));

/* The same command on every host, behind `--nnodes 3 --node_rank i`. */
void launch_all(struct hosts *h, const char *line, ...) __attribute__((format(printf, 2, 3)));

/* Waits for the end of the launchers; fails the test unless they exit with `status`. */
void expect_exit(struct hosts *h, int host, int status, double seconds);
void expect_all(struct hosts *h, int status, double seconds);

void expect_said(const struct proc *p, const char *text);
void expect_printed(const struct proc *p, const char *text);

/* Ends the launchers; fails the test if any process is left on a host. */
void hosts_fini(struct hosts *h);

#endif
