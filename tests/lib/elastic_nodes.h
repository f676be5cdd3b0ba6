/* elastic_nodes.h: launchers of one machine, each a node of a c10d job whose coordinator is node 0,
 * with a dead time of 3 s and so a lease of 1.4 s; a first round short of MAX starts after 5 s. All
 * of it is the test program's own. */
#ifndef TESTS_LIB_ELASTIC_NODES_H
#define TESTS_LIB_ELASTIC_NODES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "tests/lib/cluster.h"
#include "tests/lib/test.h"

static inline void expect_text(const char *where, const char *text)
{
    ck_assert_msg(strstr(where, text), "not there: \"%s\"\nin: %s", text, where);
}

/* The agent of a launcher: its guardian's only child. */
static inline pid_t agent_of(const struct proc *p)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", p->pid, p->pid);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), f));
    fclose(f);
    return (pid_t)atoi(text);
}

struct nodes {
    int port;
    struct proc p[6];
    int n;
    char *up; /* a line of each worker that has started */
};

static inline void begin(struct nodes *c, const char *name)
{
    *c = (struct nodes){.port = free_port(), .up = xasprintf("%s/%s", tmpdir(), name)};
}

/* Dead time 3 s, lease 1.4 s; the line goes on with options and the workers' commands. */
static inline int add(struct nodes *c, const char *options, const char *job)
{
    int i = c->n++;
    dlaunch_start(&c->p[i], NULL,
                  "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --nproc_per_node 2 --rdzv_conf "
                  "is_host=%d,keep_alive_interval=0.2,keep_alive_max_attempt=15,"
                  "last_call_timeout=5,join_timeout=20 %s %%W append %s %s",
                  c->port, i == 0, options, c->up, job);
    return i;
}

static inline void end(struct nodes *c)
{
    for (int i = 0; i < c->n; i++)
        proc_fini(&c->p[i]);
    free(c->up);
}

static inline void expect_status(struct nodes *c, int i, int status)
{
    int got = proc_wait(&c->p[i], 20);
    ck_assert_msg(got == status, "node %d: exit %d instead of %d\n%s", i, got, status, c->p[i].err);
}

#endif
