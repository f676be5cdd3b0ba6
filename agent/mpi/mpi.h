/* mpi.h: what the ranks of an MPI program get from their launcher, in place of mpiexec: the
 * interface by which they find each other (pmi.h, pmix.h). For a program that is not an MPI program
 * there is no such object, and nothing is done. */
#ifndef AGENT_MPI_MPI_H
#define AGENT_MPI_MPI_H

#include <uv.h>

#include "agent/base/job_spec.h"
#include "agent/mpi/mpi_events.h"
#include "core/uvx.h"

struct mpi;

/* NULL unless the job is an MPI program's. The scope gets the handle. */
int mpi_open(struct mpi **out, uv_loop_t *loop, struct uvx_scope *scope, const struct job_spec *job,
             const struct mpi_events *events, struct err *e);
/* After the scope has been closed. NULL is allowed. */
void mpi_free(struct mpi *m);

/* All other functions do nothing for NULL. */

/* A round begins; no worker of the one before is alive. cpus: how many this node may use. */
int mpi_begin(struct mpi *m, const struct rank_table *table, int group_rank, int cpus,
              struct err *e);

/* The parts of a worker that mpi_worker() makes. */
struct mpi_worker {
    int fd;     /* to be handed down under its number, then closed; -1: none */
    char **env; /* "NAME=value"; of malloc, to be freed by mpi_worker_fini(). The names are the
                   same for every worker of the round */
    bool spins; /* waits for other ranks without yielding the CPU */
};
#define MPI_WORKER_NONE \
    {                   \
        -1, NULL, false \
    }
int mpi_worker(struct mpi *m, int local_rank, struct mpi_worker *out, struct err *e);
void mpi_worker_fini(struct mpi_worker *w);

/* Answers on_fence. */
void mpi_gathered(struct mpi *m, struct rd values, int nnodes);

/* See on_modex. */
void mpi_modex(struct mpi *m, int rank, uint64_t id, const struct node_id *from);
void mpi_modex_found(struct mpi *m, uint64_t id, const void *data, size_t len);

/* To be called when the process of this worker has begun to end, before that is judged: on_abort
 * comes now if the worker has called MPI_Abort. */
void mpi_look(struct mpi *m, int local_rank);

/* Why the exit of this worker with status 0 is a failure; NULL: it is not. */
const char *mpi_exit_fault(struct mpi *m, int local_rank);

#endif
