/* Whole rendezvous objects over real sockets: several in one loop, or in processes of their own
 * where one has to be stopped or killed. */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/mem.h"
#include "rendezvous/endpoint.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/rdzv_backend.h"
#include "rendezvous/rdzv_msg.h"
#include "tests/lib/loop.h"

#define NODES_MAX 40

/* An agent that does what it is told, and remembers it. */
struct node {
    struct rdzv_config config;
    struct rdzv *r;
    int prepares, runs, stops, respawns;
    struct generation gen;
    int group_rank, nnodes, world_size, base_rank, restart_count, master_port;
    bool agent_store;
    char master_addr[HOST_MAX], addr[ADDR_STRLEN], addrs[8][ADDR_STRLEN];
    uint16_t port0;
    struct rdzv_stop why;
    bool finished, closed;
    bool slow_stop; /* does not say that it has stopped */
    struct rdzv_result result;
    struct failure first;
    uint64_t run_at, stop_at;
};

static uv_loop_t loop;
static struct node nodes[NODES_MAX];
static char logs[1 << 16];

static void keep_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    size_t n = strlen(logs);
    if (n + len < sizeof(logs)) {
        memcpy(logs + n, line, len);
        logs[n + len] = '\0';
    }
}

static void on_prepare(void *arg, struct generation gen, int group_rank, int nnodes)
{
    struct node *n = arg;
    uint16_t ports[NPROC_MAX] = {0};
    n->prepares++;
    n->gen = gen;
    n->group_rank = group_rank;
    n->nnodes = nnodes;
    for (int i = 0; i < n->config.nproc; i++)
        ports[i] = (uint16_t)(1000 * (group_rank + 1) + i);
    rdzv_prepared(n->r, ports, n->config.nproc);
}

static void on_run(void *arg, const struct rank_table *t, int group_rank)
{
    struct node *n = arg;
    ck_assert_int_eq(group_rank, n->group_rank);
    ck_assert(generation_equal(t->gen, n->gen));
    n->runs++;
    n->run_at = mono_ns();
    n->nnodes = t->nnodes;
    n->world_size = t->world_size;
    n->base_rank = t->nodes[group_rank].base_rank;
    n->restart_count = t->restart_count;
    n->agent_store = t->agent_store;
    n->master_port = t->master_port;
    n->port0 = t->nodes[group_rank].ports[0];
    strcpy(n->master_addr, t->master_addr);
    strcpy(n->addr, t->nodes[group_rank].addr);
    for (int i = 0; i < t->nnodes && i < 8; i++)
        strcpy(n->addrs[i], t->nodes[i].addr);
}

static void on_respawn(void *arg, int local_rank, int restart_count)
{
    struct node *n = arg;
    (void)local_rank;
    n->respawns++;
    n->restart_count = restart_count;
}

static void on_stop(void *arg, const struct rdzv_stop *why)
{
    struct node *n = arg;
    n->stops++;
    n->stop_at = mono_ns();
    n->why = *why;
    if (!n->slow_stop)
        rdzv_stopped(n->r, NULL, 0);
}

static void on_finish(void *arg, const struct rdzv_result *result)
{
    struct node *n = arg;
    n->finished = true;
    n->result = *result;
    if (result->n)
        n->first = result->failures[0];
}

static void on_closed(void *arg)
{
    struct node *n = arg;
    n->closed = true;
}

static struct rdzv_callbacks callbacks_of(struct node *n)
{
    return (struct rdzv_callbacks){.arg = n,
                                   .on_prepare = on_prepare,
                                   .on_run = on_run,
                                   .on_respawn = on_respawn,
                                   .on_stop = on_stop,
                                   .on_finish = on_finish};
}

/* A port on which nothing listens: another program of this host may take it before we do, as may
 * happen to any port that is not bound yet; the kernel hands the same one out again last. */
static int unused_port(void)
{
    struct endpoint_bind b = {0};
    struct netaddr a = {.len = sizeof(a.ss)};
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    _cleanup_fd_ int fd = endpoint_listen(&b, NULL);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(getsockname(fd, &a.sa, &a.len), 0);
    return netaddr_port(&a);
}

static struct rdzv_config *config_of(int i, enum rdzv_backend backend, int port, int min, int max)
{
    struct rdzv_config *c = &nodes[i].config;
    rdzv_config_defaults(c);
    c->backend = backend;
    c->endpoint_host = "127.0.0.1";
    c->endpoint_port = port;
    c->run_id = "job";
    c->min_nodes = min;
    c->max_nodes = max;
    c->nproc = 2;
    c->host = xasprintf("node%d", i);
    c->join_timeout = 20;
    c->close_timeout = 10;
    return c;
}

static int try_open(int i, struct err *e)
{
    struct rdzv_callbacks cb = callbacks_of(&nodes[i]);
    return rdzv_open(&nodes[i].r, &loop, &nodes[i].config, &cb, e);
}

static void open_node(int i)
{
    struct err e = ERR_INIT;
    ck_assert_msg(try_open(i, &e) == 0, "node %d: %s", i, e.msg);
}

static void setup(void)
{
    loop_setup(&loop);
    log_set_writer(keep_log, NULL);
    log_init(LOG_LEVEL_VERBOSE, NULL);
}

static void teardown(void)
{
    for (int i = 0; i < NODES_MAX; i++) {
        if (nodes[i].r)
            rdzv_close(nodes[i].r, on_closed, &nodes[i]);
    }
    for (int i = 0; i < NODES_MAX; i++) {
        if (nodes[i].r)
            loop_run_until(&loop, &nodes[i].closed, 20, "close");
    }
    while (uv_loop_alive(&loop)) /* a name that is still being looked up on the pool */
        uv_run(&loop, UV_RUN_ONCE);
    loop_teardown(&loop);
}

/* ------------------------------------------------------------------------------------- waiting */

static bool fact; /* set by the tick below when all is as expected */
static bool (*wanted)(void);
static int first_node, last_node, wanted_count;

static void on_check(uv_check_t *check)
{
    (void)check;
    fact = wanted();
}

static void run_until(bool (*what)(void), const char *text)
{
    uv_check_t check;
    uv_check_init(&loop, &check);
    uv_check_start(&check, on_check);
    wanted = what;
    fact = what();
    loop_run_until(&loop, &fact, 20, text);
    uv_close((uv_handle_t *)&check, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
}

static bool all_runs(void)
{
    for (int i = first_node; i <= last_node; i++) {
        if (nodes[i].runs < wanted_count)
            return false;
    }
    return true;
}

static bool all_stops(void)
{
    for (int i = first_node; i <= last_node; i++) {
        if (nodes[i].stops < wanted_count)
            return false;
    }
    return true;
}

static bool all_finished(void)
{
    for (int i = first_node; i <= last_node; i++) {
        if (!nodes[i].finished)
            return false;
    }
    return true;
}

static void wait_runs(int first, int last, int count)
{
    first_node = first;
    last_node = last;
    wanted_count = count;
    run_until(all_runs, "run");
}

static void wait_stops(int first, int last, int count)
{
    first_node = first;
    last_node = last;
    wanted_count = count;
    run_until(all_stops, "stop");
}

static void wait_finished(int first, int last)
{
    first_node = first;
    last_node = last;
    run_until(all_finished, "finish");
}

#define HAS(text, part) ck_assert_msg(strstr(text, part), "'%s' is not in: %s", part, text)

static bool logged(const char *part)
{
    return strstr(logs, part);
}

static const char *awaited;

static bool awaited_logged(void)
{
    return logged(awaited);
}

static void wait_logged(const char *part)
{
    awaited = part;
    run_until(awaited_logged, part);
}

static void worker_fails(int i, int code)
{
    struct failure f;
    failure_init(&f);
    f.kind = FAILURE_EXIT;
    f.local_rank = 1;
    f.exit_code = code;
    f.seen_ns = mono_ns();
    rdzv_failed(nodes[i].r, &f);
}

/* ---------------------------------------------------------------------------------- one node */

START_TEST(one_node_alone)
{
    config_of(0, RDZV_C10D, 0, 1, 1)->endpoint_host = "localhost";
    uint64_t start = mono_ns();
    open_node(0);
    wait_runs(0, 0, 1);
    printf("one node: %.3f ms from open to run\n", (double)(nodes[0].run_at - start) / 1e6);
    ck_assert_int_eq(nodes[0].group_rank, 0);
    ck_assert_str_eq(nodes[0].addr, "127.0.0.1");
    ck_assert_str_eq(nodes[0].master_addr, "127.0.0.1");
    ck_assert_int_gt(nodes[0].master_port, 0);
    ck_assert_int_eq(nodes[0].port0, 1000);
    struct rdzv_info info;
    rdzv_get_info(nodes[0].r, &info);
    ck_assert(info.coordinator);
    ck_assert_str_eq(info.phase, "running");
    rdzv_done(nodes[0].r);
    wait_finished(0, 0);
    ck_assert_int_eq(nodes[0].result.exit_code, 0);
}
END_TEST

START_TEST(one_node_restarts)
{
    config_of(0, RDZV_STATIC, 0, 1, 1)->max_restarts = 1;
    open_node(0);
    wait_runs(0, 0, 1);
    worker_fails(0, 3);
    wait_runs(0, 0, 2);
    ck_assert(nodes[0].why.restarting);
    HAS(nodes[0].why.text, "exited with code 3; restart 1 of 1");
    ck_assert(nodes[0].why.has_first);
    ck_assert_int_eq(nodes[0].restart_count, 1);
    worker_fails(0, 4);
    wait_finished(0, 0);
    ck_assert_int_eq(nodes[0].result.exit_code, 4);
    ck_assert_int_eq(nodes[0].result.restarts, 1);
    ck_assert_int_eq(nodes[0].first.rank, 1);
}
END_TEST

START_TEST(one_node_respawns_one_worker)
{
    struct rdzv_config *c = config_of(0, RDZV_STATIC, 0, 1, 1);
    c->max_restarts = 1;
    c->restart_policy = RESTART_WORKER;
    open_node(0);
    wait_runs(0, 0, 1);
    worker_fails(0, 3);
    wanted_count = 1;
    while (nodes[0].respawns == 0)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(nodes[0].stops, 0);
    ck_assert_int_eq(nodes[0].restart_count, 1);
}
END_TEST

START_TEST(one_node_closed_in_the_middle)
{
    /* After 0, 1, 2, ... turns of the loop: no state may leak or crash. */
    for (int turns = 0; turns < 20; turns++) {
        struct node *n = &nodes[0];
        memset(n, 0, sizeof(*n));
        config_of(0, RDZV_C10D, 0, 1, 1);
        open_node(0);
        loop_turns(&loop, turns);
        rdzv_close(n->r, on_closed, n);
        loop_run_until(&loop, &n->closed, 10, "close");
        n->r = NULL;
    }
}
END_TEST

START_TEST(program_that_hosts_the_store_itself)
{
    config_of(0, RDZV_STATIC, 0, 1, 1)->agent_store = false;
    open_node(0);
    wait_runs(0, 0, 1);
    ck_assert(!nodes[0].agent_store);
    ck_assert_int_gt(nodes[0].master_port, 0);
    struct endpoint_bind b = {0};
    netaddr_parse_ip(&b.addr, "127.0.0.1", nodes[0].master_port);
    _cleanup_fd_ int fd = endpoint_listen(&b, NULL); /* nobody else does */
    ck_assert_int_ge(fd, 0);
}
END_TEST

START_TEST(configurations_that_cannot_be)
{
    struct err e = ERR_INIT;
    config_of(0, RDZV_C10D, 0, 1, 2);
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    HAS(e.msg, "port 0");
    config_of(0, RDZV_C10D, 29400, 3, 2);
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    config_of(0, RDZV_C10D, 29400, 1, 2)->endpoint_host = NULL;
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    config_of(0, RDZV_STATIC, 29400, 2, 2)->node_rank = 2;
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    config_of(0, RDZV_FILE, 0, 1, 2);
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    config_of(0, RDZV_C10D, 29400, 1, 2)->keep_alive_interval = 0;
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    config_of(0, RDZV_C10D, 29400, 1, 2)->nproc = 0;
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    nodes[0].r = NULL;
}
END_TEST

/* --------------------------------------------------------------------------------- several nodes
 */

/* n nodes of one job, running. */
static void cluster(enum rdzv_backend backend, int n, int min, int max)
{
    int port = unused_port();
    for (int i = 0; i < n; i++) {
        if (!nodes[i].config.max_nodes)
            config_of(i, backend, port, min, max);
        nodes[i].config.endpoint_port = port;
        open_node(i);
    }
    wait_runs(0, n - 1, 1);
}

START_TEST(static_nodes_in_any_order)
{
    int port = unused_port();
    for (int i = 0; i < 3; i++)
        config_of(i, RDZV_STATIC, port, 3, 3)->node_rank = i;
    open_node(2); /* the host comes last */
    open_node(1);
    loop_turns(&loop, 20);
    uint64_t start = mono_ns(), last = 0;
    open_node(0);
    wait_runs(0, 2, 1);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].group_rank, i);
        ck_assert_int_eq(nodes[i].base_rank, 2 * i);
        ck_assert_int_eq(nodes[i].world_size, 6);
        ck_assert_str_eq(nodes[i].master_addr, "127.0.0.1");
        ck_assert_int_eq(nodes[i].master_port, port);
        last = nodes[i].run_at > last ? nodes[i].run_at : last;
    }
    printf("three nodes, the host last: %.3f ms from its open to the last run\n",
           (double)(last - start) / 1e6);
    for (int i = 0; i < 3; i++)
        rdzv_done(nodes[i].r);
    wait_finished(0, 2);
}
END_TEST

START_TEST(last_node_completes_at_once)
{
    int port = unused_port();
    for (int i = 0; i < 2; i++)
        config_of(i, RDZV_STATIC, port, 2, 2)->node_rank = i;
    open_node(0);
    loop_turns(&loop, 20);
    uint64_t start = mono_ns();
    open_node(1);
    wait_runs(0, 1, 1);
    printf("two nodes: %.3f ms from the open of the last to its run\n",
           (double)(nodes[1].run_at - start) / 1e6);
    worker_fails(1, 9);
    start = mono_ns();
    wait_stops(0, 0, 1);
    printf("failure on one node: %.3f ms to the stop on the other\n",
           (double)(nodes[0].stop_at - start) / 1e6);
    rdzv_stopped(nodes[1].r, NULL, 0);
    wait_finished(0, 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].result.exit_code, 9);
        ck_assert_int_eq(nodes[i].first.rank, 3);
        ck_assert_str_eq(nodes[i].first.host, "node1");
        HAS(nodes[i].result.text, "worker 3 (local rank 1) on node1 exited with code 9");
    }
}
END_TEST

START_TEST(c10d_nodes_find_out_who_hosts)
{
    cluster(RDZV_C10D, 4, 4, 4);
    int hosts = 0;
    for (int i = 0; i < 4; i++) {
        struct rdzv_info info;
        rdzv_get_info(nodes[i].r, &info);
        hosts += info.coordinator;
        if (info.coordinator)
            ck_assert_int_eq(nodes[i].group_rank, 0);
    }
    ck_assert_int_eq(hosts, 1);
}
END_TEST

START_TEST(localhost_by_name)
{
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_C10D, port, 2, 2)->endpoint_host = "localhost";
        open_node(i);
    }
    wait_runs(0, 1, 1);
}
END_TEST

START_TEST(ipv6)
{
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_C10D, port, 2, 2)->endpoint_host = "::1";
        open_node(i);
    }
    wait_runs(0, 1, 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_str_eq(nodes[i].master_addr, "::1");
        ck_assert_str_eq(nodes[i].addr, "::1");
    }
}
END_TEST

START_TEST(own_address_of_this_host)
{
    struct netaddr own;
    char ip[ADDR_STRLEN];
    if (netaddr_list_local(&own, 1) < 1) {
        test_skip("this host has no address but loopback");
        return;
    }
    netaddr_ip(&own, ip);
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_C10D, port, 2, 2)->endpoint_host = ip;
        open_node(i);
    }
    wait_runs(0, 1, 1);
    for (int i = 0; i < 2; i++)
        ck_assert_str_eq(nodes[i].master_addr, ip);
}
END_TEST

START_TEST(host_name_of_this_host)
{
    char name[HOST_MAX];
    ck_assert_int_eq(gethostname(name, sizeof(name)), 0);
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_STATIC, port, 2, 2)->endpoint_host = name;
        nodes[i].config.node_rank = i;
        nodes[i].config.master_addr = name;
        open_node(i);
    }
    wait_runs(0, 1, 1);
    for (int i = 0; i < 2; i++)
        ck_assert_str_eq(nodes[i].master_addr, name);
}
END_TEST

START_TEST(a_late_node_is_taken_in)
{
    for (int i = 0; i < 2; i++)
        config_of(i, RDZV_C10D, 0, 1, 3)->last_call_timeout = 0.2;
    cluster(RDZV_C10D, 2, 1, 3);
    ck_assert_int_eq(nodes[0].nnodes, 2);
    config_of(2, RDZV_C10D, nodes[0].config.endpoint_port, 1, 3);
    open_node(2);
    wait_runs(2, 2, 1);
    wait_runs(0, 1, 2);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].nnodes, 3);
        ck_assert_int_eq(nodes[i].restart_count, 0);
    }
    ck_assert_int_eq(nodes[0].why.reason, STOP_MEMBERSHIP);
    HAS(nodes[0].why.text, "node node2 (127.0.0.1) has joined");
}
END_TEST

START_TEST(a_spare_waits_and_takes_over)
{
    cluster(RDZV_C10D, 2, 2, 2);
    config_of(2, RDZV_C10D, nodes[0].config.endpoint_port, 2, 2);
    open_node(2);
    wait_logged("the job runs without this node");
    rdzv_close(nodes[1].r, on_closed, &nodes[1]); /* as if it were killed */
    loop_run_until(&loop, &nodes[1].closed, 10, "close");
    nodes[1].r = NULL;
    wait_runs(2, 2, 1);
    ck_assert_int_eq(nodes[2].group_rank, 1);
    ck_assert_int_eq(nodes[0].why.reason, STOP_NODE_LOST);
}
END_TEST

START_TEST(those_who_do_not_fit_end_at_once)
{
    static const char *const texts[] = {
        "this is job 'job', not 'other'", "node_rank 1 is already taken by node1 (127.0.0.1)",
        "this job has --nnodes 3, not 2", "this job meets by --rdzv_backend static, not c10d"};
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_STATIC, port, 3, 3)->node_rank = i;
        open_node(i);
    }
    for (int i = 2; i < 6; i++)
        config_of(i, i == 5 ? RDZV_C10D : RDZV_STATIC, port, 3, 3)->node_rank = i == 3 ? 1 : 2;
    nodes[2].config.run_id = "other";
    nodes[4].config.min_nodes = nodes[4].config.max_nodes = 2;
    nodes[4].config.node_rank = 1;
    nodes[5].config.is_host = 0;
    wait_logged("node1 (127.0.0.1), pid");
    for (int i = 2; i < 6; i++) {
        open_node(i);
        wait_finished(i, i);
        ck_assert_int_eq(nodes[i].result.exit_code, 1);
        ck_assert_int_eq(nodes[i].result.reason, STOP_RENDEZVOUS);
        HAS(nodes[i].result.text, texts[i - 2]);
        HAS(logs, texts[i - 2]);
    }
    ck_assert(!nodes[0].finished && !nodes[1].finished);
    config_of(6, RDZV_STATIC, port, 3, 3)->node_rank = 2;
    open_node(6); /* the job was not disturbed */
    wait_runs(0, 1, 1);
    wait_runs(6, 6, 1);
}
END_TEST

START_TEST(join_timeout_says_who_is_missing)
{
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_STATIC, port, 3, 3)->node_rank = i;
        nodes[i].config.join_timeout = i == 0 ? 1 : 20;
        open_node(i);
    }
    wait_finished(0, 1);
    for (int i = 0; i < 2; i++) {
        HAS(nodes[i].result.text, "only 2 of 3 nodes joined within 1 s: node0, node1; missing: "
                                  "node_rank 2");
        HAS(nodes[i].result.text, "(127.0.0.1 can be reached from this host only)");
    }
}
END_TEST

START_TEST(nobody_there)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 1;
    nodes[0].config.join_timeout = 0.5;
    open_node(0);
    wait_finished(0, 0);
    HAS(nodes[0].result.text, "no coordinator at 127.0.0.1:");
    HAS(nodes[0].result.text, "Connection refused");
}
END_TEST

START_TEST(a_name_that_does_not_resolve)
{
    config_of(0, RDZV_C10D, unused_port(), 2, 2)->endpoint_host = "no-such-host.invalid";
    nodes[0].config.join_timeout = 0.5;
    open_node(0);
    wait_finished(0, 0);
    HAS(nodes[0].result.text, "cannot resolve no-such-host.invalid");
}
END_TEST

START_TEST(closed_while_a_name_is_looked_up)
{
    config_of(0, RDZV_C10D, unused_port(), 2, 2)->endpoint_host = "no-such-host.invalid";
    open_node(0);
    loop_turns(&loop, 2);
}
END_TEST

START_TEST(leave_by_signal_of_one)
{
    int port = unused_port();
    for (int i = 0; i < 3; i++) {
        config_of(i, RDZV_C10D, port, 2, 3);
        open_node(i);
    }
    wait_runs(0, 2, 1);
    rdzv_leave(nodes[2].r, STOP_SIGNAL, 143, "received SIGTERM");
    rdzv_stopped(nodes[2].r, NULL, 0);
    wait_finished(2, 2);
    ck_assert_int_eq(nodes[2].result.exit_code, 143);
    wait_runs(0, 1, 2);
    ck_assert_int_eq(nodes[0].nnodes, 2);
    rdzv_leave(nodes[1].r, STOP_SIGNAL, 130, "received SIGINT"); /* and now too few are left */
    rdzv_stopped(nodes[1].r, NULL, 0);
    wait_finished(0, 1);
    ck_assert_int_eq(nodes[0].result.exit_code, 130);
    ck_assert_str_eq(nodes[0].result.text, "received SIGINT");
}
END_TEST

START_TEST(leave_before_anybody_is_there)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 1;
    open_node(0);
    loop_turns(&loop, 3);
    rdzv_leave(nodes[0].r, STOP_SIGNAL, 130, "received SIGINT");
    wait_finished(0, 0);
    ck_assert_int_eq(nodes[0].result.exit_code, 130);
}
END_TEST

START_TEST(the_coordinator_goes)
{
    cluster(RDZV_STATIC, 2, 2, 2);
    int host = 0, other = 1;
    struct rdzv_info info;
    rdzv_get_info(nodes[0].r, &info);
    if (!info.coordinator)
        host = 1, other = 0;
    rdzv_close(nodes[host].r, on_closed, &nodes[host]);
    loop_run_until(&loop, &nodes[host].closed, 10, "close");
    nodes[host].r = NULL;
    wait_finished(other, other);
    ck_assert_int_eq(nodes[other].result.exit_code, 1);
    ck_assert_int_eq(nodes[other].result.reason, STOP_COORDINATOR_LOST);
    ck_assert_int_eq(nodes[other].stops, 1);
}
END_TEST

START_TEST(the_result_reaches_everybody_before_the_host_goes)
{
    cluster(RDZV_STATIC, 3, 3, 3);
    int host = 0;
    for (int i = 0; i < 3; i++) {
        struct rdzv_info info;
        rdzv_get_info(nodes[i].r, &info);
        host = info.coordinator ? i : host;
        rdzv_done(nodes[i].r);
    }
    wait_finished(host, host);
    rdzv_close(nodes[host].r, on_closed, &nodes[host]);
    loop_run_until(&loop, &nodes[host].closed, 10, "close");
    nodes[host].r = NULL;
    wait_finished(0, 2);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(nodes[i].result.exit_code, 0);
}
END_TEST

START_TEST(many_nodes)
{
    uint64_t start = mono_ns();
    cluster(RDZV_C10D, NODES_MAX, NODES_MAX, NODES_MAX);
    printf("%d nodes in one process: %.1f ms\n", NODES_MAX, (double)(mono_ns() - start) / 1e6);
    bool taken[NODES_MAX] = {false};
    for (int i = 0; i < NODES_MAX; i++) {
        ck_assert(!taken[nodes[i].group_rank]);
        taken[nodes[i].group_rank] = true;
        ck_assert_int_eq(nodes[i].world_size, 2 * NODES_MAX);
        rdzv_done(nodes[i].r);
    }
    wait_finished(0, NODES_MAX - 1);
}
END_TEST

/* ------------------------------------------------------------------------- broken connections */

/* Our descriptor of a TCP connection whose other end is at this port. */
static int connection_to(int port)
{
    for (int fd = 3; fd < 256; fd++) {
        struct netaddr a = {.len = sizeof(a.ss)};
        if (getpeername(fd, &a.sa, &a.len) == 0 && a.sa.sa_family == AF_INET &&
            netaddr_port(&a) == port)
            return fd;
    }
    ck_abort_msg("no connection to port %d", port);
    return -1;
}

START_TEST(a_connection_that_is_reset_resumes)
{
    cluster(RDZV_STATIC, 2, 2, 2);
    for (int i = 0; i < 5; i++) {
        logs[0] = '\0';
        int fd = connection_to(nodes[0].config.endpoint_port);
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        ck_assert_int_eq(connect(fd, &none, sizeof(none)), 0); /* sends a reset */
        wait_logged("is connected again");
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(nodes[i].runs, 1);
        ck_assert_int_eq(nodes[i].stops, 0);
        rdzv_done(nodes[i].r);
    }
    wait_finished(0, 1);
    ck_assert_int_eq(nodes[1].result.exit_code, 0);
}
END_TEST

/* A node in a process of its own. It writes 'r' at each run, 's' at each stop, 'f' and the exit
 * code at the end. */
static int child_pipe[2];

static void tell_parent(char c)
{
    if (write(child_pipe[1], &c, 1) != 1)
        _exit(99);
}

static void child_run(void *arg, const struct rank_table *t, int group_rank)
{
    on_run(arg, t, group_rank);
    tell_parent('r');
}

static void child_stop(void *arg, const struct rdzv_stop *why)
{
    on_stop(arg, why);
    tell_parent('s');
}

static pid_t fork_node(int i)
{
    ck_assert_int_eq(pipe(child_pipe), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0) {
        close_fd(&child_pipe[1]);
        return pid;
    }
    uv_loop_t own;
    struct err e = ERR_INIT;
    struct node *n = &nodes[i];
    struct rdzv_callbacks cb = callbacks_of(n);
    cb.on_run = child_run;
    cb.on_stop = child_stop;
    log_set_writer(NULL, NULL);
    log_init(LOG_LEVEL_ERROR, NULL);
    uv_loop_init(&own);
    if (rdzv_open(&n->r, &own, &n->config, &cb, &e) < 0)
        _exit(98);
    while (!n->finished)
        uv_run(&own, UV_RUN_ONCE);
    _exit(n->result.exit_code);
}

static void expect_child(char c)
{
    char got = 0;
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(20) * 1e9);
    fd_set_nonblock(child_pipe[0], true);
    while (read(child_pipe[0], &got, 1) != 1) {
        ck_assert_msg(mono_ns() < end, "the child does not say '%c'", c);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_msg(got == c, "the child says '%c' instead of '%c'", got, c);
}

START_TEST(a_killed_launcher_is_noticed_at_once)
{
    int port = unused_port();
    config_of(0, RDZV_C10D, port, 1, 2);
    config_of(1, RDZV_C10D, port, 1, 2);
    open_node(0);
    pid_t pid = fork_node(1);
    wait_runs(0, 0, 1);
    expect_child('r');
    kill(pid, SIGKILL);
    uint64_t start = mono_ns();
    wait_stops(0, 0, 1);
    printf("killed launcher: %.3f ms to the stop on the other\n",
           (double)(nodes[0].stop_at - start) / 1e6);
    ck_assert_int_eq(nodes[0].why.reason, STOP_NODE_LOST);
    HAS(nodes[0].why.text, "its launcher is gone");
    waitpid(pid, NULL, 0);
    wait_runs(0, 0, 2);
    ck_assert_int_eq(nodes[0].nnodes, 1);
}
END_TEST

START_TEST(a_silent_member_is_dropped_and_comes_back)
{
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_C10D, port, 1, 2)->keep_alive_interval = 0.2;
        nodes[i].config.keep_alive_max_attempt = 5;
    }
    open_node(0);
    pid_t pid = fork_node(1);
    wait_runs(0, 0, 1);
    expect_child('r');
    kill(pid, SIGSTOP);
    wait_stops(0, 0, 1);
    HAS(nodes[0].why.text, "nothing heard of it for");
    wait_runs(0, 0, 2);
    ck_assert_int_eq(nodes[0].nnodes, 1);
    kill(pid, SIGCONT);
    wait_runs(0, 0, 3); /* it stops what it had, and is taken in again */
    expect_child('s');
    expect_child('r');
    ck_assert_int_eq(nodes[0].nnodes, 2);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
END_TEST

START_TEST(a_silent_coordinator_is_given_up)
{
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_STATIC, port, 2, 2)->keep_alive_interval = 0.2;
        nodes[i].config.keep_alive_max_attempt = 5;
        nodes[i].config.node_rank = i;
    }
    pid_t pid = fork_node(0);
    open_node(1);
    wait_runs(1, 1, 1);
    expect_child('r');
    kill(pid, SIGSTOP);
    wait_finished(1, 1);
    ck_assert_int_eq(nodes[1].result.reason, STOP_COORDINATOR_LOST);
    HAS(nodes[1].result.text, "nothing heard of it for");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
END_TEST

/* ------------------------------------------------------------------------------------ strangers */

static int call(int port)
{
    struct netaddr a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    netaddr_parse_ip(&a, "127.0.0.1", port);
    ck_assert_int_eq(connect(fd, &a.sa, a.len), 0);
    return fd;
}

/* What comes until the other side closes, while our loop turns. */
static size_t hear(int fd, void *out, size_t cap, size_t enough)
{
    size_t n = 0;
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(10) * 1e9);
    fd_set_nonblock(fd, true);
    while (n < enough) {
        ssize_t got = recv(fd, (char *)out + n, cap - n, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            break;
        n += got > 0 ? (size_t)got : 0;
        ck_assert_msg(mono_ns() < end, "nothing comes, and it is not closed");
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    return n;
}

START_TEST(garbage_on_the_port_disturbs_nobody)
{
    static const struct {
        const char *bytes;
        size_t n;
    } garbage[] = {{"GET / HTTP/1.1\r\n\r\n", 18},
                   {"SSH-2.0-OpenSSH\r\n", 17},
                   {"\x16\x03\x01\x02\x00\x01", 6},
                   {"\xff\xff\xff\xff\xff\xff", 6},
                   {"DLR0abcdefgh", 12},
                   {"DLR1\x01\0\0\0\xff\xff\xff\xff\x04", 13}, /* a giant */
                   {"DLR1\x01\0\0\0\0\0\0\0\x04", 13},         /* an empty frame */
                   {"DLR1\x01\0\0\0\x01\x10\0\0\x04", 13},     /* too long before hello */
                   {"DLR1\x01\0\0\0\x05\0\0\0\x04zzzz", 17},   /* a malformed hello */
                   {"DLR1\x01\0\0\0\x01\0\0\0\x05", 13},       /* a status first */
                   {"D", 1}};
    int port = unused_port();
    config_of(0, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    config_of(1, RDZV_STATIC, port, 2, 2)->node_rank = 1;
    open_node(0);
    loop_turns(&loop, 5);
    char out[1024];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
            int fd = call(port);
            ck_assert_int_eq(send(fd, garbage[i].bytes, garbage[i].n, MSG_NOSIGNAL),
                             (ssize_t)garbage[i].n);
            if (garbage[i].n == 1)
                shutdown(fd, SHUT_WR);
            hear(fd, out, sizeof(out), sizeof(out));
            close(fd);
        }
    }
    char *line = strstr(logs, "none of ours");
    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_null(strstr(line + 1, "none of ours")); /* one line per source */
    open_node(1);
    wait_runs(0, 1, 1);
}
END_TEST

START_TEST(store_clients_get_to_the_store)
{
    config_of(0, RDZV_C10D, 0, 1, 1);
    open_node(0);
    wait_runs(0, 0, 1);
    int fd = call(nodes[0].master_port);
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4};
    uint8_t answer[4];
    ck_assert_int_eq(send(fd, hello, sizeof(hello), 0), sizeof(hello));
    ck_assert_uint_eq(hear(fd, answer, sizeof(answer), 4), 4);
    ck_assert_int_eq(memcmp(answer, "\1\2\3\4", 4), 0);
    close(fd);
}
END_TEST

START_TEST(another_version_is_told_so)
{
    int port = unused_port();
    config_of(0, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    open_node(0);
    int fd = call(port);
    ck_assert_int_eq(send(fd, "DLR1\x09\0\0\0", 8, 0), 8);
    uint8_t answer[1024];
    size_t n = hear(fd, answer, sizeof(answer), sizeof(answer));
    ck_assert_uint_gt(n, RDZV_PREAMBLE_LEN + RDZV_FRAME_HEADER);
    ck_assert_uint_eq(rdzv_get_preamble(answer), RDZV_PROTOCOL);
    ck_assert_int_eq(answer[12], RDZV_MSG_REFUSE);
    struct rd r = rd_init(answer + 13, n - 13);
    struct rdzv_refusal refusal;
    ck_assert(rdzv_get_refusal(&r, &refusal));
    ck_assert(!refusal.retry);
    HAS(refusal.text, "version 9");
    HAS(logs, "turned away 127.0.0.1");
    close(fd);
}
END_TEST

/* A listener that says `answer` to whoever comes. */
static struct endpoint *stranger;
static const char *stranger_says;
static size_t stranger_says_n;
static bool stranger_closed;

static void on_stranger(void *arg, int fd, const struct netaddr *peer)
{
    (void)arg, (void)peer;
    if (send(fd, stranger_says, stranger_says_n, MSG_NOSIGNAL) < 0)
        ck_abort();
    shutdown(fd, SHUT_WR);
    char sink[4096];
    while (recv(fd, sink, sizeof(sink), 0) > 0)
        ;
    close(fd);
}

static void on_stranger_closed(void *arg)
{
    (void)arg;
    stranger_closed = true;
}

static void member_of_stranger(const char *says, size_t n)
{
    struct endpoint_bind b = {0};
    struct endpoint_events ev = {NULL, on_stranger, NULL};
    struct err e = ERR_INIT;
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    int fd = endpoint_listen(&b, &e);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(endpoint_open(&stranger, &loop, fd, 2, &ev, &e), 0);
    stranger_says = says;
    stranger_says_n = n;
    stranger_closed = false;
    config_of(0, RDZV_STATIC, endpoint_port(stranger), 2, 2)->node_rank = 1;
    nodes[0].config.join_timeout = 0.3;
    open_node(0);
    wait_finished(0, 0);
    ck_assert_int_eq(nodes[0].result.exit_code, 1);
    endpoint_close(stranger, on_stranger_closed, NULL);
    loop_run_until(&loop, &stranger_closed, 5, "close");
}

START_TEST(what_answers_is_no_coordinator)
{
    member_of_stranger("SSH-2.0-OpenSSH\r\n", 17);
    HAS(nodes[0].result.text, "what listens there is no coordinator of dlaunch");
}
END_TEST

START_TEST(what_answers_speaks_nonsense)
{
    member_of_stranger("DLR1\x01\0\0\0\x05\0\0\0\x06zzzz", 17);
    HAS(nodes[0].result.text, "malformed message");
}
END_TEST

START_TEST(what_answers_is_of_another_version)
{
    struct buf b = BUF_INIT;
    rdzv_put_preamble(&b);
    b.data[4] = 77;
    rdzv_put_refusal(&b, false, "two versions");
    member_of_stranger((const char *)b.data, b.len);
    HAS(nodes[0].result.text, "turned this node away: two versions");
    buf_fini(&b);
}
END_TEST

/* ------------------------------------------------------------------------------------- the port */

START_TEST(port_in_use_says_by_whom)
{
    struct err e = ERR_INIT;
    char pid[32];
    struct endpoint_bind b = {0};
    netaddr_parse_ip(&b.addr, "127.0.0.1", 0);
    _cleanup_fd_ int fd = endpoint_listen(&b, NULL);
    struct netaddr a = {.len = sizeof(a.ss)};
    getsockname(fd, &a.sa, &a.len);
    config_of(0, RDZV_STATIC, netaddr_port(&a), 2, 2)->node_rank = 0;
    ck_assert_int_lt(try_open(0, &e), 0);
    nodes[0].r = NULL;
    HAS(e.msg, "Address already in use");
    snprintf(pid, sizeof(pid), "by pid %d (", (int)getpid());
    HAS(e.msg, pid);
}
END_TEST

START_TEST(port_in_use_by_another_job)
{
    struct err e = ERR_INIT;
    int port = unused_port();
    config_of(1, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    nodes[1].config.run_id = "first job";
    pid_t pid = fork_node(1);
    config_of(2, RDZV_STATIC, port, 2, 2)->node_rank = 1; /* it is up when this one is let in */
    nodes[2].config.run_id = "first job";
    open_node(2);
    wait_runs(2, 2, 1);
    config_of(0, RDZV_STATIC, port, 2, 2)->node_rank = 0;
    ck_assert_int_lt(try_open(0, &e), 0);
    nodes[0].r = NULL;
    HAS(e.msg, "the coordinator of job 'first job' (node1, pid ");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
END_TEST

START_TEST(bind_rules)
{
    struct endpoint_bind b;
    struct netaddr addrs[2], own;
    char ip[ADDR_STRLEN];
    ck_assert(rdzv_choose_bind("localhost", 5, NULL, 0, 2, &b) && !b.any);
    ck_assert_str_eq(netaddr_ip(&b.addr, ip), "127.0.0.1");
    ck_assert_int_eq(netaddr_port(&b.addr), 5);
    ck_assert(rdzv_choose_bind("127.0.0.2", 5, NULL, 0, 2, &b) && !b.any);
    ck_assert_str_eq(netaddr_ip(&b.addr, ip), "127.0.0.2");
    ck_assert(rdzv_choose_bind("::1", 5, NULL, 0, 2, &b) && !b.any);
    ck_assert_str_eq(netaddr_ip(&b.addr, ip), "::1");
    /* One node needs no one else. */
    netaddr_parse_ip(&addrs[0], "192.0.2.1", 5);
    ck_assert(rdzv_choose_bind("elsewhere", 5, addrs, 1, 1, &b) && !b.any);
    ck_assert_str_eq(netaddr_ip(&b.addr, ip), "127.0.0.1");
    /* Not of this host. */
    ck_assert(!rdzv_choose_bind("elsewhere", 5, addrs, 1, 2, &b));
    /* Debian's 127.0.1.1 for the host's own name. */
    netaddr_parse_ip(&addrs[0], "127.0.1.1", 5);
    ck_assert(rdzv_choose_bind("myhost", 5, addrs, 1, 2, &b) && b.any);
    ck_assert_int_eq(netaddr_port(&b.addr), 5);
    if (netaddr_list_local(&own, 1) < 1)
        return;
    addrs[1] = own; /* the better one counts */
    netaddr_set_port(&addrs[1], 5);
    ck_assert(rdzv_choose_bind("myhost", 5, addrs, 2, 2, &b) && !b.any);
    ck_assert(netaddr_same_ip(&b.addr, &own));
}
END_TEST

/* ---------------------------------------------------------------------------------------- file */

static void file_config(int i, const char *path, int min, int max)
{
    config_of(i, RDZV_FILE, 0, min, max)->endpoint_path = path;
    nodes[i].config.endpoint_host = NULL;
}

START_TEST(file_nodes_meet)
{
    const char *path = tmppath("rdzv");
    for (int i = 0; i < 3; i++) {
        file_config(i, path, 3, 3);
        nodes[i].config.run_id = "a job with blanks and 100%";
        open_node(i);
    }
    wait_runs(0, 2, 1);
    char *text = read_file(path);
    HAS(text, "dlaunch-rendezvous 1 a%20job%20with%20blanks%20and%20100%25 ");
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    free(text);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].prepares, 1);
        rdzv_done(nodes[i].r);
    }
    wait_finished(0, 2);
    for (int i = 0; i < 3; i++) {
        rdzv_close(nodes[i].r, on_closed, &nodes[i]);
        nodes[i].r = NULL;
    }
    for (int i = 0; i < 3; i++)
        loop_run_until(&loop, &nodes[i].closed, 10, "close");
    ck_assert_int_lt(access(path, F_OK), 0); /* nothing is left */
    char *others = xasprintf("ls -A %s | wc -l | grep -qx 0", tmpdir());
    ck_assert_int_eq(system(others), 0);
    free(others);
}
END_TEST

START_TEST(file_that_was_left_behind_is_taken_over)
{
    const char *path = tmppath("rdzv");
    file_config(0, path, 1, 2);
    file_config(1, path, 1, 2);
    for (int i = 0; i < 2; i++)
        nodes[i].config.last_call_timeout = 0.1;
    pid_t pid = fork_node(0);
    expect_child('r');
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    ck_assert_int_eq(access(path, F_OK), 0);
    open_node(1);
    wait_runs(1, 1, 1);
    HAS(logs, "was left behind by host node0, pid ");
    /* Also when it says that it was on another machine, and nobody answers there. */
    rdzv_close(nodes[1].r, on_closed, &nodes[1]);
    loop_run_until(&loop, &nodes[1].closed, 10, "close");
    char line[256];
    snprintf(line, sizeof(line),
             "dlaunch-rendezvous 1 job 0123456789abcdef %d 127.0.0.1 far 77 elsewhere:net:[1]\n",
             unused_port());
    write_file(path, line);
    file_config(2, path, 1, 1);
    nodes[1].r = NULL;
    open_node(2);
    wait_runs(2, 2, 1);
    HAS(logs, "was left behind by host far, pid 77");
}
END_TEST

static bool somebody_listens(void *arg)
{
    struct rdzv_identity id;
    struct netaddr a;
    netaddr_parse_ip(&a, "127.0.0.1", *(int *)arg);
    return rdzv_probe(&a, 1000, &id) == 0;
}

START_TEST(file_whose_locks_do_not_reach_here)
{
    /* The lock is free, but the coordinator that is named in it, on another machine, answers. */
    const char *path = tmppath("rdzv");
    int port = unused_port();
    config_of(1, RDZV_FILE, port, 2, 2)->endpoint_path = tmppath("theirs");
    nodes[1].config.endpoint_host = NULL;
    pid_t pid = fork_node(1);
    wait_until(somebody_listens, &port, 10, "the other one listens");
    char line[256];
    snprintf(line, sizeof(line),
             "dlaunch-rendezvous 1 job 0123456789abcdef %d 127.0.0.1 far 77 elsewhere:net:[1]\n",
             port);
    write_file(path, line);
    file_config(0, path, 2, 2);
    open_node(0);
    wait_runs(0, 0, 1);
    expect_child('r');
    struct rdzv_info info;
    rdzv_get_info(nodes[0].r, &info);
    ck_assert(!info.coordinator);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
END_TEST

START_TEST(file_of_another_job)
{
    const char *path = tmppath("rdzv");
    file_config(0, path, 2, 2);
    file_config(1, path, 2, 2);
    file_config(2, path, 2, 2);
    nodes[2].config.run_id = "other";
    open_node(0);
    open_node(1);
    wait_runs(0, 1, 1);
    open_node(2);
    wait_finished(2, 2);
    ck_assert_int_eq(nodes[2].result.exit_code, 1);
    HAS(nodes[2].result.text, "belongs to job 'job'");
}
END_TEST

START_TEST(file_that_is_none_of_ours_is_left_alone)
{
    static const char *const contents[] = {"my notes\n",
                                           "dlaunch-rendezvous 1 job",
                                           "dlaunch-rendezvous 2 job 0 1 127.0.0.1 h 1 m\n",
                                           "dlaunch-rendezvous 1 job 0 1 nonsense h 1 m\n",
                                           "dlaunch-rendezvous 1 job 0 99999 127.0.0.1 h 1 m\n",
                                           "dlaunch-rendezvous 1 j%zz 0 1 127.0.0.1 h 1 m\n"};
    for (size_t i = 0; i < ARRAY_LEN(contents); i++) {
        char name[16];
        snprintf(name, sizeof(name), "f%zu", i);
        const char *path = tmppath(name);
        write_file(path, contents[i]);
        file_config((int)i, path, 1, 1);
        open_node((int)i);
        wait_finished((int)i, (int)i);
        HAS(nodes[i].result.text, "not a rendezvous file");
        char *text = read_file(path);
        ck_assert_str_eq(text, contents[i]);
        free(text);
    }
    file_config(20, tmpdir(), 1, 1);
    open_node(20);
    wait_finished(20, 20);
    HAS(nodes[20].result.text, "cannot open");
    file_config(21, tmppath("no/such/dir"), 1, 1);
    open_node(21);
    wait_finished(21, 21);
    HAS(nodes[21].result.text, "No such file or directory");
}
END_TEST

/* ------------------------------------------------------------------------------------ endpoint */

START_TEST(silent_connections_are_bounded)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 0;
    open_node(0);
    loop_turns(&loop, 3);
    enum { N = 200 };
    int fds[N], open = 0;
    for (int i = 0; i < N; i++) {
        fds[i] = call(nodes[0].config.endpoint_port);
        loop_turns(&loop, 3);
    }
    char byte;
    for (int i = 0; i < N; i++) {
        fd_set_nonblock(fds[i], true);
        open += recv(fds[i], &byte, 1, 0) < 0 && errno == EAGAIN;
    }
    ck_assert_int_eq(open, ENDPOINT_SILENT_MAX(2)); /* the newest */
    config_of(1, RDZV_STATIC, nodes[0].config.endpoint_port, 2, 2)->node_rank = 1;
    open_node(1);
    wait_runs(0, 1, 1);
    for (int i = 0; i < N; i++)
        close(fds[i]);
}
END_TEST

START_TEST(silent_connections_are_closed_in_time)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 0;
    open_node(0);
    loop_turns(&loop, 3);
    int silent = call(nodes[0].config.endpoint_port), half = call(nodes[0].config.endpoint_port);
    ck_assert_int_eq(send(half, "DLR1\x01\0\0\0\x40", 9, 0), 9); /* a hello that never ends */
    uint64_t start = mono_ns();
    char out[64];
    hear(silent, out, sizeof(out), sizeof(out));
    hear(half, out, sizeof(out), sizeof(out));
    double seconds = (double)(mono_ns() - start) / 1e9;
    ck_assert_double_gt(seconds, 4);
    close(silent);
    close(half);
}
END_TEST

START_TEST(no_descriptors_left)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 0;
    open_node(0);
    loop_turns(&loop, 3);
    int fd = call(nodes[0].config.endpoint_port);
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    int probe = dup(0);
    low.rlim_cur = (rlim_t)probe; /* not one more */
    close(probe);
    int fill = dup(0);
    setrlimit(RLIMIT_NOFILE, &low);
    char out[8];
    hear(fd, out, sizeof(out), sizeof(out)); /* it is hung up on */
    HAS(logs, "cannot accept connections: Too many open files");
    setrlimit(RLIMIT_NOFILE, &old);
    close(fill);
    close(fd);
    config_of(1, RDZV_STATIC, nodes[0].config.endpoint_port, 2, 2)->node_rank = 1;
    open_node(1);
    wait_runs(0, 1, 1);
}
END_TEST

static TCase *net_case(Suite *s, const char *name, double timeout)
{
    TCase *tc = test_case(s, name, timeout);
    tcase_add_checked_fixture(tc, setup, teardown);
    return tc;
}

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_net");
    TCase *tc = net_case(s, "one", 30);
    tcase_add_test(tc, one_node_alone);
    tcase_add_test(tc, one_node_restarts);
    tcase_add_test(tc, one_node_respawns_one_worker);
    tcase_add_test(tc, one_node_closed_in_the_middle);
    tcase_add_test(tc, program_that_hosts_the_store_itself);
    tcase_add_test(tc, configurations_that_cannot_be);
    tc = net_case(s, "several", 30);
    tcase_add_test(tc, static_nodes_in_any_order);
    tcase_add_test(tc, last_node_completes_at_once);
    tcase_add_test(tc, c10d_nodes_find_out_who_hosts);
    tcase_add_test(tc, localhost_by_name);
    tcase_add_test(tc, ipv6);
    tcase_add_test(tc, own_address_of_this_host);
    tcase_add_test(tc, host_name_of_this_host);
    tcase_add_test(tc, a_late_node_is_taken_in);
    tcase_add_test(tc, a_spare_waits_and_takes_over);
    tcase_add_test(tc, those_who_do_not_fit_end_at_once);
    tcase_add_test(tc, join_timeout_says_who_is_missing);
    tcase_add_test(tc, nobody_there);
    tcase_add_test(tc, a_name_that_does_not_resolve);
    tcase_add_test(tc, closed_while_a_name_is_looked_up);
    tcase_add_test(tc, leave_by_signal_of_one);
    tcase_add_test(tc, leave_before_anybody_is_there);
    tcase_add_test(tc, the_coordinator_goes);
    tcase_add_test(tc, the_result_reaches_everybody_before_the_host_goes);
    tcase_add_test(tc, many_nodes);
    tc = net_case(s, "broken", 40);
    tcase_add_test(tc, a_connection_that_is_reset_resumes);
    tcase_add_test(tc, a_killed_launcher_is_noticed_at_once);
    tcase_add_test(tc, a_silent_member_is_dropped_and_comes_back);
    tcase_add_test(tc, a_silent_coordinator_is_given_up);
    tc = net_case(s, "strangers", 40);
    tcase_add_test(tc, garbage_on_the_port_disturbs_nobody);
    tcase_add_test(tc, store_clients_get_to_the_store);
    tcase_add_test(tc, another_version_is_told_so);
    tcase_add_test(tc, what_answers_is_no_coordinator);
    tcase_add_test(tc, what_answers_speaks_nonsense);
    tcase_add_test(tc, what_answers_is_of_another_version);
    tc = net_case(s, "port", 30);
    tcase_add_test(tc, port_in_use_says_by_whom);
    tcase_add_test(tc, port_in_use_by_another_job);
    tcase_add_test(tc, bind_rules);
    tc = net_case(s, "file", 30);
    tcase_add_test(tc, file_nodes_meet);
    tcase_add_test(tc, file_that_was_left_behind_is_taken_over);
    tcase_add_test(tc, file_whose_locks_do_not_reach_here);
    tcase_add_test(tc, file_of_another_job);
    tcase_add_test(tc, file_that_is_none_of_ours_is_left_alone);
    tc = net_case(s, "endpoint", 40);
    tcase_add_test(tc, silent_connections_are_bounded);
    tcase_add_test(tc, silent_connections_are_closed_in_time);
    tcase_add_test(tc, no_descriptors_left);
    return s;
}

TEST_MAIN(suite)
