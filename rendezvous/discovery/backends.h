/* backends.h: the table of backends. */
#ifndef RENDEZVOUS_DISCOVERY_BACKENDS_H
#define RENDEZVOUS_DISCOVERY_BACKENDS_H

#include "rendezvous/discovery/rdzv_backend.h"

const struct rdzv_backend_ops *rdzv_backend_ops(enum rdzv_backend backend);

/* A search by the backend of the config. */
struct rdzv_discovery *rdzv_discovery_new(const struct rdzv_config *c);
void rdzv_discovery_free(struct rdzv_discovery *f); /* NULL is allowed */

#endif
