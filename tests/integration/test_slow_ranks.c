/* --slow_ranks in jobs of two launchers: the rank that the others wait for is named while it runs,
 * with what its time goes into. How small a delay is found, and that none is found where there is
 * none, is in tests/unit/test_slow.c, on a virtual clock: here others use the CPUs, too. */
#include "tests/integration/job.h"

#include <stdlib.h>

static char *env[4]; /* where the control sockets are, and how long a step is */

static void setup(void)
{
    env[0] = test_text("XDG_RUNTIME_DIR=%s", tmpdir());
    env[1] = "STEP_MS=15";
}

static void start_pair(struct cluster *c, const char *kind, int late)
{
    *c = (struct cluster){.n = 2, .port = free_port()};
    env[2] = test_text("LATE=%d", late);
    for (int i = 0; i < 2; i++)
        dlaunch_start(
            &c->node[i], (char *[]){env[0], env[1], env[2], NULL},
            "--nnodes 2 --node_rank %d --master_port %d --nproc_per_node 1 --slow_ranks 5 "
            "--events %%T/e%d --report %%T/r%d %s %s 1 %%T",
            i, c->port, i, i, build_path("tests/hang_worker"), kind);
}

static const struct late {
    const char *kind, *why;
    int late;
} lates[] = {
    {"slow", "is CPU", 200},
    {"starve", "waits for data (read of a pipe)", 800}, /* the step itself sleeps, too */
};

START_TEST(the_slow_rank_is_named)
{
    struct cluster c;
    struct proc ctl;
    start_pair(&c, lates[_i].kind, lates[_i].late);
    proc_expect_err(&c.node[0], "dlaunch: rank 1 on ", 180);
    proc_expect_err(&c.node[0], " is slow: the others wait ", 5);
    for (int i = 0; i < 2; i++) {
        proc_start(&ctl,
                   ARGV(build_path("dlaunchctl"), "-p", test_text("%d", (int)c.node[i].pid),
                        "--json", "top"),
                   env, 0);
        expect_status(&ctl, 0, 30);
        expect_text(ctl.out, "\"relative\"");
        proc_fini(&ctl);
        proc_start(
            &ctl,
            ARGV(build_path("dlaunchctl"), "-p", test_text("%d", (int)c.node[i].pid), "status"),
            env, 0);
        expect_status(&ctl, 0, 30);
        expect_text(ctl.out, "  SLOW: rank 1 on ");
        proc_fini(&ctl);
    }
    write_file(tmppath("end"), "");
    cluster_wait(&c, 0, 60);
    expect_text(c.node[0].err, lates[_i].why);
    char *events = text_of_file(tmppath("e1"));
    expect_text(events, "\"name\":\"slow\"");
    expect_text(events, "\"ranks\":\"1\"");
    json_t *r = json_of_file(tmppath("r1"));
    expect_text(json_word(r, "slow"), "rank 1 on ");
    json_decref(r);
    cluster_fini(&c);
}
END_TEST

/* The GPU of the slow rank is too hot, beside that of the other rank on another node. */
START_TEST(the_gpu_of_the_slow_rank)
{
    struct cluster c = {.n = 2, .port = free_port()};
    write_file(tmppath("gpus"), "0000:12:00.0 GPU-aaaa-1 4 80000 ok 0 0 0\n"
                                "0000:1a:00.0 GPU-bbbb-2 4 80000 hot 0 0 0\n");
    for (int i = 0; i < 2; i++)
        dlaunch_start(
            &c.node[i],
            (char *[]){env[0], env[1], "LATE=200",
                       test_text("LD_LIBRARY_PATH=%s", build_path("tests/fake")),
                       test_text("FAKE_NVML=%s", tmppath("gpus")),
                       i ? "CUDA_VISIBLE_DEVICES=GPU-bbbb-2" : "CUDA_VISIBLE_DEVICES=GPU-aaaa-1",
                       NULL},
            "--nnodes 2 --node_rank %d --master_port %d --nproc_per_node 1 --virtual_local_rank "
            "--slow_ranks 5 --report %%T/r%d %s slow 1 %%T",
            i, c.port, i, build_path("tests/hang_worker"));
    proc_expect_err(&c.node[0], "; its GPU: thermal slowdown, 95 C (others 60 C)", 180);
    write_file(tmppath("end"), "");
    cluster_wait(&c, 0, 60);
    json_t *r = json_of_file(tmppath("r1"));
    expect_text(json_word(r, "slow"), "; its GPU: thermal slowdown, 95 C (others 60 C)");
    json_decref(r);
    cluster_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("slow_ranks");
    TCase *t = test_case(s, "slow_ranks", 300);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, the_slow_rank_is_named, 0, (int)ARRAY_LEN(lates));
    tcase_add_test(t, the_gpu_of_the_slow_rank);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
