#include "collectives/comm/work.h"

#include <pthread.h>
#include <stdlib.h>

#include "collectives/base/error.h"
#include "collectives/base/task.h"
#include "collectives/comm/comm.h"

struct work_pool {
    pthread_mutex_t lock; /* of the list, and of the end of every handle */
    struct dlcoll_work *spare;
};

/* The number of handles that were completed while a thread waited for any of several. */
static _Atomic uint32_t g_completed, g_choosers;

static struct work_pool *pool_of(struct dlcoll_comm *comm)
{
    struct work_pool *p = comm->pool;
    if (p)
        return p;
    pthread_mutex_lock(&comm->making);
    p = comm->pool;
    if (!p && (p = calloc(1, sizeof(*p)))) {
        pthread_mutex_init(&p->lock, NULL);
        comm->pool = p;
    }
    pthread_mutex_unlock(&comm->making);
    return p;
}

struct dlcoll_work *work_new(struct dlcoll_comm *comm)
{
    struct work_pool *p = pool_of(comm);
    if (!p)
        return NULL;
    pthread_mutex_lock(&p->lock);
    struct dlcoll_work *w = p->spare;
    if (w)
        p->spare = w->next;
    pthread_mutex_unlock(&p->lock);
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

void work_put_back(struct dlcoll_work *w)
{
    if (!w)
        return;
    struct work_pool *p = w->comm->pool;
    pthread_mutex_lock(&p->lock);
    w->next = p->spare;
    p->spare = w;
    pthread_mutex_unlock(&p->lock);
}

void work_complete(struct dlcoll_work *w, int result)
{
    struct work_pool *p = w->comm->pool;
    pthread_mutex_lock(&p->lock);
    void (*notify)(void *arg) = w->notify;
    void *notify_arg = w->notify_arg;
    w->notify = NULL;
    w->result = result;
    if (atomic_load_explicit(&w->detached, memory_order_relaxed)) {
        w->next = p->spare;
        p->spare = w;
    } else {
        atomic_store(&w->done, 1);
    }
    pthread_mutex_unlock(&p->lock);
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

const _Atomic uint32_t *work_choose_begin(void)
{
    atomic_fetch_add(&g_choosers, 1);
    return &g_completed;
}

void work_choose_end(void)
{
    atomic_fetch_sub(&g_choosers, 1);
}

int work_refuse(void)
{
    return error_set_global(DLCOLL_ESTATE, "the handle is that of a fork()'s parent");
}

int dlcoll_notify(dlcoll_work *work, void (*fn)(void *arg), void *arg)
{
    if (!work || !fn)
        return error_set_global(DLCOLL_EINVAL, "dlcoll_notify: %s is NULL", work ? "fn" : "work");
    if (comm_is_forked(work->comm))
        return work_refuse();
    if (work->device)
        return comm_error(work->comm, DLCOLL_ENOSUP,
                          "dlcoll_notify: the operation is on device memory");
    struct work_pool *p = work->comm->pool;
    pthread_mutex_lock(&p->lock);
    bool done = work_is_done(work), taken = !done && work->notify;
    if (!done && !taken) {
        work->notify = fn;
        work->notify_arg = arg;
    }
    pthread_mutex_unlock(&p->lock);
    if (taken)
        return comm_error(work->comm, DLCOLL_ESTATE,
                          "dlcoll_notify: another function is to be "
                          "called already");
    if (done)
        fn(arg);
    return 0;
}

void dlcoll_work_free(dlcoll_work *work)
{
    if (!work || comm_is_forked(work->comm))
        return;
    struct work_pool *p = work->comm->pool;
    pthread_mutex_lock(&p->lock);
    bool done = work_is_done(work);
    if (!done)
        atomic_store_explicit(&work->detached, true, memory_order_release);
    pthread_mutex_unlock(&p->lock);
    if (done)
        work_put_back(work);
}

void work_pool_free(struct dlcoll_comm *comm, void (*free_event)(void *event))
{
    struct work_pool *p = comm->pool;
    if (!p)
        return;
    for (struct dlcoll_work *w = p->spare, *next; w; w = next) {
        next = w->next;
        free(w->counts);
        free(w->own_ops);
        free(w->spans);
        free(w->layouts);
        if (free_event) {
            free_event(w->event);
            free_event(w->start);
        }
        free(w);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
    comm->pool = NULL;
}
