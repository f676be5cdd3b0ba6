/* beat.h: a thread of their own for heartbeats, so that a node whose loop is busy is not taken for
 * a dead node.
 *
 *     node's thread  -- BEAT: when, what it has seen, its loop's lag -->  coordinator's thread
 *                   <-- answer: the same `when`, lease or not, lag ----
 *
 * Each node has a second connection to the coordinator for heartbeats. The loops open it
 * (beat_call.h, coordinator.c), with the same authentication and TLS as the first connection, keep
 * it as long as the first one, and pass it to their threads. The loop passes the times of
 * heartbeats to the rules (member_state_beat(), rdzv_state_beat()) before the rules decide that a
 * node is silent. Only the guardian, which does not wait for the loop, gets the lease from the
 * thread.
 *
 * After its start the thread allocates nothing (except what OpenSSL allocates and frees for each
 * record: 40 bytes from the thread's own cache), takes no lock, and writes only heartbeats. It
 * watches the loop of its own process: a loop that has not turned for BEAT_STUCK_MS makes the node
 * unhealthy. The thread then sends no heartbeats until the loop turns again, so that the other
 * nodes continue without this node.
 *
 * Invariant: the coordinator never extends the lease of a node that it is giving up. The thread
 * records a heartbeat first, then reads the clock, and extends the lease only if the previous
 * heartbeat is younger than the dead time. The loop reads its clock first, and then the record. */
#ifndef RENDEZVOUS_WIRE_BEAT_H
#define RENDEZVOUS_WIRE_BEAT_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "core/err.h"

struct tls;
struct beats;

#define BEAT_STUCK_MS 10000 /* after which other nodes do not wait for a loop any more */

struct beats_config {
    uv_loop_t *loop;
    int links; /* the most connections */
    uint64_t heartbeat_ns, dead_ns;
    /* Called on the loop, at least twice in a heartbeat interval: there may be news. */
    void (*on_turn)(void *arg);
    /* Called on the thread: the workers of this node may live until then (lease_clock_ns()). Must
     * neither allocate nor lock. NULL: not wanted. */
    void (*on_lease)(void *arg, uint64_t until_ns);
    void *arg;       /* of on_turn */
    void *lease_arg; /* of on_lease */
};

/* Starts the thread. Negative errno. */
int beats_open(struct beats **out, const struct beats_config *config, struct err *e);
void beats_close(struct beats *b, void (*on_closed)(void *arg), void *arg);

enum beat_side { BEAT_NODE, BEAT_COORDINATOR };

/* Starts heartbeats on a connected non-blocking socket with its TLS state (NULL: none), both of
 * which are taken. side: of this process; BEAT_NODE sends heartbeats, BEAT_COORDINATOR answers.
 * dead_ns: after which the other side counts as dead. Returns the number of the connection, or -1
 * when there is no room (both are closed). */
int beats_add(struct beats *b, enum beat_side side, int fd, struct tls *tls, uint64_t dead_ns);

/* The news from the newest heartbeat of a connection. */
struct beat_news {
    bool broken;       /* the connection has ended: beats_drop() */
    uint64_t heard_ns; /* when the heartbeat arrived, by this host's clock */
    uint64_t
        touch_ns; /* BEAT_COORDINATOR: when the newest answer that the node had seen was sent */
    uint64_t lease_ns; /* BEAT_NODE: the beginning of the newest lease; 0: none yet */
    uint32_t lag_ms;   /* of the other side's loop */
};
/* The caller reads its clock before this call: see the invariant above. */
void beats_look(struct beats *b, int link, struct beat_news *out);
/* Ends heartbeats on the connection; *out is the last news. */
void beats_drop(struct beats *b, int link, struct beat_news *out);

/* Coordinator: until when answers extend leases; 0: not at all. */
void beats_grant(struct beats *b, uint64_t until_ns);
/* own: the coordinator is in this process, and the node's lease is extended without messages.
 * beats_own_lease() is the beginning of the newest lease; 0: none. */
void beats_own(struct beats *b, bool own);
uint64_t beats_own_lease(const struct beats *b);
/* The thread does not watch the loop any more. */
void beats_rest(struct beats *b);

#endif
