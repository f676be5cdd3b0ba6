/* store_service.h: the store with its connected sockets; a server without the waiting. A driver
 * (store_server.c on libuv, store_thread.c on epoll) owns the listener and the polling:
 *
 *     driver: accepted, readable, writable, tick     -> store_service_...()
 *     service: what to wait for, this one is gone    -> struct store_driver
 *
 *     a request:   readable -> recv -> store_session_feed -> send (at once, one call)
 *     woken peers: sent to in the same turn
 *     slow reader: what the socket does not take waits for writable; above STORE_UNREAD_MAX its
 *                  requests are not read, and after stall_ms without progress it is dropped
 *     violation:   answers to what came before are sent, then it is dropped, counted by reason
 *     end of file: unsent answers are still sent; its wait is forgotten
 *
 * No allocation that exits, no log, no thread: one thread calls it. */
#ifndef RENDEZVOUS_STORE_STORE_SERVICE_H
#define RENDEZVOUS_STORE_STORE_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/list.h"
#include "rendezvous/store/store_session.h"

#define STORE_STALL_MS 30000u

enum { STORE_POLL_IN = 1, STORE_POLL_OUT = 2, STORE_POLL_HANGUP = 4 };

struct store_conn {
    struct store_session session;
    struct list_node link, stalled; /* links of the service's lists */
    int fd;
    unsigned events; /* what the driver waits for: STORE_POLL_IN, _OUT; 0: nothing */
    bool eof;
    uint64_t progress_ns; /* if stalled: when bytes were last sent */
};

struct store_service;

struct store_driver {
    /* c->events has changed. False: the driver cannot wait for them; the connection is dropped. */
    bool (*watch)(struct store_service *s, struct store_conn *c);
    /* The connection has ended: stop polling, close c->fd, and free c when the driver no longer
     * uses it. `why` is not STORE_OK if the client caused it. */
    void (*gone)(struct store_service *s, struct store_conn *c, enum store_reason why);
};

struct store_service {
    struct store_shared shared;
    const struct store_driver *driver;
    bool legacy_113;
    uint64_t stall_ns;
    struct list_node conns, stalled;
    size_t conns_n;
    uint64_t rejected[STORE_REASONS];
    uint8_t chunk[65536]; /* bytes just received, of any connection */
};

/* The driver is borrowed. stall_ms 0: STORE_STALL_MS. */
void store_service_init(struct store_service *s, const struct store_driver *driver, bool legacy_113,
                        unsigned stall_ms);
void store_service_fini(struct store_service *s); /* drops every connection */

/* Begins to serve a connected socket; c is the driver's storage until `gone`. */
void store_service_adopt(struct store_service *s, struct store_conn *c, int fd);
/* The socket is ready for these STORE_POLL_... events; after a hangup the connection is gone. */
void store_service_ready(struct store_service *s, struct store_conn *c, unsigned ready);
/* True: some connection has stalled; call store_service_tick() about every stall_ms / 4 until
 * false. */
bool store_service_has_stalled(const struct store_service *s);
void store_service_tick(struct store_service *s, uint64_t now_ns);
/* Drops every connection and forgets every key. */
void store_service_reset(struct store_service *s);

#endif
