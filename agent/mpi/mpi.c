#include "agent/mpi/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/mpi/pmi.h"
#include "agent/mpi/pmix.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

struct mpi {
    uv_poll_t poll;
    struct mpi_events events;
    struct pmi *pmi; /* one of the two */
    struct pmix *pmix;
    bool alone; /* the round has one node */
    int nranks, base_rank, world_size;
};

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct mpi *m = container_of(poll, struct mpi, poll);
    (void)status, (void)events;
    if (m->pmi)
        pmi_ready(m->pmi);
    else
        pmix_ready(m->pmix);
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

static bool on_modex(void *arg, int rank, uint64_t id)
{
    struct mpi *m = arg;
    return !m->alone && m->events.on_modex(m->events.arg, rank, id);
}

static void on_modex_found(void *arg, const struct node_id *to, uint64_t id, const void *data,
                           size_t len)
{
    struct mpi *m = arg;
    m->events.on_modex_found(m->events.arg, to, id, data, len);
}

int mpi_open(struct mpi **out, uv_loop_t *loop, struct uvx_scope *scope, const struct job_spec *job,
             const struct mpi_events *events, struct err *e)
{
    if (job->rdzv.mpi == MPI_NONE || job->nproc == 0)
        return 0;
    struct mpi *m = xcalloc(1, sizeof(*m));
    const struct mpi_events own = {m, on_fence, on_abort, on_modex, on_modex_found};
    m->events = *events;
    int r = job->rdzv.mpi == MPI_PMI ? pmi_new(&m->pmi, job->rdzv.run_id, job->programs, &own, e)
                                     : pmix_new(&m->pmix, job->rdzv.run_id, job->programs, &own, e);
    if (r == 0) {
        r = uv_poll_init(loop, &m->poll, m->pmi ? pmi_fd(m->pmi) : pmix_fd(m->pmix));
        if (r < 0)
            uvx_err(e, r, "the connections of MPI ranks");
    }
    if (r < 0) {
        mpi_free(m);
        return r;
    }
    log_verbose("the ranks find each other by %s (%s)", m->pmi ? "PMI" : "PMIx", job->mpi_reason);
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
    pmix_free(m->pmix);
    free(m);
}

int mpi_begin(struct mpi *m, const struct rank_table *table, int group_rank, int cpus,
              struct err *e)
{
    if (!m)
        return 0;
    m->alone = table->nnodes == 1;
    m->nranks = table->nodes[group_rank].nproc;
    m->base_rank = table->nodes[group_rank].base_rank;
    m->world_size = table->world_size;
    if (m->pmix)
        return pmix_begin(m->pmix, table, group_rank, m->nranks > cpus, e);
    pmi_begin(m->pmi, table, group_rank);
    return 0;
}

static char **env_of_pmi(const struct mpi *m, int local_rank, int fd)
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
    if (m->pmix)
        return pmix_env(m->pmix, local_rank, &out->env, e);
    out->fd = pmi_connect(m->pmi, local_rank, e);
    if (out->fd < 0)
        return e->code;
    out->spins = true; /* MPICH does, and mpiexec.hydra gives each rank a session, too */
    out->env = env_of_pmi(m, local_rank, out->fd);
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
    if (m && m->pmi)
        pmi_gathered(m->pmi, values, nnodes);
    else if (m)
        pmix_gathered(m->pmix, values, nnodes);
}

void mpi_modex(struct mpi *m, int rank, uint64_t id, const struct node_id *from)
{
    if (m && m->pmix)
        pmix_modex(m->pmix, rank, id, from);
}

void mpi_modex_found(struct mpi *m, uint64_t id, const void *data, size_t len)
{
    if (m && m->pmix)
        pmix_modex_found(m->pmix, id, data, len);
}

void mpi_look(struct mpi *m, int local_rank)
{
    if (m && m->pmi)
        pmi_look(m->pmi, local_rank);
    else if (m)
        pmix_ready(m->pmix);
}

const char *mpi_exit_fault(struct mpi *m, int local_rank)
{
    if (!m)
        return NULL;
    return m->pmi ? pmi_exit_fault(m->pmi, local_rank) : pmix_exit_fault(m->pmix, local_rank);
}
