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
    struct beats *beats; /* NULL: one node */
    struct beat_call *beat_call;
    struct member *member;
    struct coordinator *coordinator; /* these three: when this process hosts it */
    struct endpoint *endpoint;
    struct store_server *store;
    struct relay *relay; /* NULL: without */
    struct auth *auth;
    struct standby
        *standby;          /* while it does not, and may be elected; it has an endpoint then, too */
    int candidate;         /* in the list of electors: whom to call next */
    int lost;              /* calls to it that nothing has answered */
    uint64_t candidate_ns; /* since when that one is called */
    int listen_fd;         /* bound by rdzv_open(), not yet watched; -1 */

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
    bool split_brain_said;    /* that it is so */
    bool stranger_said;       /* that a launcher with another job token is where the job began */
    bool moving;              /* told that the job is elsewhere, there */
    struct netaddr elsewhere; /* not acted on yet */
    uint64_t moved_ns;        /* when it was; 0: never */
    unsigned shed;            /* parts of a host that is none any more, not yet closed */

    bool closing, tearing_down;
    unsigned parts; /* not yet closed */
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* Listens as the backend wants. A descriptor; -EADDRINUSE: somebody else does, join there; another
 * negative errno: final. Blocks for a moment when the port is taken. */
int rdzv_host_listen(struct rdzv_discovery *f, struct err *e);

/* The parts of a host. The endpoint takes listen_fd: 0, or -errno with a text; the store, if this
 * job's launchers serve it; the coordinator, of a first round or
 * (electorate) after an election. */
int rdzv_host_endpoint(struct rdzv *r, int listen_fd, struct err *e);
void rdzv_host_store(struct rdzv *r);
void rdzv_host_coordinator(struct rdzv *r, const struct rdzv_electorate *electorate);

/* All of them. False: it could not be; the member knows why. */
bool rdzv_host(struct rdzv *r, int listen_fd);

/* Callbacks of the relay (struct relay_config). */
bool rdzv_host_serve_store(void *arg, int fd);
bool rdzv_host_whereabouts(void *arg, struct netaddr *out);

/* The coordinator has nothing more to do. */
void rdzv_host_finished(void *arg);

/* Runs a step of the backend that may block on a thread of the pool, then `done` on the loop.
 * r->discovery is NULL meanwhile. */
void rdzv_work(struct rdzv *r, void (*step)(struct rdzv_discovery *f),
               void (*done)(struct rdzv *r));
void rdzv_part_closed(void *arg);
void rdzv_part_shed(void *arg); /* one of r->shed */

/* rdzv_redirect.c. This node has been made coordinator. */
void rdzv_redirect_start(struct rdzv *r);
/* A callback of the coordinator (struct coordinator_events). */
void rdzv_redirect_told(void *arg, const struct netaddr *there, bool begun);
/* r->moving: it hosts no more, and its member goes there. */
void rdzv_redirect_move(struct rdzv *r);
/* The member is to go where it was told, rather than find out by itself. */
bool rdzv_redirect_sent_on(const struct rdzv *r);

#endif
