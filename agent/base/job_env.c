#include "agent/base/job_env.h"

#include <stdlib.h>
#include <string.h>

const char *job_env(const struct job_spec *job, const char *name)
{
    size_t len = strlen(name);
    const char *found = NULL;
    for (char **env = job->env; env && *env; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            found = *env + len + 1;
    }
    return found ? found : getenv(name);
}

const char *job_env_gpus(const struct job_spec *job)
{
    return job->instances ? job->instances : job_env(job, "CUDA_VISIBLE_DEVICES");
}
