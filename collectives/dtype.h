/* dtype.h: what the library knows about element types and reductions. */
#ifndef COLLECTIVES_DTYPE_H
#define COLLECTIVES_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/dlcoll.h"

/* The types: enumerator, name, C type, the type in which sums and products are computed (unsigned,
 * so that integers wrap around), and the class whose formulas reduce.c uses. A new type is a row
 * here. */
#define DTYPES(ROW)                            \
    ROW(I8, i8, int8_t, uint32_t, INTEGER)     \
    ROW(U8, u8, uint8_t, uint32_t, INTEGER)    \
    ROW(I32, i32, int32_t, uint32_t, INTEGER)  \
    ROW(U32, u32, uint32_t, uint32_t, INTEGER) \
    ROW(I64, i64, int64_t, uint64_t, INTEGER)  \
    ROW(U64, u64, uint64_t, uint64_t, INTEGER) \
    ROW(F32, f32, float, float, FLOAT)         \
    ROW(F64, f64, double, double, FLOAT)

/* The reductions: enumerator and name, then what the user of the list adds. A new one is a row here
 * and a formula per class in reduce.c. */
#define REDUCTIONS(ROW, ...)     \
    ROW(SUM, sum, __VA_ARGS__)   \
    ROW(PROD, prod, __VA_ARGS__) \
    ROW(MAX, max, __VA_ARGS__)   \
    ROW(MIN, min, __VA_ARGS__)

enum { REDUCTIONS_MAX = 8 };

/* dst[i] = left[i] op right[i] for n elements. dst may be left or right. */
typedef void reduce_fn(void *dst, const void *left, const void *right, size_t n);

struct dtype {
    const char *name;
    size_t size;                       /* of one element, in bytes */
    reduce_fn *reduce[REDUCTIONS_MAX]; /* by dlcoll_op */
};

const struct dtype *dtype_get(int dtype); /* NULL: there is no such type */
const char *reduction_name(int op);       /* NULL: there is no such reduction */

/* The kernels, reduce_f32_SUM() and so on. */
#define DECLARE_KERNEL(OP, op, name) \
    void reduce_##name##_##op(void *dst, const void *left, const void *right, size_t n);
#define DECLARE_KERNELS(NAME, name, type, wide, class) REDUCTIONS(DECLARE_KERNEL, name)
DTYPES(DECLARE_KERNELS)
#undef DECLARE_KERNELS
#undef DECLARE_KERNEL

#endif
