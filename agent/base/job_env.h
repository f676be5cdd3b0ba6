/* job_env.h: what the user gives the workers by environment, in [env] or in that of the launcher.
 */
#ifndef AGENT_BASE_JOB_ENV_H
#define AGENT_BASE_JOB_ENV_H

#include "agent/base/job_spec.h"

/* The value of this variable in [env], or else in the environment; NULL: none. Borrowed. */
const char *job_env(const struct job_spec *job, const char *name);

/* The workers' devices, as CUDA_VISIBLE_DEVICES names them before --virtual_local_rank cuts it;
 * NULL: all. Borrowed. */
const char *job_env_gpus(const struct job_spec *job);

#endif
