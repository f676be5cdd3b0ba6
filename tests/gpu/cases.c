/* cases.c: what only a machine with a GPU can show, one case per line: its ranks are processes of
 * this program that share the first GPU (NCCL_HOSTID differs, so that NCCL allows it), each case
 * has a hard limit, and the limits sum to less than nine minutes. Prints PASS, FAIL or CANNOT with
 * a reason for each, as rows of tests/gpu/RESULTS.md.
 *
 *     cases [CASE...]
 *
 * Exit status: 0, or 1: a case has failed; 77: there is no CUDA driver. The same program runs
 * against the libraries of tests/fake (DLCOLL_CUDA_LIB, DLCOLL_NCCL_LIB), so that the cases are
 * known to work, and to be able to fail. */
#include <dlfcn.h>
#include <errno.h>
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

struct shared {
    _Atomic int ready;
    _Atomic double killed_ms;
    char note[RANKS][NOTE];
};

struct rank {
    int me, size;
    dlcoll_comm *comm;
    const struct cuda_api *cuda;
    int *x; /* BYTES of device memory */
};

static struct shared *g;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
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

/* ---------------------------------------------------------------------------------- device memory
 */

static void put(const struct rank *r, int value)
{
    r->cuda->MemcpyAsync((cuda_ptr)(uintptr_t)r->x, (cuda_ptr)(uintptr_t)&value, sizeof(value),
                         NULL);
    dlcoll_barrier(r->comm, NULL, NULL);
}

/* Reads the buffer after all operations on the stream; -1: they have not completed within ten
 * seconds. */
static int get(const struct rank *r, void *stream)
{
    int value = -1;
    cuda_event e;
    r->cuda->MemcpyAsync((cuda_ptr)(uintptr_t)&value, (cuda_ptr)(uintptr_t)r->x, sizeof(value),
                         stream);
    if (r->cuda->EventCreate(&e, CUDA_NO_TIMING) != CUDA_OK ||
        r->cuda->EventRecord(e, stream) != CUDA_OK)
        return -1;
    for (double until = now_ms() + 10000; r->cuda->EventQuery(e) == CUDA_NOT_READY;) {
        if (now_ms() > until)
            return -1;
    }
    r->cuda->EventDestroy(e);
    return value;
}

/* As cudaSetDevice(0) and cudaMalloc(). */
static bool use_device(struct rank *r)
{
    struct err e = ERR_INIT;
    cuda_context c;
    cuda_ptr p;
    if (cuda_api_get(&r->cuda, &e) < 0 || r->cuda->Init(0) != CUDA_OK ||
        r->cuda->DevicePrimaryCtxRetain(&c, 0) != CUDA_OK ||
        r->cuda->CtxPushCurrent(c) != CUDA_OK || r->cuda->MemAlloc(&p, BYTES) != CUDA_OK)
        return false;
    r->x = (int *)(uintptr_t)p;
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

/* ------------------------------------------------------------------------------------------ cases
 */

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

/* The default streams (NULL is the library's own), one that waits for them, and one that does not.
 */
static int streams(struct rank *r)
{
    const char *bad = begin(r);
    cuda_stream non_blocking;
    int low, high;
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    r->cuda->CtxGetStreamPriorityRange(&low, &high);
    if (r->cuda->StreamCreateWithPriority(&non_blocking, CUDA_NON_BLOCKING, high) != CUDA_OK)
        return verdict(r, FAIL, "a stream cannot be created");
    void *all[] = {NULL, (void *)1, (void *)2, non_blocking};
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

static int late_peer(struct rank *r)
{
    const char *bad = begin(r);
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    if (bad)
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
    return verdict(r, code == DLCOLL_ETIMEDOUT && took < 4000 ? PASS : FAIL, "%.0f ms: %s", took,
                   why(r));
}

static int await_death(struct rank *r, int calls)
{
    const char *bad = begin(r);
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    int code = 0;
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    o.stream = (void *)2;
    meet();
    if (r->me == 1) {
        for (int i = 0; i < calls && code == 0; i++)
            code = sum(r, &o);
        g->killed_ms = now_ms();
        raise(SIGKILL);
    }
    for (int i = 0; i < calls + 100000 && code == 0; i++)
        code = sum(r, i % 256 ? &o : NULL);
    double took = now_ms() - g->killed_ms;
    return verdict(r, code < 0 && took < 1000 ? PASS : FAIL, "%.1f ms after the kill: %s", took,
                   why(r));
}

static int killed_peer(struct rank *r)
{
    return await_death(r, 50);
}

static int deep(struct rank *r)
{
    return await_death(r, 20000);
}

static int types(struct rank *r)
{
    static const dlcoll_dtype all[] = {DLCOLL_I8,  DLCOLL_U8,   DLCOLL_I32, DLCOLL_U32,
                                       DLCOLL_I64, DLCOLL_U64,  DLCOLL_F16, DLCOLL_F32,
                                       DLCOLL_F64, DLCOLL_BF16, DLCOLL_BOOL};
    static const dlcoll_op ops[] = {DLCOLL_SUM, DLCOLL_PROD, DLCOLL_MAX, DLCOLL_MIN};
    const char *bad = begin(r);
    int done = 0;
    if (bad)
        return verdict(r, FAIL, "%s", bad);
    put(r, 0);
    for (size_t t = 0; t < sizeof(all) / sizeof(all[0]); t++) {
        for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++, done++) {
            if (dlcoll_all_reduce(r->x, r->x, 1, all[t], ops[k], r->comm, NULL, NULL) < 0)
                return verdict(r, FAIL, "type %d, reduction %d: %s", all[t], ops[k], why(r));
            if (get(r, NULL) != 0)
                return verdict(r, FAIL, "type %d, reduction %d: zeros are not 0", all[t], ops[k]);
        }
    }
    return verdict(r, PASS, "%d reductions", done);
}

static int duplicate_gpu(struct rank *r)
{
    unsetenv("NCCL_HOSTID");
    if (!use_device(r))
        return verdict(r, FAIL, "the device cannot be used");
    int code = sum(r, NULL);
    return verdict(r, code == DLCOLL_EINVAL && strstr(why(r), "same GPU") ? PASS : FAIL, "%s",
                   why(r));
}

static int cost(struct rank *r, int mode)
{
    enum { CALLS = 500 };
    dlcoll_device_opts d = DLCOLL_DEVICE_OPTS_INIT;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    d.blocking = mode;
    o.stream = (void *)2;
    if (!use_device(r) || dlcoll_device_init(r->comm, &d) < 0)
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

static const struct {
    const char *name;
    int limit_s;
    int (*run)(struct rank *);
    int survivor; /* the rank whose verdict counts alone, or -1 */
} g_cases[] = {
    {"lazy-context", 40, lazy_context, -1},
    {"two-ranks", 40, right, -1},
    {"streams", 30, streams, -1},
    {"late-peer", 25, late_peer, -1},
    {"killed-peer", 25, killed_peer, 0},
    {"deep-then-killed", 60, deep, 0},
    {"types", 60, types, -1},
    {"duplicate-gpu", 30, duplicate_gpu, -1},
    {"cost-blocking", 40, cost_blocking, -1},
    {"cost-non-blocking", 40, cost_non_blocking, -1},
};

/* ----------------------------------------------------------------------------------------- runner
 */

static int be_rank(int me, const char *method, int (*run)(struct rank *))
{
    struct rank r = {.me = me, .size = RANKS};
    dlcoll_init_opts o = DLCOLL_INIT_OPTS_INIT;
    char host[32];
    snprintf(host, sizeof(host), "rank%d", me);
    setenv("NCCL_HOSTID", host, 1);
    o.init_method = method;
    o.rank = me;
    o.world_size = RANKS;
    o.timeout_ms = 20000;
    if (dlcoll_init(&r.comm, &o) < 0)
        return verdict(&r, FAIL, "%s", why(&r));
    int code = run(&r);
    dlcoll_destroy(r.comm);
    return code;
}

static int run_case(size_t k)
{
    char method[128];
    pid_t pid[RANKS];
    int left = RANKS, result = PASS;
    double start = now_ms(), until = start + g_cases[k].limit_s * 1e3;
    bool late = false;
    memset(g, 0, sizeof(*g));
    snprintf(method, sizeof(method), "file:///tmp/dlcoll-gpu-%d-%zu", (int)getpid(), k);
    fflush(stdout);
    for (int i = 0; i < RANKS; i++) {
        if ((pid[i] = fork()) == 0)
            _exit(be_rank(i, method, g_cases[k].run));
    }
    while (left) {
        for (int i = 0; i < RANKS; i++) {
            int status;
            if (pid[i] <= 0 || waitpid(pid[i], &status, WNOHANG) != pid[i])
                continue;
            int code = WIFEXITED(status) ? WEXITSTATUS(status) : FAIL;
            bool counts = g_cases[k].survivor < 0 || g_cases[k].survivor == i;
            if (counts && (result == PASS || code == FAIL))
                result = code;
            pid[i] = 0;
            left--;
        }
        for (int i = 0; now_ms() > until && i < RANKS; i++) {
            late = true;
            if (pid[i] > 0)
                kill(pid[i], SIGKILL);
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
           g->note[0][0] ? g->note[0] : g->note[1]);
    fflush(stdout);
    return result;
}

int main(int argc, char **argv)
{
    const char *nccl = getenv("DLCOLL_NCCL_LIB"), *cuda = getenv("DLCOLL_CUDA_LIB");
    int failed = 0, found = 0;
    if (!dlopen(cuda && *cuda ? cuda : "libcuda.so.1", RTLD_NOW)) {
        fprintf(stderr, "there is no CUDA driver: %s\n", dlerror());
        return CANNOT;
    }
    if (nccl && *nccl && !dlopen(nccl, RTLD_NOW)) {
        fprintf(stderr, "NCCL cannot be loaded: %s\n", dlerror());
        return FAIL;
    }
    g = mmap(NULL, sizeof(*g), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        return FAIL;
    for (size_t k = 0; k < sizeof(g_cases) / sizeof(g_cases[0]); k++) {
        bool asked = argc == 1;
        for (int i = 1; i < argc; i++)
            asked = asked || strcmp(argv[i], g_cases[k].name) == 0;
        if (!asked)
            continue;
        found++;
        failed += run_case(k) == FAIL;
    }
    return failed || !found;
}
