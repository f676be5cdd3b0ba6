#include "rendezvous/wire/standby.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/netaddr.h"
#include "core/protocols.h"
#include "core/uvx.h"
#include "rendezvous/rules/text.h"
#include "rendezvous/wire/pending.h"

struct standby_peer {
    struct standby *standby;
    struct link *link;
    struct pending pending;
};

struct standby {
    struct link_hub *hub;
    struct uvx_scope scope;
    struct pending_queue pending;
    struct rdzv_identity identity;
    struct branch *branch;
    bool at_endpoint;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void standby_forget(struct standby_peer *c)
{
    pending_remove(&c->standby->pending, &c->pending);
    free(c);
}

static void standby_drop(struct standby_peer *c)
{
    link_close(c->link);
    standby_forget(c);
}

static void standby_drop_pending(struct pending *p, const char *why)
{
    (void)why;
    standby_drop(container_of(p, struct standby_peer, pending));
}

static bool standby_on_preamble(struct link *l, uint32_t version)
{
    struct standby_peer *c = link_owner(l);
    struct buf b = BUF_INIT;
    char whom[HOST_MAX + 8], text[RDZV_TEXT_MAX];
    if (version == RDZV_PROTOCOL)
        return true;
    if (version == 0) {
        standby_drop(c);
        return false;
    }
    snprintf(whom, sizeof(whom), "node %s", c->standby->identity.host);
    rdzv_put_refusal(&b, false, protocols_refusal(version, whom, text, sizeof(text)));
    link_send_buf(l, &b);
    link_refuse(l);
    standby_forget(c);
    return false;
}

/* The launcher connects for the coordinator that was here before. */
static bool is_foreign(const struct standby *s, struct rd *body)
{
    struct rdzv_hello h;
    return s->at_endpoint && rdzv_get_hello(body, &h) && h.seen_epoch != 0;
}

static void standby_on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct standby_peer *c = link_owner(l);
    struct standby *s = c->standby;
    struct buf b = BUF_INIT;
    char text[RDZV_TEXT_MAX];
    if (type == RDZV_MSG_CHILD && s->branch && branch_adopt(s->branch, l, body)) {
        standby_forget(c);
        return;
    }
    if (type == RDZV_MSG_PROBE || type == RDZV_MSG_ELSEWHERE) {
        rdzv_put_identity(&b, &s->identity);
        link_send_buf(l, &b);
    } else if (type == RDZV_MSG_HELLO && !is_foreign(s, &body)) {
        text_set(text, sizeof(text), "node %s is not the coordinator%s%s", s->identity.host,
                 s->identity.port ? ", which is at " : " (yet)", s->identity.addr);
        rdzv_put_refusal(&b, true, text);
        link_send_buf(l, &b);
    }
    link_finish(l);
    standby_forget(c);
}

static void standby_on_end(struct link *l, enum rdzv_end how, const char *why)
{
    (void)how, (void)why;
    standby_drop(link_owner(l));
}

static const struct link_events events = {standby_on_preamble, standby_on_frame, standby_on_end};

struct standby *standby_new(struct link_hub *hub, const char *run_id, const char *host,
                            struct branch *branch)
{
    struct standby *s = xcalloc(1, sizeof(*s));
    s->hub = hub;
    s->branch = branch;
    text_set(s->identity.run_id, sizeof(s->identity.run_id), "%s", run_id);
    text_set(s->identity.host, sizeof(s->identity.host), "%s", host);
    s->identity.pid = (int)getpid();
    s->identity.elsewhere = true;
    uvx_scope_init(&s->scope, hub->loop);
    pending_init(&s->pending, hub->loop, STANDBY_MAX, standby_drop_pending);
    uvx_own(&s->scope, &s->pending.timer);
    return s;
}

void standby_set_coordinator(struct standby *s, const char *addr, int port, bool follows)
{
    s->identity.follows = follows;
    text_set(s->identity.addr, sizeof(s->identity.addr), "%s", port ? addr : "");
    s->identity.port = port;
}

void standby_at_endpoint(struct standby *s)
{
    s->at_endpoint = true;
}

void standby_adopt(struct standby *s, int fd, const struct tls_key *key)
{
    struct standby_peer *c = xcalloc(1, sizeof(*c));
    c->standby = s;
    pending_add(&s->pending, &c->pending, NULL);
    link_tune(fd, 10000);
    c->link = link_new(s->hub, fd, false, &events, c);
    if (!c->link)
        standby_forget(c);
    else if (key)
        link_protect(c->link, TLS_SERVER, key);
    pending_limit(&s->pending);
}

static void free_standby(void *arg)
{
    struct standby *s = arg;
    void (*on_closed)(void *arg) = s->on_closed;
    void *on_closed_arg = s->on_closed_arg;
    pending_fini(&s->pending);
    free(s);
    on_closed(on_closed_arg);
}

void standby_close(struct standby *s, void (*on_closed)(void *arg), void *arg)
{
    for (struct pending *p; (p = pending_first(&s->pending));)
        standby_drop_pending(p, NULL);
    s->on_closed = on_closed;
    s->on_closed_arg = arg;
    uvx_scope_close(&s->scope, free_standby, s);
}
