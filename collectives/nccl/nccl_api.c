#include "collectives/nccl/nccl_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"

struct function {
    const char *name;
    size_t at; /* in the table */
    bool optional;
};

static const struct function g_cuda_functions[] = {
#define NEEDED(name, result, args)   {"cuda" #name, offsetof(struct cuda_api, name), false},
#define OPTIONAL(name, result, args) {"cuda" #name, offsetof(struct cuda_api, name), true},
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

int cuda_api_get(const struct cuda_api **out, struct err *e)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                        "libcudart.so", NULL};
    static struct cuda_api api;
    static bool there;
    int rc = 0;
    pthread_mutex_lock(&g_lock);
    if (!there) {
        void *lib = open_library("the CUDA runtime", "DLCOLL_CUDART_LIB", names, e);
        rc = !lib ? -ENOENT
                  : fill(lib, "the CUDA runtime", g_cuda_functions,
                         sizeof(g_cuda_functions) / sizeof(g_cuda_functions[0]), &api, e);
        there = rc == 0;
    }
    pthread_mutex_unlock(&g_lock);
    *out = rc == 0 ? &api : NULL;
    return rc;
}

static int check_version(struct nccl_api *api, struct err *e)
{
    if (api->GetVersion(&api->version) != NCCL_OK)
        return err_set(e, -ENOENT, "NCCL does not say which version it is");
    int v = api->version, major = v >= 10000 ? v / 10000 : v / 1000;
    if (v < NCCL_LEAST)
        return err_set(e, -ENOENT, "NCCL here is %d.%d; 2.14 or later is needed", major,
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
    return getenv("DLCOLL_CUDART_LIB") || access("/dev/nvidiactl", F_OK) == 0 ||
           access("/dev/dxg", F_OK) == 0;
}
