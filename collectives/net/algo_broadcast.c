#include "collectives/net/algo.h"

enum { TREE_SEGMENT = 256 * 1024, SEGMENT = 512 * 1024 };

/* Copies the root's data to its own result. */
static void broadcast_keep_own(struct schedule *s, const struct coll *c, size_t at, size_t len)
{
    if (c->rank == c->root)
        schedule_copy(s, out(at), in(at), len);
}

/* The root sends to all: a + (n-1) S b. */
void build_broadcast_flat(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    if (c->rank != c->root)
        schedule_recv(s, c->root, out(0), len);
    for (int k = 1; k < c->size && c->rank == c->root; k++)
        schedule_send(s, (c->root + k) % c->size, in(0), len);
    broadcast_keep_own(s, c, 0, len);
    schedule_end_step(s);
}

/* Binomial tree: rank r, counted from the root, receives from r with its lowest set bit cleared and
 * sends to r + 2^k for every 2^k below that bit, the largest subtree first: ceil(log2(n)) hops.
 * Large messages are segmented: a rank forwards a segment while the next arrives. */
static void tree_down(struct schedule *s, const struct coll *c, enum place_buffer from)
{
    size_t len = c->count * c->elem, nsegments = (len + TREE_SEGMENT - 1) / TREE_SEGMENT;
    int me = (c->rank + c->size - c->root) % c->size, lowest = me & -me;
    bool root = me == 0;
    if (root) {
        for (lowest = 1; lowest < c->size;)
            lowest *= 2;
    }
#define RANK(r)   (((r) + c->root) % c->size)
#define LENGTH(k) (len - (k)*TREE_SEGMENT < TREE_SEGMENT ? len - (k)*TREE_SEGMENT : TREE_SEGMENT)

    /* In step k the root sends segment k; the others receive it and send segment k - 1. */
    size_t lag = root ? 0 : 1;
    for (size_t k = 0; k < nsegments + lag; k++) {
        if (!root && k < nsegments)
            schedule_recv(s, RANK(me - lowest), out(k * TREE_SEGMENT), LENGTH(k));
        for (int child = lowest / 2; child > 0 && k >= lag; child /= 2) {
            size_t at = (k - lag) * TREE_SEGMENT;
            if (me + child < c->size)
                schedule_send(s, RANK(me + child), root ? (struct place){from, at} : out(at),
                              LENGTH(k - lag));
        }
        if (root && from == PLACE_IN)
            schedule_copy(s, out(k * TREE_SEGMENT), in(k * TREE_SEGMENT), LENGTH(k));
        schedule_end_step(s);
    }
#undef RANK
#undef LENGTH
}

void build_broadcast_binomial(struct schedule *s, const struct coll *c)
{
    tree_down(s, c, PLACE_IN);
}

/* A binomial tree up to rank 0, reducing, then down again, in segments: (2 log2(n) + S / segment)
 * hops. */
void build_all_reduce_tree(struct schedule *s, const struct coll *c)
{
    struct coll part = *c;
    part.root = 0;
    build_reduce_tree(s, &part);
    tree_down(s, &part, PLACE_OUT);
}

/* A chain from the root: (n + S / segment) hops of a segment. */
void build_broadcast_chain(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = (c->rank + n - c->root) % n;
    size_t segments = pieces_of(c->count * c->elem, SEGMENT);
    bool last = me == n - 1;
    size_t lag = me == 0 || last ? 0 : segments > 1 ? 2 : 1;
#define RANK(r) (((r) + c->root) % n)
#define AT(k)   piece_at(c->count, segments, k, c->elem)
#define LEN(k)  (AT((k) + 1) - AT(k))
    for (size_t k = 0; k < segments + lag; k++) {
        if (me != 0 && k < segments)
            schedule_recv(s, RANK(me - 1), out(AT(k)), LEN(k));
        if (!last && k >= lag)
            schedule_send(s, RANK(me + 1), me == 0 ? in(AT(k)) : out(AT(k - lag)), LEN(k - lag));
        if (k < segments)
            broadcast_keep_own(s, c, AT(k), LEN(k));
        if (segments > 1)
            schedule_end_step_loosely(s);
        else
            schedule_end_step(s);
    }
#undef RANK
#undef AT
#undef LEN
}
