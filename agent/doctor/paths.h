/* paths.h: the measured paths between nodes: which of them are bad, and whether a node or the path
 * is at fault. Pure. */
#ifndef AGENT_DOCTOR_PATHS_H
#define AGENT_DOCTOR_PATHS_H

#include "agent/doctor/fact.h"
#include "agent/doctor/problems.h"

/* The paths that stand out and have to be measured again, alone, the worst first; and with them
 * each of their nodes with one that is above suspicion. Returns how many there are, at most max. */
int paths_suspects(const struct pair_list *pairs, int nnodes, int (*out)[2], int max);

/* Takes the better of two measurements of a path. */
void paths_take(struct pair_list *pairs, const struct pair_facts *pair);

/* The usual figures of a path: the better quartile, because one bad node of three spoils two paths
 * of three. False: no path was measured. */
struct path_figures {
    int n;
    double rtt_us, bps;
};
bool paths_figures(const struct pair_list *pairs, struct path_figures *out);

/* The checks. */
struct paths {
    const struct node_facts *nodes;
    size_t nnodes;
    const struct pair_list *pairs;
    const char *check; /* the fault's name, and whether workers would not run well */
    bool stops;
    struct problems *out;
};
void paths_check_reach(const struct paths *x);
void paths_check_latency(const struct paths *x);
void paths_check_bandwidth(const struct paths *x);

#endif
