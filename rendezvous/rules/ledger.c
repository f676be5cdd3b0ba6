#include "rendezvous/rules/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static const struct {
    const char *name, *meaning;
} classes[LEDGER_CLASSES] = {
    [LEDGER_RENDEZVOUS] = {"rendezvous", "rendezvous"},
    [LEDGER_START] = {"start", "start of the workers"},
    [LEDGER_FIRST] = {"first_operation", "until the first operation"},
    [LEDGER_RUNNING] = {"running", "running"},
    [LEDGER_WAITING] = {"waiting", "waiting for other ranks"},
    [LEDGER_LOST] = {"lost", "lost since the last checkpoint"},
    [LEDGER_RESTART] = {"restart", "restarts"},
    [LEDGER_END] = {"end", "end"},
};

const char *ledger_name(enum ledger_class c)
{
    return classes[c].name;
}

const char *ledger_meaning(enum ledger_class c)
{
    return classes[c].meaning;
}

/* After a node's end, its own last events may be late by so much. */
#define LATE_NS 600000000000u

enum phase { JOINING, STARTING, RUNS, BARRIER, STOPPING, OVER };

/* One node. */
struct track {
    struct track *next;
    struct node_id origin;
    uint64_t begin_ns, since_ns;
    enum phase phase;
    bool again;              /* a round has been stopped */
    bool operated;           /* the round has had an operation */
    uint64_t first, run;     /* of the round, before and after the first operation */
    uint64_t stop;           /* of a stop whose consequence is not known yet */
    double waiting_s, age_s; /* as the node says */
    int pid;
    char *host; /* owned; NULL: not known */
};

/* The sums after some of the events. */
struct ledger_past {
    struct ledger sums; /* of nodes, those that are not in `all` any more */
    struct track *all;
    struct map map; /* origin -> track */
    uint64_t last_ns, finish_ns;
};

void ledger_note(char *out, size_t cap, double waiting_s, double checkpoint_age_s)
{
    int n = snprintf(out, cap, "waiting_s=%.6f", waiting_s);
    if (checkpoint_age_s >= 0)
        snprintf(out + n, cap - (size_t)n, " checkpoint_age_s=%.6f", checkpoint_age_s);
}

static uint64_t at_most(double seconds, uint64_t ns)
{
    return seconds <= 0 ? 0 : seconds * 1e9 < (double)ns ? (uint64_t)(seconds * 1e9) : ns;
}

/* Accounts for the time since the last event of the node. */
static void charge(struct ledger *l, struct track *t, uint64_t at_ns)
{
    uint64_t d = at_ns > t->since_ns ? at_ns - t->since_ns : 0; /* clocks are set a little */
    t->since_ns += d;
    switch (t->phase) {
    case JOINING:
        l->ns[t->again ? LEDGER_RESTART : LEDGER_RENDEZVOUS] += d;
        break;
    case STARTING:
        l->ns[t->again ? LEDGER_RESTART : LEDGER_START] += d;
        break;
    case RUNS:
        *(t->operated ? &t->run : &t->first) += d;
        break;
    case BARRIER:
        l->ns[LEDGER_WAITING] += d;
        break;
    case STOPPING:
        t->stop += d;
        break;
    case OVER:
        break;
    }
}

/* The workers of the node run no more; stopped: before they had ended. */
static void end_round(struct ledger *l, struct track *t, bool stopped)
{
    uint64_t waiting = at_most(t->waiting_s, t->run), running = t->run - waiting, lost = 0;
    uint64_t *first = &l->ns[t->operated ? LEDGER_FIRST : LEDGER_RUNNING];
    if (stopped && t->age_s >= 0)
        lost = at_most(t->age_s, t->first + t->run);
    uint64_t of_run = lost < t->run ? lost : t->run;
    uint64_t of_waiting =
        t->run ? (uint64_t)((double)of_run / (double)t->run * (double)waiting) : 0;
    if (of_run - of_waiting > running)
        of_waiting = of_run - running;
    l->ns[LEDGER_LOST] += lost;
    *first += t->first - (lost - of_run);
    l->ns[LEDGER_WAITING] += waiting - of_waiting;
    l->ns[LEDGER_RUNNING] += running - (of_run - of_waiting);
    t->first = t->run = 0;
    t->operated = false;
    t->waiting_s = 0;
    t->age_s = -1;
}

static void enter(struct ledger *l, struct track *t, enum phase phase)
{
    if (t->phase == RUNS)
        end_round(l, t, phase == STOPPING);
    if (t->phase == STOPPING && phase != STOPPING) {
        l->ns[phase == OVER ? LEDGER_END : LEDGER_RESTART] += t->stop;
        t->stop = 0;
    }
    t->again |= phase == STOPPING;
    t->phase = phase;
}

static void finish(struct ledger *l, struct track *t, uint64_t at_ns)
{
    if (t->phase == OVER)
        return;
    charge(l, t, at_ns);
    enter(l, t, OVER);
    l->total_ns += t->since_ns - t->begin_ns;
}

static enum phase phase_of(const char *state, enum phase now)
{
    static const char *const names[] = {"RENDEZVOUS", "STARTING", "RUNNING", "EXIT_BARRIER",
                                        "STOPPING"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (state && strcmp(state, names[i]) == 0)
            return (enum phase)i;
    }
    return now;
}

static struct track *track_of(struct ledger_past *p, const struct event *e)
{
    void **value = map_put(&p->map, e->origin.b, sizeof(e->origin.b));
    if (value && !*value) {
        struct track *t = *value = xcalloc(1, sizeof(*t));
        *t =
            (struct track){.next = p->all, .begin_ns = e->at_ns, .since_ns = e->at_ns, .age_s = -1};
        t->origin = e->origin;
        t->pid = e->pid;
        t->host = e->host ? xstrdup(e->host) : NULL;
        p->all = t;
    }
    return value ? *value : NULL;
}

static void take_note(struct track *t, const char *text)
{
    const char *age = text ? strstr(text, "checkpoint_age_s=") : NULL;
    if (text)
        sscanf(text, "waiting_s=%lf", &t->waiting_s);
    if (age)
        sscanf(age, "checkpoint_age_s=%lf", &t->age_s);
}

static void take_event(struct ledger *l, struct track *t, const struct event *e)
{
    if (e->name == EVENT_NODE_STATE) {
        charge(l, t, e->at_ns);
        enter(l, t, phase_of(e->text, t->phase));
    } else if (e->name == EVENT_NODE_LEDGER) {
        take_note(t, e->text);
    } else if (e->name == EVENT_WORKER_COLLECTIVE && t->phase == RUNS && !t->operated) {
        charge(l, t, e->at_ns);
        t->operated = true;
    }
}

/* The node has gone, and nothing of it comes any more. */
static void forget(struct ledger_past *p, struct track *t)
{
    map_remove(&p->map, t->origin.b, sizeof(t->origin.b));
    p->sums.nodes++;
    free(t->host);
    free(t);
}

/* A node that the coordinator says has gone. Those that went long ago are forgotten, so that a job
 * may have ever new ones. */
static void lose(struct ledger_past *p, const struct event *e)
{
    for (struct track **at = &p->all, *t; (t = *at);) {
        if (t->pid == e->pid && t->host && e->host && strcmp(t->host, e->host) == 0)
            finish(&p->sums, t, e->at_ns);
        bool gone = t->phase == OVER && t->since_ns + LATE_NS < e->at_ns;
        if (gone) {
            *at = t->next;
            forget(p, t);
        } else {
            at = &t->next;
        }
    }
}

static void past_take(struct ledger_past *p, const struct event *e)
{
    p->last_ns = e->at_ns > p->last_ns ? e->at_ns : p->last_ns;
    if (e->name == EVENT_NODE_LEAVE || e->name == EVENT_NODE_LOST) {
        lose(p, e);
    } else if (e->name == EVENT_FINISH) {
        p->finish_ns = e->at_ns;
    } else if (e->name == EVENT_NODE_STATE || e->name == EVENT_NODE_LEDGER ||
               e->name == EVENT_WORKER_COLLECTIVE) {
        struct track *t = track_of(p, e);
        if (t && t->phase != OVER)
            take_event(&p->sums, t, e);
    }
}

static void past_fini(struct ledger_past *p)
{
    map_fini(&p->map, NULL);
    for (struct track *t = p->all, *next; t; t = next) {
        next = t->next;
        free(t->host);
        free(t);
    }
}

/* Takes a copy of a past, or begins one. */
static void past_copy(struct ledger_past *to, const struct ledger_past *from)
{
    *to = (struct ledger_past){0};
    map_init(&to->map);
    if (!from)
        return;
    to->sums = from->sums;
    to->last_ns = from->last_ns;
    to->finish_ns = from->finish_ns;
    for (const struct track *t = from->all; t; t = t->next) {
        void **value = map_put(&to->map, t->origin.b, sizeof(t->origin.b));
        struct track *copy = value ? xcalloc(1, sizeof(*copy)) : NULL;
        if (!copy)
            continue;
        *copy = *t;
        copy->host = t->host ? xstrdup(t->host) : NULL;
        copy->next = to->all;
        *value = to->all = copy;
    }
}

void ledger_of_events(struct ledger *out, const struct event_list *events, uint64_t now_ns)
{
    struct ledger_past p;
    uint64_t at = 0;
    past_copy(&p, events->past);
    for (const struct event *e; (e = event_list_next(events, &at));)
        past_take(&p, e);
    for (struct track *t = p.all; t; t = t->next) {
        finish(&p.sums, t, p.finish_ns ? p.finish_ns : now_ns ? now_ns : p.last_ns);
        p.sums.nodes++;
    }
    *out = p.sums;
    past_fini(&p);
}

void ledger_keep(struct event_list *events)
{
    events->past = xcalloc(1, sizeof(*events->past));
    map_init(&events->past->map);
    events->on_drop = past_take;
}

void ledger_forget(struct event_list *events)
{
    if (!events->past)
        return;
    past_fini(events->past);
    free(events->past);
    events->past = NULL;
}
