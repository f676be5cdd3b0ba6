/* The daemon, and heads that reach this host by it. tests/multihost/test_ssh.c has several hosts.
 */
#include "tests/integration/job.h"

#include <fcntl.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "core/fd.h"

static struct proc g_daemon;
static int g_port;

static void write_token(const char *name, const char *text)
{
    write_file(tmppath(name), text);
    ck_assert_int_eq(chmod(tmppath(name), 0600), 0);
}

static void start_daemon(void)
{
    char *env[] = {test_text("XDG_CONFIG_HOME=%s", tmppath("config")), NULL};
    write_token("token", "a token of the tests' own\n");
    if (!g_port)
        g_port = free_port();
    dlaunch_start(&g_daemon, env, "--serve --serve_port %d --token_file %%T/token --verbose",
                  g_port);
    proc_expect_err(&g_daemon, test_text("waiting for jobs at 127.0.0.1:%d", g_port), 20);
}

static void head(struct proc *p, const char *line)
{
    char *env[] = {test_text("XDG_CONFIG_HOME=%s", tmppath("config")),
                   test_text("PATH=%s:%s", tmppath("bin"), getenv("PATH")), NULL};
    char *options = test_text("--serve_port %d --token_file %s", g_port, tmppath("token"));
    proc_start(p, dlaunch_argv(options, line), env, PROC_STDIN);
}

#define BY_DAEMON "--launch_agent daemon "

static void run_head(struct proc *p, int status, const char *line)
{
    head(p, line);
    expect_status(p, status, 60);
}

static void expect_stop(int signo)
{
    proc_kill(&g_daemon, signo);
    expect_status(&g_daemon, 0, 30);
    proc_fini(&g_daemon);
}

/* ---------------------------------------------------------------------------------------- its jobs
 */

START_TEST(a_job_runs)
{
    struct proc p;
    start_daemon();
    run_head(&p, 0,
             BY_DAEMON "-H localhost:2 --verbose -x GREETING=hello %W env RANK env GREETING");
    for (int i = 0; i < 2; i++)
        expect_text(p.out, test_text("RANK=%d\n", i));
    ck_assert_int_eq(count_text(p.out, "GREETING=hello\n"), 2);
    expect_text(p.err, "localhost: reached by its daemon\n");
    proc_fini(&p);
    proc_expect_err(&g_daemon, "has ended with status 0\n", 20);
    expect_text(g_daemon.err, "a job from 127.0.0.1: process ");
    expect_stop(SIGTERM);
}
END_TEST

/* With --console job the command shows lines that are folded over all hosts. */
START_TEST(one_console_for_all_hosts)
{
    struct proc p;
    start_daemon();
    run_head(&p, 0,
             BY_DAEMON "-H localhost:2,127.0.0.1:2 --console job %W append %T/begin "
                       "wait-lines 4 %T/begin print ready append %T/end wait-lines 4 %T/end");
    ck_assert_str_eq(p.out, "[0-3]: ready\n");
    proc_fini(&p);
    expect_stop(SIGTERM);
}
END_TEST

/* Whether the line of a worker that waits to be folded comes before what dlaunch says of it. */
static bool own_line_comes_behind(const char *hosts)
{
    struct proc p;
    run_head(&p, 0,
             test_text(BY_DAEMON "-H %s --fold on --max_restarts 1 %%W if-attempt 1 exit 0 "
                                 "if-rank 1 err why if-rank 1 exit 7 pause",
                       hosts));
    const char *own = strstr(p.err, "dlaunch: worker 1 (local rank 1) on ");
    ck_assert_msg(own && strstr(own, "restart 1 of 1\n"), "%s", p.err);
    const char *why = strstr(p.err, "[1]: why\n");
    ck_assert_msg(why != NULL, "%s", p.err);
    bool behind = why < own;
    proc_fini(&p);
    return behind;
}

START_TEST(own_lines_come_behind_folded_ones)
{
    start_daemon();
    ck_assert(own_line_comes_behind("localhost:2"));
    int tries = 1; /* both hosts say the same, and the one that shows the output may be slow */
    while (!own_line_comes_behind("localhost:2,127.0.0.1:2 --console job"))
        ck_assert_int_lt(tries++, 10);
    expect_stop(SIGTERM);
}
END_TEST

START_TEST(a_failure_is_reported)
{
    struct proc p;
    start_daemon();
    run_head(&p, 7,
             BY_DAEMON "-H localhost:2 --report %T/r %W if-rank 1 err why if-rank 1 exit 7 pause");
    expect_words(p.err, "First failure: rank 1 on");
    expect_text(p.err, "stderr    why");
    json_t *j = json_of_file(tmppath("r"));
    ck_assert_int_eq(json_number(j, "exit_code"), 7);
    json_decref(j);
    proc_fini(&p);
    expect_stop(SIGINT);
}
END_TEST

/* More than the buffers on the way hold, both ways. */
START_TEST(input_and_output_come_whole)
{
    struct proc p;
    char block[4096];
    start_daemon();
    head(&p, BY_DAEMON "-H localhost:2 sh -c 'cat; seq 100000'");
    memset(block, 'x', sizeof(block) - 1);
    block[sizeof(block) - 1] = '\n';
    for (int i = 0; i < 512; i++) {
        ck_assert_int_eq(write(p.in_fd, block, sizeof(block)), sizeof(block));
        proc_poll(&p);
    }
    close_fd(&p.in_fd);
    expect_status(&p, 0, 60);
    ck_assert_int_eq(count_text(p.out, "xxxxxxxxxxxx\n"), 512);
    ck_assert_int_eq(count_text(p.out, "\n100000\n"), 2);
    ck_assert_int_eq(count_text(p.out, "\n"), 512 + 200000);
    proc_fini(&p);
    expect_stop(SIGTERM);
}
END_TEST

/* A job that ends while input is under way to it: its last words arrive all the same. */
START_TEST(unread_input_costs_no_output)
{
    struct proc p;
    char block[4096] = "";
    start_daemon();
    for (int i = 0; i < 10; i++) {
        head(&p, BY_DAEMON "-H localhost sh -c 'seq 20000; exit 3'");
        for (int k = 0; k < 16; k++)
            ck_assert_int_eq(write(p.in_fd, block, sizeof(block)), sizeof(block));
        expect_status(&p, 3, 60);
        expect_text(p.out, "\n20000\n");
        expect_text(p.err, "exited with code 3");
        proc_fini(&p);
    }
    expect_stop(SIGTERM);
}
END_TEST

/* -------------------------------------------------------------------------------------------- ends
 */

static char *g_mark;

static bool nothing_is_left(void *arg)
{
    (void)arg;
    return count_processes_with_env(g_mark) == 0;
}

static void start_marked(struct proc *p)
{
    g_mark = test_text("SERVE_MARK=%s", tmpdir());
    head(p, test_text(BY_DAEMON "-H localhost:2 -x %s %%W append %%T/up wait %%T/go env RANK",
                      g_mark));
    wait_lines(tmppath("up"), 2, 30);
    ck_assert_int_ge(count_processes_with_env(g_mark), 2);
}

START_TEST(a_killed_head_ends_its_job)
{
    struct proc p;
    start_daemon();
    start_marked(&p);
    uint64_t from = mono_ns();
    proc_kill(&p, SIGKILL);
    wait_until(nothing_is_left, NULL, 20, "nothing is left of the job");
    ck_assert_double_lt((double)(mono_ns() - from) / 1e9, test_seconds(1));
    proc_fini(&p);
    proc_expect_err(&g_daemon, "has ended with status ", 20);
    expect_stop(SIGTERM);
}
END_TEST

START_TEST(a_stopped_daemon_stops_its_jobs)
{
    struct proc p;
    start_daemon();
    start_marked(&p);
    expect_stop(SIGTERM);
    expect_status(&p, 128 + SIGTERM, 30);
    expect_text(p.err, "received SIGTERM");
    ck_assert(nothing_is_left(NULL));
    proc_fini(&p);
}
END_TEST

START_TEST(jobs_do_not_need_the_daemon)
{
    struct proc p, killed;
    start_daemon();
    start_marked(&p);
    proc_kill(&g_daemon, SIGKILL);
    killed = g_daemon;
    while (!killed.exited) { /* its job holds its standard error */
        proc_poll(&killed);
        test_poll_pause();
    }
    start_daemon(); /* at the same port */
    write_file(tmppath("go"), "");
    expect_status(&p, 0, 30);
    expect_text(p.out, "RANK=1\n");
    proc_fini(&p);
    expect_status(&killed, 128 + SIGKILL, 20);
    proc_fini(&killed);
    expect_stop(SIGTERM);
}
END_TEST

/* ------------------------------------------------------------------------------- who may not come
 */

START_TEST(another_token)
{
    struct proc p;
    start_daemon();
    write_token("token", "another token of the tests\n");
    run_head(&p, 1, BY_DAEMON "-H localhost %W append %T/up");
    expect_text(p.err, test_text("localhost: its daemon, at port %d, cannot be used: it has "
                                 "another token\n",
                                 g_port));
    proc_expect_err(&g_daemon, "refused a connection from 127.0.0.1: it has another token\n", 10);
    ck_assert_int_lt(access(tmppath("up"), F_OK), 0);
    proc_fini(&p);
    expect_stop(SIGTERM);
}
END_TEST

static int call_daemon(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)g_port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

/* How long until the daemon closes the connection, in seconds. */
static double seconds_to_end(int fd)
{
    char byte[64];
    uint64_t from = mono_ns();
    struct pollfd f = {fd, POLLIN, 0};
    while (poll(&f, 1, 30000) > 0 && read(fd, byte, sizeof(byte)) > 0)
        ;
    return (double)(mono_ns() - from) / 1e9;
}

START_TEST(strangers_are_dropped)
{
    enum { SILENT = 200 };
    struct proc p;
    int fds[SILENT], garbage;
    start_daemon();
    garbage = call_daemon();
    ck_assert_int_eq(write(garbage, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    ck_assert_double_lt(seconds_to_end(garbage), test_seconds(1));
    close(garbage);
    expect_text(
        (proc_expect_err(&g_daemon, "refused a connection from 127.0.0.1", 10), g_daemon.err),
        "it does not speak as dlaunch does\n");
    for (int i = 0; i < SILENT; i++)
        fds[i] = call_daemon();
    run_head(&p, 0, BY_DAEMON "-H localhost %W env RANK"); /* among them all */
    expect_text(p.out, "RANK=0\n");
    proc_fini(&p);
    ck_assert_double_lt(seconds_to_end(fds[0]), test_seconds(1)); /* for those behind it */
    double last = seconds_to_end(fds[SILENT - 1]);
    ck_assert_double_lt(last, test_seconds(5));
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    ck_assert_int_eq(count_text(g_daemon.err, "refused"), 1);
    expect_stop(SIGTERM);
}
END_TEST

START_TEST(two_at_one_port)
{
    struct proc p;
    start_daemon();
    run_head(&p, 2, "--serve");
    ck_assert_str_eq(p.err, test_text("dlaunch: port %d: pid %d (dlaunch) listens there already; "
                                      "--serve_port names another port\n",
                                      g_port, (int)g_daemon.pid));
    proc_fini(&p);
    expect_stop(SIGHUP);
}
END_TEST

static const struct {
    const char *line, *says;
} wrong[] = {
    {"--serve --serve_addr nowhere", "--serve_addr: 'nowhere' is not an address of this host, nor "
                                     "all\n"},
    {"--serve --serve_addr 192.0.2.1", "cannot listen on 192.0.2.1:"},
    {"--serve --token_file %T/open", "is accessible to other users (mode 0644)"},
    {"--serve --token_file %T/none", "No such file or directory\n"},
    {"--serve --token_file %T/short", "the token has only 3 bytes; at least 16 are needed\n"},
    {BY_DAEMON "-H ann@localhost true", "a daemon starts jobs of its own user"},
};

START_TEST(bad_input)
{
    struct proc p;
    char *env[] = {test_text("XDG_CONFIG_HOME=%s", tmppath("config")), NULL};
    write_token("token", "a token of the tests' own\n");
    write_token("short", "abc");
    write_file(tmppath("open"), "a token of the tests' own\n");
    ck_assert_int_eq(chmod(tmppath("open"), 0644), 0);
    dlaunch_start(&p, env, "--serve_port %d --token_file %%T/token %s", free_port(),
                  wrong[_i].line);
    expect_status(&p, 2, 20);
    expect_text(p.err, wrong[_i].says);
    ck_assert_int_eq(count_text(p.err, "\n"), 1);
    proc_fini(&p);
}
END_TEST

/* ------------------------------------------------------------------------------------------ or ssh
 */

/* Writes a program that stands in for ssh: it runs the command on this host. */
static void write_ssh(void)
{
    ck_assert_int_eq(mkdir(tmppath("bin"), 0700), 0);
    write_file(tmppath("bin/ssh"), "#!/bin/sh\nfor last; do :; done\nexec sh -c \"$last\"\n");
    ck_assert_int_eq(chmod(tmppath("bin/ssh"), 0700), 0);
}

/* 127.1 is this host, which no check of its name shows. */
START_TEST(the_daemon_or_ssh)
{
    struct proc p;
    write_ssh();
    g_port = free_port();
    write_token("token", "a token of the tests' own\n");
    run_head(&p, 0, "-H 127.1 --verbose %W env RANK");
    expect_text(p.err, "127.1: not by its daemon: Connection refused\n");
    expect_text(p.err, "127.1: reached by ssh\n");
    expect_text(p.out, "RANK=0\n");
    proc_fini(&p);
    start_daemon();
    run_head(&p, 0, "-H 127.1 --verbose %W env RANK");
    expect_text(p.err, "127.1: reached by its daemon\n");
    proc_fini(&p);
    run_head(&p, 0, "-H 127.1 --verbose --launch_agent ssh %W env RANK");
    expect_text(p.err, "127.1: reached by ssh\n");
    expect_no_text(p.err, "daemon");
    proc_fini(&p);
    run_head(&p, 0, "-H ann@127.1 --verbose %W env RANK");
    expect_text(p.err, "127.1: reached by ssh\n");
    proc_fini(&p);
    proc_kill(&g_daemon, SIGSTOP);
    run_head(&p, 0, "-H 127.1 --verbose %W env RANK");
    expect_text(p.err, "127.1: not by its daemon: it does not answer within 0.5 s\n");
    proc_fini(&p);
    proc_kill(&g_daemon, SIGCONT);
    write_token("token", "another token of the tests\n");
    run_head(&p, 0, "-H 127.1 --verbose %W env RANK");
    expect_text(p.err, "127.1: not by its daemon: it has another token\n");
    proc_fini(&p);
    expect_stop(SIGQUIT);
}
END_TEST

/* Without a named token, head and daemon use the user's own file. */
START_TEST(the_own_token)
{
    struct proc p, d;
    char *env[] = {test_text("XDG_CONFIG_HOME=%s", tmppath("config")), NULL};
    int port = free_port();
    ck_assert_int_eq(mkdir(tmppath("config"), 0700), 0);
    dlaunch_start(&p, env, "--serve_port %d " BY_DAEMON "-H localhost %%W env RANK", port);
    expect_status(&p, 2, 20);
    expect_text(p.err, "--launch_agent daemon needs the token of the daemons");
    expect_text(p.err, "config/dlaunch/token: No such file or directory\n");
    proc_fini(&p);
    dlaunch_start(&d, env, "--serve_port %d --serve", port);
    proc_expect_err(&d, "waiting for jobs", 20);
    expect_text(d.err, "created a job token in");
    dlaunch_start(&p, env, "--serve_port %d " BY_DAEMON "-H localhost %%W env RANK", port);
    expect_status(&p, 0, 20);
    expect_text(p.out, "RANK=0\n");
    proc_fini(&p);
    proc_kill(&d, SIGTERM);
    expect_status(&d, 0, 20);
    proc_fini(&d);
}
END_TEST

/* The name, in the background, with a pid file. */
START_TEST(dlaunchd)
{
    struct proc p;
    char *env[] = {test_text("XDG_CONFIG_HOME=%s", tmppath("config")), NULL};
    g_port = free_port();
    write_token("token", "a token of the tests' own\n");
    ck_assert_int_eq(symlink(build_path("dlaunch"), tmppath("dlaunchd")), 0);
    int status = proc_run(&p,
                          ARGV(tmppath("dlaunchd"), "--daemon", "--pid_file", tmppath("pid"),
                               "--log_file", tmppath("log"), "--serve_port",
                               test_text("%d", g_port), "--token_file", tmppath("token")),
                          env, 20);
    ck_assert_msg(status == 0, "%d\n%s", status, p.err);
    proc_fini(&p);
    run_head(&p, 0, BY_DAEMON "-H localhost %W env RANK");
    expect_text(p.out, "RANK=0\n");
    proc_fini(&p);
    pid_t pid = (pid_t)atoi(text_of_file(tmppath("pid")));
    ck_assert_int_gt(pid, 1);
    kill(pid, SIGTERM);
    for (uint64_t end = mono_ns() + 20000000000u; access(tmppath("pid"), F_OK) == 0;) {
        ck_assert(mono_ns() < end);
        test_poll_pause();
    }
    expect_text(text_of_file(tmppath("log")), "received SIGTERM: no more jobs; ");
}
END_TEST

static bool is_there(void *path)
{
    return access(path, F_OK) == 0;
}

/* The job is over, and nobody reads its last output: a signal ends the head all the same. */
START_TEST(a_head_that_waits_for_a_reader_is_stopped)
{
    struct proc p;
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    dlaunch_start_into(&p, ends[1],
                       "-H localhost --report %T/report sh -c 'head -c 70000 /dev/zero | tr "
                       "\\\\0 x'");
    wait_until(is_there, (void *)tmppath("report"), 30, "there is no report");
    kill(p.pid, SIGTERM);
    ck_assert_int_eq(proc_wait(&p, 10), 128 + SIGTERM);
    close(ends[0]);
    close(ends[1]);
    proc_fini(&p);
}
END_TEST

/* ------------------------------------------------------- the process between head and launcher */

static bool has_line(void *path)
{
    return is_there(path) && strchr(text_of_file(path), '\n');
}

/* Starts a head that reaches this host by a program of the test's: `shell` runs "$cmd", whose
 * process id is in %T/pid. Returns that of the process that the command becomes, when the job's
 * worker has written %T/up. */
static pid_t start_between(struct proc *p, const char *shell, const char *job)
{
    char *agent = tmppath("agent");
    write_file(agent, test_text("#!/bin/sh\nshift\ncmd=\"echo \\$\\$ > %s; $*\"\n%s\n",
                                tmppath("pid"), shell));
    ck_assert_int_eq(chmod(agent, 0755), 0);
    dlaunch_start(p, NULL, "--launch_agent %%T/agent -H elsewhere %s", job);
    wait_until(is_there, tmppath("up"), 30, "the worker has begun");
    wait_until(has_line, tmppath("pid"), 30, "the process is known");
    return (pid_t)atoi(text_of_file(tmppath("pid")));
}

static bool has_no_child(void *pid)
{
    const char *path = test_text("/proc/%d/task/%d/children", *(pid_t *)pid, *(pid_t *)pid);
    char *text = access(path, F_OK) == 0 ? read_file(path) : NULL;
    bool none = text && !*text;
    free(text);
    return none;
}

/* Whether this is dlaunch, with a thread besides its first one. */
static bool is_writing(void *pid)
{
    char *status = text_of_file(test_text("/proc/%d/status", *(pid_t *)pid));
    return strstr(status, "Name:\tdl-host\n") && strstr(status, "\nThreads:\t2\n");
}

static bool is_gone(void *pid)
{
    return kill(*(pid_t *)pid, 0) < 0;
}

/* The job is over, and the head takes nothing of what it has said last. */
START_TEST(a_head_that_takes_nothing)
{
    struct proc p;
    pid_t pid = start_between(&p, "sh -c \"$cmd\" | { dd bs=4096 count=16; sleep 50; }",
                              "sh -c 'echo > %T/up; head -c 200000 /dev/zero | tr \\\\0 x'");
    wait_until(has_no_child, &pid, 30, "the launcher has ended");
    ck_assert(!is_gone(&pid));
    kill(pid, SIGTERM);
    wait_until(is_gone, &pid, 15, "the process between head and launcher ends");
    proc_fini(&p);
}
END_TEST

/* The server of TMPDIR does not answer while the program is copied there, and the process is told
 * to end, or its head is gone. */
START_TEST(a_program_that_cannot_be_copied)
{
    struct proc p;
    const char *tmp = tmppath("remote");
    if (test_skip_sanitized("the fake calls must be in front of a sanitizer, which comes first"))
        return;
    mkdir(tmp, 0700);
    pid_t pid =
        start_between(&p,
                      test_text("export TMPDIR=%s FAIL_SILENT=%s/dlaunch.XXXXXX LD_PRELOAD=%s\n"
                                "exec 3<&0\ntouch %s\nsh -c \"$cmd\" <&3 & wait",
                                tmp, tmp, build_path("tests/fake/failing_calls.so"), tmppath("up")),
                      "--bcast %W exit 0");
    wait_until(is_writing, &pid, 30, "the program is being copied");
    kill(_i == 0 ? pid : p.pid, _i == 0 ? SIGTERM : SIGKILL);
    wait_until(is_gone, &pid, 15, "the process between head and launcher ends");
    proc_fini(&p);
}
END_TEST

/* The launcher has said its last words, and does not end. */
START_TEST(a_launcher_that_does_not_end)
{
    struct proc p;
    if (test_skip_sanitized("the fake calls must be in front of a sanitizer, which comes first"))
        return;
    pid_t pid = start_between(&p,
                              test_text("export LD_PRELOAD=%s FAIL_END=%s\nexec sh -c \"$cmd\"",
                                        build_path("tests/fake/failing_calls.so"), tmppath("end")),
                              "%W append %T/up exit 0");
    wait_until(is_there, tmppath("end"), 30, "the launcher is about to end");
    kill(pid, SIGTERM);
    wait_until(is_gone, &pid, 15, "the process between head and launcher ends");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("serve");
    TCase *tc = test_case(s, "jobs", 90);
    tcase_add_test(tc, a_head_that_waits_for_a_reader_is_stopped);
    tcase_add_test(tc, a_head_that_takes_nothing);
    tcase_add_test(tc, a_launcher_that_does_not_end);
    tcase_add_loop_test(tc, a_program_that_cannot_be_copied, 0, 2);
    tcase_add_test(tc, a_job_runs);
    tcase_add_test(tc, one_console_for_all_hosts);
    tcase_add_test(tc, own_lines_come_behind_folded_ones);
    tcase_add_test(tc, a_failure_is_reported);
    tcase_add_test(tc, input_and_output_come_whole);
    tcase_add_test(tc, unread_input_costs_no_output);
    tc = test_case(s, "ends", 90);
    tcase_add_test(tc, a_killed_head_ends_its_job);
    tcase_add_test(tc, a_stopped_daemon_stops_its_jobs);
    tcase_add_test(tc, jobs_do_not_need_the_daemon);
    tc = test_case(s, "strangers", 90);
    tcase_add_test(tc, another_token);
    tcase_add_test(tc, strangers_are_dropped);
    tcase_add_test(tc, two_at_one_port);
    tcase_add_loop_test(tc, bad_input, 0, ARRAY_LEN(wrong));
    tc = test_case(s, "choice", 90);
    tcase_add_test(tc, the_daemon_or_ssh);
    tcase_add_test(tc, the_own_token);
    tcase_add_test(tc, dlaunchd);
    return s;
}

TEST_MAIN(suite)
