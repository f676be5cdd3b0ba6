/* job_attempts.h: keeps, for the report, the attempts of the job on this node, and the operations
 * that its workers were in when the last one was stopped. */
#ifndef AGENT_REPORT_JOB_ATTEMPTS_H
#define AGENT_REPORT_JOB_ATTEMPTS_H

#include "agent/base/feature.h"

extern const struct feature attempts_feature;

#endif
