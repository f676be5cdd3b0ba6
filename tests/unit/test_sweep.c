/* Ending every descendant, whatever it does. Most run twice: with the kernel's children files and
 * with a scan of /proc. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/spawn.h"
#include "agent/process/sweep.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "tests/lib/freezer.h"

#define SECONDS 20

extern char **environ;

static struct spawner *g_spawner;
static int g_alive[2]; /* every worker and all it starts hold [1] */

static void setup(void)
{
    struct err e;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ck_assert_int_eq(pipe2(g_alive, O_CLOEXEC), 0);
    ck_assert_int_eq(spawner_new(&g_spawner, &e), 0);
}

static void teardown(void)
{
    spawner_free(g_spawner);
}

/* A worker that ignores SIGTERM and has a child, a child in a session of its own, and a daemon. */
#define NASTY           "ignore", "TERM", "child", "setsid-child", "daemon"
#define NASTY_PROCESSES 4

static pid_t start(char *const *args)
{
    struct err e = ERR_INIT;
    struct spawn_request req = {.path = args[0],
                                .argv = args,
                                .envp = environ,
                                .stdio = {0, g_alive[1], 2},
                                .cgroup_fd = -1};
    pid_t pid;
    int pidfd;
    ck_assert_msg(spawn(g_spawner, &req, &pid, &pidfd, &e) == 0, "%s", e.msg);
    close_fd(&pidfd);
    return pid;
}

#define WORKER(...) start((char *[]){build_path("tests/worker"), __VA_ARGS__, NULL})

/* Until n lines have been printed. */
static void wait_lines(int n)
{
    char c;
    while (n > 0) {
        struct pollfd p = {g_alive[0], POLLIN, 0};
        ck_assert_int_eq(poll(&p, 1, (int)(test_seconds(SECONDS) * 1000)), 1);
        ck_assert_int_eq(read(g_alive[0], &c, 1), 1);
        n -= c == '\n';
    }
}

/* Every process that held the pipe has ended, and this process has no child. */
static void expect_all_dead(void)
{
    char c;
    close_fd(&g_alive[1]);
    ssize_t n;
    struct pollfd p = {g_alive[0], POLLIN, 0};
    do {
        ck_assert_msg(poll(&p, 1, (int)(test_seconds(SECONDS) * 1000)) == 1, "someone lives on");
        n = read(g_alive[0], &c, 1);
    } while (n > 0);
    ck_assert_int_eq(n, 0);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
    ck_assert_int_eq(sweep_children(NULL, 0), 0);
}

/* The daemon's middle process may have been met before it had ended by itself. */
static void expect_killed(const struct sweep *s, unsigned workers)
{
    ck_assert_uint_ge(s->killed, workers * NASTY_PROCESSES);
    ck_assert_uint_le(s->killed, workers * (NASTY_PROCESSES + 1));
}

START_TEST(nasty_workers)
{
    enum { N = 4 };
    struct sweep s;
    sweep_without_children_files = _i;
    for (int i = 0; i < N; i++)
        WORKER(NASTY, "print", "ready", "pause");
    wait_lines(N);
    sweep_init(&s);
    ck_assert_int_eq(sweep_run(&s, NULL, 0, test_seconds(SECONDS)), 0);
    expect_killed(&s, N);
    expect_all_dead();
}
END_TEST

START_TEST(at_any_moment)
{
    unsigned seed = 1;
    sweep_without_children_files = _i;
    for (int round = 0; round < 150; round++) {
        struct sweep s;
        WORKER(NASTY, "pause");
        WORKER(NASTY, "pause");
        for (uint64_t end = mono_ns() + (uint64_t)(rand_r(&seed) % 2000) * 1000; mono_ns() < end;)
            ;
        sweep_init(&s);
        ck_assert_int_eq(sweep_run(&s, NULL, 0, test_seconds(SECONDS)), 0);
        ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    }
    expect_all_dead();
}
END_TEST

/* Every process keeps forking until there have been 500 of them. */
static void bomb(_Atomic int *count)
{
    signal(SIGTERM, SIG_IGN);
    while (atomic_fetch_add(count, 1) < 500) {
        if (fork() == 0)
            setsid();
    }
    for (;;)
        pause();
}

START_TEST(fork_bomb)
{
    _Atomic int *count =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int when[] = {20, 250, 500};
    struct sweep s;
    sweep_without_children_files = _i >= 3;
    if (fork() == 0)
        bomb(count);
    while (atomic_load(count) < when[_i % 3])
        sched_yield();
    sweep_init(&s);
    ck_assert_int_eq(sweep_run(&s, NULL, 0, test_seconds(SECONDS)), 0);
    expect_all_dead();
}
END_TEST

START_TEST(long_chain)
{
    int ready[2];
    char c;
    struct sweep s;
    sweep_without_children_files = _i;
    ck_assert_int_eq(pipe(ready), 0);
    if (fork() == 0) {
        for (int depth = 0; depth < 150; depth++)
            if (fork() != 0)
                for (;;)
                    pause();
        if (write(ready[1], "", 1) < 0)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(ready[0], &c, 1), 1);
    sweep_init(&s);
    ck_assert_int_eq(sweep_run(&s, NULL, 0, test_seconds(SECONDS)), 0);
    ck_assert_uint_eq(s.killed, 151);
    expect_all_dead();
}
END_TEST

struct step_until {
    struct sweep s;
    pid_t *keep;
    size_t n;
};

static bool step_is_done(void *arg)
{
    struct step_until *u = arg;
    return sweep_step(&u->s, u->keep, u->n) == 0;
}

START_TEST(some_are_kept)
{
    struct step_until u = {.n = 3};
    pid_t keep[3];
    char env[64], stat[64];
    sweep_without_children_files = _i;
    snprintf(env, sizeof(env), "SWEEP_TEST=%d", (int)getpid());
    keep[0] = WORKER("child", "setsid-child", "print", "ready", "pause");
    keep[1] = WORKER("exit", "7"); /* its status is still to be had */
    keep[2] = WORKER("pause");
    for (int i = 0; i < 3; i++)
        WORKER(NASTY, "print", "ready", "pause");
    wait_lines(4);
    siginfo_t si;
    ck_assert_int_eq(waitid(P_PID, (id_t)keep[1], &si, WEXITED | WNOWAIT), 0);

    u.keep = keep;
    sweep_init(&u.s);
    wait_until(step_is_done, &u, SECONDS, "all but the kept are gone");
    expect_killed(&u.s, 3);
    ck_assert_int_eq(sweep_children(NULL, 0), 3);
    int status;
    ck_assert_int_eq(waitpid(keep[1], &status, WNOHANG), keep[1]);
    ck_assert_int_eq(WEXITSTATUS(status), 7);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), 0);
    snprintf(stat, sizeof(stat), "/proc/%d/task/%d/children", (int)keep[0], (int)keep[0]);
    char *children = read_file(stat);
    int a, b;
    ck_assert_msg(sscanf(children, "%d %d", &a, &b) == 2, "the kept one's children: %s", children);
    free(children);

    u.n = 0;
    wait_until(step_is_done, &u, SECONDS, "the kept are gone");
    expect_all_dead();
}
END_TEST

START_TEST(nothing_to_do)
{
    struct sweep s;
    sweep_init(&s);
    ck_assert_int_eq(sweep_step(&s, NULL, 0), 0);
    pid_t pid = WORKER("exit", "0");
    siginfo_t si;
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &si, WEXITED | WNOWAIT), 0);
    ck_assert_int_eq(sweep_step(&s, NULL, 0), 0);
    ck_assert_uint_eq(s.killed, 0);
    expect_all_dead();
}
END_TEST

START_TEST(stopped_processes)
{
    struct sweep s;
    pid_t pid = WORKER(NASTY, "print", "ready", "pause");
    wait_lines(1);
    kill(pid, SIGSTOP);
    sweep_init(&s);
    ck_assert_int_eq(sweep_run(&s, NULL, 0, test_seconds(SECONDS)), 0);
    expect_all_dead();
}
END_TEST

/* The children of a process that cannot die have no new parent: they are killed all the same. */
START_TEST(a_process_that_does_not_die)
{
    struct freezer f;
    struct sweep s;
    char text[256], want[64];
    sweep_without_children_files = _i;
    if (!freezer_init(&f)) {
        test_skip("needs root and a cgroup v1 freezer");
        return;
    }
    pid_t pid = WORKER("child", "setsid-child", "print", "ready", "pause");
    wait_lines(1);
    freezer_freeze(&f, pid);
    int held = dup(g_alive[0]);
    uint64_t began = mono_ns();
    sweep_init(&s);
    ck_assert_int_eq(sweep_run(&s, NULL, 0, 0.3), 1);
    ck_assert_uint_ge(mono_ns() - began, 300000000);
    ck_assert_uint_lt(mono_ns() - began, (uint64_t)(test_seconds(5) * 1e9));
    snprintf(want, sizeof(want), "pid %d (worker) in state D (uninterruptible sleep)", (int)pid);
    ck_assert_int_eq(strncmp(sweep_describe(pid, text, sizeof(text)), want, strlen(want)), 0);
    /* The children are dead, though their parent cannot reap them. */
    char path[64], *children;
    int a = 0, b = 0;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    children = read_file(path);
    ck_assert_int_eq(sscanf(children, "%d %d", &a, &b), 2);
    free(children);
    ck_assert_msg(strstr(sweep_describe(a, text, sizeof(text)), "in state Z"), "%s", text);
    ck_assert_msg(strstr(sweep_describe(b, text, sizeof(text)), "in state Z"), "%s", text);

    freezer_thaw(&f);
    ck_assert_int_eq(sweep_run(&s, NULL, 0, test_seconds(SECONDS)), 0);
    expect_all_dead();
    close(held);
    freezer_fini(&f);
}
END_TEST

START_TEST(descriptions)
{
    char text[256], want[64];
    pid_t pid = WORKER("print", "ready", "pause");
    wait_lines(1);
    kill(pid, SIGSTOP);
    siginfo_t si;
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &si, WSTOPPED), 0);
    snprintf(want, sizeof(want), "pid %d (worker) in state T (stopped)", (int)pid);
    ck_assert_int_eq(strncmp(sweep_describe(pid, text, sizeof(text)), want, strlen(want)), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    snprintf(want, sizeof(want), "pid %d (?) is gone", (int)pid);
    ck_assert_str_eq(sweep_describe(pid, text, sizeof(text)), want);
    prctl(PR_SET_NAME, "a) \x1b[1m");
    snprintf(want, sizeof(want), "pid %d (a) \\x1b[1m) in state R (running)", (int)getpid());
    ck_assert_int_eq(strncmp(sweep_describe(getpid(), text, sizeof(text)), want, strlen(want)), 0);
    char small[12];
    sweep_describe(getpid(), small, sizeof(small));
    ck_assert_uint_eq(strlen(small), 11);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sweep");
    TCase *tc = test_case(s, "sweep", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, nasty_workers, 0, 2);
    tcase_add_loop_test(tc, at_any_moment, 0, 2);
    tcase_add_loop_test(tc, fork_bomb, 0, 6);
    tcase_add_loop_test(tc, long_chain, 0, 2);
    tcase_add_loop_test(tc, some_are_kept, 0, 2);
    tcase_add_test(tc, nothing_to_do);
    tcase_add_test(tc, stopped_processes);
    tcase_add_loop_test(tc, a_process_that_does_not_die, 0, 2);
    tcase_add_test(tc, descriptions);
    return s;
}
TEST_MAIN(suite)
