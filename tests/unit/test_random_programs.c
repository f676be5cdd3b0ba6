/* Random programs of operations, messages, communicators and threads, between 1 to 9 ranks on 1 to
 * 3 nodes, against a plain loop over the ranks that take part. A program is a number: every rank
 * draws the same steps from it. `make random-programs OPS=N SEED=S` runs programs until N
 * operations are done; RANDOM_PROGRAM=P repeats the one that a failure names. */
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/mem.h"
#include "tests/lib/cross_values.h"
#include "tests/lib/ranks.h"

enum { MOST = 9, GROUPS = 5, PENDING = 6, STEPS = 30, EDGES = 2 * MOST };

static uint64_t g_program;
static int g_rounds;

/* A communicator, and operations under way on it. */
struct group {
    dlcoll_comm *comm;      /* NULL: this rank is not in it */
    int n, me, ranks[MOST]; /* in the world */
    struct step *pending[PENDING];
    int npending;
};

/* One operation of this rank: what is checked when it is complete. */
struct step {
    struct group *g;
    uint64_t key;
    int kind;
    dlcoll_dtype dtype;
    dlcoll_op op;
    size_t count, size; /* elements; bytes of one */
    int root;
    bool in_place, layout;
    uint8_t *send, *recv; /* in place: the same */
    size_t counts[4][EDGES];
    int edges[EDGES];
    int32_t tags; /* of messages: from here on */
    dlcoll_layout where;
    dlcoll_opts opts;
    dlcoll_work *work;
};

static uint64_t draw(uint64_t key, uint64_t what)
{
    return cross_mix(key ^ cross_mix(what + 1));
}

/* ----------------------------------------------------------------------------------------- data */

enum {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    GATHER,
    GATHER_V,
    ALL_GATHER,
    ALL_GATHER_V,
    SCATTER,
    SCATTER_V,
    REDUCE_SCATTER,
    REDUCE_SCATTER_V,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    ALL_TO_ALL_W,
    SCAN,
    EXSCAN,
    COALESCED,
    NEIGHBOR_GATHER,
    NEIGHBOR_TO_ALL,
    RING,
    PAIRS,
    TO_ANY,
    BARRIER,
    KINDS
};

static const char *const g_kinds[KINDS] = {"all_reduce",
                                           "reduce",
                                           "broadcast",
                                           "gather",
                                           "gather_v",
                                           "all_gather",
                                           "all_gather_v",
                                           "scatter",
                                           "scatter_v",
                                           "reduce_scatter",
                                           "reduce_scatter_v",
                                           "all_to_all",
                                           "all_to_all_v",
                                           "all_to_all_w",
                                           "scan",
                                           "exscan",
                                           "coalesced",
                                           "neighbor_all_gather",
                                           "neighbor_all_to_all",
                                           "ring",
                                           "pairs",
                                           "to_any",
                                           "barrier"};

static const struct {
    dlcoll_dtype dtype;
    size_t size;
} g_types[] = {{DLCOLL_I32, 4}, {DLCOLL_I64, 8}, {DLCOLL_U8, 1},
               {DLCOLL_F32, 4}, {DLCOLL_F64, 8}, {DLCOLL_I16, 2}};
enum { TYPES = 6 };

static bool is_float(dlcoll_dtype dtype)
{
    return dtype == DLCOLL_F32 || dtype == DLCOLL_F64;
}

/* A small number: sums of floats are exact. */
static int64_t number(const struct step *s, int world_rank, size_t e)
{
    return (int64_t)(draw(s->key + (uint64_t)world_rank * 1000003, e) % 101) - 50;
}

static void put(const struct step *s, int64_t x, uint8_t *to)
{
    float f = (float)x;
    double d = (double)x;
    const void *from = s->dtype == DLCOLL_F32   ? (void *)&f
                       : s->dtype == DLCOLL_F64 ? (void *)&d
                                                : &x;
    memcpy(to, from, s->size);
}

static void fill(const struct step *s, uint8_t *to, int rank, size_t first, size_t count)
{
    for (size_t e = 0; e < count; e++)
        put(s, number(s, s->g->ranks[rank], first + e), to + e * s->size);
}

static int64_t combine(dlcoll_op op, int64_t a, int64_t b)
{
    switch (op) {
    case DLCOLL_MAX:
        return a > b ? a : b;
    case DLCOLL_MIN:
        return a < b ? a : b;
    case DLCOLL_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case DLCOLL_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

/* U8 holds numbers without a sign: the smaller one is another then. */
static int64_t as_typed(const struct step *s, int64_t x)
{
    return s->dtype == DLCOLL_U8    ? (int64_t)(uint8_t)x
           : s->dtype == DLCOLL_I16 ? (int64_t)(int16_t)x
           : s->dtype == DLCOLL_I32 ? (int64_t)(int32_t)x
                                    : x;
}

__attribute__((noreturn)) static void wrong(const struct step *s, const char *what, size_t at)
{
    fprintf(
        stderr,
        "RANDOM_PROGRAM=%llu: rank %d of %d: %s of %zu of type %d (op %d, root %d, in place %d, "
        "layout %d, handle %d): %s (%zu)\n",
        (unsigned long long)g_program, s->g->me, s->g->n, g_kinds[s->kind], s->count, (int)s->dtype,
        (int)s->op, s->root, s->in_place, s->layout, s->work != NULL, what, at);
    _exit(1);
}

static size_t place_of(const struct step *s, size_t e)
{
    return s->layout ? e / s->where.length * s->where.stride + e % s->where.length : e;
}

/* Elements of recv from `at` on are those of a rank from `first` on. */
static void expect(const struct step *s, size_t at, int rank, size_t first, size_t count)
{
    uint8_t want[8];
    for (size_t e = 0; e < count; e++) {
        put(s, number(s, s->g->ranks[rank], first + e), want);
        if (memcmp(s->recv + place_of(s, at + e) * s->size, want, s->size) != 0)
            wrong(s, "an element", at + e);
    }
}

/* Or the reduction of the first n ranks. */
static void expect_reduced(const struct step *s, int n, size_t first, size_t count)
{
    uint8_t want[8];
    for (size_t e = 0; e < count; e++) {
        int64_t x = as_typed(s, number(s, s->g->ranks[0], first + e));
        for (int i = 1; i < n; i++)
            x = combine(s->op, x, as_typed(s, number(s, s->g->ranks[i], first + e)));
        put(s, x, want);
        if (memcmp(s->recv + place_of(s, e) * s->size, want, s->size) != 0)
            wrong(s, "a reduced element", e);
    }
}

/* ---------------------------------------------------------------------------------------- counts
 */

/* The count of the part that goes from one rank to another; ranks are of the group. */
static size_t part(const struct step *s, int from, int to)
{
    uint64_t d = draw(s->key, 5000 + (uint64_t)(from * MOST + to));
    return d % 4 ? d / 4 % (s->count + 1) : 0;
}

static size_t before(const size_t *counts, int rank)
{
    size_t at = 0;
    for (int i = 0; i < rank; i++)
        at += counts[i];
    return at;
}

/* --------------------------------------------------------------------------------- begin, check */

static void allocate(struct step *s, size_t in, size_t out)
{
    size_t room = 2 * (in > out ? in : out) + 8;
    s->send = xcalloc(room, s->size);
    s->recv = s->in_place ? s->send : xcalloc(room, s->size);
}

static bool takes_layout(int kind)
{
    return kind == ALL_REDUCE || kind == BROADCAST || kind == REDUCE || kind == SCAN ||
           kind == ALL_GATHER || kind == REDUCE_SCATTER || kind == ALL_TO_ALL;
}

static bool can_be_in_place(int kind)
{
    return kind == ALL_REDUCE || kind == SCAN || kind == BROADCAST || kind == ALL_TO_ALL ||
           kind == COALESCED;
}

/* Every rank of the group draws the same step, but for whether it is in place and by handle. */
static struct step *draw_step(struct group *g, uint64_t key, bool message)
{
    struct step *s = xcalloc(1, sizeof(*s));
    static const dlcoll_op ops[] = {DLCOLL_SUM, DLCOLL_MAX, DLCOLL_MIN, DLCOLL_PROD, DLCOLL_BXOR};
    static const size_t most[] = {1, 4, 20, 200, 3000, 30000};
    int type = (int)(draw(key, 1) % TYPES);
    s->g = g;
    s->key = key;
    s->kind = (int)(draw(key, 2) % KINDS);
    if (message)
        s->kind = RING + s->kind % (BARRIER - RING);
    s->tags = message ? 100 : 0;
    s->dtype = g_types[type].dtype;
    s->size = g_types[type].size;
    s->op = ops[draw(key, 3) % (is_float(s->dtype) ? 3 : 5)];
    s->count = draw(key, 4) % 16 ? 1 + draw(key, 5) % most[draw(key, 6) % 6] : 0;
    s->root = (int)(draw(key, 7) % (uint64_t)g->n);
    s->in_place = can_be_in_place(s->kind) && draw(key, 8 + (uint64_t)g->me) % 3 == 0;
    s->opts = (dlcoll_opts)DLCOLL_OPTS_INIT;
    s->layout = takes_layout(s->kind) && !s->in_place && draw(key, 20 + (uint64_t)g->me) % 4 == 0;
    return s;
}

static void use_layout(struct step *s, size_t out)
{
    if (!s->layout)
        return;
    s->where = (dlcoll_layout)DLCOLL_LAYOUT_INIT;
    s->where.length = out % 3 ? 1 : 3;
    s->where.blocks = out / s->where.length;
    s->where.stride = s->where.length + (out < 20 ? 1 : 0);
    s->opts.recv_layout = &s->where;
}

static int begin_reducing(struct step *s, dlcoll_work **w)
{
    dlcoll_comm *c = s->g->comm;
    size_t n = (size_t)s->g->n, half = s->count / 2, whole = s->count * n, *counts = s->counts[0];
    dlcoll_span spans[2];
    bool parts = s->kind == REDUCE_SCATTER;
    for (int i = 0; i < s->g->n; i++)
        counts[i] = part(s, 0, i);
    if (s->kind == REDUCE_SCATTER_V)
        whole = before(counts, s->g->n);
    size_t in = parts || s->kind == REDUCE_SCATTER_V ? whole : s->count;
    allocate(s, in, s->count);
    use_layout(s, s->count);
    fill(s, s->send, s->g->me, 0, in);
    spans[0] = (dlcoll_span){s->send, s->recv, half};
    spans[1] = (dlcoll_span){s->send + half * s->size, s->recv + half * s->size, s->count - half};
    switch (s->kind) {
    case ALL_REDUCE:
        return dlcoll_all_reduce(s->send, s->recv, s->count, s->dtype, s->op, c, &s->opts, w);
    case REDUCE:
        return dlcoll_reduce(s->send, s->recv, s->count, s->dtype, s->op, s->root, c, &s->opts, w);
    case REDUCE_SCATTER:
        return dlcoll_reduce_scatter(s->send, s->recv, s->count, s->dtype, s->op, c, &s->opts, w);
    case REDUCE_SCATTER_V:
        return dlcoll_reduce_scatter_v(s->send, s->recv, counts, s->dtype, s->op, c, &s->opts, w);
    case SCAN:
        return dlcoll_scan(s->send, s->recv, s->count, s->dtype, s->op, c, &s->opts, w);
    case EXSCAN:
        return dlcoll_exscan(s->send, s->recv, s->count, s->dtype, s->op, c, &s->opts, w);
    default:
        return dlcoll_all_reduce_coalesced(spans, 2, s->dtype, s->op, c, &s->opts, w);
    }
}

static void check_reducing(const struct step *s)
{
    int me = s->g->me, n = s->g->n;
    switch (s->kind) {
    case REDUCE:
        if (me == s->root)
            expect_reduced(s, n, 0, s->count);
        break;
    case REDUCE_SCATTER:
        expect_reduced(s, n, s->count * (size_t)me, s->count);
        break;
    case REDUCE_SCATTER_V:
        expect_reduced(s, n, before(s->counts[0], me), s->counts[0][me]);
        break;
    case SCAN:
        expect_reduced(s, me + 1, 0, s->count);
        break;
    case EXSCAN:
        if (me)
            expect_reduced(s, me, 0, s->count);
        break;
    default:
        expect_reduced(s, n, 0, s->count);
    }
}

/* Counts: [0] those that this rank sends or all know, [1] those that it receives. */
static int begin_moving(struct step *s, dlcoll_work **w)
{
    dlcoll_comm *c = s->g->comm;
    int me = s->g->me, n = s->g->n;
    size_t whole = s->count * (size_t)n, own, *out = s->counts[0], *in = s->counts[1];
    for (int i = 0; i < n; i++) {
        bool one = s->kind == ALL_GATHER_V || s->kind == GATHER_V;
        out[i] = s->kind == SCATTER_V ? part(s, 0, i) : one ? part(s, i, 0) : part(s, me, i);
        in[i] = part(s, i, me);
    }
    own = out[me];
    allocate(s, whole, whole);
    if (s->kind == ALL_GATHER || s->kind == ALL_TO_ALL)
        use_layout(s, whole);
    else
        use_layout(s, s->count);
    if (s->kind != BROADCAST || me == s->root)
        fill(s, s->send, me, 0, whole);
    switch (s->kind) {
    case BROADCAST:
        return dlcoll_broadcast(s->send, s->recv, s->count, s->dtype, s->root, c, &s->opts, w);
    case GATHER:
        return dlcoll_gather(s->send, s->recv, s->count, s->dtype, s->root, c, &s->opts, w);
    case GATHER_V:
        return dlcoll_gather_v(s->send, own, s->recv, out, NULL, s->dtype, s->root, c, &s->opts, w);
    case ALL_GATHER:
        return dlcoll_all_gather(s->send, s->recv, s->count, s->dtype, c, &s->opts, w);
    case ALL_GATHER_V:
        return dlcoll_all_gather_v(s->send, s->recv, out, NULL, s->dtype, c, &s->opts, w);
    case SCATTER:
        return dlcoll_scatter(s->send, s->recv, s->count, s->dtype, s->root, c, &s->opts, w);
    case SCATTER_V:
        return dlcoll_scatter_v(s->send, out, NULL, s->recv, own, s->dtype, s->root, c, &s->opts,
                                w);
    case ALL_TO_ALL:
        return dlcoll_all_to_all(s->send, s->recv, s->count, s->dtype, c, &s->opts, w);
    default:
        return dlcoll_all_to_all_v(s->send, out, NULL, s->recv, in, NULL, s->dtype, c, &s->opts, w);
    }
}

static void check_moving(const struct step *s)
{
    int me = s->g->me, n = s->g->n;
    const size_t *out = s->counts[0], *in = s->counts[1];
    bool root = me == s->root;
    for (int i = 0; i < n; i++) {
        size_t at = s->count * (size_t)i;
        switch (s->kind) {
        case GATHER:
        case ALL_GATHER:
            if (root || s->kind == ALL_GATHER)
                expect(s, at, i, 0, s->count);
            break;
        case GATHER_V:
        case ALL_GATHER_V:
            if (root || s->kind == ALL_GATHER_V)
                expect(s, before(out, i), i, 0, out[i]);
            break;
        case ALL_TO_ALL:
            expect(s, at, i, s->count * (size_t)me, s->count);
            break;
        case ALL_TO_ALL_V: {
            size_t first = 0;
            for (int k = 0; k < me; k++)
                first += part(s, i, k);
            expect(s, before(in, i), i, first, in[i]);
            break;
        }
        default:
            break;
        }
    }
    if (s->kind == BROADCAST)
        expect(s, 0, s->root, 0, s->count);
    if (s->kind == SCATTER)
        expect(s, 0, s->root, s->count * (size_t)me, s->count);
    if (s->kind == SCATTER_V)
        expect(s, 0, s->root, before(out, me), out[me]);
}

/* A type for each block: halves of the numbers as 16-bit words, which are as many bytes. */
static int begin_types(struct step *s, dlcoll_work **w)
{
    int n = s->g->n;
    dlcoll_dtype types[2][MOST];
    size_t whole = s->count * (size_t)n;
    allocate(s, whole, whole);
    fill(s, s->send, s->g->me, 0, whole);
    for (int i = 0; i < n; i++) {
        bool give = draw(s->key, 6000 + (uint64_t)(s->g->me * MOST + i)) % 2;
        bool get = draw(s->key, 6000 + (uint64_t)(i * MOST + s->g->me)) % 2;
        types[0][i] = give ? s->dtype : DLCOLL_U8;
        types[1][i] = get ? s->dtype : DLCOLL_ELEMENT(s->size);
        s->counts[0][i] = s->count * (give ? 1 : s->size);
        s->counts[1][i] = s->count;
    }
    return dlcoll_all_to_all_w(s->send, s->counts[0], NULL, types[0], s->recv, s->counts[1], NULL,
                               types[1], s->g->comm, &s->opts, w);
}

/* Every rank with each at some distances, as a graph that all draw. */
static int begin_neighbours(struct step *s, dlcoll_work **w)
{
    int n = s->g->n, me = s->g->me, dests[EDGES];
    dlcoll_graph g = DLCOLL_GRAPH_INIT;
    size_t m = 0;
    for (int d = 0; d < n && m + 2 < EDGES; d++) {
        int many = (int)(draw(s->key, 7000 + (uint64_t)d) % 3); /* 0 to 2 edges at that distance */
        for (int e = 0; e < many; e++, m++) {
            s->edges[m] = (me + n - d) % n;
            dests[m] = (me + d) % n;
        }
    }
    s->counts[2][0] = m;
    g.sources = s->edges;
    g.dests = dests;
    g.nsources = g.ndests = m;
    allocate(s, s->count * (m + 1), s->count * (m + 1));
    fill(s, s->send, me, 0, s->count * (m + 1));
    return s->kind == NEIGHBOR_GATHER
               ? dlcoll_neighbor_all_gather(s->send, s->recv, s->count, s->dtype, &g, s->g->comm,
                                            &s->opts, w)
               : dlcoll_neighbor_all_to_all(s->send, s->recv, s->count, s->dtype, &g, s->g->comm,
                                            &s->opts, w);
}

/* Messages: around, or between pairs both ways, as a batch. */
static int begin_messages(struct step *s, dlcoll_work **w)
{
    int n = s->g->n, me = s->g->me, d = 1 + (int)(draw(s->key, 9) % (uint64_t)n);
    int to = s->kind == RING ? (me + d) % n : (s->root + n - me) % n;
    int from = s->kind == RING ? (me + n - d % n) % n : to;
    dlcoll_p2p list[2] = {{.peer = to}, {.peer = from}};
    allocate(s, s->count, s->count);
    fill(s, s->send, me, 0, s->count);
    s->edges[0] = from;
    list[0].send = s->send;
    list[1].recv = s->recv;
    list[0].count = list[1].count = s->count;
    list[0].dtype = list[1].dtype = s->dtype;
    list[0].tag = list[1].tag = s->tags + (int32_t)(draw(s->key, 10) % 3);
    return dlcoll_batch(list, 2, s->g->comm, NULL, w);
}

/* To one rank, which receives them in its own way: from any rank, of any length, probed, claimed. A
 * tag of the step's own keeps them apart from others. */
static int32_t tag_of_step(const struct step *s)
{
    return (int32_t)(1000 + draw(s->key, 11) % 1000000000);
}

static void place(struct step *s, const dlcoll_message *m, size_t count, const uint8_t *in)
{
    size_t n = s->counts[0][m->source];
    if (m->tag != tag_of_step(s) || m->count != n || m->bytes != n * s->size || count < n ||
        s->counts[1][m->source]++)
        wrong(s, "another message", (size_t)m->source);
    memcpy(s->recv + before(s->counts[0], m->source) * s->size, in, n * s->size);
}

static int receive_all(struct step *s)
{
    dlcoll_comm *c = s->g->comm;
    uint8_t *in = xcalloc(s->count + 1, s->size);
    int r = 0;
    for (int i = 0; i < s->g->n && r == 0; i++) {
        uint64_t d = draw(s->key, 8000 + (uint64_t)i);
        dlcoll_message m = DLCOLL_MESSAGE_INIT, got = DLCOLL_MESSAGE_INIT;
        dlcoll_work *never = NULL;
        int from = DLCOLL_ANY_SOURCE;
        dlcoll_opts o = s->opts, none = s->opts;
        none.tag = INT32_MAX; /* nobody sends it */
        if (d / 4 % 4 == 0 && dlcoll_recv_upto(in, 0, DLCOLL_U8, from, NULL, c, &none, &never) != 0)
            wrong(s, why(c), 0);
        while (d % 4 && (r = d % 4 == 1   ? dlcoll_probe(from, &m, c, &o)
                             : d % 4 == 2 ? dlcoll_mprobe(from, &m, c, &o)
                                          : dlcoll_iprobe(from, &m, c, &o)) == DLCOLL_INPROGRESS)
            ;
        if (r == 0 && d % 4 == 2) {
            got = m;
            r = dlcoll_mrecv(in, s->count, s->dtype, &got, c, NULL, NULL);
        } else if (r == 0) {
            r = dlcoll_recv_upto(in, s->count, s->dtype, d % 4 ? m.source : from, &got, c, &o,
                                 NULL);
        }
        if (r == 0 && d % 4 && (m.source != got.source || m.bytes != got.bytes))
            wrong(s, "not the message that was probed", (size_t)got.source);
        if (r == 0)
            place(s, &got, s->count, in);
        if (never && (dlcoll_cancel(never) != 0 || dlcoll_wait(never) != DLCOLL_ECANCELED))
            wrong(s, "a receive is not cancelled", 0);
        dlcoll_work_free(never);
    }
    free(in);
    return r;
}

static int begin_to_any(struct step *s, dlcoll_work **w)
{
    int n = s->g->n, me = s->g->me, r;
    dlcoll_work *work = NULL;
    for (int i = 0; i < n; i++)
        s->counts[0][i] = part(s, i, s->root);
    size_t own = s->counts[0][me], all = before(s->counts[0], n);
    allocate(s, own, all);
    fill(s, s->send, me, 0, own);
    s->opts.tag = tag_of_step(s);
    s->opts.flags = draw(s->key, 300 + (uint64_t)me) % 3 ? 0 : DLCOLL_SYNCHRONOUS;
    if (me != s->root)
        return dlcoll_send(s->send, own, s->dtype, s->root, s->g->comm, &s->opts, w);
    r = dlcoll_send(s->send, own, s->dtype, s->root, s->g->comm, &s->opts, &work);
    s->opts.flags = 0;
    if (r == 0)
        r = receive_all(s);
    if (r == 0)
        r = dlcoll_wait(work);
    dlcoll_work_free(work);
    return r;
}

static int begin(struct step *s, dlcoll_work **w)
{
    switch (s->kind) {
    case ALL_REDUCE:
    case REDUCE:
    case REDUCE_SCATTER:
    case REDUCE_SCATTER_V:
    case SCAN:
    case EXSCAN:
    case COALESCED:
        return begin_reducing(s, w);
    case ALL_TO_ALL_W:
        return begin_types(s, w);
    case NEIGHBOR_GATHER:
    case NEIGHBOR_TO_ALL:
        return begin_neighbours(s, w);
    case RING:
    case PAIRS:
        return begin_messages(s, w);
    case TO_ANY:
        return begin_to_any(s, w);
    case BARRIER:
        return dlcoll_barrier(s->g->comm, NULL, w);
    default:
        return begin_moving(s, w);
    }
}

static void check(const struct step *s)
{
    int me = s->g->me;
    size_t m = s->counts[2][0];
    switch (s->kind) {
    case ALL_REDUCE:
    case REDUCE:
    case REDUCE_SCATTER:
    case REDUCE_SCATTER_V:
    case SCAN:
    case EXSCAN:
    case COALESCED:
        check_reducing(s);
        break;
    case ALL_TO_ALL_W:
        for (int i = 0; i < s->g->n; i++)
            expect(s, s->count * (size_t)i, i, s->count * (size_t)me, s->count);
        break;
    case NEIGHBOR_GATHER:
        for (size_t k = 0; k < m; k++)
            expect(s, s->count * k, s->edges[k], 0, s->count);
        break;
    case NEIGHBOR_TO_ALL: /* distances are the same on all ranks, and so are the blocks' numbers */
        for (size_t k = 0; k < m; k++)
            expect(s, s->count * k, s->edges[k], s->count * k, s->count);
        break;
    case RING:
    case PAIRS:
        expect(s, 0, s->edges[0], 0, s->count);
        break;
    case TO_ANY:
        for (int i = 0; i < s->g->n && me == s->root; i++)
            expect(s, before(s->counts[0], i), i, 0, s->counts[0][i]);
        break;
    case BARRIER:
        break;
    default:
        check_moving(s);
    }
}

static void finish(struct step *s, int code)
{
    if (s->work) {
        code = dlcoll_wait(s->work);
        dlcoll_work_free(s->work);
    }
    if (code != 0)
        wrong(s, why(s->g->comm), (size_t)-code);
    check(s);
    if (s->recv != s->send)
        free(s->recv);
    free(s->send);
    free(s);
}

/* Waits for some of those under way, in any order. */
static void finish_some(struct group *g, int leave, uint64_t key)
{
    while (g->npending > leave) {
        int i = (int)(draw(key++, 30 + (uint64_t)g->me) % (uint64_t)g->npending);
        struct step *s = g->pending[i];
        g->pending[i] = g->pending[--g->npending];
        finish(s, 0);
    }
}

static void one_step(struct group *g, uint64_t key, bool message)
{
    struct step *s = draw_step(g, key, message);
    /* Handles or not: each rank as it likes, but for messages, which a rank could wait for that has
     * not begun its own. */
    bool by_handle = draw(key, 40 + (uint64_t)g->me) % 2;
    if (by_handle && s->kind < RING && draw(key, 70 + (uint64_t)g->me) % 4 == 0)
        s->opts.flags = DLCOLL_PERSISTENT;
    int code = begin(s, by_handle ? &s->work : NULL);
    if (code == 0 && s->opts.flags & DLCOLL_PERSISTENT)
        code = dlcoll_start(s->work);
    if (code != 0 || !s->work) {
        finish(s, code);
        return;
    }
    g->pending[g->npending++] = s;
    if (g->npending == PENDING || draw(key, 50 + (uint64_t)g->me) % 4 == 0)
        finish_some(g, (int)(draw(key, 60 + (uint64_t)g->me) % 3), key);
}

/* --------------------------------------------------------------------------------------- groups */

static void leave(struct group *g)
{
    if (!g->comm)
        return;
    finish_some(g, 0, g_program);
    if (dlcoll_finalize(g->comm) != 0) {
        fprintf(stderr, "RANDOM_PROGRAM=%llu: finalize: %s\n", (unsigned long long)g_program,
                why(g->comm));
        _exit(1);
    }
    dlcoll_destroy(g->comm);
    g->comm = NULL;
}

/* Makes a group of the world's ranks anew, by split or by a list. */
static void make(struct group *world, struct group *g, uint64_t key)
{
    int code, color = (int)(draw(key, 100 + (uint64_t)world->me) % 3);
    dlcoll_work *work = NULL, **w = draw(key, 91 + (uint64_t)world->me) % 2 ? &work : NULL;
    leave(g);
    finish_some(world, 0, key);
    *g = (struct group){0};
    if (draw(key, 90) % 2) { /* reversed */
        code = dlcoll_comm_split_async(world->comm, color ? color : DLCOLL_NO_COLOR, -world->me,
                                       &g->comm, NULL, w);
        for (int i = world->n - 1; i >= 0 && color; i--) {
            if ((int)(draw(key, 100 + (uint64_t)i) % 3) == color)
                g->ranks[g->n++] = i;
        }
    } else {
        for (int i = 0; i < world->n; i++) {
            if (draw(key, 200 + (uint64_t)i) % 3)
                g->ranks[g->n++] = i;
        }
        code = dlcoll_comm_new_group_async(world->comm, g->ranks, g->n, &g->comm, NULL, w);
    }
    if (code == 0 && work)
        code = dlcoll_wait(work);
    dlcoll_work_free(work);
    for (int i = 0; i < g->n; i++)
        g->me = g->ranks[i] == world->me ? i : g->me;
    if (code != 0) {
        fprintf(stderr, "RANDOM_PROGRAM=%llu: a group: %s\n", (unsigned long long)g_program,
                why(world->comm));
        _exit(1);
    }
}

struct side {
    struct group *g;
    uint64_t key;
    bool messages; /* nothing else */
    uint64_t done;
};

static void *steps(void *arg)
{
    struct side *t = arg;
    for (int k = 0; k < STEPS && t->g->comm; k++, t->done++)
        one_step(t->g, draw(t->key, (uint64_t)k), t->messages);
    return NULL;
}

static _Atomic uint64_t *g_done; /* operations, counted by the ranks with number 0 */

/* Messages in a thread of its own, on a communicator that another thread uses as well. */
static void *messages(void *arg)
{
    struct side *t = arg;
    steps(t);
    finish_some(t->g, 0, t->key);
    return NULL;
}

static dlcoll_comm *start(bool shared)
{
    dlcoll_comm *comm;
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    o.flags = shared ? DLCOLL_THREAD_MULTIPLE : 0;
    EXPECT(dlcoll_init(&comm, &o) == 0, "%s", why(NULL));
    return comm;
}

static void run_thread(pthread_t *thread, void *(*fn)(void *), struct side *side)
{
    if (pthread_create(thread, NULL, fn, side) != 0)
        abort();
}

static void program(struct ranks *j, int rank)
{
    bool shared = draw(g_program, 500) % 2;
    struct group world = {.comm = start(shared), .n = j->n, .me = rank}, groups[GROUPS];
    memset(groups, 0, sizeof(groups));
    for (int i = 0; i < j->n; i++)
        world.ranks[i] = i;
    for (int round = 0; round < g_rounds; round++) {
        uint64_t key = draw(g_program, 1000000 + (uint64_t)round), which = draw(key, 0);
        struct group *made = &groups[which % GROUPS], *other = &groups[which / 8 % GROUPS];
        struct group same = world;
        struct side here = {&world, draw(key, 1), false, 0},
                    there = {other, draw(key, 2), false, 0};
        struct side after = {made, draw(key, 3), false, 0}, beside = {&same, draw(key, 4), true, 0};
        bool threads = which / 64 % 2;
        pthread_t thread, messenger;
        same.npending = 0;
        if (which / 128 % 3 == 0)
            make(&world, made, key);
        if (threads)
            run_thread(&thread, steps, &there);
        if (shared)
            run_thread(&messenger, messages, &beside);
        steps(&here);
        if (threads)
            pthread_join(thread, NULL);
        if (shared)
            pthread_join(messenger, NULL);
        steps(&after);
        uint64_t done = rank == 0 ? here.done + beside.done : 0;
        done += (other->me ? 0 : there.done) + (made->me ? 0 : after.done);
        atomic_fetch_add(g_done, done);
    }
    for (int i = 0; i < GROUPS; i++)
        leave(&groups[i]);
    finish_some(&world, 0, g_program);
    comm_end(world.comm);
}

/* ------------------------------------------------------------------------------------------ all */

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void run(uint64_t number, bool alone)
{
    uint64_t d = cross_mix(number);
    int n = 1 + (int)(d % MOST), nodes = 1 + (int)(d / 16 % 3);
    bool tcp = d / 64 % 4 == 0;
    g_program = number;
    nodes = nodes < n ? nodes : n;
    if (alone)
        printf("%d ranks on %d nodes%s\n", n, nodes, tcp ? ", TCP" : "");
    setenv("DLCOLL_SHM", tcp ? "0" : "1", 1);
    ranks_run_for(n, nodes, program, 120);
}

START_TEST(programs)
{
    uint64_t ops = number_of("RANDOM_OPS", 6000), only = number_of("RANDOM_PROGRAM", 0);
    uint64_t seed = number_of("RANDOM_SEED", (uint64_t)time(NULL) * 1000), worlds = 0;
    g_rounds = ops > 100000 ? 20 : 4;
    g_rounds = (int)number_of("RANDOM_ROUNDS", (uint64_t)g_rounds);
    g_done = mmap(NULL, sizeof(*g_done), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(g_done, MAP_FAILED);
    if (only) {
        run(only, true);
        return;
    }
    printf("RANDOM_SEED=%llu, RANDOM_ROUNDS=%d\n", (unsigned long long)seed, g_rounds);
    fflush(stdout);
    for (; atomic_load(g_done) < ops; worlds++)
        run(seed + worlds, false);
    printf("%llu operations in %llu worlds\n", (unsigned long long)atomic_load(g_done),
           (unsigned long long)worlds);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("random_programs");
    TCase *tc = test_case(s, "programs", getenv("RANDOM_OPS") ? 100000 : 240);
    tcase_add_test(tc, programs);
    return s;
}

TEST_MAIN(suite)
