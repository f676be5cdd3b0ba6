/* coordinator.h: the coordinator on the loop: connections in, rdzv_state's rules, messages out. */
#ifndef RENDEZVOUS_COORDINATOR_H
#define RENDEZVOUS_COORDINATOR_H

#include <uv.h>

#include "core/netaddr.h"
#include "rendezvous/wire/beat.h"
#include "rendezvous/wire/link.h"
#include "rendezvous/rules/rdzv_state.h"

struct coordinator;

struct coordinator_events {
    void *arg;
    /* No worker is alive and a round begins: the store is emptied. */
    void (*on_new_round)(void *arg);
    /* Every node has received the result, or has had close_ns to receive the result. */
    void (*on_finished)(void *arg);
    /* A launcher at this address has another key. */
    void (*on_wrong_key)(void *arg, const struct netaddr *peer);
    /* Takes a node's connection that relays its workers' clients of the store. NULL: no relay. */
    void (*on_relay)(void *arg, struct link *l);
    /* An elected coordinator of this job at `there` has redirected this one. begun: this one has
     * begun a round itself, so that there are two jobs. Otherwise it is given up: the owner calls
     * coordinator_dismiss(). */
    void (*on_elsewhere)(void *arg, const struct netaddr *there, bool begun);
    /* rdzv_callbacks.on_output. NULL: this launcher shows no other node's output. */
    bool (*on_output)(void *arg, const void *output, size_t n);
};

/* Borrows the hub, the beats (NULL: of a job of one node), and the strings of the rules. host, pid:
 * of this launcher, for the answer to a PROBE. electorate: the facts of a candidate (its `random`
 * is drawn here), borrowed for the call; NULL: not elected. log: receives the events of the job,
 * borrowed; NULL: none are kept. */
struct coordinator *coordinator_new(struct link_hub *hub, struct beats *beats,
                                    const struct rdzv_rules *rules, const char *host, int pid,
                                    const struct rdzv_electorate *electorate,
                                    const struct coordinator_events *events, struct event_log *log);

/* Takes a connected non-blocking socket; peer: NULL for the coordinator's own launcher, which comes
 * by a socketpair. key: of the TLS connection that it is to be; NULL: in the clear. */
void coordinator_adopt(struct coordinator *c, int fd, const struct netaddr *peer,
                       const struct tls_key *key);
/* Takes a connection, and refuses the launcher with this reason when the preamble has arrived. */
void coordinator_turn_away(struct coordinator *c, int fd, const struct netaddr *peer,
                           const char *why);

/* etcd votes for this coordinator, as of since_ns (rdzv_etcd.c): etcd counts as a witness, called
 * `name`, last heard at since_ns. */
void coordinator_hear_arbiter(struct coordinator *c, const char *name, uint64_t since_ns);
/* The newest list of members: rdzv_state_newest_list(). */
struct generation coordinator_newest_list(const struct coordinator *c);
uint64_t coordinator_dead_epoch(const struct coordinator *c); /* rdzv_state_dead_epoch() */

/* Whether a node of the round has the address, or has connected from it. */
bool coordinator_is_node(const struct coordinator *c, const struct netaddr *a);

/* The heartbeats may have brought something. */
void coordinator_look_at_beats(struct coordinator *c);

/* The log has changed; then link_hub_wake(). */
void coordinator_events_changed(struct coordinator *c);

/* on_output may be called again. */
void coordinator_output_room(struct coordinator *c);

/* Carries out the actions of the rules; to be called before the hub flushes. */
void coordinator_advance(struct coordinator *c);

/* The result is known. */
bool coordinator_ended(const struct coordinator *c);
bool coordinator_finished(const struct coordinator *c); /* on_finished has been called, or will */

/* Whether this coordinator was elected and its job is not over. */
bool coordinator_leads(const struct coordinator *c);
/* Whether this coordinator was elected, or stands for election. */
bool coordinator_is_elected(const struct coordinator *c);
bool coordinator_stands(const struct coordinator *c);
/* Whether this coordinator has begun a round. */
bool coordinator_has_begun(const struct coordinator *c);

/* Closes all connections, before coordinator_close() while the hub goes on. */
void coordinator_dismiss(struct coordinator *c);
/* The links are the hub's to close. */
void coordinator_close(struct coordinator *c, void (*on_closed)(void *arg), void *arg);

#endif
