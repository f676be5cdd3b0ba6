/* bench_shm: collective operations among the ranks of this machine, through shared memory.
 *
 *     bench_shm RANKS OPS SIZES [BUDGET_MS] [shared] [NAME=VALUE...]
 *
 * OPS and SIZES are lists with commas; sizes as nccl-tests has them (K, M). `shared`: buffers from
 * the shared memory. NAME=VALUE: a row SHM of collectives/comm/selection.def.
 * For each a line
 *
 *     impl op ranks bytes usec_median usec_p99 algbw_GBps busbw_GBps
 *
 * with the slowest rank's median. f32, sum, in place where the operation allows; back to back, but
 * for broadcast and reduce, which have an untimed barrier between. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/shm/memory.h"
#include "collectives/shm/tuning.h"
#include "core/clock.h"
#include "tests/lib/shm_world.h"

enum { MOST_TIMES = 20000 };

static const struct op {
    const char *name;
    enum call_kind kind;
    bool parts; /* the size is that of all ranks' parts together */
    bool barrier;
} g_ops[] = {
    {"allreduce", CALL_ALL_REDUCE, false, false},
    {"broadcast", CALL_BROADCAST, false, true},
    {"allgather", CALL_ALL_GATHER, true, false},
    {"reduce_scatter", CALL_REDUCE_SCATTER, true, false},
    {"alltoall", CALL_ALL_TO_ALL, true, false},
    {"reduce", CALL_REDUCE, false, true},
    {"barrier", CALL_BARRIER, false, false},
    {"gather", CALL_GATHER, true, false},
    {"scatter", CALL_SCATTER, true, false},
};

struct bench {
    struct shm_world w;
    char *ops, *sizes;
    double budget_ms;
    bool shared;
    struct {
        double median, p99;
    } * result; /* by rank, shared */
    _Atomic long *go;
};

static size_t parse_size(const char *text)
{
    char *end;
    double v = strtod(text, &end);
    return (size_t)(v * (*end == 'K' ? 1024 : *end == 'M' ? 1048576 : 1));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void must(int r, const struct coll_call *c)
{
    if (r == 0)
        return;
    fprintf(stderr, "rank %d: %d %s\n", c->ranks.me, r, c->failure->err.msg);
    _exit(1);
}

static void barrier(dlcoll_comm *c)
{
    struct coll_call call = shm_world_call(c, CALL_BARRIER, 0, DLCOLL_F32, 0, 0);
    must(shm_world_run(&call), &call);
}

static double once(struct coll_call call)
{
    uint64_t t = mono_ns();
    must(shm_world_run(&call), &call);
    return (double)(mono_ns() - t) / 1000;
}

/* The call on buffers a and b of `bytes`, in nccl-tests' sense. */
static struct coll_call prepare(dlcoll_comm *c, const struct op *op, size_t bytes, char *a, char *b)
{
    size_t n = (size_t)c->size, count = bytes / 4 / (op->parts ? n : 1);
    struct coll_call call = shm_world_call(c, op->kind, count, DLCOLL_F32, DLCOLL_SUM, 0);
    call.send = call.recv = a;
    if (op->kind == CALL_ALL_GATHER || op->kind == CALL_GATHER)
        call.send = a + (size_t)c->rank * count * 4;
    if (op->kind == CALL_REDUCE_SCATTER || op->kind == CALL_ALL_TO_ALL || op->kind == CALL_SCATTER)
        call.recv = b;
    return call;
}

static void measure(struct bench *j, dlcoll_comm *c, const struct op *op, size_t bytes, char *a,
                    char *b, double *times)
{
    size_t unit = op->parts ? 4 * (size_t)c->size : 4;
    bytes = (bytes + unit - 1) / unit * unit;
    struct coll_call call = prepare(c, op, bytes, a, b);
    memset(a, 0, bytes);
    barrier(c);
    double estimate = 0;
    for (int i = 0; i < 5; i++)
        estimate = once(call);
    for (int i = 0; i < 3; i++) {
        double t = once(call);
        estimate = t < estimate ? t : estimate;
    }
    if (c->rank == 0) {
        double k = j->budget_ms * 1000 / (estimate + 0.01);
        *j->go = k < 5 ? 5 : k > MOST_TIMES ? MOST_TIMES : (long)k;
    }
    barrier(c);
    long k = *j->go;
    for (long i = 0; i < k; i++) {
        if (op->barrier)
            barrier(c);
        times[i] = once(call);
    }
    qsort(times, (size_t)k, sizeof(*times), by_value);
    j->result[c->rank].median = times[k / 2];
    j->result[c->rank].p99 = times[k * 99 / 100];
    barrier(c);
    if (c->rank == 0) {
        double med = 0, p99 = 0;
        for (int i = 0; i < c->size; i++) {
            med = j->result[i].median > med ? j->result[i].median : med;
            p99 = j->result[i].p99 > p99 ? j->result[i].p99 : p99;
        }
        double alg = (double)bytes / med * 1e-3, share = (double)(c->size - 1) / c->size;
        double bus = op->kind == CALL_ALL_REDUCE ? 2 * share : op->parts ? share : 1;
        printf("dlcoll-shm%s %s %d %zu %.2f %.2f %.4f %.4f\n", j->shared ? "-shared" : "", op->name,
               c->size, bytes, med, p99, alg, alg * bus);
        fflush(stdout);
    }
    barrier(c);
}

static char *buffer(struct bench *j, dlcoll_comm *c, size_t bytes)
{
    char *p = j->shared
                  ? shm_alloc(c, bytes)
                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!p || p == MAP_FAILED) {
        fprintf(stderr, "no memory\n");
        _exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

static void rank(struct bench *j, int i)
{
    dlcoll_comm *c = shm_world_comm(&j->w, i);
    if (j->w.n <= j->w.world[i].usable_cpus) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(i, &set);
        sched_setaffinity(0, sizeof(set), &set);
    }
    size_t most = 4096;
    char *list = strdup(j->sizes), *save;
    for (char *p = strtok_r(list, ",", &save); p; p = strtok_r(NULL, ",", &save))
        most = parse_size(p) > most ? parse_size(p) : most;
    most += 4096;
    char *a = buffer(j, c, most), *b = buffer(j, c, most);
    double *times = calloc(MOST_TIMES, sizeof(*times));
    barrier(c);
    for (char *o = strtok(j->ops, ","); o; o = strtok(NULL, ",")) {
        for (size_t k = 0; k < sizeof(g_ops) / sizeof(g_ops[0]); k++) {
            if (strcmp(o, g_ops[k].name) != 0)
                continue;
            char *sizes = strdup(j->sizes);
            for (char *p = strtok_r(sizes, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
                size_t bytes = g_ops[k].kind == CALL_BARRIER ? 0 : parse_size(p);
                measure(j, c, &g_ops[k], bytes, a, b, times);
                if (!bytes)
                    break;
            }
            free(sizes);
        }
    }
    _exit(0);
}

static void tune(const char *arg)
{
    const char *value = strchr(arg, '=');
    size_t len = (size_t)(value - arg), v = parse_size(value + 1);
#define SHM(name, bytes, decides, measured)                   \
    if (len == strlen(#name) && memcmp(arg, #name, len) == 0) \
        shm_tuning.name = v;
#include "collectives/comm/selection.def"
}

int main(int argc, char **argv)
{
    struct bench j = {.budget_ms = 200};
    if (argc < 4) {
        fprintf(stderr, "usage: bench_shm RANKS OPS SIZES [BUDGET_MS] [shared] [NAME=VALUE...]\n");
        return 2;
    }
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "shared") == 0)
            j.shared = true;
        else if (strchr(argv[i], '='))
            tune(argv[i]);
        else
            j.budget_ms = atof(argv[i]);
    }
    j.ops = argv[2];
    j.sizes = argv[3];
    shm_world_init(&j.w, atoi(argv[1]), 0);
    char *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    j.result = (void *)shared;
    j.go = (void *)(shared + 4096);
    for (int i = 0; i < j.w.n; i++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank(&j, i);
        }
    }
    int status, bad = 0;
    while (wait(&status) > 0)
        bad |= status;
    return bad != 0;
}
