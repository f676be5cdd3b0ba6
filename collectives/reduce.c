/* reduce.c: the reduction kernels, one for each type and reduction.
 *
 * Elements are taken in blocks whose size the compiler knows, so that -O2 turns a block into vector
 * instructions. Buffers need no alignment. dst may be an operand itself, element for element, but
 * does not overlap one in another way: no element depends on another, which is what the pragma
 * says. */
#include "collectives/dtype.h"

enum { BLOCK = 16 };

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define INTEGER_sum(type, wide, a, b)  ((type)((wide)(a) + (wide)(b)))
#define INTEGER_prod(type, wide, a, b) ((type)((wide)(a) * (wide)(b)))
#define INTEGER_max(type, wide, a, b)  ((a) > (b) ? (a) : (b))
#define INTEGER_min(type, wide, a, b)  ((a) < (b) ? (a) : (b))

/* A NaN on either side is kept: a comparison with it is false, and only it differs from itself. */
#define FLOAT_sum(type, wide, a, b)  ((a) + (b))
#define FLOAT_prod(type, wide, a, b) ((a) * (b))
#define FLOAT_max(type, wide, a, b)  ((a) > (b) || (a) != (a) ? (a) : (b))
#define FLOAT_min(type, wide, a, b)  ((a) < (b) || (a) != (a) ? (a) : (b))

#define KERNEL(OP, op, name, type, wide, class)                                         \
    void reduce_##name##_##op(void *dst, const void *left, const void *right, size_t n) \
    {                                                                                   \
        typedef type any __attribute__((aligned(1), may_alias));                        \
        any *d = dst;                                                                   \
        const any *a = left, *b = right;                                                \
        for (; n >= BLOCK; n -= BLOCK, a += BLOCK, b += BLOCK, d += BLOCK) {            \
            INDEPENDENT                                                                 \
            for (int i = 0; i < BLOCK; i++)                                             \
                d[i] = class##_##op(type, wide, a[i], b[i]);                            \
        }                                                                               \
        for (size_t i = 0; i < n; i++)                                                  \
            d[i] = class##_##op(type, wide, a[i], b[i]);                                \
    }
#define KERNELS(NAME, name, type, wide, class) REDUCTIONS(KERNEL, name, type, wide, class)
DTYPES(KERNELS)
