/* stop.h: the record of why a communicator has stopped. The first rank to stop writes it, once; all
 * waiting ranks read it. Each process has one, and each node has one in shared memory. */
#ifndef COLLECTIVES_WIRE_STOP_H
#define COLLECTIVES_WIRE_STOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/wire/wire.h"

enum { STOP_NO, STOP_CLAIMED, STOP_SAID };

struct comm_stop {
    _Atomic uint32_t word; /* a futex. Not STOP_NO: stop; STOP_SAID: the other fields are valid */
    int32_t from;          /* the rank of the world that reported it */
    struct notice why;
};

/* False: the record was already set. Wakes the threads that sleep on the word, and this process's
 * tasks (base/task.h). */
bool comm_stop_set(struct comm_stop *s, int from, const struct notice *why);

/* Copies the record and terminates its texts. False: nothing is recorded yet. */
bool comm_stop_get(const struct comm_stop *s, int *from, struct notice *why);

#endif
