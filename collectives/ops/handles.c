/* handles.c: the public functions of work handles. A handle on host memory waits in the queue of
 * collective operations or among the messages; on device memory, on the device. */
#include "collectives/ops/handles.h"

#include "collectives/base/error.h"
#include "collectives/comm/comm.h"
#include "collectives/comm/work.h"
#include "collectives/nccl/nccl.h"
#include "collectives/p2p/p2p.h"
#include "collectives/perform/queue.h"
#include "core/clock.h"

/* Waits until the work is done or the time is over. The time of one on a device is the device's. */
static void wait_until(struct dlcoll_work *w, uint64_t until_ns)
{
    struct recorder *recorder = &w->comm->job->recorder;
    if (work_is_done(w))
        return;
    if (w->device) {
        nccl_wait(w, until_ns, false);
        return;
    }
    recorder_waits(recorder);
    if (w->ops)
        p2p_wait(w->comm, &w->done, until_ns, false);
    else
        queue_wait(w, until_ns);
    recorder_waited(recorder);
}

int handle_wait(struct dlcoll_work *w)
{
    wait_until(w, 0);
    return w->result;
}

/* Returns the result to the program. */
static int result_of(const struct dlcoll_work *w)
{
    if (w->result < 0 && w->result != DLCOLL_ECANCELED)
        atomic_store(&w->comm->returned, true);
    return w->result;
}

/* A fork()'s child has a copy of the queue, whose operations belong to its parent. */
static bool is_parents(const struct dlcoll_work *w)
{
    return comm_is_forked(w->comm);
}

/* Waits until until_ns for the result. */
static int result_until(struct dlcoll_work *w, uint64_t until_ns)
{
    if (is_parents(w))
        return work_refuse();
    wait_until(w, until_ns);
    return work_is_done(w) ? result_of(w) : DLCOLL_INPROGRESS;
}

static uint64_t end_of(int64_t timeout_ms)
{
    return timeout_ms == 0 ? 1 : comm_deadline(timeout_ms);
}

int dlcoll_test(dlcoll_work *work)
{
    if (!work)
        return DLCOLL_EINVAL;
    if (is_parents(work))
        return work_refuse();
    if (work->device && !work_is_done(work))
        nccl_wait(work, 0, true);
    else if (work->ops && !work_is_done(work))
        p2p_wait(work->comm, &work->done, 0, true);
    return work_is_done(work) ? result_of(work) : DLCOLL_INPROGRESS;
}

int dlcoll_wait(dlcoll_work *work)
{
    return dlcoll_wait_for(work, -1);
}

int dlcoll_wait_for(dlcoll_work *work, int64_t timeout_ms)
{
    if (!work)
        return DLCOLL_EINVAL;
    if (timeout_ms == 0)
        return dlcoll_test(work);
    return result_until(work, end_of(timeout_ms));
}

/* Any of several works may be done first: the tasks progress them, and this thread only looks.
 * Works on a device are looked at from time to time. */
static uint64_t choosers_nap(dlcoll_work *const *works, size_t n, uint64_t turns)
{
    for (size_t i = 0; i < n; i++) {
        if (works[i] && works[i]->device)
            return turns < 64 ? 50 * 1000 : 500 * 1000;
    }
    return UINT64_MAX;
}

/* The first that is done: its place; n: none is. */
static size_t find_done(dlcoll_work *const *works, size_t n, int *result)
{
    for (size_t i = 0; i < n; i++) {
        *result = works[i] ? dlcoll_test(works[i]) : DLCOLL_INPROGRESS;
        if (*result != DLCOLL_INPROGRESS)
            return i;
    }
    return n;
}

int dlcoll_wait_any(dlcoll_work *const *works, size_t n, size_t *index, int64_t timeout_ms)
{
    uint64_t until = end_of(timeout_ms);
    size_t there = 0;
    int result = DLCOLL_INPROGRESS;
    for (size_t i = 0; i < n && works; i++)
        there += works[i] != NULL;
    if (!there || !index)
        return DLCOLL_EINVAL;
    const _Atomic uint32_t *completed = work_choose_begin();
    for (uint64_t turns = 0;; turns++) {
        struct wait_word word = {completed, atomic_load(completed)};
        size_t i = find_done(works, n, &result);
        if (i < n) {
            *index = i;
            break;
        }
        uint64_t now = mono_ns(), nap = choosers_nap(works, n, turns);
        if (until && now >= until)
            break;
        wait_sleep(&word, 1, until && until - now < nap ? until - now : nap);
    }
    work_choose_end();
    return result;
}

int dlcoll_wait_all(dlcoll_work *const *works, size_t n, int64_t timeout_ms)
{
    uint64_t until = end_of(timeout_ms);
    int result = 0;
    if (n && !works)
        return DLCOLL_EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (!works[i])
            continue;
        int its = result_until(works[i], until);
        if (its == DLCOLL_INPROGRESS)
            return result < 0 ? result : its;
        result = result < 0 ? result : its;
    }
    return result;
}

int dlcoll_cancel(dlcoll_work *work)
{
    if (!work)
        return DLCOLL_EINVAL;
    if (is_parents(work))
        return work_refuse();
    if (work_is_done(work))
        return comm_error(work->comm, DLCOLL_ESTATE, "cancel: the operation is complete");
    if (!p2p_is_receive(work))
        return comm_error(work->comm, DLCOLL_EINVAL, "cancel: the operation is not a receive");
    if (!p2p_cancel(work->comm, work, DLCOLL_ECANCELED))
        return comm_error(work->comm, DLCOLL_ESTATE, "cancel: a message has matched the receive");
    return 0;
}

void dlcoll_work_drop(dlcoll_work *work)
{
    if (!work || is_parents(work))
        return;
    if (!work_is_done(work) && p2p_is_receive(work))
        (void)p2p_cancel(work->comm, work, DLCOLL_ECANCELED);
    wait_until(work, 0);
    dlcoll_work_free(work);
}
