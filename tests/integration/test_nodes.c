/* Several launchers on one machine, each a node: forming, failing, restarting, leaving. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/cluster.h"

START_TEST(two_nodes_as_the_readme_says)
{
    struct cluster c;
    cluster_start(&c, 2, "--nproc_per_node 4 %%W env RANK env GROUP_RANK env WORLD_SIZE");
    cluster_wait(&c, 0, 30);
    ck_assert_ptr_nonnull(strstr(c.node[0].out, "RANK=0\n"));
    ck_assert_ptr_nonnull(strstr(c.node[0].out, "RANK=3\n"));
    ck_assert_ptr_nonnull(strstr(c.node[1].out, "RANK=4\n"));
    ck_assert_ptr_nonnull(strstr(c.node[1].out, "RANK=7\n"));
    ck_assert_ptr_nonnull(strstr(c.node[1].out, "GROUP_RANK=1\n"));
    ck_assert_ptr_nonnull(strstr(c.node[1].out, "WORLD_SIZE=8\n"));
    cluster_fini(&c);
}
END_TEST

START_TEST(a_failure_ends_the_job_on_every_node)
{
    struct cluster c;
    cluster_start(&c, 3, "--nproc_per_node 2 %%W if-rank 3 exit 17 pause");
    cluster_wait(&c, 17, 30);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(strstr(c.node[i].err, "rank 3"), "node %d does not name rank 3:\n%s", i,
                      c.node[i].err);
        ck_assert_msg(strstr(c.node[i].err, "17"), "node %d: no exit code:\n%s", i, c.node[i].err);
    }
    cluster_fini(&c);
}
END_TEST

START_TEST(a_failure_restarts_every_node)
{
    struct cluster c;
    cluster_start(&c, 2,
                  "--nproc_per_node 2 --max_restarts 1 %%W append %%T/starts if-attempt 0 "
                  "wait-lines 4 %%T/starts if-attempt 0 if-rank 2 raise KILL if-attempt 0 pause "
                  "env TORCHELASTIC_RESTART_COUNT");
    cluster_wait(&c, 0, 30);
    ck_assert_int_eq(count_lines(tmppath("starts")), 8);
    for (int i = 0; i < 2; i++)
        ck_assert_ptr_nonnull(strstr(c.node[i].out, "TORCHELASTIC_RESTART_COUNT=1\n"));
    cluster_fini(&c);
}
END_TEST

START_TEST(unequal_nodes_and_roles)
{
    struct cluster c = {.n = 2, .port = free_port()};
    static const char job[] = "%W env RANK env ROLE_RANK env ROLE_WORLD_SIZE env ROLE_NAME env "
                              "LOCAL_WORLD_SIZE";
    cluster_start_node(&c, 0, "--nproc_per_node 1 --role trainer %s", job);
    cluster_start_node(&c, 1, "--nproc_per_node 3 --role reader %s", job);
    cluster_wait(&c, 0, 30);
    ck_assert_ptr_nonnull(strstr(c.node[0].out, "RANK=0\nROLE_RANK=0\nROLE_WORLD_SIZE=1\n"
                                                "ROLE_NAME=trainer\nLOCAL_WORLD_SIZE=1\n"));
    ck_assert_ptr_nonnull(strstr(c.node[1].out, "RANK=3\n"));
    ck_assert_ptr_nonnull(
        strstr(c.node[1].out, "ROLE_RANK=2\nROLE_WORLD_SIZE=3\nROLE_NAME=reader\n"));
    cluster_fini(&c);
}
END_TEST

START_TEST(a_killed_launcher_ends_the_job_elsewhere)
{
    for (int victim = 0; victim < 2; victim++) {
        struct cluster c;
        char *up = test_text("%s/up%d", tmpdir(), victim);
        cluster_start(&c, 2, "--nproc_per_node 2 %%W append %s pause", up);
        wait_lines(up, 4, 20);
        uint64_t start = mono_ns();
        proc_kill(&c.node[victim], SIGKILL);
        int status = proc_wait(&c.node[1 - victim], 20);
        ck_assert_msg(status == 1, "exit %d\n%s", status, c.node[1 - victim].err);
        ck_assert_uint_lt(mono_ns() - start, (uint64_t)(test_seconds(5) * 1e9));
        cluster_fini(&c);
    }
}
END_TEST

START_TEST(the_same_node_rank_twice)
{
    struct cluster c = {.n = 2, .port = free_port()};
    char line[512];
    snprintf(line, sizeof(line), "--nproc_per_node 1 --rdzv_conf join_timeout=30 /bin/true");
    cluster_start_node(&c, 0, "%s", line);
    proc_expect_err(&c.node[0], "waiting", 10);
    struct proc second, again;
    dlaunch_start(&second, NULL, "--nnodes 2 --node_rank 1 --master_port %d --rdzv_id x %s", c.port,
                  line);
    ck_assert_int_eq(proc_wait(&second, 10), 2); /* another run id */
    dlaunch_start(&again, NULL, "--nnodes 3 --node_rank 1 --master_port %d %s", c.port, line);
    ck_assert_int_eq(proc_wait(&again, 10), 2); /* another size */
    cluster_start_node(&c, 1, "%s", line);
    cluster_wait(&c, 0, 20);
    cluster_fini(&c);
    proc_fini(&second);
    proc_fini(&again);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("nodes");
    TCase *tc = test_case(s, "nodes", 60);
    tcase_add_test(tc, two_nodes_as_the_readme_says);
    tcase_add_test(tc, a_failure_ends_the_job_on_every_node);
    tcase_add_test(tc, a_failure_restarts_every_node);
    tcase_add_test(tc, unequal_nodes_and_roles);
    tcase_add_test(tc, a_killed_launcher_ends_the_job_elsewhere);
    tcase_add_test(tc, the_same_node_rank_twice);
    return s;
}

TEST_MAIN(suite)
