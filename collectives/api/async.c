#include "collectives/api/async.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/comm.h"
#include "collectives/api/error.h"
#include "collectives/api/progress.h"
#include "collectives/api/task.h"
#include "collectives/nccl/nccl.h"
#include "collectives/p2p/p2p.h"
#include "core/clock.h"

struct async {
    pthread_mutex_t lock;
    struct dlcoll_work *queue, **tail; /* collective operations not yet started */
    _Atomic int pending;               /* those, and the one under way */
    struct dlcoll_work *pool;
    /* Two tasks, because a collective operation may wait for a rank that is in a send to this
     * one. */
    struct task carrier; /* carries out the queue */
    struct task p2p;     /* progresses sends and receives */
    _Atomic bool quit;
};

/* How many handles have been completed while a thread waited for any of several. */
static _Atomic uint32_t g_completed, g_choosers;

/* ----------------------------------------------------------------------------------------- pool */

static struct async *get(struct dlcoll_comm *comm)
{
    struct async *a = comm->async;
    if (a)
        return a;
    pthread_mutex_lock(&comm->making);
    a = comm->async;
    if (!a && (a = calloc(1, sizeof(*a)))) {
        pthread_mutex_init(&a->lock, NULL);
        a->tail = &a->queue;
        comm->async = a;
    }
    pthread_mutex_unlock(&comm->making);
    return a;
}

struct dlcoll_work *async_new_work(struct dlcoll_comm *comm)
{
    struct async *a = get(comm);
    if (!a)
        return NULL;
    pthread_mutex_lock(&a->lock);
    struct dlcoll_work *w = a->pool;
    if (w)
        a->pool = w->next;
    pthread_mutex_unlock(&a->lock);
    if (!w && !(w = calloc(1, sizeof(*w))))
        return NULL;
    w->next = NULL;
    w->comm = comm;
    w->result = 0;
    w->ops = NULL;
    w->device = false;
    w->persistent = false;
    w->notify = NULL;
    atomic_store_explicit(&w->done, 0, memory_order_relaxed);
    atomic_store_explicit(&w->detached, false, memory_order_relaxed);
    return w;
}

void async_put_back(struct dlcoll_work *w)
{
    if (!w)
        return;
    struct async *a = w->comm->async;
    pthread_mutex_lock(&a->lock);
    w->next = a->pool;
    a->pool = w;
    pthread_mutex_unlock(&a->lock);
}

void async_complete(struct dlcoll_work *w, int result)
{
    struct async *a = w->comm->async;
    pthread_mutex_lock(&a->lock);
    void (*notify)(void *arg) = w->notify;
    void *notify_arg = w->notify_arg;
    w->notify = NULL;
    w->result = result;
    if (atomic_load_explicit(&w->detached, memory_order_relaxed)) {
        w->next = a->pool;
        a->pool = w;
    } else {
        atomic_store(&w->done, 1);
    }
    pthread_mutex_unlock(&a->lock);
    if (atomic_load(&w->sleepers))
        wait_wake(&w->done);
    if (atomic_load(&g_choosers)) {
        atomic_fetch_add(&g_completed, 1);
        wait_wake(&g_completed);
    }
    if (notify && task_inside())
        task_call(notify, notify_arg);
    else if (notify)
        notify(notify_arg);
}

static bool is_done(const struct dlcoll_work *w)
{
    return atomic_load_explicit(&w->done, memory_order_acquire);
}

/* ---------------------------------------------------------------------------------------- queue */

/* The next operation of the queue. Under `running`. */
static struct dlcoll_work *async_take(struct async *a)
{
    pthread_mutex_lock(&a->lock);
    struct dlcoll_work *w = a->queue;
    if (w && !(a->queue = w->next))
        a->tail = &a->queue;
    pthread_mutex_unlock(&a->lock);
    return w;
}

/* Runs the operations of the queue until it is empty, or until `until` is done. Under `running`. */
static void run_queue(struct dlcoll_comm *comm, struct dlcoll_work *until)
{
    struct async *a = comm->async;
    struct dlcoll_work *w;
    while ((!until || !is_done(until)) && (w = async_take(a))) {
        int code = coll_execute(comm, &w->call);
        atomic_fetch_sub(&a->pending, 1);
        async_complete(w, code);
    }
}

bool async_is_busy(const struct dlcoll_comm *comm)
{
    return comm->async && atomic_load_explicit(&comm->async->pending, memory_order_acquire);
}

/* ---------------------------------------------------------------------------------------- tasks */

bool async_has_thread(const struct dlcoll_comm *comm)
{
    return atomic_load_explicit(&comm->coll_slot, memory_order_relaxed) ||
           atomic_load_explicit(&comm->p2p_slot, memory_order_relaxed);
}

/* A thread that runs the queue rings when it leaves something in it. */
static void carry_out(void *arg)
{
    struct dlcoll_comm *comm = arg;
    struct async *a = comm->async;
    while (atomic_load(&a->pending) && !atomic_load(&a->quit) &&
           pthread_mutex_trylock(&comm->running) == 0) {
        run_queue(comm, NULL);
        pthread_mutex_unlock(&comm->running);
    }
}

static void deliver(void *arg)
{
    struct dlcoll_comm *comm = arg;
    while (p2p_is_busy(comm) && !atomic_load(&comm->async->quit))
        p2p_assist(comm);
}

static int async_start_task(struct dlcoll_comm *comm, struct task *t, void (*run)(void *arg),
                            _Atomic uint32_t *slot)
{
    if (atomic_load_explicit(slot, memory_order_relaxed))
        return 0;
    int r = 0;
    pthread_mutex_lock(&comm->making);
    if (!atomic_load(&t->slot)) {
        t->run = run;
        t->arg = comm;
        r = progress_join(comm->job, t);
        atomic_store(slot, atomic_load(&t->slot));
    }
    pthread_mutex_unlock(&comm->making);
    return r;
}

int async_start_p2p(struct dlcoll_comm *comm)
{
    struct async *a = get(comm);
    return a ? async_start_task(comm, &a->p2p, deliver, &comm->p2p_slot) : -ENOMEM;
}

void async_ring_p2p(struct dlcoll_comm *comm)
{
    task_ring(atomic_load_explicit(&comm->p2p_slot, memory_order_relaxed));
}

static void ring_carrier(struct dlcoll_comm *comm)
{
    task_ring(atomic_load_explicit(&comm->coll_slot, memory_order_relaxed));
}

void async_ring_queue(struct dlcoll_comm *comm)
{
    if (async_is_busy(comm))
        ring_carrier(comm);
}

int async_submit(struct dlcoll_comm *comm, struct dlcoll_work *w)
{
    struct async *a = comm->async;
    int r = async_start_task(comm, &a->carrier, carry_out, &comm->coll_slot);
    if (r < 0)
        return r;
    pthread_mutex_lock(&a->lock);
    w->next = NULL;
    *a->tail = w;
    a->tail = &w->next;
    atomic_fetch_add(&a->pending, 1);
    pthread_mutex_unlock(&a->lock);
    ring_carrier(comm);
    return 0;
}

/* -------------------------------------------------------------------------------------- waiting */

static void sleep_on(struct dlcoll_work *w, uint64_t until_ns)
{
    uint64_t now = mono_ns();
    atomic_fetch_add(&w->sleepers, 1);
    if (!is_done(w) && (!until_ns || now < until_ns))
        wait_sleep(&(struct wait_word){&w->done, 0}, 1, until_ns ? until_ns - now : UINT64_MAX);
    atomic_fetch_sub(&w->sleepers, 1);
}

/* On host memory. A waiting thread runs the queue itself only if it has no deadline, because an
 * operation may take any time. */
static void wait_on_host(struct dlcoll_work *w, uint64_t until_ns)
{
    struct dlcoll_comm *comm = w->comm;
    if (w->ops) {
        p2p_wait(comm, &w->done, until_ns, false);
        return;
    }
    while (!is_done(w) && (!until_ns || mono_ns() < until_ns)) {
        if (!until_ns && pthread_mutex_trylock(&comm->running) == 0) {
            run_queue(comm, w);
            pthread_mutex_unlock(&comm->running);
            async_ring_queue(comm); /* the task runs the rest */
        } else {
            sleep_on(w, until_ns);
        }
    }
}

/* Waits until the work is done or the time is over. The time of one on a device is the device's. */
static void wait_until(struct dlcoll_work *w, uint64_t until_ns)
{
    struct recorder *recorder = &w->comm->job->recorder;
    if (is_done(w))
        return;
    if (w->device) {
        nccl_wait(w, until_ns, false);
        return;
    }
    recorder_waits(recorder);
    wait_on_host(w, until_ns);
    recorder_waited(recorder);
}

int async_wait(struct dlcoll_work *w)
{
    wait_until(w, 0);
    return w->result;
}

/* Returns the result to the program. */
static int result_of(const struct dlcoll_work *w)
{
    if (w->result < 0 && w->result != DLCOLL_ECANCELED)
        atomic_store(&w->comm->told, true);
    return w->result;
}

/* A fork()'s child has a copy of the queue, whose operations belong to its parent. */
static bool is_parents(const struct dlcoll_work *w)
{
    return comm_is_forked(w->comm);
}

static int async_refuse(void)
{
    return error_set_global(DLCOLL_ESTATE, "the handle is that of a fork()'s parent");
}

/* Waits until until_ns for the result. */
static int result_until(struct dlcoll_work *w, uint64_t until_ns)
{
    if (is_parents(w))
        return async_refuse();
    wait_until(w, until_ns);
    return is_done(w) ? result_of(w) : DLCOLL_INPROGRESS;
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
        return async_refuse();
    if (work->device && !is_done(work))
        nccl_wait(work, 0, true);
    else if (work->ops && !is_done(work))
        p2p_wait(work->comm, &work->done, 0, true);
    return is_done(work) ? result_of(work) : DLCOLL_INPROGRESS;
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
    atomic_fetch_add(&g_choosers, 1);
    for (uint64_t turns = 0;; turns++) {
        struct wait_word word = {&g_completed, atomic_load(&g_completed)};
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
    atomic_fetch_sub(&g_choosers, 1);
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

int dlcoll_notify(dlcoll_work *work, void (*fn)(void *arg), void *arg)
{
    if (!work || !fn)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_notify: %s is NULL", work ? "fn" : "work");
    if (is_parents(work))
        return async_refuse();
    if (work->device)
        return comm_error(work->comm, DLCOLL_ENOSUP,
                          "dlcoll_notify: the operation is on device memory");
    struct async *a = work->comm->async;
    pthread_mutex_lock(&a->lock);
    bool done = is_done(work), taken = !done && work->notify;
    if (!done && !taken) {
        work->notify = fn;
        work->notify_arg = arg;
    }
    pthread_mutex_unlock(&a->lock);
    if (taken)
        return comm_error(work->comm, DLCOLL_ESTATE,
                          "dlcoll_notify: another function is to be "
                          "called already");
    if (done)
        fn(arg);
    return 0;
}

int dlcoll_cancel(dlcoll_work *work)
{
    if (!work)
        return DLCOLL_EINVAL;
    if (is_parents(work))
        return async_refuse();
    if (is_done(work))
        return comm_error(work->comm, DLCOLL_ESTATE, "cancel: the operation is complete");
    if (!p2p_is_receive(work))
        return comm_error(work->comm, DLCOLL_EINVAL, "cancel: the operation is not a receive");
    if (!p2p_cancel(work->comm, work, DLCOLL_ECANCELED))
        return comm_error(work->comm, DLCOLL_ESTATE, "cancel: a message has matched the receive");
    return 0;
}

void dlcoll_work_free(dlcoll_work *work)
{
    if (!work || is_parents(work))
        return;
    struct async *a = work->comm->async;
    pthread_mutex_lock(&a->lock);
    bool done = is_done(work);
    if (!done)
        atomic_store_explicit(&work->detached, true, memory_order_release);
    pthread_mutex_unlock(&a->lock);
    if (done)
        async_put_back(work);
}

/* -------------------------------------------------------------------------------------- the end */

void async_free(struct dlcoll_comm *comm, bool forked)
{
    struct async *a = comm->async;
    if (!a)
        return;
    if (!forked) {
        atomic_store(&a->quit, true);
        progress_leave(&a->carrier);
        progress_leave(&a->p2p);
        atomic_store(&comm->coll_slot, 0);
        atomic_store(&comm->p2p_slot, 0);
        for (struct dlcoll_work *w; (w = async_take(a));)
            async_complete(w, DLCOLL_EABORTED);
        p2p_stop(comm, DLCOLL_EABORTED);
    }
    for (struct dlcoll_work *w = a->pool, *next; w; w = next) {
        next = w->next;
        free(w->counts);
        free(w->own_ops);
        free(w->spans);
        free(w->layouts);
        if (!forked) {
            nccl_event_free(w->event);
            nccl_event_free(w->start);
        }
        free(w);
    }
    pthread_mutex_destroy(&a->lock);
    free(a);
    comm->async = NULL;
}
