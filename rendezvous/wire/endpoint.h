/* endpoint.h: the one listener of a job. Launchers and the workers' store clients come to the same
 * port and are told apart by their first byte: 'D' (DLR1, rdzv_msg.h), 22 (the same under TLS) or 0
 * to 18 (TCPStore).
 *
 *     accept -> peek at the first byte -> on_agent(fd) or on_store(fd)
 *
 *   nothing within 5 s               on_silent(fd)
 *   too many that send nothing       on_silent() with the oldest; 16 from one address, loopback
 *                                    exempt (wire/pending.h)
 *   another first byte               closed; one line per address and 30 s
 *   no descriptors left              the peer is disconnected, accepting pauses, one line
 *
 * No address is blocked, however often its peers are refused: other peers behind the same address
 * may be nodes of the job, and refusing a connection costs little. */
#ifndef RENDEZVOUS_WIRE_ENDPOINT_H
#define RENDEZVOUS_WIRE_ENDPOINT_H

#include <stdbool.h>
#include <uv.h>

#include "core/err.h"
#include "core/netaddr.h"

/* Closes a client of the store that is refused because auth_whose() returned AUTH_GONE. */
#define ENDPOINT_STORE_GONE                                                                      \
    "a client of the workers' store has closed before it was seen whose it is: what it sent is " \
    "lost"

/* The addresses and the port to listen on. */
struct endpoint_bind {
    bool any;            /* all interfaces, IPv4 and IPv6; only the port of addr counts */
    struct netaddr addr; /* port 0: a free one */
};

/* Opens the listening socket. Returns the descriptor, or a negative errno with a text. */
int endpoint_listen(const struct endpoint_bind *bind, struct err *e);

struct endpoint;

struct endpoint_events {
    void *arg;
    /* on_agent and on_store take the connected non-blocking descriptor, from which nothing has been
     * read. */
    void (*on_agent)(void *arg, int fd, const struct netaddr *peer, bool tls);
    void (*on_store)(void *arg, int fd, const struct netaddr *peer); /* NULL: there is no store */
    /* Takes a connection that has sent nothing: clients of PyTorch before 2.0 have a second
     * connection to the store, on which they send only to watch a key. NULL: closed. */
    void (*on_silent)(void *arg, int fd, const struct netaddr *peer);
};

/* Takes a listening descriptor. nodes: how many are expected. */
int endpoint_open(struct endpoint **out, uv_loop_t *loop, int listen_fd, int nodes,
                  const struct endpoint_events *events, struct err *e);
int endpoint_port(const struct endpoint *p);
/* The address on which the endpoint listens; "" for all. */
const char *endpoint_addr(const struct endpoint *p);
/* Reports a refused connection, once per address (IPv6: per network of 64 bits) and 30 s, for at
 * most 16 of them; while connections are refused again and again, that time doubles up to an hour.
 * The next line says how many had none. what: "a connection that ..." */
void endpoint_complain(struct endpoint *p, const struct netaddr *peer, const char *what);
/* Refuses all further connections when the process exits without running its loop. */
void endpoint_abandon(struct endpoint *p);
void endpoint_close(struct endpoint *p, void (*on_closed)(void *arg), void *arg);

/* Names the process that listens on the TCP port of this host, as far as /proc shows it:
 * "pid 4242 (python3)". False: /proc does not show it. */
bool endpoint_port_owner(int port, char *out, size_t cap);

#define ENDPOINT_AGENT "dl-agent" /* what the process of a launcher's agent is called */
/* Whether the process that listens there is an agent whose guardian has ended or is being killed:
 * it ends as soon as its workers have, and lets the port go. */
bool endpoint_port_is_let_go(int port);

#endif
