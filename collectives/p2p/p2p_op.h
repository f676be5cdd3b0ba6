/* p2p_op.h: one send, receive or probe, and the header of its message. */
#ifndef COLLECTIVES_P2P_P2P_OP_H
#define COLLECTIVES_P2P_P2P_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dlcoll_message;
struct dlcoll_work;
struct p2p_unexpected;

enum { P2P_ANY = -1 };
enum { P2P_TAG_BARRIER = INT32_MIN }; /* of the library's own; the program's are >= 0 */

enum { P2P_SYNC = 1 }; /* flag of a message: its receiver confirms the receive */

struct p2p_frame {
    uint8_t kind, dtype;
    uint16_t flags;
    int32_t tag;
    uint64_t count;
    uint64_t id; /* number of the message, among those from its sender to its receiver */
    union {
        uint64_t addr;  /* within the node, RTS: address in the sender's memory */
        uint64_t taken; /* over TCP: bytes, of the receiver's to the sender */
    };
};

enum p2p_state { P2P_QUEUED, P2P_OFFERED, P2P_POSTED, P2P_ACCEPTED, P2P_FILLING, P2P_DONE };

/* A send or a receive; storage is the work handle's. */
struct p2p_op {
    struct p2p_op *next;      /* in the list of its state */
    struct p2p_op *sibling;   /* of one handle */
    struct dlcoll_work *work; /* NULL: somebody waits for `ended`, and takes the result */
    _Atomic uint32_t ended;
    int result; /* the public code */
    enum p2p_state state;
    bool is_send, any, optional;
    int peer; /* of the communicator; of an `any` receive once it is matched */
    int tag;  /* the tag of an `any_tag` receive, once it is matched */
    uint8_t dtype;
    bool any_tag, upto, sync; /* upto: the message may be shorter */
    bool probes, claims;      /* a probe; a probe that keeps its message for a receive */
    bool plain;               /* a send or receive with none of these */
    bool lends; /* a receive whose buffer may hold anything until its message fills all of it: its
                   caller waits, and cannot take it back */
    size_t count, len; /* elements, bytes; of an `upto` receive the message's once it is matched */
    uint8_t *buf;
    size_t elem; /* bytes of the caller's element, for `message` */
    /* The caller's; NULL: not asked for. */
    int *from;
    struct dlcoll_message *message;
    struct p2p_unexpected *claimed; /* by a probe, and of the receive that it is for */
    uint64_t deadline_ns;
    uint64_t accepted_ns; /* a large receive: when it was matched */
    uint64_t seq, record;

    struct p2p_frame frame; /* bytes to be written before those of buf */
    size_t moved;           /* of both and what is between them */
    bool with_data;
};

#endif
