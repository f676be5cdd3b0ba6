/* CPUs that ranks may use, alone and together; sleeping; what a rank does beside other load. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectives/base/wait.h"
#include "core/clock.h"
#include "tests/lib/test.h"

START_TEST(own_cpus_are_those_of_the_affinity)
{
    cpu_set_t set;
    struct wait_cpus c = wait_own_cpus();
    ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int i = 0; i < 8 * WAIT_CPUS_BYTES; i++)
        ck_assert_int_eq(c.mask[i / 8] >> i % 8 & 1, CPU_ISSET(i, &set) != 0);
    int n = CPU_COUNT(&set), limit = c.quota && (int)c.quota < n ? (int)c.quota : n;
    ck_assert_int_eq(wait_count_cpus(&c), limit);
}
END_TEST

START_TEST(ranks_share_the_union_of_their_cpus)
{
    struct wait_cpus all = {0}, a = {.mask = {0x03}},
                     b = {.mask = {0x06, [WAIT_CPUS_BYTES - 1] = 0x80}};
    ck_assert_int_eq(wait_count_cpus(&all), 1);
    wait_add_cpus(&all, &a);
    ck_assert_int_eq(wait_count_cpus(&all), 2);
    wait_add_cpus(&all, &b);
    ck_assert_int_eq(wait_count_cpus(&all), 4);
}
END_TEST

START_TEST(the_lowest_limit_counts)
{
    struct wait_cpus all = {.mask = {0xff}}, none = {0}, three = {.quota = 3}, two = {.quota = 2};
    wait_add_cpus(&all, &none);
    ck_assert_int_eq(wait_count_cpus(&all), 8);
    wait_add_cpus(&all, &two);
    wait_add_cpus(&all, &three);
    ck_assert_int_eq(wait_count_cpus(&all), 2);
    wait_add_cpus(&all, &none);
    ck_assert_int_eq(wait_count_cpus(&all), 2);
}
END_TEST

/* wait_spread() moves each rank to a CPU of its own, and does not change the affinity mask. */
START_TEST(ranks_go_to_cpus_of_their_own)
{
    cpu_set_t set, after;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    int n = CPU_COUNT(&set);
    for (int k = 0; k < 2 * n; k++) {
        int want = -1, tries = 100;
        for (int i = 0, seen = 0; i < CPU_SETSIZE && want < 0; i++) {
            if (CPU_ISSET(i, &set) && seen++ == k % n)
                want = i;
        }
        do /* the system may move it again at once */
            wait_spread(k, n);
        while (sched_getcpu() != want && --tries > 0);
        ck_assert_msg(tries > 0, "rank %d is never on CPU %d", k, want);
        ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
        ck_assert(CPU_EQUAL(&set, &after));
    }
}
END_TEST

/* ------------------------------------------------------------------------------------- sleeping */

struct sleeper {
    _Atomic uint32_t word;
    _Atomic int turns;
};

static void *sleep_until_it_changes(void *arg)
{
    struct sleeper *s = arg;
    while (atomic_load(&s->word) == 0) {
        atomic_fetch_add(&s->turns, 1);
        wait_sleep(&(struct wait_word){&s->word, 0}, 1, UINT64_MAX);
    }
    return NULL;
}

/* As on a kernel before 5.16. */
static void forbid_futex_waitv(void)
{
    enum { FUTEX_WAITV = 449 };
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_WAITV, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(f) / sizeof(*f), .filter = f};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* A thread that sleeps without a time limit may wake up now and then, but not each millisecond. */
START_TEST(an_unlimited_sleep_does_not_spin)
{
    enum { MS = 100, MOST_TURNS = 5 };
    struct sleeper s = {0};
    pthread_t thread;
    if (_i == 1)
        forbid_futex_waitv();
    ck_assert_int_eq(pthread_create(&thread, NULL, sleep_until_it_changes, &s), 0);
    while (atomic_load(&s.turns) == 0)
        sched_yield();
    test_elapse(MS / 1e3);
    int turns = atomic_load(&s.turns);
    atomic_store(&s.word, 1);
    wait_wake(&s.word);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_le(turns, MOST_TURNS);
}
END_TEST

/* ----------------------------------------------------------------------------------- other load */

static bool next_is(void *arg)
{
    const struct wait_policy policy = wait_policy_choose(1, 1);
    return wait_next(&policy, policy.spin_ns, mono_ns()) == *(enum wait_step *)arg;
}

/* Keeps its CPU, as a rank that spins does. */
static bool spun_until_next_is(void *arg)
{
    for (uint64_t until = mono_ns() + 1000 * 1000; mono_ns() < until;) {
        if (next_is(arg))
            return true;
    }
    return false;
}

/* A second without a wish to run pays off the delays. */
static bool is_next_after_a_pause(void *arg)
{
    test_elapse(1);
    return next_is(arg);
}

/* A rank with a CPU of its own yields while it waits; one that must share the CPU with another
 * process sleeps, until it keeps the CPU again. */
START_TEST(a_rank_that_loses_its_cpu_sleeps)
{
    enum wait_step yields = WAIT_YIELD, sleeps = WAIT_SLEEP;
    const struct wait_policy policy = wait_policy_choose(1, 1), shared = wait_policy_choose(2, 1);
    cpu_set_t one;
    if (access("/proc/thread-self/schedstat", R_OK) < 0) {
        test_skip("this kernel does not count how long threads wait for a CPU");
        return;
    }
    ck_assert(next_is(&yields));
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    pid_t busy = fork();
    ck_assert_int_ge(busy, 0);
    while (busy == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    wait_until(spun_until_next_is, &sleeps, 30, "a rank that sleeps");
    ck_assert_int_eq(wait_next(&policy, 0, mono_ns()), WAIT_SPIN);
    ck_assert_int_eq(wait_next(&shared, 0, mono_ns()), WAIT_YIELD);
    ck_assert_int_eq(kill(busy, SIGKILL), 0);
    ck_assert_int_eq(waitpid(busy, NULL, 0), busy);
    wait_until(is_next_after_a_pause, &yields, 30, "a rank that yields again");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("wait");
    TCase *tc = test_case(s, "cpus", 5);
    tcase_add_test(tc, own_cpus_are_those_of_the_affinity);
    tcase_add_test(tc, ranks_share_the_union_of_their_cpus);
    tcase_add_test(tc, the_lowest_limit_counts);
    tcase_add_test(tc, ranks_go_to_cpus_of_their_own);
    tcase_add_loop_test(tc, an_unlimited_sleep_does_not_spin, 0, 2);
    tc = test_case(s, "load", 70);
    tcase_add_test(tc, a_rank_that_loses_its_cpu_sleeps);
    return s;
}

TEST_MAIN(suite)
