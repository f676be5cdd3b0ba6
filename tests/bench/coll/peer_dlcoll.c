/* peer_dlcoll.c: ours. BENCH_SHARED=1: buffers from dlcoll_mem_alloc(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "tests/bench/coll/harness.h"

static struct bench_peer g_peer;
static dlcoll_comm *g_comm;

static void need(int code)
{
    if (code == 0)
        return;
    dlcoll_error why = DLCOLL_ERROR_INIT;
    dlcoll_last_error(g_comm, &why);
    fprintf(stderr, "dlcoll: %s\n", why.text);
    exit(1);
}

static void run(enum bench_op op, char *a, char *b, size_t count)
{
    size_t part = count / (size_t)g_peer.ranks;
    int rank = g_peer.rank;
    switch (op) {
    case ALL_REDUCE:
        need(dlcoll_all_reduce(a, a, count, DLCOLL_F32, DLCOLL_SUM, g_comm, NULL, NULL));
        break;
    case ALL_REDUCE_BF16:
        need(dlcoll_all_reduce(a, a, count, DLCOLL_BF16, DLCOLL_SUM, g_comm, NULL, NULL));
        break;
    case ALL_REDUCE_F16:
        need(dlcoll_all_reduce(a, a, count, DLCOLL_F16, DLCOLL_SUM, g_comm, NULL, NULL));
        break;
    case BROADCAST:
        need(dlcoll_broadcast(a, a, count, DLCOLL_F32, bench_root, g_comm, NULL, NULL));
        break;
    case ALL_GATHER:
        need(dlcoll_all_gather(a + (size_t)rank * part * 4, a, part, DLCOLL_F32, g_comm, NULL,
                               NULL));
        break;
    case REDUCE_SCATTER:
        need(dlcoll_reduce_scatter(a, b, part, DLCOLL_F32, DLCOLL_SUM, g_comm, NULL, NULL));
        break;
    case ALL_TO_ALL:
        need(dlcoll_all_to_all(a, b, part, DLCOLL_F32, g_comm, NULL, NULL));
        break;
    case REDUCE:
        need(dlcoll_reduce(a, b, count, DLCOLL_F32, DLCOLL_SUM, bench_root, g_comm, NULL, NULL));
        break;
    case PINGPONG:
        if (rank == 0)
            need(dlcoll_send(a, count, DLCOLL_F32, 1, g_comm, NULL, NULL));
        need(dlcoll_recv(a, count, DLCOLL_F32, 1 - rank, g_comm, NULL, NULL));
        if (rank == 1)
            need(dlcoll_send(a, count, DLCOLL_F32, 0, g_comm, NULL, NULL));
        break;
    default:
        need(dlcoll_barrier(g_comm, NULL, NULL));
    }
}

static void barrier(void)
{
    need(dlcoll_barrier(g_comm, NULL, NULL));
}

static int agree(int value)
{
    int32_t v = value;
    need(dlcoll_broadcast(&v, &v, 1, DLCOLL_I32, 0, g_comm, NULL, NULL));
    return v;
}

static double most(double value)
{
    need(dlcoll_all_reduce(&value, &value, 1, DLCOLL_F64, DLCOLL_MAX, g_comm, NULL, NULL));
    return value;
}

static void *shared(size_t bytes)
{
    return dlcoll_mem_alloc(g_comm, bytes);
}

int main(int argc, char **argv)
{
    const char *env = getenv("BENCH_SHARED");
    need(dlcoll_init(&g_comm, NULL));
    g_peer = (struct bench_peer){.rank = dlcoll_rank(g_comm),
                                 .ranks = dlcoll_size(g_comm),
                                 .run = run,
                                 .barrier = barrier,
                                 .agree = agree,
                                 .most = most,
                                 .memory = env && strcmp(env, "1") == 0 ? shared : NULL};
    int code = bench_main(argc, argv, &g_peer);
    need(dlcoll_finalize(g_comm));
    dlcoll_destroy(g_comm);
    return code;
}
