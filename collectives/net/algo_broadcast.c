#include "collectives/net/algo.h"

/* Binomial tree: rank r, counted from the root, receives from r with its lowest set bit cleared and
 * sends to r + 2^k for every 2^k below that bit, the largest subtree first: ceil(log2(n)) hops.
 * Large messages go through the tree in segments: a rank passes one on while the next arrives. */
void build_broadcast_binomial(struct schedule *s, const struct coll *c)
{
    enum { SEGMENT = 256 * 1024 };
    size_t len = c->count * c->elem, nsegments = (len + SEGMENT - 1) / SEGMENT;
    int me = (c->rank + c->size - c->root) % c->size, lowest = me & -me;
    bool root = me == 0;
    if (root) {
        for (lowest = 1; lowest < c->size;)
            lowest *= 2;
    }
#define RANK(r)   (((r) + c->root) % c->size)
#define LENGTH(k) (len - (k)*SEGMENT < SEGMENT ? len - (k)*SEGMENT : SEGMENT)

    /* In round k the root sends segment k; the others receive it and send segment k - 1. */
    size_t lag = root ? 0 : 1;
    for (size_t k = 0; k < nsegments + lag; k++) {
        if (!root && k < nsegments)
            schedule_recv(s, RANK(me - lowest), out(k * SEGMENT), LENGTH(k));
        for (int child = lowest / 2; child > 0 && k >= lag; child /= 2) {
            size_t at = (k - lag) * SEGMENT;
            if (me + child < c->size)
                schedule_send(s, RANK(me + child), root ? in(at) : out(at), LENGTH(k - lag));
        }
        if (root)
            schedule_copy(s, out(k * SEGMENT), in(k * SEGMENT), LENGTH(k));
        schedule_end_round(s);
    }
#undef RANK
#undef LENGTH
}
