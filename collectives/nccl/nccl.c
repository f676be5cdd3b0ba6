#include "collectives/nccl/nccl.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collectives/nccl/nccl_comm.h"
#include "core/clock.h"
#include "core/thread.h"

enum {
    SPIN_NS = 50 * 1000,
    YIELD_NS = 2000 * 1000,
    LOOK_NS = 1000 * 1000,       /* how often a waiter hears what others say */
    IDLE_NS = 20 * 1000 * 1000,  /* the thread, with nothing under way */
    ERRORS_NS = 50 * 1000 * 1000 /* how often it asks NCCL for errors */
};

/* ------------------------------------------------------------------------------------- choice */

int nccl_choose(int backend, bool *devices, struct err *e)
{
    static const char *const names[] = {"", "auto", "cpu", "nccl"};
    const char *env = getenv("DLCOLL_BACKEND");
    const struct nccl_api *nccl;
    const struct cuda_api *cuda;
    int b = backend;
    for (int i = 1; b == DLCOLL_BACKEND_DEFAULT && env && *env && i < 4; i++)
        b = strcmp(env, names[i]) == 0 ? i : b;
    if (b == DLCOLL_BACKEND_DEFAULT && env && *env)
        return err_set(e, -EINVAL, "DLCOLL_BACKEND: '%.40s' is not one of auto, cpu, nccl", env);
    if (b < 0 || b > DLCOLL_BACKEND_NCCL)
        return err_set(e, -EINVAL, "there is no such backend (%d)", b);
    *devices = b == DLCOLL_BACKEND_NCCL;
    if (*devices && (cuda_api_get(&cuda, e) < 0 || nccl_api_get(&nccl, e) < 0)) {
        err_wrap(e, "the nccl backend cannot be used");
        return e->code = -ENOTSUP;
    }
    if (b == DLCOLL_BACKEND_AUTO || b == DLCOLL_BACKEND_DEFAULT)
        *devices = cuda_is_likely() && cuda_api_get(&cuda, e) == 0;
    *e = (struct err)ERR_INIT;
    return 0;
}

static bool is_device_memory(const void *p)
{
    const struct cuda_api *cuda;
    struct err e = ERR_INIT;
    struct cuda_pointer a = {0};
    if (!p || cuda_api_get(&cuda, &e) < 0)
        return false;
    if (cuda->PointerGetAttributes(&a, p) != CUDA_OK) {
        cuda->GetLastError(); /* the program is not to find it */
        return false;
    }
    return a.type == CUDA_MEMORY_DEVICE || a.type == CUDA_MEMORY_MANAGED;
}

bool nccl_is_for(const dlcoll_comm *c, const void *p, const void *stream)
{
    return stream || (c->job->conf.devices && is_device_memory(p));
}

/* ------------------------------------------------------------------------------------ failures */

static int nccl_error(struct nccl *n, int rc, struct coll_call *call)
{
    const char *more = n->nccl ? n->api->GetLastError(n->nccl) : NULL;
    return err_set(&call->err, -EREMOTEIO, "NCCL on rank %d (%s): %s%s%.300s", n->comm->world->rank,
                   call_name(call->id.kind), n->api->GetErrorString(rc), more && *more ? ": " : "",
                   more ? more : "");
}

static int cuda_error(const struct nccl *n, int rc, struct coll_call *call)
{
    return err_set(&call->err, -EREMOTEIO, "CUDA on rank %d (%s): %s", n->comm->world->rank,
                   call_name(call->id.kind), n->cuda->GetErrorString(rc));
}

/* Its kernels end, on this rank, whatever they wait for. Under the lock. */
static void abort_nccl(struct nccl *n)
{
    nccl_comm_t dead = n->nccl;
    n->nccl = NULL;
    if (dead)
        n->api->CommAbort(dead);
}

/* Of this node's ranks, one that has not come to this operation yet. */
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

static void settle_records(struct nccl *n, struct dlcoll_work *w, int code)
{
    recorder_end(&n->comm->job->recorder, w->record, code);
    async_complete(w, code);
}

int nccl_fail(struct nccl *n, int status, struct coll_call *call)
{
    if (status == -ETIMEDOUT && call->culprit < 0)
        call->culprit = who_is_behind(n->comm, call->seq);
    pthread_mutex_lock(&n->lock);
    abort_nccl(n);
    pthread_mutex_unlock(&n->lock);
    int code = comm_fail(n->comm, status, call);
    pthread_mutex_lock(&n->lock);
    struct dlcoll_work *w = n->works;
    n->works = NULL;
    pthread_mutex_unlock(&n->lock);
    for (struct dlcoll_work *next; w; w = next) {
        next = w->next;
        settle_records(n, w, code);
    }
    return code;
}

/* ------------------------------------------------------------------------------------- waiting */

struct patience {
    uint64_t since, looked;
};

/* One turn of a wait. 0: go on; else as coll_call.h says. */
static int be_patient(struct nccl *n, struct patience *p, uint64_t deadline_ns,
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
        if ((rc = comm_look(n->comm, &call->culprit)) < 0)
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
    struct patience p = {0};
    while (rc == NCCL_IN_PROGRESS) {
        int status = be_patient(n, &p, deadline_ns, call);
        if (status < 0)
            return status;
        pthread_mutex_lock(&n->lock);
        if (!n->nccl || n->api->CommGetAsyncError(n->nccl, &rc) != NCCL_OK)
            rc = n->nccl ? 3 : NCCL_OK; /* internal error */
        bool gone = !n->nccl;
        pthread_mutex_unlock(&n->lock);
        if (gone)
            return -ECANCELED;
    }
    return rc == NCCL_OK ? 0 : nccl_error(n, rc, call);
}

/* After an abort streams go on as if all were well. */
static bool is_aborted(struct nccl *n)
{
    pthread_mutex_lock(&n->lock);
    bool aborted = n->nccl == NULL;
    pthread_mutex_unlock(&n->lock);
    return aborted;
}

/* What stands on the stream before the event. */
static int wait_for_event(struct nccl *n, cuda_event event, struct coll_call *call)
{
    struct patience p = {0};
    for (;;) {
        int rc = n->cuda->EventQuery(event);
        if (rc == CUDA_OK)
            return is_aborted(n) ? -ECANCELED : 0;
        if (rc != CUDA_NOT_READY)
            return cuda_error(n, rc, call);
        int status = be_patient(n, &p, call->deadline_ns, call);
        if (status < 0)
            return status;
    }
}

/* Takes those works off the list that are complete. */
static void look_at_works(struct nccl *n)
{
    struct dlcoll_work *done = NULL, *w, **at = &n->works, *late = NULL;
    struct coll_call call;
    uint64_t now = mono_ns();
    int status = 0;
    pthread_mutex_lock(&n->lock);
    while (n->nccl && (w = *at)) { /* of an aborted one nccl_fail() takes them */
        int rc = n->cuda->EventQuery(w->event);
        if (rc == CUDA_OK) {
            *at = w->next;
            w->next = done;
            done = w;
            continue;
        }
        if (rc != CUDA_NOT_READY && !late) {
            late = w;
            call = w->call;
            status = cuda_error(n, rc, &call);
        } else if (w->call.deadline_ns && now >= w->call.deadline_ns && !late) {
            late = w;
            call = w->call;
            call.culprit = -1;
            status = -ETIMEDOUT;
        }
        at = &w->next;
    }
    pthread_mutex_unlock(&n->lock);
    for (struct dlcoll_work *next; done; done = next) {
        next = done->next;
        settle_records(n, done, 0);
    }
    if (late)
        nccl_fail(n, status, &call);
}

void nccl_wait(dlcoll_work *w, uint64_t until_ns, bool once)
{
    struct nccl *n = w->comm->nccl;
    uint64_t since = mono_ns();
    while (!atomic_load_explicit(&w->done, memory_order_acquire)) {
        look_at_works(n);
        uint64_t now = mono_ns();
        if (once || (until_ns && now >= until_ns))
            return;
        if (now - since < SPIN_NS)
            wait_relax();
        else if (now - since < YIELD_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, 20 * 1000}, NULL);
    }
}

void nccl_event_free(void *event)
{
    const struct cuda_api *cuda;
    struct err e = ERR_INIT;
    if (event && cuda_api_get(&cuda, &e) == 0)
        cuda->EventDestroy(event);
}

/* The thread: what happens while nobody is inside a call. */
static void *watch(void *arg)
{
    struct nccl *n = arg;
    dlcoll_comm *c = n->comm;
    uint64_t asked = mono_ns();
    n->cuda->SetDevice(n->device);
    while (!atomic_load(&n->quit)) {
        uint32_t bell = atomic_load(&n->bell);
        struct coll_call call;
        int error = NCCL_OK;
        pthread_mutex_lock(&n->lock);
        bool busy = n->works != NULL, alive = n->nccl != NULL;
        call = n->last;
        if (alive && mono_ns() - asked > ERRORS_NS) {
            asked = mono_ns();
            n->api->CommGetAsyncError(n->nccl, &error);
        }
        bool bad = error != NCCL_OK && error != NCCL_IN_PROGRESS;
        int status = bad ? nccl_error(n, error, &call) : 0;
        pthread_mutex_unlock(&n->lock);
        call.culprit = -1;
        if (alive && (bad || comm_is_stopped(c) || atomic_load(&c->failed)))
            nccl_fail(n, bad ? status : -ECANCELED, &call);
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

/* ---------------------------------------------------------------------------------- performing */

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
};

static int enqueue_list(struct nccl *n, const dlcoll_p2p *list, size_t count, cuda_stream stream)
{
    int rc = n->api->GroupStart();
    for (size_t i = 0; i < count && rc == NCCL_OK; i++) {
        const struct dtype *type = dtype_get((int)list[i].dtype);
        bool own = list[i].dtype <= DLCOLL_F8E5M2;
        size_t elements = own ? list[i].count : list[i].count * type->size;
        int t = own ? (int)list[i].dtype : NCCL_U8;
        if (elements && list[i].send)
            rc = n->api->Send(list[i].send, elements, t, list[i].peer, n->nccl, stream);
        else if (elements)
            rc = n->api->Recv(list[i].recv, elements, t, list[i].peer, n->nccl, stream);
        rc = rc == NCCL_IN_PROGRESS ? NCCL_OK : rc;
    }
    int end = n->api->GroupEnd();
    return rc == NCCL_OK ? end : rc;
}

/* Scratch memory as the call needs it. Not under the lock: cudaFree() waits for all that the device
 * does, and a kernel of NCCL's that waits for a dead rank ends only when the thread can abort it. 0
 * or as coll_call.h. */
static int make_room(struct nccl *n, struct coll_call *call)
{
    size_t len = nccl_room(call);
    void *p = NULL;
    if (len <= n->scratch_len)
        return 0;
    int status = wait_for_event(n, n->aside, call);
    if (status < 0)
        return status;
    int rc = n->cuda->Malloc(&p, len);
    if (rc != CUDA_OK)
        return cuda_error(n, rc, call);
    n->cuda->Free(n->scratch);
    n->scratch = p;
    n->scratch_len = len;
    return 0;
}

/* On the stream, with an event behind it when somebody will ask. 0 or as coll_call.h. */
static int put_on(struct nccl *n, const struct enqueued *q, struct coll_call *call,
                  cuda_stream stream, cuda_event event)
{
    int made = make_room(n, call);
    if (made < 0)
        return made;
    pthread_mutex_lock(&n->lock);
    if (!n->nccl || comm_is_stopped(n->comm)) {
        pthread_mutex_unlock(&n->lock);
        return -ECANCELED;
    }
    int rc = q->list ? enqueue_list(n, q->list, q->n, stream) : nccl_enqueue(n, call, stream);
    n->last = *call;
    pthread_mutex_unlock(&n->lock);
    int status = rc == NCCL_OK ? 0 : nccl_settle(n, rc, call->deadline_ns, call);
    if (status == 0 && nccl_goes_aside(call) &&
        (rc = n->cuda->EventRecord(n->aside, stream)) != CUDA_OK)
        status = cuda_error(n, rc, call);
    if (status == 0 && event && (rc = n->cuda->EventRecord(event, stream)) != CUDA_OK)
        status = cuda_error(n, rc, call);
    return status;
}

/* False: NCCL has been aborted meanwhile, and nobody looks any more. */
static bool add_work(struct nccl *n, struct dlcoll_work *w, const struct coll_call *call,
                     uint64_t record)
{
    pthread_mutex_lock(&n->lock);
    bool alive = n->nccl != NULL;
    if (alive) {
        w->call = *call;
        w->device = true;
        w->record = record;
        w->next = n->works;
        n->works = w;
    }
    pthread_mutex_unlock(&n->lock);
    return alive;
}

static int perform(struct nccl *n, const struct enqueued *q, struct coll_call *call, void *stream,
                   dlcoll_work **work)
{
    dlcoll_comm *c = n->comm;
    struct dlcoll_work *w = NULL;
    cuda_stream on = stream ? stream : n->stream;
    if (work && !(w = async_new_work(c)))
        return comm_error(c, DLCOLL_ENOMEM, "%s: no memory", call_name(call->id.kind));
    int rc = w && !w->event ? n->cuda->EventCreateWithFlags(&w->event, CUDA_NO_TIMING) : CUDA_OK;
    if (rc != CUDA_OK)
        w->event = NULL;
    bool wait = !work && !stream;
    uint64_t number = recorder_begin_device(&c->job->recorder, c->id, c->name, call->seq, &call->id,
                                            coll_bytes(call));
    if (!q->list)
        show(c, call->seq, SEGMENT_LOCAL_CALL);
    int status = rc != CUDA_OK ? cuda_error(n, rc, call)
                               : put_on(n, q, call, on,
                                        w      ? w->event
                                        : wait ? n->event
                                               : NULL);
    if (status == 0 && wait)
        status = wait_for_event(n, n->event, call);
    if (status == 0 && w && !add_work(n, w, call, number))
        status = -ECANCELED;
    int code = status < 0 ? nccl_fail(n, status, call) : 0;
    if (!q->list && code == 0)
        show(c, call->seq, SEGMENT_LOCAL_READY);
    if (!w || code < 0)
        recorder_end(&c->job->recorder, number, code);
    if (w && code < 0) {
        async_complete(w, code);
        dlcoll_work_free(w);
    } else if (w) {
        *work = w;
        ring(n);
    }
    return code;
}

int nccl_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work)
{
    int code;
    struct nccl *n = nccl_get(c, call->deadline_ns, &code);
    if (!n)
        return code;
    const char *why = nccl_refuses(n->api, call);
    if (why)
        return comm_error(c, DLCOLL_ENOSUP, "%s on device memory: %s", call_name(call->id.kind),
                          why);
    call->seq = ++c->seq;
    call->culprit = -1;
    call->algo = "nccl";
    code = perform(n, &(struct enqueued){.call = call}, call, call->stream, work);
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
    if (!n && !(n = nccl_get(c, deadline_ns, &code)))
        return code;
    for (size_t i = 0; i < count; i++) {
        if (list[i].tag)
            return comm_error(c, DLCOLL_ENOSUP, "%s on device memory: NCCL has no tags",
                              call_name(kind));
    }
    struct coll_call call = nccl_internal_call(c, kind, NULL, 0, deadline_ns);
    call.seq = c->seq;
    call.id.dtype = (uint8_t)list[0].dtype;
    call.id.root = list[0].peer;
    call.count = list[0].count;
    call.id.count = list[0].count;
    call.elem = dtype_get((int)list[0].dtype)->size;
    return perform(n, &(struct enqueued){.list = list, .n = count}, &call, stream, work);
}

/* ------------------------------------------------------------------------------------- the end */

bool nccl_is_busy(dlcoll_comm *c)
{
    struct nccl *n = c->nccl;
    if (!n)
        return false;
    look_at_works(n);
    pthread_mutex_lock(&n->lock);
    bool busy = n->works != NULL;
    pthread_mutex_unlock(&n->lock);
    return busy;
}

int nccl_finalize(dlcoll_comm *c)
{
    struct nccl *n = c->nccl;
    if (!n)
        return 0;
    struct coll_call call =
        nccl_internal_call(c, CALL_FINALIZE, NULL, 0, comm_deadline(c->timeout_ms));
    call.seq = c->seq;
    pthread_mutex_lock(&n->lock);
    bool alive = n->nccl != NULL;
    int rc = alive ? n->api->CommFinalize(n->nccl) : NCCL_OK;
    pthread_mutex_unlock(&n->lock);
    int status = alive ? nccl_settle(n, rc, call.deadline_ns, &call) : -ECANCELED;
    return status < 0 ? nccl_fail(n, status, &call) : 0;
}

void nccl_free(dlcoll_comm *c, bool forked)
{
    struct nccl *n = c->nccl;
    c->nccl = NULL;
    if (!n || forked) /* CUDA does not outlive a fork(): nothing of it may be touched */
        return;
    stop_watching(n);
    struct dlcoll_work *w = n->works;
    bool busy = w != NULL || atomic_load(&c->failed);
    n->works = NULL;
    if (busy)
        abort_nccl(n);
    else if (n->nccl)
        n->api->CommDestroy(n->nccl);
    for (struct dlcoll_work *next; w; w = next) {
        next = w->next;
        settle_records(n, w, DLCOLL_EABORTED);
    }
    nccl_free_parts(n);
}

/* --------------------------------------------------------------------------------- registering */

int dlcoll_mem_register(dlcoll_comm *comm, void *p, size_t bytes, void **handle)
{
    int code = comm_enter(comm), rc = NCCL_OK;
    if (code < 0)
        return code;
    struct nccl *n = NULL;
    if (!p || !handle)
        code = comm_error(comm, DLCOLL_EINVAL, "mem_register: an argument is NULL");
    else
        n = nccl_get(comm, comm_deadline(comm->timeout_ms), &code);
    if (n)
        *handle = NULL;
    if (n && n->api->CommRegister) { /* older ones do without */
        pthread_mutex_lock(&n->lock);
        rc = n->nccl ? n->api->CommRegister(n->nccl, p, bytes, handle) : 3;
        pthread_mutex_unlock(&n->lock);
    }
    if (rc != NCCL_OK)
        code =
            comm_error(comm, DLCOLL_EBACKEND, "mem_register: NCCL: %s", n->api->GetErrorString(rc));
    return comm_leave(comm, code);
}

int dlcoll_mem_deregister(dlcoll_comm *comm, void *handle)
{
    int code = comm_enter(comm), rc = NCCL_OK;
    if (code < 0)
        return code;
    struct nccl *n = comm->nccl;
    if (n && handle && n->api->CommDeregister) {
        pthread_mutex_lock(&n->lock);
        rc = n->nccl ? n->api->CommDeregister(n->nccl, handle) : NCCL_OK;
        pthread_mutex_unlock(&n->lock);
    }
    if (rc != NCCL_OK)
        code = comm_error(comm, DLCOLL_EBACKEND, "mem_deregister: NCCL: %s",
                          n->api->GetErrorString(rc));
    return comm_leave(comm, code);
}
