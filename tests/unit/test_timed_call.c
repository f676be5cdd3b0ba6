/* Calls that are waited for, and calls that do not return. */
#include "tests/lib/test.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "core/clock.h"
#include "core/timed_call.h"

static sem_t answers;
static atomic_int made, dropped;

static void ask(void *arg)
{
    (void)arg;
    atomic_fetch_add(&made, 1);
    while (sem_wait(&answers) < 0)
        ;
}

static void drop(void *arg)
{
    (void)arg;
    atomic_fetch_add(&dropped, 1);
}

static void setup(void)
{
    sem_init(&answers, 0, 0);
    atomic_store(&made, 0);
    atomic_store(&dropped, 0);
}

static bool all_dropped(void *n)
{
    return atomic_load(&dropped) == *(int *)n;
}

START_TEST(a_call_that_returns)
{
    struct timed_calls *p = timed_calls_new();
    for (int i = 0; i < 100; i++) {
        sem_post(&answers);
        ck_assert(timed_call(i % 2 ? p : NULL, ask, NULL, drop, 10000));
    }
    ck_assert_int_eq(atomic_load(&made), 100);
    ck_assert_int_eq(atomic_load(&dropped), 0);
    timed_calls_free(p);
}
END_TEST

/* It is waited for once. When it has returned after all, others are made again. */
START_TEST(a_call_that_does_not_return)
{
    struct timed_calls *p = timed_calls_new();
    int n = 101;
    uint64_t from = mono_ns();
    ck_assert(!timed_call(p, ask, NULL, drop, 50));
    ck_assert_uint_ge(mono_ns() - from, 50 * UINT64_C(1000000));
    for (int i = 0; i < 100; i++)
        ck_assert(!timed_call(p, ask, NULL, drop, 60000));
    ck_assert_int_eq(atomic_load(&made), 1);
    sem_post(&answers);
    wait_until(all_dropped, &n, 10, "the arguments are disposed of");
    sem_post(&answers);
    ck_assert(timed_call(p, ask, NULL, drop, 10000));
    ck_assert_int_eq(atomic_load(&made), 2);
    timed_calls_free(p);
}
END_TEST

/* Its owner may go before it returns. */
START_TEST(an_owner_that_has_gone)
{
    struct timed_calls *p = timed_calls_new();
    int n = 1;
    ck_assert(!timed_call(p, ask, NULL, drop, 0));
    timed_calls_free(p);
    sem_post(&answers);
    wait_until(all_dropped, &n, 10, "the arguments are disposed of");
}
END_TEST

static void drop_owner(void *arg)
{
    timed_calls_free(arg);
    drop(NULL);
}

/* What belongs to the call may own the struct timed_calls. */
START_TEST(an_owner_that_goes_with_the_call)
{
    struct timed_calls *p = timed_calls_new();
    int n = 1;
    ck_assert(!timed_call(p, ask, p, drop_owner, 0));
    sem_post(&answers);
    wait_until(all_dropped, &n, 10, "the arguments are disposed of");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("timed_call");
    TCase *tc = test_case(s, "timed_call", 60);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, a_call_that_returns);
    tcase_add_test(tc, a_call_that_does_not_return);
    tcase_add_test(tc, an_owner_that_has_gone);
    tcase_add_test(tc, an_owner_that_goes_with_the_call);
    return s;
}

TEST_MAIN(suite)
