/* Heartbeats come from a thread of their own: a launcher whose loop does not turn is slow, not
 * dead, until it has been stuck for too long. The loop is held as a blocked system call would hold
 * it: its thread alone is stopped, by ptrace. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/integration/elastic_nodes.h"

/* The main thread of the launcher's agent. */
static pid_t hold_loop(const struct proc *p)
{
    pid_t tid = agent_of(p);
    int status;
    ck_assert_int_eq(ptrace(PTRACE_SEIZE, tid, NULL, NULL), 0);
    ck_assert_int_eq(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL), 0);
    ck_assert_int_eq(waitpid(tid, &status, __WALL), tid);
    ck_assert(WIFSTOPPED(status));
    return tid;
}

static void let_loop_go(pid_t tid)
{
    ck_assert_int_eq(ptrace(PTRACE_DETACH, tid, NULL, NULL), 0);
}

/* Stops the loop, and only the loop, for longer than the dead time of 3 s. */
static void hold_for(const struct proc *p, double seconds)
{
    pid_t tid = hold_loop(p);
    test_elapse(seconds);
    let_loop_go(tid);
}

static void begin_two(struct nodes *c, const char *options)
{
    nodes_begin(c, "up");
    for (int i = 0; i < 2; i++)
        nodes_add(c, test_keep(xasprintf("--nnodes 1:2 --verbose %s", options)), "wait %T/go");
    wait_lines(c->up, 4, 20);
    /* Before, a hold may end a node. */
    proc_expect_err(&c->p[0], "the heartbeats of the node at 127.0.0.1 have a connection\n", 10);
    proc_expect_err(&c->p[1], "heartbeats to the coordinator have a connection\n", 10);
}

/* No node was lost, and no worker was started again. */
static void end_two(struct nodes *c)
{
    write_file(tmppath("go"), "");
    for (int i = 0; i < 2; i++) {
        nodes_expect(c, i, 0);
        ck_assert_msg(!strstr(c->p[i].err, " lost"), "node %d: %s", i, c->p[i].err);
    }
    ck_assert_int_eq(count_lines(c->up), 4);
    nodes_end(c);
}

START_TEST(a_stuck_loop_is_slow_not_dead)
{
    struct nodes c;
    write_file(tmppath("token"), "0123456789abcdef0123456789abcdef\n");
    chmod(tmppath("token"), 0600);
    begin_two(&c, _i ? "--token_file %T/token" : "");
    hold_for(&c.p[1], 4);
    proc_expect_err(&c.p[0], "is slow: its launcher is ", 10);
    expect_text(c.p[0].err, "s behind, but its heartbeats arrive\n");
    hold_for(&c.p[0], 4);
    proc_expect_err(&c.p[1], "dlaunch: the coordinator at ", 10);
    expect_text(c.p[1].err, " is slow: its launcher is ");
    end_two(&c);
}
END_TEST

START_TEST(all_loops_are_stuck)
{
    struct nodes c;
    begin_two(&c, "");
    pid_t first = hold_loop(&c.p[0]);
    hold_for(&c.p[1], 4);
    let_loop_go(first);
    end_two(&c);
}
END_TEST

/* Ten seconds after its last turn it is unhealthy; then its lease ends, and the others go on. */
START_TEST(job_continues_without_a_stuck_launcher)
{
    struct nodes c;
    begin_two(&c, "");
    pid_t tid = hold_loop(&c.p[1]);
    uint64_t start = mono_ns();
    wait_lines(c.up, 6, 30); /* the two workers of the other node, again */
    double seconds = (double)(mono_ns() - start) / 1e9;
    ck_assert_msg(seconds > 10 && seconds < 10 + test_seconds(8), "%.1f s", seconds);
    ck_assert_int_eq(waitpid(tid, NULL, __WALL), tid); /* before its parent can */
    int status = proc_wait(&c.p[1], 10);
    ck_assert_msg(status == 125, "exit %d\n%s", status, c.p[1].err);
    expect_text(c.p[1].err, "this launcher has been stuck for 10 s: it is unhealthy and sends no "
                            "heartbeats any more");
    expect_text(c.p[1].err, "the lease of this node ran out; ended 3 processes");
    write_file(tmppath("go"), "");
    nodes_expect(&c, 0, 0);
    expect_text(c.p[0].err, "was lost: ");
    nodes_end(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("heartbeats");
    TCase *tc = test_case(s, "stuck", 90);
    tcase_add_loop_test(tc, a_stuck_loop_is_slow_not_dead, 0, 2);
    tcase_add_test(tc, all_loops_are_stuck);
    tcase_add_test(tc, job_continues_without_a_stuck_launcher);
    return s;
}

TEST_MAIN(suite)
