/* coalesced.h: an all_reduce of a list of buffers. */
#ifndef COLLECTIVES_PERFORM_COALESCED_H
#define COLLECTIVES_PERFORM_COALESCED_H

#include "collectives/comm/coll_call.h"

/* How many calls it takes, each with a number of its own: the same on every rank. */
uint64_t coalesced_calls(const struct coll_call *c);

/* As a provider's run. */
int coalesced_run(struct coll_call *c);

#endif
