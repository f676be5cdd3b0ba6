/* perf.h: the parts of dlcoll_perf.
 *
 *     dlcoll_perf.c   options; every cell of operations x types x reductions x sizes
 *     perf_ops.c      the operations: their buffers, how to call them, what must come out
 *     perf_data.c     values whose reduction is known exactly, and the look at each element
 *     perf_run.c      one cell: check, warm up, time, check
 *     perf_print.c    tables, CSV, JSON
 */
#ifndef COLLECTIVES_TOOLS_PERF_H
#define COLLECTIVES_TOOLS_PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "collectives/dlcoll.h"

/* ---------------------------------------------------------------------------------------- names */

/* Beside dlcoll.h's reductions. */
enum { PERF_PREMUL = 1000, PERF_USER, PERF_MOVE };

struct perf_name {
    const char *name;
    int value;
};

extern const struct perf_name perf_types[], perf_reductions[];
enum { PERF_TYPES = 15, PERF_REDUCTIONS = 13 };

const char *perf_type_name(int type);
const char *perf_reduction_name(int reduction);
size_t perf_type_size(int type);

/* ----------------------------------------------------------------------------------------- data */

/* The elements of all ranks. Sums of floats are exact in any order, as all numbers on the
 * way are small integers; products likewise, of powers of two. Integers and bytes are random. */
struct perf_data {
    int type;
    int reduction; /* dlcoll_op or PERF_...; PERF_MOVE: bytes, to be moved as they are */
    int ranks;
    uint64_t seed;
    int first; /* so many ranks' data is reduced; 0: that of all */
};

/* Elements [first, first + count) of `rank`. */
void perf_fill(const struct perf_data *d, void *buf, int rank, size_t first, size_t count);

/* Returns how many elements of buf differ from those of `rank`, or from the reduction of all ranks'
 * elements. */
size_t perf_wrong(const struct perf_data *d, const void *buf, int rank, size_t first, size_t count);
size_t perf_wrong_reduced(const struct perf_data *d, const void *buf, size_t first, size_t count);

/* The factor of a rank in premul_sum, as an element. */
void perf_factor(int type, int rank, void *out);

/* The user's function: exclusive or of the bits. */
void perf_user(void *acc, const void *in, size_t count, dlcoll_dtype type, void *ctx);

/* ----------------------------------------------------------------------------------- operations */

/* An operation with this rank's arguments. */
struct perf_call {
    const struct perf_op *op;
    dlcoll_comm *comm;
    int rank, ranks, root;
    dlcoll_dtype type;
    dlcoll_op reduction;
    size_t count; /* elements; of one part where there are parts */
    void *send, *recv;
    const dlcoll_opts *opts; /* with the stream; NULL: none */
    dlcoll_work **work;
};

enum perf_shape {
    PERF_WHOLE,    /* each rank has count elements */
    PERF_PARTS_IN, /* send is `ranks` parts, recv one */
    PERF_PARTS_OUT,
    PERF_PARTS, /* both buffers are parts */
    PERF_NOTHING
};

struct perf_op {
    const char *name;
    enum perf_shape shape;
    bool reduces, rooted;
    bool in_place; /* there is such a form */
    bool pair;     /* ranks 0 and 1 only; a call is a round trip */
    int (*call)(const struct perf_call *c);
    /* Elements that are wrong in recv on this rank. */
    size_t (*wrong)(const struct perf_call *c, const struct perf_data *d);
    double (*bus)(int ranks); /* busbw / algbw */
};

extern const struct perf_op perf_ops[];
extern const size_t perf_nops;

/* Elements of the buffers on this rank; what they are before the call. */
size_t perf_send_count(const struct perf_call *c);
size_t perf_recv_count(const struct perf_call *c);
void perf_prepare(const struct perf_call *c, const struct perf_data *d, bool in_place);

/* ------------------------------------------------------------------------------------ measuring */

enum perf_place { PERF_OUT, PERF_IN, PERF_PLACES };
enum perf_format { PERF_TABLE, PERF_CSV, PERF_JSON };
enum perf_over { PERF_RANK0, PERF_AVG, PERF_MIN, PERF_MAX };

struct perf_opts {
    size_t min_bytes, max_bytes, step_bytes; /* step_bytes 0: by factor */
    int factor;
    int ops[16], nops;
    int types[PERF_TYPES], ntypes;
    int reductions[PERF_REDUCTIONS], nreductions;
    int root;      /* -1: every rank in turn */
    int iters;     /* 0: what fits budget_ms */
    int warmup;    /* -1: a tenth of budget_ms, 5 at least */
    int budget_ms; /* of one measurement */
    int check;     /* each element; 0: none */
    bool places[PERF_PLACES];
    bool shared; /* buffers from dlcoll_mem_alloc() */
    int backend; /* dlcoll_backend; nccl: buffers are device memory */
    bool plain;  /* not managed memory, which the host can access */
    int batch;   /* operations enqueued on a stream and timed by events; 0: none */
    bool async;  /* by work handles */
    bool sync;   /* a barrier before each operation, outside its time */
    bool median; /* the figure of the tables; else the mean */
    int over;    /* the ranks: enum perf_over */
    int offset;  /* of the buffers from a page, in bytes */
    int format;  /* enum perf_format */
};

struct perf_result {
    bool measured; /* there is such a form */
    int iters;
    double mean_us, median_us, p99_us, min_us; /* over the ranks as opts.over says */
    uint64_t wrong;                            /* elements, on all ranks */
};

struct perf_cell {
    const struct perf_op *op;
    int type, reduction, root;
    size_t bytes, count;
    struct perf_result result[PERF_PLACES];
};

struct perf {
    struct perf_opts opts;
    dlcoll_comm *comm;
    int rank, ranks;
    uint8_t *buf[2];    /* max_bytes each */
    uint8_t *shadow[2]; /* where the host cannot access those: what is copied there and back */
    dlcoll_opts on_stream;
    size_t buf_bytes;
    double *times; /* of iterations, in microseconds */
    uint64_t seed;
    uint64_t wrong, cells; /* so far */
};

/* Bytes of an operation as it can be: whole elements, as many for every part. */
void perf_cell_size(struct perf_cell *c, size_t bytes, int ranks);

/* Fills in cell->result. False: this type does not have this reduction. Ends the process when an
 * operation fails. */
bool perf_measure(struct perf *p, struct perf_cell *cell);

/* Ends the process with the library's error unless code >= 0. */
void perf_need(const struct perf *p, int code, const char *what);

/* The next three print on rank 0 only. */
void perf_print_start(const struct perf *p);
void perf_print_cell(const struct perf *p, const struct perf_cell *cell);
void perf_print_end(const struct perf *p);

/* Device memory (perf_device.c). What fails ends the process, but perf_device_alloc(): NULL. */
void perf_device_use(int local_rank);
void *perf_device_alloc(size_t bytes, bool managed);
void perf_device_free(void *p);
void perf_device_put(void *to, const void *from, size_t bytes);
void perf_device_get(void *to, const void *from, size_t bytes);

/* The process's stream. perf_stream_end() waits for what has been enqueued since
 * perf_stream_start() and returns how long the device took, in microseconds. */
void *perf_stream_open(void);
void perf_stream_start(void);
double perf_stream_end(void);

#endif
