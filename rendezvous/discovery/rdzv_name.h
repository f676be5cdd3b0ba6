/* rdzv_name.h: the backends whose endpoint is HOST:PORT, static and c10d. */
#ifndef RENDEZVOUS_DISCOVERY_RDZV_NAME_H
#define RENDEZVOUS_DISCOVERY_RDZV_NAME_H

#include "rendezvous/discovery/rdzv_backend.h"

extern const struct rdzv_backend_ops rdzv_static_ops, rdzv_c10d_ops;

/* Reports where the job is to the listeners at its configured endpoints, except f->own. Sets
 * f->split_brain to one that has begun another job with the same run id, f->wrong_key to one that
 * has another job token. Blocks. */
void rdzv_discovery_tell(struct rdzv_discovery *f);

#endif
