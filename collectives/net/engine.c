#include "collectives/net/engine.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

enum {
    PIECE_BYTES = 128 * 1024, /* what is received before it is reduced: stays in the cache */
    IO_BYTES = 512 * 1024,    /* moved in one call, so that no direction starves the other */
    FRAME_BYTES = sizeof(struct frame),
    LOOK_AFTER_NS = 20 * 1000 * 1000, /* of waiting, at ranks that are not waited for */
    LOOK_RANKS = 32,                  /* at once */
};

struct step_state {
    bool complete;
    struct frame frame;
    size_t moved; /* of header and payload together */
    /* STEP_RECV_REDUCE */
    uint8_t *piece;
    size_t fill;    /* bytes in the piece */
    size_t reduced; /* bytes of the message that are in dst */
};

void engine_init(struct engine *en, struct transport *t, int rank, int size,
                 const _Atomic uint32_t *abort_word, struct wait_policy policy)
{
    memset(en, 0, sizeof(*en));
    en->transport = t;
    en->rank = rank;
    en->size = size;
    en->abort_word = abort_word;
    en->policy = policy;
    en->culprit = -1;
}

void engine_fini(struct engine *en)
{
    free(en->states);
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

static bool keep_states(struct engine *en, size_t want)
{
    if (want <= en->cap_states)
        return true;
    struct step_state *states = calloc(want, sizeof(*states));
    struct transport_want *wants = calloc(want, sizeof(*wants));
    if (!states || !wants) {
        free(states);
        free(wants);
        return false;
    }
    free(en->states);
    free(en->wants);
    en->states = states;
    en->wants = wants;
    en->cap_states = want;
    return true;
}

int engine_start(struct engine *en, const struct engine_run *run, struct err *e)
{
    const struct schedule *s = run->schedule;
    if (s->oom || !keep_states(en, s->most_steps) ||
        !keep_bytes(&en->tmp, &en->cap_tmp, s->tmp_bytes) ||
        !keep_bytes(&en->pieces, &en->cap_pieces, s->most_reduces * PIECE_BYTES))
        return err_set(e, -ENOMEM, "no memory for the operation");
    en->run = *run;
    en->round = en->first = en->left = 0;
    en->begun = false;
    en->culprit = -1;
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

static void reduce(struct engine *en, uint8_t *dst, const uint8_t *left, const uint8_t *right,
                   size_t len)
{
    en->run.dtype->reduce[en->run.op](dst, left, right, len / en->run.dtype->size);
}

static void do_local(struct engine *en, const struct step *s)
{
    uint8_t *dst = target(en, s->dst);
    const uint8_t *a = source(en, s->a);
    if (s->kind == STEP_REDUCE)
        reduce(en, dst, a, source(en, s->b), s->len);
    else if (dst != a)
        memcpy(dst, a, s->len);
}

/* Appends what is left of the header to iov. */
static int put_header(struct step_state *st, struct iovec *iov)
{
    if (st->moved >= FRAME_BYTES)
        return 0;
    iov[0] = (struct iovec){(uint8_t *)&st->frame + st->moved, FRAME_BYTES - st->moved};
    return 1;
}

static int put_payload(struct iovec *iov, int n, const uint8_t *p, size_t len)
{
    if (len)
        iov[n++] = (struct iovec){(void *)p, len < IO_BYTES ? len : IO_BYTES};
    return n;
}

static int do_send(struct engine *en, const struct step *s, struct step_state *st, struct err *e)
{
    struct transport *t = en->transport;
    struct iovec iov[2];
    size_t sent = st->moved > FRAME_BYTES ? st->moved - FRAME_BYTES : 0;
    const uint8_t *from = source(en, s->a);
    int n = put_header(st, iov);
    n = put_payload(iov, n, from ? from + sent : NULL, s->len - sent);
    ssize_t got = t->ops->send(t, s->peer, iov, n, e);
    if (got <= 0)
        return (int)got;
    st->moved += (size_t)got;
    st->complete = st->moved == FRAME_BYTES + s->len;
    return 1;
}

/* The peer's header has come: is it in the same operation, and at the same message of it? */
static int check_frame(struct engine *en, const struct step *s, const struct step_state *st,
                       struct err *e)
{
    const struct frame *theirs = &st->frame, *ours = &en->run.frame;
    if (theirs->comm == ours->comm && theirs->seq == ours->seq &&
        call_equal(&theirs->call, &ours->call) && theirs->len == s->len)
        return 0;
    en->theirs = *theirs;
    return err_set(e, -EBADMSG, "another operation's message");
}

/* Reduces the whole elements of the piece into dst and keeps the bytes of a split one. */
static void reduce_piece(struct engine *en, const struct step *s, struct step_state *st)
{
    size_t whole = st->fill - st->fill % en->run.dtype->size;
    const uint8_t *mine = source(en, s->a) + st->reduced, *theirs = st->piece;
    reduce(en, target(en, s->dst) + st->reduced, s->incoming_first ? theirs : mine,
           s->incoming_first ? mine : theirs, whole);
    st->reduced += whole;
    st->fill -= whole;
    memmove(st->piece, st->piece + whole, st->fill);
}

static int do_recv(struct engine *en, const struct step *s, struct step_state *st, struct err *e)
{
    struct transport *t = en->transport;
    struct iovec iov[2];
    size_t before = st->moved, have = before > FRAME_BYTES ? before - FRAME_BYTES : 0;
    size_t left = s->len - have;
    int n = put_header(st, iov);
    if (s->kind == STEP_RECV_REDUCE) {
        size_t room = PIECE_BYTES - st->fill;
        n = put_payload(iov, n, st->piece + st->fill, left < room ? left : room);
    } else {
        uint8_t *to = target(en, s->dst);
        n = put_payload(iov, n, to ? to + have : NULL, left);
    }
    ssize_t got = t->ops->recv(t, s->peer, iov, n, e);
    if (got <= 0)
        return (int)got;
    st->moved += (size_t)got;
    if (st->moved < FRAME_BYTES)
        return 1;
    if (before < FRAME_BYTES) {
        int r = check_frame(en, s, st, e);
        if (r < 0)
            return r;
    }
    if (s->kind == STEP_RECV_REDUCE) {
        st->fill += st->moved - FRAME_BYTES - have;
        reduce_piece(en, s, st);
    }
    st->complete = st->moved == FRAME_BYTES + s->len;
    return 1;
}

/* One try at a step that is not complete. 1: something moved; 0: not now; or negative. */
static int try_step(struct engine *en, size_t i, struct err *e)
{
    const struct step *s = &en->run.schedule->steps[en->first + i];
    struct step_state *st = &en->states[i];
    int r = s->kind == STEP_SEND ? do_send(en, s, st, e) : do_recv(en, s, st, e);
    if (r < 0)
        en->culprit = s->peer;
    if (r > 0) {
        en->moved = true;
        en->left -= st->complete;
    }
    return r;
}

/* -------------------------------------------------------------------------------------- rounds */

static size_t round_steps(const struct engine *en)
{
    return en->run.schedule->rounds[en->round].end - en->first;
}

/* Sets the round up, then sends what can be sent before it does the local steps: they take their
 * time while the bytes are on their way. */
static int begin_round(struct engine *en, struct err *e)
{
    const struct step *steps = en->run.schedule->steps + en->first;
    size_t n = round_steps(en);
    uint8_t *piece = en->pieces;
    for (size_t i = 0; i < n; i++) {
        struct step_state *st = &en->states[i];
        *st = (struct step_state){0};
        if (steps[i].kind == STEP_SEND) {
            st->frame = en->run.frame;
            st->frame.len = steps[i].len;
        } else if (steps[i].kind == STEP_RECV_REDUCE) {
            st->piece = piece;
            piece += PIECE_BYTES;
        }
    }
    en->left = n;
    en->moved = true;
    for (size_t i = 0; i < n; i++) {
        if (steps[i].kind == STEP_SEND) {
            int r = try_step(en, i, e);
            if (r < 0)
                return r;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (steps[i].kind == STEP_COPY || steps[i].kind == STEP_REDUCE) {
            do_local(en, &steps[i]);
            en->states[i].complete = true;
            en->left--;
        }
    }
    return 0;
}

/* One pass over the steps of the round under way. */
static int try_round(struct engine *en, struct err *e)
{
    for (size_t i = 0, n = round_steps(en); i < n && en->left; i++) {
        int r = en->states[i].complete ? 0 : try_step(en, i, e);
        if (r < 0)
            return r;
    }
    return 0;
}

int engine_progress(struct engine *en, struct err *e)
{
    const struct schedule *s = en->run.schedule;
    int r = 0;
    en->moved = false;
    while (en->round < s->nrounds) {
        if (!en->begun)
            r = begin_round(en, e);
        en->begun = true;
        if (r < 0 || (r = try_round(en, e)) < 0)
            return r;
        if (en->left)
            return 1;
        en->first = s->rounds[en->round++].end;
        en->begun = false;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------- waiting */

/* Fills en->wants with what the steps under way wait for. Returns how many. */
static size_t collect_wants(struct engine *en)
{
    size_t n = 0;
    for (size_t i = 0, steps = round_steps(en); i < steps; i++) {
        const struct step *s = &en->run.schedule->steps[en->first + i];
        if (!en->states[i].complete)
            en->wants[n++] = (struct transport_want){
                .peer = s->peer, .send = s->kind == STEP_SEND, .recv = s->kind != STEP_SEND};
    }
    return n;
}

/* Whom to name when nothing moves: one that should have sent something, before one that takes
 * nothing. */
static int awaited(struct engine *en)
{
    size_t n = collect_wants(en);
    for (size_t i = 0; i < n; i++) {
        if (en->wants[i].recv)
            return en->wants[i].peer;
    }
    return n ? en->wants[0].peer : -1;
}

static bool told_to_stop(const struct engine *en)
{
    return en->transport->notified ||
           (en->abort_word && atomic_load_explicit(en->abort_word, memory_order_acquire));
}

/* Whether a step under way is taking a message of that rank: then what comes next from it is not a
 * header. */
static bool receives_from(const struct engine *en, int peer)
{
    for (size_t i = 0, n = round_steps(en); i < n; i++) {
        const struct step *s = &en->run.schedule->steps[en->first + i];
        if (s->peer == peer && s->kind != STEP_SEND && !en->states[i].complete)
            return true;
    }
    return false;
}

/* A rank in this operation may be rounds ahead, and one that is through with it in a later
 * operation; but what has come for an earlier one, or for another in this one's place, will never
 * be taken. */
static int look_for_strays(struct engine *en, struct err *e)
{
    const struct frame *ours = &en->run.frame;
    struct frame f;
    for (int k = 0; k < LOOK_RANKS && k < en->size; k++) {
        int peer = en->next_peek++ % en->size;
        en->next_peek %= en->size;
        if (peer == en->rank || receives_from(en, peer) ||
            !en->transport->ops->peek(en->transport, peer, &f, sizeof(f)) || f.comm != ours->comm)
            continue;
        int32_t ahead = (int32_t)(f.seq - ours->seq);
        if (ahead < 0 || (ahead == 0 && !call_equal(&f.call, &ours->call))) {
            en->culprit = peer;
            en->theirs = f;
            return err_set(e, -EBADMSG, "another operation's message");
        }
    }
    return 0;
}

/* The abort word wakes no socket, so that sleeps are short at first and never long. */
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
    uint64_t moved_at = 0;
    for (;;) {
        int r = engine_progress(en, e);
        if (r <= 0)
            return r;
        if (told_to_stop(en))
            return err_set(e, -ECANCELED, "told to stop");
        uint64_t now = mono_ns();
        if (deadline_ns && now >= deadline_ns) {
            en->culprit = awaited(en);
            return err_set(e, -ETIMEDOUT, "timed out");
        }
        if (en->moved || !moved_at)
            moved_at = now;
        uint64_t idle = now - moved_at;
        if (idle < en->policy.spin_ns) {
            wait_relax();
        } else if (idle < en->policy.yield_ns) {
            sched_yield();
        } else {
            size_t n = collect_wants(en);
            r = en->transport->ops->wait(en->transport, en->wants, n,
                                         sleep_ms(idle, now, deadline_ns), e);
            if (r == 0 && idle > LOOK_AFTER_NS)
                r = look_for_strays(en, e);
            if (r < 0)
                return r;
        }
    }
}
