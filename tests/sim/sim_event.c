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
static struct queue {
    struct place *heap;
    struct sim_event *events;
    size_t *unused; /* of events[]: those behind the first nheap */
    size_t nheap, cap_heap;
    uint64_t last_order;
} Q;
_Static_assert(sizeof(Q) == SIM_QUEUE_BYTES, "sim.h has another size for it");

/* --------------------------------------------------------------------------------------- chance */

uint64_t sim_chance(void) /* xorshift64* */
{
    if (W.small)
        return 1;
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
    Q.cap_heap = Q.cap_heap ? 2 * Q.cap_heap : 256;
    Q.heap = xrealloc(Q.heap, Q.cap_heap * sizeof(*Q.heap));
    Q.events = xrealloc(Q.events, Q.cap_heap * sizeof(*Q.events));
    Q.unused = xrealloc(Q.unused, Q.cap_heap * sizeof(*Q.unused));
    for (size_t i = Q.nheap; i < Q.cap_heap; i++)
        Q.unused[i] = i;
}

void sim_push(struct sim_event e)
{
    if (W.small && sim_is_left_out(&e))
        return;
    if (Q.nheap == Q.cap_heap)
        grow();
    if (!e.order)
        e.order = ++Q.last_order;
    struct place p = {e.at, e.order, Q.unused[Q.nheap]};
    Q.events[p.event] = e;
    size_t i = Q.nheap++;
    for (; i > 0 && sooner(&p, &Q.heap[(i - 1) / 2]); i = (i - 1) / 2)
        Q.heap[i] = Q.heap[(i - 1) / 2];
    Q.heap[i] = p;
}

struct sim_event sim_take(size_t k)
{
    struct place gone = Q.heap[k], last = Q.heap[--Q.nheap];
    size_t i = k, child;
    for (; i > 0 && sooner(&last, &Q.heap[(i - 1) / 2]); i = (i - 1) / 2)
        Q.heap[i] = Q.heap[(i - 1) / 2];
    while ((child = 2 * i + 1) < Q.nheap) {
        child += child + 1 < Q.nheap && sooner(&Q.heap[child + 1], &Q.heap[child]);
        if (!sooner(&Q.heap[child], &last))
            break;
        Q.heap[i] = Q.heap[child];
        i = child;
    }
    if (k < Q.nheap)
        Q.heap[i] = last;
    Q.unused[Q.nheap] = gone.event;
    return Q.events[gone.event];
}

struct sim_event sim_pop(void)
{
    return sim_take(0);
}

size_t sim_events(void)
{
    return Q.nheap;
}

const struct sim_event *sim_event(size_t k)
{
    return &Q.events[Q.heap[k].event];
}

void *sim_queue(void)
{
    return &Q;
}

bool sim_any_event(void)
{
    return Q.nheap > 0;
}

void sim_forget_events(void)
{
    while (Q.nheap) {
        struct sim_event e = sim_pop();
        buf_fini(&e.bytes);
    }
    free(Q.heap);
    free(Q.events);
    free(Q.unused);
    Q.heap = NULL;
    Q.events = NULL;
    Q.unused = NULL;
    Q.cap_heap = Q.last_order = 0;
}

void sim_trace(const char *what, int who, uint64_t number)
{
    for (const char *p = what; *p; p++)
        W.hash = (W.hash ^ (uint8_t)*p) * 0x100000001b3ull;
    W.hash = (W.hash ^ now ^ ((uint64_t)who << 48) ^ number) * 0x100000001b3ull;
    if (W.loud)
        printf("%12.6f %s %d %llu\n", (double)now / 1e9, what, who, (unsigned long long)number);
}
