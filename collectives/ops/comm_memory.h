/* comm_memory.h: the memory of a communicator's ranks on one node, when no launcher has prepared
 * it.
 */
#ifndef COLLECTIVES_OPS_COMM_MEMORY_H
#define COLLECTIVES_OPS_COMM_MEMORY_H

#include <stdint.h>

#include "collectives/dlcoll.h"

struct coll_failure;

/* Agrees with this node's other ranks on their memory, over the network; every rank of `comm` calls
 * it. 0 with or without shared memory; else a code of an operation (coll_call.h). */
int comm_share_memory(dlcoll_comm *comm, uint64_t deadline_ns, struct coll_failure *failure);

#endif
