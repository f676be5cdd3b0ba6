/* arena.h: what dlcoll_mem_alloc() gives out: pages of this rank's part of the shared memory. Where
 * they are is written down in the process's own memory: nobody else can damage it. */
#ifndef COLLECTIVES_SHM_ARENA_H
#define COLLECTIVES_SHM_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena;

/* Borrows `bytes` at `base`, mapped and shared, whole pages. NULL: no memory. */
struct arena *arena_new(void *base, size_t bytes);
void arena_free(struct arena *a); /* NULL is allowed; what it has given out is lost */

/* Whole pages, zeroed; NULL: there is no such stretch, or no memory. */
void *arena_take(struct arena *a, size_t bytes);
/* Gives them, and the memory behind them, back. False: p has not been given out. */
bool arena_give(struct arena *a, void *p);

#endif
