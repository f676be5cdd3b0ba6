#include "agent/doctor/checks.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/doctor/path_test.h"
#include "agent/report/json_text.h"
#include "core/mem.h"
#include "core/netaddr.h"

#define MIB 1048576.0
#define GIB 1073741824.0

/* Bounds below which a worker, or a library in it, is likely to fail. */
#define SHM_LEAST \
    (128 * MIB) /* Docker's default of 64 MiB is too small for NCCL and data loaders */
#define SHM_WORKER      (32 * MIB)
#define TMP_LEAST       (64 * MIB)
#define MEMORY_WORKER   (256 * MIB)
#define THREADS_WORKER  64
#define FILES_WORKER    64
#define FILES_LEAST     1024
#define PORTS_LEAST     2048
#define MEMLOCK_LEAST   (1 * GIB)
#define CLOCK_MOST_S    0.1
#define RESOLVE_MOST_S  2
#define ALIKE           0.9         /* a size that is less than so much of the others' */
#define GPU_USED_LEAST  (512 * MIB) /* without a process that is to be seen: another container's */
#define RTT_TIMES       4
#define RTT_MORE_US     500
#define RTT_MOST_US     10000
#define BANDWIDTH_SHARE 0.5
#define BANDWIDTH_SURE  1.25e9 /* above it, one connection measures the CPUs and their load */
#define BANDWIDTH_LEAST (10e6) /* bytes per second */

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

/* ---------------------------------------------------------------------------------------- reading
 */

/* The value at "a.b.c"; NULL: there is none. */
static const json_t *at(const json_t *j, const char *path)
{
    char key[64];
    while (j && *path) {
        size_t len = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)len, path);
        j = json_object_get(j, key);
        path += len + (path[len] == '.');
    }
    return j;
}

static bool number_at(const json_t *j, const char *path, double *out)
{
    const json_t *v = at(j, path);
    *out = json_number_value(v);
    return json_is_number(v);
}

static double number(const json_t *j, const char *path)
{
    return json_number_value(at(j, path));
}

static const char *text(const json_t *j, const char *path)
{
    const char *t = json_string_value(at(j, path));
    return t ? t : "";
}

/* ---------------------------------------------------------------------------------------- problems
 */

static void add(struct examined *x, const json_t *node, const char *remedy, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void add(struct examined *x, const json_t *node, const char *remedy, const char *fmt, ...)
{
    struct problems *all = x->out;
    va_list ap;
    all->p = xrealloc(all->p, (all->n + 1) * sizeof(*all->p));
    struct problem *p = &all->p[all->n++];
    *p = (struct problem){.check = x->check->name,
                          .stops = x->check->stops,
                          .node = (int)number(node, "node"),
                          .other = -1};
    snprintf(p->host, sizeof(p->host), "%s", text(node, "host"));
    snprintf(p->remedy, sizeof(p->remedy), "%s", remedy);
    va_start(ap, fmt);
    vsnprintf(p->text, sizeof(p->text), fmt, ap);
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
    double n = number(node, "nproc");
    return n > 0 ? n : 1;
}

/* -------------------------------------------------------------------------------- limits of a node
 */

static void check_nofile(struct examined *x)
{
    double n, need = FILES_LEAST + FILES_WORKER * workers(x->node);
    if (number_at(x->node, "limits.nofile", &n) && n < need)
        add(x, x->node, "raise it: ulimit -Hn 65536, or LimitNOFILE= of the service",
            "the hard limit of open files is %.0f; %.0f workers need about %.0f", n,
            workers(x->node), need);
}

static void check_memlock(struct examined *x)
{
    double n;
    char a[32];
    bool pins = json_object_size(at(x->node, "rdma")) > 0;
    if (pins && number_at(x->node, "limits.memlock_bytes", &n) && n < MEMLOCK_LEAST)
        add(x, x->node, "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity of the service",
            "%s of memory can be locked; InfiniBand and RoCE need more", size(n, a));
}

static void check_nproc(struct examined *x)
{
    double n, used = number(x->node, "own_threads"), need = THREADS_WORKER * workers(x->node);
    if (number_at(x->node, "limits.nproc", &n) && n - used < need)
        add(x, x->node, "raise it: ulimit -u, or LimitNPROC= of the service",
            "the user may have %.0f processes and threads and has %.0f; %.0f workers need about "
            "%.0f more",
            n, used, workers(x->node), need);
}

static void check_file_size(struct examined *x)
{
    double n;
    char a[32];
    if (number_at(x->node, "limits.file_bytes", &n) && n < GIB)
        add(x, x->node, "lift it: ulimit -f unlimited", "files may be %s long at most", size(n, a));
}

static void check_address_space(struct examined *x)
{
    double n;
    char a[32];
    if (number_at(x->node, "limits.address_space_bytes", &n) && n < 64 * GIB)
        add(x, x->node, "lift it: ulimit -v unlimited",
            "a process may map %s of memory; GPUs and shared segments need more", size(n, a));
}

static void check_pids(struct examined *x)
{
    double n, need = THREADS_WORKER * workers(x->node);
    if (number_at(x->node, "cgroup.pids.free", &n) && n < need)
        add(x, x->node, "raise pids.max (docker run --pids-limit, TasksMax= of the service)",
            "its cgroup allows %.0f more processes and threads (limit %.0f); %.0f workers need "
            "about %.0f",
            n, number(x->node, "cgroup.pids.limit"), workers(x->node), need);
}

static void check_threads(struct examined *x)
{
    double n, need = THREADS_WORKER * workers(x->node);
    if (number_at(x->node, "threads_left", &n) && n < need)
        add(x, x->node, "raise kernel.threads-max and kernel.pid_max (sysctl)",
            "the kernel allows %.0f more threads; %.0f workers need about %.0f", n,
            workers(x->node), need);
}

static void check_memory(struct examined *x)
{
    double n, need = MEMORY_WORKER * workers(x->node);
    char a[32], b[32];
    if (number_at(x->node, "memory.available_bytes", &n) && n < need)
        add(x, x->node, "end what uses the memory (ps --sort=-rss)",
            "%s of memory are available; %.0f workers need %s at least", size(n, a),
            workers(x->node), size(need, b));
}

static void check_memory_limit(struct examined *x)
{
    double n, need = MEMORY_WORKER * workers(x->node);
    char a[32], b[32], c[32];
    if (number_at(x->node, "cgroup.memory.free", &n) && n < need)
        add(x, x->node, "raise memory.max (docker run --memory, the pod's limit, Slurm's --mem)",
            "its cgroup allows %s more memory (limit %s); %.0f workers need %s at least",
            size(n, a), size(number(x->node, "cgroup.memory.limit"), b), workers(x->node),
            size(need, c));
}

static void check_shm(struct examined *x)
{
    double all = number(x->node, "shm.bytes"), n, need = SHM_WORKER * workers(x->node);
    char a[32], b[32];
    need = need < SHM_LEAST ? SHM_LEAST : need;
    if (*text(x->node, "shm.error"))
        add(x, x->node, "mount it: mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
            "/dev/shm cannot be used: %s", text(x->node, "shm.error"));
    else if (number_at(x->node, "shm.free_bytes", &n) && all < need)
        add(x, x->node,
            "enlarge it: docker run --shm-size=8g, an emptyDir with medium: Memory, or mount -o "
            "remount,size=50% /dev/shm",
            "/dev/shm has %s; NCCL and data loaders of %.0f workers need %s", size(all, a),
            workers(x->node), size(need, b));
    else if (number_at(x->node, "shm.free_bytes", &n) && n < need)
        add(x, x->node, "remove what ended jobs left there (ls -l /dev/shm)",
            "/dev/shm is full: %s of %s are free", size(n, a), size(all, b));
}

static void check_folder(struct examined *x, const char *what, const char *option)
{
    char key[64], a[32], remedy[128];
    double n;
    const char *path;
    snprintf(key, sizeof(key), "%s.path", what);
    path = text(x->node, key);
    snprintf(key, sizeof(key), "%s.error", what);
    snprintf(remedy, sizeof(remedy), "let the user write there, or choose another folder: %s",
             option);
    if (*text(x->node, key)) {
        add(x, x->node, remedy, "%.200s cannot be used: %s", path, text(x->node, key));
        return;
    }
    snprintf(remedy, sizeof(remedy), "remove files there, or choose another folder: %s", option);
    snprintf(key, sizeof(key), "%s.free_bytes", what);
    if (number_at(x->node, key, &n) && n < TMP_LEAST)
        add(x, x->node, remedy, "%.200s is full: %s are free", path, size(n, a));
    snprintf(key, sizeof(key), "%s.free_files", what);
    if (number_at(x->node, key, &n) && n < 100)
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
    const json_t *name = at(x->node, "hostname");
    const char *own = text(name, "name");
    struct netaddr a;
    bool remote = netaddr_parse_ip(&a, text(x->node, "addr"), 0) && !netaddr_is_loopback(&a);
    bool chosen = *text(x->node, "variables.GLOO_SOCKET_IFNAME");
    double s;
    char remedy[160];
    if (!name)
        return;
    snprintf(remedy, sizeof(remedy), "put its address into /etc/hosts: ADDRESS %.100s", own);
    if (*text(name, "error"))
        add(x, x->node, remedy, "its own name %.100s does not resolve: %s", own,
            text(name, "error"));
    else if (json_is_true(at(name, "loopback")) && remote && !chosen)
        add(x, x->node, remedy,
            "its own name %.100s resolves to %s only, where other nodes do not reach it", own,
            json_string_value(json_array_get(at(name, "addresses"), 0)));
    else if (number_at(name, "seconds", &s) && s > RESOLVE_MOST_S)
        add(x, x->node, "look at the name servers in /etc/resolv.conf",
            "it took %.1f s to resolve its own name", s);
}

static void check_meet(struct examined *x)
{
    double s;
    if (*text(x->node, "meet.error"))
        add(x, x->node, "put it into /etc/hosts or the name server, or give an address",
            "the name of the rendezvous, %.100s, does not resolve: %s", text(x->node, "meet.name"),
            text(x->node, "meet.error"));
    else if (number_at(x->node, "meet.seconds", &s) && s > RESOLVE_MOST_S)
        add(x, x->node, "look at the name servers in /etc/resolv.conf",
            "it took %.1f s to resolve %.100s", s, text(x->node, "meet.name"));
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
    const json_t *all = at(x->node, "interfaces"), *vars = at(x->node, "variables");
    for (size_t i = 0; all && i < ARRAY_LEN(names); i++) {
        const char *want = text(vars, names[i]);
        const json_t *one = *want && *want != '^' ? find_interface(all, want) : NULL;
        char remedy[128];
        snprintf(remedy, sizeof(remedy), "set %s to one of this node (ip -br link)", names[i]);
        if (*want && *want != '^' && !one)
            add(x, x->node, remedy, "%s names %.60s, and there is no such interface", names[i],
                want);
        else if (one && !json_is_true(at(one, "up")))
            add(x, x->node, "bring it up: ip link set NAME up, or look at its cable",
                "interface %.60s (%s) is down", want, names[i]);
    }
}

/* The interface by which the others reach the node. */
static const json_t *own_interface(const json_t *node, const char **name)
{
    json_t *one, *a;
    size_t i;
    const char *addr = text(node, "addr");
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
    if (one && strcmp(text(one, "duplex"), "half") == 0)
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
    if (number_at(x->node, "ports", &n) && n < PORTS_LEAST)
        add(x, x->node, "widen it: sysctl net.ipv4.ip_local_port_range='32768 60999'",
            "only %.0f ports are there for outgoing connections", n);
}

/* --------------------------------------------------------------------------------- program and
 * GPUs */

static void check_program(struct examined *x)
{
    if (*text(x->node, "program_error"))
        add(x, x->node, "install the program on this node, at the same path",
            "the program cannot be started: %.250s", text(x->node, "program_error"));
}

static void check_python(struct examined *x)
{
    if (at(x->node, "python_error"))
        add(x, x->node, "mend the interpreter, or name another one: PYTHON_EXEC",
            "%.100s does not run: %.150s", text(x->node, "python_error.path"),
            text(x->node, "python_error.error"));
}

static void check_gpu_driver(struct examined *x)
{
    if (*text(x->node, "gpu.error"))
        add(x, x->node,
            "load the driver that fits its library (nvidia-smi says why), or restart the node",
            "its GPUs cannot be reached: %.200s", text(x->node, "gpu.error"));
}

static void check_gpu_count(struct examined *x)
{
    double n;
    if (json_is_true(at(x->node, "gpus")) && number_at(x->node, "gpu.visible", &n) &&
        n < workers(x->node))
        add(x, x->node, "give the node more GPUs (CUDA_VISIBLE_DEVICES, --gpus), or fewer workers",
            "it has %.0f GPUs for %.0f workers", n, workers(x->node));
}

static void check_gpus(struct examined *x, void (*one)(struct examined *x, const json_t *gpu))
{
    json_t *gpu;
    size_t i;
    json_array_foreach(at(x->node, "gpu.list"), i, gpu) one(x, gpu);
}

static void lost(struct examined *x, const json_t *gpu)
{
    if (json_is_true(at(gpu, "lost")))
        add(x, x->node, "reset it (nvidia-smi --gpu-reset) or restart the node",
            "GPU %s does not answer", text(gpu, "bus"));
}

static void in_use(struct examined *x, const json_t *gpu)
{
    double pid, used = number(gpu, "used_bytes");
    char a[32];
    if (number_at(gpu, "pid", &pid))
        add(x, x->node, "end that process, or leave the GPU out: CUDA_VISIBLE_DEVICES",
            "GPU %s is used by process %.0f (%s)", text(gpu, "bus"), pid, size(used, a));
    else if (used >= GPU_USED_LEAST && used > number(gpu, "bytes") / 20)
        add(x, x->node, "look for processes in other containers and on the host (nvidia-smi)",
            "%s of GPU %s are in use, by no process that is to be seen", size(used, a),
            text(gpu, "bus"));
}

static void ecc(struct examined *x, const json_t *gpu)
{
    double n = number(gpu, "ecc_uncorrected");
    if (n > 0)
        add(x, x->node, "reset it (nvidia-smi --gpu-reset); if they come again, replace it",
            "GPU %s has had %.0f uncorrected memory errors since the start", text(gpu, "bus"), n);
    if (json_is_true(at(gpu, "remap_failed")))
        add(x, x->node, "replace it", "rows of the memory of GPU %s could not be remapped",
            text(gpu, "bus"));
    else if (json_is_true(at(gpu, "remap_pending")))
        add(x, x->node, "reset it (nvidia-smi --gpu-reset)",
            "GPU %s has to be reset before bad rows of its memory are remapped", text(gpu, "bus"));
}

static void pcie(struct examined *x, const json_t *gpu)
{
    double now = number(gpu, "pcie_width"), most = number(gpu, "pcie_width_max");
    if (now > 0 && now < most)
        add(x, x->node, "reseat the card or its riser", "GPU %s has %.0f of %.0f PCI Express lanes",
            text(gpu, "bus"), now, most);
}

static void compute_mode(struct examined *x, const json_t *gpu)
{
    if (number(gpu, "compute_mode") == 2)
        add(x, x->node, "allow it: nvidia-smi -c DEFAULT", "GPU %s prohibits computing",
            text(gpu, "bus"));
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
    size_t on = 0, i, all = json_array_size(at(x->node, "gpu.list"));
    json_t *gpu;
    json_array_foreach(at(x->node, "gpu.list"), i, gpu) on += json_is_true(at(gpu, "mig_mode"));
    if (on && on < all)
        add(x, x->node, "set the same mode everywhere: nvidia-smi -mig 0",
            "MIG divides some of its GPUs and not others");
}

/* ------------------------------------------------------------------------------------ a node's
 * check */

static void check_node_check(struct examined *x)
{
    const json_t *c = at(x->node, "node_check"), *answer = at(c, "answer"), *one;
    const char *remedy = "see what the check says on this node";
    double n;
    size_t i;
    if (*text(c, "error"))
        add(x, x->node, "run it by hand, or give it more time: --check_timeout", "%.100s: %s",
            text(c, "command"), text(c, "error"));
    else if (number_at(c, "signal", &n))
        add(x, x->node, remedy, "%.100s was killed by signal %.0f", text(c, "command"), n);
    else if (number_at(c, "status", &n) && n != 0)
        add(x, x->node, remedy, "%.100s ended with %.0f%s%.200s", text(c, "command"), n,
            *text(c, "output") ? ": " : "", text(c, "output"));
    else if (json_array_size(at(answer, "failed_checks")) > 0)
        json_array_foreach((json_t *)at(answer, "failed_checks"), i, one)
        {
            char *word = json_dumps(one, JSON_ENCODE_ANY | JSON_COMPACT);
            const char *name = json_is_string(one) ? json_string_value(one) : word;
            add(x, x->node, remedy, "%.100s: %.200s failed", text(c, "command"), name ? name : "");
            free(word);
        }
    else if (number_at(answer, "fail_count", &n) && n > 0)
        add(x, x->node, remedy, "%.100s: %.0f checks failed", text(c, "command"), n);
    else if (json_is_false(at(answer, "success")) || json_is_false(at(answer, "healthy")))
        add(x, x->node, remedy, "%.100s says that the node is not healthy%s%.150s",
            text(c, "command"), *text(answer, "message") ? ": " : "", text(answer, "message"));
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
        const json_t *v = at(node, path);
        if (at(node, "missing"))
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

/* Names the nodes that have something else than most. shown: whether the values are words for
 * people. */
static void compare(struct examined *x, const char *path, const char *what, const char *remedy,
                    bool shown)
{
    size_t count, i;
    char *usual = most_common(x->nodes, path, &count), a[96], b[96];
    json_t *node;
    json_array_foreach(x->nodes, i, node)
    {
        const json_t *v = at(node, path);
        if (at(node, "missing"))
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
        json_object_foreach((json_t *)at(node, object), name, v)
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
    return number(node, path);
}

static double of_interface(const json_t *node, const char *path)
{
    const char *name;
    const json_t *one = own_interface(node, &name);
    return one ? number(one, path) : 0;
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
        double n = one ? number(one, "mtu") : 0;
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
        double n = one ? number(one, "speed_mbit") : 0;
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
        json_array_foreach(at(node, "gpu.list"), k, gpu) model =
            model ? model : json_object_get(gpu, "name");
        one = json_pack("{s:O?,s:O?}", "node", json_object_get(node, "node"), "host",
                        json_object_get(node, "host"));
        if (model)
            json_object_set(one, "model", model);
        if (at(node, "missing"))
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
        double n = number(node, "memory.bytes"), c = number(node, "cpus");
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
        if (at(node, "clock_s"))
            all[n++] = number(node, "clock_s");
    }
    qsort(all, n, sizeof(*all), compare_doubles);
    usual = n > 2 ? all[n / 2] : 0;
    free(all);
    json_array_foreach(x->nodes, i, node)
    {
        double s = number(node, "clock_s") - usual, error = number(node, "clock_error_s");
        if (at(node, "clock_s") && fabs(s) - error > CLOCK_MOST_S)
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
        netaddr_parse_ip(&a, text(node, "addr"), 0) && !netaddr_is_loopback(&a);
    json_array_foreach(x->nodes, i, node)
    {
        if (remote && netaddr_parse_ip(&a, text(node, "addr"), 0) && netaddr_is_loopback(&a))
            add(x, node, "name the network: --interface, or --local_addr",
                "the others are to reach it at %s, which is the loopback address",
                text(node, "addr"));
    }
}

static void check_missing(struct examined *x)
{
    json_t *node;
    size_t i;
    json_array_foreach(x->nodes, i, node)
    {
        if (at(node, "missing"))
            add(x, node, "look at the node: what of it does not answer (dmesg, df, nvidia-smi)",
                "its facts could not be collected: %s", text(node, "missing"));
    }
}

/* ------------------------------------------------------------------------------------------- paths
 */

bool checks_figures(const json_t *pairs, struct path_figures *out)
{
    size_t n = json_array_size(pairs), k = 0, i;
    double *rtt = xcalloc(n + 1, sizeof(*rtt)), *bps = xcalloc(n + 1, sizeof(*bps));
    json_t *p;
    json_array_foreach(pairs, i, p)
    {
        if (at(p, "error"))
            continue;
        rtt[k] = number(p, "rtt_us");
        bps[k++] = number(p, "bps");
    }
    qsort(rtt, k, sizeof(*rtt), compare_doubles);
    qsort(bps, k, sizeof(*bps), compare_doubles);
    *out = (struct path_figures){.n = (int)k};
    if (k) {
        out->rtt_us = rtt[k / 4];
        out->bps = bps[k - 1 - k / 4];
    }
    free(rtt);
    free(bps);
    return k > 0;
}

static bool has_failed(const json_t *pair)
{
    return at(pair, "error") != NULL;
}

static bool is_late(const json_t *pair, const struct path_figures *f)
{
    double rtt = number(pair, "rtt_us");
    bool beside = f->n > 2 && rtt > RTT_TIMES * f->rtt_us && rtt > f->rtt_us + RTT_MORE_US;
    return !has_failed(pair) && (beside || rtt > RTT_MOST_US);
}

static bool is_narrow(const json_t *pair, const struct path_figures *f)
{
    double bps = number(pair, "bps");
    double usual = f->bps < BANDWIDTH_SURE ? f->bps : BANDWIDTH_SURE;
    bool beside = f->n > 2 && !json_is_true(at(pair, "local")); /* else it is the CPUs' */
    return !has_failed(pair) &&
           ((beside && bps < BANDWIDTH_SHARE * usual) || bps < BANDWIDTH_LEAST);
}

static bool is_bad(const json_t *pair, const struct path_figures *f)
{
    return has_failed(pair) || is_late(pair, f) || is_narrow(pair, f);
}

/* How many times worse than usual. */
static double badness(const json_t *pair, const struct path_figures *f)
{
    double late = f->rtt_us > 0 ? number(pair, "rtt_us") / f->rtt_us : 1;
    double narrow = number(pair, "bps") > 0 ? f->bps / number(pair, "bps") : 1e9;
    return has_failed(pair) ? 1e12 : late > narrow ? late : narrow;
}

static json_t *find_pair(const json_t *pairs, int a, int b)
{
    json_t *p;
    size_t i;
    json_array_foreach(pairs, i, p)
    {
        if ((number(p, "a") == a && number(p, "b") == b) ||
            (number(p, "a") == b && number(p, "b") == a))
            return p;
    }
    return NULL;
}

void checks_take_pair(json_t *pairs, json_t *pair)
{
    json_t *old = find_pair(pairs, (int)number(pair, "a"), (int)number(pair, "b"));
    double times = number(old, "measured") + 1;
    if (!old) {
        json_array_append(pairs, pair);
        old = pair;
    } else if (has_failed(old) && !has_failed(pair)) {
        json_object_clear(old);
        json_object_update(old, pair);
    } else if (!has_failed(pair)) {
        if (number(pair, "rtt_us") < number(old, "rtt_us"))
            json_object_set(old, "rtt_us", json_object_get(pair, "rtt_us"));
        if (number(pair, "bps") > number(old, "bps"))
            json_object_set(old, "bps", json_object_get(pair, "bps"));
    }
    json_object_set_new(old, "measured", json_real(times));
}

int checks_suspects(const json_t *pairs, int nnodes, int (*out)[2], int max)
{
    struct path_figures f;
    json_t *p;
    size_t i;
    int n = 0;
    double *worst = xcalloc((size_t)max + 1, sizeof(*worst));
    bool *suspect = xcalloc((size_t)nnodes, sizeof(*suspect));
    checks_figures(pairs, &f);
    json_array_foreach(pairs, i, p)
    {
        int a = (int)number(p, "a"), b = (int)number(p, "b"), k;
        double bad = badness(p, &f);
        if (!is_bad(p, &f) || number(p, "measured") > (has_failed(p) ? 1 : 3))
            continue;
        suspect[a] = suspect[b] = true;
        for (k = n < max ? n++ : max; k > 0 && worst[k - 1] < bad; k--) {
            if (k == max)
                continue;
            worst[k] = worst[k - 1];
            memcpy(out[k], out[k - 1], sizeof(out[k]));
        }
        if (k == max)
            continue;
        worst[k] = bad;
        out[k][0] = a;
        out[k][1] = b;
    }
    int good = 0, bad_pairs = n;
    while (good < nnodes && suspect[good])
        good++;
    for (int k = 0; k < bad_pairs && good < nnodes; k++) {
        for (int side = 0; side < 2; side++) {
            int node = out[k][side];
            if (!suspect[node] || find_pair(pairs, node, good) || n >= max)
                continue;
            suspect[node] = false; /* once is enough */
            out[n][0] = node;
            out[n++][1] = good;
        }
    }
    free(worst);
    free(suspect);
    return n;
}

/* How a path is bad, in words. */
static void describe_path(const json_t *pair, const struct path_figures *f, char out[256])
{
    double rtt = number(pair, "rtt_us"), bps = number(pair, "bps");
    if (is_late(pair, f) && f->n > 2)
        snprintf(out, 256, "latency is %.0f us (usual: %.0f us)", rtt, f->rtt_us);
    else if (is_late(pair, f))
        snprintf(out, 256, "latency is %.1f ms", rtt / 1e3);
    else if (f->n > 2)
        snprintf(out, 256, "bandwidth is %.3g MB/s (usual: %.3g MB/s)", bps / 1e6, f->bps / 1e6);
    else
        snprintf(out, 256, "bandwidth is %.3g MB/s", bps / 1e6);
}

/* Whether the node is what is wrong with its paths, and not the other ends: most of them are bad
 * in this way, and there is more than one. */
static bool is_guilty(const json_t *pairs, const struct path_figures *f, int node,
                      bool (*bad)(const json_t *pair, const struct path_figures *f))
{
    int all = 0, of_it = 0;
    json_t *p;
    size_t i;
    json_array_foreach(pairs, i, p)
    {
        if (number(p, "a") != node && number(p, "b") != node)
            continue;
        all++;
        of_it += bad(p, f);
    }
    return of_it > 1 && of_it * 2 > all;
}

static const json_t *node_of(const json_t *nodes, int node)
{
    json_t *j;
    size_t i;
    json_array_foreach(nodes, i, j)
    {
        if (number(j, "node") == node)
            return j;
    }
    return NULL;
}

/* Names guilty nodes once, with the worst of their paths; of other bad paths, both ends. */
static void check_paths(struct examined *x,
                        bool (*bad)(const json_t *pair, const struct path_figures *f),
                        const char *remedy)
{
    struct path_figures f;
    json_t *p, *node;
    size_t i;
    char words[256];
    if (!checks_figures(x->pairs, &f))
        return;
    json_array_foreach(x->nodes, i, node)
    {
        const json_t *worst = NULL;
        int me = (int)number(node, "node");
        size_t k;
        if (!is_guilty(x->pairs, &f, me, bad))
            continue;
        json_array_foreach(x->pairs, k, p)
        {
            if ((number(p, "a") == me || number(p, "b") == me) && bad(p, &f) &&
                (!worst || badness(p, &f) > badness(worst, &f)))
                worst = p;
        }
        describe_path(worst, &f, words);
        add(x, node, remedy, "its %s", words);
    }
    json_array_foreach(x->pairs, i, p)
    {
        int a = (int)number(p, "a"), b = (int)number(p, "b");
        if (!bad(p, &f) || is_guilty(x->pairs, &f, a, bad) || is_guilty(x->pairs, &f, b, bad))
            continue;
        const json_t *one = node_of(x->nodes, a), *other = node_of(x->nodes, b);
        describe_path(p, &f, words);
        add(x, one, remedy, "the path to %s (node %d): its %s", text(other, "host"), b, words);
        x->out->p[x->out->n - 1].other = b;
    }
}

static void check_latency(struct examined *x)
{
    check_paths(x, is_late, "look at its link and switch (ethtool -S, tc qdisc, traceroute)");
}

static void check_bandwidth(struct examined *x)
{
    check_paths(x, is_narrow, "look at its link: speed, errors, limits (ethtool, tc qdisc)");
}

/* Why a connection did not come about, and what helps. */
static const char *explain(const json_t *error, char out[128])
{
    int stage = (int)number(error, "stage"), code = (int)number(error, "errno");
    if (stage == PATH_TEST_BULK && code == ETIMEDOUT) {
        snprintf(out, 128, "small packets arrive and large ones do not");
        return "set the same MTU on all nodes and switches (ip link set NAME mtu N)";
    }
    if (code == ETIMEDOUT) {
        snprintf(out, 128, "%s", stage == PATH_TEST_CONNECT ? "nothing answers" : "it is cut off");
        return "let the firewall pass all TCP ports between the nodes (nft list ruleset)";
    }
    snprintf(out, 128, "%s", strerror(code));
    if (code == ENETUNREACH || code == EHOSTUNREACH)
        return "look at its routes and addresses (ip route get ADDRESS), or name the network: "
               "--interface";
    if (code == ECONNREFUSED)
        return "let the firewall pass all TCP ports between the nodes, or give the right address: "
               "--local_addr";
    return "look at the network between the two nodes";
}

static bool does_not_reach(const json_t *pair, const struct path_figures *f)
{
    (void)f;
    return has_failed(pair);
}

/* "to" is the node that is not reached, "at" the one that has tried. */
static void check_reach(struct examined *x)
{
    struct path_figures f;
    json_t *p;
    size_t i;
    char why[128];
    bool *named = xcalloc(json_array_size(x->nodes) + 1, sizeof(*named));
    checks_figures(x->pairs, &f);
    json_array_foreach(x->pairs, i, p)
    {
        const json_t *error = at(p, "error");
        int from = (int)number(error, "at"), to = (int)number(error, "to");
        const json_t *one = node_of(x->nodes, to), *other = node_of(x->nodes, from);
        if (!error)
            continue;
        const char *remedy = explain(error, why);
        bool it = is_guilty(x->pairs, &f, to, does_not_reach);
        bool they = is_guilty(x->pairs, &f, from, does_not_reach);
        if (they && !it) { /* who reaches nobody is what is wrong */
            if (!named[from])
                add(x, other, remedy, "it does not reach %s at %s: %s", text(one, "host"),
                    text(one, "addr"), why);
            named[from] = true;
            continue;
        }
        if (it && named[to])
            continue;
        named[to] |= it;
        add(x, one, remedy, "%s (node %d) does not reach its port at %s: %s", text(other, "host"),
            from, text(one, "addr"), why);
        x->out->p[x->out->n - 1].other = it ? -1 : from;
    }
    free(named);
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
            if (checks[i].of_node && !at(node, "missing"))
                checks[i].of_node(&x);
        }
        x.node = NULL;
        if (checks[i].of_job)
            checks[i].of_job(&x);
    }
}

static bool is_same(const struct problem *a, const struct problem *b)
{
    return a->check == b->check && a->other == b->other && strcmp(a->text, b->text) == 0 &&
           strcmp(a->remedy, b->remedy) == 0;
}

#define HOSTS_NAMED 3

/* "n0, n1, n2 and 5 more (nodes 0-7): " of the problem with this index, and of all that are like
 * it.
 */
static void print_nodes(FILE *f, const struct problems *all, size_t first)
{
    int n = 0, from = -1, to = -2;
    for (size_t i = first; i < all->n; i++) {
        if (is_same(&all->p[i], &all->p[first]) && n++ < HOSTS_NAMED)
            fprintf(f, "%s%s", n > 1 ? ", " : "", all->p[i].host);
    }
    if (n > HOSTS_NAMED)
        fprintf(f, " and %d more", n - HOSTS_NAMED);
    fprintf(f, n > 1 ? " (nodes " : " (node ");
    for (size_t i = first; i <= all->n; i++) {
        bool one = i < all->n && is_same(&all->p[i], &all->p[first]);
        if (one && all->p[i].node == to + 1) {
            to++;
        } else if (one || i == all->n) {
            if (from >= 0)
                fprintf(f, to > from ? "%d-%d" : "%d", from, to);
            if (from >= 0 && one)
                fprintf(f, ",");
            from = to = one ? all->p[i].node : to;
        }
    }
    fprintf(f, "): ");
}

char *problems_text(const struct problems *all)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    for (size_t i = 0; i < all->n; i++) {
        const struct problem *p = &all->p[i];
        size_t k = 0;
        while (!is_same(&all->p[k], p))
            k++;
        if (k < i)
            continue; /* it is in an earlier line */
        print_nodes(f, all, i);
        fprintf(f, "%s: %s; %s\n", p->check, p->text, p->remedy);
    }
    fclose(f);
    return text;
}

json_t *problem_json(const struct problem *p)
{
    json_t *j = json_pack("{s:s,s:i,s:o,s:o,s:o,s:b}", "check", p->check, "node", p->node, "host",
                          json_of_text(p->host), "text", json_of_text(p->text), "remedy",
                          json_of_text(p->remedy), "stops", (int)p->stops);
    if (p->other >= 0)
        json_object_set_new(j, "other", json_integer(p->other));
    return j;
}

void problems_fini(struct problems *p)
{
    free(p->p);
    *p = (struct problems){0};
}
