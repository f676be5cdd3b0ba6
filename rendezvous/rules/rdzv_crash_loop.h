/* rdzv_crash_loop.h: detects crash loops: the same failure soon after every start, and nodes on
 * which failures begin again and again. Pure; the coordinator keeps one over all rounds. */
#ifndef RENDEZVOUS_RULES_RDZV_CRASH_LOOP_H
#define RENDEZVOUS_RULES_RDZV_CRASH_LOOP_H

#include "core/netaddr.h"
#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rdzv_node.h"

#define RDZV_ALIKE_PAUSE 3 /* after so many starts with the same end, the next one waits */
#define RDZV_ALIKE_MAX   6 /* after so many, there is no next one */
#define RDZV_CRASH_LOOP_MAX \
    3 /* so many failures of one node, each within RDZV_CRASH_LOOP_NS of the last: */
#define RDZV_CRASH_LOOP_NS    600000000000u
#define RDZV_LEFT_OUT_NS      300000000000u /* the node is left out for so long */
#define RDZV_CRASH_LOOP_NODES 16            /* entries */

struct rdzv_crash_loop_entry {
    struct node_id id; /* of its launcher; a launcher on the same host is the same node */
    char host[HOST_MAX];
    char addr[ADDR_STRLEN];
    int count;
    uint64_t last_ns, until_ns; /* left out until; 0 */
    bool has_failed;            /* a worker of the node has failed, as `how` says */
    struct failure_likeness how;
};

/* The ends of consecutive starts so far: the starts of the job, or those of one worker that is
 * started again alone. */
struct rdzv_starts {
    struct failure_likeness last;
    int alike; /* so many in a row have failed alike, soon */
};

struct rdzv_worker {
    uint64_t start_ns; /* of the newest start; 0: not started again in this round */
    uint64_t
        answered_ns; /* when the node saw the failure that the start answers, by the node's clock */
    struct rdzv_starts starts;
};

struct rdzv_crash_loop {
    struct rdzv_starts job;
    struct rdzv_crash_loop_entry nodes[RDZV_CRASH_LOOP_NODES];
    int nnodes;
};

/* A start has ended with this failure after lived_ns. Returns how many starts in a row have ended
 * alike (failure_likeness_equal()) within at_once_ns; 0: this one lived longer, and the count is
 * reset. */
int rdzv_starts_failure(struct rdzv_starts *b, const struct failure *first, uint64_t lived_ns,
                        uint64_t at_once_ns);
/* Returns what rdzv_starts_failure() would return, and does not change the count. */
int rdzv_starts_would(const struct rdzv_starts *b, const struct failure *first, uint64_t lived_ns,
                      uint64_t at_once_ns);
/* The pause before the next start, ns: 0, and from the third start on 1, 2, 4, ... 60 s. */
uint64_t rdzv_crash_loop_pause(int alike);

/* Notes how a worker of this node has failed. True: another node has failed alike, in the same
 * round (`elsewhere`) or within RDZV_CRASH_LOOP_NS, so that it is not the node that is at fault;
 * the counts of both begin anew. */
bool rdzv_crash_loop_is_common(struct rdzv_crash_loop *b, const struct rdzv_node *n,
                               const struct failure *f, bool elsewhere, uint64_t now);
/* A round has ended because of this node. True: the node is left out from now on. */
bool rdzv_crash_loop_node(struct rdzv_crash_loop *b, const struct rdzv_node *n, uint64_t now);
/* The node is left out from now on. */
void rdzv_crash_loop_evict(struct rdzv_crash_loop *b, const struct rdzv_node *n, uint64_t now);
/* The time until which the node is left out, or 0. alone: no other node has this host and
 * address. */
uint64_t rdzv_crash_loop_until(const struct rdzv_crash_loop *b, const struct rdzv_node *n,
                               bool alone, uint64_t now);

#endif
