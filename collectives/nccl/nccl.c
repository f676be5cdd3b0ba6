#include "collectives/comm/failure.h"
#include "collectives/nccl/nccl.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collectives/nccl/nccl_comm.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"

enum {
    SPIN_NS = 50 * 1000,
    YIELD_NS = 2000 * 1000,
    LOOK_NS = 1000 * 1000,        /* how often a waiter hears what others say */
    IDLE_NS = 20 * 1000 * 1000,   /* the thread, with nothing under way */
    ERRORS_NS = 50 * 1000 * 1000, /* how often it asks NCCL for errors */
    NEWS_NS = 100 * 1000 * 1000   /* how long a lost peer's death may take to arrive here */
};
#define ABORT_NS   UINT64_C(1000000000) /* how long the end waits for ncclCommAbort() */
#define DESTROY_NS UINT64_C(5000000000)

enum {
    FLIGHT_MOST = 512, /* operations enqueued and not known to be complete */
    MARKER_MOST = 128  /* operations that one marker covers */
};

/* ---------------------------------------------------------------------------------------- place */

struct nccl_place nccl_enter(const struct nccl *n)
{
    struct nccl_place p = {.capture_mode = CUDA_CAPTURE_RELAXED};
    cuda_context now = NULL;
    n->cuda->ThreadExchangeStreamCaptureMode(&p.capture_mode);
    n->cuda->CtxGetCurrent(&now);
    p.pushed = now != n->ctx && n->cuda->CtxPushCurrent(n->ctx) == CUDA_OK;
    return p;
}

void nccl_leave(const struct nccl *n, struct nccl_place p)
{
    cuda_context ours;
    if (p.pushed)
        n->cuda->CtxPopCurrent(&ours);
    n->cuda->ThreadExchangeStreamCaptureMode(&p.capture_mode);
}

/* ------------------------------------------------------------------------------------- failures */

static int nccl_error(struct nccl *n, int rc, struct coll_call *call)
{
    if (rc == NCCL_REMOTE_ERROR || rc == NCCL_SYSTEM_ERROR || rc == NCCL_INTERNAL)
        atomic_store(&n->peer_error, true);
    const char *more = n->nccl ? n->api->GetLastError(n->nccl) : NULL;
    return err_set(&call->failure->err, rc == NCCL_TIMEOUT ? -ETIMEDOUT : -EREMOTEIO,
                   "NCCL on rank %d (%s): %s%s%.300s", n->comm->world->rank,
                   call_name(call->sig.kind), n->api->GetErrorString(rc), more && *more ? ": " : "",
                   more ? more : "");
}

static int cuda_error(const struct nccl *n, int rc, struct coll_call *call)
{
    return err_set(&call->failure->err, -EREMOTEIO, "CUDA on rank %d (%s): %s",
                   n->comm->world->rank, call_name(call->sig.kind), cuda_strerror(n->cuda, rc));
}

/* Detaches NCCL's communicator and ends it in a thread of its own. */
static void end_nccl(struct nccl *n, enum nccl_job job)
{
    pthread_mutex_lock(&n->lock);
    struct nccl_helper what = {.job = job,
                               .api = n->api,
                               .cuda = n->cuda,
                               .ctx = n->ctx,
                               .nccl = n->nccl,
                               .made = n->made,
                               .inside = &n->inside};
    n->nccl = NULL;
    n->made = NULL;
    pthread_mutex_unlock(&n->lock);
    if (!what.nccl)
        return;
    struct nccl_helper *h = nccl_helper_start(&what);
    if (!h)
        nccl_helper_call(&what);
    pthread_mutex_lock(&n->lock);
    assert(!n->ending);
    n->ending = h;
    pthread_mutex_unlock(&n->lock);
}

/* Returns a rank of this node that has not entered this operation yet, or -1. */
static int who_is_behind(const dlcoll_comm *c, uint64_t seq)
{
    for (int i = 0; c->id == 0 && i < c->topo.nlocal; i++) {
        int rank = c->topo.local_ranks[i];
        struct segment_local *line = job_segment_local(&c->world->segment, c->world_ranks[rank]);
        if (line && rank != c->rank && atomic_load_explicit(&line->seq, memory_order_relaxed) < seq)
            return rank;
    }
    return -1;
}

/* ------------------------------------------------------------------------ the device's times
 *
 * Only where n->times: an operation stands between two events, `start` and `end`, and each event
 * takes the time. */

/* Once the device has reached the start: with the lock. */
static void record_start(struct nccl *n, cuda_event start, uint64_t record, bool *started)
{
    uint64_t ns;
    if (*started || n->cuda->EventQuery(start) != CUDA_OK)
        return;
    *started = true;
    if ((ns = nccl_clock_read(n, start)))
        recorder_put_device(&n->comm->job->recorder, record, ns, 0);
}

/* Both are complete: with the lock. False: the host's time is to be taken for the end. */
static bool record_times(struct nccl *n, cuda_event start, cuda_event end, uint64_t record)
{
    uint64_t from = nccl_clock_read(n, start), to = nccl_clock_read(n, end);
    if (from && to)
        recorder_put_device(&n->comm->job->recorder, record, from, to);
    return from && to;
}

/* The driver's code. */
static int make_events(struct nccl *n, struct dlcoll_work *w)
{
    int rc = CUDA_OK;
    w->started = false;
    if (!w->event && (rc = n->cuda->EventCreate(&w->event, nccl_event_flags(n))) != CUDA_OK)
        w->event = NULL;
    else if (n->times && !w->start && (rc = n->cuda->EventCreate(&w->start, 0)) != CUDA_OK)
        w->start = NULL;
    return rc;
}

static void settle_records(struct nccl *n, struct dlcoll_work *w, int code)
{
    if (w->record)
        recorder_end(&n->comm->job->recorder, w->record, code);
    work_complete(w, code);
}

static struct dlcoll_work *take_works(struct nccl *n)
{
    pthread_mutex_lock(&n->lock);
    struct dlcoll_work *w = n->works;
    n->works = n->marker = NULL;
    n->works_end = &n->works;
    pthread_mutex_unlock(&n->lock);
    return w;
}

/* NCCL has an error, such as it has when a peer's connection ends: that is a remote, a system or an
 * internal error, whatever call notices it. The launcher reports a death with its cause, so this
 * waits for that report: otherwise the error would blame the survivor. Returns whether it has
 * arrived. */
static bool await_news(const dlcoll_comm *c)
{
    for (uint64_t until = mono_ns() + NEWS_NS; !comm_is_stopped(c) && mono_ns() < until;)
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    return comm_is_stopped(c);
}

int nccl_fail(struct nccl *n, int status, struct coll_call *call)
{
    if (status == -ETIMEDOUT && call->failure->culprit < 0)
        call->failure->culprit = who_is_behind(n->comm, call->seq);
    if (status == -EREMOTEIO && atomic_load(&n->peer_error) && await_news(n->comm))
        status = -ECANCELED;
    int code = comm_fail(n->comm, status, call);
    struct dlcoll_work *w = take_works(n);
    for (struct dlcoll_work *next; w; w = next) {
        next = w->next;
        settle_records(n, w, code);
    }
    end_nccl(n, NCCL_ABORT);
    return code;
}

/* -------------------------------------------------------------------------------------- waiting */

struct nccl_pause {
    uint64_t since, looked;
};

/* Does one turn of a wait. 0: continue; else a code of coll_call.h. */
static int pause_once(struct nccl *n, struct nccl_pause *p, uint64_t deadline_ns,
                      struct coll_call *call)
{
    if (comm_is_stopped(n->comm))
        return -ECANCELED;
    uint64_t now = mono_ns();
    if (!p->since)
        p->since = p->looked = now;
    if (deadline_ns && now >= deadline_ns)
        return -ETIMEDOUT;
    if (now - p->looked > LOOK_NS) {
        int rc, error = NCCL_OK;
        p->looked = now;
        if ((rc = comm_look(n->comm, &call->failure->culprit)) < 0)
            return rc;
        pthread_mutex_lock(&n->lock);
        if (n->nccl)
            n->api->CommGetAsyncError(n->nccl, &error);
        rc = error != NCCL_OK && error != NCCL_IN_PROGRESS ? nccl_error(n, error, call) : 0;
        pthread_mutex_unlock(&n->lock);
        if (rc < 0)
            return rc;
    }
    if (now - p->since < SPIN_NS)
        wait_relax();
    else if (now - p->since < YIELD_NS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, 20 * 1000}, NULL);
    return 0;
}

int nccl_settle(struct nccl *n, int rc, uint64_t deadline_ns, struct coll_call *call)
{
    struct nccl_pause p = {0};
    if (rc == NCCL_OK && n->blocking)
        return 0;
    while (rc == NCCL_OK || rc == NCCL_IN_PROGRESS) {
        pthread_mutex_lock(&n->lock);
        bool gone = !n->nccl;
        if (!gone && n->api->CommGetAsyncError(n->nccl, &rc) != NCCL_OK)
            rc = NCCL_INTERNAL;
        pthread_mutex_unlock(&n->lock);
        if (gone)
            return -ECANCELED;
        if (rc == NCCL_OK)
            return 0;
        int status = rc == NCCL_IN_PROGRESS ? pause_once(n, &p, deadline_ns, call) : 0;
        if (status < 0)
            return status;
    }
    return nccl_error(n, rc, call);
}

int nccl_settle_helper(struct nccl *n, struct nccl_helper *h, nccl_comm_t *made,
                       uint64_t deadline_ns, struct coll_call *call)
{
    struct nccl_pause p = {0};
    int status = 0;
    if (!h)
        return err_set(&call->failure->err, -EREMOTEIO, "nccl: a thread cannot be started");
    while (status == 0 && !nccl_helper_is_done(h))
        status = pause_once(n, &p, deadline_ns, call);
    if (status == 0 && h->rc != NCCL_OK && h->rc != NCCL_IN_PROGRESS)
        status = nccl_error(n, h->rc, call);
    if (status == 0 && made)
        *made = h->nccl;
    nccl_helper_leave(h);
    return status;
}

int nccl_make(struct nccl *n, struct nccl_helper *what, void **made, struct coll_call *call)
{
    struct nccl_made *m = calloc(1, sizeof(*m));
    struct nccl_helper *h = NULL;
    int rc = NCCL_OK;
    if (!m)
        return err_set(&call->failure->err, -EREMOTEIO, "nccl: no memory");
    m->is_comm = what->job == NCCL_SPLIT;
    pthread_mutex_lock(&n->lock);
    bool alive = n->nccl != NULL;
    if (alive) {
        what->api = n->api;
        what->cuda = n->cuda;
        what->ctx = n->ctx;
        what->nccl = n->nccl;
        what->inside = &n->inside;
        what->made = n->made = m;
        if (n->blocking)
            h = nccl_helper_start(what);
        else
            rc = nccl_helper_call(what);
    }
    pthread_mutex_unlock(&n->lock);
    int status = !alive        ? -ECANCELED
                 : n->blocking ? nccl_settle_helper(n, h, NULL, call->deadline_ns, call)
                               : nccl_settle(n, rc, call->deadline_ns, call);
    pthread_mutex_lock(&n->lock);
    if (status == 0 && n->made == m) {
        *made = m->p;
        n->made = NULL;
    } else if (alive) { /* it belongs to who aborts */
        m = NULL;
        status = status == 0 ? -ECANCELED : status;
    }
    pthread_mutex_unlock(&n->lock);
    free(m);
    return status;
}

nccl_comm_t nccl_hold(struct nccl *n)
{
    pthread_mutex_lock(&n->lock);
    nccl_comm_t held = comm_is_stopped(n->comm) ? NULL : n->nccl;
    if (held)
        nccl_go_inside(&n->inside);
    pthread_mutex_unlock(&n->lock);
    return held;
}

void nccl_let_go(struct nccl *n)
{
    nccl_come_out(&n->inside);
}

/* After an abort, events on the stream complete as after a success. */
static bool is_aborted(struct nccl *n)
{
    pthread_mutex_lock(&n->lock);
    bool aborted = n->nccl == NULL;
    pthread_mutex_unlock(&n->lock);
    return aborted;
}

/* Waits for all work that precedes the event on its stream. `record` is the number of an operation
 * whose device times are recorded, or 0. */
static int wait_for_event(struct nccl *n, cuda_event event, struct coll_call *call, uint64_t record)
{
    struct nccl_pause p = {0};
    bool started = false;
    for (;;) {
        int rc = n->cuda->EventQuery(event);
        if (rc == CUDA_OK)
            return is_aborted(n) ? -ECANCELED : 0;
        if (rc != CUDA_NOT_READY)
            return cuda_error(n, rc, call);
        if (record && !started) {
            pthread_mutex_lock(&n->lock);
            record_start(n, n->clock.start, record, &started);
            pthread_mutex_unlock(&n->lock);
        }
        int status = pause_once(n, &p, call->deadline_ns, call);
        if (status < 0)
            return status;
    }
}

/* Takes complete works off the list. NCCL carries out the operations of one communicator in their
 * order, so the first incomplete work ends the search. */
static void look_at_works(struct nccl *n)
{
    struct dlcoll_work *done = NULL, **end = &done, *w;
    struct coll_call call;
    struct coll_failure failure;
    coll_failure_init(&failure);
    int status = 0;
    pthread_mutex_lock(&n->lock);
    while (status == 0 && n->nccl &&
           (w = n->works)) { /* of an aborted one nccl_fail() takes them */
        int rc = n->cuda->EventQuery(w->event);
        if (rc == CUDA_OK) {
            if (!(n->works = w->next))
                n->works_end = &n->works;
            if (w == n->marker)
                n->marker = NULL;
            assert(w->issued >= n->completed);
            if (n->times && w->record && record_times(n, w->start, w->event, w->record))
                w->record = 0;
            n->completed = w->issued;
            *end = w;
            end = &w->next;
            w->next = NULL;
            continue;
        }
        if (n->times && w->record)
            record_start(n, w->start, w->record, &w->started);
        call = w->call;
        call.failure = &failure;
        if (rc != CUDA_NOT_READY)
            status = cuda_error(n, rc, &call);
        else if (call.deadline_ns && mono_ns() >= call.deadline_ns)
            status = -ETIMEDOUT;
        else
            break;
    }
    pthread_mutex_unlock(&n->lock);
    for (struct dlcoll_work *next; done; done = next) {
        next = done->next;
        settle_records(n, done, 0);
    }
    if (status < 0)
        nccl_fail(n, status, &call);
}

void nccl_wait(dlcoll_work *w, uint64_t until_ns, bool once)
{
    struct nccl *n = w->comm->nccl;
    struct nccl_place place = nccl_enter(n);
    uint64_t since = mono_ns();
    while (!atomic_load_explicit(&w->done, memory_order_acquire)) {
        look_at_works(n);
        uint64_t now = mono_ns();
        if (once || (until_ns && now >= until_ns))
            break;
        if (now - since < SPIN_NS)
            wait_relax();
        else if (now - since < YIELD_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, 20 * 1000}, NULL);
    }
    nccl_leave(n, place);
}

int dlcoll_stream_wait(void *stream, dlcoll_work *work)
{
    if (!work || comm_is_forked(work->comm))
        return work ? DLCOLL_ESTATE : DLCOLL_EINVAL;
    dlcoll_comm *c = work->comm;
    struct nccl *n = c->nccl;
    if (!work->device || !n)
        return comm_error(c, DLCOLL_EINVAL, "stream_wait: the work is not one on device memory");
    if (atomic_load_explicit(&work->done, memory_order_acquire) && work->result < 0)
        return work->result;
    struct nccl_place place = nccl_enter(n);
    int capturing = 0, rc = stream ? n->cuda->StreamIsCapturing(stream, &capturing) : CUDA_OK;
    if (rc == CUDA_OK && !capturing)
        rc = n->cuda->StreamWaitEvent(stream, work->event, 0);
    nccl_leave(n, place);
    if (capturing)
        return comm_error(c, DLCOLL_EINVAL,
                          "stream_wait: the stream is being captured into a graph, and the work "
                          "belongs to no graph: wait before the capture begins");
    return rc == CUDA_OK ? 0
                         : comm_error(c, DLCOLL_EBACKEND, "stream_wait: CUDA on rank %d: %s",
                                      c->world->rank, cuda_strerror(n->cuda, rc));
}

void nccl_event_free(void *event)
{
    const struct cuda_api *cuda;
    struct err e = ERR_INIT;
    if (event && cuda_api_get(&cuda, &e) == 0)
        cuda->EventDestroy(event);
}

/* A call of NCCL that blocks beyond the operation's deadline: no one but the watcher can end it. */
static bool call_is_late(struct nccl *n)
{
    uint64_t until_ns = atomic_load(&n->calling_until_ns);
    return until_ns && mono_ns() >= until_ns;
}

/* The watcher. It looks at the stop words first, because a call of the driver may block. */
static void *watch(void *arg)
{
    struct nccl *n = arg;
    dlcoll_comm *c = n->comm;
    uint64_t asked = mono_ns();
    nccl_enter(n); /* until its end */
    while (!atomic_load(&n->quit)) {
        uint32_t bell = atomic_load(&n->bell);
        struct coll_call call;
        struct coll_failure failure;
        coll_failure_init(&failure);
        int error = NCCL_OK;
        pthread_mutex_lock(&n->lock);
        bool busy = n->works != NULL, alive = n->nccl != NULL;
        call = n->last;
        call.failure = &failure;
        if (alive && mono_ns() - asked > ERRORS_NS) {
            asked = mono_ns();
            n->api->CommGetAsyncError(n->nccl, &error);
        }
        bool bad = error != NCCL_OK && error != NCCL_IN_PROGRESS;
        bool late = !bad && call_is_late(n);
        int status = bad ? nccl_error(n, error, &call) : late ? -ETIMEDOUT : -ECANCELED;
        pthread_mutex_unlock(&n->lock);
        if (alive && (bad || late || comm_is_stopped(c) || atomic_load(&c->failed)))
            nccl_fail(n, status, &call);
        else if (busy)
            look_at_works(n);
        struct wait_word words[4] = {{&n->bell, bell}, {c->job_word, 0}, {&c->own_stop.word, 0}};
        int nwords = 3;
        if (c->shared_stop)
            words[nwords++] = (struct wait_word){&c->shared_stop->word, 0};
        if (comm_is_stopped(c)) /* nothing more will come of them */
            nwords = 1;
        wait_sleep(words, nwords, busy && alive ? LOOK_NS : IDLE_NS);
    }
    return NULL;
}

static void ring(struct nccl *n)
{
    atomic_fetch_add(&n->bell, 1);
    wait_wake(&n->bell);
}

int nccl_start_watching(struct nccl *n)
{
    int r = thread_start(&n->thread, 0, watch, n);
    n->has_thread = r == 0;
    return r;
}

static void stop_watching(struct nccl *n)
{
    atomic_store(&n->quit, true);
    ring(n);
    if (n->has_thread)
        pthread_join(n->thread, NULL);
    n->has_thread = false;
}

/* ----------------------------------------------------------------------------------- performing */

static void show(const dlcoll_comm *c, uint64_t seq, enum segment_local_state state)
{
    struct segment_local *line = c->id == 0 ? world_line(c->world) : NULL;
    if (!line)
        return;
    atomic_store_explicit(&line->seq, seq, memory_order_relaxed);
    atomic_store_explicit(&line->state, state, memory_order_release);
}

struct enqueued { /* an operation, or several at once */
    const struct coll_call *call;
    const dlcoll_p2p *list;
    size_t n;
    bool capturing; /* into a graph: nothing of it runs now */
};

/* Scratch memory as the call needs it. A graph gets memory of its own, which it may use for as long
 * as the communicator lives. Else the older memory is freed in the order of the library's stream:
 * cuMemFree() would wait for everything on the device. 0 or as coll_call.h. */
static int make_room(struct nccl *n, const struct enqueued *q, struct coll_call *call,
                     cuda_ptr *room)
{
    size_t len = nccl_room(call);
    cuda_ptr p = 0;
    *room = n->scratch;
    if (q->capturing && len) {
        struct nccl_scratch *kept = malloc(sizeof(*kept));
        int rc = kept ? n->cuda->MemAlloc(&p, len) : CUDA_OK;
        if (!kept || rc != CUDA_OK) {
            free(kept);
            return kept ? cuda_error(n, rc, call) : -ENOMEM;
        }
        *kept = (struct nccl_scratch){.p = *room = p, .next = n->captured};
        n->captured = kept;
        return 0;
    }
    if (len <= n->scratch_len)
        return 0;
    int status = n->scratch ? wait_for_event(n, n->aside, call, 0) : 0;
    if (status < 0)
        return status;
    int rc = n->cuda->MemAlloc(&p, len);
    if (rc != CUDA_OK)
        return cuda_error(n, rc, call);
    if (n->scratch && n->cuda->MemFreeAsync)
        n->cuda->MemFreeAsync(n->scratch, n->stream);
    else if (n->scratch)
        n->cuda->MemFree(n->scratch);
    n->scratch = *room = p;
    n->scratch_len = len;
    return 0;
}

/* Enqueues in a group of its own, whose end tells whether the program has one around it: at the end
 * of the outermost group NCCL in non-blocking mode says that it is in progress, at that of an inner
 * one it says success, and nothing has been enqueued yet. Returns whether that is so, where NCCL
 * tells: not in blocking mode, before 2.23.4, nor where there is nothing to do for other ranks. */
static bool enqueue_as_group(struct nccl *n, const struct enqueued *q, nccl_comm_t nccl,
                             cuda_stream stream, cuda_ptr room, int *rc)
{
    int start = n->api->GroupStart();
    *rc = q->list ? nccl_enqueue_list(n, nccl, q->list, q->n, stream)
                  : nccl_enqueue(n, nccl, q->call, stream, room);
    int end = start == NCCL_OK ? n->api->GroupEnd() : start;
    bool went = *rc == NCCL_OK || *rc == NCCL_IN_PROGRESS;
    bool tells = !n->blocking && n->api->version >= NCCL_TELLS_GROUPS && n->comm->size > 1 &&
                 (q->list || !q->call->dtype || q->call->count);
    if (went)
        *rc = end;
    return went && tells && !q->list && end == NCCL_OK;
}

/* In blocking mode a call of NCCL may block forever: this thread does not hold the lock then, but
 * is counted as inside, and an abort ends the call. Otherwise calls return at once, and the lock
 * keeps an abort out. */
static int call_nccl(struct nccl *n, const struct enqueued *q, struct coll_call *call,
                     cuda_stream stream, cuda_ptr room, int *rc)
{
    pthread_mutex_lock(&n->lock);
    nccl_comm_t nccl = comm_is_stopped(n->comm) ? NULL : n->nccl;
    if (nccl && !q->capturing)
        n->issued++;
    if (nccl)
        n->last = *q->call;
    if (nccl && n->blocking) {
        nccl_go_inside(&n->inside);
        atomic_store(&n->calling_until_ns, call->deadline_ns);
    }
    if (!nccl || n->blocking)
        pthread_mutex_unlock(&n->lock);
    if (!nccl)
        return -ECANCELED;
    bool inside = enqueue_as_group(n, q, nccl, stream, room, rc);
    if (n->blocking) {
        atomic_store(&n->calling_until_ns, 0);
        nccl_come_out(&n->inside);
    } else {
        pthread_mutex_unlock(&n->lock);
    }
    return inside ? err_set(&call->failure->err, -EINVAL,
                            "%s on rank %d was called between the program's ncclGroupStart() and "
                            "ncclGroupEnd(): it begins only at the group's end, unobserved",
                            call_name(call->sig.kind), n->comm->world->rank)
                  : 0;
}

/* Waits while too many operations are in flight: a full queue of the driver would block a call
 * without a deadline. Returns 0 or a code of coll_call.h. */
static int await_flight(struct nccl *n, struct coll_call *call)
{
    struct nccl_pause p = {0};
    int status = 0;
    while (status == 0 && n->issued - n->completed >= FLIGHT_MOST) {
        look_at_works(n);
        pthread_mutex_lock(&n->lock);
        if (!n->works) /* the others were waited for */
            n->completed = n->issued;
        bool full = n->issued - n->completed >= FLIGHT_MOST;
        pthread_mutex_unlock(&n->lock);
        if (full)
            status = pause_once(n, &p, call->deadline_ns, call);
    }
    return status;
}

/* Enqueues on the stream, and records the event, if any, behind the operation. Returns 0 or a code
 * of coll_call.h. */
static int put_on(struct nccl *n, const struct enqueued *q, struct coll_call *call,
                  cuda_stream stream, cuda_event event)
{
    cuda_ptr room = 0;
    int rc = NCCL_OK, status = q->capturing ? 0 : await_flight(n, call);
    if (status == 0)
        status = make_room(n, q, call, &room);
    if (status == 0 && nccl_room(call) && !q->capturing &&
        (rc = n->cuda->StreamWaitEvent(stream, n->aside, 0)) != CUDA_OK)
        status = cuda_error(n, rc, call);
    if (status == 0)
        status = call_nccl(n, q, call, stream, room, &rc);
    if (status == 0)
        status = nccl_settle(n, rc, call->deadline_ns, call);
    if (status == 0 && nccl_room(call) && !q->capturing &&
        (rc = n->cuda->EventRecord(n->aside, stream)) != CUDA_OK)
        status = cuda_error(n, rc, call);
    if (status == 0 && event && (rc = n->cuda->EventRecord(event, stream)) != CUDA_OK)
        status = cuda_error(n, rc, call);
    return status;
}

/* Returns false if the communicator has failed meanwhile: then no thread looks at works. */
static bool add_work(struct nccl *n, struct dlcoll_work *w, const struct coll_call *call,
                     uint64_t record)
{
    pthread_mutex_lock(&n->lock);
    bool alive = n->nccl && !comm_is_stopped(n->comm);
    if (alive) {
        w->call = *call;
        w->device = true;
        w->record = record;
        w->issued = n->issued;
        w->next = NULL;
        *n->works_end = w;
        n->works_end = &w->next;
        n->marker = NULL; /* whatever is later needs a newer one */
    }
    pthread_mutex_unlock(&n->lock);
    return alive;
}

/* An operation on the program's stream has a deadline even without a handle: a marker, which is a
 * work with an event behind the newest operation. The same event is recorded again until it covers
 * MARKER_MOST operations. The oldest marker stays as it is, so that its deadline does not move.
 * Returns 0 or a code of coll_call.h. */
static int mark(struct nccl *n, struct coll_call *call, cuda_stream stream)
{
    int rc = CUDA_OK;
    pthread_mutex_lock(&n->lock);
    struct dlcoll_work *w = n->marker;
    bool again = w && w != n->works && n->marker_stream == stream &&
                 n->issued - n->marker_from < MARKER_MOST;
    if (again && (rc = n->cuda->EventRecord(w->event, stream)) == CUDA_OK) {
        w->call = *call;
        w->issued = n->issued;
    }
    pthread_mutex_unlock(&n->lock);
    if (again)
        return rc == CUDA_OK ? 0 : cuda_error(n, rc, call);
    if (!(w = work_new(n->comm)))
        return -ENOMEM;
    rc = make_events(n, w);
    if (rc == CUDA_OK)
        rc = n->cuda->EventRecord(w->event, stream);
    if (rc != CUDA_OK) {
        work_put_back(w);
        return cuda_error(n, rc, call);
    }
    w->marker = true;
    atomic_store_explicit(&w->detached, true, memory_order_relaxed);
    if (!add_work(n, w, call, 0)) {
        work_put_back(w);
        return -ECANCELED;
    }
    pthread_mutex_lock(&n->lock);
    bool first = n->works == w;
    n->marker = w;
    n->marker_stream = stream;
    n->marker_from = n->issued;
    pthread_mutex_unlock(&n->lock);
    if (first)
        ring(n);
    return 0;
}

/* An operation without a stream follows the work that the program has enqueued on the default
 * stream. Returns 0 or a code of coll_call.h. */
static int follow_default_stream(struct nccl *n, struct coll_call *call)
{
    int rc = n->cuda->EventRecord(n->before, NULL);
    if (rc == CUDA_OK)
        rc = n->cuda->StreamWaitEvent(n->stream, n->before, 0);
    return rc == CUDA_OK ? 0 : cuda_error(n, rc, call);
}

/* An operation on its way: what the call wants, and what it has so far. */
struct performed {
    struct enqueued *q;
    struct coll_call *call;
    cuda_stream on;
    bool wait;             /* neither a stream nor a handle: until the operation is complete */
    bool timed;            /* the device's times go into the record */
    bool own;              /* the work is a marker, whose events take the time */
    bool recorded;         /* the record has its end */
    struct dlcoll_work *w; /* NULL: no handle, and no marker of its own */
    uint64_t number;       /* of the record */
};

/* Returns 0 or the public code. */
static int begin_work(struct nccl *n, struct performed *p, bool handle)
{
    const char *name = call_name(p->call->sig.kind);
    if (handle && p->q->capturing)
        return comm_error(
            n->comm, DLCOLL_EINVAL,
            "%s: the stream is being captured into a graph: an operation there cannot "
            "have a work handle",
            name);
    if ((handle || p->own) && !(p->w = work_new(n->comm)))
        return comm_error(n->comm, DLCOLL_ENOMEM, "%s: no memory", name);
    if (p->w)
        p->w->marker = p->own;
    if (p->own)
        atomic_store_explicit(&p->w->detached, true, memory_order_relaxed);
    return 0;
}

/* The device has come to the end of an operation that the caller has waited for. */
static void note_end(struct nccl *n, struct performed *p)
{
    pthread_mutex_lock(&n->lock);
    p->recorded = p->timed && record_times(n, n->clock.start, n->event, p->number);
    if (!n->works) /* else one of these, on another stream, is looked at later */
        n->completed = n->issued;
    pthread_mutex_unlock(&n->lock);
}

/* Enqueues the operation, and waits for it or has its work watched. Returns 0 or a code of
 * coll_call.h; -EINVAL: nothing has happened to the communicator. */
static int carry_out(struct nccl *n, struct performed *p, bool follows)
{
    struct coll_call *call = p->call;
    struct dlcoll_work *w = p->w;
    int rc = w ? make_events(n, w) : CUDA_OK;
    int status = rc != CUDA_OK ? cuda_error(n, rc, call) : 0;
    if (status == 0 && follows)
        status = follow_default_stream(n, call);
    cuda_event start = w ? w->start : n->clock.start;
    if (status == 0 && p->timed && (rc = n->cuda->EventRecord(start, p->on)) != CUDA_OK)
        status = cuda_error(n, rc, call);
    if (status == 0)
        status = put_on(n, p->q, call, p->on, w ? w->event : p->wait ? n->event : NULL);
    if (status == 0 && p->wait)
        status = wait_for_event(n, n->event, call, p->timed ? p->number : 0);
    if (status == 0 && p->wait)
        note_end(n, p);
    else if (status == 0 && !w && !p->q->capturing)
        status = mark(n, call, p->on);
    if (status == 0 && w && !add_work(n, w, call, p->number))
        status = -ECANCELED;
    return status;
}

/* Gives the program its handle, or ends what has failed. Returns the public code. */
static int conclude(struct nccl *n, struct performed *p, int status, dlcoll_work **work)
{
    dlcoll_comm *c = n->comm;
    int code = status == -EINVAL ? comm_error(c, DLCOLL_EINVAL, "%s", p->call->failure->err.msg)
               : status < 0      ? nccl_fail(n, status, p->call)
                                 : 0;
    if (!p->q->list && (code == 0 || status == -EINVAL))
        show(c, p->call->seq, SEGMENT_LOCAL_READY);
    if ((!p->w && !p->recorded) || code < 0)
        recorder_end(&c->job->recorder, p->number, code);
    if (p->own && code < 0) {
        work_put_back(p->w);
    } else if (p->w && code < 0) {
        work_complete(p->w, code);
        dlcoll_work_free(p->w);
    } else if (p->w) {
        if (work)
            *work = p->w;
        ring(n);
    }
    return code;
}

static int perform(struct nccl *n, struct enqueued *q, struct coll_call *call, void *stream,
                   dlcoll_work **work)
{
    dlcoll_comm *c = n->comm;
    int capturing = 0, rc = stream ? n->cuda->StreamIsCapturing(stream, &capturing) : CUDA_OK;
    q->capturing = capturing != 0;
    struct performed p = {.q = q,
                          .call = call,
                          .on = stream ? stream : n->stream,
                          .wait = !work && !stream,
                          .timed = n->times && !capturing};
    p.own = p.timed && !work && !p.wait;
    int code = begin_work(n, &p, work != NULL);
    if (code < 0)
        return code;
    p.number = recorder_begin_device(&c->job->recorder, c->id, c->name, call->seq, &call->sig,
                                     coll_bytes(call), p.timed);
    if (!q->list)
        show(c, call->seq, SEGMENT_LOCAL_CALL);
    int status = rc != CUDA_OK ? cuda_error(n, rc, call) : carry_out(n, &p, !stream);
    return conclude(n, &p, status, work);
}

static int perform_there(struct nccl *n, struct enqueued *q, struct coll_call *call, void *stream,
                         dlcoll_work **work)
{
    struct nccl_place place = nccl_enter(n);
    int code = perform(n, q, call, stream, work);
    nccl_leave(n, place);
    return code;
}

int nccl_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work)
{
    int code;
    struct nccl_wish wish = {.buffer = call->nspans ? call->spans[0].send
                                       : call->send ? call->send
                                                    : call->recv,
                             .stream = call->stream};
    struct nccl *n = nccl_get(c, &wish, call->deadline_ns, &code);
    if (!n)
        return code;
    const char *why = nccl_refuses(n, call);
    if (why)
        return comm_error(c, DLCOLL_ENOSUP, "%s on device memory: %s", call_name(call->sig.kind),
                          why);
    struct coll_failure failure;
    coll_failure_init(&failure);
    call->failure = &failure;
    call->seq = ++c->seq;
    call->algo = "nccl";
    code = perform_there(n, &(struct enqueued){.call = call}, call, call->stream, work);
    call->failure = NULL;
    if (code == DLCOLL_ENOMEM && !atomic_load(&c->failed))
        c->seq = call->seq - 1; /* as if it had not been called */
    return code;
}

int nccl_batch(dlcoll_comm *c, enum call_kind kind, const dlcoll_p2p *list, size_t count,
               uint64_t deadline_ns, void *stream, dlcoll_work **work)
{
    int code = 0;
    /* A send meets a receive between two ranks only: the others need not be here. So NCCL's
     * communicator must have been made by an operation in which all are. */
    struct nccl *n = c->nccl;
    if (!n && c->size > 1)
        return comm_error(c, DLCOLL_ESTATE,
                          "%s on device memory: an operation of all ranks on device memory (a "
                          "barrier with a stream) must come first",
                          call_name(kind));
    struct nccl_wish wish = {.buffer = list[0].send ? list[0].send : list[0].recv,
                             .stream = stream};
    if (!n && !(n = nccl_get(c, &wish, deadline_ns, &code)))
        return code;
    for (size_t i = 0; i < count; i++) {
        if (list[i].tag)
            return comm_error(c, DLCOLL_ENOSUP, "%s on device memory: NCCL has no tags",
                              call_name(kind));
    }
    struct coll_failure failure;
    struct coll_call call = nccl_internal_call(c, kind, NULL, 0, deadline_ns, &failure);
    call.seq = c->seq;
    call.sig.dtype = (uint8_t)list[0].dtype;
    call.sig.root = list[0].peer;
    call.count = list[0].count;
    call.sig.count = list[0].count;
    call.elem = dtype_get((int)list[0].dtype)->size;
    return perform_there(n, &(struct enqueued){.call = &call, .list = list, .n = count}, &call,
                         stream, work);
}

/* -------------------------------------------------------------------------------------- the end */

/* Whether the list has a work with a handle. NCCL's end waits for operations without one. */
static bool has_handles(const struct dlcoll_work *w)
{
    while (w && w->marker)
        w = w->next;
    return w != NULL;
}

bool nccl_is_busy(dlcoll_comm *c)
{
    struct nccl *n = c->nccl;
    if (!n)
        return false;
    struct nccl_place place = nccl_enter(n);
    look_at_works(n);
    nccl_leave(n, place);
    pthread_mutex_lock(&n->lock);
    bool busy = has_handles(n->works);
    pthread_mutex_unlock(&n->lock);
    return busy;
}

/* Waits for all works, also those without a handle. Returns 0 or a code of coll_call.h. */
static int await_works(struct nccl *n, struct coll_call *call)
{
    struct nccl_pause p = {0};
    int status = 0;
    for (;;) {
        look_at_works(n);
        pthread_mutex_lock(&n->lock);
        bool busy = n->works != NULL;
        pthread_mutex_unlock(&n->lock);
        if (!busy || status < 0)
            return status;
        status = pause_once(n, &p, call->deadline_ns, call);
    }
}

int nccl_finalize(dlcoll_comm *c)
{
    struct nccl *n = c->nccl;
    if (!n)
        return 0;
    struct coll_failure failure;
    struct coll_call call =
        nccl_internal_call(c, CALL_FINALIZE, NULL, 0, comm_deadline(c->timeout_ms), &failure);
    call.seq = c->seq;
    struct nccl_place place = nccl_enter(n);
    int status = await_works(n, &call);
    pthread_mutex_lock(&n->lock);
    bool alive = n->nccl != NULL && status == 0;
    struct nccl_helper *h = NULL, what = {.job = NCCL_FINALIZE,
                                          .api = n->api,
                                          .cuda = n->cuda,
                                          .ctx = n->ctx,
                                          .nccl = n->nccl,
                                          .inside = &n->inside};
    int rc = alive && !n->blocking ? nccl_helper_call(&what) : NCCL_OK;
    if (alive && n->blocking)
        h = nccl_helper_start(&what);
    pthread_mutex_unlock(&n->lock);
    status = status < 0    ? status
             : !alive      ? -ECANCELED
             : n->blocking ? nccl_settle_helper(n, h, NULL, call.deadline_ns, &call)
                           : nccl_settle(n, rc, call.deadline_ns, &call);
    nccl_leave(n, place);
    return status < 0 ? nccl_fail(n, status, &call) : 0;
}

void nccl_free(dlcoll_comm *c, bool forked)
{
    struct nccl *n = c->nccl;
    c->nccl = NULL;
    if (!n || forked) /* CUDA does not outlive a fork(): nothing of it may be touched */
        return;
    stop_watching(n);
    struct nccl_place place = nccl_enter(n);
    struct dlcoll_work *w = take_works(n);
    enum nccl_job job = has_handles(w) || atomic_load(&c->failed) ? NCCL_ABORT : NCCL_DESTROY;
    end_nccl(n, job);
    for (struct dlcoll_work *next; w; w = next) {
        next = w->next;
        settle_records(n, w, DLCOLL_EABORTED);
    }
    struct nccl_helper *h = n->ending;
    uint64_t limit = job == NCCL_ABORT ? ABORT_NS : DESTROY_NS;
    bool ended = !h || nccl_helper_wait(h, h->since_ns + limit);
    if (h)
        nccl_helper_leave(h);
    nccl_leave(n, place);
    if (ended)
        nccl_free_parts(n);
    else /* its kernels may still use the stream and the memory */
        log_verbose("rank %d: NCCL does not end: its memory and stream are left behind", c->rank);
}
