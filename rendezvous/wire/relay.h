/* relay.h: the workers' store on loopback of every node, carried to the node that has it
 * (--master_store relay).
 *
 *     worker --loopback--> door -> stream --link--> stream --socketpair--> store
 *
 * A node has one link for all its workers, beside the one of the rendezvous and made as that is:
 * under TLS where that is, to the same port. So the store is reached by nobody who could not join,
 * and what workers store never holds up what launchers tell each other. Every connection of a
 * worker is a stream on it: bytes both ways, in order, half-closed and closed as the connection is;
 * the store sees a connection like any other.
 *
 *   a side that does not read   its stream stands still when RELAY_WINDOW bytes are under way; the
 *                               others go on
 *   the link is full            nothing more is read from sockets until half of it has gone; who
 *                               had to wait goes on in turn
 *   the store closes            the worker's connection is closed behind what came before
 *   the link breaks             all its connections are closed; the next one makes a new link
 *   no link to be had           the worker's connection is closed: it tries again, as clients do
 *   too many connections        closed at once, one line (RELAY_STREAMS_MAX)
 *   another user at the door    hung up on, one line
 *
 * An idle connection costs some hundred bytes and a descriptor on its node, and two descriptors
 * on the coordinator's; one whose reader stands still up to RELAY_WINDOW more. */
#ifndef RENDEZVOUS_WIRE_RELAY_H
#define RENDEZVOUS_WIRE_RELAY_H

#include <stdbool.h>
#include <uv.h>

#include "core/err.h"
#include "core/netaddr.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/wire/link.h"

#define RELAY_WINDOW 131072u /* of one stream, each way */

/* Connections of a node with so many workers. PyTorch's have one or two each, and newer ones
 * another for every process group. */
#define RELAY_STREAMS_MAX(nproc) ((nproc) > 16 ? 16 * (nproc) : 256)

struct relay;

struct relay_config {
    struct link_hub *hub;
    struct auth *auth;
    const char *run_id;
    int nproc; /* workers of this node */
    void *arg;
    /* Serves this connected socket if the store is in this process. True: it is, and has taken fd.
     */
    bool (*serve)(void *arg, int fd);
    /* Where the coordinator is; false: not known now. */
    bool (*where)(void *arg, struct netaddr *out);
};

/* Opens the door, on a free port of loopback. Copies the config, borrows what it points to. */
int relay_open(struct relay **out, uv_loop_t *loop, const struct relay_config *config,
               struct err *e);
int relay_port(const struct relay *r);

/* On the coordinator: a link that another node's relay has made. Takes it, from inside of its
 * on_frame. */
void relay_adopt(struct relay *r, struct link *l);

/* Before the hub is closed. */
void relay_close(struct relay *r, void (*on_closed)(void *arg), void *arg);

#endif
