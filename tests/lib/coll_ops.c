#include "tests/lib/coll_ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const coll_op_names[COLL_OPS] = {
    [COLL_ALL_REDUCE] = "all_reduce",
    [COLL_BROADCAST] = "broadcast",
    [COLL_REDUCE] = "reduce",
    [COLL_ALL_GATHER] = "all_gather",
    [COLL_GATHER] = "gather",
    [COLL_SCATTER] = "scatter",
    [COLL_REDUCE_SCATTER] = "reduce_scatter",
    [COLL_ALL_TO_ALL] = "all_to_all",
    [COLL_ALL_GATHER_V] = "all_gather_v",
    [COLL_GATHER_V] = "gather_v",
    [COLL_SCATTER_V] = "scatter_v",
    [COLL_REDUCE_SCATTER_V] = "reduce_scatter_v",
    [COLL_ALL_TO_ALL_V] = "all_to_all_v",
    [COLL_SCAN] = "scan",
    [COLL_EXSCAN] = "exscan",
    [COLL_ALL_TO_ALL_W] = "all_to_all_w",
    [COLL_NEIGHBOR] = "neighbor_all_gather",
    [COLL_LAYOUT] = "layout",
    [COLL_PERSISTENT] = "persistent",
    [COLL_BARRIER] = "barrier",
    [COLL_SEND] = "send",
    [COLL_BATCH] = "batch",
    [COLL_RECV_ANY] = "recv_any",
    [COLL_PROBE] = "probe",
    [COLL_SYNCHRONOUS] = "synchronous",
    [COLL_COALESCED] = "coalesced",
    [COLL_ASYNC] = "async",
    [COLL_MONITORED_BARRIER] = "monitored_barrier",
    [COLL_EXCHANGE] = "exchange",
    [COLL_SPLIT] = "comm_split",
    [COLL_NEW_GROUP] = "comm_new_group",
    [COLL_SPLIT_ASYNC] = "split_by_handle",
    [COLL_EXCHANGE_ASYNC] = "exchange_by_handle",
    [COLL_DUP] = "comm_dup",
    [COLL_FINALIZE] = "finalize",
};

int coll_op_of(const char *name)
{
    for (int i = 0; i < COLL_OPS; i++) {
        if (strcmp(coll_op_names[i], name) == 0)
            return i;
    }
    return -1;
}

struct coll_buffers coll_buffers_new(size_t count, int ranks)
{
    struct coll_buffers b = {.count = count};
    b.x = calloc(count, sizeof(*b.x));
    b.y = calloc(2 * (size_t)ranks * count, sizeof(*b.y));
    if (!b.x || !b.y)
        coll_buffers_free(&b);
    return b;
}

void coll_buffers_free(struct coll_buffers *b)
{
    free(b->x);
    free(b->y);
    b->x = b->y = NULL;
}

/* ------------------------------------------------------------------------------------- messages */

static int to_the_right(dlcoll_comm *c, const struct coll_buffers *b, size_t count, uint32_t flags)
{
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    opts.flags = flags;
    int rank = dlcoll_rank(c), size = dlcoll_size(c);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    int r = rank % 2 ? 0 : dlcoll_send(b->x, count, DLCOLL_I32, right, c, &opts, NULL);
    if (r == 0)
        r = dlcoll_recv(b->y, count, DLCOLL_I32, left, c, NULL, NULL);
    if (r == 0 && rank % 2)
        r = dlcoll_send(b->x, count, DLCOLL_I32, right, c, &opts, NULL);
    return r;
}

static int to_the_right_at_once(dlcoll_comm *c, const struct coll_buffers *b)
{
    int rank = dlcoll_rank(c), size = dlcoll_size(c);
    const dlcoll_p2p list[2] = {
        {.send = b->x, .count = b->count, .dtype = DLCOLL_I32, .peer = (rank + 1) % size},
        {.recv = b->y, .count = b->count, .dtype = DLCOLL_I32, .peer = (rank + size - 1) % size}};
    return dlcoll_batch(list, 2, c, NULL, NULL);
}

/* Claims a message, or finds it and receives that one. */
static int probed(dlcoll_comm *c, int32_t *x, bool claims)
{
    dlcoll_message m = DLCOLL_MESSAGE_INIT;
    dlcoll_opts any = DLCOLL_OPTS_INIT;
    any.tag = DLCOLL_ANY_TAG;
    int r = claims ? dlcoll_mprobe(DLCOLL_ANY_SOURCE, &m, c, &any)
                   : dlcoll_probe(DLCOLL_ANY_SOURCE, &m, c, &any);
    if (r == 0)
        r = claims ? dlcoll_mrecv(x, 100, DLCOLL_I32, &m, c, NULL, NULL)
                   : dlcoll_recv_upto(x, 200, DLCOLL_I32, m.source, NULL, c, &any, NULL);
    return r;
}

/* Everybody sends to rank 0 and waits for its word. */
static int to_anybody(dlcoll_comm *c, int32_t *x, bool probes)
{
    int r = 0;
    for (int i = 1; i < dlcoll_size(c) && dlcoll_rank(c) == 0 && r == 0; i++)
        r = probes ? probed(c, x, i % 2) : dlcoll_recv_any(x, 100, DLCOLL_I32, NULL, c, NULL, NULL);
    for (int i = 1; i < dlcoll_size(c) && dlcoll_rank(c) == 0 && r == 0; i++)
        r = dlcoll_send(x, 1, DLCOLL_I32, i, c, NULL, NULL);
    if (dlcoll_rank(c) != 0)
        r = dlcoll_send(x, 100, DLCOLL_I32, 0, c, NULL, NULL);
    if (dlcoll_rank(c) != 0 && r == 0)
        r = dlcoll_recv(x, 1, DLCOLL_I32, 0, c, NULL, NULL);
    return r;
}

/* --------------------------------------------------------------------------------- other things */

static int by_handle(dlcoll_comm *c, const struct coll_buffers *b)
{
    dlcoll_work *w[3] = {NULL};
    int r = 0;
    for (int i = 0; i < 3 && r == 0; i++)
        r = dlcoll_all_reduce(b->x, b->x, b->count, DLCOLL_I32, DLCOLL_MAX, c, NULL, &w[i]);
    if (r == 0)
        r = dlcoll_wait_all(w, 3, -1);
    for (int i = 0; i < 3; i++)
        dlcoll_work_free(w[i]);
    return r;
}

static int exchange(dlcoll_comm *c, const struct coll_buffers *b)
{
    dlcoll_bytes *all = NULL;
    int r = dlcoll_exchange_bytes(b->x, b->count / (size_t)(dlcoll_rank(c) + 1), &all, c, NULL);
    dlcoll_bytes_free(all);
    return r;
}

static int leave_group(dlcoll_comm *group)
{
    int r = group ? dlcoll_finalize(group) : 0;
    dlcoll_destroy(group);
    return r;
}

/* A rank that is gone shows in the next call: others may be in that by now, in another group. */
static int split(dlcoll_comm *c, int turn)
{
    dlcoll_comm *group = NULL;
    int r = dlcoll_comm_split(c, (dlcoll_rank(c) + turn) % 2, 0, &group, NULL);
    leave_group(group);
    return r;
}

static int split_by_handle(dlcoll_comm *c, int turn)
{
    dlcoll_comm *group = NULL;
    dlcoll_work *work;
    int r = dlcoll_comm_split_async(c, (dlcoll_rank(c) + turn) % 2, 0, &group, NULL, &work);
    if (r == 0)
        r = dlcoll_wait(work);
    dlcoll_work_free(work);
    leave_group(group);
    return r;
}

static int exchange_by_handle(dlcoll_comm *c, const struct coll_buffers *b)
{
    dlcoll_bytes *all = NULL;
    dlcoll_work *work;
    int r = dlcoll_exchange_bytes_async(b->x, b->count, &all, c, NULL, &work);
    if (r == 0)
        r = dlcoll_wait(work);
    dlcoll_work_free(work);
    dlcoll_bytes_free(all);
    return r;
}

/* Makes a group, as new_group() does. */
static int dup_by_handle(dlcoll_comm *c)
{
    dlcoll_comm *group = NULL;
    dlcoll_work *work;
    int r = dlcoll_comm_dup(c, &group, NULL, &work);
    if (r == 0)
        r = dlcoll_wait(work);
    dlcoll_work_free(work);
    return leave_group(group) < 0 ? dlcoll_barrier(c, NULL, NULL) : r;
}

/* Over TCP making a group comes to nothing: a rank that is gone shows in the group's first
 * operation, and then in the next one of its parent. */
static int new_group(dlcoll_comm *c, int turn)
{
    dlcoll_comm *group = NULL;
    int ranks[COLL_MOST_RANKS], n = dlcoll_size(c);
    for (int i = 0; i < n; i++)
        ranks[i] = (i + turn) % n;
    int r = dlcoll_comm_new_group(c, ranks, n, &group, NULL);
    return leave_group(group) < 0 ? dlcoll_barrier(c, NULL, NULL) : r;
}

/* ------------------------------------------------------------------------------------- in parts */

static int with_counts(enum coll_op op, dlcoll_comm *c, const struct coll_buffers *b, int root)
{
    size_t counts[COLL_MOST_RANKS], even[COLL_MOST_RANKS], n = b->count;
    size_t size = (size_t)dlcoll_size(c);
    for (size_t i = 0; i < size; i++) {
        counts[i] = n / (i + 1);
        even[i] = n;
    }
    size_t own = counts[dlcoll_rank(c)];
    switch (op) {
    case COLL_ALL_GATHER_V:
        return dlcoll_all_gather_v(b->x, b->y, counts, NULL, DLCOLL_I32, c, NULL, NULL);
    case COLL_GATHER_V:
        return dlcoll_gather_v(b->x, own, b->y, counts, NULL, DLCOLL_I32, root, c, NULL, NULL);
    case COLL_SCATTER_V:
        return dlcoll_scatter_v(b->y, counts, NULL, b->x, own, DLCOLL_I32, root, c, NULL, NULL);
    case COLL_REDUCE_SCATTER_V:
        return dlcoll_reduce_scatter_v(b->y, b->x, counts, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    default:
        return dlcoll_all_to_all_v(b->y, even, NULL, b->y + size * n, even, NULL, DLCOLL_I32, c,
                                   NULL, NULL);
    }
}

/* The buffers are in place. */
static int with_types(dlcoll_comm *c, const struct coll_buffers *b)
{
    size_t counts[COLL_MOST_RANKS], size = (size_t)dlcoll_size(c);
    dlcoll_dtype types[COLL_MOST_RANKS];
    for (size_t i = 0; i < size; i++) {
        bool even = (i + (size_t)dlcoll_rank(c)) % 2 == 0;
        counts[i] = even ? b->count : 4 * b->count;
        types[i] = even ? DLCOLL_I32 : DLCOLL_U8;
    }
    return dlcoll_all_to_all_w(b->y, counts, NULL, types, b->y, counts, NULL, types, c, NULL, NULL);
}

/* The graph of every rank with all others, and with itself twice. */
static int with_neighbours(dlcoll_comm *c, const struct coll_buffers *b)
{
    int all[COLL_MOST_RANKS + 1], n = dlcoll_size(c);
    dlcoll_graph graph = DLCOLL_GRAPH_INIT;
    for (int i = 0; i < n; i++)
        all[i] = i;
    all[n] = dlcoll_rank(c);
    graph.sources = graph.dests = all;
    graph.nsources = graph.ndests = (size_t)n + 1;
    return dlcoll_neighbor_all_gather(b->x, b->y, b->count, DLCOLL_I32, &graph, c, NULL, NULL);
}

static int with_layouts(dlcoll_comm *c, const struct coll_buffers *b)
{
    dlcoll_layout every_second = DLCOLL_LAYOUT_INIT;
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    every_second.blocks = b->count;
    every_second.length = 1;
    every_second.stride = 2;
    opts.recv_layout = &every_second;
    return dlcoll_all_reduce(b->x, b->y, b->count, DLCOLL_I32, DLCOLL_MIN, c, &opts, NULL);
}

static int started(dlcoll_comm *c, const struct coll_buffers *b)
{
    dlcoll_opts opts = DLCOLL_OPTS_INIT;
    dlcoll_work *work;
    opts.flags = DLCOLL_PERSISTENT;
    int r = dlcoll_all_reduce(b->x, b->y, b->count, DLCOLL_I32, DLCOLL_BOR, c, &opts, &work);
    if (r == 0)
        r = dlcoll_start(work);
    if (r == 0)
        r = dlcoll_wait(work);
    dlcoll_work_free(work);
    return r;
}

static int with_messages(enum coll_op op, dlcoll_comm *c, const struct coll_buffers *b)
{
    return op == COLL_SEND          ? to_the_right(c, b, b->count, 0)
           : op == COLL_SYNCHRONOUS ? to_the_right(c, b, 2, DLCOLL_SYNCHRONOUS)
           : op == COLL_BATCH       ? to_the_right_at_once(c, b)
                                    : to_anybody(c, b->x, op == COLL_PROBE);
}

int coll_op_call(enum coll_op op, dlcoll_comm *c, const struct coll_buffers *b, int turn)
{
    size_t n = b->count;
    int32_t *x = b->x, *y = b->y;
    int root = turn % dlcoll_size(c);
    const dlcoll_span spans[3] = {{x, x, n}, {y, y, 3}, {y + 3, y + 3, 5}};
    switch (op) {
    case COLL_ALL_REDUCE:
        return dlcoll_all_reduce(x, x, n, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case COLL_BROADCAST:
        return dlcoll_broadcast(x, x, n, DLCOLL_I32, root, c, NULL, NULL);
    case COLL_REDUCE:
        return dlcoll_reduce(x, x, n, DLCOLL_I32, DLCOLL_MAX, root, c, NULL, NULL);
    case COLL_ALL_GATHER:
        return dlcoll_all_gather(x, y, n, DLCOLL_I32, c, NULL, NULL);
    case COLL_GATHER:
        return dlcoll_gather(x, y, n, DLCOLL_I32, root, c, NULL, NULL);
    case COLL_SCATTER:
        return dlcoll_scatter(y, x, n, DLCOLL_I32, root, c, NULL, NULL);
    case COLL_REDUCE_SCATTER:
        return dlcoll_reduce_scatter(y, x, n, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case COLL_ALL_TO_ALL:
        return dlcoll_all_to_all(y, y, n, DLCOLL_I32, c, NULL, NULL);
    case COLL_ALL_GATHER_V:
    case COLL_GATHER_V:
    case COLL_SCATTER_V:
    case COLL_REDUCE_SCATTER_V:
    case COLL_ALL_TO_ALL_V:
        return with_counts(op, c, b, root);
    case COLL_ALL_TO_ALL_W:
        return with_types(c, b);
    case COLL_NEIGHBOR:
        return with_neighbours(c, b);
    case COLL_LAYOUT:
        return with_layouts(c, b);
    case COLL_PERSISTENT:
        return started(c, b);
    case COLL_SCAN:
        return dlcoll_scan(x, y, n, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case COLL_EXSCAN:
        return dlcoll_exscan(x, y, n, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case COLL_BARRIER:
        return dlcoll_barrier(c, NULL, NULL);
    case COLL_SEND:
    case COLL_BATCH:
    case COLL_RECV_ANY:
    case COLL_PROBE:
    case COLL_SYNCHRONOUS:
        return with_messages(op, c, b);
    case COLL_COALESCED:
        return dlcoll_all_reduce_coalesced(spans, 3, DLCOLL_I32, DLCOLL_MAX, c, NULL, NULL);
    case COLL_ASYNC:
        return by_handle(c, b);
    case COLL_MONITORED_BARRIER:
        return dlcoll_monitored_barrier(c, NULL, NULL, NULL);
    case COLL_EXCHANGE:
        return exchange(c, b);
    case COLL_SPLIT:
        return split(c, turn);
    case COLL_NEW_GROUP:
        return new_group(c, turn);
    case COLL_SPLIT_ASYNC:
        return split_by_handle(c, turn);
    case COLL_EXCHANGE_ASYNC:
        return exchange_by_handle(c, b);
    case COLL_DUP:
        return dup_by_handle(c);
    default:
        return dlcoll_finalize(c);
    }
}

/* --------------------------------------------------------------------------------- being inside */

struct watch {
    dlcoll_comm *comm;
    const char *name;
    void (*tell)(void *);
    void *arg;
};

static void *watch(void *arg)
{
    struct watch w = *(struct watch *)arg;
    dlcoll_record r;
    free(arg);
    while (dlcoll_recent(w.comm, -1, &r, 1) != 1 || strcmp(r.op, w.name) != 0 || r.end_ns)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    w.tell(w.arg);
    return NULL;
}

pthread_t coll_when_inside(dlcoll_comm *comm, enum coll_op op, void (*tell)(void *), void *arg)
{
    pthread_t thread;
    struct watch *w = malloc(sizeof(*w));
    if (!w)
        abort();
    *w = (struct watch){comm, coll_op_names[op], tell, arg};
    if (pthread_create(&thread, NULL, watch, w) != 0)
        abort();
    return thread;
}
