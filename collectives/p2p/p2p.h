/* p2p.h: sends, receives and probes under way, in any order, between a communicator's ranks.
 *
 * Every message is announced by a header on the stream from its sender, in the order of the sends.
 * A small one (EAGER) follows at once, over TCP, where asking takes a round trip, also one of
 * modest length: while not too much of such is unmatched. Over TCP every header says how much has
 * been matched of what went the other way; within the node the receiver shows how much it keeps. So
 * a rank keeps a bounded amount of each other one's messages, whatever these send. A large one
 * (RTS), or one beyond that bound, follows when the receiver has matched it with a receive and says
 * so (CTS), or the receiver fetches it itself, where it can read the sender's memory and that is
 * found to be faster (shm/cost.h; then it says FETCHED). It says so of a small one, too, if the
 * send is synchronous. A header that comes before its receive is kept, and shown to probes; what
 * comes from a rank of which nothing is expected, not even an answer, stays in the socket. Answers
 * go before messages that are not begun: a peer that awaits one has at most a socket's worth to
 * keep first.
 *
 *     send   QUEUED -> (EAGER written) done
 *                                      or OFFERED, when synchronous -> (FETCHED) done
 *                   -> (RTS written) OFFERED -> (CTS) QUEUED -> (DATA written) done
 *                                            -> (FETCHED) done
 *     recv   POSTED -> (EAGER) FILLING -> done
 *                                      or ACCEPTED, when synchronous -> (FETCHED written) done
 *                   -> (RTS) ACCEPTED -> (CTS written, DATA comes) FILLING -> done
 *                                     -> (fetched, FETCHED written) done
 *
 * Failures: a peer with which something is under way is gone, a message that does not fit its
 * receive, a deadline: the communicator fails, and with it everything that is under way. */
#ifndef COLLECTIVES_P2P_P2P_H
#define COLLECTIVES_P2P_P2P_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/p2p/p2p_op.h"
#include "core/err.h"

struct dlcoll_comm;
struct dlcoll_work;
struct p2p;

/* Posts the operations of the handle's list, and does what can be done at once. 0; or -ENOMEM:
 * nothing has been posted. The handle is completed when all are done, or the communicator fails. */
int p2p_start(struct dlcoll_comm *comm, struct dlcoll_work *w);

/* Carries out one operation, a message of modest length within the node, without the help of a
 * handle or another thread, if that is possible at once, or nearly so. False: nothing has been
 * done. */
bool p2p_try(struct dlcoll_comm *comm, struct p2p_op *op);

/* Posts one operation without a handle, waits until it is done, and returns its public code. */
int p2p_run(struct dlcoll_comm *comm, struct p2p_op *op);
/* Posts a probe without a handle; DLCOLL_INPROGRESS when it finds no message at once. */
int p2p_probe_once(struct dlcoll_comm *comm, struct p2p_op *op);

/* Progresses everything that is under way until *done, a handle's or an operation's, the deadline
 * (0: none) has come, or nothing can be done for now when `once`. */
void p2p_wait(struct dlcoll_comm *comm, const _Atomic uint32_t *done, uint64_t until_ns, bool once);

/* Whether a handle is that of one receive, under way. */
bool p2p_is_receive(const struct dlcoll_work *w);
/* Takes back a handle's one operation, when nothing of it has moved yet, and completes the handle
 * with the code. False: it is too late. */
bool p2p_cancel(struct dlcoll_comm *comm, struct dlcoll_work *w, int code);
/* Whether only receives are under way that no message has matched; ends those. */
bool p2p_only_awaits(struct dlcoll_comm *comm);
void p2p_end_receives(struct dlcoll_comm *comm, int code);

/* Whether the message is claimed by a probe, and not received yet. */
bool p2p_is_claimed(struct dlcoll_comm *comm, const void *message);

/* Makes the task if there is none, before an operation begins that it is to progress, because a
 * started operation could not be taken back: there are operations with a handle, and a collective
 * operation may wait for a rank that is in a send to this one. 0 or -ENOMEM. */
int p2p_start_task(struct dlcoll_comm *comm);
/* Rings for the task, if there is one: messages are under way. */
void p2p_ring_task(struct dlcoll_comm *comm);

bool p2p_is_busy(const struct dlcoll_comm *comm); /* something is under way */

/* Ends the task, and closes all connections; everything under way gets DLCOLL_EABORTED. */
void p2p_stop(struct dlcoll_comm *comm);
void p2p_free(struct p2p *p); /* NULL is allowed */

#endif
