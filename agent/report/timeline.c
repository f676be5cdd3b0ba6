#include "agent/report/timeline.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define JOB      1000000 /* the process of the job; nodes have the numbers of nodes */
#define LAUNCHER 1000000 /* the thread of a launcher; workers have their ranks */

enum { RENDEZVOUS_ROW = 1, ROUNDS_ROW, RESTARTS_ROW };

struct trace {
    json_t *list;
    json_t *nodes;   /* "host pid" -> {"node", "state", "at"} */
    json_t *workers; /* rank -> {"node", "at", "args"} of those that run */
    double zero, last;
    double rendezvous, start, round, stop; /* when they began; negative: not under way */
    json_t *round_args, *stop_args;
};

static const char *text_in(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

static long number_in(const json_t *j, const char *key, long otherwise)
{
    const json_t *v = json_object_get(j, key);
    return v ? (long)json_integer_value(v) : otherwise;
}

static double time_in(const json_t *j, const char *key)
{
    return json_number_value(json_object_get(j, key));
}

/* -------------------------------------------------------------------------------------- entries */

/* Takes args; NULL: none. */
static void put_entry(struct trace *t, const char *phase, const char *name, long pid, long tid,
                      double at, double end, json_t *args)
{
    json_t *j = json_pack("{s:s,s:s,s:I,s:I,s:f}", "ph", phase, "name", name, "pid",
                          (json_int_t)pid, "tid", (json_int_t)tid, "ts", (at - t->zero) * 1e6);
    if (*phase == 'X')
        json_object_set_new(j, "dur", json_real(end > at ? (end - at) * 1e6 : 0));
    if (*phase == 'i')
        json_object_set_new(j, "s", json_string(pid == JOB ? "g" : "t"));
    if (args)
        json_object_set_new(j, "args", args);
    json_array_append_new(t->list, j);
}

static void put_span(struct trace *t, const char *name, long pid, long tid, double from, double to,
                     json_t *args)
{
    put_entry(t, "X", name, pid, tid, from, to, args);
}

static void put_name(struct trace *t, const char *what, long pid, long tid, const char *name)
{
    put_entry(t, "M", what, pid, tid, t->zero, 0, json_pack("{s:s}", "name", name));
}

static void put_order(struct trace *t, const char *what, long pid, long tid, long index)
{
    put_entry(t, "M", what, pid, tid, t->zero, 0,
              json_pack("{s:I}", "sort_index", (json_int_t)index));
}

/* -------------------------------------------------------------------------------------- the job */

static json_t *round_args(const json_t *c)
{
    json_t *args = json_deep_copy(c);
    json_object_del(args, "mono_s");
    return args;
}

/* A round, or what follows it until the next one, ends. */
static void end_round(struct trace *t, double at, const json_t *c)
{
    char name[32];
    if (t->round < 0)
        return;
    snprintf(name, sizeof(name), "round %ld", number_in(t->round_args, "round", 0));
    if (c)
        json_object_update_missing(t->round_args, (json_t *)c);
    json_object_del(t->round_args, "mono_s");
    put_span(t, name, JOB, ROUNDS_ROW, t->round, at, t->round_args);
    t->round_args = NULL;
    t->round = -1;
}

static void end_stop(struct trace *t, const char *name, double at)
{
    if (t->stop < 0)
        return;
    put_span(t, name, JOB, RESTARTS_ROW, t->stop, at, t->stop_args);
    t->stop_args = NULL;
    t->stop = -1;
}

static void take_job_event(struct trace *t, const char *name, double at, const json_t *c)
{
    if (strcmp(name, "rendezvous") == 0) {
        t->rendezvous = at;
    } else if (strcmp(name, "start") == 0) {
        if (t->rendezvous >= 0)
            put_span(t, "rendezvous", JOB, RENDEZVOUS_ROW, t->rendezvous, at, NULL);
        end_stop(t, "restart", at);
        end_round(t, at, NULL);
        t->rendezvous = -1;
        t->start = t->round = at;
        t->round_args = round_args(c);
    } else if (strcmp(name, "ready") == 0 && t->start >= 0) {
        put_span(t, "start", JOB, RENDEZVOUS_ROW, t->start, at, NULL);
        t->start = -1;
    } else if (strcmp(name, "stop") == 0) {
        end_round(t, at, c);
        end_stop(t, "restart", at);
        t->stop = at;
        t->stop_args = round_args(c);
    } else if (strcmp(name, "finish") == 0) {
        end_round(t, at, c);
        end_stop(t, "stop", at);
    } else if (strcmp(name, "submit") != 0) {
        put_entry(t, "i", name, JOB, ROUNDS_ROW, at, 0, round_args(c));
    }
}

/* ------------------------------------------------------------------------------ nodes, workers */

/* The node of the launcher that the context names; it may not have had a number then. */
static json_t *node_of(struct trace *t, const json_t *c)
{
    char key[512];
    snprintf(key, sizeof(key), "%s %ld", text_in(c, "host"), number_in(c, "pid", 0));
    return json_object_get(t->nodes, key);
}

static void end_state(struct trace *t, json_t *node, double at)
{
    const char *state = text_in(node, "state");
    if (*state)
        put_span(t, state, number_in(node, "node", 0), LAUNCHER, time_in(node, "at"), at, NULL);
}

static void take_state(struct trace *t, double at, const json_t *c)
{
    json_t *node = node_of(t, c);
    end_state(t, node, at);
    json_object_set(node, "state", json_object_get(c, "state"));
    json_object_set_new(node, "at", json_real(at));
}

static void end_worker(struct trace *t, const char *rank, json_t *w, double at, const json_t *c)
{
    json_t *args = json_incref(json_object_get(w, "args"));
    if (c)
        json_object_update(args, (json_t *)c);
    json_object_del(args, "mono_s");
    put_span(t, "worker", number_in(w, "node", 0), strtol(rank, NULL, 10), time_in(w, "at"), at,
             args);
}

static void take_worker_event(struct trace *t, const char *name, double at, const json_t *c)
{
    char rank[24];
    long node = number_in(c, "node", 0);
    snprintf(rank, sizeof(rank), "%ld", number_in(c, "rank", 0));
    json_t *w = json_object_get(t->workers, rank);
    if (strcmp(name, "worker.start") == 0) {
        json_object_set_new(
            t->workers, rank,
            json_pack("{s:I,s:f,s:o}", "node", (json_int_t)node, "at", at, "args", round_args(c)));
    } else if (strcmp(name, "worker.finish") == 0) {
        if (w)
            end_worker(t, rank, w, at, c);
        json_object_del(t->workers, rank);
    } else {
        put_entry(t, "i", name + strlen("worker."), node, number_in(c, "rank", 0), at, 0, NULL);
    }
}

/* Names the processes and threads, and finds out which launcher has which number. */
static void name_all(struct trace *t, const json_t *events)
{
    json_t *event, *ranks = json_object();
    char key[512], name[400];
    size_t i;
    put_name(t, "process_name", JOB, 0, "job");
    put_order(t, "process_sort_index", JOB, 0, -1);
    put_name(t, "thread_name", JOB, RENDEZVOUS_ROW, "rendezvous and start");
    put_name(t, "thread_name", JOB, ROUNDS_ROW, "rounds");
    put_name(t, "thread_name", JOB, RESTARTS_ROW, "restarts");
    json_array_foreach((json_t *)events, i, event)
    {
        const json_t *c = json_object_get(event, "context");
        bool of_node = strncmp(text_in(event, "name"), "node.", 5) == 0;
        long node = number_in(c, "node", -1), rank = number_in(c, "rank", -1);
        snprintf(key, sizeof(key), "%s %ld", text_in(c, "host"), number_in(c, "pid", 0));
        if (of_node && !json_object_get(t->nodes, key))
            json_object_set_new(t->nodes, key, json_pack("{s:I}", "node", (json_int_t)-1));
        json_t *entry = of_node ? json_object_get(t->nodes, key) : NULL;
        if (entry && node >= 0 && number_in(entry, "node", -1) < 0) {
            json_object_set_new(entry, "node", json_integer(node));
            snprintf(name, sizeof(name), "node %ld, %.300s", node, text_in(c, "host"));
            put_name(t, "process_name", node, 0, name);
            put_order(t, "process_sort_index", node, 0, node);
            put_name(t, "thread_name", node, LAUNCHER, "launcher");
            put_order(t, "thread_sort_index", node, LAUNCHER, -1);
        }
        snprintf(key, sizeof(key), "%ld %ld", node, rank);
        if (rank >= 0 && node >= 0 && !json_object_get(ranks, key)) {
            snprintf(name, sizeof(name), "rank %ld", rank);
            put_name(t, "thread_name", node, rank, name);
            put_order(t, "thread_sort_index", node, rank, rank);
            json_object_set_new(ranks, key, json_true());
        }
    }
    json_decref(ranks);
}

static void take_operation(struct trace *t, json_t *op)
{
    json_t *args = json_copy(op);
    double from = time_in(op, "start_s");
    double to = json_object_get(op, "end_s") ? time_in(op, "end_s") : t->last;
    static const char *const shown[] = {"rank", "node", "name", "start_s", "end_s"};
    for (size_t i = 0; i < ARRAY_LEN(shown); i++)
        json_object_del(args, shown[i]);
    put_span(t, text_in(op, "name"), number_in(op, "node", 0), number_in(op, "rank", 0), from, to,
             args);
}

json_t *timeline_json(const json_t *events, const json_t *operations)
{
    struct trace t = {json_array(), json_object(), json_object(), -1, 0, -1, -1, -1,
                      -1,           NULL,          NULL};
    json_t *event, *value;
    const char *key;
    double wall = 0;
    size_t i;
    json_array_foreach((json_t *)events, i, event)
    {
        double at = time_in(json_object_get(event, "context"), "mono_s");
        if (t.zero < 0 || at < t.zero) {
            t.zero = at;
            wall = time_in(event, "timestamp");
        }
        t.last = at > t.last ? at : t.last;
    }
    name_all(&t, events);
    json_array_foreach((json_t *)events, i, event)
    {
        const json_t *c = json_object_get(event, "context");
        const char *name = text_in(event, "name");
        double at = time_in(c, "mono_s");
        if (strcmp(name, "node.state") == 0)
            take_state(&t, at, c);
        else if (strncmp(name, "worker.", 7) == 0)
            take_worker_event(&t, name, at, c);
        else if (strncmp(name, "node.", 5) != 0)
            take_job_event(&t, name, at, c);
    }
    end_round(&t, t.last, NULL); /* the job still runs */
    end_stop(&t, "stop", t.last);
    json_object_foreach(t.nodes, key, value) end_state(&t, value, t.last);
    json_object_foreach(t.workers, key, value) end_worker(&t, key, value, t.last, NULL);
    json_array_foreach(json_object_get(operations, "operations"), i, value)
        take_operation(&t, value);
    json_decref(t.nodes);
    json_decref(t.workers);
    return json_pack("{s:o,s:s,s:{s:s,s:f,s:I}}", "traceEvents", t.list, "displayTimeUnit", "ms",
                     "otherData", "launcher", "dlaunch " DLAUNCH_VERSION, "started", wall,
                     "operations_missed", (json_int_t)number_in(operations, "missed", 0));
}
