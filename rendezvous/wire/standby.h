/* standby.h: answers other launchers for one that is not the coordinator: that the launcher is
 * there, and where the coordinator is. When the coordinator is lost, and this node takes its place,
 * its connections come here too (host.h). */
#ifndef RENDEZVOUS_WIRE_STANDBY_H
#define RENDEZVOUS_WIRE_STANDBY_H

#include "rendezvous/wire/branch.h"
#include "rendezvous/wire/link.h"

#define STANDBY_MAX 64 /* connections at once (wire/pending.h) */

struct standby;

/* Borrows the hub and run_id, host. branch: takes the connections of this node's children in the
 * tree of the launchers; NULL: it has none. */
struct standby *standby_new(struct link_hub *hub, const char *run_id, const char *host,
                            struct branch *branch);
/* Sets the answer to a PROBE: the coordinator that this node follows; port 0: not known. follows:
 * the node has a coordinator, or takes part in an election. */
void standby_set_coordinator(struct standby *s, const char *addr, int port, bool follows);
/* This standby listens at a configured endpoint, where an earlier coordinator may have listened. So
 * the HELLO of a launcher that has followed a coordinator is not answered by a refusal: the
 * launcher may not have noticed that its coordinator is gone, and would take the refusal for that
 * coordinator's. The connection is closed instead. */
void standby_at_endpoint(struct standby *s);
/* Takes a connected socket; key: of its TLS connection; NULL: in the clear. A PROBE or an ELSEWHERE
 * is answered by an IDENTITY, a HELLO by a refusal after which the launcher tries again. */
void standby_adopt(struct standby *s, int fd, const struct tls_key *key);
void standby_close(struct standby *s, void (*on_closed)(void *arg), void *arg);

#endif
