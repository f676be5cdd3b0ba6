#include "tests/bench/coll/harness.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static const char *const bench_names[BENCH_OPS] = {
    "all_reduce", "broadcast", "all_gather", "reduce_scatter",  "all_to_all",
    "reduce",     "pingpong",  "barrier",    "all_reduce:bf16", "all_reduce:f16"};

enum {
    BENCH_SAMPLE_US = 50,
    BENCH_LEAST_WARM = 5, /* the first ones find no memory in place, and some libraries learn */
    BENCH_LEAST_SAMPLES = 7,
    BENCH_MOST_SAMPLES = 20000,
    BENCH_SLOW_MS = 4000
};

int bench_root;

double bench_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static size_t bench_elem(enum bench_op op)
{
    return op == ALL_REDUCE_BF16 || op == ALL_REDUCE_F16 ? 2 : 4;
}

static int bench_has_parts(enum bench_op op)
{
    return op == ALL_GATHER || op == REDUCE_SCATTER || op == ALL_TO_ALL;
}

static int bench_has_root(enum bench_op op)
{
    return op == BROADCAST || op == REDUCE;
}

int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

size_t bench_size(const char *s)
{
    char *end;
    double n = strtod(s, &end);
    const char *units = "KMG", *unit = *end ? strchr(units, *end) : NULL;
    return (size_t)(n * (unit ? (double)(1ull << (10 * (unit - units + 1))) : 1));
}

/* ------------------------------------------------------------------------------------- checking */

/* Small integers, which all types hold, and their sums over few ranks. */
static int bench_value(int rank, size_t i)
{
    return (int)(i % 5) * (rank % 2 ? 1 : 2) + rank % 3;
}

static void bench_put(enum bench_op op, char *p, size_t i, int value)
{
    float f = (float)value;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f, 4);
    if (op == ALL_REDUCE_F16) /* exponent from 8 bits to 5, mantissa from 23 to 10 */
        half = value ? (uint16_t)((bits >> 13) - ((127 - 15) << 10)) : 0;
    else
        half = (uint16_t)(bits >> 16);
    if (bench_elem(op) == 4)
        memcpy(p + i * 4, &f, 4);
    else
        memcpy(p + i * 2, &half, 2);
}

static int bench_expected(const struct bench_peer *p, enum bench_op op, size_t i, size_t part)
{
    int sum = 0;
    size_t at = op == REDUCE_SCATTER ? (size_t)p->rank * part + i : i;
    switch (op) {
    case BROADCAST:
        return bench_value(0, i);
    case ALL_GATHER:
        return bench_value((int)(i / part), i);
    case ALL_TO_ALL:
        return bench_value((int)(i / part), (size_t)p->rank * part + i % part);
    case PINGPONG:
        return bench_value(0, i);
    default:
        for (int r = 0; r < p->ranks; r++)
            sum += bench_value(r, at);
        return sum;
    }
}

static void bench_check(const struct bench_peer *p, enum bench_op op, char *a, char *b,
                        size_t count)
{
    size_t part = count / (size_t)p->ranks, n = op == REDUCE_SCATTER ? part : count, wrong = 0;
    char *out = op == REDUCE || op == REDUCE_SCATTER || op == ALL_TO_ALL ? b : a, want[4];
    int mine = op == REDUCE ? p->rank == 0 : op == PINGPONG ? p->rank == 1 : op != BARRIER;
    for (size_t i = 0; i < count; i++) {
        int own = op != ALL_GATHER || i / part == (size_t)p->rank;
        bench_put(op, a, i, own ? bench_value(p->rank, i) : 0);
    }
    bench_root = 0;
    p->barrier();
    if (op != PINGPONG || p->rank < 2)
        p->run(op, a, b, count);
    for (size_t i = 0; mine && i < n; i++) {
        bench_put(op, want, 0, bench_expected(p, op, i, part));
        wrong += memcmp(out + i * bench_elem(op), want, bench_elem(op)) != 0;
    }
    if (wrong)
        fprintf(stderr, "%s of %zu elements: %zu wrong on rank %d\n", bench_names[op], count, wrong,
                p->rank);
}

/* --------------------------------------------------------------------------------------- timing */

/* n samples, each of `of` iterations. */
static void bench_repeat(const struct bench_peer *p, enum bench_op op, char *a, char *b,
                         size_t count, int n, int of, double *times)
{
    int idle = op == PINGPONG && p->rank > 1, roots = bench_has_root(op) ? p->ranks : 1;
    double last = bench_now_us();
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < of; k++) {
            for (bench_root = 0; bench_root < roots && !idle; bench_root++)
                p->run(op, a, b, count);
        }
        double t = bench_now_us();
        times[i] = (t - last) / (roots * of);
        last = t;
    }
}

static int bench_clamp(double x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

/* Measures one size. True: it was fast enough to go on with larger ones. */
static int bench_cell(const struct bench_peer *p, const char *name, enum bench_op op, char *a,
                      char *b, size_t bytes, double budget_us, double *times)
{
    size_t unit = bench_elem(op) * (bench_has_parts(op) ? (size_t)p->ranks : 1);
    bytes = op == BARRIER ? 0 : (bytes + unit - 1) / unit * unit;
    size_t count = bytes / bench_elem(op);
    if (p->prepare && p->prepare(op, a, b, count))
        return 0;
    double start = bench_now_us();
    if (!p->unchecked)
        bench_check(p, op, a, b, count);
    memset(a, 0, bytes);
    memset(b, 0, bytes);
    p->barrier();
    double first = bench_now_us();
    bench_repeat(p, op, a, b, count, 2, 1, times);
    double each = (bench_now_us() - first) / 2;
    int warm = p->agree(bench_clamp(budget_us / 5 / each, BENCH_LEAST_WARM, 500));
    first = bench_now_us();
    bench_repeat(p, op, a, b, count, warm, 1, times);
    each = (bench_now_us() - first) / warm;
    int of = p->agree(bench_clamp(BENCH_SAMPLE_US / each, 1, 1000));
    int n = p->agree(bench_clamp(budget_us / each / of, BENCH_LEAST_SAMPLES, BENCH_MOST_SAMPLES));
    p->barrier();
    bench_repeat(p, op, a, b, count, n, of, times);
    qsort(times, (size_t)n, sizeof(double), bench_by_value);
    int idle = op == PINGPONG && p->rank > 1;
    double half = op == PINGPONG ? 0.5 : 1;
    double median = p->most(idle ? 0 : times[n / 2] * half);
    double p99 = p->most(idle ? 0 : times[(int)(n * 0.99)] * half);
    if (p->rank == 0) {
        printf("%s %s %d %zu %d %.3f %.3f\n", name, bench_names[op], p->ranks, bytes, n * of,
               median, p99);
        fflush(stdout);
    }
    int slow = p->agree(bench_now_us() - start > BENCH_SLOW_MS * 1e3);
    if (slow && p->rank == 0) {
        printf("# %s %s %d %zu slow\n", name, bench_names[op], p->ranks, bytes);
        fflush(stdout);
    }
    return !slow && op != BARRIER;
}

/* ----------------------------------------------------------------------------------------- main */

static char *bench_memory(const struct bench_peer *p, size_t bytes)
{
    void *m = p->memory
                  ? p->memory(bytes)
                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!m || m == MAP_FAILED) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    memset(m, 0, bytes);
    return (char *)m;
}

int bench_main(int argc, char **argv, const struct bench_peer *p)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s NAME OPS SIZES BUDGET_MS\n", argv[0]);
        return 2;
    }
    size_t sizes[64], n = 0, most = 0;
    for (char *s = strtok(argv[3], ","); s && n < 64; s = strtok(NULL, ",")) {
        sizes[n] = bench_size(s);
        most = sizes[n] > most ? sizes[n] : most;
        n++;
    }
    most += 4096 + 4 * (size_t)p->ranks;
    char *a = bench_memory(p, most), *b = bench_memory(p, most);
    double *times = (double *)malloc(BENCH_MOST_SAMPLES * sizeof(double));
    for (char *s = strtok(argv[2], ","); s; s = strtok(NULL, ",")) {
        int op = 0, more = 1;
        while (op < BENCH_OPS && strcmp(s, bench_names[op]))
            op++;
        if (op == BENCH_OPS) {
            fprintf(stderr, "there is no operation '%s'\n", s);
            return 2;
        }
        for (size_t i = 0; more && i < n; i++)
            more = bench_cell(p, argv[1], (enum bench_op)op, a, b, sizes[i], atof(argv[4]) * 1e3,
                              times);
    }
    free(times);
    return 0;
}
