/* The order of failures, their texts, and their encoding. */
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/rules/cause.h"
#include "rendezvous/rules/clock_offset.h"
#include "rendezvous/rules/failure.h"
#include "rendezvous/rules/failure_log.h"
#include "rendezvous/rdzv.h"
#include "tests/lib/nsec.h"

/* Short records: what matters for the order. */
static struct failure make(enum failure_kind kind, int rank, uint64_t ms)
{
    struct failure f;
    failure_init(&f);
    f.kind = kind;
    f.rank = rank;
    f.local_rank = rank;
    f.seen_ns = (1000 + ms) * MSEC;
    return f;
}

static struct failure exited(int rank, uint64_t ms)
{
    struct failure f = make(FAILURE_EXIT, rank, ms);
    f.exit_code = 1;
    return f;
}

static struct failure killed(int rank, uint64_t ms, int signo)
{
    struct failure f = make(FAILURE_SIGNAL, rank, ms);
    f.signal = signo;
    return f;
}

static struct failure stopped(int rank, uint64_t ms)
{
    struct failure f = make(FAILURE_STOPPED, rank, ms);
    f.signal = SIGTERM;
    return f;
}

static struct failure node_lost(int node, uint64_t ms)
{
    struct failure f = make(FAILURE_NODE, -1, ms);
    f.node = node;
    return f;
}

static struct failure because(struct failure f, int rank)
{
    f.caused_by = rank;
    return f;
}

/* The first must come out whatever the order of the records. */
static void check_first(const struct failure *f, size_t n, size_t expected, int line)
{
    struct failure *turned = calloc(n, sizeof(*turned));
    for (size_t shift = 0; shift < n; shift++) {
        for (int reverse = 0; reverse < 2; reverse++) {
            for (size_t i = 0; i < n; i++)
                turned[reverse ? n - 1 - i : i] = f[(i + shift) % n];
            const struct failure *got = &turned[failure_first(turned, n)];
            ck_assert_msg(memcmp(got, &f[expected], sizeof(*got)) == 0,
                          "line %d, shift %zu: rank %d instead of %d", line, shift, got->rank,
                          f[expected].rank);
        }
    }
    free(turned);
}

#define CHECK_FIRST(expected, ...)                                          \
    do {                                                                    \
        const struct failure all[] = {__VA_ARGS__};                         \
        check_first(all, sizeof(all) / sizeof(all[0]), expected, __LINE__); \
    } while (0)

START_TEST(first_is_the_earliest)
{
    CHECK_FIRST(0, exited(3, 0));
    CHECK_FIRST(0, exited(3, 0), exited(1, 5), exited(2, 9));
    CHECK_FIRST(0, killed(3, 0, SIGSEGV), killed(1, 5, SIGSEGV));
    CHECK_FIRST(0, exited(1, 0), exited(2, 0)); /* at the same time: the lower rank */
    CHECK_FIRST(1, exited(1, 0), killed(2, 0, SIGSEGV));
}
END_TEST

START_TEST(a_stopped_worker_is_never_first)
{
    CHECK_FIRST(1, stopped(0, 0), exited(1, 500));
    CHECK_FIRST(0, stopped(0, 0), stopped(1, 5)); /* nothing else to name */
    struct failure oom = stopped(0, 0);
    oom.oom = true;
    CHECK_FIRST(1, oom, exited(1, 500));
}
END_TEST

START_TEST(first_is_the_hard_fault_within_the_skew)
{
    static const int hard[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGKILL};
    for (size_t i = 0; i < sizeof(hard) / sizeof(hard[0]); i++) {
        CHECK_FIRST(1, exited(0, 0), killed(1, 49, hard[i]));
        CHECK_FIRST(1, exited(0, 0), killed(1, 50, hard[i]));
        CHECK_FIRST(0, exited(0, 0), killed(1, 51, hard[i]));
        CHECK_FIRST(1, killed(0, 0, SIGABRT), killed(1, 20, hard[i]));
        CHECK_FIRST(1, killed(0, 0, SIGPIPE), killed(1, 20, hard[i]));
        CHECK_FIRST(0, killed(0, 0, SIGTERM), killed(1, 20, hard[i])); /* from outside */
    }
    struct failure exec = make(FAILURE_EXEC, 4, 30), oom = killed(4, 30, SIGABRT);
    exec.exit_code = 127;
    oom.oom = true;
    CHECK_FIRST(1, exited(0, 0), exec);
    CHECK_FIRST(1, exited(0, 0), oom);
    CHECK_FIRST(1, exited(0, 0), node_lost(2, 30));
    CHECK_FIRST(0, exited(0, 0), node_lost(2, 300));
    CHECK_FIRST(2, exited(0, 0), exited(1, 10), killed(2, 40, SIGBUS), killed(3, 45, SIGSEGV));
    /* The window opens at the earliest, not at the last before the hard one. */
    CHECK_FIRST(0, exited(0, 0), exited(1, 40), killed(2, 80, SIGSEGV));
    /* A shell says 128+n for its child. */
    struct failure shell = exited(4, 30);
    shell.exit_code = 128 + SIGSEGV;
    CHECK_FIRST(1, exited(0, 0), shell);
    shell.exit_code = 128 + SIGTERM;
    CHECK_FIRST(0, exited(0, 0), shell);
    /* Not soft, before the hard one, after the survivor. */
    CHECK_FIRST(1, exited(0, 0), killed(1, 10, SIGTERM), killed(2, 20, SIGSEGV));
}
END_TEST

START_TEST(first_is_a_cause_and_not_its_consequence)
{
    CHECK_FIRST(1, because(exited(0, 0), 1), exited(1, 10));
    CHECK_FIRST(1, because(exited(0, 0), 1), exited(1, 60000)); /* seen ever so late */
    CHECK_FIRST(1, because(killed(0, 0, SIGSEGV), 1),
                exited(1, 10)); /* crashed while cleaning up */
    CHECK_FIRST(2, because(exited(0, 0), 1), because(exited(1, 10), 2), exited(2, 20));
    CHECK_FIRST(3, because(exited(0, 0), 3), because(exited(1, 1), 3), because(exited(2, 2), 3),
                killed(3, 900, SIGTERM));
    /* Another root that is earlier still wins. */
    CHECK_FIRST(2, because(exited(0, 5), 1), exited(1, 10), exited(2, 0));
    /* Blames itself: knows nothing. */
    CHECK_FIRST(0, because(exited(0, 0), 0), exited(1, 10));
}
END_TEST

START_TEST(first_when_two_blame_each_other)
{
    CHECK_FIRST(0, because(exited(0, 0), 1), because(exited(1, 5), 0));
    CHECK_FIRST(1, because(exited(0, 0), 1), because(killed(1, 5, SIGSEGV), 0));
    CHECK_FIRST(1, because(exited(0, 3), 1), because(exited(1, 2), 2), because(exited(2, 4), 0));
    /* One hangs on to the ring. */
    CHECK_FIRST(1, because(exited(9, 0), 0), because(exited(0, 3), 1), because(exited(1, 5), 0));
}
END_TEST

START_TEST(first_when_the_blamed_did_not_fail_itself)
{
    /* Rank 1 hung; the rank that timed out waiting for it reports first. */
    CHECK_FIRST(0, because(exited(0, 0), 1), stopped(1, 30000));
    CHECK_FIRST(0, because(exited(0, 0), 1), stopped(1, 10), exited(2, 20));
    /* Rank 7 is not recorded: the reference is ignored... */
    CHECK_FIRST(0, because(exited(0, 0), 7), exited(2, 20));
    /* ...unless a node was lost: then rank 7 was on that node. */
    CHECK_FIRST(1, because(exited(0, 0), 7), node_lost(3, 15000));
    CHECK_FIRST(2, because(exited(0, 0), 7), stopped(1, 1), node_lost(3, 15000));
    /* Not when it is known to have been elsewhere. */
    CHECK_FIRST(0, because(exited(0, 0), 1), stopped(1, 1), node_lost(3, 15000));
}
END_TEST

START_TEST(an_early_exit_is_first_only_if_it_is_blamed)
{
    struct failure early = exited(1, 0);
    early.exit_code = 0;
    const struct failure blamed[] = {early, because(exited(0, 20), 1), exited(2, 30)},
                         not_blamed[] = {early, exited(0, 20), stopped(2, 30)},
                         alone[] = {early, stopped(2, 30)};
    check_first(blamed, 3, 0, __LINE__);
    check_first(not_blamed, 3, 1, __LINE__);
    ck_assert_int_eq(cause_of_failure(&blamed[0]), CAUSE_EARLY_EXIT);
    ck_assert_int_eq(failure_exit_status(&early), 1);
    ck_assert_uint_lt(failure_first(alone, 2), 2);
}
END_TEST

START_TEST(the_odd_one_out)
{
    static const struct {
        const char *operations[5];
        int odd;
    } cases[] = {
        {{"a", "a", "b", "a"}, 2},  {{"b", "a", "a"}, 0},         {{"a", "b"}, -1},
        {{"a", "b", "c", "a"}, -1}, {{"", "a", "", "b", "a"}, 3}, {{"a", "a", "b", "b"}, -1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct failure f[5];
        size_t n = 0;
        for (; n < 5 && cases[i].operations[n]; n++) {
            f[n] = exited((int)n, 0);
            strcpy(f[n].operation, cases[i].operations[n]);
        }
        ck_assert_msg(failure_odd_one(f, n) == cases[i].odd, "case %zu", i);
    }
}
END_TEST

START_TEST(classes_of_causes)
{
    struct failure f = exited(0, 0);
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_EXIT);
    f.mismatch = true;
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_MISMATCH);
    f = killed(0, 0, SIGSEGV);
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_CRASH);
    f = killed(0, 0, SIGTERM);
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_KILLED);
    f = killed(0, 0, SIGKILL);
    f.oom = true;
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_OOM);
    f = node_lost(0, 0);
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_NODE_LOST);
    f = stopped(0, 0);
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_NONE);
    f.gpu = true;
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_NONE);
    f = killed(0, 0, SIGABRT);
    f.gpu = true;
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_GPU);
    f = exited(0, 0);
    f.mismatch = f.gpu = true;
    ck_assert_int_eq(cause_of_failure(&f), CAUSE_GPU);
    ck_assert_int_eq(cause_row(CAUSE_GPU)->action, ACTION_EVICT);
    ck_assert_int_eq(cause_of_stop(STOP_REQUEST, NULL), CAUSE_REQUEST);
    for (enum cause c = CAUSE_NONE + 1; c < CAUSES; c++)
        ck_assert_int_eq(cause_find(cause_name(c), strlen(cause_name(c))), c);
}
END_TEST

static struct failure with_gpu(struct failure f)
{
    f.gpu = true;
    return f;
}

/* Others wait for a rank whose GPU has failed, and often fail before it is found. */
START_TEST(first_is_the_failed_gpu)
{
    CHECK_FIRST(1, exited(0, 0), with_gpu(exited(1, 900000000)), killed(2, 5, SIGSEGV));
    CHECK_FIRST(1, exited(0, 0), with_gpu(because(exited(1, 9), 0)), stopped(2, 5));
    CHECK_FIRST(0, exited(0, 0), with_gpu(stopped(1, 1)), stopped(2, 5));
}
END_TEST

START_TEST(first_of_a_rank_with_several_records)
{
    CHECK_FIRST(2, because(exited(0, 0), 1), stopped(1, 5), exited(1, 10));
}
END_TEST

START_TEST(first_of_thousands)
{
    enum { N = 4096 };
    struct failure *f = calloc(N, sizeof(*f));
    for (int i = 0; i < N; i++)
        f[i] = i == 77 ? killed(i, 40, SIGKILL) : because(exited(i, (uint64_t)i % 40), (i + 1) % N);
    ck_assert_uint_eq(failure_first(f, N), 77); /* one long chain of blame */
    for (int i = 0; i < N; i++)
        f[i].caused_by = -1;
    ck_assert_uint_eq(failure_first(f, N), 77);
    for (int i = 0; i < N; i++)
        f[i] = because(exited(i, (uint64_t)(i + 5) % N), (i + 1) % N); /* one great ring */
    ck_assert_uint_eq(failure_first(f, N), N - 5);
    free(f);
}
END_TEST

START_TEST(order_prefers_specific_failures)
{
    const struct failure f[] = {stopped(0, 0),          because(exited(1, 1), 5),
                                exited(2, 200),         killed(3, 300, SIGSEGV),
                                killed(5, 100, SIGHUP), killed(4, 250, SIGBUS)};
    size_t order[6];
    failure_order(f, 6, order);
    static const size_t expected[] = {4, 5, 3, 2, 1, 0};
    ck_assert_int_eq(memcmp(order, expected, sizeof(expected)), 0);
}
END_TEST

START_TEST(exit_status_of_each_kind)
{
    struct failure f = exited(0, 0);
    f.exit_code = 42;
    ck_assert_int_eq(failure_exit_status(&f), 42);
    f.exit_code = 0;
    ck_assert_int_eq(failure_exit_status(&f), 1);
    f = killed(0, 0, SIGKILL);
    ck_assert_int_eq(failure_exit_status(&f), 137);
    f = node_lost(0, 0);
    ck_assert_int_eq(failure_exit_status(&f), 1);
    f = make(FAILURE_EXEC, 0, 0);
    f.exit_code = 126;
    ck_assert_int_eq(failure_exit_status(&f), 126);
    f = stopped(0, 0);
    ck_assert_int_eq(failure_exit_status(&f), 143);
}
END_TEST

START_TEST(text_of_each_kind)
{
    char t[FAILURE_TEXT_MAX];
    struct failure f = killed(5, 0, SIGSEGV);
    f.local_rank = 1;
    strcpy(f.host, "node-b");
    ck_assert_str_eq(failure_describe(&f, t, sizeof(t)),
                     "worker 5 (local rank 1) on node-b was killed by SIGSEGV");
    f.core_dumped = true;
    ck_assert_str_eq(failure_describe(&f, t, sizeof(t)),
                     "worker 5 (local rank 1) on node-b was killed by SIGSEGV (core dumped)");
    f.core_dumped = false;
    f.signal = SIGKILL;
    f.oom = true;
    ck_assert_str_eq(failure_describe(&f, t, sizeof(t)),
                     "worker 5 (local rank 1) on node-b was killed by SIGKILL, out of memory");
    f.oom = false;
    f.signal = 40;
    ck_assert_str_eq(failure_describe(&f, t, sizeof(t)),
                     "worker 5 (local rank 1) on node-b was killed by signal 40");
    f.kind = FAILURE_EXIT;
    f.exit_code = 3;
    ck_assert_str_eq(failure_describe(&f, t, sizeof(t)),
                     "worker 5 (local rank 1) on node-b exited with code 3");
    f.kind = FAILURE_EXEC;
    strcpy(f.message, "exec ./train: No such file or directory\nsecond line");
    ck_assert_str_eq(
        failure_describe(&f, t, sizeof(t)),
        "worker 5 (local rank 1) on node-b could not be started: exec ./train: No such "
        "file or directory");
    f.kind = FAILURE_NODE;
    f.pid = 77;
    strcpy(f.message, "nothing heard of it for 15.0 s");
    ck_assert_str_eq(failure_describe(&f, t, sizeof(t)),
                     "node node-b (pid 77) was lost: nothing heard of it for 15.0 s");
    memset(f.message, 'x', sizeof(f.message) - 1);
    failure_describe(&f, t, sizeof(t));
    ck_assert_uint_eq(strlen(t), sizeof(t) - 1);
    ck_assert_str_eq(t + sizeof(t) - 4, "...");
}
END_TEST

/* ---------------------------------------------------------------------------------------- codec */

static struct failure full_record(void)
{
    struct failure f;
    failure_init(&f);
    f = (struct failure){.kind = FAILURE_SIGNAL,
                         .rank = WORLD_SIZE_MAX - 1,
                         .local_rank = 17,
                         .node = 3,
                         .pid = 4242,
                         .attempt = 2,
                         .exit_code = 255,
                         .signal = 11,
                         .core_dumped = true,
                         .oom = true,
                         .caused_by = -1,
                         .seen_ns = UINT64_MAX,
                         .wall_ns = 1};
    memset(f.host, 'h', sizeof(f.host) - 1);
    memset(f.role, 'r', sizeof(f.role) - 1);
    memset(f.message, 'm', sizeof(f.message) - 1);
    memset(f.log_path, 'l', sizeof(f.log_path) - 1);
    memset(f.stderr_tail, '\n', sizeof(f.stderr_tail) - 1);
    return f;
}

START_TEST(codec_is_an_exact_inverse)
{
    struct failure f = full_record(), g;
    memset(&g, 0, sizeof(g));
    struct buf b = BUF_INIT;
    failure_encode(&b, &f);
    struct rd r = rd_init(b.data, b.len);
    ck_assert(failure_decode(&r, &g) && rd_done(&r));
    struct buf again = BUF_INIT;
    failure_encode(&again, &g);
    ck_assert_uint_eq(b.len, again.len);
    ck_assert_int_eq(memcmp(b.data, again.data, b.len), 0);
    ck_assert_int_eq(g.rank, f.rank);
    ck_assert_str_eq(g.stderr_tail, f.stderr_tail);
    for (size_t n = 0; n < b.len; n++) { /* cut short anywhere */
        r = rd_init(b.data, n);
        ck_assert(!failure_decode(&r, &g));
    }
    buf_fini(&b);
    buf_fini(&again);
}
END_TEST

START_TEST(codec_refuses_impossible_values)
{
    struct failure good = full_record(), g;
    static const struct {
        size_t at;
        uint32_t value;
    } bad[] = {{2, (uint32_t)-2},    {2, WORLD_SIZE_MAX},   {6, NPROC_MAX}, {10, NNODES_MAX},
               {14, (uint32_t)-1},   {18, (uint32_t)-1},    {22, 256},      {26, 128},
               {30, WORLD_SIZE_MAX}, {50, FAILURE_HOST_MAX}};
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        b.len = 0;
        failure_encode(&b, &good);
        buf_set_u32(&b, bad[i].at, bad[i].value);
        struct rd r = rd_init(b.data, b.len);
        ck_assert_msg(!failure_decode(&r, &g), "case %zu", i);
    }
    for (int at = 0; at < 2; at++) { /* kind, flags */
        b.len = 0;
        failure_encode(&b, &good);
        b.data[at] = 99;
        struct rd r = rd_init(b.data, b.len);
        ck_assert(!failure_decode(&r, &g));
    }
    b.len = 0;
    failure_encode(&b, &good);
    b.data[60] = 0; /* a NUL inside the host name */
    struct rd r = rd_init(b.data, b.len);
    ck_assert(!failure_decode(&r, &g));
    buf_fini(&b);
}
END_TEST

/* ---------------------------------------------------------------------------------- failure log */

START_TEST(log_keeps_one_record_per_rank)
{
    struct failure_log l = {0};
    struct failure f = exited(1, 0);
    failure_log_add(&l, &f);
    strcpy(f.stderr_tail, "full");
    failure_log_add(&l, &f);
    ck_assert_uint_eq(l.n, 1);
    ck_assert_str_eq(l.f[0].stderr_tail, "full");
    f = stopped(1, 9);
    failure_log_add(&l, &f); /* a stop does not hide a failure */
    ck_assert_int_eq(l.f[0].kind, FAILURE_EXIT);
    f = node_lost(1, 5);
    failure_log_add(&l, &f);
    f = node_lost(2, 5);
    failure_log_add(&l, &f);
    failure_log_add(&l, &f);
    ck_assert_uint_eq(l.n, 3);
    failure_log_forget(&l, 1);
    ck_assert_uint_eq(l.n, 2);
    failure_log_clear(&l);
    ck_assert_ptr_null(failure_log_first(&l));
}
END_TEST

START_TEST(log_is_bounded_and_never_drops_the_first)
{
    struct failure_log l = {0};
    for (int i = 0; i < 20000; i++) {
        struct failure f = i == 150     ? killed(i, 60, SIGSEGV)
                           : i % 3 == 0 ? stopped(i, 5)
                                        : because(exited(i, 20 + (uint64_t)i % 30), 150);
        failure_log_add(&l, &f);
        ck_assert_uint_le(l.n, 2 * RDZV_REPORT_MAX);
    }
    ck_assert_int_eq(failure_log_first(&l)->rank, 150);
    failure_log_sort(&l, RDZV_REPORT_MAX);
    ck_assert_uint_eq(l.n, RDZV_REPORT_MAX);
    ck_assert_int_eq(l.f[0].rank, 150);
    failure_log_clear(&l);
    struct failure f = stopped(0, 0);
    failure_log_add(&l, &f);
    ck_assert_ptr_null(failure_log_first(&l)); /* nothing failed on its own */
    failure_log_clear(&l);
}
END_TEST

/* --------------------------------------------------------------------------------------- clocks */

START_TEST(offset_comes_from_the_fastest_exchange)
{
    struct clock_offset c = {0};
    const uint64_t skew = 5000000000u; /* they are 5 s ahead */
    uint64_t t = 100000000000u;
    /* Nothing known: the message is taken to have been instantaneous. */
    ck_assert_uint_eq(clock_offset_to_ours(&c, t + skew - 300, t + skew, t + 40), t + 40 - 300);
    clock_offset_sample(&c, t, t + skew + 9 * MSEC, t + skew + 9 * MSEC,
                        t + 10 * MSEC); /* lopsided */
    clock_offset_sample(&c, t + 20 * MSEC, t + 20 * MSEC + skew + 1000, t + 25 * MSEC + skew + 1000,
                        t + 25 * MSEC + 2000);
    clock_offset_sample(&c, t, t + skew + 50 * MSEC, t + skew + 50 * MSEC,
                        t + 60 * MSEC); /* slow */
    ck_assert_uint_eq(c.rtt_ns, 2000);
    ck_assert_uint_eq(clock_offset_to_ours(&c, t + skew, 0, t + 90 * MSEC), t);
    /* The peer's clock is behind ours, by more than the whole value of ours. */
    struct clock_offset d = {0};
    clock_offset_sample(&d, 1000, 50, 60, 1030);
    ck_assert_uint_eq(clock_offset_to_ours(&d, 55, 0, 2000), 1015);
}
END_TEST

START_TEST(offset_ignores_impossible_samples)
{
    struct clock_offset c = {0};
    clock_offset_sample(&c, 0, 1, 2, 3);                  /* no view seen yet */
    clock_offset_sample(&c, 100, 1, 2, 50);               /* sent in the future */
    clock_offset_sample(&c, 10, 100, 50, 60);             /* answered before seen */
    clock_offset_sample(&c, 10, 0, UINT64_MAX, 60);       /* slept longer than it was away */
    clock_offset_sample(&c, 10, 5, 6, 70000000000u + 10); /* away too long */
    ck_assert(!c.known);
    ck_assert_uint_eq(clock_offset_to_ours(&c, UINT64_MAX, 5, 1000), 994);
    ck_assert_uint_eq(clock_offset_to_ours(&c, 7, 5, 1000), 1000); /* never later than now */
    ck_assert_uint_eq(clock_offset_to_ours(&c, 0, INT64_MAX, 1000), 0);
}
END_TEST

START_TEST(offset_ages)
{
    struct clock_offset c = {0};
    clock_offset_sample(&c, 1000, 1005, 1005, 1010);
    uint64_t hour = 3600000000000u;
    clock_offset_sample(&c, hour, hour + 300 * MSEC, hour + 300 * MSEC,
                        hour + 1 * MSEC); /* worse, but new */
    ck_assert_uint_eq(c.rtt_ns, 1 * MSEC);
}
END_TEST

static bool alike(const char *x, const char *y)
{
    struct failure a = {.kind = FAILURE_EXIT, .exit_code = 1, .rank = 0}, b = a;
    b.rank = 7;
    b.node = 3;
    snprintf(a.stderr_tail, sizeof(a.stderr_tail), "%s", x);
    snprintf(b.stderr_tail, sizeof(b.stderr_tail), "%s", y);
    struct failure_likeness la = failure_likeness(&a), lb = failure_likeness(&b);
    return failure_likeness_equal(&la, &lb);
}

START_TEST(alike_whatever_the_rank_and_the_numbers)
{
    ck_assert(alike("", ""));
    ck_assert(alike("one\nRank 3: no memory at 0x7f12ab", "other\nRank 12: no memory at 0x1\n\n"));
    ck_assert(alike("loss -1.5e-7, step 10", "loss 3, step 9"));
    ck_assert(alike("[2026-11-28 04:05:06,123] failed", "[2026-01-01 00:00:00,999] failed"));
    ck_assert(alike("connect to 10.0.0.1:29500: refused", "connect to 10.2.33.4:1: refused"));
    ck_assert(!alike("KeyError: 'a'", "KeyError: 'b'"));
    ck_assert(!alike("no such file", ""));
    ck_assert(!alike("17", "x"));
    struct failure f = {.kind = FAILURE_EXIT, .exit_code = 1}, g = f;
    g.exit_code = 2;
    struct failure_likeness lf = failure_likeness(&f), lg = failure_likeness(&g);
    ck_assert(!failure_likeness_equal(&lf, &lg));
    g = f;
    g.kind = FAILURE_SIGNAL;
    lg = failure_likeness(&g);
    ck_assert(!failure_likeness_equal(&lf, &lg));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("failure");
    TCase *tc = test_case(s, "first", 20);
    tcase_add_test(tc, alike_whatever_the_rank_and_the_numbers);
    tcase_add_test(tc, first_is_the_earliest);
    tcase_add_test(tc, a_stopped_worker_is_never_first);
    tcase_add_test(tc, first_is_the_hard_fault_within_the_skew);
    tcase_add_test(tc, first_is_a_cause_and_not_its_consequence);
    tcase_add_test(tc, first_when_two_blame_each_other);
    tcase_add_test(tc, first_when_the_blamed_did_not_fail_itself);
    tcase_add_test(tc, an_early_exit_is_first_only_if_it_is_blamed);
    tcase_add_test(tc, the_odd_one_out);
    tcase_add_test(tc, classes_of_causes);
    tcase_add_test(tc, first_of_a_rank_with_several_records);
    tcase_add_test(tc, first_is_the_failed_gpu);
    tcase_add_test(tc, first_of_thousands);
    tcase_add_test(tc, order_prefers_specific_failures);
    tc = test_case(s, "record", 10);
    tcase_add_test(tc, exit_status_of_each_kind);
    tcase_add_test(tc, text_of_each_kind);
    tcase_add_test(tc, codec_is_an_exact_inverse);
    tcase_add_test(tc, codec_refuses_impossible_values);
    tc = test_case(s, "log", 20);
    tcase_add_test(tc, log_keeps_one_record_per_rank);
    tcase_add_test(tc, log_is_bounded_and_never_drops_the_first);
    tc = test_case(s, "clock", 10);
    tcase_add_test(tc, offset_comes_from_the_fastest_exchange);
    tcase_add_test(tc, offset_ignores_impossible_samples);
    tcase_add_test(tc, offset_ages);
    return s;
}

TEST_MAIN(suite)
