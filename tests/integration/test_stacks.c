/* Stacks of the workers of whole jobs: by dlaunchctl from any node, and in the reports of --timeout
 * and of SIGQUIT. */
#include "tests/integration/job.h"

#include <dlfcn.h>
#include <stdlib.h>

static char *env[4]; /* where the control sockets are; where py-spy is, or nothing */

static void setup(void)
{
    env[0] = test_text("XDG_RUNTIME_DIR=%s", tmpdir());
    env[1] = "PYSPY_BIN";
}

static bool has_libdw(void)
{
    if (dlopen("libdw.so.1", RTLD_LAZY))
        return true;
    test_skip("libdw.so.1 is not installed");
    return false;
}

static char *stacks_of(const struct proc *p, const char *const *options)
{
    struct proc ctl;
    char *argv[10] = {build_path("dlaunchctl"), "-p", test_text("%d", (int)p->pid), "stacks"};
    for (int i = 0; options[i]; i++)
        argv[4 + i] = (char *)options[i];
    proc_start(&ctl, argv, env, 0);
    expect_status(&ctl, 0, 30);
    char *text = test_text("%s", ctl.out);
    proc_fini(&ctl);
    return text;
}

/* Two launchers with the control sockets of the test. */
static void start_pair(struct cluster *c, const char *options, const char *command)
{
    *c = (struct cluster){.n = 2, .port = free_port()};
    test_no_leak_check(); /* signals that arrive during the check can block it for ever */
    for (int i = 0; i < 2; i++)
        dlaunch_start(&c->node[i], env,
                      "--nnodes 2 --node_rank %d --master_port %d --nproc_per_node 2 %s %s", i,
                      c->port, options, command);
}

static void end_pair(struct cluster *c)
{
    for (int i = 0; i < 2; i++)
        signal_until_end(&c->node[i], SIGTERM, 60);
    cluster_fini(c);
}

#define WORKER "%%W append %%T/up if-rank 2 sleep 1000 pause"

/* Asked on either node, the stacks of all four ranks come as one tree. */
START_TEST(one_tree_of_all_nodes)
{
    struct cluster c;
    if (!has_libdw())
        return;
    start_pair(&c, "", test_text(WORKER));
    wait_lines(tmppath("up"), 4, 60);
    for (int i = 0; i < 2; i++) {
        char *text = stacks_of(&c.node[i], (const char *[]){NULL});
        expect_text(text, "0-1,3    main (worker.c:");
        expect_text(text, "2        main (worker.c:");
        expect_text(text, "[sleeps in clock_nanosleep]\n");
        expect_text(text, "[sleeps in pause]\n");
        expect_no_text(text, "did not answer");
    }
    char *some = stacks_of(&c.node[1], (const char *[]){"--ranks", "2-3", NULL});
    expect_text(some, "3        main (worker.c:");
    json_t *j = json_loads(stacks_of(&c.node[0], (const char *[]){"-o", "json", NULL}), 0, NULL);
    const json_t *ranks = json_object_get(j, "ranks"), *two = json_array_get(ranks, 2);
    ck_assert_uint_eq(json_array_size(ranks), 4);
    ck_assert_int_eq(json_number(two, "rank"), 2);
    ck_assert_int_eq(json_number(two, "node"), 1);
    const json_t *thread = json_array_get(json_object_get(two, "threads"), 0);
    ck_assert_str_eq(json_word(thread, "call"), "clock_nanosleep");
    ck_assert_str_eq(json_word(thread, "state"), "S");
    ck_assert_str_eq(json_word(json_array_get(json_object_get(j, "tree"), 0), "ranks"), "0-1,3");
    json_decref(j);
    end_pair(&c);
}
END_TEST

/* A worker that is stopped, or that runs, is looked at like one that sleeps, and goes on as it was.
 */
START_TEST(workers_in_every_state)
{
    struct proc p;
    if (!has_libdw())
        return;
    write_file(tmppath("spin.c"), "#include <stdio.h>\n#include <stdlib.h>\n#include <signal.h>\n"
                                  "static volatile long x;\n"
                                  "static void spin(void) { for (;;) x++; }\n"
                                  "int main(void) {\n"
                                  "    puts(\"up\"); fflush(stdout);\n"
                                  "    if (*getenv(\"RANK\") == '1') raise(SIGSTOP);\n"
                                  "    spin();\n"
                                  "}\n");
    for (int optimised = 0; optimised < 2; optimised++) {
        struct proc cc;
        ck_assert_int_eq(proc_run(&cc,
                                  ARGV("gcc", "-g", optimised ? "-O2" : "-O0", "-o",
                                       tmppath("spin"), tmppath("spin.c")),
                                  NULL, 60),
                         0);
        proc_fini(&cc);
        dlaunch_start(&p, env, "--nproc_per_node 2 --fold off %%T/spin");
        for (int i = 0; i < 3; i++) {
            proc_expect_out(&p, "up\nup\n", 60);
            char *text = stacks_of(&p, (const char *[]){NULL});
            expect_text(text, "main (spin.c:");
            expect_text(text, "[runs]\n");
            expect_text(text, "[is stopped (state T)");
        }
        proc_kill(&p, SIGKILL);
        proc_fini(&p);
    }
}
END_TEST

/* The report of --timeout and of SIGQUIT has the stacks as they were before the stop. */
START_TEST(reports)
{
    struct cluster c;
    if (!has_libdw())
        return;
    start_pair(&c, "--timeout 3", test_text(WORKER));
    for (int i = 0; i < 2; i++) {
        expect_status(&c.node[i], 124, 60);
        expect_text(c.node[i].err, "stacks ");
        expect_text(c.node[i].err, "0-1,3    main (worker.c:");
        expect_text(c.node[i].err, "[sleeps in clock_nanosleep]\n");
    }
    cluster_fini(&c);

    struct proc p;
    dlaunch_start(&p, env, "--nproc_per_node 2 --report %%T/r %s", test_text(WORKER));
    wait_lines(tmppath("up"), 6, 60);
    proc_kill(&p, SIGQUIT);
    expect_status(&p, 128 + SIGQUIT, 60);
    expect_text(p.err, "[sleeps in pause]\n");
    json_t *r = json_of_file(tmppath("r"));
    expect_text(json_word(r, "stacks"), "0-1      main (worker.c:");
    json_decref(r);
    proc_fini(&p);
}
END_TEST

/* Ranks of a node that does not answer are named, and the others are shown. */
START_TEST(a_node_that_does_not_answer)
{
    struct cluster c;
    if (!has_libdw())
        return;
    start_pair(&c, "", test_text(WORKER));
    wait_lines(tmppath("up"), 4, 60);
    pid_t agent = agent_of(&c.node[1]);
    kill(agent, SIGSTOP);
    char *text = stacks_of(&c.node[0], (const char *[]){NULL});
    kill(agent, SIGCONT);
    expect_text(text, "0-1      main (worker.c:");
    expect_text(text, "ranks 2-3: node 1 (");
    expect_text(text, ") did not answer");
    end_pair(&c);
}
END_TEST

/* A thread whose stack needs a frame pointer is stopped for it: its call goes on, and has the same
 * name ever after. */
START_TEST(a_call_that_goes_on)
{
    struct proc p, cc;
    if (!has_libdw())
        return;
    write_file(tmppath("nap.c"), "#include <stdio.h>\n#include <time.h>\n"
                                 "int main(void) {\n"
                                 "    struct timespec t = {1000, 0};\n"
                                 "    puts(\"up\"); fflush(stdout);\n"
                                 "    return nanosleep(&t, NULL);\n"
                                 "}\n");
    ck_assert_int_eq(
        proc_run(&cc, ARGV("gcc", "-g", "-O0", "-o", tmppath("nap"), tmppath("nap.c")), NULL, 60),
        0);
    proc_fini(&cc);
    dlaunch_start(&p, env, "%%T/nap");
    proc_expect_out(&p, "up\n", 60);
    for (int i = 0; i < 3; i++) {
        char *text = "";
        for (int k = 0; k < 1000 && !strstr(text, "nanosleep]");
             k++) /* it says so before it is there */
            text = stacks_of(&p, (const char *[]){NULL});
        expect_text(text, "main (nap.c:6)\n");
        expect_text(text, "[sleeps in clock_nanosleep]\n");
    }
    proc_kill(&p, SIGKILL);
    proc_fini(&p);
}
END_TEST

static const char script[] = "import os, time\n"
                             "def work():\n"
                             "    if os.environ['RANK'] == '1':\n"
                             "        spin()\n"
                             "    time.sleep(1000)\n"
                             "def spin():\n"
                             "    while True:\n"
                             "        pass\n"
                             "class Trainer:\n"
                             "    def step(self):\n"
                             "        print('up', flush=True)\n"
                             "        work()\n"
                             "Trainer().step()\n";

/* Python's own frames, whatever reads them. */
static void check_python(const char *python)
{
    struct proc p;
    write_file(tmppath("t.py"), script);
    dlaunch_start(&p, env, "--nproc_per_node 2 --fold off --no_python %s %%T/t.py", python);
    proc_expect_out(&p, "up\nup\n", 60);
    char *text = "";
    for (int i = 0; i < 1000 && !strstr(text, "spin (t.py:");
         i++) /* it says so before it is there */
        text = stacks_of(&p, (const char *[]){NULL});
    expect_text(text, "0-1      <module> (t.py:13)\n");
    expect_text(text, "step (t.py:12)\n");
    expect_text(text, "work (t.py:5)\n");
    expect_text(text, "spin (t.py:");
    proc_kill(&p, SIGKILL);
    proc_fini(&p);
}

/* "python3.13", where that exists and is of this version; NULL. */
static const char *find_python(const char *version)
{
    const char *found = NULL;
    const char *const places[] = {test_text("python%s", version),
                                  test_text("~/.pyenv/versions/%s.*/bin/python3", version)};
    for (size_t i = 0; i < ARRAY_LEN(places) && !found; i++) {
        struct proc p;
        char *argv[] = {
            "sh", "-c",
            test_text(
                "%s -c 'import sys; print(\"%%d.%%d\" %% sys.version_info[:2], sys.executable)'",
                places[i]),
            NULL};
        if (proc_run(&p, argv, NULL, 60) == 0 && strncmp(p.out, version, strlen(version)) == 0)
            found = test_text("%.*s", (int)strcspn(p.out + strlen(version) + 1, "\n"),
                              p.out + strlen(version) + 1);
        proc_fini(&p);
    }
    if (!found)
        test_skip("Python %s is not installed", version);
    return found;
}

START_TEST(python_by_its_offsets)
{
    static const char *const versions[] = {"3.11", "3.12", "3.13", "3.14"};
    for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
        const char *python = find_python(versions[i]);
        if (python)
            check_python(python);
    }
}
END_TEST

START_TEST(python_by_py_spy)
{
    const char *python = find_python("3.10");
    struct proc p;
    char *argv[] = {"sh", "-c", "command -v ${PYSPY_BIN:-py-spy}", NULL};
    if (!python)
        return;
    int missing = proc_run(&p, argv, NULL, 20);
    env[1] = test_text("PYSPY_BIN=%.*s", (int)strcspn(p.out, "\n"), p.out);
    proc_fini(&p);
    if (missing) {
        test_skip("py-spy is not installed");
        return;
    }
    check_python(python);
}
END_TEST

/* Without py-spy: native frames, and what to install. */
START_TEST(python_without_py_spy)
{
    const char *python = find_python("3.10");
    struct proc p;
    if (!python)
        return;
    write_file(tmppath("t.py"), script);
    env[1] = "PATH=/nowhere";
    env[2] = "PYSPY_BIN";
    dlaunch_start(&p, env, "--nproc_per_node 2 --fold off --no_python %s %%T/t.py", python);
    proc_expect_out(&p, "up\nup\n", 60);
    char *text = stacks_of(&p, (const char *[]){NULL});
    expect_text(text, "ranks 0-1: Python 3.10: for its frames install py-spy");
    proc_kill(&p, SIGKILL);
    proc_fini(&p);
}
END_TEST

/* A dlaunch whose dlaunch-inspect is not there: one line says so, the ranks have a note, and the
 * job goes on. */
START_TEST(the_program_is_missing)
{
    struct proc p;
    char *wait = test_text("echo up; while [ ! -e '%s' ]; do sleep 0.1; done", tmppath("go"));
    ck_assert_int_eq(system(test_text("cp '%s' '%s'", build_path("dlaunch"), tmppath("dlaunch"))),
                     0);
    proc_start(&p,
               ARGV(tmppath("dlaunch"), "--nproc_per_node", "2", "--fold", "off", "sh", "-c", wait),
               env, 0);
    proc_expect_out(&p, "up\nup\n", 60);
    for (int i = 0; i < 2; i++)
        expect_text(stacks_of(&p, (const char *[]){NULL}),
                    test_text("ranks 0-1: no stack: dlaunch-inspect is missing: it belongs to "
                              "dlaunch, into %s\n",
                              tmpdir()));
    write_file(tmppath("go"), "");
    expect_status(&p, 0, 60);
    ck_assert_int_eq(
        count_text(p.err, "dlaunch: no stacks can be shown: dlaunch-inspect is missing"), 1);
    proc_fini(&p);
}
END_TEST

/* On a host to which dlaunch has been copied, dlaunch-inspect is there as well. */
START_TEST(the_program_is_copied)
{
    struct proc p;
    write_file(tmppath("ssh"), "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    ck_assert_int_eq(chmod(tmppath("ssh"), 0700), 0);
    ck_assert_int_eq(mkdir(tmppath("there"), 0700), 0);
    env[2] = test_text("TMPDIR=%s", tmppath("there"));
    dlaunch_start(&p, env, "--bcast --launch_agent %%T/ssh -H 127.0.0.2:2 --timeout 2 %%W pause");
    expect_status(&p, 124, 60);
    expect_text(p.err, "[sleeps in pause]\n");
    expect_no_text(p.err, "no stack: ");
    ck_assert_int_eq(rmdir(tmppath("there")), 0); /* nothing is left */
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stacks");
    TCase *t = test_case(s, "stacks", 240);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, one_tree_of_all_nodes);
    tcase_add_test(t, workers_in_every_state);
    tcase_add_test(t, a_call_that_goes_on);
    tcase_add_test(t, reports);
    tcase_add_test(t, a_node_that_does_not_answer);
    tcase_add_test(t, python_by_its_offsets);
    tcase_add_test(t, python_by_py_spy);
    tcase_add_test(t, python_without_py_spy);
    tcase_add_test(t, the_program_is_missing);
    tcase_add_test(t, the_program_is_copied);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
