/* bell.h: how one thread sleeps on thousands of things at once. Each thing has a slot; whoever
 * changes the thing sets the slot's bit, then wakes the thread if it sleeps. A bell may lie in
 * memory that processes share, and whatever they write there can at most wake the thread in vain.
 *
 * All accesses are sequentially consistent: the thread announces its sleep before it looks at the
 * bits for the last time, and whoever rings sets a bit before it looks for a sleeper. */
#ifndef CORE_BELL_H
#define CORE_BELL_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/futex.h"

enum { BELL_WORDS = 64, BELL_SLOTS = 64 * BELL_WORDS };

struct bell {
    _Alignas(128) _Atomic uint32_t word; /* a futex */
    _Atomic uint32_t asleep;
    _Atomic uint64_t words; /* those of `slots` in which a bit is set */
    _Alignas(128) _Atomic uint64_t slots[BELL_WORDS];
};

/* Slots from BELL_SLOTS on share bits. */
static inline void bell_ring(struct bell *b, uint32_t slot)
{
    uint32_t word = slot % BELL_SLOTS / 64;
    atomic_fetch_or(&b->slots[word], UINT64_C(1) << slot % 64);
    atomic_fetch_or(&b->words, UINT64_C(1) << word);
    if (atomic_load(&b->asleep)) {
        atomic_fetch_add(&b->word, 1);
        futex_wake((const void *)&b->word);
    }
}

static inline int bell_has_rung(const struct bell *b)
{
    return atomic_load(&b->words) != 0;
}

#endif
