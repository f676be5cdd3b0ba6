/* Each call of a launcher that can fail fails once: the job succeeds all the same, or ends with a
 * line that names the error; no process and no file is left, no launcher hangs, no worker has a
 * wrong rank. tests/fake/failing_calls.c makes the calls fail.
 *
 *   FAILING_CALLS=N   at most N calls of each kind (default 6), spread over all; 0: each
 *   FAILING_KIND=read only that kind */
#include "tests/integration/job.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>

#include "core/fd.h"
#include "tests/fake/failing_calls.h"

static const char *const kinds[] = {FAILING_CALLS(FAILING_NAME)};
static _Atomic uint32_t *g_count;
static char *g_counters, *g_marker;
static int g_tries;

static void setup_counters(void)
{
    g_counters = tmppath("counters");
    int fd = open(g_counters, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(ftruncate(fd, FAILING_KINDS * sizeof(*g_count)), 0);
    g_count =
        mmap(NULL, FAILING_KINDS * sizeof(*g_count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(g_count, MAP_FAILED);
    close(fd);
    ck_assert_int_eq(mkdir(tmppath("tmp"), 0700), 0);
    ck_assert_int_eq(mkdir(tmppath("run"), 0700), 0); /* of the control sockets; stays */
    g_marker = test_text("STRAY_MARK=%d.failing", getpid());
}

static bool no_strays(void *arg)
{
    (void)arg;
    return count_processes_with_env(g_marker) == 0;
}

static void start(struct proc *p, const char *what, const char *line)
{
    char *env[] = {test_text("LD_PRELOAD=%s", build_path("tests/fake/failing_calls.so")),
                   test_text("FAIL_COUNTERS=%s", g_counters),
                   test_text("TMPDIR=%s", tmppath("tmp")),
                   test_text("XDG_RUNTIME_DIR=%s", tmppath("run")),
                   g_marker,
                   (char *)what,
                   NULL};
    dlaunch_start(p, env, "%s", line);
}

/* Counts the entries of dir, except hidden ones and the folder of control sockets, which stays. */
static int entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.' && strncmp(e->d_name, "dlaunch-", 8) != 0;
    closedir(d);
    return n;
}

/* libuv ends the agent where it can tell nobody. */
static void check_status(const struct proc *p, const char *what, int status)
{
    bool gave_up = status == 134 && strstr(p->err, "dlaunch: the event loop cannot go on: ");
    ck_assert_msg(gave_up || (status != 139 && status != 134 && status != 135),
                  "%s: crashed (%d)\n%s", what, status, p->err);
    ck_assert_msg(status == 0 || strstr(p->err, "dlaunch: ") || strstr(p->err, " FAILED"),
                  "%s: exit %d, and not a word: \"%s\"", what, status, p->err);
}

/* The end of one try, whatever failed. */
static void check_end(struct proc *p, const char *what, int size)
{
    int status = proc_wait(p, 20);
    check_status(p, what, status);
    for (int r = 0; r < size; r++) {
        int n = count_text(p->out, test_text("rank %d of %d\n", r, size));
        bool may_lack = status != 0;
        ck_assert_msg(n <= 1 && (may_lack || n == 1), "%s: exit %d, %d times rank %d:\n%s%s", what,
                      status, n, r, p->out, p->err);
    }
    ck_assert_msg(count_text(p->out, "rank ") == count_text(p->out, test_text(" of %d\n", size)),
                  "%s: wrong ranks:\n%s", what, p->out);
}

static void check_nothing_left(const char *what)
{
    wait_until(no_strays, NULL, 5, what);
    ck_assert_msg(entries(tmppath("tmp")) == 0, "%s: files are left in %s", what, tmppath("tmp"));
}

#define HELLO "sh -c 'echo rank $RANK of $WORLD_SIZE; sleep 0.05'"

static void one_launcher(const char *what)
{
    struct proc p;
    memset((void *)g_count, 0, FAILING_KINDS * sizeof(*g_count));
    start(&p, what, "--nproc_per_node 2 " HELLO);
    check_end(&p, what, 2);
    proc_fini(&p);
    check_nothing_left(what);
    g_tries++;
}

/* The calls that fail are those of launcher `victim`. */
static void two_launchers(const char *what, int victim)
{
    struct proc p[2];
    int port = free_port();
    memset((void *)g_count, 0, FAILING_KINDS * sizeof(*g_count));
    for (int i = 0; i < 2; i++)
        start(&p[i], i == victim ? what : "FAIL_CALL",
              test_text("--nnodes 2 --node_rank %d --master_port %d --rdzv_conf "
                        "join_timeout=5,keep_alive_interval=0.2,keep_alive_max_attempt=15 %s",
                        i, port, i == victim ? HELLO : "sh -c 'sleep 0.05'"));
    for (int k = 0; k < 2; k++) {
        int i = k ? !victim : victim;
        check_status(&p[i], what, proc_wait(&p[i], 20));
    }
    char *right = test_text("rank %d of 2\n", victim); /* again in another round, perhaps */
    ck_assert_msg(strlen(p[victim].out) == (size_t)count_text(p[victim].out, right) * strlen(right),
                  "%s: wrong ranks:\n%s", what, p[victim].out);
    for (int i = 0; i < 2; i++)
        proc_fini(&p[i]);
    check_nothing_left(what);
    g_tries++;
}

static uint32_t step_for(uint32_t n)
{
    const char *most = getenv("FAILING_CALLS");
    uint32_t want = most ? (uint32_t)atoi(most) : 6;
    return want == 0 || n <= want ? 1 : (n + want - 1) / want;
}

static bool is_wanted(int kind)
{
    const char *only = getenv("FAILING_KIND");
    return !only || strcmp(only, kinds[kind]) == 0;
}

START_TEST(every_call_fails_once)
{
    if (test_skip_sanitized("their own calls would fail"))
        return;
    setup_counters();
    one_launcher("FAIL_CALL");
    uint32_t made = g_count[_i];
    for (uint32_t n = 1; is_wanted(_i) && n <= made; n += step_for(made))
        one_launcher(test_text("FAIL_CALL=%s:%u", kinds[_i], n));
    printf("%-8s %5u calls of one launcher, %4d tries\n", kinds[_i], made, g_tries);
}
END_TEST

/* Want of memory: what workers print is all there, on the console and in the files, or the launcher
 * says why not and does not end with 0. */
START_TEST(no_line_is_lost_for_want_of_memory)
{
    static const char *const names[] = {"stdout", "stderr"};
    if (test_skip_sanitized("their own calls would fail"))
        return;
    setup_counters();
    uint32_t made = 1;
    for (uint32_t n = 0; is_wanted(FAILING_malloc) && n <= made; n += n ? step_for(made) : 1) {
        char *what = test_text("FAIL_CALL=malloc:%u", n), *logs = tmppath(test_text("logs%u", n));
        struct proc p;
        memset((void *)g_count, 0, FAILING_KINDS * sizeof(*g_count));
        start(&p, what,
              test_text("--nproc_per_node 2 --tee 3 --log_dir %s sh -c 'echo $RANK: stdout; echo "
                        "$RANK: stderr >&2; head -c 200000 /dev/zero | tr \"\\0\" x; printf end'",
                        logs));
        int status = proc_wait(&p, 20);
        check_status(&p, what, status);
        for (int r = 0; r < 2 && status == 0; r++) {
            for (int i = 0; i < 2; i++) {
                char *line = test_text("%d: %s\n", r, names[i]);
                char *pattern = test_text("%s/*/attempt_0/%d/%s.log", logs, r, names[i]);
                glob_t found;
                ck_assert_msg(count_text(i ? p.err : p.out, test_text("[default%d]:%s", r, line)) ==
                                  1,
                              "%s: not shown: %s\n%s", what, line, p.err);
                ck_assert_msg(glob(pattern, 0, NULL, &found) == 0, "%s: no %s", what, pattern);
                char *kept = text_of_file(found.gl_pathv[0]);
                ck_assert_uint_eq(strlen(kept), strlen(line) + (i ? 0 : 200003));
                globfree(&found);
            }
            ck_assert_int_eq(count_text(p.out, "xend"), 2);
        }
        made = n ? made : g_count[FAILING_malloc];
        proc_fini(&p);
        check_nothing_left(what);
        g_tries++;
    }
    printf("malloc   %5u calls of one launcher that tees, %4d tries\n", made, g_tries);
}
END_TEST

/* The calls by which launchers meet. */
START_TEST(calls_between_nodes_fail_once)
{
    static const int met[] = {FAILING_socket, FAILING_bind,  FAILING_listen, FAILING_connect,
                              FAILING_accept, FAILING_epoll, FAILING_read,   FAILING_write};
    int kind = met[_i / 2], victim = _i % 2;
    if (test_skip_sanitized("their own calls would fail"))
        return;
    setup_counters();
    two_launchers(test_text("FAIL_CALL=%s:0", kinds[kind]), victim);
    uint32_t made = g_count[kind]; /* of both: more than one of them makes */
    for (uint32_t n = 1; is_wanted(kind) && n <= made; n += step_for(made) * 2)
        two_launchers(test_text("FAIL_CALL=%s:%u", kinds[kind], n), victim);
    printf("%-8s %5u calls of two launchers, %4d tries in node %d\n", kinds[kind], made, g_tries,
           victim);
}
END_TEST

/* Whatever the third node of 2:3 is refused, the other two end well: its trouble is its own.
 * Returns how many calls of the kind it has made. */
static uint32_t three_launchers(const char *what, int kind)
{
    struct proc p[3];
    int port = free_port();
    char *env[] = {test_text("TMPDIR=%s", tmppath("tmp")),
                   test_text("XDG_RUNTIME_DIR=%s", tmppath("run")), g_marker, NULL};
    memset((void *)g_count, 0, FAILING_KINDS * sizeof(*g_count));
    for (int i = 0; i < 3; i++) {
        char *line = test_text("--nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d "
                               "--nproc_per_node 2 --redirects 3 --log_dir %s --rdzv_conf "
                               "is_host=%d,last_call_timeout=1,join_timeout=20,"
                               "keep_alive_interval=0.2,keep_alive_max_attempt=15 sh -c 'sleep "
                               "0.2'",
                               port, tmppath(test_text("logs%d", i)), i == 0);
        if (i == 2)
            start(&p[i], what, line);
        else
            dlaunch_start(&p[i], env, "%s", line);
    }
    for (int i = 2; i >= 0; i--) {
        int status = proc_wait(&p[i], 30);
        check_status(&p[i], what, status);
        ck_assert_msg(i == 2 || status == 0, "%s: node %d: exit %d\n%s\nnode 2:\n%s", what, i,
                      status, p[i].err, p[2].err);
    }
    for (int i = 0; i < 3; i++)
        proc_fini(&p[i]);
    check_nothing_left(what);
    g_tries++;
    return g_count[kind];
}

START_TEST(calls_of_one_node_cost_that_node)
{
    static const int starts[] = {FAILING_pipe,    FAILING_memfd, FAILING_mkdir, FAILING_socket,
                                 FAILING_eventfd, FAILING_open,  FAILING_bind,  FAILING_listen};
    int kind = starts[_i];
    if (test_skip_sanitized("their own calls would fail"))
        return;
    setup_counters();
    uint32_t made = three_launchers(test_text("FAIL_CALL=%s:0", kinds[kind]), kind);
    for (uint32_t n = 1; is_wanted(kind) && n <= made; n += step_for(made) * 2)
        three_launchers(test_text("FAIL_CALL=%s:%u", kinds[kind], n), kind);
    printf("%-8s %5u calls of one node of three, %4d tries\n", kinds[kind], made, g_tries);
}
END_TEST

/* A byte at a time, and interrupted again and again. */
START_TEST(short_and_interrupted)
{
    static const char *const pieces[] = {"FAIL_SHORT=1", "FAIL_SHORT=7"};
    if (test_skip_sanitized("their own calls would fail"))
        return;
    setup_counters();
    struct proc p;
    start(&p, pieces[_i], "--nproc_per_node 2 " HELLO);
    expect_status(&p, 0, 20);
    check_end(&p, pieces[_i], 2);
    proc_fini(&p);
    two_launchers(pieces[_i], 0);
    two_launchers(pieces[_i], 1);
    start(&p, pieces[_i],
          test_text("--nproc_per_node 2 --max_restarts 1 --tee 3 --log_dir %s %s if-attempt 0 "
                    "if-rank 1 exit 3 if-attempt 1 exit 0 pause",
                    tmppath("logs"), build_path("tests/worker")));
    expect_status(&p, 0, 20);
    expect_text(p.err, "exited with code 3; restart 1 of 1");
    proc_fini(&p);
}
END_TEST

/* Each number behind `key` in a text of JSON, with `check` and the one before it. */
static int each_number(const char *text, const char *key, void (*check)(double before, double v))
{
    double before = 0, v;
    int n = 0;
    for (const char *p = text; (p = strstr(p, key)); before = v, n++) {
        p += strlen(key);
        ck_assert_msg(sscanf(p, " %lf", &v) == 1, "%.40s", p); /* null is none */
        check(n ? before : v, v);
    }
    return n;
}

static void does_not_go_back(double before, double v)
{
    ck_assert_msg(v >= before && v < before + 60, "%f after %f", v, before);
}

static void is_short(double before, double v)
{
    (void)before;
    ck_assert_msg(v >= 0 && v < 60, "%f", v);
}

/* The wall clock jumps by an hour, forward and back, at every reading. */
START_TEST(the_wall_clock_jumps)
{
    if (test_skip_sanitized("the fake clock must be in front of a sanitizer, which comes first"))
        return;
    setup_counters();
    struct proc p[2];
    int port = free_port();
    for (int i = 0; i < 2; i++)
        start(&p[i], i ? "FAIL_CLOCK=3600" : "FAIL_CLOCK",
              test_text("--nnodes 2 --node_rank %d --master_port %d --max_restarts 1 --rdzv_conf "
                        "join_timeout=20,keep_alive_interval=0.2,keep_alive_max_attempt=15 "
                        "--events %s --report %s %s append %s if-attempt 0 sleep 3 if-attempt 0 "
                        "if-rank 1 exit 3 if-attempt 0 pause",
                        i, port, tmppath(i ? "events1" : "events0"),
                        tmppath(i ? "report1" : "report0"), build_path("tests/worker"),
                        tmppath("up")));
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 0, 30);
        expect_no_text(p[i].err, "lost");
        expect_text(p[i].err, "worker 1 (local rank 0)");
        const char *events = test_keep(read_file(tmppath(i ? "events1" : "events0")));
        const char *report = test_keep(read_file(tmppath(i ? "report1" : "report0")));
        ck_assert_int_gt(each_number(events, "\"timestamp\":", does_not_go_back), 10);
        ck_assert_int_eq(each_number(report, "\"elapsed_s\":", is_short), 3); /* job, 2 rounds */
        proc_fini(&p[i]);
    }
    ck_assert_int_eq(count_lines(tmppath("up")), 4);
}
END_TEST

static bool is_asked(void *path)
{
    return access(path, F_OK) == 0 && strstr(text_of_file(path), "no-such-host.invalid\n");
}

/* A launcher that is asked to stop does not wait for a name server that does not answer. */
START_TEST(a_name_server_that_is_silent)
{
    if (test_skip_sanitized("the fake resolver must be in front of a sanitizer, which comes first"))
        return;
    setup_counters();
    struct proc p;
    start(&p, test_text("FAIL_NAMES=%s", tmppath("asked")),
          "--nnodes 2 --node_rank 1 --rdzv_conf join_timeout=600 --rdzv_endpoint "
          "no-such-host.invalid:29500 true");
    wait_until(is_asked, tmppath("asked"), 10, "the name server is asked");
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 10);
    expect_text(p.err, "received SIGTERM");
    proc_fini(&p);
    check_nothing_left("a silent name server");
}
END_TEST

/* Runs a job whose file server does not answer for `file` and what is below it, `when` there is a
 * file of this name (NULL: always); within the time of a launcher that waits for no file server. */
static void run_beside(struct proc *p, const char *file, const char *when, const char *options,
                       int status)
{
    setup_counters();
    char *env[] = {test_text("LD_PRELOAD=%s", build_path("tests/fake/failing_calls.so")),
                   test_text("FAIL_COUNTERS=%s", g_counters),
                   test_text("FAIL_SILENT=%s", file),
                   when ? test_text("FAIL_SILENT_WHEN=%s", when) : "FAIL_SILENT_WHEN",
                   test_text("KUBEFLOW_TRAINER_SERVER_URL=http://127.0.0.1:%d/", free_port()),
                   g_marker,
                   NULL};
    dlaunch_start(p, env, "%s", options);
    expect_status(p, status, 25);
    check_nothing_left("a silent file server");
}

/* The job fails and is started again. */
static void fail_beside(const char *file, const char *options)
{
    struct proc p;
    if (test_skip_sanitized("the fake calls must be in front of a sanitizer, which comes first"))
        return;
    write_file(file, "");
    run_beside(&p, file, NULL, test_text("--max_restarts 2 %s %%W exit 3", options), 3);
    expect_text(p.err, "2 of 2 restarts used");
    proc_fini(&p);
}

/* Files of a job that become silent when its workers have begun; what it then says of them. */
static const struct {
    const char *silent, *options, *program;
    int status;
    const char *says;
} g_later[] = {
    {"logs", "--redirects 3 --log_dir %T/logs", "exit 3", 3,
     "the file server of the error file does not answer"},
    {"logs", "--max_restarts 1 --redirects 3 --log_dir %T/logs", "exit 3", 125,
     "its file server does not answer"},
    {"logs", "--log_dir %T/logs", "exit 0", 0, ""},
    {"report", "--report %T/report", "exit 3", 3, "/report: its file server does not answer"},
    {"message", "--pod_message %T/message", "exit 3", 3,
     "/message: its file server does not answer"},
    {"prom", "--metrics_file %T/prom", "exit 0", 0, ""},
    {"events", "--events %T/events", "exit 3", 3,
     "/events: its file server does not answer; the last events are missing"},
};

START_TEST(files_that_become_silent)
{
    struct proc p;
    if (test_skip_sanitized("the fake calls must be in front of a sanitizer, which comes first"))
        return;
    mkdir(tmppath("logs"), 0700);
    mkdir(tmppath("prom"), 0700);
    run_beside(&p, tmppath(g_later[_i].silent), tmppath("down"),
               test_text("%s %%W append %%T/down %s", g_later[_i].options, g_later[_i].program),
               g_later[_i].status);
    expect_text(p.err, g_later[_i].says);
    proc_fini(&p);
}
END_TEST

static bool is_there(void *path)
{
    return access(path, F_OK) == 0;
}

/* A request to stop ends the waits at the end of a job, of six seconds each. */
START_TEST(a_signal_ends_the_wait_for_a_file_server)
{
    struct proc p;
    if (test_skip_sanitized("the fake calls must be in front of a sanitizer, which comes first"))
        return;
    setup_counters();
    mkdir(tmppath("dead"), 0700);
    char *env[] = {test_text("LD_PRELOAD=%s", build_path("tests/fake/failing_calls.so")),
                   test_text("FAIL_COUNTERS=%s", g_counters),
                   test_text("FAIL_SILENT=%s", tmppath("dead")),
                   test_text("FAIL_SILENT_WHEN=%s", tmppath("down")),
                   test_text("FAIL_SILENT_SAYS=%s", tmppath("asked")),
                   g_marker,
                   NULL};
    dlaunch_start(&p, env,
                  "--report %%T/dead/report --pod_message %%T/dead/message %%W append %%T/down "
                  "exit 3");
    wait_until(is_there, tmppath("asked"), 20, "the file server is asked");
    uint64_t start = mono_ns();
    proc_kill(&p, SIGTERM);
    expect_status(&p, 3, 25);
    double waited = (double)(mono_ns() - start) / 1e9;
    printf("a signal ended the waits for a file server after %.1f s\n", waited);
    ck_assert(waited < test_seconds(5));
    proc_fini(&p);
    check_nothing_left("a silent file server and a signal");
}
END_TEST

START_TEST(a_progress_file_that_is_silent)
{
    const char *file = tmppath("progress");
    fail_beside(file, test_text("--progress_file %s", file));
}
END_TEST

START_TEST(a_checkpoint_that_is_silent)
{
    const char *file = tmppath("checkpoint");
    fail_beside(file, test_text("--ledger --checkpoint_mark %s", file));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("failing_calls");
    TCase *tc = test_case(s, "fail", 3600);
    tcase_add_loop_test(tc, every_call_fails_once, 0, FAILING_KINDS);
    tcase_add_loop_test(tc, calls_between_nodes_fail_once, 0, 16);
    tcase_add_loop_test(tc, calls_of_one_node_cost_that_node, 0, 8);
    tcase_add_test(tc, no_line_is_lost_for_want_of_memory);
    tc = test_case(s, "short", 120);
    tcase_add_loop_test(tc, short_and_interrupted, 0, 2);
    tc = test_case(s, "clock", 60);
    tcase_add_test(tc, the_wall_clock_jumps);
    tcase_add_test(tc, a_name_server_that_is_silent);
    tc = test_case(s, "files", 60);
    tcase_add_test(tc, a_progress_file_that_is_silent);
    tcase_add_test(tc, a_checkpoint_that_is_silent);
    tcase_add_loop_test(tc, files_that_become_silent, 0, ARRAY_LEN(g_later));
    tcase_add_test(tc, a_signal_ends_the_wait_for_a_file_server);
    return s;
}

TEST_MAIN(suite)
