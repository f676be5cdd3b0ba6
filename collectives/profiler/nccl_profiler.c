/* nccl_profiler.c: libdlaunch_nccl.so, a profiler plug-in that dlaunch gives NCCL with --hang_after
 * and --slow_ranks. It writes the operations of a worker into its line of the launcher's segment
 * (core/segment.h), as libdlcoll does, so that a program that uses NCCL need not be changed.
 *
 * An operation is recorded when it is enqueued, has begun when the first channel of its kernel
 * runs, and has ended when the last one has stopped. Versions 1 and 2 of the interface do not say
 * when kernels run: there an operation lasts until it is enqueued and its network operations are
 * done.
 *
 * A program may enqueue far more than are recorded. An operation that has begun keeps its record
 * until it has ended; one that is enqueued may lose it, and gets another when it begins.
 *
 * NCCL's symmetric kernels (2.27) and copy engines (2.28) run without a word. From version 5 on it
 * tells of the call, and the operation that belongs to it is missing: such calls are counted, so
 * that their rank is not taken for an idle one.
 *
 * A plug-in that the user has named is loaded, too, and gets every event that it asks for. It then
 * sees its own handles and contexts. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/bootstrap/job_segment.h"
#include "collectives/profiler/nccl_events.h"
#include "collectives/profiler/nccl_profiler_abi.h"
#include "core/clock.h"
#include "core/segment_op.h"

#define ENV_NEXT    "DLAUNCH_NCCL_PROFILER"
#define LEGACY_MASK 0xff

/* A communicator. */
struct context {
    int version;
    uint64_t comm;
    char name[20];
    _Atomic uint64_t messages, collectives; /* NCCL counts each function by itself */
    uint32_t hidden;                        /* calls of which no operation is known */
    const struct nccl_profiler *next;       /* the user's; NULL: none */
    int next_version, next_mask;
    void *next_context;
};

static struct segment_local *g_line; /* NULL: nothing is recorded */
static void *g_next;                 /* the user's library */

/* For what follows and for all events; the user's plug-in is called without it. */
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *g_owner[SEGMENT_OPS]; /* of each record */
static unsigned g_running;                   /* operations whose kernels run */
static bool g_counted; /* the time since the first of these began counts as waiting */

/* ----------------------------------------------------------------------------------- at the start
 */

static struct segment_local *find_line(void)
{
    static struct job_segment segment; /* mapped for the life of the process */
    struct err e;
    const char *fd = getenv(SEGMENT_ENV_FD), *rank = getenv("RANK");
    if (!fd || !rank || job_segment_init(&segment, atoi(fd), &e) < 0)
        return NULL;
    return atoi(rank) >= 0 && atoi(rank) < segment.header.world_size
               ? job_segment_local(&segment, atoi(rank))
               : NULL;
}

static void load(void)
{
    char name[256];
    const char *next = getenv(ENV_NEXT);
    g_line = find_line();
    if (!next || !*next)
        return;
    g_next = dlopen(next, RTLD_NOW | RTLD_LOCAL);
    snprintf(name, sizeof(name), "libnccl-profiler-%s.so", next);
    g_next = g_next ? g_next : dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!g_next)
        fprintf(stderr, "libdlaunch_nccl: NCCL_PROFILER_PLUGIN=%s cannot be loaded: %s\n", next,
                dlerror());
}

/* An event of versions 5 and 6 is one of version 4 for who does not look at the rest. */
static const struct nccl_profiler *find_next(int version, int *found)
{
    char name[32];
    static _Atomic bool told;
    int oldest = version > 4 ? 4 : version;
    for (*found = version; g_next && *found >= oldest; --*found) {
        snprintf(name, sizeof(name), "ncclProfiler_v%d", *found);
        const struct nccl_profiler *p = dlsym(g_next, name);
        if (p)
            return p;
    }
    if (g_next && !atomic_exchange(&told, true))
        fprintf(stderr,
                "libdlaunch_nccl: NCCL_PROFILER_PLUGIN=%s is not used: this NCCL asks for version "
                "%d of the interface, and it has none from %d on\n",
                getenv(ENV_NEXT), version, oldest);
    return NULL;
}

/* libdlcoll records its operations on GPUs itself. */
static bool records(void)
{
    return g_line && atomic_load_explicit(&g_line->settings, memory_order_relaxed) == 0;
}

static bool has_kernels(const struct context *c)
{
    return c->version >= 3;
}

/* The events that say when an operation runs. */
static int parts_of(const struct context *c)
{
    return has_kernels(c) ? NCCL_EVENT_KERNEL_CH : NCCL_EVENT_PROXY_OP;
}

static int own_mask(const struct context *c)
{
    return NCCL_EVENT_COLL | NCCL_EVENT_P2P | parts_of(c) |
           (c->version >= 5 ? NCCL_EVENT_COLL_API : 0);
}

static struct context *begin_context(int version, uint64_t comm, const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    struct context *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->version = version;
    c->comm = comm;
    snprintf(c->name, sizeof(c->name), "%.19s", name ? name : "");
    c->next = find_next(version, &c->next_version);
    return c;
}

static int end_init(struct context *c, int code, void **context, int *mask)
{
    if (code != 0)
        c->next = NULL;
    if (c->next_version < 5)
        c->next_mask &= LEGACY_MASK;
    *context = c;
    *mask = (records() ? own_mask(c) : 0) | (c->next ? c->next_mask : 0);
    return 0;
}

static int init_old(int version, void **context, int *mask)
{
    struct context *c = begin_context(version, 0, NULL);
    if (!c)
        return 1;
    int code = c->next ? c->next->init.v1(&c->next_context, &c->next_mask) : 0;
    return end_init(c, code, context, mask);
}

static int init_new(int version, void **context, int *mask, const char *name, uint64_t comm,
                    const int sizes[3], void *log)
{
    struct context *c = begin_context(version, comm, name);
    int code = 0;
    if (!c)
        return 1;
    if (c->next && c->next_version >= 5)
        code = c->next->init.v5(&c->next_context, comm, &c->next_mask, name, sizes[0], sizes[1],
                                sizes[2], log);
    else if (c->next)
        code = c->next->init.v4(&c->next_context, &c->next_mask, name, comm, sizes[0], sizes[1],
                                sizes[2], log);
    return end_init(c, code, context, mask);
}

static int init_v1(void **context, int *mask)
{
    return init_old(1, context, mask);
}

static int init_v2(void **context, int *mask)
{
    return init_old(2, context, mask);
}

static int init_v3(void **context, int *mask)
{
    return init_old(3, context, mask);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t comm, int nnodes,
                   int nranks, int rank, void *log)
{
    return init_new(4, context, mask, name, comm, (int[]){nnodes, nranks, rank}, log);
}

static int init_v5(void **context, uint64_t comm, int *mask, const char *name, int nnodes,
                   int nranks, int rank, void *log)
{
    return init_new(5, context, mask, name, comm, (int[]){nnodes, nranks, rank}, log);
}

static int init_v6(void **context, uint64_t comm, int *mask, const char *name, int nnodes,
                   int nranks, int rank, void *log)
{
    return init_new(6, context, mask, name, comm, (int[]){nnodes, nranks, rank}, log);
}

/* ------------------------------------------------------------------------------------ recording */

/* An operation, whatever the version. */
struct described {
    uint64_t comm, seq;
    const char *comm_name, *func, *dtype;
    size_t count;
    int peer; /* root or peer; -1: none */
};

static const char *func_of_number(uint8_t n)
{
    static const char *const names[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                        "AllReduce", "SendRecv", "Send",      "Recv"};
    return n < sizeof(names) / sizeof(*names) ? names[n] : "";
}

static const char *dtype_of_number(uint8_t n)
{
    static const char *const names[] = {"i8",  "u8",  "i32", "u32",  "i64",     "u64",
                                        "f16", "f32", "f64", "bf16", "f8_e4m3", "f8_e5m2"};
    return n < sizeof(names) / sizeof(*names) ? names[n] : "";
}

/* "ncclFloat32" -> "f32". */
static const char *dtype_of_name(const char *name)
{
    static const char *const names[][2] = {
        {"ncclInt8", "i8"},       {"ncclUint8", "u8"},    {"ncclInt32", "i32"},
        {"ncclUint32", "u32"},    {"ncclInt64", "i64"},   {"ncclUint64", "u64"},
        {"ncclFloat16", "f16"},   {"ncclHalf", "f16"},    {"ncclFloat32", "f32"},
        {"ncclFloat", "f32"},     {"ncclFloat64", "f64"}, {"ncclDouble", "f64"},
        {"ncclBfloat16", "bf16"},
    };
    for (size_t i = 0; name && i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(name, names[i][0]) == 0)
            return names[i][1];
    }
    return name ? name : "";
}

static struct described describe_coll(struct context *c, const struct nccl_event *d)
{
    uint64_t seq = atomic_fetch_add_explicit(&c->collectives, 1, memory_order_relaxed);
    if (c->version == 1) {
        const struct nccl_coll_v1 *v = &d->coll_v1;
        return (struct described){
            v->comm,  seq,    v->comm_name, func_of_number(v->func), dtype_of_number(v->dtype),
            v->count, v->root};
    }
    if (c->version < 4) {
        const struct nccl_coll_v2 *v = &d->coll_v2;
        return (struct described){v->comm,  seq,    v->comm_name, v->func, dtype_of_name(v->dtype),
                                  v->count, v->root};
    }
    const struct nccl_coll_v4 *v = &d->coll_v4;
    return (struct described){c->comm,  seq,    c->name, v->func, dtype_of_name(v->dtype),
                              v->count, v->root};
}

static struct described describe_p2p(struct context *c, const struct nccl_event *d)
{
    uint64_t seq = atomic_fetch_add_explicit(&c->messages, 1, memory_order_relaxed);
    if (c->version == 1) {
        const struct nccl_p2p_v1 *v = &d->p2p_v1;
        return (struct described){
            v->comm,  seq,    v->comm_name, func_of_number(v->func), dtype_of_number(v->dtype),
            v->count, v->peer};
    }
    if (c->version < 4) {
        const struct nccl_p2p_v2 *v = &d->p2p_v2;
        return (struct described){v->comm,  seq,    v->comm_name, v->func, dtype_of_name(v->dtype),
                                  v->count, v->peer};
    }
    const struct nccl_p2p_v4 *v = &d->p2p_v4;
    return (struct described){c->comm,  seq,    c->name, v->func, dtype_of_name(v->dtype),
                              v->count, v->peer};
}

/* "AllReduce" -> "all_reduce". */
static void put_name(char out[20], const char *func)
{
    size_t n = 0;
    memset(out, 0, 20);
    for (const char *p = func ? func : ""; *p && n < 18; p++) {
        if (*p >= 'A' && *p <= 'Z' && n)
            out[n++] = '_';
        out[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    }
}

static bool has_root(const char *op)
{
    static const char *const rooted[] = {"broadcast", "reduce", "send",
                                         "recv",      "gather", "scatter"};
    for (size_t i = 0; i < sizeof(rooted) / sizeof(*rooted); i++) {
        if (strcmp(op, rooted[i]) == 0)
            return true;
    }
    return false;
}

static struct segment_op *record_of(uint64_t number)
{
    return &g_line->ops[number % SEGMENT_OPS];
}

static bool is_under_way(const struct segment_op *op)
{
    return atomic_load_explicit(&op->number, memory_order_relaxed) &&
           op->device != SEGMENT_OP_ENQUEUED &&
           !atomic_load_explicit(&op->end_ns, memory_order_relaxed);
}

/* Into the oldest record whose operation is not under way; into none if all are. */
static void record_op(struct event *e, enum segment_op_device device)
{
    for (int tries = 0; tries < SEGMENT_OPS; tries++) {
        uint64_t number = atomic_fetch_add_explicit(&g_line->nops, 1, memory_order_relaxed) + 1;
        struct segment_op *op = record_of(number);
        uint64_t before = atomic_load_explicit(&op->number, memory_order_relaxed);
        if (is_under_way(op) || before > number || !segment_op_take(op, before))
            continue;
        op->group = e->what.group;
        op->seq = e->what.seq;
        op->count = op->bytes = e->what.count;
        op->peer = e->what.peer;
        op->device = device;
        op->start_ns = mono_ns();
        memcpy(op->op, e->what.op, sizeof(op->op));
        memcpy(op->dtype, e->what.dtype, sizeof(op->dtype));
        memset(op->reduction, 0, sizeof(op->reduction));
        memset(op->group_name, 0, sizeof(op->group_name));
        snprintf(op->group_name, sizeof(op->group_name), "%s", e->what.group_name);
        atomic_store_explicit(&op->result, 0, memory_order_relaxed);
        atomic_store_explicit(&op->end_ns, 0, memory_order_relaxed);
        segment_op_give_back(op, number);
        g_owner[number % SEGMENT_OPS] = e->context;
        e->number = number;
        return;
    }
}

static void begin_op(struct event *e, const struct described *d)
{
    e->what.group = d->comm;
    e->what.seq = d->seq + 1;
    e->what.count = d->count;
    put_name(e->what.op, d->func);
    e->what.peer = has_root(e->what.op) ? d->peer : -1;
    snprintf(e->what.dtype, sizeof(e->what.dtype), "%.7s", d->dtype);
    snprintf(e->what.group_name, sizeof(e->what.group_name), "%.19s",
             d->comm_name ? d->comm_name : "");
    record_op(e, has_kernels(e->context) ? SEGMENT_OP_ENQUEUED : SEGMENT_OP_DEVICE);
}

/* The rank waits once, however many of its operations run. */
static void count_running(bool begun)
{
    int64_t now = (int64_t)mono_ns();
    if (begun ? g_running++ > 0 : --g_running > 0)
        return;
    if (begun)
        g_counted = atomic_load_explicit(&g_line->watched, memory_order_relaxed);
    if (g_counted)
        atomic_fetch_add_explicit(&g_line->waited_ns, begun ? -now : now, memory_order_relaxed);
}

/* begun: it runs now; else it has ended. */
static void note_op(struct event *e, bool begun)
{
    bool kernels = has_kernels(e->context);
    if (kernels)
        count_running(begun);
    if (!e->number || !segment_op_take(record_of(e->number), e->number)) {
        if (begun && kernels)
            record_op(e, SEGMENT_OP_BEGUN); /* later ones have taken it */
        return;
    }
    struct segment_op *op = record_of(e->number);
    uint64_t now = mono_ns();
    if (begun && kernels) {
        op->device = SEGMENT_OP_BEGUN;
        op->start_ns = now;
    }
    atomic_store_explicit(&op->end_ns, begun ? 0 : now, memory_order_release);
    segment_op_give_back(op, e->number);
}

/* --------------------------------------------------------------------------------------- events
 */

static void *next_handle(void *handle)
{
    pthread_mutex_lock(&g_lock);
    const struct event *e = event_find(handle);
    void *next = e ? e->next : NULL;
    pthread_mutex_unlock(&g_lock);
    return next;
}

/* The user's plug-in sees the event with its own handles as parents. */
static void tell_next(struct context *c, struct event *e, struct nccl_event *d, bool foreign)
{
    void *parent = d->parent;
    void **group = c->version < 5               ? NULL
                   : e->type == NCCL_EVENT_COLL ? &d->coll_v4.parent_group
                   : e->type == NCCL_EVENT_P2P  ? &d->p2p_v4.parent_group
                                                : NULL;
    void *its_group = group ? *group : NULL;
    d->parent = foreign ? NULL : next_handle(parent);
    if (group)
        *group = next_handle(its_group);
    if (group && c->next_version < 5)
        d->parent = *group;
    if (c->next->start(c->next_context, &e->next, d) != 0)
        e->next = NULL;
    d->parent = parent;
    if (group)
        *group = its_group;
}

static bool is_op(const struct event *e)
{
    return e->type == NCCL_EVENT_COLL || e->type == NCCL_EVENT_P2P;
}

static bool is_part(const struct event *e)
{
    return e->type == (uint64_t)parts_of(e->context);
}

/* Calls of which no operation is known: `n` more, or fewer. */
static void count_hidden(struct context *c, int n)
{
    c->hidden += (uint32_t)n;
    atomic_fetch_add_explicit(&g_line->hidden, (uint32_t)n, memory_order_relaxed);
}

/* An operation is recorded, or one of its parts begins, and so it does with the first one. */
static void begin_own(struct event *e, const struct nccl_event *d)
{
    struct context *c = e->context;
    struct event *op = is_part(e) ? event_find(d->parent) : NULL;
    if (e->type == NCCL_EVENT_COLL_API) {
        e->own = !d->coll_api.captured; /* it runs when its graph does */
        count_hidden(c, e->own);
    } else if (is_op(e)) {
        struct event *call = event_find(d->parent);
        struct described what =
            e->type == NCCL_EVENT_COLL ? describe_coll(c, d) : describe_p2p(c, d);
        if (call && call->type == NCCL_EVENT_COLL_API && call->own) {
            call->own = false; /* what it has called is known */
            if (call->stopped)
                event_keep(call, false);
            count_hidden(c, -1);
        }
        e->own = true;
        begin_op(e, &what);
    } else if (op && op->own) {
        event_resume(op);
        op->begun = true;
        e->op = op;
        if (op->running++ == 0)
            note_op(op, true);
    }
}

/* Nothing of the operation is under way. */
static void rest_op(struct event *op)
{
    bool kernels = has_kernels(op->context);
    event_keep(op, op->own && kernels && !op->begun);
}

static void end_event(struct event *e)
{
    struct event *op = e->op;
    bool kernels = has_kernels(e->context);
    e->stopped = true;
    if (!is_op(e)) {
        event_keep(e, e->own); /* a call whose operation may come much later */
    } else if (e->running == 0) {
        if (e->own && !kernels)
            note_op(e, false);
        rest_op(e);
    }
    if (op && --op->running == 0 && (kernels || op->stopped)) {
        note_op(op, false);
        if (op->stopped)
            rest_op(op);
    }
}

static int profiler_start(void *context, void **handle, struct nccl_event *d)
{
    struct context *c = context;
    uint64_t type = c->version < 5 ? *(const uint8_t *)&d->type : d->type;
    bool own = records() && (type & (uint64_t)own_mask(c));
    bool told = c->next && (type & (uint64_t)c->next_mask);
    bool foreign = type == NCCL_EVENT_PROXY_OP && d->proxy_pid != getpid();
    *handle = NULL;
    if (!own && !told)
        return 0;
    pthread_mutex_lock(&g_lock);
    struct event *e = event_new();
    if (e) {
        e->context = c;
        e->type = type;
        *handle = event_handle(e);
        if (own && !foreign)
            begin_own(e, d);
    }
    pthread_mutex_unlock(&g_lock);
    if (e && told)
        tell_next(c, e, d, foreign);
    return 0;
}

static int profiler_stop(void *handle)
{
    pthread_mutex_lock(&g_lock);
    struct event *e = event_find(handle);
    struct context *c = e && !e->stopped ? e->context : NULL;
    void *next = c ? e->next : NULL;
    if (c)
        end_event(e);
    pthread_mutex_unlock(&g_lock);
    if (next)
        c->next->stop(next);
    return 0;
}

static int profiler_record(void *handle, int state, void *args)
{
    pthread_mutex_lock(&g_lock);
    const struct event *e = event_find(handle);
    const struct context *c = e ? e->context : NULL;
    void *next = e ? e->next : NULL;
    pthread_mutex_unlock(&g_lock);
    return next ? c->next->record(next, state, args) : 0;
}

/* Its communicator has ended, perhaps by an abort: nothing of it is under way any more. */
static void end_context(struct context *c)
{
    pthread_mutex_lock(&g_lock);
    for (int i = 0; g_line && i < SEGMENT_OPS; i++) {
        struct segment_op *op = &g_line->ops[i];
        uint64_t number = atomic_load_explicit(&op->number, memory_order_relaxed);
        if (g_owner[i] != c || op->end_ns || !segment_op_take(op, number))
            continue;
        atomic_store_explicit(&op->end_ns, mono_ns(), memory_order_release);
        segment_op_give_back(op, number);
    }
    if (g_line)
        count_hidden(c, -(int)c->hidden);
    pthread_mutex_unlock(&g_lock);
}

static int profiler_finalize(void *context)
{
    struct context *c = context;
    if (c && c->next)
        c->next->finalize(c->next_context);
    if (c)
        end_context(c);
    /* A thread of NCCL may still stop an event: its context stays. */
    return 0;
}

#define EXPORTED __attribute__((visibility("default")))
#define PROFILER(version, member)                                   \
    extern const struct nccl_profiler ncclProfiler_v##version;      \
    EXPORTED const struct nccl_profiler ncclProfiler_v##version = { \
        .name = "dlaunch",                                          \
        .init = {.member = init_v##version},                        \
        .start = profiler_start,                                    \
        .stop = profiler_stop,                                      \
        .record = profiler_record,                                  \
        .finalize = profiler_finalize,                              \
    }

PROFILER(1, v1);
PROFILER(2, v1);
PROFILER(3, v1);
PROFILER(4, v4);
PROFILER(5, v5);
PROFILER(6, v5);
