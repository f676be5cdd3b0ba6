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
 *   a side that does not read     its stream stands still when RELAY_WINDOW bytes are under way;
 * the others go on the store closes              the worker's connection is closed behind what came
 * before the link breaks               all its connections are closed; the next one makes a new
 * link no link to be had             the worker's connection is closed: it tries again, as all
 * clients do more than 256 connections     closed at once, one line another user at the door hung
 * up on, one line */
#ifndef RENDEZVOUS_RELAY_H
#define RENDEZVOUS_RELAY_H

#include <stdbool.h>
#include <uv.h>

#include "core/err.h"
#include "core/netaddr.h"
#include "rendezvous/guard.h"
#include "rendezvous/link.h"

#define RELAY_WINDOW      131072u /* of one stream, each way */
#define RELAY_STREAMS_MAX 256     /* of one link: together they stay below what a link queues */

struct relay;

struct relay_config {
    struct link_hub *hub;
    struct guard *guard;
    const char *run_id;
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
