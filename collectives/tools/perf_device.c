/* perf_device.c: device memory, a stream and its events, by the CUDA driver, which libdlcoll uses
 * as well. Managed memory is filled and compared in place, and stays on the device while operations
 * repeat; plain device memory by a copy on the host (perf_run.c). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "collectives/tools/perf.h"

typedef unsigned long long device_ptr;
enum { ATTACH_GLOBAL = 1 };

/* Name, what a header's macro appends to it, arguments. */
#define FUNCTIONS(F)                                         \
    F(Init, "", (unsigned))                                  \
    F(DeviceGetCount, "", (int *))                           \
    F(DevicePrimaryCtxRetain, "", (void **, int))            \
    F(CtxPushCurrent, "_v2", (void *))                       \
    F(MemAlloc, "_v2", (device_ptr *, size_t))               \
    F(MemAllocManaged, "", (device_ptr *, size_t, unsigned)) \
    F(MemFree, "_v2", (device_ptr))                          \
    F(MemcpyHtoD, "_v2", (device_ptr, const void *, size_t)) \
    F(MemcpyDtoH, "_v2", (void *, device_ptr, size_t))       \
    F(StreamCreate, "", (void **, unsigned))                 \
    F(EventCreate, "", (void **, unsigned))                  \
    F(EventRecord, "", (void *, void *))                     \
    F(EventSynchronize, "", (void *))                        \
    F(EventElapsedTime, "", (float *, void *, void *))

static struct {
#define DECLARE(name, suffix, args) int(*name) args;
    FUNCTIONS(DECLARE)
#undef DECLARE
} g_cuda;

static void *g_stream, *g_start, *g_end;

static void need(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "dlcoll_perf: CUDA: %s failed with error %d\n", what, rc);
    exit(1);
}

static void load(void)
{
    const char *path = getenv("DLCOLL_CUDA_LIB");
    void *lib = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "dlcoll_perf: the CUDA driver cannot be loaded: %s\n", dlerror());
        exit(1);
    }
#define LOAD(name, suffix, args)                                                       \
    if (!(*(void **)&g_cuda.name = dlsym(lib, "cu" #name suffix))) {                   \
        fprintf(stderr, "dlcoll_perf: the CUDA driver has no cu" #name suffix "()\n"); \
        exit(1);                                                                       \
    }
    FUNCTIONS(LOAD)
#undef LOAD
}

void perf_device_use(int local_rank)
{
    int n = 0;
    void *context;
    load();
    need(g_cuda.Init(0), "cuInit");
    need(g_cuda.DeviceGetCount(&n), "cuDeviceGetCount");
    if (n == 0) {
        fprintf(stderr, "dlcoll_perf: there is no CUDA device\n");
        exit(1);
    }
    need(g_cuda.DevicePrimaryCtxRetain(&context, local_rank % n), "cuDevicePrimaryCtxRetain");
    need(g_cuda.CtxPushCurrent(context), "cuCtxPushCurrent");
}

void *perf_device_alloc(size_t bytes, bool managed)
{
    device_ptr p = 0;
    int rc =
        managed ? g_cuda.MemAllocManaged(&p, bytes, ATTACH_GLOBAL) : g_cuda.MemAlloc(&p, bytes);
    return rc == 0 ? (void *)(uintptr_t)p : NULL;
}

void perf_device_free(void *p)
{
    need(p ? g_cuda.MemFree((device_ptr)(uintptr_t)p) : 0, "cuMemFree");
}

void perf_device_put(void *to, const void *from, size_t bytes)
{
    need(g_cuda.MemcpyHtoD((device_ptr)(uintptr_t)to, from, bytes), "cuMemcpyHtoD");
}

void perf_device_get(void *to, const void *from, size_t bytes)
{
    need(g_cuda.MemcpyDtoH(to, (device_ptr)(uintptr_t)from, bytes), "cuMemcpyDtoH");
}

/* ------------------------------------------------------------------------------------- a stream */

void *perf_stream_open(void)
{
    need(g_cuda.StreamCreate(&g_stream, 0), "cuStreamCreate");
    need(g_cuda.EventCreate(&g_start, 0), "cuEventCreate");
    need(g_cuda.EventCreate(&g_end, 0), "cuEventCreate");
    return g_stream;
}

void perf_stream_start(void)
{
    need(g_cuda.EventRecord(g_start, g_stream), "cuEventRecord");
}

double perf_stream_end(void)
{
    float ms = 0;
    need(g_cuda.EventRecord(g_end, g_stream), "cuEventRecord");
    need(g_cuda.EventSynchronize(g_end), "cuEventSynchronize");
    need(g_cuda.EventElapsedTime(&ms, g_start, g_end), "cuEventElapsedTime");
    return (double)ms * 1e3;
}
