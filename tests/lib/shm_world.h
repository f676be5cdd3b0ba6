/* shm_world.h: communicators of ranks that share a node and its memory, and nothing else: no
 * launcher, no sockets. Each is good for operations of shm_provider.
 *
 * In one process, a thread for each rank; or in forked processes, each of which uses its own. */
#ifndef TESTS_LIB_SHM_WORLD_H
#define TESTS_LIB_SHM_WORLD_H

#include "collectives/comm/comm.h"

enum { SHM_WORLD_MOST = 16 };

struct shm_world {
    int n;
    void *heap; /* shared with the children */
    size_t bytes;
    _Atomic uint32_t *abort_word;       /* in it */
    struct world world[SHM_WORLD_MOST]; /* each rank's */
};

/* usable_cpus: 0: what this process has. */
void shm_world_init(struct shm_world *w, int n, int usable_cpus);
void shm_world_fini(struct shm_world *w);

/* Rank i's; in the process that uses it. */
dlcoll_comm *shm_world_comm(struct shm_world *w, int i);
void shm_world_close(dlcoll_comm *comm);

/* A call of all ranks, with nothing but its kind and what it numbers. */
struct coll_call shm_world_call(dlcoll_comm *comm, enum call_kind kind, size_t count,
                                dlcoll_dtype dtype, dlcoll_op op, int root);
/* Carries it out; returns what the provider does. */
int shm_world_run(struct coll_call *c);

#endif
