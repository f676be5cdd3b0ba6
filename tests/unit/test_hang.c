/* The watch over silent workers (hang.c): hours of a job of two nodes on a virtual clock, which
 * libuv reads, too. The test is the workers of the first node, whose signs of life it makes up, the
 * coordinator, and both nodes' answers to the gatherer. Times are in milliseconds. */
#include "tests/lib/loop.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent/stacks/hang.h"

enum {
    WATCHED = 4, /* ranks of the first node */
    RANKS = 6,
    AFTER = 500, /* --hang_after */
    STEP = 1,    /* kinds of operations */
    SAVE,
    AWAIT_WORK,
    VERDICTS_MAX = 16,
    MINUTE = 60000,
    HOUR = 60 * MINUTE
};

#define MS UINT64_C(1000000)

static uint64_t g_now; /* in nanoseconds; 0: the clock is the real one */

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (!g_now || (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE))
        return (int)syscall(SYS_clock_gettime, id, t);
    *t = (struct timespec){(time_t)(g_now / 1000000000), (long)(g_now % 1000000000)};
    return 0;
}

/* A rank as a sample shows it. */
enum place {
    WAITS,    /* in the operation that it has begun last */
    SLEEPS,   /* somewhere else */
    WRITES,   /* a checkpoint */
    COMPUTES, /* in ever other functions */
    LOOPS,    /* in one function, for ever */
    STARVES   /* in its operation, without a CPU */
};

struct rank {
    bool gone;
    enum place place;
    struct hang_signs signs;
};

struct seen {
    uint64_t at; /* since the job has begun to hang */
    struct verdict v;
};

static struct {
    uv_loop_t loop;
    struct gatherer *g;
    struct hang *h;
    struct rank_table table;
    struct rank_table_node nodes[2];
    struct rank rank[RANKS];
    bool follows;               /* the coordinator is on the other node */
    bool cut_off;               /* the other node does not answer */
    uint64_t asked, asked_here; /* requests of the gatherer that were not answered yet */
    int samples;                /* that were asked for */
    struct seen seen[VERDICTS_MAX];
    int nseen, lives, alone;
    struct rdzv_request suspicion; /* the newest */
    int suspicions;
    uint64_t hung_ns, sampled_ns; /* the job hangs since; the last sample was asked for */
    int nclosed;
} t;

/* ------------------------------------------------------------------------------------ the gatherer
 */

static void get_node(void *arg, struct gather_node *out)
{
    (void)arg;
    *out = (struct gather_node){.table = &t.table, .host = "n0"};
}

static bool on_request(void *arg, const struct rdzv_request *r)
{
    (void)arg;
    if (r->kind == REQUEST_SUSPECT) {
        t.suspicion = *r;
        t.suspicions++;
    } else if (r->kind == REQUEST_PRESENCE) {
        t.asked_here = r->id;
    } else {
        t.asked = r->id;
        t.sampled_ns = g_now;
        t.samples++;
    }
    return true;
}

static void add_sample(struct samples *all, int rank)
{
    const struct rank *w = &t.rank[rank];
    struct sample *s = samples_add(all);
    bool inside = w->place == WAITS || w->place == STARVES;
    s->rank = rank;
    s->node = rank >= WATCHED;
    s->pid = 100 + rank;
    snprintf(s->host, sizeof(s->host), "n%d", s->node);
    s->op = (struct sample_op){
        .number = w->signs.ops, .seq = w->signs.ops, .open = inside && w->signs.ops};
    snprintf(s->op.text, sizeof(s->op.text), "barrier");
    s->io_bytes = w->place == WRITES ? g_now : 0;
    s->cpu_ms = w->place == LOOPS ? g_now / MS : 0;
    s->active = rank < WATCHED && hang_was_active(t.h, rank);
    struct sample_thread *thread = sample_add_thread(s, s->pid);
    thread->state = w->place == LOOPS || w->place == STARVES ? 'R' : 'S';
    sample_add_frame(thread, "main (t.c:1)");
    sample_add_frame(thread, inside                 ? "barrier (ops.c:2)"
                             : w->place == COMPUTES ? test_text("f%d (t.c:3)", t.samples)
                                                    : "save (t.c:4)");
}

/* Both nodes answer what they were asked. */
static void answer(void)
{
    struct samples all = {0};
    struct buf here = BUF_INIT, stacks = BUF_INIT;
    uint32_t nodes = t.cut_off ? 1 : 2;
    if (!t.asked)
        return;
    for (uint32_t i = 0; i < nodes; i++)
        buf_u32(&here, i);
    for (int i = 0; i < (t.cut_off ? WATCHED : RANKS); i++)
        add_sample(&all, i);
    buf_u32(&stacks, nodes);
    samples_encode(&stacks, &all);
    const struct rdzv_answer
        first = {.kind = REQUEST_PRESENCE, .id = t.asked_here, .data = here.data, .len = here.len},
        second = {.kind = REQUEST_STACKS, .id = t.asked, .data = stacks.data, .len = stacks.len};
    t.asked = 0;
    gatherer_on_answer(t.g, &first);
    gatherer_on_answer(t.g, &second);
    samples_fini(&all);
    buf_fini(&here);
    buf_fini(&stacks);
}

/* --------------------------------------------------------------------------------------- the agent
 */

static bool get_signs(void *arg, int local_rank, struct hang_signs *out)
{
    (void)arg;
    *out = t.rank[local_rank].signs;
    return !t.rank[local_rank].gone;
}

static bool get_op(void *arg, int local_rank, uint64_t number, struct hang_signs *out)
{
    (void)arg, (void)local_rank, (void)number, (void)out;
    return false;
}

static bool leads(void *arg)
{
    (void)arg;
    return !t.follows;
}

static struct gatherer *get_gatherer(void *arg)
{
    (void)arg;
    return t.g;
}

static void on_verdict(void *arg, const struct verdict *v, const struct samples *all)
{
    (void)arg;
    ck_assert_uint_eq(all->n, RANKS);
    ck_assert_int_lt(t.nseen, VERDICTS_MAX);
    t.seen[t.nseen++] = (struct seen){(g_now - t.hung_ns) / MS, *v};
    hang_declared(t.h);
}

static void on_no_coordinator(void *arg)
{
    (void)arg;
    t.alone++;
    hang_declared(t.h);
}

static void on_life(void *arg)
{
    (void)arg;
    t.lives++;
}

static const uint64_t start_ns = 1000 * MS;

/* Check takes the time of a test by this clock, and cannot count more than half an hour. */
static void turn_clock_back(void)
{
    g_now = start_ns;
}

static void setup(void)
{
    const struct gather_callbacks gathering = {.get_node = get_node, .request = on_request};
    const struct hang_callbacks cb = {.get_signs = get_signs,
                                      .get_op = get_op,
                                      .leads = leads,
                                      .request = on_request,
                                      .gatherer = get_gatherer,
                                      .on_verdict = on_verdict,
                                      .on_no_coordinator = on_no_coordinator,
                                      .on_life = on_life};
    g_now = start_ns;
    loop_setup(&t.loop);
    for (int i = 0; i < 2; i++) {
        snprintf(t.nodes[i].host, sizeof(t.nodes[i].host), "n%d", i);
        t.nodes[i].nproc = i ? RANKS - WATCHED : WATCHED;
        t.nodes[i].base_rank = i ? WATCHED : 0;
    }
    t.table = (struct rank_table){.nnodes = 2, .world_size = RANKS, .nodes = t.nodes};
    t.g = gatherer_new(&t.loop, NULL, &gathering);
    t.h = hang_new(&t.loop, WATCHED, AFTER / 1e3, &cb);
    hang_reset(t.h, true);
}

static void on_closed(void *arg)
{
    (void)arg;
    t.nclosed++;
}

static void teardown(void)
{
    gatherer_close(t.g, on_closed, NULL);
    hang_close(t.h, on_closed, NULL);
    loop_turns(&t.loop, 10);
    ck_assert_int_eq(t.nclosed, 2);
    loop_teardown(&t.loop);
    g_now = 0;
}

/* ---------------------------------------------------------------------------------------- the job
 */

/* Lets time pass, from one timer to the next. */
static void pass(uint64_t ms)
{
    for (uint64_t left = ms, part; left; left -= part) {
        int next = uv_backend_timeout(&t.loop);
        part = next < 0 || (uint64_t)next > left ? left : next ? (uint64_t)next : 1;
        g_now += part * MS;
        loop_turns(&t.loop, 1);
        answer();
    }
}

static void begin_operation(int rank, uint64_t kind)
{
    struct hang_signs *s = &t.rank[rank].signs;
    s->ops++;
    s->kind = kind;
    s->at_ns = g_now;
}

/* All ranks work for so long, then begin an operation. */
static void step(uint64_t ms, uint64_t kind)
{
    pass(ms);
    for (int i = 0; i < RANKS; i++)
        begin_operation(i, kind);
}

static void steps(int n, uint64_t ms)
{
    while (n--)
        step(ms, STEP);
}

/* All but this rank begin a step, which does not end. */
static void hang(int culprit, enum place place, uint64_t ms)
{
    t.hung_ns = g_now; /* its last sign of life */
    pass(ms);
    t.rank[culprit].place = place;
    for (int i = 0; i < RANKS; i++) {
        if (i != culprit)
            begin_operation(i, STEP);
    }
}

/* Rank 2 sleeps until this node has told the coordinator. */
static void hang_until_suspected(uint64_t ms)
{
    hang(2, SLEEPS, ms);
    while (!t.suspicions)
        pass(1);
}

static void go_on(int culprit)
{
    t.rank[culprit].place = WAITS;
    begin_operation(culprit, STEP);
    step(50, STEP);
    pass(50);
}

/* Ranks whose operations are not recorded send data so often; the one that loops only gets some,
 * and uses CPU time. */
static void send_data(int n, uint64_t ms)
{
    while (n--) {
        pass(ms);
        for (int i = 0; i < RANKS; i++) {
            struct hang_signs *s = &t.rank[i].signs;
            bool loops = t.rank[i].place == LOOPS;
            s->cpu_ms += loops ? ms : ms / 10;
            s->traffic += 1000;
            s->at_ns = g_now;
            if (!loops) {
                s->sent += 1000;
                s->sent_ns = g_now;
            }
        }
    }
}

static void all_are(enum place place)
{
    for (int i = 0; i < RANKS; i++)
        t.rank[i].place = place;
}

static void expect_verdict(int i, enum hang_state state, int culprit)
{
    ck_assert_int_gt(t.nseen, i);
    const struct verdict *v = &t.seen[i].v;
    ck_assert_msg(v->state == state, "verdict %d is %d: %s", i, v->state, v->text);
    ck_assert_msg(v->n == (culprit >= 0) && (culprit < 0 || v->ranks[0] == culprit),
                  "verdict %d names %d ranks: %s", i, v->n, v->text);
}

/* ------------------------------------------------------------------------------------------ tests
 */

static const struct {
    uint64_t step, limit;
} paces[] = {{10, AFTER}, {50, AFTER}, {150, AFTER}, {200, 600}, {300, 900}, {1000, 3000}};

/* The first sample is taken at 6 tenths of the limit, the verdict is there when it is over. */
START_TEST(the_verdict_comes_in_time)
{
    uint64_t limit = paces[_i].limit;
    steps(50, paces[_i].step);
    ck_assert_int_eq(t.samples, 0);
    hang(2, SLEEPS, paces[_i].step);
    while (!t.samples)
        pass(1);
    uint64_t first = (g_now - t.hung_ns) / MS;
    ck_assert_uint_ge(first, limit / 10 * 6);
    ck_assert_uint_le(first, limit / 10 * 6 + 30); /* a tick later */
    pass(limit);
    expect_verdict(0, HANG_HUNG, 2);
    ck_assert_uint_ge(t.seen[0].at, limit - 5);
    ck_assert_uint_le(t.seen[0].at, limit + 5);
    ck_assert_ptr_nonnull(strstr(t.seen[0].v.text, "rank 2 on n0 (pid 102) sleeps"));
    ck_assert_ptr_nonnull(strstr(t.seen[0].v.text, "; ranks 0, 1, 3-5 wait in barrier #51"));
}
END_TEST

/* Once, whatever time passes; and again when it has gone on meanwhile. Two times the length of the
 * longest gap of late is limit. */
START_TEST(a_hang_is_reported_once)
{
    steps(50, 100);
    for (int i = 0; i < 3; i++) {
        hang(i, SLEEPS, 100);
        pass(i == 2 ? 40 * MINUTE : i ? 25000 : 10000);
        ck_assert_int_eq(t.nseen, i + 1);
        expect_verdict(i, HANG_HUNG, i);
        ck_assert_int_eq(t.lives, i);
        go_on(i);
        ck_assert_int_eq(t.lives, i + 1);
        steps(50, 100);
    }
    ck_assert_int_eq(t.nseen, 3);
    ck_assert_int_le(t.samples, 200); /* ever less often */
    ck_assert_uint_le(t.seen[0].at, AFTER + 5);
    ck_assert_uint_gt(t.seen[1].at, 2 * 10000 * 31 / 32);
    ck_assert_uint_lt(t.seen[1].at, 2 * 10000);
    turn_clock_back();
}
END_TEST

/* The gap behind a checkpoint is another one than that within a step: it is learnt from the first
 * checkpoint, in which somebody writes. */
START_TEST(gaps_are_learnt_by_phase)
{
    for (int i = 0; i < 4; i++) {
        int samples = t.samples;
        steps(100, 100);
        ck_assert_int_eq(t.samples, samples);
        step(10, SAVE);
        t.rank[0].place = WRITES;
        step(20000, STEP);
        t.rank[0].place = WAITS;
        if (i > 0)
            ck_assert_int_eq(t.samples, samples);
        for (int k = 0; k < t.nseen; k++)
            ck_assert_int_eq(t.seen[k].v.state, HANG_SUSPECT);
    }
    t.nseen = 0;
    steps(20, 100);
    hang(1, SLEEPS, 100);
    pass(2 * AFTER);
    expect_verdict(0, HANG_HUNG, 1);
    ck_assert_uint_le(t.seen[0].at, AFTER + 5);
    go_on(1);
    steps(20, 100);
    step(10, SAVE);
    t.hung_ns = g_now;
    t.rank[3].place = SLEEPS;
    pass(2 * MINUTE);
    ck_assert_int_eq(t.nseen, 2);
    expect_verdict(1, HANG_HUNG, 3);
    ck_assert_uint_ge(t.seen[1].at, 59000);
    ck_assert_uint_le(t.seen[1].at, 61000);
}
END_TEST

/* Rank 0 compiles for five minutes, while the others wait for it. */
START_TEST(a_first_step_of_five_minutes)
{
    t.rank[0].place = COMPUTES;
    for (int i = 1; i < RANKS; i++)
        begin_operation(i, STEP);
    pass(MINUTE / 10 * 6 - 100);
    ck_assert_int_eq(t.samples, 0);
    pass(4 * MINUTE);
    go_on(0);
    for (int i = 0; i < t.nseen; i++)
        expect_verdict(i, HANG_SUSPECT, 0);
    ck_assert_int_le(t.nseen, 1);
    t.nseen = 0;
    steps(50, 100);
    ck_assert_int_eq(t.nseen, 0);
}
END_TEST

/* A job without work: all sleep in the same function, and nobody waits for anybody. */
START_TEST(idle_workers_do_not_hang)
{
    steps(50, 100);
    step(100, AWAIT_WORK);
    all_are(SLEEPS);
    pass(HOUR);
    ck_assert_int_eq(t.nseen, 0);
    ck_assert_int_le(t.samples, 720); /* they are looked at ever less often */
    all_are(WAITS);
    steps(50, 100);
    hang(2, SLEEPS, 100);
    pass(2 * AFTER);
    expect_verdict(0, HANG_HUNG, 2);
    turn_clock_back();
}
END_TEST

/* Rank 2 gets what the others send, and uses CPU time; but it sends nothing. */
START_TEST(a_loop_without_recorded_operations)
{
    send_data(50, 100);
    ck_assert_int_eq(t.samples, 0);
    t.hung_ns = g_now;
    t.rank[2].place = LOOPS;
    for (int i = 0; i < 20; i++) { /* the others are silent, but for what comes to rank 2 */
        pass(100);
        t.rank[2].signs.cpu_ms += 100;
        t.rank[2].signs.traffic += 10;
        t.rank[2].signs.at_ns = g_now;
    }
    ck_assert_int_eq(t.nseen, 1);
    expect_verdict(0, HANG_HUNG, 2);
    ck_assert_uint_le(t.seen[0].at, AFTER + 5);
}
END_TEST

/* One that has never sent often is watched by all its signs alone. */
START_TEST(a_worker_that_only_receives)
{
    t.rank[2].place = LOOPS;
    send_data(500, 100);
    ck_assert_int_eq(t.samples, 0);
    all_are(WAITS);
    steps(50, 100); /* operations are recorded from here on: what it sends does not matter */
    t.rank[1].signs.sent_ns = g_now;
    steps(600, 100);
    ck_assert_int_eq(t.samples, 0);
}
END_TEST

/* A worker that has ended is silent for good. */
START_TEST(a_worker_that_ends)
{
    steps(50, 100);
    all_are(SLEEPS);
    t.rank[0].gone = t.rank[1].gone = t.rank[3].gone = true;
    for (int i = 0; i < 600; i++) {
        pass(100);
        begin_operation(2, STEP);
    }
    ck_assert_int_eq(t.samples, 0);
    t.rank[2].gone = true;
    pass(10 * MINUTE);
    ck_assert_int_eq(t.samples, 0);
}
END_TEST

/* Workers that are started anew have learnt nothing; a verdict on those before is void. */
START_TEST(workers_that_are_restarted)
{
    steps(50, 100);
    hang(2, SLEEPS, 100);
    while (!t.samples)
        pass(1);
    pass(20); /* between the two samples */
    ck_assert_int_eq(t.nseen, 0);
    hang_reset(t.h, false);
    pass(10 * MINUTE); /* nobody is watched */
    ck_assert_int_eq(t.samples, 1);
    hang_reset(t.h, true);
    for (int i = 0; i < RANKS; i++)
        t.rank[i] = (struct rank){0};
    step(100, STEP);
    hang(1, SLEEPS, 100);
    pass(30000);
    ck_assert_int_eq(t.samples, 1);
    pass(2 * MINUTE);
    ck_assert_int_eq(t.nseen, 1);
    expect_verdict(0, HANG_HUNG, 1);
    ck_assert_uint_ge(t.seen[0].at, MINUTE - 5);
    ck_assert_uint_le(t.seen[0].at, MINUTE + 1000);
    /* The end of a round while samples are on their way. */
    go_on(1);
    steps(50, 100);
    hang(2, SLEEPS, 100);
    while (!t.asked && t.samples < 1000)
        g_now += MS, loop_turns(&t.loop, 1);
    hang_reset(t.h, true);
    pass(10000);
    ck_assert_int_eq(t.nseen, 1);
}
END_TEST

/* One that gets no CPU is suspect, and so is the job until it is certain. */
START_TEST(a_rank_without_a_cpu)
{
    steps(50, 100);
    hang(2, STARVES, 100);
    pass(10 * MINUTE);
    ck_assert_int_eq(t.nseen, 1);
    expect_verdict(0, HANG_SUSPECT, 2);
    t.rank[2].place = SLEEPS;
    pass(MINUTE);
    ck_assert_int_eq(t.nseen, 2);
    expect_verdict(1, HANG_HUNG, 2);
    go_on(2);
    ck_assert_int_eq(t.lives, 1);
}
END_TEST

/* A rank that is about to go on does so before the third verdict. */
START_TEST(a_suspicion_is_looked_at_again)
{
    steps(50, 100);
    hang(2, COMPUTES, 100);
    while (!t.nseen)
        pass(1);
    expect_verdict(0, HANG_SUSPECT, 2);
    ck_assert_uint_le(t.seen[0].at, AFTER + 5);
    t.rank[2].place = SLEEPS;
    pass(2 * 200 + 50);
    ck_assert_int_eq(t.nseen, 2);
    expect_verdict(1, HANG_HUNG, 2);
}
END_TEST

/* All wait in one operation. */
START_TEST(nobody_is_named_at_once)
{
    steps(50, 100);
    t.hung_ns = g_now;
    pass(AFTER + 50);
    ck_assert_int_eq(t.nseen, 1);
    expect_verdict(0, HANG_SUSPECT, -1);
    pass(MINUTE);
    ck_assert_int_eq(t.nseen, 2);
    expect_verdict(1, HANG_HUNG, -1);
    step(100, STEP);
    pass(50);
    ck_assert_int_eq(t.lives, 1);
}
END_TEST

/* A verdict about a node that does not answer is replaced when that node does. */
START_TEST(a_node_that_does_not_answer)
{
    steps(50, 100);
    t.cut_off = true;
    t.hung_ns = g_now;
    pass(MINUTE);
    ck_assert_int_eq(t.nseen, 1);
    ck_assert(t.seen[0].v.state == HANG_HUNG && t.seen[0].v.silent);
    ck_assert_int_eq(t.seen[0].v.n, RANKS - WATCHED);
    ck_assert_int_eq(t.seen[0].v.ranks[0], WATCHED);
    ck_assert_uint_le(t.seen[0].at, AFTER + 150);
    t.cut_off = false;
    t.rank[5].place = SLEEPS;
    t.rank[5].signs.ops--;
    pass(MINUTE);
    ck_assert_int_eq(t.nseen, 2);
    expect_verdict(1, HANG_HUNG, 5);
    ck_assert(!t.seen[1].v.silent);
}
END_TEST

/* The coordinator is on the other node, which is told, with what is left of the limit, and sends
 * that to all. */
START_TEST(a_node_tells_the_coordinator)
{
    t.follows = true;
    steps(50, 300);
    hang_until_suspected(300);
    uint64_t silence = (g_now - t.hung_ns) / MS;
    ck_assert_uint_eq(t.suspicion.suspect.left_ms + silence, 900);
    pass(100);
    hang_on_suspicion(t.h, &t.suspicion);
    pass(900); /* before the next one */
    ck_assert_int_eq(t.alone, 0);
    ck_assert_int_eq(t.samples, 0);
    hang_declared(t.h);
    ck_assert_int_eq(t.lives, 0);
    go_on(2);
    ck_assert_int_eq(t.lives, 1);
}
END_TEST

/* The coordinator's node does not react: this one says so itself when the time is over, unless its
 * workers have gone on. */
START_TEST(a_coordinator_that_does_not_react)
{
    t.follows = true;
    steps(50, 300);
    hang_until_suspected(300);
    go_on(2);
    steps(50, 300);
    ck_assert_int_eq(t.alone, 0);
    t.suspicions = 0;
    hang_until_suspected(300);
    pass(t.suspicion.suspect.left_ms - 5);
    ck_assert_int_eq(t.alone, 0);
    pass(20);
    ck_assert_int_eq(t.alone, 1);
    ck_assert_int_eq(t.lives, 0);
    go_on(2);
    ck_assert_int_eq(t.lives, 1);
}
END_TEST

/* Where this node's timers are late, the coordinator's may be so. */
START_TEST(a_busy_host_accuses_nobody)
{
    t.follows = true;
    steps(50, 100);
    hang_until_suspected(100);
    for (int i = 0; i < 5; i++) { /* the loop does not run */
        g_now += 400 * MS;
        loop_turns(&t.loop, 1);
        ck_assert_int_eq(t.alone, 0);
    }
    pass(1000);
    ck_assert_int_eq(t.alone, 1);
}
END_TEST

/* Another node suspects a hang: this one decides, though none of its workers is silent for long. */
START_TEST(the_coordinator_decides_for_others)
{
    const struct rdzv_request r = {.kind = REQUEST_SUSPECT, .suspect.left_ms = 200};
    steps(50, 1000); /* a limit of 3 s */
    hang(5, SLEEPS, 0);
    hang_on_suspicion(t.h, &r);
    pass(250);
    ck_assert_int_eq(t.nseen, 1);
    expect_verdict(0, HANG_HUNG, 5);
    ck_assert_uint_ge(t.seen[0].at, 195);
    ck_assert_uint_le(t.seen[0].at, 205);
    go_on(5);
    steps(5, 1000);
    ck_assert_int_eq(t.lives, 1);
    hang(5, SLEEPS, 0);
    hang_on_suspicion(t.h, &r);
    pass(250);
    ck_assert_int_eq(t.nseen, 2);
    expect_verdict(1, HANG_HUNG, 5);
}
END_TEST

START_TEST(active_until_half_of_the_limit)
{
    steps(50, 300);
    pass(440);
    for (int i = 0; i < WATCHED; i++)
        ck_assert(hang_was_active(t.h, i));
    pass(20);
    for (int i = 0; i < WATCHED; i++)
        ck_assert(!hang_was_active(t.h, i));
}
END_TEST

/* Training: a first step of five minutes, steps of 300 ms, a checkpoint every five minutes, an idle
 * hour. */
START_TEST(a_day_without_alarms)
{
    uint64_t end = start_ns + 24 * HOUR * MS;
    t.rank[0].place = COMPUTES;
    for (int i = 1; i < RANKS; i++)
        begin_operation(i, STEP);
    pass(5 * MINUTE);
    go_on(0);
    for (int i = 1; g_now < end; i++) {
        step(i % 7 ? 300 : 250, STEP);
        if (i % 1000)
            continue;
        step(10, SAVE);
        t.rank[0].place = WRITES;
        step(20000, STEP);
        t.rank[0].place = WAITS;
        if (i != 20000)
            continue;
        step(10, AWAIT_WORK);
        all_are(SLEEPS);
        pass(HOUR);
        all_are(WAITS);
    }
    for (int i = 0; i < t.nseen; i++)
        ck_assert_int_eq(t.seen[i].v.state, HANG_SUSPECT);
    ck_assert_int_le(t.nseen, 3); /* in the first step and the first checkpoint */
    hang(2, SLEEPS, 300);
    pass(1000);
    expect_verdict(t.nseen - 1, HANG_HUNG, 2);
    turn_clock_back();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hang");
    TCase *c = test_case(s, "hang", 120);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, the_verdict_comes_in_time, 0, sizeof(paces) / sizeof(*paces));
    tcase_add_test(c, a_hang_is_reported_once);
    tcase_add_test(c, gaps_are_learnt_by_phase);
    tcase_add_test(c, a_first_step_of_five_minutes);
    tcase_add_test(c, idle_workers_do_not_hang);
    tcase_add_test(c, a_loop_without_recorded_operations);
    tcase_add_test(c, a_worker_that_only_receives);
    tcase_add_test(c, a_worker_that_ends);
    tcase_add_test(c, workers_that_are_restarted);
    tcase_add_test(c, a_rank_without_a_cpu);
    tcase_add_test(c, a_suspicion_is_looked_at_again);
    tcase_add_test(c, nobody_is_named_at_once);
    tcase_add_test(c, a_node_that_does_not_answer);
    tcase_add_test(c, a_node_tells_the_coordinator);
    tcase_add_test(c, a_coordinator_that_does_not_react);
    tcase_add_test(c, a_busy_host_accuses_nobody);
    tcase_add_test(c, the_coordinator_decides_for_others);
    tcase_add_test(c, active_until_half_of_the_limit);
    tcase_add_test(c, a_day_without_alarms);
    suite_add_tcase(s, c);
    return s;
}

TEST_MAIN(suite)
