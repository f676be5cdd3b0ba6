#include "collectives/profiler/nccl_events.h"

#include <stddef.h>
#include <stdlib.h>

enum { CHUNK = 1024, CHUNKS = 1024, PLACES = CHUNK * CHUNKS };

static struct event *g_chunks[CHUNKS];
static uint64_t g_places; /* that have been used */
static struct list_node g_kept = {&g_kept, &g_kept}, g_awaited = {&g_awaited, &g_awaited};
static unsigned g_nkept, g_nawaited;

static struct event *first_of(struct list_node *list)
{
    return (struct event *)((char *)list->next - offsetof(struct event, node));
}

/* A place that has never been used. NULL: no memory. */
static struct event *new_place(void)
{
    uint64_t at = g_places;
    if (at == PLACES)
        return NULL;
    if (!g_chunks[at / CHUNK] && !(g_chunks[at / CHUNK] = calloc(CHUNK, sizeof(struct event))))
        return NULL;
    struct event *e = &g_chunks[at / CHUNK][at % CHUNK];
    list_init(&e->node);
    e->place = g_places++;
    return e;
}

struct event *event_new(void)
{
    struct event *e = g_nkept > EVENTS_KEPT ? first_of(&g_kept) : new_place();
    if (!e && g_nkept + g_nawaited > 0)
        e = first_of(g_nkept ? &g_kept : &g_awaited);
    if (!e)
        return NULL;
    event_resume(e);
    *e = (struct event){.place = e->place, .life = e->life + 1};
    list_init(&e->node);
    return e;
}

void *event_handle(const struct event *e)
{
    return (void *)(uintptr_t)(e->life * PLACES + e->place); /* life is not 0, nor is this */
}

struct event *event_find(const void *handle)
{
    uint64_t place = (uintptr_t)handle % PLACES;
    struct event *e = handle && place < g_places ? &g_chunks[place / CHUNK][place % CHUNK] : NULL;
    return e && event_handle(e) == handle ? e : NULL;
}

void event_keep(struct event *e, bool awaited)
{
    event_resume(e);
    e->awaited = awaited;
    list_append(awaited ? &g_awaited : &g_kept, &e->node);
    ++*(awaited ? &g_nawaited : &g_nkept);
    if (g_nawaited > EVENTS_AWAITED)
        event_keep(first_of(&g_awaited), false);
}

void event_resume(struct event *e)
{
    if (list_alone(&e->node))
        return;
    list_remove(&e->node);
    --*(e->awaited ? &g_nawaited : &g_nkept);
}
