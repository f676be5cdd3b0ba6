/* cost.h: which of two ways is faster between these ranks to move blocks: staged, copied in by one
 * and out by the other, or pulled, straight out of their owner's memory (cma.h). It depends on
 * which caches the CPUs share that they happen to run on, and on whether a block has been written
 * since it was last read, by a factor of three either way. So both are tried again and again, right
 * after each other: calls are counted, and of every so many the first ones make two turns, one of
 * each way, that are timed. A call's time goes from its beginning to its end, on all ranks: what
 * one saves another one may have to wait for. */
#ifndef COLLECTIVES_SHM_COST_H
#define COLLECTIVES_SHM_COST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COST_SIZES = 5, /* classes: blocks that fit the caches to a different degree */
    COST_LONG = 2,  /* the first class of those that take so long that one is a measurement */
    COST_KINDS = 6, /* operations that move blocks, with or without v, and a reduce of two */
};

enum cost_way { COST_STAGED, COST_PULLED };

/* Picoseconds a byte; 0: not timed yet. One writer; hints, for others to read at any time. */
struct cost {
    _Atomic uint32_t ps[2]; /* by way */
};

/* What a rank keeps beside it for itself. */
struct cost_turn {
    uint32_t calls;
    enum cost_way way;  /* of the last one, and */
    bool timed;         /* whether it is one of those that are timed */
    uint32_t n;         /* of those of this turn that have been, */
    uint64_t ns, bytes; /* what they took */
};

/* By length, from 0; lengths below that for which there is a choice at all belong to the first. */
int cost_size(size_t len);

/* For the next call, of blocks of class `size`: the way whose turn it is, or else the better one,
 * by the times of all ranks together (costs[0], then one every `stride` bytes). All ranks that
 * count the same calls come to the same. */
enum cost_way cost_choose(const struct cost *costs, int n, size_t stride, int size,
                          struct cost_turn *turn);

/* What a call that was timed has taken this rank, which went that way. */
void cost_take(struct cost *cost, int size, struct cost_turn *turn, enum cost_way way, uint64_t ns,
               size_t bytes);

#endif
