#include "collectives/p2p/p2p.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/base/task.h"
#include "collectives/comm/progress.h"
#include "collectives/comm/work.h"
#include "collectives/comm/comm.h"
#include "collectives/comm/failure.h"
#include "collectives/p2p/p2p_state.h"
#include "collectives/shm/ring.h"
#include "core/clock.h"

enum {
    POLL_MAX = 64,
    QUICK_LOOKS = 200,            /* before anything else is done, and the clock is read */
    SPIN_LOOKS = 16,              /* while spinning, between readings of the clock */
    LOOK_NS = 1000 * 1000,        /* between checks for deaths, notices and deadlines */
    NAP_NS = 10 * LOOK_NS,        /* at most, at a time, */
    NAP_WRITING_NS = LOOK_NS,     /* or when there must be room first */
    TASK_NAP_NS = 1000 * LOOK_NS, /* at most, of the task, for which the progress thread looks */
};

/* -------------------------------------------------------------------------------------- failing */

/* An operation under way with the peer, or else with any rank. */
static const struct p2p_op *find_any(const struct p2p *p, int peer)
{
    const struct p2p_op *op = peer >= 0 ? p2p_op_with(p, peer, true) : NULL;
    for (int r = 0; r < p->comm->size && !op; r++)
        op = p2p_op_with(p, r, true);
    return op;
}

/* The kind of call that the program has made. */
static uint8_t kind_of(const struct p2p_op *op)
{
    if (op && op->tag < 0)
        return CALL_MONITORED_BARRIER;
    if (op && op->probes)
        return CALL_PROBE;
    return op && op->is_send ? CALL_SEND : CALL_RECV;
}

int p2p_fail(struct p2p *p, int status, int peer, const struct p2p_op *op, const struct err *e)
{
    if (p->failed)
        return p->failed;
    if (!op)
        op = find_any(p, peer);
    p->failed_op = (struct coll_call){.sig = {.kind = kind_of(op),
                                              .dtype = op ? op->dtype : 0,
                                              .root = peer,
                                              .count = op ? op->count : 0},
                                      .seq = op ? op->seq : p->seq};
    p->failure = (struct coll_failure){.culprit = peer, .err = e ? *e : (struct err)ERR_INIT};
    p->failed = status;
    return status;
}

int p2p_mismatch(struct p2p *p, int peer, const struct p2p_op *op, const struct p2p_frame *f)
{
    if (p->failed)
        return p->failed;
    p2p_fail(p, -EBADMSG, peer, op, NULL);
    p->failure.theirs = (struct coll_theirs){
        .sig = {.kind = CALL_SEND, .dtype = f->dtype, .root = p->comm->rank, .count = f->count},
        .seq = f->id};
    return p->failed;
}

/* Ends the operation with the code, and its handle with the handle's last operation. */
static void end_op(struct p2p *p, struct p2p_op *op, int code)
{
    struct dlcoll_work *w = op->work;
    const _Atomic uint32_t *done = w ? &w->done : &op->ended; /* an address, when it is complete */
    op->state = P2P_DONE;
    if (op->record)
        recorder_end(&p->comm->job->recorder, op->record, code);
    atomic_fetch_sub_explicit(&p->under_way, 1, memory_order_relaxed);
    for (struct p2p_op *o = w ? w->ops : NULL; o; o = o->sibling) {
        if (o->state != P2P_DONE)
            return;
    }
    if (w) {
        work_complete(w, code);
    } else {
        op->result = code;
        atomic_store_explicit(&op->ended, 1, memory_order_release);
    }
    if (p->comm->multiple && atomic_fetch_add(&p->sleepers, 0)) /* a fence, too */
        wait_wake(done);
}

/* Fills in the program's dlcoll_message, in the version that the program was built with. */
static void describe(const struct p2p_op *op)
{
    size_t size = op->message->size;
    dlcoll_message m = {.size = size,
                        .version = op->message->version,
                        .source = op->peer,
                        .tag = op->tag,
                        .dtype = (dlcoll_dtype)op->dtype,
                        .count = op->len / op->elem,
                        .bytes = op->len,
                        .matched = (struct dlcoll_matched *)op->claimed};
    memcpy(op->message, &m, size < sizeof(m) ? size : sizeof(m));
}

void p2p_done(struct p2p *p, struct p2p_op *op)
{
    if (op->from)
        *op->from = op->peer;
    if (op->message)
        describe(op);
    end_op(p, op, 0);
}

void p2p_set_active(struct p2p *p, int peer)
{
    if (p->peers[peer].active || peer == p->comm->rank)
        return;
    p->peers[peer].active = true;
    p->active[p->nactive++] = peer;
}

/* ------------------------------------------------------------------------------------- progress */

static bool has_business(const struct p2p *p, int rank)
{
    const struct p2p_peer *peer = &p->peers[rank];
    return peer->out.head || peer->offered.head || peer->in_reply.head || peer->accepted.head ||
           p2p_expects(p, rank);
}

/* Everything that can be done without blocking. Returns whether anything was. */
static bool pump(struct p2p *p)
{
    bool moved = false;
    for (int i = 0; i < p->nactive && !p->failed;) {
        int rank = p->active[i];
        p2p_move(p, rank, &moved);
        if (has_business(p, rank)) {
            i++;
        } else {
            p->peers[rank].active = false;
            p->active[i] = p->active[--p->nactive];
        }
    }
    return moved;
}

static void check_queue(struct p2p *p, const struct p2p_queue *q, uint64_t now)
{
    for (struct p2p_op *op = q->head; op && !p->failed; op = op->next) {
        assert(op->state != P2P_DONE && op->peer < p->comm->size);
        if (op->deadline_ns && op->deadline_ns < p->soonest_ns && !op->optional)
            p->soonest_ns = op->deadline_ns;
        if (op->deadline_ns && now >= op->deadline_ns && !op->optional)
            p2p_fail(p, -ETIMEDOUT, op->state == P2P_POSTED && op->any ? -1 : op->peer, op, NULL);
    }
}

/* Checks, now and then, whether an operation is overdue, or the communicator has been stopped. */
static void p2p_look(struct p2p *p)
{
    uint64_t now = mono_ns();
    int gone;
    p->soonest_ns = UINT64_MAX;
    check_queue(p, &p->posted, now);
    check_queue(p, &p->peers[p->comm->rank].offered, now);
    for (int i = 0; i < p->nactive && !p->failed; i++) {
        struct p2p_peer *peer = &p->peers[p->active[i]];
        assert(peer->active);
        if (peer->t == p->tcp)
            tcp_look(p->tcp, p->active[i]);
        check_queue(p, &peer->out, now);
        check_queue(p, &peer->offered, now);
        check_queue(p, &peer->accepted, now);
        check_queue(p, &peer->in_reply, now);
        if (peer->messages.op) {
            struct p2p_queue one = {.head = peer->messages.op};
            struct p2p_op *next = one.head->next;
            one.head->next = NULL;
            check_queue(p, &one, now);
            one.head->next = next;
        }
    }
    p2p_check_exits(p);
    /* A rank with which nothing is under way may leave. */
    if (!p->failed && p2p_is_busy(p->comm) && comm_look(p->comm, &gone) == -ECANCELED)
        p2p_fail(p, -ECANCELED, -1, NULL, NULL);
}

/* The descriptors to poll. Where there are too many for one call, the sleep is short. */
static int p2p_prepare(struct p2p *p, struct pollfd *fds, int *timeout_ms)
{
    int n = (int)acceptor_poll(&p->comm->job->acceptor, fds, timeout_ms);
    for (int i = 0; i < p->nactive; i++) {
        int rank = p->active[i];
        const struct p2p_peer *peer = &p->peers[rank];
        int fd = peer->t == p->tcp ? tcp_open_fd(p->tcp, rank) : -1;
        bool writes = peer->out.head || peer->in_reply.head, reads = p2p_expects(p, rank);
        bool accepts = fd < 0 && !writes && task_inside(); /* it is rung for */
        if (n == POLL_MAX || (fd < 0 && !accepts))
            *timeout_ms = *timeout_ms > 1 ? 1 : *timeout_ms;
        if (n == POLL_MAX)
            break;
        if (fd >= 0 && (writes || reads))
            fds[n++] = (struct pollfd){
                .fd = fd, .events = (short)((writes ? POLLOUT : 0) | (reads ? POLLIN : 0))};
    }
    return n;
}

/* Completes all operations under way with the code. */
static void end_all(struct p2p *p, int code)
{
    struct p2p_queue all;
    p2p_queue_init(&all);
    for (int r = -1; r < p->comm->size; r++) {
        struct p2p_peer *peer = r < 0 ? NULL : &p->peers[r];
        struct p2p_queue *qs[] = {&p->posted, peer ? &peer->out : NULL,
                                  peer ? &peer->offered : NULL, peer ? &peer->in_reply : NULL,
                                  peer ? &peer->accepted : NULL};
        struct p2p_op *op;
        for (size_t i = r < 0 ? 0 : 1; i < (r < 0 ? 1 : 5); i++) {
            while ((op = p2p_queue_take(qs[i])))
                p2p_queue_put(&all, op);
        }
        if (peer && peer->messages.op)
            p2p_queue_put(&all, peer->messages.op);
        if (peer) {
            peer->messages = (struct p2p_reading){0};
            peer->posted = 0;
        }
    }
    p->any = p->nactive = 0;
    for (struct p2p_op *op; (op = p2p_queue_take(&all));) {
        assert(op->state != P2P_DONE); /* an operation is on one list */
        end_op(p, op, code);
    }
    assert(!p2p_is_busy(p->comm)); /* and every operation under way is on a list */
}

static void stop(struct p2p *p, int code)
{
    p->stopped = true;
    end_all(p, code);
    p->tcp->ops->close(p->tcp);
    if (p->shm)
        p->shm->ops->close(p->shm);
}

/* Called after every turn, without the lock: finds the cause of a failure and notifies other
 * ranks. */
static void p2p_settle(struct p2p *p)
{
    struct coll_call call;
    struct coll_failure failure;
    pthread_mutex_lock(&p->lock);
    int status = p->stopped ? 0 : p->failed;
    if (status) {
        call = p->failed_op;
        failure = p->failure;
        call.failure = &failure;
    }
    pthread_mutex_unlock(&p->lock);
    if (!status)
        return;
    int code = comm_fail(p->comm, status, &call);
    pthread_mutex_lock(&p->lock);
    if (!p->stopped)
        stop(p, code);
    pthread_mutex_unlock(&p->lock);
}

/* Under the lock: until something moves, at most so often. When all is done already, a stop is for
 * the next operation to find. */
static bool try(struct p2p *p, int tries)
{
    bool moved = false;
    while (!(moved = pump(p)) && !p->failed && --tries > 0)
        ;
    if (!p->failed && p2p_is_busy(p->comm) && comm_is_stopped(p->comm))
        p2p_fail(p, -ECANCELED, -1, NULL, NULL);
    return moved;
}

/* One pass over all peers. True: something moved. */
static bool turn(struct p2p *p, bool looks, int tries)
{
    bool moved = false;
    pthread_mutex_lock(&p->lock);
    if (!p->stopped) {
        moved = try(p, tries);
        if (looks && !p->failed)
            p2p_look(p);
    }
    bool failed = p->failed && !p->stopped;
    pthread_mutex_unlock(&p->lock);
    if (failed)
        p2p_settle(p);
    return moved;
}

/* ------------------------------------------------------------------------------------- sleeping */

static void poll_sockets(struct p2p *p, int timeout_ms)
{
    struct pollfd fds[POLL_MAX];
    struct err e = ERR_INIT;
    pthread_mutex_lock(&p->lock);
    int n = p->stopped ? 0 : p2p_prepare(p, fds, &timeout_ms);
    bool stopped = p->stopped;
    pthread_mutex_unlock(&p->lock);
    if (stopped)
        return;
    (void)!acceptor_sleep(&p->comm->job->acceptor, p->comm->job_word, fds, (size_t)n, timeout_ms);
    pthread_mutex_lock(&p->lock);
    if (!p->stopped)
        (void)tcp_admit(p->tcp, &e);
    pthread_mutex_unlock(&p->lock);
}

/* Finds which events end a sleep: streams of this node, sockets, or both. */
static void find_kinds(struct p2p *p, bool *streams, bool *sockets, bool *writing)
{
    *streams = *sockets = *writing = false;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->nactive; i++) {
        const struct p2p_peer *peer = &p->peers[p->active[i]];
        *(peer->t == p->shm ? streams : sockets) = true;
        *writing = *writing || peer->out.head || peer->in_reply.head;
    }
    pthread_mutex_unlock(&p->lock);
}

/* Called in the task: parks until the task is rung for, a socket is ready, or the nap is over. */
static void doze_in_task(struct p2p *p)
{
    dlcoll_comm *c = p->comm;
    struct pollfd fds[POLL_MAX];
    struct err e = ERR_INIT;
    uint64_t now = mono_ns(), nap = p->nap_ns;
    int ms = INT_MAX, n = 0;
    bool streams, sockets, writing;
    if (c->shm)
        ring_prepare_park(c);
    bool moved = turn(p, true, 1);
    find_kinds(p, &streams, &sockets, &writing);
    pthread_mutex_lock(&p->lock);
    if (!p->stopped && !moved) {
        n = p2p_prepare(p, fds, &ms);
        if (p->soonest_ns - now < nap)
            nap = p->soonest_ns > now ? p->soonest_ns - now : 0;
    }
    bool rests = !p->stopped && !moved && p2p_is_busy(c);
    pthread_mutex_unlock(&p->lock);
    if (nap > (uint64_t)ms * LOOK_NS)
        nap = (uint64_t)ms * LOOK_NS;
    if (c->shm && !ring_has_bell(c) && nap > LOOK_NS)
        nap = LOOK_NS;
    if (writing && streams && nap > NAP_NS) /* the ring of who makes room may be missed */
        nap = NAP_NS;
    if (rests && !atomic_load(&p->waiters) && sockets)
        task_poll(fds, (size_t)n, nap);
    else if (rests && !atomic_load(&p->waiters))
        task_park(nap);
    if (c->shm)
        ring_end_park(c);
    pthread_mutex_lock(&p->lock);
    if (!p->stopped)
        (void)tcp_admit(p->tcp, &e);
    pthread_mutex_unlock(&p->lock);
    p->nap_ns = moved ? NAP_NS : p->nap_ns < TASK_NAP_NS / 2 ? p->nap_ns * 2 : TASK_NAP_NS;
}

/* Sleeps until something arrives, or the time is over; not if something has moved since, or the
 * operation is done. */
static void doze(struct p2p *p, const _Atomic uint32_t *done, uint64_t timeout_ns)
{
    dlcoll_comm *c = p->comm;
    struct wait_word words[WAIT_WORDS_MAX];
    bool streams, sockets, writing;
    int n = 0;
    find_kinds(p, &streams, &sockets, &writing);
    if (sockets) {
        if (!turn(p, true, 1) && !(done && atomic_load(done)))
            poll_sockets(p, streams ? 1 : (int)(timeout_ns / 1000000) + 1);
        return;
    }
    if (c->shm)
        words[n++] = (struct wait_word){ring_doorbell(c), ring_prepare_sleep(c)};
    words[n++] = (struct wait_word){c->job_word, 0};
    words[n++] = (struct wait_word){&c->own_stop.word, 0};
    if (c->shared_stop)
        words[n++] = (struct wait_word){&c->shared_stop->word, 0};
    if (writing && timeout_ns > NAP_WRITING_NS)
        timeout_ns = NAP_WRITING_NS;
    if (!turn(p, true, 1) && !(done && atomic_load(done)))
        wait_sleep(words, n, timeout_ns);
    if (c->shm)
        ring_end_sleep(c);
}

/* -------------------------------------------------------------------------------------- waiting */

static bool is_done(const _Atomic uint32_t *done)
{
    return atomic_load_explicit(done, memory_order_acquire);
}

static void stop_waiting(struct p2p *p)
{
    if (atomic_fetch_sub(&p->waiters, 1) == 1 && p2p_is_busy(p->comm)) /* the task carries on */
        task_ring(atomic_load_explicit(&p->comm->p2p_slot, memory_order_acquire));
}

/* Waits beside other threads of the program: each sleeps until its own operation is done, and the
 * task progresses the operations of all. */
static void rest(struct p2p *p, const _Atomic uint32_t *done, uint64_t timeout_ns)
{
    atomic_fetch_add(&p->sleepers, 1);
    stop_waiting(p);
    if (!atomic_load(done))
        wait_sleep(&(struct wait_word){done, 0}, 1, timeout_ns);
    atomic_fetch_add(&p->waiters, 1);
    atomic_fetch_sub(&p->sleepers, 1);
}

void p2p_wait(struct dlcoll_comm *comm, const _Atomic uint32_t *done, uint64_t until_ns, bool once)
{
    struct p2p *p = comm->p2p;
    struct wait_policy policy = comm->policy;
    turn(p, false, policy.spin_ns && !once ? QUICK_LOOKS : 1);
    if (is_done(done) || once)
        return;
    uint64_t now = mono_ns(), moved_at = now, looked = now;
    atomic_fetch_add(&p->waiters, 1);
    while (!is_done(done) && !(until_ns && now >= until_ns)) {
        uint64_t idle = now - moved_at;
        bool looks = now - looked >= LOOK_NS;
        if (looks)
            looked = now;
        enum wait_step step = wait_next(&policy, idle, now);
        if (step == WAIT_YIELD)
            sched_yield();
        if (step == WAIT_SLEEP && comm->multiple)
            rest(p, done, until_ns ? until_ns - now : UINT64_MAX);
        else if (step == WAIT_SLEEP)
            doze(p, done, until_ns && until_ns - now < NAP_NS ? until_ns - now : NAP_NS);
        else if (turn(p, looks, step == WAIT_SPIN ? SPIN_LOOKS : 1))
            moved_at = now;
        now = mono_ns();
    }
    stop_waiting(p);
}

bool p2p_is_busy(const struct dlcoll_comm *comm)
{
    return comm->p2p && atomic_load_explicit(&comm->p2p->under_way, memory_order_relaxed);
}

/* Makes one turn of the task, unless a thread makes progress itself; parks when there is nothing to
 * do. */
static void p2p_assist(struct p2p *p)
{
    dlcoll_comm *comm = p->comm;
    if (atomic_load(&p->waiters)) {
        task_park(UINT64_MAX); /* the last of them rings */
        return;
    }
    if (!turn(p, true, 1)) {
        doze_in_task(p);
        return;
    }
    p->nap_ns = NAP_NS;
    if (atomic_load(&p->waiters) && comm->shm)
        ring_wake_own(comm); /* the event may have been for them */
    task_yield();
}

static void run_task(void *arg)
{
    struct p2p *p = arg;
    while (p2p_is_busy(p->comm) && !atomic_load(&p->quit))
        p2p_assist(p);
}

void p2p_ring_task(struct dlcoll_comm *comm)
{
    task_ring(atomic_load_explicit(&comm->p2p_slot, memory_order_relaxed));
}

/* ---------------------------------------------------------------------------- beginning and end */

static int p2p_new(struct dlcoll_comm *comm, struct err *e)
{
    size_t size = (size_t)comm->size;
    struct tcp_opts o = comm_tcp_opts(comm, CHANNEL_P2P);
    struct p2p *p = calloc(1, sizeof(*p));
    struct p2p_peer *peers = calloc(size, sizeof(*peers));
    struct p2p_ahead *ahead = calloc(size, sizeof(*ahead));
    int *active = calloc(size, sizeof(*active));
    int r =
        p && peers && ahead && active ? tcp_new(&p->tcp, &o, e) : err_set(e, -ENOMEM, "no memory");
    if (r == 0 && comm->shm && (r = ring_new(&p->shm, comm, e)) < 0)
        p->tcp->ops->free(p->tcp);
    if (r < 0) {
        free(p);
        free(peers);
        free(ahead);
        free(active);
        return r;
    }
    pthread_mutex_init(&p->lock, NULL);
    p->comm = comm;
    p->nap_ns = NAP_NS;
    p->peers = peers;
    p->ahead = ahead;
    p->active = active;
    p2p_queue_init(&p->posted);
    for (size_t i = 0; i < size; i++) {
        struct p2p_peer *peer = &peers[i];
        peer->t = p->shm && comm->topo.node_of[i] == comm->topo.node ? p->shm : p->tcp;
        peer->in = peer->t == p->shm ? comm->size + (int)i : (int)i;
        p2p_queue_init(&peer->out);
        p2p_queue_init(&peer->offered);
        p2p_queue_init(&peer->in_reply);
        p2p_queue_init(&peer->accepted);
        peer->kept_tail = &peer->kept;
    }
    comm->p2p = p;
    return 0;
}

static __attribute__((noinline)) struct p2p *make_once(struct dlcoll_comm *comm)
{
    struct err e = ERR_INIT;
    pthread_mutex_lock(&comm->making);
    if (!comm->p2p)
        (void)p2p_new(comm, &e);
    pthread_mutex_unlock(&comm->making);
    return comm->p2p;
}

/* NULL: no memory. */
static inline struct p2p *p2p_of(struct dlcoll_comm *comm)
{
    struct p2p *p = comm->p2p;
    return p ? p : make_once(comm);
}

int p2p_start_task(struct dlcoll_comm *comm)
{
    struct p2p *p = p2p_of(comm);
    return p ? comm_start_task(comm, &p->task, run_task, p, &comm->p2p_slot) : -ENOMEM;
}

/* Numbers it, and shows it in the flight recorder. What a monitored barrier consists of has that
 * one's number, and its record. */
static void record(struct p2p *p, struct p2p_op *op)
{
    dlcoll_comm *c = p->comm;
    if (op->tag < 0) {
        op->seq = (uint64_t)(op->tag - P2P_TAG_BARRIER);
        return;
    }
    struct op_signature sig = {.kind = kind_of(op),
                               .dtype = op->dtype,
                               .root = op->any ? -1 : op->peer,
                               .count = op->count};
    op->seq = ++p->seq;
    op->record = recorder_begin(&c->job->recorder, c->id, c->name, op->seq, &sig, op->len, 0);
}

static void begin(struct p2p *p, struct p2p_op *op, struct dlcoll_work *w)
{
    op->work = w;
    op->state = op->is_send ? P2P_QUEUED : P2P_POSTED;
    if (!op->record) /* else p2p_try() has */
        record(p, op);
    atomic_fetch_add_explicit(&p->under_way, 1, memory_order_relaxed);
}

static void post(struct p2p *p, struct p2p_op *op)
{
    if (op->is_send)
        p2p_post_send(p, op);
    else
        p2p_post_recv(p, op);
}

int p2p_start(struct dlcoll_comm *comm, struct dlcoll_work *w)
{
    struct p2p *p = p2p_of(comm);
    if (!p)
        return -ENOMEM;
    pthread_mutex_lock(&p->lock);
    for (struct p2p_op *op = w->ops; op; op = op->sibling)
        begin(p, op, w);
    bool stopped = p->stopped;
    for (struct p2p_op *op = w->ops, *next; op; op = next) {
        next = op->sibling; /* the handle may be done, and gone, after its last one */
        if (stopped)
            end_op(p, op, DLCOLL_ESTATE);
        else
            post(p, op);
    }
    pthread_mutex_unlock(&p->lock);
    if (!stopped)
        turn(p, false, 1);
    return 0;
}

static bool try_send(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op)
{
    struct p2p_frame f = {.kind = P2P_EAGER,
                          .dtype = op->dtype,
                          .tag = op->tag,
                          .count = op->count,
                          .id = peer->next_id + 1};
    struct iovec iov[] = {{&f, P2P_FRAME_BYTES}, {op->buf, op->len}};
    if (!ring_put(p->shm, op->peer, iov, P2P_FRAME_BYTES + op->len,
                  P2P_WINDOW_BYTES - p2p_charge(op->len)))
        return false;
    peer->next_id++;
    record(p, op); /* when it is on its way already */
    return true;
}

static bool try_recv(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op)
{
    struct p2p_frame f;
    size_t len;
    int stream = peer->in;
    if (peer->kept || peer->messages.have)
        return false;
    record(p, op);
    const void *here = ring_look(p->shm, stream, p->comm->policy.spin_ns ? QUICK_LOOKS : 1, &len);
    if (!here || len != P2P_FRAME_BYTES + op->len)
        return false;
    memcpy(&f, here, sizeof(f));
    if (f.kind != P2P_EAGER || f.tag != op->tag || f.dtype != op->dtype || f.count != op->count ||
        f.flags)
        return false;
    ring_take(p->shm, stream, len, P2P_FRAME_BYTES, op->buf);
    return true;
}

static inline bool try_one(struct p2p *p, struct p2p_op *op)
{
    dlcoll_comm *comm = p->comm;
    if (!p->shm || !op->plain || op->peer == comm->rank || p->peers[op->peer].t != p->shm ||
        op->len > P2P_EAGER_BYTES || p2p_is_busy(comm) || p->stopped || p->failed ||
        comm_is_stopped(comm))
        return false;
    struct p2p_peer *peer = &p->peers[op->peer];
    if (!(op->is_send ? try_send(p, peer, op) : try_recv(p, peer, op)))
        return false;
    recorder_end_at_once(&comm->job->recorder, op->record);
    return true;
}

/* Other threads of the program may be inside: the operation is posted. */
static __attribute__((noinline)) bool try_locked(struct p2p *p, struct p2p_op *op)
{
    pthread_mutex_lock(&p->lock);
    bool done = try_one(p, op);
    pthread_mutex_unlock(&p->lock);
    return done;
}

/* True if no other operation is under way, and no other thread is inside, or kept out. */
bool p2p_try(struct dlcoll_comm *comm, struct p2p_op *op)
{
    struct p2p *p = p2p_of(comm);
    if (!p)
        return false;
    if (comm->multiple)
        return try_locked(p, op);
    return !comm_has_task(comm) && try_one(p, op);
}

int p2p_run(struct dlcoll_comm *comm, struct p2p_op *op)
{
    struct p2p *p = p2p_of(comm);
    if (!p)
        return DLCOLL_ENOMEM;
    pthread_mutex_lock(&p->lock);
    begin(p, op, NULL);
    if (p->stopped) {
        end_op(p, op, DLCOLL_ESTATE);
    } else {
        post(p, op);
        if (op->state != P2P_DONE)
            pump(p);
    }
    bool failed = p->failed && !p->stopped;
    pthread_mutex_unlock(&p->lock);
    if (failed)
        p2p_settle(p);
    if (!is_done(&op->ended))
        p2p_wait(comm, &op->ended, 0, false);
    return op->result;
}

/* Takes an operation of which nothing has moved yet off its list. */
static bool take_back(struct p2p *p, struct p2p_op *op)
{
    struct p2p_queue *q = op->is_send ? &p->peers[op->peer].out : &p->posted;
    for (struct p2p_op **at = &q->head; *at; at = &(*at)->next) {
        if (*at != op || op->moved)
            continue;
        if (op->is_send) {
            p2p_queue_remove(q, at);
            if (op->frame.kind == P2P_EAGER && p2p_has_one_stream(p, op->peer))
                p->peers[op->peer].ahead -= p2p_charge(op->len);
        } else
            p2p_unpost(p, at);
        assert(op->state == (op->is_send ? P2P_QUEUED : P2P_POSTED));
        assert(p->any >= 0 && (op->any || p->peers[op->peer].posted >= 0));
        return true;
    }
    return false;
}

int p2p_probe_once(struct dlcoll_comm *comm, struct p2p_op *op)
{
    struct p2p *p = p2p_of(comm);
    if (!p)
        return DLCOLL_ENOMEM;
    pthread_mutex_lock(&p->lock);
    op->seq = p->seq; /* one that finds nothing is not recorded */
    atomic_fetch_add_explicit(&p->under_way, 1, memory_order_relaxed);
    if (p->stopped)
        end_op(p, op, DLCOLL_ESTATE);
    else
        post(p, op);
    if (op->state != P2P_DONE)
        try(p, 1);
    if (op->state != P2P_DONE && !p->failed) {
        take_back(p, op);
        end_op(p, op, DLCOLL_INPROGRESS);
    }
    bool failed = p->failed && !p->stopped;
    pthread_mutex_unlock(&p->lock);
    if (failed)
        p2p_settle(p);
    return op->result;
}

bool p2p_is_receive(const struct dlcoll_work *w)
{
    return w->ops && !w->ops->sibling && !w->ops->is_send;
}

bool p2p_cancel(struct dlcoll_comm *comm, struct dlcoll_work *w, int code)
{
    struct p2p *p = comm->p2p;
    pthread_mutex_lock(&p->lock);
    bool taken = take_back(p, w->ops);
    if (taken)
        end_op(p, w->ops, code);
    pthread_mutex_unlock(&p->lock);
    return taken;
}

bool p2p_only_awaits(struct dlcoll_comm *comm)
{
    struct p2p *p = comm->p2p;
    int n = 0;
    if (!p2p_is_busy(comm))
        return true;
    pthread_mutex_lock(&p->lock);
    for (const struct p2p_op *op = p->posted.head; op; op = op->next)
        n++;
    bool only = n == atomic_load_explicit(&p->under_way, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
    return only;
}

void p2p_end_receives(struct dlcoll_comm *comm, int code)
{
    struct p2p *p = comm->p2p;
    if (!p2p_is_busy(comm))
        return;
    pthread_mutex_lock(&p->lock);
    for (struct p2p_op *op; (op = p->posted.head);) {
        p2p_unpost(p, &p->posted.head);
        end_op(p, op, code);
    }
    pthread_mutex_unlock(&p->lock);
}

bool p2p_is_claimed(struct dlcoll_comm *comm, const void *message)
{
    struct p2p *p = comm->p2p;
    if (!p)
        return false;
    pthread_mutex_lock(&p->lock);
    const struct p2p_unexpected *un = p->claimed;
    while (un && un != message)
        un = un->next;
    pthread_mutex_unlock(&p->lock);
    return un;
}

void p2p_stop(struct dlcoll_comm *comm)
{
    struct p2p *p = comm->p2p;
    if (!p)
        return;
    atomic_store(&p->quit, true);
    progress_leave(&p->task);
    atomic_store(&comm->p2p_slot, 0);
    pthread_mutex_lock(&p->lock);
    if (!p->stopped)
        stop(p, DLCOLL_EABORTED);
    pthread_mutex_unlock(&p->lock);
}

void p2p_free(struct p2p *p)
{
    if (!p)
        return;
    for (int i = -1; i < p->comm->size; i++) {
        struct p2p_unexpected *un = i < 0 ? p->claimed : p->peers[i].kept;
        for (struct p2p_unexpected *next; un; un = next) {
            next = un->next;
            free(un);
        }
    }
    p->tcp->ops->free(p->tcp);
    if (p->shm)
        p->shm->ops->free(p->shm);
    for (int i = 0; i < p->comm->size; i++)
        free(p->ahead[i].large);
    free(p->peers);
    free(p->ahead);
    free(p->active);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
