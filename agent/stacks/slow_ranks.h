/* slow_ranks.h: --slow_ranks in the agent: what slow.h needs to see of the workers, and what it has
 * found on every node. */
#ifndef AGENT_STACKS_SLOW_RANKS_H
#define AGENT_STACKS_SLOW_RANKS_H

#include "agent/base/feature.h"

extern const struct feature slow_ranks_feature;

#endif
