/* relay.h: serves the workers' store on loopback of every node, and forwards the connections to the
 * node that has the store (--master_store relay).
 *
 *     worker --loopback--> endpoint -> stream --link--> stream --socketpair--> store
 *
 * A node has one link for all its workers, beside the link of the rendezvous, to the same port and
 * with the same TLS. So a process that cannot join the job cannot reach the store, and the data of
 * workers does not delay the messages of launchers. Every connection of a worker is a stream on the
 * link: bytes in both directions, in order, half-closed and closed as the connection is.
 *
 *   a side does not read            its stream stops when RELAY_WINDOW bytes are in flight; the
 *                                   other streams continue
 *   the link is full                sockets are not read until half of the queue is written; the
 *                                   streams continue in turn
 *   the store closes                the worker's connection is closed after the bytes before
 *   the link breaks                 all its connections are closed; the next one makes a new link
 *   a link cannot be made           the worker's connection is closed; clients try again
 *   too many connections            closed at once, one line (RELAY_STREAMS_MAX)
 *   a process of another user       closed at once, one line
 *
 * An idle connection costs some hundred bytes and a descriptor on its node, and two descriptors on
 * the coordinator's node; a connection whose reader does not read costs up to RELAY_WINDOW more. */
#ifndef RENDEZVOUS_WIRE_RELAY_H
#define RENDEZVOUS_WIRE_RELAY_H

#include <stdbool.h>
#include <uv.h>

#include "core/err.h"
#include "core/netaddr.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/wire/link.h"

#define RELAY_WINDOW 131072u /* bytes in flight of one stream, in each direction */

/* The most connections of a node with nproc workers. A worker of PyTorch has one or two, and with
 * newer versions another one for every process group. */
#define RELAY_STREAMS_MAX(nproc) ((nproc) > 16 ? 16 * (nproc) : 256)

struct relay;

struct relay_config {
    struct link_hub *hub;
    struct auth *auth;
    const char *run_id;
    int nproc; /* workers of this node */
    void *arg;
    /* If the store is in this process, takes and serves this connected socket, and returns true. */
    bool (*serve)(void *arg, int fd);
    /* The address of the coordinator; false: not known now. */
    bool (*where)(void *arg, struct netaddr *out);
};

/* Listens on a free port of loopback. Copies the config, borrows what it points to. */
int relay_open(struct relay **out, uv_loop_t *loop, const struct relay_config *config,
               struct err *e);
int relay_port(const struct relay *r);

/* On the coordinator: takes a link from the relay of another node, inside the link's on_frame. */
void relay_adopt(struct relay *r, struct link *l);

/* To be called before the hub is closed. */
void relay_close(struct relay *r, void (*on_closed)(void *arg), void *arg);

#endif
