/* provider.c: carries out operations among the ranks of one node. The name of the way, by size:
 *
 *     "inline"          no data, or data in the arrivals or beside them
 *     "flat"            every rank stages; each copies or reduces all it needs
 *     "slices"          every rank reduces one slice
 *     "direct", "pull"  directly from buffer to buffer */
#include "collectives/shm/tuning.h"

#include <errno.h>
#include <string.h>

#include "collectives/api/provider.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shm/cost.h"
#include "collectives/shm/direct.h"
#include "collectives/shm/staged.h"
#include "collectives/shm/inline_msg.h"
#include "collectives/shm/cma.h"
#include "core/clock.h"

enum { FEW_RANKS = 4, MANY_RANKS = 12 };

struct shm_tuning shm_tuning = {
#define ROW(name, bytes, decides, measured) .name = bytes,
    THRESHOLDS_SHM(ROW)
#undef ROW
};

/* One call. */
struct shm_task {
    struct shm *s;
    struct coll_call *call;
    struct shm_op op;
    struct staged staged;
    size_t len; /* bytes of `count` elements */
};

/* -------------------------------------------------------------------------------------- blocks */

/* Lists the parts of a buffer. */
static void all_parts(const struct coll_call *c, const struct coll_parts *p, struct shm_block *out)
{
    size_t at = 0;
    for (int i = 0; i < c->ranks.size; i++) {
        size_t count = p->counts ? p->counts[i] : c->count;
        out[i] =
            (struct shm_block){(p->displs && count ? p->displs[i] : at) * c->elem, count * c->elem};
        at += count;
    }
}

/* Divides a buffer into n slices, of whole cache lines as far as possible. */
static void all_slices(size_t len, int n, struct shm_block *out)
{
    size_t lines = (len + 63) / 64, each = lines / (size_t)n, more = lines % (size_t)n, at = 0;
    for (int i = 0; i < n; i++) {
        size_t end = at + (each + ((size_t)i < more)) * 64;
        end = end < len ? end : len;
        out[i] = (struct shm_block){at, end - at};
        at = end;
    }
}

static size_t longest(const struct shm_block *b, int n)
{
    size_t most = 0;
    for (int i = 0; i < n; i++)
        most = b[i].len > most ? b[i].len : most;
    return most;
}

static void clear(struct shm_block *b, int n)
{
    memset(b, 0, (size_t)n * sizeof(*b));
}

/* Sets the block that this rank keeps. */
static void set_own(struct shm_task *t, void *to, const void *from, size_t len)
{
    t->staged.own_to = to;
    t->staged.own_from = from;
    t->staged.own_len = to == from ? 0 : len;
}

/* --------------------------------------------------------------------------------------- stageds
 */

/* The size of a piece: equal on all ranks of the node, as is the number of CPUs, on which `crowded`
 * depends. */
static size_t choose_piece(const struct shm_task *t, size_t lanes)
{
    const struct staged *f = &t->staged;
    bool crowded = !t->call->comm->policy.spin_ns;
    size_t n = (size_t)t->s->n, table = f->uneven ? n * sizeof(uint64_t) : 0;
    size_t most = (SHM_SLOT_BYTES - table) / lanes, piece = shm_tuning.piece_move;
    if (f->reduce && crowded)
        piece = shm_tuning.round_reduce / (n < MANY_RANKS ? n * n : MANY_RANKS * MANY_RANKS);
    else if (f->reduce)
        piece = n <= FEW_RANKS ? shm_tuning.piece_few : shm_tuning.piece_many;
    else if (lanes > 1)
        piece = shm_tuning.round_move / lanes;
    else if (n == 2 || (crowded && t->call->kind == CALL_BROADCAST))
        piece = shm_tuning.piece_few;
    piece = (piece < most ? piece : most) / 64 * 64;
    return piece ? piece : 64;
}

static int run_staged(struct shm_task *t, const char *name)
{
    struct staged *f = &t->staged;
    size_t lanes = f->shared || f->to_one ? 1 : (size_t)t->s->n;
    f->op = &t->op;
    f->send = t->call->send;
    f->recv = t->call->recv;
    f->piece = choose_piece(t, lanes);
    t->call->algo = f->pull ? "pull" : name;
    return staged_run(f);
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

/* Moves blocks in the way that is timed to be faster, if this rank's blocks can be pulled. */
static int move_timed(struct shm_task *t, size_t block, bool offers)
{
    struct shm *s = t->s;
    int kind = kind_of_move(t->call->kind), size = cost_size(block);
    struct cost_turn *turn = &s->turns[kind][size];
    enum cost_way way =
        cost_choose(&s->peers[0].costs[kind][size], s->n, sizeof(s->peers[0]), size, turn);
    uint64_t began = turn->timed ? mono_ns() : 0;
    t->staged.pull = way == COST_PULLED && offers && cma_can(s, t->call->send, t->staged.shared);
    int r = run_staged(t, "flat");
    bool pulled = t->staged.pull || t->op.pulled;
    if (turn->timed && r == 0 && !s->has_mapped)
        cost_take(&s->peers[s->me].costs[kind][size], size, turn,
                  pulled ? COST_PULLED : COST_STAGED, mono_ns() - began, block);
    return r;
}

/* The length from which a block may be pulled. Blocks in shared memory: soon. With a CPU for each
 * rank, other blocks are timed. For ranks that take turns on a CPU, a staged block that several of
 * them read is in the cache; a block for one rank is copied once less when pulled. */
static size_t cma_limit(const struct shm_task *t, size_t len)
{
    uint64_t at;
    bool shared = shm_holds(t->s, t->call->send, len, &at);
    if (t->call->comm->policy.spin_ns)
        return shared ? shm_tuning.pull_shared : shm_tuning.pull;
    if (shared)
        return shm_tuning.pull_crowded_shared;
    return t->staged.shared ? SIZE_MAX : shm_tuning.pull_crowded;
}

static bool is_timed(const struct shm_task *t, size_t block)
{
    return block >= shm_tuning.compare && t->call->comm->policy.spin_ns;
}

/* Copies blocks of at most `most` bytes. */
static int shm_move(struct shm_task *t, size_t most, bool uneven)
{
    size_t offered = 0;
    for (int j = 0; j < (t->staged.shared ? 1 : t->s->n); j++)
        offered = t->s->out[j].len > offered ? t->s->out[j].len : offered;
    t->staged.results = STAGED_NOBODY;
    t->staged.most = most;
    t->staged.uneven = uneven;
    size_t limit = cma_limit(t, offered);
    /* A rank that offers blocks must know that the others have probed. */
    if (most >= limit)
        cma_probe(t->s);
    bool may_pull = !t->staged.in_place, offers = may_pull && offered >= limit;
    size_t taken = longest(t->s->in, t->s->n), block = offered > taken ? offered : taken;
    if (may_pull && is_timed(t, block))
        return move_timed(t, block, offers);
    t->staged.pull = offers && cma_can(t->s, t->call->send, t->staged.shared);
    return run_staged(t, "flat");
}

static int shm_broadcast(struct shm_task *t)
{
    struct coll_call *c = t->call;
    struct shm *s = t->s;
    bool root = s->me == c->root;
    clear(s->in, s->n);
    s->out[0] = (struct shm_block){0, root ? t->len : 0};
    s->in[c->root].len = root ? 0 : t->len;
    t->staged.shared = true;
    if (root)
        set_own(t, c->recv, c->send, t->len);
    return shm_move(t, t->len, false);
}

static int shm_all_gather(struct shm_task *t)
{
    struct coll_call *c = t->call;
    struct shm *s = t->s;
    all_parts(c, &c->recv_parts, s->in);
    s->out[0] = (struct shm_block){0, s->in[s->me].len};
    t->staged.shared = true;
    set_own(t, (uint8_t *)c->recv + s->in[s->me].at, c->send, s->in[s->me].len);
    return shm_move(t, longest(s->in, s->n), false);
}

static int shm_gather(struct shm_task *t, bool uneven)
{
    struct coll_call *c = t->call;
    struct shm *s = t->s;
    bool root = s->me == c->root;
    clear(s->in, s->n);
    clear(s->out, s->n);
    t->staged.to_one = true;
    s->out[c->root].len = root ? 0 : t->len;
    if (root) {
        all_parts(c, &c->recv_parts, s->in);
        set_own(t, (uint8_t *)c->recv + s->in[s->me].at, c->send, s->in[s->me].len);
        s->in[s->me].len = 0;
    }
    return shm_move(t, root && uneven ? 0 : t->len, uneven);
}

static int shm_scatter(struct shm_task *t, bool uneven)
{
    struct coll_call *c = t->call;
    struct shm *s = t->s;
    bool root = s->me == c->root;
    clear(s->in, s->n);
    clear(s->out, s->n);
    s->in[c->root].len = root ? 0 : t->len;
    if (root) {
        all_parts(c, &c->send_parts, s->out);
        set_own(t, c->recv, (const uint8_t *)c->send + s->out[s->me].at, s->out[s->me].len);
        s->out[s->me].len = 0;
    }
    return shm_move(t, uneven ? longest(s->out, s->n) : t->len, uneven);
}

static int shm_all_to_all(struct shm_task *t, bool uneven)
{
    struct coll_call *c = t->call;
    struct shm *s = t->s;
    all_parts(c, &c->send_parts, s->out);
    all_parts(c, &c->recv_parts, s->in);
    t->staged.in_place = c->send == c->recv;
    set_own(t, (uint8_t *)c->recv + s->in[s->me].at, (const uint8_t *)c->send + s->out[s->me].at,
            s->in[s->me].len);
    return shm_move(t, longest(s->out, s->n), uneven);
}

/* -------------------------------------------------------------------------------- reductions */

/* Reduces through shared buffers if all ranks have such. 1: done; 0: not all have them, and
 * t->staged is set up for another way; or negative. */
static int try_direct(struct shm_task *t, size_t send_len, void *recv, size_t recv_len, int results)
{
    struct direct d = {.op = &t->op,
                       .send = t->call->send,
                       .recv = recv,
                       .reduce = &t->call->reduce,
                       .results = results};
    if (send_len < shm_tuning.direct || t->call->reduce.has_pre ||
        !direct_offer(&d, send_len, recv_len))
        return 0;
    t->staged.late = true;
    int r = direct_agreed(&d);
    if (r <= 0)
        return r;
    t->call->algo = "direct";
    r = direct_run(&d);
    return r < 0 ? r : 1;
}

/* Every rank reduces the whole buffer. */
static int reduce_flat(struct shm_task *t)
{
    struct shm *s = t->s;
    s->out[0] = s->in[s->me] = (struct shm_block){0, t->len};
    t->staged.shared = true;
    t->staged.results = STAGED_NOBODY;
    return run_staged(t, "flat");
}

/* The root reduces the whole buffer. The other one of two ranks may leave its data in place. */
static int reduce_at_root(struct shm_task *t)
{
    struct shm *s = t->s;
    bool root = s->me == t->call->root, scales = t->call->reduce.has_pre;
    s->out[0] = (struct shm_block){0, root && !scales ? 0 : t->len};
    s->in[s->me] = (struct shm_block){0, root ? t->len : 0};
    t->staged.shared = true;
    t->staged.results = STAGED_NOBODY;
    if (s->n == 2 && t->len >= cma_limit(t, t->len) && !scales) {
        cma_probe(s);
        /* An arrival that was already published cannot offer data to be pulled. */
        bool offers = !root && !t->staged.late;
        if (is_timed(t, t->len))
            return move_timed(t, t->len, offers);
        t->staged.pull = offers && cma_can(s, t->call->send, true);
    }
    return run_staged(t, "flat");
}

static int shm_all_reduce(struct shm_task *t)
{
    struct shm *s = t->s;
    t->staged.reduce = &t->call->reduce;
    t->staged.most = t->len;
    all_slices(t->len, s->n, s->out);
    memcpy(s->in, s->out, (size_t)s->n * sizeof(*s->in));
    int r = try_direct(t, t->len, t->call->recv, t->len, STAGED_ALL);
    if (r)
        return r < 0 ? r : 0;
    if (t->len * (size_t)s->n <= shm_tuning.flat)
        return reduce_flat(t);
    t->staged.results = STAGED_ALL;
    t->staged.most = longest(s->out, s->n);
    return run_staged(t, "slices");
}

static int shm_reduce(struct shm_task *t)
{
    struct shm *s = t->s;
    int root = t->call->root;
    t->staged.reduce = &t->call->reduce;
    t->staged.most = t->len;
    all_slices(t->len, s->n, s->out);
    memcpy(s->in, s->out, (size_t)s->n * sizeof(*s->in));
    /* Only the root has a receive buffer. */
    void *recv = s->me == root ? t->call->recv : (void *)(uintptr_t)t->call->send;
    int r = try_direct(t, t->len, recv, t->len, root);
    if (r)
        return r < 0 ? r : 0;
    if (t->len * (size_t)s->n <= (s->n == 2 ? shm_tuning.root_pair : shm_tuning.flat))
        return reduce_at_root(t);
    t->staged.results = root;
    t->staged.most = longest(s->out, s->n);
    return run_staged(t, "slices");
}

static int shm_reduce_scatter(struct shm_task *t)
{
    struct coll_call *c = t->call;
    struct shm *s = t->s;
    all_parts(c, &c->send_parts, s->out);
    size_t total = s->out[s->n - 1].at + s->out[s->n - 1].len, mine = s->out[s->me].len;
    clear(s->in, s->n);
    s->in[s->me].len = mine;
    t->staged.reduce = &t->call->reduce;
    t->staged.results = STAGED_NOBODY;
    t->staged.most = longest(s->out, s->n);
    int r = try_direct(t, total, c->recv, mine, STAGED_NOBODY);
    if (r)
        return r < 0 ? r : 0;
    return run_staged(t, "flat");
}

/* ---------------------------------------------------------------------------------- provider */

static bool shm_can(const struct coll_call *c)
{
    const dlcoll_comm *comm = c->comm;
    return comm->shm && c->ranks.size == comm->topo.nlocal &&
           (c->ranks.map ? c->ranks.map == comm->topo.local_ranks : comm->topo.nnodes == 1);
}

static int shm_perform(struct shm_task *t)
{
    switch (t->call->kind) {
    case CALL_ALL_REDUCE:
        return shm_all_reduce(t);
    case CALL_REDUCE:
        return shm_reduce(t);
    case CALL_REDUCE_SCATTER:
    case CALL_REDUCE_SCATTER_V:
        return shm_reduce_scatter(t);
    case CALL_BROADCAST:
        return shm_broadcast(t);
    case CALL_ALL_GATHER:
    case CALL_ALL_GATHER_V:
        return shm_all_gather(t);
    case CALL_GATHER:
    case CALL_GATHER_V:
        return shm_gather(t, t->call->kind == CALL_GATHER_V);
    case CALL_SCATTER:
    case CALL_SCATTER_V:
        return shm_scatter(t, t->call->kind == CALL_SCATTER_V);
    default:
        return shm_all_to_all(t, t->call->kind == CALL_ALL_TO_ALL_V);
    }
}

/* A function of its own, so that small operations do not clear a whole task. */
static __attribute__((noinline)) int run_task(struct shm_op *op)
{
    struct shm_task t = {.s = op->s, .call = op->call, .op = *op, .len = coll_bytes(op->call)};
    return shm_perform(&t);
}

static int shm_run(struct coll_call *c)
{
    struct shm_op op;
    c->may_repeat = false;
    int r = shm_begin(&op, c->comm->shm, c);
    if (r < 0)
        return r;
    size_t bytes = inline_msg_bytes(op.s, c);
    if (bytes <= shm_tuning.inlined) {
        c->algo = "inline";
        r = inline_msg_run(&op, bytes);
    } else {
        r = run_task(&op);
    }
    shm_end(&op);
    return r;
}

const struct coll_provider shm_provider = {.name = "shm", .can = shm_can, .run = shm_run};
