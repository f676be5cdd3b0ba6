#include "agent/report/timeline_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/fs.h"
#include "agent/report/event_json.h"
#include "agent/report/operations.h"
#include "agent/report/timeline.h"
#include "core/log.h"
#include "core/mem.h"

#define LOOK_MS 5 /* between two looks: a flight recorder keeps few operations */

struct timeline {
    struct node *n;
    uv_timer_t timer;
    struct operations operations; /* of all rounds */
};

static int timeline_open(void **state, struct node *n, struct err *e)
{
    (void)e;
    if (!n->job->timeline_path)
        return 0;
    struct timeline *t = xcalloc(1, sizeof(*t));
    t->n = n;
    uv_timer_init(n->loop, &t->timer);
    uvx_own(n->scope, &t->timer);
    n->log.wanted = true;
    *state = t;
    return 0;
}

static void look(struct timeline *t, bool all)
{
    operations_look_at_node(&t->operations, t->n, all);
}

static void on_timer(uv_timer_t *timer)
{
    look(container_of(timer, struct timeline, timer), false);
}

static void timeline_state_changed(void *state, enum node_state from)
{
    struct timeline *t = state;
    if (t->n->state == NODE_RUNNING)
        uv_timer_start(&t->timer, on_timer, 0, LOOK_MS);
    if (from != NODE_RUNNING)
        return;
    uv_timer_stop(&t->timer);
    look(t, true);
    operations_next_round(&t->operations);
}

static void timeline_finish(void *state, const struct rdzv_result *result)
{
    struct timeline *t = state;
    struct err e = ERR_INIT;
    json_t *events = json_array();
    const struct event *event;
    uint64_t at = 0;
    (void)result;
    while ((event = event_list_next(&t->n->log.job, &at))) {
        char *line = event_json(event);
        json_array_append_new(events, line ? json_loads(line, 0, NULL) : NULL);
        free(line);
    }
    json_t *operations = operations_json(&t->operations, event_log_offset(&t->n->log));
    json_t *trace = timeline_json(events, operations);
    char *text = json_dumps(trace, JSON_COMPACT | JSON_REAL_PRECISION(16));
    if (!text || fs_replace_file(t->n->job->timeline_path, text, strlen(text), &e) < 0)
        log_error("--timeline: %s", text ? e.msg : "out of memory");
    free(text);
    json_decref(trace);
    json_decref(operations);
    json_decref(events);
}

static void timeline_free(void *state)
{
    struct timeline *t = state;
    operations_fini(&t->operations);
    free(t);
}

const struct feature timeline_feature = {
    .name = "timeline",
    .open = timeline_open,
    .state_changed = timeline_state_changed,
    .finish = timeline_finish,
    .free = timeline_free,
};
