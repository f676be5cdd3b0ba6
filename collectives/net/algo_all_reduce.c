/* algo_all_reduce.c. In the costs, a is the latency of a message, b the time per byte on the wire,
 * S the message in bytes and n the number of ranks. */
#include "collectives/net/algo.h"

/* One rank: the result is its own contribution. */
void build_all_reduce_self(struct schedule *s, const struct coll *c)
{
    schedule_copy(s, out(0), in(0), c->count * c->elem);
    schedule_end_round(s);
}

/* Two ranks swap their whole buffers and both reduce: a + S b, the least latency there is. In
 * chunks, so that one is reduced while the next is on its way. */
void build_all_reduce_pair(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem, chunk = 64 * 1024 / c->elem * c->elem;
    int peer = 1 - c->rank;
    schedule_need_tmp(s, len <= chunk ? len : 2 * chunk);
    for (size_t at = 0, done = 0, k = 0; done < len; k++) {
        if (k > 0) {
            size_t n = at - done;
            struct place mine = in(done), theirs = tmp((k - 1) % 2 * chunk);
            schedule_reduce(s, out(done), c->rank == 0 ? mine : theirs,
                            c->rank == 0 ? theirs : mine, n);
            done = at;
        }
        if (at < len) {
            size_t n = len - at < chunk ? len - at : chunk;
            schedule_send(s, peer, in(at), n);
            schedule_recv(s, peer, tmp(k % 2 * chunk), n);
            at += n;
        }
        schedule_end_round(s);
    }
}

/* Recursive doubling: in round k, ranks that differ in bit k swap what they have summed so far:
 * log2(n) (a + S b). When n is no power of two, the first ranks are folded in pairs before, and the
 * pair's other half gets the result after. A rank's partial sum always spans consecutive ranks, and
 * the lower span is the left operand: the order of operands is 0, 1, 2, ... on every rank. */
void build_all_reduce_doubling(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    int power = 1;
    while (power <= c->size / 2)
        power *= 2;
    int folded = c->size - power; /* pairs (0,1), (2,3), ... of which the odd rank goes on */
    struct place sum = in(0);

    schedule_need_tmp(s, len);
    if (c->rank < 2 * folded && c->rank % 2 == 0) {
        schedule_send(s, c->rank + 1, in(0), len);
        schedule_end_round(s);
        schedule_recv(s, c->rank + 1, out(0), len);
        schedule_end_round(s);
        return;
    }
    if (c->rank < 2 * folded) {
        schedule_recv(s, c->rank - 1, tmp(0), len);
        schedule_end_round(s);
        schedule_reduce(s, out(0), tmp(0), in(0), len);
        schedule_end_round(s);
        sum = out(0);
    }
    int me = c->rank < 2 * folded ? c->rank / 2 : c->rank - folded;
    for (int bit = 1; bit < power; bit *= 2) {
        int other = me ^ bit, peer = other < folded ? 2 * other + 1 : other + folded;
        schedule_send(s, peer, sum, len);
        schedule_recv(s, peer, tmp(0), len);
        schedule_end_round(s);
        if (other < me)
            schedule_reduce(s, out(0), tmp(0), sum, len);
        else
            schedule_reduce(s, out(0), sum, tmp(0), len);
        schedule_end_round(s);
        sum = out(0);
    }
    if (c->rank < 2 * folded) {
        schedule_send(s, c->rank - 1, out(0), len);
        schedule_end_round(s);
    }
}

/* Ring: n blocks travel once round the ring being summed (block b sets out from rank b), then once
 * round as results: 2 (n-1) a + 2 (n-1)/n S b, the least traffic there is. Patarasuk and Yuan,
 * "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. */
void build_all_reduce_ring(struct schedule *s, const struct coll *c)
{
    int n = c->size, right = (c->rank + 1) % n, left = (c->rank + n - 1) % n;
#define AT(block)  (block_start(c->count, n, block) * c->elem)
#define LEN(block) (AT((block) + 1) - AT(block))
    for (int k = 0; k < n - 1; k++) {
        int mine = (c->rank + n - k) % n, next = (c->rank + n - k - 1) % n;
        if (LEN(mine))
            schedule_send(s, right, k == 0 ? in(AT(mine)) : out(AT(mine)), LEN(mine));
        if (LEN(next))
            schedule_recv_reduce(s, left, out(AT(next)), in(AT(next)), LEN(next), INCOMING_FIRST);
        schedule_end_round(s);
    }
    for (int k = 0; k < n - 1; k++) {
        int mine = (c->rank + n - k + 1) % n, next = (c->rank + n - k) % n;
        if (LEN(mine))
            schedule_send(s, right, out(AT(mine)), LEN(mine));
        if (LEN(next))
            schedule_recv(s, left, out(AT(next)), LEN(next));
        schedule_end_round(s);
    }
#undef AT
#undef LEN
}
