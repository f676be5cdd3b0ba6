#include "core/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

int futex_wait_any(struct futex_waiter *words, int n, uint64_t until_ns)
{
    struct timespec end = {.tv_sec = (time_t)(until_ns / 1000000000),
                           .tv_nsec = (long)(until_ns % 1000000000)};
    if (syscall(SYS_futex_waitv, words, n, 0, until_ns ? &end : NULL, CLOCK_MONOTONIC) < 0 &&
        errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
        return -ENOSYS;
    return 0;
}

void futex_wake(const void *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
