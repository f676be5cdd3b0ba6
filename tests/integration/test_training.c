/* The training example under dlaunch: the same seed ends with the same parameters, bit for bit, on
 * one worker, on 2 x 4, and on 2 x 4 of which one is killed on the way. */
#include "tests/integration/job.h"

#define EPOCHS 6

static char *g_train;

static void setup(void)
{
    g_train =
        test_text("%s --data examples/data --epochs %d", build_path("examples/train"), EPOCHS);
}

static char *alone(void)
{
    struct proc p;
    char *out = tmppath("alone");
    dlaunch_start(&p, NULL, "%s --out %s", g_train, out);
    expect_status(&p, 0, 60);
    proc_fini(&p);
    return text_of_file(out);
}

static void eight(struct cluster *c, const char *options, const char *more)
{
    cluster_start(c, 2, "--nproc_per_node 4 %s %s --out %%T/eight %s", options, g_train, more);
    cluster_wait(c, 0, 90);
    expect_text(c->node[0].out, "with 8 workers\n");
}

START_TEST(one_and_eight)
{
    struct cluster c;
    char *one = alone();
    double accuracy = 0;
    ck_assert_int_eq(sscanf(one, "epochs 6 accuracy %lf", &accuracy), 1);
    ck_assert_double_ge(accuracy, 0.9);
    eight(&c, "", "");
    ck_assert_str_eq(text_of_file(tmppath("eight")), one);
    cluster_fini(&c);
}
END_TEST

/* Training continues from its checkpoint whichever rank is killed, rank 0 included, which writes
 * the checkpoints, and whichever mechanism restarts it. */
START_TEST(eight_ranks_one_is_killed)
{
    static const int victims[] = {0, 3, 6};
    struct cluster c;
    char *one = alone();
    for (size_t i = 0; i < ARRAY_LEN(victims); i++) {
        eight(
            &c, "--max_restarts 1",
            test_text("--checkpoint %%T/state%zu --crash-rank %d --crash-epoch 4", i, victims[i]));
        expect_text(c.node[0].out, "resumed after epoch 3");
        expect_text(c.node[1].err,
                    test_text("worker %d (local rank %d) on ", victims[i], victims[i] % 4));
        ck_assert_str_eq(text_of_file(tmppath("eight")), one);
        ck_assert_int_eq(unlink(tmppath("eight")), 0);
        cluster_fini(&c);
    }
}
END_TEST

/* A whole launcher is killed, and both are started again: from the checkpoint. */
START_TEST(a_launcher_is_killed)
{
    struct cluster c;
    char *one = alone();
    const char *line =
        test_text("--nproc_per_node 4 %s --out %%T/eight --checkpoint %%T/state", g_train);
    cluster_start(&c, 2, "%s", line);
    proc_expect_out(&c.node[0], "epoch  2/6", 60);
    proc_kill(&c.node[1], SIGKILL);
    expect_status(&c.node[1], 128 + SIGKILL, 20);
    int status = proc_wait(&c.node[0], 60); /* the job had ended, if it was quicker */
    ck_assert_msg(status == 1 || status == 0, "exit %d\n%s", status, c.node[0].err);
    cluster_fini(&c);
    cluster_start(&c, 2, "%s", line);
    cluster_wait(&c, 0, 90);
    expect_text(c.node[0].out, "resumed after epoch ");
    ck_assert_str_eq(text_of_file(tmppath("eight")), one);
    cluster_fini(&c);
}
END_TEST

START_TEST(help)
{
    struct proc p;
    char *argv[] = {build_path("examples/train"), "--help", NULL};
    ck_assert_int_eq(proc_run(&p, argv, NULL, 10), 0);
    ck_assert_str_eq(p.err, "");
    expect_text(p.out, "usage: train [options]\n");
    proc_fini(&p);
    argv[1] = "--no-such-option";
    ck_assert_int_eq(proc_run(&p, argv, NULL, 10), 2);
    expect_text(p.err, "usage: train [options]\n");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("training");
    TCase *tc = test_case(s, "training", 240);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, help);
    tcase_add_test(tc, one_and_eight);
    tcase_add_test(tc, eight_ranks_one_is_killed);
    tcase_add_test(tc, a_launcher_is_killed);
    return s;
}

TEST_MAIN(suite)
