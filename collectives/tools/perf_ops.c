/* perf_ops.c: the operations. A new one is a row of the table at the end. */
#include <string.h>

#include "collectives/tools/perf.h"

static void *part(void *buf, const struct perf_call *c, int i)
{
    return (char *)buf + (size_t)i * c->count * perf_type_size(c->type);
}

/* ---------------------------------------------------------------------------------------- calls */

static int call_all_reduce(const struct perf_call *c)
{
    return dlcoll_all_reduce(c->send, c->recv, c->count, c->type, c->reduction, c->comm, c->opts,
                             c->work);
}

static int call_scan(const struct perf_call *c)
{
    return dlcoll_scan(c->send, c->recv, c->count, c->type, c->reduction, c->comm, c->opts,
                       c->work);
}

static int call_exscan(const struct perf_call *c)
{
    return dlcoll_exscan(c->send, c->recv, c->count, c->type, c->reduction, c->comm, c->opts,
                         c->work);
}

static int call_broadcast(const struct perf_call *c)
{
    return dlcoll_broadcast(c->send, c->recv, c->count, c->type, c->root, c->comm, c->opts,
                            c->work);
}

static int call_reduce(const struct perf_call *c)
{
    return dlcoll_reduce(c->send, c->recv, c->count, c->type, c->reduction, c->root, c->comm,
                         c->opts, c->work);
}

static int call_all_gather(const struct perf_call *c)
{
    return dlcoll_all_gather(c->send, c->recv, c->count, c->type, c->comm, c->opts, c->work);
}

static int call_reduce_scatter(const struct perf_call *c)
{
    return dlcoll_reduce_scatter(c->send, c->recv, c->count, c->type, c->reduction, c->comm,
                                 c->opts, c->work);
}

static int call_all_to_all(const struct perf_call *c)
{
    return dlcoll_all_to_all(c->send, c->recv, c->count, c->type, c->comm, c->opts, c->work);
}

static int call_gather(const struct perf_call *c)
{
    return dlcoll_gather(c->send, c->recv, c->count, c->type, c->root, c->comm, c->opts, c->work);
}

static int call_scatter(const struct perf_call *c)
{
    return dlcoll_scatter(c->send, c->recv, c->count, c->type, c->root, c->comm, c->opts, c->work);
}

static int next_rank(const struct perf_call *c, int step)
{
    return (c->rank + step + c->ranks) % c->ranks;
}

/* Sends to the next rank, and receives from the one before. */
static int call_send_recv(const struct perf_call *c)
{
    const dlcoll_p2p list[2] = {
        {.send = c->send, .count = c->count, .dtype = c->type, .peer = next_rank(c, 1)},
        {.recv = c->recv, .count = c->count, .dtype = c->type, .peer = next_rank(c, -1)}};
    return dlcoll_batch(list, 2, c->comm, c->opts, c->work);
}

static int call_ping_pong(const struct perf_call *c)
{
    int code = 0;
    if (c->rank > 1 || c->ranks < 2)
        return 0;
    if (c->rank == 0)
        code = dlcoll_send(c->send, c->count, c->type, 1, c->comm, c->opts, NULL);
    if (code == 0)
        code = dlcoll_recv(c->recv, c->count, c->type, 1 - c->rank, c->comm, c->opts, NULL);
    if (code == 0 && c->rank == 1)
        code = dlcoll_send(c->send, c->count, c->type, 0, c->comm, c->opts, NULL);
    return code;
}

/* Sends and receives along the edges of a ring. */
static int call_neighbor(const struct perf_call *c)
{
    const int from = next_rank(c, -1), to = next_rank(c, 1);
    dlcoll_graph ring = DLCOLL_GRAPH_INIT;
    ring.sources = &from;
    ring.dests = &to;
    ring.nsources = ring.ndests = 1;
    return dlcoll_neighbor_all_gather(c->send, c->recv, c->count, c->type, &ring, c->comm, c->opts,
                                      c->work);
}

static int call_barrier(const struct perf_call *c)
{
    return dlcoll_barrier(c->comm, c->opts, c->work);
}

/* -------------------------------------------------------------------------------------- results */

static size_t wrong_all_reduce(const struct perf_call *c, const struct perf_data *d)
{
    return perf_wrong_reduced(d, c->recv, 0, c->count);
}

/* Checks a result of the first `ranks` ranks only. */
static size_t wrong_of(const struct perf_call *c, const struct perf_data *d, int ranks)
{
    struct perf_data some = *d;
    some.first = ranks;
    return ranks ? perf_wrong_reduced(&some, c->recv, 0, c->count) : 0;
}

static size_t wrong_scan(const struct perf_call *c, const struct perf_data *d)
{
    return wrong_of(c, d, c->rank + 1);
}

static size_t wrong_exscan(const struct perf_call *c, const struct perf_data *d)
{
    return wrong_of(c, d, c->rank);
}

static size_t wrong_broadcast(const struct perf_call *c, const struct perf_data *d)
{
    return perf_wrong(d, c->recv, c->root, 0, c->count);
}

static size_t wrong_reduce(const struct perf_call *c, const struct perf_data *d)
{
    return c->rank == c->root ? perf_wrong_reduced(d, c->recv, 0, c->count) : 0;
}

static size_t wrong_all_gather(const struct perf_call *c, const struct perf_data *d)
{
    size_t wrong = 0;
    for (int r = 0; r < c->ranks; r++)
        wrong += perf_wrong(d, part(c->recv, c, r), r, 0, c->count);
    return wrong;
}

static size_t wrong_gather(const struct perf_call *c, const struct perf_data *d)
{
    return c->rank == c->root ? wrong_all_gather(c, d) : 0;
}

static size_t wrong_reduce_scatter(const struct perf_call *c, const struct perf_data *d)
{
    return perf_wrong_reduced(d, c->recv, (size_t)c->rank * c->count, c->count);
}

static size_t wrong_all_to_all(const struct perf_call *c, const struct perf_data *d)
{
    size_t wrong = 0;
    for (int r = 0; r < c->ranks; r++)
        wrong += perf_wrong(d, part(c->recv, c, r), r, (size_t)c->rank * c->count, c->count);
    return wrong;
}

static size_t wrong_scatter(const struct perf_call *c, const struct perf_data *d)
{
    return perf_wrong(d, c->recv, c->root, (size_t)c->rank * c->count, c->count);
}

static size_t wrong_send_recv(const struct perf_call *c, const struct perf_data *d)
{
    return perf_wrong(d, c->recv, next_rank(c, -1), 0, c->count);
}

static size_t wrong_ping_pong(const struct perf_call *c, const struct perf_data *d)
{
    return c->rank > 1 || c->ranks < 2 ? 0 : perf_wrong(d, c->recv, 1 - c->rank, 0, c->count);
}

static size_t wrong_barrier(const struct perf_call *c, const struct perf_data *d)
{
    (void)c, (void)d;
    return 0;
}

/* -------------------------------------------------------------------------------------- buffers */

size_t perf_send_count(const struct perf_call *c)
{
    bool parts = c->op->shape == PERF_PARTS_IN || c->op->shape == PERF_PARTS;
    return c->op->shape == PERF_NOTHING ? 0 : parts ? c->count * (size_t)c->ranks : c->count;
}

size_t perf_recv_count(const struct perf_call *c)
{
    bool parts = c->op->shape == PERF_PARTS_OUT || c->op->shape == PERF_PARTS;
    return c->op->shape == PERF_NOTHING ? 0 : parts ? c->count * (size_t)c->ranks : c->count;
}

/* In place, the receive buffer lies in the send buffer, or the other way round. */
void perf_prepare(const struct perf_call *c, const struct perf_data *d, bool in_place)
{
    size_t size = perf_type_size(c->type);
    if (!in_place || c->op->shape == PERF_PARTS_OUT)
        memset(c->recv, 0xa5, perf_recv_count(c) * size);
    if (c->op->rooted && c->op->shape == PERF_WHOLE && !c->op->reduces && c->rank != c->root) {
        memset(c->recv, 0xa5, c->count * size);
        return; /* nothing is sent */
    }
    perf_fill(d, c->send, c->rank, 0, perf_send_count(c));
}

static double once(int ranks)
{
    (void)ranks;
    return 1;
}

static double others(int ranks)
{
    return (double)(ranks - 1) / ranks;
}

static double there_and_back(int ranks)
{
    return 2 * others(ranks);
}

/* clang-format off */
const struct perf_op perf_ops[] = {
    /* name, shape, reduces, rooted, in place, pair, call, wrong, bus */
    {"all_reduce",     PERF_WHOLE,     true,  false, true,  false, call_all_reduce,     wrong_all_reduce,     there_and_back},
    {"broadcast",      PERF_WHOLE,     false, true,  true,  false, call_broadcast,      wrong_broadcast,      once},
    {"reduce",         PERF_WHOLE,     true,  true,  true,  false, call_reduce,         wrong_reduce,         once},
    {"all_gather",     PERF_PARTS_OUT, false, false, true,  false, call_all_gather,     wrong_all_gather,     others},
    {"reduce_scatter", PERF_PARTS_IN,  true,  false, true,  false, call_reduce_scatter, wrong_reduce_scatter, others},
    {"all_to_all",     PERF_PARTS,     false, false, true,  false, call_all_to_all,     wrong_all_to_all,     others},
    {"gather",         PERF_PARTS_OUT, false, true,  true,  false, call_gather,         wrong_gather,         others},
    {"scatter",        PERF_PARTS_IN,  false, true,  true,  false, call_scatter,        wrong_scatter,        others},
    {"scan",           PERF_WHOLE,     true,  false, true,  false, call_scan,           wrong_scan,           once},
    {"exscan",         PERF_WHOLE,     true,  false, true,  false, call_exscan,         wrong_exscan,         once},
    {"send_recv",      PERF_WHOLE,     false, false, false, false, call_send_recv,      wrong_send_recv,      once},
    {"neighbor",       PERF_WHOLE,     false, false, false, false, call_neighbor,       wrong_send_recv,      once},
    {"pingpong",       PERF_WHOLE,     false, false, false, true,  call_ping_pong,      wrong_ping_pong,      once},
    {"barrier",        PERF_NOTHING,   false, false, false, false, call_barrier,        wrong_barrier,        once},
};
/* clang-format on */
const size_t perf_nops = sizeof(perf_ops) / sizeof(perf_ops[0]);
