/* coll.h: how a public collective operation goes. */
#ifndef COLLECTIVES_OPS_COLL_H
#define COLLECTIVES_OPS_COLL_H

#include "collectives/ops/coll_args.h"
#include "collectives/comm/coll_call.h"

/* A whole public call: enters the communicator, checks, carries out or queues, leaves. */
int coll_invoke(struct coll_args *a);

/* coll_invoke() for a caller that has entered the communicator. */
int coll_check_and_perform(struct coll_args *a);

/* An operation whose call is filled in, inside the communicator, on either kind of memory. The
 * public code. */
int coll_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work);

#endif
