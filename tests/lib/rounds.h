/* rounds.h: operations of libdlcoll drawn at random from a seed, on 1 to 9 ranks in memory, over
 * TCP and on several nodes. The seed is printed; a variable repeats a run. */
#ifndef TESTS_LIB_ROUNDS_H
#define TESTS_LIB_ROUNDS_H

#include <check.h>
#include <stdint.h>

#include "collectives/dlcoll.h"

struct rounds {
    const char *name, *variable; /* of the seed */
    int count;                   /* rounds of each run */
    void (*round)(dlcoll_comm *comm, int rank, int k);
};

extern uint64_t g_rounds_seed; /* of this run; the same on every rank */

/* Adds a case whose tests call round() for k = 0 to count - 1 on every rank. One for each suite. */
TCase *rounds_case(Suite *s, const struct rounds *r);

#endif
