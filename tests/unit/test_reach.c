/* How a launcher reaches the coordinator: the rules on a made-up clock. */
#include "tests/lib/test.h"

#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/rules/reach.h"
#include "tests/lib/nsec.h"

static struct reach *self;
static struct reach_action got; /* the newest action */
static struct reach_member m;   /* what the member knows */
static struct rdzv_peer_entry entries[3];
static struct rdzv_peers electors;
static uint64_t now;

static struct netaddr at(const char *ip)
{
    struct netaddr a;
    ck_assert(netaddr_parse_ip(&a, ip, 29400));
    return a;
}

static void start(struct reach_rules rules)
{
    reach_free(self);
    rules.dead_ns = 4 * SEC;
    self = reach_new(&rules);
    m = (struct reach_member){.self = -1};
    now = SEC;
}

static void setup(void)
{
    log_init(LOG_LEVEL_ERROR, NULL);
    start((struct reach_rules){0});
}

static void teardown(void)
{
    reach_free(self);
    self = NULL;
}

/* The next action is this one, and no other is due. */
static void expect(enum reach_act act)
{
    struct reach_action none;
    reach_check(self);
    ck_assert_msg(reach_next(self, &got, now), "no action, not %d", act);
    ck_assert_int_eq(got.act, act);
    reach_check(self);
    ck_assert(!reach_next(self, &none, now));
}

static void expect_none(void)
{
    struct reach_action none;
    reach_check(self);
    ck_assert(!reach_next(self, &none, now));
}

static void wanted(void)
{
    reach_wanted(self, &m, 512, now);
    reach_check(self);
}

/* Waits for the next attempt; returns for how long. */
static uint64_t pause_ns(void)
{
    expect_none();
    uint64_t until = reach_deadline(self), waited = until - now;
    ck_assert_uint_ne(until, UINT64_MAX);
    now = until - 1;
    reach_tick(self, &m, now);
    expect_none();
    now = until;
    reach_tick(self, &m, now);
    return waited;
}

static void called(enum reach_called how)
{
    struct netaddr a = got.has_to ? got.to : at("10.0.0.1");
    reach_called(self, &m, how, how == REACH_CONNECTED ? &a : NULL, "it does not answer", now);
}

static void join(bool own_host)
{
    expect(REACH_ACT_LOOK);
    reach_looked(self, REACH_FOUND_JOIN, own_host, "");
    expect(REACH_ACT_CALL);
    ck_assert(!got.has_to);
}

/* ------------------------------------------------------------------------------------- the states
 */

START_TEST(joins_at_once)
{
    struct netaddr a;
    wanted();
    join(false);
    ck_assert(!reach_where(self, &a));
    called(REACH_CONNECTED);
    expect_none();
    ck_assert(reach_where(self, &a));
    ck_assert_uint_eq(reach_deadline(self), UINT64_MAX);
}
END_TEST

START_TEST(hosts)
{
    wanted();
    expect(REACH_ACT_LOOK);
    reach_looked(self, REACH_FOUND_HOST, false, "");
    expect(REACH_ACT_HOST);
    reach_hosted(self, REACH_HOSTS, false, NULL);
    expect(REACH_ACT_OWN);
    ck_assert(reach_hosts(self));
    /* The connection to itself breaks. */
    m.answered = m.joined = true;
    wanted();
    expect(REACH_ACT_OWN);
}
END_TEST

START_TEST(hosts_and_publishes)
{
    start((struct reach_rules){.publishes = true});
    wanted();
    expect(REACH_ACT_LOOK);
    reach_looked(self, REACH_FOUND_HOST, false, "");
    expect(REACH_ACT_HOST);
    reach_hosted(self, REACH_HOSTS, false, NULL);
    expect(REACH_ACT_PUBLISH);
    reach_published(self, &m, NULL, now);
    expect(REACH_ACT_OWN);
}
END_TEST

START_TEST(a_bound_port_hosts_without_a_look)
{
    reach_bound(self);
    wanted();
    expect(REACH_ACT_HOST);
    reach_hosted(self, REACH_HOSTS, false, NULL);
    expect(REACH_ACT_OWN);
}
END_TEST

START_TEST(a_taken_port_is_joined)
{
    wanted();
    expect(REACH_ACT_LOOK);
    reach_looked(self, REACH_FOUND_HOST, true, "");
    expect(REACH_ACT_HOST);
    reach_hosted(self, REACH_TAKEN, true, NULL);
    expect(REACH_ACT_CALL);
    ck_assert(!reach_hosts(self));
}
END_TEST

START_TEST(a_port_that_is_let_go_is_waited_for)
{
    wanted();
    expect(REACH_ACT_LOOK);
    for (int i = 0; i < 3; i++) {
        reach_looked(self, REACH_FOUND_HOST, true, "");
        expect(REACH_ACT_HOST);
        if (i == 2)
            break;
        reach_hosted(self, REACH_HOSTS_LATER, true, "in use by one that was killed");
        expect(REACH_ACT_UNREACHABLE);
        ck_assert_str_eq(got.why, "in use by one that was killed");
        ck_assert(!got.refused);
        wanted();
        pause_ns();
        expect(REACH_ACT_LOOK);
    }
    reach_hosted(self, REACH_HOSTS, false, NULL);
    expect(REACH_ACT_OWN);
}
END_TEST

START_TEST(what_is_final)
{
    for (int i = 0; i < 4; i++) {
        start((struct reach_rules){.publishes = true});
        wanted();
        expect(REACH_ACT_LOOK);
        reach_looked(self,
                     i == 0   ? REACH_FOUND_FAIL
                     : i == 1 ? REACH_FOUND_JOIN
                              : REACH_FOUND_HOST,
                     false, "no");
        if (i == 1) {
            expect(REACH_ACT_CALL);
            reach_called(self, &m, REACH_NO_CALL, NULL, "no", now);
        } else if (i > 1) {
            expect(REACH_ACT_HOST);
            reach_hosted(self, i == 2 ? REACH_CANNOT_HOST : REACH_HOSTS, false, "no");
        }
        if (i == 3) {
            expect(REACH_ACT_PUBLISH);
            reach_published(self, &m, "no", now);
        }
        expect(REACH_ACT_FAIL);
        ck_assert_str_eq(got.why, "no");
        ck_assert_int_eq(got.calling, i == 1);
        wanted();
        expect_none();
    }
}
END_TEST

/* Answers to what is no longer asked, and what comes when everything closes. */
START_TEST(late_events_do_nothing)
{
    struct netaddr a = at("10.0.0.1");
    wanted();
    expect(REACH_ACT_LOOK);
    reach_hosted(self, REACH_HOSTS, false, NULL);
    reach_published(self, &m, NULL, now);
    reach_called(self, &m, REACH_CONNECTED, &a, "", now);
    reach_tick(self, &m, now + SEC);
    wanted();
    reach_redirected(self, &a); /* there is no coordinator here */
    expect_none();
    ck_assert(!reach_hosts(self) && !reach_where(self, &a));
    reach_close(self);
    reach_close(self);
    reach_looked(self, REACH_FOUND_HOST, false, "");
    expect_none();
    ck_assert_uint_eq(reach_deadline(self), UINT64_MAX);
}
END_TEST

/* -------------------------------------------------------------------------------------- the pauses
 */

START_TEST(pauses_grow_to_a_second)
{
    uint64_t last = 0, sum = 0;
    wanted();
    for (int i = 0; i < 30; i++) {
        join(false);
        called(REACH_UNANSWERED);
        expect(REACH_ACT_UNREACHABLE);
        ck_assert_str_eq(got.why, "it does not answer");
        wanted();
        uint64_t pause = pause_ns();
        ck_assert_uint_ge(pause, last);
        last = pause;
        sum += pause;
    }
    ck_assert_uint_le(last, SEC);
    ck_assert_uint_gt(sum, 5 * SEC);
    join(false);
    called(REACH_CONNECTED);
    m.answered = true; /* which ends the series */
    wanted();
    join(false);
}
END_TEST

/* A refused connection on this host costs nothing: it is tried again soon, and not looked for
 * again.
 */
START_TEST(refused_here)
{
    wanted();
    join(true);
    called(REACH_REFUSED);
    expect(REACH_ACT_UNREACHABLE);
    ck_assert(got.refused);
    for (int i = 0; i < 600; i++) {
        wanted();
        ck_assert_uint_eq(pause_ns(), (i < 499 ? 2 : 10) * (SEC / 1000));
        expect(REACH_ACT_LOOK);
        ck_assert(got.known && !got.ask);
        reach_looked(self, REACH_FOUND_JOIN, true, "");
        expect(REACH_ACT_CALL);
        called(REACH_REFUSED);
        expect(REACH_ACT_UNREACHABLE);
    }
}
END_TEST

/* Who accepted, and was no coordinator, is asked before the next attempt; until nobody is there. */
START_TEST(no_coordinator_listens)
{
    wanted();
    join(false);
    called(REACH_CONNECTED);
    wanted();
    pause_ns();
    expect(REACH_ACT_LOOK);
    ck_assert(got.ask);
    reach_looked(self, REACH_FOUND_JOIN, false, "");
    expect(REACH_ACT_CALL);
    called(REACH_UNANSWERED);
    expect(REACH_ACT_UNREACHABLE);
    wanted();
    pause_ns();
    expect(REACH_ACT_LOOK);
    ck_assert(got.ask);
    reach_looked(self, REACH_FOUND_JOIN, false, "");
    expect(REACH_ACT_CALL);
    called(REACH_REFUSED);
    expect(REACH_ACT_UNREACHABLE);
    wanted();
    pause_ns();
    expect(REACH_ACT_LOOK);
    ck_assert(!got.ask);
}
END_TEST

START_TEST(who_has_begun_a_round_asks_nobody)
{
    m.begun = true;
    wanted();
    join(false);
    called(REACH_CONNECTED);
    wanted();
    pause_ns();
    expect(REACH_ACT_LOOK);
    ck_assert(!got.ask);
    start((struct reach_rules){.several = true}); /* but with several endpoints always */
    wanted();
    expect(REACH_ACT_LOOK);
    ck_assert(got.ask);
}
END_TEST

/* The same place again, at once. */
START_TEST(the_connection_breaks)
{
    wanted();
    join(false);
    called(REACH_CONNECTED);
    m.answered = m.joined = true;
    wanted();
    expect(REACH_ACT_CALL);
    ck_assert(got.has_to && !got.elector);
    m.answered = false;
    called(REACH_REFUSED);
    expect(REACH_ACT_UNREACHABLE);
    wanted();
    pause_ns();
    expect(REACH_ACT_CALL);
    ck_assert(got.has_to);
}
END_TEST

/* A token that may still come is waited for from when somebody answers on. */
START_TEST(no_token_yet)
{
    uint64_t begin = 0;
    for (int i = 0; i < 20; i++) { /* nobody is there yet: for ever */
        wanted();
        if (i)
            pause_ns();
        join(false);
        called(REACH_UNANSWERED);
        expect(REACH_ACT_UNREACHABLE);
        now += 60 * SEC;
    }
    for (begin = now; now < begin + 100 * SEC;) {
        wanted();
        pause_ns();
        join(false);
        if (now - begin > 20 * SEC)
            break;
        called(REACH_NO_TOKEN);
        if (!reach_next(self, &got, now) || got.act == REACH_ACT_FAIL)
            break;
        ck_assert_int_eq(got.act, REACH_ACT_UNREACHABLE);
    }
    ck_assert_int_eq(got.act, REACH_ACT_FAIL);
    ck_assert(got.calling);
    ck_assert_uint_ge(now - begin, 15 * SEC);
}
END_TEST

/* ----------------------------------------------------------------------------------- the redirects
 */

static void host(bool publishes)
{
    start((struct reach_rules){.publishes = publishes});
    wanted();
    expect(REACH_ACT_LOOK);
    reach_looked(self, REACH_FOUND_HOST, false, "");
    expect(REACH_ACT_HOST);
    reach_hosted(self, REACH_HOSTS, false, NULL);
}

static void expect_move(void)
{
    reach_check(self);
    ck_assert(reach_next(self, &got, now));
    ck_assert_int_eq(got.act, REACH_ACT_MOVE);
    ck_assert(!reach_hosts(self));
    reach_check(self);
}

/* The member goes to the other one, and comes back to the look when that does not answer for the
 * dead time. */
START_TEST(redirected)
{
    struct netaddr there = at("10.0.0.7"), a;
    host(false);
    expect(REACH_ACT_OWN);
    reach_redirected(self, &there);
    expect(REACH_ACT_MOVE);
    m.answered = true; /* by the coordinator that is given up */
    wanted();
    expect(REACH_ACT_CALL);
    ck_assert(netaddr_same_ip(&got.to, &there));
    ck_assert(reach_where(self, &a) && netaddr_same_ip(&a, &there));
    m.answered = false;
    for (uint64_t moved = now; now < moved + 4 * SEC;) {
        called(REACH_UNANSWERED);
        expect(REACH_ACT_UNREACHABLE);
        wanted();
        uint64_t until = reach_deadline(self);
        now = until;
        reach_tick(self, &m, now);
        if (now < moved + 4 * SEC)
            expect(REACH_ACT_CALL);
    }
    expect(REACH_ACT_LOOK);
    reach_looked(self, REACH_FOUND_HOST, false, "");
    expect(REACH_ACT_HOST);
    reach_hosted(self, REACH_HOSTS_AGAIN, false, NULL);
    expect(REACH_ACT_OWN);
    ck_assert(reach_hosts(self));
}
END_TEST

/* At any moment of a coordinator's life. */
START_TEST(redirected_before_the_member_is_connected)
{
    struct netaddr there = at("10.0.0.7"), there2 = at("10.0.0.8");
    host(false);
    reach_redirected(self, &there); /* REACH_ACT_OWN is due */
    reach_redirected(self, &there2);
    expect_move();
    ck_assert(netaddr_same_ip(&got.to, &there2));
    expect(REACH_ACT_CALL);
    ck_assert(netaddr_same_ip(&got.to, &there2));
    host(true);
    expect(REACH_ACT_PUBLISH);
    reach_redirected(self, &there);
    expect(REACH_ACT_MOVE);
    reach_published(self, &m, NULL, now);
    expect(REACH_ACT_CALL);
    ck_assert(netaddr_same_ip(&got.to, &there));
    host(false);
    expect(REACH_ACT_OWN);
    wanted(); /* without an answer */
    reach_redirected(self, &there);
    expect(REACH_ACT_MOVE);
    pause_ns();
    expect(REACH_ACT_CALL);
}
END_TEST

/* ------------------------------------------------------------------------------------ an election
 */

/* A list of three, of which node 0 was the coordinator; this node is number `own`. */
static void elect(int own)
{
    static const char *const ips[] = {"10.0.0.1", "10.0.0.2", "10.0.0.3"};
    memset(entries, 0, sizeof(entries));
    for (int i = 0; i < 3; i++) {
        strcpy(entries[i].addr, ips[i]);
        entries[i].port = 4000;
        entries[i].host = i == 0;
    }
    electors = (struct rdzv_peers){.n = 3, .e = entries};
    m = (struct reach_member){
        .begun = true, .electing = true, .may_stand = true, .self = own, .electors = &electors};
}

static void expect_elector(const char *ip)
{
    struct netaddr a = at(ip);
    expect(REACH_ACT_CALL);
    ck_assert(got.elector && got.has_to);
    ck_assert(netaddr_same_ip(&got.to, &a));
}

START_TEST(the_first_stands)
{
    elect(1);
    reach_listens(self, true);
    wanted();
    expect(REACH_ACT_STAND);
    ck_assert(reach_hosts(self));
    wanted();
    pause_ns();
    expect(REACH_ACT_OWN);
}
END_TEST

START_TEST(the_second_calls_the_first)
{
    elect(2);
    reach_listens(self, true);
    wanted();
    expect_elector("10.0.0.2");
    called(REACH_REFUSED); /* it is gone */
    expect(REACH_ACT_UNREACHABLE);
    wanted();
    expect(REACH_ACT_STAND); /* at once */
}
END_TEST

/* One packet may be lost; three calls are too many. */
START_TEST(an_elector_is_silent)
{
    elect(2);
    reach_listens(self, true);
    wanted();
    for (int i = 0; i < 2; i++) {
        expect_elector("10.0.0.2");
        called(REACH_UNANSWERED);
        expect(REACH_ACT_UNREACHABLE);
        wanted();
        pause_ns();
    }
    expect_elector("10.0.0.2");
    called(REACH_UNANSWERED);
    expect(REACH_ACT_UNREACHABLE);
    wanted();
    expect(REACH_ACT_STAND);
}
END_TEST

/* It answers, and neither stands nor has a coordinator. */
START_TEST(an_elector_does_not_stand)
{
    elect(2);
    reach_listens(self, true);
    uint64_t begin = now;
    wanted();
    for (;;) {
        reach_check(self);
        ck_assert(reach_next(self, &got, now));
        if (got.act == REACH_ACT_STAND)
            break;
        ck_assert_int_eq(got.act, REACH_ACT_CALL);
        called(REACH_CONNECTED);
        wanted();
        pause_ns();
        ck_assert_uint_lt(now - begin, 20 * SEC);
    }
    ck_assert_uint_gt(now - begin, 6 * SEC); /* one and a half dead times */
}
END_TEST

/* A node that cannot be called itself, or was not in the round, only follows. */
START_TEST(nobody_can_be_called)
{
    elect(1);
    entries[2].port = 0;
    wanted();
    expect(REACH_ACT_UNREACHABLE);
    elect(-1);
    m.may_stand = false;
    wanted();
    pause_ns();
    expect_elector("10.0.0.2");
}
END_TEST

/* What an election knew does not survive it: neither whom it called last, nor how often. */
START_TEST(the_next_election_begins_anew)
{
    struct reach_member before;
    elect(2);
    wanted();
    for (int i = 0; i < 2; i++) {
        expect_elector("10.0.0.2");
        called(REACH_UNANSWERED);
        expect(REACH_ACT_UNREACHABLE);
        wanted();
        pause_ns();
    }
    expect_elector("10.0.0.2");
    called(REACH_CONNECTED);
    before = m;
    m = (struct reach_member){.answered = true, .joined = true, .begun = true, .self = -1};
    wanted();
    expect(REACH_ACT_CALL);
    called(REACH_UNANSWERED);
    expect(REACH_ACT_UNREACHABLE);
    m = before;
    wanted();
    pause_ns();
    for (int i = 0; i < 2; i++) { /* one call is not the third */
        expect_elector("10.0.0.2");
        called(REACH_UNANSWERED);
        expect(REACH_ACT_UNREACHABLE);
        wanted();
        pause_ns();
    }
    expect_elector("10.0.0.2");
}
END_TEST

/* ------------------------------------------------------------------------------------ all of it */

static uint64_t chance;

static uint64_t below(uint64_t n)
{
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    return (chance >> 33) % n;
}

/* One event. Returns the action that it answers, or -1. */
static int any_event(void)
{
    struct netaddr a = at(below(2) ? "10.0.0.8" : "10.0.0.9");
    switch (below(7)) {
    case 0:
        now = reach_deadline(self) == UINT64_MAX ? now : reach_deadline(self);
        reach_tick(self, &m, now);
        return -1;
    case 1:
        reach_looked(self, (enum reach_found)below(3), below(2), "a look");
        return REACH_ACT_LOOK;
    case 2:
        reach_hosted(self, (enum reach_hosted)below(3), below(2), "a port");
        return REACH_ACT_HOST;
    case 3:
        reach_published(self, &m, NULL, now);
        return REACH_ACT_PUBLISH;
    case 4:
        reach_called(self, &m, (enum reach_called)below(3), &a, "a call", now);
        return REACH_ACT_CALL;
    case 5:
        reach_redirected(self, &a);
        return -1;
    default:
        reach_listens(self, below(2) || reach_hosts(self));
        return -1;
    }
}

/* Events in any order, at any moment: the checks hold, and a member that wants a connection is
 * never forgotten: an attempt has a time, or an answer is awaited. */
START_TEST(any_order)
{
    for (uint64_t seed = 1; seed <= 500; seed++) {
        bool asked = false;
        int awaited = -1; /* the answer to this action */
        chance = seed;
        start((struct reach_rules){.publishes = below(2), .several = below(2)});
        elect((int)below(4) - 1);
        if (below(4) == 0)
            reach_bound(self);
        for (int i = 0; i < 300; i++) {
            struct reach_action a;
            m.answered = below(4) == 0;
            m.joined = below(2);
            m.electing = !m.joined && below(3) == 0;
            now += below(2) ? 0 : below(2 * SEC);
            int answered = -1;
            if (asked || below(3))
                answered = any_event();
            else
                wanted();
            asked |= answered == -1 && reach_deadline(self) != UINT64_MAX;
            bool connected = answered == awaited && awaited == REACH_ACT_CALL;
            awaited = answered == awaited ? -1 : awaited;
            reach_check(self);
            while (reach_next(self, &a, now)) {
                reach_check(self);
                bool told = a.act == REACH_ACT_UNREACHABLE || a.act == REACH_ACT_OWN ||
                            a.act == REACH_ACT_STAND;
                bool question = !told && a.act != REACH_ACT_MOVE;
                connected &= !told && !question;
                asked = told ? false : asked || question;
                awaited = question ? (int)a.act : awaited;
            }
            asked &= !connected;
            ck_assert_msg(!asked || awaited >= 0 || reach_deadline(self) != UINT64_MAX,
                          "seed %llu, event %d", (unsigned long long)seed, i);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("reach");
    TCase *tc = test_case(s, "states", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, joins_at_once);
    tcase_add_test(tc, hosts);
    tcase_add_test(tc, hosts_and_publishes);
    tcase_add_test(tc, a_bound_port_hosts_without_a_look);
    tcase_add_test(tc, a_taken_port_is_joined);
    tcase_add_test(tc, a_port_that_is_let_go_is_waited_for);
    tcase_add_test(tc, what_is_final);
    tcase_add_test(tc, late_events_do_nothing);
    tc = test_case(s, "pauses", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, pauses_grow_to_a_second);
    tcase_add_test(tc, refused_here);
    tcase_add_test(tc, no_coordinator_listens);
    tcase_add_test(tc, who_has_begun_a_round_asks_nobody);
    tcase_add_test(tc, the_connection_breaks);
    tcase_add_test(tc, no_token_yet);
    tc = test_case(s, "redirects", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, redirected);
    tcase_add_test(tc, redirected_before_the_member_is_connected);
    tc = test_case(s, "election", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_first_stands);
    tcase_add_test(tc, the_second_calls_the_first);
    tcase_add_test(tc, an_elector_is_silent);
    tcase_add_test(tc, an_elector_does_not_stand);
    tcase_add_test(tc, nobody_can_be_called);
    tcase_add_test(tc, the_next_election_begins_anew);
    tc = test_case(s, "any order", 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, any_order);
    return s;
}

TEST_MAIN(suite)
