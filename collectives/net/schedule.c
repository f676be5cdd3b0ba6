#include "collectives/net/schedule.h"

#include <stdlib.h>
#include <string.h>

void schedule_init(struct schedule *s)
{
    memset(s, 0, sizeof(*s));
}

void schedule_fini(struct schedule *s)
{
    free(s->entries);
    free(s->steps);
    schedule_init(s);
}

void schedule_reset(struct schedule *s)
{
    s->nentries = s->nsteps = 0;
    s->tmp_bytes = s->most_entries = s->most_reduces = 0;
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

static void schedule_append(struct schedule *s, const struct entry *entry)
{
    if (s->oom || !grow(s, (void **)&s->entries, s->nentries, &s->cap_entries, sizeof(*s->entries)))
        return;
    s->entries[s->nentries++] = *entry;
}

void schedule_send(struct schedule *s, int peer, struct place from, size_t len)
{
    schedule_append(s, &(struct entry){.kind = ENTRY_SEND, .peer = peer, .len = len, .a = from});
}

void schedule_recv(struct schedule *s, int peer, struct place to, size_t len)
{
    schedule_append(s, &(struct entry){.kind = ENTRY_RECV, .peer = peer, .len = len, .dst = to});
}

void schedule_recv_reduce(struct schedule *s, int peer, struct place to, struct place mine,
                          size_t len, enum operand_order order)
{
    schedule_append(s, &(struct entry){.kind = ENTRY_RECV_REDUCE,
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
            s, &(struct entry){.kind = ENTRY_COPY, .peer = -1, .len = len, .dst = to, .a = from});
}

void schedule_reduce(struct schedule *s, struct place to, struct place left, struct place right,
                     size_t len)
{
    if (len)
        schedule_append(
            s, &(struct entry){
                   .kind = ENTRY_REDUCE, .peer = -1, .len = len, .dst = to, .a = left, .b = right});
}

static void end_step(struct schedule *s, bool loose)
{
    size_t start = s->nsteps ? s->steps[s->nsteps - 1].end : 0, reduces = 0;
    /* The next step may depend on the step before the empty one. */
    if (s->nentries == start && s->nsteps)
        s->steps[s->nsteps - 1].loose = false;
    if (s->oom || s->nentries == start ||
        !grow(s, (void **)&s->steps, s->nsteps, &s->cap_steps, sizeof(*s->steps)))
        return;
    s->steps[s->nsteps++] = (struct step){.end = s->nentries, .loose = loose};
    for (size_t i = start; i < s->nentries; i++)
        reduces += s->entries[i].kind == ENTRY_RECV_REDUCE;
    if (s->nentries - start > s->most_entries)
        s->most_entries = s->nentries - start;
    if (reduces > s->most_reduces)
        s->most_reduces = reduces;
}

void schedule_end_step(struct schedule *s)
{
    end_step(s, false);
}

void schedule_end_step_loosely(struct schedule *s)
{
    end_step(s, true);
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

static bool entry_is_valid(const struct schedule *s, const struct entry *p, int rank, int size)
{
    bool local = p->kind == ENTRY_COPY || p->kind == ENTRY_REDUCE;
    bool reads = p->kind != ENTRY_RECV, writes = p->kind != ENTRY_SEND;
    return (local ? p->peer == -1 : p->peer >= 0 && p->peer < size && p->peer != rank) &&
           (!reads || is_within(s, &p->a, p->len)) &&
           (!writes || (p->dst.buffer != PLACE_IN && is_within(s, &p->dst, p->len))) &&
           (p->kind != ENTRY_REDUCE || is_within(s, &p->b, p->len));
}

/* Whether entry i is the only one of its step, from `first` to i, to that peer in that direction.
 */
static bool is_only_message(const struct schedule *s, size_t first, size_t i)
{
    for (size_t k = first; k < i && s->entries[i].peer >= 0; k++) {
        if (s->entries[k].peer == s->entries[i].peer &&
            (s->entries[k].kind == ENTRY_SEND) == (s->entries[i].kind == ENTRY_SEND))
            return false;
    }
    return true;
}

bool schedule_is_valid(const struct schedule *s, int rank, int size)
{
    size_t i = 0;
    for (size_t r = 0; r < s->nsteps; r++) {
        size_t first = i, end = s->steps[r].end;
        if (end <= first || end > s->nentries || end - first > s->most_entries)
            return false;
        for (; i < end; i++) {
            if (!entry_is_valid(s, &s->entries[i], rank, size) || !is_only_message(s, first, i))
                return false;
        }
    }
    return i == s->nentries;
}
#endif
