#include "collectives/net/algo.h"

enum { SEGMENT = 512 * 1024 };

/* The root receives every part from its owner: a + (n-1)/n S b. */
void build_gather_direct(struct schedule *s, const struct coll *c)
{
    const struct coll_parts *parts = &c->recv_parts;
    if (c->rank != c->root) {
        if (c->count)
            schedule_send(s, c->root, in(0), c->count * c->elem);
        schedule_end_step(s);
        return;
    }
    for (int r = 0; r < c->size; r++) {
        if (r != c->root && part_len(c, parts, r))
            schedule_recv(s, r, out(part_at(c, parts, r)), part_len(c, parts, r));
    }
    schedule_copy(s, out(part_at(c, parts, c->root)), in(0), part_len(c, parts, c->root));
    schedule_end_step(s);
}

/* The number of ranks in the subtree of `me`, counted from the root of a binomial tree of n. */
static int subtree(int me, int n)
{
    int lowest = me ? me & -me : n;
    return me + lowest < n ? lowest : n - me;
}

/* Binomial tree: a rank receives the parts of whole subtrees and forwards them with its own:
 * log2(n) a + (n-1)/n S b. */
void build_gather_binomial(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = (c->rank + n - c->root) % n, mine = subtree(me, n);
    size_t part = c->count * c->elem;
#define RANK(r) (((r) + c->root) % n)
    if (mine == 1 && me != 0) {
        schedule_send(s, RANK(me - (me & -me)), in(0), part);
        schedule_end_step(s);
        return;
    }
    schedule_need_tmp(s, (size_t)mine * part);
    schedule_copy(s, tmp(0), in(0), part);
    for (int child = 1; child < mine; child *= 2)
        schedule_recv(s, RANK(me + child), tmp((size_t)child * part),
                      (size_t)subtree(me + child, n) * part);
    schedule_end_step(s);
    if (me != 0)
        schedule_send(s, RANK(me - (me & -me)), tmp(0), (size_t)mine * part);
    /* In tree order the parts are those of ranks root ... n - 1, 0 ... root - 1. */
    if (me == 0) {
        size_t upper = (size_t)(n - c->root) * part;
        schedule_copy(s, out((size_t)c->root * part), tmp(0), upper);
        schedule_copy(s, out(0), tmp(upper), (size_t)c->root * part);
    }
    schedule_end_step(s);
#undef RANK
}

void build_scatter_direct(struct schedule *s, const struct coll *c)
{
    const struct coll_parts *parts = &c->send_parts;
    if (c->rank != c->root) {
        if (c->count)
            schedule_recv(s, c->root, out(0), c->count * c->elem);
        schedule_end_step(s);
        return;
    }
    for (int k = 1; k < c->size; k++) {
        int r = (c->root + k) % c->size;
        if (part_len(c, parts, r))
            schedule_send(s, r, in(part_at(c, parts, r)), part_len(c, parts, r));
    }
    schedule_copy(s, out(0), in(part_at(c, parts, c->root)), part_len(c, parts, c->root));
    schedule_end_step(s);
}

/* The tree of build_gather_binomial(), downward. */
void build_scatter_binomial(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = (c->rank + n - c->root) % n, mine = subtree(me, n);
    size_t part = c->count * c->elem;
#define RANK(r) (((r) + c->root) % n)
    if (mine == 1 && me != 0) {
        schedule_recv(s, RANK(me - (me & -me)), out(0), part);
        schedule_end_step(s);
        return;
    }
    schedule_need_tmp(s, (size_t)mine * part);
    if (me == 0) {
        size_t upper = (size_t)(n - c->root) * part;
        schedule_copy(s, tmp(0), in((size_t)c->root * part), upper);
        schedule_copy(s, tmp(upper), in(0), (size_t)c->root * part);
    } else {
        schedule_recv(s, RANK(me - (me & -me)), tmp(0), (size_t)mine * part);
    }
    schedule_end_step(s);
    int largest = 1;
    while (largest * 2 < mine)
        largest *= 2;
    for (int child = largest; child > 0 && mine > 1; child /= 2)
        schedule_send(s, RANK(me + child), tmp((size_t)child * part),
                      (size_t)subtree(me + child, n) * part);
    schedule_copy(s, out(0), tmp(0), part);
    schedule_end_step(s);
#undef RANK
}

/* ----------------------------------------------------------------------------------- all_gather */

static void all_gather_keep_own(struct schedule *s, const struct coll *c)
{
    schedule_copy(s, out(part_at(c, &c->recv_parts, c->rank)), in(0),
                  part_len(c, &c->recv_parts, c->rank));
}

/* Every rank sends its part to all: a + (n-1)/n S b in n - 1 messages each way. */
void build_all_gather_direct(struct schedule *s, const struct coll *c)
{
    const struct coll_parts *parts = &c->recv_parts;
    size_t mine = part_len(c, parts, c->rank);
    for (int k = 1; k < c->size; k++) {
        int to = (c->rank + k) % c->size, from = (c->rank + c->size - k) % c->size;
        if (mine)
            schedule_send(s, to, in(0), mine);
        if (part_len(c, parts, from))
            schedule_recv(s, from, out(part_at(c, parts, from)), part_len(c, parts, from));
    }
    all_gather_keep_own(s, c);
    schedule_end_step(s);
}

/* In step k every rank receives up to 2^k parts from the rank 2^k to its right: ceil(log2(n)) a +
 * (n-1)/n S b. The parts arrive in the order of ranks, starting with the rank's own; the last step
 * rotates them. Bruck et al., "Efficient algorithms for all-to-all communications in multiport
 * message-passing systems", 1997. */
void build_all_gather_bruck(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = c->rank;
    size_t part = c->count * c->elem;
    schedule_need_tmp(s, (size_t)n * part);
    schedule_copy(s, tmp(0), in(0), part);
    schedule_end_step(s);
    for (int have = 1; have < n; have *= 2) {
        int more = have < n - have ? have : n - have;
        schedule_send(s, (me + n - have) % n, tmp(0), (size_t)more * part);
        schedule_recv(s, (me + have) % n, tmp((size_t)have * part), (size_t)more * part);
        schedule_end_step(s);
    }
    size_t upper = (size_t)(n - me) * part;
    schedule_copy(s, out((size_t)me * part), tmp(0), upper);
    schedule_copy(s, out(0), tmp(upper), (size_t)me * part);
    schedule_end_step(s);
}

/* Recursive doubling: ranks that differ in bit k exchange the 2^k parts that they have. */
void build_all_gather_doubling(struct schedule *s, const struct coll *c)
{
    size_t part = c->count * c->elem;
    all_gather_keep_own(s, c);
    schedule_end_step(s);
    for (int bit = 1; bit < c->size; bit *= 2) {
        int peer = c->rank ^ bit;
        size_t len = (size_t)bit * part;
        schedule_send(s, peer, out((size_t)(c->rank & ~(bit - 1)) * part), len);
        schedule_recv(s, peer, out((size_t)(peer & ~(bit - 1)) * part), len);
        schedule_end_step(s);
    }
}

/* The parts travel round a ring, in segments: (n-1) a + (n-1)/n S b. */
void build_all_gather_ring(struct schedule *s, const struct coll *c)
{
    const struct coll_parts *parts = &c->recv_parts;
    int n = c->size, right = (c->rank + 1) % n, left = (c->rank + n - 1) % n;
    size_t longest = 0;
    for (int i = 0; i < n; i++)
        longest = part_len(c, parts, i) > longest ? part_len(c, parts, i) : longest;
    size_t segments = pieces_of(longest, SEGMENT);
#define AT(b, j) \
    (part_at(c, parts, b) + piece_at(part_len(c, parts, b) / c->elem, segments, j, c->elem))
#define LEN(b, j) (AT(b, (j) + 1) - AT(b, j))
    all_gather_keep_own(s, c);
    for (int k = 0; k < n - 1; k++) {
        int mine = (c->rank + n - k) % n, next = (mine + n - 1) % n;
        for (size_t j = 0; j < segments; j++) {
            size_t own = AT(mine, j) - part_at(c, parts, mine);
            if (LEN(mine, j))
                schedule_send(s, right, k == 0 ? in(own) : out(AT(mine, j)), LEN(mine, j));
            if (LEN(next, j))
                schedule_recv(s, left, out(AT(next, j)), LEN(next, j));
            if (segments > 2)
                schedule_end_step_loosely(s);
            else
                schedule_end_step(s);
        }
    }
    schedule_end_step(s);
#undef AT
#undef LEN
}
