/* memory.h: the piece of memory that the ranks of a communicator on one node share.
 *
 * The first world of a job that dlaunch started uses the heap of the launcher's segment: every rank
 * has it mapped, no message is needed. Otherwise, and for later worlds and for groups, the lowest
 * local rank creates the memory and describes it in an offer, which travels over the communicator's
 * connections. Each rank attaches; if one of them cannot, all fall back to TCP (comm_memory.c).
 *
 * comm->topo lists the ranks of this node. On success comm->shm is set, and comm->shared_stop
 * points to a zeroed record in the memory, which all ranks see. The memory starts zeroed and
 * belongs to the communicator. Whatever a rank does in it, the others must survive the rank's death
 * at any point. */
#ifndef COLLECTIVES_SHM_MEMORY_H
#define COLLECTIVES_SHM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct dlcoll_comm;

/* The text of the error for a rank for which shm_is_replaced() is true. */
#define SHM_REPLACED "it runs its next program: do all workers run equally many, one after another?"

/* Opaque; valid only within one build of one version. The attaching rank checks all of it. */
struct shm_offer {
    uint64_t words[8];
};

/* On every local rank: uses the launcher's heap, which must have shm_least_bytes(); SIZE_MAX: too
 * many ranks. */
size_t shm_least_bytes(int ranks);
int shm_open_heap(struct dlcoll_comm *comm, void *heap, size_t bytes, struct err *e);

/* shm_create() on the lowest local rank, shm_attach() on the others with its offer. 0, or negative:
 * no memory can be shared, which does not fail the communicator. */
int shm_create(struct dlcoll_comm *comm, struct shm_offer *offer, struct err *e);
int shm_attach(struct dlcoll_comm *comm, const struct shm_offer *offer, struct err *e);

/* Called on every local rank when all have attached: releases what only attaching needed (a
 * descriptor). */
void shm_all_attached(struct dlcoll_comm *comm);

/* Frees the memory in any state; comm->shm may be NULL. Memory from shm_alloc() becomes invalid. */
void shm_close(struct dlcoll_comm *comm);

/* Whether the worker of that local rank runs another program than the one that attached: a worker
 * may run several in turn. Only under a launcher. Data that the first program published counts: a
 * waiting rank calls this first, then checks for the data once more. */
bool shm_is_replaced(const struct dlcoll_comm *comm, int local);

/* dlcoll_mem_alloc() and dlcoll_mem_free(). Any thread may call them. NULL: no memory is shared, or
 * it is full. False: p is not from shm_alloc(). */
void *shm_alloc(struct dlcoll_comm *comm, size_t bytes);
bool shm_free(struct dlcoll_comm *comm, void *p);

#endif
