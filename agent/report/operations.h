/* operations.h: the operations of libdlcoll that the workers of a node have done, collected from
 * their flight recorders (core/segment.h), for the timeline. A recorder keeps the last SEGMENT_OPS
 * of a worker: what it does between two looks beyond these is counted as missed. */
#ifndef AGENT_REPORT_OPERATIONS_H
#define AGENT_REPORT_OPERATIONS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/base/node.h"

#define OPERATIONS_MAX 200000 /* that are kept, the newest */

struct operations {
    struct operation *e; /* a ring once it is full */
    size_t n, cap, next;
    uint64_t *seen; /* by local rank: the number of the newest one taken */
    int nseen;
    uint64_t missed;
};

/* Takes the operations that have ended since the last look; all: those under way, too. */
void operations_look(struct operations *o, const struct segment *s, int node, int base_rank,
                     bool all);
/* Takes the operations of the workers of the node, if there is a round. */
void operations_look_at_node(struct operations *o, const struct node *n, bool all);
/* The next segment is of other workers. */
void operations_next_round(struct operations *o);
void operations_fini(struct operations *o);

/* {"operations": [{"rank", "node", "name", "number", "count", "dtype", "group", "start_s", "end_s",
 * "failed"}, ...], "missed": N}; without end_s it was under way. offset_ns: added to the times. */
json_t *operations_json(const struct operations *o, int64_t offset_ns);

#endif
