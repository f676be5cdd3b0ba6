/* A member's rules: the coordinator as this launcher has it. */
#include "tests/lib/member_script.h"

static void tick_ms(uint64_t ms)
{
    now_ns += ms * (SEC / 1000);
    member_state_tick(self, now_ns);
    drain();
}

/* ------------------------------------------------------------------------------- the connection */

START_TEST(a_connection_that_breaks_changes_nothing)
{
    running();
    struct failure f = failure_of(0, FAILURE_EXIT);
    member_state_failed(self, &f);
    OUT("s");
    member_state_disconnected(self, RDZV_END_BROKEN, "reset", now_ns);
    ck_assert(member_state_wants_link(self));
    OUT("");
    now_ns += SEC;
    member_state_connected(self, now_ns);
    OUT("hs");
    ck_assert_int_eq(status.phase, MEMBER_STOPPING);
    ck_assert_int_eq(status.nfailures, 1); /* said again: it was not acknowledged */
    ck_assert_uint_eq(status.first_seq, 1);
}
END_TEST

/* The driver calls again at once who has answered; who does not even take the connection has not.
 */
START_TEST(an_answer_counts_for_one_call)
{
    running();
    member_state_disconnected(self, RDZV_END_BROKEN, "reset", now_ns);
    ck_assert(member_state_answered(self));
    member_state_unreachable(self, true, "connection refused", now_ns);
    ck_assert(!member_state_answered(self));
    member_state_connected(self, now_ns);
    ck_assert(!member_state_answered(self));
    drain();
    view(RDZV_RUN, 1);
    ck_assert(member_state_answered(self));
}
END_TEST

START_TEST(closed_then_refused_is_the_end_of_the_coordinator)
{
    running();
    member_state_disconnected(self, RDZV_END_CLOSED, "closed", now_ns);
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("x");
    ck_assert_int_eq(stopped.reason, STOP_COORDINATOR_LOST);
    ck_assert(!stopped.restarting);
    member_state_stopped(self, NULL, 0);
    OUT("f");
    ck_assert_int_eq(result.exit_code, 1);
    ck_assert_int_eq(result.reason, STOP_COORDINATOR_LOST);
    ck_assert_ptr_nonnull(strstr(result.text, "the coordinator at head:29500 was lost"));
}
END_TEST

/* Another host may have taken over the address, or a firewall rejects the connection. */
START_TEST(a_reset_and_refusals_prove_nothing)
{
    struct rdzv_electorate e;
    running();
    member_state_disconnected(self, RDZV_END_RESET, "connection reset", now_ns);
    for (int i = 0; i < 14; i++) {
        member_state_unreachable(self, true, "connection refused", now_ns);
        OUT("");
        now_ns += SEC;
    }
    now_ns += SEC; /* the dead time */
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("x");
    ck_assert_int_eq(stopped.reason, STOP_COORDINATOR_LOST);
    member_state_electorate(self, &e);
    ck_assert_uint_eq(e.dead_epoch, 0);
}
END_TEST

/* Any program may accept a connection and close it without an answer: that proves nothing about the
 * coordinator. */
START_TEST(a_close_before_an_answer_proves_nothing)
{
    running();
    member_state_disconnected(self, RDZV_END_BROKEN, "broken", now_ns);
    member_state_connected(self, now_ns);
    drain();
    member_state_disconnected(self, RDZV_END_CLOSED, "connection closed", now_ns);
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("");
}
END_TEST

/* The close that follows a refusal proves nothing either. */
START_TEST(a_close_after_a_refusal_proves_nothing)
{
    running();
    refused(true, "this coordinator was replaced");
    ck_assert(!member_state_answered(self));
}
END_TEST

START_TEST(closed_then_let_in_by_a_listener_that_dies)
{
    running();
    member_state_disconnected(self, RDZV_END_CLOSED, "closed", now_ns);
    member_state_connected(self, now_ns); /* the kernel took it, nobody was there any more */
    drain();
    member_state_disconnected(self, RDZV_END_RESET, "connection reset", now_ns);
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("x");
    ck_assert_int_eq(stopped.reason, STOP_COORDINATOR_LOST);
}
END_TEST

START_TEST(a_break_then_refused_may_be_the_network)
{
    running();
    member_state_disconnected(self, RDZV_END_BROKEN, "reset", now_ns);
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("");
    now_ns += 14 * SEC;
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("");
    now_ns += SEC;
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("x");
    ck_assert_int_eq(stopped.reason, STOP_COORDINATOR_LOST);
}
END_TEST

START_TEST(heartbeats_go_out)
{
    running();
    uint64_t before = status.send_ns;
    for (int i = 0; i < 10; i++) {
        pass(5 * SEC);
        ck_assert_str_eq(out, "s");
        ck_assert_uint_ge(status.send_ns - before + MSEC, 5 * SEC);
        before = status.send_ns;
        view(RDZV_RUN, 1);
    }
}
END_TEST

/* Nothing answers the news that an order is carried out: the lease must not wait for what follows.
 */
START_TEST(news_are_no_heartbeat)
{
    connected();
    prepared();
    table();
    now_ns += 4 * SEC;
    view(RDZV_RUN, 1);
    OUT("rs");
    now_ns += SEC - MSEC;
    member_state_tick(self, now_ns);
    OUT("");
    now_ns += MSEC;
    member_state_tick(self, now_ns);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_RUNNING);
}
END_TEST

START_TEST(a_silent_coordinator_is_called_again_and_then_lost)
{
    running();
    uint64_t since = now_ns;
    pass(60 * SEC);
    ck_assert_uint_le(now_ns - since, 12 * SEC);
    ck_assert_ptr_nonnull(strchr(out, 'd'));
    ck_assert(last.reset || strcmp(out, "d") != 0);
    pass(60 * SEC); /* nobody answers */
    ck_assert_str_eq(out, "x");
    ck_assert_uint_eq(now_ns - since, 15 * SEC);
}
END_TEST

START_TEST(silence_while_we_slept_is_forgiven)
{
    running();
    now_ns += 100 * SEC;
    member_state_tick(self, now_ns);
    OUT("s");
    view(RDZV_RUN, 1);
    OUT("");
}
END_TEST

START_TEST(own_lateness_is_not_held_against_the_coordinator)
{
    running();
    tick_ms(5000);
    tick_ms(5900); /* due at 10.0 */
    tick_ms(4900);
    ck_assert_ptr_null(strchr(out, 'x'));
    tick_ms(200);
    ck_assert_ptr_nonnull(strchr(out, 'x'));
    ck_assert_ptr_nonnull(strstr(stopped.text, "nothing heard of it for 16.0 s"));
}
END_TEST

START_TEST(a_late_loop_detects_a_silent_coordinator)
{
    running();
    int late = 0;
    do {
        tick_ms(9000); /* due after 5 s */
        late++;
    } while (late < 5 && !strchr(out, 'x'));
    ck_assert_int_lt(late, 5);
}
END_TEST

/* The others do not wait for one that is late. */
START_TEST(a_lease_ends_even_if_the_loop_is_late)
{
    running_on_lease();
    now_ns += 30 * SEC;
    member_state_tick(self, now_ns);
    drain();
    ck_assert_ptr_nonnull(strchr(out, 'k'));
}
END_TEST

/* The other members, which could elect a new coordinator, are lost: the coordinator grants no
 * lease. */
START_TEST(a_round_that_gets_no_lease_is_left)
{
    running_on_lease();
    view(RDZV_STOP, 1);
    member_state_stopped(self, NULL, 0);
    drain();
    now_ns += 20 * SEC;
    struct rdzv_view v;
    round_gen.counter++;
    view(RDZV_PREPARE, 1);
    drain();
    member_state_prepared(self, NULL, 0, 0);
    drain();
    table();
    for (int k = 0; k < 4; k++) {
        v = view_of(RDZV_RUN, 1);
        member_state_view(self, &v, now_ns);
        drain();
        ck_assert_int_eq(status.phase, MEMBER_PREPARED);
        ck_assert(!status.fenced);
        now_ns += 5 * SEC;
    }
    v = view_of(RDZV_RUN, 1);
    member_state_view(self, &v, now_ns);
    OUT("s");
    ck_assert_int_eq(status.phase, MEMBER_IDLE);
    ck_assert(status.fenced && !status.workers);
}
END_TEST

START_TEST(another_coordinator_in_its_place)
{
    running();
    member_state_disconnected(self, RDZV_END_CLOSED, "closed", now_ns);
    member_state_connected(self, now_ns);
    drain();
    round_gen.epoch++;
    view(RDZV_COLLECT, -1);
    OUT("dx");
    ck_assert_int_eq(stopped.reason, STOP_COORDINATOR_LOST);
}
END_TEST

START_TEST(a_coordinator_that_goes_before_anything_began)
{
    connected();
    view(RDZV_COLLECT, -1);
    ck_assert(member_state_joined(self));
    member_state_disconnected(self, RDZV_END_CLOSED, "closed", now_ns);
    member_state_unreachable(self, true, "connection refused", now_ns);
    OUT("");
    ck_assert(!member_state_joined(self) && member_state_wants_link(self));
    connected(); /* to another one, which hears whom it has followed */
    ck_assert_uint_eq(said.seen_epoch, 7);
    round_gen = (struct generation){99, 0};
    view(RDZV_COLLECT, -1);
    prepared();
}
END_TEST

START_TEST(waiting_for_the_coordinator_is_logged_and_ends)
{
    member_state_unreachable(self, true, "connection refused", now_ns);
    pass(2 * SEC);
    ck_assert_str_eq(out, "l");
    ck_assert_str_eq(line, "waiting for the coordinator at head:29500 (connection refused), 2 s");
    pass(600 * SEC);
    ck_assert_str_eq(out, "f");
    ck_assert_int_eq(result.exit_code, 1);
    ck_assert_int_eq(result.reason, STOP_RENDEZVOUS);
    ck_assert_str_eq(result.text, "no coordinator at head:29500 within 600 s: connection refused");
}
END_TEST

START_TEST(who_is_turned_away_until_the_end_says_why)
{
    for (int i = 0; i < 600; i++) {
        member_state_connected(self, now_ns);
        drain();
        refused(true, "node_rank 1 is already taken by b");
        pass(SEC);
    }
    ck_assert_int_eq(result.exit_code, 1);
    ck_assert_str_eq(result.text, "the coordinator at head:29500 has turned this node away for 600 "
                                  "s: node_rank 1 is already taken by b");
}
END_TEST

START_TEST(the_wait_line_reports_a_silent_listener)
{
    member_state_connected(self, now_ns);
    drain();
    pass(2 * SEC);
    ck_assert_str_eq(line, "waiting for the coordinator at head:29500 (it accepted the connection "
                           "and has not answered), 2 s");
}
END_TEST

/* A member ends without waiting for an answer of the other side. */
START_TEST(leaving_does_not_wait_for_a_silent_listener)
{
    member_state_connected(self, now_ns);
    drain();
    member_state_leave(self, STOP_SIGNAL, 143, "received SIGTERM");
    OUT("df");
    ck_assert(closed_in_order);
    ck_assert_int_eq(result.exit_code, 143);
}
END_TEST

START_TEST(leaving_does_not_wait_for_a_silent_coordinator)
{
    connected();
    view(RDZV_COLLECT, -1);
    member_state_leave(self, STOP_SIGNAL, 143, "received SIGTERM");
    OUT("s");
    pass(4 * SEC);
    ck_assert(!member_state_wants_link(self));
    view(RDZV_COLLECT, -1); /* it answers, but others of the round are still stopping */
    pass(4 * SEC);
    ck_assert_ptr_null(strchr(out, 'f'));
    pass(1100 * MSEC);
    ck_assert_ptr_nonnull(strchr(out, 'f'));
    ck_assert_int_eq(result.exit_code, 143);
}
END_TEST

START_TEST(leaving_ends_when_the_connection_is_given_up)
{
    running();
    member_state_leave(self, STOP_SIGNAL, 143, "received SIGTERM");
    drain();
    member_state_disconnected(self, RDZV_END_RESET, "connection reset", now_ns);
    member_state_connected(self, now_ns);
    drain();
    member_state_stopped(self, NULL, 0);
    drain();
    pass(5100 * MSEC);
    ck_assert_ptr_nonnull(strchr(out, 'f'));
}
END_TEST

/* A launcher that was in no round does not end with a coordinator that gives up. */
START_TEST(a_redirected_member_looks_for_another_coordinator)
{
    connected();
    view(RDZV_COLLECT, -1);
    refused(true, "this coordinator has lost most of its nodes");
    OUT("dl");
    ck_assert(!member_state_joined(self) && member_state_wants_link(self));
    pass(590 * SEC);
    ck_assert_ptr_null(strchr(out, 'f')); /* it has its whole time once more */
}
END_TEST

START_TEST(a_coordinator_that_accepts_and_stays_silent)
{
    connected();
    uint64_t since = now_ns;
    pass(100 * SEC);
    ck_assert_ptr_nonnull(strchr(out, 'd'));
    ck_assert_uint_eq(now_ns - since, 60 * SEC);
}
END_TEST

START_TEST(refused_for_good)
{
    connected();
    refused(false, "this is job 'a', not 'b'");
    OUT("df");
    ck_assert_int_eq(result.exit_code, 2);
    ck_assert_int_eq(result.reason, STOP_RENDEZVOUS);
    ck_assert_str_eq(result.text, "the coordinator at head:29500 turned this node away: this is "
                                  "job 'a', not 'b'");
}
END_TEST

START_TEST(refused_for_now)
{
    connected();
    refused(true, "the job here is over");
    OUT("dl");
    ck_assert_ptr_nonnull(strstr(line, "(trying again)"));
    connected();
    refused(true, "the job here is over"); /* said once */
    OUT("d");
    ck_assert(member_state_wants_link(self));
}
END_TEST

START_TEST(refused_with_workers_alive)
{
    running();
    member_state_disconnected(self, RDZV_END_BROKEN, "reset", now_ns);
    member_state_connected(self, now_ns);
    drain();
    refused(true, "the job here is over");
    OUT("dx");
    ck_assert(!closed_in_order); /* that would prove that its workers have ended */
    member_state_stopped(self, NULL, 0);
    OUT("f");
}
END_TEST

START_TEST(given_up_and_back)
{
    running();
    member_state_disconnected(self, RDZV_END_BROKEN, "reset", now_ns);
    member_state_connected(self, now_ns);
    drain();
    round_gen.counter++;
    view(RDZV_RUN, -1); /* the job runs without it */
    OUT("xs");
    member_state_stopped(self, NULL, 0);
    OUT("s");
    view(RDZV_PREPARE, -1);
    OUT("");
    prepared();
}
END_TEST

START_TEST(a_spare_is_informed)
{
    connected();
    struct rdzv_view v = view_of(RDZV_COLLECT, -1);
    v.spare = true;
    member_state_view(self, &v, now_ns);
    OUT("l");
    ck_assert_ptr_nonnull(strstr(line, "waits for a place"));
    member_state_view(self, &v, now_ns);
    OUT("");
}
END_TEST
/* ------------------------------------------------------------------------------------ elections */

static void view_of_electors(enum rdzv_phase phase)
{
    struct rdzv_view v = view_of(phase, 1);
    v.lease = v.elect = true;
    member_state_view(self, &v, now_ns);
}

/* Prepared for a round of three nodes: 1, the coordinator's host; 2, this member; and 3. */
static void prepared_to_elect(void)
{
    make_on_lease();
    connected();
    round_gen.counter++;
    struct rdzv_peers list = {.gen = round_gen, .n = 3, .e = xcalloc(3, sizeof(*list.e))};
    for (int i = 0; i < list.n; i++)
        list.e[i] = (struct rdzv_peer_entry){.id = {{(uint8_t)(i + 1)}}, .host = i == 0};
    member_state_peers(self, &list);
    view_of_electors(RDZV_PREPARE);
    OUT("eps");
    member_state_prepared(self, NULL, 0, 0);
    OUT("s");
}

static void coordinator_ends(void)
{
    member_state_disconnected(self, RDZV_END_CLOSED, "closed", now_ns);
    member_state_unreachable(self, true, "connection refused", now_ns);
    drain();
}

static void elects_among_three(bool may_stand)
{
    int own_index;
    ck_assert(member_state_electing(self) && member_state_wants_link(self));
    ck_assert_int_eq(member_state_electors(self, &own_index)->n, 3);
    ck_assert_int_eq(own_index, 1);
    ck_assert_int_eq(member_state_may_stand(self), may_stand);
}

START_TEST(a_member_of_the_round_may_stand)
{
    prepared_to_elect();
    table();
    view_of_electors(RDZV_RUN);
    OUT("ers");
    coordinator_ends();
    ck_assert_str_eq(out, "x");
    ck_assert(stopped.restarting);
    elects_among_three(true);
}
END_TEST

START_TEST(a_member_that_was_only_prepared_follows)
{
    prepared_to_elect();
    coordinator_ends();
    elects_among_three(false);
}
END_TEST

static void told_of(uint32_t counter, int n, bool ran)
{
    struct rdzv_peers list = {.gen = {round_gen.epoch, counter},
                              .ran = ran,
                              .n = n,
                              .e = xcalloc((size_t)n, sizeof(*list.e))};
    for (int i = 0; i < n; i++)
        list.e[i] = (struct rdzv_peer_entry){.id = {{(uint8_t)(i + 1)}}, .host = i == 0};
    member_state_peers(self, &list);
}

/* The member was prepared for a round that ran without it, and is sent the next one. */
START_TEST(a_round_that_ran_without_it_counts)
{
    prepared_to_elect();
    told_of(round_gen.counter, 3, true);
    told_of(round_gen.counter + 1, 5, false);
    coordinator_ends();
    elects_among_three(true);
    struct rdzv_electorate e;
    member_state_electorate(self, &e);
    ck_assert(e.ran->ran && generation_equal(e.ran->gen, round_gen));
    ck_assert(e.prepared && e.prepared->n == 5 && !e.prepared->ran);
}
END_TEST

/* The nodes of an older list may have come together meanwhile: they need to know of this one. */
START_TEST(a_returning_witness_reports_its_round)
{
    make_on_lease();
    connected();
    round_gen.counter++;
    struct rdzv_peers list = {.gen = round_gen, .n = 1, .e = xcalloc(1, sizeof(*list.e))};
    list.e[0] = (struct rdzv_peer_entry){.id = {{1}}, .host = true};
    member_state_peers(self, &list);
    struct rdzv_view v = view_of(RDZV_RUN, -1);
    v.elect = true;
    member_state_view(self, &v, now_ns);
    drain();
    coordinator_ends();
    ck_assert(!member_state_electing(self) && !member_state_joined(self));
    member_state_connected(self, now_ns);
    OUT("hvs");
    ck_assert(generation_equal(told.gen, round_gen));
}
END_TEST

START_TEST(elections_are_opt_in)
{
    running();
    coordinator_ends();
    ck_assert_str_eq(out, "x");
    ck_assert(!stopped.restarting && !member_state_electing(self));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("member_contact");
    TCase *tc = test_case(s, "connection", 10);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_connection_that_breaks_changes_nothing);
    tcase_add_test(tc, an_answer_counts_for_one_call);
    tcase_add_test(tc, closed_then_refused_is_the_end_of_the_coordinator);
    tcase_add_test(tc, a_reset_and_refusals_prove_nothing);
    tcase_add_test(tc, a_close_before_an_answer_proves_nothing);
    tcase_add_test(tc, a_close_after_a_refusal_proves_nothing);
    tcase_add_test(tc, closed_then_let_in_by_a_listener_that_dies);
    tcase_add_test(tc, a_break_then_refused_may_be_the_network);
    tcase_add_test(tc, heartbeats_go_out);
    tcase_add_test(tc, news_are_no_heartbeat);
    tcase_add_test(tc, a_silent_coordinator_is_called_again_and_then_lost);
    tcase_add_test(tc, silence_while_we_slept_is_forgiven);
    tcase_add_test(tc, own_lateness_is_not_held_against_the_coordinator);
    tcase_add_test(tc, a_late_loop_detects_a_silent_coordinator);
    tcase_add_test(tc, a_lease_ends_even_if_the_loop_is_late);
    tcase_add_test(tc, a_round_that_gets_no_lease_is_left);
    tcase_add_test(tc, another_coordinator_in_its_place);
    tcase_add_test(tc, a_coordinator_that_goes_before_anything_began);
    tcase_add_test(tc, waiting_for_the_coordinator_is_logged_and_ends);
    tcase_add_test(tc, who_is_turned_away_until_the_end_says_why);
    tcase_add_test(tc, the_wait_line_reports_a_silent_listener);
    tcase_add_test(tc, leaving_does_not_wait_for_a_silent_listener);
    tcase_add_test(tc, leaving_does_not_wait_for_a_silent_coordinator);
    tcase_add_test(tc, leaving_ends_when_the_connection_is_given_up);
    tcase_add_test(tc, a_redirected_member_looks_for_another_coordinator);
    tcase_add_test(tc, a_coordinator_that_accepts_and_stays_silent);
    tcase_add_test(tc, refused_for_good);
    tcase_add_test(tc, refused_for_now);
    tcase_add_test(tc, refused_with_workers_alive);
    tcase_add_test(tc, given_up_and_back);
    tcase_add_test(tc, a_spare_is_informed);
    tc = test_case(s, "elections", 10);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_member_of_the_round_may_stand);
    tcase_add_test(tc, a_member_that_was_only_prepared_follows);
    tcase_add_test(tc, a_round_that_ran_without_it_counts);
    tcase_add_test(tc, a_returning_witness_reports_its_round);
    tcase_add_test(tc, elections_are_opt_in);
    return s;
}

TEST_MAIN(suite)
