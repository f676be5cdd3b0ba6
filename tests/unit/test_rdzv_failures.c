/* The coordinator's rules, one by one: failures, and what is started again. */
#include "tests/lib/rdzv_script.h"

#include <signal.h>

/* ------------------------------------------------------------------------------------- failures */

START_TEST(all_done_is_success)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(0, MEMBER_DONE);
    PHASE(RDZV_RUN);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_FINISH);
        ck_assert_int_eq(seen[i].reports, 1);
        ck_assert_int_eq(seen[i].result.exit_code, 0);
        ck_assert_str_eq(seen[i].result.text, "");
    }
    ck_assert(!finished);
    closed(0, RDZV_END_CLOSED);
    ck_assert(!finished);
    closed(1, RDZV_END_CLOSED);
    ck_assert(finished);
}
END_TEST

START_TEST(finish_does_not_wait_for_ever)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    closed(0, RDZV_END_CLOSED);
    for (int i = 0; i < 6; i++) {
        ck_assert(!finished);
        ck_assert_uint_ne(rdzv_state_deadline(state), UINT64_MAX);
        say(1, MEMBER_DONE);
        tick(5);
    }
    ck_assert(finished);
    HAS(logs, "1 node, among them n1 (10.0.0.11), did not receive the job's result");
    ck_assert_uint_eq(rdzv_state_deadline(state), UINT64_MAX);
}
END_TEST

START_TEST(failure_stops_everybody_at_once)
{
    running(RDZV_STATIC, 3, 3, 3, 0);
    worker_fails(1, FAILURE_SIGNAL, SIGSEGV);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(seen[i].view.phase, RDZV_STOP);
        ck_assert_int_eq(seen[i].why.reason, STOP_FAILURE);
        ck_assert(!seen[i].why.restarting);
        HAS(seen[i].why.text, "worker 2 (local rank 0) on n1 was killed by SIGSEGV");
        ck_assert(seen[i].why.has_first);
        ck_assert_int_eq(seen[i].why.first.rank, 2);
    }
    ck_assert_uint_gt(seen[1].view.acked, 0);
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    PHASE(RDZV_STOP); /* not before all have stopped */
    say(2, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[2].result.exit_code, 128 + SIGSEGV);
    ck_assert_int_eq(seen[2].result.reason, STOP_FAILURE);
    HAS(seen[2].result.text, "SIGSEGV");
    ck_assert_uint_eq(seen[2].result.n, 1);
    ck_assert_int_eq(seen[2].first.rank, 2);
    ck_assert_int_eq(seen[2].first.node, 1);
    ck_assert_str_eq(seen[2].first.host, "n1");
}
END_TEST

START_TEST(restarts_are_charged_to_the_job)
{
    running(RDZV_STATIC, 2, 2, 2, 2);
    for (int i = 1; i <= 2; i++) {
        worker_fails((uint32_t)i % 2, FAILURE_EXIT, 3);
        ck_assert(seen[0].why.restarting);
        stop_all(2);
        PHASE(RDZV_PREPARE);
        ck_assert_uint_eq(info().gen.counter, (uint32_t)i + 1);
        run_all(2);
        ck_assert_int_eq(table.restart_count, i);
        ck_assert_int_eq(rounds, i + 1);
    }
    worker_fails(0, FAILURE_EXIT, 3);
    ck_assert(!seen[0].why.restarting);
    stop_all(2);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 3);
    ck_assert_int_eq(seen[0].result.restarts, 2);
}
END_TEST

START_TEST(restart_waits_for_the_backoff)
{
    rules(RDZV_STATIC, 1, 1);
    next_rules.max_restarts = 3;
    next_rules.backoff_ns = 2 * SEC;
    start();
    join(0, (struct who){.own = true});
    for (int i = 1; i <= 2; i++) {
        run_all(1);
        worker_fails(0, FAILURE_EXIT, 1);
        stop_all(1);
        PHASE(RDZV_COLLECT);
        ck_assert_uint_le(rdzv_state_deadline(state), now_ns + 2 * (uint64_t)i * SEC);
        tick(2 * (uint64_t)i - 1);
        PHASE(RDZV_COLLECT);
        tick(1);
        PHASE(RDZV_PREPARE);
    }
}
END_TEST

START_TEST(no_join_timeout_during_the_backoff)
{
    rules(RDZV_STATIC, 1, 1);
    next_rules.max_restarts = 1;
    next_rules.backoff_ns = 60 * SEC;
    start();
    join(0, (struct who){.own = true});
    run_all(1);
    worker_fails(0, FAILURE_EXIT, 1);
    stop_all(1);
    seen[0].notice[0] = 0;
    tick(59);
    PHASE(RDZV_COLLECT);
    ck_assert_str_eq(seen[0].notice, "");
}
END_TEST

START_TEST(a_huge_backoff_does_not_wrap_around)
{
    rules(RDZV_STATIC, 1, 1);
    next_rules.max_restarts = 100;
    next_rules.backoff_ns = 1000000000 * SEC;
    start();
    join(0, (struct who){.own = true});
    run_all(1);
    worker_fails(0, FAILURE_EXIT, 1);
    stop_all(1);
    tick(600000);
    PHASE(RDZV_COLLECT);
    say(0, MEMBER_IDLE);
    tick(10000); /* a week is the longest */
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(exec_failures_are_never_retried)
{
    running(RDZV_STATIC, 2, 2, 2, 5);
    worker_fails(1, FAILURE_EXEC, 127);
    ck_assert(!seen[0].why.restarting);
    stop_all(2);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 127);
}
END_TEST

START_TEST(first_cause_is_found_over_all_nodes)
{
    running(RDZV_STATIC, 3, 3, 3, 0);
    now_ns += 100 * MSEC;
    struct failure victim = failure_of(0, FAILURE_EXIT, 1);
    tell_failures(2, MEMBER_STOPPING, 1, &victim, 1, 0);
    HAS(seen[0].why.text, "worker 4");
    now_ns += 5 * MSEC; /* what comes in later happened before, on another clock */
    struct failure cause = failure_of(1, FAILURE_EXIT, 9);
    tell_failures(1, MEMBER_STOPPING, 1, &cause, 1, 20 * MSEC);
    struct failure others[2] = {failure_of(0, FAILURE_STOPPED, 0),
                                failure_of(1, FAILURE_STOPPED, 0)};
    tell_failures(0, MEMBER_IDLE, 1, others, 2, 0);
    say(1, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.exit_code, 9);
    ck_assert_int_eq(seen[0].first.rank, 3);
    ck_assert_uint_eq(seen[0].result.n, 4);
}
END_TEST

START_TEST(clock_offsets_put_failures_on_one_clock)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    /* An exchange without delay tells the offset; node 1's clock runs 1,000 s behind. */
    struct rdzv_status st = status_of(1, MEMBER_PREPARED);
    st.view_sent_ns = seen[1].view.sent_ns;
    st.view_seen_ns = st.send_ns;
    tell(1, st);
    uint64_t at = st.send_ns, ours = now_ns; /* the same moment on both clocks */
    prepared(0);
    now_ns += SEC;
    struct failure f = failure_of(0, FAILURE_EXIT, 1);
    struct failure g = failure_of(1, FAILURE_EXIT, 2);
    struct buf b = BUF_INIT;
    tell_failures(0, MEMBER_STOPPING, 1, &f, 1, 100 * MSEC); /* 900 ms after that moment */
    g.seen_ns = at + 800 * MSEC;
    failure_encode(&b, &g);
    now_ns += SEC; /* its message was on its way for a second */
    struct rdzv_status late = status_of(1, MEMBER_STOPPING);
    late.send_ns = at + 1000 * MSEC;
    late.first_seq = 1;
    late.nfailures = 1;
    late.failures = b.data;
    late.failures_len = b.len;
    tell(1, late);
    seen[1].clock = 2000 * MSEC;
    stop_all(2);
    ck_assert_int_eq(seen[0].result.exit_code, 2);
    ck_assert_uint_eq(seen[0].first.seen_ns, ours + 800 * MSEC);
    buf_fini(&b);
}
END_TEST

/* A node of two, whose connection is reset; on the coordinator's host or another. */
static void reset_node(bool same_host)
{
    rules(RDZV_STATIC, 2, 2);
    start();
    hello(0, (struct who){.own = true});
    hello(1, (struct who){.same_host = same_host, .peer_port = 4711});
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    run_all(2);
    PHASE(RDZV_RUN);
    closed(1, RDZV_END_RESET);
    PHASE(RDZV_RUN);
}

/* A reset proves nothing, not even on this host: a firewall may have sent it. */
START_TEST(a_reset_node_is_lost_when_it_has_been_silent)
{
    for (int here = 0; here < 2; here++) {
        reset_node(here);
        uint64_t reset = now_ns;
        while (now_ns + SEC < reset + next_rules.dead_ns) {
            tick_ms(1000);
            say(0, MEMBER_RUNNING);
            PHASE(RDZV_RUN);
        }
        tick_ms(1000);
        PHASE(RDZV_STOP);
        ck_assert_int_eq(seen[0].view.why->reason, STOP_NODE_LOST);
        HAS(seen[0].why.text, "nothing heard of it for 15.0 s");
        say(0, MEMBER_IDLE);
        rdzv_state_free(state);
    }
    start(); /* for teardown */
}
END_TEST

START_TEST(a_reset_node_that_reconnects_goes_on)
{
    reset_node(false);
    tick_ms(14000);
    hello(1, (struct who){0});
    for (int i = 0; i < 20; i++) {
        tick_ms(5000);
        say(1, MEMBER_RUNNING);
    }
    PHASE(RDZV_RUN);
}
END_TEST

/* A reset connection does not prove that the launcher and its workers have ended, when another
 * launcher takes its rank. */
START_TEST(a_replacement_of_a_reset_node_waits_for_its_workers)
{
    bool same_host = _i;
    rules(RDZV_STATIC, 2, 2);
    next_rules.max_restarts = 3;
    start();
    hello(0, (struct who){.own = true, .rank1 = 1});
    hello(1, (struct who){.rank1 = 2, .same_host = same_host});
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    run_all(2);
    say(1, MEMBER_RUNNING);
    uint64_t heard = now_ns;
    tick_ms(100);
    closed(1, RDZV_END_RESET);
    hello(2, (struct who){.rank1 = 2});
    HAS(logs, "another launcher has taken its node_rank");
    say(0, MEMBER_IDLE);
    say(2, MEMBER_IDLE);
    PHASE(RDZV_COLLECT);
    while (now_ns + SEC < heard + next_rules.dead_ns) {
        tick_ms(1000);
        say(0, MEMBER_IDLE);
        say(2, MEMBER_IDLE);
        PHASE(RDZV_COLLECT);
    }
    tick_ms(1000);
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(failures_are_taken_once)
{
    running(RDZV_STATIC, 2, 2, 2, 1);
    struct failure f = failure_of(0, FAILURE_EXIT, 1);
    tell_failures(1, MEMBER_STOPPING, 1, &f, 1, 0);
    closed(1, RDZV_END_BROKEN);
    hello(1, (struct who){0});
    tell_failures(1, MEMBER_IDLE, 1, &f, 1, 0); /* again, since the answer was lost */
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    tell_failures(1, MEMBER_IDLE, 1, &f, 1, 0);
    run_all(2);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(info().restarts, 1);
}
END_TEST

START_TEST(failures_of_others_are_not_believed)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    struct failure f = failure_of(2, FAILURE_EXIT, 1); /* it has local ranks 0 and 1 */
    tell_failures(1, MEMBER_RUNNING, 1, &f, 1, 0);
    f = failure_of(-1, FAILURE_NODE, 0);
    tell_failures(1, MEMBER_RUNNING, 2, &f, 1, 0);
    PHASE(RDZV_RUN);
    HAS(logs, "a worker that it does not have");
    f = failure_of(1, FAILURE_EXIT, 1);
    f.rank = 0; /* the coordinator knows better */
    strcpy(f.host, "innocent");
    tell_failures(1, MEMBER_STOPPING, 3, &f, 1, 0);
    stop_all(2);
    ck_assert_int_eq(seen[0].first.rank, 3);
    ck_assert_str_eq(seen[0].first.host, "n1");
}
END_TEST

START_TEST(failure_when_others_are_done)
{
    running(RDZV_STATIC, 3, 3, 3, 1);
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    worker_fails(2, FAILURE_EXIT, 1);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(seen[i].view.phase, RDZV_STOP);
    stop_all(3);
    PHASE(RDZV_PREPARE);
    run_all(3);
    for (uint32_t i = 0; i < 3; i++)
        say(i, MEMBER_DONE);
    ck_assert_int_eq(seen[0].result.exit_code, 0);
    ck_assert_int_eq(seen[0].result.restarts, 1);
    ck_assert_uint_eq(seen[0].result.n, 0);
}
END_TEST

START_TEST(report_is_bounded_and_counts_the_rest)
{
    running(RDZV_STATIC, 2, 2, 2, 0);
    worker_fails(1, FAILURE_EXIT, 7);
    struct rdzv_status st = status_of(0, MEMBER_IDLE);
    st.failures_total = 500; /* 500 records, none of which fitted */
    tell(0, st);
    say(1, MEMBER_IDLE);
    PHASE(RDZV_FINISH);
    ck_assert_uint_eq(seen[0].result.n, 1);
    ck_assert_uint_eq(seen[0].result.omitted, 500);
}
END_TEST

START_TEST(a_node_that_stops_without_a_reason)
{
    running(RDZV_STATIC, 2, 2, 2, 5);
    say(1, MEMBER_IDLE);
    PHASE(RDZV_STOP);
    stop_all(2);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(seen[0].result.reason, STOP_INTERNAL);
    HAS(seen[0].result.text, "node n1 has stopped its workers without a reason");
}
END_TEST

/* The node may have started its workers by the last message it received: the lease must expire
 * first. */
START_TEST(a_node_is_reset_before_it_reports_running)
{
    rules(RDZV_C10D, 1, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    prepared(0);
    prepared(1);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[1].view.phase, RDZV_RUN);
    say(0, MEMBER_RUNNING);
    closed(1, RDZV_END_RESET);
    for (int i = 0; i < 2; i++) {
        tick(5);
        say(0, MEMBER_RUNNING);
        PHASE(RDZV_RUN);
    }
    tick(5);
    PHASE(RDZV_STOP);
    ck_assert_int_eq(rounds, 1);
    say(0, MEMBER_IDLE);
    ck_assert_int_eq(rounds, 2); /* its lease has run out */
}
END_TEST

START_TEST(a_lost_node_that_reconnects_stops_its_workers_first)
{
    rules(RDZV_C10D, 1, 2);
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    run_all(2);
    closed(1, RDZV_END_RESET);
    for (int i = 0; i < 3; i++) {
        tick(5);
        say(0, MEMBER_RUNNING);
    }
    PHASE(RDZV_STOP);
    hello(7, (struct who){.id = 2});
    say(7, MEMBER_STOPPING);
    say(0, MEMBER_IDLE);
    for (int i = 0; i < 5; i++) {
        tick(5);
        say(0, MEMBER_IDLE);
        say(7, MEMBER_STOPPING);
        PHASE(RDZV_COLLECT);
    }
    say(7, MEMBER_IDLE);
    tick(5);
    ck_assert_int_eq(rounds, 2);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(info().nnodes, 2);
}
END_TEST

/* A worker failed because the node had gone, long before that was certain. */
START_TEST(a_node_is_lost_when_its_connection_ends)
{
    rules(RDZV_C10D, 1, 2);
    next_rules.max_restarts = 1;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.peer_port = 4711});
    run_all(2);
    now_ns += SEC;
    closed(1, RDZV_END_CLOSED);
    now_ns += MSEC;
    worker_fails(0, FAILURE_EXIT, 1);
    now_ns += 300 * MSEC;
    say(0, MEMBER_IDLE);
    ck_assert_int_eq(info().restarts, 0);
    ck_assert_int_eq(info().node_restarts, 1);
}
END_TEST

/* ---------------------------------------------------------------------- restart policy "worker" */

START_TEST(only_the_failed_worker_is_respawned)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.max_restarts = 2;
    next_rules.restart_policy = RESTART_WORKER;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    run_all(2);
    struct failure f = failure_of(1, FAILURE_SIGNAL, SIGKILL);
    tell_failures(1, MEMBER_RUNNING, 1, &f, 1, 0);
    PHASE(RDZV_RUN);
    ck_assert_int_eq(seen[0].view.phase, RDZV_RUN);
    ck_assert_int_eq(seen[1].view.nrespawns, 1);
    ck_assert_int_eq(seen[1].order.local_rank, 1);
    ck_assert_int_eq(seen[1].order.restart_count, 1);
    HAS(logs, "restart 1 of 2");
    /* Until it says that it did. */
    say(1, MEMBER_RUNNING);
    ck_assert_int_eq(seen[1].view.nrespawns, 1);
    struct rdzv_status st = status_of(1, MEMBER_RUNNING);
    st.respawned = seen[1].order.id;
    tell(1, st);
    ck_assert_int_eq(seen[1].view.nrespawns, 0);
    /* The first of the last failure is not one that was mended. */
    f = failure_of(0, FAILURE_EXIT, 3);
    tell_failures(0, MEMBER_RUNNING, 1, &f, 1, 0);
    ck_assert_int_eq(seen[0].order.restart_count, 2);
    tick(1);
    tell_failures(0, MEMBER_RUNNING, 2, &f, 1, 0);
    PHASE(RDZV_STOP);
    stop_all(2);
    ck_assert_int_eq(seen[1].result.exit_code, 3);
    ck_assert_int_eq(seen[1].result.restarts, 2);
    ck_assert_uint_eq(seen[1].result.n, 1);
}
END_TEST

/* Two workers of a node die at once; the one that is told first was seen last, or both at once. */
START_TEST(failures_are_told_out_of_order)
{
    rules(RDZV_STATIC, 2, 2);
    next_rules.max_restarts = 2;
    next_rules.restart_policy = RESTART_WORKER;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    run_all(2);
    struct failure f = failure_of(1, FAILURE_SIGNAL, SIGKILL);
    tell_failures(1, MEMBER_RUNNING, 1, &f, 1, 0);
    ck_assert_int_eq(seen[1].view.nrespawns, 1);
    f = failure_of(0, FAILURE_EXIT, 1);
    tell_failures(1, MEMBER_RUNNING, 2, &f, 1, (uint64_t)_i * MSEC);
    ck_assert_int_eq(seen[1].view.nrespawns, 2);
}
END_TEST

/* The round ends before the worker is started again, and its node reports the failure once more. */
START_TEST(a_failure_is_charged_once)
{
    rules(RDZV_C10D, 2, 2);
    next_rules.max_restarts = 1;
    next_rules.restart_policy = RESTART_WORKER;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){0});
    run_all(2);
    struct failure f = failure_of(1, FAILURE_EXIT, 1);
    tell_failures(0, MEMBER_RUNNING, 1, &f, 1, 0);
    HAS(logs, "restart 1 of 1");
    tick(1);
    closed(1, RDZV_END_CLOSED);
    PHASE(RDZV_STOP);
    tell_failures(0, MEMBER_IDLE, 2, &f, 1, SEC); /* what was seen a second ago */
    PHASE(RDZV_COLLECT);
    ck_assert(!finished);
}
END_TEST

START_TEST(respawn_waits_for_the_backoff)
{
    rules(RDZV_STATIC, 1, 1);
    next_rules.max_restarts = 2;
    next_rules.restart_policy = RESTART_WORKER;
    next_rules.backoff_ns = 3 * SEC;
    start();
    join(0, (struct who){.own = true});
    run_all(1);
    struct failure f = failure_of(1, FAILURE_EXIT, 1);
    tell_failures(0, MEMBER_RUNNING, 1, &f, 1, 0);
    ck_assert_int_eq(seen[0].view.nrespawns, 0);
    ck_assert_uint_eq(rdzv_state_deadline(state), now_ns + 3 * SEC);
    tick(3);
    ck_assert_int_eq(seen[0].view.nrespawns, 1);
}
END_TEST

START_TEST(exec_failure_is_not_respawned)
{
    rules(RDZV_STATIC, 1, 1);
    next_rules.max_restarts = 2;
    next_rules.restart_policy = RESTART_WORKER;
    start();
    join(0, (struct who){.own = true});
    run_all(1);
    struct failure f = failure_of(1, FAILURE_EXEC, 126);
    tell_failures(0, MEMBER_RUNNING, 1, &f, 1, 0);
    stop_all(1);
    ck_assert_int_eq(seen[0].result.exit_code, 126);
}
END_TEST

/* One node, whose worker 1 may be started again alone. */
static void worker_policy(enum cause cause, enum cause_action action)
{
    rules(RDZV_STATIC, 1, 1);
    next_rules.max_restarts = 20;
    next_rules.restart_policy = RESTART_WORKER;
    next_rules.progress_ns = 10 * SEC;
    next_rules.actions.of[cause] = (uint8_t)action;
    start();
    join(0, (struct who){.own = true});
    run_all(1);
}

/* The nth failure of the job. */
static void fails_alone(uint32_t nth, int code, const char *line)
{
    struct failure f = failure_of(1, FAILURE_EXIT, code);
    snprintf(f.stderr_tail, sizeof(f.stderr_tail), "%s", line);
    tell_failures(0, MEMBER_RUNNING, nth, &f, 1, 0);
}

START_TEST(a_cause_that_ends_the_job_ends_it_under_the_worker_policy)
{
    worker_policy(CAUSE_EXIT, ACTION_END);
    fails_alone(1, 3, "");
    PHASE(RDZV_STOP);
    ck_assert(!seen[0].why.restarting);
    stop_all(1);
    ck_assert_int_eq(seen[0].result.exit_code, 3);
    ck_assert_int_eq(seen[0].result.restarts, 0);
    HAS(seen[0].result.final, "a failure of the class exit ends the job (--on_cause)");
}
END_TEST

START_TEST(a_cause_that_evicts_stops_the_round_under_the_worker_policy)
{
    worker_policy(CAUSE_EXIT, ACTION_EVICT);
    fails_alone(1, 3, "");
    PHASE(RDZV_STOP);
    ck_assert(seen[0].why.restarting);
}
END_TEST

START_TEST(a_crash_loop_of_one_worker_backs_off_and_ends)
{
    static const uint64_t pause_s[] = {0, 0, 1, 2, 4};
    worker_policy(CAUSE_NONE, ACTION_DEFAULT);
    for (uint32_t i = 0; i < 5; i++) {
        tick(1);
        fails_alone(i + 1, 9, i % 2 ? "Error 17: no" : "Error 4: no\n");
        PHASE(RDZV_RUN);
        ck_assert_int_eq(seen[0].view.nrespawns, pause_s[i] ? 0 : 1);
        tick(pause_s[i]);
        ck_assert_int_eq(seen[0].view.nrespawns, 1);
        struct rdzv_status st = status_of(0, MEMBER_RUNNING);
        st.respawned = seen[0].order.id;
        tell(0, st);
    }
    fails_alone(6, 9, "Error 5: no");
    PHASE(RDZV_STOP);
    ck_assert(!seen[0].why.restarting);
    stop_all(1);
    ck_assert_int_eq(seen[0].result.restarts, 5);
    HAS(seen[0].result.final, "6 starts in a row have ended so within 10 s");
}
END_TEST

START_TEST(a_worker_that_lived_longer_begins_anew)
{
    worker_policy(CAUSE_NONE, ACTION_DEFAULT);
    for (uint32_t i = 0; i < 12; i++) {
        for (int k = 0; k < (i % 2 ? 3 : 1); k++) {
            tick(4);
            say(0, MEMBER_RUNNING);
        }
        fails_alone(i + 1, 9, "");
        PHASE(RDZV_RUN);
        ck_assert_int_eq(seen[0].view.nrespawns, 1);
        struct rdzv_status st = status_of(0, MEMBER_RUNNING);
        st.respawned = seen[0].order.id;
        tell(0, st);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_failures");
    TCase *tc = rules_case(s, "failure", 10);
    tcase_add_test(tc, all_done_is_success);
    tcase_add_test(tc, finish_does_not_wait_for_ever);
    tcase_add_test(tc, failure_stops_everybody_at_once);
    tcase_add_test(tc, restarts_are_charged_to_the_job);
    tcase_add_test(tc, restart_waits_for_the_backoff);
    tcase_add_test(tc, no_join_timeout_during_the_backoff);
    tcase_add_test(tc, a_huge_backoff_does_not_wrap_around);
    tcase_add_test(tc, exec_failures_are_never_retried);
    tcase_add_test(tc, first_cause_is_found_over_all_nodes);
    tcase_add_test(tc, clock_offsets_put_failures_on_one_clock);
    tcase_add_loop_test(tc, a_replacement_of_a_reset_node_waits_for_its_workers, 0, 2);
    tcase_add_test(tc, failures_are_taken_once);
    tcase_add_test(tc, a_reset_node_is_lost_when_it_has_been_silent);
    tcase_add_test(tc, a_reset_node_that_reconnects_goes_on);
    tcase_add_test(tc, failures_of_others_are_not_believed);
    tcase_add_test(tc, failure_when_others_are_done);
    tcase_add_test(tc, report_is_bounded_and_counts_the_rest);
    tcase_add_test(tc, a_node_that_stops_without_a_reason);
    tcase_add_test(tc, a_node_is_reset_before_it_reports_running);
    tcase_add_test(tc, a_lost_node_that_reconnects_stops_its_workers_first);
    tcase_add_test(tc, a_node_is_lost_when_its_connection_ends);
    tc = rules_case(s, "worker policy", 10);
    tcase_add_test(tc, only_the_failed_worker_is_respawned);
    tcase_add_loop_test(tc, failures_are_told_out_of_order, 0, 2);
    tcase_add_test(tc, a_failure_is_charged_once);
    tcase_add_test(tc, respawn_waits_for_the_backoff);
    tcase_add_test(tc, exec_failure_is_not_respawned);
    tcase_add_test(tc, a_cause_that_ends_the_job_ends_it_under_the_worker_policy);
    tcase_add_test(tc, a_cause_that_evicts_stops_the_round_under_the_worker_policy);
    tcase_add_test(tc, a_crash_loop_of_one_worker_backs_off_and_ends);
    tcase_add_test(tc, a_worker_that_lived_longer_begins_anew);
    return s;
}

TEST_MAIN(suite)
