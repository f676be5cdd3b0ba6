/* transport.h: a way to move bytes between the ranks of a communicator, as the engine needs it:
 * ordered streams each way between every two ranks, connected when first used.
 *
 * Stream numbers: k * size + peer for the k-th stream to a peer. The first ones, k = 0, are
 * always there; their numbers are the peers' ranks.
 *
 * There are two: tcp.h, and tests/lib/mem_transport.h for proofs without a network. Used by one
 * thread at a time. */
#ifndef COLLECTIVES_WIRE_TRANSPORT_H
#define COLLECTIVES_WIRE_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "collectives/wire/wire.h"
#include "core/err.h"

struct transport;

struct transport_want {
    int stream;
    bool send, recv;
};

struct transport_ops {
    const char *name;

    /* Hands over bytes for the stream; returns how many were taken. Does not block: 0 when none can
     * be taken now, for example because the connection is not open yet. -EPIPE: the peer has closed
     * it or is gone; another -errno, with a text: the peer cannot be reached, or there is no
     * memory. */
    ssize_t (*send)(struct transport *t, int stream, const struct iovec *iov, int n, struct err *e);

    /* Takes bytes that the peer has sent; results as of send. Bytes that were sent before the peer
     * closed are received before -EPIPE is. */
    ssize_t (*recv)(struct transport *t, int stream, const struct iovec *iov, int n, struct err *e);

    /* Copies the next `len` bytes that the peer has sent, without taking them. 1, or 0 when fewer
     * have arrived. Does not connect. */
    int (*peek)(struct transport *t, int stream, void *p, size_t len);

    /* Sleeps until one of the wants (at most one each way per stream) may be granted, somebody has
     * connected to the job's listening socket, or timeout_ms have passed; may return early. 0 or
     * -errno with a text. */
    int (*wait)(struct transport *t, const struct transport_want *wants, size_t n, int timeout_ms,
                struct err *e);

    /* Closes all connections: send and recv return -EPIPE from then on. */
    void (*close)(struct transport *t);

    void (*free)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    int size;    /* ranks */
    int streams; /* between two ranks */
};

#endif
