/* Rows of tests/faults.tsv that one machine can show: workers and launchers in trouble, a bad
 * connection between two nodes, too little of something. */
#include "tests/integration/job.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "agent/process/cgroup.h"
#include "tests/lib/freezer.h"
#include "tests/lib/proxy.h"

/* Silence is death after 3 s. */
#define TWO_NODES                                                                   \
    "--nnodes 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --max_restarts 2 " \
    "--rdzv_conf is_host=%d,keep_alive_interval=0.2,keep_alive_max_attempt=15,"     \
    "join_timeout=30,last_call_timeout=0.1 "

static double seconds_since(uint64_t start_ns)
{
    return (double)(mono_ns() - start_ns) / 1e9;
}

/* The process id in line `n` of a file of the worker's `append`. */
static pid_t pid_in(const char *path, int n)
{
    int pid = 0;
    char *line = text_of_file(path);
    while (n-- > 0)
        line = strchr(line, '\n') + 1;
    ck_assert_int_eq(sscanf(line, "%*d %*d %*d %d", &pid), 1);
    return pid;
}

static bool no_strays(void *marker)
{
    return count_processes_with_env(marker) == 0;
}

/* -------------------------------------------------------------------------------------- workers */

START_TEST(killed_from_outside)
{
    struct proc p;
    dlaunch_start(&p, NULL, "--nproc_per_node 2 --max_restarts 1 %%W append %%T/up pause");
    wait_lines(tmppath("up"), 2, 10);
    kill(pid_in(tmppath("up"), 0), SIGKILL);
    wait_lines(tmppath("up"), 4, 5);
    uint64_t start = mono_ns();
    kill(pid_in(tmppath("up"), 2), SIGKILL);
    expect_status(&p, 137, 5);
    ck_assert_double_lt(seconds_since(start), test_seconds(1));
    expect_text(p.err, "was killed by SIGKILL; restart 1 of 1");
    expect_words(p.err, "killed by another process, not by dlaunch");
    proc_fini(&p);
}
END_TEST

START_TEST(killed_for_want_of_memory)
{
    char own[512];
    if (!cgroup_own("memory", own, sizeof(own), NULL)) {
        test_skip("no cgroup v1 hierarchy of memory");
        return;
    }
    char *dir = test_text("%s/dlaunch-test-faults.%d", own, (int)getpid());
    /* tail keeps a last line without end. */
    char *line = test_text("cd %s && echo 96M >memory.limit_in_bytes && echo 0 >cgroup.procs && "
                           "cd / && exec %s --nproc_per_node 2 tail /dev/zero",
                           dir, build_path("dlaunch"));
    struct proc p;
    if (mkdir(dir, 0755) < 0) {
        test_skip("cannot create %s", dir);
        return;
    }
    int status = proc_run(&p, ARGV("sh", "-c", line), NULL, 30);
    rmdir(dir);
    ck_assert_msg(status == 137, "exit %d\n%s", status, p.err);
    expect_words(p.err, "was killed by SIGKILL, out of memory");
    expect_words(p.err, "out of memory: the kernel killed the worker");
    proc_fini(&p);
}
END_TEST

/* A stopped worker acts on no signal but two. */
START_TEST(a_stopped_worker_is_ended)
{
    struct proc p;
    dlaunch_start(&p, NULL, "--nproc_per_node 2 %%W append %%T/up if-rank 1 raise STOP pause");
    wait_lines(tmppath("up"), 2, 10);
    uint64_t start = mono_ns();
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 10);
    ck_assert_double_lt(seconds_since(start), test_seconds(2)); /* not the 30 s of grace */
    expect_text(p.err, "received SIGTERM: stopping 2 workers");
    proc_fini(&p);
}
END_TEST

START_TEST(a_worker_that_cannot_be_killed)
{
    struct proc p;
    struct freezer f;
    if (!freezer_init(&f)) {
        test_skip("no cgroup v1 freezer");
        return;
    }
    dlaunch_start(&p, NULL, "--nproc_per_node 2 --shutdown_timeout 0.2 %%W append %%T/up pause");
    wait_lines(tmppath("up"), 2, 10);
    pid_t pid = pid_in(tmppath("up"), 0);
    freezer_freeze(&f, pid);
    uint64_t start = mono_ns();
    proc_kill(&p, SIGTERM);
    expect_status(&p, 125, 20);
    ck_assert_double_lt(seconds_since(start), 10.2 + test_seconds(2));
    expect_text(p.err, test_text("1 process could not be killed: pid %d (worker) in state", pid));
    proc_fini(&p);
    freezer_thaw(&f);
    freezer_fini(&f);
}
END_TEST

/* A process that has left its worker's group can only be found through /proc. */
START_TEST(a_daemon_where_there_is_no_proc)
{
    struct proc p;
    if (test_skip_sanitized("they read their options, and what there is, in /proc"))
        return;
    if (proc_run(&p, ARGV("unshare", "-m", "umount", "-l", "/proc"), NULL, 10) != 0) {
        proc_fini(&p);
        test_skip("cannot unmount /proc");
        return;
    }
    proc_fini(&p);
    const char *pid = tmppath("pid");
    char *daemon = test_text("setsid sh -c \"echo \\$\\$ >%s; exec sleep 60\" & "
                             "until [ -s %s ]; do sleep 0.01; done",
                             pid, pid);
    char *line = test_text("umount -l /proc && exec %s sh -c '%s'", build_path("dlaunch"), daemon);
    int status = proc_run(&p, ARGV("unshare", "-m", "sh", "-c", line), NULL, 30);
    pid_t left = atoi(text_of_file(pid));
    ck_assert_int_gt(left, 0);
    kill(left, SIGKILL);
    ck_assert_msg(status == 125, "exit %d\n%s", status, p.err);
    expect_text(p.err, "what the workers left behind could not be killed: those that /proc does "
                       "not show\n");
    expect_words(p.err, "Processes that could not be killed: those that /proc does not show");
    proc_fini(&p);
}
END_TEST

/* --------------------------------------------------------------------------------- what is gone */

START_TEST(removed_folders)
{
    struct proc p;
    char *gone = tmppath("gone");
    /* The working directory: a program of an absolute path needs none. */
    proc_run(&p,
             ARGV("sh", "-c", "mkdir $1 && cd $1 && rmdir $1 && shift && exec \"$@\"", "sh", gone,
                  build_path("dlaunch"), build_path("tests/worker"), "cwd"),
             NULL, 10);
    ck_assert_int_eq(WEXITSTATUS(p.status), 0);
    expect_text(p.out, "No such file or directory\n");
    proc_fini(&p);
    proc_run(&p,
             ARGV("sh", "-c", "mkdir $1 && cd $1 && rmdir $1 && shift && exec \"$@\"", "sh", gone,
                  build_path("dlaunch"), "./train"),
             NULL, 10);
    ck_assert_int_eq(WEXITSTATUS(p.status), 127);
    expect_text(p.err, "./train");
    proc_fini(&p);
    /* The folder of the logs, between two rounds. */
    ck_assert_int_eq(mkdir(tmppath("logs"), 0755), 0);
    dlaunch_start(&p, NULL,
                  "--log_dir %%T/logs --redirects 3 --max_restarts 1 %%W append %%T/up wait %%T/go "
                  "exit 3");
    wait_lines(tmppath("up"), 1, 10);
    ck_assert_int_eq(system(test_text("rm -r %s", tmppath("logs"))), 0);
    write_file(tmppath("go"), "");
    expect_status(&p, 125, 10);
    expect_words(p.err, "attempt_1: No such file or directory");
    proc_fini(&p);
}
END_TEST

/* -------------------------------------------------------------------------------------- too few */

START_TEST(too_few_descriptors)
{
    static const struct {
        char *nproc, *tee, *says;
    } cases[] = {{"32", "0", "32 workers need 122 "}, {"8", "3", "8 workers need 66 "}};
    struct proc p;
    int status =
        proc_run(&p,
                 ARGV("prlimit", "--nofile=64:64", build_path("dlaunch"), "--nproc_per_node",
                      cases[_i].nproc, "--tee", cases[_i].tee, "--log_dir", tmppath("logs"),
                      build_path("tests/worker"), "append", tmppath("up")),
                 NULL, 10);
    ck_assert_msg(status == 125, "exit %d\n%s", status, p.err);
    expect_text(p.err, test_text("dlaunch: %sopen files, and the hard limit is 64 (ulimit -Hn)\n",
                                 cases[_i].says));
    ck_assert_int_ne(access(tmppath("up"), F_OK), 0);
    proc_fini(&p);
}
END_TEST

/* Run by a user without other processes: a limit of 1 leaves no room for the agent, a limit of 2
 * none for the agent's first thread. */
START_TEST(too_few_processes)
{
    static const char *const says[] = {"start the agent",
                                       "start the thread for the workers' output"};
    char *line, *limit = test_text("--nproc=%d:%d", _i + 1, _i + 1);
    struct proc p;
    if (geteuid() != 0) {
        test_skip("a user of one's own takes root");
        return;
    }
    test_no_leak_check();
    int status = proc_run(&p,
                          ARGV("setpriv", "--reuid", test_text("%d", 2000000000 + getpid()),
                               "--clear-groups", "prlimit", limit, build_path("dlaunch"), "true"),
                          (char *[]){"HOME=/tmp", "XDG_CONFIG_HOME", NULL}, 10);
    ck_assert_msg(status == 125, "exit %d\n%s", status, p.err);
    line = test_text("dlaunch: %s: the limit of this user's processes and threads (ulimit -u), %d, "
                     "is reached\n",
                     says[_i], _i + 1);
    expect_text(p.err, line);
    proc_fini(&p);
}
END_TEST

/* Process ids come back within a second. Passers-by who have the ids of dead workers are never
 * signalled: none of them ends but by itself. */
START_TEST(reused_process_ids)
{
    struct proc p;
    char *script = test_text("echo 400 >/proc/sys/kernel/pid_max || exit 77\n"
                             "passers() { while :; do sh -c 'exec sleep 0.003'; s=$?; test $s = 0 "
                             "|| echo $s >>%1$s/bad; "
                             "done; }\n"
                             "passers & a=$!; passers & b=$!\n"
                             "for i in 1 2 3 4 5 6; do\n"
                             "  %2$s --nproc_per_node 8 --max_restarts 3 %3$s if-attempt 3 exit 0 "
                             "if-rank 1 exit 9 child "
                             "setsid-child pause 2>>%1$s/err || echo $? >>%1$s/failed\n"
                             "done\n"
                             "kill $a $b\n",
                             tmpdir(), build_path("dlaunch"), build_path("tests/worker"));
    int status = proc_run(&p, ARGV("unshare", "-pf", "--mount-proc", "sh", "-c", script), NULL, 60);
    if (status == 77 || strstr(p.err, "unshare failed")) {
        test_skip("no PID namespace with a small pid_max here");
    } else {
        ck_assert_int_ne(access(tmppath("bad"), F_OK), 0);
        ck_assert_msg(access(tmppath("failed"), F_OK) != 0, "%s", text_of_file(tmppath("err")));
        ck_assert_int_eq(count_text(text_of_file(tmppath("err")), "restart 3 of 3"), 6);
    }
    proc_fini(&p);
}
END_TEST

/* Programs that belong to another user: PDEATHSIG does not work on them. */
START_TEST(setuid_workers)
{
    if (geteuid() != 0) {
        test_skip("a program of another user's takes root");
        return;
    }
    struct proc p;
    char *program = tmppath("sleep"), *marker = test_text("STRAY_MARK=%d.suid", getpid());
    ck_assert_int_eq(system(test_text("cp /bin/sleep %s && chmod 4755 %s && chmod 755 %s", program,
                                      program, tmpdir())),
                     0);
    for (int how = 0; how < 3; how++) {
        char *env[] = {marker, "HOME=/tmp", "XDG_CONFIG_HOME", NULL};
        proc_start(&p,
                   ARGV("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                        build_path("dlaunch"), "--nproc_per_node", "2", program, "1000"),
                   env, 0);
        char *agents = test_text("/proc/%d/task/%d/children", p.pid, p.pid);
        while (p.pid && (access(agents, R_OK) != 0 || strlen(text_of_file(agents)) == 0))
            proc_poll(&p);
        pid_t agent = atoi(text_of_file(agents));
        char *workers = test_text("/proc/%d/task/%d/children", agent, agent);
        uint64_t end = mono_ns() + 10000000000u;
        while (count_text(text_of_file(workers), " ") < 2 && mono_ns() < end)
            proc_poll(&p);
        if (how == 0)
            proc_kill(&p, SIGTERM);
        else
            kill(how == 1 ? p.pid : agent, SIGKILL);
        expect_status(&p, how ? 128 + SIGKILL : 128 + SIGTERM, 10);
        wait_until(no_strays, marker, 2, "the other user's programs have ended");
        proc_fini(&p);
    }
}
END_TEST

/* ------------------------------------------------------------------------------ a flood of text */

static long peak_kib(pid_t pid)
{
    long kib = 0;
    char *at = strstr(text_of_file(test_text("/proc/%d/status", pid)), "VmHWM:");
    ck_assert(at && sscanf(at, "VmHWM: %ld", &kib) == 1);
    return kib;
}

/* Reads the terminal until its last opener has closed it. */
static char *all_of(int master)
{
    size_t len = 0, cap = 32 << 20;
    char *shown = test_keep(xcalloc(1, cap));
    for (ssize_t n; len < cap - 1 && (n = read(master, shown + len, cap - len - 1)) > 0;)
        len += (size_t)n;
    close(master);
    return shown;
}

/* Workers write as fast as they can to stopped terminals: the launchers stay small, and heartbeats
 * arrive in time. */
START_TEST(a_flood_of_output)
{
    struct proc p[2];
    int port = free_port(), master[2], slave[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(openpty(&master[i], &slave[i], NULL, NULL, NULL), 0);
        fcntl(master[i], F_SETFD, FD_CLOEXEC);
        char *line =
            test_text(TWO_NODES "--nproc_per_node 2 %%W spew 2000000 "
                                "'0123456789012345678901234567890123456789012345678901234567890' "
                                "append %%T/up wait %%T/go",
                      port, i == 0);
        dlaunch_start_into(&p[i], slave[i], line);
        close(slave[i]);
    }
    wait_lines(tmppath("up"), 4, 60); /* 500 MB, and nobody has seen any of it */
    for (int i = 0; i < 2; i++) {
        long kib = peak_kib(agent_of(&p[i]));
        ck_assert_msg(kib < (SANITIZED ? 512 : 96) * 1024, "%ld KiB", kib);
    }
    write_file(tmppath("go"), "");
    for (int i = 0; i < 2; i++) {
        char *shown = all_of(master[i]);
        expect_status(&p[i], 0, 30);
        expect_text(shown, "of output dropped here: the console is too slow");
        expect_no_text(p[i].err, "lost");
        expect_no_text(p[i].err, "restarting");
        proc_fini(&p[i]);
    }
}
END_TEST

static bool is_full(void *fd)
{
    int n = 0;
    ck_assert_int_eq(ioctl(*(int *)fd, FIONREAD, &n), 0);
    return n >= 60000;
}

/* Pipes that nobody reads hold up the workers that write there, and nothing else: a failure is seen
 * on the other node, and the job is started again. */
START_TEST(output_that_nobody_reads)
{
    struct proc p[2];
    int port = free_port();
    for (int i = 0; i < 2; i++)
        dlaunch_start(&p[i], NULL,
                      TWO_NODES "--nproc_per_node 2 %%W append %%T/up if-rank 3 exit-on TERM 0 "
                                "if-rank 0 spew 100000000 words if-rank 2 spew 100000000 words "
                                "if-rank 1 wait %%T/go if-attempt 0 wait-lines 4 %%T/up "
                                "if-attempt 1 wait-lines 8 %%T/up if-attempt 2 wait-lines 12 "
                                "%%T/up if-rank 1 exit 3 pause",
                      port, i == 0);
    for (int i = 0; i < 2; i++)
        wait_until(is_full, &p[i].out_fd, 20, "the output of a node");
    write_file(tmppath("go"), "");
    wait_lines(tmppath("up"), 12, 30); /* both restarts have come, and nobody has read anything */
    for (int i = 0; i < 2; i++)
        expect_status(&p[i], 3, 30);
    for (int i = 0; i < 2; i++) {
        expect_no_text(p[i].err, "lost");
        expect_no_text(p[i].out, "dropped");
        proc_fini(&p[i]);
    }
}
END_TEST

/* ----------------------------------------------------------------------------- a bad connection */

struct pair {
    struct proc p[2];
    struct proxy proxy;
};

/* Two nodes; the second one's way to the first is the proxy. */
static void pair_start(struct pair *c, const char *job)
{
    int port = free_port();
    proxy_start(&c->proxy, port);
    dlaunch_start(&c->p[0], NULL, TWO_NODES "%s", port, 1, job);
    dlaunch_start(&c->p[1], NULL, TWO_NODES "%s", c->proxy.port, 0, job);
}

static void pair_end(struct pair *c, int status, double seconds)
{
    for (int i = 0; i < 2; i++)
        expect_status(&c->p[i], status, seconds);
    for (int i = 0; i < 2; i++)
        proc_fini(&c->p[i]);
    proxy_stop(&c->proxy);
}

/* 200 ms each way, more or less: slower, and nothing else. */
START_TEST(a_slow_connection)
{
    struct pair c;
    pair_start(&c, "%W append %T/up if-attempt 0 wait-lines 2 %T/up if-attempt 0 if-rank 1 exit 7 "
                   "if-attempt 0 pause print fine");
    atomic_store(&c.proxy.rules->jitter_ms, 100);
    atomic_store(&c.proxy.rules->delay_ms, 200);
    uint64_t start = mono_ns();
    proc_expect_out(&c.p[0], "fine", 15);
    proc_expect_out(&c.p[1], "fine", 15);
    pair_end(&c, 0, 15);
    ck_assert_double_lt(seconds_since(start), test_seconds(10));
    ck_assert_int_eq(count_lines(tmppath("up")), 4);
}
END_TEST

/* The first connections break before, in and behind the hello: a node that comes again and again is
 * one node. */
START_TEST(joining_again_and_again)
{
    struct pair c;
    int port = free_port();
    proxy_start(&c.proxy, port);
    atomic_store(&c.proxy.rules->reset_after, 1);
    atomic_store(&c.proxy.rules->resets, 15);
    static const char job[] = "%%W append %%T/up env GROUP_RANK env WORLD_SIZE";
    dlaunch_start(&c.p[0], NULL, test_text("%s%s", TWO_NODES, job), port, 1);
    dlaunch_start(&c.p[1], NULL, test_text("%s%s", TWO_NODES, job), c.proxy.port, 0);
    for (int n; (n = atomic_load(&c.proxy.rules->resets)) > 0;) {
        atomic_store(&c.proxy.rules->reset_after, n % 3 == 0 ? 1 : n % 3 == 1 ? 60 : 120);
        proc_poll(&c.p[0]);
        ck_assert_msg(!proc_poll(&c.p[1]), "%s", c.p[1].err);
        test_poll_pause();
    }
    pair_end(&c, 0, 30);
    ck_assert_int_eq(count_lines(tmppath("up")), 2);
    expect_text(text_of_file(tmppath("up")), "0 0 0 ");
}
END_TEST

/* ------------------------------------------------------------------------------------- the rest */

/* Rank 0 is done first; the store serves the others until the last of them is. */
START_TEST(rank_0_leaves_first)
{
    struct proc p[2];
    int port = free_port();
    for (int i = 0; i < 2; i++)
        dlaunch_start(&p[i], NULL, TWO_NODES "--nproc_per_node 2 %s outlive", port, i == 0,
                      build_path("tests/multihost/store_worker"));
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 0, 20);
        expect_text(p[i].out, "all here\n");
        expect_text(p[i].out, " rounds\n");
        proc_fini(&p[i]);
    }
}
END_TEST

/* A node whose agent has stopped is done without, and its worker, stopped as well, is dead before
 * the others start again: it cannot come back to life among them. */
START_TEST(no_worker_of_an_old_round_is_left)
{
    struct proc p[3];
    int port = free_port();
    char *marker = test_text("STRAY_MARK=%d.old", getpid()), *env[] = {marker, NULL};
    for (int i = 0; i < 3; i++)
        dlaunch_start(
            &p[i], i == 2 ? env : NULL,
            "--nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --rdzv_conf "
            "is_host=%d,keep_alive_interval=0.2,keep_alive_max_attempt=15,join_timeout=30,"
            "last_call_timeout=5 %%W append %%T/up wait %%T/go",
            port, i == 0);
    wait_lines(tmppath("up"), 3, 20);
    ck_assert_int_eq(count_processes_with_env(marker), 3);
    pid_t agent = agent_of(&p[2]);
    pid_t worker = atoi(text_of_file(test_text("/proc/%d/task/%d/children", agent, agent)));
    kill(worker, SIGSTOP);
    kill(agent, SIGSTOP);
    wait_lines(tmppath("up"), 4, 20); /* the first one of the next round */
    ck_assert_int_ne(access(test_text("/proc/%d/root", worker), F_OK), 0);
    expect_status(&p[2], 125, 10);
    ck_assert_int_eq(count_processes_with_env(marker), 0);
    wait_lines(tmppath("up"), 5, 20);
    write_file(tmppath("go"), "");
    for (int i = 0; i < 2; i++)
        expect_status(&p[i], 0, 20);
    for (int i = 0; i < 3; i++)
        proc_fini(&p[i]);
}
END_TEST

struct asked {
    struct proc *launcher;
    const char *state;
};

static bool is_in_state(void *arg)
{
    const struct asked *a = arg;
    struct proc ctl;
    proc_run(&ctl,
             ARGV(build_path("dlaunchctl"), "-p", test_text("%d", a->launcher->pid), "status"),
             NULL, 10);
    bool is = strstr(ctl.out, a->state);
    proc_fini(&ctl);
    return is;
}

/* One node does not take the result: signals that come while the other waits for it neither end
 * that one's agent nor change the status; one that stops jobs ends the wait. */
START_TEST(signals_at_the_end)
{
    struct cluster c = {.n = 2, .port = free_port()};
    for (int i = 0; i < 2; i++)
        cluster_start_node(&c, i,
                           "--rdzv_conf close_timeout=60,keep_alive_interval=20 %%W append %%T/up "
                           "if-rank 0 wait %%T/go");
    wait_lines(tmppath("up"), 2, 20);
    struct asked done[2] = {{&c.node[0], "DONE"}, {&c.node[1], "EXIT_BARRIER"}};
    wait_until(is_in_state, &done[1], 20, "node 1 has nothing left to do");
    pid_t agent = agent_of(&c.node[1]);
    kill(agent, SIGSTOP);
    write_file(tmppath("go"), "");
    wait_until(is_in_state, &done[0], 20, "node 0 waits for node 1");
    proc_kill(&c.node[0], SIGUSR1);
    kill(agent_of(&c.node[0]), SIGUSR2);
    ck_assert(is_in_state(&done[0]));
    proc_kill(&c.node[0], SIGTERM);
    expect_status(&c.node[0], 0, 20);
    expect_no_text(c.node[0].err, "killed");
    kill(agent, SIGKILL);
    cluster_fini(&c);
}
END_TEST

/* ------------------------------------------------------------------------------------------
 * secrets
 */

#define SECRET "correct-horse-battery-staple-0123456789"

static char *base64_of(const char *text)
{
    struct proc p;
    proc_run(&p, ARGV("sh", "-c", test_text("printf %%s %s | base64 -w0", text)), NULL, 10);
    char *out = test_text("%s", p.out);
    proc_fini(&p);
    return out;
}

/* The token is in no command line, no worker's environment, no log, no report. */
START_TEST(the_token_is_nowhere)
{
    struct proc p[2], ps, grep;
    int port = free_port();
    char *env[] = {"DLAUNCH_TOKEN=" SECRET, NULL}, *all;
    for (int i = 0; i < 2; i++)
        dlaunch_start(&p[i], env,
                      TWO_NODES "--verbose --log_dir %%T/logs%d --tee 3 --report %%T/report%d "
                                "%%W environ append %%T/up wait %%T/go if-rank 1 exit 3 pause",
                      port, i == 0, i, i);
    wait_lines(tmppath("up"), 2, 20);
    proc_run(&ps, ARGV("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"), NULL,
             10);
    write_file(tmppath("cmdlines"), ps.out);
    proc_fini(&ps);
    proc_kill(&p[0], SIGTERM);
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 128 + SIGTERM, 20);
        all = test_text("%s%s", p[i].out, p[i].err);
        write_file(tmppath(i ? "console1" : "console0"), all);
        expect_text(all, "RANK=");
        proc_fini(&p[i]);
    }
    const char *forms[] = {SECRET, base64_of(SECRET),
                           "636f72726563742d686f7273652d626174746572792d737461706c65"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        int status = proc_run(&grep, ARGV("grep", "-rl", "-e", (char *)forms[i], (char *)tmpdir()),
                              NULL, 10);
        ck_assert_msg(status == 1, "the token is in %s", grep.out);
        proc_fini(&grep);
    }
    dlaunch_start(&p[0], env, "--print_config /bin/true");
    expect_status(&p[0], 0, 10);
    expect_no_text(p[0].out, SECRET);
    proc_fini(&p[0]);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("faults");
    TCase *tc = test_case(s, "workers", 60);
    tcase_add_test(tc, killed_from_outside);
    tcase_add_test(tc, killed_for_want_of_memory);
    tcase_add_test(tc, a_stopped_worker_is_ended);
    tcase_add_test(tc, a_worker_that_cannot_be_killed);
    tcase_add_test(tc, a_daemon_where_there_is_no_proc);
    tcase_add_test(tc, removed_folders);
    tc = test_case(s, "too few", 120);
    tcase_add_loop_test(tc, too_few_descriptors, 0, 2);
    tcase_add_loop_test(tc, too_few_processes, 0, 2);
    tcase_add_test(tc, reused_process_ids);
    tcase_add_test(tc, setuid_workers);
    tcase_add_test(tc, a_flood_of_output);
    tcase_add_test(tc, output_that_nobody_reads);
    tc = test_case(s, "connection", 90);
    tcase_add_test(tc, a_slow_connection);
    tcase_add_test(tc, joining_again_and_again);
    tc = test_case(s, "rounds", 60);
    tcase_add_test(tc, rank_0_leaves_first);
    tcase_add_test(tc, no_worker_of_an_old_round_is_left);
    tcase_add_test(tc, signals_at_the_end);
    tc = test_case(s, "secrets", 60);
    tcase_add_test(tc, the_token_is_nowhere);
    return s;
}

TEST_MAIN(suite)
