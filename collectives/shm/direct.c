#include "collectives/shm/direct.h"

#include <errno.h>
#include <string.h>

#include "collectives/shm/staged.h"
#include "collectives/shm/tuning.h"

enum {
    HOT_BYTES = 8 * 1024
}; /* reduced before it is copied to the others: stays in the first-level cache */

bool direct_offer(struct direct *d, size_t send_len, size_t recv_len)
{
    struct shm_arrival *a = d->op->mine;
    const struct shm *s = d->op->s;
    if (!shm_holds(s, d->send, send_len, &a->send) || !shm_holds(s, d->recv, recv_len, &a->recv))
        return false;
    shm_arrive(d->op, SHM_LATE | SHM_SHARED);
    return true;
}

int direct_agreed(struct direct *d)
{
    const struct shm *s = d->op->s;
    int r = shm_await_all(d->op), yes = 1;
    for (int i = 0; r == 0 && i < s->n; i++)
        yes = yes && (shm_arrival(s, d->op->seq, i)->flags & SHM_SHARED);
    return r < 0 ? r : yes;
}

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
        if (d->results == STAGED_ALL || i == (d->results == STAGED_NOBODY ? s->me : d->results)) {
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
        return err_set(&d->op->call->err, -EPROTO,
                       "a rank published a buffer outside of the shared memory");
    if (passes_caches(d, targets[0], n, len)) {
        reduce_many_stream(d->reduce, targets[0], s->sources, s->n, len / d->reduce->dtype->size);
        return 0;
    }
    for (size_t at = 0; at < len; at += HOT_BYTES)
        reduce_stretch(d, targets, n, at, len - at < HOT_BYTES ? len - at : HOT_BYTES);
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

int direct_run(struct direct *d)
{
    int r = d->op->s->out[d->op->s->me].len ? reduce_slice(d) : 0;
    return r < 0 ? r : meet(d);
}
