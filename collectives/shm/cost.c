#include "collectives/shm/cost.h"

enum {
    EARLY_TRY = 16,     /* the other way has a turn from this one on, */
    BLOCKS_A_TRY = 128, /* and from every so many */
    WEIGHT = 3,         /* of what was, against 1 of what is, if that is longer: maybe by chance */
};

/* So many blocks make a time: a short one is quick by chance when the other rank was early. */
static uint32_t blocks_timed(int size)
{
    return size < COST_LONG ? 2 : 1;
}

/* The first one after a change finds its memory in nobody's cache. */
static uint32_t blocks_a_turn(int size)
{
    return blocks_timed(size) + 1;
}

int cost_size(size_t len)
{
    static const size_t limits[COST_SIZES - 1] = {128 << 10, 1 << 20, 8 << 20};
    int size = 0;
    while (size < COST_SIZES - 1 && len >= limits[size])
        size++;
    return size;
}

static uint32_t least(const struct cost *costs, int n, size_t stride, enum cost_way way)
{
    uint32_t best = 0;
    for (int i = 0; i < n; i++) {
        const struct cost *c = (const struct cost *)((const char *)costs + (size_t)i * stride);
        uint32_t ps = atomic_load_explicit(&c->ps[way], memory_order_relaxed);
        if (ps && (!best || ps < best))
            best = ps;
    }
    return best;
}

enum cost_way cost_choose(const struct cost *costs, int n, size_t stride, int size,
                          struct cost_turn *turn)
{
    uint32_t staged = least(costs, n, stride, COST_STAGED);
    uint32_t pulled = least(costs, n, stride, COST_PULLED);
    uint32_t k = turn->asked++, of = k % BLOCKS_A_TRY, each = blocks_a_turn(size);
    if (!staged || !pulled)
        return k / each % 2 ? COST_PULLED : COST_STAGED;
    bool try = k < BLOCKS_A_TRY ? k >= EARLY_TRY && k < EARLY_TRY + each : of < each;
    return (pulled < staged) != try ? COST_PULLED : COST_STAGED;
}

void cost_take(struct cost *cost, int size, struct cost_turn *turn, enum cost_way way, uint64_t ns,
               size_t bytes)
{
    if (turn->way != way + 1) {
        *turn = (struct cost_turn){.asked = turn->asked, .way = (uint8_t)(way + 1)};
        return;
    }
    turn->ns += ns;
    turn->bytes += bytes;
    if (++turn->timed < blocks_timed(size))
        return;
    uint64_t was = atomic_load_explicit(&cost->ps[way], memory_order_relaxed);
    uint64_t is = turn->ns * 1000 / turn->bytes + 1;
    is = is < UINT32_MAX ? is : UINT32_MAX;
    is = was && is > was ? (was * WEIGHT + is) / (WEIGHT + 1) : is;
    atomic_store_explicit(&cost->ps[way], (uint32_t)is, memory_order_relaxed);
    turn->ns = turn->bytes = turn->timed = 0;
}
