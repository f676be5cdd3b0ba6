#include "agent/report/operations.h"

#include <stdlib.h>
#include <string.h>

#include "agent/report/flight_report.h"
#include "core/mem.h"

struct operation {
    int rank, node;
    bool failed;
    uint64_t number, count, start_ns, end_ns;
    char op[20], dtype[8], group[20];
};

static void operations_add(struct operations *o, int rank, int node, const struct segment_op *op)
{
    if (o->n == o->cap && o->cap < OPERATIONS_MAX) {
        o->cap = o->cap ? 2 * o->cap : 256;
        o->cap = o->cap < OPERATIONS_MAX ? o->cap : OPERATIONS_MAX;
        o->e = xrealloc(o->e, o->cap * sizeof(*o->e));
    }
    if (o->n < o->cap)
        o->next = o->n++;
    struct operation *e = &o->e[o->next];
    o->next = (o->next + 1) % OPERATIONS_MAX;
    *e = (struct operation){.rank = rank,
                            .node = node,
                            .failed = op->result < 0,
                            .number = op->seq,
                            .count = op->count,
                            .start_ns = op->start_ns,
                            .end_ns = op->end_ns};
    memcpy(e->op, op->op, sizeof(e->op));
    memcpy(e->dtype, op->dtype, sizeof(e->dtype));
    memcpy(e->group, op->group_name, sizeof(e->group));
}

void operations_look(struct operations *o, const struct segment *s, int node, int base_rank,
                     bool all)
{
    struct segment_op ops[SEGMENT_OPS];
    if (o->nseen < s->nlocal) {
        o->seen = xrealloc(o->seen, (size_t)s->nlocal * sizeof(*o->seen));
        memset(o->seen + o->nseen, 0, (size_t)(s->nlocal - o->nseen) * sizeof(*o->seen));
        o->nseen = s->nlocal;
    }
    for (int i = 0; s->fd >= 0 && i < s->nlocal; i++) {
        if (flight_operations_count(s, i) == o->seen[i])
            continue;
        int n = flight_operations(s, i, ops); /* the newest first */
        while (n > 0) {
            const struct segment_op *op = &ops[--n];
            if (op->number <= o->seen[i])
                continue;
            bool old = op->number + SEGMENT_OPS / 2 <= flight_operations_count(s, i);
            if (!op->end_ns && !all && !old)
                break; /* this operation and later ones are taken when it has ended */
            if (!op->end_ns && !all)
                continue; /* it counts as missed: later ones would be lost */
            o->missed += op->number - o->seen[i] - 1;
            o->seen[i] = op->number;
            operations_add(o, base_rank + i, node, op);
        }
    }
}

void operations_look_at_node(struct operations *o, const struct node *n, bool all)
{
    if (n->table && n->segment.fd >= 0)
        operations_look(o, &n->segment, n->group_rank, n->table->nodes[n->group_rank].base_rank,
                        all);
}

void operations_next_round(struct operations *o)
{
    o->nseen = 0;
}

void operations_fini(struct operations *o)
{
    free(o->e);
    free(o->seen);
    *o = (struct operations){0};
}

static json_t *seconds(uint64_t ns, int64_t offset_ns)
{
    return json_real((double)((int64_t)ns + offset_ns) / 1e9);
}

json_t *operations_json(const struct operations *o, int64_t offset_ns)
{
    json_t *list = json_array();
    for (size_t i = 0; i < o->n; i++) {
        const struct operation *e = &o->e[(o->n == OPERATIONS_MAX ? o->next + i : i) % o->n];
        json_t *j =
            json_pack("{s:i,s:i,s:s,s:I,s:I}", "rank", e->rank, "node", e->node, "name", e->op,
                      "number", (json_int_t)e->number, "count", (json_int_t)e->count);
        if (!j)
            continue; /* a worker has written something else there */
        if (*e->dtype)
            json_object_set_new(j, "dtype", json_string(e->dtype));
        if (*e->group)
            json_object_set_new(j, "group", json_string(e->group));
        json_object_set_new(j, "start_s", seconds(e->start_ns, offset_ns));
        if (e->end_ns)
            json_object_set_new(j, "end_s", seconds(e->end_ns, offset_ns));
        if (e->failed)
            json_object_set_new(j, "failed", json_true());
        json_array_append_new(list, j);
    }
    return json_pack("{s:o,s:I}", "operations", list, "missed", (json_int_t)o->missed);
}
