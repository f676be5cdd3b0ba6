/* p2p_ops.c: the public point-to-point operations. */
#include <errno.h>
#include <stdlib.h>

#include "collectives/comm/work.h"
#include "collectives/ops/handles.h"
#include "collectives/ops/coll_args.h"
#include "collectives/comm/comm.h"
#include "collectives/base/dtype.h"
#include "collectives/nccl/nccl.h"
#include "collectives/p2p/p2p.h"

/* Marks functions that are inlined into dlcoll_send() and dlcoll_recv(), where most of a call is
 * constant: this saves 12 ns of a message's 140. */
#define INLINED static inline __attribute__((always_inline))

/* The arguments of a call of the program. */
struct message_call {
    enum call_kind kind;
    const dlcoll_p2p *list;
    size_t n;
    bool upto, claims, once; /* a probe: does not wait */
    bool takes;              /* the message that `message` has claimed */
    int *from;               /* this and `message`: results for a list of one */
    dlcoll_message *message;
};

static int p2p_ops_refuse(dlcoll_comm *c, enum call_kind kind, const char *why)
{
    return comm_error(c, DLCOLL_EINVAL, "%s: %s", call_name(kind), why);
}

/* Checks an entry of the caller's list and converts it. */
INLINED int fill(dlcoll_comm *c, const struct message_call *m, const dlcoll_p2p *from,
                 const dlcoll_opts *o, uint64_t deadline_ns, struct p2p_op *op)
{
    enum call_kind kind = m->kind;
    const struct dtype *type = dtype_get((int)from->dtype);
    bool bytes = type && type->class == DTYPE_BYTES;
    bool is_send = kind == CALL_SEND || (kind == CALL_BATCH && from->send);
    bool any = !is_send && from->peer == DLCOLL_ANY_SOURCE;
    int tag = kind == CALL_BATCH ? from->tag : o->tag;
    bool any_tag = !is_send && tag == DLCOLL_ANY_TAG;
    bool sync = is_send && o->flags & DLCOLL_SYNCHRONOUS;
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
        return p2p_ops_refuse(c, kind,
                              is_send ? "peer rank is out of range (0 to size-1)"
                                      : "peer rank is out of range (0 to size-1, or any)");
    if (tag < 0 && !any_tag)
        return p2p_ops_refuse(c, kind,
                              is_send ? "the tag is negative" : "the tag is negative, and not any");
    *op = (struct p2p_op){.is_send = is_send,
                          .any = any,
                          .peer = any ? -1 : from->peer,
                          .tag = any_tag ? 0 : tag,
                          .dtype = bytes ? DLCOLL_U8 : (uint8_t)from->dtype,
                          .any_tag = any_tag,
                          .upto = m->upto,
                          .sync = sync,
                          .probes = kind == CALL_PROBE,
                          .claims = m->claims,
                          .plain = !any && !any_tag && !m->upto && !sync && kind != CALL_PROBE,
                          .count = bytes ? len : from->count,
                          .len = len,
                          .buf = is_send ? (uint8_t *)from->send : from->recv,
                          .elem = type->size,
                          .from = m->from,
                          .message = m->message,
                          .deadline_ns = deadline_ns};
    if (m->takes)
        op->claimed = (struct p2p_unexpected *)m->message->matched;
    return 0;
}

static int p2p_ops_fill(dlcoll_comm *c, const struct message_call *m, const dlcoll_p2p *from,
                        const dlcoll_opts *o, uint64_t deadline_ns, struct p2p_op *op)
{
    return fill(c, m, from, o, deadline_ns, op);
}

static int no_memory(dlcoll_comm *c, enum call_kind kind)
{
    return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(kind));
}

/* A blocking one needs no handle. */
INLINED int perform_one(dlcoll_comm *c, const struct message_call *m, const dlcoll_opts *o)
{
    struct p2p_op op;
    int code = fill(c, m, m->list, o, 0, &op);
    if (code < 0 || p2p_try(c, &op))
        return code;
    if (c->multiple && p2p_start_task(c) < 0)
        return no_memory(c, m->kind);
    op.lends = m->kind == CALL_RECV && !m->upto;
    op.deadline_ns = m->once ? 0 : coll_deadline(c, o, coll_now());
    code = m->once ? p2p_probe_once(c, &op) : p2p_run(c, &op);
    return code == DLCOLL_ENOMEM && !c->p2p ? no_memory(c, m->kind) : code;
}

static int p2p_ops_start(dlcoll_comm *c, enum call_kind kind, struct dlcoll_work *w,
                         dlcoll_work **work)
{
    int r = work || c->multiple ? p2p_start_task(c) : 0;
    if (r == 0)
        r = p2p_start(c, w);
    if (r < 0) {
        work_put_back(w);
        return no_memory(c, kind);
    }
    if (work) {
        if (p2p_is_busy(c))
            p2p_ring_task(c);
        *work = w;
        return 0;
    }
    int code = handle_wait(w);
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

static int on_device(dlcoll_comm *c, const struct message_call *m, const dlcoll_opts *o,
                     dlcoll_work **work)
{
    if (o->flags & DLCOLL_SYNCHRONOUS)
        return comm_error(c, DLCOLL_ENOSUP, "%s on device memory: NCCL has no synchronous sends",
                          call_name(m->kind));
    if (m->upto)
        return comm_error(c, DLCOLL_ENOSUP, "recv_upto on device memory: NCCL has none");
    if (m->kind != CALL_BATCH && o->tag)
        return comm_error(c, DLCOLL_ENOSUP, "%s on device memory: NCCL has no tags",
                          call_name(m->kind));
    for (size_t i = 0; i < m->n; i++) {
        struct p2p_op checked;
        int code = p2p_ops_fill(c, m, &m->list[i], o, 0, &checked);
        if (code == 0 && checked.any)
            code = comm_error(c, DLCOLL_ENOSUP, "recv_any on device memory: NCCL has none");
        if (code < 0)
            return code;
    }
    if (c->multiple)
        comm_take(c);
    int code =
        nccl_batch(c, m->kind, m->list, m->n, coll_deadline(c, o, coll_now()), o->stream, work);
    return c->multiple ? comm_leave(c, code) : code;
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

static int check_places(dlcoll_comm *c, const struct message_call *m, bool device)
{
    int code = 0, on = -1;
    for (size_t i = 0; i < m->n && code == 0; i++) {
        const dlcoll_p2p *one = &m->list[i];
        if (one->count)
            code = nccl_check_buffer(c, m->kind, one->send ? "send" : "recv",
                                     one->send ? one->send : one->recv, device, &on);
    }
    return code;
}

/* Returns whether the call is for NCCL; or a negative code. */
INLINED int find_place(dlcoll_comm *c, const struct message_call *m, const dlcoll_opts *o,
                       bool *device)
{
    const dlcoll_p2p *list = m->list;
    *device = false;
    if (!m->n || m->kind == CALL_PROBE)
        return 0;
    const void *tells = telling_buffer(list, m->n);
    bool any = m->kind == CALL_RECV && list[0].peer == DLCOLL_ANY_SOURCE;
    if (!list[0].count && !tells && !any && !o->stream && c->nccl)
        return p2p_ops_refuse(c, m->kind, NCCL_NO_BUFFER_TELLS);
    int code = nccl_is_for(c, tells, o->stream, device);
    return code == 0 && c->job->conf.devices ? check_places(c, m, *device) : code;
}

static int perform_by_handle(dlcoll_comm *c, const struct message_call *m, const dlcoll_opts *o,
                             dlcoll_work **work)
{
    int code = 0;
    size_t n = m->n;
    struct dlcoll_work *w = work_new(c);
    if (!w || !keep_ops(w, n ? n : 1)) {
        work_put_back(w);
        return no_memory(c, m->kind);
    }
    uint64_t deadline = coll_deadline(c, o, coll_now());
    for (size_t i = 0; i < n && code == 0; i++) {
        code = p2p_ops_fill(c, m, &m->list[i], o, deadline, &w->own_ops[i]);
        w->own_ops[i].lends = !work && !m->upto;
        w->own_ops[i].sibling = i + 1 < n ? &w->own_ops[i + 1] : NULL;
    }
    if (code < 0 || n == 0) {
        work_complete(w, 0);
        if (code == 0 && work)
            *work = w;
        else
            dlcoll_work_free(w);
        return code;
    }
    if (m->kind != CALL_BATCH &&
        p2p_try(c, w->own_ops)) { /* a probe that does not wait needs no other thread */
        work_complete(w, 0);
        *work = w;
        return 0;
    }
    w->ops = w->own_ops;
    return p2p_ops_start(c, m->kind, w, work);
}

/* Checks the dlcoll_message that the program gives to be filled in, or to be received. */
static int check_message(dlcoll_comm *c, const struct message_call *m)
{
    const dlcoll_message *message = m->message;
    bool matches = m->claims || m->takes;
    size_t least = matches ? sizeof(*message) : offsetof(dlcoll_message, matched);
    if (!message)
        return matches ? p2p_ops_refuse(c, m->kind, "message is NULL") : 0;
    if (message->size < least || message->size > 4096 || message->version == 0)
        return p2p_ops_refuse(c, m->kind,
                              "message has no valid size and version (use DLCOLL_MESSAGE_INIT)");
    if (m->takes && !p2p_is_claimed(c, message->matched))
        return p2p_ops_refuse(c, m->kind,
                              "message is not one of dlcoll_mprobe() that is to be received");
    return 0;
}

INLINED int perform(dlcoll_comm *c, const struct message_call *m, const dlcoll_opts *opts,
                    dlcoll_work **work)
{
    dlcoll_opts o;
    bool device;
    int code = coll_take_opts(c, m->kind, opts, &o);
    if (code < 0 || (code = find_place(c, m, &o, &device)) < 0)
        return code;
    if (device)
        return on_device(c, m, &o, work);
    return work || m->kind == CALL_BATCH ? perform_by_handle(c, m, &o, work)
                                         : perform_one(c, m, &o);
}

INLINED int enter(const struct message_call *m, dlcoll_comm *comm, const dlcoll_opts *opts,
                  dlcoll_work **work)
{
    if (work)
        *work = NULL;
    int code = comm_enter_with_messages(comm);
    if (code < 0)
        return code;
    if (m->n && !m->list)
        code = p2p_ops_refuse(comm, m->kind, "list is NULL");
    else if (m->message || m->claims || m->takes)
        code = check_message(comm, m);
    if (code == 0)
        code = perform(comm, m, opts, work);
    return comm_leave_with_messages(comm, code);
}

static int p2p_ops_enter(const struct message_call *m, dlcoll_comm *comm, const dlcoll_opts *opts,
                         dlcoll_work **work)
{
    return enter(m, comm, opts, work);
}

int dlcoll_send(const void *send, size_t count, dlcoll_dtype dtype, int peer, dlcoll_comm *comm,
                const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_p2p one = {.send = send, .count = count, .dtype = dtype, .peer = peer};
    return enter(&(struct message_call){.kind = CALL_SEND, .list = &one, .n = 1}, comm, opts, work);
}

int dlcoll_recv(void *recv, size_t count, dlcoll_dtype dtype, int peer, dlcoll_comm *comm,
                const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_p2p one = {.recv = recv, .count = count, .dtype = dtype, .peer = peer};
    return enter(&(struct message_call){.kind = CALL_RECV, .list = &one, .n = 1}, comm, opts, work);
}

int dlcoll_recv_any(void *recv, size_t count, dlcoll_dtype dtype, int *peer, dlcoll_comm *comm,
                    const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_p2p one = {.recv = recv, .count = count, .dtype = dtype, .peer = DLCOLL_ANY_SOURCE};
    return p2p_ops_enter(
        &(struct message_call){.kind = CALL_RECV, .list = &one, .n = 1, .from = peer}, comm, opts,
        work);
}

int dlcoll_recv_upto(void *recv, size_t count, dlcoll_dtype dtype, int peer,
                     dlcoll_message *message, dlcoll_comm *comm, const dlcoll_opts *opts,
                     dlcoll_work **work)
{
    dlcoll_p2p one = {.recv = recv, .count = count, .dtype = dtype, .peer = peer};
    return p2p_ops_enter(
        &(struct message_call){
            .kind = CALL_RECV, .list = &one, .n = 1, .upto = true, .message = message},
        comm, opts, work);
}

int dlcoll_mrecv(void *recv, size_t count, dlcoll_dtype dtype, dlcoll_message *message,
                 dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    dlcoll_p2p one = {.recv = recv, .count = count, .dtype = dtype, .peer = DLCOLL_ANY_SOURCE};
    return p2p_ops_enter(&(struct message_call){.kind = CALL_RECV,
                                                .list = &one,
                                                .n = 1,
                                                .upto = true,
                                                .takes = true,
                                                .message = message},
                         comm, opts, work);
}

static int probe(int peer, dlcoll_message *message, bool claims, bool once, dlcoll_comm *comm,
                 const dlcoll_opts *opts)
{
    dlcoll_p2p one = {.dtype = DLCOLL_U8, .peer = peer};
    return p2p_ops_enter(&(struct message_call){.kind = CALL_PROBE,
                                                .list = &one,
                                                .n = 1,
                                                .claims = claims,
                                                .once = once,
                                                .message = message},
                         comm, opts, NULL);
}

int dlcoll_probe(int peer, dlcoll_message *message, dlcoll_comm *comm, const dlcoll_opts *opts)
{
    return probe(peer, message, false, false, comm, opts);
}

int dlcoll_iprobe(int peer, dlcoll_message *message, dlcoll_comm *comm, const dlcoll_opts *opts)
{
    return probe(peer, message, false, true, comm, opts);
}

int dlcoll_mprobe(int peer, dlcoll_message *message, dlcoll_comm *comm, const dlcoll_opts *opts)
{
    return probe(peer, message, true, false, comm, opts);
}

int dlcoll_improbe(int peer, dlcoll_message *message, dlcoll_comm *comm, const dlcoll_opts *opts)
{
    return probe(peer, message, true, true, comm, opts);
}

int dlcoll_batch(const dlcoll_p2p *list, size_t n, dlcoll_comm *comm, const dlcoll_opts *opts,
                 dlcoll_work **work)
{
    return p2p_ops_enter(&(struct message_call){.kind = CALL_BATCH, .list = list, .n = n}, comm,
                         opts, work);
}
