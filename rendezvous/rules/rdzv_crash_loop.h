/* rdzv_crash_loop.h: what goes wrong again and again: the same failure at once after every start,
 * and the node where it starts. Pure; the coordinator's memory over all rounds. */
#ifndef RENDEZVOUS_RULES_RDZV_CRASH_LOOP_H
#define RENDEZVOUS_RULES_RDZV_CRASH_LOOP_H

#include "core/netaddr.h"
#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/rdzv_node.h"

#define RDZV_ALIKE_PAUSE      3 /* so many starts that end alike: a pause before the next */
#define RDZV_ALIKE_MAX        6 /* so many: no next one */
#define RDZV_CRASH_LOOP_MAX   3 /* so many failures on one node, no two further apart than this: */
#define RDZV_CRASH_LOOP_NS    600000000000u
#define RDZV_LEFT_OUT_NS      300000000000u /* and it is left out for this long */
#define RDZV_CRASH_LOOP_NODES 16            /* nodes that are remembered */

struct rdzv_crash_loop_entry {
    struct node_id id; /* of its launcher; another one on the same host counts as the same node */
    char host[HOST_MAX];
    char addr[ADDR_STRLEN];
    int count;
    uint64_t last_ns, until_ns; /* left out until; 0 */
};

struct rdzv_crash_loop {
    bool any;
    int rank, code, signal, alike;
    enum failure_kind kind;
    struct rdzv_crash_loop_entry nodes[RDZV_CRASH_LOOP_NODES];
    int nnodes;
};

/* A round that lived for lived_ns has ended with this failure: how many rounds in a row have ended
 * so within at_once_ns of their start. 0: this one has not, and the count begins anew. */
int rdzv_crash_loop_failure(struct rdzv_crash_loop *b, const struct failure *first,
                            uint64_t lived_ns, uint64_t at_once_ns);
/* The same question, not yet for good. */
int rdzv_crash_loop_would(const struct rdzv_crash_loop *b, const struct failure *first,
                          uint64_t lived_ns, uint64_t at_once_ns);
/* The pause before the next start, ns: 0, and from the third on 1, 2, 4, ... 60 s. */
uint64_t rdzv_crash_loop_pause(int alike);

/* A round ended because of this node. True: it is left out from now on. */
bool rdzv_crash_loop_node(struct rdzv_crash_loop *b, const struct rdzv_node *n, uint64_t now);
/* Until when it is left out, or 0. alone: no other node has this host and address. */
uint64_t rdzv_crash_loop_until(const struct rdzv_crash_loop *b, const struct rdzv_node *n,
                               bool alone, uint64_t now);

#endif
