/* coll.c: the public operations: check the arguments, describe the call, choose an algorithm, run
 * it. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

#include "collectives/comm.h"
#include "collectives/dtype.h"
#include "collectives/error.h"
#include "collectives/net/algo.h"

/* One operation, its arguments as given. */
struct request {
    struct call call; /* the same on every rank */
    const void *send;
    void *recv;
    const dlcoll_opts *opts;
    dlcoll_work **work;
    const struct dtype *dtype; /* NULL: it has no data */
    int op;
};

/* ------------------------------------------------------------------------------------ checking */

static bool overlap(const void *a, const void *b, size_t len)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x != y && (x < y ? y - x < len : x - y < len);
}

static int refuse(dlcoll_comm *c, const struct request *rq, int code, const char *why)
{
    return error_set(&c->error, code, "%s: %s", call_name(rq->call.kind), why);
}

static int check_data(dlcoll_comm *c, const struct request *rq)
{
    bool needs_send = rq->call.kind != CALL_BROADCAST || rq->call.root == c->rank;
    size_t count = rq->call.count;
    if (!rq->dtype)
        return refuse(c, rq, DLCOLL_EINVAL, "there is no such dtype");
    if (count > SIZE_MAX / 2 / rq->dtype->size)
        return refuse(c, rq, DLCOLL_EINVAL, "count is too large");
    if (count && (!rq->recv || (needs_send && !rq->send)))
        return refuse(c, rq, DLCOLL_EINVAL, "a buffer is NULL");
    if (needs_send && overlap(rq->send, rq->recv, count * rq->dtype->size))
        return refuse(c, rq, DLCOLL_EINVAL, "send and recv overlap without being the same");
    return 0;
}

static int check(dlcoll_comm *c, const struct request *rq, dlcoll_opts *opts)
{
    *opts = (dlcoll_opts)DLCOLL_OPTS_INIT;
    int code = comm_take_opts(opts, sizeof(*opts), rq->opts);
    if (code == DLCOLL_EINVAL)
        return refuse(c, rq, code, "opts has no valid size and version (use DLCOLL_OPTS_INIT)");
    if (code < 0)
        return refuse(c, rq, code, "opts asks for what this library does not know");
    if (rq->work)
        return refuse(c, rq, DLCOLL_ENOSUP, "this version only blocks: work must be NULL");
    if (rq->call.kind == CALL_ALL_REDUCE && !reduction_name(rq->op))
        return refuse(c, rq, DLCOLL_EINVAL, "there is no such op");
    if (rq->call.root < 0 || rq->call.root >= c->size)
        return refuse(c, rq, DLCOLL_EINVAL, "root is no rank of the communicator");
    bool has_data = rq->call.kind == CALL_ALL_REDUCE || rq->call.kind == CALL_BROADCAST;
    return has_data ? check_data(c, rq) : 0;
}

/* ------------------------------------------------------------------------------------- running */

static struct coll describe(const dlcoll_comm *c, const struct request *rq)
{
    enum call_kind kind = rq->call.kind == CALL_FINALIZE ? CALL_BARRIER : rq->call.kind;
    return (struct coll){.kind = kind,
                         .rank = c->rank,
                         .size = c->size,
                         .root = rq->call.root,
                         .count = rq->call.count,
                         .elem = rq->dtype ? rq->dtype->size : 1};
}

/* Shows in the worker's own line what it is doing. */
static void show(const dlcoll_comm *c, enum segment_local_state state)
{
    struct segment_local *line = world_line(&c->world);
    if (!line)
        return;
    atomic_store_explicit(&line->seq, c->seq, memory_order_relaxed);
    atomic_store_explicit(&line->state, state, memory_order_release);
}

static int run(dlcoll_comm *c, const struct request *rq, const dlcoll_opts *opts)
{
    struct err e = ERR_INIT;
    if (rq->dtype && rq->call.count == 0) {
        c->seq++; /* as on every other rank */
        return 0;
    }
    struct coll coll = describe(c, rq);
    const struct algo *algo = algo_choose(&coll);
    schedule_reset(&c->schedule);
    algo->build(&c->schedule, &coll);
    struct engine_run er = {
        .schedule = &c->schedule,
        .in = rq->send,
        .out = rq->recv,
        .dtype = rq->dtype,
        .op = rq->op,
        .frame = {.comm = c->id, .seq = (uint32_t)(c->seq + 1), .call = rq->call}};
    if (engine_start(&c->engine, &er, &e) < 0)
        return refuse(c, rq, DLCOLL_ENOMEM, e.msg);
    c->seq++;
    show(c, SEGMENT_LOCAL_CALL);
    uint64_t deadline = comm_deadline(opts->timeout_ms ? opts->timeout_ms : c->timeout_ms);
    int r = engine_wait(&c->engine, deadline, &e);
    if (r < 0)
        return comm_fail(c, r, &rq->call, &e);
    show(c, SEGMENT_LOCAL_READY);
    return 0;
}

static int perform(dlcoll_comm *comm, const struct request *rq)
{
    dlcoll_opts opts;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    code = check(comm, rq, &opts);
    if (code == 0)
        code = run(comm, rq, &opts);
    return comm_leave(comm, code);
}

/* ---------------------------------------------------------------------------------- operations */

int dlcoll_all_reduce(const void *send, void *recv, size_t count, dlcoll_dtype dtype, dlcoll_op op,
                      dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    struct request rq = {.call = {.kind = CALL_ALL_REDUCE,
                                  .dtype = (uint8_t)dtype,
                                  .op = (uint8_t)op,
                                  .count = count},
                         .send = send,
                         .recv = recv,
                         .opts = opts,
                         .work = work,
                         .dtype = dtype_get(dtype),
                         .op = op};
    return perform(comm, &rq);
}

int dlcoll_broadcast(const void *send, void *recv, size_t count, dlcoll_dtype dtype, int root,
                     dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    struct request rq = {
        .call = {.kind = CALL_BROADCAST, .dtype = (uint8_t)dtype, .root = root, .count = count},
        .send = send,
        .recv = recv,
        .opts = opts,
        .work = work,
        .dtype = dtype_get(dtype)};
    return perform(comm, &rq);
}

int dlcoll_barrier(dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    struct request rq = {.call = {.kind = CALL_BARRIER}, .opts = opts, .work = work};
    return perform(comm, &rq);
}

int dlcoll_finalize(dlcoll_comm *comm)
{
    struct request rq = {.call = {.kind = CALL_FINALIZE}};
    int code = perform(comm, &rq);
    if (code == 0) {
        comm->finalized = true;
        show(comm, SEGMENT_LOCAL_DONE);
    }
    return code;
}
