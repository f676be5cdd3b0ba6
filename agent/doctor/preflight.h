/* preflight.h: --preflight: before each round, what is wrong with this node (checks.h). One on
 * which workers could not run leaves the job. */
#ifndef AGENT_DOCTOR_PREFLIGHT_H
#define AGENT_DOCTOR_PREFLIGHT_H

#include "agent/base/feature.h"

extern const struct feature preflight_feature;

#endif
