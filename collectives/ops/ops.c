/* ops.c: the public collective operations, as coll_args.h has them. */
#include "collectives/perform/queue.h"
#include "collectives/ops/coll.h"
#include "collectives/comm/comm.h"
#include "collectives/p2p/p2p.h"
#include "collectives/nccl/nccl.h"

/* One operation: the fields of struct coll_args beside those that every operation has. */
#define INVOKE(...) \
    coll_invoke(&(struct coll_args){.comm = comm, .opts = opts, .work = work, __VA_ARGS__})
/* One with a buffer of `count` elements on each side. */
#define INVOKE_EVEN(...) \
    INVOKE(.send = send, .recv = recv, .count = count, .dtype = dtype, __VA_ARGS__)

int dlcoll_broadcast(const void *send, void *recv, size_t count, dlcoll_dtype dtype, int root,
                     dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_BROADCAST, .root = root);
}

int dlcoll_reduce(const void *send, void *recv, size_t count, dlcoll_dtype dtype, dlcoll_op op,
                  int root, dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_REDUCE, .op = op, .root = root);
}

int dlcoll_all_reduce(const void *send, void *recv, size_t count, dlcoll_dtype dtype, dlcoll_op op,
                      dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_ALL_REDUCE, .op = op);
}

int dlcoll_gather(const void *send, void *recv, size_t count, dlcoll_dtype dtype, int root,
                  dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_GATHER, .root = root);
}

int dlcoll_gather_v(const void *send, size_t send_count, void *recv, const size_t *recv_counts,
                    const size_t *recv_displs, dlcoll_dtype dtype, int root, dlcoll_comm *comm,
                    const dlcoll_opts *opts, dlcoll_work **work)
{
    bool is_root = comm && root == comm->rank;
    return INVOKE(.kind = CALL_GATHER_V, .send = send, .recv = recv, .count = send_count,
                  .recv_counts = is_root ? recv_counts : NULL,
                  .recv_displs = is_root ? recv_displs : NULL, .dtype = dtype, .root = root);
}

int dlcoll_all_gather(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                      dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_ALL_GATHER);
}

int dlcoll_all_gather_v(const void *send, void *recv, const size_t *counts, const size_t *displs,
                        dlcoll_dtype dtype, dlcoll_comm *comm, const dlcoll_opts *opts,
                        dlcoll_work **work)
{
    return INVOKE(.kind = CALL_ALL_GATHER_V, .send = send, .recv = recv,
                  .count = comm && counts ? counts[comm->rank] : 0, .recv_counts = counts,
                  .recv_displs = displs, .dtype = dtype);
}

int dlcoll_scatter(const void *send, void *recv, size_t count, dlcoll_dtype dtype, int root,
                   dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_SCATTER, .root = root);
}

int dlcoll_scatter_v(const void *send, const size_t *send_counts, const size_t *send_displs,
                     void *recv, size_t recv_count, dlcoll_dtype dtype, int root, dlcoll_comm *comm,
                     const dlcoll_opts *opts, dlcoll_work **work)
{
    bool is_root = comm && root == comm->rank;
    return INVOKE(.kind = CALL_SCATTER_V, .send = send, .recv = recv, .count = recv_count,
                  .send_counts = is_root ? send_counts : NULL,
                  .send_displs = is_root ? send_displs : NULL, .dtype = dtype, .root = root);
}

int dlcoll_reduce_scatter(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                          dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                          dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_REDUCE_SCATTER, .op = op);
}

int dlcoll_reduce_scatter_v(const void *send, void *recv, const size_t *counts, dlcoll_dtype dtype,
                            dlcoll_op op, dlcoll_comm *comm, const dlcoll_opts *opts,
                            dlcoll_work **work)
{
    return INVOKE(.kind = CALL_REDUCE_SCATTER_V, .send = send, .recv = recv,
                  .count = comm && counts ? counts[comm->rank] : 0, .send_counts = counts,
                  .dtype = dtype, .op = op);
}

int dlcoll_all_to_all(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                      dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_ALL_TO_ALL);
}

int dlcoll_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_displs,
                        void *recv, const size_t *recv_counts, const size_t *recv_displs,
                        dlcoll_dtype dtype, dlcoll_comm *comm, const dlcoll_opts *opts,
                        dlcoll_work **work)
{
    return INVOKE(.kind = CALL_ALL_TO_ALL_V, .send = send, .recv = recv, .send_counts = send_counts,
                  .send_displs = send_displs, .recv_counts = recv_counts,
                  .recv_displs = recv_displs, .dtype = dtype);
}

int dlcoll_scan(const void *send, void *recv, size_t count, dlcoll_dtype dtype, dlcoll_op op,
                dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_SCAN, .op = op);
}

int dlcoll_exscan(const void *send, void *recv, size_t count, dlcoll_dtype dtype, dlcoll_op op,
                  dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE_EVEN(.kind = CALL_EXSCAN, .op = op);
}

int dlcoll_barrier(dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    return INVOKE(.kind = CALL_BARRIER);
}

int dlcoll_finalize_async(dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    if (!work) {
        int code = comm_enter(comm);
        return code < 0
                   ? code
                   : comm_leave(comm, comm_error(comm, DLCOLL_EINVAL, "finalize: work is NULL"));
    }
    *work = NULL;
    if (comm && !comm_is_forked(comm) && (!p2p_only_awaits(comm) || comm->nccl))
        return comm_error(comm, comm->nccl ? DLCOLL_ENOSUP : DLCOLL_ESTATE,
                          comm->nccl
                              ? "finalize: not by handle once the communicator is used on device "
                                "memory"
                              : "finalize: operations are under way");
    if (comm && !comm_is_forked(comm))
        p2p_end_receives(comm, DLCOLL_ECANCELED);
    int code = coll_invoke(
        &(struct coll_args){.kind = CALL_FINALIZE, .comm = comm, .opts = opts, .work = work});
    if (code == 0)
        comm->finalized = true; /* no call may follow */
    return code;
}

int dlcoll_finalize(dlcoll_comm *comm)
{
    if (comm && !comm_is_forked(comm) && (queue_is_busy(comm) || !p2p_only_awaits(comm)))
        return comm_error(comm, DLCOLL_ESTATE, "finalize: operations are under way");
    if (comm && !comm_is_forked(comm)) /* the first rank to leave must not be missed by them */
        p2p_end_receives(comm, DLCOLL_ECANCELED);
    int code = coll_invoke(&(struct coll_args){.kind = CALL_FINALIZE, .comm = comm});
    if (code == 0)
        code = nccl_finalize(comm);
    if (code == 0) {
        comm->finalized = true;
        struct segment_local *line = comm->id == 0 ? world_line(comm->world) : NULL;
        if (line)
            atomic_store_explicit(&line->state, SEGMENT_LOCAL_DONE, memory_order_release);
    }
    return code;
}

/* ---------------------------------------------------------------------------- a list of buffers */

static int check_spans(const struct coll_args *a, const dlcoll_span *list, size_t n, size_t *total)
{
    const struct dtype *type = dtype_get(a->dtype);
    size_t elem = type ? type->size : 1;
    *total = 0;
    if (n && !list)
        return comm_error(a->comm, DLCOLL_EINVAL, "%s: list is NULL", call_name(a->kind));
    for (size_t i = 0; i < n; i++) {
        uintptr_t x = (uintptr_t)list[i].send, y = (uintptr_t)list[i].recv;
        if (list[i].count > SIZE_MAX / 4 / elem || *total > SIZE_MAX / 4 / elem - list[i].count)
            return comm_error(a->comm, DLCOLL_EINVAL, "%s: the counts are too large",
                              call_name(a->kind));
        size_t len = list[i].count * elem;
        if (len && (!x || !y))
            return comm_error(a->comm, DLCOLL_EINVAL, "%s: a buffer is NULL", call_name(a->kind));
        if (len && x != y && x < y + len && y < x + len)
            return comm_error(a->comm, DLCOLL_EINVAL,
                              "%s: send and recv overlap without being the same",
                              call_name(a->kind));
        *total += list[i].count;
    }
    return 0;
}

/* NULL: all are empty. */
static const void *first_buffer(const dlcoll_span *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].count)
            return list[i].send;
    }
    return NULL;
}

int dlcoll_all_reduce_coalesced(const dlcoll_span *list, size_t n, dlcoll_dtype dtype, dlcoll_op op,
                                dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    struct coll_call call;
    size_t total;
    struct coll_args a = {.kind = CALL_ALL_REDUCE_COALESCED,
                          .dtype = dtype,
                          .op = op,
                          .comm = comm,
                          .opts = opts,
                          .work = work};
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    code = coll_args_check(&a, &call);
    if (code == 0)
        code = check_spans(&a, list, n, &total);
    if (code == 0) {
        call.sig.count = call.count = total;
        if (call.dtype->class == DTYPE_BYTES)
            call.sig.count = sig_pack(total, call.elem);
        call.sig.root = (int32_t)(n & 0x7fffffff);
        call.spans = list;
        call.in_steps = n > 0;
        call.nspans = n;
        code = nccl_is_for(comm, first_buffer(list, n), call.stream, &call.device);
        int on = -1;
        for (size_t i = 0; i < n && code == 0; i++) {
            if (list[i].count)
                code = nccl_check_buffer(comm, a.kind, "send", list[i].send, call.device, &on);
            if (list[i].count && code == 0)
                code = nccl_check_buffer(comm, a.kind, "recv", list[i].recv, call.device, &on);
        }
    }
    if (code == 0)
        code = coll_perform(comm, &call, work);
    return comm_leave(comm, code);
}
