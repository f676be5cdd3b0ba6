/* rdzv_probe.h: one question to whoever listens at an address. */
#ifndef RENDEZVOUS_DISCOVERY_RDZV_PROBE_H
#define RENDEZVOUS_DISCOVERY_RDZV_PROBE_H

#include "core/netaddr.h"
#include "rendezvous/rules/rdzv_msg.h"
#include "rendezvous/wire/auth.h"

/* Asks whoever listens at the address who it is, for at most timeout_ms: 0 and *id when it is a
 * coordinator. auth: how it has to prove itself; NULL: not at all, in the clear. Blocks.
 * -EACCES: there is no key yet that would be needed, or another user listens there. */
int rdzv_probe(const struct netaddr *a, int timeout_ms, const struct auth *auth,
               struct rdzv_identity *id);
/* Asks in the same way, and tells the listener where the job is: *id says elsewhere when the
 * listener has no other coordinator. */
int rdzv_tell(const struct netaddr *a, int timeout_ms, const struct auth *auth,
              const struct rdzv_elsewhere *where, struct rdzv_identity *id);

#endif
