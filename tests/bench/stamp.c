/* stamp.c: a worker that writes down when it began.
 *   stamp FILE          appends "RANK NODE PID NANOSECONDS" (CLOCK_MONOTONIC), and exits with 0
 *   stamp FILE SECOND   the same; then waits for its end, unless the file SECOND is there */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const char *rank = getenv("RANK"), *node = getenv("GROUP_RANK");
    char line[100];
    int fd = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    int n =
        snprintf(line, sizeof(line), "%.9s %.9s %d %lld\n", rank ? rank : "-", node ? node : "-",
                 (int)getpid(), (long long)t.tv_sec * 1000000000 + t.tv_nsec);
    if (fd < 0 || write(fd, line, (size_t)n) != n) {
        perror(argc > 1 ? argv[1] : "usage: stamp FILE [SECOND]");
        return 2;
    }
    if (argc > 2 && access(argv[2], F_OK) != 0) {
        for (;;)
            pause();
    }
    return 0;
}
