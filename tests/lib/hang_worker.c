/* hang_worker: a program that hangs as it is told, for tests of --hang_after.
 *
 *     hang_worker KIND RANK DIR
 *
 * Steps of STEP_MS milliseconds, if the environment has it, with two operations each; after twice
 * STEPS of them (40, or as the environment has it) rank RANK does what KIND says, and the others go
 * on until they wait for it:
 * - none: nothing; the steps go on until DIR/end exists
 * - sleep: sleeps for ever
 * - loop: an endless loop
 * - skip: leaves out one operation: the next one does not match those of the others
 * - send: sends to the next rank, which does not receive
 * - locks: two threads, two mutexes
 * - group: its operation is that of another group
 * - stop: SIGSTOP
 * - node: its launcher is stopped, too
 * - kernel: state D: it waits for a child of vfork() that does not go on
 * - pipe: writes to a full pipe
 * - lock: waits for a lock on a file
 * - pause: works for 1.5 s once and goes on: a checkpoint
 * - slow: all work as long as their CPU time says, rank RANK LATE percent longer (default: 30)
 * - starve: rank RANK waits so much longer for a pipe in every step
 * When that was stands in DIR/planted, in seconds of the wall clock. Every rank says "up" after the
 * first STEPS. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "collectives/dlcoll.h"

static dlcoll_comm *g_comm, *g_pair;
static pthread_mutex_t g_lock[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_barrier_t g_both;
static volatile long g_count;
static long g_step_ms = 10, g_steps = 40;

static void nap_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void check(int r, const char *what)
{
    if (r >= 0)
        return;
    fprintf(stderr, "hang_worker: %s failed: %d\n", what, r);
    exit(3);
}

/* Uses so much CPU time of this process: the time that other processes take does not count. */
static void work_ms(double ms)
{
    struct timespec from, now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    do {
        g_count++;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while ((double)(now.tv_sec - from.tv_sec) * 1e3 + (double)(now.tv_nsec - from.tv_nsec) / 1e6 <
             ms);
}

/* A child writes a byte into a pipe whenever it is time. */
static void await_data(long ms)
{
    static int from = -1;
    char byte;
    int fds[2];
    if (from < 0) {
        if (pipe(fds) < 0)
            exit(4);
        if (fork() == 0) {
            close(fds[0]);
            do
                nap_ms(ms);
            while (write(fds[1], "", 1) == 1);
            _exit(0);
        }
        close(fds[1]);
        from = fds[0];
    }
    if (read(from, &byte, 1) != 1)
        exit(4);
}

static void sum(void)
{
    float x[16] = {1};
    check(dlcoll_all_reduce(x, x, 16, DLCOLL_F32, DLCOLL_SUM, g_comm, NULL, NULL), "all_reduce");
}

static void step(void)
{
    nap_ms(g_step_ms);
    sum();
    check(dlcoll_barrier(g_comm, NULL, NULL), "barrier");
}

/* Each takes one lock, then both want the other one. */
static void *take_locks(void *first)
{
    int i = first ? 0 : 1;
    pthread_mutex_lock(&g_lock[i]);
    pthread_barrier_wait(&g_both);
    pthread_mutex_lock(&g_lock[1 - i]);
    return NULL;
}

static void deadlock(void)
{
    pthread_t other;
    pthread_barrier_init(&g_both, NULL, 2);
    pthread_create(&other, NULL, take_locks, g_lock);
    take_locks(NULL);
}

static void spin_for_ever(void)
{
    for (;;)
        g_count++;
}

static void fill_pipe(void)
{
    static char bytes[1 << 20];
    int fds[2];
    if (pipe(fds) < 0)
        exit(4);
    while (write(fds[1], bytes, sizeof(bytes)) > 0) /* a part, when it was stopped meanwhile */
        ;
}

static void wait_for_file(const char *dir)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/lock", dir);
    int mine = open(path, O_RDWR | O_CREAT, 0600), other = open(path, O_RDWR);
    if (mine < 0 || other < 0 || flock(other, LOCK_EX) < 0)
        exit(4);
    flock(mine, LOCK_EX);
}

static void send_alone(int rank, int size)
{
    static float x[1 << 20];
    check(dlcoll_send(x, 1 << 20, DLCOLL_F32, (rank + 1) % size, g_comm, NULL, NULL), "send");
}

/* Work of a kind that no step has: it reads and writes, now here, now there. */
static void checkpoint(const char *dir)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/checkpoint", dir);
    for (int i = 0; i < 150; i++) {
        FILE *f = fopen(path, "w");
        fprintf(f, "%d\n", i);
        fclose(f);
        nap_ms(10);
    }
}

static void note_time(const char *dir)
{
    char path[512];
    struct timespec t;
    snprintf(path, sizeof(path), "%s/planted", dir);
    FILE *f = fopen(path, "w");
    clock_gettime(CLOCK_REALTIME, &t);
    if (!f)
        exit(4);
    fprintf(f, "%lld.%09ld\n", (long long)t.tv_sec, t.tv_nsec);
    fclose(f);
}

/* The parent of a vfork()'s child does not go on before the child does. */
static void wait_in_kernel(void)
{
    pid_t child = vfork();
    if (child == 0) {
        for (;;)
            pause();
    }
}

/* The other member of the group waits in the operation of all ranks. */
static void meet_in_group(void)
{
    check(dlcoll_barrier(g_pair, NULL, NULL), "barrier of a group");
}

/* Stops the launcher, too: its guardian, the agent and one worker, for which the others wait. */
static void stop_node(void)
{
    char path[64], text[512];
    int agent = (int)getppid(), guardian = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", agent);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(text, sizeof(text), f) ||
        sscanf(strrchr(text, ')'), ") %*c %d", &guardian) != 1)
        exit(4);
    fclose(f);
    kill(guardian, SIGSTOP);
    kill(agent, SIGSTOP);
    raise(SIGSTOP);
}

static void plant(const char *kind, const char *dir, int rank, int size)
{
    if (strcmp(kind, "sleep") == 0)
        nap_ms(1000000);
    else if (strcmp(kind, "loop") == 0)
        spin_for_ever();
    else if (strcmp(kind, "skip") == 0)
        check(dlcoll_barrier(g_comm, NULL, NULL), "barrier");
    else if (strcmp(kind, "send") == 0)
        send_alone(rank, size);
    else if (strcmp(kind, "locks") == 0)
        deadlock();
    else if (strcmp(kind, "group") == 0)
        meet_in_group();
    else if (strcmp(kind, "kernel") == 0)
        wait_in_kernel();
    else if (strcmp(kind, "stop") == 0)
        raise(SIGSTOP);
    else if (strcmp(kind, "node") == 0)
        stop_node();
    else if (strcmp(kind, "pipe") == 0)
        fill_pipe();
    else if (strcmp(kind, "lock") == 0)
        wait_for_file(dir);
    else if (strcmp(kind, "pause") == 0)
        checkpoint(dir);
}

int main(int argc, char **argv)
{
    char end[512];
    const char *ms = getenv("STEP_MS"), *steps = getenv("STEPS");
    if (argc != 4)
        return 2;
    if (ms)
        g_step_ms = atol(ms);
    if (steps)
        g_steps = atol(steps);
    check(dlcoll_init(&g_comm, NULL), "init");
    snprintf(end, sizeof(end), "%s/end", argv[3]);
    int rank = dlcoll_rank(g_comm), size = dlcoll_size(g_comm);
    if (strcmp(argv[1], "group") == 0)
        check(dlcoll_comm_split(g_comm, rank / 2, rank, &g_pair, NULL), "comm_split");
    for (int i = 0; i < g_steps; i++)
        step();
    printf("up\n");
    fflush(stdout);
    for (int i = 0; i < g_steps; i++) /* the output was a sign of life */
        step();
    if (rank == atoi(argv[2])) {
        note_time(argv[3]);
        plant(argv[1], argv[3], rank, size);
    }
    bool slow = strcmp(argv[1], "slow") == 0, starve = strcmp(argv[1], "starve") == 0;
    bool late = (slow || starve) && rank == atoi(argv[2]);
    double longer = getenv("LATE") ? atof(getenv("LATE")) : 30;
    for (float over = 0; over < 1;) { /* all end after the same step */
        if (slow)
            work_ms((double)g_step_ms * (late ? 1 + longer / 100 : 1));
        if (starve && late)
            await_data((long)((double)g_step_ms * longer / 100));
        step();
        over = access(end, F_OK) == 0;
        check(dlcoll_all_reduce(&over, &over, 1, DLCOLL_F32, DLCOLL_MAX, g_comm, NULL, NULL),
              "all_reduce");
    }
    dlcoll_finalize(g_comm);
    dlcoll_destroy(g_comm);
    return 0;
}
