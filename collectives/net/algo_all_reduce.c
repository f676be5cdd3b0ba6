#include "collectives/net/algo.h"

enum { SEGMENT = 512 * 1024 };

/* Two ranks exchange their whole buffers and both reduce: a + S b, the minimal latency. In chunks,
 * so that one is reduced while the next is in transit. */
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
        schedule_end_step(s);
    }
}

/* Rank 0 receives all buffers and sends the result to all: 2 a + 2 (n-1) S b at rank 0. The minimal
 * number of messages, 2 (n-1) in all, hence the least work where ranks share few processors. */
void build_all_reduce_flat(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    if (c->rank != 0) {
        schedule_send(s, 0, in(0), len);
        schedule_end_step(s);
        schedule_recv(s, 0, out(0), len);
        schedule_end_step(s);
        return;
    }
    schedule_need_tmp(s, (size_t)(c->size - 1) * len);
    for (int r = 1; r < c->size; r++)
        schedule_recv(s, r, tmp((size_t)(r - 1) * len), len);
    schedule_end_step(s);
    for (int r = 1; r < c->size; r++) {
        schedule_reduce(s, out(0), r == 1 ? in(0) : out(0), tmp((size_t)(r - 1) * len), len);
        schedule_end_step(s);
    }
    for (int r = 1; r < c->size; r++)
        schedule_send(s, r, out(0), len);
    schedule_end_step(s);
}

/* A rank's place after the first ranks have been folded in pairs (0,1), (2,3), ..., of which the
 * odd rank continues, so that a power of two remains. */
struct fold {
    int power, folded; /* remaining ranks; pairs */
    int me;            /* place among the remaining ranks, or -1: waits for its pair */
};

static struct fold fold_ranks(const struct coll *c)
{
    struct fold f = {.power = 1};
    while (f.power <= c->size / 2)
        f.power *= 2;
    f.folded = c->size - f.power;
    f.me = c->rank >= 2 * f.folded ? c->rank - f.folded : c->rank % 2 ? c->rank / 2 : -1;
    return f;
}

static int unfolded(const struct fold *f, int place)
{
    return place < f->folded ? 2 * place + 1 : place + f->folded;
}

/* The first step: a folded rank sends its input to its pair, and receives the result at the end.
 * Returns where the sum of the pair is. */
static struct place fold_in(struct schedule *s, const struct coll *c, const struct fold *f,
                            size_t len)
{
    if (f->me < 0) {
        schedule_send(s, c->rank + 1, in(0), len);
        schedule_end_step(s);
        schedule_recv(s, c->rank + 1, out(0), len);
        schedule_end_step(s);
    }
    if (f->me < 0 || c->rank >= 2 * f->folded)
        return in(0);
    schedule_recv_reduce(s, c->rank - 1, out(0), in(0), len, INCOMING_FIRST);
    schedule_end_step(s);
    return out(0);
}

static void fold_out(struct schedule *s, const struct coll *c, const struct fold *f, size_t len)
{
    if (f->me < 0 || c->rank >= 2 * f->folded)
        return;
    schedule_send(s, c->rank - 1, out(0), len);
    schedule_end_step(s);
}

/* Recursive doubling: in step k, ranks that differ in bit k exchange their partial sums: log2(n)
 * (a + S b). A partial sum always spans consecutive ranks, and the lower span is the left operand:
 * the order of operands is 0, 1, 2, ... on every rank. */
void build_all_reduce_doubling(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    struct fold f = fold_ranks(c);
    struct place sum = fold_in(s, c, &f, len);
    if (f.me < 0)
        return;
    schedule_need_tmp(s, len);
    for (int bit = 1; bit < f.power; bit *= 2) {
        int other = f.me ^ bit, peer = unfolded(&f, other);
        schedule_send(s, peer, sum, len);
        schedule_recv(s, peer, tmp(0), len);
        schedule_end_step(s);
        if (other < f.me)
            schedule_reduce(s, out(0), tmp(0), sum, len);
        else
            schedule_reduce(s, out(0), sum, tmp(0), len);
        schedule_end_step(s);
        sum = out(0);
    }
    fold_out(s, c, &f, len);
}

/* Recursive halving and doubling: like recursive doubling, but a rank keeps one half of its span
 * and sends the other, until it has the sum of one block; then the blocks return in the opposite
 * order: 2 log2(n) a + 2 (n-1)/n S b. Order of operands as above. Rabenseifner, "Optimization of
 * collective reduction operations", 2004. */
void build_all_reduce_halving(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    struct fold f = fold_ranks(c);
    struct place sum = fold_in(s, c, &f, len);
    if (f.me < 0)
        return;
    int from = 0, to = f.power; /* the blocks that this rank holds */
#define AT(block) (block_start(c->count, f.power, block) * c->elem)
    for (int bit = 1; bit < f.power; bit *= 2) {
        int other = f.me ^ bit, peer = unfolded(&f, other), mid = (from + to) / 2;
        int give_from = f.me < other ? mid : from, give_to = f.me < other ? to : mid;
        from = f.me < other ? from : mid;
        to = f.me < other ? mid : to;
        if (AT(give_to) > AT(give_from))
            schedule_send(s, peer, (struct place){sum.buffer, AT(give_from)},
                          AT(give_to) - AT(give_from));
        if (AT(to) > AT(from))
            schedule_recv_reduce(s, peer, out(AT(from)), (struct place){sum.buffer, AT(from)},
                                 AT(to) - AT(from), other < f.me ? INCOMING_FIRST : MINE_FIRST);
        schedule_end_step(s);
        sum = out(0);
    }
    for (int bit = f.power / 2; bit > 0; bit /= 2) {
        int other = f.me ^ bit, peer = unfolded(&f, other), span = to - from;
        int get_from = f.me < other ? to : from - span, get_to = get_from + span;
        if (AT(to) > AT(from))
            schedule_send(s, peer, out(AT(from)), AT(to) - AT(from));
        if (AT(get_to) > AT(get_from))
            schedule_recv(s, peer, out(AT(get_from)), AT(get_to) - AT(get_from));
        schedule_end_step(s);
        from = from < get_from ? from : get_from;
        to = from + 2 * span;
    }
#undef AT
    fold_out(s, c, &f, len);
}

/* Every rank receives one block from all others, reduces it in the order of ranks, and sends the
 * result to all: 2 a + 2 (n-1)/n S b in 2 (n-1) messages each way. */
void build_all_reduce_direct(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = c->rank;
#define AT(block)  (block_start(c->count, n, block) * c->elem)
#define LEN(block) (AT((block) + 1) - AT(block))
    size_t mine = LEN(me), at = AT(me);
    schedule_need_tmp(s, (size_t)n * mine);
    for (int k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me + n - k) % n;
        if (LEN(to))
            schedule_send(s, to, in(AT(to)), LEN(to));
        if (mine)
            schedule_recv(s, from, tmp((size_t)from * mine), mine);
    }
    schedule_end_step(s);
    for (int r = 1; r < n; r++) {
        struct place left = r > 1 ? tmp(0) : me == 0 ? in(at) : tmp(0);
        struct place right = r == me ? in(at) : tmp((size_t)r * mine);
        schedule_reduce(s, r == n - 1 ? out(at) : tmp(0), left, right, mine);
        schedule_end_step(s);
    }
    for (int k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me + n - k) % n;
        if (mine)
            schedule_send(s, to, out(at), mine);
        if (LEN(from))
            schedule_recv(s, from, out(AT(from)), LEN(from));
    }
    schedule_end_step(s);
#undef AT
#undef LEN
}

/* Ring: n blocks travel once round the ring and are reduced (block b starts at rank b), then once
 * more as results: 2 (n-1) a + 2 (n-1)/n S b, the minimal traffic. In segments, so that a rank
 * forwards one while it receives the next. Patarasuk and Yuan, "Bandwidth optimal all-reduce
 * algorithms for clusters of workstations", 2009. */
void build_all_reduce_ring(struct schedule *s, const struct coll *c)
{
    int n = c->size, right = (c->rank + 1) % n, left = (c->rank + n - 1) % n;
    size_t segments = pieces_of((c->count / (size_t)n + 1) * c->elem, SEGMENT);
#define BLOCK(b)  block_start(c->count, n, b)
#define AT(b, j)  (BLOCK(b) * c->elem + piece_at(BLOCK((b) + 1) - BLOCK(b), segments, j, c->elem))
#define LEN(b, j) (AT(b, (j) + 1) - AT(b, j))
    for (int k = 0; k < 2 * (n - 1); k++) {
        bool sums = k < n - 1;
        int mine = (c->rank + 2 * n - k) % n, next = (mine + n - 1) % n;
        for (size_t j = 0; j < segments; j++) {
            if (LEN(mine, j))
                schedule_send(s, right, k == 0 ? in(AT(mine, j)) : out(AT(mine, j)), LEN(mine, j));
            if (LEN(next, j) && sums)
                schedule_recv_reduce(s, left, out(AT(next, j)), in(AT(next, j)), LEN(next, j),
                                     INCOMING_FIRST);
            else if (LEN(next, j))
                schedule_recv(s, left, out(AT(next, j)), LEN(next, j));
            /* The next step sends what was received a whole block earlier. */
            if (segments > 2)
                schedule_end_step_loosely(s);
            else
                schedule_end_step(s);
        }
    }
#undef BLOCK
#undef AT
#undef LEN
}
