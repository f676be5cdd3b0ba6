/* worker_env.h: the environment and the arguments of one worker. */
#ifndef AGENT_WORKER_ENV_H
#define AGENT_WORKER_ENV_H

#include "agent/job_spec.h"
#include "rendezvous/rank_table.h"

struct worker_env_input {
    const struct job_spec *job;
    const struct rank_table *table;
    int group_rank;
    int local_rank;
    const char *error_file;    /* "" when there are no log files */
    int segment_fd, listen_fd; /* -1: none */
    const char *master_addr;   /* for this node; NULL: the table's */
};

/* The worker's whole environment: ours, overridden by torchelastic's variables, ours and [env].
 * malloc'ed; free with worker_env_free(). -EINVAL when CUDA_VISIBLE_DEVICES has too few entries for
 * --virtual_local_rank. */
int worker_env_new(char ***out, const struct worker_env_input *in, struct err *e);
/* argv with ${local_rank} filled in and --local-rank=N put in where the job asks for it. */
char **worker_argv_new(const struct job_spec *job, int local_rank);
void worker_env_free(char **env);

#endif
