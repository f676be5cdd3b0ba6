/* p2p_ops.c: the public point-to-point operations. */
#include <errno.h>
#include <stdlib.h>

#include "collectives/api/async.h"
#include "collectives/api/coll_args.h"
#include "collectives/api/comm.h"
#include "collectives/reduce/dtype.h"
#include "collectives/nccl/nccl.h"
#include "collectives/p2p/p2p.h"

static int p2p_ops_refuse(dlcoll_comm *c, enum call_kind kind, const char *why)
{
    return comm_error(c, DLCOLL_EINVAL, "%s: %s", call_name(kind), why);
}

/* Checks an entry of the caller's list and converts it. */
static int p2p_ops_fill(dlcoll_comm *c, enum call_kind kind, const dlcoll_p2p *from, bool any,
                        uint64_t deadline_ns, struct p2p_op *op)
{
    const struct dtype *type = dtype_get((int)from->dtype);
    bool bytes = type && type->class == DTYPE_BYTES;
    bool is_send = kind == CALL_SEND || (kind == CALL_BATCH && from->send);
    if (!type)
        return p2p_ops_refuse(c, kind, "unknown dtype");
    size_t len;
    if (__builtin_mul_overflow(from->count, type->size, &len) || len > SIZE_MAX / 4)
        return p2p_ops_refuse(c, kind, "count is too large");
    if (kind == CALL_BATCH && !from->send == !from->recv)
        return p2p_ops_refuse(c, kind, "one of send and recv must be NULL, the other not");
    if (from->count && !(is_send ? from->send : from->recv))
        return p2p_ops_refuse(c, kind, "the buffer is NULL");
    if (!any && (from->peer < 0 || from->peer >= c->size))
        return p2p_ops_refuse(c, kind, "peer rank is out of range (0 to size-1)");
    if (from->tag < 0)
        return p2p_ops_refuse(c, kind, "the tag is negative");
    *op = (struct p2p_op){.is_send = is_send,
                          .any = any,
                          .peer = any ? -1 : from->peer,
                          .tag = from->tag,
                          .dtype = bytes ? DLCOLL_U8 : (uint8_t)from->dtype,
                          .count = bytes ? len : from->count,
                          .len = len,
                          .buf = is_send ? (uint8_t *)from->send : from->recv,
                          .deadline_ns = deadline_ns};
    return 0;
}

/* A blocking one needs no handle. */
static int perform_one(dlcoll_comm *c, enum call_kind kind, const dlcoll_p2p *one, bool any,
                       int *from, const dlcoll_opts *o)
{
    struct p2p_op op;
    int code = p2p_ops_fill(c, kind, one, any, 0, &op);
    if (code < 0 || p2p_try(c, &op))
        return code;
    op.from = from;
    op.deadline_ns = coll_deadline(c, o, coll_now());
    code = p2p_run(c, &op);
    return code == DLCOLL_ENOMEM && !c->p2p
               ? comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(kind))
               : code;
}

static int p2p_ops_start(dlcoll_comm *c, enum call_kind kind, struct dlcoll_work *w,
                         dlcoll_work **work)
{
    int r = work ? async_start_p2p(c) : 0;
    if (r == 0)
        r = p2p_start(c, w);
    if (r < 0) {
        async_put_back(w);
        return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(kind));
    }
    if (work) {
        if (p2p_is_busy(c))
            async_ring_p2p(c);
        *work = w;
        return 0;
    }
    int code = async_wait(w);
    dlcoll_work_free(w);
    return code;
}

/* Room for n operations with the handle. */
static bool keep_ops(struct dlcoll_work *w, size_t n)
{
    if (n > w->cap_ops) {
        struct p2p_op *ops = realloc(w->own_ops, n * sizeof(*ops));
        if (!ops)
            return false;
        w->own_ops = ops;
        w->cap_ops = n;
    }
    return true;
}

static int on_device(dlcoll_comm *c, enum call_kind kind, const dlcoll_p2p *list, size_t n,
                     bool any, const dlcoll_opts *o, dlcoll_work **work)
{
    if (any)
        return comm_error(c, DLCOLL_ENOSUP, "recv_any on device memory: NCCL has none");
    if (kind != CALL_BATCH && o->tag)
        return comm_error(c, DLCOLL_ENOSUP, "%s on device memory: NCCL has no tags",
                          call_name(kind));
    for (size_t i = 0; i < n; i++) {
        struct p2p_op checked;
        int code = p2p_ops_fill(c, kind, &list[i], false, 0, &checked);
        if (code < 0)
            return code;
    }
    return nccl_batch(c, kind, list, n, coll_deadline(c, o, coll_now()), o->stream, work);
}

/* The first entry that has elements; if none has, the first. */
static const void *telling_buffer(const dlcoll_p2p *list, size_t n)
{
    size_t i = 0;
    while (i < n && !list[i].count)
        i++;
    const dlcoll_p2p *one = i < n ? &list[i] : list;
    return one->send ? one->send : one->recv;
}

static int p2p_ops_perform(dlcoll_comm *c, enum call_kind kind, const dlcoll_p2p *list, size_t n,
                           bool any, int *from, const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_opts o;
    int code = coll_take_opts(c, kind, opts, &o);
    if (code < 0)
        return code;
    const void *tells = n > 0 ? telling_buffer(list, n) : NULL;
    if (n > 0 && !list[0].count && !tells && !any && !o.stream && c->nccl)
        return p2p_ops_refuse(c, kind, NCCL_NO_BUFFER_TELLS);
    bool device = false;
    if (n > 0 && (code = nccl_is_for(c, tells, o.stream, &device)) < 0)
        return code;
    if (device)
        return on_device(c, kind, list, n, any, &o, work);
    if (!work && kind != CALL_BATCH) {
        dlcoll_p2p one = list[0];
        one.tag = o.tag;
        return perform_one(c, kind, &one, any, from, &o);
    }
    struct dlcoll_work *w = async_new_work(c);
    if (!w || !keep_ops(w, n ? n : 1)) {
        async_put_back(w);
        return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(kind));
    }
    uint64_t deadline = coll_deadline(c, &o, coll_now());
    for (size_t i = 0; i < n && code == 0; i++) {
        dlcoll_p2p one = list[i];
        if (kind != CALL_BATCH)
            one.tag = o.tag;
        code = p2p_ops_fill(c, kind, &one, any, deadline, &w->own_ops[i]);
        w->own_ops[i].from = from;
        w->own_ops[i].sibling = i + 1 < n ? &w->own_ops[i + 1] : NULL;
    }
    if (code < 0 || n == 0) {
        async_complete(w, 0);
        if (code == 0 && work)
            *work = w;
        else
            dlcoll_work_free(w);
        return code;
    }
    if (kind != CALL_BATCH && p2p_try(c, w->own_ops)) { /* no other thread is needed for it */
        async_complete(w, 0);
        *work = w;
        return 0;
    }
    w->ops = w->own_ops;
    return p2p_ops_start(c, kind, w, work);
}

static int p2p_ops_enter(enum call_kind kind, const dlcoll_p2p *list, size_t n, bool any, int *from,
                         dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (n && !list)
        code = p2p_ops_refuse(comm, kind, "list is NULL");
    else
        code = p2p_ops_perform(comm, kind, list, n, any, from, opts, work);
    return comm_leave(comm, code);
}

int dlcoll_send(const void *send, size_t count, dlcoll_dtype dtype, int peer, dlcoll_comm *comm,
                const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_p2p one = {.send = send, .count = count, .dtype = dtype, .peer = peer};
    return p2p_ops_enter(CALL_SEND, &one, 1, false, NULL, comm, opts, work);
}

int dlcoll_recv(void *recv, size_t count, dlcoll_dtype dtype, int peer, dlcoll_comm *comm,
                const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_p2p one = {.recv = recv, .count = count, .dtype = dtype, .peer = peer};
    return p2p_ops_enter(CALL_RECV, &one, 1, false, NULL, comm, opts, work);
}

int dlcoll_recv_any(void *recv, size_t count, dlcoll_dtype dtype, int *peer, dlcoll_comm *comm,
                    const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_p2p one = {.recv = recv, .count = count, .dtype = dtype};
    return p2p_ops_enter(CALL_RECV, &one, 1, true, peer, comm, opts, work);
}

int dlcoll_batch(const dlcoll_p2p *list, size_t n, dlcoll_comm *comm, const dlcoll_opts *opts,
                 dlcoll_work **work)
{
    return p2p_ops_enter(CALL_BATCH, list, n, false, NULL, comm, opts, work);
}
