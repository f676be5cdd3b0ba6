/* memory_fence.h: memory fences. ThreadSanitizer does not know fences (-Wtsan); under
 * ThreadSanitizer, a change of a common word gives the order that a fence would give. */
#ifndef CORE_MEMORY_FENCE_H
#define CORE_MEMORY_FENCE_H

#include <stdatomic.h>

static inline void memory_fence(memory_order order)
{
#if defined(__SANITIZE_THREAD__)
    static _Atomic int common;
    atomic_fetch_add_explicit(&common, 1, order);
#else
    atomic_thread_fence(order);
#endif
}

#endif
