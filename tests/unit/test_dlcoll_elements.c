/* Elements of the program's own, of 1 byte to 64 KB, and reductions of them that are commutative or
 * not, in every reducing operation and some others, in memory, over TCP and on several nodes,
 * against a plain loop over the ranks. The seed is printed; ELEMENTS_SEED=n repeats a run. */
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/comm/comm.h"
#include "collectives/base/dtype.h"
#include "core/mem.h"
#include "tests/lib/cross_values.h"
#include "tests/lib/ranks.h"
#include "tests/lib/rounds.h"

enum { MOST_BYTES = 3 << 20 };

struct how {
    size_t size;
    bool ordered;
};

/* An element whose reduction is not commutative begins with a map x -> x * factor + summand; the
 * rest are bytes that are added. */
static void combine(uint8_t *a, const uint8_t *b, const struct how *how)
{
    size_t at = 0;
    if (how->ordered && how->size >= 2) {
        a[1] = (uint8_t)(a[1] * b[0] + b[1]);
        a[0] = (uint8_t)(a[0] * b[0]);
        at = 2;
    }
    for (; at < how->size; at++)
        a[at] = (uint8_t)(a[at] + b[at]);
}

static void user_fn(void *acc, const void *in, size_t count, dlcoll_dtype dtype, void *ctx)
{
    const struct how *how = ctx;
    size_t alignment = how->size & -how->size;
    alignment = alignment < 16 ? alignment : 16;
    EXPECT(dtype == DLCOLL_ELEMENT(how->size), "given type %#x", (unsigned)dtype);
    EXPECT((uintptr_t)acc % alignment == 0 && (uintptr_t)in % alignment == 0, "of %zu", how->size);
    for (size_t i = 0; i < count; i++)
        combine((uint8_t *)acc + i * how->size, (const uint8_t *)in + i * how->size, how);
}

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, SCAN, EXSCAN, COALESCED, ALL_GATHER, SWAP, KINDS };
static const char *const g_names[KINDS] = {"all_reduce", "reduce",    "reduce_scatter", "scan",
                                           "exscan",     "coalesced", "all_gather",     "send"};

struct round {
    enum kind kind;
    struct how how;
    size_t count;
    int root;
};

static struct round draw_round(int k, int n)
{
    static const size_t sizes[] = {1,   3,    8,    12,   16,    24,    40,   72,
                                   100, 1000, 5000, 9000, 32768, 65535, 65536};
    static const size_t counts[] = {1, 2, 5, 17, 100, 1000, 30000};
    uint64_t d = cross_mix(g_rounds_seed + (uint64_t)k);
    struct round r = {.kind = (enum kind)(d % KINDS),
                      .how = {.size = sizes[d / 16 % 15], .ordered = d / 1024 % 2},
                      .count = counts[d / 4096 % 7],
                      .root = (int)(d / 65536 % (uint64_t)n)};
    while (r.count > 1 && r.count * r.how.size * (size_t)n > MOST_BYTES)
        r.count /= 2;
    return r;
}

static void fill(int rank, int k, size_t bytes, uint8_t *to)
{
    uint64_t x = cross_mix((uint64_t)rank << 40 ^ (uint64_t)k << 20 ^ g_rounds_seed);
    for (size_t i = 0; i < bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        to[i] = (uint8_t)(x >> 56);
    }
}

/* Elements [from, from + count) of ranks 0 to n - 1, combined in their order. */
static void reference(const struct round *r, int n, int k, size_t whole, size_t from, uint8_t *want)
{
    size_t size = r->how.size;
    uint8_t *in = xmalloc(whole);
    for (int i = 0; i < n; i++) {
        fill(i, k, whole, in);
        if (i == 0)
            memcpy(want, in + from * size, r->count * size);
        for (size_t e = 0; i > 0 && e < r->count; e++)
            combine(want + e * size, in + (from + e) * size, &r->how);
    }
    free(in);
}

static int perform(const struct round *r, dlcoll_op op, const uint8_t *x, uint8_t *y,
                   dlcoll_comm *c)
{
    dlcoll_dtype type = DLCOLL_ELEMENT(r->how.size);
    size_t half = r->count / 2 * r->how.size;
    const dlcoll_span spans[2] = {{x, y, r->count / 2},
                                  {x + half, y + half, r->count - r->count / 2}};
    int n = dlcoll_size(c), me = dlcoll_rank(c);
    dlcoll_p2p ring[2] = {{.send = x, .peer = (me + 1) % n}, {.recv = y, .peer = (me + n - 1) % n}};
    switch (r->kind) {
    case ALL_REDUCE:
        return dlcoll_all_reduce(x, y, r->count, type, op, c, NULL, NULL);
    case REDUCE:
        return dlcoll_reduce(x, y, r->count, type, op, r->root, c, NULL, NULL);
    case REDUCE_SCATTER:
        return dlcoll_reduce_scatter(x, y, r->count, type, op, c, NULL, NULL);
    case SCAN:
        return dlcoll_scan(x, y, r->count, type, op, c, NULL, NULL);
    case EXSCAN:
        return dlcoll_exscan(x, y, r->count, type, op, c, NULL, NULL);
    case COALESCED:
        return dlcoll_all_reduce_coalesced(spans, 2, type, op, c, NULL, NULL);
    case ALL_GATHER:
        return dlcoll_all_gather(x, y, r->count, type, c, NULL, NULL);
    default:
        ring[0].count = ring[1].count = r->count;
        ring[0].dtype = ring[1].dtype = type;
        return dlcoll_batch(ring, 2, c, NULL, NULL);
    }
}

static void one_round(dlcoll_comm *c, int me, int k)
{
    int n = dlcoll_size(c);
    struct round r = draw_round(k, n);
    size_t size = r.how.size, len = r.count * size, whole = len * (size_t)n;
    bool parts = r.kind == REDUCE_SCATTER;
    uint8_t *x = xmalloc(whole + 1), *y = xmalloc(whole + 2), *want = xmalloc(whole);
    uint8_t *send = x + (g_rounds_seed + (uint64_t)k) % 2,
            *recv = y + (g_rounds_seed / 2 + (uint64_t)k) % 2;
    dlcoll_op op;
    EXPECT(dlcoll_op_create_user(&op, user_fn, &r.how, r.how.ordered ? DLCOLL_OP_ORDERED : 0) == 0);
    fill(me, k, parts ? whole : len, send);
    memset(y, 0x5a, whole + 2);
    int code = perform(&r, op, send, recv, c), ranks = r.kind == SCAN     ? me + 1
                                                       : r.kind == EXSCAN ? me
                                                                          : n;
    EXPECT(code == 0, "seed %llu, round %d: %s", (unsigned long long)g_rounds_seed, k, why(c));
    size_t got = len;
    if (r.kind == SWAP) {
        fill((me + n - 1) % n, k, len, want);
    } else if (r.kind == ALL_GATHER) {
        got = whole;
        for (int i = 0; i < n; i++)
            fill(i, k, len, want + (size_t)i * len);
    } else if (ranks == 0 || (r.kind == REDUCE && me != r.root)) {
        memset(want, 0x5a, len);
    } else {
        reference(&r, ranks, k, parts ? whole : len, parts ? (size_t)me * r.count : 0, want);
    }
    size_t at = 0;
    while (at < got && recv[at] == want[at])
        at++;
    EXPECT(at == got, "seed %llu, round %d: %s of %zu times %zu bytes, ordered %d, by %s: byte %zu",
           (unsigned long long)g_rounds_seed, k, g_names[r.kind], r.count, size, r.how.ordered,
           c->algo, at);
    EXPECT(recv[got] == 0x5a, "wrote behind the result");
    EXPECT(dlcoll_op_free(op) == 0);
    free(x), free(y), free(want);
}

/* Ranks whose elements differ in size are told both sizes. */
static void differ(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t x[48] = {0}, y[48];
    struct how how = {.size = rank == 1 ? 48 : 24};
    dlcoll_op op;
    EXPECT(dlcoll_op_create_user(&op, user_fn, &how, 0) == 0);
    int code =
        dlcoll_all_reduce(x, y, rank == 1 ? 1 : 2, DLCOLL_ELEMENT(how.size), op, c, NULL, NULL);
    EXPECT(code == DLCOLL_EMISMATCH, "%d", code);
    EXPECT(strstr(why(c), "all_reduce of 1 times 48 bytes (user function)"), "%s", why(c));
    EXPECT(strstr(why(c), "all_reduce of 2 times 24 bytes (user function)"), "%s", why(c));
    ranks_say_ready(j);
    ranks_await_ready(j);
    dlcoll_destroy(c);
}

START_TEST(sizes_that_differ_are_reported)
{
    setenv("DLCOLL_SHM", _i ? "1" : "0", 1);
    ranks_run(3, 1, differ);
}
END_TEST

static void refusals(struct ranks *j, int rank)
{
    dlcoll_comm *c = comm_start();
    uint8_t x[8] = {0};
    (void)j, (void)rank;
    EXPECT(dlcoll_all_reduce(x, x, 1, DLCOLL_ELEMENT(8), DLCOLL_SUM, c, NULL, NULL) ==
           DLCOLL_ENOSUP);
    EXPECT(strstr(why(c), "all_reduce: sum is not defined for bytes"), "%s", why(c));
    EXPECT(dlcoll_broadcast(x, x, 1, DLCOLL_ELEMENT(65537), 0, c, NULL, NULL) == DLCOLL_EINVAL);
    EXPECT(strstr(why(c), "broadcast: unknown dtype"), "%s", why(c));
    EXPECT(dlcoll_broadcast(x, x, 1, DLCOLL_ELEMENT(0), 0, c, NULL, NULL) == DLCOLL_EINVAL);
    comm_end(c);
}

START_TEST(what_does_not_exist_is_refused)
{
    ranks_run(1, 1, refusals);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_elements");
    TCase *tc = rounds_case(s, &(struct rounds){"elements", "ELEMENTS_SEED", 40, one_round});
    tcase_add_loop_test(tc, sizes_that_differ_are_reported, 0, 2);
    tcase_add_test(tc, what_does_not_exist_is_refused);
    return s;
}

TEST_MAIN(suite)
