/* allreduce.c: measures an all_reduce.
 *
 *     dlaunch --nproc_per_node 4 build/examples/allreduce [BYTES [TIMES]]
 *
 * Sums BYTES of floats (default: 1 MiB) TIMES times (default: 20), checks the result, and prints
 * the mean time. */
#include <dlcoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const dlcoll_comm *comm)
{
    dlcoll_error error = DLCOLL_ERROR_INIT;
    dlcoll_last_error(comm, &error);
    fprintf(stderr, "allreduce: %s\n", error.text);
    exit(1);
}

int main(int argc, char **argv)
{
    size_t count = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1 << 20) / sizeof(float);
    int times = argc > 2 ? atoi(argv[2]) : 20;
    dlcoll_comm *comm;

    if (dlcoll_init(&comm, NULL) < 0)
        fail(NULL);
    int rank = dlcoll_rank(comm), size = dlcoll_size(comm);
    float *in = malloc(count * sizeof(float) + 1), *out = malloc(count * sizeof(float) + 1);
    if (!in || !out || times < 1) {
        fprintf(stderr, "usage: allreduce [BYTES [TIMES]]\n");
        return 2;
    }
    for (size_t i = 0; i < count; i++)
        in[i] = (float)(rank + 1);

    double start = 0;
    for (int k = -3; k < times; k++) { /* the first three connect the ranks and warm the caches */
        if (k == 0) {
            if (dlcoll_barrier(comm, NULL, NULL) < 0)
                fail(comm);
            start = now();
        }
        if (dlcoll_all_reduce(in, out, count, DLCOLL_F32, DLCOLL_SUM, comm, NULL, NULL) < 0)
            fail(comm);
    }
    double seconds = (now() - start) / times;

    for (size_t i = 0; i < count; i++) {
        if (out[i] != (float)size * (float)(size + 1) / 2) {
            fprintf(stderr, "allreduce: rank %d: element %zu is %g\n", rank, i, out[i]);
            return 1;
        }
    }
    if (rank == 0)
        printf("%d ranks, %zu bytes: %.1f us, %.3f GB/s\n", size, count * sizeof(float),
               seconds * 1e6, (double)(count * sizeof(float)) / seconds * 1e-9);
    if (dlcoll_finalize(comm) < 0)
        fail(comm);
    dlcoll_destroy(comm);
    free(in);
    free(out);
    return 0;
}
