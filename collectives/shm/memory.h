/* memory.h: what the ranks of a communicator on one node share: a piece of memory.
 *
 * The first world of a job that dlaunch has started uses the heap of the launcher's segment:
 * everybody has it mapped, no word is exchanged. Elsewhere, for later ones, and for groups, the
 * lowest local rank makes it and describes it to the others in an offer, which travels over the
 * communicator's connections; each attaches, and if one of them cannot, all give it up and talk
 * over TCP instead (comm_memory.c).
 *
 * comm->topo says who is on this node. On success comm->shm is set, and comm->shared_stop points to
 * a zeroed record in it that all of them see. Memory is zeroed and belongs to the communicator:
 * whatever a rank does in it, the others must survive its death at any point. */
#ifndef COLLECTIVES_SHM_MEMORY_H
#define COLLECTIVES_SHM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct dlcoll_comm;

/* Why a rank for which shm_is_replaced() is true takes part no more. */
#define SHM_REPLACED "it runs its next program: do all workers run equally many, one after another?"

/* Opaque to those who carry it; of one build of one version. Whoever attaches checks all of it. */
struct shm_offer {
    uint64_t words[8];
};

/* On every local rank: the world's memory in the launcher's heap, at least shm_least_bytes();
 * SIZE_MAX for too many ranks. */
size_t shm_least_bytes(int ranks);
int shm_open_heap(struct dlcoll_comm *comm, void *heap, size_t bytes, struct err *e);

/* On the lowest local rank; on the others with its offer. 0, or negative: no memory can be shared,
 * which is no failure of the communicator. */
int shm_create(struct dlcoll_comm *comm, struct shm_offer *offer, struct err *e);
int shm_attach(struct dlcoll_comm *comm, const struct shm_offer *offer, struct err *e);

/* Called on every local rank when all of them have attached: what was only needed for that (a
 * descriptor, a name) can go. */
void shm_all_attached(struct dlcoll_comm *comm);

/* In any state; NULL comm->shm is allowed. What shm_alloc() has given out is gone. */
void shm_close(struct dlcoll_comm *comm);

/* Whether the worker of that local rank runs another program than the one that attached: a worker
 * may run several in turn. Under a launcher only. As after its end, what the first one has done
 * counts: a waiting rank first calls this, then looks for the data once more. */
bool shm_is_replaced(const struct dlcoll_comm *comm, int local);

/* dlcoll_mem_alloc() and dlcoll_mem_free(). From any thread. NULL: there is no memory to share, or
 * none left. False: p is not from shm_alloc(). */
void *shm_alloc(struct dlcoll_comm *comm, size_t bytes);
bool shm_free(struct dlcoll_comm *comm, void *p);

#endif
