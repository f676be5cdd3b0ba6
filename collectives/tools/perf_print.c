/* perf_print.c: what was measured, as a table, CSV or JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/tools/perf.h"
#include "collectives/tools/tool.h"

static const char *const g_places[] = {"out", "in"};

static double figure(const struct perf *p, const struct perf_result *r)
{
    return p->opts.median ? r->median_us : r->mean_us;
}

/* GB/s, 10^9 bytes. */
static double algbw(const struct perf *p, const struct perf_cell *c, const struct perf_result *r)
{
    double us = figure(p, r);
    return us > 0 ? (double)c->bytes / us / 1e3 : 0;
}

static const char *reduction(const struct perf_cell *c)
{
    return c->op->reduces ? perf_reduction_name(c->reduction) : "none";
}

/* A text as JSON. */
static void print_json_text(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            printf("\\u%04x", (unsigned)*s);
        else
            putchar(*s);
    }
    putchar('"');
}

/* ---------------------------------------------------------------------------------------- start */

static void start_table(const struct perf *p)
{
    static const char *const over[] = {"rank 0", "mean of the ranks", "fastest rank",
                                       "slowest rank"};
    bool nccl = p->opts.backend == DLCOLL_BACKEND_NCCL;
    printf("# %d ranks, %d of them on this node; buffers: %s%s%s\n", p->ranks,
           dlcoll_local_size(p->comm),
           nccl && p->opts.plain ? "device memory, by NCCL"
           : nccl                ? "managed memory, by NCCL"
           : p->opts.shared      ? "dlcoll_mem_alloc()"
                                 : "malloc()",
           p->opts.async ? "; by work handles" : "", p->opts.sync ? "; a barrier before each" : "");
    if (p->opts.batch)
        printf("# %d operation%s at a time on a stream; the device's time, by events\n",
               p->opts.batch, p->opts.batch == 1 ? "" : "s");
    printf("# time: %s of the iterations, %s. bytes: nccl-tests' (the larger buffer of a rank)\n",
           p->opts.median ? "median" : "mean", over[p->opts.over]);
    printf("#%11s %11s %6s %10s %4s | %31s | %31s\n", "bytes", "count", "type", "redop", "root",
           "out of place", "in place");
    printf("#%11s %11s %6s %10s %4s | %9s %7s %7s %5s | %9s %7s %7s %5s\n", "", "elements", "", "",
           "", "us", "algbw", "busbw", "wrong", "us", "algbw", "busbw", "wrong");
}

void perf_print_start(const struct perf *p)
{
    if (p->rank)
        return;
    if (p->opts.format == PERF_TABLE)
        start_table(p);
    else if (p->opts.format == PERF_CSV)
        puts("op,dtype,redop,root,ranks,bytes,count,place,iters,mean_us,median_us,p99_us,min_us,"
             "algbw_GBps,busbw_GBps,wrong");
    else
        printf("{\"program\": \"dlcoll_perf\", \"ranks\": %d, \"local_ranks\": %d, \"figure\": "
               "\"%s\", \"results\": [",
               p->ranks, dlcoll_local_size(p->comm), p->opts.median ? "median" : "mean");
    fflush(stdout);
}

/* ---------------------------------------------------------------------------------------- cells */

static void table_result(const struct perf *p, const struct perf_cell *c,
                         const struct perf_result *r)
{
    char wrong[24] = "-";
    if (!r->measured) {
        printf(" | %9s %7s %7s %5s", "-", "-", "-", "-");
        return;
    }
    double bw = algbw(p, c, r);
    if (p->opts.check)
        snprintf(wrong, sizeof(wrong), "%" PRIu64, r->wrong);
    printf(" | %9.2f %7.2f %7.2f %5s", figure(p, r), bw, bw * c->op->bus(p->ranks), wrong);
}

static void print_table(const struct perf *p, const struct perf_cell *c)
{
    static const struct perf_op *last;
    if (last != c->op)
        printf("# %s\n", c->op->name);
    last = c->op;
    printf(" %11zu %11zu %6s %10s ", c->bytes, c->count, perf_type_name(c->type), reduction(c));
    if (c->op->rooted)
        printf("%4d", c->root);
    else
        printf("%4s", "-");
    table_result(p, c, &c->result[PERF_OUT]);
    table_result(p, c, &c->result[PERF_IN]);
    puts("");
}

static void print_csv(const struct perf *p, const struct perf_cell *c, int place)
{
    const struct perf_result *r = &c->result[place];
    double bw = algbw(p, c, r);
    printf("%s,%s,%s,%d,%d,%zu,%zu,%s,%d,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,", c->op->name,
           perf_type_name(c->type), reduction(c), c->op->rooted ? c->root : -1, p->ranks, c->bytes,
           c->count, g_places[place], r->iters, r->mean_us, r->median_us, r->p99_us, r->min_us, bw,
           bw * c->op->bus(p->ranks));
    if (p->opts.check)
        printf("%" PRIu64, r->wrong);
    puts("");
}

static void print_json(const struct perf *p, const struct perf_cell *c, int place)
{
    static bool more;
    const struct perf_result *r = &c->result[place];
    double bw = algbw(p, c, r);
    printf("%s\n{\"op\": ", more ? "," : "");
    more = true;
    print_json_text(c->op->name);
    printf(", \"dtype\": \"%s\", \"redop\": \"%s\", \"root\": %d, \"bytes\": %zu, \"count\": %zu, "
           "\"place\": \"%s\", \"iters\": %d, \"mean_us\": %.3f, \"median_us\": %.3f, "
           "\"p99_us\": %.3f, \"min_us\": %.3f, \"algbw_GBps\": %.4f, \"busbw_GBps\": %.4f, "
           "\"wrong\": ",
           perf_type_name(c->type), reduction(c), c->op->rooted ? c->root : -1, c->bytes, c->count,
           g_places[place], r->iters, r->mean_us, r->median_us, r->p99_us, r->min_us, bw,
           bw * c->op->bus(p->ranks));
    if (p->opts.check)
        printf("%" PRIu64 "}", r->wrong);
    else
        printf("null}");
}

void perf_print_cell(const struct perf *p, const struct perf_cell *cell)
{
    if (p->rank)
        return;
    if (p->opts.format == PERF_TABLE)
        print_table(p, cell);
    for (int i = 0; i < PERF_PLACES && p->opts.format != PERF_TABLE; i++) {
        if (!cell->result[i].measured)
            continue;
        if (p->opts.format == PERF_CSV)
            print_csv(p, cell, i);
        else
            print_json(p, cell, i);
    }
    fflush(stdout);
}

void perf_print_end(const struct perf *p)
{
    if (p->rank)
        return;
    if (p->opts.format == PERF_JSON)
        printf("\n], \"wrong\": %" PRIu64 "}\n", p->wrong);
    else if (p->opts.format == PERF_TABLE && p->opts.check)
        printf("# %" PRIu64 " measurements, %" PRIu64 " wrong elements\n", p->cells, p->wrong);
    tool_flush();
}
