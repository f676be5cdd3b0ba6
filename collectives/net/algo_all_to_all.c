#include "collectives/net/algo.h"

/* In place, data is sent from a copy, because receives overwrite it. */
static struct place from(struct schedule *s, const struct coll *c, size_t at)
{
    (void)s;
    return c->in_place ? tmp(at) : in(at);
}

static void set_aside(struct schedule *s, const struct coll *c)
{
    size_t whole = (size_t)c->size * c->count * c->elem;
    if (!c->in_place)
        return;
    schedule_need_tmp(s, whole);
    schedule_copy(s, tmp(0), in(0), whole);
    schedule_end_step(s);
}

static void all_to_all_keep_own(struct schedule *s, const struct coll *c)
{
    if (!c->in_place)
        schedule_copy(s, out(part_at(c, &c->recv_parts, c->rank)),
                      in(part_at(c, &c->send_parts, c->rank)),
                      part_len(c, &c->recv_parts, c->rank));
}

static void swap(struct schedule *s, const struct coll *c, int k)
{
    int to = (c->rank + k) % c->size, left = (c->rank + c->size - k) % c->size;
    size_t give = part_len(c, &c->send_parts, to), get = part_len(c, &c->recv_parts, left);
    if (give)
        schedule_send(s, to, from(s, c, part_at(c, &c->send_parts, to)), give);
    if (get)
        schedule_recv(s, left, out(part_at(c, &c->recv_parts, left)), get);
}

/* All messages at once: a + (n-1)/n S b. */
void build_all_to_all_direct(struct schedule *s, const struct coll *c)
{
    set_aside(s, c);
    for (int k = 1; k < c->size; k++)
        swap(s, c, k);
    all_to_all_keep_own(s, c);
    schedule_end_step(s);
}

/* In step k, each rank sends to the rank k to its right and receives from the rank k to its left:
 * (n-1) a + (n-1)/n S b, one message each way at a time. */
void build_all_to_all_pairwise(struct schedule *s, const struct coll *c)
{
    set_aside(s, c);
    all_to_all_keep_own(s, c);
    for (int k = 1; k < c->size; k++) {
        swap(s, c, k);
        schedule_end_step(s);
    }
    schedule_end_step(s);
}

/* Block i, counted from the rank itself, must travel i ranks to the right. In step k all blocks
 * with bit k set travel 2^k ranks at once: ceil(log2(n)) (a + S/2 b). Bruck et al., see
 * build_all_gather_bruck(). */
void build_all_to_all_bruck(struct schedule *s, const struct coll *c)
{
    int n = c->size, me = c->rank;
    size_t part = c->count * c->elem, whole = (size_t)n * part;
    size_t half = (size_t)(n / 2 + 1) * part, out_at = whole, in_at = whole + half;
    schedule_need_tmp(s, whole + 2 * half);
    schedule_copy(s, tmp(0), in((size_t)me * part), (size_t)(n - me) * part);
    schedule_copy(s, tmp((size_t)(n - me) * part), in(0), (size_t)me * part);
    schedule_end_step(s);
    for (int bit = 1; bit < n; bit *= 2) {
        size_t len = 0;
        for (int i = 1; i < n; i++) {
            if (i & bit) {
                schedule_copy(s, tmp(out_at + len), tmp((size_t)i * part), part);
                len += part;
            }
        }
        schedule_end_step(s);
        schedule_send(s, (me + bit) % n, tmp(out_at), len);
        schedule_recv(s, (me + n - bit) % n, tmp(in_at), len);
        schedule_end_step(s);
        len = 0;
        for (int i = 1; i < n; i++) {
            if (i & bit) {
                schedule_copy(s, tmp((size_t)i * part), tmp(in_at + len), part);
                len += part;
            }
        }
        schedule_end_step(s);
    }
    for (int i = 0; i < n; i++)
        schedule_copy(s, out((size_t)((me + n - i) % n) * part), tmp((size_t)i * part), part);
    schedule_end_step(s);
}
