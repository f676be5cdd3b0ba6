#include "rendezvous/wire/beat_call.h"

#include <stdlib.h>

#include "core/mem.h"
#include "core/uvx.h"
#include "rendezvous/wire/connector.h"

struct beat_call {
    struct link_hub *hub;
    struct beats *beats;
    struct uvx_scope scope;
    uv_timer_t timer;
    struct connector *connector;
    struct link *link;
    bool over;
    const struct auth *auth;
    struct node_id id;
    uint64_t dead_ns;
    void (*done)(void *arg, int link);
    void *arg;
};

static void free_call(void *arg)
{
    free(arg);
}

static void beat_call_end(struct beat_call *c)
{
    c->over = true;
    connector_cancel(c->connector);
    if (c->link)
        link_close(c->link);
    uvx_scope_close(&c->scope, free_call, c);
}

static void beat_call_finish(struct beat_call *c, int link)
{
    if (c->over)
        return;
    beat_call_end(c);
    c->done(c->arg, link);
}

static void beat_call_on_timer(uv_timer_t *timer)
{
    beat_call_finish(container_of(timer, struct beat_call, timer), -1);
}

static bool beat_call_on_preamble(struct link *l, uint32_t version)
{
    if (version == RDZV_PROTOCOL)
        return true;
    beat_call_finish(link_owner(l), -1);
    return false;
}

static void on_taken(void *owner, int fd, struct tls *tls)
{
    struct beat_call *c = owner;
    c->link = NULL;
    beat_call_finish(c, beats_add(c->beats, BEAT_NODE, fd, tls, c->dead_ns));
}

static void beat_call_on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct beat_call *c = link_owner(l);
    if (type == RDZV_MSG_BEAT && rd_done(&body))
        link_detach(l, on_taken);
    else
        beat_call_finish(c, -1);
}

static void beat_call_on_end(struct link *l, enum rdzv_end how, const char *why)
{
    (void)how, (void)why;
    beat_call_finish(link_owner(l), -1);
}

static const struct link_events link_events = {beat_call_on_preamble, beat_call_on_frame,
                                               beat_call_on_end};

static void beat_call_on_connected(void *arg, int fd, const struct netaddr *peer, bool refused,
                                   const char *why)
{
    struct beat_call *c = arg;
    struct buf b = BUF_INIT;
    (void)peer, (void)refused, (void)why;
    c->connector = NULL;
    if (fd < 0) {
        beat_call_finish(c, -1);
        return;
    }
    link_tune(fd, (uint32_t)(c->dead_ns / 1000000));
    c->link = link_new(c->hub, fd, false, &link_events, c);
    if (!c->link) {
        beat_call_finish(c, -1);
        return;
    }
    link_auth(c->link, c->auth);
    rdzv_put_beat(&b, &c->id);
    link_send_buf(c->link, &b);
}

struct beat_call *beat_call_new(struct link_hub *hub, struct beats *beats, const struct netaddr *to,
                                const struct auth *auth, const struct node_id *id, uint64_t dead_ns,
                                void (*done)(void *arg, int link), void *arg)
{
    struct beat_call *c = xcalloc(1, sizeof(*c));
    *c = (struct beat_call){.hub = hub,
                            .beats = beats,
                            .auth = auth,
                            .id = *id,
                            .dead_ns = dead_ns,
                            .done = done,
                            .arg = arg};
    uvx_scope_init(&c->scope, hub->loop);
    uv_timer_init(hub->loop, &c->timer);
    uvx_own(&c->scope, &c->timer);
    uv_timer_start(&c->timer, beat_call_on_timer, dead_ns / 1000000, 0);
    c->connector = connector_new(hub->loop, to, 1, dead_ns / 1000000, beat_call_on_connected, c);
    return c;
}

void beat_call_cancel(struct beat_call *c)
{
    if (c && !c->over)
        beat_call_end(c);
}
