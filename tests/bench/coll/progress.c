/* progress: many operations by work handle at once, in a job (make bench-progress).
 *
 *     progress late N         a barrier on each of N communicators; the last rank is LATE_S late
 *     progress freed N        N communicators, each destroyed when its barrier is complete
 *     progress pending N K    K operations pending on each of N communicators
 *     progress small          8-byte all_reduce, blocking and by handle
 *
 * Rank 0 prints one line. Times are the slowest rank's. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "collectives/dlcoll.h"

enum { LATE_S = 5, WATCHED_S = 4, ROUNDS = 20000, REPEATS = 9 };

static dlcoll_comm *g_world;
static int g_rank, g_size;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void pause_for(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static int entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

#define OK(call) check((call), #call)
static void check(int code, const char *what)
{
    dlcoll_error e = DLCOLL_ERROR_INIT;
    if (code >= 0)
        return;
    dlcoll_last_error(g_world, &e);
    fprintf(stderr, "progress: %s: %d %s\n", what, code, e.text);
    exit(1);
}

/* The greatest value of all ranks. */
static double most(double x)
{
    double all;
    OK(dlcoll_all_reduce(&x, &all, 1, DLCOLL_F64, DLCOLL_MAX, g_world, NULL, NULL));
    return all;
}

static dlcoll_comm **make(int n)
{
    dlcoll_comm **c = calloc((size_t)n, sizeof(dlcoll_comm *));
    for (int i = 0; i < n; i++)
        OK(dlcoll_comm_split(g_world, 0, 0, &c[i], NULL));
    return c;
}

static void destroy(dlcoll_comm **c, int n)
{
    OK(dlcoll_barrier(g_world, NULL, NULL));
    for (int i = 0; i < n; i++)
        dlcoll_destroy(c[i]);
    free(c);
}

static void late(int n)
{
    int fds = entries("/proc/self/fd");
    dlcoll_comm **c = make(n);
    dlcoll_work **w = calloc((size_t)n, sizeof(dlcoll_work *));
    int is_late = g_rank == g_size - 1;
    OK(dlcoll_barrier(g_world, NULL, NULL));
    if (is_late)
        pause_for(LATE_S);
    double began = now();
    for (int i = 0; i < n; i++)
        OK(dlcoll_barrier(c[i], NULL, &w[i]));
    double begun = now() - began, used = 0;
    int threads = 0;
    if (!is_late) {
        pause_for(0.2);
        double before = cpu();
        pause_for(WATCHED_S);
        used = cpu() - before;
        threads = entries("/proc/self/task") - 2;
    }
    double waits = now();
    OK(dlcoll_wait_all(w, (size_t)n, -1));
    double ended = now() - (is_late ? began : waits);
    for (int i = 0; i < n; i++)
        dlcoll_work_free(w[i]);
    fds = entries("/proc/self/fd") - fds;
    double begin_late = most(is_late ? begun : 0), all_late = most(is_late ? ended : 0);
    double cpu_most = most(used), threads_most = most(threads), fds_most = most(fds);
    if (g_rank == 0)
        printf("late %d: waiting rank uses %.3f s of CPU in %d s; late rank begins in %.4f s, "
               "all complete after %.4f s; %.0f threads, %.0f more descriptors\n",
               n, cpu_most, WATCHED_S, begin_late, all_late, threads_most, fds_most);
    free(w);
    destroy(c, n);
}

static void freed(int n)
{
    dlcoll_comm **c = make(n);
    dlcoll_work **w = calloc((size_t)n, sizeof(dlcoll_work *));
    OK(dlcoll_barrier(g_world, NULL, NULL));
    double began = now(), before = cpu();
    for (int i = 0; i < n; i++)
        OK(dlcoll_barrier(c[i], NULL, &w[i]));
    for (int left = n; left > 0;) {
        size_t i;
        OK(dlcoll_wait_any(w, (size_t)n, &i, -1));
        dlcoll_work_free(w[i]);
        w[i] = NULL;
        dlcoll_destroy(c[i]);
        left--;
    }
    double t = most(now() - began), used = most(cpu() - before);
    if (g_rank == 0)
        printf("freed %d: %.3f s, %.3f s of CPU\n", n, t, used);
    free(w);
    free(c);
}

static void pending(int n, int k)
{
    dlcoll_comm **c = make(n);
    size_t all = (size_t)n * (size_t)k;
    dlcoll_work **w = calloc(all, sizeof(dlcoll_work *));
    int64_t *x = calloc(all, sizeof(*x));
    double best_begin = 1e9, best = 1e9, used = 1e9;
    for (int round = 0; round < 5; round++) {
        OK(dlcoll_barrier(g_world, NULL, NULL));
        double began = now(), before = cpu();
        for (size_t i = 0; i < all; i++) {
            x[i] = g_rank;
            OK(dlcoll_all_reduce(&x[i], &x[i], 1, DLCOLL_I64, DLCOLL_SUM, c[i % (size_t)n], NULL,
                                 &w[i]));
        }
        double begun = now() - began;
        OK(dlcoll_wait_all(w, all, -1));
        double ended = now() - began, its = cpu() - before;
        for (size_t i = 0; i < all; i++) {
            dlcoll_work_free(w[i]);
            if (x[i] != g_size * (g_size - 1) / 2)
                check(DLCOLL_EINTERNAL, "a wrong sum");
        }
        begun = most(begun), ended = most(ended), its = most(its);
        best_begin = begun < best_begin ? begun : best_begin;
        best = ended < best ? ended : best;
        used = its < used ? its : used;
    }
    if (g_rank == 0)
        printf(
            "pending %d x %d: begun in %.3f s, complete in %.3f s (%.2f us each), %.3f s of CPU\n",
            n, k, best_begin, best, best * 1e6 / (double)all, used);
    free(w);
    free(x);
    destroy(c, n);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double small_us(int by_handle)
{
    double times[REPEATS];
    for (int k = 0; k < REPEATS; k++) {
        OK(dlcoll_barrier(g_world, NULL, NULL));
        double began = now();
        for (int i = 0; i < ROUNDS; i++) {
            int64_t x = i;
            dlcoll_work *w = NULL;
            OK(dlcoll_all_reduce(&x, &x, 1, DLCOLL_I64, DLCOLL_SUM, g_world, NULL,
                                 by_handle ? &w : NULL));
            if (by_handle)
                OK(dlcoll_wait(w));
            dlcoll_work_free(w);
        }
        times[k] = (now() - began) / ROUNDS * 1e6;
    }
    qsort(times, REPEATS, sizeof(times[0]), by_value);
    return times[REPEATS / 2];
}

static void small(void)
{
    double blocking = most(small_us(0)), handle = most(small_us(1)), after = most(small_us(0));
    if (g_rank == 0)
        printf("small: blocking %.3f us, by handle %.3f us, blocking after a handle %.3f us\n",
               blocking, handle, after);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    OK(dlcoll_init(&g_world, NULL));
    g_rank = dlcoll_rank(g_world);
    g_size = dlcoll_size(g_world);
    int n = argc > 2 ? atoi(argv[2]) : 0;
    if (strcmp(argv[1], "late") == 0)
        late(n);
    else if (strcmp(argv[1], "freed") == 0)
        freed(n);
    else if (strcmp(argv[1], "pending") == 0)
        pending(n, argc > 3 ? atoi(argv[3]) : 1);
    else
        small();
    OK(dlcoll_finalize(g_world));
    dlcoll_destroy(g_world);
    return 0;
}
