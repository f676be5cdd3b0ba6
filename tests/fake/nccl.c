/* libnccl.so.2 and libcuda.so.1 in one, on host memory: what is enqueued is carried out, in order,
 * by a thread that every process has, and ranks meet in memory that they share since before they
 * were forked, or in the file that FAKE_NCCL_SHARED names. A copy on a stream that has nothing else
 * to do is made at once, whatever is on others. Device memory is a range of addresses. -DFAKE_OLD:
 * without what later versions added.
 *
 * What a call returns, and when, is as in NCCL's sources; a comment "NCCL:" names version, file and
 * line that the behaviour is taken from. What would crash NCCL is counted in `crashes`. */
#include "tests/fake/nccl.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "collectives/base/error.h"
#include "collectives/nccl/nccl_api.h"
#include "collectives/reduce/reduce.h"

#define API __attribute__((visibility("default")))
enum {
    RANKS = 8,
    COMMS = 48,
    SLOT = 128 * 1024,
    BOX = 16 * 1024,
    ARENA = 64 << 20,
    IN_GROUP = 64,
    MARKS = 4096
};

/* The reductions' errors are not asked for here. */
int error_set_global(int code, const char *fmt, ...)
{
    (void)fmt;
    return code;
}

struct meeting {
    _Atomic int arrived, turn;
};

struct world { /* a communicator, in all its processes */
    _Atomic int size, joined;
    struct meeting tasks, calls; /* of what is carried out; of calls that all ranks make */
    int32_t split[RANKS][3];
    _Atomic bool linked[RANKS][RANKS]; /* the first calls messages to the second one */
    _Atomic uint32_t sent[RANKS][RANKS], got[RANKS][RANKS];
    uint8_t slot[RANKS][SLOT];
    uint8_t box[RANKS][RANKS][BOX];
};

struct region {
    struct fake_nccl state;
    _Atomic int next;
    struct world worlds[COMMS];
};

struct job;

struct comm {
    struct world *w;
    int rank, size;
    bool blocking, connected, finalized;
    _Atomic int polls;    /* questions that are still answered "in progress" */
    _Atomic int state;    /* the answer of ncclCommGetAsyncError */
    struct job *job;      /* what goes on in the background; joined by the next question */
    struct comm *child;   /* that is being split off: an abort reaches it, too */
    struct comm *half_of; /* the parent, of one whose split has failed */
    bool job_is_freed;    /* by ncclCommRevoke, which leaves the pointer behind */
    _Atomic bool aborted, ended, freed;
    _Atomic int inside; /* calls */
    struct comm *older; /* in g_comms */
};

enum kind {
    REDUCE,
    ALL_REDUCE,
    BROADCAST,
    GATHER_ALL,
    SCATTER_REDUCE,
    SEND,
    RECV,
    COPY,
    MARK,
    WAIT, /* for a mark that stands before it in the queue */
};

struct task {
    enum kind kind;
    struct comm *comm;
    cuda_stream stream;
    const void *send;
    void *recv;
    size_t count;
    int type, op, peer;
    struct reduce_info reduce;
    uint64_t mark;
    struct task *next;
};

static struct region *g;
static uint8_t *g_arena;
static size_t g_used;
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_more = PTHREAD_COND_INITIALIZER;
static struct task *g_queue, **g_tail = &g_queue, *g_running;
static bool g_has_thread;
static _Atomic(struct comm *) g_comms; /* all: tasks may still name one that has ended */
static _Atomic int g_pending;
static _Atomic uint64_t g_marks, g_reached;
static _Atomic uint64_t g_mark_ns[MARKS]; /* when each was reached */
/* A capture of this process's own, and its graphs that have not been destroyed. */
static cuda_stream _Atomic g_capturing;
static struct task *g_captured, **g_captured_tail = &g_captured;
static _Atomic int g_graphs;
static _Atomic int g_broken; /* what every call returns once a kernel has failed */
static _Thread_local int g_depth, g_held;
static _Thread_local struct task g_group[IN_GROUP];
static struct {
    bool used;
    dlcoll_op op;
    int type;
} g_ops[64];

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAKE_NCCL_SHARED");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (path && (fd < 0 || ftruncate(fd, sizeof(*g)) < 0))
        abort();
    g = mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_NORESERVE | (path ? 0 : MAP_ANONYMOUS), fd, 0);
    if (path)
        close(fd);
    g_arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    g->state.version = 22809;
    g->state.capability = 90;
    g->state.error_rank = g->state.bad_splitter = -1;
}

/* Planted: FAKE_NCCL_FAULT names what this library does wrong in all of a program's processes. */
static bool has_fault(const char *name)
{
    const char *fault = getenv("FAKE_NCCL_FAULT");
    return fault && strcmp(fault, name) == 0;
}

API struct fake_nccl *fake_nccl_state(void);
API struct fake_nccl *fake_nccl_state(void)
{
    return &g->state;
}

/* --------------------------------------------------------------------------------- carrying out */

static bool wait_turn(const struct comm *c, _Atomic int *word, int value)
{
    while (atomic_load(word) == value) {
        if (atomic_load(&c->aborted))
            return false;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return true;
}

static bool meet_at(struct comm *c, struct meeting *m)
{
    int turn = atomic_load(&m->turn);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == c->size) {
        atomic_store(&m->arrived, 0);
        atomic_fetch_add(&m->turn, 1);
        return true;
    }
    return wait_turn(c, &m->turn, turn);
}

static bool meet(struct comm *c)
{
    return meet_at(c, &c->w->tasks);
}

static size_t bytes_of(const struct task *t)
{
    return t->count * dtype_get(t->type)->size;
}

static void reduce(const struct task *t, size_t from, void *to, size_t count)
{
    struct comm *c = t->comm;
    const void *in[RANKS];
    struct reduce_info r = t->reduce;
    for (int i = 0; i < c->size; i++)
        in[i] = c->w->slot[i] + from;
    r.ranks = c->size;
    reduce_many(&r, to, in, c->size, count);
    if (r.has_post)
        reduce_post(&r, to, to, count);
    if (has_fault("wrong-sum"))
        ((uint8_t *)to)[0] ^= 1;
}

static void carry_out_collective(const struct task *t)
{
    struct comm *c = t->comm;
    size_t len = bytes_of(t), in = t->kind == SCATTER_REDUCE ? len * (size_t)c->size : len;
    if (in > SLOT)
        abort();
    if (t->reduce.has_pre)
        reduce_pre(&t->reduce, c->w->slot[c->rank], t->send, t->count);
    else if (t->kind != BROADCAST || t->peer == c->rank)
        memcpy(c->w->slot[c->rank], t->send, in);
    if (!meet(c))
        return;
    switch (t->kind) {
    case ALL_REDUCE:
        reduce(t, 0, t->recv, t->count);
        break;
    case REDUCE:
        if (t->peer == c->rank)
            reduce(t, 0, t->recv, t->count);
        break;
    case SCATTER_REDUCE:
        reduce(t, len * (size_t)c->rank, t->recv, t->count);
        break;
    case BROADCAST:
        memcpy(t->recv, c->w->slot[t->peer], len);
        break;
    default:
        for (int i = 0; i < c->size; i++)
            memcpy((uint8_t *)t->recv + len * (size_t)i, c->w->slot[i], len);
    }
    meet(c);
}

static uint64_t clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void carry_out(const struct task *t)
{
    struct comm *c = t->comm;
    size_t len = t->kind >= COPY ? t->count : bytes_of(t);
    if (t->kind == MARK) {
        g_mark_ns[t->mark % MARKS] = clock_now();
        atomic_store(&g_reached, t->mark);
    } else if (t->kind == WAIT) {
        return;
    } else if (t->kind == COPY) {
        memcpy(t->recv, t->send, len);
    } else if (atomic_load(&c->aborted)) {
        return;
    } else if (t->kind == SEND || t->kind == RECV) {
        int from = t->kind == SEND ? c->rank : t->peer, to = t->kind == SEND ? t->peer : c->rank;
        if (len > BOX)
            abort();
        _Atomic uint32_t *sent = &c->w->sent[from][to], *got = &c->w->got[from][to];
        while (atomic_load(sent) - atomic_load(got) != (t->kind == RECV)) {
            if (atomic_load(&c->aborted))
                return;
            nanosleep(&(struct timespec){0, 20000}, NULL);
        }
        if (t->kind == SEND)
            memcpy(c->w->box[from][to], t->send, len);
        else
            memcpy(t->recv, c->w->box[from][to], len);
        atomic_fetch_add(t->kind == SEND ? sent : got, 1);
    } else {
        carry_out_collective(t);
    }
}

static void *run(void *arg)
{
    (void)arg;
    for (;;) {
        pthread_mutex_lock(&g_lock);
        while (!g_queue)
            pthread_cond_wait(&g_more, &g_lock);
        struct task *t = g_queue;
        if (!(g_queue = t->next))
            g_tail = &g_queue;
        g_running = t;
        pthread_mutex_unlock(&g_lock);
        while (atomic_load(&g->state.held))
            nanosleep(&(struct timespec){0, 20000}, NULL);
        carry_out(t);
        pthread_mutex_lock(&g_lock);
        g_running = NULL;
        pthread_mutex_unlock(&g_lock);
        free(t);
        atomic_fetch_sub(&g_pending, 1);
    }
    return NULL;
}

static void push(const struct task *t)
{
    struct task *mine = malloc(sizeof(*mine));
    pthread_t thread;
    *mine = *t;
    mine->next = NULL;
    atomic_fetch_add(&g_pending, 1);
    pthread_mutex_lock(&g_lock);
    if (!g_has_thread && pthread_create(&thread, NULL, run, NULL) == 0) {
        pthread_detach(thread);
        g_has_thread = true;
    }
    *g_tail = mine;
    g_tail = &mine->next;
    pthread_cond_signal(&g_more);
    pthread_mutex_unlock(&g_lock);
}

static bool is_captured(cuda_stream s)
{
    return s && (s == atomic_load(&g->state.capture) || s == atomic_load(&g_capturing));
}

/* Into this process's graph; a capture that a test has declared has none. */
static void capture(const struct task *t)
{
    if (t->stream != atomic_load(&g_capturing))
        return;
    struct task *mine = malloc(sizeof(*mine));
    *mine = *t;
    mine->next = NULL;
    *g_captured_tail = mine;
    g_captured_tail = &mine->next;
}

static bool is_idle(cuda_stream stream)
{
    pthread_mutex_lock(&g_lock);
    bool idle = !g_running || g_running->stream != stream;
    for (struct task *t = g_queue; t && idle; t = t->next)
        idle = t->stream != stream;
    pthread_mutex_unlock(&g_lock);
    return idle;
}

static void check_context(void);

/* --------------------------------------------------------------------- what goes on by itself
 *
 * A call on a communicator in non-blocking mode starts a job, whose thread does what waits for
 * other ranks; in blocking mode the caller does it. NCCL: 2.28.9 group.cc:703-747; 2.19.3
 * group.cc:392 starts the thread only where something is to be connected or made, which is nobody's
 * business. */

struct job {
    pthread_t thread;
    struct comm *comm;
    int (*run)(struct job *);
    struct task *tasks;
    int ntasks;
    void **out; /* of what makes something */
    int color, key, size, rank;
    struct nccl_config conf;
    void *p;
};

static void crash(const char *why)
{
    g->state.crashes++;
    fprintf(stderr, "fake NCCL: %s\n", why);
}

static void *job_main(void *arg)
{
    struct job *j = arg;
    int rc = j->run(j);
    atomic_store(&j->comm->polls, g->state.polls);
    atomic_store(&j->comm->state, rc);
    return NULL;
}

static void join_job(struct comm *c)
{
    struct job *j = c->job;
    if (!j)
        return;
    if (c->job_is_freed) {
        crash("a job is joined that ncclCommRevoke has freed");
        return;
    }
    c->job = NULL;
    pthread_join(j->thread, NULL);
    free(j->tasks);
    free(j);
}

/* NCCL: 2.28.9 init.cc:2706: a question about a job that has succeeded joins its thread. */
static int state_of(struct comm *c, bool asked)
{
    int state = atomic_load(&c->state);
    if (state == NCCL_OK && atomic_load(&c->polls) > 0) {
        if (asked)
            atomic_fetch_sub(&c->polls, 1);
        return NCCL_IN_PROGRESS;
    }
    if (state == NCCL_OK)
        join_job(c);
    return state;
}

/* NCCL: 2.28.9 init.cc:373; 2.19.3 init.cc:293: a call before the one before has come to its end is
 * refused; of an aborted one the job is awaited. */
static int ensure_ready(struct comm *c)
{
    if (atomic_load(&c->freed)) {
        crash("a communicator is used after its end");
        return 4;
    }
    if (atomic_load(&c->aborted)) {
        join_job(c);
        return NCCL_OK;
    }
    int state = state_of(c, false);
    return state == NCCL_IN_PROGRESS ? 4 : state;
}

/* The code of the job, or "in progress". */
static int launch(const struct job *what)
{
    struct comm *c = what->comm;
    struct job *j = malloc(sizeof(*j));
    *j = *what;
    if (c->blocking) {
        atomic_fetch_add(&c->inside, 1);
        g->state.callers++;
        for (int ms = g->state.slow_calls; ms > 0; ms--)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        int rc = j->run(j);
        g->state.freed_under += atomic_load(&c->freed);
        g->state.callers--;
        atomic_fetch_sub(&c->inside, 1);
        free(j->tasks);
        free(j);
        return rc;
    }
    c->job = j;
    atomic_store(&c->state, NCCL_IN_PROGRESS);
    if (pthread_create(&j->thread, NULL, job_main, j) != 0)
        abort();
    return NCCL_IN_PROGRESS;
}

#ifndef FAKE_OLD
/* A place that NCCL writes into when the job has come to its end is not to be on the stack of a
 * caller that may give up waiting. */
static void check_place(struct comm *c, const void *place)
{
    pthread_attr_t attr;
    void *stack;
    size_t size;
    if (c->blocking || pthread_getattr_np(pthread_self(), &attr) != 0)
        return;
    pthread_attr_getstack(&attr, &stack, &size);
    pthread_attr_destroy(&attr);
    if ((const char *)place >= (char *)stack && (const char *)place < (char *)stack + size)
        crash("a result would be written onto the caller's stack");
}
#endif

/* The first collective of all connects its ranks, the first message of two connects these: until
 * all have called, the call is in progress, or does not return in blocking mode. NCCL: 2.28.9
 * group.cc:509-600, enqueue.cc ncclPrepareTasks(); messages in all versions, collectives from 2.22
 * on. */
static bool connect_all(struct comm *c, const struct task *list, int n)
{
    for (int i = 0; i < n; i++) {
        if (list[i].kind == SEND || list[i].kind == RECV)
            atomic_store(&c->w->linked[c->rank][list[i].peer], true);
        else if (!c->connected && !(c->connected = meet_at(c, &c->w->calls)))
            return false;
    }
    for (int i = 0; i < n; i++) {
        while ((list[i].kind == SEND || list[i].kind == RECV) &&
               !atomic_load(&c->w->linked[list[i].peer][c->rank])) {
            if (atomic_load(&c->aborted))
                return false;
            nanosleep(&(struct timespec){0, 20000}, NULL);
        }
    }
    return true;
}

/* Sends first: nobody waits for who waits for him. */
static int run_tasks(struct job *j)
{
    if (!connect_all(j->comm, j->tasks, j->ntasks))
        return 3;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < j->ntasks; i++) {
            if ((j->tasks[i].kind == RECV) != pass)
                continue;
            if (is_captured(j->tasks[i].stream))
                capture(&j->tasks[i]);
            else
                push(&j->tasks[i]);
        }
    }
    return NCCL_OK;
}

static int launch_tasks(struct comm *c, const struct task *list, int n)
{
    struct job j = {.comm = c, .run = run_tasks, .ntasks = n};
    j.tasks = malloc((size_t)n * sizeof(*list));
    memcpy(j.tasks, list, (size_t)n * sizeof(*list));
    return launch(&j);
}

/* NCCL: 2.28.9 enqueue.cc:2620: inside a group the operation waits for the group's end, and the
 * call succeeds; else the state is returned. */
static int enqueue(struct task t)
{
    struct comm *c = t.comm;
    int rc = c ? ensure_ready(c) : 4;
    if (rc != NCCL_OK || atomic_load(&c->aborted))
        return rc != NCCL_OK ? rc : 4;
    check_context();
    g->state.captured += is_captured(t.stream);
    if (g_depth) {
        if (g_held == IN_GROUP)
            return 4;
        g_group[g_held++] = t;
        return NCCL_OK;
    }
    return launch_tasks(c, &t, 1);
}

static int reducing(enum kind kind, const void *send, void *recv, size_t n, int type, int op,
                    int root, struct comm *c, cuda_stream st)
{
    struct task t = {.kind = kind,
                     .comm = c,
                     .stream = st,
                     .send = send,
                     .recv = recv,
                     .count = n,
                     .type = type,
                     .peer = root};
    if (op >= 100) { /* made by ncclRedOpCreatePreMulSum */
        if (!g_ops[op - 100].used || g_ops[op - 100].type != type)
            return 4;
        reduce_find(type, g_ops[op - 100].op, &t.reduce);
    } else if (reduce_find(type, op, &t.reduce) < 0 || type > DLCOLL_F8E5M2) {
        return 4;
    }
    return enqueue(t);
}

#define CALL(name) API int nccl##name
#define CUDA(name) API int cu##name

CALL(AllReduce)(const void *s, void *r, size_t n, int type, int op, nccl_comm_t c, cuda_stream st);
CALL(AllReduce)(const void *s, void *r, size_t n, int type, int op, nccl_comm_t c, cuda_stream st)
{
    return reducing(ALL_REDUCE, s, r, n, type, op, 0, c, st);
}

CALL(Reduce)
(const void *s, void *r, size_t n, int type, int op, int root, nccl_comm_t c, cuda_stream st);
CALL(Reduce)
(const void *s, void *r, size_t n, int type, int op, int root, nccl_comm_t c, cuda_stream st)
{
    return reducing(REDUCE, s, r, n, type, op, root, c, st);
}

CALL(ReduceScatter)
(const void *s, void *r, size_t n, int type, int op, nccl_comm_t c, cuda_stream st);
CALL(ReduceScatter)
(const void *s, void *r, size_t n, int type, int op, nccl_comm_t c, cuda_stream st)
{
    return reducing(SCATTER_REDUCE, s, r, n, type, op, 0, c, st);
}

CALL(Broadcast)
(const void *s, void *r, size_t n, int type, int root, nccl_comm_t c, cuda_stream st);
CALL(Broadcast)
(const void *s, void *r, size_t n, int type, int root, nccl_comm_t c, cuda_stream st)
{
    return enqueue((struct task){.kind = BROADCAST,
                                 .comm = c,
                                 .stream = st,
                                 .send = s,
                                 .recv = r,
                                 .count = n,
                                 .type = type,
                                 .peer = root});
}

CALL(AllGather)(const void *s, void *r, size_t n, int type, nccl_comm_t c, cuda_stream st);
CALL(AllGather)(const void *s, void *r, size_t n, int type, nccl_comm_t c, cuda_stream st)
{
    return enqueue((struct task){.kind = GATHER_ALL,
                                 .comm = c,
                                 .stream = st,
                                 .send = s,
                                 .recv = r,
                                 .count = n,
                                 .type = type});
}

CALL(Send)(const void *s, size_t n, int type, int peer, nccl_comm_t c, cuda_stream st);
CALL(Send)(const void *s, size_t n, int type, int peer, nccl_comm_t c, cuda_stream st)
{
    return enqueue((struct task){
        .kind = SEND, .comm = c, .stream = st, .send = s, .count = n, .type = type, .peer = peer});
}

CALL(Recv)(void *r, size_t n, int type, int peer, nccl_comm_t c, cuda_stream st);
CALL(Recv)(void *r, size_t n, int type, int peer, nccl_comm_t c, cuda_stream st)
{
    return enqueue((struct task){
        .kind = RECV, .comm = c, .stream = st, .recv = r, .count = n, .type = type, .peer = peer});
}

CALL(GroupStart)(void);
CALL(GroupStart)(void)
{
    g_depth++;
    return NCCL_OK;
}

/* NCCL: 2.28.9 group.cc:646-755: of a communicator in non-blocking mode, "in progress", and never
 * success; inside another group, success. Without a group, invalid usage. */
CALL(GroupEnd)(void);
CALL(GroupEnd)(void)
{
    if (!g_depth)
        return 5;
    if (--g_depth || !g_held)
        return NCCL_OK;
    int n = g_held;
    g_held = 0;
    return launch_tasks(g_group[0].comm, g_group, n);
}

/* -------------------------------------------------------------------------------- communicators */

CALL(GetVersion)(int *v);
CALL(GetVersion)(int *v)
{
    *v = g->state.version;
    return NCCL_OK;
}

CALL(GetUniqueId)(struct nccl_id *id);
CALL(GetUniqueId)(struct nccl_id *id)
{
    if (g->state.no_unique_id == 1 || g->state.no_unique_id == getpid())
        return 2;
    memset(id, 'i', sizeof(*id));
    int n = atomic_fetch_add(&g->next, 1);
    if (n >= COMMS)
        abort();
    memcpy(id->bytes, &n, sizeof(n));
    return NCCL_OK;
}

API const char *ncclGetErrorString(int rc);
API const char *ncclGetErrorString(int rc)
{
    return rc == 2 ? "unhandled system error" : rc == 6 ? "remote process error" : "some error";
}

API const char *ncclGetLastError(nccl_comm_t c);
API const char *ncclGetLastError(nccl_comm_t c)
{
    return c ? "NET/Socket : connection closed by remote peer" : "";
}

static int come_together(struct job *j)
{
    struct comm *c = j->comm;
    while (atomic_load(&c->w->joined) < c->size) {
        if (atomic_load(&c->aborted))
            return 3;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    return NCCL_OK;
}

/* NULL: the configuration is wrong. */
static struct comm *new_comm(int n, int world, int rank, const struct nccl_config *conf)
{
    if (n > RANKS || conf->magic != NCCL_CONFIG_MAGIC || conf->size > sizeof(*conf) ||
        (conf->version >= NCCL_WITH_NAME) != (g->state.version >= NCCL_WITH_NAME))
        return NULL;
    struct comm *c = calloc(1, sizeof(*c));
    *c = (struct comm){
        .w = &g->worlds[world], .rank = rank, .size = n, .blocking = conf->blocking != 0};
    c->older = atomic_load(&g_comms);
    while (!atomic_compare_exchange_weak(&g_comms, &c->older, c))
        ;
    g->state.blocking += c->blocking;
    atomic_fetch_add(&c->w->joined, 1);
    return c;
}

/* The communicator is there at once, and is usable when all ranks have come. NCCL: 2.28.9
 * init.cc:2140-2175. */
static int join(nccl_comm_t *out, int n, int world, int rank, const struct nccl_config *conf)
{
    struct comm *c = new_comm(n, world, rank, conf);
    if (!c)
        return 5;
    *out = c;
    check_context();
    return launch(&(struct job){.comm = c, .run = come_together});
}

CALL(CommInitRankConfig)
(nccl_comm_t *out, int n, struct nccl_id id, int rank, struct nccl_config *conf);
CALL(CommInitRankConfig)
(nccl_comm_t *out, int n, struct nccl_id id, int rank, struct nccl_config *conf)
{
    int world;
    memcpy(&world, id.bytes, sizeof(world));
    g->state.inits++;
    return id.bytes[NCCL_ID_BYTES - 1] == 'i' ? join(out, n, world, rank, conf) : 4;
}

CALL(CommGetAsyncError)(nccl_comm_t comm, int *error);
CALL(CommGetAsyncError)(nccl_comm_t comm, int *error)
{
    struct comm *c = comm;
    if (atomic_load(&c->freed))
        crash("a communicator is asked after its end");
    if (atomic_fetch_add(&c->inside, 1) > 0 && !c->blocking)
        g->state.max_threads_in = 2;
    int state = state_of(c, true);
    *error = g->state.error_rank == c->rank ? g->state.async_error : state;
    g->state.errors_reported += g->state.error_rank == c->rank && g->state.async_error;
    atomic_fetch_sub(&c->inside, 1);
    return NCCL_OK;
}

/* The flags of the communicator, and of the one that is being split off, are set; the job comes to
 * its end; then all is freed, whoever is inside a call. It blocks in both modes. NCCL: 2.28.9
 * init.cc:2503-2545, group.cc:49; 2.19.3 init.cc:2002. */
CALL(CommAbort)(nccl_comm_t comm);
CALL(CommAbort)(nccl_comm_t comm)
{
    struct comm *c = comm;
    if (atomic_exchange(&c->ended, true))
        abort(); /* twice */
    if (!has_fault("deaf-abort"))
        atomic_store(&c->aborted, true);
    g->state.aborts++;
    if (c->half_of && !atomic_load(&c->half_of->freed))
        crash("one that is half split off is aborted before its parent");
    if (c->child)
        atomic_store(&c->child->aborted, true);
    join_job(c);
    while (g->state.abort_hangs || atomic_load(&g_graphs)) /* as NCCL does while a graph lives */
        nanosleep(&(struct timespec){0, 20000}, NULL);
    atomic_store(&c->freed, true);
    return NCCL_OK;
}

static int do_nothing(struct job *j)
{
    (void)j;
    return NCCL_OK;
}

/* NCCL: 2.28.9 init.cc:2264-2297: once only, and only a communicator that is ready. Returns the
 * state. */
CALL(CommFinalize)(nccl_comm_t comm);
CALL(CommFinalize)(nccl_comm_t comm)
{
    struct comm *c = comm;
    int rc = ensure_ready(c);
    if (rc != NCCL_OK || c->finalized)
        return rc != NCCL_OK ? rc : 4;
    c->finalized = true;
    g->state.finalizes++;
    return launch(&(struct job){.comm = c, .run = do_nothing});
}

/* NCCL: 2.28.9 init.cc:2358-2393, group.cc:49: it blocks in both modes, and waits for the
 * communicator's streams. */
CALL(CommDestroy)(nccl_comm_t comm);
CALL(CommDestroy)(nccl_comm_t comm)
{
    struct comm *c = comm;
    int rc = ensure_ready(c);
    if (rc != NCCL_OK)
        return rc;
    while (atomic_load(&g_pending)) /* it waits for what is enqueued */
        nanosleep(&(struct timespec){0, 20000}, NULL);
    atomic_store(&c->aborted, true);
    atomic_store(&c->freed, true);
    g->state.destroys++;
    return NCCL_OK;
}

CALL(RedOpCreatePreMulSum)(int *op, void *scalar, int type, int where, nccl_comm_t comm);
CALL(RedOpCreatePreMulSum)(int *op, void *scalar, int type, int where, nccl_comm_t comm)
{
    (void)comm;
    for (int i = 0; i < 64; i++) {
        if (g_ops[i].used || where != NCCL_SCALAR_HOST)
            continue;
        g_ops[i].used = true;
        g_ops[i].type = type;
        dlcoll_op_create_premul(&g_ops[i].op, scalar, (dlcoll_dtype)type);
        *op = 100 + i;
        g->state.reduce_ops++;
        return NCCL_OK;
    }
    return 4;
}

CALL(RedOpDestroy)(int op, nccl_comm_t comm);
CALL(RedOpDestroy)(int op, nccl_comm_t comm)
{
    (void)comm;
    g_ops[op - 100].used = false;
    dlcoll_op_free(g_ops[op - 100].op);
    g->state.reduce_ops--;
    return NCCL_OK;
}

#ifndef FAKE_OLD
CALL(CommInitRankScalable)
(nccl_comm_t *out, int n, int rank, int nids, struct nccl_id *ids, struct nccl_config *conf);
CALL(CommInitRankScalable)
(nccl_comm_t *out, int n, int rank, int nids, struct nccl_id *ids, struct nccl_config *conf)
{
    int world;
    memcpy(&world, ids[0].bytes, sizeof(world));
    for (int i = 0; i < nids; i++) {
        if (ids[i].bytes[NCCL_ID_BYTES - 1] != 'i')
            return 4;
    }
    g->state.scalable++;
    return join(out, n, world, rank, conf);
}

/* NCCL: 2.28.9 init.cc:1512-1620: all ranks of the parent take part, also those without a colour;
 * *out is written at the end, and also after a failure. */
static int run_split(struct job *j)
{
    struct comm *c = j->comm, *child = NULL;
    int32_t *own = c->w->split[c->rank], all[RANKS][3];
    int n = 0, rank = 0, lowest = 0;
    own[0] = j->color;
    own[1] = j->key;
    if (c->rank == 0) { /* numbers for the new ones; more than there can be colours */
        own[2] = atomic_fetch_add(&g->next, RANKS);
        if (own[2] + RANKS > COMMS)
            abort();
    }
    if (!meet_at(c, &c->w->calls))
        return 3;
    memcpy(all, c->w->split, sizeof(all));
    if (!meet_at(c, &c->w->calls))
        return 3;
    for (int i = c->size - 1; i >= 0; i--) {
        if (all[i][0] != j->color)
            continue;
        n++;
        lowest = i;
        rank += all[i][1] < j->key || (all[i][1] == j->key && i < c->rank);
    }
    if (g->state.bad_splitter == c->rank)
        g->state.error_rank = c->rank;
    if (j->color < 0)
        return NCCL_OK;
    if (!(child = new_comm(n, all[0][2] + lowest, rank, &j->conf)))
        return 5;
    c->child = child;
    for (int ms = g->state.slow_split; ms > 0 && !atomic_load(&c->aborted); ms--)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    int rc = atomic_load(&c->aborted) ? 3 : come_together(&(struct job){.comm = child});
    c->child = NULL;
    child->half_of = rc == NCCL_OK ? NULL : c;
    *j->out = child;
    return rc;
}

/* NCCL: 2.28.9 init.cc:2550-2680, 2.19.3 init.cc:2034-2090: *out is NULL, and the call succeeds
 * while the split is in progress: it is the parent that is in progress then. */
CALL(CommSplit)(nccl_comm_t comm, int color, int key, nccl_comm_t *out, struct nccl_config *conf);
CALL(CommSplit)(nccl_comm_t comm, int color, int key, nccl_comm_t *out, struct nccl_config *conf)
{
    struct comm *c = comm;
    int rc = ensure_ready(c);
    if (rc != NCCL_OK)
        return rc;
    check_context();
    check_place(c, out);
    *out = NULL;
    g->state.splits++;
    rc = launch(&(struct job){
        .comm = c, .run = run_split, .out = out, .color = color, .key = key, .conf = *conf});
    return rc == NCCL_IN_PROGRESS ? NCCL_OK : rc;
}

CALL(CommRegister)(nccl_comm_t c, void *p, size_t n, void **handle);
CALL(CommRegister)(nccl_comm_t c, void *p, size_t n, void **handle)
{
    (void)c, (void)n;
    *handle = p;
    g->state.registers++;
    return NCCL_OK;
}

CALL(CommDeregister)(nccl_comm_t c, void *handle);
CALL(CommDeregister)(nccl_comm_t c, void *handle)
{
    (void)c, (void)handle;
    g->state.registers--;
    return NCCL_OK;
}

/* The job is freed, and its communicator still points to it; an init that has failed early leaves
 * streams behind that are not there. NCCL: 2.28.9 init.cc:2409-2500, group.cc:780. */
CALL(CommRevoke)(nccl_comm_t comm, int flags);
CALL(CommRevoke)(nccl_comm_t comm, int flags)
{
    struct comm *c = comm;
    g->state.revokes++;
    if (flags || c->finalized)
        return 4;
    if (atomic_load(&c->w->joined) < c->size)
        crash("streams are synchronized that are not there yet");
    c->job_is_freed = c->job != NULL;
    return NCCL_OK;
}

static int run_window(struct job *j)
{
    if (!meet_at(j->comm, &j->comm->w->calls))
        return 3;
    *j->out = j->p;
    g->state.windows++;
    return NCCL_OK;
}

/* All ranks take part. Where there is no symmetric memory, the call succeeds without a window, and
 * 2.28 does not even write one. NCCL: 2.27.7 register.cc:197-254: the window is there at once, and
 * the call says that it is in progress; 2.28.9 dev_runtime.cc:891-922, 2.30.7 dev_runtime.cc:1333:
 * the window is there at the end, and the call succeeds before. */
CALL(CommWindowRegister)(nccl_comm_t comm, void *p, size_t n, void **window, int flags);
CALL(CommWindowRegister)(nccl_comm_t comm, void *p, size_t n, void **window, int flags)
{
    struct comm *c = comm;
    bool later = g->state.version >= 22800;
    if (!later || g->state.version >= 23000)
        *window = NULL;
    if (g->state.no_symmetric)
        return NCCL_OK;
    int rc = ensure_ready(c);
    if (rc != NCCL_OK || !n || flags != NCCL_WINDOW_SYMMETRIC)
        return rc != NCCL_OK ? rc : 4;
    check_place(c, window);
    if (!later)
        *window = p;
    rc = launch(&(struct job){.comm = c, .run = run_window, .out = window, .p = p});
    return rc == NCCL_IN_PROGRESS && later ? NCCL_OK : rc;
}

/* By this rank alone, at once. NCCL: 2.28.9 dev_runtime.cc:927. */
CALL(CommWindowDeregister)(nccl_comm_t comm, void *window);
CALL(CommWindowDeregister)(nccl_comm_t comm, void *window)
{
    struct comm *c = comm;
    if (atomic_load(&c->freed))
        crash("a window is deregistered after its communicator's end");
    g->state.windows -= window != NULL;
    return NCCL_OK;
}

CUDA(MemAlloc_v2)(cuda_ptr *p, size_t n);

CALL(MemAlloc)(void **p, size_t n);
CALL(MemAlloc)(void **p, size_t n)
{
    cuda_ptr at = 0;
    int rc = cuMemAlloc_v2(&at, n);
    *p = (void *)(uintptr_t)at;
    return rc ? 1 : NCCL_OK;
}

CALL(MemFree)(void *p);
CALL(MemFree)(void *p)
{
    return p ? NCCL_OK : 4;
}
#endif

/* ----------------------------------------------------------------------------------------- CUDA */

enum { DEVICES = 2, DEPTH = 8 };
static int g_contexts[DEVICES]; /* the address of each is its context */
static _Atomic int g_retained[DEVICES], g_is_init;
static _Thread_local cuda_context g_stack[DEPTH];
static _Thread_local int g_top, g_mode;
static _Atomic int g_home;     /* the device that the process has allocated memory of */
static _Atomic bool g_managed; /* its memory is managed */

static cuda_context current(void)
{
    return g_top ? g_stack[g_top - 1] : NULL;
}

/* Everything here belongs to device 0. */
static void check_context(void)
{
    if (current() != &g_contexts[0])
        g->state.wrong_context++;
}

/* Unsafe calls invalidate a global capture, unless their thread has the relaxed mode. */
static void check_capture(void)
{
    bool capturing = atomic_load(&g->state.capture) || atomic_load(&g_capturing);
    if (capturing && g_mode != CUDA_CAPTURE_RELAXED)
        g->state.capture_broken++;
}

static bool is_arena(cuda_ptr p)
{
    return p >= (uintptr_t)g_arena && p < (uintptr_t)g_arena + ARENA;
}

static int device_of(cuda_ptr p)
{
    cuda_ptr elsewhere = (uintptr_t)atomic_load(&g->state.elsewhere);
    bool other = elsewhere && p >= elsewhere && p < elsewhere + 4096;
    return !is_arena(p) ? -2 : other ? !atomic_load(&g_home) : atomic_load(&g_home);
}

CUDA(GetErrorString)(int rc, const char **text);
CUDA(GetErrorString)(int rc, const char **text)
{
    *text = rc ? "some CUDA error" : "no error";
    return CUDA_OK;
}

CUDA(Init)(unsigned flags);
CUDA(Init)(unsigned flags)
{
    g_is_init = 1;
    return flags ? CUDA_INVALID_VALUE : CUDA_OK;
}

CUDA(CtxGetCurrent)(cuda_context *out);
CUDA(CtxGetCurrent)(cuda_context *out)
{
    *out = current();
    return g_is_init ? CUDA_OK : CUDA_NOT_INITIALIZED;
}

CUDA(CtxPushCurrent_v2)(cuda_context c);
CUDA(CtxPushCurrent_v2)(cuda_context c)
{
    if (g_top == DEPTH)
        abort();
    g_stack[g_top++] = c;
    return CUDA_OK;
}

CUDA(CtxPopCurrent_v2)(cuda_context *out);
CUDA(CtxPopCurrent_v2)(cuda_context *out)
{
    if (!g_top)
        return CUDA_INVALID_CONTEXT;
    *out = g_stack[--g_top];
    return CUDA_OK;
}

CUDA(CtxGetDevice)(int *d);
CUDA(CtxGetDevice)(int *d)
{
    *d = current() == &g_contexts[1];
    return current() ? CUDA_OK : CUDA_INVALID_CONTEXT;
}

CUDA(CtxGetStreamPriorityRange)(int *low, int *high);
CUDA(CtxGetStreamPriorityRange)(int *low, int *high)
{
    *low = 0;
    *high = -5;
    return CUDA_OK;
}

CUDA(DeviceGetCount)(int *n);
CUDA(DeviceGetCount)(int *n)
{
    *n = has_fault("no-device") ? 0 : DEVICES;
    return g_is_init ? CUDA_OK : CUDA_NOT_INITIALIZED;
}

CUDA(DeviceGetAttribute)(int *v, int what, int d);
CUDA(DeviceGetAttribute)(int *v, int what, int d)
{
    (void)d;
    *v = what == CUDA_CAPABILITY_MAJOR   ? g->state.capability / 10
         : what == CUDA_CAPABILITY_MINOR ? g->state.capability % 10
         : what == CUDA_COMPUTE_MODE     ? g->state.compute_mode
                                         : 0;
    return CUDA_OK;
}

CUDA(DeviceGetUuid_v2)(char *uuid, int d);
CUDA(DeviceGetUuid_v2)(char *uuid, int d)
{
    int own[4] = {g->state.same_gpu || has_fault("same-gpu") ? 1 : getpid(), d};
    memcpy(uuid, own, CUDA_UUID_BYTES);
    return CUDA_OK;
}

CUDA(DeviceGetPCIBusId)(char *bus, int len, int d);
CUDA(DeviceGetPCIBusId)(char *bus, int len, int d)
{
    int number = g->state.instances ? 0 : getpid();
    snprintf(bus, (size_t)len, "%04x:%02x:0%d.0", number >> 8 & 0xffff, number & 0xff, d);
    return CUDA_OK;
}

CUDA(DevicePrimaryCtxGetState)(int d, unsigned *flags, int *active);
CUDA(DevicePrimaryCtxGetState)(int d, unsigned *flags, int *active)
{
    *flags = 0;
    *active = g_retained[d] > 0 || has_fault("context-made");
    return CUDA_OK;
}

CUDA(DevicePrimaryCtxRetain)(cuda_context *c, int d);
CUDA(DevicePrimaryCtxRetain)(cuda_context *c, int d)
{
    if (atomic_fetch_add(&g_retained[d], 1) == 0)
        g->state.contexts++;
    *c = &g_contexts[d];
    return g_is_init ? CUDA_OK : CUDA_NOT_INITIALIZED;
}

CUDA(DevicePrimaryCtxRelease_v2)(int d);
CUDA(DevicePrimaryCtxRelease_v2)(int d)
{
    return atomic_fetch_sub(&g_retained[d], 1) > 0 ? CUDA_OK : CUDA_INVALID_CONTEXT;
}

CUDA(PointerGetAttributes)(unsigned n, int *names, void **out, cuda_ptr p);
CUDA(PointerGetAttributes)(unsigned n, int *names, void **out, cuda_ptr p)
{
    g->state.pointer_calls++;
    if (!g_is_init)
        return CUDA_NOT_INITIALIZED;
    if (!current())
        return CUDA_INVALID_CONTEXT;
    for (unsigned i = 0; i < n; i++)
        *(int *)out[i] = names[i] == CUDA_POINTER_TYPE     ? is_arena(p) ? CUDA_MEMORY_DEVICE : 0
                         : names[i] == CUDA_POINTER_DEVICE ? device_of(p)
                                                           : is_arena(p) && atomic_load(&g_managed);
    if (has_fault("blind-driver"))
        *(int *)out[0] = 0;
    return g_broken ? g_broken : g->state.pointer_error;
}

CUDA(StreamCreateWithPriority)(cuda_stream *s, unsigned flags, int priority);
CUDA(StreamCreateWithPriority)(cuda_stream *s, unsigned flags, int priority)
{
    check_context();
    *s = g;
    return g->state.no_stream == getpid() || flags != CUDA_NON_BLOCKING || priority != -5 ? 2
                                                                                          : CUDA_OK;
}

CUDA(StreamDestroy_v2)(cuda_stream s);
CUDA(StreamDestroy_v2)(cuda_stream s)
{
    (void)s;
    return CUDA_OK;
}

CUDA(StreamGetCtx)(cuda_stream s, cuda_context *c);
CUDA(StreamGetCtx)(cuda_stream s, cuda_context *c)
{
    (void)s;
    *c = &g_contexts[0];
    return CUDA_OK;
}

CUDA(StreamIsCapturing)(cuda_stream s, int *capturing);
CUDA(StreamIsCapturing)(cuda_stream s, int *capturing)
{
    *capturing = is_captured(s);
    return CUDA_OK;
}

CUDA(ThreadExchangeStreamCaptureMode)(int *mode);
CUDA(ThreadExchangeStreamCaptureMode)(int *mode)
{
    int before = g_mode;
    g_mode = *mode;
    *mode = before;
    return CUDA_OK;
}

CUDA(EventCreate)(cuda_event *e, unsigned flags);
CUDA(EventCreate)(cuda_event *e, unsigned flags)
{
    check_context();
    *e = calloc(1, sizeof(uint64_t));
    g->state.events++;
    g->state.timed_events += flags == 0;
    return flags == CUDA_NO_TIMING || flags == 0 ? CUDA_OK : 1;
}

CUDA(EventDestroy_v2)(cuda_event e);
CUDA(EventDestroy_v2)(cuda_event e)
{
    free(e);
    g->state.events--;
    return CUDA_OK;
}

CUDA(EventRecord)(cuda_event e, cuda_stream s);
CUDA(EventRecord)(cuda_event e, cuda_stream s)
{
    uint64_t mark = atomic_fetch_add(&g_marks, 1) + 1;
    check_context();
    if (is_captured(s)) {
        g->state.capture_broken++; /* the event could not be asked for afterwards */
        return 900;
    }
    if (g_broken)
        return g_broken;
    atomic_store((_Atomic uint64_t *)e, mark);
    push(&(struct task){.kind = MARK, .stream = s, .mark = mark});
    return CUDA_OK;
}

CUDA(StreamWaitEvent)(cuda_stream s, cuda_event e, unsigned flags);
CUDA(StreamWaitEvent)(cuda_stream s, cuda_event e, unsigned flags)
{
    if (is_captured(s)) {
        g->state.capture_broken++; /* an event of before the capture */
        return 905;
    }
    if (atomic_load(&g_reached) < atomic_load((_Atomic uint64_t *)e))
        push(&(struct task){.kind = WAIT, .stream = s});
    return flags ? 1 : CUDA_OK;
}

CUDA(EventQuery)(cuda_event e);
CUDA(EventQuery)(cuda_event e)
{
    check_context();
    check_capture();
    if (g_broken)
        return g_broken;
    return !g->state.slow_device && atomic_load(&g_reached) >= atomic_load((_Atomic uint64_t *)e)
               ? CUDA_OK
               : CUDA_NOT_READY;
}

CUDA(EventSynchronize)(cuda_event e);
CUDA(EventSynchronize)(cuda_event e)
{
    while (atomic_load(&g_reached) < atomic_load((_Atomic uint64_t *)e))
        nanosleep(&(struct timespec){0, 20000}, NULL);
    return g_broken;
}

CUDA(EventElapsedTime)(float *ms, cuda_event from, cuda_event to);
CUDA(EventElapsedTime)(float *ms, cuda_event from, cuda_event to)
{
    uint64_t a = atomic_load((_Atomic uint64_t *)from), b = atomic_load((_Atomic uint64_t *)to);
    uint64_t last = a > b ? a : b;
    if (!a || !b)
        return CUDA_INVALID_VALUE;
    if (atomic_load(&g_reached) < last)
        return CUDA_NOT_READY;
    *ms = has_fault("stopped-clock")
              ? 0
              : (float)((double)(int64_t)(g_mark_ns[b % MARKS] - g_mark_ns[a % MARKS]) / 1e6);
    return CUDA_OK;
}

CUDA(MemAlloc_v2)(cuda_ptr *p, size_t n);
CUDA(MemAlloc_v2)(cuda_ptr *p, size_t n)
{
    check_context();
    check_capture();
    if (g_broken)
        return g_broken;
    pthread_mutex_lock(&g_lock);
    size_t at = (g_used + 4095) / 4096 * 4096;
    g_used = at + n;
    pthread_mutex_unlock(&g_lock);
    atomic_store(&g_home, current() == &g_contexts[1]);
    *p = (uintptr_t)g_arena + at;
    return at + n <= (has_fault("memory-held") ? ARENA / 8 : ARENA) ? CUDA_OK : 2;
}

CUDA(MemFree_v2)(cuda_ptr p);
CUDA(MemFree_v2)(cuda_ptr p)
{
    while (p && atomic_load(&g_pending))
        nanosleep(&(struct timespec){0, 20000}, NULL);
    return CUDA_OK;
}

CUDA(MemAllocAsync)(cuda_ptr *p, size_t n, cuda_stream s);
CUDA(MemAllocAsync)(cuda_ptr *p, size_t n, cuda_stream s)
{
    (void)s;
    return cuMemAlloc_v2(p, n);
}

CUDA(MemFreeAsync)(cuda_ptr p, cuda_stream s);
CUDA(MemFreeAsync)(cuda_ptr p, cuda_stream s)
{
    (void)p, (void)s;
    return CUDA_OK;
}

CUDA(MemAllocManaged)(cuda_ptr *p, size_t n, unsigned flags);
CUDA(MemAllocManaged)(cuda_ptr *p, size_t n, unsigned flags)
{
    atomic_store(&g_managed, true);
    return flags == CUDA_ATTACH_GLOBAL ? cuMemAlloc_v2(p, n) : CUDA_INVALID_VALUE;
}

CUDA(MemcpyAsync)(cuda_ptr to, cuda_ptr from, size_t n, cuda_stream s);
CUDA(MemcpyAsync)(cuda_ptr to, cuda_ptr from, size_t n, cuda_stream s)
{
    struct task t = {.kind = COPY,
                     .stream = s,
                     .send = (const void *)(uintptr_t)from,
                     .recv = (void *)(uintptr_t)to,
                     .count = n};
    if (is_captured(s)) {
        capture(&t);
        return CUDA_OK;
    }
    if (is_idle(s))
        carry_out(&t);
    else
        push(&t);
    return CUDA_OK;
}

static int copy_now(void *to, const void *from, size_t n)
{
    while (atomic_load(&g_pending))
        nanosleep(&(struct timespec){0, 20000}, NULL);
    memcpy(to, from, n);
    return g_broken;
}

CUDA(MemcpyHtoD_v2)(cuda_ptr to, const void *from, size_t n);
CUDA(MemcpyHtoD_v2)(cuda_ptr to, const void *from, size_t n)
{
    return is_arena(to) ? copy_now((void *)(uintptr_t)to, from, n) : CUDA_INVALID_VALUE;
}

CUDA(MemcpyDtoH_v2)(void *to, cuda_ptr from, size_t n);
CUDA(MemcpyDtoH_v2)(void *to, cuda_ptr from, size_t n)
{
    return is_arena(from) ? copy_now(to, (const void *)(uintptr_t)from, n) : CUDA_INVALID_VALUE;
}

CUDA(MemGetInfo_v2)(size_t *free_bytes, size_t *total);
CUDA(MemGetInfo_v2)(size_t *free_bytes, size_t *total)
{
    *free_bytes = ARENA - g_used;
    *total = ARENA;
    return CUDA_OK;
}

CUDA(DriverGetVersion)(int *v);
CUDA(DriverGetVersion)(int *v)
{
    *v = 13000;
    return CUDA_OK;
}

CUDA(DeviceGetName)(char *name, int len, int d);
CUDA(DeviceGetName)(char *name, int len, int d)
{
    snprintf(name, (size_t)len, "fake %d", d);
    return CUDA_OK;
}

CUDA(DeviceTotalMem_v2)(size_t *bytes, int d);
CUDA(DeviceTotalMem_v2)(size_t *bytes, int d)
{
    (void)d;
    *bytes = ARENA;
    return CUDA_OK;
}

CUDA(CtxSynchronize)(void);
CUDA(CtxSynchronize)(void)
{
    while (atomic_load(&g_pending))
        nanosleep(&(struct timespec){0, 20000}, NULL);
    return g_broken;
}

CUDA(StreamCreate)(cuda_stream *s, unsigned flags);
CUDA(StreamCreate)(cuda_stream *s, unsigned flags)
{
    *s = malloc(1);
    return flags > CUDA_NON_BLOCKING ? CUDA_INVALID_VALUE : CUDA_OK;
}

/* --------------------------------------------------------------------------------------- graphs */

CUDA(StreamBeginCapture_v2)(cuda_stream s, int mode);
CUDA(StreamBeginCapture_v2)(cuda_stream s, int mode)
{
    if (!s || atomic_load(&g_capturing) || mode != 0)
        return CUDA_INVALID_VALUE;
    g->state.capture_broken = 0;
    atomic_store(&g_capturing, s);
    return CUDA_OK;
}

CUDA(StreamEndCapture)(cuda_stream s, void **graph);
CUDA(StreamEndCapture)(cuda_stream s, void **graph)
{
    if (s != atomic_load(&g_capturing))
        return CUDA_INVALID_VALUE;
    *graph = g_captured;
    g_captured = NULL;
    g_captured_tail = &g_captured;
    atomic_store(&g_capturing, NULL);
    g_graphs++;
    return g->state.capture_broken ? 901 : CUDA_OK;
}

CUDA(GraphInstantiateWithFlags)(void **exec, void *graph, unsigned long long flags);
CUDA(GraphInstantiateWithFlags)(void **exec, void *graph, unsigned long long flags)
{
    *exec = graph;
    g_graphs++;
    return flags ? CUDA_INVALID_VALUE : CUDA_OK;
}

CUDA(GraphLaunch)(void *exec, cuda_stream s);
CUDA(GraphLaunch)(void *exec, cuda_stream s)
{
    for (struct task *t = has_fault("empty-graph") ? NULL : exec; t; t = t->next) {
        struct task again = *t;
        again.stream = s;
        push(&again);
    }
    return CUDA_OK;
}

CUDA(GraphExecDestroy)(void *exec);
CUDA(GraphExecDestroy)(void *exec)
{
    (void)exec;
    g_graphs--;
    return CUDA_OK;
}

CUDA(GraphDestroy)(void *graph);
CUDA(GraphDestroy)(void *graph)
{
    for (struct task *t = graph, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    g_graphs--;
    return CUDA_OK;
}

/* The only kernel is one that fails. */
CUDA(ModuleLoadData)(void **module, const void *image);
CUDA(ModuleLoadData)(void **module, const void *image)
{
    *module = g;
    return strstr(image, "trap;") ? CUDA_OK : CUDA_INVALID_VALUE;
}

CUDA(ModuleGetFunction)(void **kernel, void *module, const char *name);
CUDA(ModuleGetFunction)(void **kernel, void *module, const char *name)
{
    *kernel = module;
    return *name ? CUDA_OK : CUDA_INVALID_VALUE;
}

CUDA(LaunchKernel)
(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, cuda_stream s, void **args, void **extra);
CUDA(LaunchKernel)
(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, cuda_stream s, void **args, void **extra)
{
    (void)kernel, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)s, (void)args, (void)extra;
    g_broken = has_fault("forgiving-device") ? CUDA_OK : 719;
    return CUDA_OK;
}
