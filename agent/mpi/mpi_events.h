/* mpi_events.h: what a server of MPI programs asks of the agent. */
#ifndef AGENT_MPI_MPI_EVENTS_H
#define AGENT_MPI_MPI_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/rules/rdzv_types.h"

struct mpi_events {
    void *arg;
    /* Every rank of this node has entered a fence: the values of all nodes are wanted, and
     * pmi_gathered() or pmix_gathered() brings them. Both may be called from inside this callback.
     * Borrows for the call. */
    void (*on_fence)(void *arg, const void *value, size_t len);
    /* A worker ends the job, or cannot go on: `how` says what it did, "called MPI_Abort with code
     * 7"; exit_code is 0 to 255. */
    void (*on_abort)(void *arg, int local_rank, int exit_code, const char *how);
    /* A rank of this node wants what a rank of another node has put: pmix_modex() there, then
     * pmix_modex_found() here, under the same id. False: the rank's node cannot be asked now. */
    bool (*on_modex)(void *arg, int rank, uint64_t id);
    /* The data for which pmix_modex() was called; len 0: there is none. Borrows for the call. */
    void (*on_modex_found)(void *arg, const struct node_id *to, uint64_t id, const void *data,
                           size_t len);
};

#endif
