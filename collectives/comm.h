/* comm.h: the inside of a communicator. */
#ifndef COLLECTIVES_COMM_H
#define COLLECTIVES_COMM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/call.h"
#include "collectives/dlcoll.h"
#include "collectives/net/engine.h"
#include "collectives/net/schedule.h"
#include "collectives/net/transport.h"
#include "collectives/world.h"

struct dlcoll_comm {
    struct world world;
    uint32_t id; /* 0: the communicator of all workers */
    int rank, size;
    int64_t timeout_ms; /* of an operation; negative: none */

    uint64_t seq; /* operations started */
    struct schedule schedule;
    struct transport *transport;
    struct engine engine;

    atomic_flag busy;  /* a thread is inside */
    unsigned fork_gen; /* of the process that made it */
    bool failed;       /* for good; `error` says why */
    bool finalized;
    dlcoll_error error;
};

/* Every public operation begins and ends with these. Enter: 0, and the communicator is this
 * thread's until comm_leave(); or a code, and the operation returns it. Leave returns `code`. */
int comm_enter(dlcoll_comm *comm);
int comm_leave(dlcoll_comm *comm, int code);

/* Time on mono_ns() when an operation must be over; 0: never. */
uint64_t comm_deadline(int64_t timeout_ms);

/* Copies an options struct of the caller's (any version, NULL: defaults) into ours, which has been
 * filled in by its initialiser macro. 0, DLCOLL_EINVAL (no such struct), or DLCOLL_ENOSUP: a newer
 * program asks for what this library does not know. */
int comm_take_opts(void *ours, size_t size, const void *given);

/* Whether the process is a fork()'s child of the one that made the communicator. */
bool comm_is_forked(const dlcoll_comm *comm);

/* An operation has failed with `status`, as engine_wait() returns it, and `why`: finds out whose
 * fault it was, records that in the communicator and in the worker's line of the segment, tells the
 * other ranks, and closes the connections. Returns the public code. (failure.c) */
int comm_fail(dlcoll_comm *comm, int status, const struct call *call, const struct err *why);

#endif
