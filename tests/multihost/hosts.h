/* hosts.h: launchers on the hosts of tests/lib/netns.h, one on each. */
#ifndef TESTS_MULTIHOST_HOSTS_H
#define TESTS_MULTIHOST_HOSTS_H

#include <stdarg.h>

#include "tests/integration/job.h"
#include "tests/lib/netns.h"

#define HOSTS 3

/* Silence is death after 3 s. */
#define DEAD_S   3.0
#define QUICK    "--rdzv_conf keep_alive_interval=0.5,keep_alive_max_attempt=6,join_timeout=30"
#define ELASTIC  QUICK ",last_call_timeout=5"
#define MARGIN_S 2.5 /* for a busy machine, on top of it */

struct hosts {
    struct proc node[HOSTS];
};

__attribute__((format(printf, 3, 4))) static inline void launch(struct hosts *h, int host,
                                                                const char *line, ...)
{
    char *text;
    va_list ap;
    va_start(ap, line);
    ck_assert_int_ge(vasprintf(&text, line, ap), 0);
    va_end(ap);
    netns_start(&h->node[host], host, dlaunch_argv("", test_keep(text)), NULL);
}

/* The same command on every host, behind `--nnodes 3 --node_rank i` and what the launchers agree
 * upon. */
__attribute__((format(printf, 2, 3))) static inline void launch_all(struct hosts *h,
                                                                    const char *line, ...)
{
    char *text;
    va_list ap;
    va_start(ap, line);
    ck_assert_int_ge(vasprintf(&text, line, ap), 0);
    va_end(ap);
    test_keep(text);
    memset(h, 0, sizeof(*h));
    for (int i = 0; i < HOSTS; i++)
        launch(h, i, "--nnodes 3 --node_rank %d %s", i, text);
}

static inline void expect_exit(struct hosts *h, int host, int status, double seconds)
{
    struct proc *p = &h->node[host];
    int got = proc_wait(p, seconds);
    ck_assert_msg(got == status, "host%d: exit %d, not %d\n--- stdout\n%s\n--- stderr\n%s", host,
                  got, status, p->out, p->err);
}

static inline void expect_all(struct hosts *h, int status, double seconds)
{
    for (int i = 0; i < HOSTS; i++)
        expect_exit(h, i, status, seconds);
}

static inline void expect_said(const struct proc *p, const char *text)
{
    ck_assert_msg(strstr(p->err, text), "%s did not say \"%s\":\n%s", p->name, text, p->err);
}

static inline void expect_printed(const struct proc *p, const char *text)
{
    ck_assert_msg(strstr(p->out, text), "%s did not print \"%s\":\n%s\n--- stderr\n%s", p->name,
                  text, p->out, p->err);
}

/* No process of the job is on any host any more, and nothing else either. */
static inline void hosts_fini(struct hosts *h)
{
    for (int i = 0; i < HOSTS; i++) {
        if (h->node[i].pid)
            proc_fini(&h->node[i]);
        ck_assert_msg(netns_count_processes(i) == 0, "%d processes are left on host%d",
                      netns_count_processes(i), i);
    }
}

#endif
