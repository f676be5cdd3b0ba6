#include "launcher/control/ctl_top.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent/text.h"
#include "core/log.h"
#include "core/mem.h"

#define EVERY_MS 1000
#define ASK_MS   60   /* between two questions for the nodes whose answers are missing */
#define WAIT_MS  1500 /* for those */
#define ROWS     24   /* of a terminal that does not say how many it has */
#define COLUMNS  80
#define ROWS_MAX 1000

static double real_of(const json_t *j, const char *key)
{
    return json_number_value(json_object_get(j, key));
}

static int by_number(const void *a, const void *b, const char *key)
{
    long x = number_of(*(json_t *const *)a, key), y = number_of(*(json_t *const *)b, key);
    return x < y ? -1 : x > y;
}

static int by_node(const void *a, const void *b)
{
    return by_number(a, b, "node");
}

static int by_rank(const void *a, const void *b)
{
    return by_number(a, b, "rank");
}

static json_t *sorted(const json_t *list, int (*compare)(const void *, const void *))
{
    size_t n = json_array_size(list);
    json_t **e = xcalloc(n + 1, sizeof(json_t *)), *out = json_array();
    for (size_t i = 0; i < n; i++)
        e[i] = json_array_get(list, i);
    qsort(e, n, sizeof(json_t *), compare);
    for (size_t i = 0; i < n; i++)
        json_array_append(out, e[i]);
    free(e);
    return out;
}

/* ------------------------------------------------------------------------------------- the data */

/* Whether all nodes have answered since then. */
static bool all_answered(const json_t *top, double since_s)
{
    const json_t *node;
    size_t i;
    long n = 0;
    json_array_foreach(json_object_get(top, "nodes"), i, node) n += real_of(node, "at") >= since_s;
    return n >= number_of(top, "nnodes");
}

/* {"nnodes": N, "nodes": [...]}, once all nodes have answered to this question, or the time is up.
 * NULL after a message, unless `quiet`. */
static json_t *ask_nodes(struct job *j, bool quiet)
{
    double since_s = 0;
    for (int ms = 0;; ms += ASK_MS) {
        json_t *answer = job_ask(j, "top\n");
        json_t *nodes = json_object_get(answer, "nodes");
        if (!nodes) {
            const char *error = json_string_value(json_object_get(answer, "error"));
            if (!quiet)
                log_error(
                    "process %ld %s%s", job_shown_pid(j),
                    error ? "refuses: " : "does not answer: ", error ? error : strerror(errno));
            json_decref(answer);
            return NULL;
        }
        since_s = since_s > 0 ? since_s : real_of(answer, "now_s");
        bool all = all_answered(answer, since_s);
        if (all || ms >= WAIT_MS) {
            json_object_set_new(answer, "complete", json_boolean(all));
            json_object_set_new(answer, "nodes", sorted(nodes, by_node));
            return answer;
        }
        json_decref(answer);
        poll(NULL, 0, ASK_MS);
    }
}

/* All ranks, each with its node and the share of a core that it has used: since the last look, or
 * since its start. `before`: rank -> the last look; is updated. */
static json_t *all_ranks(const json_t *top, json_t *before)
{
    json_t *list = json_array(), *node, *w;
    size_t i, k;
    json_array_foreach(json_object_get(top, "nodes"), i, node)
    {
        json_array_foreach(json_object_get(node, "workers"), k, w)
        {
            char key[48];
            snprintf(key, sizeof(key), "%ld %ld", number_of(w, "rank"), number_of(w, "pid"));
            const json_t *last = json_object_get(before, key);
            double used = real_of(w, "cpu_s"), time = real_of(w, "elapsed_s");
            double now = real_of(node, "at");
            if (last) {
                used -= real_of(last, "cpu_s");
                time = now - real_of(last, "at");
            }
            json_object_set(w, "node", json_object_get(node, "node"));
            if (json_object_get(w, "cpu_s"))
                json_object_set_new(w, "cpu_percent",
                                    json_real(time > 0.001 && used > 0 ? 100 * used / time : 0));
            json_object_set_new(before, key,
                                json_pack("{s:f,s:f}", "cpu_s", real_of(w, "cpu_s"), "at", now));
            json_array_append(list, w);
        }
    }
    json_t *ranks = sorted(list, by_rank);
    json_decref(list);
    return ranks;
}

/* ----------------------------------------------------------------------------------- the screen */

struct screen {
    bool redraws;
    bool gpus; /* some rank has one */
    int rows, columns, used;
};

/* Prints a line, cut to the width of the terminal. */
static void __attribute__((format(printf, 2, 3))) row(struct screen *s, const char *fmt, ...)
{
    char text[1024], shown[4 * sizeof(text)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_escape(shown, sizeof(shown), text, strlen(text), 0);
    if (!s->redraws) {
        puts(shown);
        return;
    }
    if (++s->used < s->rows)
        printf("\033[K%.*s\n", s->columns, shown); /* at the last column it would erase that */
}

static const char *age(double seconds, char out[24])
{
    if (seconds < 10)
        snprintf(out, 24, "%.1f s", seconds);
    else if (seconds < 600)
        snprintf(out, 24, "%.0f s", seconds);
    else if (seconds < 36000)
        snprintf(out, 24, "%.0f min", seconds / 60);
    else
        snprintf(out, 24, "%.0f h", seconds / 3600);
    return out;
}

static void rank_row(struct screen *s, const json_t *w)
{
    char cpu[24] = "-", memory[TEXT_BYTES_MAX] = "-", output[24] = "-", op[256] = "-", since[24];
    char gpu[24] = "-", gpu_memory[TEXT_BYTES_MAX] = "-", gpus[64] = "";
    const json_t *o = json_object_get(w, "operation");
    if (json_object_get(w, "cpu_percent"))
        snprintf(cpu, sizeof(cpu), "%.0f %%", real_of(w, "cpu_percent"));
    if (json_object_get(w, "memory_bytes"))
        text_bytes(memory, (uint64_t)real_of(w, "memory_bytes"));
    if (json_is_number(json_object_get(w, "output_age_s")))
        age(real_of(w, "output_age_s"), output);
    bool open = json_is_true(json_object_get(o, "open"));
    if (o)
        snprintf(op, sizeof(op), "#%ld %s%s%s, %s", number_of(o, "number"), open ? "for " : "",
                 age(real_of(o, "age_s"), since), open ? "" : " ago", text_of(o, "name"));
    if (json_object_get(w, "gpu_memory_bytes"))
        text_bytes(gpu_memory, (uint64_t)real_of(w, "gpu_memory_bytes"));
    if (json_object_get(w, "gpu_percent"))
        snprintf(gpu, sizeof(gpu), "%ld %%", number_of(w, "gpu_percent"));
    if (s->gpus)
        snprintf(gpus, sizeof(gpus), "  %5s %10s", gpu, gpu_memory);
    row(s, "%-6ld %-5ld %-8ld %-8s %7s %10s %8s%s  %s", number_of(w, "rank"), number_of(w, "node"),
        number_of(w, "pid"), text_of(w, "state"), cpu, memory, output, gpus, op);
}

/* Its workers are summed up. */
static void node_row(struct screen *s, const json_t *node)
{
    const json_t *w;
    double cpu = 0, memory = 0;
    char bytes[TEXT_BYTES_MAX];
    size_t i, running = 0;
    json_array_foreach(json_object_get(node, "workers"), i, w)
    {
        cpu += real_of(w, "cpu_percent");
        memory += real_of(w, "memory_bytes");
        running += strcmp(text_of(w, "state"), "running") == 0;
    }
    row(s, "%-5ld %-20.20s %-13s %4zu of %-6zu %7.0f %% %10s", number_of(node, "node"),
        text_of(node, "host"), text_of(node, "state"), running,
        json_array_size(json_object_get(node, "workers")), cpu,
        text_bytes(bytes, (uint64_t)memory));
}

static void measure(struct screen *s)
{
    struct winsize w = {0};
    s->rows = ROWS;
    s->columns = COLUMNS;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row && w.ws_col) {
        s->rows = w.ws_row;
        s->columns = w.ws_col;
    }
    s->used = 0;
}

/* So many of the rows behind the first ones, that all fit. */
static size_t fitting(const struct screen *s, size_t n, int after)
{
    int room = s->redraws ? s->rows - 1 - s->used - after : ROWS_MAX;
    return room < 2 ? (n < 2 ? n : 1) : n <= (size_t)room ? n : (size_t)room - 1;
}

static void draw(struct screen *s, const struct job *j, const json_t *top, const json_t *ranks)
{
    const json_t *nodes = json_object_get(top, "nodes"), *status = j->status;
    size_t nnodes = json_array_size(nodes), nranks = json_array_size(ranks);
    char up[24];
    if (s->redraws)
        fputs("\033[H", stdout);
    measure(s);
    row(s, "%s: run id %s, %s for %s, %zu of %ld nodes, %zu workers, %ld of %ld restarts used",
        text_of(status, "program"), text_of(status, "run_id"), text_of(top, "state"),
        age(real_of(top, "elapsed_s"), up), nnodes, number_of(top, "nnodes"), nranks,
        number_of(top, "restarts"), number_of(status, "max_restarts"));
    row(s, "%s", "");
    row(s, "%-5s %-20s %-13s %-14s %9s %10s", "NODE", "HOST", "STATE", "RUNNING", "CPU", "MEMORY");
    int others = s->redraws && nranks ? 6 : 0; /* some ranks are shown in any case */
    size_t fit = fitting(s, nnodes, others);
    for (size_t i = 0; i < fit; i++)
        node_row(s, json_array_get(nodes, i));
    if (fit < nnodes)
        row(s, "and %zu more nodes", nnodes - fit);
    row(s, "%s", "");
    s->gpus = false;
    for (size_t i = 0; i < nranks; i++)
        s->gpus |= json_object_get(json_array_get(ranks, i), "gpu_memory_bytes") != NULL;
    row(s, "%-6s %-5s %-8s %-8s %7s %10s %8s%s  %s", "RANK", "NODE", "PID", "STATE", "CPU",
        "MEMORY", "OUTPUT", s->gpus ? "    GPU GPU MEMORY" : "", "LAST OPERATION");
    fit = fitting(s, nranks, 0);
    for (size_t i = 0; i < fit; i++)
        rank_row(s, json_array_get(ranks, i));
    if (fit < nranks)
        row(s, "and %zu more ranks", nranks - fit);
    if (s->redraws)
        fputs("\033[J", stdout);
    fflush(stdout);
}

int ctl_top(struct job *j, bool json)
{
    struct screen s = {.redraws = !json && isatty(STDOUT_FILENO)};
    json_t *before = json_object(), *top = ask_nodes(j, false);
    if (s.redraws && top)
        fputs("\033[2J", stdout);
    for (; top; top = ask_nodes(j, true)) {
        json_t *ranks = all_ranks(top, before);
        if (json) {
            json_dumpf(top, stdout, JSON_INDENT(2));
            putchar('\n');
        } else {
            draw(&s, j, top, ranks);
        }
        json_decref(ranks);
        json_decref(top);
        if (!s.redraws || ferror(stdout))
            break;
        poll(NULL, 0, EVERY_MS);
    }
    json_decref(before);
    if (!top && s.redraws)
        log_notice("the job has ended");
    return !top && !s.redraws;
}
