/* How a launcher uses etcd: the rules, told what etcd answers, on a made-up clock. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/rules/etcd_rules.h"
#include "tests/lib/nsec.h"

#define DEAD (4 * SEC)
#define MINE "my line"

static struct etcd_rules *self;
static struct etcd_action got; /* the newest action */
static char value[64], why[256];
static uint64_t now;
static int64_t revision;

static const struct generation older = {5, 1}, list = {5, 2}, newer = {5, 3}, elected = {6, 1};

static void start(bool may_host)
{
    etcd_rules_free(self);
    self = etcd_rules_new(
        &(struct etcd_rules_config){.key = "/d/j/c", .dead_ns = DEAD, .may_host = may_host});
    now = 100 * SEC;
    revision = 0;
}

static void setup(void)
{
    log_init(LOG_LEVEL_ERROR, NULL);
    start(true);
}

static void teardown(void)
{
    etcd_rules_free(self);
    self = NULL;
}

static void expect(enum etcd_act act)
{
    struct etcd_action none;
    ck_assert_msg(etcd_rules_next(self, &got), "no action, not %d", act);
    ck_assert_msg(got.act == act, "action %d, not %d (%s)", got.act, act, got.why ? got.why : "");
    snprintf(value, sizeof(value), "%s", got.value ? got.value : "");
    snprintf(why, sizeof(why), "%s", got.why ? got.why : "");
    ck_assert(!etcd_rules_next(self, &none));
    etcd_rules_check(self);
}

static void answer(struct etcd_answer a)
{
    a.revision = revision;
    etcd_rules_answered(self, &a, now);
    etcd_rules_check(self);
}

static void fails(enum etcd_act act, int rc)
{
    expect(act);
    answer((struct etcd_answer){.rc = rc, .why = "no answer"});
}

static void reads(enum etcd_value kind, const char *text)
{
    expect(ETCD_ACT_READ);
    answer((struct etcd_answer){.kind = kind, .value = text});
}

static void reads_round(struct generation g)
{
    expect(ETCD_ACT_ROUND);
    answer((struct etcd_answer){.round = g});
}

static void reads_taken_round(struct generation g)
{
    expect(ETCD_ACT_ROUND);
    answer((struct etcd_answer){.round = g, .taken = true});
}

static void grants(int64_t lease)
{
    expect(ETCD_ACT_GRANT);
    answer((struct etcd_answer){.lease = lease});
}

static void writes(int64_t lease, const char *is, const char *text, enum etcd_change record,
                   bool yes)
{
    expect(ETCD_ACT_PUT);
    ck_assert_int_eq(got.lease, lease);
    ck_assert_str_eq(got.is ? got.is : "(none)", is ? is : "(none)");
    ck_assert_str_eq(got.key == ETCD_SET ? value : "", text);
    ck_assert_int_eq(got.record, record);
    answer((struct etcd_answer){.yes = yes});
}

static void renews(int64_t lease, bool lives)
{
    expect(ETCD_ACT_RENEW);
    ck_assert_int_eq(got.lease, lease);
    answer((struct etcd_answer){.yes = lives});
}

static void revokes(int64_t lease)
{
    expect(ETCD_ACT_REVOKE);
    ck_assert_int_eq(got.lease, lease);
    answer((struct etcd_answer){0});
}

static void ends(enum etcd_outcome outcome)
{
    expect(ETCD_ACT_DONE);
    ck_assert_msg(got.outcome == outcome, "outcome %d, not %d: %s", got.outcome, outcome, why);
}

static void look(void)
{
    etcd_rules_look(self, "my claim", now);
}

static void keep(struct etcd_coordinator c)
{
    etcd_rules_keep(self, &c, MINE, now);
}

/* This launcher has claimed, and published. */
static void become_coordinator(void)
{
    look();
    reads(ETCD_NOTHING, NULL);
    reads_round((struct generation){0});
    grants(7);
    writes(7, NULL, "my claim", ETCD_LEAVE, true);
    ends(ETCD_OURS);
    etcd_rules_publish(self, MINE, now);
    writes(7, "my claim", MINE, ETCD_DELETE, true);
    ends(ETCD_OURS);
    ck_assert(etcd_rules_holds(self));
}

/* It renews the key, and etcd votes for it. */
static void vote(struct generation g, enum etcd_change record, enum etcd_outcome outcome)
{
    keep((struct etcd_coordinator){.list = g, .begun = true});
    writes(7, MINE, "", record, true);
    renews(7, true);
    ends(outcome);
}

/* ---------------------------------------------------------------------------------------- a look
 */

START_TEST(another_has_the_key)
{
    look();
    reads(ETCD_LINE, "its line");
    ends(ETCD_THEIRS);
    ck_assert_str_eq(value, "its line");
    look();
    reads(ETCD_CLAIM, "its claim");
    ends(ETCD_WAIT);
    look();
    reads(ETCD_FOREIGN, "a recipe");
    ends(ETCD_FAILED);
    ck_assert_int_eq(got.rc, -EINVAL);
    ck_assert_str_eq(why, "etcd: something else is in the key /d/j/c");
}
END_TEST

START_TEST(a_launcher_that_may_not_host)
{
    start(false);
    look();
    reads(ETCD_NOTHING, NULL);
    reads_round((struct generation){0});
    ends(ETCD_WAIT);
}
END_TEST

START_TEST(another_is_faster)
{
    look();
    reads(ETCD_NOTHING, NULL);
    reads_round((struct generation){0});
    grants(7);
    writes(7, NULL, "my claim", ETCD_LEAVE, false);
    expect(ETCD_ACT_READ);
    answer((struct etcd_answer){.kind = ETCD_CLAIM, .value = "its claim"});
    revokes(7);
    ends(ETCD_WAIT);
    ck_assert(!etcd_rules_holds(self));
}
END_TEST

/* Candidates have a moment to take the key, each time that a coordinator is lost. */
START_TEST(a_round_without_coordinator)
{
    for (int i = 0; i < 2; i++) {
        look();
        reads(ETCD_NOTHING, NULL);
        reads_round(list);
        ends(ETCD_WAIT);
        now += SEC;
        look();
        reads(ETCD_LINE, "its line");
        ends(ETCD_THEIRS);
        now += 10 * SEC;
    }
    look();
    reads(ETCD_NOTHING, NULL);
    reads_round(list);
    ends(ETCD_WAIT);
    now += 3 * SEC;
    look();
    reads(ETCD_NOTHING, NULL);
    reads_round(list);
    grants(7);
    writes(7, NULL, "my claim", ETCD_LEAVE, true);
    ends(ETCD_OURS);
}
END_TEST

/* The answer to a claim is lost: the next look finds the own claim, and hangs it on its lease. */
START_TEST(the_answer_to_a_claim_is_lost)
{
    look();
    reads(ETCD_NOTHING, NULL);
    reads_round((struct generation){0});
    grants(7);
    fails(ETCD_ACT_PUT, -ETIMEDOUT);
    ends(ETCD_FAILED);
    look();
    reads(ETCD_CLAIM, "my claim");
    writes(7, "my claim", "my claim", ETCD_LEAVE, true);
    ends(ETCD_OURS);
}
END_TEST

/* ------------------------------------------------------------------------------------ publishing
 */

START_TEST(publishing_goes_on)
{
    look();
    reads(ETCD_NOTHING, NULL);
    reads_round((struct generation){0});
    grants(7);
    writes(7, NULL, "my claim", ETCD_LEAVE, true);
    ends(ETCD_OURS);
    etcd_rules_publish(self, MINE, now);
    fails(ETCD_ACT_PUT, -ETIMEDOUT);
    for (int i = 0; i < 100; i++) { /* etcd is away for a minute */
        expect(ETCD_ACT_PAUSE);
        now += SEC;
        answer((struct etcd_answer){0});
        fails(ETCD_ACT_READ, -ETIMEDOUT);
    }
    expect(ETCD_ACT_PAUSE);
    answer((struct etcd_answer){0});
    if (_i == 0) { /* the claim is still there */
        reads(ETCD_CLAIM, "my claim");
        writes(7, "my claim", MINE, ETCD_DELETE, true);
        ends(ETCD_OURS);
    } else if (_i == 1) { /* it was published, and its answer was lost */
        reads(ETCD_LINE, MINE);
        writes(7, MINE, MINE, ETCD_DELETE, true);
        ends(ETCD_OURS);
    } else if (_i == 2) { /* its lease has ended */
        reads(ETCD_NOTHING, NULL);
        revokes(7);
        grants(8);
        writes(8, NULL, MINE, ETCD_DELETE, true);
        ends(ETCD_OURS);
    } else { /* and another launcher has become the coordinator */
        reads(ETCD_CLAIM, "its claim");
        revokes(7);
        expect(ETCD_ACT_PAUSE);
        answer((struct etcd_answer){0});
        reads(ETCD_LINE, "its line");
        ends(ETCD_THEIRS);
    }
    ck_assert_int_eq(etcd_rules_holds(self), _i < 3);
}
END_TEST

START_TEST(publishing_is_stopped)
{
    become_coordinator();
    etcd_rules_publish(self, MINE, now);
    fails(ETCD_ACT_PUT, -ETIMEDOUT);
    fails(ETCD_ACT_PAUSE, -ECANCELED);
    ends(ETCD_WAIT);
    etcd_rules_publish(self, MINE, now);
    fails(ETCD_ACT_READ, -EACCES);
    ends(ETCD_FAILED);
}
END_TEST

/* --------------------------------------------------------------------------------------- keeping
 */

START_TEST(a_coordinator_renews)
{
    become_coordinator();
    now += SEC;
    vote((struct generation){0}, ETCD_LEAVE, ETCD_OURS);
    now += SEC;
    vote(list, ETCD_SET, ETCD_OURS);
    now += SEC;
    vote(list, ETCD_LEAVE, ETCD_OURS);
    vote(newer, ETCD_SET, ETCD_OURS);
    etcd_rules_withdraw(self, true, now);
    expect(ETCD_ACT_PUT);
    ck_assert(got.key == ETCD_DELETE && got.record == ETCD_DELETE);
    answer((struct etcd_answer){.yes = true});
    revokes(7);
    ends(ETCD_OURS);
    ck_assert(!etcd_rules_holds(self));
}
END_TEST

START_TEST(its_keys_go_with_the_lease)
{
    become_coordinator();
    etcd_rules_withdraw(self, false, now);
    revokes(7);
    ends(ETCD_OURS);
    etcd_rules_withdraw(self, false, now);
    ends(ETCD_OURS);
}
END_TEST

/* etcd has been away: the vote counts when the key has been held for the dead time. */
START_TEST(no_vote_after_a_gap)
{
    become_coordinator();
    vote(list, ETCD_SET, ETCD_OURS);
    now += DEAD - 1;
    vote(list, ETCD_LEAVE, ETCD_OURS);
    now += DEAD;
    vote(list, ETCD_LEAVE, ETCD_WAIT);
    now += DEAD - 1;
    vote(list, ETCD_LEAVE, ETCD_WAIT);
    now += 1;
    vote(list, ETCD_LEAVE, ETCD_OURS);
}
END_TEST

/* etcd has lost its data a moment ago: the key is this launcher's again at once. */
START_TEST(etcd_forgets_the_coordinator)
{
    become_coordinator();
    revision = 40;
    vote(list, ETCD_SET, ETCD_OURS);
    revision = 1;
    now += _i ? DEAD : SEC;
    keep((struct etcd_coordinator){.list = list, .begun = true});
    writes(7, MINE, "", ETCD_LEAVE, false);
    revokes(7);
    reads(ETCD_NOTHING, NULL);
    reads_round((struct generation){0});
    grants(8);
    writes(8, NULL, MINE, ETCD_SET, true);
    ends(_i ? ETCD_WAIT : ETCD_OURS);
}
END_TEST

/* Older data: what was recorded is recorded again. */
START_TEST(etcd_goes_back)
{
    become_coordinator();
    revision = 40;
    vote(list, ETCD_SET, ETCD_OURS);
    vote(list, ETCD_LEAVE, ETCD_OURS);
    revision = 39;
    vote(list, ETCD_LEAVE, ETCD_OURS);
    vote(list, ETCD_SET, ETCD_OURS);
}
END_TEST

/* The answer is lost when the key is taken: the line in it is this launcher's own. */
START_TEST(the_answer_to_a_taking_is_lost)
{
    const struct etcd_coordinator c = {.list = list, .stands = true};
    keep(c);
    reads(ETCD_NOTHING, NULL);
    reads_round(list);
    grants(7);
    fails(ETCD_ACT_PUT, -ETIMEDOUT);
    ends(ETCD_FAILED);
    keep(c);
    reads(ETCD_LINE, MINE);
    if (_i) { /* its lease has ended just now */
        fails(ETCD_ACT_PUT, -ENOENT);
        revokes(7);
        ends(ETCD_WAIT);
        keep(c);
        reads(ETCD_NOTHING, NULL);
        reads_round(list);
        grants(8);
        writes(8, NULL, MINE, ETCD_SET, true);
    } else { /* the vote is for a dead time from now on, and so is the lease */
        writes(7, MINE, MINE, ETCD_SET, true);
        renews(7, true);
    }
    ends(ETCD_OURS);
}
END_TEST

START_TEST(the_lease_ends_while_it_is_renewed)
{
    become_coordinator();
    keep((struct etcd_coordinator){.list = list});
    writes(7, MINE, "", ETCD_SET, true);
    renews(7, false);
    revokes(7);
    ends(ETCD_WAIT);
}
END_TEST

/* ------------------------------------------------------------------------------------ candidates
 */

static const struct {
    struct generation round;
    bool takes;
} rounds[] = {{{5, 2}, true}, {{5, 3}, false}, {{6, 1}, false}};

START_TEST(a_candidate_takes_a_free_key)
{
    keep((struct etcd_coordinator){.list = list, .stands = true});
    reads(ETCD_NOTHING, NULL);
    reads_round(rounds[_i].round);
    if (rounds[_i].takes) {
        grants(7);
        writes(7, NULL, MINE, ETCD_SET, true);
    }
    ends(rounds[_i].takes ? ETCD_OURS : ETCD_WAIT);
}
END_TEST

/* etcd does not know the round, or an older one only: it may have voted a moment ago. */
START_TEST(a_candidate_waits_when_etcd_has_forgotten)
{
    const struct generation round = _i ? older : (struct generation){0};
    const struct etcd_coordinator c = {.list = list, .stands = true};
    for (uint64_t end = now + DEAD; now < end; now += DEAD / 4) {
        keep(c);
        if (now == end - DEAD) { /* from the first sight on, be the key free or not */
            reads(ETCD_LINE, "its line");
            reads_round(round);
            ends(ETCD_THEIRS);
            continue;
        }
        reads(ETCD_NOTHING, NULL);
        reads_round(round);
        ends(ETCD_WAIT);
    }
    keep(c);
    reads(ETCD_NOTHING, NULL);
    reads_round(round);
    grants(7);
    writes(7, NULL, MINE, ETCD_SET, true);
    ends(ETCD_OURS);
}
END_TEST

/* It counts from when etcd is seen to have forgotten, and not from when it has known more. */
START_TEST(a_candidate_that_knew_less)
{
    const struct etcd_coordinator c = {.list = list, .stands = true};
    keep(c);
    reads(ETCD_LINE, "its line");
    reads_round(newer);
    ends(ETCD_THEIRS);
    now += DEAD;
    keep(c);
    reads(ETCD_NOTHING, NULL);
    reads_round((struct generation){0});
    ends(ETCD_WAIT);
}
END_TEST

START_TEST(a_candidate_waits_when_etcd_goes_back)
{
    const struct etcd_coordinator c = {.list = list, .stands = true};
    revision = 40;
    keep(c);
    reads(ETCD_LINE, "its line");
    reads_round(list);
    ends(ETCD_THEIRS);
    revision = 30;
    keep(c);
    reads(ETCD_NOTHING, NULL);
    reads_round(list);
    ends(ETCD_WAIT);
    now += DEAD;
    keep(c);
    reads(ETCD_NOTHING, NULL);
    reads_round(list);
    grants(7);
    writes(7, NULL, MINE, ETCD_SET, true);
    ends(ETCD_OURS);
}
END_TEST

/* ------------------------------------------------------------------------------------- from
 * another */

static const struct {
    struct etcd_coordinator by;
    struct generation round;
    bool takes;
} others[] = {
    {{.list = {6, 1}, .leads = true}, {5, 9}, true},    /* elected later */
    {{.list = {6, 1}, .leads = true}, {6, 1}, false},   /* the same */
    {{.list = {6, 1}, .stands = true}, {5, 9}, false},  /* not yet elected */
    {{.list = {5, 2}, .dead_epoch = 5}, {5, 2}, true},  /* whose end is proven */
    {{.list = {5, 2}, .dead_epoch = 5}, {5, 3}, false}, /* of a list that it does not know */
    {{.list = {5, 2}, .dead_epoch = 4}, {5, 2}, false}, /* another one's is */
    {{.list = {5, 2}, .begun = true}, {0, 0}, true},    /* which has begun nothing */
    {{.list = {5, 2}, .begun = true}, {5, 2}, false},   /* both have begun */
    {{.list = {0, 0}}, {0, 0}, false},                  /* neither has */
};

START_TEST(from_another_coordinator)
{
    keep(others[_i].by);
    reads(ETCD_LINE, "its line");
    reads_round(others[_i].round);
    if (others[_i].takes) {
        grants(7);
        writes(7, "its line", MINE, ETCD_SET, true);
    }
    bool counts = others[_i].takes && !others[_i].by.begun; /* one that has lost the key waits */
    ends(counts ? ETCD_OURS : others[_i].takes ? ETCD_WAIT : ETCD_THEIRS);
}
END_TEST

/* The end of a coordinator gives its key to one candidate, and not to the next one as well. */
START_TEST(from_another_candidate)
{
    const struct etcd_coordinator c = {.list = list, .dead_epoch = 5, .stands = true};
    keep(c);
    reads(ETCD_LINE, "its line");
    reads_round(list);
    grants(7);
    expect(ETCD_ACT_PUT);
    ck_assert(got.taken);
    answer((struct etcd_answer){.yes = true});
    ends(ETCD_OURS);
    start(true);
    keep(c);
    reads(ETCD_LINE, "the line of a candidate");
    reads_taken_round(list);
    ends(ETCD_THEIRS);
}
END_TEST

/* Then the other one sees who has it. */
START_TEST(the_key_is_lost)
{
    become_coordinator();
    keep((struct etcd_coordinator){.list = list});
    writes(7, MINE, "", ETCD_SET, false);
    expect(ETCD_ACT_REVOKE);
    answer((struct etcd_answer){.rc = -ETIMEDOUT, .why = "no answer"}); /* it ends by itself */
    reads(ETCD_LINE, "its line");
    reads_round(elected);
    ends(ETCD_THEIRS);
    ck_assert(!etcd_rules_holds(self));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("etcd_rules");
    TCase *tc = test_case(s, "look", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, another_has_the_key);
    tcase_add_test(tc, a_launcher_that_may_not_host);
    tcase_add_test(tc, another_is_faster);
    tcase_add_test(tc, a_round_without_coordinator);
    tcase_add_test(tc, the_answer_to_a_claim_is_lost);
    tc = test_case(s, "publish", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, publishing_goes_on, 0, 4);
    tcase_add_test(tc, publishing_is_stopped);
    tc = test_case(s, "keep", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_coordinator_renews);
    tcase_add_test(tc, its_keys_go_with_the_lease);
    tcase_add_test(tc, no_vote_after_a_gap);
    tcase_add_loop_test(tc, etcd_forgets_the_coordinator, 0, 2);
    tcase_add_test(tc, etcd_goes_back);
    tcase_add_loop_test(tc, the_answer_to_a_taking_is_lost, 0, 2);
    tcase_add_test(tc, the_lease_ends_while_it_is_renewed);
    tc = test_case(s, "candidates", 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, a_candidate_takes_a_free_key, 0, ARRAY_LEN(rounds));
    tcase_add_loop_test(tc, a_candidate_waits_when_etcd_has_forgotten, 0, 2);
    tcase_add_test(tc, a_candidate_that_knew_less);
    tcase_add_test(tc, a_candidate_waits_when_etcd_goes_back);
    tcase_add_loop_test(tc, from_another_coordinator, 0, ARRAY_LEN(others));
    tcase_add_test(tc, from_another_candidate);
    tcase_add_test(tc, the_key_is_lost);
    return s;
}

TEST_MAIN(suite)
