/* perf_run.c: one cell: check, warm up, time, check. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collectives/tools/perf.h"

enum { MOST_ITERS = 20000, LEAST_ITERS = 5 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

void perf_need(const struct perf *p, int code, const char *what)
{
    dlcoll_error why = DLCOLL_ERROR_INIT;
    if (code >= 0)
        return;
    dlcoll_last_error(p->comm, &why);
    fprintf(stderr, "dlcoll_perf: rank %d: %s: %s\n", p->rank, what,
            why.code ? why.text : dlcoll_strerror(code));
    exit(1);
}

/* ---------------------------------------------------------------------------------------- ranks */

/* Returns rank 0's value on all ranks. */
static int agree(const struct perf *p, int value)
{
    int32_t v = value;
    perf_need(p, dlcoll_broadcast(&v, &v, 1, DLCOLL_I32, 0, p->comm, NULL, NULL), "broadcast");
    return v;
}

/* Each of n figures over the ranks. */
static void over_ranks(const struct perf *p, double *x, size_t n)
{
    static const dlcoll_op ops[] = {
        [PERF_AVG] = DLCOLL_SUM, [PERF_MIN] = DLCOLL_MIN, [PERF_MAX] = DLCOLL_MAX};
    if (p->opts.over == PERF_RANK0)
        return;
    perf_need(p, dlcoll_all_reduce(x, x, n, DLCOLL_F64, ops[p->opts.over], p->comm, NULL, NULL),
              "all_reduce");
    for (size_t i = 0; i < n && p->opts.over == PERF_AVG; i++)
        x[i] /= p->ranks;
}

/* -------------------------------------------------------------------------------------- calling */

static void set_buffers(struct perf *p, struct perf_call *c, enum perf_place place)
{
    size_t at = (size_t)c->rank * c->count * perf_type_size(c->type);
    c->send = p->buf[0];
    c->recv = p->buf[1];
    if (place == PERF_OUT)
        return;
    bool root = !c->op->rooted || c->rank == c->root;
    switch (c->op->shape) {
    case PERF_PARTS_OUT:
        c->recv = p->buf[0];
        c->send = root ? p->buf[0] + at : p->buf[1];
        break;
    case PERF_PARTS_IN:
        if (root)
            c->recv = p->buf[0] + at;
        break;
    default:
        c->recv = c->send;
    }
}

static int perf_perform(const struct perf *p, struct perf_call *c)
{
    dlcoll_work *work = NULL;
    c->work = p->opts.async ? &work : NULL;
    int code = c->op->call(c);
    if (code == 0 && work) {
        code = dlcoll_wait(work);
        dlcoll_work_free(work);
    }
    return code;
}

/* Waits for the stream, where there is one: the result is there then. */
static int perform_whole(const struct perf *p, struct perf_call *c)
{
    if (p->opts.batch)
        perf_stream_start();
    int code = perf_perform(p, c);
    if (p->opts.batch && code == 0)
        perf_stream_end();
    return code;
}

/* ------------------------------------------------------------------------------------- checking */

/* The corresponding place in the shadow of the buffer. */
static void *in_shadow(const struct perf *p, void *at)
{
    for (int i = 0; i < 2; i++) {
        uint8_t *b = at;
        if (p->shadow[i] && b >= p->buf[i] && b < p->buf[i] + p->buf_bytes)
            return p->shadow[i] + (b - p->buf[i]);
    }
    return at;
}

static void clear(struct perf *p)
{
    for (int i = 0; i < 2; i++) {
        memset(p->shadow[i] ? p->shadow[i] : p->buf[i], 0, p->buf_bytes);
        if (p->shadow[i])
            perf_device_put(p->buf[i], p->shadow[i], p->buf_bytes);
    }
}

static bool overlap(const struct perf_call *c)
{
    size_t size = perf_type_size(c->type);
    const char *s = c->send, *r = c->recv;
    return s < r + perf_recv_count(c) * size && r < s + perf_send_count(c) * size;
}

static uint64_t checked(struct perf *p, struct perf_call *c, const struct perf_data *d, int *code)
{
    struct perf_call host = *c;
    host.send = in_shadow(p, c->send);
    host.recv = in_shadow(p, c->recv);
    perf_prepare(&host, d, overlap(c));
    for (int i = 0; i < 2 && p->shadow[i]; i++)
        perf_device_put(p->buf[i], p->shadow[i], p->buf_bytes);
    *code = perform_whole(p, c);
    if (*code == DLCOLL_ENOSUP)
        return 0;
    perf_need(p, *code, c->op->name);
    for (int i = 0; i < 2 && p->shadow[i]; i++)
        perf_device_get(p->shadow[i], p->buf[i], p->buf_bytes);
    return c->op->wrong(&host, d);
}

/* --------------------------------------------------------------------------------------- timing */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The time of an operation among many of a stream, by the device. */
static void repeat_on_stream(struct perf *p, struct perf_call *c, int n, double *times)
{
    for (int i = 0; i < n; i++) {
        if (p->opts.sync)
            perf_need(p, dlcoll_barrier(p->comm, NULL, NULL), "barrier");
        perf_stream_start();
        for (int k = 0; k < p->opts.batch; k++)
            perf_need(p, perf_perform(p, c), c->op->name);
        times[i] = perf_stream_end() / p->opts.batch;
    }
}

static void repeat(struct perf *p, struct perf_call *c, int n, double *times)
{
    if (p->opts.batch) {
        repeat_on_stream(p, c, n, times);
        return;
    }
    double last = now_us();
    for (int i = 0; i < n; i++) {
        if (p->opts.sync) {
            perf_need(p, dlcoll_barrier(p->comm, NULL, NULL), "barrier");
            last = now_us();
        }
        perf_need(p, perf_perform(p, c), c->op->name);
        double t = now_us();
        times[i] = t - last;
        last = t;
    }
}

static int clamp(double x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

/* Returns the number of repetitions that fit into the budget, by rank 0's clock. */
static int warm_up(struct perf *p, struct perf_call *c)
{
    double budget = p->opts.budget_ms * 1e3, start = now_us();
    repeat(p, c, 2, p->times);
    double each = (now_us() - start) / 2;
    int n = p->opts.warmup >= 0 ? p->opts.warmup : agree(p, clamp(budget / 10 / each, 5, 1000));
    start = now_us();
    repeat(p, c, n, p->times);
    if (n)
        each = (now_us() - start) / n;
    return p->opts.iters ? p->opts.iters : agree(p, clamp(budget / each, LEAST_ITERS, MOST_ITERS));
}

static void perf_measure_call(struct perf *p, struct perf_call *c, struct perf_result *r)
{
    r->iters = warm_up(p, c);
    perf_need(p, dlcoll_barrier(p->comm, NULL, NULL), "barrier");
    repeat(p, c, r->iters, p->times);
    int n = r->iters;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += p->times[i];
    qsort(p->times, (size_t)n, sizeof(double), by_value);
    double x[4] = {sum / n, p->times[n / 2], p->times[(int)(n * 0.99)], p->times[0]};
    if (c->op->pair) { /* of a round trip half, of two ranks only */
        for (int i = 0; i < 4; i++)
            x[i] = c->rank < 2 && c->ranks > 1 ? x[i] / 2 : 0;
    }
    over_ranks(p, x, 4);
    if (c->op->pair && p->opts.over == PERF_AVG) {
        for (int i = 0; i < 4; i++)
            x[i] = x[i] * c->ranks / 2;
    }
    r->mean_us = x[0], r->median_us = x[1], r->p99_us = x[2], r->min_us = x[3];
}

/* ---------------------------------------------------------------------------------------- cells */

static void make_op(const struct perf *p, int type, int reduction, dlcoll_op *op)
{
    uint64_t factor = 0;
    if (reduction == PERF_USER) {
        perf_need(p, dlcoll_op_create_user(op, perf_user, NULL, 0), "dlcoll_op_create_user");
    } else if (reduction == PERF_PREMUL) {
        perf_factor(type, p->rank, &factor);
        perf_need(p, dlcoll_op_create_premul(op, &factor, (dlcoll_dtype)type),
                  "dlcoll_op_create_premul");
    } else {
        *op = (dlcoll_op)reduction;
    }
}

static void free_op(int reduction, dlcoll_op op)
{
    if (reduction == PERF_USER || reduction == PERF_PREMUL)
        dlcoll_op_free(op);
}

void perf_cell_size(struct perf_cell *c, size_t bytes, int ranks)
{
    size_t size = perf_type_size(c->type);
    bool parts = c->op->shape != PERF_WHOLE && c->op->shape != PERF_NOTHING;
    size_t unit = parts ? size * (size_t)ranks : size;
    c->count = c->op->shape == PERF_NOTHING ? 0 : bytes / unit;
    c->bytes = c->count * unit;
}

bool perf_measure(struct perf *p, struct perf_cell *cell)
{
    struct perf_call c = {.op = cell->op,
                          .comm = p->comm,
                          .rank = p->rank,
                          .ranks = p->ranks,
                          .root = cell->root,
                          .opts = p->opts.batch ? &p->on_stream : NULL,
                          .type = (dlcoll_dtype)cell->type,
                          .count = cell->count};
    if (cell->reduction == PERF_PREMUL && cell->type == DLCOLL_BOOL)
        return false;
    make_op(p, cell->type, cell->reduction, &c.reduction);
    for (int place = 0; place < PERF_PLACES; place++) {
        struct perf_result *r = &cell->result[place];
        struct perf_data d = {cell->type, cell->op->reduces ? cell->reduction : PERF_MOVE, p->ranks,
                              p->seed++, 0};
        int code = 0;
        *r = (struct perf_result){0};
        if (!p->opts.places[place] || (place == PERF_IN && !cell->op->in_place))
            continue;
        set_buffers(p, &c, place);
        if (p->opts.check)
            r->wrong = checked(p, &c, &d, &code);
        else
            code = perform_whole(p, &c);
        if (code == DLCOLL_ENOSUP) {
            free_op(cell->reduction, c.reduction);
            return false;
        }
        perf_need(p, code, cell->op->name);
        clear(p);
        perf_measure_call(p, &c, r);
        if (p->opts.check) {
            int64_t wrong;
            d.seed = p->seed++;
            r->wrong += checked(p, &c, &d, &code);
            wrong = (int64_t)r->wrong;
            perf_need(
                p,
                dlcoll_all_reduce(&wrong, &wrong, 1, DLCOLL_I64, DLCOLL_SUM, p->comm, NULL, NULL),
                "all_reduce");
            r->wrong = (uint64_t)wrong;
        }
        r->measured = true;
        p->wrong += r->wrong;
        p->cells++;
    }
    free_op(cell->reduction, c.reduction);
    return true;
}
