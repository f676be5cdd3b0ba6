/* dlaunch --doctor on hosts of their own: faults of the network, of names and of /dev/shm. */
#include "tests/multihost/hosts.h"

enum { EIGHT = 8 };

static void setup(void)
{
    netns_setup(HOSTS, -1);
}

static void setup_eight(void)
{
    netns_setup(EIGHT, -1);
}

static void setup_bad_name(void)
{
    netns_setup(HOSTS, 2);
}

/* A fault of host2. */
static const struct fault {
    const char *name, *shell, *words, *heal;
} faults[] = {
    {"a firewall that drops",
     "nft 'table inet plant { chain in { type filter hook input priority 0; iif eth0 tcp flags & "
     "(syn|ack) == syn drop; }; }'",
     "reach: ", "nft delete table inet plant"},
    {"a firewall that refuses",
     "nft 'table inet plant { chain in { type filter hook input priority 0; iif eth0 tcp flags & "
     "(syn|ack) == syn reject with tcp reset; }; }'",
     "Connection refused", "nft delete table inet plant"},
    {"a firewall that keeps it in",
     "nft 'table inet plant { chain out { type filter hook output priority 0; oif eth0 tcp dport "
     "!= "
     "29500 tcp flags & (syn|ack) == syn drop; }; }'",
     "reach: it does not reach", "nft delete table inet plant"},
    {"latency", "tc qdisc add dev eth0 root netem delay 5ms", "latency: its latency is",
     "tc qdisc del dev eth0 root"},
    {"bandwidth", "tc qdisc add dev eth0 root tbf rate 200mbit burst 64kb latency 50ms",
     "bandwidth: its bandwidth is", "tc qdisc del dev eth0 root"},
    {"another MTU", "ip link set eth0 mtu 1400", "mtu: interface eth0 has an MTU of 1400",
     "ip link set eth0 mtu 1500"},
    {"a small /dev/shm", "mount -t tmpfs -o size=64m tmpfs /dev/shm", "shm: /dev/shm has 64 MiB",
     "umount /dev/shm"},
    {"a full /dev/shm",
     "mount -t tmpfs -o size=200m tmpfs /dev/shm && head -c 190M /dev/zero >/dev/shm/left",
     "shm: /dev/shm is full: 10 MiB", "umount /dev/shm"},
    {"few ports", "sysctl -q net.ipv4.ip_local_port_range='40000 40500'", "ports: only 501 ports",
     "sysctl -q net.ipv4.ip_local_port_range='32768 60999'"},
    {"an interface that is down", "ip link set eth1 down",
     "interface: interface eth1 (GLOO_SOCKET_IFNAME) is down", "ip link set eth1 up"},
    {"a name that does not resolve",
     "grep -v host2 /etc/hosts >/run/hosts; mount --bind /run/hosts "
     "/etc/hosts",
     "hostname: its own name host2 does not resolve", "umount /etc/hosts"},
};

/* variable: for the victim; NULL: none. */
static void run_doctor(struct hosts *h, int victim, char *variable)
{
    char *env[] = {"OMP_NUM_THREADS=1", variable, NULL}, *others[] = {"OMP_NUM_THREADS=1", NULL};
    memset(h, 0, sizeof(*h));
    for (int i = 0; i < HOSTS; i++)
        netns_start(&h->node[i], i,
                    dlaunch_argv("", test_text("--nnodes 3 --node_rank %d --master_addr 10.77.0.1 "
                                               "--doctor true",
                                               i)),
                    i == victim ? env : others);
}

START_TEST(a_planted_fault)
{
    const struct fault *f = &faults[_i];
    struct hosts h;
    if (strstr(f->shell, "netem") && netns_sh(2, "%s 2>/dev/null", f->shell) != 0) {
        test_skip("%s: the kernel has no netem", f->name);
        return;
    }
    if (!strstr(f->shell, "netem"))
        ck_assert_int_eq(netns_sh(2, "%s", f->shell), 0);
    run_doctor(&h, 2, strstr(f->words, "GLOO") ? "GLOO_SOCKET_IFNAME=eth1" : NULL);
    for (int i = 0; i < HOSTS; i++) {
        expect_exit(&h, i, 1, 40);
        char *line = strstr(h.node[i].out, "host2 (node 2): ");
        ck_assert_msg(line && strstr(line, f->words), "%s: host%d: %s%s", f->name, i, h.node[i].out,
                      h.node[i].err);
        ck_assert_msg(!strstr(h.node[i].out, "(node 0): ") && !strstr(h.node[i].out, "(node 1): "),
                      "%s: %s", f->name, h.node[i].out);
    }
    netns_sh(2, "%s", f->heal);
    hosts_fini(&h);
}
END_TEST

/* One path is bad and both of its ends are well otherwise. */
START_TEST(a_path_between_two)
{
    struct hosts h;
    ck_assert_int_eq(netns_sh(1,
                              "nft 'table inet plant { chain in { type filter hook input priority "
                              "0; ip saddr 10.77.0.3 tcp flags & (syn|ack) == syn drop; }; }'"),
                     0);
    run_doctor(&h, -1, NULL);
    for (int i = 0; i < HOSTS; i++) {
        expect_exit(&h, i, 1, 40);
        expect_printed(&h.node[i], "host1 (node 1): reach: host2 (node 2) does not reach its port");
        expect_printed(&h.node[i], "1 problem found on 3 nodes");
    }
    netns_sh(1, "nft delete table inet plant");
    hosts_fini(&h);
}
END_TEST

START_TEST(a_name_that_leads_to_loopback)
{
    struct hosts h;
    run_doctor(&h, -1, NULL);
    for (int i = 0; i < HOSTS; i++) {
        expect_exit(&h, i, 1, 40);
        expect_printed(&h.node[i],
                       "host2 (node 2): hostname: its own name host2 resolves to 127.0.");
    }
    hosts_fini(&h);
}
END_TEST

static void check_eight(void)
{
    struct proc node[EIGHT];
    uint64_t start = mono_ns();
    memset(node, 0, sizeof(node));
    for (int i = 0; i < EIGHT; i++)
        netns_start(&node[i], i,
                    dlaunch_argv("", test_text("--nnodes 8 --node_rank %d --master_addr 10.77.0.1 "
                                               "--doctor true",
                                               i)),
                    NULL);
    for (int i = 0; i < EIGHT; i++) {
        int status = proc_wait(&node[i], 60);
        ck_assert_msg(status == 0, "host%d: exit %d: %s%s", i, status, node[i].out, node[i].err);
        expect_printed(&node[i], "8 nodes, 8 workers: no problem found");
    }
    if (getenv("DOCTOR_RUNS"))
        printf("8 hosts: %.2f s\n", (double)(mono_ns() - start) / 1e9);
    for (int i = 0; i < EIGHT; i++)
        proc_fini(&node[i]);
}

/* DOCTOR_RUNS=n: so many times (`make doctor-trials`). */
START_TEST(eight_clean_hosts)
{
    int runs = getenv("DOCTOR_RUNS") ? atoi(getenv("DOCTOR_RUNS")) : 2;
    for (int i = 0; i < runs; i++)
        check_eight();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("doctor_hosts");
    if (!netns_available())
        return s;
    TCase *tc = test_case(s, "faults", 90);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, a_planted_fault, 0, ARRAY_LEN(faults));
    tcase_add_test(tc, a_path_between_two);
    tc = test_case(s, "names", 60);
    tcase_add_checked_fixture(tc, setup_bad_name, netns_teardown);
    tcase_add_test(tc, a_name_that_leads_to_loopback);
    tc = test_case(s, "clean", getenv("DOCTOR_RUNS") ? 3600 : 90);
    tcase_add_checked_fixture(tc, setup_eight, netns_teardown);
    tcase_add_test(tc, eight_clean_hosts);
    return s;
}

TEST_MAIN(suite)
