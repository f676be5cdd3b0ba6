/* file_limit.h: enough descriptors for the pipes and files of the workers. */
#ifndef AGENT_PROCESS_FILE_LIMIT_H
#define AGENT_PROCESS_FILE_LIMIT_H

#include "agent/base/job_spec.h"
#include "core/err.h"

/* Raises the soft limit of open files to the hard limit. The workers get the soft limit that
 * dlaunch was started with. -EMFILE if that is too little for them. */
int file_limit_raise(const struct job_spec *job, struct err *e);

#endif
