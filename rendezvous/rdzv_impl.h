/* rdzv_impl.h: what rdzv.c, rdzv_host.c and rdzv_redirect.c share. */
#ifndef RENDEZVOUS_RDZV_IMPL_H
#define RENDEZVOUS_RDZV_IMPL_H

#include "core/uvx.h"
#include "rendezvous/wire/beat_call.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/wire/endpoint.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/member.h"
#include "rendezvous/discovery/rdzv_config.h"
#include "rendezvous/discovery/rdzv_backend.h"
#include "rendezvous/wire/relay.h"
#include "rendezvous/wire/standby.h"
#include "rendezvous/store/store_server.h"

struct rdzv {
    uv_loop_t *loop;
    struct rdzv_config config;
    struct uvx_scope scope;
    struct link_hub hub;
    struct beats *beats;      /* NULL: one node */
    struct event_log *events; /* NULL: none is kept */
    struct beat_call *beat_call;
    struct member *member;
    struct coordinator *coordinator; /* these three: when this process hosts it */
    struct endpoint *endpoint;
    struct store_server *store;
    struct relay *relay; /* NULL: without */
    struct auth *auth;
    struct standby *standby; /* answers at the endpoint while another node is the coordinator, if
                                this one may be elected */
    int candidate;           /* index in the list of electors of the member to connect to */
    int lost;                /* attempts to connect to that member that nothing has answered */
    uint64_t candidate_ns;   /* when the first of these attempts began */
    int listen_fd;           /* bound by rdzv_open(), not yet watched; -1 */

    struct rdzv_discovery *discovery; /* NULL while a thread of the pool has it */
    struct discovery_request *discovery_request;
    struct connector *connector;
    uv_timer_t retry;
    double retry_ms;
    int attempts;        /* since a coordinator has answered */
    bool here, refused;  /* the last attempt: at addresses of this host; nobody listened */
    bool met;            /* the last attempt: somebody took the connection... */
    bool ask;            /* ...and was no coordinator: to be asked who is */
    struct netaddr good; /* the address of the last connection */
    bool have_good;
    char where[HOST_MAX + 16]; /* the coordinator, for people */
    char local_addr[ADDR_STRLEN];

    uv_timer_t redirect;      /* of an elected coordinator */
    uint64_t split_brain_ns;  /* since when there are two jobs of this id; 0: there are not */
    bool split_brain_logged;  /* the warning about it */
    bool wrong_key_logged;    /* the warning about a launcher with another job token */
    bool moving;              /* redirected to `elsewhere`; rdzv_redirect_move() is due */
    struct netaddr elsewhere; /* of the elected coordinator */
    uint64_t moved_ns;        /* when this node moved there; 0: never */
    unsigned shed;            /* parts of the coordinator that it gave up, not yet closed */

    bool closing, tearing_down;
    unsigned parts; /* not yet closed */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* Listens as the backend wants. A descriptor; -EADDRINUSE: somebody else does, join there; another
 * negative errno: final. Blocks for a moment when the port is taken. */
int rdzv_host_listen(struct rdzv_discovery *f, struct err *e);

/* Makes the parts of a launcher that hosts the coordinator: the endpoint, which takes listen_fd (0,
 * or -errno with a text); the store, if this job's launchers serve it; the coordinator, with an
 * electorate if it stands for election. */
int rdzv_host_endpoint(struct rdzv *r, int listen_fd, struct err *e);
void rdzv_host_store(struct rdzv *r);
void rdzv_host_coordinator(struct rdzv *r, const struct rdzv_electorate *electorate);

/* Makes all three. False: one could not be made, and the member has failed with the reason. */
bool rdzv_host(struct rdzv *r, int listen_fd);

/* Callbacks of the relay (struct relay_config). */
bool rdzv_host_serve_store(void *arg, int fd);
bool rdzv_host_whereabouts(void *arg, struct netaddr *out);

/* Every node has the result (struct coordinator_events). In rdzv.c. */
void rdzv_coordinator_finished(void *arg);

/* Runs a step of the backend that may block on a thread of the pool, then `done` on the loop.
 * r->discovery is NULL meanwhile. */
void rdzv_work(struct rdzv *r, void (*step)(struct rdzv_discovery *f),
               void (*done)(struct rdzv *r));
void rdzv_part_closed(void *arg);
void rdzv_part_shed(void *arg); /* one of r->shed */

/* rdzv_redirect.c. This node stands for election: it redirects others once it is elected. */
void rdzv_redirect_start(struct rdzv *r);
/* A callback of the coordinator (struct coordinator_events). */
void rdzv_redirect_received(void *arg, const struct netaddr *there, bool begun);
/* r->moving: closes this node's coordinator, and connects its member to the elected one. */
void rdzv_redirect_move(struct rdzv *r);
/* Whether a redirect is younger than the dead time: the member connects there, without discovery.
 */
bool rdzv_redirect_followed(const struct rdzv *r);

#endif
