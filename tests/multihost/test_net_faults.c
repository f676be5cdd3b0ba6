/* Bad networks between hosts: lossy, slow, flapping, cut in two, small packets only; and busy
 * hosts. */
#include "tests/multihost/hosts.h"

#include <sys/wait.h>

static int g_nhosts;

static void setup(void)
{
    g_nhosts = 3;
    netns_setup(g_nhosts, -1);
}

static void setup_four(void)
{
    g_nhosts = 4;
    netns_setup(g_nhosts, -1);
}

static double seconds_since(uint64_t start_ns)
{
    return (double)(mono_ns() - start_ns) / 1e9;
}

static void wait_up(int workers)
{
    wait_lines(tmppath("up"), workers, 30);
}

/* A chain of rules on what a host sends. */
static void on_output(int host, const char *rule)
{
    ck_assert_int_eq(netns_sh(host,
                              "nft 'table inet faults { chain out { type filter hook output "
                              "priority 0; %s; }; }'",
                              rule),
                     0);
}

static void no_rules(int host)
{
    ck_assert_int_eq(netns_sh(host, "nft delete table inet faults"), 0);
}

/* ------------------------------------------------------------------------------- reset and loss */

/* Something on the way resets a connection: it is made anew. The workers do not notice, and what
 * happens afterwards gets around. */
START_TEST(a_reset_connection)
{
    /* Without and with launchers that listen for the others, so that one can be called. */
    static const char *const ways[] = {
        "--master_addr 10.77.0.1",
        "--rdzv_backend c10d --rdzv_endpoint 10.77.0.1:29500 --nnodes 2:3"};
    struct hosts h;
    launch_all(&h, "%s %s %%W append %%T/up wait %%T/go if-rank 1 exit 9 pause", ways[_i], QUICK);
    wait_up(3);
    on_output(1, "oif eth0 tcp dport 29500 numgen inc mod 1000000 < 1 reject with tcp reset");
    test_elapse(1.5); /* three heartbeats */
    write_file(tmppath("go"), "");
    for (int i = 0; i < HOSTS; i++) {
        expect_exit(&h, i, 9, 10);
        expect_said(&h.node[i], "worker 1 (local rank 0) on host1");
        ck_assert_msg(!strstr(h.node[i].err, "lost"), "%s", h.node[i].err);
    }
    hosts_fini(&h);
}
END_TEST

static const int losses[] = {5, 20, 40};

/* Every host loses so many of the packets it sends. The nodes meet, restart and end as without;
 * with up to 20 % none is taken for dead. */
START_TEST(packets_are_lost)
{
    struct hosts h;
    for (int i = 0; i < HOSTS; i++)
        on_output(i, test_text("oif eth0 numgen random mod 100 < %d drop", losses[_i]));
    launch_all(
        &h,
        "--master_addr 10.77.0.1 --max_restarts 1 --rdzv_conf "
        "keep_alive_interval=1,keep_alive_max_attempt=%d,join_timeout=60 %%W append "
        "%%T/up if-attempt 0 wait-lines 3 %%T/up if-attempt 0 sleep 3 if-attempt 0 if-rank 1 "
        "exit 7 if-attempt 0 pause print fine",
        losses[_i] <= 20 ? 8 : 15);
    for (int i = 0; i < HOSTS; i++) {
        expect_exit(&h, i, 0, 60);
        expect_printed(&h.node[i], "fine\n");
        if (losses[_i] <= 20)
            ck_assert_msg(!strstr(h.node[i].err, "lost"), "%s", h.node[i].err);
    }
    hosts_fini(&h);
}
END_TEST

/* --------------------------------------------------------------------------------- little width */

static char *store_worker(void)
{
    return build_path("tests/multihost/store_worker");
}

/* 1 Mbit/s, filled by the workers' own traffic with the store: the nodes still hear of each other
 * in time. */
START_TEST(a_narrow_line)
{
    struct hosts h;
    for (int i = 0; i < 2; i++) {
        if (netns_sh(i, "tc qdisc add dev eth0 root tbf rate 1mbit burst 16kb latency 400ms") !=
            0) {
            test_skip("this kernel has no token bucket filter");
            return;
        }
    }
    launch_all(&h, "--master_addr 10.77.0.1 %s %s hammer 5 40000", QUICK, store_worker());
    for (int i = 0; i < HOSTS; i++) {
        expect_exit(&h, i, 0, 60);
        expect_printed(&h.node[i], " rounds\n");
        ck_assert_msg(!strstr(h.node[i].err, "lost"), "%s", h.node[i].err);
    }
    hosts_fini(&h);
}
END_TEST

static bool traffic_flows(void *arg)
{
    (void)arg;
    return netns_sh(2, "awk '/eth0:/ { exit !($2 > 1000000) }' /proc/net/dev") == 0;
}

/* The workers' traffic with the store does not hide a cut: it is detected within the dead time. */
START_TEST(cut_off_under_traffic)
{
    struct hosts h;
    launch_all(&h, "--master_addr 10.77.0.1 %s %s hammer 60 100000", QUICK, store_worker());
    for (int i = 0; i < HOSTS; i++) {
        while (netns_kill(i, "store_worker", 0) == 0)
            test_poll_pause();
    }
    wait_until(traffic_flows, NULL, 20, "a megabyte of traffic with the store");
    uint64_t start = mono_ns();
    netns_cut(2);
    for (int i = 0; i < HOSTS; i++)
        expect_exit(&h, i, 1, DEAD_S + MARGIN_S);
    ck_assert_double_lt(seconds_since(start), test_seconds(DEAD_S + MARGIN_S));
    for (int i = 0; i < 2; i++)
        expect_said(&h.node[i], "node host2 (10.77.0.3) was lost");
    netns_heal(2);
    hosts_fini(&h);
}
END_TEST

/* Large packets vanish: what a failed worker has said does not get through, its node is lost. */
START_TEST(large_packets_vanish)
{
    struct hosts h;
    launch_all(&h,
               "--master_addr 10.77.0.1 %s %%W append %%T/up wait %%T/go if-rank 1 err %s if-rank "
               "1 exit 9 pause",
               QUICK, test_text("%0*d", 3000, 7));
    wait_up(3);
    on_output(1, "oif eth0 meta length > 600 drop");
    uint64_t start = mono_ns();
    write_file(tmppath("go"), "");
    for (int i = 0; i < HOSTS; i++) {
        int status = proc_wait(&h.node[i], DEAD_S + 2 * MARGIN_S);
        ck_assert_msg(status == 1 || status == 9, "host%d: %d\n%s", i, status, h.node[i].err);
    }
    ck_assert_double_lt(seconds_since(start), test_seconds(DEAD_S + 2 * MARGIN_S));
    for (int i = 0; i < HOSTS; i += 2)
        expect_said(&h.node[i], "host1");
    hosts_fini(&h);
}
END_TEST

/* ------------------------------------------------------------------------------- cut and healed */

/* A line that comes and goes every second, the dead time being 8 s: no restart, or one. */
START_TEST(a_flapping_line)
{
    struct hosts h = {0};
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i,
               "--nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint 10.77.0.1:29500 --max_restarts 5 "
               "--rdzv_conf keep_alive_interval=0.5,keep_alive_max_attempt=16,join_timeout=30,"
               "last_call_timeout=5 %%W append %%T/up wait %%T/go print fine");
    wait_up(3);
    for (int k = 0; k < 8; k++) {
        netns_cut(2);
        test_elapse(1);
        netns_heal(2);
        test_elapse(1);
    }
    int started = count_lines(tmppath("up"));
    ck_assert_msg(started <= 3 + 2 + 3, "%d workers have been started", started);
    write_file(tmppath("go"), "");
    for (int i = 0; i < 2; i++) {
        expect_exit(&h, i, 0, 30);
        expect_printed(&h.node[i], "fine\n");
    }
    proc_wait(&h.node[2], 60);
    hosts_fini(&h);
}
END_TEST

static void separate(void)
{
    for (int i = 0; i < 4; i++) {
        int a = i < 2 ? 2 : 0;
        on_output(i, test_text("ip daddr { %s, %s } drop", netns_addr(a), netns_addr(a + 1)));
    }
}

/* Counts the hosts of these that run a worker now. */
static int running_on(int first, int n)
{
    int hosts = 0;
    for (int i = first; i < first + n; i++)
        hosts += netns_kill(i, "worker", 0) > 0;
    return hosts;
}

static bool other_half_is_quiet(void *arg)
{
    (void)arg;
    return running_on(2, 2) == 0;
}

/* Four hosts fall into two halves, each of which could run alone. A short time: nothing happens. A
 * long one: the half with the coordinator goes on, the other one does not, never both; healed, it
 * is still one job. */
START_TEST(two_halves)
{
    struct proc p[4];
    for (int i = 0; i < 4; i++)
        netns_start(&p[i], i,
                    dlaunch_argv("", test_text("--nnodes 2:4 --rdzv_backend c10d --rdzv_endpoint "
                                               "10.77.0.1:29500 --max_restarts 5 --rdzv_conf "
                                               "keep_alive_interval=0.5,keep_alive_max_attempt=12,"
                                               "join_timeout=30,last_call_timeout=5 %%W append "
                                               "%%T/up env WORLD_SIZE wait %%T/go")),
                    NULL);
    wait_up(4);
    separate();
    test_elapse(0.6); /* of 6 s, less than the lease */
    for (int i = 0; i < 4; i++)
        no_rules(i);
    test_elapse(1.5);
    ck_assert_int_eq(count_lines(tmppath("up")), 4);
    separate();
    uint64_t start = mono_ns();
    wait_up(6); /* two of them again */
    ck_assert_msg(other_half_is_quiet(NULL), "both halves run");
    ck_assert_double_lt(seconds_since(start), test_seconds(6 + 1 + MARGIN_S));
    for (int i = 0; i < 2; i++) {
        proc_expect_out(&p[i], "WORLD_SIZE=2\n", 5);
        expect_said(&p[i], "restarting"); /* lost, or given up by itself first */
    }
    for (int k = 0; k < 30; k++) {
        ck_assert_msg(other_half_is_quiet(NULL), "both halves run");
        test_elapse(0.1);
    }
    for (int i = 0; i < 4; i++)
        no_rules(i);
    write_file(tmppath("go"), "");
    for (int i = 0; i < 2; i++) {
        int status = proc_wait(&p[i], 40);
        ck_assert_msg(status == 0, "host%d: %d\n%s", i, status, p[i].err);
    }
    for (int i = 2; i < 4; i++)
        proc_wait(&p[i], 60);
    for (int i = 0; i < 4; i++)
        proc_fini(&p[i]);
}
END_TEST

/* ----------------------------------------------------------------------------------- busy hosts */

/* 64 processes that do nothing but run. */
START_TEST(busy_hosts)
{
    struct hosts h;
    launch_all(
        &h,
        "--master_addr 10.77.0.1 %s --nproc_per_node 2 --tee 0:3 --redirects 1:3 --log_dir "
        "%%T/log %%W append %%T/up if-local 1 spew 3000000 all-it-can wait %%T/go print fine",
        QUICK);
    wait_up(6);
    struct proc busy;
    proc_start(&busy, ARGV("sh", "-c", "for i in $(seq 64); do (while :; do :; done) & done; wait"),
               NULL, 0);
    test_elapse(6); /* three dead times */
    proc_fini(&busy);
    write_file(tmppath("go"), "");
    for (int i = 0; i < HOSTS; i++) {
        expect_exit(&h, i, 0, 20);
        ck_assert_msg(!strstr(h.node[i].err, "lost"), "%s", h.node[i].err);
        expect_printed(&h.node[i], "fine\n");
    }
    hosts_fini(&h);
}
END_TEST

/* ------------------------------------------------------------------------------------ the relay */

/* Sockets of a host that others reach: all that listen but for loopback's. */
static int open_to_others(int host, const char *but_port)
{
    struct proc p;
    netns_start(&p, host,
                ARGV("sh", "-c",
                     test_text("ss -ltnH | awk '{print $4}' | grep -vE "
                               "'^(127\\.|\\[::1\\]|\\[::ffff:127)' | grep -vcE ':%s$'",
                               but_port)),
                NULL);
    proc_wait(&p, 10);
    int n = atoi(p.out);
    proc_fini(&p);
    return n;
}

/* With --master_store relay the store is open on no address of the network; what is, besides the
 * port where the launchers meet, is a data socket for each worker. */
START_TEST(the_store_is_not_on_the_network)
{
    struct hosts h;
    launch_all(&h,
               "--master_addr 10.77.0.1 --master_store relay --nproc_per_node 2 sh -c '%s && echo "
               "x >>%s/up && while [ ! -e %s/go ]; do sleep 0.02; done'",
               store_worker(), tmpdir(), tmpdir());
    wait_lines(tmppath("up"), 6, 20);
    for (int i = 0; i < HOSTS; i++)
        ck_assert_int_eq(open_to_others(i, "29500"), 2);
    ck_assert_int_eq(open_to_others(1, "1"), 2); /* the port is the coordinator's alone */
    struct proc p;
    netns_start(&p, 1, ARGV("timeout", "5", store_worker()),
                ARGV("RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=10.77.0.1", "MASTER_PORT=29500"));
    ck_assert_msg(proc_wait(&p, 10) != 0, "a client of another node's was served: %s", p.out);
    proc_fini(&p);
    write_file(tmppath("go"), "");
    expect_all(&h, 0, 20);
    for (int i = 0; i < HOSTS; i++)
        expect_printed(&h.node[i], " of 6: all here\n");
    expect_said(&h.node[0], "a client of the workers' store that did not come by its own node");
    hosts_fini(&h);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("net_faults");
    if (!netns_available())
        return s;
    TCase *tc = test_case(s, "lines", 120);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, a_reset_connection, 0, 2);
    tcase_add_loop_test(tc, packets_are_lost, 0, ARRAY_LEN(losses));
    tcase_add_test(tc, a_narrow_line);
    tcase_add_test(tc, cut_off_under_traffic);
    tcase_add_test(tc, large_packets_vanish);
    tcase_add_test(tc, a_flapping_line);
    tc = test_case(s, "halves", 120);
    tcase_add_checked_fixture(tc, setup_four, netns_teardown);
    tcase_add_test(tc, two_halves);
    tc = test_case(s, "relay", 60);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_test(tc, the_store_is_not_on_the_network);
    tc = test_case(s, "busy", 90);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_test(tc, busy_hosts);
    return s;
}

TEST_MAIN(suite)
