#include "collectives/call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "collectives/dtype.h"

static const char *const g_names[CALL_KINDS] = {
    [CALL_ALL_REDUCE] = "all_reduce",
    [CALL_BROADCAST] = "broadcast",
    [CALL_BARRIER] = "barrier",
    [CALL_FINALIZE] = "finalize",
};

bool call_equal(const struct call *a, const struct call *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
           a->count == b->count;
}

const char *call_name(int kind)
{
    return kind > CALL_NONE && kind < CALL_KINDS ? g_names[kind] : "unknown operation";
}

const char *call_describe(const struct call *c, char out[CALL_TEXT_MAX])
{
    const struct dtype *type = dtype_get(c->dtype);
    const char *name = call_name(c->kind), *dtype = type ? type->name : "unknown type";
    switch (c->kind) {
    case CALL_ALL_REDUCE: {
        const char *op = reduction_name(c->op);
        snprintf(out, CALL_TEXT_MAX, "%s of %" PRIu64 " %s (%s)", name, c->count, dtype,
                 op ? op : "unknown reduction");
        break;
    }
    case CALL_BROADCAST:
        snprintf(out, CALL_TEXT_MAX, "%s of %" PRIu64 " %s from rank %" PRId32, name, c->count,
                 dtype, c->root);
        break;
    default:
        snprintf(out, CALL_TEXT_MAX, "%s", name);
    }
    return out;
}
