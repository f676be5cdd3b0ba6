#include "collectives/perform/perform.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/work.h"
#include "collectives/perform/coalesced.h"
#include "collectives/perform/execute.h"
#include "collectives/perform/layout.h"
#include "collectives/perform/queue.h"

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
static void forget(dlcoll_comm *c, const struct coll_call *call)
{
    if (!call->seq)
        return;
    c->seq = call->seq - 1;
    c->history = call->history;
}

int perform_later(dlcoll_comm *c, const struct coll_call *call, dlcoll_work **out)
{
    struct dlcoll_work *w = work_new(c);
    if (w) {
        w->call = *call;
        w->call.may_repeat = false;
        w->call.start_ns = 0; /* the call's turn comes later */
        if (keep_arrays(w) == 0 && queue_submit(c, w) == 0) {
            *out = w;
            return 0;
        }
        work_put_back(w);
    }
    forget(c, call);
    return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(call->sig.kind));
}

/* A handle for dlcoll_start(). */
static int prepare(dlcoll_comm *c, const struct coll_call *call, dlcoll_work **out)
{
    const char *name = call_name(call->sig.kind);
    if (call->device)
        return comm_error(c, DLCOLL_ENOSUP, "%s: persistent operations are for host memory", name);
    struct dlcoll_work *w = work_new(c);
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
        work_put_back(w);
    }
    return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", name);
}

/* Carries out a blocking call after those that stand in the queue. */
static int wait_in_line(dlcoll_comm *c, const struct coll_call *call)
{
    dlcoll_work *w;
    int code = perform_later(c, call, &w);
    if (code < 0)
        return code;
    comm_let_in(c);
    recorder_waits(&c->job->recorder);
    queue_wait(w, 0);
    recorder_waited(&c->job->recorder);
    comm_keep_out(c);
    code = w->result;
    dlcoll_work_free(w);
    return code;
}

/* Carries out a call beside other threads: `running` belongs to this one. The operations of those
 * who come in meanwhile stand in the queue. The numbers that the call may point to are taken
 * along. */
static int beside_others(dlcoll_comm *c, struct coll_call *call)
{
    size_t *numbers = c->numbers, cap = c->cap_numbers;
    c->numbers = NULL;
    c->cap_numbers = 0;
    call->may_repeat = false; /* the next numbers may be taken */
    recorder_waits(&c->job->recorder);
    comm_let_in(c);
    int code = execute_call(c, call);
    pthread_mutex_unlock(&c->running);
    queue_ring(c);
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
    bool alone = !comm_has_task(c);
    recorder_waits(&c->job->recorder);
    if (!alone)
        pthread_mutex_lock(&c->running);
    int code = execute_call(c, call);
    if (!alone)
        pthread_mutex_unlock(&c->running);
    recorder_waited(&c->job->recorder);
    if (code == DLCOLL_ENOMEM && !call->settled && !atomic_load(&c->failed))
        forget(c, call);
    return code;
}

/* Every rank gives the call the same number, even if the call moves no data. */
static void number(dlcoll_comm *c, struct coll_call *call)
{
    call->seq = ++c->seq;
    if (call->nspans > 1)
        c->seq += coalesced_calls(call) - 1;
    c->seq += call->more;
    call->history = c->history;
    if (!coll_is_nothing(call))
        c->history = op_history_add(c->history, &call->sig);
}

int perform_call(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work)
{
    if (call->persistent)
        return prepare(c, call, work);
    number(c, call);
    if (work)
        return perform_later(c, call, work);
    if (coll_is_nothing(call))
        return 0;
    if (queue_is_busy(c) || (c->multiple && pthread_mutex_trylock(&c->running) != 0))
        return wait_in_line(c, call);
    return c->multiple ? beside_others(c, call) : at_once(c, call);
}

int perform_again(dlcoll_comm *c, struct dlcoll_work *w, uint64_t deadline_ns)
{
    struct coll_call *call = &w->call;
    number(c, call);
    call->deadline_ns = deadline_ns;
    w->result = 0;
    atomic_store(&w->done, 0);
    if (queue_submit(c, w) == 0)
        return 0;
    atomic_store(&w->done, 1);
    forget(c, call);
    return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(call->sig.kind));
}
