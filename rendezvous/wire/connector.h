/* connector.h: a TCP connection to the first of several addresses that answers. The addresses are
 * tried in order; the next attempt starts when the last one has failed or has not been answered for
 * 250 ms (RFC 8305). The first connection ends all other attempts. */
#ifndef RENDEZVOUS_WIRE_CONNECTOR_H
#define RENDEZVOUS_WIRE_CONNECTOR_H

#include <stdbool.h>
#include <uv.h>

#include "core/netaddr.h"

#define CONNECTOR_ADDRS_MAX 16

struct connector;

/* fd: connected and non-blocking, owned by the callee; negative: all attempts failed, and `why` is
 * the most useful of their errors. refused: a host answered that no process listens. */
typedef void connector_done_fn(void *arg, int fd, const struct netaddr *peer, bool refused,
                               const char *why);

/* Tries at most CONNECTOR_ADDRS_MAX addresses, for timeout_ms in all. Calls back once, never from
 * inside this call, and frees itself then. */
struct connector *connector_new(uv_loop_t *loop, const struct netaddr *addrs, int n,
                                uint64_t timeout_ms, connector_done_fn *done, void *arg);
/* Gives up without calling back, and frees the connector. */
void connector_cancel(struct connector *c);

#endif
