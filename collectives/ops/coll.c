/* coll.c: how a public operation goes: its arguments are checked (coll_args.c), then it is carried
 * out on a device, or on the host, at once or in the queue. */
#include "collectives/ops/coll.h"

#include "collectives/base/error.h"
#include "collectives/comm/comm.h"
#include "collectives/comm/work.h"
#include "collectives/nccl/nccl.h"
#include "collectives/ops/coll_args.h"
#include "collectives/perform/perform.h"

int coll_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work)
{
    /* Ranks without elements need not know whether the others' buffers are on a device. */
    if (call->device && !call->persistent && !coll_is_nothing(call))
        return nccl_perform(c, call, work);
    return perform_call(c, call, work);
}

/* ------------------------------------------------------------------------------------- the call */

int coll_check_and_perform(struct coll_args *a)
{
    struct coll_call call;
    int code = coll_args_check(a, &call);
    return code == 0 ? coll_perform(a->comm, &call, a->work) : code;
}

int coll_invoke(struct coll_args *a)
{
    if (a->work)
        *a->work = NULL;
    int code = comm_enter(a->comm);
    return code < 0 ? code : comm_leave(a->comm, coll_check_and_perform(a));
}

/* ----------------------------------------------------------------------------------- persistent */

static int start(dlcoll_comm *c, struct dlcoll_work *w)
{
    const struct coll_call *call = &w->call;
    const char *name = call_name(call->sig.kind);
    if (!w->persistent)
        return comm_error(c, DLCOLL_EINVAL,
                          "dlcoll_start: the handle is not a persistent operation's");
    if (!atomic_load(&w->done))
        return comm_error(c, DLCOLL_ESTATE, "%s: the operation is under way", name);
    return perform_again(
        c, w, coll_deadline(c, &(dlcoll_opts){.timeout_ms = call->timeout_ms}, coll_now()));
}

int dlcoll_start(dlcoll_work *work)
{
    if (!work)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_start: work is NULL");
    int code = comm_enter(work->comm);
    return code < 0 ? code : comm_leave(work->comm, start(work->comm, work));
}
