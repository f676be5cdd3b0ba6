#include "collectives/base/dtype.h"

#include <stdatomic.h>
#include <stdlib.h>

/* The enumerators have a gap: NCCL's come first, and ours stay clear of those it may add. */
enum { NCCL_DTYPES = DLCOLL_F8E5M2 + 1, NCCL_REDUCTIONS = DLCOLL_AVG + 1 };

static const struct dtype g_dtypes[DTYPES] = {
    [DLCOLL_I8] = {"i8", 1, DTYPE_INTEGER},       [DLCOLL_U8] = {"u8", 1, DTYPE_INTEGER},
    [DLCOLL_I32] = {"i32", 4, DTYPE_INTEGER},     [DLCOLL_U32] = {"u32", 4, DTYPE_INTEGER},
    [DLCOLL_I64] = {"i64", 8, DTYPE_INTEGER},     [DLCOLL_U64] = {"u64", 8, DTYPE_INTEGER},
    [DLCOLL_F16] = {"f16", 2, DTYPE_FLOAT},       [DLCOLL_F32] = {"f32", 4, DTYPE_FLOAT},
    [DLCOLL_F64] = {"f64", 8, DTYPE_FLOAT},       [DLCOLL_BF16] = {"bf16", 2, DTYPE_FLOAT},
    [DLCOLL_F8E4M3] = {"f8e4m3", 1, DTYPE_FLOAT}, [DLCOLL_F8E5M2] = {"f8e5m2", 1, DTYPE_FLOAT},
    [NCCL_DTYPES] = {"i16", 2, DTYPE_INTEGER},    [NCCL_DTYPES + 1] = {"u16", 2, DTYPE_INTEGER},
    [NCCL_DTYPES + 2] = {"bool", 1, DTYPE_BOOL},
};

/* Pairs are laid out as C lays out a struct of the two: with padding where the alignment needs
 * it. */
static const struct dtype g_pairs[PAIRS] = {
    {"i16_i32", 8, DTYPE_PAIR},  {"i32_i32", 8, DTYPE_PAIR}, {"i64_i32", 16, DTYPE_PAIR},
    {"i64_i64", 16, DTYPE_PAIR}, {"f32_i32", 8, DTYPE_PAIR}, {"f64_i32", 16, DTYPE_PAIR},
    {"f64_i64", 16, DTYPE_PAIR},
};

_Static_assert(DTYPES == NCCL_DTYPES + DLCOLL_BOOL - DLCOLL_I16 + 1, "every type has its row");
_Static_assert(REDUCTIONS == NCCL_REDUCTIONS + DLCOLL_MAXLOC - DLCOLL_BAND + 1,
               "reduction_index() covers every reduction");

int dtype_index(int dtype)
{
    if (dtype >= 0 && dtype < NCCL_DTYPES)
        return dtype;
    return dtype >= DLCOLL_I16 && dtype <= DLCOLL_BOOL ? NCCL_DTYPES + dtype - DLCOLL_I16 : -1;
}

int pair_index(int dtype)
{
    return dtype >= DLCOLL_I16_I32 && dtype <= DLCOLL_F64_I64 ? dtype - DLCOLL_I16_I32 : -1;
}

/* The program's types, by size, which live as long as the process. */
static const struct dtype *get_bytes(size_t size)
{
    static struct dtype *_Atomic types[DLCOLL_ELEMENT_MAX + 1];
    struct dtype *known = atomic_load_explicit(&types[size], memory_order_acquire);
    if (known)
        return known;
    struct dtype *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    *made = (struct dtype){"bytes", size, DTYPE_BYTES};
    if (atomic_compare_exchange_strong(&types[size], &known, made))
        return made;
    free(made); /* another thread was faster */
    return known;
}

const struct dtype *dtype_get(int dtype)
{
    if (dtype >= 0 && dtype < NCCL_DTYPES)
        return &g_dtypes[dtype];
    int i = dtype_index(dtype), pair = pair_index(dtype);
    if (dtype > DLCOLL_ELEMENT_0 && dtype <= DLCOLL_ELEMENT_0 + DLCOLL_ELEMENT_MAX)
        return get_bytes((size_t)(dtype - DLCOLL_ELEMENT_0));
    return i >= 0 ? &g_dtypes[i] : pair >= 0 ? &g_pairs[pair] : NULL;
}

const char *dtype_code_name(int code)
{
    const struct dtype *type = code == DTYPE_CODE_BYTES ? NULL : dtype_get(code);
    return code == DTYPE_CODE_BYTES ? "bytes" : type ? type->name : NULL;
}

int reduction_index(int op)
{
    if (op >= 0 && op < NCCL_REDUCTIONS)
        return op;
    return op >= DLCOLL_BAND && op <= DLCOLL_MAXLOC ? NCCL_REDUCTIONS + op - DLCOLL_BAND : -1;
}

const char *reduction_name(int code)
{
    static const char *const names[] = {"sum",  "prod", "max", "min",  "avg",    "band",  "bor",
                                        "bxor", "land", "lor", "lxor", "minloc", "maxloc"};
    _Static_assert(sizeof(names) / sizeof(names[0]) == REDUCTIONS, "every reduction has a name");
    if (code == REDUCE_PREMUL)
        return "premul_sum";
    if (code == REDUCE_USER || code == REDUCE_USER_MAY_FAIL)
        return "user function";
    int i = reduction_index(code);
    return i < 0 ? NULL : names[i];
}
