#include "collectives/base/op_signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "collectives/base/dtype.h"

enum {
    DATA = CALL_HAS_DATA,
    REDUCES = CALL_HAS_OP,
    ROOTED = CALL_HAS_ROOT,
    UNEVEN = CALL_UNEVEN,
    TO_ROOT = CALL_TO_ROOT
};

const uint8_t g_call_has[CALL_KINDS] = {
    [CALL_ALL_REDUCE] = DATA | REDUCES,
    [CALL_BROADCAST] = DATA | ROOTED,
    [CALL_REDUCE] = DATA | REDUCES | ROOTED | TO_ROOT,
    [CALL_GATHER] = DATA | ROOTED | TO_ROOT,
    [CALL_GATHER_V] = DATA | ROOTED | UNEVEN | TO_ROOT,
    [CALL_ALL_GATHER] = DATA,
    [CALL_ALL_GATHER_V] = DATA | UNEVEN,
    [CALL_SCATTER] = DATA | ROOTED,
    [CALL_SCATTER_V] = DATA | ROOTED | UNEVEN,
    [CALL_REDUCE_SCATTER] = DATA | REDUCES,
    [CALL_REDUCE_SCATTER_V] = DATA | REDUCES | UNEVEN,
    [CALL_ALL_TO_ALL] = DATA,
    [CALL_ALL_TO_ALL_V] = DATA | UNEVEN,
    [CALL_SCAN] = DATA | REDUCES,
    [CALL_EXSCAN] = DATA | REDUCES,
    [CALL_ALL_TO_ALL_W] = DATA | UNEVEN,
    [CALL_NEIGHBOR_ALL_GATHER] = DATA | UNEVEN,
    [CALL_NEIGHBOR_ALL_TO_ALL] = DATA | UNEVEN,
    [CALL_ALL_REDUCE_COALESCED] = DATA | REDUCES,
    [CALL_SEND] = DATA | ROOTED | TO_ROOT,
    [CALL_RECV] = DATA | ROOTED,
};

static const char *const g_names[CALL_KINDS] = {
    [CALL_ALL_REDUCE] = "all_reduce",
    [CALL_BROADCAST] = "broadcast",
    [CALL_BARRIER] = "barrier",
    [CALL_FINALIZE] = "finalize",
    [CALL_REDUCE] = "reduce",
    [CALL_GATHER] = "gather",
    [CALL_GATHER_V] = "gather_v",
    [CALL_ALL_GATHER] = "all_gather",
    [CALL_ALL_GATHER_V] = "all_gather_v",
    [CALL_SCATTER] = "scatter",
    [CALL_SCATTER_V] = "scatter_v",
    [CALL_REDUCE_SCATTER] = "reduce_scatter",
    [CALL_REDUCE_SCATTER_V] = "reduce_scatter_v",
    [CALL_ALL_TO_ALL] = "all_to_all",
    [CALL_ALL_TO_ALL_V] = "all_to_all_v",
    [CALL_SCAN] = "scan",
    [CALL_EXSCAN] = "exscan",
    [CALL_ALL_TO_ALL_W] = "all_to_all_w",
    [CALL_NEIGHBOR_ALL_GATHER] = "neighbor_all_gather",
    [CALL_NEIGHBOR_ALL_TO_ALL] = "neighbor_all_to_all",
    [CALL_ALL_REDUCE_COALESCED] = "all_reduce_coalesced",
    [CALL_EXCHANGE_BYTES] = "exchange_bytes",
    [CALL_MONITORED_BARRIER] = "monitored_barrier",
    [CALL_COMM_SPLIT] = "comm_split",
    [CALL_COMM_NEW_GROUP] = "comm_new_group",
    [CALL_COMM_SHRINK] = "comm_shrink",
    [CALL_COMM_DUP] = "comm_dup",
    [CALL_SEND] = "send",
    [CALL_RECV] = "recv",
    [CALL_BATCH] = "batch",
    [CALL_PROBE] = "probe",
    [CALL_NCCL_INIT] = "nccl_init",
    [CALL_WINDOW_REGISTER] = "window_register",
};

_Static_assert(CALL_KINDS == 34 && sizeof(g_call_has) == CALL_KINDS,
               "a new kind of call needs its name and its properties above");

bool sig_same(const struct op_signature *a, const struct op_signature *b)
{
    struct op_signature c = *a;
    if (b->kind < CALL_KINDS && g_call_has[b->kind] & CALL_UNEVEN) {
        c.count = b->count;
        c.dtype = b->dtype;
    }
    return sig_equal(&c, b);
}

const char *call_name(int kind)
{
    return kind > CALL_NONE && kind < CALL_KINDS ? g_names[kind] : "unknown operation";
}

const char *sig_describe(const struct op_signature *c, char out[SIG_TEXT_MAX])
{
    const char *type = dtype_code_name(c->dtype);
    unsigned have = c->kind < CALL_KINDS ? g_call_has[c->kind] : 0;
    const char *op = reduction_name(c->op);
    char count[48] = "", reduction[32] = "", root[24] = "";
    if (c->dtype == DTYPE_CODE_BYTES && c->count)
        snprintf(count, sizeof(count), "%" PRIu64 " times %u ", sig_count(c),
                 (unsigned)(c->count >> SIG_COUNT_BITS) + 1);
    else if (!(have & UNEVEN))
        snprintf(count, sizeof(count), "%" PRIu64 " ", c->count);
    if (have & REDUCES)
        snprintf(reduction, sizeof(reduction), " (%.20s)", op ? op : "unknown reduction");
    if (have & ROOTED)
        snprintf(root, sizeof(root), " %s rank %" PRId32, have & TO_ROOT ? "to" : "from", c->root);
    if (have & DATA)
        snprintf(out, SIG_TEXT_MAX, "%s of %s%s%s%s", call_name(c->kind), count,
                 type ? type : "unknown type", reduction, root);
    else
        snprintf(out, SIG_TEXT_MAX, "%s", call_name(c->kind));
    return out;
}
