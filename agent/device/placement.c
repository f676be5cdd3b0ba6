#include "agent/device/placement.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/process/cgroup.h"
#include "agent/device/gpu.h"
#include "agent/device/topology.h"
#include "core/fd.h"
#include "core/mem.h"

/* ---------------------------------------------------------------------------------- usable CPUs */

/* Reads "QUOTA PERIOD" or two files; 0: none at this level. */
static double quota_at(const char *dir, bool v2)
{
    char path[600], text[64];
    long long quota = 0, period = 0;
    snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
        return 0;
    if (v2) {
        if (sscanf(text, "%lld %lld", &quota, &period) != 2) /* "max 100000" */
            return 0;
    } else {
        quota = atoll(text); /* -1: none */
        snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", dir);
        if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) < 0)
            return 0;
        period = atoll(text);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

double cpu_quota(const char *dir, size_t mount_len, bool v2)
{
    char at[512];
    double least = 0;
    if (snprintf(at, sizeof(at), "%s", dir) >= (int)sizeof(at))
        return 0;
    for (;;) {
        double q = quota_at(at, v2);
        if (q > 0 && (least == 0 || q < least))
            least = q;
        char *slash = strrchr(at, '/');
        if (strlen(at) <= mount_len || !slash)
            return least;
        *slash = '\0';
    }
}

int usable_cpus(void)
{
    size_t size, mount_len;
    char dir[512];
    double quota = 0;
    cpu_set_t *set = topology_own_cpus(&size);
    int n = set ? CPU_COUNT_S(size, set) : 1;
    CPU_FREE(set);
    if (cgroup_own(NULL, dir, sizeof(dir), &mount_len))
        quota = cpu_quota(dir, mount_len, true);
    if (quota == 0 && cgroup_own("cpu", dir, sizeof(dir), &mount_len))
        quota = cpu_quota(dir, mount_len, false);
    if (quota > 0 && quota < n) {
        n = (int)quota;
        n += n < quota;
    }
    return n < 1 ? 1 : n;
}

/* ------------------------------------------------------------------------------------- the plan */

struct slot {        /* of a worker */
    int first, last; /* the units of the binding */
    int gpu;         /* place in topo.gpus; -1: none */
    int device;      /* CUDA's number of the GPU; -1: none */
    int numa;        /* of the GPU, or assigned in turn; index in topo.unit[TOPO_NUMA] */
    bool near;       /* numa is the node of its GPU */
    cpu_set_t *cpus;
};

struct placement {
    enum bind_mode mode;
    struct topology topo;
    enum topo_kind kind; /* kind of the units from first to last */
    struct slot *slots;
    int nslots; /* workers; more when there are more GPUs than workers */
    int nproc;
    const char *visible; /* during planning */
};

void placement_free(struct placement *p)
{
    if (!p)
        return;
    for (int i = 0; p->slots && i < p->nslots; i++)
        CPU_FREE(p->slots[i].cpus);
    free(p->slots);
    topology_close(&p->topo);
    free(p);
}

static bool near_gpu(enum bind_mode mode)
{
    return mode >= BIND_GPU_NODE;
}

static bool overlap(const struct placement *p, const cpu_set_t *a, const cpu_set_t *b)
{
    size_t n = p->topo.set_size / sizeof(unsigned long);
    const unsigned long *x = (const unsigned long *)a, *y = (const unsigned long *)b;
    for (size_t i = 0; i < n; i++) {
        if (x[i] & y[i])
            return true;
    }
    return false;
}

static int count_both(const struct placement *p, const cpu_set_t *a, const cpu_set_t *b)
{
    int n = 0;
    for (size_t cpu = 0; cpu < p->topo.set_size * 8; cpu++)
        n += CPU_ISSET_S(cpu, p->topo.set_size, a) && CPU_ISSET_S(cpu, p->topo.set_size, b);
    return n;
}

static void give(struct placement *p, struct slot *s, int first, int last)
{
    s->first = first;
    s->last = last;
    for (int u = first; u <= last; u++)
        CPU_OR_S(p->topo.set_size, s->cpus, s->cpus, p->topo.unit[p->kind][u].cpus);
}

/* Assigns blocks of neighbours in topology order, as even as possible. With more workers than
 * cores, cores are assigned in turn. BIND_NUMA, BIND_SOCKET: one NUMA node or socket per worker,
 * and neighbours share one. */
static void deal_out(struct placement *p)
{
    int nunits = p->topo.n[p->kind];
    for (int i = 0; i < p->nslots; i++) {
        int first = (int)((int64_t)i * nunits / p->nslots);
        int last = (int)((int64_t)(i + 1) * nunits / p->nslots) - 1;
        if (p->mode == BIND_CORE && p->nslots > nunits)
            first = last = i % nunits;
        else if (p->mode == BIND_NUMA || p->mode == BIND_SOCKET)
            last = first;
        give(p, &p->slots[i], first, last);
    }
}

/* ----------------------------------------------------------------------------- next to the GPUs */

/* Finds CUDA's devices in topo.gpus. For a machine from a file, the file's GPUs are used. */
static int placement_find_devices(struct placement *p, int *order, int max)
{
    struct topology *t = &p->topo;
    struct gpu *all = NULL;
    int n;
    if (t->this_system) {
        n = gpu_list(&all, GPU_PROC, GPU_DEV, true);
    } else {
        n = t->ngpus;
        all = xcalloc((size_t)n + 1, sizeof(*all));
        for (int i = 0; i < n; i++) {
            all[i].card = i;
            snprintf(all[i].bus, sizeof(all[i].bus), "%s", t->gpus[i].bus);
        }
    }
    int count = gpu_visible(p->visible, all, n, order, max);
    for (int i = 0; i < count; i++) {
        const char *bus = order[i] >= 0 ? all[order[i]].bus : "?";
        order[i] = -1;
        for (int g = 0; g < t->ngpus; g++) {
            if (strcmp(t->gpus[g].bus, bus) == 0)
                order[i] = g;
        }
    }
    free(all);
    return count;
}

/* A worker has the device whose number is its local rank, starting again at 0 if there are more
 * workers than devices. Devices without a worker take their share of a node, as with torchrun.
 * Workers without a device, and devices whose node is not known, get NUMA nodes in turn. */
static void slot_devices(struct placement *p, const int *order, int ndevices)
{
    for (int i = 0; i < p->nslots; i++) {
        struct slot *s = &p->slots[i];
        s->device = ndevices ? i % ndevices : -1;
        s->gpu = ndevices ? order[s->device] : -1;
        s->numa = s->gpu >= 0 ? p->topo.gpus[s->gpu].numa : -1;
        s->near = s->numa >= 0;
        if (!s->near)
            s->numa = (int)((int64_t)i * p->topo.n[TOPO_NUMA] / p->nslots);
    }
}

/* Finds the index of this slot among the slots at its NUMA node, and how many there are. */
static int place_at_node(const struct placement *p, int slot, int *of)
{
    int place = 0;
    *of = 0;
    for (int i = 0; i < p->nslots; i++) {
        bool same = p->slots[i].numa == p->slots[slot].numa;
        place += same && i < slot;
        *of += same;
    }
    return place;
}

static int lowest_cpu(const struct placement *p, const cpu_set_t *set)
{
    size_t cpu = 0;
    while (cpu < p->topo.set_size * 8 && !CPU_ISSET_S(cpu, p->topo.set_size, set))
        cpu++;
    return (int)cpu;
}

/* Lists the units of a kind at a NUMA node, as indices in topo.unit[kind], by lowest CPU;
 * `largest`: those with most CPUs first. Returns how many. */
static int units_at(const struct placement *p, enum topo_kind kind, int numa, bool largest,
                    int *out)
{
    const struct topo_unit *all = p->topo.unit[kind];
    const cpu_set_t *cpus = p->topo.unit[TOPO_NUMA][numa].cpus;
    int n = 0;
    for (int u = 0; u < p->topo.n[kind]; u++) {
        if (!overlap(p, all[u].cpus, cpus))
            continue;
        int at = n++;
        for (; at > 0; at--) {
            const cpu_set_t *a = all[out[at - 1]].cpus, *b = all[u].cpus;
            int more = count_both(p, b, cpus) - count_both(p, a, cpus);
            if (largest && more ? more < 0 : lowest_cpu(p, a) < lowest_cpu(p, b))
                break;
            out[at] = out[at - 1];
        }
        out[at] = u;
    }
    return n;
}

static int bind_slot(struct placement *p, int slot, struct err *e)
{
    struct slot *s = &p->slots[slot];
    int *units = xcalloc((size_t)p->topo.n[p->kind] + 1, sizeof(*units)), of;
    int place = place_at_node(p, slot, &of), rc = 0;
    int n = units_at(p, p->kind, s->numa, p->kind == TOPO_CACHE, units);
    if (p->kind == TOPO_NUMA) {
        give(p, s, s->numa, s->numa);
    } else if (p->kind == TOPO_SOCKET) {
        give(p, s, units[place % n], units[place % n]); /* a node may span several */
    } else if (p->kind == TOPO_CACHE) {
        give(p, s, units[place % n], units[place % n]);
        CPU_AND_S(p->topo.set_size, s->cpus, s->cpus, p->topo.unit[TOPO_NUMA][s->numa].cpus);
    } else if (n < of) {
        rc = err_set(e, -EINVAL,
                     "--numa_binding exclusive: NUMA node %d has %d core%s for %d workers or GPUs",
                     p->topo.unit[TOPO_NUMA][s->numa].index, n, n == 1 ? "" : "s", of);
    } else { /* the first ones get the remainder */
        int each = n / of, extra = n % of;
        int from = place * each + (place < extra ? place : extra);
        int to = from + each + (place < extra);
        s->first = units[from];
        s->last = units[to - 1];
        for (int i = from; i < to; i++)
            CPU_OR_S(p->topo.set_size, s->cpus, s->cpus, p->topo.unit[TOPO_CORE][units[i]].cpus);
    }
    free(units);
    return rc;
}

static int plan(struct placement *p, struct err *e)
{
    static const enum topo_kind kinds[] = {
        [BIND_NONE] = TOPO_CORE,          [BIND_CORE] = TOPO_CORE,
        [BIND_NUMA] = TOPO_NUMA,          [BIND_SOCKET] = TOPO_SOCKET,
        [BIND_GPU_NODE] = TOPO_NUMA,      [BIND_GPU_SOCKET] = TOPO_SOCKET,
        [BIND_GPU_EXCLUSIVE] = TOPO_CORE, [BIND_GPU_COMPLEX] = TOPO_CACHE,
    };
    int devices[PLACEMENT_GPUS_MAX], ndevices = 0, rc;
    bool gpus = p->mode == BIND_NONE || near_gpu(p->mode);
    const char *what = p->mode == BIND_NONE ? "--print_binding"
                       : near_gpu(p->mode)  ? "--numa_binding"
                                            : "--bind";
    if ((rc = topology_open(&p->topo, gpus, what, e)) < 0)
        return rc;
    p->kind = kinds[p->mode];
    if (gpus)
        ndevices = placement_find_devices(p, devices, PLACEMENT_GPUS_MAX);
    p->nslots = p->nproc > ndevices ? p->nproc : ndevices;
    p->slots = xcalloc((size_t)p->nslots, sizeof(*p->slots));
    for (int i = 0; i < p->nslots; i++)
        p->slots[i].cpus = xcalloc(1, p->topo.set_size);
    slot_devices(p, devices, ndevices);
    if (p->mode == BIND_CORE || p->mode == BIND_NUMA || p->mode == BIND_SOCKET)
        deal_out(p);
    for (int i = 0; near_gpu(p->mode) && i < p->nslots && rc == 0; i++)
        rc = bind_slot(p, i, e);
    return rc;
}

int placement_plan(struct placement **out, enum bind_mode mode, int nproc, const char *visible,
                   struct err *e)
{
    struct placement *p = xcalloc(1, sizeof(*p));
    *out = NULL;
    p->mode = mode;
    p->nproc = nproc;
    p->visible = visible;
    int rc = plan(p, e);
    if (rc < 0) {
        placement_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

int placement_new(struct placement **out, enum bind_mode mode, int nproc, const char *visible,
                  struct err *e)
{
    *out = NULL;
    return mode == BIND_NONE ? 0 : placement_plan(out, mode, nproc, visible, e);
}

const cpu_set_t *placement_of(const struct placement *p, int local_rank, size_t *size)
{
    if (!p || p->mode == BIND_NONE)
        return NULL;
    *size = p->topo.set_size;
    return p->slots[local_rank].cpus;
}

/* ------------------------------------------------------------------------------------- in words */

struct text {
    char *out;
    size_t cap, len;
};

static void placement_put(struct text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void placement_put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->out + t->len, t->cap - t->len, fmt, ap);
    va_end(ap);
    t->len += n < 0 ? 0 : (size_t)n;
    if (t->len >= t->cap) {
        t->len = t->cap - 1;
        if (t->cap > 4)
            memcpy(t->out + t->cap - 4, "...", 4);
    }
}

/* "0-3,8" from numbers in rising order, one at a time; end with -1. */
struct ranges {
    struct text *to;
    int first, last; /* pending range; -1: none */
    bool any;
};

static void add_number(struct ranges *r, int n)
{
    if (r->last >= 0 && n == r->last + 1) {
        r->last = n;
        return;
    }
    if (r->last >= 0) {
        placement_put(r->to, r->any ? ",%d" : "%d", r->first);
        if (r->last > r->first)
            placement_put(r->to, "-%d", r->last);
        r->any = true;
    }
    r->first = r->last = n;
}

static void put_ranges(struct text *t, const struct placement *p, const cpu_set_t *set)
{
    struct ranges cpus = {.to = t, .last = -1};
    placement_put(t, "%s ", CPU_COUNT_S(p->topo.set_size, set) > 1 ? "CPUs" : "CPU");
    for (int cpu = 0; cpu < (int)(p->topo.set_size * 8); cpu++) {
        if (CPU_ISSET_S((size_t)cpu, p->topo.set_size, set))
            add_number(&cpus, cpu);
    }
    add_number(&cpus, -1);
}

const char *placement_describe(const struct placement *p, int local_rank, char *out, size_t cap)
{
    static const char *const words[] = {[TOPO_CORE] = "core",
                                        [TOPO_CACHE] = "core complex",
                                        [TOPO_NUMA] = "NUMA node",
                                        [TOPO_SOCKET] = "socket"};
    struct text t = {.out = out, .cap = cap};
    if (!p || p->mode == BIND_NONE) {
        placement_put(&t, "not bound");
        return out;
    }
    struct ranges units = {.to = &t, .last = -1};
    const struct slot *s = &p->slots[local_rank];
    const struct topo_unit *all = p->topo.unit[p->kind];
    int nunits = 0;
    for (int u = s->first; u <= s->last; u++)
        nunits += overlap(p, all[u].cpus, s->cpus);
    placement_put(&t, "%s%s ", words[p->kind], nunits > 1 ? "s" : "");
    for (int u = s->first; u <= s->last; u++) {
        if (overlap(p, all[u].cpus, s->cpus))
            add_number(&units, all[u].index);
    }
    add_number(&units, -1);
    placement_put(&t, " (");
    put_ranges(&t, p, s->cpus);
    placement_put(&t, ")");
    return out;
}

/* ------------------------------------------------------------------------------------ the table */

/* Rates how near a card is: first by common bridges, then by the NUMA node. 0: elsewhere. */
static int nearness(const struct topo_pci *gpu, const struct topo_nic *nic)
{
    int common = topology_common(gpu, &nic->pci);
    return common ? common + 1 : gpu->numa >= 0 && gpu->numa == nic->pci.numa;
}

/* Whether no card is nearer and, if this is not an InfiniBand card, no InfiniBand card is as near.
 */
static bool is_nearest(const struct placement *p, const struct topo_pci *gpu,
                       const struct topo_nic *nic)
{
    int mine = nearness(gpu, nic);
    for (int i = 0; i < p->topo.nnics && mine; i++) {
        const struct topo_nic *other = &p->topo.nics[i];
        int theirs = nearness(gpu, other);
        if (other->ib[0] && !nic->ib[0] && theirs)
            return false;
        if (theirs > mine && (other->ib[0] || !nic->ib[0]))
            return false;
    }
    return mine > 0;
}

static const char *nic_name(const struct topo_nic *nic)
{
    return nic->ib[0] ? nic->ib : nic->net;
}

const char *placement_gpu(const struct placement *p, int local_rank, char *out, size_t cap)
{
    struct text t = {.out = out, .cap = cap};
    const struct slot *s = p ? &p->slots[local_rank] : NULL;
    if (!s || s->device < 0)
        placement_put(&t, "-");
    else if (s->gpu < 0)
        placement_put(&t, "%d (place unknown)", s->device);
    else
        placement_put(&t, "%d (%s%s)", s->device, p->topo.gpus[s->gpu].bus,
                      s->near ? "" : ", NUMA node unknown");
    return out;
}

const char *placement_nic(const struct placement *p, int local_rank, char *out, size_t cap)
{
    struct text t = {.out = out, .cap = cap};
    const struct slot *s = p ? &p->slots[local_rank] : NULL;
    for (int i = 0; s && s->gpu >= 0 && i < p->topo.nnics; i++) {
        const struct topo_nic *nic = &p->topo.nics[i];
        if (is_nearest(p, &p->topo.gpus[s->gpu], nic))
            placement_put(&t, "%s%s", t.len ? "," : "", nic_name(nic));
    }
    if (!t.len)
        placement_put(&t, "-");
    return out;
}

const char *placement_nccl(const struct placement *p, char *out, size_t cap)
{
    struct text t = {.out = out, .cap = cap};
    out[0] = '\0';
    for (int ib = 1; ib >= 0 && !t.len; ib--) {
        for (int i = 0; i < p->topo.nnics; i++) {
            const struct topo_nic *nic = &p->topo.nics[i];
            bool wanted = false;
            for (int r = 0; r < p->nproc; r++) {
                int g = p->slots[r].gpu;
                wanted = wanted || (g >= 0 && is_nearest(p, &p->topo.gpus[g], nic));
            }
            if (wanted && (nic->ib[0] != 0) == ib)
                placement_put(&t, "%s%s",
                              t.len ? ","
                              : ib  ? "NCCL_IB_HCA=="
                                    : "NCCL_SOCKET_IFNAME==",
                              nic_name(nic));
        }
    }
    return out;
}
