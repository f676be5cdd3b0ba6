/* elastic_nodes.h: launchers of one machine, each a node of a c10d job whose coordinator is node 0,
 * with a dead time of 3 s and so a lease of 1.4 s; a first round short of MAX starts after 5 s. */
#ifndef TESTS_INTEGRATION_ELASTIC_NODES_H
#define TESTS_INTEGRATION_ELASTIC_NODES_H

#include "tests/integration/job.h"

struct nodes {
    int port;
    struct proc p[6];
    int n;
    char *up; /* a file: each worker that has started appends a line */
};

/* Prepares a job without nodes; `up` is tmpdir()/name. */
void nodes_begin(struct nodes *c, const char *name);

/* Starts another node, with these options and commands of its workers. Returns its index. */
int nodes_add(struct nodes *c, const char *options, const char *job);
/* Waits for the end of node i; fails the test unless it exits with `status`. */
void nodes_expect(struct nodes *c, int i, int status);

void nodes_end(struct nodes *c);

#endif
