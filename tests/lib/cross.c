#include "tests/lib/cross.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "core/mem.h"
#include "tests/lib/thread_ranks.h"

static const enum call_kind g_reducing[] = {CALL_ALL_REDUCE, CALL_REDUCE, CALL_REDUCE_SCATTER,
                                            CALL_REDUCE_SCATTER_V, CALL_ALL_REDUCE_COALESCED};
static const enum call_kind g_moving[] = {
    CALL_BROADCAST, CALL_ALL_GATHER, CALL_ALL_GATHER_V, CALL_GATHER,       CALL_GATHER_V,
    CALL_SCATTER,   CALL_SCATTER_V,  CALL_ALL_TO_ALL,   CALL_ALL_TO_ALL_V, CALL_BATCH};
enum { REDUCING = 5, MOVING = 10, SHIFTS = 4, EDGES = CROSS_EDGES + 1 };
static const dlcoll_op g_builtin[CROSS_PREMUL] = {DLCOLL_SUM,  DLCOLL_PROD, DLCOLL_MAX, DLCOLL_MIN,
                                                  DLCOLL_AVG,  DLCOLL_BAND, DLCOLL_BOR, DLCOLL_BXOR,
                                                  DLCOLL_LAND, DLCOLL_LOR,  DLCOLL_LXOR};

static const size_t g_small[CROSS_SMALL] = {0, 1, 3, 15, 17};

bool cross_is_full(void)
{
    const char *mode = getenv("CROSS");
    return mode && strcmp(mode, "full") == 0;
}

bool cross_has_size(int n)
{
    const char *only = getenv("CROSS_SIZE");
    return !only || atoi(only) == n;
}

/* --------------------------------------------------------------------------------------- counts */

/* Elements of a class: `more` is -1, 0 or 1. */
static size_t count_of(const struct cross *x, int count_class, int more)
{
    if (count_class < CROSS_SMALL)
        return g_small[count_class];
    if (count_class == CROSS_COUNTS - 1)
        return (x->full ? 1300007 : 700001) / x->v.size;
    size_t edge = x->way->edges[count_class - CROSS_SMALL], len = edge & (CROSS_EACH - 1);
    return len * (edge & CROSS_EACH ? (size_t)x->n : 1) / x->v.size + (size_t)more;
}

static size_t room(const struct cross *x)
{
    if (x->way->shared)
        return (size_t)8 << 20;
    return (size_t)(x->full ? 24 : 12) << 20;
}

static bool rooted(enum call_kind kind)
{
    return kind == CALL_REDUCE || kind == CALL_BROADCAST || kind == CALL_GATHER ||
           kind == CALL_GATHER_V || kind == CALL_SCATTER || kind == CALL_SCATTER_V;
}

static void one(struct cross *x, const struct cross_case *c)
{
    struct cross_case own = *c;
    if (x->way->mixed)
        own.shift = (c->shift + x->me) % SHIFTS;
    if (cross_need(x, c) <= room(x))
        cross_do(x, &own);
}

/* ----------------------------------------------------------------------------------------- full */

/* Long counts are thinned out: every n-th is tried, sums and data movement more often than other
 * operations. */
static uint64_t each_of(const struct cross *x, size_t bytes)
{
    bool often = x->v.op == 0 || x->v.op == CROSS_MOVE;
    uint64_t each = bytes > 20000 ? (uint64_t)x->n : 1;
    return often ? each : bytes > 20000 ? 10 * each : 2;
}

/* Every count, aligned and not, and another root each time; so, too, of the counts that are not
 * small, each once. */
static void all_of(struct cross *x, enum call_kind kind, bool in_place)
{
    for (int i = 0; i < CROSS_SMALL * 2; i++) {
        uint64_t d = cross_mix(x->done);
        int class = i / 2;
        one(x, &(struct cross_case){.kind = kind,
                                    .op = x->v.op,
                                    .count_class = class,
                                    .count = count_of(x, class, 0),
                                    .in_place = in_place,
                                    .shift = i % 2 ? 1 + (int)(d / 16 % (SHIFTS - 1)) : 0,
                                    .root = rooted(kind) ? (int)(d / 64 % (uint64_t)x->n) : 0});
    }
    for (int class = CROSS_SMALL; class < CROSS_COUNTS; class ++) {
        for (int more = -1; more <= (class == CROSS_COUNTS - 1 ? -1 : 1); more++) {
            uint64_t d = cross_mix(x->done << 8 ^ (uint64_t)(class * 3 + more));
            size_t count = count_of(x, class, more);
            if (count * x->v.size > 2100 && d % each_of(x, count * x->v.size) != 0)
                continue;
            one(x, &(struct cross_case){.kind = kind,
                                        .op = x->v.op,
                                        .count_class = class,
                                        .count = count,
                                        .in_place = in_place,
                                        .shift = (int)(d / 16 % SHIFTS),
                                        .root = rooted(kind) ? (int)(d / 64 % (uint64_t)x->n) : 0});
        }
    }
}

/* -------------------------------------------------------------------------------------- bounded */

/* The number of parts that all combinations are split into, of which each world tries one; 1: it
 * tries all. */
static int parts(const struct cross *x)
{
    if (x->way->transport == CROSS_HIER)
        return 3;
    return x->n > 7 ? 3 : x->n > 4 ? 2 : 1;
}

/* A count, an alignment and a root, another one each time; now and then a count that is not small.
 */
static void some_of(struct cross *x, enum call_kind kind, bool in_place)
{
    uint64_t d = cross_mix((uint64_t)x->n << 48 ^ (uint64_t)x->way->index << 32 ^ x->done);
    struct cross_case c = {.kind = kind,
                           .op = x->v.op,
                           .in_place = in_place,
                           .count_class = (int)(d % CROSS_SMALL),
                           .shift = (int)(d / 8 % SHIFTS),
                           .root = rooted(kind) ? (int)(d / 64 % (uint64_t)x->n) : 0};
    c.count = count_of(x, c.count_class, 0);
    one(x, &c);
    if (c.count == 0) { /* of nothing nothing is seen */
        c.count_class = 1 + (int)(d / 8 % (CROSS_SMALL - 1));
        c.count = count_of(x, c.count_class, 0);
        one(x, &c);
    }
    if (d / 1024 % (x->v.op == CROSS_MOVE ? 14 : 50) != 0)
        return;
    c.count_class = CROSS_SMALL + (int)(d / 65536 % (CROSS_COUNTS - CROSS_SMALL));
    c.count = count_of(x, c.count_class, (int)(d / 1048576 % 3) - 1);
    one(x, &c);
}

/* ------------------------------------------------------------------------------------------ all */

static void cross_op(struct cross *x, int type, int op)
{
    bool moves = op == CROSS_MOVE, made = op >= CROSS_PREMUL && !moves;
    x->v = *cross_values(type, op);
    x->op = made ? cross_op_make(x->v.dtype, op, x->me) : moves ? DLCOLL_SUM : g_builtin[op];
    for (int i = 0; i < 2 * (moves ? MOVING : REDUCING); i++) {
        enum call_kind kind = moves ? g_moving[i / 2] : g_reducing[i / 2];
        if (!cross_way_has(x->way, kind) || (i % 2 && !cross_kind_places(kind))) {
            x->turn++;
            continue;
        }
        if (x->full)
            all_of(x, kind, i % 2);
        else if (x->turn++ % parts(x) == 0)
            some_of(x, kind, i % 2);
    }
    if (moves && cross_way_has(x->way, CALL_BARRIER))
        cross_do(x, &(struct cross_case){.kind = CALL_BARRIER, .op = op});
    if (made)
        THREAD_EXPECT(dlcoll_op_free(x->op) == 0, "op_free");
}

/* Around the end of each piece, and large, each kind; a type and a reduction, other ones each time.
 */
static void cross_edges(struct cross *x)
{
    int turn = x->n + x->way->index;
    for (int i = 0; i < (REDUCING + MOVING) * EDGES * 3; i++) {
        int k = i / 3 / EDGES, class = CROSS_SMALL + i / 3 % EDGES;
        bool moves = k >= REDUCING;
        enum call_kind kind = moves ? g_moving[k - REDUCING] : g_reducing[k];
        static const int ops[] = {0, 2, 1}; /* every type has them */
        turn++;
        if (!cross_way_has(x->way, kind))
            continue;
        x->v = *cross_values(turn * 4 % CROSS_TYPES, moves ? CROSS_MOVE : ops[turn / 4 % 3]);
        x->op = moves ? DLCOLL_SUM : (dlcoll_op)ops[turn / 4 % 3];
        one(x, &(struct cross_case){.kind = kind,
                                    .op = x->v.op,
                                    .count_class = class,
                                    .count = count_of(x, class, i % 3 - 1),
                                    .in_place = turn / 2 % 2 && cross_kind_places(kind),
                                    .shift = turn % SHIFTS,
                                    .root = rooted(kind) ? turn % x->n : 0});
    }
}

/* Whether buffer i of this rank is shared: with `mixed`, each rank decides. */
static bool is_shared(const struct cross *x, int i)
{
    return x->way->shared &&
           (!x->way->mixed || cross_mix((uint64_t)(x->n * 32 + x->me * 2 + i)) % 2);
}

static void begin(struct cross *x, dlcoll_comm *comm, const struct cross_way *way)
{
    *x = (struct cross){.comm = comm,
                        .n = dlcoll_size(comm),
                        .me = dlcoll_rank(comm),
                        .way = way,
                        .full = cross_is_full()};
    x->turn = x->n + x->comm->topo.nnodes + way->index;
    for (int i = 0; i < 2; i++) {
        x->buffers[i].room = room(x);
        if (is_shared(x, i))
            x->buffers[i].p = dlcoll_mem_alloc(comm, x->buffers[i].room);
        if (!x->buffers[i].p) { /* alone, no memory is shared */
            THREAD_EXPECT(!is_shared(x, i) || x->n == 1, "no shared memory");
            x->buffers[i].p = xmalloc(x->buffers[i].room);
        }
    }
}

static void end(struct cross *x)
{
    for (int i = 0; i < 2; i++) {
        if (is_shared(x, i) && x->n > 1)
            dlcoll_mem_free(x->comm, x->buffers[i].p);
        else
            free(x->buffers[i].p);
    }
}

void cross_run(dlcoll_comm *comm, const struct cross_way *way)
{
    struct cross x;
    begin(&x, comm, way);
    for (int type = 0; type < CROSS_TYPES; type++) {
        for (int op = 0; op < CROSS_OPS; op++) {
            if (cross_has(g_cross_types[type], op))
                cross_op(&x, type, op);
        }
    }
    if (x.n > 1 && x.n <= 4)
        cross_edges(&x);
    end(&x);
}

void cross_again(dlcoll_comm *comm, const struct cross_way *way, int times)
{
    struct cross x;
    begin(&x, comm, way);
    for (int i = 0; i < (REDUCING + MOVING) * times; i++) {
        int k = i / times;
        bool moves = k >= REDUCING;
        enum call_kind kind = moves ? g_moving[k - REDUCING] : g_reducing[k];
        uint64_t d = cross_mix((uint64_t)x.n << 48 ^ (uint64_t)way->index << 32 ^ (uint64_t)i);
        int type = (int)(d % CROSS_TYPES), op = moves ? CROSS_MOVE : (int)(d / 16 % CROSS_PREMUL);
        int class = (int)(d / 256 % (CROSS_COUNTS - 1));
        if (!cross_way_has(way, kind))
            continue;
        if (!cross_has(g_cross_types[type], op))
            op = 0; /* a sum: every type has one */
        x.v = *cross_values(type, op);
        x.op = moves ? DLCOLL_SUM : g_builtin[op];
        one(&x, &(struct cross_case){.kind = kind,
                                     .op = op,
                                     .count_class = class,
                                     .count = count_of(&x, class, 0),
                                     .in_place = d / 4096 % 2 && cross_kind_places(kind),
                                     .shift = (int)(d / 8192 % SHIFTS),
                                     .root = rooted(kind) ? (int)(d / 65536 % (uint64_t)x.n) : 0});
    }
    end(&x);
}
