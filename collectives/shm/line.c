#include "collectives/shm/line.h"

#include <string.h>

#include "collectives/reduce.h"

/* Of an arrival's data: in the line that the others look at. */
enum { FIRST_BYTES = 64 - offsetof(struct shm_arrival, data) };

/* What one rank has for another begins at a multiple of this in the arrival's data. */
static size_t lane_bytes(size_t len)
{
    return (len + 7) / 8 * 8;
}

bool line_fits(const struct shm *s, const struct coll_call *c)
{
    size_t len = coll_bytes(c);
    switch (c->kind) {
    case CALL_ALL_REDUCE:
    case CALL_REDUCE:
    case CALL_BROADCAST:
    case CALL_ALL_GATHER:
    case CALL_GATHER:
        return len <= SHM_INLINE_BYTES;
    case CALL_REDUCE_SCATTER:
    case CALL_ALL_TO_ALL:
    case CALL_SCATTER:
        return len <= SHM_INLINE_BYTES && lane_bytes(len) * (size_t)s->n <= SHM_INLINE_BYTES;
    default:
        return c->kind == CALL_BARRIER;
    }
}

/* ------------------------------------------------------------------------------------- putting */

/* The first line last, as in shm_arrive(). */
static void put_bytes(uint8_t *data, size_t at, const uint8_t *from, size_t len)
{
    size_t first = at < FIRST_BYTES ? FIRST_BYTES - at : 0;
    if (len > first)
        memcpy(data + at + first, from + first, len - first);
    memcpy(data + at, from, len < first ? len : first);
}

static void put(const struct shm_op *op, size_t at, const uint8_t *from, size_t len)
{
    const struct coll_call *c = op->call;
    if (c->reduce.has_pre)
        reduce_pre(&c->reduce, op->mine->data + at, from, c->count);
    else
        put_bytes(op->mine->data, at, from, len);
}

/* A block for each rank. My own goes nowhere, but it may have to be scaled before it is reduced. */
static void put_each(const struct shm_op *op, size_t len)
{
    const struct shm *s = op->s;
    for (int j = 0; j < s->n; j++) {
        if (j != s->me || op->call->reduce.has_pre)
            put(op, (size_t)j * lane_bytes(len), (const uint8_t *)op->call->send + (size_t)j * len,
                len);
    }
}

static void put_all(const struct shm_op *op, size_t len)
{
    const struct coll_call *c = op->call;
    bool root = op->s->me == c->root;
    switch (c->kind) {
    case CALL_BROADCAST:
        if (root)
            put(op, 0, c->send, len);
        break;
    case CALL_REDUCE:
        if (!root || c->reduce.has_pre)
            put(op, 0, c->send, len);
        break;
    case CALL_GATHER:
        if (!root)
            put(op, 0, c->send, len);
        break;
    case CALL_ALL_REDUCE:
    case CALL_ALL_GATHER:
        put(op, 0, c->send, len);
        break;
    case CALL_SCATTER:
        if (root)
            put_each(op, len);
        break;
    case CALL_REDUCE_SCATTER:
    case CALL_ALL_TO_ALL:
        put_each(op, len);
        break;
    default:
        break;
    }
}

/* -------------------------------------------------------------------------------------- taking */

/* What is mine of `send` already, to where it goes. */
static void keep(uint8_t *to, const uint8_t *from, size_t len)
{
    if (to != from)
        memcpy(to, from, len);
}

/* Rank i's block for me, which lies at `at` in its arrival. */
static int take(struct shm_op *op, int i, size_t at, uint8_t *to, size_t len)
{
    int r = shm_await(op, i);
    if (r == 0)
        memcpy(to, shm_arrival(op->s, op->seq, i)->data + at, len);
    return r;
}

/* Everybody's: to[i] is where rank i's goes, to[me] where mine is. */
static int take_each(struct shm_op *op, size_t at, uint8_t *to, size_t len)
{
    struct shm *s = op->s;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : take(op, i, at, to + (size_t)i * len, len);
        if (r < 0)
            return r;
    }
    shm_all_here(op);
    return 0;
}

/* Everybody's block at `at`, mine from `own`, in the order of ranks. */
static int reduce_each(struct shm_op *op, size_t at, const uint8_t *own)
{
    struct shm *s = op->s;
    const struct coll_call *c = op->call;
    const struct reduce_info *how = &c->reduce;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : shm_await(op, i);
        if (r < 0)
            return r;
        s->sources[i] = i == s->me && !how->has_pre ? own : shm_arrival(s, op->seq, i)->data + at;
    }
    shm_all_here(op);
    reduce_many(how, c->recv, s->sources, s->n, c->count);
    if (how->has_post)
        reduce_post(how, c->recv, c->recv, c->count);
    return 0;
}

static int take_all(struct shm_op *op, size_t len)
{
    const struct coll_call *c = op->call;
    size_t me = (size_t)op->s->me, mine = me * lane_bytes(len);
    const uint8_t *send = c->send;
    uint8_t *recv = c->recv;
    bool root = op->s->me == c->root;
    switch (c->kind) {
    case CALL_ALL_REDUCE:
        return reduce_each(op, 0, send);
    case CALL_REDUCE:
        return root ? reduce_each(op, 0, send) : 0;
    case CALL_REDUCE_SCATTER:
        return reduce_each(op, mine, send + me * len);
    case CALL_BROADCAST:
        if (!root)
            return take(op, c->root, 0, recv, len);
        keep(recv, send, len);
        return 0;
    case CALL_SCATTER:
        if (!root)
            return take(op, c->root, mine, recv, len);
        keep(recv, send + me * len, len);
        return 0;
    case CALL_GATHER:
        if (!root)
            return 0;
        keep(recv + me * len, send, len);
        return take_each(op, 0, recv, len);
    case CALL_ALL_GATHER:
        keep(recv + me * len, send, len);
        return take_each(op, 0, recv, len);
    case CALL_ALL_TO_ALL:
        keep(recv + me * len, send + me * len, len);
        return take_each(op, mine, recv, len);
    default:
        return shm_await_all(op);
    }
}

int line_run(struct shm_op *op)
{
    size_t len = coll_bytes(op->call);
    put_all(op, len);
    shm_arrive(op, 0);
    return take_all(op, len);
}
