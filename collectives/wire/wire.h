/* wire.h: the messages of ranks on their data connections, in the byte order of the machine (the
 * hello's magic detects another one).
 *
 * A connection opens with a hello each way: the connecting end sends first, the other answers a
 * valid hello. Then the connection belongs to the two ranks of one communicator and carries frames:
 * a header, zeros up to FRAME_DISTANCE when the message is long, and `len` bytes. Hellos that are
 * not answered by another one:
 *   HELLO_NOTICE   followed by a notice; then the sender closes
 *   HELLO_PROBE    from a rank that waits for the peer to connect; the peer closes
 *   HELLO_ASK      followed by the operation in which the sender has waited for long, so that a
 *                  peer that has called another one can report it; the peer closes. With a call
 *                  of the kind CALL_NONE: what the peer has called as its operation of that number;
 *                  it answers in the same form, with the number 0 if it has not called it yet
 * HELLO_GONE is an answer: that communicator has been closed. A hello of another version is
 * answered by one of this version, and both ranks end. */
#ifndef COLLECTIVES_WIRE_WIRE_H
#define COLLECTIVES_WIRE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/base/op_signature.h"
#include "core/protocols.h"

#define HELLO_MAGIC   0x31434c44u /* "DLC1" */
#define HELLO_VERSION PROTOCOL_DATA

enum hello_kind {
    HELLO_DATA = 1,
    HELLO_NOTICE = 2,
    HELLO_GONE = 3,
    HELLO_PROBE = 4,
    HELLO_ASK = 5
};

/* The use of a connection; each use has its own streams. */
enum channel { CHANNEL_COLL, CHANNEL_P2P, CHANNELS };

struct hello {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t epoch; /* of the job's round: drawn at random, so that another job cannot guess it */
    uint32_t counter;
    uint32_t instance; /* number of the world among those of its sort, from 1 */
    uint64_t comm;     /* the communicator's number */
    uint32_t from, to; /* ranks of the world */
    uint16_t channel;
    uint16_t socket; /* the number of the connection, of several between the two */
    uint32_t unused;
    uint64_t settings; /* bootstrap/settings.h */
};
_Static_assert(sizeof(struct hello) == 56, "hello travels as it is");

/* A hello begins so in every version: whoever reads another version of a rank of this job can say
 * so, to that rank and to its own program. */
enum { HELLO_COMMON = offsetof(struct hello, settings) };

/* The header of every message of a collective. The receiver compares it with its own operation and
 * with the operations before it. `last` is for the text of a mismatch only. */
struct frame {
    uint64_t seq;     /* of the operation */
    uint32_t history; /* op_history() of the calls before it */
    uint16_t part;    /* of an operation that consists of several (struct coll_call) */
    uint16_t socket;
    struct op_signature sig;
    uint64_t len;      /* bytes of the message */
    uint64_t last_seq; /* of the sender's operation before this one; 0: none */
    struct op_signature last;
};
_Static_assert(sizeof(struct frame) == 64, "frames travel as they are");

/* A long message keeps its distance from its header. The kernel copies a stream to pages of its
 * own, from their beginning on: with a short header the bytes would go to where they lie in the
 * sender's page, plus a few. Processors that compare the low 12 bits of addresses then take each
 * load for one of what has just been stored, and such a copy takes up to twice as long. At this
 * distance that happens neither to a buffer that begins a page nor to one 16 (malloc()) or 64 bytes
 * into it. */
enum { FRAME_LONG = 16 * 1024, FRAME_DISTANCE = 128 };

/* Bytes from the beginning of a header of header_len bytes to its message of len bytes. */
static inline size_t frame_distance(size_t header_len, size_t len)
{
    return len < FRAME_LONG ? header_len : FRAME_DISTANCE;
}

/* The operation in which a rank waits for another one. */
struct ask {
    uint64_t seq;
    struct op_signature sig; /* the number in the flight recorder */
};
_Static_assert(sizeof(struct ask) == 24, "asks travel as they are");

/* Why a rank gave up. */
struct notice {
    int32_t code; /* DLCOLL_E... */
    int32_t rank; /* the cause, a rank of the world, or -1 */
    int32_t pid, signal, exit_code;
    uint32_t seq; /* low half of the number of the operation in `text`; 0: none */
    char host[64];
    char text[400]; /* the reason as a clause: "rank 3 (node-b, pid 812) closed its connection" */
};
_Static_assert(sizeof(struct notice) == 488, "notices travel as they are");

#endif
