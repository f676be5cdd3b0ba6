/* failure.h: how a communicator fails: finds the cause, the same one on every rank, and notifies
 * the others. */
#ifndef COLLECTIVES_COMM_FAILURE_H
#define COLLECTIVES_COMM_FAILURE_H

#include "collectives/comm/comm.h"

/* An operation has failed with `status` as coll_call.h says: finds the rank at fault, records
 * it in the communicator and in the worker's line of the segment, and notifies the other ranks.
 * Returns the public code. */
int comm_fail(dlcoll_comm *c, int status, const struct coll_call *call);

/* A call of that kind on c has failed because the group that it makes has failed: c fails too.
 * Returns the public code. */
int comm_fail_as(dlcoll_comm *c, const dlcoll_comm *group, enum call_kind kind);

/* A rank waits for this one, or asks for its call (wire/wire.h). If the calls differ, the
 * communicator must stop. True: *ask is the answer. Any thread. */
bool comm_asked(struct acceptor_subscriber *subscriber, int from, struct ask *ask);

/* Makes this rank give up the communicator: its operations under way end with `code`; the other
 * ranks get `theirs` and the clause. False: the communicator has failed already. */
bool comm_give_up(dlcoll_comm *c, int code, int theirs, const char *clause);

#endif
