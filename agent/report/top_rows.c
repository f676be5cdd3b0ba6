#include "agent/report/top_rows.h"

#include <stdlib.h>
#include <string.h>

#include "agent/report/json_text.h"
#include "core/mem.h"
#include "rendezvous/rules/rank_table.h"

#define LONG_AGO_S 1.0

/* The next one of a growing array whose size doubles. */
static void *grow(void *array, size_t n, size_t size)
{
    return (n & (n - 1)) == 0 ? xrealloc(array, (n ? 2 * n : 1) * size) : array;
}

static struct top_node *next_node(struct top_rows *t)
{
    t->nodes = grow(t->nodes, t->nnode_rows, sizeof(*t->nodes));
    struct top_node *n = &t->nodes[t->nnode_rows++];
    memset(n, 0, sizeof(*n));
    return n;
}

static struct top_rank *next_rank(struct top_rows *t)
{
    t->ranks = grow(t->ranks, t->nrank_rows, sizeof(*t->ranks));
    struct top_rank *k = &t->ranks[t->nrank_rows++];
    memset(k, 0, sizeof(*k));
    return k;
}

struct top_node *top_rows_add_node(struct top_rows *t)
{
    t->nnodes++;
    return next_node(t);
}

struct top_rank *top_rows_add_rank(struct top_rows *t)
{
    t->nranks++;
    return next_rank(t);
}

void top_rows_fini(struct top_rows *t)
{
    free(t->nodes);
    free(t->ranks);
    *t = (struct top_rows){0};
}

/* ------------------------------------------------------------------------------------- selection
 */

static bool node_is_whole(const struct top_node *n)
{
    return n->nrunning == n->nworkers;
}

static int by_node(const void *a, const void *b)
{
    const struct top_node *x = a, *y = b;
    return (x->node > y->node) - (x->node < y->node);
}

static int by_need_of_node(const void *a, const void *b)
{
    int x = node_is_whole(a), y = node_is_whole(b);
    return x != y ? x - y : by_node(a, b);
}

static int by_rank(const void *a, const void *b)
{
    const struct top_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int need_of(const struct top_rank *k)
{
    if (strcmp(k->state, "running") != 0)
        return 0;
    return k->has_op && k->op_age_s >= LONG_AGO_S ? 1 : 2;
}

static int by_need_of_rank(const void *a, const void *b)
{
    const struct top_rank *x = a, *y = b;
    int nx = need_of(x), ny = need_of(y);
    if (nx != ny)
        return nx - ny;
    if (nx == 1 && x->op_number != y->op_number)
        return x->op_number < y->op_number ? -1 : 1;
    return by_rank(a, b);
}

void top_rows_cut(struct top_rows *t, size_t most)
{
    if (most && t->nnode_rows > most) {
        qsort(t->nodes, t->nnode_rows, sizeof(*t->nodes), by_need_of_node);
        t->nnode_rows = most;
    }
    if (most && t->nrank_rows > most) {
        qsort(t->ranks, t->nrank_rows, sizeof(*t->ranks), by_need_of_rank);
        t->nrank_rows = most;
    }
    if (t->nnode_rows)
        qsort(t->nodes, t->nnode_rows, sizeof(*t->nodes), by_node);
    if (t->nrank_rows)
        qsort(t->ranks, t->nrank_rows, sizeof(*t->ranks), by_rank);
}

/* -------------------------------------------------------------------------------------- encoding
 */

static void put_real(struct buf *b, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof(bits));
    buf_u64(b, bits);
}

static double get_real(struct rd *r)
{
    uint64_t bits = rd_u64(r);
    double v;
    memcpy(&v, &bits, sizeof(v));
    return v == v ? v : 0;
}

static int get_int(struct rd *r, int max)
{
    int v = (int)rd_u32(r);
    r->bad |= v < 0 || v > max;
    return v;
}

static void put_node(struct buf *b, const struct top_node *n)
{
    buf_u32(b, (uint32_t)n->node);
    buf_u32(b, (uint32_t)n->nworkers);
    buf_u32(b, (uint32_t)n->nrunning);
    put_real(b, n->cpu_s);
    put_real(b, n->elapsed_s);
    buf_u64(b, n->memory);
    buf_str(b, n->host);
    buf_str(b, n->state);
}

static void get_node(struct rd *r, struct top_node *n)
{
    n->node = get_int(r, NNODES_MAX);
    n->nworkers = get_int(r, WORLD_SIZE_MAX);
    n->nrunning = get_int(r, WORLD_SIZE_MAX);
    n->cpu_s = get_real(r);
    n->elapsed_s = get_real(r);
    n->memory = rd_u64(r);
    rd_str(r, n->host, sizeof(n->host));
    rd_str(r, n->state, sizeof(n->state));
}

static void put_rank(struct buf *b, const struct top_rank *k)
{
    buf_u32(b, (uint32_t)k->rank);
    buf_u32(b, (uint32_t)k->node);
    buf_u32(b, (uint32_t)k->local_rank);
    buf_u32(b, (uint32_t)k->pid);
    buf_str(b, k->state);
    buf_str(b, k->program);
    put_real(b, k->elapsed_s);
    put_real(b, k->cpu_s);
    put_real(b, k->output_age_s);
    put_real(b, k->relative);
    put_real(b, k->own);
    buf_u64(b, k->memory);
    buf_u8(b, k->has_gpu);
    if (k->has_gpu) {
        buf_u32(b, (uint32_t)k->gpu_percent);
        buf_u64(b, k->gpu_memory);
        buf_u64(b, k->gpu_memory_total);
    }
    buf_u8(b, k->has_op);
    if (k->has_op) {
        buf_u8(b, k->op_open);
        buf_u64(b, k->op_number);
        put_real(b, k->op_age_s);
        buf_str(b, k->op_name);
    }
}

static void get_rank(struct rd *r, struct top_rank *k)
{
    k->rank = (int)rd_u32(r); /* below 0: it has none now */
    k->node = get_int(r, NNODES_MAX);
    k->local_rank = get_int(r, WORLD_SIZE_MAX);
    k->pid = get_int(r, INT32_MAX);
    rd_str(r, k->state, sizeof(k->state));
    rd_str(r, k->program, sizeof(k->program));
    k->elapsed_s = get_real(r);
    k->cpu_s = get_real(r);
    k->output_age_s = get_real(r);
    k->relative = get_real(r);
    k->own = get_real(r);
    k->memory = rd_u64(r);
    k->has_gpu = rd_u8(r) != 0;
    if (k->has_gpu) {
        k->gpu_percent = (int)rd_u32(r);
        k->gpu_memory = rd_u64(r);
        k->gpu_memory_total = rd_u64(r);
    }
    k->has_op = rd_u8(r) != 0;
    if (k->has_op) {
        k->op_open = rd_u8(r) != 0;
        k->op_number = rd_u64(r);
        k->op_age_s = get_real(r);
        rd_str(r, k->op_name, sizeof(k->op_name));
    }
}

void top_rows_encode(struct buf *b, const struct top_rows *t)
{
    buf_u32(b, t->nnodes);
    buf_u32(b, t->nranks);
    buf_u32(b, t->nrunning);
    buf_u32(b, (uint32_t)t->nnode_rows);
    for (size_t i = 0; i < t->nnode_rows; i++)
        put_node(b, &t->nodes[i]);
    buf_u32(b, (uint32_t)t->nrank_rows);
    for (size_t i = 0; i < t->nrank_rows; i++)
        put_rank(b, &t->ranks[i]);
}

bool top_rows_decode(struct rd *r, struct top_rows *t)
{
    t->nnodes += rd_u32(r);
    t->nranks += rd_u32(r);
    t->nrunning += rd_u32(r);
    for (uint32_t n = rd_u32(r); n > 0 && !r->bad; n--)
        get_node(r, next_node(t));
    for (uint32_t n = rd_u32(r); n > 0 && !r->bad; n--)
        get_rank(r, next_rank(t));
    return rd_done(r);
}

/* ------------------------------------------------------------------------------------------ JSON
 */

static json_t *node_json(const struct top_node *n)
{
    return json_pack("{s:i,s:o,s:s,s:i,s:i,s:f,s:f,s:I}", "node", n->node, "host",
                     json_of_text(n->host), "state", n->state, "nworkers", n->nworkers, "nrunning",
                     n->nrunning, "elapsed_s", n->elapsed_s, "cpu_s", n->cpu_s, "memory_bytes",
                     (json_int_t)n->memory);
}

static json_t *rank_json(const struct top_rank *k)
{
    json_t *j =
        json_pack("{s:i,s:i,s:i,s:i,s:s,s:f}", "rank", k->rank, "node", k->node, "local_rank",
                  k->local_rank, "pid", k->pid, "state", k->state, "elapsed_s", k->elapsed_s);
    if (*k->program)
        json_object_set_new(j, "program", json_of_text(k->program));
    if (k->cpu_s >= 0) {
        json_object_set_new(j, "cpu_s", json_real(k->cpu_s));
        json_object_set_new(j, "memory_bytes", json_integer((json_int_t)k->memory));
    }
    if (k->output_age_s >= 0)
        json_object_set_new(j, "output_age_s", json_real(k->output_age_s));
    if (k->has_gpu) {
        json_object_set_new(j, "gpu_memory_bytes", json_integer((json_int_t)k->gpu_memory));
        json_object_set_new(j, "gpu_memory_total_bytes",
                            json_integer((json_int_t)k->gpu_memory_total));
        if (k->gpu_percent >= 0)
            json_object_set_new(j, "gpu_percent", json_integer(k->gpu_percent));
    }
    if (k->relative > 0) {
        json_object_set_new(j, "relative", json_real(k->relative));
        json_object_set_new(j, "own", json_real(k->own));
    }
    if (k->has_op)
        json_object_set_new(j, "operation",
                            json_pack("{s:o,s:I,s:b,s:f}", "name", json_of_text(k->op_name),
                                      "number", (json_int_t)k->op_number, "open", (int)k->op_open,
                                      "age_s", k->op_age_s));
    return j;
}

void top_rows_json(const struct top_rows *t, json_t *into)
{
    json_t *nodes = json_array(), *ranks = json_array();
    for (size_t i = 0; i < t->nnode_rows; i++)
        json_array_append_new(nodes, node_json(&t->nodes[i]));
    for (size_t i = 0; i < t->nrank_rows; i++)
        json_array_append_new(ranks, rank_json(&t->ranks[i]));
    json_object_set_new(into, "nodes", nodes);
    json_object_set_new(into, "ranks", ranks);
    json_object_set_new(into, "answered", json_integer(t->nnodes));
    json_object_set_new(into, "nranks", json_integer(t->nranks));
    json_object_set_new(into, "nrunning", json_integer(t->nrunning));
}
