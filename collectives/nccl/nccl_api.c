#include "collectives/nccl/nccl_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"

struct function {
    const char *name;
    size_t at; /* in the table */
    bool optional;
};

static const struct function g_cuda_functions[] = {
#define NEEDED(name, suffix, result, args) \
    {"cu" #name suffix, offsetof(struct cuda_api, name), false},
#define OPTIONAL(name, suffix, result, args) \
    {"cu" #name suffix, offsetof(struct cuda_api, name), true},
    CUDA_FUNCTIONS(NEEDED, OPTIONAL)
#undef NEEDED
#undef OPTIONAL
};

static const struct function g_nccl_functions[] = {
#define NEEDED(name, result, args)   {"nccl" #name, offsetof(struct nccl_api, name), false},
#define OPTIONAL(name, result, args) {"nccl" #name, offsetof(struct nccl_api, name), true},
    NCCL_FUNCTIONS(NEEDED, OPTIONAL)
#undef NEEDED
#undef OPTIONAL
};

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;

/* The names are tried in turn; sonames NULL-terminated, the newest first. */
static void *open_library(const char *what, const char *env, const char *const *sonames,
                          struct err *e)
{
#ifdef WITHOUT_NCCL
    err_set(e, -ENOENT,
            "the nccl backend was left out when this libdlcoll was built (WITH_NCCL=no)");
    return NULL;
#endif
    const char *path = getenv(env);
    void *lib = NULL;
    if (path && *path) {
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!lib)
            err_set(e, -ENOENT, "%s cannot be loaded as %s says: %s", what, env, dlerror());
        return lib;
    }
    for (const char *const *s = sonames; *s && !lib; s++)
        lib = dlopen(*s, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (const char *const *s = sonames; *s && !lib; s++)
        lib = dlopen(*s, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        err_set(e, -ENOENT,
                "%s is missing: no %s is installed where the loader looks, and %s is "
                "not set",
                what, sonames[0], env);
    return lib;
}

static int fill(void *lib, const char *what, const struct function *f, size_t n, void *table,
                struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        void *p = dlsym(lib, f[i].name);
        if (!p && !f[i].optional)
            return err_set(e, -ENOENT, "%s here is too old or is none: it has no %s()", what,
                           f[i].name);
        memcpy((char *)table + f[i].at, &p, sizeof(p));
    }
    return 0;
}

static const char *const g_cuda_names[] = {"libcuda.so.1", NULL};
static struct cuda_api g_cuda;
static _Atomic(const struct cuda_api *) g_cuda_there;

static int fill_cuda(void *lib, struct err *e)
{
    int rc = fill(lib, "the CUDA driver", g_cuda_functions,
                  sizeof(g_cuda_functions) / sizeof(g_cuda_functions[0]), &g_cuda, e);
    if (rc == 0)
        atomic_store_explicit(&g_cuda_there, &g_cuda, memory_order_release);
    return rc;
}

int cuda_api_get(const struct cuda_api **out, struct err *e)
{
    int rc = 0;
    pthread_mutex_lock(&g_lock);
    if (!atomic_load(&g_cuda_there)) {
        void *lib = open_library("the CUDA driver", "DLCOLL_CUDA_LIB", g_cuda_names, e);
        rc = lib ? fill_cuda(lib, e) : -ENOENT;
    }
    pthread_mutex_unlock(&g_lock);
    *out = rc == 0 ? &g_cuda : NULL;
    return rc;
}

struct newest {
    struct link_map *object;
    char name[512];
};

/* Runs with the loader's lock held: the list does not change meanwhile. */
static int find_newest(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct newest *n = arg;
    (void)info, (void)size;
    while (n->object->l_next)
        n->object = n->object->l_next;
    if (snprintf(n->name, sizeof(n->name), "%s", n->object->l_name) >= (int)sizeof(n->name))
        n->object = NULL;
    return 1; /* one call is enough */
}

/* The object that this process has loaded last, which stays loaded from now on: the loader appends
 * to its list, so an empty `l_next` proves that no object has been loaded since. The reference is
 * never given back, as another thread may be reading the object. NULL: it has been unloaded. */
static struct link_map *pin_newest(void)
{
    struct newest n = {.object = NULL};
    struct link_map *pinned = NULL;
    void *self = dlopen(NULL, RTLD_LAZY), *again;
    if (!self || dlinfo(self, RTLD_DI_LINKMAP, &n.object) != 0)
        return NULL;
    dl_iterate_phdr(find_newest, &n);
    if (!n.object)
        return NULL;
    again = dlopen(*n.name ? n.name : NULL, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (again && dlinfo(again, RTLD_DI_LINKMAP, &pinned) == 0 && pinned == n.object)
        return pinned;
    if (again)
        dlclose(again);
    return NULL;
}

int cuda_api_if_loaded(const struct cuda_api **out, struct err *e)
{
    static _Atomic(struct link_map *) newest; /* when the driver was looked for last */
    struct link_map *n;
    int rc = 0;
    if ((*out = atomic_load_explicit(&g_cuda_there, memory_order_acquire)))
        return 0;
    if ((n = atomic_load_explicit(&newest, memory_order_acquire)) &&
        !__atomic_load_n(&n->l_next, __ATOMIC_RELAXED))
        return 0;
    const char *path = getenv("DLCOLL_CUDA_LIB");
    pthread_mutex_lock(&g_lock);
    n = pin_newest(); /* before the driver is looked for: another thread may be loading it */
    void *lib = dlopen(path && *path ? path : g_cuda_names[0], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!lib)
        atomic_store_explicit(&newest, n, memory_order_release);
    else if (!atomic_load(&g_cuda_there))
        rc = fill_cuda(lib, e);
    pthread_mutex_unlock(&g_lock);
    *out = lib && rc == 0 ? &g_cuda : NULL;
    return rc;
}

const char *cuda_strerror(const struct cuda_api *cuda, int rc)
{
    const char *text = NULL;
    return cuda->GetErrorString(rc, &text) == CUDA_OK && text ? text : "unknown CUDA error";
}

static int check_version(struct nccl_api *api, struct err *e)
{
    if (api->GetVersion(&api->version) != NCCL_OK)
        return err_set(e, -ENOENT, "NCCL does not report its version");
    int v = api->version, major = v >= 10000 ? v / 10000 : v / 1000;
    if (v < NCCL_LEAST)
        return err_set(e, -ENOENT, "NCCL here is %d.%d; 2.19 or later is needed", major,
                       v >= 10000 ? v / 100 % 100 : v / 100 % 10);
    if (major != 2)
        return err_set(e, -ENOENT, "NCCL here is version %d; this library knows version 2", major);
    log_verbose("NCCL %d.%d.%d", major, v / 100 % 100, v % 100);
    return 0;
}

int nccl_api_get(const struct nccl_api **out, struct err *e)
{
    static const char *const names[] = {"libnccl.so.2", "libnccl.so", NULL};
    static struct nccl_api api;
    static bool there;
    int rc = 0;
    pthread_mutex_lock(&g_lock);
    if (!there) {
        void *lib = open_library("NCCL", "DLCOLL_NCCL_LIB", names, e);
        rc = !lib ? -ENOENT
                  : fill(lib, "NCCL", g_nccl_functions,
                         sizeof(g_nccl_functions) / sizeof(g_nccl_functions[0]), &api, e);
        if (rc == 0)
            rc = check_version(&api, e);
        there = rc == 0;
    }
    pthread_mutex_unlock(&g_lock);
    *out = rc == 0 ? &api : NULL;
    return rc;
}

bool cuda_is_likely(void)
{
#ifdef WITHOUT_NCCL
    return false;
#endif
    return getenv("DLCOLL_CUDA_LIB") || access("/dev/nvidiactl", F_OK) == 0 ||
           access("/dev/dxg", F_OK) == 0;
}

struct copies {
    struct stat used;
    char *other;
    size_t size;
};

/* Stops at an object by that name which is another file than the one in use. */
static int find_other(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct copies *c = arg;
    const char *name = info->dlpi_name ? info->dlpi_name : "", *base = strrchr(name, '/');
    struct stat st;
    (void)size;
    if (strncmp(base ? base + 1 : name, "libnccl.so", sizeof("libnccl.so") - 1) != 0 ||
        stat(name, &st) < 0 || (st.st_ino == c->used.st_ino && st.st_dev == c->used.st_dev))
        return 0;
    snprintf(c->other, c->size, "%s", name);
    return 1;
}

bool nccl_is_loaded_twice(const struct nccl_api *api, char *used, char *other, size_t size)
{
    struct copies c = {.other = other, .size = size};
    Dl_info info;
    void *function;
    memcpy(&function, &api->GetVersion, sizeof(function));
    if (!dladdr(function, &info) || !info.dli_fname || stat(info.dli_fname, &c.used) < 0)
        return false;
    snprintf(used, size, "%s", info.dli_fname);
    return dl_iterate_phdr(find_other, &c) != 0;
}
