/* Planted hangs in jobs of two launchers: the right rank is named on every node, at the right
 * place. The worker is tests/lib/hang_worker.c. */
#include "tests/integration/job.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "core/clock.h"

static char *env[2]; /* where the control sockets are */

static void setup(void)
{
    env[0] = test_text("XDG_RUNTIME_DIR=%s", tmpdir());
}

static void start_pair(struct cluster *c, int nproc, const char *options, const char *kind,
                       int rank)
{
    *c = (struct cluster){.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        dlaunch_start(&c->node[i], env,
                      "--nnodes 2 --node_rank %d --master_port %d --nproc_per_node %d --hang_after "
                      "0.5 --events %%T/e%d %s %s %s %d %%T",
                      i, c->port, nproc, i, options, build_path("tests/hang_worker"), kind, rank);
}

/* Ends them, which the report of a hang does not. */
static void end_pair(struct cluster *c)
{
    for (int i = 0; i < 2; i++)
        signal_until_end(&c->node[i], SIGKILL, 60);
    cluster_fini(c);
}

static bool has_libdw(void)
{
    return dlopen("libdw.so.1", RTLD_LAZY) != NULL;
}

static const struct planted {
    const char *kind, *does, *function; /* function: with libdw */
} planted[] = {
    {"sleep", "sleeps in clock_nanosleep", "hang_worker.c:"},
    {"loop", "runs", "hang_worker.c:"},
    {"send", "waits in send of 1048576 f32 ", "hang_worker.c:"},
    {"locks", "sleeps in futex", "take_locks (hang_worker.c:"},
    {"stop", "is stopped (state T)", "hang_worker.c:"},
    {"pipe", "sleeps in write of a pipe", "hang_worker.c:"},
    {"lock", "sleeps in flock of /", "hang_worker.c:"},
    {"group", "waits in barrier #1 instead", "hang_worker.c:"},
    {"kernel", "hangs in the kernel (state D)", "step (hang_worker.c:"},
};

/* Both nodes print one line that names the rank; the events have it, and so has the status. */
START_TEST(every_node_names_the_rank)
{
    const struct planted *p = &planted[_i];
    struct cluster c;
    struct proc ctl;
    if (strcmp(p->kind, "kernel") == 0 &&
        test_skip_sanitized("the worker's vfork() is a fork(), whose parent does not wait"))
        return;
    int nproc = 1 + _i % 2, rank = _i % (2 * nproc);
    start_pair(&c, nproc, "", p->kind, rank);
    for (int i = 0; i < 2; i++) {
        proc_expect_err(&c.node[i], "dlaunch: the job hangs: ", 120);
        proc_expect_err(&c.node[i], test_text("the job hangs: rank %d on ", rank), 5);
        proc_expect_err(&c.node[i], p->does, 5);
        if (has_libdw())
            proc_expect_err(&c.node[i], p->function, 5);
        proc_expect_err(&c.node[i], "all ranks)\n", 5);
        ck_assert_int_eq(count_text(c.node[i].err, "the job hangs"), 1);
        proc_start(
            &ctl,
            ARGV(build_path("dlaunchctl"), "-p", test_text("%d", (int)c.node[i].pid), "status"),
            env, 0);
        expect_status(&ctl, 0, 30);
        expect_text(ctl.out, test_text("  HUNG: rank %d on ", rank));
        proc_fini(&ctl);
    }
    char *events = text_of_file(tmppath("e0"));
    expect_text(events, "\"name\":\"suspect\"");
    expect_text(events, "\"name\":\"hang\"");
    expect_text(events, test_text("\"ranks\":\"%d\"", rank));
    end_pair(&c);
}
END_TEST

/* A coordinator outside of the nodes has no workers: the first node decides in its place. */
START_TEST(a_coordinator_without_workers)
{
    struct proc coordinator;
    struct cluster c = {.n = 2, .port = free_port()};
    dlaunch_start(&coordinator, env, "--rdzv_only --nnodes 2 --rdzv_endpoint 127.0.0.1:%d", c.port);
    for (int i = 0; i < 2; i++)
        dlaunch_start(&c.node[i], env,
                      "--nnodes 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --rdzv_conf "
                      "is_host=false --nproc_per_node 2 --hang_after 0.5 %s sleep 1 %%T",
                      c.port, build_path("tests/hang_worker"));
    for (int i = 0; i < 2; i++)
        proc_expect_err(&c.node[i], "dlaunch: the job hangs: rank 1 on ", 120);
    end_pair(&c);
    signal_until_end(&coordinator, SIGKILL, 60);
    proc_fini(&coordinator);
}
END_TEST

/* Two ranks that exchange a byte in each step and poll for it, so that both use CPU time for ever
 * when rank 1 does not come. */
static const char polling[] =
    "#include <arpa/inet.h>\n"
    "#include <stdlib.h>\n"
    "#include <sys/socket.h>\n"
    "#include <time.h>\n"
    "#include <unistd.h>\n"
    "static int s;\n"
    "static volatile long n;\n"
    "static void meet(int rank, int port) {\n"
    "    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};\n"
    "    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);\n"
    "    int l = socket(AF_INET, SOCK_STREAM, 0), on = 1;\n"
    "    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));\n"
    "    if (rank == 0) {\n"
    "        if (bind(l, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(l, 1) < 0) exit(3);\n"
    "        s = accept(l, NULL, NULL);\n"
    "        return;\n"
    "    }\n"
    "    while (connect(s = socket(AF_INET, SOCK_STREAM, 0), (void *)&a, sizeof(a)) < 0)\n"
    "        close(s);\n"
    "}\n"
    "static void all_reduce(void) {\n"
    "    char byte = 1;\n"
    "    if (send(s, &byte, 1, 0) != 1) exit(4);\n"
    "    while (recv(s, &byte, 1, MSG_DONTWAIT) != 1)\n"
    "        n++;\n"
    "}\n"
    "static void work(void) {\n"
    "    for (;;)\n"
    "        n++;\n"
    "}\n"
    "int main(int argc, char **argv) {\n"
    "    int rank = atoi(getenv(\"RANK\"));\n"
    "    meet(rank, atoi(argv[argc - 1]));\n"
    "    for (int i = 0; i < 60; i++) {\n"
    "        nanosleep(&(struct timespec){0, 50000000}, NULL);\n"
    "        all_reduce();\n"
    "    }\n"
    "    if (rank == 1)\n"
    "        work();\n"
    "    all_reduce();\n"
    "}\n";

START_TEST(ranks_that_use_cpu_time)
{
    struct proc p;
    if (!has_libdw()) {
        test_skip("libdw.so.1 is not installed");
        return;
    }
    write_file(tmppath("polling.c"), polling);
    ck_assert_int_eq(
        proc_run(&p, ARGV("gcc", "-g", "-O0", "-o", tmppath("polling"), tmppath("polling.c")), NULL,
                 60),
        0);
    proc_fini(&p);
    dlaunch_start(&p, env, "--nproc_per_node 2 --hang_after 0.5 %%T/polling %d", free_port());
    proc_expect_err(&p, "the job hangs: rank 1 on ", 120);
    proc_expect_err(&p, " runs, at work (polling.c:", 5);
    proc_expect_err(&p, "; rank 0 waits in all_reduce (polling.c:", 5);
    signal_until_end(&p, SIGKILL, 60);
    proc_fini(&p);
}
END_TEST

/* restart: the rank is killed, which counts as its failure. end: the job ends. */
START_TEST(what_follows)
{
    struct cluster c;
    start_pair(&c, 2, "--on_hang restart --report %T/r", "sleep", 3);
    for (int i = 0; i < 2; i++) {
        expect_status(&c.node[i], 128 + SIGKILL, 120);
        expect_words(c.node[i].err, "First failure: rank 3 on ");
        expect_text(c.node[i].err, "the job hangs: rank 3 on ");
    }
    json_t *r = json_of_file(tmppath("r"));
    expect_text(json_word(json_object_get(r, "first_failure"), "message"),
                "sleeps in clock_nanosleep");
    json_decref(r);
    cluster_fini(&c);

    start_pair(&c, 2, "--on_hang end", "loop", 0);
    for (int i = 0; i < 2; i++)
        expect_status(&c.node[i], 124, 120);
    expect_words(c.node[0].err, "FAILED: the job hangs: rank 0 on ");
    expect_text(c.node[0].err, "stacks ");
    cluster_fini(&c);
}
END_TEST

/* A checkpoint that takes long, and steps that go on: not a hang. */
/* From when on a hang can be told is said once, at the start. */
START_TEST(from_when_on)
{
    struct proc p;
    ck_assert_int_eq(dlaunch_run(&p, 20,
                                 "--nproc_per_node 2 --hang_after 4 --max_restarts 1 %%W "
                                 "if-attempt 0 if-rank 1 exit 3 if-attempt 1 exit 0 pause"),
                     0);
    expect_text(p.err, "in the first 8 steps of a rank those of 80 s and more count, then those of "
                       "4 s that are 3 times as long as usual (--hang_after)");
    ck_assert_int_eq(count_text(p.err, "watching for hangs: "), 1);
    proc_fini(&p);
    ck_assert_int_eq(dlaunch_run(&p, 20, "--hang_after 1 true"), 0);
    expect_text(p.err, "those of 60 s and more count");
    proc_fini(&p);
}
END_TEST

START_TEST(no_false_alarm)
{
    static const char *const kinds[] = {"none", "pause"};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct cluster c;
        start_pair(&c, 2, "", kinds[i], 1);
        for (int k = 0; k < 2; k++)
            proc_expect_out(&c.node[k], "up\nup\n", 120);
        test_elapse(4);
        write_file(tmppath("end"), "");
        cluster_wait(&c, 0, 60);
        for (int k = 0; k < 2; k++)
            ck_assert_msg(count_text(c.node[k].err, "hangs") ==
                              count_text(c.node[k].err, "watching for hangs: "),
                          "%s", c.node[k].err);
        cluster_fini(&c);
        unlink(tmppath("end"));
    }
}
END_TEST

/* The rank that comes late after all clears the alarm. */
START_TEST(a_job_that_goes_on)
{
    struct cluster c;
    start_pair(&c, 2, "", "stop", 2);
    proc_expect_err(&c.node[1], "the job hangs: rank 2 on ", 120);
    const char *pid = strstr(c.node[1].err, "(pid ");
    ck_assert_ptr_nonnull(pid);
    ck_assert_int_eq(kill(atoi(pid + 5), SIGCONT), 0);
    proc_expect_err(&c.node[1], "the workers of this node go on after all", 60);
    write_file(tmppath("end"), "");
    cluster_wait(&c, 0, 60);
    cluster_fini(&c);
}
END_TEST

/* Stops or continues a launcher and its workers: the host is cut off. */
static void signal_node(const struct proc *p, int signo)
{
    char path[64];
    pid_t agent = agent_of(p);
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)agent, (int)agent);
    char *children = read_file(path), *save = NULL;
    kill(p->pid, signo);
    kill(agent, signo);
    for (char *c = strtok_r(children, " \n", &save); c; c = strtok_r(NULL, " \n", &save))
        kill(atoi(c), signo);
    free(children);
}

/* Its workers are named on the other node: at once, as its launcher does not answer. When it does,
 * the job goes on. */
START_TEST(a_node_that_is_cut_off)
{
    struct cluster c;
    int cut = _i, other = 1 - _i;
    start_pair(&c, 2, "--rdzv_conf keep_alive_interval=20", "none", 0);
    for (int i = 0; i < 2; i++)
        proc_expect_out(&c.node[i], "up\nup\n", 120);
    test_elapse(2); /* its steps are learnt */
    uint64_t cut_ns = mono_ns();
    signal_node(&c.node[cut], SIGSTOP);
    proc_expect_err(&c.node[other], "the job hangs: ", 30);
    double seconds = (double)(mono_ns() - cut_ns) / 1e9;
    proc_expect_err(&c.node[other],
                    cut == 0 ? "the node of the coordinator (127.0.0.1:"
                             : "ranks 2, 3; the first of them, rank 2 on ",
                    5);
    proc_expect_err(&c.node[other], " does not answer", 5);
    ck_assert_msg(seconds < test_seconds(10), "after %.1f s", seconds);
    signal_node(&c.node[cut], SIGCONT);
    proc_expect_err(&c.node[other], "the workers of this node go on after all", 60);
    write_file(tmppath("end"), "");
    cluster_wait(&c, 0, 60);
    cluster_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hangs");
    TCase *t = test_case(s, "hangs", 300);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, every_node_names_the_rank, 0, (int)ARRAY_LEN(planted));
    tcase_add_test(t, a_coordinator_without_workers);
    tcase_add_test(t, ranks_that_use_cpu_time);
    tcase_add_test(t, from_when_on);
    tcase_add_test(t, what_follows);
    tcase_add_test(t, no_false_alarm);
    tcase_add_test(t, a_job_that_goes_on);
    tcase_add_loop_test(t, a_node_that_is_cut_off, 0, 2);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
