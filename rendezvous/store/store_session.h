/* store_session.h: one connection to the store, without its socket: bytes in, bytes out, a parked
 * wait in between.
 *
 *     why = store_session_feed(s, chunk, n)   decodes and applies all complete requests
 *     store_out_iov(&s->peer.out, ...)        what to send
 *     store_session_sent(s, n)                how much of it was sent
 *
 * Feeding one session may give bytes to others: store_session_next_ready(). */
#ifndef RENDEZVOUS_STORE_STORE_SESSION_H
#define RENDEZVOUS_STORE_STORE_SESSION_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/store/store_proto.h"
#include "rendezvous/store/store_table.h"

/* Unfinished requests and copied, unsent answers of all sessions of one table. */
#define STORE_BUFFERS_MAX ((size_t)1 << 30)

/* State that the sessions of one server share. */
struct store_shared {
    struct store_table table;
    size_t buffered;   /* the bytes that STORE_BUFFERS_MAX limits */
    uint64_t requests; /* ever */
};

struct store_session {
    struct store_shared *shared; /* borrowed */
    struct store_decoder decoder;
    struct store_peer peer;
    size_t buffered; /* this session's part of shared->buffered */
};

void store_session_init(struct store_session *s, struct store_shared *shared, bool legacy_113);
void store_session_fini(struct store_session *s);

/* STORE_OK, or the reason for closing the connection (the content of `out` may be sent before). */
enum store_reason store_session_feed(struct store_session *s, const void *chunk, size_t n);
void store_session_sent(struct store_session *s, size_t n);

/* Returns a session whose `out` grew, or whose peer.violation was set, while another one was fed.
 */
struct store_session *store_session_next_ready(struct store_shared *shared);

#endif
