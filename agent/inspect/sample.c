#include "agent/inspect/sample.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/map.h"
#include "core/mem.h"
#include "rendezvous/rules/rank_table.h"

void sample_drop_frames(struct sample_thread *t)
{
    for (int i = 0; i < t->nframes; i++)
        free(t->frames[i]);
    free(t->frames);
    t->frames = NULL;
    t->nframes = 0;
}

void sample_fini(struct sample *s)
{
    for (int i = 0; i < s->nthreads; i++)
        sample_drop_frames(&s->threads[i]);
    free(s->threads);
}

bool sample_is_libc(const char *text)
{
    static const char *const names[] = {"libc.so",    "libc-",       "libpthread",
                                        "ld-linux",   "libm.so",     "libasan.so",
                                        "libtsan.so", "libubsan.so", "sanitizer_common_"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strstr(text, names[i]))
            return true;
    }
    return false;
}

/* The next one of a growing array whose size doubles. */
static void *grow(void *array, size_t n, size_t size)
{
    return (n & (n - 1)) == 0 ? xrealloc(array, (n ? 2 * n : 1) * size) : array;
}

struct sample_thread *sample_add_thread(struct sample *s, int tid)
{
    s->threads = grow(s->threads, (size_t)s->nthreads, sizeof(*s->threads));
    struct sample_thread *t = &s->threads[s->nthreads++];
    *t = (struct sample_thread){.tid = tid};
    return t;
}

void sample_add_frame(struct sample_thread *t, const char *text)
{
    if (t->nframes == SAMPLE_FRAMES_MAX)
        return;
    t->frames = grow(t->frames, (size_t)t->nframes, sizeof(*t->frames));
    t->frames[t->nframes++] = xstrndup(text, SAMPLE_TEXT_MAX - 1);
}

void sample_reverse(struct sample_thread *t)
{
    for (int i = 0, k = t->nframes - 1; i < k; i++, k--) {
        char *frame = t->frames[i];
        t->frames[i] = t->frames[k];
        t->frames[k] = frame;
    }
}

struct sample *samples_add(struct samples *all)
{
    all->s = grow(all->s, all->n, sizeof(*all->s));
    struct sample *s = &all->s[all->n++];
    *s = (struct sample){.node = -1};
    return s;
}

void samples_fini(struct samples *all)
{
    for (size_t i = 0; i < all->n; i++)
        sample_fini(&all->s[i]);
    free(all->s);
    *all = (struct samples){0};
}

static int by_rank(const void *a, const void *b)
{
    const struct sample *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

void samples_sort(struct samples *all)
{
    if (all->n)
        qsort(all->s, all->n, sizeof(*all->s), by_rank);
}

/* ------------------------------------------------------------------------------------- encoding */

/* The stacks of a message, each of them once, since most ranks are in the same places. */
struct stacks {
    struct map numbers; /* a stack's encoding -> its number, plus one */
    struct buf list;
    uint32_t n;
    struct buf one;
};

static uint32_t put_stack(struct stacks *k, const struct sample_thread *t)
{
    k->one.len = 0;
    buf_u16(&k->one, (uint16_t)t->nframes);
    for (int i = 0; i < t->nframes; i++)
        buf_str(&k->one, t->frames[i]);
    xbuf_reserve(&k->one, 0);
    void **number = map_put(&k->numbers, k->one.data, k->one.len);
    if (number && *number)
        return (uint32_t)(uintptr_t)*number - 1;
    if (number)
        *number = (void *)(uintptr_t)(k->n + 1);
    buf_put(&k->list, k->one.data, k->one.len);
    return k->n++;
}

static void put_thread(struct buf *b, struct stacks *k, const struct sample_thread *t)
{
    buf_u32(b, (uint32_t)t->tid);
    buf_str(b, t->name);
    buf_u8(b, (uint8_t)t->state);
    buf_u8(b, t->python);
    buf_str(b, t->wchan);
    buf_str(b, t->call);
    buf_u32(b, put_stack(k, t));
}

static void put_sample(struct buf *b, struct stacks *k, const struct sample *s)
{
    buf_u32(b, (uint32_t)s->rank);
    buf_u32(b, (uint32_t)s->node);
    buf_u32(b, (uint32_t)s->pid);
    buf_str(b, s->host);
    buf_str(b, s->program);
    buf_str(b, s->note);
    buf_u64(b, s->cpu_ms);
    buf_u64(b, s->io_bytes);
    buf_u32(b, s->stopped_us);
    buf_u64(b, s->op.number);
    buf_u64(b, s->op.group);
    buf_u64(b, s->op.seq);
    buf_u64(b, s->op.age_ms);
    buf_u8(b, (uint8_t)(s->op.open | s->op.hidden << 1));
    buf_u8(b, s->op.reported);
    buf_str(b, s->op.text);
    buf_u8(b, s->active);
    buf_u32(b, (uint32_t)s->more_threads);
    buf_u16(b, (uint16_t)s->nthreads);
    for (int i = 0; i < s->nthreads; i++)
        put_thread(b, k, &s->threads[i]);
}

void samples_encode(struct buf *b, const struct samples *all)
{
    struct stacks k = {0};
    struct buf rest = BUF_INIT;
    map_init(&k.numbers);
    for (size_t i = 0; i < all->n; i++)
        put_sample(&rest, &k, &all->s[i]);
    buf_u32(b, k.n);
    buf_put(b, k.list.data, k.list.len);
    buf_u32(b, (uint32_t)all->n);
    buf_put(b, rest.data, rest.len);
    map_fini(&k.numbers, NULL);
    buf_fini(&k.list);
    buf_fini(&k.one);
    buf_fini(&rest);
}

/* Threads behind the first so many are counted only. */
static void keep_threads(struct sample *s, int nthreads)
{
    if (s->nthreads <= nthreads)
        return;
    s->more_threads += s->nthreads - nthreads;
    while (s->nthreads > nthreads)
        sample_drop_frames(&s->threads[--s->nthreads]);
    snprintf(s->note, sizeof(s->note),
             "threads are left out, because those of its node are too many for one answer");
}

void samples_encode_within(struct buf *b, const struct samples *all, size_t most)
{
    size_t begin = b->len;
    samples_encode(b, all);
    for (int n = SAMPLE_THREADS_MAX; n > 0 && b->len > most; n /= 2) {
        for (size_t i = 0; i < all->n; i++)
            keep_threads(&all->s[i], n / 2);
        b->len = begin;
        samples_encode(b, all);
    }
}

/* The stacks of a message, as pointers into the message. */
struct got_stacks {
    struct rd *at;
    uint32_t n;
};

static void get_stacks(struct rd *r, struct got_stacks *k)
{
    uint32_t n = rd_u32(r);
    for (k->n = 0; k->n < n && !r->bad; k->n++) {
        if ((k->n & (k->n - 1)) == 0)
            k->at = xrealloc(k->at, (k->n ? 2 * (size_t)k->n : 1) * sizeof(*k->at));
        k->at[k->n] = *r;
        int frames = rd_u16(r);
        r->bad |= frames > SAMPLE_FRAMES_MAX;
        for (int i = 0; i < frames && !r->bad; i++) {
            char text[SAMPLE_TEXT_MAX];
            rd_str(r, text, sizeof(text));
        }
    }
}

static void get_thread(struct rd *r, const struct got_stacks *k, struct samples *all,
                       struct sample *s)
{
    char text[SAMPLE_TEXT_MAX];
    struct sample_thread t = {.tid = (int)rd_u32(r)}, *added;
    rd_str(r, t.name, sizeof(t.name));
    t.state = (char)rd_u8(r);
    t.python = rd_u8(r) != 0;
    rd_str(r, t.wchan, sizeof(t.wchan));
    rd_str(r, t.call, sizeof(t.call));
    uint32_t stack = rd_u32(r);
    r->bad |= stack >= k->n;
    if (r->bad)
        return;
    if (all->bytes >= SAMPLES_BYTES_MAX) {
        s->more_threads++;
        snprintf(s->note, sizeof(s->note),
                 "threads are left out, because those of all ranks are larger than %u MiB",
                 SAMPLES_BYTES_MAX >> 20);
        return;
    }
    added = sample_add_thread(s, t.tid);
    *added = t;
    all->bytes += sizeof(t);
    struct rd frames = k->at[stack]; /* checked */
    for (int n = rd_u16(&frames); n > 0; n--) {
        rd_str(&frames, text, sizeof(text));
        sample_add_frame(added, text);
        all->bytes += sizeof(char *) + strlen(text) + 16;
    }
}

static void get_sample(struct rd *r, const struct got_stacks *k, struct samples *all)
{
    struct sample *s = samples_add(all);
    s->rank = (int)rd_u32(r);
    s->node = (int)rd_u32(r);
    s->pid = (int)rd_u32(r);
    rd_str(r, s->host, sizeof(s->host));
    rd_str(r, s->program, sizeof(s->program));
    rd_str(r, s->note, sizeof(s->note));
    s->cpu_ms = rd_u64(r);
    s->io_bytes = rd_u64(r);
    s->stopped_us = rd_u32(r);
    s->op.number = rd_u64(r);
    s->op.group = rd_u64(r);
    s->op.seq = rd_u64(r);
    s->op.age_ms = rd_u64(r);
    uint8_t state = rd_u8(r);
    s->op.open = state & 1;
    s->op.hidden = state & 2;
    s->op.reported = rd_u8(r) != 0;
    rd_str(r, s->op.text, sizeof(s->op.text));
    s->active = rd_u8(r) != 0;
    s->more_threads = (int)rd_u32(r);
    int n = rd_u16(r);
    if (s->rank < 0 || s->rank >= WORLD_SIZE_MAX || s->node < -1 || s->node >= NNODES_MAX ||
        s->more_threads < 0 || s->more_threads > INT_MAX - SAMPLE_THREADS_MAX ||
        n > SAMPLE_THREADS_MAX)
        r->bad = true;
    for (int i = 0; i < n && !r->bad; i++)
        get_thread(r, k, all, s);
}

bool samples_decode(struct rd *r, struct samples *all)
{
    struct got_stacks k = {0};
    get_stacks(r, &k);
    uint32_t n = rd_u32(r);
    if (n > WORLD_SIZE_MAX)
        r->bad = true;
    for (uint32_t i = 0; i < n && !r->bad; i++)
        get_sample(r, &k, all);
    free(k.at);
    return !r->bad;
}
