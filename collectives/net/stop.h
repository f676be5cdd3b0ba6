/* stop.h: the record of why a communicator has stopped. Written once, by whoever is first; read by
 * all who wait. One is the process's own, another the node's, in shared memory. */
#ifndef COLLECTIVES_NET_STOP_H
#define COLLECTIVES_NET_STOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/net/wire.h"

enum { STOP_NO, STOP_CLAIMED, STOP_SAID };

struct comm_stop {
    _Atomic uint32_t
        word;     /* not STOP_NO: stop; STOP_SAID: the rest is readable. Woken as a futex */
    int32_t from; /* who says so, a rank of the world */
    struct notice why;
};

/* False: somebody was first. */
bool comm_stop_set(struct comm_stop *s, int from, const struct notice *why);

/* A copy, its texts terminated. False: nothing has been said (yet). */
bool comm_stop_get(const struct comm_stop *s, int *from, struct notice *why);

#endif
