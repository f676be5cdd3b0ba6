/* libdlcoll between hosts: results over a network that delays and loses packets, and how much goes
 * over a good one. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tests/lib/wan.h"
#include "tests/multihost/hosts.h"

/* The same command on hosts 0 to n - 1, workers' data over `interface`. */
static void run_on(int n, const char *interface, const char *line)
{
    struct hosts h = {0};
    for (int i = 0; i < n; i++)
        launch(&h, i, "--nnodes %d --node_rank %d --master_addr 10.77.0.1 --interface %s %s %s", n,
               i, interface, QUICK, line);
    for (int i = 0; i < n; i++)
        expect_exit(&h, i, 0, 120);
    hosts_fini(&h);
}

/* dlcoll_perf looks at every element of every result. Three ranks on each host, so there are lanes
 * and leaders, in a number that is no power of two. */
START_TEST(every_operation_over_a_bad_network)
{
    struct wan wan;
    long lost;
    if (!wan_available())
        return;
    wan_start(&wan, _i, &(struct wan_rules){.delay_ms = 2, .loss = 0.01, .seed = 7});
    run_on(_i, "wan0",
           test_text("--nproc_per_node 3 %s all -b 8 -e 200K -f 150 -w 1 -n 2",
                     build_path("dlcoll_perf")));
    long carried = wan_stop(&wan, &lost);
    ck_assert_msg(carried > 1000 && lost > 5, "%ld packets carried, %ld lost", carried, lost);
}
END_TEST

/* ------------------------------------------------------------------------------------- traffic */

struct traffic {
    double in, out; /* bytes */
};

static struct traffic traffic_of(int host)
{
    struct proc p;
    struct traffic t = {0};
    netns_start(&p, host, ARGV("cat", "/proc/net/dev"), NULL);
    ck_assert_int_eq(proc_wait(&p, 20), 0);
    const char *line = strstr(p.out, "eth0:");
    ck_assert_msg(line &&
                      sscanf(line, "eth0: %lf %*f %*f %*f %*f %*f %*f %*f %lf", &t.in, &t.out) == 2,
                  "%s", p.out);
    proc_fini(&p);
    return t;
}

/* Bytes over host 0's interface while 8 workers on 2 hosts add up 8 MB so many times. */
static struct traffic reduce_often(int times)
{
    struct traffic before = traffic_of(0);
    run_on(2, "eth0",
           test_text("--nproc_per_node 4 %s all_reduce -b 8M -e 8M -p in -w 1 -c 0 -n %d",
                     build_path("dlcoll_perf"), times));
    struct traffic after = traffic_of(0);
    return (struct traffic){after.in - before.in, after.out - before.out};
}

/* Each node sends half of its sum and the result of the other half: as many bytes as a buffer has,
 * however many ranks there are on it. */
START_TEST(a_byte_leaves_a_node_once)
{
    const double each = 8 << 20;
    struct traffic few = reduce_often(5), many = reduce_often(25);
    double in = (many.in - few.in) / 20 / each, out = (many.out - few.out) / 20 / each;
    ck_assert_msg(in > 0.9 && in <= 1.05 && out > 0.9 && out <= 1.05,
                  "%.3f of the buffer came in, %.3f went out", in, out);
}
END_TEST

static void setup(void)
{
    netns_setup(HOSTS, -1);
}

static Suite *suite(void)
{
    Suite *s = suite_create("collectives");
    if (!netns_available())
        return s;
    TCase *tc = test_case(s, "hosts", 150);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, every_operation_over_a_bad_network, 2, HOSTS + 1);
    tcase_add_test(tc, a_byte_leaves_a_node_once);
    return s;
}

TEST_MAIN(suite)
