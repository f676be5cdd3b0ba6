/* all.h: what the search of all states (all.c) forgets of a state, lest two that go on alike count
 * as two: what is left in queues and texts, times that nothing compares any more, and how long ago
 * the others were beyond what anything waits for. One file for each of the rules, which includes
 * them: what may be forgotten is known only inside. */
#ifndef TESTS_SIM_ALL_ALL_H
#define TESTS_SIM_ALL_ALL_H

#include <string.h>

#include "tests/sim/sim.h"

void all_forget_member(struct member_state *m);
void all_forget_coordinator(struct rdzv_state *s);
void all_forget_agent(struct agent_rules *r);
void all_forget_reach(struct reach *r);

/* A time that counts for so long, and then only as one that was. */
static inline uint64_t all_cap(uint64_t at, uint64_t for_ns)
{
    return at && at + for_ns < now ? now - for_ns : at;
}

/* A text without what an older, longer one has left behind it. */
#define ALL_WIPE(text) memset((text) + strlen(text), 0, sizeof(text) - strlen(text))

#endif
