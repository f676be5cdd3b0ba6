/* store_async.h: a client of a TCPStore server, ours or PyTorch's, on the loop.
 *
 * Requests are carried out in the order in which they were made, and may be made before the
 * connection is there. Those that are answered at once are sent without waiting for the answers to
 * those before; one that waits for a key holds up all that come after it, as the protocol has one
 * wait per connection: what must not be held up needs a client of its own.
 *
 * Every request calls done.call once, never from inside a function of this header: with the answer,
 * with -ETIMEDOUT (a wait: cancelled, the client goes on), -ECONNRESET, -ENOTCONN or -EPROTO (the
 * client is dead), -EMSGSIZE (over a limit of store_proto.h, not sent), or -ECANCELED
 * (store_async_close). It may be NULL. What it is given is borrowed for the call; what the
 * functions are given, too. Requests without an answer of their own (set, append, multi_set,
 * queue_push) are done when the kernel has taken them.
 *
 * timeout_ms bounds the wait for a key; -1: no bound. Keys are sent as given (see store_client.h).
 * All calls and callbacks are on the loop's thread. */
#ifndef RENDEZVOUS_STORE_STORE_ASYNC_H
#define RENDEZVOUS_STORE_STORE_ASYNC_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "core/err.h"
#include "rendezvous/store/store_proto.h"

struct store_async;

struct store_answer {
    int status;            /* 0 or negative errno */
    const char *text;      /* status < 0: one line that says what failed */
    int64_t number;        /* add, num_keys, queue_len: it; check: 1 all there; delete: how many */
    struct store_view val; /* get, try_get, compare_set, queue_pop */
    size_t count;          /* multi_get, list_keys: strings in `items`... */
    struct store_view items; /* ...which store_items_next() takes off a copy of this */
};

struct store_done {
    void (*call)(void *arg, const struct store_answer *a);
    void *arg;
};

/* Resolves and connects, retrying as store_client_new() does, for timeout_ms, which also bounds how
 * long an answer may take. Then on_open is called, with NULL or the error; after an error only
 * store_async_close() does something. Returns owned. `host` is copied. */
int store_async_open(struct store_async **out, uv_loop_t *loop, const char *host, int port,
                     int timeout_ms, void (*on_open)(void *arg, const struct err *e), void *arg,
                     struct err *e);
/* Ends what is unfinished with -ECANCELED, then calls back. NULL is not allowed. */
void store_async_close(struct store_async *c, void (*on_closed)(void *arg), void *arg);

/* The general form: one request, or one that waits or checks and, when the key is there, `then`.
 * The calls below are made of it. */
void store_async_request(struct store_async *c, const struct store_request *r,
                         const struct store_request *then, int timeout_ms, struct store_done done);

void store_async_set(struct store_async *c, const char *key, const void *val, size_t len,
                     struct store_done done);
/* Waits for the key, then reads it. */
void store_async_get(struct store_async *c, const char *key, int timeout_ms,
                     struct store_done done);
/* The key now: -ENOENT when it is absent or empty. */
void store_async_try_get(struct store_async *c, const char *key, struct store_done done);
void store_async_add(struct store_async *c, const char *key, int64_t delta, struct store_done done);
void store_async_wait(struct store_async *c, const char *const *keys, size_t n, int timeout_ms,
                      struct store_done done);
void store_async_check(struct store_async *c, const char *const *keys, size_t n,
                       struct store_done done);
void store_async_compare_set(struct store_async *c, const char *key, const void *expected,
                             size_t expected_len, const void *desired, size_t desired_len,
                             struct store_done done);
void store_async_delete(struct store_async *c, const char *key, struct store_done done);
void store_async_append(struct store_async *c, const char *key, const void *val, size_t len,
                        struct store_done done);
void store_async_num_keys(struct store_async *c, struct store_done done);
void store_async_multi_get(struct store_async *c, const char *const *keys, size_t n, int timeout_ms,
                           struct store_done done);
void store_async_multi_set(struct store_async *c, const char *const *keys, const void *const *vals,
                           const size_t *lens, size_t n, struct store_done done);
void store_async_queue_push(struct store_async *c, const char *key, const void *val, size_t len,
                            struct store_done done);
/* Waits for an element. */
void store_async_queue_pop(struct store_async *c, const char *key, int timeout_ms,
                           struct store_done done);
void store_async_queue_len(struct store_async *c, const char *key, struct store_done done);
void store_async_list_keys(struct store_async *c, struct store_done done);
void store_async_barrier(struct store_async *c, const char *key, int64_t world, int timeout_ms,
                         struct store_done done);

#endif
