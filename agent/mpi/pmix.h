/* pmix.h: the server of one node for programs that are wired up by PMIx (Open MPI): libpmix serves
 * the ranks from a thread of its own, and this object answers what libpmix asks of its host.
 *
 *     worker i --socket, PMIX_SERVER_URI--> libpmix's thread --queue, eventfd--> pmix_ready()
 *
 * Fences over several nodes go to on_fence, with what libpmix has collected on this node; a rank
 * that asks for another one's data outside of a fence, to on_modex. libpmix does the rest.
 * Without libuv: pmix_fd() becomes readable, and pmix_ready() serves. One object a process.
 *
 *   the library is missing               pmix_new() says what to install
 *   a worker ends without PMIx_Finalize  pmix_exit_fault() says so
 *   it asks for new processes (spawn)    refused, in words; a job of one rank gets an MPI error, a
 *                                        larger one ends */
#ifndef AGENT_MPI_PMIX_H
#define AGENT_MPI_PMIX_H

#include "agent/mpi/mpi_events.h"
#include "agent/base/programs.h"
#include "core/bytes.h"
#include "core/err.h"
#include "rendezvous/rules/rank_table.h"

struct pmix;

/* programs: NULL, there is one; borrowed. */
int pmix_new(struct pmix **out, const char *run_id, const struct programs *programs,
             const struct mpi_events *events, struct err *e);
void pmix_free(struct pmix *p); /* NULL is allowed */

/* A round begins; the one before is forgotten. The table is read here only. */
int pmix_begin(struct pmix *p, const struct rank_table *table, int group_rank, bool oversubscribed,
               struct err *e);

int pmix_fd(const struct pmix *p);
void pmix_ready(struct pmix *p);

/* The variables of a worker, "NAME=value": array and strings of malloc. */
int pmix_env(struct pmix *p, int local_rank, char ***out, struct err *e);

/* The values of on_fence() of all nodes. */
void pmix_gathered(struct pmix *p, struct rd values, int nnodes);

/* Passes on another node's question for the data of a rank of this node: on_modex_found brings the
 * data, unless the rank is not here. */
void pmix_modex(struct pmix *p, int rank, uint64_t id, const struct node_id *from);
/* Answers on_modex. */
void pmix_modex_found(struct pmix *p, uint64_t id, const void *data, size_t len);

/* Why the exit of this worker with status 0 is a failure: NULL: it is not. */
const char *pmix_exit_fault(struct pmix *p, int local_rank);

#endif
