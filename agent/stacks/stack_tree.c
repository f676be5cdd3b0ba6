#include "agent/stacks/stack_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/json_text.h"
#include "agent/report/report_words.h"
#include "core/mem.h"

static int new_node(struct stack_tree *t, const char *text, uint32_t hash)
{
    if ((t->n & (t->n - 1)) == 0)
        t->nodes = xrealloc(t->nodes, (size_t)(t->n ? 2 * t->n : 1) * sizeof(*t->nodes));
    t->nodes[t->n] = (struct stack_node){
        .text = text ? xstrdup(text) : NULL, .hash = hash, .first = -1, .last = -1, .next = -1};
    return t->n++;
}

/* FNV-1a. */
static uint32_t tree_hash(const char *text)
{
    uint32_t h = 2166136261u;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 16777619u;
    return h;
}

static void add_rank(struct stack_node *node, int rank)
{
    int n = node->nranks;
    if (n && node->ranks[n - 1].to >= rank) /* another thread of this rank */
        return;
    if (n && node->ranks[n - 1].to == rank - 1) {
        node->ranks[n - 1].to = rank;
        return;
    }
    if ((n & (n - 1)) == 0)
        node->ranks = xrealloc(node->ranks, (size_t)(n ? 2 * n : 1) * sizeof(*node->ranks));
    node->ranks[n].from = node->ranks[n].to = rank;
    node->nranks++;
}

static int child(struct stack_tree *t, int parent, const char *text, int rank)
{
    uint32_t hash = tree_hash(text);
    int at = t->nodes[parent].first;
    while (at >= 0 && (t->nodes[at].hash != hash || strcmp(t->nodes[at].text, text) != 0))
        at = t->nodes[at].next;
    if (at < 0) {
        at = new_node(t, text, hash);
        if (t->nodes[parent].last >= 0)
            t->nodes[t->nodes[parent].last].next = at;
        else
            t->nodes[parent].first = at;
        t->nodes[parent].last = at;
    }
    add_rank(&t->nodes[at], rank);
    return at;
}

static const char *state_name(char state)
{
    switch (state) {
    case 'R':
        return "runs";
    case 'S':
    case 'I':
        return "sleeps";
    case 'D':
        return "hangs in the kernel (state D)";
    case 'T':
    case 't':
        return "is stopped (state T)";
    case 'Z':
    case 'X':
        return "has ended";
    default:
        return "state unknown";
    }
}

void stack_tree_leaf(const struct sample_thread *t, char out[SAMPLE_TEXT_MAX])
{
    const char *where = t->call[0] ? t->call : t->wchan;
    bool both = t->call[0] && t->wchan[0] && t->state == 'D';
    snprintf(out, SAMPLE_TEXT_MAX, "[%s%s%.150s%s%s]", state_name(t->state), *where ? " in " : "",
             where, both ? ", " : "", both ? t->wchan : "");
}

static void add_sample(struct stack_tree *t, const struct sample *s)
{
    for (int i = 0; i < s->nthreads; i++) {
        const struct sample_thread *thread = &s->threads[i];
        char text[SAMPLE_TEXT_MAX];
        int at = 0;
        add_rank(&t->nodes[0], s->rank);
        if (i > 0) {
            snprintf(text, sizeof(text), "thread %s", thread->name);
            at = child(t, at, text, s->rank);
        }
        for (int k = 0; k < thread->nframes; k++)
            at = child(t, at, thread->frames[k], s->rank);
        stack_tree_leaf(thread, text);
        child(t, at, text, s->rank);
    }
}

void stack_tree_add(struct stack_tree *t, const struct samples *all)
{
    if (t->n == 0)
        new_node(t, NULL, 0);
    for (size_t i = 0; i < all->n; i++)
        add_sample(t, &all->s[i]);
}

void stack_tree_fini(struct stack_tree *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->nodes[i].text);
        free(t->nodes[i].ranks);
    }
    free(t->nodes);
    *t = (struct stack_tree){0};
}

static void put_ranks(struct buf *b, const struct stack_node *node)
{
    for (int i = 0; i < node->nranks; i++) {
        int from = node->ranks[i].from, to = node->ranks[i].to;
        words_add(b, from == to ? "%s%d" : "%s%d-%d", i ? "," : "", from, to);
    }
}

char *stack_tree_ranks(const struct stack_node *node)
{
    struct buf b = BUF_INIT;
    words_add(&b, "%s", "");
    put_ranks(&b, node);
    return (char *)b.data;
}

/* ----------------------------------------------------------------------------------------- text */

static bool same_ranks(const struct stack_node *a, const struct stack_node *b)
{
    return a->nranks == b->nranks &&
           memcmp(a->ranks, b->ranks, (size_t)a->nranks * sizeof(*a->ranks)) == 0;
}

/* A frame that all ranks of its caller are in stands below that at the same depth: the text grows
 * to the right only where ranks part. The set of ranks stands in front of the first frame of it. */
static void put_children(struct buf *b, const struct stack_tree *t, int at, int depth)
{
    const struct stack_node *node = &t->nodes[at];
    bool parts = at == 0 || node->first != node->last;
    for (int i = node->first; i >= 0; i = t->nodes[i].next) {
        const struct stack_node *c = &t->nodes[i];
        bool labelled = parts || !same_ranks(node, c);
        int d = at == 0 ? 0 : labelled ? depth + 1 : depth;
        struct buf ranks = BUF_INIT;
        words_add(&ranks, "%s", "");
        if (labelled)
            put_ranks(&ranks, c);
        words_add(b, "%*s%-7s  ", 2 * d, "", (char *)ranks.data);
        buf_fini(&ranks);
        words_escaped(b, c->text);
        words_add(b, "\n");
        put_children(b, t, i, d);
    }
}

/* Whether two ranks have the same note. */
static bool is_noted_before(const struct samples *all, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (strcmp(all->s[k].note, all->s[i].note) == 0)
            return true;
    }
    return false;
}

static void put_notes(struct buf *b, const struct samples *all)
{
    uint32_t stopped = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct sample *s = &all->s[i];
        struct stack_node ranks = {0};
        stopped = s->stopped_us > stopped ? s->stopped_us : stopped;
        if (!s->note[0] || is_noted_before(all, i))
            continue;
        for (size_t k = i; k < all->n; k++) {
            if (strcmp(all->s[k].note, s->note) == 0)
                add_rank(&ranks, all->s[k].rank);
        }
        words_add(b, "%s ",
                  ranks.nranks == 1 && ranks.ranks->from == ranks.ranks->to ? "rank" : "ranks");
        put_ranks(b, &ranks);
        words_add(b, ": ");
        words_escaped(b, s->note);
        words_add(b, "\n");
        free(ranks.ranks);
    }
    if (stopped)
        words_add(b,
                  "(threads that run were stopped for their registers, each for %u us at most)\n",
                  stopped);
}

char *stack_tree_text(const struct stack_tree *t, const struct samples *all)
{
    struct buf b = BUF_INIT;
    words_add(&b, "%s", "");
    if (t->n)
        put_children(&b, t, 0, 0);
    put_notes(&b, all);
    return (char *)b.data;
}

/* ----------------------------------------------------------------------------------------- JSON */

static json_t *children_json(const struct stack_tree *t, int at)
{
    json_t *list = json_array();
    for (int i = t->nodes[at].first; i >= 0; i = t->nodes[i].next) {
        char *ranks = stack_tree_ranks(&t->nodes[i]);
        json_t *children = children_json(t, i);
        json_array_append_new(list,
                              json_pack("{s:o,s:s,s:o}", "frame", json_of_text(t->nodes[i].text),
                                        "ranks", ranks, "children", children));
        free(ranks);
    }
    return list;
}

static json_t *thread_json(const struct sample_thread *t)
{
    json_t *frames = json_array();
    const char state[2] = {t->state ? t->state : '?', 0};
    for (int i = 0; i < t->nframes; i++)
        json_array_append_new(frames, json_of_text(t->frames[i]));
    return json_pack("{s:i,s:o,s:s,s:o,s:o,s:b,s:o}", "tid", t->tid, "name", json_of_text(t->name),
                     "state", state, "wchan", json_of_text(t->wchan), "call", json_of_text(t->call),
                     "python", (int)t->python, "frames", frames);
}

static json_t *sample_json(const struct sample *s)
{
    json_t *threads = json_array();
    for (int i = 0; i < s->nthreads; i++)
        json_array_append_new(threads, thread_json(&s->threads[i]));
    json_t *j = json_pack("{s:i,s:i,s:o,s:i,s:o,s:I,s:I,s:i,s:i,s:o}", "rank", s->rank, "node",
                          s->node, "host", json_of_text(s->host), "pid", s->pid, "program",
                          json_of_text(s->program), "cpu_ms", (json_int_t)s->cpu_ms, "io_bytes",
                          (json_int_t)s->io_bytes, "stopped_us", (int)s->stopped_us,
                          "threads_left_out", s->more_threads, "threads", threads);
    json_object_set_new(j, "note", s->note[0] ? json_of_text(s->note) : json_null());
    if (s->op.number)
        json_object_set_new(j, "operation",
                            json_pack("{s:o,s:I,s:I,s:b,s:f}", "text", json_of_text(s->op.text),
                                      "number", (json_int_t)s->op.number, "seq",
                                      (json_int_t)s->op.seq, "open", (int)s->op.open, "seconds",
                                      (double)s->op.age_ms / 1e3));
    return j;
}

json_t *stack_tree_json(const struct stack_tree *t, const struct samples *all)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < all->n; i++)
        json_array_append_new(ranks, sample_json(&all->s[i]));
    return json_pack("{s:o,s:o}", "tree", t->n ? children_json(t, 0) : json_array(), "ranks",
                     ranks);
}
