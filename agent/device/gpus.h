/* gpus.h: the GPUs of this node's workers in the agent: workers start when they are fit, failures
 * carry their errors, displays show their use (gpu_watch.h). */
#ifndef AGENT_DEVICE_GPUS_H
#define AGENT_DEVICE_GPUS_H

#include "agent/base/feature.h"

extern const struct feature gpus_feature;

#endif
