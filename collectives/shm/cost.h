/* cost.h: which way large blocks go faster between these ranks: through the slots, copied in by one
 * and out by the other, or straight out of their owner's memory (pull.h). It depends on which
 * caches the CPUs share that they happen to run on, by a factor of three either way, so it is
 * measured while they go: each rank keeps what copying into its slots costs it, and tells the
 * others what taking from theirs, and pulling, costs it. Now and then a block goes the other way to
 * see. */
#ifndef COLLECTIVES_SHM_COST_H
#define COLLECTIVES_SHM_COST_H

#include "collectives/shm/shm.h"

/* By length: blocks that fit the caches to a different degree. -1: too short to be measured. */
int cost_class(size_t len);

/* Around a copy of so many bytes, in picoseconds of CPU time a byte. Begin: 0: not this one (of a
 * block's pieces, one in eight), and end does nothing. */
uint64_t cost_begin(int size_class, uint64_t piece);
void cost_end(_Atomic uint32_t costs[SHM_COSTS], int size_class, uint64_t began, size_t bytes);

/* Whether a block of such a length had better be pulled. all_send: the others send likewise, so a
 * rank copies in and out in turn, not while the others do the other half. */
bool cost_prefers_pull(struct shm *s, int size_class, bool all_send);

#endif
