/* store.h: a store as the program sees it: a client, and perhaps the server, in this process. */
#ifndef COLLECTIVES_BOOTSTRAP_STORE_H
#define COLLECTIVES_BOOTSTRAP_STORE_H

#include "collectives/dlcoll.h"
#include "core/err.h"
#include "core/netaddr.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_thread.h"

struct dlcoll_store {
    struct store_client *client; /* owned */
    struct store_thread *server; /* owned; NULL: another's */
    int64_t timeout_ms;          /* negative: none */
    char host[HOST_MAX];         /* where it is */
    int port;
};

/* Serves it first if host_it; port 0: a free one then. timeout_ms negative: none. */
int store_open(struct dlcoll_store **out, const char *host, int port, bool host_it,
               int64_t timeout_ms, struct err *e);

/* The time left until deadline_ns (0: no end), as store_client.h's functions want it. */
int store_ms_until(uint64_t deadline_ns);

#endif
