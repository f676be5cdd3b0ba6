/* dlcoll_tune.c: measures every way in which libdlcoll can carry out an operation, on these ranks
 * and at these sizes, and writes the fastest down as rules for DLCOLL_TUNE_FILE.
 *
 *     dlaunch --nproc_per_node 4 build/dlcoll_tune -o tune.conf
 *     DLCOLL_TUNE_FILE=tune.conf dlaunch --nproc_per_node 4 program
 *
 * A way is forced by DLCOLL_ALGO, which the library reads when a communicator is made: each turn
 * makes one anew. */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collectives/dlcoll.h"
#include "collectives/tools/tool.h"

const char tool_name[] = "dlcoll_tune";

static const char g_tune_usage[] =
    "usage: dlcoll_tune [-o FILE] [-e MAXBYTES] [-t MS] [OPERATION...]\n"
    "Under dlaunch, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Measures every\n"
    "algorithm of the operations (all of them) up to MAXBYTES (16M), MS milliseconds each\n"
    "(20), and writes rules for DLCOLL_TUNE_FILE to FILE (standard output).\n"
    "Operations: all_reduce broadcast reduce reduce_scatter all_gather gather scatter all_to_all\n"
    "scan exscan barrier.\n"
    "Exit status: 0; 1: an operation failed, or FILE cannot be written; 2: wrong usage.\n";

enum { WAYS = 24, SIZES = 16, OPS = 11 };

static const char *const g_tune_ops[OPS] = {"all_reduce", "broadcast", "reduce",  "reduce_scatter",
                                            "all_gather", "gather",    "scatter", "all_to_all",
                                            "scan",       "exscan",    "barrier"};

struct op {
    bool wanted;
    char ways[WAYS][32];
    int nways;
    double us[WAYS][SIZES]; /* 0: not measured */
};

static struct op g_table[OPS];
static size_t g_sizes[SIZES], g_most = 16 << 20;
static int g_nsizes;
static double g_budget_ms = 20;
static dlcoll_comm *g_comm;

static void need(int code, const char *what)
{
    dlcoll_error why = DLCOLL_ERROR_INIT;
    if (code >= 0)
        return;
    dlcoll_last_error(g_comm, &why);
    fprintf(stderr, "dlcoll_tune: %s: %s\n", what, why.code ? why.text : dlcoll_strerror(code));
    exit(1);
}

static int find_op(const char *name)
{
    int i = 0;
    while (i < OPS && strcmp(g_tune_ops[i], name) != 0)
        i++;
    return i;
}

/* ----------------------------------------------------------------------------------------- ways */

static void add_way(int op, const char *way)
{
    struct op *o = &g_table[op];
    if (o->nways < WAYS && strlen(way) < sizeof(o->ways[0]))
        strcpy(o->ways[o->nways++], way);
}

/* "all_reduce shm net/ring": what may be chosen for one operation. */
static void add_choices(char *list)
{
    char *at = NULL, *name = strtok_r(list, " ", &at);
    int op = name ? find_op(name) : OPS;
    for (char *way; op < OPS && (way = strtok_r(NULL, " ", &at));) {
        if (!strstr(way, "/self"))
            add_way(op, way);
    }
}

/* The providers and algorithms that dlcoll_describe() lists. */
static int list_ways(void)
{
    static const char choices[] = "choices: ";
    size_t size = dlcoll_describe(g_comm, NULL, 0) + 1;
    char *text = malloc(size), *at = NULL;
    int nodes = 1;
    if (!text)
        need(DLCOLL_ENOMEM, "describe");
    dlcoll_describe(g_comm, text, size);
    for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
        if (strncmp(line, choices, sizeof(choices) - 1) == 0)
            add_choices(line + sizeof(choices) - 1);
        else
            sscanf(line, "nodes: %d", &nodes);
    }
    free(text);
    return nodes;
}

/* The k-th way of every operation that has so many. */
static void force(int k)
{
    char rules[2048] = "";
    size_t at = 0;
    for (int op = 0; op < OPS; op++) {
        if (k < g_table[op].nways)
            at += (size_t)snprintf(rules + at, sizeof(rules) - at, "%s:%s;", g_tune_ops[op],
                                   g_table[op].ways[k]);
    }
    setenv("DLCOLL_ALGO", rules, 1);
}

/* ------------------------------------------------------------------------------------ measuring */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int once(int op, float *a, float *b, size_t n)
{
    switch (op) {
    case 0:
        return dlcoll_all_reduce(a, b, n, DLCOLL_F32, DLCOLL_SUM, g_comm, NULL, NULL);
    case 1:
        return dlcoll_broadcast(a, b, n, DLCOLL_F32, 0, g_comm, NULL, NULL);
    case 2:
        return dlcoll_reduce(a, b, n, DLCOLL_F32, DLCOLL_SUM, 0, g_comm, NULL, NULL);
    case 3:
        return dlcoll_reduce_scatter(a, b, n, DLCOLL_F32, DLCOLL_SUM, g_comm, NULL, NULL);
    case 4:
        return dlcoll_all_gather(a, b, n, DLCOLL_F32, g_comm, NULL, NULL);
    case 5:
        return dlcoll_gather(a, b, n, DLCOLL_F32, 0, g_comm, NULL, NULL);
    case 6:
        return dlcoll_scatter(a, b, n, DLCOLL_F32, 0, g_comm, NULL, NULL);
    case 7:
        return dlcoll_all_to_all(a, b, n, DLCOLL_F32, g_comm, NULL, NULL);
    case 8:
        return dlcoll_scan(a, b, n, DLCOLL_F32, DLCOLL_SUM, g_comm, NULL, NULL);
    case 9:
        return dlcoll_exscan(a, b, n, DLCOLL_F32, DLCOLL_SUM, g_comm, NULL, NULL);
    default:
        return dlcoll_barrier(g_comm, NULL, NULL);
    }
}

/* The mean over some turns, of the slowest rank; the best of three. */
static double tune_measure(int op, float *a, float *b, size_t n)
{
    double best = 0, start = now_us(), first;
    need(once(op, a, b, n), g_tune_ops[op]);
    need(dlcoll_barrier(g_comm, NULL, NULL), "barrier");
    start = now_us();
    need(once(op, a, b, n), g_tune_ops[op]);
    first = now_us() - start;
    double turns = g_budget_ms * 1e3 / 3 / (first > 1 ? first : 1);
    turns = turns < 2 ? 2 : turns > 2000 ? 2000 : turns;
    need(dlcoll_all_reduce(&turns, &turns, 1, DLCOLL_F64, DLCOLL_MIN, g_comm, NULL, NULL), "sum");
    for (int k = 0; k < 3; k++) {
        need(dlcoll_barrier(g_comm, NULL, NULL), "barrier");
        start = now_us();
        for (int i = 0; i < (int)turns; i++)
            need(once(op, a, b, n), g_tune_ops[op]);
        double us = (now_us() - start) / (int)turns;
        best = k == 0 || us < best ? us : best;
    }
    need(dlcoll_all_reduce(&best, &best, 1, DLCOLL_F64, DLCOLL_MAX, g_comm, NULL, NULL), "max");
    return best;
}

static void tune_turn(int k)
{
    size_t whole = g_most * (size_t)dlcoll_size(g_comm);
    float *a = calloc(1, whole), *b = calloc(1, whole);
    if (!a || !b)
        need(DLCOLL_ENOMEM, "buffers");
    for (int op = 0; op < OPS; op++) {
        if (!g_table[op].wanted || k >= g_table[op].nways)
            continue;
        for (int i = 0; i < (strcmp(g_tune_ops[op], "barrier") ? g_nsizes : 1); i++)
            g_table[op].us[k][i] = tune_measure(op, a, b, g_sizes[i] / 4);
    }
    free(a);
    free(b);
}

/* -------------------------------------------------------------------------------------- writing */

static int fastest(const struct op *o, int size)
{
    int best = -1;
    for (int k = 0; k < o->nways; k++) {
        if (o->us[k][size] > 0 && (best < 0 || o->us[k][size] < o->us[best][size]))
            best = k;
    }
    return best;
}

static void write_rules(FILE *f, int ranks, int nodes)
{
    fprintf(f, "# by dlcoll_tune, for %d ranks on %d node%s. For DLCOLL_TUNE_FILE.\n", ranks, nodes,
            nodes == 1 ? "" : "s");
    for (int op = 0; op < OPS; op++) {
        const struct op *o = &g_table[op];
        int last = strcmp(g_tune_ops[op], "barrier") ? g_nsizes : 1;
        size_t from = 0;
        for (int i = 0; i < last && o->wanted; i++) {
            int k = fastest(o, i);
            if (k < 0 || (i + 1 < last && fastest(o, i + 1) == k))
                continue;
            fprintf(f, "%-14s ranks=%d nodes=%d ", g_tune_ops[op], ranks, nodes);
            if (i + 1 < last) /* half way, as sizes grow, to the next one */
                fprintf(f, "bytes=%zu-%zu ", from, g_sizes[i] * 2 - 1);
            else
                fprintf(f, "bytes=%zu- ", from);
            fprintf(f, "%s   # %.1f us at %zu\n", o->ways[k], o->us[k][i], g_sizes[i]);
            from = g_sizes[i] * 2;
        }
    }
}

static const char *read_arguments(int argc, char **argv)
{
    static const struct option help[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    const char *out = NULL;
    int letter;
    while ((letter = getopt_long(argc, argv, "o:e:t:h", help, NULL)) != -1) {
        if (letter == 'o')
            out = optarg;
        else if (letter == 'e')
            g_most = tool_size("-e", optarg);
        else if (letter == 't')
            g_budget_ms = tool_int("-t", optarg, 1, 1 << 24);
        else if (letter == 'h')
            tool_help(g_tune_usage);
        else /* getopt_long() has said why */
            exit(2);
        if (letter == 'e' && (g_most < 8 || g_most > (size_t)1 << 32))
            tool_wrong("-e", optarg, "8 to 4G");
    }
    for (int op = 0; op < OPS; op++)
        g_table[op].wanted = optind == argc;
    for (; optind < argc; optind++) {
        int op = find_op(argv[optind]);
        if (op == OPS)
            tool_wrong("operation", argv[optind], "one that --help lists");
        g_table[op].wanted = true;
    }
    return out;
}

/* Checks, before anything is measured, that the file can be written; its content stays. */
static FILE *open_rules(const char *path, const char *mode)
{
    FILE *f = path ? fopen(path, mode) : stdout;
    if (f)
        return f;
    fprintf(stderr, "dlcoll_tune: -o '%s': %s\n", path, strerror(errno));
    exit(1);
}

static void save(const char *path, int ranks, int nodes)
{
    FILE *f = open_rules(path, "w");
    write_rules(f, ranks, nodes);
    if (!path) {
        tool_flush();
        return;
    }
    bool written = fflush(f) == 0 && !ferror(f);
    if (fclose(f) != 0 || !written) {
        fprintf(stderr, "dlcoll_tune: -o '%s': %s\n", path, strerror(errno));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    const char *path = read_arguments(argc, argv);
    int most = 0, nodes, ranks;
    for (size_t s = 8; s <= g_most && g_nsizes < SIZES; s *= 4)
        g_sizes[g_nsizes++] = s;
    need(dlcoll_init(&g_comm, NULL), "no communicator");
    nodes = list_ways();
    ranks = dlcoll_size(g_comm);
    int rank = dlcoll_rank(g_comm);
    if (rank == 0 && path)
        fclose(open_rules(path, "a"));
    for (int op = 0; op < OPS; op++)
        most = g_table[op].nways > most ? g_table[op].nways : most;
    for (int k = 0; k < most && ranks > 1; k++) {
        need(dlcoll_finalize(g_comm), "finalize");
        dlcoll_destroy(g_comm);
        g_comm = NULL;
        force(k);
        need(dlcoll_init(&g_comm, NULL), "no communicator");
        tune_turn(k);
    }
    if (rank == 0)
        save(path, ranks, nodes);
    need(dlcoll_finalize(g_comm), "finalize");
    dlcoll_destroy(g_comm);
    return 0;
}
