#include "tests/lib/mem_transport.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

struct pipe {
    uint8_t *data; /* made when first used */
    size_t start, len;
};

struct end {
    struct transport base;
    struct mem_net *net;
    int rank;
    bool closed;
};

struct mem_net {
    int n;
    size_t capacity;
    unsigned seed;
    struct end *ends;
    struct pipe *pipes; /* from * n + to */
};

static struct pipe *pipe_of(struct mem_net *net, int from, int to)
{
    struct pipe *p = &net->pipes[(size_t)from * (size_t)net->n + (size_t)to];
    if (!p->data)
        p->data = xmalloc(net->capacity);
    return p;
}

/* The number of bytes of `len` that move this time: all, some, or none. */
static size_t portion(struct mem_net *net, size_t len)
{
    unsigned r = (unsigned)rand_r(&net->seed);
    return r % 4 == 0 ? 0 : r % 4 == 1 ? r / 4 % (len + 1) : len;
}

static ssize_t move(struct mem_net *net, struct pipe *p, const struct iovec *iov, int n, bool in)
{
    size_t moved = 0;
    for (int i = 0; i < n; i++) {
        size_t room = in ? net->capacity - p->len : p->len;
        size_t part = portion(net, iov[i].iov_len < room ? iov[i].iov_len : room);
        uint8_t *user = iov[i].iov_base;
        for (size_t k = 0; k < part; k++) {
            uint8_t *slot = &p->data[(p->start + (in ? p->len + k : k)) % net->capacity];
            if (in)
                *slot = user[k];
            else
                user[k] = *slot;
        }
        if (in)
            p->len += part;
        else
            p->start = (p->start + part) % net->capacity, p->len -= part;
        moved += part;
        if (part < iov[i].iov_len)
            break;
    }
    return (ssize_t)moved;
}

static ssize_t mem_send(struct transport *t, int peer, const struct iovec *iov, int n,
                        struct err *e)
{
    struct end *end = (struct end *)t;
    if (end->net->ends[peer].closed)
        return err_set(e, -EPIPE, "closed");
    return move(end->net, pipe_of(end->net, end->rank, peer), iov, n, true);
}

static ssize_t mem_recv(struct transport *t, int peer, const struct iovec *iov, int n,
                        struct err *e)
{
    struct end *end = (struct end *)t;
    struct pipe *p = pipe_of(end->net, peer, end->rank);
    if (end->net->ends[peer].closed && p->len == 0)
        return err_set(e, -EPIPE, "closed");
    return move(end->net, p, iov, n, false);
}

static int mem_peek(struct transport *t, int peer, void *p, size_t len)
{
    struct end *end = (struct end *)t;
    struct pipe *pipe = pipe_of(end->net, peer, end->rank);
    for (size_t k = 0; k < len && len <= pipe->len; k++)
        ((uint8_t *)p)[k] = pipe->data[(pipe->start + k) % end->net->capacity];
    return len <= pipe->len;
}

static int mem_wait(struct transport *t, const struct transport_want *wants, size_t n,
                    int timeout_ms, struct err *e)
{
    (void)t, (void)wants, (void)n, (void)timeout_ms, (void)e;
    return 0;
}

static void mem_close_end(struct transport *t)
{
    ((struct end *)t)->closed = true;
}

static void mem_free(struct transport *t)
{
    (void)t; /* the net's */
}

static const struct transport_ops g_ops = {
    .name = "memory",
    .send = mem_send,
    .recv = mem_recv,
    .peek = mem_peek,
    .wait = mem_wait,
    .close = mem_close_end,
    .free = mem_free,
};

struct mem_net *mem_net_new(int n, size_t capacity, unsigned seed)
{
    struct mem_net *net = xcalloc(1, sizeof(*net));
    net->n = n;
    net->capacity = capacity;
    net->seed = seed;
    net->ends = xcalloc((size_t)n, sizeof(*net->ends));
    net->pipes = xcalloc((size_t)n * (size_t)n, sizeof(*net->pipes));
    for (int i = 0; i < n; i++)
        net->ends[i] =
            (struct end){.base = {.ops = &g_ops, .size = n, .streams = 1}, .net = net, .rank = i};
    return net;
}

void mem_net_free(struct mem_net *net)
{
    for (int i = 0; i < net->n * net->n; i++)
        free(net->pipes[i].data);
    free(net->pipes);
    free(net->ends);
    free(net);
}

struct transport *mem_net_end(struct mem_net *net, int rank)
{
    return &net->ends[rank].base;
}

bool mem_net_is_empty(const struct mem_net *net)
{
    for (int i = 0; i < net->n * net->n; i++) {
        if (net->pipes[i].len)
            return false;
    }
    return true;
}

void mem_net_close(struct mem_net *net, int rank)
{
    net->ends[rank].closed = true;
}
