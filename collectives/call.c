#include "collectives/call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "collectives/dtype.h"

/* What a kind has beside its name. */
enum { DATA = 1, REDUCES = 2, ROOTED = 4, UNEVEN = 8, TO_ROOT = 16 };

static const struct {
    const char *name;
    unsigned has;
} g_kinds[CALL_KINDS] = {
    [CALL_ALL_REDUCE] = {"all_reduce", DATA | REDUCES},
    [CALL_BROADCAST] = {"broadcast", DATA | ROOTED},
    [CALL_BARRIER] = {"barrier", 0},
    [CALL_FINALIZE] = {"finalize", 0},
    [CALL_REDUCE] = {"reduce", DATA | REDUCES | ROOTED | TO_ROOT},
    [CALL_GATHER] = {"gather", DATA | ROOTED | TO_ROOT},
    [CALL_GATHER_V] = {"gather_v", DATA | ROOTED | UNEVEN | TO_ROOT},
    [CALL_ALL_GATHER] = {"all_gather", DATA},
    [CALL_ALL_GATHER_V] = {"all_gather_v", DATA | UNEVEN},
    [CALL_SCATTER] = {"scatter", DATA | ROOTED},
    [CALL_SCATTER_V] = {"scatter_v", DATA | ROOTED | UNEVEN},
    [CALL_REDUCE_SCATTER] = {"reduce_scatter", DATA | REDUCES},
    [CALL_REDUCE_SCATTER_V] = {"reduce_scatter_v", DATA | REDUCES | UNEVEN},
    [CALL_ALL_TO_ALL] = {"all_to_all", DATA},
    [CALL_ALL_TO_ALL_V] = {"all_to_all_v", DATA | UNEVEN},
    [CALL_ALL_REDUCE_COALESCED] = {"all_reduce_coalesced", DATA | REDUCES},
    [CALL_EXCHANGE_BYTES] = {"exchange_bytes", 0},
    [CALL_MONITORED_BARRIER] = {"monitored_barrier", 0},
    [CALL_COMM_SPLIT] = {"comm_split", 0},
    [CALL_COMM_NEW_GROUP] = {"comm_new_group", 0},
    [CALL_SEND] = {"send", DATA | ROOTED | TO_ROOT},
    [CALL_RECV] = {"recv", DATA | ROOTED},
    [CALL_BATCH] = {"batch", 0},
};

static unsigned has(int kind)
{
    return kind > CALL_NONE && kind < CALL_KINDS ? g_kinds[kind].has : 0;
}

bool call_has_data(int kind)
{
    return has(kind) & DATA;
}

bool call_reduces(int kind)
{
    return has(kind) & REDUCES;
}

bool call_rooted(int kind)
{
    return has(kind) & ROOTED;
}

const char *call_name(int kind)
{
    return kind > CALL_NONE && kind < CALL_KINDS ? g_kinds[kind].name : "unknown operation";
}

const char *call_describe(const struct call *c, char out[CALL_TEXT_MAX])
{
    const struct dtype *type = dtype_get(c->dtype);
    unsigned have = has(c->kind);
    const char *op = reduction_name(c->op);
    char count[24] = "", reduction[32] = "", root[24] = "";
    if (!(have & UNEVEN))
        snprintf(count, sizeof(count), "%" PRIu64 " ", c->count);
    if (have & REDUCES)
        snprintf(reduction, sizeof(reduction), " (%.20s)", op ? op : "unknown reduction");
    if (have & ROOTED)
        snprintf(root, sizeof(root), " %s rank %" PRId32, have & TO_ROOT ? "to" : "from", c->root);
    if (have & DATA)
        snprintf(out, CALL_TEXT_MAX, "%s of %s%s%s%s", call_name(c->kind), count,
                 type ? type->name : "unknown type", reduction, root);
    else
        snprintf(out, CALL_TEXT_MAX, "%s", call_name(c->kind));
    return out;
}
