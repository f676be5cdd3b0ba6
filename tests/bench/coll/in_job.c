/* in_job: a worker for bench-job.py.
 *
 *     in_job init             prints how long dlcoll_init() took, in us, the slowest rank's
 *     in_job ops N            prints how many ns an all_reduce of 8 bytes takes, the best of ten
 *                             times N
 *     in_job steps MS         an all_reduce every so many milliseconds, until it is killed
 *     in_job operations       prints the names of those that may be repeated
 *     in_job kill OP FILE     OP again and again, 8 KB for each rank; rank 1 writes the time into
 *                             FILE and kills itself; each other one prints its host's node, after
 *                             how many us it had the error, and whose fault that is
 *
 * FILE holds a struct killing, all zeros. */
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "tests/lib/coll_ops.h"

enum { VICTIM = 1, COUNT = 2 * 1024, CALLS_BEFORE = 200, WAIT_S = 5 };

struct killing {
    uint64_t at_ns;
    _Atomic uint32_t told; /* survivors that have the error */
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int fail(const char *what)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(NULL, &e);
    fprintf(stderr, "in_job: %s: %s\n", what, e.text);
    return 1;
}

static int run_init(void)
{
    dlcoll_comm *c;
    uint64_t began = now_ns();
    if (dlcoll_init(&c, NULL) < 0)
        return fail("dlcoll_init");
    double us = (double)(now_ns() - began) / 1e3, most;
    if (dlcoll_all_reduce(&us, &most, 1, DLCOLL_F64, DLCOLL_MAX, c, NULL, NULL) < 0)
        return fail("all_reduce");
    if (dlcoll_rank(c) == 0)
        printf("%.1f\n", most);
    dlcoll_finalize(c);
    dlcoll_destroy(c);
    return 0;
}

static int run_ops(long n)
{
    dlcoll_comm *c;
    double x = 1, best = 0;
    if (dlcoll_init(&c, NULL) < 0)
        return fail("dlcoll_init");
    for (int turn = 0; turn < 10; turn++) {
        uint64_t began = now_ns();
        for (long i = 0; i < n; i++) {
            if (dlcoll_all_reduce(&x, &x, 1, DLCOLL_F64, DLCOLL_MAX, c, NULL, NULL) < 0)
                return fail("all_reduce");
        }
        double ns = (double)(now_ns() - began) / (double)n;
        best = turn == 0 || ns < best ? ns : best;
    }
    if (dlcoll_rank(c) == 0)
        printf("%.2f\n", best);
    dlcoll_finalize(c);
    dlcoll_destroy(c);
    return 0;
}

static int run_steps(long ms)
{
    dlcoll_comm *c;
    double x = 1;
    if (dlcoll_init(&c, NULL) < 0)
        return fail("dlcoll_init");
    for (;;) {
        struct timespec step = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&step, NULL);
        if (dlcoll_all_reduce(&x, &x, 1, DLCOLL_F64, DLCOLL_MAX, c, NULL, NULL) < 0)
            return fail("all_reduce");
    }
}

/* To end a process takes the kernel longer than all that is measured here: nobody does that, or
 * prints, on the CPU of one who does not know yet. */
static void wait_for_others(struct killing *k, uint32_t survivors)
{
    uint64_t until = now_ns() + WAIT_S * 1000000000ull;
    uint32_t told = atomic_fetch_add(&k->told, 1) + 1;
    if (told == survivors)
        syscall(SYS_futex, &k->told, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    for (; told < survivors && now_ns() < until; told = atomic_load(&k->told)) {
        struct timespec second = {.tv_sec = 1};
        syscall(SYS_futex, &k->told, FUTEX_WAIT, told, &second, NULL, 0);
    }
}

static int run_kill(int op, const char *path)
{
    dlcoll_comm *c;
    int fd = open(path, O_RDWR);
    struct killing *k = mmap(NULL, sizeof(*k), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (k == MAP_FAILED || dlcoll_init(&c, NULL) < 0)
        return fail("init");
    struct coll_buffers b = coll_buffers_new(COUNT, dlcoll_size(c));
    if (!b.x)
        return 1;
    signal(SIGTERM, SIG_IGN); /* the launcher stops the others; they have something to say */
    int code = 0;
    for (int turn = 0; code == 0; turn++) {
        if (turn == CALLS_BEFORE && dlcoll_rank(c) == VICTIM) {
            k->at_ns = now_ns();
            kill(getpid(), SIGKILL);
        }
        code = coll_op_call((enum coll_op)op, c, &b, turn);
    }
    uint64_t now = now_ns();
    wait_for_others(k, (uint32_t)dlcoll_size(c) - 1);
    dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(c, &e);
    char line[96];
    int len = snprintf(line, sizeof(line), "%s %.1f %d\n", getenv("GROUP_RANK"),
                       (double)(now - k->at_ns) / 1e3, e.rank);
    return write(1, line, (size_t)len) == len ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "init"))
        return run_init();
    if (argc == 3 && !strcmp(argv[1], "ops"))
        return run_ops(atol(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "steps"))
        return run_steps(atol(argv[2]));
    for (int op = 0; op < COLL_REPEATED && argc == 2 && !strcmp(argv[1], "operations"); op++)
        puts(coll_op_names[op]);
    if (argc == 2 && !strcmp(argv[1], "operations"))
        return 0;
    if (argc == 4 && !strcmp(argv[1], "kill") && coll_op_of(argv[2]) >= 0)
        return run_kill(coll_op_of(argv[2]), argv[3]);
    fprintf(stderr, "usage: in_job init | ops N | steps MS | operations | kill OP FILE\n");
    return 2;
}
