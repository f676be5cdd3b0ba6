/* net.h: a communicator's connections, and the provider that carries out operations over them. */
#ifndef COLLECTIVES_NET_NET_H
#define COLLECTIVES_NET_NET_H

#include "collectives/comm/coll_call.h"
#include "collectives/net/engine.h"
#include "collectives/net/schedule.h"
#include "collectives/wire/tcp.h"

struct coll_provider;

struct net {
    struct transport *transport;
    struct engine engine;
    struct schedule schedule;
    uint64_t seq;     /* of the current operation; 0: it has none */
    uint8_t *scratch; /* scaled input, if the result has no room for it */
    size_t cap_scratch;
    const struct algo *algo; /* of the last operation or part of one, for tests */
};

/* Opens no connection yet. The caller has set comm's ranks, topology and job. 0 or -ENOMEM. */
int net_new(struct net **out, struct dlcoll_comm *comm, struct err *e);
void net_free(struct net *n); /* NULL is allowed */

/* The algorithm that the provider would choose. */
const char *net_algo(const struct coll_call *c);

extern const struct coll_provider net_provider; /* any ranks, over sockets */

#endif
