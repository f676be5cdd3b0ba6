#include "rendezvous/rules/rdzv_output.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define LINES_MAX 256 /* log lines that wait for the driver, which takes them after every event */

void rdzv_output_fini(struct rdzv_output *o)
{
    for (size_t i = 0; i < o->nconns; i++)
        free(o->conns[i].refusal);
    while (o->line_head < o->nlines)
        free(o->lines[o->line_head++].text);
    free(o->conns);
    free(o->queue);
    free(o->lines);
    free(o->taken);
    while (o->event_head < o->nevents)
        event_fini(&o->events[o->event_head++]);
    free(o->events);
    event_fini(&o->taken_event);
}

void rdzv_output_log(struct rdzv_output *o, enum log_level level, const char *fmt, ...)
{
    char text[2 * RDZV_TEXT_MAX];
    va_list ap;
    if (o->nlines - o->line_head >= LINES_MAX || level > log_get_level())
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (o->line_head == o->nlines)
        o->line_head = o->nlines = 0;
    if (o->nlines == o->cap_lines) {
        o->cap_lines = o->cap_lines ? 2 * o->cap_lines : 8;
        o->lines = xrealloc(o->lines, o->cap_lines * sizeof(*o->lines));
    }
    o->lines[o->nlines++] = (struct rdzv_line){level, xstrdup(text)};
}

static const char *copy_of(const char *text)
{
    return text && *text ? xstrdup(text) : NULL;
}

void rdzv_output_event(struct rdzv_output *o, const struct event *e)
{
    if (o->event_head == o->nevents)
        o->event_head = o->nevents = 0;
    if (o->nevents == o->cap_events) {
        o->cap_events = o->cap_events ? 2 * o->cap_events : 8;
        o->events = xrealloc(o->events, o->cap_events * sizeof(*o->events));
    }
    struct event *copy = &o->events[o->nevents++];
    *copy = *e;
    copy->host = copy_of(e->host);
    copy->text = copy_of(e->text);
    copy->extra = copy_of(e->extra);
}

const struct event *rdzv_output_next_event(struct rdzv_output *o)
{
    if (o->event_head == o->nevents)
        return NULL;
    event_fini(&o->taken_event);
    o->taken_event = o->events[o->event_head++];
    return &o->taken_event;
}

struct rdzv_conn *rdzv_output_conn(struct rdzv_output *o, uint32_t conn)
{
    if (conn >= o->nconns) {
        size_t n = o->nconns ? o->nconns : 8;
        while (n <= conn)
            n *= 2;
        o->conns = xrealloc(o->conns, n * sizeof(*o->conns));
        memset(o->conns + o->nconns, 0, (n - o->nconns) * sizeof(*o->conns));
        o->nconns = n;
    }
    return &o->conns[conn];
}

void rdzv_output_check(const struct rdzv_output *o)
{
    size_t queued = 0;
    for (size_t i = 0; i < o->nconns; i++) {
        const struct rdzv_conn *c = &o->conns[i];
        assert(!c->due || c->queued);
        assert(!c->node || c->node->conn == i);
        assert(!(c->due & RDZV_DUE_CLOSE) || (!c->node && c->due == RDZV_DUE_CLOSE));
        assert(!c->refusal || (c->due & RDZV_DUE_CLOSE));
        queued += c->queued;
    }
    assert(o->queue_head <= o->queue_len && queued == o->queue_len - o->queue_head);
    assert(o->line_head <= o->nlines && o->nlines <= o->cap_lines);
    assert(o->event_head <= o->nevents && o->nevents <= o->cap_events);
}

void rdzv_output_queue(struct rdzv_output *o, uint32_t conn, unsigned due)
{
    struct rdzv_conn *c = rdzv_output_conn(o, conn);
    c->due |= due;
    if (c->queued)
        return;
    c->queued = true;
    if (o->queue_head == o->queue_len)
        o->queue_head = o->queue_len = 0;
    if (o->queue_len == o->queue_cap) {
        o->queue_cap = o->queue_cap ? 2 * o->queue_cap : 16;
        o->queue = xrealloc(o->queue, o->queue_cap * sizeof(*o->queue));
    }
    o->queue[o->queue_len++] = conn;
}

void rdzv_output_close(struct rdzv_output *o, uint32_t conn, const char *refusal, bool retry)
{
    struct rdzv_conn *c = rdzv_output_conn(o, conn);
    c->node = NULL;
    c->due = 0;
    free(c->refusal);
    c->refusal = refusal ? xstrdup(refusal) : NULL;
    c->retry = retry;
    rdzv_output_queue(o, conn, RDZV_DUE_CLOSE);
}

bool rdzv_output_next_line(struct rdzv_output *o, enum log_level *level, const char **text)
{
    if (o->line_head == o->nlines)
        return false;
    struct rdzv_line *l = &o->lines[o->line_head++];
    free(o->taken);
    *text = o->taken = l->text;
    *level = l->level;
    return true;
}

unsigned rdzv_output_next(struct rdzv_output *o, uint32_t *conn, const char **refusal)
{
    for (; o->queue_head < o->queue_len; o->queue_head++) {
        struct rdzv_conn *c = &o->conns[ *conn = o->queue[o->queue_head]];
        assert(c->queued);
        unsigned bit = c->due & -c->due; /* the lowest */
        c->due &= ~bit;
        if (bit == RDZV_DUE_CLOSE) {
            free(o->taken);
            *refusal = o->taken = c->refusal;
            c->refusal = NULL;
        }
        if (bit)
            return bit;
        c->queued = false;
    }
    return 0;
}
