/* link.h: one framed connection between a launcher and the coordinator, either end, on the loop.
 *
 * What is sent in one turn of the loop goes out with one write, right before the loop waits again.
 * Bytes that go to many are encoded once and shared. A side that does not read what it is sent is
 * cut off when LINK_QUEUE_MAX bytes wait for it; whoever sends what can wait stops above
 * LINK_QUEUE_FULL (link_is_full()) and goes on when on_room() is called.
 *
 * With a key, all of it is under TLS, which stands between libuv and this file's two doors: what
 * comes in is opened before take_frames() sees it, what goes out is sealed by link_flush(). */
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

#define LINK_REFUSED_MAX 128 /* that wait for the other side's end */

/* Bytes with a count of their users. */
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
    struct link *dirty; /* those with something to write */
    bool woken;
    unsigned open;     /* handles not yet closed */
    unsigned nrefused; /* of all */
    /* Called before the loop waits, after link_hub_wake(); may send. */
    void (*before_flush)(void *arg);
    void *arg;
    bool closing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
    uint8_t buffer[65536]; /* of whichever link is being read */
};

void link_hub_init(struct link_hub *h, uv_loop_t *loop, void (*before_flush)(void *arg), void *arg);
/* Something is to be done before the loop waits. */
void link_hub_wake(struct link_hub *h);
/* Closes all links, without telling their owners, and calls back when that is done. */
void link_hub_close(struct link_hub *h, void (*on_closed)(void *arg), void *arg);
/* The process is about to end without its loop: ends all links in order. What lies here unread
 * would turn their end into a reset. */
void link_hub_abandon(struct link_hub *h);

struct link_events {
    /* The other side's preamble: its protocol version, 0 when it is no preamble at all. False: the
     * link has been closed or finished. */
    bool (*on_preamble)(struct link *l, uint32_t version);
    /* A whole frame; the body is borrowed for the call. The link may be closed. */
    void (*on_frame)(struct link *l, uint8_t type, struct rd body);
    /* Nothing comes any more; the owner closes the link now. */
    void (*on_end)(struct link *l, enum rdzv_end how, const char *why);
};

/* Takes a connected non-blocking stream socket: TCP, or one end of a socketpair when `local`. Both
 * sides' preambles are seen to. NULL (the descriptor is closed): libuv would not have it. */
struct link *link_new(struct link_hub *h, int fd, bool local, const struct link_events *events,
                      void *owner);
/* Right after link_new(): both sides prove that they have the key, and all is encrypted. Nothing
 * that the other side says reaches the owner before; then on_end with RDZV_END_KEY when it has
 * another key. auth_ready() has loaded what it takes. */
void link_protect(struct link *l, enum tls_side side, const struct tls_key *key);
/* The same for one that this process has connected: under TLS, if `g` wants that (its key is
 * ready). Else, unless `g` is open, the other end is to be this user's process: nothing but the
 * preamble is sent before that is seen, and on_end comes with RDZV_END_USER when it is another's.
 */
void link_auth(struct link *l, const struct auth *g);
void *link_owner(const struct link *l);
/* Hands the link to another owner: later events go to that one. */
void link_set_owner(struct link *l, const struct link_events *events, void *owner);
/* The longest frame (type and body) that may come; RDZV_FRAME_MAX_FIRST at first. */
void link_set_frame_max(struct link *l, uint32_t max);

void link_send(struct link *l, struct shared_buf *s); /* adds a reference */
void link_send_buf(struct link *l, struct buf *b);    /* takes the content of *b */
/* More than LINK_QUEUE_FULL bytes have come to wait, and not yet half of them have gone. */
bool link_is_full(const struct link *l);
/* Called when a full link is no longer; may send. */
void link_set_on_room(struct link *l, void (*on_room)(struct link *l));

/* Each ends the link for its owner at once; none calls back. The other side sees an end of file,
 * which proves that this launcher has left, or a reset, which proves nothing: a reset after
 * RDZV_END_BROKEN, and when link_finish() could not write everything. */
void link_close(struct link *l);  /* what is not written yet is lost */
void link_finish(struct link *l); /* when all is written and the other side has closed, or in 2 s */

/* The same for a stranger. Of very many, some are closed without the last word, so that they cannot
 * take all descriptors. */
void link_refuse(struct link *l);

/* Gives the connection away as soon as all that was sent is written: calls taken() with the owner,
 * the descriptor and the TLS state (NULL: none), which are then its own; the link is closed.
 * Nothing may be under way from the other side. Until then it may end, or be closed, as ever. */
void link_detach(struct link *l, void (*taken)(void *owner, int fd, struct tls *tls));

/* Keepalive and TCP_USER_TIMEOUT so that the kernel notices a peer that has vanished within about
 * 60 % of dead_ms, with and without data under way; no delay for small writes. Not TCP: nothing. */
void link_tune(int fd, uint32_t dead_ms);

#endif
