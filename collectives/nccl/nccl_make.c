/* nccl_make.c: how a communicator gets NCCL's: a unique id, or several, that its ranks share by an
 * operation on host memory; or as a part of its parent's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/coll.h"
#include "collectives/nccl/nccl.h"
#include "collectives/nccl/nccl_comm.h"
#include "core/log.h"

enum { RANKS_PER_ROOT = 256 }; /* beyond, several unique ids are used where NCCL can */

struct coll_call nccl_internal_call(dlcoll_comm *c, enum call_kind kind, void *data, size_t len,
                                    uint64_t deadline_ns)
{
    return (struct coll_call){.id = {.kind = (uint8_t)kind,
                                     .dtype = DLCOLL_U8,
                                     .settings = c->job->conf.settings,
                                     .count = len},
                              .kind = kind,
                              .comm = c,
                              .ranks = {.size = c->size, .me = c->rank},
                              .send = kind == CALL_ALL_GATHER ? (char *)data + (size_t)c->rank * len
                                                              : data,
                              .recv = data,
                              .count = len,
                              .dtype = dtype_get(DLCOLL_U8),
                              .elem = 1,
                              .deadline_ns = deadline_ns,
                              .culprit = -1};
}

/* ------------------------------------------------------------------------------------------ ids */

/* How many unique ids, and whose: rank i * size / roots. */
static int roots_of(const struct nccl_api *api, const dlcoll_comm *c)
{
    int n = c->job->conf.nccl_roots ?: (c->size + RANKS_PER_ROOT - 1) / RANKS_PER_ROOT;
    return !api->CommInitRankScalable ? 1 : n > c->size ? c->size : n;
}

/* The ids, on every rank; malloc'ed. */
static struct nccl_id *share_ids(dlcoll_comm *c, const struct nccl_api *api, int roots,
                                 uint64_t deadline_ns, int *code)
{
    struct nccl_id *ids = calloc((size_t)c->size, sizeof(*ids));
    if (!ids) {
        *code = comm_error(c, DLCOLL_ENOMEM, "nccl: no memory");
        return NULL;
    }
    int rc = NCCL_OK;
    for (int i = 0; i < roots; i++) {
        if ((int64_t)i * c->size / roots == c->rank)
            rc = api->GetUniqueId(&ids[roots == 1 ? 0 : c->rank]);
    }
    bool one = roots == 1;
    if (rc != NCCL_OK)
        memset(ids, 0, (size_t)c->size * sizeof(*ids));
    struct coll_call call = nccl_internal_call(c, one ? CALL_BROADCAST : CALL_ALL_GATHER, ids,
                                               NCCL_ID_BYTES, deadline_ns);
    call.id.kind = CALL_NCCL_INIT; /* what a rank is told that is in another operation */
    *code = coll_perform(c, &call, NULL);
    for (int i = 0; *code == 0 && !one && i < roots; i++)
        ids[i] = ids[(int64_t)i * c->size / roots];
    static const struct nccl_id none;
    bool all = true; /* every rank sees the same, and none goes on without the others */
    for (int i = 0; i < roots; i++)
        all = all && memcmp(&ids[i], &none, sizeof(none)) != 0;
    if (*code == 0 && !all)
        *code = comm_error(c, DLCOLL_EBACKEND, "nccl: there is no unique id: %s",
                           rc ? api->GetErrorString(rc) : "its root has none");
    if (*code == 0)
        return ids;
    free(ids);
    return NULL;
}

int dlcoll_nccl_unique_id(dlcoll_comm *comm, void *id)
{
    const struct nccl_api *api;
    struct err e = ERR_INIT;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if (!id)
        code = comm_error(comm, DLCOLL_EINVAL, "nccl_unique_id: id is NULL");
    else if (nccl_api_get(&api, &e) < 0)
        code = comm_error(comm, DLCOLL_ENOSUP, "nccl_unique_id: %s", e.msg);
    if (code == 0) {
        struct nccl_id *ids = share_ids(comm, api, 1, comm_deadline(comm->timeout_ms), &code);
        if (ids)
            memcpy(id, ids, NCCL_ID_BYTES);
        free(ids);
    }
    return comm_leave(comm, code);
}

/* -------------------------------------------------------------------------------------- making */

static struct nccl_config config(void)
{
    return (struct nccl_config){.size = sizeof(struct nccl_config),
                                .magic = NCCL_CONFIG_MAGIC,
                                .version = NCCL_CONFIG_VERSION,
                                .blocking = 0,
                                .cga_cluster_size = NCCL_CONFIG_UNDEF,
                                .min_ctas = NCCL_CONFIG_UNDEF,
                                .max_ctas = NCCL_CONFIG_UNDEF,
                                .split_share = NCCL_CONFIG_UNDEF};
}

void nccl_free_parts(struct nccl *n)
{
    if (n->event)
        n->cuda->EventDestroy(n->event);
    if (n->aside)
        n->cuda->EventDestroy(n->aside);
    if (n->stream)
        n->cuda->StreamDestroy(n->stream);
    n->cuda->Free(n->scratch);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* Without NCCL's communicator. NULL, and e->code is -ENOTSUP, -ENOMEM or -EREMOTEIO. */
static struct nccl *new_parts(dlcoll_comm *c, struct err *e)
{
    const struct nccl_api *api;
    const struct cuda_api *cuda;
    if (cuda_api_get(&cuda, e) < 0 || nccl_api_get(&api, e) < 0) {
        err_wrap(e, "device memory needs NCCL");
        e->code = -ENOTSUP;
        return NULL;
    }
    struct nccl *n = calloc(1, sizeof(*n));
    if (!n) {
        err_set(e, -ENOMEM, "nccl: no memory");
        return NULL;
    }
    *n = (struct nccl){.api = api, .cuda = cuda, .comm = c};
    pthread_mutex_init(&n->lock, NULL);
    int rc = cuda->GetDevice(&n->device);
    if (rc == CUDA_OK)
        rc = cuda->StreamCreate(&n->stream);
    if (rc == CUDA_OK)
        rc = cuda->EventCreateWithFlags(&n->event, CUDA_NO_TIMING);
    if (rc == CUDA_OK)
        rc = cuda->EventCreateWithFlags(&n->aside, CUDA_NO_TIMING);
    if (rc != CUDA_OK) {
        err_set(e, -EREMOTEIO, "CUDA on rank %d (nccl_init): %s", c->world->rank,
                cuda->GetErrorString(rc));
        nccl_free_parts(n);
        return NULL;
    }
    return n;
}

/* NCCL's communicator is being made: waits for it. Whoever cannot go on ends the communicator, so
 * that the others need not wait for their deadline. */
static struct nccl *adopt(struct nccl *n, int rc, uint64_t deadline_ns, int *code)
{
    struct coll_call call = nccl_internal_call(n->comm, CALL_NCCL_INIT, NULL, 0, deadline_ns);
    call.seq = n->comm->seq;
    int status = nccl_settle(n, rc, deadline_ns, &call);
    if (status == 0 && nccl_start_watching(n))
        status = err_set(&call.err, -EREMOTEIO, "nccl: no thread can be started");
    if (status == 0) {
        *code = 0;
        log_verbose("rank %d: NCCL on device %d", n->comm->rank, n->device);
        return n->comm->nccl = n;
    }
    *code = nccl_fail(n, status, &call);
    nccl_free_parts(n);
    return NULL;
}

struct nccl *nccl_get(dlcoll_comm *c, uint64_t deadline_ns, int *code)
{
    *code = 0;
    if (c->nccl)
        return c->nccl;
    struct coll_call call = nccl_internal_call(c, CALL_NCCL_INIT, NULL, 0, deadline_ns);
    call.seq = c->seq + 1;
    struct nccl *n = new_parts(c, &call.err);
    if (!n) {
        *code = call.err.code == -ENOTSUP  ? comm_error(c, DLCOLL_ENOSUP, "%s", call.err.msg)
                : call.err.code == -ENOMEM ? comm_error(c, DLCOLL_ENOMEM, "%s", call.err.msg)
                                           : comm_fail(c, -EREMOTEIO, &call); /* others wait */
        return NULL;
    }
    int roots = roots_of(n->api, c);
    struct nccl_id *ids = share_ids(c, n->api, roots, deadline_ns, code);
    if (!ids) {
        nccl_free_parts(n);
        return NULL;
    }
    struct nccl_config conf = config();
    int rc = roots == 1
                 ? n->api->CommInitRankConfig(&n->nccl, c->size, ids[0], c->rank, &conf)
                 : n->api->CommInitRankScalable(&n->nccl, c->size, c->rank, roots, ids, &conf);
    free(ids);
    return adopt(n, rc, deadline_ns, code);
}

int nccl_split(dlcoll_comm *parent, dlcoll_comm *group, int color, int key)
{
    struct nccl *p = parent->nccl, *n = NULL;
    int code = 0;
    if (!p || !p->api->CommSplit) /* groups then make their own with the first operation */
        return 0;
    struct coll_call call =
        nccl_internal_call(parent, CALL_COMM_SPLIT, NULL, 0, comm_deadline(parent->timeout_ms));
    call.seq = parent->seq;
    if (group && !(n = new_parts(group, &call.err))) /* the others are in it already */
        return nccl_fail(p, -EREMOTEIO, &call);
    struct nccl_config conf = config();
    nccl_comm_t made = NULL;
    pthread_mutex_lock(&p->lock);
    int rc = p->nccl
                 ? p->api->CommSplit(p->nccl, group ? color : NCCL_SPLIT_NONE, key, &made, &conf)
                 : NCCL_OK;
    bool alive = p->nccl != NULL;
    pthread_mutex_unlock(&p->lock);
    int status = alive ? nccl_settle(p, rc, call.deadline_ns, &call) : -ECANCELED;
    if (status < 0) {
        code = nccl_fail(p, status, &call);
        if (made) /* half: with its parent it has come to a standstill */
            p->api->CommAbort(made);
        if (n)
            nccl_free_parts(n);
        return code;
    }
    if (!n)
        return 0;
    n->nccl = made;
    return adopt(n, NCCL_IN_PROGRESS, call.deadline_ns, &code)
               ? 0
               : comm_error(parent, code, "comm_split: %s", group->error.text);
}
