/* Which node is elected when the coordinator is lost, and which is not: never two at once. */
#include "tests/lib/rdzv_script.h"

/* Node ids are their numbers; the epoch of the coordinator that was lost. */
#define OLD rdzv_epoch(3, 77)

static struct rdzv_peers list_of(const char *ids, uint32_t counter, bool ran)
{
    static struct rdzv_peer_entry e[8][8];
    static int next;
    struct rdzv_peers p = {.gen = {OLD, counter}, .ran = ran, .e = e[next++ % 8]};
    for (; *ids; ids++, p.n++)
        p.e[p.n] = (struct rdzv_peer_entry){.id = {{(uint8_t)(*ids - '0')}}, .host = *ids == '1'};
    return p;
}

/* Node `own` stands for election: it ran a round of `ran`, and `prepared`, if not NULL, after it.
 * Node 1 had the coordinator. Connection number i is node i. */
static void stand(const char *ran, const char *prepared, uint32_t own)
{
    struct rdzv_peers r = list_of(ran, 5, true), p = list_of(prepared ? prepared : "", 6, false);
    struct rdzv_electorate e = {.ran = &r,
                                .prepared = prepared ? &p : NULL,
                                .seen_epoch = OLD,
                                .random = own,
                                .loss_text = "gone"};
    now_ns = 1000 * SEC;
    log_init(LOG_LEVEL_VERBOSE, NULL);
    rules(RDZV_C10D, 1, 4);
    next_rules.elect = true;
    state = rdzv_state_stand(&next_rules, &e, now_ns);
    join(own, (struct who){.own = true, .id = (int)own});
}

static void vote(uint32_t id)
{
    join(id, (struct who){.id = (int)id});
}

static void elected(bool is)
{
    ck_assert_int_eq(info().standing, !is);
    ck_assert_int_eq(info().gen.epoch > OLD, is);
}

static void gives_up(void)
{
    for (int i = 0; i < 8 && !info().finished; i++)
        tick(5);
    ck_assert(info().finished);
    ck_assert_int_eq(info().result->exit_code, 1);
    HAS(info().result->text, "no majority");
}

START_TEST(more_than_half_elect)
{
    stand("123", NULL, 2);
    elected(false);
    vote(3);
    elected(true);
    HAS(logs, "this node is the coordinator now, by 2 of the 3 nodes of the last round");
}
END_TEST

START_TEST(less_than_half_do_not)
{
    stand("12345", NULL, 2);
    vote(3);
    elected(false);
    gives_up();
    HAS(info().result->text, "of the 5 nodes");
}
END_TEST

START_TEST(the_round_begins_when_all_survivors_have_joined)
{
    struct rdzv_peers r = list_of("1234", 5, true);
    struct rdzv_electorate e = {
        .ran = &r, .seen_epoch = OLD, .random = 2, .dead_epoch = OLD, .loss_text = "gone"};
    now_ns = 1000 * SEC;
    log_init(LOG_LEVEL_VERBOSE, NULL);
    rules(RDZV_C10D, 1, 4);
    next_rules.elect = true;
    state = rdzv_state_stand(&next_rules, &e, now_ns);
    join(2, (struct who){.own = true, .id = 2});
    vote(3);
    elected(false);
    vote(4);
    elected(true);
    PHASE(RDZV_PREPARE); /* no last call: who is missing is known to be dead */
    ck_assert_int_eq(info().nnodes, 3);
}
END_TEST

START_TEST(half_do_not)
{
    stand("1234", NULL, 2);
    vote(3);
    elected(false);
    gives_up();
}
END_TEST

START_TEST(one_of_two_is_not_elected)
{
    stand("12", NULL, 2);
    elected(false);
    gives_up();
}
END_TEST

START_TEST(a_node_that_was_not_in_the_round_has_no_vote)
{
    stand("123", NULL, 2);
    vote(4);
    elected(false);
    vote(3);
    elected(true);
}
END_TEST

START_TEST(a_voter_that_has_left_does_not_count)
{
    stand("12345", NULL, 2);
    vote(3);
    closed(3, RDZV_END_BROKEN);
    vote(4);
    elected(false);
    vote(3);
    elected(true);
}
END_TEST

START_TEST(the_other_nodes_of_a_coordinator_outside_are_enough)
{
    stand("23", NULL, 2); /* node 1 had no workers */
    elected(false);
    vote(3);
    elected(true);
}
END_TEST

/* ------------------------------------------------------------------------------------ witnesses */

START_TEST(a_witness_votes)
{
    stand("129", NULL, 2); /* 9: a witness */
    join(9, (struct who){.id = 9, .witness = true});
    elected(true);
    beat(40, (uint32_t[]){2, 9}, 2); /* the old coordinator's lease runs out */
    PHASE(RDZV_PREPARE);             /* and is no node */
    ck_assert_int_eq(info().nnodes, 1);
    ck_assert_int_eq(seen[9].view.group_rank, -1);
    ck_assert(!seen[9].view.spare);
}
END_TEST

START_TEST(a_witness_of_another_round_does_not)
{
    stand("12", NULL, 2);
    join(9, (struct who){.id = 9, .witness = true});
    elected(false);
}
END_TEST

START_TEST(a_witness_reports_its_vote)
{
    stand("12", NULL, 2); /* it came when the round ran, and node 2 was not told */
    join(9, (struct who){.id = 9, .witness = true});
    struct rdzv_peers grown = list_of("129", 5, false);
    rdzv_state_peers(state, 9, &grown);
    say(9, MEMBER_IDLE);
    elected(true);
}
END_TEST

static void running_with_witness(uint32_t n, bool before)
{
    rules(RDZV_C10D, 1, (int)n);
    next_rules.elect = true;
    start();
    join(0, (struct who){.own = true});
    if (before)
        join(9, (struct who){.witness = true});
    for (uint32_t i = 1; i < n; i++)
        join(i, (struct who){0});
    run_all(n);
    if (!before)
        join(9, (struct who){.witness = true});
}

START_TEST(two_nodes_and_a_witness_are_three)
{
    for (int before = 0; before < 2; before++) {
        running_with_witness(2, before);
        PHASE(RDZV_RUN);
        ck_assert_int_eq(info().nnodes, 2);
        ck_assert_int_eq(seen[1].list.n, 3);
        ck_assert_int_eq(seen[9].list.n, 3);
        ck_assert_int_eq(seen[1].list.e[2].id.b[0], 10);
        ck_assert_int_eq(seen[1].list.e[2].port, 0);
        teardown();
    }
    running_with_witness(2, true); /* for the fixture */
}
END_TEST

START_TEST(three_nodes_need_none)
{
    for (int before = 0; before < 2; before++) {
        running_with_witness(3, before);
        PHASE(RDZV_RUN);
        ck_assert_int_eq(seen[1].list.n, 3);
        teardown();
    }
    running_with_witness(3, true);
}
END_TEST

START_TEST(a_second_witness_stands_by)
{
    running_with_witness(2, true);
    join(10, (struct who){.witness = true});
    ck_assert_int_eq(seen[10].list.n, 3);
    ck_assert_int_eq(seen[10].list.e[2].id.b[0], 10); /* the one on connection 9 */
}
END_TEST

START_TEST(a_witness_is_not_waited_for_and_not_counted)
{
    rules(RDZV_C10D, 2, 2);
    next_rules.elect = true;
    start();
    join(0, (struct who){.own = true});
    join(9, (struct who){.witness = true, .host = "w"});
    PHASE(RDZV_COLLECT);
    tick(5);
    HAS(seen[0].notice, "1 of 2 here: n0");
    join(1, (struct who){0});
    PHASE(RDZV_PREPARE);
    run_all(2);
    closed(9, RDZV_END_CLOSED);
    PHASE(RDZV_RUN);
    HAS(logs, "witness w");
    say(0, MEMBER_DONE);
    say(1, MEMBER_DONE);
    PHASE(RDZV_FINISH);
    ck_assert_int_eq(info().result->exit_code, 0);
}
END_TEST

START_TEST(a_witness_that_is_asked_to_stop_leaves)
{
    running_with_witness(2, true);
    leave(9, STOP_SIGNAL, 143, "w received SIGTERM", false);
    ck_assert_int_eq(seen[9].view.phase, RDZV_RELEASE);
    PHASE(RDZV_RUN);
}
END_TEST

/* ------------------------------------------------------------------------------------ old lists */

START_TEST(a_newer_round_that_a_voter_has_run_counts)
{
    stand("123", NULL, 2);
    hello(3, (struct who){.id = 3});
    struct rdzv_peers newer = list_of("1345", 9, true);
    rdzv_state_peers(state, 3, &newer);
    say(3, MEMBER_IDLE);
    elected(false); /* of these it is one of four */
    vote(4);
    elected(false);
    vote(5);
    elected(true);
}
END_TEST

START_TEST(an_older_round_does_not)
{
    stand("123", NULL, 2);
    hello(4, (struct who){.id = 4});
    struct rdzv_peers older = list_of("14", 4, true);
    rdzv_state_peers(state, 4, &older);
    say(4, MEMBER_IDLE);
    elected(false);
    vote(3);
    elected(true);
}
END_TEST

START_TEST(a_round_that_was_only_prepared_counts_too)
{
    stand("123", "1456", 2);
    vote(3);
    elected(false);
    vote(4);
    vote(5);
    elected(false); /* half */
    vote(6);
    elected(true);
}
END_TEST

START_TEST(epochs_rise_above_all_that_were_seen)
{
    uint64_t seen_by_voter = rdzv_epoch(9, 1);
    stand("123", NULL, 2);
    hello(3, (struct who){.id = 3, .seen_epoch = seen_by_voter});
    say(3, MEMBER_IDLE);
    ck_assert(!info().standing);
    ck_assert_uint_gt(info().gen.epoch, seen_by_voter);
}
END_TEST

START_TEST(of_two_candidates_one_is_elected)
{
    stand("12345", NULL, 2);
    struct rdzv_state *a = state;
    vote(4);
    vote(5);
    elected(true);
    uint64_t epoch = info().gen.epoch;
    memset(seen, 0, sizeof(seen));
    stand("12345", NULL, 3); /* does not see the others */
    elected(false);
    gives_up();
    rdzv_state_free(state);
    memset(seen, 0, sizeof(seen));
    stand("12345", NULL, 3); /* or later, when the first one has been lost in its turn */
    vote(4);
    vote(5);
    elected(true);
    ck_assert(info().gen.epoch != epoch); /* nobody takes one for the other */
    rdzv_state_free(a);
}
END_TEST

/* -------------------------------------------------------------------------- the old coordinator */

/* A status that has seen the newest view. */
static void echo(uint32_t conn, enum member_phase phase)
{
    struct rdzv_status st = status_of(conn, phase);
    st.view_sent_ns = now_ns;
    st.view_seen_ns = st.send_ns;
    tell(conn, st);
}

START_TEST(a_coordinator_without_quorum_grants_no_lease)
{
    rules(RDZV_C10D, 1, 3);
    next_rules.elect = true;
    running_by_rules(3);
    now_ns += 1 * SEC;
    for (uint32_t i = 0; i < 3; i++)
        echo(i, MEMBER_RUNNING);
    tick(2);
    echo(1, MEMBER_RUNNING);
    echo(1, MEMBER_RUNNING);
    ck_assert(seen[1].view.lease);
    closed(1, RDZV_END_BROKEN);
    closed(2, RDZV_END_BROKEN);
    for (int i = 0; i < 4; i++) {
        tick(5);
        echo(0, MEMBER_RUNNING);
        echo(0, MEMBER_RUNNING);
    }
    ck_assert(!seen[0].view.lease);
    PHASE(RDZV_STOP);
    say(0, MEMBER_IDLE);
    gives_up(); /* the others may have another one */
}
END_TEST

START_TEST(dead_nodes_cannot_elect)
{
    rules(RDZV_C10D, 1, 3);
    next_rules.elect = true;
    running_by_rules(3);
    closed(1, RDZV_END_CLOSED);
    closed(2, RDZV_END_CLOSED);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
}
END_TEST

/* Two of three launchers are killed. */
static void two_are_gone(void)
{
    rules(RDZV_C10D, 1, 3);
    next_rules.elect = true;
    start();
    join(0, (struct who){.own = true});
    join(1, (struct who){.peer_port = 4711});
    join(2, (struct who){.peer_port = 4712});
    run_all(3);
    now_ns += 1 * SEC;
    for (uint32_t i = 0; i < 3; i++)
        echo(i, MEMBER_RUNNING);
}

START_TEST(nodes_that_end_soon_after_a_status_cannot_elect)
{
    two_are_gone();
    now_ns += 11 * SEC; /* of 15 */
    closed(1, RDZV_END_CLOSED);
    closed(2, RDZV_END_CLOSED);
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
}
END_TEST

/* Two of three leave, and their connections break before they end. After a long sleep of this
 * process they may not be listening to it any more, but to one that they elect. */
START_TEST(nodes_that_leave_soon_after_a_status_cannot_elect)
{
    bool lately = _i == 0;
    two_are_gone();
    uint64_t heard = now_ns;
    now_ns += (lately ? 11 : 20) * SEC;
    for (uint32_t i = 1; i < 3; i++) {
        struct rdzv_status st = status_of(i, MEMBER_LEAVING);
        st.leave_reason = STOP_SIGNAL;
        st.view_sent_ns = heard;
        tell(i, st);
        ck_assert_int_eq(seen[i].view.phase, RDZV_RELEASE);
        closed(i, RDZV_END_BROKEN);
    }
    say(0, MEMBER_IDLE);
    PHASE(lately ? RDZV_PREPARE : RDZV_COLLECT);
    if (!lately)
        gives_up();
}
END_TEST

/* Nodes 1 and 2 wait as spares in the round after, and would elect one of them if they were cut
 * off: this must not happen when that round runs already. */
START_TEST(a_round_waits_for_nodes_with_an_older_list)
{
    running_with_witness(2, true);
    now_ns += 1 * SEC;
    closed(1, RDZV_END_BROKEN);
    for (int i = 0; i < 4 && info().phase == RDZV_RUN; i++) {
        tick(5);
        echo(0, MEMBER_RUNNING);
        echo(9, MEMBER_IDLE);
    }
    PHASE(RDZV_STOP);
    now_ns += 1 * SEC;
    say(0, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    now_ns += 1 * SEC;
    prepared(0);
    PHASE(RDZV_PREPARE); /* node 1 is out of reach, and the witness would follow it */
    echo(9, MEMBER_IDLE);
    PHASE(RDZV_RUN);
}
END_TEST

START_TEST(with_the_list_that_is_prepared_goes_the_newest_that_ran)
{
    rules(RDZV_C10D, 1, 4);
    next_rules.elect = true;
    running_by_rules(4);
    ck_assert_int_eq(seen[0].list.n, 4);
    ck_assert_int_eq(seen[0].ran.n, 0);
    uint32_t first = seen[0].list.gen.counter;
    closed(3, RDZV_END_CLOSED);
    for (uint32_t i = 0; i < 3; i++)
        say(i, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
    ck_assert_int_eq(seen[0].list.n, 3);
    ck_assert_uint_gt(seen[0].list.gen.counter, first);
    ck_assert_int_eq(seen[0].ran.n, 4);
    ck_assert_uint_eq(seen[0].ran.gen.counter, first);
    ck_assert(seen[0].ran.ran);
}
END_TEST

/* This coordinator was silent for so long that another one was elected: a member that has followed
 * the new one does not return, or rounds of the old epoch would follow newer ones. */
START_TEST(a_coordinator_that_was_replaced_gets_no_votes)
{
    elastic(1, 3, 2);
    uint64_t term = rdzv_epoch_term(info().gen.epoch);
    closed(1, RDZV_END_BROKEN);
    hello(1, (struct who){.seen_epoch = rdzv_epoch(term + 1, 5)});
    ck_assert(seen[1].refused && seen[1].retry);
    HAS(seen[1].refusal, "another was elected");
    hello(2, (struct who){.witness = true, .seen_epoch = rdzv_epoch(term + 1, 5)});
    ck_assert(seen[2].refused && seen[2].retry);
    hello(1, (struct who){.seen_epoch = info().gen.epoch});
    ck_assert(!seen[1].refused);
}
END_TEST

/* Before its first round there is nothing to come after. */
START_TEST(a_waiting_coordinator_accepts_nodes_of_an_older_job)
{
    rules(RDZV_C10D, 2, 3);
    start();
    join(0, (struct who){.own = true});
    hello(1, (struct who){.seen_epoch = rdzv_epoch(1000, 5)});
    ck_assert(!seen[1].refused);
}
END_TEST

/* Waiting for another node in place of a lost one: too few for a moment are not too few. */
START_TEST(a_short_break_while_waiting_is_not_a_minority)
{
    rules(RDZV_C10D, 3, 3);
    next_rules.elect = true;
    next_rules.max_restarts = 3;
    running_by_rules(3);
    for (int i = 0; i < 4 && info().phase == RDZV_RUN; i++) {
        tick(5);
        echo(0, MEMBER_RUNNING);
        echo(1, MEMBER_RUNNING);
    }
    PHASE(RDZV_STOP);
    say(0, MEMBER_IDLE);
    say(1, MEMBER_IDLE);
    beat(60, (uint32_t[]){0, 1}, 2);
    closed(1, RDZV_END_BROKEN);
    PHASE(RDZV_COLLECT);
    for (int i = 0; i < 2; i++) {
        tick(5);
        echo(0, MEMBER_IDLE);
        PHASE(RDZV_COLLECT);
    }
    tick(5);
    PHASE(RDZV_FINISH);
    HAS(info().result->text, "only 1 of the 3 nodes");
}
END_TEST

START_TEST(a_short_break_when_the_quarantine_ends_is_not_a_minority)
{
    stand("123", NULL, 2);
    vote(3);
    elected(true);
    for (int i = 0; i < 2; i++) {
        tick(5);
        say(2, MEMBER_IDLE);
        say(3, MEMBER_IDLE);
    }
    tick_ms(4900);
    say(2, MEMBER_IDLE);
    say(3, MEMBER_IDLE);
    closed(3, RDZV_END_BROKEN);
    tick_ms(200);
    PHASE(RDZV_COLLECT);
    vote(3);
    tick(1);
    PHASE(RDZV_PREPARE);
}
END_TEST

START_TEST(a_returning_voter_reports_the_epoch_it_followed)
{
    uint64_t other = rdzv_epoch(rdzv_epoch_term(OLD) + 1, 1000);
    stand("12345", NULL, 2);
    vote(4);
    closed(4, RDZV_END_BROKEN);
    join(4, (struct who){.id = 4, .seen_epoch = other});
    vote(5);
    elected(true);
    ck_assert_uint_gt(info().gen.epoch, other);
}
END_TEST

/* The first of two that the same nodes have elected, by votes of long ago, which have left it. */
static void elected_by_old_votes(void)
{
    stand("12345", NULL, 2);
    vote(4);
    vote(5);
    elected(true);
    closed(4, RDZV_END_BROKEN);
    closed(5, RDZV_END_BROKEN);
}

START_TEST(a_second_elected_coordinator_gets_no_voter_of_the_first)
{
    uint64_t other = rdzv_epoch(rdzv_epoch_term(OLD) + 1, 5);
    elected_by_old_votes();
    hello(5, (struct who){.id = 5, .seen_epoch = other});
    ck_assert(seen[5].refused && seen[5].retry);
    HAS(seen[5].refusal, "another was elected");
}
END_TEST

START_TEST(a_second_elected_coordinator_respects_the_first_one_s_round)
{
    struct rdzv_peers theirs = list_of("345", 1, false);
    theirs.gen.epoch = rdzv_epoch(rdzv_epoch_term(OLD) + 1, 5);
    elected_by_old_votes();
    vote(5);
    ck_assert(!seen[5].refused);
    rdzv_state_peers(state, 5, &theirs);
    drain();
    ck_assert(seen[5].refused && seen[5].retry);
}
END_TEST

/* The death of the coordinator of an older round proves nothing about the host of a newer round. */
START_TEST(only_the_host_of_the_dead_coordinator_s_rounds_is_dead)
{
    struct rdzv_peers r = list_of("1234", 5, true), newer = list_of("5234", 1, true);
    struct rdzv_electorate e = {
        .ran = &r, .seen_epoch = OLD, .random = 2, .dead_epoch = OLD, .loss_text = "gone"};
    now_ns = 1000 * SEC;
    rules(RDZV_C10D, 1, 4);
    next_rules.elect = true;
    state = rdzv_state_stand(&next_rules, &e, now_ns);
    join(2, (struct who){.own = true, .id = 2});
    newer.gen.epoch = rdzv_epoch_next(OLD, 5);
    newer.e[0].host = true;
    vote(3);
    rdzv_state_peers(state, 3, &newer);
    drain();
    vote(4);
    say(2, MEMBER_IDLE);
    say(3, MEMBER_IDLE);
    ck_assert_int_ne(info().phase, RDZV_PREPARE); /* the leases of the newer round run out first */
}
END_TEST

/* A node that waits at a coordinator that has lost most of its members looks for another
 * coordinator. */
START_TEST(a_node_without_a_round_does_not_end_with_a_minority)
{
    stand("12345", NULL, 2);
    vote(7);
    hello(3, (struct who){.id = 3});
    seen[3].view.gen = (struct generation){OLD, 5};
    beat(30, (uint32_t[]){2, 3, 7}, 3);
    HAS(info().result->text, "no majority");
    ck_assert(seen[7].refused && seen[7].retry);
    HAS(seen[7].refusal, "this coordinator has lost most of its nodes");
    ck_assert_int_eq(seen[7].reports, 0);
    ck_assert_int_eq(seen[3].reports, 1);
}
END_TEST

/* The host of the coordinator that was does not count for it, dead as it is. */
START_TEST(an_elected_coordinator_needs_a_majority_for_its_first_round)
{
    struct rdzv_peers r = list_of("12345", 5, true);
    struct rdzv_electorate e = {
        .ran = &r, .seen_epoch = OLD, .random = 9, .dead_epoch = OLD, .loss_text = "gone"};
    now_ns = 1000 * SEC;
    rules(RDZV_C10D, 1, 5);
    next_rules.elect = true;
    state = rdzv_state_stand(&next_rules, &e, now_ns);
    join(2, (struct who){.own = true, .id = 2});
    vote(4);
    vote(5);
    elected(true);
    closed(4, RDZV_END_BROKEN);
    beat(30, (uint32_t[]){2, 5}, 2);
    ck_assert_int_ne(info().phase, RDZV_RUN);
    ck_assert_int_ne(info().phase, RDZV_PREPARE);
}
END_TEST

/* The node's status on its second connection renews the lease of its workers meanwhile. */
START_TEST(a_round_waits_for_a_node_without_status)
{
    struct node_id late = {{5}};
    stand("12345", NULL, 2);
    vote(3);
    hello(5, (struct who){.id = 5, .seen_epoch = OLD});
    vote(4);
    elected(true);
    for (int i = 0; i < 12; i++) { /* quarantine and last call are over */
        tick(5);
        rdzv_state_beat(state, &late, &(struct rdzv_beat){.heard_ns = now_ns}, now_ns);
        for (uint32_t node = 2; node <= 4; node++)
            say(node, MEMBER_IDLE);
        PHASE(RDZV_COLLECT);
    }
    say(5, MEMBER_STOPPING);
    PHASE(RDZV_COLLECT);
    say(5, MEMBER_IDLE);
    PHASE(RDZV_PREPARE);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_election");
    TCase *tc = test_case(s, "election", 30);
    tcase_add_checked_fixture(tc, NULL, teardown);
    tcase_add_test(tc, more_than_half_elect);
    tcase_add_test(tc, less_than_half_do_not);
    tcase_add_test(tc, the_round_begins_when_all_survivors_have_joined);
    tcase_add_test(tc, half_do_not);
    tcase_add_test(tc, one_of_two_is_not_elected);
    tcase_add_test(tc, a_node_that_was_not_in_the_round_has_no_vote);
    tcase_add_test(tc, a_voter_that_has_left_does_not_count);
    tcase_add_test(tc, the_other_nodes_of_a_coordinator_outside_are_enough);
    tcase_add_test(tc, a_witness_votes);
    tcase_add_test(tc, a_witness_of_another_round_does_not);
    tcase_add_test(tc, a_witness_reports_its_vote);
    tcase_add_test(tc, two_nodes_and_a_witness_are_three);
    tcase_add_test(tc, three_nodes_need_none);
    tcase_add_test(tc, a_second_witness_stands_by);
    tcase_add_test(tc, a_witness_is_not_waited_for_and_not_counted);
    tcase_add_test(tc, a_witness_that_is_asked_to_stop_leaves);
    tcase_add_test(tc, a_newer_round_that_a_voter_has_run_counts);
    tcase_add_test(tc, an_older_round_does_not);
    tcase_add_test(tc, a_round_that_was_only_prepared_counts_too);
    tcase_add_test(tc, epochs_rise_above_all_that_were_seen);
    tcase_add_test(tc, of_two_candidates_one_is_elected);
    tcase_add_test(tc, a_coordinator_without_quorum_grants_no_lease);
    tcase_add_test(tc, dead_nodes_cannot_elect);
    tcase_add_test(tc, nodes_that_end_soon_after_a_status_cannot_elect);
    tcase_add_loop_test(tc, nodes_that_leave_soon_after_a_status_cannot_elect, 0, 2);
    tcase_add_test(tc, a_round_waits_for_nodes_with_an_older_list);
    tcase_add_test(tc, with_the_list_that_is_prepared_goes_the_newest_that_ran);
    tcase_add_test(tc, a_coordinator_that_was_replaced_gets_no_votes);
    tcase_add_test(tc, a_waiting_coordinator_accepts_nodes_of_an_older_job);
    tcase_add_test(tc, a_short_break_while_waiting_is_not_a_minority);
    tcase_add_test(tc, a_short_break_when_the_quarantine_ends_is_not_a_minority);
    tcase_add_test(tc, a_returning_voter_reports_the_epoch_it_followed);
    tcase_add_test(tc, a_second_elected_coordinator_gets_no_voter_of_the_first);
    tcase_add_test(tc, a_second_elected_coordinator_respects_the_first_one_s_round);
    tcase_add_test(tc, only_the_host_of_the_dead_coordinator_s_rounds_is_dead);
    tcase_add_test(tc, a_node_without_a_round_does_not_end_with_a_minority);
    tcase_add_test(tc, an_elected_coordinator_needs_a_majority_for_its_first_round);
    tcase_add_test(tc, a_round_waits_for_a_node_without_status);
    return s;
}

TEST_MAIN(suite)
