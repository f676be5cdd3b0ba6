/* coll.c: how a public operation goes: its arguments are checked (coll_args.c), then it is carried
 * out at once, or put into the queue. */
#include "collectives/api/coll.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/async.h"
#include "collectives/api/coalesced.h"
#include "collectives/api/coll_args.h"
#include "collectives/api/comm.h"
#include "collectives/api/error.h"
#include "collectives/api/layout.h"
#include "collectives/nccl/nccl.h"
#include "collectives/net/net.h"
#include "collectives/api/provider.h"
#include "core/log.h"

/* Shows in the worker's own line what it is doing. */
static void coll_show(const dlcoll_comm *c, uint64_t seq, enum segment_local_state state)
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

int coll_execute(dlcoll_comm *c, struct coll_call *call)
{
    if (atomic_load_explicit(&c->failed, memory_order_acquire))
        return atomic_load(&c->failed_code);
    call->culprit = -1;
    uint64_t number = recorder_begin(&c->job->recorder, c->id, c->name, call->seq, &call->sig,
                                     coll_bytes(call), call->start_ns);
    coll_show(c, call->seq, SEGMENT_LOCAL_CALL);
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
        coll_show(c, call->seq, last ? SEGMENT_LOCAL_DONE : SEGMENT_LOCAL_READY);
    }
    return code;
}

/* ----------------------------------------------------------------------------------- performing */

/* The arrays of counts and the list of buffers are the caller's until it returns: an operation that
 * goes on needs its own.
 */
static int keep_arrays(struct dlcoll_work *w)
{
    struct coll_call *c = &w->call;
    const size_t **arrays[] = {&c->send_parts.counts, &c->send_parts.displs, &c->recv_parts.counts,
                               &c->recv_parts.displs};
    size_t size = (size_t)c->comm->size, want = 4 * size;
    bool any = false;
    for (int i = 0; i < 4; i++)
        any = any || *arrays[i];
    if (any && w->cap_counts < want) {
        size_t *p = realloc(w->counts, want * sizeof(*p));
        if (!p)
            return -ENOMEM;
        w->counts = p;
        w->cap_counts = want;
    }
    if (c->nspans > w->cap_spans) {
        dlcoll_span *p = realloc(w->spans, c->nspans * sizeof(*p));
        if (!p)
            return -ENOMEM;
        w->spans = p;
        w->cap_spans = c->nspans;
    }
    if (c->nspans)
        c->spans = memcpy(w->spans, c->spans, c->nspans * sizeof(*c->spans));
    size_t sent = layout_copy_bytes(c->send_layout), got = layout_copy_bytes(c->recv_layout);
    size_t room = sent + got + c->task_bytes; /* a task has no layouts */
    if (room > w->cap_layouts) {
        void *p = realloc(w->layouts, room);
        if (!p)
            return -ENOMEM;
        w->layouts = p;
        w->cap_layouts = room;
    }
    if (c->task_bytes)
        c->task_arg = memcpy(w->layouts, c->task_arg, c->task_bytes);
    if (sent)
        c->send_layout = layout_copy(c->send_layout, w->layouts);
    if (got)
        c->recv_layout = layout_copy(c->recv_layout, (char *)w->layouts + sent);
    for (size_t i = 0; i < 4; i++) {
        if (*arrays[i])
            *arrays[i] = memcpy(w->counts + i * size, *arrays[i], size * sizeof(size_t));
    }
    return 0;
}

/* Undoes the numbering of a call that has failed before the other ranks could see it. */
static void coll_forget(dlcoll_comm *c, const struct coll_call *call)
{
    if (!call->seq)
        return;
    c->seq = call->seq - 1;
    c->history = call->history;
}

int coll_submit(dlcoll_comm *c, const struct coll_call *call, dlcoll_work **out)
{
    struct dlcoll_work *w = async_new_work(c);
    if (w) {
        w->call = *call;
        w->call.may_repeat = false;
        w->call.start_ns = 0; /* its turn comes later */
        if (keep_arrays(w) == 0 && async_submit(c, w) == 0) {
            *out = w;
            return 0;
        }
        async_put_back(w);
    }
    coll_forget(c, call);
    return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(call->sig.kind));
}

/* A handle for dlcoll_start(). */
static int prepare(dlcoll_comm *c, const struct coll_call *call, dlcoll_work **out)
{
    const char *name = call_name(call->sig.kind);
    if (call->device)
        return comm_error(c, DLCOLL_ENOSUP, "%s: persistent operations are for host memory", name);
    struct dlcoll_work *w = async_new_work(c);
    if (w) {
        w->call = *call;
        w->call.may_repeat = false;
        w->call.start_ns = 0;
        w->persistent = true;
        atomic_store(&w->done, 1);
        if (keep_arrays(w) == 0) {
            *out = w;
            return 0;
        }
        async_put_back(w);
    }
    return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", name);
}

/* A blocking one after others that stand in the queue. */
static int wait_in_line(dlcoll_comm *c, const struct coll_call *call)
{
    dlcoll_work *w;
    int code = coll_submit(c, call, &w);
    if (code < 0)
        return code;
    comm_let_in(c);
    code = async_wait(w);
    comm_keep_out(c);
    dlcoll_work_free(w);
    return code;
}

/* Where several threads call: `running` is this one's. The operations of those who come in
 * meanwhile stand in the queue. The numbers that the call may point to are taken along. */
static int beside_others(dlcoll_comm *c, struct coll_call *call)
{
    size_t *numbers = c->numbers, cap = c->cap_numbers;
    c->numbers = NULL;
    c->cap_numbers = 0;
    call->may_repeat = false; /* the next numbers may be taken */
    recorder_waits(&c->job->recorder);
    comm_let_in(c);
    int code = coll_execute(c, call);
    pthread_mutex_unlock(&c->running);
    async_ring_queue(c);
    comm_keep_out(c);
    recorder_waited(&c->job->recorder);
    free(c->numbers);
    c->numbers = numbers;
    c->cap_numbers = cap;
    return code;
}

static int at_once(dlcoll_comm *c, struct coll_call *call)
{
    call->may_repeat = true;
    bool alone = !async_has_thread(c);
    recorder_waits(&c->job->recorder);
    if (!alone)
        pthread_mutex_lock(&c->running);
    int code = coll_execute(c, call);
    if (!alone)
        pthread_mutex_unlock(&c->running);
    recorder_waited(&c->job->recorder);
    if (code == DLCOLL_ENOMEM && !call->settled && !atomic_load(&c->failed))
        coll_forget(c, call);
    return code;
}

/* Every rank gives the call the same number, even if the call moves no data. */
static void coll_number(dlcoll_comm *c, struct coll_call *call)
{
    call->seq = ++c->seq;
    if (call->nspans > 1)
        c->seq += coalesced_calls(call) - 1;
    c->seq += call->more;
    call->history = c->history;
    if (!coll_is_nothing(call))
        c->history = op_history_add(c->history, &call->sig);
}

int coll_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work)
{
    if (call->persistent)
        return prepare(c, call, work);
    if (call->device && !coll_is_nothing(call)) /* of nothing ranks need not know where it is */
        return nccl_perform(c, call, work);
    coll_number(c, call);
    if (work)
        return coll_submit(c, call, work);
    if (coll_is_nothing(call))
        return 0;
    if (async_is_busy(c) || (c->multiple && pthread_mutex_trylock(&c->running) != 0))
        return wait_in_line(c, call);
    return c->multiple ? beside_others(c, call) : at_once(c, call);
}

/* ----------------------------------------------------------------------------------- persistent */

static int start(dlcoll_comm *c, struct dlcoll_work *w)
{
    struct coll_call *call = &w->call;
    const char *name = call_name(call->sig.kind);
    if (!w->persistent)
        return comm_error(c, DLCOLL_EINVAL,
                          "dlcoll_start: the handle is not a persistent operation's");
    if (!atomic_load(&w->done))
        return comm_error(c, DLCOLL_ESTATE, "%s: the operation is under way", name);
    coll_number(c, call);
    call->culprit = -1;
    call->err.code = 0;
    call->err.msg[0] = '\0';
    call->deadline_ns =
        coll_deadline(c, &(dlcoll_opts){.timeout_ms = call->timeout_ms}, coll_now());
    w->result = 0;
    atomic_store(&w->done, 0);
    if (async_submit(c, w) == 0)
        return 0;
    atomic_store(&w->done, 1);
    coll_forget(c, call);
    return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", name);
}

int dlcoll_start(dlcoll_work *work)
{
    if (!work)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_start: work is NULL");
    int code = comm_enter(work->comm);
    return code < 0 ? code : comm_leave(work->comm, start(work->comm, work));
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
