/* Measures what dlcoll adds to a bare NCCL call: both enqueue the same all_reduce on one stream, in
 * turn, and the host's time per call is compared. Exits with 1 when dlcoll takes a microsecond
 * more. */
#include <cuda_runtime_api.h>
#include <dlcoll.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 2000, ROUNDS = 21 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(void)
{
    dlcoll_comm *comm;
    ncclUniqueId id;
    ncclComm_t nccl;
    cudaStream_t stream;
    float *x;
    double bare[ROUNDS], ours[ROUNDS];
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    if (dlcoll_init(&comm, NULL) < 0 || dlcoll_nccl_unique_id(comm, &id) < 0 ||
        ncclCommInitRank(&nccl, dlcoll_size(comm), id, dlcoll_rank(comm)) != ncclSuccess ||
        cudaStreamCreate(&stream) != cudaSuccess || cudaMalloc((void **)&x, 4096) != cudaSuccess) {
        fputs("calls: no communicator, or no device\n", stderr);
        return 1;
    }
    o.stream = stream;
    for (int r = 0; r < ROUNDS; r++) {
        double start = now_us();
        for (int i = 0; i < CALLS; i++)
            ncclAllReduce(x, x, 256, ncclFloat, ncclSum, nccl, stream);
        bare[r] = (now_us() - start) / CALLS;
        cudaStreamSynchronize(stream);
        start = now_us();
        for (int i = 0; i < CALLS; i++)
            dlcoll_all_reduce(x, x, 256, DLCOLL_F32, DLCOLL_SUM, comm, &o, NULL);
        ours[r] = (now_us() - start) / CALLS;
        cudaStreamSynchronize(stream);
    }
    qsort(bare, ROUNDS, sizeof(bare[0]), by_size);
    qsort(ours, ROUNDS, sizeof(ours[0]), by_size);
    double more = ours[ROUNDS / 2] - bare[ROUNDS / 2];
    printf("enqueueing, host time per call: NCCL %.2f us, dlcoll %.2f us, %.2f us more\n",
           bare[ROUNDS / 2], ours[ROUNDS / 2], more);
    dlcoll_finalize(comm);
    dlcoll_destroy(comm);
    return more < 1 ? 0 : 1;
}
