#include "agent/mpi/mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/mpi/pmi.h"
#include "agent/mpi/pmix.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"

struct mpi {
    struct node *n;
    struct pmi *pmi; /* one of the two */
    struct pmix *pmix;
    struct uvx_watch *watch; /* of what pmix has */
    bool alone;              /* the round has one node */
    int nranks, base_rank, world_size;
};

static void on_pmix_ready(void *arg)
{
    pmix_ready(arg);
}

static void take_gathered(struct mpi *m, struct rd values, int nnodes)
{
    if (m->pmi)
        pmi_gathered(m->pmi, values, nnodes);
    else
        pmix_gathered(m->pmix, values, nnodes);
}

/* On one node its own value is the only one. */
static void on_fence(void *arg, const void *value, size_t len)
{
    struct mpi *m = arg;
    if (!m->alone && m->n->state == NODE_RUNNING)
        m->n->calls->gather(m->n, value, len);
    if (!m->alone)
        return;
    struct buf b = BUF_INIT;
    buf_u32(&b, (uint32_t)len);
    buf_put(&b, value, len);
    take_gathered(m, rd_init(b.data, b.len), 1);
    buf_fini(&b);
}

static void on_abort(void *arg, int local_rank, int exit_code, const char *how)
{
    struct mpi *m = arg;
    m->n->calls->abort(m->n, local_rank, exit_code, how);
}

static bool on_modex(void *arg, int rank, uint64_t id)
{
    struct mpi *m = arg;
    const struct rdzv_request r = {.kind = REQUEST_MODEX, .id = id, .modex.rank = rank};
    return !m->alone && m->n->calls->request(m->n, &r);
}

static void on_modex_found(void *arg, const struct node_id *to, uint64_t id, const void *data,
                           size_t len)
{
    struct mpi *m = arg;
    const struct rdzv_answer answer = {.to = *to,
                                       .kind = REQUEST_MODEX,
                                       .id = id,
                                       .data = data,
                                       .len = len <= RDZV_ANSWER_MAX ? len : 0};
    m->n->calls->answer(m->n, &answer);
}

static void mpi_free(void *state)
{
    struct mpi *m = state;
    pmi_free(m->pmi);
    pmix_free(m->pmix);
    free(m);
}

static int mpi_open(void **state, struct node *n, struct err *e)
{
    const struct job_spec *job = n->job;
    if (job->rdzv.mpi == MPI_NONE || job->nproc == 0)
        return 0;
    struct mpi *m = xcalloc(1, sizeof(*m));
    const struct mpi_events own = {m, on_fence, on_abort, on_modex, on_modex_found};
    m->n = n;
    *state = m;
    if (job->rdzv.mpi == MPI_PMI)
        m->pmi = pmi_new(n->scope, job->rdzv.run_id, job->programs, &own);
    else if (pmix_new(&m->pmix, job->rdzv.run_id, job->programs, &own, e) < 0)
        return e->code;
    if (m->pmix && !(m->watch = uvx_watch_new(n->scope, pmix_fd(m->pmix), on_pmix_ready, m->pmix)))
        return err_sys(e, errno, "the connections of MPI ranks");
    if (m->watch)
        uvx_watch_for(m->watch, UV_READABLE);
    log_verbose("the ranks find each other by %s (%s)", m->pmi ? "PMI" : "PMIx", job->mpi_reason);
    return 0;
}

static void mpi_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct mpi *m = state;
    if (m->pmi)
        pmi_end(m->pmi);
    uvx_watch_free(m->watch);
    m->watch = NULL;
    on_closed(arg);
}

static int mpi_begin(void *state, struct err *e)
{
    struct mpi *m = state;
    const struct rank_table *table = m->n->table;
    const struct rank_table_node *own = &table->nodes[m->n->group_rank];
    m->alone = table->nnodes == 1;
    m->nranks = own->nproc;
    m->base_rank = own->base_rank;
    m->world_size = table->world_size;
    if (m->pmix)
        return pmix_begin(m->pmix, table, m->n->group_rank, m->nranks > m->n->cpus, e);
    pmi_begin(m->pmi, table, m->n->group_rank);
    return 0;
}

static void add_pmi(const struct mpi *m, int local_rank, int fd, struct variables *env)
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
    for (size_t i = 0; i < ARRAY_LEN(vars); i++)
        variables_add(env, xasprintf("%s=%d", vars[i].name, vars[i].value));
}

static int mpi_worker_starts(void *state, const struct worker *w, struct worker_extras *x,
                             struct err *e)
{
    struct mpi *m = state;
    char **env = NULL;
    if (m->pmix) {
        int r = pmix_env(m->pmix, w->local_rank, &env, e);
        for (char **v = env; v && *v; v++)
            variables_add(&x->env, *v);
        free(env);
        return r;
    }
    int fd = pmi_connect(m->pmi, w->local_rank, e);
    if (fd < 0)
        return e->code;
    x->fds[x->nfds++] = fd;
    x->session = true; /* MPICH spins while it waits, and mpiexec.hydra makes sessions, too */
    add_pmi(m, w->local_rank, fd, &x->env);
    return 0;
}

/* The worker may have called MPI_Abort: that is taken now. */
static void mpi_worker_exits(void *state, const struct worker *w)
{
    struct mpi *m = state;
    if (m->pmi)
        pmi_look(m->pmi, w->local_rank);
    else
        pmix_ready(m->pmix);
}

static const char *mpi_worker_fault(void *state, const struct worker *w)
{
    struct mpi *m = state;
    return m->pmi ? pmi_exit_fault(m->pmi, w->local_rank) : pmix_exit_fault(m->pmix, w->local_rank);
}

static void mpi_gathered(void *state, struct rd values, int nnodes)
{
    struct mpi *m = state;
    if (m->n->state == NODE_RUNNING)
        take_gathered(m, values, nnodes);
}

static bool mpi_request(void *state, const struct rdzv_request *r)
{
    struct mpi *m = state;
    if (r->kind != REQUEST_MODEX)
        return false;
    if (m->n->state == NODE_RUNNING && m->pmix)
        pmix_modex(m->pmix, r->modex.rank, r->id, &r->from);
    return true;
}

static bool mpi_answer(void *state, const struct rdzv_answer *a)
{
    struct mpi *m = state;
    if (a->kind != REQUEST_MODEX)
        return false;
    if (m->pmix)
        pmix_modex_found(m->pmix, a->id, a->data, a->len);
    return true;
}

const struct feature mpi_feature = {
    .name = "MPI",
    .open = mpi_open,
    .begin = mpi_begin,
    .worker_starts = mpi_worker_starts,
    .worker_exits = mpi_worker_exits,
    .worker_fault = mpi_worker_fault,
    .request = mpi_request,
    .answer = mpi_answer,
    .gathered = mpi_gathered,
    .close = mpi_close,
    .free = mpi_free,
};
