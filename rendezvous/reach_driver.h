/* reach_driver.h: reach.h's rules on the loop: the search for the coordinator, connections to it,
 * and the port of this launcher when it becomes the coordinator itself. */
#ifndef RENDEZVOUS_REACH_DRIVER_H
#define RENDEZVOUS_REACH_DRIVER_H

#include "rendezvous/host.h"
#include "rendezvous/member.h"

struct reach_driver;

struct reach_driver_config {
    uv_loop_t *loop;
    const struct rdzv_config *config;
    struct auth *auth;
    struct link_hub *hub;
    struct search *search;
};

/* Borrows what is in the config. Looks and listens at once if that cannot block: an error is one of
 * what can be known before anything is started. */
int reach_driver_new(struct reach_driver **out, const struct reach_driver_config *config,
                     struct err *e);
/* Of one that was not started. */
void reach_driver_free(struct reach_driver *d);
/* To be called before all other functions. beats NULL: a job of one node. */
void reach_driver_start(struct reach_driver *d, struct beats *beats, struct host *host,
                        struct member *member);

/* member_events. */
void reach_driver_wants_link(struct reach_driver *d);
void reach_driver_wants_beat(struct reach_driver *d, const struct node_id *id, uint64_t dead_ns);
/* host_config.on_elsewhere. */
void reach_driver_redirect(struct reach_driver *d, const struct netaddr *there);

/* The place of the coordinator, for messages. The text changes; its address in memory does not. */
const char *reach_driver_where(const struct reach_driver *d);
/* The address of the coordinator; false: not known. */
bool reach_driver_address(const struct reach_driver *d, struct netaddr *out);

/* Carries out the actions of the rules; to be called before member_advance(). */
void reach_driver_advance(struct reach_driver *d);
/* Calls nobody any more. */
void reach_driver_stop(struct reach_driver *d);
void reach_driver_close(struct reach_driver *d, void (*on_closed)(void *arg), void *arg);

#endif
