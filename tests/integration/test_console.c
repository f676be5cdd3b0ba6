/* One console for the job: the launcher of the coordinator shows the output of all nodes. */
#include "tests/integration/elastic_nodes.h"

#include <fcntl.h>
#include <pty.h>
#include <stdlib.h>
#include <sys/wait.h>

/* The workers wait for each other before they print and before they end, so that a busy machine
 * folds their lines, too. */
static const char script[] =
    "#!/bin/sh\n"
    "meet() { echo $RANK >> $1; while [ $(wc -l < $1) -lt $WORLD_SIZE ]; "
    "do sleep 0.01; done; }\n"
    "meet $1\n"
    "echo \"rank $RANK is ready\"\n"
    "[ $RANK != 4 ] || echo 'only four'\n"
    "printf 'Traceback (most recent call last):\\n  File \"t.py\", line 3\\n"
    "ValueError: rank %d\\n' $RANK >&2\n"
    "meet $1.end\n"
    "exit $2\n";

/* Starts nodes 1 to n - 1 of two workers each; node 0 is to be started on the same port. */
static void start_others(struct cluster *c, int n, const char *line)
{
    *c = (struct cluster){.n = n, .port = free_port()};
    for (int i = 1; i < n; i++)
        dlaunch_start(&c->node[i], NULL,
                      "--nnodes %d --node_rank %d --master_port %d --nproc_per_node 2 "
                      "--console job %s",
                      n, i, c->port, line);
}

static void start_first(struct cluster *c, const char *line)
{
    dlaunch_start(&c->node[0], NULL,
                  "--nnodes %d --node_rank 0 --master_port %d --nproc_per_node 2 --console job %s",
                  c->n, c->port, line);
}

static void write_script(void)
{
    write_file(tmppath("script"), script);
    ck_assert_int_eq(chmod(tmppath("script"), 0755), 0);
}

/* Runs a job of three nodes; once more, up to ten times, if the lines of a busy machine came too
 * far apart to be folded. Returns which try it was. */
static int run_three(struct cluster *c, const char *options, int status, const char *out,
                     const char *err)
{
    for (int try = 0;; try++) {
        char *line = test_text("%s%d %%T/script %%T/meet%d %d", options, try, try, status);
        start_others(c, 3, line);
        start_first(c, line);
        for (int i = 0; i < 3; i++)
            expect_status(&c->node[i], status, 30);
        if ((strstr(c->node[0].out, out) && strstr(c->node[0].err, err)) || try == 9)
            return try;
        cluster_fini(c);
    }
}

/* Three nodes: lines and tracebacks of all workers are one, on the first node only; what one worker
 * prints has its rank; the report comes after all of it. The log files have every byte. */
START_TEST(three_nodes)
{
    struct cluster c;
    write_script();
    int try = run_three(&c, "--tee 3 --log_line_prefix_template <${rank}> --log_dir %T/logs", 3,
                        "[0-5]: rank 0..5 is ready\n", "[0-5]: ValueError: rank 0..5\n");
    char *logs = tmppath(test_text("logs%d", try));
    expect_text(c.node[0].out, "[0-5]: rank 0..5 is ready\n");
    expect_text(c.node[0].out, "<4>only four\n");
    ck_assert_int_eq(count_text(c.node[0].out, "ready"), 1);
    const char *trace = strstr(c.node[0].err, "[0-5]: Traceback (most recent call last):\n"
                                              "[0-5]:   File \"t.py\", line 3\n"
                                              "[0-5]: ValueError: rank 0..5\n");
    ck_assert_msg(trace != NULL, "%s", c.node[0].err);
    ck_assert_int_eq(count_text(c.node[0].err, "[0-5]: "), 3);
    expect_text(trace, "FAILED");
    for (int i = 1; i < 3; i++) {
        ck_assert_str_eq(c.node[i].out, "");
        expect_no_text(c.node[i].err, "]: ");
    }
    ck_assert_int_eq(system(test_text("cat $(find %s -name stdout.log) > %s/out; "
                                      "cat $(find %s -name stderr.log) > %s/err",
                                      logs, tmpdir(), logs, tmpdir())),
                     0);
    ck_assert_int_eq(count_lines(tmppath("out")), 7);
    ck_assert_int_eq(count_lines(tmppath("err")), 18);
    cluster_fini(&c);
}
END_TEST

/* --ranks chooses ranks of the job, and the others wait for no hidden one. */
START_TEST(chosen_ranks)
{
    struct cluster c;
    write_script();
    run_three(&c, "--ranks 1,3-4 --rdzv_id job", 0, "[1,3-4]: rank 1..4 is ready\n",
              "[1,3-4]: ValueError: rank 1..4\n");
    expect_text(c.node[0].out, "[1,3-4]: rank 1..4 is ready\n");
    expect_text(c.node[0].out, "[4]: only four\n");
    expect_text(c.node[0].err, "[1,3-4]: ValueError: rank 1..4\n");
    cluster_fini(&c);
}
END_TEST

/* A line each, with its rank. */
START_TEST(not_folded)
{
    static const char line[] = "--fold off %T/script %T/meet 0";
    struct cluster c;
    write_script();
    start_others(&c, 3, line);
    start_first(&c, line);
    for (int i = 0; i < 3; i++)
        expect_status(&c.node[i], 0, 30);
    expect_text(c.node[0].out, "rank 0 is ready\n");
    for (int i = 1; i < 6; i++)
        expect_text(c.node[0].out, test_text("[%d]: rank %d is ready\n", i, i));
    cluster_fini(&c);
}
END_TEST

struct terminal {
    int fd;
    pid_t pid;
    char text[65536];
    size_t len;
    int status;
};

static bool has_ended(void *arg)
{
    struct terminal *t = arg;
    for (ssize_t n; (n = read(t->fd, t->text + t->len, sizeof(t->text) - 1 - t->len)) > 0;)
        t->len += (size_t)n;
    return waitpid(t->pid, &t->status, WNOHANG) == t->pid;
}

/* The coordinator's console is a terminal. */
START_TEST(a_terminal)
{
    static struct terminal t;
    struct cluster c;
    write_script();
    start_others(&c, 3, "%T/script %T/meet 0");
    char **argv =
        dlaunch_argv("", test_text("--nnodes 3 --node_rank 0 --master_port %d "
                                   "--nproc_per_node 2 --console job %%T/script %%T/meet 0",
                                   c.port));
    t.pid = forkpty(&t.fd, NULL, NULL, NULL);
    ck_assert_int_ge(t.pid, 0);
    if (t.pid == 0) {
        execv(argv[0], argv);
        _exit(127);
    }
    fcntl(t.fd, F_SETFL, O_NONBLOCK);
    wait_until(has_ended, &t, 30, "the end of dlaunch");
    has_ended(&t);
    ck_assert_int_eq(t.status, 0);
    expect_text(t.text, "]: rank ");
    expect_text(t.text, " is ready\r\n");
    expect_text(t.text, "[4]: only four\r\n");
    expect_text(t.text, "]: Traceback (most recent call last):\r\n");
    for (int i = 1; i < 3; i++) {
        expect_status(&c.node[i], 0, 30);
        ck_assert_str_eq(c.node[i].out, "");
    }
    close(t.fd);
    for (int i = 1; i < 3; i++)
        proc_fini(&c.node[i]);
}
END_TEST

static bool six_are_here(void *arg)
{
    struct proc *p = arg;
    proc_poll(p);
    return ranks_that_say(p->out, "here") == 6;
}

/* The node of the coordinator is lost: the console of the next coordinator is the job's. */
START_TEST(the_coordinator_is_killed)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 3; i++)
        nodes_add(&c, test_text("--nnodes 2:3 --node_rank %d --console job", i),
                  "print here wait %T/go print there");
    wait_until(six_are_here, &c.p[0], 20, "all ranks on the first console");
    proc_kill(&c.p[0], SIGKILL);
    wait_lines(c.up, 10, 20);
    write_file(tmppath("go"), "");
    for (int i = 1; i < 3; i++)
        nodes_expect(&c, i, 0);
    int next = strstr(c.p[1].err, "this node is the coordinator now") ? 1 : 2;
    ck_assert_int_eq(ranks_that_say(c.p[next].out, "here"), 4);
    ck_assert_int_eq(ranks_that_say(c.p[next].out, "there"), 4);
    ck_assert_str_eq(c.p[3 - next].out, "");
    nodes_end(&c);
}
END_TEST

/* The launcher that takes the workers' output has no such option: each node shows its own. */
START_TEST(a_coordinator_without_the_option)
{
    static const char line[] = "%T/script %T/meet 0";
    struct cluster c;
    write_script();
    start_others(&c, 3, line);
    dlaunch_start(&c.node[0], NULL,
                  "--nnodes 3 --node_rank 0 --master_port %d --nproc_per_node 2 %s", c.port, line);
    for (int i = 0; i < 3; i++)
        expect_status(&c.node[i], 0, 30);
    for (int i = 1; i < 3; i++)
        expect_text(c.node[i].out, test_text("[%d-%d]: rank %d..%d is ready\n", 2 * i, 2 * i + 1,
                                             2 * i, 2 * i + 1));
    expect_text(c.node[0].out, "rank 1 is ready\n");
    cluster_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("console");
    TCase *tc = test_case(s, "console", 60);
    tcase_add_test(tc, three_nodes);
    tcase_add_test(tc, chosen_ranks);
    tcase_add_test(tc, not_folded);
    tcase_add_test(tc, a_terminal);
    tcase_add_test(tc, the_coordinator_is_killed);
    tcase_add_test(tc, a_coordinator_without_the_option);
    return s;
}

TEST_MAIN(suite)
