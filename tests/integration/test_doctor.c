/* dlaunch --doctor and --preflight with real launchers, one of which has a fault. Faults of the
 * network: tests/multihost/test_doctor_hosts.c; further ones, on facts: tests/unit/test_doctor.c.
 *
 * DOCTOR_RUNS=n in the environment: so many clean runs of eight nodes (`make doctor-trials`). */
#include "tests/integration/job.h"

enum { NODES = 3 };

static const char *gpus_of_all =
    "0000:01:00.0 GPU-1 10 80000 ok 0 0 0\n0000:02:00.0 GPU-2 10 80000 ok 0 0 0\n";

static char *fake_python(const char *name, const char *prints)
{
    char *path = tmppath(name);
    write_file(path, test_text("#!/bin/sh\n%s\n", prints));
    ck_assert_int_eq(chmod(path, 0755), 0);
    return path;
}

/* Starts `sh -c "<before>; exec dlaunch ..."`. */
static void start_node(struct cluster *c, int i, const char *before, char *const env[],
                       const char *line)
{
    char **own = dlaunch_argv(
        test_text("--nnodes %d --node_rank %d --master_port %d --doctor", c->n, i, c->port), line);
    size_t n = 0;
    while (own[n])
        n++;
    char **argv = (char **)(void *)test_keep(xcalloc(n + 5, sizeof(*argv)));
    argv[0] = argv[3] = "sh";
    argv[1] = "-c";
    argv[2] = test_text("%s\nexec \"$@\"", before);
    memcpy(argv + 4, own, n * sizeof(*own));
    proc_start(&c->node[i], argv, env, 0);
}

/* Runs the doctor with `line` on all nodes; on the last one after `before` and with `bad` in place
 * of it. */
static void examine(struct cluster *c, const char *before, const char *line, const char *bad)
{
    char *env[] = {test_text("LD_LIBRARY_PATH=%s", build_path("tests/fake")),
                   test_text("FAKE_NVML=%s", tmppath("gpus")), "OMP_NUM_THREADS=1", NULL};
    write_file(tmppath("gpus"), gpus_of_all);
    write_file(tmppath("one"), strchr(gpus_of_all, '\n') + 1);
    memset(c, 0, sizeof(*c));
    c->n = NODES;
    c->port = free_port();
    for (int i = 0; i < NODES; i++)
        start_node(c, i, i == NODES - 1 ? before : ":", env, i == NODES - 1 ? bad : line);
}

/* A fault of the last node. %s in before: the test's folder. */
static const struct fault {
    const char *name, *before, *line, *bad, *words;
} faults[] = {
    {"few open files", "ulimit -n 300", "true", NULL,
     "nofile: the hard limit of open files is 300"},
    {"short files", "ulimit -f 1000", "true", NULL, "file-size: files may be"},
    {"little address space", "ulimit -v 16000000", "true", NULL,
     "address-space: a process may map"},
    {"no folder for temporary files", "export TMPDIR=/nonexistent", "true", NULL,
     "tmp: /nonexistent cannot be used: No such file or directory"},
    {"no program", ":", "%W", "/nonexistent/train", "program: the program cannot be started"},
    {"a script with DOS line ends", "printf '#!/usr/bin/env sh\\r\\n' >%s/dos && chmod +x %s/dos",
     "--no_python /bin/true", "--no_python %T/dos",
     "program: the program cannot be started: the first line of"},
    {"another program", ":", "--no_python /bin/true", "--no_python /bin/false",
     "program: the program's file is not that of most nodes"},
    {"a broken interpreter", "export PYTHON_EXEC=%s/broken", "%T/train.py", NULL, "python: "},
    {"an interpreter that hangs", "export PYTHON_EXEC=%s/hangs", "%T/train.py", NULL,
     "it does not answer"},
    {"another PyTorch", "export PYTHON_EXEC=%s/other", "%T/train.py", NULL,
     "versions: PyTorch is 2.8.0; most nodes': 2.9.0"},
    {"another NCCL", "export PYTHON_EXEC=%s/nccl", "%T/train.py", NULL,
     "versions: NCCL is 2.27.3; most nodes': 2.28.3"},
    {"a variable that differs", "export NCCL_DEBUG=INFO", "true", NULL,
     "variables: NCCL_DEBUG is INFO; most nodes': none"},
    {"an interface that is not there", "export NCCL_SOCKET_IFNAME=nosuch", "true", NULL,
     "interface: NCCL_SOCKET_IFNAME names nosuch"},
    {"a clock that is ahead", "export LD_PRELOAD=%s/clock.so FAKE_CLOCK_AHEAD=5", "true", NULL,
     "s ahead of those of most nodes"},
    {"one CPU",
     "cpus=$(nproc --all); [ $cpus -gt 1 ] && exec taskset -c $(taskset -cp $$ | sed "
     "'s/.*: //;s/[-,].*//') \"$@\"",
     "true", NULL, "sizes: it may use 1 CPUs"},
    {"few GPUs", "export FAKE_NVML=%s/one", "--numa_binding node --nproc_per_node 2 true", NULL,
     "gpu-count: it has 1 GPUs for 2 workers"},
    {"a GPU that has gone",
     "echo '0000:01:00.0 GPU-1 10 80000 ok 0 0 0' >%s/own; export "
     "FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-count: the number of its GPUs is 1"},
    {"another model", "sed s/80000/40000/ %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "model of its GPUs is Fake with 40000 MiB"},
    {"a GPU that is lost", "sed '1s/ok/lost/' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-lost: GPU 0000:01:00.0 does not answer"},
    {"a GPU that is used", "sed '2s/ 0$/ 4711/' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-idle: GPU 0000:02:00.0 is used by process 4711"},
    {"memory in use", "sed '2s/ 10 / 9000 /' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-idle: 8.8 GiB of GPU 0000:02:00.0 are in use"},
    {"memory errors", "sed '1s/ok 0/ok 3/' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-memory: GPU 0000:01:00.0 has had 3 uncorrected"},
    {"bad rows", "sed '1s/ok/remapped/' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-memory: rows of the memory of GPU 0000:01:00.0"},
    {"a reset that is due", "sed '1s/ok/pending/' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "has to be reset before bad rows"},
    {"lanes that are missing", "sed '1s/ok/narrow/' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-pcie: GPU 0000:01:00.0 has 4 of 16"},
    {"a GPU that prohibits", "sed '1s/ok/prohibited/' %s/gpus >%s/own; export FAKE_NVML=%s/own",
     "--virtual_local_rank true", NULL, "gpu-mode: GPU 0000:01:00.0 prohibits computing"},
    {"no driver", "unset FAKE_NVML", "--virtual_local_rank true", NULL,
     "gpu-driver: its GPUs cannot be reached"},
    {"another driver", "export FAKE_DRIVER=535.1", "--virtual_local_rank true", NULL,
     "versions: driver is 535.1; most nodes': 550.54.15"},
    {"a check that fails", "export DLAUNCH_CHECK_COMMAND='echo the fan is broken; exit 3'", "true",
     NULL, "ended with 3: the fan is broken"},
    {"a check that is killed", "export DLAUNCH_CHECK_COMMAND='kill -9 $$'", "true", NULL,
     "was killed by signal 9"},
    {"a check that names",
     "export DLAUNCH_CHECK_COMMAND='echo \"{\\\"failed_checks\\\":[\\\"nvlink\\\"]}\"'", "true",
     NULL, "nvlink failed"},
    {"a check that hangs", "export DLAUNCH_CHECK_COMMAND='sleep 100' DLAUNCH_CHECK_TIMEOUT=0.2",
     "true", NULL, "it was not done in time"},
};

static char *fill_in_folder(const char *text)
{
    char *out = test_keep(xcalloc(4096, 1));
    for (const char *at; (at = strstr(text, "%s")); text = at + 2)
        snprintf(out + strlen(out), 4096 - strlen(out), "%.*s%s", (int)(at - text), text, tmpdir());
    snprintf(out + strlen(out), 4096 - strlen(out), "%s", text);
    return out;
}

static void write_files(void)
{
    static const char versions[] = "echo '{\"PyTorch\": \"%s\", \"NCCL\": \"%s\"}'";
    fake_python("broken", "echo no module named encodings >&2; exit 1");
    fake_python("hangs", "sleep 100");
    fake_python("usual", test_text(versions, "2.9.0", "2.28.3"));
    fake_python("other", test_text(versions, "2.8.0", "2.28.3"));
    fake_python("nccl", test_text(versions, "2.9.0", "2.27.3"));
    write_file(tmppath("train.py"), "");
    ck_assert_int_eq(symlink(build_path("tests/fake/clock.so"), tmppath("clock.so")), 0);
    setenv("PYTHON_EXEC", tmppath("usual"), 1);
}

/* Every node prints the same: the fault, with the node, and no other problem of that node. */
START_TEST(a_planted_fault)
{
    const struct fault *f = &faults[_i];
    struct cluster c;
    write_files();
    if (strstr(f->before, "taskset") && sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        test_skip("%s: there is only one CPU", f->name);
        return;
    }
    if (strstr(f->before, "clock.so") &&
        test_skip_sanitized("the fake clock must be in front of a sanitizer, which comes first"))
        return;
    if (strstr(f->before, "ulimit -v") &&
        test_skip_sanitized("they take more address space than the limit"))
        return;
    examine(&c, fill_in_folder(f->before), f->line, f->bad ? f->bad : f->line);
    cluster_wait(&c, 1, 30);
    for (int i = 0; i < NODES; i++) {
        const char *out = c.node[i].out;
        char *line = strstr(out, "(node 2): ");
        ck_assert_msg(line && strstr(line, f->words), "%s: node %d: %s%s", f->name, i, out,
                      c.node[i].err);
        ck_assert_msg(!strstr(out, "(node 0)") && !strstr(out, "(node 1)") &&
                          !strstr(out, "(nodes "),
                      "%s: %s", f->name, out);
        ck_assert_str_eq(out, c.node[0].out);
    }
    cluster_fini(&c);
}
END_TEST

/* ------------------------------------------------------------------------------------------- clean
 */

static void run_clean(int n)
{
    struct cluster c;
    cluster_start(&c, n, "--doctor --nproc_per_node 2 %%W append %%T/started exit 3");
    cluster_wait(&c, 0, 60);
    for (int i = 0; i < n; i++)
        expect_text(c.node[i].out, test_text("%d nodes, %d workers: no problem found", n, 2 * n));
    cluster_fini(&c);
    ck_assert_int_eq(access(tmppath("started"), F_OK), -1); /* nothing was started */
}

START_TEST(clean_runs)
{
    int runs = getenv("DOCTOR_RUNS") ? atoi(getenv("DOCTOR_RUNS")) : 3;
    for (int i = 0; i < runs; i++)
        run_clean(8);
    run_clean(2);
}
END_TEST

START_TEST(one_node_needs_no_program)
{
    struct proc p;
    ck_assert_int_eq(dlaunch_run(&p, 20, "--doctor"), 0);
    expect_text(p.out, "1 node, 1 worker: no problem found");
    proc_fini(&p);
}
END_TEST

START_TEST(facts_and_paths_as_json)
{
    struct cluster c;
    cluster_start(&c, 2, "--doctor -o json true");
    cluster_wait(&c, 0, 30);
    json_t *j = json_loads(c.node[1].out, 0, NULL);
    ck_assert(j && json_is_true(json_object_get(j, "ok")));
    ck_assert_int_eq((int)json_array_size(json_object_get(j, "problems")), 0);
    const json_t *pair = json_array_get(json_object_get(j, "pairs"), 0);
    ck_assert(json_number_value(json_object_get(pair, "rtt_us")) > 0);
    ck_assert(json_number_value(json_object_get(pair, "bps")) > 0);
    const json_t *node = json_array_get(json_object_get(j, "nodes"), 1);
    ck_assert_int_eq((int)json_number(node, "node"), 1);
    ck_assert_str_eq(json_word(json_object_get(node, "versions"), "dlaunch"), DLAUNCH_VERSION);
    json_decref(j);
    cluster_fini(&c);
}
END_TEST

/* The doctor does not wait for the whole time that a job would, and tells what it knows. */
START_TEST(a_node_that_does_not_come)
{
    struct cluster c = {.n = 2, .port = free_port()};
    cluster_start_node(&c, 0, "--rdzv_conf join_timeout=1 --doctor --check_command 'exit 9' true");
    ck_assert_int_eq(proc_wait(&c.node[0], 20), 1);
    expect_text(c.node[0].err, "the nodes could not be examined: ");
    expect_text(c.node[0].err, "node-check: exit 9 ended with 9");
    cluster_fini(&c);
}
END_TEST

START_TEST(options_that_make_no_sense)
{
    static const char *const lines[][2] = {
        {"-o json true", "-o: has an effect only with --doctor"},
        {"--check_command true true", "--check_command: needs --doctor or --preflight"},
        {"--doctor --daemon true", "--doctor: cannot be combined with --daemon"},
        {"--doctor --nnodes 2 --rdzv_backend c10d --rdzv_only --rdzv_endpoint :1", "--doctor"},
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct proc p;
        ck_assert_int_eq(dlaunch_run(&p, 20, "%s", lines[i][0]), 2);
        expect_text(p.err, lines[i][1]);
        proc_fini(&p);
    }
}
END_TEST

/* --------------------------------------------------------------------------------------- preflight
 */

START_TEST(preflight_of_a_good_node)
{
    struct proc p;
    ck_assert_int_eq(
        dlaunch_run(&p, 20,
                    "--preflight --check_command true --nproc_per_node 2 %%W append %%T/up"),
        0);
    ck_assert_int_eq(count_lines(tmppath("up")), 2);
    expect_no_text(p.err, "--preflight");
    proc_fini(&p);
}
END_TEST

START_TEST(preflight_keeps_a_job_from_starting)
{
    struct proc p;
    ck_assert_int_eq(dlaunch_run(&p, 20,
                                 "--preflight --check_command 'echo too hot; exit 1' --events "
                                 "%%T/events %%W append %%T/up"),
                     125);
    expect_text(p.err, "--preflight: node-check: echo too hot; exit 1 ended with 1: too hot");
    ck_assert_int_eq(access(tmppath("up"), F_OK), -1);
    expect_text(text_of_file(tmppath("events")), "\"node.problem\"");
    proc_fini(&p);
}
END_TEST

/* A spare node takes the place of one that is not fit. */
START_TEST(preflight_takes_a_node_out)
{
    struct cluster c = {.n = 3, .port = free_port()};
    static const int checks[] = {0, 5, 0};
    for (int i = 0; i < 3; i++) {
        dlaunch_start(&c.node[i], NULL,
                      "--nnodes 2 --spares 1 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d "
                      "--rdzv_conf is_host=%d --max_restarts 1 --preflight --check_command 'exit "
                      "%d' %%W append %%T/up",
                      c.port, i == 0, checks[i]);
        if (i == 1)
            proc_expect_err(&c.node[1], "node-check: exit 5 ended with 5", 20);
    }
    ck_assert_int_eq(proc_wait(&c.node[0], 40), 0);
    ck_assert_int_eq(proc_wait(&c.node[2], 40), 0);
    proc_wait(&c.node[1], 40);
    ck_assert_int_eq(count_lines(tmppath("up")), 2);
    cluster_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("doctor");
    TCase *tc = test_case(s, "faults", 60);
    tcase_add_loop_test(tc, a_planted_fault, 0, ARRAY_LEN(faults));
    tc = test_case(s, "clean", getenv("DOCTOR_RUNS") ? 3600 : 120);
    tcase_add_test(tc, clean_runs);
    tcase_add_test(tc, one_node_needs_no_program);
    tc = test_case(s, "result", 60);
    tcase_add_test(tc, facts_and_paths_as_json);
    tcase_add_test(tc, a_node_that_does_not_come);
    tcase_add_test(tc, options_that_make_no_sense);
    tc = test_case(s, "preflight", 60);
    tcase_add_test(tc, preflight_of_a_good_node);
    tcase_add_test(tc, preflight_keeps_a_job_from_starting);
    tcase_add_test(tc, preflight_takes_a_node_out);
    return s;
}

TEST_MAIN(suite)
