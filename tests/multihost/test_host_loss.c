/* Three hosts, one of which is lost: cut off, switched off, its launcher killed; or comes back. */
#include "tests/multihost/hosts.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void setup(void)
{
    netns_setup(HOSTS, -1);
}

static void wait_up(int workers)
{
    wait_lines(tmppath("up"), workers, 20);
}

/* -------------------------------------------------------------------------- ways to cut a cable */

static void unplug(int host)
{
    netns_cut(host);
}

static void plug(int host)
{
    netns_heal(host);
}

static void link_down(int host)
{
    ck_assert_int_eq(netns_sh(host, "ip link set eth0 down"), 0);
}

static void link_up(int host)
{
    ck_assert_int_eq(netns_sh(host, "ip link set eth0 up && ip addr replace %s/64 dev eth0 nodad",
                              netns_addr6(host)),
                     0);
}

static void drop_all(int host)
{
    ck_assert_int_eq(
        netns_sh(host, "nft \"table inet cut { chain in { type filter hook input priority 0; iif "
                       "eth0 drop; }; chain out { type filter hook output priority 0; oif eth0 "
                       "drop; }; }\""),
        0);
}

/* Drops the packets that the host receives; its own packets still arrive at the others. */
static void drop_incoming(int host)
{
    ck_assert_int_eq(netns_sh(host, "nft \"table inet cut { chain in { type filter hook input "
                                    "priority 0; iif eth0 drop; }; }\""),
                     0);
}

static void drop_nothing(int host)
{
    ck_assert_int_eq(netns_sh(host, "nft delete table inet cut"), 0);
}

static const struct {
    const char *name;
    void (*cut)(int host), (*heal)(int host);
} cables[] = {
    {"unplugged from the bridge", unplug, plug},
    {"interface down", link_down, link_up},
    {"packets dropped", drop_all, drop_nothing},
    {"incoming packets dropped", drop_incoming, drop_nothing},
};

enum { BOTH_WAYS = 3 }; /* so many, the first ones, stop the packets in both directions */

/* -------------------------------------------------------------------------------------- cut off */

static double seconds_since(uint64_t start_ns)
{
    return (double)(mono_ns() - start_ns) / 1e9;
}

static bool nobody_there(void *host)
{
    return netns_count_processes(*(int *)host) == 0;
}

/* A host that everybody but itself loses: the others say so within the dead time and end; so does
 * it, by itself, and nothing is left on it. */
static void lose(int way, int victim)
{
    struct hosts h;
    launch_all(&h, "--master_addr 10.77.0.1 %s --nproc_per_node 2 %%W append %%T/up pause", QUICK);
    wait_up(6);
    uint64_t start = mono_ns();
    cables[way].cut(victim);
    for (int k = 0; k < HOSTS; k++) {
        int i = (victim + 1 + k) % HOSTS; /* the victim last */
        expect_exit(&h, i, 1, DEAD_S + MARGIN_S);
        ck_assert_msg(seconds_since(start) < test_seconds(DEAD_S + MARGIN_S), "%s: host%d: %.1f s",
                      cables[way].name, i, seconds_since(start));
        wait_until(nobody_there, &i, 1, "the host is empty");
    }
    for (int i = 0; i < HOSTS; i++) {
        if (i == victim && victim == 0) { /* it has the coordinator, which has lost the others */
            expect_said(&h.node[i], "node host1 (10.77.0.2) was lost");
            expect_said(&h.node[i], "node host2 (10.77.0.3) was lost");
        } else if (i != victim && victim != 0) {
            expect_said(&h.node[i],
                        test_text("node host%d (%s) was lost", victim, netns_addr(victim)));
        } else {
            expect_said(&h.node[i], "10.77.0.1:29500");
        }
    }
    cables[way].heal(victim);
    hosts_fini(&h);
}

START_TEST(a_member_is_cut_off)
{
    lose(_i, 1 + _i % 2);
}
END_TEST

START_TEST(the_coordinator_is_cut_off)
{
    lose(_i, 0);
}
END_TEST

/* dlaunch -H: a host is cut off from the others, but not from the head. The others succeed without
 * it, and that is the job's result: the launcher that was cut off gives up later, as the last. */
START_TEST(the_head_hears_of_it_last)
{
    struct proc p;
    int victim = _i ? 0 : 2; /* 0: it has the coordinator */
    char cases[512] = "";
    for (int i = 0; i < HOSTS; i++)
        snprintf(cases + strlen(cases), sizeof(cases) - strlen(cases), "host%d) pid=%d ip=%s;; ", i,
                 (int)netns_holder(i), netns_addr(i));
    write_file(tmppath("agent"),
               test_text("#!/bin/sh\ncase $1 in %sesac\nexport SSH_CONNECTION=\"$ip 1 $ip 22\"\n"
                         "exec nsenter -t $pid -n -u -m /bin/sh -c \"$2\"\n",
                         cases));
    ck_assert_int_eq(chmod(tmppath("agent"), 0755), 0);
    dlaunch_start(&p, NULL,
                  "-H host0,host1,host2 --nnodes 2:3 --launch_agent %%T/agent --max_restarts 3 "
                  "--rdzv_conf keep_alive_interval=0.5,keep_alive_max_attempt=6,join_timeout=8,"
                  "last_call_timeout=2 %%W append %%T/up wait-lines 5 %%T/up");
    wait_up(3);
    netns_cut(victim);
    expect_status(&p, 0, 60);
    ck_assert_msg(!strstr(p.err, "FAILED"), "%s", p.err);
    proc_fini(&p);
}
END_TEST

/* The coordinator's port resets and refuses: it is called again and again, with pauses. */
START_TEST(the_coordinator_refuses)
{
    struct hosts h;
    launch_all(&h, "--master_addr 10.77.0.1 %s %%W append %%T/up pause", QUICK);
    wait_up(3);
    ck_assert_int_eq(netns_sh(0,
                              "nft \"table inet cut { chain in { type filter hook input priority "
                              "0; iif eth0 tcp dport 29500 reject with tcp reset; }; }\""),
                     0);
    for (int i = 1; i < HOSTS; i++) {
        expect_exit(&h, i, 1, DEAD_S + MARGIN_S);
        expect_said(&h.node[i], "nothing heard of the coordinator at 10.77.0.1");
        ck_assert_int_eq(
            netns_sh(i, "awk '/^Tcp: [0-9]/ && $6 > 40 {print; exit 1}' /proc/net/snmp"), 0);
    }
    expect_exit(&h, 0, 1, DEAD_S + MARGIN_S);
    hosts_fini(&h);
}
END_TEST

/* The power of a host is gone: no FIN, no farewell. */
START_TEST(a_host_is_switched_off)
{
    struct hosts h;
    launch_all(&h, "--master_addr 10.77.0.1 %s --nproc_per_node 2 %%W append %%T/up pause", QUICK);
    wait_up(6);
    netns_power_off(2);
    for (int i = 0; i < 2; i++) {
        expect_exit(&h, i, 1, DEAD_S + MARGIN_S);
        expect_said(&h.node[i], "host2");
    }
    netns_heal(2);
    hosts_fini(&h);
}
END_TEST

/* Workers of a host that is cut off and that do not mind SIGTERM are ended all the same. */
START_TEST(stubborn_workers_of_a_lost_host)
{
    struct hosts h;
    launch_all(&h,
               "--master_addr 10.77.0.1 %s --shutdown_timeout 1 --nproc_per_node 2 %%W ignore TERM "
               "child setsid-child daemon append %%T/up pause",
               QUICK);
    wait_up(6);
    netns_cut(1);
    for (int k = 0; k < HOSTS; k++) {
        int i = (2 + k) % HOSTS;
        expect_exit(&h, i, 1, DEAD_S + 1 + MARGIN_S);
        wait_until(nobody_there, &i, 1, "the host is empty");
    }
    netns_heal(1);
    hosts_fini(&h);
}
END_TEST

/* ------------------------------------------------------------------------------------ hangs */

/* Steps with libdlcoll that have been learnt; no node is dead before the test is over. */
static void start_steps(struct hosts *h)
{
    launch_all(h,
               "--master_addr 10.77.0.1 --rdzv_conf keep_alive_interval=20 --hang_after 0.5 "
               "--nproc_per_node 2 %s none 0 %%T",
               build_path("tests/hang_worker"));
    for (int i = 0; i < HOSTS; i++)
        proc_expect_out(&h->node[i], "up\nup\n", 30);
    test_elapse(2);
}

/* A host that is cut off: the others name it within a second, as its launcher does not answer, and
 * it says for itself that nobody does. When it is back the steps go on. */
START_TEST(a_host_that_is_cut_off_hangs)
{
    struct hosts h;
    int way = _i / 2, victim = _i % 2;
    static const char *const coordinator =
        "the node of the coordinator (10.77.0.1:29500) does not answer";
    start_steps(&h);
    uint64_t cut_ns = mono_ns();
    cables[way].cut(victim);
    for (int k = 0; k < HOSTS; k++) {
        int i = (victim + 1 + k) % HOSTS; /* the victim last */
        proc_expect_err(&h.node[i], "the job hangs: ", 10);
        ck_assert_msg(seconds_since(cut_ns) < test_seconds(1), "%s: host%d: %.3f s",
                      cables[way].name, i, seconds_since(cut_ns));
        proc_expect_err(
            &h.node[i],
            i == victim && victim == 0
                ? "ranks 2-5; the first of them, rank 2 on host1: its node does not answer"
            : i != victim && victim
                ? "ranks 2, 3; the first of them, rank 2 on host1: its node does not answer"
                : coordinator,
            5);
    }
    cables[way].heal(victim);
    for (int i = 0; i < HOSTS; i++)
        proc_expect_err(&h.node[i], "the workers of this node go on after all", 30);
    write_file(tmppath("end"), "");
    expect_all(&h, 0, 30);
    hosts_fini(&h);
}
END_TEST

/* ----------------------------------------------------------------------------- killed launchers */

/* No message is on its way to host 0, and none was a moment ago. A launcher that is killed before
 * it has read what has come resets its connections, which proves nothing (P in rdzv_election.c). */
static bool has_read_all(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20; i++) {
        if (netns_sh(0, "awk '$4 == \"01\" && $5 != \"00000000:00000000\" { exit 1 }' "
                        "/proc/net/tcp /proc/net/tcp6") != 0)
            return false;
    }
    return true;
}

START_TEST(a_killed_launcher)
{
    /* guardian or agent, on the coordinator's host or another */
    int victim = _i / 2;
    const char *process = _i % 2 ? "dl-agent" : "dlaunch";
    struct hosts h;
    launch_all(&h,
               "--master_addr 10.77.0.1 %s --nproc_per_node 2 %%W child setsid-child daemon append "
               "%%T/up pause",
               QUICK);
    wait_up(6);
    wait_until(has_read_all, NULL, 20, "the messages are read");
    uint64_t start = mono_ns();
    ck_assert_int_eq(netns_kill(victim, process, SIGKILL), 1);
    expect_exit(&h, victim, 128 + SIGKILL, 5);
    wait_until(nobody_there, &victim, 1, "the host is empty");
    for (int i = 0; i < HOSTS; i++) {
        if (i == victim)
            continue;
        expect_exit(&h, i, 1, 5);
        expect_said(&h.node[i], victim ? test_text("host%d", victim) : "10.77.0.1:29500");
    }
    ck_assert_msg(seconds_since(start) < test_seconds(DEAD_S / 2),
                  "%.1f s: it was not noticed at once\n%s", seconds_since(start),
                  h.node[(victim + 1) % HOSTS].err);
    hosts_fini(&h);
}
END_TEST

/* ---------------------------------------------------------------------------------- coming back */

/* Shorter than the dead time: the job does not notice. */
START_TEST(a_short_cut_is_survived)
{
    struct hosts h;
    launch_all(&h, "--master_addr 10.77.0.1 --rdzv_conf "
                   "keep_alive_interval=0.5,keep_alive_max_attempt=40 %%W append %%T/up wait "
                   "%%T/go if-rank 1 exit 9 print fine");
    wait_up(3);
    for (int victim = 0; victim < 2; victim++) {
        netns_cut(victim);
        test_elapse(1.5); /* three heartbeats */
        netns_heal(victim);
    }
    write_file(tmppath("go"), "");
    expect_all(&h, 9, 30); /* and what happens after it gets around */
    for (int i = 0; i < HOSTS; i++)
        expect_said(&h.node[i], "worker 1 (local rank 0) on host1");
    hosts_fini(&h);
}
END_TEST

static const char elastic[] =
    "--elastic --nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint 10.77.0.1:29500 "
    "--max_restarts 3 " ELASTIC;

/* With MIN of them left the others go on; a launcher started anew on the healed host is taken in.
 */
START_TEST(the_others_go_on_and_it_comes_back)
{
    struct hosts h = {0};
    const char *line = test_text("%s %%W append %%T/up env WORLD_SIZE wait %%T/go", elastic);
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i, "%s", line);
    wait_up(3);
    netns_cut(2);
    wait_up(5);
    proc_expect_out(&h.node[0], "WORLD_SIZE=2\n", 10);
    proc_expect_out(&h.node[1], "WORLD_SIZE=2\n", 10);
    expect_said(&h.node[0], "host2");
    expect_exit(&h, 2, 1, 40); /* it has nobody to go on with */
    ck_assert_int_eq(netns_count_processes(2), 0);
    proc_fini(&h.node[2]);
    netns_heal(2);
    launch(&h, 2, "%s", line);
    wait_up(8);
    write_file(tmppath("go"), "");
    expect_all(&h, 0, 20);
    expect_printed(&h.node[2], "WORLD_SIZE=3\n");
    hosts_fini(&h);
}
END_TEST

/* The host of the coordinator reboots. All that its launcher knows is its own name; that one is
 * told under the job token where the others are. A launcher on another host, started anew, asks
 * there. */
START_TEST(the_coordinators_host_comes_back)
{
    struct hosts h = {0};
    const char *line = test_text("--rdzv_backend c10d --rdzv_endpoint host0 --nnodes 1:3 --elastic "
                                 "%s %%W append %%T/up env WORLD_SIZE wait %%T/go",
                                 ELASTIC);
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i, "%s", line);
    wait_up(3);
    netns_kill(0, NULL, SIGKILL);
    proc_wait(&h.node[0], 20);
    proc_fini(&h.node[0]);
    wait_up(5);
    launch(&h, 0, "%s", line);
    wait_up(8);
    proc_expect_err(&h.node[0], "the job 'none' runs already", 10);
    proc_poll(&h.node[1]);
    int other = strstr(h.node[1].err, "this node is the coordinator now") ? 2 : 1;
    netns_kill(other, NULL, SIGKILL);
    proc_wait(&h.node[other], 20);
    proc_fini(&h.node[other]);
    wait_up(10);
    launch(&h, other, "%s", line);
    wait_up(13);
    proc_expect_err(&h.node[other], "is not the coordinator, which is at 10.77.0.", 10);
    write_file(tmppath("go"), "");
    expect_all(&h, 0, 20);
    expect_printed(&h.node[0], "WORLD_SIZE=3\n");
    hosts_fini(&h);
}
END_TEST

static bool three_are_here(void *node)
{
    struct proc *p = node;
    proc_poll(p);
    return ranks_that_say(p->out, "here") == 3;
}

/* --console job: the host whose terminal shows all lines loses its power, and the console of the
 * next coordinator goes on with what its own host and the other one print. */
START_TEST(the_host_with_the_console_is_lost)
{
    struct hosts h = {0};
    const char *line =
        test_text("%s --console job %%W print here append %%T/up wait %%T/go print there", elastic);
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i, "%s", line);
    wait_up(3);
    wait_until(three_are_here, &h.node[0], 20, "all ranks on the first console");
    netns_power_off(0);
    wait_up(5);
    write_file(tmppath("go"), "");
    expect_exit(&h, 1, 0, 40);
    expect_exit(&h, 2, 0, 40);
    int next = strstr(h.node[1].err, "this node is the coordinator now") ? 1 : 2;
    ck_assert_int_eq(ranks_that_say(h.node[next].out, "here"), 2);
    ck_assert_int_eq(ranks_that_say(h.node[next].out, "there"), 2);
    ck_assert_str_eq(h.node[3 - next].out, "");
    proc_wait(&h.node[0], 20);
    hosts_fini(&h);
}
END_TEST

/* While the nodes are still waiting for each other. */
START_TEST(cut_off_before_the_start)
{
    struct hosts h = {0};
    for (int i = 0; i < 2; i++)
        launch(&h, i, "--nnodes 3 --node_rank %d --master_addr 10.77.0.1 %s %%W append %%T/up", i,
               QUICK);
    proc_expect_err(&h.node[0], "2 of 3 here", 15);
    netns_cut(1);
    proc_expect_err(&h.node[0], "1 of 3 here", 15);
    netns_heal(1);
    launch(&h, 2, "--nnodes 3 --node_rank 2 --master_addr 10.77.0.1 %s %%W append %%T/up", QUICK);
    expect_all(&h, 0, 20);
    ck_assert_int_eq(count_lines(tmppath("up")), 3);
    hosts_fini(&h);
}
END_TEST

/* ---------------------------------------------------------------------------------- these tests */

static ino_t network_inode(pid_t pid)
{
    struct stat st;
    return stat(test_text("/proc/%d/ns/net", pid), &st) < 0 ? 0 : st.st_ino;
}

static bool nobody_has(void *arg)
{
    ino_t net = *(ino_t *)arg;
    bool found = false;
    DIR *d = opendir("/proc");
    for (struct dirent *e; (e = readdir(d));)
        found |= atoi(e->d_name) > 0 && network_inode(atoi(e->d_name)) == net;
    closedir(d);
    return !found;
}

/* kill -9 of a test program takes its hosts with it, and all that runs on them. */
START_TEST(a_killed_test_leaves_nothing)
{
    int up[2];
    ino_t net[HOSTS];
    ck_assert_int_eq(pipe(up), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct hosts h;
        netns_setup(HOSTS, -1);
        launch_all(&h, "--master_addr 10.77.0.1 %%W child setsid-child daemon pause");
        for (int i = 0; i < HOSTS; i++) {
            while (netns_count_processes(i) < 6)
                ;
            net[i] = network_inode(h.node[i].pid);
        }
        if (write(up[1], net, sizeof(net)) != sizeof(net))
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(up[0], net, sizeof(net)), sizeof(net));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    for (int i = 0; i < HOSTS; i++)
        wait_until(nobody_has, &net[i], 5, "the namespace is gone");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("host_loss");
    if (!netns_available())
        return s;
    TCase *tc = test_case(s, "cut off", 60);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, a_member_is_cut_off, 0, ARRAY_LEN(cables));
    tcase_add_loop_test(tc, the_coordinator_is_cut_off, 0, ARRAY_LEN(cables));
    tcase_add_loop_test(tc, the_head_hears_of_it_last, 0, 2);
    tcase_add_test(tc, the_coordinator_refuses);
    tcase_add_test(tc, a_host_is_switched_off);
    tcase_add_test(tc, stubborn_workers_of_a_lost_host);
    tc = test_case(s, "hangs", 90);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, a_host_that_is_cut_off_hangs, 0, 2 * BOTH_WAYS);
    tc = test_case(s, "killed", 60);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, a_killed_launcher, 0, 4);
    tc = test_case(s, "coming back", 90);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_test(tc, a_short_cut_is_survived);
    tcase_add_test(tc, the_others_go_on_and_it_comes_back);
    tcase_add_test(tc, the_coordinators_host_comes_back);
    tcase_add_test(tc, the_host_with_the_console_is_lost);
    tcase_add_test(tc, cut_off_before_the_start);
    tc = test_case(s, "tests", 30);
    tcase_add_test(tc, a_killed_test_leaves_nothing);
    return s;
}

TEST_MAIN(suite)
