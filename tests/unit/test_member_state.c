/* A member's rules: the life of a round, and its end. */
#include "tests/lib/member_script.h"

#include <signal.h>

/* --------------------------------------------------------------------------------------- a life */

START_TEST(a_job_that_goes_well)
{
    ck_assert(member_state_wants_link(self));
    running();
    member_state_done(self);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_DONE);
    ck_assert(!status.workers);
    report(0, "");
    view(RDZV_FINISH, 1);
    OUT("df");
    ck_assert(!last.reset);
    ck_assert_int_eq(result.exit_code, 0);
    ck_assert(!member_state_wants_link(self));
    ck_assert_uint_eq(member_state_deadline(self), UINT64_MAX);
}
END_TEST

START_TEST(a_stop_and_a_restart)
{
    running();
    view(RDZV_STOP, 1);
    OUT("xs");
    ck_assert_str_eq(stopped.text, "worker 3 failed");
    ck_assert_int_eq(status.phase, MEMBER_STOPPING);
    view(RDZV_STOP, 1); /* said again: nothing new */
    OUT("");
    struct failure all[2] = {failure_of(0, FAILURE_STOPPED), failure_of(1, FAILURE_STOPPED)};
    member_state_stopped(self, all, 2);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    ck_assert(generation_equal(status.gen, round_gen));
    ck_assert_int_eq(status.nfailures, 2);
    ck_assert_uint_eq(status.failures_total, 2);
    struct rdzv_view v = view_of(RDZV_COLLECT, -1);
    v.acked = 2;
    member_state_view(self, &v, now_ns);
    prepared();
    ck_assert_int_eq(status.nfailures, 0);
}
END_TEST

START_TEST(a_failure_of_its_own)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(self, &f);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_STOPPING);
    ck_assert_int_eq(status.nfailures, 1);
    struct failure got;
    struct rd r = rd_init(status.failures, status.failures_len);
    ck_assert(failure_decode(&r, &got));
    ck_assert_int_eq(got.local_rank, 1);
    view(RDZV_STOP, 1); /* what follows from it */
    OUT("x");
    member_state_stopped(self, &f, 1);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}
END_TEST

START_TEST(stopped_before_the_coordinator_reported_it)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(self, &f);
    member_state_stopped(self, &f, 1);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    ck_assert_int_eq(status.nfailures, 2); /* the quick one and the full one */
    view(RDZV_STOP, 1);
    OUT("x"); /* nothing to stop, but why and what follows */
    view(RDZV_STOP, 1);
    OUT("");
    prepared();
}
END_TEST

START_TEST(the_next_round_before_the_news_of_the_stop)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(self, &f);
    member_state_stopped(self, &f, 1);
    OUT("s");
    struct rdzv_view stop = view_of(RDZV_STOP, 1);
    round_gen.counter++;
    struct rdzv_view v = view_of(RDZV_PREPARE, 1);
    v.why = stop.why;
    v.why_counter = stop.why_counter;
    member_state_view(self, &v, now_ns);
    OUT("xps");
    member_state_prepared(self, NULL, 0, 0);
    OUT("s");
    member_state_view(self, &v, now_ns); /* the stop is of the round before */
    OUT("");
}
END_TEST

START_TEST(a_done_node_is_stopped_too)
{
    running();
    member_state_done(self);
    OUT("s");
    view(RDZV_STOP, 1);
    OUT("xs");
    member_state_stopped(self, NULL, 0);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}
END_TEST

START_TEST(stopped_while_preparing)
{
    connected();
    prepared();
    view(RDZV_STOP, 1); /* nothing was ever started */
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    prepared();
    view(RDZV_COLLECT, -1);
    OUT("s");
    prepared();
}
END_TEST

START_TEST(several_views_in_one_batch)
{
    connected();
    round_gen.counter = 1;
    view(RDZV_PREPARE, 1);
    round_gen.counter = 2;
    view(RDZV_PREPARE, 0); /* another round before the agent heard of the first */
    OUT("ps");
    ck_assert_uint_eq(status.gen.counter, 2);
    member_state_prepared(self, NULL, 0, 0);
    OUT("s");
    table();
    view(RDZV_RUN, 0);
    view(RDZV_STOP, 0); /* over before it began */
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
}
END_TEST

/* A view that arrives late or twice is older than the current one, and is ignored. */
START_TEST(an_older_view)
{
    running();
    struct rdzv_view v = view_of(RDZV_PREPARE, 1);
    v.sent_ns = now_ns - 1;
    member_state_view(self, &v, now_ns);
    OUT("");
    v = view_of(RDZV_STOP, 1);
    v.gen.counter--;
    member_state_view(self, &v, now_ns);
    OUT("");
}
END_TEST

START_TEST(an_answer_to_an_older_question)
{
    connected();
    round_gen.counter = 1;
    view(RDZV_PREPARE, 1);
    OUT("ps");
    round_gen.counter = 2;
    view(RDZV_PREPARE, 1);
    member_state_prepared(self, NULL, 0, 0); /* for round 1: on_prepare for 2 is not out yet */
    OUT("ps");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    member_state_prepared(self, NULL, 0, 0);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_PREPARED);
}
END_TEST

START_TEST(calls_out_of_place_do_nothing)
{
    struct failure f = failure_of(0, FAILURE_EXIT);
    connected();
    member_state_prepared(self, NULL, 0, 0);
    member_state_failed(self, &f);
    member_state_done(self);
    member_state_stopped(self, &f, 1);
    OUT("");
    prepared();
    member_state_done(self);
    member_state_failed(self, &f);
    member_state_stopped(self, &f, 1);
    OUT("");
}
END_TEST

START_TEST(the_table_must_be_there_and_fit)
{
    connected();
    prepared();
    view(RDZV_RUN, 1);
    OUT(""); /* it comes first: this is not our coordinator's order */
    struct rank_table t;
    rank_table_init(&t);
    ck_assert_int_eq(rank_table_alloc(&t, 2), 0);
    t.nodes[0].nproc = 2;
    t.nodes[1].nproc = 3; /* we have two */
    t.gen = round_gen;
    member_state_table(self, &t);
    view(RDZV_RUN, 1);
    OUT("df");
    ck_assert_int_eq(result.reason, STOP_INTERNAL);
}
END_TEST

START_TEST(an_answer_of_long_ago_starts_nothing)
{
    connected();
    prepared();
    table();
    struct rdzv_view v = view_of(RDZV_RUN, 1);
    now_ns += 12 * SEC; /* this process was stopped meanwhile */
    member_state_view(self, &v, now_ns);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_PREPARED);
    view(RDZV_RUN, 1);
    OUT("rs");
}
END_TEST

START_TEST(generations_never_go_back)
{
    running();
    struct generation newer = round_gen;
    round_gen.counter--;
    view(RDZV_STOP, 1);
    OUT("");
    round_gen = newer;
    view(RDZV_STOP, 1);
    OUT("xs");
}
END_TEST

START_TEST(respawns_are_handed_out_once)
{
    member_state_free(self);
    make(RESTART_WORKER, false);
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(self, &f);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_RUNNING);
    const struct rdzv_respawn orders[] = {{1, 1, 1}, {2, 0, 2}, {3, 9, 3}};
    struct rdzv_view v = view_of(RDZV_RUN, 1);
    v.respawns = orders;
    v.nrespawns = 1;
    member_state_view(self, &v, now_ns);
    OUT("ws");
    ck_assert_int_eq(respawned_rank, 1);
    ck_assert_uint_eq(status.respawned, 1);
    v.nrespawns = 3; /* the first again, a new one, and one for a worker we do not have */
    member_state_view(self, &v, now_ns);
    OUT("ws");
    ck_assert_int_eq(respawned_rank, 0);
    ck_assert_uint_eq(status.respawned, 2);
}
END_TEST

START_TEST(more_failures_than_fit_one_status)
{
    running();
    view(RDZV_STOP, 1);
    OUT("xs");
    enum { N = 500 };
    struct failure *all = xcalloc(N, sizeof(*all));
    for (int i = 0; i < N; i++)
        all[i] = failure_of(i, i == 400 ? FAILURE_EXIT : FAILURE_STOPPED);
    member_state_stopped(self, all, N);
    OUT("s");
    ck_assert_int_eq(status.nfailures, RDZV_STATUS_FAILURES);
    ck_assert_uint_eq(status.failures_total, N);
    struct failure first;
    struct rd r = rd_init(status.failures, status.failures_len);
    ck_assert(failure_decode(&r, &first));
    ck_assert_int_eq(first.local_rank, 400); /* what tells most is not what is left out */
    free(all);
}
END_TEST

START_TEST(many_quick_failures_come_in_several_statuses)
{
    member_state_free(self);
    make(RESTART_WORKER, false);
    running();
    for (int i = 0; i < 100; i++) {
        struct failure f = failure_of(i % 2, FAILURE_EXIT);
        member_state_failed(self, &f);
    }
    OUT("ss");
    ck_assert_uint_eq(status.first_seq, RDZV_STATUS_FAILURES + 1);
    ck_assert_int_eq(status.nfailures, 100 - RDZV_STATUS_FAILURES);
}
END_TEST
/* -------------------------------------------------------------------------------------- the end */

START_TEST(finish_waits_for_the_workers)
{
    running();
    report(1, "over");
    view(RDZV_FINISH, -1);
    OUT("dx");
    ck_assert_str_eq(stopped.text, "over");
    member_state_stopped(self, NULL, 0);
    OUT("f");
    ck_assert_int_eq(result.exit_code, 1);
}
END_TEST

START_TEST(finish_without_a_report)
{
    connected();
    view(RDZV_FINISH, -1);
    OUT("df");
    ck_assert_int_eq(result.reason, STOP_INTERNAL);
}
END_TEST

START_TEST(own_failures_are_reported_when_the_coordinator_is_lost)
{
    running();
    struct failure f = failure_of(1, FAILURE_EXIT);
    member_state_failed(self, &f);
    drain();
    member_state_disconnected(self, RDZV_END_CLOSED, "closed", now_ns);
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("x");
    member_state_stopped(self, NULL, 0);
    OUT("f");
    ck_assert_uint_eq(result.n, 1);
    ck_assert_int_eq(result.failures[0].local_rank, 1);
}
END_TEST

START_TEST(leave_while_running)
{
    running();
    member_state_leave(self, STOP_SIGNAL, 143, "received SIGTERM");
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_LEAVING);
    ck_assert(status.workers);
    ck_assert_int_eq(status.leave_code, 143);
    view(RDZV_STOP, 1);
    OUT(""); /* it is stopping already */
    member_state_stopped(self, NULL, 0);
    OUT("s");
    ck_assert(!status.workers);
    view(RDZV_PREPARE, 1); /* not with us */
    OUT("");
    view(RDZV_RELEASE, -1);
    OUT("df");
    ck_assert_int_eq(result.exit_code, 143);
    ck_assert_int_eq(result.reason, STOP_SIGNAL);
    ck_assert_str_eq(result.text, "received SIGTERM");
}
END_TEST

START_TEST(leave_that_ends_the_job)
{
    running();
    member_state_leave(self, STOP_TIMEOUT, 124, "too long");
    member_state_stopped(self, NULL, 0);
    OUT("s");
    report(124, "too long");
    view(RDZV_FINISH, 1);
    OUT("df");
    ck_assert_int_eq(result.exit_code, 124);
}
END_TEST

START_TEST(leave_before_anything)
{
    member_state_leave(self, STOP_SIGNAL, 130, "received SIGINT");
    OUT("f");
    ck_assert_int_eq(result.exit_code, 130);
}
END_TEST

START_TEST(leave_while_preparing)
{
    connected();
    round_gen.counter++;
    view(RDZV_PREPARE, 1);
    member_state_leave(self, STOP_SIGNAL, 130, "received SIGINT");
    OUT("s"); /* no on_prepare any more */
    ck_assert_int_eq(status.phase, MEMBER_LEAVING);
    ck_assert(!status.workers);
    member_state_disconnected(self, RDZV_END_CLOSED, "closed",
                              now_ns); /* it need not wait for anybody */
    OUT("f");
}
END_TEST

START_TEST(leave_and_then_the_coordinator_goes)
{
    running();
    member_state_leave(self, STOP_SIGNAL, 143, "received SIGTERM");
    drain();
    member_state_disconnected(self, RDZV_END_BROKEN, "reset", now_ns);
    OUT("");
    member_state_unreachable(self, true, "refused", now_ns + 20 * SEC);
    OUT(""); /* its workers are still alive */
    member_state_stopped(self, NULL, 0);
    OUT("f");
    ck_assert_int_eq(result.exit_code, 143);
    ck_assert_int_eq(result.reason, STOP_SIGNAL);
}
END_TEST

/* A node leaves because of what its workers have left behind, and all of them have succeeded. */
START_TEST(leave_when_the_work_is_done)
{
    running();
    member_state_leave(self, STOP_INTERNAL, 125, "a process cannot be killed");
    drain();
    member_state_disconnected(self, RDZV_END_BROKEN, "reset", now_ns);
    member_state_done(self);
    OUT("f"); /* nobody answers, and no worker is alive */
    ck_assert_int_eq(result.exit_code, 125);
}
END_TEST

START_TEST(phases_for_people)
{
    struct rdzv_info i = {0};
    member_state_get_info(self, &i);
    ck_assert_str_eq(i.phase, "joining");
    connected();
    view(RDZV_COLLECT, -1);
    member_state_get_info(self, &i);
    ck_assert_str_eq(i.phase, "waiting");
    prepared();
    member_state_get_info(self, &i);
    ck_assert_str_eq(i.phase, "preparing");
    table();
    view(RDZV_RUN, 1);
    drain();
    member_state_get_info(self, &i);
    ck_assert_str_eq(i.phase, "running");
    ck_assert_int_eq(i.world_size, 4);
    ck_assert_int_eq(i.group_rank, 1);
    view(RDZV_STOP, 1);
    member_state_get_info(self, &i);
    ck_assert_str_eq(i.phase, "stopping");
}
END_TEST

START_TEST(a_refused_member_ends_its_workers_with_its_lease)
{
    running_on_lease();
    refused(false, "it is not the coordinator");
    OUT("dx");
    ck_assert_uint_eq(member_state_deadline(self),
                      now_ns + 12 * SEC); /* the others may have another one */
    now_ns += 12 * SEC;
    member_state_tick(self, now_ns);
    OUT("k");
    member_state_stopped(self, NULL, 0);
    OUT("f");
    ck_assert_uint_eq(member_state_deadline(self), UINT64_MAX);
}
END_TEST

START_TEST(a_job_that_is_over_needs_no_lease)
{
    running_on_lease();
    report(1, "worker 3 failed");
    view(RDZV_FINISH, 1);
    drain();
    ck_assert_ptr_nonnull(strchr(out, 'e'));
    ck_assert_uint_eq(member_state_deadline(self), UINT64_MAX);
    member_state_stopped(self, NULL, 0);
    OUT("f");
}
END_TEST
static Suite *suite(void)
{
    Suite *s = suite_create("member_state");
    TCase *tc = test_case(s, "life", 10);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_job_that_goes_well);
    tcase_add_test(tc, a_stop_and_a_restart);
    tcase_add_test(tc, a_failure_of_its_own);
    tcase_add_test(tc, stopped_before_the_coordinator_reported_it);
    tcase_add_test(tc, the_next_round_before_the_news_of_the_stop);
    tcase_add_test(tc, a_done_node_is_stopped_too);
    tcase_add_test(tc, stopped_while_preparing);
    tcase_add_test(tc, several_views_in_one_batch);
    tcase_add_test(tc, an_older_view);
    tcase_add_test(tc, an_answer_to_an_older_question);
    tcase_add_test(tc, calls_out_of_place_do_nothing);
    tcase_add_test(tc, the_table_must_be_there_and_fit);
    tcase_add_test(tc, an_answer_of_long_ago_starts_nothing);
    tcase_add_test(tc, generations_never_go_back);
    tcase_add_test(tc, respawns_are_handed_out_once);
    tcase_add_test(tc, more_failures_than_fit_one_status);
    tcase_add_test(tc, many_quick_failures_come_in_several_statuses);
    tc = test_case(s, "end", 10);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, finish_waits_for_the_workers);
    tcase_add_test(tc, finish_without_a_report);
    tcase_add_test(tc, own_failures_are_reported_when_the_coordinator_is_lost);
    tcase_add_test(tc, leave_while_running);
    tcase_add_test(tc, leave_that_ends_the_job);
    tcase_add_test(tc, leave_before_anything);
    tcase_add_test(tc, leave_while_preparing);
    tcase_add_test(tc, leave_and_then_the_coordinator_goes);
    tcase_add_test(tc, leave_when_the_work_is_done);
    tcase_add_test(tc, phases_for_people);
    tcase_add_test(tc, a_refused_member_ends_its_workers_with_its_lease);
    tcase_add_test(tc, a_job_that_is_over_needs_no_lease);
    return s;
}

TEST_MAIN(suite)
