#include "agent/report/job_operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/operations.h"
#include "core/clock.h"
#include "core/mem.h"

#define EVERY_NS UINT64_C(500000000) /* between two requests */
#define FRESH_S  5                   /* an older answer is of a node that has gone */

struct asked {
    struct node *n;
    json_t *nodes; /* number of a node -> its newest answer, with "at" */
    uint64_t asked_ns;
};

static int own_number(const struct node *n)
{
    return n->table ? n->group_rank : 0;
}

static json_t *own_operations(const struct node *n, int64_t offset_ns)
{
    struct operations now = {0};
    operations_look_at_node(&now, n, true);
    json_t *j = operations_json(&now, offset_ns);
    operations_fini(&now);
    return j;
}

/* Adds the operations of an answer, on the coordinator's clock. */
static void add_operations(json_t *list, const json_t *node, int64_t offset_ns)
{
    static const char *const times[] = {"start_s", "end_s"};
    double zero = json_number_value(json_object_get(node, "at")) + (double)offset_ns / 1e9;
    json_t *op;
    size_t i;
    json_array_foreach(json_object_get(node, "operations"), i, op)
    {
        json_t *copy = json_copy(op);
        for (size_t k = 0; k < ARRAY_LEN(times); k++) {
            const json_t *t = json_object_get(op, times[k]);
            if (t)
                json_object_set_new(copy, times[k], json_real(zero + json_number_value(t)));
        }
        json_array_append_new(list, copy);
    }
}

static bool is_own(const struct node *n, const json_t *node)
{
    return json_integer_value(json_object_get(node, "node")) == own_number(n);
}

json_t *operations_of_job(void *state)
{
    struct asked *a = state;
    const struct rdzv_request r = {.kind = REQUEST_OPERATIONS};
    int64_t offset_ns = event_log_offset(&a->n->log);
    json_t *all = own_operations(a->n, offset_ns), *node;
    uint64_t now = mono_ns();
    const char *key;
    int answered = 1;
    if (a->n->state != NODE_DONE && now - a->asked_ns >= EVERY_NS && a->n->calls->request(a->n, &r))
        a->asked_ns = now;
    json_object_foreach(a->nodes, key, node)
    {
        double age = (double)now / 1e9 - json_number_value(json_object_get(node, "at"));
        if (age > FRESH_S || is_own(a->n, node))
            continue;
        add_operations(json_object_get(all, "operations"), node, offset_ns);
        answered++;
    }
    json_object_set_new(all, "answered", json_integer(answered));
    return all;
}

static int operations_open(void **state, struct node *n, struct err *e)
{
    struct asked *a = xcalloc(1, sizeof(*a));
    (void)e;
    *a = (struct asked){.n = n, .nodes = json_object()};
    *state = a;
    return 0;
}

/* An answer has the times of its operations since its own sending, so that clocks do not matter. */
static void tell_operations(struct node *n, const struct rdzv_request *r)
{
    json_t *j = own_operations(n, -(int64_t)mono_ns());
    json_object_set_new(j, "node", json_integer(own_number(n)));
    char *text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    if (text && strlen(text) <= RDZV_ANSWER_MAX) {
        const struct rdzv_answer answer = request_answer(r, text, strlen(text));
        n->calls->answer(n, &answer);
    }
    free(text);
}

static bool operations_request(void *state, const struct rdzv_request *r)
{
    struct asked *a = state;
    if (r->kind != REQUEST_OPERATIONS)
        return false;
    if (a->n->job->nproc)
        tell_operations(a->n, r);
    return true;
}

static bool operations_answer(void *state, const struct rdzv_answer *answer)
{
    struct asked *a = state;
    char key[24];
    if (answer->kind != REQUEST_OPERATIONS)
        return false;
    json_t *node = json_loadb((const char *)answer->data, answer->len, 0, NULL);
    json_t *number = json_object_get(node, "node");
    if (json_is_array(json_object_get(node, "operations")) && json_is_integer(number)) {
        snprintf(key, sizeof(key), "%d", (int)json_integer_value(number));
        json_object_set_new(node, "at", json_real((double)mono_ns() / 1e9));
        json_object_set(a->nodes, key, node);
    }
    json_decref(node);
    return true;
}

static void operations_free(void *state)
{
    struct asked *a = state;
    json_decref(a->nodes);
    free(a);
}

const struct feature operations_feature = {
    .name = "operations",
    .open = operations_open,
    .request = operations_request,
    .answer = operations_answer,
    .free = operations_free,
};
