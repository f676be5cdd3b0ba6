/* coll.h: how a public collective operation goes. */
#ifndef COLLECTIVES_API_COLL_H
#define COLLECTIVES_API_COLL_H

#include "collectives/api/coll_args.h"
#include "collectives/api/coll_call.h"

/* A whole public call: enters the communicator, checks, carries out or queues, leaves. */
int coll_invoke(struct coll_args *a);

/* coll_invoke() for a caller that has entered the communicator. */
int coll_check_and_perform(struct coll_args *a);

/* An operation whose call is filled in, inside the communicator: numbers it and carries it out, or
 * queues it when `work` is not NULL. The public code. */
int coll_perform(dlcoll_comm *c, struct coll_call *call, dlcoll_work **work);

/* Queues a call that has its number, or is none that all ranks make (seq 0). The public code. */
int coll_submit(dlcoll_comm *c, const struct coll_call *call, dlcoll_work **out);

#endif
