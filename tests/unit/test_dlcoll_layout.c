/* Buffers in blocks (layouts), all_to_all_v in place, all_to_all_w and neighbour collectives,
 * between 1 to 9 ranks in memory, over TCP and on several nodes, blocking and by handle, at random.
 * The seed is printed; LAYOUT_SEED=n repeats a run. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "core/mem.h"
#include "tests/lib/cross_values.h"
#include "tests/lib/ranks.h"
#include "tests/lib/rounds.h"

enum { MOST = RANKS_MOST, ROOM = 1 << 20 };

static uint64_t draw(int k, int a, int b)
{
    return cross_mix(g_rounds_seed ^ (uint64_t)k << 40 ^ (uint64_t)a << 20 ^ (uint64_t)b);
}

#define HOLDS(fact, k, what) \
    EXPECT(fact, "seed %llu, round %d: %s: %s", (unsigned long long)g_rounds_seed, k, what, why(c))

/* Byte i of block number `edge` that rank `from` sends to `to`. */
static uint8_t sent(int k, int from, int to, size_t edge, size_t i)
{
    return (uint8_t)(draw(k, from * 64 + to, (int)edge) + i * 7);
}

/* Waits for an operation that was perhaps begun with a handle. */
static int finish(int code, dlcoll_work *work)
{
    if (code == 0 && work)
        code = dlcoll_wait(work);
    dlcoll_work_free(work);
    return code;
}

/* -------------------------------------------------------------------------------------- layouts */

enum { LAYOUT_OPS = 9 };

static int call(int op, const void *x, void *y, size_t count, int root, dlcoll_comm *c,
                const dlcoll_opts *o, dlcoll_work **w)
{
    switch (op) {
    case 0:
        return dlcoll_all_reduce(x, y, count, DLCOLL_I32, DLCOLL_SUM, c, o, w);
    case 1:
        return dlcoll_broadcast(x, y, count, DLCOLL_I32, root, c, o, w);
    case 2:
        return dlcoll_reduce(x, y, count, DLCOLL_I32, DLCOLL_SUM, root, c, o, w);
    case 3:
        return dlcoll_all_gather(x, y, count, DLCOLL_I32, c, o, w);
    case 4:
        return dlcoll_gather(x, y, count, DLCOLL_I32, root, c, o, w);
    case 5:
        return dlcoll_scatter(x, y, count, DLCOLL_I32, root, c, o, w);
    case 6:
        return dlcoll_reduce_scatter(x, y, count, DLCOLL_I32, DLCOLL_SUM, c, o, w);
    case 7:
        return dlcoll_all_to_all(x, y, count, DLCOLL_I32, c, o, w);
    default:
        return dlcoll_exscan(x, y, count, DLCOLL_I32, DLCOLL_SUM, c, o, w);
    }
}

struct blocks {
    dlcoll_layout l;
    size_t lengths[40], offsets[40], end;
};

/* `count` elements in some way. */
static void make_layout(struct blocks *b, size_t count, uint64_t d)
{
    *b = (struct blocks){.l = DLCOLL_LAYOUT_INIT};
    if (d % 2) { /* strided: blocks of a divisor of the count */
        size_t length = d / 2 % 3 + 1;
        while (count % length)
            length--;
        b->l.blocks = count / length;
        b->l.length = length;
        b->l.stride = length + d / 8 % 3;
        b->end = b->l.blocks * b->l.stride;
        return;
    }
    size_t left = count, at = 0, n = 0, offsets[40], lengths[40];
    while (left) {
        size_t length = n == 39 ? left : 1 + (size_t)(cross_mix(d + n) % (left < 90 ? left : 90));
        at += (size_t)(cross_mix(d ^ n) % 4);
        offsets[n] = at;
        lengths[n++] = length;
        at += length;
        left -= length;
    }
    for (size_t i = 0; i < n; i++) { /* backwards */
        b->lengths[i] = lengths[n - 1 - i];
        b->offsets[i] = offsets[n - 1 - i];
    }
    b->l.blocks = n;
    b->l.lengths = b->lengths;
    b->l.offsets = b->offsets;
    b->end = at;
}

static size_t place(const struct blocks *b, size_t e)
{
    if (!b->l.lengths)
        return e / b->l.length * b->l.stride + e % b->l.length;
    size_t i = 0;
    for (; e >= b->lengths[i]; i++)
        e -= b->lengths[i];
    return b->offsets[i] + e;
}

/* The operation with layouts gives what it gives without. */
static void layouts(dlcoll_comm *c, int me, int k)
{
    int n = dlcoll_size(c), op = (int)(draw(k, 1, 1) % LAYOUT_OPS);
    int root = (int)(draw(k, 1, 2) % (uint64_t)n);
    size_t count = 1 + draw(k, 1, 3) % (draw(k, 1, 4) % 4 ? 60 : 4000), whole = count * (size_t)n;
    size_t in = op == 5 || op == 6 || op == 7 ? whole : count;
    size_t out = op == 3 || op == 4 || op == 7 ? whole : count;
    int32_t *x = xcalloc(whole, 4), *y = xcalloc(whole, 4);
    int32_t *from = xcalloc(3 * whole + 400, 4), *to = xcalloc(3 * whole + 400, 4);
    struct blocks give, get;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_work *work = NULL;
    make_layout(&give, in, draw(k, me + 9, 5));
    make_layout(&get, out, draw(k, me + 9, 6));
    for (size_t i = 0; i < in; i++)
        x[i] = from[place(&give, i)] = (int32_t)draw(k, me + 100, (int)i);
    for (size_t i = 0; i < whole; i++)
        y[i] = -7;
    for (size_t i = 0; i < 3 * whole + 400; i++)
        to[i] = -7;
    HOLDS(call(op, x, y, count, root, c, NULL, NULL) == 0, k, "plain");
    bool apart = draw(k, me + 9, 7) % 3;
    o.send_layout = &give.l;
    o.recv_layout = apart ? &get.l : NULL;
    int code = call(op, from, to, count, root, c, &o, draw(k, 1, 8) % 2 ? &work : NULL);
    memset(&give.l, 0x66, sizeof(give.l)); /* it has been read */
    HOLDS(finish(code, work) == 0, k, "with layouts");
    size_t same = 0;
    for (size_t i = 0; i < 3 * whole + 400; i++)
        same += to[i] == -7;
    for (size_t i = 0; i < out; i++) {
        size_t at = apart ? place(&get, i) : i;
        HOLDS(to[at] == y[i], k, "an element");
        same += y[i] != -7;
    }
    HOLDS(same == 3 * whole + 400, k, "a gap was written");
    free(x), free(y), free(from), free(to);
}

/* --------------------------------------------------------------------------- all_to_all_v and _w
 */

/* Counts between two ranks. */
static size_t count_between(int k, int from, int to)
{
    size_t most = draw(k, 2, 0) % 5 ? 30 : 9000;
    return draw(k, from * 32 + to, 77) % 4 ? draw(k, from * 32 + to, 78) % most : 0;
}

/* Any counts, in place: the parts that are sent are where those that are received will be. */
static void in_place(dlcoll_comm *c, int me, int k)
{
    int n = dlcoll_size(c);
    size_t give[MOST], get[MOST], give_at[MOST], get_at[MOST], at = 3, next = 1;
    uint8_t *x = xcalloc(ROOM, 1);
    bool places = draw(k, me, 3) % 2;
    dlcoll_work *work = NULL;
    for (int i = n - 1; i >= 0; i--) { /* backwards */
        give[i] = count_between(k, me, i);
        get[i] = count_between(k, i, me);
        give_at[i] = at;
        get_at[i] = next;
        at += give[i] + 2;
        next += get[i] + 1;
    }
    for (int i = 0; i < n && !places; i++) {
        give_at[i] = i ? give_at[i - 1] + give[i - 1] : 0;
        get_at[i] = i ? get_at[i - 1] + get[i - 1] : 0;
    }
    for (int i = 0; i < n; i++) {
        for (size_t e = 0; e < give[i]; e++)
            x[give_at[i] + e] = sent(k, me, i, 0, e);
    }
    int code = dlcoll_all_to_all_v(x, give, places ? give_at : NULL, x, get, places ? get_at : NULL,
                                   DLCOLL_U8, c, NULL, draw(k, 2, 1) % 2 ? &work : NULL);
    HOLDS(finish(code, work) == 0, k, "all_to_all_v in place");
    for (int i = 0; i < n; i++) {
        for (size_t e = 0; e < get[i]; e++)
            HOLDS(x[get_at[i] + e] == sent(k, i, me, 0, e), k, "all_to_all_v in place");
    }
    free(x);
}

static const dlcoll_dtype g_types[] = {DLCOLL_U8, DLCOLL_F64, DLCOLL_I32, DLCOLL_ELEMENT(12)};
static const size_t g_sizes[] = {1, 8, 4, 12};

static void types(dlcoll_comm *c, int me, int k)
{
    int n = dlcoll_size(c);
    size_t give[MOST], get[MOST], give_at[MOST], get_at[MOST], at = 0, next = 0;
    dlcoll_dtype give_types[MOST], get_types[MOST];
    uint8_t *x = xcalloc(ROOM, 1), *y = xcalloc(ROOM, 1);
    bool places = draw(k, me, 3) % 2, same = draw(k, me, 4) % 3 == 0;
    dlcoll_work *work = NULL;
    for (int i = 0; i < n; i++) {
        size_t to = draw(k, me * 32 + i, 5) % 4, from = draw(k, i * 32 + me, 5) % 4;
        give_types[i] = g_types[to];
        get_types[i] = g_types[from];
        give[i] = count_between(k, me, i) / g_sizes[to];
        get[i] = count_between(k, i, me) / g_sizes[from];
        give_at[i] = at;
        get_at[i] = next;
        at += give[i] * g_sizes[to] + (places ? 5 : 0);
        next += get[i] * g_sizes[from] + (places ? 3 : 0);
        for (size_t e = 0; e < give[i] * g_sizes[to]; e++)
            x[give_at[i] + e] = sent(k, me, i, 0, e);
    }
    uint8_t *out = same ? x : y;
    int code = dlcoll_all_to_all_w(x, give, places ? give_at : NULL, give_types, out, get,
                                   places ? get_at : NULL, get_types, c, NULL,
                                   draw(k, 2, 2) % 2 ? &work : NULL);
    HOLDS(finish(code, work) == 0, k, "all_to_all_w");
    for (int i = 0; i < n; i++) {
        for (size_t e = 0; e < get[i] * g_sizes[draw(k, i * 32 + me, 5) % 4]; e++)
            HOLDS(out[get_at[i] + e] == sent(k, i, me, 0, e), k, "all_to_all_w");
    }
    free(x), free(y);
}

/* ----------------------------------------------------------------------------------- neighbours */

enum { EDGES = 3 * MOST };

/* The edges of rank `of`, in an order of its own: each of `many` to a rank has a number among those
 * of the same two ranks. */
static size_t edges_of(int k, int n, int of, bool outgoing, int *ranks, size_t *numbers)
{
    size_t m = 0, seen[MOST] = {0};
    for (int i = 0; i < n; i++) {
        uint64_t d = draw(k, outgoing ? of * 32 + i : i * 32 + of, 90) % 8;
        size_t many = d < 4 ? 0 : d < 7 ? 1 : 2;
        for (size_t e = 0; e < many; e++)
            ranks[m++] = i;
    }
    for (size_t i = m; i > 1; i--) { /* mixed */
        size_t j = draw(k, of + 300 + outgoing, (int)i) % i;
        int was = ranks[i - 1];
        ranks[i - 1] = ranks[j];
        ranks[j] = was;
    }
    for (size_t i = 0; i < m; i++)
        numbers[i] = seen[ranks[i]]++;
    return m;
}

static void neighbours(dlcoll_comm *c, int me, int k)
{
    int n = dlcoll_size(c), sources[EDGES], dests[EDGES], op = (int)(draw(k, 3, 0) % 4);
    size_t from_number[EDGES], to_number[EDGES];
    dlcoll_graph g = DLCOLL_GRAPH_INIT;
    g.nsources = edges_of(k, n, me, false, sources, from_number);
    g.ndests = edges_of(k, n, me, true, dests, to_number);
    g.sources = sources;
    g.dests = dests;
    bool gathers = op < 2, uneven = op % 2, places = draw(k, me, 6) % 2;
    size_t even = 1 + draw(k, 3, 1) % 300, in[EDGES], in_at[EDGES], out[EDGES], out_at[EDGES];
    uint8_t *x = xcalloc(ROOM, 1), *y = xcalloc(ROOM, 1);
    size_t at = 0, mine = uneven ? draw(k, me, 55) % 200 : even;
    for (size_t i = 0; i < g.ndests; i++) {
        out[i] = !uneven ? even : draw(k, me * 32 + dests[i], 400 + (int)to_number[i]) % 200;
        out_at[i] = at;
        at += out[i] + (uneven && places ? 3 : 0);
        for (size_t e = 0; e < out[i] && !gathers; e++)
            x[out_at[i] + e] = sent(k, me, dests[i], to_number[i], e);
    }
    for (size_t e = 0; e < mine && gathers; e++)
        x[e] = sent(k, me, 0, 0, e);
    at = 0;
    for (size_t i = 0; i < g.nsources; i++) {
        in[i] = !uneven   ? even
                : gathers ? draw(k, sources[i], 55) % 200
                          : draw(k, sources[i] * 32 + me, 400 + (int)from_number[i]) % 200;
        in_at[i] = at;
        at += in[i] + (uneven && places ? 1 : 0);
    }
    dlcoll_work *work = NULL, **w = draw(k, 3, 2) % 2 ? &work : NULL;
    size_t *put = places ? in_at : NULL;
    int code = op == 0 ? dlcoll_neighbor_all_gather(x, y, even, DLCOLL_U8, &g, c, NULL, w)
               : op == 1
                   ? dlcoll_neighbor_all_gather_v(x, mine, y, in, put, DLCOLL_U8, &g, c, NULL, w)
               : op == 2 ? dlcoll_neighbor_all_to_all(x, y, even, DLCOLL_U8, &g, c, NULL, w)
                         : dlcoll_neighbor_all_to_all_v(x, out, places ? out_at : NULL, y, in, put,
                                                        DLCOLL_U8, &g, c, NULL, w);
    HOLDS(finish(code, work) == 0, k, "neighbours");
    for (size_t i = 0; i < g.nsources; i++) {
        for (size_t e = 0; e < in[i]; e++) {
            uint8_t want =
                gathers ? sent(k, sources[i], 0, 0, e) : sent(k, sources[i], me, from_number[i], e);
            HOLDS(y[in_at[i] + e] == want, k, "neighbours");
        }
    }
    free(x), free(y);
}

/* ------------------------------------------------------------------------------------------ all */

static void one_round(dlcoll_comm *c, int me, int k)
{
    static void (*const some[])(dlcoll_comm *, int, int) = {layouts, in_place, types, neighbours};
    some[k % 4](c, me, k);
}

static void expect_refused(dlcoll_comm *c, int code, const char *text)
{
    EXPECT(code == DLCOLL_EINVAL, "%d: %s", code, why(c));
    EXPECT(strcmp(why(c), text) == 0, "%s", why(c));
}

static void refusals(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    int32_t x[16] = {0}, y[16];
    dlcoll_layout l = DLCOLL_LAYOUT_INIT;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    dlcoll_graph g = DLCOLL_GRAPH_INIT;
    size_t one[1] = {1};
    const int far[1] = {5};
    (void)j, (void)rank;
    l.blocks = 3;
    l.length = 2;
    l.stride = 4;
    o.send_layout = &l;
    expect_refused(c, dlcoll_all_reduce(x, y, 5, DLCOLL_I32, DLCOLL_SUM, c, &o, NULL),
                   "all_reduce: send_layout has 6 elements, and the operation 5");
    l.stride = SIZE_MAX / 2;
    expect_refused(c, dlcoll_all_reduce(x, y, 6, DLCOLL_I32, DLCOLL_SUM, c, &o, NULL),
                   "all_reduce: send_layout is too large");
    l.size = 0;
    expect_refused(c, dlcoll_all_reduce(x, y, 6, DLCOLL_I32, DLCOLL_SUM, c, &o, NULL),
                   "all_reduce: send_layout has no valid size and version (use "
                   "DLCOLL_LAYOUT_INIT)");
    expect_refused(c, dlcoll_barrier(c, &o, NULL),
                   "barrier: opts has a layout, which this call does not take");
    expect_refused(c, dlcoll_all_to_all_w(x, one, NULL, NULL, y, one, NULL, NULL, c, NULL, NULL),
                   "all_to_all_w: types is NULL");
    expect_refused(c, dlcoll_neighbor_all_gather(x, y, 1, DLCOLL_I32, NULL, c, NULL, NULL),
                   "neighbor_all_gather: graph is NULL");
    g.sources = far;
    g.nsources = 1;
    expect_refused(c, dlcoll_neighbor_all_gather(x, y, 1, DLCOLL_I32, &g, c, NULL, NULL),
                   "neighbor_all_gather: a rank of the graph is out of range (0 to size-1)");
    expect_refused(
        c,
        dlcoll_neighbor_all_to_all_v(x, NULL, NULL, y, NULL, NULL, DLCOLL_I32, &g, c, NULL, NULL),
        "neighbor_all_to_all: counts is NULL");
    EXPECT(dlcoll_neighbor_all_gather(x, y, 1, DLCOLL_I32, &g, NULL, NULL, NULL) == DLCOLL_EINVAL);
    comm_end(c);
}

START_TEST(bad_arguments_are_refused)
{
    ranks_run(1, 1, refusals);
}
END_TEST

/* A rank that forgets an edge: its neighbour is told. */
static void forget(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t x[8] = {0}, y[64];
    const int others[2] = {(rank + 1) % 3, (rank + 2) % 3};
    dlcoll_graph g = DLCOLL_GRAPH_INIT;
    dlcoll_opts o = DLCOLL_OPTS_INIT;
    g.sources = g.dests = others;
    g.nsources = 2;
    g.ndests = rank == 1 ? 1 : 2;
    o.timeout_ms = (int64_t)(test_seconds(1) * 1000);
    int code = dlcoll_neighbor_all_gather(x, y, 8, DLCOLL_U8, &g, c, &o, NULL);
    for (int k = 0; k < 3 && code == 0; k++)
        code = dlcoll_barrier(c, &o, NULL);
    bool tcp = !strcmp(getenv("DLCOLL_SHM"), "0");
    EXPECT(code == DLCOLL_EMISMATCH || (tcp && code == DLCOLL_ETIMEDOUT), "%d: %s", code, why(c));
    EXPECT(tcp || strstr(why(c), "neighbor_all_gather"), "%s", why(c));
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(a_missing_edge_is_reported)
{
    setenv("DLCOLL_SHM", _i ? "1" : "0", 1);
    ranks_run(3, 1, forget);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_layout");
    TCase *tc = rounds_case(s, &(struct rounds){"layout", "LAYOUT_SEED", 40, one_round});
    tcase_add_test(tc, bad_arguments_are_refused);
    tcase_add_loop_test(tc, a_missing_edge_is_reported, 0, 2);
    return s;
}

TEST_MAIN(suite)
