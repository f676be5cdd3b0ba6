/* perf_device.c: buffers that both the device and this program can reach (managed memory): they are
 * filled and looked at here, and stay on the device while operations repeat. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "collectives/tools/perf.h"

static void *g_cuda;

static void *find(const char *name)
{
    static const char *const libs[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                       "libcudart.so"};
    const char *path = getenv("DLCOLL_CUDART_LIB");
    if (!g_cuda && path && *path)
        g_cuda = dlopen(path, RTLD_NOW);
    for (size_t i = 0; !g_cuda && i < sizeof(libs) / sizeof(libs[0]); i++)
        g_cuda = dlopen(libs[i], RTLD_NOW);
    return g_cuda ? dlsym(g_cuda, name) : NULL;
}

void perf_device_use(int local_rank)
{
    int n = 0;
    int (*count)(int *), (*set)(int);
    *(void **)&count = find("cudaGetDeviceCount");
    *(void **)&set = find("cudaSetDevice");
    if (count && set && count(&n) == 0 && n > 0)
        set(local_rank % n);
}

void *perf_device_alloc(size_t bytes)
{
    enum { FROM_EVERYWHERE = 1 };
    void *p = NULL;
    int (*managed)(void **, size_t, unsigned);
    *(void **)&managed = find("cudaMallocManaged");
    return managed && managed(&p, bytes, FROM_EVERYWHERE) == 0 ? p : NULL;
}

void perf_device_free(void *p)
{
    int (*release)(void *);
    *(void **)&release = find("cudaFree");
    if (release)
        release(p);
}
