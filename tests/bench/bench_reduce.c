/* bench_reduce.c: how fast the reduction kernels are, beside memcpy().
 *
 *     bench_reduce [OP]      sum (default), prod, max, min
 *
 * In GB/s of one operand (bytes of the result a second), with operands of 32 KB, 1 MB and 32 MB.
 * `two` is dst = a op b, `in place` a = a op b, `x8` eight sources in one pass (of an eighth of the
 * size each, so that all of them together are as much), and `x4 past` four with stores that pass
 * the caches. All kernels of a size are run in turn, again and again; medians are shown. The
 * buffers are 16 bytes off a cache line, as malloc() gives large ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/reduce/reduce.h"
#include "core/clock.h"
#include "core/mem.h"

enum { ROUNDS = 9, MOST = 32 << 20, SOURCES = 8, OFF = 16 };

enum shape { COPY, TWO, IN_PLACE, EIGHT, FOUR, FOUR_PAST, SHAPES };
static const char *const g_shapes[SHAPES] = {"memcpy", "two", "in place", "x8", "x4", "x4 past"};

static uint8_t *g_src[SOURCES], *g_dst;

static void once(const struct reduce_info *r, enum shape shape, size_t bytes)
{
    size_t count = bytes / r->dtype->size;
    switch (shape) {
    case COPY:
        memcpy(g_dst, g_src[0], bytes);
        break;
    case TWO:
        reduce_two(r, g_dst, g_src[0], g_src[1], count);
        break;
    case IN_PLACE:
        reduce_two(r, g_src[0], g_src[0], g_src[1], count);
        break;
    case EIGHT:
        reduce_many(r, g_dst, (const void *const *)g_src, 8, count / 8);
        break;
    case FOUR:
        reduce_many(r, g_dst, (const void *const *)g_src, 4, count / 4);
        break;
    default:
        reduce_many_stream(r, g_dst, (const void *const *)g_src, 4, count / 4);
    }
}

static size_t result_bytes(enum shape shape, size_t bytes)
{
    return shape == EIGHT ? bytes / 8 : shape == FOUR || shape == FOUR_PAST ? bytes / 4 : bytes;
}

static double rate(const struct reduce_info *r, enum shape shape, size_t bytes)
{
    size_t times = (4u << 20) / bytes + 1;
    uint64_t start = mono_ns();
    for (size_t i = 0; i < times; i++)
        once(r, shape, bytes);
    return (double)(result_bytes(shape, bytes) * times) / (double)(mono_ns() - start);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {32 << 10, 1 << 20, MOST};
    static const int types[] = {DLCOLL_F32,    DLCOLL_F64, DLCOLL_BF16, DLCOLL_F16, DLCOLL_F8E4M3,
                                DLCOLL_F8E5M2, DLCOLL_I32, DLCOLL_I8,   DLCOLL_I64};
    enum { TYPES = sizeof(types) / sizeof(types[0]) };
    static double rates[REDUCE_CPUS][TYPES][SHAPES][ROUNDS];
    const char *name = argc > 1 ? argv[1] : "sum";
    int op = 0;
    while (op <= DLCOLL_MIN && strcmp(name, reduction_name(op)))
        op++;
    if (op > DLCOLL_MIN || argc > 2) {
        fprintf(stderr, "usage: bench_reduce [sum|prod|max|min]\n");
        return 2;
    }
    for (int s = 0; s <= SOURCES; s++) {
        uint8_t *p = aligned_alloc(4096, MOST + 4096);
        if (!p)
            return 1;
        memset(p, s ? 0x3c : 0, MOST + 4096);
        *(s < SOURCES ? &g_src[s] : &g_dst) = p + OFF;
    }
    for (size_t z = 0; z < sizeof(sizes) / sizeof(sizes[0]); z++) {
        for (int round = 0; round < ROUNDS; round++) {
            for (int cpu = 0; cpu < REDUCE_CPUS; cpu++) {
                for (int t = 0; t < TYPES; t++) {
                    struct reduce_info r;
                    const struct reduce_kernels *k = reduce_kernels(cpu);
                    if (!k || reduce_find_in(k, types[t], op, &r) < 0)
                        continue;
                    for (int s = 0; s < SHAPES; s++)
                        rates[cpu][t][s][round] = rate(&r, s, sizes[z]);
                }
            }
        }
        printf("%s, operands of %zu KB, GB/s\n%-18s", name, sizes[z] >> 10, "");
        for (int s = 0; s < SHAPES; s++)
            printf("%10s", g_shapes[s]);
        puts("");
        for (int t = 0; t < TYPES; t++) {
            for (int cpu = 0; cpu < REDUCE_CPUS; cpu++) {
                if (!reduce_kernels(cpu))
                    continue;
                printf("%-8s%-10s", dtype_get(types[t])->name, reduce_kernels(cpu)->name);
                for (int s = 0; s < SHAPES; s++) {
                    qsort(rates[cpu][t][s], ROUNDS, sizeof(double), by_value);
                    printf("%10.1f", rates[cpu][t][s][ROUNDS / 2]);
                }
                puts("");
            }
        }
    }
    return 0;
}
