/* coalesced.h: an all_reduce of a list of buffers. */
#ifndef COLLECTIVES_PERFORM_COALESCED_H
#define COLLECTIVES_PERFORM_COALESCED_H

#include "collectives/comm/coll_call.h"

/* Returns how many calls the operation takes, each with a number of its own: equal on every
 * rank. */
uint64_t coalesced_calls(const struct coll_call *c);

/* Carries the operation out, as a provider's run does. */
int coalesced_run(struct coll_call *c);

#endif
