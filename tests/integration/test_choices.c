/* Options that choose how a job runs: stdin, restarts one by one, pauses, the store, binding, the
 * clock; and what dlaunch says that it would do. */
#include "tests/integration/job.h"

#include <sched.h>

/* ---------------------------------------------------------------------------------------- stdin */

static const struct {
    const char *mode;
    int readers; /* that may have had the line */
} stdins[] = {{"none", 0}, {"rank0", 1}, {"all", 3}};

START_TEST(standard_input)
{
    struct proc p;
    proc_start(&p,
               dlaunch_argv(test_text("--stdin %s --nproc_per_node 3", stdins[_i].mode),
                            "%W stdin append %T/up"),
               NULL, PROC_STDIN);
    ck_assert_int_eq(write(p.in_fd, "a line\n", 7), 7);
    close(p.in_fd);
    p.in_fd = -1;
    expect_status(&p, 0, 20);
    ck_assert_int_eq(count_text(p.out, "a line\n"), stdins[_i].readers > 0);
    ck_assert_int_eq(count_text(p.out, "a line\n") + count_text(p.out, "EOF\n"), 3);
    proc_fini(&p);
}
END_TEST

/* On several nodes it is global rank 0, wherever that is. */
START_TEST(standard_input_of_rank_0)
{
    struct proc p[2];
    int port = free_port();
    for (int i = 0; i < 2; i++) {
        proc_start(&p[i],
                   dlaunch_argv(test_text("--nnodes 2 --node_rank %d --master_port %d --stdin "
                                          "rank0 --nproc_per_node 2",
                                          i, port),
                                "%W stdin"),
                   NULL, PROC_STDIN);
        ck_assert_int_eq(write(p[i].in_fd, "a line\n", 7), 7);
        close(p[i].in_fd);
        p[i].in_fd = -1;
    }
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 0, 20);
        ck_assert_int_eq(count_text(p[i].out, "a line\n"), i == 0);
        ck_assert_int_eq(count_text(p[i].out, "EOF\n"), i == 0 ? 1 : 2);
        proc_fini(&p[i]);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------- restarts */

/* Single workers are restarted, over two nodes: the other workers go on, and one count holds for
 * the whole job. */
START_TEST(one_by_one)
{
    struct cluster c;
    cluster_start(&c, 2,
                  "--nproc_per_node 2 --max_restarts 2 --restart_policy worker %%W append %%T/up "
                  "wait-lines 4 %%T/up if-attempt 0 if-rank 3 exit 5 if-rank 3 append %%T/again "
                  "wait %%T/again");
    cluster_wait(&c, 0, 20);
    ck_assert_int_eq(count_lines(tmppath("up")), 5);
    cluster_fini(&c);
    unlink(tmppath("up"));
    cluster_start(&c, 2,
                  "--nproc_per_node 2 --max_restarts 2 --restart_policy worker %%W append %%T/up "
                  "wait-lines 4 %%T/up if-rank 1 exit 6 pause");
    cluster_wait(&c, 6, 20);
    ck_assert_int_eq(count_lines(tmppath("up")), 6);
    for (int i = 0; i < 2; i++)
        expect_text(c.node[i].err, "rank 1");
    cluster_fini(&c);
}
END_TEST

/* The pause before the second restart is twice that before the first. */
START_TEST(backoff)
{
    struct proc p;
    long long at[3];
    dlaunch_start(&p, NULL, "--max_restarts 2 --restart_backoff 300ms %%W append %%T/up exit 3");
    expect_status(&p, 3, 20);
    ck_assert_int_eq(sscanf(text_of_file(tmppath("up")),
                            "%*d %*d %*d %*d %lld\n%*d %*d %*d %*d %lld\n%*d %*d %*d %*d %lld",
                            &at[0], &at[1], &at[2]),
                     3);
    ck_assert_int_ge(at[1] - at[0], 300000000);
    ck_assert_int_ge(at[2] - at[1], 600000000);
    proc_fini(&p);
}
END_TEST

/* A stop does not wait for the end of the pause. */
START_TEST(stopped_in_a_pause)
{
    struct proc p;
    dlaunch_start(&p, NULL, "--max_restarts 2 --restart_backoff 1h %%W exit 3");
    proc_expect_err(&p, "restart 1 of 2", 10);
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 10);
    proc_fini(&p);
}
END_TEST

/* ------------------------------------------------------------------------------------ the clock */

START_TEST(timeout_of_all_nodes)
{
    struct cluster c;
    uint64_t start = mono_ns();
    cluster_start(&c, 2, "--timeout 1s --nproc_per_node 2 %%W exit-on TERM 0 pause");
    cluster_wait(&c, 124, 20);
    ck_assert_uint_ge(mono_ns() - start, 1000000000u);
    for (int i = 0; i < 2; i++)
        expect_words(c.node[i].err, "the job did not end within 1 s (--timeout)");
    cluster_fini(&c);
    /* Also while the nodes wait for each other. */
    struct proc p;
    dlaunch_start(&p, NULL, "--nnodes 2 --node_rank 0 --master_port %d --timeout 300ms %%W",
                  free_port());
    expect_status(&p, 124, 20);
    proc_fini(&p);
}
END_TEST

/* A scontrol that writes down what it is asked; `answer`: what it does then. */
static char *const *with_scontrol(const char *answer)
{
    static char path[4096], job[] = "SLURM_JOB_ID=7", node[] = "SLURM_NODEID=0";
    static char *env[] = {path, job, node, NULL};
    ck_assert_int_eq(mkdir(tmppath("bin"), 0700), 0);
    write_file(tmppath("bin/scontrol"),
               test_text("#!/bin/sh\necho \"$*\" >> %s\n%s\n", tmppath("asked"), answer));
    ck_assert_int_eq(chmod(tmppath("bin/scontrol"), 0700), 0);
    snprintf(path, sizeof(path), "PATH=%s:%s", tmppath("bin"), getenv("PATH"));
    return env;
}

/* Between two rounds no node has a rank: the launcher with the coordinator asks for the requeue. */
START_TEST(end_of_time_between_rounds)
{
    struct proc p[2];
    char *const *env = with_scontrol("echo 'JobId=7 BatchFlag=1 Requeue=1 EndTime=Unknown'");
    int port = free_port();
    for (int i = 0; i < 2; i++)
        dlaunch_start(&p[i], (char **)env,
                      "--no_detect --end_time %lld --end_warning 2 --requeue --rdzv_backend c10d "
                      "--rdzv_endpoint 127.0.0.1:%d --rdzv_id requeue --rdzv_conf is_host=%d "
                      "--nnodes 2 --max_restarts 9 %%W append %%T/up pause",
                      (long long)time(NULL) + 12, port, i == 0);
    wait_lines(tmppath("up"), 2, 20);
    kill(p[1].pid, SIGKILL);
    expect_status(&p[0], 75, 30);
    ck_assert_str_eq(text_of_file(tmppath("asked")), "-o show job 7\n-o show job 7\nrequeue 7\n");
    proc_fini(&p[0]);
    proc_fini(&p[1]);
}
END_TEST

/* Slurm's controller may be away when the job begins, which is no reason not to begin. */
static const struct {
    const char *answer;
    int status;
    const char *said;
} slurms[] = {
    {"echo 'slurm_load_jobs error: Unable to contact slurm controller'; exit 1", 0,
     "Unable to contact slurm controller; the job begins without it, and without the end of its "
     "time, so that --end_warning has no effect"},
    {"exec sleep 100", 0, "scontrol -o show job 7: no answer within 20 s; the job begins"},
    {"echo 'slurm_load_jobs error: Invalid job id specified'; exit 1", 2, "Invalid job id"},
    {"echo 'JobId=7 BatchFlag=1 Requeue=0'", 2, "may not be requeued"},
};

START_TEST(slurm_at_the_start)
{
    struct proc p;
    dlaunch_start(&p, (char **)with_scontrol(slurms[_i].answer), "--requeue --end_warning 5 %%W");
    expect_status(&p, slurms[_i].status, 40);
    expect_text(p.err, slurms[_i].said);
    proc_fini(&p);
}
END_TEST

/* Each worker gets the signal, and the status says that the job should start again. */
START_TEST(end_of_time_of_all_nodes)
{
    struct cluster c;
    cluster_start(&c, 2,
                  "--end_time %lld --end_warning USR1@10 --nproc_per_node 2 --max_restarts 1 %%W "
                  "trap USR1 %%T/told wait-lines 4 %%T/told exit 3",
                  (long long)time(NULL) + 12);
    cluster_wait(&c, 75, 20);
    ck_assert_int_eq(count_lines(tmppath("told")), 4);
    for (int i = 0; i < 2; i++) {
        expect_words(c.node[i].err, "STOPPED: the job's time ends in 10 s (--end_warning)");
        expect_no_text(c.node[i].err, "restart 1");
    }
    cluster_fini(&c);
    /* A worker that ignores the signal is killed before the end. */
    struct proc p, q;
    dlaunch_start(&p, NULL, "--end_time %lld --end_warning 2 %%W ignore TERM append %%T/up pause",
                  (long long)time(NULL) + 4);
    expect_status(&p, 75, 20);
    expect_text(p.err, "SIGTERM to 1 worker, SIGKILL after 1 s");
    expect_text(p.err, "1 worker did not stop within 1 s: killing");
    proc_fini(&p);
    /* Until then dlaunchctl says why and when. */
    test_no_leak_check(); /* signals that arrive during the check can block it for ever */
    dlaunch_start(&p, NULL, "--end_time %lld --end_warning 60 %%W ignore TERM append %%T/up pause",
                  (long long)time(NULL) + 62);
    proc_expect_err(&p, "SIGTERM to 1 worker", 20);
    proc_start(
        &q, ARGV((char *)build_path("dlaunchctl"), "status", (char *)test_text("%d", (int)p.pid)),
        NULL, 0);
    ck_assert_int_eq(proc_wait(&q, 20), 0);
    expect_text(q.out, "stopping: the job's time ends in 60 s (--end_warning)\n");
    expect_text(q.out, "the job's time ends at ");
    proc_fini(&q);
    signal_until_end(&p, SIGTERM, 20);
    expect_status(&p, 75, 10);
    proc_fini(&p);
}
END_TEST

/* SIGTERM from a scheduler at the end of the time is not a stop by the user. */
START_TEST(sigterm_at_the_end_of_time)
{
    static const struct {
        int after, status;
    } cases[] = {{0, 75}, {3600, 128 + SIGTERM}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct proc p;
        dlaunch_start(&p, NULL, "--end_time %lld %%W append %%T/up pause",
                      (long long)time(NULL) + cases[i].after);
        wait_lines(tmppath("up"), 1, 10);
        proc_kill(&p, SIGTERM);
        expect_status(&p, cases[i].status, 10);
        proc_fini(&p);
        unlink(tmppath("up"));
    }
}
END_TEST

/* The first signal after that is no second word: the workers keep their grace. */
START_TEST(a_signal_after_the_timeout)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--timeout 300ms %%W trap TERM %%T/term append %%T/up wait %%T/go "
                  "append %%T/saved");
    wait_lines(tmppath("term"), 1, 10);
    proc_expect_err(&p,
                    "the job did not end within 0.3 s (--timeout): stopping 1 worker, SIGKILL "
                    "after 30 s\n",
                    10);
    proc_kill(&p, SIGINT);
    proc_expect_err(&p, "received SIGINT: already stopping 1 worker (repeat to kill now)\n", 10);
    write_file(tmppath("go"), "");
    expect_status(&p, 124, 10);
    ck_assert_int_eq(count_lines(tmppath("saved")), 1);
    proc_fini(&p);
}
END_TEST

/* ------------------------------------------------------------------------------- store, binding */

/* Nothing listens at MASTER_PORT: the program can. */
START_TEST(store_of_the_program)
{
    static const char script[] = "import os, socket\n"
                                 "a = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
                                 "assert os.environ.get('TORCHELASTIC_USE_AGENT_STORE') != 'True'\n"
                                 "if os.environ['RANK'] == '0':\n"
                                 "    s = socket.create_server(a)\n"
                                 "    for i in range(3): s.accept()[0].sendall(b'x')\n"
                                 "else:\n"
                                 "    while True:\n"
                                 "        try: c = socket.create_connection(a)\n"
                                 "        except ConnectionRefusedError: continue\n"
                                 "        assert c.recv(1) == b'x'; break\n";
    struct cluster c;
    write_file(tmppath("serve.py"), script);
    cluster_start(&c, 2, "--master_store none --nproc_per_node 2 %%T/serve.py");
    cluster_wait(&c, 0, 40);
    cluster_fini(&c);
}
END_TEST

START_TEST(binding)
{
    cpu_set_t all;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    int n = CPU_COUNT(&all);
    struct proc p;
    dlaunch_start(&p, NULL, "--bind none --nproc_per_node 1 %%W cpus");
    expect_status(&p, 0, 20);
    char *whole = test_keep(xstrdup(p.out));
    proc_fini(&p);
    dlaunch_start(&p, NULL, "--bind core --nproc_per_node 2 %%W cpus");
    expect_status(&p, 0, 20);
    ck_assert_int_eq(count_text(p.out, "cpus "), 2);
    if (n >= 2) { /* a share each, none twice */
        int a = -1, b = -1;
        ck_assert_int_eq(sscanf(p.out, "cpus %d", &a), 1);
        ck_assert_int_eq(sscanf(strchr(p.out, '\n') + 1, "cpus %d", &b), 1);
        ck_assert_int_ne(a, b);
    }
    proc_fini(&p);
    dlaunch_start(&p, NULL, "--bind numa --nproc_per_node 1 %%W cpus");
    expect_status(&p, 0, 20);
    ck_assert_int_eq(strncmp(p.out, "cpus ", 5), 0);
    ck_assert_uint_le(strlen(p.out), strlen(whole));
    proc_fini(&p);
}
END_TEST

/* --------------------------------------------------------------------------- what would be done */

START_TEST(dry_run)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--dry_run --nnodes 3 --node_rank 1 --nproc_per_node 2 --master_addr 192.0.2.1 "
                  "--max_restarts 4 --timeout 2h --log_dir %%T/logs -t 3 --stdin none "
                  "/bin/echo 'two words' ${local_rank}");
    expect_status(&p, 0, 20);
    expect_text(p.out, "3 nodes, 2 workers on this one");
    expect_text(p.out, "static at 192.0.2.1:29500; this is node 1");
    expect_text(p.out, "Command     /bin/echo 'two words' ");
    expect_text(p.out, "  1      2-3");
    expect_text(p.out, "WORLD_SIZE=6\n");
    expect_text(p.out, "MASTER_ADDR=192.0.2.1\n");
    expect_text(p.out, "LOCAL_RANK=1 RANK=3");
    ck_assert_int_ne(access(tmppath("logs"), F_OK), 0);
    proc_fini(&p);
}
END_TEST

/* Each of two hosts is reached from here, and reaches two others. */
START_TEST(dry_run_of_a_tree)
{
    struct proc p;
    dlaunch_start(&p, NULL, "--dry_run --ssh_tree 2 -H n[1-4],localhost,n[5-7] true");
    expect_status(&p, 0, 10);
    static const struct {
        int node;
        const char *host, *way;
    } nodes[] = {{0, "n1", "ssh"},
                 {1, "n2", "ssh"},
                 {2, "n3", "through n1: ssh"},
                 {3, "n4", "through n1: ssh"},
                 {4, "localhost", "(this host)"},
                 {5, "n5", "through n2: ssh"},
                 {6, "n6", "through n2: ssh"},
                 {7, "n7", "through n3: ssh"}};
    for (size_t i = 0; i < ARRAY_LEN(nodes); i++)
        expect_text(p.out, test_text("  node %d  %s  1 worker  %s", nodes[i].node, nodes[i].host,
                                     nodes[i].way));
    proc_fini(&p);
}
END_TEST

/* A worker finds exactly the environment that --dry_run prints. */
START_TEST(dry_run_is_true)
{
    struct proc plan, run;
    static const char line[] =
        "--nproc_per_node 2 --max_restarts 3 --role r --rdzv_id j %W environ";
    dlaunch_start(&plan, NULL, "--dry_run %s", line);
    expect_status(&plan, 0, 20);
    dlaunch_start(&run, NULL, "%s", line);
    expect_status(&run, 0, 20);
    char *at = strstr(plan.out, "Environment of every worker here");
    ck_assert_ptr_nonnull(at);
    int checked = 0;
    char *found = test_text("\n%s", run.out);
    for (char *s = strchr(at, '\n') + 1; strncmp(s, "  ", 2) == 0; s = strchr(s, '\n') + 1) {
        char *entry = test_text("%.*s", (int)strcspn(s + 2, "\n") + 1, s + 2);
        if (strncmp(entry, "MASTER_PORT", 11) == 0 || strncmp(entry, "TORCHELASTIC_ERROR", 18) == 0)
            continue; /* known at the start only */
        ck_assert_msg(count_text(found, test_text("\n%s", entry)) == 2, "not in both workers: %s",
                      entry);
        checked++;
    }
    ck_assert_int_ge(checked, 12);
    proc_fini(&plan);
    proc_fini(&run);
}
END_TEST

START_TEST(print_config)
{
    struct proc p;
    char *env[] = {"PET_NPROC_PER_NODE=3", "DLAUNCH_TIMEOUT=5min", NULL};
    write_file(tmppath("j.ini"), "[restarts]\nmax_restarts = 2\n");
    dlaunch_start(&p, env, "--print_config --conf %%T/j.ini --tee 3");
    expect_status(&p, 0, 20);
    static const char *const rows[][2] = {{"nproc_per_node", "PET_NPROC_PER_NODE"},
                                          {"timeout", "DLAUNCH_TIMEOUT"},
                                          {"max_restarts", "j.ini:2"},
                                          {"tee", "--tee"},
                                          {"redirects", "default"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *at = strstr(p.out, test_text("\n%s ", rows[i][0]));
        ck_assert_msg(at, "no %s in %s", rows[i][0], p.out);
        expect_text(test_text("%.*s", (int)strcspn(at + 1, "\n"), at + 1), rows[i][1]);
    }
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("choices");
    TCase *tc = test_case(s, "choices", 90);
    tcase_add_loop_test(tc, standard_input, 0, ARRAY_LEN(stdins));
    tcase_add_test(tc, standard_input_of_rank_0);
    tcase_add_test(tc, one_by_one);
    tcase_add_test(tc, backoff);
    tcase_add_test(tc, stopped_in_a_pause);
    tcase_add_test(tc, timeout_of_all_nodes);
    tcase_add_test(tc, end_of_time_of_all_nodes);
    tcase_add_test(tc, end_of_time_between_rounds);
    tcase_add_loop_test(tc, slurm_at_the_start, 0, ARRAY_LEN(slurms));
    tcase_add_test(tc, sigterm_at_the_end_of_time);
    tcase_add_test(tc, a_signal_after_the_timeout);
    tcase_add_test(tc, store_of_the_program);
    tcase_add_test(tc, binding);
    tcase_add_test(tc, dry_run);
    tcase_add_test(tc, dry_run_of_a_tree);
    tcase_add_test(tc, dry_run_is_true);
    tcase_add_test(tc, print_config);
    return s;
}

TEST_MAIN(suite)
