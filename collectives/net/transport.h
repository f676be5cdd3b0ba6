/* transport.h: a way to move bytes between the ranks of a world, as the engine needs it: an ordered
 * stream each way between every two ranks, connected when first used.
 *
 * Every implementation runs the conformance tests of tests/unit/test_dlcoll.c or test_algo.c. Used
 * by one thread at a time. */
#ifndef COLLECTIVES_NET_TRANSPORT_H
#define COLLECTIVES_NET_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "collectives/net/wire.h"
#include "core/err.h"

struct transport;

struct transport_want {
    int peer;
    bool send, recv;
};

struct transport_ops {
    const char *name;

    /* Hands over bytes for `peer`; returns how many were taken. Does not block: 0 when none can be
     * taken now, be it that the connection is not there yet. -EPIPE: the peer has closed it or is
     * gone; another -errno, with a text: the peer cannot be reached, or there is no memory. */
    ssize_t (*send)(struct transport *t, int peer, const struct iovec *iov, int n, struct err *e);

    /* Takes bytes that `peer` has sent; results as of send. Bytes that were sent before the peer
     * closed are received before -EPIPE is. */
    ssize_t (*recv)(struct transport *t, int peer, const struct iovec *iov, int n, struct err *e);

    /* Copies the next `len` bytes that `peer` has sent, without taking them. 1, or 0 when so many
     * have not come (or never will). Makes no connection. */
    int (*peek)(struct transport *t, int peer, void *p, size_t len);

    /* Sleeps until one of the wants (at most one each way per peer) may be granted, a notice has
     * come, or timeout_ms are over; may
     * return early. 0 or -errno with a text. */
    int (*wait)(struct transport *t, const struct transport_want *wants, size_t n, int timeout_ms,
                struct err *e);

    /* Tells the other ranks why this one gives up, as far as that is possible within a few
     * milliseconds, unless it has learnt the reason from a notice that went to them all; why may
     * be NULL: nothing is told. Then closes all connections. Send and recv must not be called
     * after it. */
    void (*give_up)(struct transport *t, const struct notice *why);

    void (*free)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    bool notified; /* a peer has given up: */
    struct notice notice;
    int notice_from;
};

#endif
