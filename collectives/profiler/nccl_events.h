/* nccl_events.h: the events that NCCL has told of, by handles that outlive them. NCCL does not say
 * when it needs a handle for the last time: a stopped operation gets its kernels later.
 *
 * An event is under way until event_keep(), and again from event_resume() on: then it is never
 * forgotten. One that is kept is forgotten when EVENTS_KEPT others have been kept after it; an
 * operation whose kernel is awaited, when EVENTS_AWAITED others are. A handle of a forgotten event
 * finds nothing, whatever has taken its place.
 *
 * One thread at a time: the caller has a lock. */
#ifndef COLLECTIVES_PROFILER_NCCL_EVENTS_H
#define COLLECTIVES_PROFILER_NCCL_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/list.h"

enum { EVENTS_KEPT = 8192, EVENTS_AWAITED = 65536 };

struct context;

struct event {
    struct list_node node; /* of those that are kept, or awaited; alone: it is under way */
    bool awaited;
    uint64_t place, life; /* in the table; how many have had that place */
    struct context *context;
    uint64_t type;
    struct event *op; /* the operation that runs because of this part of it; NULL: none */
    void *next;       /* the user's handle; NULL: it was not told */
    bool stopped;
    /* Fields of an operation. */
    bool own, begun; /* it is recorded; a part of it has run */
    struct {
        uint64_t group, seq, count;
        int peer;
        char op[20], dtype[8], group_name[20];
    } what;          /* for its record */
    uint64_t number; /* of its record; 0: it has none */
    int running;     /* parts of it that run */
};

/* A new one, under way, of which only the place is filled in. NULL: no memory. */
struct event *event_new(void);

void *event_handle(const struct event *e);
struct event *event_find(const void *handle);

void event_keep(struct event *e, bool awaited);
void event_resume(struct event *e);

#endif
