#include "core/clock.h"

#include <stdatomic.h>

uint64_t lease_clock_of_boot(void)
{
    static _Atomic uint64_t zero; /* CLOCK_BOOTTIME less mono_ns() at the first call */
    uint64_t z = atomic_load_explicit(&zero, memory_order_relaxed);
    if (!z) {
        uint64_t none = 0, asleep = clock_ns(CLOCK_BOOTTIME) - clock_ns(CLOCK_MONOTONIC);
        z = asleep + 1; /* never 0 */
        if (!atomic_compare_exchange_strong(&zero, &none, z))
            z = none;
    }
    return z - 1;
}

uint64_t day_ns(void)
{
    static _Atomic uint64_t zero; /* the wall clock less CLOCK_BOOTTIME at the first call */
    uint64_t z = atomic_load_explicit(&zero, memory_order_relaxed);
    if (!z) {
        uint64_t none = 0;
        z = wall_ns() - clock_ns(CLOCK_BOOTTIME);
        if (!atomic_compare_exchange_strong(&zero, &none, z))
            z = none;
    }
    return z + clock_ns(CLOCK_BOOTTIME);
}

uint64_t lease_clock_ns(void)
{
    uint64_t zero = lease_clock_of_boot();
    return clock_ns(CLOCK_BOOTTIME) - zero;
}
