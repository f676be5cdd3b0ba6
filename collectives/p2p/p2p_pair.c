/* p2p_pair.c: what goes over the streams to and from one peer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/base/dtype.h"
#include "collectives/wire/tcp.h"
#include "collectives/p2p/p2p_state.h"
#include "collectives/shm/memory.h"
#include "collectives/shm/ring.h"
#include "core/clock.h"

enum {
    IO_BYTES = 1024 * 1024,
};

/* Bytes of a frame before the message that is with it. */
static size_t head_len(const struct p2p *p, int rank, size_t len)
{
    return p2p_has_one_stream(p, rank) ? frame_distance(P2P_FRAME_BYTES, len) : P2P_FRAME_BYTES;
}

/* -------------------------------------------------------------------------------------- reading */

static int pair_refuse(struct p2p *p, int rank, struct err *e)
{
    err_set(e, -EPROTO, "it sends nonsense");
    return p2p_fail(p, -EPROTO, rank, NULL, e);
}

/* A small message, or the offer of a large one. */
static int begin_message(struct p2p *p, int rank, struct p2p_reading *in, struct err *e)
{
    const struct p2p_frame *f = &in->frame;
    const struct dtype *type = dtype_get(f->dtype);
    size_t most = p2p_has_one_stream(p, rank) ? P2P_AHEAD_MOST : P2P_EAGER_BYTES;
    if (!type || f->count > SIZE_MAX / 2 / type->size ||
        (f->kind == P2P_EAGER && f->count * type->size > most))
        return pair_refuse(p, rank, e);
    size_t len = f->count * type->size;
    struct p2p_op *op;
    if (p2p_match(p, rank, f, &op) < 0)
        return p->failed;
    if (f->kind == P2P_EAGER)
        in->len = len;
    if (op) {
        in->op = f->kind == P2P_EAGER ? op : NULL;
    } else {
        struct p2p_unexpected *un = p2p_keep(p, rank, f, in->len);
        if (!un)
            return p->failed;
        in->un = f->kind == P2P_EAGER ? un : NULL;
    }
    return 0;
}

/* The data that a receive has asked for. */
static int begin_data(struct p2p *p, int rank, struct p2p_reading *in, struct err *e)
{
    in->op = p2p_queue_find(&p->peers[rank].accepted, in->frame.id);
    if (!in->op)
        return pair_refuse(p, rank, e);
    in->op->state = P2P_FILLING;
    in->len = in->op->len;
    return 0;
}

/* The peer answers an offer of ours. */
static int hear_reply(struct p2p *p, int rank, const struct p2p_frame *f, struct err *e)
{
    struct p2p_peer *peer = &p->peers[rank];
    struct p2p_op *op = p2p_queue_find(&peer->offered, f->id);
    if (!op)
        return pair_refuse(p, rank, e);
    if (f->kind == P2P_FETCHED) {
        p2p_done(p, op);
        return 0;
    }
    op->state = P2P_QUEUED;
    op->frame.kind = P2P_DATA;
    op->moved = 0;
    op->with_data = true;
    p2p_queue_put(&peer->out, op);
    return 0;
}

/* A whole header has come. */
static int begin_frame(struct p2p *p, int rank, struct p2p_reading *in, struct err *e)
{
    bool is_reply = in->frame.kind == P2P_CTS || in->frame.kind == P2P_FETCHED;
    in->len = 0;
    in->op = NULL;
    in->un = NULL;
    struct p2p_peer *peer = &p->peers[rank];
    bool one_stream = p2p_has_one_stream(p, rank);
    if (one_stream ? in->frame.taken > peer->ahead : is_reply != (in == &peer->replies))
        return pair_refuse(p, rank, e);
    if (one_stream)
        peer->heard = in->frame.taken;
    switch (in->frame.kind) {
    case P2P_EAGER:
    case P2P_RTS:
        return begin_message(p, rank, in, e);
    case P2P_DATA:
        return begin_data(p, rank, in, e);
    case P2P_CTS:
    case P2P_FETCHED:
        return hear_reply(p, rank, &in->frame, e);
    default:
        return pair_refuse(p, rank, e);
    }
}

static void end_frame(struct p2p *p, struct p2p_reading *in, bool staged)
{
    struct p2p_op *op = in->op;
    if (op && staged && in->frame.kind == P2P_DATA && op->len > P2P_EAGER_BYTES) {
        int size = cost_size(op->len);
        cost_take(&p->costs[size], size, &p->turns[size], COST_STAGED, mono_ns() - op->accepted_ns,
                  op->len);
    }
    if (op)
        p2p_received(p, op, &in->frame);
    in->op = NULL;
    in->un = NULL;
    in->have = 0;
    in->len = 0;
}

bool p2p_expects(const struct p2p *p, int rank)
{
    const struct p2p_peer *peer = &p->peers[rank];
    return !peer->deaf && (peer->posted || p->any || peer->accepted.head || peer->messages.have ||
                           (peer->offered.head && p2p_has_one_stream(p, rank)));
}

/* True if only receives from any rank are under way, and others may still send, or operations that
 * may be in vain. */
static bool can_do_without(const struct p2p *p, int rank, const struct p2p_reading *in)
{
    const struct p2p_peer *peer = &p->peers[rank];
    const struct p2p_op *op = p->posted.head;
    while (op && (op->any || op->peer != rank || op->optional))
        op = op->next;
    return !op && !peer->accepted.head && !peer->offered.head && !in->have;
}

static bool reads_on(const struct p2p *p, int rank, const struct p2p_reading *in)
{
    return in == &p->peers[rank].messages ? p2p_expects(p, rank)
                                          : p->peers[rank].offered.head != NULL;
}

/* The receive that most likely is the one of the peer's next message, a large one; or NULL. Until
 * the header is known, only into a buffer that is lent may anything be written. */
static struct p2p_op *likely_receive(const struct p2p *p, int rank)
{
    struct p2p_op *op = p->posted.head;
    return op && op->peer == rank && op->lends && op->len >= P2P_AHEAD_BYTES && !p->any &&
                   p->peers[rank].posted == 1
               ? op
               : NULL;
}

static uint8_t *data_ahead(struct p2p_ahead *a)
{
    return a->large ? a->large : a->small;
}

/* Called only while nothing is read ahead. False: no memory; the caller does without. */
static bool may_place(struct p2p_ahead *a)
{
    if (!a->large)
        a->large = malloc(P2P_AHEAD_BYTES + P2P_PLACED_BYTES);
    return a->large;
}

/* Takes bytes that have come. A header brings what is behind it, so that a small message, or
 * several, take one call; so does a large one whose receive is known: `place`. */
static ssize_t pair_take(struct p2p *p, int rank, int stream, bool header, void *to, size_t len,
                         const struct p2p_op *place, struct err *e)
{
    struct transport *t = p->peers[rank].t;
    struct p2p_ahead *a = &p->ahead[rank];
    struct iovec iov[3] = {{to, len}};
    int most = 1;
    if (!p2p_has_one_stream(p, rank))
        return t->ops->recv(t, stream, iov, 1, e);
    ssize_t n = (ssize_t)(len < a->have ? len : a->have);
    if (n) {
        memcpy(to, data_ahead(a) + a->at, (size_t)n);
        a->at += (size_t)n;
        a->have -= (size_t)n;
        return n;
    }
    if (place && may_place(a)) {
        iov[most++] =
            (struct iovec){a->large, frame_distance(P2P_FRAME_BYTES, place->len) - P2P_FRAME_BYTES};
        iov[most++] = (struct iovec){place->buf,
                                     place->len < P2P_PLACED_BYTES ? place->len : P2P_PLACED_BYTES};
    } else if (header) {
        iov[most++] = (struct iovec){data_ahead(a), P2P_AHEAD_BYTES};
    }
    if ((n = t->ops->recv(t, stream, iov, most, e)) > (ssize_t)len) {
        size_t behind = (size_t)n - len;
        a->at = 0;
        a->have = behind < iov[1].iov_len ? behind : iov[1].iov_len;
        a->placed = behind - a->have;
        n = (ssize_t)len;
    }
    return n;
}

/* The header tells whether the bytes in `buf`, that of a receive, are of its message. */
static void settle_placed(struct p2p_ahead *a, struct p2p_reading *in, const struct p2p_op *place,
                          uint8_t *buf)
{
    size_t kept = 0;
    if (in->op == place && in->len && in->head_len == P2P_FRAME_BYTES + a->have) {
        kept = a->placed < in->len ? a->placed : in->len;
        in->have = in->head_len + kept;
        a->have = 0;
    }
    memcpy(data_ahead(a) + a->have, buf + kept, a->placed - kept);
    a->have += a->placed - kept;
    a->placed = 0;
}

/* Reads what has come on a stream and is expected. 1: something has; 0; or negative. */
static int read_frames(struct p2p *p, int rank, int stream, struct p2p_reading *in)
{
    struct p2p_peer *peer = &p->peers[rank];
    struct err e; /* not cleared: waiting ranks call this often */
    int moved = 0;
    while (reads_on(p, rank, in)) {
        bool header = in->have < P2P_FRAME_BYTES;
        size_t head = header ? P2P_FRAME_BYTES : in->head_len;
        uint8_t *to;
        size_t len;
        if (in->have < head) {
            to = in->head + in->have;
            len = head - in->have;
        } else {
            size_t got = in->have - head, left = in->len - got;
            to = (in->op ? in->op->buf : in->un->data) + got;
            len = left < IO_BYTES ? left : IO_BYTES;
        }
        struct p2p_op *place = in->have == 0 ? likely_receive(p, rank) : NULL;
        uint8_t *buf = place ? place->buf : NULL;
        ssize_t n = pair_take(p, rank, stream, header, to, len, place, &e);
        if (n == -EPIPE && can_do_without(p, rank, in)) {
            peer->deaf = true;
            return moved;
        }
        if (n < 0)
            return p2p_fail(p, (int)n, rank, NULL, &e);
        if (n == 0)
            return moved;
        moved = 1;
        if (in->have >= head && in->un)
            in->un->have += (size_t)n;
        in->have += (size_t)n;
        if (header && in->have == P2P_FRAME_BYTES) {
            if (begin_frame(p, rank, in, &e) < 0)
                return p->failed;
            in->head_len = head_len(p, rank, in->len);
            if (p->ahead[rank].placed)
                settle_placed(&p->ahead[rank], in, place, buf);
        }
        if (in->have >= P2P_FRAME_BYTES && in->have == in->head_len + in->len)
            end_frame(p, in, peer->t == p->shm);
    }
    return moved;
}

/* -------------------------------------------------------------------------------------- writing */

/* Within the node: the peer keeps so much already that a message must be offered to it. */
static void ask_if_much_is_kept(const struct p2p *p, int rank, struct p2p_op *op)
{
    if (op->frame.kind != P2P_EAGER || op->optional ||
        ring_hear_kept(p->shm, rank) + p2p_charge(op->len) <= P2P_WINDOW_BYTES)
        return;
    op->frame.kind = P2P_RTS;
    op->with_data = false;
}

/* Writes the first operation's frame and data. 1: all of it; 0: not now; or negative. */
static int write_head(struct p2p *p, int rank, int stream, struct p2p_op *op, bool *moved)
{
    struct p2p_peer *peer = &p->peers[rank];
    uint8_t frame[FRAME_DISTANCE] = {0};
    struct err e;
    if (p2p_has_one_stream(p, rank) && op->moved == 0)
        op->frame.taken = peer->taken;
    else if (op->moved == 0)
        ask_if_much_is_kept(p, rank, op);
    size_t len = op->with_data ? op->len : 0, head = head_len(p, rank, len);
    memcpy(frame, &op->frame, P2P_FRAME_BYTES);
    while (op->moved < head + len) {
        struct iovec iov[2];
        int n = 0;
        size_t sent = op->moved > head ? op->moved - head : 0;
        if (op->moved < head)
            iov[n++] = (struct iovec){frame + op->moved, head - op->moved};
        if (len > sent)
            iov[n++] =
                (struct iovec){op->buf + sent, len - sent < IO_BYTES ? len - sent : IO_BYTES};
        ssize_t got = peer->t->ops->send(peer->t, stream, iov, n, &e);
        if (got < 0)
            return p2p_fail(p, (int)got, rank, op, &e);
        if (got == 0)
            return 0;
        op->moved += (size_t)got;
        *moved = true;
    }
    return 1;
}

/* The first of a queue has been written. */
static void end_head(struct p2p *p, struct p2p_peer *peer, struct p2p_queue *q)
{
    struct p2p_op *op = p2p_queue_take(q);
    if (!op->is_send && op->frame.kind == P2P_FETCHED) {
        p2p_done(p, op);
    } else if (!op->is_send) {
        p2p_queue_put(&peer->accepted, op);
    } else if (op->with_data && !(op->sync && op->frame.kind == P2P_EAGER)) {
        p2p_done(p, op);
    } else {
        op->state = P2P_OFFERED;
        p2p_queue_put(&peer->offered, op);
    }
}

static void write_queue(struct p2p *p, int rank, struct p2p_queue *q, int stream, bool *moved)
{
    while (q->head && write_head(p, rank, stream, q->head, moved) > 0)
        end_head(p, &p->peers[rank], q);
}

/* The order on the one stream: the rest of a frame that is begun, then answers, then messages. */
static struct p2p_queue *next_queue(struct p2p_peer *peer)
{
    bool begun = peer->out.head && peer->out.head->moved;
    return peer->in_reply.head && !begun ? &peer->in_reply : &peer->out;
}

static void write_frames(struct p2p *p, int rank, bool *moved)
{
    struct p2p_peer *peer = &p->peers[rank];
    struct p2p_queue *q;
    while ((q = next_queue(peer))->head && write_head(p, rank, rank, q->head, moved) > 0)
        end_head(p, peer, q);
}

/* ----------------------------------------------------------------------------------------- both */

static void move_one_stream(struct p2p *p, int rank, bool *moved)
{
    write_frames(p, rank, moved);
    if (!p->failed && read_frames(p, rank, rank, &p->peers[rank].messages) > 0) {
        *moved = true;
        write_frames(p, rank, moved);
    }
}

static void move_two_streams(struct p2p *p, int rank, bool *moved)
{
    struct p2p_peer *peer = &p->peers[rank];
    write_queue(p, rank, &peer->out, rank, moved);
    if (!p->failed && read_frames(p, rank, peer->in, &peer->messages) > 0)
        *moved = true;
    if (!p->failed)
        write_queue(p, rank, &peer->in_reply, peer->in, moved);
    if (!p->failed && read_frames(p, rank, rank, &peer->replies) > 0) {
        *moved = true;
        write_queue(p, rank, &peer->out, rank, moved);
    }
}

void p2p_move(struct p2p *p, int rank, bool *moved)
{
    if (p2p_has_one_stream(p, rank))
        move_one_stream(p, rank, moved);
    else
        move_two_streams(p, rank, moved);
}

/* ------------------------------------------------------------------------- who is there no more */

/* The peer's end is then seen on the connection, after all that the peer has sent. */
static bool is_connected(const struct p2p *p, int rank)
{
    return p->peers[rank].t == p->tcp && tcp_open_fd(p->tcp, rank) >= 0;
}

const struct p2p_op *p2p_op_with(const struct p2p *p, int rank, bool any)
{
    const struct p2p_peer *peer = &p->peers[rank];
    const struct p2p_op *ops[] = {peer->messages.op, peer->out.head, peer->offered.head,
                                  peer->in_reply.head, peer->accepted.head};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (ops[i])
            return ops[i];
    }
    const struct p2p_op *op = p->posted.head;
    while (op && (op->any ? !any : op->peer != rank))
        op = op->next;
    return op;
}

static void check_exit(struct p2p *p, int rank)
{
    struct err e;
    bool moved = false;
    if (is_connected(p, rank))
        return;
    bool replaced =
        p->peers[rank].t == p->shm && shm_is_replaced(p->comm, p->comm->topo.local_of[rank]);
    if (!replaced && !comm_has_exited(p->comm, rank))
        return;
    p2p_move(p, rank, &moved); /* messages that the peer has sent before count */
    if (p->failed || is_connected(p, rank))
        return;
    struct p2p_peer *peer = &p->peers[rank];
    /* A peer that ends in good order would have left, or a launcher would have reported the end. */
    const struct segment_local *line =
        job_segment_local(&p->comm->world->segment, p->comm->world_ranks[rank]);
    bool well = line && atomic_load_explicit(&line->exited, memory_order_acquire);
    bool died = !well && peer->t == p->shm && !ring_has_left(p->comm, rank);
    const struct p2p_op *op = p2p_op_with(p, rank, died);
    bool is_told = peer->out.head || peer->in_reply.head;
    if (!op || (!died && !is_told && can_do_without(p, rank, &peer->messages))) {
        peer->deaf = !died; /* else a rank that waits for any peer has to find the end */
        return;
    }
    err_set(&e, -EPIPE, "%s", replaced ? SHM_REPLACED : "it no longer takes part");
    p2p_fail(p, -EPIPE, rank, op, &e);
}

/* A receive from any rank, when there is none left. */
static void check_any(struct p2p *p)
{
    const struct p2p_op *op = p->posted.head;
    struct err e;
    int me = p->comm->rank, other = me == 0;
    for (int i = 0; i < p->comm->size; i++) {
        if (i != me && !p->peers[i].deaf)
            return;
    }
    while (op && !op->any)
        op = op->next;
    err_set(&e, -EPIPE, "as have all others");
    p2p_fail(p, -EPIPE, other, op, &e);
}

void p2p_check_exits(struct p2p *p)
{
    for (int i = 0; i < p->nactive && !p->failed; i++)
        check_exit(p, p->active[i]);
    if (p->any && !p->failed && p->comm->size > 1)
        check_any(p);
}
