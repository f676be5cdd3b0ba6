#include "collectives/perform/queue.h"

#include <errno.h>
#include <stdlib.h>

#include "collectives/base/task.h"
#include "collectives/comm/comm.h"
#include "collectives/comm/progress.h"
#include "collectives/comm/work.h"
#include "collectives/perform/execute.h"
#include "core/clock.h"

struct queue {
    pthread_mutex_t lock;
    struct dlcoll_work *head, **tail; /* operations not yet started */
    _Atomic int pending;              /* queued operations, and the one under way */
    struct task carrier;              /* carries the operations out */
    _Atomic bool quit;
};

static struct queue *queue_of(struct dlcoll_comm *comm)
{
    struct queue *q = comm->queue;
    if (q)
        return q;
    pthread_mutex_lock(&comm->making);
    q = comm->queue;
    if (!q && (q = calloc(1, sizeof(*q)))) {
        pthread_mutex_init(&q->lock, NULL);
        q->tail = &q->head;
        comm->queue = q;
    }
    pthread_mutex_unlock(&comm->making);
    return q;
}

/* The next operation of the queue. Under `running`. */
static struct dlcoll_work *queue_take(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    struct dlcoll_work *w = q->head;
    if (w && !(q->head = w->next))
        q->tail = &q->head;
    pthread_mutex_unlock(&q->lock);
    return w;
}

/* Runs the operations of the queue until it is empty, or until `until` is done. Under `running`. */
static void run_queue(struct dlcoll_comm *comm, struct dlcoll_work *until)
{
    struct queue *q = comm->queue;
    struct dlcoll_work *w;
    while ((!until || !work_is_done(until)) && (w = queue_take(q))) {
        int code = execute_call(comm, &w->call);
        atomic_fetch_sub(&q->pending, 1);
        work_complete(w, code);
    }
}

bool queue_is_busy(const struct dlcoll_comm *comm)
{
    return comm->queue && atomic_load_explicit(&comm->queue->pending, memory_order_acquire);
}

/* A thread that runs the queue rings when it leaves something in it. */
static void carry_out(void *arg)
{
    struct dlcoll_comm *comm = arg;
    struct queue *q = comm->queue;
    while (atomic_load(&q->pending) && !atomic_load(&q->quit) &&
           pthread_mutex_trylock(&comm->running) == 0) {
        run_queue(comm, NULL);
        pthread_mutex_unlock(&comm->running);
    }
}

static void ring_carrier(struct dlcoll_comm *comm)
{
    task_ring(atomic_load_explicit(&comm->coll_slot, memory_order_relaxed));
}

void queue_ring(struct dlcoll_comm *comm)
{
    if (queue_is_busy(comm))
        ring_carrier(comm);
}

int queue_submit(struct dlcoll_comm *comm, struct dlcoll_work *w)
{
    struct queue *q = queue_of(comm);
    int r = q ? comm_start_task(comm, &q->carrier, carry_out, comm, &comm->coll_slot) : -ENOMEM;
    if (r < 0)
        return r;
    pthread_mutex_lock(&q->lock);
    w->next = NULL;
    *q->tail = w;
    q->tail = &w->next;
    atomic_fetch_add(&q->pending, 1);
    pthread_mutex_unlock(&q->lock);
    ring_carrier(comm);
    return 0;
}

static void sleep_on(struct dlcoll_work *w, uint64_t until_ns)
{
    uint64_t now = mono_ns();
    atomic_fetch_add(&w->sleepers, 1);
    if (!work_is_done(w) && (!until_ns || now < until_ns))
        wait_sleep(&(struct wait_word){&w->done, 0}, 1, until_ns ? until_ns - now : UINT64_MAX);
    atomic_fetch_sub(&w->sleepers, 1);
}

void queue_wait(struct dlcoll_work *w, uint64_t until_ns)
{
    struct dlcoll_comm *comm = w->comm;
    while (!work_is_done(w) && (!until_ns || mono_ns() < until_ns)) {
        if (!until_ns && pthread_mutex_trylock(&comm->running) == 0) {
            run_queue(comm, w);
            pthread_mutex_unlock(&comm->running);
            queue_ring(comm); /* the task runs the rest */
        } else {
            sleep_on(w, until_ns);
        }
    }
}

void queue_free(struct dlcoll_comm *comm, bool forked)
{
    struct queue *q = comm->queue;
    if (!q)
        return;
    if (!forked) {
        atomic_store(&q->quit, true);
        progress_leave(&q->carrier);
        atomic_store(&comm->coll_slot, 0);
        for (struct dlcoll_work *w; (w = queue_take(q));)
            work_complete(w, DLCOLL_EABORTED);
    }
    pthread_mutex_destroy(&q->lock);
    free(q);
    comm->queue = NULL;
}
