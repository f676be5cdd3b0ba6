/* wait.h: how long a rank that waits for another looks again before it sleeps, and how it sleeps.
 *
 * Waking a sleeper on another CPU takes some 50 us, longer than a small operation takes. With a CPU
 * for every rank of the host it is best to look again and again for a while; with fewer, whoever
 * spins takes the CPU from the rank that it waits for, so it yields after each look. */
#ifndef COLLECTIVES_BASE_WAIT_H
#define COLLECTIVES_BASE_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct wait_policy {
    uint64_t spin_ns;  /* up to here since something moved: look again at once */
    uint64_t yield_ns; /* up to here: let others run, then look again; beyond: sleep */
};

/* The next action of a thread that has waited for idle_ns. Where a CPU was counted for each rank
 * and other tasks take it away nevertheless, a thread sleeps instead of yielding: on waking it
 * comes before those tasks, since it has used less of its share. */
enum wait_step { WAIT_SPIN, WAIT_YIELD, WAIT_SLEEP };
enum wait_step wait_next(const struct wait_policy *policy, uint64_t idle_ns, uint64_t now_ns);

/* ranks: workers that share the host's CPUs, this one included. */
struct wait_policy wait_policy_choose(int ranks, int usable_cpus);

/* CPUs that a process may use, or several together. */
enum { WAIT_CPUS_BYTES = 128 };
struct wait_cpus {
    uint8_t mask[WAIT_CPUS_BYTES]; /* affinity: CPU c is bit c % 8 of byte c / 8 % 128 */
    uint32_t quota;                /* CPUs' worth of time that the cgroup has; 0: no limit */
};

struct wait_cpus wait_own_cpus(void);
/* *all may use what `also` may; of two limits the lower one counts. */
void wait_add_cpus(struct wait_cpus *all, const struct wait_cpus *also);
int wait_count_cpus(const struct wait_cpus *c); /* at least 1 */

/* Moves the calling thread to CPU k % cpus of those that it may use, which it may leave again.
 * Nothing is done when they are not so many: then others may not use the same ones. */
void wait_spread(int k, int cpus);

static inline void wait_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A word in memory, which other processes may share, and the value that is slept on. */
struct wait_word {
    const _Atomic uint32_t *word;
    uint32_t value;
};

/* Sleeps while every word has its value, until wait_wake() of one of them, or for timeout_ns
 * (UINT64_MAX: without an end); may return early. Whoever changes a word must know that somebody
 * sleeps on it, and wake him. At most WAIT_WORDS_MAX words. On kernels before 5.16 only changes of
 * the first one are noticed at once; the others are looked at each millisecond. */
enum { WAIT_WORDS_MAX = 32 };
void wait_sleep(const struct wait_word *words, int n, uint64_t timeout_ns);
void wait_wake(const _Atomic uint32_t *word); /* wakes all threads that sleep on the word */

#endif
