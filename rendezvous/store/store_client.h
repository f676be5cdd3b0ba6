/* store_client.h: a blocking client of a TCPStore server, dlaunch's or PyTorch's. No libuv, no
 * threads, no exit on a failed allocation: libdlcoll links it into other people's programs.
 *
 * One request at a time; a client may be used by one thread at a time. Keys are sent as given:
 * torch's Python classes put "/" in front of the user's keys, and so does a caller that wants to
 * share keys with them. Every wait is bounded by timeout_ms (per call; -1: without bound); calls
 * that wait for the server only, by the timeout_ms that the client was made with (resolving a name,
 * by the resolver's own limits). Limits on keys and values are store_proto.h's: -EMSGSIZE, not
 * sent. store_client_set(), which has no answer, returns when the kernel has taken the request; a
 * refusal by the server shows in the next call. After a transport error or a protocol error the
 * client is dead and every call returns -ENOTCONN. After -ETIMEDOUT of a wait the client is usable
 * again (the wait was cancelled), except against a server that is too old to cancel. */
#ifndef RENDEZVOUS_STORE_STORE_CLIENT_H
#define RENDEZVOUS_STORE_STORE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct store_client;

/* Resolves and connects, retrying until the deadline while the server is not there yet (refused,
 * reset, unresolvable, unreachable), with a short jittered backoff that starts at 10 ms; then
 * handshake. Returns owned. */
int store_client_new(struct store_client **out, const char *host, int port, int timeout_ms,
                     struct err *e);
/* Sets the limit of calls that wait for the server only. */
void store_client_set_timeout(struct store_client *c, int timeout_ms);
void store_client_free(struct store_client *c); /* NULL is allowed */

int store_client_set(struct store_client *c, const char *key, const void *val, size_t len,
                     struct err *e);
/* Waits for the key, then reads its value. *val is malloc'ed, NUL after its *len bytes; the caller
 * frees.
 */
int store_client_get(struct store_client *c, const char *key, void **val, size_t *len,
                     int timeout_ms, struct err *e);
/* Reads the key without waiting: -ENOENT if it is absent or empty. */
int store_client_try_get(struct store_client *c, const char *key, void **val, size_t *len,
                         struct err *e);
int store_client_add(struct store_client *c, const char *key, int64_t delta, int64_t *value,
                     struct err *e);
int store_client_wait(struct store_client *c, const char *const *keys, size_t n, int timeout_ms,
                      struct err *e);
/* *exist: all of the keys exist. */
int store_client_check(struct store_client *c, const char *const *keys, size_t n, bool *exist,
                       struct err *e);
/* Stores `desired` if the key holds `expected` (or is absent and `expected` is empty). *now: the
 * server's answer, which is `desired` if it was stored, else the value of the key; malloc'ed. */
int store_client_compare_set(struct store_client *c, const char *key, const void *expected,
                             size_t expected_len, const void *desired, size_t desired_len,
                             void **now, size_t *now_len, struct err *e);
int store_client_delete(struct store_client *c, const char *key, bool *deleted, struct err *e);

#endif
