/* ring.h: the transport (wire/transport.h) between the ranks of one node: byte rings in their
 * shared memory. The first stream to a peer carries this rank's messages and the peer's answers;
 * the second carries the peer's messages and this rank's answers. */
#ifndef COLLECTIVES_SHM_RING_H
#define COLLECTIVES_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/wire/transport.h"

struct dlcoll_comm;

/* Only streams to other ranks of this node may be used. Borrows the communicator. 0 or -ENOMEM. */
int ring_new(struct transport **out, struct dlcoll_comm *comm, struct err *e);

/* Whether that rank of this node has closed the communicator in order. */
bool ring_has_left(const struct dlcoll_comm *comm, int peer);

/* The bytes that the reader of a stream has taken out of its ring and keeps: the reader publishes
 * the number, and the writer reads it. */
void ring_say_kept(struct transport *t, int stream, uint64_t bytes);
uint64_t ring_hear_kept(const struct transport *t, int stream);

/* For messages in one piece. Sends all `len` bytes of the list at once and returns true, or sends
 * nothing and returns false: there is no room, or the reader keeps more than `most_kept`. */
bool ring_put(struct transport *t, int stream, const struct iovec *iov, size_t len,
              uint64_t most_kept);
/* Polls up to `tries` times for a piece. Returns its beginning and its length in *len; a piece
 * longer than a cell must be received or taken. NULL: there is none. */
const void *ring_look(struct transport *t, int stream, int tries, size_t *len);
/* Takes the piece that ring_look() returned, of length `len`, without its first `skip` bytes. */
void ring_take(struct transport *t, int stream, size_t len, size_t skip, void *to);

/* A thread that wants to sleep calls ring_prepare_sleep(), checks once more, sleeps while
 * *ring_doorbell() has the value that ring_prepare_sleep() returned, and then calls
 * ring_end_sleep(). The doorbell rings when data has arrived, or when the reader has made room. */
uint32_t ring_prepare_sleep(struct dlcoll_comm *comm);
const _Atomic uint32_t *ring_doorbell(struct dlcoll_comm *comm);
void ring_end_sleep(struct dlcoll_comm *comm);
void ring_wake_own(struct dlcoll_comm *comm); /* wakes the sleeping threads of this rank */
/* ring_prepare_sleep() and ring_end_sleep() for a task, which parks and is rung for. */
void ring_prepare_park(struct dlcoll_comm *comm);
void ring_end_park(struct dlcoll_comm *comm);
bool ring_has_bell(const struct dlcoll_comm *comm); /* else nobody rings */

/* Whether this rank may read the memory of `peer`, a rank of the communicator on this node. */
bool ring_may_fetch(struct dlcoll_comm *comm, int peer);
/* Reads the peer's memory. 0; -EPIPE: the peer has exited; or another -errno with a text. */
int ring_fetch(struct dlcoll_comm *comm, int peer, void *to, uint64_t from, size_t len,
               struct err *e);

#endif
