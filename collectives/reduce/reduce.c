/* reduce.c: which kernels there are, and which one a reduction takes. */
#include "collectives/reduce/reduce.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ----------------------------------------------------------------------------------- processors */

#if defined(__x86_64__)
static uint64_t enabled_state(void) /* which registers the kernel saves */
{
    uint32_t lo, hi;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool cpu_has(enum reduce_cpu cpu)
{
    const uint32_t ymm = 0x6, zmm = 0xe6;
    const uint32_t leaf1_ecx = bit_OSXSAVE | bit_AVX | bit_F16C;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1_ecx) != leaf1_ecx)
        return false;
    uint64_t state = enabled_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2) || (state & ymm) != ymm)
        return false;
    return cpu == REDUCE_AVX2 || ((b & avx512) == avx512 && (state & zmm) == zmm);
}
#endif

const struct reduce_kernels *reduce_kernels(enum reduce_cpu cpu)
{
    if (cpu == REDUCE_PORTABLE)
        return &reduce_portable;
#if defined(__x86_64__)
    if ((cpu == REDUCE_AVX2 || cpu == REDUCE_AVX512) && cpu_has(cpu))
        return cpu == REDUCE_AVX2 ? &reduce_avx2 : &reduce_avx512;
#endif
    return NULL;
}

const struct reduce_kernels *reduce_kernels_best(void)
{
    const struct reduce_kernels *k = NULL;
    for (int cpu = REDUCE_CPUS - 1; !k; cpu--)
        k = reduce_kernels(cpu);
    return k;
}

static _Atomic(const struct reduce_kernels *) g_used;

int reduce_choose(struct err *e)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    _Static_assert(sizeof(names) / sizeof(names[0]) == REDUCE_CPUS, "every kind of CPU has a name");
    const struct reduce_kernels *k = NULL;
    const char *name = getenv("DLCOLL_CPU");
    if (!name || !*name) {
        k = reduce_kernels_best();
    } else {
        int cpu = 0;
        while (cpu < REDUCE_CPUS && strcmp(name, names[cpu]))
            cpu++;
        if (cpu == REDUCE_CPUS)
            return err_set(e, -EINVAL, "DLCOLL_CPU=%.40s: must be portable, avx2 or avx512", name);
        k = reduce_kernels(cpu);
        if (!k)
            return err_set(e, -EINVAL, "DLCOLL_CPU=%s: this processor does not have it", name);
    }
    atomic_store_explicit(&g_used, k, memory_order_release);
    return 0;
}

const struct reduce_kernels *reduce_kernels_used(void)
{
    const struct reduce_kernels *k = atomic_load_explicit(&g_used, memory_order_acquire);
    return k ? k : reduce_kernels_best();
}

/* ------------------------------------------------------------------------------------- division */

/* Integers are divided as floats with twice as many bits, which processors do faster. The quotient
 * is the same: its error is much less than 1 / by, the distance between fractions. For 64 bits
 * there is no such float. */
#define DIVIDE(type, number)                                                          \
    static void divide_##type(void *dst, const void *src, size_t count, int by)       \
    {                                                                                 \
        typedef type##_t any __attribute__((aligned(1), may_alias));                  \
        for (size_t i = 0; i < count; i++)                                            \
            ((any *)dst)[i] = (type##_t)((number)((const any *)src)[i] / (number)by); \
    }
DIVIDE(int8, float)
DIVIDE(uint8, float)
DIVIDE(int16, float)
DIVIDE(uint16, float)
DIVIDE(int32, double)
DIVIDE(uint32, double)
DIVIDE(int64, int64_t)
DIVIDE(uint64, uint64_t)

static reduce_divide_fn *integer_divide(int dtype)
{
    switch (dtype) {
    case DLCOLL_I8:
        return divide_int8;
    case DLCOLL_U8:
        return divide_uint8;
    case DLCOLL_I16:
        return divide_int16;
    case DLCOLL_U16:
        return divide_uint16;
    case DLCOLL_I32:
        return divide_int32;
    case DLCOLL_U32:
        return divide_uint32;
    case DLCOLL_I64:
        return divide_int64;
    case DLCOLL_U64:
        return divide_uint64;
    default:
        return NULL;
    }
}

/* -------------------------------------------------------------------------------------- finding */

static int reduce_take(const struct reduce_kernels *k, int op, struct reduce_info *r)
{
    int type = dtype_index(r->dtype_value), i = reduction_index(op);
    if (i < 0)
        return DLCOLL_EINVAL;
    if (r->dtype->class == DTYPE_PAIR)
        return reduce_pairs_find(op, r);
    if (r->dtype->class == DTYPE_BYTES)
        return DLCOLL_ENOSUP;
    r->kernel = &k->by[type][i];
    if (r->has_pre)
        r->prod = k->by[type][DLCOLL_PROD].two;
    return r->kernel->two ? 0 : DLCOLL_ENOSUP;
}

int reduce_find_in(const struct reduce_kernels *k, int dtype, int op, struct reduce_info *r)
{
    *r = (struct reduce_info){.dtype = dtype_get(dtype), .dtype_value = dtype};
    if (!r->dtype)
        return DLCOLL_EINVAL;
    int type = dtype_index(dtype);
    if (reduction_index(op) >= 0) {
        r->code = (uint8_t)op;
        r->has_post = op == DLCOLL_AVG;
        if (r->has_post && type >= 0) {
            reduce_divide_fn *floats = k->divide[type];
            r->divide = floats ? floats : integer_divide(dtype);
        }
        return reduce_take(k, op, r);
    }
    if (!reduce_user_find(op, r))
        return DLCOLL_EINVAL;
    return r->user ? 0 : reduce_take(k, DLCOLL_SUM, r);
}

int reduce_find(int dtype, int op, struct reduce_info *r)
{
    return reduce_find_in(reduce_kernels_used(), dtype, op, r);
}

/* --------------------------------------------------------------------------------------- premul */

void reduce_pre(const struct reduce_info *r, void *dst, const void *src, size_t count)
{
    enum { BLOCK_BYTES = 1024 };
    uint8_t factors[BLOCK_BYTES];
    size_t size = r->dtype->size, block = BLOCK_BYTES / size;
    size_t most = count < block ? count : block;
    for (size_t i = 0; i < most; i++)
        memcpy(factors + i * size, &r->scalar, size);
    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;
        r->prod((uint8_t *)dst + at * size, (const uint8_t *)src + at * size, factors, n);
    }
}

/* ---------------------------------------------------------------------------------------- alone */

void reduce_alone(const struct reduce_info *r, void *x, size_t count)
{
    bool logical = r->code == DLCOLL_LAND || r->code == DLCOLL_LOR || r->code == DLCOLL_LXOR;
    struct reduce_info lor;
    if (!r->user && (logical || r->dtype_value == DLCOLL_BOOL) &&
        reduce_find(r->dtype_value, DLCOLL_LOR, &lor) == 0)
        reduce_two(&lor, x, x, x, count);
}
