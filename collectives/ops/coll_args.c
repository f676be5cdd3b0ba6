#include "collectives/ops/coll_args.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/base/error.h"
#include "collectives/perform/layout.h"
#include "collectives/nccl/nccl.h"
#include "core/clock.h"

enum { LONG_MS = 1000, LONGEST_MS = 1000 * 1000 * 1000, TICK_MS = 10 };

/* A buffer of an operation. */
struct side {
    const void *p;
    bool needed;
    size_t extent; /* elements from the buffer's start to its end */
    size_t own_at; /* place of this rank's part, which in place is the other buffer */
    size_t own;    /* length of this rank's part */
};

static int args_refuse(const struct coll_args *a, int code, const char *why)
{
    return comm_error(a->comm, code, "%s: %s", call_name(a->called ? a->called : a->kind), why);
}

int coll_take_opts(dlcoll_comm *c, enum call_kind kind, const dlcoll_opts *given, dlcoll_opts *opts)
{
    *opts = (dlcoll_opts)DLCOLL_OPTS_INIT;
    if (!given)
        return 0;
    int code = comm_take_opts(opts, sizeof(*opts), given);
    if (code == DLCOLL_EINVAL)
        return comm_error(c, code, "%s: opts has no valid size and version (use DLCOLL_OPTS_INIT)",
                          call_name(kind));
    if (code < 0)
        return comm_error(c, code,
                          "%s: opts sets fields that this version of the library does not have",
                          call_name(kind));
    bool takes =
        call_has_data(kind) && kind != CALL_ALL_TO_ALL_W && kind < CALL_ALL_REDUCE_COALESCED;
    if (!takes && (opts->send_layout || opts->recv_layout))
        return comm_error(c, DLCOLL_EINVAL, "%s: opts has a layout, which this call does not take",
                          call_name(kind));
    bool persists =
        (call_has_data(kind) && kind != CALL_SEND && kind != CALL_RECV) || kind == CALL_BARRIER;
    if (opts->flags & ~(DLCOLL_PERSISTENT | DLCOLL_SYNCHRONOUS))
        return comm_error(c, DLCOLL_EINVAL, "%s: opts has an unknown flag", call_name(kind));
    if (opts->flags & DLCOLL_SYNCHRONOUS && kind != CALL_SEND && kind != CALL_BATCH)
        return comm_error(c, DLCOLL_EINVAL, "%s: only sends can be synchronous", call_name(kind));
    if (!persists && opts->flags & DLCOLL_PERSISTENT)
        return comm_error(c, DLCOLL_EINVAL, "%s: this call cannot be persistent", call_name(kind));
    return 0;
}

uint64_t coll_deadline(const dlcoll_comm *c, const dlcoll_opts *opts, uint64_t now_ns)
{
    int64_t ms = opts->timeout_ms ? opts->timeout_ms : c->timeout_ms;
    if (ms < LONG_MS || ms > LONGEST_MS)
        return comm_deadline(ms);
    return now_ns + ((uint64_t)ms + TICK_MS) * 1000000u;
}

/* ---------------------------------------------------------------------------------------- parts */

/* Elements that the parts span, and where this rank's is. False: too much. */
static bool span(const size_t *counts, const size_t *displs, int size, int rank, size_t most,
                 struct side *s)
{
    size_t next = 0;
    s->extent = 0;
    for (int i = 0; i < size; i++) {
        size_t at = displs && counts[i] ? displs[i] : next; /* nothing lies nowhere */
        if (counts[i] > most || at > most - counts[i])
            return false;
        next = at + counts[i];
        s->extent = next > s->extent ? next : s->extent;
        if (i == rank) {
            s->own_at = at;
            s->own = counts[i];
        }
    }
    return true;
}

static bool parts_overlap(const size_t *counts, const size_t *displs, int size)
{
    /* Mostly they are in order; else everyone is compared with everyone. */
    bool in_order = true;
    for (int i = 1; i < size && in_order; i++)
        in_order = displs[i] >= displs[i - 1] + counts[i - 1];
    for (int i = 0; i < size && !in_order; i++) {
        for (int j = 0; j < i; j++) {
            if (counts[i] && counts[j] && displs[i] < displs[j] + counts[j] &&
                displs[j] < displs[i] + counts[i])
                return true;
        }
    }
    return false;
}

/* `size` parts of `count` each. */
static void even(struct side *s, size_t count, int size, int rank)
{
    s->extent = count * (size_t)size;
    s->own_at = count * (size_t)rank;
    s->own = count;
}

/* shape() of operations whose parts have counts of their own. */
static const char *shape_parts(const struct coll_args *a, size_t most, struct side *send,
                               struct side *recv)
{
    int size = a->comm->size, rank = a->comm->rank;
    bool root = rank == a->root;
    send->needed = a->kind != CALL_SCATTER_V || root;
    recv->needed = a->kind != CALL_GATHER_V || root;
    bool sends = send->needed && a->kind != CALL_GATHER_V && a->kind != CALL_ALL_GATHER_V;
    bool receives = recv->needed && a->kind != CALL_SCATTER_V && a->kind != CALL_REDUCE_SCATTER_V;
    if ((sends && !a->send_counts) || (receives && !a->recv_counts))
        return "counts is NULL";
    if ((sends && !span(a->send_counts, a->send_displs, size, rank, most, send)) ||
        (receives && !span(a->recv_counts, a->recv_displs, size, rank, most, recv)))
        return "the counts are too large";
    if (send->own != recv->own)
        return a->kind == CALL_GATHER_V    ? "send_count is not recv_counts[rank]"
               : a->kind == CALL_SCATTER_V ? "recv_count is not send_counts[rank]"
                                           : "send_counts[rank] is not recv_counts[rank]";
    if (receives && a->recv_displs && parts_overlap(a->recv_counts, a->recv_displs, size))
        return "parts of recv overlap";
    return NULL;
}

/* Fills in which buffers the kind needs, and their lengths. NULL, or the fault of the counts. */
static const char *shape(const struct coll_args *a, size_t most, struct side *send,
                         struct side *recv)
{
    int size = a->comm->size, rank = a->comm->rank;
    bool root = rank == a->root;
    size_t count = a->count, all;
    *send = (struct side){.p = a->send, .needed = true, .extent = count, .own = count};
    *recv = (struct side){.p = a->recv, .needed = true, .extent = count, .own = count};
    if (__builtin_mul_overflow(count, (size_t)size, &all) || all > most)
        return "count is too large";
    switch (a->kind) {
    case CALL_BROADCAST:
        send->needed = root;
        break;
    case CALL_REDUCE:
        recv->needed = root;
        break;
    case CALL_EXSCAN:
        recv->needed = rank > 0;
        break;
    case CALL_GATHER:
        recv->needed = root;
        even(recv, count, size, rank);
        break;
    case CALL_ALL_GATHER:
        even(recv, count, size, rank);
        break;
    case CALL_SCATTER:
        send->needed = root;
        even(send, count, size, rank);
        break;
    case CALL_REDUCE_SCATTER:
        even(send, count, size, rank);
        break;
    case CALL_ALL_TO_ALL:
        send->extent = recv->extent = send->own = recv->own = all;
        break;
    case CALL_GATHER_V:
    case CALL_SCATTER_V:
    case CALL_ALL_GATHER_V:
    case CALL_REDUCE_SCATTER_V:
    case CALL_ALL_TO_ALL_V:
        return shape_parts(a, most, send, recv);
    default:
        break;
    }
    return NULL;
}

/* A layout of the program's: whether it has the elements of the buffer and ends within `most`. */
static int check_layout(const struct coll_args *a, const struct side *s, const dlcoll_layout *given,
                        const char *name, size_t most)
{
    dlcoll_layout l = DLCOLL_LAYOUT_INIT;
    char why[128];
    size_t count, end;
    if (!given)
        return 0;
    if (comm_take_opts(&l, sizeof(l), given) < 0)
        snprintf(why, sizeof(why), "%s has no valid size and version (use DLCOLL_LAYOUT_INIT)",
                 name);
    else if (!layout_measure(&l, most, &count, &end))
        snprintf(why, sizeof(why), "%s is too large", name);
    else if (count != s->extent)
        snprintf(why, sizeof(why), "%s has %zu elements, and the operation %zu", name, count,
                 s->extent);
    else
        return 0;
    return args_refuse(a, DLCOLL_EINVAL, why);
}

/* Layouts of buffers that this rank does not need are dropped. */
static int check_layouts(const struct coll_args *a, const struct side *send,
                         const struct side *recv, size_t most, struct coll_call *call)
{
    if (!send->needed)
        call->send_layout = NULL;
    if (!recv->needed)
        call->recv_layout = NULL;
    int code = check_layout(a, send, call->send_layout, "send_layout", most);
    return code < 0 ? code : check_layout(a, recv, call->recv_layout, "recv_layout", most);
}

/* -------------------------------------------------------------------------------------- buffers */

/* In place, one buffer is this rank's part of the other; or, where the whole is not made of parts,
 * the other itself. */
static bool is_in_place(const struct coll_args *a, const struct side *s, const struct side *r,
                        size_t elem)
{
    if (a->kind == CALL_ALL_TO_ALL_V)
        return s->p == r->p;
    return (const char *)s->p + s->own_at * elem == (const char *)r->p + r->own_at * elem;
}

/* `apart`: the library packs what is sent, or what is received. */
static int check_buffers(const struct coll_args *a, const struct side *s, const struct side *r,
                         size_t elem, bool apart)
{
    uintptr_t x = (uintptr_t)s->p, y = (uintptr_t)r->p;
    size_t xlen = s->extent * elem, ylen = r->extent * elem;
    if ((s->needed && xlen && !s->p) || (r->needed && ylen && !r->p))
        return args_refuse(a, DLCOLL_EINVAL, "a buffer is NULL");
    if (apart || !s->needed || !r->needed || !xlen || !ylen || x >= y + ylen || y >= x + xlen)
        return 0;
    if (is_in_place(a, s, r, elem))
        return 0;
    return args_refuse(a, DLCOLL_EINVAL, "send and recv overlap without being the same");
}

static int check_reduction(const struct coll_args *a, struct coll_call *call)
{
    char why[96];
    struct reduce_info *last = &a->comm->reduce;
    bool keeps = !call_scans(a->kind); /* scans divide by another number of ranks */
    bool known = keeps && last->dtype && last->dtype_value == a->dtype && last->code == a->op;
    if (__builtin_expect(known, true)) {
        call->reduce = *last;
        call->sig.op = last->code;
        return 0;
    }
    int code = reduce_find(a->dtype, a->op, &call->reduce);
    call->reduce.ranks = a->kind == CALL_SCAN     ? a->comm->rank + 1
                         : a->kind == CALL_EXSCAN ? a->comm->rank
                                                  : a->comm->size;
    call->sig.op = call->reduce.code;
    if (code == 0 && keeps && call->reduce.code == a->op)
        *last = call->reduce;
    call->more = call->reduce.code == REDUCE_USER_MAY_FAIL; /* ranks agree on failures */
    if (code == DLCOLL_EINVAL)
        return args_refuse(a, code,
                           call->reduce.code == REDUCE_PREMUL ? "op was made for another dtype"
                                                              : "unknown op");
    if (code < 0) {
        snprintf(why, sizeof(why), "%s is not defined for %s", reduction_name(call->reduce.code),
                 call->dtype->name);
        return args_refuse(a, code, why);
    }
    return 0;
}

/* Ranks that all know all counts compare the sum of the counts and this digest. */
static int32_t digest(const size_t *counts, int n)
{
    uint64_t h = 0;
    for (int i = 0; i < n; i++) {
        h = (h ^ counts[i]) * 0x9e3779b97f4a7c15u + 1;
        h ^= h >> 32;
    }
    return (int32_t)(h >> 1 & INT32_MAX);
}

static const size_t *common_counts(const struct coll_args *a)
{
    return a->kind == CALL_ALL_GATHER_V       ? a->recv_counts
           : a->kind == CALL_REDUCE_SCATTER_V ? a->send_counts
                                              : NULL;
}

/* The count that the ranks compare; 0 where a rank does not know the counts of the others. */
static uint64_t common_count(const struct coll_args *a)
{
    const size_t *counts = common_counts(a);
    uint64_t sum = 0;
    for (int i = 0; counts && i < a->comm->size; i++)
        sum += counts[i];
    return counts ? sum : call_counts_differ(a->kind) ? 0 : a->count;
}

/* Finds out whether the operation is on the host or on a device; all ranks must come to the same
 * answer. A buffer in which this rank has elements decides: it is where the other ranks' buffers
 * are, and this rank's other one must be. Where the rank has no elements, a pointer that is not
 * NULL is taken for want of a better one. */
static int args_find_way(const struct coll_args *a, const struct side *s, const struct side *r,
                         struct coll_call *call)
{
    const void *tells = s->needed && s->extent   ? s->p
                        : r->needed && r->extent ? r->p
                        : s->p                   ? s->p
                                                 : r->p;
    int code = nccl_is_for(a->comm, tells, call->stream, &call->device);
    if (code < 0)
        return code;
    if (!tells && !call->stream && a->comm->nccl && call_counts_differ(a->kind))
        return args_refuse(a, DLCOLL_EINVAL, NCCL_NO_BUFFER_TELLS);
    int on = -1;
    enum call_kind kind = a->called ? a->called : a->kind;
    if (s->needed && s->extent)
        code = nccl_check_buffer(a->comm, kind, "send", s->p, call->device, &on);
    if (code == 0 && r->needed && r->extent && r->p != s->p)
        code = nccl_check_buffer(a->comm, kind, "recv", r->p, call->device, &on);
    return code;
}

static int check_data(const struct coll_args *a, struct coll_call *call)
{
    struct side send, recv;
    if (!(call->dtype = dtype_get(a->dtype)))
        return args_refuse(a, DLCOLL_EINVAL, "unknown dtype");
    call->elem = call->dtype->size;
    bool both = a->kind == CALL_ALL_TO_ALL_V;
    if (((both || a->kind == CALL_REDUCE_SCATTER_V) && !a->send_counts) ||
        ((both || a->kind == CALL_ALL_GATHER_V) && !a->recv_counts))
        return args_refuse(a, DLCOLL_EINVAL, "counts is NULL");
    size_t most = SIZE_MAX / 4 / call->elem;
    bool bytes = call->dtype->class == DTYPE_BYTES;
    if (bytes && most >> SIG_COUNT_BITS)
        most = ((size_t)1 << SIG_COUNT_BITS) - 1;
    const char *bad = shape(a, most, &send, &recv);
    if (bad)
        return args_refuse(a, DLCOLL_EINVAL, bad);
    bool laid_out = call->send_layout || call->recv_layout;
    int code = laid_out ? check_layouts(a, &send, &recv, most, call) : 0;
    if (code == 0)
        code = check_buffers(a, &send, &recv, call->elem, laid_out);
    if (code == 0)
        code = args_find_way(a, &send, &recv, call);
    if (code == 0 && call_reduces(a->kind))
        code = check_reduction(a, call);
    call->sig.dtype = bytes ? DTYPE_CODE_BYTES : (uint8_t)a->dtype;
    call->sig.count = common_count(a);
    if (bytes)
        call->sig.count = sig_pack(call->sig.count, call->elem);
    if (common_counts(a))
        call->sig.root = digest(common_counts(a), a->comm->size);
    if (a->kind == CALL_ALL_GATHER_V)
        call->count = a->recv_counts[a->comm->rank];
    else if (a->kind == CALL_REDUCE_SCATTER_V)
        call->count = a->send_counts[a->comm->rank];
    else if (both && !recv.extent)
        call->recv = NULL; /* recv may be `send`, which is not in place */
    call->pack_parts = both && call->send == call->recv && send.extent && !call->send_layout;
    call->in_steps = laid_out || call->pack_parts;
    if (code == 0 && call->device && (laid_out || call->pack_parts))
        code = args_refuse(a, DLCOLL_ENOSUP,
                           call->pack_parts ? "not in place in device memory"
                                            : "layouts are for host memory");
    return code;
}

int coll_args_check(const struct coll_args *a, struct coll_call *call)
{
    dlcoll_comm *c = a->comm;
    dlcoll_opts opts;
    int code = coll_take_opts(c, a->called ? a->called : a->kind, a->opts, &opts);
    if (code < 0)
        return code;
    if (a->root < 0 || a->root >= c->size)
        return args_refuse(a, DLCOLL_EINVAL, "root rank is out of range (0 to size-1)");
    uint64_t now_ns = coll_now();
    *call = (struct coll_call){
        .sig = {.kind = (uint8_t)(a->called ? a->called : a->kind),
                .settings = c->job->conf.settings,
                .root = call_rooted(a->kind) ? a->root : 0},
        .kind = a->kind == CALL_FINALIZE ? CALL_BARRIER : a->kind,
        .comm = c,
        .ranks = {.size = c->size, .me = c->rank},
        .root = a->root,
        .send = a->send,
        .recv = a->recv,
        .count = a->count,
        .send_parts = {a->send_counts, a->send_displs},
        .recv_parts = {a->recv_counts, a->recv_displs},
        .send_layout = opts.send_layout,
        .recv_layout = opts.recv_layout,
        .elem = 1,
        .op = a->op,
        .start_ns = now_ns,
        .deadline_ns = coll_deadline(c, &opts, now_ns),
        .stream = opts.stream,
        .device = opts.stream != NULL,
        .persistent = opts.flags & DLCOLL_PERSISTENT,
        .timeout_ms = opts.timeout_ms,
    };
    if (call->persistent && !a->work)
        return args_refuse(a, DLCOLL_EINVAL, "a persistent operation needs a work handle");
    return call_has_data(a->kind) ? check_data(a, call) : 0;
}
