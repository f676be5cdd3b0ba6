/* tcp.h: the transport over TCP, for one channel of one communicator.
 *
 * A connection is made when it is first used; both ends send a hello (wire/wire.h) before the first
 * frame. It carries bytes both ways. Which end connects:
 *   TCP_LOWER    the lower rank, so that two connections never cross
 *   TCP_SENDER   the rank that sends first. There is one. When two connections cross, both
 *                ends keep that of the lower rank
 *
 * The connecting end goes from NONE to CONNECTING (connect, then hello), GREETED (awaits the
 * answer) and OPEN; the accepting end from NONE to OPEN, when the acceptor has the connection. With
 * TCP_SENDER it also goes to OPEN from CONNECTING, and from GREETED when the peer is the lower
 * rank. An attempt that ended early goes back to NONE and is repeated later. Any state may go to
 * CLOSED; a second connection is not made.
 *
 * A refused connection means that the peer's process has ended, for its socket listened before
 * anybody could read its address. So a rank that has waited for a second for a peer to connect
 * probes it: by a connection that carries nothing and that the peer closes when it next looks. A
 * host that vanishes refuses nothing: TCP_SILENT_MS. */
#ifndef COLLECTIVES_WIRE_TCP_H
#define COLLECTIVES_WIRE_TCP_H

#include "collectives/wire/acceptor.h"
#include "collectives/wire/transport.h"
#include "collectives/bootstrap/world.h"

enum tcp_rule { TCP_LOWER, TCP_SENDER };

enum { TCP_SOCKETS_MAX = 16 };

/* The time for which a host may leave sent data unanswered, by its kernel too: after that the host
 * counts as lost, and its connections as closed. */
enum { TCP_SILENT_MS = 30 * 1000 };

struct tcp_opts {
    struct acceptor *acceptor; /* borrowed, as are all pointers */
    uint64_t comm;             /* the communicator's number */
    enum channel channel;
    enum tcp_rule rule;
    int rank, size;         /* in the communicator */
    const int *world_ranks; /* of each rank of the communicator */
    int sockets;            /* TCP_LOWER: connections between two ranks */
    const char *congestion; /* TCP_CONGESTION; "": cubic or reno where the host's is bbr */
    const _Atomic uint32_t *stop_word; /* not 0: waits end at once; NULL: none */
};

/* Whether connections of this process may use this congestion control: 0, or the error of
 * setsockopt(): -ENOENT, the host has none of that name; -EPERM, it is for privileged users. */
int tcp_try_congestion(const char *name);

/* Opens nothing yet. 0 or -ENOMEM. */
int tcp_new(struct transport **out, const struct tcp_opts *opts, struct err *e);

/* Looks whether the peer's host is silent, where there is a connection: then the next send or recv
 * fails. Once a second at most: it may be called as often as one waits; `wait` does so for what it
 * waits for. */
void tcp_look(struct transport *t, int stream);

/* Whether the peer's host answers a connection just now, though its process may not have yet. */
bool tcp_host_answers(struct transport *t, int stream);

/* Returns the time for which the peer's host has answered none of this rank's attempts to connect;
 * 0: it has answered, or there is no attempt. */
uint64_t tcp_unanswered_ns(struct transport *t, int stream);

/* The connection of the stream is open: its descriptor, borrowed; else -1. */
int tcp_open_fd(struct transport *t, int stream);

/* Closes the connections, after an operation of all ranks, each of which then calls this; the next
 * one that needs them makes them anew. */
void tcp_disconnect(struct transport *t);

/* Adopts the connections that the acceptor has for this transport. 0 or -errno with a text. */
int tcp_admit(struct transport *t, struct err *e);

/* Reports to ranks of the communicator why this one gives up, over new connections, within
 * TCP_NOTICE_MS. Skips the ranks with told[i] != 0. At most TCP_NOTICE_RANKS. */
enum { TCP_NOTICE_MS = 50, TCP_NOTICE_RANKS = 256 };
void tcp_send_notices(const struct tcp_opts *to, const struct notice *why, const char *told);

/* Asks n ranks of the communicator, TCP_ASK_RANKS at most, in the same way. */
enum { TCP_ASK_RANKS = 16 };
void tcp_send_asks(const struct tcp_opts *to, const struct ask *ask, const int *ranks, int n);

/* Asks a rank of the communicator for its call of that number: to be called until it returns true,
 * then *call is the answer. Does not block. The caller closes fd, which is -1 at first. */
struct tcp_question {
    int fd;
    bool sent;
};
bool tcp_ask_call(const struct tcp_opts *to, int rank, uint64_t seq, struct tcp_question *q,
                  struct ask *call);

#endif
