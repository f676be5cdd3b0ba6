/* beat_call.h: a node opens the connection for its heartbeats (beat.h), on the loop.
 *
 *     connect -> TLS, preambles -> RDZV_MSG_BEAT with the node's id -> RDZV_MSG_BEAT -> the thread
 *
 *   whatever goes wrong, or takes longer than a dead time    done() with -1 */
#ifndef RENDEZVOUS_WIRE_BEAT_CALL_H
#define RENDEZVOUS_WIRE_BEAT_CALL_H

#include "core/netaddr.h"
#include "rendezvous/wire/beat.h"
#include "rendezvous/wire/link.h"

struct beat_call;

/* Calls back once, never from inside this call, with beats_add()'s number or -1; the call is freed
 * then. auth: how the other side has to prove itself, ready; borrowed. */
struct beat_call *beat_call_new(struct link_hub *hub, struct beats *beats, const struct netaddr *to,
                                const struct auth *auth, const struct node_id *id, uint64_t dead_ns,
                                void (*done)(void *arg, int link), void *arg);
void beat_call_cancel(struct beat_call *c); /* NULL is allowed; does not call back */

#endif
