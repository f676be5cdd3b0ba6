/* dlcoll_perf.c: how fast are the collective operations here, and are they right?
 *
 *     dlaunch --nproc_per_node 4 build/dlcoll_perf all_reduce -b 8 -e 64M -f 4 -d f32,bf16
 *
 * Options are those of nccl-tests where it has them. --help lists all. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/tools/perf.h"
#include "collectives/tools/tool.h"

const char tool_name[] = "dlcoll_perf";

static const char g_perf_usage[] =
    "usage: dlcoll_perf [OPERATION,...|all] [options]      under dlaunch, or with RANK, "
    "WORLD_SIZE,\n"
    "                                                       MASTER_ADDR and MASTER_PORT set\n"
    "\n"
    "Operations: all_reduce (default) broadcast reduce all_gather reduce_scatter all_to_all "
    "gather\n"
    "scatter scan exscan send_recv neighbor pingpong barrier.\n"
    "Every element of every result is checked.\n"
    "\n"
    "  -b, --minbytes SIZE      first size: 8, 4K, 64M (default 8)\n"
    "  -e, --maxbytes SIZE      last size (64M)\n"
    "  -f, --stepfactor N       next size = size * N (2)\n"
    "  -i, --stepbytes SIZE     next size = size + SIZE instead\n"
    "  -d, --datatype LIST      i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f8e4m3 f8e5m2 f32 f64 "
    "bool,\n"
    "                           or all (f32)\n"
    "  -o, --op LIST            sum prod min max avg band bor bxor land lor lxor premul_sum user, "
    "or "
    "all\n"
    "                           (sum)\n"
    "  -r, --root RANK          of broadcast, reduce, gather, scatter; -1: each in turn (0)\n"
    "  -n, --iters N            of each measurement; 0: as many as fit --budget (0)\n"
    "  -w, --warmup_iters N     before it (a tenth of --budget, 5 at least)\n"
    "  -t, --budget MS          for one measurement (200)\n"
    "  -a, --average 0|1|2|3    time of rank 0, mean, min or max over the ranks (1)\n"
    "  -m, --median             shows the median of the iterations instead of the mean\n"
    "  -c, --check 0|1          look at each element (1)\n"
    "  -p, --place out|in|both  buffers (both)\n"
    "  -s, --shared             buffers from dlcoll_mem_alloc()\n"
    "  -G, --backend BACKEND    nccl: buffers in device memory (auto: as DLCOLL_BACKEND says)\n"
    "  -M, --memory KIND        of nccl: managed, or device as cudaMalloc() gives it (managed)\n"
    "  -S, --stream N           of nccl: enqueue N operations at a time on a stream; the time is\n"
    "                           the device's, by events\n"
    "  -A, --async              by work handles\n"
    "  -B, --barrier            a barrier before each iteration, outside its time\n"
    "  -O, --offset BYTES       of the buffers from a page (0)\n"
    "  -j, --json  -x, --csv    for programs\n"
    "  -h, --help\n"
    "\n"
    "Exit status: 0; 1: an operation failed or a result was wrong; 2: wrong usage.\n";

static const struct option g_options[] = {
    {"minbytes", 1, NULL, 'b'},  {"maxbytes", 1, NULL, 'e'}, {"stepfactor", 1, NULL, 'f'},
    {"stepbytes", 1, NULL, 'i'}, {"datatype", 1, NULL, 'd'}, {"op", 1, NULL, 'o'},
    {"root", 1, NULL, 'r'},      {"iters", 1, NULL, 'n'},    {"warmup_iters", 1, NULL, 'w'},
    {"budget", 1, NULL, 't'},    {"average", 1, NULL, 'a'},  {"median", 0, NULL, 'm'},
    {"check", 1, NULL, 'c'},     {"place", 1, NULL, 'p'},    {"shared", 0, NULL, 's'},
    {"async", 0, NULL, 'A'},     {"barrier", 0, NULL, 'B'},  {"offset", 1, NULL, 'O'},
    {"memory", 1, NULL, 'M'},    {"stream", 1, NULL, 'S'},   {"backend", 1, NULL, 'G'},
    {"json", 0, NULL, 'j'},      {"csv", 0, NULL, 'x'},      {"help", 0, NULL, 'h'},
    {NULL, 0, NULL, 0}};

/* -------------------------------------------------------------------------------------- options */

/* A list of names, or "all": their values. */
static int to_list(const char *what, const char *s, const struct perf_name *names, int n, int *out)
{
    int count = 0;
    char *copy = strdup(s), *rest = copy, *name;
    if (strcmp(s, "all") == 0) {
        for (; count < n; count++)
            out[count] = names[count].value;
    }
    while (count < n && strcmp(s, "all") && (name = strsep(&rest, ",")) != NULL) {
        int i = 0;
        while (i < n && strcmp(names[i].name, name))
            i++;
        if (i == n)
            tool_wrong(what, name, "one that --help lists");
        out[count++] = names[i].value;
    }
    free(copy);
    return count;
}

static void take_option(struct perf_opts *o, int letter, const char *arg)
{
    switch (letter) {
    case 'b':
        o->min_bytes = tool_size("--minbytes", arg);
        break;
    case 'e':
        o->max_bytes = tool_size("--maxbytes", arg);
        break;
    case 'f':
        o->factor = tool_int("--stepfactor", arg, 2, 1 << 20);
        break;
    case 'i':
        o->step_bytes = tool_size("--stepbytes", arg);
        if (!o->step_bytes)
            tool_wrong("--stepbytes", arg, "more than 0");
        break;
    case 'd':
        o->ntypes = to_list("--datatype", arg, perf_types, PERF_TYPES, o->types);
        break;
    case 'o':
        o->nreductions = to_list("--op", arg, perf_reductions, PERF_REDUCTIONS, o->reductions);
        break;
    case 'r':
        o->root = tool_int("--root", arg, -1, 1 << 24);
        break;
    case 'n':
        o->iters = tool_int("--iters", arg, 0, 1 << 24);
        break;
    case 'w':
        o->warmup = tool_int("--warmup_iters", arg, 0, 1 << 24);
        break;
    case 't':
        o->budget_ms = tool_int("--budget", arg, 1, 1 << 24);
        break;
    case 'a':
        o->over = (enum perf_over)tool_int("--average", arg, 0, 3);
        break;
    case 'c':
        o->check = tool_int("--check", arg, 0, 1);
        break;
    case 'p':
        o->places[PERF_OUT] = strcmp(arg, "out") == 0 || strcmp(arg, "both") == 0;
        o->places[PERF_IN] = strcmp(arg, "in") == 0 || strcmp(arg, "both") == 0;
        if (!o->places[PERF_OUT] && !o->places[PERF_IN])
            tool_wrong("--place", arg, "out, in or both");
        break;
    case 'O':
        o->offset = (size_t)tool_int("--offset", arg, 0, 4095);
        break;
    case 'm':
        o->median = true;
        break;
    case 's':
        o->shared = true;
        break;
    case 'G':
        o->backend = strcmp(arg, "nccl") == 0   ? DLCOLL_BACKEND_NCCL
                     : strcmp(arg, "cpu") == 0  ? DLCOLL_BACKEND_CPU
                     : strcmp(arg, "auto") == 0 ? DLCOLL_BACKEND_AUTO
                                                : -1;
        if (o->backend < 0)
            tool_wrong("--backend", arg, "auto, cpu or nccl");
        break;
    case 'M':
        o->plain = strcmp(arg, "device") == 0;
        if (!o->plain && strcmp(arg, "managed"))
            tool_wrong("--memory", arg, "managed or device");
        break;
    case 'S':
        o->batch = tool_int("--stream", arg, 1, 1 << 20);
        break;
    case 'A':
        o->async = true;
        break;
    case 'B':
        o->sync = true;
        break;
    case 'j':
        o->format = PERF_JSON;
        break;
    case 'x':
        o->format = PERF_CSV;
        break;
    case 'h':
        tool_help(g_perf_usage);
    default: /* getopt_long() has said why */
        exit(2);
    }
}

static void take_operations(struct perf_opts *o, const char *arg)
{
    char *copy = strdup(arg), *rest = copy, *name;
    if (strcmp(arg, "all") == 0) {
        for (o->nops = 0; o->nops < (int)perf_nops; o->nops++)
            o->ops[o->nops] = o->nops;
        free(copy);
        return;
    }
    for (o->nops = 0; o->nops < (int)perf_nops && (name = strsep(&rest, ",")) != NULL; o->nops++) {
        size_t i = 0;
        while (i < perf_nops && strcmp(perf_ops[i].name, name))
            i++;
        if (i == perf_nops)
            tool_wrong("operation", name, "one that --help lists");
        o->ops[o->nops] = (int)i;
    }
    free(copy);
}

static void take_options(struct perf_opts *o, int argc, char **argv)
{
    *o = (struct perf_opts){.min_bytes = 8,
                            .max_bytes = 64 << 20,
                            .factor = 2,
                            .nops = 1,
                            .types = {DLCOLL_F32},
                            .ntypes = 1,
                            .reductions = {DLCOLL_SUM},
                            .nreductions = 1,
                            .warmup = -1,
                            .budget_ms = 200,
                            .check = true,
                            .places = {true, true},
                            .over = PERF_AVG};
    int letter;
    while ((letter = getopt_long(argc, argv, "b:e:f:i:d:o:r:n:w:t:a:mc:p:sG:M:S:ABO:jxh", g_options,
                                 NULL)) != -1)
        take_option(o, letter, optarg);
    if (optind < argc)
        take_operations(o, argv[optind++]);
    if (optind < argc)
        tool_wrong("argument", argv[optind],
                   "an option; operations are one list: all_reduce,broadcast");
    char given[32];
    snprintf(given, sizeof(given), "%d", o->batch);
    if (o->backend != DLCOLL_BACKEND_NCCL && o->plain)
        tool_wrong("--memory", "device", "used with --backend nccl");
    if (o->batch && o->backend != DLCOLL_BACKEND_NCCL)
        tool_wrong("--stream", given, "used with --backend nccl");
    if (o->batch && o->async)
        tool_wrong("--stream", given, "used without --async");
    if (o->min_bytes > o->max_bytes) {
        snprintf(given, sizeof(given), "%zu", o->min_bytes);
        tool_wrong("--minbytes", given, "no more than --maxbytes");
    }
}

/* ------------------------------------------------------------------------------------ the cells */

static void take_buffers(struct perf *p)
{
    size_t bytes = (p->opts.max_bytes + 4096 + p->opts.offset + 4095) & ~(size_t)4095;
    for (int i = 0; i < 2; i++) {
        bool device = p->opts.backend == DLCOLL_BACKEND_NCCL;
        p->buf[i] = device           ? perf_device_alloc(bytes, !p->opts.plain)
                    : p->opts.shared ? dlcoll_mem_alloc(p->comm, bytes)
                                     : aligned_alloc(4096, bytes);
        if (!p->buf[i]) {
            fprintf(stderr, "dlcoll_perf: rank %d: no %zu bytes of %smemory\n", p->rank, bytes,
                    device           ? "device "
                    : p->opts.shared ? "shared "
                                     : "");
            exit(1);
        }
        if (p->opts.plain && !(p->shadow[i] = calloc(1, bytes))) {
            fprintf(stderr, "dlcoll_perf: rank %d: no %zu bytes of memory\n", p->rank, bytes);
            exit(1);
        }
        if (p->opts.plain)
            perf_device_put(p->buf[i], p->shadow[i], bytes);
        else
            memset(p->buf[i], 0, bytes);
        p->buf[i] += p->opts.offset;
    }
    p->buf_bytes = bytes - p->opts.offset;
    size_t times = p->opts.iters > p->opts.warmup ? (size_t)p->opts.iters : (size_t)p->opts.warmup;
    times = p->opts.warmup < 0 && !p->opts.iters ? 0 : times;
    p->times = malloc((times > 20000 ? times + 1 : 20001) * sizeof(double));
    if (!p->times)
        exit(1);
}

static void free_buffers(struct perf *p)
{
    for (int i = 0; i < 2; i++) {
        uint8_t *start = p->buf[i] - p->opts.offset;
        free(p->shadow[i]);
        if (p->opts.backend == DLCOLL_BACKEND_NCCL)
            perf_device_free(start);
        else if (p->opts.shared)
            dlcoll_mem_free(p->comm, start);
        else
            free(start);
    }
    free(p->times);
}

static size_t next_size(const struct perf_opts *o, size_t bytes)
{
    if (o->step_bytes)
        return bytes + o->step_bytes;
    return bytes ? (size_t)((double)bytes * o->factor) : 1;
}

/* Every size of one operation, type and reduction. */
static void run_sizes(struct perf *p, struct perf_cell *cell)
{
    size_t last = SIZE_MAX;
    for (size_t b = p->opts.min_bytes; b <= p->opts.max_bytes; b = next_size(&p->opts, b)) {
        perf_cell_size(cell, b, p->ranks);
        if (cell->bytes == last)
            continue; /* rounded to the same */
        last = cell->bytes;
        if (!perf_measure(p, cell)) {
            if (p->rank == 0 && p->opts.format == PERF_TABLE)
                printf("# %s has no %s\n", perf_type_name(cell->type),
                       perf_reduction_name(cell->reduction));
            return;
        }
        perf_print_cell(p, cell);
        if (cell->op->shape == PERF_NOTHING)
            return;
    }
}

static void run_roots(struct perf *p, struct perf_cell *cell)
{
    bool each = p->opts.root < 0 && cell->op->rooted;
    for (int r = 0; r < (each ? p->ranks : 1); r++) {
        cell->root = each ? r : p->opts.root < 0 ? 0 : p->opts.root;
        run_sizes(p, cell);
    }
}

static void run_all(struct perf *p)
{
    for (int i = 0; i < p->opts.nops; i++) {
        struct perf_cell cell = {.op = &perf_ops[p->opts.ops[i]]};
        int types = cell.op->shape == PERF_NOTHING ? 1 : p->opts.ntypes;
        for (int t = 0; t < types; t++) {
            cell.type = p->opts.types[t];
            for (int r = 0; r < (cell.op->reduces ? p->opts.nreductions : 1); r++) {
                cell.reduction = cell.op->reduces ? p->opts.reductions[r] : DLCOLL_SUM;
                run_roots(p, &cell);
            }
        }
    }
}

int main(int argc, char **argv)
{
    struct perf p = {.seed = 1};
    take_options(&p.opts, argc, argv);
    dlcoll_init_opts init = DLCOLL_INIT_OPTS_INIT;
    init.backend = p.opts.backend;
    perf_need(&p, dlcoll_init(&p.comm, &init), "no communicator");
    p.rank = dlcoll_rank(p.comm);
    p.ranks = dlcoll_size(p.comm);
    if (p.opts.root >= p.ranks) {
        char root[16], want[48];
        snprintf(root, sizeof(root), "%d", p.opts.root);
        snprintf(want, sizeof(want), "less than the %d ranks there are", p.ranks);
        tool_wrong("--root", root, want);
    }
    if (p.opts.backend == DLCOLL_BACKEND_NCCL) {
        dlcoll_opts legacy = DLCOLL_OPTS_INIT; /* NCCL's communicator is made by a barrier there */
        legacy.stream = (void *)1;
        perf_device_use(dlcoll_local_rank(p.comm));
        p.on_stream = (dlcoll_opts)DLCOLL_OPTS_INIT;
        p.on_stream.stream = p.opts.batch ? perf_stream_open() : NULL;
        perf_need(&p, dlcoll_barrier(p.comm, &legacy, NULL), "NCCL");
    }
    take_buffers(&p);
    perf_print_start(&p);
    run_all(&p);
    perf_print_end(&p);
    free_buffers(&p);
    perf_need(&p, dlcoll_finalize(p.comm), "dlcoll_finalize");
    dlcoll_destroy(p.comm);
    return p.wrong ? 1 : 0;
}
