/* cost.h: measures which of two ways to move blocks is faster between these ranks: staged (copied
 * into shared memory by one rank and out of it by another) or pulled (read directly from the
 * owner's memory, cma.h). Between two threads of a core staged is up to twice as fast, between
 * cores pulled is up to five times as fast; a virtual machine does not show which it has, and may
 * change it. So both are timed again and again, right after each other: of every so many calls, the
 * first ones form two timed turns, one of each way. The time of a call is the sum over all ranks,
 * because one rank's saving may be another one's waiting. */
#ifndef COLLECTIVES_SHM_COST_H
#define COLLECTIVES_SHM_COST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COST_SIZES = 5, /* classes of block lengths, by the caches that they fit into */
    COST_LONG = 2,  /* the first class whose calls take so long that one call is a measurement */
    COST_KINDS = 6, /* operations that move blocks, and a reduce of two ranks */
};

enum cost_way { COST_STAGED, COST_PULLED };

/* Picoseconds per byte; 0: not timed yet. One writer; hints that others may read at any time. */
struct cost {
    _Atomic uint32_t ps[2]; /* by way */
};

/* Private state of a rank. */
struct cost_turn {
    uint32_t calls;
    enum cost_way way;  /* of the last call */
    bool timed;         /* the last call is timed */
    uint32_t n;         /* timed calls of this turn */
    uint64_t ns, bytes; /* sums of the times of these calls */
};

/* The class of a block length. Lengths below the smallest that has a choice belong to class 0. */
int cost_size(size_t len);

/* The way of the next call with blocks of class `size`: the one whose turn it is, or else the
 * faster one by the sum of the times of all ranks (costs[0], then one every `stride` bytes). All
 * ranks count the same calls, hence choose alike. */
enum cost_way cost_choose(const struct cost *costs, int n, size_t stride, int size,
                          struct cost_turn *turn);

/* Records the duration of a timed call on this rank. */
void cost_take(struct cost *cost, int size, struct cost_turn *turn, enum cost_way way, uint64_t ns,
               size_t bytes);

#endif
