/* tcp.h: the transport over TCP.
 *
 * Two ranks share one connection, made when one of them first has something to send to, or to
 * receive from, the other: the lower rank connects, the higher one accepts, so that two never
 * cross. Both introduce themselves (net/wire.h) before the first frame; whoever is not of this job,
 * round and communicator is turned away and disturbs nobody. */
#ifndef COLLECTIVES_NET_TCP_H
#define COLLECTIVES_NET_TCP_H

#include "collectives/net/transport.h"
#include "collectives/world.h"

/* Opens nothing yet. Borrows the world until it is freed. 0 or -ENOMEM. */
int tcp_new(struct transport **out, const struct world *w, struct err *e);

#endif
