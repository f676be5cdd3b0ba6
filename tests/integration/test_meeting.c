/* Launchers that meet, or do not: backends, other jobs, taken ports and ranks, what is said
 * meanwhile. */
#include "tests/integration/job.h"

#include <netinet/in.h>
#include <sys/socket.h>

static char *host_name(void)
{
    char name[256];
    ck_assert_int_eq(gethostname(name, sizeof(name)), 0);
    return test_keep(xstrdup(name));
}

static void nothing_started(void)
{
    ck_assert_msg(access(tmppath("up"), F_OK) != 0, "a worker was started");
}

static const int stop_signals[] = {SIGTERM, SIGINT};

/* The coordinator's port accepts connections, and nobody answers there. The launcher reports it,
 * names the process that has the port, and ends at the first signal. */
START_TEST(a_silent_coordinator)
{
    static const char *const ways[] = {"--node_rank 1 --master_addr 127.0.0.1 --master_port %d",
                                       "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d"};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct proc p;
    int signo = stop_signals[_i / 2];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, len), 0);
    ck_assert_int_eq(listen(listener, 8), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    int port = ntohs(at.sin_port);
    const char *way = _i % 2 ? test_text(ways[1], port) : test_text(ways[0], port);
    dlaunch_start(&p, NULL, "--nnodes 2 %s %%W append %%T/up", way);
    proc_expect_err(&p,
                    test_text("waiting for the coordinator at 127.0.0.1:%d (it accepted the "
                              "connection and has not answered)",
                              port),
                    10);
    proc_expect_err(&p, test_text("port %d of this host belongs to pid %d", port, (int)getpid()),
                    5);
    proc_kill(&p, signo);
    expect_status(&p, 128 + signo, 2);
    proc_fini(&p);
    close(listener);
    nothing_started();
}
END_TEST

/* -------------------------------------------------------------------------------- MIN:MAX nodes */

static const char *elastic(int port, const char *nnodes, const char *last_call)
{
    return test_text(
        "--elastic --nnodes %s --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --rdzv_id j "
        "--rdzv_conf last_call_timeout=%s,join_timeout=20 --max_restarts 3",
        nnodes, port, last_call);
}

START_TEST(min_and_max)
{
    struct proc p[3];
    const char *options = elastic(free_port(), "2:3", "0.2");
    for (int i = 0; i < 2; i++)
        dlaunch_start(&p[i], NULL, "%s %%W env WORLD_SIZE append %%T/up wait %%T/go", options);
    wait_lines(tmppath("up"), 2, 20); /* MIN, and the last call is over */
    dlaunch_start(&p[2], NULL, "%s %%W env WORLD_SIZE append %%T/up wait %%T/go", options);
    wait_lines(tmppath("up"), 5, 20); /* all start again, and it is not charged */
    write_file(tmppath("go"), "");
    for (int i = 0; i < 3; i++) {
        expect_status(&p[i], 0, 20);
        expect_text(p[i].out, "WORLD_SIZE=3\n");
        proc_fini(&p[i]);
    }
}
END_TEST

START_TEST(a_node_leaves_and_min_is_left)
{
    struct proc p[3];
    const char *options = elastic(free_port(), "2:3", "20");
    for (int i = 0; i < 3; i++) {
        dlaunch_start(
            &p[i], NULL,
            "--verbose %s %%W env WORLD_SIZE env TORCHELASTIC_RESTART_COUNT exit-on TERM 0 append "
            "%%T/up wait %%T/go",
            options);
        if (i == 0) /* it is the host */
            proc_expect_err(&p[0], "listening on", 10);
    }
    wait_lines(tmppath("up"), 3, 20);
    proc_kill(&p[2], SIGTERM);
    expect_status(&p[2], 128 + SIGTERM, 10);
    wait_lines(tmppath("up"), 5, 20);
    write_file(tmppath("go"), "");
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 0, 20);
        expect_text(p[i].out, "WORLD_SIZE=2\nTORCHELASTIC_RESTART_COUNT=0\n");
    }
    for (int i = 0; i < 3; i++)
        proc_fini(&p[i]);
}
END_TEST

/* When MAX nodes have joined, the round starts without the last call. */
START_TEST(complete_at_once)
{
    struct proc p[2];
    const char *options =
        test_text("--nnodes 1:2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --rdzv_conf "
                  "last_call_timeout=600",
                  free_port());
    uint64_t start = mono_ns();
    for (int i = 0; i < 2; i++)
        dlaunch_start(&p[i], NULL, "%s %%W env WORLD_SIZE", options);
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 0, 20);
        expect_text(p[i].out, "WORLD_SIZE=2\n");
        proc_fini(&p[i]);
    }
    ck_assert_uint_lt(mono_ns() - start, (uint64_t)(test_seconds(3) * 1e9));
}
END_TEST

/* ------------------------------------------------------------------------------------ by a file */

START_TEST(file_that_a_dead_job_left)
{
    struct proc p;
    dlaunch_start(
        &p, NULL,
        "--verbose --nnodes 2 --rdzv_backend file --rdzv_endpoint %%T/meet --rdzv_id j %%W");
    proc_expect_err(&p, "has joined: 1 of 2", 10);
    proc_kill(&p, SIGKILL);
    expect_status(&p, 128 + SIGKILL, 10);
    proc_fini(&p);
    expect_text(text_of_file(tmppath("meet")), "dlaunch-rendezvous 1 j ");
    struct proc n[2];
    for (int i = 0; i < 2; i++)
        dlaunch_start(&n[i], NULL,
                      "--nnodes 2 --rdzv_backend file --rdzv_endpoint %%T/meet "
                      "--rdzv_id j %%W env WORLD_SIZE");
    for (int i = 0; i < 2; i++) {
        expect_status(&n[i], 0, 20);
        expect_text(n[i].out, "WORLD_SIZE=2\n");
    }
    ck_assert_int_eq(!!strstr(n[0].err, "was left behind by host") +
                         !!strstr(n[1].err, "was left behind by host"),
                     1);
    for (int i = 0; i < 2; i++)
        proc_fini(&n[i]);
    ck_assert_int_ne(access(tmppath("meet"), F_OK), 0);
}
END_TEST

START_TEST(file_of_something_else)
{
    struct proc p;
    write_file(tmppath("notes"), "my notes\n");
    dlaunch_start(&p, NULL,
                  "--nnodes 2 --rdzv_backend file --rdzv_endpoint %%T/notes %%W append "
                  "%%T/up");
    expect_status(&p, 2, 10);
    expect_text(p.err, "/notes is not a rendezvous");
    ck_assert_str_eq(text_of_file(tmppath("notes")), "my notes\n");
    nothing_started();
    proc_fini(&p);
}
END_TEST

/* ----------------------------------------------------------------------- turned away, both told */

/* A node that does not fit the job that is waiting, and what is said of it on both sides. The job
 * waits on, and is complete with one that fits. */
static const struct {
    const char *options, *said;
} misfits[] = {
    {"--nnodes 2 --node_rank 1 --rdzv_id other", "this is job 'j', not 'other' (--rdzv_id)"},
    {"--nnodes 3 --node_rank 1 --rdzv_id j", "this job has --nnodes 2, not 3"},
    {"--nnodes 3 --node_rank 2 --rdzv_id j", "this job has --nnodes 2, not 3"},
    {"--nnodes 2 --node_rank 1 --rdzv_id j --master_store none",
     "this job has --master_store agent, not none"},
    {"--nnodes 2 --node_rank 1 --rdzv_id j --master_store relay",
     "this job has --master_store agent, not relay"},
    {"--nnodes 2 --rdzv_id j --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d",
     "this job meets by --rdzv_backend static, not c10d"},
};

START_TEST(misfit)
{
    struct cluster c = {.n = 2, .port = free_port()};
    struct proc bad;
    const char *said = misfits[_i].said;
    static const char job[] = "--rdzv_id j --rdzv_conf join_timeout=20 %W append %T/good";
    cluster_start_node(&c, 0, "--verbose %s", job);
    proc_expect_err(&c.node[0], "listening on", 10);
    const char *options = misfits[_i].options;
    char *at = strstr(options, "%d");
    options = at ? test_text("%.*s%d", (int)(at - options), options, c.port)
                 : test_text("%s --master_port %d", options, c.port);
    dlaunch_start(&bad, NULL, "%s %%W append %%T/up", options);
    expect_status(&bad, 2, 10);
    expect_text(bad.err, said);
    ck_assert_int_eq(count_text(bad.err, "\n"), 1);
    nothing_started();
    proc_expect_err(&c.node[0], said, 10);
    cluster_start_node(&c, 1, "%s", job);
    cluster_wait(&c, 0, 20);
    ck_assert_int_eq(count_lines(tmppath("good")), 2);
    cluster_fini(&c);
    proc_fini(&bad);
}
END_TEST

START_TEST(the_same_rank_twice)
{
    struct cluster c = {.n = 3, .port = free_port()};
    struct proc again;
    static const char job[] = "--rdzv_conf join_timeout=20 %W append %T/good";
    for (int i = 0; i < 2; i++)
        cluster_start_node(&c, i, "--verbose %s", job);
    proc_expect_err(&c.node[0], "has joined: 2 of 3", 10);
    dlaunch_start(&again, NULL, "--nnodes 3 --node_rank 1 --master_port %d %%W append %%T/up",
                  c.port);
    expect_status(&again, 2, 10);
    expect_text(again.err, "node_rank 1 is already taken by");
    expect_text(again.err, ", pid ");
    ck_assert_int_eq(count_text(again.err, "\n"), 1);
    nothing_started();
    proc_expect_err(&c.node[0], "node_rank 1 is already taken by", 10);
    cluster_start_node(&c, 2, "%s", job);
    cluster_wait(&c, 0, 20);
    ck_assert_int_eq(count_lines(tmppath("good")), 3);
    cluster_fini(&c);
    proc_fini(&again);
}
END_TEST

/* Slurm steps of one node each, in which every launcher is told that it is number 0: by rank and
 * address, and where the rendezvous gives the ranks. */
START_TEST(a_step_for_each_node)
{
    for (int way = 0; way < 2; way++) {
        struct proc p[2];
        int port = free_port();
        bool seen[2] = {false};
        for (int i = 0; i < 2; i++) {
            char *env[] = {"SLURM_JOB_ID=77",
                           i ? "SLURM_STEP_ID=1" : "SLURM_STEP_ID=0",
                           "SLURM_NODEID=0",
                           "SLURM_STEP_NUM_NODES=1",
                           i ? "SLURM_STEP_NODELIST=n2" : "SLURM_STEP_NODELIST=n1",
                           "SLURM_STEP_NUM_TASKS=1",
                           "SLURM_JOB_NUM_NODES=2",
                           NULL};
            char at[128];
            if (way == 0)
                snprintf(at, sizeof(at), "--node_rank %d --master_addr 127.0.0.1 --master_port %d",
                         i, port);
            else
                snprintf(at, sizeof(at), "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d", port);
            dlaunch_start(&p[i], env, "--nnodes 2 %s %%W env WORLD_SIZE env RANK", at);
        }
        for (int i = 0; i < 2; i++) {
            expect_status(&p[i], 0, 20);
            expect_text(p[i].out, "WORLD_SIZE=2\n");
            seen[strstr(p[i].out, "RANK=1\n") != NULL] = true;
            proc_fini(&p[i]);
        }
        ck_assert(seen[0] && seen[1]);
    }
}
END_TEST

START_TEST(one_node_too_many)
{
    struct cluster c;
    struct proc late;
    cluster_start(&c, 2, "%%W append %%T/good wait %%T/go");
    wait_lines(tmppath("good"), 2, 20);
    dlaunch_start(&late, NULL,
                  "--nnodes 2 --master_port %d --rdzv_conf join_timeout=5 %%W append "
                  "%%T/up",
                  c.port);
    expect_status(&late, 2, 15);
    expect_text(late.err, "all 2 nodes have joined");
    ck_assert_int_eq(count_text(late.err, "\n"), 1);
    nothing_started();
    write_file(tmppath("go"), "");
    cluster_wait(&c, 0, 20);
    cluster_fini(&c);
    proc_fini(&late);
}
END_TEST

/* ------------------------------------------------------------------------------ ports and names */

static int listener(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(fd, 5), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

START_TEST(port_in_use)
{
    int port, fd = listener(&port);
    struct proc token; /* else the first launcher with a peer creates one, and reports it */
    ck_assert_int_eq(dlaunch_run(&token, 10, "--new_token --token_file %%T/token"), 0);
    proc_fini(&token);
    const char *lines[] = {
        test_text("--master_port %d", port),
        test_text("--nnodes 2 --node_rank 0 --master_port %d", port),
        test_text("--nnodes 2 --node_rank 0 --master_addr localhost --master_port %d", port),
        test_text("--nnodes 2 --node_rank 0 --master_addr %s --master_port %d", host_name(), port),
        test_text("--nnodes 2 --rdzv_backend c10d --rdzv_conf is_host=1 --rdzv_endpoint %s:%d",
                  host_name(), port),
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct proc p;
        dlaunch_start(&p, NULL, "--token_file %%T/token %s %%W append %%T/up", lines[i]);
        expect_status(&p, 2, 10);
        expect_text(p.err, "Address already in use");
        expect_text(p.err, test_text("by pid %d (test_meeting)", getpid()));
        ck_assert_int_eq(count_text(p.err, "\n"), 1);
        nothing_started();
        proc_fini(&p);
    }
    close(fd);
}
END_TEST

/* Retried until the join timeout, with a line every few seconds. */
START_TEST(name_that_does_not_resolve)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nnodes 2 --node_rank 1 --master_addr no-such-host.invalid "
                  "--rdzv_conf join_timeout=3 %%W append %%T/up");
    proc_expect_err(&p,
                    "waiting for the coordinator at no-such-host.invalid:29500 (cannot resolve "
                    "no-such-host.invalid: ",
                    10);
    expect_status(&p, 1, 10);
    expect_words(p.err, "no coordinator at no-such-host.invalid:29500 within 3 s");
    nothing_started();
    proc_fini(&p);
}
END_TEST

/* Rank 0 goes on, because the name may be one that only the other nodes know; but it says so, at
 * once and in each line about the nodes that are missing. */
START_TEST(name_that_does_not_resolve_for_rank_0)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nnodes 2 --node_rank 0 --master_addr no-such-host.invalid --master_port %d "
                  "--rdzv_conf join_timeout=5 %%W append %%T/up",
                  free_port());
    proc_expect_err(&p, "cannot resolve no-such-host.invalid: ", 4);
    proc_expect_err(&p, ": listening on all addresses of this host", 1);
    proc_expect_err(&p, "missing: node_rank 1 (cannot resolve no-such-host.invalid: ", 10);
    expect_status(&p, 1, 10);
    expect_words(p.err, "only 1 of 2 nodes joined within 5 s");
    ck_assert_int_eq(count_text(p.err, "listening on all"), 1);
    nothing_started();
    proc_fini(&p);
}
END_TEST

/* ----------------------------------------------------------------------------------------- etcd */

static struct proc etcd;

/* Starts tests/fake/etcd.py; its port. */
static int start_etcd(void)
{
    proc_start(&etcd, ARGV("python3", "tests/fake/etcd.py"), NULL, 0);
    proc_expect_out(&etcd, "\n", 20);
    return atoi(etcd.out + strlen("port "));
}

/* A job of several nodes at an etcd on this host. */
static const char *at_etcd(int port, int nnodes)
{
    return test_text("--rdzv_backend etcd --rdzv_endpoint 127.0.0.1:%d --rdzv_id j --nnodes %d "
                     "--verbose --rdzv_conf "
                     "keep_alive_interval=0.5,keep_alive_max_attempt=8,join_timeout=40",
                     port, nnodes);
}

/* etcd at localhost does not mean that the nodes are: they listen everywhere, under the user's own
 * token. */
START_TEST(etcd_at_localhost)
{
    struct proc p[2];
    char *env[] = {test_text("XDG_CONFIG_HOME=%s", tmppath("config")), "DLAUNCH_TOKEN",
                   "DLAUNCH_TOKEN_FILE", NULL};
    const char *options = at_etcd(start_etcd(), 2);
    for (int i = 0; i < 2; i++)
        dlaunch_start(&p[i], env, "%s %%W env WORLD_SIZE", options);
    for (int i = 0; i < 2; i++) {
        expect_status(&p[i], 0, 40);
        expect_text(p[i].out, "WORLD_SIZE=2\n");
    }
    ck_assert_int_eq(count_text(p[0].err, "created a job token") +
                         count_text(p[1].err, "created a job token"),
                     1);
    for (int i = 0; i < 2; i++)
        proc_fini(&p[i]);
    proc_fini(&etcd);
}
END_TEST

/* A coordinator without a round is stopped for longer than its lease, and another launcher gets the
 * key: the first one is redirected to it, and renews nothing any more. */
START_TEST(etcd_gives_the_key_to_another)
{
    struct proc p[3];
    const char *options = at_etcd(start_etcd(), 3);
    dlaunch_start(&p[0], NULL, "--insecure %s %%W env WORLD_SIZE", options);
    proc_expect_err(&p[0], "waiting for nodes", 20);
    pid_t agent = agent_of(&p[0]);
    proc_kill(&p[0], SIGSTOP);
    ck_assert_int_eq(kill(agent, SIGSTOP), 0);
    proc_kill(&etcd, SIGUSR1);
    dlaunch_start(&p[1], NULL, "--insecure %s %%W env WORLD_SIZE", options);
    proc_expect_err(&p[1], "waiting for nodes", 20);
    ck_assert_int_eq(kill(agent, SIGCONT), 0);
    proc_kill(&p[0], SIGCONT);
    proc_expect_err(&p[0], "the job 'j' runs already", 20);
    /* Between two of these lines a coordinator renews its lease several times. */
    for (uint64_t end = mono_ns() + 30000000000u; count_text(p[0].err, "2 of 3 here") < 2;) {
        ck_assert_msg(!proc_poll(&p[0]) && mono_ns() < end, "%s", p[0].err);
        test_poll_pause();
    }
    dlaunch_start(&p[2], NULL, "--insecure %s %%W env WORLD_SIZE", options);
    for (int i = 0; i < 3; i++) {
        expect_status(&p[i], 0, 40);
        expect_text(p[i].out, "WORLD_SIZE=3\n");
        proc_fini(&p[i]);
    }
    proc_fini(&etcd);
}
END_TEST

/* ------------------------------------------------------------------------------------ addresses */

/* The address is warned about, but used: it may exist only outside this host (NAT). More often the
 * coordinator was started on the wrong host. */
START_TEST(address_of_another_host)
{
    static const char *const hosts[] = {"--node_rank 0 --nnodes 2 %W append %T/up",
                                        "--rdzv_only --nnodes 2"};
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        struct proc p;
        char *line = test_text("--rdzv_endpoint 192.0.2.1:%d --rdzv_conf join_timeout=1 %s",
                               free_port(), hosts[i]);
        dlaunch_start(&p, NULL, "%s", line);
        expect_status(&p, 1, 10);
        expect_text(p.err, "192.0.2.1 is no address of this host: listening on all of its own\n");
        ck_assert_int_eq(count_text(p.err, "listening on all"), 1);
        expect_words(p.err, "(192.0.2.1 is no address of this host)"); /* again, at the end */
        nothing_started();
        proc_fini(&p);
    }
}
END_TEST

START_TEST(local_addr_that_does_not_resolve)
{
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nnodes 2 --node_rank 0 --local_addr no-such-host.invalid "
                  "--rdzv_conf join_timeout=1 --master_port %d %%W append %%T/up",
                  free_port());
    expect_status(&p, 1, 10);
    expect_words(p.err, "(--local_addr)");
    nothing_started();
    proc_fini(&p);
}
END_TEST

/* Somebody listens there, but no dlaunch; and nobody does. */
START_TEST(no_coordinator_there)
{
    int port, fd = listener(&port);
    struct proc p;
    dlaunch_start(&p, NULL,
                  "--nnodes 2 --node_rank 1 --master_port %d --rdzv_conf "
                  "join_timeout=1,read_timeout=0.3 %%W append %%T/up",
                  port);
    expect_status(&p, 1, 10);
    expect_words(p.err, test_text("127.0.0.1:%d", port));
    proc_fini(&p);
    close(fd);
    dlaunch_start(&p, NULL,
                  "--nnodes 2 --node_rank 1 --master_port %d --rdzv_conf join_timeout=1 "
                  "%%W append %%T/up",
                  port);
    expect_status(&p, 1, 10);
    expect_words(p.err, "Connection refused");
    nothing_started();
    proc_fini(&p);
}
END_TEST

START_TEST(present_and_missing_nodes_are_listed)
{
    struct cluster c = {.n = 2, .port = free_port()};
    static const char line[] = "--nnodes 4 --node_rank %d --master_port %d --rdzv_conf "
                               "join_timeout=4 %%W append %%T/up";
    dlaunch_start(&c.node[0], NULL, line, 0, c.port);
    dlaunch_start(&c.node[1], NULL, line, 2, c.port);
    char *host = host_name();
    for (int i = 0; i < 2; i++)
        proc_expect_err(&c.node[i],
                        test_text("2 of 4 here: %s, %s; missing: node_rank 1, 3", host, host), 10);
    for (int i = 0; i < 2; i++) {
        expect_status(&c.node[i], 1, 10);
        expect_words(c.node[i].err, "only 2 of 4 nodes joined within 4 s");
        expect_words(c.node[i].err, "node_rank 1, 3");
    }
    nothing_started();
    cluster_fini(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("meeting");
    TCase *tc = test_case(s, "elastic", 90);
    tcase_add_test(tc, min_and_max);
    tcase_add_test(tc, a_node_leaves_and_min_is_left);
    tcase_add_test(tc, complete_at_once);
    tc = test_case(s, "etcd", 90);
    tcase_add_test(tc, etcd_at_localhost);
    tcase_add_test(tc, etcd_gives_the_key_to_another);
    tc = test_case(s, "file", 60);
    tcase_add_test(tc, file_that_a_dead_job_left);
    tcase_add_test(tc, file_of_something_else);
    tc = test_case(s, "turned away", 60);
    tcase_add_loop_test(tc, misfit, 0, ARRAY_LEN(misfits));
    tcase_add_test(tc, the_same_rank_twice);
    tcase_add_test(tc, a_step_for_each_node);
    tcase_add_test(tc, one_node_too_many);
    tc = test_case(s, "endpoint", 60);
    tcase_add_test(tc, port_in_use);
    tcase_add_loop_test(tc, a_silent_coordinator, 0, 2 * ARRAY_LEN(stop_signals));
    tcase_add_test(tc, name_that_does_not_resolve);
    tcase_add_test(tc, name_that_does_not_resolve_for_rank_0);
    tcase_add_test(tc, address_of_another_host);
    tcase_add_test(tc, local_addr_that_does_not_resolve);
    tcase_add_test(tc, no_coordinator_there);
    tcase_add_test(tc, present_and_missing_nodes_are_listed);
    return s;
}

TEST_MAIN(suite)
