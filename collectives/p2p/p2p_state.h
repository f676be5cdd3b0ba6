/* p2p_state.h: the state of sends and receives (p2p.h), for the files that move them: p2p.c
 * (progress, waiting, failing), p2p_match.c (matches messages with receives) and p2p_pair.c (the
 * streams to and from one peer). All of it is under p->lock. */
#ifndef COLLECTIVES_P2P_P2P_STATE_H
#define COLLECTIVES_P2P_P2P_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "collectives/base/task.h"
#include "collectives/comm/coll_call.h"
#include "collectives/wire/transport.h"
#include "collectives/wire/wire.h"
#include "collectives/p2p/p2p_op.h"
#include "collectives/shm/cost.h"

enum {
#define P2P(name, bytes, decides, measured) name = bytes,
#include "collectives/comm/selection.def"
    P2P_FRAME_BYTES = sizeof(struct p2p_frame),
    P2P_AHEAD_BYTES = 4096,
    P2P_KEEP_BYTES = 128, /* a shorter message counts so much: it takes as much to keep */
    P2P_PLACED_BYTES = 64 * 1024,
};

enum p2p_frame_kind { P2P_EAGER = 1, P2P_RTS, P2P_CTS, P2P_DATA, P2P_FETCHED };

/* A message that has arrived before its receive; one of this rank's own, whose send is `offered`.
 */
struct p2p_unexpected {
    struct p2p_unexpected *next;
    int from;
    uint64_t arrival; /* position in the order of arrival */
    struct p2p_frame frame;
    size_t have, len; /* bytes of data: that have come, in all */
    uint8_t data[];
};

struct p2p_queue {
    struct p2p_op *head, **tail;
};

/* The frame that is being read from a stream. */
struct p2p_reading {
    union {
        uint8_t head[FRAME_DISTANCE];
        struct p2p_frame frame;
    };
    size_t head_len;           /* the frame and what is between it and the message */
    size_t have;               /* of these, then of the message as well */
    struct p2p_op *op;         /* the receive of the message, or */
    struct p2p_unexpected *un; /* the message that is kept */
    size_t len;                /* bytes of the message that follow in this frame */
};

/* Bytes that arrived with a header and are not processed yet. Those that were placed in the buffer
 * of a receive are put behind the others if they are not its message's. */
struct p2p_ahead {
    size_t at, have, placed;
    uint8_t *large; /* with room for those, too; NULL: none has been placed yet */
    uint8_t small[P2P_AHEAD_BYTES];
};

struct p2p_peer {
    struct transport *t;       /* the transport to the peer */
    int in;                    /* the stream of the peer's messages, and of our answers */
    struct p2p_queue out;      /* frames to be written on the stream to the peer */
    struct p2p_queue offered;  /* sends that wait for CTS or FETCHED; to oneself, for the receive */
    struct p2p_queue in_reply; /* receives whose CTS or FETCHED is to be written */
    struct p2p_queue accepted; /* receives that wait for DATA */
    struct p2p_unexpected *kept, **kept_tail;
    size_t kept_bytes;                    /* p2p_charge() of those that were sent without asking */
    struct p2p_reading replies, messages; /* of one stream: all of it is read as messages are */
    uint64_t next_id;
    /* Over TCP, p2p_charge() of messages since the beginning: sent without asking; of these,
     * matched as the peer reports; and of the peer's messages, matched here. */
    uint64_t ahead, heard, taken;
    int posted;        /* receives and probes of this peer */
    bool active, deaf; /* in p->active; its stream has ended while nothing was expected */
};

struct p2p {
    pthread_mutex_t lock;
    struct dlcoll_comm *comm;
    struct transport *tcp;
    struct transport *shm; /* to ranks of this node; NULL: there is none */
    struct p2p_peer *peers;
    struct p2p_ahead *ahead; /* by rank; used for those with one stream */
    int *active;             /* ranks with which something is under way */
    int nactive;
    /* Measured times of large messages within the node: staged in the rings, or fetched. */
    struct cost costs[COST_SIZES];
    struct cost_turn turns[COST_SIZES];
    struct p2p_queue posted;        /* receives and probes, in the order of their calls */
    int any;                        /* posted for any rank */
    struct p2p_unexpected *claimed; /* found by probes that keep them for a receive */
    uint64_t arrivals;
    _Atomic int under_way;
    _Atomic int waiters;  /* threads that progress the operations */
    _Atomic int sleepers; /* threads that sleep on their own operation, progressed by the task */
    bool stopped;
    uint64_t soonest_ns; /* the first deadline of what is under way, as last looked at */
    uint64_t nap_ns;     /* the task's next one */
    uint64_t seq;
    struct task task;  /* progresses what is under way while no thread of the program does */
    _Atomic bool quit; /* of the task */
    int failed;        /* the status of the first failure, or 0 */
    struct coll_call failed_op;  /* then: the operation that has failed, */
    struct coll_failure failure; /* and how */
};

/* The bytes that a message takes of its sender's window with its receiver. */
static inline size_t p2p_charge(size_t len)
{
    return len > P2P_KEEP_BYTES ? len : P2P_KEEP_BYTES;
}

/* --------------------------------------------------------------------------------------- queues */

static inline void p2p_queue_init(struct p2p_queue *q)
{
    q->head = NULL;
    q->tail = &q->head;
}

static inline void p2p_queue_put(struct p2p_queue *q, struct p2p_op *op)
{
    op->next = NULL;
    *q->tail = op;
    q->tail = &op->next;
}

static inline void p2p_queue_remove(struct p2p_queue *q, struct p2p_op **at)
{
    struct p2p_op *op = *at;
    *at = op->next;
    if (q->tail == &op->next)
        q->tail = at;
}

static inline struct p2p_op *p2p_queue_take(struct p2p_queue *q)
{
    struct p2p_op *op = q->head;
    if (op)
        p2p_queue_remove(q, &q->head);
    return op;
}

/* The one of that id; taken off the list. */
static inline struct p2p_op *p2p_queue_find(struct p2p_queue *q, uint64_t id)
{
    for (struct p2p_op **at = &q->head; *at; at = &(*at)->next) {
        struct p2p_op *op = *at;
        if (op->frame.id == id) {
            p2p_queue_remove(q, at);
            return op;
        }
    }
    return NULL;
}

/* Over TCP, messages and answers share a connection, and acknowledgements of one direction travel
 * with the data of the other; shared memory has a pair of rings for each rank's messages and their
 * answers. This rank's messages go on stream `rank`. */
static inline bool p2p_has_one_stream(const struct p2p *p, int rank)
{
    return p->peers[rank].in == rank;
}

/* ---------------------------------------------------------------------------------------- p2p.c */

/* An operation or a peer has failed (op NULL: an operation that the peer keeps waiting is named);
 * comm_fail() is called when the lock is free. Returns the status, or that of an earlier failure.
 */
int p2p_fail(struct p2p *p, int status, int peer, const struct p2p_op *op, const struct err *e);
/* The peer sends something else than the receive expects. */
int p2p_mismatch(struct p2p *p, int peer, const struct p2p_op *op, const struct p2p_frame *f);
/* The operation is complete; it may be freed when this returns. */
void p2p_done(struct p2p *p, struct p2p_op *op);
/* Adds the peer to p->active: an operation with it is under way. */
void p2p_set_active(struct p2p *p, int peer);

/* ---------------------------------------------------------------------------------- p2p_match.c */

void p2p_post_send(struct p2p *p, struct p2p_op *op);
void p2p_post_recv(struct p2p *p, struct p2p_op *op);
/* A message's frame has arrived: *op is its receive, to which a large message may already have been
 * offered; NULL: there is none yet. 0 or negative. */
int p2p_match(struct p2p *p, int rank, const struct p2p_frame *f, struct p2p_op **op);
/* Keeps a message that has none, with room for len bytes, and shows it to the probes that wait for
 * it. NULL: the communicator fails. */
struct p2p_unexpected *p2p_keep(struct p2p *p, int rank, const struct p2p_frame *f, size_t len);
/* A message that was sent without asking is all here. */
void p2p_received(struct p2p *p, struct p2p_op *op, const struct p2p_frame *f);
/* Takes a receive or probe that nothing has matched off the list. */
void p2p_unpost(struct p2p *p, struct p2p_op **at);

/* ----------------------------------------------------------------------------------- p2p_pair.c */

/* Whether an operation expects anything on the peer's stream `in`. */
bool p2p_expects(const struct p2p *p, int rank);
/* Writes and reads as much as possible without blocking; sets *moved if anything moved. */
void p2p_move(struct p2p *p, int rank, bool *moved);
/* Returns an operation under way with that rank; any: or one with any source. NULL: none. */
const struct p2p_op *p2p_op_with(const struct p2p *p, int rank, bool any);
/* Whether an operation waits for a peer that will do nothing more; calls p2p_fail() then. */
void p2p_check_exits(struct p2p *p);

#endif
