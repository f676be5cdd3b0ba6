/* mem.c: dlcoll_mem_alloc() and dlcoll_mem_free(). */
#include "collectives/comm/comm.h"
#include "collectives/shm/memory.h"

void *dlcoll_mem_alloc(dlcoll_comm *comm, size_t bytes)
{
    return comm && !comm_is_forked(comm) ? shm_alloc(comm, bytes) : NULL;
}

void dlcoll_mem_free(dlcoll_comm *comm, void *p)
{
    if (comm && p && !comm_is_forked(comm))
        (void)shm_free(comm, p);
}
