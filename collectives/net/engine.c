#include "collectives/net/engine.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/debug_assert.h"

enum {
    PIECE_BYTES = 128 * 1024, /* received before it is reduced: stays in the cache */
    IO_BYTES = 512 * 1024, /* moved in one call, so that one direction does not starve the other */
    STRIPE_BYTES = 256 * 1024,        /* minimum per lane of a message that uses several */
    LOOK_AFTER_NS = 20 * 1000 * 1000, /* of waiting, before messages of other ranks are checked */
    ASK_AFTER_NS = 500 * 1000 * 1000, /* doubled after each question */
    LOOK_RANKS = 32,                  /* checked at once */
};

/* A step, or the part of it that travels over one lane. */
struct part {
    const struct step *step;
    int peer, stream; /* numbers of the transport */
    size_t at, len;   /* the bytes of the step */
    bool complete;
    union {
        uint8_t head[FRAME_DISTANCE];
        struct frame frame;
    };
    size_t head_len;
    size_t moved; /* bytes of head and payload */
    /* STEP_RECV_REDUCE */
    uint8_t *piece;
    size_t fill;    /* bytes in the piece */
    size_t reduced; /* bytes of the part already in dst */
};

void engine_init(struct engine *en, struct transport *t, int rank, struct wait_policy policy)
{
    memset(en, 0, sizeof(*en));
    en->transport = t;
    en->rank = rank;
    en->policy = policy;
    en->culprit = -1;
}

void engine_fini(struct engine *en)
{
    free(en->parts);
    free(en->wants);
    free(en->tmp);
    free(en->pieces);
    memset(en, 0, sizeof(*en));
}

/* ------------------------------------------------------------------------------------ starting */

static bool keep_bytes(uint8_t **p, size_t *cap, size_t want)
{
    if (want <= *cap)
        return true;
    uint8_t *q = malloc(want);
    if (!q)
        return false;
    free(*p);
    *p = q;
    *cap = want;
    return true;
}

static bool keep_parts(struct engine *en, size_t want)
{
    if (want <= en->cap_parts)
        return true;
    struct part *parts = calloc(want, sizeof(*parts));
    struct transport_want *wants = calloc(want, sizeof(*wants));
    if (!parts || !wants) {
        free(parts);
        free(wants);
        return false;
    }
    free(en->parts);
    free(en->wants);
    en->parts = parts;
    en->wants = wants;
    en->cap_parts = want;
    return true;
}

int engine_start(struct engine *en, const struct engine_run *run, struct err *e)
{
    const struct schedule *s = run->schedule;
    size_t lanes = (size_t)en->transport->lanes, parts = s->most_steps * lanes;
    size_t pieces = s->most_reduces * lanes * PIECE_BYTES;
    if (s->oom || !keep_parts(en, 2 * parts) || !keep_bytes(&en->tmp, &en->cap_tmp, s->tmp_bytes) ||
        !keep_bytes(&en->pieces, &en->cap_pieces, 2 * pieces))
        return err_set(e, -ENOMEM, "no memory for the operation");
    en->run = *run;
    for (size_t i = 0; i < 2; i++)
        en->rounds[i] = (struct engine_round){.parts = en->parts + i * parts,
                                              .pieces = en->pieces + i * pieces};
    en->culprit = en->suspect = -1;
    return 0;
}

/* --------------------------------------------------------------------------------------- steps */

static const uint8_t *source(const struct engine *en, struct place p)
{
    const uint8_t *base = p.buffer == PLACE_IN    ? en->run.in
                          : p.buffer == PLACE_OUT ? en->run.out
                                                  : en->tmp;
    return base ? base + p.at : NULL;
}

static uint8_t *target(struct engine *en, struct place p)
{
    uint8_t *base = p.buffer == PLACE_OUT ? en->run.out : en->tmp;
    return base ? base + p.at : NULL;
}

static void engine_reduce(struct engine *en, uint8_t *dst, const uint8_t *left,
                          const uint8_t *right, size_t len)
{
    reduce_two(en->run.reduce, dst, left, right, len / en->run.elem);
}

static void do_local(struct engine *en, const struct step *s)
{
    uint8_t *dst = target(en, s->dst);
    const uint8_t *a = source(en, s->a);
    if (s->kind == STEP_REDUCE)
        engine_reduce(en, dst, a, source(en, s->b), s->len);
    else if (dst != a)
        memmove(dst, a, s->len);
}

/* Appends the rest of the head to iov. */
static int put_head(struct part *p, struct iovec *iov)
{
    if (p->moved >= p->head_len)
        return 0;
    iov[0] = (struct iovec){p->head + p->moved, p->head_len - p->moved};
    return 1;
}

static int put_payload(struct iovec *iov, int n, const uint8_t *p, size_t len)
{
    if (len)
        iov[n++] = (struct iovec){(void *)p, len < IO_BYTES ? len : IO_BYTES};
    return n;
}

static int do_send(struct engine *en, struct part *p, struct err *e)
{
    struct transport *t = en->transport;
    struct iovec iov[2];
    size_t sent = p->moved > p->head_len ? p->moved - p->head_len : 0;
    const uint8_t *from = source(en, p->step->a);
    int n = put_head(p, iov);
    n = put_payload(iov, n, from ? from + p->at + sent : NULL, p->len - sent);
    ssize_t got = t->ops->send(t, p->stream, iov, n, e);
    if (got <= 0)
        return (int)got;
    p->moved += (size_t)got;
    debug_assert(p->moved <= p->head_len + p->len);
    p->complete = p->moved == p->head_len + p->len;
    return 1;
}

/* Checks that the peer's header belongs to the same operation, and to the same message of it. */
static int check_frame(struct engine *en, const struct part *p, struct err *e)
{
    const struct frame *theirs = &p->frame, *ours = &en->run.frame;
    if (theirs->seq == ours->seq && theirs->history == ours->history &&
        theirs->part == ours->part && sig_equal(&theirs->sig, &ours->sig) && theirs->len == p->len)
        return 0;
    en->theirs = *theirs;
    return err_set(e, -EBADMSG, "another operation's message");
}

/* Reduces the whole elements of the piece into dst and keeps the bytes of a split element. */
static void reduce_piece(struct engine *en, struct part *p)
{
    const struct step *s = p->step;
    size_t whole = p->fill - p->fill % en->run.elem, at = p->at + p->reduced;
    const uint8_t *mine = source(en, s->a) + at, *theirs = p->piece;
    engine_reduce(en, target(en, s->dst) + at, s->incoming_first ? theirs : mine,
                  s->incoming_first ? mine : theirs, whole);
    p->reduced += whole;
    p->fill -= whole;
    if (p->fill)
        memmove(p->piece, p->piece + whole, p->fill);
}

static int do_recv(struct engine *en, struct part *p, struct err *e)
{
    struct transport *t = en->transport;
    struct iovec iov[2];
    bool reduces = p->step->kind == STEP_RECV_REDUCE;
    size_t before = p->moved, have = before > p->head_len ? before - p->head_len : 0;
    size_t left = p->len - have;
    int n = put_head(p, iov);
    if (reduces) {
        size_t room = PIECE_BYTES - p->fill;
        n = put_payload(iov, n, p->piece + p->fill, left < room ? left : room);
    } else {
        uint8_t *to = target(en, p->step->dst);
        n = put_payload(iov, n, to ? to + p->at + have : NULL, left);
    }
    ssize_t got = t->ops->recv(t, p->stream, iov, n, e);
    if (got <= 0)
        return (int)got;
    p->moved += (size_t)got;
    debug_assert(p->moved <= p->head_len + p->len);
    if (before < sizeof(p->frame) && p->moved >= sizeof(p->frame)) {
        int r = check_frame(en, p, e);
        if (r < 0)
            return r;
    }
    if (p->moved < p->head_len)
        return 1;
    p->complete = p->moved == p->head_len + p->len;
    if (reduces) {
        p->fill += p->moved - p->head_len - have;
        if (p->fill == PIECE_BYTES || p->complete)
            reduce_piece(en, p);
    }
    return 1;
}

/* One attempt at an incomplete part. 1: data moved; 0: would block; or negative. */
static int try_part(struct engine *en, struct engine_round *rd, struct part *p, struct err *e)
{
    int r = p->step->kind == STEP_SEND ? do_send(en, p, e) : do_recv(en, p, e);
    if (r < 0)
        en->culprit = p->peer;
    if (r > 0) {
        en->moved = true;
        rd->left -= p->complete;
    }
    return r;
}

/* -------------------------------------------------------------------------------------- rounds */

/* The number of lanes of a message: equal on both sides. */
static size_t lanes_for(const struct engine *en, size_t len)
{
    size_t most = len / STRIPE_BYTES, lanes = (size_t)en->transport->lanes;
    return most < 2 ? 1 : most < lanes ? most : lanes;
}

/* Appends a message's parts. */
static void add_parts(struct engine *en, struct engine_round *rd, const struct step *s,
                      uint8_t **piece)
{
    size_t n = lanes_for(en, s->len), elems = s->len / en->run.elem, from = 0;
    int peer = en->run.map ? en->run.map[s->peer] : s->peer;
    for (size_t i = 0; i < n; i++) {
        size_t to = i + 1 < n ? elems * (i + 1) / n * en->run.elem : s->len;
        struct part *p = &rd->parts[rd->nparts++];
        *p = (struct part){.step = s,
                           .peer = peer,
                           .stream = (int)i * en->transport->size + peer,
                           .at = from,
                           .len = to - from,
                           .head_len = frame_distance(sizeof(struct frame), to - from)};
        if (s->kind == STEP_SEND) {
            p->frame = en->run.frame;
            p->frame.lane = (uint16_t)i;
            p->frame.len = p->len;
        } else if (s->kind == STEP_RECV_REDUCE) {
            p->piece = *piece;
            *piece += PIECE_BYTES;
        }
        from = to;
    }
    debug_assert(from == s->len && peer < en->transport->size && peer != en->rank);
    debug_assert(rd->nparts <= en->run.schedule->most_steps * (size_t)en->transport->lanes);
}

/* Whether the earlier round still uses that stream in that direction. */
static bool is_blocked(const struct engine_round *before, const struct part *p)
{
    for (size_t i = 0; before && i < before->nparts; i++) {
        const struct part *q = &before->parts[i];
        if (!q->complete && q->stream == p->stream &&
            (q->step->kind == STEP_SEND) == (p->step->kind == STEP_SEND))
            return true;
    }
    return false;
}

/* Sets the round up and sends what it can before the local steps, which then overlap with the
 * transfer. */
static int begin_round(struct engine *en, struct engine_round *rd, struct engine_round *before,
                       struct err *e)
{
    const struct schedule *s = en->run.schedule;
    uint8_t *piece = rd->pieces;
    size_t end = s->rounds[rd->number].end;
    rd->begun = true;
    rd->nparts = 0;
    for (size_t i = rd->first; i < end; i++) {
        if (s->steps[i].peer >= 0)
            add_parts(en, rd, &s->steps[i], &piece);
    }
    rd->left = rd->nparts;
    en->moved = true;
    for (size_t i = 0; i < rd->nparts; i++) {
        struct part *p = &rd->parts[i];
        if (p->step->kind == STEP_SEND && !is_blocked(before, p)) {
            int r = try_part(en, rd, p, e);
            if (r < 0)
                return r;
        }
    }
    for (size_t i = rd->first; i < end; i++) {
        if (s->steps[i].peer < 0)
            do_local(en, &s->steps[i]);
    }
    return 0;
}

/* One pass over a round in progress; `before`: the incomplete round before it, or NULL. */
static int try_round(struct engine *en, struct engine_round *rd, struct engine_round *before,
                     struct err *e)
{
    int r = rd->begun ? 0 : begin_round(en, rd, before, e);
    for (size_t i = 0; i < rd->nparts && rd->left && r >= 0; i++) {
        struct part *p = &rd->parts[i];
        if (!p->complete && !is_blocked(before, p))
            r = try_part(en, rd, p, e);
    }
    return r < 0 ? r : 0;
}

/* The current round is complete: the next one takes its place. */
static void engine_advance(struct engine *en)
{
    struct engine_round done = en->rounds[0];
    debug_assert(done.begun && !done.left && done.number < en->run.schedule->nrounds);
    en->rounds[0] = en->rounds[1];
    en->rounds[1] = done;
    if (!en->rounds[0].begun) {
        en->rounds[0].number = done.number + 1;
        en->rounds[0].first = en->run.schedule->rounds[done.number].end;
    }
    en->rounds[1].begun = false;
    en->rounds[1].nparts = 0;
}

int engine_progress(struct engine *en, struct err *e)
{
    const struct schedule *s = en->run.schedule;
    struct engine_round *now = &en->rounds[0], *next = &en->rounds[1];
    en->moved = false;
    while (now->number < s->nrounds) {
        int r = try_round(en, now, NULL, e);
        if (r < 0)
            return r;
        if (now->left && s->rounds[now->number].loose && now->number + 1 < s->nrounds) {
            next->number = now->number + 1;
            next->first = s->rounds[now->number].end;
            if ((r = try_round(en, next, now, e)) < 0)
                return r;
        }
        if (now->left)
            return 1;
        engine_advance(en);
    }
    return 0;
}

/* ------------------------------------------------------------------------------------- waiting */

/* Fills en->wants with what the incomplete messages wait for. Returns their number. */
static size_t collect_wants(struct engine *en)
{
    size_t n = 0;
    for (int k = 0; k < 2; k++) {
        const struct engine_round *rd = &en->rounds[k];
        for (size_t i = 0; i < rd->nparts; i++) {
            const struct part *p = &rd->parts[i];
            bool sends = p->step->kind == STEP_SEND;
            if (!p->complete && !(k == 1 && is_blocked(&en->rounds[0], p)))
                en->wants[n++] =
                    (struct transport_want){.stream = p->stream, .send = sends, .recv = !sends};
        }
    }
    return n;
}

/* The rank to name when nothing moves: one that has not sent, else one that does not receive. */
static int awaited(struct engine *en)
{
    size_t n = collect_wants(en);
    for (size_t i = 0; i < n; i++) {
        if (en->wants[i].recv)
            return en->wants[i].stream % en->transport->size;
    }
    return n ? en->wants[0].stream % en->transport->size : -1;
}

static bool is_stopped(const struct engine *en)
{
    return en->stopped && en->stopped(en->stopped_arg);
}

/* Whether a message from that rank is being received: then its next bytes are not a header. */
static bool receives_from(const struct engine *en, int peer)
{
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < en->rounds[k].nparts; i++) {
            const struct part *p = &en->rounds[k].parts[i];
            if (p->peer == peer && p->step->kind != STEP_SEND && !p->complete)
                return true;
        }
    }
    return false;
}

/* A rank in this operation may be rounds ahead, or already in a later operation. But a message of
 * an earlier operation, or of another one in place of this one, will never be received. */
static int find_stray_message(struct engine *en, struct err *e)
{
    const struct frame *ours = &en->run.frame;
    struct transport *t = en->transport;
    struct frame f;
    for (int k = 0; k < LOOK_RANKS && k < t->size; k++) {
        int peer = en->next_peek++ % t->size;
        en->next_peek %= t->size;
        if (peer == en->rank || receives_from(en, peer) || !t->ops->peek(t, peer, &f, sizeof(f)))
            continue;
        bool same = f.seq == ours->seq, same_part = same && f.part == ours->part;
        if (f.seq < ours->seq || (same && f.history != ours->history) ||
            (same_part && !sig_equal(&f.sig, &ours->sig))) {
            en->culprit = peer;
            en->theirs = f;
            return err_set(e, -EBADMSG, "another operation's message");
        }
    }
    return 0;
}

/* A rank that has exited may have connected and sent all its data before: it is checked twice. */
static int find_lost_peer(struct engine *en, size_t nwants, struct err *e)
{
    int before = en->suspect;
    en->suspect = -1;
    for (size_t i = 0; i < nwants && en->lost && en->suspect < 0; i++) {
        if (en->lost(en->stopped_arg, en->wants[i].stream))
            en->suspect = en->wants[i].stream % en->transport->size;
    }
    if (en->suspect < 0 || en->suspect != before)
        return 0;
    en->culprit = en->suspect;
    return err_set(e, -EPIPE, "it no longer takes part");
}

/* Ranks in different operations may all wait for each other, and none sends. Asks some of the
 * awaited ranks, others the next time. */
static void engine_ask(struct engine *en, size_t nwants)
{
    int ranks[ENGINE_ASKED], n = 0;
    for (size_t i = 0; i < nwants && n < ENGINE_ASKED; i++) {
        int peer = en->wants[en->next_ask++ % nwants].stream % en->transport->size;
        bool known = false;
        for (int k = 0; k < n; k++)
            known = known || ranks[k] == peer;
        if (!known)
            ranks[n++] = peer;
    }
    if (n && en->ask)
        en->ask(en->stopped_arg, ranks, n);
}

/* Not every reason to stop wakes a socket: sleeps are short at first and never long. */
static int sleep_ms(uint64_t idle_ns, uint64_t now, uint64_t deadline_ns)
{
    uint64_t ms = idle_ns / 8000000;
    ms = ms < 1 ? 1 : ms > 10 ? 10 : ms;
    if (deadline_ns && deadline_ns - now < ms * 1000000)
        ms = (deadline_ns - now) / 1000000 + 1;
    return (int)ms;
}

int engine_wait(struct engine *en, uint64_t deadline_ns, struct err *e)
{
    uint64_t moved_at = 0, ask_at = 0;
    for (;;) {
        int r = engine_progress(en, e);
        if (r <= 0)
            return r;
        if (is_stopped(en))
            return err_set(e, -ECANCELED, "told to stop");
        uint64_t now = mono_ns();
        if (deadline_ns && now >= deadline_ns) {
            en->culprit = awaited(en);
            return err_set(e, -ETIMEDOUT, "timed out");
        }
        if (en->moved || !moved_at) {
            moved_at = now;
            ask_at = ASK_AFTER_NS;
        }
        uint64_t idle = now - moved_at;
        enum wait_step step = wait_next(&en->policy, idle, now);
        if (step == WAIT_SPIN) {
            wait_relax();
        } else if (step == WAIT_YIELD) {
            sched_yield();
        } else {
            size_t n = collect_wants(en);
            r = en->transport->ops->wait(en->transport, en->wants, n,
                                         sleep_ms(idle, now, deadline_ns), e);
            if (r == 0)
                r = find_lost_peer(en, n, e);
            if (r == 0 && idle > LOOK_AFTER_NS)
                r = find_stray_message(en, e);
            if (r < 0)
                return r;
            if (idle >= ask_at) {
                engine_ask(en, n);
                ask_at *= 2;
            }
        }
    }
}
