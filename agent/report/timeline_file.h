/* timeline_file.h: --timeline FILE: the job as a trace (timeline.h), with the operations of this
 * node's workers. */
#ifndef AGENT_REPORT_TIMELINE_FILE_H
#define AGENT_REPORT_TIMELINE_FILE_H

#include "agent/base/feature.h"

extern const struct feature timeline_feature;

#endif
