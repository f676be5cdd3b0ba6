/* coordinator.h: the coordinator on the loop: connections in, rdzv_state's rules, messages out. */
#ifndef RENDEZVOUS_COORDINATOR_H
#define RENDEZVOUS_COORDINATOR_H

#include <uv.h>

#include "core/netaddr.h"
#include "rendezvous/wire/beat.h"
#include "rendezvous/wire/link.h"
#include "rendezvous/rules/rdzv_state.h"

#define COORDINATOR_HELLO_MS 5000 /* for a connection to say hello */

struct coordinator;

struct coordinator_events {
    void *arg;
    /* No worker is alive and a round begins: the store is emptied. */
    void (*on_new_round)(void *arg);
    /* Everybody has the result, or had long enough. */
    void (*on_finished)(void *arg);
    /* Somebody at this address does not have the key. */
    void (*on_stranger)(void *arg, const struct netaddr *peer);
    /* A node's connection for its workers' clients of the store: takes it. NULL: there are none. */
    void (*on_relay)(void *arg, struct link *l);
    /* This job has another coordinator, there, which was elected. begun: so has this one begun it,
     * and there are two; else this one has been given up: coordinator_dismiss() is to follow. */
    void (*on_elsewhere)(void *arg, const struct netaddr *there, bool begun);
};

/* Borrows the hub, the beats (NULL: of a job of one node), and the strings of the rules. host, pid:
 * of this launcher, for whoever asks. electorate: NULL, or what one that stands for election knows
 * (its `random` is drawn here); borrowed for the call. */
struct coordinator *coordinator_new(struct link_hub *hub, struct beats *beats,
                                    const struct rdzv_rules *rules, const char *host, int pid,
                                    const struct rdzv_electorate *electorate,
                                    const struct coordinator_events *events);

/* Takes a connected non-blocking socket; peer: NULL for the coordinator's own launcher, which comes
 * by a socketpair. key: of the TLS connection that it is to be; NULL: in the clear. */
void coordinator_adopt(struct coordinator *c, int fd, const struct netaddr *peer,
                       const struct tls_key *key);
/* The same, to be told why it is not let in as soon as it has said which version it speaks. */
void coordinator_turn_away(struct coordinator *c, int fd, const struct netaddr *peer,
                           const char *why);

/* The address is one that a node of the job has, or has called from. */
bool coordinator_is_node(const struct coordinator *c, const struct netaddr *a);

/* The heartbeats may have brought something. */
void coordinator_look_at_beats(struct coordinator *c);

/* Does what is due; to be called before the hub flushes. */
void coordinator_advance(struct coordinator *c);

/* The result is known. */
bool coordinator_ended(const struct coordinator *c);
bool coordinator_finished(const struct coordinator *c); /* on_finished has been called, or will */

/* Whether this coordinator was elected and its job is not over. */
bool coordinator_leads(const struct coordinator *c);

/* Hangs up on everybody, before coordinator_close() while the hub goes on. */
void coordinator_dismiss(struct coordinator *c);
/* The links are the hub's to close. */
void coordinator_close(struct coordinator *c, void (*on_closed)(void *arg), void *arg);

#endif
