/* clock.h: decisions and durations use clocks that nobody sets; times of day are for display, and
 * where somebody else's time of day is compared: a scheduler's, a file's, another process's. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t mono_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* The clock of leases, and of the silence of others: mono_ns() until the host sleeps for the first
 * time after the first call in this process or, before a fork, its parent, and then ahead of it by
 * the time asleep, which counts for the other hosts. Any thread. */
uint64_t lease_clock_ns(void);
/* The difference from a time of lease_clock_ns() to CLOCK_BOOTTIME. */
uint64_t lease_clock_of_boot(void);

/* The wall clock, which may be set at any moment. */
static inline uint64_t wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

/* The time of day in what a job tells about itself: the wall clock at the first call in this
 * process or, before a fork, its parent, moved on by CLOCK_BOOTTIME. It never goes backwards, and
 * its differences are durations, whatever becomes of the wall clock. Any thread. */
uint64_t day_ns(void);

#endif
