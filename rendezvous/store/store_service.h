/* store_service.h: the store with its connected sockets, in an epoll set of its own. The owner
 * waits: a thread in store_service_turn() (store_thread.c), or a loop for the set's descriptor
 * (store_server.c). The owner accepts connections, too.
 *
 *     a request:   readable -> recv -> store_session_feed -> send (at once, one call)
 *     woken peers: sent to in the same turn
 *     slow reader: what the socket does not take waits for writable; above STORE_UNREAD_MAX its
 *                  requests are not read, and after stall_ms without progress it is dropped
 *     violation:   answers to what came before are sent, then it is dropped, counted by reason
 *     end of file: unsent answers are still sent; its wait is forgotten
 *
 * No allocation that exits, no log, no thread, no libuv: one thread calls it. */
#ifndef RENDEZVOUS_STORE_STORE_SERVICE_H
#define RENDEZVOUS_STORE_STORE_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/list.h"
#include "rendezvous/store/store_session.h"

#define STORE_STALL_MS 30000u

struct store_conn {
    struct store_session session;
    struct list_node link, stalled; /* links of the service's lists */
    int fd;                         /* -1: the connection is dropped */
    unsigned events;                /* events waited for: EPOLLIN, EPOLLOUT; 0: none */
    bool eof;
    uint64_t progress_ns; /* if stalled: when bytes were last sent */
};

struct store_service_opts {
    bool legacy_113;   /* a client without handshake speaks torch 1.13/2.0's opcodes, not 2.1's */
    unsigned stall_ms; /* a client with over 64 MiB unread is dropped after this without progress;
                          0: STORE_STALL_MS */
    /* A connection ends because of its client; NULL: not wanted. Its socket is still open. */
    void (*on_violation)(void *arg, const struct store_conn *c, enum store_reason why);
    void *arg;
};

struct store_service {
    struct store_shared shared;
    struct store_service_opts opts;
    int epoll; /* -1: not open; readable while a turn has something to serve */
    struct list_node conns, stalled;
    struct list_node dropped; /* connections that an event of this turn may still name */
    size_t conns_n;
    uint64_t rejected[STORE_REASONS];
    uint8_t chunk[65536]; /* bytes just received, of any connection */
};

void store_service_init(struct store_service *s, const struct store_service_opts *opts);
/* Makes the epoll set, before all that follows. 0 or -errno. */
int store_service_open(struct store_service *s);
void store_service_fini(struct store_service *s); /* drops every connection */

/* Takes a connected, non-blocking stream socket. One that cannot be served is closed. */
void store_service_adopt(struct store_service *s, int fd);

/* Descriptors of the owner's in the set, by numbers below STORE_WATCHED_MAX: to be waited for until
 * they are readable. 0 or -errno. */
#define STORE_WATCHED_MAX 8
int store_service_watch(struct store_service *s, unsigned number, int fd, bool on);

/* Serves what is ready, after it has waited for that, for timeout_ms at most; negative: for ever.
 * Returns the numbers of the owner's descriptors that are ready, as bits. */
unsigned store_service_turn(struct store_service *s, int timeout_ms);
/* Returns the longest time between two turns, in ms, while a connection has stalled; -1: no
 * limit. */
int store_service_period_ms(const struct store_service *s);

/* Between turns: drops every connection and forgets every key. */
void store_service_reset(struct store_service *s);

#endif
