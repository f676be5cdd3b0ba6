/* cross_ops.c: one operation of each kind, and what must come of it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm/algo_select.h"
#include "collectives/comm/comm.h"
#include "collectives/net/net.h"
#include "tests/lib/cross.h"
#include "tests/lib/thread_ranks.h"

enum { GUARD = 64, PAINT = 0xa5, SPANS = 4 };

/* Part of a buffer, with bytes before and behind it that nobody may touch. */
struct side {
    uint8_t *p;
    size_t len;
    bool lies; /* in the other one */
};

struct trial {
    struct cross *x;
    const struct cross_case *c;
    size_t size, n, me;
    size_t phase;
    bool root;
    struct side send, recv;
};

/* -------------------------------------------------------------------------------------- buffers */

static void place(struct trial *t, struct side *s, int which, size_t len)
{
    bool off = t->c->shift == 1 || t->c->shift == 2 + which;
    s->p = t->x->buffers[which].p + GUARD + (off ? 1 + 2 * which : 0);
    s->len = len;
    memset(s->p - GUARD, PAINT, len + 2 * GUARD);
}

/* Room for `in` and `out` elements; in place, the shorter one lies at `at` of the longer. */
static void begin(struct trial *t, size_t in, size_t out, size_t at)
{
    t->send = t->recv = (struct side){0};
    t->send.lies = t->c->in_place && in <= out;
    t->recv.lies = t->c->in_place && in > out;
    if (!t->send.lies)
        place(t, &t->send, 0, in * t->size);
    if (!t->recv.lies)
        place(t, &t->recv, 1, out * t->size);
    if (t->send.lies)
        t->send.p = t->recv.p + at * t->size;
    if (t->recv.lies)
        t->recv.p = t->send.p + at * t->size;
    dlcoll_comm *comm = t->x->comm;
    comm->algo = NULL;
    comm->net->algo = NULL;
}

static void put(struct trial *t, uint8_t *at, size_t rank, size_t from, size_t count)
{
    cross_put(&t->x->v, t->x->v.in[rank], at, t->phase + from, count);
}

/* Checks these elements and then paints over them: in the end no other bytes may have changed. */
static void take(struct trial *t, const char *what, uint8_t *at, const uint8_t *table, size_t from,
                 size_t count)
{
    size_t i = cross_differs(&t->x->v, table, at, t->phase + from, count);
    if (i < count)
        cross_complain(t->x, t->c, "%s: element %zu of %zu is wrong", what, i, count);
    memset(at, PAINT, count * t->size);
}

static void take_input(struct trial *t, size_t at, size_t from, size_t count)
{
    take(t, "send has changed", t->send.p + at * t->size, t->x->v.in[t->me], from, count);
}

static void take_from(struct trial *t, size_t at, size_t rank, size_t from, size_t count)
{
    take(t, "recv", t->recv.p + at * t->size, t->x->v.in[rank], from, count);
}

static void take_reduced(struct trial *t, size_t from, size_t count)
{
    take(t, "recv", t->recv.p, t->x->v.out, from, count);
}

static void end(struct trial *t)
{
    for (int i = 0; i < 2; i++) {
        const struct side *s = i ? &t->recv : &t->send;
        const uint8_t *p = s->p - GUARD;
        size_t len = s->len + 2 * GUARD;
        if (!s->lies && (p[0] != PAINT || memcmp(p, p + 1, len - 1) != 0))
            cross_complain(t->x, t->c, "%s: written where nobody may", i ? "recv" : "send");
    }
    cross_check_algo(t->x, t->c);
}

/* The operation. */
static void must(struct trial *t, int code)
{
    if (code != 0)
        cross_complain(t->x, t->c, "%d: %s", code, thread_error(t->x->comm));
}

#define COMM t->x->comm, NULL, NULL
#define TYPE t->x->v.dtype

/* ----------------------------------------------------------------------------------- reductions */

static void all_reduce(struct trial *t)
{
    size_t c = t->c->count;
    begin(t, c, c, 0);
    put(t, t->send.p, t->me, 0, c);
    must(t, dlcoll_all_reduce(t->send.p, t->recv.p, c, TYPE, t->x->op, COMM));
    if (!t->c->in_place)
        take_input(t, 0, 0, c);
    take_reduced(t, 0, c);
    end(t);
}

static void reduce(struct trial *t)
{
    size_t c = t->c->count;
    begin(t, c, t->root || !t->c->in_place ? c : 0, 0);
    put(t, t->send.p, t->me, 0, c);
    void *recv = t->root || t->phase % 2 ? t->recv.p : NULL; /* nobody looks at another's */
    must(t, dlcoll_reduce(t->send.p, recv, c, TYPE, t->x->op, t->c->root, COMM));
    if (!t->root || !t->c->in_place)
        take_input(t, 0, 0, c);
    if (t->root)
        take_reduced(t, 0, c);
    end(t);
}

/* send has parts one after the other, of which mine begins at `at`. */
static void check_scattered(struct trial *t, size_t at, size_t own, size_t total)
{
    take_input(t, 0, 0, at);
    if (!t->c->in_place)
        take_input(t, at, at, own);
    take_input(t, at + own, at + own, total - at - own);
    take_reduced(t, at, own);
    end(t);
}

static void reduce_scatter(struct trial *t)
{
    size_t c = t->c->count, at = t->me * c;
    begin(t, t->n * c, c, at);
    put(t, t->send.p, t->me, 0, t->n * c);
    must(t, dlcoll_reduce_scatter(t->send.p, t->recv.p, c, TYPE, t->x->op, COMM));
    check_scattered(t, at, c, t->n * c);
}

static void coalesced(struct trial *t)
{
    size_t c = t->c->count, counts[SPANS] = {c, c / 2, 0, c + (c > 0)}, at = 0;
    dlcoll_span list[SPANS];
    begin(t, 3 * c + 4, 3 * c + 4, 0);
    for (int i = 0; i < SPANS; at += counts[i++] + 1) {
        list[i] = (dlcoll_span){t->send.p + at * t->size, t->recv.p + at * t->size, counts[i]};
        put(t, t->send.p + at * t->size, t->me, at, counts[i]);
    }
    must(t, dlcoll_all_reduce_coalesced(list, SPANS, TYPE, t->x->op, COMM));
    for (int i = 0; i < SPANS; i++) {
        size_t from = (size_t)((uint8_t *)list[i].recv - t->recv.p) / t->size;
        if (!t->c->in_place)
            take_input(t, from, from, counts[i]);
        take(t, "recv", list[i].recv, t->x->v.out, from, counts[i]);
    }
    end(t);
}

/* ------------------------------------------------------------------------------------ movements */

static void broadcast(struct trial *t)
{
    size_t c = t->c->count, root = (size_t)t->c->root;
    begin(t, t->root ? c : 0, c, 0);
    if (t->root)
        put(t, t->send.p, t->me, 0, c);
    const void *send = t->root || t->phase % 2 ? t->send.p : NULL;
    must(t, dlcoll_broadcast(send, t->recv.p, c, TYPE, t->c->root, COMM));
    if (t->root && !t->c->in_place)
        take_input(t, 0, 0, c);
    take_from(t, 0, root, 0, c);
    end(t);
}

static void all_gather(struct trial *t)
{
    size_t c = t->c->count;
    begin(t, c, t->n * c, t->me * c);
    put(t, t->send.p, t->me, 0, c);
    must(t, dlcoll_all_gather(t->send.p, t->recv.p, c, TYPE, COMM));
    if (!t->c->in_place)
        take_input(t, 0, 0, c);
    for (size_t i = 0; i < t->n; i++)
        take_from(t, i * c, i, 0, c);
    end(t);
}

static void gather(struct trial *t)
{
    size_t c = t->c->count;
    begin(t, c, t->root ? t->n * c : 0, t->root ? t->me * c : 0);
    put(t, t->send.p, t->me, 0, c);
    void *recv = t->root || t->phase % 2 ? t->recv.p : NULL;
    must(t, dlcoll_gather(t->send.p, recv, c, TYPE, t->c->root, COMM));
    if (!t->root || !t->c->in_place)
        take_input(t, 0, 0, c);
    for (size_t i = 0; i < t->n && t->root; i++)
        take_from(t, i * c, i, 0, c);
    end(t);
}

static void scatter(struct trial *t)
{
    size_t c = t->c->count, at = t->me * c, in = t->root ? t->n * c : 0;
    begin(t, in, c, t->root ? at : 0);
    put(t, t->send.p, t->me, 0, in);
    const void *send = t->root || t->phase % 2 ? t->send.p : NULL;
    must(t, dlcoll_scatter(send, t->recv.p, c, TYPE, t->c->root, COMM));
    if (t->root) {
        take_input(t, 0, 0, at);
        if (!t->c->in_place)
            take_input(t, at, at, c);
        take_input(t, at + c, at + c, in - at - c);
    }
    take_from(t, 0, (size_t)t->c->root, at, c);
    end(t);
}

static void all_to_all(struct trial *t)
{
    size_t c = t->c->count;
    begin(t, t->n * c, t->n * c, 0);
    put(t, t->send.p, t->me, 0, t->n * c);
    must(t, dlcoll_all_to_all(t->send.p, t->recv.p, c, TYPE, COMM));
    if (!t->c->in_place)
        take_input(t, 0, 0, t->n * c);
    for (size_t i = 0; i < t->n; i++)
        take_from(t, i * c, i, t->me * c, c);
    end(t);
}

/* Sends to the next rank, receives from the one before. */
static void batch(struct trial *t)
{
    size_t c = t->c->count, before = (t->me + t->n - 1) % t->n;
    begin(t, c, c, 0);
    put(t, t->send.p, t->me, 0, c);
    dlcoll_p2p list[2] = {
        {.recv = t->recv.p, .count = c, .dtype = TYPE, .peer = (int32_t)before, .tag = 3},
        {.send = t->send.p, .count = c, .dtype = TYPE, .tag = 3}};
    list[1].peer = (int32_t)((t->me + 1) % t->n);
    must(t, dlcoll_batch(list, 2, COMM));
    take_input(t, 0, 0, c);
    take_from(t, 0, before, 0, c);
    end(t);
}

/* --------------------------------------------------------------------------------- uneven parts */

/* Parts of a buffer: one after the other, or in reverse and apart from each other. */
struct parts {
    size_t counts[CROSS_RANKS], at[CROSS_RANKS], end;
    bool apart;
};

static const size_t *displs(const struct parts *p)
{
    return p->apart ? p->at : NULL;
}

static void lay_out(struct parts *p, size_t n, bool apart)
{
    p->end = 0;
    for (size_t k = 0; k < n; k++) {
        size_t i = apart ? n - 1 - k : k;
        p->at[i] = p->end + (apart && k);
        p->end = p->at[i] + p->counts[i];
    }
    p->apart = apart;
}

static struct parts parts_of(const struct trial *t, bool apart)
{
    struct parts p;
    for (size_t i = 0; i < t->n; i++)
        p.counts[i] = (3 * i + 1) % 4 * t->c->count;
    lay_out(&p, t->n, apart);
    return p;
}

static bool is_apart(const struct trial *t)
{
    return t->x->done / 3 % 2;
}

static void gathers_v(struct trial *t)
{
    struct parts p = parts_of(t, is_apart(t));
    bool all = t->c->kind == CALL_ALL_GATHER_V, gets = all || t->root;
    size_t own = p.counts[t->me];
    begin(t, own, gets ? p.end : 0, gets ? p.at[t->me] : 0);
    put(t, t->send.p, t->me, 0, own);
    if (all)
        must(t, dlcoll_all_gather_v(t->send.p, t->recv.p, p.counts, displs(&p), TYPE, COMM));
    else
        must(t, dlcoll_gather_v(t->send.p, own, t->recv.p, gets ? p.counts : NULL, displs(&p), TYPE,
                                t->c->root, COMM));
    if (!gets || !t->c->in_place)
        take_input(t, 0, 0, own);
    for (size_t i = 0; i < t->n && gets; i++)
        take_from(t, p.at[i], i, 0, p.counts[i]);
    end(t);
}

static void scatter_v(struct trial *t)
{
    struct parts p = parts_of(t, is_apart(t));
    size_t own = p.counts[t->me];
    begin(t, t->root ? p.end : 0, own, t->root ? p.at[t->me] : 0);
    for (size_t i = 0; i < t->n && t->root; i++)
        put(t, t->send.p + p.at[i] * t->size, t->me, p.at[i], p.counts[i]);
    must(t, dlcoll_scatter_v(t->send.p, t->root ? p.counts : NULL, displs(&p), t->recv.p, own, TYPE,
                             t->c->root, COMM));
    for (size_t i = 0; i < t->n && t->root; i++) {
        if (i != t->me || !t->c->in_place)
            take_input(t, p.at[i], p.at[i], p.counts[i]);
    }
    take_from(t, 0, (size_t)t->c->root, p.at[t->me], own);
    end(t);
}

static void reduce_scatter_v(struct trial *t)
{
    struct parts p = parts_of(t, false);
    size_t own = p.counts[t->me];
    begin(t, p.end, own, p.at[t->me]);
    put(t, t->send.p, t->me, 0, p.end);
    must(t, dlcoll_reduce_scatter_v(t->send.p, t->recv.p, p.counts, TYPE, t->x->op, COMM));
    check_scattered(t, p.at[t->me], own, p.end);
}

/* The counts that a rank sends to the others, or receives from them. */
static struct parts row(const struct trial *t, size_t rank, bool gets)
{
    struct parts p;
    for (size_t i = 0; i < t->n; i++)
        p.counts[i] = (gets ? i * 2 + rank * 3 + 1 : rank * 2 + i * 3 + 1) % 4 * t->c->count;
    lay_out(&p, t->n, is_apart(t) == gets);
    return p;
}

static void all_to_all_v(struct trial *t)
{
    struct parts give = row(t, t->me, false), get = row(t, t->me, true);
    begin(t, give.end, get.end, 0);
    for (size_t i = 0; i < t->n; i++)
        put(t, t->send.p + give.at[i] * t->size, t->me, give.at[i], give.counts[i]);
    must(t, dlcoll_all_to_all_v(t->send.p, give.counts, displs(&give), t->recv.p, get.counts,
                                displs(&get), TYPE, COMM));
    for (size_t i = 0; i < t->n; i++) {
        struct parts theirs = row(t, i, false);
        take_input(t, give.at[i], give.at[i], give.counts[i]);
        take_from(t, get.at[i], i, theirs.at[t->me], get.counts[i]);
    }
    end(t);
}

/* ------------------------------------------------------------------------------------------ all */

size_t cross_need(const struct cross *x, const struct cross_case *c)
{
    size_t n = (size_t)x->n, times = n;
    switch (c->kind) {
    case CALL_ALL_REDUCE:
    case CALL_REDUCE:
    case CALL_BROADCAST:
    case CALL_BATCH:
        times = 1;
        break;
    case CALL_ALL_REDUCE_COALESCED:
        times = 3;
        break;
    case CALL_ALL_GATHER_V:
    case CALL_GATHER_V:
    case CALL_SCATTER_V:
    case CALL_REDUCE_SCATTER_V:
    case CALL_ALL_TO_ALL_V:
        times = 3 * n;
        break;
    default:
        break;
    }
    return (times * c->count + n + 4) * x->v.size + 2 * GUARD + 8;
}

bool cross_kind_places(enum call_kind kind)
{
    return kind != CALL_ALL_TO_ALL_V && kind != CALL_BATCH && kind != CALL_BARRIER;
}

void cross_complain(const struct cross *x, const struct cross_case *c, const char *fmt, ...)
{
    static const char *const transports[] = {"TCP", "memory", "hierarchy"};
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr,
            "%s, way %d: rank %d of %d: %s of %zu of type %d (%s), %s, shift %d, root %d, "
            "operation %llu (ran: %s): %s\n",
            transports[x->way->transport], x->way->index, x->me, x->n, call_name(c->kind), c->count,
            x->v.dtype, cross_op_name(c->op), c->in_place ? "in place" : "out of place", c->shift,
            c->root, (unsigned long long)x->done, x->comm->algo ? x->comm->algo : "nothing", text);
    _Exit(1);
}

void cross_do(struct cross *x, const struct cross_case *c)
{
    static void (*const by_kind[CALL_KINDS])(struct trial *) = {
        [CALL_ALL_REDUCE] = all_reduce,
        [CALL_REDUCE] = reduce,
        [CALL_REDUCE_SCATTER] = reduce_scatter,
        [CALL_REDUCE_SCATTER_V] = reduce_scatter_v,
        [CALL_ALL_REDUCE_COALESCED] = coalesced,
        [CALL_BROADCAST] = broadcast,
        [CALL_ALL_GATHER] = all_gather,
        [CALL_ALL_GATHER_V] = gathers_v,
        [CALL_GATHER] = gather,
        [CALL_GATHER_V] = gathers_v,
        [CALL_SCATTER] = scatter,
        [CALL_SCATTER_V] = scatter_v,
        [CALL_ALL_TO_ALL] = all_to_all,
        [CALL_ALL_TO_ALL_V] = all_to_all_v,
        [CALL_BATCH] = batch,
    };
    struct trial t = {.x = x,
                      .c = c,
                      .size = x->v.size,
                      .n = (size_t)x->n,
                      .me = (size_t)x->me,
                      .phase = (size_t)(x->done * 37 % CROSS_PERIOD),
                      .root = x->me == c->root};
    if (c->kind == CALL_BARRIER) {
        x->comm->algo = NULL;
        x->comm->net->algo = NULL;
        must(&t, dlcoll_barrier(x->comm, NULL, NULL));
        cross_check_algo(x, c);
    } else {
        by_kind[c->kind](&t);
    }
    x->done++;
}
