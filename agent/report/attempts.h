/* attempts.h: the starts of a job's workers on this node, for the report: one for each round. */
#ifndef AGENT_REPORT_ATTEMPTS_H
#define AGENT_REPORT_ATTEMPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/rules/cause.h"
#include "rendezvous/rules/rank_table.h"

#define ATTEMPTS_MAX 64 /* the newest are kept */

struct attempt {
    int restart_count;
    uint32_t round;
    uint64_t start_wall_ns, end_wall_ns;
    int nnodes, world_size;
    int base_rank, nproc;  /* the ranks of this node */
    enum cause cause;      /* CAUSE_NONE: the last attempt, which went well */
    char text[512];        /* one line on the cause; "" */
    struct failure *first; /* owned; NULL: no worker or node failed */
    char log_dir[544];     /* of this node's workers; "": none */
};

struct attempts {
    struct attempt *e; /* the oldest first */
    size_t n;
    size_t omitted; /* older attempts */
};

/* A round begins. log_dir: "" if there is none. */
void attempts_begin(struct attempts *a, const struct rank_table *t, int group_rank,
                    const char *log_dir, uint64_t wall_ns);
/* Why the round ends; again: with a better record. first: NULL if no worker or node failed. Nothing
 * happens when no round has begun. */
void attempts_cause(struct attempts *a, enum cause cause, const char *text,
                    const struct failure *first);
/* The workers of the round have ended. */
void attempts_end(struct attempts *a, uint64_t wall_ns);
/* The one that has not ended; NULL: there is none. */
struct attempt *attempts_current(struct attempts *a);
void attempts_fini(struct attempts *a);

#endif
