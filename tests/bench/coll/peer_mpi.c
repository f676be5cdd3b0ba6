/* peer_mpi.c: compiled once for each MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/coll/harness.h"

static struct bench_peer g_peer;

static void run(enum bench_op op, char *a, char *b, size_t count)
{
    int n = (int)count, part = n / g_peer.ranks;
    MPI_Status status;
    switch (op) {
    case ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BROADCAST:
        MPI_Bcast(a, n, MPI_FLOAT, bench_root, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(MPI_IN_PLACE, part, MPI_FLOAT, a, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(a, b, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(a, part, MPI_FLOAT, b, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case REDUCE:
        MPI_Reduce(a, b, n, MPI_FLOAT, MPI_SUM, bench_root, MPI_COMM_WORLD);
        break;
    case PINGPONG:
        if (g_peer.rank == 0)
            MPI_Send(a, n, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(a, n, MPI_FLOAT, 1 - g_peer.rank, 0, MPI_COMM_WORLD, &status);
        if (g_peer.rank == 1)
            MPI_Send(a, n, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static int prepare(enum bench_op op, char *a, char *b, size_t count)
{
    (void)a, (void)b, (void)count;
    return op == ALL_REDUCE_BF16 || op == ALL_REDUCE_F16 || (op == PINGPONG && g_peer.ranks < 2);
}

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static int agree(int value)
{
    MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return value;
}

static double most(double value)
{
    double all;
    MPI_Allreduce(&value, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    g_peer = (struct bench_peer){
        .prepare = prepare, .run = run, .barrier = barrier, .agree = agree, .most = most};
    MPI_Comm_rank(MPI_COMM_WORLD, &g_peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &g_peer.ranks);
    int code = bench_main(argc, argv, &g_peer);
    MPI_Finalize();
    return code;
}
