#include "collectives/shm/staged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/reduce/reduce.h"
#include "collectives/shm/blocks.h"
#include "collectives/shm/cma.h"
#include "collectives/shm/tuning.h"
#include "core/clock.h"

enum {
    FEW_RANKS = 4,
    MANY_RANKS = 12,
};

/* One operation of this rank. Its blocks are op->s->out, in `send`, and op->s->in, in `recv`; a
 * reduction of this rank's own block goes to in[me]. */
struct staged {
    struct shm_op *op;
    const uint8_t *send;
    uint8_t *recv;
    const struct reduce_info *reduce; /* NULL: copies */
    size_t most;                      /* the longest block that any rank has for another */
    size_t piece;                     /* bytes of a block in a chunk; whole units */
    size_t distance; /* in a slot, of the blocks for two ranks; 0: it holds one block */
    size_t filled;   /* bytes of a slot in use, at most */
    uint64_t chunks;
    bool one_block; /* each rank has at most one block, for one rank or for all */
    bool uneven;    /* `most` is only this rank's longest block: the ranks exchange theirs */
    bool in_place;  /* received data overwrites blocks of this rank */
    bool results;   /* go through the slots, too */
    bool scan;      /* each rank has a result of its own, in its own slot, written by the others */
    bool pull;      /* this rank's blocks are not staged: the others read them in place */
};

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

/* The place at which rank i stages piece k of its block for rank j. */
static uint8_t *place(const struct staged *f, int i, int j, uint64_t k)
{
    const struct shm *s = f->op->s;
    size_t at = (size_t)j * f->distance;
    debug_assert(j >= 0 && j < s->n && at + f->piece <= SHM_SLOT_BYTES);
    return at + shm_slot(s, i, f->op->base + k);
}

/* The lengths of rank i's blocks, which only that rank and the receiver know: at the end of the
 * slot of the first chunk. */
static uint64_t *lengths(const struct staged *f, int i)
{
    return (uint64_t *)(shm_slot(f->op->s, i, f->op->base) + SHM_SLOT_BYTES) - f->op->s->n;
}

/* The rank whose block for itself is not staged: this one, unless that block is to be scaled before
 * it is reduced. */
static int not_staged(const struct staged *f)
{
    return f->reduce && f->reduce->has_pre ? -1 : f->op->s->me;
}

/* -------------------------------------------------------------------------------------- staging */

/* Whether this rank uses its slot for chunk k. */
static bool uses_slot(const struct staged *f, uint64_t k)
{
    const struct shm *s = f->op->s;
    if (f->results || (f->uneven && k == 0))
        return true;
    if (f->pull)
        return k == 0 && !f->one_block; /* for the table of blocks */
    return k * f->piece < blocks_longest(s->out, s->n, not_staged(f));
}

/* Waits until this rank may fill the slot of chunk k. Publishes the arrival before waiting: others
 * may wait for this rank in the same way. */
static int claim(struct staged *f, uint64_t k)
{
    struct shm_op *op = f->op;
    if (k == 0 && !op->late && !shm_is_free(op, op->base)) {
        op->late = true;
        shm_arrive(op, SHM_LATE | (f->pull ? SHM_PULL : 0));
    }
    return shm_claim(op, op->base + k);
}

static void fill(const struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    int skipped = not_staged(f);
    for (int j = 0; j < s->n; j++) {
        size_t len = j == skipped ? 0 : piece_len(f, s->out[j].len, k);
        const uint8_t *from = f->send + s->out[j].at + k * f->piece;
        if (!len)
            continue;
        shm_use_slots(s, s->me, f->filled);
        if (f->reduce && f->reduce->has_pre)
            reduce_pre(f->reduce, place(f, s->me, j, k), from, len / f->reduce->dtype->size);
        else
            memcpy(place(f, s->me, j, k), from, len);
        if (f->one_block)
            break;
    }
}

/* Puts chunk k into this rank's slot, and publishes that. The arrival implies that the first chunk
 * is staged, unless it was published before. */
static int put(struct staged *f, uint64_t k)
{
    struct shm_op *op = f->op;
    struct shm *s = op->s;
    int r = uses_slot(f, k) ? claim(f, k) : 0;
    if (r < 0)
        return r;
    for (int j = 0; f->uneven && k == 0 && j < s->n; j++)
        lengths(f, s->me)[j] = s->out[j].len;
    if (!f->pull)
        fill(f, k);
    else if (k == 0)
        cma_offer(op, f->send, f->one_block);
    if (k == 0 && !op->late)
        shm_arrive(op, f->pull ? SHM_PULL : 0);
    else
        shm_publish(&s->progress[s->me].staged, op->base + k + 1);
    return 0;
}

/* --------------------------------------------------------------------------------------- taking */

static int await_piece(struct staged *f, int i, uint64_t k)
{
    int r = k == 0 ? shm_await(f->op, i) : 0;
    return r < 0 ? r : shm_await_staged(f->op, i, f->op->base + k);
}

static bool is_pulled(const struct staged *f, int i)
{
    return shm_arrival(f->op->s, f->op->seq, i)->flags & SHM_PULL;
}

/* Chunk k of all others has been staged, which shows how far they have read. */
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
    size_t at = k * f->piece, all = s->in[i].len;
    uint8_t *to = f->recv + s->in[i].at + at;
    int r = await_piece(f, i, k);
    if (r < 0)
        return r;
    if (!is_pulled(f, i)) {
        shm_use_slots(s, i, f->filled);
        memcpy(to, place(f, i, s->me, k), len);
        return 0;
    }
    /* Reads the whole block at once, unless it would overwrite blocks that are not staged. */
    if (f->in_place)
        return cma_read(f->op, i, to, all, at, len, f->one_block);
    return k ? 0 : cma_read(f->op, i, to, all, 0, all, f->one_block);
}

/* Copies piece k of the others' blocks for this rank. */
static int copy(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    int from = 0;
    for (int d = 1; d < s->n; d++) {
        int i = s->me + d < s->n ? s->me + d : s->me + d - s->n;
        size_t len = piece_len(f, s->in[i].len, k);
        int r = len ? copy_piece(f, i, k, len) : 0;
        if (r < 0)
            return r;
        from += len > 0;
    }
    if (from == s->n - 1)
        all_staged(f, k);
    return 0;
}

/* Finds piece k of rank i's block. A pulled piece, of the other one of two ranks, is fetched to
 * where the result goes, or where that is this rank's own data, to its slot, which is empty. */
static int find_source(struct staged *f, int i, uint64_t k, size_t len, const void **source)
{
    struct shm *s = f->op->s;
    int r = await_piece(f, i, k);
    *source = place(f, i, s->me, k);
    if (r < 0)
        return r;
    if (!is_pulled(f, i)) {
        shm_use_slots(s, i, f->filled);
        return 0;
    }
    uint8_t *to = f->recv + s->in[s->me].at + k * f->piece;
    if (f->recv == f->send) {
        r = shm_claim(f->op, f->op->base + k);
        to = place(f, s->me, s->me, k);
    }
    *source = to;
    return r < 0 ? r : cma_read(f->op, i, to, f->most, k * f->piece, len, f->one_block);
}

/* Reduces one stretch of the ranks' pieces, in the order of ranks, into `to`; copies it to `also`.
 */
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

/* Reduces piece k of all ranks' blocks for this rank: to its receive buffer, to its slot, or both.
 */
static int reduce(struct staged *f, uint64_t k, bool to_recv, bool to_slot)
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
    uint8_t *mine = place(f, s->me, s->me, k);
    uint8_t *to = to_recv ? f->recv + s->in[s->me].at + at : mine;
    s->sources[s->me] = f->reduce->has_pre ? mine : f->send + s->out[s->me].at + at;
    size_t hot = blocks_hot(f->reduce->dtype->size);
    for (size_t done = 0; done < len; done += hot)
        reduce_stretch(f, to, to_recv && to_slot ? mine : NULL, done, min_size(hot, len - done));
    return 0;
}

/* The prefixes of one stretch of a slice, one after the other: to[i] is rank i's, which may be its
 * source. */
static void scan_stretch(const struct staged *f, uint8_t *const *to, size_t at, size_t len,
                         uint8_t *const *sums)
{
    const struct shm *s = f->op->s;
    struct reduce_info how = *f->reduce;
    bool exclusive = f->op->call->kind == CALL_EXSCAN;
    size_t count = len / how.dtype->size;
    for (int i = 0; i < s->n; i++) {
        uint8_t *sum = sums[i % 2], *before = sums[(i + 1) % 2], *prefix = exclusive ? before : sum;
        const uint8_t *own = (const uint8_t *)s->sources[i] + at;
        if (i > 0) {
            reduce_two(&how, sum, before, own, count);
        } else {
            memcpy(sum, own, len);
            reduce_alone(&how, sum, count);
        }
        how.ranks = exclusive ? i : i + 1;
        if (how.ranks == 0)
            continue;
        if (how.has_post)
            reduce_post(&how, to[i] + at, prefix, count);
        else
            memcpy(to[i] + at, prefix, len);
    }
}

static void scan_piece(const struct staged *f, size_t len)
{
    _Alignas(64) uint8_t sums[2][BLOCKS_HOT_BYTES];
    size_t hot = blocks_hot(f->reduce->dtype->size);
    for (size_t done = 0; done < len; done += hot)
        scan_stretch(f, f->op->s->targets, done, min_size(hot, len - done),
                     (uint8_t *[]){sums[0], sums[1]});
}

/* Stacks may be small. */
static int scan_large(const struct staged *f, size_t len)
{
    struct shm *s = f->op->s;
    size_t size = f->reduce->dtype->size;
    if (!s->sums && !(s->sums = malloc((size_t)2 * DLCOLL_ELEMENT_MAX)))
        return err_set(&f->op->call->failure->err, -ENOMEM, "no memory for the operation");
    for (size_t done = 0; done < len; done += size)
        scan_stretch(f, s->targets, done, size,
                     (uint8_t *[]){s->sums, s->sums + DLCOLL_ELEMENT_MAX});
    return 0;
}

/* Computes piece k of this rank's slice of every rank's result: in place of that rank's data in its
 * slot; this rank's to its receive buffer. */
static int scan(struct staged *f, uint64_t k)
{
    struct shm *s = f->op->s;
    size_t at = k * f->piece, len = piece_len(f, s->in[s->me].len, k);
    if (!len)
        return 0;
    for (int i = 0; i < s->n; i++) {
        int r = i == s->me ? 0 : find_source(f, i, k, len, &s->sources[i]);
        if (r < 0)
            return r;
        s->targets[i] = place(f, i, s->me, k);
    }
    all_staged(f, k);
    s->targets[s->me] = f->recv ? f->recv + s->in[s->me].at + at : NULL;
    s->sources[s->me] =
        f->reduce->has_pre ? place(f, s->me, s->me, k) : f->send + s->out[s->me].at + at;
    if (f->reduce->dtype->size > BLOCKS_HOT_BYTES)
        return scan_large(f, len);
    scan_piece(f, len);
    return 0;
}

/* Copies the others' results of chunk k. */
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
        memcpy(f->recv + s->in[i].at + k * f->piece, place(f, f->scan ? s->me : i, i, k), len);
    }
    return 0;
}

/* ----------------------------------------------------------------------------------- algorithms */

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

/* The number of chunks is that of the longest block of all ranks. */
static int agree_on_chunks(struct staged *f)
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
    f->chunks = most > f->piece ? (most + f->piece - 1) / f->piece : 1;
    return r;
}

static size_t unit_of(const struct staged *f)
{
    return f->reduce ? blocks_unit(f->reduce->dtype->size) : 64;
}

static int enter(struct staged *f)
{
    debug_assert(f->piece && f->filled <= SHM_SLOT_BYTES);
    debug_assert(f->piece % unit_of(f) == 0);
    f->op->s->has_mapped = false;
    f->op->lag = f->results ? 4 : 3;
    if (f->pull)
        f->op->call->algo = "pull";
    if (f->uneven)
        f->op->mine->most = f->most;
    return put(f, 0);
}

static int leave(struct staged *f, int r)
{
    if (r == 0)
        r = cma_finish(f->op, f->pull);
    f->op->s->chunk += f->chunks;
    return r;
}

/* The block that this rank has for itself. */
static void keep(const struct staged *f)
{
    const struct shm *s = f->op->s;
    const uint8_t *from = f->send + s->out[s->me].at;
    uint8_t *to = f->recv + s->in[s->me].at;
    if (s->in[s->me].len && to != from)
        memcpy(to, from, s->in[s->me].len);
}

static int copy_blocks(struct staged *f)
{
    int r = enter(f);
    if (r == 0) {
        keep(f);
        r = agree_on_chunks(f);
    }
    for (uint64_t k = 1; k <= f->chunks && r == 0; k++) {
        if (k < f->chunks)
            r = put(f, k);
        if (r == 0)
            r = copy(f, k - 1);
    }
    return leave(f, r);
}

static int reduce_flat(struct staged *f)
{
    int r = enter(f);
    if (r == 0)
        r = agree_on_chunks(f);
    for (uint64_t k = 1; k <= f->chunks && r == 0; k++) {
        if (k < f->chunks)
            r = put(f, k);
        if (r == 0)
            r = reduce(f, k - 1, true, false);
    }
    return leave(f, r);
}

/* The result goes to rank `root`; -1: to all. */
static int reduce_slices(struct staged *f, int root)
{
    struct shm *s = f->op->s;
    bool gets = root < 0 || root == s->me, gives = root != s->me;
    if (f->op->call->kind == CALL_EXSCAN)
        gets = s->me > 0;
    f->results = true;
    int r = enter(f);
    if (r == 0)
        r = agree_on_chunks(f);
    for (uint64_t k = 1; k <= f->chunks + 1 && r == 0; k++) {
        if (k < f->chunks)
            r = put(f, k);
        if (r == 0 && k <= f->chunks) {
            r = f->scan ? scan(f, k - 1) : reduce(f, k - 1, gets, gives);
            if (r == 0)
                shm_publish(&s->progress[s->me].reduced, f->op->base + k);
        }
        if (r == 0 && gets && k >= 2)
            r = copy_results(f, k - 2);
    }
    return leave(f, r);
}

/* ------------------------------------------------------------------------------------- choosing */

/* The size of a piece: equal on all ranks of the node, as is the number of CPUs, on which `crowded`
 * depends. */
static size_t choose_piece(const struct staged *f)
{
    const struct coll_call *c = f->op->call;
    bool crowded = !c->comm->policy.spin_ns;
    size_t n = (size_t)f->op->s->n, blocks = f->one_block ? 1 : n;
    size_t most = (SHM_SLOT_BYTES - (f->uneven ? n * sizeof(uint64_t) : 0)) / blocks;
    size_t piece = shm_tuning.piece_move;
    if (f->reduce && crowded)
        piece = shm_tuning.chunk_reduce / (n < MANY_RANKS ? n * n : MANY_RANKS * MANY_RANKS);
    else if (f->reduce)
        piece = n <= FEW_RANKS ? shm_tuning.piece_few : shm_tuning.piece_many;
    else if (blocks > 1)
        piece = shm_tuning.chunk_move / blocks;
    else if (n == 2 || (crowded && c->kind == CALL_BROADCAST))
        piece = shm_tuning.piece_few;
    piece = min_size(piece, most / 64 * 64) / unit_of(f) * unit_of(f);
    return piece ? piece : unit_of(f);
}

/* The blocks have been listed. */
static void prepare(struct staged *f, const char *name)
{
    const struct shm *s = f->op->s;
    f->most = blocks_longest(s->out, s->n, f->uneven ? s->me : -1);
    size_t in = f->uneven ? 0 : blocks_longest(s->in, s->n, -1);
    f->most = in > f->most ? in : f->most;
    f->piece = choose_piece(f);
    f->distance = f->one_block ? 0 : (f->piece + 63) / 64 * 64;
    f->filled = min_size(f->piece, f->most) * (f->one_block ? 1 : (size_t)s->n);
    f->op->call->algo = name;
}

static int kind_of_move(enum call_kind kind)
{
    switch (kind) {
    case CALL_BROADCAST:
        return 0;
    case CALL_ALL_GATHER:
    case CALL_ALL_GATHER_V:
        return 1;
    case CALL_GATHER:
    case CALL_GATHER_V:
        return 2;
    case CALL_SCATTER:
    case CALL_SCATTER_V:
        return 3;
    case CALL_REDUCE:
        return 4;
    default:
        return COST_KINDS - 1;
    }
}

static bool has_one_reader(const struct staged *f)
{
    enum call_kind kind = f->op->call->kind;
    return !f->one_block || kind == CALL_GATHER || kind == CALL_GATHER_V;
}

/* The length from which a block may be pulled. Blocks in shared memory: soon. For ranks that take
 * turns on a CPU, a staged block that several of them read, or that is reduced, is in the cache. */
static size_t pull_limit(const struct staged *f, size_t len)
{
    uint64_t at;
    bool shared = shm_holds(f->op->s, f->send, len, &at);
    if (f->op->call->comm->policy.spin_ns)
        return shared ? shm_tuning.pull_shared : shm_tuning.pull;
    if (shared)
        return shm_tuning.pull_crowded_shared;
    return has_one_reader(f) ? shm_tuning.pull_crowded : SIZE_MAX;
}

/* The length from which both ways are timed. A block that is pulled is copied once less, but by the
 * kernel, page by page: which way is faster, no fixed rule tells. */
static size_t compare_limit(const struct staged *f)
{
    if (f->op->call->comm->policy.spin_ns)
        return shm_tuning.compare;
    return has_one_reader(f) ? shm_tuning.pull_crowded : SIZE_MAX;
}

/* Runs an algorithm in the way that is timed to be faster, if this rank may offer its blocks. */
static int run_timed(struct staged *f, int (*run)(struct staged *f), size_t block, bool offers)
{
    struct shm *s = f->op->s;
    int kind = kind_of_move(f->op->call->kind), size = cost_size(block);
    struct cost_turn *turn = &s->turns[kind][size];
    enum cost_way way =
        cost_choose(&s->peers[0].costs[kind][size], s->n, sizeof(s->peers[0]), size, turn);
    uint64_t began = turn->timed ? mono_ns() : 0;
    f->pull = way == COST_PULLED && offers && cma_can(s, f->send);
    int r = run(f);
    if (turn->timed && r == 0 && !s->has_mapped)
        cost_take(&s->peers[s->me].costs[kind][size], size, turn,
                  f->pull || f->op->pulled ? COST_PULLED : COST_STAGED, mono_ns() - began, block);
    return r;
}

/* Runs an algorithm in which blocks are staged or pulled. An arrival that was already published
 * cannot offer data to be pulled. */
static int run_either_way(struct staged *f, int (*run)(struct staged *f))
{
    struct shm *s = f->op->s;
    prepare(f, "flat");
    size_t offered = blocks_longest(s->out, s->n, s->me);
    size_t taken = blocks_longest(s->in, s->n, s->me), block = f->most > taken ? f->most : taken;
    size_t limit = pull_limit(f, offered);
    /* A rank that offers blocks must know that the others have probed. */
    if (f->most >= limit)
        cma_probe(s);
    bool offers = !f->in_place && !f->op->late && offered >= limit;
    if (!f->in_place && block >= compare_limit(f))
        return run_timed(f, run, block, offers);
    f->pull = offers && cma_can(s, f->send);
    return run(f);
}

/* ----------------------------------------------------------------------------------- operations */

static struct staged begin(struct shm_op *op, const struct reduce_info *reduce)
{
    struct shm *s = op->s;
    memset(s->out, 0, (size_t)s->n * sizeof(*s->out));
    memset(s->in, 0, (size_t)s->n * sizeof(*s->in));
    return (struct staged){
        .op = op, .send = op->call->send, .recv = op->call->recv, .reduce = reduce, .chunks = 1};
}

/* Fills op->s with one block for all ranks. */
static void out_to_all(struct staged *f, size_t len)
{
    struct shm *s = f->op->s;
    f->one_block = true;
    for (int j = 0; j < s->n; j++)
        s->out[j] = (struct shm_block){0, len};
}

static void out_to_one(struct staged *f, int rank, size_t len)
{
    f->one_block = true;
    f->op->s->out[rank] = (struct shm_block){0, len};
}

/* Short: everybody reduces everything. Long: everybody reduces a slice. */
int staged_all_reduce(struct shm_op *op)
{
    struct shm *s = op->s;
    struct staged f = begin(op, &op->call->reduce);
    size_t len = coll_bytes(op->call);
    if (len * (size_t)s->n <= shm_tuning.flat) {
        out_to_all(&f, len);
        s->in[s->me].len = len;
        prepare(&f, "flat");
        return reduce_flat(&f);
    }
    blocks_slices(len, op->call->elem, s->n, s->out);
    blocks_slices(len, op->call->elem, s->n, s->in);
    prepare(&f, "slices");
    return reduce_slices(&f, -1);
}

/* Short, or two ranks: the root reduces everything. The other one of two ranks may leave its data
 * in place. Else: everybody reduces a slice, for the root. */
int staged_reduce(struct shm_op *op)
{
    struct shm *s = op->s;
    struct staged f = begin(op, &op->call->reduce);
    int root = op->call->root;
    size_t len = coll_bytes(op->call);
    if (s->n == 2 || len * (size_t)s->n <= shm_tuning.flat) {
        out_to_one(&f, root, len);
        s->in[s->me].len = s->me == root ? len : 0;
        if (s->n == 2 && !f.reduce->has_pre)
            return run_either_way(&f, reduce_flat);
        prepare(&f, "flat");
        return reduce_flat(&f);
    }
    blocks_slices(len, op->call->elem, s->n, s->out);
    blocks_slices(len, op->call->elem, s->n, s->in);
    prepare(&f, "slices");
    return reduce_slices(&f, root);
}

/* Everybody computes a slice of all ranks' results. */
int staged_scan(struct shm_op *op)
{
    struct shm *s = op->s;
    struct staged f = begin(op, &op->call->reduce);
    size_t len = coll_bytes(op->call);
    f.scan = true;
    blocks_slices(len, op->call->elem, s->n, s->out);
    blocks_slices(len, op->call->elem, s->n, s->in);
    prepare(&f, "slices");
    return reduce_slices(&f, -1);
}

/* Each rank reduces its own part. */
int staged_reduce_scatter(struct shm_op *op)
{
    struct shm *s = op->s;
    struct staged f = begin(op, &op->call->reduce);
    blocks_parts(op->call, &op->call->send_parts, s->out);
    s->in[s->me].len = s->out[s->me].len;
    prepare(&f, "flat");
    return reduce_flat(&f);
}

/* The root has the same block for all. */
int staged_broadcast(struct shm_op *op)
{
    struct shm *s = op->s;
    struct staged f = begin(op, NULL);
    out_to_all(&f, s->me == op->call->root ? coll_bytes(op->call) : 0);
    s->in[op->call->root].len = coll_bytes(op->call);
    return run_either_way(&f, copy_blocks);
}

/* Each rank has the same block for all. */
int staged_all_gather(struct shm_op *op)
{
    struct shm *s = op->s;
    struct staged f = begin(op, NULL);
    blocks_parts(op->call, &op->call->recv_parts, s->in);
    out_to_all(&f, s->in[s->me].len);
    return run_either_way(&f, copy_blocks);
}

/* Each rank has a block for the root. */
int staged_gather(struct shm_op *op)
{
    struct staged f = begin(op, NULL);
    f.uneven = op->call->kind == CALL_GATHER_V;
    out_to_one(&f, op->call->root, coll_bytes(op->call));
    if (op->s->me == op->call->root)
        blocks_parts(op->call, &op->call->recv_parts, op->s->in);
    return run_either_way(&f, copy_blocks);
}

/* The root has a block for each rank. */
int staged_scatter(struct shm_op *op)
{
    struct staged f = begin(op, NULL);
    f.uneven = op->call->kind == CALL_SCATTER_V;
    if (op->s->me == op->call->root)
        blocks_parts(op->call, &op->call->send_parts, op->s->out);
    op->s->in[op->call->root].len = coll_bytes(op->call);
    return run_either_way(&f, copy_blocks);
}

/* Each rank has a block for each rank. */
int staged_all_to_all(struct shm_op *op)
{
    struct staged f = begin(op, NULL);
    f.uneven = op->call->kind == CALL_ALL_TO_ALL_V;
    f.in_place = op->call->send == op->call->recv;
    blocks_parts(op->call, &op->call->send_parts, op->s->out);
    blocks_parts(op->call, &op->call->recv_parts, op->s->in);
    return run_either_way(&f, copy_blocks);
}
