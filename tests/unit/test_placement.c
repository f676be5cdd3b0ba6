/* The CPUs of each worker on topologies that hwloc synthesizes, and the number of usable ones. */
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/process/cgroup.h"
#include "agent/device/placement.h"
#include "core/fd.h"
#include "core/mem.h"

#define MACHINES "tests/unit/machines"

static bool g_have_hwloc;
static const char *g_visible; /* CUDA_VISIBLE_DEVICES */

static void setup(void)
{
    struct placement *p;
    struct err e = ERR_INIT;
    g_have_hwloc = placement_new(&p, BIND_CORE, 1, NULL, &e) == 0;
    placement_free(p);
    if (!g_have_hwloc)
        test_skip("%s", e.msg);
}

/* The binding of nproc workers on a made-up machine is the list of texts. */
static void expect(const char *machine, enum bind_mode mode, int nproc, const char *const *texts)
{
    struct placement *p;
    struct err e = ERR_INIT;
    char text[128];
    if (!g_have_hwloc)
        return;
    setenv("HWLOC_SYNTHETIC", machine, 1);
    ck_assert_msg(placement_new(&p, mode, nproc, NULL, &e) == 0, "%s", e.msg);
    for (int i = 0; i < nproc; i++) {
        size_t size = 0;
        ck_assert_str_eq(placement_describe(p, i, text, sizeof(text)), texts[i]);
        const cpu_set_t *set = placement_of(p, i, &size);
        ck_assert_ptr_nonnull(set);
        ck_assert_uint_ge(size, sizeof(cpu_set_t));
        ck_assert_int_gt(CPU_COUNT_S(size, set), 0);
    }
    placement_free(p);
}

#define EXPECT(machine, mode, ...)                                                       \
    expect(machine, mode, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), \
           (const char *[]){__VA_ARGS__})

START_TEST(cores)
{
    static const char machine[] = "pack:2 core:4 pu:2";
    EXPECT(machine, BIND_CORE, "cores 0-7 (CPUs 0-15)");
    EXPECT(machine, BIND_CORE, "cores 0-3 (CPUs 0-7)", "cores 4-7 (CPUs 8-15)");
    EXPECT(machine, BIND_CORE, "cores 0-1 (CPUs 0-3)", "cores 2-4 (CPUs 4-9)",
           "cores 5-7 (CPUs 10-15)");
    EXPECT(machine, BIND_CORE, "core 0 (CPUs 0-1)", "core 1 (CPUs 2-3)", "core 2 (CPUs 4-5)",
           "core 3 (CPUs 6-7)", "core 4 (CPUs 8-9)", "core 5 (CPUs 10-11)", "core 6 (CPUs 12-13)",
           "core 7 (CPUs 14-15)", "core 0 (CPUs 0-1)", "core 1 (CPUs 2-3)");
    /* Hardware threads numbered apart, as most firmware does. */
    EXPECT("core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", BIND_CORE, "cores 0-1 (CPUs 0-1,4-5)",
           "cores 2-3 (CPUs 2-3,6-7)");
    EXPECT("core:2 pu:1", BIND_CORE, "core 0 (CPU 0)", "core 1 (CPU 1)");
    EXPECT("pack:1 pu:3", BIND_CORE, "core 0 (CPU 0)", "cores 1-2 (CPUs 1-2)"); /* no cores known */
}
END_TEST

START_TEST(numa_nodes)
{
    static const char machine[] = "pack:2 [numa] core:4 pu:2";
    EXPECT(machine, BIND_NUMA, "NUMA node 0 (CPUs 0-7)");
    EXPECT(machine, BIND_NUMA, "NUMA node 0 (CPUs 0-7)", "NUMA node 1 (CPUs 8-15)");
    EXPECT(machine, BIND_NUMA, "NUMA node 0 (CPUs 0-7)", "NUMA node 0 (CPUs 0-7)",
           "NUMA node 0 (CPUs 0-7)", "NUMA node 1 (CPUs 8-15)", "NUMA node 1 (CPUs 8-15)");
    EXPECT("pack:4 [numa] core:2 pu:1", BIND_NUMA, "NUMA node 0 (CPUs 0-1)",
           "NUMA node 2 (CPUs 4-5)");
}
END_TEST

/* Memory of another kind is a NUMA node of its own, over CPUs that have one. */
START_TEST(nodes_over_the_same_cpus)
{
    static const char hbm[] = "pack:2 [numa] [numa] core:4 pu:1";
    EXPECT(hbm, BIND_GPU_EXCLUSIVE, "cores 0-1 (CPUs 0-1)", "cores 2-3 (CPUs 2-3)",
           "cores 4-5 (CPUs 4-5)", "cores 6-7 (CPUs 6-7)");
    EXPECT(hbm, BIND_NUMA, "NUMA node 0 (CPUs 0-3)", "NUMA node 2 (CPUs 4-7)");
    static const char cxl[] = "[numa] pack:2 [numa] core:2 pu:1";
    EXPECT(cxl, BIND_GPU_EXCLUSIVE, "cores 0-1 (CPUs 0-1)", "cores 2-3 (CPUs 2-3)");
    EXPECT(cxl, BIND_GPU_NODE, "NUMA node 0 (CPUs 0-1)", "NUMA node 1 (CPUs 2-3)");
    static const char wide[] = "[numa] pack:2 core:2 pu:1"; /* one node over two sockets */
    EXPECT(wide, BIND_GPU_SOCKET, "socket 0 (CPUs 0-1)", "socket 1 (CPUs 2-3)");
}
END_TEST

START_TEST(a_large_machine)
{
    struct placement *p;
    struct err e = ERR_INIT;
    char text[128], small[12];
    size_t size;
    if (!g_have_hwloc)
        return;
    setenv("HWLOC_SYNTHETIC", "pack:16 [numa] core:96 pu:2", 1); /* 3,072 CPUs: over CPU_SETSIZE */
    ck_assert_msg(placement_new(&p, BIND_NUMA, 16, NULL, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(placement_describe(p, 15, text, sizeof(text)),
                     "NUMA node 15 (CPUs 2880-3071)");
    ck_assert_str_eq(placement_describe(p, 15, small, sizeof(small)), "NUMA nod...");
    const cpu_set_t *set = placement_of(p, 15, &size);
    ck_assert_int_eq(CPU_COUNT_S(size, set), 192);
    placement_free(p);
}
END_TEST

START_TEST(a_machine_from_a_file)
{
    const char *xml = tmppath("machine.xml");
    char *command = xasprintf("lstopo-no-graphics --input 'pack:2 core:2 pu:2' --of xml %s "
                              ">/dev/null 2>&1",
                              xml);
    if (!g_have_hwloc || system(command) != 0) {
        test_skip("needs hwloc's lstopo");
        free(command);
        return;
    }
    free(command);
    setenv("HWLOC_XMLFILE", xml, 1);
    struct placement *p;
    struct err e = ERR_INIT;
    char text[128];
    ck_assert_msg(placement_new(&p, BIND_CORE, 2, NULL, &e) == 0, "%s", e.msg);
    ck_assert_str_eq(placement_describe(p, 1, text, sizeof(text)), "cores 2-3 (CPUs 4-7)");
    placement_free(p);
}
END_TEST

/* ----------------------------------------------------------------------------- next to the GPUs */

struct place {
    const char *gpu, *nic, *cpus;
};

/* The choice for each worker on the machine that the file describes. It is printed, too. */
static void expect_places(const char *machine, enum bind_mode mode, int nproc,
                          const struct place *want, const char *nccl)
{
    struct placement *p;
    struct err e = ERR_INIT;
    char gpu[64], nic[64], cpus[128], text[256];
    if (!g_have_hwloc)
        return;
    setenv("HWLOC_XMLFILE", test_text("%s/%s.xml", MACHINES, machine), 1);
    ck_assert_msg(placement_new(&p, mode, nproc, g_visible, &e) == 0, "%s", e.msg);
    for (int i = 0; i < nproc; i++) {
        placement_gpu(p, i, gpu, sizeof(gpu));
        placement_nic(p, i, nic, sizeof(nic));
        placement_describe(p, i, cpus, sizeof(cpus));
        printf("%s, worker %d: GPU %s, network %s, %s\n", machine, i, gpu, nic, cpus);
        ck_assert_str_eq(gpu, want[i].gpu);
        ck_assert_str_eq(nic, want[i].nic);
        ck_assert_str_eq(cpus, want[i].cpus);
    }
    ck_assert_str_eq(placement_nccl(p, text, sizeof(text)), nccl);
    placement_free(p);
}

#define PLACES(machine, mode, nccl, ...)                                               \
    expect_places(machine, mode,                                                       \
                  (int)(sizeof((struct place[]){__VA_ARGS__}) / sizeof(struct place)), \
                  (struct place[]){__VA_ARGS__}, nccl)

START_TEST(eight_gpus_on_two_sockets)
{
    static const char m[] = "8gpu-2socket";
    static const char s0[] = "(CPUs 0-15,32-47)", s1[] = "(CPUs 16-31,48-63)";
    PLACES(m, BIND_GPU_NODE, "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7",
           {"0 (0000:12:00.0)", "mlx5_0", test_text("NUMA node 0 %s", s0)},
           {"1 (0000:1a:00.0)", "mlx5_1", test_text("NUMA node 0 %s", s0)},
           {"2 (0000:32:00.0)", "mlx5_2", test_text("NUMA node 0 %s", s0)},
           {"3 (0000:3a:00.0)", "mlx5_3", test_text("NUMA node 0 %s", s0)},
           {"4 (0000:92:00.0)", "mlx5_4", test_text("NUMA node 1 %s", s1)},
           {"5 (0000:9a:00.0)", "mlx5_5", test_text("NUMA node 1 %s", s1)},
           {"6 (0000:b2:00.0)", "mlx5_6", test_text("NUMA node 1 %s", s1)},
           {"7 (0000:ba:00.0)", "mlx5_7", test_text("NUMA node 1 %s", s1)});
    /* With fewer workers than GPUs a worker's share stays what it is. */
    PLACES(m, BIND_GPU_EXCLUSIVE, "NCCL_IB_HCA==mlx5_0,mlx5_1",
           {"0 (0000:12:00.0)", "mlx5_0", "cores 0-3 (CPUs 0-3,32-35)"},
           {"1 (0000:1a:00.0)", "mlx5_1", "cores 4-7 (CPUs 4-7,36-39)"});
    PLACES(m, BIND_GPU_SOCKET, "NCCL_IB_HCA==mlx5_0",
           {"0 (0000:12:00.0)", "mlx5_0", test_text("socket 0 %s", s0)});
    PLACES(m, BIND_GPU_COMPLEX, "NCCL_IB_HCA==mlx5_0",
           {"0 (0000:12:00.0)", "mlx5_0", test_text("core complex 0 %s", s0)});
    g_visible = "5,0,6";
    PLACES(m, BIND_GPU_EXCLUSIVE, "NCCL_IB_HCA==mlx5_0,mlx5_5,mlx5_6",
           {"0 (0000:9a:00.0)", "mlx5_5", "cores 16-23 (CPUs 16-23,48-55)"},
           {"1 (0000:12:00.0)", "mlx5_0", "cores 0-15 (CPUs 0-15,32-47)"},
           {"2 (0000:b2:00.0)", "mlx5_6", "cores 24-31 (CPUs 24-31,56-63)"});
}
END_TEST

START_TEST(four_gpus_on_four_nodes)
{
    static const char m[] = "4gpu-4numa", net[] = "NCCL_SOCKET_IFNAME==ens3";
    PLACES(m, BIND_GPU_NODE, net, {"0 (0000:01:00.0)", "-", "NUMA node 3 (CPUs 24-31)"},
           {"1 (0000:41:00.0)", "-", "NUMA node 2 (CPUs 16-23)"},
           {"2 (0000:81:00.0)", "ens3", "NUMA node 1 (CPUs 8-15)"},
           {"3 (0000:c1:00.0)", "-", "NUMA node 0 (CPUs 0-7)"});
    PLACES(m, BIND_GPU_SOCKET, "", {"0 (0000:01:00.0)", "-", "socket 0 (CPUs 0-31)"});
    PLACES(m, BIND_GPU_COMPLEX, net, {"0 (0000:01:00.0)", "-", "core complex 6 (CPUs 24-27)"},
           {"1 (0000:41:00.0)", "-", "core complex 4 (CPUs 16-19)"},
           {"2 (0000:81:00.0)", "ens3", "core complex 2 (CPUs 8-11)"},
           {"3 (0000:c1:00.0)", "-", "core complex 0 (CPUs 0-3)"},
           {"0 (0000:01:00.0)", "-", "core complex 7 (CPUs 28-31)"});
    PLACES(m, BIND_GPU_EXCLUSIVE, "", {"0 (0000:01:00.0)", "-", "cores 24-31 (CPUs 24-31)"},
           {"1 (0000:41:00.0)", "-", "cores 16-23 (CPUs 16-23)"});
}
END_TEST

START_TEST(one_gpu)
{
    static const char m[] = "1gpu", net[] = "NCCL_SOCKET_IFNAME==enp2s0";
    PLACES(m, BIND_GPU_NODE, net, {"0 (0000:01:00.0)", "enp2s0", "NUMA node 0 (CPUs 0-15)"});
    PLACES(m, BIND_GPU_EXCLUSIVE, net, {"0 (0000:01:00.0)", "enp2s0", "cores 0-2 (CPUs 0-5)"},
           {"0 (0000:01:00.0)", "enp2s0", "cores 3-5 (CPUs 6-11)"},
           {"0 (0000:01:00.0)", "enp2s0", "cores 6-7 (CPUs 12-15)"});
    struct placement *p;
    struct err e = ERR_INIT;
    if (!g_have_hwloc)
        return;
    ck_assert_int_lt(placement_new(&p, BIND_GPU_EXCLUSIVE, 9, NULL, &e), 0);
    ck_assert_str_eq(e.msg, "--numa_binding exclusive: NUMA node 0 has 8 cores for 9 workers or "
                            "GPUs");
}
END_TEST

/* A GPU between a node of ordinary memory and one of another kind over the same CPUs. */
START_TEST(one_gpu_and_two_kinds_of_memory)
{
    PLACES("1gpu-hbm", BIND_GPU_EXCLUSIVE, "NCCL_SOCKET_IFNAME==enp2s0",
           {"0 (0000:01:00.0)", "enp2s0", "cores 0-3 (CPUs 0-7)"},
           {"0 (0000:01:00.0)", "enp2s0", "cores 4-7 (CPUs 8-15)"});
}
END_TEST

START_TEST(no_gpu)
{
    static const char m[] = "no-gpu";
    PLACES(m, BIND_GPU_NODE, "", {"-", "-", "NUMA node 0 (CPUs 0-3)"},
           {"-", "-", "NUMA node 1 (CPUs 4-7)"});
    PLACES(m, BIND_GPU_SOCKET, "", {"-", "-", "socket 0 (CPUs 0-3)"},
           {"-", "-", "socket 1 (CPUs 4-7)"});
    PLACES(m, BIND_GPU_COMPLEX, "", {"-", "-", "core complex 0 (CPUs 0-3)"},
           {"-", "-", "core complex 1 (CPUs 4-7)"});
    PLACES(m, BIND_GPU_EXCLUSIVE, "", {"-", "-", "cores 0-1 (CPUs 0-1)"},
           {"-", "-", "cores 2-3 (CPUs 2-3)"}, {"-", "-", "cores 4-7 (CPUs 4-7)"});
}
END_TEST

START_TEST(no_binding)
{
    struct placement *p = (void *)1;
    struct err e = ERR_INIT;
    char text[32];
    size_t size;
    ck_assert_int_eq(placement_new(&p, BIND_NONE, 4, NULL, &e), 0);
    ck_assert_ptr_null(p);
    ck_assert_ptr_null(placement_of(p, 0, &size));
    ck_assert_str_eq(placement_describe(p, 0, text, sizeof(text)), "not bound");
    placement_free(p);
}
END_TEST

static int last_cpu(const cpu_set_t *set)
{
    int last = -1;
    for (int i = 0; i < CPU_SETSIZE; i++)
        last = CPU_ISSET(i, set) ? i : last;
    return last;
}

START_TEST(only_cpus_that_we_may_use)
{
    cpu_set_t ours, one;
    struct placement *p;
    struct err e = ERR_INIT;
    size_t size;
    if (!g_have_hwloc)
        return;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(ours), &ours), 0);
    CPU_ZERO(&one);
    CPU_SET(last_cpu(&ours), &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert_msg(placement_new(&p, BIND_CORE, 3, NULL, &e) == 0, "%s", e.msg);
    for (int i = 0; i < 3; i++) {
        const cpu_set_t *set = placement_of(p, i, &size);
        ck_assert_int_eq(CPU_COUNT_S(size, set), 1);
        ck_assert(CPU_ISSET_S((size_t)last_cpu(&ours), size, set));
    }
    placement_free(p);
    ck_assert_int_eq(usable_cpus(), 1);
}
END_TEST

START_TEST(a_host_without_hwloc)
{
    void *lib = dlopen("libhwloc.so.15", RTLD_NOW);
    struct link_map *map;
    if (!g_have_hwloc)
        return;
    ck_assert(lib && dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0);
    char *path = realpath(map->l_name, NULL);
    dlclose(lib);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("/dev/null", path, NULL, MS_BIND, NULL) < 0) {
        test_skip("needs root: hiding hwloc");
        free(path);
        return;
    }
    struct placement *p;
    struct err e = ERR_INIT;
    ck_assert_int_eq(placement_new(&p, BIND_CORE, 1, NULL, &e), -ENOENT);
    ck_assert_ptr_null(p);
    ck_assert_msg(strstr(e.msg, "--bind needs hwloc, which is not installed here"), "%s", e.msg);
    free(path);
}
END_TEST

/* ---------------------------------------------------------------------------------- usable CPUs */

static void quota_file(const char *dir, const char *file, const char *text)
{
    char *path = xasprintf("%s/%s/%s", tmpdir(), dir, file);
    write_file(path, text);
    free(path);
}

START_TEST(quotas)
{
    const char *top = tmpdir(), *a = tmppath("a"), *b = tmppath("a/b");
    size_t len = strlen(top);
    mkdir(a, 0755);
    mkdir(b, 0755);
    ck_assert(cpu_quota(b, len, true) == 0);
    quota_file("a/b", "cpu.max", "max 100000\n");
    ck_assert(cpu_quota(b, len, true) == 0);
    quota_file("a", "cpu.max", "150000 100000\n");
    ck_assert(cpu_quota(b, len, true) == 1.5);
    quota_file("a/b", "cpu.max", "50000 10000\n");
    ck_assert(cpu_quota(b, len, true) == 1.5);
    quota_file(".", "cpu.max", "100000 100000\n"); /* a container's own root */
    ck_assert(cpu_quota(b, len, true) == 1);
    ck_assert(cpu_quota(top, len, true) == 1);
    ck_assert_msg(cpu_quota(b, len + 2, true) == 1.5, "not above the mount point");
    quota_file("a", "cpu.max", "nonsense");
    ck_assert(cpu_quota(a, len + 2, true) == 0);

    quota_file("a/b", "cpu.cfs_quota_us", "-1\n");
    quota_file("a/b", "cpu.cfs_period_us", "100000\n");
    ck_assert(cpu_quota(b, len, false) == 0);
    quota_file("a", "cpu.cfs_quota_us", "250000\n");
    quota_file("a", "cpu.cfs_period_us", "100000\n");
    ck_assert(cpu_quota(b, len, false) == 2.5);
    quota_file("a", "cpu.cfs_period_us", "0\n");
    ck_assert(cpu_quota(b, len, false) == 0);
}
END_TEST

START_TEST(a_real_quota)
{
    char own[512], dir[600], path[700];
    int n = usable_cpus();
    ck_assert_int_ge(n, 1);
    if (!cgroup_own("cpu", own, sizeof(own), NULL)) {
        test_skip("no cgroup v1 hierarchy of the CPU");
        return;
    }
    snprintf(dir, sizeof(dir), "%s/dlaunch-test.%d", own, (int)getpid());
    if (mkdir(dir, 0755) < 0) {
        test_skip("cannot make %s", dir);
        return;
    }
    snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", dir);
    write_file(path, "30000");
    pid_t pid = fork();
    if (pid == 0) {
        snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
        _exit(fd < 0 || fd_write_all(fd, "0", 1) < 0 ? 255 : usable_cpus());
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    rmdir(dir);
    ck_assert_int_eq(WEXITSTATUS(status), 1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("placement");
    TCase *tc = test_case(s, "binding", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, cores);
    tcase_add_test(tc, numa_nodes);
    tcase_add_test(tc, nodes_over_the_same_cpus);
    tcase_add_test(tc, a_large_machine);
    tcase_add_test(tc, a_machine_from_a_file);
    tcase_add_test(tc, no_binding);
    tcase_add_test(tc, only_cpus_that_we_may_use);
    tcase_add_test(tc, a_host_without_hwloc);
    tc = test_case(s, "gpus", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, eight_gpus_on_two_sockets);
    tcase_add_test(tc, four_gpus_on_four_nodes);
    tcase_add_test(tc, one_gpu);
    tcase_add_test(tc, one_gpu_and_two_kinds_of_memory);
    tcase_add_test(tc, no_gpu);
    tc = test_case(s, "usable", 60);
    tcase_add_test(tc, quotas);
    tcase_add_test(tc, a_real_quota);
    return s;
}
TEST_MAIN(suite)
