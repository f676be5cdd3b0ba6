/* cost.h: which of two ways is faster between these ranks to move large blocks: staged, copied in
 * by one and out by the other, or pulled, straight out of their owner's memory (pull.h). With a CPU
 * for each rank it depends on which caches the CPUs share that they happen to run on, by a factor
 * of three either way. So both ways are timed, from a call's beginning to its end: what else is in
 * that time (waiting for a rank that is late) is in it either way, and it is the shortest times
 * that count. Now and then blocks go the other way to see. */
#ifndef COLLECTIVES_SHM_COST_H
#define COLLECTIVES_SHM_COST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COST_SIZES = 4, /* classes: blocks that fit the caches to a different degree */
    COST_LONG = 1,  /* the first class of those that take so long that one is a measurement */
    COST_KINDS = 6, /* operations that move blocks, with or without v, and a reduce of two */
};

enum cost_way { COST_STAGED, COST_PULLED };

/* Picoseconds a byte; 0: not timed yet. One writer; hints, for others to read at any time. */
struct cost {
    _Atomic uint32_t ps[2]; /* by way */
};

/* What a rank keeps beside it for itself. */
struct cost_turn {
    uint32_t asked; /* how often it has chosen */
    uint8_t way;    /* of the last ones, and 1; 0: none */
    uint8_t timed;
    uint64_t ns, bytes; /* of the blocks that were timed since the way was changed */
};

/* By length, from 0; lengths below that for which there is a choice at all belong to the first. */
int cost_size(size_t len);

/* For blocks of class `size`: the better way of those that n have timed (costs[0], then one every
 * `stride` bytes), the fastest of whom counts; or the other one, if that must be timed. */
enum cost_way cost_choose(const struct cost *costs, int n, size_t stride, int size,
                          struct cost_turn *turn);

/* What it has taken. */
void cost_take(struct cost *cost, int size, struct cost_turn *turn, enum cost_way way, uint64_t ns,
               size_t bytes);

#endif
