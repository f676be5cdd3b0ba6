/* --master_store relay: the store on loopback of each node, carried to the coordinator's. */
#include "tests/integration/job.h"

static char *store_worker(void)
{
    return build_path("tests/multihost/store_worker");
}

START_TEST(workers_meet)
{
    struct cluster c;
    cluster_start(&c, 3, "--master_store relay --nproc_per_node 2 %s", store_worker());
    cluster_wait(&c, 0, 20);
    for (int r = 0; r < 6; r++)
        expect_text(c.node[r / 2].out, test_text("rank %d of 6: all here\n", r));
    cluster_fini(&c);
}
END_TEST

/* Each node has a port of its own, none of them the coordinator's. */
START_TEST(address_of_the_relay)
{
    struct cluster c;
    int ports[2];
    cluster_start(&c, 2,
                  "--master_store relay %%W env MASTER_ADDR env MASTER_PORT env "
                  "TORCHELASTIC_USE_AGENT_STORE");
    cluster_wait(&c, 0, 20);
    for (int i = 0; i < 2; i++) {
        expect_text(c.node[i].out, "MASTER_ADDR=127.0.0.1\n");
        expect_text(c.node[i].out, "TORCHELASTIC_USE_AGENT_STORE=True\n");
        ck_assert_int_eq(sscanf(strstr(c.node[i].out, "MASTER_PORT="), "MASTER_PORT=%d", &ports[i]),
                         1);
    }
    ck_assert(ports[0] != ports[1] && ports[0] != c.port && ports[1] != c.port);
    cluster_fini(&c);
}
END_TEST

/* The 40 workers have 320 connections at a time. */
START_TEST(many_workers)
{
    struct cluster c = {.n = 2, .port = free_port()};
    cluster_start_node(&c, 0, "--master_store relay %s connections 1", store_worker());
    cluster_start_node(&c, 1, "--master_store relay --nproc_per_node 40 %s connections 8",
                       store_worker());
    cluster_wait(&c, 0, 60);
    cluster_fini(&c);
}
END_TEST

/* Values far larger than what is under way at a time, from all sides at once, while the nodes' own
 * time for silence is short. */
START_TEST(large_values)
{
    struct cluster c;
    cluster_start(&c, 2,
                  "--master_store relay --nproc_per_node 2 --rdzv_conf keep_alive_interval=0.2,"
                  "keep_alive_max_attempt=15 %s hammer 2 3000000",
                  store_worker());
    cluster_wait(&c, 0, 60);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(count_text(c.node[i].out, " rounds\n"), 2);
        expect_no_text(c.node[i].err, "lost");
    }
    cluster_fini(&c);
}
END_TEST

/* Workers that wait for a key when the round ends: the next one begins with an empty store. */
START_TEST(waiting_when_the_round_ends)
{
    struct cluster c;
    cluster_start(&c, 2,
                  "--master_store relay --max_restarts 1 --nproc_per_node 2 sh -c 'if [ "
                  "$TORCHELASTIC_RESTART_COUNT = 1 ]; then exec %1$s; elif [ $RANK = 0 ]; then "
                  "while [ $(cat %2$s/waiting 2>/dev/null | wc -l) -lt 3 ]; do sleep 0.01; done; "
                  "exit 9; else exec %1$s wait %2$s/waiting; fi'",
                  store_worker(), tmpdir());
    cluster_wait(&c, 0, 30);
    expect_text(c.node[0].err, "worker 0 (local rank 0)");
    for (int r = 0; r < 4; r++)
        expect_text(c.node[r / 2].out, test_text("rank %d of 4: all here\n", r));
    cluster_fini(&c);
}
END_TEST

/* The store's node dies: its workers' connections end, and the next round meets in the new store.
 */
START_TEST(the_store_moves)
{
    struct proc p[3];
    int port = free_port();
    for (int i = 0; i < 3; i++)
        dlaunch_start(&p[i], NULL,
                      "--master_store relay --nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint "
                      "127.0.0.1:%d --max_restarts 2 --rdzv_conf is_host=%d,join_timeout=20,"
                      "keep_alive_interval=0.2,keep_alive_max_attempt=15,last_call_timeout=5 "
                      "sh -c 'if [ $WORLD_SIZE = 3 ]; then exec %s wait %s/waiting; else exec %s; "
                      "fi'",
                      port, i == 0, store_worker(), tmpdir(), store_worker());
    wait_lines(tmppath("waiting"), 3, 20);
    kill(atoi(text_of_file(test_text("/proc/%d/task/%d/children", p[0].pid, p[0].pid))), SIGKILL);
    for (int i = 1; i < 3; i++) {
        expect_status(&p[i], 0, 20);
        expect_text(p[i].out, " of 2: all here\n");
    }
    for (int i = 0; i < 3; i++)
        proc_fini(&p[i]);
}
END_TEST

/* --master_store differs between nodes: both sides report it, and the job waits for a node that
 * fits. */
START_TEST(all_or_none)
{
    struct cluster c = {.n = 2, .port = free_port()};
    struct proc bad;
    static const char said[] = "this job has --master_store relay, not agent";
    cluster_start_node(&c, 0, "--verbose --master_store relay %s", store_worker());
    proc_expect_err(&c.node[0], "listening on", 10);
    dlaunch_start(&bad, NULL, "--nnodes 2 --node_rank 1 --master_port %d %s", c.port,
                  store_worker());
    expect_status(&bad, 2, 10);
    expect_text(bad.err, said);
    ck_assert_int_eq(count_text(bad.err, "\n"), 1);
    proc_expect_err(&c.node[0], said, 10);
    cluster_start_node(&c, 1, "--master_store relay %s", store_worker());
    cluster_wait(&c, 0, 20);
    cluster_fini(&c);
    proc_fini(&bad);
}
END_TEST

/* A client that reaches the coordinator's port from elsewhere may not use the store, nor may
 * another user at the relay's port. */
START_TEST(unauthenticated_clients)
{
    struct cluster c;
    struct proc p;
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    cluster_start(&c, 2, "--master_store relay %%W env MASTER_PORT append %%T/up wait %%T/go");
    wait_lines(tmppath("up"), 2, 20);
    proc_expect_out(&c.node[1], "MASTER_PORT=", 5);
    int door;
    ck_assert_int_eq(sscanf(strstr(c.node[1].out, "MASTER_PORT="), "MASTER_PORT=%d", &door), 1);
    char *env[] = {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
                   test_text("MASTER_PORT=%d", door), NULL};
    int status = proc_run(
        &p, ARGV("timeout", "5", "setpriv", "--reuid", "65534", "--clear-groups", store_worker()),
        env, 10);
    ck_assert_msg(status != 0, "%s", p.out);
    proc_fini(&p);
    proc_expect_err(&c.node[1], "a client of the workers' store that is another user's", 5);
    status = proc_run(&p, ARGV(store_worker()), env, 10); /* one of ours is served */
    ck_assert_msg(status == 0, "%s", p.err);
    proc_fini(&p);
    write_file(tmppath("go"), "");
    cluster_wait(&c, 0, 20);
    cluster_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("relay");
    TCase *tc = test_case(s, "relay", 90);
    tcase_add_test(tc, workers_meet);
    tcase_add_test(tc, address_of_the_relay);
    tcase_add_test(tc, many_workers);
    tcase_add_test(tc, large_values);
    tcase_add_test(tc, waiting_when_the_round_ends);
    tcase_add_test(tc, the_store_moves);
    tcase_add_test(tc, all_or_none);
    tcase_add_test(tc, unauthenticated_clients);
    return s;
}

TEST_MAIN(suite)
