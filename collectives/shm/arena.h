/* arena.h: the allocator of dlcoll_mem_alloc(): whole pages of this rank's part of the shared
 * memory. Its lists are in private memory, where no other process can damage them. */
#ifndef COLLECTIVES_SHM_ARENA_H
#define COLLECTIVES_SHM_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena;

/* Borrows `bytes` at `base`, which are mapped, shared and whole pages. NULL: out of memory. */
struct arena *arena_new(void *base, size_t bytes);
void arena_free(struct arena *a); /* NULL is allowed; all allocations become invalid */

/* Allocates whole zeroed pages. NULL: no range is large enough, or out of memory. */
void *arena_take(struct arena *a, size_t bytes);
/* Frees the pages and the memory behind them. False: p was not allocated by this arena. */
bool arena_give(struct arena *a, void *p);

#endif
