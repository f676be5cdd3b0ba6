/* memlock.h: whether this process may lock as much memory as InfiniBand cards need. */
#ifndef CORE_MEMLOCK_H
#define CORE_MEMLOCK_H

#include <stdbool.h>
#include <stddef.h>

#define MEMLOCK_CARDS "/sys/class/infiniband"

/* Whether the limit is too low for NCCL over the cards in that folder, and binds this process; if
 * so, writes a line with the remedy to `out`. */
bool memlock_is_low(const char *cards, char *out, size_t size);

#endif
