/* copy.h: memory that is in the cache of another CPU. */
#ifndef COLLECTIVES_SHM_COPY_H
#define COLLECTIVES_SHM_COPY_H

#include <stddef.h>

/* Copies what another CPU has just written, as memcpy(), which leaves long blocks to one
 * instruction of the processor (x86's rep movsb). Where `to` and `from` lie differently within
 * their lines, as a slot and a buffer of malloc() do, that takes up to four times as long as loads
 * and stores. */
void copy_fresh(void *to, const void *from, size_t len);

/* Fetches what is to be written soon out of the caches of those who have read it: where there is
 * something to wait for anyway. */
void copy_prepare(void *to, size_t len);

#endif
