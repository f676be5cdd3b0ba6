#include "collectives/net/engine.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/base/task.h"
#include "core/clock.h"
#include "core/debug_assert.h"

enum {
    PIECE_BYTES = 128 * 1024, /* received before it is reduced: stays in the cache */
    IO_BYTES = 512 * 1024, /* moved in one call, so that one direction does not starve the other */
    STRIPE_BYTES = 256 * 1024,        /* minimum per stream of a message that uses several */
    LOOK_AFTER_NS = 20 * 1000 * 1000, /* of waiting, before messages of other ranks are checked */
    ASK_AFTER_NS = 500 * 1000 * 1000, /* doubled after each question */
    LOOK_RANKS = 32,                  /* checked at once */
};

/* An entry, or the part of it that travels over one stream. */
struct part {
    const struct entry *entry;
    int peer, stream; /* numbers of the transport */
    size_t at, len;   /* the bytes of the entry */
    bool complete;
    union {
        uint8_t head[FRAME_DISTANCE];
        struct frame frame;
    };
    size_t head_len;
    size_t moved; /* bytes of head and payload */
    /* ENTRY_RECV_REDUCE */
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

/* ------------------------------------------------------------------------------------- starting */

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
    size_t streams = (size_t)en->transport->streams, parts = s->most_entries * streams;
    size_t pieces = s->most_reduces * streams * PIECE_BYTES;
    if (s->oom || !keep_parts(en, 2 * parts) || !keep_bytes(&en->tmp, &en->cap_tmp, s->tmp_bytes) ||
        !keep_bytes(&en->pieces, &en->cap_pieces, 2 * pieces))
        return err_set(e, -ENOMEM, "no memory for the operation");
    en->run = *run;
    for (size_t i = 0; i < 2; i++)
        en->steps[i] =
            (struct engine_step){.parts = en->parts + i * parts, .pieces = en->pieces + i * pieces};
    en->culprit = en->suspect = -1;
    return 0;
}

/* -------------------------------------------------------------------------------------- entries */

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

static void do_local(struct engine *en, const struct entry *s)
{
    uint8_t *dst = target(en, s->dst);
    const uint8_t *a = source(en, s->a);
    if (s->kind == ENTRY_REDUCE)
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
    const uint8_t *from = source(en, p->entry->a);
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
    const struct entry *s = p->entry;
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
    bool reduces = p->entry->kind == ENTRY_RECV_REDUCE;
    size_t before = p->moved, have = before > p->head_len ? before - p->head_len : 0;
    size_t left = p->len - have;
    int n = put_head(p, iov);
    if (reduces) {
        size_t room = PIECE_BYTES - p->fill;
        n = put_payload(iov, n, p->piece + p->fill, left < room ? left : room);
    } else {
        uint8_t *to = target(en, p->entry->dst);
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
static int try_part(struct engine *en, struct engine_step *step, struct part *p, struct err *e)
{
    int r = p->entry->kind == ENTRY_SEND ? do_send(en, p, e) : do_recv(en, p, e);
    if (r < 0)
        en->culprit = p->peer;
    if (r > 0) {
        en->moved = true;
        step->left -= p->complete;
    }
    return r;
}

/* ---------------------------------------------------------------------------------------- steps */

/* The number of streams of a message: equal on both sides. */
static size_t streams_for(const struct engine *en, size_t len)
{
    size_t most = len / STRIPE_BYTES, streams = (size_t)en->transport->streams;
    return most < 2 ? 1 : most < streams ? most : streams;
}

/* Appends a message's parts. */
static void add_parts(struct engine *en, struct engine_step *step, const struct entry *s,
                      uint8_t **piece)
{
    size_t n = streams_for(en, s->len), elems = s->len / en->run.elem, from = 0;
    int peer = en->run.map ? en->run.map[s->peer] : s->peer;
    for (size_t i = 0; i < n; i++) {
        size_t to = i + 1 < n ? elems * (i + 1) / n * en->run.elem : s->len;
        struct part *p = &step->parts[step->nparts++];
        *p = (struct part){.entry = s,
                           .peer = peer,
                           .stream = (int)i * en->transport->size + peer,
                           .at = from,
                           .len = to - from,
                           .head_len = frame_distance(sizeof(struct frame), to - from)};
        if (s->kind == ENTRY_SEND) {
            p->frame = en->run.frame;
            p->frame.socket = (uint16_t)i;
            p->frame.len = p->len;
        } else if (s->kind == ENTRY_RECV_REDUCE) {
            p->piece = *piece;
            *piece += PIECE_BYTES;
        }
        from = to;
    }
    debug_assert(from == s->len && peer < en->transport->size && peer != en->rank);
    debug_assert(step->nparts <= en->run.schedule->most_entries * (size_t)en->transport->streams);
}

/* Whether the earlier step still uses that stream in that direction. */
static bool is_blocked(const struct engine_step *before, const struct part *p)
{
    for (size_t i = 0; before && i < before->nparts; i++) {
        const struct part *q = &before->parts[i];
        if (!q->complete && q->stream == p->stream &&
            (q->entry->kind == ENTRY_SEND) == (p->entry->kind == ENTRY_SEND))
            return true;
    }
    return false;
}

/* Sets the step up and sends what it can before the local entries, which then overlap with the
 * transfer. */
static int begin_step(struct engine *en, struct engine_step *step, struct engine_step *before,
                      struct err *e)
{
    const struct schedule *s = en->run.schedule;
    uint8_t *piece = step->pieces;
    size_t end = s->steps[step->number].end;
    step->begun = true;
    step->nparts = 0;
    for (size_t i = step->first; i < end; i++) {
        if (s->entries[i].peer >= 0)
            add_parts(en, step, &s->entries[i], &piece);
    }
    step->left = step->nparts;
    en->moved = true;
    for (size_t i = 0; i < step->nparts; i++) {
        struct part *p = &step->parts[i];
        if (p->entry->kind == ENTRY_SEND && !is_blocked(before, p)) {
            int r = try_part(en, step, p, e);
            if (r < 0)
                return r;
        }
    }
    for (size_t i = step->first; i < end; i++) {
        if (s->entries[i].peer < 0)
            do_local(en, &s->entries[i]);
    }
    return 0;
}

/* One pass over a step in progress; `before`: the incomplete step before it, or NULL. */
static int try_step(struct engine *en, struct engine_step *step, struct engine_step *before,
                    struct err *e)
{
    int r = step->begun ? 0 : begin_step(en, step, before, e);
    for (size_t i = 0; i < step->nparts && step->left && r >= 0; i++) {
        struct part *p = &step->parts[i];
        if (!p->complete && !is_blocked(before, p))
            r = try_part(en, step, p, e);
    }
    return r < 0 ? r : 0;
}

/* The current step is complete: the next one takes its place. */
static void engine_advance(struct engine *en)
{
    struct engine_step done = en->steps[0];
    debug_assert(done.begun && !done.left && done.number < en->run.schedule->nsteps);
    en->steps[0] = en->steps[1];
    en->steps[1] = done;
    if (!en->steps[0].begun) {
        en->steps[0].number = done.number + 1;
        en->steps[0].first = en->run.schedule->steps[done.number].end;
    }
    en->steps[1].begun = false;
    en->steps[1].nparts = 0;
}

int engine_progress(struct engine *en, struct err *e)
{
    const struct schedule *s = en->run.schedule;
    struct engine_step *now = &en->steps[0], *next = &en->steps[1];
    en->moved = false;
    while (now->number < s->nsteps) {
        int r = try_step(en, now, NULL, e);
        if (r < 0)
            return r;
        if (now->left && s->steps[now->number].loose && now->number + 1 < s->nsteps) {
            next->number = now->number + 1;
            next->first = s->steps[now->number].end;
            if ((r = try_step(en, next, now, e)) < 0)
                return r;
        }
        if (now->left)
            return 1;
        engine_advance(en);
    }
    return 0;
}

/* -------------------------------------------------------------------------------------- waiting */

/* Fills en->wants with what the incomplete messages wait for. Returns their number. */
static size_t collect_wants(struct engine *en)
{
    size_t n = 0;
    for (int k = 0; k < 2; k++) {
        const struct engine_step *step = &en->steps[k];
        for (size_t i = 0; i < step->nparts; i++) {
            const struct part *p = &step->parts[i];
            bool sends = p->entry->kind == ENTRY_SEND;
            if (!p->complete && !(k == 1 && is_blocked(&en->steps[0], p)))
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
        for (size_t i = 0; i < en->steps[k].nparts; i++) {
            const struct part *p = &en->steps[k].parts[i];
            if (p->peer == peer && p->entry->kind != ENTRY_SEND && !p->complete)
                return true;
        }
    }
    return false;
}

/* A rank in this operation may be steps ahead, or already in a later operation. But a message of
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

/* Not every reason to stop wakes a socket: sleeps are short at first and never long. Many tasks may
 * sleep; the progress thread looks for them. */
static int sleep_ms(uint64_t idle_ns, uint64_t now, uint64_t deadline_ns)
{
    uint64_t ms = idle_ns / 8000000, most = task_inside() ? 500 : 10;
    ms = ms < 1 ? 1 : ms > most ? most : ms;
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
