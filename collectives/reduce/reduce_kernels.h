/* reduce_kernels.h: the loops that reduce, in a version for each kind of processor: those of
 * reduce_portable.c, reduce_avx2.c and reduce_avx512.c, all compiled from reduce_vector.h. reduce.c
 * chooses among them. */
#ifndef COLLECTIVES_REDUCE_REDUCE_KERNELS_H
#define COLLECTIVES_REDUCE_REDUCE_KERNELS_H

#include <stddef.h>

#include "collectives/base/dtype.h"

/* dst[i] = a[i] op b[i]. dst may be a or b; it overlaps them in no other way. No alignment is
 * needed. */
typedef void reduce_fn(void *dst, const void *a, const void *b, size_t count);

/* dst[i] = src[0][i] op src[1][i] op ..., nsrc >= 1, in one pass. dst may be one of the sources. */
typedef void reduce_n_fn(void *dst, const void *const *src, int nsrc, size_t count);

/* dst[i] = src[i] / by. dst may be src. */
typedef void reduce_divide_fn(void *dst, const void *src, size_t count, int by);

struct reduce_kernel {
    reduce_fn *two;
    reduce_n_fn *many, *many_stream;
};

/* All kernels of one kind of processor. NULL: the type does not have that reduction. */
struct reduce_kernels {
    const char *name;
    struct reduce_kernel by[DTYPES][REDUCTIONS];
    reduce_divide_fn *divide[DTYPES]; /* floats */
};

extern const struct reduce_kernels reduce_portable;
#if defined(__x86_64__)
extern const struct reduce_kernels reduce_avx2, reduce_avx512;
#endif

#endif
