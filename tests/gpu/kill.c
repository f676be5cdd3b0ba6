/* How soon a rank in the middle of an all_reduce of device memory knows that another one was
 * killed: rank 1 notes the time in a file and kills itself, rank 0's call comes back with the
 * error. kill FILE For two ranks, on one GPU or on two. Rank 0 exits with 0 when it took less than
 * 100 ms; it outlives the launcher's SIGTERM to say so. */
#include <cuda_runtime_api.h>
#include <dlcoll.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1 << 20, BEFORE = 50 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    dlcoll_comm *comm;
    dlcoll_error e = DLCOLL_ERROR_INIT;
    float *x;
    int devices = 0, rc = 0;
    double killed = 0;
    signal(SIGTERM, SIG_IGN);
    if (argc != 2 || dlcoll_init(&comm, NULL) < 0 || dlcoll_size(comm) != 2 ||
        cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
        cudaSetDevice(dlcoll_rank(comm) % devices) != cudaSuccess ||
        cudaMalloc((void **)&x, COUNT * sizeof(*x)) != cudaSuccess) {
        fputs("kill: no file named, not two ranks, or no device\n", stderr);
        return 1;
    }
    cudaMemset(x, 0, COUNT * sizeof(*x));
    for (int i = 0; rc >= 0; i++) {
        if (dlcoll_rank(comm) == 1 && i == BEFORE) {
            int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
            double now = now_ms();
            if (fd >= 0 && write(fd, &now, sizeof(now)) == (ssize_t)sizeof(now))
                kill(getpid(), SIGKILL);
            return 1;
        }
        rc = dlcoll_all_reduce(x, x, COUNT, DLCOLL_F32, DLCOLL_SUM, comm, NULL, NULL);
    }
    double back = now_ms();
    int fd = open(argv[1], O_RDONLY);
    dlcoll_last_error(comm, &e);
    if (fd < 0 || read(fd, &killed, sizeof(killed)) != (ssize_t)sizeof(killed)) {
        fprintf(stderr, "kill: failed before the kill: %s\n", e.text);
        return 1;
    }
    printf("back %.1f ms after the kill: %s\n", back - killed, e.text);
    fflush(stdout);
    dlcoll_destroy(comm);
    return back - killed < 100 ? 0 : 1;
}
