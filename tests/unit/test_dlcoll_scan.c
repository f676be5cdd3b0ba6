/* scan and exscan between 1 to 9 ranks, in memory, over TCP and on several nodes, against a plain
 * loop over the ranks: types, reductions, counts and places at random. The seed is printed;
 * SCAN_SEED=n repeats a run. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/reduce/reduce.h"
#include "core/mem.h"
#include "tests/lib/cross_values.h"
#include "tests/lib/ranks.h"
#include "tests/lib/rounds.h"

enum { GUARD = 64 };

/* Not commutative: maps are composed. The upper half of a number is a factor, the lower half a
 * summand, of x -> x * factor + summand. */
static void compose(void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    int32_t *a = acc;
    const int32_t *b = in;
    EXPECT(dtype == DLCOLL_I32 && ctx == &g_rounds_seed);
    for (size_t i = 0; i < count; i++) {
        uint32_t fa = (uint32_t)a[i] >> 16, sa = (uint32_t)a[i] & 0xffff;
        uint32_t fb = (uint32_t)b[i] >> 16, sb = (uint32_t)b[i] & 0xffff;
        a[i] = (int32_t)((fa * fb & 0xffff) << 16 | ((sa * fb + sb) & 0xffff));
    }
}

struct round {
    bool exclusive, async, ordered;
    int dtype, op;
    size_t count;
};

static const int g_types[] = {DLCOLL_I8,  DLCOLL_U8,  DLCOLL_I32,     DLCOLL_I64,    DLCOLL_U16,
                              DLCOLL_F32, DLCOLL_F64, DLCOLL_F64_I32, DLCOLL_I32_I32};
static const int g_numbers[] = {DLCOLL_SUM, DLCOLL_MAX, DLCOLL_MIN, DLCOLL_AVG};
static const int g_integers[] = {DLCOLL_SUM,  DLCOLL_PROD, DLCOLL_MAX,  DLCOLL_MIN, DLCOLL_AVG,
                                 DLCOLL_BAND, DLCOLL_BXOR, DLCOLL_LAND, DLCOLL_LOR, DLCOLL_LXOR};

/* Every rank draws the same round. */
static struct round draw_round(int k)
{
    uint64_t d = cross_mix(g_rounds_seed + (uint64_t)k);
    struct round r = {.exclusive = d & 1, .async = d >> 2 & 1, .ordered = (d >> 3) % 8 == 0};
    static const size_t sizes[] = {1, 3, 12, 17, 100, 513, 4000, 40000, 300000};
    r.count = sizes[d / 16 % 9] + d / 256 % 3;
    r.dtype = r.ordered ? DLCOLL_I32 : g_types[d / 1024 % 9];
    enum dtype_class class = dtype_get(r.dtype)->class;
    uint64_t e = d / 65536;
    r.op = class == DTYPE_PAIR    ? (e % 2 ? DLCOLL_MINLOC : DLCOLL_MAXLOC)
           : class == DTYPE_FLOAT ? g_numbers[e % 4]
                                  : g_integers[e % 10];
    return r;
}

/* Small numbers: sums of floats are exact. */
static void fill(const struct round *r, int rank, int k, uint8_t *to)
{
    size_t size = dtype_get(r->dtype)->size;
    memset(to, 0, r->count * size);
    for (size_t i = 0; i < r->count; i++) {
        uint64_t d = cross_mix((uint64_t)rank << 40 ^ (uint64_t)k << 24 ^ i ^ g_rounds_seed);
        double v = (double)(d % 97) - 40;
        float f = (float)v;
        int32_t index = (int32_t)(d / 128 % 5), small = (int32_t)v;
        uint8_t *p = to + i * size;
        if (r->dtype == DLCOLL_F64 || r->dtype == DLCOLL_F64_I32)
            memcpy(p, &v, 8);
        else if (r->dtype == DLCOLL_F32)
            memcpy(p, &f, 4);
        else if (r->dtype == DLCOLL_I32_I32)
            memcpy(p, &small, 4);
        else
            memcpy(p, &d, size);
        if (dtype_get(r->dtype)->class == DTYPE_PAIR)
            memcpy(p + size / 2, &index, 4);
        if (r->op == DLCOLL_LAND || r->op == DLCOLL_LOR || r->op == DLCOLL_LXOR)
            memset(p, d % 3 ? 0 : 4, 1);
    }
}

/* The result of ranks 0 to n - 1, by one reduction of two after the other. */
static void reference(const struct round *r, dlcoll_op op, int n, int k, uint8_t *want,
                      uint8_t *room)
{
    struct reduce_info how;
    EXPECT(reduce_find(r->dtype, (int)op, &how) == 0);
    how.ranks = n;
    fill(r, 0, k, want);
    for (int i = 1; i < n; i++) {
        fill(r, i, k, room);
        reduce_two(&how, want, want, room, r->count);
    }
    if (n == 1)
        reduce_alone(&how, want, r->count);
    if (how.has_post)
        reduce_post(&how, want, want, r->count);
}

static void one_round(dlcoll_comm *c, int rank, int k)
{
    struct round r = draw_round(k);
    size_t len = r.count * dtype_get(r.dtype)->size;
    uint8_t *send = xmalloc(len), *out = xmalloc(len + 2 * GUARD), *want = xmalloc(len);
    uint8_t *room = xmalloc(len), *recv = out + GUARD;
    dlcoll_op op = (dlcoll_op)r.op;
    bool in_place = cross_mix(g_rounds_seed ^ (uint64_t)(k * 64 + rank)) % 3 == 0;
    if (r.ordered)
        EXPECT(dlcoll_op_create_user(&op, compose, &g_rounds_seed, DLCOLL_OP_ORDERED) == 0);
    else if (r.op == DLCOLL_SUM && k % 2 && dtype_get(r.dtype)->class == DTYPE_INTEGER) {
        uint64_t one = 1;
        EXPECT(dlcoll_op_create_premul(&op, &one, (dlcoll_dtype)r.dtype) == 0);
    }
    fill(&r, rank, k, send);
    memset(out, 0x5a, len + 2 * GUARD);
    if (in_place)
        memcpy(recv, send, len);
    dlcoll_work *work = NULL;
    int code = (r.exclusive ? dlcoll_exscan : dlcoll_scan)(in_place ? recv : send, recv, r.count,
                                                           (dlcoll_dtype)r.dtype, op, c, NULL,
                                                           r.async ? &work : NULL);
    if (code == 0 && work)
        code = dlcoll_wait(work);
    dlcoll_work_free(work);
    EXPECT(code == 0, "seed %llu, round %d: %s", (unsigned long long)g_rounds_seed, k, why(c));
    int n = r.exclusive ? rank : rank + 1;
    if (n)
        reference(&r, op, n, k, want, room);
    else if (in_place)
        memcpy(want, send, len);
    else
        memset(want, 0x5a, len);
    size_t at = 0;
    while (at < len && recv[at] == want[at])
        at++;
    EXPECT(
        at == len,
        "seed %llu, round %d: %s of %zu of type %d (%s), in place %d, handle %d, by %s: byte %zu",
        (unsigned long long)g_rounds_seed, k, r.exclusive ? "exscan" : "scan", r.count, r.dtype,
        reduction_name(r.op), in_place, r.async, c->algo, at);
    for (size_t i = 0; i < GUARD; i++)
        EXPECT(out[i] == 0x5a && recv[len + i] == 0x5a, "wrote beside the result");
    if (r.op != (int)op)
        EXPECT(dlcoll_op_free(op) == 0);
    free(send), free(out), free(want), free(room);
}

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_scan");
    rounds_case(s, &(struct rounds){"scan", "SCAN_SEED", 60, one_round});
    return s;
}

TEST_MAIN(suite)
