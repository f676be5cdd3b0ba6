/* p2p_match.c: which message is for which receive. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/comm.h"
#include "collectives/p2p/p2p_state.h"
#include "collectives/shm/ring.h"
#include "core/clock.h"

/* ------------------------------------------------------------------------------------- matching */

static bool match_fits(const struct p2p_op *op, int peer, int tag)
{
    return (op->any || op->peer == peer) && op->tag == tag;
}

/* The first receive for a message of that peer; taken off the list. */
static struct p2p_op *take_posted(struct p2p *p, int peer, int tag)
{
    for (struct p2p_op **at = &p->posted.head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (!match_fits(op, peer, tag))
            continue;
        p2p_queue_remove(&p->posted, at);
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
    p2p_queue_put(&p->peers[op->peer].accepted, op);
    return p2p_mismatch(p, op->peer, op, f);
}

/* A large message meets its receive: it is fetched, or the sender may send. So may one whose memory
 * no other process can read: of a device, or secret. */
static void accept_offer(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f)
{
    struct p2p_peer *peer = &p->peers[op->peer];
    struct err e = ERR_INIT;
    int size = cost_size(op->len);
    bool fetch = peer->t == p->shm && ring_may_fetch(p->comm, op->peer) &&
                 cost_choose(&p->costs[size], 1, 0, size, &p->turns[size]) == COST_PULLED;
    op->accepted_ns = mono_ns();
    int r = fetch ? ring_fetch(p->comm, op->peer, op->buf, f->addr, op->len, &e) : 0;
    if (r == 0 && fetch && comm_was_stopped(p->comm))
        p2p_fail(p, -ECANCELED, -1, op, NULL);
    else if (r == -EPIPE)
        p2p_fail(p, r, op->peer, op, &e);
    else if (r < 0)
        fetch = false;
    else if (fetch)
        cost_take(&p->costs[size], size, &p->turns[size], COST_PULLED, mono_ns() - op->accepted_ns,
                  op->len);
    op->state = P2P_ACCEPTED;
    op->frame = (struct p2p_frame){.kind = fetch ? P2P_FETCHED : P2P_CTS, .id = f->id};
    op->moved = 0;
    op->with_data = false;
    p2p_queue_put(&peer->in_reply, op);
    p2p_set_active(p, op->peer);
}

/* A message that was sent without asking has its receive. */
static void count_taken(struct p2p_peer *peer, const struct p2p_frame *f, size_t len)
{
    if (f->kind == P2P_EAGER && len > P2P_EAGER_BYTES)
        peer->taken += len;
}

int p2p_match(struct p2p *p, int rank, const struct p2p_frame *f, struct p2p_op **op)
{
    *op = take_posted(p, rank, f->tag);
    if (!*op)
        return 0;
    int r = check_fit(p, *op, f);
    if (r < 0)
        return r;
    (*op)->state = P2P_FILLING;
    count_taken(&p->peers[rank], f, (*op)->len);
    if (f->kind == P2P_RTS)
        accept_offer(p, *op, f);
    return 0;
}

/* Whether what has come already has something for the receive. */
static bool match_kept(struct p2p *p, struct p2p_op *op, int from)
{
    struct p2p_peer *peer = &p->peers[from];
    for (struct p2p_unexpected **at = &peer->kept; *at; at = &(*at)->next) {
        struct p2p_unexpected *un = *at;
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
            p2p_set_active(p, from);
        } else {
            op->peer = from;
            if (check_fit(p, op, &un->frame) < 0)
                return true;
            if (un->frame.kind == P2P_RTS) {
                accept_offer(p, op, &un->frame);
            } else {
                if (op->len)
                    memcpy(op->buf, un->data, op->len);
                p2p_done(p, op);
            }
        }
        count_taken(peer, &un->frame, op->len);
        *at = un->next;
        if (peer->kept_tail == &un->next)
            peer->kept_tail = at;
        peer->kept_bytes -= un->frame.kind == P2P_EAGER ? op->len : 0;
        free(un);
        return true;
    }
    return false;
}

/* --------------------------------------------------------------------------- sending to oneself */

static bool match_self_send(struct p2p *p, struct p2p_op *op)
{
    struct p2p_op *r = take_posted(p, p->comm->rank, op->tag);
    if (!r)
        return false;
    struct p2p_frame f = {.dtype = op->dtype, .count = op->count, .id = op->seq};
    if (check_fit(p, r, &f) == 0) {
        if (r->len)
            memcpy(r->buf, op->buf, r->len);
        p2p_done(p, r);
        p2p_done(p, op);
    } else {
        p2p_queue_put(&p->peers[p->comm->rank].offered, op);
    }
    return true;
}

static bool match_self_recv(struct p2p *p, struct p2p_op *r)
{
    struct p2p_queue *q = &p->peers[p->comm->rank].offered;
    for (struct p2p_op **at = &q->head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (op->tag != r->tag)
            continue;
        struct p2p_frame f = {.dtype = op->dtype, .count = op->count, .id = op->seq};
        r->peer = p->comm->rank;
        p2p_queue_remove(q, at);
        if (check_fit(p, r, &f) == 0) {
            if (r->len)
                memcpy(r->buf, op->buf, r->len);
            p2p_done(p, op);
            p2p_done(p, r);
        } else {
            p2p_queue_put(q, op);
        }
        return true;
    }
    return false;
}

/* -------------------------------------------------------------------------------------- posting */

/* Whether it goes without asking. */
static bool goes_at_once(const struct p2p *p, const struct p2p_op *op)
{
    struct p2p_peer *peer = &p->peers[op->peer];
    if (op->len <= P2P_EAGER_BYTES)
        return true;
    if (!p2p_has_one_stream(p, op->peer) || op->len > P2P_AHEAD_MOST ||
        peer->ahead - peer->heard + op->len > P2P_WINDOW_BYTES)
        return false;
    peer->ahead += op->len;
    return true;
}

void p2p_post_send(struct p2p *p, struct p2p_op *op)
{
    struct p2p_peer *peer = &p->peers[op->peer];
    if (op->peer == p->comm->rank) {
        op->state = P2P_OFFERED;
        if (!match_self_send(p, op))
            p2p_queue_put(&peer->offered, op);
        return;
    }
    bool eager = goes_at_once(p, op);
    op->state = P2P_QUEUED;
    op->frame = (struct p2p_frame){.kind = eager ? P2P_EAGER : P2P_RTS,
                                   .dtype = op->dtype,
                                   .tag = op->tag,
                                   .count = op->count,
                                   .id = ++peer->next_id,
                                   .addr = (uintptr_t)op->buf};
    op->moved = 0;
    op->with_data = eager;
    p2p_queue_put(&peer->out, op);
    p2p_set_active(p, op->peer);
}

void p2p_post_recv(struct p2p *p, struct p2p_op *op)
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
    p2p_queue_put(&p->posted, op);
    for (int r = first; r <= last; r++)
        p2p_set_active(p, r);
}
