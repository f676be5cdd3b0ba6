/* Every algorithm between ranks, without a network: for every world size from 1 to 33, odd counts,
 * in place and not, its schedules keep the rules of net/schedule.h, and the engine carries them out
 * over pipes that deliver in random pieces, to the right result on every rank. And the engine
 * itself: mismatches, closed pipes, the order of operands. And the reduction kernels. */
#include "tests/lib/test.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "collectives/dtype.h"
#include "collectives/net/algo.h"
#include "collectives/net/engine.h"
#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/mem_transport.h"

enum { RANKS_MAX = 33 };

/* As ck_assert_msg(), which writes to a file each time that it holds. */
#define NEED(fact, ...)                \
    do {                               \
        if (!(fact))                   \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

/* --------------------------------------------------------------------------- rules of schedules */

struct range {
    int buffer;
    size_t from, to;
    bool write;
    size_t step;
};

static bool clash(const struct range *a, const struct range *b)
{
    return a->step != b->step && (a->write || b->write) && a->buffer == b->buffer &&
           a->from < b->to && b->from < a->to;
}

/* What a step touches. One buffer is both PLACE_IN and PLACE_OUT when `in_place`. */
static size_t touches(const struct step *s, size_t i, bool in_place, struct range *out)
{
    size_t n = 0;
#define TOUCH(place, w)                                                                       \
    out[n++] = (struct range)                                                                 \
    {                                                                                         \
        in_place && (place).buffer == PLACE_IN ? PLACE_OUT : (int)(place).buffer, (place).at, \
            (place).at + s->len, w, i                                                         \
    }
    bool reads_a = s->kind != STEP_RECV, writes = s->kind != STEP_SEND;
    if (in_place && s->kind == STEP_COPY && s->a.buffer == PLACE_IN && s->a.at == s->dst.at)
        return 0; /* does nothing */
    if (reads_a)
        TOUCH(s->a, false);
    if (s->kind == STEP_REDUCE)
        TOUCH(s->b, false);
    if (writes)
        TOUCH(s->dst, true);
    return n;
}

static void check_round(const struct schedule *s, size_t from, size_t to, const struct coll *c,
                        bool in_place)
{
    static struct range ranges[256];
    size_t n = 0;
    for (size_t i = from; i < to; i++) {
        const struct step *st = &s->steps[i];
        NEED(n + 3 < 256, "%zu steps in a round", n);
        n += touches(st, i, in_place, ranges + n);
        NEED(st->dst.buffer != PLACE_IN || st->kind == STEP_SEND, "step %zu writes to the input",
             i);
        bool local = st->kind == STEP_COPY || st->kind == STEP_REDUCE;
        NEED((local ? st->peer == -1 : st->peer >= 0 && st->peer < c->size) && st->peer != c->rank,
             "step %zu has peer %d", i, st->peer);
        for (size_t j = from; j < i && !local; j++) {
            const struct step *other = &s->steps[j];
            NEED(other->peer != st->peer || (other->kind == STEP_SEND) != (st->kind == STEP_SEND),
                 "two messages one way between ranks %d and %d in one round", c->rank, st->peer);
        }
    }
    for (size_t i = 0; i < n; i++) {
        size_t room = ranges[i].buffer == PLACE_TMP ? s->tmp_bytes : c->count * c->elem;
        NEED(ranges[i].to <= room, "step %zu is out of bounds", ranges[i].step);
        for (size_t j = 0; j < i; j++)
            NEED(!clash(&ranges[i], &ranges[j]), "steps %zu and %zu of rank %d clash",
                 ranges[i].step, ranges[j].step, c->rank);
    }
}

static void check_rules(const struct schedule *s, const struct coll *c)
{
    ck_assert(!s->oom);
    for (int in_place = 0; in_place <= 1; in_place++) {
        size_t from = 0;
        for (size_t r = 0; r < s->nrounds; r++) {
            NEED(s->rounds[r].end > from, "round %zu is empty", r);
            check_round(s, from, s->rounds[r].end, c, in_place);
            from = s->rounds[r].end;
        }
        ck_assert_uint_eq(from, s->nsteps);
    }
}

/* ----------------------------------------------------------------------------------- a cluster */

struct cluster {
    int n;
    struct mem_net *net;
    struct schedule schedules[RANKS_MAX];
    struct engine engines[RANKS_MAX];
    uint8_t *in[RANKS_MAX], *out[RANKS_MAX];
};

static void cluster_init(struct cluster *c, int n, size_t bytes, bool in_place, unsigned seed)
{
    c->n = n;
    c->net = mem_net_new(n, bytes > 50000 ? 9973 : 97, seed);
    for (int r = 0; r < n; r++) {
        c->in[r] = xmalloc(bytes + 1);
        c->out[r] = in_place ? c->in[r] : xmalloc(bytes + 1);
        schedule_init(&c->schedules[r]);
        engine_init(&c->engines[r], mem_net_end(c->net, r), r, n, NULL, (struct wait_policy){0, 0});
    }
}

static void cluster_fini(struct cluster *c)
{
    for (int r = 0; r < c->n; r++) {
        if (c->out[r] != c->in[r])
            free(c->out[r]);
        free(c->in[r]);
        schedule_fini(&c->schedules[r]);
        engine_fini(&c->engines[r]);
    }
    mem_net_free(c->net);
}

static void start(struct cluster *c, int rank, const struct algo *a, struct coll coll,
                  const struct dtype *type, int op, struct call call)
{
    struct err e = ERR_INIT;
    struct schedule *s = &c->schedules[rank];
    coll.rank = rank;
    schedule_reset(s);
    a->build(s, &coll);
    check_rules(s, &coll);
    struct engine_run run = {.schedule = s,
                             .in = c->in[rank],
                             .out = c->out[rank],
                             .dtype = type,
                             .op = op,
                             .frame = {.seq = 7, .call = call}};
    NEED(engine_start(&c->engines[rank], &run, &e) == 0, "%s", e.msg);
}

/* Turns every rank in turn until all are complete. results[r] is what engine_progress() gave. */
static void turn(struct cluster *c, int *results)
{
    int left = c->n;
    struct err e = ERR_INIT;
    for (int r = 0; r < c->n; r++)
        results[r] = 1;
    for (int idle = 0; left; idle++) {
        for (int r = 0; r < c->n; r++) {
            if (results[r] != 1)
                continue;
            results[r] = engine_progress(&c->engines[r], &e);
            if (c->engines[r].moved)
                idle = 0;
            if (results[r] < 0)
                mem_net_close(c->net, r);
            left -= results[r] != 1;
        }
        NEED(idle < 1000, "%d of %d ranks are stuck", left, c->n);
    }
}

/* One operation on all ranks; every one must complete and no byte be left over. */
static void perform(struct cluster *c, const struct algo *a, struct coll coll,
                    const struct dtype *type, int op)
{
    int results[RANKS_MAX];
    struct call call = {.kind = (uint8_t)a->kind, .count = coll.count};
    for (int r = 0; r < c->n; r++)
        start(c, r, a, coll, type, op, call);
    turn(c, results);
    for (int r = 0; r < c->n; r++)
        NEED(results[r] == 0, "rank %d ended with %d", r, results[r]);
    ck_assert(mem_net_is_empty(c->net));
}

/* ------------------------------------------------------------------------------- the algorithms */

static uint64_t random_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

static const size_t g_counts[] = {0, 1, 2, 3, 15, 17, 64, 1000, 20011};

static void all_reduce_i64(const struct algo *a, int n, size_t count, bool in_place)
{
    struct cluster c;
    uint64_t seed = (uint64_t)n * 1000003 + count;
    int64_t *sum = xcalloc(count + 1, sizeof(*sum));
    cluster_init(&c, n, count * 8, in_place, (unsigned)seed);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++) {
            int64_t v = (int64_t)random_bits(&seed);
            memcpy(c.in[r] + i * 8, &v, 8);
            sum[i] += v;
        }
    }
    struct coll coll = {.kind = a->kind, .size = n, .count = count, .elem = 8};
    perform(&c, a, coll, dtype_get(DLCOLL_I64), DLCOLL_SUM);
    for (int r = 0; r < n; r++)
        NEED(memcmp(c.out[r], sum, count * 8) == 0, "%s on %d ranks of %zu: wrong on rank %d",
             a->name, n, count, r);
    free(sum);
    cluster_fini(&c);
}

/* Floats: the same bits on every rank, near the exact sum. */
static void all_reduce_f32(const struct algo *a, int n, size_t count)
{
    struct cluster c;
    uint64_t seed = (uint64_t)n * 77 + count;
    double *sum = xcalloc(count + 1, sizeof(*sum));
    cluster_init(&c, n, count * 4, false, (unsigned)seed);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++) {
            float v = (float)random_bits(&seed) / (float)(1ull << 53) - 0.5f;
            memcpy(c.in[r] + i * 4, &v, 4);
            sum[i] += v;
        }
    }
    struct coll coll = {.kind = a->kind, .size = n, .count = count, .elem = 4};
    perform(&c, a, coll, dtype_get(DLCOLL_F32), DLCOLL_SUM);
    for (int r = 0; r < n; r++)
        NEED(memcmp(c.out[r], c.out[0], count * 4) == 0,
             "%s on %d ranks: rank %d has other bits than rank 0", a->name, n, r);
    for (size_t i = 0; i < count; i++) {
        float v;
        memcpy(&v, c.out[0] + i * 4, 4);
        NEED(fabs(v - sum[i]) < n * 1e-6, "element %zu is %g, not %g", i, v, sum[i]);
    }
    free(sum);
    cluster_fini(&c);
}

static void broadcast(const struct algo *a, int n, size_t count, int root, bool in_place)
{
    struct cluster c;
    uint64_t seed = (uint64_t)n * 31 + count;
    cluster_init(&c, n, count, in_place, (unsigned)seed);
    uint8_t *want = xmalloc(count + 1);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++)
            c.in[r][i] = (uint8_t)random_bits(&seed);
    }
    memcpy(want, c.in[root], count);
    struct coll coll = {.kind = a->kind, .size = n, .root = root, .count = count, .elem = 1};
    perform(&c, a, coll, NULL, 0);
    for (int r = 0; r < n; r++)
        NEED(memcmp(c.out[r], want, count) == 0, "%s on %d ranks from %d: wrong on rank %d",
             a->name, n, root, r);
    free(want);
    cluster_fini(&c);
}

/* Nobody is through before everybody has come. */
static void barrier(const struct algo *a, int n)
{
    struct coll coll = {.kind = a->kind, .size = n, .elem = 1};
    for (int late = 0; late < n; late++) {
        struct cluster c;
        struct err e = ERR_INIT;
        int results[RANKS_MAX];
        cluster_init(&c, n, 0, false, (unsigned)(n * 37 + late));
        for (int r = 0; r < n; r++)
            start(&c, r, a, coll, NULL, 0, (struct call){.kind = CALL_BARRIER});
        for (int tries = 0; tries < 100; tries++) {
            for (int r = 0; r < n; r++) {
                NEED(r == late || engine_progress(&c.engines[r], &e) == 1,
                     "rank %d is through without rank %d", r, late);
            }
        }
        turn(&c, results);
        for (int r = 0; r < n; r++)
            NEED(results[r] == 0, "rank %d ended with %d", r, results[r]);
        ck_assert(mem_net_is_empty(c.net));
        cluster_fini(&c);
    }
}

static void prove(const struct algo *a, int n)
{
    size_t ncounts = sizeof(g_counts) / sizeof(g_counts[0]);
    switch (a->kind) {
    case CALL_ALL_REDUCE:
        /* Large counts on few ranks, small ones on all: what matters is count against n. */
        for (size_t k = 0; k < ncounts; k++) {
            if (g_counts[k] > 1000 && n > 5)
                continue;
            all_reduce_i64(a, n, g_counts[k], false);
            all_reduce_i64(a, n, g_counts[k], true);
            all_reduce_f32(a, n, g_counts[k]);
        }
        for (int d = -1; d <= 1; d++)
            all_reduce_i64(a, n, (size_t)(n + d), d == 0);
        break;
    case CALL_BROADCAST:
        for (size_t k = 0; k < ncounts; k++) {
            if (g_counts[k] > 1000 && n > 5)
                continue;
            broadcast(a, n, g_counts[k], 0, false);
            broadcast(a, n, g_counts[k], n - 1, true);
        }
        for (int root = 0; root < n; root++)
            broadcast(a, n, 17, root, root % 2);
        if (n <= 9) /* several segments through the tree */
            broadcast(a, n, 600001, n / 2, n % 2);
        break;
    case CALL_BARRIER:
        barrier(a, n);
        break;
    default:
        ck_abort_msg("%s has no proof", a->name);
    }
}

START_TEST(every_algorithm_at_every_size)
{
    const struct algo *a = &g_algos[_i];
    int proven = 0;
    for (int n = 1; n <= RANKS_MAX; n++) {
        struct coll c = {.kind = a->kind, .size = n, .elem = 1};
        if (algo_allows(a, &c)) {
            prove(a, n);
            proven++;
        }
    }
    ck_assert_int_gt(proven, 0);
}
END_TEST

START_TEST(pair_works_through_many_chunks)
{
    for (size_t k = 0; g_algos[k].name; k++) {
        if (strcmp(g_algos[k].name, "pair") != 0)
            continue;
        all_reduce_i64(&g_algos[k], 2, 64 * 1024 / 8, false);
        all_reduce_i64(&g_algos[k], 2, 64 * 1024 / 8 + 1, true);
        all_reduce_i64(&g_algos[k], 2, 5 * 64 * 1024 / 8 - 1, true);
        return;
    }
    ck_abort_msg("there is no pair algorithm");
}
END_TEST

/* Every kind has an algorithm for every size and length, and all ranks choose the same. */
START_TEST(there_is_always_a_choice)
{
    static const enum call_kind kinds[] = {CALL_ALL_REDUCE, CALL_BROADCAST, CALL_BARRIER};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (int n = 1; n < 4096; n = n < 70 ? n + 1 : n * 2) {
            for (size_t bytes = 0; bytes < (size_t)1 << 40; bytes = bytes * 3 + 1) {
                struct coll c = {.kind = kinds[k], .size = n, .count = bytes, .elem = 1};
                const struct algo *a = algo_choose(&c);
                NEED(a->kind == kinds[k] && algo_allows(a, &c), "%s for %d ranks", a->name, n);
                c.rank = n - 1;
                NEED(algo_choose(&c) == a, "another choice on rank %d", c.rank);
            }
        }
    }
}
END_TEST

/* ---------------------------------------------------------------------------- order of operands */

/* Not commutative, but associative: a span of ranks, which may only be joined to the next one. A
 * span is two i64 of one element each: first * 100 + last, 0 for a broken one. */
static void join_spans(void *dst, const void *left, const void *right, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t a, b, joined = 0;
        memcpy(&a, (const char *)left + i * 8, 8);
        memcpy(&b, (const char *)right + i * 8, 8);
        if (a && b && a % 100 + 1 == b / 100)
            joined = a / 100 * 100 + b % 100;
        memcpy((char *)dst + i * 8, &joined, 8);
    }
}

static const struct dtype g_span = {"span", 8, {[DLCOLL_SUM] = join_spans}};

START_TEST(operands_come_in_the_order_of_ranks)
{
    const struct algo *a = &g_algos[_i];
    if (a->kind != CALL_ALL_REDUCE || a->any_order)
        return;
    for (int n = 1; n <= RANKS_MAX; n++) {
        struct coll coll = {.kind = a->kind, .size = n, .count = 3, .elem = 8};
        if (!algo_allows(a, &coll))
            continue;
        struct cluster c;
        cluster_init(&c, n, 24, false, (unsigned)n);
        for (int r = 0; r < n; r++) {
            int64_t span[3] = {(r + 1) * 101, (r + 1) * 101, (r + 1) * 101};
            memcpy(c.in[r], span, sizeof(span));
        }
        perform(&c, a, coll, &g_span, DLCOLL_SUM);
        for (int r = 0; r < n; r++) {
            int64_t got[3];
            memcpy(got, c.out[r], sizeof(got));
            for (int i = 0; i < 3; i++)
                NEED(got[i] == 100 + n, "%s on %d ranks: rank %d has %lld", a->name, n, r,
                     (long long)got[i]);
        }
        cluster_fini(&c);
    }
}
END_TEST

/* ----------------------------------------------------------------------------------- the engine */

static const struct algo *ring(void)
{
    for (size_t k = 0; k < g_nalgos; k++) {
        if (strcmp(g_algos[k].name, "ring") == 0)
            return &g_algos[k];
    }
    ck_abort_msg("there is no ring");
}

START_TEST(another_call_is_found_out)
{
    struct cluster c;
    struct coll coll = {.kind = CALL_ALL_REDUCE, .size = 3, .count = 30, .elem = 4};
    struct call good = {.kind = CALL_ALL_REDUCE, .dtype = DLCOLL_F32, .count = 30}, bad = good;
    int results[RANKS_MAX];
    switch (_i) {
    case 0:
        bad.kind = CALL_BROADCAST;
        break;
    case 1:
        bad.dtype = DLCOLL_I32;
        break;
    case 2:
        bad.op = DLCOLL_MIN;
        break;
    case 3:
        bad.root = 1;
        break;
    case 4:
        bad.count = 31;
        break;
    }
    cluster_init(&c, 3, 120, false, 1);
    memset(c.in[0], 0, 120), memset(c.in[1], 0, 120), memset(c.in[2], 0, 120);
    for (int r = 0; r < 3; r++)
        start(&c, r, ring(), coll, dtype_get(DLCOLL_F32), DLCOLL_SUM, r == 1 ? bad : good);
    turn(&c, results);
    /* Each receives from its left neighbour; rank 0's is not the odd one, but it is cut off. */
    ck_assert_int_eq(results[1], -EBADMSG);
    ck_assert_int_eq(c.engines[1].culprit, 0);
    ck_assert_int_eq(results[2], -EBADMSG);
    ck_assert_int_eq(c.engines[2].culprit, 1);
    ck_assert(call_equal(&c.engines[2].theirs.call, &bad));
    ck_assert_int_lt(results[0], 0);
    cluster_fini(&c);
}
END_TEST

START_TEST(another_sequence_number_is_found_out)
{
    struct cluster c;
    struct coll coll = {.kind = CALL_BARRIER, .size = 2, .elem = 1};
    struct call call = {.kind = CALL_BARRIER};
    int results[RANKS_MAX];
    const struct algo *a = algo_choose(&coll);
    cluster_init(&c, 2, 0, false, 1);
    for (int r = 0; r < 2; r++)
        start(&c, r, a, coll, NULL, 0, call);
    c.engines[0].run.frame.seq = 8;
    turn(&c, results);
    ck_assert_int_eq(results[1], -EBADMSG);
    ck_assert_uint_eq(c.engines[1].theirs.seq, 8);
    cluster_fini(&c);
}
END_TEST

/* 2 waits for 1 to broadcast, 1 for 3, 3 for 2, and 0 for 2, to reduce: nobody gets from anybody
 * what he does not expect. */
START_TEST(ranks_that_wait_in_a_circle_find_out)
{
    struct cluster c;
    struct err e = ERR_INIT;
    struct coll sum = {.kind = CALL_ALL_REDUCE, .size = 4, .count = 8, .elem = 4}, cast = sum;
    struct call sum_call = {.kind = CALL_ALL_REDUCE, .count = 8};
    struct call cast_call = {.kind = CALL_BROADCAST, .root = 1, .count = 8};
    cast.kind = CALL_BROADCAST;
    cast.root = 1;
    cluster_init(&c, 4, 32, false, 1);
    for (int r = 0; r < 4; r++) {
        memset(c.in[r], 0, 32);
        if (r == 2)
            start(&c, r, algo_choose(&cast), cast, NULL, 0, cast_call);
        else
            start(&c, r, algo_choose(&sum), sum, dtype_get(DLCOLL_F32), DLCOLL_SUM, sum_call);
    }
    for (int k = 0; k < 1000; k++) {
        for (int r = 0; r < 4; r++)
            NEED(engine_progress(&c.engines[r], &e) == 1, "rank %d is not stuck", r);
    }
    ck_assert_int_eq(engine_wait(&c.engines[2], mono_ns() + 5000000000u, &e), -EBADMSG);
    ck_assert(c.engines[2].culprit == 3 || c.engines[2].culprit == 0);
    ck_assert(call_equal(&c.engines[2].theirs.call, &sum_call));
    /* The others are where they should be; theirs is to wait. */
    ck_assert_int_eq(engine_wait(&c.engines[1], mono_ns() + 100000000u, &e), -ETIMEDOUT);
    cluster_fini(&c);
}
END_TEST

START_TEST(a_closed_pipe_ends_the_run_and_names_the_rank)
{
    struct cluster c;
    struct err e = ERR_INIT;
    struct coll coll = {.kind = CALL_ALL_REDUCE, .size = 4, .count = 4000, .elem = 4};
    struct call call = {.kind = CALL_ALL_REDUCE, .count = 4000};
    cluster_init(&c, 4, 16000, false, 5);
    for (int r = 0; r < 4; r++) {
        memset(c.in[r], 0, 16000);
        start(&c, r, ring(), coll, dtype_get(DLCOLL_F32), DLCOLL_SUM, call);
    }
    for (int k = 0; k < 20; k++) {
        for (int r = 0; r < 4; r++)
            ck_assert_int_eq(engine_progress(&c.engines[r], &e), 1);
    }
    mem_net_close(c.net, 2);
    int r3 = 1, r1 = 1;
    for (int k = 0; k < 1000 && (r3 == 1 || r1 == 1); k++) {
        r1 = r1 == 1 ? engine_progress(&c.engines[1], &e) : r1;
        r3 = r3 == 1 ? engine_progress(&c.engines[3], &e) : r3;
    }
    ck_assert_int_eq(r1, -EPIPE);
    ck_assert_int_eq(c.engines[1].culprit, 2);
    ck_assert_int_eq(r3, -EPIPE);
    ck_assert_int_eq(c.engines[3].culprit, 2);
    cluster_fini(&c);
}
END_TEST

START_TEST(waiting_ends_at_the_deadline_and_at_the_abort_word)
{
    struct cluster c;
    struct err e = ERR_INIT;
    _Atomic uint32_t word = 0;
    struct coll coll = {.kind = CALL_BARRIER, .size = 2, .elem = 1};
    const struct algo *a = algo_choose(&coll);
    cluster_init(&c, 2, 0, false, 1);
    start(&c, 0, a, coll, NULL, 0, (struct call){.kind = CALL_BARRIER});
    ck_assert_int_eq(engine_wait(&c.engines[0], mono_ns() + 1000000, &e), -ETIMEDOUT);
    ck_assert_int_eq(c.engines[0].culprit, 1);
    c.engines[0].abort_word = &word;
    word = 1;
    ck_assert_int_eq(engine_wait(&c.engines[0], 0, &e), -ECANCELED);
    cluster_fini(&c);
}
END_TEST

/* ---------------------------------------------------------------------------------- the kernels */

/* Against a plain loop over one element at a time, at all lengths round the block and unaligned. */
START_TEST(kernels_are_right_at_every_length_and_alignment)
{
    enum { N = 70 };
    static uint8_t a[8 * N + 8], b[8 * N + 8], got[8 * N + 8], one[8];
    uint64_t seed = 3;
    for (int t = 0; t < 16; t++) {
        const struct dtype *d = dtype_get(t);
        for (int op = 0; d && op < REDUCTIONS_MAX; op++) {
            if (!reduction_name(op))
                continue;
            NEED(d->reduce[op], "%s has no %s", d->name, reduction_name(op));
            for (size_t i = 0; i < sizeof(a); i++) {
                a[i] = (uint8_t)random_bits(&seed);
                b[i] = (uint8_t)random_bits(&seed);
            }
            for (size_t n = 0; n <= N; n++) {
                size_t shift = n % 8;
                d->reduce[op](got + shift, a + shift, b + shift, n);
                for (size_t i = 0; i < n; i++) {
                    d->reduce[op](one, a + shift + i * d->size, b + shift + i * d->size, 1);
                    NEED(memcmp(one, got + shift + i * d->size, d->size) == 0,
                         "%s of %s differs at %zu of %zu", reduction_name(op), d->name, i, n);
                }
            }
        }
    }
}
END_TEST

#define KERNEL(type, NAME, op, a, b)                                     \
    ({                                                                   \
        type a_ = (a), b_ = (b), d_;                                     \
        dtype_get(DLCOLL_##NAME)->reduce[DLCOLL_##op](&d_, &a_, &b_, 1); \
        d_;                                                              \
    })

START_TEST(kernels_do_what_they_are_called)
{
    ck_assert_int_eq(KERNEL(int8_t, I8, SUM, 100, 100), -56);
    ck_assert_int_eq(KERNEL(uint8_t, U8, PROD, 20, 20), 144);
    ck_assert_int_eq(KERNEL(int32_t, I32, SUM, INT32_MAX, 1), INT32_MIN);
    ck_assert_int_eq(KERNEL(int64_t, I64, SUM, INT64_MAX, 1), INT64_MIN);
    ck_assert_int_eq(KERNEL(int64_t, I64, MIN, -3, 2), -3);
    ck_assert_uint_eq(KERNEL(uint32_t, U32, MAX, 0x80000000u, 1), 0x80000000u);
    ck_assert_uint_eq(KERNEL(uint64_t, U64, PROD, 1ull << 33, 1ull << 32), 0);
    ck_assert_double_eq(KERNEL(double, F64, SUM, 0.5, 0.25), 0.75);
    ck_assert_float_eq(KERNEL(float, F32, MAX, -1, -2), -1);
    ck_assert_float_eq(KERNEL(float, F32, MIN, -1, -2), -2);
    ck_assert(isnan(KERNEL(float, F32, MAX, NAN, 1)));
    ck_assert(isnan(KERNEL(float, F32, MAX, 1, NAN)));
    ck_assert(isnan(KERNEL(double, F64, MIN, NAN, 1)));
    ck_assert(isnan(KERNEL(double, F64, MIN, 1, NAN)));
}
END_TEST

START_TEST(types_have_nccls_numbers)
{
    static const struct {
        int value;
        const char *name;
        size_t size;
    } nccl[] = {{0, "i8", 1},  {1, "u8", 1},  {2, "i32", 4}, {3, "u32", 4},
                {4, "i64", 8}, {5, "u64", 8}, {7, "f32", 4}, {8, "f64", 8}};
    for (size_t i = 0; i < sizeof(nccl) / sizeof(nccl[0]); i++) {
        ck_assert_str_eq(dtype_get(nccl[i].value)->name, nccl[i].name);
        ck_assert_uint_eq(dtype_get(nccl[i].value)->size, nccl[i].size);
    }
    ck_assert_ptr_null(dtype_get(-1));
    ck_assert_ptr_null(dtype_get(6));
    ck_assert_ptr_null(dtype_get(1 << 20));
    ck_assert_ptr_null(reduction_name(-1));
    ck_assert_ptr_null(reduction_name(REDUCTIONS_MAX));
    ck_assert_str_eq(reduction_name(DLCOLL_MAX), "max");
}
END_TEST

START_TEST(calls_are_described_whatever_they_hold)
{
    char text[CALL_TEXT_MAX];
    struct call c = {.kind = CALL_ALL_REDUCE, .dtype = DLCOLL_F32, .count = 12};
    ck_assert_str_eq(call_describe(&c, text), "all_reduce of 12 f32 (sum)");
    c = (struct call){.kind = CALL_BROADCAST, .dtype = DLCOLL_U8, .root = 3, .count = 1};
    ck_assert_str_eq(call_describe(&c, text), "broadcast of 1 u8 from rank 3");
    c = (struct call){.kind = CALL_BARRIER};
    ck_assert_str_eq(call_describe(&c, text), "barrier");
    memset(&c, 0xff, sizeof(c));
    ck_assert_str_eq(call_describe(&c, text), "unknown operation");
    c.kind = CALL_ALL_REDUCE;
    ck_assert_str_eq(call_describe(&c, text),
                     "all_reduce of 18446744073709551615 unknown type (unknown reduction)");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("algo");
    TCase *tc = test_case(s, "algorithms", 120);
    tcase_add_loop_test(tc, every_algorithm_at_every_size, 0, (int)g_nalgos);
    tcase_add_loop_test(tc, operands_come_in_the_order_of_ranks, 0, (int)g_nalgos);
    tcase_add_test(tc, pair_works_through_many_chunks);
    tcase_add_test(tc, there_is_always_a_choice);
    tc = test_case(s, "engine", 20);
    tcase_add_loop_test(tc, another_call_is_found_out, 0, 5);
    tcase_add_test(tc, another_sequence_number_is_found_out);
    tcase_add_test(tc, ranks_that_wait_in_a_circle_find_out);
    tcase_add_test(tc, a_closed_pipe_ends_the_run_and_names_the_rank);
    tcase_add_test(tc, waiting_ends_at_the_deadline_and_at_the_abort_word);
    tc = test_case(s, "kernels", 20);
    tcase_add_test(tc, kernels_are_right_at_every_length_and_alignment);
    tcase_add_test(tc, kernels_do_what_they_are_called);
    tcase_add_test(tc, types_have_nccls_numbers);
    tcase_add_test(tc, calls_are_described_whatever_they_hold);
    return s;
}

TEST_MAIN(suite)
