/* reduce.h: reductions, at the speed of memory.
 *
 *     struct reduce_info r;
 *     if (reduce_find(dtype, op, &r) < 0) ...
 *     if (r.has_pre)
 *         reduce_pre(&r, mine, send, count);              each rank, its own input, first
 *     reduce_two(&r, dst, a, b, count)                    dst = a op b
 *     reduce_many(&r, dst, src, nsrc, count)              dst = src[0] op src[1] op ...
 *     if (r.has_post)
 *         reduce_post(&r, recv, recv, count);             once, on what all ranks contributed to
 *
 * The same bits come out of every kernel that a processor has (portable, AVX2, AVX-512), so ranks
 * on different machines agree. Results depend on the order of the operands only, where they do at
 * all:
 *
 *   integers   sums and products wrap around, in two's complement
 *   f32, f64   left to right, every step rounded
 *   f16, bf16, f8e4m3, f8e5m2
 *              computed in f32. reduce_two() rounds its result to the type; reduce_many() rounds
 *              once, when all sources are in, so it differs from a chain of reduce_two(). To the
 *              nearest, ties to even; too large is an infinity, or a NaN in f8e4m3, which has none
 *   max, min   a NaN on either side is the result; of zeros with different signs the right one
 *   bool       0 or 1; sum, max and bor are lor; prod, min and band are land
 *   pairs      the element itself that wins, padding included */
#ifndef COLLECTIVES_REDUCE_REDUCE_H
#define COLLECTIVES_REDUCE_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/dlcoll.h"
#include "collectives/base/dtype.h"
#include "collectives/reduce/reduce_kernels.h"
#include "core/err.h"

/* The text that a user's function has given for its failure: dlcoll_op_fail(). */
struct reduce_failure {
    bool failed; /* the function is called no more */
    char text[200];
};

/* A reduction of a type. A plain value; nothing to free. It is good as long as the op is. */
struct reduce_info {
    const struct dtype *dtype;
    uint8_t code;  /* compared by ranks: a user's op has another value on every rank */
    bool ordered;  /* not commutative: combine ranks 0, 1, ... in this order only */
    bool has_pre;  /* premul_sum: reduce_pre() first */
    bool has_post; /* avg: reduce_post() at the end */
    int ranks;     /* by which reduce_post() divides; the caller of reduce_find() sets it */

    /* Called by the inline functions below. */
    const struct reduce_kernel *kernel;
    dlcoll_reduce_fn *user; /* instead of the kernel */
    union {
        reduce_divide_fn *divide; /* if has_post */
        reduce_fn *prod;          /* if has_pre */
    };
    union {
        void *ctx;       /* of `user` */
        uint64_t scalar; /* if has_pre: the factor, in the bytes of its type */
    };
    struct reduce_failure *failure; /* borrowed; NULL: nobody wants to know */
    int dtype_value;                /* dlcoll_dtype */
};

/* 0; DLCOLL_EINVAL: there is no such type or reduction, or the reduction was made for another type;
 * DLCOLL_ENOSUP: the type does not have this reduction. */
int reduce_find(int dtype, int op, struct reduce_info *r);

void reduce_user_many(const struct reduce_info *r, void *dst, const void *const *src, int nsrc,
                      size_t count);

static inline void reduce_many(const struct reduce_info *r, void *dst, const void *const *src,
                               int nsrc, size_t count)
{
    if (r->user)
        reduce_user_many(r, dst, src, nsrc, count);
    else
        r->kernel->many(dst, src, nsrc, count);
}

/* reduce_many() past the caches (sums only; other reductions do what reduce_many() does): a sixth
 * faster for a dst that is much larger than the caches and that nobody reads soon, slower for any
 * other. dst is none of the sources. */
static inline void reduce_many_stream(const struct reduce_info *r, void *dst,
                                      const void *const *src, int nsrc, size_t count)
{
    if (r->user)
        reduce_user_many(r, dst, src, nsrc, count);
    else
        r->kernel->many_stream(dst, src, nsrc, count);
}

static inline void reduce_two(const struct reduce_info *r, void *dst, const void *a, const void *b,
                              size_t count)
{
    if (r->user)
        reduce_user_many(r, dst, (const void *[]){a, b}, 2, count);
    else
        r->kernel->two(dst, a, b, count);
}

/* dst[i] = src[i] * the op's scalar. dst may be src. Only if has_pre. */
void reduce_pre(const struct reduce_info *r, void *dst, const void *src, size_t count);

/* dst[i] = src[i] / r->ranks, integers toward zero. dst may be src. Only if has_post. */
static inline void reduce_post(const struct reduce_info *r, void *dst, const void *src,
                               size_t count)
{
    r->divide(dst, src, count, r->ranks);
}

/* x[i] = x[i] as a reduction of one operand leaves it: a truth value becomes 0 or 1. Nothing else,
 * and nothing of a user's, is touched. */
void reduce_alone(const struct reduce_info *r, void *x, size_t count);

/* -------------------------------------------------------------------------- kernels, processors */

enum reduce_cpu { REDUCE_PORTABLE, REDUCE_AVX2, REDUCE_AVX512, REDUCE_CPUS };

/* NULL: this processor, or this build, does not have these kernels. */
const struct reduce_kernels *reduce_kernels(enum reduce_cpu cpu);
const struct reduce_kernels *reduce_kernels_best(void);

/* Chooses what reduce_find() takes: the best this processor has, or what
 * DLCOLL_CPU=portable|avx2|avx512 in the environment names. 0, or -EINVAL with a text: it names
 * nothing, or what this processor does not have. Without this call the best is taken. */
int reduce_choose(struct err *e);
const struct reduce_kernels *reduce_kernels_used(void);

/* reduce_find() with kernels of one's own choice. */
int reduce_find_in(const struct reduce_kernels *k, int dtype, int op, struct reduce_info *r);

/* The kernels of pairs (reduce_pairs.c), the same on every processor. 0 or DLCOLL_ENOSUP. */
int reduce_pairs_find(int op, struct reduce_info *r);

/* Ops that the program made (reduce_user.c): fills in what r has of them. False: `op` is none, has
 * been freed, or is a premul_sum of another type than r's; r->code says so. */
bool reduce_user_find(int op, struct reduce_info *r);

#endif
