#include "collectives/perform/execute.h"

#include <errno.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/provider.h"
#include "collectives/net/net.h"
#include "collectives/perform/choose.h"
#include "collectives/perform/coalesced.h"
#include "collectives/perform/layout.h"

/* Shows in the worker's own line what it is doing. */
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

static int run(dlcoll_comm *c, struct coll_call *call)
{
    if (comm_is_stopped(c))
        return -ECANCELED;
    if (coll_is_nothing(call)) /* others may have called it without a handle, and not wait */
        return 0;
    int code = call->in_steps ? run_in_steps(call) : provider_choose(call)->run(call);
    c->algo = call->algo;
    return code;
}

int execute_call(dlcoll_comm *c, struct coll_call *call)
{
    if (atomic_load_explicit(&c->failed, memory_order_acquire))
        return atomic_load(&c->failed_code);
    call->culprit = -1;
    uint64_t number = recorder_begin(&c->job->recorder, c->id, c->name, call->seq, &call->sig,
                                     coll_bytes(call), call->start_ns);
    show(c, call->seq, SEGMENT_LOCAL_CALL);
    int code = run(c, call);
    if (call->settled) {
        code = call->settled;
    } else if (code == -ENOMEM && call->may_repeat) {
        code = comm_error(c, DLCOLL_ENOMEM, "%s: %s", call_name(call->sig.kind), call->err.msg);
    } else if (code < 0) {
        code = comm_fail(c, code, call);
        if (!atomic_load(c->job_word)) /* what the agent tells one, it tells all */
            c->net->transport->ops->close(c->net->transport);
    }
    recorder_end(&c->job->recorder, number, code);
    if (code == 0) {
        bool last = call->sig.kind == CALL_FINALIZE;
        if (call->seq)
            c->last = (struct coll_done){call->seq, call->sig};
        show(c, call->seq, last ? SEGMENT_LOCAL_DONE : SEGMENT_LOCAL_READY);
    }
    return code;
}
