#include "rendezvous/rules/event_log.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define ORIGINS_MAX 4096 /* that are remembered without an event in the list */

void event_log_init(struct event_log *l, const struct node_id *id)
{
    *l = (struct event_log){.id = *id};
    map_init(&l->seen);
}

static void list_fini(struct event_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        event_fini(&l->e[i]);
    free(l->e);
}

void event_log_fini(struct event_log *l)
{
    list_fini(&l->own);
    list_fini(&l->job);
    map_fini(&l->seen, NULL);
}

/* The bytes that malloc() takes for a text, with its own word. */
static size_t bytes_of_text(const char *text)
{
    return text ? (strlen(text) + 1 + 8 + 15) / 16 * 16 : 0;
}

static size_t bytes_of(const struct event *e)
{
    return sizeof(*e) + bytes_of_text(e->host) + bytes_of_text(e->text) + bytes_of_text(e->extra);
}

static void drop_half(struct event_list *l)
{
    size_t n = 0;
    for (; n < l->n && l->bytes > EVENT_LOG_BYTES / 2; n++) {
        if (l->past)
            l->on_drop(l->past, &l->e[n]);
        l->bytes -= bytes_of(&l->e[n]);
        event_fini(&l->e[n]);
    }
    l->n -= n;
    l->first += n;
    memmove(l->e, l->e + n, l->n * sizeof(*l->e));
}

/* Takes the texts. */
static void append(struct event_list *l, const struct event *e)
{
    if (l->bytes + bytes_of(e) > EVENT_LOG_BYTES)
        drop_half(l);
    l->bytes += bytes_of(e);
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 32;
        l->e = xrealloc(l->e, l->cap * sizeof(*l->e));
    }
    l->e[l->n++] = *e;
}

static const char *event_log_copy(const char *text)
{
    return text && *text ? xstrndup(text, EVENT_TEXT_MAX - 1) : NULL;
}

static struct event copy_of(const struct event *e)
{
    struct event c = *e;
    c.host = event_log_copy(e->host);
    c.text = event_log_copy(e->text);
    c.extra = event_log_copy(e->extra);
    return c;
}

static void changed(struct event_log *l)
{
    if (l->on_change)
        l->on_change(l->arg);
}

static uint64_t newest_of(const struct event_log *l, const struct node_id *origin)
{
    return (uint64_t)(uintptr_t)map_get(&l->seen, origin->b, sizeof(origin->b));
}

/* Forgets the origins of which the list has no event: a job may have ever new launchers. */
static void forget_origins(struct event_log *l)
{
    struct map kept;
    map_init(&kept);
    for (size_t i = 0; i <= l->job.n; i++) {
        const struct node_id *id = i < l->job.n ? &l->job.e[i].origin : &l->id;
        uint64_t newest = newest_of(l, id);
        void **value = newest ? map_put(&kept, id->b, sizeof(id->b)) : NULL;
        if (value)
            *value = (void *)(uintptr_t)newest;
    }
    map_fini(&l->seen, NULL);
    l->seen = kept;
    l->most_seen = 2 * kept.n;
}

/* Takes the texts; false: the event is known. */
static bool append_to_job(struct event_log *l, const struct event *e)
{
    if (e->seq <= newest_of(l, &e->origin))
        return false;
    void **value = map_put(&l->seen, e->origin.b, sizeof(e->origin.b));
    if (!value) /* no memory */
        return false;
    *value = (void *)(uintptr_t)e->seq;
    append(&l->job, e);
    if (l->seen.n > ORIGINS_MAX && l->seen.n > l->most_seen)
        forget_origins(l);
    struct event *newest = &l->job.e[l->job.n - 1];
    if (newest->wall_ns < l->wall_ns)
        newest->wall_ns = l->wall_ns;
    l->wall_ns = newest->wall_ns;
    l->finished |= e->name == EVENT_FINISH;
    return true;
}

void event_log_add(struct event_log *l, const struct event *e)
{
    struct event own = copy_of(e);
    own.origin = l->id;
    own.seq = ++l->seq;
    if (!l->leads)
        append(&l->own, &own);
    else if (!append_to_job(l, &own))
        event_fini(&own);
    changed(l);
}

bool event_log_take(struct event_log *l, struct event *e)
{
    if (!append_to_job(l, e)) {
        event_fini(e);
        return false;
    }
    changed(l);
    return true;
}

void event_log_settle(struct event_log *l)
{
    size_t before = l->job.n;
    for (size_t i = 0; i < l->own.n; i++) {
        if (l->own.e[i].seq <= newest_of(l, &l->id))
            continue;
        struct event e = copy_of(&l->own.e[i]);
        if (!append_to_job(l, &e))
            event_fini(&e);
    }
    if (l->job.n != before)
        changed(l);
}

void event_log_lead(struct event_log *l, bool leads)
{
    l->leads = leads;
    if (leads)
        event_log_settle(l);
}

void event_log_want(struct event_log *l)
{
    if (l->wanted)
        return;
    l->wanted = true;
    changed(l);
}

const struct event *event_list_next(const struct event_list *l, uint64_t *at)
{
    if (*at < l->first)
        *at = l->first;
    if (*at - l->first >= l->n)
        return NULL;
    return &l->e[(*at)++ - l->first];
}

int64_t event_log_offset(const struct event_log *l)
{
    for (size_t i = l->job.n; i-- > 0;) {
        const struct event *e = &l->job.e[i];
        if (memcmp(&e->origin, &l->id, sizeof(e->origin)) != 0)
            continue;
        for (size_t k = l->own.n; k-- > 0;) {
            if (l->own.e[k].seq == e->seq)
                return (int64_t)(e->at_ns - l->own.e[k].at_ns);
        }
    }
    return 0; /* the coordinator has the clock of this process */
}
