#include "agent/device/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

static const struct {
    const char *name;
    size_t at; /* in struct nvml */
    int optional;
} g_functions[] = {
#define NEEDED(name, args)   {"nvml" #name, offsetof(struct nvml, name), 0},
#define OPTIONAL(name, args) {"nvml" #name, offsetof(struct nvml, name), 1},
    NVML_FUNCTIONS(NEEDED, OPTIONAL)
#undef NEEDED
#undef OPTIONAL
};

static int nvml_fail(struct nvml *n, struct err *e, int code, const char *text, const char *what)
{
    if (e)
        err_set(e, code, "NVML (libnvidia-ml.so.1) %s%s", text, what);
    if (n->lib)
        dlclose(n->lib);
    n->lib = NULL;
    return code;
}

int nvml_open(struct nvml *n, struct err *e)
{
    *n = (struct nvml){.lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!n->lib)
        return nvml_fail(n, e, -ENOENT, "is not there: ", dlerror());
    for (size_t i = 0; i < ARRAY_LEN(g_functions); i++) {
        void *f = dlsym(n->lib, g_functions[i].name);
        if (!f && !g_functions[i].optional)
            return nvml_fail(n, e, -ENOENT, "is too old: it has no ", g_functions[i].name);
        memcpy((char *)n + g_functions[i].at, &f, sizeof(f));
    }
    if (n->Init_v2() != NVML_SUCCESS)
        return nvml_fail(n, e, -EIO, "cannot be initialised", "");
    return 0;
}

void nvml_close(struct nvml *n)
{
    if (!n->lib)
        return;
    n->Shutdown();
    dlclose(n->lib);
    n->lib = NULL;
}

void nvml_bus(const struct nvml *n, nvmlDevice_t dev, char out[16])
{
    struct nvml_pci pci;
    out[0] = '\0';
    if (n->DeviceGetPciInfo_v3(dev, &pci) == NVML_SUCCESS)
        snprintf(out, 16, "%04x:%02x:%02x.0", pci.domain & 0xffffff, pci.bus & 0xff,
                 pci.device & 0xff);
}
