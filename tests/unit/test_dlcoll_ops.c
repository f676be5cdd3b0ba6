/* Every operation, type, reduction, in place and not, at odd counts, between 1 to 9 ranks, through
 * every algorithm between hosts: ranks are threads, over TCP. */
#include "tests/lib/test.h"

#include <string.h>

#include "collectives/choice.h"
#include "collectives/net/algo.h"
#include "collectives/reduce.h"
#include "core/mem.h"
#include "tests/lib/thread_ranks.h"

/* ------------------------------------------------------------------------------------- elements */

/* Small whole numbers, which every type has, and whose sums and products are exact in all of them:
 * 1 everywhere, but 2 on one rank. */
static int number(int rank, size_t e, int n)
{
    return 1 + ((size_t)rank == e % (size_t)n);
}

struct kit {
    int dtype;
    size_t size;
    uint8_t one[8], two[8]; /* as elements */
};

static struct kit kit_of(int dtype)
{
    static const uint16_t f16[2] = {0x3c00, 0x4000}, bf16[2] = {0x3f80, 0x4000};
    static const uint8_t e4m3[2] = {0, 0x38},
                         e5m2[2] = {0, 0x3c}; /* 0 and 1: they have little room */
    static const float f32[2] = {1, 2};
    static const double f64[2] = {1, 2};
    struct kit k = {.dtype = dtype, .size = dtype_get(dtype)->size};
    const void *one = NULL, *two = NULL;
    uint64_t i1 = 1, i2 = dtype == DLCOLL_BOOL ? 0 : 2;
    switch (dtype) {
    case DLCOLL_F16:
        one = &f16[0], two = &f16[1];
        break;
    case DLCOLL_BF16:
        one = &bf16[0], two = &bf16[1];
        break;
    case DLCOLL_F8E4M3:
        one = &e4m3[0], two = &e4m3[1];
        break;
    case DLCOLL_F8E5M2:
        one = &e5m2[0], two = &e5m2[1];
        break;
    case DLCOLL_F32:
        one = &f32[0], two = &f32[1];
        break;
    case DLCOLL_F64:
        one = &f64[0], two = &f64[1];
        break;
    default:
        one = &i1, two = &i2;
    }
    memcpy(k.one, one, k.size);
    memcpy(k.two, two, k.size);
    return k;
}

static void put(const struct kit *k, uint8_t *p, int rank, size_t from, size_t count, int n)
{
    for (size_t i = 0; i < count; i++)
        memcpy(p + i * k->size, number(rank, from + i, n) == 1 ? k->one : k->two, k->size);
}

/* What the reduction gives, by the plain kernel, one rank after the other. */
static void put_reduced(const struct kit *k, uint8_t *p, size_t from, size_t count, int n, int op)
{
    struct reduce_info r;
    uint8_t *next = xmalloc(count * k->size + 1);
    THREAD_EXPECT(reduce_find(k->dtype, op, &r) == 0, "type %d op %d", k->dtype, op);
    r.ranks = n;
    put(k, p, 0, from, count, n);
    for (int rank = 1; rank < n; rank++) {
        put(k, next, rank, from, count, n);
        reduce_two(&r, p, p, next, count);
    }
    bool logical = op == DLCOLL_LAND || op == DLCOLL_LOR; /* 2 is true as 1 is */
    for (size_t i = 0; i < count && n == 1 && logical && k->dtype != DLCOLL_BOOL; i++)
        memcpy(p + i * k->size, k->one, k->size);
    if (r.has_post)
        reduce_post(&r, p, p, count);
    free(next);
}

/* ------------------------------------------------------------------------------------- buffers */

enum { GUARD = 64 };

/* `shift` makes it misaligned. Around it are bytes that nobody may touch. */
struct buffer {
    uint8_t *base, *p;
    size_t len;
};

static struct buffer buffer_new(size_t len, size_t shift)
{
    struct buffer b = {.base = xmalloc(len + 2 * GUARD + 16), .len = len};
    memset(b.base, 0xa5, len + 2 * GUARD + 16);
    b.p = b.base + GUARD + shift;
    return b;
}

static void buffer_free(struct buffer *b)
{
    for (size_t i = 0; i < GUARD; i++)
        THREAD_EXPECT(b->base[i] == 0xa5 && b->p[b->len + i] == 0xa5, "out of bounds");
    free(b->base);
}

struct test {
    dlcoll_comm *comm;
    const struct kit *k;
    int n, rank, root, op;
    size_t count;
    bool in_place;
    struct buffer send, recv, want;
};

static void check(struct test *t, const char *what, size_t elems)
{
    size_t len = elems * t->k->size;
    THREAD_EXPECT(memcmp(t->recv.p, t->want.p, len) == 0,
                  "%s of %zu (type %d, op %d, %d ranks, root %d, in place %d): wrong on rank %d",
                  what, t->count, t->k->dtype, t->op, t->n, t->root, t->in_place, t->rank);
}

/* Room for `in` and `out` elements; in place, the shorter one lies at `at` of the longer. */
static void begin(struct test *t, size_t in, size_t out, size_t at)
{
    size_t size = t->k->size, shift = t->count % 3 ? 1 : 0;
    t->want = buffer_new(out * size, 0);
    t->send = buffer_new(t->in_place && in <= out ? 0 : in * size, shift);
    t->recv = buffer_new(t->in_place && in > out ? 0 : out * size, shift);
    if (t->in_place && in <= out)
        t->send.p = t->recv.p + at * size;
    if (t->in_place && in > out)
        t->recv.p = t->send.p + at * size;
}

static void end(struct test *t)
{
    /* The one that lay in the other is given back as it was made. */
    if (t->in_place && t->send.len == 0)
        t->send.p = t->send.base + GUARD;
    if (t->in_place && t->recv.len == 0)
        t->recv.p = t->recv.base + GUARD;
    buffer_free(&t->send);
    buffer_free(&t->recv);
    buffer_free(&t->want);
}

/* ----------------------------------------------------------------------------------- operations */

static void reductions(struct test *t)
{
    dlcoll_comm *comm = t->comm;
    dlcoll_dtype type = (dlcoll_dtype)t->k->dtype;
    dlcoll_op op = (dlcoll_op)t->op;
    size_t n = (size_t)t->n, c = t->count;

    begin(t, c, c, 0);
    put(t->k, t->send.p, t->rank, 0, c, t->n);
    put_reduced(t->k, t->want.p, 0, c, t->n, t->op);
    THREAD_OK(dlcoll_all_reduce(t->send.p, t->recv.p, c, type, op, comm, NULL, NULL));
    check(t, "all_reduce", c);
    end(t);

    begin(t, c, c, 0);
    put(t->k, t->send.p, t->rank, 0, c, t->n);
    put_reduced(t->k, t->want.p, 0, c, t->n, t->op);
    THREAD_OK(dlcoll_reduce(t->send.p, t->recv.p, c, type, op, t->root, comm, NULL, NULL));
    if (t->rank == t->root)
        check(t, "reduce", c);
    end(t);

    begin(t, n * c, c, (size_t)t->rank * c);
    put(t->k, t->send.p, t->rank, 0, n * c, t->n);
    put_reduced(t->k, t->want.p, (size_t)t->rank * c, c, t->n, t->op);
    THREAD_OK(dlcoll_reduce_scatter(t->send.p, t->recv.p, c, type, op, comm, NULL, NULL));
    check(t, "reduce_scatter", c);
    end(t);
}

static void movements(struct test *t)
{
    dlcoll_comm *comm = t->comm;
    dlcoll_dtype type = (dlcoll_dtype)t->k->dtype;
    size_t n = (size_t)t->n, c = t->count;
    bool root = t->rank == t->root;

    begin(t, c, c, 0);
    put(t->k, t->send.p, t->rank, 0, c, t->n);
    put(t->k, t->want.p, t->root, 0, c, t->n);
    THREAD_OK(dlcoll_broadcast(t->send.p, t->recv.p, c, type, t->root, comm, NULL, NULL));
    check(t, "broadcast", c);
    end(t);

    begin(t, c, n * c, (size_t)t->rank * c);
    put(t->k, t->send.p, t->rank, 0, c, t->n);
    for (int r = 0; r < t->n; r++)
        put(t->k, t->want.p + (size_t)r * c * t->k->size, r, 0, c, t->n);
    THREAD_OK(dlcoll_all_gather(t->send.p, t->recv.p, c, type, comm, NULL, NULL));
    check(t, "all_gather", n * c);
    put(t->k, t->send.p, t->rank, 0, c, t->n);
    THREAD_OK(dlcoll_gather(t->send.p, t->recv.p, c, type, t->root, comm, NULL, NULL));
    if (root)
        check(t, "gather", n * c);
    end(t);

    begin(t, n * c, c, (size_t)t->rank * c);
    put(t->k, t->send.p, t->rank, 0, n * c, t->n);
    put(t->k, t->want.p, t->root, (size_t)t->rank * c, c, t->n);
    THREAD_OK(dlcoll_scatter(t->send.p, t->recv.p, c, type, t->root, comm, NULL, NULL));
    check(t, "scatter", c);
    end(t);

    begin(t, n * c, n * c, 0);
    put(t->k, t->send.p, t->rank, 0, n * c, t->n);
    for (int r = 0; r < t->n; r++)
        put(t->k, t->want.p + (size_t)r * c * t->k->size, r, (size_t)t->rank * c, c, t->n);
    THREAD_OK(dlcoll_all_to_all(t->send.p, t->recv.p, c, type, comm, NULL, NULL));
    check(t, "all_to_all", n * c);
    end(t);
    THREAD_OK(dlcoll_barrier(comm, NULL, NULL));
}

/* Parts of different lengths; rank i has (3 i + 1) % 4 times `count`. */
static void uneven(struct test *t)
{
    dlcoll_comm *comm = t->comm;
    dlcoll_dtype type = (dlcoll_dtype)t->k->dtype;
    size_t counts[16] = {0}, total = 0, mine_at = 0, n = (size_t)t->n, rank = (size_t)t->rank;
    size_t give[16] = {0}, get[16] = {0};
    for (size_t i = 0; i < n; i++) {
        counts[i] = (3 * i + 1) % 4 * t->count;
        give[i] = (rank + 2 * i) % 3 * t->count;
        get[i] = (i + 2 * rank) % 3 * t->count;
        mine_at = i == rank ? total : mine_at;
        total += counts[i];
    }
    size_t own = counts[rank];

    begin(t, own, total, mine_at);
    put(t->k, t->send.p, t->rank, 0, own, t->n);
    for (size_t i = 0, at = 0; i < n; at += counts[i++])
        put(t->k, t->want.p + at * t->k->size, (int)i, 0, counts[i], t->n);
    THREAD_OK(dlcoll_all_gather_v(t->send.p, t->recv.p, counts, NULL, type, comm, NULL, NULL));
    check(t, "all_gather_v", total);
    put(t->k, t->send.p, t->rank, 0, own, t->n);
    THREAD_OK(
        dlcoll_gather_v(t->send.p, own, t->recv.p, counts, NULL, type, t->root, comm, NULL, NULL));
    if (t->rank == t->root)
        check(t, "gather_v", total);
    end(t);

    begin(t, total, own, mine_at);
    put(t->k, t->send.p, t->rank, 0, total, t->n);
    put(t->k, t->want.p, t->root, mine_at, own, t->n);
    THREAD_OK(
        dlcoll_scatter_v(t->send.p, counts, NULL, t->recv.p, own, type, t->root, comm, NULL, NULL));
    check(t, "scatter_v", own);
    put(t->k, t->send.p, t->rank, 0, total, t->n);
    put_reduced(t->k, t->want.p, mine_at, own, t->n, DLCOLL_MAX);
    THREAD_OK(
        dlcoll_reduce_scatter_v(t->send.p, t->recv.p, counts, type, DLCOLL_MAX, comm, NULL, NULL));
    check(t, "reduce_scatter_v", own);
    end(t);

    size_t gives = 0, gets = 0;
    for (size_t i = 0; i < n; i++)
        gives += give[i], gets += get[i];
    bool in_place = t->in_place;
    t->in_place = false;
    begin(t, gives, gets, 0);
    put(t->k, t->send.p, t->rank, 0, gives, t->n);
    for (size_t i = 0, at = 0; i < n; at += get[i++]) {
        size_t from = 0; /* where rank i has my part */
        for (size_t j = 0; j < rank; j++)
            from += (i + 2 * j) % 3 * t->count;
        put(t->k, t->want.p + at * t->k->size, (int)i, from, get[i], t->n);
    }
    THREAD_OK(
        dlcoll_all_to_all_v(t->send.p, give, NULL, t->recv.p, get, NULL, type, comm, NULL, NULL));
    check(t, "all_to_all_v", gets);
    end(t);
    t->in_place = in_place;
}

/* ---------------------------------------------------------------------------------------- grids */

static void all_types(dlcoll_comm *comm, void *arg)
{
    static const size_t counts[] = {0, 1, 3, 15, 17};
    (void)arg;
    struct test t = {.comm = comm, .n = dlcoll_size(comm), .rank = dlcoll_rank(comm)};
    for (int dtype = 0; dtype < 64; dtype++) {
        if (!dtype_get(dtype))
            continue;
        struct kit k = kit_of(dtype);
        t.k = &k;
        for (size_t i = 0; i < 2 * sizeof(counts) / sizeof(counts[0]); i++) {
            t.count = counts[i / 2];
            t.in_place = i % 2;
            t.root = (int)(i + (size_t)dtype) % t.n;
            for (t.op = 0; t.op < 64; t.op++) {
                struct reduce_info r;
                if (reduce_find(dtype, t.op, &r) == 0)
                    reductions(&t);
            }
            t.op = DLCOLL_SUM;
            movements(&t);
            uneven(&t);
        }
    }
}

static void large_counts(dlcoll_comm *comm, void *arg)
{
    static const size_t counts[] = {16383, 16384, 16385, 32769, 131073};
    (void)arg;
    struct kit k = kit_of(DLCOLL_F32);
    struct test t = {
        .comm = comm, .n = dlcoll_size(comm), .rank = dlcoll_rank(comm), .k = &k, .op = DLCOLL_SUM};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (counts[i] * (size_t)t.n > 600000)
            continue;
        t.count = counts[i];
        t.in_place = i % 2;
        t.root = (int)i % t.n;
        reductions(&t);
        movements(&t);
        uneven(&t);
    }
}

/* The k-th algorithm of each kind that has so many. False: there is none. */
static bool force_algorithms(int k)
{
    char rules[1024] = "*:net";
    size_t at = 0;
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        int seen = 0;
        for (size_t i = 0; i < g_nalgos; i++) {
            if ((int)g_algos[i].kind != kind || strcmp(g_algos[i].name, "self") == 0 || seen++ != k)
                continue;
            at += (size_t)snprintf(rules + at, sizeof(rules) - at, "%s:net/%s;", call_name(kind),
                                   g_algos[i].name);
        }
    }
    setenv("DLCOLL_ALGO", rules, 1);
    return at > 0;
}

START_TEST(every_type_and_reduction)
{
    setenv("DLCOLL_SHM", "0", 1);
    ck_assert(force_algorithms(_i % 3));
    thread_ranks_run(_i + 1, all_types, NULL);
}
END_TEST

START_TEST(every_algorithm_and_world_size)
{
    setenv("DLCOLL_SHM", "0", 1);
    for (int k = 0; force_algorithms(k); k++)
        thread_ranks_run(_i + 1, large_counts, NULL);
}
END_TEST

START_TEST(several_connections_between_two_ranks)
{
    setenv("DLCOLL_SHM", "0", 1);
    setenv("DLCOLL_SOCKETS", "3", 1);
    thread_ranks_run(_i, large_counts, NULL);
}
END_TEST

/* What several ranks would make of them: in a world of one there is nothing to combine. */
static void truths_alone(dlcoll_comm *comm, void *arg)
{
    static const int ops[] = {DLCOLL_SUM, DLCOLL_PROD, DLCOLL_MAX,  DLCOLL_MIN, DLCOLL_BAND,
                              DLCOLL_BOR, DLCOLL_BXOR, DLCOLL_LAND, DLCOLL_LOR};
    (void)arg;
    for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
        dlcoll_op op = (dlcoll_op)ops[k];
        bool logical = op == DLCOLL_LAND || op == DLCOLL_LOR;
        const uint8_t in[3] = {2, 0, 255};
        const int32_t number = 4;
        uint8_t out[4][3];
        int32_t same = 0;
        size_t three = 3;
        dlcoll_span span = {in, out[3], 3};
        THREAD_OK(dlcoll_all_reduce(in, out[0], 3, DLCOLL_BOOL, op, comm, NULL, NULL));
        THREAD_OK(dlcoll_reduce(in, out[1], 3, DLCOLL_BOOL, op, 0, comm, NULL, NULL));
        THREAD_OK(dlcoll_reduce_scatter_v(in, out[2], &three, DLCOLL_BOOL, op, comm, NULL, NULL));
        THREAD_OK(dlcoll_all_reduce_coalesced(&span, 1, DLCOLL_BOOL, op, comm, NULL, NULL));
        const uint8_t want[4][3] = {{1, 0, 1}, {1, 0, 1}, {1, 0, 1}, {1, 0, 1}};
        THREAD_EXPECT(memcmp(out, want, sizeof(want)) == 0, "op %d", ops[k]);
        THREAD_OK(dlcoll_all_reduce(&number, &same, 1, DLCOLL_I32, op, comm, NULL, NULL));
        THREAD_EXPECT(same == (logical ? 1 : number), "op %d: %d", ops[k], same);
    }
}

START_TEST(truth_values_in_a_world_of_one)
{
    thread_ranks_run(1, truths_alone, NULL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dlcoll_ops");
    TCase *tc = test_case(s, "types", 120);
    tcase_add_loop_test(tc, every_type_and_reduction, 0, 9);
    tcase_add_test(tc, truth_values_in_a_world_of_one);
    tc = test_case(s, "algorithms", 120);
    tcase_add_loop_test(tc, every_algorithm_and_world_size, 0, 9);
    tcase_add_loop_test(tc, several_connections_between_two_ranks, 2, 5);
    return s;
}

TEST_MAIN(suite)
