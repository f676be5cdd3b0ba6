/* tcp_connect.h: inside of the TCP transport: how a connection comes to be, and how peers are told
 * that this rank gives up.
 *
 *   the lower rank   NONE -> CONNECTING (connect, then hello) -> GREETED (answer awaited) -> OPEN
 *   the higher rank  NONE -> OPEN, when a stranger has introduced himself as the peer
 *   both             any -> GONE, when it is closed; there is no second connection
 *
 * A connection that ends before it was OPEN is tried again a little later: the peer may still be in
 * an earlier communicator and not know us yet. A refused one means that its process is gone: its
 * socket listened before anybody learnt of the address. */
#ifndef COLLECTIVES_NET_TCP_CONNECT_H
#define COLLECTIVES_NET_TCP_CONNECT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/net/transport.h"
#include "collectives/net/wire.h"
#include "collectives/world.h"
#include "core/err.h"

enum { TCP_STRANGERS = 16 }; /* accepted connections that have not introduced themselves */

enum tcp_state { TCP_NONE, TCP_CONNECTING, TCP_GREETED, TCP_OPEN, TCP_GONE };

struct tcp_conn {
    int fd; /* -1 unless CONNECTING, GREETED or OPEN */
    enum tcp_state state;
    uint64_t retry_ns;   /* NONE: not before */
    struct hello answer; /* GREETED: what has come of it */
    uint32_t have;
};

struct tcp_stranger {
    int fd; /* -1: a free place */
    uint64_t since_ns;
    size_t have;
    struct {
        struct hello hello;
        struct notice notice; /* follows when the hello says so */
    } said;
};

struct tcp {
    struct transport base;
    const struct world *world;
    struct tcp_conn *conns; /* by rank */
    struct tcp_stranger strangers[TCP_STRANGERS];
    struct pollfd *fds; /* for the strangers, the listener, and one want each way per rank */
};

/* 1: open. 0: not yet; it has been taken as far as it goes without blocking. -EPIPE: gone; another
 * -errno with a text: cannot be made. */
int tcp_connected(struct tcp *tcp, int peer, struct err *e);
void tcp_drop(struct tcp *tcp, int peer); /* GONE */
void tcp_close_all(struct tcp *tcp);      /* connections and strangers */

/* Accepts, and hears those who have come. 0 or -errno with a text. */
int tcp_serve_strangers(struct tcp *tcp, struct err *e);

/* What to poll for: the listener and the strangers (TCP_STRANGERS + 1 entries at most), and one
 * connection (at most one). Return how many entries were filled in; lower *timeout_ms where a clock
 * matters. */
size_t tcp_poll_strangers(struct tcp *tcp, struct pollfd *fds, int *timeout_ms);
size_t tcp_poll_conn(struct tcp *tcp, int peer, short events, struct pollfd *fd, int *timeout_ms);

/* Tells the other ranks, those with a connection first, within TCP_NOTICE_MS. */
enum { TCP_NOTICE_MS = 50, TCP_NOTICE_RANKS = 256 };
void tcp_send_notices(struct tcp *tcp, const struct notice *why);

#endif
