#include "collectives/p2p.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/async.h"
#include "collectives/comm.h"
#include "collectives/net/net.h"
#include "collectives/shm/stream.h"
#include "core/clock.h"

enum {
    EAGER_BYTES = 32 * 1024,
    UNEXPECTED_BYTES = 1 << 30, /* kept of one peer's messages that nobody has asked for */
    FRAME_BYTES = sizeof(struct p2p_frame),
    POLL_MAX = 64,
    IO_BYTES = 1024 * 1024,
};

enum frame_kind { EAGER = 1, RTS, CTS, DATA, DONE };

/* A message that has come before its receive. */
struct unexpected {
    struct unexpected *next;
    struct p2p_frame frame;
    size_t have;
    uint8_t data[];
};

struct queue {
    struct p2p_op *head, **tail;
};

/* What is being read from a stream. */
struct reading {
    struct p2p_frame frame;
    size_t have;           /* of the frame, then of the message as well */
    struct p2p_op *op;     /* to which the message goes, or */
    struct unexpected *un; /* where it is kept */
    size_t len;            /* bytes of the message that follow here */
};

struct peer {
    struct transport *t;   /* what reaches it */
    struct queue out;      /* to be written on the stream to it */
    struct queue offered;  /* sends that wait for CTS or DONE */
    struct queue in_reply; /* receives whose CTS or DONE is to be written */
    struct queue accepted; /* receives that wait for DATA */
    struct unexpected *kept, **kept_tail;
    size_t kept_bytes;
    struct reading replies, messages;
    uint64_t next_id;
    int posted;        /* receives that name it */
    bool active, deaf; /* in p->active; its stream has ended while nothing was expected */
};

struct p2p {
    pthread_mutex_t lock;
    struct dlcoll_comm *comm;
    struct transport *tcp;
    struct transport *shm; /* to ranks of this node; NULL: there is none */
    struct peer *peers;
    int *active; /* ranks with which something is under way */
    int nactive;
    struct queue posted; /* receives, in the order of their calls */
    int any;             /* posted for any rank */
    _Atomic int under_way;
    _Atomic int waiters; /* who see to it that things move */
    bool stopped;
    uint64_t seq;
    struct coll_call failure; /* what is told to comm_fail() */
    int failed;               /* its status */
};

/* --------------------------------------------------------------------------------------- queues */

static void queue_init(struct queue *q)
{
    q->head = NULL;
    q->tail = &q->head;
}

static void queue_put(struct queue *q, struct p2p_op *op)
{
    op->next = NULL;
    *q->tail = op;
    q->tail = &op->next;
}

static void queue_remove(struct queue *q, struct p2p_op **at)
{
    struct p2p_op *op = *at;
    *at = op->next;
    if (q->tail == &op->next)
        q->tail = at;
}

static struct p2p_op *queue_take(struct queue *q)
{
    struct p2p_op *op = q->head;
    if (op)
        queue_remove(q, &q->head);
    return op;
}

static struct p2p_op *queue_find(struct queue *q, uint64_t id)
{
    for (struct p2p_op **at = &q->head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (op->frame.id == id) {
            queue_remove(q, at);
            return op;
        }
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------- failing */

/* Something is the matter with an operation, or with a peer (op NULL); comm_fail() has its turn
 * when the lock is free. */
static int fail(struct p2p *p, int status, int peer, const struct p2p_op *op, const struct err *e)
{
    if (p->failed)
        return p->failed;
    struct coll_call *c = &p->failure;
    memset(c, 0, sizeof(*c));
    c->id = (struct call){.kind = op && op->is_send ? CALL_SEND : CALL_RECV,
                          .dtype = op ? op->dtype : 0,
                          .root = peer,
                          .count = op ? op->count : 0};
    c->seq = op ? op->seq : p->seq;
    c->culprit = peer;
    if (e)
        c->err = *e;
    p->failed = status;
    return status;
}

/* The peer sends something else than is received. */
static int mismatch(struct p2p *p, int peer, const struct p2p_op *op, const struct p2p_frame *f)
{
    int r = fail(p, -EBADMSG, peer, op, NULL);
    p->failure.theirs = (struct call){
        .kind = CALL_SEND, .dtype = f->dtype, .root = p->comm->rank, .count = f->count};
    p->failure.theirs_seq = f->id;
    return r;
}

static void op_done(struct p2p *p, struct p2p_op *op)
{
    struct dlcoll_work *w = op->work;
    op->state = P2P_DONE;
    if (op->from)
        *op->from = op->peer;
    recorder_end(&p->comm->job->recorder, op->record, 0);
    atomic_fetch_sub_explicit(&p->under_way, 1, memory_order_relaxed);
    for (struct p2p_op *o = w->ops; o; o = o->sibling) {
        if (o->state != P2P_DONE)
            return;
    }
    async_complete(w, 0);
}

/* ------------------------------------------------------------------------------------- matching */

static bool fits(const struct p2p_op *op, int peer, int tag)
{
    return (op->any || op->peer == peer) && op->tag == tag;
}

static void set_active(struct p2p *p, int peer)
{
    if (p->peers[peer].active || peer == p->comm->rank)
        return;
    p->peers[peer].active = true;
    p->active[p->nactive++] = peer;
}

/* The first receive for a message of that peer; taken off the list. */
static struct p2p_op *take_posted(struct p2p *p, int peer, int tag)
{
    for (struct p2p_op **at = &p->posted.head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (!fits(op, peer, tag))
            continue;
        queue_remove(&p->posted, at);
        if (op->any)
            p->any--;
        else
            p->peers[peer].posted--;
        op->peer = peer;
        return op;
    }
    return NULL;
}

/* A receive that does not fit is left where everything ends with the communicator. */
static int check_fit(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f)
{
    if (op->dtype == f->dtype && op->count == f->count)
        return 0;
    queue_put(&p->peers[op->peer].accepted, op);
    return mismatch(p, op->peer, op, f);
}

/* A large message meets its receive: it is fetched, or the sender may send. */
static void accept_offer(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f)
{
    struct peer *peer = &p->peers[op->peer];
    struct err e = ERR_INIT;
    bool fetch = peer->t == p->shm && stream_may_fetch(p->comm, op->peer);
    int r = fetch ? stream_fetch(p->comm, op->peer, op->buf, f->addr, op->len, &e) : 0;
    if (r < 0)
        fail(p, r, op->peer, op, &e);
    op->state = P2P_ACCEPTED;
    op->frame = (struct p2p_frame){.kind = fetch ? DONE : CTS, .id = f->id};
    op->moved = 0;
    op->with_data = false;
    queue_put(&peer->in_reply, op);
    set_active(p, op->peer);
}

/* Whether what has come already has something for the receive. */
static bool match_kept(struct p2p *p, struct p2p_op *op, int from)
{
    struct peer *peer = &p->peers[from];
    for (struct unexpected **at = &peer->kept; *at; at = &(*at)->next) {
        struct unexpected *un = *at;
        if (un->frame.tag != op->tag)
            continue;
        if (peer->messages.un == un) { /* half of it is here */
            op->peer = from;
            if (check_fit(p, op, &un->frame) < 0)
                return true;
            if (op->len)
                memcpy(op->buf, un->data, un->have);
            peer->messages.un = NULL;
            peer->messages.op = op;
            op->state = P2P_FILLING;
            set_active(p, from);
        } else {
            op->peer = from;
            if (check_fit(p, op, &un->frame) < 0)
                return true;
            if (un->frame.kind == RTS) {
                accept_offer(p, op, &un->frame);
            } else {
                if (op->len)
                    memcpy(op->buf, un->data, op->len);
                op_done(p, op);
            }
        }
        *at = un->next;
        if (peer->kept_tail == &un->next)
            peer->kept_tail = at;
        peer->kept_bytes -= un->frame.kind == EAGER ? op->len : 0;
        free(un);
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------------------- sending to oneself
 */

static bool match_self_send(struct p2p *p, struct p2p_op *op)
{
    struct p2p_op *r = take_posted(p, p->comm->rank, op->tag);
    if (!r)
        return false;
    struct p2p_frame f = {.dtype = op->dtype, .count = op->count, .id = op->seq};
    if (check_fit(p, r, &f) == 0) {
        if (r->len)
            memcpy(r->buf, op->buf, r->len);
        op_done(p, r);
        op_done(p, op);
    } else {
        queue_put(&p->peers[p->comm->rank].offered, op);
    }
    return true;
}

static bool match_self_recv(struct p2p *p, struct p2p_op *r)
{
    struct queue *q = &p->peers[p->comm->rank].offered;
    for (struct p2p_op **at = &q->head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (op->tag != r->tag)
            continue;
        struct p2p_frame f = {.dtype = op->dtype, .count = op->count, .id = op->seq};
        r->peer = p->comm->rank;
        queue_remove(q, at);
        if (check_fit(p, r, &f) == 0) {
            if (r->len)
                memcpy(r->buf, op->buf, r->len);
            op_done(p, op);
            op_done(p, r);
        } else {
            queue_put(q, op);
        }
        return true;
    }
    return false;
}

/* -------------------------------------------------------------------------------------- posting */

static void post_send(struct p2p *p, struct p2p_op *op)
{
    struct peer *peer = &p->peers[op->peer];
    bool eager = op->len <= EAGER_BYTES;
    if (op->peer == p->comm->rank) {
        op->state = P2P_OFFERED;
        if (!match_self_send(p, op))
            queue_put(&peer->offered, op);
        return;
    }
    op->state = P2P_QUEUED;
    op->frame = (struct p2p_frame){.kind = eager ? EAGER : RTS,
                                   .dtype = op->dtype,
                                   .tag = op->tag,
                                   .count = op->count,
                                   .id = ++peer->next_id,
                                   .addr = (uintptr_t)op->buf};
    op->moved = 0;
    op->with_data = eager;
    queue_put(&peer->out, op);
    set_active(p, op->peer);
}

static void post_recv(struct p2p *p, struct p2p_op *op)
{
    int first = op->any ? 0 : op->peer, last = op->any ? p->comm->size - 1 : op->peer;
    op->state = P2P_POSTED;
    for (int r = first; r <= last; r++) {
        if (r == p->comm->rank ? match_self_recv(p, op) : match_kept(p, op, r))
            return;
    }
    if (op->any)
        p->any++;
    else
        p->peers[op->peer].posted++, p->peers[op->peer].deaf = false;
    queue_put(&p->posted, op);
    for (int r = first; r <= last; r++)
        set_active(p, r);
}

/* -------------------------------------------------------------------------------------- reading */

/* The stream on which a peer's messages come, and that on which ours go. */
static int stream_in(const struct p2p *p, int peer)
{
    return p->comm->size + peer;
}

static struct unexpected *keep(struct p2p *p, struct peer *peer, const struct p2p_frame *f,
                               size_t len, struct err *e)
{
    struct unexpected *un = NULL;
    if (peer->kept_bytes + len <= UNEXPECTED_BYTES)
        un = malloc(sizeof(*un) + len);
    if (!un) {
        err_set(e, -ENOMEM, "no memory for messages that are not received");
        fail(p, -ENOBUFS, (int)(peer - p->peers), NULL, e);
        return NULL;
    }
    un->frame = *f;
    un->have = 0;
    un->next = NULL;
    *peer->kept_tail = un;
    peer->kept_tail = &un->next;
    peer->kept_bytes += len;
    return un;
}

/* A whole header has come on the stream of the peer's messages. */
static int begin_message(struct p2p *p, int rank, struct err *e)
{
    struct peer *peer = &p->peers[rank];
    struct reading *in = &peer->messages;
    const struct p2p_frame *f = &in->frame;
    const struct dtype *type = dtype_get(f->dtype);
    in->len = 0;
    in->op = NULL;
    in->un = NULL;
    if (f->kind == DATA) {
        in->op = queue_find(&peer->accepted, f->id);
        if (!in->op)
            return fail(p, -EPROTO, rank, NULL, (err_set(e, -EPROTO, "it sends nonsense"), e));
        in->op->state = P2P_FILLING;
        in->len = in->op->len;
        return 0;
    }
    if ((f->kind != EAGER && f->kind != RTS) || !type || f->count > SIZE_MAX / 2 / type->size ||
        (f->kind == EAGER && f->count * type->size > EAGER_BYTES))
        return fail(p, -EPROTO, rank, NULL, (err_set(e, -EPROTO, "it sends nonsense"), e));
    size_t len = f->count * type->size;
    struct p2p_op *op = take_posted(p, rank, f->tag);
    if (op && check_fit(p, op, f) < 0)
        return p->failed;
    if (f->kind == EAGER)
        in->len = len;
    if (op && f->kind == RTS) {
        accept_offer(p, op, f);
    } else if (op) {
        op->state = P2P_FILLING;
        in->op = op;
    } else {
        struct unexpected *un = keep(p, peer, f, in->len, e);
        if (!un)
            return p->failed;
        in->un = f->kind == EAGER ? un : NULL;
    }
    return 0;
}

static void end_message(struct p2p *p, struct reading *in)
{
    if (in->op)
        op_done(p, in->op);
    in->op = NULL;
    in->un = NULL;
    in->have = 0;
    in->len = 0;
}

/* Whether anything is expected of what the peer sends. */
static bool expects(const struct p2p *p, const struct peer *peer)
{
    return peer->posted || p->any || peer->accepted.head || peer->messages.have;
}

/* Reads what has come of the peer's messages. 1: something has; 0; or negative. */
static int read_messages(struct p2p *p, int rank)
{
    struct peer *peer = &p->peers[rank];
    struct reading *in = &peer->messages;
    struct err e = ERR_INIT;
    int moved = 0;
    while (!peer->deaf && expects(p, peer)) {
        struct iovec iov;
        if (in->have < FRAME_BYTES) {
            iov = (struct iovec){(uint8_t *)&in->frame + in->have, FRAME_BYTES - in->have};
        } else {
            size_t got = in->have - FRAME_BYTES, left = in->len - got;
            uint8_t *to = in->op ? in->op->buf : in->un->data;
            iov = (struct iovec){to + got, left < IO_BYTES ? left : IO_BYTES};
        }
        ssize_t n = peer->t->ops->recv(peer->t, stream_in(p, rank), &iov, 1, &e);
        if (n == -EPIPE && !peer->posted && !peer->accepted.head && !in->have) {
            peer->deaf = true; /* only a receive from any rank was there; others may still send */
            return moved;
        }
        if (n < 0)
            return fail(p, (int)n, rank, p->posted.head, &e);
        if (n == 0)
            return moved;
        moved = 1;
        bool was_header = in->have < FRAME_BYTES;
        in->have += (size_t)n;
        if (!was_header && in->un)
            in->un->have += (size_t)n;
        if (was_header && in->have == FRAME_BYTES && begin_message(p, rank, &e) < 0)
            return p->failed;
        if (in->have >= FRAME_BYTES && in->have == FRAME_BYTES + in->len)
            end_message(p, in);
    }
    return moved;
}

/* The peer answers our offers. */
static int read_replies(struct p2p *p, int rank)
{
    struct peer *peer = &p->peers[rank];
    struct reading *in = &peer->replies;
    struct err e = ERR_INIT;
    int moved = 0;
    while (peer->offered.head) {
        struct iovec iov = {(uint8_t *)&in->frame + in->have, FRAME_BYTES - in->have};
        ssize_t n = peer->t->ops->recv(peer->t, rank, &iov, 1, &e);
        if (n < 0)
            return fail(p, (int)n, rank, peer->offered.head, &e);
        if (n == 0)
            return moved;
        moved = 1;
        in->have += (size_t)n;
        if (in->have < FRAME_BYTES)
            continue;
        in->have = 0;
        struct p2p_op *op = queue_find(&peer->offered, in->frame.id);
        if (!op || (in->frame.kind != CTS && in->frame.kind != DONE))
            return fail(p, -EPROTO, rank, op, (err_set(&e, -EPROTO, "it sends nonsense"), &e));
        if (in->frame.kind == DONE) {
            op_done(p, op);
            continue;
        }
        op->state = P2P_QUEUED;
        op->frame.kind = DATA;
        op->moved = 0;
        op->with_data = true;
        queue_put(&peer->out, op);
    }
    return moved;
}

/* -------------------------------------------------------------------------------------- writing */

/* Writes the first operation's frame and data. 1: all of it; 0: not now; or negative. */
static int write_head(struct p2p *p, int rank, int stream, struct p2p_op *op, bool *moved)
{
    struct peer *peer = &p->peers[rank];
    struct err e = ERR_INIT;
    size_t whole = FRAME_BYTES + (op->with_data ? op->len : 0);
    while (op->moved < whole) {
        struct iovec iov[2];
        int n = 0;
        size_t sent = op->moved > FRAME_BYTES ? op->moved - FRAME_BYTES : 0;
        if (op->moved < FRAME_BYTES)
            iov[n++] = (struct iovec){(uint8_t *)&op->frame + op->moved, FRAME_BYTES - op->moved};
        if (op->with_data && op->len > sent)
            iov[n++] = (struct iovec){op->buf + sent,
                                      op->len - sent < IO_BYTES ? op->len - sent : IO_BYTES};
        ssize_t got = peer->t->ops->send(peer->t, stream, iov, n, &e);
        if (got < 0)
            return fail(p, (int)got, rank, op, &e);
        if (got == 0)
            return 0;
        op->moved += (size_t)got;
        *moved = true;
    }
    return 1;
}

static int write_queue(struct p2p *p, int rank, struct queue *q, int stream, bool *moved)
{
    struct peer *peer = &p->peers[rank];
    int r = 1;
    while (q->head && (r = write_head(p, rank, stream, q->head, moved)) > 0) {
        struct p2p_op *op = queue_take(q);
        if (!op->is_send && op->frame.kind == DONE) {
            op_done(p, op);
        } else if (!op->is_send) {
            queue_put(&peer->accepted, op);
        } else if (op->with_data) {
            op_done(p, op);
        } else {
            op->state = P2P_OFFERED;
            queue_put(&peer->offered, op);
        }
    }
    return r < 0 ? r : 0;
}

/* ------------------------------------------------------------------------------------- progress */

static bool has_business(const struct p2p *p, const struct peer *peer)
{
    return peer->out.head || peer->offered.head || peer->in_reply.head || peer->accepted.head ||
           (expects(p, peer) && !peer->deaf);
}

/* Everything that can be done without blocking. Returns whether anything was. */
static bool pump(struct p2p *p)
{
    bool moved = false;
    for (int i = 0; i < p->nactive && !p->failed;) {
        int rank = p->active[i], r;
        struct peer *peer = &p->peers[rank];
        write_queue(p, rank, &peer->out, rank, &moved);
        if (!p->failed && (r = read_messages(p, rank)) > 0)
            moved = true;
        if (!p->failed)
            write_queue(p, rank, &peer->in_reply, stream_in(p, rank), &moved);
        if (!p->failed && (r = read_replies(p, rank)) > 0) {
            moved = true;
            write_queue(p, rank, &peer->out, rank, &moved);
        }
        if (has_business(p, peer)) {
            i++;
        } else {
            peer->active = false;
            p->active[i] = p->active[--p->nactive];
        }
    }
    return moved;
}

static void check_queue(struct p2p *p, const struct queue *q, uint64_t now)
{
    for (struct p2p_op *op = q->head; op && !p->failed; op = op->next) {
        if (op->deadline_ns && now >= op->deadline_ns && !op->optional)
            fail(p, -ETIMEDOUT, op->state == P2P_POSTED && op->any ? -1 : op->peer, op, NULL);
    }
}

/* Now and then: whether something is overdue, or the communicator has been stopped. */
static void look(struct p2p *p)
{
    uint64_t now = mono_ns();
    int culprit = -1;
    check_queue(p, &p->posted, now);
    check_queue(p, &p->peers[p->comm->rank].offered, now);
    for (int i = 0; i < p->nactive && !p->failed; i++) {
        struct peer *peer = &p->peers[p->active[i]];
        check_queue(p, &peer->out, now);
        check_queue(p, &peer->offered, now);
        check_queue(p, &peer->accepted, now);
        check_queue(p, &peer->in_reply, now);
        if (peer->messages.op) {
            struct queue one = {.head = peer->messages.op};
            struct p2p_op *next = one.head->next;
            one.head->next = NULL;
            check_queue(p, &one, now);
            one.head->next = next;
        }
    }
    int r = p->failed ? 0 : comm_look(p->comm, &culprit);
    if (r < 0)
        fail(p, r, culprit, p->posted.head, NULL);
}

/* What to poll for; fewer than there are when there are many: then the sleep is short. */
static int prepare(struct p2p *p, struct pollfd *fds, int *timeout_ms)
{
    int n = (int)lobby_poll(&p->comm->job->lobby, fds, timeout_ms);
    for (int i = 0; i < p->nactive; i++) {
        int rank = p->active[i];
        const struct peer *peer = &p->peers[rank];
        int out = peer->t == p->tcp ? tcp_open_fd(p->tcp, rank) : -1;
        int in = peer->t == p->tcp ? tcp_open_fd(p->tcp, stream_in(p, rank)) : -1;
        bool writes = peer->out.head, replies = peer->in_reply.head;
        if (n + 2 > POLL_MAX || ((writes || peer->offered.head) && out < 0) || in < 0)
            *timeout_ms = *timeout_ms > 1 ? 1 : *timeout_ms;
        if (n + 2 > POLL_MAX)
            break;
        if (out >= 0 && (writes || peer->offered.head))
            fds[n++] = (struct pollfd){
                .fd = out,
                .events = (short)((writes ? POLLOUT : 0) | (peer->offered.head ? POLLIN : 0))};
        if (in >= 0 && (replies || (expects(p, peer) && !peer->deaf)))
            fds[n++] =
                (struct pollfd){.fd = in, .events = (short)((replies ? POLLOUT : 0) | POLLIN)};
    }
    return n;
}

/* Completes what is under way with the code. */
static void end_all(struct p2p *p, int code)
{
    struct queue all;
    queue_init(&all);
    for (int r = -1; r < p->comm->size; r++) {
        struct peer *peer = r < 0 ? NULL : &p->peers[r];
        struct queue *qs[] = {&p->posted, peer ? &peer->out : NULL, peer ? &peer->offered : NULL,
                              peer ? &peer->in_reply : NULL, peer ? &peer->accepted : NULL};
        struct p2p_op *op;
        for (size_t i = r < 0 ? 0 : 1; i < (r < 0 ? 1 : 5); i++) {
            while ((op = queue_take(qs[i])))
                queue_put(&all, op);
        }
        if (peer && peer->messages.op)
            queue_put(&all, peer->messages.op);
        if (peer) {
            peer->messages = (struct reading){0};
            peer->posted = 0;
        }
    }
    p->any = p->nactive = 0;
    for (struct p2p_op *op; (op = queue_take(&all));) {
        struct dlcoll_work *w = op->work;
        bool last = true;
        op->state = P2P_DONE;
        recorder_end(&p->comm->job->recorder, op->record, code);
        atomic_fetch_sub_explicit(&p->under_way, 1, memory_order_relaxed);
        for (struct p2p_op *o = w->ops; o; o = o->sibling)
            last = last && o->state == P2P_DONE;
        if (last)
            async_complete(w, code);
    }
}

static void stop(struct p2p *p, int code)
{
    p->stopped = true;
    end_all(p, code);
    p->tcp->ops->close(p->tcp);
    if (p->shm)
        p->shm->ops->close(p->shm);
}

/* After every turn, without the lock: what has gone wrong is found out and told. */
static void settle(struct p2p *p)
{
    pthread_mutex_lock(&p->lock);
    int status = p->stopped ? 0 : p->failed;
    struct coll_call call = p->failure;
    pthread_mutex_unlock(&p->lock);
    if (!status)
        return;
    int code = comm_fail(p->comm, status, &call);
    pthread_mutex_lock(&p->lock);
    if (!p->stopped)
        stop(p, code);
    pthread_mutex_unlock(&p->lock);
}

/* One turn. True: something moved. */
static bool turn(struct p2p *p, bool looks)
{
    bool moved = false, failed;
    pthread_mutex_lock(&p->lock);
    if (!p->stopped) {
        moved = pump(p);
        if (!p->failed && comm_is_stopped(p->comm))
            fail(p, -ECANCELED, -1, p->posted.head, NULL);
        if (looks && !p->failed)
            look(p);
    }
    failed = p->failed && !p->stopped;
    pthread_mutex_unlock(&p->lock);
    if (failed)
        settle(p);
    return moved;
}

static void sleep_for(struct p2p *p, int timeout_ms)
{
    struct pollfd fds[POLL_MAX];
    struct err e = ERR_INIT;
    pthread_mutex_lock(&p->lock);
    int n = p->stopped ? 0 : prepare(p, fds, &timeout_ms);
    bool stopped = p->stopped;
    pthread_mutex_unlock(&p->lock);
    if (stopped)
        return;
    (void)!poll(fds, (nfds_t)n, timeout_ms);
    pthread_mutex_lock(&p->lock);
    if (!p->stopped)
        (void)tcp_admit(p->tcp, &e);
    pthread_mutex_unlock(&p->lock);
}

static bool is_done(const struct dlcoll_work *w)
{
    return atomic_load_explicit(&w->done, memory_order_acquire);
}

void p2p_wait(struct dlcoll_comm *comm, struct dlcoll_work *w, uint64_t until_ns, bool once)
{
    struct p2p *p = comm->p2p;
    uint64_t moved_at = 0;
    atomic_fetch_add(&p->waiters, 1);
    while (!is_done(w)) {
        bool moved = turn(p, false);
        if (is_done(w) || once)
            break;
        uint64_t now = mono_ns();
        if (until_ns && now >= until_ns)
            break;
        if (moved || !moved_at)
            moved_at = now;
        uint64_t idle = now - moved_at;
        if (idle < comm->policy.spin_ns) {
            wait_relax();
        } else if (idle < comm->policy.yield_ns) {
            sched_yield();
        } else {
            turn(p, true);
            if (!is_done(w))
                sleep_for(p, idle < 20 * 1000 * 1000 ? 1 : 5);
        }
    }
    atomic_fetch_sub(&p->waiters, 1);
}

void p2p_assist(struct dlcoll_comm *comm, int timeout_ms)
{
    struct p2p *p = comm->p2p;
    if (atomic_load(&p->waiters)) {
        (void)!poll(NULL, 0, timeout_ms);
        return;
    }
    if (!turn(p, true))
        sleep_for(p, timeout_ms);
}

bool p2p_is_busy(const struct dlcoll_comm *comm)
{
    return comm->p2p && atomic_load_explicit(&comm->p2p->under_way, memory_order_relaxed);
}

/* ----------------------------------------------------------------------------- beginning and end
 */

static int p2p_new(struct dlcoll_comm *comm, struct err *e)
{
    size_t size = (size_t)comm->size;
    struct tcp_opts o = net_tcp_opts(comm, CHANNEL_P2P);
    struct p2p *p = calloc(1, sizeof(*p));
    struct peer *peers = calloc(size, sizeof(*peers));
    int *active = calloc(size, sizeof(*active));
    int r = p && peers && active ? tcp_new(&p->tcp, &o, e) : err_set(e, -ENOMEM, "no memory");
    if (r == 0 && comm->shm && (r = stream_new(&p->shm, comm, e)) < 0)
        p->tcp->ops->free(p->tcp);
    if (r < 0) {
        free(p);
        free(peers);
        free(active);
        return r;
    }
    pthread_mutex_init(&p->lock, NULL);
    p->comm = comm;
    p->peers = peers;
    p->active = active;
    queue_init(&p->posted);
    for (size_t i = 0; i < size; i++) {
        struct peer *peer = &peers[i];
        peer->t = p->shm && comm->topo.node_of[i] == comm->topo.node ? p->shm : p->tcp;
        queue_init(&peer->out);
        queue_init(&peer->offered);
        queue_init(&peer->in_reply);
        queue_init(&peer->accepted);
        peer->kept_tail = &peer->kept;
    }
    comm->p2p = p;
    return 0;
}

int p2p_start(struct dlcoll_comm *comm, struct dlcoll_work *w)
{
    struct err e = ERR_INIT;
    if (!comm->p2p && p2p_new(comm, &e) < 0)
        return -ENOMEM;
    struct p2p *p = comm->p2p;
    int n = 0;
    pthread_mutex_lock(&p->lock);
    for (struct p2p_op *op = w->ops; op; op = op->sibling, n++) {
        struct call id = {.kind = op->is_send ? CALL_SEND : CALL_RECV,
                          .dtype = op->dtype,
                          .root = op->any ? -1 : op->peer,
                          .count = op->count};
        op->work = w;
        op->seq = ++p->seq;
        op->state = op->is_send ? P2P_QUEUED : P2P_POSTED;
        op->record =
            recorder_begin(&comm->job->recorder, comm->id, comm->name, op->seq, &id, op->len);
    }
    atomic_fetch_add_explicit(&p->under_way, n, memory_order_relaxed);
    bool stopped = p->stopped;
    for (struct p2p_op *op = w->ops, *next; op && !stopped; op = next) {
        next = op->sibling; /* the handle may be done, and gone, after its last one */
        if (op->is_send)
            post_send(p, op);
        else
            post_recv(p, op);
    }
    pthread_mutex_unlock(&p->lock);
    if (stopped) {
        atomic_fetch_sub_explicit(&p->under_way, n, memory_order_relaxed);
        async_complete(w, DLCOLL_ESTATE);
    } else if (n) {
        turn(p, false);
    } else {
        async_complete(w, 0);
    }
    return 0;
}

static bool take_back(struct queue *q, struct p2p_op *op)
{
    for (struct p2p_op **at = &q->head; *at; at = &(*at)->next) {
        if (*at == op && op->moved == 0) {
            queue_remove(q, at);
            return true;
        }
    }
    return false;
}

bool p2p_cancel(struct dlcoll_comm *comm, struct dlcoll_work *w)
{
    struct p2p *p = comm->p2p;
    struct p2p_op *op = w->ops;
    pthread_mutex_lock(&p->lock);
    bool taken = take_back(op->is_send ? &p->peers[op->peer].out : &p->posted, op);
    if (taken) {
        if (!op->is_send && op->any)
            p->any--;
        else if (!op->is_send)
            p->peers[op->peer].posted--;
        op->state = P2P_DONE;
        recorder_end(&comm->job->recorder, op->record, DLCOLL_ETIMEDOUT);
        atomic_fetch_sub_explicit(&p->under_way, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&p->lock);
    return taken;
}

void p2p_stop(struct dlcoll_comm *comm, int code)
{
    struct p2p *p = comm->p2p;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    if (!p->stopped)
        stop(p, code);
    pthread_mutex_unlock(&p->lock);
}

void p2p_free(struct p2p *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->comm->size; i++) {
        for (struct unexpected *un = p->peers[i].kept, *next; un; un = next) {
            next = un->next;
            free(un);
        }
    }
    p->tcp->ops->free(p->tcp);
    if (p->shm)
        p->shm->ops->free(p->shm);
    free(p->peers);
    free(p->active);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
