/* Every algorithm between ranks, without a network: for every world size from 1 to 33, odd counts,
 * in place and not, its schedules keep the rules of net/schedule.h, and the engine carries them out
 * over pipes that deliver in random pieces, to the right result on every rank. And the engine
 * itself: mismatches, closed pipes, the order of operands. */
#include "tests/lib/test.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm/algo_select.h"
#include "collectives/base/dtype.h"
#include "collectives/net/algo.h"
#include "collectives/net/engine.h"
#include "core/clock.h"
#include "core/mem.h"
#include "tests/lib/mem_transport.h"

enum { RANKS_MAX = 33 };

/* Like ck_assert_msg(), but cheap when the condition holds: ck_assert_msg() writes to a file each
 * time. */
#define NEED(fact, ...)                \
    do {                               \
        if (!(fact))                   \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

/* ----------------------------------------------------------------------------------- operations */

enum { ELEM = 8 };

/* One operation on all ranks, with every rank's buffers. */
struct job_case {
    struct coll coll; /* rank is filled in for each; count: of a part, where parts are even */
    bool uneven, in_place;
    size_t counts[RANKS_MAX], displs[RANKS_MAX];                  /* of most kinds */
    size_t give[RANKS_MAX][RANKS_MAX], get[RANKS_MAX][RANKS_MAX]; /* all_to_all_v */
    size_t give_at[RANKS_MAX][RANKS_MAX], get_at[RANKS_MAX][RANKS_MAX];
    size_t in_len[RANKS_MAX], out_len[RANKS_MAX], in_base[RANKS_MAX], out_base[RANKS_MAX];
};

static size_t part_count(const struct job_case *k, int i)
{
    return k->uneven ? k->counts[i] : k->coll.count;
}

static size_t part_start(const struct job_case *k, int i)
{
    return k->uneven ? k->displs[i] : k->coll.count * (size_t)i;
}

static void all_to_all_lengths(struct job_case *k, size_t count)
{
    int n = k->coll.size;
    for (int a = 0; a < n; a++) {
        size_t at = k->uneven ? 3 : 0, from = k->uneven ? 2 : 0;
        for (int b = 0; b < n; b++) {
            k->give[a][b] = k->uneven ? (size_t)(a * 3 + b * 5) % 4 * count : count;
            k->get[a][b] = k->uneven ? (size_t)(b * 3 + a * 5) % 4 * count : count;
            k->give_at[a][b] = at;
            k->get_at[a][b] = from;
            at += k->give[a][b] + (k->uneven ? 2 : 0);
            from += k->get[a][b] + (k->uneven ? 1 : 0);
        }
        k->in_len[a] = at;
        k->out_len[a] = from;
    }
}

/* Lengths, and in place where the one buffer lies in the other, in elements. */
static void lay_out(struct job_case *k, size_t count)
{
    int n = k->coll.size;
    /* The parts of what reduce_scatter_v sends lie one after the other. */
    bool packed = k->coll.kind == CALL_REDUCE_SCATTER;
    size_t end = packed ? 0 : 2;
    k->coll.count = count;
    for (int i = 0; i < n; i++) {
        k->counts[i] = (size_t)(i * 7 + 3) % 5 * count;
        k->displs[i] = end;
        end += k->counts[i] + (packed ? 0 : 1);
    }
    size_t whole = k->uneven ? end : count * (size_t)n;
    if (k->coll.kind == CALL_ALL_TO_ALL)
        all_to_all_lengths(k, count);
    for (int r = 0; r < n; r++) {
        bool root = r == k->coll.root;
        size_t own = part_count(k, r), at = part_start(k, r);
        switch (k->coll.kind) {
        case CALL_GATHER:
        case CALL_ALL_GATHER:
            k->in_len[r] = own;
            k->out_len[r] = root || k->coll.kind == CALL_ALL_GATHER ? whole : 0;
            k->in_base[r] = k->out_len[r] ? at : 0;
            break;
        case CALL_SCATTER:
            k->in_len[r] = root ? whole : 0;
            k->out_len[r] = own;
            k->out_base[r] = root ? at : 0;
            break;
        case CALL_REDUCE_SCATTER:
            k->in_len[r] = whole;
            k->out_len[r] = own;
            k->out_base[r] = at;
            break;
        case CALL_ALL_TO_ALL:
            break;
        case CALL_REDUCE:
            k->in_len[r] = count;
            k->out_len[r] = root ? count : 0;
            break;
        default:
            k->in_len[r] = k->out_len[r] = count;
        }
    }
}

/* The operation as one rank sees it. */
static struct coll coll_of(const struct job_case *k, int rank)
{
    struct coll c = k->coll;
    c.rank = rank;
    c.elem = ELEM;
    c.in_place = k->in_place;
    c.uneven = k->uneven;
    if (!k->uneven)
        return c;
    switch (c.kind) {
    case CALL_GATHER:
        if (rank == c.root)
            c.recv_parts = (struct coll_parts){k->counts, k->displs};
        c.count = k->counts[rank];
        break;
    case CALL_SCATTER:
        if (rank == c.root)
            c.send_parts = (struct coll_parts){k->counts, k->displs};
        c.count = k->counts[rank];
        break;
    case CALL_ALL_GATHER:
        c.recv_parts = (struct coll_parts){k->counts, k->displs};
        c.count = k->counts[rank];
        break;
    case CALL_REDUCE_SCATTER:
        c.send_parts = (struct coll_parts){k->counts, NULL};
        c.count = k->counts[rank];
        break;
    case CALL_ALL_TO_ALL:
        c.send_parts = (struct coll_parts){k->give[rank], k->give_at[rank]};
        c.recv_parts = (struct coll_parts){k->get[rank], k->get_at[rank]};
        break;
    default:
        break;
    }
    return c;
}

/* Element e of rank r's input. */
static int64_t value(int r, size_t e)
{
    uint64_t x = (uint64_t)(r + 1) * 0x9e3779b97f4a7c15u + e * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu;
    return (int64_t)(x ^ x >> 32);
}

/* The sum of the first n ranks. */
static int64_t sum(int n, size_t e)
{
    uint64_t s = 0;
    for (int r = 0; r < n; r++)
        s += (uint64_t)value(r, e);
    return (int64_t)s;
}

/* Fills in what rank r should have in the end; elements that nobody writes stay as they are. */
static void expect(const struct job_case *k, int r, int64_t *out)
{
    int n = k->coll.size;
    switch (k->coll.kind) {
    case CALL_ALL_REDUCE:
    case CALL_REDUCE:
        for (size_t e = 0; e < k->out_len[r]; e++)
            out[e] = sum(n, e);
        break;
    case CALL_SCAN:
    case CALL_EXSCAN:
        n = k->coll.kind == CALL_SCAN ? r + 1 : r;
        for (size_t e = 0; e < k->out_len[r] && n; e++)
            out[e] = sum(n, e);
        break;
    case CALL_BROADCAST:
        for (size_t e = 0; e < k->out_len[r]; e++)
            out[e] = value(k->coll.root, e);
        break;
    case CALL_REDUCE_SCATTER:
        for (size_t e = 0; e < k->out_len[r]; e++)
            out[e] = sum(n, part_start(k, r) + e);
        break;
    case CALL_SCATTER:
        for (size_t e = 0; e < k->out_len[r]; e++)
            out[e] = value(k->coll.root, part_start(k, r) + e);
        break;
    case CALL_GATHER:
    case CALL_ALL_GATHER:
        for (int i = 0; i < n && k->out_len[r]; i++) {
            for (size_t e = 0; e < part_count(k, i); e++)
                out[part_start(k, i) + e] = value(i, e);
        }
        break;
    case CALL_ALL_TO_ALL:
        for (int i = 0; i < n; i++) {
            for (size_t e = 0; e < k->get[r][i]; e++)
                out[k->get_at[r][i] + e] = value(i, k->give_at[i][r] + e);
        }
        break;
    default:
        break;
    }
}

/* --------------------------------------------------------------------------- rules of schedules */

struct range {
    int buffer;
    size_t from, to;
    bool write;
    size_t entry;
};

static bool clash(const struct range *a, const struct range *b)
{
    return a->entry != b->entry && (a->write || b->write) && a->buffer == b->buffer &&
           a->from < b->to && b->from < a->to;
}

/* Adds what an entry touches. In place, input and output are one piece of memory. */
static size_t touch(struct range *out, size_t n, const struct job_case *k, int rank, struct place p,
                    size_t len, bool write, size_t entry)
{
    bool joint = k->in_place && p.buffer != PLACE_TMP;
    size_t base = p.buffer == PLACE_IN ? k->in_base[rank] : k->out_base[rank];
    size_t at = p.at + (joint ? base * ELEM : 0);
    out[n] = (struct range){joint ? PLACE_OUT : (int)p.buffer, at, at + len, write, entry};
    return n + (len > 0);
}

static size_t touches(const struct entry *s, size_t i, const struct job_case *k, int rank,
                      struct range *out)
{
    size_t n = 0;
    bool reads_a = s->kind != ENTRY_RECV, writes = s->kind != ENTRY_SEND;
    if (reads_a)
        n = touch(out, n, k, rank, s->a, s->len, false, i);
    if (s->kind == ENTRY_REDUCE)
        n = touch(out, n, k, rank, s->b, s->len, false, i);
    if (writes)
        n = touch(out, n, k, rank, s->dst, s->len, true, i);
    /* A copy onto itself does nothing. */
    return s->kind == ENTRY_COPY && out[0].buffer == out[1].buffer && out[0].from == out[1].from
               ? 0
               : n;
}

static void check_bounds(const struct entry *s, const struct schedule *sc, const struct job_case *k,
                         int rank)
{
    size_t room[PLACE_BUFFERS] = {[PLACE_IN] = k->in_len[rank] * ELEM,
                                  [PLACE_OUT] = k->out_len[rank] * ELEM,
                                  [PLACE_TMP] = sc->tmp_bytes};
    bool local = s->kind == ENTRY_COPY || s->kind == ENTRY_REDUCE;
    NEED(s->kind == ENTRY_SEND || s->dst.buffer != PLACE_IN, "the input is written");
    NEED(s->kind == ENTRY_SEND || s->dst.at + s->len <= room[s->dst.buffer], "dst out of bounds");
    NEED(s->kind == ENTRY_RECV || s->a.at + s->len <= room[s->a.buffer], "a out of bounds");
    NEED(s->kind != ENTRY_REDUCE || s->b.at + s->len <= room[s->b.buffer], "b out of bounds");
    NEED((local ? s->peer == -1 : s->peer >= 0 && s->peer < k->coll.size) && s->peer != rank,
         "an entry of rank %d has peer %d", rank, s->peer);
}

/* The entries [from, to): those of a step, or of two that may go on side by side. */
static void check_step(const struct schedule *s, size_t from, size_t to, bool two,
                       const struct job_case *k, int rank)
{
    static struct range ranges[1024];
    size_t n = 0;
    for (size_t i = from; i < to; i++) {
        const struct entry *st = &s->entries[i];
        NEED(n + 3 < 1024, "%zu entries in a step", n);
        check_bounds(st, s, k, rank);
        n += touches(st, i, k, rank, ranges + n);
        for (size_t j = from; j < i && st->peer >= 0 && !two; j++) {
            const struct entry *other = &s->entries[j];
            NEED(other->peer != st->peer || (other->kind == ENTRY_SEND) != (st->kind == ENTRY_SEND),
                 "two messages one way between ranks %d and %d in one step", rank, st->peer);
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++)
            NEED(!clash(&ranges[i], &ranges[j]), "entries %zu and %zu of rank %d clash",
                 ranges[i].entry, ranges[j].entry, rank);
    }
}

static void check_rules(const struct schedule *s, const struct job_case *k, int rank)
{
    size_t from = 0;
    ck_assert(!s->oom);
    for (size_t r = 0; r < s->nsteps; r++) {
        NEED(s->steps[r].end > from, "step %zu is empty", r);
        check_step(s, from, s->steps[r].end, false, k, rank);
        if (s->steps[r].loose && r + 1 < s->nsteps)
            check_step(s, from, s->steps[r + 1].end, true, k, rank);
        from = s->steps[r].end;
    }
    ck_assert_uint_eq(from, s->nentries);
}

/* ------------------------------------------------------------------------------------ a cluster */

struct cluster {
    int n;
    struct mem_net *net;
    struct schedule schedules[RANKS_MAX];
    struct engine engines[RANKS_MAX];
    struct reduce_info reduce;
    uint8_t *memory[RANKS_MAX], *in[RANKS_MAX], *out[RANKS_MAX];
};

static void cluster_init(struct cluster *c, const struct job_case *k, unsigned seed)
{
    size_t most = 0;
    c->n = k->coll.size;
    for (int r = 0; r < c->n; r++)
        most = k->in_len[r] + k->out_len[r] > most ? k->in_len[r] + k->out_len[r] : most;
    c->net = mem_net_new(c->n, most > 6000 ? 9973 : 97, seed);
    for (int r = 0; r < c->n; r++) {
        c->memory[r] = xcalloc(k->in_len[r] + k->out_len[r] + 1, ELEM);
        c->out[r] = c->memory[r];
        c->in[r] = c->memory[r] + k->out_len[r] * ELEM;
        if (k->in_place) {
            c->in[r] = c->memory[r] + k->in_base[r] * ELEM;
            c->out[r] = c->memory[r] + k->out_base[r] * ELEM;
        }
        schedule_init(&c->schedules[r]);
        engine_init(&c->engines[r], mem_net_end(c->net, r), r, (struct wait_policy){0, 0});
    }
    ck_assert_int_eq(reduce_find(DLCOLL_I64, DLCOLL_SUM, &c->reduce), 0);
}

static void cluster_fini(struct cluster *c)
{
    for (int r = 0; r < c->n; r++) {
        free(c->memory[r]);
        schedule_fini(&c->schedules[r]);
        engine_fini(&c->engines[r]);
    }
    mem_net_free(c->net);
}

static void start(struct cluster *c, int rank, const struct algo *a, const struct job_case *k,
                  size_t elem, struct op_signature call)
{
    struct err e = ERR_INIT;
    struct schedule *s = &c->schedules[rank];
    struct coll coll = coll_of(k, rank);
    schedule_reset(s);
    a->build(s, &coll);
    check_rules(s, k, rank);
    NEED(schedule_is_valid(s, coll.rank, coll.size), "%s/%s", call_name(a->kind), a->name);
    struct engine_run run = {.schedule = s,
                             .in = c->in[rank],
                             .out = c->out[rank],
                             .reduce = &c->reduce,
                             .elem = elem,
                             .frame = {.seq = 7, .sig = call}};
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

/* Runs all ranks: each must complete, and no byte may be left over. */
static void perform(struct cluster *c, const struct algo *a, const struct job_case *k, size_t elem)
{
    int results[RANKS_MAX];
    struct op_signature call = {.kind = (uint8_t)a->kind, .count = k->coll.count};
    for (int r = 0; r < c->n; r++)
        start(c, r, a, k, elem, call);
    turn(c, results);
    for (int r = 0; r < c->n; r++)
        NEED(results[r] == 0, "%s: rank %d ended with %d", a->name, r, results[r]);
    ck_assert(mem_net_is_empty(c->net));
}

/* ------------------------------------------------------------------------------- the algorithms */

static uint64_t random_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

static void prove_one(const struct algo *a, int n, size_t count, int root, bool uneven,
                      bool in_place)
{
    static struct job_case k;
    struct cluster c;
    memset(&k, 0, sizeof(k));
    k.coll = (struct coll){.kind = a->kind, .size = n, .root = root};
    k.uneven = uneven;
    k.in_place = in_place;
    lay_out(&k, count);
    struct coll seen = coll_of(&k, root);
    if (!algo_allows(a, &seen))
        return;
    cluster_init(&c, &k, (unsigned)(n * 1000003 + (int)count));
    int64_t *want = NULL;
    for (int r = 0; r < n; r++) {
        for (size_t e = 0; e < k.in_len[r]; e++)
            ((int64_t *)c.in[r])[e] = value(r, e);
    }
    perform(&c, a, &k, ELEM);
    for (int r = 0; r < n; r++) {
        size_t len = k.out_len[r] * ELEM;
        want = xmalloc(len + 1);
        memcpy(want, c.out[r], len); /* what lies between the parts is of no account... */
        expect(&k, r, want);
        NEED(memcmp(c.out[r], want, len) == 0,
             "%s %s, %d ranks, %zu elements, root %d, uneven %d, in place %d: wrong on rank %d",
             call_name(a->kind), a->name, n, count, root, uneven, in_place, r);
        free(want);
        /* ...and the input is as it was, but for what is also output. */
        for (size_t e = 0; e < k.in_len[r] && !in_place; e++)
            NEED(((int64_t *)c.in[r])[e] == value(r, e), "%s: the input has been written", a->name);
    }
    cluster_fini(&c);
}

static bool has_parts(enum call_kind kind)
{
    return kind == CALL_GATHER || kind == CALL_ALL_GATHER || kind == CALL_SCATTER ||
           kind == CALL_REDUCE_SCATTER || kind == CALL_ALL_TO_ALL;
}

static void prove_count(const struct algo *a, int n, size_t count)
{
    bool rooted = call_rooted(a->kind);
    for (int uneven = 0; uneven <= has_parts(a->kind); uneven++) {
        for (int in_place = 0; in_place <= 1; in_place++) {
            if (uneven && in_place && a->kind == CALL_ALL_TO_ALL)
                continue;
            prove_one(a, n, count, 0, uneven, in_place);
            if (rooted && n > 1)
                prove_one(a, n, count, n - 1, uneven, in_place);
            if (rooted && n > 4 && count < 100)
                prove_one(a, n, count, n / 2, uneven, in_place);
        }
    }
}

/* No rank leaves the barrier before every rank has entered it. */
static void barrier(const struct algo *a, int n)
{
    struct job_case k = {.coll = {.kind = a->kind, .size = n}};
    for (int late = 0; late < n; late++) {
        struct cluster c;
        struct err e = ERR_INIT;
        int results[RANKS_MAX];
        cluster_init(&c, &k, (unsigned)(n * 37 + late));
        for (int r = 0; r < n; r++)
            start(&c, r, a, &k, 1, (struct op_signature){.kind = CALL_BARRIER});
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
    static const size_t counts[] = {1, 2, 3, 15, 17, 64, 1000};
    if (a->kind == CALL_BARRIER) {
        barrier(a, n);
        return;
    }
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        if (counts[k] <= 100 ? n <= 9 || counts[k] % 16 == 1 : n <= 5)
            prove_count(a, n, counts[k]);
    }
    for (int d = -1; d <= 1; d++)
        prove_count(a, n, (size_t)(n + d > 0 ? n + d : 1));
}

START_TEST(every_algorithm_at_every_size)
{
    const struct algo *a = &g_algos[_i];
    int proven = 0;
    for (int n = 1; n <= RANKS_MAX; n++) {
        struct coll c = {.kind = a->kind, .size = n, .elem = ELEM};
        if (algo_allows(a, &c)) {
            prove(a, n);
            proven++;
        }
    }
    ck_assert_int_gt(proven, 0);
}
END_TEST

/* Lengths at which messages fall into segments, and one more or less. */
START_TEST(every_algorithm_through_many_segments)
{
    const struct algo *a = &g_algos[_i];
    enum { SEGMENT = 512 * 1024 / ELEM };
    for (int n = 2; n <= 4 && a->kind != CALL_BARRIER; n++) {
        struct coll c = {.kind = a->kind, .size = n, .elem = ELEM};
        if (!algo_allows(a, &c))
            continue;
        prove_one(a, n, SEGMENT - 1, 0, false, false);
        prove_one(a, n, SEGMENT + 1, n - 1, false, true);
        prove_one(a, n, 6 * SEGMENT + 5, 1, false, n % 2);
    }
}
END_TEST

/* Parts of all lengths side by side: of a short one some segments are empty, and so are the steps
 * of two short ones. */
enum { LONG_PART = 3 * 512 * 1024 / ELEM }; /* three segments */

static void lay_out_parts(struct job_case *k, int n, const size_t *counts, bool in_place)
{
    size_t end = 0;
    memset(k, 0, sizeof(*k));
    k->coll = (struct coll){.kind = CALL_ALL_GATHER, .size = n};
    k->uneven = true;
    k->in_place = in_place;
    for (int i = 0; i < n; i++) {
        k->counts[i] = k->in_len[i] = counts[i];
        k->displs[i] = k->in_base[i] = end;
        end += counts[i];
    }
    for (int i = 0; i < n; i++)
        k->out_len[i] = end;
}

static bool gathers_parts(const struct algo *a)
{
    return a->kind == CALL_ALL_GATHER && !a->regular;
}

START_TEST(parts_of_all_lengths_keep_the_rules)
{
    static const size_t lengths[] = {0, 1, 2, 3, LONG_PART};
    static struct job_case k;
    const struct algo *a = &g_algos[_i];
    struct schedule s;
    schedule_init(&s);
    for (int n = 2, all = 25; n <= 5 && gathers_parts(a); n++, all *= 5) {
        for (int which = 0; which < 2 * all; which++) {
            size_t counts[5];
            for (int i = 0, rest = which / 2; i < n; i++, rest /= 5)
                counts[i] = lengths[rest % 5];
            lay_out_parts(&k, n, counts, which % 2);
            for (int r = 0; r < n; r++) {
                struct coll coll = coll_of(&k, r);
                schedule_reset(&s);
                a->build(&s, &coll);
                check_rules(&s, &k, r);
            }
        }
    }
    schedule_fini(&s);
}
END_TEST

START_TEST(short_parts_between_long_ones_arrive)
{
    static const size_t counts[][4] = {
        {LONG_PART, 1, 1, 1}, {1, LONG_PART, 0, 1}, {1, 0, 1, LONG_PART}, {LONG_PART, 2, 1, 0}};
    static struct job_case k;
    const struct algo *a = &g_algos[_i];
    for (size_t i = 0; i < 4 && gathers_parts(a); i++) {
        struct cluster c;
        lay_out_parts(&k, 4, counts[i], false);
        cluster_init(&c, &k, (unsigned)i);
        for (int r = 0; r < 4; r++) {
            for (size_t e = 0; e < k.in_len[r]; e++)
                ((int64_t *)c.in[r])[e] = value(r, e);
        }
        perform(&c, a, &k, ELEM);
        int64_t *want = xcalloc(k.out_len[0], ELEM);
        for (int r = 0; r < 4; r++) {
            expect(&k, r, want);
            NEED(memcmp(c.out[r], want, k.out_len[0] * ELEM) == 0,
                 "%s: parts %zu are wrong on rank %d", a->name, i, r);
        }
        free(want);
        cluster_fini(&c);
    }
}
END_TEST

START_TEST(pair_works_through_many_chunks)
{
    const struct algo *pair = NULL;
    for (size_t k = 0; k < g_nalgos; k++) {
        if (strcmp(g_algos[k].name, "pair") == 0)
            pair = &g_algos[k];
    }
    ck_assert_ptr_nonnull(pair);
    prove_one(pair, 2, 64 * 1024 / ELEM, 0, false, false);
    prove_one(pair, 2, 64 * 1024 / ELEM + 1, 0, false, true);
    prove_one(pair, 2, 5 * 64 * 1024 / ELEM - 1, 0, false, true);
}
END_TEST

/* Floats: the same bits on every rank, near the exact sum. */
static void all_reduce_f32(const struct algo *a, int n, size_t count)
{
    static struct job_case k;
    struct cluster c;
    uint64_t seed = (uint64_t)n * 77 + count;
    double *total = xcalloc(2 * count, sizeof(*total));
    memset(&k, 0, sizeof(k));
    k.coll = (struct coll){.kind = a->kind, .size = n};
    lay_out(&k, count); /* as many i64 as pairs of f32 */
    cluster_init(&c, &k, (unsigned)seed);
    ck_assert_int_eq(reduce_find(DLCOLL_F32, DLCOLL_SUM, &c.reduce), 0);
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < 2 * count; i++) {
            float v = (float)random_bits(&seed) / (float)(1ull << 53) - 0.5f;
            memcpy(c.in[r] + i * 4, &v, 4);
            total[i] += v;
        }
    }
    perform(&c, a, &k, 4);
    for (int r = 0; r < n; r++)
        NEED(memcmp(c.out[r], c.out[0], count * ELEM) == 0,
             "%s on %d ranks: rank %d has other bits than rank 0", a->name, n, r);
    for (size_t i = 0; i < 2 * count; i++) {
        float v;
        memcpy(&v, c.out[0] + i * 4, 4);
        NEED(fabs(v - total[i]) < n * 1e-6, "element %zu is %g, not %g", i, v, total[i]);
    }
    free(total);
    cluster_fini(&c);
}

START_TEST(floats_have_the_same_bits_on_every_rank)
{
    const struct algo *a = &g_algos[_i];
    for (int n = 2; n <= RANKS_MAX && a->kind == CALL_ALL_REDUCE; n += n < 10 ? 1 : 7) {
        struct coll c = {.kind = a->kind, .size = n};
        if (algo_allows(a, &c))
            all_reduce_f32(a, n, 117);
    }
}
END_TEST

/* For every kind, all sizes, parts and orders have an algorithm, and all ranks select the same one.
 */
START_TEST(there_is_always_a_choice)
{
    for (size_t k = 0; k < g_nalgos; k++) {
        for (int n = 1; n < 4096; n = n < 70 ? n + 1 : n * 2) {
            for (int i = 0; i < 4; i++) {
                struct coll c = {.kind = g_algos[k].kind, .size = n, .ordered = i & 1};
                c.uneven = i & 2;
                const struct algo *a = algo_any(&c);
                NEED(a->kind == c.kind && algo_allows(a, &c), "%s for %d ranks", a->name, n);
                c.rank = n - 1;
                NEED(algo_any(&c) == a, "another choice on rank %d", c.rank);
            }
        }
    }
}
END_TEST

/* Every algorithm that the built-in rules name exists. */
START_TEST(rules_name_what_there_is)
{
    size_t n;
    const struct algo_rule *rules = algo_select_builtin(&n);
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (size_t k = 0; k < g_nalgos; k++)
            found = found || ((int)g_algos[k].kind == rules[i].kind &&
                              strcmp(g_algos[k].name, rules[i].algo) == 0);
        NEED(found || strcmp(rules[i].provider, "net") != 0, "there is no %s/%s",
             call_name(rules[i].kind), rules[i].algo);
    }
}
END_TEST

static bool is_in_a_rule(const struct algo *a)
{
    size_t n;
    const struct algo_rule *rules = algo_select_builtin(&n);
    for (size_t i = 0; i < n; i++) {
        if (rules[i].kind == (int)a->kind && strcmp(rules[i].algo, a->name) == 0)
            return true;
    }
    return false;
}

/* An algorithm that no built-in rule selects is one that the table in algo.c names as such, or the
 * one for a single rank. */
START_TEST(algorithms_without_a_rule_are_the_listed_ones)
{
    static const struct {
        enum call_kind kind;
        const char *name;
    } listed[] = {{CALL_ALL_REDUCE, "flat"}, {CALL_BARRIER, "flat"}};
    for (size_t k = 0; k < g_nalgos; k++) {
        bool expected = strcmp(g_algos[k].name, "self") == 0;
        for (size_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++)
            expected = expected || (g_algos[k].kind == listed[i].kind &&
                                    strcmp(g_algos[k].name, listed[i].name) == 0);
        NEED(is_in_a_rule(&g_algos[k]) != expected, "%s/%s", call_name(g_algos[k].kind),
             g_algos[k].name);
    }
}
END_TEST

/* The check that net.c makes of every schedule in tests finds what breaks the rules. */
START_TEST(invalid_schedules_are_detected)
{
    struct schedule s;
    schedule_init(&s);
    for (int fault = 0; fault < 7; fault++) {
        schedule_reset(&s);
        schedule_need_tmp(&s, 16);
        schedule_send(&s, fault == 1 ? 3 : 1, in(0), 8);
        schedule_recv(&s, fault == 2 ? 0 : 1, fault == 3 ? in(0) : tmp(0), 8);
        schedule_copy(&s, out(0), tmp(8), fault == 4 ? 9 : 8);
        if (fault == 5)
            schedule_send(&s, 1, in(8), 8);
        schedule_end_step(&s);
        if (fault == 6)
            schedule_send(&s, 1, in(0), 8); /* after the last step */
        NEED(schedule_is_valid(&s, 0, 3) == (fault == 0), "fault %d", fault);
    }
    schedule_fini(&s);
}
END_TEST

/* ---------------------------------------------------------------------------- order of operands */

/* Not commutative, but associative: a span of ranks, which may only be joined to the next one:
 * first * 100 + last, 0 for a broken one. */
static void join_spans(void *acc, const void *in, size_t n, dlcoll_dtype dtype, void *ctx)
{
    const int64_t *b = in;
    int64_t *a = acc;
    (void)dtype, (void)ctx;
    for (size_t i = 0; i < n; i++)
        a[i] = a[i] && b[i] && a[i] % 100 + 1 == b[i] / 100 ? a[i] / 100 * 100 + b[i] % 100 : 0;
}

static struct job_case plain(enum call_kind kind, int n, size_t count, int root)
{
    struct job_case k = {.coll = {.kind = kind, .size = n, .root = root}};
    lay_out(&k, count);
    return k;
}

START_TEST(operands_come_in_the_order_of_ranks)
{
    const struct algo *a = &g_algos[_i];
    dlcoll_op op;
    if (!call_reduces(a->kind))
        return;
    ck_assert_int_eq(dlcoll_op_create_user(&op, join_spans, NULL, DLCOLL_OP_ORDERED), 0);
    for (int n = 1; n <= RANKS_MAX; n++) {
        struct job_case k = plain(a->kind, n, 3, n / 2);
        struct cluster c;
        k.coll.ordered = true;
        if (!algo_allows(a, &k.coll))
            continue;
        cluster_init(&c, &k, (unsigned)n);
        ck_assert_int_eq(reduce_find(DLCOLL_I64, op, &c.reduce), 0);
        for (int r = 0; r < n; r++) {
            for (size_t e = 0; e < k.in_len[r]; e++)
                ((int64_t *)c.in[r])[e] = (r + 1) * 101;
        }
        perform(&c, a, &k, ELEM);
        for (int r = 0; r < n; r++) {
            int last = a->kind == CALL_SCAN ? r + 1 : a->kind == CALL_EXSCAN ? r : n;
            for (size_t e = 0; e < k.out_len[r] && last; e++)
                NEED(((int64_t *)c.out[r])[e] == 100 + last, "%s on %d ranks: rank %d has %lld",
                     a->name, n, r, (long long)((int64_t *)c.out[r])[e]);
        }
        cluster_fini(&c);
    }
    dlcoll_op_free(op);
}
END_TEST

/* ----------------------------------------------------------------------------------- the engine */

static const struct algo *find(enum call_kind kind, const char *name)
{
    for (size_t k = 0; k < g_nalgos; k++) {
        if (g_algos[k].kind == kind && strcmp(g_algos[k].name, name) == 0)
            return &g_algos[k];
    }
    ck_abort_msg("there is no %s", name);
}

START_TEST(another_call_is_found_out)
{
    struct cluster c;
    struct job_case k = plain(CALL_ALL_REDUCE, 3, 15, 0);
    struct op_signature good = {.kind = CALL_ALL_REDUCE, .dtype = DLCOLL_I64, .count = 15},
                        bad = good;
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
        bad.count = 16;
        break;
    }
    cluster_init(&c, &k, 2); /* a seed with which rank 1's header has left before rank 1 fails */
    for (int r = 0; r < 3; r++)
        start(&c, r, find(CALL_ALL_REDUCE, "ring"), &k, ELEM, r == 1 ? bad : good);
    turn(&c, results);
    /* Each receives from its left neighbour; rank 0's is not the odd one, but it is cut off. */
    ck_assert_int_eq(results[1], -EBADMSG);
    ck_assert_int_eq(c.engines[1].culprit, 0);
    ck_assert_int_eq(results[2], -EBADMSG);
    ck_assert_int_eq(c.engines[2].culprit, 1);
    ck_assert(sig_equal(&c.engines[2].theirs.sig, &bad));
    ck_assert_int_lt(results[0], 0);
    cluster_fini(&c);
}
END_TEST

START_TEST(another_number_is_found_out)
{
    struct cluster c;
    struct job_case k = plain(CALL_BARRIER, 2, 0, 0);
    int results[RANKS_MAX];
    cluster_init(&c, &k, 1);
    for (int r = 0; r < 2; r++)
        start(&c, r, find(CALL_BARRIER, "flat"), &k, 1,
              (struct op_signature){.kind = CALL_BARRIER});
    struct frame *frame = &c.engines[0].run.frame;
    if (_i == 0)
        frame->seq = 8;
    else if (_i == 1)
        frame->part = 1;
    else
        frame->history = 1; /* other calls before this one */
    turn(&c, results);
    ck_assert_int_eq(results[0], -EBADMSG);
    ck_assert_uint_eq(c.engines[0].theirs.seq, 7);
    cluster_fini(&c);
}
END_TEST

/* 2 waits for 1 to broadcast, 1 for 3, 3 for 2, and 0 for 2, to reduce: nobody gets from anybody
 * what he does not expect. */
START_TEST(ranks_that_wait_in_a_circle_find_out)
{
    struct cluster c;
    struct err e = ERR_INIT;
    struct job_case sums = plain(CALL_ALL_REDUCE, 4, 4, 0), casts = plain(CALL_BROADCAST, 4, 4, 1);
    struct op_signature sum_call = {.kind = CALL_ALL_REDUCE, .count = 4};
    struct op_signature cast_call = {.kind = CALL_BROADCAST, .root = 1, .count = 4};
    cluster_init(&c, &sums, 1);
    for (int r = 0; r < 4; r++) {
        if (r == 2)
            start(&c, r, find(CALL_BROADCAST, "binomial"), &casts, ELEM, cast_call);
        else
            start(&c, r, find(CALL_ALL_REDUCE, "doubling"), &sums, ELEM, sum_call);
    }
    for (int k = 0; k < 1000; k++) {
        for (int r = 0; r < 4; r++)
            NEED(engine_progress(&c.engines[r], &e) == 1, "rank %d is not stuck", r);
    }
    ck_assert_int_eq(engine_wait(&c.engines[2], mono_ns() + 5000000000u, &e), -EBADMSG);
    ck_assert(c.engines[2].culprit == 3 || c.engines[2].culprit == 0);
    ck_assert(sig_equal(&c.engines[2].theirs.sig, &sum_call));
    /* The others are where they should be; theirs is to wait. */
    ck_assert_int_eq(engine_wait(&c.engines[1], mono_ns() + 100000000u, &e), -ETIMEDOUT);
    cluster_fini(&c);
}
END_TEST

START_TEST(a_closed_pipe_ends_the_run_and_names_the_rank)
{
    struct cluster c;
    struct err e = ERR_INIT;
    struct job_case k = plain(CALL_ALL_REDUCE, 4, 2000, 0);
    struct op_signature call = {.kind = CALL_ALL_REDUCE, .count = 2000};
    cluster_init(&c, &k, 5);
    for (int r = 0; r < 4; r++)
        start(&c, r, find(CALL_ALL_REDUCE, "ring"), &k, ELEM, call);
    for (int t = 0; t < 20; t++) {
        for (int r = 0; r < 4; r++)
            ck_assert_int_eq(engine_progress(&c.engines[r], &e), 1);
    }
    mem_net_close(c.net, 2);
    int r3 = 1, r1 = 1;
    for (int t = 0; t < 1000 && (r3 == 1 || r1 == 1); t++) {
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

static bool says_stop(const void *arg)
{
    return *(const bool *)arg;
}

START_TEST(waiting_ends_at_the_deadline_and_when_it_is_told)
{
    struct cluster c;
    struct err e = ERR_INIT;
    bool stop = true;
    struct job_case k = plain(CALL_BARRIER, 2, 0, 0);
    cluster_init(&c, &k, 1);
    start(&c, 0, find(CALL_BARRIER, "flat"), &k, 1, (struct op_signature){.kind = CALL_BARRIER});
    ck_assert_int_eq(engine_wait(&c.engines[0], mono_ns() + 1000000, &e), -ETIMEDOUT);
    ck_assert_int_eq(c.engines[0].culprit, 1);
    c.engines[0].stopped = says_stop;
    c.engines[0].stopped_arg = &stop;
    ck_assert_int_eq(engine_wait(&c.engines[0], 0, &e), -ECANCELED);
    cluster_fini(&c);
}
END_TEST

/* Ranks of a schedule that are not those of the transport. */
START_TEST(a_list_of_ranks_works_among_itself)
{
    struct cluster c;
    struct err e = ERR_INIT;
    static const int map[] = {4, 1, 3};
    struct job_case k = plain(CALL_ALL_REDUCE, 3, 100, 0), all = plain(CALL_ALL_REDUCE, 5, 100, 0);
    struct op_signature call = {.kind = CALL_ALL_REDUCE, .count = 100};
    int left = 3, result[3] = {1, 1, 1};
    cluster_init(&c, &all, 9);
    for (int i = 0; i < 3; i++) {
        struct engine *en = &c.engines[map[i]];
        struct coll coll = coll_of(&k, i);
        schedule_reset(&c.schedules[map[i]]);
        find(CALL_ALL_REDUCE, "ring")->build(&c.schedules[map[i]], &coll);
        for (size_t el = 0; el < 100; el++)
            ((int64_t *)c.in[map[i]])[el] = value(i, el);
        struct engine_run run = {.schedule = &c.schedules[map[i]],
                                 .in = c.in[map[i]],
                                 .out = c.out[map[i]],
                                 .reduce = &c.reduce,
                                 .elem = ELEM,
                                 .frame = {.seq = 3, .part = 2, .sig = call},
                                 .map = map};
        ck_assert_int_eq(engine_start(en, &run, &e), 0);
    }
    for (int turns = 0; left; turns++) {
        NEED(turns < 100000, "stuck");
        for (int i = 0; i < 3; i++) {
            if (result[i] == 1 && (result[i] = engine_progress(&c.engines[map[i]], &e)) != 1)
                left--;
        }
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(result[i], 0);
        for (size_t el = 0; el < 100; el++)
            ck_assert_int_eq(((int64_t *)c.out[map[i]])[el], sum(3, el));
    }
    cluster_fini(&c);
}
END_TEST

START_TEST(calls_are_described_whatever_they_hold)
{
    char text[SIG_TEXT_MAX];
    struct op_signature c = {.kind = CALL_ALL_REDUCE, .dtype = DLCOLL_F32, .count = 12};
    ck_assert_str_eq(sig_describe(&c, text), "all_reduce of 12 f32 (sum)");
    c = (struct op_signature){.kind = CALL_BROADCAST, .dtype = DLCOLL_U8, .root = 3, .count = 1};
    ck_assert_str_eq(sig_describe(&c, text), "broadcast of 1 u8 from rank 3");
    c = (struct op_signature){.kind = CALL_BARRIER};
    ck_assert_str_eq(sig_describe(&c, text), "barrier");
    for (int kind = 0; kind <= CALL_KINDS; kind++) {
        c.kind = (uint8_t)kind;
        ck_assert_uint_gt(strlen(sig_describe(&c, text)), 0);
        ck_assert_ptr_nonnull(call_name(kind));
    }
    memset(&c, 0xff, sizeof(c));
    ck_assert_str_eq(sig_describe(&c, text), "unknown operation");
    c.kind = CALL_ALL_REDUCE;
    ck_assert_str_eq(sig_describe(&c, text),
                     "all_reduce of 18446744073709551615 unknown type (unknown reduction)");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("algo");
    TCase *tc = test_case(s, "algorithms", 120);
    tcase_add_loop_test(tc, every_algorithm_at_every_size, 0, (int)g_nalgos);
    tcase_add_loop_test(tc, every_algorithm_through_many_segments, 0, (int)g_nalgos);
    tcase_add_loop_test(tc, operands_come_in_the_order_of_ranks, 0, (int)g_nalgos);
    tcase_add_loop_test(tc, floats_have_the_same_bits_on_every_rank, 0, (int)g_nalgos);
    tcase_add_test(tc, pair_works_through_many_chunks);
    tcase_add_test(tc, there_is_always_a_choice);
    tcase_add_test(tc, rules_name_what_there_is);
    tcase_add_test(tc, algorithms_without_a_rule_are_the_listed_ones);
    tcase_add_test(tc, invalid_schedules_are_detected);
    tc = test_case(s, "parts", 60);
    tcase_add_loop_test(tc, parts_of_all_lengths_keep_the_rules, 0, (int)g_nalgos);
    tcase_add_loop_test(tc, short_parts_between_long_ones_arrive, 0, (int)g_nalgos);
    tc = test_case(s, "engine", 20);
    tcase_add_loop_test(tc, another_call_is_found_out, 0, 5);
    tcase_add_loop_test(tc, another_number_is_found_out, 0, 3);
    tcase_add_test(tc, ranks_that_wait_in_a_circle_find_out);
    tcase_add_test(tc, a_closed_pipe_ends_the_run_and_names_the_rank);
    tcase_add_test(tc, waiting_ends_at_the_deadline_and_when_it_is_told);
    tcase_add_test(tc, a_list_of_ranks_works_among_itself);
    tc = test_case(s, "calls", 20);
    tcase_add_test(tc, calls_are_described_whatever_they_hold);
    return s;
}

TEST_MAIN(suite)
