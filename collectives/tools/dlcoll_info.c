/* dlcoll_info.c: what libdlcoll has chosen here, and why: ranks, nodes, transports, algorithms by
 * size, reduction kernels.
 *
 *     dlaunch --nproc_per_node 4 build/dlcoll_info
 *
 * As rank 0 sees it, and what is otherwise on other ranks. Alone, it is a world of one. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/dlcoll.h"
#include "collectives/tools/tool.h"

const char tool_name[] = "dlcoll_info";

static const char g_info_usage[] =
    "usage: dlcoll_info     under dlaunch, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT\n"
    "                       set, or alone\n"
    "Prints what libdlcoll has chosen here, and why. Takes no arguments but --help.\n"
    "Exit status: 0; 1: the ranks did not meet; 2: wrong usage.\n";

static dlcoll_comm *g_comm;

static void info_need(int code, const char *what)
{
    dlcoll_error why = DLCOLL_ERROR_INIT;
    if (code >= 0)
        return;
    dlcoll_last_error(g_comm, &why);
    fprintf(stderr, "dlcoll_info: %s: %s\n", what, why.code ? why.text : dlcoll_strerror(code));
    exit(1);
}

static char *info_describe(size_t *len)
{
    size_t size = dlcoll_describe(g_comm, NULL, 0) + 1;
    char *text = malloc(size);
    if (!text) {
        fputs("dlcoll_info: no memory\n", stderr);
        exit(1);
    }
    dlcoll_describe(g_comm, text, size);
    *len = strlen(text);
    return text;
}

/* The text's lines, cut at their ends; the last pointer is NULL. One piece of memory. */
static char **cut(const dlcoll_bytes *text)
{
    size_t n = 2;
    for (size_t i = 0; i < text->len; i++)
        n += ((const char *)text->data)[i] == '\n';
    char **lines = calloc(1, n * sizeof(*lines) + text->len + 1), *copy, *line;
    if (!lines) {
        fputs("dlcoll_info: no memory\n", stderr);
        exit(1);
    }
    copy = (char *)(lines + n);
    if (text->len)
        memcpy(copy, text->data, text->len);
    for (n = 0; (line = strsep(&copy, "\n")) != NULL;) {
        if (*line)
            lines[n++] = line;
    }
    return lines;
}

static bool has(char *const *lines, const char *line)
{
    for (; *lines; lines++) {
        if (strcmp(*lines, line) == 0)
            return true;
    }
    return false;
}

/* "rank 3 differs: ", "ranks 1-3, 6 differ: " for all that have this line. */
static void print_who(char ***ranks, int n, const char *line)
{
    int last = -1, found = 0;
    for (int i = 1; i < n; i++)
        found += has(ranks[i], line);
    printf("rank%s ", found > 1 ? "s" : "");
    const char *before = "";
    for (int i = 1; i <= n; i++) {
        bool in = i < n && has(ranks[i], line);
        if (in && last < 0) {
            printf("%s%d", before, i);
            last = i;
            before = ", ";
        } else if (!in && last >= 0) {
            if (i - 1 > last)
                printf("-%d", i - 1);
            last = -1;
        }
    }
    printf(" differ%s: %s\n", found > 1 ? "" : "s", line);
}

/* Prints rank 0's lines, then the lines of other ranks that differ, except for their identity. */
static void print_all(const dlcoll_bytes *all, int n)
{
    char ***ranks = calloc((size_t)n, sizeof(*ranks));
    for (int i = 0; i < n && ranks; i++)
        ranks[i] = cut(&all[i]);
    if (!ranks) {
        fputs("dlcoll_info: no memory\n", stderr);
        exit(1);
    }
    for (char **line = ranks[0]; *line; line++)
        puts(*line);
    for (int i = 1; i < n; i++) {
        for (char **line = ranks[i]; *line; line++) {
            bool said = has(ranks[0], *line) || strncmp(*line, "rank", 4) == 0;
            for (int j = 1; j < i && !said; j++)
                said = has(ranks[j], *line);
            if (!said)
                print_who(ranks, n, *line);
        }
    }
    for (int i = 0; i < n; i++)
        free(ranks[i]);
    free(ranks);
}

int main(int argc, char **argv)
{
    dlcoll_bytes *all;
    size_t len;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        tool_help(g_info_usage);
    if (argc > 1)
        tool_wrong("argument", argv[1], "--help or nothing");
    info_need(dlcoll_init(&g_comm, NULL), "no communicator");
    info_need(dlcoll_barrier(g_comm, NULL, NULL), "dlcoll_barrier");
    char *text = info_describe(&len);
    info_need(dlcoll_exchange_bytes(text, len, &all, g_comm, NULL), "dlcoll_exchange_bytes");
    if (dlcoll_rank(g_comm) == 0)
        print_all(all, dlcoll_size(g_comm));
    dlcoll_bytes_free(all);
    free(text);
    info_need(dlcoll_finalize(g_comm), "dlcoll_finalize");
    dlcoll_destroy(g_comm);
    tool_flush();
    return 0;
}
