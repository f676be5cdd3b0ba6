/* The coordinator's rules, one by one: who joins, with which rank, reached how. */
#include "tests/lib/rdzv_script.h"

#include <errno.h>
#include <stdio.h>

#include "rendezvous/rules/rdzv_round.h"

/* -------------------------------------------------------------------------------------- joining */

START_TEST(complete_set_starts_at_once)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    ck_assert_int_eq(seen[1].view.phase, RDZV_COLLECT);
    join(2, (struct who){0});
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_PREPARE);
        ck_assert_int_eq(seen[i].view.nnodes, 3);
        ck_assert_int_eq(seen[i].view.group_rank, i);
        ck_assert_uint_eq(seen[i].view.gen.epoch, 0xabc);
        ck_assert_uint_eq(seen[i].view.gen.counter, 1);
    }
    ck_assert_int_eq(rounds, 1);
}
END_TEST

START_TEST(nothing_runs_before_all_are_prepared)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    prepared(0);
    ck_assert_int_eq(seen[0].view.phase, RDZV_PREPARE);
    struct rdzv_status stale = status_of(1, MEMBER_PREPARED);
    stale.gen.counter = 0;
    tell(1, stale);
    ck_assert_int_eq(seen[0].view.phase, RDZV_PREPARE);
    prepared(1);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_RUN);
        ck_assert_int_eq(seen[i].tables, 1);
    }
}
END_TEST

START_TEST(last_call_waits_for_more)
{
    rules(RDZV_C10D, 2, 4);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    PHASE(RDZV_COLLECT);
    ck_assert_uint_le(rdzv_state_deadline(state), now_ns + 30 * SEC);
    tick(10);
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    join(2, (struct who){0});
    tick(10);
    PHASE(RDZV_COLLECT);
    for (uint32_t i = 0; i < 3; i++)
        say(i, MEMBER_IDLE);
    tick(10); /* 30 s after the second, not after the third */
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 3);
}
END_TEST

START_TEST(last_call_ends_when_all_are_there)
{
    rules(RDZV_C10D, 2, 3);
    start();
    for (uint32_t i = 0; i < 3; i++)
        join(i, (struct who){0});
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(last_call_is_called_off_when_too_few_are_left)
{
    rules(RDZV_C10D, 2, 4);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    tick(14);
    say(0, MEMBER_IDLE);
    closed(1, RDZV_END_CLOSED);
    tick(14);
    say(0, MEMBER_IDLE);
    join(2, (struct who){0});
    tick(14);
    PHASE(RDZV_COLLECT);
    say(0, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    tick(14);
    say(0, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    tick(2);
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(join_timeout_names_the_missing_nodes)
{
    rules(RDZV_STATIC, 4, 4);
    start();
    join(0, (struct who){.own = true, .rank1 = 1, .host = "gpu-a"});
    join(1, (struct who){.rank1 = 3, .host = "gpu-c"});
    for (int i = 0; i < 5; i++)
        join(2, (struct who){.rank1 = 3, .host = "gpu-d", .addr = "10.0.0.4"});
    beat(600, (const uint32_t[]){0, 1}, 2);
    PHASE(RDZV_FINISH);
    const struct rdzv_result *r = &seen[1].result;
    ck_assert_int_eq(r->exit_code, 1);
    ck_assert_int_eq(r->reason, STOP_RENDEZVOUS);
    HAS(r->text, "only 2 of 4 nodes joined within 600 s");
    HAS(r->text, "gpu-a, gpu-c");
    HAS(r->text, "missing: node_rank 1, 3");
    HAS(r->text, "gpu-d (10.0.0.4), 5 times: node_rank 2 is already taken by gpu-c");
    ck_assert_uint_eq(r->n, 0);
}
END_TEST

START_TEST(waiting_is_logged_every_few_seconds)
{
    rules(RDZV_STATIC, 4, 4);
    start();
    join(0, (struct who){.own = true, .rank1 = 1, .host = "gpu-a"});
    join(1, (struct who){.rank1 = 4, .host = "gpu-d"});
    tick(3);
    HAS(seen[1].notice,
        "waiting for nodes, 3 s: 2 of 4 here: gpu-a, gpu-d; missing: node_rank 1, 2");
    ck_assert_str_eq(seen[0].notice, seen[1].notice);
    seen[1].notice[0] = '\0';
    tick(4);
    ck_assert_str_eq(seen[1].notice, "");
    tick(1);
    HAS(seen[1].notice, "8 s");
}
END_TEST

START_TEST(the_notice_has_the_start_of_an_elastic_job)
{
    rules(RDZV_C10D, 2, 4);
    start();
    join(0, (struct who){.own = true, .host = "gpu-a"});
    tick(3);
    HAS(seen[0].notice, "1 of 2 to 4 here: gpu-a; the job starts 30 s after 2 are here "
                        "(last_call_timeout)");
    join(1, (struct who){.host = "gpu-b"});
    tick(5);
    HAS(seen[0].notice, "2 of 2 to 4 here: gpu-a, gpu-b; the job starts in 25 s, or when all 4 are "
                        "here");
}
END_TEST

START_TEST(a_long_list_of_nodes_is_bounded)
{
    rules(RDZV_C10D, 60, 62);
    start();
    for (uint32_t i = 0; i < 50; i++)
        join(i, (struct who){.host = "a-host-name-of-some-length.example.org"});
    tick(3);
    HAS(seen[1].notice, "50 of 60 to 62 here");
    HAS(seen[1].notice, "and 42 more");
}
END_TEST

/* Each refused node gets a clear text and is named in the log; the other nodes are not disturbed.
 */
START_TEST(nodes_that_do_not_fit_are_refused)
{
    static const struct {
        struct who w;
        const char *text;
        bool retry;
    } cases[] = {
        {{.run_id = "other"}, "this is job 'job', not 'other'", false},
        {{.min = 1, .max = 3}, "this job has --nnodes 3, not 1:3", false},
        {{.min = 2, .max = 2}, "this job has --nnodes 3, not 2", false},
        {{.rank1 = 4}, "node_rank 3 is too high for --nnodes 3", false},
        {{.rank1 = 2},
         "node_rank 1 is already taken by gpu-b (10.0.0.2), pid 881, joined 4.0 s ago",
         false},
        {{.no_store = true}, "this job has --master_store agent, not none", false},
        {{.relay = true}, "this job has --master_store agent, not relay", false},
        {{.mpi = MPI_PMI}, "this job has --mpi off, not pmi", false},
    };
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.rank1 = 2, .host = "gpu-b", .addr = "10.0.0.2", .pid = 881});
    tick(4);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t conn = 10 + (uint32_t)i;
        logs[0] = '\0';
        struct who w = cases[i].w;
        w.host = "gpu-c";
        hello(conn, w);
        ck_assert(seen[conn].closed && seen[conn].refused);
        HAS(seen[conn].refusal, cases[i].text);
        HAS(logs, cases[i].text);
        HAS(logs, "gpu-c (10.0.0.");
        ck_assert_int_eq(seen[conn].retry, cases[i].retry);
        say(conn, MEMBER_IDLE); /* what it goes on to say is nothing to us */
        ck_assert_int_eq(seen[conn].views, 0);
    }
    ck_assert_int_eq(info().nodes, 2);
    join(2, (struct who){0});
    PHASE(RDZV_PREPARE);
}
END_TEST

/* A launcher that is older than MPI programs says hello like one of a plain program. */
START_TEST(all_nodes_have_the_same_mpi)
{
    bool workers = _i; /* of the coordinator */
    rules(RDZV_STATIC, 3, 3);
    next_rules.workers = workers;
    next_rules.mpi = workers ? MPI_PMI : MPI_NONE;
    start();
    join(0, (struct who){.own = workers, .mpi = MPI_PMI});
    hello(1, (struct who){0});
    HAS(seen[1].refusal, "this job has --mpi pmi, not off");
    join(2, (struct who){.mpi = MPI_PMI});
    hello(3, (struct who){.witness = true});
    ck_assert(!seen[2].refused && !seen[3].refused);
}
END_TEST

START_TEST(another_backend_is_turned_away)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    next_rules.backend = RDZV_C10D; /* what the next one says */
    hello(1, (struct who){0});
    HAS(seen[1].refusal, "this job meets by --rdzv_backend static, not c10d");
}
END_TEST

START_TEST(the_same_refusal_is_logged_once_in_a_while)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    for (int i = 0; i < 100; i++)
        hello(1, (struct who){.run_id = "other"});
    char *first = strstr(logs, "turned away");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(strstr(first + 1, "turned away"));
}
END_TEST

START_TEST(small_differences_are_warned_about)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.max_restarts = 3;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.restarts1 = 6, .policy = RESTART_WORKER, .version = "0.9"});
    PHASE(RDZV_PREPARE);
    HAS(logs, "node n1 has --max_restarts 5; 3 counts");
    HAS(logs, "--restart_policy");
    HAS(logs, "runs dlaunch 0.9, this is 0.1");
}
END_TEST

START_TEST(a_complete_static_job_admits_no_node)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    hello(2, (struct who){0});
    HAS(seen[2].refusal, "the job is complete: all 2 nodes have joined");
    PHASE(RDZV_RUN);
}
END_TEST

/* Of a launcher that was killed a moment ago, and whose end is not known yet. */
START_TEST(a_successor_may_retry)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    for (int i = 0; i < 3; i++)
        join((uint32_t)i, (struct who){.own = i == 0, .rank1 = i + 1});
    run_all(3);
    hello(3, (struct who){.rank1 = 3});
    HAS(seen[3].refusal, "node_rank 2 is already taken by");
    ck_assert(seen[3].retry);
    PHASE(RDZV_RUN);
}
END_TEST

/* Whose connection broke may be gone: its successor waits. */
START_TEST(a_job_that_may_be_short_of_a_node_is_not_complete)
{
    running(RDZV_STATIC, 3, 3, 3, 1);
    hello(3, (struct who){0});
    HAS(seen[3].refusal, "the job is complete: all 3 nodes have joined");
    ck_assert(!seen[3].retry);
    closed(2, RDZV_END_RESET);
    PHASE(RDZV_RUN);
    hello(4, (struct who){0});
    HAS(seen[4].refusal, "the job is complete: all 3 nodes have joined");
    ck_assert(seen[4].retry);
}
END_TEST

START_TEST(a_holder_that_is_silent_is_not_believed_to_be_there)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.rank1 = 2});
    now_ns += 11 * SEC; /* two heartbeats are missing */
    hello(2, (struct who){.rank1 = 2});
    ck_assert(seen[2].refused && seen[2].retry);
    closed(1, RDZV_END_BROKEN); /* and now its connection broke */
    join(2, (struct who){.rank1 = 2});
    ck_assert(!seen[2].refused);
    ck_assert_int_eq(info().nodes, 2);
}
END_TEST

START_TEST(nodes_that_join_after_the_end_may_retry)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    PHASE(RDZV_FINISH);
    tick(2);
    hello(2, (struct who){0});
    HAS(seen[2].refusal, "the job here is over: it ended 2.0 s ago with exit status 0");
    ck_assert(seen[2].retry);
}
END_TEST

START_TEST(spares_are_bounded)
{
    rules(RDZV_C10D, 1, 1);
    start();
    join(0, (struct who){.own = true});
    for (int i = 1; i < 100; i++) /* they all come by a connection that breaks */
    {
        hello(1, (struct who){.id = i + 1});
        if (seen[1].refused)
            break;
        closed(1, RDZV_END_BROKEN);
    }
    ck_assert(seen[1].refused && seen[1].retry);
    HAS(seen[1].refusal, "are here already, for 1 places");
}
END_TEST

/* ---------------------------------------------------------------------------------------- ranks */

START_TEST(natural_order_of_host_names)
{
    static const char *const order[] = {"a",       "gpu-1", "gpu-2", "gpu-10", "gpu-10a", "gpu-10b",
                                        "gpu-100", "node",  "node1", "node01", "node2"};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        for (size_t k = 0; k < ARRAY_LEN(order); k++) {
            int c = rdzv_round_compare_hosts(order[i], order[k]);
            bool zeros = strcmp(order[i], "node01") == 0 || strcmp(order[k], "node01") == 0;
            if (i == k)
                ck_assert_int_eq(c, 0);
            else if (!zeros)
                ck_assert_msg((c < 0) == (i < k), "%s %s: %d", order[i], order[k], c);
        }
    }
    ck_assert_int_ne(rdzv_round_compare_hosts("node1", "node01"), 0);
}
END_TEST

static void check_ranks(const int *expected, uint32_t n)
{
    PHASE(RDZV_PREPARE);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_msg(seen[i].view.group_rank == expected[i], "conn %u has rank %d, not %d", i,
                      seen[i].view.group_rank, expected[i]);
}

START_TEST(rank_order_without_wishes)
{
    rules(RDZV_C10D, 6, 6);
    start();
    join(0, (struct who){.host = "node10"});
    join(1, (struct who){.host = "node2", .addr = "10.0.0.10"});
    join(2, (struct who){.host = "node2", .addr = "10.0.0.9", .pid = 30});
    join(3, (struct who){.host = "zulu", .own = true}); /* the coordinator's own is first */
    join(4, (struct who){.host = "node1"});
    join(5, (struct who){.host = "node2", .addr = "10.0.0.9", .pid = 4});
    check_ranks((const int[]){5, 4, 3, 0, 1, 2}, 6);
}
END_TEST

START_TEST(rank_that_was_asked_for_is_given)
{
    for (int backend = RDZV_STATIC; backend <= RDZV_FILE; backend++) {
        rules((enum rdzv_backend)backend, 4, 4);
        start();
        join(0, (struct who){.host = "a", .own = true, .rank1 = 4});
        join(1, (struct who){.host = "d"});
        join(2, (struct who){.host = "c", .rank1 = 1});
        join(3, (struct who){.host = "b"});
        check_ranks((const int[]){3, 2, 0, 1}, 4);
        if (backend < RDZV_FILE)
            rdzv_state_free(state);
    }
}
END_TEST

START_TEST(ranks_are_dense_when_some_are_missing)
{
    rules(RDZV_C10D, 3, 8);
    start();
    join(0, (struct who){.host = "a", .own = true});
    join(1, (struct who){.host = "b", .rank1 = 8});
    join(2, (struct who){.host = "c", .rank1 = 3});
    join(3, (struct who){.host = "d", .rank1 = 6});
    now_ns += 30 * SEC;
    for (uint32_t i = 0; i < 4; i++)
        say(i, MEMBER_IDLE);
    rdzv_state_tick(state, now_ns);
    drain();
    check_ranks((const int[]){0, 3, 1, 2}, 4);
}
END_TEST

START_TEST(ranks_stay_over_restarts)
{
    rules(RDZV_C10D, 2, 4);
    next_rules.max_restarts = 5;
    start();
    join(0, (struct who){.host = "d", .own = true});
    join(1, (struct who){.host = "c"});
    join(2, (struct who){.host = "b"});
    join(3, (struct who){.host = "a"});
    check_ranks((const int[]){0, 3, 2, 1}, 4);
    run_all(4);
    worker_fails(1, FAILURE_EXIT, 1);
    stop_all(4);
    check_ranks((const int[]){0, 3, 2, 1}, 4);
    run_all(4);
    closed(2, RDZV_END_CLOSED); /* rank 2 is gone: the last one moves up */
    stop_all(4);
    ck_assert_int_eq(seen[0].view.group_rank, 0);
    ck_assert_int_eq(seen[3].view.group_rank, 1);
    ck_assert_int_eq(seen[1].view.group_rank, 2);
}
END_TEST

START_TEST(a_new_node_takes_the_place_of_the_lost_one)
{
    running(RDZV_C10D, 3, 4, 4, 0);
    join(4, (struct who){.host = "spare"});
    ck_assert_int_eq(seen[4].view.phase, RDZV_COLLECT);
    ck_assert_int_eq(seen[4].view.group_rank, -1);
    ck_assert(seen[4].view.spare);
    closed(1, RDZV_END_CLOSED);
    stop_all(4);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 4);
    ck_assert_int_eq(seen[0].view.group_rank, 0);
    ck_assert_int_eq(seen[4].view.group_rank, 1);
    ck_assert_int_eq(seen[2].view.group_rank, 2);
    ck_assert_int_eq(seen[3].view.group_rank, 3);
    ck_assert(!seen[4].view.spare);
}
END_TEST

START_TEST(too_many_nodes_leave_the_newest_out)
{
    rules(RDZV_C10D, 2, 3);
    start();
    hello(0, (struct who){.host = "a"}); /* there, but not ready */
    join(1, (struct who){.host = "b", .own = true});
    now_ns += SEC;
    join(2, (struct who){.host = "c"});
    now_ns += SEC;
    hello(3, (struct who){.host = "d"});
    now_ns += SEC;
    hello(4, (struct who){.host = "e", .rank1 = 1});
    /* Now three more are ready at once. */
    seen[0].view.gen = seen[3].view.gen = seen[4].view.gen = (struct generation){0};
    say(4, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    say(3, MEMBER_IDLE);
    ck_assert(seen[3].view.spare);
}
END_TEST

/* ---------------------------------------------------------------------------- addresses, master */

static void table_of(struct who *w, uint32_t n)
{
    start();
    for (uint32_t i = 0; i < n; i++)
        join(i, w[i]);
    for (uint32_t i = 0; i < n; i++)
        prepared(i);
    PHASE(RDZV_RUN);
}

#define ADDR(i, a) ck_assert_str_eq(table.nodes[i].addr, a)

START_TEST(addresses_on_several_hosts)
{
    rules(RDZV_C10D, 3, 3);
    table_of((struct who[]){{.own = true, .rank1 = 1},
                            {.same_host = true, .addr = "127.0.0.1", .rank1 = 2},
                            {.addr = "10.0.0.7", .rank1 = 3}},
             3);
    ADDR(0, "10.0.0.1"); /* as the one on the other host reached it */
    ADDR(1, "10.0.0.1");
    ADDR(2, "10.0.0.7");
    ck_assert_str_eq(table.master_addr, "10.0.0.1");
    ck_assert_int_eq(table.master_port, 29500);
    ck_assert(table.agent_store);
}
END_TEST

START_TEST(addresses_on_one_host)
{
    rules(RDZV_C10D, 2, 2);
    table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "10.0.0.1"}}, 2);
    ADDR(0, "127.0.0.1");
    ADDR(1, "127.0.0.1");
    ck_assert_str_eq(table.master_addr, "127.0.0.1");
    rdzv_state_free(state);
    next_rules.bound_addr = "10.0.0.1"; /* it listens nowhere else */
    table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "10.0.0.1"}}, 2);
    ADDR(0, "10.0.0.1");
    ADDR(1, "10.0.0.1");
    ck_assert_str_eq(table.master_addr, "10.0.0.1");
    rdzv_state_free(state);
    next_rules.bound_addr = "::1";
    table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "::1"}}, 2);
    ck_assert_str_eq(table.master_addr, "::1");
}
END_TEST

START_TEST(addresses_that_were_given)
{
    rules(RDZV_C10D, 3, 3);
    next_rules.local_addr = "192.168.1.1";
    table_of((struct who[]){{.own = true, .local_addr = "192.168.1.1", .rank1 = 1},
                            {.local_addr = "192.168.1.2", .rank1 = 2},
                            {.local_addr = "127.0.0.1", .rank1 = 3, .host = "odd"}},
             3);
    ADDR(0, "192.168.1.1");
    ADDR(1, "192.168.1.2");
    ADDR(2, "10.0.0.12"); /* never a loopback between hosts */
    HAS(logs, "--local_addr 127.0.0.1 of node odd");
    ck_assert_str_eq(table.master_addr, "192.168.1.1");
}
END_TEST

START_TEST(master_addr_as_the_user_gave_it)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.master_addr = "head.cluster";
    table_of((struct who[]){{.own = true}, {.addr = "10.0.0.7"}}, 2);
    ck_assert_str_eq(table.master_addr, "head.cluster");
    rdzv_state_free(state);
    static const char *const local[] = {"127.0.0.1", "localhost", "::1"};
    for (size_t i = 0; i < ARRAY_LEN(local); i++) {
        next_rules.master_addr = local[i];
        logs[0] = '\0';
        table_of((struct who[]){{.own = true}, {.addr = "10.0.0.7"}}, 2);
        ck_assert_str_eq(table.master_addr, "10.0.0.1");
        HAS(logs, "MASTER_ADDR is 10.0.0.1");
        rdzv_state_free(state);
        table_of((struct who[]){{.own = true}, {.same_host = true, .addr = "127.0.0.1"}}, 2);
        ck_assert_str_eq(table.master_addr, local[i]);
        if (i + 1 < ARRAY_LEN(local))
            rdzv_state_free(state);
    }
}
END_TEST

START_TEST(master_of_programs_that_listen_themselves)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.agent_store = false;
    next_rules.master_addr = "head.cluster";
    table_of((struct who[]){{.own = true, .rank1 = 2}, {.addr = "10.0.0.7", .rank1 = 1}}, 2);
    ck_assert_str_eq(table.master_addr, "10.0.0.7"); /* of group rank 0 */
    ck_assert_int_eq(table.master_port, 40001);      /* the one that it offered */
    ck_assert(!table.agent_store);
}
END_TEST

START_TEST(unequal_nodes_and_roles)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true, .nproc = 3});
    join(1, (struct who){.nproc = 1, .role = "reader"});
    join(2, (struct who){.nproc = 2});
    uint8_t ports[] = {1, 0, 2, 0, 3, 1};
    struct rdzv_status st = status_of(0, MEMBER_PREPARED);
    st.nports = 3;
    st.ports = ports;
    tell(0, st);
    prepared(1);
    prepared(2);
    ck_assert_int_eq(table.world_size, 6);
    ck_assert_int_eq(table.nodes[2].base_rank, 4);
    ck_assert_int_eq(table.nodes[2].role_base_rank, 3);
    ck_assert_int_eq(table.nodes[2].role_world_size, 5);
    ck_assert_int_eq(table.nodes[0].ports[2], 259);
    ck_assert_ptr_null(table.nodes[1].ports);
    static const uint32_t conns[] = {0, 0, 0, 1, 2, 2};
    for (int rank = 0; rank < 6; rank++)
        ck_assert_uint_eq(rdzv_state_conn_of(state, rank), conns[rank]);
    ck_assert_uint_eq(rdzv_state_conn_of(state, 6), RDZV_NO_CONN);
    closed(1, RDZV_END_BROKEN);
    ck_assert_uint_eq(rdzv_state_conn_of(state, 3), RDZV_NO_CONN);
    ck_assert_uint_eq(rdzv_state_conn_of(state, 4), 2);
    closed(2, RDZV_END_CLOSED); /* the round ends */
    ck_assert_uint_eq(rdzv_state_conn_of(state, 0), RDZV_NO_CONN);
}
END_TEST

START_TEST(ports_must_be_as_many_as_workers)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    uint8_t ports[] = {1, 0, 2, 0, 3, 1};
    struct rdzv_status st = status_of(1, MEMBER_PREPARED);
    st.nports = 3;
    st.ports = ports;
    tell(1, st);
    ck_assert(seen[1].closed);
    HAS(seen[1].refusal, "data ports");
    PHASE(RDZV_COLLECT);
}
END_TEST

START_TEST(a_table_that_no_message_can_hold)
{
    enum { N = 2200 };
    static uint16_t ports[NPROC_MAX];
    struct rdzv_node **n = xcalloc(N, sizeof(*n));
    const struct rdzv_place place = {.bound_addr = "", .local_addr = "", .agent_store = true};
    struct rank_table t;
    struct err e = ERR_INIT;
    char note[RDZV_TEXT_MAX];
    for (int i = 0; i < N; i++) {
        n[i] = xcalloc(1, sizeof(**n));
        n[i]->hello.nproc = NPROC_MAX;
        n[i]->ports = ports;
        strcpy(n[i]->peer.addr, "10.0.0.1");
    }
    start(); /* for teardown */
    ck_assert_int_eq(rdzv_round_table(&t, n, N, &place, note, sizeof(note), &e), -EMSGSIZE);
    HAS(e.msg, "2200 nodes does not fit");
    rank_table_fini(&t);
    ck_assert_int_eq(rdzv_round_table(&t, n, N / 2, &place, note, sizeof(note), &e), 0);
    rank_table_fini(&t);
    for (int i = 0; i < N; i++)
        free(n[i]);
    free(n);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_state");
    TCase *tc = rules_case(s, "join", 10);
    tcase_add_test(tc, complete_set_starts_at_once);
    tcase_add_test(tc, nothing_runs_before_all_are_prepared);
    tcase_add_test(tc, last_call_waits_for_more);
    tcase_add_test(tc, last_call_ends_when_all_are_there);
    tcase_add_test(tc, last_call_is_called_off_when_too_few_are_left);
    tcase_add_test(tc, join_timeout_names_the_missing_nodes);
    tcase_add_test(tc, waiting_is_logged_every_few_seconds);
    tcase_add_test(tc, the_notice_has_the_start_of_an_elastic_job);
    tcase_add_test(tc, a_long_list_of_nodes_is_bounded);
    tcase_add_test(tc, nodes_that_do_not_fit_are_refused);
    tcase_add_loop_test(tc, all_nodes_have_the_same_mpi, 0, 2);
    tcase_add_test(tc, another_backend_is_turned_away);
    tcase_add_test(tc, the_same_refusal_is_logged_once_in_a_while);
    tcase_add_test(tc, small_differences_are_warned_about);
    tcase_add_test(tc, a_complete_static_job_admits_no_node);
    tcase_add_test(tc, a_successor_may_retry);
    tcase_add_test(tc, a_job_that_may_be_short_of_a_node_is_not_complete);
    tcase_add_test(tc, a_holder_that_is_silent_is_not_believed_to_be_there);
    tcase_add_test(tc, nodes_that_join_after_the_end_may_retry);
    tcase_add_test(tc, spares_are_bounded);
    tc = rules_case(s, "ranks", 10);
    tcase_add_test(tc, natural_order_of_host_names);
    tcase_add_test(tc, rank_order_without_wishes);
    tcase_add_test(tc, rank_that_was_asked_for_is_given);
    tcase_add_test(tc, ranks_are_dense_when_some_are_missing);
    tcase_add_test(tc, ranks_stay_over_restarts);
    tcase_add_test(tc, a_new_node_takes_the_place_of_the_lost_one);
    tcase_add_test(tc, too_many_nodes_leave_the_newest_out);
    tc = rules_case(s, "table", 10);
    tcase_add_test(tc, addresses_on_several_hosts);
    tcase_add_test(tc, addresses_on_one_host);
    tcase_add_test(tc, addresses_that_were_given);
    tcase_add_test(tc, master_addr_as_the_user_gave_it);
    tcase_add_test(tc, master_of_programs_that_listen_themselves);
    tcase_add_test(tc, unequal_nodes_and_roles);
    tcase_add_test(tc, ports_must_be_as_many_as_workers);
    tcase_add_test(tc, a_table_that_no_message_can_hold);
    return s;
}

TEST_MAIN(suite)
