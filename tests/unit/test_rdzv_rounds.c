/* The coordinator's rules, one by one: nodes that come and go. */
#include "tests/lib/rdzv_script.h"

#include <signal.h>
#include <stdio.h>

/* ---------------------------------------------------------------------------- nodes come and go */

START_TEST(a_broken_connection_resumes)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    closed(1, RDZV_END_BROKEN);
    PHASE(RDZV_RUN);
    now_ns += 14 * SEC;
    say(0, MEMBER_RUNNING);
    tick(0);
    hello(7, (struct who){.id = 2}); /* by another connection */
    ck_assert_int_eq(seen[7].view.phase, RDZV_RUN);
    ck_assert_int_eq(seen[7].view.group_rank, 1);
    ck_assert_int_eq(seen[7].tables, 0); /* it has it */
    seen[7].clock = 100 * SEC;
    say(7, MEMBER_RUNNING);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(info().nodes, 2);
    say(0, MEMBER_DONE);
    say(7, MEMBER_DONE);
    PHASE(RDZV_FINISH);
}
END_TEST

START_TEST(a_connection_is_replaced_before_its_end_is_seen)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    hello(7, (struct who){.id = 2});
    ck_assert(seen[1].closed && !seen[1].refused);
    seen[7].clock = 100 * SEC;
    say(7, MEMBER_RUNNING);
    say(1, MEMBER_IDLE); /* the ghost speaks: nobody listens */
    PHASE(RDZV_RUN);
    closed(1, RDZV_END_CLOSED);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(info().nodes, 2);
}
END_TEST

START_TEST(a_reconnected_node_gets_the_table_it_missed)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    prepared(1);
    closed(1, RDZV_END_BROKEN);
    prepared(0);
    PHASE(RDZV_RUN);
    struct generation gen = seen[0].view.gen;
    hello(1, (struct who){0});
    ck_assert_int_eq(seen[1].tables, 1);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RUN);
    ck_assert(generation_equal(seen[1].view.gen, gen));
}
END_TEST

START_TEST(old_statuses_are_ignored)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    struct rdzv_status old = status_of(1, MEMBER_IDLE);
    say(1, MEMBER_RUNNING);
    int views = seen[1].views;
    tell(1, old);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[1].views, views);
}
END_TEST

START_TEST(a_closed_connection_is_a_lost_node)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    closed(1, RDZV_END_CLOSED);
    ck_assert_int_eq(seen[0].view.phase, RDZV_STOP);
    ck_assert_int_eq(seen[0].why.reason, STOP_NODE_LOST);
    ck_assert(seen[0].why.restarting);
    HAS(seen[0].why.text, "node n1 (10.0.0.11) was lost: its launcher has ended");
    stop_all(1);
    PHASE(RDZV_PREPARE); /* at once: no last call */
    ck_assert_int_eq(info().nnodes, 1);
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(a_silent_node_is_lost)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    for (int i = 0; i < 2; i++) {
        tick(5);
        say(0, MEMBER_RUNNING);
        PHASE(RDZV_RUN);
    }
    tick(5);
    PHASE(RDZV_STOP);
    HAS(seen[0].why.text, "nothing heard of it for 15.0 s");
    ck_assert(seen[1].closed);
}
END_TEST

START_TEST(silence_is_not_held_against_a_node_while_we_slept)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    tick(60); /* the deadline was after 15 */
    PHASE(RDZV_RUN);
    say(0, MEMBER_RUNNING);
    say(1, MEMBER_RUNNING);
    for (int i = 0; i < 3; i++) {
        PHASE(RDZV_RUN);
        say(0, MEMBER_RUNNING);
        tick(5);
    }
    PHASE(RDZV_STOP);
}
END_TEST

/* The time limit for each message of a node grows by the delay of this process. */
START_TEST(own_lateness_is_not_held_against_a_node)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    tick(5);
    say(0, MEMBER_RUNNING);
    tick_ms(5900); /* due at 10.0 */
    say(0, MEMBER_RUNNING);
    tick_ms(4900);
    PHASE(RDZV_RUN);
    tick_ms(100);
    PHASE(RDZV_STOP);
    HAS(seen[0].why.text, "nothing heard of it for 15.9 s");
}
END_TEST

/* A coordinator whose timer is always late still detects a silent node. */
START_TEST(a_late_coordinator_detects_a_silent_node)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    for (int i = 0; i < 5 && info().phase == RDZV_RUN; i++) {
        tick(9); /* due after 5 */
        say(0, MEMBER_RUNNING);
    }
    PHASE(RDZV_STOP);
}
END_TEST

START_TEST(too_few_left_ends_a_job_without_restarts)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    closed(1, RDZV_END_CLOSED);
    ck_assert(!seen[0].why.restarting);
    stop_all(1);
    PHASE(RDZV_FINISH);
    const struct rdzv_result *r = &seen[0].result;
    ck_assert_int_eq(r->exit_code, 1);
    ck_assert_int_eq(r->reason, STOP_NODE_LOST);
    HAS(r->text, "node n1 (10.0.0.11) was lost");
    ck_assert_uint_eq(r->n, 1);
    ck_assert_int_eq(seen[0].first.kind, FAILURE_NODE);
    ck_assert_int_eq(seen[0].first.pid, 101);
}
END_TEST

START_TEST(too_few_left_wait_for_another_when_there_are_restarts)
{
    running(RDZV_STATIC, 2, 2, 2, 1);
    closed(1, RDZV_END_CLOSED);
    ck_assert(seen[0].why.restarting);
    stop_all(1);
    PHASE(RDZV_COLLECT);
    ck_assert_int_eq(seen[0].view.phase, RDZV_COLLECT);
    beat(100, (const uint32_t[]){0}, 1);
    HAS(seen[0].notice, "1 of 2 here");
    join(2, (struct who){.host = "new"});
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(seen[2].view.group_rank, 1);
    seen[1] = seen[2];
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(the_wait_for_another_ends)
{
    running(RDZV_STATIC, 2, 2, 2, 1);
    closed(1, RDZV_END_CLOSED);
    stop_all(1);
    beat(600, (const uint32_t[]){0}, 1);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.reason, STOP_NODE_LOST);
    HAS(seen[0].result.text, "node n1 (10.0.0.11) was lost");
    HAS(seen[0].result.text, "only 1 of 2 nodes joined within 600 s");
    ck_assert_int_eq(seen[0].first.kind, FAILURE_NODE);
}
END_TEST

START_TEST(survivors_of_a_lost_node_are_not_charged)
{
    running(RDZV_C10D, 1, 3, 3, 3);
    now_ns += SEC;
    worker_fails(1, FAILURE_EXIT, 1); /* its peer has gone, and it saw that first */
    now_ns += 20 * MSEC;
    closed(2, RDZV_END_CLOSED);
    stop_all(2);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().restarts, 0);
    ck_assert_int_eq(info().nnodes, 2);
}
END_TEST

START_TEST(a_silent_node_was_lost_before_what_followed)
{
    running(RDZV_C10D, 1, 3, 3, 3);
    tick(5);
    say(0, MEMBER_RUNNING);
    say(1, MEMBER_RUNNING);
    tick(4); /* the last of node 2 was 9 s ago */
    worker_fails(1, FAILURE_EXIT, 1);
    stop_all(2);
    PHASE(RDZV_STOP); /* node 2 has not stopped */
    tick(1);
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    tick(5);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(lost_while_preparing_begins_anew)
{
    rules(RDZV_C10D, 2, 3);
    start();
    for (uint32_t i = 0; i < 3; i++)
        join(i, (struct who){.own = i == 0});
    PHASE(RDZV_PREPARE);
    prepared(0);
    closed(2, RDZV_END_CLOSED);
    PHASE(RDZV_COLLECT);
    ck_assert_int_eq(seen[0].view.phase, RDZV_COLLECT);
    say(0, MEMBER_IDLE); /* it has let go of what it prepared */
    PHASE(RDZV_PREPARE); /* at once: the last call has been */
    ck_assert_uint_eq(info().gen.counter, 2);
    run_all(2);
}
END_TEST

START_TEST(a_late_node_is_taken_in)
{
    elastic(1, 3, 2);
    join(2, (struct who){.host = "late"});
    PHASE(RDZV_STOP);
    ck_assert_int_eq(seen[0].why.reason, STOP_MEMBERSHIP);
    ck_assert(seen[0].why.restarting);
    HAS(seen[0].why.text, "node late (10.0.0.12) has joined");
    ck_assert_int_eq(seen[2].view.phase, RDZV_COLLECT);
    stop_all(2);
    PHASE(RDZV_PREPARE);
    run_all(3);
    ck_assert_int_eq(table.restart_count, 0); /* not charged */
}
END_TEST

START_TEST(a_late_node_does_not_undo_a_finished_round)
{
    elastic(1, 3, 2);
    say(0, MEMBER_DONE);
    join(2, (struct who){0});
    PHASE(RDZV_RUN);
    ck_assert(seen[2].view.spare);
    say(1, MEMBER_DONE);
    ck_assert_int_eq(seen[2].reports, 1); /* the spare is told, too */
    ck_assert_int_eq(seen[2].result.exit_code, 0);
}
END_TEST

START_TEST(a_late_node_while_preparing_is_taken_in_without_a_stop)
{
    rules(RDZV_C10D, 2, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    now_ns += 30 * SEC;
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    tick(0);
    prepared(0);
    join(2, (struct who){0});
    PHASE(RDZV_COLLECT);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 3);
    run_all(3);
}
END_TEST

START_TEST(a_lost_node_stops_and_rejoins)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    for (int i = 0; i < 3; i++) {
        tick(5);
        say(0, MEMBER_RUNNING);
    }
    PHASE(RDZV_STOP); /* node 1 was silent */
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    hello(1, (struct who){0}); /* it wakes up */
    struct rdzv_status st = status_of(1, MEMBER_RUNNING);
    st.gen = (struct generation){0xabc, 1};
    tell(1, st);
    ck_assert_int_eq(seen[1].view.phase, RDZV_COLLECT);
    ck_assert_int_eq(seen[1].view.group_rank, -1);
    HAS(seen[1].why.text, "given up");
    PHASE(RDZV_PREPARE); /* not with it as long as its workers live */
    st.phase = MEMBER_IDLE;
    st.workers = false;
    st.send_ns++;
    tell(1, st);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 2);
}
END_TEST

START_TEST(a_done_node_may_leave)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(1, MEMBER_DONE);
    closed(1, RDZV_END_CLOSED);
    PHASE(RDZV_RUN);
    say(0, MEMBER_DONE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 0);
}
END_TEST

/* -------------------------------------------------------------------------------------- leaving */

START_TEST(leave_by_signal_goes_on_without_it)
{
    running(RDZV_C10D, 1, 2, 2, 0);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", true);
    ck_assert_int_eq(seen[0].view.phase, RDZV_STOP);
    ck_assert_int_eq(seen[0].why.reason, STOP_MEMBERSHIP);
    ck_assert_int_ne(seen[1].view.phase, RDZV_RELEASE); /* it still has workers */
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", false);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RELEASE);
    closed(1, RDZV_END_CLOSED);
    LACKS(logs, "was lost");
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 1);
    ck_assert_int_eq(info().restarts, 0);
}
END_TEST

START_TEST(leave_by_signal_ends_a_job_that_needs_it)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", true);
    ck_assert_int_eq(seen[0].why.reason, STOP_SIGNAL);
    ck_assert(!seen[0].why.restarting);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", false);
    ck_assert_int_ne(seen[1].view.phase, RDZV_RELEASE);
    say(0, MEMBER_IDLE);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seen[i].result.exit_code, 143);
        ck_assert_int_eq(seen[i].result.reason, STOP_SIGNAL);
        ck_assert_str_eq(seen[i].result.text, "received SIGTERM");
        ck_assert_uint_eq(seen[i].result.n, 0);
    }
}
END_TEST

/* --max_node_restarts any, which is the default, waits where --max_restarts allows a restart. */
START_TEST(after_a_leave_by_signal_a_job_with_restarts_waits_for_another_node)
{
    running(RDZV_C10D, 2, 2, 2, 7);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", true);
    ck_assert_int_eq(seen[0].why.reason, STOP_MEMBERSHIP);
    ck_assert(seen[0].why.restarting);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", false);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RELEASE);
    closed(1, RDZV_END_CLOSED);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_COLLECT);
    join(2, (struct who){0});
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(leave_of_the_last_that_is_needed_while_stopping)
{
    running(RDZV_C10D, 2, 3, 3, 0);
    leave(1, STOP_SIGNAL, 143, "first", true);
    ck_assert(seen[0].why.restarting);
    leave(2, STOP_SIGNAL, 130, "second", true);
    leave(1, STOP_SIGNAL, 143, "first", false);
    leave(2, STOP_SIGNAL, 130, "second", false);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 130);
}
END_TEST

START_TEST(leave_by_timeout_or_request_ends_the_job_for_all)
{
    static const struct {
        enum stop_reason reason;
        int code;
    } cases[] = {{STOP_TIMEOUT, 124}, {STOP_REQUEST, 130}, {STOP_TIME_LIMIT, 75}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        running(RDZV_C10D, 1, 3, 3, 7);
        leave(2, cases[i].reason, cases[i].code, "enough", true);
        ck_assert_int_eq(seen[0].why.reason, cases[i].reason);
        ck_assert(!seen[0].why.restarting);
        leave(2, cases[i].reason, cases[i].code, "enough", false);
        stop_all(2);
        PHASE(RDZV_FINISH);
        ck_assert_int_eq(seen[0].result.exit_code, cases[i].code);
        if (i + 1 < ARRAY_LEN(cases))
            rdzv_state_free(state);
    }
}
END_TEST

START_TEST(leave_of_the_coordinators_own_ends_the_job)
{
    running(RDZV_C10D, 1, 3, 3, 7);
    leave(0, STOP_SIGNAL, 143, "received SIGTERM", true);
    leave(0, STOP_SIGNAL, 143, "received SIGTERM", false);
    ck_assert(!seen[1].why.restarting);
    stop_all(3);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[1].result.exit_code, 143);
}
END_TEST

START_TEST(leave_while_waiting)
{
    rules(RDZV_STATIC, 3, 3);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.rank1 = 2});
    leave(1, STOP_SIGNAL, 130, "received SIGINT", false);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RELEASE);
    closed(1, RDZV_END_CLOSED);
    PHASE(RDZV_COLLECT);
    join(2, (struct who){.rank1 = 2}); /* its place is free */
    ck_assert(!seen[2].refused);
    leave(0, STOP_SIGNAL, 130, "received SIGINT", false);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[2].result.exit_code, 130);
}
END_TEST

START_TEST(leave_while_preparing)
{
    rules(RDZV_C10D, 2, 3);
    start();
    for (uint32_t i = 0; i < 3; i++)
        join(i, (struct who){.own = i == 0});
    prepared(2);
    leave(2, STOP_INTERNAL, 1, "no memory", false);
    ck_assert_int_eq(seen[2].view.phase, RDZV_RELEASE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 2);
}
END_TEST

START_TEST(leave_of_a_node_that_is_done)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(1, MEMBER_DONE);
    leave(1, STOP_SIGNAL, 143, "received SIGTERM", false);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RELEASE);
    closed(1, RDZV_END_CLOSED);
    say(0, MEMBER_DONE);
    ck_assert_int_eq(seen[0].result.exit_code, 0);
}
END_TEST

START_TEST(leave_of_a_spare)
{
    running(RDZV_C10D, 2, 2, 2, 0);
    join(2, (struct who){0});
    leave(2, STOP_SIGNAL, 143, "received SIGTERM", false);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[2].view.phase, RDZV_RELEASE);
}
END_TEST

/* ----------------------------------------------------------------------------------------- cost */

START_TEST(thousands_of_nodes_cost_little)
{
    enum { N = 8192 };
    rules(RDZV_STATIC, N, N);
    next_rules.max_restarts = 1;
    start();
    log_init(LOG_LEVEL_NOTICE, NULL);
    struct rdzv_hello h = {.backend = RDZV_STATIC,
                           .min_nodes = N,
                           .max_nodes = N,
                           .max_restarts = 1,
                           .agent_store = true,
                           .node_rank = -1,
                           .nproc = 8,
                           .run_id = "job",
                           .version = "0.1",
                           .role = "default"};
    struct rdzv_peer p = {.via = "10.0.0.1"};
    struct rdzv_action a;
    struct rdzv_status st = {.phase = MEMBER_IDLE};
    size_t views = 0, tables = 0;
    for (uint32_t i = 0; i < N; i++) {
        memcpy(h.id.b, &i, sizeof(i));
        snprintf(h.host, sizeof(h.host), "node%u", (i * 2654435761u) % N);
        snprintf(p.addr, sizeof(p.addr), "10.1.%u.%u", i / 256, i % 256);
        rdzv_state_hello(state, i, &h, &p, now_ns);
        st.send_ns = 1;
        rdzv_state_status(state, i, &st, now_ns);
        while (rdzv_state_next(state, &a, now_ns))
            views += a.act == RDZV_ACT_VIEW;
    }
    PHASE(RDZV_PREPARE);
    ck_assert_uint_le(views, 3 * N);
    st = (struct rdzv_status){.phase = MEMBER_PREPARED, .gen = info().gen, .send_ns = 2};
    for (uint32_t i = 0; i < N; i++) {
        rdzv_state_status(state, i, &st, now_ns);
        while (rdzv_state_next(state, &a, now_ns))
            tables += a.act == RDZV_ACT_TABLE;
    }
    ck_assert_uint_eq(tables, N);
    PHASE(RDZV_RUN);
    st = (struct rdzv_status){.phase = MEMBER_DONE, .gen = info().gen, .send_ns = 3};
    for (uint32_t i = 0; i < N; i++)
        rdzv_state_status(state, i, &st, now_ns);
    for (uint32_t i = 0; i < N; i++)
        rdzv_state_closed(state, i, RDZV_END_CLOSED, now_ns);
    while (rdzv_state_next(state, &a, now_ns))
        finished |= a.act == RDZV_ACT_FINISHED;
    PHASE(RDZV_FINISH);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_rounds");
    TCase *tc = rules_case(s, "membership", 10);
    tcase_add_test(tc, a_broken_connection_resumes);
    tcase_add_test(tc, a_connection_is_replaced_before_its_end_is_seen);
    tcase_add_test(tc, a_reconnected_node_gets_the_table_it_missed);
    tcase_add_test(tc, old_statuses_are_ignored);
    tcase_add_test(tc, a_closed_connection_is_a_lost_node);
    tcase_add_test(tc, a_silent_node_is_lost);
    tcase_add_test(tc, silence_is_not_held_against_a_node_while_we_slept);
    tcase_add_test(tc, own_lateness_is_not_held_against_a_node);
    tcase_add_test(tc, a_late_coordinator_detects_a_silent_node);
    tcase_add_test(tc, too_few_left_ends_a_job_without_restarts);
    tcase_add_test(tc, too_few_left_wait_for_another_when_there_are_restarts);
    tcase_add_test(tc, the_wait_for_another_ends);
    tcase_add_test(tc, survivors_of_a_lost_node_are_not_charged);
    tcase_add_test(tc, a_silent_node_was_lost_before_what_followed);
    tcase_add_test(tc, lost_while_preparing_begins_anew);
    tcase_add_test(tc, a_late_node_is_taken_in);
    tcase_add_test(tc, a_late_node_does_not_undo_a_finished_round);
    tcase_add_test(tc, a_late_node_while_preparing_is_taken_in_without_a_stop);
    tcase_add_test(tc, a_lost_node_stops_and_rejoins);
    tcase_add_test(tc, a_done_node_may_leave);
    tc = rules_case(s, "leave", 10);
    tcase_add_test(tc, leave_by_signal_goes_on_without_it);
    tcase_add_test(tc, leave_by_signal_ends_a_job_that_needs_it);
    tcase_add_test(tc, after_a_leave_by_signal_a_job_with_restarts_waits_for_another_node);
    tcase_add_test(tc, leave_of_the_last_that_is_needed_while_stopping);
    tcase_add_test(tc, leave_by_timeout_or_request_ends_the_job_for_all);
    tcase_add_test(tc, leave_of_the_coordinators_own_ends_the_job);
    tcase_add_test(tc, leave_while_waiting);
    tcase_add_test(tc, leave_while_preparing);
    tcase_add_test(tc, leave_of_a_node_that_is_done);
    tcase_add_test(tc, leave_of_a_spare);
    tc = rules_case(s, "cost", 5);
    tcase_add_test(tc, thousands_of_nodes_cost_little);
    return s;
}

TEST_MAIN(suite)
