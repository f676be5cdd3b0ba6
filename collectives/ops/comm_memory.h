/* comm_memory.h: the memory of a communicator's ranks on one node, when no launcher has prepared
 * it.
 */
#ifndef COLLECTIVES_OPS_COMM_MEMORY_H
#define COLLECTIVES_OPS_COMM_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/dlcoll.h"

struct coll_failure;

/* Agrees with this node's other ranks on their memory, over the network; every rank of `comm` calls
 * it. 0 with or without shared memory; else a code of an operation (coll_call.h). meets: 0 also
 * says that every rank has called it, on whatever node. */
int comm_share_memory(dlcoll_comm *comm, bool meets, uint64_t deadline_ns,
                      struct coll_failure *failure);

#endif
