/* beat.h: heartbeats from a thread of their own, so that a loop that has much to do, or is stuck,
 * is not taken for a node that is dead.
 *
 *     node's thread  -- BEAT: when, what it has seen, its loop's lag -->  coordinator's thread
 *                   <-- answer: the same `when`, lease or not, lag ----
 *
 * Each node keeps a second connection to the coordinator for them. The loops open it (beat_call.h,
 * coordinator.c), under the same auth and TLS as the first one and for as long as that lasts, and
 * hand it to their threads. What a thread has learned goes to the rules by the loop
 * (member_state_beat(), rdzv_state_beat()), with the time of it, before they judge a silence; only
 * the guardian, which does not wait for the loop, is told by the thread that the lease goes on.
 *
 * The thread allocates nothing after the start (but for what OpenSSL takes, and gives back, for
 * each record: 40 bytes of the thread's own cache), takes no lock, and writes nothing but
 * heartbeats. It watches the loop of its own process: one that has not turned for BEAT_STUCK_MS
 * makes the node unhealthy, and there are no heartbeats until it turns again, so that the others go
 * on without it.
 *
 * A lease goes out with an answer only when the coordinator cannot be giving up the node at the
 * same time: it was last heard of less than the dead time ago, by a clock that is read after
 * this heartbeat has been noted. The loop reads its clock first, and the note then. */
#ifndef RENDEZVOUS_WIRE_BEAT_H
#define RENDEZVOUS_WIRE_BEAT_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "core/err.h"

struct tls;
struct beats;

#define BEAT_STUCK_MS 10000 /* such a loop is not coming back, as far as others can wait for it */

struct beats_config {
    uv_loop_t *loop;
    int links; /* at most so many at once */
    uint64_t heartbeat_ns, dead_ns;
    /* On the loop, twice in a heartbeat's time or less: there may be something new. */
    void (*on_turn)(void *arg);
    /* On the thread: the workers of this node may live so long (CLOCK_MONOTONIC ns). Does not
     * allocate nor lock. NULL: nobody asks. */
    void (*on_lease)(void *arg, uint64_t until_ns);
    void *arg;       /* of on_turn */
    void *lease_arg; /* of on_lease */
};

/* Starts the thread. Negative errno. */
int beats_open(struct beats **out, const struct beats_config *config, struct err *e);
void beats_close(struct beats *b, void (*on_closed)(void *arg), void *arg);

enum beat_side { BEAT_NODE, BEAT_COORDINATOR };

/* Takes a connected non-blocking socket, and tls, which may be NULL, and heartbeats begin; this
 * side: BEAT_NODE sends them. dead_ns: until the other side is given up. Returns a number for it,
 * or -1 when there is no place (both are closed). */
int beats_add(struct beats *b, enum beat_side side, int fd, struct tls *tls, uint64_t dead_ns);

/* The news from the newest heartbeat of a connection. */
struct beat_news {
    bool broken;       /* nothing more comes: beats_drop() */
    uint64_t heard_ns; /* when it came, our clock */
    uint64_t touch_ns; /* BEAT_COORDINATOR: the newest answer that it had seen was sent then */
    uint64_t lease_ns; /* BEAT_NODE: a lease from then on was given; 0: none yet */
    uint32_t lag_ms;   /* of the other side's loop */
};
/* Read the clock first: see above. */
void beats_look(struct beats *b, int link, struct beat_news *out);
/* Nothing is answered any more from here on; the last news are in *out. */
void beats_drop(struct beats *b, int link, struct beat_news *out);

/* The coordinator: answers give a lease until then. 0: none. */
void beats_grant(struct beats *b, uint64_t until_ns);
/* This process has both, coordinator and node: the node's lease goes on without messages. Returns
 * from when on it was given last; 0: never. */
void beats_own(struct beats *b, bool own);
uint64_t beats_own_lease(const struct beats *b);
/* The loop may stand still from here on. */
void beats_rest(struct beats *b);

#endif
