/* link.h: a framed connection between a launcher and the coordinator, either end, on the loop.
 *
 * All messages that are sent in one turn of the loop are written together, before the loop waits
 * again. A message to many nodes is encoded once and shared. A link whose other side does not read
 * ends when LINK_QUEUE_MAX bytes are queued; a sender whose messages can wait stops above
 * LINK_QUEUE_FULL (link_is_full()) and continues when on_room() is called.
 *
 * With a key the connection is under TLS: received bytes are decrypted before take_frames() reads
 * them, and link_flush() encrypts what it writes. */
#ifndef RENDEZVOUS_WIRE_LINK_H
#define RENDEZVOUS_WIRE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "core/bytes.h"
#include "core/tls.h"
#include "rendezvous/wire/auth.h"
#include "rendezvous/rules/rdzv_msg.h"

#define LINK_QUEUE_MAX  (48u << 20)
#define LINK_QUEUE_FULL (8u << 20)

#define LINK_REFUSED_MAX 128 /* refused links that wait for the other side to close */

/* A buffer with a reference count. */
struct shared_buf {
    unsigned refs;
    struct buf b;
};
struct shared_buf *shared_buf_new(struct buf *b); /* takes the content of *b; one reference */
void shared_buf_unref(struct shared_buf *s);      /* NULL is allowed */

struct link;

/* State that all links of one owner share. */
struct link_hub {
    uv_loop_t *loop;
    uv_prepare_t prepare;
    uv_timer_t linger;
    struct link *all;   /* every link that is not closed */
    struct link *dirty; /* links with something to write */
    bool woken;
    unsigned open;     /* handles not yet closed */
    unsigned nrefused; /* links in link_refuse() */
    /* Called before the loop waits, after link_hub_wake(); may send. */
    void (*before_flush)(void *arg);
    void *arg;
    bool closing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
    uint8_t buffer[65536]; /* for the link that is being read */
};

void link_hub_init(struct link_hub *h, uv_loop_t *loop, void (*before_flush)(void *arg), void *arg);
/* Makes the loop call before_flush() before it waits. */
void link_hub_wake(struct link_hub *h);
/* Closes all links without calling their owners, then calls on_closed. */
void link_hub_close(struct link_hub *h, void (*on_closed)(void *arg), void *arg);
/* Ends all links in order when the process exits without running its loop. Unread bytes, which
 * would turn the end into a reset, are read first. */
void link_hub_abandon(struct link_hub *h);

struct link_events {
    /* The other side's preamble has arrived: its protocol version; 0: the bytes are no preamble.
     * Returns false after closing or finishing the link. */
    bool (*on_preamble)(struct link *l, uint32_t version);
    /* A whole frame; the body is borrowed for the call. The link may be closed. */
    void (*on_frame)(struct link *l, uint8_t type, struct rd body);
    /* The link has ended, and no other event follows; the owner closes the link. */
    void (*on_end)(struct link *l, enum rdzv_end how, const char *why);
};

/* Takes a connected non-blocking stream socket: TCP, or one end of a socketpair when `local`. Sends
 * the preamble. NULL: libuv refused the descriptor, which is closed. */
struct link *link_new(struct link_hub *h, int fd, bool local, const struct link_events *events,
                      void *owner);
/* To be called right after link_new() and after auth_ready(): encrypts the link. Both sides prove
 * in the handshake that they have the key; the owner gets no event before its end. A side with
 * another key ends the link with RDZV_END_KEY. */
void link_protect(struct link *l, enum tls_side side, const struct tls_key *key);
/* Secures a link that this process has connected: with TLS, if `g` requires it (its key is ready).
 * Otherwise, unless `g` is open, the other end must be a process of this user: only the preamble is
 * sent before that is checked, and a process of another user ends the link with RDZV_END_USER. */
void link_auth(struct link *l, const struct auth *g);
void *link_owner(const struct link *l);
/* Later events go to this owner. */
void link_set_owner(struct link *l, const struct link_events *events, void *owner);
/* The longest frame (type and body) that is accepted; RDZV_FRAME_MAX_FIRST at first. */
void link_set_frame_max(struct link *l, uint32_t max);

void link_send(struct link *l, struct shared_buf *s); /* adds a reference */
void link_send_buf(struct link *l, struct buf *b);    /* takes the content of *b */
/* True from more than LINK_QUEUE_FULL queued bytes on, until half of them are written. */
bool link_is_full(const struct link *l);
/* on_room is called when a full link is not full any more; it may send. */
void link_set_on_room(struct link *l, void (*on_room)(struct link *l));

/* Functions that end the link for its owner at once, without a callback. The other side sees an end
 * of file, which proves that this launcher has left, or a reset, which proves nothing: a reset
 * after RDZV_END_BROKEN, and when link_finish() could not write everything. */
void link_close(struct link *l);  /* bytes that are not written yet are lost */
void link_finish(struct link *l); /* when all is written and the other side has closed, or in 2 s */

/* link_finish() for a peer that is not admitted. From LINK_REFUSED_MAX such links on the link is
 * closed at once, without its last message, so that refused peers cannot use up the descriptors. */
void link_refuse(struct link *l);

/* Gives the connection away when all messages are written: calls taken() with the owner, the
 * descriptor and the TLS state (NULL: none), both of which the callee owns, and closes the link.
 * The other side must not be sending. Until then the link may end or be closed. */
void link_detach(struct link *l, void (*taken)(void *owner, int fd, struct tls *tls));

/* Sets keepalive and TCP_USER_TIMEOUT so that the kernel detects a lost peer within about 60 % of
 * dead_ms, with and without data in flight, and disables the delay of small writes. Does nothing on
 * a socket that is not TCP. */
void link_tune(int fd, uint32_t dead_ms);

#endif
