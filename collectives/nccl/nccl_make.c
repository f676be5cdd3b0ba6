/* nccl_make.c: creates a communicator's NCCL: from a unique id, or several, that its ranks share by
 * an operation on host memory; or by a split of its parent's. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/comm/failure.h"
#include "collectives/nccl/nccl.h"
#include "collectives/nccl/nccl_comm.h"
#include "collectives/perform/perform.h"
#include "core/log.h"

enum { RANKS_PER_ROOT = 256 }; /* beyond, several unique ids are used where NCCL can */

struct coll_call nccl_internal_call(dlcoll_comm *c, enum call_kind kind, void *data, size_t len,
                                    uint64_t deadline_ns, struct coll_failure *failure)
{
    coll_failure_init(failure);
    return (struct coll_call){.sig = {.kind = (uint8_t)kind,
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
                              .failure = failure};
}

/* ------------------------------------------------------------------------------------------ ids */

/* Returns how many unique ids there are. The i-th is made by rank i * size / roots. */
static int roots_of(const struct nccl_api *api, const dlcoll_comm *c)
{
    int n = c->job->conf.nccl_roots ?: (c->size + RANKS_PER_ROOT - 1) / RANKS_PER_ROOT;
    return !api->CommInitRankScalable ? 1 : n > c->size ? c->size : n;
}

/* A rank sends these facts to all others before NCCL's communicator is created. All ranks draw the
 * same conclusions from them. */
struct peer {
    struct nccl_id id; /* of a root; zero: not a root, or NCCL has made no id */
    char uuid[CUDA_UUID_BYTES];
    char bus[16];  /* "0000:5e:00.0", which instances of MIG share */
    uint64_t host; /* NCCL_HOSTID or the host's name, hashed */
    int32_t version, capability;
};

static uint64_t hash_text(const char *text)
{
    uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return h;
}

static uint64_t host_hash(int rank)
{
    const char *id = getenv("NCCL_HOSTID"), *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    char name[256] = "";
    gethostname(name, sizeof(name) - 1);
    uint64_t h = hash_text(id && *id ? id : name);
    return several && strcmp(several, "1") == 0 ? h + (uint64_t)rank : h;
}

/* Returns 0, or the public code if NCCL cannot make one communicator of these ranks. */
static int check_peers(dlcoll_comm *c, const struct peer *p, int roots)
{
    static const struct nccl_id none;
    for (int i = 0; i < roots; i++) {
        int root = (int)((int64_t)i * c->size / roots);
        if (memcmp(&p[root].id, &none, sizeof(none)) == 0)
            return comm_error(c, DLCOLL_EBACKEND,
                              "nccl: there is no unique id: NCCL on rank %d makes none",
                              c->world_ranks[root]);
    }
    for (int i = 1; i < c->size; i++) {
        if (p[i].version / 100 != p[0].version / 100)
            return comm_error(c, DLCOLL_EBACKEND,
                              "nccl: rank %d has NCCL %d and rank %d has NCCL %d: they must be the "
                              "same",
                              c->world_ranks[0], p[0].version, c->world_ranks[i], p[i].version);
    }
    for (int i = 0; i < c->size; i++) {
        for (int k = i + 1; k < c->size; k++) {
            if (p[i].host == p[k].host && memcmp(p[i].uuid, p[k].uuid, sizeof(p[i].uuid)) == 0)
                return comm_error(
                    c, DLCOLL_EINVAL,
                    "nccl: ranks %d and %d use the same GPU: each must set one of its "
                    "own (cudaSetDevice(LOCAL_RANK)) before its first operation",
                    c->world_ranks[i], c->world_ranks[k]);
            if (p[i].host == p[k].host && *p[i].bus && strcmp(p[i].bus, p[k].bus) == 0)
                return comm_error(c, DLCOLL_ENOSUP,
                                  "nccl: ranks %d and %d use two MIG instances of the same GPU "
                                  "(%s), which NCCL does not connect",
                                  c->world_ranks[i], c->world_ranks[k], p[i].bus);
        }
    }
    return 0;
}

/* Returns every rank's facts, malloc'ed. NULL: *code is the public code. */
static struct peer *share_peers(struct nccl *n, int roots, uint64_t deadline_ns, int *code)
{
    dlcoll_comm *c = n->comm;
    struct peer *all = calloc((size_t)c->size, sizeof(*all)), *own = &all[c->rank];
    if (!all) {
        *code = comm_error(c, DLCOLL_ENOMEM, "nccl: no memory");
        return NULL;
    }
    for (int i = 0; i < roots; i++) {
        if ((int64_t)i * c->size / roots == c->rank && n->api->GetUniqueId(&own->id) != NCCL_OK)
            memset(&own->id, 0, sizeof(own->id));
    }
    own->host = host_hash(c->rank);
    own->version = n->api->version;
    own->capability = n->capability;
    if (!n->cuda->DeviceGetUuid || n->cuda->DeviceGetUuid(own->uuid, n->device) != CUDA_OK)
        memcpy(own->uuid, &(int[]){c->rank, -1}, 2 * sizeof(int)); /* unknown: not compared */
    if (!n->cuda->DeviceGetPCIBusId ||
        n->cuda->DeviceGetPCIBusId(own->bus, sizeof(own->bus), n->device) != CUDA_OK)
        own->bus[0] = '\0';
    struct coll_failure failure;
    struct coll_call call =
        nccl_internal_call(c, CALL_ALL_GATHER, all, sizeof(*all), deadline_ns, &failure);
    call.sig.kind = CALL_NCCL_INIT; /* what a rank is told that is in another operation */
    *code = perform_call(c, &call, NULL);
    if (*code == 0)
        *code = check_peers(c, all, roots);
    if (*code == 0)
        return all;
    free(all);
    return NULL;
}

/* Distributes one id to every rank. Returns the public code. */
static int share_id(dlcoll_comm *c, const struct nccl_api *api, struct nccl_id *id)
{
    static const struct nccl_id none;
    *id = none;
    int rc = c->rank == 0 ? api->GetUniqueId(id) : NCCL_OK;
    if (rc != NCCL_OK)
        *id = none;
    struct coll_failure failure;
    struct coll_call call = nccl_internal_call(c, CALL_BROADCAST, id, NCCL_ID_BYTES,
                                               comm_deadline(c->timeout_ms), &failure);
    call.sig.kind = CALL_NCCL_INIT;
    int code = perform_call(c, &call, NULL);
    if (code == 0 && memcmp(id, &none, sizeof(none)) == 0)
        code = comm_error(c, DLCOLL_EBACKEND, "nccl: there is no unique id: %s",
                          rc ? api->GetErrorString(rc) : "NCCL on rank 0 makes none");
    return code;
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
    struct nccl_id shared;
    if (code == 0 && (code = share_id(comm, api, &shared)) == 0)
        memcpy(id, &shared, sizeof(shared));
    return comm_leave(comm, code);
}

/* ------------------------------------------------------------------------------------ the parts */

static int or_undefined(int value)
{
    return value ? value : NCCL_CONFIG_UNDEF;
}

static struct nccl_config config(const struct nccl *n, const char *group_name)
{
    const dlcoll_device_opts *o = &n->opts;
    bool newer = n->api->version >= NCCL_WITH_NAME;
    const char *name = o->name ? o->name : group_name && *group_name ? group_name : NULL;
    return (struct nccl_config){.size = newer ? sizeof(struct nccl_config)
                                              : offsetof(struct nccl_config, traffic_class),
                                .magic = NCCL_CONFIG_MAGIC,
                                .version = newer ? NCCL_WITH_NAME : 21800,
                                .blocking = n->blocking,
                                .cga_cluster_size = or_undefined(o->cga_cluster_size),
                                .min_ctas = or_undefined(o->min_ctas),
                                .max_ctas = or_undefined(o->max_ctas),
                                .split_share = o->split_share ? 1 : NCCL_CONFIG_UNDEF,
                                .traffic_class = or_undefined(o->traffic_class),
                                .name = name,
                                .collnet = NCCL_CONFIG_UNDEF,
                                .cta_policy = NCCL_CONFIG_UNDEF,
                                .shrink_share = NCCL_CONFIG_UNDEF,
                                .nvls_ctas = NCCL_CONFIG_UNDEF};
}

/* NCCL's non-blocking mode starts a thread per operation from 2.23.4 on, but its calls never block.
 * NCCL_COMM_BLOCKING overrides what NCCL is asked for, so it is followed. */
static bool wants_blocking(const dlcoll_device_opts *o)
{
    const char *ours = getenv("DLCOLL_NCCL_BLOCKING"), *theirs = getenv("NCCL_COMM_BLOCKING");
    if (theirs && *theirs)
        return strcmp(theirs, "0") != 0;
    if (o->blocking)
        return o->blocking == DLCOLL_NCCL_IS_BLOCKING;
    return ours && strcmp(ours, "1") == 0;
}

void nccl_free_parts(struct nccl *n)
{
    struct nccl_place place = {0};
    if (n->ctx)
        place = nccl_enter(n);
    if (n->event)
        n->cuda->EventDestroy(n->event);
    if (n->before)
        n->cuda->EventDestroy(n->before);
    if (n->aside)
        n->cuda->EventDestroy(n->aside);
    nccl_clock_close(n);
    if (n->stream)
        n->cuda->StreamDestroy(n->stream);
    if (n->scratch)
        n->cuda->MemFree(n->scratch);
    if (n->word)
        n->cuda->MemFree(n->word);
    for (struct nccl_scratch *s = n->captured, *next; s; s = next) {
        next = s->next;
        n->cuda->MemFree(s->p);
        free(s);
    }
    if (n->ctx)
        nccl_leave(n, place);
    if (n->retained)
        n->cuda->DevicePrimaryCtxRelease(n->device);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* Finds the context of the buffer's device; without a buffer, that of this thread, or that of the
 * stream. Returns the driver's code. */
static int find_context(struct nccl *n, const struct nccl_wish *wish)
{
    const struct cuda_api *cuda = n->cuda;
    int device = -1, named = CUDA_POINTER_DEVICE, current = -1;
    void *out = &device;
    bool handle = (uintptr_t)wish->stream > 2; /* 1 and 2 stand for default streams */
    int rc = cuda->CtxGetCurrent(&n->ctx);
    if (rc == CUDA_OK && wish->buffer)
        rc = cuda->PointerGetAttributes(1, &named, &out, (cuda_ptr)(uintptr_t)wish->buffer);
    if (rc == CUDA_INVALID_CONTEXT)
        rc = CUDA_OK;
    if (rc == CUDA_OK && n->ctx)
        rc = cuda->CtxGetDevice(&current);
    if (rc == CUDA_OK && wish->buffer && device >= 0 && device != current) {
        rc = cuda->DevicePrimaryCtxRetain(&n->ctx, device);
        n->retained = rc == CUDA_OK;
        n->device = device;
        return rc;
    }
    if (rc == CUDA_OK && !n->ctx && handle)
        rc = cuda->StreamGetCtx(wish->stream, &n->ctx);
    if (rc == CUDA_OK && !n->ctx)
        rc = CUDA_INVALID_CONTEXT;
    return rc;
}

/* Returns the driver's code. */
static int look_at_device(struct nccl *n)
{
    int major = 0, minor = 0, rc = n->cuda->CtxGetDevice(&n->device);
    if (rc == CUDA_OK)
        rc = n->cuda->DeviceGetAttribute(&major, CUDA_CAPABILITY_MAJOR, n->device);
    if (rc == CUDA_OK)
        rc = n->cuda->DeviceGetAttribute(&minor, CUDA_CAPABILITY_MINOR, n->device);
    n->capability = 10 * major + minor;
    return rc;
}

static int make_streams(struct nccl *n)
{
    const struct cuda_api *cuda = n->cuda;
    int low = 0, high = 0, rc = cuda->CtxGetStreamPriorityRange(&low, &high);
    if (rc == CUDA_OK)
        rc = cuda->StreamCreateWithPriority(&n->stream, CUDA_NON_BLOCKING, high);
    n->times = n->comm->job->conf.device_times && rc == CUDA_OK && nccl_clock_open(n);
    if (rc == CUDA_OK)
        rc = cuda->EventCreate(&n->event, nccl_event_flags(n));
    if (rc == CUDA_OK)
        rc = cuda->EventCreate(&n->before, CUDA_NO_TIMING);
    if (rc == CUDA_OK)
        rc = cuda->EventCreate(&n->aside, CUDA_NO_TIMING);
    return rc == CUDA_OK ? cuda->MemAlloc(&n->word, 256) : rc;
}

/* Makes everything but NCCL's communicator. NULL: e->code is -ENOTSUP, -ENOMEM or -EREMOTEIO. */
static struct nccl *new_parts(dlcoll_comm *c, const struct nccl_wish *wish, struct err *e)
{
    static const dlcoll_device_opts defaults = DLCOLL_DEVICE_OPTS_INIT;
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
    *n = (struct nccl){
        .api = api, .cuda = cuda, .comm = c, .opts = wish->opts ? *wish->opts : defaults};
    n->works_end = &n->works;
    n->blocking = wants_blocking(&n->opts);
    pthread_mutex_init(&n->lock, NULL);
    int rc = find_context(n, wish);
    if (rc == CUDA_OK) {
        struct nccl_place place = nccl_enter(n);
        rc = look_at_device(n);
        rc = rc == CUDA_OK ? make_streams(n) : rc;
        nccl_leave(n, place);
    }
    if (rc != CUDA_OK) {
        err_set(e, -EREMOTEIO, "CUDA on rank %d (nccl_init): %s%s", c->world->rank,
                cuda_strerror(cuda, rc),
                n->ctx ? "" : ": this thread has no device: call cudaSetDevice() first");
        nccl_free_parts(n);
        return NULL;
    }
    nccl_advise(n);
    return n;
}

/* ------------------------------------------------------------------------------------- creation */

/* Waits for NCCL's communicator, which is being created. A rank that cannot continue fails the
 * communicator, so that the others need not wait for their deadline. */
static struct nccl *adopt(struct nccl *n, int status, struct coll_call *call, int *code)
{
    if (status == 0 && !n->blocking)
        status = nccl_settle(n, NCCL_IN_PROGRESS, call->deadline_ns, call);
    if (status == 0 && nccl_start_watching(n))
        status = err_set(&call->failure->err, -EREMOTEIO, "nccl: a thread cannot be started");
    if (status == 0) {
        *code = 0;
        log_verbose("rank %d: NCCL on device %d, %s mode", n->comm->rank, n->device,
                    n->blocking ? "blocking" : "non-blocking");
        n->comm->nccl = n;
        return n;
    }
    *code = nccl_fail(n, status, call);
    n->comm->nccl = n;
    nccl_free(n->comm, false);
    return NULL;
}

/* Starts to create NCCL's communicator of `peers`. Returns 0 or a code of coll_call.h. */
static int create(struct nccl *n, const struct peer *peers, int roots, struct coll_call *call)
{
    dlcoll_comm *c = n->comm;
    struct nccl_helper what = {.job = NCCL_INIT,
                               .api = n->api,
                               .cuda = n->cuda,
                               .ctx = n->ctx,
                               .conf = config(n, c->name),
                               .ids = calloc((size_t)roots, sizeof(struct nccl_id)),
                               .nids = roots,
                               .size = c->size,
                               .rank = c->rank};
    if (!what.ids)
        return err_set(&call->failure->err, -EREMOTEIO, "nccl: no memory");
    for (int i = 0; i < roots; i++)
        what.ids[i] = peers[(int64_t)i * c->size / roots].id;
    if (n->blocking) {
        struct nccl_helper *h = nccl_helper_start(&what);
        if (!h)
            free(what.ids);
        return nccl_settle_helper(n, h, &n->nccl, call->deadline_ns, call);
    }
    int rc =
        roots == 1
            ? n->api->CommInitRankConfig(&n->nccl, c->size, what.ids[0], c->rank, &what.conf)
            : n->api->CommInitRankScalable(&n->nccl, c->size, c->rank, roots, what.ids, &what.conf);
    free(what.ids);
    return rc == NCCL_OK || rc == NCCL_IN_PROGRESS ? 0
                                                   : nccl_settle(n, rc, call->deadline_ns, call);
}

static bool is_capturing(void *stream)
{
    const struct cuda_api *cuda;
    struct err e = ERR_INIT;
    int capturing = 0;
    return stream && cuda_api_if_loaded(&cuda, &e) == 0 && cuda &&
           cuda->StreamIsCapturing(stream, &capturing) == CUDA_OK && capturing;
}

struct nccl *nccl_get(dlcoll_comm *c, const struct nccl_wish *wish, uint64_t deadline_ns, int *code)
{
    *code = 0;
    if (c->nccl)
        return c->nccl;
    if (is_capturing(wish->stream)) {
        *code = comm_error(c, DLCOLL_ESTATE,
                           "the first operation on device memory cannot be captured into a graph: "
                           "call dlcoll_device_init() before the capture");
        return NULL;
    }
    struct coll_failure failure;
    struct coll_call call = nccl_internal_call(c, CALL_NCCL_INIT, NULL, 0, deadline_ns, &failure);
    const struct err *e = &failure.err;
    call.seq = c->seq + 1;
    struct nccl *n = new_parts(c, wish, &failure.err);
    if (!n) {
        *code = e->code == -ENOTSUP  ? comm_error(c, DLCOLL_ENOSUP, "%s", e->msg)
                : e->code == -ENOMEM ? comm_error(c, DLCOLL_ENOMEM, "%s", e->msg)
                                     : comm_fail(c, -EREMOTEIO, &call); /* others wait */
        return NULL;
    }
    int roots = roots_of(n->api, c);
    struct peer *peers = share_peers(n, roots, deadline_ns, code);
    if (!peers) {
        nccl_free_parts(n);
        return NULL;
    }
    for (int i = 0; i < c->size; i++)
        n->capability = peers[i].capability < n->capability ? peers[i].capability : n->capability;
    call.seq = c->seq;
    struct nccl_place place = nccl_enter(n);
    int status = create(n, peers, roots, &call);
    nccl_leave(n, place);
    free(peers);
    return adopt(n, status, &call, code);
}

int dlcoll_device_init(dlcoll_comm *comm, const dlcoll_device_opts *opts)
{
    dlcoll_device_opts o = DLCOLL_DEVICE_OPTS_INIT;
    int code = comm_enter(comm);
    if (code < 0)
        return code;
    if ((code = comm_take_opts(&o, sizeof(o), opts)) < 0)
        code = comm_error(comm, code, "device_init: the options are not this library's");
    else if (o.blocking < 0 || o.blocking > DLCOLL_NCCL_IS_NON_BLOCKING)
        code = comm_error(comm, DLCOLL_EINVAL, "device_init: blocking is %d, not 0, 1 or 2",
                          o.blocking);
    else
        nccl_get(comm, &(struct nccl_wish){.opts = &o}, comm_deadline(comm->timeout_ms), &code);
    return comm_leave(comm, code);
}

/* --------------------------------------------------------------------------------------- splits */

/* Splits p's communicator. Of a rank without a group, *made becomes NULL. Returns 0 or a code of
 * coll_call.h. */
static int split(struct nccl *p, const dlcoll_comm *group, int color, int key, nccl_comm_t *made,
                 struct coll_call *call)
{
    struct nccl_helper what = {.job = NCCL_SPLIT,
                               .conf = config(p, group ? group->name : NULL),
                               .color = group ? color : NCCL_SPLIT_NONE,
                               .key = key};
    int status = nccl_make(p, &what, made, call);
    if (status == 0 && group && !*made)
        status = err_set(&call->failure->err, -EREMOTEIO,
                         "NCCL on rank %d (comm_split): it has made no communicator",
                         p->comm->world->rank);
    return status;
}

int nccl_split(dlcoll_comm *parent, dlcoll_comm *group, int color, int key)
{
    struct nccl *p = parent->nccl, *n = NULL;
    int code = 0;
    if (!p || !p->api->CommSplit) /* groups then make their own with the first operation */
        return 0;
    struct coll_failure failure;
    struct coll_call call = nccl_internal_call(parent, CALL_COMM_SPLIT, NULL, 0,
                                               comm_deadline(parent->timeout_ms), &failure);
    call.seq = parent->seq;
    struct nccl_place place = nccl_enter(p);
    struct nccl_wish wish = {.opts = &p->opts};
    nccl_comm_t made = NULL;
    int status = 0;
    if (group && !(n = new_parts(group, &wish, &failure.err))) /* the others are in it already */
        status = -EREMOTEIO;
    else
        status = split(p, group, color, key, &made, &call);
    nccl_leave(p, place);
    if (status < 0) {
        code = nccl_fail(p, status, &call);
        if (n)
            nccl_free_parts(n);
        return code;
    }
    if (!n)
        return 0;
    n->nccl = made;
    n->blocking = p->blocking;
    n->capability = p->capability;
    struct coll_call init =
        nccl_internal_call(group, CALL_NCCL_INIT, NULL, 0, call.deadline_ns, &failure);
    init.seq = group->seq;
    return adopt(n, 0, &init, &code)
               ? 0
               : comm_error(parent, code, "comm_split: %s", group->error.text);
}
