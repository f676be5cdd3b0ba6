/* store_server.h: the workers' key-value store on the loop, speaking PyTorch's TCPStore protocol
 * (dlaunch-protocol(7)): the loop waits for the service's epoll set (store_service.h). It does not
 * listen: whoever owns the listener hands it connections. */
#ifndef RENDEZVOUS_STORE_STORE_SERVER_H
#define RENDEZVOUS_STORE_STORE_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "rendezvous/store/store_proto.h"

struct store_server;

struct store_server_opts {
    bool legacy_113; /* as in store_service.h */
    unsigned stall_ms;
};

struct store_server *store_server_new(uv_loop_t *loop, const struct store_server_opts *opts);

/* Takes a connected, non-blocking stream socket from which nothing was read yet. */
void store_server_adopt(struct store_server *s, int fd);

/* Begins a new round: closes every connection and deletes every key. */
void store_server_reset(struct store_server *s);

struct store_server_stats {
    size_t connections, keys, bytes; /* now */
    uint64_t requests;               /* since the last reset */
    uint64_t rejected;               /* connections closed for a violation or for unread answers */
    uint64_t rejected_for[STORE_REASONS];
};
void store_server_get_stats(const struct store_server *s, struct store_server_stats *out);

void store_server_close(struct store_server *s, void (*on_closed)(void *arg), void *arg);

#endif
