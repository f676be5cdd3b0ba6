#include "agent/doctor/checks.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/doctor/paths.h"
#include "core/map.h"
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
    const struct node_facts *node;  /* the one that is looked at; NULL: all */
    const struct node_facts *nodes; /* of the job */
    size_t nnodes;
    const struct pair_list *pairs;
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

static void add(struct examined *x, const struct node_facts *node, const char *remedy,
                const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void add(struct examined *x, const struct node_facts *node, const char *remedy,
                const char *fmt, ...)
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

static double workers(const struct node_facts *node)
{
    return node->nproc > 0 ? node->nproc : 1;
}

/* A number that may be unknown, as it is added to others. */
static double or_zero(double n)
{
    return isnan(n) ? 0 : n;
}

/* -------------------------------------------------------------------------------- limits of a node
 */

static void check_nofile(struct examined *x)
{
    double n = x->node->limits.nofile, need = FILES_LEAST + FILES_WORKER * workers(x->node);
    if (n < need)
        add(x, x->node, "raise it: ulimit -Hn 65536, or LimitNOFILE= of the service",
            "the hard limit of open files is %.0f; %.0f workers need about %.0f", n,
            workers(x->node), need);
}

static void check_memlock(struct examined *x)
{
    double n = x->node->limits.memlock_bytes;
    char a[32];
    if (x->node->rdma.n > 0 && n < MEMLOCK_LEAST)
        add(x, x->node, "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity of the service",
            "%s of memory can be locked; InfiniBand and RoCE need more", size(n, a));
}

static void check_nproc(struct examined *x)
{
    double n = x->node->limits.nproc, used = or_zero(x->node->own_threads);
    double need = THREADS_WORKER * workers(x->node);
    if (n - used < need)
        add(x, x->node, "raise it: ulimit -u, or LimitNPROC= of the service",
            "the user may have %.0f processes and threads and has %.0f; %.0f workers need about "
            "%.0f more",
            n, used, workers(x->node), need);
}

static void check_file_size(struct examined *x)
{
    double n = x->node->limits.file_bytes;
    char a[32];
    if (n < GIB)
        add(x, x->node, "lift it: ulimit -f unlimited", "files may be %s long at most", size(n, a));
}

static void check_address_space(struct examined *x)
{
    double n = x->node->limits.address_space_bytes;
    char a[32];
    if (n < 64 * GIB)
        add(x, x->node, "lift it: ulimit -v unlimited",
            "a process may map %s of memory; GPUs and shared segments need more", size(n, a));
}

static void check_pids(struct examined *x)
{
    double n = x->node->cgroup.pids.free, need = THREADS_WORKER * workers(x->node);
    if (n < need)
        add(x, x->node, "raise pids.max (docker run --pids-limit, TasksMax= of the service)",
            "its cgroup allows %.0f more processes and threads (limit %.0f); %.0f workers need "
            "about %.0f",
            n, x->node->cgroup.pids.limit, workers(x->node), need);
}

static void check_threads(struct examined *x)
{
    double n = x->node->threads_left, need = THREADS_WORKER * workers(x->node);
    if (n < need)
        add(x, x->node, "raise kernel.threads-max and kernel.pid_max (sysctl)",
            "the kernel allows %.0f more threads; %.0f workers need about %.0f", n,
            workers(x->node), need);
}

static void check_memory(struct examined *x)
{
    double n = x->node->memory.available_bytes, need = MEMORY_WORKER * workers(x->node);
    char a[32], b[32];
    if (n < need)
        add(x, x->node, "end what uses the memory (ps --sort=-rss)",
            "%s of memory are available; %.0f workers need %s at least", size(n, a),
            workers(x->node), size(need, b));
}

static void check_memory_limit(struct examined *x)
{
    double n = x->node->cgroup.memory.free, need = MEMORY_WORKER * workers(x->node);
    char a[32], b[32], c[32];
    if (n < need)
        add(x, x->node, "raise memory.max (docker run --memory, the pod's limit, Slurm's --mem)",
            "its cgroup allows %s more memory (limit %s); %.0f workers need %s at least",
            size(n, a), size(x->node->cgroup.memory.limit, b), workers(x->node), size(need, c));
}

static void check_shm(struct examined *x)
{
    const struct folder_facts *f = &x->node->shm;
    double need = SHM_WORKER * workers(x->node);
    char a[32], b[32];
    need = need < SHM_LEAST ? SHM_LEAST : need;
    if (f->error)
        add(x, x->node, "mount it: mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
            "/dev/shm cannot be used: %s", f->error);
    else if (f->bytes < need)
        add(x, x->node,
            "enlarge it: docker run --shm-size=8g, an emptyDir with medium: Memory, or mount -o "
            "remount,size=50% /dev/shm",
            "/dev/shm has %s; NCCL and data loaders of %.0f workers need %s", size(f->bytes, a),
            workers(x->node), size(need, b));
    else if (f->free_bytes < need)
        add(x, x->node, "remove what ended jobs left there (ls -l /dev/shm)",
            "/dev/shm is full: %s of %s are free", size(f->free_bytes, a), size(f->bytes, b));
}

static void check_folder(struct examined *x, const struct folder_facts *f, const char *option)
{
    char a[32], remedy[128];
    snprintf(remedy, sizeof(remedy), "let the user write there, or choose another folder: %s",
             option);
    if (f->error) {
        add(x, x->node, remedy, "%.200s cannot be used: %s", f->path, f->error);
        return;
    }
    snprintf(remedy, sizeof(remedy), "remove files there, or choose another folder: %s", option);
    if (f->free_bytes < TMP_LEAST)
        add(x, x->node, remedy, "%.200s is full: %s are free", f->path, size(f->free_bytes, a));
    if (f->free_files < 100)
        add(x, x->node, remedy, "%.200s has room for only %.0f more files", f->path, f->free_files);
}

static void check_tmp(struct examined *x)
{
    check_folder(x, &x->node->tmp, "TMPDIR");
}

static void check_log_dir(struct examined *x)
{
    check_folder(x, &x->node->log_dir, "--log_dir");
}

/* ------------------------------------------------------------------------------- names and network
 */

static bool is_loopback(const struct node_facts *node, bool *known)
{
    struct netaddr a;
    *known = node->addr && netaddr_parse_ip(&a, node->addr, 0);
    return *known && netaddr_is_loopback(&a);
}

static void check_hostname(struct examined *x)
{
    const struct name_facts *own = &x->node->hostname;
    const char *chosen = fact_word(&x->node->variables, "GLOO_SOCKET_IFNAME");
    char *const *addresses = own->addresses.v;
    bool known, remote = !is_loopback(x->node, &known) && known;
    char remedy[160];
    if (!own->name)
        return;
    snprintf(remedy, sizeof(remedy), "put its address into /etc/hosts: ADDRESS %.100s", own->name);
    if (own->error)
        add(x, x->node, remedy, "its own name %.100s does not resolve: %s", own->name, own->error);
    else if (own->loopback > 0 && own->addresses.n && remote && !(chosen && *chosen))
        add(x, x->node, remedy,
            "its own name %.100s resolves to %s only, where other nodes do not reach it", own->name,
            addresses[0]);
    else if (own->seconds > RESOLVE_MOST_S)
        add(x, x->node, "look at the name servers in /etc/resolv.conf",
            "it took %.1f s to resolve its own name", own->seconds);
}

static void check_meet(struct examined *x)
{
    const struct name_facts *meet = &x->node->meet;
    if (meet->error)
        add(x, x->node, "put it into /etc/hosts or the name server, or give an address",
            "the name of the rendezvous, %.100s, does not resolve: %s", meet->name, meet->error);
    else if (meet->seconds > RESOLVE_MOST_S)
        add(x, x->node, "look at the name servers in /etc/resolv.conf",
            "it took %.1f s to resolve %.100s", meet->seconds, meet->name);
}

/* A name as NCCL and Gloo take it: a list, of prefixes, "=" in front of exact names, "^" in front
 * of what is not to be used. */
static const struct interface_facts *find_interface(const struct fact_list *all, const char *want)
{
    const struct interface_facts *one = all->v;
    bool exact = *want == '=';
    want += exact;
    size_t len = strcspn(want, ",:");
    for (size_t i = 0; i < all->n; i++) {
        if (strncmp(one[i].name, want, len) == 0 && (!exact || !one[i].name[len]))
            return &one[i];
    }
    return NULL;
}

static void check_interface(struct examined *x)
{
    static const char *const names[] = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
                                        "TP_SOCKET_IFNAME", "DLCOLL_SOCKET_IFNAME"};
    const struct fact_list *all = &x->node->interfaces;
    for (size_t i = 0; all->n && i < ARRAY_LEN(names); i++) {
        const char *want = fact_word(&x->node->variables, names[i]);
        if (!want || !*want || *want == '^')
            continue;
        const struct interface_facts *one = find_interface(all, want);
        char remedy[128];
        snprintf(remedy, sizeof(remedy), "set %s to one of this node (ip -br link)", names[i]);
        if (!one)
            add(x, x->node, remedy, "%s names %.60s, and there is no such interface", names[i],
                want);
        else if (one->up <= 0)
            add(x, x->node, "bring it up: ip link set NAME up, or look at its cable",
                "interface %.60s (%s) is down", want, names[i]);
    }
}

/* The interface by which the other nodes reach the node; NULL: it is not known. */
static const struct interface_facts *own_interface(const struct node_facts *node)
{
    const struct interface_facts *one = node->interfaces.v;
    bool known;
    if (!node->addr || is_loopback(node, &known))
        return NULL;
    for (size_t i = 0; i < node->interfaces.n; i++) {
        for (size_t k = 0; k < one[i].addresses.n; k++) {
            if (strcmp(((char *const *)one[i].addresses.v)[k], node->addr) == 0)
                return &one[i];
        }
    }
    return NULL;
}

static void check_duplex(struct examined *x)
{
    const struct interface_facts *one = own_interface(x->node);
    if (one && one->duplex && strcmp(one->duplex, "half") == 0)
        add(x, x->node, "look at the switch's port and the cable (ethtool)",
            "interface %s is in half duplex", one->name);
}

static void check_rdma(struct examined *x)
{
    const struct word_facts *port = x->node->rdma.v;
    for (size_t i = 0; i < x->node->rdma.n; i++) {
        if (strcmp(port[i].value, "ACTIVE") != 0)
            add(x, x->node,
                "look at cable and subnet manager (ibstat), or leave it out: NCCL_IB_HCA",
                "InfiniBand port %s is %s, not ACTIVE", port[i].name, port[i].value);
    }
}

static void check_ports(struct examined *x)
{
    double n = x->node->ports;
    if (n < PORTS_LEAST)
        add(x, x->node, "widen it: sysctl net.ipv4.ip_local_port_range='32768 60999'",
            "only %.0f ports are there for outgoing connections", n);
}

/* --------------------------------------------------------------------------------- program and
 * GPUs */

static void check_program(struct examined *x)
{
    if (x->node->program_error)
        add(x, x->node, "install the program on this node, at the same path",
            "the program cannot be started: %.250s", x->node->program_error);
    else if (x->node->program.lacks)
        add(x, x->node,
            "install it on this node, or add its folder to PATH or LD_LIBRARY_PATH (-x)",
            "the program cannot be started: %.300s", x->node->program.lacks);
}

static void check_python(struct examined *x)
{
    if (x->node->python_error.path)
        add(x, x->node, "mend the interpreter, or name another one: PYTHON_EXEC",
            "%.100s does not run: %.150s", x->node->python_error.path, x->node->python_error.error);
}

static void check_gpu_driver(struct examined *x)
{
    if (x->node->gpu.error)
        add(x, x->node,
            "load the driver that fits its library (nvidia-smi says why), or restart the node",
            "its GPUs cannot be reached: %.200s", x->node->gpu.error);
}

static void check_gpu_count(struct examined *x)
{
    double n = x->node->gpu.visible;
    if (x->node->gpus > 0 && n < workers(x->node))
        add(x, x->node, "give the node more GPUs (CUDA_VISIBLE_DEVICES, --gpus), or fewer workers",
            "it has %.0f GPUs for %.0f workers", n, workers(x->node));
}

static void check_gpus(struct examined *x,
                       void (*one)(struct examined *x, const struct gpu_facts *gpu))
{
    const struct gpu_facts *gpu = x->node->gpu.list.v;
    for (size_t i = 0; i < x->node->gpu.list.n; i++)
        one(x, &gpu[i]);
}

static void lost(struct examined *x, const struct gpu_facts *gpu)
{
    if (gpu->lost > 0)
        add(x, x->node, "reset it (nvidia-smi --gpu-reset) or restart the node",
            "GPU %s does not answer", gpu->bus);
}

static void in_use(struct examined *x, const struct gpu_facts *gpu)
{
    double used = gpu->used_bytes;
    char a[32];
    if (!isnan(gpu->pid))
        add(x, x->node, "end that process, or leave the GPU out: CUDA_VISIBLE_DEVICES",
            "GPU %s is used by process %.0f (%s)", gpu->bus, gpu->pid, size(used, a));
    else if (used >= GPU_USED_LEAST && used > gpu->bytes / 20)
        add(x, x->node, "look for processes in other containers and on the host (nvidia-smi)",
            "%s of GPU %s are in use, by no process that is to be seen", size(used, a), gpu->bus);
}

static void ecc(struct examined *x, const struct gpu_facts *gpu)
{
    double n = gpu->ecc_uncorrected;
    if (n > 0)
        add(x, x->node, "reset it (nvidia-smi --gpu-reset); if they come again, replace it",
            "GPU %s has had %.0f uncorrected memory errors since the start", gpu->bus, n);
    if (gpu->remap_failed > 0)
        add(x, x->node, "replace it", "rows of the memory of GPU %s could not be remapped",
            gpu->bus);
    else if (gpu->remap_pending > 0)
        add(x, x->node, "reset it (nvidia-smi --gpu-reset)",
            "GPU %s has to be reset before bad rows of its memory are remapped", gpu->bus);
}

static void pcie(struct examined *x, const struct gpu_facts *gpu)
{
    double now = gpu->pcie_width, most = gpu->pcie_width_max;
    if (now > 0 && now < most)
        add(x, x->node, "reseat the card or its riser", "GPU %s has %.0f of %.0f PCI Express lanes",
            gpu->bus, now, most);
}

static void compute_mode(struct examined *x, const struct gpu_facts *gpu)
{
    if (gpu->compute_mode == 2)
        add(x, x->node, "allow it: nvidia-smi -c DEFAULT", "GPU %s prohibits computing", gpu->bus);
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
    const struct gpu_facts *gpu = x->node->gpu.list.v;
    size_t on = 0;
    for (size_t i = 0; i < x->node->gpu.list.n; i++)
        on += gpu[i].mig_mode > 0;
    if (on && on < x->node->gpu.list.n)
        add(x, x->node, "set the same mode everywhere: nvidia-smi -mig 0",
            "MIG divides some of its GPUs and not others");
}

/* ------------------------------------------------------------------------------------ a node's
 * check */

/* What a check that has ended with 0 says in its own JSON, as NVIDIA's resiliency extension does.
 */
static void check_answer(struct examined *x, const char *command, const json_t *answer)
{
    const char *remedy = "see what the check says on this node";
    const char *message = json_string_value(json_object_get(answer, "message"));
    const json_t *failed = json_object_get(answer, "failed_checks");
    double n = json_number_value(json_object_get(answer, "fail_count"));
    json_t *one;
    size_t i;
    json_array_foreach(failed, i, one)
    {
        char *word = json_dumps(one, JSON_ENCODE_ANY | JSON_COMPACT);
        const char *name = json_is_string(one) ? json_string_value(one) : word;
        add(x, x->node, remedy, "%.100s: %.200s failed", command, name ? name : "");
        free(word);
    }
    if (json_array_size(failed) > 0)
        return;
    if (n > 0)
        add(x, x->node, remedy, "%.100s: %.0f checks failed", command, n);
    else if (json_is_false(json_object_get(answer, "success")) ||
             json_is_false(json_object_get(answer, "healthy")))
        add(x, x->node, remedy, "%.100s says that the node is not healthy%s%.150s", command,
            message && *message ? ": " : "", message ? message : "");
}

static void check_node_check(struct examined *x)
{
    const char *command = x->node->node_check.command, *error = x->node->node_check.error;
    const char *output = x->node->node_check.output ? x->node->node_check.output : "";
    double signal = x->node->node_check.signal, status = x->node->node_check.status;
    const char *remedy = "see what the check says on this node";
    if (error)
        add(x, x->node, "run it by hand, or give it more time: --check_timeout", "%.100s: %s",
            command, error);
    else if (!isnan(signal))
        add(x, x->node, remedy, "%.100s was killed by signal %.0f", command, signal);
    else if (!isnan(status) && status != 0)
        add(x, x->node, remedy, "%.100s ended with %.0f%s%.200s", command, status,
            *output ? ": " : "", output);
    else
        check_answer(x, command, x->node->node_check.answer);
}

/* ------------------------------------------------------------------------- the nodes beside each
 * other */

/* A fact as text, for comparisons; NULL: it is not known. It may be made in `out`. */
typedef const char *text_of(const struct node_facts *node, const char *name, char out[32]);

/* The value that most nodes have, "" for none; NULL: there are no nodes. Of values that are equally
 * common, the first one is returned. Borrowed of the nodes, or in `out`. */
static const char *most_common(const struct examined *x, text_of *get, const char *name,
                               size_t *count, char out[32])
{
    const char *best = NULL;
    char own[32], other[32];
    *count = 0;
    for (size_t i = 0; i < x->nnodes; i++) {
        const char *value = get(&x->nodes[i], name, own);
        size_t k = 0;
        value = value ? value : "";
        if (x->nodes[i].missing)
            continue;
        for (size_t n = 0; n < x->nnodes; n++) {
            const char *v = get(&x->nodes[n], name, other);
            k += !x->nodes[n].missing && strcmp(v ? v : "", value) == 0;
        }
        if (k > *count) {
            *count = k;
            best = value == own ? strcpy(out, own) : value;
        }
        if (*count > x->nnodes / 2)
            break;
    }
    return best;
}

/* Text as people are shown it: without characters that a terminal would obey. */
static const char *plain(const char *text, char out[96])
{
    size_t n = 0;
    for (; n < 90 && text[n]; n++)
        out[n] = (unsigned char)text[n] < ' ' || text[n] == 127 ? '?' : text[n];
    out[n] = '\0';
    return n ? out : "none";
}

/* Names the nodes whose value differs from that of most nodes. shown: whether the values are texts
 * for people. */
static void compare(struct examined *x, text_of *get, const char *name, const char *what,
                    const char *remedy, bool shown)
{
    size_t count;
    char usual_text[32], own[32], a[96], b[96];
    const char *usual = most_common(x, get, name, &count, usual_text);
    for (size_t i = 0; i < x->nnodes; i++) {
        const char *value = get(&x->nodes[i], name, own);
        value = value ? value : "";
        if (x->nodes[i].missing || strcmp(value, usual) == 0)
            continue;
        if (shown)
            add(x, &x->nodes[i], remedy, "%s is %s; %s: %s", what, plain(value, a),
                count == 1 ? "another node's" : "most nodes'", plain(usual, b));
        else
            add(x, &x->nodes[i], remedy, "%s is not that of %s", what,
                count == 1 ? "another node" : "most nodes");
    }
}

static const char *version_of(const struct node_facts *node, const char *name, char out[32])
{
    (void)out;
    return fact_word(&node->versions, name);
}

static const char *variable_of(const struct node_facts *node, const char *name, char out[32])
{
    (void)out;
    return fact_word(&node->variables, name);
}

static const char *content_of(const struct node_facts *node, const char *name, char out[32])
{
    (void)name, (void)out;
    return node->program.content;
}

static const char *gpus_of(const struct node_facts *node, const char *name, char out[32])
{
    (void)name;
    snprintf(out, 32, "%.0f", node->gpu.present);
    return isnan(node->gpu.present) ? NULL : out;
}

static const char *model_of(const struct node_facts *node, const char *name, char out[32])
{
    const struct gpu_facts *gpu = node->gpu.list.v;
    (void)name, (void)out;
    for (size_t i = 0; i < node->gpu.list.n; i++) {
        if (gpu[i].name)
            return gpu[i].name;
    }
    return NULL;
}

/* Compares the nodes by every word that one of them has in the list at this offset. */
static void compare_words(struct examined *x, size_t at, text_of *get, const char *skip,
                          const char *remedy)
{
    struct map names;
    map_init(&names);
    for (size_t i = 0; i < x->nnodes; i++) {
        const struct fact_list *l = (const void *)((const char *)&x->nodes[i] + at);
        const struct word_facts *w = l->v;
        for (size_t k = 0; k < l->n; k++) {
            void **seen = map_put(&names, w[k].name, strlen(w[k].name));
            if (!seen || *seen || (skip && strstr(w[k].name, skip)))
                continue;
            *seen = x;
            compare(x, get, w[k].name, w[k].name, remedy, true);
        }
    }
    map_fini(&names, NULL);
}

static void check_versions(struct examined *x)
{
    compare_words(x, offsetof(struct node_facts, versions), version_of, NULL,
                  "install the same version on all nodes");
}

static void check_variables(struct examined *x)
{
    compare_words(x, offsetof(struct node_facts, variables), variable_of, "IFNAME",
                  "set it alike on all nodes, as with --export");
}

static void check_same_program(struct examined *x)
{
    size_t n;
    char out[32];
    const char *content = most_common(x, content_of, "", &n, out);
    if (content && *content)
        compare(x, content_of, "", "the program's file",
                "copy the same file to all nodes, or use a shared folder (or --bcast)", false);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of a number of the nodes; negative: less than two have it. */
static double median_of(const struct examined *x, double (*get)(const struct node_facts *node))
{
    size_t n = 0;
    double *all = xcalloc(x->nnodes + 1, sizeof(*all)), m = -1;
    for (size_t i = 0; i < x->nnodes; i++) {
        double v = get(&x->nodes[i]);
        if (v > 0)
            all[n++] = v;
    }
    qsort(all, n, sizeof(*all), compare_doubles);
    if (n > 1)
        m = all[n / 2]; /* the upper one of two: whoever has less is named */
    free(all);
    return m;
}

static double memory_of(const struct node_facts *node)
{
    return node->memory.bytes;
}

static double cpus_of(const struct node_facts *node)
{
    return node->cpus;
}

static double mtu_of(const struct node_facts *node)
{
    const struct interface_facts *one = own_interface(node);
    return one ? one->mtu : NAN;
}

static double speed_of(const struct node_facts *node)
{
    const struct interface_facts *one = own_interface(node);
    return one ? one->speed_mbit : NAN;
}

static void check_mtu(struct examined *x)
{
    double usual = median_of(x, mtu_of);
    for (size_t i = 0; i < x->nnodes; i++) {
        double n = mtu_of(&x->nodes[i]);
        if (usual > 0 && n > 0 && n != usual)
            add(x, &x->nodes[i], "set the same on all nodes: ip link set NAME mtu N",
                "interface %s has an MTU of %.0f; others: %.0f", own_interface(&x->nodes[i])->name,
                n, usual);
    }
}

static void check_speed(struct examined *x)
{
    double usual = median_of(x, speed_of);
    for (size_t i = 0; i < x->nnodes; i++) {
        double n = speed_of(&x->nodes[i]);
        if (usual > 0 && n > 0 && n < usual)
            add(x, &x->nodes[i], "look at cable, transceiver and switch port (ethtool)",
                "interface %s runs at %.0f Mbit/s; others: %.0f", own_interface(&x->nodes[i])->name,
                n, usual);
    }
}

static void check_gpus_alike(struct examined *x)
{
    compare(x, gpus_of, "", "the number of its GPUs",
            "look for GPUs that have fallen off the bus (dmesg | grep Xid)", true);
    compare(x, model_of, "", "the model of its GPUs", "use nodes with the same GPUs", true);
}

static void check_sizes(struct examined *x)
{
    double memory = median_of(x, memory_of), cpus = median_of(x, cpus_of);
    char a[32], b[32];
    for (size_t i = 0; i < x->nnodes; i++) {
        double n = x->nodes[i].memory.bytes, c = x->nodes[i].cpus;
        if (memory > 0 && n > 0 && n < ALIKE * memory)
            add(x, &x->nodes[i], "look for a memory module that has failed (dmidecode -t memory)",
                "it has %s of memory; others: %s", size(n, a), size(memory, b));
        if (cpus > 0 && c > 0 && c < ALIKE * cpus)
            add(x, &x->nodes[i], "look at CPU set and quota (taskset -p, cpu.max, cpuset.cpus)",
                "it may use %.0f CPUs; others: %.0f", c, cpus);
    }
}

/* If two nodes differ, either clock may be wrong: the problem names the second node. */
static void check_clock(struct examined *x)
{
    size_t n = 0;
    double *all = xcalloc(x->nnodes + 1, sizeof(*all)), usual;
    for (size_t i = 0; i < x->nnodes; i++) {
        if (!isnan(x->nodes[i].clock_s))
            all[n++] = x->nodes[i].clock_s;
    }
    qsort(all, n, sizeof(*all), compare_doubles);
    usual = n > 2 ? all[n / 2] : 0;
    free(all);
    for (size_t i = 0; i < x->nnodes; i++) {
        double s = x->nodes[i].clock_s - usual, error = or_zero(x->nodes[i].clock_error_s);
        if (fabs(s) - error > CLOCK_MOST_S)
            add(x, &x->nodes[i], "set it: chronyc makestep, or timedatectl set-ntp true",
                "its clock is %.3g s %s %s", fabs(s), s > 0 ? "ahead of" : "behind",
                n > 2 ? "those of most nodes" : "that of the other node");
    }
}

static void check_address(struct examined *x)
{
    size_t remote = 0;
    bool known;
    for (size_t i = 0; i < x->nnodes; i++)
        remote += !is_loopback(&x->nodes[i], &known) && known;
    for (size_t i = 0; remote && i < x->nnodes; i++) {
        if (is_loopback(&x->nodes[i], &known))
            add(x, &x->nodes[i], "name the network: --interface, or --local_addr",
                "the others are to reach it at %s, which is the loopback address",
                x->nodes[i].addr);
    }
}

static void check_missing(struct examined *x)
{
    for (size_t i = 0; i < x->nnodes; i++) {
        if (x->nodes[i].missing)
            add(x, &x->nodes[i],
                "look at the node: what of it does not answer (dmesg, df, nvidia-smi)",
                "its facts could not be collected: %s", x->nodes[i].missing);
    }
}

/* ------------------------------------------------------------------------------------------- paths
 */

static struct paths paths_of(const struct examined *x)
{
    return (struct paths){x->nodes, x->nnodes, x->pairs, x->check->name, x->check->stops, x->out};
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

void checks_of_node(const struct node_facts *node, struct problems *out)
{
    struct examined x = {.node = node, .out = out};
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        x.check = &checks[i];
        if (checks[i].of_node)
            checks[i].of_node(&x);
    }
}

void checks_of_job(const struct node_facts *nodes, size_t n, const struct pair_list *pairs,
                   struct problems *out)
{
    struct examined x = {.nodes = nodes, .nnodes = n, .pairs = pairs, .out = out};
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        x.check = &checks[i];
        for (size_t k = 0; k < n; k++) {
            x.node = &nodes[k];
            if (checks[i].of_node && !nodes[k].missing)
                checks[i].of_node(&x);
        }
        x.node = NULL;
        if (checks[i].of_job)
            checks[i].of_job(&x);
    }
}
