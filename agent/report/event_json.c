#include "agent/report/event_json.h"

#include <stdlib.h>
#include <string.h>

#include "agent/base/signals.h"
#include "agent/report/json_text.h"
#include "agent/report/report_words.h"
#include "core/mem.h"

static void put_text(json_t *j, const char *key, const char *text)
{
    if (text && *text)
        json_object_set_new(j, key, json_of_text(text));
}

static void put_int(json_t *j, const char *key, int v, bool there)
{
    if (there)
        json_object_set_new(j, key, json_integer(v));
}

static void put_end(json_t *j, const struct event *e)
{
    char name[24];
    put_int(j, "exit_code", e->exit_code, e->signal == 0);
    put_int(j, "signal", e->signal, e->signal != 0);
    if (e->signal)
        put_text(j, "signal_name", signal_name(e->signal, name));
}

static json_t *context(const struct event *e)
{
    unsigned f = event_fields(e->name);
    json_t *j = json_object();
    if (f & EV_RUN) {
        put_int(j, "schema", EVENT_SCHEMA, true);
        put_text(j, "run_id", e->extra);
        put_text(j, "program", e->text);
        put_text(j, "version", DLAUNCH_VERSION);
    }
    put_int(j, "round", (int)e->round, f & EV_ROUND);
    put_int(j, "attempt", e->attempt, f & EV_ATTEMPT);
    put_int(j, "max_restarts", e->max_restarts, f & EV_MAX);
    put_int(j, "nnodes", e->nnodes, f & EV_WORLD);
    put_int(j, "world_size", e->world_size, f & EV_WORLD);
    put_int(j, "nproc", e->world_size, f & EV_NPROC);
    put_int(j, "rank", e->rank, (f & EV_RANK) && e->rank >= 0);
    put_int(j, "local_rank", e->local_rank, (f & EV_RANK) && e->rank >= 0);
    put_int(j, "node", e->node, (f & EV_NODE) && e->node >= 0);
    if (f & EV_NODE)
        put_text(j, "host", e->host);
    put_int(j, "pid", e->pid, (f & EV_PID) && e->pid);
    if (f & EV_STATE)
        put_text(j, "state", e->text);
    if (f & EV_CAUSE)
        put_text(j, "cause", cause_name(e->cause));
    if (f & EV_END)
        put_end(j, e);
    put_int(j, "caused_by", e->caused_by, (f & EV_CAUSED_BY) && e->caused_by >= 0);
    if (f & EV_PROGRAM)
        put_text(j, "program", e->text);
    if (f & EV_TEXT)
        put_text(j, "text", e->text);
    if (f & EV_LOG_DIR)
        put_text(j, "log_dir", e->extra);
    if (f & EV_RANKS)
        put_text(j, "ranks", e->extra);
    json_object_set_new(j, "mono_s", json_real((double)(e->at_ns / 1000) / 1e6));
    return j;
}

char *event_json(const struct event *e)
{
    json_t *j = json_object();
    json_object_set_new(j, "timestamp", json_real((double)(e->wall_ns / 1000) / 1e6));
    json_object_set_new(j, "name", json_string(event_text(e->name)));
    json_object_set_new(j, "context", context(e));
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(16)), *line = NULL;
    json_decref(j);
    if (text)
        line = xasprintf("%s\n", text);
    free(text);
    return line;
}
