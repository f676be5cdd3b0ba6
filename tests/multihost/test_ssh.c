/* Jobs that one command starts on several hosts, by a real sshd on each, by a tree of them
 * (START=tree), or by dlaunch's daemon (START=daemon). `make test-ssh` runs this with SSH_HOSTS=64,
 * too: then the cases of the group "many" take that many hosts. */
#include <dirent.h>
#include <math.h>

#include "tests/integration/job.h"
#include "tests/lib/netns.h"

#define SOME 3 /* hosts with a sshd; the head is on host 0 unless a test says otherwise */

static int g_hosts;
static struct proc g_sshd[NETNS_MAX]; /* or the daemon */
static int g_idle[NETNS_MAX];         /* processes on a host without a job */

static int many(void)
{
    const char *n = getenv("SSH_HOSTS");
    return n ? atoi(n) : 8;
}

static bool start_is(const char *way)
{
    const char *start = getenv("START");
    return start && strcmp(start, way) == 0;
}

static bool by_daemon(void)
{
    return start_is("daemon");
}

static const char *way(void)
{
    return by_daemon() ? "daemons" : start_is("tree") ? "a tree of ssh" : "ssh";
}

#define TOKEN "0123456789abcdef0123456789abcdef"

/* ssh goes by names, as users' does. */
static const char *start_options(void)
{
    int tree = !start_is("tree") ? 0 : g_hosts == SOME ? 1 : g_hosts > 16 ? 8 : 2;
    if (by_daemon())
        return "--launch_agent daemon --token_file %T/token --start_timeout 60 ";
    return test_text("--ssh_args '-F %%T/ssh_config' --start_timeout 60 --ssh_tree %d ", tree);
}

static void start_sshd(int host)
{
    if (by_daemon())
        netns_start(&g_sshd[host], host,
                    ARGV(build_path("dlaunch"), "--serve", "--serve_addr", "all", "--token_file",
                         tmppath("token")),
                    NULL);
    else
        netns_start(&g_sshd[host], host,
                    ARGV("/usr/sbin/sshd", "-D", "-e", "-f", tmppath("sshd_config")), NULL);
}

static void setup_hosts(int n)
{
    g_hosts = n;
    netns_setup(n, -1);
}

/* A host that takes packets and answers none. */
static void silence(int host)
{
    ck_assert_int_eq(netns_sh(host,
                              "nft 'add table inet mute; add chain inet mute in { type filter "
                              "hook input priority 0; policy drop; }'"),
                     0);
}

/* Keys of this test alone; every host has the same. */
static void make_keys(void)
{
    write_file(tmppath("token"), TOKEN "\n");
    ck_assert_int_eq(chmod(tmppath("token"), 0600), 0);
    if (by_daemon())
        return;
    ck_assert_int_eq(system(test_text("ssh-keygen -q -t ed25519 -N '' -f %s && "
                                      "ssh-keygen -q -t ed25519 -N '' -f %s && cp %s.pub %s",
                                      tmppath("host_key"), tmppath("user_key"), tmppath("user_key"),
                                      tmppath("authorized_keys"))),
                     0);
    write_file(tmppath("sshd_config"),
               test_text("HostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\n"
                         "PidFile none\nPermitRootLogin yes\nPrintMotd no\nMaxStartups 200\n",
                         tmppath("host_key"), tmppath("authorized_keys")));
    write_file(tmppath("ssh_config"),
               test_text("Host *\n  IdentityFile %s\n  IdentitiesOnly yes\n"
                         "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n"
                         "  LogLevel ERROR\n",
                         tmppath("user_key")));
}

static void start_sshds(void)
{
    make_keys();
    for (int i = 0; i < g_hosts; i++) {
        ck_assert_int_eq(netns_sh(i, "mount -t tmpfs tmpfs /run && mkdir -p /run/sshd"), 0);
        start_sshd(i);
    }
    for (int i = 0; i < g_hosts; i++) {
        proc_expect_err(&g_sshd[i],
                        by_daemon() ? "waiting for jobs at" : "Server listening on 0.0.0.0 port 22",
                        60);
        g_idle[i] = netns_count_processes(i);
    }
}

static void setup(void)
{
    setup_hosts(SOME);
}

static void setup_many(void)
{
    setup_hosts(many());
}

/* ---------------------------------------------------------------------------------- the command */

static void head(struct proc *p, int host, const char *line, ...)
    __attribute__((format(printf, 3, 4)));
static void head(struct proc *p, int host, const char *line, ...)
{
    char *text;
    va_list ap;
    va_start(ap, line);
    ck_assert_int_ge(vasprintf(&text, line, ap), 0);
    va_end(ap);
    netns_start_with(p, host, dlaunch_argv(start_options(), test_keep(text)), NULL, PROC_STDIN);
}

static bool host_is_idle(void *host)
{
    int i = *(int *)host;
    return netns_count_processes(i) <= g_idle[i];
}

static void expect_idle(double seconds)
{
    for (int i = 0; i < g_hosts; i++)
        wait_until(host_is_idle, &i, seconds, test_text("host%d has nothing left of the job", i));
}

static void expect_end(struct proc *p, int status)
{
    expect_status(p, status, 60);
    expect_idle(20);
}

static void end_test(struct proc *p)
{
    proc_fini(p);
    for (int i = 0; i < g_hosts; i++)
        netns_kill(i, NULL, SIGKILL);
}

static void lines_of(const char *path, int n)
{
    for (double end = (double)mono_ns() / 1e9 + 60;;) {
        char *text = access(path, F_OK) == 0 ? read_file(path) : NULL;
        int have = text ? count_text(text, "\n") : 0;
        free(text);
        if (have >= n)
            return;
        ck_assert_msg((double)mono_ns() / 1e9 < end, "%s has %d of %d lines", path, have, n);
        test_poll_pause();
    }
}

/* ------------------------------------------------------------------------------- the happy path */

START_TEST(workers_run_on_every_host)
{
    struct proc p;
    start_sshds();
    head(&p, 0,
         "-H host0:1,host[1-2]:2 %%W env RANK env GROUP_RANK env WORLD_SIZE env MASTER_ADDR");
    expect_end(&p, 0);
    for (int i = 0; i < 5; i++)
        expect_text(p.out, test_text("RANK=%d\n", i));
    ck_assert_int_eq(count_text(p.out, "WORLD_SIZE=5\n"), 5);
    ck_assert_int_eq(count_text(p.out, "GROUP_RANK=0\n"), 1);
    ck_assert_int_eq(count_text(p.out, "GROUP_RANK=2\n"), 2);
    ck_assert_int_eq(count_text(p.out, "MASTER_ADDR=10.77.0.1\n"), 5);
    end_test(&p);
}
END_TEST

START_TEST(the_head_need_not_be_a_node)
{
    struct proc p;
    start_sshds();
    write_file(tmppath("hosts"), "# two hosts\nhost1 slots=2 max_slots=4\nhost2:2\n");
    head(&p, 0, "--hostfile %%T/hosts -n 3 sh -c 'echo $RANK of $WORLD_SIZE on $(hostname)'");
    expect_end(&p, 0);
    expect_text(p.out, "0 of 3 on host1\n");
    expect_text(p.out, "1 of 3 on host1\n");
    expect_text(p.out, "2 of 3 on host2\n");
    end_test(&p);
}
END_TEST

/* Shells on the way must not see them, whatever they are. */
START_TEST(arguments_arrive_unchanged)
{
    struct proc p;
    static const char *const words[] = {"a b", "it's", "\"q\"", "$HOME", "`id`",     "*", "x\ny",
                                        "\\n", "",     "--",    "-n",    "\xc3\xa9", "#", "!"};
    char *argv[64], *fixed[] = {"-H",
                                "host1",
                                "-x",
                                "GREETING=good 'day'\n$x",
                                "-x",
                                "FROM_HEAD_*",
                                build_path("tests/worker"),
                                "cwd",
                                "env",
                                "GREETING",
                                "env",
                                "FROM_HEAD_A",
                                "args"};
    size_t n = 0;
    start_sshds();
    for (char **w = dlaunch_argv(start_options(), ""); *w; w++)
        argv[n++] = *w;
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        argv[n++] = fixed[i];
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        argv[n++] = (char *)words[i];
    argv[n] = NULL;
    netns_start(&p, 0, argv, ARGV("FROM_HEAD_A=1"));
    expect_end(&p, 0);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        expect_text(p.out, test_text("%s\n", words[i]));
    char cwd[4096];
    ck_assert_ptr_nonnull(getcwd(cwd, sizeof(cwd)));
    expect_text(p.out, cwd);
    expect_text(p.out, "GREETING=good 'day'\n$x\n");
    expect_text(p.out, "FROM_HEAD_A=1\n");
    end_test(&p);
}
END_TEST

START_TEST(rank_0_reads_the_input)
{
    struct proc p;
    start_sshds();
    head(&p, 0, "-H host1,host2 sh -c 'cat | wc -c; echo end of $RANK'");
    char block[4096];
    memset(block, 'x', sizeof(block));
    for (int i = 0; i < 256; i++)
        ck_assert_int_eq(write(p.in_fd, block, sizeof(block)), sizeof(block));
    close(p.in_fd);
    p.in_fd = -1;
    expect_end(&p, 0);
    expect_text(p.out, "1048576\n");
    expect_text(p.out, "0\nend of 1\n");
    end_test(&p);
}
END_TEST

/* More than any buffer on the way holds. */
START_TEST(output_comes_whole)
{
    struct proc p;
    start_sshds();
    head(&p, 0, "-H host1,host2 %%W spew 50000 a_line_of_a_worker_that_prints_much");
    expect_end(&p, 0);
    ck_assert_int_eq(count_text(p.out, "a_line_of_a_worker_that_prints_much\n"), 100000);
    ck_assert_int_eq(count_text(p.out, "\n"), 100000);
    end_test(&p);
}
END_TEST

/* The secret is in no command line and no environment, on no host. */
START_TEST(the_token_is_not_shown)
{
    struct proc p;
    start_sshds();
    head(&p, 0, "--token_file %%T/token -H host1,host2 %%W append %%T/up pause");
    lines_of(tmppath("up"), 2);
    for (int host = 1; host < SOME; host++)
        ck_assert_int_ne(
            netns_sh(host,
                     "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' "
                     "'\\n' | grep -v grep | grep -q \"^$(cat %s)\"",
                     tmppath("token")),
            0);
    proc_kill(&p, SIGTERM);
    expect_end(&p, 128 + SIGTERM);
    end_test(&p);
}
END_TEST

/* A copy of dlaunch and of the program, of which nothing is left. */
START_TEST(programs_are_copied)
{
    struct proc p;
    start_sshds();
    ck_assert_int_eq(system(test_text("cp %s '%s' && mkdir %s", build_path("tests/worker"),
                                      tmppath("my worker"), tmppath("there"))),
                     0);
    for (int i = 1; i < SOME; i++) /* hosts on which neither is where it is here */
        ck_assert_int_eq(netns_sh(i, "mount -t tmpfs tmpfs %s && mount -t tmpfs tmpfs %s",
                                  build_path(""), tmppath("there")),
                         0);
    head(&p, 0, "--bcast -x TMPDIR=%%T/there -H host1,host2 '%%T/my worker' env RANK");
    expect_end(&p, 0);
    expect_text(p.out, "RANK=0\n");
    expect_text(p.out, "RANK=1\n");
    for (int i = 1; i < SOME; i++)
        ck_assert_int_eq(netns_sh(i, "! ls -d /tmp/dlaunch.?????? 2>/dev/null"), 0);
    end_test(&p);
}
END_TEST

/* --------------------------------------------------------------------------------- ends of jobs */

START_TEST(a_failure_is_reported_once)
{
    struct proc p;
    start_sshds();
    head(&p, 0,
         "--report %%T/report.json -H host[0-2]:2 "
         "%%W if-rank 3 err 'no such tensor' if-rank 3 exit 7 pause");
    expect_end(&p, 7);
    ck_assert_int_eq(count_text(p.err, "First failure"), 1);
    expect_words(p.err, "First failure: rank 3 on host1 exited with code 7");
    ck_assert_int_eq(count_text(p.err, "worker 3 (local rank 1) on host1 exited with code 7"), 1);
    json_t *j = json_of_file(tmppath("report.json"));
    ck_assert_int_eq(json_number(j, "exit_code"), 7);
    json_decref(j);
    end_test(&p);
}
END_TEST

START_TEST(a_restart_happens_on_all_hosts)
{
    struct proc p;
    start_sshds();
    head(&p, 0,
         "-H host[0-2] --max_restarts 1 %%W if-attempt 0 if-rank 2 exit 1 "
         "if-attempt 0 pause env RANK");
    expect_end(&p, 0);
    for (int i = 0; i < 3; i++)
        expect_text(p.out, test_text("RANK=%d\n", i));
    end_test(&p);
}
END_TEST

START_TEST(an_interrupt_stops_all_hosts)
{
    struct proc p;
    test_no_leak_check(); /* signals that arrive during the check can block it for ever */
    start_sshds();
    /* A host that the first one to stop has told gets SIGTERM before the signal. */
    head(&p, 0, "-H host[0-2] %%W trap INT %%T/int trap TERM %%T/int append %%T/up pause");
    lines_of(tmppath("up"), 3);
    proc_kill(&p, SIGINT);
    lines_of(tmppath("int"), 3);
    signal_until_end(&p, SIGINT, 60); /* again: they do not end by themselves */
    expect_end(&p, 128 + SIGINT);
    ck_assert_int_eq(count_text(p.err, "received SIGINT: stopping 1 worker"), 1);
    end_test(&p);
}
END_TEST

START_TEST(signals_reach_the_workers)
{
    struct proc p;
    start_sshds();
    head(&p, 0, "-H host1,host2 %%W trap USR1 %%T/usr1 append %%T/up pause");
    lines_of(tmppath("up"), 2);
    proc_kill(&p, SIGUSR1);
    lines_of(tmppath("usr1"), 2);
    proc_kill(&p, SIGTERM);
    expect_end(&p, 128 + SIGTERM);
    end_test(&p);
}
END_TEST

START_TEST(a_killed_head_leaves_nothing)
{
    struct proc p;
    start_sshds();
    head(&p, 0, "-H host[0-2]:2 %%W ignore TERM setsid-child append %%T/up pause");
    lines_of(tmppath("up"), 6);
    proc_kill(&p, SIGKILL);
    expect_end(&p, 128 + SIGKILL);
    end_test(&p);
}
END_TEST

START_TEST(a_lost_connection_ends_the_host)
{
    struct proc p;
    start_sshds();
    head(&p, 0,
         "-H host[0-2] --nnodes 2:3 --max_restarts 1 "
         "%%W append %%T/up wait %%T/go env WORLD_SIZE");
    lines_of(tmppath("up"), 3);
    ck_assert_int_gt(netns_kill(2, by_daemon() ? "dl-host" : "sshd", SIGKILL), 0);
    lines_of(tmppath("up"), 5);
    write_file(tmppath("go"), "");
    expect_status(&p, 0, 60);
    ck_assert_int_eq(count_text(p.out, "WORLD_SIZE=2\n"), 2);
    expect_text(p.err, "host2: the connection is lost");
    int host = 2;
    g_idle[2] = by_daemon();
    wait_until(host_is_idle, &host, 20, "host2 is clean");
    end_test(&p);
}
END_TEST

/* ------------------------------------------------------------------------------ hosts that fail */

START_TEST(a_silent_host_is_named)
{
    struct proc p;
    start_sshds();
    silence(2);
    head(&p, 0, "--start_timeout 5 -H host[0-2] %%W env RANK");
    expect_end(&p, 1);
    expect_text(p.err, "host2: does not answer within 5 s (--start_timeout)");
    expect_no_text(p.out, "RANK");
    proc_fini(&p);
    head(&p, 0, "--start_timeout 8 --nnodes 2:3 -H host2,host0,host1 %%W env WORLD_SIZE env RANK");
    expect_end(&p, 0);
    expect_text(p.err, "host2: does not answer within 8 s (--start_timeout); the job goes on "
                       "without it");
    ck_assert_int_eq(count_text(p.out, "WORLD_SIZE=2\n"), 2);
    end_test(&p);
}
END_TEST

START_TEST(a_host_that_refuses_is_tried_again)
{
    struct proc p;
    start_sshds();
    proc_kill(&g_sshd[1], SIGTERM);
    proc_wait(&g_sshd[1], 20);
    proc_fini(&g_sshd[1]);
    head(&p, 0, "--verbose -H host0,host1 %%W env RANK");
    proc_expect_err(&p, "Connection refused", 30);
    start_sshd(1);
    expect_status(&p, 0, 60);
    expect_text(p.out, "RANK=1\n");
    end_test(&p);
}
END_TEST

static const struct {
    const char *options, *said;
    int status;
    enum { BY_BOTH, BY_SSH, BY_DAEMON } by;
} wrong[] = {
    {"-H host0,host1 --prefix /nowhere %W", "host1: dlaunch cannot be run there", 1, BY_SSH},
    {"-H host0,nohost %W", "nohost: ssh: Could not resolve hostname nohost", 1, BY_SSH},
    {"-H host0,nohost %W", "nohost: its daemon, at port 29390, cannot be used: ", 1, BY_DAEMON},
    {"-H host0,nobody@host1 %W", "host1: nobody@host1: Permission denied", 1, BY_SSH},
    {"-H host0,host1 --prefix %T/other %W", "host1: dlaunch 0.0.0-other is there, and", 1, BY_SSH},
    {"-H host0,host1 /bin/sh -c 'exit 3'", "exited with code 3", 3, BY_BOTH},
    {"-H host0,host1 %T/program/here", "host1: exec ", 127, BY_BOTH},
};

START_TEST(a_host_that_cannot_run_it_is_named)
{
    struct proc p;
    /* A version that will never be: its greeting. */
    static const char hello[] = "#!/bin/sh\n"
                                "printf '\\nDLAUNCH HOST 1\\n\\043\\0\\0\\0\\001'\n"
                                "printf '\\013\\0\\0\\0000.0.0-other\\002\\0\\0\\0h1\\0\\0'\n"
                                "printf '\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0'\n"
                                "cat >/dev/null\n";
    if (wrong[_i].by == (by_daemon() ? BY_SSH : BY_DAEMON))
        return;
    start_sshds();
    ck_assert_int_eq(system(test_text("mkdir -p %s/bin %s && cp /bin/true %s/here",
                                      tmppath("other"), tmppath("program"), tmppath("program"))),
                     0);
    ck_assert_int_eq(netns_sh(1, "mount -t tmpfs tmpfs %s", tmppath("program")), 0);
    write_file(tmppath("other/bin/dlaunch"), hello);
    ck_assert_int_eq(chmod(tmppath("other/bin/dlaunch"), 0755), 0);
    head(&p, 0, "%s", wrong[_i].options);
    expect_status(&p, wrong[_i].status, 60);
    expect_text(p.err, wrong[_i].said);
    expect_idle(20);
    end_test(&p);
}
END_TEST

/* ------------------------------------------------------------------------------- a tree of hosts
 */

/* host1 is to reach host2, which has answered host1 before it is lost, or never hears of it. */
START_TEST(a_host_that_cannot_reach_others_is_replaced)
{
    struct proc p;
    start_sshds();
    silence(1);
    head(&p, 0,
         "--ssh_tree 1 --verbose --start_timeout 5 --nnodes 2:3 -H host[0-2] "
         "%%W env WORLD_SIZE");
    expect_end(&p, 0);
    expect_text(p.err, "host1: does not answer within 5 s");
    expect_text(p.err, "host2: reached by ssh");
    ck_assert_int_eq(count_text(p.out, "WORLD_SIZE=2\n"), 2);
    end_test(&p);
}
END_TEST

START_TEST(hosts_are_lost_with_the_one_that_reaches_them)
{
    struct proc p;
    start_sshds();
    head(&p, 0,
         "--ssh_tree 1 --verbose --nnodes 1:3 --max_restarts 2 -H host[0-2] "
         "%%W append %%T/up wait %%T/go env WORLD_SIZE");
    lines_of(tmppath("up"), 3);
    proc_expect_err(&p, "host2: reached by ssh through host1", 20);
    ck_assert_int_gt(netns_kill(1, "dl-host", SIGKILL), 0);
    proc_expect_err(&p, "host1: the connection is lost", 30);
    proc_expect_err(&p, "host2: the connection is lost: the host that reached it, host1, is gone",
                    30);
    for (int host = 1; host < SOME; host++)
        wait_until(host_is_idle, &host, 20, test_text("host%d is clean", host));
    write_file(tmppath("go"), "");
    expect_end(&p, 0);
    expect_text(p.out, "WORLD_SIZE=1\n");
    end_test(&p);
}
END_TEST

/* The launcher of host1 ends, but host1 stays as long as host2 has something to do. */
START_TEST(a_host_that_has_ended_still_reaches_others)
{
    struct proc p;
    start_sshds();
    head(&p, 0,
         "--ssh_tree 1 --nnodes 2:3 --max_restarts 1 -H host[0-2] "
         "%%W append %%T/up wait %%T/go spew 50000 a_line_of_a_worker_that_prints_much");
    lines_of(tmppath("up"), 3);
    ck_assert_int_gt(netns_kill(1, "dlaunch", SIGKILL), 0);
    lines_of(tmppath("up"), 5);
    write_file(tmppath("go"), "");
    expect_end(&p, 0);
    ck_assert_int_eq(count_text(p.out, "a_line_of_a_worker_that_prints_much\n"), 100000);
    end_test(&p);
}
END_TEST

/* ----------------------------------------------------------------------------------------- many */

static char *all_hosts(const char *slots)
{
    return test_text("host[0-%d]%s", g_hosts - 1, slots);
}

static double since(uint64_t from_ns)
{
    return (double)(mono_ns() - from_ns) / 1e9;
}

/* ssh alone, as many at a time: what of the time is its own. */
static double bare_ssh(void)
{
    struct proc p;
    uint64_t from = mono_ns();
    netns_start(&p, 0,
                ARGV("sh", "-c",
                     test_text("for i in $(seq 1 %d); do ssh -F %s -T -o BatchMode=yes host$i "
                               "exec /bin/true & done; wait",
                               g_hosts - 1, tmppath("ssh_config"))),
                NULL);
    ck_assert_int_eq(proc_wait(&p, 300), 0);
    double took = since(from);
    proc_fini(&p);
    return took;
}

START_TEST(many_hosts_start)
{
    struct proc p;
    start_sshds();
    double ssh = by_daemon() ? 0 : bare_ssh();
    uint64_t from = mono_ns();
    head(&p, 0, "--start_timeout 250 -H %s %%W append %%T/up pause", all_hosts(":2"));
    for (;;) {
        char *text = access(tmppath("up"), F_OK) == 0 ? read_file(tmppath("up")) : NULL;
        int have = text ? count_text(text, "\n") : 0;
        free(text);
        if (have == 2 * g_hosts)
            break;
        ck_assert_msg(since(from) < 250, "%d of %d workers run\n%s", have, 2 * g_hosts, p.err);
        proc_poll(&p);
        test_poll_pause();
    }
    double took = since(from);
    if (by_daemon())
        printf("%d hosts, by daemons: all workers run after %.2f s\n", g_hosts, took);
    else
        printf("%d hosts, by %s: all workers run after %.2f s; a bare ssh to each takes %.2f s\n",
               g_hosts, way(), took, ssh);
    if (getenv("SSH_BARS"))
        ck_assert_double_lt(took, ssh + 1);
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 120);
    expect_idle(60);
    end_test(&p);
}
END_TEST

static int busy_hosts(void)
{
    int n = 0, counts[NETNS_MAX];
    netns_count_each(counts);
    for (int i = 0; i < g_hosts; i++)
        n += counts[i] > g_idle[i];
    return n;
}

/* Every further ssh to a host is a session of one connection, without a login. */
static void keep_logins(void)
{
    struct proc p;
    char *conf = read_file(tmppath("ssh_config"));
    write_file(tmppath("ssh_config"),
               test_text("%s  ControlMaster auto\n  ControlPath %s.%%h\n", conf, tmppath("login")));
    free(conf);
    netns_start(&p, 0,
                ARGV("sh", "-c",
                     test_text("for i in $(seq 0 %d); do ssh -F %s -fN host$i || exit 1; done",
                               g_hosts - 1, tmppath("ssh_config"))),
                NULL);
    ck_assert_int_eq(proc_wait(&p, 300), 0);
    proc_fini(&p);
    netns_count_each(g_idle);
}

static int number_from_env(const char *name, int other)
{
    const char *text = getenv(name);
    return text ? atoi(text) : other;
}

/* The head is killed SSH_LOGINS times after a login on each host, and SSH_TRIALS times without one,
 * which takes most of the time. */
START_TEST(many_killed_heads_leave_nothing)
{
    struct proc p;
    bool kept = _i;
    int trials = number_from_env(kept || by_daemon() ? "SSH_TRIALS" : "SSH_LOGINS", 5);
    double worst = 0, sum = 0;
    if (trials == 0 || (kept && by_daemon()))
        return;
    start_sshds();
    if (kept)
        keep_logins();
    for (int t = 0; t < trials; t++) {
        unlink(tmppath("up"));
        head(&p, 0, "--start_timeout 250 -H %s %%W ignore TERM append %%T/up pause",
             all_hosts(":1"));
        for (int have = 0; have < g_hosts;) {
            char *text = access(tmppath("up"), F_OK) == 0 ? read_file(tmppath("up")) : NULL;
            have = text ? count_text(text, "\n") : 0;
            free(text);
            proc_poll(&p);
            test_poll_pause();
        }
        uint64_t from = mono_ns();
        proc_kill(&p, SIGKILL);
        proc_wait(&p, 20);
        while (busy_hosts()) {
            ck_assert_msg(since(from) < 60, "trial %d: %d hosts are not clean", t, busy_hosts());
            test_poll_pause();
        }
        sum += since(from);
        worst = fmax(worst, since(from));
        proc_fini(&p);
    }
    printf("%d hosts, by %s%s, head killed %d times: clean after %.2f s, %.2f s at most\n", g_hosts,
           way(), kept ? " with kept logins" : "", trials, sum / trials, worst);
    if (getenv("SSH_BARS"))
        ck_assert_double_lt(worst, 1);
    for (int i = 0; i < g_hosts; i++)
        netns_kill(i, NULL, SIGKILL);
}
END_TEST

/* With the time that a host has by default: on a busy machine others may not make it, either. */
START_TEST(one_bad_host_of_many_is_named)
{
    struct proc p;
    start_sshds();
    silence(g_hosts - 1);
    uint64_t from = mono_ns();
    head(&p, 0, "--start_timeout 10 --nnodes 1:%d -H %s %%W append %%T/up pause", g_hosts,
         all_hosts(""));
    proc_expect_err(&p, test_text("host%d: does not answer within 10 s", g_hosts - 1), 100);
    printf("%d hosts, by %s: the bad one is named after %.2f s\n", g_hosts, way(), since(from));
    lines_of(tmppath("up"), 1);
    proc_kill(&p, SIGTERM);
    expect_status(&p, 128 + SIGTERM, 120);
    expect_idle(60);
    end_test(&p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create(way());
    if (!netns_available())
        return s;
    if (!by_daemon() && access("/usr/sbin/sshd", X_OK) < 0) {
        test_skip("there is no /usr/sbin/sshd (Debian: openssh-server)");
        return s;
    }
    TCase *t = test_case(s, "starts", 150);
    tcase_add_checked_fixture(t, setup, netns_teardown);
    tcase_add_test(t, workers_run_on_every_host);
    tcase_add_test(t, the_head_need_not_be_a_node);
    tcase_add_test(t, arguments_arrive_unchanged);
    tcase_add_test(t, rank_0_reads_the_input);
    tcase_add_test(t, output_comes_whole);
    tcase_add_test(t, the_token_is_not_shown);
    tcase_add_test(t, programs_are_copied);
    t = test_case(s, "ends", 150);
    tcase_add_checked_fixture(t, setup, netns_teardown);
    tcase_add_test(t, a_failure_is_reported_once);
    tcase_add_test(t, a_restart_happens_on_all_hosts);
    tcase_add_test(t, an_interrupt_stops_all_hosts);
    tcase_add_test(t, signals_reach_the_workers);
    tcase_add_test(t, a_killed_head_leaves_nothing);
    tcase_add_test(t, a_lost_connection_ends_the_host);
    t = test_case(s, "wrong", 200);
    tcase_add_checked_fixture(t, setup, netns_teardown);
    tcase_add_test(t, a_silent_host_is_named);
    tcase_add_test(t, a_host_that_refuses_is_tried_again);
    tcase_add_loop_test(t, a_host_that_cannot_run_it_is_named, 0, ARRAY_LEN(wrong));
    if (start_is("tree")) {
        t = test_case(s, "tree", 150);
        tcase_add_checked_fixture(t, setup, netns_teardown);
        tcase_add_test(t, a_host_that_cannot_reach_others_is_replaced);
        tcase_add_test(t, hosts_are_lost_with_the_one_that_reaches_them);
        tcase_add_test(t, a_host_that_has_ended_still_reaches_others);
    }
    t = test_case(s, "many start", 600);
    tcase_add_checked_fixture(t, setup_many, netns_teardown);
    tcase_add_test(t, many_hosts_start);
    t = test_case(s, "many killed", 7200);
    tcase_add_checked_fixture(t, setup_many, netns_teardown);
    tcase_add_loop_test(t, many_killed_heads_leave_nothing, 0, 2);
    t = test_case(s, "many bad", 600);
    tcase_add_checked_fixture(t, setup_many, netns_teardown);
    tcase_add_test(t, one_bad_host_of_many_is_named);
    return s;
}

TEST_MAIN(suite)
