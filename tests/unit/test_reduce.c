/* Reductions: every type and reduction against a plain model of one element, written another way;
 * every kind of processor against the portable kernels, bit for bit, with all special values, at
 * all short lengths and unaligned; the user's own reductions. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "collectives/reduce/reduce.h"
#include "core/mem.h"

/* Like ck_assert_msg(), but cheap when the condition holds: ck_assert_msg() writes to a file each
 * time. */
#define NEED(fact, ...)                \
    do {                               \
        if (!(fact))                   \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

static const int g_types[DTYPES] = {DLCOLL_I8,     DLCOLL_U8,     DLCOLL_I16, DLCOLL_U16,
                                    DLCOLL_I32,    DLCOLL_U32,    DLCOLL_I64, DLCOLL_U64,
                                    DLCOLL_F16,    DLCOLL_F32,    DLCOLL_F64, DLCOLL_BF16,
                                    DLCOLL_F8E4M3, DLCOLL_F8E5M2, DLCOLL_BOOL};
static const int g_ops[REDUCTIONS] = {
    DLCOLL_SUM,  DLCOLL_PROD, DLCOLL_MAX, DLCOLL_MIN,  DLCOLL_AVG,    DLCOLL_BAND,  DLCOLL_BOR,
    DLCOLL_BXOR, DLCOLL_LAND, DLCOLL_LOR, DLCOLL_LXOR, DLCOLL_MINLOC, DLCOLL_MAXLOC};

static uint64_t random_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11 ^ *state << 40;
}

/* ------------------------------------------------------------------------- a model of the types */

/* A float of any format: sign, exponent, mantissa. */
struct format {
    int exp, man;
    bool has_inf;
};

static struct format format_of(int type)
{
    switch (type) {
    case DLCOLL_F16:
        return (struct format){5, 10, true};
    case DLCOLL_BF16:
        return (struct format){8, 7, true};
    case DLCOLL_F8E5M2:
        return (struct format){5, 2, true};
    case DLCOLL_F8E4M3:
        return (struct format){4, 3, false};
    case DLCOLL_F32:
        return (struct format){8, 23, true};
    default:
        return (struct format){11, 52, true};
    }
}

static double decode(struct format f, uint64_t bits)
{
    uint64_t man = bits & ((1ull << f.man) - 1), exp = bits >> f.man & ((1ull << f.exp) - 1);
    int bias = (1 << (f.exp - 1)) - 1;
    double sign = bits >> (f.exp + f.man) & 1 ? -1 : 1;
    bool top = exp == (1ull << f.exp) - 1;
    if (top && (f.has_inf || man == (1ull << f.man) - 1))
        return f.has_inf && !man ? sign * INFINITY : (double)NAN;
    if (!exp)
        return sign * ldexp((double)man, 1 - bias - f.man);
    return sign * ldexp((double)(man + (1ull << f.man)), (int)exp - bias - f.man);
}

/* The nearest number of the format, ties to even: found by looking at its neighbours. */
static uint64_t encode(struct format f, double x)
{
    uint64_t sign = (uint64_t)(signbit(x) != 0) << (f.exp + f.man);
    uint64_t most = (1ull << (f.exp + f.man)) - 1; /* all ones: a NaN */
    uint64_t inf = f.has_inf ? most >> f.man << f.man : most;
    if (isnan(x))
        return most;
    double a = fabs(x);
    uint64_t lo = 0, hi = inf; /* lo <= a < hi, as numbers; hi stands for the next power of two */
    if (isinf(a))
        return sign | inf;
    while (hi - lo > 1) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (decode(f, mid) <= a)
            lo = mid;
        else
            hi = mid;
    }
    double below = decode(f, lo), step = lo ? below - decode(f, lo - 1) : decode(f, 1);
    double above = hi == inf ? below + (f.has_inf ? step : 32) : decode(f, hi);
    double middle = below + (above - below) / 2;
    bool up = a > middle || (a == middle && (lo & 1));
    return sign | (up ? hi : lo);
}

static uint64_t take(const void *p, size_t size)
{
    uint64_t x = 0;
    memcpy(&x, p, size);
    return x;
}

static int64_t sign_extend(uint64_t x, size_t size)
{
    return (int64_t)(x << (64 - 8 * size)) >> (64 - 8 * size);
}

static bool is_signed(int type)
{
    return type == DLCOLL_I8 || type == DLCOLL_I16 || type == DLCOLL_I32 || type == DLCOLL_I64;
}

static uint64_t model_integer(int type, int op, uint64_t a, uint64_t b, size_t size)
{
    bool less = is_signed(type) ? sign_extend(a, size) < sign_extend(b, size) : a < b;
    switch (op) {
    case DLCOLL_SUM:
    case DLCOLL_AVG:
        return a + b;
    case DLCOLL_PROD:
        return a * b;
    case DLCOLL_MAX:
        return less ? b : a;
    case DLCOLL_MIN:
        return less ? a : b;
    case DLCOLL_BAND:
        return a & b;
    case DLCOLL_BOR:
        return a | b;
    case DLCOLL_BXOR:
        return a ^ b;
    case DLCOLL_LAND:
        return a && b;
    case DLCOLL_LXOR:
        return !a != !b;
    default:
        return a || b;
    }
}

static uint64_t model_bool(int op, uint64_t a, uint64_t b)
{
    switch (op) {
    case DLCOLL_PROD:
    case DLCOLL_MIN:
    case DLCOLL_BAND:
    case DLCOLL_LAND:
        return a && b;
    case DLCOLL_BXOR:
    case DLCOLL_LXOR:
        return !a != !b;
    default:
        return a || b;
    }
}

static double model_float(int op, double a, double b)
{
    switch (op) {
    case DLCOLL_PROD:
        return a * b;
    case DLCOLL_MAX:
        return isnan(a) || isnan(b) ? (double)NAN : a > b ? a : b;
    case DLCOLL_MIN:
        return isnan(a) || isnan(b) ? (double)NAN : a < b ? a : b;
    default:
        return a + b;
    }
}

/* Whether `got` is a op b. Of NaNs it knows only that they are. */
static bool agrees(int type, int op, uint64_t a, uint64_t b, uint64_t got)
{
    const struct dtype *d = dtype_get(type);
    uint64_t mask = ~0ull >> (64 - 8 * d->size);
    if (d->class == DTYPE_INTEGER)
        return got == (model_integer(type, op, a, b, d->size) & mask);
    if (d->class == DTYPE_BOOL)
        return got == model_bool(op, a, b);
    struct format f = format_of(type);
    double x = model_float(op, decode(f, a), decode(f, b));
    if (type == DLCOLL_F32) {
        float y = (float)x; /* exact as a double: rounded once; a product of floats always is */
        if (op == DLCOLL_SUM || op == DLCOLL_AVG)
            y = (float)decode(f, a) + (float)decode(f, b);
        return isnan(x) ? isnan(decode(f, got)) : take(&y, 4) == got;
    }
    if (type == DLCOLL_F64)
        return isnan(x) ? isnan(decode(f, got)) : take(&x, 8) == got;
    if (type == DLCOLL_BF16)
        x = op == DLCOLL_PROD                     ? (float)x
            : op > DLCOLL_PROD && op < DLCOLL_AVG ? x
                                                  : (float)decode(f, a) + (float)decode(f, b);
    return isnan(x) ? isnan(decode(f, got)) : encode(f, x) == got;
}

START_TEST(the_model_knows_its_formats)
{
    ck_assert_double_eq(decode(format_of(DLCOLL_F16), 0x3c00), 1);
    ck_assert_double_eq(decode(format_of(DLCOLL_F16), 0x7bff), 65504);
    ck_assert_double_eq(decode(format_of(DLCOLL_BF16), 0xc000), -2);
    ck_assert_double_eq(decode(format_of(DLCOLL_F8E4M3), 0x7e), 448);
    ck_assert_double_eq(decode(format_of(DLCOLL_F8E5M2), 0x7b), 57344);
    ck_assert_double_eq(decode(format_of(DLCOLL_F8E5M2), 0x01), 0x1p-16);
    ck_assert(isnan(decode(format_of(DLCOLL_F8E4M3), 0xff)));
    ck_assert(isinf(decode(format_of(DLCOLL_F8E5M2), 0xfc)));
    ck_assert_uint_eq(encode(format_of(DLCOLL_F8E4M3), 464), 0x7e);   /* a tie, to even */
    ck_assert_uint_eq(encode(format_of(DLCOLL_F8E4M3), 464.5), 0x7f); /* nothing above: NaN */
    ck_assert_uint_eq(encode(format_of(DLCOLL_F8E5M2), 61440), 0x7c);
    ck_assert_uint_eq(encode(format_of(DLCOLL_F16), 65519), 0x7bff);
    ck_assert_uint_eq(encode(format_of(DLCOLL_F16), 65520), 0x7c00);
    ck_assert_uint_eq(encode(format_of(DLCOLL_BF16), 1.00390625), 0x3f80);
}
END_TEST

/* ---------------------------------------------------------------------------- against the model */

/* Every byte with every byte; of wider types the special values and random ones. */
static size_t operands(int type, uint64_t *out, size_t room)
{
    size_t n = 0, size = dtype_get(type)->size;
    uint64_t seed = 5;
    if (size == 1) {
        for (; n < 256; n++)
            out[n] = n;
        return n;
    }
    uint64_t mask = ~0ull >> (64 - 8 * size), top = mask ^ mask >> 1;
    const uint64_t integers[] = {0, 1, 2, 3, mask, mask - 1, top, top - 1, top + 1, 0x55555555};
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++)
        out[n++] = integers[i] & mask;
    if (dtype_get(type)->class == DTYPE_FLOAT) {
        struct format f = format_of(type);
        uint64_t inf = ((1ull << f.exp) - 1) << f.man, one = inf / 2 & inf;
        const uint64_t floats[] = {0,
                                   1,
                                   2,
                                   (1ull << f.man) - 1,
                                   1ull << f.man,
                                   (1ull << f.man) + 1,
                                   one,
                                   one + 1,
                                   one - 1,
                                   one + (1ull << f.man),
                                   inf - 1,
                                   inf - 2,
                                   inf - (1ull << f.man),
                                   inf,
                                   inf + 1,
                                   inf + (1ull << (f.man - 1)),
                                   inf + (1ull << (f.man - 1)) + 1,
                                   top - 1,
                                   one / 2,
                                   one / 2 + 1,
                                   inf - (3ull << f.man)};
        for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
            out[n++] = floats[i];
            out[n++] = floats[i] | top;
        }
    }
    while (n < room)
        out[n++] = random_bits(&seed) & mask;
    return n;
}

static const struct reduce_kernels *kernels_or_skip(int cpu)
{
    const struct reduce_kernels *k = reduce_kernels(cpu);
    if (!k)
        test_skip("this processor has no %s", cpu == REDUCE_AVX2 ? "AVX2" : "AVX-512");
    return k;
}

START_TEST(every_type_and_reduction_is_right)
{
    int type = g_types[_i];
    static uint64_t values[256];
    size_t n = operands(type, values, 256), size = dtype_get(type)->size;
    uint8_t *a = xmalloc(n * size), *b = xmalloc(n * size), *got = xmalloc(n * size);
    for (size_t i = 0; i < n; i++)
        memcpy(b + i * size, &values[i], size);
    for (int cpu = 0; cpu < REDUCE_CPUS; cpu++) {
        const struct reduce_kernels *k = kernels_or_skip(cpu);
        for (int o = 0; k && o < REDUCTIONS; o++) {
            struct reduce_info r;
            if (reduce_find_in(k, type, g_ops[o], &r) < 0)
                continue;
            for (size_t i = 0; i < n; i++) {
                for (size_t j = 0; j < n; j++)
                    memcpy(a + j * size, &values[i], size);
                reduce_two(&r, got, a, b, n);
                for (size_t j = 0; j < n; j++) {
                    uint64_t x = take(got + j * size, size);
                    NEED(agrees(type, g_ops[o], values[i], values[j], x),
                         "%s: %s of %s: %#llx, %#llx gives %#llx", k->name,
                         reduction_name(g_ops[o]), r.dtype->name, (unsigned long long)values[i],
                         (unsigned long long)values[j], (unsigned long long)x);
                }
            }
        }
    }
    free(a), free(b), free(got);
}
END_TEST

START_TEST(each_type_has_its_reductions)
{
    for (int t = 0; t < DTYPES; t++) {
        const struct dtype *d = dtype_get(g_types[t]);
        for (int o = 0; o < REDUCTIONS; o++) {
            struct reduce_info r;
            bool bits = g_ops[o] >= DLCOLL_BAND, pairs = g_ops[o] >= DLCOLL_MINLOC;
            bool has = !pairs && (d->class == DTYPE_INTEGER || (d->class == DTYPE_FLOAT && !bits) ||
                                  (d->class == DTYPE_BOOL && g_ops[o] != DLCOLL_AVG));
            int code = reduce_find(g_types[t], g_ops[o], &r);
            NEED(code == (has ? 0 : DLCOLL_ENOSUP), "%s of %s: %d", reduction_name(g_ops[o]),
                 d->name, code);
            if (!has)
                continue;
            ck_assert_int_eq(r.code, g_ops[o]);
            ck_assert_int_eq(r.has_post, g_ops[o] == DLCOLL_AVG);
            ck_assert(!r.has_pre && !r.ordered && !r.user && r.kernel->two && r.kernel->many &&
                      r.kernel->many_stream);
        }
    }
}
END_TEST

START_TEST(unknown_types_and_reductions_are_refused)
{
    static const int ops[] = {-1, 5, 31, 40, REDUCE_PREMUL, REDUCE_USER, 1 << 16, DLCOLL_OP_MAX};
    static const int types[] = {-1, 12, 31, 35, 256, DLCOLL_DTYPE_MAX};
    struct reduce_info r;
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        ck_assert_int_eq(reduce_find(DLCOLL_F32, ops[i], &r), DLCOLL_EINVAL);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        ck_assert_int_eq(reduce_find(types[i], DLCOLL_SUM, &r), DLCOLL_EINVAL);
        ck_assert_ptr_null(dtype_get(types[i]));
    }
    ck_assert_ptr_null(reduction_name(-1));
    ck_assert_ptr_null(reduction_name(5));
    ck_assert_ptr_null(reduction_name(DLCOLL_OP_MAX));
}
END_TEST

START_TEST(types_have_nccls_numbers)
{
    static const struct {
        int value;
        const char *name;
        size_t size;
    } nccl[] = {{0, "i8", 1},   {1, "u8", 1},   {2, "i32", 4},     {3, "u32", 4},
                {4, "i64", 8},  {5, "u64", 8},  {6, "f16", 2},     {7, "f32", 4},
                {8, "f64", 8},  {9, "bf16", 2}, {10, "f8e4m3", 1}, {11, "f8e5m2", 1},
                {32, "i16", 2}, {33, "u16", 2}, {34, "bool", 1}};
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg"};
    for (size_t i = 0; i < sizeof(nccl) / sizeof(nccl[0]); i++) {
        ck_assert_str_eq(dtype_get(nccl[i].value)->name, nccl[i].name);
        ck_assert_uint_eq(dtype_get(nccl[i].value)->size, nccl[i].size);
    }
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(reduction_name(i), ops[i]);
}
END_TEST

/* ---------------------------------------------------------------- one processor against another */

enum { SOURCES = 5, MOST = 130, ROOM = (MOST + 8) * 8 };

/* Random values, every fourth a special one. */
static void fill(int type, uint8_t *p, size_t count, uint64_t *seed)
{
    static uint64_t values[256];
    static int values_of = -1;
    size_t size = dtype_get(type)->size;
    if (values_of != type)
        operands(type, values, 256);
    values_of = type;
    for (size_t i = 0; i < count; i++) {
        uint64_t r = random_bits(seed), v = r & 3 ? random_bits(seed) : values[r >> 8 & 63];
        memcpy(p + i * size, &v, size);
    }
}

static struct {
    uint8_t src[SOURCES][ROOM], want[ROOM], got[ROOM];
} g;

static void expect_same(const char *what, const struct reduce_kernels *k,
                        const struct reduce_info *r, size_t shift, size_t count)
{
    NEED(memcmp(g.want, g.got, ROOM) == 0, "%s of %zu %s (%s), %zu off: %s and portable differ",
         what, count, r->dtype->name, reduction_name(r->code), shift, k->name);
}

/* The vector kernels give the results of the portable ones, at every alignment and in place. */
static void compare(const struct reduce_kernels *k, int type, int op, size_t count, size_t shift)
{
    const void *src[SOURCES];
    struct reduce_info p, r;
    ck_assert_int_eq(reduce_find_in(&reduce_portable, type, op, &p), 0);
    ck_assert_int_eq(reduce_find_in(k, type, op, &r), 0);
    r.ranks = p.ranks = (int)(count % 9) + 1;
    for (int s = 0; s < SOURCES; s++)
        src[s] = g.src[s] + shift + s;
    memset(g.want, 0x77, ROOM), memset(g.got, 0x77, ROOM);
    reduce_two(&p, g.want + shift, src[0], src[1], count);
    reduce_two(&r, g.got + shift, src[0], src[1], count);
    expect_same("two", k, &r, shift, count);
    for (int in_place = 0; in_place < 2; in_place++) {
        memcpy(g.got + shift, src[in_place], count * p.dtype->size);
        reduce_two(&r, g.got + shift, in_place ? src[0] : g.got + shift,
                   in_place ? g.got + shift : src[1], count);
        expect_same("two in place", k, &r, shift, count);
    }
    for (int n = 1; n <= SOURCES; n++) {
        memset(g.want, 0x77, ROOM), memset(g.got, 0x77, ROOM);
        reduce_many(&p, g.want + shift, src, n, count);
        reduce_many(&r, g.got + shift, src, n, count);
        expect_same("many", k, &r, shift, count);
        memset(g.got, 0x77, ROOM);
        reduce_many_stream(&r, g.got + shift, src, n, count);
        expect_same("many_stream", k, &r, shift, count);
    }
    memcpy(g.got + shift, src[SOURCES - 1], count * p.dtype->size);
    src[SOURCES - 1] = g.got + shift;
    reduce_many(&r, g.got + shift, src, SOURCES, count);
    expect_same("many in place", k, &r, shift, count);
    if (r.has_post) {
        reduce_post(&p, g.want + shift, src[0], count);
        reduce_post(&r, g.got + shift, src[0], count);
        expect_same("divide", k, &r, shift, count);
    }
}

START_TEST(every_processor_gives_the_same_bits)
{
    int type = g_types[_i];
    uint64_t seed = 7;
    for (int cpu = 1; cpu < REDUCE_CPUS; cpu++) {
        const struct reduce_kernels *k = kernels_or_skip(cpu);
        for (int o = 0; k && o < REDUCTIONS; o++) {
            struct reduce_info r;
            if (reduce_find_in(k, type, g_ops[o], &r) < 0)
                continue;
            for (size_t count = 0; count <= MOST; count++) {
                for (int s = 0; s < SOURCES; s++)
                    fill(type, g.src[s] + count % 8 + (size_t)s, count, &seed);
                compare(k, type, g_ops[o], count, count % 8);
            }
        }
    }
}
END_TEST

/* NaNs with different payloads on both sides: the left one wins everywhere. */
START_TEST(nans_keep_their_payload_everywhere)
{
    uint32_t a[70], b[70], got[70];
    for (int i = 0; i < 70; i++) {
        a[i] = 0x7fc00001 + (uint32_t)i;
        b[i] = 0xffc10001 + (uint32_t)i;
    }
    for (int cpu = 0; cpu < REDUCE_CPUS; cpu++) {
        const struct reduce_kernels *k = kernels_or_skip(cpu);
        for (int op = DLCOLL_SUM; k && op <= DLCOLL_MIN; op++) {
            struct reduce_info r;
            ck_assert_int_eq(reduce_find_in(k, DLCOLL_F32, op, &r), 0);
            reduce_two(&r, got, a, b, 70);
            ck_assert_msg(memcmp(got, a, sizeof(a)) == 0, "%s: %s takes the right NaN", k->name,
                          reduction_name(op));
            reduce_many(&r, got, (const void *[]){a, b, a, b}, 4, 70);
            ck_assert_msg(memcmp(got, a, sizeof(a)) == 0, "%s: %s of many takes another NaN",
                          k->name, reduction_name(op));
        }
    }
}
END_TEST

/* reduce_many() rounds once: 2048 + 1 + 1 is 2050 in f16, and 2048 when each step is rounded. */
START_TEST(many_narrow_floats_are_rounded_once)
{
    uint16_t big = 0x6800, one = 0x3c00, got, step;
    struct reduce_info r;
    for (int cpu = 0; cpu < REDUCE_CPUS; cpu++) {
        const struct reduce_kernels *k = kernels_or_skip(cpu);
        if (!k)
            continue;
        ck_assert_int_eq(reduce_find_in(k, DLCOLL_F16, DLCOLL_SUM, &r), 0);
        reduce_two(&r, &step, &big, &one, 1);
        reduce_two(&r, &step, &step, &one, 1);
        ck_assert_uint_eq(step, 0x6800);
        reduce_many(&r, &got, (const void *[]){&big, &one, &one}, 3, 1);
        ck_assert_uint_eq(got, 0x6801);
    }
}
END_TEST

/* ---------------------------------------------------------------------------------- avg, premul */

START_TEST(averages_are_quotients)
{
    int8_t i8[3] = {-7, 7, -128}, i8_want[3] = {-2, 2, -42};
    uint16_t u16[2] = {65535, 2}, u16_want[2] = {21845, 0};
    int64_t i64[2] = {INT64_MIN, 8}, i64_want[2] = {INT64_MIN / 3, 2};
    float f32[2] = {1, -10}, f32_want[2] = {1.f / 3, -10.f / 3};
    double f64 = 1;
    struct reduce_info r;
    reduce_find(DLCOLL_I8, DLCOLL_AVG, &r), r.ranks = 3;
    reduce_post(&r, i8, i8, 3);
    ck_assert_mem_eq(i8, i8_want, 3);
    reduce_find(DLCOLL_U16, DLCOLL_AVG, &r), r.ranks = 3;
    reduce_post(&r, u16, u16, 2);
    ck_assert_mem_eq(u16, u16_want, 4);
    reduce_find(DLCOLL_I64, DLCOLL_AVG, &r), r.ranks = 3;
    reduce_post(&r, i64, i64, 2);
    ck_assert_mem_eq(i64, i64_want, 16);
    reduce_find(DLCOLL_F32, DLCOLL_AVG, &r), r.ranks = 3;
    reduce_post(&r, f32, f32, 2);
    ck_assert_mem_eq(f32, f32_want, 8);
    reduce_find(DLCOLL_F64, DLCOLL_AVG, &r), r.ranks = 10;
    reduce_post(&r, &f64, &f64, 1);
    ck_assert(f64 == 0.1);
}
END_TEST

/* More ranks than a byte has numbers. */
START_TEST(averages_over_many_ranks)
{
    int8_t i8 = 100;
    uint8_t u8 = 200;
    struct reduce_info r;
    reduce_find(DLCOLL_I8, DLCOLL_AVG, &r), r.ranks = 256;
    reduce_post(&r, &i8, &i8, 1);
    ck_assert_int_eq(i8, 0);
    reduce_find(DLCOLL_U8, DLCOLL_AVG, &r), r.ranks = 300;
    reduce_post(&r, &u8, &u8, 1);
    ck_assert_int_eq(u8, 0);
}
END_TEST

START_TEST(premul_multiplies_first)
{
    enum { N = 1000 };
    static float x[N], y[N];
    static uint16_t h[N];
    float factor = 0.5f;
    uint16_t bf_three = 0x4040;
    dlcoll_op op;
    struct reduce_info r;
    ck_assert_int_eq(dlcoll_op_create_premul(&op, &factor, DLCOLL_F32), 0);
    factor = 9; /* it has been copied */
    ck_assert_int_eq(reduce_find(DLCOLL_F64, op, &r), DLCOLL_EINVAL);
    ck_assert_int_eq(reduce_find(DLCOLL_F32, op, &r), 0);
    ck_assert(r.has_pre && !r.has_post && r.code == REDUCE_PREMUL);
    ck_assert_str_eq(reduction_name(r.code), "premul_sum");
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    reduce_pre(&r, y, x, N);
    for (int i = 0; i < N; i++)
        ck_assert(y[i] == (float)i / 2);
    reduce_two(&r, y, y, x, N);
    ck_assert(y[10] == 15);
    ck_assert_int_eq(dlcoll_op_free(op), 0);
    ck_assert_int_eq(reduce_find(DLCOLL_F32, op, &r), DLCOLL_EINVAL);

    ck_assert_int_eq(dlcoll_op_create_premul(&op, &bf_three, DLCOLL_BF16), 0);
    ck_assert_int_eq(reduce_find(DLCOLL_BF16, op, &r), 0);
    for (int i = 0; i < N; i++)
        h[i] = 0x3f80; /* 1 */
    reduce_pre(&r, h, h, N);
    for (int i = 0; i < N; i++)
        ck_assert_uint_eq(h[i], 0x4040);
    ck_assert_int_eq(dlcoll_op_free(op), 0);
}
END_TEST

/* ------------------------------------------------------------------------------- user functions */

/* a op b = 2 a + b: neither commutative nor associative, so that the order shows. */
static void double_and_add(void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    ck_assert_int_eq(dtype, DLCOLL_I32);
    ck_assert_uint_eq((uintptr_t)acc % 4, 0);
    ck_assert_uint_eq((uintptr_t)in % 4, 0);
    *(int *)ctx += 1;
    for (size_t i = 0; i < count; i++)
        ((int32_t *)acc)[i] = 2 * ((int32_t *)acc)[i] + ((const int32_t *)in)[i];
}

START_TEST(user_functions_are_called_in_order_on_aligned_memory)
{
    enum { N = 3000 };
    static uint8_t bytes[3][N * 4 + 8];
    int calls = 0;
    dlcoll_op op;
    struct reduce_info r;
    ck_assert_int_eq(dlcoll_op_create_user(&op, double_and_add, &calls, DLCOLL_OP_ORDERED), 0);
    ck_assert_int_eq(reduce_find(DLCOLL_I32, op, &r), 0);
    ck_assert(r.ordered && !r.has_pre && !r.has_post && r.code == REDUCE_USER);
    for (size_t shift = 0; shift < 8; shift++) {
        for (int into = 0; into < 3; into++) { /* dst is this source */
            const void *src[3];
            for (int s = 0; s < 3; s++) {
                src[s] = bytes[s] + shift;
                for (int32_t i = 0; i < N; i++) {
                    int32_t v = i * (s + 1);
                    memcpy(bytes[s] + shift + i * 4, &v, 4);
                }
            }
            reduce_many(&r, bytes[into] + shift, src, 3, N);
            for (int32_t i = 0; i < N; i++)
                ck_assert_int_eq((int32_t)take(bytes[into] + shift + i * 4, 4), 11 * i);
        }
    }
    int32_t a = 1, b = 2, c;
    reduce_two(&r, &c, &a, &b, 1);
    ck_assert_int_eq(c, 4);
    reduce_two(&r, &b, &a, &b, 1);
    ck_assert_int_eq(b, 4);
    ck_assert_int_gt(calls, 0);
    ck_assert_int_eq(dlcoll_op_free(op), 0);
}
END_TEST

static void expect_why(const char *text)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(NULL, &e);
    ck_assert_str_eq(e.text, text);
}

START_TEST(ops_are_checked_counted_and_freed_once)
{
    dlcoll_op op, ops[256], again;
    float one = 1;
    ck_assert_int_eq(dlcoll_op_create_user(NULL, double_and_add, NULL, 0), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_op_create_user(&op, NULL, NULL, 0), DLCOLL_EINVAL);
    expect_why("dlcoll_op_create_user: op or fn is NULL");
    ck_assert_int_eq(dlcoll_op_create_user(&op, double_and_add, NULL, 4), DLCOLL_EINVAL);
    expect_why("dlcoll_op_create_user: unknown flag");
    ck_assert_int_eq(dlcoll_op_create_premul(&op, NULL, DLCOLL_F32), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_op_create_premul(&op, &one, (dlcoll_dtype)12), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_op_create_premul(&op, &one, DLCOLL_BOOL), DLCOLL_EINVAL);
    expect_why("dlcoll_op_create_premul: dtype must be a type of numbers");
    ck_assert_int_eq(dlcoll_op_create_premul(NULL, &one, DLCOLL_F32), DLCOLL_EINVAL);
    expect_why("dlcoll_op_create_premul: op or scalar is NULL");
    for (int i = 0; i < 256; i++)
        ck_assert_int_eq(dlcoll_op_create_premul(&ops[i], &one, DLCOLL_F32), 0);
    ck_assert_int_eq(dlcoll_op_create_premul(&op, &one, DLCOLL_F32), DLCOLL_ENOMEM);
    expect_why("dlcoll_op_create_premul: there are 256 reductions already");
    ck_assert_int_eq(dlcoll_op_free(ops[17]), 0);
    ck_assert_int_eq(dlcoll_op_create_premul(&again, &one, DLCOLL_F32), 0);
    ck_assert_int_ne(again, ops[17]);
    ck_assert_int_eq(dlcoll_op_free(ops[17]), DLCOLL_EINVAL);
    ops[17] = again;
    for (int i = 0; i < 256; i++)
        ck_assert_int_eq(dlcoll_op_free(ops[i]), 0);
    ck_assert_int_eq(dlcoll_op_free(ops[0]), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_op_free(DLCOLL_SUM), DLCOLL_EINVAL);
    ck_assert_int_eq(dlcoll_op_free((dlcoll_op)-1), DLCOLL_EINVAL);
    expect_why("dlcoll_op_free: op is none that was made and not freed");
}
END_TEST

/* ---------------------------------------------------------------------------------------- pairs */

struct f64_i32 {
    double value;
    int32_t index;
};

/* Whether x comes before y: a NaN before all, then the better value, then the lower index. */
static bool wins(int op, struct f64_i32 x, struct f64_i32 y)
{
    if (isnan(x.value) || isnan(y.value)) {
        if (isnan(x.value) != isnan(y.value))
            return isnan(x.value);
    } else if (x.value != y.value) {
        return (op == DLCOLL_MINLOC) == (x.value < y.value);
    }
    return x.index < y.index;
}

START_TEST(pairs_of_floats_have_an_order)
{
    const double values[] = {0, -0.0, 1, -1, INFINITY, -INFINITY, NAN, 2.5};
    enum { N = 8 * 3 };
    int op = _i ? DLCOLL_MAXLOC : DLCOLL_MINLOC;
    struct reduce_info r;
    ck_assert_int_eq(reduce_find(DLCOLL_F64_I32, op, &r), 0);
    for (int i = 0; i < N * N; i++) {
        struct f64_i32 x = {values[i / N / 3], i / N % 3 - 1},
                       y = {values[i % N / 3], i % N % 3 - 1};
        struct f64_i32 want = wins(op, y, x) ? y : x, got, z = {3, 7};
        reduce_two(&r, &got, &x, &y, 1);
        NEED(memcmp(&got.value, &want.value, 8) == 0 && got.index == want.index,
             "%g %d with %g %d gives %g %d", x.value, x.index, y.value, y.index, got.value,
             got.index);
        struct f64_i32 best = wins(op, z, want) ? z : want;
        reduce_many(&r, &x, (const void *[]){&x, &y, &z}, 3, 1);
        NEED(memcmp(&x.value, &best.value, 8) == 0 && x.index == best.index, "of three");
    }
}
END_TEST

/* Every type of pair, unaligned, of more elements than a block holds. */
START_TEST(pairs_of_every_type_are_found)
{
    enum { N = 301, THREE = 3 };
    static const struct {
        int dtype;
        size_t value, at, index; /* bytes of the value; where the index is; its bytes */
    } types[PAIRS] = {{DLCOLL_I16_I32, 2, 4, 4}, {DLCOLL_I32_I32, 4, 4, 4},
                      {DLCOLL_I64_I32, 8, 8, 4}, {DLCOLL_I64_I64, 8, 8, 8},
                      {DLCOLL_F32_I32, 4, 4, 4}, {DLCOLL_F64_I32, 8, 8, 4},
                      {DLCOLL_F64_I64, 8, 8, 8}};
    size_t size = dtype_get(types[_i].dtype)->size;
    bool is_float = types[_i].dtype >= DLCOLL_F32_I32;
    uint8_t src[THREE][N * 16 + 1], got[N * 16 + 1];
    int64_t value[THREE][N], index[THREE][N];
    uint64_t seed = 3;
    memset(src, 0, sizeof(src));
    for (int s = 0; s < THREE; s++) {
        for (int i = 0; i < N; i++) {
            value[s][i] = (int64_t)(random_bits(&seed) % 7) - 3;
            index[s][i] = (int64_t)(random_bits(&seed) % 5);
            float f = (float)value[s][i];
            double d = (double)value[s][i];
            uint8_t *to = src[s] + 1 + (size_t)i * size;
            memcpy(to,
                   !is_float              ? (void *)&value[s][i]
                   : types[_i].value == 4 ? (void *)&f
                                          : &d,
                   types[_i].value);
            memcpy(to + types[_i].at, &index[s][i], types[_i].index);
        }
    }
    for (int op = DLCOLL_MINLOC; op <= DLCOLL_MAXLOC; op++) {
        struct reduce_info r;
        ck_assert_int_eq(reduce_find(types[_i].dtype, op, &r), 0);
        reduce_many(&r, got + 1, (const void *[]){src[0] + 1, src[1] + 1, src[2] + 1}, THREE, N);
        for (int i = 0; i < N; i++) {
            int best = 0;
            for (int s = 1; s < THREE; s++) {
                int64_t by = op == DLCOLL_MINLOC ? value[best][i] - value[s][i]
                                                 : value[s][i] - value[best][i];
                best = by > 0 || (by == 0 && index[s][i] < index[best][i]) ? s : best;
            }
            NEED(memcmp(got + 1 + (size_t)i * size, src[best] + 1 + (size_t)i * size, size) == 0,
                 "%s of %s: element %d", reduction_name(op), r.dtype->name, i);
        }
    }
    struct reduce_info r;
    ck_assert_int_eq(reduce_find(types[_i].dtype, DLCOLL_SUM, &r), DLCOLL_ENOSUP);
    ck_assert_int_eq(reduce_find(types[_i].dtype, DLCOLL_AVG, &r), DLCOLL_ENOSUP);
}
END_TEST

static void *make_and_free(void *unused)
{
    float two = 2;
    (void)unused;
    for (int i = 0; i < 2000; i++) {
        dlcoll_op op;
        struct reduce_info r;
        float x = 1;
        if (dlcoll_op_create_premul(&op, &two, DLCOLL_F32) < 0 ||
            reduce_find(DLCOLL_F32, op, &r) < 0)
            return "cannot be made";
        reduce_pre(&r, &x, &x, 1);
        if (x != 2 || dlcoll_op_free(op) < 0)
            return "not what it was made";
    }
    return NULL;
}

START_TEST(threads_make_and_free_ops_at_once)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, make_and_free, NULL), 0);
    for (int i = 0; i < 4; i++) {
        void *why;
        pthread_join(threads[i], &why);
        ck_assert_msg(!why, "%s", (char *)why);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------- choosing */

START_TEST(the_environment_chooses)
{
    static const char *const names[REDUCE_CPUS] = {"portable", "avx2", "avx512"};
    struct err e = ERR_INIT;
    unsetenv("DLCOLL_CPU");
    const struct reduce_kernels *best = NULL;
    for (int cpu = 0; cpu < REDUCE_CPUS; cpu++)
        best = reduce_kernels(cpu) ? reduce_kernels(cpu) : best;
    ck_assert_ptr_eq(reduce_kernels_used(), best);
    for (int cpu = 0; cpu < REDUCE_CPUS; cpu++) {
        setenv("DLCOLL_CPU", names[cpu], 1);
        int r = reduce_choose(&e);
        if (reduce_kernels(cpu)) {
            ck_assert_int_eq(r, 0);
            ck_assert_str_eq(reduce_kernels_used()->name, names[cpu]);
        } else {
            ck_assert_int_eq(r, -EINVAL);
            ck_assert_ptr_nonnull(strstr(e.msg, names[cpu]));
        }
    }
    setenv("DLCOLL_CPU", "sse2", 1);
    ck_assert_int_eq(reduce_choose(&e), -EINVAL);
    ck_assert_str_eq(e.msg, "DLCOLL_CPU=sse2: must be portable, avx2 or avx512");
    setenv("DLCOLL_CPU", "", 1);
    ck_assert_int_eq(reduce_choose(&e), 0);
    ck_assert_ptr_eq(reduce_kernels_used(), best);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("reduce");
    TCase *tc = test_case(s, "results", 60);
    tcase_add_test(tc, the_model_knows_its_formats);
    tcase_add_loop_test(tc, every_type_and_reduction_is_right, 0, DTYPES);
    tcase_add_test(tc, each_type_has_its_reductions);
    tcase_add_test(tc, unknown_types_and_reductions_are_refused);
    tcase_add_test(tc, types_have_nccls_numbers);
    tc = test_case(s, "bits", 60);
    tcase_add_loop_test(tc, every_processor_gives_the_same_bits, 0, DTYPES);
    tcase_add_test(tc, nans_keep_their_payload_everywhere);
    tcase_add_test(tc, many_narrow_floats_are_rounded_once);
    tc = test_case(s, "ops", 20);
    tcase_add_test(tc, averages_are_quotients);
    tcase_add_test(tc, averages_over_many_ranks);
    tcase_add_test(tc, premul_multiplies_first);
    tcase_add_test(tc, user_functions_are_called_in_order_on_aligned_memory);
    tcase_add_test(tc, ops_are_checked_counted_and_freed_once);
    tcase_add_test(tc, threads_make_and_free_ops_at_once);
    tcase_add_loop_test(tc, pairs_of_floats_have_an_order, 0, 2);
    tcase_add_loop_test(tc, pairs_of_every_type_are_found, 0, PAIRS);
    tcase_add_test(tc, the_environment_chooses);
    return s;
}

TEST_MAIN(suite)
