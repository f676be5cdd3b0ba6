/* standby.h: where a launcher that is not the coordinator answers the others: whether it is there,
 * and where the coordinator is. When the coordinator is lost, and this node takes its place, its
 * connections come here too (rdzv.c). */
#ifndef RENDEZVOUS_WIRE_STANDBY_H
#define RENDEZVOUS_WIRE_STANDBY_H

#include "rendezvous/wire/link.h"

#define STANDBY_MAX      64   /* connections at once; the oldest is closed for another one */
#define STANDBY_HELLO_MS 5000 /* for a connection to say what it wants */

struct standby;

/* Borrows the hub and run_id, host. */
struct standby *standby_new(struct link_hub *hub, const char *run_id, const char *host);
/* Where the coordinator is, as this node knows; port 0: it does not. follows: it has one, or is
 * about to choose one. */
void standby_set_coordinator(struct standby *s, const char *addr, int port, bool follows);
/* This standby listens at a configured endpoint, where an earlier coordinator may have listened. So
 * the HELLO of a launcher that has followed a coordinator is not answered by a refusal: the
 * launcher may not have noticed that its coordinator is gone, and would take the refusal for that
 * coordinator's. The connection is closed instead. */
void standby_at_place(struct standby *s);
/* Takes a connected socket; key: of the TLS connection that it is to be, or NULL: a PROBE
 * (and ELSEWHERE) is answered with an IDENTITY, a HELLO with a refusal after which the caller tries
 * again. */
void standby_adopt(struct standby *s, int fd, const struct tls_key *key);
void standby_close(struct standby *s, void (*on_closed)(void *arg), void *arg);

#endif
