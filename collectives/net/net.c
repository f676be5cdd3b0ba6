#include "collectives/net/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm/algo_select.h"
#include "collectives/comm/comm.h"
#include "collectives/net/algo.h"
#include "collectives/comm/provider.h"
#include "collectives/base/recorder.h"
#include "core/debug_assert.h"

static bool is_stopped(const void *comm)
{
    return comm_is_stopped(comm);
}

/* Whether the peer has exited without connecting. */
static bool is_lost(const void *arg, int stream)
{
    const dlcoll_comm *c = arg;
    return tcp_open_fd(c->net->transport, stream) < 0 && comm_has_exited(c, stream % c->size);
}

/* Sends the current operation to these ranks; each compares it with its own operation of that
 * number. */
static void net_ask(const void *comm, const int *ranks, int n)
{
    dlcoll_comm *c = (dlcoll_comm *)comm;
    struct ask a = {.seq = c->net->seq};
    if (!a.seq || !recorder_find(c->job->recorder.line, c->id, &a.seq, &a.sig) ||
        a.seq != c->net->seq)
        return;
    struct tcp_opts o = comm_tcp_opts(c, CHANNEL_COLL);
    tcp_send_asks(&o, &a, ranks, n);
}

int net_new(struct net **out, struct dlcoll_comm *comm, struct err *e)
{
    struct tcp_opts o = comm_tcp_opts(comm, CHANNEL_COLL);
    struct net *n = calloc(1, sizeof(*n));
    if (!n)
        return err_set(e, -ENOMEM, "no memory");
    int r = tcp_new(&n->transport, &o, e);
    if (r < 0) {
        free(n);
        return r;
    }
    schedule_init(&n->schedule);
    engine_init(&n->engine, n->transport, comm->rank, comm->policy);
    n->engine.stopped = is_stopped;
    n->engine.stopped_arg = comm;
    n->engine.lost = is_lost;
    n->engine.ask = net_ask;
    *out = n;
    return 0;
}

void net_free(struct net *n)
{
    if (!n)
        return;
    engine_fini(&n->engine);
    schedule_fini(&n->schedule);
    n->transport->ops->free(n->transport);
    free(n->scratch);
    free(n);
}

/* -------------------------------------------------------------------------------------- running */

static struct coll net_describe(const struct coll_call *c)
{
    return (struct coll){.kind = algo_select_plain_kind(c->kind),
                         .rank = c->ranks.me,
                         .size = c->ranks.size,
                         .root = c->root,
                         .count = c->count,
                         .elem = c->elem,
                         .ordered = c->reduce.ordered,
                         .uneven = algo_select_plain_kind(c->kind) != c->kind,
                         .in_place = c->send == c->recv,
                         .send_parts = c->send_parts,
                         .recv_parts = c->recv_parts};
}

static const struct algo *net_find_algo(enum call_kind kind, const char *name)
{
    for (size_t i = 0; i < g_nalgos; i++) {
        if (g_algos[i].kind == kind && strcmp(g_algos[i].name, name) == 0)
            return &g_algos[i];
    }
    return NULL;
}

static const struct algo *choose(const struct coll_call *c, const struct coll *coll)
{
    struct algo_key key = comm_algo_key(c);
    const struct algo_rule *r;
    for (size_t at = 0; (r = algo_select_next(&c->comm->job->algo_select, &key, "net", &at));) {
        const struct algo *a = net_find_algo(coll->kind, r->algo);
        if (a && algo_allows(a, coll))
            return a;
    }
    return algo_any(coll);
}

const char *net_algo(const struct coll_call *c)
{
    struct coll coll = net_describe(c);
    return choose(c, &coll)->name;
}

/* The number of elements of this rank's input. */
static size_t send_count(const struct coll_call *c)
{
    size_t n = c->count;
    if (c->kind == CALL_REDUCE_SCATTER)
        n *= (size_t)c->ranks.size;
    for (int i = 0; c->kind == CALL_REDUCE_SCATTER_V && i < c->ranks.size; i++)
        n = i ? n + c->send_parts.counts[i] : c->send_parts.counts[0];
    return n;
}

/* The input, scaled by the reduction's factor; NULL: out of memory. */
static const void *scaled(struct net *n, const struct coll_call *c)
{
    size_t count = send_count(c), bytes = count * c->elem;
    uint8_t *to = c->kind == CALL_ALL_REDUCE ? c->recv : n->scratch;
    if (c->kind != CALL_ALL_REDUCE && bytes > n->cap_scratch) {
        if (!(to = malloc(bytes)))
            return NULL;
        free(n->scratch);
        n->scratch = to;
        n->cap_scratch = bytes;
    }
    reduce_pre(&c->reduce, to, c->send, count);
    return to;
}

static int fail(struct coll_call *c, const struct engine *en, int r)
{
    c->failure->culprit = en->culprit;
    if (r == -EBADMSG)
        c->failure->theirs =
            (struct coll_theirs){.sig = en->theirs.sig,
                                 .seq = en->theirs.seq,
                                 .differed_before = en->theirs.seq == c->seq &&
                                                    en->theirs.history != op_history(c->history),
                                 .last = {en->theirs.last_seq, en->theirs.last}};
    return r;
}

static int net_run(struct coll_call *c)
{
    struct net *n = c->comm->net;
    struct coll coll = net_describe(c);
    bool uneven = c->send_parts.counts || c->recv_parts.counts;
    if (coll.kind != CALL_BARRIER && c->count == 0 && !uneven)
        return 0;
    const struct algo *algo = choose(c, &coll);
    c->algo = algo->name;
    n->algo = algo;
    schedule_reset(&n->schedule);
    algo->build(&n->schedule, &coll);
    debug_assert(n->schedule.oom || schedule_is_valid(&n->schedule, coll.rank, coll.size));
    struct engine_run er = {.schedule = &n->schedule,
                            .in = c->send,
                            .out = c->recv,
                            .reduce = c->reduce.dtype ? &c->reduce : NULL,
                            .elem = c->elem,
                            .frame = {.seq = c->seq,
                                      .history = op_history(c->history),
                                      .part = c->part,
                                      .sig = c->sig,
                                      .last_seq = c->comm->last.seq,
                                      .last = c->comm->last.sig},
                            .map = c->ranks.map};
    int r = engine_start(&n->engine, &er, &c->failure->err);
    if (r == 0 && c->reduce.has_pre && !(n->engine.run.in = scaled(n, c)))
        r = err_set(&c->failure->err, -ENOMEM, "no memory for the operation");
    if (r < 0)
        return r;
    c->may_repeat = false;
    n->seq = c->seq;
    r = engine_wait(&n->engine, c->deadline_ns, &c->failure->err);
    if (r < 0)
        return fail(c, &n->engine, r);
    bool gets = coll.kind == CALL_REDUCE   ? coll.rank == coll.root
                : coll.kind == CALL_EXSCAN ? coll.rank > 0
                                           : true;
    bool alone = coll.kind == CALL_SCAN     ? coll.rank == 0
                 : coll.kind == CALL_EXSCAN ? coll.rank == 1
                                            : coll.size == 1;
    if (alone && c->reduce.dtype)
        reduce_alone(&c->reduce, c->recv, c->count);
    if (c->reduce.has_post && gets)
        reduce_post(&c->reduce, c->recv, c->recv, c->count);
    return 0;
}

static bool net_can(const struct coll_call *c)
{
    (void)c;
    return true;
}

static const char *name_algo(size_t i, enum call_kind *kind)
{
    if (i == g_nalgos)
        return NULL;
    *kind = g_algos[i].kind;
    return g_algos[i].name;
}

const struct coll_provider net_provider = {
    .name = "net", .can = net_can, .run = net_run, .algo = name_algo};
