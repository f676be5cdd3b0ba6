/* blocked.h: TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, as in torchrun: a worker that sleeps for
 * so many seconds in state D (uninterruptible sleep) fails. */
#ifndef AGENT_PROCESS_BLOCKED_H
#define AGENT_PROCESS_BLOCKED_H

#include "agent/base/feature.h"

extern const struct feature blocked_feature;

#endif
