#include "collectives/shm/direct.h"

#include <errno.h>
#include <string.h>

#include "collectives/reduce/reduce.h"
#include "collectives/shm/blocks.h"
#include "collectives/shm/tuning.h"

enum { TO_ALL = -1 };

/* The slices in op->s: out[me] is this rank's slice of every send buffer; in[me] is where its
 * result goes in the receive buffer of rank `to`, or of all. */
struct direct {
    struct shm_op *op;
    const struct reduce_info *reduce;
    int to;
};

/* The address of a block of a peer's buffer; NULL: out of bounds. */
static uint8_t *locate(const struct shm *s, uint64_t at, struct shm_block b)
{
    return at >= s->arenas_at && at <= s->bytes && b.at + b.len <= s->bytes - at
               ? s->base + at + b.at
               : NULL;
}

/* Lists the buffers that the result goes to, this rank's first. Returns their number; 0: one is out
 * of bounds. */
static int list_targets(struct direct *d, uint8_t **targets)
{
    struct shm *s = d->op->s;
    int n = 0;
    for (int k = 0; k < s->n; k++) {
        int i = s->me + k < s->n ? s->me + k : s->me + k - s->n;
        if (d->to == TO_ALL || i == d->to) {
            targets[n] = locate(s, shm_arrival(s, d->op->seq, i)->recv, s->in[s->me]);
            if (!targets[n++])
                return 0;
        }
    }
    return n;
}

static bool list_sources(struct direct *d, const void **sources)
{
    struct shm *s = d->op->s;
    for (int i = 0; i < s->n; i++) {
        sources[i] = locate(s, shm_arrival(s, d->op->seq, i)->send, s->out[s->me]);
        if (!sources[i])
            return false;
    }
    return true;
}

static void reduce_stretch(struct direct *d, uint8_t *const *targets, int n, size_t at, size_t len)
{
    const struct shm *s = d->op->s;
    const void *few[64], **src = s->n <= 64 ? few : s->sources + s->n;
    size_t count = len / d->reduce->dtype->size;
    uint8_t *to = targets[0] + at;
    for (int i = 0; i < s->n; i++)
        src[i] = (const uint8_t *)s->sources[i] + at;
    reduce_many(d->reduce, to, src, s->n, count);
    if (d->reduce->has_post)
        reduce_post(d->reduce, to, to, count);
    for (int k = 1; k < n; k++)
        memcpy(targets[k] + at, to, len);
}

/* Non-temporal stores do not pay in place, where each line has just been read. */
static bool passes_caches(const struct direct *d, const uint8_t *to, int ntargets, size_t len)
{
    const struct shm *s = d->op->s;
    for (int i = 0; i < s->n; i++) {
        if (s->sources[i] == to)
            return false;
    }
    return ntargets == 1 && len >= shm_tuning.direct_stream && !d->reduce->has_post;
}

static int reduce_slice(struct direct *d)
{
    struct shm *s = d->op->s;
    size_t len = s->out[s->me].len;
    uint8_t **targets = s->targets;
    int n = list_targets(d, targets);
    if (!n || !list_sources(d, s->sources))
        return err_set(&d->op->call->failure->err, -EPROTO,
                       "a rank published a buffer outside of the shared memory");
    if (passes_caches(d, targets[0], n, len)) {
        reduce_many_stream(d->reduce, targets[0], s->sources, s->n, len / d->reduce->dtype->size);
        return 0;
    }
    size_t hot = blocks_hot(d->reduce->dtype->size);
    for (size_t at = 0; at < len; at += hot)
        reduce_stretch(d, targets, n, at, len - at < hot ? len - at : hot);
    return 0;
}

/* Waits until the others have finished with this rank's buffers. */
static int meet(struct direct *d)
{
    struct shm *s = d->op->s;
    int r = 0;
    shm_publish(&s->progress[s->me].done, d->op->seq);
    for (int i = 0; i < s->n && r == 0; i++)
        r = i == s->me ? 0 : shm_await_word(d->op, i, &s->progress[i].done, d->op->seq);
    return r == 0 && comm_was_stopped(d->op->call->comm) ? -ECANCELED : r;
}

/* Enters the operation and publishes the addresses of this rank's buffers. 1: they are not in the
 * shared memory, and nothing was published, or those of another rank are not. */
static int offer(struct direct *d, size_t send_len, const void *recv, size_t recv_len)
{
    struct shm_op *op = d->op;
    struct shm *s = op->s;
    struct shm_arrival *a = op->mine;
    if (send_len < shm_tuning.direct || d->reduce->has_pre ||
        !shm_holds(s, op->call->send, send_len, &a->send) ||
        !shm_holds(s, recv, recv_len, &a->recv))
        return 1;
    op->late = true;
    shm_arrive(op, SHM_LATE | SHM_SHARED);
    int r = shm_await_all(op);
    for (int i = 0; i < s->n && r == 0; i++)
        r = !(shm_arrival(s, op->seq, i)->flags & SHM_SHARED);
    return r;
}

static int direct_run(struct direct *d, size_t send_len, const void *recv, size_t recv_len)
{
    int r = offer(d, send_len, recv, recv_len);
    if (r)
        return r;
    d->op->call->algo = "direct";
    r = d->op->s->out[d->op->s->me].len ? reduce_slice(d) : 0;
    return r < 0 ? r : meet(d);
}

int direct_all_reduce(struct shm_op *op)
{
    struct shm *s = op->s;
    struct direct d = {op, &op->call->reduce, TO_ALL};
    size_t len = coll_bytes(op->call);
    blocks_slices(len, op->call->elem, s->n, s->out);
    s->in[s->me] = s->out[s->me];
    return direct_run(&d, len, op->call->recv, len);
}

/* The root alone has a receive buffer. */
int direct_reduce(struct shm_op *op)
{
    struct shm *s = op->s;
    struct direct d = {op, &op->call->reduce, op->call->root};
    size_t len = coll_bytes(op->call);
    blocks_slices(len, op->call->elem, s->n, s->out);
    s->in[s->me] = s->out[s->me];
    return direct_run(&d, len, s->me == op->call->root ? op->call->recv : op->call->send, len);
}

int direct_reduce_scatter(struct shm_op *op)
{
    struct shm *s = op->s;
    struct direct d = {op, &op->call->reduce, s->me};
    blocks_parts(op->call, &op->call->send_parts, s->out);
    size_t total = s->out[s->n - 1].at + s->out[s->n - 1].len;
    s->in[s->me] = (struct shm_block){0, s->out[s->me].len};
    return direct_run(&d, total, op->call->recv, s->in[s->me].len);
}
