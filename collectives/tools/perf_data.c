/* perf_data.c: values whose reduction is known exactly.
 *
 * A float type with p significant bits holds all integers up to 2^p: as long as all ranks' values
 * of an element add up to no more, every partial sum is exact and the order does not matter. */
#include <math.h>
#include <string.h>

#include "collectives/tools/perf.h"

const struct perf_name perf_types[PERF_TYPES] = {
    {"i8", DLCOLL_I8},     {"u8", DLCOLL_U8},         {"i16", DLCOLL_I16},
    {"u16", DLCOLL_U16},   {"i32", DLCOLL_I32},       {"u32", DLCOLL_U32},
    {"i64", DLCOLL_I64},   {"u64", DLCOLL_U64},       {"f16", DLCOLL_F16},
    {"bf16", DLCOLL_BF16}, {"f8e4m3", DLCOLL_F8E4M3}, {"f8e5m2", DLCOLL_F8E5M2},
    {"f32", DLCOLL_F32},   {"f64", DLCOLL_F64},       {"bool", DLCOLL_BOOL}};

const struct perf_name perf_reductions[PERF_REDUCTIONS] = {
    {"sum", DLCOLL_SUM}, {"prod", DLCOLL_PROD}, {"min", DLCOLL_MIN},
    {"max", DLCOLL_MAX}, {"avg", DLCOLL_AVG},   {"band", DLCOLL_BAND},
    {"bor", DLCOLL_BOR}, {"bxor", DLCOLL_BXOR}, {"land", DLCOLL_LAND},
    {"lor", DLCOLL_LOR}, {"lxor", DLCOLL_LXOR}, {"premul_sum", PERF_PREMUL},
    {"user", PERF_USER}};

static const char *name_of(const struct perf_name *names, int n, int value)
{
    for (int i = 0; i < n; i++) {
        if (names[i].value == value)
            return names[i].name;
    }
    return "none";
}

const char *perf_type_name(int type)
{
    return name_of(perf_types, PERF_TYPES, type);
}

const char *perf_reduction_name(int reduction)
{
    return name_of(perf_reductions, PERF_REDUCTIONS, reduction);
}

size_t perf_type_size(int type)
{
    switch (type) {
    case DLCOLL_I64:
    case DLCOLL_U64:
    case DLCOLL_F64:
        return 8;
    case DLCOLL_I32:
    case DLCOLL_U32:
    case DLCOLL_F32:
        return 4;
    case DLCOLL_I16:
    case DLCOLL_U16:
    case DLCOLL_F16:
    case DLCOLL_BF16:
        return 2;
    default:
        return 1;
    }
}

/* --------------------------------------------------------------------------------------- floats */

struct format {
    int exp, man; /* bits */
    bool has_inf;
};

static bool float_format(int type, struct format *f)
{
    switch (type) {
    case DLCOLL_F16:
        *f = (struct format){5, 10, true};
        return true;
    case DLCOLL_BF16:
        *f = (struct format){8, 7, true};
        return true;
    case DLCOLL_F8E4M3:
        *f = (struct format){4, 3, false};
        return true;
    case DLCOLL_F8E5M2:
        *f = (struct format){5, 2, true};
        return true;
    case DLCOLL_F32:
        *f = (struct format){8, 23, true};
        return true;
    case DLCOLL_F64:
        *f = (struct format){11, 52, true};
        return true;
    default:
        return false;
    }
}

/* x is a number that the format holds exactly, and no subnormal. */
static uint64_t float_bits(struct format f, double x)
{
    int exponent;
    double m = frexp(fabs(x), &exponent); /* [0.5, 1) */
    if (x == 0)
        return 0;
    uint64_t man = (uint64_t)ldexp(m, f.man + 1) - (1ull << f.man);
    uint64_t exp = (uint64_t)(exponent - 1 + (1 << (f.exp - 1)) - 1);
    return (uint64_t)(x < 0) << (f.exp + f.man) | exp << f.man | man;
}

static double float_value(struct format f, uint64_t bits)
{
    uint64_t man = bits & ((1ull << f.man) - 1), exp = bits >> f.man & ((1ull << f.exp) - 1);
    int bias = (1 << (f.exp - 1)) - 1;
    double sign = bits >> (f.exp + f.man) & 1 ? -1 : 1;
    if (exp == (1ull << f.exp) - 1 && (f.has_inf || man == (1ull << f.man) - 1))
        return f.has_inf && !man ? sign * HUGE_VAL : nan("");
    if (!exp)
        return sign * ldexp((double)man, 1 - bias - f.man);
    return sign * ldexp((double)(man + (1ull << f.man)), (int)exp - bias - f.man);
}

/* --------------------------------------------------------------------------------------- values */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t hash(const struct perf_data *d, int rank, size_t i)
{
    return mix(d->seed + (uint64_t)rank * 0x9e3779b97f4a7c15u + mix(i + 1));
}

static double factor_of(int type, int rank)
{
    struct format f;
    return float_format(type, &f) ? 1 + rank % 2 : 3 + rank % 2;
}

/* One of every q ranks contributes to an element, other ranks to its neighbours. */
static bool takes_part(int rank, size_t i, int q)
{
    return ((size_t)rank + i) % (size_t)q == 0;
}

static double float_number(const struct perf_data *d, struct format f, int rank, size_t i)
{
    uint64_t h = hash(d, rank, i);
    int bits = f.man + 1 < 20 ? f.man + 1 : 20, most = 1 << bits;
    if (d->reduction == PERF_PREMUL)
        most /= 2;
    switch (d->reduction) {
    case DLCOLL_PROD: {
        static const double factors[] = {2, 0.5, -2, 1};
        int sixth = (d->ranks + 5) / 6; /* 2^6 and 2^-6 are in all types */
        return takes_part(rank, i, sixth) ? factors[h & 3] : h & 1 ? 1 : -1;
    }
    case DLCOLL_MIN:
    case DLCOLL_MAX:
        return (double)(h % 17) - 8;
    default:
        if (most >= d->ranks)
            return (double)(h % (uint64_t)(most / d->ranks + 1));
        return takes_part(rank, i, (d->ranks + most - 1) / most);
    }
}

static bool is_logical(int reduction)
{
    return reduction == DLCOLL_LAND || reduction == DLCOLL_LOR || reduction == DLCOLL_LXOR;
}

/* The bits of an element. */
static uint64_t value(const struct perf_data *d, int rank, size_t i)
{
    struct format f;
    uint64_t h = hash(d, rank, i);
    bool as_bits = d->reduction == PERF_MOVE || d->reduction == PERF_USER;
    if (!as_bits && float_format(d->type, &f))
        return float_bits(f, float_number(d, f, rank, i));
    if (!as_bits && d->type == DLCOLL_BOOL)
        return h & 1 ? (h >> 8 & 0xff) | 1 : 0;
    if (is_logical(d->reduction) && (h & 7) == 0)
        return 0;
    return h;
}

void perf_fill(const struct perf_data *d, void *buf, int rank, size_t first, size_t count)
{
    size_t size = perf_type_size(d->type);
    for (size_t i = 0; i < count; i++) {
        uint64_t v = value(d, rank, first + i);
        memcpy((char *)buf + i * size, &v, size);
    }
}

void perf_factor(int type, int rank, void *out)
{
    struct format f;
    double x = factor_of(type, rank);
    uint64_t bits = float_format(type, &f) ? float_bits(f, x) : (uint64_t)x;
    memcpy(out, &bits, perf_type_size(type));
}

void perf_user(void *acc, const void *in, size_t count, dlcoll_dtype type, void *ctx)
{
    size_t len = count * perf_type_size(type);
    (void)ctx;
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)acc)[i] ^= ((const uint8_t *)in)[i];
}

/* -------------------------------------------------------------------------------------- looking */

static uint64_t element(const void *buf, size_t i, size_t size)
{
    uint64_t v = 0;
    memcpy(&v, (const char *)buf + i * size, size);
    return v;
}

static int64_t sign_extended(uint64_t x, size_t size)
{
    unsigned shift = 64 - 8 * (unsigned)size;
    return (int64_t)(x << shift) >> shift;
}

static bool is_signed(int type)
{
    return type == DLCOLL_I8 || type == DLCOLL_I16 || type == DLCOLL_I32 || type == DLCOLL_I64;
}

static uint64_t combine_bits(const struct perf_data *d, uint64_t a, uint64_t b, size_t size)
{
    bool less = is_signed(d->type) ? sign_extended(a, size) < sign_extended(b, size) : a < b;
    switch (d->reduction) {
    case DLCOLL_PROD:
        return a * b;
    case DLCOLL_MIN:
        return less ? a : b;
    case DLCOLL_MAX:
        return less ? b : a;
    case DLCOLL_BAND:
        return a & b;
    case DLCOLL_BOR:
        return a | b;
    case DLCOLL_BXOR:
    case PERF_USER:
        return a ^ b;
    case DLCOLL_LAND:
        return a && b;
    case DLCOLL_LOR:
        return a || b;
    case DLCOLL_LXOR:
        return !a != !b;
    default:
        return a + b;
    }
}

static int reduced_ranks(const struct perf_data *d)
{
    return d->first ? d->first : d->ranks;
}

/* Integers and bits. */
static uint64_t reduced_bits(const struct perf_data *d, size_t i, size_t size)
{
    uint64_t mask = ~0ull >> (64 - 8 * size), sum = 0;
    for (int r = 0; r < reduced_ranks(d); r++) {
        uint64_t v = value(d, r, i) & mask;
        if (d->reduction == PERF_PREMUL)
            v *= (uint64_t)factor_of(d->type, r);
        sum = r ? combine_bits(d, sum, v, size) & mask : v & mask;
    }
    if (d->reduction == DLCOLL_AVG)
        sum = is_signed(d->type) ? (uint64_t)(sign_extended(sum, size) / reduced_ranks(d)) & mask
                                 : sum / (uint64_t)reduced_ranks(d);
    return is_logical(d->reduction) ? sum != 0 : sum; /* of one rank, too */
}

static uint64_t reduced_bool(const struct perf_data *d, size_t i)
{
    int trues = 0;
    for (int r = 0; r < reduced_ranks(d); r++)
        trues += (value(d, r, i) & 0xff) != 0;
    switch (d->reduction) {
    case DLCOLL_PROD:
    case DLCOLL_MIN:
    case DLCOLL_BAND:
    case DLCOLL_LAND:
        return trues == reduced_ranks(d);
    case DLCOLL_BXOR:
    case DLCOLL_LXOR:
        return trues & 1;
    default:
        return trues > 0;
    }
}

static double reduced_float(const struct perf_data *d, struct format f, size_t i)
{
    double x = 0;
    for (int r = 0; r < reduced_ranks(d); r++) {
        double v = float_number(d, f, r, i);
        if (d->reduction == PERF_PREMUL)
            v *= factor_of(d->type, r);
        if (r == 0)
            x = v;
        else if (d->reduction == DLCOLL_PROD)
            x *= v;
        else if (d->reduction == DLCOLL_MIN)
            x = v < x ? v : x;
        else if (d->reduction == DLCOLL_MAX)
            x = v > x ? v : x;
        else
            x += v;
    }
    return x;
}

static bool float_right(const struct perf_data *d, struct format f, uint64_t got, size_t i)
{
    double x = reduced_float(d, f, i), y = float_value(f, got);
    if (d->reduction != DLCOLL_AVG)
        return x == y;
    x /= reduced_ranks(d); /* rounded once: half a unit of the last place */
    return fabs(y - x) <= fabs(x) * ldexp(1, -f.man - 1);
}

size_t perf_wrong(const struct perf_data *d, const void *buf, int rank, size_t first, size_t count)
{
    size_t wrong = 0, size = perf_type_size(d->type);
    uint64_t mask = ~0ull >> (64 - 8 * size);
    for (size_t i = 0; i < count; i++)
        wrong += element(buf, i, size) != (value(d, rank, first + i) & mask);
    return wrong;
}

size_t perf_wrong_reduced(const struct perf_data *d, const void *buf, size_t first, size_t count)
{
    struct format f;
    size_t wrong = 0, size = perf_type_size(d->type);
    bool as_float = d->reduction != PERF_USER && float_format(d->type, &f);
    bool as_bool = d->reduction != PERF_USER && d->type == DLCOLL_BOOL;
    for (size_t i = 0; i < count; i++) {
        uint64_t got = element(buf, i, size);
        if (reduced_ranks(d) == 1 && as_bool)
            wrong += !got != !reduced_bool(d, first + i);
        else if (as_float)
            wrong += !float_right(d, f, got, first + i);
        else if (as_bool)
            wrong += got != reduced_bool(d, first + i);
        else
            wrong += got != reduced_bits(d, first + i, size);
    }
    return wrong;
}
