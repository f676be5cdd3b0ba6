#include "collectives/perform/execute.h"

#include <errno.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/failure.h"
#include "collectives/comm/provider.h"
#include "collectives/net/net.h"
#include "collectives/perform/choose.h"
#include "collectives/perform/coalesced.h"
#include "collectives/perform/layout.h"

/* Writes the present operation to the worker's own line. */
static void show(const dlcoll_comm *c, uint64_t seq, enum segment_local_state state)
{
    struct segment_local *line = c->job->recorder.line;
    if (c->id != 0 || !seq)
        return;
    atomic_store_explicit(&line->seq, seq, memory_order_relaxed);
    atomic_store_explicit(&line->state, state, memory_order_release);
}

static int run_in_steps(struct coll_call *call)
{
    return call->task ? call->task(call) : call->spans ? coalesced_run(call) : layout_run(call);
}

/* Called behind an operation whose reduction may fail on any rank: whether it has failed on one.
 * The number is the call's last. */
static int agree(struct coll_call *call)
{
    dlcoll_comm *c = call->comm;
    const struct reduce_failure *own = call->reduce.failure;
    uint64_t failed = own->failed ? (uint64_t)c->rank : UINT64_MAX; /* the lowest rank tells */
    call->may_repeat = false;
    if (call->reduce.code == REDUCE_USER_MAY_FAIL && c->size > 1) {
        struct coll_call step = *call;
        step.kind = CALL_ALL_REDUCE;
        step.in_steps = false;
        step.task = NULL;
        step.nspans = 0;
        step.seq += call->nspans > 1 ? coalesced_calls(call) : 1;
        step.send = step.recv = &failed;
        step.send_parts = step.recv_parts = (struct coll_parts){0};
        step.count = step.sig.count = 1;
        step.dtype = dtype_get(DLCOLL_U64);
        step.elem = step.dtype->size;
        step.op = DLCOLL_MIN;
        step.sig.dtype = DLCOLL_U64;
        reduce_find(DLCOLL_U64, DLCOLL_MIN, &step.reduce);
        int r = provider_run_step(call, &step);
        if (r < 0)
            return r;
    }
    if (failed == UINT64_MAX)
        return 0;
    call->failure->culprit = (int)failed;
    return failed == (uint64_t)c->rank ? err_set(&call->failure->err, -EBADE, "%s", own->text)
                                       : -ECANCELED;
}

static int run(dlcoll_comm *c, struct coll_call *call)
{
    if (comm_is_stopped(c))
        return -ECANCELED;
    if (coll_is_nothing(call)) /* others may have called it without a handle, and not wait */
        return 0;
    struct reduce_failure failure; /* not cleared: few operations need the struct */
    if (call->reduce.user) {
        failure.failed = false;
        call->reduce.failure = &failure;
    }
    int code = call->in_steps ? run_in_steps(call) : provider_choose(call)->run(call);
    c->algo = call->algo;
    return code == 0 && call->reduce.user ? agree(call) : code;
}

int execute_call(dlcoll_comm *c, struct coll_call *call)
{
    if (atomic_load_explicit(&c->failed, memory_order_acquire))
        return atomic_load(&c->failed_code);
    struct coll_failure failure;
    coll_failure_init(&failure);
    call->failure = &failure;
    uint64_t number = recorder_begin(&c->job->recorder, c->id, c->name, call->seq, &call->sig,
                                     coll_bytes(call), call->start_ns);
    show(c, call->seq, SEGMENT_LOCAL_CALL);
    int code = run(c, call);
    if (call->settled) {
        code = call->settled;
    } else if (code == -ENOMEM && call->may_repeat) {
        code = comm_error(c, DLCOLL_ENOMEM, "%s: %s", call_name(call->sig.kind),
                          call->failure->err.msg);
    } else if (code < 0) {
        code = comm_fail(c, code, call);
        if (!atomic_load(c->job_word)) /* the agent's news reach all ranks */
            c->net->transport->ops->close(c->net->transport);
    }
    call->failure = NULL;
    recorder_end(&c->job->recorder, number, code);
    if (code == 0) {
        bool last = call->sig.kind == CALL_FINALIZE;
        if (call->seq)
            c->last = (struct coll_done){call->seq, call->sig};
        show(c, call->seq, last ? SEGMENT_LOCAL_DONE : SEGMENT_LOCAL_READY);
    }
    return code;
}
