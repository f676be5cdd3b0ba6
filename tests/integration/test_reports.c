/* The report of a failed job, on every node and in the file of --report. */
#include "tests/integration/job.h"

#include <sys/resource.h>

#include "agent/base/signals.h"
#include "agent/process/cgroup.h"
#include "rendezvous/rules/failure.h"

static json_t *first_of(const json_t *report)
{
    json_t *first = json_object_get(report, "first_failure");
    ck_assert_msg(json_is_object(first), "no first failure");
    return first;
}

static int count_kind(const json_t *report, const char *kind)
{
    size_t i;
    json_t *f;
    int n = 0;
    json_array_foreach(json_object_get(report, "failures"), i, f) n +=
        strcmp(json_word(f, "kind"), kind) == 0;
    return n;
}

/* The first failure of the whole job, the same on every node; the others by kind. */
START_TEST(every_node_tells_the_same)
{
    struct cluster c;
    cluster_start(&c, 3,
                  "--nproc_per_node 2 --rdzv_id j %%W "
                  "err 'this is why' append %%T/up wait-lines 6 %%T/up if-rank 3 exit 17 "
                  "exit-on TERM 5 pause");
    cluster_wait(&c, 17, 30);
    for (int i = 0; i < 3; i++) {
        const char *said = c.node[i].err;
        expect_text(said, "First failure: rank 3");
        expect_text(said, "exited with code 17");
        expect_text(said, "local rank 1, pid ");
        expect_text(said, "node 1");
        expect_text(said, "stderr    this is why");
        expect_text(said, "Other workers:\n  stopped   5 workers, by dlaunch: ranks 0-2, 4, 5");
        expect_text(said, "The job ended with exit status 17 after ");
        ck_assert_int_eq(count_text(said, "FAILED"), 1);
    }
    cluster_fini(&c);
}
END_TEST

/* Each its own file; the rows that matter to a program that reads it. */
START_TEST(report_file)
{
    struct cluster c = {.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        cluster_start_node(
            &c, i,
            "--nproc_per_node 2 --max_restarts 1 --rdzv_id j --report %%T/r%d "
            "--log_dir %%T/logs -r 2 %%W err oh append %%T/up if-attempt 0 wait-lines 4 "
            "%%T/up if-attempt 1 wait-lines 8 %%T/up if-rank 2 raise SEGV pause",
            i);
    cluster_wait(&c, 128 + SIGSEGV, 30);
    for (int i = 0; i < 2; i++) {
        json_t *r = json_of_file(tmppath(i ? "r1" : "r0")), *f = first_of(r);
        ck_assert_str_eq(json_word(r, "outcome"), "failed");
        ck_assert_str_eq(json_word(r, "reason"), "failure");
        ck_assert_str_eq(json_word(r, "run_id"), "j");
        ck_assert_int_eq(json_number(r, "exit_code"), 139);
        ck_assert_int_eq(json_number(r, "node"), i);
        ck_assert_int_eq(json_number(r, "nnodes"), 2);
        ck_assert_int_eq(json_number(r, "world_size"), 4);
        ck_assert_int_eq(json_number(r, "restarts"), 1);
        ck_assert_int_eq(json_number(r, "max_restarts"), 1);
        ck_assert_str_eq(json_word(f, "kind"), "signal");
        ck_assert_str_eq(json_word(f, "signal_name"), "SIGSEGV");
        ck_assert_int_eq(json_number(f, "rank"), 2);
        ck_assert_int_eq(json_number(f, "local_rank"), 0);
        ck_assert_int_eq(json_number(f, "node"), 1);
        ck_assert_int_eq(json_number(f, "attempt"), 1);
        ck_assert_str_eq(json_word(f, "stderr_tail"), "oh");
        ck_assert_str_eq(text_of_file(json_word(f, "log_path")), "oh\n");
        ck_assert_int_eq(count_kind(r, "signal"), 1);
        ck_assert_int_eq(count_kind(r, "stopped"), 3);
        json_decref(r);
    }
    cluster_fini(&c);
}
END_TEST

START_TEST(report_of_success)
{
    struct proc p;
    dlaunch_start(&p, NULL, "--nproc_per_node 3 --report %%T/r %%W print x");
    expect_status(&p, 0, 20);
    json_t *r = json_of_file(tmppath("r"));
    ck_assert_str_eq(json_word(r, "outcome"), "succeeded");
    ck_assert_int_eq(json_number(r, "exit_code"), 0);
    ck_assert_int_eq(json_number(r, "world_size"), 3);
    ck_assert(json_is_null(json_object_get(r, "first_failure")));
    ck_assert_uint_eq(json_array_size(json_object_get(r, "failures")), 0);
    expect_no_text(p.err, "----");
    json_decref(r);
    proc_fini(&p);
}
END_TEST

/* The report of a failure as text, at most 4096 bytes, whole lines; nothing after success. */
START_TEST(pod_message)
{
    struct proc p;
    write_file(tmppath("log"), "old");
    dlaunch_start(&p, NULL, "--pod_message %%T/log %%W print x");
    expect_status(&p, 0, 20);
    proc_fini(&p);
    ck_assert_str_eq(text_of_file(tmppath("log")), "old");
    dlaunch_start(&p, NULL, "--pod_message %%T/log %%W err oh exit 4");
    expect_status(&p, 4, 20);
    proc_fini(&p);
    char *text = text_of_file(tmppath("log"));
    expect_text(text, "First failure: rank 0 on ");
    expect_text(text, " exited with code 4\n");
    expect_text(text, "  stderr    oh\n");
    ck_assert(text[0] != '\n' && text[0] != '-');
    dlaunch_start(&p, NULL, "--no_python --pod_message %%T/log sh -c \"%s\"",
                  "for i in `seq 12`; do printf '%%01000d-' $i >&2; done; exit 4");
    expect_status(&p, 4, 20);
    proc_fini(&p);
    size_t len = strlen(text_of_file(tmppath("log")));
    ck_assert_msg(len <= 4096 && text_of_file(tmppath("log"))[len - 1] == '\n', "%zu bytes", len);
    dlaunch_start(&p, NULL, "--pod_message %%T/gone/log %%W");
    expect_status(&p, 2, 20);
    expect_text(p.err, "--pod_message");
    proc_fini(&p);
}
END_TEST

/* Two workers fail at once, independently, and two are stopped. */
START_TEST(failed_on_their_own)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nproc_per_node 4 --report %%T/r %%W append %%T/up wait-lines 4 %%T/up "
                  "if-rank 1 exit 3 if-rank 2 exit 4 pause");
    int status = proc_wait(&p, 20);
    json_t *r = json_of_file(tmppath("r"));
    ck_assert_int_eq(status, json_number(first_of(r), "exit_code"));
    ck_assert_int_eq(status, json_number(first_of(r), "rank") + 2);
    expect_text(p.err, test_text("exited with code %d", status));
    int own = count_kind(r, "exit"), stopped = count_kind(r, "stopped");
    ck_assert_msg(own >= 1 && own <= 2 && own + stopped == 4, "%d failed, %d were stopped", own,
                  stopped);
    json_decref(r);
    proc_fini(&p);
}
END_TEST

static bool time_is_over(void *end_ns)
{
    return mono_ns() > *(uint64_t *)end_ns;
}

/* Rank 1 does not end when it is told to, and is then killed by someone else. */
START_TEST(killed_by_someone_else_during_a_stop)
{
    struct proc p;
    int pid;
    bool failed = _i == 0; /* else the job was told to end: that is why, whatever comes then */
    dlaunch_start(&p, NULL,
                  "--nproc_per_node 2 --shutdown_timeout 60 --report %%T/r %%W if-rank 1 trap TERM "
                  "%%T/term append %%T/up if-rank 0 wait-lines 2 %%T/up %s pause",
                  failed ? "if-rank 0 exit 3" : "");
    wait_lines(tmppath("up"), 2, 10);
    if (!failed)
        proc_kill(&p, SIGTERM);
    wait_lines(tmppath("term"), 1, 10);
    /* Sooner it could be the cause. */
    uint64_t end = mono_ns() + 2 * FAILURE_SKEW_NS;
    wait_until(time_is_over, &end, 10, "the skew");
    ck_assert_int_eq(sscanf(text_of_file(tmppath("term")), "1 1 0 %d", &pid), 1);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    expect_status(&p, failed ? 3 : 128 + SIGTERM, 20);
    expect_no_text(p.err, "did not end it");
    json_t *r = json_of_file(tmppath("r"));
    if (failed) {
        ck_assert_int_eq(json_number(first_of(r), "rank"), 0);
        ck_assert_int_eq(count_kind(r, "signal"), 1);
        ck_assert_int_eq(count_kind(r, "stopped"), 0);
    } else {
        ck_assert_str_eq(json_word(r, "outcome"), "stopped");
        ck_assert(json_is_null(json_object_get(r, "first_failure")));
    }
    json_decref(r);
    proc_fini(&p);
}
END_TEST

/* A process that was killed for memory in an earlier round, and was not a worker, is not reported
 * as the reason why a worker is killed in a later round. */
START_TEST(out_of_memory_in_an_earlier_round)
{
    char own[512], *script = tmppath("script");
    if (!cgroup_own("memory", own, sizeof(own), NULL)) {
        test_skip("no cgroup v1 hierarchy of memory");
        return;
    }
    char *dir = test_text("%s/dlaunch-test.%d", own, (int)getpid());
    if (mkdir(dir, 0755) < 0) {
        test_skip("cannot create %s", dir);
        return;
    }
    write_file(script, "#!/bin/sh\n"
                       "test $TORCHELASTIC_RESTART_COUNT = 0 || kill -9 $$\n"
                       "dd if=/dev/zero of=/dev/null bs=200M count=1\n"
                       "echo $? >>\"$1\"\n"
                       "exit 3\n");
    ck_assert_int_eq(chmod(script, 0755), 0);
    char *enter = test_text("cd %s && echo 64M >memory.limit_in_bytes && echo 0 >cgroup.procs || "
                            "exit; { echo 64M >memory.memsw.limit_in_bytes; } 2>/dev/null; "
                            "exec \"$@\"",
                            dir); /* memsw: where there is swap */
    char *argv[32] = {"sh", "-c", enter, "sh"};
    size_t n = 4;
    for (char **a = dlaunch_argv("--max_restarts 1 --report %T/r", "%T/script %T/dd"); *a; a++)
        argv[n++] = *a;
    struct proc p;
    proc_start(&p, argv, NULL, 0);
    int status = proc_wait(&p, 20);
    rmdir(dir);
    ck_assert_msg(status == 137, "%d: %s", status, p.err);
    ck_assert_str_eq(text_of_file(tmppath("dd")), "137\n");
    json_t *r = json_of_file(tmppath("r"));
    ck_assert(json_is_false(json_object_get(first_of(r), "oom")));
    json_decref(r);
    proc_fini(&p);
}
END_TEST

START_TEST(signals_and_cores)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    static const struct {
        const char *what, *name;
        int signo;
        bool core;
    } rows[] = {{"raise SEGV", "SIGSEGV", SIGSEGV, true},
                {"abort", "SIGABRT", SIGABRT, true},
                {"raise BUS", "SIGBUS", SIGBUS, true},
                {"raise KILL", "SIGKILL", SIGKILL, false},
                {"raise TERM", "SIGTERM", SIGTERM, false}};
    static char *const sanitizers[] = {/* they take the limit away */
                                       "ASAN_OPTIONS=disable_coredump=0",
                                       "TSAN_OPTIONS=disable_coredump=0", NULL};
    char pattern[8] = "";
    FILE *f = fopen("/proc/sys/kernel/core_pattern", "r");
    bool file = f && fread(pattern, 1, 1, f) == 1 && pattern[0] != '|' && pattern[0] != '/';
    if (f)
        fclose(f);
    bool cores = file && setrlimit(RLIMIT_CORE, &all) == 0;
    if (!cores)
        test_skip("core dumps: not to be had as files here");
    ck_assert_int_eq(chdir(tmpdir()), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct proc p;
        dlaunch_start(&p, sanitizers, "--report %%T/r %%W %s", rows[i].what);
        expect_status(&p, 128 + rows[i].signo, 20);
        json_t *r = json_of_file("r"), *first = first_of(r);
        expect_text(p.err,
                    test_text("rank 0 on %s was killed by %s", json_word(r, "host"), rows[i].name));
        ck_assert_int_eq(json_number(first, "signal"), rows[i].signo);
        if (cores) {
            ck_assert_int_eq(json_is_true(json_object_get(first, "core_dumped")), rows[i].core);
            ck_assert_int_eq(!!strstr(p.err, "(core dumped)"), rows[i].core);
        }
        json_decref(r);
        proc_fini(&p);
    }
}
END_TEST

/* Error files as torch.distributed.elastic writes them, and as a full disk leaves them. */
static const struct {
    const char *content, *shown;
} error_files[] = {
    {"{\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": {\"py_callstack\": "
     "\"Traceback (most recent call last):\\n  File x\\nValueError: boom\", \"timestamp\": "
     "\"1700000000\"}}}",
     "ValueError: boom"},
    {"{\"message\": \"plain words\"}", "plain words"},
    {"{\"message\": {\"message\": \"cut sho", "cut sho"},
    {"not json at all", "not json at all"},
    {"{\"message\": 17}", "17"},
    {"\\\\033[2J\\\\000\\\\377 \\\\033]0;title\\\\007 end", "end"},
    {"", "(no output)"},
};

START_TEST(error_file)
{
    struct proc p;
    char *script = tmppath("script");
    write_file(script, test_text("#!/bin/sh\ncat <<'.' | tr -d '\\n' >$TORCHELASTIC_ERROR_FILE\n%s"
                                 "\n.\nexit 6\n",
                                 error_files[_i].content));
    ck_assert_int_eq(chmod(script, 0755), 0);
    dlaunch_start(&p, NULL, "--report %%T/r --log_dir %%T/logs %%T/script");
    expect_status(&p, 6, 20);
    expect_text(p.err, error_files[_i].shown);
    expect_no_text(p.err, "\033[2J");
    json_t *r = json_of_file(tmppath("r"));
    if (error_files[_i].content[0])
        expect_text(json_word(first_of(r), "message"), error_files[_i].shown);
    json_decref(r);
    proc_fini(&p);
}
END_TEST

/* The folder of the logs is where the launcher stands, wherever a worker goes. */
START_TEST(error_file_of_a_worker_that_went_away)
{
    struct proc p;
    ck_assert_int_eq(chdir(tmpdir()), 0);
    dlaunch_start(&p, NULL,
                  "--report r --log_dir logs -r 2 sh -c 'cd /; echo oh >&2; "
                  "echo {\\\"message\\\": \\\"plain words\\\"} >$TORCHELASTIC_ERROR_FILE; exit 6'");
    expect_status(&p, 6, 20);
    json_t *r = json_of_file("r"), *first = first_of(r);
    ck_assert_str_eq(json_word(first, "message"), "plain words");
    expect_text(json_word(first, "log_path"), tmppath("logs/"));
    ck_assert_str_eq(text_of_file(json_word(first, "log_path")), "oh\n");
    json_decref(r);
    proc_fini(&p);
}
END_TEST

/* A giant one is not read into memory whole, and its report stays one screen. */
START_TEST(giant_error_file_and_stderr)
{
    struct proc p;
    char *script = tmppath("script");
    write_file(script, "#!/bin/sh\n{ printf '{\"message\": \"'; head -c 60000000 /dev/zero | tr "
                       "'\\0' x; printf '\"}'; } >$TORCHELASTIC_ERROR_FILE\n"
                       "yes 'a long line of an error' | head -n 100000 >&2\nexit 6\n");
    ck_assert_int_eq(chmod(script, 0755), 0);
    dlaunch_start(&p, NULL, "--report %%T/r --log_dir %%T/logs -r 2 %%T/script");
    expect_status(&p, 6, 30);
    ck_assert_int_lt(count_text(p.err, "\n"), 60);
    ck_assert_uint_lt(p.err_len, 8000);
    proc_fini(&p);
}
END_TEST

/* The report takes the files of the failed worker's first attempt, though another worker has had a
 * second one. */
START_TEST(files_of_a_worker_s_own_attempt)
{
    struct proc p;
    char *script = tmppath("script");
    write_file(script, test_text("#!/bin/sh\n"
                                 "if [ $RANK = 0 ]; then\n"
                                 "    [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 5\n"
                                 "    touch %s; exec sleep 60\n"
                                 "fi\n"
                                 "until [ -e %s ]; do sleep 0.02; done\n"
                                 "echo oh >&2\n"
                                 "echo '{\"message\": \"why\"}' >$TORCHELASTIC_ERROR_FILE\n"
                                 "exit 7\n",
                                 tmppath("again"), tmppath("again")));
    ck_assert_int_eq(chmod(script, 0755), 0);
    dlaunch_start(&p, NULL,
                  "--nproc_per_node 2 --max_restarts 1 --restart_policy worker -r 2 "
                  "--log_dir %%T/logs --report %%T/r %%T/script");
    expect_status(&p, 7, 30);
    json_t *r = json_of_file(tmppath("r")), *f = first_of(r);
    ck_assert_int_eq(json_number(f, "rank"), 1);
    ck_assert_int_eq(json_number(f, "attempt"), 0);
    ck_assert_str_eq(json_word(f, "message"), "why");
    ck_assert_str_eq(text_of_file(json_word(f, "log_path")), "oh\n");
    json_decref(r);
    proc_fini(&p);
}
END_TEST

/* When the node that failed is another one: its log is named with the host. */
START_TEST(log_of_another_node)
{
    struct cluster c;
    cluster_start(&c, 2, "--rdzv_id j --log_dir %%T/logs -t 2 %%W err x if-rank 1 exit 2 pause");
    cluster_wait(&c, 2, 30);
    char host[256];
    gethostname(host, sizeof(host));
    for (int i = 0; i < 2; i++) {
        char *label =
            test_text("  log       %s%s/logs/j_", i == 0 ? test_text("%s:", host) : "", tmpdir());
        expect_text(c.node[i].err, label);
        expect_text(c.node[i].err, "/attempt_0/0/stderr.log\n");
    }
    cluster_fini(&c);
}
END_TEST

/* --report on a full disk: the job's own exit status, and a line. */
START_TEST(report_that_cannot_be_written)
{
    struct proc p;
    dlaunch_start(&p, NULL, "--report %%T/gone/r %%W");
    expect_status(&p, 2, 20);
    expect_text(p.err, "--report");
    proc_fini(&p);
    ck_assert_int_eq(mkdir(tmppath("soon"), 0755), 0);
    dlaunch_start(&p, NULL, "--report %%T/soon/r %%W append %%T/up wait %%T/go exit 4");
    wait_lines(tmppath("up"), 1, 10);
    ck_assert_int_eq(rmdir(tmppath("soon")), 0);
    write_file(tmppath("go"), "");
    expect_status(&p, 4, 20);
    expect_text(p.err, "--report: ");
    expect_text(p.err, "No such file or directory");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("reports");
    TCase *tc = test_case(s, "reports", 90);
    tcase_add_test(tc, every_node_tells_the_same);
    tcase_add_test(tc, report_file);
    tcase_add_test(tc, report_of_success);
    tcase_add_test(tc, pod_message);
    tcase_add_test(tc, failed_on_their_own);
    tcase_add_loop_test(tc, killed_by_someone_else_during_a_stop, 0, 2);
    tcase_add_test(tc, out_of_memory_in_an_earlier_round);
    tcase_add_test(tc, signals_and_cores);
    tcase_add_loop_test(tc, error_file, 0, ARRAY_LEN(error_files));
    tcase_add_test(tc, error_file_of_a_worker_that_went_away);
    tcase_add_test(tc, giant_error_file_and_stderr);
    tcase_add_test(tc, files_of_a_worker_s_own_attempt);
    tcase_add_test(tc, log_of_another_node);
    tcase_add_test(tc, report_that_cannot_be_written);
    return s;
}

TEST_MAIN(suite)
