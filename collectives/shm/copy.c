#include "collectives/shm/copy.h"

#include <stdint.h>
#include <string.h>

enum { LINE = 64 };

#if defined(__x86_64__)
#include <emmintrin.h>

enum {
    STEP = 2 * LINE,       /* processors fetch them in pairs */
    LONG_BYTES = 32 * 1024 /* below it memcpy() is as good */
};

static void copy_steps(uint8_t *to, const uint8_t *from, size_t len)
{
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    memcpy(to, from, head);
    for (to += head, from += head, len -= head; len >= STEP;
         to += STEP, from += STEP, len -= STEP) {
        __m128i x[STEP / sizeof(__m128i)];
        for (size_t i = 0; i < STEP / sizeof(*x); i++)
            x[i] = _mm_loadu_si128((const __m128i *)from + i);
        for (size_t i = 0; i < STEP / sizeof(*x); i++)
            _mm_store_si128((__m128i *)to + i, x[i]);
    }
    memcpy(to, from, len);
}

void copy_fresh(void *to, const void *from, size_t len)
{
    if (len >= LONG_BYTES && ((uintptr_t)to - (uintptr_t)from) % LINE)
        copy_steps(to, from, len);
    else
        memcpy(to, from, len);
}

#else

void copy_fresh(void *to, const void *from, size_t len)
{
    memcpy(to, from, len);
}

#endif

void copy_prepare(void *to, size_t len)
{
    for (const uint8_t *line = to, *end = line + len; line < end; line += LINE) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(*line)); /* nothing, where it is not known */
#else
        __builtin_prefetch(line, 1);
#endif
    }
}
