#include "collectives/shm/inline_msg.h"

#include <string.h>

#include "collectives/reduce/reduce.h"
#include "collectives/shm/tuning.h"

/* The part of an arrival's data in the cache line that the others poll. */
enum { FIRST_BYTES = 64 - offsetof(struct shm_arrival, data) };

/* The places of the data of all ranks. */
struct inline_msg {
    struct shm_op *op;
    uint8_t *data; /* of rank 0 */
    size_t stride; /* bytes between consecutive ranks */
    size_t first;  /* bytes in the cache line that the others poll */
};

/* The distance of the blocks for different ranks in a rank's data. */
static size_t lane_bytes(size_t len)
{
    return (len + 7) / 8 * 8;
}

size_t inline_msg_bytes(const struct shm *s, const struct coll_call *c)
{
    size_t len = coll_bytes(c);
    switch (c->kind) {
    case CALL_ALL_REDUCE:
    case CALL_REDUCE: /* large ones are reduced in slices */
        if (len > SHM_INLINE_BYTES && len <= INLINE_MSG_MOST &&
            len * (size_t)s->n > shm_tuning.flat)
            return SIZE_MAX;
        return len;
    case CALL_BROADCAST:
    case CALL_ALL_GATHER:
    case CALL_GATHER:
    case CALL_SCAN:
    case CALL_EXSCAN:
        return len;
    case CALL_REDUCE_SCATTER:
    case CALL_ALL_TO_ALL:
    case CALL_SCATTER:
        return len <= INLINE_MSG_MOST ? lane_bytes(len) * (size_t)s->n : len;
    default:
        return c->kind == CALL_BARRIER ? 0 : SIZE_MAX;
    }
}

static uint8_t *data_of(const struct inline_msg *l, int i)
{
    return l->data + (size_t)i * l->stride;
}

/* -------------------------------------------------------------------------------------- putting */

/* Writes the arrival's first cache line last, as shm_arrive() does. */
static void put_bytes(const struct inline_msg *l, size_t at, const uint8_t *from, size_t len)
{
    uint8_t *to = data_of(l, l->op->s->me) + at;
    size_t first = at < l->first ? l->first - at : 0;
    if (len > first)
        memcpy(to + first, from + first, len - first);
    if (first)
        memcpy(to, from, len < first ? len : first);
}

static void inline_put(const struct inline_msg *l, size_t at, const uint8_t *from, size_t len)
{
    const struct coll_call *c = l->op->call;
    if (c->reduce.has_pre)
        reduce_pre(&c->reduce, data_of(l, l->op->s->me) + at, from, c->count);
    else
        put_bytes(l, at, from, len);
}

/* Writes a block for each rank. The rank's own block is written only to be scaled before it is
 * reduced. */
static void put_each(const struct inline_msg *l, size_t len)
{
    const struct shm *s = l->op->s;
    for (int j = 0; j < s->n; j++) {
        if (j != s->me || l->op->call->reduce.has_pre)
            inline_put(l, (size_t)j * lane_bytes(len),
                       (const uint8_t *)l->op->call->send + (size_t)j * len, len);
    }
}

static void put_all(const struct inline_msg *l, size_t len)
{
    const struct coll_call *c = l->op->call;
    bool root = l->op->s->me == c->root;
    switch (c->kind) {
    case CALL_BROADCAST:
        if (root)
            inline_put(l, 0, c->send, len);
        break;
    case CALL_REDUCE:
        if (!root || c->reduce.has_pre)
            inline_put(l, 0, c->send, len);
        break;
    case CALL_GATHER:
        if (!root)
            inline_put(l, 0, c->send, len);
        break;
    case CALL_ALL_REDUCE:
    case CALL_ALL_GATHER:
    case CALL_SCAN:
    case CALL_EXSCAN:
        inline_put(l, 0, c->send, len);
        break;
    case CALL_SCATTER:
        if (root)
            put_each(l, len);
        break;
    case CALL_REDUCE_SCATTER:
    case CALL_ALL_TO_ALL:
        put_each(l, len);
        break;
    default:
        break;
    }
}

/* --------------------------------------------------------------------------------------- taking */

/* Copies the rank's own block. */
static void inline_keep(uint8_t *to, const uint8_t *from, size_t len)
{
    if (to != from)
        memcpy(to, from, len);
}

/* Copies rank i's block for this rank, which lies at `at` in rank i's data. */
static int inline_take(const struct inline_msg *l, int i, size_t at, uint8_t *to, size_t len)
{
    int r = shm_await(l->op, i);
    if (r == 0)
        memcpy(to, data_of(l, i) + at, len);
    return r;
}

/* Copies the blocks of all others: that of rank i to to + i * len. */
static int take_each(const struct inline_msg *l, size_t at, uint8_t *to, size_t len)
{
    struct shm *s = l->op->s;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : inline_take(l, i, at, to + (size_t)i * len, len);
        if (r < 0)
            return r;
    }
    shm_note_all_entered(l->op);
    return 0;
}

/* Reduces the blocks at `at` of all ranks, this rank's own from `own`, in the order of ranks. */
static int reduce_each(const struct inline_msg *l, size_t at, const uint8_t *own)
{
    struct shm *s = l->op->s;
    const struct coll_call *c = l->op->call;
    const struct reduce_info *how = &c->reduce;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : shm_await(l->op, i);
        if (r < 0)
            return r;
        s->sources[i] = i == s->me && !how->has_pre ? own : data_of(l, i) + at;
    }
    shm_note_all_entered(l->op);
    reduce_many(how, c->recv, s->sources, s->n, c->count);
    if (how->has_post)
        reduce_post(how, c->recv, c->recv, c->count);
    return 0;
}

/* Reduces the blocks of the first n ranks, none of which is behind this one. */
static int reduce_first(const struct inline_msg *l, int n)
{
    struct shm *s = l->op->s;
    const struct coll_call *c = l->op->call;
    const struct reduce_info *how = &c->reduce;
    for (int i = 0; i < n; i++) {
        int r = i == s->me ? 0 : shm_await(l->op, i);
        if (r < 0)
            return r;
        s->sources[i] = i == s->me && !how->has_pre ? c->send : data_of(l, i);
    }
    if (n > 0)
        reduce_many(how, c->recv, s->sources, n, c->count);
    if (n == 1)
        reduce_alone(how, c->recv, c->count);
    if (n > 0 && how->has_post)
        reduce_post(how, c->recv, c->recv, c->count);
    return 0;
}

static int take_all(const struct inline_msg *l, size_t len)
{
    const struct coll_call *c = l->op->call;
    size_t me = (size_t)l->op->s->me, mine = me * lane_bytes(len);
    const uint8_t *send = c->send;
    uint8_t *recv = c->recv;
    bool root = l->op->s->me == c->root;
    switch (c->kind) {
    case CALL_ALL_REDUCE:
        return reduce_each(l, 0, send);
    case CALL_REDUCE:
        return root ? reduce_each(l, 0, send) : 0;
    case CALL_SCAN:
        return reduce_first(l, (int)me + 1);
    case CALL_EXSCAN:
        return reduce_first(l, (int)me);
    case CALL_REDUCE_SCATTER:
        return reduce_each(l, mine, send + me * len);
    case CALL_BROADCAST:
        if (!root)
            return inline_take(l, c->root, 0, recv, len);
        inline_keep(recv, send, len);
        return 0;
    case CALL_SCATTER:
        if (!root)
            return inline_take(l, c->root, mine, recv, len);
        inline_keep(recv, send + me * len, len);
        return 0;
    case CALL_GATHER:
        if (!root)
            return 0;
        inline_keep(recv + me * len, send, len);
        return take_each(l, 0, recv, len);
    case CALL_ALL_GATHER:
        inline_keep(recv + me * len, send, len);
        return take_each(l, 0, recv, len);
    case CALL_ALL_TO_ALL:
        inline_keep(recv + me * len, send + me * len, len);
        return take_each(l, mine, recv, len);
    default:
        return shm_await_all(l->op);
    }
}

static inline int inline_run(const struct inline_msg *l)
{
    size_t len = coll_bytes(l->op->call);
    put_all(l, len);
    shm_arrive(l->op, 0);
    return take_all(l, len);
}

/* Two copies of inline_run(), in which the compiler knows stride and data: the smallest operations
 * take little longer than their instructions. */
__attribute__((flatten)) static int run_inside(struct shm_op *op)
{
    struct inline_msg l = {.op = op,
                           .data = shm_arrival(op->s, op->seq, 0)->data,
                           .stride = sizeof(struct shm_arrival),
                           .first = FIRST_BYTES};
    return inline_run(&l);
}

__attribute__((flatten)) static int run_beside(struct shm_op *op)
{
    struct inline_msg l = {
        .op = op, .data = shm_beside(op->s, op->seq, 0), .stride = SHM_BESIDE_BYTES};
    return inline_run(&l);
}

int inline_msg_run(struct shm_op *op, size_t bytes)
{
    return bytes <= SHM_INLINE_BYTES ? run_inside(op) : run_beside(op);
}
