#include "launcher/control/ctl_top.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent/base/text.h"
#include "core/clock.h"
#include "core/escape.h"
#include "core/log.h"
#include "core/mem.h"

#define EVERY_MS 1000
#define ROWS     24 /* of a terminal that does not say how many it has */
#define COLUMNS  80
#define ROWS_MAX 1000

static double real_of(const json_t *j, const char *key)
{
    return json_number_value(json_object_get(j, key));
}

/* -------------------------------------------------------------------------------------- the data
 */

/* Why there is no answer. */
struct no_answer {
    bool gone; /* the launcher is */
    char text[200];
};

/* Returns the answer of the nodes (agent/report/top.h); NULL: *why says why there is none. */
static json_t *ask_nodes(struct job *j, size_t most, struct no_answer *why)
{
    char line[32];
    snprintf(line, sizeof(line), "top %zu\n", most);
    json_t *answer = job_ask(j, line);
    if (json_is_array(json_object_get(answer, "nodes")) &&
        json_is_array(json_object_get(answer, "ranks")))
        return answer;
    const char *error = json_string_value(json_object_get(answer, "error"));
    why->gone = !answer && job_is_gone(errno);
    snprintf(why->text, sizeof(why->text), "process %ld %s%s", job_shown_pid(j),
             error ? "refuses: " : "does not answer: ", error ? error : strerror(errno));
    json_decref(answer);
    return NULL;
}

/* Adds to each row the share of a core that it has used: since the last look, or since its start.
 * `before`: row -> the last look; is updated. */
static void add_shares(json_t *rows, const char *name, double now_s, json_t *before)
{
    json_t *w;
    size_t i;
    json_array_foreach(rows, i, w)
    {
        char key[64];
        snprintf(key, sizeof(key), "%s %ld %ld", name, number_of(w, name), number_of(w, "pid"));
        const json_t *last = json_object_get(before, key);
        double used = real_of(w, "cpu_s"), time = real_of(w, "elapsed_s");
        if (last) {
            used -= real_of(last, "cpu_s");
            time = now_s - real_of(last, "at");
        }
        if (json_object_get(w, "cpu_s"))
            json_object_set_new(w, "cpu_percent",
                                json_real(time > 0.001 && used > 0 ? 100 * used / time : 0));
        json_object_set_new(before, key,
                            json_pack("{s:f,s:f}", "cpu_s", real_of(w, "cpu_s"), "at", now_s));
    }
}

/* Puts the ranks into their nodes, as "workers". */
static void nest(json_t *top)
{
    json_t *nodes = json_object_get(top, "nodes"), *node, *rank;
    size_t i, at = 0, n = json_array_size(nodes);
    json_array_foreach(nodes, i, node) json_object_set_new(node, "workers", json_array());
    json_array_foreach(json_object_get(top, "ranks"), i, rank)
    {
        for (size_t tried = 0; tried < n; tried++, at = (at + 1) % n) {
            node = json_array_get(nodes, at);
            if (number_of(node, "node") != number_of(rank, "node"))
                continue;
            json_array_append(json_object_get(node, "workers"), rank);
            break;
        }
    }
    json_object_del(top, "ranks");
}

/* ----------------------------------------------------------------------------------- the screen */

struct screen {
    bool redraws;
    bool gpus;     /* some rank has one */
    bool scores;   /* some rank has scores */
    bool programs; /* the job has several */
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
    size_t len = strlen(text);
    if (len == sizeof(text) - 1)
        len -= escape_tail(text, len, 0); /* half a character */
    log_escape(shown, sizeof(shown), text, len, 0);
    if (!s->redraws) {
        puts(shown);
        return;
    }
    if (++s->used < s->rows)
        printf("\033[K%.*s\n", (int)text_span(shown, s->columns),
               shown); /* at the last column the sequence would erase a character */
}

/* The text in a column of that width, in characters. */
static const char *cell(const char *text, int width, char out[128])
{
    size_t n = text_span(text, width);
    int have = 0;
    for (size_t i = 0; i < n; i++)
        have += ((unsigned char)text[i] & 0xc0) != 0x80;
    snprintf(out, 128, "%.*s%*s", (int)n, text, width - have, "");
    return out;
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
    char gpu[24] = "-", gpu_memory[TEXT_BYTES_MAX] = "-", gpus[64] = "", scores[32] = "";
    char program[132] = "", words[128];
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
    if (s->scores && json_object_get(w, "relative"))
        snprintf(scores, sizeof(scores), "  %6.2f %5.2f", real_of(w, "relative"),
                 real_of(w, "own"));
    else if (s->scores)
        snprintf(scores, sizeof(scores), "  %6s %5s", "-", "-");
    if (s->programs) {
        const char *name = text_of(w, "program"), *slash = strrchr(name, '/');
        snprintf(program, sizeof(program), "  %s", cell(slash ? slash + 1 : name, 16, words));
    }
    row(s, "%-6ld %-5ld %-8ld %-8s %7s %10s %8s%s%s%s  %s", number_of(w, "rank"),
        number_of(w, "node"), number_of(w, "pid"), text_of(w, "state"), cpu, memory, output, gpus,
        scores, program, op);
}

static void node_row(struct screen *s, const json_t *node)
{
    char bytes[TEXT_BYTES_MAX], host[128];
    row(s, "%-5ld %s %-13s %4ld of %-6ld %7.0f %% %10s", number_of(node, "node"),
        cell(text_of(node, "host"), 20, host), text_of(node, "state"), number_of(node, "nrunning"),
        number_of(node, "nworkers"), real_of(node, "cpu_percent"),
        text_bytes(bytes, (uint64_t)real_of(node, "memory_bytes")));
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

/* Returns how many of n rows, of which `there` are known, fit on the screen. */
static size_t fitting(const struct screen *s, size_t n, size_t there, int after)
{
    int room = s->redraws ? s->rows - 1 - s->used - after : ROWS_MAX;
    size_t fit = room < 2 ? (n < 2 ? n : 1) : n <= (size_t)room ? n : (size_t)room - 1;
    return fit < there ? fit : there;
}

static void draw(struct screen *s, const struct job *j, const json_t *top)
{
    const json_t *nodes = json_object_get(top, "nodes"), *ranks = json_object_get(top, "ranks");
    const json_t *status = j->status;
    size_t nnodes = (size_t)number_of(top, "answered"), nranks = (size_t)number_of(top, "nranks");
    char up[24];
    if (s->redraws)
        fputs("\033[H", stdout);
    row(s,
        "%s: run id %s, %s for %s, %zu of %ld nodes, %ld of %zu workers run, %ld of %ld restarts "
        "used",
        text_of(status, "program"), text_of(status, "run_id"), text_of(top, "state"),
        age(real_of(top, "elapsed_s"), up), nnodes, number_of(top, "nnodes"),
        number_of(top, "nrunning"), nranks, number_of(top, "restarts"),
        number_of(status, "max_restarts"));
    row(s, "%s", "");
    row(s, "%-5s %-20s %-13s %-14s %9s %10s", "NODE", "HOST", "STATE", "RUNNING", "CPU", "MEMORY");
    int others = s->redraws && nranks ? 6 : 0; /* some ranks are shown in any case */
    size_t fit = fitting(s, nnodes, json_array_size(nodes), others);
    for (size_t i = 0; i < fit; i++)
        node_row(s, json_array_get(nodes, i));
    if (fit < nnodes)
        row(s, "and %zu more nodes", nnodes - fit);
    row(s, "%s", "");
    s->gpus = s->scores = s->programs = false;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        s->gpus |= json_object_get(json_array_get(ranks, i), "gpu_memory_bytes") != NULL;
        s->scores |= json_object_get(json_array_get(ranks, i), "relative") != NULL;
        s->programs |= json_object_get(json_array_get(ranks, i), "program") != NULL;
    }
    row(s, "%-6s %-5s %-8s %-8s %7s %10s %8s%s%s%s  %s", "RANK", "NODE", "PID", "STATE", "CPU",
        "MEMORY", "OUTPUT", s->gpus ? "    GPU GPU MEMORY" : "", s->scores ? "   SPEED   OWN" : "",
        s->programs ? "  PROGRAM         " : "", "LAST OPERATION");
    fit = fitting(s, nranks, json_array_size(ranks), 0);
    for (size_t i = 0; i < fit; i++)
        rank_row(s, json_array_get(ranks, i));
    if (fit < nranks)
        row(s, "and %zu more ranks", nranks - fit);
    if (s->redraws)
        fputs("\033[J", stdout);
    fflush(stdout);
}

/* At a terminal no more rows are asked for than it has. */
static json_t *look(struct screen *s, struct job *j, struct no_answer *why)
{
    measure(s);
    return ask_nodes(j, s->redraws ? (size_t)s->rows : 0, why);
}

int ctl_top(struct job *j, bool json)
{
    struct screen s = {.redraws = !json && isatty(STDOUT_FILENO)};
    double begun_s = (double)wall_ns() / 1e9;
    struct no_answer why;
    json_t *before = json_object(), *top = look(&s, j, &why);
    bool any = top != NULL;
    if (s.redraws && any)
        fputs("\033[2J", stdout);
    for (; top; top = look(&s, j, &why)) {
        double now_s = real_of(top, "now_s");
        add_shares(json_object_get(top, "nodes"), "node", now_s, before);
        add_shares(json_object_get(top, "ranks"), "rank", now_s, before);
        if (json) {
            nest(top);
            json_dumpf(top, stdout, JSON_INDENT(2));
            putchar('\n');
        } else {
            draw(&s, j, top);
        }
        json_decref(top);
        if (!s.redraws || ferror(stdout))
            break;
        poll(NULL, 0, EVERY_MS);
    }
    json_decref(before);
    if (top)
        return 0;
    if (any && job_has_left_its_end(j, begun_s)) {
        log_notice("the job has ended");
        return 0;
    }
    if (any && why.gone)
        log_error("process %ld is gone without the end of the job: it was killed",
                  job_shown_pid(j));
    else
        log_error("%s", why.text);
    return 1;
}
