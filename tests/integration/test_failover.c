/* The node that has the coordinator dies: the others choose another one, or say why not. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/mem.h"
#include "core/netaddr.h"
#include "rendezvous/discovery/rdzv_probe.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "tests/integration/elastic_nodes.h"

enum how { GUARDIAN, AGENT, FREEZE };

static void take_down(struct nodes *c, int i, enum how how)
{
    if (how == GUARDIAN)
        proc_kill(&c->p[i], SIGKILL);
    else
        kill(agent_of(&c->p[i]), how == AGENT ? SIGKILL : SIGSTOP);
}

/* n nodes, of which the first goes down and then, in the next round, the one that took over. */
static void succession(const char *name, int n, enum how how)
{
    struct nodes c;
    int lines = 2 * n;
    nodes_begin(&c, name);
    char *nnodes = test_text("--nnodes 2:%d", n);
    for (int i = 0; i < n; i++)
        nodes_add(&c, nnodes, "env WORLD_SIZE env MASTER_PORT wait %T/go");
    wait_lines(c.up, lines, 20);
    uint64_t start = mono_ns();
    take_down(&c, 0, how);
    lines += 2 * (n - 1);
    wait_lines(c.up, lines, 20);
    printf("%s: %.0f ms from the loss of the coordinator to the next round\n", name,
           (double)(mono_ns() - start) / 1e6);
    write_file(tmppath("go"), "");
    int standing = 0;
    for (int i = 1; i < n; i++) {
        nodes_expect(&c, i, 0);
        expect_text(c.p[i].err, "the coordinator at 127.0.0.1");
        standing += strstr(c.p[i].err, "this node is the coordinator now") != NULL;
    }
    ck_assert_int_eq(standing, 1);
    if (how == FREEZE)
        nodes_expect(&c, 0, 125);
    nodes_end(&c);
    unlink(tmppath("go"));
}

START_TEST(the_coordinators_launcher_is_killed)
{
    succession("guardian-killed", 4, GUARDIAN);
    succession("agent-killed", 3, AGENT);
}
END_TEST

START_TEST(the_coordinators_agent_freezes)
{
    succession("agent-frozen", 3, FREEZE);
}
END_TEST

START_TEST(one_after_the_other)
{
    struct nodes c;
    int lines = 0;
    nodes_begin(&c, "up");
    for (int i = 0; i < 5; i++) /* node ranks, so that who is next is known */
        nodes_add(&c, test_text("--nnodes 2:5 --node_rank %d", i), "wait %T/go");
    for (int dead = 0; dead < 3; dead++) {
        lines += 2 * (5 - dead);
        wait_lines(c.up, lines, 20);
        take_down(&c, dead, GUARDIAN);
    }
    lines += 2 * 2;
    wait_lines(c.up, lines, 20); /* 5 -> 4 -> 3 -> 2, each time by a majority */
    write_file(tmppath("go"), "");
    nodes_expect(&c, 3, 0);
    nodes_expect(&c, 4, 0);
    nodes_end(&c);
}
END_TEST

START_TEST(a_minority_stops_and_reports_it)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 4; i++)
        nodes_add(&c, test_text("--nnodes 1:4 --node_rank %d", i), "pause");
    wait_lines(c.up, 8, 20);
    for (int i = 0; i < 3; i++)
        proc_kill(&c.p[i], SIGSTOP);
    for (int i = 0; i < 3; i++) /* in one instant, as far as the last one can see */
        kill(agent_of(&c.p[i]), SIGKILL);
    nodes_expect(&c, 3, 1);
    expect_text(c.p[3].err, "majority:"); /* lines are wrapped */
    nodes_end(&c);
}
END_TEST

START_TEST(one_of_two_nodes_is_not_a_majority)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 2; i++)
        nodes_add(&c, "--nnodes 1:2", "pause");
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[0], SIGKILL);
    nodes_expect(&c, 1, 1);
    expect_text(c.p[1].err, "the coordinator at 127.0.0.1");
    expect_text(c.p[1].err, "one node of two is no majority");
    nodes_end(&c);
}
END_TEST

/* A launcher without workers. */
static int add_apart(struct nodes *c, const char *options)
{
    int i = c->n++;
    dlaunch_start(&c->p[i], NULL,
                  "%s --rdzv_conf keep_alive_interval=0.2,keep_alive_max_attempt=15,"
                  "last_call_timeout=20,join_timeout=20",
                  options);
    return i;
}

/* Adds one of two nodes: the first waits up to 20 s for the second, and later continues without it.
 */
static int add_of_two(struct nodes *c, const char *job)
{
    const char *options = c->n == 0 ? "--verbose --nnodes 1:2 --rdzv_conf is_host=1"
                                    : "--nnodes 1:2 --rdzv_conf is_host=0";
    return nodes_add(c,
                     test_keep(xasprintf("%s,keep_alive_interval=0.2,keep_alive_max_attempt=15,"
                                         "last_call_timeout=20,join_timeout=20",
                                         options)),
                     job);
}

#define JOINED "has joined, without workers"

/* Two nodes and a witness, which comes first or when the workers run already. */
static void with_a_witness(bool late, enum how how)
{
    struct nodes c;
    nodes_begin(&c, test_keep(xasprintf("%s-%d", late ? "late" : "early", how)));
    char *go = xasprintf("env WORLD_SIZE wait %s/go-%d-%d", tmpdir(), late, how);
    char *witness = test_keep(xasprintf("--witness 127.0.0.1:%d", c.port));
    int nodes[2], w = -1;
    nodes[0] = add_of_two(&c, go);
    if (!late) {
        w = add_apart(&c, witness);
        proc_expect_err(&c.p[nodes[0]], JOINED, 20);
    }
    nodes[1] = add_of_two(&c, go);
    wait_lines(c.up, 4, 20);
    if (late) {
        w = add_apart(&c, witness);
    }
    proc_expect_err(&c.p[nodes[0]], "has a vote", 20);
    take_down(&c, nodes[0], how);
    wait_lines(c.up, 6, 20);
    write_file(strstr(go, tmpdir()), "");
    nodes_expect(&c, nodes[1], 0);
    expect_text(c.p[nodes[1]].err, "this node is the coordinator now, by 2 of the 3");
    expect_text(c.p[nodes[1]].out, "WORLD_SIZE=2\n");
    nodes_expect(&c, w, 0);
    nodes_end(&c);
    free(go);
}

START_TEST(one_of_two_nodes_and_a_witness_are_a_majority)
{
    with_a_witness(false, GUARDIAN);
    with_a_witness(true, AGENT);
    with_a_witness(true, FREEZE);
}
END_TEST

START_TEST(a_lost_witness_restarts_nothing)
{
    struct nodes c;
    nodes_begin(&c, "up");
    nodes_add(&c, "--verbose --nnodes 2", "wait %T/go");
    add_apart(&c, test_keep(xasprintf("--witness 127.0.0.1:%d", c.port)));
    proc_expect_err(&c.p[0], JOINED, 20);
    int i = nodes_add(&c, "--nnodes 2", "wait %T/go");
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[1], SIGKILL);
    proc_expect_err(&c.p[0], "was lost: its launcher has ended", 20);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 0, 0);
    nodes_expect(&c, i, 0);
    ck_assert_int_eq(count_lines(c.up), 4);
    nodes_end(&c);
}
END_TEST

/* -------------------------------------------------------------- a coordinator outside the nodes */

static void begin_outside(struct nodes *c)
{
    nodes_begin(c, "up");
    add_apart(c, test_keep(xasprintf("--verbose --rdzv_only --nnodes 1:2 --elastic "
                                     "--rdzv_endpoint 127.0.0.1:%d",
                                     c->port)));
}

START_TEST(a_node_is_lost_and_another_one_joins)
{
    struct nodes c;
    begin_outside(&c);
    nodes_add(&c, "--nnodes 1:2", "env WORLD_SIZE wait %T/go");
    nodes_add(&c, "--nnodes 1:2", "env WORLD_SIZE wait %T/go");
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[1], SIGKILL);
    wait_lines(c.up, 6, 20);
    nodes_add(&c, "--nnodes 1:2", "env WORLD_SIZE wait %T/go");
    wait_lines(c.up, 10, 20);
    write_file(tmppath("go"), "");
    for (int i = 2; i < 4; i++) {
        nodes_expect(&c, i, 0);
        expect_text(c.p[i].out, "WORLD_SIZE=4\n");
    }
    nodes_expect(&c, 0, 0); /* with its job */
    nodes_end(&c);
}
END_TEST

START_TEST(the_coordinator_outside_is_lost)
{
    struct nodes c;
    begin_outside(&c);
    nodes_add(&c, "--nnodes 1:2", "env WORLD_SIZE wait %T/go");
    nodes_add(&c, "--nnodes 1:2", "env WORLD_SIZE wait %T/go");
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[0], SIGKILL);
    wait_lines(c.up, 8, 20); /* both are a majority of both */
    write_file(tmppath("go"), "");
    for (int i = 1; i < 3; i++) {
        nodes_expect(&c, i, 0);
        expect_text(c.p[i].out, "WORLD_SIZE=4\nWORLD_SIZE=4\n");
    }
    nodes_end(&c);
}
END_TEST

START_TEST(the_coordinator_outside_is_asked_to_stop)
{
    struct nodes c;
    begin_outside(&c);
    nodes_add(&c, "--nnodes 1:2", "pause");
    nodes_add(&c, "--nnodes 1:2", "pause");
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[0], SIGTERM);
    for (int i = 0; i < 3; i++) {
        nodes_expect(&c, i, 128 + SIGTERM);
        expect_text(c.p[i].err, "received SIGTERM");
    }
    nodes_end(&c);
}
END_TEST

/* -------------------------------------------------------------------------- a list of endpoints */

/* A node that knows three places; is_host: what the node of the first one has. */
static int add_with_list(struct nodes *c, const int ports[3], int is_host, const char *options)
{
    int i = c->n++;
    dlaunch_start(&c->p[i], NULL,
                  "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d "
                  "--nproc_per_node 2 --nnodes 1:3 --elastic --rdzv_conf is_host=%d,"
                  "keep_alive_interval=0.2,keep_alive_max_attempt=15,last_call_timeout=20,"
                  "join_timeout=20 %s %%W append %s env WORLD_SIZE env MASTER_PORT wait %%T/go",
                  ports[0], ports[1], ports[2], is_host, options, c->up);
    return i;
}

START_TEST(late_and_returning_nodes_find_the_coordinator)
{
    struct nodes c;
    nodes_begin(&c, "up");
    const int ports[3] = {c.port, free_port(), free_port()};
    for (int i = 0; i < 3; i++)
        add_with_list(&c, ports, i == 0, "");
    wait_lines(c.up, 6, 20);
    proc_kill(&c.p[0], SIGKILL);
    wait_lines(c.up, 6 + 4, 20);
    int back = add_with_list(&c, ports, 1, ""); /* begins no job of its own */
    wait_lines(c.up, 6 + 4 + 6, 20);
    proc_kill(&c.p[1], SIGKILL); /* it or the next has the coordinator now */
    wait_lines(c.up, 6 + 4 + 6 + 4, 20);
    int late = add_with_list(&c, ports, 0, "");
    wait_lines(c.up, 6 + 4 + 6 + 4 + 6, 20);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 2, 0);
    nodes_expect(&c, back, 0);
    nodes_expect(&c, late, 0);
    expect_text(c.p[late].out, "WORLD_SIZE=6\n");
    nodes_end(&c);
}
END_TEST

/* ---------------------------------------------------------------------------- a single endpoint */

/* A node that knows one place, which is its own with is_host. */
static int add_with_one(struct nodes *c, bool is_host, const char *options, const char *job)
{
    int i = c->n++;
    dlaunch_start(&c->p[i], NULL,
                  "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --nproc_per_node 2 --rdzv_conf "
                  "is_host=%d,keep_alive_interval=0.2,keep_alive_max_attempt=15,"
                  "last_call_timeout=20,join_timeout=40 %s %%W append %s %s",
                  c->port, is_host, options, c->up, job);
    return i;
}

#define SIZES "env WORLD_SIZE wait %T/go"

/* Three nodes, whose coordinator's is killed in round 1: two are in round 2. */
static void begin_and_lose_the_first(struct nodes *c, const char *options, const char *job)
{
    nodes_begin(c, "up");
    for (int i = 0; i < 3; i++)
        add_with_one(c, i == 0, options, job);
    wait_lines(c->up, 6, 20);
    proc_kill(&c->p[0], SIGKILL);
    wait_lines(c->up, 6 + 4, 20);
}

static bool was_elected(struct nodes *c, int i)
{
    proc_poll(&c->p[i]);
    return strstr(c->p[i].err, "this node is the coordinator now") != NULL;
}

START_TEST(the_first_host_rejoins_at_its_own_endpoint)
{
    struct nodes c;
    const char *options = "--nnodes 1:3 --elastic";
    begin_and_lose_the_first(&c, options, SIZES);
    int elected = was_elected(&c, 1) ? 1 : 2;
    int back = add_with_one(&c, true, options, SIZES);
    wait_lines(c.up, 6 + 4 + 6, 20);
    proc_kill(&c.p[3 - elected], SIGKILL);
    wait_lines(c.up, 6 + 4 + 6 + 4, 20);
    int late = add_with_one(&c, false, options, SIZES); /* is sent on from there */
    wait_lines(c.up, 6 + 4 + 6 + 4 + 6, 20);
    proc_kill(&c.p[elected], SIGKILL);
    wait_lines(c.up, 6 + 4 + 6 + 4 + 6 + 4, 20);
    int later = add_with_one(&c, false, options, SIZES);
    wait_lines(c.up, 6 + 4 + 6 + 4 + 6 + 4 + 6, 20);
    write_file(tmppath("go"), "");
    for (int i = back; i <= later; i++) {
        nodes_expect(&c, i, 0);
        expect_text(c.p[i].out, "WORLD_SIZE=6\n");
    }
    expect_text(c.p[back].err, "the job 'none' runs already");
    expect_text(c.p[late].err, "is not the coordinator, which is at 127.0.0.1");
    ck_assert_ptr_null(strstr(c.p[back].out, "WORLD_SIZE=2\n")); /* alone */
    nodes_end(&c);
}
END_TEST

/* The first host is refused, and both sides log why. */
START_TEST(the_first_host_rejoins_with_another_token)
{
    struct nodes c;
    static const char *const tokens[] = {"token", "other"};
    for (int i = 0; i < 2; i++) {
        write_file(tmppath(tokens[i]), test_text("the %s of a test\n", tokens[i]));
        ck_assert_int_eq(chmod(tmppath(tokens[i]), 0600), 0);
    }
    begin_and_lose_the_first(&c, "--nnodes 1:3 --token_file %T/token", SIZES);
    int elected = was_elected(&c, 1) ? 1 : 2;
    int back = add_with_one(&c, true, "--nnodes 2:3 --token_file %T/other", SIZES);
    proc_expect_err(&c.p[back], "refused a launcher with another job token than this node's", 20);
    proc_expect_err(
        &c.p[elected],
        test_text("the launcher at 127.0.0.1:%d has another job token than this node (", c.port),
        20);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 1, 0);
    nodes_expect(&c, 2, 0);
    proc_kill(&c.p[back], SIGKILL);
    nodes_end(&c);
}
END_TEST

static int add_static(struct nodes *c, int rank)
{
    int i = c->n++;
    dlaunch_start(&c->p[i], NULL,
                  "--nnodes 3 --node_rank %d --master_addr 127.0.0.1 --master_port %d "
                  "--max_node_restarts 4 --nproc_per_node 2 --rdzv_conf keep_alive_interval=0.2,"
                  "keep_alive_max_attempt=15,join_timeout=40 %%W append %s env GROUP_RANK "
                  "wait %%T/go",
                  rank, c->port, c->up);
    return i;
}

/* A static job goes on with all of its nodes only. */
START_TEST(the_first_host_rejoins_a_static_job)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int rank = 0; rank < 3; rank++)
        add_static(&c, rank);
    wait_lines(c.up, 6, 20);
    proc_kill(&c.p[0], SIGKILL);
    int back = add_static(&c, 0);
    wait_lines(c.up, 6 + 6, 30);
    proc_kill(&c.p[2], SIGKILL);
    int sent_on = add_static(&c, 2);
    wait_lines(c.up, 6 + 6 + 6, 30);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 1, 0);
    nodes_expect(&c, back, 0);
    expect_text(c.p[back].err, "the job 'none' runs already");
    expect_text(c.p[back].out, "GROUP_RANK=0\n");
    nodes_expect(&c, sent_on, 0);
    expect_text(c.p[sent_on].out, "GROUP_RANK=2\n");
    nodes_end(&c);
}
END_TEST

/* The successor is there before its predecessor is known to be gone. */
START_TEST(a_successor_comes_early)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int rank = 0; rank < 3; rank++)
        add_static(&c, rank);
    wait_lines(c.up, 6, 20);
    int successor = add_static(&c, 2);
    proc_expect_err(&c.p[successor], "node_rank 2 is already taken by", 20);
    proc_kill(&c.p[2], SIGKILL);
    wait_lines(c.up, 6 + 6, 30);
    write_file(tmppath("go"), "");
    nodes_expect(&c, 0, 0);
    nodes_expect(&c, 1, 0);
    nodes_expect(&c, successor, 0);
    nodes_end(&c);
}
END_TEST

START_TEST(the_first_host_waits_for_a_place_in_the_job)
{
    struct nodes c;
    const char *options = "--nnodes 2:3 --max_restarts 1";
    const char *job = "env WORLD_SIZE if-attempt 0 wait %T/fail if-attempt 0 exit 3 wait %T/go";
    begin_and_lose_the_first(&c, options, job);
    int back = add_with_one(&c, true, options, job);
    proc_expect_err(&c.p[back], "waits for a place", 20);
    ck_assert_int_eq(count_lines(c.up), 6 + 4);
    write_file(tmppath("fail"), "");
    wait_lines(c.up, 6 + 4 + 6, 20);
    write_file(tmppath("go"), "");
    for (int i = 1; i < 4; i++)
        nodes_expect(&c, i, 0);
    expect_text(c.p[back].out, "WORLD_SIZE=6\n");
    nodes_end(&c);
}
END_TEST

static bool listens(void *arg)
{
    struct netaddr a;
    netaddr_parse_ip(&a, "127.0.0.1", *(int *)arg);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = connect(fd, &a.sa, a.len);
    close(fd);
    return rc == 0;
}

/* The first host's launcher is back in its place before the others detect its loss. */
START_TEST(the_first_host_restarts_before_its_loss_is_detected)
{
    struct nodes c;
    const char *options = "--nnodes 2:3 --elastic";
    nodes_begin(&c, "up");
    for (int i = 0; i < 3; i++)
        add_with_one(&c, i == 0, options, SIZES);
    wait_lines(c.up, 6, 20);
    pid_t agents[] = {agent_of(&c.p[1]), agent_of(&c.p[2])};
    for (int i = 0; i < 2; i++)
        kill(agents[i], SIGSTOP);
    proc_kill(&c.p[0], SIGKILL);
    proc_wait(&c.p[0], 20);
    int back = add_with_one(&c, true, options, SIZES);
    wait_until(listens, &c.port, 20, "the one that is back to listen");
    for (int i = 0; i < 2; i++)
        kill(agents[i], SIGCONT);
    proc_expect_err(&c.p[back], "the job 'none' runs already", 20);
    write_file(tmppath("go"), "");
    for (int i = 1; i < 4; i++)
        nodes_expect(&c, i, 0);
    ck_assert_ptr_null(strstr(c.p[back].err, "another job"));
    nodes_end(&c);
}
END_TEST

/* A launcher without workers that had the coordinator is a witness afterwards. */
START_TEST(a_coordinator_outside_restarts)
{
    struct nodes c;
    begin_outside(&c);
    for (int i = 0; i < 2; i++)
        nodes_add(&c, "--verbose --nnodes 1:2 --elastic", SIZES);
    wait_lines(c.up, 4, 20);
    proc_kill(&c.p[0], SIGKILL);
    wait_lines(c.up, 8, 20);
    int back = add_apart(&c, test_keep(xasprintf("--rdzv_only --nnodes 1:2 --elastic "
                                                 "--rdzv_endpoint 127.0.0.1:%d",
                                                 c.port)));
    proc_expect_err(&c.p[back], "the job 'none' runs already", 20);
    int late = nodes_add(&c, "--nnodes 1:2 --elastic", SIZES); /* is sent on, too */
    proc_expect_err(&c.p[late], "waits for a place", 20);
    ck_assert_int_eq(count_lines(c.up), 8);
    write_file(tmppath("go"), "");
    for (int i = 1; i < c.n; i++)
        nodes_expect(&c, i, 0);
    nodes_end(&c);
}
END_TEST

/* The second launcher takes over before the first round: it waited for the first one as a member,
 * with a standby of its own. */
START_TEST(takeover_before_the_first_round)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 2; i++) {
        c.n++;
        dlaunch_start(&c.p[i], NULL,
                      "--verbose --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --nnodes 1:3 "
                      "--rdzv_conf last_call_timeout=%d,keep_alive_interval=0.2,"
                      "keep_alive_max_attempt=15 %%W append %s",
                      c.port, i == 0 ? 20 : 0, c.up);
        proc_expect_err(&c.p[i], i == 0 ? "listening on" : "waiting for nodes", 20);
    }
    proc_kill(&c.p[0], SIGKILL);
    nodes_expect(&c, 1, 0);
    ck_assert_int_eq(count_lines(c.up), 1);
    nodes_end(&c);
}
END_TEST

static bool one_follower_warns(void *arg)
{
    struct nodes *c = arg;
    char text[100];
    bool warned = false;
    snprintf(text, sizeof(text), "another job with the id 'none' runs at 127.0.0.1:%d", c->port);
    for (int i = 1; i < 3; i++) {
        proc_poll(&c->p[i]);
        warned |= strstr(c->p[i].err, text) != NULL;
    }
    return warned;
}

/* Two jobs of one id: the others were stopped for so long that a new one has begun. */
START_TEST(two_jobs_of_one_id_are_reported)
{
    struct nodes c;
    begin_and_lose_the_first(&c, "--nnodes 1:3", SIZES);
    int other = c.n++;
    dlaunch_start(&c.p[other], NULL,
                  "--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:%d --nnodes 1:3 --rdzv_conf "
                  "is_host=1,last_call_timeout=0,keep_alive_interval=0.2,keep_alive_max_attempt=15 "
                  "%%W append %s %s",
                  c.port, c.up, SIZES);
    proc_expect_err(&c.p[other], "another job with the id 'none' runs at 127.0.0.1:", 20);
    wait_until(one_follower_warns, &c, 20, "one of the other two reports the second job");
    ck_assert_int_eq(count_lines(c.up), 6 + 4 + 1);
    write_file(tmppath("go"), "");
    for (int i = 1; i < 4; i++)
        nodes_expect(&c, i, 0);
    nodes_end(&c);
}
END_TEST

/* Says to the launcher at the endpoint that the job is at that port. True: it goes there. */
static bool tell(const struct nodes *c, const char *run_id, int port)
{
    struct rdzv_elsewhere where = {.port = port};
    struct rdzv_identity id = {0};
    struct netaddr a;
    strcpy(where.run_id, run_id);
    netaddr_parse_ip(&a, "127.0.0.1", c->port);
    ck_assert_int_eq(rdzv_tell(&a, 10000, NULL, &where, &id), 0);
    ck_assert_str_eq(id.run_id, "none");
    ck_assert_int_eq(id.port, 0);
    return id.elsewhere;
}

/* The one that was elected is lost right then: the job begins where it always did, with those who
 * have waited there before. */
START_TEST(redirected_to_an_endpoint_without_listener)
{
    struct nodes c;
    const char *options = "--verbose --nnodes 3";
    nodes_begin(&c, "up");
    for (int i = 0; i < 2; i++)
        add_with_one(&c, i == 0, options, "env WORLD_SIZE");
    proc_expect_err(&c.p[0], "has joined: 2 of 3", 20);
    ck_assert(!tell(&c, "another", free_port()));
    ck_assert(tell(&c, "none", free_port()));
    proc_expect_err(&c.p[0], "the job 'none' runs already", 20);
    add_with_one(&c, false, options, "env WORLD_SIZE");
    for (int i = 0; i < 3; i++) {
        nodes_expect(&c, i, 0);
        expect_text(c.p[i].out, "WORLD_SIZE=6\n");
    }
    ck_assert_int_eq(count_lines(c.up), 6);
    nodes_end(&c);
}
END_TEST

START_TEST(lists_of_endpoints_that_cannot_be)
{
    static const struct {
        const char *line, *text;
    } wrong[] = {
        {"--rdzv_backend c10d --rdzv_endpoint a:1,b:x true", "'b:x': port 'x' is not a number"},
        {"--rdzv_backend c10d --rdzv_endpoint a:1,,b true", "has an empty entry"},
        {"--rdzv_backend c10d --rdzv_endpoint a, true", "has an empty entry"},
        {"--rdzv_backend c10d --rdzv_endpoint a:1,b,a:1 true", "a:1 is listed twice"},
        {"--rdzv_backend c10d --rdzv_endpoint a:0,b true", "port 0 (any free port)"},
        {"--rdzv_backend c10d --rdzv_endpoint a,b!c true", "'b!c' is not host:port"},
        {"--rdzv_endpoint a,b true", "a list of endpoints needs --rdzv_backend c10d"},
        {"--rdzv_backend c10d --rdzv_endpoint a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q true",
         "more than 16 endpoints"},
        {"--rdzv_only --nnodes 2 --rdzv_endpoint a,b",
         "only one endpoint is possible with --rdzv_only"},
        {"--nnodes 2 --rdzv_conf keep_alive_max_attempt=1 true",
         "make a dead time of 5 s, too short"},
        {"--nnodes 2 --rdzv_conf keep_alive_interval=0.1 true",
         "make a dead time of 0.3 s, too short"},
        {"--witness a,b,", "--witness: 'a,b,' has an empty entry"},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct proc p;
        ck_assert_int_eq(dlaunch_run(&p, 20, "%s", wrong[i].line), 2);
        expect_text(p.err, wrong[i].text);
        ck_assert_ptr_eq(strchr(p.err, '\n'), p.err + strlen(p.err) - 1);
        proc_fini(&p);
    }
}
END_TEST

START_TEST(what_launchers_without_workers_refuse)
{
    static const struct {
        const char *line, *text;
    } wrong[] = {
        {"--rdzv_only --nnodes 2", "--rdzv_only: needs --rdzv_endpoint"},
        {"--rdzv_only --nnodes 2 --rdzv_endpoint :0", "--rdzv_endpoint: "},
        {"--rdzv_only --rdzv_endpoint :29400", "needs --nnodes of 2 or more"},
        {"--rdzv_only --nnodes 2 --rdzv_backend static --rdzv_endpoint n0",
         "--rdzv_only: needs --rdzv_backend c10d"},
        {"--rdzv_only --nnodes 2 --rdzv_endpoint :29400 true",
         "takes no program, but one is given: true"},
        {"--witness n0 true", "--witness: takes no program, but one is given: true"},
        {"--witness ''", "--witness: the value is empty"},
        {"--witness n0:x", "--witness: 'n0:x': port 'x' is not a number"},
        {"--witness n0 --rdzv_only --nnodes 2 --rdzv_endpoint :29400",
         "--witness: cannot be combined with --rdzv_only"},
        {"--witness n0 --standalone", "--witness: cannot be combined with --standalone"},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct proc p;
        ck_assert_int_eq(dlaunch_run(&p, 20, "%s", wrong[i].line), 2);
        expect_text(p.err, wrong[i].text);
        ck_assert_ptr_eq(strchr(p.err, '\n'), p.err + strlen(p.err) - 1); /* one line */
        proc_fini(&p);
    }
}
END_TEST

START_TEST(the_job_may_end_instead)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 3; i++)
        nodes_add(&c, "--nnodes 1:3 --coordinator_loss end", "pause");
    wait_lines(c.up, 6, 20);
    proc_kill(&c.p[0], SIGKILL);
    for (int i = 1; i < 3; i++)
        nodes_expect(&c, i, 1);
    nodes_end(&c);
}
END_TEST

START_TEST(a_spare_follows_the_new_coordinator)
{
    struct nodes c;
    nodes_begin(&c, "up");
    for (int i = 0; i < 3; i++)
        nodes_add(&c, "--nnodes 3 --spares 1", "env WORLD_SIZE wait %T/go");
    wait_lines(c.up, 6, 20);
    nodes_add(&c, "--nnodes 3 --spares 1", "env WORLD_SIZE wait %T/go");
    proc_expect_err(&c.p[3], "waits for a place", 10);
    proc_kill(&c.p[0], SIGKILL);
    wait_lines(c.up, 12, 20);
    write_file(tmppath("go"), "");
    for (int i = 1; i < 4; i++) {
        nodes_expect(&c, i, 0);
        expect_text(c.p[i].out, "WORLD_SIZE=6\n");
    }
    nodes_end(&c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("failover");
    TCase *tc = test_case(s, "failover", 120);
    tcase_add_test(tc, the_coordinators_launcher_is_killed);
    tcase_add_test(tc, the_coordinators_agent_freezes);
    tcase_add_test(tc, one_after_the_other);
    tcase_add_test(tc, a_minority_stops_and_reports_it);
    tcase_add_test(tc, one_of_two_nodes_is_not_a_majority);
    tcase_add_test(tc, one_of_two_nodes_and_a_witness_are_a_majority);
    tcase_add_test(tc, a_lost_witness_restarts_nothing);
    tcase_add_test(tc, a_node_is_lost_and_another_one_joins);
    tcase_add_test(tc, the_coordinator_outside_is_lost);
    tcase_add_test(tc, the_coordinator_outside_is_asked_to_stop);
    tcase_add_test(tc, what_launchers_without_workers_refuse);
    tcase_add_test(tc, late_and_returning_nodes_find_the_coordinator);
    tcase_add_test(tc, lists_of_endpoints_that_cannot_be);
    tcase_add_test(tc, the_job_may_end_instead);
    tcase_add_test(tc, a_spare_follows_the_new_coordinator);
    tc = test_case(s, "endpoint", 120);
    tcase_add_test(tc, the_first_host_rejoins_at_its_own_endpoint);
    tcase_add_test(tc, the_first_host_waits_for_a_place_in_the_job);
    tcase_add_test(tc, the_first_host_restarts_before_its_loss_is_detected);
    tcase_add_test(tc, a_coordinator_outside_restarts);
    tcase_add_test(tc, takeover_before_the_first_round);
    tcase_add_test(tc, two_jobs_of_one_id_are_reported);
    tcase_add_test(tc, redirected_to_an_endpoint_without_listener);
    tc = test_case(s, "token", 120);
    tcase_add_test(tc, the_first_host_rejoins_with_another_token);
    tc = test_case(s, "static", 120);
    tcase_add_test(tc, the_first_host_rejoins_a_static_job);
    tcase_add_test(tc, a_successor_comes_early);
    return s;
}

TEST_MAIN(suite)
