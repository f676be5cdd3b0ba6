/* A user's profiler plug-in for NCCL, of versions 2 and 4. At the end it writes into the folder
 * FAKE_PROFILER what it has seen: operations, kernels or network operations, events that were not
 * stopped, and strange ones: stopped twice, or with parents that are none of its own events. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "collectives/profiler/nccl_profiler_abi.h"

#define MAGIC 0x1234567

struct seen {
    int magic;
    _Atomic bool stopped; /* it may still be a parent */
};

static _Atomic int g_ops, g_parts, g_open, g_strange, g_states;

static int begin(void **context, int *mask)
{
    static int here;
    *context = &here;
    *mask = NCCL_EVENT_GROUP | NCCL_EVENT_COLL | NCCL_EVENT_PROXY_OP | NCCL_EVENT_KERNEL_CH;
    return 0;
}

static int begin_v4(void **context, int *mask, const char *comm_name, uint64_t comm, int nnodes,
                    int nranks, int rank, void *log)
{
    (void)comm_name, (void)comm, (void)nnodes, (void)nranks, (void)rank, (void)log;
    return begin(context, mask);
}

static int start(void *context, void **handle, struct nccl_event *d)
{
    unsigned type = *(const unsigned char *)&d->type;
    struct seen *parent = d->parent, *s = calloc(1, sizeof(*s));
    (void)context;
    s->magic = MAGIC;
    *handle = s;
    g_open++;
    g_ops += type == NCCL_EVENT_COLL;
    g_parts += type == NCCL_EVENT_PROXY_OP || type == NCCL_EVENT_KERNEL_CH;
    g_strange += type != NCCL_EVENT_GROUP && (!parent || parent->magic != MAGIC);
    return 0;
}

static int stop(void *handle)
{
    struct seen *s = handle;
    g_strange += s->magic != MAGIC || atomic_exchange(&s->stopped, true);
    g_open--;
    return 0;
}

static int record(void *handle, int state, void *args)
{
    struct seen *s = handle;
    (void)state, (void)args;
    g_strange += s->magic != MAGIC || s->stopped;
    g_states++;
    return 0;
}

static int finalize(void *context)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/profile%s", getenv("FAKE_PROFILER"), getenv("RANK"));
    FILE *f = fopen(path, "w");
    if (!context || !f)
        return 1;
    fprintf(f, "%d operations, %d parts, %d states, %d open, %d strange\n", g_ops, g_parts,
            g_states, g_open, g_strange);
    return fclose(f);
}

#pragma GCC visibility push(default)
extern const struct nccl_profiler ncclProfiler_v2, ncclProfiler_v4;
#pragma GCC visibility pop

const struct nccl_profiler ncclProfiler_v2 = {"fake", {.v1 = begin}, start, stop, record, finalize};
const struct nccl_profiler ncclProfiler_v4 = {"fake", {.v4 = begin_v4}, start,
                                              stop,   record,           finalize};
