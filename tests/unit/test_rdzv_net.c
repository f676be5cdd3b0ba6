/* Rendezvous objects over real sockets: one, several, and with connections that break. */
#include "rendezvous/discovery/rdzv_probe.h"
#include "rendezvous/rdzv_rules.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "tests/lib/rdzv_nodes.h"

/* ------------------------------------------------------------------------------------- one node */

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
    HAS(nodes[0].why.text, "worker 1 (local rank 1) on node0 exited with code 3");
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
    config_of(0, RDZV_C10D, 29400, 1, 2)->nproc = -1;
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    config_of(0, RDZV_C10D, 29400, 1, 2)->keep_alive_max_attempt = 1;
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    HAS(e.msg, "a dead time of 5 s, too short");
    config_of(0, RDZV_C10D, 29400, 1, 2)->keep_alive_interval = 0.1;
    nodes[0].config.keep_alive_max_attempt = 17;
    ck_assert_int_eq(try_open(0, &e), -EINVAL);
    HAS(e.msg, "a dead time of 1.7 s, too short");
    HAS(e.msg, "must be 1.75 s at least");
    nodes[0].r = NULL;
}
END_TEST

/* Whatever the dead time, the lease ends early enough before it for the workers to be killed. */
START_TEST(lease_and_dead_time)
{
    const uint64_t ms = 1000000, least = RDZV_TICK_NS + RDZV_KILL_NS + RDZV_MARGIN_NS;
    ck_assert_uint_eq(least, 1600 * ms);
    for (uint64_t dead = 1 * ms; dead < 100000 * ms; dead += 37 * ms) {
        uint64_t lease = rdzv_lease_ns(dead);
        ck_assert(lease == 0 || (dead - lease >= least && dead - lease >= dead / 5));
        ck_assert(lease > 0 || dead <= least);
    }
    ck_assert_uint_eq(rdzv_lease_ns(15000 * ms), 12000 * ms);
    ck_assert_uint_eq(rdzv_lease_ns(3000 * ms), 1400 * ms);
    config_of(0, RDZV_C10D, 29400, 1, 2)->keep_alive_interval = 0.1;
    for (int attempts = 1; attempts < 40; attempts++) {
        struct err e = ERR_INIT;
        nodes[0].config.keep_alive_max_attempt = attempts;
        ck_assert_int_eq(rdzv_config_check(&nodes[0].config, &e), attempts < 18 ? -EINVAL : 0);
    }
    nodes[0].config.keep_alive_max_attempt = 1; /* nobody else is there to go on */
    nodes[0].config.max_nodes = 1;
    struct err e = ERR_INIT;
    ck_assert_int_eq(rdzv_config_check(&nodes[0].config, &e), 0);
}
END_TEST

/* -------------------------------------------------------------------------------- several nodes */

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

START_TEST(c10d_nodes_find_the_host)
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

START_TEST(c10d_is_host_is_honoured)
{
    struct err e = ERR_INIT;
    int port = unused_port();
    for (int i = 0; i < 2; i++)
        config_of(i, RDZV_C10D, port, 2, 2)->is_host = i;
    open_node(0); /* may not, although it could */
    loop_turns(&loop, 20);
    open_node(1);
    wait_runs(0, 1, 1);
    struct rdzv_info info;
    rdzv_get_info(nodes[0].r, &info);
    ck_assert(!info.coordinator);
    config_of(2, RDZV_C10D, port, 2, 2)->is_host = 1; /* must, and cannot */
    ck_assert_int_lt(try_open(2, &e), 0);
    nodes[2].r = NULL;
    HAS(e.msg, "Address already in use");
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
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_C10D, 0, 1, 3)->last_call_timeout = 0.2;
        nodes[i].config.elastic = true;
    }
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

START_TEST(nodes_that_do_not_fit_end_at_once)
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
        ck_assert_int_eq(nodes[i].result.exit_code, 2);
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

START_TEST(join_timeout_names_the_missing_nodes)
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

START_TEST(no_coordinator_at_the_endpoint)
{
    config_of(0, RDZV_STATIC, unused_port(), 2, 2)->node_rank = 1;
    nodes[0].config.join_timeout = 0.5;
    open_node(0);
    wait_finished(0, 0);
    HAS(nodes[0].result.text, "no coordinator at 127.0.0.1:");
    HAS(nodes[0].result.text, "Connection refused; 127.0.0.1 can be reached from this host only");
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

/* Somebody who says where the job is. */
struct telling {
    uv_work_t work;
    int port;
    struct rdzv_identity id;
    int rc;
    bool done;
};

static void on_tell(uv_work_t *work)
{
    struct telling *t = container_of(work, struct telling, work);
    struct rdzv_elsewhere where = {.run_id = "job", .port = 1};
    struct netaddr a;
    netaddr_parse_ip(&a, "127.0.0.1", t->port);
    t->rc = rdzv_tell(&a, 10000, NULL, &where, &t->id);
}

static void on_has_told(uv_work_t *work, int status)
{
    struct telling *t = container_of(work, struct telling, work);
    (void)status;
    t->done = true;
}

START_TEST(closed_while_it_is_redirected)
{
    for (int turns = 0; turns < 20; turns++) { /* no part of what it hosted may leak or crash */
        int port = unused_port();
        memset(nodes, 0, 2 * sizeof(nodes[0]));
        logs[0] = '\0';
        for (int i = 0; i < 2; i++) {
            config_of(i, RDZV_C10D, port, 3, 3)->is_host = i == 0;
            open_node(i);
        }
        wait_logged("joined: 2 of 3");
        struct telling t = {.port = port};
        uv_queue_work(&loop, &t.work, on_tell, on_has_told);
        loop_run_until(&loop, &t.done, 10, "telling");
        ck_assert_int_eq(t.rc, 0);
        ck_assert(t.id.elsewhere);
        loop_turns(&loop, turns);
        for (int i = 0; i < 2; i++)
            rdzv_close(nodes[i].r, on_closed, &nodes[i]);
        for (int i = 0; i < 2; i++) {
            loop_run_until(&loop, &nodes[i].closed, 10, "close");
            nodes[i].r = NULL;
        }
    }
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

/* --------------------------------------------------------------------------- broken connections */

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

static bool all_gathered(void *arg)
{
    int count = *(int *)arg;
    return nodes[0].gathers == count && nodes[1].gathers == count && nodes[2].gathers == count;
}

static void run_until_gathered(int count)
{
    uint64_t end = mono_ns() + (uint64_t)(test_seconds(10) * 1e9);
    while (!all_gathered(&count)) {
        ck_assert_msg(mono_ns() < end, "gathered %d, %d, %d of %d", nodes[0].gathers,
                      nodes[1].gathers, nodes[2].gathers, count);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
}

static void gather_on(int i, int number)
{
    char value[32];
    snprintf(value, sizeof(value), "%d.%d", i, number);
    rdzv_gather(nodes[i].r, value, strlen(value));
}

/* Neither a value nor a result is lost with its connection, wherever that breaks. */
START_TEST(an_all_gather_survives_a_reset)
{
    cluster(RDZV_STATIC, 3, 3, 3);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    for (int number = 0; number < 12; number++) {
        gather_on(0, number);
        for (int k = 1; k < 3; k++) {
            loop_turns(&loop, number % 4);
            if (number % 3 == 1) {
                logs[0] = '\0';
                int fd = connection_to(nodes[0].config.endpoint_port);
                ck_assert_int_eq(connect(fd, &none, sizeof(none)), 0); /* sends a reset */
            }
            gather_on(k, number);
            if (number % 3 == 2) {
                logs[0] = '\0';
                loop_turns(&loop, number % 5);
                int fd = connection_to(nodes[0].config.endpoint_port);
                ck_assert_int_eq(connect(fd, &none, sizeof(none)), 0);
                wait_logged("is connected again");
            } else if (number % 3 == 1) {
                wait_logged("is connected again");
            }
        }
        run_until_gathered(number + 1);
        for (int i = 0; i < 3; i++)
            ck_assert_str_eq(nodes[i].gathered,
                             test_text("0.%d,1.%d,2.%d,", number, number, number));
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(nodes[i].stops, 0);
        rdzv_done(nodes[i].r);
    }
    wait_finished(0, 2);
}
END_TEST

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
    HAS(nodes[0].why.text, "its launcher has ended");
    waitpid(pid, NULL, 0);
    wait_runs(0, 0, 2);
    ck_assert_int_eq(nodes[0].nnodes, 1);
}
END_TEST

START_TEST(a_silent_member_is_dropped_and_rejoins)
{
    int port = unused_port();
    for (int i = 0; i < 2; i++) {
        config_of(i, RDZV_C10D, port, 1, 2)->keep_alive_interval = 0.2;
        nodes[i].config.elastic = true;
        nodes[i].config.keep_alive_max_attempt = 15;
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
        nodes[i].config.keep_alive_max_attempt = 15;
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
    tcase_add_test(tc, lease_and_dead_time);
    tc = net_case(s, "several", 30);
    tcase_add_test(tc, static_nodes_in_any_order);
    tcase_add_test(tc, last_node_completes_at_once);
    tcase_add_test(tc, c10d_nodes_find_the_host);
    tcase_add_test(tc, c10d_is_host_is_honoured);
    tcase_add_test(tc, localhost_by_name);
    tcase_add_test(tc, ipv6);
    tcase_add_test(tc, own_address_of_this_host);
    tcase_add_test(tc, host_name_of_this_host);
    tcase_add_test(tc, a_late_node_is_taken_in);
    tcase_add_test(tc, a_spare_waits_and_takes_over);
    tcase_add_test(tc, nodes_that_do_not_fit_end_at_once);
    tcase_add_test(tc, join_timeout_names_the_missing_nodes);
    tcase_add_test(tc, no_coordinator_at_the_endpoint);
    tcase_add_test(tc, a_name_that_does_not_resolve);
    tcase_add_test(tc, closed_while_a_name_is_looked_up);
    tcase_add_test(tc, closed_while_it_is_redirected);
    tcase_add_test(tc, leave_by_signal_of_one);
    tcase_add_test(tc, leave_before_anybody_is_there);
    tcase_add_test(tc, the_coordinator_goes);
    tcase_add_test(tc, the_result_reaches_everybody_before_the_host_goes);
    tcase_add_test(tc, many_nodes);
    tc = net_case(s, "broken", 40);
    tcase_add_test(tc, a_connection_that_is_reset_resumes);
    tcase_add_test(tc, an_all_gather_survives_a_reset);
    tcase_add_test(tc, a_killed_launcher_is_noticed_at_once);
    tcase_add_test(tc, a_silent_member_is_dropped_and_rejoins);
    tcase_add_test(tc, a_silent_coordinator_is_given_up);
    return s;
}

TEST_MAIN(suite)
