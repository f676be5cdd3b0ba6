#include "collectives/shm/cost.h"

#include "collectives/shm/provider.h"
#include "core/clock.h"

enum {
    PIECES_A_LOOK = 8,
    BLOCKS_A_TRY = 128, /* of so many, these go the other way: */
    TRIES = 4,
    WEIGHT = 3, /* of what was, against 1 of what is */
};

int cost_class(size_t len)
{
    static const size_t limits[SHM_COSTS] = {1024 * 1024, 8 * 1024 * 1024, SIZE_MAX};
    if (len < shm_tuning.compare)
        return -1;
    int size_class = 0;
    while (len >= limits[size_class])
        size_class++;
    return size_class;
}

uint64_t cost_begin(int size_class, uint64_t piece)
{
    return size_class < 0 || piece % PIECES_A_LOOK ? 0 : clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void cost_end(_Atomic uint32_t costs[SHM_COSTS], int size_class, uint64_t began, size_t bytes)
{
    if (!began || !bytes)
        return;
    _Atomic uint32_t *cost = &costs[size_class];
    uint64_t was = atomic_load_explicit(cost, memory_order_relaxed);
    uint64_t is = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - began) * 1000 / bytes + 1;
    is = is < UINT32_MAX ? is : UINT32_MAX;
    /* What makes it slower may be by chance (the first touch of a page, an interrupt). */
    is = was && is > was ? (was * WEIGHT + is) / (WEIGHT + 1) : is;
    atomic_store_explicit(cost, (uint32_t)is, memory_order_relaxed);
}

/* The slowest rank's; 0: one that has not been seen to do it. */
static uint64_t others(const struct shm *s, bool pull, int size_class)
{
    uint64_t most = 0;
    for (int i = 0; i < s->n; i++) {
        const struct shm_peer *p = &s->peers[i];
        uint64_t cost = atomic_load_explicit(
            pull ? &p->pull_cost[size_class] : &p->take_cost[size_class], memory_order_relaxed);
        if (i != s->me && !cost)
            return 0;
        if (i != s->me && cost > most)
            most = cost;
    }
    return most;
}

/* Several at a time: the first one finds the slots in nobody's cache. */
static bool is_try(uint32_t blocks)
{
    return blocks % BLOCKS_A_TRY < TRIES || (blocks >= 8 && blocks < 8 + TRIES);
}

bool cost_prefers_pull(struct shm *s, int size_class, bool all_send)
{
    uint64_t put = atomic_load_explicit(&s->put_cost[size_class], memory_order_relaxed);
    uint64_t take = others(s, false, size_class), pull = others(s, true, size_class);
    uint64_t staged = all_send ? put + take : put > take ? put : take;
    if (!pull || !put || !take)
        return !pull;
    return (pull < staged) != is_try(s->blocks[size_class]++);
}
