/* nccl_worker: stands for a program with NCCL, as far as a profiler plug-in sees it: it loads
 * NCCL_PROFILER_PLUGIN and calls it as NCCL does that asks for version V of the interface.
 *
 *     nccl_worker V KIND RANK DIR
 *
 * Steps of 10 ms with an all-reduce each; ranks meet in the file DIR/meeting. KIND:
 *     hang    after 60 steps rank RANK sleeps for ever
 *     slow    rank RANK works half as long again in each step, until DIR/end exists
 *     gather  after 60 steps rank RANK sleeps for ever, and the others gather
 *     ahead   after 60 steps all ranks but RANK enqueue 40 operations, and wait in the first
 *     hidden  as ahead; but rank RANK has called an operation of which NCCL does not tell
 *     end     60 steps
 *     beside  one operation, whose kernel waits while another communicator carries out 3,000 of 24
 *             channels; prints how long the rank has waited, and how long all of it has taken */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "collectives/bootstrap/job_segment.h"
#include "collectives/profiler/nccl_profiler_abi.h"
#include "core/clock.h"

enum { AHEAD = 40, BESIDE = 3000, CHANNELS = 24, STEPS = 60, STEP_MS = 10, COMM = 0xabcdef };

static int g_version, g_rank, g_size, g_mask;
static const struct nccl_profiler *g_plugin;
static void *g_context, *g_other; /* of two communicators */
static _Atomic long *g_met;
static long g_meetings;

static void nap_us(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void meet(void)
{
    atomic_fetch_add(g_met, 1);
    g_meetings++;
    while (atomic_load(g_met) < g_meetings * g_size)
        nap_us(300);
}

static void die(const char *what)
{
    fprintf(stderr, "nccl_worker: %s\n", what);
    exit(3);
}

static int init_context(void **context)
{
    if (g_version < 4)
        return g_plugin->init.v1(context, &g_mask);
    if (g_version == 4)
        return g_plugin->init.v4(context, &g_mask, "data", COMM, 1, g_size, g_rank, NULL);
    return g_plugin->init.v5(context, COMM, &g_mask, "data", 1, g_size, g_rank, NULL);
}

static void load(void)
{
    char name[32];
    const char *path = getenv("NCCL_PROFILER_PLUGIN");
    void *lib = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!lib)
        die("no plug-in");
    snprintf(name, sizeof(name), "ncclProfiler_v%d", g_version);
    g_plugin = dlsym(lib, name);
    if (!g_plugin)
        die("the plug-in lacks the version");
    if (init_context(&g_context) != 0 || init_context(&g_other) != 0)
        die("init failed");
}

static void *begin_in(void *context, uint64_t type, void *parent, struct nccl_event *d)
{
    void *handle = NULL;
    if (!(g_mask & (int)type))
        return NULL;
    d->parent = parent;
    d->rank = g_rank;
    if (g_version < 5) { /* the other bytes are anything */
        memset(&d->type, 0xee, sizeof(d->type));
        memset(&d->type, (int)type, 1);
    } else {
        d->type = type;
    }
    g_plugin->start(context, &handle, d);
    return handle;
}

static void *begin(uint64_t type, void *parent, struct nccl_event *d)
{
    return begin_in(g_context, type, parent, d);
}

static void end(void *handle)
{
    if (handle)
        g_plugin->stop(handle);
}

/* Each function has numbers of its own. */
static void *begin_coll(const char *func, uint64_t seq, void *group)
{
    struct nccl_event d = {0};
    uint8_t number = strcmp(func, "AllReduce") == 0 ? 4 : 2;
    if (g_version == 1)
        d.coll_v1 =
            (struct nccl_coll_v1){"data", COMM, seq, number, NULL, NULL, 1024, 0, 7 /* float */};
    else if (g_version < 4)
        d.coll_v2 =
            (struct nccl_coll_v2){"data", COMM, seq, func, NULL, NULL, 1024, 0, "ncclFloat32"};
    else
        d.coll_v4 = (struct nccl_coll_v4){.seq = seq,
                                          .func = func,
                                          .count = 1024,
                                          .dtype = "ncclFloat32",
                                          .nchannels = 2,
                                          .parent_group = g_version > 4 ? group : NULL};
    return begin(NCCL_EVENT_COLL, g_version > 4 ? NULL : group, &d);
}

static void perform(const char *func, uint64_t seq)
{
    bool kernels = g_version >= 3;
    struct nccl_event d = {0}, part = {.proxy_pid = getpid()};
    void *group = begin(NCCL_EVENT_GROUP, NULL, &d), *parts[2] = {NULL, NULL};
    void *op = begin_coll(func, seq, group);
    for (int i = 0; i < 2 && !kernels; i++)
        parts[i] = begin(NCCL_EVENT_PROXY_OP, op, &part);
    end(op);
    end(group);
    for (int i = 0; i < 2 && kernels; i++)
        parts[i] = begin(NCCL_EVENT_KERNEL_CH, op, &(struct nccl_event){0});
    meet();
    for (int i = 0; i < 2; i++) {
        if (parts[i])
            g_plugin->record(parts[i], 22, NULL);
        end(parts[i]);
    }
}

static void all_reduce(uint64_t seq)
{
    perform("AllReduce", seq);
}

/* Versions from 4 on: an operation that is enqueued, and which gets its kernels later. */
static void *enqueue(void *context, void *group, uint64_t seq)
{
    struct nccl_event d = {.coll_v4 = {.seq = seq,
                                       .func = "AllReduce",
                                       .count = 1024,
                                       .dtype = "ncclFloat32",
                                       .nchannels = CHANNELS,
                                       .parent_group = g_version > 4 ? group : NULL}};
    void *op = begin_in(context, NCCL_EVENT_COLL, g_version > 4 ? NULL : group, &d);
    end(op);
    return op;
}

static void *begin_kernel(void *context, void *op)
{
    return begin_in(context, NCCL_EVENT_KERNEL_CH, op, &(struct nccl_event){0});
}

static void go_ahead(uint64_t seq)
{
    void *group = begin(NCCL_EVENT_GROUP, NULL, &(struct nccl_event){0}), *ops[AHEAD];
    for (uint64_t i = 0; i < AHEAD; i++)
        ops[i] = enqueue(g_context, group, seq + i);
    end(group);
    begin_kernel(g_context, ops[0]);
    meet();
}

/* A call whose operation is one of a symmetric kernel's or of copy engines'. */
static void call_unseen(void)
{
    end(begin(NCCL_EVENT_COLL_API, NULL,
              &(struct nccl_event){.coll_api = {.func = "AllReduce", .count = 1024}}));
}

/* One operation's kernel runs all the time; another is enqueued, and runs at the end. */
static void two_communicators(void)
{
    struct job_segment segment;
    struct err e = ERR_INIT;
    if (job_segment_init(&segment, atoi(getenv(SEGMENT_ENV_FD)), &e) < 0)
        die(e.msg);
    struct segment_local *line = job_segment_local(&segment, g_rank);
    while (!atomic_load(&line->watched))
        nap_us(1000);
    uint64_t start_ns = mono_ns();
    void *group = begin(NCCL_EVENT_GROUP, NULL, &(struct nccl_event){0});
    void *op = enqueue(g_context, group, 0), *last = enqueue(g_context, group, 1);
    void *kernel = begin_kernel(g_context, op), *channels[CHANNELS];
    for (uint64_t i = 0; i < BESIDE; i++) {
        void *other = enqueue(g_other, group, i);
        for (int c = 0; c < CHANNELS; c++)
            channels[c] = begin_kernel(g_other, other);
        for (int c = 0; c < CHANNELS; c++)
            end(channels[c]);
    }
    end(kernel);
    nap_us(100 * 1000);
    end(begin_kernel(g_context, last));
    end(group);
    printf("waited %.6f of %.6f s\n", (double)atomic_load(&line->waited_ns) / 1e9,
           (double)(mono_ns() - start_ns) / 1e9);
}

int main(int argc, char **argv)
{
    char path[512];
    if (argc != 5)
        return 2;
    g_version = atoi(argv[1]);
    g_rank = atoi(getenv("RANK"));
    g_size = atoi(getenv("WORLD_SIZE"));
    snprintf(path, sizeof(path), "%s/meeting", argv[4]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) < 0)
        die("no meeting");
    g_met = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (g_met == MAP_FAILED)
        die("no meeting");
    load();
    if (strcmp(argv[2], "beside") == 0) {
        two_communicators();
        g_plugin->finalize(g_context);
        return 0;
    }
    bool mine = g_rank == atoi(argv[3]);
    snprintf(path, sizeof(path), "%s/end", argv[4]);
    uint64_t seq = 0;
    for (; seq < STEPS; seq++) {
        nap_us(STEP_MS * 1000);
        all_reduce(seq);
    }
    bool ahead = strcmp(argv[2], "ahead") == 0, hidden = strcmp(argv[2], "hidden") == 0;
    if (hidden && mine)
        call_unseen();
    while (mine && (ahead || hidden || strcmp(argv[2], "gather") == 0))
        nap_us(1000000000);
    if (ahead || hidden)
        go_ahead(seq);
    if (strcmp(argv[2], "gather") == 0)
        perform("AllGather", 0);
    while (strcmp(argv[2], "hang") == 0) {
        if (mine)
            nap_us(1000000000);
        all_reduce(seq++);
    }
    while (strcmp(argv[2], "slow") == 0) {
        nap_us(STEP_MS * (mine ? 1500 : 1000));
        if (g_rank == 0 && access(path, F_OK) == 0)
            atomic_store(g_met + 1, 1);
        all_reduce(seq++);
        long over = atomic_load(g_met + 1);
        meet(); /* all have looked */
        if (over)
            break;
    }
    g_plugin->finalize(g_context);
    return 0;
}
