#include "collectives/dtype.h"

#define KERNEL(OP, op, name) [DLCOLL_##OP] = reduce_##name##_##op,
#define TYPE(NAME, name, type, wide, class) \
    [DLCOLL_##NAME] = {#name, sizeof(type), {REDUCTIONS(KERNEL, name)}},
static const struct dtype g_dtypes[] = {DTYPES(TYPE)};

#define NAME(OP, op, unused) [DLCOLL_##OP] = #op,
static const char *const g_reductions[REDUCTIONS_MAX] = {REDUCTIONS(NAME, )};

const struct dtype *dtype_get(int dtype)
{
    size_t n = sizeof(g_dtypes) / sizeof(g_dtypes[0]);
    return dtype >= 0 && (size_t)dtype < n && g_dtypes[dtype].size ? &g_dtypes[dtype] : NULL;
}

const char *reduction_name(int op)
{
    return op >= 0 && op < REDUCTIONS_MAX ? g_reductions[op] : NULL;
}
