/* bytes.h: growing byte buffers, and bounded reading and writing of little-endian fields.
 *
 * Writers append to a `struct buf`; a failed allocation is remembered in `oom` and later appends do
 * nothing, so a message is built without a check per field and checked once at its end.
 * Readers walk a `struct rd`; a field that would run past the end sets `bad` and reads as zero, so
 * a message is decoded without a check per field and checked once with rd_done(). */
#ifndef CORE_BYTES_H
#define CORE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t len, cap;
    bool oom;
};

#define BUF_INIT          \
    {                     \
        NULL, 0, 0, false \
    }

void buf_fini(struct buf *b);                  /* frees the storage; *b is BUF_INIT again */
bool buf_reserve(struct buf *b, size_t extra); /* room for `extra` more bytes; false: no memory */
void buf_consume(struct buf *b, size_t n);     /* drops the first n bytes */

void buf_put(struct buf *b, const void *p, size_t n);
void buf_u8(struct buf *b, uint8_t v);
void buf_u16(struct buf *b, uint16_t v);
void buf_u32(struct buf *b, uint32_t v);
void buf_u64(struct buf *b, uint64_t v);
void buf_str(struct buf *b, const char *s);             /* u32 length, bytes; NULL as "" */
void buf_set_u32(struct buf *b, size_t at, uint32_t v); /* overwrites 4 bytes written before */

struct rd {
    const uint8_t *p, *end;
    bool bad;
};

static inline struct rd rd_init(const void *p, size_t n)
{
    return (struct rd){p, (const uint8_t *)p + n, false};
}

const uint8_t *rd_take(struct rd *r, size_t n); /* the next n bytes, or NULL and bad */
uint8_t rd_u8(struct rd *r);
uint16_t rd_u16(struct rd *r);
uint32_t rd_u32(struct rd *r);
uint64_t rd_u64(struct rd *r);
/* Reads a buf_str() into out, terminated. Longer than cap-1, or holding a NUL: bad. */
void rd_str(struct rd *r, char *out, size_t cap);
/* True when nothing was bad and nothing is left over. */
static inline bool rd_done(const struct rd *r)
{
    return !r->bad && r->p == r->end;
}

#endif
