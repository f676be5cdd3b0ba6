/* The checks of the doctor on facts of eight nodes, one of which has a fault; the tournament; and
 * what two nodes find out about their path, over real sockets. */
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/doctor/checks.h"
#include "agent/doctor/fact.h"
#include "agent/doctor/facts.h"
#include "agent/doctor/path_test.h"
#include "agent/doctor/paths.h"
#include "core/fd.h"
#include "core/mem.h"

enum { NODES = 8 };

/* A node with GPUs and InfiniBand on which all is well. */
static const char *const healthy =
    "{'nproc': 8, 'nodes': 8, 'gpus': true,"
    " 'limits': {'nofile': 65536}, 'own_threads': 100, 'threads_left': 30000, 'ports': 28232,"
    " 'cgroup': {'pids': {'limit': 9000, 'free': 8000},"
    "            'memory': {'limit': 5e11, 'free': 4e11}},"
    " 'memory': {'bytes': 1e12, 'available_bytes': 9e11},"
    " 'shm': {'path': '/dev/shm', 'bytes': 5e11, 'free_bytes': 5e11},"
    " 'tmp': {'path': '/tmp', 'bytes': 1e12, 'free_bytes': 1e11, 'free_files': 1e6},"
    " 'log_dir': {'path': '/logs', 'bytes': 1e12, 'free_bytes': 1e11, 'free_files': 1e6},"
    " 'interfaces': {'lo': {'up': true, 'mtu': 65536, 'addresses': ['127.0.0.1']},"
    "                'eth0': {'up': true, 'mtu': 9000, 'speed_mbit': 100000, 'duplex': 'full',"
    "                         'addresses': ['@']}},"
    " 'rdma': {'mlx5_0:1': 'ACTIVE'},"
    " 'variables': {'NCCL_DEBUG': 'WARN', 'NCCL_SOCKET_IFNAME': 'eth'},"
    " 'cpus': 96,"
    " 'hostname': {'name': '@', 'addresses': ['@'], 'loopback': false, 'seconds': 0.01},"
    " 'meet': {'name': 'n0', 'addresses': ['10.0.0.1'], 'loopback': false, 'seconds': 0.01},"
    " 'versions': {'dlaunch': '1.0', 'libdlcoll': '1.0', 'driver': '550.54.15', 'NCCL': '2.28.3',"
    "              'PyTorch': '2.9.0', 'Python': '3.12.1'},"
    " 'program': {'path': '/train.py', 'bytes': 100, 'content': 'abc'},"
    " 'node_check': {'command': 'check', 'status': 0, 'output': 'fine'},"
    " 'clock_s': 0.0001, 'clock_error_s': 0.0002,"
    " 'gpu': {'present': 8, 'visible': 8, 'list': ["
    "   {'bus': '0000:01:00.0', 'name': 'H100', 'used_bytes': 4e6, 'bytes': 8e10,"
    "    'ecc_uncorrected': 0, 'compute_mode': 0, 'mig_mode': false, 'pcie_width': 16,"
    "    'pcie_width_max': 16},"
    "   {'bus': '0000:02:00.0', 'name': 'H100', 'used_bytes': 4e6, 'bytes': 8e10,"
    "    'mig_mode': false}]}}";

static json_t *json(const char *text)
{
    char *copy = xstrdup(text);
    for (char *c = copy; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    json_error_t e;
    json_t *j = json_loads(copy, JSON_DECODE_ANY, &e);
    ck_assert_msg(j != NULL, "%s: %s", text, e.text);
    free(copy);
    return j;
}

static json_t *make_nodes(int n)
{
    json_t *nodes = json_array();
    for (int i = 0; i < n; i++) {
        json_t *node = json(healthy);
        char text[32];
        snprintf(text, sizeof(text), "10.0.0.%d", i + 1);
        json_object_set_new(node, "node", json_integer(i));
        json_object_set_new(node, "host", json_string(test_text("n%d", i)));
        json_object_set_new(node, "addr", json_string(text));
        json_array_set_new(
            json_object_get(json_object_get(json_object_get(node, "interfaces"), "eth0"),
                            "addresses"),
            0, json_string(text));
        json_array_append_new(nodes, node);
    }
    return nodes;
}

/* All paths, each measured once; what is usual differs by some percent. */
static void add_pair(struct pair_list *l, int a, int b, double rtt_us, double bps)
{
    struct pair_facts p;
    pair_facts_init(&p);
    p.a = a;
    p.b = b;
    p.rtt_us = rtt_us;
    p.bps = bps;
    paths_take(l, &p);
}

static struct pair_list make_pairs(int n)
{
    struct pair_list pairs = {0};
    for (int a = 0; a < n; a++) {
        for (int b = a + 1; b < n; b++)
            add_pair(&pairs, a, b, 20.0 + (a * 7 + b * 3) % 5, 1e10 - 2e8 * ((a * 5 + b) % 7));
    }
    return pairs;
}

static void run_checks(const json_t *nodes, const struct pair_list *pairs, struct problems *out)
{
    size_t n = json_array_size(nodes);
    struct node_facts *facts = xcalloc(n, sizeof(*facts));
    for (size_t i = 0; i < n; i++)
        node_facts_get(&facts[i], json_array_get(nodes, i));
    checks_of_job(facts, n, pairs, out);
    for (size_t i = 0; i < n; i++)
        node_facts_fini(&facts[i]);
    free(facts);
}

/* Sets the value at "a.b.0.c"; an empty value removes it. */
static void plant(json_t *j, const char *path, const char *value)
{
    char key[64];
    size_t len = strcspn(path, ".");
    snprintf(key, sizeof(key), "%.*s", (int)len, path);
    bool last = !path[len];
    if (json_is_array(j)) {
        ck_assert(!last);
        plant(json_array_get(j, (size_t)atoi(key)), path + len + 1, value);
    } else if (last && !*value) {
        json_object_del(j, key);
    } else if (last) {
        json_object_set_new(j, key, json(value));
    } else {
        if (!json_object_get(j, key))
            json_object_set_new(j, key, json_object());
        plant(json_object_get(j, key), path + len + 1, value);
    }
}

static void check_clean(json_t *nodes, const struct pair_list *pairs)
{
    struct problems all = {0};
    run_checks(nodes, pairs, &all);
    char *text = problems_text(&all);
    ck_assert_msg(all.n == 0, "%s", text);
    free(text);
    problems_fini(&all);
}

START_TEST(healthy_nodes_are_clean)
{
    for (int n = 1; n <= 16; n++) {
        json_t *nodes = make_nodes(n);
        struct pair_list pairs = make_pairs(n);
        check_clean(nodes, &pairs);
        json_decref(nodes);
        free(pairs.v);
    }
}
END_TEST

/* One node of eight; `words` are in its line, and the line has a remedy. */
static const struct fault {
    const char *path, *value, *check, *words;
} faults[] = {
    {"limits.nofile", "256", "nofile", "hard limit of open files is 256"},
    {"limits.memlock_bytes", "65536", "memlock", "64 KiB of memory can be locked"},
    {"limits.nproc", "200", "nproc", "may have 200 processes"},
    {"limits.file_bytes", "1e6", "file-size", "files may be 977 KiB long"},
    {"limits.address_space_bytes", "1e9", "address-space", "may map 954 MiB"},
    {"cgroup.pids.free", "20", "pids", "allows 20 more processes"},
    {"cgroup.memory.free", "1e8", "memory-limit", "allows 95 MiB more memory"},
    {"threads_left", "100", "threads", "allows 100 more threads"},
    {"memory.available_bytes", "1e8", "memory", "95 MiB of memory are available"},
    {"memory.bytes", "5e11", "sizes", "of memory; others"},
    {"cpus", "48", "sizes", "may use 48 CPUs; others: 96"},
    {"shm.bytes", "67108864", "shm", "/dev/shm has 64 MiB"},
    {"shm.free_bytes", "1e6", "shm", "/dev/shm is full"},
    {"shm.error", "'Permission denied'", "shm", "/dev/shm cannot be used: Permission denied"},
    {"tmp.free_bytes", "1000", "tmp", "/tmp is full: 1000 bytes are free"},
    {"tmp.free_files", "3", "tmp", "room for only 3 more files"},
    {"tmp.error", "'Read-only file system'", "tmp", "/tmp cannot be used: Read-only"},
    {"log_dir.free_bytes", "1000", "log-dir", "/logs is full"},
    {"log_dir.error", "'Permission denied'", "log-dir", "/logs cannot be used"},
    {"ports", "100", "ports", "only 100 ports"},
    {"interfaces.eth0.up", "false", "interface", "interface eth (NCCL_SOCKET_IFNAME) is down"},
    {"interfaces.eth0.mtu", "1500", "mtu", "eth0 has an MTU of 1500; others: 9000"},
    {"interfaces.eth0.speed_mbit", "10000", "speed", "eth0 runs at 10000 Mbit/s; others: 100000"},
    {"interfaces.eth0.duplex", "'half'", "duplex", "eth0 is in half duplex"},
    {"variables.GLOO_SOCKET_IFNAME", "'ib9'", "interface", "GLOO_SOCKET_IFNAME names ib9"},
    {"rdma.mlx5_0:1", "'DOWN'", "rdma", "mlx5_0:1 is DOWN"},
    {"hostname.error", "'Name or service not known'", "hostname", "does not resolve"},
    {"hostname.loopback", "true", "hostname", "where other nodes do not reach it"},
    {"hostname.seconds", "5", "hostname", "took 5.0 s to resolve its own name"},
    {"meet.error", "'Temporary failure'", "meet", "n0, does not resolve: Temporary failure"},
    {"meet.seconds", "9.5", "meet", "took 9.5 s to resolve n0"},
    {"addr", "'127.0.0.1'", "address", "127.0.0.1, which is the loopback address"},
    {"variables.NCCL_DEBUG", "'INFO'", "variables", "NCCL_DEBUG is INFO; most nodes': WARN"},
    {"variables.NCCL_DEBUG", "", "variables", "NCCL_DEBUG is none; most nodes': WARN"},
    {"variables.OMP_NUM_THREADS", "'4'", "variables", "OMP_NUM_THREADS is 4; most nodes': none"},
    {"versions.dlaunch", "'0.9'", "versions", "dlaunch is 0.9; most nodes': 1.0"},
    {"versions.libdlcoll", "'0.9'", "versions", "libdlcoll is 0.9"},
    {"versions.driver", "'535.1'", "versions", "driver is 535.1; most nodes': 550.54.15"},
    {"versions.NCCL", "'2.27.5'", "versions", "NCCL is 2.27.5; most nodes': 2.28.3"},
    {"versions.PyTorch", "'2.8.0'", "versions", "PyTorch is 2.8.0; most nodes': 2.9.0"},
    {"versions.PyTorch", "", "versions", "PyTorch is none; most nodes': 2.9.0"},
    {"versions.Python", "'3.11.2'", "versions", "Python is 3.11.2"},
    {"program.content", "'def'", "program", "the program's file is not that of most nodes"},
    {"program_error", "'/train.py: No such file'", "program", "cannot be started: /train.py"},
    {"program.lacks", "'libx.so.1 (shared libraries of /train)'", "program",
     "cannot be started: libx.so.1"},
    {"python_error", "{'path': '/bin/python', 'error': 'it does not answer'}", "python",
     "/bin/python does not run: it does not answer"},
    {"clock_s", "3.5", "clock", "its clock is 3.5 s ahead of those of most nodes"},
    {"clock_s", "-0.3", "clock", "its clock is 0.3 s behind those of most nodes"},
    {"gpu.error", "'Driver/library version mismatch'", "gpu-driver", "version mismatch"},
    {"gpu.visible", "7", "gpu-count", "it has 7 GPUs for 8 workers"},
    {"gpu.present", "7", "gpu-count", "number of its GPUs is 7; most nodes': 8"},
    {"gpu.list.0.name", "'A100'", "gpu-count", "model of its GPUs is A100; most nodes': H100"},
    {"gpu.list.1.lost", "true", "gpu-lost", "GPU 0000:02:00.0 does not answer"},
    {"gpu.list.0.pid", "4711", "gpu-idle", "GPU 0000:01:00.0 is used by process 4711"},
    {"gpu.list.0.used_bytes", "7e9", "gpu-idle", "6.5 GiB of GPU 0000:01:00.0 are in use"},
    {"gpu.list.0.ecc_uncorrected", "2", "gpu-memory", "has had 2 uncorrected memory errors"},
    {"gpu.list.0.remap_failed", "true", "gpu-memory", "could not be remapped"},
    {"gpu.list.0.remap_pending", "true", "gpu-memory", "has to be reset"},
    {"gpu.list.0.pcie_width", "8", "gpu-pcie", "has 8 of 16 PCI Express lanes"},
    {"gpu.list.0.compute_mode", "2", "gpu-mode", "prohibits computing"},
    {"gpu.list.0.mig_mode", "true", "gpu-mig", "divides some of its GPUs"},
    {"node_check.status", "3", "node-check", "check ended with 3: fine"},
    {"node_check.signal", "11", "node-check", "check was killed by signal 11"},
    {"node_check.error", "'it was not done in time'", "node-check", "not done in time"},
    {"node_check.answer", "{'failed_checks': ['nvlink']}", "node-check", "nvlink failed"},
    {"node_check.answer", "{'fail_count': 2}", "node-check", "2 checks failed"},
    {"node_check.answer", "{'success': false, 'message': 'hot'}", "node-check", "not healthy: hot"},
    {"missing", "'no answer'", "facts", "could not be collected: no answer"},
};

START_TEST(a_fault_is_named_with_node_and_remedy)
{
    const struct fault *f = &faults[_i];
    int victim = 1 + _i % (NODES - 1);
    json_t *nodes = make_nodes(NODES);
    struct pair_list pairs = make_pairs(NODES);
    struct problems all = {0};
    plant(json_array_get(nodes, (size_t)victim), f->path, f->value);
    run_checks(nodes, &pairs, &all);
    char *text = problems_text(&all);
    ck_assert_msg(all.n == 1, "%s: %zu problems:\n%s", f->path, all.n, text);
    ck_assert_msg(all.p[0].node == victim, "%s: %s", f->path, text);
    ck_assert_str_eq(all.p[0].check, f->check);
    ck_assert_msg(strstr(text, f->words) && all.p[0].remedy[0], "%s: %s", f->path, text);
    ck_assert_msg(strncmp(text, test_text("n%d (node %d): ", victim, victim), 13) == 0, "%s", text);
    free(text);
    problems_fini(&all);
    json_decref(nodes);
    free(pairs.v);
}
END_TEST

/* A fault that several nodes have is one line. */
START_TEST(equal_problems_are_one_line)
{
    static const int victims[] = {1, 2, 3, 5};
    json_t *nodes = make_nodes(NODES);
    struct pair_list pairs = make_pairs(NODES);
    struct problems all = {0};
    for (size_t i = 0; i < ARRAY_LEN(victims); i++)
        plant(json_array_get(nodes, (size_t)victims[i]), "threads_left", "10");
    run_checks(nodes, &pairs, &all);
    char *text = problems_text(&all);
    ck_assert_int_eq((int)all.n, 4);
    ck_assert_msg(strncmp(text, "n1, n2, n3 and 1 more (nodes 1-3,5): threads: ", 46) == 0, "%s",
                  text);
    ck_assert_ptr_eq(strchr(text, '\n'), strrchr(text, '\n'));
    free(text);
    problems_fini(&all);
    json_decref(nodes);
    free(pairs.v);
}
END_TEST

/* Nodes whose clock is not known do not count: the leader's clock, from which the others' are
 * measured, is the wrong one here. */
START_TEST(the_clock_of_the_leader)
{
    json_t *nodes = make_nodes(5);
    struct pair_list pairs = make_pairs(5);
    struct problems all = {0};
    int named = 0;
    for (size_t i = 1; i < 5; i++) {
        plant(json_array_get(nodes, i), "clock_s", i < 3 ? "5.0" : "");
        if (i >= 3)
            plant(json_array_get(nodes, i), "missing", "'no answer'");
    }
    run_checks(nodes, &pairs, &all);
    for (size_t i = 0; i < all.n; i++) {
        if (strcmp(all.p[i].check, "clock") == 0) {
            ck_assert_int_eq(all.p[i].node, 0);
            named++;
        }
    }
    ck_assert_int_eq(named, 1);
    problems_fini(&all);
    json_decref(nodes);
    free(pairs.v);
}
END_TEST

/* Facts without a meaning for the job are not reported: limits that suffice, InfiniBand that is not
 * there, JSON of a node check that says nothing. */
START_TEST(what_does_no_harm_is_no_problem)
{
    static const struct {
        const char *path, *value;
    } harmless[] = {
        {"limits.nofile", "4096"},
        {"rdma", "{}"},
        {"node_check.answer", "{'failed_checks': [], 'fail_count': 0, 'success': true}"},
        {"node_check.answer", "{'words': 'none'}"},
        {"hostname.seconds", "1.5"},
        {"clock_s", "0.05"},
        {"clock_error_s", "9"},
        {"gpu.list.0.used_bytes", "4e8"},
        {"memory.bytes", "0.99e12"},
        {"interfaces.eth1", "{'up': false, 'addresses': []}"},
        {"variables.GLOO_SOCKET_IFNAME", "'eth0'"},
        {"interfaces.eth0.speed_mbit", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(harmless); i++) {
        json_t *nodes = make_nodes(NODES);
        struct pair_list pairs = make_pairs(NODES);
        plant(json_array_get(nodes, 3), harmless[i].path, harmless[i].value);
        check_clean(nodes, &pairs);
        json_decref(nodes);
        free(pairs.v);
    }
}
END_TEST

/* ------------------------------------------------------------------------------------------- paths
 */

static struct pair_facts *pair_of(const struct pair_list *pairs, int a, int b)
{
    for (size_t i = 0; i < pairs->n; i++) {
        if (pairs->v[i].a == a && pairs->v[i].b == b)
            return &pairs->v[i];
    }
    ck_abort_msg("no pair %d-%d", a, b);
}

/* As after the last measurement. */
static struct pair_facts *spoilt(const struct pair_list *pairs, int a, int b)
{
    struct pair_facts *p = pair_of(pairs, a, b);
    p->measured = 4;
    return p;
}

static void break_path(const struct pair_list *pairs, int from, int to, int stage, int code)
{
    struct pair_facts *p = spoilt(pairs, from < to ? from : to, from < to ? to : from);
    p->error.at = from;
    p->error.to = to;
    p->error.stage = stage;
    p->error.code = code;
}

static void expect_one(struct pair_list *pairs, int n, int node, int other, const char *check,
                       const char *words)
{
    json_t *nodes = make_nodes(n);
    struct problems all = {0};
    run_checks(nodes, pairs, &all);
    char *text = problems_text(&all);
    ck_assert_msg(all.n == 1, "%zu problems:\n%s", all.n, text);
    ck_assert_str_eq(all.p[0].check, check);
    ck_assert_msg(all.p[0].node == node && all.p[0].other == other && strstr(text, words), "%s",
                  text);
    free(text);
    problems_fini(&all);
    json_decref(nodes);
    free(pairs->v);
}

START_TEST(slow_nodes_and_slow_paths)
{
    struct pair_list pairs = make_pairs(NODES);
    for (int i = 0; i < NODES; i++) {
        if (i != 5)
            spoilt(&pairs, i < 5 ? i : 5, i < 5 ? 5 : i)->rtt_us = 5020 + i;
    }
    expect_one(&pairs, NODES, 5, -1, "latency", "n5 (node 5): latency: its latency is 5027 us");
    pairs = make_pairs(NODES);
    for (int i = 1; i < NODES; i++)
        spoilt(&pairs, 0, i)->bps = 5e8 - i;
    expect_one(&pairs, NODES, 0, -1, "bandwidth", "its bandwidth is 500 MB/s (usual:");
    pairs = make_pairs(NODES);
    spoilt(&pairs, 2, 6)->bps = 4e8;
    expect_one(&pairs, NODES, 2, 6, "bandwidth", "the path to n6 (node 6): its bandwidth");
    pairs = make_pairs(NODES);
    spoilt(&pairs, 2, 6)->rtt_us = 2000;
    expect_one(&pairs, NODES, 2, 6, "latency", "the path to n6 (node 6): its latency is 2000 us");
    pairs = make_pairs(2);
    spoilt(&pairs, 0, 1)->rtt_us = 40000;
    expect_one(&pairs, 2, 0, 1, "latency", "its latency is 40.0 ms");
}
END_TEST

START_TEST(ports_that_are_not_reached)
{
    struct pair_list pairs = make_pairs(NODES);
    for (int i = 0; i < NODES; i++) {
        if (i != 3)
            break_path(&pairs, i, 3, PATH_TEST_CONNECT, ETIMEDOUT);
    }
    expect_one(&pairs, NODES, 3, -1, "reach",
               "does not reach its port at 10.0.0.4: nothing answers");
    pairs = make_pairs(NODES);
    for (int i = 0; i < NODES; i++) {
        if (i != 3)
            break_path(&pairs, 3, i, PATH_TEST_CONNECT, EHOSTUNREACH);
    }
    expect_one(&pairs, NODES, 3, -1, "reach", "it does not reach n0 at 10.0.0.1: No route to host");
    pairs = make_pairs(NODES);
    break_path(&pairs, 2, 5, PATH_TEST_CONNECT, ECONNREFUSED);
    expect_one(&pairs, NODES, 5, 2, "reach", "n2 (node 2) does not reach its port at 10.0.0.6");
    pairs = make_pairs(2);
    break_path(&pairs, 0, 1, PATH_TEST_BULK, ETIMEDOUT);
    expect_one(&pairs, 2, 1, 0, "reach", "small packets arrive and large ones do not");
}
END_TEST

START_TEST(suspects_are_measured_again)
{
    struct pair_list pairs = make_pairs(NODES);
    int out[4][2];
    ck_assert_int_eq(paths_suspects(&pairs, NODES, out, 4), 0);
    pair_of(&pairs, 1, 2)->bps = 5e8;
    pair_of(&pairs, 3, 4)->bps = 1e8;
    ck_assert_int_eq(paths_suspects(&pairs, NODES, out, 4), 2);
    ck_assert_int_eq(out[0][0], 3); /* the worst first */
    ck_assert_int_eq(out[1][0], 1);
    for (int i = 0; i < 3; i++) /* the best measurement counts, and the fourth one is the last */
        add_pair(&pairs, 3, 4, 20, i == 1 ? 2e8 : 1e7);
    ck_assert(pair_of(&pairs, 3, 4)->bps == 2e8);
    ck_assert_int_eq(paths_suspects(&pairs, NODES, out, 4), 1);
    free(pairs.v);
}
END_TEST

/* With few rounds not all paths are known: a suspect meets a node that is above suspicion. */
START_TEST(a_suspect_meets_a_good_node)
{
    struct pair_list pairs = {0};
    int out[4][2];
    for (int a = 0; a < 6; a += 2)
        add_pair(&pairs, a, a + 1, 20, a == 4 ? 1e8 : 1e10);
    ck_assert_int_eq(paths_suspects(&pairs, 6, out, 4), 3);
    ck_assert(out[0][0] == 4 && out[0][1] == 5);
    ck_assert(out[1][0] == 4 && out[1][1] == 0);
    ck_assert(out[2][0] == 5 && out[2][1] == 0);
    free(pairs.v);
}
END_TEST

START_TEST(everybody_meets_everybody_once)
{
    static bool met[65][65];
    for (int n = 1; n <= 64; n++) {
        memset(met, 0, sizeof(met));
        for (int round = 0; round < path_test_rounds(n); round++) {
            for (int me = 0; me < n; me++) {
                int other = path_test_partner(n, round, me);
                if (other < 0)
                    continue;
                ck_assert_int_lt(other, n);
                ck_assert_int_ne(other, me);
                ck_assert_int_eq(path_test_partner(n, round, other), me);
                ck_assert(!met[me][other]);
                met[me][other] = true;
            }
        }
        for (int a = 0; a < n; a++) {
            for (int b = 0; b < n; b++)
                ck_assert(a == b || met[a][b]);
        }
    }
}
END_TEST

/* ----------------------------------------------------------------------------------------- matches
 */

static int open_port(struct netaddr *a)
{
    netaddr_parse_ip(a, "127.0.0.1", 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert(bind(fd, &a->sa, a->len) == 0 && listen(fd, 64) == 0);
    socklen_t len = sizeof(a->ss);
    getsockname(fd, &a->sa, &len);
    return fd;
}

static void *run_match(void *m)
{
    path_test_run(m);
    return NULL;
}

static void play(struct path_test m[2])
{
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, NULL, run_match, &m[1]), 0);
    path_test_run(&m[0]);
    pthread_join(t, NULL);
}

START_TEST(a_match_measures_the_path)
{
    struct path_test m[2] = {{.nonce = 7, .caller = true}, {.nonce = 7}};
    struct netaddr at[2];
    for (int i = 0; i < 2; i++)
        m[i].listen_fd = open_port(&at[i]);
    m[0].peer = at[1];
    m[1].peer = at[0];
    _cleanup_fd_ int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(stranger, &at[1].sa, at[1].len), 0); /* it comes first */
    ck_assert_int_eq((int)write(stranger, "GET / HTTP/1.0\r\n\r\n", 18), 18);
    play(m);
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(m[i].stage == PATH_TEST_OVER, "%d: stage %d, %s", i, m[i].stage,
                      strerror(m[i].error));
        close(m[i].listen_fd);
    }
    ck_assert(m[0].rtt_us > 0 && m[0].rtt_us < 1e6);
    ck_assert(m[0].out_bps > 1e6 && m[0].in_bps > 1e6);
}
END_TEST

START_TEST(a_port_that_nobody_opens)
{
    struct path_test m[2] = {{.nonce = 7, .caller = true}, {.nonce = 7}};
    struct netaddr at[2], nobody;
    for (int i = 0; i < 2; i++)
        m[i].listen_fd = open_port(&at[i]);
    close(open_port(&nobody));
    m[0].peer = nobody;
    m[1].peer = at[0]; /* dials back all the same */
    play(m);
    ck_assert(m[0].stage == PATH_TEST_CONNECT && m[0].error == ECONNREFUSED);
    ck_assert_int_eq(m[1].stage, PATH_TEST_OVER);
    for (int i = 0; i < 2; i++)
        close(m[i].listen_fd);
}
END_TEST

/* ------------------------------------------------------------------------------------------- facts
 */

static void put_file(const char *path, const char *text)
{
    char *full = test_text("%s%s", tmpdir(), path);
    for (char *slash = full + strlen(tmpdir()) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0777);
        *slash = '/';
    }
    write_file(full, text);
}

static double fact(const json_t *facts, const char *a, const char *b, const char *c)
{
    return json_number_value(json_object_get(json_object_get(json_object_get(facts, a), b), c));
}

static void check_same(const json_t *facts)
{
    struct node_facts f;
    node_facts_get(&f, facts);
    json_t *again = node_facts_json(&f);
    ck_assert(json_equal(facts, again));
    json_decref(again);
    node_facts_fini(&f);
}

/* What the helper finds out, and GPUs. */
START_TEST(facts_are_the_same_behind_json)
{
    json_t *question = json_pack(
        "{s:s,s:i,s:i,s:b,s:b,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:[s]}", "root", "", "nproc", 1,
        "nodes", 2, "gpus", 0, "brief", 0, "tmp", tmpdir(), "host", "n0", "meet", "localhost",
        "log_dir", tmpdir(), "program", "/bin/sh", "python", "/bin/false", "node_check",
        "echo '{\"success\": true}'", "node_check_ms", 5000, "env", "NCCL_DEBUG=INFO");
    json_t *facts = facts_collect(question), *node = json(healthy);
    struct node_facts f;
    ck_assert_str_eq(
        json_string_value(json_object_get(json_object_get(facts, "variables"), "NCCL_DEBUG")),
        "INFO");
    check_same(facts);
    json_decref(facts);
    node_facts_get(&f, node);
    facts = node_facts_json(&f);
    check_same(facts);
    ck_assert(json_array_size(json_object_get(json_object_get(facts, "gpu"), "list")) == 2);
    ck_assert(json_object_size(facts) == json_object_size(node));
    node_facts_fini(&f);
    json_decref(facts);
    json_decref(node);
    json_decref(question);
}
END_TEST

START_TEST(a_fact_of_another_type_is_not_known)
{
    struct node_facts f;
    json_t *node = json("{'nproc': 'eight', 'host': 3, 'gpus': 1, 'limits': 4, 'interfaces': [1],"
                        " 'variables': {'A': 1}, 'gpu': {'list': [3, {'bus': 7}]}}");
    node_facts_get(&f, node);
    ck_assert(isnan(f.nproc) && !f.host && f.gpus == -1 && isnan(f.limits.nofile));
    ck_assert(f.interfaces.n == 0 && f.variables.n == 0 && f.gpu.list.n == 1);
    ck_assert_ptr_null(((struct gpu_facts *)f.gpu.list.v)->bus);
    node_facts_fini(&f);
    json_decref(node);
}
END_TEST

/* The limits of the cgroup itself and of those around it, of both versions; InfiniBand. */
START_TEST(facts_of_a_foreign_root)
{
    put_file("/proc/self/cgroup", "0::/jobs/one\n");
    put_file("/sys/fs/cgroup/jobs/one/pids.max", "max\n");
    put_file("/sys/fs/cgroup/jobs/one/pids.current", "5\n");
    put_file("/sys/fs/cgroup/jobs/pids.max", "100\n");
    put_file("/sys/fs/cgroup/jobs/pids.current", "90\n");
    put_file("/sys/fs/cgroup/jobs/one/memory.max", "1000000000\n");
    put_file("/sys/fs/cgroup/jobs/one/memory.current", "900000000\n");
    put_file("/sys/fs/cgroup/jobs/one/memory.stat", "anon 250000000\nfile 650000000\n");
    put_file("/proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   500 kB\n");
    put_file("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    json_t *question = json_pack("{s:s,s:i,s:i,s:b,s:b,s:s}", "root", tmpdir(), "nproc", 1, "nodes",
                                 2, "gpus", 0, "brief", 1, "tmp", tmpdir());
    json_t *facts = facts_collect(question);
    ck_assert(fact(facts, "cgroup", "pids", "free") == 10);
    ck_assert(fact(facts, "cgroup", "pids", "limit") == 100);
    ck_assert(fact(facts, "cgroup", "memory", "free") == 750000000);
    ck_assert(json_number_value(
                  json_object_get(json_object_get(facts, "memory"), "available_bytes")) == 512000);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(facts, "rdma"), "mlx5_0:1")),
                     "DOWN");
    json_decref(facts);
    put_file("/proc/self/cgroup", "8:pids:/a\n4:memory:/b\n0::/\n");
    put_file("/sys/fs/cgroup/pids/a/pids.max", "40\n");
    put_file("/sys/fs/cgroup/pids/a/pids.current", "30\n");
    put_file("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "500\n");
    put_file("/sys/fs/cgroup/memory/b/memory.usage_in_bytes", "400\n");
    put_file("/sys/fs/cgroup/memory/b/memory.stat", "total_rss 100\n");
    facts = facts_collect(question);
    ck_assert(fact(facts, "cgroup", "pids", "free") == 10);
    ck_assert(fact(facts, "cgroup", "memory", "free") == 400);
    json_decref(facts);
    /* A container without a cgroup namespace, and one whose process was moved out of its own. */
    static const char *const foreign[] = {"0::/system.slice/docker-1a.scope/job\n",
                                          "0::/system.slice/docker-1a.scope\n",
                                          "0::/../../other.scope\n", "0::/\n"};
    put_file("/sys/fs/cgroup/pids.max", "70\n");
    put_file("/sys/fs/cgroup/pids.current", "60\n");
    put_file("/sys/fs/cgroup/job/pids.max", "7\n");
    put_file("/sys/fs/cgroup/job/pids.current", "4\n");
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++) {
        put_file("/proc/self/cgroup", foreign[i]);
        facts = facts_collect(question);
        ck_assert(fact(facts, "cgroup", "pids", "free") == (i == 0 ? 3 : 10));
        json_decref(facts);
    }
    json_decref(question);
}
END_TEST

/* ------------------------------------------------------------------------------ what programs lack
 */

static json_t *facts_of_program(const char *path, const char *variable)
{
    json_t *question =
        json_pack("{s:s,s:i,s:i,s:b,s:b,s:s,s:s,s:[s]}", "root", tmpdir(), "nproc", 1, "nodes", 1,
                  "gpus", 0, "brief", 0, "tmp", tmpdir(), "program", path, "env", variable);
    json_t *facts = facts_collect(question);
    json_decref(question);
    return facts;
}

static const struct lack {
    const char *first_line; /* NULL: a program with this library */
    const char *variable;   /* of the job */
    const char *words;      /* NULL: nothing is missing */
} lacks[] = {
    {"#!/bin/sh", "A=1", NULL},
    {"#!/usr/bin/env sh", "A=1", NULL},
    {"#!/usr/bin/env -S A=1 sh -e", "A=1", NULL},
    {"#!/usr/bin/env --unset=B nosuch", "A=1", NULL}, /* not understood: no word about it */
    {"#!/usr/bin/env sh\r", "A=1",
     "ends in a carriage return (DOS line ends), so that env does not find 'sh'"},
    {"#!/usr/bin/env no-such-python", "A=1", "env does not find 'no-such-python'"},
    {"#!/usr/bin/env sh", "PATH=/nonexistent", "env does not find 'sh'"},
    {"#! /usr/bin/env\tsh", "A=1", NULL},
    {NULL, "A=1", "libnosuch.so.1"},
    {NULL, "LD_LIBRARY_PATH=%T", NULL},
};

START_TEST(what_a_program_lacks)
{
    const struct lack *l = &lacks[_i];
    char *path = tmppath("program"), *lib = tmppath("libnosuch.so.1");
    char *variable = strstr(l->variable, "%T") ? test_text("LD_LIBRARY_PATH=%s", tmpdir())
                                               : test_text("%s", l->variable);
    if (l->first_line) {
        write_file(path, test_text("%s\nexit 0\n", l->first_line));
        ck_assert_int_eq(chmod(path, 0755), 0);
    } else {
        write_file(tmppath("a.c"), "int f(void) { return 0; }\n");
        write_file(tmppath("b.c"), "int f(void);\nint main(void) { return f(); }\n");
        char *make =
            test_text("cc -shared -fPIC -Wl,-soname,libnosuch.so.1 -o %s %s && cc -o %s %s %s", lib,
                      tmppath("a.c"), path, tmppath("b.c"), lib);
        ck_assert_int_eq(system(make), 0);
    }
    json_t *facts = facts_of_program(path, variable);
    const char *said =
        json_string_value(json_object_get(json_object_get(facts, "program"), "lacks"));
    ck_assert_msg(!said == !l->words, "%s: %s", l->first_line ? l->first_line : "ELF",
                  said ? said : "nothing is missing");
    if (l->words)
        ck_assert_msg(strstr(said, l->words), "%s", said);
    json_decref(facts);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("doctor");
    TCase *tc = test_case(s, "checks", 30);
    tcase_add_test(tc, healthy_nodes_are_clean);
    tcase_add_loop_test(tc, a_fault_is_named_with_node_and_remedy, 0, ARRAY_LEN(faults));
    tcase_add_test(tc, equal_problems_are_one_line);
    tcase_add_test(tc, the_clock_of_the_leader);
    tcase_add_test(tc, what_does_no_harm_is_no_problem);
    tc = test_case(s, "paths", 30);
    tcase_add_test(tc, slow_nodes_and_slow_paths);
    tcase_add_test(tc, ports_that_are_not_reached);
    tcase_add_test(tc, suspects_are_measured_again);
    tcase_add_test(tc, a_suspect_meets_a_good_node);
    tcase_add_test(tc, everybody_meets_everybody_once);
    tc = test_case(s, "matches", 30);
    tcase_add_test(tc, a_match_measures_the_path);
    tcase_add_test(tc, a_port_that_nobody_opens);
    tc = test_case(s, "facts", 30);
    tcase_add_test(tc, facts_are_the_same_behind_json);
    tcase_add_test(tc, a_fact_of_another_type_is_not_known);
    tcase_add_test(tc, facts_of_a_foreign_root);
    tcase_add_loop_test(tc, what_a_program_lacks, 0, ARRAY_LEN(lacks));
    return s;
}

TEST_MAIN(suite)
