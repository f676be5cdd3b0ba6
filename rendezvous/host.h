/* host.h: what a launcher has at its own port: the endpoint, and behind it the coordinator with the
 * workers' store or, while another node is the coordinator, a standby. Says who is admitted. */
#ifndef RENDEZVOUS_HOST_H
#define RENDEZVOUS_HOST_H

#include "rendezvous/coordinator.h"
#include "rendezvous/discovery/search.h"
#include "rendezvous/member.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/wire/relay.h"

struct host;

struct host_config {
    uv_loop_t *loop;
    const struct rdzv_config *config;
    struct auth *auth;
    struct link_hub *hub;
    struct beats *beats;      /* NULL: one node */
    struct event_log *events; /* NULL: none is kept */
    struct search *search;
    struct member *member;
    void *output_arg; /* rdzv_callbacks.on_output; NULL */
    bool (*on_output)(void *arg, const void *output, size_t n);
    void *arg; /* the argument of the other callbacks */
    /* The coordinator's on_finished. */
    void (*on_finished)(void *arg);
    /* The coordinator is to be given up for another one at `there`: host_move(). */
    void (*on_elsewhere)(void *arg, const struct netaddr *there);
};

/* Borrows what is in the config. */
struct host *host_new(const struct host_config *config);
/* The relay of this launcher, which takes connections of other nodes' relays; NULL: none. */
void host_set_relay(struct host *h, struct relay *relay);

/* Opens the port that a backend has chosen. Returns a listening descriptor; -EADDRINUSE: another
 * process has the port, join there; -EBUSY: one that is about to end; another negative errno is
 * final. Blocks for a moment if the port is taken. */
int host_listen(struct rdzv_discovery *f, struct err *e);

/* Makes the coordinator, with its store: at a descriptor of host_listen(), which is taken, or at
 * the endpoint that is open. f: as its decide() has left it. */
int host_begin(struct host *h, int listen_fd, const struct rdzv_discovery *f, struct err *e);
void host_begin_again(struct host *h, const struct rdzv_discovery *f);
/* Makes a candidate at the endpoint that is open. */
void host_stand(struct host *h, const struct rdzv_electorate *e);
/* The member's end of a connection to the coordinator; or a negative errno. */
int host_connect(struct host *h);
/* Gives the coordinator up: its endpoint becomes a standby that knows where the job is. */
void host_move(struct host *h, const struct netaddr *there);

/* Opens the endpoint at which this node is reached by its children in the tree of the launchers,
 * and if the coordinator is lost, where it stands for election. Nothing if it is open, or if it
 * would not be of use. A node without it only votes. f: with the addresses to prefer. */
void host_open_standby(struct host *h, const struct rdzv_discovery *f,
                       const struct netaddr *coordinator);
/* standby_set_coordinator(). */
void host_follow(struct host *h, const char *addr, int port, bool follows);

/* The address to advertise is known. */
void host_set_local_addr(struct host *h, const char *ip);
const char *host_local_addr(const struct host *h); /* "" */

struct coordinator *host_coordinator(const struct host *h); /* NULL: another node has it */
/* Whether the endpoint listens; its port, 0: none; its address, "" for all. */
bool host_listens(const struct host *h);
int host_port(const struct host *h);
const char *host_addr(const struct host *h);

/* Serves a connected socket of a client of the store; false: the store is not here. */
bool host_serve_store(struct host *h, int fd);

/* Carries out the coordinator's actions; to be called before the hub flushes. */
void host_advance(struct host *h);
/* Refuses all further connections when the process exits without running its loop. */
void host_abandon(struct host *h);
/* Ends redirects and renewals. */
void host_stop(struct host *h);
/* To be called before the hub is closed. */
void host_close(struct host *h, void (*on_closed)(void *arg), void *arg);

#endif
