#include "agent/doctor/checks.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/doctor/fact.h"
#include "agent/doctor/paths.h"
#include "core/mem.h"
#include "core/netaddr.h"

#define MIB 1048576.0
#define GIB 1073741824.0

/* Bounds below which a worker, or a library in it, is likely to fail. */
#define SHM_LEAST \
    (128 * MIB) /* Docker's default of 64 MiB is too small for NCCL and data loaders */
#define SHM_WORKER     (32 * MIB)
#define TMP_LEAST      (64 * MIB)
#define MEMORY_WORKER  (256 * MIB)
#define THREADS_WORKER 64
#define FILES_WORKER   64
#define FILES_LEAST    1024
#define PORTS_LEAST    2048
#define MEMLOCK_LEAST  (1 * GIB)
#define CLOCK_MOST_S   0.1
#define RESOLVE_MOST_S 2
#define ALIKE          0.9 /* a size that is less than this part of the other nodes' sizes */
#define GPU_USED_LEAST (512 * MIB) /* without a process that is to be seen: another container's */

struct examined {
    const struct check *check;
    const json_t *node;  /* the one that is looked at; NULL: all */
    const json_t *nodes; /* of the job; NULL: only one is known */
    const json_t *pairs;
    struct problems *out;
};

struct check {
    const char *name;
    bool stops;
    void (*of_node)(struct examined *x);
    void (*of_job)(struct examined *x);
};

/* ---------------------------------------------------------------------------------------- problems
 */

static void add(struct examined *x, const json_t *node, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void add(struct examined *x, const json_t *node, const char *remedy, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    problems_vadd(x->out, x->check->name, x->check->stops, node, remedy, fmt, ap);
    va_end(ap);
}

static const char *size(double bytes, char out[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    snprintf(out, 32, bytes < 10 && u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

static double workers(const json_t *node)
{
    double n = fact_number(node, "nproc");
    return n > 0 ? n : 1;
}

/* -------------------------------------------------------------------------------- limits of a node
 */

static void check_nofile(struct examined *x)
{
    double n, need = FILES_LEAST + FILES_WORKER * workers(x->node);
    if (fact_number_at(x->node, "limits.nofile", &n) && n < need)
        add(x, x->node, "raise it: ulimit -Hn 65536, or LimitNOFILE= of the service",
            "the hard limit of open files is %.0f; %.0f workers need about %.0f", n,
            workers(x->node), need);
}

static void check_memlock(struct examined *x)
{
    double n;
    char a[32];
    bool pins = json_object_size(fact_at(x->node, "rdma")) > 0;
    if (pins && fact_number_at(x->node, "limits.memlock_bytes", &n) && n < MEMLOCK_LEAST)
        add(x, x->node, "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity of the service",
            "%s of memory can be locked; InfiniBand and RoCE need more", size(n, a));
}

static void check_nproc(struct examined *x)
{
    double n, used = fact_number(x->node, "own_threads"), need = THREADS_WORKER * workers(x->node);
    if (fact_number_at(x->node, "limits.nproc", &n) && n - used < need)
        add(x, x->node, "raise it: ulimit -u, or LimitNPROC= of the service",
            "the user may have %.0f processes and threads and has %.0f; %.0f workers need about "
            "%.0f more",
            n, used, workers(x->node), need);
}

static void check_file_size(struct examined *x)
{
    double n;
    char a[32];
    if (fact_number_at(x->node, "limits.file_bytes", &n) && n < GIB)
        add(x, x->node, "lift it: ulimit -f unlimited", "files may be %s long at most", size(n, a));
}

static void check_address_space(struct examined *x)
{
    double n;
    char a[32];
    if (fact_number_at(x->node, "limits.address_space_bytes", &n) && n < 64 * GIB)
        add(x, x->node, "lift it: ulimit -v unlimited",
            "a process may map %s of memory; GPUs and shared segments need more", size(n, a));
}

static void check_pids(struct examined *x)
{
    double n, need = THREADS_WORKER * workers(x->node);
    if (fact_number_at(x->node, "cgroup.pids.free", &n) && n < need)
        add(x, x->node, "raise pids.max (docker run --pids-limit, TasksMax= of the service)",
            "its cgroup allows %.0f more processes and threads (limit %.0f); %.0f workers need "
            "about %.0f",
            n, fact_number(x->node, "cgroup.pids.limit"), workers(x->node), need);
}

static void check_threads(struct examined *x)
{
    double n, need = THREADS_WORKER * workers(x->node);
    if (fact_number_at(x->node, "threads_left", &n) && n < need)
        add(x, x->node, "raise kernel.threads-max and kernel.pid_max (sysctl)",
            "the kernel allows %.0f more threads; %.0f workers need about %.0f", n,
            workers(x->node), need);
}

static void check_memory(struct examined *x)
{
    double n, need = MEMORY_WORKER * workers(x->node);
    char a[32], b[32];
    if (fact_number_at(x->node, "memory.available_bytes", &n) && n < need)
        add(x, x->node, "end what uses the memory (ps --sort=-rss)",
            "%s of memory are available; %.0f workers need %s at least", size(n, a),
            workers(x->node), size(need, b));
}

static void check_memory_limit(struct examined *x)
{
    double n, need = MEMORY_WORKER * workers(x->node);
    char a[32], b[32], c[32];
    if (fact_number_at(x->node, "cgroup.memory.free", &n) && n < need)
        add(x, x->node, "raise memory.max (docker run --memory, the pod's limit, Slurm's --mem)",
            "its cgroup allows %s more memory (limit %s); %.0f workers need %s at least",
            size(n, a), size(fact_number(x->node, "cgroup.memory.limit"), b), workers(x->node),
            size(need, c));
}

static void check_shm(struct examined *x)
{
    double all = fact_number(x->node, "shm.bytes"), n, need = SHM_WORKER * workers(x->node);
    char a[32], b[32];
    need = need < SHM_LEAST ? SHM_LEAST : need;
    if (*fact_text(x->node, "shm.error"))
        add(x, x->node, "mount it: mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
            "/dev/shm cannot be used: %s", fact_text(x->node, "shm.error"));
    else if (fact_number_at(x->node, "shm.free_bytes", &n) && all < need)
        add(x, x->node,
            "enlarge it: docker run --shm-size=8g, an emptyDir with medium: Memory, or mount -o "
            "remount,size=50% /dev/shm",
            "/dev/shm has %s; NCCL and data loaders of %.0f workers need %s", size(all, a),
            workers(x->node), size(need, b));
    else if (fact_number_at(x->node, "shm.free_bytes", &n) && n < need)
        add(x, x->node, "remove what ended jobs left there (ls -l /dev/shm)",
            "/dev/shm is full: %s of %s are free", size(n, a), size(all, b));
}

static void check_folder(struct examined *x, const char *what, const char *option)
{
    char key[64], a[32], remedy[128];
    double n;
    const char *path;
    snprintf(key, sizeof(key), "%s.path", what);
    path = fact_text(x->node, key);
    snprintf(key, sizeof(key), "%s.error", what);
    snprintf(remedy, sizeof(remedy), "let the user write there, or choose another folder: %s",
             option);
    if (*fact_text(x->node, key)) {
        add(x, x->node, remedy, "%.200s cannot be used: %s", path, fact_text(x->node, key));
        return;
    }
    snprintf(remedy, sizeof(remedy), "remove files there, or choose another folder: %s", option);
    snprintf(key, sizeof(key), "%s.free_bytes", what);
    if (fact_number_at(x->node, key, &n) && n < TMP_LEAST)
        add(x, x->node, remedy, "%.200s is full: %s are free", path, size(n, a));
    snprintf(key, sizeof(key), "%s.free_files", what);
    if (fact_number_at(x->node, key, &n) && n < 100)
        add(x, x->node, remedy, "%.200s has room for only %.0f more files", path, n);
}

static void check_tmp(struct examined *x)
{
    check_folder(x, "tmp", "TMPDIR");
}

static void check_log_dir(struct examined *x)
{
    check_folder(x, "log_dir", "--log_dir");
}

/* ------------------------------------------------------------------------------- names and network
 */

static void check_hostname(struct examined *x)
{
    const json_t *name = fact_at(x->node, "hostname");
    const char *own = fact_text(name, "name");
    struct netaddr a;
    bool remote = netaddr_parse_ip(&a, fact_text(x->node, "addr"), 0) && !netaddr_is_loopback(&a);
    bool chosen = *fact_text(x->node, "variables.GLOO_SOCKET_IFNAME");
    double s;
    char remedy[160];
    if (!name)
        return;
    snprintf(remedy, sizeof(remedy), "put its address into /etc/hosts: ADDRESS %.100s", own);
    if (*fact_text(name, "error"))
        add(x, x->node, remedy, "its own name %.100s does not resolve: %s", own,
            fact_text(name, "error"));
    else if (json_is_true(fact_at(name, "loopback")) && remote && !chosen)
        add(x, x->node, remedy,
            "its own name %.100s resolves to %s only, where other nodes do not reach it", own,
            json_string_value(json_array_get(fact_at(name, "addresses"), 0)));
    else if (fact_number_at(name, "seconds", &s) && s > RESOLVE_MOST_S)
        add(x, x->node, "look at the name servers in /etc/resolv.conf",
            "it took %.1f s to resolve its own name", s);
}

static void check_meet(struct examined *x)
{
    double s;
    if (*fact_text(x->node, "meet.error"))
        add(x, x->node, "put it into /etc/hosts or the name server, or give an address",
            "the name of the rendezvous, %.100s, does not resolve: %s",
            fact_text(x->node, "meet.name"), fact_text(x->node, "meet.error"));
    else if (fact_number_at(x->node, "meet.seconds", &s) && s > RESOLVE_MOST_S)
        add(x, x->node, "look at the name servers in /etc/resolv.conf",
            "it took %.1f s to resolve %.100s", s, fact_text(x->node, "meet.name"));
}

/* A name as NCCL and Gloo take it: a list, of prefixes, "=" in front of exact names, "^" in front
 * of what is not to be used. */
static const json_t *find_interface(const json_t *all, const char *want)
{
    const char *name;
    json_t *one;
    bool exact = *want == '=';
    want += exact;
    size_t len = strcspn(want, ",:");
    json_object_foreach((json_t *)all, name, one)
    {
        if (strncmp(name, want, len) == 0 && (!exact || !name[len]))
            return one;
    }
    return NULL;
}

static void check_interface(struct examined *x)
{
    static const char *const names[] = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
                                        "TP_SOCKET_IFNAME", "DLCOLL_SOCKET_IFNAME"};
    const json_t *all = fact_at(x->node, "interfaces"), *vars = fact_at(x->node, "variables");
    for (size_t i = 0; all && i < ARRAY_LEN(names); i++) {
        const char *set = json_string_value(json_object_get(vars, names[i])),
                   *want = set ? set : "";
        const json_t *one = *want && *want != '^' ? find_interface(all, want) : NULL;
        char remedy[128];
        snprintf(remedy, sizeof(remedy), "set %s to one of this node (ip -br link)", names[i]);
        if (*want && *want != '^' && !one)
            add(x, x->node, remedy, "%s names %.60s, and there is no such interface", names[i],
                want);
        else if (one && !json_is_true(fact_at(one, "up")))
            add(x, x->node, "bring it up: ip link set NAME up, or look at its cable",
                "interface %.60s (%s) is down", want, names[i]);
    }
}

/* The interface by which the other nodes reach the node. */
static const json_t *own_interface(const json_t *node, const char **name)
{
    json_t *one, *a;
    size_t i;
    const char *addr = fact_text(node, "addr");
    struct netaddr n;
    if (netaddr_parse_ip(&n, addr, 0) && netaddr_is_loopback(&n))
        return NULL;
    json_object_foreach(json_object_get(node, "interfaces"), *name, one)
    {
        json_array_foreach(json_object_get(one, "addresses"), i, a)
        {
            if (strcmp(json_string_value(a), addr) == 0)
                return one;
        }
    }
    return NULL;
}

static void check_duplex(struct examined *x)
{
    const char *name;
    const json_t *one = own_interface(x->node, &name);
    if (one && strcmp(fact_text(one, "duplex"), "half") == 0)
        add(x, x->node, "look at the switch's port and the cable (ethtool)",
            "interface %s is in half duplex", name);
}

static void check_rdma(struct examined *x)
{
    const char *port;
    json_t *state;
    json_object_foreach(json_object_get(x->node, "rdma"), port, state)
    {
        if (strcmp(json_string_value(state), "ACTIVE") != 0)
            add(x, x->node,
                "look at cable and subnet manager (ibstat), or leave it out: NCCL_IB_HCA",
                "InfiniBand port %s is %s, not ACTIVE", port, json_string_value(state));
    }
}

static void check_ports(struct examined *x)
{
    double n;
    if (fact_number_at(x->node, "ports", &n) && n < PORTS_LEAST)
        add(x, x->node, "widen it: sysctl net.ipv4.ip_local_port_range='32768 60999'",
            "only %.0f ports are there for outgoing connections", n);
}

/* --------------------------------------------------------------------------------- program and
 * GPUs */

static void check_program(struct examined *x)
{
    if (*fact_text(x->node, "program_error"))
        add(x, x->node, "install the program on this node, at the same path",
            "the program cannot be started: %.250s", fact_text(x->node, "program_error"));
    else if (*fact_text(x->node, "program.lacks"))
        add(x, x->node,
            "install it on this node, or add its folder to PATH or LD_LIBRARY_PATH (-x)",
            "the program cannot be started: %.300s", fact_text(x->node, "program.lacks"));
}

static void check_python(struct examined *x)
{
    if (fact_at(x->node, "python_error"))
        add(x, x->node, "mend the interpreter, or name another one: PYTHON_EXEC",
            "%.100s does not run: %.150s", fact_text(x->node, "python_error.path"),
            fact_text(x->node, "python_error.error"));
}

static void check_gpu_driver(struct examined *x)
{
    if (*fact_text(x->node, "gpu.error"))
        add(x, x->node,
            "load the driver that fits its library (nvidia-smi says why), or restart the node",
            "its GPUs cannot be reached: %.200s", fact_text(x->node, "gpu.error"));
}

static void check_gpu_count(struct examined *x)
{
    double n;
    if (json_is_true(fact_at(x->node, "gpus")) && fact_number_at(x->node, "gpu.visible", &n) &&
        n < workers(x->node))
        add(x, x->node, "give the node more GPUs (CUDA_VISIBLE_DEVICES, --gpus), or fewer workers",
            "it has %.0f GPUs for %.0f workers", n, workers(x->node));
}

static void check_gpus(struct examined *x, void (*one)(struct examined *x, const json_t *gpu))
{
    json_t *gpu;
    size_t i;
    json_array_foreach(fact_at(x->node, "gpu.list"), i, gpu) one(x, gpu);
}

static void lost(struct examined *x, const json_t *gpu)
{
    if (json_is_true(fact_at(gpu, "lost")))
        add(x, x->node, "reset it (nvidia-smi --gpu-reset) or restart the node",
            "GPU %s does not answer", fact_text(gpu, "bus"));
}

static void in_use(struct examined *x, const json_t *gpu)
{
    double pid, used = fact_number(gpu, "used_bytes");
    char a[32];
    if (fact_number_at(gpu, "pid", &pid))
        add(x, x->node, "end that process, or leave the GPU out: CUDA_VISIBLE_DEVICES",
            "GPU %s is used by process %.0f (%s)", fact_text(gpu, "bus"), pid, size(used, a));
    else if (used >= GPU_USED_LEAST && used > fact_number(gpu, "bytes") / 20)
        add(x, x->node, "look for processes in other containers and on the host (nvidia-smi)",
            "%s of GPU %s are in use, by no process that is to be seen", size(used, a),
            fact_text(gpu, "bus"));
}

static void ecc(struct examined *x, const json_t *gpu)
{
    double n = fact_number(gpu, "ecc_uncorrected");
    if (n > 0)
        add(x, x->node, "reset it (nvidia-smi --gpu-reset); if they come again, replace it",
            "GPU %s has had %.0f uncorrected memory errors since the start", fact_text(gpu, "bus"),
            n);
    if (json_is_true(fact_at(gpu, "remap_failed")))
        add(x, x->node, "replace it", "rows of the memory of GPU %s could not be remapped",
            fact_text(gpu, "bus"));
    else if (json_is_true(fact_at(gpu, "remap_pending")))
        add(x, x->node, "reset it (nvidia-smi --gpu-reset)",
            "GPU %s has to be reset before bad rows of its memory are remapped",
            fact_text(gpu, "bus"));
}

static void pcie(struct examined *x, const json_t *gpu)
{
    double now = fact_number(gpu, "pcie_width"), most = fact_number(gpu, "pcie_width_max");
    if (now > 0 && now < most)
        add(x, x->node, "reseat the card or its riser", "GPU %s has %.0f of %.0f PCI Express lanes",
            fact_text(gpu, "bus"), now, most);
}

static void compute_mode(struct examined *x, const json_t *gpu)
{
    if (fact_number(gpu, "compute_mode") == 2)
        add(x, x->node, "allow it: nvidia-smi -c DEFAULT", "GPU %s prohibits computing",
            fact_text(gpu, "bus"));
}

static void check_gpu_lost(struct examined *x)
{
    check_gpus(x, lost);
}

static void check_gpu_idle(struct examined *x)
{
    check_gpus(x, in_use);
}

static void check_gpu_ecc(struct examined *x)
{
    check_gpus(x, ecc);
}

static void check_gpu_pcie(struct examined *x)
{
    check_gpus(x, pcie);
}

static void check_gpu_mode(struct examined *x)
{
    check_gpus(x, compute_mode);
}

static void check_gpu_mig(struct examined *x)
{
    size_t on = 0, i, all = json_array_size(fact_at(x->node, "gpu.list"));
    json_t *gpu;
    json_array_foreach(fact_at(x->node, "gpu.list"), i, gpu) on +=
        json_is_true(fact_at(gpu, "mig_mode"));
    if (on && on < all)
        add(x, x->node, "set the same mode everywhere: nvidia-smi -mig 0",
            "MIG divides some of its GPUs and not others");
}

/* ------------------------------------------------------------------------------------ a node's
 * check */

static void check_node_check(struct examined *x)
{
    const json_t *c = fact_at(x->node, "node_check"), *answer = fact_at(c, "answer"), *one;
    const char *remedy = "see what the check says on this node";
    double n;
    size_t i;
    if (*fact_text(c, "error"))
        add(x, x->node, "run it by hand, or give it more time: --check_timeout", "%.100s: %s",
            fact_text(c, "command"), fact_text(c, "error"));
    else if (fact_number_at(c, "signal", &n))
        add(x, x->node, remedy, "%.100s was killed by signal %.0f", fact_text(c, "command"), n);
    else if (fact_number_at(c, "status", &n) && n != 0)
        add(x, x->node, remedy, "%.100s ended with %.0f%s%.200s", fact_text(c, "command"), n,
            *fact_text(c, "output") ? ": " : "", fact_text(c, "output"));
    else if (json_array_size(fact_at(answer, "failed_checks")) > 0)
        json_array_foreach((json_t *)fact_at(answer, "failed_checks"), i, one)
        {
            char *word = json_dumps(one, JSON_ENCODE_ANY | JSON_COMPACT);
            const char *name = json_is_string(one) ? json_string_value(one) : word;
            add(x, x->node, remedy, "%.100s: %.200s failed", fact_text(c, "command"),
                name ? name : "");
            free(word);
        }
    else if (fact_number_at(answer, "fail_count", &n) && n > 0)
        add(x, x->node, remedy, "%.100s: %.0f checks failed", fact_text(c, "command"), n);
    else if (json_is_false(fact_at(answer, "success")) || json_is_false(fact_at(answer, "healthy")))
        add(x, x->node, remedy, "%.100s says that the node is not healthy%s%.150s",
            fact_text(c, "command"), *fact_text(answer, "message") ? ": " : "",
            fact_text(answer, "message"));
}

/* ------------------------------------------------------------------------- the nodes beside each
 * other */

/* The value that most nodes have at this path, as text; NULL: no node has one. Of values that are
 * equally common, the first one is returned. */
static char *most_common(const json_t *nodes, const char *path, size_t *count)
{
    json_t *tally = json_object(), *node, *n;
    char *best = NULL;
    size_t i;
    *count = 0;
    json_array_foreach(nodes, i, node)
    {
        const json_t *v = fact_at(node, path);
        if (fact_at(node, "missing"))
            continue;
        char *word = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : xstrdup("");
        n = json_object_get(tally, word);
        size_t k = (size_t)json_integer_value(n) + 1;
        json_object_set_new(tally, word, json_integer((json_int_t)k));
        if (k > *count) {
            *count = k;
            free(best);
            best = xstrdup(word);
        }
        free(word);
    }
    json_decref(tally);
    return best;
}

static const char *plain(const char *word, char out[96])
{
    size_t n = strlen(word);
    if (n >= 2 && word[0] == '"')
        snprintf(out, 96, "%.*s", (int)(n - 2 < 90 ? n - 2 : 90), word + 1);
    else
        snprintf(out, 96, "%s", n ? word : "none");
    return out;
}

/* Names the nodes whose value differs from that of most nodes. shown: whether the values are texts
 * for people. */
static void compare(struct examined *x, const char *path, const char *what, const char *remedy,
                    bool shown)
{
    size_t count, i;
    char *usual = most_common(x->nodes, path, &count), a[96], b[96];
    json_t *node;
    json_array_foreach(x->nodes, i, node)
    {
        const json_t *v = fact_at(node, path);
        if (fact_at(node, "missing"))
            continue;
        char *word = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : xstrdup("");
        bool same = strcmp(word, usual) == 0;
        const char *others = count == 1 ? "another node" : "most nodes";
        if (!same && shown)
            add(x, node, remedy, "%s is %s; %s: %s", what, plain(word, a),
                count == 1 ? "another node's" : "most nodes'", plain(usual, b));
        else if (!same)
            add(x, node, remedy, "%s is not that of %s", what, others);
        free(word);
    }
    free(usual);
}

/* Compares the nodes at every key that a node's `object` has. */
static void compare_keys(struct examined *x, const char *object, const char *skip,
                         const char *remedy)
{
    json_t *names = json_object(), *node, *v;
    const char *name;
    char path[160];
    size_t i;
    json_array_foreach(x->nodes, i, node)
    {
        json_object_foreach((json_t *)fact_at(node, object), name, v)
            json_object_set_new(names, name, json_true());
    }
    json_object_foreach(names, name, v)
    {
        if (strchr(name, '.') || (skip && strstr(name, skip)))
            continue;
        snprintf(path, sizeof(path), "%s.%.100s", object, name);
        compare(x, path, name, remedy, true);
    }
    json_decref(names);
}

static void check_versions(struct examined *x)
{
    compare_keys(x, "versions", NULL, "install the same version on all nodes");
}

static void check_variables(struct examined *x)
{
    compare_keys(x, "variables", "IFNAME", "set it alike on all nodes, as with --export");
}

static void check_same_program(struct examined *x)
{
    size_t n;
    char *content = most_common(x->nodes, "program.content", &n);
    if (content && *content)
        compare(x, "program.content", "the program's file",
                "copy the same file to all nodes, or use a shared folder (or --bcast)", false);
    free(content);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of a number that the nodes have there; negative: less than two have it. */
static double median_of(const json_t *nodes, double (*get)(const json_t *node, const char *path),
                        const char *path)
{
    size_t n = 0, i;
    json_t *node;
    double *all = xcalloc(json_array_size(nodes) + 1, sizeof(*all)), m = -1;
    json_array_foreach(nodes, i, node)
    {
        double v = get(node, path);
        if (v > 0)
            all[n++] = v;
    }
    qsort(all, n, sizeof(*all), compare_doubles);
    if (n > 1)
        m = all[n / 2]; /* the upper one of two: whoever has less is named */
    free(all);
    return m;
}

static double plain_number(const json_t *node, const char *path)
{
    return fact_number(node, path);
}

static double of_interface(const json_t *node, const char *path)
{
    const char *name;
    const json_t *one = own_interface(node, &name);
    return one ? fact_number(one, path) : 0;
}

static void check_mtu(struct examined *x)
{
    double usual = median_of(x->nodes, of_interface, "mtu");
    json_t *node;
    size_t i;
    const char *name;
    json_array_foreach(x->nodes, i, node)
    {
        const json_t *one = own_interface(node, &name);
        double n = one ? fact_number(one, "mtu") : 0;
        if (usual > 0 && n > 0 && n != usual)
            add(x, node, "set the same on all nodes: ip link set NAME mtu N",
                "interface %s has an MTU of %.0f; others: %.0f", name, n, usual);
    }
}

static void check_speed(struct examined *x)
{
    double usual = median_of(x->nodes, of_interface, "speed_mbit");
    json_t *node;
    size_t i;
    const char *name;
    json_array_foreach(x->nodes, i, node)
    {
        const json_t *one = own_interface(node, &name);
        double n = one ? fact_number(one, "speed_mbit") : 0;
        if (usual > 0 && n > 0 && n < usual)
            add(x, node, "look at cable, transceiver and switch port (ethtool)",
                "interface %s runs at %.0f Mbit/s; others: %.0f", name, n, usual);
    }
}

static void check_gpus_alike(struct examined *x)
{
    compare(x, "gpu.present", "the number of its GPUs",
            "look for GPUs that have fallen off the bus (dmesg | grep Xid)", true);
    json_t *node, *names = json_array(), *one;
    size_t i;
    json_array_foreach(x->nodes, i, node)
    {
        json_t *gpu, *model = NULL;
        size_t k;
        json_array_foreach(fact_at(node, "gpu.list"), k, gpu) model =
            model ? model : json_object_get(gpu, "name");
        one = json_pack("{s:O?,s:O?}", "node", json_object_get(node, "node"), "host",
                        json_object_get(node, "host"));
        if (model)
            json_object_set(one, "model", model);
        if (fact_at(node, "missing"))
            json_object_set_new(one, "missing", json_true());
        json_array_append_new(names, one);
    }
    const json_t *nodes = x->nodes;
    x->nodes = names;
    compare(x, "model", "the model of its GPUs", "use nodes with the same GPUs", true);
    x->nodes = nodes;
    json_decref(names);
}

static void check_sizes(struct examined *x)
{
    double memory = median_of(x->nodes, plain_number, "memory.bytes");
    double cpus = median_of(x->nodes, plain_number, "cpus");
    json_t *node;
    size_t i;
    char a[32], b[32];
    json_array_foreach(x->nodes, i, node)
    {
        double n = fact_number(node, "memory.bytes"), c = fact_number(node, "cpus");
        if (memory > 0 && n > 0 && n < ALIKE * memory)
            add(x, node, "look for a memory module that has failed (dmidecode -t memory)",
                "it has %s of memory; others: %s", size(n, a), size(memory, b));
        if (cpus > 0 && c > 0 && c < ALIKE * cpus)
            add(x, node, "look at CPU set and quota (taskset -p, cpu.max, cpuset.cpus)",
                "it may use %.0f CPUs; others: %.0f", c, cpus);
    }
}

/* If two nodes differ, either clock may be wrong: the problem names the second node. */
static void check_clock(struct examined *x)
{
    json_t *node;
    size_t i, n = 0;
    double *all = xcalloc(json_array_size(x->nodes) + 1, sizeof(*all)), usual;
    json_array_foreach(x->nodes, i, node)
    {
        if (fact_at(node, "clock_s"))
            all[n++] = fact_number(node, "clock_s");
    }
    qsort(all, n, sizeof(*all), compare_doubles);
    usual = n > 2 ? all[n / 2] : 0;
    free(all);
    json_array_foreach(x->nodes, i, node)
    {
        double s = fact_number(node, "clock_s") - usual, error = fact_number(node, "clock_error_s");
        if (fact_at(node, "clock_s") && fabs(s) - error > CLOCK_MOST_S)
            add(x, node, "set it: chronyc makestep, or timedatectl set-ntp true",
                "its clock is %.3g s %s %s", fabs(s), s > 0 ? "ahead of" : "behind",
                n > 2 ? "those of most nodes" : "that of the other node");
    }
}

static void check_address(struct examined *x)
{
    size_t remote = 0, i;
    json_t *node;
    struct netaddr a;
    json_array_foreach(x->nodes, i, node) remote +=
        netaddr_parse_ip(&a, fact_text(node, "addr"), 0) && !netaddr_is_loopback(&a);
    json_array_foreach(x->nodes, i, node)
    {
        if (remote && netaddr_parse_ip(&a, fact_text(node, "addr"), 0) && netaddr_is_loopback(&a))
            add(x, node, "name the network: --interface, or --local_addr",
                "the others are to reach it at %s, which is the loopback address",
                fact_text(node, "addr"));
    }
}

static void check_missing(struct examined *x)
{
    json_t *node;
    size_t i;
    json_array_foreach(x->nodes, i, node)
    {
        if (fact_at(node, "missing"))
            add(x, node, "look at the node: what of it does not answer (dmesg, df, nvidia-smi)",
                "its facts could not be collected: %s", fact_text(node, "missing"));
    }
}

/* ------------------------------------------------------------------------------------------- paths
 */

static struct paths paths_of(const struct examined *x)
{
    return (struct paths){x->nodes, x->pairs, x->check->name, x->check->stops, x->out};
}

static void check_reach(struct examined *x)
{
    const struct paths p = paths_of(x);
    paths_check_reach(&p);
}

static void check_latency(struct examined *x)
{
    const struct paths p = paths_of(x);
    paths_check_latency(&p);
}

static void check_bandwidth(struct examined *x)
{
    const struct paths p = paths_of(x);
    paths_check_bandwidth(&p);
}

/* ----------------------------------------------------------------------------------------- the
 * table */

#define STOPS true
#define WARNS false

static const struct check checks[] = {
    {"facts", STOPS, NULL, check_missing},
    {"hostname", WARNS, check_hostname, NULL},
    {"meet", STOPS, check_meet, NULL},
    {"address", STOPS, NULL, check_address},
    {"interface", STOPS, check_interface, NULL},
    {"duplex", WARNS, check_duplex, NULL},
    {"rdma", STOPS, check_rdma, NULL},
    {"ports", WARNS, check_ports, NULL},
    {"reach", STOPS, NULL, check_reach},
    {"clock", WARNS, NULL, check_clock},
    {"shm", STOPS, check_shm, NULL},
    {"memlock", STOPS, check_memlock, NULL},
    {"nofile", STOPS, check_nofile, NULL},
    {"nproc", STOPS, check_nproc, NULL},
    {"file-size", WARNS, check_file_size, NULL},
    {"address-space", WARNS, check_address_space, NULL},
    {"pids", STOPS, check_pids, NULL},
    {"threads", STOPS, check_threads, NULL},
    {"memory", STOPS, check_memory, NULL},
    {"memory-limit", STOPS, check_memory_limit, NULL},
    {"tmp", STOPS, check_tmp, NULL},
    {"log-dir", STOPS, check_log_dir, NULL},
    {"program", STOPS, check_program, check_same_program},
    {"python", STOPS, check_python, NULL},
    {"versions", WARNS, NULL, check_versions},
    {"variables", WARNS, NULL, check_variables},
    {"sizes", WARNS, NULL, check_sizes},
    {"gpu-driver", STOPS, check_gpu_driver, NULL},
    {"gpu-count", STOPS, check_gpu_count, check_gpus_alike},
    {"gpu-lost", STOPS, check_gpu_lost, NULL},
    {"gpu-idle", WARNS, check_gpu_idle, NULL},
    {"gpu-memory", STOPS, check_gpu_ecc, NULL},
    {"gpu-pcie", WARNS, check_gpu_pcie, NULL},
    {"gpu-mode", STOPS, check_gpu_mode, NULL},
    {"gpu-mig", WARNS, check_gpu_mig, NULL},
    {"node-check", STOPS, check_node_check, NULL},
    {"mtu", WARNS, NULL, check_mtu},
    {"speed", WARNS, NULL, check_speed},
    {"latency", WARNS, NULL, check_latency},
    {"bandwidth", WARNS, NULL, check_bandwidth},
};

void checks_of_node(const json_t *node, struct problems *out)
{
    struct examined x = {.node = node, .out = out};
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        x.check = &checks[i];
        if (checks[i].of_node)
            checks[i].of_node(&x);
    }
}

void checks_of_job(const json_t *nodes, const json_t *pairs, struct problems *out)
{
    struct examined x = {.nodes = nodes, .pairs = pairs, .out = out};
    size_t n;
    json_t *node;
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        x.check = &checks[i];
        json_array_foreach(nodes, n, node)
        {
            x.node = node;
            if (checks[i].of_node && !fact_at(node, "missing"))
                checks[i].of_node(&x);
        }
        x.node = NULL;
        if (checks[i].of_job)
            checks[i].of_job(&x);
    }
}
