/* copy.h: copying what another CPU has just written, and has in its cache. */
#ifndef COLLECTIVES_SHM_COPY_H
#define COLLECTIVES_SHM_COPY_H

#include <stddef.h>

/* As memcpy(), which leaves long blocks to one instruction of the processor (x86's rep movsb).
 * Where `to` and `from` lie differently within their lines, as a slot and a buffer of malloc() do,
 * that takes up to four times as long as loads and stores. */
void copy_fresh(void *to, const void *from, size_t len);

#endif
