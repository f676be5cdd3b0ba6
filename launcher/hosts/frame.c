#include "launcher/hosts/frame.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

#define HEADER      5
#define STRINGS_MAX 65536 /* in one list of a plan */

void frame_begin(struct buf *b, enum frame_type type, size_t len)
{
    assert(len <= FRAME_BODY_MAX);
    xbuf_reserve(b, HEADER);
    buf_u32(b, (uint32_t)len);
    buf_u8(b, (uint8_t)type);
}

void frame_put(struct buf *b, enum frame_type type, const void *body, size_t len)
{
    xbuf_reserve(b, HEADER + len);
    frame_begin(b, type, len);
    buf_put(b, body, len);
}

static uint32_t longest(enum frame_type type)
{
    switch (type) {
    case FRAME_PROGRAM:
        return FRAME_BODY_MAX;
    case FRAME_PLAN:
    case FRAME_REPORT:
    case FRAME_JSON:
    case FRAME_FORWARD: /* a command */
        return FRAME_TEXT_MAX;
    default:
        return FRAME_DATA_MAX;
    }
}

long frame_get(const void *p, size_t n, struct frame *out)
{
    struct rd r = rd_init(p, n);
    if (n < HEADER)
        return 0;
    uint32_t len = rd_u32(&r);
    uint8_t type = rd_u8(&r);
    if (type < FRAME_HELLO || type >= FRAME_TYPES || len > longest(type))
        return -EPROTO;
    if (n - HEADER < len)
        return 0;
    *out = (struct frame){(enum frame_type)type, r.p, len};
    return HEADER + (long)len;
}

void frame_hello_put(struct buf *b, const struct frame_hello *h)
{
    struct buf body = BUF_INIT;
    xbuf_reserve(&body, sizeof(*h) + 64);
    buf_str(&body, h->version);
    buf_str(&body, h->host);
    buf_u16(&body, (uint16_t)h->port);
    buf_str(&body, h->here);
    buf_str(&body, h->head);
    buf_u16(&body, FRAME_PROTOCOL);
    frame_put(b, FRAME_HELLO, body.data, body.len);
    buf_fini(&body);
}

/* Another version may send more. */
int frame_hello_get(const struct frame *f, struct frame_hello *out)
{
    struct rd r = rd_init(f->body, f->len);
    rd_str(&r, out->version, sizeof(out->version));
    rd_str(&r, out->host, sizeof(out->host));
    out->port = rd_u16(&r);
    rd_str(&r, out->here, sizeof(out->here));
    rd_str(&r, out->head, sizeof(out->head));
    out->protocol = r.p == r.end ? 1 : rd_u16(&r); /* the first version sent none */
    return r.bad ? -EPROTO : 0;
}

const char *frame_hello_differs(const struct frame_hello *h, char why[160])
{
    if (strcmp(h->version, DLAUNCH_VERSION) != 0)
        snprintf(why, 160, "dlaunch %.60s is there, and %s here", h->version, DLAUNCH_VERSION);
    else if (h->protocol != FRAME_PROTOCOL)
        snprintf(why, 160, "another build of dlaunch %.60s is there: its protocol is %d, not %d",
                 h->version, h->protocol, FRAME_PROTOCOL);
    else
        return NULL;
    return why;
}

void frame_exit_put(struct buf *b, const struct frame_exit *x)
{
    struct buf body = BUF_INIT;
    xbuf_reserve(&body, 16);
    buf_u8(&body, (uint8_t)x->status);
    buf_u8(&body, x->decided);
    buf_u64(&body, x->epoch);
    buf_u32(&body, x->counter);
    frame_put(b, FRAME_EXIT, body.data, body.len);
    buf_fini(&body);
}

int frame_exit_get(const struct frame *f, struct frame_exit *out)
{
    struct rd r = rd_init(f->body, f->len);
    out->status = rd_u8(&r);
    out->decided = rd_u8(&r) == 1;
    out->epoch = rd_u64(&r);
    out->counter = rd_u32(&r);
    return rd_done(&r) ? 0 : -EPROTO;
}

/* -------------------------------------------------------------------------------- lists of strings
 */

static void put_list(struct buf *b, char *const *list)
{
    uint32_t n = 0;
    while (list && list[n])
        n++;
    buf_u32(b, n);
    for (uint32_t i = 0; i < n; i++)
        buf_str(b, list[i]);
}

/* A malloc'ed string without a NUL in it. */
static char *take_str(struct rd *r)
{
    uint32_t n = rd_u32(r);
    const uint8_t *p = rd_take(r, n);
    if (p && memchr(p, '\0', n))
        r->bad = true;
    return xstrndup(p && !r->bad ? (const char *)p : "", p && !r->bad ? n : 0);
}

static char **take_list(struct rd *r)
{
    uint32_t n = rd_u32(r);
    if (n > STRINGS_MAX || n > (size_t)(r->end - r->p) / 4) {
        r->bad = true;
        n = 0;
    }
    char **list = xcalloc(n + 1, sizeof(*list));
    for (uint32_t i = 0; i < n; i++)
        list[i] = take_str(r);
    return list;
}

static void free_list(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

/* ---------------------------------------------------------------------------------------
 * forwarding */

static void put_part(struct buf *b, enum frame_type type, uint32_t host, enum forward_what what,
                     const void *p, size_t len)
{
    xbuf_reserve(b, HEADER + 5 + len);
    frame_begin(b, type, 5 + len);
    buf_u32(b, host);
    buf_u8(b, (uint8_t)what);
    buf_put(b, p, len);
}

void frame_forward_put(struct buf *b, enum frame_type type, uint32_t host, enum forward_what what,
                       const void *p, size_t len)
{
    const uint8_t *at = p;
    for (size_t part; len > FORWARD_MAX; at += part, len -= part) {
        part = FORWARD_MAX;
        put_part(b, type, host, what, at, part);
    }
    put_part(b, type, host, what, at, len);
}

int frame_forward_get(const struct frame *f, struct frame_forward *out)
{
    struct rd r = rd_init(f->body, f->len);
    uint32_t host = rd_u32(&r);
    uint8_t what = rd_u8(&r);
    if (r.bad || what >= FORWARD_WHATS)
        return -EPROTO;
    *out = (struct frame_forward){host, (enum forward_what)what, r.p, (size_t)(r.end - r.p)};
    return 0;
}

void forward_start_put(struct buf *b, uint32_t host, const struct forward_start *s)
{
    struct buf body = BUF_INIT;
    buf_u8(&body, s->copied);
    put_list(&body, s->argv);
    xbuf_reserve(&body, 0);
    put_part(b, FRAME_FORWARD, host, FORWARD_START, body.data, body.len);
    buf_fini(&body);
}

int forward_start_get(const struct frame_forward *f, struct forward_start *s)
{
    struct rd r = rd_init(f->p, f->len);
    *s = (struct forward_start){.copied = rd_u8(&r)};
    s->argv = take_list(&r);
    if (rd_done(&r) && s->argv[0])
        return 0;
    forward_start_fini(s);
    return -EPROTO;
}

void forward_start_fini(struct forward_start *s)
{
    free_list(s->argv);
    *s = (struct forward_start){0};
}

/* --------------------------------------------------------------------------------------- a plan */

void plan_put(struct buf *b, const struct plan_of_host *p)
{
    struct buf body = BUF_INIT;
    buf_str(&body, p->cwd);
    buf_str(&body, p->name);
    put_list(&body, p->argv);
    put_list(&body, p->env);
    put_list(&body, p->programs);
    buf_str(&body, p->token);
    buf_str(&body, p->prefix);
    buf_u8(&body, p->columns);
    buf_u8(&body, p->json);
    buf_u8(&body, p->events);
    buf_u8(&body, p->hosts_rendezvous);
    buf_u32(&body, (uint32_t)p->program_at);
    xbuf_reserve(&body, 0);
    frame_put(b, FRAME_PLAN, body.data, body.len);
    explicit_bzero(body.data, body.len);
    buf_fini(&body);
}

int plan_get(const struct frame *f, struct plan_of_host *p)
{
    struct rd r = rd_init(f->body, f->len);
    *p = (struct plan_of_host){0};
    p->cwd = take_str(&r);
    p->name = take_str(&r);
    p->argv = take_list(&r);
    p->env = take_list(&r);
    p->programs = take_list(&r);
    p->token = take_str(&r);
    p->prefix = take_str(&r);
    p->columns = rd_u8(&r);
    p->json = rd_u8(&r);
    p->events = rd_u8(&r);
    p->hosts_rendezvous = rd_u8(&r);
    uint32_t at = rd_u32(&r), n = 0;
    while (p->argv[n])
        n++;
    p->program_at = (int)at;
    if (rd_done(&r) && n > 0 && (at == 0 || at < n))
        return 0;
    plan_fini(p);
    return -EPROTO;
}

void plan_fini(struct plan_of_host *p)
{
    if (p->token)
        explicit_bzero(p->token, strlen(p->token));
    free(p->cwd);
    free(p->name);
    free_list(p->argv);
    free_list(p->env);
    free_list(p->programs);
    free(p->token);
    free(p->prefix);
    *p = (struct plan_of_host){0};
}
