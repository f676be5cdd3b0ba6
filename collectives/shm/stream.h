/* stream.h: the transport (net/transport.h) between the ranks of one node: rings of bytes in their
 * shared memory. Lane 0's streams carry what a rank sends to a peer, and the peer's answers to it;
 * lane 1's carry what the peer sends, and this rank's answers. */
#ifndef COLLECTIVES_SHM_STREAM_H
#define COLLECTIVES_SHM_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/net/transport.h"

struct dlcoll_comm;

/* Only streams to ranks of this node may be used, and not the rank's own. Borrows the communicator.
 * 0 or -ENOMEM. */
int stream_new(struct transport **out, struct dlcoll_comm *comm, struct err *e);

/* Whether that rank of this node has closed the communicator, in good order. */
bool stream_has_left(const struct dlcoll_comm *comm, int peer);

/* For messages in one piece. Sends `len` bytes, all that the list has, at once, or false: nothing.
 */
bool stream_put(struct transport *t, int stream, const struct iovec *iov, size_t len);
/* The beginning of a piece that is there after at most so many looks, and its length; what is
 * longer than a line can only be received, or taken. NULL: there is none. */
const void *stream_look(struct transport *t, int stream, int tries, size_t *len);
/* Takes the piece that was just looked at, of that length: what follows its first `skip` bytes. */
void stream_take(struct transport *t, int stream, size_t len, size_t skip, void *to);

/* Whoever is about to sleep says so, then looks for the last time, sleeps while *stream_bell() is
 * what stream_doze() has returned, and must say with stream_rouse() that he is up: something has
 * come, or what this rank has sent has been taken. */
uint32_t stream_doze(struct dlcoll_comm *comm);
const _Atomic uint32_t *stream_bell(struct dlcoll_comm *comm);
void stream_rouse(struct dlcoll_comm *comm);
void stream_ring(struct dlcoll_comm *comm); /* wakes those of this rank */

/* Whether this rank may take what lies in the memory of `peer`, a rank of the communicator on this
 * node, by itself. */
bool stream_may_fetch(struct dlcoll_comm *comm, int peer);
/* Does so. 0; -EPIPE: it is gone; or another -errno with a text. */
int stream_fetch(struct dlcoll_comm *comm, int peer, void *to, uint64_t from, size_t len,
                 struct err *e);

#endif
