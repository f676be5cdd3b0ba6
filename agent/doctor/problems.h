/* problems.h: the list of the faults found on nodes, as text. */
#ifndef AGENT_DOCTOR_PROBLEMS_H
#define AGENT_DOCTOR_PROBLEMS_H

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "agent/doctor/fact.h"

struct problem {
    const char *check; /* the check's name in the table */
    bool stops;        /* workers would not run well: --preflight takes the node out */
    int node, other;   /* group ranks; other: of the path's other end, or -1 */
    char host[256], text[384], remedy[256];
};

struct problems {
    struct problem *p; /* owned */
    size_t n;
};

/* Adds a problem of this node, which its facts show. The result is valid until the next problem is
 * added. */
struct problem *problems_add(struct problems *all, const char *check, bool stops,
                             const struct node_facts *node, const char *remedy, const char *fmt,
                             ...) __attribute__((format(printf, 6, 7)));
struct problem *problems_vadd(struct problems *all, const char *check, bool stops,
                              const struct node_facts *node, const char *remedy, const char *fmt,
                              va_list ap) __attribute__((format(printf, 6, 0)));

/* "n3 (node 3): shm: ...; remedy", a line for each, and one for those that several nodes have
 * alike; malloc'ed. */
char *problems_text(const struct problems *all);
json_t *problem_json(const struct problem *p);
void problems_fini(struct problems *p);

#endif
