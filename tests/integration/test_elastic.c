/* Nodes that come, go, are lost or freeze while the job runs: launchers of one machine, each a
 * node; node 0 is the coordinator. */
#include "tests/lib/test.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "tests/integration/elastic_nodes.h"

/* --------------------------------------------------------------------------- lost, and replaced */

enum loss { GUARDIAN_KILLED, AGENT_KILLED, AGENT_STOPPED, BOTH_STOPPED, BOTH_TRACED };

/* A debugger halts the process, all its threads; SIGCONT does not continue it. */
static void halt(pid_t pid)
{
    glob_t tasks;
    ck_assert_int_eq(glob(test_text("/proc/%d/task/*", pid), 0, NULL, &tasks), 0);
    for (size_t i = 0; i < tasks.gl_pathc; i++) {
        pid_t tid = atoi(strrchr(tasks.gl_pathv[i], '/') + 1);
        ck_assert_int_eq(ptrace(PTRACE_SEIZE, tid, NULL, NULL), 0);
        ck_assert_int_eq(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL), 0);
    }
    globfree(&tasks);
}

static void lose(pid_t guardian, pid_t agent, enum loss how)
{
    if (how == BOTH_STOPPED)
        kill(guardian, SIGSTOP);
    if (how == BOTH_TRACED)
        halt(guardian);
    if (how == AGENT_STOPPED || how == BOTH_STOPPED)
        kill(agent, SIGSTOP);
    if (how == BOTH_TRACED)
        halt(agent);
    if (how == GUARDIAN_KILLED || how == AGENT_KILLED)
        kill(how == GUARDIAN_KILLED ? guardian : agent, SIGKILL);
}

/* A process that is only waited for has ended. */
static bool has_ended(void *pid)
{
    char *path = test_text("/proc/%d/stat", *(pid_t *)pid);
    return access(path, R_OK) < 0 || strstr(text_of_file(path), ") Z ");
}

/* Three nodes of which one is lost: its guardian, its agent, or by a freeze. The others go on, and
 * no worker of the lost one runs beside their next round. */
static void lose_one(const char *name, enum loss how)
{
    pid_t workers[2];
    struct nodes c;
    nodes_begin(&c, name);
    for (int i = 0; i < 3; i++)
        nodes_add(&c, "--nnodes 2:3", "env WORLD_SIZE wait %T/go");
    wait_lines(c.up, 6, 20);
    uint64_t start = mono_ns();
    pid_t agent = agent_of(&c.p[2]);
    char *children = text_of_file(test_text("/proc/%d/task/%d/children", agent, agent));
    ck_assert_int_eq(sscanf(children, "%d %d", &workers[0], &workers[1]), 2);
    lose(c.p[2].pid, agent, how);
    wait_lines(c.up, 10, 20);
    for (int i = 0; i < 2; i++)
        wait_until(has_ended, &workers[i], 0.5, "the end of a worker of the lost node");
    if (how == BOTH_TRACED)
        ck_assert_int_eq(ptrace(PTRACE_DETACH, c.p[2].pid, NULL, NULL), 0);
    printf("%s: %.0f ms to the next round\n", name, (double)(mono_ns() - start) / 1e6);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 0, 0);
    nodes_expect(&c, 1, 0);
    expect_text(c.p[0].err, "was lost");
    expect_text(c.p[1].err, "was lost");
    expect_text(c.p[1].out, "WORLD_SIZE=6\n");
    expect_text(c.p[1].out, "WORLD_SIZE=4\n");
    if (how >= AGENT_STOPPED) {
        nodes_expect(&c, 2, 125);
        expect_text(c.p[2].err, "the lease of this node ran out");
    }
    nodes_end(&c);
    unlink(tmppath("go"));
}

START_TEST(job_continues_without_a_killed_launcher)
{
    lose_one("killed-guardian", GUARDIAN_KILLED);
    lose_one("killed-agent", AGENT_KILLED);
}
END_TEST

START_TEST(a_frozen_agents_workers_are_ended_by_its_guardian)
{
    lose_one("frozen-agent", AGENT_STOPPED);
}
END_TEST

START_TEST(a_frozen_launchers_workers_end_by_timers_of_the_kernel)
{
    lose_one("frozen-launcher", BOTH_STOPPED);
    lose_one("traced-launcher", BOTH_TRACED);
}
END_TEST

START_TEST(a_short_freeze_changes_nothing)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 2; i++)
        nodes_add(&c, "--nnodes 1:2", "wait %T/go");
    wait_lines(c.up, 4, 20);
    for (int i = 0; i < 2; i++) {
        pid_t agent = agent_of(&c.p[i]);
        kill(agent, SIGSTOP);
        test_elapse(0.5); /* less than the lease of 1.4 s less a heartbeat */
        kill(agent, SIGCONT);
    }
    write_file(tmppath("go"), "");
    nodes_expect(&c, 0, 0);
    nodes_expect(&c, 1, 0);
    ck_assert_int_eq(count_lines(c.up), 4);
    nodes_end(&c);
}
END_TEST

static void expect_log(const char *name, const char *text)
{
    glob_t g;
    ck_assert_int_eq(glob(test_text("%s/logs/*/%s", tmpdir(), name), 0, NULL, &g), 0);
    ck_assert_str_eq(test_keep(read_file(g.gl_pathv[0])), text);
    globfree(&g);
}

START_TEST(a_spare_takes_the_place_of_a_lost_node)
{
    struct nodes c;
    nodes_begin(&c, "up");
    nodes_add(&c, "--nnodes 2 --spares 1 -r 1 --log_dir %T/logs", "env GROUP_RANK wait %T/go");
    nodes_add(&c, "--nnodes 2 --spares 1", "env GROUP_RANK wait %T/go");
    wait_lines(c.up, 4, 20);
    nodes_add(&c, "--nnodes 2 --spares 1", "env GROUP_RANK env WORLD_SIZE wait %T/go");
    proc_expect_err(&c.p[2], "waits for a place", 10);
    proc_kill(&c.p[1], SIGKILL);
    wait_lines(c.up, 8, 20);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 0, 0);
    nodes_expect(&c, 2, 0);
    expect_text(c.p[2].out, "GROUP_RANK=1\nWORLD_SIZE=4\n");
    expect_log("attempt_0/1/stdout.log", "GROUP_RANK=0\n"); /* of before the loss */
    expect_log("attempt_0.1/1/stdout.log", "GROUP_RANK=0\n");
    nodes_end(&c);
}
END_TEST

START_TEST(a_late_node_at_once_or_at_the_next_restart)
{
    for (int elastic = 0; elastic < 2; elastic++) {
        struct nodes c;
        nodes_begin(&c, elastic ? "elastic" : "patient");
        const char *options = elastic ? "--nnodes 1:2 --elastic" : "--nnodes 1:2 --max_restarts 1";
        nodes_add(&c, options, "if-attempt 0 wait %T/fail if-attempt 0 exit 3 wait %T/go");
        wait_lines(c.up, 2, 20);
        nodes_add(&c, options, "wait %T/go");
        if (!elastic) {
            proc_expect_err(&c.p[1], "waits for a place", 10);
            ck_assert_int_eq(count_lines(c.up), 2);
            write_file(tmppath("fail"), "");
        }
        wait_lines(c.up, 6, 20);
        write_file(tmppath("fail"), "");
        write_file(tmppath("go"), "");
        nodes_expect(&c, 0, elastic ? 3 : 0);
        nodes_expect(&c, 1, elastic ? 3 : 0);
        nodes_end(&c);
        unlink(tmppath("go"));
        unlink(tmppath("fail"));
    }
}
END_TEST

/* -------------------------------------------------------------------------------------- budgets */

START_TEST(lost_nodes_have_a_budget)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 3; i++)
        nodes_add(&c, "--nnodes 1:3 --max_node_restarts 1", "pause");
    wait_lines(c.up, 6, 20);
    proc_kill(&c.p[2], SIGKILL);
    wait_lines(c.up, 10, 20);
    proc_kill(&c.p[1], SIGKILL);
    nodes_expect(&c, 0, 1);
    expect_text(c.p[0].err, "No further restart: restarts after a lost node: 1 of 1");
    nodes_end(&c);
}
END_TEST

START_TEST(job_continues_without_a_preempted_node)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 2; i++)
        nodes_add(&c, "--nnodes 1:2", "wait %T/go");
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[1], SIGTERM);
    nodes_expect(&c, 1, 128 + SIGTERM);
    wait_lines(c.up, 6, 20);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 0, 0);
    nodes_end(&c);
}
END_TEST

START_TEST(exit_codes_that_are_final)
{
    struct proc p;
    int status = dlaunch_run(&p, 20,
                             "--max_restarts 5 --no_restart_codes 3,64-78 %%W append "
                             "%%T/starts exit 65");
    ck_assert_int_eq(status, 65);
    ck_assert_int_eq(count_lines(tmppath("starts")), 1);
    expect_text(p.err, "No further restart: exit code 65 is not");
    proc_fini(&p);
}
END_TEST

START_TEST(the_same_failure_at_once_again_and_again)
{
    struct proc p;
    int status = dlaunch_run(&p, 60, "--max_restarts 100 %%W append %%T/starts exit 4");
    ck_assert_int_eq(status, 4);
    ck_assert_int_eq(count_lines(tmppath("starts")), 6);
    expect_text(p.err, "No further restart: 6 starts in a row have ended so within 10 s");
    proc_fini(&p);
}
END_TEST

START_TEST(a_restart_after_workers_had_to_be_killed)
{
    struct proc p;
    int status = dlaunch_run(&p, 20,
                             "--nproc_per_node 2 --max_restarts 1 --shutdown_timeout 0.1 "
                             "%%W ignore TERM append %%T/starts if-attempt 0 wait-lines 2 "
                             "%%T/starts if-attempt 1 exit 0 if-rank 1 exit 7 pause");
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_int_eq(count_lines(tmppath("starts")), 4);
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("elastic");
    TCase *tc = test_case(s, "elastic", 90);
    tcase_add_test(tc, job_continues_without_a_killed_launcher);
    tcase_add_test(tc, a_frozen_agents_workers_are_ended_by_its_guardian);
    tcase_add_test(tc, a_frozen_launchers_workers_end_by_timers_of_the_kernel);
    tcase_add_test(tc, a_short_freeze_changes_nothing);
    tcase_add_test(tc, a_spare_takes_the_place_of_a_lost_node);
    tcase_add_test(tc, a_late_node_at_once_or_at_the_next_restart);
    tcase_add_test(tc, lost_nodes_have_a_budget);
    tcase_add_test(tc, job_continues_without_a_preempted_node);
    tcase_add_test(tc, exit_codes_that_are_final);
    tcase_add_test(tc, the_same_failure_at_once_again_and_again);
    tcase_add_test(tc, a_restart_after_workers_had_to_be_killed);
    return s;
}

TEST_MAIN(suite)
