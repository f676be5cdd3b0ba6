/* The node that has the coordinator dies: the others choose another one, or say why not. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/elastic_nodes.h"

enum how { GUARDIAN, AGENT, FREEZE };

static void take_down(struct nodes *c, int i, enum how how)
{
    if (how == GUARDIAN)
        proc_kill(&c->p[i], SIGKILL);
    else
        kill(agent_of(&c->p[i]), how == AGENT ? SIGKILL : SIGSTOP);
}

/* n nodes, of which the first goes down and then, in the next round, the one that took over. */
static void succession(const char *name, int n, enum how how)
{
    struct nodes c;
    int lines = 2 * n;
    begin(&c, name);
    char *nnodes = test_text("--nnodes 2:%d", n);
    for (int i = 0; i < n; i++)
        add(&c, nnodes, "env WORLD_SIZE env MASTER_PORT wait %T/go");
    wait_lines(c.up, lines, 20);
    uint64_t start = mono_ns();
    take_down(&c, 0, how);
    lines += 2 * (n - 1);
    wait_lines(c.up, lines, 20);
    printf("%s: %.0f ms from the loss of the coordinator to the next round\n", name,
           (double)(mono_ns() - start) / 1e6);
    write_file(tmppath("go"), "");
    int standing = 0;
    for (int i = 1; i < n; i++) {
        expect_status(&c, i, 0);
        expect_text(c.p[i].err, "the coordinator at 127.0.0.1");
        standing += strstr(c.p[i].err, "this node is the coordinator now") != NULL;
    }
    ck_assert_int_eq(standing, 1);
    if (how == FREEZE)
        expect_status(&c, 0, 125);
    end(&c);
    unlink(tmppath("go"));
}

START_TEST(the_coordinators_launcher_is_killed)
{
    succession("guardian-killed", 4, GUARDIAN);
    succession("agent-killed", 3, AGENT);
}
END_TEST

START_TEST(the_coordinators_agent_freezes)
{
    succession("agent-frozen", 3, FREEZE);
}
END_TEST

START_TEST(one_after_the_other)
{
    struct nodes c;
    int lines = 0;
    begin(&c, "up");
    for (int i = 0; i < 5; i++) /* node ranks, so that who is next is known */
        add(&c, test_text("--nnodes 2:5 --node_rank %d", i), "wait %T/go");
    for (int dead = 0; dead < 3; dead++) {
        lines += 2 * (5 - dead);
        wait_lines(c.up, lines, 20);
        take_down(&c, dead, GUARDIAN);
    }
    lines += 2 * 2;
    wait_lines(c.up, lines, 20); /* 5 -> 4 -> 3 -> 2, each time by a majority */
    write_file(tmppath("go"), "");
    expect_status(&c, 3, 0);
    expect_status(&c, 4, 0);
    end(&c);
}
END_TEST

START_TEST(a_minority_stops_and_says_so)
{
    struct nodes c;
    begin(&c, "up");
    for (int i = 0; i < 4; i++)
        add(&c, test_text("--nnodes 1:4 --node_rank %d", i), "pause");
    wait_lines(c.up, 8, 20);
    for (int i = 0; i < 3; i++)
        proc_kill(&c.p[i], SIGSTOP);
    for (int i = 0; i < 3; i++) /* in one instant, as far as the last one can see */
        kill(agent_of(&c.p[i]), SIGKILL);
    expect_status(&c, 3, 1);
    expect_text(c.p[3].err, "no majority");
    end(&c);
}
END_TEST

START_TEST(of_two_nodes_one_is_no_majority)
{
    struct nodes c;
    begin(&c, "up");
    for (int i = 0; i < 2; i++)
        add(&c, "--nnodes 1:2", "pause");
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[0], SIGKILL);
    expect_status(&c, 1, 1);
    expect_text(c.p[1].err, "the coordinator at 127.0.0.1");
    end(&c);
}
END_TEST

START_TEST(the_job_may_end_instead)
{
    struct nodes c;
    begin(&c, "up");
    for (int i = 0; i < 3; i++)
        add(&c, "--nnodes 1:3 --coordinator_loss end", "pause");
    wait_lines(c.up, 6, 20);
    proc_kill(&c.p[0], SIGKILL);
    for (int i = 1; i < 3; i++)
        expect_status(&c, i, 1);
    end(&c);
}
END_TEST

START_TEST(a_spare_follows_the_new_coordinator)
{
    struct nodes c;
    begin(&c, "up");
    for (int i = 0; i < 3; i++)
        add(&c, "--nnodes 3 --spares 1", "env WORLD_SIZE wait %T/go");
    wait_lines(c.up, 6, 20);
    add(&c, "--nnodes 3 --spares 1", "env WORLD_SIZE wait %T/go");
    proc_expect_err(&c.p[3], "waits for a place", 10);
    proc_kill(&c.p[0], SIGKILL);
    wait_lines(c.up, 12, 20);
    write_file(tmppath("go"), "");
    for (int i = 1; i < 4; i++) {
        expect_status(&c, i, 0);
        expect_text(c.p[i].out, "WORLD_SIZE=6\n");
    }
    end(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("failover");
    TCase *tc = test_case(s, "failover", 120);
    tcase_add_test(tc, the_coordinators_launcher_is_killed);
    tcase_add_test(tc, the_coordinators_agent_freezes);
    tcase_add_test(tc, one_after_the_other);
    tcase_add_test(tc, a_minority_stops_and_says_so);
    tcase_add_test(tc, of_two_nodes_one_is_no_majority);
    tcase_add_test(tc, the_job_may_end_instead);
    tcase_add_test(tc, a_spare_follows_the_new_coordinator);
    return s;
}

TEST_MAIN(suite)
