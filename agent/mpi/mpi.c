#include "agent/mpi/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/mpi/pmi.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

struct mpi {
    uv_poll_t poll;
    struct mpi_events events;
    struct pmi *pmi;
    bool alone; /* the round has one node */
    int nranks, base_rank, world_size;
};

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct mpi *m = container_of(poll, struct mpi, poll);
    (void)status, (void)events;
    pmi_ready(m->pmi);
}

/* On one node its own value is all there is. */
static void on_fence(void *arg, const void *value, size_t len)
{
    struct mpi *m = arg;
    if (!m->alone) {
        m->events.on_fence(m->events.arg, value, len);
        return;
    }
    struct buf b = BUF_INIT;
    buf_u32(&b, (uint32_t)len);
    buf_put(&b, value, len);
    mpi_gathered(m, rd_init(b.data, b.len), 1);
    buf_fini(&b);
}

static void on_abort(void *arg, int local_rank, int exit_code, const char *how)
{
    struct mpi *m = arg;
    m->events.on_abort(m->events.arg, local_rank, exit_code, how);
}

int mpi_open(struct mpi **out, uv_loop_t *loop, struct uvx_scope *scope, const struct job_spec *job,
             const struct mpi_events *events, struct err *e)
{
    if (job->rdzv.mpi == MPI_NONE || job->nproc == 0)
        return 0;
    struct mpi *m = xcalloc(1, sizeof(*m));
    const struct mpi_events own = {m, on_fence, on_abort};
    m->events = *events;
    int r = pmi_new(&m->pmi, job->rdzv.run_id, &own, e);
    if (r == 0) {
        r = uv_poll_init(loop, &m->poll, pmi_fd(m->pmi));
        if (r < 0)
            uvx_err(e, r, "the connections of MPI ranks");
    }
    if (r < 0) {
        mpi_free(m);
        return r;
    }
    log_verbose("the ranks find each other by PMI (%s)", job->mpi_reason);
    uvx_own(scope, &m->poll);
    uv_poll_start(&m->poll, UV_READABLE, on_readable);
    *out = m;
    return 0;
}

void mpi_free(struct mpi *m)
{
    if (!m)
        return;
    pmi_free(m->pmi);
    free(m);
}

int mpi_begin(struct mpi *m, const struct rank_table *table, int group_rank, struct err *e)
{
    (void)e;
    if (!m)
        return 0;
    m->alone = table->nnodes == 1;
    m->nranks = table->nodes[group_rank].nproc;
    m->base_rank = table->nodes[group_rank].base_rank;
    m->world_size = table->world_size;
    pmi_begin(m->pmi, table, group_rank);
    return 0;
}

static char **pmi_env(const struct mpi *m, int local_rank, int fd)
{
    const struct {
        const char *name;
        int value;
    } vars[] = {
        {"PMI_FD", fd},
        {"PMI_RANK", m->base_rank + local_rank},
        {"PMI_SIZE", m->world_size},
        {"MPI_LOCALRANKID", local_rank},
        {"MPI_LOCALNRANKS", m->nranks},
    };
    char **env = xcalloc(ARRAY_LEN(vars) + 1, sizeof(*env));
    for (size_t i = 0; i < ARRAY_LEN(vars); i++)
        env[i] = xasprintf("%s=%d", vars[i].name, vars[i].value);
    return env;
}

int mpi_worker(struct mpi *m, int local_rank, struct mpi_worker *out, struct err *e)
{
    if (!m)
        return 0;
    out->fd = pmi_connect(m->pmi, local_rank, e);
    if (out->fd < 0)
        return e->code;
    out->spins = true; /* MPICH does, and mpiexec.hydra gives each rank a session, too */
    out->env = pmi_env(m, local_rank, out->fd);
    return 0;
}

void mpi_worker_fini(struct mpi_worker *w)
{
    close_fd(&w->fd);
    for (char **v = w->env; v && *v; v++)
        free(*v);
    free(w->env);
    w->env = NULL;
}

void mpi_gathered(struct mpi *m, struct rd values, int nnodes)
{
    if (m)
        pmi_gathered(m->pmi, values, nnodes);
}

void mpi_look(struct mpi *m, int local_rank)
{
    if (m)
        pmi_look(m->pmi, local_rank);
}

const char *mpi_exit_fault(struct mpi *m, int local_rank)
{
    return m ? pmi_exit_fault(m->pmi, local_rank) : NULL;
}
