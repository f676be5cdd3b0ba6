/* keeper.h: what the launcher of a coordinator does, again and again, so that there is one job:
 *
 *   a backend that votes (etcd)    the address is renewed there with each heartbeat, and when there
 *                                  is a new list of members; the coordinator hears of the vote
 *   an elected coordinator         tells whoever listens at the configured endpoints where the job
 *                                  is, every second: a launcher that is started again where the job
 *                                  began cannot know it, and hosts a new one there
 *
 *   nobody, or a standby, listens at the endpoint     nothing
 *   the other one has begun a round                   both warn of two jobs
 *   the other one has another job token               both warn of it
 *   the other one has not, or etcd has elected it     on_elsewhere: this coordinator is given up
 *
 * Made with the coordinator, and closed with it. */
#ifndef RENDEZVOUS_KEEPER_H
#define RENDEZVOUS_KEEPER_H

#include "rendezvous/coordinator.h"
#include "rendezvous/discovery/search.h"

struct keeper;

struct keeper_config {
    uv_loop_t *loop;
    const struct rdzv_config *config;
    struct search *search;
    struct coordinator *coordinator;
    const struct endpoint *endpoint;
    const char *local_addr; /* to tell when the endpoint has all addresses; "" */
    bool elected;           /* it stands for election */
    void *arg;
    void (*on_elsewhere)(void *arg, const struct netaddr *there);
};

/* Borrows all that is in the config. */
struct keeper *keeper_new(const struct keeper_config *config);

/* coordinator_events.on_elsewhere. */
void keeper_elsewhere(struct keeper *k, const struct netaddr *there, bool begun);
/* To be called after coordinator_advance(). */
void keeper_advance(struct keeper *k);
/* Ends renewals and redirects. */
void keeper_stop(struct keeper *k);
void keeper_close(struct keeper *k, void (*on_closed)(void *arg), void *arg);

#endif
