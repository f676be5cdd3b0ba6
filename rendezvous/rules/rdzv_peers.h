/* rdzv_peers.h: the members of a round and where each of their launchers listens, so that they find
 * each other when the coordinator is lost. Every launcher keeps the list of the newest round for
 * which it was prepared, and of the newest that ran. Plain data. */
#ifndef RENDEZVOUS_RULES_RDZV_PEERS_H
#define RENDEZVOUS_RULES_RDZV_PEERS_H

#include "core/bytes.h"
#include "rendezvous/rules/rank_table.h"

/* Every launcher draws its id at random, and keeps the id when it connects again. */
struct node_id {
    uint8_t b[16];
};

static inline bool node_id_equal(const struct node_id *a, const struct node_id *b)
{
    return __builtin_memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

struct rdzv_peer_entry {
    struct node_id id;
    char addr[ADDR_STRLEN];
    uint16_t port; /* at which the launcher listens for the others; 0: none */
    bool host;     /* the coordinator's own */
};

struct rdzv_peers {
    struct generation gen;
    bool ran;                  /* the round has run, as far as the sender knows */
    int n;                     /* in the order of the group ranks */
    struct rdzv_peer_entry *e; /* owned */
};

/* The facts with which a candidate stands for election. Borrowed for rdzv_state_stand(). */
struct rdzv_electorate {
    const struct rdzv_peers *ran, *prepared; /* prepared: NULL when that list is not newer */
    uint64_t seen_epoch;
    uint64_t random; /* for its own epoch */
    int restarts, node_restarts;
    uint64_t dead_epoch;   /* of the lost coordinator, if its end is proven; 0 */
    const char *loss_text; /* a line: how the coordinator was lost */
};

void rdzv_peers_fini(struct rdzv_peers *p);
void rdzv_peers_copy(struct rdzv_peers *to, const struct rdzv_peers *from); /* to: finished */
/* Takes the content of `from`, which is empty afterwards. */
void rdzv_peers_move(struct rdzv_peers *to, struct rdzv_peers *from);
/* Whether the members without the coordinator are more than half, so that they can elect another
 * one. */
bool rdzv_peers_may_elect(const struct rdzv_peers *p);
int rdzv_peers_find(const struct rdzv_peers *p, const struct node_id *id); /* index, or -1 */

/* Epochs are ordered: the term, which rises with every election, and below it a part drawn at
 * random, so that two coordinators never have the same one. */
#define RDZV_EPOCH_RANDOM_BITS 40
static inline uint64_t rdzv_epoch(uint64_t term, uint64_t random)
{
    return term << RDZV_EPOCH_RANDOM_BITS | (random & ((1ull << RDZV_EPOCH_RANDOM_BITS) - 1));
}
static inline uint64_t rdzv_epoch_term(uint64_t epoch)
{
    return epoch >> RDZV_EPOCH_RANDOM_BITS;
}
static inline uint64_t rdzv_epoch_next(uint64_t seen, uint64_t random)
{
    return rdzv_epoch(rdzv_epoch_term(seen) + 1, random);
}

static inline bool generation_before(struct generation a, struct generation b)
{
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.counter < b.counter;
}

#endif
