/* checks.h: from the facts of the nodes to what is wrong with them. Pure; one table has all checks
 * (checks.c).
 *
 * A node is the object that facts_collect() makes, with "node" (its group rank), "addr" (where the
 * others reach it), and, if they are known, "clock_s" (ahead of node 0's) and "clock_error_s".
 * {"node", "host", "missing": "why"} is a node without facts. */
#ifndef AGENT_DOCTOR_CHECKS_H
#define AGENT_DOCTOR_CHECKS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct problem {
    const char *check; /* its name in the table */
    bool stops;        /* workers would not run well: --preflight takes the node out */
    int node, other;   /* group ranks; other: of the path's other end, or -1 */
    char host[256], text[384], remedy[256];
};

struct problems {
    struct problem *p; /* owned */
    size_t n;
};

/* The checks that need the facts of one node only. */
void checks_of_node(const json_t *node, struct problems *out);

/* The checks that compare nodes, and the measured paths between them: an array of {"a", "b",
 * "rtt_us", "bps" (the worse direction), "local" (both are on one host)} or {"a", "b", "error":
 * {"at", "to", "stage", "errno"}}. */
void checks_of_job(const json_t *nodes, const json_t *pairs, struct problems *out);

/* The paths that stand out and have to be measured again, alone, the worst first; and with them
 * each of their nodes with one that is above suspicion. Returns how many there are, at most max. */
int checks_suspects(const json_t *pairs, int nnodes, int (*out)[2], int max);

/* Takes the better of two measurements of a path. */
void checks_take_pair(json_t *pairs, json_t *pair);

/* The usual figures of a path: the better quartile, because one bad node of three spoils two paths
 * of three. False: no path was measured. */
struct path_figures {
    int n;
    double rtt_us, bps;
};
bool checks_figures(const json_t *pairs, struct path_figures *out);

/* "n3 (node 3): shm: ...; remedy", a line for each, and one for those that several nodes have
 * alike; malloc'ed. */
char *problems_text(const struct problems *all);
json_t *problem_json(const struct problem *p);
void problems_fini(struct problems *p);

#endif
