/* The rules of the rendezvous and of the agents told many scenarios: tests/sim/sim.h says of what,
 * and what must hold.
 *
 *     SIM_SEED=n      runs that one, loudly
 *     SIM_SEEDS=n     that many from SIM_FROM (1) on
 *     SIM_NODES=n     of so many nodes (0: of 1 to 64) */
#include "tests/lib/test.h"

#include <stdio.h>

#include "core/clock.h"
#include "tests/sim/sim.h"

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *v = getenv(name);
    return v ? strtoull(v, NULL, 10) : otherwise;
}

static void print_totals(uint64_t n, double seconds, uint64_t hash)
{
    const struct sim_total *t = &sim_total;
    const struct {
        const char *what;
        uint64_t n;
    } rows[] = {{"faults", t->faults},
                {"rounds", t->rounds},
                {"restarts", t->restarts},
                {"respawns", t->respawns},
                {"resumed connections", t->resumes},
                {"messages that came again", t->replayed},
                {"writes to the store", t->writes},
                {"writes of dead workers refused", t->refused_writes},
                {"fenced", t->fenced},
                {"ended by the guardian", t->guarded},
                {"heartbeats answered", t->beats},
                {"resets forged for one end", t->forged},
                {"addresses taken over or rejected", t->obstructed},
                {"workers", t->starts},
                {"requests to stop", t->requests},
                {"hung in exec", t->in_exec},
                {"ignored SIGTERM", t->stubborn},
                {"could not be killed", t->unkillable},
                {"left behind", t->left_behind},
                {"nodes abandoned", t->abandoned},
                {"us that a failure's time was wrong by, at most", t->clock_error_ns / 1000},
                {"elections", t->elected},
                {"coordinators redirected", t->moves},
                {"votes of etcd", t->votes},
                {"times that it has forgotten", t->forgotten},
                {"jobs in the queue again", t->requeued},
                {"asked for twice", t->requeued_twice},
                {"jobs with a head", t->headed},
                {"results that its hosts told", t->head_results},
                {"nodes that ended well", t->success},
                {"not", t->failed}};
    printf(
        "%llu scenarios, %.0f per second, %.1f M events, the last end %.0f s after the last fault",
        (unsigned long long)n, (double)n / seconds, (double)t->events / 1e6,
        (double)t->longest_ns / 1e9);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        printf("; %llu %s", (unsigned long long)rows[i].n, rows[i].what);
    printf("; trace %016llx\n", (unsigned long long)hash);
}

/* A simulator that never gets anywhere tests nothing. */
static void check_totals(uint64_t n)
{
    const struct sim_total *t = &sim_total;
    ck_assert_uint_gt(t->rounds, n / 2);
    ck_assert_uint_gt(t->restarts, n / 20);
    ck_assert_uint_gt(t->resumes, n / 20);
    ck_assert_uint_gt(t->respawns, n / 100);
    ck_assert_uint_gt(t->spares, n / 100);
    ck_assert_uint_gt(t->replayed, n / 20);
    ck_assert_uint_gt(t->writes, n / 10);
    ck_assert_uint_gt(t->elected, n / 200);
    ck_assert_uint_gt(t->obstructed, n);
    ck_assert_uint_gt(t->forged, n / 10);
    ck_assert_uint_gt(t->starts, 5 * n);
    ck_assert_uint_gt(t->requests, n / 2);
    ck_assert_uint_gt(t->in_exec, n / 20);
    ck_assert_uint_gt(t->stubborn, n / 5);
    ck_assert_uint_gt(t->left_behind, n / 20);
    ck_assert_uint_gt(t->abandoned, n / 100);
    ck_assert_uint_gt(t->moves, n / 200);
    ck_assert_uint_gt(t->votes, n / 4);
    ck_assert_uint_gt(t->forgotten, n / 50);
    ck_assert_uint_gt(t->requeued, n / 200);
    ck_assert_uint_gt(t->headed, n / 5);
    ck_assert_uint_gt(t->head_results, n / 5);
    ck_assert_uint_gt(t->success, n / 10);
    ck_assert_uint_gt(t->failed, n / 10);
}

START_TEST(scenarios)
{
    uint64_t one = env_number("SIM_SEED", 0), n = env_number("SIM_SEEDS", 4000);
    uint64_t first = env_number("SIM_FROM", 1), start = mono_ns();
    uint64_t hash = 0;
    int nodes = (int)env_number("SIM_NODES", 0);
    log_init(LOG_LEVEL_NOTICE, NULL);
    sim_expect_assertions();
    if (one) {
        W.loud = true;
        log_init(LOG_LEVEL_VERBOSE, NULL);
        sim_scenario(one, nodes);
        sim_free();
        return;
    }
    for (uint64_t seed = first; seed < first + n; seed++) {
        hash = (hash ^ sim_scenario(seed, nodes)) * 0x100000001b3ull;
        ck_assert(W.nrounds || !nodes);
    }
    sim_free();
    print_totals(n, (double)(mono_ns() - start) / 1e9, hash);
    if (n >= 1000)
        check_totals(n);
}
END_TEST

START_TEST(same_seed_same_scenario)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        uint64_t first = sim_scenario(seed, 0);
        sim_scenario(seed + 1000, 0); /* nothing is left over from another one */
        ck_assert_uint_eq(sim_scenario(seed, 0), first);
    }
    ck_assert_uint_ne(sim_scenario(1, 0), sim_scenario(2, 0));
    sim_free();
}
END_TEST

START_TEST(many_nodes)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        sim_scenario(seed, 1024);
        ck_assert_int_gt(W.nrounds, 0);
    }
    sim_free();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rdzv_sim");
    TCase *tc = test_case(s, "scenarios", 600);
    tcase_add_test(tc, scenarios);
    tc = test_case(s, "sim", 600);
    tcase_add_test(tc, same_seed_same_scenario);
    tcase_add_test(tc, many_nodes);
    return s;
}

TEST_MAIN(suite)
