/* worker_env.h: the environment and the arguments of one worker.
 *
 * The environment is this process's own, with on top of it, the later winning:
 *   - torchelastic's variables: LOCAL_RANK, RANK, GROUP_RANK, ROLE_RANK, ROLE_NAME,
 *     LOCAL_WORLD_SIZE, WORLD_SIZE, GROUP_WORLD_SIZE, ROLE_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
 *     TORCHELASTIC_{RESTART_COUNT,MAX_RESTARTS,RUN_ID,USE_AGENT_STORE,ERROR_FILE,
 *     SIGNALS_TO_HANDLE,TIMER_FILE}, TORCH_NCCL_ASYNC_ERROR_HANDLING (1 unless it is set),
 *     OMP_NUM_THREADS (where it is not set and the job says so)
 *   - NODE_RANK, the same number as GROUP_RANK, under the name that many scripts look for
 *   - GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, TP_SOCKET_IFNAME, where they are not set and this
 *     host's own name would lead its peers astray (agent/hostname_check.h)
 *   - NCCL_PROFILER_PLUGIN, with --hang_after or --slow_ranks, and DLAUNCH_NCCL_PROFILER, what the
 *     user had in it
 *   - what libdlcoll inherits: DLAUNCH_SEGMENT_FD and DLAUNCH_LISTEN_FD (core/segment.h); those of
 *     a dlaunch around this one never come through
 *   - what the ranks of an MPI program find each other by (agent/mpi/mpi.h)
 *   - DLAUNCH_APPNUM, the number of the worker's program, in a job of several programs
 *   - the [env] settings, then those of the worker's program
 *   - --virtual_local_rank: CUDA_VISIBLE_DEVICES cut to the worker's own entry
 *
 * Taken out: what an MPI launcher around this one (mpiexec or srun that starts one dlaunch per
 * node) has set to wire up *its* processes: PMI_*, PMIX_* (not PMIX_MCA_*), SLURM_PMI*, HYDI_*,
 * MPI_LOCALRANKID, MPI_LOCALNRANKS, OMPI_COMM_WORLD_*, OMPI_UNIVERSE_SIZE and the OMPI_MCA_ names
 * that Open MPI uses for wire-up. They name one rank, that of dlaunch itself, and descriptors that
 * the workers do not have; inherited, every worker would take itself for that rank and MPI_Init
 * would hang or fail, and libraries that look at OMPI_COMM_WORLD_RANK before RANK would see the
 * wrong job. Settings that users make (OMPI_MCA_btl, I_MPI_*, UCX_*, SLURM_*) stay, and [env]
 * brings back any name. Under the name torchrun nothing is taken out: torchrun passes them on, and
 * scripts written for it may read them. PET_* are passed on always, as torchrun does. */
#ifndef AGENT_WORKER_ENV_H
#define AGENT_WORKER_ENV_H

#include "agent/base/job_spec.h"
#include "rendezvous/rules/rank_table.h"

/* The variables that all workers of one program share, in one round on this node. */
struct worker_env_shared;

struct worker_env_input {
    const struct job_spec *job;
    const struct rank_table *table;
    int group_rank;
    int local_rank;
    const struct program *program; /* of the worker; NULL: the job has one program */
    const char *error_file;        /* "" when there are no log files */
    int segment_fd, listen_fd;     /* -1: none */
    const char *master_addr;       /* for this node; NULL: the table's */
    /* "NAME=value", from features; NULL: none. Those for all workers of the round win over the
     * inherited ones; those of this worker have the same names for all of them. */
    char *const *variables, *const *own;
    /* NULL, or where the part that the workers of one program have in common is kept from one
     * worker to the next: points to NULL before the first; to be freed when the round is over, or
     * this process's environment changes. */
    struct worker_env_shared **shared;
};

/* The worker's whole environment. malloc'ed, with copies of all it holds; free with
 * worker_env_free(). -EINVAL when CUDA_VISIBLE_DEVICES has too few entries for
 * --virtual_local_rank. */
int worker_env_new(char ***out, const struct worker_env_input *in, struct err *e);
void worker_env_shared_free(struct worker_env_shared *s); /* NULL is allowed */

/* argv with ${local_rank} filled in and --local-rank=N put in where the job asks for it. malloc'ed,
 * borrows the job's strings; free with worker_env_free(). Under the name torchrun $local_rank and
 * $$ count too, as in Python's string.Template. */
char **worker_argv_new(const struct job_spec *job, int local_rank);

void worker_env_free(char **env); /* NULL is allowed */

#endif
