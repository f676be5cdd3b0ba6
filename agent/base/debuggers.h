/* debuggers.h: keeps the table of the job's processes for debuggers (mpir.h). */
#ifndef AGENT_BASE_DEBUGGERS_H
#define AGENT_BASE_DEBUGGERS_H

#include "agent/base/feature.h"

extern const struct feature debuggers_feature;

#endif
