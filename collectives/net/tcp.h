/* tcp.h: the transport over TCP, for one channel of one communicator.
 *
 * Connections are made when first used; both ends introduce themselves (net/wire.h) before the
 * first frame. Each carries bytes both ways. Who connects:
 *   TCP_LOWER    the lower rank, so that two never cross
 *   TCP_SENDER   whoever sends first. There is one lane. Of two whose hellos cross the lower rank's
 *                stays: he turns the other away, who gives up his own when the lower one's comes
 *
 *   who connects    NONE -> CONNECTING (connect, then hello) -> GREETED (answer awaited) -> OPEN
 *   the other       NONE -> OPEN, when the lobby has him; TCP_SENDER: also CONNECTING -> OPEN, and
 *                   GREETED -> OPEN when he is lower
 *   both            any -> GONE, when it is closed; there is no second connection
 *
 * A connection that ends before it was OPEN is tried again a little later. A refused one means that
 * its process is gone: its socket listened before anybody learnt of the address. So who has waited
 * for a second to be connected to knocks: a connection that carries nothing, to see whether the
 * other one is there. While he computes it waits at his door; he lets go of it when he looks. */
#ifndef COLLECTIVES_NET_TCP_H
#define COLLECTIVES_NET_TCP_H

#include "collectives/net/acceptor.h"
#include "collectives/net/transport.h"
#include "collectives/bootstrap/world.h"

enum tcp_rule { TCP_LOWER, TCP_SENDER };

enum { TCP_LANES_MAX = 16 };

struct tcp_opts {
    struct acceptor *acceptor; /* borrowed, as is all of it */
    uint64_t comm;             /* its number */
    enum channel channel;
    enum tcp_rule rule;
    int rank, size;                    /* in the communicator */
    const int *world_ranks;            /* of each of its ranks */
    int lanes;                         /* TCP_LOWER: connections between two ranks */
    const char *congestion;            /* TCP_CONGESTION; "": as tcp_tune() thinks best */
    const _Atomic uint32_t *stop_word; /* not 0: there is nothing to wait for; NULL: none */
};

/* Whether connections of this process may have this congestion control: 0, or what setsockopt()
 * says: -ENOENT, the host has none of that name; -EPERM, it is for the privileged. */
int tcp_try_congestion(const char *name);

/* Opens nothing yet. 0 or -ENOMEM. */
int tcp_new(struct transport **out, const struct tcp_opts *opts, struct err *e);

/* The connection of the stream is open: its descriptor, borrowed; else -1. */
int tcp_open_fd(struct transport *t, int stream);

/* Takes in those who have come. 0 or -errno with a text. */
int tcp_admit(struct transport *t, struct err *e);

/* Tells ranks of the communicator why this one gives up, over connections of their own, within some
 * milliseconds. told[i] != 0: rank i knows. At most TCP_NOTICE_RANKS. */
enum { TCP_NOTICE_MS = 50, TCP_NOTICE_RANKS = 256 };
void tcp_send_notices(const struct tcp_opts *to, const struct notice *why, const char *told);

/* Asks n ranks of the communicator, TCP_ASK_RANKS at most, in the same way. */
enum { TCP_ASK_RANKS = 16 };
void tcp_send_asks(const struct tcp_opts *to, const struct ask *ask, const int *ranks, int n);

#endif
