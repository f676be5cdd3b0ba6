/* The one place that waits: order of deaths, whose death it was, and closing at any moment. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/reaper.h"
#include "agent/process/spawn.h"
#include "agent/process/sweep.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/mem.h"
#include "tests/lib/loop.h"

#define MANY 200

static uv_loop_t g_loop;
static struct reaper *g_reaper;
static bool g_closed;

static int g_ids[MANY]; /* g_ids[i] == i; its address is the tag */
static int g_order[MANY];
static struct reaper_exit g_exits[MANY];
static int g_workers, g_orphans, g_want_workers, g_want_orphans;
static bool g_all;
static int g_close_after; /* closes itself from the callback of the n-th; 0: never */

static void check_all(void)
{
    g_all = g_workers >= g_want_workers && g_orphans >= g_want_orphans;
}

static void on_closed(void *arg)
{
    (void)arg;
    g_closed = true;
}

static void on_worker(void *arg, void *tag, const struct reaper_exit *x)
{
    ck_assert_ptr_eq(arg, &g_loop);
    g_exits[g_workers] = *x;
    g_order[g_workers++] = *(int *)tag;
    if (g_workers == g_close_after)
        reaper_close(g_reaper, on_closed, NULL);
    check_all();
}

static void on_orphan(void *arg, const struct reaper_exit *x)
{
    (void)arg, (void)x;
    g_orphans++;
    check_all();
}

static void setup(void)
{
    static const struct reaper_callbacks cb = {&g_loop, on_worker, on_orphan};
    struct err e;
    signal(SIGTERM, SIG_DFL); /* Check has a handler, which children would inherit */
    loop_setup(&g_loop);
    for (int i = 0; i < MANY; i++)
        g_ids[i] = i;
    ck_assert_int_eq(reaper_open(&g_reaper, &g_loop, &cb, &e), 0);
}

static void teardown(void)
{
    if (!g_close_after)
        reaper_close(g_reaper, on_closed, NULL);
    loop_run_until(&g_loop, &g_closed, 10, "the reaper is closed");
    loop_teardown(&g_loop);
}

static int pidfd_of(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* A child that ends as `code` when it gets SIGTERM, at once when `code` is negative. */
static pid_t child(int code)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (code < 0)
            _exit(-code);
        for (;;)
            pause();
    }
    return pid;
}

static void watch(pid_t pid, int pidfd, int i)
{
    struct err e;
    ck_assert_msg(reaper_watch(g_reaper, pid, pidfd, &g_ids[i], &e) == 0, "%s", e.msg);
}

/* Until it is dead, without reaping it. */
static void wait_dead(pid_t pid)
{
    siginfo_t si;
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &si, WEXITED | WNOWAIT), 0);
}

static void run_until_all(int workers, int orphans)
{
    g_want_workers = workers;
    g_want_orphans = orphans;
    check_all();
    loop_run_until(&g_loop, &g_all, 20, "all ends are told");
}

START_TEST(ends_are_reported_in_order_of_death)
{
    pid_t pids[MANY];
    unsigned seed = (unsigned)_i + 1;
    int order[MANY];
    for (int i = 0; i < MANY; i++) {
        pids[i] = child(0);
        watch(pids[i], pidfd_of(pids[i]), i);
        order[i] = i;
    }
    for (int i = MANY - 1; i > 0; i--) { /* any order but that of the births */
        int j = rand_r(&seed) % (i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (int i = 0; i < MANY; i++) {
        kill(pids[order[i]], SIGKILL);
        wait_dead(pids[order[i]]);
        if (i % 67 == 66) /* some of them in batches of their own */
            uv_run(&g_loop, UV_RUN_NOWAIT);
    }
    run_until_all(MANY, 0);
    for (int i = 0; i < MANY; i++) {
        ck_assert_msg(g_order[i] == order[i], "place %d: %d died, %d was told", i, order[i],
                      g_order[i]);
        ck_assert_int_eq(g_exits[i].pid, pids[order[i]]);
        ck_assert(WIFSIGNALED(g_exits[i].status) && WTERMSIG(g_exits[i].status) == SIGKILL);
        ck_assert_uint_gt(g_exits[i].seen_ns, 0);
    }
    ck_assert_int_eq(g_orphans, 0);
}
END_TEST

START_TEST(without_pidfds)
{
    pid_t pids[MANY];
    for (int i = 0; i < MANY; i++) {
        pids[i] = child(i % 2 ? -(i % 100) - 1 : 0);
        watch(pids[i], -1, i);
    }
    for (int i = 0; i < MANY; i += 2)
        kill(pids[i], SIGTERM);
    run_until_all(MANY, 0);
    for (int i = 0; i < MANY; i++) {
        int status = g_exits[i].status, id = g_order[i];
        ck_assert_int_eq(g_exits[i].pid, pids[id]);
        if (id % 2)
            ck_assert_int_eq(WEXITSTATUS(status), id % 100 + 1);
        else
            ck_assert_int_eq(WTERMSIG(status), SIGTERM);
    }
}
END_TEST

START_TEST(died_before_it_was_watched)
{
    pid_t a = child(-7), b = child(-8);
    wait_dead(a);
    wait_dead(b);
    watch(a, pidfd_of(a), 0);
    watch(b, -1, 1);
    run_until_all(2, 0);
    ck_assert_int_eq(g_orphans, 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(WEXITSTATUS(g_exits[i].status), 7 + g_order[i]);
}
END_TEST

START_TEST(orphans_are_not_taken_for_workers)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) { /* leaves two daemons behind, one already dead */
            for (int k = 0; k < 2; k++)
                if (fork() == 0)
                    _exit(3);
            _exit(i);
        }
        watch(pid, i % 3 ? pidfd_of(pid) : -1, i);
    }
    run_until_all(20, 40);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(WEXITSTATUS(g_exits[i].status), g_order[i]);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
}
END_TEST

/* A worker dies and leaves a process in its group. The reaper kills that one while the worker's
 * zombie still holds the number: nobody else in this test would. */
START_TEST(group_is_killed_before_the_worker_is_reaped)
{
    int alive[2];
    ck_assert_int_eq(pipe2(alive, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        setsid();
        if (fork() == 0) {
            for (;;)
                pause();
        }
        _exit(5);
    }
    close(alive[1]);
    wait_dead(pid);
    watch(pid, _i ? pidfd_of(pid) : -1, 0);
    if (!_i)
        kill(getpid(), SIGCHLD); /* it died before it was watched */
    run_until_all(1, 0);
    ck_assert_int_eq(WEXITSTATUS(g_exits[0].status), 5);
    struct pollfd p = {alive[0], POLLIN, 0}; /* hangs up when no process of the group is left */
    ck_assert_int_eq(poll(&p, 1, 10000), 1);
    ck_assert_int_eq(p.revents, POLLHUP);
    close(alive[0]);
}
END_TEST

START_TEST(reaped_by_someone_else)
{
    pid_t a = child(0), b = child(0);
    watch(a, pidfd_of(a), 0);
    watch(b, -1, 1);
    struct sweep s;
    sweep_init(&s);
    ck_assert_int_eq(sweep_run(&s, NULL, 0, test_seconds(10)), 0);
    kill(getpid(), SIGCHLD); /* sweep_run() has taken it */
    run_until_all(2, 0);
    for (int i = 0; i < 2; i++)
        ck_assert(WIFSIGNALED(g_exits[i].status) && WTERMSIG(g_exits[i].status) == SIGKILL);
}
END_TEST

/* A traced process is dead for its tracer first: nothing may spin meanwhile. */
START_TEST(held_by_a_debugger)
{
    int go[2];
    char c;
    ck_assert_int_eq(pipe(go), 0);
    pid_t worker = child(0);
    pid_t tracer = fork();
    if (tracer == 0) {
        ptrace(PTRACE_SEIZE, worker, NULL, NULL);
        kill(worker, SIGKILL);
        siginfo_t si;
        waitid(P_PID, (id_t)worker, &si, WEXITED | WNOWAIT);
        if (write(go[1], "", 1) < 0 || read(go[0], &c, 0) < 0)
            _exit(1);
        for (;;)
            pause();
    }
    int fd = pidfd_of(worker);
    ck_assert_int_eq(read(go[0], &c, 1), 1);
    watch(worker, fd, 0);
    struct pollfd p = {fd, POLLIN, 0};
    bool readable = poll(&p, 1, 0) == 1;
    uint64_t before = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t end = mono_ns() + 100000000; mono_ns() < end;) {
        loop_turns(&g_loop, 1);
        test_poll_pause();
    }
    ck_assert_int_eq(g_workers, 0);
    if (readable) /* else the kernel tells only when the tracer has let go */
        ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    ck_assert_uint_lt(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before,
                      (uint64_t)(test_seconds(0.09) * 1e9));
    kill(tracer, SIGKILL);
    run_until_all(1, 1);
    ck_assert(WIFSIGNALED(g_exits[0].status));
    close(go[0]);
    close(go[1]);
}
END_TEST

START_TEST(closing_in_the_callback)
{
    pid_t pids[MANY];
    g_close_after = _i + 1;
    for (int i = 0; i < 80; i++) {
        pids[i] = child(-1);
        watch(pids[i], i % 4 ? pidfd_of(pids[i]) : -1, i);
    }
    for (int i = 0; i < 80; i++)
        wait_dead(pids[i]);
    loop_run_until(&g_loop, &g_closed, 10, "closed");
    ck_assert_int_eq(g_workers, g_close_after);
    while (waitpid(-1, NULL, 0) > 0)
        ;
}
END_TEST

START_TEST(closing_with_workers_alive)
{
    pid_t pid = child(0);
    watch(pid, pidfd_of(pid), 0);
    loop_turns(&g_loop, _i);
    reaper_close(NULL, NULL, NULL);
    kill(pid, SIGKILL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("reaper");
    TCase *tc = test_case(s, "reaper", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, ends_are_reported_in_order_of_death, 0, 3);
    tcase_add_test(tc, without_pidfds);
    tcase_add_test(tc, died_before_it_was_watched);
    tcase_add_test(tc, orphans_are_not_taken_for_workers);
    tcase_add_loop_test(tc, group_is_killed_before_the_worker_is_reaped, 0, 2);
    tcase_add_test(tc, reaped_by_someone_else);
    tcase_add_test(tc, held_by_a_debugger);
    tcase_add_loop_test(tc, closing_in_the_callback, 0, 3);
    tcase_add_loop_test(tc, closing_with_workers_alive, 0, 3);
    return s;
}
TEST_MAIN(suite)
