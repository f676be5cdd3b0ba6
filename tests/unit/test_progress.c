/* The one progress thread of a process: many operations by handle on many communicators, under one
 * launcher (0), two (1), and none (2), with shared memory and without (+ 3). */
#include "tests/lib/test.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "core/clock.h"
#include "tests/lib/ranks.h"

enum { RANKS = 4, GROUPS = 40, EACH = 5, WAYS = 6 };

/* The thread sanitizer has a thread of its own. */
#if defined(__SANITIZE_THREAD__)
enum { OF_SANITIZER = 2 };
#else
enum { OF_SANITIZER = 0 };
#endif

static int g_way;
static uint16_t g_port;

static dlcoll_comm *start(void)
{
    if (g_way >= 3)
        setenv("DLCOLL_SHM", "0", 1);
    if (g_way % 3 == 2) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        set_env_int("MASTER_PORT", g_port);
    }
    return comm_start();
}

static void run(int way, rank_fn *fn)
{
    int fd = reserve_port(&g_port);
    g_way = way;
    ranks_run_for(RANKS, way % 3 == 2 ? 0 : way % 3 + 1, fn, test_seconds(60));
    close(fd);
}

/* Entries of a folder; `text` NULL: all of them, else links to what contains it. */
static int count_entries(const char *folder, const char *text)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    char link[64], to[256];
    int n = 0;
    EXPECT(d);
    while ((e = readdir(d))) {
        snprintf(link, sizeof(link), "%s/%.32s", folder, e->d_name);
        ssize_t len = text ? readlink(link, to, sizeof(to) - 1) : 0;
        to[len > 0 ? len : 0] = '\0';
        n += e->d_name[0] != '.' && (!text || strstr(to, text));
    }
    closedir(d);
    return n;
}

static int threads(void)
{
    return count_entries("/proc/self/task", NULL);
}

static void make_groups(dlcoll_comm *c, dlcoll_comm **groups)
{
    for (int i = 0; i < GROUPS; i++)
        EXPECT(dlcoll_comm_split(c, 0, 0, &groups[i], NULL) == 0, "%s", why(c));
}

/* ----------------------------------------------------------------------------------------- many */

/* Rank 3 is late: the others have everything pending, which costs them one thread. */
static void many(struct ranks *j, int rank)
{
    dlcoll_comm *c = start(), *groups[GROUPS];
    dlcoll_work *works[GROUPS * (EACH + 2)];
    int64_t x[GROUPS * EACH], got[GROUPS], mine = rank;
    int n = 0, next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    int alone = threads(), pidfds = count_entries("/proc/self/fd", "pidfd");
    make_groups(c, groups);
    if (rank == 3) {
        ranks_say_ready(j);
        ranks_await_ready(j);
    }
    for (int i = 0; i < GROUPS; i++) {
        EXPECT(dlcoll_recv(&got[i], 1, DLCOLL_I64, before, groups[i], NULL, &works[n++]) == 0);
        EXPECT(dlcoll_send(&mine, 1, DLCOLL_I64, next, groups[i], NULL, &works[n++]) == 0);
        for (int k = 0; k < EACH; k++) {
            int64_t *to = &x[i * EACH + k];
            *to = rank + k;
            EXPECT(dlcoll_all_reduce(to, to, 1, DLCOLL_I64, DLCOLL_SUM, groups[i], NULL,
                                     &works[n++]) == 0,
                   "%s", why(groups[i]));
        }
    }
    if (rank != 3) {
        EXPECT(threads() <= alone + 1 + OF_SANITIZER, "%d threads, %d before", threads(), alone);
        EXPECT(dlcoll_wait_for(works[n - 1], 1) == DLCOLL_INPROGRESS);
        ranks_say_ready(j); /* rank 3 begins when all the others are here */
    }
    EXPECT(count_entries("/proc/self/fd", "pidfd") == pidfds, "a descriptor for each communicator");
    EXPECT(dlcoll_wait_all(works, (size_t)n, -1) == 0);
    for (int i = 0; i < GROUPS; i++) {
        EXPECT(got[i] == before, "%lld", (long long)got[i]);
        for (int k = 0; k < EACH; k++)
            EXPECT(x[i * EACH + k] == 6 + 4 * k, "%lld", (long long)x[i * EACH + k]);
    }
    for (int i = 0; i < n; i++)
        dlcoll_work_free(works[i]);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0);
    for (int i = 0; i < GROUPS; i++)
        dlcoll_destroy(groups[i]);
    comm_end(c);
    EXPECT(threads() <= alone + OF_SANITIZER, "the thread ends with the job: %d, %d before",
           threads(), alone);
}

START_TEST(many_operations_share_a_thread)
{
    run(_i, many);
}
END_TEST

/* dlcoll_wait_any() only looks: the thread alone completes the operations. */
static void tested(struct ranks *j, int rank)
{
    dlcoll_comm *c = start(), *groups[GROUPS];
    dlcoll_work *works[GROUPS];
    int64_t x[GROUPS];
    (void)j;
    make_groups(c, groups);
    for (int i = 0; i < GROUPS; i++) {
        x[i] = rank;
        EXPECT(dlcoll_all_reduce(&x[i], &x[i], 1, DLCOLL_I64, DLCOLL_SUM, groups[i], NULL,
                                 &works[i]) == 0);
    }
    for (int left = GROUPS; left; left--) {
        size_t i = GROUPS;
        EXPECT(dlcoll_wait_any(works, GROUPS, &i, -1) == 0);
        EXPECT(i < GROUPS && x[i] == 6);
        dlcoll_work_free(works[i]);
        works[i] = NULL;
        dlcoll_destroy(groups[i]); /* as MPI_Comm_free() beside a pending barrier */
    }
    comm_end(c);
}

START_TEST(communicators_are_destroyed_as_they_complete)
{
    run(_i, tested);
}
END_TEST

/* ---------------------------------------------------------------------------------- the program */

static void __attribute__((noinline))
deep_sum(void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    volatile char much[1 << 20]; /* more than a task's stack has */
    (void)dtype;
    for (size_t i = 0; i < sizeof(much); i += 512)
        much[i] = 1;
    for (size_t i = 0; i < count; i++)
        ((int64_t *)acc)[i] += ((const int64_t *)in)[i] + much[512 * i] - 1;
    ++*(int *)ctx;
}

static void deep(struct ranks *j, int rank)
{
    dlcoll_comm *c = start();
    dlcoll_work *w;
    dlcoll_op op;
    int64_t x[100];
    int calls = 0;
    (void)j;
    EXPECT(dlcoll_op_create_user(&op, deep_sum, &calls, 0) == 0);
    for (int i = 0; i < 100; i++)
        x[i] = rank + i;
    EXPECT(dlcoll_all_reduce(x, x, 100, DLCOLL_I64, op, c, NULL, &w) == 0);
    while (dlcoll_test(w) == DLCOLL_INPROGRESS) /* which does not carry it out */
        sched_yield();
    EXPECT(dlcoll_wait(w) == 0, "%s", why(c));
    for (int i = 0; i < 100; i++)
        EXPECT(x[i] == 6 + 4 * i, "%lld", (long long)x[i]);
    dlcoll_work_free(w);
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0);
    dlcoll_op_free(op);
    comm_end(c);
}

START_TEST(a_reduction_of_the_program_has_a_whole_stack)
{
    run(_i, deep);
}
END_TEST

static void late(struct ranks *j, int rank)
{
    dlcoll_comm *c = start(), *group;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_work *w = NULL;
    o.timeout_ms = 60;
    EXPECT(dlcoll_comm_split(c, 0, 0, &group, NULL) == 0);
    if (rank == 0) {
        uint64_t began = mono_ns();
        EXPECT(dlcoll_barrier(group, &o, &w) == 0);
        int code;
        while ((code = dlcoll_wait_for(w, 1)) == DLCOLL_INPROGRESS)
            EXPECT(mono_ns() - began < (uint64_t)(test_seconds(20) * 1e9), "still waiting");
        EXPECT(code == DLCOLL_ETIMEDOUT, "%d", code);
        EXPECT(mono_ns() - began >= 60u * 1000 * 1000, "too early");
        dlcoll_work_free(w);
        ranks_say_ready(j);
    } else {
        while (atomic_load(&j->shared->ready) == 0)
            usleep(1000);
    }
    EXPECT(dlcoll_barrier(c, NULL, NULL) == 0, "%s", why(c));
    dlcoll_destroy(group);
    comm_end(c);
}

START_TEST(a_deadline_holds_in_the_thread)
{
    run(_i, late);
}
END_TEST

/* A child has none of its parent's threads, and starts its own. */
static void forks(struct ranks *j, int rank)
{
    dlcoll_comm *c = start();
    dlcoll_work *w;
    int status;
    (void)j, (void)rank;
    EXPECT(dlcoll_barrier(c, NULL, &w) == 0 && dlcoll_wait(w) == 0);
    dlcoll_work_free(w);
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
        dlcoll_comm *own;
        dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
        char method[64];
        int64_t x = 5;
        snprintf(method, sizeof(method), "file:///tmp/test_progress.%d", (int)getpid());
        o.world_size = 1;
        o.init_method = method;
        if (dlcoll_init(&own, &o) < 0 ||
            dlcoll_all_reduce(&x, &x, 1, DLCOLL_I64, DLCOLL_SUM, own, NULL, &w) < 0)
            _exit(2);
        int code;
        while ((code = dlcoll_wait_for(w, 1)) == DLCOLL_INPROGRESS)
            ;
        dlcoll_work_free(w);
        dlcoll_destroy(own);
        dlcoll_destroy(c);
        _exit(code == 0 && x == 5 ? 0 : 3);
    }
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
    EXPECT(dlcoll_barrier(c, NULL, &w) == 0 && dlcoll_wait_for(w, -1) == 0);
    dlcoll_work_free(w);
    comm_end(c);
}

/* Sanitizers do not free their locks in the child, whose threads may block on one that another
 * thread of the parent has held. */
START_TEST(a_forked_child_has_a_thread_of_its_own)
{
    if (test_skip_sanitized("a fork()'s child of several threads starts threads"))
        return;
    run(_i, forks);
}
END_TEST

/* -------------------------------------------------------------------------------------- kill -9 */

enum { VICTIM = 2 };

static void pending(struct ranks *j, int rank)
{
    dlcoll_comm *c = start(), *groups[GROUPS];
    dlcoll_work *works[2 * GROUPS];
    int64_t x[GROUPS];
    make_groups(c, groups);
    if (rank == VICTIM) {
        ranks_say_ready(j);
        ranks_await_go(j); /* it never comes */
    }
    for (int i = 0; i < GROUPS; i++) {
        EXPECT(dlcoll_barrier(groups[i], NULL, &works[2 * i]) == 0);
        EXPECT(dlcoll_recv(&x[i], 1, DLCOLL_I64, VICTIM, groups[i], NULL, &works[2 * i + 1]) == 0);
    }
    ranks_say_ready(j);
    int code = 0;
    for (int i = 0; i < 2 * GROUPS; i++) {
        while ((code = dlcoll_wait_for(works[i], 1000)) == DLCOLL_INPROGRESS)
            ;
        EXPECT(code == DLCOLL_EPEER, "operation %d: %d %s", i, code, why(groups[i / 2]));
        dlcoll_work_free(works[i]);
    }
    ranks_keep_result(j, rank, groups[GROUPS - 1], code);
    for (int i = 0; i < GROUPS; i++)
        dlcoll_destroy(groups[i]);
    dlcoll_destroy(c);
}

START_TEST(a_killed_rank_ends_what_is_pending)
{
    struct ranks j;
    double most = 0;
    int fd = reserve_port(&g_port);
    g_way = _i;
    ranks_init(&j, RANKS, _i % 3 == 2 ? 0 : _i % 3 + 1);
    ranks_start(&j, pending);
    wait_until(ranks_are_ready, &j, 30, "all ranks have begun their operations");
    test_elapse(0.05); /* the tasks have parked */
    uint64_t killed_ns = mono_ns();
    kill(j.pid[VICTIM], SIGKILL);
    ranks_reap(&j, VICTIM);
    if (_i % 3 != 2)
        ranks_play_agent(&j, VICTIM);
    ranks_wait(&j, 20, 1u << VICTIM);
    for (int r = 0; r < RANKS; r++) {
        const dlcoll_error *e = &j.shared->rank[r].error;
        double ms = (double)(j.shared->rank[r].returned_ns - killed_ns) / 1e6;
        if (r == VICTIM)
            continue;
        most = ms > most ? ms : most;
        ck_assert_msg(e->rank == VICTIM && e->pid == j.pid[VICTIM], "rank %d: %s", r, e->text);
    }
    printf("way %d: %d operations had ended after %.1f ms\n", _i, 2 * GROUPS, most);
    ck_assert_double_lt(most, test_seconds(5) * 1000);
    ranks_fini(&j);
    close(fd);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("progress");
    TCase *tc = tcase_create("progress");
    tcase_set_timeout(tc, test_seconds(90));
    tcase_add_loop_test(tc, many_operations_share_a_thread, 0, WAYS);
    tcase_add_loop_test(tc, communicators_are_destroyed_as_they_complete, 0, WAYS);
    tcase_add_loop_test(tc, a_reduction_of_the_program_has_a_whole_stack, 0, WAYS);
    tcase_add_loop_test(tc, a_deadline_holds_in_the_thread, 0, WAYS);
    tcase_add_loop_test(tc, a_forked_child_has_a_thread_of_its_own, 0, WAYS);
    tcase_add_loop_test(tc, a_killed_rank_ends_what_is_pending, 0, WAYS);
    suite_add_tcase(s, tc);
    return s;
}

TEST_MAIN(suite)
