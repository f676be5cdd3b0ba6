/* connector.h: a TCP connection to whichever of several addresses answers first. They are tried in
 * order, the next one when the last has failed or has not answered for 250 ms; the others are given
 * up when one is there. */
#ifndef RENDEZVOUS_WIRE_CONNECTOR_H
#define RENDEZVOUS_WIRE_CONNECTOR_H

#include <stdbool.h>
#include <uv.h>

#include "core/netaddr.h"

#define CONNECTOR_ADDRS_MAX 16

struct connector;

/* fd: connected and non-blocking, the callee's; or negative: none answered, why says what the most
 * telling of them said. refused: a host was there and nobody listened. */
typedef void connector_done_fn(void *arg, int fd, const struct netaddr *peer, bool refused,
                               const char *why);

/* Tries at most CONNECTOR_ADDRS_MAX addresses, timeout_ms in all. Calls back once, never from
 * inside this call; the connector is freed then. */
struct connector *connector_new(uv_loop_t *loop, const struct netaddr *addrs, int n,
                                uint64_t timeout_ms, connector_done_fn *done, void *arg);
/* Gives up without calling back; frees it. */
void connector_cancel(struct connector *c);

#endif
