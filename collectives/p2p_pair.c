/* p2p_pair.c: what goes over the streams to and from one peer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm.h"
#include "collectives/dtype.h"
#include "collectives/p2p_state.h"

enum {
    UNEXPECTED_BYTES = 1 << 30, /* kept of one peer's messages that nobody has asked for */
    IO_BYTES = 1024 * 1024,
};

static struct p2p_op *find(struct p2p_queue *q, uint64_t id)
{
    for (struct p2p_op **at = &q->head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (op->frame.id == id) {
            p2p_queue_remove(q, at);
            return op;
        }
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------- reading */

static struct p2p_unexpected *keep(struct p2p *p, struct p2p_peer *peer, const struct p2p_frame *f,
                                   size_t len, struct err *e)
{
    struct p2p_unexpected *un = NULL;
    if (peer->kept_bytes + len <= UNEXPECTED_BYTES)
        un = malloc(sizeof(*un) + len);
    if (!un) {
        err_set(e, -ENOMEM, "no memory for messages that are not received");
        p2p_fail(p, -ENOBUFS, (int)(peer - p->peers), NULL, e);
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
    struct p2p_peer *peer = &p->peers[rank];
    struct p2p_reading *in = &peer->messages;
    const struct p2p_frame *f = &in->frame;
    const struct dtype *type = dtype_get(f->dtype);
    in->len = 0;
    in->op = NULL;
    in->un = NULL;
    if (f->kind == P2P_DATA) {
        in->op = find(&peer->accepted, f->id);
        if (!in->op)
            return p2p_fail(p, -EPROTO, rank, NULL, (err_set(e, -EPROTO, "it sends nonsense"), e));
        in->op->state = P2P_FILLING;
        in->len = in->op->len;
        return 0;
    }
    if ((f->kind != P2P_EAGER && f->kind != P2P_RTS) || !type ||
        f->count > SIZE_MAX / 2 / type->size ||
        (f->kind == P2P_EAGER && f->count * type->size > P2P_EAGER_BYTES))
        return p2p_fail(p, -EPROTO, rank, NULL, (err_set(e, -EPROTO, "it sends nonsense"), e));
    size_t len = f->count * type->size;
    struct p2p_op *op;
    if (p2p_match(p, rank, f, &op) < 0)
        return p->failed;
    if (f->kind == P2P_EAGER)
        in->len = len;
    if (op) {
        in->op = f->kind == P2P_EAGER ? op : NULL;
    } else {
        struct p2p_unexpected *un = keep(p, peer, f, in->len, e);
        if (!un)
            return p->failed;
        in->un = f->kind == P2P_EAGER ? un : NULL;
    }
    return 0;
}

static void end_message(struct p2p *p, struct p2p_reading *in)
{
    if (in->op)
        p2p_done(p, in->op);
    in->op = NULL;
    in->un = NULL;
    in->have = 0;
    in->len = 0;
}

bool p2p_expects(const struct p2p *p, const struct p2p_peer *peer)
{
    return peer->posted || p->any || peer->accepted.head || peer->messages.have;
}

/* Reads what has come of the peer's messages. 1: something has; 0; or negative. */
static int read_messages(struct p2p *p, int rank)
{
    struct p2p_peer *peer = &p->peers[rank];
    struct p2p_reading *in = &peer->messages;
    struct err e; /* not cleared: this is done while waiting */
    int moved = 0;
    while (!peer->deaf && p2p_expects(p, peer)) {
        struct iovec iov;
        if (in->have < P2P_FRAME_BYTES) {
            iov = (struct iovec){(uint8_t *)&in->frame + in->have, P2P_FRAME_BYTES - in->have};
        } else {
            size_t got = in->have - P2P_FRAME_BYTES, left = in->len - got;
            uint8_t *to = in->op ? in->op->buf : in->un->data;
            iov = (struct iovec){to + got, left < IO_BYTES ? left : IO_BYTES};
        }
        ssize_t n = peer->t->ops->recv(peer->t, p2p_stream_in(p, rank), &iov, 1, &e);
        if (n == -EPIPE && !peer->posted && !peer->accepted.head && !in->have) {
            peer->deaf = true; /* only a receive from any rank was there; others may still send */
            return moved;
        }
        if (n < 0)
            return p2p_fail(p, (int)n, rank, p->posted.head, &e);
        if (n == 0)
            return moved;
        moved = 1;
        bool was_header = in->have < P2P_FRAME_BYTES;
        in->have += (size_t)n;
        if (!was_header && in->un)
            in->un->have += (size_t)n;
        if (was_header && in->have == P2P_FRAME_BYTES && begin_message(p, rank, &e) < 0)
            return p->failed;
        if (in->have >= P2P_FRAME_BYTES && in->have == P2P_FRAME_BYTES + in->len)
            end_message(p, in);
    }
    return moved;
}

/* The peer answers our offers. */
static int read_replies(struct p2p *p, int rank)
{
    struct p2p_peer *peer = &p->peers[rank];
    struct p2p_reading *in = &peer->replies;
    struct err e; /* not cleared: this is done while waiting */
    int moved = 0;
    while (peer->offered.head) {
        struct iovec iov = {(uint8_t *)&in->frame + in->have, P2P_FRAME_BYTES - in->have};
        ssize_t n = peer->t->ops->recv(peer->t, rank, &iov, 1, &e);
        if (n < 0)
            return p2p_fail(p, (int)n, rank, peer->offered.head, &e);
        if (n == 0)
            return moved;
        moved = 1;
        in->have += (size_t)n;
        if (in->have < P2P_FRAME_BYTES)
            continue;
        in->have = 0;
        struct p2p_op *op = find(&peer->offered, in->frame.id);
        if (!op || (in->frame.kind != P2P_CTS && in->frame.kind != P2P_FETCHED))
            return p2p_fail(p, -EPROTO, rank, op, (err_set(&e, -EPROTO, "it sends nonsense"), &e));
        if (in->frame.kind == P2P_FETCHED) {
            p2p_done(p, op);
            continue;
        }
        op->state = P2P_QUEUED;
        op->frame.kind = P2P_DATA;
        op->moved = 0;
        op->with_data = true;
        p2p_queue_put(&peer->out, op);
    }
    return moved;
}

/* -------------------------------------------------------------------------------------- writing */

/* Writes the first operation's frame and data. 1: all of it; 0: not now; or negative. */
static int write_head(struct p2p *p, int rank, int stream, struct p2p_op *op, bool *moved)
{
    struct p2p_peer *peer = &p->peers[rank];
    struct err e;
    size_t whole = P2P_FRAME_BYTES + (op->with_data ? op->len : 0);
    while (op->moved < whole) {
        struct iovec iov[2];
        int n = 0;
        size_t sent = op->moved > P2P_FRAME_BYTES ? op->moved - P2P_FRAME_BYTES : 0;
        if (op->moved < P2P_FRAME_BYTES)
            iov[n++] =
                (struct iovec){(uint8_t *)&op->frame + op->moved, P2P_FRAME_BYTES - op->moved};
        if (op->with_data && op->len > sent)
            iov[n++] = (struct iovec){op->buf + sent,
                                      op->len - sent < IO_BYTES ? op->len - sent : IO_BYTES};
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

static void write_queue(struct p2p *p, int rank, struct p2p_queue *q, int stream, bool *moved)
{
    struct p2p_peer *peer = &p->peers[rank];
    while (q->head && write_head(p, rank, stream, q->head, moved) > 0) {
        struct p2p_op *op = p2p_queue_take(q);
        if (!op->is_send && op->frame.kind == P2P_FETCHED) {
            p2p_done(p, op);
        } else if (!op->is_send) {
            p2p_queue_put(&peer->accepted, op);
        } else if (op->with_data) {
            p2p_done(p, op);
        } else {
            op->state = P2P_OFFERED;
            p2p_queue_put(&peer->offered, op);
        }
    }
}

/* --------------------------------------------------------------------------------------- both */

void p2p_move(struct p2p *p, int rank, bool *moved)
{
    struct p2p_peer *peer = &p->peers[rank];
    if (peer->out.head)
        write_queue(p, rank, &peer->out, rank, moved);
    if (!p->failed && read_messages(p, rank) > 0)
        *moved = true;
    if (!p->failed && peer->in_reply.head)
        write_queue(p, rank, &peer->in_reply, p2p_stream_in(p, rank), moved);
    if (!p->failed && peer->offered.head && read_replies(p, rank) > 0) {
        *moved = true;
        write_queue(p, rank, &peer->out, rank, moved);
    }
}
