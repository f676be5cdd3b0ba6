#include "agent/inspect/libdw_api.h"

#include <dlfcn.h>
#include <stddef.h>

static bool load(struct libdw_api *api)
{
    void *lib = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return false;
#define LIBDW_LOAD(type, name, params)        \
    *(void **)&api->name = dlsym(lib, #name); \
    if (!api->name)                           \
        return false;
    LIBDW_FUNCTIONS(LIBDW_LOAD)
#undef LIBDW_LOAD
    return true;
}

const struct libdw_api *libdw_api(void)
{
    static struct libdw_api api;
    static enum { NEW, LOADED, MISSING } state;
    if (state == NEW)
        state = load(&api) ? LOADED : MISSING;
    return state == LOADED ? &api : NULL;
}

char *libdw_demangle(const char *name)
{
    static char *(*demangle)(const char *name, char *out, size_t *len, int *status);
    static bool loaded;
    void *lib = loaded ? NULL : dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
    loaded = true;
    if (lib)
        *(void **)&demangle = dlsym(lib, "__cxa_demangle");
    return demangle ? demangle(name, NULL, NULL, NULL) : NULL;
}
