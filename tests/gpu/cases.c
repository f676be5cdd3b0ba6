/* cases.c: what only a machine with a GPU can show, one case per line of g_cases. The ranks of a
 * case are processes of this program that share the first GPU (NCCL_HOSTID differs, so that NCCL
 * allows it). Each case has a hard limit, and the limits sum to less than LIMITS_S. Prints PASS,
 * FAIL or CANNOT with a reason for each, as rows of tests/gpu/RESULTS.md.
 *
 *     [CASES_SLOWER=FACTOR] cases [CASE...]
 *     cases facts             the driver, NCCL and the devices
 *     cases plain-hang DIR    one rank of two, under dlaunch, that uses NCCL without libdlcoll:
 * after 50 operations rank 1 sleeps, and rank 0 waits for it cases trap              a kernel that
 * fails, for an Xid error cases probe split|window|abort what NCCL returns, and when, in
 * non-blocking mode: one process
 *
 * Exit status: 0, or 1: a case has failed; 77: the host has no CUDA driver, no device, or no NCCL
 * that libdlcoll uses, with a line that names what is missing. The same program runs
 * against the libraries of tests/fake (DLCOLL_CUDA_LIB, DLCOLL_NCCL_LIB), which
 * can be told to misbehave (FAKE_NCCL_FAULT), so that cases are known to fail. */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectives/dlcoll.h"
#include "collectives/nccl/nccl_api.h"

enum { PASS = 0, FAIL = 1, CANNOT = 77, RANKS = 2, NOTE = 300, BYTES = 4096 };
enum { LIMITS_S = 690 }; /* with what tests/gpu/run.sh adds, less than 16 minutes */

/* Functions of the driver that libdlcoll does not use. (name, suffix, arguments) */
#define DRIVER(F)                                                                                 \
    F(MemGetInfo, "_v2", (size_t *, size_t *))                                                    \
    F(StreamCreate, "", (cuda_stream *, unsigned))                                                \
    F(StreamBeginCapture, "_v2", (cuda_stream, int))                                              \
    F(StreamEndCapture, "", (cuda_stream, void **))                                               \
    F(GraphInstantiateWithFlags, "", (void **, void *, unsigned long long))                       \
    F(GraphLaunch, "", (void *, cuda_stream))                                                     \
    F(GraphExecDestroy, "", (void *))                                                             \
    F(GraphDestroy, "", (void *))                                                                 \
    F(ModuleLoadData, "", (void **, const void *))                                                \
    F(ModuleGetFunction, "", (void **, void *, const char *))                                     \
    F(LaunchKernel, "",                                                                           \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cuda_stream, \
       void **, void **))                                                                         \
    F(CtxSynchronize, "", (void))                                                                 \
    F(DriverGetVersion, "", (int *))                                                              \
    F(DeviceGetName, "", (char *, int, int))                                                      \
    F(DeviceTotalMem, "_v2", (size_t *, int))

static struct {
#define DECLARE(name, suffix, args) int(*name) args;
    DRIVER(DECLARE)
#undef DECLARE
} g_driver;
static void *g_cuda_lib;

struct shared {
    _Atomic int ready, inside, freed;
    _Atomic double killed_ms;
    char note[RANKS][NOTE];
};

struct rank {
    int me, size;
    dlcoll_comm *comm;
    const struct cuda_api *cuda;
    int *x, *y; /* BYTES of device memory each */
};

static struct shared *g;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* A busy host's limits are longer: 1 on a machine with a GPU. */
static double slower(void)
{
    const char *factor = getenv("CASES_SLOWER");
    return factor ? atof(factor) : 1;
}

__attribute__((format(printf, 3, 4))) static int verdict(const struct rank *r, int what,
                                                         const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(g->note[r->me], NOTE, fmt, args);
    va_end(args);
    return what;
}

static const char *why(const struct rank *r)
{
    static dlcoll_error e = DLCOLL_ERROR_INIT;
    dlcoll_last_error(r->comm, &e);
    return e.text;
}

/* -------------------------------------------------------------------------------- device memory */

static void put_bytes(const struct rank *r, void *to, const void *from, size_t len)
{
    r->cuda->MemcpyAsync((cuda_ptr)(uintptr_t)to, (cuda_ptr)(uintptr_t)from, len, NULL);
    g_driver.CtxSynchronize();
    dlcoll_barrier(r->comm, NULL, NULL);
}

/* The copy of what is behind everything on the stream. False: it is not complete within ten
 * seconds, or the device has failed. */
static bool get_bytes(const struct rank *r, void *to, const void *from, size_t len, void *stream)
{
    cuda_event e;
    int rc;
    r->cuda->MemcpyAsync((cuda_ptr)(uintptr_t)to, (cuda_ptr)(uintptr_t)from, len, stream);
    if (r->cuda->EventCreate(&e, CUDA_NO_TIMING) != CUDA_OK ||
        r->cuda->EventRecord(e, stream) != CUDA_OK)
        return false;
    for (double until = now_ms() + 10000; (rc = r->cuda->EventQuery(e)) == CUDA_NOT_READY;) {
        if (now_ms() > until)
            return false;
    }
    r->cuda->EventDestroy(e);
    return rc == CUDA_OK;
}

static void put(const struct rank *r, int value)
{
    put_bytes(r, r->x, &value, sizeof(value));
}

/* -1: it cannot be read. */
static int get_from(const struct rank *r, const int *from, void *stream)
{
    int value = -1;
    return get_bytes(r, &value, from, sizeof(value), stream) ? value : -1;
}

static int get(const struct rank *r, void *stream)
{
    return get_from(r, r->x, stream);
}

/* As cudaSetDevice(0) and cudaMalloc(). */
static bool use_device(struct rank *r)
{
    struct err e = ERR_INIT;
    cuda_context c;
    cuda_ptr p, q;
    if (cuda_api_get(&r->cuda, &e) < 0 || r->cuda->Init(0) != CUDA_OK ||
        r->cuda->DevicePrimaryCtxRetain(&c, 0) != CUDA_OK ||
        r->cuda->CtxPushCurrent(c) != CUDA_OK || r->cuda->MemAlloc(&p, BYTES) != CUDA_OK ||
        r->cuda->MemAlloc(&q, BYTES) != CUDA_OK)
        return false;
    r->x = (int *)(uintptr_t)p;
    r->y = (int *)(uintptr_t)q;
    return true;
}

static int sum(const struct rank *r, const dlcoll_opts *o)
{
    return dlcoll_all_reduce(r->x, r->x, 1, DLCOLL_I32, DLCOLL_SUM, r->comm, o, NULL);
}

/* Both ranks have done an operation on the device. NULL, or why not. */
static const char *begin(struct rank *r)
{
    if (!use_device(r))
        return "the device cannot be used";
    return dlcoll_device_init(r->comm, NULL) < 0 ? why(r) : NULL;
}

static void meet(void)
{
    atomic_fetch_add(&g->ready, 1);
    while (atomic_load(&g->ready) < RANKS)
        nanosleep(&(struct timespec){0, 100000}, NULL);
}

/* ---------------------------------------------------------------------------------------- cases */

static int lazy_context(struct rank *r)
{
    struct err e = ERR_INIT;
    int a = 1, b = 0, active = 0;
    unsigned flags;
    if (cuda_api_get(&r->cuda, &e) < 0 || r->cuda->Init(0) != CUDA_OK)
        return verdict(r, CANNOT, "%s", e.msg);
    if (dlcoll_all_reduce(&a, &b, 1, DLCOLL_I32, DLCOLL_SUM, r->comm, NULL, NULL) < 0)
        return verdict(r, FAIL, "%s", why(r));
    r->cuda->DevicePrimaryCtxGetState(0, &flags, &active);
    return active ? verdict(r, FAIL, "an operation on host memory has made a context")
                  : verdict(r, b == r->size ? PASS : FAIL, "no context after a host operation");
}

static int right(struct rank *r)
{
    const char *bad = begin(r);
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    put(r, r->me + 1);
    if (sum(r, NULL) < 0)
        return verdict(r, FAIL, "%s", why(r));
    int got = get(r, NULL);
    return verdict(r, got == r->size * (r->size + 1) / 2 ? PASS : FAIL, "the sum is %d", got);
}

/* The library's own stream, the two default streams, a stream that waits for them, and one that
 * does not. */
static int streams(struct rank *r)
{
    const char *bad = begin(r);
    cuda_stream waits, free_running;
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    if (g_driver.StreamCreate(&waits, 0) != CUDA_OK ||
        g_driver.StreamCreate(&free_running, CUDA_NON_BLOCKING) != CUDA_OK)
        return verdict(r, FAIL, "a stream cannot be created");
    void *all[] = {NULL, (void *)1, (void *)2, waits, free_running};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        dlcoll_opts o = DLCOLL_OPTS_INIT;
        o.stream = all[i];
        put(r, 1);
        for (int k = 0; k < 3; k++) {
            if (sum(r, &o) < 0)
                return verdict(r, FAIL, "stream %zu: %s", i, why(r));
        }
        int got = get(r, all[i]);
        if (got != 8)
            return verdict(r, FAIL, "stream %zu: three sums are %d, not 8", i, got);
    }
    return verdict(r, PASS, "%zu streams", sizeof(all) / sizeof(all[0]));
}

/* -------------------------------------------------------------- errors of the device, libraries */

/* A kernel that ends in a trap leaves an error that every later call of the context returns. */
static bool break_device(void)
{
    static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry broken()\n{\n    trap;\n}\n";
    void *module, *kernel;
    return g_driver.ModuleLoadData(&module, ptx) == CUDA_OK &&
           g_driver.ModuleGetFunction(&kernel, module, "broken") == CUDA_OK &&
           g_driver.LaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == CUDA_OK &&
           g_driver.CtxSynchronize() != CUDA_OK;
}

/* Rank 0's device fails: its operation must report that, rather than read device memory as if it
 * were the host's; the other rank must not wait for its deadline. */
static int sticky_error(struct rank *r)
{
    const char *bad = begin(r);
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    o.timeout_ms = 15000;
    meet();
    if (r->me == 0 && !break_device())
        return verdict(r, FAIL, "a kernel that traps leaves no error");
    double start = now_ms();
    int code = sum(r, &o);
    double took = now_ms() - start;
    bool right = r->me == 0 ? code == DLCOLL_EBACKEND : code < 0 && took < 10000;
    verdict(r, 0, "%d after %.0f ms: %s", code, took, why(r));
    dlcoll_destroy(r->comm); /* the other rank learns of it by this */
    r->comm = NULL;
    return right ? PASS : FAIL;
}

static int find_cudart(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "libcudart"))
        return 0;
    snprintf(out, NOTE, "%s", info->dlpi_name);
    return 1;
}

/* A program that has linked the runtime statically, or that has none, gets right results, and the
 * library loads no runtime beside it. */
static int no_cudart(struct rank *r)
{
    char name[NOTE] = "";
    const char *bad = begin(r);
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    put(r, 1);
    if (sum(r, NULL) < 0)
        return verdict(r, FAIL, "%s", why(r));
    if (dl_iterate_phdr(find_cudart, name))
        return verdict(r, FAIL, "the library has loaded %s", name);
    int got = get(r, NULL);
    return verdict(r, got == r->size ? PASS : FAIL, "without a CUDA runtime the sum is %d", got);
}

/* --------------------------------------------------------------------------------------- graphs */

struct graph {
    cuda_stream stream;
    void *graph, *exec;
};

/* NCCL 2.22 and later connects the ranks in their first operation, and programs do not capture that
 * one. NULL, or why not. */
static const char *warm_up(struct rank *r)
{
    put(r, 1);
    return sum(r, NULL) < 0 ? why(r) : NULL;
}

/* Captures y = sum of x over the ranks, in global mode. NULL, or why not. */
static const char *capture_sum(struct rank *r, struct graph *out)
{
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    if (g_driver.StreamCreate(&out->stream, CUDA_NON_BLOCKING) != CUDA_OK ||
        g_driver.StreamBeginCapture(out->stream, 0) != CUDA_OK)
        return "a capture cannot begin";
    o.stream = out->stream;
    if (dlcoll_all_reduce(r->x, r->y, 1, DLCOLL_I32, DLCOLL_SUM, r->comm, &o, NULL) < 0)
        return why(r);
    nanosleep(&(struct timespec){0, 120000000}, NULL); /* the watcher's calls fall into it */
    if (g_driver.StreamEndCapture(out->stream, &out->graph) != CUDA_OK)
        return "the capture has become invalid";
    return g_driver.GraphInstantiateWithFlags(&out->exec, out->graph, 0) == CUDA_OK
               ? NULL
               : "the graph cannot be instantiated";
}

static void graph_free(struct graph *gr)
{
    if (gr->exec)
        g_driver.GraphExecDestroy(gr->exec);
    if (gr->graph)
        g_driver.GraphDestroy(gr->graph);
}

/* Each launch computes the sum of what is in the buffer then. */
static int graph(struct rank *r)
{
    struct graph gr = {0};
    const char *bad = begin(r);
    if (bad || (bad = warm_up(r)) || (bad = capture_sum(r, &gr)))
        return verdict(r, FAIL, "%s", bad);
    for (int value = 5; value < 8; value++) {
        put(r, value);
        if (g_driver.GraphLaunch(gr.exec, gr.stream) != CUDA_OK)
            return verdict(r, FAIL, "the graph cannot be launched");
        int got = get_from(r, r->y, gr.stream);
        if (got != value * r->size)
            return verdict(r, FAIL, "a launch with %d: the sum is %d", value, got);
    }
    graph_free(&gr);
    put(r, 1);
    if (sum(r, NULL) < 0 || get(r, NULL) != r->size)
        return verdict(r, FAIL, "after the graph: %s", why(r));
    return verdict(r, PASS, "three launches, %d rank%s", r->size, r->size == 1 ? "" : "s");
}

/* --------------------------------------------------------------------------------------- aborts */

static void *synchronize(void *arg)
{
    struct rank *r = arg;
    cuda_context c;
    r->cuda->DevicePrimaryCtxRetain(&c, 0);
    r->cuda->CtxPushCurrent(c);
    atomic_fetch_add(&g->inside, 1);
    g_driver.CtxSynchronize();
    return NULL;
}

/* Rank 0's other thread waits for the whole device, on which an operation never ends: an abort must
 * return, and end both. */
static int abort_beside_synchronize(struct rank *r)
{
    const char *bad = begin(r);
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    pthread_t thread;
    struct timespec until;
    if (bad || (bad = warm_up(r))) /* the first operation waits for both */
        return verdict(r, FAIL, "%s", bad);
    meet();
    if (r->me == 1) {
        while (!atomic_load(&g->freed))
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        return PASS;
    }
    o.stream = (void *)2;
    if (sum(r, &o) < 0 || pthread_create(&thread, NULL, synchronize, r) != 0)
        return verdict(r, FAIL, "%s", why(r));
    while (!atomic_load(&g->inside))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    double start = now_ms();
    dlcoll_abort(r->comm, "the test aborts");
    double took = now_ms() - start;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    int joined = pthread_timedjoin_np(thread, NULL, &until);
    atomic_store(&g->freed, 1);
    if (joined != 0) /* nor would the end of the communicator return */
        _exit(verdict(r, FAIL, "the device still waits five seconds after the abort"));
    return verdict(r, took < 2000 ? PASS : FAIL, "abort %.0f ms, the device free after %.0f ms",
                   took, now_ms() - start);
}

/* ncclCommAbort() does not return while a graph holds the communicator: the library's calls do. */
static int abort_with_graph(struct rank *r)
{
    struct graph gr = {0};
    const char *bad = begin(r);
    if (bad || (bad = warm_up(r)) || (bad = capture_sum(r, &gr)))
        return verdict(r, FAIL, "%s", bad);
    put(r, 1);
    if (g_driver.GraphLaunch(gr.exec, gr.stream) != CUDA_OK ||
        get_from(r, r->y, gr.stream) != r->size)
        return verdict(r, FAIL, "the graph cannot be launched");
    meet();
    double start = now_ms();
    dlcoll_abort(r->comm, "the test aborts");
    dlcoll_destroy(r->comm);
    double took = now_ms() - start;
    r->comm = NULL;
    graph_free(&gr);
    return verdict(r, took < 8000 ? PASS : FAIL, "abort and destroy returned after %.0f ms", took);
}

/* ------------------------------------------------------------------------------- other programs */

/* Runs a shell command; the last line of its output is the note. */
static int run_program(struct rank *r, const char *command)
{
    char line[NOTE] = "", last[NOTE] = "";
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n|")] = '\0';
        if (*line)
            memcpy(last, line, sizeof(last));
    }
    int status = f ? pclose(f) : -1;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : FAIL;
    return verdict(r, code == CANNOT || code == PASS ? code : FAIL, "%s", last);
}

static const char *build_folder(void)
{
    static char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    for (int up = 0; n > 0 && up < 3; up++) /* build/tests/gpu/cases */
        dirname(path);
    return n > 0 ? path : ".";
}

/* A worker of restart(): takes most of the device's memory, up to 100 GB; the first start is killed
 * with it, and the second must get as much at once. */
static int hold_memory(const char *note)
{
    const struct cuda_api *cuda;
    struct err e = ERR_INIT;
    cuda_context c;
    size_t free_bytes = 0, total = 0, held = 0, want = 0;
    cuda_ptr p;
    if (cuda_api_get(&cuda, &e) < 0 || cuda->Init(0) != CUDA_OK ||
        cuda->DevicePrimaryCtxRetain(&c, 0) != CUDA_OK || cuda->CtxPushCurrent(c) != CUDA_OK ||
        g_driver.MemGetInfo(&free_bytes, &total) != CUDA_OK)
        return FAIL;
    FILE *f = fopen(note, "r");
    bool again = f && fscanf(f, "%zu", &want) == 1;
    if (f)
        fclose(f);
    if (!again)
        want = free_bytes / 10 * 9 < (size_t)100e9 ? free_bytes / 10 * 9 : (size_t)100e9;
    want = want / 16 * 16;
    for (size_t part = want / 16; held < want && cuda->MemAlloc(&p, part) == CUDA_OK;)
        held += part;
    if (held < want) {
        printf("%s start: %zu of %zu bytes\n", again ? "the second" : "the first", held, want);
        return FAIL;
    }
    if (again) {
        printf("a second worker got the %.1f GB of the killed one\n", (double)held / 1e9);
        return PASS;
    }
    if (!(f = fopen(note, "w")) || fprintf(f, "%zu", want) < 0 || fclose(f) != 0)
        return FAIL;
    raise(SIGKILL);
    return FAIL;
}

static int restart(struct rank *r)
{
    char command[2048], note[128];
    const char *build = build_folder();
    snprintf(note, sizeof(note), "/tmp/dlcoll-gpu-%d-memory", (int)getpid());
    snprintf(
        command, sizeof(command),
        "'%s/dlaunch' --virtual_local_rank --max_restarts 1 '%s/tests/gpu/cases' hold-memory %s "
        "2>/dev/null",
        build, build, note);
    int code = run_program(r, command);
    unlink(note);
    /* A library that a test has named is no machine's, and NVML does not belong to it. */
    if (code == FAIL && !getenv("DLCOLL_CUDA_LIB") && !dlopen("libnvidia-ml.so.1", RTLD_LAZY))
        return verdict(r, CANNOT, "NVML is missing, by which dlaunch waits for the memory");
    return code;
}

static int with_torch(struct rank *r)
{
    static const char script[] =
        "import ctypes, os, sys\n"
        "try:\n"
        "    import torch, torch.distributed as dist\n"
        "    assert torch.cuda.is_available()\n"
        "except Exception:\n"
        "    print('PyTorch with CUDA is not installed')\n"
        "    sys.exit(77)\n"
        "torch.cuda.set_device(0)\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.full((1 << 20,), 3.0, device='cuda')\n"
        "dist.all_reduce(x)\n"
        "lib = ctypes.CDLL(sys.argv[1])\n"
        "comm, p = ctypes.c_void_p(), ctypes.c_void_p(x.data_ptr())\n"
        "assert lib.dlcoll_init(ctypes.byref(comm), None) == 0\n"
        "for i in range(3):\n"
        "    assert lib.dlcoll_all_reduce(p, p, ctypes.c_size_t(1 << 20), 7, 0, comm, None, None) "
        "== 0\n"
        "    dist.all_reduce(x)\n"
        "assert bool((x == 3).all())\n"
        "assert lib.dlcoll_destroy(comm) == 0\n"
        "dist.destroy_process_group()\n"
        "print('PyTorch', torch.__version__, 'NCCL', torch.cuda.nccl.version())\n";
    char command[2048], path[128];
    const char *build = build_folder();
    snprintf(path, sizeof(path), "/tmp/dlcoll-gpu-%d.py", (int)getpid());
    FILE *f = fopen(path, "w");
    if (!f || fputs(script, f) < 0 || fclose(f) != 0)
        return verdict(r, FAIL, "%s: %s", path, strerror(errno));
    snprintf(command, sizeof(command),
             "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 "
             "MASTER_PORT=0 python3 %s '%s/libdlcoll.so' 2>&1",
             path, build);
    int code = run_program(r, command);
    unlink(path);
    return code;
}

/* ------------------------------------------------------------------------------ peers that fail */

/* The first operation connects the ranks, and waits for the late one in the call; a later one does
 * so in a kernel. */
static int be_late(struct rank *r, bool connected)
{
    const char *bad = begin(r);
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    if (bad || (connected && (bad = warm_up(r))))
        return verdict(r, FAIL, "%s", bad);
    o.timeout_ms = 3000;
    if (r->me == 1) {
        meet(); /* until the other one has its result */
        return PASS;
    }
    double start = now_ms();
    int code = sum(r, &o);
    double took = now_ms() - start;
    meet();
    return verdict(r, code == DLCOLL_ETIMEDOUT && took < 2000 + 2000 * slower() ? PASS : FAIL,
                   "%.0f ms: %s", took, why(r));
}

static int late_peer(struct rank *r)
{
    return be_late(r, true);
}

static int late_connecting(struct rank *r)
{
    return be_late(r, false);
}

static int late_blocking(struct rank *r)
{
    setenv("DLCOLL_NCCL_BLOCKING", "1", 1);
    return be_late(r, false);
}

static void *die_soon(void *arg)
{
    (void)arg;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    g->killed_ms = now_ms();
    raise(SIGKILL);
    return NULL;
}

/* Rank 1 dies while NCCL makes the communicator, or soon afterwards. */
static int init_peer_dies(struct rank *r)
{
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    pthread_t thread;
    o.timeout_ms = 10000;
    if (!use_device(r))
        return verdict(r, FAIL, "the device cannot be used");
    meet();
    if (r->me == 1)
        pthread_create(&thread, NULL, die_soon, NULL);
    int code = dlcoll_device_init(r->comm, NULL);
    bool made = code == 0;
    while (code == 0)
        code = sum(r, &o);
    double took = now_ms() - g->killed_ms;
    return verdict(r, took < 2000 * slower() ? PASS : FAIL, "%.0f ms after the kill, %s: %s", took,
                   made ? "the communicator was there" : "during the init", why(r));
}

/* Two processes that share a GPU take turns on it, in slices of milliseconds: so many operations
 * may take longer than their limit, and rank 1 ends them after DEEP_MS. */
static int await_death(struct rank *r, int calls)
{
    enum { DEEP_MS = 9000 };
    const char *bad = begin(r);
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    int code = 0;
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    o.stream = (void *)2;
    meet();
    if (r->me == 1) {
        double until = now_ms() + DEEP_MS;
        for (int i = 0; i < calls && code == 0 && now_ms() < until; i++)
            code = sum(r, &o);
        g->killed_ms = now_ms();
        raise(SIGKILL);
    }
    for (int i = 0; i < calls + 100000 && code == 0; i++)
        code = sum(r, i % 256 ? &o : NULL);
    double took = now_ms() - g->killed_ms;
    return verdict(r, code < 0 && took < 1000 * slower() ? PASS : FAIL,
                   "%.1f ms after the kill: %s", took, why(r));
}

static int killed_peer(struct rank *r)
{
    return await_death(r, 50);
}

static int deep(struct rank *r)
{
    return await_death(r, 20000);
}

/* --------------------------------------------------------------------------- groups and memory */

/* One group of both with the order turned round, or of rank 0 alone; then the parent again. */
static int split(struct rank *r, bool both)
{
    const char *bad = begin(r);
    dlcoll_comm *group = NULL;
    if (bad || (bad = warm_up(r)))
        return verdict(r, FAIL, "%s", bad);
    bool in = both || r->me == 0;
    double start = now_ms();
    if (dlcoll_comm_split(r->comm, in ? 1 : DLCOLL_NO_COLOR, -r->me, &group, NULL) < 0)
        return verdict(r, FAIL, "%s", why(r));
    double took = now_ms() - start;
    if (in != (group != NULL))
        return verdict(r, FAIL, "a group is %s", group ? "there" : "not there");
    put(r, r->me + 1);
    if (group && dlcoll_broadcast(r->x, r->x, 1, DLCOLL_I32, 0, group, NULL, NULL) < 0)
        return verdict(r, FAIL, "in the group: %s", why(&(struct rank){.comm = group}));
    int want = !in ? r->me + 1 : both ? r->size : 1, got = get(r, NULL);
    if (got != want)
        return verdict(r, FAIL, "the group's first rank had %d, not %d", got, want);
    dlcoll_destroy(group);
    put(r, 1);
    if (sum(r, NULL) < 0)
        return verdict(r, FAIL, "in the parent afterwards: %s", why(r));
    got = get(r, NULL);
    return verdict(r, got == r->size ? PASS : FAIL, "split in %.0f ms; the parent's sum is %d",
                   took, got);
}

static int split_both(struct rank *r)
{
    return split(r, true);
}

static int split_no_color(struct rank *r)
{
    return split(r, false);
}

static int split_blocking(struct rank *r)
{
    setenv("DLCOLL_NCCL_BLOCKING", "1", 1);
    return split(r, true);
}

static int sum_in(struct rank *r, int *memory, const char *what)
{
    int *own = r->x;
    r->x = memory;
    put(r, 1);
    int code = sum(r, NULL), got = code < 0 ? -1 : get(r, NULL);
    r->x = own;
    return verdict(r, got == r->size ? PASS : FAIL, "%s: the sum is %d%s%s", what, got,
                   code < 0 ? ": " : "", code < 0 ? why(r) : "");
}

static int alloc(struct rank *r)
{
    const char *bad = begin(r);
    void *p = NULL, *handle = NULL;
    int code = bad ? FAIL : dlcoll_device_alloc(r->comm, &p, 1 << 20);
    if (bad || code == DLCOLL_ENOSUP)
        return verdict(r, bad ? FAIL : CANNOT, "%s", bad ? bad : why(r));
    if (code < 0 || dlcoll_mem_register(r->comm, p, 1 << 20, &handle) < 0)
        return verdict(r, FAIL, "%s", why(r));
    int result = sum_in(r, p, handle ? "registered" : "not registered: NCCL has none");
    if (dlcoll_mem_deregister(r->comm, handle) < 0 || dlcoll_device_free(r->comm, p) < 0)
        return verdict(r, FAIL, "%s", why(r));
    return result;
}

static int window(struct rank *r)
{
    const char *bad = begin(r);
    void *p = NULL, *w = NULL;
    if (bad || dlcoll_device_alloc(r->comm, &p, 4 << 20) < 0)
        return verdict(r, FAIL, "%s", bad ? bad : why(r));
    int code = dlcoll_window_register(r->comm, p, 4 << 20, &w);
    int result = code == DLCOLL_ENOSUP ? verdict(r, CANNOT, "%s", why(r))
                 : code < 0            ? verdict(r, FAIL, "%s", why(r))
                                       : sum_in(r, p, "in a window");
    if (dlcoll_window_deregister(r->comm, w) < 0 || dlcoll_device_free(r->comm, p) < 0)
        return verdict(r, FAIL, "%s", why(r));
    return result;
}

/* Both at once, then one after the other. */
static int messages(struct rank *r)
{
    const char *bad = begin(r);
    int other = 1 - r->me;
    if (bad || (bad = warm_up(r)))
        return verdict(r, FAIL, "%s", bad);
    dlcoll_p2p list[2] = {{.send = r->x, .count = 1, .dtype = DLCOLL_I32, .peer = other},
                          {.recv = r->y, .count = 1, .dtype = DLCOLL_I32, .peer = other}};
    put(r, 10 + r->me);
    if (dlcoll_batch(list, 2, r->comm, NULL, NULL) < 0 || get_from(r, r->y, NULL) != 10 + other)
        return verdict(r, FAIL, "batch: %s", why(r));
    int code = r->me == 0 ? dlcoll_send(r->y, 1, DLCOLL_I32, 1, r->comm, NULL, NULL)
                          : dlcoll_recv(r->y, 1, DLCOLL_I32, 0, r->comm, NULL, NULL);
    int got = get_from(r, r->y, NULL);
    return verdict(r, code == 0 && got == 11 ? PASS : FAIL, "%d: %s", got, why(r));
}

static int stream_wait(struct rank *r)
{
    const char *bad = begin(r);
    dlcoll_work *w = NULL;
    cuda_stream other;
    if (bad || (bad = warm_up(r)))
        return verdict(r, FAIL, "%s", bad);
    put(r, 1);
    if (g_driver.StreamCreate(&other, CUDA_NON_BLOCKING) != CUDA_OK ||
        dlcoll_all_reduce(r->x, r->y, 1, DLCOLL_I32, DLCOLL_SUM, r->comm, NULL, &w) < 0 ||
        dlcoll_stream_wait(other, w) < 0)
        return verdict(r, FAIL, "%s", why(r));
    int got = get_from(r, r->y, other);
    bool good = dlcoll_wait(w) == 0 && got == r->size;
    dlcoll_work_free(w);
    return verdict(r, good ? PASS : FAIL, "behind it on another stream: %d", got);
}

/* The bytes of a small whole number. False: the type has no such number. */
static bool encode(int dtype, int v, void *out)
{
    static const uint16_t f16[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400};
    static const uint16_t bf16[] = {0, 0x3f80, 0x4000, 0x4040, 0x4080};
    static const uint8_t e4m3[] = {0, 0x38, 0x40, 0x44, 0x48}, e5m2[] = {0, 0x3c, 0x40, 0x42, 0x44};
    float f = (float)v;
    double d = v;
    int64_t i = v;
    memset(out, 0, 8);
    switch (dtype) {
    case DLCOLL_F16:
        memcpy(out, &f16[v], 2);
        break;
    case DLCOLL_BF16:
        memcpy(out, &bf16[v], 2);
        break;
    case DLCOLL_F8E4M3:
        memcpy(out, &e4m3[v], 1);
        break;
    case DLCOLL_F8E5M2:
        memcpy(out, &e5m2[v], 1);
        break;
    case DLCOLL_F32:
        memcpy(out, &f, 4);
        break;
    case DLCOLL_F64:
        memcpy(out, &d, 8);
        break;
    default:
        memcpy(out, &i, 8); /* little endian: the low bytes come first */
    }
    return dtype != DLCOLL_BOOL || v < 2;
}

/* Rank 0 has 1 and rank 1 has 3; of bool, 1 and 0. */
static int types(struct rank *r)
{
    static const struct {
        dlcoll_dtype type;
        size_t size;
    } all[] = {{DLCOLL_I8, 1},    {DLCOLL_U8, 1},   {DLCOLL_I32, 4},  {DLCOLL_U32, 4},
               {DLCOLL_I64, 8},   {DLCOLL_U64, 8},  {DLCOLL_F16, 2},  {DLCOLL_F32, 4},
               {DLCOLL_F64, 8},   {DLCOLL_BF16, 2}, {DLCOLL_BOOL, 1}, {DLCOLL_F8E4M3, 1},
               {DLCOLL_F8E5M2, 1}};
    static const struct {
        dlcoll_op op;
        int number, boolean;
    } ops[] = {{DLCOLL_SUM, 4, 1},
               {DLCOLL_PROD, 3, 0},
               {DLCOLL_MAX, 3, 1},
               {DLCOLL_MIN, 1, 0},
               {DLCOLL_AVG, 2, -1}};
    const char *bad = begin(r);
    int done = 0, refused = 0;
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    for (size_t t = 0; t < sizeof(all) / sizeof(all[0]); t++) {
        bool boolean = all[t].type == DLCOLL_BOOL;
        for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
            unsigned char own[8], want[8], got[8] = {0};
            int result = boolean ? ops[k].boolean : ops[k].number;
            if (result < 0)
                continue;
            encode(all[t].type, r->me == 0 ? 1 : boolean ? 0 : 3, own);
            encode(all[t].type, result, want);
            put_bytes(r, r->x, own, sizeof(own));
            int code =
                dlcoll_all_reduce(r->x, r->x, 1, all[t].type, ops[k].op, r->comm, NULL, NULL);
            bool f8 = all[t].type == DLCOLL_F8E4M3 || all[t].type == DLCOLL_F8E5M2;
            if (f8 && code == DLCOLL_ENOSUP) {
                refused++;
                continue;
            }
            if (code < 0)
                return verdict(r, FAIL, "type %d, reduction %d: %s", all[t].type, ops[k].op,
                               why(r));
            if (!get_bytes(r, got, r->x, all[t].size, NULL) || memcmp(got, want, all[t].size) != 0)
                return verdict(r, FAIL, "type %d, reduction %d is wrong", all[t].type, ops[k].op);
            done++;
        }
    }
    return verdict(r, PASS, "%d reductions, %d refused", done, refused);
}

static int duplicate_gpu(struct rank *r)
{
    unsetenv("NCCL_HOSTID");
    if (!use_device(r))
        return verdict(r, FAIL, "the device cannot be used");
    int code = sum(r, NULL);
    return verdict(r, code == DLCOLL_EINVAL && strstr(why(r), "same GPU") ? PASS : FAIL, "%d: %s",
                   code, why(r));
}

/* The recorder's times of an operation on a stream lie between the call and its end. */
static int device_times(struct rank *r)
{
    double slack_ms = 20 * (slower() > 1 ? 50 : 1); /* how far the two clocks may differ */
    const char *bad = begin(r);
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_record rec = {0};
    if (bad || (bad = warm_up(r)))
        return verdict(r, FAIL, "%s", bad);
    o.stream = (void *)2;
    double start = now_ms();
    if (sum(r, &o) < 0 || get(r, o.stream) != r->size * r->size)
        return verdict(r, FAIL, "%s", why(r));
    double end = now_ms();
    while (!rec.end_ns && now_ms() < end + 5000)
        dlcoll_recent(r->comm, -1, &rec, 1);
    double from = (double)rec.start_ns / 1e6, to = (double)rec.end_ns / 1e6;
    bool right = from > start - slack_ms && to > from && to < end + slack_ms;
    return verdict(r, right ? PASS : FAIL,
                   "begun %.3f ms after the call, ended %.3f ms after it, seen after %.3f ms",
                   from - start, to - start, end - start);
}

static int cost(struct rank *r, int mode)
{
    enum { CALLS = 500 };
    dlcoll_device_opts d = DLCOLL_DEVICE_OPTS_INIT;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    d.blocking = mode;
    o.stream = (void *)2;
    if (!use_device(r) || dlcoll_device_init(r->comm, &d) < 0 || warm_up(r))
        return verdict(r, FAIL, "%s", why(r));
    double start = now_ms();
    for (int i = 0; i < CALLS; i++) {
        if (sum(r, &o) < 0)
            return verdict(r, FAIL, "%s", why(r));
    }
    return verdict(r, PASS, "%.2f us of host time per call", (now_ms() - start) * 1e3 / CALLS);
}

static int cost_blocking(struct rank *r)
{
    return cost(r, DLCOLL_NCCL_IS_BLOCKING);
}

static int cost_non_blocking(struct rank *r)
{
    return cost(r, DLCOLL_NCCL_IS_NON_BLOCKING);
}

enum { ALL = -1, ALONE = 0 };

static const struct {
    const char *name;
    int limit_s;
    int (*run)(struct rank *);
    int ranks;  /* ALONE: one process without a communicator */
    int counts; /* the rank whose verdict counts, or ALL */
} g_cases[] = {
    {"lazy-context", 30, lazy_context, 2, ALL},
    {"two-ranks", 30, right, 2, ALL},
    {"streams", 30, streams, 2, ALL},
    {"sticky-error", 25, sticky_error, 2, ALL},
    {"no-cudart", 15, no_cudart, 2, ALL},
    {"graph-of-1", 25, graph, 1, ALL},
    {"graph-of-2", 30, graph, 2, ALL},
    {"split", 20, split_both, 2, ALL},
    {"split-no-color", 20, split_no_color, 2, ALL},
    {"split-blocking", 20, split_blocking, 2, ALL},
    {"alloc", 15, alloc, 2, ALL},
    {"window", 15, window, 2, ALL},
    {"messages", 15, messages, 2, ALL},
    {"stream-wait", 15, stream_wait, 2, ALL},
    {"late-connecting", 25, late_connecting, 2, ALL},
    {"late-peer", 25, late_peer, 2, ALL},
    {"late-blocking", 25, late_blocking, 2, ALL},
    {"init-peer-dies", 20, init_peer_dies, 2, 0},
    {"killed-peer", 25, killed_peer, 2, 0},
    {"deep-then-killed", 25, deep, 2, 0},
    {"abort-beside-synchronize", 25, abort_beside_synchronize, 2, 0},
    {"abort-with-graph", 30, abort_with_graph, 2, ALL},
    {"types", 30, types, 2, ALL},
    {"duplicate-gpu", 15, duplicate_gpu, 2, ALL},
    {"cost-blocking", 15, cost_blocking, 2, ALL},
    {"cost-non-blocking", 15, cost_non_blocking, 2, ALL},
    {"device-times", 20, device_times, 2, ALL},
    {"restart", 35, restart, ALONE, ALL},
    {"with-pytorch", 30, with_torch, ALONE, ALL},
};

/* --------------------------------------------------------------------------------------- runner */

static int be_rank(int me, int size, const char *method, int (*run)(struct rank *))
{
    struct rank r = {.me = me, .size = size};
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    char host[32];
    snprintf(host, sizeof(host), "rank%d", me);
    if (size == ALONE)
        return run(&r);
    setenv("NCCL_HOSTID", host, 1);
    if (run == device_times)
        setenv("DLCOLL_DEVICE_TIMES", "1", 1);
    o.init_method = method;
    o.rank = me;
    o.world_size = size;
    o.timeout_ms = 20000;
    if (dlcoll_init(&r.comm, &o) < 0)
        return verdict(&r, FAIL, "%s", why(&r));
    int code = run(&r);
    if (code == PASS && r.comm) /* else a rank that is done ends an operation of the other one's */
        dlcoll_finalize(r.comm);
    dlcoll_destroy(r.comm);
    return code;
}

/* In a process group of its own, so that nothing that a case has started outlives its limit. */
static pid_t start_rank(int me, size_t k, const char *method)
{
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        _exit(be_rank(me, g_cases[k].ranks, method, g_cases[k].run));
    }
    setpgid(pid, pid);
    return pid;
}

static int run_case(size_t k)
{
    char method[128];
    pid_t pid[RANKS] = {0};
    int n = g_cases[k].ranks == ALONE ? 1 : g_cases[k].ranks, left = n, result = PASS;
    int first_failed = 0; /* of the ranks: the one whose note is printed */
    double start = now_ms(), until = start + g_cases[k].limit_s * 1e3 * slower();
    bool late = false;
    memset(g, 0, sizeof(*g));
    snprintf(method, sizeof(method), "file:///tmp/dlcoll-gpu-%d-%zu", (int)getpid(), k);
    fflush(stdout);
    for (int i = 0; i < n; i++)
        pid[i] = start_rank(i, k, method);
    while (left) {
        for (int i = 0; i < n; i++) {
            int status;
            if (pid[i] <= 0 || waitpid(pid[i], &status, WNOHANG) != pid[i])
                continue;
            int code = WIFEXITED(status) ? WEXITSTATUS(status) : FAIL;
            bool counts = g_cases[k].counts == ALL || g_cases[k].counts == i;
            if (counts && code == FAIL && result != FAIL && !late)
                first_failed = i;
            if (counts && (result == PASS || code == FAIL))
                result = code;
            pid[i] = 0;
            left--;
        }
        for (int i = 0; now_ms() > until && i < n; i++) {
            late = true;
            if (pid[i] > 0)
                kill(-pid[i], SIGKILL);
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    unlink(method + sizeof("file://") - 1);
    result = late ? FAIL : result;
    printf("| %s | %s | %.1f s | %s%s |\n", g_cases[k].name,
           result == PASS     ? "PASS"
           : result == CANNOT ? "CANNOT"
                              : "FAIL",
           (now_ms() - start) / 1e3, late ? "the limit has passed; " : "",
           *g->note[first_failed] ? g->note[first_failed] : g->note[1]);
    fflush(stdout);
    return result;
}

static bool load_driver(void)
{
    const char *path = getenv("DLCOLL_CUDA_LIB");
    g_cuda_lib = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    if (!g_cuda_lib)
        return false;
#define LOAD(name, suffix, args)                                            \
    if (!(*(void **)&g_driver.name = dlsym(g_cuda_lib, "cu" #name suffix))) \
        fprintf(stderr, "the CUDA driver has no cu" #name suffix "()\n");
    DRIVER(LOAD)
#undef LOAD
    return true;
}

/* In a process of its own, as CUDA does not survive a fork(). CANNOT: what is missing is printed.
 */
static int print_facts(void)
{
    static const char *const modes[] = {"Default", "Exclusive_Thread", "Prohibited",
                                        "Exclusive_Process"};
    const struct cuda_api *cuda;
    const struct nccl_api *nccl;
    struct err e = ERR_INIT;
    int n = 0, version = 0, rc;
    if (cuda_api_get(&cuda, &e) < 0) {
        printf("SKIPPED: %s\n", e.msg);
        return CANNOT;
    }
    if ((rc = cuda->Init(0)) != CUDA_OK || (rc = cuda->DeviceGetCount(&n)) != CUDA_OK || n == 0) {
        printf("SKIPPED: the CUDA driver has no device: %s\n",
               rc == CUDA_OK ? "none is visible" : cuda_strerror(cuda, rc));
        return CANNOT;
    }
    if (nccl_api_get(&nccl, &e) < 0) {
        printf("SKIPPED: %s\n", e.msg);
        return CANNOT;
    }
    g_driver.DriverGetVersion(&version);
    printf("CUDA %d.%d (the driver's), NCCL %d.%d.%d\n", version / 1000, version % 1000 / 10,
           nccl->version / 10000, nccl->version / 100 % 100, nccl->version % 100);
    for (int i = 0; i < n; i++) {
        char name[128] = "?";
        size_t bytes = 0;
        int major = 0, minor = 0, mode = 0;
        g_driver.DeviceGetName(name, sizeof(name), i);
        g_driver.DeviceTotalMem(&bytes, i);
        cuda->DeviceGetAttribute(&major, CUDA_CAPABILITY_MAJOR, i);
        cuda->DeviceGetAttribute(&minor, CUDA_CAPABILITY_MINOR, i);
        cuda->DeviceGetAttribute(&mode, CUDA_COMPUTE_MODE, i);
        printf("device %d: %s, %.1f GB, compute capability %d.%d, compute mode %s\n", i, name,
               (double)bytes / 1e9, major, minor, modes[mode & 3]);
    }
    return PASS;
}

/* The unique id, which rank 0 leaves in a file. */
static bool share_id(const struct nccl_api *nccl, const char *folder, int rank, struct nccl_id *id)
{
    char path[256], part[256];
    snprintf(path, sizeof(path), "%s/id", folder);
    snprintf(part, sizeof(part), "%s/part", folder);
    for (double until = now_ms() + 20000; rank != 0 && now_ms() < until;) {
        FILE *f = fopen(path, "r");
        size_t n = f ? fread(id, sizeof(*id), 1, f) : 0;
        if (f)
            fclose(f);
        if (n)
            return true;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    FILE *f = rank == 0 && nccl->GetUniqueId(id) == NCCL_OK ? fopen(part, "w") : NULL;
    return f && fwrite(id, sizeof(*id), 1, f) == 1 && fclose(f) == 0 && rename(part, path) == 0;
}

/* A library that knows later fields takes them for unset by the size; an older one by the version.
 */
static struct nccl_config plain_config(int blocking)
{
    return (struct nccl_config){.size = offsetof(struct nccl_config, traffic_class),
                                .magic = NCCL_CONFIG_MAGIC,
                                .version = NCCL_CONFIG_VERSION,
                                .blocking = blocking,
                                .cga_cluster_size = NCCL_CONFIG_UNDEF,
                                .min_ctas = NCCL_CONFIG_UNDEF,
                                .max_ctas = NCCL_CONFIG_UNDEF,
                                .split_share = NCCL_CONFIG_UNDEF};
}

/* Returns only if something is wrong. */
static int plain_hang(const char *folder)
{
    const struct nccl_api *nccl;
    struct err e = ERR_INIT;
    struct nccl_id id;
    struct rank r = {.me = atoi(getenv("RANK") ?: "0"), .size = 2};
    struct nccl_config conf = plain_config(1);
    nccl_comm_t comm;
    setenv("NCCL_HOSTID", r.me ? "one" : "zero", 1);
    if (nccl_api_get(&nccl, &e) < 0 || !use_device(&r) || !share_id(nccl, folder, r.me, &id) ||
        nccl->CommInitRankConfig(&comm, r.size, id, r.me, &conf) != NCCL_OK)
        return FAIL;
    for (int i = 0; i < 51; i++) {
        while (i == 50 && r.me == 1)
            pause();
        if (nccl->AllReduce(r.x, r.y, 1, NCCL_F32, NCCL_SUM, comm, NULL) != NCCL_OK ||
            g_driver.CtxSynchronize() != CUDA_OK)
            return FAIL;
    }
    return FAIL;
}

static int state_of(const struct nccl_api *nccl, nccl_comm_t comm)
{
    int state = -1;
    nccl->CommGetAsyncError(comm, &state);
    return state;
}

static void await_state(const struct nccl_api *nccl, nccl_comm_t comm)
{
    double start = now_ms();
    while (state_of(nccl, comm) == NCCL_IN_PROGRESS && now_ms() < start + 30000)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    printf("state %d after %.0f ms\n", state_of(nccl, comm), now_ms() - start);
}

/* The results are in static memory, since NCCL writes them when it likes. */
static int probe(const char *what)
{
    static nccl_comm_t comm, child;
    static void *w;
    const struct nccl_api *nccl;
    struct err e = ERR_INIT;
    struct nccl_id id;
    struct rank r = {0};
    void *p = NULL;
    struct nccl_config conf = plain_config(0);
    int size = strcmp(what, "abort") == 0 ? 2 : 1; /* the second rank never comes */
    if (nccl_api_get(&nccl, &e) < 0 || !use_device(&r) || nccl->GetUniqueId(&id) != NCCL_OK)
        return FAIL;
    printf("init %d, ", nccl->CommInitRankConfig(&comm, size, id, 0, &conf));
    if (strcmp(what, "abort") == 0) {
        nanosleep(&(struct timespec){1, 0}, NULL);
        printf("state %d, ", state_of(nccl, comm));
        fflush(stdout);
        printf("abort %d\n", nccl->CommAbort(comm));
        return PASS;
    }
    await_state(nccl, comm);
    if (strcmp(what, "split") == 0 && nccl->CommSplit) {
        int rc = nccl->CommSplit(comm, 0, 0, &child, &conf);
        printf("split %d, child %s, ", rc, child ? "there" : "NULL");
        await_state(nccl, comm);
        printf("child %s\n", child ? "there" : "NULL");
    } else if (strcmp(what, "window") == 0 && nccl->CommWindowRegister && nccl->MemAlloc) {
        printf("alloc %d, ", nccl->MemAlloc(&p, 4 << 20));
        int rc = nccl->CommWindowRegister(comm, p, 4 << 20, &w, NCCL_WINDOW_SYMMETRIC);
        printf("window %d, %s, ", rc, w ? "there" : "NULL");
        await_state(nccl, comm);
        printf("window %s\n", w ? "there" : "NULL");
    }
    return PASS;
}

static int trap(void)
{
    struct rank r = {0};
    if (!use_device(&r) || !break_device())
        return CANNOT;
    nanosleep(&(struct timespec){2, 0}, NULL); /* the driver writes its line */
    return FAIL;
}

static bool is_asked(int argc, char **argv, const char *name)
{
    bool asked = argc == 1;
    for (int i = 1; i < argc; i++)
        asked = asked || strcmp(argv[i], name) == 0;
    return asked;
}

int main(int argc, char **argv)
{
    const char *nccl = getenv("DLCOLL_NCCL_LIB");
    int failed = 0, found = 0, limits_s = 0;
    if (!load_driver()) {
        printf("SKIPPED: the CUDA driver cannot be loaded: %s\n", dlerror());
        return CANNOT;
    }
    if (argc == 2 && strcmp(argv[1], "facts") == 0)
        return print_facts();
    if (argc == 2 && strcmp(argv[1], "trap") == 0)
        return trap();
    if (argc == 3 && strcmp(argv[1], "probe") == 0)
        return probe(argv[2]);
    if (argc == 3 && strcmp(argv[1], "plain-hang") == 0)
        return plain_hang(argv[2]);
    if (argc == 3 && strcmp(argv[1], "hold-memory") == 0)
        return hold_memory(argv[2]);
    if (nccl && *nccl && !dlopen(nccl, RTLD_NOW)) {
        fprintf(stderr, "NCCL cannot be loaded: %s\n", dlerror());
        return FAIL;
    }
    g = mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        return FAIL;
    for (size_t k = 0; k < sizeof(g_cases) / sizeof(g_cases[0]); k++) {
        limits_s += g_cases[k].limit_s;
        if (!is_asked(argc, argv, g_cases[k].name))
            continue;
        found++;
        failed += run_case(k) == FAIL;
    }
    assert(limits_s <= LIMITS_S);
    return failed || !found;
}
