/* acceptor.h: the listening socket of a process, which all its communicators share.
 *
 * A peer that connects sends a hello first (wire/wire.h). The acceptor closes the connection of a
 * peer of another job or round, stops the communicator if the peer is a rank of this one that has
 * another version of the protocol, and says so to both, writes a notice into the stop record of the
 * communicator, passes a question on to the communicator, and keeps a data connection until its
 * communicator takes it, even if that does not exist yet: ranks make theirs at different times.
 *
 * A peer is pending until its hello is complete. A process that opens connections and stays silent
 * must not delay set-up: from ACCEPTOR_ADDRESS_MAX pending peers on, a peer on this host whose
 * process belongs to another user is disconnected at once; and when all slots are in use, an
 * address that has that many loses its oldest one. A rank that loses its connection in this way
 * connects again after a few milliseconds.
 *
 * All functions may be called by any thread. None blocks. */
#ifndef COLLECTIVES_WIRE_ACCEPTOR_H
#define COLLECTIVES_WIRE_ACCEPTOR_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/wire/stop.h"
#include "collectives/wire/wire.h"
#include "collectives/bootstrap/world.h"
#include "core/err.h"

enum {
    ACCEPTOR_PENDING = 16, /* slots for peers whose hello is not complete */
    ACCEPTOR_ADDRESS_MAX = 4,
    ACCEPTOR_CLOSED = 1024, /* communicators: a program may make one for each of its steps */
};

struct pending_peer {
    int fd;   /* -1: the slot is free */
    bool own; /* a process of this user on this host, as far as the acceptor has asked */
    uint64_t since_ns;
    struct netaddr from;
    size_t have;
    struct {
        struct hello hello;
        union { /* follows a hello of that kind */
            struct notice notice;
            struct ask ask;
        };
    } in;
};

struct accepted_conn {
    int fd;
    struct hello hello;
};

/* A communicator that expects connections. */
struct acceptor_subscriber {
    struct acceptor_subscriber *next;
    uint64_t comm;
    struct comm_stop *stop; /* where notices for it are written */
    /* Rank `from` of the world waits for this one, in that operation, or asks for its call of that
     * number. True: *ask is the answer. Does not block. */
    bool (*asked)(struct acceptor_subscriber *s, int from, struct ask *ask);
    /* A connection for it may be taken. Does not block; NULL: nobody wants to know. */
    void (*arrived)(struct acceptor_subscriber *s);
};

struct acceptor {
    pthread_mutex_t lock;
    const struct world *world; /* borrowed */
    struct pending_peer pending[ACCEPTOR_PENDING];
    struct accepted_conn *accepted;
    size_t naccepted, cap_accepted;
    struct acceptor_subscriber *subscribers;
    uint64_t closed[ACCEPTOR_CLOSED]; /* numbers of the communicators that were closed last */
    size_t nclosed;                   /* so far */
};

void acceptor_init(struct acceptor *a, const struct world *w);
void acceptor_fini(struct acceptor *a);

/* The subscriber is borrowed until acceptor_forget(). Connections for it are then answered by
 * HELLO_GONE, as long as its number is among the last ACCEPTOR_CLOSED ones. */
void acceptor_expect(struct acceptor *a, struct acceptor_subscriber *s);
void acceptor_forget(struct acceptor *a, struct acceptor_subscriber *s);

/* Accepts connections and reads what pending peers have sent. 0, or -errno with a text: out of
 * sockets or memory. */
int acceptor_serve(struct acceptor *a, struct err *e);

/* The first data connection for that channel of that communicator; the caller owns its descriptor.
 */
bool acceptor_take(struct acceptor *a, uint64_t comm, enum channel channel,
                   struct accepted_conn *out);

/* Fills in the descriptors to poll; at most ACCEPTOR_PENDING + 1 entries. Lowers *timeout_ms while
 * the listening socket must wait for a slot. */
size_t acceptor_poll(struct acceptor *a, struct pollfd *fds, int *timeout_ms);

/* poll(), in which the launcher can wake this thread (segment_local.polling). Returns at once when
 * *stop is not 0; stop may be NULL. */
int acceptor_sleep(struct acceptor *a, const _Atomic uint32_t *stop, struct pollfd *fds, size_t n,
                   int timeout_ms);

/* Wakes the threads of this process that poll the acceptor's entries. */
void acceptor_wake(struct acceptor *a);

/* "rank 3 (node-b, pid 812) speaks version 9 ...". Returns out. */
const char *acceptor_versions(const struct acceptor *a, const struct hello *theirs, char *out,
                              size_t cap);

struct hello acceptor_hello(const struct acceptor *a, enum hello_kind kind, uint64_t comm, int to);

#endif
