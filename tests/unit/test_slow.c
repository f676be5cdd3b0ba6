/* Which ranks are slow: hours of jobs on a virtual clock. */
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

#include "agent/stacks/slow_gpu.h"
#include "agent/stacks/slow_watch.h"
#include "core/mem.h"

#define SECOND UINT64_C(1000000000)

static uint64_t g_seed;

/* xorshift64*, in (0, 1). */
static double uniform(void)
{
    g_seed ^= g_seed >> 12;
    g_seed ^= g_seed << 25;
    g_seed ^= g_seed >> 27;
    return ((double)(g_seed * UINT64_C(2685821657736338717) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* How long a rank works in a step. */
enum shape {
    STEADY,      /* 0.5 % of noise */
    NOISY,       /* 1 % */
    WILD,        /* 20 % */
    LOPSIDED,    /* log-normal: some steps take twice as long */
    PAUSES,      /* now and then some rank collects garbage for 300 ms */
    CHECKPOINTS, /* rank 0 writes for 5 s every minute */
    LOADING,     /* every 50th step all ranks wait for data, each for another time */
    PHASES,      /* for a minute steps are ten times as long */
    SHAPES
};

struct job {
    enum shape shape;
    int n, slow; /* slow: -1: no rank is */
    double by;   /* its steps are longer by this part */
    double step_s;
    long steps;
    double now; /* all have left the last operation */
    double waited[64];
    uint64_t ops;
};

static double work(const struct job *j, int rank)
{
    static const double noise[SHAPES] = {0.005, 0.01, 0.2, 0, 0.01, 0.01, 0.01, 0.01};
    double s = j->step_s * (1 + noise[j->shape] * normal());
    if (j->shape == LOPSIDED)
        s = j->step_s * exp(0.3 * normal());
    if (j->shape == PAUSES && uniform() < 0.002)
        s += 0.3;
    if (j->shape == CHECKPOINTS && rank == 0 && j->steps % (long)(60 / j->step_s) == 0)
        s += 5;
    if (j->shape == LOADING && j->steps % 50 == 0)
        s += uniform() * 0.2;
    if (j->shape == PHASES && j->steps % 2000 >= 1800)
        s *= 10;
    if (rank == j->slow)
        s *= 1 + j->by;
    return s > 0 ? s : 0;
}

/* Runs until `end`, with a look every 400 ms. Returns when the slow rank was named; 0: it was not.
 * *false_alarms: others that were. */
static double run(struct job *j, double end, int *false_alarms)
{
    struct slow_job watch;
    double next_look = 0.4, named = 0, begun[64], last;
    *false_alarms = 0;
    slow_job_init(&watch, j->n, 0.02);
    for (j->now = 1; j->now < end; j->steps++) {
        last = j->now;
        for (int i = 0; i < j->n; i++) {
            begun[i] = j->now + work(j, i);
            last = begun[i] > last ? begun[i] : last;
        }
        last += 0.0002; /* the operation itself */
        for (; next_look < last; next_look += 0.4) {
            for (int i = 0; i < j->n; i++) {
                double open = next_look > begun[i] ? next_look - begun[i] : 0;
                slow_job_put(&watch, i,
                             &(struct slow_count){(uint64_t)(next_look * 1e9),
                                                  (uint64_t)((j->waited[i] + open) * 1e9),
                                                  j->ops + 2 * (next_look > begun[i])});
            }
            if (!slow_job_look(&watch))
                continue;
            for (int i = 0; i < j->n; i++) {
                *false_alarms += i != j->slow && watch.ranks[i].slow;
                if (i == j->slow && watch.ranks[i].slow && named == 0)
                    named = next_look;
            }
        }
        for (int i = 0; i < j->n; i++)
            j->waited[i] += last - begun[i];
        j->ops += 2;
        j->now = last;
    }
    slow_job_fini(&watch);
    return named;
}

/* An hour of each shape, for small and large jobs, short and long steps: nobody is named. */
START_TEST(an_hour_without_false_names)
{
    static const int sizes[] = {2, 3, 8, 64};
    static const double steps[] = {0.03, 0.3, 2};
    int alarms;
    for (size_t n = 0; n < ARRAY_LEN(sizes); n++) {
        for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
            struct job j = {.shape = (enum shape)_i, .n = sizes[n], .slow = -1, .step_s = steps[s]};
            g_seed = 7 + (uint64_t)_i * 100 + n * 10 + s;
            run(&j, 3600, &alarms);
            ck_assert_msg(alarms == 0, "shape %d, %d ranks, steps of %g s: %d false names", _i, j.n,
                          j.step_s, alarms);
        }
    }
}
END_TEST

/* A rank that is 3 % slower is named within 10 s, in a steady and in a noisy job; and it alone. */
START_TEST(three_percent_in_ten_seconds)
{
    static const double steps[] = {0.01, 0.03, 0.05};
    static const int sizes[] = {2, 8, 64};
    int alarms;
    for (unsigned k = 0; k < 200; k++) {
        struct job j = {.shape = k % 2 ? NOISY : STEADY,
                        .n = sizes[k / 2 % 3],
                        .slow = (int)k % 2,
                        .by = 0.03,
                        .step_s = steps[k / 6 % 3]};
        g_seed = 1000 + k;
        double at = run(&j, 60, &alarms);
        ck_assert_msg(at > 0 && at < 10 && alarms == 0,
                      "seed %u: shape %d, %d ranks, steps of %g s: named after %g s, %d false", k,
                      j.shape, j.n, j.step_s, at, alarms);
    }
}
END_TEST

/* Long steps and much noise take longer, pauses do not hide it. */
START_TEST(it_is_found_among_noise)
{
    for (int shape = PAUSES; shape < SHAPES; shape++) {
        struct job j = {.shape = (enum shape)shape, .n = 8, .slow = 5, .by = 0.05, .step_s = 0.1};
        int alarms;
        g_seed = 77 + (uint64_t)shape;
        double at = run(&j, 120, &alarms);
        ck_assert_msg(at > 0 && at < 60 && alarms == 0, "shape %d: %g s, %d false", shape, at,
                      alarms);
    }
}
END_TEST

/* ------------------------------------------------------------------------------- single looks */

static void look(struct slow_job *j, const double *waiting, int n)
{
    for (int i = 0; i < n; i++) {
        struct slow_count c = j->ranks[i].now;
        if (!c.at_ns)
            slow_job_put(j, i, &(struct slow_count){SECOND, 0, 0});
        c = j->ranks[i].now;
        c.at_ns += SECOND;
        c.waited_ns += (uint64_t)(waiting[i] * 1e9);
        c.ops += 10;
        slow_job_put(j, i, &c);
    }
}

/* A slow rank is found with its figures, and is no longer found when it has caught up. */
START_TEST(what_is_found_and_forgotten)
{
    const double late[] = {0.10, 0.12, 0.02, 0.11}, even[] = {0.10, 0.10, 0.10, 0.10};
    struct slow_job j;
    slow_job_init(&j, 4, 0.02);
    int changes = 0;
    for (int i = 0; i < SLOW_FIRST; i++) {
        look(&j, late, 4);
        changes += slow_job_look(&j);
    }
    ck_assert_int_eq(changes, 1);
    ck_assert(j.ranks[2].slow && !j.ranks[0].slow && !j.ranks[1].slow && !j.ranks[3].slow);
    struct slow_finding f = slow_job_finding(&j, 2);
    ck_assert(fabs(f.behind - 0.09) < 1e-6);
    ck_assert_uint_eq(f.last, SLOW_FIRST);
    ck_assert_uint_eq(f.looks, SLOW_FIRST);
    for (int i = 0; i < SLOW_FIRST; i++) {
        look(&j, even, 4);
        changes += slow_job_look(&j);
    }
    ck_assert_int_eq(changes, 2);
    ck_assert(!j.ranks[2].slow);
    slow_job_fini(&j);
}
END_TEST

/* A rank without operations, a job without operations, and a worker that starts again. */
START_TEST(who_does_not_take_part)
{
    const double late[] = {0.10, 0.12, 0.0};
    struct slow_job j;
    slow_job_init(&j, 3, 0.02);
    for (int i = 0; i < 2 * SLOW_FIRST; i++) {
        look(&j, late, 2);
        slow_job_put(&j, 2, &(struct slow_count){(uint64_t)(i + 1) * SECOND, 0, 0});
        slow_job_put(&j, 99, &(struct slow_count){1, 1, 1}); /* no such rank */
        slow_job_look(&j);
    }
    ck_assert(!j.ranks[2].slow);
    ck_assert_uint_eq(j.ranks[2].looks, 0);
    for (int i = 0; i < 3; i++) {
        struct slow_count c = j.ranks[i].now;
        c.at_ns += SECOND;
        slow_job_put(&j, i, &c);
    }
    ck_assert(!slow_job_look(&j));
    slow_job_put(&j, 0, &(struct slow_count){100 * SECOND, 0, 1});
    ck_assert_uint_eq(j.ranks[0].last.ops, 1);
    slow_job_fini(&j);
}
END_TEST

START_TEST(scores)
{
    struct slow_pace p = {0};
    struct slow_count c = {.at_ns = SECOND};
    ck_assert(slow_pace_relative(&p, 0.9) == 0 && slow_pace_own(&p) == 0);
    for (int i = 0; i < 30; i++, c.at_ns += SECOND, c.waited_ns += SECOND / 10, c.ops += 100)
        slow_pace_look(&p, &c);
    ck_assert(fabs(slow_pace_relative(&p, 0.45) - 0.5) < 1e-6);
    ck_assert(slow_pace_relative(&p, 0.95) == 1);
    ck_assert(fabs(slow_pace_own(&p) - 1) < 1e-6);
    for (int i = 0; i < 100; i++, c.at_ns += SECOND, c.waited_ns += SECOND / 10, c.ops += 50)
        slow_pace_look(&p, &c); /* half as many operations in the same time */
    ck_assert(fabs(slow_pace_own(&p) - 0.5) < 0.01);
}
END_TEST

/* The GPU of rank 1 beside those of the others. */
START_TEST(what_is_the_matter_with_the_gpu)
{
    static const struct {
        struct gpu_state of[3];
        const char *text;
    } rows[] = {
        {{{0}, {0}, {0}}, ""},
        {{{true, 0, 60, 5, 16, 0}, {true, 0, 64, 5, 16, 0}, {true, 0, 61, 5, 16, 0}}, ""},
        {{{true, 0, 60, 5, 16, 0}, {true, 0, 66, 5, 16, 0}, {true, 0, 61, 5, 16, 0}},
         "; its GPU: 66 C (others 60 to 61 C)"},
        {{{true, 0, 60, 5, 16, 0},
          {true, GPU_SLOW_THERMAL | GPU_SLOW_HARDWARE, 62, 5, 16, 0},
          {true, 0, 60, 5, 16, 0}},
         "; its GPU: thermal slowdown, 62 C (others 60 C)"},
        {{{0}, {true, GPU_SLOW_POWER_BRAKE | GPU_SLOW_HARDWARE, 0, 5, 16, 0}, {0}},
         "; its GPU: power brake"},
        {{{true, 0, 60, 5, 16, 0}, {true, GPU_SLOW_HARDWARE, 50, 5, 16, 0}, {0}},
         "; its GPU: hardware slowdown, 50 C (others 60 C)"},
        {{{true, 0, 60, 5, 16, 0}, {true, 0, 60, 1, 16, 0}, {true, 0, 60, 4, 16, 0}},
         "; its GPU: PCIe generation 1 x16 (others at least 4 x16)"},
        {{{true, 0, 60, 5, 16, 0}, {true, 0, 60, 5, 4, 0}, {true, 0, 60, 4, 16, 0}},
         "; its GPU: PCIe generation 5 x4 (others at least 4 x16)"},
        {{{true, 0, 60, 5, 16, 2}, {true, 0, 60, 5, 16, 120}, {true, 0, 60, 5, 16, 0}},
         "; its GPU: 120 NVLink errors (others 0 to 2)"},
        {{{true, 0, 60, 5, 16, 0}, {true, 1, 90, 1, 4, 7}, {true, 0, 60, 5, 16, 0}},
         "; its GPU: thermal slowdown, 90 C (others 60 C), PCIe generation 1 x4 (others at least 5 "
         "x16), 7 NVLink errors (others 0)"},
        {{{true, 0, 60, 5, 16, 0}, {0}, {true, 0, 60, 5, 16, 0}}, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b = BUF_INIT;
        slow_gpu_words(&b, rows[i].of, 3, 1);
        buf_u8(&b, 0);
        ck_assert_str_eq((char *)b.data, rows[i].text);
        buf_fini(&b);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("slow");
    TCase *t = test_case(s, "slow", 300);
    tcase_add_loop_test(t, an_hour_without_false_names, 0, SHAPES);
    tcase_add_test(t, three_percent_in_ten_seconds);
    tcase_add_test(t, it_is_found_among_noise);
    tcase_add_test(t, what_is_found_and_forgotten);
    tcase_add_test(t, who_does_not_take_part);
    tcase_add_test(t, scores);
    tcase_add_test(t, what_is_the_matter_with_the_gpu);
    suite_add_tcase(s, t);
    return s;
}

TEST_MAIN(suite)
