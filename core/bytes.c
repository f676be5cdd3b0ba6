#include "core/bytes.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf)BUF_INIT;
}

bool buf_reserve(struct buf *b, size_t extra)
{
    if (b->oom)
        return false;
    if (extra <= b->cap - b->len)
        return true;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < extra) {
        if (cap > SIZE_MAX / 2) {
            b->oom = true;
            return false;
        }
        cap *= 2;
    }
    uint8_t *p = realloc(b->data, cap);
    if (!p) {
        b->oom = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void buf_consume(struct buf *b, size_t n)
{
    if (n == 0) /* also with nothing allocated */
        return;
    if (n < b->len)
        memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

void buf_put(struct buf *b, const void *p, size_t n)
{
    if (n == 0 || !buf_reserve(b, n))
        return;
    memcpy(b->data + b->len, p, n);
    b->len += n;
}

void buf_u8(struct buf *b, uint8_t v)
{
    buf_put(b, &v, 1);
}

void buf_u16(struct buf *b, uint16_t v)
{
    v = htole16(v);
    buf_put(b, &v, 2);
}

void buf_u32(struct buf *b, uint32_t v)
{
    v = htole32(v);
    buf_put(b, &v, 4);
}

void buf_u64(struct buf *b, uint64_t v)
{
    v = htole64(v);
    buf_put(b, &v, 8);
}

void buf_str(struct buf *b, const char *s)
{
    size_t n = s ? strlen(s) : 0;
    buf_u32(b, (uint32_t)n);
    buf_put(b, s, n);
}

void buf_set_u32(struct buf *b, size_t at, uint32_t v)
{
    if (b->oom)
        return;
    v = htole32(v);
    memcpy(b->data + at, &v, 4);
}

const uint8_t *rd_take(struct rd *r, size_t n)
{
    if (r->bad || (size_t)(r->end - r->p) < n) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *p = r->p;
    r->p += n;
    return p;
}

uint8_t rd_u8(struct rd *r)
{
    const uint8_t *p = rd_take(r, 1);
    return p ? *p : 0;
}

uint16_t rd_u16(struct rd *r)
{
    uint16_t v = 0;
    const uint8_t *p = rd_take(r, 2);
    if (p)
        memcpy(&v, p, 2);
    return le16toh(v);
}

uint32_t rd_u32(struct rd *r)
{
    uint32_t v = 0;
    const uint8_t *p = rd_take(r, 4);
    if (p)
        memcpy(&v, p, 4);
    return le32toh(v);
}

uint64_t rd_u64(struct rd *r)
{
    uint64_t v = 0;
    const uint8_t *p = rd_take(r, 8);
    if (p)
        memcpy(&v, p, 8);
    return le64toh(v);
}

void rd_str(struct rd *r, char *out, size_t cap)
{
    uint32_t n = rd_u32(r);
    out[0] = '\0';
    if (n >= cap) {
        r->bad = true;
        return;
    }
    const uint8_t *p = rd_take(r, n);
    if (!p)
        return;
    if (memchr(p, 0, n)) {
        r->bad = true;
        return;
    }
    memcpy(out, p, n);
    out[n] = '\0';
}
