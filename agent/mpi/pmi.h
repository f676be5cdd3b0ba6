/* pmi.h: the process management interface that MPICH and its relatives ask for their wire-up, the
 * server of one node: PMI-1 (1.1), and PMI-2 for a program that begins with it.
 *
 *     worker i --socketpair, PMI_FD--> pmi: put, get, fence, abort, ...
 *
 * Puts of this node are sent to the other nodes with the next fence; a get is answered from what
 * this node has. So a fence costs one message of each node, and no rank waits for another node
 * between fences.
 *
 *   a worker sends what is not PMI       on_abort, with the line in the text
 *   it ends without having finalized     pmi_exit_fault() says so
 *   it asks for new processes (spawn)    refused, in words; the program gets an MPI error */
#ifndef AGENT_MPI_PMI_H
#define AGENT_MPI_PMI_H

#include "agent/mpi/mpi_events.h"
#include "agent/base/programs.h"
#include "core/bytes.h"
#include "core/err.h"
#include "core/uvx.h"
#include "rendezvous/rules/rank_table.h"

struct pmi;

/* scope: gets the handles; borrowed. run_id: names the job to the program, with the number of the
 * round. programs: NULL, there is one; borrowed. */
struct pmi *pmi_new(struct uvx_scope *scope, const char *run_id, const struct programs *programs,
                    const struct mpi_events *events);
/* Ends the connections; before the scope is closed. */
void pmi_end(struct pmi *p);
void pmi_free(struct pmi *p); /* NULL is allowed */

/* A round begins; the one before is forgotten. The table is read here only. */
void pmi_begin(struct pmi *p, const struct rank_table *table, int group_rank);

/* Reads what this worker has sent, now that its process ends. */
void pmi_look(struct pmi *p, int local_rank);

/* The worker's end of its connection; the caller hands it down, then closes it. */
int pmi_connect(struct pmi *p, int local_rank, struct err *e);

/* The values of on_fence() of all nodes. */
void pmi_gathered(struct pmi *p, struct rd values, int nnodes);

/* Why the exit of this worker with status 0 is a failure: NULL: it is not. */
const char *pmi_exit_fault(struct pmi *p, int local_rank);

/* PMI_process_mapping: which ranks are on which nodes. "" if it does not fit. */
#define PMI_VALUE_MAX 1024
void pmi_mapping(const struct rank_table *t, char out[PMI_VALUE_MAX]);

#endif
