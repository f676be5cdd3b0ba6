/* algo.h: the algorithms between ranks that communicate through a transport. Each writes one rank's
 * part of an operation into a schedule. None does I/O, so all are verified without a network.
 *
 * A new algorithm is a function and a row of the table in algo.c. In the costs, a is the latency of
 * a message, b the time per byte on the wire, S the message in bytes and n the number of ranks. */
#ifndef COLLECTIVES_NET_ALGO_H
#define COLLECTIVES_NET_ALGO_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "collectives/comm/coll_call.h"
#include "collectives/net/schedule.h"

/* One operation as one rank sees it. All but `rank` and `in_place` is equal on every rank, so that
 * every rank chooses the same algorithm and writes matching messages. Only the ranks concerned know
 * the parts of gather_v, scatter_v and all_to_all_v. */
struct coll {
    enum call_kind kind;
    int rank, size;
    int root;
    size_t count;  /* elements; with parts: of one part */
    size_t elem;   /* bytes of an element */
    bool ordered;  /* the reduction must follow the order of ranks */
    bool uneven;   /* a kind with _v, whether or not this rank knows the parts */
    bool in_place; /* all_to_all: PLACE_IN is PLACE_OUT */
    struct coll_parts send_parts, recv_parts;
};

struct algo {
    enum call_kind kind;
    const char *name;
    /* Restrictions under which the algorithm is correct. */
    int min_size, max_size; /* ranks */
    bool power_of_two;      /* ranks */
    bool any_order;         /* the algorithm reduces in another order than that of ranks */
    bool regular;           /* all parts must have `count` elements */
    void (*build)(struct schedule *s, const struct coll *c);
};

extern const struct algo g_algos[];
extern const size_t g_nalgos;

bool algo_allows(const struct algo *a, const struct coll *c); /* whether its restrictions hold */

/* The first algorithm that is allowed, regardless of its cost. Never NULL. */
const struct algo *algo_any(const struct coll *c);

/* Elements [block_start(b), block_start(b + 1)) of `count` are block b of n. The sizes of blocks
 * differ by at most one. */
static inline size_t block_start(size_t count, int n, int b)
{
    size_t base = count / (size_t)n, rest = count % (size_t)n;
    return base * (size_t)b + ((size_t)b < rest ? (size_t)b : rest);
}

/* The offset and the length of part i, in bytes. */
static inline size_t part_at(const struct coll *c, const struct coll_parts *p, int i)
{
    size_t at = 0;
    if (!p->counts)
        return (size_t)i * c->count * c->elem;
    if (p->displs)
        return p->counts[i] ? p->displs[i] * c->elem : 0;
    for (int k = 0; k < i; k++)
        at += p->counts[k];
    return at * c->elem;
}

static inline size_t part_len(const struct coll *c, const struct coll_parts *p, int i)
{
    return (p->counts ? p->counts[i] : c->count) * c->elem;
}

/* The number of pieces of at most `most` bytes that make up `len`; 1 for zero bytes. */
static inline size_t pieces_of(size_t len, size_t most)
{
    return len <= most ? 1 : (len + most - 1) / most;
}

/* The offset in bytes of piece k of n of `count` elements. */
static inline size_t piece_at(size_t count, size_t n, size_t k, size_t elem)
{
    return block_start(count, (int)n, (int)k) * elem;
}

void build_self(struct schedule *s, const struct coll *c);

void build_all_reduce_pair(struct schedule *s, const struct coll *c);
void build_all_reduce_flat(struct schedule *s, const struct coll *c);
void build_all_reduce_doubling(struct schedule *s, const struct coll *c);
void build_all_reduce_halving(struct schedule *s, const struct coll *c);
void build_all_reduce_direct(struct schedule *s, const struct coll *c);
void build_all_reduce_ring(struct schedule *s, const struct coll *c);
void build_all_reduce_tree(struct schedule *s, const struct coll *c);

void build_reduce_flat(struct schedule *s, const struct coll *c);
void build_reduce_tree(struct schedule *s, const struct coll *c);
void build_reduce_chain(struct schedule *s, const struct coll *c);
void build_reduce_ring(struct schedule *s, const struct coll *c);

void build_reduce_scatter_direct(struct schedule *s, const struct coll *c);
void build_reduce_scatter_halving(struct schedule *s, const struct coll *c);
void build_reduce_scatter_pairwise(struct schedule *s, const struct coll *c);

void build_broadcast_flat(struct schedule *s, const struct coll *c);
void build_broadcast_binomial(struct schedule *s, const struct coll *c);
void build_broadcast_chain(struct schedule *s, const struct coll *c);

void build_gather_direct(struct schedule *s, const struct coll *c);
void build_gather_binomial(struct schedule *s, const struct coll *c);
void build_scatter_direct(struct schedule *s, const struct coll *c);
void build_scatter_binomial(struct schedule *s, const struct coll *c);

void build_all_gather_direct(struct schedule *s, const struct coll *c);
void build_all_gather_bruck(struct schedule *s, const struct coll *c);
void build_all_gather_doubling(struct schedule *s, const struct coll *c);
void build_all_gather_ring(struct schedule *s, const struct coll *c);

void build_all_to_all_direct(struct schedule *s, const struct coll *c);
void build_all_to_all_pairwise(struct schedule *s, const struct coll *c);
void build_all_to_all_bruck(struct schedule *s, const struct coll *c);

void build_scan_doubling(struct schedule *s, const struct coll *c);
void build_scan_chain(struct schedule *s, const struct coll *c);
void build_exscan_doubling(struct schedule *s, const struct coll *c);
void build_exscan_chain(struct schedule *s, const struct coll *c);
void build_nothing(struct schedule *s, const struct coll *c);

void build_barrier_flat(struct schedule *s, const struct coll *c);
void build_barrier_dissemination(struct schedule *s, const struct coll *c);

#endif
