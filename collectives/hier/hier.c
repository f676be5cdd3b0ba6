#include "collectives/hier/hier.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/comm/provider.h"
#include "collectives/net/net.h"
#include "collectives/shm/provider.h"

struct hier_tuning hier_tuning = {
#define HIER(name, bytes, decides, measured) .name = bytes,
#include "collectives/comm/selection.def"
};

enum { NODES_MAX = 200 }; /* an operation has at most 256 parts */

/* Kept between operations. */
struct hier {
    int *lane;                               /* ranks of this rank's lane, by node */
    int *first;                              /* ranks of lane 0, by node */
    int *last;                               /* the last rank of each node */
    size_t *counts, *displs, *rest, *places; /* one entry per rank each */
    uint8_t *scratch;
    size_t cap_scratch;
};

/* One operation. */
struct hier_task {
    struct coll_call *call;
    dlcoll_comm *comm;
    struct hier *h;
    int lanes;
    uint8_t part; /* number of the next part */
};

/* --------------------------------------------------------------------------------------- memory */

void hier_free(dlcoll_comm *comm)
{
    struct hier *h = comm->hier;
    if (!h)
        return;
    comm->hier = NULL;
    free(h->lane);
    free(h->first);
    free(h->last);
    free(h->counts);
    free(h->scratch);
    free(h);
}

/* The rank with local rank `local` of each node; -1: the node has none. */
static int *list_lane(const struct topology *t, int local)
{
    int *lane = malloc((size_t)t->nnodes * sizeof(*lane));
    for (int k = 0; lane && k < t->nnodes; k++)
        lane[k] = local < t->node_size[k] ? t->by_node[t->node_first[k] + local] : -1;
    return lane;
}

static int *list_last(const struct topology *t)
{
    int *last = malloc((size_t)t->nnodes * sizeof(*last));
    for (int k = 0; last && k < t->nnodes; k++)
        last[k] = t->by_node[t->node_first[k] + t->node_size[k] - 1];
    return last;
}

static struct hier *hier_keep(dlcoll_comm *comm)
{
    const struct topology *t = &comm->topo;
    size_t n = (size_t)comm->size;
    if (comm->hier)
        return comm->hier;
    struct hier *h = comm->hier = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    h->lane = list_lane(t, t->local);
    h->first = list_lane(t, 0);
    h->last = list_last(t);
    h->counts = calloc(4 * n, sizeof(*h->counts));
    if (!h->lane || !h->first || !h->last || !h->counts) {
        hier_free(comm);
        return NULL;
    }
    h->displs = h->counts + n;
    h->rest = h->counts + 2 * n;
    h->places = h->counts + 3 * n;
    return h;
}

static uint8_t *scratch(struct hier_task *t, size_t bytes)
{
    struct hier *h = t->h;
    if (bytes > h->cap_scratch) {
        uint8_t *p = malloc(bytes);
        if (!p)
            return NULL;
        free(h->scratch);
        h->scratch = p;
        h->cap_scratch = bytes;
    }
    return h->scratch;
}

/* ---------------------------------------------------------------------------------------- parts */

/* A part of the operation, with the same data unless the caller changes it. A part of a reduction
 * neither scales nor divides unless the caller sets it. */
static struct coll_call new_part(struct hier_task *t, enum call_kind kind)
{
    struct coll_call c = *t->call;
    c.kind = kind;
    assert(t->part < UINT8_MAX);
    c.part = t->part++;
    c.send_parts = c.recv_parts = (struct coll_parts){0};
    c.reduce.has_pre = c.reduce.has_post = false;
    return c;
}

static int run_part(struct hier_task *t, struct coll_call *c, const struct coll_provider *p)
{
    int r = p->run(c);
    t->call->may_repeat = c->may_repeat;
    return r;
}

/* Runs a part among the ranks of this node. */
static int run_node(struct hier_task *t, struct coll_call *c, int root)
{
    const struct topology *topo = &t->comm->topo;
    c->ranks =
        (struct coll_ranks){.size = topo->nlocal, .me = topo->local, .map = topo->local_ranks};
    c->root = root;
    return run_part(t, c, &shm_provider);
}

/* Runs a part between the nodes, along this rank's lane or lane 0. */
static int run_lane(struct hier_task *t, struct coll_call *c, const int *lane, int root)
{
    const struct topology *topo = &t->comm->topo;
    c->ranks = (struct coll_ranks){.size = topo->nnodes, .me = topo->node, .map = lane};
    c->root = root;
    return run_part(t, c, &net_provider);
}

static bool has_lane(const struct hier_task *t)
{
    return t->comm->topo.local < t->lanes;
}

static bool is_first(const struct hier_task *t)
{
    return t->comm->topo.local == 0;
}

/* Divides `count` elements into slices for the lanes, of whole cache lines as far as possible. */
static void slice(struct hier_task *t)
{
    size_t count = t->call->count, unit = t->call->elem < 64 ? 64 / t->call->elem : 1,
           units = (count + unit - 1) / unit;
    size_t each = units / (size_t)t->lanes, more = units % (size_t)t->lanes, at = 0;
    for (int l = 0; l < t->comm->topo.nlocal; l++) {
        size_t end = l < t->lanes ? at + (each + ((size_t)l < more)) * unit : count;
        end = end < count ? end : count;
        t->h->displs[l] = at;
        t->h->counts[l] = end - at;
        at = end;
    }
    assert(at == count);
}

/* A rank that is alone on its node shares memory with nobody: its part is a copy. */
static bool is_alone(const struct hier_task *t)
{
    return t->comm->topo.nlocal == 1;
}

static void copy_alone(struct hier_task *t, const void *send, void *recv, size_t count)
{
    const struct reduce_info *reduce = &t->call->reduce;
    t->part++;
    if (reduce->dtype && reduce->has_pre) {
        reduce_pre(reduce, recv, send, count);
        t->call->may_repeat = t->call->may_repeat && send != recv; /* scaled once only */
    } else if (send != recv) {
        memcpy(recv, send, count * t->call->elem);
    }
}

/* --------------------------------------------------------------------------- all_reduce, reduce */

/* Reduces every slice within this node, to `to` on the slice's lane. */
static int node_sums(struct hier_task *t, uint8_t *to)
{
    size_t mine = t->h->counts[t->comm->topo.local];
    if (is_alone(t)) {
        copy_alone(t, t->call->send, to, mine);
        return 0;
    }
    bool one = t->lanes == 1;
    struct coll_call c = new_part(t, one ? CALL_REDUCE : CALL_REDUCE_SCATTER_V);
    c.reduce.has_pre = t->call->reduce.has_pre;
    c.recv = to;
    if (!one)
        c.send_parts.counts = t->h->counts;
    return run_node(t, &c, 0);
}

/* Distributes every slice from its lane to all ranks of the node. */
static int node_spread(struct hier_task *t)
{
    if (is_alone(t))
        return 0;
    bool one = t->lanes == 1;
    struct coll_call c = new_part(t, one ? CALL_BROADCAST : CALL_ALL_GATHER_V);
    c.send = (const uint8_t *)c.recv + t->h->displs[t->comm->topo.local] * c.elem;
    if (!one)
        c.recv_parts = (struct coll_parts){t->h->counts, t->h->displs};
    return run_node(t, &c, 0);
}

/* Runs an operation between the nodes, each lane with its slice. */
static int lane_slice(struct hier_task *t, enum call_kind kind, const void *send, void *recv,
                      int root)
{
    struct coll_call c = new_part(t, kind);
    c.reduce.has_post = t->call->reduce.has_post;
    c.send = send;
    c.recv = recv;
    c.count = t->h->counts[t->comm->topo.local];
    return has_lane(t) && c.count ? run_lane(t, &c, t->h->lane, root) : 0;
}

static int hier_all_reduce(struct hier_task *t)
{
    slice(t);
    uint8_t *mine = (uint8_t *)t->call->recv + t->h->displs[t->comm->topo.local] * t->call->elem;
    int r = node_sums(t, mine);
    if (r == 0)
        r = lane_slice(t, CALL_ALL_REDUCE, mine, mine, 0);
    return r < 0 ? r : node_spread(t);
}

/* On the root's node: gathers the slices at the root. */
static int to_root(struct hier_task *t, const uint8_t *mine)
{
    const struct topology *topo = &t->comm->topo;
    if (topo->node_of[t->call->root] != topo->node || is_alone(t))
        return 0;
    struct coll_call c = new_part(t, CALL_GATHER_V);
    c.send = mine;
    c.count = t->h->counts[topo->local];
    c.recv_parts = (struct coll_parts){t->h->counts, t->h->displs};
    return run_node(t, &c, topo->local_of[t->call->root]);
}

static int hier_reduce(struct hier_task *t)
{
    const struct topology *topo = &t->comm->topo;
    int root = t->call->root;
    slice(t);
    size_t at = t->h->displs[topo->local] * t->call->elem;
    uint8_t *mine = t->comm->rank == root
                        ? (uint8_t *)t->call->recv + at
                        : scratch(t, t->h->counts[topo->local] * t->call->elem + 1);
    if (!mine)
        return err_set(&t->call->failure->err, -ENOMEM, "no memory for the operation");
    int r = node_sums(t, mine);
    if (r == 0)
        r = lane_slice(t, CALL_REDUCE, mine, mine, topo->node_of[root]);
    return r < 0 ? r : to_root(t, mine);
}

/* ------------------------------------------------------------------------------------ broadcast */

/* On the root's node: sends every lane its slice, to its place in recv. */
static int from_root(struct hier_task *t, uint8_t *mine)
{
    const struct topology *topo = &t->comm->topo;
    bool root = t->comm->rank == t->call->root;
    size_t len = t->call->count * t->call->elem;
    if (root && t->call->recv != t->call->send)
        memcpy(t->call->recv, t->call->send, len);
    if (topo->node_of[t->call->root] != topo->node || is_alone(t) ||
        (t->lanes == 1 && topo->local_of[t->call->root] == 0))
        return 0;
    struct coll_call c = new_part(t, CALL_SCATTER_V);
    c.send = t->call->recv;
    c.recv = mine;
    c.count = t->h->counts[topo->local];
    if (root)
        c.send_parts = (struct coll_parts){t->h->counts, t->h->displs};
    return run_node(t, &c, topo->local_of[t->call->root]);
}

static int hier_broadcast(struct hier_task *t)
{
    const struct topology *topo = &t->comm->topo;
    slice(t);
    uint8_t *mine = (uint8_t *)t->call->recv + t->h->displs[topo->local] * t->call->elem;
    int r = from_root(t, mine);
    t->part = 1; /* equal on every node */
    if (r == 0)
        r = lane_slice(t, CALL_BROADCAST, mine, mine, topo->node_of[t->call->root]);
    return r < 0 ? r : node_spread(t);
}

/* ------------------------------------------------------------------- all_gather, reduce_scatter */

/* Requires the same number of ranks on all nodes. */
static int hier_all_gather(struct hier_task *t)
{
    const struct topology *topo = &t->comm->topo;
    size_t count = t->call->count, elem = t->call->elem, *counts = t->h->counts;
    size_t *displs = t->h->displs;
    struct coll_call c = new_part(t, CALL_ALL_GATHER_V);
    for (int k = 0; k < topo->nnodes; k++) {
        counts[k] = count;
        displs[k] = (size_t)t->h->lane[k] * count;
    }
    c.recv_parts = (struct coll_parts){counts, displs};
    int r = run_lane(t, &c, t->h->lane, 0);
    for (int k = 0; k < topo->nnodes && r == 0 && !is_alone(t); k++) {
        c = new_part(t, CALL_ALL_GATHER_V);
        for (int l = 0; l < topo->nlocal; l++) {
            counts[l] = count;
            displs[l] = (size_t)topo->by_node[topo->node_first[k] + l] * count;
        }
        c.send = (const uint8_t *)c.recv + displs[topo->local] * elem;
        c.recv_parts = (struct coll_parts){counts, displs};
        r = run_node(t, &c, 0);
    }
    return r;
}

/* Requires the same number of ranks on all nodes, and consecutive ranks on each node. */
static int hier_reduce_scatter(struct hier_task *t)
{
    const struct topology *topo = &t->comm->topo;
    size_t count = t->call->count, len = count * t->call->elem;
    uint8_t *sums = scratch(t, len * (size_t)topo->nnodes);
    int r = 0;
    if (!sums)
        return err_set(&t->call->failure->err, -ENOMEM, "no memory for the operation");
    for (int k = 0; k < topo->nnodes && r == 0; k++) {
        const uint8_t *send =
            (const uint8_t *)t->call->send + len * (size_t)topo->nlocal * (size_t)k;
        if (is_alone(t)) {
            copy_alone(t, send, sums + len * (size_t)k, count);
            continue;
        }
        struct coll_call c = new_part(t, CALL_REDUCE_SCATTER);
        c.reduce.has_pre = t->call->reduce.has_pre;
        c.send = send;
        c.recv = sums + len * (size_t)k;
        r = run_node(t, &c, 0);
    }
    if (r < 0)
        return r;
    struct coll_call c = new_part(t, CALL_REDUCE_SCATTER);
    c.reduce.has_post = t->call->reduce.has_post;
    c.send = sums;
    return run_lane(t, &c, t->h->lane, 0);
}

/* ----------------------------------------------------------------------------------------- scan */

/* The last rank of this node has the sum of its node: it passes on what comes before it. */
static int last_local(const struct hier_task *t)
{
    return t->comm->topo.nlocal - 1;
}

/* Computes the prefixes within the node. On its last rank *sum becomes the whole node's, in scratch
 * memory or where that rank has it already. */
static int scan_node(struct hier_task *t, const void **sum)
{
    struct coll_call *all = t->call;
    bool last = t->comm->topo.local == last_local(t), exclusive = all->kind == CALL_EXSCAN;
    size_t len = all->count * all->elem;
    uint8_t *own = last && exclusive ? scratch(t, 2 * len) + len : NULL;
    if (own && all->reduce.has_pre)
        reduce_pre(&all->reduce, own, all->send, all->count);
    else if (own)
        memcpy(own, all->send, len);
    *sum = exclusive ? own : all->recv;
    if (is_alone(t)) {
        if (!exclusive)
            copy_alone(t, all->send, all->recv, all->count);
        return 0;
    }
    struct coll_call c = new_part(t, all->kind);
    c.reduce.has_pre = all->reduce.has_pre;
    int r = run_node(t, &c, 0);
    if (r == 0 && own)
        reduce_two(&all->reduce, own, all->recv, own, all->count);
    return r;
}

/* Adds what comes before this node. */
static void scan_finish(struct hier_task *t, const void *before)
{
    struct coll_call *all = t->call;
    const struct topology *topo = &t->comm->topo;
    bool exclusive = all->kind == CALL_EXSCAN;
    if (topo->node > 0 && exclusive && topo->local == 0)
        memcpy(all->recv, before, all->count * all->elem);
    else if (topo->node > 0)
        reduce_two(&all->reduce, all->recv, before, all->recv, all->count);
    if (t->comm->rank == (exclusive ? 1 : 0))
        reduce_alone(&all->reduce, all->recv, all->count);
    if (all->reduce.has_post && !(exclusive && t->comm->rank == 0))
        reduce_post(&all->reduce, all->recv, all->recv, all->count);
}

/* Requires consecutive ranks on each node. */
static int hier_scan(struct hier_task *t)
{
    const struct topology *topo = &t->comm->topo;
    size_t len = t->call->count * t->call->elem;
    const void *sum;
    if (!scratch(t, 2 * len))
        return err_set(&t->call->failure->err, -ENOMEM, "no memory for the operation");
    int r = scan_node(t, &sum);
    t->part = 1; /* equal on every node */
    struct coll_call c = new_part(t, CALL_EXSCAN);
    c.send = sum;
    c.recv = t->h->scratch;
    if (r == 0 && topo->local == last_local(t))
        r = run_lane(t, &c, t->h->last, 0);
    c = new_part(t, CALL_BROADCAST);
    c.send = c.recv = t->h->scratch;
    if (r == 0 && topo->node > 0 && !is_alone(t))
        r = run_node(t, &c, last_local(t));
    if (r == 0)
        scan_finish(t, t->h->scratch);
    return r;
}

/* -------------------------------------------------------------------------- all_to_all, barrier */

static size_t part_count(const struct coll_call *c, const struct coll_parts *p, int i)
{
    return p->counts ? p->counts[i] : c->count;
}

/* Computes where each rank's part begins. */
static void find_places(const struct coll_call *c, const struct coll_parts *p, size_t *places)
{
    size_t at = 0;
    for (int i = 0; i < c->comm->size; i++) {
        places[i] = p->displs && part_count(c, p, i) ? p->displs[i] : at;
        at += part_count(c, p, i);
    }
}

/* Fills counts and displs with the parts of this node's ranks, or with `others` with those of all
 * ranks, zero for this node's. */
static struct coll_parts pick(struct hier_task *t, const struct coll_parts *p, size_t *counts,
                              size_t *displs, bool others)
{
    const struct topology *topo = &t->comm->topo;
    find_places(t->call, p, displs);
    for (int i = 0; others && i < t->comm->size; i++)
        counts[i] = topo->node_of[i] == topo->node ? 0 : part_count(t->call, p, i);
    for (int l = 0; !others && l < topo->nlocal; l++) {
        counts[l] = part_count(t->call, p, topo->local_ranks[l]);
        displs[l] = displs[topo->local_ranks[l]]; /* ascending: entries that are still needed are
                                                     not overwritten */
    }
    return (struct coll_parts){counts, displs};
}

static int hier_all_to_all(struct hier_task *t)
{
    struct hier *h = t->h;
    const struct coll_call *all = t->call;
    struct coll_call c = new_part(t, CALL_ALL_TO_ALL_V);
    int r = 0;
    if (is_alone(t)) {
        const struct coll_parts *in = &all->send_parts, *out = &all->recv_parts;
        size_t own = part_count(all, in, t->comm->rank) * all->elem;
        find_places(all, in, h->displs);
        find_places(all, out, h->places);
        if (own) /* otherwise the buffers may be NULL */
            memmove((uint8_t *)all->recv + h->places[t->comm->rank] * all->elem,
                    (const uint8_t *)all->send + h->displs[t->comm->rank] * all->elem, own);
    } else {
        c.send_parts = pick(t, &all->send_parts, h->counts, h->displs, false);
        c.recv_parts = pick(t, &all->recv_parts, h->rest, h->places, false);
        r = run_node(t, &c, 0);
    }
    if (r < 0)
        return r;
    c = new_part(t, CALL_ALL_TO_ALL_V);
    c.send_parts = pick(t, &all->send_parts, h->counts, h->displs, true);
    c.recv_parts = pick(t, &all->recv_parts, h->rest, h->places, true);
    return run_part(t, &c, &net_provider);
}

static int hier_barrier(struct hier_task *t)
{
    struct coll_call c = new_part(t, CALL_BARRIER);
    int r = is_alone(t) ? 0 : run_node(t, &c, 0);
    c = new_part(t, CALL_BARRIER);
    if (r == 0 && is_first(t))
        r = run_lane(t, &c, t->h->first, 0);
    c = new_part(t, CALL_BARRIER);
    return r < 0 || is_alone(t) ? r : run_node(t, &c, 0);
}

/* ------------------------------------------------------------------------------------- provider */

const char *hier_why_not(const dlcoll_comm *comm)
{
    const struct topology *t = &comm->topo;
    if (t->nnodes < 2)
        return "all ranks are on one node";
    if (t->most_local < 2)
        return "no node has two ranks";
    if (!comm->shares_memory)
        return "no memory is shared";
    return t->nnodes > NODES_MAX ? "there are more than 200 nodes" : NULL;
}

static bool hier_can(const struct coll_call *c)
{
    const struct topology *t = &c->comm->topo;
    bool even = t->least_local == t->most_local;
    if (hier_why_not(c->comm) || c->ranks.map ||
        (c->reduce.dtype && c->reduce.ordered && !t->contiguous) ||
        (c->reduce.dtype && !shm_fits(c->elem, t->most_local)))
        return false;
    switch (c->kind) {
    case CALL_ALL_REDUCE:
    case CALL_REDUCE:
    case CALL_BROADCAST:
    case CALL_BARRIER:
    case CALL_FINALIZE:
    case CALL_ALL_TO_ALL:
    case CALL_ALL_TO_ALL_V:
        return true;
    case CALL_ALL_GATHER:
        return even;
    case CALL_SCAN:
    case CALL_EXSCAN:
        return t->contiguous;
    case CALL_REDUCE_SCATTER:
        return even && t->contiguous;
    default:
        return false;
    }
}

static bool is_large(const struct coll_call *c)
{
    return coll_bytes(c) >= hier_tuning.lanes;
}

const char *hier_algo(const struct coll_call *c)
{
    bool either = c->kind == CALL_ALL_REDUCE || c->kind == CALL_REDUCE || c->kind == CALL_BROADCAST;
    if (call_scans(c->kind))
        return "leaders";
    return !either ? NULL : is_large(c) ? "lanes" : "leaders";
}

static int hier_run(struct coll_call *c)
{
    struct hier_task t = {.call = c, .comm = c->comm, .h = hier_keep(c->comm)};
    bool large = is_large(c) && !call_scans(c->kind);
    if (!t.h)
        return err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
    t.lanes = large ? c->comm->topo.least_local : 1;
    c->algo = large ? "lanes" : "leaders";
    if (c->dtype && c->count == 0 && !c->send_parts.counts && !c->recv_parts.counts)
        return 0;
    switch (c->kind) {
    case CALL_ALL_REDUCE:
        return hier_all_reduce(&t);
    case CALL_REDUCE:
        return hier_reduce(&t);
    case CALL_BROADCAST:
        return hier_broadcast(&t);
    case CALL_ALL_GATHER:
        return hier_all_gather(&t);
    case CALL_REDUCE_SCATTER:
        return hier_reduce_scatter(&t);
    case CALL_SCAN:
    case CALL_EXSCAN:
        return hier_scan(&t);
    case CALL_ALL_TO_ALL:
    case CALL_ALL_TO_ALL_V:
        return hier_all_to_all(&t);
    default:
        return hier_barrier(&t);
    }
}

const struct coll_provider hier_provider = {.name = "hier", .can = hier_can, .run = hier_run};
