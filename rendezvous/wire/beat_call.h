/* beat_call.h: a node opens the connection for its heartbeats (beat.h), on the loop.
 *
 *     connect -> TLS, preambles -> RDZV_MSG_BEAT with the node's id -> RDZV_MSG_BEAT -> the thread
 *
 *   any error, or more time than the dead time    done() with -1 */
#ifndef RENDEZVOUS_WIRE_BEAT_CALL_H
#define RENDEZVOUS_WIRE_BEAT_CALL_H

#include "core/netaddr.h"
#include "rendezvous/wire/beat.h"
#include "rendezvous/wire/link.h"

struct beat_call;

/* Calls back once, never from inside this call, with the number from beats_add() or -1, and frees
 * itself then. auth: what the other side must prove, ready; borrowed. */
struct beat_call *beat_call_new(struct link_hub *hub, struct beats *beats, const struct netaddr *to,
                                const struct auth *auth, const struct node_id *id, uint64_t dead_ns,
                                void (*done)(void *arg, int link), void *arg);
void beat_call_cancel(struct beat_call *c); /* NULL is allowed; does not call back */

#endif
