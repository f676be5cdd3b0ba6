/* perf_device.c: buffers that both the device and this program can reach (managed memory): they are
 * filled and compared here, and stay on the device while operations repeat. By the CUDA driver,
 * which libdlcoll uses as well. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "collectives/tools/perf.h"

static void *device_find(const char *name)
{
    static void *cuda;
    const char *path = getenv("DLCOLL_CUDA_LIB");
    if (!cuda)
        cuda = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    return cuda ? dlsym(cuda, name) : NULL;
}

void perf_device_use(int local_rank)
{
    int n = 0;
    void *context;
    int (*init)(unsigned), (*count)(int *), (*retain)(void **, int), (*push)(void *);
    *(void **)&init = device_find("cuInit");
    *(void **)&count = device_find("cuDeviceGetCount");
    *(void **)&retain = device_find("cuDevicePrimaryCtxRetain");
    *(void **)&push = device_find("cuCtxPushCurrent_v2");
    if (init && count && retain && push && init(0) == 0 && count(&n) == 0 && n > 0 &&
        retain(&context, local_rank % n) == 0)
        push(context);
}

void *perf_device_alloc(size_t bytes)
{
    enum { ATTACH_GLOBAL = 1 };
    unsigned long long p = 0;
    int (*managed)(unsigned long long *, size_t, unsigned);
    *(void **)&managed = device_find("cuMemAllocManaged");
    return managed && managed(&p, bytes, ATTACH_GLOBAL) == 0 ? (void *)(uintptr_t)p : NULL;
}

void perf_device_free(void *p)
{
    int (*release)(unsigned long long);
    *(void **)&release = device_find("cuMemFree_v2");
    if (release && p)
        release((unsigned long long)(uintptr_t)p);
}
