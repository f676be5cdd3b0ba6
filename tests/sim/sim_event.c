#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t now;

static uint64_t rng;

/* Future events: the heap holds their order; each event keeps its index in events[] meanwhile. */
struct place {
    uint64_t at, order;
    size_t event;
};
static struct place *heap;
static struct sim_event *events;
static size_t *unused; /* of events[]: those behind the first nheap */
static size_t nheap, cap_heap;
static uint64_t last_order;

/* --------------------------------------------------------------------------------------- chance */

uint64_t sim_chance(void) /* xorshift64* */
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return rng * 0x2545f4914f6cdd1dull;
}

void sim_chance_from(uint64_t seed)
{
    rng = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < 4; i++)
        sim_chance();
}

/* Mostly short, now and then long, and very long while faults go on. */
uint64_t sim_delay(void)
{
    uint64_t r = sim_chance(), d = 50000 + r % MSEC;
    if (r >> 32 & 15)
        return d;
    d += below(200 * MSEC);
    if (now >= W.faults_from && now < W.faults_until && one_in(25))
        d += below(one_in(8) ? 9 * SEC : 4 * SEC);
    return d;
}

/* --------------------------------------------------------------------------------------- events */

static bool sooner(const struct place *a, const struct place *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void grow(void)
{
    cap_heap = cap_heap ? 2 * cap_heap : 256;
    heap = xrealloc(heap, cap_heap * sizeof(*heap));
    events = xrealloc(events, cap_heap * sizeof(*events));
    unused = xrealloc(unused, cap_heap * sizeof(*unused));
    for (size_t i = nheap; i < cap_heap; i++)
        unused[i] = i;
}

void sim_push(struct sim_event e)
{
    if (nheap == cap_heap)
        grow();
    if (!e.order)
        e.order = ++last_order;
    struct place p = {e.at, e.order, unused[nheap]};
    events[p.event] = e;
    size_t i = nheap++;
    for (; i > 0 && sooner(&p, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = p;
}

struct sim_event sim_pop(void)
{
    struct place top = heap[0], last = heap[--nheap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < nheap) {
        child += child + 1 < nheap && sooner(&heap[child + 1], &heap[child]);
        if (!sooner(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    unused[nheap] = top.event;
    return events[top.event];
}

bool sim_any_event(void)
{
    return nheap > 0;
}

void sim_forget_events(void)
{
    while (nheap) {
        struct sim_event e = sim_pop();
        buf_fini(&e.bytes);
    }
    free(heap);
    free(events);
    free(unused);
    heap = NULL;
    events = NULL;
    unused = NULL;
    cap_heap = last_order = 0;
}

void sim_trace(const char *what, int who, uint64_t number)
{
    for (const char *p = what; *p; p++)
        W.hash = (W.hash ^ (uint8_t)*p) * 0x100000001b3ull;
    W.hash = (W.hash ^ now ^ ((uint64_t)who << 48) ^ number) * 0x100000001b3ull;
    if (W.loud)
        printf("%12.6f %s %d %llu\n", (double)now / 1e9, what, who, (unsigned long long)number);
}
