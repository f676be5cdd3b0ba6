/* coll.h: how a public collective operation goes. */
#ifndef COLLECTIVES_API_COLL_H
#define COLLECTIVES_API_COLL_H

#include "collectives/api/coll_args.h"
#include "collectives/api/coll_call.h"

/* A whole public call: enters the communicator, checks, carries out or queues, leaves. */
int coll_invoke(struct coll_args *a);

/* An operation whose call is filled in, inside the communicator: numbers it and carries it out, or
 * queues it when `work` is not NULL. The public code. */
int coll_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work);

#endif
