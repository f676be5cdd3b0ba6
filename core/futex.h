/* futex.h: sleeping on words in memory, which other processes may share (futex(2)). */
#ifndef CORE_FUTEX_H
#define CORE_FUTEX_H

#include <stdint.h>

/* One word to sleep on, as struct futex_waitv of linux/futex.h, which older headers lack. */
struct futex_waiter {
    uint64_t value;   /* the value that the word must have */
    uint64_t address; /* of a uint32_t */
    uint32_t flags;   /* FUTEX_32BIT */
    uint32_t reserved;
};

enum { FUTEX_32BIT = 2, FUTEX_WAITERS_MAX = 128 };

/* Sleeps while each of n words has its value, until one of them is woken, or mono_ns() is until_ns
 * (0: for ever); may return early. -ENOSYS: kernels before 5.16 and some sandboxes cannot. */
int futex_wait_any(struct futex_waiter *words, int n, uint64_t until_ns);

/* Wakes all threads that sleep on the word. */
void futex_wake(const void *word);

#endif
