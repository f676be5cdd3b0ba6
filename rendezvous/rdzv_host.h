/* rdzv_host.h: listens where the backend says. */
#ifndef RENDEZVOUS_RDZV_HOST_H
#define RENDEZVOUS_RDZV_HOST_H

#include "core/err.h"
#include "rendezvous/discovery/rdzv_backend.h"

/* Returns a listening descriptor; -EADDRINUSE: another process has the port, join there; another
 * negative errno is final. Blocks for a moment if the port is taken. */
int rdzv_host_listen(struct rdzv_discovery *f, struct err *e);

#endif
