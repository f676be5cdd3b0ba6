/* mpi_events.h: what a server of MPI programs asks of the agent. */
#ifndef AGENT_MPI_MPI_EVENTS_H
#define AGENT_MPI_MPI_EVENTS_H

#include <stddef.h>

struct mpi_events {
    void *arg;
    /* Every rank of this node has entered a fence: the values of all nodes are wanted, and
     * mpi_gathered() brings them. May be called from inside it. Borrows for the call. */
    void (*on_fence)(void *arg, const void *value, size_t len);
    /* A worker ends the job, or cannot go on: `how` says what it did, "called MPI_Abort with code
     * 7"; exit_code is 0 to 255. */
    void (*on_abort)(void *arg, int local_rank, int exit_code, const char *how);
};

#endif
