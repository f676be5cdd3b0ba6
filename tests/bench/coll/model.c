/* model.c: what the algorithms between nodes would take on a network that is not here.
 *
 *     model [all | no [NODES]]
 *
 * Runs the schedules of all ranks, one on each node, on a clock of their own. A message costs each
 * of its two ranks so much CPU, and so much for each byte (the kernel copies it; a reduction reads
 * it once more); a rank does one thing at a time. A node sends one message at a time, and receives
 * one at a time, at the speed of its link, and each arrives a latency later. The switches between
 * them never are the narrow place.
 *
 * Prints for each operation, number of nodes and size the fastest algorithm, where it is not the
 * one that the built-in rules choose, how much longer that one takes; all: the times of all. NODES:
 * at most (1024). */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/algo_select.h"
#include "collectives/net/algo.h"

struct network {
    const char *name;
    double latency, byte;          /* us; of the link */
    double cpu_message, cpu_byte;  /* us, on each side */
    double reduce_byte, copy_byte; /* us */
};

static const struct network g_networks[] = {
    {"10 Gbit/s, 25 us", 25, 1 / 1250.0, 3, 1 / 8000.0, 1 / 10000.0, 1 / 10000.0},
    {"100 Gbit/s, 8 us", 8, 1 / 12500.0, 3, 1 / 8000.0, 1 / 10000.0, 1 / 10000.0},
};

enum { NODES_MOST = 1024, MESSAGES_MOST = 3 << 20, PLANS_MOST = 6 << 20 };

/* -------------------------------------------------------------------------------------- the clock
 */

/* Something happens at a rank: it may begin a step (from < 0), or a message arrives. */
struct event {
    double at;
    int rank, from;
    size_t len;
};

static struct event *g_heap;
static size_t g_events, g_cap;

static void push(struct event e)
{
    if (g_events == g_cap)
        g_heap = realloc(g_heap, (g_cap = 2 * g_cap + 1024) * sizeof(*g_heap));
    size_t i = g_events++;
    for (; i && g_heap[(i - 1) / 2].at > e.at; i = (i - 1) / 2)
        g_heap[i] = g_heap[(i - 1) / 2];
    g_heap[i] = e;
}

static struct event pop(void)
{
    struct event top = g_heap[0], last = g_heap[--g_events];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < g_events; i = k) {
        k += k + 1 < g_events && g_heap[k + 1].at < g_heap[k].at;
        if (g_heap[k].at >= last.at)
            break;
        g_heap[i] = g_heap[k];
    }
    g_heap[i] = last;
    return top;
}

/* -------------------------------------------------------------------------------------- the ranks
 */

/* A message that has arrived, or a receive that waits for one, in the order of the pair. */
struct item {
    int next; /* 0: none */
    bool arrived, reduces;
    size_t step, len;
    double at;
};

struct rank {
    struct schedule s;
    double cpu, out, in; /* until when they are busy */
    size_t next;         /* step to begin */
    size_t *left;        /* entries of each step that are not complete */
};

static struct rank g_ranks[NODES_MOST];
static int *g_first, *g_last; /* of each pair: receiver * n + sender */
static struct item *g_items;
static int g_nitems, g_cap_items;
static const struct network *g_net;
static int g_n;

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void append(int pair, struct item item)
{
    if (g_nitems + 1 >= g_cap_items)
        g_items = realloc(g_items, (size_t)(g_cap_items = 2 * g_cap_items + 4096) * sizeof(item));
    g_items[++g_nitems] = item;
    if (g_first[pair])
        g_items[g_last[pair]].next = g_nitems;
    else
        g_first[pair] = g_nitems;
    g_last[pair] = g_nitems;
}

static void finish_entry(int r, size_t step)
{
    if (--g_ranks[r].left[step] == 0)
        push((struct event){.at = g_ranks[r].cpu, .rank = r, .from = -1});
}

static void take(int r, const struct item *recv, double at)
{
    struct rank *k = &g_ranks[r];
    k->cpu = later(k->cpu, at) + g_net->cpu_message + (double)recv->len * g_net->cpu_byte +
             (recv->reduces ? (double)recv->len * g_net->reduce_byte : 0);
    finish_entry(r, recv->step);
}

static bool may_begin(const struct rank *k)
{
    size_t s = k->next;
    if (s >= k->s.nsteps)
        return false;
    if (s == 0 || k->left[s - 1] == 0)
        return s < 2 || k->left[s - 2] == 0;
    return k->s.steps[s - 1].loose && (s < 2 || k->left[s - 2] == 0);
}

static void begin_step(int r, double now)
{
    struct rank *k = &g_ranks[r];
    size_t step = k->next++, from = step ? k->s.steps[step - 1].end : 0;
    k->cpu = later(k->cpu, now);
    for (size_t i = from; i < k->s.steps[step].end; i++) {
        const struct entry *e = &k->s.entries[i];
        int pair = r * g_n + e->peer;
        switch (e->kind) {
        case ENTRY_SEND:
            k->cpu += g_net->cpu_message + (double)e->len * g_net->cpu_byte;
            k->out = later(k->out, k->cpu) + (double)e->len * g_net->byte;
            push((struct event){k->out + g_net->latency, e->peer, r, e->len});
            finish_entry(r, step);
            break;
        case ENTRY_RECV:
        case ENTRY_RECV_REDUCE: {
            struct item recv = {
                .step = step, .len = e->len, .reduces = e->kind == ENTRY_RECV_REDUCE};
            int first = g_first[pair];
            if (first && g_items[first].arrived) {
                g_first[pair] = g_items[first].next;
                take(r, &recv, g_items[first].at);
            } else {
                append(pair, recv);
            }
            break;
        }
        default:
            k->cpu +=
                (double)e->len * (e->kind == ENTRY_COPY ? g_net->copy_byte : g_net->reduce_byte);
            finish_entry(r, step);
        }
    }
}

static void arrive(const struct event *e)
{
    struct rank *k = &g_ranks[e->rank];
    int pair = e->rank * g_n + e->from, first = g_first[pair];
    double at = later(e->at, k->in + (double)e->len * g_net->byte);
    k->in = at;
    if (first && !g_items[first].arrived) {
        struct item recv = g_items[first];
        g_first[pair] = recv.next;
        take(e->rank, &recv, at);
    } else {
        append(pair, (struct item){.arrived = true, .at = at, .len = e->len});
    }
}

/* Microseconds until the last rank has finished; negative: too many messages to simulate. */
static double simulate(const struct algo *a, const struct coll *like)
{
    size_t entries = 0;
    double end = 0;
    g_n = like->size;
    for (int r = 0; r < g_n; r++) {
        struct coll c = *like;
        c.rank = r;
        schedule_reset(&g_ranks[r].s);
        a->build(&g_ranks[r].s, &c);
        entries += g_ranks[r].s.nentries;
        if (entries > PLANS_MOST || g_ranks[r].s.oom)
            return -1;
    }
    memset(g_first, 0, (size_t)g_n * (size_t)g_n * sizeof(*g_first));
    g_nitems = 0;
    g_events = 0;
    for (int r = 0; r < g_n; r++) {
        struct rank *k = &g_ranks[r];
        k->cpu = k->out = k->in = 0;
        k->next = 0;
        k->left = realloc(k->left, (k->s.nsteps + 1) * sizeof(*k->left));
        for (size_t s = 0; s < k->s.nsteps; s++)
            k->left[s] = k->s.steps[s].end - (s ? k->s.steps[s - 1].end : 0);
        push((struct event){.rank = r, .from = -1});
    }
    while (g_events) {
        struct event e = pop();
        if (e.from >= 0)
            arrive(&e);
        while (e.from < 0 && may_begin(&g_ranks[e.rank]))
            begin_step(e.rank, e.at);
    }
    for (int r = 0; r < g_n; r++) {
        const struct rank *k = &g_ranks[r];
        if (k->next < k->s.nsteps || (k->s.nsteps && k->left[k->s.nsteps - 1])) {
            fprintf(stderr, "%s of %d nodes: rank %d does not come to an end\n", a->name, g_n, r);
            exit(1);
        }
        end = later(end, k->cpu);
    }
    return end;
}

/* -------------------------------------------------------------------------------------- the tables
 */

static const struct algo *chosen(const struct coll *c, size_t bytes)
{
    static const struct algo_select none;
    struct algo_key key = {c->kind, c->size, c->size, bytes};
    const struct algo_rule *r;
    for (size_t at = 0; (r = algo_select_next(&none, &key, "net", &at));) {
        for (size_t i = 0; i < g_nalgos; i++) {
            if (g_algos[i].kind == c->kind && strcmp(g_algos[i].name, r->algo) == 0 &&
                algo_allows(&g_algos[i], c))
                return &g_algos[i];
        }
    }
    return algo_any(c);
}

static const char *size_text(size_t bytes)
{
    static char text[16];
    if (bytes >= 1 << 20)
        snprintf(text, sizeof(text), "%zuM", bytes >> 20);
    else if (bytes >= 1 << 10)
        snprintf(text, sizeof(text), "%zuK", bytes >> 10);
    else
        snprintf(text, sizeof(text), "%zu", bytes);
    return text;
}

/* Runs all algorithms of a cell; returns how many times as long the chosen one takes as the
 * fastest. */
static double cell(enum call_kind kind, int n, size_t bytes, bool all)
{
    struct coll c = {.kind = kind, .size = n, .elem = 4, .count = bytes / 4};
    const struct algo *fastest = NULL, *ours = chosen(&c, bytes);
    double best = 0, mine = 0;
    for (size_t i = 0; i < g_nalgos; i++) {
        if (g_algos[i].kind != kind || !algo_allows(&g_algos[i], &c))
            continue;
        double t = simulate(&g_algos[i], &c);
        if (all && t >= 0)
            printf("    %s %d x %s: %s %.1f us\n", call_name(kind), n, size_text(bytes),
                   g_algos[i].name, t);
        if (&g_algos[i] == ours)
            mine = t;
        if (t >= 0 && (!fastest || t < best)) {
            fastest = &g_algos[i];
            best = t;
        }
    }
    if (!fastest || mine <= 0)
        return 1;
    if (mine > best * 1.02)
        printf("| %d | %s | %s %.0f us | %s %.0f us | %.2f |\n", n, size_text(bytes), ours->name,
               mine, fastest->name, best, mine / best);
    return mine / best;
}

int main(int argc, char **argv)
{
    static const enum call_kind kinds[] = {CALL_ALL_REDUCE, CALL_REDUCE,     CALL_REDUCE_SCATTER,
                                           CALL_BROADCAST,  CALL_ALL_GATHER, CALL_ALL_TO_ALL};
    bool all = argc > 1 && strcmp(argv[1], "all") == 0;
    int most = argc > 2 ? atoi(argv[2]) : NODES_MOST;
    g_first = calloc((size_t)NODES_MOST * NODES_MOST, sizeof(*g_first));
    g_last = calloc((size_t)NODES_MOST * NODES_MOST, sizeof(*g_last));
    for (int r = 0; r < NODES_MOST; r++)
        schedule_init(&g_ranks[r].s);
    for (size_t w = 0; w < sizeof(g_networks) / sizeof(*g_networks); w++) {
        g_net = &g_networks[w];
        for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
            int cells = 0, good = 0;
            double worst = 1;
            printf("\n%s, %s\n\n| nodes | bytes of a rank | chosen | fastest | times |\n"
                   "|---|---|---|---|---|\n",
                   g_net->name, call_name(kinds[k]));
            for (int n = 2; n <= most; n *= n < 16 ? 2 : 4) {
                bool parts = kinds[k] == CALL_ALL_GATHER || kinds[k] == CALL_ALL_TO_ALL ||
                             kinds[k] == CALL_REDUCE_SCATTER;
                size_t limit = parts ? (64 << 20) / (size_t)n : 16 << 20;
                size_t step = n < 256 ? 8 : n < 1024 ? 64 : 512; /* they take minutes */
                for (size_t bytes = 8; bytes <= limit; bytes *= step) {
                    double times = cell(kinds[k], n, bytes, all);
                    fflush(stdout);
                    cells++;
                    good += times <= 1.1;
                    worst = later(worst, times);
                }
            }
            printf("\n%d of %d cells within 10 %% of the fastest, the worst %.2f times\n", good,
                   cells, worst);
            fflush(stdout);
        }
    }
    return 0;
}
