/* Reports, compared as a whole with what they are to look like. */
#include "agent/base/signals.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "agent/report/report.h"
#include "agent/report/report_words.h"
#include "core/mem.h"

#define RULE "------------------------------------------------------------------------------\n"

static struct failure failures[RDZV_REPORT_MAX];
static struct job_spec job;
static struct rdzv_result result;
static struct report_input input;

static void setup(void)
{
    setenv("TZ", "UTC", 1);
    tzset();
    memset(failures, 0, sizeof(failures));
    job = (struct job_spec){.name = "train.py", .nproc = 2, .rdzv = {.run_id = "myjob"}};
    result =
        (struct rdzv_result){.exit_code = 1, .reason = STOP_FAILURE, .failures = failures, .n = 1};
    input = (struct report_input){.job = &job,
                                  .result = &result,
                                  .host = "node-a",
                                  .nnodes = 1,
                                  .world_size = 4,
                                  .elapsed = 192.3};
}

static struct failure *failed(size_t i, enum failure_kind kind, int rank, int local_rank)
{
    struct failure *f = &failures[i];
    bool second = rank >= 4;
    *f = (struct failure){.kind = kind,
                          .rank = rank,
                          .local_rank = local_rank,
                          .node = second,
                          .pid = 4240 + rank,
                          .caused_by = -1,
                          .wall_ns = UINT64_C(1714564800123000000)};
    strcpy(f->host, second ? "node-b" : "node-a");
    strcpy(f->role, "default");
    return f;
}

static char *report_in(int color, int columns)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    report_print(f, &input, color, columns);
    fclose(f);
    return test_keep(text);
}

static char *report_text(int color)
{
    return report_in(color, 80);
}

static void check(const char *want)
{
    const char *got = report_text(0);
    ck_assert_msg(strcmp(got, want) == 0, "--- this came\n%s--- this was to come\n%s", got, want);
    for (const char *line = got, *nl; (nl = strchr(line, '\n')); line = nl + 1)
        ck_assert_msg(nl - line <= 80 || strncmp(line, "  log ", 6) == 0, "%.*s is too wide",
                      (int)(nl - line), line);
}

START_TEST(a_python_exception)
{
    struct failure *f = failed(0, FAILURE_EXIT, 2, 2);
    f->exit_code = 1;
    strcpy(f->stderr_tail, "Traceback (most recent call last):\n"
                           "  File \"train.py\", line 83, in <module>\n"
                           "    main()\n"
                           "ValueError: expected 64 features, got 63");
    strcpy(f->message, f->stderr_tail); /* @record wrote the same to the error file */
    strcpy(f->log_path, "/logs/myjob_abc/attempt_0/2/stderr.log");
    failed(1, FAILURE_STOPPED, 0, 0)->signal = SIGTERM;
    failed(2, FAILURE_STOPPED, 1, 1)->signal = SIGTERM;
    failed(3, FAILURE_STOPPED, 3, 3)->exit_code = 0;
    result.n = 4;
    check("\n" RULE "train.py FAILED\n"
          "\n"
          "First failure: rank 2 on node-a exited with code 1\n"
          "  worker    local rank 2, pid 4242\n"
          "  time      2024-05-01 12:00:00 +0000\n"
          "  error     ValueError: expected 64 features, got 63\n"
          "  stderr    Traceback (most recent call last):\n"
          "              File \"train.py\", line 83, in <module>\n"
          "                main()\n"
          "            ValueError: expected 64 features, got 63\n"
          "  log       /logs/myjob_abc/attempt_0/2/stderr.log\n"
          "\n"
          "Other workers:\n"
          "  stopped   3 workers, by dlaunch: ranks 0, 1, 3 (node-a)\n"
          "\n"
          "The job ended with exit status 1 after 3 min 12 s.\n" RULE);
}
END_TEST

#define FRAMES                                   \
    "Traceback (most recent call last):\n"       \
    "  File \"train.py\", line 6, in <module>\n" \
    "    step()\n"                               \
    "    ^^^^^^\n"

/* The part of the error file's message that stderr does not show is always reported. */
START_TEST(messages_missing_from_stderr_are_shown)
{
    struct failure *f = failed(0, FAILURE_EXIT, 1, 1);
    f->exit_code = 7;
    strcpy(f->stderr_tail, "please see above: unrelated\n" FRAMES "RuntimeError: CUDA error");
    strcpy(f->message, "GPU 1: 3 uncorrectable ECC errors\n" FRAMES "RuntimeError: CUDA error");
    const char *text = report_text(0);
    ck_assert_ptr_nonnull(strstr(text, "  error     GPU 1: 3 uncorrectable ECC errors\n"
                                       "            RuntimeError: CUDA error\n"
                                       "  stderr    please see above: unrelated\n"));
    strcpy(f->message, "the cause of it\nsee above");
    text = report_text(0);
    ck_assert_ptr_nonnull(strstr(text, "  error     the cause of it\n            see above\n"));
}
END_TEST

static const struct {
    const char *message, *names;
} texts[] = {
    {FRAMES "ValueError: lr must be positive", "ValueError: lr must be positive"},
    {FRAMES "RuntimeError: CUDA error: an illegal memory access was encountered\n"
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "  (indented)\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
     "RuntimeError: CUDA error: an illegal memory access was encountered"},
    {FRAMES "KeyError: 'a'\n\nDuring handling of the above exception, another exception "
            "occurred:\n\n" FRAMES "RuntimeError: no such batch\nsee above",
     "RuntimeError: no such batch"},
    {"[40 lines left out]\n    step()\n  File \"x.py\", line 7, in step\nOSError: gone\nnote",
     "OSError: gone"},
    {"out of range\nsee above", "out of range"},
    {"  + Exception Group Traceback (most recent call last):\n"
     "  | ExceptionGroup: two (2 sub-exceptions)\n"
     "  +------------------------------------",
     NULL},
};

/* When stderr has all of it, one line says what it was. */
START_TEST(the_line_that_names_the_error)
{
    struct failure *f = failed(0, FAILURE_EXIT, 1, 1);
    f->exit_code = 1;
    strcpy(f->message, texts[_i].message);
    strcpy(f->stderr_tail, texts[_i].message);
    char *text = report_text(0);
    const char *names = texts[_i].names;
    char *want = test_text("\n  error     %s\n  stderr    ", names ? names : "");
    if (!names)
        ck_assert_ptr_null(strstr(text, "\n  error "));
    else
        ck_assert_msg(strstr(text, want), "not there:%sin: %s", want, text);
    free(text);
}
END_TEST

START_TEST(a_crash_on_another_node)
{
    struct failure *f = failed(0, FAILURE_SIGNAL, 5, 1);
    f->signal = SIGSEGV;
    f->core_dumped = true;
    f->attempt = 1;
    strcpy(f->role, "trainer");
    strcpy(f->log_path, "/tmp/torchelastic_k3j2h1x0/none_9dk2hsa1/attempt_1/1/stderr.log");
    for (int i = 0; i < 30; i++)
        sprintf(f->stderr_tail + strlen(f->stderr_tail), i == 23 ? "\n" : "line %d\n", i);
    f = failed(1, FAILURE_EXIT, 3, 3);
    f->exit_code = 1;
    f->caused_by = 5;
    f = failed(2, FAILURE_EXIT, 2, 2);
    f->exit_code = 1;
    f->caused_by = 5;
    failed(3, FAILURE_SIGNAL, 7, 3)->signal = SIGABRT;
    static const int stopped[] = {0, 1, 4, 6};
    for (size_t i = 0; i < 4; i++)
        failed(4 + i, FAILURE_STOPPED, stopped[i], 0)->signal = i == 3 ? SIGKILL : SIGTERM;
    f = failed(8, FAILURE_NODE, -1, -1);
    f->node = 2;
    f->pid = 77;
    strcpy(f->host, "node-c");
    result.n = 9;
    result.omitted = 3;
    result.exit_code = 139;
    result.restarts = 1;
    job.rdzv.max_restarts = 3;
    input.nnodes = 3;
    check("\n" RULE "train.py FAILED\n"
          "\n"
          "First failure: rank 5 on node-b was killed by SIGSEGV (segmentation fault), core\n"
          "  dumped\n"
          "  worker    local rank 1, pid 4245, node 1 of 3, role trainer\n"
          "  time      2024-05-01 12:00:00 +0000, restart 1 of 3\n"
          "  stderr    [earlier lines left out]\n"
          "            line 10\n"
          "            line 11\n"
          "            line 12\n"
          "            line 13\n"
          "            line 14\n"
          "            line 15\n"
          "            line 16\n"
          "            line 17\n"
          "            line 18\n"
          "            line 19\n"
          "            line 20\n"
          "            line 21\n"
          "            line 22\n"
          "\n"
          "            line 24\n"
          "            line 25\n"
          "            line 26\n"
          "            line 27\n"
          "            line 28\n"
          "            line 29\n"
          "  log       node-b:/tmp/torchelastic_k3j2h1x0/none_9dk2hsa1/attempt_1/1/stderr.log\n"
          "\n"
          "Other workers:\n"
          "  failed    ranks 2, 3 (node-a): exit code 1, after rank 5 died\n"
          "  failed    rank 7 (node-b): SIGABRT\n"
          "  lost      node-c (node 2): its launcher (pid 77) died or stopped answering\n"
          "  stopped   7 workers, by dlaunch, among them ranks 0, 1, 4, 6 (node-a, node-b);\n"
          "            killed, because the stop signal did not end it: rank 6 (node-b)\n"
          "\n"
          "The job ended with exit status 139 after 3 min 12 s; 1 of 3 restarts used.\n"
          "This is node 0 of 3, node-a.\n" RULE);
}
END_TEST

START_TEST(the_stop_signal_ended_none)
{
    failed(0, FAILURE_EXIT, 0, 0)->exit_code = 1;
    for (int i = 1; i < 3; i++)
        failed(i, FAILURE_STOPPED, i, 0)->signal = SIGKILL;
    result.n = 3;
    result.exit_code = 1;
    char *text = report_text(0);
    const char *all = "ranks 1, 2 (node-a); all killed, because the\n"
                      "            stop signal did not end them\n";
    ck_assert_msg(strstr(text, all), "%s", text);
    free(text);
    result.omitted = 5;
    text = report_text(0);
    const char *some =
        "  stopped   7 workers, by dlaunch, among them ranks 1, 2 (node-a); these were\n"
        "            killed, because the stop signal did not end them\n";
    ck_assert_msg(strstr(text, some), "%s", text);
    free(text);
    result.n = 1;
    text = report_text(0);
    const char *none = "  and       5 more that are not listed\n";
    ck_assert_msg(strstr(text, none) && !strstr(text, "stopped"), "%s", text);
    free(text);
}
END_TEST

START_TEST(killed_by_someone_else)
{
    failed(0, FAILURE_SIGNAL, 1, 1)->signal = SIGKILL;
    result.exit_code = 137;
    job.rdzv.max_restarts = 2;
    input.elapsed = 0.25;
    check("\n" RULE "train.py FAILED\n"
          "\n"
          "First failure: rank 1 on node-a was killed by SIGKILL\n"
          "  cause     killed by another process, not by dlaunch\n"
          "  worker    local rank 1, pid 4241\n"
          "  time      2024-05-01 12:00:00 +0000, first attempt, before any restart\n"
          "  stderr    (no output)\n"
          "  hint      possible causes: a scheduler's limit, an operator, or the kernel's\n"
          "            OOM killer outside of dlaunch's cgroup (dmesg shows that)\n"
          "\n"
          "The job ended with exit status 137 after 0.2 s; 0 of 2 restarts used.\n" RULE);
    failures[0].oom = true;
    job.rdzv.max_restarts = 0;
    check("\n" RULE "train.py FAILED\n"
          "\n"
          "First failure: rank 1 on node-a was killed by SIGKILL\n"
          "  cause     out of memory: the kernel killed the worker (cgroup oom_kill)\n"
          "  worker    local rank 1, pid 4241\n"
          "  time      2024-05-01 12:00:00 +0000\n"
          "  stderr    (no output)\n"
          "  hint      run fewer or smaller workers on that node, or give the cgroup more\n"
          "            memory\n"
          "\n"
          "The job ended with exit status 137 after 0.2 s.\n" RULE);
    failures[0].oom = false;
    failures[0].signal = SIGUSR2; /* such as one that dlaunch got and passed on */
    char *text = report_text(0);
    ck_assert_ptr_nonnull(
        strstr(text, "  cause     another process sent the signal, to the worker or to dlaunch"));
    free(text);
}
END_TEST

START_TEST(not_even_started)
{
    struct failure *f = failed(0, FAILURE_EXEC, 0, 0);
    f->exit_code = 127;
    strcpy(f->message, "exec ./train: No such file or directory");
    result.exit_code = 127;
    check("\n" RULE "train.py FAILED\n"
          "\n"
          "First failure: rank 0 on node-a could not be started (exit code 127)\n"
          "  cause     exec ./train: No such file or directory\n"
          "  worker    local rank 0, pid 4240\n"
          "  time      2024-05-01 12:00:00 +0000\n"
          "\n"
          "The job ended with exit status 127 after 3 min 12 s.\n" RULE);
}
END_TEST

START_TEST(a_node_that_was_lost)
{
    struct failure *f = failed(0, FAILURE_NODE, -1, -1);
    f->node = 1;
    f->pid = 77;
    strcpy(f->host, "node-b");
    result.reason = STOP_NODE_LOST;
    strcpy(result.text, "node-b (node 1) was lost: no heartbeat for 15 s");
    input.nnodes = 2;
    check("\n" RULE "train.py FAILED: node-b (node 1) was lost: no heartbeat for 15 s\n"
          "\n"
          "First failure: node-b (node 1) was lost\n"
          "  cause     its launcher (pid 77) died or stopped answering\n"
          "  time      2024-05-01 12:00:00 +0000\n"
          "\n"
          "The job ended with exit status 1 after 3 min 12 s.\n"
          "This is node 0 of 2, node-a.\n" RULE);
    input.group_rank = -1; /* a spare, or one that came late */
    check("\n" RULE "train.py FAILED: node-b (node 1) was lost: no heartbeat for 15 s\n"
          "\n"
          "First failure: node-b (node 1) was lost\n"
          "  cause     its launcher (pid 77) died or stopped answering\n"
          "  time      2024-05-01 12:00:00 +0000\n"
          "\n"
          "The job ended with exit status 1 after 3 min 12 s.\n"
          "This node was not among the 2 nodes of the last round: node-a.\n" RULE);
}
END_TEST

START_TEST(ends_without_a_failure)
{
    result.n = 0;
    result.exit_code = 124;
    result.reason = STOP_TIMEOUT;
    strcpy(result.text, "the job has run for 600 s, its --timeout");
    input.elapsed = 600;
    check("\n" RULE "train.py FAILED: the job has run for 600 s, its --timeout\n"
          "\n"
          "The job ended with exit status 124 after 10 min 0 s.\n" RULE);
    result.exit_code = 143;
    result.reason = STOP_SIGNAL;
    strcpy(result.text, "node-a was told to stop by SIGTERM");
    failed(0, FAILURE_STOPPED, 0, 0)->signal = SIGTERM;
    failed(1, FAILURE_STOPPED, 1, 1)->signal = SIGTERM;
    result.n = 2;
    input.leftover = "pid 881 (python) in state D (uninterruptible sleep) in nfs_wait_bit_killable";
    check("\n" RULE "train.py STOPPED: node-a was told to stop by SIGTERM\n"
          "\n"
          "Workers:\n"
          "  stopped   2 workers, by dlaunch: ranks 0, 1 (node-a)\n"
          "\n"
          "Processes that could not be killed: pid 881 (python) in state D (uninterruptible\n"
          "  sleep) in nfs_wait_bit_killable\n"
          "The job ended with exit status 143 after 10 min 0 s.\n" RULE);
    result.exit_code = 0;
    check("\nProcesses that could not be killed: pid 881 (python) in state D (uninterruptible\n"
          "  sleep) in nfs_wait_bit_killable\n");
    input.leftover = NULL;
    check("");
}
END_TEST

START_TEST(hostile_text_is_escaped)
{
    struct failure *f = failed(0, FAILURE_EXIT, 0, 0);
    f->exit_code = 3;
    strcpy(f->host, "no\x1b[2Jde");
    strcpy(f->role, "ro\nle");
    strcpy(f->stderr_tail, "\x1b]0;title\a\tx\n\xff\xc2\x9b");
    strcpy(f->message, "first\r\nsecond\n\n");
    strcpy(f->log_path, "/tmp/\x1b");
    job.name = "tr\x1b"
               "ain";
    const char *text = report_text(0);
    for (const char *p = text; *p; p++)
        ck_assert_msg((unsigned char)*p >= 0x20 || *p == '\n', "a control character in: %s", text);
    check("\n" RULE "tr\\x1bain FAILED\n"
          "\n"
          "First failure: rank 0 on no\\x1b[2Jde exited with code 3\n"
          "  worker    local rank 0, pid 4240, role ro\\x0ale\n"
          "  time      2024-05-01 12:00:00 +0000\n"
          "  error     first\\x0d\n"
          "            second\n"
          "  stderr    \\x1b]0;title\\x07 x\n"
          "            \\xff\\xc2\\x9b\n"
          "  log       /tmp/\\x1b\n"
          "\n"
          "The job ended with exit status 1 after 3 min 12 s.\n" RULE);
}
END_TEST

/* A terminal breaks lines between words, whatever its width; a file keeps them. */
START_TEST(lines_are_broken_between_words)
{
    static const char *const words =
        "  ValueError: expected a tensor of 64 features, and the loader "
        "of /a/path/that/has/more/than/forty/characters/in/one/piece.py "
        "gave another of 63";
    struct failure *f = failed(0, FAILURE_EXIT, 0, 0);
    f->exit_code = 3;
    sprintf(f->stderr_tail, "Traceback:\n%s\nend", words);
    const char *text = report_in(0, 0);
    ck_assert_ptr_nonnull(strstr(text, test_text("\n            %s\n            end\n", words)));
    for (int columns = 40; columns < 140; columns += 7) {
        text = report_in(0, columns);
        char *p = strstr(text, "  ValueError:");
        ck_assert_ptr_nonnull(p);
        for (const char *w = words; *w; w += strspn(w, " ")) { /* each word is whole */
            size_t n = strcspn(w, " ");
            p += strspn(p, " \n");
            ck_assert_msg(strncmp(p, w, n) == 0, "%d columns: %.30s is not %.30s", columns, p, w);
            p += n;
            w += n;
        }
        for (const char *line = text, *nl; (nl = strchr(line, '\n')); line = nl + 1)
            ck_assert_msg(nl - line <= columns || memchr(line, '/', (size_t)(nl - line)),
                          "%d columns: %.*s", columns, (int)(nl - line), line);
    }
}
END_TEST

START_TEST(colour_only_when_asked_for)
{
    failed(0, FAILURE_EXIT, 0, 0)->exit_code = 3;
    ck_assert_ptr_null(strchr(report_text(0), '\033'));
    ck_assert_ptr_nonnull(strstr(report_text(1), "\033[1;31mtrain.py FAILED\n\033[0m"));
}
END_TEST

static const char *hint_of(struct failure *f)
{
    struct buf b = BUF_INIT;
    words_hint(&b, f, true);
    buf_put(&b, "", 1);
    return test_keep((char *)b.data);
}

START_TEST(hints_about_the_limit_of_file_size)
{
    struct failure f;
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    failure_init(&f);
    f.kind = FAILURE_SIGNAL;
    f.signal = SIGXFSZ;
    ck_assert_str_eq(hint_of(&f), "a limit of the size of a file (ulimit -f) was reached");
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_str_eq(hint_of(&f), "possible cause: the limit of the size of a file (ulimit -f) is "
                                  "1048576 bytes on this node");
}
END_TEST

START_TEST(hints_about_the_limit_of_cpu_time)
{
    struct failure f;
    struct rlimit limit = {5000, 6000};
    failure_init(&f);
    f.kind = FAILURE_SIGNAL;
    f.signal = SIGXCPU;
    ck_assert_str_eq(hint_of(&f),
                     "a limit of CPU time (ulimit -t, or one of a scheduler) was reached");
    ck_assert_int_eq(setrlimit(RLIMIT_CPU, &limit), 0);
    ck_assert_str_eq(hint_of(&f), "possible cause: the limit of CPU time of a process (ulimit -t) "
                                  "is 5000 s on this node");
    f.signal = SIGKILL;
    ck_assert_ptr_nonnull(strstr(hint_of(&f), "(ulimit -t) is 6000 s"));
    f.oom = true;
    ck_assert_ptr_null(strstr(hint_of(&f), "ulimit"));
}
END_TEST

START_TEST(hints)
{
    struct failure *f = failed(0, FAILURE_EXIT, 0, 0);
    f->exit_code = 3;
    ck_assert_str_eq(hint_of(f), "");
    f->exit_code = 127;
    ck_assert_str_eq(hint_of(f), "a shell exits with 127 when it does not find a command");
    f->exit_code = 139;
    ck_assert_str_eq(hint_of(f), "a shell exits with 139 when SIGSEGV kills its command");
    f->exit_code = 1;
    strcpy(f->stderr_tail, "bind: Address already in use");
    ck_assert_str_eq(hint_of(f),
                     "the program tried to use a port that another process has (ss -ltnp shows "
                     "which one); a program can use MASTER_PORT only with --master_store none");
    strcpy(f->stderr_tail, "ModuleNotFoundError: No module named 'torch'");
    ck_assert_ptr_nonnull(strstr(hint_of(f), "set PYTHON_EXEC"));
    f->exit_code = 127;
    strcpy(f->stderr_tail, "./sum: error while loading shared libraries: libx.so.0: cannot open");
    ck_assert_ptr_nonnull(strstr(hint_of(f), "ldd shows which library is missing"));
    f = failed(0, FAILURE_SIGNAL, 0, 0);
    f->signal = SIGBUS;
    ck_assert_ptr_nonnull(strstr(hint_of(f), "/dev/shm was full: on this node it has "));
    f->signal = SIGSEGV;
    ck_assert_str_eq(hint_of(f), "");
}
END_TEST

START_TEST(signals_by_name)
{
    static const struct {
        int signo;
        const char *name;
    } cases[] = {{1, "SIGHUP"},     {9, "SIGKILL"},    {11, "SIGSEGV"},    {15, "SIGTERM"},
                 {29, "SIGIO"},     {31, "SIGSYS"},    {0, "signal 0"},    {32, "signal 32"},
                 {33, "signal 33"}, {34, "SIGRTMIN"},  {37, "SIGRTMIN+3"}, {63, "SIGRTMIN+29"},
                 {64, "SIGRTMAX"},  {65, "signal 65"}, {99, "signal 99"},  {-1, "signal -1"}};
    char out[24];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        ck_assert_str_eq(signal_name(cases[i].signo, out), cases[i].name);
    for (int i = 1; i < 32; i++)
        ck_assert_msg(strncmp(signal_name(i, out), "SIG", 3) == 0, "signal %d has no name", i);
}
END_TEST

START_TEST(durations)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0.0 s"},           {59.94, "59.9 s"},       {99.96, "1 min 39 s"},
                 {3600, "1 h 0 min"},    {172799, "47 h 59 min"}, {172800, "2 d 0 h"},
                 {-1, "an unknown time"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf b = BUF_INIT;
        words_duration(&b, cases[i].seconds);
        buf_put(&b, "", 1);
        ck_assert_str_eq((char *)b.data, cases[i].text);
        buf_fini(&b);
    }
}
END_TEST

static const char *member(json_t *j, const char *name)
{
    json_t *v = json_object_get(j, name);
    ck_assert_msg(v, "no %s", name);
    return test_keep(json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT));
}

START_TEST(json)
{
    struct err e = ERR_INIT;
    struct failure *f = failed(0, FAILURE_SIGNAL, 5, 1);
    f->signal = SIGKILL;
    f->oom = true;
    strcpy(f->stderr_tail, "a\n\xff"
                           "b");
    f = failed(1, FAILURE_NODE, -1, -1);
    f->node = 2;
    result.n = 2;
    result.exit_code = 137;
    strcpy(result.text, "worker 5 was killed");
    job.report_path = tmppath("report.json");
    input.log_dir = "/logs/x";
    ck_assert_msg(report_write_json(&input, &e) == 0, "%s", e.msg);
    json_t *j = json_load_file(job.report_path, 0, NULL);
    ck_assert_ptr_nonnull(j);
    static const char *const top[][2] = {
        {"schema", "1"},         {"launcher", "\"dlaunch\""}, {"name", "\"train.py\""},
        {"run_id", "\"myjob\""}, {"host", "\"node-a\""},      {"node", "0"},
        {"nnodes", "1"},         {"world_size", "4"},         {"outcome", "\"failed\""},
        {"exit_code", "137"},    {"reason", "\"failure\""},   {"text", "\"worker 5 was killed\""},
        {"restarts", "0"},       {"max_restarts", "0"},       {"log_dir", "\"/logs/x\""},
        {"leftover", "null"},    {"lost_output", "null"},     {"failures_omitted", "0"}};
    for (size_t i = 0; i < ARRAY_LEN(top); i++)
        ck_assert_str_eq(member(j, top[i][0]), top[i][1]);
    ck_assert_double_eq_tol(json_real_value(json_object_get(j, "elapsed_s")), 192.3, 1e-6);
    json_t *list = json_object_get(j, "failures"), *first = json_array_get(list, 0);
    ck_assert(json_equal(first, json_object_get(j, "first_failure")));
    static const char *const worker[][2] = {{"kind", "\"signal\""},
                                            {"rank", "5"},
                                            {"local_rank", "1"},
                                            {"node", "1"},
                                            {"host", "\"node-b\""},
                                            {"pid", "4245"},
                                            {"exit_code", "null"},
                                            {"signal", "9"},
                                            {"signal_name", "\"SIGKILL\""},
                                            {"oom", "true"},
                                            {"core_dumped", "false"},
                                            {"caused_by", "null"},
                                            {"log_path", "null"},
                                            {"message", "\"\""},
                                            {"attempt", "0"},
                                            {"role", "\"default\""},
                                            {"time", "\"2024-05-01T12:00:00.123Z\""},
                                            {"stderr_tail", "\"a\\n\\\\xffb\""}};
    for (size_t i = 0; i < ARRAY_LEN(worker); i++)
        ck_assert_str_eq(member(first, worker[i][0]), worker[i][1]);
    ck_assert_str_eq(member(json_array_get(list, 1), "kind"), "\"node\"");
    ck_assert_str_eq(member(json_array_get(list, 1), "rank"), "null");
    json_decref(j);
    /* After success too. */
    result = (struct rdzv_result){.failures = failures};
    ck_assert_int_eq(report_write_json(&input, &e), 0);
    j = json_load_file(job.report_path, 0, NULL);
    ck_assert_str_eq(member(j, "outcome"), "\"succeeded\"");
    ck_assert_str_eq(member(j, "reason"), "null");
    ck_assert_str_eq(member(j, "first_failure"), "null");
    ck_assert_str_eq(member(j, "failures"), "[]");
    json_decref(j);
    job.report_path = "/nonexistent/report.json";
    ck_assert_int_eq(report_write_json(&input, &e), -ENOENT);
    ck_assert_str_eq(e.msg, "/nonexistent/report.json: No such file or directory");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("report");
    TCase *tc = test_case(s, "report", 10);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, a_python_exception);
    tcase_add_test(tc, messages_missing_from_stderr_are_shown);
    tcase_add_loop_test(tc, the_line_that_names_the_error, 0, ARRAY_LEN(texts));
    tcase_add_test(tc, a_crash_on_another_node);
    tcase_add_test(tc, the_stop_signal_ended_none);
    tcase_add_test(tc, killed_by_someone_else);
    tcase_add_test(tc, not_even_started);
    tcase_add_test(tc, a_node_that_was_lost);
    tcase_add_test(tc, ends_without_a_failure);
    tcase_add_test(tc, hostile_text_is_escaped);
    tcase_add_test(tc, lines_are_broken_between_words);
    tcase_add_test(tc, colour_only_when_asked_for);
    tcase_add_test(tc, hints);
    tcase_add_test(tc, hints_about_the_limit_of_file_size);
    tcase_add_test(tc, hints_about_the_limit_of_cpu_time);
    tcase_add_test(tc, signals_by_name);
    tcase_add_test(tc, durations);
    tcase_add_test(tc, json);
    return s;
}

TEST_MAIN(suite)
