/* Three hosts that find each other: by name and by address, IPv4 and IPv6, with one port open. */
#include "tests/multihost/hosts.h"

/* host0's own name resolves to 127.0.1.1 there, and to its real address elsewhere. */
static void setup(void)
{
    netns_setup(HOSTS, 0);
}

static void setup_bad_1(void)
{
    netns_setup(HOSTS, 1);
}

static const char *value_of(const struct proc *p, const char *name)
{
    char *line = test_text("%s=", name), *at = strstr(p->out, line);
    ck_assert_msg(at, "%s printed no %s:\n%s", p->name, name, p->out);
    at += strlen(line);
    return test_text("%.*s", (int)strcspn(at, "\n"), at);
}

/* All workers must have the same MASTER_ADDR, which each host can reach and which is not a loopback
 * address on the others. */
static const char *the_master(struct hosts *h)
{
    const char *addr = value_of(&h->node[0], "MASTER_ADDR");
    for (int i = 1; i < HOSTS; i++) {
        ck_assert_str_eq(value_of(&h->node[i], "MASTER_ADDR"), addr);
        ck_assert_str_eq(value_of(&h->node[i], "MASTER_PORT"),
                         value_of(&h->node[0], "MASTER_PORT"));
        ck_assert_msg(netns_sh(i, "getent ahosts %s | grep -qv '^127\\|^::1'", addr) == 0,
                      "%s is a loopback address on host%d", addr, i);
    }
    return addr;
}

static const char job[] = "env MASTER_ADDR env MASTER_PORT env RANK env GROUP_RANK";

/* -------------------------------------------------------------------------------------- meeting */

static const struct {
    const char *endpoint, *master;
} ways[] = {
    {"--master_addr host0", "host0"},
    {"--master_addr 10.77.0.1", "10.77.0.1"},
    {"--rdzv_backend c10d --rdzv_endpoint host0", "10.77.0.1"},
    {"--rdzv_backend c10d --rdzv_endpoint host0:4567", "10.77.0.1"},
    {"--rdzv_backend c10d --rdzv_endpoint host1", "10.77.0.2"},
    {"--rdzv_backend c10d --rdzv_endpoint host2", "10.77.0.3"},
    {"--rdzv_backend c10d --rdzv_endpoint 10.77.0.2", "10.77.0.2"},
    {"--rdzv_backend c10d --rdzv_endpoint [fd77::1]:4567", "fd77::1"},
    {"--rdzv_backend file --rdzv_endpoint %T/meet", "10.77.0."}, /* whoever came first */
};

static void meet(int way)
{
    struct hosts h;
    launch_all(&h, "%s %s --nproc_per_node 2 %%W %s", ways[way].endpoint, QUICK, job);
    expect_all(&h, 0, 20);
    for (int i = 0; i < HOSTS; i++)
        expect_printed(&h.node[i], test_text("GROUP_RANK=%d\n", i));
    const char *master = the_master(&h);
    ck_assert_msg(strstr(master, ways[way].master) == master, "%s: MASTER_ADDR is %s, not %s",
                  ways[way].endpoint, master, ways[way].master);
    hosts_fini(&h);
}

START_TEST(nodes_meet)
{
    meet(_i);
}
END_TEST

static bool agent_runs(void *host)
{
    return netns_kill(*(int *)host, "dl-agent", 0) == 1;
}

/* Every agent starts by itself, the coordinator's host last. */
START_TEST(the_host_of_the_endpoint_comes_last)
{
    struct hosts h = {0};
    for (int i = HOSTS - 1; i >= 0; i--) {
        launch(&h, i,
               "--nnodes 3 --rdzv_backend c10d --rdzv_endpoint host0 %s %%W wait-lines 3 "
               "%%T/up env MASTER_ADDR env MASTER_PORT",
               QUICK);
        if (i)
            wait_until(agent_runs, &i, 5, "an agent");
    }
    for (int i = 0; i < HOSTS; i++)
        ck_assert_int_eq(netns_sh(i, "echo up >>%s", tmppath("up")), 0);
    expect_all(&h, 0, 20);
    the_master(&h);
    hosts_fini(&h);
}
END_TEST

/* Gloo and its like go by a host's own name: on host0, whose name leads astray, and only there, the
 * workers are told what to use instead. */
START_TEST(a_wrong_name_is_made_up_for)
{
    static const char line[] = "this host's name, host0, resolves to 127.0.1.1: the workers are "
                               "told to use eth0 (GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME)";
    struct hosts h;
    launch_all(&h,
               "--master_addr host0 %s sh -c 'echo told: "
               "$GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME'",
               QUICK);
    expect_all(&h, 0, 20);
    expect_printed(&h.node[0], "told: eth0 eth0\n");
    expect_said(&h.node[0], "this host's name, host0, resolves to 127.0.1.1");
    for (int i = 1; i < HOSTS; i++) {
        expect_printed(&h.node[i], "told:\n");
        ck_assert_msg(!strstr(h.node[i].err, "this host's name"), "%s", h.node[i].err);
    }
    hosts_fini(&h);
    setenv("NCCL_SOCKET_IFNAME", "mine", 1);
    launch_all(&h, "--master_addr host0 %s sh -c 'echo NCCL: $NCCL_SOCKET_IFNAME'", QUICK);
    expect_all(&h, 0, 20);
    expect_printed(&h.node[0], "NCCL: mine\n");
    expect_said(&h.node[0], line);
    hosts_fini(&h);
}
END_TEST

/* ------------------------------------------------------------------------------------ addresses */

/* Only IPv6 between the hosts. */
static void setup_ipv6(void)
{
    netns_setup(HOSTS, -1);
    for (int i = 0; i < HOSTS; i++) {
        if (netns_sh(i, "ip -4 addr flush dev eth0 && ip -4 addr flush dev eth1 && "
                        "sed 's/^10.77.0./fd77::/' /etc/hosts >/mnt/h; "
                        "cat /mnt/h >/etc/hosts; rm /mnt/h") != 0)
            exit(1);
    }
}

static const struct {
    const char *endpoint, *master;
} ways6[] = {
    {"--master_addr fd77::1", "fd77::1"},
    {"--master_addr host0", "host0"},
    {"--rdzv_backend c10d --rdzv_endpoint host0", "fd77::1"},
    {"--rdzv_backend c10d --rdzv_endpoint [fd77::2]:4567", "fd77::2"},
    {"--rdzv_backend file --rdzv_endpoint %T/meet", "fd77::"},
};

START_TEST(ipv6_only)
{
    struct hosts h;
    launch_all(&h, "%s %s --nproc_per_node 2 %%W %s", ways6[_i].endpoint, QUICK, job);
    expect_all(&h, 0, 20);
    const char *master = the_master(&h);
    ck_assert_msg(strstr(master, ways6[_i].master) == master, "%s: MASTER_ADDR is %s, not %s",
                  ways6[_i].endpoint, master, ways6[_i].master);
    hosts_fini(&h);
}
END_TEST

START_TEST(training_over_ipv6)
{
    struct hosts h;
    launch_all(&h, "--master_addr fd77::1 %s --nproc_per_node 2 %s --data %s --epochs 2", QUICK,
               build_path("examples/train"), "examples/data");
    expect_all(&h, 0, 60);
    expect_printed(&h.node[0], "with 6 workers\n");
    hosts_fini(&h);
}
END_TEST

/* On host0 the host's name also has an IPv6 address, which comes first; the other hosts have the
 * IPv4 address only. */
static void setup_two_addresses(void)
{
    netns_setup(HOSTS, -1);
    if (netns_sh(0, "echo fd77::1 host0 >>/etc/hosts") != 0)
        exit(1);
}

static const char *const two_ways[] = {"--master_addr host0",
                                       "--rdzv_backend c10d --rdzv_endpoint host0"};

START_TEST(a_name_with_two_addresses)
{
    struct hosts h;
    ck_assert_int_eq(netns_sh(0, "getent ahosts host0 | grep -q ^fd77::1"), 0);
    launch_all(&h, "%s %s --nproc_per_node 2 %%W %s", two_ways[_i], QUICK, job);
    expect_all(&h, 0, 20);
    the_master(&h);
    hosts_fini(&h);
}
END_TEST

/* Link-local addresses, on interfaces that have another name on each host: the scope that is part
 * of an address is each host's own. */
static void name_interfaces(void)
{
    for (int i = 0; i < HOSTS; i++)
        ck_assert_int_eq(netns_sh(i,
                                  "ip link set eth0 down && ip link set eth0 name net%d && "
                                  "ip link set net%d addrgenmode none up && "
                                  "ip addr add fe80::77:%d/64 dev net%d nodad",
                                  i, i, i + 1, i),
                         0);
}

START_TEST(link_local)
{
    struct hosts h = {0};
    name_interfaces();
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i,
               "--nnodes 3 --node_rank %d --rdzv_backend c10d --rdzv_endpoint [fe80::77:1%%net%d] "
               "%s --nproc_per_node 2 sh -c 'echo MASTER_ADDR=$MASTER_ADDR; %s && exec %s --data "
               "examples/data --epochs 1'",
               i, i, QUICK, build_path("tests/multihost/store_worker"),
               build_path("examples/train"));
    expect_all(&h, 0, 60);
    for (int i = 0; i < HOSTS; i++)
        ck_assert_str_eq(value_of(&h.node[i], "MASTER_ADDR"), test_text("fe80::77:1%%net%d", i));
    hosts_fini(&h);
}
END_TEST

START_TEST(link_local_without_a_launcher)
{
    struct hosts h = {0};
    name_interfaces();
    for (int i = 0; i < HOSTS; i++) {
        char *env[] = {test_text("RANK=%d", i), "WORLD_SIZE=3", "MASTER_PORT=29500",
                       test_text("MASTER_ADDR=fe80::77:1%%net%d", i), NULL};
        netns_start(&h.node[i], i, ARGV(build_path("examples/allreduce")), env);
    }
    expect_all(&h, 0, 30);
    hosts_fini(&h);
}
END_TEST

/* The nodes that are left find each other. */
START_TEST(link_local_without_the_coordinator)
{
    struct hosts h = {0};
    name_interfaces();
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i,
               "--nnodes 2:3 --rdzv_backend c10d --rdzv_endpoint [fe80::77:1%%net%d] %s "
               "--max_restarts 1 sh -c 'if [ $WORLD_SIZE = 3 ]; then exec %s wait %s; else exec "
               "%s; fi'",
               i, ELASTIC, build_path("tests/multihost/store_worker"), tmppath("waiting"),
               build_path("tests/multihost/store_worker"));
    wait_lines(tmppath("waiting"), HOSTS, 20);
    netns_kill(0, NULL, SIGKILL);
    for (int i = 1; i < HOSTS; i++) {
        expect_exit(&h, i, 0, 20);
        expect_printed(&h.node[i], " of 2: all here\n");
    }
    hosts_fini(&h);
}
END_TEST

/* Met on one network, the workers use another. The store listens where the endpoint says: on all
 * interfaces where that is a name which is a loopback address on its own host. */
START_TEST(the_other_interface)
{
    static const struct {
        const char *endpoint, *interface, *master;
    } rows[] = {
        {"host0", "eth1", "10.78.0.1"},
        {"host0", NULL, "10.78.0.1"}, /* by --local_addr */
        {"10.77.0.1", "eth1", "10.77.0.1"},
    };
    for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
        struct hosts h = {0};
        for (int i = 0; i < HOSTS; i++)
            launch(&h, i,
                   "--nnodes 3 --node_rank %d --rdzv_backend c10d --rdzv_endpoint %s %s %s %s "
                   "%%W %s",
                   i, rows[k].endpoint, rows[k].interface ? "--interface" : "--local_addr",
                   rows[k].interface ? rows[k].interface : netns_addr_eth1(i), QUICK, job);
        expect_all(&h, 0, 20);
        ck_assert_str_eq(the_master(&h), rows[k].master);
        hosts_fini(&h);
    }
}
END_TEST

/* --------------------------------------------------------------------------------- one host's job
 */

/* Jobs on host0 alone whose workers are told `master`. host0's own name is 127.0.1.1 there. open:
 * whether a client of the store comes in from another host. */
static const struct {
    const char *name, *options, *master;
    bool open;
} own_jobs[] = {
    {"dlaunch", "--nnodes 1 --master_addr 10.77.0.1 --master_port 29777", "10.77.0.1", false},
    {"dlaunch", "--nnodes 1 --master_addr 10.78.0.1 --master_port 29777", "10.78.0.1", false},
    {"dlaunch", "--nnodes 1 --master_addr fd77::1 --master_port 29777", "fd77::1", false},
    {"dlaunch", "--nnodes 1 --rdzv_endpoint 10.78.0.1:29777", "10.78.0.1", false},
    {"dlaunch", "--nnodes 1 --master_addr host0 --master_port 29777", "host0", false},
    {"dlaunch", "--nnodes 1 --master_addr host1 --master_port 29777", "127.0.0.1", false},
    {"dlaunch", "--insecure --nnodes 1 --master_addr 10.77.0.1 --master_port 29777", "10.77.0.1",
     true},
    {"dlaunch", "--insecure --standalone --local_addr 10.78.0.1", "10.78.0.1", true},
    {"dlaunch", "--standalone --interface eth1", "10.78.0.1", false},
    {"torchrun", "--nnodes 1 --master_addr 10.77.0.1 --master_port 29777", "10.77.0.1", true},
    {"torchrun", "--nnodes 1 --rdzv_backend c10d --rdzv_endpoint 10.78.0.1:0", "10.78.0.1", true},
    {"torchrun", "--standalone --local_addr 10.77.0.1", "10.77.0.1", true},
    {"torchrun",
     "--nnodes 1 --rdzv_backend c10d --rdzv_endpoint localhost:0 --local_addr 10.77.0.1",
     "10.77.0.1", true},
    {"torchrun", "--standalone --no_python", "127.0.0.1", false},
};

/* What workers are told listens, whether it is this host's loopback or an address that other hosts
 * reach; those come in only when the job is open. */
START_TEST(a_job_on_one_host)
{
    struct hosts h = {0};
    struct proc guest;
    char *link = tmppath(own_jobs[_i].name);
    const char *store_worker = build_path("tests/multihost/store_worker");
    ck_assert_int_eq(symlink(build_path("dlaunch"), link), 0);
    char **argv =
        dlaunch_argv(test_text("%s --nproc_per_node 2 %s", own_jobs[_i].options,
                               strcmp(own_jobs[_i].name, "torchrun") ? "" : "--no_python"),
                     test_text("sh -c 'echo MASTER_ADDR=$MASTER_ADDR; echo "
                               "MASTER_PORT=$MASTER_PORT; %s; exec %s wait %s'",
                               store_worker, build_path("tests/worker"), tmppath("go")));
    argv[0] = link;
    netns_start(&h.node[0], 0, argv, NULL);
    proc_expect_out(&h.node[0], "rank 1 of 2: all here", 20);
    ck_assert_str_eq(value_of(&h.node[0], "MASTER_ADDR"), own_jobs[_i].master);
    char *env[] = {"RANK=0", "WORLD_SIZE=1",
                   test_text("MASTER_ADDR=%s", strcmp(own_jobs[_i].master, "host0")
                                                   ? own_jobs[_i].master
                                                   : netns_addr(0)),
                   test_text("MASTER_PORT=%s", value_of(&h.node[0], "MASTER_PORT")), NULL};
    netns_start(&guest, 1, ARGV((char *)store_worker, "greet"), env);
    ck_assert_msg((proc_wait(&guest, 40) == 0) == own_jobs[_i].open, "%s", guest.err);
    proc_fini(&guest);
    write_file(tmppath("go"), "");
    expect_exit(&h, 0, 0, 20);
    hosts_fini(&h);
}
END_TEST

/* No home folder is shared: only the coordinator's host makes a token, and the other one says what
 * to copy from there. When that has been done, the job starts. */
START_TEST(the_token_is_made_once)
{
    struct hosts h = {0};
    char *home[2];
    for (int i = 0; i < 2; i++) {
        home[i] = tmppath(test_text("home%d", i));
        char *env[] = {test_text("XDG_CONFIG_HOME=%s", home[i]), NULL};
        netns_start(&h.node[i], i,
                    dlaunch_argv("", test_text("--nnodes 2 --node_rank %d --master_addr 10.77.0.1 "
                                               "%s %%W env WORLD_SIZE",
                                               i, QUICK)),
                    env);
    }
    proc_expect_err(&h.node[0], "created a job token in ", 20);
    proc_expect_err(&h.node[1],
                    test_text("there is no job token (%s/dlaunch/token does not exist): copy this "
                              "file, with mode 600, from the coordinator's host (10.77.0.1)",
                              home[1]),
                    10);
    ck_assert_int_lt(access(test_text("%s/dlaunch/token", home[1]), F_OK), 0);
    ck_assert_int_eq(netns_sh(1, "mkdir -p %s/dlaunch && cp -p %s/dlaunch/token %s/dlaunch/token",
                              home[1], home[0], home[1]),
                     0);
    for (int i = 0; i < 2; i++) {
        expect_exit(&h, i, 0, 20);
        expect_printed(&h.node[i], "WORLD_SIZE=2\n");
    }
    ck_assert_int_eq(count_text(h.node[1].err, "created a job token"), 0);
    hosts_fini(&h);
}
END_TEST

/* It is waited for, in a home folder that may be shared, and then the launcher ends. */
START_TEST(the_token_is_not_copied)
{
    struct hosts h = {0};
    for (int i = 0; i < 2; i++) {
        char *env[] = {test_text("XDG_CONFIG_HOME=%s", tmppath(test_text("home%d", i))), NULL};
        netns_start(&h.node[i], i,
                    dlaunch_argv("", test_text("--nnodes 2 --node_rank %d --master_addr 10.77.0.1 "
                                               "%s %%W env WORLD_SIZE",
                                               i, QUICK)),
                    env);
    }
    expect_exit(&h, 1, 2, 30);
    expect_said(&h.node[1], "cannot join 10.77.0.1:29500: there is no job token");
    expect_said(&h.node[1], "from the coordinator's host (10.77.0.1)");
    proc_kill(&h.node[0], SIGTERM);
    expect_exit(&h, 0, 128 + SIGTERM, 20);
    hosts_fini(&h);
}
END_TEST

/* ------------------------------------------------------------------------------------ firewalls */

/* Rules for what comes in at a host. */
static void firewall(int host, const char *rules)
{
    ck_assert_int_eq(netns_sh(host,
                              "nft \"table inet t { chain in { type filter hook input priority "
                              "0; %s }; }\"",
                              rules),
                     0);
}

static void no_firewall(int host)
{
    ck_assert_int_eq(netns_sh(host, "nft delete table inet t"), 0);
}

/* With no way between the hosts but eth1, that is where the workers' data go. */
START_TEST(data_over_the_other_interface)
{
    struct hosts h = {0};
    for (int i = 0; i < HOSTS; i++)
        firewall(i, "iif eth0 tcp dport != 29500 ct state new drop;");
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i,
               "--nnodes 3 --node_rank %d --master_addr 10.77.0.1 --interface eth1 %s "
               "--nproc_per_node 2 %s --data examples/data --epochs 2",
               i, QUICK, build_path("examples/train"));
    expect_all(&h, 0, 60);
    hosts_fini(&h);
    for (int i = 0; i < HOSTS; i++)
        no_firewall(i);
}
END_TEST

/* Only one port of host0 accepts connections: rendezvous and store share it. */
START_TEST(one_open_port_is_enough)
{
    static const char *const endpoints[] = {"--master_addr host0 --master_port 29500",
                                            "--rdzv_backend c10d --rdzv_endpoint host0:29500"};
    for (int i = 0; i < HOSTS; i++)
        firewall(i, test_text("iif lo accept; ct state established,related accept; %s "
                              "meta l4proto tcp drop;",
                              i == 0 ? "tcp dport 29500 accept;" : ""));
    for (size_t k = 0; k < ARRAY_LEN(endpoints); k++) {
        struct hosts h;
        launch_all(&h, "%s %s --nproc_per_node 2 %s", endpoints[k], QUICK,
                   build_path("tests/multihost/store_worker"));
        expect_all(&h, 0, 20);
        for (int r = 0; r < 6; r++)
            expect_printed(&h.node[r / 2], test_text("rank %d of 6: all here\n", r));
        hosts_fini(&h);
    }
    for (int i = 0; i < HOSTS; i++)
        no_firewall(i);
}
END_TEST

/* On the coordinator's host the kernel knows whose a client is, by whatever address it comes. */
START_TEST(another_user_of_the_coordinators_host)
{
    struct hosts h;
    struct proc p;
    char *worker = build_path("tests/multihost/store_worker");
    char *env[] = {"RANK=0", "WORLD_SIZE=1", test_text("MASTER_ADDR=%s", netns_addr(0)),
                   "MASTER_PORT=29500", NULL};
    if (geteuid() != 0) {
        test_skip("becoming another user takes root");
        return;
    }
    launch_all(&h, "--master_addr host0 --master_port 29500 %s %s wait %s", QUICK, worker,
               tmppath("waiting"));
    wait_lines(tmppath("waiting"), HOSTS, 20);
    netns_start(&p, 0,
                ARGV("timeout", "5", "setpriv", "--reuid", "65534", "--clear-groups", worker), env);
    ck_assert_int_ne(proc_wait(&p, 10), 0);
    proc_fini(&p);
    proc_expect_err(&h.node[0], "a client of the workers' store that is another user's", 5);
    netns_start(&p, 0, ARGV(worker), env);
    int status = proc_wait(&p, 10);
    ck_assert_msg(status == 0, "%s", p.err);
    proc_fini(&p);
    netns_kill(0, "dlaunch", SIGTERM);
    for (int i = 0; i < HOSTS; i++)
        ck_assert_int_ne(proc_wait(&h.node[i], 20), 0);
    hosts_fini(&h);
}
END_TEST

/* With that port closed too: who could not be reached, where, and that it is not for want of time.
 */
START_TEST(a_closed_port_is_named)
{
    struct hosts h = {0};
    firewall(0, "iif eth0 tcp dport 29500 reject;");
    for (int i = 0; i < HOSTS; i++)
        launch(&h, i,
               "--nnodes 3 --node_rank %d --master_addr host0 --rdzv_conf join_timeout=2 "
               "%%W append %%T/started",
               i);
    expect_exit(&h, 0, 1, 10);
    expect_words(h.node[0].err, "only 1 of 3 nodes joined");
    expect_words(h.node[0].err, "missing: node_rank 1, 2");
    for (int i = 1; i < HOSTS; i++) {
        expect_exit(&h, i, 1, 10);
        expect_said(&h.node[i], "host0:29500");
        expect_said(&h.node[i], "refused");
    }
    ck_assert_int_ne(access(tmppath("started"), F_OK), 0);
    no_firewall(0);
    hosts_fini(&h);
}
END_TEST

/* ------------------------------------------------------------------------------------- training */

/* Three hosts end with the parameters that one process ends with, bit for bit; also when a worker
 * was killed on the way. */
START_TEST(training_ends_alike)
{
    static const char *const crash[] = {"", "--checkpoint %T/ckpt --crash-rank 3 --crash-epoch 4"};
    struct proc one;
    char *alone = tmppath("alone"), *many = tmppath("many");
    const char *train = build_path("examples/train");
    int status = dlaunch_run(&one, 60, "%s --data examples/data --epochs 6 --out %s", train, alone);
    ck_assert_msg(status == 0, "%s", one.err);
    proc_fini(&one);
    for (size_t k = 0; k < ARRAY_LEN(crash); k++) {
        struct hosts h;
        launch_all(&h,
                   "--master_addr host0 %s --nproc_per_node 2 --max_restarts 1 %s --data "
                   "examples/data --epochs 6 --out %s %s",
                   QUICK, train, many, crash[k]);
        expect_all(&h, 0, 60);
        expect_printed(&h.node[0], "with 6 workers\n");
        if (crash[k][0]) {
            expect_printed(&h.node[0], "resumed after epoch 3");
            for (int i = 0; i < HOSTS; i++)
                expect_said(&h.node[i], "worker 3 (local rank 1) on host1 was killed by SIGKILL");
        }
        ck_assert_str_eq(test_keep(read_file(many)), test_keep(read_file(alone)));
        ck_assert_int_eq(unlink(many), 0);
        hosts_fini(&h);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hosts");
    if (!netns_available())
        return s;
    TCase *tc = test_case(s, "meeting", 60);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_loop_test(tc, nodes_meet, 0, ARRAY_LEN(ways));
    tcase_add_test(tc, the_host_of_the_endpoint_comes_last);
    tcase_add_test(tc, a_wrong_name_is_made_up_for);
    tcase_add_test(tc, link_local);
    tcase_add_test(tc, link_local_without_a_launcher);
    tcase_add_test(tc, link_local_without_the_coordinator);
    tcase_add_test(tc, the_other_interface);
    tcase_add_test(tc, data_over_the_other_interface);
    tcase_add_test(tc, one_open_port_is_enough);
    tcase_add_test(tc, another_user_of_the_coordinators_host);
    tcase_add_test(tc, a_closed_port_is_named);
    tcase_add_loop_test(tc, a_job_on_one_host, 0, ARRAY_LEN(own_jobs));
    tcase_add_test(tc, the_token_is_made_once);
    tcase_add_test(tc, the_token_is_not_copied);
    tc = test_case(s, "training", 180);
    tcase_add_checked_fixture(tc, setup, netns_teardown);
    tcase_add_test(tc, training_ends_alike);
    tc = test_case(s, "another wrong name", 60);
    tcase_add_checked_fixture(tc, setup_bad_1, netns_teardown);
    tcase_add_loop_test(tc, nodes_meet, 0, ARRAY_LEN(ways));
    tc = test_case(s, "two addresses", 60);
    tcase_add_checked_fixture(tc, setup_two_addresses, netns_teardown);
    tcase_add_loop_test(tc, a_name_with_two_addresses, 0, ARRAY_LEN(two_ways));
    tc = test_case(s, "ipv6", 180);
    tcase_add_checked_fixture(tc, setup_ipv6, netns_teardown);
    tcase_add_loop_test(tc, ipv6_only, 0, ARRAY_LEN(ways6));
    tcase_add_test(tc, training_over_ipv6);
    return s;
}

TEST_MAIN(suite)
