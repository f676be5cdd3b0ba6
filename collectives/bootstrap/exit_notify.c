#include "collectives/bootstrap/exit_notify.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/futex.h"

static_assert(sizeof(pthread_mutex_t) <= SEGMENT_EXIT_MUTEX_BYTES, "a mutex fits");
static_assert(offsetof(struct segment_local, exit_mutex) + SEGMENT_EXIT_MUTEX_BYTES <= 128,
              "in one page");

static bool lock(pthread_mutex_t *m)
{
    pthread_mutexattr_t attr;
    if (pthread_mutexattr_init(&attr) != 0)
        return false;
    bool locked = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED) == 0 &&
                  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0 &&
                  pthread_mutex_init(m, &attr) == 0 && pthread_mutex_lock(m) == 0;
    pthread_mutexattr_destroy(&attr);
    return locked;
}

/* The index of the word of the mutex that holds its owner's thread id; -1: no word does. The index
 * differs between C libraries; in all of them it is the first word with that value. */
static int find_word(const pthread_mutex_t *m)
{
    uint32_t words[sizeof(*m) / sizeof(uint32_t)], tid = (uint32_t)syscall(SYS_gettid);
    memcpy(words, m, sizeof(words));
    for (int i = 0; i < (int)(sizeof(words) / sizeof(*words)); i++) {
        if (words[i] == tid)
            return i;
    }
    return -1;
}

void exit_notify_begin(int fd, uint64_t at, struct segment_local *line,
                       _Atomic uint32_t *exit_word_count, uint32_t workers)
{
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&begun))
        return;
    /* A mapping of its own, for as long as the process lives: the C library's list leads there. */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = at / page * page;
    char *base = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)from);
    if (base == MAP_FAILED)
        return;
    struct segment_local *own = (struct segment_local *)(base + (at - from));
    pthread_mutex_t *m = (pthread_mutex_t *)own->exit_mutex;
    int i = lock(m) ? find_word(m) : -1;
    if (i < 0)
        return;
    /* Sets the flag of a waiter, because the kernel wakes a waiter only if the flag is set. */
    atomic_fetch_or((_Atomic uint32_t *)m + i, FUTEX_WAITERS);
    atomic_store(&line->exit_notify_word, 1 + (uint32_t)i * sizeof(uint32_t));
    if (atomic_fetch_add(exit_word_count, 1) + 1 >= workers)
        futex_wake(exit_word_count);
}
