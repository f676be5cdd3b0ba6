/* store_thread.h: the workers' key-value store on a thread of its own, with its own listener, for
 * programs that run without dlaunch: rank 0 hosts it (libdlcoll). A failed
 * allocation ends one connection, never the program. Every signal is blocked in the thread. Serves
 * whoever can connect to it, as torch's own store does. */
#ifndef RENDEZVOUS_STORE_STORE_THREAD_H
#define RENDEZVOUS_STORE_STORE_THREAD_H

#include <stdbool.h>

#include "core/err.h"

struct store_thread;

struct store_thread_opts {
    const char *addr;  /* an IP address as text; NULL: any, IPv6 and IPv4 if both exist */
    int port;          /* 0: a free one */
    bool legacy_113;   /* a client without handshake speaks torch 1.13/2.0's opcodes, not 2.1's */
    unsigned stall_ms; /* see store_service.h */
};

/* Listens when it returns. Returns owned. Negative errno: -EADDRINUSE, or another error of bind(2),
 * epoll or the thread. */
int store_thread_new(struct store_thread **out, const struct store_thread_opts *opts,
                     struct err *e);
int store_thread_port(const struct store_thread *t);
/* Closes every connection and waits for the thread to end; in a fork()'s child, which lacks the
 * thread, closes only the listener. NULL is allowed. */
void store_thread_free(struct store_thread *t);

#endif
