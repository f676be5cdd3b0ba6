/* dlcoll_perf.c: how fast are the collective operations here, and are they right?
 *
 *     dlaunch --nproc_per_node 4 build/dlcoll_perf all_reduce -b 8 -e 64M -f 4 -d f32,bf16
 *
 * Options are those of nccl-tests where it has them. --help lists all. */
#include <errno.h>
#include <getopt.h>
#include <stddef.h>
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

static void take_step(struct perf_opts *o, const char *arg)
{
    o->step_bytes = tool_size("--stepbytes", arg);
    if (!o->step_bytes)
        tool_wrong("--stepbytes", arg, "more than 0");
}

static void take_types(struct perf_opts *o, const char *arg)
{
    o->ntypes = to_list("--datatype", arg, perf_types, PERF_TYPES, o->types);
}

static void take_reductions(struct perf_opts *o, const char *arg)
{
    o->nreductions = to_list("--op", arg, perf_reductions, PERF_REDUCTIONS, o->reductions);
}

static void take_places(struct perf_opts *o, const char *arg)
{
    bool both = strcmp(arg, "both") == 0;
    o->places[PERF_OUT] = both || strcmp(arg, "out") == 0;
    o->places[PERF_IN] = both || strcmp(arg, "in") == 0;
    if (!o->places[PERF_OUT] && !o->places[PERF_IN])
        tool_wrong("--place", arg, "out, in or both");
}

static void take_backend(struct perf_opts *o, const char *arg)
{
    o->backend = strcmp(arg, "nccl") == 0   ? DLCOLL_BACKEND_NCCL
                 : strcmp(arg, "cpu") == 0  ? DLCOLL_BACKEND_CPU
                 : strcmp(arg, "auto") == 0 ? DLCOLL_BACKEND_AUTO
                                            : -1;
    if (o->backend < 0)
        tool_wrong("--backend", arg, "auto, cpu or nccl");
}

static void take_memory(struct perf_opts *o, const char *arg)
{
    o->plain = strcmp(arg, "device") == 0;
    if (!o->plain && strcmp(arg, "managed"))
        tool_wrong("--memory", arg, "managed or device");
}

static void help(struct perf_opts *o, const char *arg)
{
    (void)o, (void)arg;
    tool_help(g_perf_usage);
}

#define AT(field) .at = offsetof(struct perf_opts, field)
#define BIG       (1 << 24)

static const struct perf_option {
    const char *name;
    char letter;
    enum { FLAG, CHOICE, NUMBER, SIZE, WORD, ALONE } kind; /* FLAG, CHOICE, ALONE: no argument */
    size_t at;                                             /* FLAG: bool; SIZE: size_t; else int */
    int least, most;                                       /* CHOICE: the value is `least` */
    void (*take)(struct perf_opts *o, const char *arg);    /* WORD, ALONE */
} g_options[] = {
    {"minbytes", 'b', SIZE, AT(min_bytes)},
    {"maxbytes", 'e', SIZE, AT(max_bytes)},
    {"stepfactor", 'f', NUMBER, AT(factor), 2, 1 << 20},
    {"stepbytes", 'i', WORD, .take = take_step},
    {"datatype", 'd', WORD, .take = take_types},
    {"op", 'o', WORD, .take = take_reductions},
    {"root", 'r', NUMBER, AT(root), -1, BIG},
    {"iters", 'n', NUMBER, AT(iters), 0, BIG},
    {"warmup_iters", 'w', NUMBER, AT(warmup), 0, BIG},
    {"budget", 't', NUMBER, AT(budget_ms), 1, BIG},
    {"average", 'a', NUMBER, AT(over), 0, 3},
    {"median", 'm', FLAG, AT(median)},
    {"check", 'c', NUMBER, AT(check), 0, 1},
    {"place", 'p', WORD, .take = take_places},
    {"shared", 's', FLAG, AT(shared)},
    {"backend", 'G', WORD, .take = take_backend},
    {"memory", 'M', WORD, .take = take_memory},
    {"stream", 'S', NUMBER, AT(batch), 1, 1 << 20},
    {"async", 'A', FLAG, AT(async)},
    {"barrier", 'B', FLAG, AT(sync)},
    {"offset", 'O', NUMBER, AT(offset), 0, 4095},
    {"json", 'j', CHOICE, AT(format), PERF_JSON},
    {"csv", 'x', CHOICE, AT(format), PERF_CSV},
    {"help", 'h', ALONE, .take = help},
};
#define OPTIONS (sizeof(g_options) / sizeof(g_options[0]))

static void take_option(struct perf_opts *o, const struct perf_option *p, const char *arg)
{
    char what[32];
    void *at = (char *)o + p->at;
    snprintf(what, sizeof(what), "--%s", p->name);
    if (p->take)
        p->take(o, arg);
    else if (p->kind == FLAG)
        *(bool *)at = true;
    else if (p->kind == CHOICE)
        *(int *)at = p->least;
    else if (p->kind == NUMBER)
        *(int *)at = tool_int(what, arg, p->least, p->most);
    else
        *(size_t *)at = tool_size(what, arg);
}

/* Returns where the words behind the options begin. */
static int take_given(struct perf_opts *o, int argc, char **argv)
{
    struct option longs[OPTIONS + 1] = {{0}};
    char letters[2 * OPTIONS + 1], *to = letters;
    int letter;
    for (size_t i = 0; i < OPTIONS; i++) {
        bool takes =
            g_options[i].kind == NUMBER || g_options[i].kind == SIZE || g_options[i].kind == WORD;
        longs[i] = (struct option){g_options[i].name, takes, NULL, g_options[i].letter};
        *to++ = g_options[i].letter;
        if (takes)
            *to++ = ':';
    }
    *to = '\0';
    while ((letter = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        size_t i = 0;
        while (i < OPTIONS && g_options[i].letter != letter)
            i++;
        if (i == OPTIONS) /* getopt_long() has said why */
            exit(2);
        take_option(o, &g_options[i], optarg);
    }
    return optind;
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
    int at = take_given(o, argc, argv);
    if (at < argc)
        take_operations(o, argv[at++]);
    if (at < argc)
        tool_wrong("argument", argv[at],
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
    size_t offset = (size_t)p->opts.offset;
    size_t bytes = (p->opts.max_bytes + 4096 + offset + 4095) & ~(size_t)4095;
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
        p->buf[i] += offset;
    }
    p->buf_bytes = bytes - offset;
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
    return bytes ? bytes * (size_t)o->factor : 1;
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
