#include "agent/placement.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/cgroup.h"
#include "core/fd.h"
#include "core/mem.h"

#if defined(__has_include)
#if __has_include(<hwloc.h>)
#include <hwloc.h>
#define HAVE_HWLOC 1
#endif
#endif

/* ------------------------------------------------------------------------------- usable CPUs */

/* This process's affinity mask. malloc'ed; CPU_FREE() it. */
static cpu_set_t *own_affinity(size_t *size)
{
    for (int cpus = CPU_SETSIZE;; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        *size = CPU_ALLOC_SIZE((size_t)cpus);
        if (set && sched_getaffinity(0, *size, set) == 0)
            return set;
        bool too_small = set && errno == EINVAL;
        CPU_FREE(set);
        if (!too_small || cpus > 1 << 20)
            return NULL;
    }
}

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
    cpu_set_t *set = own_affinity(&size);
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

/* ---------------------------------------------------------------------------------- the plan */

/* A core or a NUMA node, with those of its CPUs that we may use. */
struct unit {
    int index; /* hwloc's logical one */
    cpu_set_t *cpus;
};

struct placement {
    enum bind_mode mode;
    size_t size; /* of every set, bytes */
    struct unit *units;
    int nunits;
    int nproc;
    struct {
        int first, last; /* its units */
        cpu_set_t *cpus;
    } * workers;
};

void placement_free(struct placement *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->nunits; i++)
        CPU_FREE(p->units[i].cpus);
    for (int i = 0; p->workers && i < p->nproc; i++)
        CPU_FREE(p->workers[i].cpus);
    free(p->units);
    free(p->workers);
    free(p);
}

/* Blocks of neighbours in topology order, as even as can be; cores one after another when there are
 * more workers than cores; one NUMA node each, whose neighbours share it. */
static void deal_out(struct placement *p)
{
    p->workers = xcalloc((size_t)p->nproc, sizeof(*p->workers));
    for (int i = 0; i < p->nproc; i++) {
        int first = (int)((int64_t)i * p->nunits / p->nproc);
        int last = (int)((int64_t)(i + 1) * p->nunits / p->nproc) - 1;
        if (p->mode == BIND_CORE && p->nproc > p->nunits)
            first = last = i % p->nunits;
        else if (p->mode == BIND_NUMA)
            last = first;
        p->workers[i].first = first;
        p->workers[i].last = last;
        p->workers[i].cpus = xcalloc(1, p->size);
        for (int u = first; u <= last; u++)
            CPU_OR_S(p->size, p->workers[i].cpus, p->workers[i].cpus, p->units[u].cpus);
    }
}

#ifdef HAVE_HWLOC

#define HWLOC_FUNCTIONS(F)    \
    F(get_api_version)        \
    F(topology_init)          \
    F(topology_destroy)       \
    F(topology_load)          \
    F(topology_is_thissystem) \
    F(get_type_depth)         \
    F(get_nbobjs_by_depth)    \
    F(get_obj_by_depth)       \
    F(bitmap_next)

struct hwloc {
    void *lib;
#define DECLARE(name) __typeof__(&hwloc_##name) name;
    HWLOC_FUNCTIONS(DECLARE)
#undef DECLARE
};

static const struct {
    const char *name;
    size_t at; /* in struct hwloc */
} g_functions[] = {
#define ROW(name) {"hwloc_" #name, offsetof(struct hwloc, name)},
    HWLOC_FUNCTIONS(ROW)
#undef ROW
};

static int hwloc_new(struct hwloc *h, struct err *e)
{
    *h = (struct hwloc){.lib = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL)};
    if (!h->lib)
        return err_set(e, -ENOENT, "--bind needs hwloc, which is not installed here (%s)",
                       dlerror());
    for (size_t i = 0; i < ARRAY_LEN(g_functions); i++) {
        void *f = dlsym(h->lib, g_functions[i].name);
        if (!f) {
            dlclose(h->lib);
            return err_set(e, -ENOENT, "--bind: this host's hwloc has no %s", g_functions[i].name);
        }
        memcpy((char *)h + g_functions[i].at, &f, sizeof(f));
    }
    return 0;
}

/* Its plug-ins look for GPUs, OpenCL and PCI devices: 3 ms at the least, for nothing here. */
static int load_topology(struct hwloc *h, hwloc_topology_t *topo, struct err *e)
{
    bool quiet = !getenv("HWLOC_PLUGINS_PATH");
    if (quiet)
        setenv("HWLOC_PLUGINS_PATH", "/dev/null", 1);
    int rc = h->topology_init(topo);
    if (quiet)
        unsetenv("HWLOC_PLUGINS_PATH");
    if (rc < 0)
        return err_set(e, -EIO, "--bind: hwloc cannot be initialised");
    if (h->topology_load(*topo) < 0) {
        h->topology_destroy(*topo);
        return err_set(e, -EIO, "--bind: hwloc cannot read this host's topology");
    }
    return 0;
}

/* The usable CPUs of one object; NULL when there are none. */
static cpu_set_t *usable_in(struct hwloc *h, hwloc_obj_t obj, const cpu_set_t *allowed,
                            size_t allowed_size, size_t size)
{
    cpu_set_t *set = xcalloc(1, size);
    bool any = false;
    for (int cpu = -1; obj->cpuset && (cpu = h->bitmap_next(obj->cpuset, cpu)) >= 0;) {
        if (!allowed || CPU_ISSET_S((size_t)cpu, allowed_size, allowed)) {
            CPU_SET_S((size_t)cpu, size, set);
            any = true;
        }
    }
    if (!any) {
        free(set);
        return NULL;
    }
    return set;
}

static int find_units(struct placement *p, struct hwloc *h, hwloc_topology_t topo)
{
    int depth = h->get_type_depth(topo, p->mode == BIND_NUMA ? HWLOC_OBJ_NUMANODE : HWLOC_OBJ_CORE);
    int pus = h->get_type_depth(topo, HWLOC_OBJ_PU), highest = CPU_SETSIZE - 1;
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || h->get_nbobjs_by_depth(topo, depth) == 0)
        depth = pus; /* virtual machines may say nothing of cores */
    for (unsigned i = 0; i < h->get_nbobjs_by_depth(topo, pus); i++) {
        int cpu = (int)h->get_obj_by_depth(topo, pus, i)->os_index;
        highest = cpu > highest ? cpu : highest;
    }
    p->size = CPU_ALLOC_SIZE((size_t)highest + 1);
    /* Of a topology that a file describes (HWLOC_XMLFILE, HWLOC_SYNTHETIC) all can be planned. */
    size_t allowed_size = 0;
    cpu_set_t *allowed = h->topology_is_thissystem(topo) ? own_affinity(&allowed_size) : NULL;
    unsigned n = h->get_nbobjs_by_depth(topo, depth);
    p->units = xcalloc(n, sizeof(p->units[0]));
    for (unsigned i = 0; i < n; i++) {
        hwloc_obj_t obj = h->get_obj_by_depth(topo, depth, i);
        cpu_set_t *cpus = usable_in(h, obj, allowed, allowed_size, p->size);
        if (cpus)
            p->units[p->nunits++] = (struct unit){.index = (int)obj->logical_index, .cpus = cpus};
    }
    CPU_FREE(allowed);
    return p->nunits;
}

static int plan(struct placement *p, struct err *e)
{
    struct hwloc h;
    hwloc_topology_t topo;
    int rc = hwloc_new(&h, e);
    if (rc < 0)
        return rc;
    if (h.get_api_version() >> 16 != HWLOC_API_VERSION >> 16)
        rc = err_set(e, -ENOENT, "--bind: hwloc %u.x on this host, %u.x is needed",
                     h.get_api_version() >> 16, HWLOC_API_VERSION >> 16);
    else
        rc = load_topology(&h, &topo, e);
    if (rc == 0) {
        if (find_units(p, &h, topo) == 0)
            rc = err_set(e, -EINVAL, "--bind: hwloc sees no CPU that we may use");
        h.topology_destroy(topo);
    }
    dlclose(h.lib);
    return rc;
}

#else

static int plan(struct placement *p, struct err *e)
{
    (void)p;
    return err_set(e, -ENOENT, "--bind: this dlaunch was built without hwloc");
}

#endif

int placement_new(struct placement **out, enum bind_mode mode, int nproc, struct err *e)
{
    *out = NULL;
    if (mode == BIND_NONE)
        return 0;
    struct placement *p = xcalloc(1, sizeof(*p));
    p->mode = mode;
    p->nproc = nproc;
    int rc = plan(p, e);
    if (rc < 0) {
        placement_free(p);
        return rc;
    }
    deal_out(p);
    *out = p;
    return 0;
}

const cpu_set_t *placement_of(const struct placement *p, int local_rank, size_t *size)
{
    if (!p)
        return NULL;
    *size = p->size;
    return p->workers[local_rank].cpus;
}

/* ------------------------------------------------------------------------------- in words */

struct text {
    char *out;
    size_t cap, len;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *fmt, ...)
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
    int first, last; /* not yet written; -1 none */
    bool any;
};

static void add_number(struct ranges *r, int n)
{
    if (r->last >= 0 && n == r->last + 1) {
        r->last = n;
        return;
    }
    if (r->last >= 0) {
        put(r->to, r->any ? ",%d" : "%d", r->first);
        if (r->last > r->first)
            put(r->to, "-%d", r->last);
        r->any = true;
    }
    r->first = r->last = n;
}

const char *placement_describe(const struct placement *p, int local_rank, char *out, size_t cap)
{
    struct text t = {.out = out, .cap = cap};
    if (!p) {
        put(&t, "not bound");
        return out;
    }
    struct ranges units = {.to = &t, .last = -1}, cpus = {.to = &t, .last = -1};
    int first = p->workers[local_rank].first, last = p->workers[local_rank].last;
    const char *what = p->mode == BIND_NUMA ? "NUMA node" : "core";
    put(&t, "%s%s ", what, last > first ? "s" : "");
    for (int u = first; u <= last; u++)
        add_number(&units, p->units[u].index);
    add_number(&units, -1);
    const cpu_set_t *set = p->workers[local_rank].cpus;
    put(&t, " (%s ", CPU_COUNT_S(p->size, set) > 1 ? "CPUs" : "CPU");
    for (int cpu = 0; cpu < (int)(p->size * 8); cpu++) {
        if (CPU_ISSET_S((size_t)cpu, p->size, set))
            add_number(&cpus, cpu);
    }
    add_number(&cpus, -1);
    put(&t, ")");
    return out;
}
