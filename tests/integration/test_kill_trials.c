/* kill -9 at random moments: a few of the trials of tests/trials/kill_trials.c (read that file
 * first). */
#include "tests/lib/test.h"

#include "tests/lib/proc.h"

#define TRIALS  "40"
#define SKIPPED 77

static void run_trials(char *nodes)
{
    struct proc p;
    char *program = build_path("tests/trials/kill_trials");
    int status = proc_run(&p, ARGV(program, build_path("."), TRIALS, nodes), NULL, 300);
    if (status == SKIPPED)
        test_skip("kill trials: no namespaces here");
    else
        ck_assert_msg(status == 0, "exit %d\n%s%s", status, p.out, p.err);
    proc_fini(&p);
}

START_TEST(nothing_is_left_of_one_launcher)
{
    run_trials("1");
}
END_TEST

START_TEST(nothing_is_left_of_two_launchers)
{
    run_trials("2");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kill_trials");
    TCase *tc = test_case(s, "kill -9", 300);
    tcase_add_test(tc, nothing_is_left_of_one_launcher);
    tcase_add_test(tc, nothing_is_left_of_two_launchers);
    return s;
}

TEST_MAIN(suite)
