/* Which node replaces a lost one, which budget a restart is charged to, and when the job gives up.
 */
#include "tests/lib/rdzv_script.h"

#include "rendezvous/rules/rdzv_crash_loop.h"

/* Every node of the stopped round reports that its workers have ended. */
static void stopped(uint32_t n)
{
    stop_all(n);
}

/* ------------------------------------------------------------------------------------ newcomers */

START_TEST(a_late_node_waits_for_the_next_restart)
{
    running(RDZV_C10D, 1, 3, 2, 1);
    join(2, (struct who){.host = "late"});
    PHASE(RDZV_RUN);
    ck_assert(seen[2].view.spare);
    worker_fails(1, FAILURE_EXIT, 3);
    PHASE(RDZV_STOP);
    stopped(2);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 3);
    run_all(3);
}
END_TEST

/* --------------------------------------------------------------------------------------- spares */

/* A static job of two with a spare, node ranks 0 and 1 asked for. */
static void with_a_spare(void)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.spares = 1;
    start();
    join(0, (struct who){.own = true, .rank1 = 1});
    join(2, (struct who){.host = "spare"});
    PHASE(RDZV_PREPARE); /* the first two: nobody else is there yet */
}

START_TEST(a_spare_takes_the_lost_nodes_rank)
{
    rules(RDZV_STATIC, 3, 3);
    next_rules.spares = 1;
    start();
    for (uint32_t i = 0; i < 4; i++)
        join(i, (struct who){.own = i == 0});
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 3);
    run_all(3);
    ck_assert_int_eq(seen[3].view.group_rank, -1);
    ck_assert(seen[3].view.spare);
    join(4, (struct who){.host = "fifth"});
    HAS(seen[4].refusal, "the job is complete: all 4 nodes have joined");
    closed(1, RDZV_END_CLOSED);
    PHASE(RDZV_STOP);
    ck_assert(seen[0].why.restarting);
    say(0, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(seen[3].view.group_rank, 1);
    ck_assert_int_eq(seen[2].view.group_rank, 2);
    ck_assert_int_eq(info().restarts, 0);
    ck_assert_int_eq(info().node_restarts, 1);
}
END_TEST

START_TEST(a_lost_spare_restarts_nothing)
{
    with_a_spare();
    join(1, (struct who){.rank1 = 2});
    prepared(0);
    prepared(2);
    PHASE(RDZV_RUN);
    closed(1, RDZV_END_CLOSED);
    PHASE(RDZV_RUN);
}
END_TEST

START_TEST(spares_are_informed_of_the_end)
{
    rules(RDZV_STATIC, 1, 1);
    next_rules.spares = 1;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    run_all(1);
    say(0, MEMBER_DONE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[1].reports, 1);
}
END_TEST

/* -------------------------------------------------------------------------------- node's budget */

START_TEST(lost_nodes_have_a_budget_of_their_own)
{
    rules(RDZV_C10D, 1, 4);
    next_rules.max_restarts = 1;
    next_rules.max_node_restarts = 2;
    running_by_rules(4);
    for (uint32_t lost = 3; lost > 1; lost--) {
        closed(lost, RDZV_END_CLOSED);
        ck_assert(seen[0].why.restarting);
        stopped(lost);
        run_all(lost);
        ck_assert_int_eq(info().restarts, 0);
        ck_assert_int_eq(table.restart_count, 0);
    }
    closed(1, RDZV_END_CLOSED);
    PHASE(RDZV_STOP);
    ck_assert(!seen[0].why.restarting);
    stopped(1);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 1);
    ck_assert_int_eq(seen[0].result.reason, STOP_NODE_LOST);
    HAS(seen[0].result.text, "node n1 (10.0.0.11) was lost");
    HAS(seen[0].result.final, "2 of 2 used (--max_node_restarts)");
}
END_TEST

START_TEST(a_preempted_node_is_charged_like_a_lost_one)
{
    rules(RDZV_C10D, 1, 2);
    next_rules.max_node_restarts = 0;
    running_by_rules(2);
    leave(1, STOP_SIGNAL, 143, "n1 received SIGTERM", true);
    PHASE(RDZV_STOP);
    ck_assert(!seen[0].why.restarting);
    leave(1, STOP_SIGNAL, 143, "n1 received SIGTERM", false);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 143);
    HAS(seen[0].result.text, "n1 received SIGTERM");
    HAS(seen[0].result.final, "restarts after a lost node: 0 of 0 used");
}
END_TEST

START_TEST(with_a_budget_it_waits_for_a_replacement)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.max_node_restarts = 5;
    running_by_rules(2);
    closed(1, RDZV_END_CLOSED);
    ck_assert(seen[0].why.restarting);
    stopped(1);
    PHASE(RDZV_COLLECT);
    beat(100, (uint32_t[]){0}, 1);
    join(3, (struct who){0});
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(seen[3].view.group_rank, 1);
}
END_TEST

START_TEST(a_fenced_node_restarts_the_round)
{
    rules(RDZV_C10D, 1, 2);
    running_by_rules(2);
    struct rdzv_status st = status_of(1, MEMBER_IDLE);
    st.fenced = true;
    tell(1, st);
    PHASE(RDZV_STOP);
    ck_assert_int_eq(seen[0].why.reason, STOP_NODE_LOST);
    HAS(seen[0].why.text, "it had no contact for so long");
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 2);
    ck_assert_int_eq(info().node_restarts, 1);
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

/* The node was prepared, has left this coordinator since, and has rejoined. */
START_TEST(a_rejoined_node_prepares_again)
{
    rules(RDZV_C10D, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    PHASE(RDZV_PREPARE);
    prepared(1);
    struct generation first = info().gen;
    struct rdzv_status st = status_of(1, MEMBER_IDLE);
    st.fenced = true;
    tell(1, st);
    PHASE(RDZV_PREPARE);
    ck_assert(generation_before(first, info().gen));
    prepared(0);
    PHASE(RDZV_PREPARE);
}
END_TEST

/* ----------------------------------------------------------------------------------- exit codes */

START_TEST(some_exit_codes_are_final)
{
    for (int policy = RESTART_GROUP; policy <= RESTART_WORKER; policy++) {
        rules(RDZV_STATIC, 2, 2);
        next_rules.max_restarts = 5;
        next_rules.restart_policy = (enum restart_policy)policy;
        exit_codes_add(&next_rules.no_restart, 64);
        running_by_rules(2);
        worker_fails(1, FAILURE_EXIT, 64);
        ck_assert(!seen[0].why.restarting);
        stopped(2);
        PHASE(RDZV_FINISH);
        ck_assert_int_eq(seen[0].result.exit_code, 64);
        HAS(seen[0].result.final, "exit code 64 is not started again (--no_restart_codes)");
        ck_assert_int_eq(seen[0].result.restarts, 0);
        rdzv_state_free(state);
    }
    start(); /* for teardown */
}
END_TEST

START_TEST(sets_of_exit_codes)
{
    struct exit_codes c = {{0}};
    for (int code = 0; code < 256; code += 51)
        exit_codes_add(&c, code);
    for (int code = -5; code < 600; code++)
        ck_assert_int_eq(exit_codes_has(&c, code), code >= 0 && code < 256 && code % 51 == 0);
    start();
}
END_TEST

/* ------------------------------------------------------------------------------------- progress */

/* One start of a job of two whose node 1 fails after lived_ms. */
static void fails_after(uint64_t lived_ms, int code)
{
    run_all(2);
    PHASE(RDZV_RUN);
    tick_ms(lived_ms);
    worker_fails(1, FAILURE_EXIT, code);
    stopped(2);
}

static void with_progress_rule(void)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.max_restarts = 100;
    next_rules.progress_ns = 10 * SEC;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
}

START_TEST(the_same_failure_at_once_backs_off_and_ends)
{
    static const uint64_t pause_s[] = {0, 0, 1, 2, 4};
    with_progress_rule();
    for (int i = 0; i < 5; i++) {
        fails_after(100, 9);
        ck_assert_int_eq(info().restarts, i + 1);
        if (pause_s[i]) {
            PHASE(RDZV_COLLECT);
            tick_ms(pause_s[i] * 1000 - 1);
            PHASE(RDZV_COLLECT);
            tick_ms(1);
        }
        PHASE(RDZV_PREPARE);
    }
    HAS(logs, "3 starts in a row have ended alike: the next one in 1 s");
    fails_after(100, 9);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 9);
    ck_assert_int_eq(seen[0].result.restarts, 5);
    ck_assert(!seen[0].why.restarting);
    HAS(seen[0].result.final, "6 starts in a row have ended so within 10 s");
}
END_TEST

/* All ranks fail alike: which of them is seen first differs from start to start. */
START_TEST(the_same_failure_on_other_ranks_is_a_crash_loop)
{
    static const char *const lines[] = {"ImportError: no module 'x'",
                                        "ImportError: no module 'x'\n"};
    static const uint64_t pause_s[] = {0, 0, 1, 2, 4};
    with_progress_rule();
    for (int i = 0; i < 6; i++) {
        run_all(2);
        PHASE(RDZV_RUN);
        tick_ms(100);
        struct failure f = failure_of(i % 2, FAILURE_EXIT, 1);
        snprintf(f.stderr_tail, sizeof(f.stderr_tail), "Traceback of pid %d\n%s", 100 + i,
                 lines[i % 2]);
        tell_failures((uint32_t)(i / 2 % 2), MEMBER_RUNNING, (uint32_t)i + 1, &f, 1, 0);
        stopped(2);
        if (i < 5) {
            tick_ms(pause_s[i] * 1000);
            PHASE(RDZV_PREPARE);
        }
    }
    PHASE(RDZV_FINISH);
    HAS(seen[0].result.final, "6 starts in a row have ended so within 10 s");
}
END_TEST

START_TEST(progress_or_another_failure_begins_anew)
{
    with_progress_rule();
    for (int i = 0; i < 20; i++) {
        fails_after(100, 9);
        PHASE(RDZV_PREPARE);
        if (i % 2) {
            fails_after(100, 7);
        } else {
            run_all(2);
            for (int k = 0; k < 3; k++) {
                tick(4);
                say(1, MEMBER_RUNNING);
                say(0, MEMBER_RUNNING);
            }
            worker_fails(1, FAILURE_EXIT, 9);
            stopped(2);
        }
        PHASE(RDZV_PREPARE);
    }
}
END_TEST

START_TEST(pauses)
{
    static const uint64_t s[] = {0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60};
    for (int i = 0; i < (int)ARRAY_LEN(s); i++)
        ck_assert_uint_eq(rdzv_crash_loop_pause(i), s[i] * SEC);
    ck_assert_uint_eq(rdzv_crash_loop_pause(1 << 30), 60 * SEC);
    start();
}
END_TEST

/* ---------------------------------------------------------------------------------------- blame */

START_TEST(a_node_that_is_blamed_again_and_again_is_left_out)
{
    rules(RDZV_C10D, 2, 3);
    next_rules.max_restarts = 100;
    running_by_rules(3);
    for (int i = 0; i < RDZV_CRASH_LOOP_MAX; i++) {
        worker_fails(2, FAILURE_SIGNAL, 7);
        stopped(3);
        run_all(i < RDZV_CRASH_LOOP_MAX - 1 ? 3 : 2);
    }
    HAS(logs, "node n2 (10.0.0.12): 3 failures in a row; it is left out for 300 s");
    ck_assert_int_eq(info().nnodes, 2);
    ck_assert(seen[2].view.spare);
    worker_fails(1, FAILURE_EXIT, 1); /* still without it */
    stopped(2);
    ck_assert_int_eq(info().nnodes, 2);
    run_all(2);
    closed(2, RDZV_END_CLOSED);
    join(3, (struct who){.host = "n2", .addr = "10.0.0.12", .id = 77}); /* the same host */
    worker_fails(1, FAILURE_EXIT, 2);
    stopped(2);
    ck_assert_int_eq(info().nnodes, 2);
    run_all(2);
    now_ns += 300 * SEC;
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 2)
            say(i, i == 3 ? MEMBER_IDLE : MEMBER_RUNNING);
    }
    rdzv_state_tick(state, now_ns);
    drain();
    worker_fails(0, FAILURE_EXIT, 3);
    stopped(2);
    ck_assert_int_eq(info().nnodes, 3);
}
END_TEST

/* A program that cannot work fails on every node; the one that happens to be first, again and
 * again, is as good as the others: whether they fail in the same round, or are stopped before. */
START_TEST(a_failure_that_is_alike_on_other_nodes_costs_none)
{
    rules(RDZV_C10D, 2, 3);
    next_rules.max_restarts = 100;
    running_by_rules(3);
    for (int i = 0; i < RDZV_ALIKE_MAX - 1; i++) {
        worker_fails(2, FAILURE_SIGNAL, 7);
        if (_i == 0)
            worker_fails(1, FAILURE_SIGNAL, 7);
        stopped(3);
        run_all(3);
        if (_i == 1 && ++i < RDZV_ALIKE_MAX - 1) {
            worker_fails(i % 4 == 1 ? 1 : 0, FAILURE_SIGNAL, 7);
            stopped(3);
            run_all(3);
        }
    }
    ck_assert_int_eq(info().nnodes, 3);
}
END_TEST

/* The others' workers exit in the same way, but because of the first one. */
START_TEST(a_failure_that_others_fail_of_costs_its_node)
{
    rules(RDZV_C10D, 2, 3);
    next_rules.max_restarts = 100;
    running_by_rules(3);
    for (uint32_t i = 0; i < RDZV_CRASH_LOOP_MAX; i++) {
        struct failure f = failure_of(0, FAILURE_EXIT, 1);
        worker_fails(2, FAILURE_EXIT, 1);
        f.caused_by = table.nodes[seen[2].view.group_rank].base_rank;
        tell_failures(1, MEMBER_STOPPING, 1000 + i, &f, 1, 0);
        stopped(3);
        run_all(i < RDZV_CRASH_LOOP_MAX - 1 ? 3 : 2);
    }
    ck_assert(seen[2].view.spare);
}
END_TEST

/* --on_cause says so, of each node that fails in this way. */
START_TEST(a_cause_that_evicts_does_so_of_every_node)
{
    rules(RDZV_C10D, 1, 3);
    next_rules.max_restarts = 100;
    next_rules.actions.of[CAUSE_EXIT] = ACTION_EVICT;
    running_by_rules(3);
    worker_fails(2, FAILURE_EXIT, 9);
    stopped(3);
    run_all(2);
    worker_fails(1, FAILURE_EXIT, 9);
    stopped(2);
    run_all(1);
    ck_assert_int_eq(info().nnodes, 1);
    ck_assert(seen[1].view.spare && seen[2].view.spare);
}
END_TEST

/* A failed GPU costs its node by default; that it failed is known only when all have stopped, and
 * another node's worker had failed before. */
START_TEST(a_failed_gpu_evicts_its_node)
{
    rules(RDZV_C10D, 1, 3);
    next_rules.max_restarts = 100;
    running_by_rules(3);
    worker_fails(1, FAILURE_EXIT, 9);
    struct failure f = failure_of(0, FAILURE_EXIT, 1);
    f.gpu = true;
    tell_failures(2, MEMBER_STOPPING, 1000, &f, 1, 0);
    stopped(3);
    run_all(2);
    ck_assert(seen[2].view.spare && !seen[1].view.spare);
}
END_TEST

START_TEST(nobody_is_left_out_when_too_few_remain)
{
    rules(RDZV_C10D, 3, 3);
    next_rules.max_restarts = 100;
    running_by_rules(3);
    for (int i = 0; i < 2 * RDZV_CRASH_LOOP_MAX; i++) {
        worker_fails(2, FAILURE_SIGNAL, 7);
        stopped(3);
        run_all(3);
    }
}
END_TEST

START_TEST(many_are_remembered_and_the_oldest_forgotten)
{
    struct rdzv_crash_loop b = {0};
    struct rdzv_node n[RDZV_CRASH_LOOP_NODES + 4];
    memset(n, 0, sizeof(n));
    for (int i = 0; i < (int)ARRAY_LEN(n); i++) {
        n[i].hello.id.b[0] = (uint8_t)(i + 1);
        snprintf(n[i].hello.host, sizeof(n[i].hello.host), "h%d", i);
    }
    for (int round = 1; round <= RDZV_CRASH_LOOP_MAX; round++) {
        for (int i = 0; i < RDZV_CRASH_LOOP_NODES; i++)
            ck_assert_int_eq(rdzv_crash_loop_node(&b, &n[i], (uint64_t)(round * 100 + i) * SEC),
                             round == RDZV_CRASH_LOOP_MAX);
    }
    for (int i = 0; i < RDZV_CRASH_LOOP_NODES; i++)
        ck_assert_uint_gt(rdzv_crash_loop_until(&b, &n[i], true, 400 * SEC), 0);
    ck_assert(!rdzv_crash_loop_node(&b, &n[RDZV_CRASH_LOOP_NODES],
                                    400 * SEC)); /* takes the place of the oldest */
    ck_assert_uint_eq(rdzv_crash_loop_until(&b, &n[0], true, 400 * SEC), 0);
    ck_assert_uint_gt(rdzv_crash_loop_until(&b, &n[1], true, 400 * SEC), 0);
    ck_assert_uint_eq(rdzv_crash_loop_until(&b, &n[1], true, 1000 * SEC), 0);
    for (int i = 0; i < 10; i++) /* too far apart to count */
        ck_assert(!rdzv_crash_loop_node(&b, &n[3], (2000 + (uint64_t)i * 601) * SEC));
    start();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_elastic");
    TCase *tc = test_case(s, "elastic", 30);
    tcase_add_checked_fixture(tc, NULL, teardown);
    tcase_add_test(tc, a_late_node_waits_for_the_next_restart);
    tcase_add_test(tc, a_spare_takes_the_lost_nodes_rank);
    tcase_add_test(tc, a_lost_spare_restarts_nothing);
    tcase_add_test(tc, spares_are_informed_of_the_end);
    tcase_add_test(tc, lost_nodes_have_a_budget_of_their_own);
    tcase_add_test(tc, a_preempted_node_is_charged_like_a_lost_one);
    tcase_add_test(tc, with_a_budget_it_waits_for_a_replacement);
    tcase_add_test(tc, a_fenced_node_restarts_the_round);
    tcase_add_test(tc, a_rejoined_node_prepares_again);
    tcase_add_test(tc, some_exit_codes_are_final);
    tcase_add_test(tc, sets_of_exit_codes);
    tcase_add_test(tc, the_same_failure_at_once_backs_off_and_ends);
    tcase_add_test(tc, the_same_failure_on_other_ranks_is_a_crash_loop);
    tcase_add_test(tc, progress_or_another_failure_begins_anew);
    tcase_add_test(tc, pauses);
    tcase_add_test(tc, a_node_that_is_blamed_again_and_again_is_left_out);
    tcase_add_loop_test(tc, a_failure_that_is_alike_on_other_nodes_costs_none, 0, 2);
    tcase_add_test(tc, a_failure_that_others_fail_of_costs_its_node);
    tcase_add_test(tc, a_cause_that_evicts_does_so_of_every_node);
    tcase_add_test(tc, a_failed_gpu_evicts_its_node);
    tcase_add_test(tc, nobody_is_left_out_when_too_few_remain);
    tcase_add_test(tc, many_are_remembered_and_the_oldest_forgotten);
    return s;
}

TEST_MAIN(suite)
