/* execute.h: carries out one collective operation on host memory, whose turn has come. */
#ifndef COLLECTIVES_PERFORM_EXECUTE_H
#define COLLECTIVES_PERFORM_EXECUTE_H

struct coll_call;
struct dlcoll_comm;

/* Runs the call under the communicator's `running`, and fails the communicator if it fails. Returns
 * the public code. */
int execute_call(struct dlcoll_comm *comm, struct coll_call *call);

#endif
