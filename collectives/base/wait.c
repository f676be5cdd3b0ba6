#include "collectives/base/wait.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "collectives/base/task.h"
#include "core/clock.h"
#include "core/fd.h"
#include "core/futex.h"

enum {
    LOOK_NS = 1000 * 1000,
    CPUS_MOST = 8192,
    WORD_BITS = 8 * sizeof(long),
    DELAY_WEIGHT = 6,
    CROWDED_NS = 30 * LOOK_NS,
    DEBT_MOST_NS = 200 * LOOK_NS,
    SHORTER = 8, /* how much less a thread spins while it is crowded */
};

struct wait_policy wait_policy_choose(int ranks, int usable_cpus)
{
    if (ranks <= usable_cpus)
        return (struct wait_policy){.spin_ns = 100 * 1000, .yield_ns = 10 * 1000 * 1000};
    return (struct wait_policy){.spin_ns = 0, .yield_ns = 500 * 1000};
}

/* The time, in all, for which this thread has been ready to run without a CPU. 0: the kernel does
 * not count.
 */
static uint64_t delay_ns(void)
{
    char text[96];
    unsigned long long ran, delay;
    ssize_t n = fd_read_file(AT_FDCWD, "/proc/thread-self/schedstat", text, sizeof(text));
    return n > 0 && sscanf(text, "%llu %llu", &ran, &delay) == 2 ? delay : 0;
}

/* Whether threads of this process were without a CPU for more than one part in DELAY_WEIGHT of the
 * time: the delays are a debt, which time pays off. */
static bool is_crowded(uint64_t now_ns)
{
    static _Atomic uint64_t paid_at_ns;
    static _Atomic bool crowded;
    static _Thread_local uint64_t looked_ns, delay_before;
    bool was = atomic_load_explicit(&crowded, memory_order_relaxed);
    if (looked_ns && now_ns < looked_ns + LOOK_NS)
        return was;
    uint64_t paid_at = atomic_load_explicit(&paid_at_ns, memory_order_relaxed), delay = delay_ns();
    if (paid_at < looked_ns)
        paid_at = looked_ns;
    if (looked_ns && delay > delay_before) /* a child of fork() begins at 0 */
        paid_at += (delay - delay_before) * DELAY_WEIGHT;
    uint64_t debt = paid_at > now_ns ? paid_at - now_ns : 0;
    debt = debt < DEBT_MOST_NS ? debt : DEBT_MOST_NS;
    looked_ns = now_ns;
    delay_before = delay;
    bool is = was ? debt > 0 : debt >= CROWDED_NS;
    atomic_store_explicit(&paid_at_ns, now_ns + debt, memory_order_relaxed);
    atomic_store_explicit(&crowded, is, memory_order_relaxed);
    return is;
}

enum wait_step wait_next(const struct wait_policy *policy, uint64_t idle_ns, uint64_t now_ns)
{
    if (task_inside()) /* other tasks have something to do */
        return WAIT_SLEEP;
    if (idle_ns < policy->spin_ns / SHORTER)
        return WAIT_SPIN;
    bool crowded = policy->spin_ns && is_crowded(now_ns);
    if (crowded || idle_ns >= policy->yield_ns)
        return WAIT_SLEEP;
    return idle_ns < policy->spin_ns ? WAIT_SPIN : WAIT_YIELD;
}

struct wait_cpus wait_own_cpus(void)
{
    struct wait_cpus c = {0};
    unsigned long set[CPUS_MOST / WORD_BITS] = {0};
    const uint8_t *bytes = (const uint8_t *)set; /* in the order of bits: x86 and ARM */
    char text[64];
    long quota, period;
    if (syscall(SYS_sched_getaffinity, 0, sizeof(set), set) < 0)
        c.mask[0] = 1;
    for (size_t i = 0; i < sizeof(set); i++)
        c.mask[i % WAIT_CPUS_BYTES] |= bytes[i];
    /* The file has the container's own limit; outside of containers it does not exist. */
    if (fd_read_file(AT_FDCWD, "/sys/fs/cgroup/cpu.max", text, sizeof(text)) > 0 &&
        sscanf(text, "%ld %ld", &quota, &period) == 2 && period > 0)
        c.quota = quota < period ? 1 : (uint32_t)(quota / period);
    return c;
}

void wait_add_cpus(struct wait_cpus *all, const struct wait_cpus *also)
{
    for (size_t i = 0; i < WAIT_CPUS_BYTES; i++)
        all->mask[i] |= also->mask[i];
    if (also->quota && (!all->quota || also->quota < all->quota))
        all->quota = also->quota;
}

int wait_count_cpus(const struct wait_cpus *c)
{
    int n = 0;
    for (size_t i = 0; i < WAIT_CPUS_BYTES; i++)
        n += __builtin_popcount(c->mask[i]);
    if (c->quota && c->quota < (uint32_t)n)
        n = (int)c->quota;
    return n > 0 ? n : 1;
}

void wait_spread(int k, int cpus)
{
    unsigned long may[CPUS_MOST / WORD_BITS] = {0}, one[CPUS_MOST / WORD_BITS] = {0};
    int n = 0, cpu = -1;
    if (syscall(SYS_sched_getaffinity, 0, sizeof(may), may) < 0)
        return;
    for (int i = 0; i < CPUS_MOST; i++) {
        if (may[i / WORD_BITS] & 1ul << i % WORD_BITS && n++ == k % cpus)
            cpu = i;
    }
    if (n != cpus || cpu == sched_getcpu())
        return;
    one[cpu / WORD_BITS] = 1ul << cpu % WORD_BITS;
    if (syscall(SYS_sched_setaffinity, 0, sizeof(one), one) < 0)
        return;
    /* Bound to as much as it may have, a thread gets what its cgroup gets later. */
    memset(one, 0xff, sizeof(one));
    syscall(SYS_sched_setaffinity, 0, sizeof(one), one);
    memset(one, 0, sizeof(one));
    if (syscall(SYS_sched_getaffinity, 0, sizeof(one), one) < 0 || memcmp(one, may, sizeof(may)))
        syscall(SYS_sched_setaffinity, 0, sizeof(may), may);
}

/* ------------------------------------------------------------------------------------- sleeping */

static struct timespec to_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
}

/* False: this kernel cannot. */
static bool sleep_on_all(const struct wait_word *words, int n, uint64_t timeout_ns)
{
    static _Atomic bool cannot;
    struct futex_waiter w[WAIT_WORDS_MAX];
    if (atomic_load_explicit(&cannot, memory_order_relaxed))
        return false;
    for (int i = 0; i < n; i++)
        w[i] = (struct futex_waiter){
            .value = words[i].value, .address = (uintptr_t)words[i].word, .flags = FUTEX_32BIT};
    if (futex_wait_any(w, n, timeout_ns == UINT64_MAX ? 0 : mono_ns() + timeout_ns) == 0)
        return true;
    atomic_store_explicit(&cannot, true, memory_order_relaxed);
    return false;
}

void wait_sleep(const struct wait_word *words, int n, uint64_t timeout_ns)
{
    if (task_inside()) {
        task_park(timeout_ns < LOOK_NS ? timeout_ns : LOOK_NS);
        return;
    }
    if (sleep_on_all(words, n, timeout_ns))
        return;
    if (n > 1 && timeout_ns > LOOK_NS) /* nobody says when another one than the first changes */
        timeout_ns = LOOK_NS;
    struct timespec t = to_timespec(timeout_ns);
    for (int i = 1; i < n; i++) {
        if (atomic_load_explicit(words[i].word, memory_order_acquire) != words[i].value)
            return;
    }
    (void)syscall(SYS_futex, words[0].word, FUTEX_WAIT, words[0].value,
                  timeout_ns == UINT64_MAX ? NULL : &t, NULL, 0);
}

void wait_wake(const _Atomic uint32_t *word)
{
    futex_wake((const void *)word);
}
