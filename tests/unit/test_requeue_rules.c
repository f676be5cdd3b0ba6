/* Whose part it is to ask Slurm, and when a coordinator renews what is published of it. */
#include "tests/lib/test.h"

#include "core/mem.h"
#include "launcher/options/requeue_rules.h"
#include "rendezvous/rules/keep.h"
#include "tests/lib/nsec.h"

static const struct {
    struct requeue_end end;
    enum requeue_part part;
} ends[] = {
    {{.wanted = true, .decided = true, .coordinator = true, .first_node = true}, REQUEUE_NONE},
    {{.time_is_over = true, .decided = true, .coordinator = true}, REQUEUE_NONE},
    {{.wanted = true, .time_is_over = true, .decided = true, .coordinator = true}, REQUEUE_ASK},
    {{.wanted = true, .time_is_over = true, .decided = true, .first_node = true},
     REQUEUE_COORDINATOR},
    {{.wanted = true, .time_is_over = true, .coordinator = true}, REQUEUE_FIRST_NODE},
    {{.wanted = true, .time_is_over = true, .first_node = true}, REQUEUE_ASK},
};

START_TEST(who_asks)
{
    ck_assert_int_eq(requeue_part(&ends[_i].end), ends[_i].part);
    bool says = ends[_i].part == REQUEUE_COORDINATOR || ends[_i].part == REQUEUE_FIRST_NODE;
    ck_assert_int_eq(requeue_reason(ends[_i].part) != NULL, says);
}
END_TEST

START_TEST(what_slurm_answers)
{
    ck_assert(requeue_is_done("scontrol requeue 7: Job is pending execution for job 7"));
    ck_assert(!requeue_is_done("scontrol requeue 7: no answer within 20 s"));
    ck_assert(!requeue_is_done(""));
}
END_TEST

START_TEST(when_it_renews)
{
    ck_assert_uint_eq(keep_again_ns(SEC, 15 * SEC, true, false), SEC);
    ck_assert_uint_eq(keep_again_ns(5 * SEC, 9 * SEC, true, false), 3 * SEC);
    ck_assert_uint_eq(keep_again_ns(SEC, 15 * SEC, false, true), KEEP_SOON_NS);
    ck_assert_uint_eq(keep_again_ns(SEC / 10, 15 * SEC, false, true), SEC / 10);
    ck_assert_uint_eq(keep_again_ns(SEC, 15 * SEC, false, false), SEC);
}
END_TEST

START_TEST(what_follows)
{
    ck_assert_int_eq(keep_verdict(true, false, false, true), KEEP_VOTE);
    ck_assert_int_eq(keep_verdict(false, false, false, false), KEEP_NOTHING);
    ck_assert_int_eq(keep_verdict(false, true, true, false), KEEP_NOTHING);
    ck_assert_int_eq(keep_verdict(false, true, false, false), KEEP_MOVE);
    ck_assert_int_eq(keep_verdict(false, true, false, true), KEEP_TWO_JOBS);
}
END_TEST

START_TEST(two_jobs_are_warned_of_once)
{
    struct two_jobs t = {0};
    ck_assert(!two_jobs_seen(&t, 4 * SEC, 100 * SEC));
    ck_assert(!two_jobs_seen(&t, 4 * SEC, 107 * SEC));
    ck_assert(two_jobs_seen(&t, 4 * SEC, 108 * SEC));
    ck_assert(!two_jobs_seen(&t, 4 * SEC, 200 * SEC));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("requeue_rules");
    TCase *tc = test_case(s, "requeue", 20);
    tcase_add_loop_test(tc, who_asks, 0, ARRAY_LEN(ends));
    tcase_add_test(tc, what_slurm_answers);
    tc = test_case(s, "keep", 20);
    tcase_add_test(tc, when_it_renews);
    tcase_add_test(tc, what_follows);
    tcase_add_test(tc, two_jobs_are_warned_of_once);
    return s;
}

TEST_MAIN(suite)
