/* nccl_allreduce.c: a program that calls NCCL directly, under dlaunch. Rank, size and the unique id
 * come from the communicator, without MPI, addresses or files. Needs NVIDIA's headers and
 * libraries:
 *
 *     cc -DUSE_NCCL -I$CUDA_HOME/include nccl_allreduce.c -ldlcoll -lnccl \
 *        -L$CUDA_HOME/lib64 -lcudart
 *     dlaunch --nproc_per_node gpu ./a.out
 *
 * Without them the program only prints that it was built without NCCL. */
#include <stdio.h>
#include <stdlib.h>

#if defined(__has_include)
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime_api.h>) && defined(USE_NCCL)
#define HAVE_NCCL 1
#endif
#endif

#ifdef HAVE_NCCL
#include <cuda_runtime_api.h>
#include <dlcoll.h>
#include <nccl.h>

static void need(int ok, const char *what, const char *why)
{
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, why);
        exit(1);
    }
}

int main(void)
{
    enum { N = 1 << 20 };
    dlcoll_comm *comm;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    ncclUniqueId id;
    ncclComm_t nccl;
    cudaStream_t stream;
    float *x, first = 0;
    int gpus = 0;

    int code = dlcoll_init(&comm, NULL);
    dlcoll_last_error(NULL, &e);
    need(code == 0, "dlcoll_init", e.text);
    int rank = dlcoll_rank(comm), size = dlcoll_size(comm);
    need(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0, "CUDA", "there is no GPU");
    cudaSetDevice(dlcoll_local_rank(comm) % gpus);

    code = dlcoll_nccl_unique_id(comm, &id); /* the same on every rank */
    dlcoll_last_error(comm, &e);
    need(code == 0, "dlcoll_nccl_unique_id", e.text);
    ncclResult_t rc = ncclCommInitRank(&nccl, size, id, rank);
    need(rc == ncclSuccess, "ncclCommInitRank", ncclGetErrorString(rc));

    cudaStreamCreate(&stream);
    cudaMalloc((void **)&x, N * sizeof(float));
    first = (float)(rank + 1);
    cudaMemcpy(x, &first, sizeof(first), cudaMemcpyHostToDevice);
    rc = ncclAllReduce(x, x, N, ncclFloat, ncclSum, nccl, stream);
    need(rc == ncclSuccess, "ncclAllReduce", ncclGetErrorString(rc));
    cudaStreamSynchronize(stream);
    cudaMemcpy(&first, x, sizeof(first), cudaMemcpyDeviceToHost);
    printf("rank %d of %d: %g (should be %g)\n", rank, size, first, size * (size + 1) / 2.0);

    ncclCommDestroy(nccl);
    cudaFree(x);
    dlcoll_finalize(comm);
    dlcoll_destroy(comm);
    return first == (float)size * (size + 1) / 2 ? 0 : 1;
}
#else
int main(void)
{
    fputs("nccl_allreduce was built without NCCL: compile it with -DUSE_NCCL, CUDA's and NCCL's "
          "headers and -lnccl -lcudart\n",
          stderr);
    return EXIT_FAILURE;
}
#endif
