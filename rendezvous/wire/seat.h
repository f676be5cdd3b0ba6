/* seat.h: where a launcher that is not the coordinator answers the others: whether it is there, and
 * where the coordinator is. When the coordinator is lost, and this node takes its place, its
 * connections come here too (rdzv.c). */
#ifndef RENDEZVOUS_WIRE_SEAT_H
#define RENDEZVOUS_WIRE_SEAT_H

#include "rendezvous/wire/link.h"

#define SEAT_MAX      64   /* connections at once; the oldest is closed for another one */
#define SEAT_HELLO_MS 5000 /* for a connection to say what it wants */

struct seat;

/* Borrows the hub and run_id, host. */
struct seat *seat_new(struct link_hub *hub, const char *run_id, const char *host);
/* Where the coordinator is, as this node knows; port 0: it does not. follows: it has one, or is
 * about to choose one. */
void seat_set_coordinator(struct seat *s, const char *addr, int port, bool follows);
/* It is where others look for the coordinator, and one may have been: whoever has followed one is
 * hung up on instead of refused. It may not know yet that its own is gone, and would take a refusal
 * for that one's word. */
void seat_at_place(struct seat *s);
/* Takes a connected socket; key: of the TLS connection that it is to be, or NULL: a PROBE
 * (and ELSEWHERE) is answered with an IDENTITY, a HELLO with a refusal after which the caller tries
 * again. */
void seat_adopt(struct seat *s, int fd, const struct tls_key *key);
void seat_close(struct seat *s, void (*on_closed)(void *arg), void *arg);

#endif
