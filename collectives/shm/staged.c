#include "collectives/shm/staged.h"

#include <string.h>

#include "collectives/shm/cma.h"

/* Reduced before it is copied on: stays in the first-level cache. */
enum { HOT_BYTES = 8 * 1024 };

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes of piece k of a block. */
static size_t piece_len(const struct staged *f, size_t block_len, uint64_t k)
{
    size_t at = k * f->piece;
    return at < block_len ? min_size(block_len - at, f->piece) : 0;
}

/* Where rank i stages its piece for rank j. */
static uint8_t *place(const struct staged *f, int i, int j, uint64_t k)
{
    const struct shm *s = f->op->s;
    size_t at = f->shared || f->to_one ? 0 : (size_t)j * f->piece;
    debug_assert(j >= 0 && j < s->n && at + f->piece <= SHM_SLOT_BYTES);
    return at + shm_slot(s, i, f->op->base + k);
}

/* The lengths of rank i's blocks, which only that rank and the receiver know: at the end of the
 * slot of the first round. */
static uint64_t *lengths(const struct staged *f, int i)
{
    return (uint64_t *)(shm_slot(f->op->s, i, f->op->base) + SHM_SLOT_BYTES) - f->op->s->n;
}

/* ------------------------------------------------------------------------------------- staging */

static void staged_put(const struct staged *f, uint8_t *to, const uint8_t *from, size_t len)
{
    if (f->reduce && f->reduce->has_pre)
        reduce_pre(f->reduce, to, from, len / f->reduce->dtype->size);
    else
        memcpy(to, from, len);
}

/* The rank's own block is staged only to be scaled before it is reduced. */
static bool has_to_be_put(const struct staged *f, int j)
{
    return j != f->op->s->me || (f->reduce && f->reduce->has_pre);
}

/* Whether this rank uses its slot in round k. */
static bool uses_slot(const struct staged *f, uint64_t k)
{
    const struct shm *s = f->op->s;
    if (f->results != STAGED_NOBODY || (f->uneven && k == 0))
        return true;
    if (f->pull)
        return k == 0 && !f->shared; /* for the table of blocks */
    size_t most = 0;
    for (int j = 0; j < (f->shared ? 1 : s->n); j++)
        most = s->out[j].len > most ? s->out[j].len : most;
    return k * f->piece < most;
}

static int stage(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    if (uses_slot(f, k)) {
        /* Publishes the arrival before waiting: others may wait for this rank in the same way. */
        if (k == 0 && !f->late && !shm_is_free(f->op, f->op->base)) {
            f->late = true;
            shm_arrive(f->op, SHM_LATE | (f->pull ? SHM_PULL : 0));
        }
        int r = shm_claim(f->op, f->op->base + k);
        if (r < 0)
            return r;
    }
    for (int j = 0; f->uneven && k == 0 && j < s->n; j++)
        lengths(f, s->me)[j] = s->out[j].len;
    if (f->pull) {
        if (k == 0)
            cma_offer(f->op, f->send, f->shared);
        return 0;
    }
    for (int j = 0; j < (f->shared ? 1 : s->n); j++) {
        size_t len = piece_len(f, s->out[j].len, k);
        if (!len || (!f->shared && !has_to_be_put(f, j)))
            continue;
        shm_use_slots(s, s->me, f->filled);
        staged_put(f, place(f, s->me, j, k), f->send + s->out[j].at + k * f->piece, len);
    }
    return 0;
}

/* The arrival implies that the first round is staged, unless SHM_LATE is set. */
static void publish(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    if (k == 0 && !f->late)
        shm_arrive(f->op, f->pull ? SHM_PULL : 0);
    else
        shm_publish(&s->progress[s->me].staged, f->op->base + k + 1);
}

/* -------------------------------------------------------------------------------------- taking */

static int await_piece(struct staged *f, int i, uint64_t k)
{
    int r = k == 0 ? shm_await(f->op, i) : 0;
    return r < 0 ? r : shm_await_staged(f->op, i, f->op->base + k);
}

/* Piece k of all others has been staged, which shows how far they have read. */
static void all_staged(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    uint64_t behind = f->op->lag - 2;
    uint64_t read = f->op->base + (k > behind ? k - behind : 0);
    s->all_entered = f->op->seq;
    if (s->read < read)
        s->read = read;
}

static int copy_piece(struct staged *f, int i, uint64_t k, size_t len)
{
    struct shm *s = f->op->s;
    int r = await_piece(f, i, k);
    if (r < 0)
        return r;
    if (!(shm_arrival(s, f->op->seq, i)->flags & SHM_PULL)) {
        shm_use_slots(s, i, f->filled);
        memcpy(f->recv + s->in[i].at + k * f->piece, place(f, i, s->me, k), len);
        return 0;
    }
    /* Reads the whole block in the first round, unless it would overwrite blocks that are not
     * staged. */
    uint8_t *to = f->recv + s->in[i].at;
    if (f->in_place)
        return cma_take(f->op, i, to, s->in[i].len, k * f->piece, len, f->shared);
    return k ? 0 : cma_take(f->op, i, to, s->in[i].len, 0, s->in[i].len, f->shared);
}

static int copy_pieces(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    int from = 0;
    for (int d = 1; d < s->n; d++) {
        int i = s->me + d < s->n ? s->me + d : s->me + d - s->n;
        size_t len = piece_len(f, s->in[i].len, k);
        if (!len)
            continue;
        int r = copy_piece(f, i, k, len);
        if (r < 0)
            return r;
        from++;
    }
    if (from == s->n - 1)
        all_staged(f, k);
    return 0;
}

/* Reduces one stretch of a piece of all ranks, in the order of ranks, into `to`; copies it to
 * `also`. */
static void reduce_stretch(const struct staged *f, uint8_t *to, uint8_t *also, size_t at,
                           size_t len)
{
    const struct shm *s = f->op->s;
    const void *sources[64], **src = s->n <= 64 ? sources : s->sources + s->n;
    size_t count = len / f->reduce->dtype->size;
    for (int i = 0; i < s->n; i++)
        src[i] = (const uint8_t *)s->sources[i] + at;
    reduce_many(f->reduce, to + at, src, s->n, count);
    if (f->reduce->has_post)
        reduce_post(f->reduce, to + at, to + at, count);
    if (also)
        memcpy(also + at, to + at, len);
}

/* Finds piece k of rank i's block. A pulled piece is fetched to where the result goes, if it is the
 * only one to fetch and this rank's own data is elsewhere; else to this rank's slot, where nothing
 * is staged. */
static int find_source(struct staged *f, int i, uint64_t k, size_t len, const void **source)
{
    struct shm *s = f->op->s;
    int r = await_piece(f, i, k);
    *source = place(f, i, s->me, k);
    if (r < 0)
        return r;
    if (!(shm_arrival(s, f->op->seq, i)->flags & SHM_PULL)) {
        shm_use_slots(s, i, f->filled);
        return 0;
    }
    uint8_t *to = f->recv + s->in[s->me].at + k * f->piece;
    if (s->n > 2 || f->results != STAGED_NOBODY || f->recv == f->send) {
        r = shm_claim(f->op, f->op->base + k);
        to = place(f, s->me, s->me, k);
    }
    *source = to;
    return r < 0 ? r : cma_piece(f->op, i, to, f->most, k * f->piece, len, f->shared);
}

static int reduce_pieces(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    size_t at = k * f->piece, len = piece_len(f, s->in[s->me].len, k);
    if (!len)
        return 0;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : find_source(f, i, k, len, &s->sources[i]);
        if (r < 0)
            return r;
    }
    all_staged(f, k);
    if (f->reduce->has_pre)
        s->sources[s->me] = place(f, s->me, s->me, k);
    else
        s->sources[s->me] = f->send + s->out[f->shared ? 0 : s->me].at + at;
    bool keep = f->results == STAGED_NOBODY || f->results == STAGED_ALL || f->results == s->me;
    bool spread = f->results == STAGED_ALL || (f->results >= 0 && f->results != s->me);
    uint8_t *mine = place(f, s->me, s->me, k), *to = keep ? f->recv + s->in[s->me].at + at : mine;
    for (size_t done = 0; done < len; done += HOT_BYTES)
        reduce_stretch(f, to, keep && spread ? mine : NULL, done, min_size(HOT_BYTES, len - done));
    return 0;
}

static int copy_results(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    for (int d = 1; d < s->n; d++) {
        int i = s->me + d < s->n ? s->me + d : s->me + d - s->n;
        size_t len = piece_len(f, s->in[i].len, k);
        if (!len)
            continue;
        int r = shm_await_word(f->op, i, &s->progress[i].reduced, f->op->base + k + 1);
        if (r < 0)
            return r;
        memcpy(f->recv + s->in[i].at + k * f->piece, place(f, i, i, k), len);
    }
    return 0;
}

/* --------------------------------------------------------------------------------------- rounds */

static int staged_take(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    int r = f->reduce ? reduce_pieces(f, k) : copy_pieces(f, k);
    if (r == 0 && f->results != STAGED_NOBODY)
        shm_publish(&s->progress[s->me].reduced, f->op->base + k + 1);
    return r;
}

/* Checks that the length of each block, as its sender published it, is the expected one. */
static int compare_lengths(struct staged *f)
{
    const struct shm *s = f->op->s;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : shm_await_staged(f->op, i, f->op->base);
        if (r < 0)
            return r;
        if (i != s->me && lengths(f, i)[s->me] != s->in[i].len)
            return shm_differs(f->op, i);
    }
    return 0;
}

/* The number of rounds: those of the longest block of all ranks. */
static int agree(struct staged *f, uint64_t *rounds)
{
    const struct shm *s = f->op->s;
    size_t most = f->most;
    int r = f->uneven ? shm_await_all(f->op) : 0;
    for (int i = 0; f->uneven && r == 0 && i < s->n; i++) {
        const struct shm_arrival *a = shm_arrival(s, f->op->seq, i);
        most = a->most > most ? a->most : most;
    }
    if (f->uneven && r == 0)
        r = compare_lengths(f);
    *rounds = most > f->piece ? (most + f->piece - 1) / f->piece : 1;
    return r;
}

static int run_rounds(struct staged *f, uint64_t rounds)
{
    struct shm *s = f->op->s;
    bool results = f->results != STAGED_NOBODY;
    bool collects = f->results == STAGED_ALL || f->results == s->me;
    int r = 0;
    for (uint64_t k = 1; k <= rounds + results && r == 0; k++) {
        if (k < rounds && (r = stage(f, k)) == 0)
            publish(f, k);
        if (r == 0 && k <= rounds)
            r = staged_take(f, k - 1);
        if (r == 0 && collects && k >= 2)
            r = copy_results(f, k - 2);
    }
    return r;
}

int staged_run(struct staged *f)
{
    struct shm *s = f->op->s;
    uint64_t rounds = 1;
    debug_assert(f->piece && f->piece % 64 == 0 && !(f->shared && f->to_one));
    debug_assert(f->results >= STAGED_ALL && f->results < s->n);
    debug_assert(f->results == STAGED_NOBODY || f->reduce);
    s->has_mapped = false;
    size_t lanes = f->shared || f->to_one ? 1 : (size_t)s->n;
    f->filled = min_size(f->piece, f->most) * lanes;
    debug_assert(f->filled <= SHM_SLOT_BYTES);
    f->op->lag = f->results != STAGED_NOBODY ? 4 : 3;
    if (f->uneven)
        f->op->mine->most = f->most;
    int r = stage(f, 0);
    if (r < 0)
        return r;
    publish(f, 0);
    if (f->own_len)
        memcpy(f->own_to, f->own_from, f->own_len);
    r = agree(f, &rounds);
    if (r == 0)
        r = run_rounds(f, rounds);
    if (r == 0)
        r = cma_finish(f->op, f->pull, f->shared);
    s->round += rounds;
    return r;
}
