#include "tests/lib/cross_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/base/dtype.h"
#include "core/mem.h"
#include "tests/lib/thread_ranks.h"

const dlcoll_dtype g_cross_types[CROSS_TYPES] = {
    DLCOLL_I8,  DLCOLL_U8,   DLCOLL_I16,    DLCOLL_U16,    DLCOLL_I32,
    DLCOLL_U32, DLCOLL_I64,  DLCOLL_U64,    DLCOLL_F16,    DLCOLL_F32,
    DLCOLL_F64, DLCOLL_BF16, DLCOLL_F8E4M3, DLCOLL_F8E5M2, DLCOLL_BOOL};

/* The built-in reductions' places among the others. */
enum { SUM, PROD, MAX, MIN, AVG, BAND, BOR, BXOR, LAND, LOR, LXOR };

const char *cross_op_name(int op)
{
    static const char *const names[CROSS_OPS] = {"sum",  "prod",   "max",    "min",     "avg",
                                                 "band", "bor",    "bxor",   "land",    "lor",
                                                 "lxor", "premul", "user's", "ordered", "none"};
    return names[op];
}

uint64_t cross_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t draw(const struct cross_values *v, int rank, size_t e, int what)
{
    uint64_t key = (uint64_t)v->dtype << 56 | (uint64_t)v->op << 48 | (uint64_t)rank << 40;
    return cross_mix(key | (uint64_t)what << 32 | e);
}

static enum dtype_class class_of(dlcoll_dtype dtype)
{
    return dtype_get((int)dtype)->class;
}

bool cross_has(dlcoll_dtype dtype, int op)
{
    enum dtype_class class = class_of(dtype);
    if (class == DTYPE_FLOAT)
        return op < BAND || op >= CROSS_PREMUL;
    return class == DTYPE_INTEGER || (op != AVG && op != CROSS_PREMUL);
}

/* --------------------------------------------------------------------------------------- floats */

/* Bits of exponent and mantissa. */
static const struct {
    int exponent, mantissa;
} g_formats[] = {[DLCOLL_F16] = {5, 10},   [DLCOLL_BF16] = {8, 7}, [DLCOLL_F8E4M3] = {4, 3},
                 [DLCOLL_F8E5M2] = {5, 2}, [DLCOLL_F32] = {8, 23}, [DLCOLL_F64] = {11, 52}};

/* Rounds to the nearest, ties to even; x is not too large. */
static void encode(dlcoll_dtype dtype, double x, uint8_t *to)
{
    int m = g_formats[dtype].mantissa, e = g_formats[dtype].exponent, bias = (1 << (e - 1)) - 1;
    float f = (float)x;
    if (dtype == DLCOLL_F64 || dtype == DLCOLL_F32) {
        memcpy(to, dtype == DLCOLL_F64 ? (void *)&x : (void *)&f, dtype == DLCOLL_F64 ? 8 : 4);
        return;
    }
    uint64_t bits = 0, sign = signbit(x) ? (uint64_t)1 << (e + m) : 0;
    if (x != 0) {
        int exponent = ilogb(x) < 1 - bias ? 1 - bias : ilogb(x);
        double q = nearbyint(ldexp(fabs(x), m - exponent)), one = ldexp(1, m);
        if (q == 2 * one)
            q /= 2, exponent++;
        bits = q < one ? (uint64_t)q : ((uint64_t)(exponent + bias) << m) + (uint64_t)(q - one);
    }
    bits |= sign;
    memcpy(to, &bits, dtype_get((int)dtype)->size);
}

double cross_decode(dlcoll_dtype dtype, const uint8_t *element)
{
    int m = g_formats[dtype].mantissa, e = g_formats[dtype].exponent, bias = (1 << (e - 1)) - 1;
    uint64_t bits = 0;
    memcpy(&bits, element, dtype_get((int)dtype)->size);
    int exponent = (int)(bits >> m & (((uint64_t)1 << e) - 1));
    double q = (double)(bits & (((uint64_t)1 << m) - 1)) + (exponent ? ldexp(1, m) : 0);
    q = ldexp(q, (exponent ? exponent : 1) - bias - m);
    return bits >> (e + m) & 1 ? -q : q;
}

double cross_epsilon(dlcoll_dtype dtype)
{
    return ldexp(1, -g_formats[dtype].mantissa - 1);
}

/* Whole numbers up to this one are all there. */
static int64_t whole(dlcoll_dtype dtype)
{
    return (int64_t)1 << (g_formats[dtype].mantissa + 1);
}

/* A summand: so small that all ranks' make no more than whole(). Where that leaves only -1, 0 and
 * 1 to more ranks than that, one of them has 0. */
static double summand(const struct cross_values *v, int rank, size_t e)
{
    int64_t most = whole(v->dtype) / v->n;
    if (most == 0)
        return (size_t)rank == e % (size_t)v->n ? 0 : draw(v, rank, e, 0) % 2 ? 1 : -1;
    return (double)((int64_t)(draw(v, rank, e, 0) % (uint64_t)(2 * most + 1)) - most);
}

/* A factor: never 1, so that none can be left out. */
static double factor(const struct cross_values *v, int rank, size_t e)
{
    static const double small[2][3] = {{2, -2, -1}, {0.5, -0.5, -1}}, medium[] = {3, 5, -3, -5, 2};
    uint64_t d = draw(v, rank, e, 0);
    if (v->dtype == DLCOLL_F64)
        return (double)(d % 28 * 2 + 3) * (d / 64 % 2 ? 1 : -1); /* 57 to the 9th: 53 bits */
    return v->dtype == DLCOLL_F32 ? medium[d % 5] : small[rank % 2][d % 3];
}

/* The factor of a rank's data; a power of two for floats. */
static double scale(int rank)
{
    static const double scales[] = {1, 2, -1, 0.5, -2};
    return scales[rank % 5];
}

/* Any bits but those of a NaN, an infinity, or a zero with a sign. */
static void put_finite(const struct cross_values *v, int rank, size_t e, uint8_t *to)
{
    uint64_t bits = draw(v, rank, e, 0), sign = (uint64_t)1 << (8 * v->size - 1);
    bits &= ~(sign >> 1); /* the exponent's highest bit */
    if (!(bits & (sign - 1)))
        bits |= 1;
    memcpy(to, &bits, v->size);
}

static void put_float(const struct cross_values *v, int rank, size_t e, uint8_t *to)
{
    switch (v->op) {
    case SUM:
    case AVG:
        encode(v->dtype, summand(v, rank, e), to);
        break;
    case PROD:
        encode(v->dtype, factor(v, rank, e), to);
        break;
    case CROSS_PREMUL:
        encode(v->dtype, summand(v, rank, e) / scale(rank), to);
        break;
    default:
        put_finite(v, rank, e, to);
    }
}

static void reduce_float(const struct cross_values *v, size_t e, uint8_t *to)
{
    double x = cross_decode(v->dtype, v->in[0] + e * v->size);
    if (v->op == CROSS_PREMUL)
        x *= scale(0);
    for (int r = 1; r < v->n; r++) {
        double y = cross_decode(v->dtype, v->in[r] + e * v->size);
        switch (v->op) {
        case PROD:
            x *= y;
            break;
        case MAX:
            x = x > y ? x : y;
            break;
        case MIN:
            x = x < y ? x : y;
            break;
        default:
            x += v->op == CROSS_PREMUL ? y * scale(r) : y;
        }
    }
    if (v->op == AVG)
        x = v->dtype == DLCOLL_F64 ? x / v->n : (double)((float)x / (float)v->n);
    encode(v->dtype, x, to);
}

/* ------------------------------------------------------------------------------------- integers */

/* True, or false, on one rank of some: else most results would be the same. */
static uint64_t truth(const struct cross_values *v, int rank, size_t e, bool rarely)
{
    uint64_t d = draw(v, rank, e, 1), byte = 1 + d / 16 % 255;
    bool yes = rarely ? d % 8 == 0 : d % 16 != 0;
    return yes ? byte << (d / 65536 % v->size * 8) : 0;
}

static void put_integer(const struct cross_values *v, int rank, size_t e, uint8_t *to)
{
    uint64_t x = draw(v, rank, e, 0), y = draw(v, rank, e, 1), z = draw(v, rank, e, 2);
    switch (v->op) {
    case PROD:
        x |= 1;
        break;
    case BAND:
        x |= y | z;
        break;
    case BOR:
        x &= y & z;
        break;
    case LXOR:
    case LAND:
    case LOR:
        x = truth(v, rank, e, v->op == LOR);
        break;
    default:
        break;
    }
    memcpy(to, &x, v->size);
}

static void put_bool(const struct cross_values *v, int rank, size_t e, uint8_t *to)
{
    bool rarely = v->op == SUM || v->op == MAX || v->op == BOR || v->op == LOR;
    uint64_t d = draw(v, rank, e, 0);
    *to = (uint8_t)(v->op != BXOR && v->op != LXOR ? truth(v, rank, e, rarely)
                    : d % 2                        ? 1 + d / 2 % 255
                                                   : 0);
}

static bool is_signed(dlcoll_dtype dtype)
{
    return dtype == DLCOLL_I8 || dtype == DLCOLL_I16 || dtype == DLCOLL_I32 || dtype == DLCOLL_I64;
}

/* The value in 64 bits, sign-extended if the type has a sign. */
static uint64_t widen(const struct cross_values *v, uint64_t x)
{
    int shift = (int)(64 - 8 * v->size);
    return is_signed(v->dtype) ? (uint64_t)((int64_t)(x << shift) >> shift) : x << shift >> shift;
}

static uint64_t load(const struct cross_values *v, int rank, size_t e)
{
    uint64_t x = 0;
    memcpy(&x, v->in[rank] + e * v->size, v->size);
    return widen(v, x);
}

static bool less(const struct cross_values *v, uint64_t a, uint64_t b)
{
    return is_signed(v->dtype) ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t integer_scale(int rank)
{
    return (uint64_t)rank * 90 + 3;
}

static uint64_t combine(const struct cross_values *v, uint64_t x, uint64_t y)
{
    switch (v->op) {
    case PROD:
        return x * y;
    case MAX:
        return less(v, x, y) ? y : x;
    case MIN:
        return less(v, x, y) ? x : y;
    case BAND:
        return x & y;
    case BOR:
        return x | y;
    case BXOR:
        return x ^ y;
    case LAND:
        return x && y;
    case LOR:
        return x || y;
    case LXOR:
        return !x != !y;
    default:
        return x + y;
    }
}

static void reduce_integer(const struct cross_values *v, size_t e, uint8_t *to)
{
    uint64_t x = load(v, 0, e);
    if (v->op == CROSS_PREMUL)
        x *= integer_scale(0);
    if (v->op == LAND || v->op == LOR || v->op == LXOR)
        x = x != 0;
    for (int r = 1; r < v->n; r++) {
        uint64_t y = load(v, r, e);
        x = combine(v, x, v->op == CROSS_PREMUL ? y * integer_scale(r) : y);
    }
    if (v->op == AVG) {
        x = widen(v, x);
        x = is_signed(v->dtype) ? (uint64_t)((int64_t)x / v->n) : x / (uint64_t)v->n;
    }
    memcpy(to, &x, v->size);
}

static void reduce_bool(const struct cross_values *v, size_t e, uint8_t *to)
{
    bool any = false, all = true, odd = false;
    for (int r = 0; r < v->n; r++) {
        bool x = v->in[r][e];
        any |= x;
        all &= x;
        odd ^= x;
    }
    bool needs_all = v->op == PROD || v->op == MIN || v->op == BAND || v->op == LAND;
    *to = v->op == BXOR || v->op == LXOR ? odd : needs_all ? all : any;
}

/* -------------------------------------------------------------------------- reductions of users */

enum { CONSTANT = 29 };

static uint8_t user_byte(uint8_t a, uint8_t b)
{
    return (uint8_t)(a + b + CONSTANT);
}

/* a's map after b's. */
static uint8_t ordered_byte(uint8_t a, uint8_t b)
{
    int by = a >> 4, plus = a & 15;
    return (uint8_t)((by * (b >> 4) & 15) << 4 | ((by * (b & 15) + plus) & 15));
}

/* The reduction function of the test, which checks the type and the alignment of the operands; ctx:
 * the type that the reduction was made for. */
static size_t take(const void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    size_t size = dtype_get((int)dtype)->size;
    THREAD_EXPECT(dtype == *(const dlcoll_dtype *)ctx, "given type %d", (int)dtype);
    bool aligned = (uintptr_t)acc % size == 0 && (uintptr_t)in % size == 0;
    THREAD_EXPECT(aligned, "operands of type %d", (int)dtype);
    return count * size;
}

static void user_fn(void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    size_t len = take(acc, in, count, dtype, ctx);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)acc)[i] = user_byte(((uint8_t *)acc)[i], ((const uint8_t *)in)[i]);
}

static void ordered_fn(void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    size_t len = take(acc, in, count, dtype, ctx);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)acc)[i] = ordered_byte(((uint8_t *)acc)[i], ((const uint8_t *)in)[i]);
}

dlcoll_op cross_op_make(dlcoll_dtype dtype, int op, int rank)
{
    dlcoll_op made = DLCOLL_SUM;
    size_t i = 0;
    int r;
    while (g_cross_types[i] != dtype)
        i++;
    void *ctx = (void *)(uintptr_t)&g_cross_types[i];
    if (op == CROSS_PREMUL) {
        uint64_t by = integer_scale(rank);
        if (class_of(dtype) == DTYPE_FLOAT)
            encode(dtype, scale(rank), (uint8_t *)&by);
        r = dlcoll_op_create_premul(&made, &by, dtype);
    } else {
        bool ordered = op == CROSS_ORDERED;
        r = dlcoll_op_create_user(&made, ordered ? ordered_fn : user_fn, ctx,
                                  ordered ? DLCOLL_OP_ORDERED : 0);
    }
    THREAD_EXPECT(r == 0, "making a reduction: %d", r);
    return made;
}

static void reduce_bytes(const struct cross_values *v, size_t e, uint8_t *to)
{
    for (size_t b = 0; b < v->size; b++) {
        size_t at = e * v->size + b;
        to[b] = v->in[0][at];
        for (int r = 1; r < v->n; r++)
            to[b] = v->op == CROSS_ORDERED ? ordered_byte(to[b], v->in[r][at])
                                           : user_byte(to[b], v->in[r][at]);
    }
}

/* --------------------------------------------------------------------------------------- tables */

static void put(const struct cross_values *v, int rank, size_t e, uint8_t *to)
{
    uint64_t bits = draw(v, rank, e, 0);
    if (v->op == CROSS_ORDERED)
        bits |= 0x1010101010101010u; /* no map loses what was before it */
    if (v->op >= CROSS_USER)
        memcpy(to, &bits, v->size);
    else if (class_of(v->dtype) == DTYPE_FLOAT)
        put_float(v, rank, e, to);
    else if (class_of(v->dtype) == DTYPE_INTEGER)
        put_integer(v, rank, e, to);
    else
        put_bool(v, rank, e, to);
}

static void reduce(const struct cross_values *v, size_t e, uint8_t *to)
{
    if (v->op >= CROSS_USER)
        reduce_bytes(v, e, to);
    else if (class_of(v->dtype) == DTYPE_FLOAT)
        reduce_float(v, e, to);
    else if (class_of(v->dtype) == DTYPE_INTEGER)
        reduce_integer(v, e, to);
    else
        reduce_bool(v, e, to);
}

static struct cross_values g_values[CROSS_TYPES][CROSS_OPS];

static void make(struct cross_values *v, dlcoll_dtype dtype, int op, int n)
{
    size_t size = dtype_get((int)dtype)->size, len = size * CROSS_PERIOD;
    free(v->out);
    *v = (struct cross_values){.dtype = dtype, .op = op, .n = n, .size = size};
    v->out = xmalloc(len * (size_t)(n + 1));
    for (int r = 0; r < n; r++) {
        v->in[r] = v->out + len * (size_t)(r + 1);
        for (size_t e = 0; e < CROSS_PERIOD; e++)
            put(v, r, e, v->in[r] + e * size);
    }
    for (size_t e = 0; e < CROSS_PERIOD && op != CROSS_MOVE; e++)
        reduce(v, e, v->out + e * size);
}

void cross_values_make(int n)
{
    for (int i = 0; i < CROSS_TYPES * CROSS_OPS; i++) {
        int type = i / CROSS_OPS, op = i % CROSS_OPS;
        if (cross_has(g_cross_types[type], op) && g_values[type][op].n != n)
            make(&g_values[type][op], g_cross_types[type], op, n);
    }
}

const struct cross_values *cross_values(int type, int op)
{
    return &g_values[type][op];
}

/* The number of elements of `count` that follow each other in the table. */
static size_t together(size_t from, size_t count)
{
    size_t left = CROSS_PERIOD - from % CROSS_PERIOD;
    return count < left ? count : left;
}

void cross_put(const struct cross_values *v, const uint8_t *table, uint8_t *to, size_t from,
               size_t count)
{
    for (size_t at = 0, n; at < count; at += n) {
        n = together(from + at, count - at);
        memcpy(to + at * v->size, table + (from + at) % CROSS_PERIOD * v->size, n * v->size);
    }
}

size_t cross_differs(const struct cross_values *v, const uint8_t *table, const uint8_t *got,
                     size_t from, size_t count)
{
    for (size_t at = 0, n; at < count; at += n) {
        n = together(from + at, count - at);
        const uint8_t *want = table + (from + at) % CROSS_PERIOD * v->size;
        if (memcmp(got + at * v->size, want, n * v->size) == 0)
            continue;
        while (memcmp(got + at * v->size, want, v->size) == 0)
            at++, want += v->size;
        return at;
    }
    return count;
}

void cross_rounded(dlcoll_dtype dtype, int rank, uint8_t *to, size_t count)
{
    size_t size = dtype_get((int)dtype)->size;
    for (size_t e = 0; e < count; e++) {
        uint64_t d = cross_mix((uint64_t)rank << 32 ^ e);
        double x = (double)(d >> 11) * 0x1p-53 + 0.5; /* 0.5 to 1.5, */
        x = ldexp(x, (int)(d % 8) - 7);               /* with different exponents */
        encode(dtype, d / 8 % 2 ? x : -x, to + e * size);
    }
}
