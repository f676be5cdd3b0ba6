/* algo_scan.c: prefix reductions. All of them combine in the order of ranks. */
#include "collectives/net/algo.h"

enum { SEGMENT = 128 * 1024 };

/* Recursive doubling: after step k a rank has the sum of up to 2^(k+1) ranks that end with its own;
 * it sends that 2^k ranks to the right: log2(n) (a + S b). Hillis and Steele, "Data parallel
 * algorithms", 1986. */
void build_scan_doubling(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    struct place sum = in(0);
    schedule_need_tmp(s, 2 * len);
    for (int d = 1, k = 0; d < c->size; d *= 2, k ^= 1) {
        bool gets = c->rank >= d, gives = c->rank + d < c->size;
        if (gives)
            schedule_send(s, c->rank + d, sum, len);
        if (gets)
            schedule_recv_reduce(s, c->rank - d, tmp((size_t)k * len), sum, len, INCOMING_FIRST);
        schedule_end_step(s);
        if (gets)
            sum = tmp((size_t)k * len);
    }
    schedule_copy(s, out(0), sum, len);
    schedule_end_step(s);
}

/* Doubling that also keeps the sum without the rank's own data, which is the result. */
void build_exscan_doubling(struct schedule *s, const struct coll *c)
{
    size_t len = c->count * c->elem;
    struct place sum = in(0), incoming = tmp(0), rest = tmp(3 * len);
    schedule_need_tmp(s, 4 * len);
    for (int d = 1, k = 0; d < c->size; d *= 2, k ^= 1) {
        bool gets = c->rank >= d, gives = c->rank + d < c->size;
        if (gives)
            schedule_send(s, c->rank + d, sum, len);
        if (gets)
            schedule_recv(s, c->rank - d, d == 1 ? rest : incoming, len);
        schedule_end_step(s);
        if (gets && c->rank + 2 * d < c->size) {
            struct place to = tmp((size_t)(1 + k) * len);
            schedule_reduce(s, to, d == 1 ? rest : incoming, sum, len);
            sum = to;
        }
        if (gets && d > 1)
            schedule_reduce(s, rest, incoming, rest, len);
        schedule_end_step(s);
    }
    if (c->rank > 0)
        schedule_copy(s, out(0), rest, len);
    schedule_end_step(s);
}

/* A chain in segments: each rank adds its own data and passes the sum on: (n + S / segment) hops of
 * a segment. */
void build_scan_chain(struct schedule *s, const struct coll *c)
{
    size_t segments = pieces_of(c->count * c->elem, SEGMENT), lag = c->rank == 0 ? 0 : 2;
    bool first = c->rank == 0, last = c->rank == c->size - 1;
#define AT(k)  piece_at(c->count, segments, k, c->elem)
#define LEN(k) (AT((k) + 1) - AT(k))
    for (size_t k = 0; k < segments + lag; k++) {
        if (first)
            schedule_copy(s, out(AT(k)), in(AT(k)), LEN(k));
        else if (k < segments)
            schedule_recv_reduce(s, c->rank - 1, out(AT(k)), in(AT(k)), LEN(k), INCOMING_FIRST);
        if (!last && k >= lag)
            schedule_send(s, c->rank + 1, first ? in(AT(k)) : out(AT(k - lag)), LEN(k - lag));
        schedule_end_step_loosely(s);
    }
}

/* The sum that arrives is this rank's result; in the next step the rank's own data is added, and in
 * the one after that the sum is sent on. */
void build_exscan_chain(struct schedule *s, const struct coll *c)
{
    size_t segments = pieces_of(c->count * c->elem, SEGMENT);
    size_t most = piece_at(c->count, segments, 1, c->elem);
    bool first = c->rank == 0, last = c->rank == c->size - 1;
    size_t lag = first || last ? 0 : 2;
#define ARRIVED(k) tmp((k) % 3 * most)
#define SUM(k)     tmp((3 + (k) % 3) * most)
    schedule_need_tmp(s, lag ? 6 * most : 0);
    for (size_t k = 0; k < segments + lag; k++) {
        if (!first && k < segments)
            schedule_recv(s, c->rank - 1, last ? out(AT(k)) : ARRIVED(k), LEN(k));
        if (lag && k >= 1 && k - 1 < segments)
            schedule_reduce(s, SUM(k - 1), ARRIVED(k - 1), in(AT(k - 1)), LEN(k - 1));
        if (lag && k >= lag)
            schedule_copy(s, out(AT(k - lag)), ARRIVED(k - lag), LEN(k - lag));
        if (!last && k >= lag)
            schedule_send(s, c->rank + 1, first ? in(AT(k)) : SUM(k - lag), LEN(k - lag));
        schedule_end_step(s);
    }
#undef ARRIVED
#undef SUM
#undef AT
#undef LEN
}

/* One rank: nothing comes before its own data. */
void build_nothing(struct schedule *s, const struct coll *c)
{
    (void)s, (void)c;
}
