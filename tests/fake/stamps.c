/* stamps.c: preloaded into a worker, this library records in a file of the folder STAMPS when the
 * worker has started and when it has last been alive. The file survives the worker's SIGKILL, since
 * the kernel writes back shared mappings. tests/multihost reads the files. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/fake/stamps.h"

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *keep_stamping(void *arg)
{
    struct stamp *stamp = arg;
    const struct timespec pause = {0, 1000000};
    for (;;) {
        stamp->last_ns = now_ns();
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int32_t number_of(const char *variable)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : -1;
}

__attribute__((constructor)) static void begin(void)
{
    char path[4096], host[64] = "";
    pthread_t thread;
    sigset_t all, before;
    const char *folder = getenv("STAMPS");
    uint64_t start = now_ns();
    if (!folder || !getenv("RANK"))
        return; /* not a worker */
    gethostname(host, sizeof(host) - 1);
    snprintf(path, sizeof(path), "%s/%s-%d-%llu", folder, host, (int)getpid(),
             (unsigned long long)start);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof(struct stamp)) < 0) {
        perror(path);
        _exit(3);
    }
    struct stamp *stamp = mmap(NULL, sizeof(*stamp), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (stamp == MAP_FAILED) {
        perror(path);
        _exit(3);
    }
    stamp->rank = number_of("RANK");
    stamp->world_size = number_of("WORLD_SIZE");
    stamp->restart_count = number_of("TORCHELASTIC_RESTART_COUNT");
    stamp->master_port = number_of("MASTER_PORT");
    snprintf(stamp->host, sizeof(stamp->host), "%.*s", (int)sizeof(stamp->host) - 1, host);
    stamp->last_ns = start;
    stamp->start_ns = start;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, keep_stamping, stamp) != 0)
        _exit(3);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
