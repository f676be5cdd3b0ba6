/* A store that only answers PING (opcode 13: u32 in, the same u32 out), for tests of what is around
 * it. Weak: the real one takes its place where it is linked. */
#include <stdlib.h>

#include "core/mem.h"
#include "rendezvous/store_server.h"

#define WEAK __attribute__((weak))

struct fake_conn {
    uv_tcp_t tcp;
    struct store_server *store;
    struct fake_conn *next;
    char in[64], out[4];
    uv_write_t write;
};

struct store_server {
    uv_loop_t *loop;
    uv_idle_t idle;
    struct fake_conn *conns;
    size_t nconns;
    void (*on_closed)(void *arg);
    void *arg;
};

static void on_conn_closed(uv_handle_t *h)
{
    struct fake_conn *c = container_of((uv_tcp_t *)h, struct fake_conn, tcp);
    c->store->nconns--;
    free(c);
}

static void drop(struct fake_conn *c)
{
    struct fake_conn **p = &c->store->conns;
    while (*p && *p != c)
        p = &(*p)->next;
    if (!*p)
        return;
    *p = c->next;
    uv_close((uv_handle_t *)&c->tcp, on_conn_closed);
}

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf)
{
    (void)n;
    struct fake_conn *c = container_of((uv_tcp_t *)h, struct fake_conn, tcp);
    *buf = uv_buf_init(c->in, sizeof(c->in));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    (void)buf;
    struct fake_conn *c = container_of((uv_tcp_t *)s, struct fake_conn, tcp);
    const char *p = c->in;
    if (n >= 5 && p[0] == 0) { /* VALIDATE */
        p += 5;
        n -= 5;
    }
    if (n < 5 || p[0] != 13) {
        drop(c);
        return;
    }
    for (int i = 0; i < 4; i++)
        c->out[i] = p[1 + i];
    uv_buf_t out = uv_buf_init(c->out, 4);
    uv_write(&c->write, s, &out, 1, NULL);
}

WEAK struct store_server *store_server_new(uv_loop_t *loop, const struct store_server_opts *opts)
{
    (void)opts;
    struct store_server *s = xcalloc(1, sizeof(*s));
    s->loop = loop;
    uv_idle_init(loop, &s->idle);
    s->idle.data = s;
    return s;
}

WEAK void store_server_adopt(struct store_server *s, int fd)
{
    struct fake_conn *c = xcalloc(1, sizeof(*c));
    c->store = s;
    c->next = s->conns;
    s->conns = c;
    s->nconns++;
    uv_tcp_init(s->loop, &c->tcp);
    uv_tcp_open(&c->tcp, fd);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

WEAK void store_server_reset(struct store_server *s)
{
    while (s->conns)
        drop(s->conns);
}

WEAK void store_server_get_stats(const struct store_server *s, struct store_server_stats *out)
{
    *out = (struct store_server_stats){.connections = s->nconns};
}

static void on_idle_closed(uv_handle_t *h)
{
    struct store_server *s = h->data;
    void (*on_closed)(void *arg) = s->on_closed;
    void *arg = s->arg;
    free(s);
    on_closed(arg);
}

static void on_turn(uv_idle_t *idle)
{
    struct store_server *s = idle->data;
    if (s->nconns == 0)
        uv_close((uv_handle_t *)idle, on_idle_closed);
}

WEAK void store_server_close(struct store_server *s, void (*on_closed)(void *arg), void *arg)
{
    s->on_closed = on_closed;
    s->arg = arg;
    while (s->conns)
        drop(s->conns);
    uv_idle_start(&s->idle, on_turn);
}
