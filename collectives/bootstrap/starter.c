#include "collectives/bootstrap/starter.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hostlist.h"
#include "core/parse.h"
#include "core/slurm.h"

enum { RANKS_MAX = 1 << 24 };

/* -1: not set, or not a number. */
static long env_number(const char *name)
{
    const char *v = getenv(name);
    long n;
    return v && *v && parse_int(v, 0, LONG_MAX, &n, NULL) == 0 ? n : -1;
}

static bool is_set(const char *name)
{
    const char *v = getenv(name);
    return v && *v;
}

/* ----------------------------------------------------------------------------- starters refused */

/* The inner one first: mpiexec may itself have been started by srun or flux. */
static const struct {
    const char *name, *rank, *size; /* size NULL: its variables do not tell */
    bool by_slurm;                  /* srun sets these, too (--mpi) */
} g_starters[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", false},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", false},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", false},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", true},
    {"PALS", "PALS_RANKID", NULL, false},
    {"PMIx", "PMIX_RANK", NULL, true},
};

/* Whether a task of a Slurm step has these values because srun has set them. */
static bool is_sruns(size_t i, const struct starter *slurm)
{
    long size = g_starters[i].size ? env_number(g_starters[i].size) : slurm->size;
    return slurm->size > 0 && g_starters[i].by_slurm && !is_set("MPI_LOCALRANKID") &&
           env_number(g_starters[i].rank) == slurm->rank && size == slurm->size;
}

/* -EINVAL: another starter than `slurm` (size 0: none) has started several. 1: it has started this
 * one alone. 0: there is none. */
static int refuse_others(const struct starter *slurm, struct err *e)
{
    for (size_t i = 0; i < sizeof(g_starters) / sizeof(g_starters[0]); i++) {
        const char *rank = g_starters[i].rank, *size = g_starters[i].size;
        if (env_number(rank) < 0 || is_sruns(i, slurm))
            continue;
        long n = size ? env_number(size) : -1;
        if (n == 1)
            return 1;
        char of[32] = "";
        if (n > 0)
            snprintf(of, sizeof(of), " of %ld", n);
        return err_set(e, -EINVAL,
                       "%s has started this process as rank %ld%s (%s), which libdlcoll cannot "
                       "join: start with 'dlaunch --nproc_per_node N', or set RANK, WORLD_SIZE, "
                       "MASTER_ADDR and MASTER_PORT (RANK=0 WORLD_SIZE=1 to run alone)",
                       g_starters[i].name, env_number(rank), of, rank);
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------- Slurm */

static bool keep_first(void *arg, const char *name)
{
    snprintf(arg, HOST_MAX, "%s", name);
    return false;
}

/* A task of a step of the user's. Under a terminal srun keeps task 0 alone: a shell, in which
 * programs are started by hand. */
static bool in_slurm_step(void)
{
    long step = env_number("SLURM_STEP_ID");
    return env_number("SLURM_JOB_ID") >= 0 && step >= 0 && step < SLURM_STEP_SPECIAL &&
           env_number("SLURM_PROCID") >= 0 && !is_set("SLURM_PTY_PORT");
}

static int read_slurm(struct starter *s, struct err *e)
{
    long tasks = env_number("SLURM_STEP_NUM_TASKS"), nodes = env_number("SLURM_STEP_NUM_NODES");
    long rank = env_number("SLURM_PROCID"), local = env_number("SLURM_LOCALID");
    long job = env_number("SLURM_JOB_ID"), step = env_number("SLURM_STEP_ID");
    long restart = env_number("SLURM_RESTART_COUNT");
    const char *list = getenv("SLURM_STEP_NODELIST"), *cluster = getenv("SLURM_CLUSTER_NAME");
    size_t count;
    if (tasks < 0)
        tasks = env_number("SLURM_NTASKS");
    if (tasks < 1 || tasks > RANKS_MAX || rank >= tasks)
        return err_set(e, -EINVAL,
                       "Slurm step %ld.%ld: SLURM_PROCID is %ld, SLURM_STEP_NUM_TASKS %ld: set "
                       "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                       job, step, rank, tasks);
    s->rank = (int)rank;
    s->size = (int)tasks;
    s->local_rank = local < 0 || local > rank ? 0 : (int)local;
    s->port = slurm_port(job, step);
    snprintf(s->id, sizeof(s->id), "slurm-%.40s-%ld.%ld.%ld", cluster ? cluster : "", job, step,
             restart < 0 ? 0 : restart);
    if (tasks == 1)
        return 0;
    if (nodes == 1) /* whose name need not resolve */
        snprintf(s->head, sizeof(s->head), "127.0.0.1");
    else if (!list || !*list)
        return err_set(e, -EINVAL,
                       "Slurm step %ld.%ld has no SLURM_STEP_NODELIST: set RANK, WORLD_SIZE, "
                       "MASTER_ADDR and MASTER_PORT",
                       job, step);
    else if (hostlist_walk(list, keep_first, s->head, &count, e) < 0)
        return err_wrap(e, "SLURM_STEP_NODELIST");
    return 0;
}

int starter_find(struct starter *s, struct err *e)
{
    *s = (struct starter){.size = 0};
    int r = in_slurm_step() ? read_slurm(s, e) : 0;
    if (r == 0)
        r = refuse_others(s, e);
    if (r == 1 || s->size == 0)
        s->size = 1;
    return r < 0 ? r : 0;
}
