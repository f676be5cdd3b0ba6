/* wait.h: how long a rank that waits for another looks again before it sleeps.
 *
 * Waking a sleeper on another CPU takes some 50 us, longer than a small operation takes. With a CPU
 * for every rank of the host it is best to look again and again for a while; with fewer, whoever
 * spins takes the CPU from the rank that it waits for, so it yields after each look. */
#ifndef COLLECTIVES_WAIT_H
#define COLLECTIVES_WAIT_H

#include <stdint.h>

struct wait_policy {
    uint64_t spin_ns;  /* up to here since something moved: look again at once */
    uint64_t yield_ns; /* up to here: let others run, then look again; beyond: sleep */
};

/* ranks: workers that share the host's CPUs, this one included. */
struct wait_policy wait_policy_choose(int ranks, int usable_cpus);

/* CPUs that this process may use: its affinity, and the CPU bandwidth of its cgroup. At least 1. */
int wait_usable_cpus(void);

static inline void wait_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
