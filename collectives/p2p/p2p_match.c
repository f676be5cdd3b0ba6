/* p2p_match.c: which message is for which receive or probe. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/p2p/p2p_state.h"
#include "collectives/base/dtype.h"
#include "collectives/shm/ring.h"
#include "core/clock.h"

enum { UNEXPECTED_BYTES = 1 << 30 }; /* kept of one peer's messages that nobody has asked for */

/* ------------------------------------------------------------------------------------- matching */

/* The library's own tags are negative. */
static bool fits_tag(const struct p2p_op *op, int tag)
{
    return op->any_tag ? tag >= 0 : op->tag == tag;
}

static bool match_fits(const struct p2p_op *op, int peer, int tag)
{
    return (op->any || op->peer == peer) && fits_tag(op, tag);
}

void p2p_unpost(struct p2p *p, struct p2p_op **at)
{
    struct p2p_op *op = *at;
    p2p_queue_remove(&p->posted, at);
    if (op->any)
        p->any--;
    else
        p->peers[op->peer].posted--;
}

/* The first receive for a message of that peer; taken off the list. */
static struct p2p_op *take_posted(struct p2p *p, int peer, int tag)
{
    for (struct p2p_op **at = &p->posted.head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (op->probes || !match_fits(op, peer, tag))
            continue;
        p2p_unpost(p, at);
        op->peer = peer;
        return op;
    }
    return NULL;
}

/* A receive that does not fit is left where everything ends with the communicator. */
static int check_fit(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f)
{
    if (op->dtype != f->dtype || f->count > op->count || (f->count < op->count && !op->upto)) {
        p2p_queue_put(&p->peers[op->peer].accepted, op);
        return p2p_mismatch(p, op->peer, op, f);
    }
    op->tag = f->tag;
    if (f->count < op->count) {
        op->len = op->len / op->count * f->count;
        op->count = f->count;
    }
    return 0;
}

/* The receive has an answer to the sender. */
static void answer(struct p2p *p, struct p2p_op *op, enum p2p_frame_kind kind, uint64_t id)
{
    op->state = P2P_ACCEPTED;
    op->frame = (struct p2p_frame){.kind = (uint8_t)kind, .id = id};
    op->moved = 0;
    op->with_data = false;
    p2p_queue_put(&p->peers[op->peer].in_reply, op);
    p2p_set_active(p, op->peer);
}

void p2p_received(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f)
{
    if (f->kind == P2P_EAGER && f->flags & P2P_SYNC)
        answer(p, op, P2P_FETCHED, f->id);
    else
        p2p_done(p, op);
}

/* This rank's own message meets its receive. */
static void copy_own(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f)
{
    struct p2p_op *send = p2p_queue_find(&p->peers[p->comm->rank].offered, f->id);
    if (op->len)
        memcpy(op->buf, send->buf, op->len);
    p2p_done(p, send);
    p2p_done(p, op);
}

/* A large message meets its receive: it is fetched, or the sender may send. So may one whose memory
 * no other process can read: of a device, or secret. */
static void accept_offer(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f)
{
    struct p2p_peer *peer = &p->peers[op->peer];
    struct err e = ERR_INIT;
    int size = cost_size(op->len);
    if (op->peer == p->comm->rank) {
        copy_own(p, op, f);
        return;
    }
    bool fetch = peer->t == p->shm && op->len > P2P_EAGER_BYTES &&
                 ring_may_fetch(p->comm, op->peer) &&
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
    answer(p, op, fetch ? P2P_FETCHED : P2P_CTS, f->id);
}

/* A message that was sent without asking has its receive. */
static void count_taken(struct p2p_peer *peer, const struct p2p_frame *f, size_t len)
{
    if (f->kind == P2P_EAGER)
        peer->taken += p2p_charge(len);
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

/* ----------------------------------------------------------------------- messages that have come
 * already */

/* The one of the kept messages that has come first, of those that it fits. NULL: there is none. */
static struct p2p_unexpected **find_kept(struct p2p *p, const struct p2p_op *op)
{
    int first = op->any ? 0 : op->peer, last = op->any ? p->comm->size - 1 : op->peer;
    struct p2p_unexpected **best = NULL, **at;
    for (int r = first; r <= last; r++) {
        for (at = &p->peers[r].kept; *at && !fits_tag(op, (*at)->frame.tag); at = &(*at)->next)
            ;
        if (*at && (!best || (*at)->arrival < (*best)->arrival))
            best = at;
    }
    return best;
}

static struct p2p_unexpected *take_kept(struct p2p *p, struct p2p_unexpected **at)
{
    struct p2p_unexpected *un = *at;
    struct p2p_peer *peer = &p->peers[un->from];
    *at = un->next;
    if (peer->kept_tail == &un->next)
        peer->kept_tail = at;
    return un;
}

/* A message that was sent without asking is kept, or no longer. Over TCP its sender learns that
 * from what has been matched. */
static void count_kept(struct p2p *p, struct p2p_peer *peer, size_t len, bool kept)
{
    peer->kept_bytes += kept ? p2p_charge(len) : -p2p_charge(len);
    if (peer->t == p->shm)
        ring_say_kept(p->shm, peer->in, peer->kept_bytes);
}

/* Gives a kept message to a receive; a part of the message may still be on its way. */
static void receive(struct p2p *p, struct p2p_op *op, struct p2p_unexpected *un)
{
    struct p2p_peer *peer = &p->peers[un->from];
    bool eager = un->frame.kind == P2P_EAGER, half = peer->messages.un == un;
    op->peer = un->from;
    if (eager)
        count_kept(p, peer, un->len, false);
    if (half)
        peer->messages.un = NULL;
    if (check_fit(p, op, &un->frame) < 0) {
        free(un);
        return;
    }
    count_taken(peer, &un->frame, op->len);
    if (eager && un->have)
        memcpy(op->buf, un->data, un->have);
    if (half) { /* the rest goes there, too */
        peer->messages.op = op;
        op->state = P2P_FILLING;
        p2p_set_active(p, un->from);
    } else if (eager) {
        p2p_received(p, op, &un->frame);
    } else {
        accept_offer(p, op, &un->frame);
    }
    free(un);
}

/* Completes a probe with the message that it has found. */
static void show(struct p2p *p, struct p2p_op *op, struct p2p_unexpected **at)
{
    struct p2p_unexpected *un = *at;
    op->peer = un->from;
    op->tag = un->frame.tag;
    op->dtype = un->frame.dtype;
    op->count = un->frame.count;
    op->elem = dtype_get(op->dtype)->size;
    op->len = op->count * op->elem;
    if (op->claims) {
        take_kept(p, at);
        un->next = p->claimed;
        op->claimed = p->claimed = un;
    }
    p2p_done(p, op);
}

struct p2p_unexpected *p2p_keep(struct p2p *p, int rank, const struct p2p_frame *f, size_t len)
{
    struct p2p_peer *peer = &p->peers[rank];
    struct p2p_unexpected *un = NULL, **at = peer->kept_tail;
    struct err e = ERR_INIT;
    if (peer->kept_bytes + len <= UNEXPECTED_BYTES)
        un = malloc(sizeof(*un) + len);
    if (!un) {
        err_set(&e, -ENOMEM, "no memory for messages that are not received");
        p2p_fail(p, -ENOBUFS, rank, NULL, &e);
        return NULL;
    }
    *un = (struct p2p_unexpected){.from = rank, .arrival = p->arrivals++, .frame = *f, .len = len};
    *at = un;
    peer->kept_tail = &un->next;
    if (f->kind == P2P_EAGER)
        count_kept(p, peer, len, true);
    for (struct p2p_op **probe = &p->posted.head; *probe && *at == un;) {
        struct p2p_op *op = *probe;
        if (!op->probes || !match_fits(op, rank, f->tag)) {
            probe = &op->next;
            continue;
        }
        p2p_unpost(p, probe);
        show(p, op, at);
    }
    return un;
}

/* -------------------------------------------------------------------------------------- posting */

/* Whether it goes without asking: it is not too long, and not too much of such is unmatched. Within
 * the node the latter shows when it is written. A message that may be in vain never asks: it could
 * not be taken back. */
static bool goes_at_once(const struct p2p *p, const struct p2p_op *op)
{
    struct p2p_peer *peer = &p->peers[op->peer];
    bool one_stream = p2p_has_one_stream(p, op->peer);
    size_t charge = p2p_charge(op->len);
    if (op->len > (one_stream && !op->sync ? P2P_AHEAD_MOST : P2P_EAGER_BYTES))
        return false;
    if (!one_stream)
        return true;
    if (peer->ahead - peer->heard + charge > P2P_WINDOW_BYTES && !op->optional)
        return false;
    peer->ahead += charge;
    return true;
}

static void send_to_oneself(struct p2p *p, struct p2p_op *op)
{
    struct p2p_op *receive;
    struct p2p_frame f = op->frame; /* the operation may be done, and gone, when this is matched */
    op->state = P2P_OFFERED;
    p2p_queue_put(&p->peers[p->comm->rank].offered, op);
    if (p2p_match(p, p->comm->rank, &f, &receive) == 0 && !receive)
        p2p_keep(p, p->comm->rank, &f, 0);
}

void p2p_post_send(struct p2p *p, struct p2p_op *op)
{
    struct p2p_peer *peer = &p->peers[op->peer];
    bool own = op->peer == p->comm->rank, eager = !own && goes_at_once(p, op);
    op->state = P2P_QUEUED;
    op->frame = (struct p2p_frame){.kind = eager ? P2P_EAGER : P2P_RTS,
                                   .dtype = op->dtype,
                                   .flags = op->sync ? P2P_SYNC : 0,
                                   .tag = op->tag,
                                   .count = op->count,
                                   .id = ++peer->next_id,
                                   .addr = (uintptr_t)op->buf};
    op->moved = 0;
    op->with_data = eager;
    if (own) {
        send_to_oneself(p, op);
        return;
    }
    p2p_queue_put(&peer->out, op);
    p2p_set_active(p, op->peer);
}

/* Begins the receive of a message that a probe has claimed. */
static void receive_claimed(struct p2p *p, struct p2p_op *op)
{
    struct p2p_unexpected **at = &p->claimed, *un = op->claimed;
    while (*at != un)
        at = &(*at)->next;
    *at = un->next;
    op->claimed = NULL;
    op->message->matched = NULL;
    receive(p, op, un);
}

void p2p_post_recv(struct p2p *p, struct p2p_op *op)
{
    int first = op->any ? 0 : op->peer, last = op->any ? p->comm->size - 1 : op->peer;
    struct p2p_unexpected **at;
    op->state = P2P_POSTED;
    if (op->claimed) {
        receive_claimed(p, op);
        return;
    }
    if ((at = find_kept(p, op))) {
        if (op->probes)
            show(p, op, at);
        else
            receive(p, op, take_kept(p, at));
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
