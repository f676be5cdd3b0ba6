/* reduce_vector.h: the kernels, for a vector width. Included once by each of reduce_portable.c,
 * reduce_avx2.c and reduce_avx512.c, which define
 *
 *     TABLE   the name of the struct reduce_kernels
 *     NAME    what people call it
 *     WIDTH   of a vector, in bytes
 *
 * and are compiled for that processor. Every element is computed by the same steps whatever the
 * width, so all widths give the same bits; where an instruction does a step (F16C's conversions),
 * it does the same as the formula here.
 *
 * A kernel is a loop (two, many, many_stream, divide) and three functions between vectors, all
 * inlined into it: `widen` takes a vector of elements apart into PARTS vectors in which numbers are
 * computed, `combine` computes, `narrow` puts together again. All vectors travel as 32-bit elements
 * of raw bits. Neither the order of the elements in the parts nor that of the bytes matters, as
 * each element is computed for itself. */
#include <string.h>

#include "collectives/reduce/reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE             static inline __attribute__((always_inline))
#define VECTOR(type, name) typedef type name __attribute__((vector_size(WIDTH), may_alias))

VECTOR(uint8_t, u8);
VECTOR(uint16_t, u16);
VECTOR(uint32_t, u32);
VECTOR(uint64_t, u64);
VECTOR(int8_t, i8);
VECTOR(int16_t, i16);
VECTOR(int32_t, i32);
VECTOR(int64_t, i64);
VECTOR(float, f32);
VECTOR(double, f64);
typedef float f32_one;
typedef double f64_one;
typedef uint32_t any __attribute__((vector_size(WIDTH), aligned(1), may_alias));

#if defined(__SANITIZE_ADDRESS__)
#define UNROLLED /* with a sanitizer's checks in them, GCC cannot, and warns */
#elif defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 4")
#endif

enum { MOST_PARTS = 4 };
typedef struct {
    u32 v[MOST_PARTS];
} parts;

typedef parts widen_fn(const void *p);
typedef u32 narrow_fn(parts p);
typedef u32 combine_fn(u32 a, u32 b);

/* ------------------------------------------------------------------------------- load and store */

INLINE u32 load(const void *p)
{
    return (u32) * (const any *)p;
}

INLINE void store(void *p, u32 x)
{
    *(any *)p = (any)x;
}

/* p is aligned to WIDTH. */
INLINE void stream(void *p, u32 x)
{
#if WIDTH == 64
    _mm512_stream_si512((__m512i *)p, (__m512i)x);
#elif WIDTH == 32
    _mm256_stream_si256((__m256i *)p, (__m256i)x);
#elif defined(__x86_64__)
    _mm_stream_si128((__m128i *)p, (__m128i)x);
#else
    store(p, x);
#endif
}

INLINE void stream_end(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* The first n bytes of a vector, 1 <= n <= WIDTH; the others are 0. */
#if WIDTH == 64
INLINE u32 load_some(const void *p, size_t n)
{
    return (u32)_mm512_maskz_loadu_epi8(~UINT64_C(0) >> (WIDTH - n), p);
}

INLINE void store_some(void *p, u32 x, size_t n)
{
    _mm512_mask_storeu_epi8(p, ~UINT64_C(0) >> (WIDTH - n), (__m512i)x);
}
#else
/* n < 32, in powers of two, each a plain move. */
static __attribute__((noinline)) void copy_some(uint8_t *to, const uint8_t *from, size_t n)
{
#define MOVE(size)                    \
    if (n & (size)) {                 \
        memcpy(to, from, (size));     \
        to += (size), from += (size); \
    }
    MOVE(16)
    MOVE(8)
    MOVE(4)
    MOVE(2)
    MOVE(1)
#undef MOVE
}

INLINE u32 load_some(const void *p, size_t n)
{
    u32 x = {0};
    if (n == WIDTH)
        return load(p);
    copy_some((uint8_t *)&x, p, n);
    return x;
}

INLINE void store_some(void *p, u32 x, size_t n)
{
    if (n == WIDTH)
        store(p, x);
    else
        copy_some(p, (const uint8_t *)&x, n);
}
#endif

/* ---------------------------------------------------------------------------------------- loops */

INLINE parts widen_some(widen_fn *widen, const void *p, size_t n)
{
    u32 x = load_some(p, n);
    return widen(&x);
}

/* UNROLL vectors of accumulators are what fits the registers. */
#define UNROLL (MOST_PARTS / PARTS)

#define COMBINE_PARTS(to, x)                            \
    do {                                                \
        parts x_ = (x);                                 \
        UNROLLED                                        \
        for (int k_ = 0; k_ < PARTS; k_++)              \
            (to).v[k_] = combine((to).v[k_], x_.v[k_]); \
    } while (0)

INLINE void run_two(uint8_t *dst, const uint8_t *a, const uint8_t *b, size_t len, const int PARTS,
                    widen_fn *widen, combine_fn *combine, narrow_fn *narrow)
{
    size_t i = 0;
    for (; UNROLL > 1 && len - i >= (size_t)(UNROLL * WIDTH); i += (size_t)(UNROLL * WIDTH)) {
        parts acc[MOST_PARTS];
        UNROLLED
        for (int j = 0; j < UNROLL; j++) {
            acc[j] = widen(a + i + j * WIDTH);
            COMBINE_PARTS(acc[j], widen(b + i + j * WIDTH));
        }
        UNROLLED
        for (int j = 0; j < UNROLL; j++)
            store(dst + i + j * WIDTH, narrow(acc[j]));
    }
    for (; i < len; i += WIDTH) {
        size_t n = len - i < WIDTH ? len - i : WIDTH;
        parts acc = widen_some(widen, a + i, n);
        COMBINE_PARTS(acc, widen_some(widen, b + i, n));
        store_some(dst + i, narrow(acc), n);
    }
}

/* The vector from byte i on. */
INLINE void run_many(uint8_t *dst, const uint8_t *const *src, int nsrc, size_t i, size_t len,
                     const bool past_caches, const int PARTS, widen_fn *widen, combine_fn *combine,
                     narrow_fn *narrow)
{
    for (; UNROLL > 1 && len - i >= (size_t)(UNROLL * WIDTH); i += (size_t)(UNROLL * WIDTH)) {
        parts acc[MOST_PARTS];
        UNROLLED
        for (int j = 0; j < UNROLL; j++)
            acc[j] = widen(src[0] + i + j * WIDTH);
        for (int s = 1; s < nsrc; s++)
            UNROLLED
        for (int j = 0; j < UNROLL; j++)
            COMBINE_PARTS(acc[j], widen(src[s] + i + j * WIDTH));
        UNROLLED
        for (int j = 0; j < UNROLL; j++) {
            if (past_caches)
                stream(dst + i + j * WIDTH, narrow(acc[j]));
            else
                store(dst + i + j * WIDTH, narrow(acc[j]));
        }
    }
    for (; i < len; i += WIDTH) {
        size_t n = len - i < WIDTH ? len - i : WIDTH;
        parts acc = widen_some(widen, src[0] + i, n);
        for (int s = 1; s < nsrc; s++)
            COMBINE_PARTS(acc, widen_some(widen, src[s] + i, n));
        if (past_caches && n == WIDTH)
            stream(dst + i, narrow(acc));
        else
            store_some(dst + i, narrow(acc), n);
    }
}

/* By a power of two it is a product, which is the same number and quicker. */
INLINE void run_divide(uint8_t *dst, const uint8_t *src, size_t len, const int PARTS,
                       widen_fn *widen, combine_fn *combine, narrow_fn *narrow, u32 by)
{
    for (size_t i = 0; i < len; i += WIDTH) {
        size_t n = len - i < WIDTH ? len - i : WIDTH;
        parts x = widen_some(widen, src + i, n);
        UNROLLED
        for (int k = 0; k < PARTS; k++)
            x.v[k] = combine(x.v[k], by);
        store_some(dst + i, narrow(x), n);
    }
}

/* ---------------------------------------------------------------------------- computing numbers */

INLINE u32 pick(u32 mask, u32 yes, u32 no)
{
    return (yes & mask) | (no & ~mask);
}

#define ARITHMETIC(name, op, type)        \
    INLINE u32 name(u32 a, u32 b)         \
    {                                     \
        return (u32)((type)a op(type) b); \
    }
ARITHMETIC(sum_u8, +, u8)
ARITHMETIC(sum_u16, +, u16)
ARITHMETIC(sum_u32, +, u32)
ARITHMETIC(sum_u64, +, u64)
ARITHMETIC(prod_u8, *, u8)
ARITHMETIC(prod_u16, *, u16)
ARITHMETIC(prod_u32, *, u32)
ARITHMETIC(prod_u64, *, u64)
ARITHMETIC(quotient_f32, /, f32)
ARITHMETIC(quotient_f64, /, f64)
ARITHMETIC(both, &, u32)
ARITHMETIC(either, |, u32)
ARITHMETIC(differ, ^, u32)

/* If both operands are NaNs, these processors return the left one, payload included. The assembler
 * keeps the compiler from swapping the operands. */
#if defined(__x86_64__)
#if defined(__AVX__)
#define COMPUTE(instruction, x, a, b) \
    __asm__("v" instruction " %2, %1, %0" : "=v"(x) : "v"(a), "v"(b))
#else
#define COMPUTE(instruction, x, a, b) __asm__(instruction " %2, %0" : "=x"(x) : "0"(a), "x"(b))
#endif
#define FLOAT_ARITHMETIC(name, op, type, instruction) \
    INLINE u32 name(u32 a, u32 b)                     \
    {                                                 \
        type x;                                       \
        COMPUTE(instruction, x, (type)a, (type)b);    \
        return (u32)x;                                \
    }
#else
#define FLOAT_ARITHMETIC(name, op, type, instruction) ARITHMETIC(name, op, type)
#endif
FLOAT_ARITHMETIC(sum_f32, +, f32, "addps")
FLOAT_ARITHMETIC(sum_f64, +, f64, "addpd")
FLOAT_ARITHMETIC(prod_f32, *, f32, "mulps")
FLOAT_ARITHMETIC(prod_f64, *, f64, "mulpd")

#define EXTREMES(type)                               \
    INLINE u32 max_##type(u32 a, u32 b)              \
    {                                                \
        return pick((u32)((type)a > (type)b), a, b); \
    }                                                \
    INLINE u32 min_##type(u32 a, u32 b)              \
    {                                                \
        return pick((u32)((type)a < (type)b), a, b); \
    }
EXTREMES(u8)
EXTREMES(u16)
EXTREMES(u32)
EXTREMES(u64)
EXTREMES(i8)
EXTREMES(i16)
EXTREMES(i32)
EXTREMES(i64)

/* A NaN is kept on both sides: a comparison with it is false, and only it differs from itself. */
#define FLOAT_EXTREMES(type)                                                     \
    INLINE u32 max_##type(u32 a, u32 b)                                          \
    {                                                                            \
        return pick((u32)((type)a > (type)b) | (u32)((type)a != (type)a), a, b); \
    }                                                                            \
    INLINE u32 min_##type(u32 a, u32 b)                                          \
    {                                                                            \
        return pick((u32)((type)a < (type)b) | (u32)((type)a != (type)a), a, b); \
    }
FLOAT_EXTREMES(f32)
FLOAT_EXTREMES(f64)

/* ----------------------------------------------------------------------------- widen and narrow */

INLINE parts widen_same(const void *p)
{
    return (parts){{load(p)}};
}

INLINE u32 narrow_same(parts p)
{
    return p.v[0];
}

#define TRUTH(type)                                                \
    INLINE parts widen_truth_##type(const void *p)                 \
    {                                                              \
        return (parts){{(u32)(((type)load(p) != (type){0}) & 1)}}; \
    }
TRUTH(u8)
TRUTH(u16)
TRUTH(u32)
TRUTH(u64)

/* bf16 is the upper half of an f32. */
INLINE parts widen_bf16(const void *p)
{
    u32 x = load(p);
    return (parts){{x << 16, x & 0xffff0000}};
}

/* A NaN comes out as it is: one that was computed from bf16 only has zeros in its lower half, as
 * have those that processors make themselves, and so nothing is carried into the upper half. */
INLINE u32 round_bf16(u32 x)
{
    return x + 0x7fff + ((x >> 16) & 1);
}

INLINE u32 narrow_bf16(parts p)
{
    return (round_bf16(p.v[0]) >> 16) | (round_bf16(p.v[1]) & 0xffff0000);
}

/* The other small floats: `bits` in all, `man` of them mantissa, IEEE's layout (f8e4m3 without
 * infinities: all ones are its only NaN). An f32 with the same exponent and mantissa bits differs
 * by the bias only; subnormals are had by an addition that makes them normal numbers, which works
 * in every rounding and flushing mode. */
struct small {
    int bits, man, bias;
    bool has_inf;
};
#define F16    ((struct small){16, 10, 15, true})
#define F8E5M2 ((struct small){8, 2, 15, true})
#define F8E4M3 ((struct small){8, 3, 7, false})

/* Returns a mask; both operands are below 2^31. */
#define BELOW(x, limit) ((u32)((i32)(x) < (int32_t)(limit)))

/* x: the bits, above them zeros. */
INLINE u32 from_small(u32 x, const struct small s)
{
    uint32_t magnitude = (1u << (s.bits - 1)) - 1, rebias = (uint32_t)(127 - s.bias) << 23;
    uint32_t most = magnitude >> s.man << 23; /* the exponent of infinity and NaN */
    u32 sign = (x >> (s.bits - 1)) << 31, o = (x & magnitude) << (23 - s.man);
    u32 least = (u32){0} + rebias + (1u << 23);
    u32 subnormal = (u32)((f32)(o + least) - (f32)least);
    u32 y = pick(BELOW(o, 1u << 23), subnormal, o + rebias);
    if (s.has_inf)
        y = pick(BELOW(o, most), y, o | 0x7f800000 | (~BELOW(o, most + 1) & 0x400000));
    else
        y = pick(BELOW(o, magnitude << (23 - s.man)), y, (u32){0} + 0x7fc00000);
    return y | sign;
}

/* The bits, above them zeros. */
INLINE u32 to_small(u32 x, const struct small s)
{
    int shift = 23 - s.man;
    uint32_t magnitude = (1u << (s.bits - 1)) - 1, rebias = (uint32_t)(127 - s.bias) << 23;
    uint32_t magic = (uint32_t)(127 - s.bias + shift + 1) << 23;
    u32 sign = (x >> 31) << (s.bits - 1), a = x & 0x7fffffff;
    u32 normal = (a - rebias + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1)) >> shift;
    u32 subnormal = (u32)((f32)a + (f32)((u32){0} + magic)) - magic;
    u32 y = pick(BELOW(a, rebias + (1u << 23)), subnormal, normal);
    if (s.has_inf) {
        uint32_t inf = magnitude >> s.man << s.man;
        u32 nan = ((a >> shift) & ((1u << s.man) - 1)) | (1u << (s.man - 1));
        u32 above = pick(BELOW(a, 0x7f800001), (u32){0}, nan) | inf;
        y = pick(BELOW(a, (uint32_t)(127 + s.bias + 1) << 23), y, above);
    } else {
        y = pick(BELOW(a, 0x43f00000), y, (u32){0} + magnitude); /* 480 */
    }
    return y | sign;
}

#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* Convert as from_small(x, F16) and to_small(x, F16) do. The small floats of a byte go by way of
 * f16, which holds all of their values. */
#if WIDTH == 64
INLINE u32 from_f16(__m256i h)
{
    return (u32)_mm512_cvtph_ps(h);
}

INLINE parts widen_f16(const void *p)
{
    const __m256i *h = p;
    return (parts){{from_f16(_mm256_loadu_si256(h)), from_f16(_mm256_loadu_si256(h + 1))}};
}

INLINE u32 narrow_f16(parts p)
{
    __m256i lo = _mm512_cvtps_ph((__m512)p.v[0], NEAREST);
    __m256i hi = _mm512_cvtps_ph((__m512)p.v[1], NEAREST);
    return (u32)_mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* Joins the 32-bit elements of two vectors as 16-bit elements. */
INLINE u16 pack(u32 lo, u32 hi)
{
    return (u16)_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16((__m512i)lo)),
                                   _mm512_cvtepi32_epi16((__m512i)hi), 1);
}
#elif WIDTH == 32
INLINE u32 from_f16(__m128i h)
{
    return (u32)_mm256_cvtph_ps(h);
}

INLINE parts widen_f16(const void *p)
{
    const __m128i *h = p;
    return (parts){{from_f16(_mm_loadu_si128(h)), from_f16(_mm_loadu_si128(h + 1))}};
}

INLINE u32 narrow_f16(parts p)
{
    __m128i lo = _mm256_cvtps_ph((__m256)p.v[0], NEAREST);
    __m128i hi = _mm256_cvtps_ph((__m256)p.v[1], NEAREST);
    return (u32)_mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}

INLINE u16 pack(u32 lo, u32 hi)
{
    return (u16)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)lo, (__m256i)hi), 0xd8);
}
#else
INLINE parts widen_f16(const void *p)
{
    u32 x = load(p);
    return (parts){{from_small(x & 0xffff, F16), from_small(x >> 16, F16)}};
}

INLINE u32 narrow_f16(parts p)
{
    return to_small(p.v[0], F16) | to_small(p.v[1], F16) << 16;
}
#endif

#if WIDTH == 16
#define FROM_BYTES(x, format)                                                   \
    (parts)                                                                     \
    {                                                                           \
        {                                                                       \
            from_small(x & 0xff, format), from_small(x >> 8 & 0xff, format),    \
                from_small(x >> 16 & 0xff, format), from_small(x >> 24, format) \
        }                                                                       \
    }
INLINE parts widen_f8e4m3(const void *p)
{
    u32 x = load(p);
    return FROM_BYTES(x, F8E4M3);
}

INLINE parts widen_f8e5m2(const void *p)
{
    u32 x = load(p);
    return FROM_BYTES(x, F8E5M2);
}

INLINE u32 to_bytes(parts p, struct small s)
{
    return to_small(p.v[0], s) | to_small(p.v[1], s) << 8 | to_small(p.v[2], s) << 16 |
           to_small(p.v[3], s) << 24;
}
#else
/* f16 values in 16-bit elements: the even bytes first, then the odd ones. */
INLINE parts from_halves(u16 even, u16 odd)
{
    parts a = widen_f16(&even), b = widen_f16(&odd);
    return (parts){{a.v[0], a.v[1], b.v[0], b.v[1]}};
}

INLINE u32 to_bytes(parts p, struct small s)
{
    u16 even = pack(to_small(p.v[0], s), to_small(p.v[1], s));
    u16 odd = pack(to_small(p.v[2], s), to_small(p.v[3], s));
    return (u32)(even | odd << 8);
}

INLINE parts widen_f8e5m2(const void *p)
{
    u16 x = (u16)load(p);
    return from_halves(x << 8, x & 0xff00);
}

/* A sign, a zero, and the other bits: the f16 that is 2^8 times smaller. x: a byte in the upper
 * half of each element. */
INLINE u16 half_of_f8e4m3(u16 x)
{
    u16 nan = (u16)((x & 0x7f00) == 0x7f00);
    return ((u16)((i16)x >> 1) & 0xbf80) | (nan & 0x7e00);
}

INLINE parts widen_f8e4m3(const void *p)
{
    u16 x = (u16)load(p);
    parts y = from_halves(half_of_f8e4m3(x << 8), half_of_f8e4m3(x & 0xff00));
    UNROLLED
    for (int k = 0; k < MOST_PARTS; k++)
        y.v[k] = (u32)((f32)y.v[k] * 256);
    return y;
}
#endif

INLINE u32 narrow_f8e4m3(parts p)
{
    return to_bytes(p, F8E4M3);
}

INLINE u32 narrow_f8e5m2(parts p)
{
    return to_bytes(p, F8E5M2);
}

/* -------------------------------------------------------------------------------------- kernels */

/* The copying kernel for elements of `size` bytes. */
#define KERNEL(name, size, nparts, widen, combine, narrow)                                       \
    static void name##_two(void *dst, const void *a, const void *b, size_t count)                \
    {                                                                                            \
        run_two(dst, a, b, count *(size), nparts, widen, combine, narrow);                       \
    }                                                                                            \
    static void name##_many(void *dst, const void *const *src, int nsrc, size_t count)           \
    {                                                                                            \
        run_many(dst, (const uint8_t *const *)src, nsrc, 0, count *(size), false, nparts, widen, \
                 combine, narrow);                                                               \
    }

/* Sums may also be stored past the caches. */
#define SUM_KERNEL(name, size, nparts, widen, combine, narrow)                                    \
    KERNEL(name, size, nparts, widen, combine, narrow)                                            \
    static void name##_many_stream(void *dst, const void *const *src, int nsrc, size_t count)     \
    {                                                                                             \
        size_t head = -(uintptr_t)dst % WIDTH, len = count * (size);                              \
        if (head % (size) || len < head) {                                                        \
            name##_many(dst, src, nsrc, count);                                                   \
            return;                                                                               \
        }                                                                                         \
        name##_many(dst, src, nsrc, head / (size));                                               \
        run_many(dst, (const uint8_t *const *)src, nsrc, head, len, true, nparts, widen, combine, \
                 narrow);                                                                         \
        stream_end();                                                                             \
    }

#define INTEGER_KERNELS(type, size)                                      \
    SUM_KERNEL(type##_sum, size, 1, widen_same, sum_##type, narrow_same) \
    KERNEL(type##_prod, size, 1, widen_same, prod_##type, narrow_same)   \
    KERNEL(type##_band, size, 1, widen_same, both, narrow_same)          \
    KERNEL(type##_bor, size, 1, widen_same, either, narrow_same)         \
    KERNEL(type##_bxor, size, 1, widen_same, differ, narrow_same)        \
    KERNEL(type##_land, size, 1, widen_truth_##type, both, narrow_same)  \
    KERNEL(type##_lor, size, 1, widen_truth_##type, either, narrow_same) \
    KERNEL(type##_lxor, size, 1, widen_truth_##type, differ, narrow_same)
#define EXTREME_KERNELS(type, size)                                  \
    KERNEL(type##_max, size, 1, widen_same, max_##type, narrow_same) \
    KERNEL(type##_min, size, 1, widen_same, min_##type, narrow_same)

INTEGER_KERNELS(u8, 1)
INTEGER_KERNELS(u16, 2)
INTEGER_KERNELS(u32, 4)
INTEGER_KERNELS(u64, 8)
EXTREME_KERNELS(u8, 1)
EXTREME_KERNELS(u16, 2)
EXTREME_KERNELS(u32, 4)
EXTREME_KERNELS(u64, 8)
EXTREME_KERNELS(i8, 1)
EXTREME_KERNELS(i16, 2)
EXTREME_KERNELS(i32, 4)
EXTREME_KERNELS(i64, 8)

#define DIVIDE(type, size, nparts, number, widen, narrow)                                          \
    static void type##_divide(void *dst, const void *src, size_t count, int by)                    \
    {                                                                                              \
        number n = (number){0} + (number##_one)by;                                                 \
        if (by & (by - 1))                                                                         \
            run_divide(dst, src, count *(size), nparts, widen, quotient_##number, narrow, (u32)n); \
        else                                                                                       \
            run_divide(dst, src, count *(size), nparts, widen, prod_##number, narrow,              \
                       (u32)(1 / n));                                                              \
    }
#define FLOAT_KERNELS(type, size, nparts, number, widen, narrow)      \
    SUM_KERNEL(type##_sum, size, nparts, widen, sum_##number, narrow) \
    KERNEL(type##_prod, size, nparts, widen, prod_##number, narrow)   \
    KERNEL(type##_max, size, nparts, widen, max_##number, narrow)     \
    KERNEL(type##_min, size, nparts, widen, min_##number, narrow)     \
    DIVIDE(type, size, nparts, number, widen, narrow)

FLOAT_KERNELS(f16, 2, 2, f32, widen_f16, narrow_f16)
FLOAT_KERNELS(bf16, 2, 2, f32, widen_bf16, narrow_bf16)
FLOAT_KERNELS(f8e4m3, 1, 4, f32, widen_f8e4m3, narrow_f8e4m3)
FLOAT_KERNELS(f8e5m2, 1, 4, f32, widen_f8e5m2, narrow_f8e5m2)
FLOAT_KERNELS(f32, 4, 1, f32, widen_same, narrow_same)
FLOAT_KERNELS(f64, 8, 1, f64, widen_same, narrow_same)

/* ------------------------------------------------------------------------------------ the table */

#define KERNELS(name)                        \
    {                                        \
        name##_two, name##_many, name##_many \
    }
#define SUMS(name)                                  \
    {                                               \
        name##_two, name##_many, name##_many_stream \
    }

/* The kernels in the order of reduction_index(). Signed and unsigned integers differ in max and min
 * only. avg is a sum at first. */
#define INTEGER_ROW(u, s)                                                                    \
    {                                                                                        \
        SUMS(u##_sum), KERNELS(u##_prod), KERNELS(s##_max), KERNELS(s##_min), SUMS(u##_sum), \
            KERNELS(u##_band), KERNELS(u##_bor), KERNELS(u##_bxor), KERNELS(u##_land),       \
            KERNELS(u##_lor), KERNELS(u##_lxor)                                              \
    }
#define FLOAT_ROW(f)                                                                        \
    {                                                                                       \
        SUMS(f##_sum), KERNELS(f##_prod), KERNELS(f##_max), KERNELS(f##_min), SUMS(f##_sum) \
    }
#define BOOL_ROW                                                                                  \
    {                                                                                             \
        KERNELS(u8_lor), KERNELS(u8_land), KERNELS(u8_lor), KERNELS(u8_land), {NULL, NULL, NULL}, \
            KERNELS(u8_land), KERNELS(u8_lor), KERNELS(u8_lxor), KERNELS(u8_land),                \
            KERNELS(u8_lor), KERNELS(u8_lxor)                                                     \
    }

/* The tables in the order of dtype_index(). */
const struct reduce_kernels TABLE = {
    .name = NAME,
    .by = {INTEGER_ROW(u8, i8), INTEGER_ROW(u8, u8), INTEGER_ROW(u32, i32), INTEGER_ROW(u32, u32),
           INTEGER_ROW(u64, i64), INTEGER_ROW(u64, u64), FLOAT_ROW(f16), FLOAT_ROW(f32),
           FLOAT_ROW(f64), FLOAT_ROW(bf16), FLOAT_ROW(f8e4m3), FLOAT_ROW(f8e5m2),
           INTEGER_ROW(u16, i16), INTEGER_ROW(u16, u16), BOOL_ROW},
    .divide = {[DLCOLL_F16] = f16_divide,
               [DLCOLL_F32] = f32_divide,
               [DLCOLL_F64] = f64_divide,
               [DLCOLL_BF16] = bf16_divide,
               [DLCOLL_F8E4M3] = f8e4m3_divide,
               [DLCOLL_F8E5M2] = f8e5m2_divide},
};
