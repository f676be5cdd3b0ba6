/* Operations through shared memory: ranks are threads here, so that a thread sanitizer sees who
 * reads what while who writes it. Every rank goes through one random sequence of operations, the
 * same for all, back to back, and compares each result with what it computes alone. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collectives/reduce/reduce.h"
#include "collectives/shm/inline_msg.h"
#include "collectives/shm/memory.h"
#include "collectives/shm/tuning.h"
#include "collectives/shm/shm.h"
#include "tests/lib/shm_world.h"
#include "tests/lib/test.h"

enum { MOST_BYTES = 96 * 1024, ROOM = MOST_BYTES + 64 };

static const dlcoll_dtype g_types[] = {DLCOLL_I8,     DLCOLL_U8,  DLCOLL_I16,  DLCOLL_U16,
                                       DLCOLL_I32,    DLCOLL_U32, DLCOLL_I64,  DLCOLL_U64,
                                       DLCOLL_F16,    DLCOLL_F32, DLCOLL_BF16, DLCOLL_F8E4M3,
                                       DLCOLL_F8E5M2, DLCOLL_F64, DLCOLL_BOOL};
static const dlcoll_op g_reductions[] = {DLCOLL_SUM,  DLCOLL_PROD, DLCOLL_MAX, DLCOLL_MIN,
                                         DLCOLL_AVG,  DLCOLL_BAND, DLCOLL_BOR, DLCOLL_BXOR,
                                         DLCOLL_LAND, DLCOLL_LOR};
static const enum call_kind g_kinds[] = {
    CALL_ALL_REDUCE, CALL_REDUCE,       CALL_REDUCE_SCATTER, CALL_REDUCE_SCATTER_V, CALL_BROADCAST,
    CALL_ALL_GATHER, CALL_ALL_GATHER_V, CALL_GATHER,         CALL_GATHER_V,         CALL_SCATTER,
    CALL_SCATTER_V,  CALL_ALL_TO_ALL,   CALL_ALL_TO_ALL_V,   CALL_BARRIER};
enum { KINDS = sizeof(g_kinds) / sizeof(g_kinds[0]) };

/* ----------------------------------------------------------------------------------- what to do */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* One operation; the same on every rank but for what depends on the rank's number. */
struct trial {
    uint64_t number;
    enum call_kind kind;
    dlcoll_dtype dtype;
    dlcoll_op op;
    size_t count; /* uneven ones: at most */
    int root;
};

struct run {
    struct shm_world w;
    pthread_barrier_t aged;
    uint64_t seed;
    int steps;
    enum call_kind only; /* CALL_NONE: all kinds */
    bool simple;         /* f32 and i32 sums alone */
    bool both;           /* data must go both ways (cost.h) */
    uint64_t done;       /* operations and chunks before it, in which `progress` has not moved */
};

struct rank {
    struct run *run;
    int me;
    dlcoll_comm *comm;
    uint8_t *own[2], *shared[2]; /* send and recv */
    uint8_t *send, *recv;        /* of this step */
    uint8_t *theirs[SHM_WORLD_MOST], *want;
    size_t counts[4][SHM_WORLD_MOST];
};

static uint64_t draw(const struct run *run, uint64_t step, uint64_t what)
{
    return mix(run->seed ^ mix(step << 8 | what));
}

static size_t draw_count(const struct run *run, uint64_t k, size_t most)
{
    static const size_t counts[] = {1, 3, 15, 17, 20, 64, 127, 129, 1000, 1023, 1025, 4096, 5000};
    uint64_t d = draw(run, k, 3);
    size_t n =
        d % 3 == 0 ? d / 7 % (most + 1) : counts[d / 7 % (sizeof(counts) / sizeof(counts[0]))];
    return n < most ? n : most;
}

static struct trial make_trial(const struct run *run, uint64_t k)
{
    struct trial s = {.number = k};
    struct reduce_info r;
    s.kind = run->only ? run->only : g_kinds[draw(run, k, 0) % KINDS];
    s.dtype = g_types[draw(run, k, 1) % (sizeof(g_types) / sizeof(g_types[0]))];
    s.op = g_reductions[draw(run, k, 2) % (sizeof(g_reductions) / sizeof(g_reductions[0]))];
    if (run->simple || reduce_find(s.dtype, s.op, &r) < 0) {
        s.dtype = draw(run, k, 1) % 2 ? DLCOLL_F32 : DLCOLL_I32;
        s.op = DLCOLL_SUM;
    }
    size_t most = MOST_BYTES / dtype_get(s.dtype)->size;
    bool parts = s.kind != CALL_ALL_REDUCE && s.kind != CALL_REDUCE && s.kind != CALL_BROADCAST;
    s.count = draw_count(run, k, parts ? most / (size_t)run->w.n : most);
    s.root = (int)(draw(run, k, 4) % (unsigned)run->w.n);
    return s;
}

/* Elements that rank i has for rank j in an uneven operation; sometimes none. */
static size_t uneven(const struct run *run, const struct trial *s, int i, int j)
{
    uint64_t d = draw(run, s->number, 64 + (uint64_t)i * 16 + (uint64_t)j);
    return d % 5 == 0 ? 0 : d % (s->count + 1);
}

static void fill(const struct run *run, const struct trial *s, int rank, uint8_t *p, size_t bytes)
{
    const struct dtype *type = dtype_get(s->dtype);
    uint64_t x = draw(run, s->number, 32 + (uint64_t)rank);
    for (size_t i = 0; i < bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        p[i] = (uint8_t)(x >> 56);
        /* No infinity, no NaN: what becomes of its bits is not promised. */
        if (type->class == DTYPE_FLOAT && i % type->size == type->size - 1)
            p[i] &= 0xbf;
    }
}

/* -------------------------------------------------------------------------------------- buffers */

static bool is_v(enum call_kind kind)
{
    return kind == CALL_GATHER_V || kind == CALL_ALL_GATHER_V || kind == CALL_SCATTER_V ||
           kind == CALL_REDUCE_SCATTER_V || kind == CALL_ALL_TO_ALL_V;
}

/* Chooses the step's buffers: each rank draws on its own whether either is shared and aligned. */
static void choose_buffers(struct rank *me, const struct trial *s)
{
    uint64_t d = draw(me->run, s->number, 1000 + (uint64_t)me->me),
             all = draw(me->run, s->number, 5);
    bool shared[2] = {all % 2 || d % 2, all % 2 || d / 64 % 2};
    size_t shift = all / 2 % 2 ? d / 2 % 17 : 0; /* of no type's alignment */
    me->send = (shared[0] ? me->shared[0] : me->own[0]) + shift;
    me->recv = (shared[1] ? me->shared[1] : me->own[1]) + shift;
}

static bool in_place(const struct rank *me, const struct trial *s)
{
    return draw(me->run, s->number, 2000 + (uint64_t)me->me) % 3 == 0;
}

/* Everybody's send buffer, as it was before the step. */
static void make_inputs(struct rank *me, const struct trial *s, size_t bytes)
{
    for (int i = 0; i < me->run->w.n; i++)
        fill(me->run, s, i, me->theirs[i], bytes);
    memcpy(me->send, me->theirs[me->me], bytes);
    memset(me->recv, 0xa5, ROOM - 32);
}

/* ------------------------------------------------------------------------------------- one step */

__attribute__((noreturn)) static void complain(const struct rank *me, const struct coll_call *c,
                                               const char *what, int r)
{
    char text[SIG_TEXT_MAX];
    fprintf(stderr, "seed %#llx: rank %d of %d: %s (%s): %s (%d, culprit %d, %s)\n",
            (unsigned long long)me->run->seed, me->me, me->run->w.n, sig_describe(&c->sig, text),
            c->algo ? c->algo : "?", what, r, c->failure->culprit, c->failure->err.msg);
    _exit(1);
}

static void carry_out(struct rank *me, struct coll_call *c)
{
    int r = shm_world_run(c);
    if (r != 0)
        complain(me, c, "failed", r);
}

static void expect(struct rank *me, const struct coll_call *c, const void *got, const void *want,
                   size_t len)
{
    const uint8_t *a = got, *b = want;
    size_t i = 0;
    while (i < len && a[i] == b[i])
        i++;
    if (i < len)
        complain(me, c, "wrong result from byte", (int)i);
}

/* Elements [from, from + count) of the reduction of all inputs, into me->want. */
static void reduce_all(struct rank *me, const struct trial *s, size_t from, size_t count)
{
    struct reduce_info r;
    const void *src[SHM_WORLD_MOST];
    reduce_find(s->dtype, s->op, &r);
    r.ranks = me->run->w.n;
    for (int i = 0; i < r.ranks; i++)
        src[i] = me->theirs[i] + from * r.dtype->size;
    reduce_many(&r, me->want, src, r.ranks, count);
    if (r.has_post)
        reduce_post(&r, me->want, me->want, count);
}

static void step_reduce(struct rank *me, const struct trial *s, struct coll_call *c)
{
    size_t len = s->count * c->elem;
    bool gets = s->kind == CALL_ALL_REDUCE || s->root == me->me;
    make_inputs(me, s, len);
    c->send = me->send;
    c->recv = !gets ? NULL : in_place(me, s) ? me->send : me->recv;
    carry_out(me, c);
    reduce_all(me, s, 0, s->count);
    if (gets)
        expect(me, c, c->recv, me->want, len);
    if (c->recv != c->send)
        expect(me, c, c->send, me->theirs[me->me], len);
}

static void step_reduce_scatter(struct rank *me, const struct trial *s, struct coll_call *c)
{
    size_t at = 0, mine = 0, total = 0, *counts = me->counts[0];
    for (int i = 0; i < me->run->w.n; i++) {
        counts[i] = is_v(s->kind) ? uneven(me->run, s, 0, i) : s->count;
        at += i < me->me ? counts[i] : 0;
        mine = i == me->me ? counts[i] : mine;
        total += counts[i];
    }
    if (is_v(s->kind))
        c->send_parts.counts = counts;
    make_inputs(me, s, total * c->elem);
    c->send = me->send;
    c->recv = in_place(me, s) ? me->send + at * c->elem : me->recv;
    carry_out(me, c);
    reduce_all(me, s, at, mine);
    expect(me, c, c->recv, me->want, mine * c->elem);
}

static void step_broadcast(struct rank *me, const struct trial *s, struct coll_call *c)
{
    size_t len = s->count * c->elem;
    make_inputs(me, s, len);
    c->send = me->me == s->root ? me->send : NULL;
    c->recv = me->me == s->root && in_place(me, s) ? me->send : me->recv;
    carry_out(me, c);
    expect(me, c, c->recv, me->theirs[s->root], len);
}

/* gather(_v) and all_gather(_v): parts lie apart from each other when they are uneven. */
static void step_gather(struct rank *me, const struct trial *s, struct coll_call *c)
{
    bool all = s->kind == CALL_ALL_GATHER || s->kind == CALL_ALL_GATHER_V;
    bool gets = all || me->me == s->root, v = is_v(s->kind);
    size_t *counts = me->counts[0], *displs = me->counts[1], at = 0;
    for (int i = 0; i < me->run->w.n; i++) {
        counts[i] = v ? uneven(me->run, s, i, 0) : s->count;
        displs[i] = at;
        at += s->count;
    }
    make_inputs(me, s, s->count * c->elem);
    c->count = v && !all ? counts[me->me] : s->count;
    c->recv = gets ? me->recv : NULL;
    c->send = me->send;
    if (v && gets)
        c->recv_parts = (struct coll_parts){counts, displs};
    if (gets && in_place(me, s)) {
        uint8_t *part = me->recv + displs[me->me] * c->elem;
        memcpy(part, me->send, counts[me->me] * c->elem);
        c->send = part;
    }
    carry_out(me, c);
    for (int i = 0; gets && i < me->run->w.n; i++) {
        size_t end = (displs[i] + counts[i]) * c->elem;
        expect(me, c, me->recv + displs[i] * c->elem, me->theirs[i], counts[i] * c->elem);
        if (counts[i] < s->count && me->recv[end] != 0xa5)
            complain(me, c, "wrote behind a part", 0);
    }
}

static void step_scatter(struct rank *me, const struct trial *s, struct coll_call *c)
{
    bool root = me->me == s->root, v = is_v(s->kind);
    size_t *counts = me->counts[0], *displs = me->counts[1];
    for (int i = 0; i < me->run->w.n; i++) {
        counts[i] = v ? uneven(me->run, s, 0, i) : s->count;
        displs[i] = (size_t)i * s->count;
    }
    make_inputs(me, s, s->count * (size_t)me->run->w.n * c->elem);
    c->count = counts[me->me];
    c->send = root ? me->send : NULL;
    c->recv = me->recv;
    if (root && v)
        c->send_parts = (struct coll_parts){counts, displs};
    if (root && in_place(me, s))
        c->recv = me->send + displs[me->me] * c->elem;
    carry_out(me, c);
    expect(me, c, c->recv, me->theirs[s->root] + displs[me->me] * c->elem,
           counts[me->me] * c->elem);
}

static void step_all_to_all(struct rank *me, const struct trial *s, struct coll_call *c)
{
    bool v = is_v(s->kind);
    int n = me->run->w.n;
    for (int i = 0; i < n; i++) {
        me->counts[0][i] = v ? uneven(me->run, s, me->me, i) : s->count; /* to i */
        me->counts[2][i] = v ? uneven(me->run, s, i, me->me) : s->count; /* from i */
        me->counts[1][i] = me->counts[3][i] = (size_t)i * s->count;
    }
    make_inputs(me, s, s->count * (size_t)n * c->elem);
    c->send = me->send;
    c->recv = !v && in_place(me, s) ? me->send : me->recv;
    if (v) {
        c->send_parts = (struct coll_parts){me->counts[0], me->counts[1]};
        c->recv_parts = (struct coll_parts){me->counts[2], me->counts[3]};
    }
    carry_out(me, c);
    size_t mine = (size_t)me->me * s->count * c->elem;
    for (int i = 0; i < n; i++)
        expect(me, c, (uint8_t *)c->recv + me->counts[3][i] * c->elem, me->theirs[i] + mine,
               me->counts[2][i] * c->elem);
}

static void do_step(struct rank *me, const struct trial *s)
{
    struct coll_call c = shm_world_call(me->comm, s->kind, s->count, s->dtype, s->op, s->root);
    choose_buffers(me, s);
    switch (s->kind) {
    case CALL_ALL_REDUCE:
    case CALL_REDUCE:
        step_reduce(me, s, &c);
        break;
    case CALL_REDUCE_SCATTER:
    case CALL_REDUCE_SCATTER_V:
        step_reduce_scatter(me, s, &c);
        break;
    case CALL_BROADCAST:
        step_broadcast(me, s, &c);
        break;
    case CALL_SCATTER:
    case CALL_SCATTER_V:
        step_scatter(me, s, &c);
        break;
    case CALL_ALL_TO_ALL:
    case CALL_ALL_TO_ALL_V:
        step_all_to_all(me, s, &c);
        break;
    case CALL_BARRIER:
        carry_out(me, &c);
        break;
    default:
        step_gather(me, s, &c);
    }
}

/* ----------------------------------------------------------------------------------------- runs */

static bool has_timed_both(const struct shm_peer *p)
{
    for (int kind = 0; kind < COST_KINDS; kind++) {
        if (p->costs[kind][0].ps[COST_STAGED] && p->costs[kind][0].ps[COST_PULLED])
            return true;
    }
    return false;
}

/* Sets the counters as if the rank had done so many small operations, each with a chunk. */
static void age(struct rank *me)
{
    struct shm *s = me->comm->shm;
    struct coll_call meet = shm_world_call(me->comm, CALL_BARRIER, 0, DLCOLL_U8, DLCOLL_SUM, 0);
    carry_out(me, &meet);
    pthread_barrier_wait(&me->run->aged);
    s->seq = s->all_entered = me->run->done;
    s->chunk = s->read = me->run->done + 1;
    /* The library publishes progress every 2^24 operations. */
    struct shm_progress *p = &s->progress[me->me];
    atomic_store(&p->staged, (uint32_t)(me->run->done - 1000));
    atomic_store(&p->reduced, (uint32_t)(me->run->done - 1000));
    atomic_store(&p->done, (uint32_t)(me->run->done - 1000));
    for (uint64_t seq = s->seq - SHM_ARRIVALS + 1; seq <= s->seq; seq++) {
        s->bases[seq % SHM_ARRIVALS] = seq;
        atomic_store(&shm_arrival(s, seq, me->me)->seq, (uint32_t)seq);
    }
    pthread_barrier_wait(&me->run->aged);
    carry_out(me, &meet);
}

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    me->comm = shm_world_comm(&me->run->w, me->me);
    if (me->run->done)
        age(me);
    for (int i = 0; i < 2; i++) {
        me->own[i] = malloc(ROOM);
        me->shared[i] = shm_alloc(me->comm, ROOM);
    }
    for (int i = 0; i < me->run->w.n; i++)
        me->theirs[i] = malloc(ROOM);
    me->want = malloc(ROOM);
    for (int k = 0; k < me->run->steps; k++) {
        struct trial s = make_trial(me->run, (uint64_t)k);
        do_step(me, &s);
    }
    if (me->run->both && !has_timed_both(&me->comm->shm->peers[me->me])) {
        fprintf(stderr, "rank %d has not tried both ways\n", me->me);
        _exit(1);
    }
    for (int i = 0; i < me->run->w.n; i++)
        free(me->theirs[i]);
    for (int i = 0; i < 2; i++)
        free(me->own[i]);
    free(me->want);
    return NULL;
}

static void run_threads(struct run *run)
{
    static struct rank ranks[SHM_WORLD_MOST];
    pthread_t threads[SHM_WORLD_MOST];
    memset(ranks, 0, sizeof(ranks));
    for (int i = 0; i < run->w.n; i++) {
        ranks[i] = (struct rank){.run = run, .me = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < run->w.n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < run->w.n; i++)
        shm_world_close(ranks[i].comm);
}

#define HUGE_BYTES ((size_t)1 << 40)

enum { FLAT, STAGED, STAGED_LARGE, DIRECT, PULLED, MIXED, EACH_WAY, COMPARED, WAYS };

static void flat_up_to(struct shm_tuning *t, size_t bytes)
{
    t->flat = bytes;
}

static void pull_from(struct shm_tuning *t, size_t bytes)
{
    t->pull = t->pull_shared = t->pull_crowded = t->pull_crowded_shared = bytes;
}

static void pieces_of(struct shm_tuning *t, size_t few, size_t many, size_t chunk)
{
    t->piece_few = t->piece_move = few;
    t->piece_many = many;
    t->chunk_move = t->chunk_reduce = chunk;
}

/* Thresholds that force a way. */
static struct shm_tuning tuning_of(int way)
{
    struct shm_tuning t = {
        .direct = HUGE_BYTES, .direct_stream = HUGE_BYTES, .compare = HUGE_BYTES};
    flat_up_to(&t, HUGE_BYTES);
    pull_from(&t, HUGE_BYTES);
    pieces_of(&t, 512, 256, 2048);
    t.piece_move = 1024;
    switch (way) {
    case FLAT:
        break;
    case STAGED:
        t.inlined = SHM_INLINE_BYTES;
        flat_up_to(&t, 0);
        pieces_of(&t, 1024, 512, 4096);
        t.piece_move = 2048;
        break;
    case STAGED_LARGE:
        flat_up_to(&t, 0);
        pieces_of(&t, 65536, 16384, 262144);
        break;
    case DIRECT:
        t.inlined = SHM_INLINE_BYTES;
        flat_up_to(&t, 0);
        t.direct = 0;
        t.direct_stream = 256;
        break;
    case PULLED:
        pull_from(&t, 0);
        break;
    case MIXED:
        t.inlined = INLINE_MSG_MOST;
        flat_up_to(&t, 8192);
        t.direct = 2048;
        pull_from(&t, 2048);
        pieces_of(&t, 4096, 1024, 8192);
        break;
    case EACH_WAY: /* a rank whose buffers are shared tries each of them in turn */
        t.inlined = INLINE_MSG_MOST;
        t.direct = t.compare = 0;
        pull_from(&t, 0);
        pieces_of(&t, 4096, 1024, 8192);
        break;
    default: /* COMPARED */
        t.inlined = SHM_INLINE_BYTES;
        flat_up_to(&t, 8192);
        pull_from(&t, 512);
        t.compare = 512;
        pieces_of(&t, 4096, 1024, 8192);
    }
    return t;
}

static void run_way(int n, int way, uint64_t seed, int steps, enum call_kind only)
{
    struct run run = {.seed = seed, .steps = steps, .only = only};
    shm_tuning = tuning_of(way);
    shm_world_init(&run.w, n, 2);
    run_threads(&run);
    shm_world_fini(&run.w);
}

START_TEST(every_way_in_any_order)
{
    for (int way = 0; way < WAYS; way++)
        run_way(_i, way, 0x5eed + (uint64_t)(_i * 100 + way), 40, CALL_NONE);
}
END_TEST

/* One kind again and again: ranks get as far ahead of each other as they can. */
START_TEST(every_kind_again_and_again)
{
    for (int way = 0; way < WAYS; way++)
        run_way(4, way, 0xabcd + (uint64_t)way, 20, g_kinds[_i]);
}
END_TEST

/* The first way that is tried publishes state to the other ranks, which stays valid when they go
 * another way. */
START_TEST(ways_that_are_tried_and_left)
{
    run_way(2, EACH_WAY, 0x7e57, 200, g_kinds[_i]);
    run_way(3, EACH_WAY, 0x7e58, 100, g_kinds[_i]);
}
END_TEST

/* While two ways are compared, data takes both, and each rank learns the cost of each. */
START_TEST(both_ways_are_tried)
{
    struct run run = {.seed = 0xc057, .steps = 120, .only = CALL_ALL_TO_ALL, .both = true};
    shm_tuning = tuning_of(COMPARED);
    shm_world_init(&run.w, 3, 3);
    run_threads(&run);
    shm_world_fini(&run.w);
}
END_TEST

/* Each way, after others that have said nothing of it, and across the wrap. */
START_TEST(numbers_may_wrap)
{
    static const uint64_t done[] = {(1ull << 31) - 20, (1ull << 31) + 5, (1ull << 32) - 20};
    for (int way = 0; way < WAYS; way++) {
        struct run run = {.seed = 0x3a9 + (uint64_t)way, .steps = 40, .done = done[_i]};
        shm_tuning = tuning_of(way);
        shm_world_init(&run.w, 3, 2);
        pthread_barrier_init(&run.aged, NULL, 3);
        run_threads(&run);
        pthread_barrier_destroy(&run.aged);
        shm_world_fini(&run.w);
    }
}
END_TEST

/* In the launcher's memory nobody offers what others then know the version of. */
START_TEST(memory_of_another_version_is_refused)
{
    struct shm_world w;
    struct err e = ERR_INIT;
    shm_world_init(&w, 2, 2);
    dlcoll_comm *c = shm_world_comm(&w, 0);
    atomic_fetch_add(&c->shm->head->version, 1);
    shm_close(c);
    ck_assert_int_eq(shm_open_heap(c, (char *)w.heap + 4096, w.bytes - 4096, &e), -EPROTO);
    ck_assert_msg(strstr(e.msg, "another version of libdlcoll"), "%s", e.msg);
    shm_world_close(c);
    shm_world_fini(&w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("shm");
    TCase *tc = test_case(s, "operations", 120);
    tcase_add_loop_test(tc, every_way_in_any_order, 1, 10);
    tcase_add_loop_test(tc, every_kind_again_and_again, 0, KINDS);
    tcase_add_loop_test(tc, ways_that_are_tried_and_left, 0, KINDS);
    tcase_add_test(tc, both_ways_are_tried);
    tcase_add_loop_test(tc, numbers_may_wrap, 0, 3);
    tcase_add_test(tc, memory_of_another_version_is_refused);
    return s;
}

TEST_MAIN(suite)
