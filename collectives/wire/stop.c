#include "collectives/wire/stop.h"

#include "collectives/base/task.h"
#include "core/futex.h"

bool comm_stop_set(struct comm_stop *s, int from, const struct notice *why)
{
    uint32_t no = STOP_NO;
    if (!atomic_compare_exchange_strong(&s->word, &no, STOP_CLAIMED))
        return false;
    s->from = from;
    s->why = *why;
    atomic_store_explicit(&s->word, STOP_SAID, memory_order_release);
    futex_wake((const void *)&s->word);
    task_ring_all();
    return true;
}

bool comm_stop_get(const struct comm_stop *s, int *from, struct notice *why)
{
    if (atomic_load_explicit(&s->word, memory_order_acquire) != STOP_SAID)
        return false;
    *from = s->from;
    *why = s->why;
    why->host[sizeof(why->host) - 1] = why->text[sizeof(why->text) - 1] = '\0';
    return true;
}
