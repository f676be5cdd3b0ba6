/* algo.h: the algorithms between ranks that reach each other through a transport. Each writes one
 * rank's part of an operation into a schedule; none does I/O, so all are proven without a network.
 *
 * A new algorithm is a function and a row of the table in algo.c. */
#ifndef COLLECTIVES_NET_ALGO_H
#define COLLECTIVES_NET_ALGO_H

#include <stdbool.h>
#include <stddef.h>

#include "collectives/call.h"
#include "collectives/net/schedule.h"

/* One operation as one rank sees it. All but `rank` is the same on every rank, and so every rank
 * chooses the same algorithm. */
struct coll {
    enum call_kind kind;
    int rank, size;
    int root;
    size_t count; /* elements */
    size_t elem;  /* bytes of one */
};

struct algo {
    enum call_kind kind;
    const char *name;
    /* Restrictions: it is right only where they hold. */
    int min_size, max_size; /* ranks */
    bool any_order; /* the reduction may be taken in another order of ranks than 0, 1, 2, ... */
    /* Preference: up to so many bytes of message the row is taken before those below it. */
    size_t max_bytes;
    void (*build)(struct schedule *s, const struct coll *c);
};

/* Rows of one kind stand in the order of preference; the last of each kind takes any size. */
extern const struct algo g_algos[];
extern const size_t g_nalgos;

bool algo_allows(const struct algo *a, const struct coll *c); /* its restrictions hold */
const struct algo *algo_choose(const struct coll *c);         /* never NULL */

/* Elements [block_start(b), block_start(b + 1)) of `count` are block b of n; sizes differ by one at
 * most. */
static inline size_t block_start(size_t count, int n, int b)
{
    size_t base = count / (size_t)n, rest = count % (size_t)n;
    return base * (size_t)b + ((size_t)b < rest ? (size_t)b : rest);
}

void build_all_reduce_self(struct schedule *s, const struct coll *c);
void build_all_reduce_pair(struct schedule *s, const struct coll *c);
void build_all_reduce_doubling(struct schedule *s, const struct coll *c);
void build_all_reduce_ring(struct schedule *s, const struct coll *c);
void build_broadcast_binomial(struct schedule *s, const struct coll *c);
void build_barrier_dissemination(struct schedule *s, const struct coll *c);

#endif
