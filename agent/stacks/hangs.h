/* hangs.h: --hang_after in the agent: what hang.h needs to see of the workers, and what follows
 * from its verdict on every node. */
#ifndef AGENT_STACKS_HANGS_H
#define AGENT_STACKS_HANGS_H

#include "agent/base/feature.h"

extern const struct feature hangs_feature;

#endif
