/* reduce_pairs.c: minloc and maxloc: of pairs of a value and an index the one with the least or the
 * greatest value and, of equal values, with the lowest index. A NaN comes before every number in
 * both, so that the reduction is associative and commutative. The winner is copied as it is. */
#include <string.h>

#include "collectives/reduce/reduce.h"

/* The left operand stays where both are equal. */
#define PAIR_ONE(name, type, compare)                                                              \
    static void name##_two(void *dst, const void *a, const void *b, size_t count)                  \
    {                                                                                              \
        const size_t size = sizeof(type);                                                          \
        for (size_t i = 0; i < count; i++) {                                                       \
            type x, y;                                                                             \
            memcpy(&x, (const uint8_t *)a + i * size, size);                                       \
            memcpy(&y, (const uint8_t *)b + i * size, size);                                       \
            bool x_nan = x.value != x.value, y_nan = y.value != y.value;                           \
            bool tie = x_nan || y_nan ? x_nan && y_nan : x.value == y.value;                       \
            bool right = tie ? y.index < x.index : y_nan || (!x_nan && y.value compare x.value);   \
            memmove((uint8_t *)dst + i * size, (const uint8_t *)(right ? b : a) + i * size, size); \
        }                                                                                          \
    }                                                                                              \
    static void name##_many(void *dst, const void *const *src, int nsrc, size_t count)             \
    {                                                                                              \
        pairs_many(name##_two, sizeof(type), dst, src, nsrc, count);                               \
    }

#define PAIR(name, value_type, index_type) \
    typedef struct {                       \
        value_type value;                  \
        index_type index;                  \
    } name;                                \
    PAIR_ONE(name##_min, name, <)          \
    PAIR_ONE(name##_max, name, >)

/* Reduces in blocks that stay in the cache; dst may be one of the sources. */
static void pairs_many(reduce_fn *two, size_t size, void *dst, const void *const *src, int nsrc,
                       size_t count)
{
    enum { BLOCK_BYTES = 1024 };
    uint8_t block[BLOCK_BYTES];
    size_t most = BLOCK_BYTES / size;
    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;
        memcpy(block, (const uint8_t *)src[0] + at * size, n * size);
        for (int s = 1; s < nsrc; s++)
            two(block, block, (const uint8_t *)src[s] + at * size, n);
        memcpy((uint8_t *)dst + at * size, block, n * size);
    }
}

PAIR(i16_i32, int16_t, int32_t)
PAIR(i32_i32, int32_t, int32_t)
PAIR(i64_i32, int64_t, int32_t)
PAIR(i64_i64, int64_t, int64_t)
PAIR(f32_i32, float, int32_t)
PAIR(f64_i32, double, int32_t)
PAIR(f64_i64, double, int64_t)

int reduce_pairs_find(int op, struct reduce_info *r)
{
    /* The kernels in the order of pair_index(). */
    static const struct reduce_kernel kernels[PAIRS][2] = {
#define ROW(name)                                            \
    {                                                        \
        {name##_min_two, name##_min_many, name##_min_many},  \
        {                                                    \
            name##_max_two, name##_max_many, name##_max_many \
        }                                                    \
    }
        ROW(i16_i32), ROW(i32_i32), ROW(i64_i32), ROW(i64_i64),
        ROW(f32_i32), ROW(f64_i32), ROW(f64_i64),
#undef ROW
    };
    int max = op == DLCOLL_MAXLOC;
    if (op != DLCOLL_MINLOC && op != DLCOLL_MAXLOC)
        return DLCOLL_ENOSUP;
    r->kernel = &kernels[pair_index(r->dtype_value)][max];
    return 0;
}
