/* libdlaunch_nccl.so in jobs of a program that calls it as NCCL does (tests/lib/nccl_worker.c), for
 * each version of the interface: who hangs and who is slow is known, and a plug-in of the user's
 * sees all that it would see without ours. */
#include "tests/integration/job.h"

static char *env[3];

static void setup(void)
{
    env[0] = test_text("FAKE_PROFILER=%s", tmpdir());
    env[1] = "PATH=/usr/bin:/bin";
}

START_TEST(a_hang_is_located)
{
    struct proc p;
    int version = _i;
    dlaunch_start(&p, env, "--nproc_per_node 3 --hang_after 0.5 %s %d hang 1 %%T",
                  build_path("tests/nccl_worker"), version);
    proc_expect_err(&p, "the job hangs: rank 1 on ", 120);
    proc_expect_err(&p, "sleeps in clock_nanosleep", 5);
    proc_expect_err(&p, "ranks 0, 2 wait in all_reduce of 1024 f32 in group data #61", 5);
    signal_until_end(&p, SIGKILL, 60);
    proc_fini(&p);
}
END_TEST

/* The numbers are of all collectives of the communicator, though NCCL counts each function by
 * itself; an operation that has begun is known however many are enqueued behind it. */
static const struct {
    const char *kind, *wait;
    int version;
} others[] = {
    {"gather", "ranks 0, 2 wait in all_gather of 1024 f32 in group data #61", 1},
    {"gather", "ranks 0, 2 wait in all_gather of 1024 f32 in group data #61", 6},
    {"ahead", "ranks 0, 2 wait in all_reduce of 1024 f32 in group data #61", 4},
    {"ahead", "ranks 0, 2 wait in all_reduce of 1024 f32 in group data #61", 6},
};

START_TEST(a_hang_is_located_among_others)
{
    struct proc p;
    dlaunch_start(&p, env, "--nproc_per_node 3 --hang_after 0.5 %s %d %s 1 %%T",
                  build_path("tests/nccl_worker"), others[_i].version, others[_i].kind);
    proc_expect_err(&p, "the job hangs: rank 1 on ", 60);
    proc_expect_err(&p, others[_i].wait, 5);
    signal_until_end(&p, SIGKILL, 60);
    proc_fini(&p);
}
END_TEST

/* Rank 1 may wait in an operation that NCCL does not tell of: it is not named. */
START_TEST(who_may_be_in_a_hidden_operation_is_not_blamed)
{
    struct proc p;
    dlaunch_start(&p, env, "--nproc_per_node 3 --hang_after 0.5 %s 5 hidden 1 %%T",
                  build_path("tests/nccl_worker"));
    proc_expect_err(&p, "the job hangs: ranks 0, 2 wait in all_reduce", 60);
    signal_until_end(&p, SIGKILL, 60);
    proc_fini(&p);
}
END_TEST

START_TEST(a_slow_rank_is_named)
{
    struct proc p;
    dlaunch_start(&p, env, "--nproc_per_node 3 --slow_ranks 5 %s 6 slow 2 %%T",
                  build_path("tests/nccl_worker"));
    proc_expect_err(&p, "dlaunch: rank 2 on ", 180);
    proc_expect_err(&p, " is slow: the others wait ", 5);
    write_file(tmppath("end"), "");
    expect_status(&p, 0, 60);
    proc_fini(&p);
}
END_TEST

/* Version 6 of NCCL, a plug-in of version 4, and so on; the last pair does not fit. */
static const struct {
    int nccl;
    const char *seen;
} chains[] = {
    {2, "60 operations, 120 parts, 120 states, 0 open, 0 strange\n"},
    {4, "60 operations, 120 parts, 120 states, 0 open, 0 strange\n"},
    {6, "60 operations, 120 parts, 120 states, 0 open, 0 strange\n"},
    {3, NULL},
};

START_TEST(the_users_own_plug_in)
{
    struct proc p;
    env[1] = test_text("NCCL_PROFILER_PLUGIN=%s", build_path("tests/fake/profiler.so"));
    dlaunch_start(&p, env, "--nproc_per_node 2 --hang_after 60 %s %d end 0 %%T",
                  build_path("tests/nccl_worker"), chains[_i].nccl);
    expect_status(&p, 0, 60);
    if (chains[_i].seen)
        ck_assert_str_eq(text_of_file(tmppath("profile1")), chains[_i].seen);
    else
        expect_text(p.err, "is not used: this NCCL asks for version 3 of the interface");
    proc_fini(&p);
}
END_TEST

/* An operation runs while another communicator carries out thousands: it is none of these, whatever
 * the plug-in keeps of it, and the rank waits once however many run. */
START_TEST(a_long_operation_beside_many)
{
    struct proc p;
    int version = _i;
    double waited, all;
    env[1] = test_text("NCCL_PROFILER_PLUGIN=%s", build_path("tests/fake/profiler.so"));
    dlaunch_start(&p, env, "--nproc_per_node 1 --slow_ranks 5 %s %d beside 0 %%T",
                  build_path("tests/nccl_worker"), version);
    expect_status(&p, 0, 60);
    const char *line = strstr(p.out, "waited ");
    ck_assert_msg(line && sscanf(line, "waited %lf of %lf s", &waited, &all) == 2, "%s", p.out);
    ck_assert_msg(waited > 0 && waited <= all - 0.1, "waited %f of %f s", waited, all);
    ck_assert_str_eq(text_of_file(tmppath("profile0")),
                     "3002 operations, 72002 parts, 0 states, 0 open, 0 strange\n");
    proc_fini(&p);
}
END_TEST

START_TEST(only_when_it_is_wanted)
{
    static const char *const options[] = {"", "--hang_after 60", "--slow_ranks 3"};
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        struct proc p;
        dlaunch_start(&p, env, "%s sh -c 'echo plug-in:$NCCL_PROFILER_PLUGIN.'", options[i]);
        expect_status(&p, 0, 60);
        if (i == 0)
            expect_text(p.out, "plug-in:.");
        else
            expect_text(p.out, "/libdlaunch_nccl.so.");
        proc_fini(&p);
    }
    struct proc p;
    env[1] = "NCCL_PROFILER_PLUGIN=none";
    dlaunch_start(&p, env, "--hang_after 60 sh -c 'echo plug-in:$NCCL_PROFILER_PLUGIN.'");
    expect_status(&p, 0, 60);
    expect_text(p.out, "plug-in:none.");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("nccl_profiler");
    TCase *t = test_case(s, "nccl_profiler", 300);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, a_hang_is_located, 1, 7);
    tcase_add_loop_test(t, a_hang_is_located_among_others, 0, (int)ARRAY_LEN(others));
    tcase_add_test(t, who_may_be_in_a_hidden_operation_is_not_blamed);
    tcase_add_test(t, a_slow_rank_is_named);
    tcase_add_loop_test(t, the_users_own_plug_in, 0, (int)ARRAY_LEN(chains));
    tcase_add_loop_test(t, a_long_operation_beside_many, 4, 7);
    tcase_add_test(t, only_when_it_is_wanted);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
