#include "agent/device/topology.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#if defined(__has_include)
#if __has_include(<hwloc.h>)
#include <hwloc.h>
#define HAVE_HWLOC 1
#endif
#endif

cpu_set_t *topology_own_cpus(size_t *size)
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

int topology_common(const struct topo_pci *a, const struct topo_pci *b)
{
    int n = 0;
    while (n < a->npath && n < b->npath && a->path[n] == b->path[n])
        n++;
    return n;
}

void topology_close(struct topology *t)
{
    for (int kind = 0; kind < TOPO_KINDS; kind++) {
        for (int i = 0; i < t->n[kind]; i++)
            free(t->unit[kind][i].cpus);
        free(t->unit[kind]);
    }
    free(t->gpus);
    free(t->nics);
    *t = (struct topology){0};
}

#ifdef HAVE_HWLOC

#define PCI_VENDOR_NVIDIA 0x10de
#define PCI_CLASS_DISPLAY 0x03 /* VGA 0x0300 and 3D 0x0302 */
#define DEVICES_MAX       4096

#define HWLOC_FUNCTIONS(F)          \
    F(get_api_version)              \
    F(topology_init)                \
    F(topology_destroy)             \
    F(topology_load)                \
    F(topology_set_io_types_filter) \
    F(topology_is_thissystem)       \
    F(get_type_depth)               \
    F(get_nbobjs_by_depth)          \
    F(get_obj_by_depth)             \
    F(bitmap_next)                  \
    F(bitmap_isincluded)

struct hwloc {
    void *lib;
    const char *what;
    hwloc_topology_t topo;
    cpu_set_t *allowed; /* NULL: all */
    size_t allowed_size;
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

static int load_library(struct hwloc *h, struct err *e)
{
    h->lib = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    if (!h->lib)
        return err_set(e, -ENOENT, "%s needs hwloc, which is not installed here (%s)", h->what,
                       dlerror());
    for (size_t i = 0; i < ARRAY_LEN(g_functions); i++) {
        void *f = dlsym(h->lib, g_functions[i].name);
        if (!f)
            return err_set(e, -ENOENT, "%s: this host's hwloc has no %s", h->what,
                           g_functions[i].name);
        memcpy((char *)h + g_functions[i].at, &f, sizeof(f));
    }
    unsigned version = h->get_api_version();
    if (version >> 16 != HWLOC_API_VERSION >> 16)
        return err_set(e, -ENOENT, "%s: hwloc %u.x on this host, %u.x is needed", h->what,
                       version >> 16, (unsigned)(HWLOC_API_VERSION >> 16));
    return 0;
}

/* hwloc's plug-ins ask drivers and OpenCL about devices, which takes 3 ms or more and finds nothing
 * that is needed here. hwloc reads the PCI buses from sysfs itself. */
static int load_topology(struct hwloc *h, bool devices, struct err *e)
{
    bool quiet = !getenv("HWLOC_PLUGINS_PATH");
    if (quiet)
        setenv("HWLOC_PLUGINS_PATH", "/dev/null", 1);
    int rc = h->topology_init(&h->topo);
    if (quiet)
        unsetenv("HWLOC_PLUGINS_PATH");
    if (rc < 0)
        return err_set(e, -EIO, "%s: hwloc cannot be initialised", h->what);
    if (devices)
        h->topology_set_io_types_filter(h->topo, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (h->topology_load(h->topo) < 0) {
        h->topology_destroy(h->topo);
        h->topo = NULL;
        return err_set(e, -EIO, "%s: hwloc cannot read this host's topology", h->what);
    }
    return 0;
}

/* Returns the usable CPUs of one object; NULL if it has none. */
static cpu_set_t *usable_in(const struct hwloc *h, hwloc_obj_t obj, size_t size)
{
    cpu_set_t *set = xcalloc(1, size);
    bool any = false;
    for (int cpu = -1; obj->cpuset && (cpu = h->bitmap_next(obj->cpuset, cpu)) >= 0;) {
        if (!h->allowed || CPU_ISSET_S((size_t)cpu, h->allowed_size, h->allowed)) {
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

static void find_units(struct topology *t, const struct hwloc *h, enum topo_kind kind, int depth)
{
    unsigned n = h->get_nbobjs_by_depth(h->topo, depth);
    t->unit[kind] = xcalloc(n, sizeof(t->unit[kind][0]));
    for (unsigned i = 0; i < n; i++) {
        hwloc_obj_t obj = h->get_obj_by_depth(h->topo, depth, i);
        cpu_set_t *cpus = usable_in(h, obj, t->set_size);
        if (cpus)
            t->unit[kind][t->n[kind]++] =
                (struct topo_unit){.index = (int)obj->logical_index, .cpus = cpus};
    }
}

static bool overlap(const cpu_set_t *a, const cpu_set_t *b, size_t size)
{
    const unsigned long *x = (const unsigned long *)a, *y = (const unsigned long *)b;
    for (size_t i = 0; i < size / sizeof(*x); i++) {
        if (x[i] & y[i])
            return true;
    }
    return false;
}

/* Memory of another kind (HBM, of a GPU, behind CXL) is a NUMA node over CPUs that have a node
 * already. Of nodes over the same CPUs the one with fewest CPUs stands for them, of equal ones the
 * first, so that each CPU has one node. */
static void drop_further_nodes(struct topology *t)
{
    struct topo_unit *all = t->unit[TOPO_NUMA];
    int n = t->n[TOPO_NUMA], kept = 0;
    bool *drop = xcalloc((size_t)n + 1, sizeof(*drop));
    for (int i = 0; i < n; i++) {
        int mine = CPU_COUNT_S(t->set_size, all[i].cpus);
        for (int k = 0; k < n && !drop[i]; k++) {
            int theirs = CPU_COUNT_S(t->set_size, all[k].cpus);
            bool stands = theirs < mine || (theirs == mine && k < i);
            drop[i] = k != i && stands && overlap(all[i].cpus, all[k].cpus, t->set_size);
        }
    }
    for (int i = 0; i < n; i++) {
        if (drop[i])
            free(all[i].cpus);
        else
            all[kept++] = all[i];
    }
    t->n[TOPO_NUMA] = kept;
    free(drop);
}

/* Returns the last level of cache, which a core complex shares. */
static int cache_depth(const struct hwloc *h)
{
    static const hwloc_obj_type_t levels[] = {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE,
                                              HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE,
                                              HWLOC_OBJ_L1CACHE};
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        int depth = h->get_type_depth(h->topo, levels[i]);
        if (depth >= 0)
            return depth;
    }
    return HWLOC_TYPE_DEPTH_UNKNOWN;
}

static void find_all_units(struct topology *t, const struct hwloc *h)
{
    int pus = h->get_type_depth(h->topo, HWLOC_OBJ_PU), highest = CPU_SETSIZE - 1;
    for (unsigned i = 0; i < h->get_nbobjs_by_depth(h->topo, pus); i++) {
        int cpu = (int)h->get_obj_by_depth(h->topo, pus, i)->os_index;
        highest = cpu > highest ? cpu : highest;
    }
    t->set_size = CPU_ALLOC_SIZE((size_t)highest + 1);
    const int depths[TOPO_KINDS] = {
        [TOPO_CORE] = h->get_type_depth(h->topo, HWLOC_OBJ_CORE),
        [TOPO_CACHE] = cache_depth(h),
        [TOPO_NUMA] = h->get_type_depth(h->topo, HWLOC_OBJ_NUMANODE),
        [TOPO_SOCKET] = h->get_type_depth(h->topo, HWLOC_OBJ_PACKAGE),
    };
    for (int kind = 0; kind < TOPO_KINDS; kind++) {
        /* Virtual machines may hide cores, caches or sockets. */
        int fallback = kind == TOPO_CORE ? pus : 0;
        bool known = depths[kind] != HWLOC_TYPE_DEPTH_UNKNOWN &&
                     depths[kind] != HWLOC_TYPE_DEPTH_MULTIPLE &&
                     h->get_nbobjs_by_depth(h->topo, depths[kind]) > 0;
        find_units(t, h, (enum topo_kind)kind, known ? depths[kind] : fallback);
    }
    drop_further_nodes(t);
}

/* ---------------------------------------------------------------------------------- PCI devices */

/* Finds the memory node of a device: the only node with usable CPUs of the closest object above the
 * device that has CPUs. */
static int numa_of(const struct topology *t, const struct hwloc *h, hwloc_obj_t obj)
{
    int depth = h->get_type_depth(h->topo, HWLOC_OBJ_NUMANODE), found = -1;
    while (obj && !obj->cpuset)
        obj = obj->parent;
    for (unsigned i = 0; obj && i < h->get_nbobjs_by_depth(h->topo, depth); i++) {
        hwloc_obj_t numa = h->get_obj_by_depth(h->topo, depth, i);
        for (int u = 0; u < t->n[TOPO_NUMA]; u++) {
            if (t->unit[TOPO_NUMA][u].index != (int)numa->logical_index ||
                !h->bitmap_isincluded(numa->nodeset, obj->nodeset))
                continue;
            if (found >= 0)
                return -1;
            found = u;
        }
    }
    return found;
}

static struct topo_pci pci_of(const struct topology *t, const struct hwloc *h, hwloc_obj_t obj)
{
    struct topo_pci p = {.numa = numa_of(t, h, obj)};
    uint64_t up[TOPO_PATH_MAX];
    snprintf(p.bus, sizeof(p.bus), "%04x:%02x:%02x.%x", obj->attr->pcidev.domain,
             obj->attr->pcidev.bus, obj->attr->pcidev.dev, obj->attr->pcidev.func);
    for (hwloc_obj_t a = obj->parent; a && p.npath < TOPO_PATH_MAX; a = a->parent) {
        if (a->type == HWLOC_OBJ_BRIDGE)
            up[p.npath++] = a->gp_index;
    }
    for (int i = 0; i < p.npath; i++)
        p.path[i] = up[p.npath - 1 - i];
    return p;
}

static void find_nic(struct topology *t, const struct hwloc *h, hwloc_obj_t dev)
{
    struct topo_nic nic = {.pci = pci_of(t, h, dev)};
    for (hwloc_obj_t io = dev->io_first_child; io; io = io->next_sibling) {
        if (io->type != HWLOC_OBJ_OS_DEVICE || !io->name)
            continue;
        if (io->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
            snprintf(nic.ib, sizeof(nic.ib), "%s", io->name);
        else if (io->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && !nic.net[0])
            snprintf(nic.net, sizeof(nic.net), "%s", io->name);
    }
    if (nic.ib[0] || nic.net[0])
        t->nics[t->nnics++] = nic;
}

static int by_bus(const void *a, const void *b)
{
    return strcmp(((const struct topo_pci *)a)->bus, ((const struct topo_pci *)b)->bus);
}

static void topology_find_devices(struct topology *t, const struct hwloc *h)
{
    unsigned n = h->get_nbobjs_by_depth(h->topo, HWLOC_TYPE_DEPTH_PCI_DEVICE);
    n = n > DEVICES_MAX ? DEVICES_MAX : n;
    t->gpus = xcalloc(n + 1, sizeof(*t->gpus));
    t->nics = xcalloc(n + 1, sizeof(*t->nics));
    for (unsigned i = 0; i < n; i++) {
        hwloc_obj_t dev = h->get_obj_by_depth(h->topo, HWLOC_TYPE_DEPTH_PCI_DEVICE, i);
        const struct hwloc_pcidev_attr_s *a = &dev->attr->pcidev;
        if (a->vendor_id == PCI_VENDOR_NVIDIA && a->class_id >> 8 == PCI_CLASS_DISPLAY)
            t->gpus[t->ngpus++] = pci_of(t, h, dev);
        else
            find_nic(t, h, dev);
    }
    qsort(t->gpus, (size_t)t->ngpus, sizeof(*t->gpus), by_bus);
}

int topology_open(struct topology *t, bool devices, const char *what, struct err *e)
{
    struct hwloc h = {.what = what};
    *t = (struct topology){0};
    int rc = load_library(&h, e);
    if (rc == 0)
        rc = load_topology(&h, devices, e);
    if (rc == 0) {
        t->this_system = h.topology_is_thissystem(h.topo);
        h.allowed = t->this_system ? topology_own_cpus(&h.allowed_size) : NULL;
        find_all_units(t, &h);
        if (devices)
            topology_find_devices(t, &h);
        CPU_FREE(h.allowed);
        h.topology_destroy(h.topo);
        if (t->n[TOPO_CORE] == 0 || t->n[TOPO_NUMA] == 0) {
            topology_close(t);
            rc = err_set(e, -EINVAL, "%s: hwloc sees no CPU that we may use", what);
        }
    }
    if (h.lib)
        dlclose(h.lib);
    return rc;
}

#else

int topology_open(struct topology *t, bool devices, const char *what, struct err *e)
{
    (void)devices;
    *t = (struct topology){0};
    return err_set(e, -ENOENT, "%s: this dlaunch was built without hwloc", what);
}

#endif
