/* store_proto.h: PyTorch's TCPStore wire protocol (dlaunch-protocol(7)) as a codec without I/O.
 *
 *     bytes -> store_decoder -> struct store_request -> store_table.h -> store_out.h -> bytes
 *
 * There is no framing, no request id and no error reply: a request is an opcode and its fields, the
 * answers come in order, and a violation closes the connection. Integers are little-endian. Three
 * dialects differ in their opcodes: torch 1.13 and 2.0, torch 2.1, and torch 2.2 and later, whose
 * clients begin with VALIDATE and its magic number. The other two have no handshake, and nothing on
 * the wire tells them apart: which of them a client without handshake speaks is an option. */
#ifndef RENDEZVOUS_STORE_STORE_PROTO_H
#define RENDEZVOUS_STORE_STORE_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"

/* torch's own server closes a connection above 8 KiB per key, 8 MiB per value and 131,072 keys per
 * call. Larger values are harmless, and whole objects are broadcast through the store. */
#define STORE_KEY_MAX   8192u
#define STORE_VALUE_MAX (64u << 20)
#define STORE_KEYS_MAX  131072u /* in one call */
#define STORE_CALL_MAX                                                             \
    (STORE_VALUE_MAX + 65536)      /* a request: a value of full size with its key \
                                    */
#define STORE_REPLY_MAX (1u << 30) /* all values or keys of one answer */

#define STORE_MAGIC 0x3C85F7CEu

/* The commands. Opcodes in torch 2.2 and later, 2.1, 1.13; -1: not there. Fields of request and
 * reply, in order:
 *   u u32   i i64   b u8   k key   v value   e value that is expected      (strings: u64 length)
 *   K keys, P key and value pairs: u64 count, then that many
 *   V as many values as the request had keys   S i64 count, then keys
 *   q i64, then, if > 0, a value
 * WATCH_KEY's later pushes (u8 kind, key, old value, new value) are no replies. */
#define STORE_COMMANDS(X)               \
    X(VALIDATE, 0, -1, -1, "u", "")     \
    X(SET, 1, 0, 0, "kv", "")           \
    X(COMPARE_SET, 2, 1, 1, "kev", "v") \
    X(GET, 3, 2, 2, "k", "v")           \
    X(ADD, 4, 3, 3, "ki", "i")          \
    X(CHECK, 5, 4, 4, "K", "b")         \
    X(WAIT, 6, 5, 5, "K", "b")          \
    X(GETNUMKEYS, 7, 6, 6, "", "i")     \
    X(DELETE_KEY, 8, 7, 8, "k", "i")    \
    X(APPEND, 9, 8, -1, "kv", "")       \
    X(MULTI_GET, 10, 9, -1, "K", "V")   \
    X(MULTI_SET, 11, 10, -1, "P", "")   \
    X(CANCEL_WAIT, 12, 11, -1, "", "b") \
    X(PING, 13, -1, -1, "u", "u")       \
    X(QUEUE_PUSH, 14, -1, -1, "kv", "") \
    X(QUEUE_POP, 15, -1, -1, "k", "q")  \
    X(QUEUE_LEN, 16, -1, -1, "k", "i")  \
    X(LIST_KEYS, 17, -1, -1, "", "S")   \
    X(BARRIER, 18, -1, -1, "ki", "b")   \
    X(WATCH_KEY, -1, -1, 7, "k", "b")

enum store_cmd {
#define X(name, op, op_21, op_113, request, reply) STORE_##name,
    STORE_COMMANDS(X)
#undef X
        STORE_CMDS
};

enum store_dialect { STORE_NEWEST, STORE_21, STORE_113, STORE_DIALECTS };

const char *store_cmd_name(enum store_cmd cmd);
int store_cmd_opcode(enum store_dialect d,
                     enum store_cmd cmd); /* opcode; -1: not in this dialect */

/* One-byte answers. */
enum { STORE_READY = 0, STORE_NOT_READY = 1 };       /* CHECK */
enum { STORE_STOP_WAITING = 0, STORE_CANCELED = 1 }; /* WAIT and BARRIER; CANCEL_WAIT */
enum { STORE_KEY_UPDATED, STORE_KEY_CREATED, STORE_KEY_DELETED, STORE_WATCHING }; /* WATCH_KEY */

/* The reason for closing a connection. */
#define STORE_REASONS_MAP(X)                                               \
    X(OPCODE, "an unknown command")                                        \
    X(MAGIC, "a wrong magic number")                                       \
    X(KEY_LENGTH, "a key longer than 8 KiB")                               \
    X(VALUE_LENGTH, "a value longer than 64 MiB")                          \
    X(KEY_COUNT, "more than 131072 keys in one call")                      \
    X(CALL_LENGTH, "a call longer than 64 MiB")                            \
    X(REPLY_LENGTH, "an answer longer than 1 GiB")                         \
    X(NOT_A_NUMBER, "arithmetic on a value that is not a number")          \
    X(WATCHES, "more than 131072 watched keys")                            \
    X(FULL_KEYS, "the store is full: 1000000 keys")                        \
    X(FULL_BYTES, "the store is full: 1 GiB")                              \
    X(FULL_BUFFERS, "unfinished requests and unread answers exceed 1 GiB") \
    X(STALLED, "it did not read its answers")                              \
    X(MEMORY, "out of memory")

enum store_reason {
    STORE_OK,
#define X(name, text) STORE_ERR_##name,
    STORE_REASONS_MAP(X)
#undef X
        STORE_REASONS
};

const char *store_reason_text(enum store_reason r);

struct store_view {
    const uint8_t *p;
    size_t len;
};

/* A request; the command determines the valid fields. After decoding, all views are into the
 * decoder's bytes. */
struct store_request {
    enum store_cmd cmd;
    struct store_view key, expected, val;
    int64_t number;          /* ADD's delta, BARRIER's world size */
    uint32_t word;           /* VALIDATE's magic, PING's nonce */
    size_t count;            /* keys (CHECK, WAIT, MULTI_GET) or pairs (MULTI_SET) in `items` */
    struct store_view items; /* encoded as on the wire; store_items_next() iterates over it */
};

/* Takes the first string off `items`. Empty: there is none. */
struct store_view store_items_next(struct store_view *items);

/* --- Measuring: where does a message end? -------------------------------------------------------
 *
 * A scan is fed the message from its first byte, again and again as more of it has come, and goes
 * on where it stopped. Every length is checked as soon as its eight bytes are there. */
struct store_scan {
    const char *fields; /* not yet measured */
    size_t at;          /* bytes measured */
    uint64_t items;     /* strings of a list that are still to be scanned */
    char item, other;   /* kinds of the next string of the list, and of the one after it */
    size_t value_max, total_max;
    enum store_reason too_long; /* the reason for a message above total_max */
    uint64_t asked;             /* the length or number above its limit; 0: none */
};

/* > 0: complete, s->at bytes long; 0: goes on beyond `len`; < 0: -reason. */
int store_scan(struct store_scan *s, const uint8_t *p, size_t len);

void store_scan_reply(struct store_scan *s, enum store_cmd cmd, size_t count);

/* --- Server side --------------------------------------------------------------------------------
 *
 *     store_decoder_feed(&d, chunk, n);
 *     while ((rc = store_decoder_next(&d, &req)) > 0)
 *         ...
 *
 * The chunk is borrowed until next() has returned 0, and the request until the call after it. Only
 * the unfinished request at a chunk's end is copied. */
struct store_decoder {
    bool known; /* the dialect is */
    bool legacy_113;
    enum store_dialect dialect;
    bool started; /* a scan has begun */
    enum store_cmd cmd;
    struct store_scan scan;
    struct store_view unread; /* bytes that are not decoded, in the chunk or in `partial` */
    struct buf partial;       /* an unfinished request */
};

void store_decoder_init(struct store_decoder *d, bool legacy_113);
void store_decoder_fini(struct store_decoder *d);
void store_decoder_feed(struct store_decoder *d, const void *chunk, size_t n);
/* > 0: a request; 0: more bytes are needed; < 0: -reason: the connection must be closed. */
int store_decoder_next(struct store_decoder *d, struct store_request *r);

/* --- Client side --------------------------------------------------------------------------------
 *
 * STORE_OK, or the limit that the request exceeds. */
enum store_reason store_request_check(const struct store_request *r);
/* Appends the request without the bytes of its last string or list, which it returns: they follow
 * on the wire, and need not be copied. */
struct store_view store_encode_head(struct buf *b, enum store_dialect d,
                                    const struct store_request *r);
void store_encode(struct buf *b, enum store_dialect d, const struct store_request *r); /* all */
void store_items_put(struct buf *items, const void *p, size_t n);

#endif
