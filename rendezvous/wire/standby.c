#include "rendezvous/wire/standby.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/netaddr.h"
#include "core/uvx.h"
#include "rendezvous/rules/text.h"

struct caller {
    struct standby *standby;
    struct link *link;
    struct caller *prev, *next; /* in the order they came */
    uint64_t deadline;          /* ms of the loop's clock */
};

struct standby {
    struct link_hub *hub;
    struct uvx_scope scope;
    uv_timer_t timer;
    struct rdzv_identity identity;
    struct caller *first, *last;
    int n;
    bool at_endpoint;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

static void forget(struct caller *c)
{
    struct standby *s = c->standby;
    *(c->prev ? &c->prev->next : &s->first) = c->next;
    *(c->next ? &c->next->prev : &s->last) = c->prev;
    s->n--;
    free(c);
}

static void drop(struct caller *c)
{
    link_close(c->link);
    forget(c);
}

static bool on_preamble(struct link *l, uint32_t version)
{
    struct caller *c = link_owner(l);
    if (version == RDZV_PROTOCOL)
        return true;
    drop(c);
    return false;
}

/* The launcher connects for the coordinator that was here before. */
static bool is_foreign(const struct standby *s, struct rd *body)
{
    struct rdzv_hello h;
    return s->at_endpoint && rdzv_get_hello(body, &h) && h.seen_epoch != 0;
}

static void on_frame(struct link *l, uint8_t type, struct rd body)
{
    struct caller *c = link_owner(l);
    struct standby *s = c->standby;
    struct buf b = BUF_INIT;
    char text[RDZV_TEXT_MAX];
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
    forget(c);
}

static void on_end(struct link *l, enum rdzv_end how, const char *why)
{
    (void)how, (void)why;
    drop(link_owner(l));
}

static const struct link_events events = {on_preamble, on_frame, on_end};

static void on_timer(uv_timer_t *timer)
{
    struct standby *s = container_of(timer, struct standby, timer);
    uint64_t now = uv_now(s->hub->loop);
    while (s->first && s->first->deadline <= now)
        drop(s->first);
    if (s->first)
        uv_timer_start(timer, on_timer, s->first->deadline - now, 0);
}

struct standby *standby_new(struct link_hub *hub, const char *run_id, const char *host)
{
    struct standby *s = xcalloc(1, sizeof(*s));
    s->hub = hub;
    text_set(s->identity.run_id, sizeof(s->identity.run_id), "%s", run_id);
    text_set(s->identity.host, sizeof(s->identity.host), "%s", host);
    s->identity.pid = (int)getpid();
    s->identity.elsewhere = true;
    uvx_scope_init(&s->scope, hub->loop);
    uv_timer_init(hub->loop, &s->timer);
    uvx_own(&s->scope, &s->timer);
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
    struct caller *c = xcalloc(1, sizeof(*c));
    if (s->n == STANDBY_MAX)
        drop(s->first);
    c->standby = s;
    c->deadline = uv_now(s->hub->loop) + STANDBY_HELLO_MS;
    if (!uv_is_active((uv_handle_t *)&s->timer))
        uv_timer_start(&s->timer, on_timer, STANDBY_HELLO_MS, 0);
    c->prev = s->last;
    *(s->last ? &s->last->next : &s->first) = c;
    s->last = c;
    s->n++;
    link_tune(fd, 10000);
    c->link = link_new(s->hub, fd, false, &events, c);
    if (!c->link)
        forget(c);
    else if (key)
        link_protect(c->link, TLS_SERVER, key);
}

static void free_standby(void *arg)
{
    struct standby *s = arg;
    void (*on_closed)(void *arg) = s->on_closed;
    void *on_closed_arg = s->on_closed_arg;
    free(s);
    on_closed(on_closed_arg);
}

void standby_close(struct standby *s, void (*on_closed)(void *arg), void *arg)
{
    while (s->first)
        drop(s->first);
    s->on_closed = on_closed;
    s->on_closed_arg = arg;
    uvx_scope_close(&s->scope, free_standby, s);
}
