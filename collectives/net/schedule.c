#include "collectives/net/schedule.h"

#include <stdlib.h>
#include <string.h>

void schedule_init(struct schedule *s)
{
    memset(s, 0, sizeof(*s));
}

void schedule_fini(struct schedule *s)
{
    free(s->steps);
    free(s->rounds);
    schedule_init(s);
}

void schedule_reset(struct schedule *s)
{
    s->nsteps = s->nrounds = 0;
    s->tmp_bytes = s->most_steps = s->most_reduces = 0;
    s->oom = false;
}

/* Makes room for one more item in *items; false: out of memory. */
static bool grow(struct schedule *s, void **items, size_t n, size_t *cap, size_t item_bytes)
{
    if (n < *cap)
        return true;
    size_t want = *cap ? *cap * 2 : 32;
    void *p = realloc(*items, want * item_bytes);
    if (!p) {
        s->oom = true;
        return false;
    }
    *items = p;
    *cap = want;
    return true;
}

static void schedule_append(struct schedule *s, const struct step *step)
{
    if (s->oom || !grow(s, (void **)&s->steps, s->nsteps, &s->cap_steps, sizeof(*s->steps)))
        return;
    s->steps[s->nsteps++] = *step;
}

void schedule_send(struct schedule *s, int peer, struct place from, size_t len)
{
    schedule_append(s, &(struct step){.kind = STEP_SEND, .peer = peer, .len = len, .a = from});
}

void schedule_recv(struct schedule *s, int peer, struct place to, size_t len)
{
    schedule_append(s, &(struct step){.kind = STEP_RECV, .peer = peer, .len = len, .dst = to});
}

void schedule_recv_reduce(struct schedule *s, int peer, struct place to, struct place mine,
                          size_t len, enum operand_order order)
{
    schedule_append(s, &(struct step){.kind = STEP_RECV_REDUCE,
                                      .incoming_first = order == INCOMING_FIRST,
                                      .peer = peer,
                                      .len = len,
                                      .dst = to,
                                      .a = mine});
}

void schedule_copy(struct schedule *s, struct place to, struct place from, size_t len)
{
    if (len)
        schedule_append(
            s, &(struct step){.kind = STEP_COPY, .peer = -1, .len = len, .dst = to, .a = from});
}

void schedule_reduce(struct schedule *s, struct place to, struct place left, struct place right,
                     size_t len)
{
    if (len)
        schedule_append(
            s, &(struct step){
                   .kind = STEP_REDUCE, .peer = -1, .len = len, .dst = to, .a = left, .b = right});
}

static void end_round(struct schedule *s, bool loose)
{
    size_t start = s->nrounds ? s->rounds[s->nrounds - 1].end : 0, reduces = 0;
    /* The next round may depend on the round before the empty one. */
    if (s->nsteps == start && s->nrounds)
        s->rounds[s->nrounds - 1].loose = false;
    if (s->oom || s->nsteps == start ||
        !grow(s, (void **)&s->rounds, s->nrounds, &s->cap_rounds, sizeof(*s->rounds)))
        return;
    s->rounds[s->nrounds++] = (struct round){.end = s->nsteps, .loose = loose};
    for (size_t i = start; i < s->nsteps; i++)
        reduces += s->steps[i].kind == STEP_RECV_REDUCE;
    if (s->nsteps - start > s->most_steps)
        s->most_steps = s->nsteps - start;
    if (reduces > s->most_reduces)
        s->most_reduces = reduces;
}

void schedule_end_round(struct schedule *s)
{
    end_round(s, false);
}

void schedule_end_round_loosely(struct schedule *s)
{
    end_round(s, true);
}

void schedule_need_tmp(struct schedule *s, size_t bytes)
{
    if (bytes > s->tmp_bytes)
        s->tmp_bytes = bytes;
}

#ifdef DLAUNCH_CHECKED
static bool is_within(const struct schedule *s, const struct place *p, size_t len)
{
    return p->buffer < PLACE_BUFFERS &&
           (p->buffer != PLACE_TMP || (p->at <= s->tmp_bytes && len <= s->tmp_bytes - p->at));
}

static bool step_is_valid(const struct schedule *s, const struct step *p, int rank, int size)
{
    bool local = p->kind == STEP_COPY || p->kind == STEP_REDUCE;
    bool reads = p->kind != STEP_RECV, writes = p->kind != STEP_SEND;
    return (local ? p->peer == -1 : p->peer >= 0 && p->peer < size && p->peer != rank) &&
           (!reads || is_within(s, &p->a, p->len)) &&
           (!writes || (p->dst.buffer != PLACE_IN && is_within(s, &p->dst, p->len))) &&
           (p->kind != STEP_REDUCE || is_within(s, &p->b, p->len));
}

/* Whether step i is the only one of its round, from `first` to i, to that peer in that direction.
 */
static bool is_only_message(const struct schedule *s, size_t first, size_t i)
{
    for (size_t k = first; k < i && s->steps[i].peer >= 0; k++) {
        if (s->steps[k].peer == s->steps[i].peer &&
            (s->steps[k].kind == STEP_SEND) == (s->steps[i].kind == STEP_SEND))
            return false;
    }
    return true;
}

bool schedule_is_valid(const struct schedule *s, int rank, int size)
{
    size_t i = 0;
    for (size_t r = 0; r < s->nrounds; r++) {
        size_t first = i, end = s->rounds[r].end;
        if (end <= first || end > s->nsteps || end - first > s->most_steps)
            return false;
        for (; i < end; i++) {
            if (!step_is_valid(s, &s->steps[i], rank, size) || !is_only_message(s, first, i))
                return false;
        }
    }
    return i == s->nsteps;
}
#endif
