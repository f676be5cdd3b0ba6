/* store_out.h: the answers that wait to be sent on one connection.
 *
 * Small ones are copied behind each other; values from STORE_REF_MIN bytes on are referenced, so
 * that an object that a thousand ranks fetch at once is in memory once. No I/O: whoever has the
 * socket asks for the next bytes (store_out_iov) and says how many it got rid of (store_out_sent).
 * A failed allocation is remembered in `oom`; the connection must then be closed. */
#ifndef RENDEZVOUS_STORE_STORE_OUT_H
#define RENDEZVOUS_STORE_STORE_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "core/bytes.h"

#define STORE_REF_MIN 4096

/* An immutable value with a count of its users; the counter `charged` includes its size while it
 * exists. The holder of the only reference may change it. */
struct store_blob {
    struct store_blob *next; /* in a queue */
    size_t *charged;
    size_t len, cap;
    uint32_t refs;
    uint8_t data[];
};

struct store_blob *store_blob_new(size_t cap, size_t *charged); /* one reference; NULL: no memory */
void store_blob_unref(struct store_blob *b);                    /* NULL is allowed */
size_t store_blob_cost(size_t cap);                             /* the amount in *charged */

struct store_out {
    size_t len;        /* bytes not yet sent, with the referenced ones */
    struct buf bytes;  /* the copied answers */
    size_t bytes_sent; /* of those */
    struct store_ref {
        size_t at; /* goes out before bytes.data[at] */
        struct store_blob *blob;
    } * refs;
    size_t refs_first, refs_end, refs_cap; /* unsent: [first, end) */
    size_t ref_sent;                       /* of the first unsent one */
    bool oom;
};

void store_out_init(struct store_out *o);
void store_out_fini(struct store_out *o); /* drops unsent bytes */

void store_out_u8(struct store_out *o, uint8_t v);
void store_out_u32(struct store_out *o, uint32_t v);
void store_out_i64(struct store_out *o, int64_t v);
void store_out_bytes(struct store_out *o, const void *p, size_t n); /* with its length; copied */
void store_out_blob(struct store_out *o, struct store_blob *b);     /* with its length; NULL: "" */

/* Fills in the next unsent bytes, in at most max pieces. Returns the number of pieces; 0: all is
 * sent. */
size_t store_out_iov(const struct store_out *o, struct iovec *iov, size_t max);
void store_out_sent(struct store_out *o, size_t n);

#endif
