/* harness.h: one way of measuring for all of the libraries that bench-coll compares. A program
 * describes its library in a struct bench_peer and calls bench_main(); C and C++.
 *
 *     PROGRAM NAME OPS SIZES BUDGET_MS
 *
 * OPS and SIZES are lists with commas; sizes are nccl-tests': all of the larger buffer of a rank,
 * rounded up to whole elements for each rank. Prints, on rank 0, a line for each:
 *
 *     NAME OP RANKS BYTES ITERATIONS MEDIAN_US P99_US
 *
 * which are each rank's own median (99th percentile) over the samples, then the maximum over the
 * ranks. A sample is the mean of as many iterations as take some 50 us: reading the clock is a good
 * part of a small operation, and where ranks share a CPU, one that comes last to an operation comes
 * first to the next, so that each takes long every other time. Iterations follow each other at
 * once. A broadcast or reduce is one operation for each root, in turn, and its time is their mean:
 * a root that stays the same runs ahead, and with a barrier between, outside the time, much happens
 * before the slower ranks have left the barrier. pingpong is half a round trip. Elements are f32
 * unless the operation's name has another type (all_reduce:bf16), reductions are sums, in place
 * where that is usual: all_reduce, broadcast, all_gather. Every result is checked once. Sizes
 * beyond one that took 4 s to measure are left out, with a line "# NAME OP RANKS BYTES slow". */
#ifndef BENCH_COLL_HARNESS_H
#define BENCH_COLL_HARNESS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bench_op {
    ALL_REDUCE,
    BROADCAST,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    REDUCE,
    PINGPONG,
    BARRIER,
    ALL_REDUCE_BF16,
    ALL_REDUCE_F16,
    BENCH_OPS
};

/* The library under test. */
struct bench_peer {
    int rank, ranks;
    /* Prepares a size and returns 0, or 1 if the library does not have the operation. NULL: it has
     * all operations, and nothing to prepare. */
    int (*prepare)(enum bench_op op, char *a, char *b, size_t count);
    /* count: elements, of the whole for those that have parts. Results: in a, or in b for reduce,
     * reduce_scatter and all_to_all. pingpong is called on ranks 0 and 1 only. */
    void (*run)(enum bench_op op, char *a, char *b, size_t count);
    void (*barrier)(void);
    int (*agree)(int value);       /* rank 0's */
    double (*most)(double value);  /* of all ranks */
    void *(*memory)(size_t bytes); /* NULL: mmap() */
    int unchecked;                 /* it only moves bytes: there is no result */
};

extern int bench_root; /* of the present broadcast or reduce */

double bench_now_us(void);
int bench_by_value(const void *a, const void *b); /* compares doubles, for qsort() */
size_t bench_size(const char *s);                 /* "64K" in bytes */

/* Measures the library with the arguments of the program. Returns the exit status. */
int bench_main(int argc, char **argv, const struct bench_peer *p);

#ifdef __cplusplus
}
#endif

#endif
