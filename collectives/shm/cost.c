#include "collectives/shm/cost.h"

enum {
    FIRST_TURNS = 8, /* calls until both ways are timed for the second time; afterwards: */
    SHORT_TURNS = 64,
    LONG_TURNS = 32,
};

/* The first call of a turn finds its data in no cache and is not timed. Single short calls vary too
 * much. */
static uint32_t calls_timed(int size)
{
    return size < COST_LONG ? 8 : 1;
}

int cost_size(size_t len)
{
    static const size_t limits[COST_SIZES - 1] = {32 << 10, 128 << 10, 1 << 20, 8 << 20};
    int size = 0;
    while (size < COST_SIZES - 1 && len >= limits[size])
        size++;
    return size;
}

/* A rank that arrives late does not wait, and one that arrives early waits whichever way is taken:
 * both sums include that. */
static enum cost_way better(const struct cost *costs, int n, size_t stride)
{
    uint64_t sums[2] = {0, 0};
    for (int i = 0; i < n; i++) {
        const struct cost *c = (const struct cost *)((const char *)costs + (size_t)i * stride);
        uint32_t staged = atomic_load_explicit(&c->ps[COST_STAGED], memory_order_relaxed);
        uint32_t pulled = atomic_load_explicit(&c->ps[COST_PULLED], memory_order_relaxed);
        sums[COST_STAGED] += staged && pulled ? staged : 0;
        sums[COST_PULLED] += staged && pulled ? pulled : 0;
    }
    return sums[COST_PULLED] < sums[COST_STAGED] ? COST_PULLED : COST_STAGED;
}

enum cost_way cost_choose(const struct cost *costs, int n, size_t stride, int size,
                          struct cost_turn *turn)
{
    uint32_t each = calls_timed(size) + 1, k = turn->calls++;
    uint32_t turns = size < COST_LONG ? SHORT_TURNS : LONG_TURNS;
    if (k >= FIRST_TURNS * each)
        k = (k - FIRST_TURNS * each) % (turns * each);
    turn->timed = k < 2 * each && k % each;
    if (k % each == 0)
        turn->n = 0, turn->ns = turn->bytes = 0;
    turn->way = k < each ? COST_STAGED : k < 2 * each ? COST_PULLED : better(costs, n, stride);
    return turn->way;
}

void cost_take(struct cost *cost, int size, struct cost_turn *turn, enum cost_way way, uint64_t ns,
               size_t bytes)
{
    if (!turn->timed || way != turn->way)
        return;
    turn->ns += ns;
    turn->bytes += bytes;
    if (++turn->n < calls_timed(size) || !turn->bytes)
        return;
    uint64_t was = atomic_load_explicit(&cost->ps[way], memory_order_relaxed);
    uint64_t is = turn->ns * 1000 / turn->bytes + 1;
    is = is < UINT32_MAX ? is : UINT32_MAX;
    is = was && is > was ? (was + is) / 2 : is; /* a longer time may be an outlier */
    atomic_store_explicit(&cost->ps[way], (uint32_t)is, memory_order_relaxed);
}
