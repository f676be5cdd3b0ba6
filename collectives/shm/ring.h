/* ring.h: the transport (net/transport.h) between the ranks of one node: rings of bytes in their
 * shared memory. Lane 0's streams carry what a rank sends to a peer, and the peer's answers to it;
 * lane 1's carry what the peer sends, and this rank's answers. */
#ifndef COLLECTIVES_SHM_RING_H
#define COLLECTIVES_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/net/transport.h"

struct dlcoll_comm;

/* Only streams to ranks of this node may be used, and not the rank's own. Borrows the communicator.
 * 0 or -ENOMEM. */
int ring_new(struct transport **out, struct dlcoll_comm *comm, struct err *e);

/* Whether that rank of this node has closed the communicator, in good order. */
bool ring_has_left(const struct dlcoll_comm *comm, int peer);

/* For messages in one piece. Sends `len` bytes, all that the list has, at once, or false: nothing.
 */
bool ring_put(struct transport *t, int stream, const struct iovec *iov, size_t len);
/* The beginning of a piece that is there after at most so many looks, and its length; what is
 * longer than a line can only be received, or taken. NULL: there is none. */
const void *ring_look(struct transport *t, int stream, int tries, size_t *len);
/* Takes the piece that was just looked at, of that length: what follows its first `skip` bytes. */
void ring_take(struct transport *t, int stream, size_t len, size_t skip, void *to);

/* Whoever is about to sleep says so, then looks for the last time, sleeps while *ring_doorbell() is
 * what ring_prepare_sleep() has returned, and must say with ring_end_sleep() that he is up:
 * something has come, or what this rank has sent has been taken. */
uint32_t ring_prepare_sleep(struct dlcoll_comm *comm);
const _Atomic uint32_t *ring_doorbell(struct dlcoll_comm *comm);
void ring_end_sleep(struct dlcoll_comm *comm);
void ring_wake_own(struct dlcoll_comm *comm); /* wakes those of this rank */

/* Whether this rank may take what lies in the memory of `peer`, a rank of the communicator on this
 * node, by itself. */
bool ring_may_fetch(struct dlcoll_comm *comm, int peer);
/* Does so. 0; -EPIPE: it is gone; or another -errno with a text. */
int ring_fetch(struct dlcoll_comm *comm, int peer, void *to, uint64_t from, size_t len,
               struct err *e);

#endif
