/* rdzv_quorum.h: counts of votes: whether a coordinator may go on, and whether a candidate is
 * elected, so that two halves of one job never run. Pure; rdzv_election.c states the invariants.
 *
 * A list holds the members of a round. Two lists count: that of the newest round that ran, and that
 * of a round that was prepared after it. A candidate needs more than half of each. A coordinator
 * goes on as long as the members that are neither in reach nor proven to have ended are at most
 * half of each list, for then they cannot elect another one. Leases are given out on the same
 * condition. */
#ifndef RENDEZVOUS_RULES_RDZV_QUORUM_H
#define RENDEZVOUS_RULES_RDZV_QUORUM_H

#include "core/map.h"
#include "rendezvous/rules/rdzv_node.h"

struct rdzv_quorum {
    struct rdzv_peers list; /* n is 0: there is no list */
    bool *dead;             /* by index in the list: the launcher is proven to have ended */
};

void rdzv_quorum_set(struct rdzv_quorum *q, const struct rdzv_peers *list);
/* Replaces the list by a longer one that begins with the same members. */
void rdzv_quorum_grow(struct rdzv_quorum *q, const struct rdzv_peers *list);
void rdzv_quorum_fini(struct rdzv_quorum *q);
void rdzv_quorum_dead(struct rdzv_quorum *q, const struct node_id *id);

/* Returns how many members of the list are present, that is connected, and have seen a view that
 * was sent after `since` (0: any view or none). The time of arrival of a message would not prove
 * that: a coordinator that was suspended finds old messages. */
int rdzv_quorum_present(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since);
/* Whether a connected member has workers of an older round. */
bool rdzv_quorum_busy(const struct rdzv_quorum *q, const struct map *by_id);
/* Returns how many members are neither present nor proven to have ended. */
int rdzv_quorum_unknown(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since);

/* Returns how many members are present, or have ended while they followed this coordinator. The
 * host of the lost coordinator is not counted, even if its end is proven. */
int rdzv_quorum_votes(const struct rdzv_quorum *q, const struct map *by_id, uint64_t since);

/* The time since which at most half of the members have been without contact, by views or
 * heartbeats. It moves on with every contact. UINT64_MAX: ended members and this process alone
 * suffice.
 */
uint64_t rdzv_quorum_touch(const struct rdzv_quorum *q, const struct map *by_id);

#endif
