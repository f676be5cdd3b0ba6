/* comm_create.h: how a communicator is made. Its end is dlcoll_destroy(). */
#ifndef COLLECTIVES_OPS_COMM_CREATE_H
#define COLLECTIVES_OPS_COMM_CREATE_H

#include <stdbool.h>
#include <stdint.h>

#include "collectives/dlcoll.h"
#include "core/err.h"

struct job;

/* A communicator of `size` ranks of the job's world, of which this process is `rank`; takes
 * world_ranks (malloc'ed), also on failure. It has no shared memory yet (comm_memory.c). */
int comm_new(dlcoll_comm **out, struct job *job, uint64_t id, int *world_ranks, int size, int rank,
             const char *name, int64_t timeout_ms, bool after_failure, struct err *e);

#endif
