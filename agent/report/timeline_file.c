#include "agent/report/timeline_file.h"

#include <errno.h>
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

    /* The end: on a thread of libuv's pool, for it takes seconds for a long log. */
    uv_work_t work;
    struct event_list events; /* a copy */
    int64_t offset_ns;
    bool writing;
    struct err e;
    void (*on_closed)(void *arg); /* NULL: it is not closed yet */
    void *on_closed_arg;
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

static void copy_events(struct event_list *to, const struct event_list *from)
{
    const struct event *e;
    uint64_t at = 0;
    to->e = xcalloc(from->n + 1, sizeof(*to->e));
    while ((e = event_list_next(from, &at))) {
        struct event *copy = &to->e[to->n++];
        *copy = *e;
        copy->host = xstrdup(e->host ? e->host : "");
        copy->text = xstrdup(e->text ? e->text : "");
        copy->extra = xstrdup(e->extra ? e->extra : "");
    }
}

static void free_events(struct event_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free((char *)l->e[i].host);
        free((char *)l->e[i].text);
        free((char *)l->e[i].extra);
    }
    free(l->e);
    *l = (struct event_list){0};
}

static void write_it(uv_work_t *work)
{
    struct timeline *t = container_of(work, struct timeline, work);
    json_t *events = json_array();
    for (size_t i = 0; i < t->events.n; i++) {
        char *line = event_json(&t->events.e[i]);
        json_array_append_new(events, line ? json_loads(line, 0, NULL) : NULL);
        free(line);
    }
    json_t *operations = operations_json(&t->operations, t->offset_ns);
    json_t *trace = timeline_json(events, operations);
    char *text = json_dumps(trace, JSON_COMPACT | JSON_REAL_PRECISION(16));
    if (text)
        fs_replace_file(t->n->job->timeline_path, text, strlen(text), &t->e);
    else
        err_set(&t->e, -ENOMEM, "out of memory");
    free(text);
    json_decref(trace);
    json_decref(operations);
    json_decref(events);
}

static void on_written(uv_work_t *work, int status)
{
    struct timeline *t = container_of(work, struct timeline, work);
    (void)status;
    t->writing = false;
    if (t->e.code)
        log_error("--timeline: %s", t->e.msg);
    if (t->on_closed)
        t->on_closed(t->on_closed_arg);
}

static void timeline_finish(void *state, const struct rdzv_result *result)
{
    struct timeline *t = state;
    (void)result;
    copy_events(&t->events, &t->n->log.job);
    t->offset_ns = event_log_offset(&t->n->log);
    t->writing = true;
    uv_queue_work(t->n->loop, &t->work, write_it, on_written);
}

static void timeline_close(void *state, void (*on_closed)(void *arg), void *arg)
{
    struct timeline *t = state;
    t->on_closed = on_closed;
    t->on_closed_arg = arg;
    if (!t->writing)
        on_closed(arg);
}

static void timeline_free(void *state)
{
    struct timeline *t = state;
    operations_fini(&t->operations);
    free_events(&t->events);
    free(t);
}

const struct feature timeline_feature = {
    .name = "timeline",
    .open = timeline_open,
    .state_changed = timeline_state_changed,
    .finish = timeline_finish,
    .close = timeline_close,
    .free = timeline_free,
};
