#include "collectives/net/algo.h"

enum { SEGMENT = 512 * 1024, TREE_SEGMENT = 128 * 1024 };

/* The root receives all buffers and reduces them in the order of ranks: a + (n-1) S b. */
void build_reduce_flat(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    if (c->rank != c->root) {
        schedule_send(s, c->root, in(0), len);
        schedule_end_step(s);
        return;
    }
    schedule_need_tmp(s, (size_t)c->size * len);
    for (int r = 0; r < c->size; r++) {
        if (r != c->root)
            schedule_recv(s, r, tmp((size_t)r * len), len);
    }
    schedule_end_step(s);
    for (int r = 1; r < c->size; r++) {
        struct place left = r > 1 ? tmp(0) : c->root == 0 ? in(0) : tmp(0);
        struct place right = r == c->root ? in(0) : tmp((size_t)r * len);
        schedule_reduce(s, r == c->size - 1 ? out(0) : tmp(0), left, right, len);
        schedule_end_step(s);
    }
}

/* Binomial tree: rank r, counted from the root, receives the sum of the subtree of r + 2^k for
 * every 2^k below its lowest set bit, the smallest first, and sends its own sum to r with that bit
 * cleared. Spans of ranks are joined in their order, counted from the root. In segments: one is
 * sent while the next is reduced. */
void build_reduce_tree(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = (c->rank + n - c->root) % n, lowest = me & -me;
    size_t segment = TREE_SEGMENT / c->elem * c->elem, len = c->count * c->elem;
    size_t segments = pieces_of(len, segment);
#define RANK(r) (((r) + c->root) % n)
    if (me == 0)
        lowest = n;
    schedule_need_tmp(s, 2 * segment < len ? 2 * segment : len);
    for (size_t k = 0; k <= segments; k++) {
        size_t at = k * segment,
               part = k < segments ? (len - at < segment ? len - at : segment) : 0;
        struct place sum = me == 0 ? out(at) : tmp(k % 2 * segment);
        bool first = true;
        if (me != 0 && k > 0) {
            size_t before = (k - 1) * segment;
            size_t n_before = len - before < segment ? len - before : segment;
            bool leaf = lowest == 1 || me + 1 >= n;
            schedule_send(s, RANK(me - lowest), leaf ? in(before) : tmp((k - 1) % 2 * segment),
                          n_before);
        }
        for (int child = 1; child < lowest && me + child < n && k < segments; child *= 2) {
            schedule_recv_reduce(s, RANK(me + child), sum, first ? in(at) : sum, part, MINE_FIRST);
            schedule_end_step(s);
            first = false;
        }
        schedule_end_step(s);
    }
#undef RANK
}

/* A chain to the root; each rank adds its own data: (n + S / segment) hops of a segment. */
void build_reduce_chain(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = (c->rank + n - c->root) % n;
    size_t segments = pieces_of(c->count * c->elem, SEGMENT);
    size_t most = piece_at(c->count, segments, 1, c->elem);
    bool last = me == n - 1;
    size_t lag = me == 0 || last ? 0 : segments > 1 ? 2 : 1;
#define RANK(r) (((r) + c->root) % n)
#define AT(k)   piece_at(c->count, segments, k, c->elem)
#define LEN(k)  (AT((k) + 1) - AT(k))
    schedule_need_tmp(s, me == 0 || last ? 0 : 4 * most);
    for (size_t k = 0; k < segments + lag; k++) {
        if (!last && k < segments)
            schedule_recv_reduce(s, RANK(me + 1), me == 0 ? out(AT(k)) : tmp(k % 4 * most),
                                 in(AT(k)), LEN(k), INCOMING_FIRST);
        if (me != 0 && k >= lag)
            schedule_send(s, RANK(me - 1), last ? in(AT(k)) : tmp((k - lag) % 4 * most),
                          LEN(k - lag));
        if (segments > 1)
            schedule_end_step_loosely(s);
        else
            schedule_end_step(s);
    }
#undef RANK
#undef AT
#undef LEN
}

/* The first half of a ring all_reduce; then every rank sends its block to the root. */
void build_reduce_ring(struct schedule *s, const struct coll *c)
{
    int n = c->size, right = (c->rank + 1) % n, left = (c->rank + n - 1) % n;
    bool root = c->rank == c->root;
    if (!root)
        schedule_need_tmp(s, c->count * c->elem);
#define AT(b)  (block_start(c->count, n, b) * c->elem)
#define LEN(b) (AT((b) + 1) - AT(b))
    for (int k = 0; k < n - 1; k++) {
        int mine = (c->rank + n - k) % n, next = (mine + n - 1) % n;
        struct place from = root ? out(AT(mine)) : tmp(AT(mine));
        if (LEN(mine))
            schedule_send(s, right, k == 0 ? in(AT(mine)) : from, LEN(mine));
        if (LEN(next))
            schedule_recv_reduce(s, left, root ? out(AT(next)) : tmp(AT(next)), in(AT(next)),
                                 LEN(next), INCOMING_FIRST);
        schedule_end_step(s);
    }
    if (!root && LEN(right))
        schedule_send(s, c->root, tmp(AT(right)), LEN(right));
    for (int r = 0; r < n && root; r++) {
        int block = (r + 1) % n;
        if (r != c->rank && LEN(block))
            schedule_recv(s, r, out(AT(block)), LEN(block));
    }
    schedule_end_step(s);
#undef AT
#undef LEN
}

/* ------------------------------------------------------------------------------- reduce_scatter */

/* Every rank receives its part from all others and reduces in the order of ranks: a + (n-1)/n S
 * b. */
void build_reduce_scatter_direct(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = c->rank;
    const struct coll_parts *parts = &c->send_parts;
    size_t mine = part_len(c, parts, me), at = part_at(c, parts, me);
    schedule_need_tmp(s, (size_t)n * mine);
    for (int k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me + n - k) % n;
        if (part_len(c, parts, to))
            schedule_send(s, to, in(part_at(c, parts, to)), part_len(c, parts, to));
        if (mine)
            schedule_recv(s, from, tmp((size_t)from * mine), mine);
    }
    schedule_end_step(s);
    for (int r = 1; r < n; r++) {
        struct place left = r > 1 ? tmp(0) : me == 0 ? in(at) : tmp(0);
        struct place right = r == me ? in(at) : tmp((size_t)r * mine);
        schedule_reduce(s, r == n - 1 ? out(0) : tmp(0), left, right, mine);
        schedule_end_step(s);
    }
}

/* In step k every rank receives its part from the rank k to its left and adds it to its sum: (n-1)
 * a + (n-1)/n S b, without waiting for ranks that are further away. */
void build_reduce_scatter_pairwise(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = c->rank;
    const struct coll_parts *parts = &c->send_parts;
    size_t mine = part_len(c, parts, me), at = part_at(c, parts, me);
    /* In place, `out` is that part of `in` which is not sent. */
    for (int k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me + n - k) % n;
        if (part_len(c, parts, to))
            schedule_send(s, to, in(part_at(c, parts, to)), part_len(c, parts, to));
        if (mine)
            schedule_recv_reduce(s, from, out(0), k == 1 ? in(at) : out(0), mine, INCOMING_FIRST);
        schedule_end_step(s);
    }
}

/* Recursive halving: partners are n/2, n/4, ... 1 ranks apart, and each keeps the half that
 * contains its part: log2(n) a + (n-1)/n S b. */
void build_reduce_scatter_halving(struct schedule *s, const struct coll *c)
{
    int me = c->rank, from = 0, to = c->size;
    size_t part = c->count * c->elem;
    schedule_need_tmp(s, (size_t)c->size * part);
    for (int d = c->size / 2; d > 0; d /= 2) {
        int mid = (from + to) / 2, give = me < mid ? mid : from;
        int keep = me < mid ? from : mid;
        bool first = d == c->size / 2, last = d == 1;
        size_t len = (size_t)d * part, g = (size_t)give * part, k = (size_t)keep * part;
        schedule_send(s, me ^ d, first ? in(g) : tmp(g), len);
        schedule_recv_reduce(s, me ^ d, last ? out(0) : tmp(k), first ? in(k) : tmp(k), len,
                             me & d ? INCOMING_FIRST : MINE_FIRST);
        schedule_end_step(s);
        from = keep;
        to = keep + d;
    }
}
