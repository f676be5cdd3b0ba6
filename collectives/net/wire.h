/* wire.h: what ranks say to each other on their data connections, in the byte order of the machine
 * (the hello's magic tells another one).
 *
 * A connection opens with a hello each way: the one who connected first, then, when that was right,
 * the other. It belongs to the two ranks from then on and carries frames: a header and `len` bytes.
 * A hello of kind HELLO_NOTICE is followed by a notice instead of an answer, and then the end. */
#ifndef COLLECTIVES_NET_WIRE_H
#define COLLECTIVES_NET_WIRE_H

#include <stdint.h>

#include "collectives/call.h"

#define HELLO_MAGIC   0x31434c44u /* "DLC1" */
#define HELLO_VERSION 1u

enum hello_kind { HELLO_DATA = 1, HELLO_NOTICE = 2 };

struct hello {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t epoch; /* of the job's round: drawn at random, so that no stranger knows it */
    uint32_t counter;
    uint32_t instance; /* of dlcoll_init() in the process, from 1 */
    uint32_t from, to; /* ranks */
};
_Static_assert(sizeof(struct hello) == 32, "hello travels as it is");

/* In front of every message. The receiver knows what must come, and compares. */
struct frame {
    uint32_t comm;
    uint32_t seq; /* of the operation, its low half */
    struct call call;
    uint64_t len; /* bytes that follow */
};
_Static_assert(sizeof(struct frame) == 32, "frames travel as they are");

/* Why a rank gave up, told to those who are connected to it before it closes. */
struct notice {
    int32_t code; /* DLCOLL_E... */
    int32_t rank; /* the cause, or -1 */
    int32_t pid, signal, exit_code;
    int32_t unused;
    char host[64];
    char text[400]; /* the reason as a clause: "rank 3 (node-b, pid 812) closed its connection" */
};
_Static_assert(sizeof(struct notice) == 488, "notices travel as they are");

#endif
