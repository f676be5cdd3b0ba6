#include "rendezvous/rules/event.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static const struct {
    const char *text;
    unsigned fields;
} names[EVENT_NAMES] = {
    [EVENT_SUBMIT] = {"submit", EV_RUN | EV_MAX | EV_NODE | EV_PID},
    [EVENT_RENDEZVOUS] = {"rendezvous", EV_ROUND | EV_ATTEMPT},
    [EVENT_NODE_JOIN] = {"node-join", EV_NODE | EV_PID | EV_NPROC},
    [EVENT_NODE_LEAVE] = {"node-leave", EV_NODE | EV_PID | EV_TEXT},
    [EVENT_NODE_LOST] = {"node-lost", EV_NODE | EV_PID | EV_TEXT},
    [EVENT_EVICT] = {"evict", EV_NODE | EV_PID | EV_TEXT},
    [EVENT_START] = {"start", EV_ROUND | EV_ATTEMPT | EV_WORLD},
    [EVENT_READY] = {"ready", EV_ROUND | EV_ATTEMPT | EV_WORLD},
    [EVENT_FAILURE] = {"failure", EV_ROUND | EV_ATTEMPT | EV_NODE | EV_PID | EV_RANK | EV_END |
                                      EV_CAUSE | EV_CAUSED_BY | EV_TEXT},
    [EVENT_STOP] = {"stop", EV_ROUND | EV_ATTEMPT | EV_CAUSE | EV_TEXT},
    [EVENT_RESTART] = {"restart", EV_ROUND | EV_ATTEMPT | EV_MAX | EV_RANK | EV_CAUSE | EV_TEXT},
    [EVENT_ELECTED] = {"elected", EV_NODE | EV_PID | EV_TEXT},
    [EVENT_FINISH] = {"finish", EV_ROUND | EV_ATTEMPT | EV_MAX | EV_END | EV_CAUSE | EV_TEXT},
    [EVENT_NODE_STATE] = {"node.state", EV_NODE | EV_PID | EV_STATE},
    [EVENT_WORKER_START] = {"worker.start",
                            EV_ATTEMPT | EV_NODE | EV_PID | EV_RANK | EV_PROGRAM | EV_LOG_DIR},
    [EVENT_WORKER_OUTPUT] = {"worker.first-output", EV_ATTEMPT | EV_NODE | EV_PID | EV_RANK},
    [EVENT_WORKER_COLLECTIVE] = {"worker.first-collective",
                                 EV_ATTEMPT | EV_NODE | EV_PID | EV_RANK},
    [EVENT_WORKER_FINISH] = {"worker.finish", EV_ATTEMPT | EV_NODE | EV_PID | EV_RANK | EV_END |
                                                  EV_CAUSE | EV_CAUSED_BY},
    [EVENT_NODE_LEDGER] = {"node.ledger", EV_NODE | EV_PID | EV_TEXT},
    [EVENT_NODE_PROBLEM] = {"node.problem", EV_NODE | EV_PID | EV_TEXT},
    [EVENT_SUSPECT] = {"suspect", EV_ATTEMPT | EV_RANKS | EV_TEXT},
    [EVENT_HANG] = {"hang", EV_ATTEMPT | EV_RANKS | EV_TEXT},
    [EVENT_SLOW] = {"slow", EV_ATTEMPT | EV_RANKS | EV_TEXT},
};

const char *event_text(enum event_name n)
{
    assert(n < EVENT_NAMES);
    return names[n].text;
}

unsigned event_fields(enum event_name n)
{
    assert(n < EVENT_NAMES);
    return names[n].fields;
}

bool event_find(const char *text, enum event_name *out)
{
    for (enum event_name n = 0; n < EVENT_NAMES; n++) {
        if (strcmp(names[n].text, text) == 0) {
            *out = n;
            return true;
        }
    }
    return false;
}

void event_encode(struct buf *b, const struct event *e)
{
    buf_u8(b, (uint8_t)e->name);
    buf_put(b, e->origin.b, sizeof(e->origin.b));
    buf_u64(b, e->seq);
    buf_u64(b, e->at_ns);
    buf_u64(b, e->wall_ns);
    buf_u32(b, e->round);
    buf_u32(b, (uint32_t)e->attempt);
    buf_u32(b, (uint32_t)e->max_restarts);
    buf_u32(b, (uint32_t)e->nnodes);
    buf_u32(b, (uint32_t)e->world_size);
    buf_u32(b, (uint32_t)e->node);
    buf_u32(b, (uint32_t)e->pid);
    buf_u32(b, (uint32_t)e->rank);
    buf_u32(b, (uint32_t)e->local_rank);
    buf_u32(b, (uint32_t)e->exit_code);
    buf_u32(b, (uint32_t)e->signal);
    buf_u32(b, (uint32_t)e->caused_by);
    buf_u8(b, (uint8_t)e->cause);
    buf_str(b, e->host);
    buf_str(b, e->text);
    buf_str(b, e->extra);
}

static int event_int(struct rd *r, int min, int max)
{
    int v = (int)rd_u32(r);
    if (v < min || v > max)
        r->bad = true;
    return v;
}

static const char *string(struct rd *r)
{
    char text[EVENT_TEXT_MAX];
    rd_str(r, text, sizeof(text));
    return r->bad || !*text ? NULL : xstrdup(text);
}

bool event_decode(struct rd *r, struct event *e)
{
    *e = (struct event){0};
    unsigned name = rd_u8(r);
    const uint8_t *id = rd_take(r, sizeof(e->origin.b));
    if (id)
        memcpy(e->origin.b, id, sizeof(e->origin.b));
    e->seq = rd_u64(r);
    e->at_ns = rd_u64(r);
    e->wall_ns = rd_u64(r);
    e->round = rd_u32(r);
    e->attempt = event_int(r, 0, INT32_MAX);
    e->max_restarts = event_int(r, 0, INT32_MAX);
    e->nnodes = event_int(r, 0, NNODES_MAX);
    e->world_size = event_int(r, 0, WORLD_SIZE_MAX);
    e->node = event_int(r, -1, NNODES_MAX - 1);
    e->pid = event_int(r, 0, INT32_MAX);
    e->rank = event_int(r, -1, WORLD_SIZE_MAX - 1);
    e->local_rank = event_int(r, -1, NPROC_MAX - 1);
    e->exit_code = event_int(r, 0, 255);
    e->signal = event_int(r, 0, 127);
    e->caused_by = event_int(r, -1, WORLD_SIZE_MAX - 1);
    unsigned cause = rd_u8(r);
    if (name >= EVENT_NAMES || cause >= CAUSES || e->seq == 0)
        r->bad = true;
    e->name = (enum event_name)name;
    e->cause = (enum cause)cause;
    e->host = string(r);
    e->text = string(r);
    e->extra = string(r);
    if (r->bad)
        event_fini(e);
    return !r->bad;
}

void event_fini(struct event *e)
{
    free((char *)e->host);
    free((char *)e->text);
    free((char *)e->extra);
    e->host = e->text = e->extra = NULL;
}
