/* One launcher, one node: starting, ending, signals, restarts, descendants, bad input. */
#include "tests/integration/job.h"
#include "tests/lib/start.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "core/fd.h"

/* -------------------------------------------------------------------------------- start and end */

START_TEST(workers_run_and_succeed)
{
    struct proc p;
    int status =
        dlaunch_run(&p, 20, "--nproc_per_node 3 %%W env RANK env LOCAL_RANK env WORLD_SIZE");
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    expect_text(p.out, "RANK=0\n");
    expect_text(p.out, "RANK=2\n");
    expect_text(p.out, "WORLD_SIZE=3\n");
    proc_fini(&p);
}
END_TEST

START_TEST(exit_code_is_the_failed_workers)
{
    static const int codes[] = {1, 2, 3, 42, 124, 125, 126, 127, 128, 200, 255};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        struct proc p;
        int status =
            dlaunch_run(&p, 20, "--nproc_per_node 2 %%W if-rank 1 exit %d pause", codes[i]);
        ck_assert_msg(status == codes[i], "exit %d instead of %d\n%s", status, codes[i], p.err);
        expect_text(p.err, "rank 1");
        proc_fini(&p);
    }
}
END_TEST

START_TEST(exit_status_of_a_signal)
{
    static const struct {
        const char *name;
        int no;
    } signals[] = {{"SEGV", SIGSEGV}, {"KILL", SIGKILL}, {"TERM", SIGTERM}, {"ABRT", SIGABRT}};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        struct proc p;
        char name[16];
        int status =
            dlaunch_run(&p, 20, "--nproc_per_node 2 %%W if-rank 0 raise %s pause", signals[i].name);
        ck_assert_msg(status == 128 + signals[i].no, "SIG%s: exit %d\n%s", signals[i].name, status,
                      p.err);
        snprintf(name, sizeof(name), "SIG%s", signals[i].name);
        expect_text(p.err, name);
        proc_fini(&p);
    }
}
END_TEST

START_TEST(workers_that_exit_at_once)
{
    for (int round = 0; round < 5; round++) {
        struct proc p;
        int status = dlaunch_run(&p, 30, "--nproc_per_node 128 /bin/true");
        ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
        proc_fini(&p);
    }
}
END_TEST

START_TEST(descriptors_and_signals_of_a_worker_are_clean)
{
    struct proc p;
    int status = dlaunch_run(&p, 20,
                             "--nproc_per_node 1 %%W fds sigs cwd env DLAUNCH_SEGMENT_FD "
                             "env DLAUNCH_LISTEN_FD");
    ck_assert_int_eq(status, 0);
    expect_text(p.out, "SigBlk:\t0000000000000000");
    expect_text(p.out, "SigIgn:\t0000000000000000");
    /* 0, 1, 2 and the two that the environment names. */
    int a, b, seg, lis;
    ck_assert_int_eq(sscanf(strstr(p.out, "fds"), "fds 0 1 2 %d %d\n", &a, &b), 2);
    ck_assert_int_eq(sscanf(strstr(p.out, "DLAUNCH_SEGMENT_FD"), "DLAUNCH_SEGMENT_FD=%d", &seg), 1);
    ck_assert_int_eq(sscanf(strstr(p.out, "DLAUNCH_LISTEN_FD"), "DLAUNCH_LISTEN_FD=%d", &lis), 1);
    ck_assert((a == seg && b == lis) || (a == lis && b == seg));
    proc_fini(&p);
}
END_TEST

START_TEST(stdin_goes_to_rank_0)
{
    struct proc p;
    char *argv[] = {
        build_path("dlaunch"), "--nproc_per_node", "2", build_path("tests/worker"), "stdin", NULL};
    proc_start(&p, argv, NULL, PROC_STDIN);
    ck_assert_int_eq(write(p.in_fd, "for rank 0\n", 11), 11);
    close(p.in_fd);
    p.in_fd = -1;
    ck_assert_int_eq(proc_wait(&p, 20), 0);
    expect_text(p.out, "for rank 0\n");
    expect_text(p.out, "EOF\n");
    proc_fini(&p);
}
END_TEST

/* The parent has closed some of the descriptors 0 to 2; files that the launcher opens do not get
 * these numbers. */
START_TEST(closed_standard_descriptors)
{
    for (int closed = 1; closed < 8; closed++) {
        struct proc p;
        char *line = test_text("exec %s sh -c 'echo out; echo err >&2; exit 3'%s%s%s",
                               build_path("dlaunch"), closed & 1 ? " <&-" : "",
                               closed & 2 ? " >&-" : "", closed & 4 ? " 2>&-" : "");
        int status = proc_run(&p, ARGV("sh", "-c", line), NULL, 20);
        ck_assert_msg(status == 3, "%s: exit %d\n%s", line, status, p.err);
        ck_assert_str_eq(p.out, closed & 2 ? "" : "out\n");
        ck_assert_msg(closed & 4 || strstr(p.err, "exited with code 3"), "%s", p.err);
        proc_fini(&p);
    }
}
END_TEST

/* The memory that the workers share counts as a file. */
START_TEST(limited_file_size)
{
    struct proc p;
    char *line = test_text("ulimit -f 4096; exec %s --nproc_per_node 2 sh -c 'echo hi'",
                           build_path("dlaunch"));
    int status = proc_run(&p, ARGV("sh", "-c", line), NULL, 20);
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_str_eq(p.out, "hi\nhi\n");
    proc_fini(&p);
}
END_TEST

START_TEST(local_rank_in_arguments)
{
    struct proc p;
    int status =
        dlaunch_run(&p, 20, "--nproc_per_node 2 %%W args --log=${local_rank} $x ${local_rank}");
    ck_assert_int_eq(status, 0);
    expect_text(p.out, "--log=0\n");
    expect_text(p.out, "--log=1\n");
    expect_text(p.out, "$x\n");
    proc_fini(&p);
}
END_TEST

/* ------------------------------------------------------------------------------------- restarts */

START_TEST(restart_until_it_works)
{
    struct proc p;
    int status =
        dlaunch_run(&p, 30,
                    "--nproc_per_node 3 --max_restarts 3 %%W append %%T/starts if-attempt 0 "
                    "wait-lines 3 %%T/starts if-attempt 0 if-rank 1 exit 7 if-attempt 1 "
                    "wait-lines 6 %%T/starts if-attempt 1 if-rank 2 raise KILL if-attempt 0 pause "
                    "if-attempt 1 pause print done");
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_int_eq(count_lines(tmppath("starts")), 9);
    expect_text(p.err, "rank 1");
    expect_text(p.err, "SIGKILL");
    expect_text(p.err, "restart");
    proc_fini(&p);
}
END_TEST

START_TEST(restarts_run_out)
{
    struct proc p;
    int status = dlaunch_run(&p, 30,
                             "--nproc_per_node 2 --max_restarts 2 %%W append %%T/starts "
                             "if-attempt 0 wait-lines 2 %%T/starts "
                             "if-attempt 1 wait-lines 4 %%T/starts "
                             "if-attempt 2 wait-lines 6 %%T/starts if-rank 1 exit 9 pause");
    ck_assert_int_eq(status, 9);
    ck_assert_int_eq(count_lines(tmppath("starts")), 6);
    proc_fini(&p);
}
END_TEST

START_TEST(worker_policy_restarts_only_the_failed_one)
{
    struct proc p;
    int status = dlaunch_run(&p, 30,
                             "--nproc_per_node 3 --max_restarts 2 --restart_policy worker "
                             "%%W append %%T/starts if-attempt 0 if-rank 1 exit 5 "
                             "if-rank 1 append %%T/again wait %%T/again");
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    ck_assert_int_eq(count_lines(tmppath("starts")), 4);
    proc_fini(&p);
}
END_TEST

/* -------------------------------------------------------------------------------------- signals */

START_TEST(sigterm_is_forwarded_once_and_ends_the_job)
{
    struct proc p;
    test_no_leak_check(); /* signals that arrive during the check can block it for ever */
    dlaunch_start(&p, NULL, "--nproc_per_node 2 %%W trap TERM %%T/term append %%T/up pause");
    wait_lines(tmppath("up"), 2, 10);
    proc_kill(&p, SIGTERM);
    wait_lines(tmppath("term"), 2, 10);
    signal_until_end(&p, SIGTERM, 10); /* a later one kills: the workers ignore the first */
    ck_assert_int_eq(proc_wait(&p, 10), 128 + SIGTERM);
    ck_assert_int_eq(count_lines(tmppath("term")), 2);
    proc_fini(&p);
}
END_TEST

/* As at the end of a session, or when systemd ends all processes of a service: one request to stop
 * reaches the agent twice. The workers keep their grace. */
START_TEST(one_stop_request_sent_twice)
{
    if (start_skips("it signals the agent itself"))
        return;
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--verbose --nproc_per_node 2 %%W trap TERM %%T/term trap HUP %%T/term "
                  "append %%T/up wait %%T/go append %%T/saved");
    wait_lines(tmppath("up"), 2, 10);
    pid_t agent = agent_of(&p);
    kill(agent, SIGSTOP); /* so that both come together, however busy the machine is */
    kill(agent, SIGTERM);
    kill(agent, SIGHUP);
    kill(agent, SIGCONT);
    proc_expect_err(&p, "as well: the same request", 10);
    wait_lines(tmppath("term"), 2, 10);
    write_file(tmppath("go"), "");
    int status = proc_wait(&p, 10);
    ck_assert_msg(status == 128 + SIGTERM || status == 128 + SIGHUP, "%d", status);
    ck_assert_int_eq(count_lines(tmppath("saved")), 2);
    expect_no_text(p.err, "killing");
    proc_fini(&p);
}
END_TEST

START_TEST(grace_ends_with_sigkill)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nproc_per_node 2 --shutdown_timeout 1 %%W ignore TERM append %%T/up pause");
    wait_lines(tmppath("up"), 2, 10);
    uint64_t start = mono_ns();
    proc_kill(&p, SIGTERM);
    ck_assert_int_eq(proc_wait(&p, 10), 128 + SIGTERM);
    ck_assert_uint_ge(mono_ns() - start, 900000000u);
    proc_fini(&p);
}
END_TEST

/* No kill is reported when all workers have ended by themselves. */
START_TEST(no_kill_is_reported_if_all_end)
{
    struct proc p;
    int status = dlaunch_run(&p, 10, "--shutdown_timeout 0 %%W exit 3");
    ck_assert_int_eq(status, 3);
    expect_no_text(p.err, "did not stop");
    proc_fini(&p);
}
END_TEST

/* A client sees nothing but the end of its connection. One line for each reason and round. */
START_TEST(the_store_logs_why_it_closes_a_connection)
{
    static const char *const says[][2] = {
        {"\\1\\1\\0\\0\\0\\0\\0\\0\\0k\\0\\0\\20\\4\\0\\0\\0\\0",
         "a value longer than 64 MiB (68157440 bytes)\n"},
        {"\\1\\1\\40\\0\\0\\0\\0\\0\\0", "a key longer than 8 KiB (8193 bytes)\n"},
        {"\\6\\1\\0\\2\\0\\0\\0\\0\\0", "more than 131072 keys in one call (131073 keys)\n"},
        {"\\1\\1\\0\\0\\0\\0\\0\\0\\0k\\1\\0\\0\\0\\0\\0\\0\\0v\\4\\1\\0\\0\\0\\0\\0\\0\\0k"
         "\\1\\0\\0\\0\\0\\0\\0\\0",
         "arithmetic on a value that is not a number\n"},
        {"\\143", "an unknown command\n"}};
    struct proc p;
    char *script = test_text("%s", "");
    for (size_t i = 0; i < ARRAY_LEN(says); i++)
        script = test_text("%sfor i in 1 2; do exec 3<>/dev/tcp/127.0.0.1/$MASTER_PORT; "
                           "printf '\\0\\316\\367\\205\\074%s' >&3; cat <&3; done 2>/dev/null\n",
                           script, says[i][0]);
    write_file(tmppath("client"),
               test_text("%sexit $((1 - TORCHELASTIC_RESTART_COUNT))\n", script));
    int status = dlaunch_run(&p, 20, "--max_restarts 1 bash %s", tmppath("client"));
    ck_assert_msg(status == 0, "exit %d\n%s", status, p.err);
    for (size_t i = 0; i < ARRAY_LEN(says); i++) {
        const char *at = p.err;
        int lines = 0;
        for (; (at = strstr(at, says[i][1])); at++, lines++)
            ;
        ck_assert_msg(lines == 2, "%d times: %s\nin: %s", lines, says[i][1], p.err);
    }
    expect_text(p.err, "dlaunch: the workers' store hung up on 127.0.0.1:");
    proc_fini(&p);
}
END_TEST

START_TEST(user_signals_are_passed_on)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nproc_per_node 2 %%W trap USR1 %%T/usr1 trap USR2 %%T/usr2 "
                  "append %%T/up pause");
    wait_lines(tmppath("up"), 2, 10);
    proc_kill(&p, SIGUSR1);
    wait_lines(tmppath("usr1"), 2, 10);
    proc_kill(&p, SIGUSR2);
    wait_lines(tmppath("usr2"), 2, 10);
    proc_kill(&p, SIGTERM);
    ck_assert_int_eq(proc_wait(&p, 10), 128 + SIGTERM);
    proc_fini(&p);
}
END_TEST

START_TEST(ignored_hangup_stays_ignored)
{
    struct proc p;
    char *argv[] = {"nohup",
                    build_path("dlaunch"),
                    build_path("tests/worker"),
                    "append",
                    tmppath("up"),
                    "wait",
                    tmppath("go"),
                    NULL};
    proc_start(&p, argv, NULL, 0);
    wait_lines(tmppath("up"), 1, 10);
    proc_kill(&p, SIGHUP);
    write_file(tmppath("go"), "");
    ck_assert_int_eq(proc_wait(&p, 10), 0);
    proc_fini(&p);
}
END_TEST

START_TEST(wall_clock_timeout)
{
    struct proc p;
    int status = dlaunch_run(&p, 10, "--nproc_per_node 2 --timeout 500ms %%W pause");
    ck_assert_int_eq(status, 124);
    expect_text(p.err, "--timeout");
    proc_fini(&p);
}
END_TEST

/* Times that do not fit into 64 bits of milliseconds. */
START_TEST(wall_clock_timeout_of_ages)
{
    struct proc p;
    dlaunch_start(&p, NULL, "--timeout 1e17 --shutdown_timeout 1e17 %%W append %%T/up wait %%T/go");
    wait_lines(tmppath("up"), 1, 10);
    write_file(tmppath("go"), "");
    ck_assert_int_eq(proc_wait(&p, 10), 0);
    proc_fini(&p);
}
END_TEST

/* ---------------------------------------------------------------------------------- descendants */

static bool no_strays(void *marker)
{
    return count_processes_with_env(marker) == 0;
}

START_TEST(nothing_is_left_behind)
{
    static const char *const ends[] = {"exit 0", "exit 3", "raise SEGV"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct proc p;
        char *marker = test_text("STRAY_MARK=%d.%zu", getpid(), i), *env[] = {marker, NULL};
        dlaunch_start(&p, env, "--nproc_per_node 3 %%W child setsid-child daemon %s", ends[i]);
        proc_wait(&p, 20);
        wait_until(no_strays, marker, 1, "every descendant is gone when dlaunch is");
        proc_fini(&p);
    }
}
END_TEST

static bool four_processes(void *marker)
{
    return count_processes_with_env(marker) ==
           4; /* more: a daemon's parent is still about to end */
}

START_TEST(a_live_workers_daemon_is_left_alone)
{
    if (start_skips("it counts the processes of dlaunch"))
        return;
    struct proc p;
    char *marker = test_text("STRAY_MARK=%d.live", getpid()), *env[] = {marker, NULL};
    /* Rank 0 ends; rank 1 and its daemon go on. */
    dlaunch_start(&p, env,
                  "--nproc_per_node 2 %%W if-rank 0 exit 0 daemon append %%T/up wait %%T/go");
    wait_lines(tmppath("up"), 1, 10);
    wait_until(four_processes, marker, 10, "dlaunch's two processes, rank 1 and its daemon");
    write_file(tmppath("go"), "");
    ck_assert_int_eq(proc_wait(&p, 10), 0);
    ck_assert_int_eq(count_processes_with_env(marker), 0);
    proc_fini(&p);
}
END_TEST

static bool is_gone(void *path)
{
    return kill(atoi(text_of_file(path)), 0) < 0;
}

/* Processes that a worker leaves in its group end with it. Processes outside of the group stay
 * while other workers run, whatever their environment contains. */
START_TEST(only_the_group_of_an_ended_worker_ends)
{
    static const char script[] =
        "daemon() { setsid sh -c 'echo x >>up; until test -e go; do sleep 0.01; done; "
        "echo x >>out'; }\n"
        "if test $LOCAL_RANK = 0; then\n"
        "    RANK=1 daemon &\n"
        "    daemon &\n"
        "    until test $(wc -l <out) = 3; do sleep 0.01; done\n"
        "else\n"
        "    daemon &\n"
        "    sleep 1000 & echo $! >child.new; mv child.new child\n"
        "    until test $(wc -l <up) = 3; do sleep 0.01; done\n"
        "fi\n";
    struct proc p;
    write_file(tmppath("script"), script);
    write_file(tmppath("out"), "");
    write_file(tmppath("up"), "");
    ck_assert_int_eq(chdir(tmpdir()), 0);
    dlaunch_start(&p, NULL, "--nproc_per_node 2 sh %%T/script");
    wait_lines(tmppath("child"), 1, 10);
    wait_until(is_gone, tmppath("child"), 10, "the end of what is in the group");
    write_file(tmppath("go"), "");
    wait_lines(tmppath("out"), 3, 10);
    expect_status(&p, 0, 10);
    proc_fini(&p);
}
END_TEST

/* 10 s after the last process of a round was sent SIGKILL, the next stop must not think that it
 * could not be killed. */
static bool time_is_over(void *end_ns)
{
    return mono_ns() > *(uint64_t *)end_ns;
}

START_TEST(a_stop_long_after_a_round)
{
    struct proc waits, done[2];
    int port = free_port();
    dlaunch_start(&waits, NULL, "--max_restarts 1 --restart_backoff 300 %%W exit 3");
    for (int i = 0; i < 2; i++)
        dlaunch_start(&done[i], NULL,
                      "--nnodes 2 --node_rank %d --master_addr 127.0.0.1 --master_port %d %%W "
                      "append %%T/up if-rank 1 wait %%T/go if-rank 1 exit 3",
                      i, port);
    proc_expect_err(&waits, "restart 1 of 1", 10);
    wait_lines(tmppath("up"), 2, 10);
    uint64_t end = mono_ns() + UINT64_C(11000000000);
    wait_until(time_is_over, &end, 20, "11 s");
    proc_kill(&waits, SIGTERM);
    expect_status(&waits, 143, 10);
    write_file(tmppath("go"), ""); /* the other node has been through for long */
    for (int i = 0; i < 2; i++) {
        expect_status(&done[i], 3, 20);
        expect_no_text(done[i].err, "could not be killed");
        proc_fini(&done[i]);
    }
    expect_no_text(waits.err, "could not be killed");
    proc_fini(&waits);
}
END_TEST

/* ------------------------------------------------------------------------------------ bad input */

START_TEST(bad_input_is_one_line_and_exit_2)
{
    static const struct {
        const char *line;
        int status;
        const char *says;
    } table[] = {
        {"--nproc_per_nodes 2 /bin/true", 2, "did you mean --nproc_per_node"},
        {"--nproc_per_node two /bin/true", 2, "two"},
        {"--nproc_per_node 0 /bin/true", 2, "0"},
        {"--nproc_per_node -3 /bin/true", 2, "-3"},
        {"--nnodes 3:2 /bin/true", 2, "3:2"},
        {"--nnodes x /bin/true", 2, "x"},
        {"--nnodes 2 --node_rank 2 /bin/true", 2, "node_rank"},
        {"--max_restarts many /bin/true", 2, "many"},
        {"--rdzv_backend zookeeper /bin/true", 2, "zookeeper"},
        {"--rdzv_endpoint host:99999 /bin/true", 2, "99999"},
        {"--redirects 7 /bin/true", 2, "7"},
        {"--conf /no/such.ini /bin/true", 2, "/no/such.ini"},
        {"--log_dir /dev/null/x --redirects 3 /bin/true", 2, "/dev/null/x"},
        {"--interface nosuch0 --nnodes 2 /bin/true", 2, "nosuch0"},
        {"", 2, "program"},
        {"/no/such/program", 127, "/no/such/program"},
        {"no-such-program-anywhere", 127, "no-such-program-anywhere"},
        {"/etc/passwd", 126, "/etc/passwd"},
        {"/tmp", 126, "/tmp"},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        struct proc p;
        int status = dlaunch_run(&p, 10, "%s", table[i].line);
        ck_assert_msg(status == table[i].status, "dlaunch %s: exit %d, not %d\n%s", table[i].line,
                      status, table[i].status, p.err);
        expect_text(p.err, table[i].says);
        char *newline = strchr(p.err, '\n');
        ck_assert_msg(newline && newline[1] == '\0', "dlaunch %s: more than one line:\n%s",
                      table[i].line, p.err);
        expect_no_text(p.out, "\n");
        proc_fini(&p);
    }
}
END_TEST

static bool has_ended(void *arg)
{
    struct proc *p = arg;
    siginfo_t si = {.si_pid = 0};
    return waitid(P_PID, (id_t)p->pid, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid;
}

static bool ended(void *arg)
{
    proc_kill(arg, SIGTERM);
    return has_ended(arg);
}

/* The job is over, and nobody reads what it has printed. */
START_TEST(a_signal_ends_the_wait_for_a_reader)
{
    struct proc p;
    test_no_leak_check(); /* signals that arrive during the check can block it for ever */
    dlaunch_start(&p, NULL, "--nproc_per_node 1 %%W spew 100000 text append %%T/done");
    wait_lines(tmppath("done"), 1, 30);
    wait_until(ended, &p, 20, "the launcher waits for a reader that does not read");
    proc_wait(&p, 20);
    proc_fini(&p);
}
END_TEST

/* Starts a launcher whose standard error is a full pipe that nobody reads. Returns the pipe's read
 * end. */
static int start_unread(struct proc *p, const char *words)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    char full[4096] = {0};
    while (write(fds[1], full, sizeof(full)) > 0)
        ;
    ck_assert_int_eq(fcntl(fds[1], F_SETFL, 0), 0);
    char *line = test_text("exec %s %s 2>&%d", build_path("dlaunch"), words, fds[1]);
    ck_assert_int_eq(fcntl(fds[1], F_SETFD, 0), 0);
    proc_start(p, ARGV("sh", "-c", line), NULL, 0);
    close(fds[1]);
    return fds[0];
}

/* The same, and --timeout bounds it: for the output, for more of it than is kept, and for the
 * report of a failure. */
START_TEST(the_timeout_ends_the_wait_for_a_reader)
{
    struct proc out, much, report;
    const char *done = tmppath("failed");
    int end = start_unread(/* first: dash knows descriptors below 10 only */
                           &report, test_text("--timeout 4s %s append %s exit 3",
                                              build_path("tests/worker"), done));
    dlaunch_start(&out, NULL, "--timeout 4s %%W spew 100000 text append %%T/done");
    dlaunch_start(&much, NULL, "--timeout 4s %%W spew 9999999 text");
    wait_lines(tmppath("done"), 1, 30);
    wait_lines(done, 1, 30);
    wait_until(has_ended, &out, 20, "the launcher gives up its reader");
    wait_until(has_ended, &much, 20, "the launcher gives up the reader of much");
    wait_until(has_ended, &report, 20, "the launcher gives up the report");
    proc_wait(&out, 20);
    proc_wait(&much, 20);
    proc_wait(&report, 20);
    proc_fini(&out);
    proc_fini(&much);
    proc_fini(&report);
    close(end);
}
END_TEST

/* The job has failed, and nobody reads the report that the launcher writes. */
START_TEST(a_signal_ends_the_report)
{
    struct proc p;
    const char *done = tmppath("done");
    test_no_leak_check(); /* as above */
    int end = start_unread(&p, test_text("%s append %s exit 3", build_path("tests/worker"), done));
    wait_lines(done, 1, 30);
    wait_until(ended, &p, 20, "the launcher waits for a reader that does not read");
    proc_wait(&p, 20);
    proc_fini(&p);
    close(end);
}
END_TEST

/* The report cannot be written, which nobody reads either. */
START_TEST(one_signal_ends_a_job_with_blocked_messages)
{
    struct proc p;
    const char *done = tmppath("done"), *dir = tmppath("dir");
    const char *line = test_text("--report %s/report %s append %s sleep 1000", dir,
                                 build_path("tests/worker"), done);
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    int end = start_unread(&p, line);
    wait_lines(done, 1, 30);
    ck_assert_int_eq(rmdir(dir), 0);
    proc_kill(&p, SIGTERM);
    ck_assert_int_eq(proc_wait(&p, 30), 128 + SIGTERM);
    proc_fini(&p);
    close(end);
}
END_TEST

/* The children of a process: `dead` or not. */
static int count_children(pid_t pid, bool dead)
{
    char *list = text_of_file(test_text("/proc/%d/task/%d/children", pid, pid)), stat[512], state;
    int n = 0, used;
    for (pid_t child; sscanf(list, "%d%n", &child, &used) == 1; list += used) {
        if (fd_read_file(AT_FDCWD, test_text("/proc/%d/stat", child), stat, sizeof(stat)) < 0)
            continue;
        ck_assert_int_eq(sscanf(strrchr(stat, ')'), ") %c", &state), 1);
        n += dead == (state == 'Z');
    }
    return n;
}

static bool has_reaped(void *guardian)
{
    pid_t pid = *(pid_t *)guardian;
    return count_children(pid, true) == 0 && count_children(pid, false) == 2;
}

/* Orphans come to the first process of a container: one that ends is reaped, and one that is alive
 * at the end is nothing that the job has left. */
START_TEST(the_first_process_of_a_container)
{
    static const char script[] = "($1 wait up; $1 append orphans wait dead & "
                                 "$1 append orphans pause &) & exec $2 $1 append up wait go";
    struct proc p;
    ck_assert_int_eq(chdir(tmpdir()), 0);
    if (proc_run(&p, ARGV("unshare", "-pf", "--mount-proc", "true"), NULL, 10) != 0) {
        test_skip("cannot make a PID namespace: %s", p.err);
        return;
    }
    proc_fini(&p);
    proc_start(&p,
               ARGV("unshare", "-pf", "--mount-proc", "sh", "-c", (char *)script, "sh",
                    build_path("tests/worker"), build_path("dlaunch")),
               NULL, 0);
    wait_lines(tmppath("orphans"), 2, 20);
    pid_t guardian = agent_of(&p); /* unshare's only child */
    write_file(tmppath("dead"), "");
    wait_until(has_reaped, &guardian, 10, "the dead orphan is reaped");
    write_file(tmppath("go"), "");
    expect_status(&p, 0, 20);
    ck_assert_str_eq(p.err, "");
    proc_fini(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("single");
    TCase *tc = test_case(s, "start", 90);
    tcase_add_test(tc, workers_run_and_succeed);
    tcase_add_test(tc, exit_code_is_the_failed_workers);
    tcase_add_test(tc, exit_status_of_a_signal);
    tcase_add_test(tc, workers_that_exit_at_once);
    tcase_add_test(tc, descriptors_and_signals_of_a_worker_are_clean);
    tcase_add_test(tc, stdin_goes_to_rank_0);
    tcase_add_test(tc, closed_standard_descriptors);
    tcase_add_test(tc, limited_file_size);
    tcase_add_test(tc, local_rank_in_arguments);
    tcase_add_test(tc, the_store_logs_why_it_closes_a_connection);
    tc = test_case(s, "restart", 60);
    tcase_add_test(tc, restart_until_it_works);
    tcase_add_test(tc, restarts_run_out);
    tcase_add_test(tc, worker_policy_restarts_only_the_failed_one);
    tc = test_case(s, "signals", 60);
    tcase_add_test(tc, sigterm_is_forwarded_once_and_ends_the_job);
    tcase_add_test(tc, one_stop_request_sent_twice);
    tcase_add_test(tc, grace_ends_with_sigkill);
    tcase_add_test(tc, no_kill_is_reported_if_all_end);
    tcase_add_test(tc, user_signals_are_passed_on);
    tcase_add_test(tc, ignored_hangup_stays_ignored);
    tcase_add_test(tc, wall_clock_timeout);
    tcase_add_test(tc, wall_clock_timeout_of_ages);
    tcase_add_test(tc, a_signal_ends_the_wait_for_a_reader);
    tcase_add_test(tc, a_signal_ends_the_report);
    tcase_add_test(tc, the_timeout_ends_the_wait_for_a_reader);
    tcase_add_test(tc, one_signal_ends_a_job_with_blocked_messages);
    tc = test_case(s, "descendants", 60);
    tcase_add_test(tc, nothing_is_left_behind);
    tcase_add_test(tc, a_live_workers_daemon_is_left_alone);
    tcase_add_test(tc, only_the_group_of_an_ended_worker_ends);
    tcase_add_test(tc, a_stop_long_after_a_round);
    tcase_add_test(tc, the_first_process_of_a_container);
    tc = test_case(s, "bad input", 60);
    tcase_add_test(tc, bad_input_is_one_line_and_exit_2);
    return s;
}

TEST_MAIN(suite)
