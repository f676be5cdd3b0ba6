/* rdzv_quorum.h: whether a coordinator may go on, and whether one that stands for election is
 * elected: never two halves of one job. Pure; part of rdzv_state.
 *
 * A list is the members of a round; what counts is the newest that was run, and one that was
 * prepared after it. To be elected takes more than half of each. An elected coordinator, like the
 * first one, goes on as long as those who are neither in reach nor known to be dead are at most
 * half: they cannot elect another one then. It hands out leases on the same condition. */
#ifndef RENDEZVOUS_RULES_RDZV_QUORUM_H
#define RENDEZVOUS_RULES_RDZV_QUORUM_H

#include "core/map.h"
#include "rendezvous/rules/rdzv_node.h"

struct rdzv_quorum {
    struct rdzv_peers list; /* n is 0: nothing to count */
    bool *dead;             /* of each: its launcher is known to have ended */
};

void rdzv_quorum_set(struct rdzv_quorum *q, const struct rdzv_peers *list);
/* The same members, and more behind them. */
void rdzv_quorum_grow(struct rdzv_quorum *q, const struct rdzv_peers *list);
void rdzv_quorum_fini(struct rdzv_quorum *q);
void rdzv_quorum_dead(struct rdzv_quorum *q, const struct node_id *id);

/* How many of the list are here: connected, and having seen a view that was sent after `since` (0:
 * any or none). When it came is not enough: a coordinator that slept finds old messages. */
int rdzv_quorum_present(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since);
/* Whether one that is here has workers of an older round. */
bool rdzv_quorum_busy(const struct rdzv_quorum *q, const struct map *by_id);
/* How many are neither here nor known to be dead. */
int rdzv_quorum_unknown(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since);

/* How many are here, or ended as nodes of this coordinator's. The host of the one that was is none
 * of those, dead or not. */
int rdzv_quorum_votes(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since);

/* Since when at most half of them have not been in touch, by views or heartbeats: it moves on with
 * every contact. NEVER: those who are here for sure, or dead, are enough. */
uint64_t rdzv_quorum_touch(const struct rdzv_quorum *q, const struct map *by_id);

#endif
