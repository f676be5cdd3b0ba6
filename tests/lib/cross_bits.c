/* cross_bits.c: what dlcoll.h promises of floats: an order of computing that depends on the ranks,
 * the count and the type alone. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/base/dtype.h"
#include "core/mem.h"
#include "tests/lib/cross.h"
#include "tests/lib/thread_ranks.h"

static const dlcoll_dtype g_floats[] = {DLCOLL_F16,  DLCOLL_F32,    DLCOLL_F64,
                                        DLCOLL_BF16, DLCOLL_F8E4M3, DLCOLL_F8E5M2};
static const enum call_kind g_kinds[] = {CALL_ALL_REDUCE, CALL_REDUCE, CALL_REDUCE_SCATTER};
enum { FLOATS = 6, KINDS = 3, OPS = 3, COUNTS = 4, TRIES = 4 };

static const size_t g_counts[COUNTS] = {1, 17, 1031, 40009};
static uint8_t g_tables[FLOATS][CROSS_RANKS][CROSS_PERIOD * 8];

void cross_bits_make(void)
{
    for (int i = 0; i < FLOATS * CROSS_RANKS; i++)
        cross_rounded(g_floats[i / CROSS_RANKS], i % CROSS_RANKS,
                      g_tables[i / CROSS_RANKS][i % CROSS_RANKS], CROSS_PERIOD);
}

struct bits {
    dlcoll_comm *comm;
    const struct cross_way *way;
    size_t n, me, size, count;
    int type;
    dlcoll_dtype dtype;
    dlcoll_op op;
    enum call_kind kind;
    int root;
    uint8_t *send, *recv;
};

static uint64_t digest(const uint8_t *p, size_t len)
{
    uint64_t h = len, word;
    for (size_t i = 0; i < len; i += sizeof(word)) {
        word = 0;
        memcpy(&word, p + i, len - i < sizeof(word) ? len - i : sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return cross_mix(h);
}

static void put(const struct bits *b, size_t rank, uint8_t *to, size_t from, size_t count)
{
    struct cross_values v = {.size = b->size};
    cross_put(&v, g_tables[b->type][rank], to, from + b->count, count);
}

/* Compares with the precision of doubles: the difference is at most the sum of all roundings. */
static void check_sums(const struct bits *b, const uint8_t *got, size_t from)
{
    double by = b->op == DLCOLL_AVG ? (double)b->n : 1, eps = cross_epsilon(b->dtype);
    for (size_t i = 0; i < b->count; i++) {
        double sum = 0, all = 0, x = cross_decode(b->dtype, got + i * b->size);
        for (size_t r = 0; r < b->n; r++) {
            uint8_t element[8];
            put(b, r, element, from + i, 1);
            double y = cross_decode(b->dtype, element);
            sum += y;
            all += fabs(y);
        }
        THREAD_EXPECT(fabs(x - sum / by) <= ((double)b->n + 1) * eps * all / by + 0.002,
                      "%s of type %d: %g, not %g", call_name((int)b->kind), (int)b->dtype, x,
                      sum / by);
    }
}

/* Runs once; the ranks arrive in another order each time. */
static void once(struct bits *b, int number)
{
    bool in_place = number == 1, root = (int)b->me == b->root;
    bool parts = b->kind == CALL_REDUCE_SCATTER;
    size_t shift = number == 2 ? 1 : 0, from = parts ? b->me * b->count : 0;
    uint8_t *send = b->send + shift, *recv = in_place ? send + from * b->size : b->recv + shift;
    dlcoll_comm *comm = b->comm;
    put(b, b->me, send, 0, b->count * (parts ? b->n : 1));
    for (uint64_t k = cross_mix(b->me * 16 + (uint64_t)number) % 4; k > 0; k--)
        sched_yield();
    if (b->kind == CALL_ALL_REDUCE)
        THREAD_OK(dlcoll_all_reduce(send, recv, b->count, b->dtype, b->op, comm, NULL, NULL));
    else if (parts)
        THREAD_OK(dlcoll_reduce_scatter(send, recv, b->count, b->dtype, b->op, comm, NULL, NULL));
    else
        THREAD_OK(dlcoll_reduce(send, recv, b->count, b->dtype, b->op, b->root, comm, NULL, NULL));
    if (b->kind == CALL_REDUCE && !root)
        return;
    /* Ways through memory that the library chooses by where buffers lie are one. */
    uint64_t way = (uint64_t)(b->way->as_it_is ? CROSS_WAYS - 1 : b->way->index);
    uint64_t what = (uint64_t)b->way->transport << 60 | way << 52;
    what |= (uint64_t)b->comm->topo.nnodes << 48 | (uint64_t)b->n << 44 | (uint64_t)b->dtype << 40;
    what |= (uint64_t)b->op << 36 | (uint64_t)b->kind << 28 | (uint64_t)b->count << 4;
    what |= parts ? b->me : b->kind == CALL_REDUCE ? (uint64_t)b->root : 0;
    THREAD_EXPECT(cross_same(what, digest(recv, b->count * b->size)),
                  "%s of %zu of type %d, op %d, %zu ranks: rank %zu has other bits (time %d, %s)",
                  call_name((int)b->kind), b->count, (int)b->dtype, (int)b->op, b->n, b->me, number,
                  comm->algo);
    if (number == 0 && b->op != DLCOLL_PROD && b->count < 2000)
        check_sums(b, recv, from);
}

static void each(struct bits *b)
{
    static const dlcoll_op ops[OPS] = {DLCOLL_SUM, DLCOLL_AVG, DLCOLL_PROD};
    for (int i = 0; i < FLOATS * KINDS * OPS * COUNTS; i++) {
        b->type = i % FLOATS;
        b->dtype = g_floats[b->type];
        b->kind = g_kinds[i / FLOATS % KINDS];
        b->op = ops[i / FLOATS / KINDS % OPS];
        b->count = g_counts[i / FLOATS / KINDS / OPS];
        b->size = dtype_get((int)b->dtype)->size;
        b->root = i % (int)b->n;
        /* Large ones: another third of the types each time. */
        bool few = b->count > 2000 && !cross_is_full();
        if (!cross_way_has(b->way, b->kind) || (few && (i + i / FLOATS + (int)b->n) % 3))
            continue;
        for (int k = 0; k < TRIES; k++)
            once(b, k);
    }
}

void cross_bits(dlcoll_comm *comm, const struct cross_way *way)
{
    struct bits b = {
        .comm = comm, .way = way, .n = (size_t)dlcoll_size(comm), .me = (size_t)dlcoll_rank(comm)};
    size_t room = b.n * g_counts[COUNTS - 1] * 8 + 64;
    bool shared = way->shared && b.n > 1;
    b.send = shared ? dlcoll_mem_alloc(comm, room) : xmalloc(room);
    b.recv = shared ? dlcoll_mem_alloc(comm, room) : xmalloc(room);
    THREAD_EXPECT(b.send && b.recv, "no memory");
    each(&b);
    if (shared) {
        dlcoll_mem_free(comm, b.send);
        dlcoll_mem_free(comm, b.recv);
    } else {
        free(b.send);
        free(b.recv);
    }
}
