/* acceptor.h: the door of a process: its one listening socket, which all its communicators share.
 *
 * Whoever connects introduces himself (net/wire.h). One who is not of this job and round is turned
 * away and disturbs nobody; one who brings a notice has it written into the communicator's stop
 * record; one who asks is heard by the communicator; one who comes for a communicator waits here
 * until that takes him in, even if it is not made yet: ranks make theirs at different times.
 *
 * All functions may be called by any thread. None blocks. */
#ifndef COLLECTIVES_NET_ACCEPTOR_H
#define COLLECTIVES_NET_ACCEPTOR_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/net/stop.h"
#include "collectives/net/wire.h"
#include "collectives/bootstrap/world.h"
#include "core/err.h"

enum {
    LOBBY_STRANGERS = 16, /* who have not introduced themselves yet */
    LOBBY_GONE = 1024,    /* communicators: a program may make one for each of its steps */
};

struct stranger {
    int fd; /* -1: a free place */
    uint64_t since_ns;
    size_t have;
    struct {
        struct hello hello;
        union { /* follows when the hello says so */
            struct notice notice;
            struct ask ask;
        };
    } said;
};

struct arrival {
    int fd;
    struct hello hello;
};

/* A communicator that expects connections. */
struct acceptor_subscriber {
    struct acceptor_subscriber *next;
    uint64_t comm;
    struct comm_stop *stop; /* where notices for it are written */
    /* Rank `from` of the world waits for this one, in that operation. Blocks never. */
    void (*asked)(struct acceptor_subscriber *g, int from, const struct ask *ask);
};

struct acceptor {
    pthread_mutex_t lock;
    const struct world *world; /* borrowed */
    struct stranger strangers[LOBBY_STRANGERS];
    struct arrival *arrivals;
    size_t narrivals, cap_arrivals;
    struct acceptor_subscriber *guests;
    uint64_t gone[LOBBY_GONE]; /* numbers of the last communicators that are no more */
    size_t ngone;              /* so far */
};

void acceptor_init(struct acceptor *l, const struct world *w);
void acceptor_fini(struct acceptor *l);

/* The subscriber is borrowed until acceptor_forget(), after which those who come for it are told
 * that it is gone, unless many others are by then. */
void acceptor_expect(struct acceptor *l, struct acceptor_subscriber *g);
void acceptor_forget(struct acceptor *l, struct acceptor_subscriber *g);

/* Accepts, and hears those who have come. 0, or -errno with a text: out of sockets or memory. */
int acceptor_serve(struct acceptor *l, struct err *e);

/* Somebody who has come for that channel of that communicator; his descriptor is the caller's. */
bool acceptor_take(struct acceptor *l, uint64_t comm, enum channel channel, struct arrival *out);

/* What to poll for; at most LOBBY_STRANGERS + 1 entries. Lowers *timeout_ms where a clock matters.
 */
size_t acceptor_poll(struct acceptor *l, struct pollfd *fds, int *timeout_ms);

/* poll(), in which the launcher can wake this thread (segment_local.polling). Does not sleep when
 * *stop (NULL: there is none) is not 0. */
int acceptor_sleep(struct acceptor *l, const _Atomic uint32_t *stop, struct pollfd *fds, size_t n,
                   int timeout_ms);

/* Wakes those of this process who sleep in poll() with the acceptor's entries. */
void acceptor_greet(struct acceptor *l);

struct hello acceptor_hello(const struct acceptor *l, enum hello_kind kind, uint64_t comm, int to);

#endif
