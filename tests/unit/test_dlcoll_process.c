/* libdlcoll and the process it is in: threads, fork(), signals, descriptors. Ranks are forked. */
#include "tests/lib/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/comm/comm.h"
#include "collectives/p2p/p2p_state.h"
#include "tests/lib/ranks.h"

static void *call_barrier(void *arg)
{
    return (void *)(intptr_t)dlcoll_barrier(arg, NULL, NULL);
}

static void use_two_threads(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 0) {
        pthread_t t;
        void *first;
        EXPECT(pthread_create(&t, NULL, call_barrier, c) == 0);
        /* The other thread is in the barrier, which rank 1 does not enter yet. */
        struct segment_local *line = ranks_line(j, 0);
        while (atomic_load(&line->state) != SEGMENT_LOCAL_CALL)
            sched_yield();
        EXPECT(dlcoll_barrier(c, NULL, NULL) == DLCOLL_ESTATE);
        ranks_say_ready(j);
        EXPECT(pthread_join(t, &first) == 0 && first == NULL);
    } else {
        while (atomic_load(&j->shared->ready) == 0)
            sched_yield();
        EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    }
    comm_end(c);
}

START_TEST(a_second_thread_is_turned_away)
{
    ranks_run(2, 1, use_two_threads);
}
END_TEST

static void fork_a_child(struct ranks *j, int rank)
{
    (void)j;
    dlcoll_comm *c = comm_start();
    dlcoll_work *pending;
    char x = 0;
    EXPECT(dlcoll_recv(&x, 1, DLCOLL_U8, !rank, c, NULL, &pending) == 0, "%s", why(c));
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    pthread_mutex_lock(&c->error_lock); /* as if another thread had it */
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm((unsigned)test_seconds(10));
        EXPECT(dlcoll_barrier(c, NULL, NULL) == DLCOLL_ESTATE);
        EXPECT(strstr(why(c), "fork()'s child"), "%s", why(c));
        EXPECT(dlcoll_finalize(c) == DLCOLL_ESTATE);
        dlcoll_destroy(c);
        _exit(0);
    }
    pthread_mutex_unlock(&c->error_lock);
    int status;
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "%#x", (unsigned)status);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c)); /* the parent's is unharmed */
    EXPECT(dlcoll_send("", 1, DLCOLL_U8, !rank, c, NULL, NULL) == 0, "%s", why(c));
    EXPECT(dlcoll_wait(pending) == 0, "%s", why(c));
    dlcoll_work_free(pending);
    comm_end(c);
}

START_TEST(a_forked_child_is_turned_away)
{
    ranks_run(2, 1, fork_a_child);
}
END_TEST

static uint16_t g_store_port;

/* A lock that another thread has at that moment is taken for ever in the child; the descriptors
 * that it has are its parent's too. */
static void fork_children(struct ranks *j, int rank)
{
    enum { CHILDREN = 100 };
    int32_t x = 0, sent = 7;
    dlcoll_work *w = NULL;
    dlcoll_store *store;
    if (j->nnodes == 0) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        set_env_int("MASTER_PORT", g_store_port);
    }
    dlcoll_comm *c = comm_start();
    if (rank == 0)
        EXPECT(dlcoll_recv(&x, 1, DLCOLL_I32, 1, c, NULL, &w) == 0, "%s", why(c));
    for (int k = 0; k < CHILDREN && rank == 0; k++) {
        pthread_mutex_t *locks[] = {NULL, &c->p2p->lock, &c->job->acceptor.lock};
        pthread_mutex_t *held = locks[k % 3];
        int status;
        if (held)
            pthread_mutex_lock(held);
        pid_t pid = fork();
        if (pid == 0) {
            signal(SIGALRM, SIG_DFL);
            alarm((unsigned)test_seconds(10));
            dlcoll_destroy(c);
            _exit(0);
        }
        if (held)
            pthread_mutex_unlock(held);
        EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "%d: %#x", k, (unsigned)status);
    }
    /* The parent's is unharmed. */
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    if (rank == 1)
        EXPECT(dlcoll_send(&sent, 1, DLCOLL_I32, 0, c, NULL, NULL) == 0, "%s", why(c));
    else
        EXPECT(dlcoll_wait(w) == 0 && x == sent, "%d %s", x, why(c));
    dlcoll_work_free(w);
    if (j->nnodes == 0) {
        EXPECT(dlcoll_comm_store(c, &store) == 0, "%s", why(NULL));
        EXPECT(dlcoll_store_set(store, "key", "value", 5) == 0, "%s", why(NULL));
    }
    comm_end(c);
}

START_TEST(children_destroy_what_others_use)
{
    int fd = reserve_port(&g_store_port);
    ranks_run(2, _i, fork_children);
    close(fd);
}
END_TEST

/* The child has a copy of a handle, of an operation that the parent carries out. */
static void fork_with_a_handle(struct ranks *j, int rank)
{
    (void)j;
    int32_t x = 1, go = 0;
    dlcoll_work *w = NULL;
    dlcoll_store *store;
    dlcoll_comm *c = comm_start();
    if (rank == 1) { /* nobody has come before the child has tried */
        EXPECT(dlcoll_recv(&go, 1, DLCOLL_I32, 0, c, NULL, NULL) == 0, "%s", why(c));
        EXPECT(dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
    } else {
        EXPECT(dlcoll_all_reduce(&x, &x, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, &w) == 0, "%s",
               why(c));
        pid_t pid = fork();
        if (pid == 0) {
            size_t index;
            signal(SIGALRM, SIG_DFL);
            alarm((unsigned)test_seconds(5));
            EXPECT(dlcoll_test(w) == DLCOLL_ESTATE);
            EXPECT(dlcoll_wait(w) == DLCOLL_ESTATE);
            EXPECT(strstr(why(c), "fork()'s parent"), "%s", why(c));
            EXPECT(dlcoll_wait_for(w, 10) == DLCOLL_ESTATE);
            EXPECT(dlcoll_wait_any(&w, 1, &index, -1) == DLCOLL_ESTATE && index == 0);
            EXPECT(dlcoll_wait_all(&w, 1, -1) == DLCOLL_ESTATE);
            EXPECT(dlcoll_comm_store(c, &store) == DLCOLL_ESTATE);
            dlcoll_work_free(w);
            dlcoll_destroy(c);
            _exit(0);
        }
        int status;
        EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "%#x", (unsigned)status);
        EXPECT(dlcoll_send(&go, 1, DLCOLL_I32, 1, c, NULL, NULL) == 0, "%s", why(c));
        EXPECT(dlcoll_wait(w) == 0, "%s", why(c));
        dlcoll_work_free(w);
    }
    EXPECT(x == 2, "%d", x);
    comm_end(c);
}

START_TEST(a_forked_child_cannot_carry_out_its_parents)
{
    ranks_run(2, 1, fork_with_a_handle);
}
END_TEST

static void on_alarm(int signo)
{
    (void)signo;
}

static void be_interrupted(struct ranks *j, int rank)
{
    (void)j, (void)rank;
    struct sigaction sa = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct itimerval every = {{0, 500}, {0, 500}};
    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    dlcoll_comm *c = comm_start();
    static float x[300000];
    for (int k = 0; k < 30; k++)
        EXPECT(dlcoll_all_reduce(x, x, 300000, DLCOLL_F32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
               why(c));
    comm_end(c);
}

START_TEST(signals_do_not_disturb)
{
    ranks_run(3, 1, be_interrupted);
}
END_TEST

static void count_fds(struct ranks *j, int rank)
{
    (void)j, (void)rank;
    bool before[1024] = {false};
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(d));)
        before[atoi(e->d_name) % 1024] = true;
    rewinddir(d);
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    for (struct dirent *e; (e = readdir(d));) {
        int fd = atoi(e->d_name);
        bool handed_down =
            fd == atoi(getenv(SEGMENT_ENV_FD)) || fd == atoi(getenv(SEGMENT_ENV_LISTEN));
        if (e->d_name[0] != '.' && (!before[fd % 1024] || handed_down))
            EXPECT(fcntl(fd, F_GETFD) & FD_CLOEXEC, "fd %d", fd);
    }
    comm_end(c);
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d));)
        EXPECT(before[atoi(e->d_name) % 1024], "fd %s is left", e->d_name);
    closedir(d);
}

START_TEST(descriptors_are_closed_on_exec_and_at_the_end)
{
    ranks_run(3, 1, count_fds);
}
END_TEST

enum { PROGRAMS = 3 };

/* Rank 1 is late: a rank with a wrong call must get its error without waiting for rank 1. */
static void be_late(struct ranks *j)
{
    for (int ms = 0; ms < 300 && !atomic_load(&j->shared->go); ms++)
        test_poll_pause();
}

static void run_program(struct ranks *j, int rank, int k)
{
    int32_t x = 10 * k + rank, sum = -1;
    if (rank == 1 && k > 0)
        be_late(j);
    dlcoll_comm *c = comm_start();
    EXPECT(dlcoll_all_reduce(&x, &sum, 1, DLCOLL_I32, DLCOLL_SUM, c, NULL, NULL) == 0, "%s",
           why(c));
    if (sum != 20 * k + 1)
        atomic_store(&j->shared->go, 1);
    EXPECT(sum == 20 * k + 1, "program %d: %d", k, sum);
    comm_end(c);
}

/* The programs of one script, one after the other. */
static void run_programs(struct ranks *j, int rank)
{
    for (int k = 0; k < PROGRAMS; k++) {
        int status;
        pid_t pid = fork();
        EXPECT(pid >= 0);
        if (pid == 0) {
            run_program(j, rank, k);
            _exit(0);
        }
        EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "program %d", k);
    }
}

START_TEST(programs_of_a_worker_meet_those_of_the_others)
{
    setenv("DLCOLL_SHM", _i ? "0" : "1", 1);
    ranks_run(2, 1, run_programs);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_process");
    TCase *tc = test_case(s, "process", 60);
    tcase_add_test(tc, a_second_thread_is_turned_away);
    tcase_add_test(tc, a_forked_child_is_turned_away);
    tcase_add_test(tc, a_forked_child_cannot_carry_out_its_parents);
    tcase_add_loop_test(tc, children_destroy_what_others_use, 0, 3);
    tcase_add_test(tc, signals_do_not_disturb);
    tcase_add_loop_test(tc, programs_of_a_worker_meet_those_of_the_others, 0, 2);
    tcase_add_test(tc, descriptors_are_closed_on_exec_and_at_the_end);
    return s;
}

TEST_MAIN(suite)
