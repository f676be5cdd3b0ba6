/* blocks_to_ranks.c: operations that are an all_to_all_v in another form: blocks of types of their
 * own, and blocks for the neighbours in a graph. */
#include <string.h>

#include "collectives/ops/coll.h"
#include "collectives/comm/comm.h"
#include "collectives/base/error.h"
#include "collectives/perform/layout.h"

static int refuse(const struct coll_args *a, int code, const char *why)
{
    return comm_error(a->comm, code, "%s: %s", call_name(a->called), why);
}

/* ---------------------------------------------------------------------------- a type for a block
 */

/* Counts and displacements in bytes. NULL, or what is wrong. */
static const char *in_bytes(const dlcoll_comm *c, const size_t *counts, const size_t *displs,
                            const dlcoll_dtype *types, size_t *bytes, size_t *places)
{
    size_t at = 0;
    if (!counts || !types)
        return counts ? "types is NULL" : "counts is NULL";
    for (int i = 0; i < c->size; i++) {
        const struct dtype *type = dtype_get((int)types[i]);
        if (!type)
            return "unknown dtype";
        if (counts[i] > SIZE_MAX / 4 / type->size)
            return "the counts are too large";
        bytes[i] = counts[i] * type->size;
        places[i] = displs ? displs[i] : at;
        if (__builtin_add_overflow(at, bytes[i], &at))
            return "the counts are too large";
    }
    return NULL;
}

/* Inside the communicator. */
static int to_all_by_type(struct coll_args *a, const dlcoll_dtype *send_types,
                          const dlcoll_dtype *recv_types)
{
    size_t n = (size_t)a->comm->size, *room = comm_keep_numbers(a->comm, 4 * n);
    if (!room)
        return refuse(a, DLCOLL_ENOMEM, "no memory");
    const char *bad = in_bytes(a->comm, a->send_counts, a->send_displs, send_types, room, room + n);
    if (!bad)
        bad = in_bytes(a->comm, a->recv_counts, a->recv_displs, recv_types, room + 2 * n,
                       room + 3 * n);
    if (bad)
        return refuse(a, DLCOLL_EINVAL, bad);
    a->send_counts = room;
    a->send_displs = room + n;
    a->recv_counts = room + 2 * n;
    a->recv_displs = room + 3 * n;
    return coll_check_and_perform(a);
}

int dlcoll_all_to_all_w(const void *send, const size_t *send_counts, const size_t *send_displs,
                        const dlcoll_dtype *send_types, void *recv, const size_t *recv_counts,
                        const size_t *recv_displs, const dlcoll_dtype *recv_types,
                        dlcoll_comm *comm, const dlcoll_opts *opts, dlcoll_work **work)
{
    struct coll_args a = {.kind = CALL_ALL_TO_ALL_V,
                          .called = CALL_ALL_TO_ALL_W,
                          .send = send,
                          .recv = recv,
                          .send_counts = send_counts,
                          .send_displs = send_displs,
                          .recv_counts = recv_counts,
                          .recv_displs = recv_displs,
                          .dtype = DLCOLL_U8,
                          .comm = comm,
                          .opts = opts,
                          .work = work};
    if (work)
        *work = NULL;
    int code = comm_enter(comm);
    return code < 0 ? code : comm_leave(comm, to_all_by_type(&a, send_types, recv_types));
}

/* ----------------------------------------------------------------------------------- neighbours */

/* The edges of one direction: a neighbour, a count and a place for each. */
struct edges {
    const int *ranks;
    size_t n;
    const size_t *counts, *displs; /* NULL: all `count`, or one after the other */
    size_t count;
    bool same;         /* all edges have the same block */
    bool needs_counts; /* the program must give them, if there are edges */
};

/* The blocks of each rank together, for all_to_all_v. With several edges between two ranks the
 * buffer is packed, in the order of `layout`. */
struct by_rank {
    size_t *counts, *displs;
    dlcoll_layout layout;
    size_t *lengths, *offsets;
    bool packed;
};

static size_t edge_count(const struct edges *e, size_t k)
{
    return e->counts ? e->counts[k] : e->count;
}

/* NULL, or what is wrong. */
static const char *sort_edges(const dlcoll_comm *c, const struct edges *e, struct by_rank *b)
{
    size_t at = 0, done = 0, most = SIZE_MAX / 8;
    memset(b->counts, 0, (size_t)c->size * sizeof(*b->counts));
    memset(b->displs, 0, (size_t)c->size * sizeof(*b->displs));
    for (size_t k = 0; k < e->n; k++) {
        size_t count = edge_count(e, k);
        if (e->ranks[k] < 0 || e->ranks[k] >= c->size)
            return "a rank of the graph is out of range (0 to size-1)";
        if (count > most || at > most - count || (e->displs && e->displs[k] > most))
            return "the counts are too large";
        size_t *mine = &b->counts[e->ranks[k]];
        b->offsets[k] = e->displs && count ? e->displs[k] : e->same ? 0 : at;
        b->packed = b->packed || (*mine && count);
        b->displs[e->ranks[k]] = count ? b->offsets[k] : b->displs[e->ranks[k]];
        *mine += count;
        at += count;
    }
    if (!b->packed)
        return NULL;
    size_t *sorted = b->lengths + e->n; /* offsets in the order of the ranks */
    for (int r = 0; r < c->size; r++) {
        for (size_t k = 0; k < e->n; k++) {
            if (e->ranks[k] != r)
                continue;
            b->lengths[done] = edge_count(e, k);
            sorted[done++] = b->offsets[k];
        }
    }
    b->layout = (dlcoll_layout)DLCOLL_LAYOUT_INIT;
    b->layout.blocks = e->n;
    b->layout.lengths = b->lengths;
    b->layout.offsets = sorted;
    return NULL;
}

static const char *check_graph(const dlcoll_graph *given, dlcoll_graph *g)
{
    *g = (dlcoll_graph)DLCOLL_GRAPH_INIT;
    if (!given)
        return "graph is NULL";
    if (comm_take_opts(g, sizeof(*g), given) < 0)
        return "graph has no valid size and version (use DLCOLL_GRAPH_INIT)";
    if ((g->nsources && !g->sources) || (g->ndests && !g->dests))
        return "a list of the graph is NULL";
    if (g->nsources > SIZE_MAX / 64 || g->ndests > SIZE_MAX / 64)
        return "the graph has too many edges";
    return NULL;
}

/* `out` and `in` lack what the graph has. Inside the communicator. */
static int along_edges(struct coll_args *a, const dlcoll_graph *given, struct edges *out,
                       struct edges *in)
{
    dlcoll_graph g;
    const char *bad = check_graph(given, &g);
    if (!bad && ((out->needs_counts && g.ndests && !out->counts) ||
                 (in->needs_counts && g.nsources && !in->counts)))
        bad = "counts is NULL";
    if (bad)
        return refuse(a, DLCOLL_EINVAL, bad);
    size_t n = (size_t)a->comm->size;
    size_t *room = comm_keep_numbers(a->comm, 4 * n + 3 * (g.ndests + g.nsources));
    if (!room)
        return refuse(a, DLCOLL_ENOMEM, "no memory");
    struct by_rank from = {.counts = room, .displs = room + n, .offsets = room + 4 * n};
    from.lengths = from.offsets + g.ndests;
    struct by_rank to = {
        .counts = room + 2 * n, .displs = room + 3 * n, .offsets = from.lengths + 2 * g.ndests};
    to.lengths = to.offsets + g.nsources;
    out->ranks = g.dests;
    out->n = g.ndests;
    in->ranks = g.sources;
    in->n = g.nsources;
    bad = sort_edges(a->comm, out, &from);
    if (!bad)
        bad = sort_edges(a->comm, in, &to);
    a->kind = CALL_ALL_TO_ALL_V;
    a->send_counts = from.counts;
    a->send_displs = from.packed ? NULL : from.displs;
    a->recv_counts = to.counts;
    a->recv_displs = to.packed ? NULL : to.displs;
    dlcoll_opts with;
    int code =
        bad ? refuse(a, DLCOLL_EINVAL, bad) : coll_take_opts(a->comm, a->called, a->opts, &with);
    if (code < 0)
        return code;
    if ((from.packed && with.send_layout) || (to.packed && with.recv_layout))
        return refuse(a, DLCOLL_EINVAL,
                      "a layout does not go with several edges between two ranks");
    with.send_layout = from.packed ? &from.layout : with.send_layout;
    with.recv_layout = to.packed ? &to.layout : with.recv_layout;
    a->opts = &with;
    return coll_check_and_perform(a);
}

static int exchange(struct coll_args *a, const dlcoll_graph *graph, struct edges *out,
                    struct edges *in)
{
    if (a->work)
        *a->work = NULL;
    int code = comm_enter(a->comm);
    return code < 0 ? code : comm_leave(a->comm, along_edges(a, graph, out, in));
}

int dlcoll_neighbor_all_gather(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                               const dlcoll_graph *graph, dlcoll_comm *comm,
                               const dlcoll_opts *opts, dlcoll_work **work)
{
    struct edges out = {.count = count, .same = true}, in = {.count = count};
    return exchange(&(struct coll_args){.called = CALL_NEIGHBOR_ALL_GATHER,
                                        .send = send,
                                        .recv = recv,
                                        .dtype = dtype,
                                        .comm = comm,
                                        .opts = opts,
                                        .work = work},
                    graph, &out, &in);
}

int dlcoll_neighbor_all_gather_v(const void *send, size_t send_count, void *recv,
                                 const size_t *recv_counts, const size_t *recv_displs,
                                 dlcoll_dtype dtype, const dlcoll_graph *graph, dlcoll_comm *comm,
                                 const dlcoll_opts *opts, dlcoll_work **work)
{
    struct edges out = {.count = send_count, .same = true};
    struct edges in = {.counts = recv_counts, .displs = recv_displs, .needs_counts = true};
    return exchange(&(struct coll_args){.called = CALL_NEIGHBOR_ALL_GATHER,
                                        .send = send,
                                        .recv = recv,
                                        .dtype = dtype,
                                        .comm = comm,
                                        .opts = opts,
                                        .work = work},
                    graph, &out, &in);
}

int dlcoll_neighbor_all_to_all(const void *send, void *recv, size_t count, dlcoll_dtype dtype,
                               const dlcoll_graph *graph, dlcoll_comm *comm,
                               const dlcoll_opts *opts, dlcoll_work **work)
{
    struct edges out = {.count = count}, in = {.count = count};
    return exchange(&(struct coll_args){.called = CALL_NEIGHBOR_ALL_TO_ALL,
                                        .send = send,
                                        .recv = recv,
                                        .dtype = dtype,
                                        .comm = comm,
                                        .opts = opts,
                                        .work = work},
                    graph, &out, &in);
}

int dlcoll_neighbor_all_to_all_v(const void *send, const size_t *send_counts,
                                 const size_t *send_displs, void *recv, const size_t *recv_counts,
                                 const size_t *recv_displs, dlcoll_dtype dtype,
                                 const dlcoll_graph *graph, dlcoll_comm *comm,
                                 const dlcoll_opts *opts, dlcoll_work **work)
{
    struct edges out = {.counts = send_counts, .displs = send_displs, .needs_counts = true};
    struct edges in = {.counts = recv_counts, .displs = recv_displs, .needs_counts = true};
    return exchange(&(struct coll_args){.called = CALL_NEIGHBOR_ALL_TO_ALL,
                                        .send = send,
                                        .recv = recv,
                                        .dtype = dtype,
                                        .comm = comm,
                                        .opts = opts,
                                        .work = work},
                    graph, &out, &in);
}
